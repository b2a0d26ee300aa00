"""Jobs on SQLite that hold a write transaction of their own on the store's file, which keeps everybody else from writing."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from contextlib import closing

import pytest

import outlast
from labor import NOW, Beside, outcomes, wait_until
from outlast.calls.state import current_work
from outlast.jobs.onrecord import _together
from outlast.observe.events import ArtifactKept
from outlast.store import Store
from outlast.store.database import lock_patience
from outlast.store.faults import StoreUnavailable
from outlast.store.steps import NewArtifact
from outlast.testing import capture_events, work


@pytest.fixture
def shop(sqlite_app):
    """A connection to the store's file, which has a table of the user's."""
    sqlite_app.store

    def connect():
        return closing(sqlite3.connect(sqlite_app.store_file, check_same_thread=False))

    with connect() as made:
        made.execute("create table paid (id integer)")
    return connect


@pytest.mark.timeout(240)
@pytest.mark.failure(34)
@pytest.mark.parametrize("what", ["step", "keep", "enqueue", "async step", "async enqueue"])
def test_what_waits_for_itself_is_an_error_that_costs_an_attempt(sqlite_app, shop, what, monkeypatch):
    """The job fails after a while and is tried again; its worker, and what runs beside it, notice nothing."""
    monkeypatch.setattr("outlast.jobs.running._LOCKED", 1.0)
    app, ended = sqlite_app, threading.Event()

    @app.job(retry=None)
    def mail() -> None: ...

    def put():
        if what == "keep":
            return outlast.current().keep("receipt", "r")
        if "enqueue" in what:
            return mail.aenqueue() if what == "async enqueue" else mail.enqueue()
        return outlast.current().step("mail", asyncio.sleep if what == "async step" else int, 0)

    def pay() -> None:
        with shop() as mine, mine:
            mine.execute("insert into paid values (7)")
            if outlast.current().attempt > 1:
                mine.commit()
            put()

    async def apay() -> None:
        with shop() as mine, mine:
            mine.execute("insert into paid values (7)")
            if outlast.current().attempt > 1:
                mine.commit()
            await put()

    @app.job(retry=None)
    def other() -> None:
        assert ended.wait(200)

    bystander = other.enqueue()
    handle = app.job(retry=NOW)(apay if "async" in what else pay).enqueue()
    with Beside(app) as beside:
        wait_until(lambda: handle.status == "succeeded", "the second attempt has succeeded")
        ended.set()
        wait_until(lambda: bystander.status == "succeeded", "the other job has ended")
    first, second = handle.history()
    assert (first.outcome, first.error_type, first.error_class) == ("failed", "StoreUnavailable", "database_connection")
    if "enqueue" in what:
        assert first.error == (
            f"the store {app.store_file} is locked: another program, or this one, has been writing to it for 1 s. "
            "If that is a transaction of this job: commit it first, or enqueue in it with transaction=."
        )
    else:
        assert first.error == (
            "the store is locked by another transaction, perhaps one of this job itself: commit it before a step or keep(). "
            "What was to be put on record is not there, so another attempt does it again."
        )
    assert (second.outcome, handle.attempts, outcomes(bystander)) == ("succeeded", 2, ["succeeded"])
    assert (beside.result.released, beside.result.lost) == (0, 0)
    with shop() as mine:
        assert mine.execute("select id from paid").fetchall() == [(7,)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["fails", "fails by itself", "keeps again"])
def test_what_an_async_job_has_kept_and_could_not_be_written_is_an_error(sqlite_app, shop, how, monkeypatch, caplog):
    """keep() does not wait in the event loop: the attempt fails at its end, and is told by nobody as kept."""
    monkeypatch.setattr("outlast.jobs.running._LOCKED", 0.1)
    app = sqlite_app

    @app.job(retry=NOW)
    async def pay() -> str:
        with shop() as mine:
            if outlast.current().attempt == 1:
                mine.execute("insert into paid values (7)")
            outlast.current().keep("receipt", "r")
            if unwritten := current_work.get().kept._unwritten:
                await asyncio.wait([*unwritten])
            mine.rollback()
        if how == "fails by itself" and outlast.current().attempt == 1:
            raise TimeoutError("its own")
        if how == "keeps again":
            outlast.current().keep("receipt", "s")
        return "paid"

    handle = pay.enqueue()
    with capture_events() as events:
        app.work(until_idle=True)
    attempts = 1 if how == "keeps again" else 2
    kept = [(event.attempt, event.artifact) for event in events if isinstance(event, ArtifactKept)]
    assert (handle.result(), handle.attempts, kept) == ("paid", attempts, [(attempts, "receipt")])
    assert [(one.attempt, one.name) for one in handle.artifacts()] == [(attempts, "receipt")]
    if attempts == 2:
        said = {"fails": "the store is locked by another transaction", "fails by itself": "its own"}[how]
        assert handle.history()[0].error.startswith(said)
    told = [record.getMessage() for record in caplog.records if "has kept as" in record.getMessage()]
    assert [one.partition(": ")[0] for one in told] == [
        f"what the job {handle.id} (pay) has kept as 'receipt' could not be put on record"
    ]


@pytest.mark.parametrize(("ttl", "expected"), [(600.0, 5.0), (20.0, 5.0), (8.0, 2.0), (4.0, 1.0), (1.0, 1.0)])
def test_the_patience_ends_before_the_lease(sqlite_app, on_terms, ttl, expected, monkeypatch):
    """A worker that cannot write for most of its lease gives back what runs: the job must have failed before that."""
    on_terms(ttl=ttl)
    seen, put = [], Store.put_results

    def put_results(store, rows, lease, **given):
        seen.append(lock_patience.get())
        return put(store, rows, lease, **given)

    monkeypatch.setattr(Store, "put_results", put_results)

    @sqlite_app.job(retry=None)
    def note() -> None:
        context = outlast.current()
        seen.append(lock_patience.get())
        plain = threading.Thread(target=lambda: context.keep("note", "x"))  # with nothing of the job around it
        plain.start()
        plain.join()

    handle = note.enqueue()
    work(sqlite_app)
    assert (handle.status, seen, lock_patience.get()) == ("succeeded", [expected, expected], None)


def test_what_was_to_be_written_together_fails_together():
    """One by one, each would wait for a locked store as long as the first; and each job gets an error of its own."""
    calls = []

    class Whose:
        def put(self, rows):
            calls.append(len(rows))
            raise StoreUnavailable("it is locked", error_class="database_connection", locked=True)

    row = NewArtifact(1, 1, 1, "note", b"", 0, cut=False)
    came = _together([(Whose(), row)] * 3)
    assert calls == [3]
    assert [(str(error), error.error_class, error.locked) for error in came] == [
        ("it is locked", "database_connection", True)
    ] * 3
    assert len({id(error) for error in came}) == 3


@pytest.mark.timeout(240)
@pytest.mark.parametrize("is_async", [True, False])
def test_a_transaction_that_failed_code_has_left_behind(sqlite_app, shop, is_async, monkeypatch):
    """It is in a cycle of objects, and nothing but the garbage collector ends it: whoever waits for the file asks for that."""
    monkeypatch.setattr("outlast.store.sqlite._FORGOTTEN", 0.1)
    gc.disable()

    def body():
        mine = sqlite3.connect(sqlite_app.store_file, check_same_thread=False)
        mine.execute("insert into paid values (7)")
        cycle = [mine]
        cycle.append(cycle)
        raise ConnectionError

    def pay() -> None:
        body()

    async def apay() -> None:
        body()

    try:
        handle = sqlite_app.job(retry=None)(apay if is_async else pay).enqueue()
        result = sqlite_app.work(until_idle=True)
    finally:
        gc.enable()
    assert (handle.status, outcomes(handle), result.failed) == ("failed", ["failed"], 1)
    assert "ConnectionError" in handle.history()[0].error_type
