"""
Which type a column has so that every value that was taken fits into it exactly. Decided before a row is taken: whatever
is taken can be written.

A shape says what values are like: None (nothing is known), a name, a `Number`, ``("list", shape)`` or ``("struct",
((name, shape), ...))``. Shapes are joined as rows come. Whole numbers and fractions go together as long as no whole
number is one that a fraction cannot hold; whole numbers and exact ones go together; exact ones and fractions never do.
What cannot be joined is refused, and the column stays as it was.
"""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any, NamedTuple, cast

EXACT = 1 << 53  # up to here a fraction holds every whole number
_MOST = 76  # digits of an exact number
_DAYS = 106_751_990  # in a timedelta that 64 bits of microseconds can hold
NATIVE = frozenset({dt.datetime, dt.date, dt.time, dt.timedelta, bytes, Decimal})


class Number(NamedTuple):
    """
    A column of numbers: which kinds of them it has, and the digits before and behind the point that exact ones need.
    """

    whole: bool = False
    wide: bool = False  # a whole number that no fraction holds
    fraction: bool = False
    exact: bool = False
    digits: int = 0
    scale: int = 0


_WHOLE = Number(whole=True, digits=16)
_WIDE = Number(whole=True, wide=True, digits=19)
_FRACTION = Number(fraction=True)
_NAMES = {
    "bool": "truth values",
    "string": "texts",
    "binary": "bytes",
    "date": "dates",
    "time": "times of day",
    "naive": "instants without a zone",
    "instant": "instants",
    "duration": "durations",
    "list": "lists",
    "struct": "structures",
}
_SIMPLE = {dt.date: "date", bytes: "binary", bool: "bool", float: _FRACTION, type(None): None}


def shape_of(value: Any) -> Any:
    """The shape of a value as `tell` makes it. ValueError or OverflowError for one that no column holds."""
    kind = type(value)
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if kind is str:
        if not value.isascii():
            value.encode()  # half of a surrogate pair is no text
        return "string"
    if kind is int:
        return _whole(value, value)
    if kind is list:
        kinds = set(map(type, value))
        if kinds == {float}:
            return ("list", _FRACTION)
        if kinds == {int}:
            return ("list", _whole(min(value), max(value)))
        inside: Any = None
        for each in value:
            inside = join(inside, shape_of(each), "[]")
        return ("list", inside)
    if kind is dict:
        return ("struct", tuple((name, shape_of(each)) for name, each in value.items()))
    return _shape_of_native(value, kind)


def _whole(low: int, high: int) -> Number:
    if low >= -EXACT and high <= EXACT:
        return _WHOLE
    if low < -(1 << 63) or high >= 1 << 63:
        raise OverflowError("a whole number with more than 64 bits")
    return _WIDE


def _shape_of_native(value: Any, kind: type) -> Any:
    if kind is dt.datetime:
        if value.tzinfo is None:
            return "naive"
        value.astimezone(dt.UTC)  # as which it is kept: it may be before the first year there
        return "instant"
    if kind is dt.time:
        if value.tzinfo is not None:
            raise ValueError("a time of day with a zone, for which there is no place here")
        return "time"
    if kind is dt.timedelta:
        if abs(value.days) > _DAYS:
            raise OverflowError("a duration with more than 64 bits")
        return "duration"
    assert kind is Decimal  # noqa: S101 - `tell` leaves nothing else
    if not value.is_finite():
        raise ValueError("a decimal that is no number")
    parts = value.as_tuple()
    exponent = int(parts.exponent)
    shape = Number(exact=True, digits=max(0, len(parts.digits) + exponent), scale=max(0, -exponent))
    return _checked(shape, "")


def join(old: Any, new: Any, where: str = "") -> Any:
    """The shape that has room for both. TypeError if there is none."""
    if new is None or old == new:
        return old
    if old is None:
        return new
    if isinstance(old, Number) and isinstance(new, Number):
        return _checked(Number._make(max(pair) for pair in zip(old, new, strict=True)), where)
    if _kind(old) == _kind(new) == "list":
        return ("list", join(old[1], new[1], where))
    if _kind(old) == _kind(new) == "struct":
        fields: dict[str, Any] = dict(cast("Any", old)[1])
        for name, shape in new[1]:
            fields[name] = join(fields.get(name), shape, f"{where}.{name}" if where else name)
        return ("struct", tuple(fields.items()))
    raise TypeError(f"{_place(where)} has {_called(old)}, and this would be {_called(new)}")


