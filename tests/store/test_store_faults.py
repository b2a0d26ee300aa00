"""The database is full, locked, restarted or cut off: a clear error that can be tried again, and nothing by halves."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import threading
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest

import forked
from outlast import classify
from outlast.store import Store, StoreError, StoreUnavailable, open_store
from outlast.store.database import lock_patience
from outlast.store.leases import fenced
from outlast.store.records import Changes, RunCounts
from outlast.store.sqlite import Sqlite
from outlast.store.steps import NewArtifact
from outlast.testing import FaultProxy
from servers.disk import Disk
from servers.postgres import USER, Postgres
from stores import STAGES, changes, contents, item, letter, started


def transient(error, *classes):
    assert isinstance(error, StoreUnavailable)
    assert classify(error).category == "transient"
    assert classify(error).error_class in classes
    return True


# -- no descriptors --------------------------------------------------------------------------------------------------------

LEAKING = """
import os, resource, sys, threading
from outlast.store import StoreUnavailable, open_store
store = open_store(sys.argv[1])
store.stats()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass

def read():
    try:
        store.stats()
    except StoreUnavailable as error:
        print(error)

with store._database.reading():  # its connection is in use, so that another thread needs a new one
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
for descriptor in held:
    os.close(descriptor)
store.stats()
"""


def test_a_store_that_cannot_be_opened_without_descriptors_is_tried_again(tmp_path):
    """Code that leaks descriptors does not end its worker: the store is unavailable until some are free."""
    done = forked.run([sys.executable, "-c", LEAKING, str(tmp_path / "s.db")], check=True)
    assert "probably no file descriptor is left. Look for code that leaks files or sockets" in done.stdout


# -- a full disk -----------------------------------------------------------------------------------------------------------


@contextmanager
def on_small_disk(backend, disk, postgres):
    """A store whose tables are on that disk."""
    if backend == "sqlite":
        with open_store(disk.folder / "store.db") as store:
            yield store
        return
    place = disk.folder / "tables"
    place.mkdir()
    if os.getuid() == 0:
        shutil.chown(place, USER)
    place.chmod(0o700)
    postgres.execute(f"create tablespace small location '{place}'", "create database small tablespace small")
    head, _, options = postgres.dsn.partition("?")
    try:
        with open_store(f"{head.rpartition('/')[0]}/small?{options}") as store:
            yield store
    finally:
        postgres.execute("drop database small with (force)", "drop tablespace small")


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_a_full_disk_loses_nothing_and_when_there_is_room_it_goes_on(backend, request):
    """The batch that does not fit is not there at all; the same batch is written once there is room (C-14)."""
    postgres = request.getfixturevalue("postgres") if backend == "postgres" else None
    disk = Disk("3m" if backend == "sqlite" else "14m")  # a new database of PostgreSQL takes 8
    try:
        with on_small_disk(backend, disk, postgres) as store:
            run, lease = started(store)
            error, number, before = None, 0, None
            while error is None:
                assert number < 100
                before = contents(store)
                full = Changes(
                    items=[item(number * 10 + seq, output=os.urandom(100_000)) for seq in range(10)],
                    dead_letters=[letter(number)],
                    read=number * 10 + 10,
                )
                try:
                    store.write(lease, full)
                except StoreError as caught:
                    error = caught
                else:
                    number += 1
            assert transient(error, "database_error")
            assert "full" in str(error) or "No space left" in str(error)
            assert contents(store) == before
            assert store.run(run.id).counts == RunCounts(total=number * 10, succeeded=number * 10)
            with pytest.raises(StoreUnavailable):
                store.write(lease, full)
            disk.grow()
            store.write(lease, full)
            store.beat(lease)
            assert store.run(run.id).counts == RunCounts(total=number * 10 + 10, succeeded=number * 10 + 10)
            assert len(store.letters()) == number + 1
    finally:
        disk.close()


# -- locks -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def locked(tmp_path):
    """A SQLite store that waits a fifth of a second, and somebody else's connection to its file."""
    with Store(Sqlite(tmp_path / "store.db", patience=0.2)) as store:
        other = sqlite3.connect(tmp_path / "store.db", isolation_level=None, check_same_thread=False)
        yield store, other
        other.close()


def test_a_file_locked_by_another_program_is_waited_for_and_then_a_clear_error(locked):
    """Reading goes on meanwhile; writing says who is in the way, and can be tried again (C-28)."""
    store, other = locked
    run, lease = started(store)
    other.execute("begin immediate")
    for write in (
        lambda: store.write(lease, changes(0)),
        lambda: store.beat(lease),
        lambda: store.request_end(run.id, "pause"),
    ):
        with pytest.raises(
            StoreUnavailable, match=r"is locked: another program, or this one, has been writing to it for 0.2 s"
        ) as caught:
            write()
        assert transient(caught.value, "database_connection")
    assert store.run(run.id).wanted is None
    other.execute("rollback")
    store.write(lease, changes(0))
    assert store.run(run.id).counts.succeeded == 1


