"""`sql.transform`: rows into DuckDB and out again, exactly or not at all, and queries that reach for more."""

from __future__ import annotations

import datetime as dt
import enum
import gc
import threading
from decimal import Decimal
from time import monotonic
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outlast
from components.steps.calling import a_context, failure_of, outputs_of
from outlast.components.running import StepContext
from outlast.components.steps.doing import sql
from outlast.components.steps.sql import checked
from outlast.store.codec import Codec
from outlast.verdicts import classify
from stores import prepared
from tables import table

DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NAIVE = DAY.replace(tzinfo=None)
MOVIES = [
    {"id": 1, "title": "Arrival", "genre": "drama", "price": Decimal("9.50")},
    {"id": 2, "title": "Alien", "genre": "horror", "price": Decimal("7.25")},
    {"id": 3, "title": "Room", "genre": "drama", "price": Decimal("3.00")},
]


def rows_of(query, rows=MOVIES, **config):
    return outputs_of("sql.transform", {"tables": {"movies": rows}, "query": query, **config}, a_context())["rows"]


def refusal_of(query, rows=MOVIES, **config):
    return failure_of("sql.transform", {"tables": {"movies": rows}, "query": query, **config}, a_context())[:2]


@pytest.fixture
def at_most(monkeypatch):
    return lambda seconds: monkeypatch.setattr(StepContext, "remaining", lambda _: seconds)


# -- what it is for ------------------------------------------------------------------------------------------------------


def test_rows_of_several_steps_are_joined_and_values_are_bound():
    """The tables are those of earlier steps, and what a value says is never part of the query."""
    tables = {"movies": MOVIES, "sales": [{"movie": 1, "sold": 3}, {"movie": 3, "sold": 5}, {"movie": 1, "sold": 4}]}
    query = """
        select m.title, sum(s.sold)::bigint as sold, sum(s.sold * m.price) as income
        from movies m join sales s on s.movie = m.id
        where m.genre = $genre and m.id = any($ids) and $title <> m.title
        group by all order by title
    """
    params = {"genre": "drama", "ids": [1, 2, 3], "title": "x'; drop table movies; --"}
    assert outputs_of("sql.transform", {"tables": tables, "query": query, "params": params}, a_context()) == {
        "rows": [
            {"title": "Arrival", "sold": 7, "income": Decimal("66.50")},
            {"title": "Room", "sold": 5, "income": Decimal("15.00")},
        ],
        "count": 2,
    }


@table(
    ("query", "rows"),
    [
        ("from movies select id order by id", [{"id": 1}, {"id": 2}, {"id": 3}]),
        ("values (1, 'a')", [{"col0": 1, "col1": "a"}]),
        ("(select max(id) as id from movies);", [{"id": 3}]),
        ("with x as (select id from movies) select id from x order by id desc limit 1 -- the last", [{"id": 3}]),
        ('select id as "update", movies.id as delete from movies where id = 1', [{"update": 1, "delete": 1}]),
        ("select id from movies where false", []),
        ("select map {1: ['a']} as m, [1, 2]::int[2] as a, {'x': 1} as s", [{"m": {1: ["a"]}, "a": [1, 2], "s": {"x": 1}}]),
        ("select '{\"a\": 1}'::json as j, 'x'::enum('x') as e, null as n", [{"j": '{"a": 1}', "e": "x", "n": None}]),
        ("select '2026-11-17 10:00:00+02'::timestamptz as at", [{"at": dt.datetime(2026, 11, 17, 8, tzinfo=dt.UTC)}]),
        ("select 1 as a, 2 as A", [{"a": 1, "A": 2}]),
        ("select 0.1::double + 0.2 as f, 'NaN'::float is null as n", [{"f": 0.30000000000000004, "n": False}]),
    ],
)  # fmt: skip
def test_queries_and_what_they_come_to(query, rows):
    """All of DuckDB's ways to select, and its types where Python has the same value."""
    assert rows_of(query) == rows


def test_a_table_without_rows_has_the_columns_that_are_declared():
    """On a day without rows the query runs all the same; without columns nobody knows which there are."""
    columns = {"movies": {"id": "bigint", "price": "decimal(6,2)", "day": "date", "at": "timestamptz", "raw": "blob"}}
    assert rows_of("select count(*) as n, sum(price) as s, max(day) as d from movies", [], columns=columns) == [
        {"n": 0, "s": None, "d": None}
    ]
    assert refusal_of("select 1 as n from movies", []) == (
        "validation_error",
        "expected movies to have rows, or columns that are declared, got: neither; name them with columns: {movies: {id: bigint}}",
    )


