-- Reconciliation: what the broker counts as done, and what is done here.

-- Up to which message of its stream every acknowledged one is known to be claimed in this database. It is written over a session that
-- was open before those claims were looked at, so a backup or a replica that has the row has the claims as well.
CREATE TABLE hapax.checkpoints (
    consumer text COLLATE "C" PRIMARY KEY,
    -- The stream's name and creation time, as in positions.
    stream text NOT NULL,
    sequence bigint NOT NULL
);
