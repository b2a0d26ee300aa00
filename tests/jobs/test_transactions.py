"""
Enqueueing in the caller's own transaction, with the real libraries: the job exists if and only if that is committed, and only
on the store's own database.
"""

from __future__ import annotations

import asyncio
import pickle
import sqlite3
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg import rows as psycopg_rows
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import outlast
from outlast.jobs.transactions import _alchemy_dialect, _commits_each
from outlast.store import Store
from servers.postgres import Postgres
from tables import table


def job_of(app):
    @app.job
    def send(to: str, day: int = 1) -> str: ...

    app.store
    return send


def statuses(app):
    return sorted(found.status for found in app.jobs.find())


def problem(work):
    with pytest.raises(outlast.ConfigurationError) as caught:
        work()
    return str(caught.value)


def alchemy(app, driver="psycopg"):
    """The address of an app's store for SQLAlchemy."""
    if app.store_file is not None:
        return f"sqlite:///{app.store_file}"
    return app.store_url.replace("postgresql://postgres:@", f"postgresql+{driver}://postgres:@")


# --- how each library begins a transaction on the store's database; what is given is what `transaction=` gets ---


@contextmanager
def plain(app, ends):
    """sqlite3, or psycopg, as they come: the first statement begins a transaction."""
    connection = sqlite3.connect(app.store_file) if app.store_file else psycopg.connect(app.store_url)
    try:
        yield connection
        getattr(connection, ends)()
    finally:
        connection.close()


@contextmanager
def begun(app, ends):
    """Connections that commit every statement, with a transaction that was begun by hand."""
    if app.store_file:
        connection = sqlite3.connect(app.store_file, isolation_level=None)
        connection.row_factory = lambda cursor, row: {"not": "a tuple"}
    else:
        connection = psycopg.connect(app.store_url, autocommit=True, row_factory=psycopg_rows.dict_row)
        connection.cursor_factory = psycopg.RawCursor
    try:
        connection.execute("begin")
        yield connection
        connection.execute(ends)
    finally:
        connection.close()


@contextmanager
def alchemy_connection(app, ends):
    engine = sa.create_engine(alchemy(app))
    try:
        with engine.connect() as connection:
            yield connection
            getattr(connection, ends)()
    finally:
        engine.dispose()


@contextmanager
def alchemy_session(app, ends):
    engine = sa.create_engine(alchemy(app, "psycopg2"))
    try:
        with Session(engine) as session:
            yield session
            getattr(session, ends)()
    finally:
        engine.dispose()


@contextmanager
def alchemy_scoped(app, ends):
    engine = sa.create_engine(alchemy(app))
    session = scoped_session(sessionmaker(engine))
    try:
        yield session
        getattr(session, ends)()
    finally:
        session.remove()
        engine.dispose()


SYNC = [plain, begun, alchemy_connection, alchemy_session, alchemy_scoped]


@pytest.mark.pooled
@pytest.mark.parametrize("library", SYNC)
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_job_is_there_if_and_only_if_the_callers_transaction_is_committed(app, library, ends):
    """Before that its id is known, and asking for more says why there is nothing to tell."""
    send = job_of(app)
    with library(app, ends) as transaction:
        job = send.options(transaction=transaction).enqueue("me", day=3)
        many = send.options(transaction=transaction, unique_key=lambda to: to).enqueue_many(
            {"to": name} for name in ("a", "b", "a")
        )
        plainly = send.options(transaction=transaction).enqueue_many({"to": str(n)} for n in range(120))
        assert (many, plainly) == (2, 120)
        assert job.id.isdecimal()
        with pytest.raises(
            outlast.JobNotFound, match="the transaction that it was enqueued in is not committed or was rolled back"
        ):
            job.status
        assert statuses(app) == []
    if ends == "rollback":
        assert statuses(app) == []
        return
    assert (job.status, job.kind) == ("queued", "send")
    assert send.bind_payload(app.store.job(int(job.id)).payload, 1) == ((), {"to": "me", "day": 3})
    assert statuses(app) == ["queued"] * 123
    with library(app, ends) as transaction:
        assert send.options(transaction=transaction, unique_key="a").enqueue("a") == next(app.jobs.find(unique_key="a"))


