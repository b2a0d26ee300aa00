"""
`postgres.extractor` and `postgres.writer`: one transaction each, on a connection of its own.

Errors are told in our words: those of the driver quote keys and values of rows. Their SQLSTATE, by which they are
classified, stays with them.
"""

from __future__ import annotations

import datetime as dt
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

from outlast.components.deadline import Late
from outlast.components.reaching import conninfo, failure
from outlast.components.reading import missing
from outlast.components.sql import said
from outlast.components.steps.doing import columns_of, enough, invalid, listed, names_of, row_at
from outlast.components.steps.doing.jsons import document
from outlast.components.tables import cell_for, kind_of_column
from outlast.errors import ConfigurationError, PermanentFailure, TemporaryFailure
from outlast.kernel.log import warn
from outlast.kernel.wording import counted
from outlast.verdicts import classify

try:
    import psycopg
    from psycopg import sql
    from psycopg.adapt import PyFormat, Transformer
    from psycopg.types.json import Jsonb, set_json_loads
    from psycopg.types.string import TextLoader

    from outlast.store.postgres import Postgres
except ImportError:
    raise missing("a step with PostgreSQL", "psycopg 3", "postgres") from None

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from outlast.components.running import StepContext
    from outlast.components.steps.postgres import ExtractorConfig, WriterConfig
    from outlast.errors import OutlastError

_PATIENCE = 10.0  # seconds until a connection must stand, where no time limit is nearer
# Types whose values the driver has classes of its own for, which no store keeps, and intervals, whose months Python has
# no word for: they come as PostgreSQL writes them.
_AS_TEXT = (
    "interval inet cidr int4range int8range numrange tsrange tstzrange daterange "
    "int4multirange int8multirange nummultirange tsmultirange tstzmultirange datemultirange"
).split()
_CURSORS = frozenset("select with values table (".split())  # what a query may begin with that can be a cursor
_STAGE = "outlast_rows"
_LOCKED = frozenset("rpv")  # kinds of relations that can be locked: tables, partitioned tables, views
# What a value of a column must be, by the number that PostgreSQL has for its type or for lists of it.
_MOMENT, _CLOCK, _DAY, _BYTES = "a point in time", "a time of day", "a day", "bytes"
_WANTS: dict[int, tuple[str, bool | None]] = {  # and whether it has a zone
    **dict.fromkeys((1184, 1185), (_MOMENT, True)),  # timestamptz
    **dict.fromkeys((1114, 1115), (_MOMENT, False)),  # timestamp
    **dict.fromkeys((1266, 1270), (_CLOCK, True)),  # timetz
    **dict.fromkeys((1083, 1183), (_CLOCK, False)),  # time
    **dict.fromkeys((1082, 1182), (_DAY, None)),  # date
    **dict.fromkeys((17, 1001), (_BYTES, None)),  # bytea
}
_LINE = re.compile(r"COPY [^,]+, line (?P<line>[0-9]+)")
# What it is, where a connection is refused: the driver then knows no SQLSTATE.
_REFUSED = {"auth": "auth_error", "permission": "permission_denied", "timeout": "timeout"}


# -- connections ---------------------------------------------------------------------------------------------------------


@contextmanager
def _connected(
    context: StepContext, config: ExtractorConfig | WriterConfig, begin: LiteralString, known: Sequence[str]
) -> Iterator[psycopg.Connection[Any]]:
    """
    A connection in a transaction, which is committed if all goes well. It is closed whatever happens, and when the time of
    the attempt is up: the driver itself would wait for a server that stands still. `known` is what errors may quote.
    """
    fields = context.connection or {}
    remaining = context.remaining()
    connection = _connect(fields, _PATIENCE if remaining is None else min(_PATIENCE, remaining))
    late = Late(connection.fileno(), context.remaining())
    try:
        with late:
            connection.execute(begin)
            _set(connection, context, config, fields)
            yield connection
            connection.execute("commit")
    except psycopg.Error as error:
        found, lost = error, connection.closed
    else:
        return
    finally:
        with suppress(Exception):  # it may be broken; what has ended it is told below
            connection.close()
    if late.struck:
        raise TemporaryFailure("the database did not answer in the time of the attempt", error_class="timeout")
    if (
        lost and not found.diag.message_primary
    ):  # whatever the driver made of it, the other side said nothing that it knows
        message = "the connection to the database broke, or what came over it is none of PostgreSQL"
        raise TemporaryFailure(message, error_class="database_connection")
    raise _told(found, known)


