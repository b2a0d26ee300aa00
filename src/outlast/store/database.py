"""
A database: connections, transactions, migrations, and the few places where SQLite and PostgreSQL differ.

Everything above speaks one SQL, with ``?`` for parameters. A dialect says how to connect, how a transaction begins, how
a list is passed, how many rows are written at once, and what its driver's errors mean.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from outlast.kernel.redact import sanitise
from outlast.store.connections import Connections, NoPlace, without_hurry
from outlast.store.faults import StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from outlast.store.connections import Connection, Cursor
    from outlast.store.faults import StoreError

LENT = 8  # connections at a time, beside the one for batches
#: Seconds for which whoever writes here waits for a file that is locked; None: as long as the store does always.
lock_patience: ContextVar[float | None] = ContextVar("outlast lock patience", default=None)


class Duplicate(StoreRefused):
    """A row is there already."""

    def __init__(self) -> None:
        super().__init__("a row that is written is there already", error_class="data_error")


class Transaction:
    """A connection that speaks the common SQL."""

    __slots__ = ("_database", "connection", "then")

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self.connection = connection
        self.then: Callable[[], None] | None = None  # called once it is committed

    def execute(self, sql: str, *parameters: Any) -> Cursor:
        return self.connection.execute(self._database.spelled(sql), parameters)

    def rows(self, sql: str, *parameters: Any) -> list[Any]:
        return self.execute(sql, *parameters).fetchall()

    def row(self, sql: str, *parameters: Any) -> Any:
        return self.execute(sql, *parameters).fetchone()

    def insert(self, table: str, columns: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Many rows; `Duplicate` if one of them is there already."""
        if rows:
            self._database.bulk(self.connection, table, columns, rows)

    def insert_alike(self, table: str, columns: str, row: tuple[Any, ...], place: int, values: Sequence[bytes]) -> None:
        """Many rows like this one, each with another of the values at a `place` of it."""
        self._database.bulk_alike(self.connection, table, columns, row, place, values)


