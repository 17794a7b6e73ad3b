//! `/api/handlers`: which component every host runs, and changing that.
//!
//! A change says who asks for it, in the header `X-Hapax-By` (`user@host`); it is written into the history.
//!
//! **Invariant**: nothing is decided here. What a request asks for is handed to whoever answers, as a value.

mod door;
mod sent;
mod told;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::Deserialize;

use super::AdminState;
use super::answer::{self, ApiError, json_ok};
use super::body::{JsonBody, Named};
use super::routes::{Route, route};
use super::work::Work;
use crate::text::one_line;

pub use door::{Answer, Change, HandlersDoor, HandlersRequest, Refusal, Why};
pub use sent::MIGRATIONS_BYTES_MAX;
pub use told::{Changed, HandlerHistory, HandlersList, HistoryLine, ListedHandler, ListedHost};

/// Who asks for a change, in its own words.
pub const BY_HEADER: &str = "x-hapax-by";
/// The longest `X-Hapax-By`, in bytes.
const BY_BYTES_MAX: usize = 200;

pub(super) const ROUTES: &[Route] = &[
    route!(get "/api/handlers" list),
    route!(get "/api/handlers/{name}/history" history),
    route!(post "/api/handlers/{name}/deploy" deploy).long(),
    route!(post "/api/handlers/{name}/rollback" roll_back).long(),
    route!(post "/api/handlers/{name}/pause" pause),
    route!(post "/api/handlers/{name}/resume" resume),
    route!(post "/api/handlers/{name}/remove" remove),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoBody {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RollbackBody {
    /// Of the component to go back to, or its first digits.
    digest: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoveBody {
    #[serde(default)]
    confirm: bool,
}

async fn list(State(state): State<AdminState>) -> answer::Answer {
    ask(&state, Work::Read, HandlersRequest::List).await
}

async fn history(State(state): State<AdminState>, Named(handler): Named) -> answer::Answer {
    ask(&state, Work::Read, HandlersRequest::History { handler }).await
}

async fn pause(
    State(state): State<AdminState>,
    Named(handler): Named,
    By(by): By,
    JsonBody(NoBody {}): JsonBody<NoBody>,
) -> answer::Answer {
    change(&state, handler, Change::Pause, by).await
}

async fn resume(
    State(state): State<AdminState>,
    Named(handler): Named,
    By(by): By,
    JsonBody(NoBody {}): JsonBody<NoBody>,
) -> answer::Answer {
    change(&state, handler, Change::Resume, by).await
}

async fn remove(
    State(state): State<AdminState>,
    Named(handler): Named,
    By(by): By,
    JsonBody(body): JsonBody<RemoveBody>,
) -> answer::Answer {
    if !body.confirm {
        let what = format!(
            "the component of `{}` would be taken away, and its messages would wait",
            one_line(&handler)
        );
        return Err(ApiError::not_confirmed(&what));
    }
    change(&state, handler, Change::Remove, by).await
}

async fn roll_back(
    State(state): State<AdminState>,
    Named(handler): Named,
    By(by): By,
    JsonBody(body): JsonBody<RollbackBody>,
) -> answer::Answer {
    let digest = body.digest;
    let request = HandlersRequest::Change {
        handler,
        change: Change::Rollback { digest },
        by,
    };
    ask(&state, Work::Long, request).await
}

/// The body is the component, or a form with the file `component` and any number of files `migrations`.
async fn deploy(
    State(state): State<AdminState>,
    Named(handler): Named,
    By(by): By,
    headers: HeaderMap,
    body: Body,
) -> answer::Answer {
    // Before the body is read: it may be large, and only one is held.
    let permit = state.bounds.session(Work::Deployment).await?;
    let change = sent::read(headers, body).await?;
    let request = HandlersRequest::Change {
        handler,
        change,
        by,
    };
    let asked = state.rooms.handlers.clone().ask(request);
    let told = state
        .bounds
        .work_with(permit, Work::Deployment, asked)
        .await?;
    Ok(json_ok(&told))
}

async fn change(state: &AdminState, handler: String, change: Change, by: String) -> answer::Answer {
    let request = HandlersRequest::Change {
        handler,
        change,
        by,
    };
    ask(state, Work::Change, request).await
}

async fn ask(state: &AdminState, sort: Work, request: HandlersRequest) -> answer::Answer {
    let permit = state.bounds.session(sort).await?;
    let asked = state.rooms.handlers.clone().ask(request);
    let told = state.bounds.work_with(permit, sort, asked).await?;
    Ok(json_ok(&told))
}

/// Who asks for a change.
struct By(String);

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for By {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        _state: &S,
    ) -> Result<Self, ApiError> {
        let by = parts
            .headers
            .get(BY_HEADER)
            .and_then(|value| value.to_str().ok())
            .map(str::trim)
            .filter(|by| (1..=BY_BYTES_MAX).contains(&by.len()));
        match by {
            Some(by) => Ok(Self(one_line(by))),
            None => Err(ApiError::bad_request(
                "a change must say who asks for it",
                Some(&format!(
                    "send the header `X-Hapax-By: user@host`, of at most {BY_BYTES_MAX} bytes"
                )),
            )),
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        use axum::http::StatusCode;
        let (status, code) = match refusal.why {
            Why::Malformed => (StatusCode::BAD_REQUEST, "bad-request"),
            Why::NotThere => (StatusCode::NOT_FOUND, "not-found"),
            Why::Refused => (StatusCode::CONFLICT, "refused"),
            Why::Unusable => (StatusCode::UNPROCESSABLE_ENTITY, "unusable"),
            Why::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            Why::Bug => (StatusCode::INTERNAL_SERVER_ERROR, "bug"),
        };
        Self::new(status, code, refusal.problem, refusal.hint.as_deref())
    }
}
