CREATE TABLE repositories (
    repository TEXT NOT NULL PRIMARY KEY,
    events INTEGER NOT NULL,
    last_activity TEXT NULL
) STRICT;

CREATE TABLE event_counts (
    repository TEXT NOT NULL,
    event TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (repository, event)
) STRICT;

CREATE TABLE issues (
    issue_id INTEGER NOT NULL PRIMARY KEY,
    repository TEXT NOT NULL,
    number INTEGER NOT NULL,
    title TEXT NOT NULL,
    state TEXT NULL,
    updated_at TEXT NOT NULL
) STRICT;
