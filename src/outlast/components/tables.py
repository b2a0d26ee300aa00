"""
A table of a database as a sink, exact across crashes.

Two databases cannot commit together. So the rows of a batch are first staged in the target's own database, in a table
of ours, where they do not count; then the store's commit says which batch counts; then one transaction moves the rows
into the table and clears the stage. On opening, the staged batch that was committed is moved, and every other one is
deleted.

    write    transaction: try the rows on the table and undo that; stage them; commit
             a crash before the next step leaves staged rows that do not count
    commit   the store records the number of the batch; from here on it counts
    settle   transaction: unstage; insert into the table; commit
             after a crash before this step, the resumed run does it

A row that the table refuses is found by halving the batch, before anything is staged. The number of a batch begins with
the token of the lease: a process that has lost the lease cannot use a number that counts.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outlast.components.sinks import Refused, Sink
from outlast.components.sql import check_address, close, connect, dialect_of, failure, said, shown, steady
from outlast.components.values import json_text, row_of, seconds, tell, unfit
from outlast.errors import ConfigurationError, OutlastError, PermanentFailure
from outlast.kernel.value import put
from outlast.settings.checks import Check
from outlast.store.codec import Codec
from outlast.verdicts import classify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from outlast.components.sql import Dialect, Hidden

    Row = tuple[tuple[str, ...], list[Any]]  # columns, and their values

STAGE = "outlast_staged"
_PIECE = 1 << 18  # bytes of a staged piece: far below what any server takes in one statement
_TYPES = {
    "sqlite": ("text", "integer", "blob"),
    "postgres": ("text", "bigint", "bytea"),
    "mysql": ("varchar(64)", "bigint", "longblob"),
}
_SIMPLE = frozenset({bool, int, str, bytes})
_NATIVE = frozenset({dt.datetime, dt.date, dt.time, dt.timedelta, bytes, Decimal, UUID})
_POSTGRES_JSON = frozenset({114, 3802})  # json and jsonb
_MYSQL_JSON = 245
_REFUSED = -1  # the piece of a batch that has what the table has refused
_codec = Codec()


@dataclass(frozen=True, init=False, repr=False)
class Table:
    """
    A table as the sink of a run: each output becomes a row of it, exactly once, whatever happens.

    `target` is as in `Query`; the drivers of SQLite, PostgreSQL (psycopg) and MySQL or MariaDB are known. The table
    must be there. `key` names the column or columns that identify a row: one that is there already is updated instead.
    """

    target: str | Hidden | Callable[[], Any]
    name: str
    key: tuple[str, ...]

    def __init__(
        self, target: str | Hidden | Callable[[], Any], name: str, /, *, key: str | Sequence[str] | None = None
    ) -> None:
        check = Check()
        check_address(check, "target", target)
        check.name("name", name)
        keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        if not all(isinstance(each, str) and each for each in keys) or len(set(keys)) != len(keys):
            check.add("key", "the name of a column, several of them, or None", key)
        check.raise_if_any()
        put(self, "target", target)
        put(self, "name", name)
        put(self, "key", keys)

    def __repr__(self) -> str:
        return f"Table({shown(self.target)!r}, {self.name!r}{f', key={list(self.key)}' if self.key else ''})"

    def __str__(self) -> str:
        return f"table {self.name} in {shown(self.target)}"


class TableSink(Sink):
    """The sink for a `Table`. All but `encode` is called in one thread at a time."""

    refuses = True

    def __init__(self, table: Table) -> None:
        self._table = table
        self._target = steady(table.target)
        self.name = str(table)
        self._connection: Any = None
        self._dialect: Dialect = "other"
        self._run = ""
        self._counts = False  # whether the database says how many rows it has taken
        self._columns: dict[str, str] = {}  # whether lists or documents are values there: "array", "json" or ""
        self._settled = 0  # the number of the last batch that counts
        self._staged: list[Row] = []
        self._keys: Sequence[str] = ()  # of the items whose rows are staged

    # -- the rows

    def encode(self, value: Any) -> Row:
        where = self._table.name
        row = row_of(value, where)
        if unknown := [name for name in row if name not in self._columns]:
            raise unfit(where, f"it has {', '.join(unknown)}, and the table has no such column")
        if lacking := [name for name in self._table.key if row.get(name) is None]:
            raise unfit(where, f"it has no {', '.join(lacking)}, which is the key")
        try:
            return tuple(row), [cell_for(cell, self._dialect, self._columns[name]) for name, cell in row.items()]
        except (TypeError, ValueError, RecursionError) as error:
            raise unfit(where, str(error)) from None

    # -- opening

    def open(  # numbers of batches are enough
        self,
        offset: int | None,
        *,
        run: str,
        token: int,
        alone: bool = True,  # noqa: ARG002 - as above
        settled: bool | None = None,  # noqa: ARG002 - as above
        mark: str | None = None,  # noqa: ARG002 - as above
    ) -> None:
        self._run = run
        self._settled = max(offset or 0, token << 32)
        try:
            with self._transaction("cannot be used") as cursor:
                self._look(cursor)
            if not self._has_stage():
                with self._transaction(f"needs a table {STAGE} beside it, which could not be made") as cursor:
                    text, number, blob = _TYPES[self._dialect]
                    cursor.execute(
                        f"create table if not exists {STAGE} (run {text} not null, batch {number} not null, "
                        f"piece {number} not null, content {blob} not null, primary key (run, batch, piece))"
                    )
            with self._transaction("could not be brought up to date") as cursor:
                self._make_good(cursor, offset)
        except BaseException:
            self.close()
            raise

    def _look(self, cursor: Any) -> None:
        """The table is there, with its key, and keeps nothing that is taken back."""
        table, dialect = self._table, self._dialect
        try:
            cursor.execute(f"select * from {self._quoted(table.name)} where 1 = 0", ())
        except Exception as error:
            if classify(error).category == "permanent" or dialect == "sqlite":
                message = f"expected a table {table.name} in {shown(table.target)}, got: {said(error, (table.name,))}. Make it first."
                raise ConfigurationError(message) from None
            raise
        self._columns = {str(column[0]): self._kind(column[1]) for column in cursor.description}
        lacking = [name for name in table.key if name not in self._columns]
        if lacking:
            message = f"expected the table {table.name} to have its key, got: no column {', '.join(lacking)}."
            raise ConfigurationError(message)
        # MySQL counts a row twice that is updated, and not at all if that changes nothing; it has no trigger that
        # passes a row over.
        self._counts = dialect == "postgres" or (dialect == "sqlite" and not self._is_view(cursor))
        if dialect == "mysql":
            self._look_at_mysql(cursor)
        elif table.key:
            try:
                cursor.execute(f"explain {self._insert(table.key)}", [None] * len(table.key))
                cursor.fetchall()
            except Exception as error:  # noqa: BLE001 - whatever the driver calls it
                raise self._no_key(said(error, self._names())) from None

    def _names(self) -> list[str]:
        return [self._table.name, STAGE, *self._table.key, *self._columns]

    def _is_view(self, cursor: Any) -> bool:
        """Whether it is no table of SQLite itself: of a view, nobody counts what its triggers do."""
        schema, dot, name = self._table.name.rpartition(".")
        kinds = f"{self._column(schema) if dot else 'main'}.sqlite_master"
        cursor.execute(f"select 1 from {kinds} where type = 'table' and name = ? collate nocase", (name,))
        return cursor.fetchone() is None

    def _look_at_mysql(self, cursor: Any) -> None:
        table = self._table
        schema, _, name = table.name.rpartition(".")
        place = "table_schema = coalesce(%s, database()) and table_name = %s"
        cursor.execute(f"select engine from information_schema.tables where {place}", (schema or None, name))
        found = cursor.fetchone()
        engine = str(found[0] if isinstance(found, tuple) else next(iter(found.values()))) if found else ""
        if engine.lower() != "innodb":
            message = f"expected the table {table.name} to be kept by InnoDB, got: {engine or 'a view'}, which cannot take a batch back."
            raise ConfigurationError(message)
        if table.key:
            cursor.execute(
                f"select group_concat(lower(column_name)) from information_schema.statistics where {place} "
                "and non_unique = 0 group by index_name",
                (schema or None, name),
            )
            wanted = {column.lower() for column in table.key}
            found = [row[0] if isinstance(row, tuple) else next(iter(row.values())) for row in cursor.fetchall()]
            if not any(set(str(columns).split(",")) == wanted for columns in found):
                raise self._no_key("there is no unique index on just these")

    def _no_key(self, why: str) -> ConfigurationError:
        table = self._table
        return ConfigurationError(
            f"expected the key {', '.join(table.key)} to be unique in the table {table.name}, got: {why}. Make a unique index first."
        )

    def _kind(self, code: Any) -> str:
        if self._dialect == "mysql":
            return "json" if code == _MYSQL_JSON else ""
        if self._dialect != "postgres":
            return ""
        return kind_of_column(self._connection, code)

    def _has_stage(self) -> bool:
        try:
            with self._transaction("has no stage") as cursor:
                cursor.execute(f"select count(*) from {STAGE} where run = {self._mark}", (self._run,))
        except OutlastError:
            return False
        return True

    def _make_good(self, cursor: Any, offset: int | None) -> None:
        """
        Move the batch that was committed and not moved; throw away all others. Rows that the table refuses by now go
        back to their items.
        """
        self.returned = ()
        if offset is not None:
            # Whoever had the run before may be moving these rows at this moment: it is waited for, and what it has
            # moved is not here any more.
            staged = self._found(cursor, offset, lock=True)
            told = [entry for piece, entries in staged if piece == _REFUSED for entry in entries]
            rows = [entry for piece, entries in staged if piece != _REFUSED for entry in entries]
            refused: dict[int, Exception] = {}
            self._insert_all(cursor, [(tuple(row[0]), row[1]) for row in rows], refused)
            # Staged by an earlier version, without the key of its item.
            if any(len(rows[place]) < 3 for place in refused):
                raise next(iter(refused.values()))
            self.returned = [key for _, key, _ in told] + [rows[place][2] for place in refused]
            told += [[place, rows[place][2], str(error)] for place, error in refused.items()]
            self._clear(cursor)
            self._remember(cursor, offset, told)
        else:
            self._clear(cursor)

    def _found(self, cursor: Any, number: int, *, lock: bool = False) -> list[tuple[int, Any]]:
        """
        What is staged of a batch: numbers of pieces, and what is in them. `lock`: nobody else has it until the
        transaction ends.
        """
        mark = self._mark
        locking = " for update" if lock and self._dialect != "sqlite" else ""  # SQLite locks the file anyway
        cursor.execute(
            f"select piece, content from {STAGE} where run = {mark} and batch = {mark} order by piece{locking}",
            (self._run, number),
        )
        pairs = [
            (row[0], row[1]) if isinstance(row, tuple | list) else (row["piece"], row["content"])
            for row in cursor.fetchall()
        ]
        return [(int(piece), _codec.decode(bytes(content))) for piece, content in pairs]

    def _remember(self, cursor: Any, number: int, refused: Sequence[Any]) -> None:
        """Rows that count and are refused: until their items have failed on record somebody has to know."""
        if refused:
            mark = self._mark
            cursor.execute(
                f"insert into {STAGE} (run, batch, piece, content) values ({mark}, {mark}, {mark}, {mark})",
                (self._run, number, _REFUSED, _codec.encode([list(entry) for entry in refused])),
            )

    # -- writing

    def write(self, outputs: Sequence[Row], keys: Sequence[str]) -> int | None:
        if not outputs:
            self._staged = []
            return self._settled
        number = self._settled + 1
        with self._transaction("could not stage a batch") as cursor:
            refused: dict[int, Exception] = {}
            cursor.execute("savepoint outlast_trial")
            self._insert_all(cursor, outputs, refused)
            cursor.execute("rollback to savepoint outlast_trial")
            if refused:
                raise Refused(refused)
            mark = self._mark
            # What was refused of batches before is on record by now.
            cursor.execute(f"delete from {STAGE} where run = {mark} and batch <= {mark}", (self._run, number))
            cursor.executemany(
                f"insert into {STAGE} (run, batch, piece, content) values ({mark}, {mark}, {mark}, {mark})",
                [(self._run, number, place, piece) for place, piece in enumerate(_pieces(outputs, keys))],
            )
        self._staged, self._keys = list(outputs), keys or [""] * len(outputs)
        return number

    def _insert_all(self, cursor: Any, rows: Sequence[Row], refused: dict[int, Exception]) -> None:
        """Insert these; of those that the table refuses, remember why by their places."""
        if self._dialect == "postgres":
            cursor.execute("set constraints all immediate")  # or some would be checked when it is too late
        with _quiet():
            self._try(cursor, list(enumerate(rows)), refused)

    def _try(self, cursor: Any, rows: list[tuple[int, Row]], refused: dict[int, Exception]) -> None:
        point = f"outlast_{len(rows)}"
        cursor.execute(f"savepoint {point}")
        try:
            self._put(cursor, [row for _, row in rows])
        except Exception as error:
            if not _is_of_a_row(error):
                raise
            cursor.execute(f"rollback to savepoint {point}")
            if len(rows) == 1:
                message = f"the table {self._table.name} refuses it: {said(error, self._names())}"
                refused[rows[0][0]] = PermanentFailure(message, error_class="validation_error")
                return
            middle = len(rows) // 2
            self._try(cursor, rows[:middle], refused)
            self._try(cursor, rows[middle:], refused)
        else:
            cursor.execute(f"release savepoint {point}")

    def settle(self) -> Mapping[int, Exception] | None:
        if not self._staged:
            return None
        number = self._settled + 1
        refused: dict[int, Exception] = {}
        with self._transaction(f"could not take a batch that counts, which waits in {STAGE}") as cursor:
            if self._unstage(cursor, number):  # else it was moved before, and only the answer was lost
                self._insert_all(cursor, self._staged, refused)
                self._remember(
                    cursor, number, [(place, self._keys[place], str(error)) for place, error in refused.items()]
                )
            else:
                told = [
                    entry for piece, entries in self._found(cursor, number) if piece == _REFUSED for entry in entries
                ]
                refused = {place: PermanentFailure(why, error_class="validation_error") for place, _, why in told}
        self._settled, self._staged = number, []
        return refused

    def finish(self) -> None:
        with self._transaction("could not be tidied up") as cursor:
            self._clear(cursor)

    @property
    def waits(self) -> str | None:
        return None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # a cursor that somebody still holds would keep the transaction of SQLite open
                connection.rollback()
        close(connection)

    # -- SQL

    @contextmanager
    def _transaction(self, what: str) -> Iterator[Any]:
        """A cursor in a transaction. After an error the connection is given up: the next transaction has a new one."""
        try:
            connection = self._connection
            if connection is None:
                self._connection = connection = connect(self._target)
                self._dialect = self._prepared(connection)
            if self._dialect == "sqlite":
                connection.execute("begin immediate")
            cursor = connection.cursor()
            yield cursor
            connection.commit()
        except (OutlastError, GeneratorExit):
            self.close()
            raise
        except Exception as error:  # noqa: BLE001 - a driver's own, which may quote rows
            self.close()
            raise failure(f"the {self._table} {what}", error, self._names()) from None

    def _prepared(self, connection: Any) -> Dialect:
        dialect = dialect_of(connection)
        if dialect == "other":
            kind = type(connection).__module__
            raise ConfigurationError(
                f"expected a connection of sqlite3, psycopg, PyMySQL, mysqlclient or the like, got: one of {kind}."
            )
        if dialect == "sqlite":
            connection.isolation_level = None
        elif callable(getattr(connection, "autocommit", None)):
            connection.autocommit(False)  # noqa: FBT003 - PyMySQL's way
        elif hasattr(connection, "autocommit"):
            connection.autocommit = False
        if dialect == "mysql":
            # What is too long or no number must be refused, not changed.
            connection.cursor().execute("set session sql_mode = concat(@@sql_mode, ',STRICT_ALL_TABLES')")
        return dialect

    @property
    def _mark(self) -> str:
        return "?" if self._dialect == "sqlite" else "%s"

    def _quoted(self, name: str) -> str:
        return ".".join(self._column(part) for part in name.split("."))

    def _insert(self, columns: Sequence[str]) -> str:
        key, quoted = self._table.key, [self._column(name) for name in columns]
        sql = f"insert into {self._quoted(self._table.name)} ({', '.join(quoted)}) values ({', '.join([self._mark] * len(quoted))})"
        if not key:
            return sql
        rest = [self._column(name) for name in columns if name not in key]
        if self._dialect == "mysql":
            kept = rest or [self._column(key[0])]
            return f"{sql} on duplicate key update {', '.join(f'{name} = values({name})' for name in kept)}"
        update = f"do update set {', '.join(f'{name} = excluded.{name}' for name in rest)}" if rest else "do nothing"
        return f"{sql} on conflict ({', '.join(self._column(name) for name in key)}) {update}"

    def _column(self, name: str) -> str:
        quote = "`" if self._dialect == "mysql" else '"'
        quoted = quote + name.replace(quote, 2 * quote) + quote
        return quoted if self._dialect == "sqlite" else quoted.replace("%", "%%")

    def _put(self, cursor: Any, rows: Sequence[Row]) -> None:
        """Insert rows, in their order; those with the same columns together."""
        for columns, some in groupby(rows, key=lambda row: row[0]):
            cells = [row[1] for row in some]
            if len(cells) == 1:  # quicker, and often when a row is looked for
                cursor.execute(self._insert(columns), cells[0])
            else:
                cursor.executemany(self._insert(columns), cells)
            if self._counts and set(columns) != set(self._table.key) and 0 <= cursor.rowcount < len(cells):
                raise _PassedOver

    def _unstage(self, cursor: Any, number: int) -> bool:
        mark = self._mark
        cursor.execute(
            f"delete from {STAGE} where run = {mark} and batch = {mark} and piece <> {mark}",
            (self._run, number, _REFUSED),
        )
        return bool(cursor.rowcount > 0)

    def _clear(self, cursor: Any) -> None:
        cursor.execute(f"delete from {STAGE} where run = {self._mark}", (self._run,))


class _PassedOver(ValueError):
    """A trigger or a rule of the table has kept a row out without an error."""

    def __str__(self) -> str:
        return "a trigger or a rule passes the row over without an error"


class _Unheard(logging.Filter):
    """Drops psycopg's warnings about failed statements while rows are tried: a refused row becomes a dead letter."""

    def __init__(self) -> None:
        super().__init__()
        self.trying = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        return not (getattr(self.trying, "now", False) and record.msg.startswith("error ignored"))


