//! What both databases say and store alike: outcomes, counters, dead letters, and the errors of the room itself.
//!
//! **Invariant**: no I/O and no sqlx here.

use serde::{Deserialize, Serialize};

use super::migrations::Schema;
use super::text::{clean, clean_reason};
use super::{Attempt, Claim, ClaimAs, ClaimRequest, Counters, DeadLetter, SqlError, StoreError};
use crate::message::{ComponentDigest, FailureClass, Instant, MessageId, ShortHash, hex};

/// The largest result of one query, in bytes of its values: a handler's `limits.rows` bounds only their number.
pub(crate) const RESULT_MAX_BYTES: usize = 64 * 1024 * 1024;

pub(crate) fn too_many_rows(rows_max: u64) -> SqlError {
    SqlError {
        hint: Some("ask for fewer rows, or raise `limits.rows`".into()),
        ..SqlError::new(
            "limit.rows",
            format!("the query returns more than {rows_max} rows"),
        )
    }
}

pub(crate) fn too_many_bytes() -> SqlError {
    SqlError {
        hint: Some("ask for fewer or smaller rows".into()),
        ..SqlError::new(
            "limit.bytes",
            format!("the query returns more than {RESULT_MAX_BYTES} bytes"),
        )
    }
}

pub(crate) fn wrong_count(takes: usize, passed: usize) -> SqlError {
    SqlError::new(
        "params.count",
        format!("the statement takes {takes} parameters, but {passed} were passed"),
    )
}

/// Says which row of parameters an error of `execute-many` is about. `row` counts from 0.
pub(crate) fn in_row(row: usize, error: SqlError) -> SqlError {
    // A lost connection is no row's.
    if error.code == "unavailable" {
        return error;
    }
    let param = match error.param {
        // Errors that were found before anything was sent name it already.
        Some(number) if !error.message.starts_with("parameter $") => {
            format!("parameter ${number}: ")
        }
        _ => String::new(),
    };
    SqlError {
        row: u32::try_from(row).ok(),
        message: format!("row {row}: {param}{}", error.message),
        ..error
    }
}

/// The session is not as it was before the handler's statements.
pub(crate) fn changed(what: &str) -> SqlError {
    SqlError {
        hint: Some(
            "look for a function or trigger that changes the session: it would outlive the transaction, so nothing was committed and the \
             connection is closed"
                .into(),
        ),
        ..SqlError::new(
            "denied.state",
            format!("the handler's statements left the session changed: {what}"),
        )
    }
}

/// A statement without parameters was to be run for many rows of them.
pub(crate) fn no_rows_for_ddl() -> SqlError {
    SqlError {
        hint: Some("run it with `execute`".into()),
        ..SqlError::new(
            "denied.statement",
            "a statement that makes, changes or drops something runs once, not for many rows",
        )
    }
}

/// The handler returned ok although a savepoint is open.
pub(crate) fn open_savepoint() -> SqlError {
    SqlError {
        hint: Some("release or roll back every savepoint".into()),
        ..SqlError::new(
            "savepoint.open",
            "a savepoint is still open, so it is not known whether what was done since is wanted",
        )
    }
}

/// What every call is answered with after an error of the database.
pub(crate) fn aborted() -> SqlError {
    SqlError {
        hint: Some("return the first error to the host".into()),
        ..SqlError::new(
            "aborted",
            "an earlier statement failed, so nothing of this transaction can be kept",
        )
    }
}

pub(crate) fn broken_connection() -> StoreError {
    StoreError::Unavailable("the connection is not in a usable state and has to be closed".into())
}

pub(crate) fn vanished_claim() -> StoreError {
    StoreError::Busy("a claim vanished while it was looked at".into())
}

pub(crate) fn outcome_text(claim_as: ClaimAs) -> &'static str {
    match claim_as {
        ClaimAs::Done => "done",
        ClaimAs::Dead => "dead",
    }
}

/// Returns what a committed claim means for a request.
pub(crate) fn settled_claim(request: &ClaimRequest, hash: &[u8], outcome: &str) -> Claim {
    if hash == request.payload_hash.0 {
        Claim::Duplicate {
            outcome: outcome_of(outcome),
        }
    } else {
        let mut stored = [0; 16];
        // The column's check holds it to this length.
        let length = hash.len().min(16);
        stored[..length].copy_from_slice(&hash[..length]);
        Claim::Conflict {
            stored: ShortHash(stored),
        }
    }
}

/// Cuts a moment to what both databases hold.
pub(crate) fn to_microseconds(instant: Instant) -> Instant {
    Instant {
        nanoseconds: instant.nanoseconds / 1000 * 1000,
        ..instant
    }
}

