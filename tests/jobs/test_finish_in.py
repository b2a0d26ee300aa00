"""The end of a job in a transaction of its own code, with the real libraries: both are committed, or neither is."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import copy_context

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import forked
import outlast
from labor import NOW, Beside, outcomes, wait_until
from outlast.observe.events import JobSucceeded
from outlast.store import Store
from outlast.store.records import Rescue
from outlast.testing import capture_events, work
from servers.postgres import Postgres


def connect(app):
    """A connection to the store's own database that begins a transaction by itself."""
    return sqlite3.connect(app.store_file) if app.store_file else psycopg.connect(app.store_url)


@pytest.fixture
def effects(app):
    """A table of the user's beside the store's; what is in it."""
    app.store
    name = f"effects_{app.name[-12:]}"
    shop = connect(app)
    shop.execute(f"create table {name} (id integer)")
    shop.commit()
    shop.close()

    class Effects:
        table = name
        insert = f"insert into {name} values (7)"

        @staticmethod
        def there():
            found = connect(app)
            try:
                return [row[0] for row in found.execute(f"select id from {name}").fetchall()]
            finally:
                found.close()

    return Effects


def alchemy(app, driver="psycopg"):
    if app.store_file is not None:
        return f"sqlite:///{app.store_file}"
    return app.store_url.replace("postgresql://postgres:@", f"postgresql+{driver}://postgres:@")


@contextmanager
def plain(app):
    connection = connect(app)
    try:
        yield connection, connection.execute, connection.commit, connection.rollback
    finally:
        connection.close()


@contextmanager
def alchemy_session(app):
    engine = sa.create_engine(alchemy(app))
    try:
        with Session(engine) as session:
            yield session, lambda sql: session.execute(sa.text(sql)), session.commit, session.rollback
    finally:
        engine.dispose()


@contextmanager
def alchemy_connection(app):
    engine = sa.create_engine(alchemy(app, "psycopg2"))
    try:
        with engine.connect() as connection:
            yield connection, lambda sql: connection.execute(sa.text(sql)), connection.commit, connection.rollback
    finally:
        engine.dispose()


@pytest.mark.parametrize("library", [plain, alchemy_session, alchemy_connection])
@pytest.mark.parametrize("commits", [True, False])
def test_both_are_committed_or_neither_is(app, effects, library, commits):
    """One effect for the job, its attempt on record once; after a rollback the job has not ended."""

    @app.job(retry=NOW)
    def pay() -> str:
        with library(app) as (transaction, execute, commit, rollback):
            execute(effects.insert)
            outlast.current().finish_in(transaction, result={"paid": 7})
            (commit if commits else rollback)()
        return "not looked at"

    handle = pay.enqueue()
    result = work(app)
    assert effects.there() == ([7] if commits else [])
    if commits:
        assert (handle.result(), outcomes(handle), result.succeeded, result.lost) == ({"paid": 7}, ["succeeded"], 1, 0)
        assert app.store.job(int(handle.id)).worker is None
    else:
        assert (handle.status, outcomes(handle)) == ("failed", ["failed"])  # no further attempt mends it
        assert "pay called finish_in and returned, but its transaction was not committed" in handle.error


@asynccontextmanager
async def async_psycopg(app):
    connection = await psycopg.AsyncConnection.connect(app.store_url)
    try:
        yield connection, connection.execute, connection.commit, connection.rollback
    finally:
        await connection.close()


