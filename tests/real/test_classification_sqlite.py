"""Verdicts on what sqlite3 really raises."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from real.expected import check, raised_by
from tables import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with one table of one row, in write-ahead mode."""
    path = tmp_path / "shop.db"
    with closing(connect(path)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table items (id integer primary key, name text not null)")
        connection.execute("insert into items values (1, 'bread')")
    return path


@pytest.fixture
def ours(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(connect(path)) as connection:
        yield connection


@pytest.fixture
def theirs(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(connect(path)) as connection:
        yield connection


def connect(path: Path | str, *, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=0, isolation_level=None, uri=uri)


STATEMENTS = {
    "no such table": ("select * from nowhere", "syntax_error"),
    "no such column": ("select nothing from items", "syntax_error"),
    "syntax": ("selec 1", "syntax_error"),
    "primary key": ("insert into items values (1, 'milk')", "data_error"),
    "not null": ("insert into items values (2, null)", "data_error"),
    "datatype mismatch": ("insert into items values ('two', 'milk')", "data_error"),
}


@table(("statement", "error_class"), STATEMENTS.values(), ids=STATEMENTS.keys())
def test_a_failed_statement_is_classified_by_its_sqlite_code(
    ours: sqlite3.Connection, statement: str, error_class: str
) -> None:
    """C-07, D-2: OperationalError alone would be a matter of luck."""
    check(raised_by(lambda: ours.execute(statement)), error_class)


def test_a_busy_database_is_database_connection(ours: sqlite3.Connection, theirs: sqlite3.Connection) -> None:
    """D-3: somebody else writes."""
    theirs.execute("begin immediate")
    check(raised_by(lambda: ours.execute("begin immediate")), "database_connection")


def test_a_stale_snapshot_is_database_connection(ours: sqlite3.Connection, theirs: sqlite3.Connection) -> None:
    """D-3: SQLITE_BUSY_SNAPSHOT, an extended code of busy; the transaction has to begin again."""
    ours.execute("begin")
    ours.execute("select * from items").fetchall()
    theirs.execute("insert into items values (2, 'milk')")
    check(raised_by(lambda: ours.execute("insert into items values (3, 'salt')")), "database_connection")


def test_a_locked_table_is_database_connection() -> None:
    """D-3: SQLITE_LOCKED_SHAREDCACHE, an extended code of locked."""
    address = "file:outlast-locked?mode=memory&cache=shared"
    with closing(connect(address, uri=True)) as theirs, closing(connect(address, uri=True)) as ours:
        theirs.execute("create table items (id integer)")
        theirs.execute("begin immediate")
        theirs.execute("insert into items values (1)")
        check(raised_by(lambda: ours.execute("select * from items")), "database_connection")


def test_a_read_only_database_is_permission_denied(path: Path) -> None:
    """C-07: SQLITE_READONLY."""
    with closing(connect(f"file:{path}?mode=ro", uri=True)) as connection:
        check(raised_by(lambda: connection.execute("delete from items")), "permission_denied")


def test_a_database_that_is_not_there_is_missing_input(tmp_path: Path) -> None:
    """C-07: SQLITE_CANTOPEN."""
    check(raised_by(lambda: connect(tmp_path / "no" / "such" / "folder.db")), "missing_input")


def test_a_file_that_is_no_database_is_data_error(tmp_path: Path) -> None:
    """C-07: SQLITE_NOTADB, raised as a bare DatabaseError."""
    (tmp_path / "letter.txt").write_text("Dear Sir or Madam, " * 300)
    with closing(connect(tmp_path / "letter.txt")) as connection:
        check(raised_by(lambda: connection.execute("select * from items")), "data_error")


def test_a_full_database_is_resource_exhausted(ours: sqlite3.Connection) -> None:
    """C-07: SQLITE_FULL."""
    ours.execute("pragma max_page_count = 3")
    check(raised_by(lambda: ours.execute("insert into items values (2, hex(zeroblob(100000)))")), "resource_exhausted")


MISUSES: dict[str, Callable[[sqlite3.Connection], object]] = {
    "closed connection": lambda connection: (connection.close(), connection.execute("select 1")),
    "too few parameters": lambda connection: connection.execute("select ?", ()),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES.keys())
def test_misuse_of_the_driver_is_code_error(ours: sqlite3.Connection, misuse) -> None:
    """D-3: ProgrammingError without a code; a closed file does not come back by itself."""
    check(raised_by(lambda: misuse(ours)), "code_error")