@pytest.mark.parametrize("count", [1, 2])
def test_nobody_waits_behind_somebody_who_waits_for_the_file(locked, count):
    """Each tries for a moment and lets the others try: the patience of one is not the patience of all."""
    store, other = locked
    _, lease = started(store)
    rows, came = [NewArtifact(1, 1, 1, "note", b"", 0, cut=False)] * count, []
    other.execute("begin immediate")
    store._database._patience = 200.0
    waiting = threading.Thread(target=lambda: came.append(store.put_results(rows)))
    waiting.start()
    token = lock_patience.set(0.2)
    try:
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match=r"for 0\.2 s"):
                store.write(lease, changes(0))
        lock_patience.set(0.1)
        with pytest.raises(StoreUnavailable, match=r"for 0\.1 s") as caught:
            store.put_results(rows)
        with pytest.raises(StoreUnavailable, match=r"for 0\.1 s"):
            store.beat(lease)  # no batch
        assert (caught.value.locked, waiting.is_alive(), came) == (True, True, [])
    finally:
        lock_patience.reset(token)
        other.execute("rollback")
        waiting.join()
    assert came == [[False] * count]  # written, and there is no such job
    store.write(lease, changes(0))


def test_while_the_file_is_locked_forgotten_transactions_are_looked_for(locked, monkeypatch):
    """More than once: the code that forgets one may end when somebody has waited for long."""
    store, other = locked
    now, collected = [100.0], []
    monkeypatch.setattr("outlast.store.sqlite.REAL", SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: now[0])))
    monkeypatch.setattr("outlast.store.sqlite.gc.collect", lambda: collected.append(now[0] - 100.0))
    store._database._patience = 30.0
    goes_on = store._database.patient()
    other.execute("begin immediate")
    with (
        closing(sqlite3.connect(store._database.path, timeout=0.0)) as second,
        pytest.raises(sqlite3.OperationalError) as busy,
    ):
        second.execute("begin immediate")
    for waited in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 7.0, 8.0, 11.0, 12.0, 16.0):
        now[0] = 100.0 + waited
        assert goes_on(busy.value)
    assert collected == [1.0, 2.0, 4.0, 8.0, 12.0, 16.0]
    now[0] = 130.0
    with pytest.raises(StoreUnavailable, match="for 30 s"):
        goes_on(busy.value)
    assert not store._database.patient()(sqlite3.OperationalError("no such table"))


def test_a_writer_gets_its_turn(tmp_path):
    """Whoever waits for a lock goes on when it is free."""
    with open_store(tmp_path / "store.db") as store:
        run, lease = started(store)
        other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        other.execute("begin immediate")
        writer = threading.Thread(target=store.write, args=(lease, changes(0)))
        writer.start()
        writer.join(0.1)
        assert writer.is_alive()
        other.execute("rollback")
        writer.join()
        other.close()
        assert store.run(run.id).counts.succeeded == 1


def test_a_deadlock_that_postgresql_breaks_can_be_tried_again(postgres):
    """Its victim is told so, in the class for which the presets retry."""
    with open_store(postgres.dsn) as store:
        error = store._database.fault(_error_of(postgres, "40P01"))
        assert transient(error, "database_error")
        assert transient(store._database.fault(_error_of(postgres, "53300")), "database_error", "database_connection")


def _error_of(server, state):
    import psycopg

    with psycopg.connect(server.dsn) as connection:
        try:
            connection.execute(f"do $$ begin raise exception 'planted' using errcode = '{state}'; end $$")
        except psycopg.Error as error:
            return error
    raise AssertionError(state)


# -- a server that goes away -----------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restarted_server_is_found_again(mode):
    """While it is down every call fails as a lost connection; once it is back the next call works, with all that was committed."""
    with Postgres() as server, open_store(server.dsn) as store:
        run, lease = started(store)
        store.write(lease, changes(0, 1))
        server.stop(mode)
        for call in (
            lambda: store.write(lease, changes(2)),
            lambda: store.run(run.id),
            lambda: store.write(lease, changes(2)),
            lambda: store.beat(lease),
        ):
            with pytest.raises(StoreUnavailable) as caught:
                call()
            assert transient(caught.value, "database_connection")
        server.start()
        store.write(lease, changes(2))
        assert store.beat(lease)[0].token == lease.token
        assert store.run(run.id).counts.succeeded == 3


