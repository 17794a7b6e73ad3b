CREATE TABLE told (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT
) STRICT;
-- One column for each kind of value; what SQLite has no type for it keeps as text.
CREATE TABLE samples (
    number INTEGER NOT NULL PRIMARY KEY,
    b INTEGER, i INTEGER, f REAL, t TEXT, x BLOB, n TEXT, d TEXT, h TEXT, ts TEXT, at TEXT, iv TEXT, u TEXT, j TEXT
) STRICT;
INSERT INTO samples VALUES
    (1, 1, 9223372036854775807, 1.7976931348623157e308, 'äöü 😀 ''"\', x'00ff80', '12345678901234567890.0123456789', '9999-12-31',
     '23:59:59.999999', '9999-12-31T23:59:59.999999', '1969-12-31T23:59:59.999999Z', 'P1M-2DT10800.500000S',
     '00112233-4455-6677-8899-aabbccddeeff', '{"a": [1, "ä"]}'),
    (2, 0, -9223372036854775808, 5e-324, '', x'', '-0.10', '0001-01-01',
     '00:00:00.000000', '0001-01-01T00:00:00.000000', '2024-02-29T12:34:56.000001Z', 'P-13M40DT0.000000S',
     'ffffffff-ffff-ffff-ffff-ffffffffffff', '[]'),
    (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
CREATE TABLE copies (
    number INTEGER NOT NULL PRIMARY KEY,
    b INTEGER, i INTEGER, f REAL, t TEXT, x BLOB, n TEXT, d TEXT, h TEXT, ts TEXT, at TEXT, iv TEXT, u TEXT, j TEXT
) STRICT;
