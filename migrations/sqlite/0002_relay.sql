-- What the relay needs to publish the outbox's rows. The columns are described in the PostgreSQL file of the same number.

-- A column that is added can't have the time as its default: what is older, or written by an older hapax, has an empty text,
-- which is before every moment.
ALTER TABLE hapax_outbox ADD COLUMN due_at TEXT NOT NULL DEFAULT '';
ALTER TABLE hapax_outbox ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hapax_outbox ADD COLUMN error TEXT;
ALTER TABLE hapax_outbox ADD COLUMN parked_at TEXT;
UPDATE hapax_outbox SET due_at = not_before WHERE not_before IS NOT NULL;

CREATE INDEX hapax_outbox_due ON hapax_outbox (consumer, due_at, number)
    WHERE key IS NULL AND published_at IS NULL AND parked_at IS NULL;
CREATE INDEX hapax_outbox_keys ON hapax_outbox (consumer, key, number)
    WHERE key IS NOT NULL AND published_at IS NULL AND parked_at IS NULL;
CREATE INDEX hapax_outbox_parked ON hapax_outbox (consumer, number) WHERE parked_at IS NOT NULL;
CREATE INDEX hapax_outbox_published ON hapax_outbox (published_at) WHERE published_at IS NOT NULL;
DROP INDEX hapax_outbox_unpublished;
