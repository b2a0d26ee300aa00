"""How an idle worker hears of new jobs: at once, or a second later by polling."""

from __future__ import annotations

import threading

import pytest

import outlast
from labor import Beside, jobs, laborer, notes, wait_until
from outlast.jobs.waking import Notified, Watched, waking_for
from outlast.store import open_store


def listening(store, monkeypatch):
    """What is told of a store, once the thread listens."""
    told, ready = threading.Semaphore(0), threading.Event()
    waking = waking_for(store, told.release)
    connect = store._database.connect

    class Seen:
        def __init__(self, connection):
            self._connection = connection

        def execute(self, *statement):
            done = self._connection.execute(*statement)
            ready.set()
            return done

        def __getattr__(self, name):
            return getattr(self._connection, name)

    monkeypatch.setattr(store._database, "connect", lambda **given: Seen(connect(**given)))
    waking.start()
    assert ready.wait(100)
    monkeypatch.undo()
    return waking, told


def test_jobs_of_another_store_object_are_heard_of(app, monkeypatch):
    """PostgreSQL notifies; of SQLite's file it is seen that it has changed. Another process is no different."""

    @app.job
    async def note() -> None:
        return

    other = outlast.App(app.name, store=app.store_url)
    kind = other.job(note.fn)
    other.store
    waking, told = listening(app.store, monkeypatch)
    kind.enqueue()
    assert told.acquire(timeout=100)
    waking.close()
    other.store.close()


def test_this_process_is_told_of_its_own_enqueues(sqlite_app, monkeypatch):
    """SQLite: without waiting for the next look at the file."""
    monkeypatch.setattr("outlast.jobs.waking._LOOK", 1000.0)

    @sqlite_app.job
    async def note() -> None:
        return

    told = threading.Semaphore(0)
    waking = waking_for(sqlite_app.store, told.release)
    waking.start()
    note.enqueue()
    assert told.acquire(timeout=100)
    waking.close()
    note.enqueue()
    assert not told.acquire(blocking=False)


def test_a_connection_that_tells_nothing_is_left(postgres_app, monkeypatch):
    """A pooler may lend the connection to others: no probe comes back, and another connection is tried."""
    monkeypatch.setattr("outlast.jobs.waking._ANSWER", 0.05)
    monkeypatch.setattr("outlast.jobs.waking._AGAIN", 0.01)
    monkeypatch.setattr("outlast.jobs.waking._SLICE", 0.02)
    tries = threading.Semaphore(0)
    store = postgres_app.store
    connect = store._database.connect

    class Deaf:
        """It never hears what it listens for."""

        def __init__(self, connection):
            self._connection = connection
            tries.release()

        def notifies(self, **_):
            return ()

        def __getattr__(self, name):
            return getattr(self._connection, name)

    monkeypatch.setattr(store._database, "connect", lambda **given: Deaf(connect(**given)))
    waking = waking_for(store, lambda: None)
    waking.start()
    for _ in range(3):
        assert tries.acquire(timeout=100)
    waking.close()


@pytest.mark.timeout(120)
def test_jobs_are_found_by_polling_where_nobody_tells_of_them(app, monkeypatch):
    """Whatever is missed is found a second later."""
    monkeypatch.setattr(Notified, "_listen", lambda self, _: self._end.wait())
    monkeypatch.setattr(Watched, "_listen", lambda self, _: self._end.wait())
    monkeypatch.setattr("outlast.store.sqlite.Sqlite.tell_here", lambda self: None)

    @app.job
    async def note() -> str:
        return "done"

    with Beside(app) as beside:
        wait_until(lambda: beside.worker._later is not None, "the worker is idle")
        assert note.enqueue().result(100) == "done"


@pytest.mark.timeout(240)
def test_a_worker_of_another_process_begins_at_once(app, tmp_path):
    kinds = jobs(app, tmp_path)
    with laborer(app, tmp_path):
        for name in "abc":
            assert kinds["quick"].enqueue(name).result(200) == name
    assert notes(tmp_path) == ["does a", "does b", "does c"]


def test_nothing_is_left_open(app):
    """The connection that listens is closed with its worker."""
    with open_store(app.store_url, app=app.name) as store:
        waking = waking_for(store, lambda: None)
        waking.start()
        waking.close()
        assert not waking._thread.is_alive()
