"""
Behind PgBouncer, which lends a connection for one transaction: nothing that workers and runs do depends on a session.

The tests of the store and of workers with the mark `pooled` run here too; these are about the pooler itself.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack

import asyncpg
import psycopg
import pytest

import outlast
from labor import Beside, jobs, living, notes, outcomes, wait_until
from outlast.store import leases
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres

LENDS = 4


def sessions(address):
    """What each connection says that the pooler has to lend: its settings, channels, prepared statements and locks."""
    found = {}
    with ExitStack() as stack:
        for _ in range(LENDS):
            connection = stack.enter_context(psycopg.connect(address, prepare_threshold=None))
            (pid,) = connection.execute("select pg_backend_pid()").fetchone()  # its transaction keeps it
            found[pid] = {
                "settings": connection.execute("select name from pg_settings where source = 'session'").fetchall(),
                "channels": connection.execute("select * from pg_listening_channels()").fetchall(),
                "prepared": connection.execute("select name from pg_prepared_statements").fetchall(),
                "locks": connection.execute(
                    "select objid from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
                ).fetchall(),
                "temporary": connection.execute(
                    "select relname from pg_class where relpersistence = 't' and relnamespace = pg_my_temp_schema()"
                ).fetchall(),
            }
    return found


@pytest.mark.failure(19)
def test_nothing_is_left_in_the_sessions_that_were_lent(pooled_app, pooler, postgres):
    """No lock, no channel, no prepared statement, no setting but the name and the encoding of the client."""
    fresh = pooler.dsn(postgres)

    @pooled_app.job
    async def square(number: int) -> int:
        return number * number

    @outlast.stage
    def double(number: int) -> int:
        return 2 * number

    with Beside(pooled_app):
        square.enqueue_many({"number": number} for number in range(300))
        handles = [square.enqueue(number) for number in range(30)]  # often enough for a driver to prepare it
        assert [handle.result(200) for handle in handles] == [number * number for number in range(30)]
    run = outlast.Pipeline("doubles", double, app=pooled_app).run(range(500), run_key="today")
    assert run.counts.succeeded == 500
    pooled_app.dead_letters.groups()
    for held in sessions(fresh).values():
        assert {name for (name,) in held.pop("settings")} <= {"application_name", "client_encoding"}
        assert held == {"channels": [], "prepared": [], "locks": [], "temporary": []}
    with psycopg.connect(fresh, application_name="somebody else") as connection:
        assert connection.execute("show application_name").fetchone() == ("somebody else",)
        assert connection.execute("show lock_timeout").fetchone() == ("0",)


def test_a_worker_behind_a_pooler_polls_and_says_so_once(pooled_app, caplog, monkeypatch):
    """What it cannot be told of it finds within a second; it does not try to listen again and again."""
    listens = []
    execute = psycopg.Connection.execute
    monkeypatch.setattr(
        psycopg.Connection,
        "execute",
        lambda self, *given, **how: (listens.append(given[0]), execute(self, *given, **how))[1],
    )
    monkeypatch.setattr("outlast.jobs.waking._AGAIN", 0.001)

    @pooled_app.job
    async def note(name: str) -> str:
        return name

    with Beside(pooled_app) as beside:
        wait_until(lambda: beside.worker._later is not None, "the worker is idle")
        assert [note.enqueue(name).result(200) for name in "ab"] == ["a", "b"]
    (said,) = [record.getMessage() for record in caplog.records if "polling" in record.getMessage()]
    assert said == (
        "new jobs are found by polling, up to a second late: the store is behind a connection pooler. "
        "With the address of the server itself a worker hears of them at once."
    )
    assert [statement for statement in listens if "listen" in str(statement)] == []


def test_a_worker_beside_a_pooler_hears_of_jobs_that_come_through_it(postgres_app, pooled_app):
    """Programs enqueue through the pooler; only workers need an address of the server itself to be told at once."""

    @pooled_app.job
    async def note(name: str) -> str:
        return name

    other = outlast.App(pooled_app.name, store=postgres_app.store_url)
    other.job(note.fn)
    with Beside(other) as beside:
        wait_until(lambda: beside.worker._later is not None, "the worker is idle")
        assert note.enqueue("a").result(200) == "a"
    other.store.close()


@pytest.mark.failure(19)
@pytest.mark.timeout(240)
def test_a_transaction_of_a_stopped_process_is_ended_through_the_pooler(pooled_app, pooler, postgres):
    """Found by its name, which is that of the transaction and of no session; the pooler goes on lending."""
    store = pooled_app.store
    lease = store.take_lease("worker", "stopped", "here", 600.0)
    name = leases.label(pooled_app.name, "worker", "stopped")
    with psycopg.connect(pooler.dsn(postgres), prepare_threshold=None) as hangs:
        hangs.execute("select set_config('application_name', %s, true)", (name,))
        hangs.execute("select 1 from outlast_leases where key = 'stopped' and token = %s for update", (lease.token,))
        with store._database.writing() as tx:
            store._database.evict(tx, [name])
        with pytest.raises(psycopg.OperationalError):
            hangs.execute("select 1")
    store.drop_lease(lease)
    assert living(pooled_app) == []


def test_asyncpg_enqueues_through_the_pooler(pooled_app):
    """Its own cache of prepared statements off, as PgBouncer before 1.21 wants it."""

    @pooled_app.job
    async def note(name: str) -> str:
        return name

    async def enqueue():
        connection = await asyncpg.connect(pooled_app.store_url, statement_cache_size=0)
        try:
            handles = []
            for name in "abcdefg":
                async with connection.transaction():
                    handles.append(await note.options(transaction=connection).aenqueue(name))
            return handles
        finally:
            await connection.close()

    handles = asyncio.run(enqueue())
    assert pooled_app.work(until_idle=True).succeeded == 7
    assert [handle.result() for handle in handles] == list("abcdefg")


@pytest.mark.failure(35)
@pytest.mark.timeout(240)
def test_the_database_behind_the_pooler_is_restarted_under_a_worker(tmp_path):
    """The pooler says what it says of wrong clients; the worker waits, and every job is done."""
    with Postgres() as postgres, PgBouncer(postgres, patience=2) as pooler:
        app = outlast.App("restarted", store=pooler.dsn(postgres))
        kinds = jobs(app, tmp_path)
        held = kinds["hold"].enqueue("a")
        with Beside(app):
            wait_until(lambda: "begins a" in notes(tmp_path), "the job has begun")
            postgres.stop("immediate")
            (tmp_path / "go a").touch()
            wait_until(lambda: "ends a" in notes(tmp_path), "its code has ended, and its end cannot be written")
            with pytest.raises(outlast.errors.TemporaryFailure):
                held.status
            postgres.start()
            wait_until(lambda: _status(held) == "succeeded", "its end is on record")
            after = kinds["quick"].enqueue("b")
            wait_until(lambda: after.status == "succeeded", "it goes on with others")
        assert (outcomes(held), outcomes(after)) == (["succeeded"], ["succeeded"])
        app.store.close()


def _status(handle):
    try:
        return handle.status
    except outlast.errors.TemporaryFailure:
        return None


@pytest.mark.timeout(240)
def test_the_pooler_is_restarted_under_a_worker(postgres, tmp_path):
    """Connections are cut in the middle of anything, and there is nothing to connect to for a while."""
    with PgBouncer(postgres) as pooler:
        app = outlast.App("pooler-restarted", store=pooler.dsn(postgres))
        kinds = jobs(app, tmp_path)
        held = kinds["hold"].enqueue("a")
        with Beside(app):
            wait_until(lambda: "begins a" in notes(tmp_path), "the job has begun")
            pooler.stop()
            (tmp_path / "go a").touch()
            wait_until(lambda: "ends a" in notes(tmp_path), "its code has ended")
            pooler.start()
            wait_until(lambda: _status(held) == "succeeded", "its end is on record")
        assert outcomes(held) == ["succeeded"]
        app.store.close()


def test_a_run_over_items_goes_through_the_pooler(pooled_app, tmp_path):
    """Letters, checkpoints, a file as sink, a run that goes on, and a replay."""
    mended = []

    @outlast.stage(checkpoint=True)
    def parse(row: dict) -> dict:
        return {"id": int(row["id"])}

    @outlast.stage
    def label(row: dict) -> dict:
        if row["id"] == 7 and not mended:
            raise ValueError("seven")
        return row | {"label": "odd" if row["id"] % 2 else "even"}

    pipeline = outlast.Pipeline("labels", parse, label, app=pooled_app)
    rows = [{"id": str(number)} for number in range(300)]
    sink = tmp_path / "out.jsonl"
    run = pipeline.run(rows, run_key="today", item_key="id", sink=str(sink))
    assert (run.counts.succeeded, run.counts.dlq) == (299, 1)
    again = pipeline.run(rows, run_key="today", item_key="id", sink=str(sink))
    assert (again.counts.succeeded, again.counts.dlq) == (299, 1)
    mended.append(True)
    pipeline.reprocess(stage="label")
    assert [*pooled_app.dead_letters.find()] == []
    assert [letter.item_key for letter in pooled_app.dead_letters.find(status="resolved")] == ["7"]
    written = [json.loads(line)["id"] for line in sink.read_text().splitlines()]
    assert sorted(written) == [*range(300)]
