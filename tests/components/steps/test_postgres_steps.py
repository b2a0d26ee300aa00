"""`postgres.extractor` and `postgres.writer`, against a real PostgreSQL."""

from __future__ import annotations

import datetime as dt
import pickle
import socket
import threading
from decimal import Decimal
from time import monotonic
from uuid import UUID, uuid4

import psycopg
import pytest

from components.steps.calling import a_context, failure_of, outputs_of
from outlast.components.running import StepContext
from outlast.store.codec import Codec
from outlast.testing import FaultProxy
from outlast.verdicts import classify, surely_undone
from tables import table

COLUMNS = "id int primary key, title text not null, tags text[], doc jsonb, price numeric, day date, at timestamptz, raw bytea, ref uuid"


@pytest.fixture
def movies(postgres):
    """A new table, by its name."""
    name = f"movies_{uuid4().hex}"
    postgres.execute(f"create table {name} ({COLUMNS})")
    return name


@pytest.fixture
def at_most(monkeypatch):
    return lambda seconds: monkeypatch.setattr(StepContext, "remaining", lambda _: seconds)


def extract(postgres, query, parameters=None, **config):
    given = {"connection": "@postgres.shop", "query": query, **config}
    given |= {} if parameters is None else {"parameters": parameters}
    return outputs_of("postgres.extractor", given, a_context(connection={"url": postgres.dsn}))["rows"]


def wrong_query(connection, query, **config):
    given = {"connection": "@postgres.shop", "query": query, **config}
    return failure_of("postgres.extractor", given, a_context(connection=connection))


def write(postgres, table_, rows, **config):
    given = {"connection": "@postgres.shop", "table": table_, "rows": rows, **config}
    return outputs_of("postgres.writer", given, a_context(connection={"url": postgres.dsn}))


def refused(postgres, table_, rows, **config):
    given = {"connection": "@postgres.shop", "table": table_, "rows": rows, **config}
    return failure_of("postgres.writer", given, a_context(connection={"url": postgres.dsn}))


def titles(postgres, table_):
    return {row["id"]: row["title"] for row in extract(postgres, f"select id, title from {table_} order by id")}


# --- reading ---


def test_values_keep_their_types_on_the_way_there_and_back(postgres, movies):
    """Lists, documents, exact numbers, dates, bytes: what was written is what is read, and can be stored."""
    row = {
        "id": 1,
        "title": "a\t\\b\n",
        "tags": ["x", None, "y,z"],
        "doc": {"a": [1, "é"]},
        "price": Decimal("1.50"),
        "day": dt.date(2026, 1, 2),
        "at": dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC),
        "raw": b"\x00\xff",
        "ref": UUID(int=7),
    }
    rows = [row, {**row, "id": 2, "doc": "a text", "tags": [], "price": None}, {**row, "id": 3, "doc": [1]}]
    assert write(postgres, movies, rows, batch_rows=2) == {"count": 3, "table": f"public.{movies}"}
    found = extract(postgres, f"select * from {movies} order by id", chunk_rows=2)
    assert found == rows
    assert Codec().decode(Codec().encode(found)) == rows


def test_parameters_are_bound_and_never_part_of_the_query(postgres):
    """By name or in order; lists are arrays, mappings are documents, a quote is a quote."""
    query = "select %(name)s::text as name, 3 = any(%(ids)s) as there, %(doc)s::jsonb as doc, '100%%' as share"
    rows = extract(postgres, query, {"name": "'; drop table x; --", "ids": [1, 3], "doc": {"a": 1}})
    assert rows == [{"name": "'; drop table x; --", "there": True, "doc": {"a": 1}, "share": "100%"}]
    assert extract(postgres, "select %s::int + %s::int as sum", [1, 2]) == [{"sum": 3}]
    assert extract(postgres, "select '100%' as share") == [{"share": "100%"}]


@table(
    "query", ["select '%(id)s' as id", "select $$%(id)s$$ as id", "select E'%(id)s' as id", "select 1 as id -- %(id)s"]
)
def test_a_parameter_inside_of_quotes_is_refused(postgres, query):
    """There it would be the text $1, and the rows those of another question."""
    kind, said, _ = wrong_query({"url": postgres.dsn}, query, parameters={"id": 7})
    assert (kind, "query: expected %(name)s and %s of query outside of quotes and comments" in said) == (
        "validation_error",
        True,
    )


def test_whatever_is_read_can_be_stored(postgres):
    """Types for which only the driver has classes come as PostgreSQL writes them; SHOW and EXPLAIN are read as well."""
    (row,) = extract(
        postgres,
        "select '10.0.0.1'::inet as ip, array['10.0.0.0/8'::cidr] as nets, int4range(1, 5) as span",
    )
    assert row == {"ip": "10.0.0.1", "nets": ["10.0.0.0/8"], "span": "[1,5)"}
    assert extract(postgres, "show transaction_read_only") == [{"transaction_read_only": "on"}]
    assert Codec().encode(extract(postgres, "explain select 1"))


