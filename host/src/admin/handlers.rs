//! `/api/handlers`: which component every host runs, and changing that.
//!
//! A change asks for the header `X-Hapax-By` (`user@host`). It is written into the history, and it keeps web pages out: a browser sends
//! no header of a page's own choice to another origin without asking first.
//!
//! **Invariant**: nothing is decided here. What a request asks for is handed to whoever answers, as a value.

use std::fmt;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use axum::extract::multipart::MultipartError;
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::AdminState;
use crate::handler::{COMPONENT_BYTES_MAX, Producer};
use crate::text::one_line;

/// Who asks for a change, in its own words.
pub const BY_HEADER: &str = "x-hapax-by";
/// All migrations of one deployment together, in bytes.
pub const MIGRATIONS_BYTES_MAX: usize = 16 << 20;
/// The longest `X-Hapax-By`, in bytes.
const BY_BYTES_MAX: usize = 200;
/// A deployment's whole body: the component, its migrations, and what stands between the parts.
const DEPLOY_BYTES_MAX: usize = COMPONENT_BYTES_MAX + MIGRATIONS_BYTES_MAX + (1 << 20);

/// What is asked of whoever runs the handlers.
#[derive(Clone, Debug)]
pub enum HandlersRequest {
    /// All handlers, as every host has them.
    List,
    /// A handler's deployments.
    History {
        /// As the configuration names it.
        handler: String,
    },
    /// A change for every host.
    Change {
        /// As the configuration names it.
        handler: String,
        /// What is to change.
        change: Change,
        /// Who asks for it.
        by: String,
    },
}

/// What is to change on every host.
#[derive(Clone, Debug)]
pub enum Change {
    /// Another component.
    Deploy {
        /// The whole file.
        component: Bytes,
        /// Files and their texts, if the component brings any.
        migrations: Option<Vec<(String, String)>>,
    },
    /// The component of an earlier deployment: the newest with this digest or start of one, or the one before the active.
    Rollback {
        /// Hexadecimal digits.
        digest: Option<String>,
    },
    /// Messages wait.
    Pause,
    /// They run again.
    Resume,
    /// No component: messages wait until another one is deployed.
    Remove,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Of the answer.
    pub status: StatusCode,
    /// For programs; one word with hyphens that never changes.
    pub code: &'static str,
    /// For people: what is wrong.
    pub problem: String,
    /// For people: what to do.
    pub hint: Option<String>,
}

impl Refusal {
    /// Makes one.
    pub fn new(
        status: StatusCode,
        code: &'static str,
        problem: impl fmt::Display,
        hint: impl Into<Option<String>>,
    ) -> Self {
        Self {
            status,
            code,
            problem: problem.to_string(),
            hint: hint.into(),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = RefusalBody {
            error: self.code.to_owned(),
            message: self.problem,
            hint: self.hint,
        };
        (
            self.status,
            [(header::CACHE_CONTROL, "no-store")],
            Json(body),
        )
            .into_response()
    }
}

/// The body of a refusal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RefusalBody {
    /// For programs.
    pub error: String,
    /// For people: what is wrong.
    pub message: String,
    /// For people: what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Answers a request, as JSON.
pub type Answer = Result<serde_json::Value, Refusal>;
type Answering = dyn Fn(HandlersRequest) -> BoxFuture<'static, Answer> + Send + Sync;

/// Where requests go. The address is open before the handlers are there; until then requests are refused with 503. Cheap to clone.
#[derive(Clone, Default)]
pub struct HandlersDoor(Arc<OnceLock<Box<Answering>>>);

impl HandlersDoor {
    /// From now on `answer` answers; the first call counts.
    pub fn open(
        &self,
        answer: impl Fn(HandlersRequest) -> BoxFuture<'static, Answer> + Send + Sync + 'static,
    ) {
        let _ = self.0.set(Box::new(answer));
    }

    async fn ask(&self, request: HandlersRequest) -> Answer {
        match self.0.get() {
            Some(answer) => answer(request).await,
            None => Err(Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "starting",
                "this host is still starting",
                "ask again when `/readyz` says that it is ready".to_owned(),
            )),
        }
    }
}

impl fmt::Debug for HandlersDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlersDoor")
            .field("is_open", &self.0.get().is_some())
            .finish()
    }
}

/// Answer to `GET /api/handlers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlersList {
    /// The process that answers.
    pub host: String,
    /// In the order of their names.
    pub handlers: Vec<ListedHandler>,
}

