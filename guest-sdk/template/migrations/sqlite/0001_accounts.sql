CREATE TABLE accounts (
    id TEXT NOT NULL PRIMARY KEY,
    balance INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO accounts (id) VALUES ('a1'), ('a2'), ('a3');
