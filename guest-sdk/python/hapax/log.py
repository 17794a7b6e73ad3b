"""Lines in the host's log; those of a run that is rolled back appear at level debug."""

from __future__ import annotations

from typing import Any

from wit_world.imports import log as _host
from wit_world.imports import types as _types


def _line(level: _types.Level, message: str, fields: dict[str, Any]) -> None:
    _host.write(level, message, [(name, str(value)) for name, value in fields.items()])


def trace(message: str, **fields: Any) -> None:
    _line(_types.Level.TRACE, message, fields)


def debug(message: str, **fields: Any) -> None:
    _line(_types.Level.DEBUG, message, fields)


def info(message: str, **fields: Any) -> None:
    _line(_types.Level.INFO, message, fields)


def warn(message: str, **fields: Any) -> None:
    _line(_types.Level.WARN, message, fields)


def error(message: str, **fields: Any) -> None:
    _line(_types.Level.ERROR, message, fields)
