"""
Stores that older versions of Outlast have made, with runs and dead letters in the middle of things: they open, resume and replay today, on both databases.

The stores are in ``old/``, with the program that made them. A schema of today's becomes an old one when the next migration lands: make one more then.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shutil
import sqlite3
import threading
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

import outlast
from job_rows import claimed, end, enqueued, failed, finished, story, worker
from outlast.cli.commands import command_line
from outlast.store import StoreRefused, bring_up_to_date, database, open_store, schema_of
from stores import STAGES, changes, letter, sql

OLD = Path(__file__).parent / "old"
NAMES = sorted((path.stem for path in OLD.glob("*.db")), key=lambda name: int(name.rpartition("-")[2]))


def _load(name):
    spec = importlib.util.spec_from_file_location(f"old_{name}", OLD / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pipelines, durable = _load("pipelines"), _load("durable")


def _named(dsn, name):
    head, _, options = dsn.partition("?")
    return f"{head.rpartition('/')[0]}/{name}?{options}"


def _put_sink(connection, folder, name):
    """Where the sink is now, for versions that have put it on record."""
    if name != "schema-2":
        connection.execute(f"update outlast_runs set sink_at = replace(sink_at, '/where/it/was', '{folder}')")


@pytest.fixture(params=[(name, kind) for name in NAMES for kind in ("sqlite", "postgres")], ids="-".join)
def old(request, tmp_path, monkeypatch):
    """The address of a store as an older version has left it; its sink is in the current folder."""
    name, kind = request.param
    monkeypatch.chdir(tmp_path)
    shutil.copy(OLD / f"{name}.jsonl", tmp_path / "out.jsonl")
    if kind == "sqlite":
        shutil.copy(OLD / f"{name}.db", tmp_path / "store.db")
        with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as connection:
            _put_sink(connection, tmp_path, name)
            connection.commit()
        yield f"sqlite:///{tmp_path}/store.db"
        return
    server = request.getfixturevalue("postgres")
    server.execute("create database old")
    with psycopg.connect(_named(server.dsn, "old"), autocommit=True) as connection:
        connection.execute((OLD / f"{name}.sql").read_text())
        _put_sink(connection, tmp_path, name)
    yield _named(server.dsn, "old")
    server.execute("drop database old with (force)")


@pytest.fixture
def app(old):
    app = outlast.App("shop", store=old)
    yield app
    app.store.close()


def test_an_old_store_opens_with_all_that_was_in_it(app):
    """C-28: runs, items, attempts, events and dead letters are read as they were, and the schema is today's."""
    store = app.store
    assert schema_of_store(store) == len(database._migrations(store._database.name))
    runs = {(run.pipeline, run.run_key): run for run in store.runs() if run.kind == "run"}
    assert {key: run.status for key, run in runs.items()} == {
        ("nightly", "first"): "completed",
        ("nightly", "second"): "completed",
        ("nightly", "third"): "running",
        ("pictures", "one"): "completed",
        ("things", "one"): "completed",
    }
    items = [row for row in store.letters() if row.kind == "item"]
    assert Counter(row.status for row in items) == {"open": 6, "replaying": 1, "archived": 1, "resolved": 1}
    third = runs["nightly", "third"]
    assert [item.status for item in store.items(third.number)] == ["succeeded"] * 2 + ["dlq"] + ["succeeded"] * 4
    second = runs["nightly", "second"]
    assert Counter(row.outcome for row in store.attempts(second.number)) == {"success": 8, "retrying": 6, "failed": 6}
    assert {event.name for event in store.events()} >= {"run_started", "run_finished"}


def schema_of_store(store):
    return sql(store, "select version from outlast_schema")[0][0]


def test_an_interrupted_run_of_an_old_store_goes_on(app):
    """What is finished stays, what has a checkpoint begins behind it, and the sink is exact: half a line that was never committed is cut off."""
    seen = []
    result = pipelines.nightly(app, seen).run(pipelines.ROWS, run_key="third", item_key="id", sink="out.jsonl")
    assert (result.status, result.counts.total, result.counts.succeeded, result.counts.dlq) == ("completed", 12, 11, 1)
    assert sorted(seen) == [("label", number, ("review", str(number))) for number in range(7, 12)]
    written = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert sorted(row["id"] for row in written) == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11]


def test_a_completed_run_of_an_old_store_stays_as_it_is(app):
    """Its outputs are read; started again, it has nothing to do."""
    seen = []
    result = pipelines.nightly(app, seen).run(pipelines.ROWS[:3], run_key="first", item_key="id")
    assert (result.status, result.counts.succeeded, seen) == ("completed", 3, [])
    assert [output["id"] for output in result.outputs()] == [0, 1, 2]


