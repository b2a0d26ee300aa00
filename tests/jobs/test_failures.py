"""Failures seen in other queues, tried on whole workers: the rows of docs/failures.md that have no better place."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import psycopg
import pytest

import outlast
from hosts import on_host
from job_hands import Hands
from labor import Beside, outcomes, wait_until
from outlast.testing import capture_events


@pytest.mark.failure(7)
@pytest.mark.timeout(120)
def test_failure_07_jobs_of_the_dead_come_back_whatever_stands_still(app, on_terms):
    """Sweeping is no job: a worker sweeps while its event loop is blocked. And none leads: where the sweep of one hangs, another's does it."""
    on_terms(ttl=0.8)
    free, begun = threading.Event(), []

    @app.job(queue="busy")
    async def blocks() -> None:
        begun.append(1)
        free.wait(100)

    @app.job
    def left() -> None: ...

    gone, (handle, other) = Hands(app), (left.enqueue(), left.enqueue())
    assert len(gone.take(most=1)) == 1
    blocks.enqueue()
    with Beside(app, queues=["busy"]):
        wait_until(lambda: begun, "its event loop is blocked")
        app.store.drop_lease(gone.lease)
        wait_until(lambda: outcomes(handle) == ["crashed"], "it has swept")
        free.set()

    gone = Hands(app)
    assert len(gone.take()) == 2
    hanging = outlast.App(app.name, store=app.store_url)
    hanging.job(left.fn)
    sweeps, over = [], threading.Event()
    hanging.store.sweep = lambda *_, **__: sweeps.append(1) or over.wait(100) or []
    with Beside(hanging, queues=["none"]):
        wait_until(lambda: sweeps, "the sweep of one hangs")
        app.store.drop_lease(gone.lease)
        assert app.work(until_idle=True, queues=["default"]).succeeded == 1  # the other one must wait, and run alone
        over.set()
    assert (outcomes(handle)[-1], outcomes(other)) == ("crashed", ["crashed", "succeeded"])
    hanging.store.close()


@pytest.mark.failure(11)
@pytest.mark.timeout(120)
def test_failure_11_a_worker_that_drains_keeps_its_lease(app, on_terms):
    """It beats until its last job has ended, however long that takes; another worker sweeps all the time."""
    on_terms(ttl=0.4)
    begun, goes_on, sweeps = threading.Event(), threading.Event(), []

    @app.job
    def long() -> str:
        begun.set()
        goes_on.wait(100)
        return "whole"

    handle = long.enqueue()
    with Beside(app, drain=1000.0) as draining:
        assert begun.wait(100)
        draining.worker.ask_soon()
        sweep, app.store.sweep = app.store.sweep, lambda *how, **more: sweeps.append(1) or sweep(*how, **more)
        with Beside(app):
            # Both sweep, each about four times while a lease lasts.
            wait_until(lambda: len(sweeps) >= 24, "three leases could have run out")
            goes_on.set()
            assert handle.result(100) == "whole"
    assert outcomes(handle) == ["succeeded"]


@pytest.mark.failure(23)
def test_failure_23_how_long_a_job_may_take_delays_no_rescue(app):
    """A job that may take a day comes back as soon as the lease of its worker has run out, which knows nothing of that."""

    @app.job(timeout=86400.0)
    def all_day() -> str:
        return "done"

    handle, gone = all_day.enqueue(), Hands(app)
    assert len(gone.take()) == 1
    with app.store._database.writing() as tx:
        tx.execute("update outlast_leases set until = 1 where key = ?", gone.lease.key)
    assert app.work(until_idle=True).succeeded == 1
    assert (outcomes(handle), handle.crashes) == (["crashed", "succeeded"], 1)


@pytest.mark.failure(30)
@pytest.mark.parametrize("hours", [-10_000, 10_000])
def test_failure_30_a_worker_of_a_host_whose_clock_is_wrong_by_a_year(app, hours):
    """It takes nobody for dead, waits as long as it was told, deletes nothing, and whatever it records has the database's time."""
    began = app.store.now()

    @app.job
    def done() -> None: ...

    @app.job(queue="living")
    def living() -> None: ...

    @app.job(retry=outlast.RetryPolicy(max_attempts=2, initial_delay=3600, max_delay=None, jitter=0))
    def fails() -> None:
        raise ConnectionError("not yet")

    @app.job(retry=None)
    def breaks() -> None:
        raise ValueError("never")

    hands, gone = Hands(app), Hands(app)
    handles = {name: app.kinds[name].enqueue() for name in ("done", "living")}
    hands.succeed()
    assert len(hands.take("living")) == 1
    handles |= {"poison": done.enqueue()}
    assert len(gone.take()) == 1
    with app.store._database.writing() as tx:
        tx.execute("update outlast_jobs set crashes = 2 where id = ?", int(handles["poison"].id))
    app.store.drop_lease(gone.lease)
    handles |= {"fails": fails.enqueue(), "breaks": breaks.enqueue()}
    with on_host(hours), capture_events() as events:
        result = app.work(until_idle=True, queues=["default"])
    ended = app.store.now()
    assert (result.failed, result.requeued, result.later) == (2, 1, 1)  # one by its own code, one by three crashes
    rows = {name: app.store.job(int(handle.id)) for name, handle in handles.items()}
    assert {name: row.state for name, row in rows.items()} == {
        "done": "succeeded", "living": "processing", "poison": "failed", "fails": "waiting", "breaks": "failed"
    }  # fmt: skip
    due = rows["fails"].due_us / 1e6 - 3600
    instants = [due, *(row.ended_us / 1e6 for row in rows.values() if row.ended_us is not None)]
    instants += [attempt.started_us / 1e6 for row in rows.values() for attempt in app.store.job_attempts(row.id)]
    letters = [app.store.letter(rows[name].letter) for name in ("poison", "breaks")]
    instants += [
        at / 1e6 for letter in letters for at in (letter.created_us, letter.first_failed_us, letter.last_attempt_us)
    ]
    instants += [event.next_run_at.timestamp() - 3600 for event in events if event.name == "job_requeued"]
    assert len(instants) >= 12
    assert [at for at in instants if not began - 1 <= at <= ended + 1] == []


@pytest.mark.failure(34)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_failure_34_no_transaction_is_open_while_a_job_runs(app, kind):
    """Others write to the same file at once, and no session of PostgreSQL is idle in a transaction."""
    begun, goes_on = threading.Event(), threading.Event()

    @app.job(name="sync")
    def blocking() -> None:
        begun.set()
        goes_on.wait(100)

    @app.job(name="async")
    async def waiting() -> None:
        begun.set()
        await asyncio.to_thread(goes_on.wait, 100)

    app.kinds[kind].enqueue()

    def sessions():
        with psycopg.connect(app.store_url) as connection:
            found = "select 1 from pg_stat_activity where state like 'idle in transaction%' and datname = current_database()"
            return connection.execute(found).fetchall()

    with Beside(app):
        assert begun.wait(100)
        if app.store_file is None:
            wait_until(
                lambda: not sessions(), "nobody is in a transaction"
            )  # one that a job keeps open would be there for ever
        else:
            connection = sqlite3.connect(app.store_file, timeout=100, isolation_level=None)
            connection.execute("begin immediate")
            connection.execute("rollback")
            connection.close()
        goes_on.set()
