"""Values of users in every sink: the same value is written the same way, what has no place is refused with a sentence, nothing changes in silence."""

from __future__ import annotations

import array
import csv
import dataclasses
import datetime as dt
import ipaddress
import json
import math
import sqlite3
import uuid
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pydantic
import pytest
from hypothesis import given, settings

import outlast
from outlast.components import open_sink, open_source
from outlast.components.lines import Lines, Rows
from outlast.components.parquet import Parquet
from outlast.components.values import tell


class Color(Enum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


@dataclasses.dataclass
class Point:
    x: int
    at: Color


class Pair(NamedTuple):
    a: int
    b: bytes


class Model(pydantic.BaseModel):
    n: int
    took: dt.timedelta
    url: pydantic.AnyUrl


AT = dt.datetime(2026, 11, 15, 12, 30, 0, 5, tzinfo=dt.UTC)
NAIVE = dt.datetime(2026, 11, 15, 12, 30)  # noqa: DTZ001 - users have such ones
ID = uuid.UUID(int=7)
SAME = object()
LONG = dt.timedelta(days=10**8, microseconds=1)

# What is given, what JSON Lines have, and what Parquet has where that differs. A CSV has the JSON of lists and dicts, and the bare text of the rest.
TABLE = [
    (None, None, SAME),
    (True, True, SAME),
    (7, 7, SAME),
    (0.1, 0.1, SAME),
    ('ü\r\n"x"', 'ü\r\n"x"', SAME),
    (b"\x00\xff", "00ff", b"\x00\xff"),
    (bytearray(b"a"), "61", b"a"),
    ({3, 1, 2}, [1, 2, 3], SAME),
    (frozenset({"b", 1}), [1, "b"], None),
    ((1, 2), [1, 2], SAME),
    (Color.RED, "red", SAME),
    (Size.BIG, 3, SAME),
    ([Color.RED], ["red"], SAME),
    (Point(1, Color.RED), {"x": 1, "at": "red"}, SAME),
    (Pair(1, b"a"), {"a": 1, "b": "61"}, {"a": 1, "b": b"a"}),
    (
        Model(n=1, took=dt.timedelta(seconds=1.5), url="http://a.b/"),
        {"n": 1, "took": 1.5, "url": "http://a.b/"},
        {"n": 1, "took": dt.timedelta(seconds=1.5), "url": "http://a.b/"},
    ),
    (pydantic.RootModel[list[Color]]([Color.RED]), ["red"], SAME),
    (np.arange(3), [0, 1, 2], SAME),
    (np.float32(0.5), 0.5, SAME),
    (np.int64(5), 5, SAME),
    (np.bool_(True), True, SAME),
    (np.str_("x"), "x", SAME),
    (array.array("d", [0.5]), [0.5], SAME),
    (np.array(["2026-11-15T12:30", "NaT"], "datetime64[ns]"), ["2026-11-15T12:30:00", None], [NAIVE, None]),
    (np.datetime64("2026-11-15T12:30", "ns"), "2026-11-15T12:30:00", NAIVE),
    (np.timedelta64(1500, "ms"), 1.5, dt.timedelta(seconds=1.5)),
    (pd.Timestamp(AT), AT.isoformat(), AT),
    (pd.Timedelta("1.5s"), 1.5, dt.timedelta(seconds=1.5)),
    (pd.NaT, None, SAME),
    (pd.NA, None, SAME),
    (np.datetime64("NaT"), None, SAME),
    (AT, AT.isoformat(), AT),
    (AT.date(), "2026-11-15", AT.date()),
    (dt.time(1, 2), "01:02:00", dt.time(1, 2)),
    (dt.timedelta(seconds=2), 2.0, dt.timedelta(seconds=2)),
    (dt.timedelta(days=10**8), 8640000000000.0, dt.timedelta(days=10**8)),
    (LONG, "8640000000000.000001", LONG),
    (-LONG, "-8640000000000.000001", -LONG),
    (np.array([LONG]), ["8640000000000.000001"], [LONG]),
    (2**62 + 1, 2**62 + 1, SAME),
    (Decimal("9007199254740993.000001"), "9007199254740993.000001", Decimal("9007199254740993.000001")),
    (dt.datetime(9999, 12, 31, 23, 59, 59, 999999), "9999-12-31T23:59:59.999999", dt.datetime.max),  # noqa: DTZ001, DTZ901 - without a zone
    (Decimal("1.50"), "1.50", Decimal("1.50")),
    (ID, str(ID), SAME),
    (PurePosixPath("a/b"), "a/b", SAME),
    (ipaddress.ip_address("::1"), "::1", SAME),
    ({1: "a", None: 2, Color.RED: [3]}, {"1": "a", "null": 2, "red": [3]}, SAME),
]


def write(sink, *batches, offset=None):
    """Write batches; the rows that were refused, with the reason."""
    refused = []
    sink.open(offset, run="r", token=1)
    for batch in batches:
        rows = []
        for place, row in enumerate(batch):
            try:
                rows.append(sink.encode(row))
            except outlast.PermanentFailure as error:
                refused.append((place, str(error)))
        end = sink.write(rows, [])
        sink.settle()
    return refused, end


def test_every_value_is_written_alike(tmp_path):
    """D-26: one table for all sinks; a file of JSON Lines is JSON, and a cell of a CSV is what JSON has, without quotes."""
    for place, (value, text, own) in enumerate(TABLE):
        lines, rows = Lines(tmp_path / f"{place}.jsonl"), Rows(tmp_path / f"{place}.csv")
        assert write(lines, [{"v": value}])[0] == [], value
        assert json.loads((tmp_path / f"{place}.jsonl").read_text(), parse_constant=pytest.fail) == {"v": text}
        assert write(rows, [{"v": value, "n": 1}])[0] == [], value
        [item] = list(open_source(tmp_path / f"{place}.csv"))
        if isinstance(text, list | dict):
            assert json.loads(item["v"]) == text
        else:
            assert item["v"] == ("" if text is None else text if isinstance(text, str) else repr(text))
        if own is None and text is not None:  # a set of numbers and texts is nothing for a column
            continue
        table = Parquet(tmp_path / f"{place}.parquet")
        assert write(table, [{"v": value}])[0] == [], value
        table.finish()
        [found] = pq.read_table(tmp_path / f"{place}.parquet").to_pylist()
        assert found == {"v": text if own is SAME else own}


def test_what_has_no_place_is_refused_with_a_sentence(tmp_path):
    """D-26: NaN is no JSON; nanoseconds, zones of times and huge numbers have no place in a Parquet file; names must not become one."""
    nan = float("nan")
    for value, why in [
        (nan, "NaN and Infinity are no JSON"),
        ([1, {"x": math.inf}], "NaN and Infinity are no JSON"),
        (np.array([1.0, nan]), "NaN and Infinity are no JSON"),
        ({1: "a", "1": "b"}, "two of its names would be the same text, '1'"),
        ({(1, 2): 3}, "one of its names is a tuple, which is no text"),
        (object(), "no way to write a value of type object"),
        (1j, "no way to write a value of type complex"),
        (np.longdouble(1), "no way to write a value of type longdouble"),
        ("\ud800", "surrogates not allowed"),
    ]:
        for kind in (Lines, Rows):
            if kind is Rows and value is nan:
                continue
            path = tmp_path / f"{uuid.uuid4()}.{'jsonl' if kind is Lines else 'csv'}"
            [(_, error)], _ = write(kind(path), [{"v": value}])
            assert why in error
    rows = Rows(tmp_path / "nan.csv")
    assert write(rows, [{"v": nan}, {"v": math.inf}, {"v": Decimal("NaN")}])[0] == []
    assert (tmp_path / "nan.csv").read_text() == "v\nnan\ninf\nNaN\n"
    for value, why in [
        (pd.Timestamp("2026-11-15T12:30:00.000000001"), "nanoseconds, for which there is no place"),
        (np.array([1], "datetime64[ns]"), "nanoseconds, for which there is no place"),
        (dt.time(1, tzinfo=dt.UTC), "a time of day with a zone"),
        (Decimal("1e-80"), "more than 76 digits"),
        (dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=1))), "out of range"),
        (["x", 1], "a list has texts, and this would be whole numbers"),
        (np.datetime64("10001-01-01"), "an instant outside of the years 1 to 9999"),
    ]:
        table = Parquet(tmp_path / f"{uuid.uuid4()}.parquet")
        [(_, error)], _ = write(table, [{"v": value}])
        assert why in error
        table.close()


