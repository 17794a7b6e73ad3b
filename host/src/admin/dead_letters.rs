//! `/api/dead-letters`: what `hapax dead-letters` does.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::json;
use tokio::sync::mpsc;

use super::AdminState;
use super::answer::{Answer, ApiError, json_ok};
use super::body::{JsonBody, MANY_MAX, Numbered, Params, expect_type, read_body};
use super::routes::{Route, route};
use super::work::{Work, rest};
use crate::app::{DeadLetters, LetterSelection, ShownLetter, letters_said, letters_told};
use crate::exit::{CommandError, Exit};
use crate::message::{FailureClass, Instant};

/// Rows in a list, unless the query says otherwise.
pub(super) const LIMIT_DEFAULT: usize = 50;
/// At the most: a list is made in memory.
pub(super) const LIMIT_MAX: usize = 10_000;
/// Letters that are exported in one piece: a payload can have megabytes.
const EXPORT_PIECE: usize = 16;
const LINES: &str = "application/x-ndjson";

pub(super) const ROUTES: &[Route] = &[
    route!(get "/api/dead-letters" list),
    route!(get "/api/dead-letters/groups" groups),
    route!(get "/api/dead-letters/export" export),
    route!(get "/api/dead-letters/{number}" show),
    route!(get "/api/dead-letters/{number}/payload" show_payload),
    route!(post "/api/dead-letters/replay" replay),
    route!(post "/api/dead-letters/drop" drop_letters),
    route!(post "/api/dead-letters/import" import).long(),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListParams {
    handler: Option<String>,
    #[serde(default, deserialize_with = "class_said")]
    class: Option<FailureClass>,
    #[serde(default, deserialize_with = "since_said")]
    since: Option<Instant>,
    #[serde(default, deserialize_with = "fingerprint_said")]
    fingerprint: Option<String>,
    id: Option<String>,
    limit: Option<usize>,
}

impl ListParams {
    fn selection(self) -> LetterSelection {
        LetterSelection {
            numbers: Vec::new(),
            handler: self.handler,
            class: self.class,
            since: self.since,
            message_id: self.id,
            fingerprint: self.fingerprint,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeBody {
    #[serde(default)]
    numbers: Vec<i64>,
    handler: Option<String>,
    #[serde(default, deserialize_with = "class_said")]
    class: Option<FailureClass>,
    #[serde(default, deserialize_with = "since_said")]
    since: Option<Instant>,
    #[serde(default, deserialize_with = "fingerprint_said")]
    fingerprint: Option<String>,
    id: Option<String>,
    #[serde(default)]
    all: bool,
    /// Replay also those whose ids are taken.
    #[serde(default)]
    force: bool,
    #[serde(default)]
    confirm: bool,
}

impl ChangeBody {
    fn selection(self) -> Result<LetterSelection, ApiError> {
        let is_filtered = self.handler.is_some()
            || self.class.is_some()
            || self.since.is_some()
            || self.fingerprint.is_some()
            || self.id.is_some();
        one_way_said(!self.numbers.is_empty(), is_filtered, self.all)?;
        Ok(LetterSelection {
            numbers: self.numbers,
            handler: self.handler,
            class: self.class,
            since: self.since,
            message_id: self.id,
            fingerprint: self.fingerprint,
        })
    }
}

/// What is meant is said in one way: by numbers, by a filter, or as all.
pub(super) fn one_way_said(numbers: bool, filter: bool, all: bool) -> Result<(), ApiError> {
    const HINT: &str =
        "say `\"numbers\": [..]`, a filter such as `\"handler\": \"NAME\"`, or `\"all\": true`";
    match [numbers, filter, all]
        .into_iter()
        .filter(|said| *said)
        .count()
    {
        1 => Ok(()),
        0 => Err(ApiError::bad_request(
            "which are meant is not said",
            Some(HINT),
        )),
        _ => Err(ApiError::bad_request(
            "which are meant is said in several ways",
            Some(HINT),
        )),
    }
}

/// Reads a text that `read` understands.
pub(super) fn said<'de, D: Deserializer<'de>, T>(
    from: D,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| read(&text))
        .transpose()
        .map_err(serde::de::Error::custom)
}

fn class_said<'de, D: Deserializer<'de>>(from: D) -> Result<Option<FailureClass>, D::Error> {
    said(from, letters_said::class)
}

fn since_said<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Instant>, D::Error> {
    said(from, letters_said::since)
}

fn fingerprint_said<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    said(from, letters_said::fingerprint)
}

async fn list(State(state): State<AdminState>, Params(params): Params<ListParams>) -> Answer {
    let config = state.config();
    let limit = params.limit.unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX);
    let selection = params.selection();
    let (letters, has_more) = state
        .bounds
        .work(Work::Read, async move {
            DeadLetters::open(&config)
                .await?
                .list(&selection, limit)
                .await
        })
        .await?;
    Ok(json_ok(&letters_told::listed(&letters, has_more)))
}

async fn groups(State(state): State<AdminState>, Params(params): Params<ListParams>) -> Answer {
    let config = state.config();
    let selection = params.selection();
    let groups = state
        .bounds
        .work(Work::Read, async move {
            DeadLetters::open(&config).await?.groups(&selection).await
        })
        .await?;
    Ok(json_ok(&letters_told::grouped(&groups)))
}

async fn letter(state: &AdminState, number: i64) -> Result<ShownLetter, ApiError> {
    let config = state.config();
    state
        .bounds
        .work(Work::Read, async move {
            DeadLetters::open(&config).await?.show(number).await
        })
        .await
}

async fn show(State(state): State<AdminState>, Numbered(number): Numbered) -> Answer {
    Ok(json_ok(&letters_told::shown(
        &letter(&state, number).await?,
    )))
}

async fn show_payload(State(state): State<AdminState>, Numbered(number): Numbered) -> Answer {
    Ok(payload(letter(&state, number).await?.stored.letter.payload))
}

/// A payload, byte for byte. No browser shows it as anything.
pub(super) fn payload(bytes: Bytes) -> Response {
    (
        [
            (header::CONTENT_TYPE, "application/octet-stream"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::CACHE_CONTROL, "no-store"),
        ],
        bytes,
    )
        .into_response()
}

async fn replay(State(state): State<AdminState>, JsonBody(body): JsonBody<ChangeBody>) -> Answer {
    let (force, confirmed) = (body.force, body.confirm);
    let selection = body.selection()?;
    let config = state.config();
    let replayed = state
        .bounds
        .work(Work::Change, async move {
            let mut letters = DeadLetters::open(&config).await?;
            let numbers = letters.numbers(&selection).await?;
            // One is asked of nobody at a terminal either.
            if numbers.len() > 1 && !confirmed {
                return Ok(Err(numbers.len()));
            }
            letters.replay(&numbers, force, |_| {}).await.map(Ok)
        })
        .await?;
    match replayed {
        Ok(replayed) => Ok(json_ok(&letters_told::replayed(&replayed))),
        Err(count) => Err(ApiError::not_confirmed(&format!(
            "{count} dead letters would be replayed"
        ))),
    }
}

async fn drop_letters(
    State(state): State<AdminState>,
    JsonBody(body): JsonBody<ChangeBody>,
) -> Answer {
    let confirmed = body.confirm;
    let selection = body.selection()?;
    let config = state.config();
    let dropped = state
        .bounds
        .work(Work::Change, async move {
            let mut letters = DeadLetters::open(&config).await?;
            let numbers = letters.numbers(&selection).await?;
            if !numbers.is_empty() && !confirmed {
                return Ok(Err(numbers.len()));
            }
            letters.drop_letters(&numbers, |_| {}).await.map(Ok)
        })
        .await?;
    match dropped {
        Ok(dropped) => Ok(json_ok(&json!({ "dropped": dropped }))),
        Err(count) => Err(ApiError::not_confirmed(&format!(
            "{count} dead letters would be dropped"
        ))),
    }
}

/// Writes letters as they are read, a few at a time: a client that is slow to take them keeps nothing but its own session. What breaks
/// off half-way breaks the connection, so that no part is taken for the whole.
async fn export(State(state): State<AdminState>, Params(params): Params<ListParams>) -> Answer {
    let selection = params.selection();
    let config = state.config();
    let permit = state.bounds.session(Work::Read).await?;
    let (pieces, next) = mpsc::channel::<Result<Bytes, CommandError>>(1);
    tokio::spawn(async move {
        let began = std::time::Instant::now();
        if let Err(error) = export_to(&config, &selection, &pieces).await {
            let (why, hint) = error.sentences();
            tracing::warn!(why, hint, "an export of dead letters broke off");
            // An error means that nobody reads any more.
            let _ = pieces.send(Err(error)).await;
        }
        drop(pieces);
        rest(began.elapsed(), permit).await;
    });
    let mut next = next;
    // What can't be begun is answered as an error.
    let first = match next.recv().await {
        Some(Ok(piece)) => Some(piece),
        Some(Err(error)) => return Err(error.into()),
        None => None,
    };
    let stream = futures_util::stream::unfold((first, next), async |(first, mut next)| {
        let piece = match first {
            Some(piece) => Ok(piece),
            None => next.recv().await?,
        };
        Some((piece, (None, next)))
    });
    Ok((
        [
            (header::CONTENT_TYPE, LINES),
            (header::CACHE_CONTROL, "no-store"),
        ],
        Body::from_stream(stream),
    )
        .into_response())
}

async fn export_to(
    config: &crate::config::Config,
    selection: &LetterSelection,
    pieces: &mpsc::Sender<Result<Bytes, CommandError>>,
) -> Result<(), CommandError> {
    let mut letters = DeadLetters::open(config).await?;
    let numbers = letters.numbers(selection).await?;
    for some in numbers.chunks(EXPORT_PIECE) {
        let mut lines = Vec::new();
        letters
            .export(some, |record| {
                serde_json::to_writer(&mut lines, record).map_err(|error| {
                    CommandError::new(Exit::Bug, format!("cannot write JSON: {error}"), None)
                })?;
                lines.push(b'\n');
                Ok(())
            })
            .await?;
        if pieces.send(Ok(lines.into())).await.is_err() {
            // Nobody reads any more.
            return Ok(());
        }
    }
    Ok(())
}

async fn import(State(state): State<AdminState>, request: Request) -> Answer {
    let (parts, body) = request.into_parts();
    expect_type(&parts.headers, LINES)?;
    let bytes = read_body(&parts.headers, body, MANY_MAX).await?;
    let config = state.config();
    let imported = state
        .bounds
        .work(Work::Change, async move {
            let lines: Vec<_> = bytes
                .split(|byte| *byte == b'\n')
                .map(<[u8]>::to_vec)
                .collect();
            let letters = DeadLetters::open(&config).await?;
            letters
                .import("the body", lines.into_iter().map(Ok), |_| {})
                .await
        })
        .await?;
    Ok(json_ok(&imported))
}
