"""
Enqueueing, and ending a job, in the caller's own transaction: it is so if and only if that is committed.

Only on the store's own database, or the commit would decide about nothing; and never where every statement is committed
by itself, or the job would be there whatever becomes of the caller's work. Both are asked through the caller's own
connection: what the database answers counts, not what a library thinks.

What is asked and written is one generator; each library has a few lines that run a statement. None of them is imported:
whoever passes an object of theirs has done so.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from outlast.errors import ConfigurationError
from outlast.jobs.handle import beside
from outlast.kernel.clock import ahead_us
from outlast.settings.checks import a_value_of
from outlast.store.address import Address
from outlast.store.faults import StoreRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import TypeAlias

    from outlast.jobs.handle import JobHome
    from outlast.store import Store
    from outlast.store.records import Enqueued, JobEnd, Lease, NewJob

    # Yields statements with their parameters, and is sent their rows.
    Asking: TypeAlias = Generator[tuple[str, tuple[Any, ...]], Sequence[Any], None]
    Steps: TypeAlias = Generator[tuple[str, tuple[Any, ...]], Sequence[Any], Any]
    # What is done in the transaction, once it is known to be one on the store's database.
    Inside: TypeAlias = Callable[[Store], Steps]

_ENQUEUE = ("enqueue", "job.options(...).aenqueue(...)")
_FINISH = ("finish_in", "current().afinish_in(...)")
_TAKEN = "a connection of sqlite3, psycopg or asyncpg, or a Connection or Session of SQLAlchemy, async ones too"


def refusal(transaction: object) -> str | None:
    """Why this cannot be a caller's transaction; None if it can, as far as its type tells."""
    if _kind(transaction) is None:
        return f"expected transaction to be {_TAKEN}, got: {a_value_of(transaction)}."
    return None