def _connect(fields: Mapping[str, Any], limit: float) -> psycopg.Connection[Any]:
    try:
        found: Any = Postgres(conninfo(fields), patience=limit, bounded=False).connect(batches=False)
    except ConfigurationError:
        raise PermanentFailure("the address of the connection cannot be read", error_class="validation_error") from None
    except psycopg.Error as error:
        known = failure(error)
    else:
        for name in _AS_TEXT:
            found.adapters.register_loader(name, TextLoader)
        set_json_loads(_document, found)
        connection: psycopg.Connection[Any] = found
        return connection
    message = f"no connection to the database: {known.why}"
    if known.kind in ("auth", "permission"):
        raise PermanentFailure(message, error_class=_REFUSED[known.kind])
    if known.fields == ("url", "database"):
        raise PermanentFailure(message, error_class="missing_input")
    raise TemporaryFailure(message, error_class=_REFUSED.get(known.kind, "database_connection"))


def _set(
    connection: psycopg.Connection[Any],
    context: StepContext,
    config: ExtractorConfig | WriterConfig,
    fields: Mapping[str, Any],
) -> None:
    """The schema and how long the server works on one statement, for this transaction only."""
    remaining = context.remaining()
    limits = [config.statement_timeout_ms or fields.get("statement_timeout_ms")]
    limits.append(None if remaining is None else max(1, int(remaining * 1000)))
    if known := [one for one in limits if one is not None]:
        _setting(connection, "statement_timeout", str(min(known)))
    if (schema := config.schema_ or fields.get("schema")) is not None:
        _setting(connection, "search_path", sql.Identifier(str(schema)).as_string(connection))


def _setting(connection: psycopg.Connection[Any], name: str, value: str) -> None:
    connection.execute("select set_config(%s, %s, true)", (name, value))


def _told(error: psycopg.Error, known: Sequence[str]) -> OutlastError:
    """What the driver raised, without the rows that it quotes."""
    verdict = classify(error)
    if error.diag.message_primary:
        why = said(error, known)
    elif isinstance(error, psycopg.OperationalError):
        why = failure(error).why
    else:
        why = f"a value does not fit ({type(error).__name__})"
    kind = PermanentFailure if verdict.category == "permanent" else TemporaryFailure
    of = "".join(f" of {place}" for place in getattr(error, "__notes__", ()))
    made: Any = kind(f"the database says{of}: {why}", error_class=verdict.error_class)
    made.sqlstate = error.sqlstate  # that a transaction was rolled back proves that nothing was done
    found: OutlastError = made
    return found


# -- postgres.extractor --------------------------------------------------------------------------------------------------


def extract(config: ExtractorConfig, context: StepContext) -> dict[str, Any]:
    """All rows of the query, of one moment, in a transaction that cannot write."""
    rows: list[dict[str, Any]] = []
    query: Any = config.query  # which is checked to be one that reads
    parameters = _bound(config.parameters)
    with (
        _connected(context, config, "begin isolation level repeatable read, read only", [config.query]) as connection,
        _cursor(connection, config.query) as cursor,
    ):
        # What comes as a text must say the same wherever it is read.
        _setting(connection, "intervalstyle", "postgres")
        _setting(connection, "datestyle", "ISO")
        # Without parameters a % stands for itself.
        cursor.execute(query, parameters) if parameters else cursor.execute(query)
        names = names_of(cursor.description)
        while chunk := _fetched(cursor, config.chunk_rows):
            rows += [dict(zip(names, row, strict=True)) for row in chunk]
    return {"rows": rows, "count": len(rows)}


def _fetched(cursor: Any, most: int) -> list[Any]:
    try:
        found: list[Any] = cursor.fetchmany(most)
    except psycopg.DataError as wrong:
        if wrong.diag.message_primary:
            raise
    else:
        return found
    message = "a value of the query is none that Python has, such as a day before the year 1, after 9999, or infinity; have it as a text, with ::text in query"
    raise PermanentFailure(message, error_class="data_error")


def _document(raw: str | bytes) -> Any:
    try:
        return document(raw)
    except (ValueError, RecursionError) as wrong:
        deep = isinstance(wrong, RecursionError)
        why = (
            "it has too many levels"
            if deep
            else "a name comes twice in it, or a number has more digits than a float keeps"
        )
    message = f"a document of the query is none that Python has: {why}; have it as a text, with ::text in query"
    raise PermanentFailure(message, error_class="data_error")