@pytest.mark.parametrize("library", [plain, alchemy_connection, alchemy_session])
def test_texts_arrive_as_they_are_where_backslashes_escape(postgres_app, library):
    """A caller's session with standard_conforming_strings off: nothing is damaged, and nothing of a text is read as SQL."""
    send, hostile = job_of(postgres_app), "\\'); drop table outlast_jobs; --\\x41\\"
    with library(postgres_app, "commit") as transaction:
        off = "set standard_conforming_strings = off"
        transaction.execute(off if library is plain else sa.text(off))
        jobs = [
            send.options(transaction=transaction).enqueue(hostile),
            send.options(transaction=transaction, unique_key=hostile).enqueue(hostile),
        ]
        keyed = send.options(transaction=transaction, unique_key=lambda to: to)
        assert keyed.enqueue_many([{"to": hostile}, {"to": "\\"}]) == 1
    for job in jobs:
        assert send.bind_payload(postgres_app.store.job(int(job.id)).payload, 1) == ((), {"to": hostile})
    assert {job.arguments["to"] for job in postgres_app.jobs.find()} == {hostile, "\\"}


@asynccontextmanager
async def async_psycopg(app, ends):
    async with await psycopg.AsyncConnection.connect(app.store_url) as connection:
        yield connection
        await getattr(connection, ends)()