@asynccontextmanager
async def async_asyncpg(app):
    connection = await asyncpg.connect(app.store_url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield connection, connection.execute, transaction.commit, transaction.rollback
    finally:
        await connection.close()


@asynccontextmanager
async def async_alchemy(app):
    engine = create_async_engine(alchemy(app, "asyncpg"))
    try:
        async with AsyncSession(engine) as session:
            yield session, lambda sql: session.execute(sa.text(sql)), session.commit, session.rollback
    finally:
        await engine.dispose()


@pytest.mark.parametrize("library", [async_psycopg, async_asyncpg, async_alchemy])
@pytest.mark.parametrize("commits", [True, False])
def test_with_async_libraries(postgres_app, library, commits):
    app = postgres_app
    table = f"effects_{app.name[-12:]}"
    app.store

    @app.job(retry=NOW)
    async def pay() -> None:
        async with library(app) as (transaction, execute, commit, rollback):
            await execute(f"create table if not exists {table} (id integer)")
            await execute(f"insert into {table} values (7)")
            await outlast.current().afinish_in(transaction, result="paid")
            await (commit if commits else rollback)()

    handle = pay.enqueue()
    work(app)
    assert (handle.status, outcomes(handle)) == (("succeeded", ["succeeded"]) if commits else ("failed", ["failed"]))
    there = app.store._database.row("select to_regclass(?) is not null", table)[0]
    assert there == commits
    assert not commits or handle.result() == "paid"


def test_an_async_connection_needs_the_async_method(postgres_app):
    @postgres_app.job(retry=None)
    async def pay() -> None:
        async with async_psycopg(postgres_app) as (transaction, *_):
            outlast.current().finish_in(transaction)

    handle = pay.enqueue()
    work(postgres_app)
    assert "Use `await current().afinish_in(...)`" in handle.error


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_after_the_commit_changes_nothing(app, effects, is_async, caplog):
    """The job has succeeded; the log tells of the error."""

    def body():
        with plain(app) as (transaction, execute, commit, _):
            execute(effects.insert)
            outlast.current().finish_in(transaction, result=1)
            commit()
        raise ConnectionError("afterwards")

    @app.job(retry=NOW)
    def pay() -> int:
        body()

    async def apay() -> int:
        body()

    handle = (app.job(retry=NOW)(apay) if is_async else pay).enqueue()
    result = work(app)
    assert (handle.result(), outcomes(handle), effects.there(), result.lost) == (1, ["succeeded"], [7], 0)
    assert "has succeeded with its own transaction, and raised afterwards" in caplog.text
    assert list(app.dead_letters.find()) == []


def test_an_error_before_the_commit_is_a_failure_like_others(app, effects):
    @app.job(retry=NOW)
    def pay() -> int:
        with plain(app) as (transaction, execute, commit, _):
            execute(effects.insert)
            outlast.current().finish_in(transaction, result=outlast.current().attempt)
            if outlast.current().attempt == 1:
                raise ConnectionError
            commit()

    handle = pay.enqueue()
    work(app)
    assert (handle.result(), outcomes(handle), effects.there()) == (2, ["failed", "succeeded"], [7])


def test_a_worker_that_has_lost_the_job_ends_nothing(app, effects, on_terms):
    """Fenced by (id, token) inside of that transaction: LeaseLost in the caller's code, and its effect is rolled back."""
    on_terms(ttl=600.0)
    seen = []

    @app.job(retry=NOW)
    def pay() -> int:
        if outlast.current().attempt == 1:
            app.store.sweep(lambda _: True, lambda _: Rescue("ready", error="lost", error_class="worker_lost"))
        with plain(app) as (transaction, execute, commit, _):
            execute(effects.insert)
            try:
                outlast.current().finish_in(transaction, result=outlast.current().attempt)
            except outlast.LeaseLost:
                seen.append(outlast.current().attempt)
                raise
            commit()

    handle = pay.enqueue()
    work(app)
    assert (handle.result(), outcomes(handle), effects.there(), seen) == (2, ["crashed", "succeeded"], [7], [1])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["time is up", "fenced", "cancelled", "worker ends"])