def _cursor(connection: psycopg.Connection[Any], query: str) -> Any:
    """On the server, so that neither side holds all rows at once; SHOW and EXPLAIN cannot have one."""
    first = query.lstrip(" \t\r\n(").split(None, 1)[0].lower()
    return connection.cursor(name="outlast") if first in _CURSORS else connection.cursor()


def _bound(parameters: Any) -> Any:
    """Mappings are documents to PostgreSQL; lists are arrays."""
    if isinstance(parameters, dict):
        return {name: Jsonb(value) if isinstance(value, dict) else value for name, value in parameters.items()}
    return [Jsonb(value) if isinstance(value, dict) else value for value in parameters]


# -- postgres.writer -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    """`kind` says whether documents or lists are values of it, `wants` what PostgreSQL would change in silence."""

    name: str
    kind: str
    wants: tuple[str, bool | None] | None


def write(config: WriterConfig, context: StepContext) -> dict[str, Any]:
    """All rows in one transaction, or none of them."""
    rows = [row_at(number, row) for number, row in enumerate(listed(config.rows), 1)]
    enough(rows, config.min_rows, f"the table {config.table}")
    columns = columns_of(rows, config.columns, config.key)
    known = [config.table, config.schema_ or "", *columns]
    with _connected(context, config, "begin isolation level read committed", known) as connection:
        schema, taking = _looked_at(connection, config, context, columns)
        table = sql.Identifier(schema, config.table)
        deleted = 0
        if config.mode == "replace":
            deleted = _empty(connection, config, table)
        if rows:
            (_upsert if config.mode == "upsert" else _copy)(connection, config, rows, taking, table)
        if config.mode == "replace":
            _check_whole(connection, config, table, len(rows))
    if deleted > 0 and not rows:
        warn(
            "postgres.writer has replaced %s of the table %s with none. To refuse that, set min_rows: 1.",
            counted(deleted, "row"),
            config.table,
        )
    return {"count": len(rows), "table": f"{schema}.{config.table}"}


def _looked_at(
    connection: psycopg.Connection[Any], config: WriterConfig, context: StepContext, columns: Sequence[str]
) -> tuple[str, list[_Column]]:
    """The schema of the table, and what the columns take. For `replace` other writers are kept away from here on."""
    given = config.schema_ or (context.connection or {}).get("schema")
    name = sql.Identifier(*([str(given)] if given else []), config.table).as_string(connection)
    found = connection.execute(
        "select n.nspname, c.relkind::text from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace "
        "where c.oid = to_regclass(%s)",
        (name,),
    ).fetchone()
    if found is None:
        message = (
            f"expected a table {config.table} in the database, got: none{f' in the schema {given}' if given else ''}"
        )
        raise PermanentFailure(message, error_class="missing_input")
    schema = str(found[0])
    table = sql.Identifier(schema, config.table)
    if config.mode == "replace":
        # Before anything else touches the table: who waits holds nothing that the run before it may need.
        _hold(connection, config, table, str(found[1]))
    query = sql.SQL("select * from {} where false").format(table)
    known = {
        one.name: _Column(one.name, kind_of_column(connection, one.type_code), _WANTS.get(one.type_code))
        for one in connection.execute(query).description or ()
    }
    if unknown := [one for one in (*columns, *config.key) if one not in known]:
        raise invalid(f"expected the table {config.table} to have {', '.join(unknown)}, got: no such column")
    return schema, [known[one] for one in columns]


def _hold(connection: psycopg.Connection[Any], config: WriterConfig, table: sql.Identifier, kind: str) -> None:
    """
    Keep other writers away until the transaction ends, or refuse a table that cannot be replaced as a whole. Partitions
    are locked with their table, and with a view what it is made of.
    """
    if kind not in _LOCKED:
        raise _unlocked(config, "a foreign table" if kind == "f" else "something else")
    # A weaker lock lets other writers in, or a second run beside this one; a stronger one also holds up foreign keys that
    # point here. Readers go on. Who may delete may lock.
    connection.execute(sql.SQL("lock table {} in share row exclusive mode").format(table))
    # By its name: while this run waited, another table may have been put in its place.
    found: Any = connection.execute(
        "with recursive parts (part) as (select to_regclass(%(table)s)::oid union select i.inhrelid from pg_catalog.pg_inherits i "
        "join parts on i.inhparent = part) select row_security_active(to_regclass(%(table)s)), "
        "exists (select from parts join pg_catalog.pg_class c on c.oid = part where c.relkind = 'f')",
        {"table": table.as_string(connection)},
    ).fetchone()
    if found[0]:
        message = (
            f"expected the table {config.table} to show all its rows to this user, because mode is replace, got: row-level security, "
            "which may hide some, and so nothing was written; take a user whom it does not bind (BYPASSRLS), or write mode: upsert"
        )
        raise PermanentFailure(message, error_class="permission_denied")
    if found[1]:
        raise _unlocked(config, "one with a foreign table as a part")


