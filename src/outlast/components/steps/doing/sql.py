"""
`sql.transform`: DuckDB in memory, locked before the query runs.

A value comes out of a table as it went in, or the step fails and says why: a column has one type, which every one of its
values has. Errors are told in our words: those of DuckDB quote values.
"""

from __future__ import annotations

import datetime as dt
import re
import threading
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from outlast.components.reading import missing
from outlast.components.sql import without_values
from outlast.components.steps.doing import invalid, listed, row_at
from outlast.errors import PermanentFailure, TemporaryFailure
from outlast.isolation.threads import start_thread

try:
    import duckdb
except ImportError:
    raise missing("sql.transform", "DuckDB", "duckdb") from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from outlast.components.running import StepContext
    from outlast.components.steps.sql import TransformConfig

_CHUNK = 2048  # rows that go in, or come out, at a time
_DEEPEST = 30  # levels of lists and mappings in a value
_LARGEST = 256_000_000  # bytes of texts, bytes, lists and mappings in all rows together
_PLACE, _EMPTY, _NUMBER = (
    8,
    56,
    32,
)  # bytes that Python has for an element of a list, beside it; for an empty list; for a number
_AGAIN = 0.05  # seconds: what was interrupted between two statements goes on
_LOCKED = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",  # variables of this program are no tables
    "temp_directory": "",
    "threads": "1",  # sums of floats are the same each time
}
# The type of a column whose values are all of this type. Others are found out below.
_PLAIN: dict[type, str] = {
    bool: "BOOLEAN",
    str: "VARCHAR",
    float: "DOUBLE",
    bytes: "BLOB",
    dt.date: "DATE",
    dt.timedelta: "INTERVAL",
    uuid.UUID: "UUID",
}
_ZONED = "timestamp with time zone"
# What comes out of each type of DuckDB. Of those that are not here, what comes out is not what the query says.
_COMES: dict[str, type | tuple[type, ...]] = {
    "boolean": bool,
    **dict.fromkeys(
        "tinyint smallint integer bigint hugeint utinyint usmallint uinteger ubigint uhugeint".split(), int
    ),
    **dict.fromkeys(("float", "double"), float),
    "decimal": Decimal,
    **dict.fromkeys(("varchar", "enum"), str),
    "blob": bytes,
    "uuid": uuid.UUID,
    "date": dt.date,
    **dict.fromkeys(("time", "time with time zone"), dt.time),
    **dict.fromkeys(("timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns"), dt.datetime),
    _ZONED: dt.datetime,
    "interval": dt.timedelta,
    '"null"': type(None),
    "null": type(None),
}
_TYPES = (*_COMES, "string_literal integer_literal struct list array map unknown any")  # which are no values
_NAMED = re.compile(r"(?<= with name )(?:.*(?= does not exist)|.*$)")
_NESTED = ("list", "array", "struct", "map")
_BOUNDED = ("varchar", "enum", "blob", *_NESTED)
# How large a single value is, by the type of its column: one that is too large for all rows together is not even fetched.
_LENGTHS = {
    "varchar": "strlen({})",
    "blob": "octet_length({})",
    "list": f"len({{}}) * {_PLACE + _NUMBER}",
    "map": f"cardinality({{}}) * {_PLACE + _NUMBER}",
}
# What must hold of a value that comes out as another one in silence: infinity is a day in 9999 to Python, a month has 30 days.
_SURE = {
    **dict.fromkeys(("date", "timestamp", _ZONED), "isfinite({})"),
    "timestamp_ns": "isfinite({0}::TIMESTAMP) AND epoch_ns({0}) % 1000 = 0",
    "interval": "datepart('year', {0}) = 0 AND datepart('month', {0}) = 0",
}
# Inside of lists and mappings infinity cannot be told from the last moment that Python has, so neither is taken.
_LAST: dict[str, Any] = {"date": dt.date.max, "timestamp": dt.datetime.max}  # noqa: DTZ901 - of a type without a zone


