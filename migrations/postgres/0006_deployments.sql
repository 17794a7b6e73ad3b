-- Deployments: components that live in the store, so that every host of a fleet runs the same one, and what each handler is to do.

-- The component itself; absent where it was only seen as a file. These columns are written together.
ALTER TABLE hapax.components
    ADD COLUMN size_bytes bigint,
    -- The version of `hapax:handler` that it was built for.
    ADD COLUMN contract text,
    -- The tools that made it: [{"field": "language", "name": "Rust", "version": "1.95"}]
    ADD COLUMN producers json,
    ADD COLUMN bytes bytea;
-- Not compressed on the way in: 35 MB of Python would take more than a second at each deployment, for a table of few rows.
ALTER TABLE hapax.components ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- Which component was made a handler's, when and by whom. Rows are only added.
CREATE TABLE hapax.deployments (
    handler text COLLATE "C" NOT NULL,
    -- From 1, without gaps, for each handler.
    number bigint NOT NULL CHECK (number > 0),
    component integer NOT NULL REFERENCES hapax.components (id),
    deployed_at timestamptz NOT NULL DEFAULT now(),
    -- `user@host`, in the words of whoever asked.
    deployed_by text NOT NULL,
    -- The files that were applied for it: ["0002_more.sql"]
    migrations json NOT NULL DEFAULT '[]',
    -- The deployment that a rollback went back to.
    back_to bigint,
    PRIMARY KEY (handler, number)
);

-- What every host is to do with a handler. Without a row: run it as the configuration says.
CREATE TABLE hapax.handler_states (
    handler text COLLATE "C" PRIMARY KEY,
    -- The number of the active deployment, if there is one.
    deployment bigint,
    paused boolean NOT NULL DEFAULT false,
    -- Rises with each change, by which hosts see that there was one.
    generation bigint NOT NULL DEFAULT 0,
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL DEFAULT ''
);

-- What each host made of it. A row that was not renewed for some seconds is of a host that is gone.
CREATE TABLE hapax.host_handlers (
    -- The process, as in `started`.
    host text COLLATE "C" NOT NULL,
    handler text COLLATE "C" NOT NULL,
    -- `running`, `paused`, `waiting` or `failed`.
    state text NOT NULL,
    -- SHA-256 of the component that it runs, if any.
    digest bytea CHECK (octet_length(digest) = 32),
    -- The generation of the handler's state that it has taken over, or failed at.
    generation bigint NOT NULL DEFAULT 0,
    error text,
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (host, handler)
);