def test_after_a_cut_connection_the_next_call_connects_again(postgres):
    """One error, not one for every connection that was open; and the batch that was cut is written once."""
    with (
        FaultProxy(postgres.socket) as proxy,
        open_store(f"postgresql://postgres@127.0.0.1:{proxy.port}/{postgres.name}", app="cut") as store,
    ):
        run, lease = started(store, "cut")
        ready = threading.Barrier(4)

        def read():
            with store._database.reading() as tx:
                ready.wait()
                tx.rows("select 1")

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store._database._many._idle) == 4
        proxy.cut()
        with pytest.raises(StoreUnavailable) as caught:
            store.run(run.id)
        assert transient(caught.value, "database_connection")
        assert store.run(run.id).status == "running"
        store.write(lease, changes(0))
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            store.write(lease, changes(1))
        store.write(lease, changes(1))
        assert store.run(run.id).counts == RunCounts(total=2, succeeded=2)


def test_a_session_ended_by_an_administrator_is_replaced(postgres):
    """In the middle of a transaction: nothing of it is there, and the next one works."""
    with open_store(postgres.dsn, app="ended") as store:
        run, lease = started(store, "ended")
        with pytest.raises(StoreUnavailable) as caught, store._database.writing() as tx:
            tx.execute("update outlast_runs set why = 'half' where id = ?", run.id)
            postgres.terminate(tx.row("select pg_backend_pid()")[0])
            tx.execute("select 1")
        assert transient(caught.value, "database_connection")
        store.write(lease, changes(0))
        assert store.run(run.id).why == ""


@pytest.mark.parametrize("stopped", ["between two statements", "in the middle of sending rows"])
def test_an_owner_stopped_inside_a_transaction_does_not_keep_its_lease_for_ever(postgres, stopped):
    """Its row is locked while it stands still; the next owner ends its session and takes over, and nothing of the first lands (C-22)."""
    with open_store(postgres.dsn, app=stopped) as first, open_store(postgres.dsn, app=stopped) as second:
        run, lease = started(first, ttl=0.0)
        inside, awake = threading.Event(), threading.Event()
        caught = []

        def rows():
            yield (run.number, 5, "key-5", "succeeded", 1, 1, False, 1, 1)
            inside.set()
            awake.wait()
            yield (run.number, 6, "key-6", "succeeded", 1, 1, False, 1, 1)

        def stand_still():
            try:
                with first._database.writing(batches=True) as tx:
                    fenced(first._database, tx, first.app, lease)
                    if stopped == "between two statements":
                        tx.execute("update outlast_runs set why = 'late' where number = ?", run.number)
                        inside.set()
                        awake.wait()
                        tx.execute("select 1")
                    else:
                        columns = "run, seq, key, status, stage, attempts, degraded, started, took"
                        first._database.bulk(tx.connection, "outlast_items", columns, rows())
            except StoreError as error:
                caught.append(error)

        thread = threading.Thread(target=stand_still)
        thread.start()
        inside.wait()
        new = second.take_run(run.number, 0, "second", 600)
        assert new.token > lease.token
        awake.set()
        thread.join()
        assert transient(caught[0], "database_connection", "database_error")
        assert second.items(run.number) == []
        assert second.run(run.id).why == ""


def test_a_missing_right_is_permanent_and_clear(postgres):
    """A user who may not create tables is told so."""
    postgres.execute(
        "drop role if exists guest",
        "create role guest login",
        "create database closed",
        "revoke create on schema public from public",
    )
    head, _, options = postgres.dsn.replace("postgres:@", "guest:@").partition("?")
    try:
        with pytest.raises(StoreError, match=r"permission denied") as caught:
            open_store(f"{head.rpartition('/')[0]}/closed?{options}")
        assert classify(caught.value).error_class == "permission_denied"
    finally:
        postgres.execute("drop database closed with (force)", "drop role guest")


@pytest.mark.parametrize("what", ["deleted", "replaced"])
def test_a_file_that_goes_away_under_an_open_store_is_an_error(tmp_path, what):
    """SQLite would go on and lose it all; put back, it goes on."""
    path = tmp_path / "store.db"
    with open_store(path) as store:
        run, lease = started(store)
        path.rename(tmp_path / "aside.db")
        if what == "replaced":
            path.touch()
        with pytest.raises(StoreError, match="was deleted, moved or replaced while it was open"):
            store.write(lease, changes(0))
        (tmp_path / "aside.db").rename(path)
        store.write(lease, changes(0))
        assert store.run(run.id).counts.succeeded == 1


def test_a_store_whose_file_is_damaged_says_so(tmp_path):
    """No row is trusted, and the message names the file."""
    path = tmp_path / "store.db"
    with open_store(path) as store:
        store.open_run("reviews", "today", STAGES)
        store.add_letters([letter(number) for number in range(500)])
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 8192))
    with pytest.raises(StoreError, match=r"store.db failed"), open_store(path) as store:
        store.letters()
