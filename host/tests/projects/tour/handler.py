"""Goes through all of the SDK; what it finds is in the table."""

from decimal import Decimal

from hapax import HostError, Message, Reject, config, log, outbox, sql


def tell(name: str, value: object) -> None:
    sql.execute("INSERT INTO told (name, value) VALUES ($1, $2)", name, value)


def handle(message: Message) -> None:
    if message.text() == '"fail"':
        raise ValueError("out of order")
    tell("attempt", str(message.attempt))
    tell("header", message.header_text("KIND"))
    if message.header_text("absent") is not None:
        raise Reject("a header that is not there")
    tell("config", config.require("currency"))
    tell("nothing", None)
    tell("decimal", Decimal("0.10"))
    row = sql.query_one("SELECT $1 AS great, $2 AS blob", 9007199254740993, b"\x00\xff")
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
    numbers = [row["number"] for row in sql.each("SELECT column1 AS number FROM (VALUES (1), (2), (3))", portion=2)]
    sql.execute_many("INSERT INTO told (name, value) VALUES ($1, $2)", [["cursor", str(sum(numbers))]])
    outbox.publish("told", json={"great": 9007199254740993}, key="k", headers={"Kind": "tour"})
    log.info("toured", great=row["great"])