def test_code_that_was_given_up_ends_nothing(app, effects, how, on_terms, monkeypatch):
    """LeaseLost, whatever it was given up for: its effect is rolled back, and whoever has the job next decides."""
    on_terms(ttl=1.0 if how == "fenced" else 600.0)
    inside, go_on, fence, seen = threading.Event(), threading.Event(), threading.Event(), []
    renew = Store.renew_lease

    def renewed(store, lease):
        if fence.is_set():
            raise ConnectionError
        return renew(store, lease)

    monkeypatch.setattr(Store, "renew_lease", renewed)

    @app.job(retry=NOW, timeout=0.1 if how == "time is up" else None)
    def pay() -> None:
        if not seen:
            inside.set()
            assert go_on.wait(200)
        with plain(app) as (transaction, execute, commit, _):
            try:
                execute(effects.insert)
                outlast.current().finish_in(transaction)
                commit()
            except Exception as error:
                seen.append(type(error))
                raise

    handle = pay.enqueue()
    try:
        with Beside(app, drain=600.0) as beside:
            assert inside.wait(200)
            if how == "fenced":
                fence.set()
            elif how == "cancelled":
                assert app.jobs.cancel(handle.id)
                beside.worker._loop.call_soon_threadsafe(
                    beside.worker._wanted,
                    beside.worker._tenure,
                    tuple(app.store.cancelled_of(beside.worker._tenure.lease.key)),
                )
            elif how == "worker ends":
                beside.worker.ask_soon()
                beside.worker.ask_soon()
            wait_until(lambda: [one.why for one in [*beside.worker._running]] != [None], "it was given up")
            fence.clear()
            go_on.set()
            if how in {"time is up", "fenced"}:
                wait_until(lambda: handle.status == "succeeded", "it was done again")
    finally:
        go_on.set()
    status = {"cancelled": "cancelled", "worker ends": "queued"}.get(how, "succeeded")
    # On a busy machine the time of later attempts may be up as well: they have ended nothing either.
    again = len(seen) - 1 if how == "time is up" else 0
    assert (seen, handle.status) == ([outlast.LeaseLost] * (1 + again), status)
    assert effects.there() == ([7] if status == "succeeded" else [])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_job_that_has_ended_itself_is_not_lost_with_its_lease(app, effects, is_async, on_terms, caplog):
    """It is a success of this worker, counted and told as one; only the other job that it had is lost."""
    on_terms(ttl=600.0)
    committed, begun, go_on = (threading.Event() for _ in range(3))

    def end_it():
        with plain(app) as (transaction, execute, commit, _):
            execute(effects.insert)
            outlast.current().finish_in(transaction, result="paid")
            commit()
        committed.set()

    @app.job(name="sync", retry=NOW)
    def pay() -> None:
        end_it()
        assert go_on.wait(200)

    @app.job(name="async", retry=NOW)
    async def apay() -> None:
        end_it()
        while not go_on.is_set():
            try:
                await asyncio.to_thread(go_on.wait, 200)
            except asyncio.CancelledError:
                continue

    @app.job(retry=NOW)
    def other() -> None:
        begun.set()
        assert go_on.wait(200)

    paid, beside_it = app.kinds["async" if is_async else "sync"].enqueue(), other.enqueue()
    with capture_events() as events, Beside(app) as beside:
        try:
            assert committed.wait(200)
            assert begun.wait(200)
            app.store.sweep(lambda _: True, lambda _: Rescue("ready", error="lost", error_class="worker_lost"))
            wait_until(lambda: "was taken over" in caplog.text, "the worker knows that its lease is lost")
        finally:
            go_on.set()
        wait_until(lambda: beside_it.status == "succeeded", "the other one was done again")
    assert (paid.result(), outcomes(paid), effects.there()) == ("paid", ["succeeded"], [7])
    assert outcomes(beside_it) == ["crashed", "succeeded"]
    result = beside.result
    assert (result.succeeded, result.lost, result.cut_off, result.requeued) == (2, 1, 0, 0)
    assert sorted(one.job_id for one in events if isinstance(one, JobSucceeded)) == sorted([paid.id, beside_it.id])
    assert "1 job is lost to it, 1 other one ends as its own transaction does; it registers again" in caplog.text


@pytest.mark.timeout(240)
def test_a_job_whose_transaction_is_rolled_back_is_lost_with_its_lease(postgres_app, on_terms, caplog):
    """That is known when its code has ended, and counted then."""
    on_terms(ttl=600.0)
    app, inside, go_on = postgres_app, threading.Event(), threading.Event()

    @app.job(retry=NOW)
    def pay() -> int:
        if outlast.current().attempt == 1:
            with psycopg.connect(app.store_url) as transaction:
                outlast.current().finish_in(transaction, result=1)
                transaction.rollback()
                inside.set()
                assert go_on.wait(200)
            raise RuntimeError("no effect")
        return outlast.current().attempt

    handle = pay.enqueue()
    with Beside(app) as beside:
        try:
            assert inside.wait(200)
            app.store.sweep(lambda _: True, lambda _: Rescue("ready", error="lost", error_class="worker_lost"))
            wait_until(lambda: "was taken over" in caplog.text, "the worker knows that its lease is lost")
            assert beside.worker.view().counts["lost"] == 0
        finally:
            go_on.set()
        assert handle.result(timeout=200) == 2
    assert (beside.result.succeeded, beside.result.lost, outcomes(handle)) == (1, 1, ["crashed", "succeeded"])


