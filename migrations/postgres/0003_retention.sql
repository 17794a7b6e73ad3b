-- Retention: what makes pruning find the old rows by index.

-- With one consumer's claims in the order of their times, a batch of the oldest is found at once, and new claims are added at
-- the end, where the pages are in memory.
CREATE INDEX processed_messages_age ON hapax.processed_messages (consumer, processed_at);
CREATE INDEX attempts_age ON hapax.attempts (at);
CREATE INDEX dead_letters_age ON hapax.dead_letters (dead_at);
-- Tells whether the claim of a dead letter is still needed.
CREATE INDEX dead_letters_id ON hapax.dead_letters (consumer, message_id) WHERE message_id IS NOT NULL;
