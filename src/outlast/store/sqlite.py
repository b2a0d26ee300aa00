"""
SQLite: one file, one host, one writer at a time, any number of readers.

Readers never wait (write-ahead log). A write transaction takes the lock when it begins, so it waits for the lock and
does not fail in the middle. Batches are committed without a flush to the disk each: a crash of the program loses
nothing, a power cut may lose the last batches, and a resume does their items again. Everything else is flushed when it
is committed.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import sqlite3
import sys
import threading
from contextlib import closing
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.calls.internal import keep_trying
from outlast.kernel.clock import REAL
from outlast.policy import RetryPolicy
from outlast.store.connections import Connections
from outlast.store.database import LENT, Database, Duplicate, lock_patience
from outlast.store.faults import StoreRefused, StoreUnavailable, fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from outlast.store.connections import Connection
    from outlast.store.database import Transaction
    from outlast.store.faults import StoreError

_PATIENCE = 30.0  # seconds that a writer waits for its turn
_SLICE = 0.05  # seconds that it keeps its connection meanwhile, before another writer may try
_FORGOTTEN = 1.0  # seconds after which it looks for a transaction that this program itself has forgotten
_SELDOM = 4.0  # seconds between two such looks, at the most
_MOMENT = 0.2  # seconds that others have to end a write, before somebody is said to have the file
_BUSY = RetryPolicy(
    max_attempts=sys.maxsize, backoff="fixed", initial_delay=0.01, jitter=0.0, on_errors=("database_connection",)
)
# Rows in one statement. More gain nothing; and a few sizes only, for every other one would be a statement of its own to
# keep.
_ROWS = (500, 100, 20, 4, 1)
_OLDEST = (3, 35)  # knows "returning"
_REMOTE = frozenset("afs beegfs ceph cifs fuse.glusterfs fuse.sshfs gpfs lustre ncpfs nfs nfs4 smb3 smbfs".split())
_listeners: dict[Path, list[Callable[[], None]]] = {}  # who wants to hear of jobs, by file
_making = threading.Lock()  # around the making of a file


def _after_fork() -> None:
    global _making  # noqa: PLW0603 - whoever held it is not here
    _making = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class Sqlite(Database):
    name = "sqlite"
    begin = "begin immediate"
    for_update = for_change = for_share = skip_locked = ""
    arrays = False
    known_here = "select count(*) from sqlite_master where name = 'outlast_store'"
    server = "0"  # there is none, and the file itself is compared
    labelled = "?"
    one_by_one = "1"
    among = "in (select value from json_each(?))"
    lower = "lower({})"
    now = "cast((julianday('now') - 2440587.5) * 86400000000 as integer)"
    still = "begin"
    pairs = "json_each({}) as pair"
    elements = "json_each({}) as element"
    driver_error = sqlite3.Error

    def __init__(self, path: str | Path, *, patience: float | None = None) -> None:
        super().__init__()
        self.path = Path(path).expanduser().absolute()  # a later change of directory must not make it another file
        self._patience = _PATIENCE if patience is None else patience
        if sqlite3.sqlite_version_info < _OLDEST:
            raise StoreRefused(
                f"expected SQLite 3.35 or newer, got: {sqlite3.sqlite_version}. Use a newer Python, or PostgreSQL."
            )
        _refuse_network(self.path)
        self._file = _prepare(self.path)
        self._writers = Connections(lambda: self.connect(batches=False, writes=True), LENT, broken=self._disconnect)
        self._hasty = Connections(self._connect_hastily, 1, broken=self._disconnect)

    def __repr__(self) -> str:
        return f"<SQLite {str(self.path)!r}>"

    def connect(self, *, batches: bool, writes: bool = False) -> sqlite3.Connection:
        self.present()
        patience = _SLICE if batches or writes else self._patience
        connection = sqlite3.connect(
            self.path, timeout=patience, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        try:
            mode = self._write_ahead(connection)
            if mode != "wal":
                message = f"expected {self.path} to be on a disk that can share memory, got: journal mode {mode!r}."
                raise StoreRefused(message)
            connection.execute(f"pragma synchronous = {'normal' if batches else 'full'}")
            connection.execute("pragma cache_size = -4096")
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_hastily(self) -> sqlite3.Connection:
        connection = self.connect(batches=True)
        # What waits for the disk is left to the others: they move what is in the log to its place.
        for pragma in ("busy_timeout = 0", "wal_autocheckpoint = 0"):
            connection.execute(f"pragma {pragma}")
        return connection

    def written_at_once(self, sql: str, *parameters: Any) -> int | None:
        self.present()
        with self._faults(), self._hasty.lend() as connection:
            self.writes += 1
            try:
                done = connection.execute(sql, parameters).rowcount
            except sqlite3.OperationalError as error:
                if _is_busy(error):
                    return None
                raise
            self.writes += 1
        return done

    def _disconnect(self) -> None:
        super()._disconnect()
        self._hasty.close()

    def _write_ahead(self, connection: sqlite3.Connection) -> str:
        # The first to do it needs the file alone for a moment, and SQLite does not wait for that by itself. What it
        # waits for by itself passes in real time, and so does this.
        asked = keep_trying(lambda: connection.execute("pragma journal_mode = wal"), _BUSY, self._patience, world=REAL)
        return str(asked.fetchone()[0])

    def spelled(self, sql: str) -> str:
        return sql

    def passed(self, values: Iterable[Any]) -> str:
        return json.dumps(list(values))

    def bulk(self, connection: Connection, table: str, columns: str, rows: Sequence[tuple[Any, ...]]) -> None:
        try:
            first = 0
            while (left := len(rows) - first) > 0:
                count = next(size for size in _ROWS if size <= left)
                part = rows[first : first + count]
                connection.execute(_insert(table, columns, count), list(chain.from_iterable(part)))
                first += count
        except sqlite3.IntegrityError as error:
            raise _integrity(error) from None

    def bulk_alike(
        self,
        connection: Connection,
        table: str,
        columns: str,
        row: tuple[Any, ...],
        place: int,
        values: Sequence[bytes],
    ) -> None:
        same, first = [*row[:place], *row[place + 1 :]], 0
        while (left := len(values) - first) > 0:
            count = next(size for size in _ROWS if size <= left)
            connection.execute(_insert_alike(table, columns, place, count), [*same, *values[first : first + count]])
            first += count

    def present(self) -> None:
        # SQLite goes on with a file that was deleted, and all that is written is lost with the program.
        if _identity(self.path) != self._file:
            message = f"the store {self.path} was deleted, moved or replaced while it was open. Put it back, or open the store again."
            raise StoreRefused(message)

    def fault(self, error: Exception) -> StoreError:
        code = _code(error)
        if _is_busy(error):
            return self._locked(self._patience)
        if code == sqlite3.SQLITE_NOTADB:
            return StoreRefused(f"expected {self.path} to be a SQLite database, got: a file of another kind.")
        if code == sqlite3.SQLITE_CANTOPEN and os.access(self.path, os.R_OK | os.W_OK):
            # This program may open the file, and cannot open any.
            message = f"the store {self.path} could not be opened: probably no file descriptor is left."
            return StoreUnavailable(f"{message} Look for code that leaks files or sockets, or raise `ulimit -n`.")
        way_out = "Make room on that disk; nothing was written by halves." if code == sqlite3.SQLITE_FULL else ""
        return fault(f"the store {self.path} failed", error, way_out=way_out)

    def _locked(self, seconds: float) -> StoreUnavailable:
        message = (
            f"the store {self.path} is locked: another program, or this one, has been writing to it for {seconds:g} s."
        )
        if lock_patience.get() is not None:
            message += " If that is a transaction of this job: commit it first, or enqueue in it with transaction=."
        return StoreUnavailable(message, error_class="database_connection", locked=True)

    def patient(self) -> Callable[[Exception], bool]:
        asked, since, due = lock_patience.get(), REAL.clock.monotonic(), _FORGOTTEN
        longest = self._patience if asked is None else min(asked, self._patience)

        def goes_on(error: Exception) -> bool:
            nonlocal due
            waited = REAL.clock.monotonic() - since
            if not _is_busy(error):
                return False
            if waited >= longest:
                raise self._locked(longest) from None
            if waited >= due:
                # Code that has failed may have left its connection, which is a cycle of objects, with a transaction.
                due = waited + min(waited, _SELDOM)
                gc.collect()
            return True

        return goes_on

    def writable(self) -> bool:
        # By a connection of its own: those of the store wait for longer.
        self.present()
        with self._faults(), closing(sqlite3.connect(self.path, timeout=_MOMENT, isolation_level=None)) as probe:
            try:
                probe.execute("begin immediate")
            except sqlite3.OperationalError as error:
                if _is_busy(error):
                    return False
                raise
            probe.execute("rollback")
        return True

    def taken(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.IntegrityError) and isinstance(_integrity(error), Duplicate)

    def tell_here(self) -> None:
        # Other processes see that the file has changed.
        for listener in tuple(_listeners.get(self.path, ())):
            listener()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call it whenever this process has enqueued jobs here, until what is returned is called."""
        listeners = _listeners.setdefault(self.path, [])
        listeners.append(listener)
        return lambda: listeners.remove(listener)

    def evict(self, transaction: Transaction, labels: Sequence[str]) -> int:  # noqa: ARG002 - there is none to end
        """A transaction that began to write is alone: whoever stands still in one has the file, not only its shard."""
        return 0

    def unmade(self, error: Exception) -> bool:
        return "no such table" in str(error)

    def forbidden(self, error: Exception) -> bool:
        return _code(error) in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}

    def lock_schema(self, transaction: Transaction) -> None:
        """As above."""

    def lock_events(self, transaction: Transaction) -> None:
        """As above."""