def test_a_table_of_sqlite_takes_no_nan_for_null(app, tmp_path):
    """D-26: the database would keep NULL; the row is a dead letter that says so. Everything else arrives."""
    where = tmp_path / "t.db"
    with sqlite3.connect(where) as database:
        database.execute("create table t (v, n)")
    values = [math.nan, math.inf, {Color.RED: {1}}, pd.NaT, Point(1, Color.RED), np.arange(2), Decimal("0.1"), b"x"]

    @outlast.stage
    async def make(n):
        return {"v": values[n], "n": n}

    pipeline = outlast.Pipeline("p", make, app=app, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0)
    pipeline.run(range(len(values)), sink=outlast.Table(f"sqlite:///{where}", "t"))
    with sqlite3.connect(where) as database:
        found = dict(database.execute("select n, v from t"))
    assert found == {1: math.inf, 2: '{"red":[1]}', 3: None, 4: '{"x":1,"at":"red"}', 5: "[0,1]", 6: "0.1", 7: b"x"}
    [letter] = app.dead_letters.find()
    assert "SQLite keeps NULL in the place of NaN" in letter.error


def test_a_csv_file_has_the_columns_of_its_first_row(tmp_path):
    """Names that are no text are columns; a row that could not be written leaves no header; later rows must have the same columns."""
    path = tmp_path / "o.csv"
    refused, _ = write(Rows(path), [{"a": object()}, {1: "x\ry", None: "b\nc"}, {None: 1, 1: 2}, {"1": 2}])
    assert path.read_bytes() == b'1,null\n"x\ry","b\nc"\n2,1\n'
    assert [(place, error.partition(": ")[2]) for place, error in refused] == [
        (0, "there is no way to write a value of type object"),
        (3, "it has the columns 1, and the file has 1, null"),
    ]
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == [["1", "null"], ["x\ry", "b\nc"], ["2", "1"]]


