CREATE TABLE shipments (
    number INTEGER PRIMARY KEY,
    order_id TEXT NOT NULL,
    item TEXT NOT NULL,
    quantity INTEGER NOT NULL
) STRICT;