/// A handler, as every host has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedHandler {
    /// As the configuration names it.
    pub name: String,
    /// The claims' key.
    pub consumer: String,
    /// Who decides which component it is: `file` or `store`.
    pub owner: String,
    /// The component's file, if a file owns it.
    pub file: Option<String>,
    /// The active deployment's number.
    pub deployment: Option<u64>,
    /// The active deployment's component.
    pub digest: Option<String>,
    /// True: it is to stand still on every host.
    pub paused: bool,
    /// Rises with each change of the three before.
    pub generation: u64,
    /// Every host that told of it lately.
    pub hosts: Vec<ListedHost>,
}

/// What one host made of a handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedHost {
    /// The process: machine, number, random digits.
    pub host: String,
    /// `running`, `paused`, `waiting` or `failed`.
    pub state: String,
    /// Of the component that it runs.
    pub digest: Option<String>,
    /// Which generation it has taken over, or failed at.
    pub generation: u64,
    /// Why it goes on as before.
    pub error: Option<String>,
    /// How long ago it said so, in milliseconds.
    pub seen_ms: u64,
}

/// Answer to `GET /api/handlers/NAME/history`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlerHistory {
    /// As the configuration names it.
    pub handler: String,
    /// The newest first.
    pub deployments: Vec<HistoryLine>,
}

/// One deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryLine {
    /// From 1.
    pub number: u64,
    /// Of the component.
    pub digest: String,
    /// Of the component.
    pub bytes: u64,
    /// The version of `hapax:handler` that the component was built for.
    pub contract: String,
    /// The tools that made the component.
    pub producers: Vec<Producer>,
    /// By the database's clock, as RFC 3339 text.
    pub deployed_at: Option<String>,
    /// Who asked for it, in its own words.
    pub deployed_by: String,
    /// The files that were applied for it.
    pub migrations: Vec<String>,
    /// The deployment that it went back to.
    pub back_to: Option<u64>,
    /// True of one at most.
    pub active: bool,
}

/// Answer to every change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// As the configuration names it.
    pub handler: String,
    /// False if it was so already.
    pub changed: bool,
    /// Of the handler's state now: hosts that have taken this one over have the change.
    pub generation: u64,
    /// The active deployment's number now.
    pub deployment: Option<u64>,
    /// The active deployment's component now.
    pub digest: Option<String>,
    /// True: it is to stand still on every host.
    pub paused: bool,
    /// The files that were applied.
    pub migrations: Vec<String>,
}

/// A deployment's cap stands beside its route, since it is far above that of any other request.
pub(super) fn routes() -> Router<AdminState> {
    Router::new()
        .route("/api/handlers", get(list))
        .route("/api/handlers/{name}", axum::routing::delete(remove))
        .route("/api/handlers/{name}/history", get(history))
        .route(
            "/api/handlers/{name}/deploy",
            post(deploy).layer(DefaultBodyLimit::max(DEPLOY_BYTES_MAX)),
        )
        .route("/api/handlers/{name}/rollback", post(rollback))
        .route("/api/handlers/{name}/pause", post(pause))
        .route("/api/handlers/{name}/resume", post(resume))
}

async fn list(State(state): State<AdminState>) -> Response {
    answer(state.handlers.ask(HandlersRequest::List).await)
}

async fn history(State(state): State<AdminState>, Path(handler): Path<String>) -> Response {
    answer(
        state
            .handlers
            .ask(HandlersRequest::History { handler })
            .await,
    )
}

async fn pause(
    State(state): State<AdminState>,
    Path(handler): Path<String>,
    headers: HeaderMap,
) -> Response {
    change(&state, handler, &headers, Change::Pause).await
}

async fn resume(
    State(state): State<AdminState>,
    Path(handler): Path<String>,
    headers: HeaderMap,
) -> Response {
    change(&state, handler, &headers, Change::Resume).await
}

async fn remove(
    State(state): State<AdminState>,
    Path(handler): Path<String>,
    headers: HeaderMap,
) -> Response {
    change(&state, handler, &headers, Change::Remove).await
}

#[derive(Deserialize)]
struct RollbackQuery {
    digest: Option<String>,
}

async fn rollback(
    State(state): State<AdminState>,
    Path(handler): Path<String>,
    Query(query): Query<RollbackQuery>,
    headers: HeaderMap,
) -> Response {
    let digest = query.digest;
    change(&state, handler, &headers, Change::Rollback { digest }).await
}