def test_a_duration_that_no_fraction_holds_is_exact_in_a_table(tmp_path):
    """D-26: SQLite has seconds, and those of centuries with a microsecond as text; pandas' nanoseconds are written, too."""
    with sqlite3.connect(tmp_path / "t.db") as database:
        database.execute("create table t (v)")
    sink = open_sink(outlast.Table(f"sqlite:///{tmp_path}/t.db", "t"))
    assert write(sink, [{"v": LONG}, {"v": dt.timedelta(milliseconds=1)}])[0] == []
    sink.close()
    with sqlite3.connect(tmp_path / "t.db") as database:
        assert database.execute("select v from t").fetchall() == [("8640000000000.000001",), (0.001,)]
    database.close()
    assert tell(pd.Timedelta(days=200, nanoseconds=1)) == "17280000.000000001"


@settings(max_examples=200, deadline=None)
@given(st.timedeltas() | st.timedeltas(dt.timedelta(days=89_990), dt.timedelta(days=99_999)))
def test_a_duration_is_never_another_one(value):
    """D-26: what is written, read as a decimal, is the duration to the microsecond."""
    told = tell(value)
    micros = (value.days * 86_400 + value.seconds) * 10**6 + value.microseconds
    assert Decimal(told if isinstance(told, str) else repr(told)) * 10**6 == micros


@pytest.mark.parametrize("ending", ["csv", "tsv.gz"])
@pytest.mark.parametrize(
    "rows",
    [
        [{"a": "\0"}],
        [{"a": "\0"}, {"a": "\0\0"}, {"a": ""}],
        [{"a": "x\0"}] * 3,
        [{"": "\0"}],
        [{"ab": "\0"}, {"ab": "\r"}],
        [{"a": "", "b": ""}] * 2,
        [{"a": ""}] * 3,
        [{"": ""}],
        [{"a": "\r"}, {"a": "\n"}, {"a": "\r\n"}],
        [{"\ufeffa": "1", "b": "\ufeff"}],
        [{"\ufeff": "\ufeff"}],
    ],
    ids=repr,
)
def test_cells_that_are_hardly_seen_come_back(tmp_path, rows, ending):
    """D-26: zeros, nothing at all, ends of lines, and a byte order mark are cells like others."""
    path = tmp_path / f"o.{ending}"
    sink = Rows(path)
    assert write(sink, rows)[0] == []
    sink.close()
    assert list(open_source(path)) == rows


def test_a_name_of_a_column_with_a_zero_is_refused(tmp_path):
    """The first bytes of a file say how it is encoded: a zero there would say something else."""
    [(_, error)], _ = write(Rows(tmp_path / "o.csv"), [{"\0": 1}])
    assert "a name of a column has a zero in it" in error
    for encoding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        (tmp_path / "wide.csv").write_bytes("a,b\n1,2\n".encode(encoding))
        with pytest.raises(outlast.ConfigurationError, match="got: bytes that are zero, as in UTF-16"):
            list(open_source(tmp_path / "wide.csv"))


# --- round trips ---

TEXTS = st.text(st.characters(blacklist_categories=["Cs"]) | st.sampled_from(list('",\r\n\t;')), max_size=6)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, 2**53, 2**53 + 1, -(2**53) - 1]),
    st.floats(allow_nan=False),
    TEXTS,
    st.binary(max_size=4),
    st.decimals(allow_nan=False, allow_infinity=False, places=3) | st.sampled_from([Decimal("1e25"), Decimal("1e-40")]),
    st.dates(),
    st.datetimes(),
    st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1), timezones=st.just(dt.UTC)),  # noqa: DTZ001 - the zone is beside it
    st.times(),
    st.timedeltas(),
)
NAMES = st.sampled_from(["a", "b", "ü"])
VALUES = st.recursive(
    SCALARS, lambda inside: st.lists(inside, max_size=3) | st.dictionaries(NAMES, inside, max_size=3), max_leaves=4
)
ROWS = st.dictionaries(NAMES, VALUES, min_size=1)