@table(
    ("declared", "value", "comes"),
    [
        ("double", 3, 3.0),
        ("hugeint", 3, 3),
        ("decimal(4,2)", 3, Decimal("3.00")),
        ("decimal(4,2)", Decimal("3.5"), Decimal("3.50")),
        ("uuid", None, None),
        ("varchar", "3", "3"),
    ],
)
def test_a_declared_type_takes_what_fits_it(declared, value, comes):
    """A number may be carried as a wider one, if it is the same number."""
    assert rows_of("select * from movies", [{"a": value}], columns={"movies": {"a": declared}}) == [{"a": comes}]


# -- values --------------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))
SCALARS = [
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**127), 2**127 - 1),
    st.floats(allow_nan=False),
    TEXTS,
    st.binary(max_size=12),
    st.decimals(-(10**18), 10**18, places=6).filter(lambda number: number != 0 or not number.is_signed()),
    st.dates(),
    st.datetimes(),
    st.datetimes(min_value=NAIVE.replace(year=2), max_value=NAIVE.replace(year=9998), timezones=ZONES),
    st.times(),
    st.builds(lambda time, zone: time.replace(tzinfo=zone), st.times(), ZONES),
    st.timedeltas(),
    st.uuids(),
]
INSIDE = [*SCALARS[:7], SCALARS[10], SCALARS[13]]
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=8)


def column(strategies):
    """A strategy for the values of one column: all of one type, or nothing."""
    return st.sampled_from(strategies).map(lambda one: st.none() | one)


