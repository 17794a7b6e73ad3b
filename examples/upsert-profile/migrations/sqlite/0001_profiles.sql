CREATE TABLE profiles (
    id TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    name TEXT NOT NULL,
    email TEXT
) STRICT;