def test_intervals_and_ranges_are_copied_exactly(postgres):
    """A month is no number of days: they come as texts, which mean the same whatever the style of the database is."""
    name = f"spans_{uuid4().hex}"
    postgres.execute(
        f"create table {name} (id int, lasts interval, all_of interval[], during tsrange)",
        f"insert into {name} values (1, '1 month -2 days +03:04:05.000006', array['1 year'::interval, null], '[2026-02-01,2026-03-01)'), "
        "(2, '-1 day -02:03:04', null, null), (3, '-1 month +1 day', null, null)",
    )
    styled = {"url": postgres.dsn + "&options=-cintervalstyle%3Dsql_standard%20-cdatestyle%3DSQL,DMY"}
    config = {"connection": "@postgres.shop", "query": f"select * from {name} order by id"}
    rows = outputs_of("postgres.extractor", config, a_context(connection=styled))["rows"]
    assert rows[0] == {
        "id": 1,
        "lasts": "1 mon -2 days +03:04:05.000006",
        "all_of": ["1 year", None],
        "during": '["2026-02-01 00:00:00","2026-03-01 00:00:00")',
    }
    postgres.execute(f"create table {name}_2 (like {name})")
    config = {"connection": "@postgres.shop", "table": f"{name}_2", "rows": rows}
    assert outputs_of("postgres.writer", config, a_context(connection=styled))["count"] == 3
    # Intervals are equal where a month is 30 days, so their texts are compared.
    same = f"select a.id from {name} a join {name}_2 b on a::text = b::text order by 1"
    assert extract(postgres, same) == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_a_duration_is_a_time_of_day_only_if_there_is_such_a_time(postgres):
    """A TIME of MySQL is a duration: it is the same in a column of either type, or refused."""
    postgres.execute("create table took (id int, took interval, day_time time)")
    took = dt.timedelta(minutes=39, seconds=5, microseconds=7)
    write(postgres, "took", [{"id": 1, "took": -took, "day_time": took}])
    assert postgres.execute("select took = -interval '39 min 5.000007 s', day_time from took") == "t|00:39:05.000007"
    for no_time in (-took, dt.timedelta(hours=25)):
        assert refused(postgres, "took", [{"id": 2, "took": took, "day_time": no_time}])[0] == "data_error"
    assert postgres.execute("select count(*) from took") == "1"


def test_a_value_that_python_does_not_have_says_what_to_do(postgres):
    """The driver has no word for it."""
    kind, said, _ = wrong_query({"url": postgres.dsn}, "select 'infinity'::date as day")
    assert (kind, "have it as a text, with ::text in query" in said) == ("data_error", True)


@table(
    ("document", "read"),
    [
        ("'[12345678901234567890.123]'::jsonb", None),
        ("array['1.00000000000000000001'::jsonb]", None),
        ("'1e-400'::json", None),
        ("'1e400'::json", None),
        ("'1e5000'::jsonb", None),
        ("""'{"a": {"b": 1, "b": 2}}'::json""", None),
        ("""'[1.10, 0.1, 1e3, -0.5e-7, 12345678901234567890123, true, null]'::jsonb""", [1.1, 0.1, 1000, -5e-8, 12345678901234567890123, True, None]),
        ("""'{"a": 5e-324, "b": 1.7976931348623157e308}'::json""", {"a": 5e-324, "b": 1.7976931348623157e308}),
    ],
)  # fmt: skip
def test_a_document_is_read_as_it_is_or_not_at_all(postgres, document, read):
    """A number that a float would round, and a name that comes twice, are errors; as a text all of it can be had."""
    if read is None:
        kind, said, _ = wrong_query({"url": postgres.dsn}, f"select {document} as doc")
        assert (kind, said.startswith("a document of the query is none that Python has: ")) == ("data_error", True)
        assert extract(postgres, f"select ({document})::text as doc")
    else:
        assert extract(postgres, f"select {document} as doc, 'null'::jsonb as none") == [{"doc": read, "none": None}]


@table(
    ("query", "said"),
    [
        ("select to_tsquery(%(who)s) as v", 'syntax error in tsquery: "…"'),
        ("select current_setting(%(who)s) as v", 'unrecognized configuration parameter "…"'),
        ("select %(who)s::int as v", 'invalid input syntax for type integer: "…"'),
        ("select pg_read_file(%(who)s) as v", 'could not open file "…" for reading'),
        ("select nope from (select %(who)s::text as who) as found", 'column "nope" does not exist'),
        ("select found.nope from (select %(who)s::text as who) as found", "column found.nope does not exist"),
        ("select who from nowhere where who = %(who)s", 'relation "nowhere" does not exist'),
        ("select lo_get((length(%(who)s) + 4711000)::oid) as v", "large object … does not exist"),
    ],
)
def test_what_the_database_says_has_names_of_the_query_and_no_values(postgres, query, said):
    """Whatever its SQLSTATE is, and whatever signs the value has."""
    _, told, _ = wrong_query({"url": postgres.dsn}, query, parameters={"who": "hunter2 & & x"})
    assert (said in told, "hunter2" in told) == (True, False), told
    for who in ('who" hunter2 & & "who', "hunter2' & &", 'hunter2" & &', "who\nhunter2 & &"):
        assert "hunter2" not in wrong_query({"url": postgres.dsn}, query, parameters={"who": who})[1]


