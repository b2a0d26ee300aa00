"""
Databases: how they are reached, and the rows of a query as items.

    Query("postgresql://reader@db/shop", "select * from reviews where day = %s order by id", day)
    Query(lambda: pymysql.connect(host="db", database="shop"), "select * from reviews order by id")

Rows come in chunks, in a thread of its own, from one snapshot: a read-only transaction with repeatable read on
PostgreSQL and a read transaction on SQLite. A resumed run asks again, and passes over what is on record, by key; with a
stable order that costs next to nothing.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import quote

from outlast.components.reading import Source, ThreadedReader, missing
from outlast.errors import ConfigurationError, OutlastError, PermanentFailure, TemporaryFailure
from outlast.kernel.redact import LIMIT, error_text, mask, sanitise
from outlast.kernel.value import put
from outlast.settings.checks import Check
from outlast.verdicts import classify

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Dialect = Literal["sqlite", "postgres", "mysql", "other"]


class Hidden(Protocol):
    """A `Secret`."""

    def reveal(self) -> str: ...


_DRIVERS: dict[str, Dialect] = {
    "sqlite3": "sqlite",
    "psycopg": "postgres",
    "psycopg2": "postgres",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
_QUOTED = re.compile(r'".*"', re.DOTALL)
_SINGLE = re.compile(r"'.*'|'.*", re.DOTALL)
_MARK = re.compile("[\"'`«»„“”]")  # around what a database quotes, in whichever language
_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"(?<![\w$(.])\d[\w.]*")  # that of a type stands in brackets: varying(3)
# What stands between two names that are quoted.
_JOINING = frozenset(
    "a and argument check column constraint does exclusion for foreign from function has have in is key name named no not null of "
    "on or relation schema table the type unique use violates with".split()
)
# Where PostgreSQL says that an error comes from, if the code of a function or a trigger has raised it.
_LANGUAGES = frozenset({"pl_exec.c", "plpy_elog.c", "plperl.c", "pltcl.c"})
_NAMED = ("schema", "table", "column", "datatype", "constraint")  # what it names in fields of an error
_SIGNAL = 1644  # the same of MySQL
_NAME = r'"?[^\W\d][\w$]{0,62}"?'
_OWN_WORDS = re.compile(
    "|".join(
        (
            rf"duplicate key value violates unique constraint {_NAME}",
            rf"conflicting key value violates exclusion constraint {_NAME}",
            rf"null value in column {_NAME}(?: of relation {_NAME})? violates not-null constraint",
            rf"(?:insert or update|update or delete) on table {_NAME} violates foreign key constraint {_NAME}(?: on table {_NAME})?",
            rf"(?:new row for relation|value for domain) {_NAME} violates check constraint {_NAME}",
            rf"new row violates row-level security policy(?: {_NAME})? for table {_NAME}",
            rf"permission denied for (?:table|view|sequence|schema|function|column|relation) {_NAME}",
            rf"(?:relation|column|schema|type) {_NAME}(?: of relation {_NAME})? does not exist",
            rf"cannot (?:insert a non-DEFAULT value into|insert into) (?:column|view) {_NAME}",
            rf"column {_NAME} is of type [a-z ]{{1,40}} but expression is of type [a-z ]{{1,40}}",
            "there is no unique or exclusion constraint matching the ON CONFLICT specification",
            "ON CONFLICT DO UPDATE command cannot affect row a second time",
            "deadlock detected",
            "could not serialize access due to (?:concurrent update|concurrent delete|read/write dependencies among transactions)",
            "canceling statement due to (?:statement timeout|lock timeout|user request)",
            r'invalid input (?:syntax|value) for (?:type|enum) [a-z_ ]{1,60}: "…"',
            r"invalid input syntax for type [a-z ]{1,40}",
            r'(?:date/time|interval) field value out of range: "…"',
            r'(?:value )?"…" is out of range for type [a-z ]{1,40}',
            "(?:smallint|integer|bigint|timestamp|date|interval) out of range",
            "numeric field overflow",
            r"value too long for type [a-z ]{1,40}\([0-9]{1,9}\)",
            "unsupported Unicode escape sequence",
        )
    )
)
_PATIENCE = 2.0  # seconds for a server to hear that nobody waits any longer
_WHERE = "an address (sqlite:///path or postgresql://...), a Secret with one, or a function that connects"


@dataclass(frozen=True, init=False, repr=False)
class Query(Source):
    """
    The rows of a SQL query, each a dict, as the source of a run.

    `source` is ``sqlite:///path``, ``postgresql://...``, a `Secret` that holds one of these, or a function that returns
    a new DB-API connection (any database: ``lambda: pymysql.connect(...)``). `params` are passed to the driver, in its
    own style; a single mapping has the named ones. `chunk` rows are fetched at a time.
    """

    source: str | Hidden | Callable[[], Any]
    sql: str
    params: tuple[Any, ...]
    chunk: int

    def __init__(self, source: str | Hidden | Callable[[], Any], sql: str, /, *params: Any, chunk: int = 1000) -> None:
        check = Check()
        check_address(check, "source", source)
        if not isinstance(sql, str) or not sql.strip():
            check.add("sql", "a query", sql)
        put(self, "chunk", check.integer("chunk", chunk, low=1, default=1000))
        check.raise_if_any()
        put(self, "source", source)
        put(self, "sql", sql)
        put(self, "params", params)

    def __repr__(self) -> str:
        return f"Query({shown(self.source)!r}, {mask(self.sql)!r}, chunk={self.chunk})"

    def items(self) -> ThreadedReader:
        """The rows, read by a thread of their own."""
        return ThreadedReader(self.read)

    def read(self) -> Reading:
        """The rows in lists. What it opens belongs to the thread that first asks for some."""
        return Reading(self)


class Reading:
    """One reading of a query; `interrupt` may be called from any thread."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._where = shown(query.source)
        self._source = steady(query.source)
        self._connection: Any = None
        self._cursor: Any = None
        self._names: list[str] = []
        self._done = 0
        self._busy = False

    def __iter__(self) -> Reading:
        return self

    def __next__(self) -> list[dict[str, Any]]:
        self._busy = True
        try:
            if self._cursor is None:
                self._begin()
            cursor: Any = self._cursor
            rows: Sequence[Any] = cursor.fetchmany(self._query.chunk)
            if rows and not self._names:
                self._names = self._columns()
        except OutlastError:
            raise
        except Exception as error:  # noqa: BLE001 - a driver's own, which may quote rows
            after = f" after {self._done} rows" if self._done else ""
            raise failure(f"the query at {self._where} failed{after}", error, (self._query.sql,)) from None
        finally:
            self._busy = False
        if not rows:
            raise StopIteration
        self._done += len(rows)
        names = self._names
        return [dict(row) if isinstance(row, Mapping) else dict(zip(names, row, strict=True)) for row in rows]

    def _begin(self) -> None:
        query = self._query
        self._connection = connection = connect(self._source, read_only=True)
        dialect = dialect_of(connection)
        params: Any = (
            query.params[0] if len(query.params) == 1 and isinstance(query.params[0], Mapping) else query.params
        )
        if dialect == "sqlite":
            if not connection.in_transaction:
                connection.execute("begin")  # one snapshot
            self._cursor = connection.cursor()
        elif dialect == "postgres":
            self._cursor = self._snapshot(connection)
        else:
            self._cursor = connection.cursor(*_streaming(connection))
        if params:
            self._cursor.execute(query.sql, params)
        else:
            self._cursor.execute(query.sql)

    def _snapshot(self, connection: Any) -> Any:
        """A cursor on the server: neither side holds all rows, and all of them are of one moment."""
        connection.rollback()
        with suppress(Exception):  # psycopg; psycopg2 too
            connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("begin isolation level repeatable read, read only")
            # The rows are fetched as fast as they are worked on: the server must not lose its patience in between.
            cursor.execute("set local idle_in_transaction_session_timeout = 0")
        return connection.cursor(name="outlast")

    def _columns(self) -> list[str]:
        names = [str(column[0]) for column in self._cursor.description]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            message = f"expected the columns of a query to have names that differ, got twice: {', '.join(twice)}. Give them names with AS."
            raise ConfigurationError(message)
        return names

    def interrupt(self) -> None:
        """Have the database stop thinking about it, if it does."""
        connection = self._connection
        if self._busy and hasattr(connection, "cancel_safe"):
            connection.cancel_safe(timeout=_PATIENCE)
        elif self._busy and hasattr(connection, "interrupt"):
            connection.interrupt()

    def close(self) -> None:
        """Give the connection back."""
        cursor, connection, self._cursor, self._connection = self._cursor, self._connection, None, None
        if dialect_of(connection) == "mysql" and getattr(cursor, "_result", None) is not None:
            cursor._result.unbuffered_active = False  # noqa: SLF001 - or PyMySQL would read all the rest first
            cursor.connection = None
        else:
            close(cursor)
        close(connection)


