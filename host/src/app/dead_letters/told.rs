//! Dead letters as JSON objects: what `--json` prints, and what the admin address answers.

use serde_json::{Value, json};

use super::archive::moment_text;
use super::{LetterGroup, ListedLetter, Refusal, Replayed, ShownLetter};

/// Returns a list, and whether there are more.
pub fn listed(letters: &[ListedLetter], has_more: bool) -> Value {
    let letters: Vec<Value> = letters
        .iter()
        .map(|letter| {
            let summary = &letter.summary;
            json!({
                "number": summary.number,
                "handler": summary.handler,
                "consumer": summary.consumer,
                "message_id": summary.message_id,
                "source": summary.source,
                "position": summary.position.0,
                "class": summary.class.as_str(),
                "reason": summary.reason,
                "fingerprint": letter.fingerprint,
                "attempts": summary.attempts,
                "dead_at": moment_text(summary.dead_at),
                "bytes": summary.bytes,
                "queued": summary.is_queued,
            })
        })
        .collect();
    json!({ "dead_letters": letters, "more": has_more })
}

/// Returns groups.
pub fn grouped(groups: &[LetterGroup]) -> Value {
    let groups: Vec<Value> = groups
        .iter()
        .map(|group| {
            json!({
                "fingerprint": group.fingerprint,
                "class": group.class.as_str(),
                "count": group.count,
                "queued": group.queued,
                "first": moment_text(group.first),
                "last": moment_text(group.last),
                "number": group.number,
                "reason": group.reason,
            })
        })
        .collect();
    json!({ "groups": groups })
}

/// Returns a whole letter.
pub fn shown(shown: &ShownLetter) -> Value {
    json!({
        "dead_letter": shown.record,
        "fingerprint": shown.fingerprint,
        "queued": shown.is_queued,
    })
}

/// Returns what became of letters that were to be replayed; a refused one says why.
pub fn replayed(replayed: &Replayed) -> Value {
    let refused: Vec<Value> = replayed
        .refused
        .iter()
        .map(|(number, refusal)| {
            let (reason, about) = match refusal {
                Refusal::NotThere => ("not-there", Value::Null),
                Refusal::NoHandler { consumer } => ("no-handler", json!(consumer)),
                Refusal::Processed { message_id } => ("processed", json!(message_id)),
                Refusal::Taken { message_id } => ("taken", json!(message_id)),
            };
            json!({ "number": number, "reason": reason, "about": about })
        })
        .collect();
    json!({
        "queued": replayed.queued,
        "queued_already": replayed.queued_already,
        "refused": refused,
    })
}
