"""
SQLite: one file, one host, one writer at a time, any number of readers.

Readers never wait (write-ahead log). A write transaction takes the lock when it begins, so it waits for the lock and
does not fail in the middle. Batches are committed without a flush to the disk each: a crash of the program loses
nothing, a power cut may lose the last batches, and a resume does their items again. Everything else is flushed when it
is committed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.calls.internal import keep_trying
from outlast.kernel.clock import REAL
from outlast.policy import RetryPolicy
from outlast.store.database import Database, Duplicate
from outlast.store.faults import StoreRefused, StoreUnavailable, fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from outlast.store.connections import Connection
    from outlast.store.database import Transaction
    from outlast.store.faults import StoreError

_PATIENCE = 30.0  # seconds that a writer waits for its turn
_BUSY = RetryPolicy(
    max_attempts=sys.maxsize, backoff="fixed", initial_delay=0.01, jitter=0.0, on_errors=("database_connection",)
)
# Rows in one statement. More gain nothing; and a few sizes only, for every other one would be a statement of its own to
# keep.
_ROWS = (500, 100, 20, 4, 1)
_OLDEST = (3, 35)  # knows "returning"
_REMOTE = frozenset("afs beegfs ceph cifs fuse.glusterfs fuse.sshfs gpfs lustre ncpfs nfs nfs4 smb3 smbfs".split())


_listeners: dict[Path, list[Callable[[], None]]] = {}  # who wants to hear of jobs, by file


class Sqlite(Database):
    name = "sqlite"
    begin = "begin immediate"
    for_update = for_share = skip_locked = ""
    arrays = False
    known_here = "select count(*) from sqlite_master where name = 'outlast_store'"
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

    def __repr__(self) -> str:
        return f"<SQLite {str(self.path)!r}>"

    def connect(self, *, batches: bool) -> sqlite3.Connection:
        self.present()
        connection = sqlite3.connect(
            self.path, timeout=self._patience, isolation_level=None, check_same_thread=False, cached_statements=64
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

    def present(self) -> None:
        # SQLite goes on with a file that was deleted, and all that is written is lost with the program.
        if _identity(self.path) != self._file:
            message = f"the store {self.path} was deleted, moved or replaced while it was open. Put it back, or open the store again."
            raise StoreRefused(message)

    def fault(self, error: Exception) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            message = (
                f"the store {self.path} is locked: another program has been writing to it for {self._patience:g} s."
            )
            return StoreUnavailable(message, error_class="database_connection")
        if code == sqlite3.SQLITE_NOTADB:
            return StoreRefused(f"expected {self.path} to be a SQLite database, got: a file of another kind.")
        way_out = "Make room on that disk; nothing was written by halves." if code == sqlite3.SQLITE_FULL else ""
        return fault(f"the store {self.path} failed", error, way_out=way_out)

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

    def evict(self, transaction: Transaction, labels: Sequence[str]) -> None:
        """A transaction that began to write is alone: whoever stands still in one has the file, not only its shard."""

    def unmade(self, error: Exception) -> bool:
        return "no such table" in str(error)

    def forbidden(self, error: Exception) -> bool:
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}

    def lock_schema(self, transaction: Transaction) -> None:
        """As above."""

    def lock_events(self, transaction: Transaction) -> None:
        """As above."""


def _integrity(error: sqlite3.IntegrityError) -> Exception:
    unique = {sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE}
    return Duplicate() if error.sqlite_errorcode in unique else error


@lru_cache(maxsize=128)
def _insert(table: str, columns: str, rows: int) -> str:
    row = f"({','.join('?' * len(columns.split(',')))})"
    return f"insert into {table} ({columns}) values {','.join([row] * rows)}"


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
        # The files that SQLite puts beside it get the permissions of this one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        return _identity(path)
    except OSError as error:
        raise fault(f"cannot open the store {path}", error, text=error.strerror or type(error).__name__) from None


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