def test_a_retry_inside_of_the_job_begins_another_transaction(app, effects):
    """After a rollback it may be finished again; after a commit nothing more is."""
    seen = []

    @app.job(retry=None, guard=outlast.Guard(retry=outlast.RetryPolicy(max_attempts=3, initial_delay=0)))
    def pay() -> str:
        seen.append(1)
        with plain(app) as (transaction, execute, commit, _):
            execute(effects.insert)
            outlast.current().finish_in(transaction, result=len(seen))
            if len(seen) > 1:
                commit()
            raise ConnectionError

    handle = pay.enqueue()
    work(app)
    assert (handle.result(), outcomes(handle), effects.there(), len(seen)) == (2, ["succeeded"], [7], 2)


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("raises", [True, False])
def test_a_guard_calls_nothing_after_the_commit(app, effects, is_async, raises, attempts, caplog):
    """
    Neither the body again, after an error or for a better result, nor the fallback, and tells of no retry: the job has
    succeeded.
    """
    seen = []

    def body():
        seen.append("body")
        with plain(app) as (transaction, execute, commit, _):
            execute(effects.insert)
            outlast.current().finish_in(transaction, result="paid")
            commit()
        if raises:
            raise ConnectionError("the metrics are away")
        return "not wanted"

    def instead():
        seen.append("fallback")
        return "instead"

    def pay() -> str:
        return body()

    async def apay() -> str:
        return body()

    guard = outlast.Guard(
        retry=outlast.RetryPolicy(max_attempts=attempts, initial_delay=0),
        breaker=outlast.CircuitBreaker("bank", failure_threshold=1),
        retry_if=lambda result: result == "not wanted",
        fallback=instead,
    )
    handle = app.job(retry=NOW, guard=guard)(apay if is_async else pay).enqueue()
    with capture_events() as events:
        work(app)
    assert (seen, effects.there()) == (["body"], [7])
    # The breaker has heard of the error, and that is all.
    told = ["CircuitBreakerOpen"] if raises else []
    assert [type(event).__name__ for event in events] == ["JobClaimed", *told, "JobSucceeded"]
    assert (handle.result(), outcomes(handle)) == ("paid", ["succeeded"])
    assert ("has succeeded with its own transaction, and raised afterwards" in caplog.text) == raises


@pytest.mark.parametrize("commits_first", [True, False])
def test_finish_in_comes_last(app, effects, commits_first):
    """A step, an artifact or a second end is refused, after the commit and before it."""
    seen, done = [], []

    @app.job(retry=NOW)
    def pay() -> None:
        context = outlast.current()
        with plain(app) as (transaction, execute, commit, _):
            execute(effects.insert)
            context.finish_in(transaction)
            if commits_first:
                commit()
            for more in (
                lambda: context.step("more", done.append, 1),
                lambda: context.keep("more", "x"),
                lambda: context.finish_in(transaction),
            ):
                try:
                    more()
                except outlast.OutlastError as error:
                    seen.append(error)
            if not commits_first:
                commit()

    handle = pay.enqueue()
    work(app)
    assert (handle.status, outcomes(handle), effects.there(), done) == ("succeeded", ["succeeded"], [7], [])
    guessed = app.store_file is not None and not commits_first  # SQLite does not say who has the file
    expected = outlast.TemporaryFailure if guessed else outlast.PermanentFailure
    assert [isinstance(error, expected) for error in seen[:2]] == [True, True]
    assert all("after finish_in, which comes last" in str(error) for error in seen[:2])
    assert ("The store is locked" in str(seen[0])) == guessed
    last = "has succeeded already" if guessed else "after finish_in, which comes last"
    assert [last in str(error) for error in seen[2:]] == [True]


def test_what_follows_finish_in_that_was_rolled_back(app, effects):
    """It has ended nothing: steps, artifacts and another end count, in a transaction that is open already, too."""

    @app.job(retry=None)
    def pay() -> None:
        context = outlast.current()
        with plain(app) as (transaction, execute, commit, rollback):
            context.finish_in(transaction, result=1)
            rollback()
            context.keep("note", "rolled back")
            number = context.step("more", int, "2")
            execute(effects.insert)
            context.finish_in(transaction, result=number)
            commit()

    handle = pay.enqueue()
    work(app)
    assert (handle.result(), outcomes(handle), effects.there()) == (2, ["succeeded"], [7])
    assert [step.name for step in app.store.steps(int(handle.id))] == ["more"]
    assert [kept.name for kept in app.store.artifacts(int(handle.id))] == ["note"]


