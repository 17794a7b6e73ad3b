CREATE TABLE stock (
    item text PRIMARY KEY,
    quantity bigint NOT NULL CHECK (quantity >= 0)
);
INSERT INTO stock (item, quantity) VALUES ('chair', 10), ('table', 2);
