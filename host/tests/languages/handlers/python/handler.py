"""Does what the payload says; what it finds is in the tables."""

from datetime import date, datetime, time, timezone
from decimal import Decimal
from uuid import UUID

from hapax import HostError, Interval, Json, Message, Reject, Retry, config, log, outbox, sql


def handle(message: Message) -> None:
    match message.text():
        case "tour":
            tour(message)
        case "values":
            values()
        case "arrays":
            arrays()
        case "reject":
            raise Reject("not today: ä😀")
        case "retry":
            raise Retry("later: ä😀", 1)
        case "error":
            raise ValueError("out of order")
        case "unique":
            sql.execute("INSERT INTO samples (number) VALUES ($1)", 1)
        case "wrong":
            sql.execute("INSERT INTO samples (number, i) VALUES (9, $1)", "five")
        case "panic":
            raise RuntimeError("out of order")
        case "memory":
            pieces = []
            while True:
                pieces.append(bytearray(1 << 20))
        case "time":
            while True:
                pass
        case word:
            raise Reject(f"no such word: {word}")


def tell(name: str, value: object) -> None:
    sql.execute("INSERT INTO told (name, value) VALUES ($1, $2)", name, value)


def tour(message: Message) -> None:
    tell("attempt", str(message.attempt))
    tell("header", message.header_text("MESSAGE-ID"))
    if message.header_text("absent") is not None:
        raise Reject("a header that is not there")
    tell("config", config.require("currency"))
    tell("nothing", None)
    row = sql.query_one("SELECT CAST($1 AS bigint) AS great, x AS blob FROM samples WHERE number = 1", 9007199254740993)
    tell("great", str(row["great"]))
    tell("blob", row["blob"].hex())
    with sql.savepoint():
        tell("kept", "y")
    try:
        with sql.savepoint():
            tell("gone", "x")
            outbox.publish("gone", "never")
            tell("kept", "z")
    except HostError as error:
        tell("unique", error.code)
    if sql.query_optional("SELECT 1 AS one FROM told WHERE name = $1", "gone") is not None:
        raise Reject("it is there")
    numbers = [row["number"] for row in sql.each("SELECT number FROM samples ORDER BY number", portion=2)]
    sql.execute_many("INSERT INTO told (name, value) VALUES ($1, $2)", [["cursor", str(sum(numbers))]])
    outbox.publish("told", json={"great": 9007199254740993}, key="k", headers={"Kind": "tour"})
    log.info("toured", great=row["great"])


def values() -> None:
    """All kinds of values: those of the table as they come, and one row of Python's own."""
    rows = sql.query("SELECT * FROM samples ORDER BY number")
    for row in rows:
        # Objects come as Python has them, and may be other things than JSON.
        if row["j"] is not None and not isinstance(row["j"], str):
            row["j"] = Json(row["j"])
    own = {
        "number": 100,
        "b": True,
        "i": -(1 << 63),
        "f": 0.1,
        "t": "ä😀",
        "x": b"\x00\xff",
        "n": Decimal("0.10"),
        "d": date(2024, 2, 29),
        "h": time(12, 34, 56, 1),
        "ts": datetime(2024, 2, 29, 12),
        "at": datetime(2024, 2, 29, 12, 34, 56, 123_000, timezone.utc),
        "iv": Interval(1, -2, 3_500_000),
        "u": UUID("00112233-4455-6677-8899-aabbccddeeff"),
        "j": Json({"a": [1, True, None]}),
    }
    for row in [*rows, own]:
        sql.execute(
            "INSERT INTO copies (number, b, i, f, t, x, n, d, h, ts, at, iv, u, j) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
            *(row[name] for name in own),
        )


def arrays() -> None:
    own = {"number": 100, "ia": [-(1 << 63), None], "ta": ["ä", None], "ba": [True], "fa": [0.1], "na": [Decimal("0.10")], "o": "192.0.2.2"}
    for row in [*sql.query("SELECT * FROM array_samples ORDER BY number"), own]:
        sql.execute(
            "INSERT INTO array_copies (number, ia, ta, ba, fa, na, o) VALUES ($1, $2, $3, $4, $5, $6, $7)",
            *(row[name] for name in own),
        )