_unheard = _Unheard()
logging.getLogger("psycopg").addFilter(_unheard)


@contextmanager
def _quiet() -> Iterator[None]:
    _unheard.trying.now = True
    try:
        yield
    finally:
        _unheard.trying.now = False


def _pieces(rows: Sequence[Row], keys: Sequence[str]) -> Iterator[bytes]:
    """The rows as they are staged, with the keys of their items, in pieces that any server takes."""
    piece: list[Any] = []
    size = 0
    for (names, cells), key in zip(rows, keys or [""] * len(rows), strict=True):
        piece.append([list(names), cells, key])
        size += sum(len(cell) if isinstance(cell, str | bytes) else 32 for cell in cells)
        if size > _PIECE:
            yield _codec.encode(piece)
            piece, size = [], 0
    if piece:
        yield _codec.encode(piece)


def _is_of_a_row(error: Exception) -> bool:
    """Whether it is the row's fault: a constraint, a type, a value; not a table that is gone, nor a connection."""
    if isinstance(error, OutlastError):
        return False
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"IntegrityError", "DataError"} or isinstance(error, TypeError | ValueError | OverflowError):
        return True
    if getattr(error, "sqlstate", None) == "42804":  # another type than the column's
        return True
    if "ProgrammingError" in names and getattr(error, "sqlstate", None) is None:
        return not isinstance(error.args[0] if error.args else None, int)  # the driver itself does not know the value
    return classify(error).error_class in {"data_error", "validation_error"}


