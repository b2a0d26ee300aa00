"""How values become bytes and come back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, OrderedDict, deque
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr

from outlast.report.views import Shell
from outlast.store import StoreRefused
from outlast.store.codec import Codec, Lost, _Writer, types_in
from tables import table


class Colour(Enum):
    RED = ("r", 1)


class Level(IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    where: Colour


class Model(BaseModel):
    at: datetime
    inner: list[dict[str, int]] = []


@dataclass
class Leaf:
    value: Decimal


@dataclass(frozen=True, slots=True)
class Review:
    text: str
    leaves: list[Leaf] | None
    points: dict[tuple[int, int], Point]
    length: int = field(init=False, default=0)

    def __post_init__(self):
        object.__setattr__(self, "length", len(self.text))


codec = Codec()
known = types_in(Review, Model, Level)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
values = st.recursive(
    json_values
    | st.binary()
    | st.datetimes(timezones=st.just(UTC)).map(lambda instant: instant.replace(fold=0))
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.timedeltas(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers() | st.just("$type"), inner),
    max_leaves=8,
)


@given(values)
def test_every_value_comes_back_as_it_was(value):
    """Tuples as tuples, integer keys as integers, a key that looks like our own mark as itself."""
    back = codec.decode(codec.encode(value))
    assert back == value
    assert repr(back) == repr(value)


@given(json_values)
def test_the_short_way_stores_the_same_bytes(value):
    """What JSON holds as it is needs no look at its classes: with or without that look the bytes are the standard library's."""
    said = json.dumps({"v": 1, "d": value}, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    looked_at = codec._sealed(_Writer(whole=True).of(value))
    assert codec.plain(value) == (said if looked_at == said else None)  # None: with a key that is our own mark
    assert codec.keep(value).data == looked_at


@given(json_values)
def test_plain_values_are_plain_json_in_an_envelope(value):
    """Anybody can read them."""
    text = codec.encode(value).decode(errors="surrogatepass")
    assert text.startswith('{"v":1,"d":')
    assert codec.decode(codec.encode(value)) == value
    if "$type" not in text:
        assert json.loads(text) == {"v": 1, "d": value}


@table(
    "value",
    [
        Review("ü \ud800", [Leaf(Decimal("1.10"))], {(1, 2): Point(3, Colour.RED)}),
        Review("", None, {}),
        Model(at=datetime(2026, 11, 15, tzinfo=UTC), inner=[{"a": 1}]),
        [Level.LOW, Colour.RED],
        {"set": {1, 2}, "frozen": frozenset({"a"}), "path": Path("a/b"), "uuid": UUID(int=5)},
        [
            date(2026, 11, 15),
            time(12, 30, tzinfo=UTC),
            timedelta(days=-1, microseconds=3),
            datetime(2026, 11, 15, 1, 2, 3, 4, tzinfo=UTC).replace(tzinfo=None),
        ],
        {"$type": "datetime", "d": "not one"},
        float("inf"),
    ],
)
def test_objects_come_back_when_the_reader_knows_their_classes(value):
    """Dataclasses, models, named tuples and enums, nested in each other."""
    back = codec.decode(codec.encode(value), known)
    assert back == value
    assert type(back) is type(value)


def test_a_class_that_the_reader_does_not_name_is_never_made():
    """Stored bytes choose nothing that is run: they come back as the fields alone."""
    data = codec.encode(Review("text", [Leaf(Decimal(1))], {}))
    assert codec.decode(data) == {"text": "text", "leaves": [{"value": Decimal(1)}], "points": {}}
    assert codec.decode(data, types_in(Leaf))["leaves"] == [Leaf(Decimal(1))]
    planted = b'{"v":1,"d":{"$type":"os:system","d":{"command":"true"}}}'
    assert codec.decode(planted, known) == {"command": "true"}


def test_the_classes_of_annotations_are_found_through_their_fields():
    """Unions, containers and nested classes."""
    found = {name.rpartition(":")[2] for name in types_in(dict[str, Review | None], list[Level])}
    assert found == {"Review", "Leaf", "Point", "Colour", "Level"}
    assert types_in(int, "Review", None, list) == {}


@table(
    "value",
    [
        object(),
        [object()],
        {1: lambda: None},
        iter([]),
        np.array([1, None], dtype=object),
        np.ma.array([1]),
        pd.DataFrame({"a": [1]}),
        np.array([(1, None)], dtype=[("a", "i4"), ("b", object)])[0],
    ],
)
def test_what_could_not_come_back_is_refused(value):
    """By its type, without its contents."""
    with pytest.raises(TypeError, match=r"expected a value made of JSON values.*got: one of type"):
        codec.encode(value)


def test_what_is_like_a_known_value_is_stored_as_that():
    """Other mappings as dicts, subclasses of str and int as their base: for people, and not for code that goes on with it."""
    text = type("Text", (str,), {})("a")
    kept = codec.keep([MappingProxyType({"b": 2}), text])
    assert codec.decode(kept.data) == codec.decode(codec.encode([{"b": 2}, "a"])) == [{"b": 2}, "a"]
    assert kept.lacks(known) == ["Text", "mappingproxy"]
    with pytest.raises(Lost, match="no annotation of a stage names mappingproxy"):
        codec.bring_back(kept.data, known)


BERLIN = ZoneInfo("Europe/Berlin")


def test_a_time_in_a_zone_that_is_not_known_here_is_not_brought_back_as_another():
    """C-22: at another offset it may be another moment; for people the offset that was written is good enough."""
    codec, instant = Codec(), datetime(2026, 7, 1, 12, tzinfo=BERLIN)
    data = codec.keep(instant).data.replace(b"Europe/Berlin", b"Europe/Atlantis")
    with pytest.raises(Lost, match="the time zone 'Europe/Atlantis' is not known here"):
        codec.bring_back(data, {})
    assert codec.decode(data) == instant


def test_values_that_carry_their_type_need_no_annotation():
    """Those of the standard library, arrays and scalars of numpy, timestamps of pandas: type, zone, unit and order included."""
    for value in (
        datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
        datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN),  # an hour that there is not
        datetime(2026, 1, 1, fold=1),  # noqa: DTZ001 - without a zone
        time(2, 30, tzinfo=BERLIN),
        timedelta(-1, 2, 3),
        Decimal("1.10"),
        UUID(int=5),
        Path("a/b"),
        PurePosixPath("a"),
        PureWindowsPath("a\\b"),
        b"a",
        bytearray(b"a"),
        1 + 2j,
        range(1, 9, 2),
        OrderedDict(b=1, a=2),
        Counter("abca"),
        deque([1, (2,)], 3),
        float("nan"),
        np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array([], dtype="U3"),
        np.array(5),
        np.float32(1.1),
        np.float64("nan"),
        np.uint64(2**64 - 1),
        np.bool_(True),
        np.complex64(1 + 2j),
        np.longdouble("1.1"),
        np.str_("ü"),
        np.str_(""),
        np.bytes_(b"x"),
        np.datetime64("2026-01-01T00:00:00.123456789"),
        np.datetime64("NaT"),
        np.timedelta64(3, "D"),
        pd.Timestamp("2026-10-25 01:30:00.123456789", tz="UTC").tz_convert("Europe/Berlin"),
        pd.Timestamp("2026-11-15"),
        pd.Timedelta("3 days 4 ns"),
        pd.NaT,
        pd.NA,
    ):
        for wrapped in (value, {"in": [value]}):
            kept = codec.keep(wrapped)
            back = codec.bring_back(kept.data, {})
            assert (kept.lacks({}), type(back), repr(back)) == ([], type(wrapped), repr(wrapped))
        assert codec.decode(codec.encode([value])) is not None
        hashable = value.__hash__ is not None
        keyed = {value: (value,), "in": frozenset([value])} if hashable else {"in": [value]}
        json.dumps(Shell().decode(codec.encode([value, keyed])), default=str)  # for a shell, which has neither of them