def transform(config: TransformConfig, context: StepContext) -> dict[str, Any]:
    """The rows of the query over the tables, all of them in memory."""
    tables = {name: _Table(name, rows, config.columns.get(name)) for name, rows in config.tables.items()}
    parameters = {name: _bound(name, value) for name, value in config.params.items()}
    with _opened(config, context) as connection:
        for table in tables.values():
            table.load(connection)
        connection.execute("SET lock_configuration = true")
        connection.execute("BEGIN TRANSACTION READ ONLY")
        rows = _selected(connection, config, parameters)
    return {"rows": rows, "count": len(rows)}


@contextmanager
def _opened(config: TransformConfig, context: StepContext) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database of its own. What runs in it is interrupted when the time of the attempt is up."""
    connection = duckdb.connect(":memory:", config={**_LOCKED, "memory_limit": f"{config.memory_mb}MB"})
    late = _Late(connection, context.remaining())
    try:
        with late:
            connection.execute("SET TimeZone = 'UTC'")
            yield connection
    except duckdb.Error as error:
        found = error
    else:
        return
    finally:
        with suppress(duckdb.Error):
            connection.close()
    if late.struck:
        raise TemporaryFailure("the query did not end in the time of the attempt", error_class="timeout")
    raise _told(found, config)


class _Late:
    """Interrupts what runs when the time is over, again and again until nothing runs any more."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, remaining: float | None) -> None:
        self.struck = False
        self._connection = connection
        self._remaining = remaining
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="outlast-sql-limit")

    def _watch(self) -> None:
        patience = self._remaining
        while not self._over.wait(patience):
            self.struck = True
            self._connection.interrupt()
            patience = _AGAIN

    def __enter__(self) -> None:
        if self._remaining is not None:
            start_thread(self._thread)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._remaining is not None:
            self._thread.join()  # before the connection is closed


def _told(error: duckdb.Error, config: TransformConfig) -> Exception:
    """What DuckDB raised, without the values that it quotes. Names of tables and columns are no values."""
    if isinstance(error, duckdb.OutOfMemoryException):
        message = f"the tables and the query need more memory than memory_mb: {config.memory_mb}; give them more, or fewer rows"
        return MemoryError(message)  # whether that gets better nobody knows: resource_exhausted
    if isinstance(error, duckdb.PermissionException):
        return PermanentFailure(
            "the query reaches for a file, an extension or a setting, which no transformation may",
            error_class="permission_denied",
        )
    if isinstance(error, duckdb.ParserException | duckdb.BinderException | duckdb.CatalogException):
        # A name may be that of a value: nextval($name). Some of them DuckDB does not quote.
        first = _NAMED.sub(r'"\g<0>"', str(error).partition("\n")[0])
        shown = without_values(first, (config.query, *_TYPES))
        if _words(shown) & (_words(str(config.params)) - _words(config.query)):
            shown = f"{first.partition(' ')[0]} Error, whose words may have values of params"
        return PermanentFailure(f"the query is not one that can run: {shown[:200]}", error_class="syntax_error")
    kind = type(error).__name__.removesuffix("Exception")
    message = f"a value does not fit the query ({kind}); try_cast(...) and try(...) give null where it does not"
    return PermanentFailure(message, error_class="data_error")


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


# -- what goes in --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Type:
    """
    A type of DuckDB. Values go in as those of the type `goes_in`, as which `give` writes them: what DuckDB makes of a list
    of Python by itself depends on all of its values.
    """

    name: str
    goes_in: str
    give: Callable[[Any], Any] | None = None

    def given(self, value: Any) -> Any:
        return value if value is None or self.give is None else self.give(value)


def _as_text(name: str) -> _Type:
    """Numbers of more than 64 bits: no other form of them is exact."""
    return _Type(name, "VARCHAR", lambda value: format(value, "f") if isinstance(value, Decimal) else str(value))


