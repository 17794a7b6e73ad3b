-- hapax's own tables. Applied by the host at its start, in one transaction, under a lock; never edited after a release.
--
-- Moments are TEXT in the form YYYY-MM-DDTHH:MM:SS.fffZ (UTC). Columns are described in the PostgreSQL file of the same
-- number; what differs is said here.

-- `schema-version` is the number of the last of these files that was applied.
CREATE TABLE hapax_meta (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE hapax_components (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),
    first_seen TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) STRICT;

CREATE TABLE hapax_processed_messages (
    consumer TEXT NOT NULL,
    message_id TEXT NOT NULL,
    processed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    outcome TEXT NOT NULL CHECK (outcome IN ('done', 'dead')),
    -- The first 16 bytes of SHA-256 over the length-prefixed fields `payload` and the payload.
    payload_hash BLOB NOT NULL CHECK (length(payload_hash) = 16),
    component INTEGER,
    PRIMARY KEY (consumer, message_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE hapax_attempts (
    consumer TEXT NOT NULL,
    message_id TEXT NOT NULL,
    attempt INTEGER NOT NULL CHECK (attempt > 0),
    at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    class TEXT NOT NULL,
    error TEXT NOT NULL,
    component INTEGER,
    PRIMARY KEY (consumer, message_id, attempt)
) STRICT, WITHOUT ROWID;

CREATE TABLE hapax_started (
    consumer TEXT NOT NULL,
    message_id TEXT NOT NULL,
    host TEXT NOT NULL,
    started_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (consumer, message_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE hapax_dead_letters (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer TEXT NOT NULL,
    handler TEXT NOT NULL,
    message_id TEXT,
    source TEXT NOT NULL,
    position TEXT NOT NULL,
    subject TEXT NOT NULL,
    headers TEXT NOT NULL,
    content_type TEXT,
    payload BLOB NOT NULL,
    -- To the microsecond: the source gave it.
    published_at TEXT,
    queue_id TEXT,
    class TEXT NOT NULL,
    reason TEXT NOT NULL,
    attempts TEXT NOT NULL,
    component INTEGER,
    dead_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    order_key TEXT,
    UNIQUE (consumer, source, position)
) STRICT;
CREATE INDEX hapax_dead_letters_keys ON hapax_dead_letters (consumer, order_key) WHERE order_key IS NOT NULL;

CREATE TABLE hapax_outbox (
    -- AUTOINCREMENT: a number is never used again, also after its row is gone.
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    consumer TEXT NOT NULL,
    message_id TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    target TEXT,
    subject TEXT NOT NULL,
    key TEXT,
    headers TEXT NOT NULL,
    content_type TEXT,
    payload BLOB NOT NULL,
    not_before TEXT,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    published_at TEXT
) STRICT;
CREATE INDEX hapax_outbox_unpublished ON hapax_outbox (number) WHERE published_at IS NULL;

-- The embedded queue. Any program may insert here; only `queue` (the source's name in the configuration) must be given:
--
--     INSERT INTO hapax_queue (queue, message_id, payload) VALUES ('payments', 'p-1', '{"amount": 5}');
--
-- `headers` is JSON: [["name", "text"], ["name", {"base64": ".."}]], where the second form holds values that are not
-- UTF-8; {"name": "text"} serves too. `payload` may be TEXT or BLOB. `due_at` may have any form that SQLite's date
-- functions read as a moment in UTC.
CREATE TABLE hapax_queue (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    message_id TEXT,
    subject TEXT NOT NULL DEFAULT '',
    headers TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(headers)),
    content_type TEXT,
    payload ANY NOT NULL DEFAULT x'',
    enqueued_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    due_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) CHECK (julianday(due_at) IS NOT NULL),
    order_key TEXT,
    seen INTEGER NOT NULL DEFAULT 0,
    origin_source TEXT,
    origin_position TEXT,
    -- To the microsecond: the source gave it.
    origin_published_at TEXT,
    origin_queue_id TEXT,
    dead_letter INTEGER,
    forced INTEGER NOT NULL DEFAULT 0 CHECK (forced IN (0, 1))
) STRICT;
CREATE INDEX hapax_queue_order ON hapax_queue (queue, number);
CREATE INDEX hapax_queue_keys ON hapax_queue (queue, order_key, number) WHERE order_key IS NOT NULL;
CREATE INDEX hapax_queue_carried_due ON hapax_queue (queue, due_at, number) WHERE origin_source IS NOT NULL;
CREATE INDEX hapax_queue_carried_id ON hapax_queue (queue, message_id) WHERE origin_source IS NOT NULL;
CREATE UNIQUE INDEX hapax_queue_dead_letter ON hapax_queue (dead_letter) WHERE dead_letter IS NOT NULL;

CREATE TABLE hapax_handler_migrations (
    handler TEXT NOT NULL,
    version INTEGER NOT NULL,
    file TEXT NOT NULL,
    checksum BLOB NOT NULL CHECK (length(checksum) = 32),
    applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (handler, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE hapax_counters (
    consumer TEXT NOT NULL,
    host TEXT NOT NULL,
    claimed INTEGER NOT NULL DEFAULT 0,
    duplicates INTEGER NOT NULL DEFAULT 0,
    retried INTEGER NOT NULL DEFAULT 0,
    rolled_back INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (consumer, host)
) STRICT, WITHOUT ROWID;
