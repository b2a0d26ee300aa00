"""
How values become bytes and come back: JSON in an envelope that carries its version, never pickle.

Plain JSON changes values: a tuple comes back as a list, the key 1 as "1", and a datetime cannot be written. Values that
JSON does not have are marked with ``$type``. A class is stored by name, and an object of it is made again only if the
reader names that class: stored data never chooses which code runs.

There are two ways to read. `decode` is for people and other programs: an object of a class that the reader does not
name becomes a dict of its fields. `bring_back` is for code that goes on with the value: it returns an equal value or
raises `Lost`.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import inspect
import io
import json
import sys
import typing
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from outlast.store.faults import StoreRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

VERSION = 1
_PLAIN = frozenset({str, int, float, bool, type(None)})
# Whether the JSON of a model makes it again, as far as one was tried.
_models: WeakKeyDictionary[type, bool] = WeakKeyDictionary()
_HEAD = f'{{"v":{VERSION},"d":'  # what every stored value begins with
_scan = json.JSONDecoder().raw_decode  # for text without white space around it: a third of the time of `json.loads`


def _make_dumps() -> Callable[[object], str]:
    """The standard library's encoder, made once: `JSONEncoder.encode` makes another one for every value."""
    whole = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
    parts: Any = json.encoder
    if parts.c_make_encoder is None:
        return whole.encode
    text = parts.encode_basestring
    encode = parts.c_make_encoder(None, whole.default, text, None, ":", ",", False, False, True)  # noqa: FBT003 - it takes no names
    return lambda value: "".join(encode(value, 0))


_dumps = _make_dumps()


class Seal(Protocol):
    """What may be done to the bytes before they are stored, such as encrypting them, and after they are read."""

    def encode(self, data: bytes, /) -> bytes: ...
    def decode(self, data: bytes, /) -> bytes: ...


class Unstorable(TypeError):
    """A value cannot be stored, because of one of this `kind` in it."""

    def __init__(self, kind: type, more: str = "") -> None:
        self.kind = kind.__qualname__
        super().__init__(
            "expected a value made of JSON values, dates, dataclasses, models and their like, "
            f"got: one of type {self.kind}{more}. Return what can be stored, or do not ask to store it."
        )


class Lost(TypeError):
    """A stored value cannot come back as it was. The message says why, in words that follow "because"."""


class Kept(NamedTuple):
    """
    A value as bytes. `classes` are the classes that the bytes name, `parts` those of them whose objects cannot be made
    again in full.
    """

    data: bytes
    classes: tuple[type, ...] = ()
    parts: tuple[type, ...] = ()

    def lacks(self, known: Mapping[str, type]) -> list[str]:
        """The classes for which it would not come back where these are known, for people."""
        lost = [kind for kind in self.classes if _known(_name(kind), known) is not kind]
        return sorted({_title(_name(kind)) for kind in (*lost, *self.parts)})


class Codec:
    """Encodes what an app stores. `seal` is applied last when writing and first when reading."""

    _plainly = False  # for people: collections as lists and dicts, values of numpy and pandas as Python's own

    def __init__(self, seal: Seal | None = None) -> None:
        self._seal = seal

    def encode(self, value: object) -> bytes:
        """The value as bytes; `Unstorable` for one that cannot be stored."""
        return self._sealed(value if _is_plain(value) else _Writer().of(value))

    def plain(self, value: object) -> bytes | None:
        """The value as bytes, if JSON brings it back as it is; None for others."""
        if not _is_plain(value):
            return None
        data = f"{_HEAD}{_dumps(value)}}}".encode(errors="surrogatepass")  # as `_sealed`, for values by the million
        return data if self._seal is None else self._seal.encode(data)

    def keep(self, value: object) -> Kept:
        """
        The value as bytes for `bring_back`, with what that depends on; `Unstorable` for one that cannot be stored.
        """
        if (plain := self.plain(value)) is not None:
            return Kept(plain)
        writer = _Writer(whole=True)
        data = self._sealed(writer.of(value))
        return Kept(data, tuple(writer.classes), tuple(writer.parts))

    def seal(self, data: bytes) -> bytes:
        """Bytes that are in a form of their own, such as Parquet, as they are stored."""
        return data if self._seal is None else self._seal.encode(data)

    def unseal(self, data: bytes) -> bytes:
        """What `seal` was given."""
        return data if self._seal is None else self._seal.decode(data)

    def decode(self, data: bytes, known: Mapping[str, type] | None = None) -> Any:
        """The value; instances of classes that are not `known` (see `types_in`) come back as dicts of their fields."""
        inner, marked = self._opened(data)
        return _Reader(known or {}, plainly=self._plainly).of(inner) if marked else inner

    def bring_back(self, data: bytes, known: Mapping[str, type]) -> Any:
        """The value as it was; `Lost` if that cannot be had."""
        try:
            inner, marked = self._opened(data)
            return _Reader(known, strict=True).of(inner) if marked else inner
        except RecursionError:
            raise Lost("it is nested too deeply to be read") from None

    def plainly(self, data: bytes) -> Any:
        """The value, if it comes back as it was without any code but that of JSON; None for others, and for what cannot be read."""
        if self._seal is not None:
            return None
        try:
            inner, marked = self._opened(data)
        except (StoreRefused, RecursionError):
            return None
        return None if marked else inner

    def _sealed(self, inner: object) -> bytes:
        data = f"{_HEAD}{_dumps(inner)}}}".encode(errors="surrogatepass")
        return data if self._seal is None else self._seal.encode(data)

    def _opened(self, data: bytes) -> tuple[Any, bool]:
        opened = data if self._seal is None else self._seal.decode(data)
        try:
            text = opened.decode(errors="surrogatepass")
            envelope, end = _scan(text)
            if end != len(text):
                envelope = json.loads(text)
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
        return inner, b'"$type"' in opened


