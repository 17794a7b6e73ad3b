-- What the relay needs to publish the outbox's rows.

ALTER TABLE hapax.outbox
    -- Not published before: the handler's `not_before`, or the end of the wait after a failure.
    ADD COLUMN due_at timestamptz NOT NULL DEFAULT now(),
    -- Tries that failed, and what the last one said.
    ADD COLUMN attempts integer NOT NULL DEFAULT 0,
    ADD COLUMN error text,
    -- Given up on: it is not tried again until it is republished.
    ADD COLUMN parked_at timestamptz,
    ALTER COLUMN key TYPE text COLLATE "C",
    ALTER COLUMN target TYPE text COLLATE "C";
UPDATE hapax.outbox SET due_at = not_before WHERE not_before IS NOT NULL;

-- A row without a key waits for no other.
CREATE INDEX outbox_due ON hapax.outbox (consumer, due_at, number)
    WHERE key IS NULL AND published_at IS NULL AND parked_at IS NULL;
-- Of each key, only the row with the smallest number may leave.
CREATE INDEX outbox_keys ON hapax.outbox (consumer, key, number)
    WHERE key IS NOT NULL AND published_at IS NULL AND parked_at IS NULL;
CREATE INDEX outbox_parked ON hapax.outbox (consumer, number) WHERE parked_at IS NOT NULL;
CREATE INDEX outbox_published ON hapax.outbox (published_at) WHERE published_at IS NOT NULL;
DROP INDEX hapax.outbox_unpublished;