_NOTHING = _Type("VARCHAR", "VARCHAR")  # of a column that has only None
_DOUBLE = _Type("DOUBLE", "DOUBLE", float)


class _Table:
    """The rows of a table, checked before anything is loaded."""

    def __init__(self, name: str, rows: Any, declared: Mapping[str, str] | None) -> None:
        self.name = name
        self.rows = _rows(name, rows)
        if not self.rows and declared is None:
            raise invalid(
                f"expected {name} to have rows, or columns that are declared, got: neither; "
                f"name them with columns: {{{name}: {{id: bigint}}}}"
            )
        self.names = [_column(name, column) for column in (self.rows[0] if declared is None else declared)]
        if not self.names:
            raise invalid(f"expected {name} to have columns, got: none")
        if len({column.lower() for column in self.names}) < len(self.names):
            raise invalid(
                f"expected the columns of {name} to differ in more than capital letters, got: two that do not"
            )
        self._check_columns()
        self.types = [self._type(column, None if declared is None else declared[column]) for column in self.names]

    def _check_columns(self) -> None:
        names = set(self.names)
        for number, row in enumerate(self.rows, 1):
            if row.keys() == names:
                continue
            if lacking := [column for column in self.names if column not in row]:
                message = f"expected row {number} of {self.name} to have {', '.join(lacking)}, got: no such column"
                raise invalid(f"{message}; data.processor fills it in with defaults")
            more = [str(column) for column in row if column not in names]
            raise invalid(f"expected row {number} of {self.name} to have no other columns, got also: {', '.join(more)}")

    def _type(self, column: str, declared: str | None) -> _Type:
        where = f"the column {column} of {self.name}"
        values = [row[column] for row in self.rows if row[column] is not None]
        found = _type_of(values, where)
        return found if declared is None else _declared(declared.upper(), found, values, where)

    def load(self, connection: duckdb.DuckDBPyConnection) -> None:
        columns = ", ".join(f"{_quoted(name)} {kind.name}" for name, kind in zip(self.names, self.types, strict=True))
        connection.execute(f"CREATE TABLE {_quoted(self.name)} ({columns})")
        places = ", ".join(f"unnest(?::{kind.goes_in}[])::{kind.name}" for kind in self.types)
        insert = f"INSERT INTO {_quoted(self.name)} SELECT {places}"
        by_column = list(zip(self.names, self.types, strict=True))
        for begin in range(0, len(self.rows), _CHUNK):
            chunk = self.rows[begin : begin + _CHUNK]
            connection.execute(insert, [[kind.given(row[name]) for row in chunk] for name, kind in by_column])


def _rows(name: str, rows: Any) -> list[Mapping[str, Any]]:
    try:
        return [row_at(number, row) for number, row in enumerate(listed(rows), 1)]
    except PermanentFailure as wrong:
        raise invalid(f"the table {name}: {wrong}") from None


def _column(table: str, name: Any) -> str:
    if not _is_name(name):
        raise invalid(f"expected the columns of {table} to have names that are texts, got: one that is none")
    return str(name)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and bool(name) and "\x00" not in name and _is_text(name)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a half of a surrogate pair
        return False
    return True


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _type_of(values: Iterable[Any], where: str, depth: int = 0) -> _Type:
    """The type of DuckDB that every one of the values has, and that brings each back as it is."""
    if depth > _DEEPEST:
        raise invalid(f"expected values of at most {_DEEPEST} levels, got: deeper ones; make them texts before")
    found = [value for value in values if value is not None]
    kinds = {type(value) for value in found}
    if not kinds:
        return _NOTHING
    if kinds == {int}:
        return _integer(found, where)
    if kinds <= {int, float}:
        return _number(found, where)
    if kinds <= {int, Decimal}:
        whole, scale = _digits(found, where)
        return _as_text(f"DECIMAL({max(whole + scale, 1)},{scale})")
    if len(kinds) > 1:
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise invalid(f"expected {where} to have values of one type, got: {names}")
    kind = kinds.pop()
    if kind is str and not all(map(_is_text, found)):
        raise invalid(f"expected {where} to have texts that can be written as UTF-8, got: another")
    if kind in (dt.datetime, dt.time):
        return _moment(found, kind, where)
    if kind is list:
        return _list(found, where, depth + 1)
    if kind is dict:
        return _struct(found, where, depth + 1)
    if kind not in _PLAIN:
        raise invalid(
            f"expected {where} to have values that a table can keep, got: one of type {kind.__name__}; make it a text before"
        )
    return _Type(_PLAIN[kind], _PLAIN[kind])