def test_a_cancellation_that_comes_too_late(app, effects):
    """As with any success: what has succeeded was not cancelled."""

    @app.job(retry=NOW)
    def pay() -> None:
        app.jobs.cancel(handle.id)
        with plain(app) as (transaction, execute, commit, _):
            execute(effects.insert)
            outlast.current().finish_in(transaction)
            commit()

    handle = pay.enqueue()
    work(app)
    assert (handle.status, outcomes(handle), effects.there()) == ("succeeded", ["succeeded"], [7])


def test_its_unique_key_and_its_dead_letter(app, effects):
    """A replayed job resolves its letter, and the key is held."""
    fail = [True]

    @app.job(retry=None, unique_for=3600)
    def pay() -> None:
        if fail:
            raise ValueError
        with plain(app) as (transaction, execute, commit, _):
            execute(effects.insert)
            outlast.current().finish_in(transaction)
            commit()

    handle = pay.options(unique_key="k").enqueue()
    work(app)
    fail.clear()
    app.jobs.requeue(handle.id)
    work(app)
    (letter,) = app.dead_letters.find(status="resolved")
    assert (letter.item_key, handle.status, outcomes(handle)) == (handle.id, "succeeded", ["failed", "succeeded"])
    assert pay.options(unique_key="k").enqueue() == handle
    assert app.store.job(int(handle.id)).unique_until_us is not None


def test_what_is_refused(app, tmp_path):
    """Another database, a connection that commits each statement, something else; each with a sentence."""
    said = []
    other = sqlite3.connect(tmp_path / "other.db")
    each = (
        sqlite3.connect(app.store_file, isolation_level=None, check_same_thread=False)
        if app.store_file
        else psycopg.connect(app.store_url, autocommit=True)
    )

    @app.job(retry=None)
    def pay() -> str:
        for transaction in (sqlite3.connect(tmp_path / "other.db"), each, "a text"):
            try:
                outlast.current().finish_in(transaction)
            except outlast.ConfigurationError as error:
                said.append(str(error))
        return "all the same"

    handle = pay.enqueue()
    work(app)
    assert handle.result() == "all the same"
    assert "other.db" in said[0]
    assert "commits every statement by itself" in said[1]
    assert "got: a value of type str" in said[2]
    with pytest.raises(outlast.ConfigurationError, match="expected transaction to be"):
        app.job(name="plainly")(lambda_free)("no transaction")
    app.job(name="plainly2")(lambda_free)(other)
    other.close()
    each.close()


def lambda_free(transaction: object) -> None:
    """A job that is called as a plain function has nothing to end."""
    outlast.current().finish_in(transaction)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("commits", [True, False])
def test_how_a_transaction_ends_after_its_code(app, effects, is_async, raises, commits, caplog, monkeypatch):
    """A commit that comes after the function is a success like others, and lost to nobody."""
    monkeypatch.setattr("outlast.jobs.onrecord._PATIENCE", 0.0)
    left = []

    def body():
        many = {"check_same_thread": False} if app.store_file else {}
        left.append(sqlite3.connect(app.store_file, **many) if app.store_file else psycopg.connect(app.store_url))
        left[0].execute(effects.insert)
        outlast.current().finish_in(left[0], result=1)
        if raises:
            raise ConnectionError

    def pay() -> int:
        body()

    async def apay() -> int:
        body()

    handle = app.job(retry=None)(apay if is_async else pay).enqueue()
    with Beside(app) as beside:
        wait_until(lambda: "is still open: it is waited for" in caplog.text, "it is told")
        (left[0].commit if commits else left[0].rollback)()
        wait_until(lambda: handle.status != "processing", "it has ended")
    left[0].close()
    assert (handle.status, outcomes(handle)) == (("succeeded", ["succeeded"]) if commits else ("failed", ["failed"]))
    assert (effects.there(), beside.result.lost) == ([7] if commits else [], 0)


def test_a_commit_between_two_looks(app, effects):
    """What is not there at the first look, and no longer open at the second, was perhaps committed in between."""

    @app.job(retry=None)
    def pay() -> str:
        job = app.store.job(int(outlast.current().job_id))
        with plain(app) as (transaction, execute, commit, _):
            execute(effects.insert)
            outlast.current().finish_in(transaction)
            first = app.store.settled_in(job.id, 1, job.token)
            looking = app.store._database.writable
            app.store._database.writable = lambda: commit() or looking()
            try:
                second = app.store.settled_in(job.id, 1, job.token)
            finally:
                del app.store._database.writable
            commit()
        seen.append((first, second))

    seen = []
    handle = pay.enqueue()
    work(app)
    assert handle.status == "succeeded"
    # On PostgreSQL the row says that it is open, and nobody looks further.
    assert seen == [("open", "committed" if app.store_file else "open")]