def enqueue(home: JobHome, transaction: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Enqueue in the caller's transaction; `ConfigurationError` if it is none, or not on the store's database."""
    done: list[Enqueued] = _drive(home, transaction, _enqueueing(jobs), _ENQUEUE, bounded=len(jobs) > 1)
    return done


async def aenqueue(home: JobHome, transaction: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """As `enqueue`. A sync connection is used here and now, as the caller's own statements are."""
    done: list[Enqueued] = await _adrive(home, transaction, _enqueueing(jobs), _ENQUEUE, bounded=len(jobs) > 1)
    return done


def _enqueueing(jobs: Sequence[NewJob]) -> Inside:
    return lambda store: store.enqueue_steps(jobs, paramstyle="qmark", ahead_us=ahead_us())


def finish(home: JobHome, transaction: object, end: JobEnd, lease: Lease | None) -> None:
    """Let a job succeed in a transaction of its code's; raises as `enqueue` does, and as `Finishing.finish_steps`."""
    _drive(home, transaction, _finishing(end, lease), _FINISH, bounded=True)


async def afinish(home: JobHome, transaction: object, end: JobEnd, lease: Lease | None) -> None:
    """As `finish`."""
    await _adrive(home, transaction, _finishing(end, lease), _FINISH, bounded=True)


def _finishing(end: JobEnd, lease: Lease | None) -> Inside:
    return lambda store: store.finish_steps(end, lease, ahead_us=ahead_us())


def _drive(home: JobHome, transaction: object, inside: Inside, words: tuple[str, str], *, bounded: bool) -> Any:
    """Do the statements of the store in the caller's transaction; what they come to."""
    caller = _caller(transaction)
    if isinstance(caller, AsyncCaller):
        message = f"expected a sync connection for {words[0]}, got: {a_value_of(transaction)}. Use `await {words[1]}`."
        raise ConfigurationError(message)
    caller.prepare()
    steps = _steps(home, caller, inside, bounded=bounded)
    try:
        statement = next(steps)
        while True:
            try:
                rows = caller.run(*statement)
            except Exception as error:  # noqa: BLE001 - the steps may have something to take back before it goes on
                statement = steps.throw(error)
            else:
                statement = steps.send(rows)
    except StopIteration as done:
        return done.value


async def _adrive(home: JobHome, transaction: object, inside: Inside, words: tuple[str, str], *, bounded: bool) -> Any:
    caller = _caller(transaction)
    if not isinstance(caller, AsyncCaller):
        return _drive(home, transaction, inside, words, bounded=bounded)
    await caller.prepare()
    # The store may have to be opened. Not while the caller has the only writer of a SQLite file: that is asked first.
    if caller.dialect == "postgres":
        await beside(lambda: home.store)
    steps = _steps(home, caller, inside, bounded=bounded)
    try:
        statement = next(steps)
        while True:
            try:
                rows = await caller.run(*statement)
            except Exception as error:  # noqa: BLE001 - as above
                statement = steps.throw(error)
            else:
                statement = steps.send(rows)
    except StopIteration as done:
        return done.value


# -- what is asked before anything is written ----------------------------------------------------------------------------


def _steps(home: JobHome, caller: Caller, inside: Inside, *, bounded: bool) -> Steps:
    yield from (_ask_sqlite if caller.dialect == "sqlite" else _ask_postgres)(home, caller)
    steps = inside(home.store)
    # An error takes a whole transaction of PostgreSQL with it. One of SQLite would go on with half of it.
    bounded = caller.dialect == "sqlite" and bounded
    if bounded:
        yield "savepoint outlast_enqueue", ()
    try:
        done = yield from steps
    except StoreRefused as refused:
        raise ConfigurationError(str(refused)) from None
    except Exception:
        if bounded:
            yield "rollback to outlast_enqueue", ()
            yield "release outlast_enqueue", ()
        raise
    if bounded:
        yield "release outlast_enqueue", ()
    return done


def _ask_postgres(home: JobHome, _: Caller) -> Asking:
    ((first, name),) = yield "select txid_current(), current_database()", ()
    # A number that is gone by the next statement was that of a transaction which is over: each one is committed by
    # itself.
    ((second,),) = yield "select txid_current_if_assigned()", ()
    if first != second:
        raise ConfigurationError(_AUTOCOMMIT)
    if home.store_file is not None or name != home.store.database_name:
        raise _elsewhere(home, f"the database {name!r}")


def _ask_sqlite(home: JobHome, caller: Caller) -> Asking:
    files = yield "pragma database_list", ()
    file = next((_text(one[2]) for one in files if _text(one[1]) == "main"), "")
    if not _same_file(file, home.store_file):
        raise _elsewhere(home, f"the file {file!r}" if file else "a database in memory")
    if caller.raw.in_transaction:
        ((there,),) = yield "select count(*) from sqlite_master where type = 'table' and name = 'outlast_jobs'", ()
        if not there:
            # To make it now, the store's own connection would wait for the caller's.
            raise ConfigurationError(
                "expected the store to be made before the transaction that enqueues into it, got: a database without its tables. "
                "Open it once when the program starts: `app.store`, or `outlast migrate` in a shell."
            )
    elif _commits_each(caller.raw):
        raise ConfigurationError(_AUTOCOMMIT)
    else:
        _ = home.store  # made, if need be, while nobody waits for it
        yield "begin immediate", ()  # it writes next; a later lock could be refused


def _commits_each(connection: Any) -> bool:
    """Whether a connection of SQLite begins no transaction by itself. Since Python 3.12 there are two ways to say so."""
    said = getattr(connection, "autocommit", -1)  # -1: as it was before
    return connection.isolation_level is None if said == -1 else bool(said)


_AUTOCOMMIT = (
    "expected a connection with an open transaction, got: one that commits every statement by itself. "
    "Begin a transaction first, or leave transaction= out."
)


def _elsewhere(home: JobHome, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"expected a transaction on the store's own database, {Address(home.store_url)}, got: one on {what}. "
        "A job is enqueued with the caller's work only where both are in one database; leave transaction= out, or put the store there."
    )


def _same_file(one: str, other: str | None) -> bool:
    try:
        return bool(one) and other is not None and Path(one).samefile(other)
    except OSError:
        return False


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# -- how each library runs a statement -----------------------------------------------------------------------------------


class Caller(ABC):
    """A caller's connection that blocks."""

    dialect: str = "postgres"
    raw: Any = None  # that of SQLite itself, whoever wraps it

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Whatever must be known before the first statement."""

    @abstractmethod
    def run(self, sql: str, parameters: tuple[Any, ...]) -> Sequence[Any]:
        """Do a statement in the caller's transaction; its rows."""


class AsyncCaller(Caller):
    """A caller's connection that is awaited."""

    async def prepare(self) -> None:  # type: ignore[override]
        """As above."""

    @abstractmethod
    async def run(self, sql: str, parameters: tuple[Any, ...]) -> Sequence[Any]:  # type: ignore[override]
        """As above."""


class _Sqlite(Caller):
    dialect = "sqlite"

    def prepare(self) -> None:
        self.raw = self.connection

    def run(self, sql: str, parameters: tuple[Any, ...]) -> Sequence[Any]:
        cursor = self.connection.cursor()
        cursor.row_factory = None  # the caller's may make anything of a row
        try:
            return cursor.execute(sql, parameters).fetchall()  # type: ignore[no-any-return]
        finally:
            cursor.close()


class _Psycopg(Caller):
    def run(self, sql: str, parameters: tuple[Any, ...]) -> Sequence[Any]:
        # Its own kind of cursor: the caller's may have other placeholders, or make anything of a row.
        library = sys.modules["psycopg"]
        with library.Cursor(self.connection, row_factory=sys.modules["psycopg.rows"].tuple_row) as cursor:
            cursor.execute(_percent(sql), parameters, prepare=False)
            if self.connection.pgconn.pipeline_status:  # the next statement depends on what comes back
                with self.connection.pipeline() as pipeline:
                    pipeline.sync()
            return cursor.fetchall() if cursor.description else ()


class _AsyncPsycopg(AsyncCaller):
    async def run(self, sql: str, parameters: tuple[Any, ...]) -> Sequence[Any]:  # type: ignore[override]
        library = sys.modules["psycopg"]
        async with library.AsyncCursor(self.connection, row_factory=sys.modules["psycopg.rows"].tuple_row) as cursor:
            await cursor.execute(_percent(sql), parameters, prepare=False)
            if self.connection.pgconn.pipeline_status:
                async with self.connection.pipeline() as pipeline:
                    await pipeline.sync()
            return await cursor.fetchall() if cursor.description else ()


class _Asyncpg(AsyncCaller):
    async def run(self, sql: str, parameters: tuple[Any, ...]) -> Sequence[Any]:  # type: ignore[override]
        rows = await self.connection.fetch(_numbered(sql, "$", 1), *parameters)
        return [tuple(row) for row in rows]


class _Alchemy(Caller):
    def prepare(self) -> None:
        if not hasattr(self.connection, "exec_driver_sql"):  # a session
            self.connection = self.connection.connection()
        self.dialect = _alchemy_dialect(self.connection.dialect.name)
        if self.dialect == "sqlite":
            self.raw = self.connection.connection.driver_connection

    def run(self, sql: str, parameters: tuple[Any, ...]) -> Sequence[Any]:
        return _fetched(self.connection.execute(*_alchemy(sql, parameters)))


class _AsyncAlchemy(AsyncCaller):
    async def prepare(self) -> None:  # type: ignore[override]
        if not hasattr(self.connection, "exec_driver_sql"):
            self.connection = await self.connection.connection()
        self.dialect = _alchemy_dialect(self.connection.dialect.name)
        if self.dialect == "sqlite":
            self.raw = (await self.connection.get_raw_connection()).driver_connection

    async def run(self, sql: str, parameters: tuple[Any, ...]) -> Sequence[Any]:  # type: ignore[override]
        return _fetched(await self.connection.execute(*_alchemy(sql, parameters)))


class _Known:
    """The types that are known, by the package and the name of the class."""

    table: ClassVar[dict[tuple[str, str], type[Caller]]] = {
        ("sqlite3", "Connection"): _Sqlite,
        ("psycopg", "Connection"): _Psycopg,
        ("psycopg", "AsyncConnection"): _AsyncPsycopg,
        ("asyncpg", "Connection"): _Asyncpg,
        ("asyncpg", "PoolConnectionProxy"): _Asyncpg,
        ("sqlalchemy", "Connection"): _Alchemy,
        ("sqlalchemy", "Session"): _Alchemy,
        ("sqlalchemy", "scoped_session"): _Alchemy,
        ("sqlalchemy", "AsyncConnection"): _AsyncAlchemy,
        ("sqlalchemy", "AsyncSession"): _AsyncAlchemy,
        ("sqlalchemy", "async_scoped_session"): _AsyncAlchemy,
    }


def _kind(transaction: object) -> type[Caller] | None:
    names = ((base.__module__.partition(".")[0], base.__name__) for base in type(transaction).__mro__)
    return next((_Known.table[name] for name in names if name in _Known.table), None)


def _caller(transaction: object) -> Caller:
    kind = _kind(transaction)
    if kind is None:
        raise ConfigurationError(refusal(transaction) or "")
    return kind(transaction)


def _alchemy_dialect(name: str) -> str:
    if name not in {"postgresql", "sqlite"}:
        message = f"expected a transaction on SQLite or PostgreSQL, where stores are, got: one on {name}."
        raise ConfigurationError(message)
    return "sqlite" if name == "sqlite" else "postgres"


def _alchemy(sql: str, parameters: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    return sys.modules["sqlalchemy"].text(_numbered(sql, ":p", 0)), {
        f"p{n}": value for n, value in enumerate(parameters)
    }


def _fetched(result: Any) -> Sequence[Any]:
    return [tuple(row) for row in result.fetchall()] if result.returns_rows else ()


def _percent(sql: str) -> bytes:
    return sql.replace("%", "%%").replace("?", "%s").encode()


def _numbered(sql: str, mark: str, first: int) -> str:
    """
    Placeholders with numbers.

    >>> _numbered("values (?, ?)", "$", 1), _numbered("values (?, ?)", ":p", 0)
    ('values ($1, $2)', 'values (:p0, :p1)')
    """
    head, *parts = sql.split("?")
    return head + "".join(f"{mark}{number}{part}" for number, part in enumerate(parts, first))