class Database(ABC):
    """One database. Safe in threads, and in a forked child."""

    name: ClassVar[str]  # of the folder with its migrations
    begin: str
    patience: str = ""  # how long a statement waits for a lock, as the database says it
    for_update: ClassVar[str]  # how a row is read that will be changed
    for_change: ClassVar[str]  # the same for a row that others may read `for_share` until it is changed
    for_share: ClassVar[str]  # how a row is read whose key stays until the transaction ends; other columns may change
    skip_locked: ClassVar[str]  # how rows are read that will be changed, without those that somebody else is changing
    arrays: ClassVar[bool]  # whether many rows travel as one array for each column, in a single statement
    at_once: ClassVar[str] = ""  # a worker's turn in one statement, if there is one: see `turns.at_once`
    one_queue: ClassVar[str] = ""  # such a turn that only claims jobs of one queue, if there is one: see `turns.asked`
    known_here: ClassVar[str]  # asks any connection whether it leads to a store
    server: ClassVar[str]  # an expression: a number that no other server has; every role may ask for it
    transaction: ClassVar[str] = ""  # asks for the number of the transaction, where servers can differ
    notifies: ClassVar[str] = ""  # tells whoever listens, once the transaction is committed, of jobs for an app
    one_by_one: ClassVar[str]  # an expression: the plans of this transaction look rows up by their keys
    labelled: ClassVar[str]  # an expression that gives the transaction the name that is passed
    # A part of FROM that names a statement which is a transaction by itself, and bounds its wait for locks.
    said: ClassVar[str] = ""
    among: ClassVar[str]  # after a column: whether it is in a list that is passed as one parameter
    lower: ClassVar[str]  # a column's text with its ASCII letters in lower case
    now: ClassVar[str]  # the database's own clock, in microseconds
    still: ClassVar[str]  # how a transaction begins that sees one instant and changes nothing
    pairs: ClassVar[str]  # a JSON object's members as rows: pair.key, pair.value
    elements: ClassVar[str]  # a JSON list's elements as rows: element.value
    driver_error: type[Exception]

    def __init__(self) -> None:
        self._many = Connections(lambda: self.connect(batches=False), LENT, broken=self._disconnect)
        self._batches = Connections(lambda: self.connect(batches=True), 1, broken=self._disconnect)
        self._writers = self._many  # for transactions that are no batches
        self._closed = False
        self.writes = 0  # moves on whenever this process begins to write, and when it has written

    # -- what a dialect says -------------------------------------------------------------------------------------------

    @abstractmethod
    def connect(self, *, batches: bool) -> Connection:
        """A new connection; one for batches may trade the durability of the last of them for speed."""

    @abstractmethod
    def spelled(self, sql: str) -> str:
        """The common SQL in the driver's spelling."""

    @abstractmethod
    def passed(self, values: Iterable[Any]) -> Any:
        """A list, as one parameter for `among`."""

    @abstractmethod
    def bulk(self, connection: Connection, table: str, columns: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert many rows."""

    @abstractmethod
    def bulk_alike(
        self,
        connection: Connection,
        table: str,
        columns: str,
        row: tuple[Any, ...],
        place: int,
        values: Sequence[bytes],
    ) -> None:
        """Insert many rows that differ in one column."""

    @abstractmethod
    def fault(self, error: Exception) -> StoreError:
        """What an error of the driver means."""

    @abstractmethod
    def taken(self, error: Exception) -> bool:
        """Whether an error of the driver says that somebody else has a key that must be unique."""

    def writable(self) -> bool:
        """Whether nobody has locked all of the database to write: with locks of rows nobody does."""
        return True

    def tell_here(self) -> None:  # noqa: B027 - a server tells everybody
        """Tell who listens in this process that there are jobs."""

    @abstractmethod
    def evict(self, transaction: Transaction, labels: Sequence[str]) -> int:
        """
        End the transactions of these names, as far as we may: their owner may be unable to end them itself. How many are
        being ended.
        """

    @abstractmethod
    def lock_schema(self, transaction: Transaction) -> None:
        """Let nobody else change the schema before this transaction ends."""

    @abstractmethod
    def lock_events(self, transaction: Transaction) -> None:
        """Let nobody else add events before this transaction ends, so that their numbers become visible in order."""

    # -- transactions --------------------------------------------------------------------------------------------------

    def present(self) -> None:  # noqa: B027 - a server says it by itself
        """Raise if the database has gone from where it was."""

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Single statements, each of which sees what is committed."""
        with self._faults(), self._many.lend() as connection:
            yield Transaction(self, connection)

    def rows(self, sql: str, *parameters: Any) -> list[Any]:
        """What a single statement finds."""
        with self.reading() as tx:
            return tx.rows(sql, *parameters)

    def row(self, sql: str, *parameters: Any) -> Any:
        """The first row that a single statement finds; None if there is none."""
        with self.reading() as tx:
            return tx.row(sql, *parameters)

    def once(self, sql: str, *parameters: Any) -> list[Any]:
        """What a single statement finds that is a batch, and a transaction, by itself."""
        with self.writing(batches=True) as tx:
            return tx.rows(sql, *parameters)

    def put(self, insert: str, *parameters: Any, tell: str | None = None) -> Any:  # noqa: ARG002 - nobody but a server tells others
        """
        The row with the `id` that a statement returns which inserts it, is a transaction by itself, and is done again and again. With
        `tell` whoever listens for jobs of that app is told. It is on disk when this returns.
        """
        return self.row(insert, *parameters)

    def written(self, sql: str, *parameters: Any, batches: bool = False) -> int:
        """How many rows a single statement has written that is a transaction by itself, and gives none."""
        self.present()
        goes_on: Callable[[Exception], bool] | None = None
        with self._faults():
            while True:
                with (self._batches if batches else self._writers).lend() as connection:
                    self.writes += 1
                    try:
                        done = connection.execute(self.spelled(sql), parameters).rowcount
                    except self.driver_error as error:
                        goes_on = goes_on or self.patient()
                        if not goes_on(error):
                            raise
                    else:
                        self.writes += 1
                        return done

    def written_at_once(self, sql: str, *parameters: Any) -> int | None:  # noqa: ARG002 - a server is always waited for
        """As `written` for a batch, if nobody has to wait for it, neither a disk nor another writer; None if not."""
        return None

    @contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        """Statements that all see the same instant, and write nothing."""
        with self._faults(), self._many.lend() as connection:
            connection.execute(self.still)
            yield Transaction(self, connection)
            connection.execute("commit")

    def stream(self, transaction: Transaction, sql: str, *parameters: Any) -> Iterator[Any]:
        """Rows as they come, inside of a transaction: never all of them at once."""
        yield from transaction.execute(sql, *parameters)

    @contextmanager
    def writing(self, *, batches: bool = False) -> Iterator[Transaction]:
        """One transaction: all of the block or nothing of it."""
        self.present()
        transaction: Transaction | None = None
        goes_on: Callable[[Exception], bool] | None = None
        with self._faults():
            while transaction is None:
                with (self._batches if batches else self._writers).lend() as connection:
                    self.writes += 1
                    try:
                        connection.execute(self.begin)
                    except self.driver_error as error:
                        goes_on = goes_on or self.patient()
                        if not goes_on(error):
                            raise
                        continue  # others may try with this connection
                    transaction = Transaction(self, connection)
                    yield transaction
                    try:
                        connection.execute("commit")
                    except self.driver_error as error:
                        error.undecided = True  # type: ignore[attr-defined]  # unless the database has said that it failed
                        raise
                    self.writes += 1
        if transaction.then is not None:
            transaction.then()

    def patient(self) -> Callable[[Exception], bool]:
        """To be asked after each error at the beginning of a transaction: whether it is tried again."""
        return lambda _: False  # a server waits by itself

    @contextmanager
    def _faults(self) -> Iterator[None]:
        if self._closed:
            raise StoreRefused("the store is closed. Open it again with open_store().", error_class="code_error")
        try:
            yield
        except self.driver_error as error:
            raise self.fault(error) from None
        except NoPlace:
            message = f"{self!r} did not answer in time: all connections of this process wait for it."
            raise StoreUnavailable(message, error_class="database_connection") from None
        except UnicodeDecodeError:
            # The driver itself cannot say what it has read.
            message = "the store holds what cannot be read: it is damaged. Restore it from a backup."
            raise StoreRefused(message) from None

    def _disconnect(self) -> None:
        # What broke one connection broke the others: they would fail one call each.
        self._many.close()
        self._batches.close()
        self._writers.close()

    def close(self) -> None:
        self._closed = True
        self._disconnect()

    # -- migrations ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def unmade(self, error: Exception) -> bool:
        """Whether an error of the driver says that a table is not there."""

    @abstractmethod
    def forbidden(self, error: Exception) -> bool:
        """Whether an error of the driver says that this user may not change tables."""

    def schema(self) -> Schema:
        """Which schema the database has, and which one this program knows. Changes nothing."""
        return self._schema(self._version())

    def _schema(self, found: int) -> Schema:
        return Schema(found, len(_migrations(self.name)), tuple(name for name, _ in _scripts(self.name)[found:]))

    def migrate(self) -> Schema:
        """
        Bring the schema to what this program knows; how it was before. Any number of programs may start at once: one
        does it, the others wait. A program that has the database open goes on: migrations only add.
        """
        before = self.schema()
        if before.current:
            return before
        if before.newer:
            raise self._too_new(before)
        try:
            with without_hurry(), self.writing() as tx:
                return self._migrate(tx)
        except _Forbidden:
            message = (
                f"permission denied: {self!r} has schema {before.found}, this Outlast needs schema {before.wanted}, and this user may not change its tables. "
                "Run `outlast migrate --store URL` once, as the user who owns them; this program can go on afterwards."
            )
            raise StoreRefused(message, error_class="permission_denied") from None

    def _migrate(self, tx: Transaction) -> Schema:
        try:
            self.lock_schema(tx)
            tx.execute("create table if not exists outlast_schema (version integer not null)")
            found = tx.row("select version from outlast_schema")
            if not found:
                tx.execute("insert into outlast_schema (version) values (0)")
            # Somebody else may have done it meanwhile.
            before = self._schema(_number(found))
            if before.newer:
                raise self._too_new(before)
            for migration in _migrations(self.name)[before.found :]:
                for statement in _statements(migration):
                    tx.execute(statement)
            tx.execute("update outlast_schema set version = ?", before.wanted)
        except self.driver_error as error:
            if self.forbidden(error):
                raise _Forbidden from None
            raise
        return before

    def _too_new(self, schema: Schema) -> StoreRefused:
        return StoreRefused(
            f"the store has schema {schema.found}, made by a newer Outlast; this one knows schema {schema.wanted}. "
            "Upgrade this program, or give it a store of its own."
        )

    def _version(self) -> int:
        with self._faults():
            try:
                with self._many.lend() as connection:
                    found = connection.execute("select version from outlast_schema").fetchone()
            except self.driver_error as error:
                if self.unmade(error):
                    return 0
                raise
        return _number(found)


def _number(found: Any) -> int:
    """The number of a schema, as it was read."""
    if not found:
        return 0
    if not isinstance(found[0], int) or found[0] < 0:
        raise StoreRefused(
            f"expected the store's schema to be a number, got: {sanitise(repr(found[0]), 60)}. "
            "The store is damaged, or it is not Outlast's: restore it from a backup, or use another one."
        )
    return found[0]


class _Forbidden(Exception):
    """This user may not change tables."""


class Schema(NamedTuple):
    """How many migrations a database has had, how many this program knows, and the names of those that are missing."""

    found: int
    wanted: int
    missing: tuple[str, ...]

    @property
    def current(self) -> bool:
        return self.found == self.wanted

    @property
    def newer(self) -> bool:
        return self.found > self.wanted


def _migrations(name: str) -> list[str]:
    """The text of each migration, in order."""
    return [text for _, text in _scripts(name)]


@cache
def _scripts(name: str) -> tuple[tuple[str, str], ...]:
    """The name and the text of each migration, in order; their numbers have no gap. They are read once."""
    folder = files("outlast.store").joinpath("sql", name)
    found = sorted((entry.name, entry.read_text(encoding="utf-8")) for entry in folder.iterdir())
    numbered = [(name, text) for name, text in found if re.match(r"\d{4}_\w+\.sql$", name)]
    if [int(name[:4]) for name, _ in numbered] != list(range(1, len(numbered) + 1)):
        raise RuntimeError(f"the migrations for {name} are not numbered one after the other")
    return tuple((name.removesuffix(".sql"), text) for name, text in numbered)


def _statements(migration: str) -> list[str]:
    text = re.sub(r"--[^\n]*", "", migration)
    whole = re.findall(r"(?:[^;$]|\$\$.*?\$\$)+", text, re.DOTALL)  # with the body of a function in it
    return [statement.strip() for statement in whole if statement.strip()]
