-- Retention: what makes pruning find the old rows by index.

CREATE INDEX hapax_processed_messages_age ON hapax_processed_messages (consumer, processed_at);
CREATE INDEX hapax_attempts_age ON hapax_attempts (at);
CREATE INDEX hapax_dead_letters_age ON hapax_dead_letters (dead_at);
CREATE INDEX hapax_dead_letters_id ON hapax_dead_letters (consumer, message_id) WHERE message_id IS NOT NULL;

-- Who prunes, and until when nobody else does.
CREATE TABLE hapax_pruner (
    only INTEGER NOT NULL PRIMARY KEY CHECK (only = 1),
    holder TEXT NOT NULL,
    until TEXT NOT NULL
) STRICT;
