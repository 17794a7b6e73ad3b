//! What a handler reads from its message.

use serde::de::DeserializeOwned;

use crate::Message;
use crate::failure::Failure;

/// The longest part of a JSON error that is kept, in bytes: it can quote the payload.
const JSON_ERROR_BYTES_MAX: usize = 1000;

impl Message {
    /// Reads the payload as JSON.
    ///
    /// # Errors
    /// [`Failure::Reject`]: it is not JSON, or not of this shape. The reason names the field, the line and the column.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let mut deserializer = serde_json::Deserializer::from_slice(&self.payload);
        let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            let path = error.path().to_string();
            let cause = shortened(&error.into_inner().to_string(), JSON_ERROR_BYTES_MAX);
            if path == "." {
                Failure::reject(format_args!("payload is not the expected JSON: {cause}"))
            } else {
                Failure::reject(format_args!(
                    "payload is not the expected JSON: `{path}`: {cause}"
                ))
            }
        })?;
        deserializer.end().map_err(|error| {
            Failure::reject(format_args!("payload is not the expected JSON: {error}"))
        })?;
        Ok(value)
    }

    /// Returns the payload as text.
    ///
    /// # Errors
    /// [`Failure::Reject`]: it is not UTF-8.
    pub fn text(&self) -> Result<&str, Failure> {
        std::str::from_utf8(&self.payload)
            .map_err(|error| Failure::reject(format_args!("payload is not UTF-8 text: {error}")))
    }

    /// Returns the value of the first header of this name, in upper or lower case.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers_named(name).next()
    }

    /// Returns the values of all headers of this name, in upper or lower case, in their order.
    pub fn headers_named(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.headers
            .iter()
            .filter(move |header| header.name.eq_ignore_ascii_case(name))
            .map(|header| header.value.as_slice())
    }

    /// Returns the value of the first header of this name as text, `None` if there is no such header.
    ///
    /// # Errors
    /// [`Failure::Reject`]: it is not UTF-8.
    pub fn header_text(&self, name: &str) -> Result<Option<&str>, Failure> {
        let Some(value) = self.header(name) else {
            return Ok(None);
        };
        match std::str::from_utf8(value) {
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(Failure::reject(format_args!(
                "header `{name}` is not UTF-8 text: {error}"
            ))),
        }
    }
}

/// Returns `text`, cut to about `bytes_max` with a note of what is missing if it is longer.
fn shortened(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let kept = &text[..text.floor_char_boundary(bytes_max)];
    format!("{kept}... ({} bytes more)", text.len() - kept.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Header;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Order {
        lines: Vec<Line>,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Line {
        amount: i64,
    }

    fn message(payload: &[u8]) -> Message {
        Message {
            id: "m1".to_owned(),
            source: "orders".to_owned(),
            subject: String::new(),
            key: None,
            headers: vec![
                Header {
                    name: "X-Kind".to_owned(),
                    value: b"first".to_vec(),
                },
                Header {
                    name: "x-kind".to_owned(),
                    value: vec![0xff],
                },
            ],
            content_type: None,
            payload: payload.to_vec(),
            attempt: 1,
            published_at: None,
        }
    }

    fn reason(payload: &[u8]) -> String {
        match message(payload).json::<Order>() {
            Err(Failure::Reject { reason }) => reason,
            other => panic!("not a rejection: {other:?}"),
        }
    }

    #[test]
    fn json_is_read() {
        let order: Order = message(br#" {"lines":[{"amount":5}]} "#).json().unwrap();
        assert_eq!(
            order,
            Order {
                lines: vec![Line { amount: 5 }]
            }
        );
    }

    #[test]
    fn json_errors_name_the_place() {
        assert_eq!(
            reason(br#"{"lines":[{"amount":5},{"amount":"six"}]}"#),
            "payload is not the expected JSON: `lines[1].amount`: invalid type: string \"six\", expected i64 at line 1 column 38"
        );
        assert_eq!(
            reason(b"{}"),
            "payload is not the expected JSON: missing field `lines` at line 1 column 2"
        );
        assert_eq!(
            reason(b"hello"),
            "payload is not the expected JSON: expected value at line 1 column 1"
        );
        assert_eq!(
            reason(br#"{"lines":[]} x"#),
            "payload is not the expected JSON: trailing characters at line 1 column 14"
        );
        let long = format!(r#"{{"lines":"{}"}}"#, "x".repeat(100_000));
        assert!(reason(long.as_bytes()).len() < 1200);
    }

    #[test]
    fn headers_are_found_in_any_case() {
        let message = message(b"");
        assert_eq!(message.header("x-kIND"), Some(&b"first"[..]));
        assert_eq!(message.headers_named("x-kind").count(), 2);
        assert_eq!(message.header_text("X-Kind"), Ok(Some("first")));
        assert_eq!(message.header_text("absent"), Ok(None));
    }

    #[test]
    fn text_must_be_utf_8() {
        assert_eq!(message("grün".as_bytes()).text(), Ok("grün"));
        assert!(message(&[0xff]).text().is_err());
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shortened("kurz", 4), "kurz");
        assert_eq!(shortened("äöü", 3), "ä... (4 bytes more)");
    }
}