def _checked(number: Number, where: str) -> Number:
    if number.fraction and (number.wide or number.exact):
        what = "exact numbers" if number.exact else "whole numbers above 2^53"
        raise TypeError(f"{_place(where)} would have {what} and fractions, and one of them would become another number")
    if number.exact and number.digits + number.scale > _MOST:
        raise TypeError(f"{_place(where)} would have exact numbers with more than {_MOST} digits")
    return number


def _kind(shape: Any) -> str:
    return shape[0] if isinstance(shape, tuple) and not isinstance(shape, Number) else ""


def _place(where: str) -> str:
    return "it" if not where else "a list" if where.startswith("[]") else f"the column {where}"


def _called(shape: Any) -> str:
    if isinstance(shape, Number):
        return "exact numbers" if shape.exact else "fractions" if shape.fraction else "whole numbers"
    return _NAMES[_kind(shape) or shape]


def bare(shape: Any) -> Any:
    """The shape without structures that have no fields, which Parquet does not know; the same object if it has none."""
    if _kind(shape) == "list":
        inside = bare(shape[1])
        return shape if inside is shape[1] else ("list", inside)
    if _kind(shape) == "struct":
        fields = tuple((name, bare(each)) for name, each in shape[1])
        same = all(new[1] is old[1] for new, old in zip(fields, shape[1], strict=True))
        return None if not fields else shape if same else ("struct", fields)
    return shape


def filled(value: Any) -> Any:
    """The value with None in the place of structures that have no fields."""
    if type(value) is list:
        return [filled(each) for each in value]
    if type(value) is dict:
        return {name: filled(each) for name, each in value.items()} or None
    return value


# -- in words of Arrow ------------------------------------------------------------------------------------------------------------


def arrow_type(pa: Any, shape: Any) -> Any:
    """The type of a column of this shape."""
    if isinstance(shape, Number):
        if shape.exact:
            precision = max(1, shape.digits + shape.scale)
            return (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, shape.scale)
        return pa.float64() if shape.fraction else pa.int64()
    if _kind(shape) == "list":
        return pa.list_(arrow_type(pa, shape[1]))
    if _kind(shape) == "struct":
        return pa.struct([(name, arrow_type(pa, each)) for name, each in shape[1]])
    simple = {
        None: pa.null(),
        "bool": pa.bool_(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "time": pa.time64("us"),
        "naive": pa.timestamp("us"),
        "instant": pa.timestamp("us", "UTC"),
        "duration": pa.duration("us"),
    }
    return simple[shape]


def shape_in(pa: Any, kind: Any) -> Any:
    """
    The shape of what a column of this type may hold; the other way round, for files that do not say it themselves.
    """
    types = pa.types
    if types.is_struct(kind):
        return ("struct", tuple((field.name, shape_in(pa, field.type)) for field in kind))
    if types.is_list(kind):
        return ("list", shape_in(pa, kind.value_type))
    if types.is_decimal(kind):
        return Number(exact=True, digits=kind.precision - kind.scale, scale=kind.scale)
    if types.is_floating(kind):
        return _FRACTION
    if types.is_integer(kind):
        return _WIDE  # nobody knows which
    names = ("bool", "string", "binary", "date", "time", "naive", "instant", "duration", None)
    return next((name for name in names if arrow_type(pa, name) == kind), None)


def written(shape: Any) -> str:
    """The shape as text, for the metadata of a file."""
    return json.dumps(shape, separators=(",", ":"))


def read(text: str | bytes) -> Any:
    """The shape that was `written`."""
    return _read(json.loads(text))


def _read(told: Any) -> Any:
    if not isinstance(told, list):
        return told
    if told[0] == "list":
        return ("list", _read(told[1]))
    if told[0] == "struct":
        return ("struct", tuple((name, _read(each)) for name, each in told[1]))
    return Number._make(told)