def test_a_query_cannot_write(postgres, movies):
    """The transaction only reads, whatever a function in the query does."""
    name = f"f_{uuid4().hex}"
    postgres.execute(f"create function {name}() returns int language sql as 'delete from {movies} returning 1'")
    kind, said, _ = wrong_query({"url": postgres.dsn}, f"select {name}()")
    assert (kind, "read-only transaction" in said) == ("code_error", True)


def test_columns_of_the_same_name_are_refused(postgres):
    """One of them would be gone."""
    kind, said, _ = wrong_query({"url": postgres.dsn}, "select 1 as a, 2 as a")
    assert (kind, said) == (
        "validation_error",
        "expected the columns of query to have names that differ, got twice: a; use AS",
    )


def test_the_schema_is_that_of_the_step_or_of_the_connection(postgres):
    """Names without a schema are looked for there, in queries and for the table that is written."""
    name = f"s_{uuid4().hex}"
    postgres.execute(f"create schema {name}", f'create table {name}."Odd" (id int primary key)')
    connection = {"url": postgres.dsn, "schema": name}
    given = {"connection": "@postgres.shop", "table": "Odd", "rows": [{"id": 1}], "mode": "upsert", "key": ["id"]}
    told = [outputs_of("postgres.writer", given, a_context(connection=connection)) for _ in range(2)]
    assert told == [{"count": 1, "table": f"{name}.Odd"}] * 2
    assert extract(postgres, 'select id from "Odd"', schema=name) == [{"id": 1}]


def test_the_schema_of_a_step_wins_over_that_of_its_connection(postgres):
    """Both are given: the step reads and writes the table of its own schema."""
    own, other = f"s_{uuid4().hex}", f"s_{uuid4().hex}"
    for schema in (own, other):
        postgres.execute(f"create schema {schema}", f"create table {schema}.movies (id int primary key)")
    context = a_context(connection={"url": postgres.dsn, "schema": other})
    given = {"connection": "@postgres.shop", "schema": own}
    row = {"table": "movies", "rows": [{"id": 1}], "mode": "upsert", "key": ["id"]}
    assert outputs_of("postgres.writer", given | row, context) == {"count": 1, "table": f"{own}.movies"}
    assert outputs_of("postgres.extractor", given | {"query": "select id from movies"}, context)["rows"] == [{"id": 1}]


@table(("step", "connection", "limit"), [(70_000, 80_000, "70s"), (80_000, 70_000, "80s"), (None, 80_000, "80s")])
def test_the_statement_timeout_of_a_step_wins_over_that_of_its_connection(postgres, step, connection, limit):
    """Both are given: that of the step counts, whichever is shorter."""
    fields = {"url": postgres.dsn, "statement_timeout_ms": connection}
    given = {"connection": "@postgres.shop", "query": "select current_setting('statement_timeout') as limit"}
    given |= {} if step is None else {"statement_timeout_ms": step}
    assert outputs_of("postgres.extractor", given, a_context(connection=fields))["rows"] == [{"limit": limit}]


# --- writing ---


def test_upsert_changes_rows_that_are_there_and_no_other_column(postgres, movies):
    """By its key a row is updated or added; what is not written stays."""
    write(postgres, movies, [{"id": 1, "title": "a", "price": 2}, {"id": 2, "title": "b", "price": 3}])
    config = {"mode": "upsert", "key": ["id"], "columns": ["id", "title"]}
    done = write(postgres, movies, [{"id": 2, "title": "B", "price": 9}, {"id": 3, "title": "c", "price": 9}], **config)
    assert (done["count"], titles(postgres, movies)) == (2, {1: "a", 2: "B", 3: "c"})
    assert [row["price"] for row in extract(postgres, f"select price from {movies} order by id")] == [2, 3, None]


def test_replace_leaves_the_new_rows_alone_there(postgres, movies):
    """In one transaction: whoever reads sees the old rows or the new ones. No rows are none."""
    write(postgres, movies, [{"id": 1, "title": "a"}])
    write(postgres, movies, [{"id": 2, "title": "b"}], mode="replace")
    assert titles(postgres, movies) == {2: "b"}
    assert refused(postgres, movies, [{"id": 3, "title": None}], mode="replace")[0] == "data_error"
    assert titles(postgres, movies) == {2: "b"}
    assert write(postgres, movies, [], mode="replace")["count"] == 0
    assert titles(postgres, movies) == {}


