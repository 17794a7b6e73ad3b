//! `/api/outbox`: what `hapax outbox` does.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use super::AdminState;
use super::answer::{Answer, ApiError, json_ok};
use super::body::{JsonBody, Numbered, Params};
use super::dead_letters::{LIMIT_DEFAULT, LIMIT_MAX, payload, said};
use super::routes::{Route, route};
use super::work::Work;
use crate::app::{Outbox, OutboxSelection, outbox_state, outbox_told};
use crate::store::{OutboxState, StoredOutboxRow};

pub(super) const ROUTES: &[Route] = &[
    route!(get "/api/outbox" list),
    route!(get "/api/outbox/{number}" show),
    route!(get "/api/outbox/{number}/payload" show_payload),
    route!(post "/api/outbox/republish" republish),
    route!(post "/api/outbox/drop" drop_rows),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListParams {
    handler: Option<String>,
    target: Option<String>,
    #[serde(default, deserialize_with = "state_said")]
    state: Option<OutboxState>,
    id: Option<String>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeBody {
    #[serde(default)]
    numbers: Vec<i64>,
    handler: Option<String>,
    target: Option<String>,
    #[serde(default, deserialize_with = "state_said")]
    state: Option<OutboxState>,
    id: Option<String>,
    #[serde(default)]
    all: bool,
    #[serde(default)]
    confirm: bool,
}

fn state_said<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<OutboxState>, D::Error> {
    said(from, outbox_state)
}

async fn list(State(state): State<AdminState>, Params(params): Params<ListParams>) -> Answer {
    let config = state.config();
    let limit = params.limit.unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX);
    let selection = OutboxSelection {
        numbers: Vec::new(),
        handler: params.handler,
        target: params.target,
        state: params.state,
        id: params.id,
    };
    let (rows, has_more) = state
        .bounds
        .work(Work::Read, async move {
            Outbox::open(&config).await?.list(&selection, limit).await
        })
        .await?;
    Ok(json_ok(&outbox_told::listed(&rows, has_more)))
}

async fn row(state: &AdminState, number: i64) -> Result<StoredOutboxRow, ApiError> {
    let config = state.config();
    state
        .bounds
        .work(Work::Read, async move {
            Outbox::open(&config).await?.show(number).await
        })
        .await
}

async fn show(State(state): State<AdminState>, Numbered(number): Numbered) -> Answer {
    Ok(json_ok(&outbox_told::shown(&row(&state, number).await?)))
}

async fn show_payload(State(state): State<AdminState>, Numbered(number): Numbered) -> Answer {
    Ok(payload(row(&state, number).await?.message.payload))
}

async fn republish(
    State(state): State<AdminState>,
    JsonBody(body): JsonBody<ChangeBody>,
) -> Answer {
    change(&state, body, true).await
}

async fn drop_rows(
    State(state): State<AdminState>,
    JsonBody(body): JsonBody<ChangeBody>,
) -> Answer {
    change(&state, body, false).await
}

async fn change(
    state: &AdminState,
    body: ChangeBody,
    republish: bool,
) -> Result<Response, ApiError> {
    let is_filtered = body.handler.is_some()
        || body.target.is_some()
        || body.state.is_some()
        || body.id.is_some();
    super::dead_letters::one_way_said(!body.numbers.is_empty(), is_filtered, body.all)?;
    let config = state.config();
    let confirmed = body.confirm;
    let selection = OutboxSelection {
        numbers: body.numbers,
        handler: body.handler,
        target: body.target,
        state: body.state,
        id: body.id,
    };
    let done = state
        .bounds
        .work(Work::Change, async move {
            let mut outbox = Outbox::open(&config).await?;
            let numbers = outbox.numbers(&selection).await?;
            // One message that is published again is asked of nobody at a terminal either.
            let is_asked = if republish {
                numbers.len() > 1
            } else {
                !numbers.is_empty()
            };
            if is_asked && !confirmed {
                return Ok(Err(numbers.len()));
            }
            let done = if republish {
                outbox.republish(&numbers, |_| {}).await?
            } else {
                outbox.drop_rows(&numbers, |_| {}).await?
            };
            Ok(Ok(done))
        })
        .await?;
    let name = if republish { "republished" } else { "dropped" };
    match done {
        Ok(done) => Ok(json_ok(&json!({ name: done }))),
        Err(count) => Err(ApiError::not_confirmed(&format!(
            "{count} messages would be {name}"
        ))),
    }
}
