-- Rows that wait for a target that is away are passed over by the index, however many they are. A row without a target counts as one for ''.
--
-- The index that it stands in for would still be chosen where the planner knows of no row for another target.

CREATE INDEX outbox_targets ON hapax.outbox (consumer, coalesce(target, ''), due_at, number)
    WHERE key IS NULL AND published_at IS NULL AND parked_at IS NULL;
DROP INDEX hapax.outbox_due;