def _declared(said: str, found: _Type, values: Sequence[Any], where: str) -> _Type:
    """The type that was declared, if every value fits it as it is."""
    if found is _NOTHING:
        return _Type(said, "VARCHAR")
    if found.name == said:
        return found
    if said == "HUGEINT" and found.name == "BIGINT":
        return _as_text(said)
    if said == "DOUBLE" and found.name in ("BIGINT", "HUGEINT"):
        return _number(values, where)
    if said.startswith("DECIMAL") and found.name.startswith(("BIGINT", "HUGEINT", "DECIMAL")):
        width, most = (int(one) for one in said[8:-1].split(","))
        whole, scale = _digits(values, where)
        if scale <= most and whole <= width - most:
            return _as_text(said)
    raise invalid(f"expected {where} to have values of {said.lower()}, which is declared, got: {found.name.lower()}")


def _integer(found: Sequence[int], where: str) -> _Type:
    low, high = min(found), max(found)
    if low >= -(2**63) and high < 2**63:
        return _Type("BIGINT", "BIGINT")
    if low >= -(2**127) and high < 2**127:
        return _as_text("HUGEINT")
    raise invalid(f"expected {where} to have integers of at most 128 bits, got: a larger one; make it a text before")


def _number(found: Sequence[float], where: str) -> _Type:
    """Integers among floats are carried as floats, if that is the same number."""
    for value in found:
        if type(value) is int and not (abs(value) <= 2**1023 and int(float(value)) == value):
            raise invalid(f"expected {where} to have numbers of one type, got: an integer that no float is equal to")
    return _DOUBLE


def _digits(found: Sequence[Any], where: str) -> tuple[int, int]:
    """How many digits decimals have before the point and behind it, at most."""
    whole = scale = 0
    for value in found:
        sign, digits, exponent = Decimal(value).as_tuple()
        if not isinstance(exponent, int):
            raise invalid(f"expected {where} to have decimals that are finite, got: another")
        if sign and not any(digits):
            raise invalid(f"expected {where} to have decimals that a table can keep, got: minus zero")
        scale = max(scale, -exponent)
        whole = max(whole, len(digits) + exponent if any(digits) else 0)
    if whole + scale > 38:
        raise invalid(f"expected {where} to have decimals of at most 38 digits, got: more; make them texts before")
    return whole, scale


def _moment(found: Sequence[Any], kind: type, where: str) -> _Type:
    offsets = {value.utcoffset() for value in found}
    if None in offsets and len(offsets) > 1:
        raise invalid(f"expected {where} to have times all with a time zone, or all without, got: both")
    if kind is dt.datetime:
        name = "TIMESTAMP" if None in offsets else "TIMESTAMPTZ"
        return _Type(name, name) if None in offsets else _Type(name, name, _in_utc(where))
    if None in offsets:
        return _Type("TIME", "TIME")
    if any(offset.microseconds or abs(offset) >= dt.timedelta(hours=16) for offset in offsets):
        raise invalid(f"expected {where} to have time zones of whole seconds, up to 16 hours, got: another")
    return _Type("TIMETZ", "VARCHAR", dt.time.isoformat)  # as a time itself, DuckDB takes no zone west of Greenwich


