"""
Converts users' values for output, in the same way for every sink: to JSON, to the cells of a row, to the columns of a
Parquet file or a table.

A value that the format cannot hold is refused with a message, and its item becomes a dead letter. No value is silently
changed.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from decimal import Context, Decimal
from enum import Enum
from math import isfinite
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outlast.errors import PermanentFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Container

_PLAIN = frozenset({type(None), bool, int, float, str})
_TEXT = frozenset({str})
_MISSING = frozenset({"NAType", "NaTType"})  # what pandas has for missing
NOTHING: frozenset[type] = frozenset()
_SURE = 90_000  # days: of fewer, a fraction holds every microsecond
_DIGITS = Context(prec=40)
_NANOSECONDS = "nanoseconds, for which there is no place here: round them to microseconds"

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def json_text(value: Any) -> str:
    """The value as JSON that every reader takes. TypeError or ValueError if there is no good way."""
    told = tell(value)
    try:
        return _encode(told)
    except ValueError:
        if _is_finite(told):
            raise
        raise ValueError("NaN and Infinity are no JSON: make them None, or a text") from None


def tell(value: Any, native: Container[type] = NOTHING) -> Any:
    """
    The value in terms of None, bool, int, float, str, list and dict with names that are text. Whatever is of a type in
    `native` stays what it is. TypeError or ValueError if there is no good way.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:  # in most cases there is nothing to do, and this is asked of every output
        if _PLAIN.issuperset(map(type, value)):
            return value
        return [each if type(each) in _PLAIN else tell(each, native) for each in value]
    if kind is dict and _TEXT.issuperset(map(type, value)):
        if _PLAIN.issuperset(map(type, value.values())):
            return value
        return {name: each if type(each) in _PLAIN else tell(each, native) for name, each in value.items()}
    if isinstance(value, Mapping):
        return _named(value.items(), lambda each: tell(each, native))
    return _tell_object(value, kind, native)


def _tell_object(value: Any, kind: type, native: Container[type]) -> Any:
    if isinstance(value, Enum):
        return tell(value.value, native)
    if kind in native:
        return value
    fields = fields_of(value)
    if fields is not None:
        return _told_fields(value, fields, native) if isinstance(fields, dict) else tell(fields, native)
    if isinstance(value, tuple):
        return [tell(each, native) for each in value]
    if isinstance(value, set | frozenset):
        return [tell(each, native) for each in _in_order(value)]
    if kind.__name__ in _MISSING:
        return None
    if isinstance(value, dt.date | dt.time | dt.timedelta):
        return _tell_time(value, native)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value) if bytes in native else value.hex()
    if isinstance(value, Decimal | UUID | PurePath) or kind.__module__ == "ipaddress":
        return str(value)
    if getattr(getattr(value, "dtype", None), "kind", None) in {"M", "m"}:
        return tell(_instants(value), native)
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value)
    if hasattr(value, "tolist"):  # numpy's scalars and arrays, tensors, the standard library's arrays
        listed = value.tolist()
        if type(listed) is not kind:
            return tell(listed, native)
    raise TypeError(f"there is no way to write a value of type {kind.__name__}")


def _tell_time(value: Any, native: Container[type]) -> Any:
    """Dates, times, instants and durations, also pandas' own, which know nanoseconds."""
    kinds: tuple[type, ...] = (dt.datetime, dt.date, dt.time, dt.timedelta)
    kind = next(base for base in kinds if base in type(value).__mro__)
    if kind not in native:
        return seconds(value) if kind is dt.timedelta else value.isoformat()
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        raise ValueError(_NANOSECONDS)
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime(warn=False)
    return value.to_pytimedelta() if hasattr(value, "to_pytimedelta") else value


def seconds(value: dt.timedelta) -> float | str:
    """
    A duration in seconds. One that no fraction holds is a text, as exact numbers are.

    >>> seconds(dt.timedelta(milliseconds=1500)), seconds(dt.timedelta(days=10**8, microseconds=1))
    (1.5, '8640000000000.000001')
    """
    small = getattr(value, "nanoseconds", 0)  # pandas knows these
    told = value.total_seconds()
    if abs(value.days) < _SURE and not small:
        return told
    micros = (value.days * 86_400 + value.seconds) * 10**6 + value.microseconds
    exact = Decimal(micros * 1000 + small).scaleb(-9, _DIGITS).normalize(_DIGITS)
    return told if Decimal(repr(told)) == exact else f"{exact:f}"


