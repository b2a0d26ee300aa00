"""`supabase.writer` and `supabase.deleter`, against a server that speaks as PostgREST does, on a real PostgreSQL."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from decimal import Decimal
from urllib.parse import unquote
from uuid import UUID, uuid4

import pytest

import outlast
from components.steps.calling import Shelf, a_context, failure_of, outputs_of
from outlast.components.conformance import check_component
from outlast.components.registry import find_component
from outlast.components.running import StepContext
from outlast.testing import FaultProxy
from outlast.verdicts import classify, has_begun, surely_undone
from servers.postgrest import PostgREST
from tables import table

KEY, READER = "k3y-of-the-service", "k3y-of-a-reader"
COLUMNS = "id int primary key, title text not null, price numeric, at timestamptz, doc jsonb, batch text, done bool, ref uuid default gen_random_uuid()"


@pytest.fixture(scope="module")
def rest(postgres):
    postgres.execute(
        # The server serves all tests of this process, and this may be set up more than once.
        "do $$ begin create role supabase_reader; exception when duplicate_object then null; end $$",
        "create schema if not exists other",
        "grant select on all tables in schema public to supabase_reader",
    )
    with PostgREST(postgres.dsn, keys={KEY: None, READER: "supabase_reader"}, schemas=("public", "other")) as running:
        yield running


@pytest.fixture
def movies(postgres, rest):
    """A new table, by its name; the server has been asked for nothing."""
    name = f"movies_{uuid4().hex}"
    postgres.execute(f"create table {name} ({COLUMNS})")
    rest.asked.clear()
    return name


@pytest.fixture
def at_most(monkeypatch):
    return lambda seconds: monkeypatch.setattr(StepContext, "remaining", lambda _: seconds)


def there(server, **fields):
    return {"url": f"http://127.0.0.1:{server.port}", "key": KEY, "allow_private": True, **fields}


def writing(movies, rows, **config):
    return {"connection": "@supabase.main", "table": movies, "rows": rows, **config}


def write(server, movies, rows, **config):
    return outputs_of("supabase.writer", writing(movies, rows, **config), a_context(connection=there(server)))


def unwritten(server, movies, rows, fields=None, **config):
    return failure_of(
        "supabase.writer", writing(movies, rows, **config), a_context(connection=there(server, **fields or {}))
    )


def delete(server, movies, **config):
    given = {"connection": "@supabase.main", "table": movies, **config}
    return outputs_of("supabase.deleter", given, a_context(connection=there(server)))["count"]


def ids(postgres, movies):
    return [int(one) for one in postgres.execute(f"select id from {movies} order by id").split()]


def some(*numbers, **more):
    return [{"id": number, "title": f"t{number}", **more} for number in numbers]


UPSERT = {"mode": "upsert", "on_conflict": ["id"]}
IGNORE = {"mode": "ignore", "on_conflict": ["id"]}


# --- writing ---


def test_rows_are_written_with_what_they_are(postgres, rest, movies):
    """Numbers, instants, documents and texts arrive as they are, in one request, which says what it wants to hear."""
    at = dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)
    row = {
        "id": 1,
        "title": 'a",\\b\n',
        "price": Decimal("1.50"),
        "at": at,
        "doc": {"a": [1, "é"]},
        "done": True,
        "ref": UUID(int=7),
    }
    assert write(rest, movies, [row, {**row, "id": 2, "price": None, "doc": []}]) == {
        "count": 2,
        "table": movies,
        "rows": [],
    }
    found = json.loads(postgres.execute(f"select json_agg(m order by id) from {movies} m"))
    assert [(one["id"], one["title"], one["price"], one["doc"], one["done"], one["ref"]) for one in found] == [
        (1, 'a",\\b\n', 1.5, {"a": [1, "é"]}, True, str(UUID(int=7))),
        (2, 'a",\\b\n', None, [], True, str(UUID(int=7))),
    ]
    assert dt.datetime.fromisoformat(found[0]["at"]) == at
    columns = '"id","title","price","at","doc","done","ref"'
    assert [(one.method, unquote(one.path), one.prefer) for one in rest.asked] == [
        ("POST", f"{movies}?columns={columns}", "return=minimal, count=exact")
    ]


TOOK = dt.timedelta(minutes=39, seconds=5, microseconds=7)


def test_a_duration_is_the_same_one_in_every_column_that_can_hold_it(postgres, rest):
    """A TIME of MySQL is a duration: sent as seconds, 39:05 would be the time of day 23:45 here. What is no time of day is refused."""
    name = f"took_{uuid4().hex}"
    postgres.execute(f"create table {name} (id int, took interval, day_time time, several interval[], doc jsonb)")
    row = {"id": 1, "took": TOOK, "day_time": TOOK, "several": [TOOK, -TOOK], "doc": {"took": [TOOK]}}
    longer, less = dt.timedelta(hours=838, minutes=59, seconds=59), -dt.timedelta(days=1, hours=6, microseconds=1)
    write(rest, name, [row, {**row, "id": 2, "took": longer}, {**row, "id": 3, "took": less}])
    assert postgres.execute(f"select took, day_time, several, doc from {name} order by id").splitlines() == [
        f'{took}|00:39:05.000007|{{00:39:05.000007,-00:39:05.000007}}|{{"took": ["00:39:05.000007"]}}'
        for took in ("00:39:05.000007", "838:59:59", "-30:00:00.000001")
    ]
    refused = [unwritten(rest, name, [{"id": 4, "day_time": no_time}])[:1] for no_time in (longer, less)]
    assert refused == [("data_error",), ("data_error",)]
    assert [
        delete(rest, name, match={"day_time": dt.timedelta(hours=1)}),
        delete(rest, name, match={"took": [TOOK, less]}),
    ] == [0, 2]
    assert ids(postgres, name) == [2]


def test_rows_come_back_as_they_were_written_if_the_step_asks(rest, movies):
    """With what the database has added."""
    done = write(rest, movies, some(1, 2), columns=["id", "title"], returning="rows", **UPSERT)
    assert [(one["id"], one["title"], len(one["ref"])) for one in done["rows"]] == [(1, "t1", 36), (2, "t2", 36)]
    assert rest.asked[0].prefer == "return=representation, count=exact, resolution=merge-duplicates"


def test_exact_numbers_come_back_with_all_their_digits(rest, movies):
    """A float would round them; where it is the same number it is one."""
    rows = some(1, price=Decimal("12345678901234567890.123")) + some(2, price=Decimal("1.10"))
    found = write(rest, movies, rows, returning="rows")["rows"]
    assert [repr(one["price"]) for one in found] == ["Decimal('12345678901234567890.123')", "1.1"]


def test_upsert_changes_rows_that_are_there_and_ignore_leaves_them(postgres, rest, movies):
    """And both count what was sent, so that the second attempt says what the first would have said."""
    write(rest, movies, some(1, 2))
    assert write(rest, movies, [{"id": 2, "title": "new"}, {"id": 3, "title": "c"}], **UPSERT)["count"] == 2
    assert write(rest, movies, [{"id": 3, "title": "newer"}, {"id": 4, "title": "d"}], **IGNORE)["count"] == 2
    assert postgres.execute(f"select title from {movies} order by id").split() == ["t1", "new", "c", "d"]
    assert [one.prefer.partition("exact")[2] for one in rest.asked] == [
        "",
        ", resolution=merge-duplicates",
        ", resolution=ignore-duplicates",
    ]
    assert unquote(rest.asked[1].path).endswith('&on_conflict="id"')


@table(
    ("config", "requests"),
    [
        ({"batch_rows": 3}, [100, 100, 34]),
        ({"batch_rows": 7}, [232]),
        (
            {"batch_bytes": 99},
            [67, 67, 67, 34],
        ),  # each row has 32 bytes; commas stand between them, and brackets around
        ({"batch_bytes": 100}, [100, 100, 34]),
        ({"batch_bytes": 133, "batch_rows": 100}, [133, 100]),
    ],
)
def test_batches_are_bounded_by_rows_and_by_bytes(rest, postgres, config, requests):
    """Each is a request of its own."""
    name = f"movies_{uuid4().hex}"
    postgres.execute(f"create table {name} ({COLUMNS})")
    rest.asked.clear()
    assert write(rest, name, some(*range(1, 8), batch=""), **UPSERT, **config)["count"] == 7
    assert ([one.size for one in rest.asked], len(ids(postgres, name))) == (requests, 7)


def test_rows_that_need_several_requests_are_not_inserted_at_all(rest, postgres, movies):
    """A second attempt would insert those of the first request again: the way out is told, and nothing is sent."""
    kind, said, _ = unwritten(rest, movies, some(1, 2, 3), batch_rows=2)
    assert (kind, rest.asked, ids(postgres, movies)) == ("validation_error", [], [])
    assert "got: rows for 2; raise them, or write mode: upsert with on_conflict" in said


def test_what_was_written_before_a_request_failed_stays_and_is_told(rest, postgres, movies):
    """The next attempt begins with the first request: nothing is there twice, nothing is missing."""
    rest.instead = [None, None, (503, {"Retry-After": "7"}, b"")]
    kind, said, error = unwritten(rest, movies, some(*range(1, 10)), batch_rows=2, **UPSERT)
    assert (kind, classify(error).retry_after, said.endswith("; 4 of 9 rows were written before")) == (
        "unavailable",
        7,
        True,
    )
    assert (ids(postgres, movies), len(rest.asked)) == ([1, 2, 3, 4], 3)
    assert write(rest, movies, some(*range(1, 10)), batch_rows=2, **UPSERT)["count"] == 9
    assert (ids(postgres, movies), len(rest.asked)) == ([*range(1, 10)], 8)


def test_no_rows_are_none(rest, movies):
    """And nobody is asked."""
    assert write(rest, movies, []) == {"count": 0, "table": movies, "rows": []}
    assert rest.asked == []


@table(
    ("config", "idempotent"),
    [({}, False), (UPSERT, True), (IGNORE, True), ({"mode": "${params.mode}", "on_conflict": ["id"]}, False)],
)
def test_it_says_whether_it_may_be_done_twice(config, idempotent):
    """By its config: only a key tells a row that comes again."""
    component = find_component("supabase.writer")
    assert component is not None
    assert component.is_idempotent(writing("movies", [], **config)) is idempotent


# --- what is wrong ---


@table(
    ("rows", "config", "kind", "said"),
    [
        (some(5, 1), {}, "data_error", 'the database says: duplicate key value violates unique constraint "'),
        ([*some(5, batch="hunter2"), {"id": 6, "title": None, "batch": "hunter2"}], {}, "data_error", 'null value in column "title"'),
        ([{"id": "hunter2", "title": "x"}], {}, "data_error", 'the database says: invalid input syntax for type integer: "…"'),
        ([{"id": 5, "title": "a\x00"}], {}, "data_error", "the database says: "),
        (some(5, nope="hunter2"), {}, "client_error", "the table has no such column (PGRST204)"),
        (some(5), {"table": "nope"}, "missing_input", "it knows no such table (PGRST205)"),
        (some(5), {"schema": "hidden"}, "client_error", "it does not serve this schema (PGRST106)"),
        (some(5), {"mode": "upsert", "on_conflict": ["title"]}, "syntax_error", "no unique or exclusion constraint"),
        ([*some(5), {"id": 6}], {}, "validation_error", "expected row 2 to have title, got: no such column"),
        (some(5, 5), UPSERT, "validation_error", "expected each key once, got rows 1 and 2"),
        ([{"id": None, "title": "x"}], UPSERT, "validation_error", "expected row 1 to have id, which is the key"),
        ([{"id": 5, "title": object()}], {}, "validation_error", "row 1 cannot be a row of the table: "),
        ([{"id": 5, "title": "hunter2\ud800"}], {}, "validation_error", "row 1 cannot be a row of the table: a text with half a character"),
        ([{"id": 5, "title": float("nan")}], {}, "validation_error", "NaN and Infinity are no JSON"),
        (some(5, batch="x" * 99), {"batch_bytes": 50}, "validation_error", "expected row 1 to have at most batch_bytes (50), got: more"),
        ([*some(5, doc=1), *some(6, doc={"a": [b"hunter2"]})], {}, "validation_error", "expected row 2, column doc: a value that JSON has, got: bytes"),
        (some(5, batch=memoryview(b"hunter2")), {}, "validation_error", "for bytea one of \\x and hexadecimal digits"),
        (["hunter2"], {}, "validation_error", "expected row 1 to be a mapping"),
    ],
)  # fmt: skip
def test_what_is_refused_is_told_by_its_class_and_changes_nothing(postgres, rest, rows, config, kind, said):
    """S0-27: by the SQLSTATE of the database where there is one, without a value of a row."""
    name = f"movies_{uuid4().hex}"
    postgres.execute(f"create table {name} ({COLUMNS})", f"insert into {name} (id, title) values (1, 'a')")
    found, told, error = unwritten(rest, name, rows, **config)
    assert (found, said in told, "hunter2" in told + repr(error)) == (kind, True, False)
    assert ids(postgres, name) == [1]


def test_what_a_trigger_says_is_kept_and_no_part_of_a_message(postgres, rest, movies):
    """Its words may have values of the row, whatever SQLSTATE it gives them; people find them with what is kept."""
    postgres.execute(
        f"create function {movies}_no() returns trigger language plpgsql as $$ begin "
        "raise exception 'title % is taken', new.title using errcode = new.batch; end $$",
        f"create trigger no before insert on {movies} for each row execute function {movies}_no()",
    )
    told = []
    for code in ("P0001", "23505", "22P02", "42501"):
        shelf = Shelf()
        row = {"id": 1, "title": "hunter2", "batch": code}
        context = a_context(connection=there(rest), place=shelf.place)
        told.append(failure_of("supabase.writer", writing(movies, [row]), context)[:2])
        assert "title hunter2 is taken" in str(shelf.kept["answer"])
        direct = {"connection": "@postgres.shop", "table": movies, "rows": [row]}
        _, said, error = failure_of("postgres.writer", direct, a_context(connection={"url": postgres.dsn}))
        assert (f"SQLSTATE {code}, raised by a function or a trigger" in said, "hunter2" in said + repr(error)) == (
            True,
            False,
        )
    assert told == [
        ("data_error", "the database says: SQLSTATE P0001"),
        ("data_error", "the database says: SQLSTATE 23505"),
        ("data_error", "the database says: SQLSTATE 22P02"),
        ("permission_denied", "the database says: SQLSTATE 42501"),
    ]


def test_who_may_not_is_told_and_what_the_service_said_is_kept(rest, movies):
    """S0-27: a key that is none, and one that may not write."""
    shelf = Shelf()
    context = a_context(connection=there(rest, key=READER), place=shelf.place)
    assert failure_of("supabase.writer", writing(movies, some(1)), context)[:2] == (
        "permission_denied",
        f"the database says: permission denied for table {movies}",
    )
    assert json.loads(shelf.kept["answer"])["code"] == "42501"
    kind, said, _ = unwritten(rest, movies, some(1), {"key": "hunter2-x"})
    assert (kind, said) == (
        "auth_error",
        "POST 127.0.0.1: answered with the status 401, which is not expected; the key is no token that it accepts (PGRST301)",
    )


JSON = {"Content-Type": "application/json"}


def state(code, message="no"):
    return json.dumps({"code": code, "message": message, "details": "hunter2", "hint": None}).encode()


@table(
    ("answer", "kind", "undone"),
    [
        ((500, JSON, state("40P01", "deadlock detected")), "database_error", True),
        ((500, JSON, state("40001")), "database_error", True),
        ((500, JSON, state("40003")), "database_error", False),
        ((500, JSON, state("57P01")), "database_connection", False),
        ((503, JSON, state("08006")), "database_connection", False),
        ((500, JSON, state("57014", "canceling statement due to statement timeout")), "timeout", False),
        ((503, JSON, state("PGRST002")), "unavailable", False),
        ((504, JSON, state("PGRST003")), "server_error", False),
        ((402, JSON, state("PT402")), "quota_exhausted", False),
        ((500, JSON, state("hunter2")), "server_error", False),
        ((502, {}, b"<html>hunter2"), "server_error", False),
        ((429, {"Retry-After": "3"}, b""), "rate_limited", True),
        ((301, {"Location": "http://127.0.0.1:1/"}, b""), "client_error", False),
    ],
)  # fmt: skip
def test_what_the_service_answers_is_classified_by_its_sqlstate_or_its_status(rest, answer, kind, undone):
    """S0-27: also once it has come from another process; that a transaction was rolled back is known."""
    rest.instead = [answer]
    found, said, error = unwritten(rest, "movies", some(1))
    again = pickle.loads(pickle.dumps(error))
    assert (found, classify(again).error_class, "hunter2" in said) == (kind, kind, False)
    assert surely_undone(again, classify(again)) == undone


@table(
    "answer",
    [
        (500, JSON, state("40001")),
        (429, {}, b""),
        (503, {"Retry-After": "0"}, b""),
    ],
)
def test_a_refusal_after_another_request_does_not_prove_that_nothing_was_done(rest, movies, answer):
    """What the first request has written stays: a step that must not be done twice is not tried again."""
    rest.instead = [None, answer]
    _, said, error = unwritten(rest, movies, some(1, 2), mode="upsert", on_conflict=["id"], batch_rows=1)
    again = pickle.loads(pickle.dumps(error))
    assert said.endswith("1 of 2 rows were written before")
    assert (surely_undone(again, classify(again)), classify(again).category) == (False, "transient")


@table(
    ("idempotent", "answer", "asked", "reason"),
    [
        ("false", (429, {}, b""), 2, "ambiguous"),
        ("true", (429, {}, b""), 4, None),
        ("false", (201, {}, b""), 2, "ambiguous"),
        ("true", (201, {}, b""), 2, "permanent"),
    ],
)
def test_rows_of_a_step_that_must_not_be_done_twice_are_not_written_twice(
    rest, movies, tmp_path, monkeypatch, idempotent, answer, asked, reason
):
    """The second of its requests is refused, or its answer does not say what was done; a step that may be done twice is tried again as ever."""
    monkeypatch.setenv("SUPABASE_KEY", KEY)
    (tmp_path / "connections.yaml").write_text(
        f'connections:\n  supabase:\n    main: {{url: "{rest.url}", key: "${{SUPABASE_KEY}}", allow_private: true}}\n'
    )
    (tmp_path / "movies.yaml").write_text(
        f"""oml_version: "0.1.0"