def _unlocked(config: WriterConfig, got: str) -> PermanentFailure:
    return invalid(
        f"expected {config.table} to be a table or a view, because mode is replace, got: {got}, which cannot be locked "
        "against other writers; write it where it is kept, or write mode: upsert or insert"
    )


def _empty(connection: psycopg.Connection[Any], config: WriterConfig, table: sql.Identifier) -> int:
    """Delete all rows; how many there were."""
    deleted = connection.execute(sql.SQL("delete from {}").format(table)).rowcount
    left: Any = connection.execute(sql.SQL("select exists (select from {})").format(table)).fetchone()
    if left[0]:
        message = (
            f"expected the table {config.table} to be empty once its rows are deleted, got: rows that stay, and so nothing was written; "
            "a trigger or a rule of the table keeps them: change it, or write mode: upsert"
        )
        raise PermanentFailure(message, error_class="data_error")
    return deleted


def _check_whole(connection: psycopg.Connection[Any], config: WriterConfig, table: sql.Identifier, sent: int) -> None:
    """Count the rows once all triggers are through. Nobody else can have written any."""
    connection.execute("set constraints all immediate")  # some triggers would wait for the commit
    found: Any = connection.execute(sql.SQL("select count(*) from {}").format(table)).fetchone()
    if found[0] != sent:
        message = (
            f"expected the table {config.table} to have the {sent} rows that were written and no others, got: {found[0]}, and so nothing "
            "was written; a trigger of the table deletes or adds rows, or a view does not show them: change it, or write mode: upsert"
        )
        raise PermanentFailure(message, error_class="data_error")


def _copy(
    connection: psycopg.Connection[Any],
    config: WriterConfig,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[_Column],
    table: sql.Identifier,
) -> None:
    """Send the rows, each of which the server must have taken."""
    statement = sql.SQL("copy {} ({}) from stdin").format(table, _names(columns))
    count = 0
    with connection.cursor() as cursor:
        for begin in range(0, len(rows), config.batch_rows):
            batch = rows[begin : begin + config.batch_rows]
            try:
                with cursor.copy(statement) as copy:
                    for number, row in enumerate(batch, begin + 1):
                        _send(connection, copy, number, _cells(number, row, columns), columns)
            except psycopg.Error as error:
                if place := _place(error, begin, columns):
                    error.add_note(place)
                raise
            count += cursor.rowcount
    _check_count(count, len(rows))


def _check_count(count: int, sent: int) -> None:
    if count != sent:
        message = (
            f"expected all {sent} rows to be written, got: {count}, and so none was; a trigger of the table leaves rows out, "
            "or keeps them elsewhere: change it, or leave those rows out in a step before"
        )
        raise PermanentFailure(message, error_class="data_error")


def _names(columns: Sequence[_Column]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(one.name) for one in columns)


def _place(error: psycopg.Error, begin: int, columns: Sequence[_Column]) -> str:
    """The row of which the server says that it is wrong, and its column where it is that of a single one."""
    context = error.diag.context or ""
    found = _LINE.match(context)
    if found is None:
        return ""
    column = next((one.name for one in columns if context.startswith(f", column {one.name}: ", found.end())), None)
    row = f"row {begin + int(found['line'])}"
    return row if column is None else f"{row}, column {column}"


def _cells(number: int, row: Mapping[str, Any], columns: Sequence[_Column]) -> list[Any]:
    cells: list[Any] = []
    for column in columns:
        try:
            cell = cell_for(row[column.name], "postgres", column.kind)
        except (TypeError, ValueError, RecursionError) as wrong:
            raise invalid(f"row {number} cannot be a row of the table: column {column.name}: {wrong}") from None
        if column.wants is not None and (wrong_one := _unlike(cell, column.wants)) is not None:
            raise invalid(f"expected row {number}, column {column.name}: {wrong_one}")
        cells.append(cell)
    return cells


