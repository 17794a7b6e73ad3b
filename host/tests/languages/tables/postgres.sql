CREATE TABLE told (
    name text PRIMARY KEY,
    value text
);
-- One column for each kind of value.
CREATE TABLE samples (
    number bigint PRIMARY KEY,
    b boolean, i bigint, f double precision, t text, x bytea, n numeric, d date, h time, ts timestamp, at timestamptz, iv interval, u uuid, j jsonb
);
INSERT INTO samples VALUES
    (1, true, 9223372036854775807, 1.7976931348623157e308, 'äöü 😀 ''"\', '\x00ff80', 12345678901234567890.0123456789, '9999-12-31',
     '23:59:59.999999', '9999-12-31 23:59:59.999999', '1969-12-31 23:59:59.999999Z', '1 mon -2 days 03:00:00.5',
     '00112233-4455-6677-8899-aabbccddeeff', '{"a": [1, "ä"]}'),
    (2, false, -9223372036854775808, 5e-324, '', '', -0.10, '0001-01-01',
     '00:00:00', '0001-01-01 00:00:00', '2024-02-29 12:34:56.000001Z', '-13 mons 40 days',
     'ffffffff-ffff-ffff-ffff-ffffffffffff', '[]'),
    (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
CREATE TABLE copies (LIKE samples INCLUDING ALL);
-- What SQLite has not.
CREATE TABLE array_samples (
    number bigint PRIMARY KEY,
    ia bigint[], ta text[], ba boolean[], fa double precision[], na numeric[], o inet
);
INSERT INTO array_samples VALUES
    (1, '{9223372036854775807,NULL,-1}', '{ä,NULL,""}', '{t,NULL,f}', '{0.1,NULL,-5e-324}', '{0.10,NULL}', '192.0.2.1/24'),
    (2, '{}', '{}', '{}', '{}', '{}', '::1'),
    (3, NULL, NULL, NULL, NULL, NULL, NULL);
CREATE TABLE array_copies (LIKE array_samples INCLUDING ALL);