def test_fewer_rows_than_min_rows_leave_the_table_as_it_was(postgres, movies, caplog):
    """An extract without rows does not empty a table in silence: min_rows refuses it, in every mode; without it the log warns."""
    write(postgres, movies, [{"id": 1, "title": "a"}])
    for mode in ({"mode": "replace"}, {"mode": "insert"}, {"mode": "upsert", "key": ["id"]}):
        for rows, least in (([], 1), ([{"id": 2, "title": "b"}], 2)):
            kind, said, _ = refused(postgres, movies, rows, min_rows=least, **mode)
            assert (kind, said.partition(", because")[2]) == (
                "validation_error",
                f" min_rows is {least}, got: {len(rows)}. Nothing was written",
            )
    assert titles(postgres, movies) == {1: "a"}
    assert write(postgres, movies, [{"id": 2, "title": "b"}], mode="replace", min_rows=1)["count"] == 1
    assert caplog.messages == []
    write(postgres, movies, [], mode="replace")
    write(postgres, movies, [], mode="replace")  # there is nothing left to lose
    assert caplog.messages == [
        f"postgres.writer has replaced 1 row of the table {movies} with none. To refuse that, set min_rows: 1."
    ]


def test_of_two_replaces_at_once_the_second_waits_and_replaces_the_first(postgres):
    """Of a table, of one with partitions and of a view, also by two names; whoever only reads does not wait."""
    name = f"movies_{uuid4().hex}"
    gate = int(name[-7:], 16)
    postgres.execute(
        f"create table {name} ({COLUMNS}) partition by range (id)",
        f"create table {name}_1 partition of {name} for values from (1) to (9)",
        f"create view {name}_v as select * from {name}",
        f"create function waits_{name}() returns trigger language plpgsql as "
        # A lock that even a reader is in the way of: who waits must hold none.
        f"'begin perform pg_advisory_xact_lock_shared({gate}); lock table {name}_1; return new; end'",
        f"create trigger waits before insert on {name}_1 for each row execute function waits_{name}()",
        f"create function put_{name}() returns trigger language plpgsql as 'begin insert into {name} values (new.*); return new; end'",
        f"create trigger put instead of insert on {name}_v for each row execute function put_{name}()",
    )
    for first, second in ((f"{name}_1", f"{name}_1"), (name, f"{name}_1"), (f"{name}_v", f"{name}_v"), (f"{name}_1", f"{name}_v")):  # fmt: skip
        postgres.execute(f"delete from {name}", f"insert into {name} (id, title) values (1, 'old')")
        with psycopg.connect(postgres.dsn) as held, psycopg.connect(postgres.dsn, autocommit=True) as looking:
            held.execute("select pg_advisory_xact_lock(%s)", (gate,))
            done = []
            threads = [
                threading.Thread(target=replace_with, args=(postgres, target, number, done))
                for number, target in ((2, first), (3, second))
            ]
            for waiting, thread in enumerate(threads, 1):
                thread.start()
                while waits(looking) < waiting:
                    assert not done
            assert titles(postgres, name) == {1: "old"}
            held.commit()
            for thread in threads:
                thread.join()
        assert (sorted(done), titles(postgres, name)) == ([2, 3], {3: "x"}), (first, second)


def replace_with(postgres, table_, number, done):
    write(postgres, table_, [{"id": number, "title": "x"}], mode="replace")
    done.append(number)


def waits(connection):
    query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    return connection.execute(query).fetchone()[0]


def test_a_replace_waits_for_other_writers_as_long_as_the_attempt_has_time(postgres, movies, at_most):
    """A row that another transaction has added, and not committed, would be there beside the new ones."""
    with psycopg.connect(postgres.dsn) as other:
        other.execute(f"insert into {movies} (id, title) values (1, 'a')")
        at_most(0.5)
        kind, _, error = refused(postgres, movies, [{"id": 2, "title": "b"}], mode="replace")
        assert (kind, classify(error).category) == ("timeout", "transient")
        other.commit()
        at_most(None)
    assert titles(postgres, movies) == {1: "a"}
    write(postgres, movies, [{"id": 2, "title": "b"}], mode="replace")
    assert titles(postgres, movies) == {2: "b"}


STAYS = "to be empty once its rows are deleted, got: rows that stay, and so nothing was written; a trigger or a rule"
OTHERS = "to have the 2 rows that were written and no others, got: {}, and so nothing was written; a trigger"