@st.composite
def a_table(draw):
    """Rows with columns of odd names, each of one type; some hold lists or mappings."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique_by=str.lower))
    columns = {}
    for name in names:
        kind = draw(st.sampled_from(["plain", "plain", "list", "mapping"]))
        if kind == "plain":
            columns[name] = draw(column(SCALARS))
        elif kind == "list":
            columns[name] = st.none() | st.lists(draw(column(INSIDE)), max_size=3)
        else:
            keys = draw(st.lists(NAMES, min_size=1, max_size=2, unique_by=str.lower))
            columns[name] = st.none() | st.fixed_dictionaries({key: draw(column(INSIDE)) for key in keys})
    return draw(st.lists(st.fixed_dictionaries(columns), min_size=1, max_size=4))


@settings(deadline=None, max_examples=60)
@given(rows=a_table())
def test_every_value_comes_out_as_it_went_in(rows):
    """Whatever the columns are called and hold: the same rows, of the same types, which a store keeps."""
    came = rows_of("select * from movies", rows)
    assert came == rows
    for one, row in zip(came, rows, strict=True):
        assert {name: type(one[name]) for name in row} == {name: type(value) for name, value in row.items()}
    assert Codec().decode(Codec().encode(came)) == rows


class Colour(enum.IntEnum):
    RED = 1


@table(
    ("values", "said"),
    [
        ([1, "a"], "to have values of one type, got: int and str"),
        ([1, True], "to have values of one type, got: bool and int"),
        ([Decimal(1), 0.5], "to have values of one type, got: Decimal and float"),
        ([dt.date(2026, 1, 1), NAIVE], "to have values of one type, got: date and datetime"),
        ([[1], ["a"]], "the lists in the column a of movies to have values of one type, got: int and str"),
        ([2**127], "integers of at most 128 bits"),
        ([2**53 + 1, 0.5], "an integer that no float is equal to"),
        ([Decimal("NaN")], "decimals that are finite"),
        ([Decimal("1e30"), Decimal("1e-30")], "decimals of at most 38 digits"),
        ([Decimal("-0.0")], "minus zero"),
        ([NAIVE, DAY], "all with a time zone, or all without"),
        ([dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=3)))], "moments of the years 1 to 9999 in UTC"),
        ([dt.time(1, tzinfo=dt.timezone(dt.timedelta(hours=20)))], "time zones of whole seconds, up to 16 hours"),
        (["\ud800"], "texts that can be written as UTF-8"),
        ([(1, 2)], "got: one of type tuple; make it a text before"),
        ([{1}], "got: one of type set"),
        ([Colour.RED], "got: one of type Colour"),
        ([{"x": 1}, {"y": 1}], "mappings with the same keys"),
        ([{}], "mappings with keys, got: an empty one"),
        ([{1: 2}], "mappings whose keys are texts"),
        ([{"x": 1, "X": 2}], "keys that differ in more than capital letters"),
        ([{"key": [1], "value": [2]}], "other keys than key and value"),
    ],
)
def test_what_cannot_be_carried_exactly_is_refused(values, said):
    """Never changed in silence; a message names the column and no value."""
    kind, message = refusal_of("select * from movies", [{"a": value} for value in values])
    assert (kind, said in message, "column a of movies" in message) == ("validation_error", True, True), message


def test_values_that_are_nested_too_deeply_are_refused():
    """Before DuckDB has to read a type of a thousand levels."""
    value = 1
    for _ in range(500):
        value = [value]
    kind, message = refusal_of("select * from movies", [{"a": value}])
    assert (kind, message) == (
        "validation_error",
        "expected values of at most 30 levels, got: deeper ones; make them texts before",
    )


@table(
    ("rows", "said"),
    [
        ("text", "expected rows"),
        ([1], "the table movies: expected row 1 to be a mapping, got: a value of type int"),
        ([{"a": 1}, {"b": 1}], "expected row 2 of movies to have a, got: no such column; data.processor fills it in"),
        ([{"a": 1}, {"a": 1, "b": 2}], "expected row 2 of movies to have no other columns, got also: b"),
        ([{"a": 1, "A": 2}], "expected the columns of movies to differ in more than capital letters"),
        ([{}], "expected movies to have columns, got: none"),
        ([{"": 1}], "names that are texts"),
        ([{1: 1}], "names that are texts"),
        ([{"a\x00": 1}], "names that are texts"),
    ],
)
def test_rows_that_are_no_table_are_refused(rows, said):
    """A column that a row lacks is not taken for null."""
    kind, message = refusal_of("select * from movies", rows)
    assert (kind, said in message) == ("validation_error", True), message


@table(
    ("query", "kind", "said"),
    [
        ("select 'infinity'::date as d", "data_error", "none that Python has: infinity"),
        ("select '-infinity'::timestamptz as d", "data_error", "none that Python has: infinity"),
        ("select interval 1 month as i", "data_error", "a month of no certain length"),
        ("select '2026-01-01 00:00:00.0000001'::timestamp_ns as t", "data_error", "a part of a microsecond"),
        ("select '0044-03-15 (BC)'::date as d", "data_error", "the column d of query has a value that Python has none for"),
        ("select time '24:00:00' as t", "data_error", "the column t of query has a value that Python has none for"),
        ("select ['infinity'::date] as d", "data_error", "the column d of query has a value that Python has none for"),
        ("select [now()] as d", "validation_error", "got: TIMESTAMP WITH TIME ZONE; cast it in query"),
        ("select '101'::bit as b", "validation_error", "got: BIT"),
        ("select union_value(x := 1) as u", "validation_error", "got: UNION"),
        ("select map {[1]: 2} as m", "validation_error", "got: MAP"),
        ("select id, id from movies", "validation_error", "names that differ, got twice: id; use AS"),
        ("select title::int as n from movies", "data_error", "a value does not fit the query (Conversion)"),
        ("select 9223372036854775807::bigint + id as n from movies", "data_error", "(OutOfRange)"),
        ("select error(title) as n from movies", "data_error", "(InvalidInput)"),
        ("select nothing from movies", "syntax_error", 'Referenced column "nothing" not found'),
        ("select * from nothing", "syntax_error", 'Table with name "nothing" does not exist'),
        ("select from where", "syntax_error", "Parser Error"),
        ("select * from range(20)", "data_error", "expected query to have at most 10 rows, got: more"),
    ],
)  # fmt: skip
def test_what_does_not_come_out_as_it_is_fails(query, kind, said):
    """With a class by which a policy decides, and without a value of a row in the message."""
    found, message = refusal_of(query, max_rows=10)
    assert (found, said in message, "Arrival" in message) == (kind, True, False), message


@table(
    ("query", "said"),
    [
        ("select struct_extract({'a': 1}, $who) as v from movies", 'Could not find key "…" in struct'),
        ("select current_setting($who) as v", 'unrecognized configuration parameter "…"'),
        ("select nextval($who) as v", 'Sequence with name "…" does not exist!'),
        ("select list_aggregate([1, 2], $who) as v", 'Aggregate Function with name "…" does not exist!'),
        ("select no_such($who, 1) as v", 'Scalar Function with name "no_such" does not exist!'),
        ("select length($who, id) as v from movies", 'argument types "length(STRING_LITERAL, BIGINT)"'),
    ],
)
def test_what_cannot_run_is_told_in_words_of_the_query_alone(query, said):
    """A value of an earlier step that the query takes for a name is hidden, whatever signs it has."""
    kind, message = refusal_of(query, params={"who": "hunter2"})
    assert (kind, said in message, "hunter2" in message) == ("syntax_error", True, False), message
    for who in (
        "hunter2 does not exist",
        'id" hunter2 "id',
        'hunter2"id',
        "id' hunter2",
        "id\nhunter2",
        "a.Hunter2",
        "7 hunter2",
    ):
        assert "hunter2" not in refusal_of(query, params={"who": who})[1].lower()


# -- bounds --------------------------------------------------------------------------------------------------------------


def test_a_query_is_interrupted_when_the_time_is_up(at_most):
    """The step's time limit ends the query itself, and the error is one that may be tried again."""
    at_most(0.05)
    began = monotonic()
    kind, message = refusal_of("select count(*) as n from range(100000000000) r(x) where x % 7 = 3")
    assert (kind, message) == ("timeout", "the query did not end in the time of the attempt")
    assert monotonic() - began < 30
    assert "outlast-sql-limit" not in [thread.name for thread in threading.enumerate()]