def test_the_dead_letters_of_an_old_store_are_replayed(app):
    """From the stage that failed with the input it had, also the one that a dead replay held; what was put away stays away."""
    seen = []
    result = pipelines.nightly(app, seen).reprocess()
    assert (result.status, result.counts.succeeded) == ("completed", 5)
    assert sorted(seen) == [("label", number, ("review", str(number))) for number in (2, 6, 7, 8, 9)]
    letters = app.dead_letters.find(pipeline="nightly", status=None)
    assert Counter(letter.status for letter in letters) == {"resolved": 6, "archived": 1}


def test_a_letter_of_an_old_store_comes_home(app):
    """D-25: what its replay gives is in the sink of the run that it comes from, once, and that run has no dead letter any more."""
    pipeline = pipelines.nightly(app, [])
    pipeline.run(pipelines.ROWS, run_key="third", item_key="id", sink="out.jsonl")
    pipeline.reprocess()
    written = [json.loads(line)["id"] for line in Path("out.jsonl").read_text().splitlines()]
    assert sorted(written) == list(range(12))
    third = app.store.find_run("nightly", "third")
    assert (third.status, third.counts.succeeded, third.counts.dlq) == ("completed", 12, 0)


def test_what_an_old_store_could_not_keep_is_made_again_or_refused(app):
    """D-23: a letter with a placeholder begins at its source, and one without any is refused; no stage ever sees the placeholder."""
    seen = []
    result = pipelines.pictures(app, seen).reprocess()
    assert (result.status, seen, list(result.outputs())) == ("completed", [("measure", "Picture")], [10])
    result = pipelines.things(app, seen).reprocess(check=False)
    assert (result.counts.succeeded, seen) == (0, [("measure", "Picture")])
    assert [letter.status for letter in app.dead_letters.find(pipeline="things", status=None)] == ["open"]


# -- jobs ------------------------------------------------------------------------------------------------------------------

WITH_JOBS = [(name, kind) for name in NAMES if int(name.rpartition("-")[2]) > 9 for kind in ("sqlite", "postgres")]


@pytest.mark.parametrize("old", WITH_JOBS, indirect=True, ids="-".join)
def test_the_jobs_of_an_old_store_are_worked_off(app):
    """D-32: one that was queued, one due later, one whose worker died, one whose code still ran then; results, keys and a paused queue are as they were."""
    seen = []
    kinds = durable.declare(app, seen)
    rows = sorted(app.store.jobs(limit=100), key=lambda row: row.id)
    done, refused, hesitated, written, due, stayed, lingered = (app.jobs.get(str(row.id)) for row in rows)
    assert [(row.kind, row.state) for row in rows] == [
        ("send", "succeeded"),
        ("refuse", "failed"),
        ("hesitate", "waiting"),
        ("write", "ready"),
        ("send", "ready"),
        ("stay", "processing"),
        ("linger", "held"),
    ]
    assert kinds["send"].options(unique_key="done").enqueue(1).result() == 2
    assert kinds["send"].options(unique_key="due").enqueue(5).id == due.id
    result = app.work(until_idle=True)
    assert (result.succeeded, result.failed, result.later, written.status) == (4, 0, 0, "queued")
    app.jobs.resume("mail")
    app.jobs.requeue(refused.id)
    assert app.work(until_idle=True).succeeded == 2
    assert {handle.id: [row.outcome for row in handle.history()] for handle in (done, refused, hesitated)} == {
        done.id: ["succeeded"],
        refused.id: ["failed", "succeeded"],
        hesitated.id: ["failed", "succeeded"],
    }
    assert [[row.outcome for row in handle.history()] for handle in (written, due, stayed, lingered)] == [
        ["succeeded"],
        ["succeeded"],
        ["crashed", "succeeded"],
        ["timeout", "succeeded"],
    ]
    assert sorted(seen) == [("hesitate", 3), ("linger", 7), ("refuse", 2), ("send", 5), ("stay", 6), ("write", 4)]
    letters = app.dead_letters.find(pipeline="refuse", status=None)
    assert [letter.status for letter in letters] == ["resolved"]
    assert app.jobs.workers() == []


# -- while others have it open ---------------------------------------------------------------------------------------------