@pytest.mark.timeout(240)
def test_a_transaction_that_is_left_open_is_waited_for(postgres_app, caplog, monkeypatch):
    """The worker goes on with other jobs meanwhile; how it ends decides."""
    monkeypatch.setattr("outlast.jobs.onrecord._PATIENCE", 0.0)
    app, left = postgres_app, []

    @app.job(retry=None)
    def pay() -> None:
        left.append(connect(app))
        outlast.current().finish_in(left[0], result=1)

    @app.job(retry=None)
    def other() -> None: ...

    handle = pay.enqueue()
    with Beside(app):
        wait_until(lambda: "is still open: it is waited for" in caplog.text, "it is told")
        second = other.enqueue()
        wait_until(lambda: second.status == "succeeded", "another job is done")
        assert handle.status == "processing"
        left[0].commit()
        wait_until(lambda: handle.status == "succeeded", "it is committed")
    left[0].close()
    assert (handle.result(), outcomes(handle)) == (1, ["succeeded"])


@pytest.mark.timeout(240)
def test_its_time_is_up_while_the_transaction_is_open(app, effects):
    """The worker waits for neither lock nor thread; a commit that comes after that is a success."""
    go_on, inside = threading.Event(), threading.Event()

    @app.job(retry=NOW, timeout=0.2)
    def pay() -> None:
        with plain(app) as (transaction, execute, commit, _):
            execute(effects.insert)
            outlast.current().finish_in(transaction, result=1)
            inside.set()
            assert go_on.wait(200)
            commit()

    handle = pay.enqueue()
    with Beside(app) as beside:
        assert inside.wait(200)
        (active,) = beside.worker._running
        wait_until(lambda: active.why == "timeout", "its time is up")
        go_on.set()
        wait_until(lambda: handle.status == "succeeded", "it is committed")
    assert (outcomes(handle), effects.there(), beside.result.lost) == (["succeeded"], [7], 0)


@pytest.mark.timeout(240)
def test_its_time_is_up_after_a_rollback(app, effects):
    """It is a timeout like any other: on record while its code goes on, and not begun again before that ends."""
    go_on = threading.Event()

    @app.job(retry=None, timeout=0.2)
    def pay() -> None:
        with plain(app) as (transaction, execute, _, rollback):
            execute(effects.insert)
            outlast.current().finish_in(transaction, result=1)
            rollback()
        assert go_on.wait(200)

    handle = pay.enqueue()
    with Beside(app):
        try:
            wait_until(lambda: outcomes(handle) == ["timeout"], "the timeout is on record")
        finally:
            go_on.set()
        wait_until(lambda: handle.status == "failed", "it has failed")
    assert (outcomes(handle), effects.there()) == (["timeout"], [])


@pytest.mark.timeout(240)
def test_its_time_is_up_and_then_it_is_rolled_back(app, effects):
    """The transaction was open when its time was up: it is looked at again while the code goes on."""
    roll_back, go_on = threading.Event(), threading.Event()

    @app.job(retry=None, timeout=0.2)
    def pay() -> None:
        with plain(app) as (transaction, execute, _, rollback):
            execute(effects.insert)
            outlast.current().finish_in(transaction, result=1)
            assert roll_back.wait(200)
            rollback()
        assert go_on.wait(200)

    handle = pay.enqueue()
    with Beside(app) as beside:
        try:
            wait_until(lambda: [active.why for active in beside.worker._running] == ["timeout"], "its time is up")
            roll_back.set()
            wait_until(lambda: outcomes(handle) == ["timeout"], "the timeout is on record")
        finally:
            roll_back.set()
            go_on.set()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("then", ["rolled back", "open", "committed"])