def test_more_memory_than_allowed_is_told():
    """resource_exhausted: whether that is worth a retry is for the policy to say."""
    found = failure_of(
        "sql.transform",
        {"tables": {"movies": MOVIES}, "query": "select a.range x, b.range y from range(9999) a, range(9999) b order by hash(x + y)", "memory_mb": 32},
        a_context(),
    )  # fmt: skip
    assert found[:2] == (
        "resource_exhausted",
        "the tables and the query need more memory than memory_mb: 32; give them more, or fewer rows",
    )
    assert classify(found[2]).category == "unclear"


@table(
    "query",
    [
        "select repeat('x', 1000) as t from range(20)",
        "select range(100) as t from range(20)",
        "select {'a': range(100)} as t from range(20)",
        "select map(range(50), range(50)) as t from range(20)",
        "select repeat('x', 10001) as t",
        "select repeat('x', 10001)::blob as t",
        "select range(251) as t",
    ],
)
def test_more_than_a_step_may_put_out_is_refused(monkeypatch, query):
    """Bounded by bytes as well as by rows, a list by what Python has for it; a single value that is too large is not even fetched."""
    monkeypatch.setattr(sql, "_LARGEST", 10_000)
    assert refusal_of(query) == (
        "data_error",
        "expected query to have at most 10,000 bytes of texts and lists, got: more; select fewer rows or columns",
    )


# -- queries that reach for more -----------------------------------------------------------------------------------------

HOSTILE = [
    "copy movies to '{0}'",
    "export database '{0}'",
    "attach '{0}' as x",
    "install httpfs",
    "load httpfs",
    "set memory_limit = '9GB'",
    "pragma threads = 8",
    "create table x as select 1",
    "drop table movies",
    "insert into movies select * from movies",
    "with x as (delete from movies returning *) select * from x",
    "with x as (insert into movies select * from movies returning *) select * from x",
    "select 1; copy movies to '{0}'",
    "select * from read_csv('/etc/passwd')",
    "select * from read_text('/etc/passwd')",
    "select * from glob('/etc/*')",
    "select * from parquet_metadata('{0}')",
    "select * from '/etc/passwd'",
    "select * from movies join 'a.parquet' on true",
    "select * from query('select 1')",
    "select getenv('HOME')",
    "call pragma_version()",
    "explain analyze select 1",
    "begin",
]


def test_what_reaches_for_more_is_refused_when_the_file_is_read(tmp_path):
    """Not one of them compiles."""
    passed = []
    for query in HOSTILE:
        try:
            passed.append(checked(query.format(tmp_path / "out")))
        except ValueError as refused:
            assert str(refused).startswith("expected ")  # noqa: PT017 - each of them
    assert passed == []


def test_what_passed_as_a_query_is_refused_by_duckdb_all_the_same(tmp_path, monkeypatch):
    """The lock does not rest on the words of a query: without that check nothing is read, written or set either."""
    monkeypatch.setattr("outlast.components.steps.sql._check_word", lambda *_: None)
    monkeypatch.setattr("outlast.components.steps.sql._BEGINNINGS", {q.split()[0] for q in HOSTILE})
    came = {}
    for query in [*HOSTILE, 'select * from "sql"', "select * from duckdb_secrets()", "select * from enable_logging()"]:
        if ";" not in query:
            config = {"tables": {"movies": MOVIES}, "query": query.format(tmp_path / "out")}
            try:
                came[query] = outputs_of("sql.transform", config, a_context())["count"]
            except outlast.PermanentFailure as refused:
                assert refused.error_class in ("permission_denied", "syntax_error", "validation_error", "data_error")  # noqa: PT017
    assert came == {"select * from query('select 1')": 1}  # a SELECT in another one
    assert list(tmp_path.iterdir()) == []


