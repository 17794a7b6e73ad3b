//! `/healthz`: the process lives. `/readyz`: every handler consumes and nothing is down.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};

use super::AdminState;

pub(super) fn routes() -> Router<AdminState> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
}

/// 200 as long as the pipelines show signs of life: a database or a broker that is away is no reason to start the process again.
async fn healthz(State(state): State<AdminState>) -> Response {
    let alive = state.health.is_alive();
    let status = match alive {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    answer(status, serde_json::json!({ "alive": alive }))
}

/// 200, or 503 with what is down: `{"ready":false,"down":[{"part":"store","why":"..."}]}`.
async fn readyz(State(state): State<AdminState>) -> Response {
    let readiness = state.health.readiness();
    let status = match readiness.ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    answer(status, readiness)
}

fn answer(status: StatusCode, body: impl serde::Serialize) -> Response {
    (status, [(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
}