def _in_utc(where: str) -> Callable[[Any], Any]:
    def give(value: dt.datetime) -> dt.datetime:
        try:
            return value.astimezone(dt.UTC)
        except OverflowError:
            raise invalid(f"expected {where} to have moments of the years 1 to 9999 in UTC, got: another") from None

    return give


def _list(found: Sequence[list[Any]], where: str, depth: int) -> _Type:
    inner = _type_of((one for value in found for one in value), f"the lists in {where}", depth)
    return _Type(f"{inner.name}[]", f"{inner.goes_in}[]", lambda value: [inner.given(one) for one in value])


def _struct(found: Sequence[dict[Any, Any]], where: str, depth: int) -> _Type:
    names = list(found[0])
    if not names:
        raise invalid(f"expected {where} to have mappings with keys, got: an empty one; make it a text before")
    if any(value.keys() != found[0].keys() for value in found):
        raise invalid(f"expected {where} to have mappings with the same keys, got: others; make them texts before")
    if not all(map(_is_name, names)):
        raise invalid(f"expected {where} to have mappings whose keys are texts, got: another key")
    if len({name.lower() for name in names}) < len(names):
        raise invalid(f"expected {where} to have keys that differ in more than capital letters, got: two that do not")
    if set(names) == {"key", "value"}:  # which DuckDB takes for another kind of mapping
        raise invalid(f"expected {where} to have mappings with other keys than key and value; rename one")
    inner = {name: _type_of((value[name] for value in found), f"{name} in {where}", depth) for name in names}
    return _Type(
        f"STRUCT({', '.join(f'{_quoted(name)} {kind.name}' for name, kind in inner.items())})",
        f"STRUCT({', '.join(f'{_quoted(name)} {kind.goes_in}' for name, kind in inner.items())})",
        lambda value: {name: kind.given(value[name]) for name, kind in inner.items()},
    )


def _bound(name: str, value: Any) -> Any:
    """A value as it is bound: of the type that a column with it would have."""
    kind = _type_of([value], f"the value of {name}")
    typed: Any = duckdb.Value  # its own description leaves out that a type may be a text
    return None if value is None else typed(kind.given(value), kind.name)


# -- what comes out ------------------------------------------------------------------------------------------------------


def _selected(
    connection: duckdb.DuckDBPyConnection, config: TransformConfig, parameters: dict[str, Any]
) -> list[dict[str, Any]]:
    statements = connection.extract_statements(config.query)
    if [one.type for one in statements] != [duckdb.StatementType.SELECT]:
        raise invalid("expected query to be one statement that selects, got: another")
    query = config.query.rstrip().rstrip(";")
    columns = _columns(connection.execute(f"(\n{query}\n) LIMIT 0", parameters).description or [])
    places = [f"c{number}" for number in range(len(columns))]
    sure = [_SURE[kind.id].format(place) for place, (_, kind) in zip(places, columns, strict=True) if kind.id in _SURE]
    bounds = {
        place: f"({_LENGTHS[kind.id].format(place)} > {_LARGEST}) IS NOT TRUE"
        for place, (_, kind) in zip(places, columns, strict=True)
        if kind.id in _LENGTHS
    }
    chosen = [
        # DuckDB needs another package to make a time with a zone; in UTC it is one without.
        f"make_timestamp(epoch_us({place}))"
        if kind.id == _ZONED
        else f"CASE WHEN {bounds[place]} THEN {place} END"
        if place in bounds
        else place
        for place, (_, kind) in zip(places, columns, strict=True)
    ]
    checked = f"({' AND '.join(f'({one}) IS NOT FALSE' for one in sure)})" if sure else "true"
    bounded = " AND ".join(bounds.values()) or "true"
    wrapped = f"SELECT {checked}, {bounded}, {', '.join(chosen)} FROM (\n{query}\n) AS result({', '.join(places)})"
    return _fetched(connection.execute(wrapped, parameters), columns, config.max_rows)


