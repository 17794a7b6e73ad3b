CREATE TABLE accounts (
    id TEXT PRIMARY KEY,
    balance BIGINT NOT NULL DEFAULT 0
);

INSERT INTO accounts (id) VALUES ('a1'), ('a2'), ('a3'), ('a4'), ('a5');
