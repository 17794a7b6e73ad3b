"""Values of SQL, to and from Python's own types."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Callable, Sequence, Union
from uuid import UUID

from wit_world.imports import sql, types


@dataclass(frozen=True)
class Interval:
    """PostgreSQL's interval, whose three parts never carry over into one another."""

    months: int = 0
    days: int = 0
    microseconds: int = 0


@dataclass(frozen=True)
class Json:
    """A parameter that is sent as JSON."""

    value: Any


#: What a parameter may be, and what a column is. Text serves for enums, inet and the like; arrays are lists.
Value = Union[
    None, bool, int, float, str, bytes, Decimal, dt.date, dt.time, dt.datetime, dt.timedelta, Interval, UUID, Json, list[Any], dict[str, Any]
]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MICROSECOND = dt.timedelta(microseconds=1)


def _date(value: dt.date) -> sql.Date:
    return sql.Date(value.year, value.month, value.day)


def _time(value: dt.time) -> sql.Time:
    return sql.Time(value.hour, value.minute, value.second, value.microsecond)


def instant(value: dt.datetime) -> types.Instant:
    """Returns the moment of a datetime that knows its zone."""
    seconds, microseconds = divmod((value - _EPOCH) // _MICROSECOND, 1_000_000)
    return types.Instant(seconds, microseconds * 1000)


def _one(value: Any, place: str) -> tuple[str, Any]:
    """Returns the case of the contract, and what it carries."""
    # bool is an int, and datetime a date, to Python.
    if isinstance(value, bool):
        return "Boolean", value
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise OverflowError(f"{place}: {value} does not fit into 64 bits; pass it as a Decimal")
        return "Int64", value
    if isinstance(value, float):
        return "Float64", value
    if isinstance(value, str):
        return "Text", value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "Bytes", bytes(value)
    if isinstance(value, Decimal):
        return "Decimal", str(value)
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            return "Instant", instant(value)
        return "Timestamp", sql.Timestamp(_date(value), _time(value.time()))
    if isinstance(value, dt.date):
        return "Date", _date(value)
    if isinstance(value, dt.time):
        if value.tzinfo is not None:
            raise TypeError(f"{place}: a time with a zone is passed as text")
        return "Time", _time(value)
    if isinstance(value, dt.timedelta):
        return "Interval", sql.Interval(0, 0, value // _MICROSECOND)
    if isinstance(value, Interval):
        return "Interval", sql.Interval(value.months, value.days, value.microseconds)
    if isinstance(value, UUID):
        return "Uuid", str(value)
    if isinstance(value, Json):
        return "Json", json.dumps(value.value)
    raise TypeError(f"{place}: a value of type {type(value).__name__} is no value of SQL; wrap objects in Json(..)")


def to_host(value: Any, place: str) -> sql.Value:
    """Returns a parameter as the contract has it."""
    if value is None:
        return sql.Value_Null()
    if isinstance(value, (list, tuple)):
        elements = [None if element is None else _one(element, place) for element in value]
        cases = {element[0] for element in elements if element is not None}
        if len(cases) > 1:
            raise TypeError(f"{place}: the array mixes {' and '.join(sorted(cases))}")
        case = next(iter(cases), "Text")
        array: sql.Value = getattr(sql, f"Value_{case}Array")([None if element is None else element[1] for element in elements])
        return array
    case, carried = _one(value, place)
    single: sql.Value = getattr(sql, f"Value_{case}")(carried)
    return single


def to_params(params: Sequence[Any], where: str = "") -> list[sql.Value]:
    """Returns the parameters of one statement."""
    return [to_host(value, f"{where}parameter ${number}") for number, value in enumerate(params, 1)]


def _from_date(value: sql.Date) -> Any:
    try:
        return dt.date(value.year, value.month, value.day)
    except ValueError:  # beyond the year 9999
        return f"{value.year:04}-{value.month:02}-{value.day:02}"


def _from_time(value: sql.Time) -> Any:
    try:
        return dt.time(value.hour, value.minute, value.second, value.microsecond)
    except ValueError:  # 24:00:00
        return f"{value.hour:02}:{value.minute:02}:{value.second:02}.{value.microsecond:06}"


def _from_timestamp(value: sql.Timestamp) -> Any:
    date, time = _from_date(value.date), _from_time(value.time)
    if isinstance(date, dt.date) and isinstance(time, dt.time):
        return dt.datetime.combine(date, time)
    return f"{date}T{time}"


def _from_instant(value: types.Instant) -> Any:
    try:
        return _EPOCH + dt.timedelta(seconds=value.seconds, microseconds=value.nanoseconds // 1000)
    except OverflowError:
        return f"{value.seconds} seconds after 1970"


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "Decimal": Decimal,
    "Date": _from_date,
    "Time": _from_time,
    "Timestamp": _from_timestamp,
    "Instant": _from_instant,
    "Interval": lambda value: Interval(value.months, value.days, value.microseconds),
    "Uuid": UUID,
    "Json": lambda text: json.loads(text, parse_float=Decimal),
    "Other": lambda value: value.text,
    "Undecoded": lambda value: value.bytes,
}


def _same(value: Any) -> Any:
    return value


def from_host(value: Any) -> Any:
    """Returns a column's value in Python's own type."""
    case = type(value).__name__.removeprefix("Value_")
    if case == "Null":
        return None
    if case.endswith("Array"):
        convert = _CONVERT.get(case.removesuffix("Array"), _same)
        return [None if element is None else convert(element) for element in value.value]
    return _CONVERT.get(case, _same)(value.value)