@table(
    ("does", "when", "said"),
    [
        ("return null", "trigger odd before delete on {0} for each row", STAYS),
        ("insert into {0} select old.*; return null", "trigger odd after delete on {0} for each row", STAYS),
        ("return null", "rule odd as on delete to {0} do instead nothing", STAYS),
        ("delete from {0} where id = new.id; return null", "trigger odd after insert on {0} for each row", OTHERS.format(0)),
        ("delete from {0} where id = 2; return null", "trigger odd after insert on {0}", OTHERS.format(1)),
        ("insert into {0} (id, title) values (9, $$x$$); return null", "trigger odd after insert on {0} when (pg_trigger_depth() = 0)", OTHERS.format(3)),
        ("delete from {0} where id = new.id; return null", "constraint trigger odd after insert on {0} initially deferred for each row", OTHERS.format(0)),
    ],
)  # fmt: skip
def test_a_replace_that_leaves_other_rows_there_is_an_error_and_nothing_is_written(postgres, does, when, said):
    """A trigger or a rule keeps old rows, or takes new ones away, also where it waits for the commit."""
    name = f"movies_{uuid4().hex}"
    function = "" if when.startswith("rule") else f" execute function odd_{name}()"
    postgres.execute(
        f"create table {name} ({COLUMNS})",
        f"insert into {name} (id, title) values (1, 'hunter2')",
        f"create function odd_{name}() returns trigger language plpgsql as 'begin {does.format(name)}; end'",
        f"create {when.format(name)}{function}",
    )
    kind, told, _ = refused(
        postgres, name, [{"id": 2, "title": "hunter2"}, {"id": 3, "title": "hunter2"}], mode="replace"
    )
    assert (kind, f"expected the table {name} {said}" in told, "hunter2" in told) == ("data_error", True, False), told
    assert titles(postgres, name) == {1: "hunter2"}


def test_a_replace_needs_to_see_every_row_and_may_do_no_more_than_it_did(postgres, movies):
    """Who may read, insert and delete may replace; not who is bound by a policy, which would keep rows from the delete."""
    role = f"writer_{uuid4().hex}"
    postgres.execute(f"create role {role} login", f"grant select, insert, delete on {movies} to {role}")
    given = {"connection": "@postgres.shop", "table": movies, "mode": "replace"}
    context = a_context(connection={"url": postgres.dsn.replace("//postgres:", f"//{role}:")})
    rows = [{"id": 1, "title": "mine"}, {"id": 2, "title": "hidden"}]
    assert outputs_of("postgres.writer", {**given, "rows": rows}, context)["count"] == 2
    postgres.execute(
        f"create policy mine on {movies} using (title = 'mine')", f"alter table {movies} enable row level security"
    )
    for sent in ([], rows[:1]):
        kind, said, _ = failure_of("postgres.writer", {**given, "rows": sent}, context)
        assert (kind, f"expected the table {movies} to show all its rows to this user" in said) == (
            "permission_denied",
            True,
        )
    assert titles(postgres, movies) == {1: "mine", 2: "hidden"}
    assert write(postgres, movies, [], mode="replace")["count"] == 0
    assert titles(postgres, movies) == {}


def test_what_cannot_be_locked_is_not_replaced(postgres):
    """Other writers of a foreign table, also of one that is a partition, are out of reach."""
    name = f"far_{uuid4().hex}"
    postgres.execute(
        f"create foreign data wrapper {name}",
        f"create server {name} foreign data wrapper {name}",
        f"create foreign table {name} (id int) server {name}",
        f"create table {name}_parts (id int) partition by range (id)",
        f"create foreign table {name}_1 partition of {name}_parts default server {name}",
        f"create materialized view {name}_kept as select 1 as id",
    )
    for target, got in (
        (name, "a foreign table"),
        (f"{name}_parts", "one with a foreign table as a part"),
        (f"{name}_kept", "something else"),
    ):
        kind, said, _ = refused(postgres, target, [{"id": 1}], mode="replace")
        assert (kind, f"got: {got}, which cannot be locked against other writers" in said) == ("validation_error", True)


@table("config", [{}, {"mode": "replace"}, {"mode": "upsert", "key": ["id"]}, {"batch_rows": 1}])
def test_rows_that_a_trigger_leaves_out_are_an_error_and_nothing_is_written(postgres, config):
    """What says that it has succeeded has written every row."""
    name = f"movies_{uuid4().hex}"
    postgres.execute(
        f"create table {name} ({COLUMNS})",
        f"insert into {name} (id, title) values (9, 'old')",
        f"create function odd_{name}() returns trigger language plpgsql as 'begin if new.id % 2 = 0 then return null; end if; return new; end'",
        f"create trigger odd before insert on {name} for each row execute function odd_{name}()",
    )
    kind, said, _ = refused(postgres, name, [{"id": number, "title": "x"} for number in range(1, 6)], **config)
    assert (kind, "expected all 5 rows to be written, got: 3, and so none was; a trigger" in said) == (
        "data_error",
        True,
    )
    assert titles(postgres, name) == {9: "old"}