def _streaming(connection: Any) -> tuple[Any, ...]:
    """PyMySQL reads everything at once, unless it is asked for another kind of cursor."""
    cursors = sys.modules.get("pymysql.cursors")
    kind = getattr(_inner(connection), "cursorclass", None)
    if cursors is None or kind is None:
        return ()
    unbuffered = {cursors.Cursor: cursors.SSCursor, cursors.DictCursor: cursors.SSDictCursor}
    return (unbuffered[kind],) if kind in unbuffered else ()


# -- connections ----------------------------------------------------------------------------------------------------------------


def check_address(check: Check, name: str, source: Any) -> None:
    """Complain about what cannot be a database, without going there."""
    if isinstance(source, str):
        try:
            _scheme(source)
        except ConfigurationError as wrong:
            check.add(name, _WHERE, mask(source), wrong.problems[0])
    elif not callable(source) and not hasattr(source, "reveal"):
        check.add(name, _WHERE, source)


def _scheme(address: str) -> Literal["sqlite", "postgres"]:
    scheme, _, rest = address.partition("://")
    if scheme in {"postgresql", "postgres"} and rest:
        return "postgres"
    if scheme == "sqlite" and rest.startswith("/") and rest.strip("/"):
        return "sqlite"
    hint = (
        "Other databases are reached by a function that connects, such as lambda: pymysql.connect(...)."
        if rest and scheme != "sqlite"
        else "A path comes after three slashes: sqlite:///relative or sqlite:////absolute."
    )
    raise ConfigurationError(hint)


