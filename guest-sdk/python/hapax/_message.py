"""The message."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from ._errors import Reject

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Instant:
    """A moment in UTC."""

    #: Since 1970, negative before it.
    seconds: int
    #: 0 to 999,999,999, always added.
    nanoseconds: int

    def datetime(self) -> datetime:
        """Returns it in UTC, cut to microseconds. Raises OverflowError outside the years 1 to 9999."""
        return _EPOCH + timedelta(seconds=self.seconds, microseconds=self.nanoseconds // 1000)


@dataclass(frozen=True)
class Message:
    """One message, as this delivery carries it."""

    #: The id that is claimed.
    id: str
    #: The source's name in the configuration.
    source: str
    #: The broker's subject, or the queue's topic; may be empty.
    subject: str
    #: The key that orders the message (`order_by`), if the handler has one.
    key: str | None
    #: Names and values, in the order in which the source gave them.
    headers: list[tuple[str, bytes]]
    content_type: str | None
    payload: bytes
    #: Failures charged to this message so far, plus 1.
    attempt: int
    #: When the source accepted it, if the source says so.
    published_at: Instant | None

    def text(self) -> str:
        """Returns the payload as text; rejects the message if it is not UTF-8."""
        return _decode(self.payload, "payload")

    def json(self) -> Any:
        """Returns the payload as JSON, fractions as Decimal; rejects the message if it is none."""
        try:
            return json.loads(self.payload.decode(), parse_float=Decimal, parse_constant=_no_json)
        except (ValueError, RecursionError) as error:
            raise Reject(f"payload is not the expected JSON: {error}") from None

    def header(self, name: str) -> bytes | None:
        """Returns the first header of that name, in any case of its letters."""
        wanted = name.lower()
        return next((value for name, value in self.headers if name.lower() == wanted), None)

    def header_text(self, name: str) -> str | None:
        """As `header`, as text; rejects the message if it is not UTF-8."""
        value = self.header(name)
        return None if value is None else _decode(value, f"header `{name}`")


def _no_json(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _decode(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Reject(f"{what} is not UTF-8") from None