def test_rows_that_are_there_as_they_were_sent_are_written(postgres, movies):
    """A trigger of PostgreSQL keeps back updates that change nothing; one that keeps back others is found out."""
    postgres.execute(
        f"create trigger redundant before update on {movies} for each row execute function suppress_redundant_updates_trigger()"
    )
    rows = [{"id": number, "title": "x", "doc": {"a": 1}} for number in (1, 2, 3)]
    for ending in ("x", "y"):
        rows[2]["title"] = ending
        for _ in range(2):
            assert write(postgres, movies, rows, mode="upsert", key=["id"])["count"] == 3
    assert titles(postgres, movies) == {1: "x", 2: "x", 3: "y"}
    postgres.execute(
        f"create function keeps_{movies}() returns trigger language plpgsql as 'begin if new.id = 1 then return null; end if; return new; end'",
        f"create trigger a_keeps before update on {movies} for each row execute function keeps_{movies}()",
    )
    rows[0]["title"] = rows[2]["title"] = "z"
    assert "expected all 3 rows to be written, got: 2" in refused(postgres, movies, rows, mode="upsert", key=["id"])[1]
    assert titles(postgres, movies) == {1: "x", 2: "x", 3: "y"}


def test_rows_of_partitions_and_views_are_counted(postgres):
    """Whatever the name of a table stands for."""
    name = f"parts_{uuid4().hex}"
    postgres.execute(
        f"create table {name} (id int primary key, title text) partition by range (id)",
        f"create table {name}_1 partition of {name} for values from (1) to (3)",
        f"create table {name}_2 partition of {name} default",
        f"create view {name}_v as select * from {name}",
        f"create view {name}_w as select id, title from {name} where id is not null group by id",
        f"create function put_{name}() returns trigger language plpgsql as 'begin insert into {name} values (new.*); return new; end'",
        f"create trigger put instead of insert on {name}_w for each row execute function put_{name}()",
    )
    for target, numbers, config in (
        (name, (1, 2, 3), {}),
        (name, (1, 4), {"mode": "upsert", "key": ["id"]}),
        (f"{name}_v", (2, 5), {"mode": "upsert", "key": ["id"]}),
        (f"{name}_w", (6, 7), {}),
    ):
        assert write(postgres, target, [{"id": one, "title": "x"} for one in numbers], **config)["count"] == len(
            numbers
        )
    assert list(titles(postgres, name)) == [1, 2, 3, 4, 5, 6, 7]


@table(
    ("rows", "config", "kind", "said"),
    [
        ([{"id": 5, "title": "x"}, {"id": 1, "title": "hunter2"}], {}, "data_error", "violates unique constraint"),
        ([{"id": 5, "title": "x"}, {"id": 1, "title": "hunter2"}], {"batch_rows": 1}, "data_error", "the database says of row 2: duplicate key"),
        ([{"id": 5, "title": "x"}, {"id": "hunter2", "title": "x"}], {}, "data_error", "the database says of row 2, column id: invalid input syntax for type integer"),
        ([{"id": 5, "title": "x"}, {"id": "hunter2", "title": "x"}], {"batch_rows": 1}, "data_error", "the database says of row 2, column id: "),
        ([{"id": 5, "title": "x"}, {"id": 6}], {}, "validation_error", "expected row 2 to have title, got: no such column"),
        ([{"id": 5, "title": "x"}, {"id": 6, "title": "x", "day": None}], {}, "validation_error", "expected row 2 to have the columns of row 1, got also: day"),
        ([{"id": 5, "title": "x", "nope": 1}], {}, "validation_error", "to have nope, got: no such column"),
        ([{"id": 5, "title": object()}], {}, "validation_error", "row 1 cannot be a row of the table: column title: "),
        ([{"id": 5, "title": "x"}, {"id": 6, "title": "hunter2\x00"}], {}, "data_error", "row 2, column title: a text with the character U+0000 cannot be kept by PostgreSQL"),
        ([{"id": 5, "title": "hunter2\udc80"}], {}, "data_error", "row 1, column title: a text with half a character"),
        ([{"id": 5, "title": "a"}, {"id": 5, "title": "b"}], {"mode": "upsert", "key": ["id"]}, "validation_error", "expected each key once, got rows 1 and 2"),
        ([{"id": None, "title": "a"}], {"mode": "upsert", "key": ["id"]}, "validation_error", "expected row 1 to have id, which is the key"),
        ([{"id": 5, "title": "a"}], {"mode": "upsert", "key": ["title"]}, "syntax_error", "no unique or exclusion constraint"),
        (["hunter2"], {}, "validation_error", "expected row 1 to be a mapping"),
    ],
)  # fmt: skip
def test_all_rows_or_none_and_no_value_of_one_in_the_message(postgres, rows, config, kind, said):
    """Whatever one row is refused for, the table stays as it was."""
    name = f"movies_{uuid4().hex}"
    postgres.execute(f"create table {name} ({COLUMNS})", f"insert into {name} (id, title) values (1, 'a')")
    found, told, error = refused(postgres, name, rows, **config)
    assert (found, said in told, "hunter2" in told + repr(error)) == (kind, True, False)
    assert titles(postgres, name) == {1: "a"}