def connect(source: str | Hidden | Callable[[], Any], *, read_only: bool = False) -> Any:
    """A new connection."""
    given: Any = source
    if not isinstance(source, str):
        if not hasattr(source, "reveal"):
            return given()
        given = given.reveal()
    address = str(given)
    if _scheme(address) == "sqlite":
        path = Path(address.partition("://")[2][1:])
        if not path.is_file():
            raise ConfigurationError(f"expected a SQLite database at {path}, got: no such file.")
        way = f"file:{quote(str(path.absolute()))}?mode={'ro' if read_only else 'rw'}"
        return sqlite3.connect(way, uri=True, isolation_level=None, check_same_thread=False, timeout=30)
    try:
        from outlast.store.postgres import Postgres
    except ImportError:
        raise missing("PostgreSQL", "psycopg 3", "postgres") from None
    return Postgres(address).connect(batches=False)


def steady(source: str | Hidden | Callable[[], Any]) -> str | Hidden | Callable[[], Any]:
    """The same database from whichever folder."""
    if not isinstance(source, str) or _scheme(source) != "sqlite":
        return source
    return f"sqlite:///{Path(source.partition('://')[2][1:]).absolute()}"


def shown(source: Any) -> str:
    """Where a database is, without secrets."""
    return mask(source) if isinstance(source, str) else repr(source) if hasattr(source, "reveal") else "a connection"


def _inner(connection: Any) -> Any:
    return getattr(connection, "driver_connection", connection)  # SQLAlchemy lends drivers' connections in a wrapper


def dialect_of(connection: Any) -> Dialect:
    """Which database answers, by the driver."""
    for kind in type(_inner(connection)).__mro__:
        known = _DRIVERS.get(kind.__module__.partition(".")[0])
        if known is not None:
            return known
    return "other"


