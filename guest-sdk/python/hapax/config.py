"""The handler's own table `config`: strings as written, any other value as JSON text."""

from __future__ import annotations

from wit_world.imports import config as _host


def get(name: str) -> str | None:
    """Returns the value of that name, if there is one."""
    return _host.get(name)


def names() -> list[str]:
    """Returns all names."""
    return list(_host.names())


def require(name: str) -> str:
    """Returns the value of that name; an error if there is none."""
    value = get(name)
    if value is None:
        raise KeyError(f"the handler's table `config` has no `{name}`")
    return value