def _code(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _is_busy(error: Exception) -> bool:
    """Whether somebody else has the file."""
    return _code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _integrity(error: sqlite3.IntegrityError) -> Exception:
    unique = {sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE}
    return Duplicate() if error.sqlite_errorcode in unique else error


@lru_cache(maxsize=128)
def _insert(table: str, columns: str, rows: int) -> str:
    row = f"({','.join('?' * len(columns.split(',')))})"
    return f"insert into {table} ({columns}) values {','.join([row] * rows)}"


@lru_cache(maxsize=16)
def _insert_alike(table: str, columns: str, place: int, rows: int) -> str:
    # A parameter for each value instead of one for each column of each row: half the time.
    marks = ["?"] * len(columns.split(","))
    marks[place] = "given.column1"
    return f"insert into {table} ({columns}) select {','.join(marks)} from (values {','.join(['(?)'] * rows)}) as given"


def _prepare(path: Path) -> tuple[int, int] | None:
    """Make the folder and the file, for nobody else to read: payloads are the user's data."""
    if path.is_dir():
        raise StoreRefused(
            f"expected {path} to be a file, got: a folder. Name a file in it, such as {path / 'outlast.db'}."
        )
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
            path.parent.chmod(0o700)
            if path.parent.name == ".outlast":
                (path.parent / ".gitignore").write_text("*\n")
        _make(path)
        return _identity(path)
    except OSError as error:
        raise fault(f"cannot open the store {path}", error, text=error.strerror or type(error).__name__) from None


def _make(path: Path) -> None:
    """
    Make the file, if it is not there. One that is there is never opened here: to close it would take all locks that this
    process has on it, by whichever connection, and others would take its files away. Nor does another thread connect to
    one that is being made, before it is closed.
    """
    try:
        # The files that SQLite puts beside it get the permissions of this one.
        with _making:
            os.close(os.open(path.resolve(), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _refuse_network(path: Path, mounts: Path = Path("/proc/self/mounts")) -> None:
    """SQLite's locks do not hold across hosts; two of them would damage the file."""
    try:
        lines = [line.split() for line in mounts.read_text(errors="replace").splitlines()]
    except OSError:
        return  # not Linux: nobody to ask
    whole = str(path.parent.resolve())
    places = [(_unescaped(line[1]), line[2]) for line in lines if len(line) > 2]
    above = [(place, kind) for place, kind in places if f"{whole}/".startswith(f"{place.rstrip('/')}/")]
    # The last of the deepest: what was mounted over it hides it.
    kind = max(enumerate(above), key=lambda found: (len(found[1][0]), found[0]))[1][1] if above else ""
    if kind in _REMOTE:
        raise StoreRefused(
            f"the store {path} is on a network file system ({kind}), where SQLite cannot lock. "
            "Use a path on a local disk, or PostgreSQL: postgresql://..."
        )


def _unescaped(place: str) -> str:
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        place = place.replace(code, character)
    return place
