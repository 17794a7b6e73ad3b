"""Messages that leave once, after the commit."""

from __future__ import annotations

import json as _json
from datetime import datetime
from typing import Any, Mapping

from wit_world.imports import outbox as _host
from wit_world.imports import types as _types

from ._errors import told
from ._values import instant

_ABSENT: Any = object()


def publish(
    subject: str,
    payload: bytes | str = b"",
    *,
    json: Any = _ABSENT,
    key: str | None = None,
    target: str | None = None,
    headers: Mapping[str, bytes | str] | None = None,
    content_type: str | None = None,
    not_before: datetime | None = None,
) -> str:
    """Keeps a message until the transaction commits; returns its id, the same in every run.

    `json` is sent instead of `payload`. Messages of one `key` leave in the order in which they were published. `not_before` knows its zone.
    """
    if json is not _ABSENT:
        payload = _json.dumps(json)
        content_type = content_type or "application/json"
    outgoing = _types.Outgoing(
        target=target,
        subject=subject,
        key=key,
        headers=[_types.Header(name, _bytes(value)) for name, value in (headers or {}).items()],
        content_type=content_type,
        payload=_bytes(payload),
        not_before=None if not_before is None else instant(not_before),
    )
    with told():
        return _host.publish(outgoing)


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value