def close(thing: Any) -> None:
    """Close it, whatever state it is in."""
    if thing is not None:
        with suppress(Exception):
            thing.close()


def failure(what: str, error: Exception, known: Sequence[str]) -> OutlastError:
    """What a driver says, in our words: whether it may pass, and nothing of anybody's rows. `known` is as for `said`."""
    verdict = classify(error)
    kind = PermanentFailure if verdict.category == "permanent" else TemporaryFailure
    return kind(f"{what}: {said(error, known)}", error_class=verdict.error_class)


def said(error: Exception, known: Sequence[str] = ()) -> str:
    """
    What a database says about an error, without the values that it quotes. `known` has what is no value: the query, and
    names of tables and columns.
    """
    diag = getattr(error, "diag", None)
    primary = getattr(diag, "message_primary", None)
    if primary:
        state = str(getattr(error, "sqlstate", ""))
        if getattr(diag, "source_file", None) in _LANGUAGES:
            return f"SQLSTATE {state}, raised by a function or a trigger, whose words may have values"
        # What is wrong with a value is said of a value, also if it looks like a name.
        names = [str(getattr(diag, f"{one}_name", None) or "") for one in _NAMED]
        return sanitise(without_values(primary, () if state.startswith("22") else (*known, *names)))
    text = error_text(error)
    if error.args and error.args[0] == _SIGNAL:
        return f"{_SIGNAL}, raised by a function or a trigger, whose words may have values"
    if len(error.args) > 1 and isinstance(error.args[0], int):  # MySQL: a number, and a text with values in quotes
        # From the first quote to the last: of a part of a query, quotes stand inside of the quotes.
        text = f"{error.args[0]}, " + _SINGLE.sub("'…'", error_text(Exception(error.args[1])))
    return text or type(error).__name__


def without_values(text: str, known: Sequence[str]) -> str:
    """
    A message of a database of which only that is left in quotes whose words are all `known`. A value may have quotes
    itself: then what stands between them is none of the words that databases put there.

    >>> without_values('column "title" of relation "ann" does not exist', ["select title"])
    'column "title" of relation "…" does not exist'
    >>> without_values('syntax error in tsquery: "title" & ann & "title"', ["select title"])
    'syntax error in tsquery: "…"'
    """
    words = {word.lower() for one in known for word in _WORD.findall(one)}
    before, *parts = _MARK.split(text)
    shown = _without_numbers(before, words)
    if not parts:
        return shown
    is_open = len(parts) % 2 == 1  # all behind the last quote may be a value
    last = "" if is_open else _without_numbers(parts.pop(), words)
    if is_open or not all(_JOINING.issuperset(_WORD.findall(between)) for between in parts[1::2]):
        return f'{shown}"…"{last}'
    for place in range(0, len(parts), 2):
        part = parts[place]
        found = _WORD.findall(part.lower())
        if not (words.issuperset(found) if found else any(part in one for one in known)):
            parts[place] = "…"
    return '"'.join((shown, *parts, last))


def _without_numbers(text: str, words: set[str]) -> str:
    return _NUMBER.sub(lambda number: number[0] if number[0].lower() in words else "…", text)


def said_by_postgres(message: str, sqlstate: str) -> str:
    """
    What PostgreSQL says of an error, where only its text is known: shown are words of its own with names of constraints,
    columns and tables. Anything else may be what a function or a trigger of the database has raised, with values of the row.

    >>> said_by_postgres('null value in column "title" of relation "movies" violates not-null constraint', "23502")
    'null value in column "title" of relation "movies" violates not-null constraint'
    >>> said_by_postgres("mail ann@example.org is taken", "P0001"), said_by_postgres('value of type "x"', "22P02")
    ('SQLSTATE P0001', 'SQLSTATE 22P02')
    """
    shown = _QUOTED.sub('"…"', message) if sqlstate.startswith("22") else message
    return shown if len(shown) <= LIMIT and _OWN_WORDS.fullmatch(shown) else f"SQLSTATE {sqlstate}"