def _instants(value: Any) -> Any:
    """Instants and durations of numpy, a single one or an array, as Python's."""
    name = "datetime64[us]" if value.dtype.kind == "M" else "timedelta64[us]"
    made = value.astype(name)
    same = (made.astype(value.dtype) == value) | (value != value)  # noqa: PLR0124 - NaT is the one that is not itself
    if not (same.all() if hasattr(same, "all") else same):
        raise ValueError(_NANOSECONDS)
    listed = made.tolist()
    if _has_number(listed):  # which is what numpy makes of an instant that Python's calendar does not know
        raise ValueError("an instant outside of the years 1 to 9999")
    return listed


def _has_number(listed: Any) -> bool:
    return any(map(_has_number, listed)) if isinstance(listed, list) else isinstance(listed, int)


def _in_order(values: Any) -> list[Any]:
    """The members of a set in an order that is the same the next time."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=lambda each: (type(each).__name__, repr(each)))


def _is_finite(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_finite, value))
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, float) or isfinite(value)


# -- rows -----------------------------------------------------------------------------------------------------------------------


def row_of(value: Any, where: str) -> Mapping[str, Any]:
    """The columns of an output, with values as the user has them."""
    row = value if isinstance(value, Mapping) else fields_of(value)
    if not isinstance(row, Mapping):
        message = f"it is a {type(value).__name__}, which has no columns"
        raise unfit(where, message)
    if not row:
        raise unfit(where, "it has no columns")
    try:
        return row if _TEXT.issuperset(map(type, row)) else _named(row.items(), lambda each: each)
    except TypeError as wrong:
        raise unfit(where, str(wrong)) from None


def fields_of(value: Any) -> Any:
    """
    The fields of a dataclass, a model or a named tuple, which may be no dict for a model of something else; None for
    anything else.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, type):
        return None
    fields = getattr(value, "model_dump", None) or (isinstance(value, tuple) and getattr(value, "_asdict", None))
    return fields() if fields else None


def _told_fields(value: Any, fields: dict[str, Any], native: Container[type]) -> dict[str, Any]:
    """Fields of a model may have types that only the model knows how to write."""
    told: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for name, each in fields.items():
        try:
            told[name] = tell(each, native)
        except TypeError:
            if not hasattr(value, "model_dump"):
                raise
            own = own or value.model_dump(mode="json")
            told[name] = tell(own[name], native)
    return told


def _named(pairs: Any, how: Callable[[Any], Any]) -> dict[str, Any]:
    """A dict with names that are text. Two names that would be one are refused: one of the values would be gone."""
    made: dict[str, Any] = {}
    for key, each in pairs:
        name = key if type(key) is str else _name(key)
        if name in made:
            raise TypeError(f"two of its names would be the same text, {name!r}")
        made[name] = how(each)
    return made


def _name(key: Any) -> str:
    told = tell(key)
    if isinstance(told, str):
        return told
    if told is None or isinstance(told, bool | int | float):
        return (
            {None: "null", True: "true", False: "false"}[told]
            if told is None or told is True or told is False
            else repr(told)
        )
    raise TypeError(f"one of its names is a {type(key).__name__}, which is no text")


def unfit(where: str, why: str) -> PermanentFailure:
    """An output that cannot be written: the dead letter of its item."""
    return PermanentFailure(f"the output cannot be a row of {where}: {why}", error_class="validation_error")


# -- for keys and for people ------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """
    A value that JSON does not know, as one that it does; for ``json.dumps(default=plain)``. TypeError if there is no
    good way. Keys of items are hashes of what this says, so it must not change: a run that goes on would do everything
    once more.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    iso = getattr(value, "isoformat", None)
    if iso is not None:
        return iso()
    if isinstance(value, bytes | bytearray | memoryview):
        return value.hex()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Decimal | UUID | PurePath) or type(value).__module__ == "ipaddress":
        return str(value)
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    listed = getattr(value, "tolist", None)
    if listed is not None:
        return listed()
    if type(value).__name__ == "NAType":
        return None
    raise TypeError(f"expected something that JSON can hold, got: a value of type {type(value).__name__}")