/// Returns the counters as the columns claimed, duplicates, retried, rolled_back, dead.
pub(crate) fn counter_columns(counters: &Counters) -> [i64; 5] {
    [
        counters.claimed,
        counters.duplicates,
        counters.retried,
        counters.rolled_back,
        counters.dead,
    ]
    .map(|count| i64::try_from(count).unwrap_or(i64::MAX))
}

/// Reads what `counter_columns` writes.
pub(crate) fn counters_of(
    (claimed, duplicates, retried, rolled_back, dead): (i64, i64, i64, i64, i64),
) -> Counters {
    let count = |column: i64| u64::try_from(column).unwrap_or(0);
    Counters {
        claimed: count(claimed),
        duplicates: count(duplicates),
        retried: count(retried),
        rolled_back: count(rolled_back),
        dead: count(dead),
    }
}

/// Reads what `meta` says of the schema.
pub(crate) fn stored_schema(rows: Vec<(String, String)>) -> Result<Schema, StoreError> {
    let find = |name: &str| {
        let found = rows.iter().find(|(found, _)| found == name);
        found.map(|(_, value)| {
            value.parse().map_err(|_| {
                StoreError::Unusable(format!(
                    "`{name}` of the store's schema can't be read: it is `{value}`"
                ))
            })
        })
    };
    let missing = || {
        StoreError::Unusable(
            "the version of the store's schema can't be read: it is missing".into(),
        )
    };
    Ok(Schema {
        version: find("schema-version").ok_or_else(missing)??,
        serves: find("schema-serves").transpose()?,
    })
}

fn unreadable(what: &str, value: &str) -> StoreError {
    StoreError::Unusable(format!(
        "a dead letter in the store has a {what} that this binary does not know: `{value}`"
    ))
}

pub(crate) fn stored_id(id: Option<String>) -> Result<Option<MessageId>, StoreError> {
    id.map(|id| MessageId::new(id.as_str()).map_err(|_| unreadable("message id", &id)))
        .transpose()
}

pub(crate) fn stored_class(class: &str) -> Result<FailureClass, StoreError> {
    FailureClass::named(class).ok_or_else(|| unreadable("class", class))
}

pub(crate) fn stored_digest(
    digest: Option<Vec<u8>>,
) -> Result<Option<ComponentDigest>, StoreError> {
    digest
        .map(|bytes| {
            let bytes: [u8; 32] = bytes
                .try_into()
                .map_err(|_| unreadable("component", "not 32 bytes"))?;
            Ok(ComponentDigest(bytes))
        })
        .transpose()
}

/// Reads what `outcome_text` writes.
pub(crate) fn outcome_of(text: &str) -> ClaimAs {
    if text == "dead" {
        ClaimAs::Dead
    } else {
        ClaimAs::Done
    }
}

/// Returns the id whose recorded attempts are this letter's: those of an id that conflicts are another message's.
pub(crate) fn id_of_own_attempts(letter: &DeadLetter) -> Option<&str> {
    letter
        .message_id
        .as_ref()
        .filter(|_| letter.class != FailureClass::Conflict)
        .map(MessageId::as_str)
}

#[derive(Serialize, Deserialize)]
struct AttemptRecord {
    attempt: u32,
    at: String,
    class: String,
    error: String,
    component: Option<String>,
}

/// Writes what `stored_attempts` reads.
pub(crate) fn attempts_to_json(attempts: &[Attempt]) -> String {
    let records: Vec<AttemptRecord> = attempts
        .iter()
        .map(|attempt| AttemptRecord {
            attempt: attempt.number,
            at: clean(&attempt.at),
            class: attempt.class.as_str().to_owned(),
            error: clean_reason(&attempt.error),
            component: attempt
                .component
                .map(|ComponentDigest(digest)| hex(&digest)),
        })
        .collect();
    serde_json::to_string(&records).unwrap_or_else(|_| "[]".to_owned())
}

/// Reads the `attempts` column of a dead letter.
pub(crate) fn stored_attempts(json: &str) -> Result<Vec<Attempt>, StoreError> {
    let records: Vec<AttemptRecord> =
        serde_json::from_str(json).map_err(|_| unreadable("list of attempts", json))?;
    records
        .into_iter()
        .map(|record| {
            Ok(Attempt {
                number: record.attempt,
                class: stored_class(&record.class)?,
                component: record
                    .component
                    .map(|hex| {
                        let bytes = (0..32)
                            .map(|place| {
                                u8::from_str_radix(hex.get(place * 2..place * 2 + 2)?, 16).ok()
                            })
                            .collect::<Option<Vec<u8>>>()
                            .ok_or_else(|| unreadable("component", &hex))?;
                        stored_digest(Some(bytes))
                    })
                    .transpose()?
                    .flatten(),
                at: record.at,
                error: record.error,
            })
        })
        .collect()
}
