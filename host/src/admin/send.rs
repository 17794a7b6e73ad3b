//! `/api/send`: what `hapax send` does.

use axum::extract::State;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::AdminState;
use super::answer::{Answer, json_ok};
use super::body::{JsonBody, MANY_MAX};
use super::routes::{Route, route};
use super::work::Work;
use crate::app::{self, NewMessage, Next};
use crate::message::Header;
use crate::store::from_base64;

pub(super) const ROUTES: &[Route] = &[route!(post "/api/send" send)];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SendBody {
    /// The source's name.
    source: String,
    messages: Vec<SentMessage>,
}

/// As a line of `hapax send --envelope`, with a place for payloads that are not JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SentMessage {
    id: Option<String>,
    subject: Option<String>,
    #[serde(default)]
    headers: std::collections::BTreeMap<String, String>,
    /// JSON, sent as it stands in the body.
    payload: Option<Box<RawValue>>,
    /// Any bytes.
    payload_base64: Option<Base64>,
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Base64(Vec<u8>);

impl TryFrom<String> for Base64 {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        from_base64(&text).map(Self).ok_or("this is not base64")
    }
}

async fn send(
    State(state): State<AdminState>,
    JsonBody(body): JsonBody<SendBody, MANY_MAX>,
) -> Answer {
    let mut messages = Vec::with_capacity(body.messages.len());
    for (index, message) in body.messages.into_iter().enumerate() {
        let payload = match (message.payload, message.payload_base64) {
            (Some(json), None) => json.get().to_owned().into_bytes(),
            (None, Some(Base64(bytes))) => bytes,
            _ => {
                return Err(super::answer::ApiError::bad_request(
                    format!("`messages[{index}]` needs a payload, and one only"),
                    Some(
                        "write `\"payload\": ..` (JSON) or `\"payload_base64\": \"..\"` (any bytes)",
                    ),
                ));
            }
        };
        let headers = message.headers.into_iter().map(|(name, value)| Header {
            name,
            value: value.into(),
        });
        messages.push(NewMessage {
            line: None,
            id: message.id,
            subject: message.subject,
            headers: headers.collect(),
            payload: payload.into(),
        });
    }
    let config = state.config();
    let sent = state
        .bounds
        .work(Work::Change, async move {
            let messages = messages
                .into_iter()
                .map(|message| Next::Message(Ok(message)));
            app::send(&config, &body.source, messages, |_| {}).await
        })
        .await?;
    Ok(json_ok(&sent))
}