/// The body is the component, or a form with the file `component` and any number of files `migrations`.
async fn deploy(
    State(state): State<AdminState>,
    Path(handler): Path<String>,
    headers: HeaderMap,
    request: Request,
) -> Response {
    // Before the body is read: it may be large.
    if let Err(refusal) = asked_by(&headers) {
        return refusal.into_response();
    }
    let is_form = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|kind| kind.trim_start().starts_with("multipart/form-data"));
    let read = if is_form {
        read_form(request).await
    } else {
        read_component(request).await
    };
    match read {
        Ok(asked) => change(&state, handler, &headers, asked).await,
        Err(refusal) => refusal.into_response(),
    }
}

async fn read_component(request: Request) -> Result<Change, Refusal> {
    match Bytes::from_request(request, &()).await {
        Ok(component) => Ok(Change::Deploy {
            component,
            migrations: None,
        }),
        Err(rejection) => Err(unreadable(rejection.status(), rejection.body_text())),
    }
}

async fn read_form(request: Request) -> Result<Change, Refusal> {
    let failed = |error: MultipartError| unreadable(error.status(), error.body_text());
    let mut form = Multipart::from_request(request, &())
        .await
        .map_err(|rejection| unreadable(rejection.status(), rejection.body_text()))?;
    let mut component = None;
    let mut migrations = Vec::new();
    let mut migrations_bytes = 0;
    while let Some(field) = form.next_field().await.map_err(failed)? {
        let name = field.name().unwrap_or_default().to_owned();
        let file = field.file_name().unwrap_or_default().to_owned();
        match name.as_str() {
            "component" => component = Some(field.bytes().await.map_err(failed)?),
            "migrations" => {
                let bytes = field.bytes().await.map_err(failed)?;
                migrations_bytes += bytes.len();
                if migrations_bytes > MIGRATIONS_BYTES_MAX {
                    return Err(unreadable(
                        StatusCode::PAYLOAD_TOO_LARGE,
                        format!(
                            "the migrations together have more than {MIGRATIONS_BYTES_MAX} bytes"
                        ),
                    ));
                }
                let text = String::from_utf8(bytes.into()).map_err(|_| {
                    unreadable(
                        StatusCode::BAD_REQUEST,
                        format!("the migration `{}` is not UTF-8", one_line(&file)),
                    )
                })?;
                migrations.push((file, text));
            }
            other => {
                return Err(unreadable(
                    StatusCode::BAD_REQUEST,
                    format!("the form has a part `{}`", one_line(other)),
                ));
            }
        }
    }
    match component {
        Some(component) => Ok(Change::Deploy {
            component,
            migrations: Some(migrations),
        }),
        None => Err(unreadable(
            StatusCode::BAD_REQUEST,
            "the form has no part `component`".to_owned(),
        )),
    }
}

fn unreadable(status: StatusCode, problem: String) -> Refusal {
    let code = match status {
        StatusCode::PAYLOAD_TOO_LARGE => "too-large",
        _ => "unreadable",
    };
    Refusal::new(
        status,
        code,
        problem,
        format!(
            "send the component as the body, at most {COMPONENT_BYTES_MAX} bytes, or a form with the file `component` and files \
             `migrations`"
        ),
    )
}

/// Reads who asks for a change.
fn asked_by(headers: &HeaderMap) -> Result<String, Refusal> {
    let by = headers
        .get(BY_HEADER)
        .and_then(|value| value.to_str().ok())
        .map(str::trim)
        .filter(|by| (1..=BY_BYTES_MAX).contains(&by.len()));
    match by {
        Some(by) => Ok(one_line(by)),
        None => Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            "by-missing",
            "a change must say who asks for it",
            format!("send the header `X-Hapax-By: user@host`, of at most {BY_BYTES_MAX} bytes"),
        )),
    }
}

async fn change(
    state: &AdminState,
    handler: String,
    headers: &HeaderMap,
    change: Change,
) -> Response {
    let by = match asked_by(headers) {
        Ok(by) => by,
        Err(refusal) => return refusal.into_response(),
    };
    let request = HandlersRequest::Change {
        handler,
        change,
        by,
    };
    // A task of its own: who asks may go away, and a change that has begun is ended all the same.
    let door = state.handlers.clone();
    match tokio::spawn(async move { door.ask(request).await }).await {
        Ok(answered) => answer(answered),
        Err(_) => Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "bug",
            "the change failed inside the host",
            "look into the host's log; this is a bug".to_owned(),
        )
        .into_response(),
    }
}

fn answer(answer: Answer) -> Response {
    match answer {
        Ok(value) => ([(header::CACHE_CONTROL, "no-store")], Json(value)).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}