def test_a_value_of_a_library_that_is_missing_is_a_clear_error(monkeypatch):
    """Reading it says what to install; a shell shows what it can."""
    array, number = codec.encode(np.ones(3)), codec.encode(np.int64(3))
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(StoreRefused, match=r"expected numpy to be installed, .* pip install numpy"):
        codec.bring_back(array, {})
    assert Shell().decode(array) == "<a value of numpy, which is not installed here>"
    assert Shell().decode(number) == 3


def test_numpy_and_pandas_are_loaded_for_their_own_values_only():
    """Storing and reading anything else costs nobody their start-up time."""
    code = (
        "import sys; from outlast.store.codec import Codec; c = Codec(); "
        "assert c.decode(c.encode({1: (2.5,)})) == {1: (2.5,)}; "
        "assert not {'numpy', 'pandas', 'pydantic', 'zoneinfo'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Aliased(BaseModel):
    name: str = Field("nobody", alias="Name")


class Masked(BaseModel):
    key: SecretStr


class Base(BaseModel):
    x: float


class Derived(Base):
    y: int


@dataclass
class Needy:
    given: InitVar[int]
    made: int = 0

    def __post_init__(self, given):
        self.made = given


@dataclass
class Doubling:
    price: int

    def __post_init__(self):
        self.price *= 2


def test_an_object_comes_back_as_it_was_or_not_at_all():
    """Aliases, derived classes, fields that the class changes at the beginning; a masked secret and a missing argument are no object."""
    doubled = Doubling(2)
    doubled.price = 7
    names = types_in(Aliased, Masked, Base, Needy, Doubling)
    for value in (Aliased(Name="ann"), Derived(x=float("nan"), y=1), Base(x=1.5), doubled):
        kept = codec.keep(value)
        assert kept.lacks(names) == []
        assert repr(codec.bring_back(kept.data, names)) == repr(value)
    secret = codec.keep([Masked(key=SecretStr("k"))])
    assert secret.lacks(names) == ["Masked"]
    for data, why in ((secret.data, "does not hold all of it"), (codec.encode(Needy(1)), r"\(TypeError\)")):
        with pytest.raises(Lost, match=why):
            codec.bring_back(data, names)
        assert isinstance(codec.decode(data, names), list | dict)  # people see its fields all the same
    for value in (Masked(key=SecretStr("k")), Masked(key=SecretStr("other"))):  # as an output too: no key that is none
        assert codec.decode(codec.encode(value), names) == {"key": "**********"}
    assert codec.decode(codec.encode(Aliased(Name="ann")), names) == Aliased(Name="ann")


def test_a_file_that_is_run_has_the_classes_that_it_has_when_it_is_imported():
    """Its module has another name then, and the class is the same."""
    data = codec.encode(Leaf(Decimal(1))).replace(__name__.encode(), b"__main__")
    assert codec.bring_back(data, types_in(Leaf)) == Leaf(Decimal(1))


@table("data", [b"", b"\xff\xfe", b"[]", b"1", b"{}", b'{"v":1}', b"gAAAA-sealed"])
def test_bytes_that_are_no_envelope_are_refused(data):
    """Such as those of another codec."""
    with pytest.raises(StoreRefused, match=r"expected a stored value in its envelope"):
        codec.decode(data)


def test_an_envelope_of_a_newer_version_is_refused():
    """It would be read wrong."""
    with pytest.raises(StoreRefused, match=r"of version 1, got: 2. It was written by a newer Outlast"):
        codec.decode(b'{"v":2,"d":1}')


def test_a_seal_has_the_last_word():
    """What is stored is what it made, and it is asked first when reading."""

    class Backwards:
        def encode(self, data):
            return data[::-1]

        def decode(self, data):
            return data[::-1]

    sealed = Codec(Backwards())
    assert sealed.encode({"a": (1,)}) == codec.encode({"a": (1,)})[::-1]
    assert sealed.decode(sealed.encode({"a": (1,)})) == {"a": (1,)}
    with pytest.raises(StoreRefused):
        codec.decode(sealed.encode(1))