# -- what annotations name ---------------------------------------------------------------------------------------------------


def types_in(*annotations: Any) -> dict[str, type]:
    """The dataclasses, models, named tuples and enums that annotations speak of, and those in their fields, by name."""
    found: dict[str, type] = {}
    waiting = list(annotations)
    while waiting:
        annotation = waiting.pop()
        waiting += typing.get_args(annotation)
        # A new type, the bound of a type variable, and what ``type X = ...`` stands for.
        others = (getattr(annotation, name, None) for name in ("__supertype__", "__bound__", "__value__"))
        waiting += [] if isinstance(annotation, type) else [other for other in others if other is not None]
        if not isinstance(annotation, type) or not _is_class(annotation) or _name(annotation) in found:
            continue
        found[_name(annotation)] = annotation
        for base in annotation.__mro__:
            waiting += hints_of(base, vars(sys.modules.get(base.__module__, object)))
    return found


def hints_of(owner: Any, names: Mapping[str, Any], local: Mapping[str, Any] | None = None) -> Iterator[Any]:
    """What the annotations of a function or a class mean, without those that only a type checker can follow."""
    try:
        written = inspect.get_annotations(owner)
    except Exception:  # noqa: BLE001 - not an owner of annotations, or one whose annotations are worked out when they are asked for
        return
    for each in written.values():
        try:
            one: Any = SimpleNamespace(__annotations__={"it": each})
            yield typing.get_type_hints(one, dict(names), dict(local or {}))["it"]
        except Exception:  # noqa: BLE001, S112 - an annotation may be any expression
            continue


def _known(name: str, known: Mapping[str, type]) -> type | None:
    """The class of this name among the known ones and those that are derived from them."""
    kind = known.get(name)
    if kind is not None:
        return kind
    module, _, path = name.partition(":")
    # A file that is run is a module of another name than the same file when it is imported.
    same = [each for each in known.values() if each.__qualname__ == path and "__main__" in {module, each.__module__}]
    if len(same) == 1:
        return same[0]
    waiting = [each for each in known.values() if not each.__module__.startswith("pydantic")]
    seen: set[type] = set()
    while waiting:
        subclasses: list[type] = type.__subclasses__(waiting.pop())
        for derived in subclasses:
            if derived not in seen:
                if _name(derived) == name and _is_class(derived):
                    return derived
                seen.add(derived)
                waiting.append(derived)
    return None


# -- to JSON ---------------------------------------------------------------------------------------------------------------


