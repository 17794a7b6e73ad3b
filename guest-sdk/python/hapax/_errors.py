"""How a handler fails, and how the host does."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Iterator

from componentize_py_types import Err

if TYPE_CHECKING:
    from wit_world.imports import types


class Reject(Exception):
    """Keeps the message as a dead letter now; nothing that was written stays. Its text is the reason."""


class Retry(Exception):
    """Rolls back and has the message run again, after `delay_milliseconds` at the earliest (the configured backoff if None)."""

    def __init__(self, reason: str, delay_milliseconds: int | None = None) -> None:
        super().__init__(reason)
        self.delay_milliseconds = delay_milliseconds


class HostError(Exception):
    """A call into the host that failed. Uncaught, it has the message run again."""

    #: Stable, such as `constraint.unique`; docs/error-codes.md of hapax has all of them.
    code: str
    #: The host's own sentence.
    text: str
    #: True if the same call may succeed in a later run.
    retryable: bool
    sqlstate: str | None
    detail: str | None
    hint: str | None
    schema: str | None
    table: str | None
    column: str | None
    constraint: str | None
    #: The parameter at fault, counted from 1.
    param: int | None
    #: The row of parameters at fault in `execute_many`, counted from 0.
    row: int | None
    #: The character of the statement at fault, counted from 1.
    position: int | None
    extra: dict[str, str]

    def __init__(self, record: types.Error) -> None:
        reason = f"{record.code}: {record.message}"
        if record.detail is not None:
            reason += f" ({record.detail})"
        if record.param is not None:
            reason += f" (parameter ${record.param})"
        super().__init__(reason)
        self.code = record.code
        self.text = record.message
        self.retryable = record.retryable
        self.sqlstate = record.sqlstate
        self.detail = record.detail
        self.hint = record.hint
        self.schema = record.schema
        self.table = record.table
        self.column = record.column
        self.constraint = record.constraint
        self.param = record.param
        self.row = record.row
        self.position = record.position
        self.extra = dict(record.extra)


@contextmanager
def told() -> Iterator[None]:
    """Makes a `HostError` of what the host answers."""
    try:
        yield
    except Err as error:
        raise HostError(error.value) from None
