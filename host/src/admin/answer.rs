//! Answers of the API: JSON, and one shape for everything that went wrong.
//!
//! **Invariant**: an error says what is wrong and what to do, and holds no secret: its texts are those of commands, which hold none.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;

use crate::exit::{Cause, CommandError, Exit};

/// After how long a client that was refused for want of room may ask again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why a request was not served: `{"error": {"code": .., "message": .., "hint": ..}}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    status: StatusCode,
    /// A word of a closed set, for programs; `docs/admin.md` lists them.
    code: &'static str,
    message: String,
    hint: Option<String>,
}

/// What a route answers.
pub(super) type Answer = Result<Response, ApiError>;

impl ApiError {
    pub(super) fn new(
        status: StatusCode,
        code: &'static str,
        message: impl Into<String>,
        hint: Option<&str>,
    ) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            hint: hint.map(str::to_owned),
        }
    }

    /// 400: the request says something that can't be meant.
    pub(super) fn bad_request(message: impl Into<String>, hint: Option<&str>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", message, hint)
    }

    /// 404, for what a path names.
    pub(super) fn not_found(message: impl Into<String>, hint: Option<&str>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", message, hint)
    }

    /// 428: it does something that has to be wanted, `what` in a sentence.
    pub(super) fn not_confirmed(what: &str) -> Self {
        Self::new(
            StatusCode::PRECONDITION_REQUIRED,
            "not-confirmed",
            format!("{what}, and nothing was done"),
            Some("say `\"confirm\": true`"),
        )
    }

    /// 503: as much is in work already as may be.
    pub(super) fn busy(what: &str) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            format!("{what} are in work already, so that messages are not slowed down"),
            Some("ask again after the seconds of `Retry-After`"),
        )
    }

    /// 500, for what a panic left unanswered.
    pub(super) fn bug() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "bug",
            "a part of the host panicked over this request; messages go on",
            Some("report this as a bug, with the log's lines"),
        )
    }
}

impl From<CommandError> for ApiError {
    fn from(error: CommandError) -> Self {
        let (status, code) = match (error.cause(), error.exit) {
            (Some(Cause::Malformed), _) => (StatusCode::BAD_REQUEST, "bad-request"),
            (Some(Cause::NotThere), _) => (StatusCode::NOT_FOUND, "not-found"),
            (Some(Cause::Refused), _) => (StatusCode::CONFLICT, "refused"),
            (Some(Cause::Unavailable), _) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            (None, Exit::CommandLine) => (StatusCode::BAD_REQUEST, "bad-request"),
            (None, Exit::Configuration) => (StatusCode::UNPROCESSABLE_ENTITY, "configuration"),
            (None, Exit::SchemaNewer) => (StatusCode::CONFLICT, "schema-newer"),
            (None, Exit::Failed | Exit::Done) => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
            (None, Exit::Bug) => (StatusCode::INTERNAL_SERVER_ERROR, "bug"),
        };
        let (message, hint) = error.sentences();
        Self {
            status,
            code,
            message,
            hint: Some(hint).filter(|hint| !hint.is_empty()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut body = json!({ "code": self.code, "message": self.message });
        if let Some(hint) = self.hint {
            body["hint"] = hint.into();
        }
        let mut response = json_with(self.status, &json!({ "error": body }));
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                let scheme = HeaderValue::from_static("Bearer realm=\"hapax\"");
                headers.insert(header::WWW_AUTHENTICATE, scheme);
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, RETRY_AFTER.as_secs().into());
            }
            _ => {}
        }
        response
    }
}

/// 200 with a JSON object.
pub(super) fn json_ok(body: &impl Serialize) -> Response {
    json_with(StatusCode::OK, body)
}

/// A JSON object, which nobody on the way keeps.
pub(super) fn json_with(status: StatusCode, body: &impl Serialize) -> Response {
    (status, [(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
}
