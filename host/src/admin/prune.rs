//! `/api/prune`: what `hapax prune` does.

use axum::extract::State;
use serde::Deserialize;
use serde_json::json;

use super::AdminState;
use super::answer::{Answer, json_ok};
use super::body::JsonBody;
use super::routes::{Route, route};
use super::work::Work;
use crate::app::{self, PruneOptions};

pub(super) const ROUTES: &[Route] = &[route!(post "/api/prune" prune).long()];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PruneBody {
    /// Only the claims of this handler.
    handler: Option<String>,
    /// Say what would go, and delete nothing.
    #[serde(default)]
    dry_run: bool,
}

async fn prune(State(state): State<AdminState>, JsonBody(body): JsonBody<PruneBody>) -> Answer {
    let config = state.config();
    let options = PruneOptions {
        handler: body.handler,
        dry_run: body.dry_run,
    };
    let pruned = state
        .bounds
        .work(Work::Long, async move {
            app::prune(&config, &options, &mut |_, _, _| {}).await
        })
        .await?;
    Ok(json_ok(
        &json!({ "dry_run": body.dry_run, "pruned": pruned }),
    ))
}
