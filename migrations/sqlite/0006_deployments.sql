-- Deployments: components that live in the store, so that every host of a fleet runs the same one, and what each handler is to do.

-- The bytes come last: SQLite walks over them to whatever stands behind.
ALTER TABLE hapax_components ADD COLUMN size_bytes INTEGER;
ALTER TABLE hapax_components ADD COLUMN contract TEXT;
ALTER TABLE hapax_components ADD COLUMN producers TEXT;
ALTER TABLE hapax_components ADD COLUMN bytes BLOB;

CREATE TABLE hapax_deployments (
    handler TEXT NOT NULL,
    number INTEGER NOT NULL CHECK (number > 0),
    component INTEGER NOT NULL REFERENCES hapax_components (id),
    deployed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    deployed_by TEXT NOT NULL,
    migrations TEXT NOT NULL DEFAULT '[]',
    back_to INTEGER,
    PRIMARY KEY (handler, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE hapax_handler_states (
    handler TEXT NOT NULL PRIMARY KEY,
    deployment INTEGER,
    paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    generation INTEGER NOT NULL DEFAULT 0,
    changed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    changed_by TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;

CREATE TABLE hapax_host_handlers (
    host TEXT NOT NULL,
    handler TEXT NOT NULL,
    state TEXT NOT NULL,
    digest BLOB CHECK (length(digest) = 32),
    generation INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    seen_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (host, handler)
) STRICT, WITHOUT ROWID;