ZONED = dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)
NAIVE = dt.datetime(2026, 1, 2, 3)  # noqa: DTZ001 - that is the point


@table(
    ("column", "value", "said"),
    [
        ("plain", ZONED, "a point in time without a zone, got: one with a zone, which would be lost; make it naive, or have a column of timestamptz"),
        ("plains", [NAIVE, ZONED], "a point in time without a zone, got: one with a zone"),
        ("zoned", NAIVE, "a point in time with a zone, got: one without, which would be taken for that of the session; give it a zone (tzinfo)"),
        ("own", NAIVE, "a point in time with a zone, got: one without"),
        ("clock", ZONED.timetz(), "a time of day without a zone, got: one with a zone, which would be lost; make it naive, or have a column of timetz"),
        ("day", NAIVE, "a day, got: a point in time, whose time of day would be lost; take its date() in a step before, or have a column of timestamp"),
        ("day", ZONED, "a day, got: a point in time, whose time of day would be lost; take its date() in a step before, or have a column of timestamptz"),
        ("days", [NAIVE.date(), NAIVE], "a day, got: a point in time"),
        ("clock", NAIVE, "a time of day, got: a point in time, whose day would be lost; take its time() or timetz() in a step before"),
        ("clock_z", ZONED, "a time of day, got: a point in time, whose day would be lost"),
        ("raw", "hunter2", "bytes, got: a value of type str; decode it in a step before, or have a column of text"),
        ("raw", {"a": "hunter2"}, "bytes, got: a value of type str"),
        ("raws", [b"a", "hunter2"], "bytes, got: a value of type str"),
    ],
)  # fmt: skip
def test_what_the_database_would_keep_as_something_else_is_refused(postgres, column, value, said):
    """A zone that would be lost or made up, and a text for bytes: by the row and the column, and nothing is written."""
    name = f"types_{uuid4().hex}"
    postgres.execute(
        f"create domain {name}_d as timestamptz",
        f"create table {name} (id int primary key, plain timestamp, plains timestamp[], zoned timestamptz, own {name}_d, clock time, clock_z timetz, day date, days date[], raw bytea, raws bytea[])",
    )
    for config in ({}, {"mode": "upsert", "key": ["id"]}):
        kind, told, _ = refused(postgres, name, [{"id": 1, column: None}, {"id": 2, column: value}], **config)
        assert (kind, "hunter2" in told) == ("validation_error", False)
        assert told.startswith(f"expected row 2, column {column}: {said}")
    assert extract(postgres, f"select id from {name}") == []
    right = {"plain": NAIVE, "plains": [NAIVE], "zoned": ZONED, "own": ZONED, "raw": b"\x00", "raws": [b"a", None]}
    right |= {"clock": NAIVE.time(), "clock_z": ZONED.timetz(), "day": NAIVE.date(), "days": [NAIVE.date(), None]}
    write(postgres, name, [{"id": 1, **right}])
    assert extract(postgres, f"select {', '.join(right)} from {name}") == [right]


def test_a_table_that_is_not_there_is_missing_input(postgres):
    """It is told before anything is sent."""
    kind, said, _ = refused(postgres, "nope", [{"id": 1}], schema="public")
    assert (kind, said) == ("missing_input", "expected a table nope in the database, got: none in the schema public")


# --- faults ---


def test_a_connection_that_ends_in_the_middle_leaves_nothing_there(postgres, movies):
    """The server hangs up while rows are sent: none of them is there, and the error is worth another attempt."""
    postgres.execute(
        f"create function dies_{movies}() returns trigger language plpgsql as "
        "'begin if new.id = 3 then perform pg_terminate_backend(pg_backend_pid()); end if; return new; end'",
        f"create trigger dies before insert on {movies} for each row execute function dies_{movies}()",
    )
    rows = [{"id": number, "title": "x"} for number in range(1, 5)]
    for config in ({}, {"mode": "upsert", "key": ["id"]}):
        assert refused(postgres, movies, rows, **config)[0] == "database_connection"
    assert titles(postgres, movies) == {}


def test_a_deadlock_is_known_to_have_changed_nothing(postgres, movies):
    """The SQLSTATE stays on the error, also once it has come from another process."""
    postgres.execute(
        f"create function locked_{movies}() returns trigger language plpgsql as "
        "'begin raise exception ''no'' using errcode = ''40P01''; end'",
        f"create trigger locked before insert on {movies} for each row execute function locked_{movies}()",
    )
    kind, _, error = refused(postgres, movies, [{"id": 1, "title": "x"}])
    again = pickle.loads(pickle.dumps(error))
    assert (kind, surely_undone(again, classify(again))) == ("database_error", True)


