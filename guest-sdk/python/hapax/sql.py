"""SQL inside the message's own transaction. There is nothing to open, begin or commit.

Parameters are `$1`, `$2`, ... on both databases. Each is sent as the type that the database expects at its place.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Sequence

from wit_world.imports import sql as _host

from ._errors import told
from ._values import from_host, to_params

#: A row's columns by name.
Row = dict[str, Any]


def _rows(columns: Sequence[_host.Column], rows: Sequence[Sequence[Any]]) -> list[Row]:
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two columns are called `{twice}`: name one with AS")
    return [dict(zip(names, map(from_host, row))) for row in rows]


def execute(statement: str, *params: Any) -> int:
    """Runs one statement; returns how many rows it affected."""
    values = to_params(params)
    with told():
        return _host.execute(statement, values)


def execute_many(statement: str, rows: Sequence[Sequence[Any]]) -> list[int]:
    """Runs one statement once for each row of parameters; returns how many rows each affected."""
    values = [to_params(params, f"row {number}, ") for number, params in enumerate(rows)]
    with told():
        return list(_host.execute_many(statement, values))


def query(statement: str, *params: Any) -> list[Row]:
    """Returns all rows, each with its columns by name."""
    values = to_params(params)
    with told():
        found = _host.query(statement, values)
    return _rows(found.columns, found.rows)


def query_optional(statement: str, *params: Any) -> Row | None:
    """Returns the only row, or None; an error if there are more."""
    rows = query(statement, *params)
    if len(rows) > 1:
        raise ValueError(f"the query gave {len(rows)} rows, where at most one is expected")
    return rows[0] if rows else None


def query_one(statement: str, *params: Any) -> Row:
    """Returns the only row; an error unless there is exactly one."""
    row = query_optional(statement, *params)
    if row is None:
        raise ValueError("the query gave no row, where one is expected")
    return row


def each(statement: str, *params: Any, portion: int = 1000) -> Iterator[Row]:
    """Goes through any number of rows, fetching `portion` of them at a time; other statements may run meanwhile."""
    values = to_params(params)
    with told():
        opened = _host.open_cursor(statement, values)
    with opened as cursor:
        columns = cursor.columns()
        while True:
            with told():
                rows = cursor.fetch(portion)
            if not rows:
                return
            yield from _rows(columns, rows)


@contextmanager
def savepoint() -> Iterator[None]:
    """`with sql.savepoint():` if the block raises, all that it did is undone, messages published among it, and the exception goes on."""
    with told():
        begun = _host.begin_savepoint()
    with begun as place:
        try:
            yield
        except BaseException:
            with told():
                place.rollback()
            raise
        with told():
            place.release()