def _unlike(cell: Any, wants: tuple[str, bool | None]) -> str | None:
    """What PostgreSQL would take and keep as something else: what is expected, what came, and the way out."""
    if isinstance(cell, list):
        return next((said for one in cell if (said := _unlike(one, wants)) is not None), None)
    kind, zoned = wants
    if kind == _BYTES:
        if cell is None or isinstance(cell, bytes | bytearray | memoryview):
            return None
        return (
            f"bytes, got: a value of type {type(cell).__name__}; decode it in a step before, or have a column of text"
        )
    if isinstance(cell, dt.datetime) and kind != _MOMENT:
        lost, way = ("time of day", "date()") if kind == _DAY else ("day", "time() or timetz()")
        column = "timestamp" if cell.tzinfo is None else "timestamptz"
        return f"{kind}, got: a point in time, whose {lost} would be lost; take its {way} in a step before, or have a column of {column}"
    if zoned is None or not isinstance(cell, dt.datetime | dt.time) or (cell.tzinfo is not None) == zoned:
        return None
    what = _CLOCK if isinstance(cell, dt.time) else _MOMENT
    if not zoned:
        column = "timetz" if isinstance(cell, dt.time) else "timestamptz"
        return f"{what} without a zone, got: one with a zone, which would be lost; make it naive, or have a column of {column}"
    return f"{what} with a zone, got: one without, which would be taken for that of the session; give it a zone (tzinfo), or have a column without one"


def _send(
    connection: psycopg.Connection[Any], copy: psycopg.Copy, number: int, cells: list[Any], columns: Sequence[_Column]
) -> None:
    """One row. What the driver cannot write down never gets to the server."""
    try:
        copy.write_row(cells)
    except (psycopg.DataError, psycopg.ProgrammingError, ValueError, TypeError, OverflowError) as error:
        if isinstance(error, psycopg.Error) and error.diag.message_primary:
            raise
    else:
        return
    place, cell = next(
        ((f", column {column.name}", cell) for column, cell in zip(columns, cells, strict=True) if not _is_sent(connection, cell)),
        ("", None),
    )  # fmt: skip
    what = f"a value of type {type(cell).__name__}" if place else "a value"
    if isinstance(cell, str):
        what = "a text with the character U+0000" if "\0" in cell else "a text with half a character (a lone surrogate)"
    raise PermanentFailure(
        f"row {number}{place}: {what} cannot be kept by PostgreSQL; leave it out, or make it another value",
        error_class="data_error",
    )


def _is_sent(connection: psycopg.Connection[Any], cell: Any) -> bool:
    """Whether the driver can write it down."""
    try:
        return cell is None or Transformer(connection).get_dumper(cell, PyFormat.TEXT).dump(cell) is not None
    except (psycopg.Error, ValueError, TypeError, OverflowError):
        return False


def _upsert(
    connection: psycopg.Connection[Any],
    config: WriterConfig,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[_Column],
    table: sql.Identifier,
) -> None:
    """The rows go into a table of this transaction first, and from there over those that have the same key."""
    stage = sql.Identifier(_STAGE)
    names = _names(columns)
    connection.execute(
        sql.SQL("create temporary table {} on commit drop as select {} from {} with no data").format(
            stage, names, table
        )
    )
    _copy(connection, config, rows, columns, stage)
    # Of rows that are all key the key is written again, so that they count.
    changed = [one.name for one in columns if one.name not in config.key] or config.key
    parts = {
        "table": table,
        "stage": stage,
        "names": names,
        "key": sql.SQL(", ").join(map(sql.Identifier, config.key)),
        "changes": sql.SQL(", ").join(
            sql.SQL("{} = excluded.{}").format(sql.Identifier(name), sql.Identifier(name)) for name in changed
        ),
        "there": _prefixed("there", [one.name for one in columns]),
        "sent": _prefixed("sent", [one.name for one in columns]),
        "there_key": _prefixed("there", config.key),
        "done_key": _prefixed("done", config.key),
        "sent_key": _prefixed("sent", config.key),
    }
    # A trigger may keep back an update that changes nothing (suppress_redundant_updates_trigger): the row is there as it was
    # sent. They are compared as texts, because a json has no equality.
    done: Any = connection.execute(
        sql.SQL(
            "with done as (insert into {table} ({names}) select {names} from {stage} on conflict ({key}) do update set {changes} "
            "returning {key}) select (select count(*) from done), case when (select count(*) from done) < (select count(*) from {stage}) "
            "then (select count(*) from {stage} sent where not exists (select from done where ({done_key}) = ({sent_key})) and exists "
            "(select from {table} there where ({there_key}) = ({sent_key}) and row({there})::text = row({sent})::text)) else 0 end"
        ).format(**parts)
    ).fetchone()
    _check_count(int(done[0]) + int(done[1]), len(rows))


def _prefixed(table: LiteralString, names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(table, name) for name in names)
