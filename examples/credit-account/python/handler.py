"""Adds an amount to an account. Running it twice would add it twice: nothing here guards against that, the host does."""

from hapax import Message, Reject, sql


def handle(message: Message) -> None:
    account, amount = credit(message)
    updated = sql.execute("UPDATE accounts SET balance = balance + $1 WHERE id = $2", amount, account)
    if updated == 0:
        raise Reject(f"account `{account}` does not exist")


def credit(message: Message) -> tuple[str, int]:
    match message.json():
        # True is an int, too, to Python.
        case {"account": str(account), "amount": int(amount)} if not isinstance(amount, bool) and -(1 << 63) <= amount < 1 << 63:
            return account, amount
        case _:
            raise Reject("payload is not the expected JSON: `account` is a string and `amount` a 64-bit integer")
