-- hapax's own tables. Applied by the host at its start, in one transaction, under a lock; never edited after a release.
--
-- Texts that are compared byte by byte have the collation "C", so that an upgrade of the system's collations can't
-- spoil the indexes that the guarantee rests on.

CREATE SCHEMA IF NOT EXISTS hapax;

-- `schema-version` is the number of the last of these files that was applied.
CREATE TABLE hapax.meta (
    name text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);

-- Which code ran: a component's SHA-256 behind a small number.
CREATE TABLE hapax.components (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest bytea NOT NULL UNIQUE CHECK (octet_length(digest) = 32),
    first_seen timestamptz NOT NULL DEFAULT now()
);

-- The claims. A row is written in the transaction that also holds the handler's effects.
CREATE TABLE hapax.processed_messages (
    consumer text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    outcome text NOT NULL CHECK (outcome IN ('done', 'dead')),
    -- The first 16 bytes of SHA-256 over the length-prefixed fields `payload` and the payload.
    payload_hash bytea NOT NULL CHECK (octet_length(payload_hash) = 16),
    component integer,
    PRIMARY KEY (consumer, message_id)
);

-- Failed runs that were charged to a message; gone when it is processed, or copied into its dead letter.
CREATE TABLE hapax.attempts (
    consumer text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    attempt integer NOT NULL CHECK (attempt > 0),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    class text NOT NULL,
    error text NOT NULL,
    component integer,
    PRIMARY KEY (consumer, message_id, attempt)
);

-- Runs of suspects: messages that were delivered more than twice, so that they may have been in hand when a host died. Each
-- runs alone, and only while this row is there; if its host ends meanwhile, the row stays, and that run is a charged attempt.
CREATE TABLE hapax.started (
    consumer text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    -- The process that runs it: the machine's name, the process id and random digits, with colons between them.
    host text COLLATE "C" NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, message_id)
);

-- Messages given up on. `headers` has the form that `hapax.queue` has.
CREATE TABLE hapax.dead_letters (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer text COLLATE "C" NOT NULL,
    handler text NOT NULL,
    message_id text COLLATE "C",
    source text COLLATE "C" NOT NULL,
    position text COLLATE "C" NOT NULL,
    subject text NOT NULL,
    headers json NOT NULL,
    content_type text,
    payload bytea NOT NULL,
    published_at timestamptz,
    -- The id column that the message had in the embedded queue, for a replay that looks there.
    queue_id text,
    class text NOT NULL,
    reason text NOT NULL,
    -- [{"attempt": 1, "at": "..", "class": "..", "error": "..", "component": "hex" or null}]
    attempts json NOT NULL,
    component integer,
    dead_at timestamptz NOT NULL DEFAULT now(),
    -- The value of `order_by`, if the handler has it and the message had one.
    order_key text COLLATE "C",
    -- Keeps a message without a claimable id from being written twice.
    UNIQUE (consumer, source, position)
);
CREATE INDEX dead_letters_keys ON hapax.dead_letters (consumer, order_key) WHERE order_key IS NOT NULL;

-- Messages that handlers published, in the order of writing. `headers` has the form that `hapax.queue` has.
CREATE TABLE hapax.outbox (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- Derived from consumer, message_id and ordinal: the same in every run.
    id text COLLATE "C" NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    ordinal integer NOT NULL,
    target text,
    subject text NOT NULL,
    key text,
    headers json NOT NULL,
    content_type text,
    payload bytea NOT NULL,
    not_before timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz
);
CREATE INDEX outbox_unpublished ON hapax.outbox (number) WHERE published_at IS NULL;

-- The embedded queue. Any program may insert here; only `queue` (the source's name in the configuration) must be given:
--
--     INSERT INTO hapax.queue (queue, message_id, payload) VALUES ('payments', 'p-1', '{"amount": 5}');
--
-- `headers` is JSON: [["name", "text"], ["name", {"base64": ".."}]], where the second form holds values that are not
-- UTF-8; {"name": "text"} serves too. A row is delivered in the order of `number` once `due_at` has come.
--
-- The columns from `origin_source` on are hapax's own: a row of the queue `@CONSUMER` is a message that hapax carries itself for
-- that consumer, and they say where it came from. `dead_letter` is the number of the letter that the row replays; `forced`: without
-- a claim.
CREATE TABLE hapax.queue (
    number bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    message_id text COLLATE "C",
    subject text NOT NULL DEFAULT '',
    headers json NOT NULL DEFAULT '[]',
    content_type text,
    payload bytea NOT NULL DEFAULT '',
    enqueued_at timestamptz NOT NULL DEFAULT now(),
    due_at timestamptz NOT NULL DEFAULT now(),
    -- The value of `order_by` of a row that was put off: a failed message that waits for its next run, or one that stands
    -- behind it. No row of the same key with a larger number runs before it.
    order_key text COLLATE "C",
    -- How many starts of a host found the row due at the head of its queue: above 2, its message is a suspect.
    seen integer NOT NULL DEFAULT 0,
    origin_source text,
    origin_position text,
    origin_published_at timestamptz,
    origin_queue_id text,
    dead_letter bigint,
    forced boolean NOT NULL DEFAULT false
);
CREATE INDEX queue_order ON hapax.queue (queue, number);
CREATE INDEX queue_keys ON hapax.queue (queue, order_key, number) WHERE order_key IS NOT NULL;
CREATE INDEX queue_carried_due ON hapax.queue (queue, due_at, number) WHERE origin_source IS NOT NULL;
CREATE INDEX queue_carried_id ON hapax.queue (queue, message_id) WHERE origin_source IS NOT NULL;
-- A letter is queued for replay once at a time.
CREATE UNIQUE INDEX queue_dead_letter ON hapax.queue (dead_letter) WHERE dead_letter IS NOT NULL;

-- The handlers' own migrations that were applied, with the SHA-256 of each file.
CREATE TABLE hapax.handler_migrations (
    handler text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    file text NOT NULL,
    checksum bytea NOT NULL CHECK (octet_length(checksum) = 32),
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (handler, version)
);

-- What handlers have done, by host. Inexact after a kill: flushed once a second and at drain.
CREATE TABLE hapax.counters (
    consumer text COLLATE "C" NOT NULL,
    host text COLLATE "C" NOT NULL,
    claimed bigint NOT NULL DEFAULT 0,
    duplicates bigint NOT NULL DEFAULT 0,
    retried bigint NOT NULL DEFAULT 0,
    rolled_back bigint NOT NULL DEFAULT 0,
    dead bigint NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, host)
);
