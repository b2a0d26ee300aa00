"""How values become bytes and come back."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from outlast.store import StoreRefused
from outlast.store.codec import Codec, types_in


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
def test_plain_values_are_plain_json_in_an_envelope(value):
    """Anybody can read them."""
    text = codec.encode(value).decode(errors="surrogatepass")
    assert text.startswith('{"v":1,"d":')
    assert codec.decode(codec.encode(value)) == value
    if "$type" not in text:
        assert json.loads(text) == {"v": 1, "d": value}


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("value", [object(), [object()], {1: lambda: None}, iter([]), 1j])
def test_what_could_not_come_back_is_refused(value):
    """By its type, without its contents."""
    with pytest.raises(TypeError, match=r"expected a value made of JSON values.*got: one of type"):
        codec.encode(value)


def test_what_is_like_a_known_value_is_stored_as_that():
    """Other mappings as dicts, subclasses of str and int as their base."""
    text = type("Text", (str,), {})("a")
    assert codec.decode(codec.encode([OrderedDict(a=1), MappingProxyType({"b": 2}), text])) == [{"a": 1}, {"b": 2}, "a"]


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[]", b"1", b"{}", b'{"v":1}', b"gAAAA-sealed"])
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
