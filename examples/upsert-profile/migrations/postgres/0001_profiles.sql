CREATE TABLE profiles (
    id text PRIMARY KEY,
    version bigint NOT NULL,
    name text NOT NULL,
    email text
);
