CREATE TABLE shipments (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id text NOT NULL,
    item text NOT NULL,
    quantity bigint NOT NULL
);
