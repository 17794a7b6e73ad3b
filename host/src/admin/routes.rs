//! Every route in one table, and what stands before all of them.
//!
//! **Invariant**: there is no route beside the table, and none of them is reached but through `Access`.

use std::any::Any;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodRouter;
use tower_http::catch_panic::CatchPanicLayer;

use super::AdminState;
use super::answer::{Answer, ApiError};
use super::{check, dead_letters, handlers, health, metrics, outbox, prune, rewind, send, status};
use crate::fault;

/// How long a request may take from its head to the head of its answer.
const TIME: Duration = Duration::from_secs(60);
/// As `TIME`, for those that may compile, prune or take a large body.
pub(super) const LONG_TIME: Duration = Duration::from_secs(600);

/// One route of the admin address.
#[derive(Clone, Copy)]
pub struct Route {
    /// The method's name.
    pub method: &'static str,
    /// The path; a part in braces stands for any name.
    pub path: &'static str,
    make: fn() -> MethodRouter<AdminState>,
    time: Duration,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

impl Route {
    /// A route for `method`, made by `make` with the same method.
    pub(super) const fn new(
        method: &'static str,
        path: &'static str,
        make: fn() -> MethodRouter<AdminState>,
    ) -> Self {
        Self {
            method,
            path,
            make,
            time: TIME,
        }
    }

    /// It may take minutes.
    pub(super) const fn long(self) -> Self {
        Self {
            time: LONG_TIME,
            ..self
        }
    }
}

/// Writes a route down: `route!(get "/api/status" status)`.
macro_rules! route {
    ($method:ident $path:literal $handler:expr) => {
        super::routes::Route::new(stringify!($method), $path, || {
            axum::routing::$method($handler)
        })
    };
}
pub(super) use route;

/// One table a subject.
const TABLES: &[&[Route]] = &[
    health::ROUTES,
    metrics::ROUTES,
    status::ROUTES,
    check::ROUTES,
    handlers::ROUTES,
    dead_letters::ROUTES,
    outbox::ROUTES,
    prune::ROUTES,
    rewind::ROUTES,
    send::ROUTES,
];

/// Returns every route of the admin address.
pub fn routes() -> impl Iterator<Item = &'static Route> {
    TABLES.iter().copied().flatten()
}

/// Puts all routes behind what is asked of every request.
pub(super) fn router(state: AdminState) -> Router {
    let mut router = Router::new();
    for route in routes() {
        let time = route.time;
        let timed = move |request: Request, next: Next| async move {
            match tokio::time::timeout(time, next.run(request)).await {
                Ok(response) => response,
                Err(_) => too_late(time).into_response(),
            }
        };
        router = router.route(route.path, (route.make)().route_layer(from_fn(timed)));
    }
    router
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(state.clone(), turn))
        .layer(CatchPanicLayer::custom(panicked))
        // The outermost: who may not ask learns nothing, not even which routes there are.
        .layer(from_fn_with_state(state.clone(), access))
        .with_state(state)
}

async fn access(State(state): State<AdminState>, request: Request, next: Next) -> Response {
    match state.access.check(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

async fn turn(State(state): State<AdminState>, request: Request, next: Next) -> Response {
    match state.bounds.turn(request.uri().path()).await {
        Ok(_permit) => {
            fault::point(fault::POINT_ADMIN);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

fn too_late(time: Duration) -> ApiError {
    ApiError::new(
        StatusCode::GATEWAY_TIMEOUT,
        "timeout",
        format!("there is no answer after {time:?}"),
        None,
    )
}

async fn no_route(request: Request) -> Answer {
    Err(ApiError::not_found(
        format!(
            "there is no `{}` here",
            crate::text::one_line(request.uri().path())
        ),
        Some("`docs/admin.md` lists the routes"),
    ))
}

async fn no_method(request: Request) -> Answer {
    let (method, path) = (request.method(), request.uri().path());
    Err(ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method-not-allowed",
        format!("`{path}` has no `{method}`"),
        Some("`docs/admin.md` lists the routes"),
    ))
}

/// The panic itself is in the log already.
fn panicked(_panic: Box<dyn Any + Send>) -> Response {
    ApiError::bug().into_response()
}
