//! Published messages as JSON objects: what `--json` prints, and what the admin address answers.

use serde_json::{Value, json};

use crate::app::moment_text;
use crate::store::{StoredOutboxRow, to_base64};

/// Returns a list without payloads, and whether there are more.
pub fn listed(rows: &[StoredOutboxRow], has_more: bool) -> Value {
    let rows: Vec<Value> = rows.iter().map(row_json).collect();
    json!({ "messages": rows, "has_more": has_more })
}

/// Returns a whole row.
pub fn shown(row: &StoredOutboxRow) -> Value {
    let mut json = row_json(row);
    json["headers"] = row
        .message
        .headers
        .iter()
        .map(|header| json!([header.name, bytes_json(&header.value)]))
        .collect();
    json["payload"] = bytes_json(&row.message.payload);
    json
}

fn bytes_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({ "text": text }),
        Err(_) => json!({ "base64": to_base64(bytes) }),
    }
}

fn row_json(row: &StoredOutboxRow) -> Value {
    json!({
        "number": row.message.number,
        "id": row.message.id,
        "state": row.state.as_str(),
        "attempts": row.message.attempts,
        "error": row.error,
        "target": row.message.target,
        "subject": row.message.subject,
        "key": row.message.key,
        "content_type": row.message.content_type,
        "consumer": row.consumer,
        "message_id": row.message_id.as_str(),
        "payload_bytes": row.payload_bytes,
        "created_at": moment_text(row.created_at),
        "due_at": moment_text(row.due_at),
        "published_at": moment_text(row.published_at),
    })
}