name: movies
steps:
  - id: write
    component: supabase.writer
    config: {{connection: "@supabase.main", table: {movies}, rows: [{{id: 1, title: a}}, {{id: 2, title: b}}], mode: upsert, on_conflict: [id], batch_rows: 1}}
    retry: {{max_attempts: 3, initial_delay_ms: 1, on_errors: [transient]}}
    timeout: {{step: 30s}}
    idempotent: {idempotent}
"""
    )
    rest.asked.clear()
    rest.instead = [None, answer]
    app = outlast.App(f"tests-{uuid4().hex}", store=f"sqlite:///{tmp_path / 'outlast.db'}")
    result = outlast.Flow.load(tmp_path / "movies.yaml").run(app=app, check=False)
    app.store.close()
    assert (len(rest.asked), result["write"].stop_reason) == (asked, reason)


@table("column", ['a","b', 'a"', "a\\"])
def test_a_name_of_a_column_is_no_list_of_them(rest, column):
    """D-40: the columns of rows are names in quotes; one that would end its quotes is refused, and nothing is sent."""
    rest.asked.clear()
    kind, told, _ = unwritten(rest, "movies", [{"id": 1, column: 2}])
    assert (kind, "expected columns without quotes and backslashes" in told, rest.asked) == (
        "validation_error",
        True,
        [],
    )


@table(
    ("answer", "config", "said"),
    [
        ((201, {"Content-Range": "*/1"}, b""), {}, "expected the service to say that 2 rows were written, got: 1; a policy or a trigger of the table"),
        ((201, {"Content-Range": "*/3"}, b""), IGNORE, "that 2 rows were written, got: 3"),
        ((201, {}, b""), {}, "expected the service to say how many rows there were (Content-Range), got: nothing"),
        ((201, {"Content-Range": "*/*"}, b""), {}, "expected the service to say how many rows there were"),
        ((200, {"Content-Range": "0-1/2"}, b"[{}]"), {"returning": "rows"}, "expected the service to say the 2 rows that were written, got: 1"),
        ((201, {"Content-Range": "*/2"}, b"hunter2"), {"returning": "rows"}, "expected the service to give back rows, got: another answer"),
    ],
)  # fmt: skip
def test_an_answer_that_does_not_fit_what_was_asked_is_no_success(rest, answer, config, said):
    """Who answers that all is well and does not say what was done, or says something else, is not believed."""
    rest.instead = [answer]
    kind, told, error = unwritten(rest, "movies", some(1, 2), **config)
    unknown = "Content-Range" in said or "how many" in said
    assert (kind, said in told, "hunter2" in told) == ("unknown" if unknown else "data_error", True, False)
    assert has_begun(error)
    assert not surely_undone(error, classify(error))


def test_rows_that_a_trigger_leaves_out_are_an_error(postgres, rest, movies):
    """The database says so itself: fewer were written than were sent."""
    postgres.execute(
        f"create function skips_{movies}() returns trigger language plpgsql as 'begin if new.id = 2 then return null; end if; return new; end'",
        f"create trigger skips before insert on {movies} for each row execute function skips_{movies}()",
    )
    assert unwritten(rest, movies, some(1, 2, 3))[:2] == (
        "data_error",
        "expected the service to say that 3 rows were written, got: 2; a policy or a trigger of the table may have left some out",
    )


# --- deleting ---


def test_rows_go_by_the_values_of_their_columns(postgres, rest, movies):
    """All conditions hold; a list is any of its values; a column named is_null is empty."""
    write(
        rest,
        movies,
        some(1, 2, 3, batch="b-1", done=True) + some(4, batch="b-2", done=False) + some(5, 6, batch=None, done=None),
    )
    assert delete(rest, movies, match={"batch": "b-1", "id": [1, 2, 9], "done": True}) == 2
    assert delete(rest, movies, match={"batch": "b-1", "id": [1, 2, 9], "done": True}) == 0
    assert delete(rest, movies, match={"id": 5}, is_null=["batch", "done"]) == 1
    assert delete(rest, movies, match={"id": []}) == 0
    assert ids(postgres, movies) == [3, 4, 6]


ODD = [
    "a,b",
    'a"b',
    "a.b",
    "(a)",
    "null",
    "true",
    "*",
    "%",
    "a\\b",
    'a\\"',
    "é ü&=+#?/",
    "eq.a",
    "",
    " ",
    "not.is.null",
    "a\nb",
]


@table("value", ODD)
def test_a_value_means_itself_whatever_signs_it_has(postgres, rest, value):
    """By itself or in a list: the row that has it goes, and no other."""
    name = f"movies_{uuid4().hex}"
    postgres.execute(f"create table {name} ({COLUMNS})")
    rows = [{"id": number, "title": one} for number, one in enumerate(ODD)]
    for match in (value, [value, "nobody has this"]):
        write(rest, name, rows, **UPSERT)
        assert delete(rest, name, match={"title": match}) == 1
        assert ids(postgres, name) == [number for number, one in enumerate(ODD) if one != value]


def test_columns_whose_names_mean_something_else_there_are_columns(postgres, rest):
    """Else all rows would go: limit=eq.1 is no condition."""
    name = f"odd_{uuid4().hex}"
    columns = ("select", "order", "limit", "offset", "columns", "on_conflict", "and", "or", "not")
    listed = ", ".join(f'"{one}" int' for one in columns)
    postgres.execute(f"create table {name} ({listed})")
    for column in columns:
        postgres.execute(f"truncate {name}", f'insert into {name} ("{column}") values (1), (2)')
        assert (column, delete(rest, name, match={column: 1})) == (column, 1)


@table(
    ("config", "said"),
    [
        ({}, "expected match or is_null"),
        ({"match": {}}, "expected match or is_null"),
        ({"match": {}, "is_null": []}, "expected match or is_null"),
        ({"match": {"batch": None}}, "match.batch: expected a value"),
        ({"match": {"batch": ["a", None]}}, "match.batch: expected a value"),
        ({"match": {"batch": {"a": 1}}}, "match.batch: expected a value, or a list of values"),
        ({"match": {"batch.x": 1}}, "expected a name in letters, digits and _"),
        ({"match": {"id": 1}, "is_null": ["id"]}, "expected a column in match or in is_null"),
        ({"match": {"batch": "a\x00"}}, "expected batch of match to be a text that PostgreSQL can keep"),
        ({"match": {"batch": b"a"}}, "expected batch of match to be a value, got: one of type bytes"),
        ({"match": {"batch": object()}}, "expected batch of match to be a value, got: one of type object"),
        ({"match": {"id": list(range(5000))}}, "expected an address of at most 8000 characters, got: "),
    ],
)
def test_a_delete_that_may_take_others_is_refused(postgres, rest, config, said):
    """Without a condition, with one that nobody has given a value, or with one that cannot be sent: nobody is asked."""
    rest.asked.clear()
    given = {"connection": "@supabase.main", "table": "movies", **config}
    kind, told, _ = failure_of("supabase.deleter", given, a_context(connection=there(rest)))
    assert (kind, said in told, rest.asked) == ("validation_error", True, [])


def test_a_schema_is_that_of_the_step_or_of_the_connection(postgres, rest):
    """Tables of others are reached by the header for it."""
    name = f"m_{uuid4().hex}"
    postgres.execute(f"create table other.{name} (id int primary key, title text)")
    given = writing(name, some(1, 2))
    assert outputs_of("supabase.writer", given, a_context(connection=there(rest, schema="other")))["count"] == 2
    assert delete(rest, name, match={"id": 1}, schema="other") == 1
    assert ids(postgres, f"other.{name}") == [2]


def test_the_schema_of_a_step_wins_over_that_of_its_connection(postgres, rest):
    """Both are given: rows are written to the schema of the step, and deleted there."""
    name = f"m_{uuid4().hex}"
    for schema in ("public", "other"):
        postgres.execute(f"create table {schema}.{name} (id int primary key, title text)")
    context = a_context(connection=there(rest, schema="public"))
    assert outputs_of("supabase.writer", writing(name, some(1, 2), schema="other"), context)["count"] == 2
    assert (ids(postgres, f"public.{name}"), ids(postgres, f"other.{name}")) == ([], [1, 2])
    deletion = {"connection": "@supabase.main", "table": name, "schema": "other", "match": {"id": 1}}
    assert outputs_of("supabase.deleter", deletion, context)["count"] == 1
    assert ids(postgres, f"other.{name}") == [2]


# --- faults ---


@table(
    ("fault", "kind", "written"),
    [
        ("reset_before", "connection_reset", []),
        ("reset_after", "connection_reset", [1, 2]),
        ("half_close", "connection_reset", [1, 2]),
        ("garbage", "connection_reset", [1, 2]),
        ("stall", "timeout", [1, 2]),
    ],
)
def test_faults_on_the_way_are_worth_another_attempt_that_doubles_nothing(
    postgres, rest, at_most, fault, kind, written
):
    """S0-27: with a key the same rows may be sent again; each attempt is one request."""
    name = f"movies_{uuid4().hex}"
    postgres.execute(f"create table {name} ({COLUMNS})")
    with FaultProxy(("127.0.0.1", rest.port)) as proxy:
        proxy.fault(fault, when=b"POST")
        rest.asked.clear()
        if fault == "stall":
            at_most(0.4)
        found, _, _ = unwritten(proxy, name, some(1, 2), **UPSERT)
        at_most(None)
        assert (found, proxy.struck, ids(postgres, name)) == (kind, [fault], written)
        asked = len(rest.asked)
        assert write(proxy, name, some(1, 2), **UPSERT)["count"] == 2
        assert (ids(postgres, name), len(rest.asked) - asked) == ([1, 2], 1)
        proxy.fault("reset_after", when=b"DELETE")
        given = {"connection": "@supabase.main", "table": name, "match": {"id": [1, 2]}}
        assert failure_of("supabase.deleter", given, a_context(connection=there(proxy)))[0] == "connection_reset"
        assert (ids(postgres, name), delete(proxy, name, match={"id": [1, 2]})) == ([], 0)


def test_they_are_what_a_step_relies_on(postgres, rest, movies):
    """The check that authors of components are given; one request for each attempt, and no key in any message."""
    here = {"connection": there(rest), "calls": lambda: len(rest.asked)}
    bad = some(1, nope=1)
    for config in (UPSERT, IGNORE, {**UPSERT, "returning": "rows"}, {}):
        rows = some(7) if config else some(8)
        check_component("supabase.writer", writing(movies, rows, **config), failing=writing(movies, bad), **here)
    given = {"connection": "@supabase.main", "table": movies}
    nobody = {**given, "match": {"id": 99}}
    assert check_component("supabase.deleter", nobody, failing={**given, "match": {"nope": 1}}, **here) == {"count": 0}
    assert ids(postgres, movies) == [7, 8]
