-- Rows that wait for a target that is away are passed over by the index; see the PostgreSQL file of the same number.

CREATE INDEX hapax_outbox_targets ON hapax_outbox (consumer, coalesce(target, ''), due_at, number)
    WHERE key IS NULL AND published_at IS NULL AND parked_at IS NULL;
DROP INDEX hapax_outbox_due;