def test_a_worker_ends_while_its_code_goes_on(postgres_app, then, monkeypatch):
    """After a rollback the job is given back like any other, uncharged; the transaction decides if there is one."""
    monkeypatch.setattr("outlast.jobs.worker.FAREWELL", 0.3)
    app, inside, go_on, left = postgres_app, threading.Event(), threading.Event(), []

    @app.job(retry=NOW)
    def pay() -> None:
        left.append(connect(app))
        outlast.current().finish_in(left[0], result=1)
        if then != "open":
            (left[0].rollback if then == "rolled back" else left[0].commit)()
        inside.set()
        assert go_on.wait(200)

    handle = pay.enqueue()
    try:
        with Beside(app, drain=0.0) as beside:
            assert inside.wait(200)
        expected = {
            "rolled back": ("queued", ["released"]),
            "open": ("processing", []),
            "committed": ("succeeded", ["succeeded"]),
        }
        assert (handle.status, outcomes(handle)) == expected[then]
        assert (beside.result.released, beside.result.cut_off) == (int(then == "rolled back"), 1)
        assert beside.result.succeeded == int(then == "committed")
        assert beside.worker.not_again == ({"succeeded": 1} if then == "committed" else {})
        assert handle.attempts == int(then != "rolled back")
    finally:
        go_on.set()
        left[0].close()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("then", ["another call", "fallback"])
def test_what_follows_a_call_whose_transaction_was_rolled_back(app, effects, is_async, then):
    """It raised, as the guard expects it; what comes next is what the job came to, without any transaction."""
    calls = []

    def pay() -> str:
        calls.append(1)
        if len(calls) > 1:
            return "nothing to pay any more"
        found = connect(app)
        try:
            found.execute(effects.insert)
            outlast.current().finish_in(found, result="paid")
            raise ConnectionResetError
        finally:
            found.rollback()
            found.close()

    async def apay() -> str:
        return pay()

    again = outlast.Guard("again", retry=outlast.RetryPolicy(max_attempts=2, initial_delay=0))
    instead = outlast.Guard("instead", retry=None, fallback=lambda: "nothing to pay any more")
    handle = app.job(retry=None, guard=instead if then == "fallback" else again)(apay if is_async else pay).enqueue()
    work(app)
    assert (handle.status, handle.result(), effects.there()) == ("succeeded", "nothing to pay any more", [])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("is_async", [False, True])
def test_the_server_is_away_for_longer_than_the_lease(is_async, on_terms):
    """
    The transaction is gone with the server, and the worker has given up its jobs. Once the server is back, it asks how
    that one has ended: the job is given back, and nobody is charged with a crash.
    """
    on_terms(ttl=1.0)
    inside, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def paid(app) -> int:
        found = connect(app)
        try:
            outlast.current().finish_in(found, result=outlast.current().attempt)
            if not inside.is_set():
                inside.set()
                assert go_on.wait(200)
            found.commit()
        finally:
            over.set()
            found.close()
        return 0

    with Postgres() as server:
        app = outlast.App("shop", store=server.dsn)

        def pay() -> None:
            paid(app)

        async def apay() -> None:
            await asyncio.get_running_loop().run_in_executor(None, copy_context().run, paid, app)

        handle = app.job(retry=NOW)(apay if is_async else pay).enqueue()
        with Beside(app) as beside:
            assert inside.wait(200)
            server.stop("immediate")
            wait_until(lambda: beside.worker._fenced, "the worker has given up its jobs")
            go_on.set()
            assert over.wait(200)
            server.start()
            wait_until(lambda: handle.status == "succeeded", "it is done again")
        assert (outcomes(handle), handle.crashes, handle.attempts) == (["released", "succeeded"], 0, 1)
        assert (beside.result.released, beside.result.cut_off) == (1, 0)
        app.store.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("commits", [True, False])
def test_a_job_is_given_back_while_its_transaction_is_open(postgres_app, commits, monkeypatch):
    """Its code has ended, and its worker lives: nobody else would ever look at it, so its worker waits for the end of that."""
    app, left, looks, settled_in = postgres_app, [], [], Store.settled_in

    def looking(self, *which):
        looks.append(which)
        return settled_in(self, *which)

    monkeypatch.setattr(Store, "settled_in", looking)

    @app.job(retry=NOW)
    def pay() -> None:
        left.append(connect(app))
        outlast.current().finish_in(left[-1], result=len(left))
        if len(left) > 1:
            left[-1].commit()

    handle = pay.enqueue()
    with Beside(app) as beside:
        wait_until(lambda: looks, "its transaction is looked at")
        (active,) = beside.worker._running
        beside.worker._tenure.turns.in_loop(lambda: beside.worker._runner.give_up(active, "release"))
        before = len(looks)
        wait_until(lambda: len(looks) > before + 1, "it is looked at again")
        (left[0].commit if commits else left[0].rollback)()
        wait_until(lambda: handle.status == "succeeded", "it has ended")
    for one in left:
        one.close()
    assert outcomes(handle) == (["succeeded"] if commits else ["released", "succeeded"])
    assert handle.result() == (1 if commits else 2)


