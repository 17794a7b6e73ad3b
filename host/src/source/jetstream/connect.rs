//! The connection to a NATS server, and requests to its JetStream interface.
//!
//! **Invariant**: credentials leave the URL here and are in no text that this file makes.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::RequestErrorKind;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{self, StorageType};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{
    Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, watch};

use super::access::Access;
use crate::source::SourceError;

/// The longest wait for a connection, and for a reply.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest pause between two tries to connect again.
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// A connection on which nothing comes back for two of these is given up.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// How many denials are kept for one who is slow to hear of them.
const DENIED_KEPT: usize = 256;
/// The longest name that the server takes, in bytes.
const NAME_MAX_BYTES: usize = 255;

/// A connection that is made again by itself.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) client: Client,
    pub(super) context: jetstream::Context,
    /// How often the connection was lost.
    losses: watch::Receiver<u64>,
    /// Subjects that the server does not let this user publish to, when it says so.
    denied: broadcast::Sender<String>,
    /// Without credentials.
    pub(super) shown_url: String,
}

impl Link {
    /// Connects to the first of the URL's servers that answers. `name` is shown in the server's list of connections.
    pub(super) async fn connect(
        url: &str,
        access: &Access,
        name: &str,
    ) -> Result<Self, SourceError> {
        let shown_url = shown_url(url);
        let (servers, credentials) = parse_url(url)?;
        let (losses_sender, losses) = watch::channel(0);
        let losses_sender = Arc::new(losses_sender);
        let denied = broadcast::Sender::new(DENIED_KEPT);
        let denied_sender = denied.clone();
        let mut options = ConnectOptions::new()
            .name(name)
            .connection_timeout(TIMEOUT)
            .request_timeout(Some(TIMEOUT))
            .ping_interval(PING_INTERVAL)
            .reconnect_delay_callback(|attempt| {
                let exponent = u32::try_from(attempt).unwrap_or(u32::MAX).min(16);
                (Duration::from_millis(5) * 2_u32.pow(exponent)).min(RECONNECT_PAUSE_MAX)
            })
            .event_callback(move |event| {
                let losses_sender = Arc::clone(&losses_sender);
                let denied_sender = denied_sender.clone();
                async move {
                    match event {
                        Event::Disconnected => losses_sender.send_modify(|losses| *losses += 1),
                        Event::ServerError(error) => {
                            let is_heard = denied_subject(&error)
                                .is_some_and(|subject| denied_sender.send(subject).is_ok());
                            // Who hears of it has more to say.
                            if !is_heard {
                                tracing::warn!(%error, "the NATS server reports an error");
                            }
                        }
                        _ => {}
                    }
                }
            });
        match credentials {
            Credentials::None => {}
            Credentials::Token(token) => options = options.token(token),
            Credentials::Password(user, password) => {
                options = options.user_and_password(user, password);
            }
        }
        options = access.apply(options)?;
        let client = options
            .connect(servers)
            .await
            .map_err(|error| connect_error(&shown_url, access, &error))?;
        Ok(Self {
            context: jetstream::new(client.clone()),
            client,
            losses,
            denied,
            shown_url,
        })
    }

    /// True if the connection stands, as far as is known.
    pub(super) fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Waits until the connection is lost again.
    ///
    /// Cancellation: may be dropped.
    pub(super) async fn lost(&mut self) {
        if self.losses.changed().await.is_err() {
            // The client is gone, and this with it.
            std::future::pending::<()>().await;
        }
    }

    /// Returns what hears of subjects, from now on, that the server does not let this user publish to.
    pub(super) fn denied(&self) -> Denied {
        Denied(self.denied.subscribe())
    }

    /// Says that there is no connection now.
    pub(super) fn unavailable(&self) -> SourceError {
        SourceError::Unavailable(format!("no connection to `{}`", self.shown_url))
    }