# What a program of schema 2 writes, column by column; it knows nothing of what came later.
_OF_OLD = """
insert into outlast_runs (id, app, pipeline, run_key, kind, stages, sink, started, status, why) values ('{id}', 'shop',
    'nightly', '{id}', 'run', '[]', null, 1, 'running', '');
insert into outlast_shards (run, shard) values ({n}, 0);
insert into outlast_progress (run, shard) values ({n}, 0);
insert into outlast_items (run, seq, key, status, stage, attempts, degraded, reason, warnings, spent, output, started,
    took, waits) values ({n}, 0, 'a', 'dlq', 0, 1, {false}, 'x', null, null, null, 1, 1, null);
insert into outlast_attempts (run, seq, stage, pass, number, outcome, started, took, error_class, error_type, error,
    delay, spent, waits) values ({n}, 0, 0, 1, 1, 'failed', 1, 1, 'data_error', 'ValueError', 'x', null, null, null);
insert into outlast_checkpoints (run, seq, stage, key, version, output) values ({n}, 0, 0, 'a', '1', {bytes});
insert into outlast_dead_letters (id, run, seq, pipeline, stage, item_key, kind, payload, error, error_type,
    error_class, tier, fingerprint, attempts, first_failed, last_attempt, created, status, replays, reason, metadata,
    original, app, moved) values ('{id}', '{id}', 0, 'nightly', 'label', 'a', 'item', {bytes}, 'x', 'ValueError',
    'data_error', 'data', 'f', 1, 1, 1, 1, 'open', 0, null, '{{}}', null, 'shop', 1);
insert into outlast_events (id, app, run, name, at, data) values ('{id}', 'shop', '{id}', 'run_started', 1, '{{}}');
insert into outlast_states (app, kind, name, version, data, changed) values ('shop', 'breaker', '{id}', 1, '{{}}', 1);
update outlast_progress set read = 1, sink_offset = null, exhausted = {false}, dlq = dlq + 1, spent = '{{}}' where run =
    {n} and shard = 0;
update outlast_runs set status = 'completed', reason = null, why = '', finished = 2 where app = 'shop' and id = '{id}'
"""


def _old_program(connection, number, kind):
    words = {"id": f"{number:032x}", "n": number, "false": "0" if kind == "sqlite" else "false"}
    words["bytes"] = "x'7b22'" if kind == "sqlite" else "'\\x7b22'::bytea"
    for statement in _OF_OLD.split(";"):
        connection.execute(statement.format(**words))


def test_a_program_that_has_the_store_open_goes_on_while_a_newer_one_migrates(old, monkeypatch):
    """C-28: the newer one waits for the transaction under way, and the older one writes before, during and after it; what it wrote is read."""
    known = database._migrations
    more = "alter table outlast_items add column one_more text; create table outlast_one_more (a bigint);"
    monkeypatch.setattr(database, "_migrations", lambda name: [*known(name), more])
    plain = database_of(old)
    older = plain.connect(batches=False)
    opened, failed = [], []

    def newer():
        try:
            opened.append(open_store(old, app="shop"))
        except Exception as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    older.execute("begin")
    _old_program(older, 1001, plain.name)
    thread = threading.Thread(target=newer)
    thread.start()
    _old_program(older, 1002, plain.name)
    assert opened == []
    older.execute("commit")
    thread.join(30)
    assert failed == []
    older.execute("begin")
    _old_program(older, 1003, plain.name)
    older.execute("commit")
    older.close()
    with opened[0] as store:
        for number in (1001, 1002, 1003):
            run, letter = store.run(f"{number:032x}"), store.letter(f"{number:032x}")
            assert (run.status, letter.status, letter.payload) == ("completed", "open", b'{"')
            assert [item.status for item in store.items(number)] == ["dlq"]
            assert [attempt.outcome for attempt in store.attempts(number)] == ["failed"]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_program_of_the_version_before_goes_on_beside_one_that_has_jobs(kind, request, tmp_path, monkeypatch):
    """D-32: it has the store open with schema 9; the newer one migrates and works on jobs, the older one on runs and letters."""
    server = request.getfixturevalue("postgres") if kind == "postgres" else None
    address = f"sqlite:///{tmp_path}/store.db" if server is None else _named(server.dsn, "before")
    if server is not None:
        server.execute("create database before")
    try:
        with monkeypatch.context() as patched:
            patched.setattr(database, "_scripts", lambda name, known=database._scripts: known(name)[:9])
            older = open_store(address)
            assert (schema_of_store(older), schema_of(address).current) == (9, True)
            run = older.open_run("reviews", "today", STAGES)
            lease = older.take_run(run.number, 0, "older", 600)
            older.write(lease, changes(0, 1))
        with open_store(address) as newer:
            (number,) = enqueued(newer)
            (job,) = claimed(newer, mine := worker(newer))
            older.write(lease, changes(2, dead_letters=[letter(10**9)]))
            finished(newer, mine, failed(job))
            assert newer.requeue_job(number)
            assert {row.kind: row.status for row in older.letters()} == {"item": "open", "job": "replaying"}
            (job,) = claimed(newer, mine)
            finished(newer, mine, end(job))
            older.set_run(lease, run.id, status="completed")
            assert story(newer, number) == (["failed", "succeeded"], "succeeded")
            assert newer.run(run.id).counts.succeeded == 3
        older.close()
    finally:
        if server is not None:
            server.execute("drop database before with (force)")


