//! `/healthz`: the process lives. `/readyz`: every handler consumes and nothing is down.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::AdminState;
use super::answer::json_with;
use super::routes::{Route, route};

pub(super) const ROUTES: &[Route] = &[route!(get "/healthz" healthz), route!(get "/readyz" readyz)];

/// 200 as long as the pipelines show signs of life: a database or a broker that is away is no reason to start the process again.
async fn healthz(State(state): State<AdminState>) -> Response {
    let alive = state.rooms.health.is_alive();
    let status = match alive {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    json_with(status, &serde_json::json!({ "alive": alive }))
}

/// 200, or 503 with what is down: `{"ready":false,"down":[{"part":"store","why":"..."}]}`.
async fn readyz(State(state): State<AdminState>) -> Response {
    let readiness = state.rooms.health.readiness();
    let status = match readiness.ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    json_with(status, &readiness)
}
