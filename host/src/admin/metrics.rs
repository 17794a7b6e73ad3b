//! `/metrics`: what the host measures, in Prometheus' text format.

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::AdminState;

/// Of Prometheus' text format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) fn routes() -> Router<AdminState> {
    Router::new().route("/metrics", get(metrics))
}

async fn metrics(State(state): State<AdminState>) -> Response {
    (
        [
            (header::CONTENT_TYPE, CONTENT_TYPE),
            (header::CACHE_CONTROL, "no-store"),
        ],
        state.metrics.render(),
    )
        .into_response()
}
