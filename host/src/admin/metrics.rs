//! `/metrics`: what the host measures, in Prometheus' text format.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::AdminState;
use super::routes::{Route, route};

/// Of Prometheus' text format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) const ROUTES: &[Route] = &[route!(get "/metrics" metrics)];

async fn metrics(State(state): State<AdminState>) -> Response {
    crate::metrics::measure_process();
    (
        [
            (header::CONTENT_TYPE, CONTENT_TYPE),
            (header::CACHE_CONTROL, "no-store"),
        ],
        state.rooms.metrics.render(),
    )
        .into_response()
}