def database_of(url):
    from outlast.store import _database
    from outlast.store.address import Address

    return _database(Address(url), None)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_migrations_only_add(kind):
    """
    From the third on: tables, indexes, functions, columns that an older program need not fill in, and rows of a table that
    none knows. A function may be made anew if it takes and gives what it did.
    """
    functions = set()
    statements = [text for migration in database._migrations(kind)[2:] for text in database._statements(migration)]
    for statement in statements:
        words = " ".join(statement.lower().split())
        column = re.match(r"alter table \w+ add column (if not exists )?\w+ ", words)
        made = re.match(r"create (table|(unique )?index|function) |insert into outlast_store ", words)
        head, again = re.subn(r"^create or replace function ", "create function ", words.partition(" as $$")[0])
        # The body of a function as it is in the store, with one line made anew: it takes and gives what it did.
        edited = words.startswith("do $$ begin execute replace( pg_get_functiondef('outlast_turn'::regproc),")
        assert column or made or edited or (again and head in functions), statement
        functions.add(head)
        # Of a table that was there before, an older program might break the rule.
        assert not words.startswith("create unique index") or " on outlast_jobs " in words, statement
        assert not column or "not null" not in words or " default " in words, statement


# -- the command -----------------------------------------------------------------------------------------------------------


def _outlast(*arguments):
    done = CliRunner().invoke(command_line(arguments), [*arguments], catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


def test_migrate_says_what_is_missing_and_does_it(old, monkeypatch):
    """`--check` changes nothing and exits with 1; afterwards it exits with 0; a store of a newer version, or none, with 2."""
    known = database._migrations
    monkeypatch.setattr(
        database, "_migrations", lambda name: [*known(name), "create table outlast_one_more (a bigint);"]
    )
    wanted = len(database._migrations("sqlite"))
    before = schema_of(old)
    code, out, _ = _outlast("migrate", "--check", "--store", old, "--json")
    said = json.loads(out)
    assert (code, said["schema"], said["wanted"], said["up_to_date"]) == (1, before.found, wanted, False)
    assert said["missing"] == list(before.missing)
    code, out, _ = _outlast("migrate", "--check", "--store", old)
    assert (code, f"The store has schema {before.found}" in out) == (1, True)
    assert schema_of(old) == before
    code, out, _ = _outlast("migrate", "--store", old)
    assert (code, f"from schema {before.found} to {wanted}" in out) == (0, True)
    assert _outlast("migrate", "--check", "--store", old)[:2] == (0, f"The store is up to date: schema {wanted}.\n")
    code, out, _ = _outlast("migrate", "--store", old, "--json")
    assert (code, json.loads(out)["up_to_date"], json.loads(out)["done"]) == (0, True, [])
    monkeypatch.setattr(database, "_migrations", known)
    code, _, err = _outlast("migrate", "--check", "--store", old)
    assert (code, "made by a newer Outlast" in err) == (2, True)
    code, _, err = _outlast("migrate", "--store", old)
    assert (code, "made by a newer Outlast" in err) == (1, True)
    assert _outlast("migrate", "--check", "--store", "sqlite:///nowhere.db")[0] == 2
    assert _outlast("migrate", "--check", "--store", "postgresql://127.0.0.1:1/shop")[0] == 2
    assert not Path("nowhere.db").exists()


def test_a_role_that_may_not_alter_tables_is_told_what_to_run(postgres, monkeypatch):
    """Opening says it and changes nothing; once the owner has run `outlast migrate`, that role works."""
    postgres.execute("create database owned", "drop role if exists worker", "create role worker login")
    owner, worker = _named(postgres.dsn, "owned"), _named(postgres.dsn, "owned").replace("//postgres:", "//worker:")
    known = database._migrations
    try:
        bring_up_to_date(owner)
        with psycopg.connect(owner) as connection:
            connection.execute("grant select, insert, update, delete on all tables in schema public to worker")
            connection.execute("grant usage on all sequences in schema public to worker")
        with open_store(worker) as store:
            store.open_run("reviews", "today", ())
        more = "alter table outlast_items add column one_more text;"
        monkeypatch.setattr(database, "_migrations", lambda name: [*known(name), more])
        with pytest.raises(
            StoreRefused,
            match=r"may not change its tables\. Run `outlast migrate --store URL` once, as the user who owns",
        ):
            open_store(worker)
        assert _outlast("migrate", "--check", "--store", worker)[0] == 1
        assert _outlast("migrate", "--store", worker)[0] == 1
        assert _outlast("migrate", "--store", owner)[0] == 0
        with open_store(worker) as store:
            assert [run.run_key for run in store.runs()] == ["today"]
    finally:
        postgres.execute("drop database owned with (force)", "drop role worker")