@table(
    ("config", "said"),
    [
        ({"tables": {}}, "at least 1 of them"),
        ({"tables": {"a b": []}}, "expected a name in letters, digits and _"),
        ({"tables": {"a": [], "A": []}}, "names differ in more than capital letters"),
        ({"query": "select $day"}, "expected a value for $day, which query has; add it to params"),
        ({"params": {"day": 1}}, "expected params that query has; leave day out, or write $day"),
        ({"params": {"Day": 1}}, "a name in small letters"),
        ({"query": "select ?"}, "expected $name for a value"),
        ({"query": "select 1; -- and more"}, "expected nothing behind the semicolon"),
        ({"query": "  "}, "expected a query; write a SELECT"),
        ({"query": "select 'a"}, "a text that ends"),
        ({"columns": {"b": {"id": "bigint"}}}, "expected columns of a table that is there; add b to tables"),
        ({"columns": {"a": {"id": "number"}}}, "expected one of boolean, bigint"),
        ({"columns": {"a": {"id": "decimal(39,2)"}}}, "expected one of boolean, bigint"),
        ({"columns": {"a": {"id": "decimal(2,3)"}}}, "expected one of boolean, bigint"),
        ({"memory_mb": 1}, "32"),
        ({"max_rows": 0}, "1"),
        ({"quer": "select 1"}, "Did you mean 'query'"),
    ],
)
def test_a_config_that_is_wrong_is_told_before_anything_runs(config, said):
    """Every mistake with the way out."""
    from outlast.components.registry import find_component

    problems = find_component("sql.transform").problems({"tables": {"a": []}, "query": "select 1 as n", **config})
    told = [f"expected {one.expected}; {one.way_out}" for one in problems]
    assert any(said in one for one in told), told


# -- in a flow -----------------------------------------------------------------------------------------------------------

FLOW = """\
oml_version: "0.1.0"
name: genres
params: {{since: {{type: integer, default: 1980}}}}
steps:
  - id: read
    component: files.reader
    config: {{path: in.jsonl}}
  - id: count
    component: sql.transform
    config:
      tables: {{movies: "${{steps.read.outputs.rows}}"}}
      query: select genre, count(*) as movies from movies where year >= $since group by genre order by {order}
      params: {{since: "${{params.since}}"}}
  - id: write
    component: files.writer
    config: {{path: out.csv, rows: "${{steps.count.outputs.rows}}"}}
"""


def test_a_flow_reads_transforms_and_writes(tmp_path, monkeypatch):
    """From a file over a query to a file; what failed at the query goes on there once the file is mended."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text(
        '{"genre": "drama", "year": 2016}\n{"genre": "horror", "year": 1979}\n{"genre": "drama", "year": 2015}\n'
    )
    app = outlast.App("genres", store=prepared(tmp_path / "o.db"))
    path = tmp_path / "genres.yaml"
    path.write_text(FLOW.format(order="gnere"))
    with pytest.raises(outlast.FlowFailed) as failed:
        outlast.Flow.load(path).run(run_key="monday", app=app)
    assert {step.id: step.status for step in failed.value.result.steps} == {
        "read": "succeeded",
        "count": "failed",
        "write": "skipped",
    }
    assert 'Referenced column "gnere" not found' in failed.value.result.why
    (tmp_path / "in.jsonl").unlink()  # what was read is on record
    path.write_text(FLOW.format(order="genre"))
    run = outlast.Flow.load(path).run(run_key="monday", app=app)
    assert (run.status, run["count"].outputs["rows"]) == ("completed", [{"genre": "drama", "movies": 2}])
    assert (tmp_path / "out.csv").read_text() == "genre,movies\ndrama,2\n"
    app.store.close()
    gc.collect()


def test_a_reference_in_a_query_is_refused(tmp_path):
    """Values are bound; the text of a query is the one that people have read."""
    path = tmp_path / "genres.yaml"
    path.write_text(FLOW.format(order="${params.since}"))
    with pytest.raises(
        outlast.ConfigurationError, match=r"steps\.count\.config\.query: expected a text without references"
    ):
        outlast.Flow.load(path)


UUID_OF_NOBODY = UUID(int=7)


def test_what_goes_in_is_left_as_it_is():
    """The rows of an earlier step are not changed."""
    rows = [{"a": [Decimal(1)], "b": {"x": UUID_OF_NOBODY}, "c": 2**70}]
    assert (rows_of("select c from movies", rows), rows) == (
        [{"c": 2**70}],
        [{"a": [Decimal(1)], "b": {"x": UUID_OF_NOBODY}, "c": 2**70}],
    )