@pytest.mark.timeout(240)
def test_the_executor_of_the_loop_is_not_needed(postgres_app):
    """
    Async jobs wait for their transactions, which are committed in the only thread of that executor; another job
    enqueues while that thread is busy.
    """
    app, left, loops, busy = postgres_app, [], [], threading.Event()

    @app.job(retry=None)
    async def pay() -> None:
        left.append(connect(app))
        outlast.current().finish_in(left[-1], result=1)

    @app.job(retry=None)
    async def first() -> str:
        loops.append(asyncio.get_running_loop())
        loops[0].set_default_executor(ThreadPoolExecutor(1))
        loops[0].run_in_executor(None, busy.wait, 200)
        try:
            handles = [await pay.aenqueue() for _ in range(3)]
        finally:
            busy.set()
        return ",".join(handle.id for handle in handles)

    async def commit(connection):
        await asyncio.to_thread(connection.commit)

    handle = first.enqueue()
    with Beside(app):
        wait_until(lambda: handle.status == "succeeded", "it has enqueued")
        assert not [each for each in loops if each.is_closed()]
        wait_until(lambda: len(left) == 3, "all wait for their transactions")
        for connection in left:
            asyncio.run_coroutine_threadsafe(commit(connection), loops[0]).result(200)
        pays = [app.jobs.get(number) for number in handle.result().split(",")]
        wait_until(lambda: {each.status for each in pays} == {"succeeded"}, "all have succeeded")
    for connection in left:
        connection.close()


PROGRAM = """
import os, signal, sqlite3, sys
import outlast

store, name, table, cut = sys.argv[1:]
app = outlast.App(name, store=store)


@app.job(retry=outlast.RetryPolicy(max_attempts=5, initial_delay=0, jitter=0))
def pay() -> str:
    if app.store_file:
        shop = sqlite3.connect(app.store_file)
    else:
        import psycopg
        shop = psycopg.connect(app.store_url)
    shop.execute(f"insert into {table} values (7)")
    if cut == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    outlast.current().finish_in(shop, result="paid")
    if cut == "between":
        os.kill(os.getpid(), signal.SIGKILL)
    shop.commit()
    if cut == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    shop.close()


if __name__ == "__main__":
    app.work(until_idle=True)
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("cut", ["before", "between", "after"])
def test_a_worker_is_killed_around_the_commit(app, effects, cut, tmp_path):
    """One effect and one success, whatever the moment; committed and killed: succeeded, not rescued, one attempt."""
    (tmp_path / "program.py").write_text(PROGRAM)

    @app.job(retry=NOW)
    def pay() -> str:
        with plain(app) as (transaction, execute, commit, _):
            execute(effects.insert)
            outlast.current().finish_in(transaction, result="paid")
            commit()

    handle = pay.enqueue()
    command = [sys.executable, str(tmp_path / "program.py"), app.store_url, app.name, effects.table, cut]
    assert forked.run(command, timeout=200).returncode == -signal.SIGKILL
    work(app)
    assert (handle.result(), effects.there()) == ("paid", [7])
    assert outcomes(handle) == (["succeeded"] if cut == "after" else ["crashed", "succeeded"])
    assert handle.crashes == (0 if cut == "after" else 1)


@pytest.mark.timeout(240)
def test_many_of_them_beside_other_jobs(app, effects):
    """Row 34: nobody waits for somebody who waits for him."""

    @app.job(retry=NOW)
    def pay() -> None:
        with plain(app) as (transaction, execute, commit, _):
            execute(effects.insert)
            outlast.current().finish_in(transaction)
            commit()

    @app.job(retry=NOW)
    async def other() -> None:
        await asyncio.sleep(0)

    for _ in range(30):
        pay.enqueue()
        other.enqueue()
    result = app.work(until_idle=True, concurrency=8)
    assert (result.succeeded, result.lost, len(effects.there())) == (60, 0, 30)
    assert {len(app.store.job_attempts(job.id)) for job in app.store.jobs(limit=100)} == {1}
