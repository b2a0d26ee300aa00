"""A server that stands still (SIGSTOP of all its processes): whoever asks it is told in time, and what was enqueued is not enqueued twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import outlast
from job_rows import new
from outlast.store import StoreUnanswered, StoreUnavailable, open_store, postgres
from outlast.store.connections import without_hurry
from outlast.store.database import LENT as PLACES
from outlast.store.jobs import _refuse_to_repeat
from outlast.verdicts import classify
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres

SILENCE_S = 1.5


@pytest.fixture(scope="module")
def server():
    """A server of our own: others would stand still with it."""
    with Postgres() as one:
        yield one


@contextmanager
def frozen(server):
    """All its processes are stopped; those that it would start meanwhile never begin."""
    first = int(Path(server._folder, "postmaster.pid").read_text().split()[0])
    os.kill(first, signal.SIGSTOP)
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    for child in map(int, children):
        os.kill(child, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in (*map(int, children), first):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def within(least, most):
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert least <= took <= most, took


@pytest.fixture
def impatient(monkeypatch):
    """Servers may be silent for a moment only."""
    monkeypatch.setattr(postgres, "_SILENCE_S", SILENCE_S)


def job_of(app):
    @app.job
    def pay(n: int) -> int:
        return n

    return pay


def known(app, job, times):
    """A connection that is open, and has done its statement so often that it is kept prepared there."""
    return [job.enqueue(n) for n in range(times)]


@pytest.mark.parametrize("times", [1, 10])
def test_an_enqueue_that_is_not_answered_says_so_and_is_not_repeated(server, impatient, times, request):
    """Nobody knows whether the job is there: the error says how to enqueue it once, and no policy tries it again."""
    app = outlast.App(f"unknown{times}", store=server.dsn)
    job = job_of(app)
    known(app, job, times)
    with frozen(server):
        with within(SILENCE_S - 0.2, SILENCE_S + 3), pytest.raises(StoreUnanswered, match="unique_key") as silent:
            job.enqueue(100)
        assert "has sent nothing for 1.5 s" in str(silent.value)
        assert classify(silent.value).category == "unclear"
    assert len(list(app.jobs.find())) in {times, times + 1}


@pytest.mark.parametrize(
    ("keys", "raised"), [(("a", "b"), None), (("a", None), StoreUnanswered), ((None,), StoreUnanswered)]
)
def test_only_jobs_that_all_have_keys_may_be_repeated(keys, raised):
    """One without a key would be there twice."""
    error = StoreUnavailable("it did not answer", unanswered=True)
    jobs = [new(key=key) for key in keys]
    with contextlib.nullcontext() if raised is None else pytest.raises(raised, match="unique_key"):
        _refuse_to_repeat(error, jobs)


def test_an_enqueue_with_a_unique_key_may_be_repeated(server, impatient):
    """It is a transient error, and afterwards the job exists once."""
    app = outlast.App("keyed", store=server.dsn)
    job = job_of(app).options(unique_key="one")
    job_of(outlast.App("keyed", store=server.dsn))
    assert len(list(app.jobs.find())) == 0
    with frozen(server), within(SILENCE_S - 0.2, SILENCE_S + 3), pytest.raises(StoreUnavailable) as silent:
        job.enqueue(1)
    assert classify(silent.value).category == "transient"
    assert [job.enqueue(1).id, job.enqueue(1).id] == [one.id for one in app.jobs.find()] * 2


@pytest.mark.parametrize("kind", ["result", "aresult"])
def test_a_result_is_waited_for_as_long_as_its_caller_says(server, kind):
    """Also with a server that would be waited for much longer, and one whose connections all wait already."""
    app = outlast.App(f"waits {kind}", store=server.dsn)
    handle = job_of(app).enqueue(1)
    handle.status
    wait = handle.result if kind == "result" else lambda timeout: asyncio.run(handle.aresult(timeout))
    with frozen(server):
        with within(1.8, 4.5), pytest.raises(outlast.ResultTimeoutError, match=r"unknown after 2 s: .*did not answer"):
            wait(2)
        with within(1.8, 4.5), pytest.raises(outlast.ResultTimeoutError, match="unknown after 2 s"):  # it must connect
            wait(2)
    with pytest.raises(outlast.ResultTimeoutError, match="it is queued"):
        wait(0)


def test_who_waits_for_a_connection_is_told_in_time(server, monkeypatch):
    """All connections of the process wait for a server that stands still."""
    monkeypatch.setattr(postgres, "_SILENCE_S", 6.0)
    app = outlast.App("crowded", store=server.dsn)
    handle = job_of(app).enqueue(1)
    store = app.store
    errors = []

    def ask():
        try:
            store._database.row("select pg_sleep(3)")
        except StoreUnavailable as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(PLACES)]
    for thread in threads:
        thread.start()
    while store._database._many._places._free:
        threading.Event().wait(0.01)
    with within(0.9, 2.5), pytest.raises(outlast.ResultTimeoutError, match="all connections of this process wait"):
        handle.result(timeout=1)
    for thread in threads:
        thread.join()
    assert errors == []
    assert handle.status == "queued"


ASKS = {
    "status": lambda app, job, handle: handle.status,
    "find": lambda app, job, handle: list(app.jobs.find()),
    "stats": lambda app, job, handle: app.jobs.stats(),
    "cancel": lambda app, job, handle: app.jobs.cancel(handle.id),
    "many": lambda app, job, handle: job.enqueue_many({"n": n} for n in range(3)),
    "runs": lambda app, job, handle: app.store.find_run("p", "k"),
    "events": lambda app, job, handle: app.store.add_events([]) or app.store.workers(),
    "lease": lambda app, job, handle: app.store.take_lease("worker", "x", "me", 20.0),
    "letters": lambda app, job, handle: list(app.dead_letters.find()),
}


@pytest.mark.parametrize("what", ASKS)
def test_everything_that_asks_a_store_is_told_in_time(server, impatient, what):
    """On a connection that is open."""
    app = outlast.App(f"asks {what}", store=server.dsn)
    job = job_of(app)
    handle = job.enqueue(1)
    ASKS[what](app, job, handle)
    with (
        frozen(server),
        within(SILENCE_S - 0.2, SILENCE_S + 3),
        pytest.raises((StoreUnavailable, StoreUnanswered), match="did not answer"),
    ):
        ASKS[what](app, job, handle)
    ASKS[what](app, job, handle)


def test_a_server_that_works_is_waited_for(server, impatient):
    """What tells something meanwhile has no bound in all, and what may take long has its own."""
    store = open_store(server.dsn)
    speaks = "do $$ begin for i in 1..8 loop raise notice 'still at it'; perform pg_sleep(0.3); end loop; end $$"
    with within(2.3, 20), store._database.reading() as tx:
        tx.execute(speaks)
    with within(1.9, 20), without_hurry():
        assert store._database.row("select 1 from pg_sleep(2)") == (1,)
    with within(SILENCE_S - 0.2, SILENCE_S + 3), pytest.raises(StoreUnavailable, match="did not answer"):
        store._database.row("select 1 from pg_sleep(20)")


def test_a_copy_of_many_rows_is_no_silence(server, impatient):
    """A hundred thousand jobs take longer than a server may be silent."""
    store = open_store(server.dsn, app="many")
    assert store.enqueue_many([new() for _ in range(100_000)]) == 100_000


def test_a_session_that_the_server_has_ended_is_no_unknown_outcome(server):
    """Nothing was asked yet, so a policy may try again."""
    app = outlast.App("ended", store=server.dsn)
    job = job_of(app)
    known(app, job, 10)
    server.execute(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity where pid <> pg_backend_pid() and application_name = 'outlast'"
    )
    with pytest.raises(StoreUnavailable):
        job.enqueue(100)
    job.enqueue(100)
    assert len(list(app.jobs.find())) == 11


def test_a_server_behind_a_pooler_is_waited_for_no_longer(server, impatient):
    """The pooler is awake, and its server is not."""
    with PgBouncer(server) as pooler:
        app = outlast.App("pooled", store=pooler.dsn(server))
        job = job_of(app)
        known(app, job, 10)
        with frozen(server), within(SILENCE_S - 0.2, SILENCE_S + 3), pytest.raises(StoreUnanswered):
            job.enqueue(100)
        job.enqueue(101)
