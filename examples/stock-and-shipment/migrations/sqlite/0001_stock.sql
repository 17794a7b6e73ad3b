CREATE TABLE stock (
    item TEXT PRIMARY KEY NOT NULL,
    quantity INTEGER NOT NULL CHECK (quantity >= 0)
) STRICT;
INSERT INTO stock (item, quantity) VALUES ('chair', 10), ('table', 2);