@asynccontextmanager
async def of_asyncpg(app, ends):
    connection = await asyncpg.connect(app.store_url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        yield connection
        await getattr(transaction, ends)()
    finally:
        await connection.close()


@asynccontextmanager
async def pool_of_asyncpg(app, ends):
    async with asyncpg.create_pool(app.store_url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield connection
        await getattr(transaction, ends)()


@asynccontextmanager
async def async_alchemy_connection(app, ends):
    engine = create_async_engine(alchemy(app, "asyncpg"))
    try:
        async with AsyncConnection(engine) as connection:
            yield connection
            await getattr(connection, ends)()
    finally:
        await engine.dispose()


@asynccontextmanager
async def async_alchemy_session(app, ends):
    engine = create_async_engine(alchemy(app, "psycopg"))
    try:
        async with AsyncSession(engine) as session:
            yield session
            await getattr(session, ends)()
    finally:
        await engine.dispose()


@asynccontextmanager
async def async_alchemy_scoped(app, ends):
    engine = create_async_engine(alchemy(app, "asyncpg"))
    session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    try:
        yield session
        await getattr(session, ends)()
    finally:
        await session.remove()
        await engine.dispose()


ASYNC = [
    async_psycopg,
    of_asyncpg,
    pool_of_asyncpg,
    async_alchemy_connection,
    async_alchemy_session,
    async_alchemy_scoped,
]


@pytest.mark.parametrize("library", ASYNC)
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_job_of_an_async_library_is_there_if_and_only_if_that_commits(postgres_app, library, ends):
    """As above, awaited; without await it is refused before anything is written."""
    app = postgres_app
    send = job_of(app)

    async def main():
        async with library(app, ends) as transaction:
            job = await send.options(transaction=transaction).aenqueue("me")
            many = await send.options(transaction=transaction, unique_key=lambda to: to).aenqueue_many(
                [{"to": "a"}, {"to": "b"}, {"to": "a"}]
            )
            assert many == 2
            with pytest.raises(outlast.JobNotFound):
                job.status
            said = problem(lambda: send.options(transaction=transaction).enqueue("me"))
            assert "Use `await job.options(...).aenqueue(...)`" in said
        return job

    job = asyncio.run(main())
    assert statuses(app) == (["queued"] * 3 if ends == "commit" else [])
    if ends == "commit":
        assert job.kind == "send"


def test_a_connection_in_pipeline_mode_is_asked_one_thing_after_the_other(postgres_app):
    """psycopg sends many statements before it reads an answer; what is written depends on what was asked."""
    send = job_of(postgres_app)
    with psycopg.connect(postgres_app.store_url) as connection, connection.pipeline():
        connection.execute("create temporary table mine (id int)")
        first = send.options(transaction=connection).enqueue("me")
        connection.execute("insert into mine values (1)")
        assert connection.execute("select count(*) from mine").fetchone() == (1,)

    async def enqueue():
        async with (
            await psycopg.AsyncConnection.connect(postgres_app.store_url) as connection,
            connection.pipeline(),
        ):
            return await send.options(transaction=connection).aenqueue("you")

    assert (first.status, asyncio.run(enqueue()).status) == ("queued", "queued")
    with psycopg.connect(postgres_app.store_url, autocommit=True) as connection, connection.pipeline():
        said = problem(lambda: send.options(transaction=connection).enqueue("nobody"))
    assert "got: one that commits every statement by itself" in said
    assert statuses(postgres_app) == ["queued", "queued"]


def test_a_job_that_was_rolled_back_never_becomes_another_one(app):
    """SQLite gives its number out again; whoever kept the handle must not read, cancel or wait for somebody else's job."""

    send = job_of(app)
    with plain(app, "commit") as connection:
        gone = send.options(transaction=connection).enqueue("a")
        connection.rollback()
        there = [send.options(transaction=connection).enqueue(to) for to in "bc"]
    assert [handle.status for handle in there] == ["queued", "queued"]
    assert gone not in there
    assert pickle.loads(pickle.dumps(there[0])) != gone
    for asked in (
        *(lambda: gone.status, gone.history, lambda: gone.result(0)),
        *(lambda: app.jobs.wait_all([gone], timeout=0), lambda: asyncio.run(app.jobs.await_all([gone], timeout=0))),
        lambda: asyncio.run(gone.arefresh()),
    ):
        with pytest.raises(outlast.JobNotFound):
            asked()


def test_a_job_that_was_rolled_back_is_not_one_that_was_enqueued_without_a_transaction(app):
    """As above, for whoever comes within the same millisecond: its number is the same, its instant is not."""
    send = job_of(app)
    for _ in range(20):
        with plain(app, "commit") as connection:
            gone = send.options(transaction=connection).enqueue("a")
            connection.rollback()
        there = send.enqueue("b")
        assert there.status == "queued"
        assert gone != there
        with pytest.raises(outlast.JobNotFound):
            _ = gone.status
        assert app.jobs.get(there.id) == there


def test_many_jobs_in_a_transaction_take_few_statements_and_keep_their_order(app):
    """Fifty at a time, the first given with the smallest id; keys go one by one."""
    send = job_of(app)
    with plain(app, "commit") as transaction:
        assert send.options(transaction=transaction).enqueue_many({"to": str(n)} for n in range(130)) == 130
    found = [send.bind_payload(app.store.job(int(job.id)).payload, 1)[1]["to"] for job in app.jobs.find()]
    assert found[::-1] == [str(n) for n in range(130)]
    steps = app.store.enqueue_steps([send._new((str(n),), {}) for n in range(130)], paramstyle="qmark")
    known = app.store.job(int(next(app.jobs.find()).id))
    answers = [
        [(1,)],
        [(*app.store._identity(), known.due_us)],
        *([(n,) for n in range(size)] for size in (50, 50, 30)),
    ]
    asked = [steps.send(rows)[0].split(" values ")[0] for rows in (None, *answers[: len(answers) - 1])]
    steps.close()
    assert [text.startswith("insert into outlast_jobs") for text in asked] == [False, False, True, True, True]


def test_a_sync_connection_may_be_used_in_async_code(app):
    """It blocks as the caller's own statements do."""
    send = job_of(app)

    async def main():
        with plain(app, "commit") as transaction:
            return await send.options(transaction=transaction).aenqueue("me")

    assert asyncio.run(main()).status == "queued"


# --- never outside of a transaction ---


def test_a_connection_that_commits_every_statement_is_refused(app):
    """Else the job would be there whatever becomes of the caller's work."""
    send = job_of(app)
    if app.store_file:
        connection = sqlite3.connect(app.store_file, isolation_level=None)
    else:
        connection = psycopg.connect(app.store_url, autocommit=True)
    try:
        said = problem(lambda: send.options(transaction=connection).enqueue("me"))
    finally:
        connection.close()
    assert said.startswith(
        "expected a connection with an open transaction, got: one that commits every statement by itself."
    )
    engine = sa.create_engine(alchemy(app), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        assert problem(lambda: send.options(transaction=connection).enqueue("me")) == said
    engine.dispose()
    assert statuses(app) == []


@table(
    "isolation_level, autocommit, refused",
    [("", -1, False), (None, -1, True), ("", True, True), (None, True, True), ("DEFERRED", False, False)],
)
def test_what_commits_every_statement_in_sqlite(isolation_level, autocommit, refused):
    """Python 3.12 brought another way to say so, which the older one does not change."""
    connection = SimpleNamespace(isolation_level=isolation_level, autocommit=autocommit)
    assert _commits_each(connection) is refused


def test_an_asyncpg_connection_without_a_transaction_is_refused(postgres_app):
    """As above."""
    send = job_of(postgres_app)

    async def main():
        connection = await asyncpg.connect(postgres_app.store_url)
        try:
            with pytest.raises(outlast.ConfigurationError, match="one that commits every statement by itself"):
                await send.options(transaction=connection).aenqueue("me")
        finally:
            await connection.close()

    asyncio.run(main())
    assert statuses(postgres_app) == []


# --- only on the store's own database ---


def test_another_database_is_refused_with_a_sentence(app, postgres_server, tmp_path):
    """Another file, memory, another database of the server, and one of the other kind; nothing is written anywhere."""
    send = job_of(app)
    other = outlast.App("other", store=str(tmp_path / "other.db"))
    elsewhere = postgres_server.database(f"elsewhere_{send.home.name[-8:]}")
    cloned = outlast.App(app.name, store=elsewhere.dsn)
    for twin in (other, cloned):
        twin.store
    connections = {
        f"the file '{tmp_path}/other.db'": sqlite3.connect(tmp_path / "other.db"),
        "a database in memory": sqlite3.connect(":memory:"),
        f"the database '{elsewhere.name}'": psycopg.connect(elsewhere.dsn),
    }
    try:
        for what, connection in connections.items():
            said = problem(lambda given=connection: send.options(transaction=given).enqueue("me"))
            assert said.startswith(
                f"expected a transaction on the store's own database, {app.store_url.replace('postgres:@', '***@')}, got:"
            )
            assert f"got: one on {what}" in said
            assert "leave transaction= out, or put the store there." in said
            connection.commit()
    finally:
        for connection in connections.values():
            connection.close()
        for twin in (other, cloned):
            assert [*twin.jobs.find()] == []
            twin.store.close()
    assert statuses(app) == []


def test_a_copy_of_the_store_is_another_database(postgres_app, postgres, postgres_server):
    """A restored copy has the store's id, and another name; the same name elsewhere has another id."""
    send = job_of(postgres_app)
    postgres_app.store.close()  # nobody may be at a database that is copied
    copy = f"copy_{postgres_app.name[-8:]}"
    postgres_app._store = None
    postgres_server.execute(
        f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{postgres.name}'",
        f'create database "{copy}" template "{postgres.name}"',
    )
    with psycopg.connect(postgres.dsn.replace(f"/{postgres.name}?", f"/{copy}?")) as connection:
        said = problem(lambda: send.options(transaction=connection).enqueue("me"))
    assert f"got: one on the database '{copy}'" in said
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute("create temporary table outlast_store (id text)")
        connection.execute("insert into outlast_store values ('another')")
        said = problem(lambda: send.options(transaction=connection).enqueue("me"))
        assert "got: one in another database" in said
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute("set search_path to pg_catalog")
        said = problem(lambda: send.options(transaction=connection).enqueue("me"))
        assert "got: one in another database" in said


def test_a_copy_on_another_server_is_another_database(postgres_app, monkeypatch):
    """With the same name and the same id, as a staging has it that was restored from a dump; both ways into it."""
    send = job_of(postgres_app)
    store, known = postgres_app.store._identity()
    with Postgres() as server:
        elsewhere = server.database("jobs")
        twin = outlast.App(postgres_app.name, store=elsewhere.dsn)
        twin.store.close()
        elsewhere.execute(f"update outlast_store set id = '{store}'")
        with psycopg.connect(elsewhere.dsn) as connection:
            assert connection.execute("select current_database(), id from outlast_store").fetchone() == ("jobs", store)
            said = problem(lambda: send.options(transaction=connection).enqueue("me"))
            assert "got: one in another database" in said
    assert statuses(postgres_app) == []
    # A standby may have answered for the store: then the transaction itself is looked for.
    monkeypatch.setattr(Store, "_identity", lambda _: (store, known + 1))
    with psycopg.connect(postgres_app.store_url) as connection:
        send.options(transaction=connection).enqueue("me")
    assert statuses(postgres_app) == ["queued"]


def test_a_store_that_is_not_made_yet_is_told_at_once(tmp_path):
    """Its own connection would wait for the caller's, which waits for it."""
    app = outlast.App("shop", store=str(tmp_path / "shop.db"))

    @app.job
    def send(to: str) -> None: ...

    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("create table orders (id integer)")
    connection.execute("insert into orders values (1)")
    assert "Open it once when the program starts: `app.store`" in problem(
        lambda: send.options(transaction=connection).enqueue("me")
    )
    connection.commit()
    with connection:
        job = send.options(transaction=connection).enqueue("me")  # nothing is begun yet: now it is made
    assert job.status == "queued"
    connection.close()
    app.store.close()


@table("given", ["a connection", 3, object(), psycopg])
def test_what_is_no_connection_is_refused_where_it_is_written(given, tmp_path):
    """With what can be given."""
    app = outlast.App("shop", store=str(tmp_path / "shop.db"))

    @app.job
    def send(to: str) -> None: ...

    said = problem(lambda: send.options(transaction=given, dealy=3))
    assert "expected no argument 'dealy'. Did you mean 'delay'?" in said
    assert (
        "expected transaction to be a connection of sqlite3, psycopg or asyncpg, or a Connection or Session of SQLAlchemy"
        in said
    )


def test_a_database_that_is_no_store_at_all_is_refused():
    """SQLAlchemy speaks to others too."""
    assert problem(lambda: _alchemy_dialect("mysql")) == (
        "expected a transaction on SQLite or PostgreSQL, where stores are, got: one on mysql."
    )


# --- all or none ---


def test_what_fails_halfway_leaves_nothing_of_it_in_the_transaction(sqlite_app):
    """An error takes a transaction of PostgreSQL with it by itself; one of SQLite goes on, with the caller's work and no job."""
    send = job_of(sqlite_app)
    with sqlite3.connect(sqlite_app.store_file) as connection:
        connection.execute("create table orders (id integer)")
        connection.execute("insert into orders values (1)")
        connection.execute(
            "create temporary trigger planted before insert on main.outlast_jobs when new.unique_key = 'z' "
            "begin select raise(abort, 'planted'); end"
        )
        with pytest.raises(sqlite3.IntegrityError, match="planted"):
            send.options(transaction=connection, unique_key=lambda to: to).enqueue_many([{"to": "a"}, {"to": "z"}])
    assert statuses(sqlite_app) == []
    assert connection.execute("select id from orders").fetchall() == [(1,)]
    connection.close()


def test_no_library_is_loaded_for_a_transaction_that_is_not_given(tmp_path):
    """Whoever passes an object of a library has loaded it."""
    code = (
        "import sys, sqlite3, outlast\n"
        "app = outlast.App('shop', store='shop.db')\n"
        "@app.job\ndef send(to: str): ...\n"
        "send.enqueue('me'); app.store\n"
        "with sqlite3.connect('shop.db') as c: send.options(transaction=c).enqueue('me')\n"
        "print(len(list(app.jobs.find())), sorted({'psycopg', 'asyncpg', 'sqlalchemy'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.stdout, done.stderr) == ("2 []\n", "")