def kind_of_column(connection: Any, code: Any) -> str:
    """Whether documents or lists are values of a column of PostgreSQL: "json", "array" or ""."""
    if code in _POSTGRES_JSON:
        return "json"
    kinds = getattr(getattr(connection, "adapters", None), "types", None)
    known = None if kinds is None else kinds.get(code)
    return "array" if known is not None and known.array_oid == code else ""


def cell_for(value: Any, dialect: Dialect, kind: str) -> Any:
    """A value as the driver takes it, and as the stage keeps it."""
    if value is None or (type(value) in _SIMPLE and kind != "json"):
        return value
    if kind == "json":  # where a text is a text too, and no document that somebody has written as one
        return None if tell(value, _NATIVE) is None else json_text(value)
    told = tell(value, _NATIVE)
    if isinstance(told, list | dict):
        return [_native(each, dialect) for each in told] if kind == "array" and type(told) is list else json_text(value)
    return _native(told, dialect)


def _native(value: Any, dialect: Dialect) -> Any:
    """One of the values that drivers know, for one that knows fewer."""
    if type(value) is float and dialect == "sqlite" and value != value:  # noqa: PLR0124 - NaN is the one that is not itself
        raise ValueError("SQLite keeps NULL in the place of NaN: make it None")
    if isinstance(value, list):
        return [_native(each, dialect) for each in value]
    if isinstance(value, dt.datetime):
        if dialect == "mysql" and value.tzinfo is not None:
            return value.astimezone(dt.UTC).replace(tzinfo=None)  # it knows no zones, and the driver would forget it
        return value.isoformat(" ") if dialect == "sqlite" else value
    if isinstance(value, dt.date | dt.time):
        return value.isoformat() if dialect == "sqlite" else value
    if isinstance(value, dt.timedelta):
        return seconds(value) if dialect == "sqlite" else value
    if isinstance(value, Decimal | UUID):
        exact = dialect == "postgres" or (dialect == "mysql" and isinstance(value, Decimal))
        return value if exact else str(value)
    return value