    /// Asks the server's JetStream interface. `Err(Ok(_))` is its refusal.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        subject: &str,
        body: &impl Serialize,
    ) -> Result<Result<T, jetstream::Error>, SourceError> {
        match self
            .context
            .request::<_, _, Response<T>>(subject.to_owned(), body)
            .await
        {
            Ok(Response::Ok(reply)) => Ok(Ok(reply)),
            // A cluster without a leader, a server that starts or stops.
            Ok(Response::Err { error }) if error.code() == 503 => Err(SourceError::Unavailable(
                format!("JetStream at `{}` is not ready: {error}", self.shown_url),
            )),
            Ok(Response::Err { error }) => Ok(Err(error)),
            Err(error) => Err(SourceError::Unavailable(match error.kind() {
                RequestErrorKind::NoResponders => format!(
                    "JetStream does not answer at `{}`; start the server with `-js` if it is not enabled",
                    self.shown_url
                ),
                RequestErrorKind::TimedOut => {
                    format!("JetStream at `{}` did not answer in time", self.shown_url)
                }
                RequestErrorKind::InvalidSubject | RequestErrorKind::Other => {
                    format!("asking JetStream at `{}`: {error}", self.shown_url)
                }
            })),
        }
    }

    /// Returns what the server knows of a stream, `None` if it does not exist.
    pub(super) async fn stream_info(
        &self,
        name: &str,
    ) -> Result<Option<stream::Info>, SourceError> {
        match self
            .ask::<stream::Info>(&format!("STREAM.INFO.{name}"), &serde_json::json!({}))
            .await?
        {
            Ok(info) => Ok(Some(info)),
            Err(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(None),
            Err(error) => Err(self.refused(&format!("stream `{name}`"), &error)),
        }
    }

    /// Returns a stream, made if it is missing and `create` says so.
    pub(super) async fn stream(
        &self,
        name: &str,
        subjects: &[String],
        create: bool,
    ) -> Result<stream::Info, SourceError> {
        if let Some(info) = self.stream_info(name).await? {
            return Ok(info);
        }
        if !create {
            return Err(SourceError::Unusable(format!(
                "`{}` has no stream `{name}`\nhint: create it, or set `create = true` and `subjects`",
                self.shown_url
            )));
        }
        if subjects.is_empty() {
            return Err(SourceError::Unusable(format!(
                "stream `{name}` cannot be created without subjects\nhint: name them, such as `subjects = [\"{}.>\"]`",
                name.to_lowercase()
            )));
        }
        let config = stream::Config {
            name: name.to_owned(),
            subjects: subjects.to_vec(),
            storage: StorageType::File,
            ..stream::Config::default()
        };
        match self
            .ask::<stream::Info>(&format!("STREAM.CREATE.{name}"), &config)
            .await?
        {
            Ok(info) => {
                tracing::info!(stream = %name, ?subjects, "created the stream");
                Ok(info)
            }
            // Another host was faster.
            Err(error) if error.error_code() == ErrorCode::STREAM_NAME_EXIST => {
                match self.stream_info(name).await? {
                    Some(info) => Ok(info),
                    None => Err(SourceError::Unavailable(format!(
                        "stream `{name}` came and went"
                    ))),
                }
            }
            Err(error) => Err(self.refused(&format!("creating stream `{name}`"), &error)),
        }
    }

    /// Puts a refusal of the server into words.
    pub(super) fn refused(&self, what: &str, error: &jetstream::Error) -> SourceError {
        let hint = match error.error_code() {
            ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => {
                "\nhint: enable JetStream for the account of these credentials"
            }
            ErrorCode::STREAM_SUBJECT_OVERLAP => {
                "\nhint: another stream takes one of these subjects; use that stream, or other subjects"
            }
            _ => "",
        };
        SourceError::Unusable(format!(
            "{what}: the server at `{}` refuses: {error}{hint}",
            self.shown_url
        ))
    }
}

/// Hears of subjects that the server does not let a user publish to.
pub(super) struct Denied(broadcast::Receiver<String>);