def _columns(description: Sequence[Any]) -> list[tuple[str, Any]]:
    columns = [(str(one[0]), one[1]) for one in description]
    names = [name for name, _ in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise invalid(f"expected the columns of query to have names that differ, got twice: {', '.join(twice)}; use AS")
    for name, kind in columns:
        if (unfit := _unfit(kind, top=True)) is not None:
            raise invalid(
                f"expected the column {name} of query to be of a type that comes out as it is, got: {unfit}; "
                "cast it in query, such as with ::varchar"
            )
    return columns


def _unfit(kind: Any, *, top: bool) -> str | None:
    """The type in this one whose values do not come out as they are."""
    if kind.id in ("list", "array"):
        return _unfit(kind.children[0][1], top=False)
    if kind.id == "struct":
        return next((found for _, one in kind.children if (found := _unfit(one, top=False))), None)
    if kind.id == "map":
        key, value = (one for _, one in kind.children)
        return str(kind) if key.id in _NESTED else _unfit(key, top=False) or _unfit(value, top=False)
    return None if kind.id in _COMES and (top or kind.id not in _SURE or kind.id in _LAST) else str(kind)


def _fetched(result: Any, columns: Sequence[tuple[str, Any]], most: int) -> list[dict[str, Any]]:
    names = [name for name, _ in columns]
    ways = [_way_out(name, kind, top=True) for name, kind in columns]
    bounded = [number for number, (_, kind) in enumerate(columns) if kind.id in _BOUNDED]
    rows: list[dict[str, Any]] = []
    size = 0
    while chunk := result.fetchmany(_CHUNK):
        if len(rows) + len(chunk) > most:
            raise PermanentFailure(
                f"expected query to have at most {most:,} rows, got: more; select fewer, or set max_rows",
                error_class="data_error",
            )
        for fits, is_bounded, *cells in chunk:
            if not is_bounded:
                raise _too_large()
            if not fits:
                raise PermanentFailure(
                    "a value of query is none that Python has: infinity, a month of no certain length, or a part of a "
                    "microsecond; have it as a text, with ::varchar in query",
                    error_class="data_error",
                )
            size += sum(_size(cells[number]) for number in bounded)
            rows.append({name: way(cell) for name, way, cell in zip(names, ways, cells, strict=True)})
            if size > _LARGEST:
                raise _too_large()
    return rows


def _too_large() -> PermanentFailure:
    return PermanentFailure(
        f"expected query to have at most {_LARGEST:,} bytes of texts and lists, got: more; select fewer rows or columns",
        error_class="data_error",
    )


def _way_out(name: str, kind: Any, *, top: bool = False) -> Callable[[Any], Any]:
    """How a value of this type becomes one that can be stored, and is the same."""
    if kind.id in ("list", "array"):
        inner = _way_out(name, kind.children[0][1])
        return lambda value: None if value is None else [inner(one) for one in value]
    if kind.id == "struct":
        ways = {key: _way_out(name, one) for key, one in kind.children}
        return lambda value: None if value is None else {key: ways[key](one) for key, one in value.items()}
    if kind.id == "map":
        key_way, way = (_way_out(name, one) for _, one in kind.children)
        return lambda value: None if value is None else {key_way(key): way(one) for key, one in value.items()}
    comes: Any = _COMES[kind.id]
    last = None if top else _LAST.get(kind.id)

    def out(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, comes) or value == last:  # a day before the year 1, the time 24:00
            raise PermanentFailure(
                f"the column {name} of query has a value that Python has none for; have it as a text, with ::varchar",
                error_class="data_error",
            )
        return value if kind.id != _ZONED else value.replace(tzinfo=dt.UTC)

    return out


def _size(value: Any) -> int:
    """The bytes of a value: those of a text, and of a list or a mapping what Python has for it."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return _EMPTY + sum(_PLACE + _size(key) + _PLACE + _size(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return _EMPTY + sum(_PLACE + _size(one) for one in value)
    return _NUMBER