def _is_plain(value: Any) -> bool:
    """Whether JSON brings this back as it is."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is dict:
        for key, inner in value.items():
            if type(key) is not str or (type(inner) not in _PLAIN and not _is_plain(inner)):
                return False
        return "$type" not in value
    return kind is list and all(map(_is_plain, value))


class _Writer:
    """
    Turns values into what JSON can hold. With `whole`, it tests for each model whether its JSON makes the same model
    again.
    """

    __slots__ = ("_whole", "classes", "parts")

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
        self.classes: dict[type, None] = {}
        self.parts: dict[type, None] = {}

    def of(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list:
            return [self.of(inner) for inner in value]
        if kind is dict:
            if all(type(key) is str for key in value) and "$type" not in value:
                return {key: self.of(inner) for key, inner in value.items()}
            return _marked("dict", self._pairs(value))
        if kind in _LISTS:
            return _marked(_LISTS[kind], [self.of(inner) for inner in value])
        if kind in _TEXTS:
            return _marked(_TEXTS[kind], str(value))
        if kind in _TO:
            return _TO[kind](value)
        if kind in _PAIRS:
            return _marked(_PAIRS[kind], self._pairs(value))
        if kind is deque:
            return _marked("deque", [[self.of(inner) for inner in value], value.maxlen])
        return self._object(value, kind)

    def _pairs(self, value: Mapping[Any, Any]) -> list[list[Any]]:
        return [[self.of(key), self.of(inner)] for key, inner in value.items()]

    def _object(self, value: Any, kind: type[Any]) -> Any:
        if issubclass(kind, Enum):
            return self._named(kind, self.of(value.value))
        if dataclasses.is_dataclass(kind):
            fields = dataclasses.fields(kind)
            given = {field.name: self.of(getattr(value, field.name)) for field in fields if field.init}
            made = {field.name: self.of(getattr(value, field.name)) for field in fields if not field.init}
            return self._named(kind, given) | ({"made": made} if made else {})
        if _is_model(kind):
            return self._model(value, kind)
        if _is_class(kind):
            return self._named(kind, {name: self.of(getattr(value, name)) for name in kind._fields})
        foreign = _foreign(value, kind)
        if foreign is not None:
            return foreign
        for base in (str, int, float):
            if issubclass(kind, base):
                return self._named(kind, base(value))
        if issubclass(kind, Mapping):
            return self._named(kind, self.of(dict(value)))
        raise Unstorable(kind)

    def _named(self, kind: type, data: object) -> dict[str, object]:
        self.classes[kind] = None
        return _marked(_name(kind), data)

    def _model(self, value: Any, kind: type[Any]) -> Any:
        fields: Any = getattr(kind, "model_fields", {})
        aliased = any(field.alias or field.validation_alias for field in fields.values())
        data = value.model_dump(mode="json", by_alias=aliased, round_trip=self._whole)
        # Outputs come by the million: there one of them speaks for its class.
        same = None if self._whole else _models.get(kind)
        if same is None:
            try:
                same = _models[kind] = _same(kind.model_validate(data), value)
            except ValueError:
                same = _models[kind] = False
        marked = self._named(kind, self.of(data))
        if not same:  # a secret is masked, a field is left out, a validator refuses what another has made
            self.parts[kind] = None
            marked["part"] = True
        return marked


def texts_in(value: object) -> Iterator[str]:
    """
    Every text that `Codec.keep` would store of this value, readable: names, numbers, and what is in bytes and arrays too.
    Raises what `keep` raises.
    """
    waiting: list[Any] = [_Writer(whole=True).of(value)]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            name = one.get("$type")
            if name in _IN_BASE64:
                waiting.append(base64.b64decode(one["d"]).decode(errors="surrogateescape"))
            if name in _FOREIGN:
                waiting.append(_Writer().of(_foreign_back(name, one["d"], plainly=True)))
            elif name == "windows_path":
                waiting.append(one["d"].replace("\\", "/"))
            waiting += (*one, *one.values())
        elif isinstance(one, list):
            waiting += one
        else:
            yield str(one)


def _marked(name: str, data: object, **more: object) -> dict[str, object]:
    return {"$type": name, "d": data, **more}


def _same(one: Any, other: Any) -> bool:
    """Whether two values of models are the same; NaN is, and the order of extra fields does not matter."""
    if type(one) is not type(other):
        return False
    if _is_model(type(one)):
        extra = [getattr(each, "__pydantic_extra__", None) for each in (one, other)]
        return _same(one.__dict__, other.__dict__) and _same(*extra)
    if type(one) is dict:
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if type(one) in {list, tuple}:
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or (type(one) is float and one != one and other != other)  # noqa: PLR0124 - NaN


def _moment(name: str) -> Callable[[Any], dict[str, object]]:
    """Dates with a time, and times: the name of a zone is more than its offset, and an hour may come twice."""

    def marked(value: Any) -> dict[str, object]:
        zones, more = sys.modules.get("zoneinfo"), dict[str, object]()
        if zones is not None and isinstance(value.tzinfo, zones.ZoneInfo) and value.tzinfo.key is not None:
            more["zone"] = value.tzinfo.key
        elif name == "time" and value.tzinfo is not None and value.utcoffset() is None:
            raise Unstorable(type(value.tzinfo))
        if value.fold:
            more["fold"] = value.fold
        return _marked(name, value.isoformat(), **more)

    return marked


_LISTS: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_PAIRS: dict[type, str] = {OrderedDict: "ordered_dict", Counter: "counter"}
_TEXTS: dict[type, str] = {
    Decimal: "decimal",
    uuid.UUID: "uuid",
    type(Path()): "path",
    PurePosixPath: "posix_path",
    PureWindowsPath: "windows_path",
}
_IN_BASE64 = frozenset({"bytes", "bytearray", "ndarray"})
_TO: dict[type, Callable[[Any], dict[str, object]]] = {
    bytes: lambda value: _marked("bytes", _text(value)),
    bytearray: lambda value: _marked("bytearray", _text(value)),
    complex: lambda value: _marked("complex", [value.real, value.imag]),
    range: lambda value: _marked("range", [value.start, value.stop, value.step]),
    dt.datetime: _moment("datetime"),
    dt.date: lambda value: _marked("date", value.isoformat()),
    dt.time: _moment("time"),
    dt.timedelta: lambda value: _marked("timedelta", [value.days, value.seconds, value.microseconds]),
}


# -- from JSON -------------------------------------------------------------------------------------------------------------


class _Reader:
    """
    Turns parsed JSON into values. `strict`: each as it was, or `Lost`. `plainly`: for people, with values that JSON can
    hold again.
    """

    __slots__ = ("_known", "_plainly", "_strict")

    def __init__(self, known: Mapping[str, type], *, strict: bool = False, plainly: bool = False) -> None:
        self._known, self._strict, self._plainly = known, strict, plainly

    def of(self, value: Any) -> Any:
        if type(value) is list:
            return [self.of(inner) for inner in value]
        if type(value) is not dict:
            return value
        if "$type" not in value:
            return {key: self.of(inner) for key, inner in value.items()}
        name, data = value["$type"], self.of(value["d"])
        if self._plainly and name in _PLAINLY:
            return _PLAINLY[name](data)
        if name in _MOMENTS:
            return self._moment(_MOMENTS[name].fromisoformat(data), value.get("zone"), value.get("fold", 0))
        if name in _FROM:
            return _FROM[name](data)
        if name in _FOREIGN:
            return _foreign_back(name, data, plainly=self._plainly)
        kind = _known(name, self._known)
        if value.get("part"):
            if not self._strict:
                return data
            raise Lost(f"the JSON of {_title(name)} does not hold all of it")
        if kind is None:
            if self._strict:
                raise Lost(f"no annotation of a stage names {_title(name)}")
            return data
        try:
            return _made(kind, data, self.of(value.get("made") or {}))
        except Exception as error:
            if not self._strict:
                return data
            raise Lost(f"{_title(name)} could not be made again from its fields ({type(error).__name__})") from error

    def _moment(self, value: Any, zone: str | None, fold: int) -> Any:
        if zone is not None:
            from zoneinfo import ZoneInfo

            try:
                value = value.replace(tzinfo=ZoneInfo(zone))
            except (KeyError, ValueError, OSError):
                if self._strict:
                    raise Lost(f"the time zone {zone!r} is not known here") from None
        return value.replace(fold=fold) if fold else value


def _made(kind: type[Any], data: Any, further: dict[str, Any]) -> Any:
    if issubclass(kind, Enum):
        return kind(data)
    if dataclasses.is_dataclass(kind):
        value = kind(**data)
        # What the class makes of its fields at the beginning it has made already: they are as they were at the end.
        for name, inner in (data | further).items():
            object.__setattr__(value, name, inner)
        return value
    return kind.model_validate(data) if _is_model(kind) else kind._make(data.values())


def _is_class(kind: type) -> bool:
    named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return dataclasses.is_dataclass(kind) or _is_model(kind) or named or issubclass(kind, Enum)


def _is_model(kind: type) -> bool:
    return hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _title(name: str) -> str:
    return name.partition(":")[2].rpartition("<locals>.")[2]


def _text(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()


_MOMENTS: dict[str, Any] = {"datetime": dt.datetime, "time": dt.time}
_FROM: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "ordered_dict": OrderedDict,
    "counter": lambda pairs: Counter(dict(pairs)),
    "deque": lambda parts: deque(*parts),
    "bytes": base64.b64decode,
    "bytearray": lambda text: bytearray(base64.b64decode(text)),
    "complex": lambda parts: complex(*parts),
    "range": lambda parts: range(*parts),
    "date": dt.date.fromisoformat,
    "timedelta": lambda parts: dt.timedelta(*parts),
    "decimal": Decimal,
    "uuid": uuid.UUID,
    "path": Path,
    "posix_path": PurePosixPath,
    "windows_path": PureWindowsPath,
}


def _by_text(pairs: Iterable[Any]) -> dict[Any, Any]:
    """Only these may be names in JSON; others are named as they look."""
    return {key if key is None or isinstance(key, str | int | float) else str(key): value for key, value in pairs}


_PLAINLY: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("tuple", "set", "frozenset"), list),
    **dict.fromkeys(("dict", "ordered_dict", "counter"), _by_text),
    "deque": lambda parts: parts[0],
}


# -- numpy and pandas: never loaded here unless a stored value is one of theirs ------------------------------------------------


_FOREIGN = {
    "ndarray": "numpy",
    "numpy": "numpy",
    "timestamp": "pandas",
    "pandas_timedelta": "pandas",
    "nat": "pandas",
    "na": "pandas",
}
_NUMBERS = frozenset("biuf")


def _foreign(value: Any, kind: type) -> dict[str, object] | None:
    """
    A value of numpy's or pandas'; None for anything else. Arrays of objects would need pickle: they cannot be stored.
    """
    np, pd = sys.modules.get("numpy"), sys.modules.get("pandas")
    if np is not None and hasattr(np, "ndarray"):
        if kind is np.ndarray:
            file = io.BytesIO()
            try:
                np.save(file, value, allow_pickle=False)
            except ValueError:
                raise Unstorable(kind, ", which holds objects") from None
            return _marked("ndarray", _text(file.getvalue()))
        if isinstance(value, np.generic) and value.dtype.fields is None and not value.dtype.hasobject:
            code = value.dtype.str
            if value.dtype.kind in _NUMBERS and value.dtype.itemsize <= 8:
                return _marked("numpy", [code, value.item()])
            return _marked("numpy", [code, {"bytes": _text(value.tobytes())}])
    if pd is not None and hasattr(pd, "Timestamp"):
        if kind is pd.Timestamp:
            zone = getattr(value.tzinfo, "key", None) or getattr(value.tzinfo, "zone", None)
            return _marked("timestamp", [value.isoformat(), zone, value.unit])
        if kind is pd.Timedelta:
            return _marked("pandas_timedelta", [value.value, value.unit])
        if value is pd.NaT or value is pd.NA:
            return _marked("nat" if value is pd.NaT else "na", None)
    return None


def _foreign_back(name: str, data: Any, *, plainly: bool) -> Any:
    library = _FOREIGN[name]
    if plainly and name in {"nat", "na"}:
        return None
    if plainly and name == "timestamp":
        return data[0]
    if plainly and name == "numpy" and not isinstance(data[1], dict):
        return data[1]
    try:
        module: Any = __import__(library)
    except ImportError:
        if plainly:
            return f"<a value of {library}, which is not installed here>"
        message = (
            f"expected {library} to be installed, because the stored value is one of its own: pip install {library}."
        )
        raise StoreRefused(message, error_class="missing_dependency") from None
    value = _LIBRARY[name](module, data)
    if not plainly:
        return value
    return value.tolist() if library == "numpy" else str(value)


def _number(np: Any, data: Any) -> Any:
    code, value = data
    dtype = np.dtype(code)
    if not isinstance(value, dict):
        return dtype.type(value)
    raw = base64.b64decode(value["bytes"])
    return np.frombuffer(raw, dtype)[0] if dtype.itemsize else dtype.type()


_LIBRARY: dict[str, Callable[[Any, Any], Any]] = {
    "ndarray": lambda np, data: np.load(io.BytesIO(base64.b64decode(data)), allow_pickle=False),
    "numpy": _number,
    "timestamp": lambda pd, data: _timestamp(pd, *data),
    "pandas_timedelta": lambda pd, data: pd.Timedelta(data[0], unit="ns").as_unit(data[1]),
    "nat": lambda pd, _: pd.NaT,
    "na": lambda pd, _: pd.NA,
}


def _timestamp(pd: Any, text: str, zone: str | None, unit: str) -> Any:
    value = pd.Timestamp(text)
    return (value if zone is None else value.tz_convert(zone)).as_unit(unit)