def same(given, found):
    """Whether a row of a file is what was given: nothing is another number; null for what was not there, and for a dict without fields."""
    if isinstance(given, dict):
        if not given:
            return found is None or not any(value is not None for value in found.values())
        if found is None:
            return all(same(value, None) for value in given.values())
        return set(given) <= set(found) and all(same(given.get(name), value) for name, value in found.items())
    if isinstance(given, list):
        return found is not None and len(given) == len(found) and all(map(same, given, found))
    if isinstance(given, bool) or isinstance(found, bool):
        return given is found
    return given == found


@settings(max_examples=120, deadline=None)
@given(st.lists(st.lists(ROWS, max_size=4), min_size=1, max_size=4))
def test_a_parquet_file_has_exactly_what_was_taken(tmp_path_factory, batches):
    """D-26: whatever rows come in whatever batches, with a resume between them, and the file made anew in the middle: it can be made, and is exact."""
    path = tmp_path_factory.getbasetemp() / f"{uuid.uuid4()}.parquet"
    taken, end = [], None
    for number, batch in enumerate(batches):
        sink = Parquet(path)
        sink.open(end, run="r", token=number)
        rows = []
        for row in batch:
            try:
                rows.append(sink.encode(row))
                taken.append(row)
            except outlast.PermanentFailure:
                pass
        end = sink.write(rows, [])
        sink.settle()
        if number % 2 or number == len(batches) - 1:
            sink.finish()
        sink.close()
    found = pq.read_table(path).to_pylist()
    assert len(found) == len(taken)
    assert all(same(tell(row, {type(None), *NATIVE}), there) for row, there in zip(taken, found, strict=True)), (
        taken,
        found,
    )
    path.unlink()


NATIVE = (dt.datetime, dt.date, dt.time, dt.timedelta, bytes, Decimal)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.fixed_dictionaries({"a": VALUES, "b": VALUES}), max_size=6))
def test_lines_and_rows_have_exactly_what_was_taken(tmp_path_factory, rows):
    """D-26: what was taken comes back as it was told, from JSON Lines and from a CSV; nothing else is in the file."""
    folder = Path(tmp_path_factory.getbasetemp())
    for sink in (Lines(folder / f"{uuid.uuid4()}.jsonl"), Rows(folder / f"{uuid.uuid4()}.csv")):
        path = Path(sink.name)
        refused, _ = write(sink, rows)
        sink.close()
        bad = {place for place, _ in refused}
        taken = [tell(row) for place, row in enumerate(rows) if place not in bad]
        found = list(open_source(path))
        if isinstance(sink, Rows):
            taken = [{name: _text(value) for name, value in row.items()} for row in taken]
        assert found == taken
        path.unlink()


def _text(value):
    if isinstance(value, list | dict):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return "" if value is None else value if isinstance(value, str) else repr(value)


def _kept(value):
    """What a table of SQLite has for a value as it was told."""
    if isinstance(value, list | dict):
        return json.dumps(tell(value), separators=(",", ":"), ensure_ascii=False)
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return tell(value)
    return str(value) if isinstance(value, Decimal) else value


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.fixed_dictionaries({"a": VALUES, "b": VALUES}), max_size=5), min_size=1, max_size=3),
    st.booleans(),
)
def test_a_table_has_exactly_what_was_taken(tmp_path_factory, batches, crash):
    """D-26: moved at once, or staged and moved by the next pass: the same values, once each, in their order."""
    path = tmp_path_factory.getbasetemp() / f"{uuid.uuid4()}.db"
    with sqlite3.connect(path) as database:
        database.execute("create table t (a, b)")
    database.close()
    end, taken = None, []
    for number, batch in enumerate(batches):
        sink = open_sink(outlast.Table(f"sqlite:///{path}", "t"))
        sink.open(end, run="r", token=number + 1)
        rows = []
        for row in batch:
            try:
                rows.append(sink.encode(row))
                taken.append(row)
            except outlast.PermanentFailure:
                pass
        end = sink.write(rows, [str(place) for place in range(len(rows))])
        if not crash:
            assert not sink.settle()
        sink.close()
    last = open_sink(outlast.Table(f"sqlite:///{path}", "t"))
    last.open(end, run="r", token=99)
    last.finish()
    last.close()
    assert not last.returned
    with sqlite3.connect(path) as database:
        found = database.execute("select a, b from t order by rowid").fetchall()
    database.close()
    assert found == [(_kept(row["a"]), _kept(row["b"])) for row in taken]
    path.unlink()
