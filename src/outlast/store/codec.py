"""
How values become bytes and come back: JSON in an envelope that carries its version, never pickle.

JSON alone would bring back other values than it was given: a tuple as a list, the key 1 as "1", a datetime not at all. What it cannot say is
marked with ``$type``. Classes are named, and made again only if the reader asks for them by name: a stored byte never chooses what is run.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
import typing
import uuid
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol

from outlast.store.faults import StoreRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

VERSION = 1
_PLAIN = frozenset({str, int, float, bool, type(None)})
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Seal(Protocol):
    """What may be done to the bytes before they are stored, such as encrypting them, and after they are read."""

    def encode(self, data: bytes, /) -> bytes: ...
    def decode(self, data: bytes, /) -> bytes: ...


class Codec:
    """Encodes what an app stores. `seal` has the last word when writing and the first when reading."""

    def __init__(self, seal: Seal | None = None) -> None:
        self._seal = seal

    def encode(self, value: object) -> bytes:
        """The value as bytes; `TypeError` for one that could not come back."""
        inner = value if _is_plain(value) else _encoded(value)
        data = f'{{"v":{VERSION},"d":{_dumps(inner)}}}'.encode(errors="surrogatepass")
        return data if self._seal is None else self._seal.encode(data)

    def decode(self, data: bytes, known: Mapping[str, type] | None = None) -> Any:
        """The value; instances of classes that are not `known` (see `types_in`) come back as dicts of their fields."""
        opened = data if self._seal is None else self._seal.decode(data)
        try:
            envelope = json.loads(opened.decode(errors="surrogatepass"))
            version = envelope["v"]
            inner = envelope["d"]
        except (ValueError, KeyError, TypeError):
            message = "expected a stored value in its envelope, got: other bytes. Was it written with another codec?"
            raise StoreRefused(message, error_class="data_error") from None
        if version != VERSION:
            message = (
                f"expected a stored value of version {VERSION}, got: {version!r}. It was written by a newer Outlast."
            )
            raise StoreRefused(message, error_class="data_error")
        return inner if b'"$type"' not in opened else _decoded(inner, known or {})


def types_in(*annotations: Any) -> dict[str, type]:
    """The dataclasses, models, named tuples and enums that annotations speak of, and those in their fields, by name."""
    found: dict[str, type] = {}
    waiting = list(annotations)
    while waiting:
        annotation = waiting.pop()
        waiting += typing.get_args(annotation)
        if not isinstance(annotation, type) or not _is_class(annotation) or _name(annotation) in found:
            continue
        found[_name(annotation)] = annotation
        try:
            waiting += typing.get_type_hints(annotation).values()
        except (NameError, TypeError):
            continue  # hints that only a type checker can follow
    return found


# -- to JSON ---------------------------------------------------------------------------------------------------------------


def _is_plain(value: Any) -> bool:
    """Whether JSON brings this back as it is."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is dict:
        return all(type(key) is str and _is_plain(inner) for key, inner in value.items()) and "$type" not in value
    return kind is list and all(map(_is_plain, value))


def _encoded(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [_encoded(inner) for inner in value]
    if kind is dict:
        if all(type(key) is str for key in value) and "$type" not in value:
            return {key: _encoded(inner) for key, inner in value.items()}
        return _marked("dict", [[_encoded(key), _encoded(inner)] for key, inner in value.items()])
    if kind in _TO:
        return _marked(_NAMES[kind], _TO[kind](value))
    return _encoded_object(value)


def _encoded_object(value: Any) -> Any:
    kind: type[Any] = type(value)
    if issubclass(kind, Enum):
        return _marked(_name(kind), _encoded(value.value))
    if dataclasses.is_dataclass(kind):
        return _fields(value, [field.name for field in dataclasses.fields(kind) if field.init])
    if _is_model(kind):
        return _marked(_name(kind), _encoded(value.model_dump(mode="json")))
    if _is_class(kind):
        return _fields(value, value._fields)
    if issubclass(kind, PurePath):
        return _marked("path", str(value))
    if kind.__module__ == "numpy" and hasattr(value, "item") and not value.shape:
        return _encoded(value.item())  # a number of numpy's
    for base in (str, bool, int, float):
        if issubclass(kind, base):
            return base(value)
    if issubclass(kind, Mapping):
        return _encoded(dict(value))
    message = (
        "expected a value made of JSON values, dates, dataclasses, models and their like, "
        f"got: one of type {kind.__qualname__}. Return what can be stored, or do not ask to store it."
    )
    raise TypeError(message)


def _fields(value: Any, names: Iterable[str]) -> dict[str, object]:
    return _marked(_name(type(value)), {name: _encoded(getattr(value, name)) for name in names})


def _marked(name: str, data: object) -> dict[str, object]:
    return {"$type": name, "d": data}


# -- from JSON -------------------------------------------------------------------------------------------------------------


def _decoded(value: Any, known: Mapping[str, type]) -> Any:
    if type(value) is list:
        return [_decoded(inner, known) for inner in value]
    if type(value) is not dict:
        return value
    if "$type" not in value:
        return {key: _decoded(inner, known) for key, inner in value.items()}
    name, data = value["$type"], _decoded(value["d"], known)
    if name in _FROM:
        return _FROM[name](data)
    kind = known.get(name)
    if kind is None:
        return data
    if issubclass(kind, Enum):
        return kind(data)
    return kind.model_validate(data) if _is_model(kind) else kind(**data)  # type: ignore[attr-defined]


def _is_class(kind: type) -> bool:
    named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return dataclasses.is_dataclass(kind) or _is_model(kind) or named or issubclass(kind, Enum)


def _is_model(kind: type) -> bool:
    return hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _list(values: Iterable[Any]) -> list[Any]:
    return [_encoded(value) for value in values]


_NAMES: dict[type, str] = {
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    bytes: "bytes",
    dt.datetime: "datetime",
    dt.date: "date",
    dt.time: "time",
    dt.timedelta: "timedelta",
    Decimal: "decimal",
    uuid.UUID: "uuid",
}
_TO: dict[type, Callable[[Any], Any]] = {
    tuple: _list,
    set: _list,
    frozenset: _list,
    bytes: lambda value: base64.b64encode(value).decode(),
    dt.datetime: lambda value: value.isoformat(),
    dt.date: lambda value: value.isoformat(),
    dt.time: lambda value: value.isoformat(),
    dt.timedelta: lambda value: [value.days, value.seconds, value.microseconds],
    Decimal: str,
    uuid.UUID: str,
}
_FROM: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "bytes": base64.b64decode,
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "timedelta": lambda parts: dt.timedelta(*parts),
    "decimal": Decimal,
    "uuid": uuid.UUID,
    "path": Path,
}
