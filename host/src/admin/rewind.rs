//! `/api/rewind`: what `hapax rewind` does.

use axum::extract::State;
use serde::Deserialize;

use super::AdminState;
use super::answer::{Answer, ApiError, json_ok};
use super::body::JsonBody;
use super::routes::{Route, route};
use super::work::Work;
use crate::app::{self, Rewind};

pub(super) const ROUTES: &[Route] = &[route!(post "/api/rewind" rewind)];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RewindBody {
    /// Whose stream is read again.
    handler: String,
    /// From where.
    to: Place,
    /// Also further back than claims reach.
    #[serde(default)]
    force: bool,
    #[serde(default)]
    confirm: bool,
}

/// A message's number, or a text with one or with a time.
#[derive(Deserialize)]
#[serde(try_from = "serde_json::Value")]
struct Place(crate::source::jetstream::RewindTo);

impl TryFrom<serde_json::Value> for Place {
    type Error = String;

    fn try_from(value: serde_json::Value) -> Result<Self, String> {
        let text = match value {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        app::rewind_place(&text).map(Self)
    }
}

async fn rewind(State(state): State<AdminState>, JsonBody(body): JsonBody<RewindBody>) -> Answer {
    let config = state.config();
    let (told, is_done) = state
        .bounds
        .work(
            Work::Change,
            Box::pin(async move {
                let mut rewind =
                    Rewind::look_up(&config, &body.handler, body.to.0, body.force).await?;
                if body.confirm {
                    rewind.apply().await?;
                }
                Ok((rewind.told().clone(), body.confirm))
            }),
        )
        .await?;
    if !is_done {
        return Err(ApiError::not_confirmed(&format!(
            "`{}` would read {} messages again, from number {}{}",
            told.handler,
            told.messages,
            told.sequence,
            told.warnings
                .iter()
                .map(|warning| format!("; {warning}"))
                .collect::<String>()
        )));
    }
    Ok(json_ok(&told))
}