impl Denied {
    /// Waits until the server says so of `subject`; for ever, if it does not.
    ///
    /// Cancellation: may be dropped.
    pub(super) async fn heard(&mut self, subject: &str) {
        loop {
            match self.0.recv().await {
                Ok(denied) if denied == subject => return,
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                // The client is gone, and this with it.
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

/// Returns the subject that a server's error denies. It does not say which message it means.
fn denied_subject(error: &ServerError) -> Option<String> {
    let ServerError::Other(text) = error else {
        return None;
    };
    let (_, subject) = text.split_once("Permissions Violation for Publish to \"")?;
    Some(subject.rsplit_once('"')?.0.to_owned())
}

/// What does not mend itself is `Unusable`: refused credentials and certificates.
fn connect_error(shown_url: &str, access: &Access, error: &ConnectError) -> SourceError {
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            SourceError::Unusable(format!(
                "`{shown_url}` refuses the credentials\nhint: {}",
                access.refused_hint()
            ))
        }
        kind => {
            let text = format!("cannot connect to `{shown_url}`: {error}");
            match tls_hint(kind, &error.to_string()) {
                Some(hint) => SourceError::Unusable(format!("{text}\nhint: {hint}")),
                None => SourceError::Unavailable(text),
            }
        }
    }
}

/// Returns what to do about a certificate that does not serve. Which of the two refused is only in the text.
fn tls_hint(kind: ConnectErrorKind, text: &str) -> Option<&'static str> {
    let text = text.to_ascii_lowercase();
    if text.contains("certificaterequired") || text.contains("certificate required") {
        return Some(
            "the server asks for a client certificate: name it with `tls = { cert = \"FILE\", key = \"FILE\" }`",
        );
    }
    if text.contains("received fatal alert") {
        return Some(
            "the server refuses the client certificate: check `tls.cert`, and that the server trusts its authority",
        );
    }
    if text.contains("notvalidforname") || text.contains("not valid for name") {
        return Some("use the name in `url` that the server's certificate is for");
    }
    if text.contains("invalid peer certificate") {
        return Some(
            "name the file of the authority that signed the server's certificate: `tls = { ca = \"FILE\" }`",
        );
    }
    (kind == ConnectErrorKind::Tls && text.contains("certificate or key"))
        .then_some("`tls.cert` and `tls.key` do not belong together")
}

enum Credentials {
    None,
    Token(String),
    Password(String, String),
}

/// Splits a URL, or several separated by commas, into the servers and the credentials of the first that has some.
///
/// async-nats ignores credentials in URLs and writes URLs to its log, so they must not stay there.
fn parse_url(url: &str) -> Result<(Vec<ServerAddr>, Credentials), SourceError> {
    let refuse = |problem: &str| {
        SourceError::Unusable(format!(
            "`{}` is no URL of a NATS server: {problem}\nhint: write `nats://host:4222`",
            shown_url(url)
        ))
    };
    let mut credentials = Credentials::None;
    let mut servers = Vec::new();
    for part in url.split(',') {
        let address: ServerAddr = part
            .trim()
            .parse()
            .map_err(|_| refuse("it cannot be read"))?;
        if address.is_websocket() {
            return Err(refuse("web sockets are not supported"));
        }
        if address.host().is_empty() {
            return Err(refuse("it names no host"));
        }
        if matches!(credentials, Credentials::None) {
            let decode = |text: &str| {
                percent_decode(text).ok_or_else(|| refuse("its credentials are not UTF-8"))
            };
            match (address.username(), address.password()) {
                (Some(user), Some(password)) => {
                    credentials = Credentials::Password(decode(user)?, decode(password)?);
                }
                (Some(token), None) => credentials = Credentials::Token(decode(token)?),
                (None, Some(password)) => {
                    credentials = Credentials::Password(String::new(), decode(password)?);
                }
                (None, None) => {}
            }
        }
        let mut bare = address.into_inner();
        if bare.set_username("").is_err() || bare.set_password(None).is_err() {
            return Err(refuse("it cannot be read"));
        }
        servers.push(ServerAddr::from_url(bare).map_err(|_| refuse("it cannot be read"))?);
    }
    Ok((servers, credentials))
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.map(|digits| u8::from_str_radix(digits, 16)) {
            Some(Ok(decoded)) if byte == b'%' => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// Returns a URL, or several separated by commas, without credentials. Works on damaged ones too.
pub(super) fn shown_url(url: &str) -> String {
    let mut shown = String::new();
    for part in url.split(',') {
        let part = part.trim();
        if !shown.is_empty() {
            shown.push(',');
        }
        let (scheme, rest) = part.split_once("://").unwrap_or(("nats", part));
        // A password may hold any character: only what follows the last `@` is surely no part of it.
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        let _ = write!(shown, "{scheme}://{host}");
    }
    shown
}

/// Checks the name of a stream or a durable.
pub(super) fn check_name(what: &str, name: &str) -> Result<(), SourceError> {
    let problem = if name.is_empty() {
        "is empty".to_owned()
    } else if name.len() > NAME_MAX_BYTES {
        format!("has more than {NAME_MAX_BYTES} bytes")
    } else if let Some(odd) = name
        .chars()
        .find(|c| c.is_whitespace() || c.is_control() || matches!(c, '.' | '*' | '>' | '/' | '\\'))
    {
        format!("contains {odd:?}, which NATS does not allow in names")
    } else {
        return Ok(());
    };
    Err(SourceError::Unusable(format!(
        "the {what}'s name `{name}` {problem}\nhint: use letters, digits, `-` and `_`"
    )))
}

/// Checks a subject with or without wildcards.
pub(super) fn check_filter(subject: &str) -> Result<(), SourceError> {
    let tokens: Vec<&str> = subject.split('.').collect();
    let last = tokens.len() - 1;
    let good = tokens.iter().enumerate().all(|(index, token)| {
        !token.is_empty()
            && !token.contains(|c: char| c.is_whitespace() || c.is_control())
            && (!token.contains('>') || (*token == ">" && index == last))
            && (!token.contains('*') || *token == "*")
    });
    if good {
        return Ok(());
    }
    Err(SourceError::Unusable(format!(
        "`{subject}` is no subject\nhint: write words with dots between them, such as `payments.eu`; `*` stands for \
         one word, `>` at the end for one or more"
    )))
}

/// True if every subject that `narrow` matches is matched by `wide`.
pub(super) fn covers(wide: &str, narrow: &str) -> bool {
    let mut wide = wide.split('.');
    let mut narrow = narrow.split('.');
    loop {
        match (wide.next(), narrow.next()) {
            (Some(">"), Some(_)) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(a), Some(b)) if a == b => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(error: SourceError) -> String {
        error.to_string()
    }

    #[test]
    fn credentials_leave_the_url() {
        let table = [
            ("nats://a:4222", "nats://a:4222", "none"),
            ("a", "nats://a", "none"),
            ("nats://me:s3cret@a:1", "nats://a:1", "me/s3cret"),
            ("tls://tok%2Fen@a", "tls://a", "tok/en"),
            ("nats://me:p%40ss%25@a", "nats://a", "me/p@ss%"),
            (
                "nats://a, nats://me:s3cret@b",
                "nats://a,nats://b",
                "me/s3cret",
            ),
        ];
        for (url, shown, expected) in table {
            assert_eq!(shown_url(url), shown);
            let (servers, credentials) = parse_url(url).unwrap();
            assert!(
                servers
                    .iter()
                    .all(|server| !server.has_user_pass() && server.password().is_none())
            );
            let credentials = match credentials {
                Credentials::None => "none".to_owned(),
                Credentials::Token(token) => token,
                Credentials::Password(user, password) => format!("{user}/{password}"),
            };
            assert_eq!(credentials, expected, "{url}");
        }
        for url in [
            "http://me:s3cret@a",
            "ws://me:s3cret@a",
            "nats://me:s3cret@",
            "nats://me:s3cret@a:port",
            "",
        ] {
            let error = parse_url(url).map(|_| ()).map_err(text).unwrap_err();
            assert!(error.contains("hint: write `nats://"), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn names() {
        for name in ["credit", "credit-account_2", "größe", &"a".repeat(255)] {
            assert!(check_name("consumer", name).is_ok(), "{name}");
        }
        let table = [
            ("", "is empty"),
            ("a.b", "contains '.'"),
            ("a*", "contains '*'"),
            (">", "contains '>'"),
            ("a b", "contains ' '"),
            ("a/b", "contains '/'"),
            ("a\\b", "contains '\\\\'"),
            ("a\tb", "contains '\\t'"),
            (&"a".repeat(256), "has more than 255 bytes"),
        ];
        for (name, problem) in table {
            let error = text(check_name("consumer", name).unwrap_err());
            assert!(
                error.starts_with("the consumer's name `") && error.contains(problem),
                "{error}"
            );
        }
    }

    #[test]
    fn subjects() {
        for subject in ["a", "a.b", "a.*.c", ">", "a.>", "$JS.x"] {
            assert!(check_filter(subject).is_ok(), "{subject}");
        }
        for subject in ["", ".", "a.", ".a", "a..b", "a b", "a.>.b", "a>", "a.b*"] {
            assert!(check_filter(subject).is_err(), "{subject}");
        }
        let table = [
            ("a.b", "a.b", true),
            ("a.b", "a.c", false),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.*", "a.b.c", false),
            ("a.*", "a.*", true),
            ("a.*", "a.>", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            (">", "a", true),
            ("a.>", "a.>", true),
            ("a.b", "a.*", false),
        ];
        for (wide, narrow, expected) in table {
            assert_eq!(covers(wide, narrow), expected, "{wide} over {narrow}");
        }
    }
}