def test_the_server_ends_a_statement_that_takes_too_long(postgres, at_most):
    """By the limit of the step, by that of the connection, or by what is left of the attempt."""
    slow = "select pg_sleep(60)"
    told = [
        wrong_query({"url": postgres.dsn}, slow, statement_timeout_ms=50)[0],
        wrong_query({"url": postgres.dsn, "statement_timeout_ms": 50}, slow)[0],
    ]
    at_most(0.3)
    told.append(wrong_query({"url": postgres.dsn, "statement_timeout_ms": 60_000}, slow)[0])
    assert told == ["timeout"] * 3


def test_of_two_bounds_of_a_statement_the_nearer_one_counts(postgres, at_most):
    """The limit of the step, and what is left of the attempt: the server is told the smaller one."""
    query = "select setting::int as ms from pg_settings where name = 'statement_timeout'"
    told = []
    for left, limit in ((30, 60_000), (60, 2_000), (None, 7_000), (5, None)):
        at_most(left)
        config = {} if limit is None else {"statement_timeout_ms": limit}
        told.append(extract(postgres, query, **config)[0]["ms"])
    assert told == [30_000, 2_000, 7_000, 5_000]


HOSTILE = "a'; drop table x; --"


@table(("mode", "key"), [("insert", None), ("upsert", ["id"]), ("replace", None)])
def test_values_and_names_of_columns_are_no_part_of_a_statement(postgres, mode, key):
    """D-40: names are quoted, values are data, whatever signs both have; a name of a table or a schema has no others."""
    name, odd = f"odd_{uuid4().hex}", 'b"%s; drop'
    quoted = odd.replace('"', '""')
    postgres.execute(f'create table {name} (id int primary key, "{quoted}" text)')
    config = {"mode": mode} | ({} if key is None else {"key": key})
    for value in (HOSTILE, "%(id)s", "\\N", "a\tb", '"', ""):
        if mode == "insert":
            postgres.execute(f"delete from {name}")
        write(postgres, name, [{"id": 1, odd: value}], **config)
        assert extract(postgres, f"select * from {name} where id = %(id)s", {"id": 1}) == [{"id": 1, odd: value}]
    for wrong in ({"table": f'{name}"; drop table x; --'}, {"table": f"public.{name}"}, {"schema": 'public"; drop'}):
        given = {"connection": "@postgres.shop", "table": name, "rows": [{"id": 2}], **wrong}
        told = failure_of("postgres.writer", given, a_context(connection={"url": postgres.dsn}))
        assert (told[0], "expected a name in letters, digits and _" in told[1]) == ("validation_error", True)


def through(proxy):
    return {"host": "127.0.0.1", "port": proxy.port, "database": "components", "user": "postgres", "sslmode": "disable"}


def test_a_server_that_stands_still_is_given_up_when_the_time_is_over(postgres, at_most):
    """Also where no word comes from it any more, and nothing on the wire says so."""
    at_most(0.5)
    with FaultProxy(postgres.socket) as proxy:
        proxy.hold_back(b"held_back", b"held_back")
        begin = monotonic()
        kind, said, _ = wrong_query(through(proxy), "select 1 as held_back")
        assert (kind, said) == ("timeout", "the database did not answer in the time of the attempt")
        assert monotonic() - begin < 30


def test_a_connection_that_is_cut_is_worth_another_attempt(postgres):
    """The driver's words, which have host and user in them, are not handed on."""
    with FaultProxy(postgres.socket) as proxy:
        proxy.fault("stall", when=b"held_back")
        ended = []
        thread = threading.Thread(target=lambda: ended.append(wrong_query(through(proxy), "select 1 as held_back")))
        thread.start()
        while not proxy.struck:
            thread.join(0.01)
        proxy.cut()
        thread.join()
    assert [(kind, said) for kind, said, _ in ended] == [
        ("database_connection", "the connection to the database broke, or what came over it is none of PostgreSQL")
    ]


def test_who_cannot_be_reached_is_told_apart(postgres):
    """Nobody listens, hangs up at once, has no such database: in our words, without host and password."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nobody = wrong_query({"url": f"postgresql://ann:hunter2-x@127.0.0.1:{port}/shop"}, "select 1")
    unknown = wrong_query({"url": postgres.dsn.replace("/components?", "/no_such_database?")}, "select 1")
    with socket.create_server(("127.0.0.1", 0)) as rude:

        def hangs_up():
            rude.accept()[0].close()

        thread = threading.Thread(target=hangs_up)
        thread.start()
        address = f"postgresql://ann:hunter2-x@127.0.0.1:{rude.getsockname()[1]}/shop?sslmode=disable"
        hung_up = wrong_query({"url": address}, "select 1")
        thread.join()
    assert [one[0] for one in (nobody, unknown, hung_up)] == [
        "database_connection",
        "missing_input",
        "database_connection",
    ]
    assert not any(word in one[1] for one in (nobody, unknown, hung_up) for word in ("hunter2", "127.0.0.1", "ann"))
