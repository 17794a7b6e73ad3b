-- Texts that are compared have the collation "C": the order of bytes, as in SQLite.
CREATE TABLE repositories (
    repository TEXT PRIMARY KEY,
    events BIGINT NOT NULL,
    last_activity TEXT COLLATE "C" NULL
);

CREATE TABLE event_counts (
    repository TEXT NOT NULL,
    event TEXT NOT NULL,
    count BIGINT NOT NULL,
    PRIMARY KEY (repository, event)
);

CREATE TABLE issues (
    issue_id BIGINT PRIMARY KEY,
    repository TEXT NOT NULL,
    number BIGINT NOT NULL,
    title TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NULL,
    updated_at TEXT COLLATE "C" NOT NULL
);
