//! `/api/check`: what `hapax check --json` prints, of the configuration's file as it is now.

use axum::extract::State;
use serde::Deserialize;
use serde_json::json;

use super::AdminState;
use super::answer::{Answer, json_ok};
use super::body::Params;
use super::routes::{Route, route};
use super::work::Work;
use crate::app;
use crate::config::Config;

pub(super) const ROUTES: &[Route] = &[route!(get "/api/check" check).long()];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckParams {
    /// Ask the database, too.
    #[serde(default)]
    database: bool,
}

/// The running host is not touched: what is wrong with a file is known before it is asked to read it again.
async fn check(State(state): State<AdminState>, Params(params): Params<CheckParams>) -> Answer {
    let file = state.config().file.clone();
    let checked = state
        .bounds
        .work(Work::Long, async move {
            let config = Config::load_here(&file)?;
            let handlers = app::check(&config).await?;
            let mut object = json!({ "handlers": handlers });
            if params.database {
                object["database"] = json!(app::check_database(&config).await?);
            }
            Ok(object)
        })
        .await?;
    Ok(json_ok(&checked))
}
