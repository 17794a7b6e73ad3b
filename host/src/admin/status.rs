//! `/api/status`: what `hapax status --json` prints.

use axum::extract::State;

use super::AdminState;
use super::answer::{Answer, json_ok};
use super::routes::{Route, route};
use super::work::Work;
use crate::app;

pub(super) const ROUTES: &[Route] = &[route!(get "/api/status" status)];

async fn status(State(state): State<AdminState>) -> Answer {
    let config = state.config();
    let status = state
        .bounds
        .work(
            Work::Read,
            Box::pin(async move { app::status(&config).await }),
        )
        .await?;
    Ok(json_ok(&status))
}
