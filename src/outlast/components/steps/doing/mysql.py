"""
`mysql.extractor`: one transaction, on a connection of its own.

Errors are told in our words: those of the server quote values. The number by which they are classified stays in them.
"""

from __future__ import annotations

import datetime as dt
import json
import struct
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from outlast.components.deadline import Late
from outlast.components.reaching import failure
from outlast.components.reading import missing
from outlast.components.sql import said
from outlast.components.steps.doing import invalid, names_of
from outlast.components.tables import cell_for
from outlast.errors import PermanentFailure, TemporaryFailure
from outlast.kernel.redact import sanitise
from outlast.verdicts import classify

try:
    import pymysql  # type: ignore[import-untyped]
    from pymysql.constants import FIELD_TYPE  # type: ignore[import-untyped]
    from pymysql.converters import conversions, convert_datetime  # type: ignore[import-untyped]
    from pymysql.cursors import SSCursor  # type: ignore[import-untyped]

    from outlast.components.mysql import connect_mysql
except ImportError:
    raise missing("a step with MySQL", "PyMySQL", "mysql") from None

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.components.running import StepContext
    from outlast.components.steps.mysql import ExtractorConfig
    from outlast.errors import OutlastError

_PATIENCE = 10.0  # seconds until a connection must stand, where no time limit is nearer
_NAMES = frozenset({1051, 1052, 1054, 1109, 1146, 1305})  # errors that quote names of the query, and no values
_LOST = frozenset({2006, 2013})
# What it is, where a connection is refused and the class of the error does not say it.
_REFUSED = {"auth": "auth_error", "permission": "permission_denied", "timeout": "timeout"}


# What the driver raises of an answer that is none of the protocol.
_GARBAGE = (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error)


def _instant(text: str) -> Any:
    """A TIMESTAMP, which is one of UTC because the session is; a day that no calendar has stays a text."""
    found = convert_datetime(text)
    return found.replace(tzinfo=dt.UTC) if isinstance(found, dt.datetime) else found


def _bits(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


# What the driver makes of values is kept; these are the types of which it makes nothing, or something else.
_TYPES: dict[Any, Any] = {
    **conversions,
    FIELD_TYPE.TIMESTAMP: _instant,
    FIELD_TYPE.BIT: _bits,
    FIELD_TYPE.JSON: json.loads,
}


def extract(config: ExtractorConfig, context: StepContext) -> dict[str, Any]:
    """All rows of the query, of one moment, in a transaction that cannot write."""
    rows: list[dict[str, Any]] = []
    parameters = _bound(config.parameters)
    size = 0
    with _connected(context, config) as (cursor, limit):
        begin = monotonic()
        # Without parameters a % stands for itself.
        cursor.execute(config.query, parameters or None)
        names = names_of(cursor.description)
        _exact(cursor.description)
        while chunk := cursor.fetchmany(config.chunk_rows):
            if len(rows) + len(chunk) > config.max_rows:
                raise _too_much(f"at most max_rows ({config.max_rows}) rows, got: more")
            for row in chunk:
                size += sum(len(cell) if isinstance(cell, str | bytes) else 8 for cell in row)
                if size > config.max_bytes:
                    raise _too_much(f"rows of at most max_bytes ({config.max_bytes}), got: more")
                rows.append(dict(zip(names, row, strict=True)))
        # A statement that is ended in a function such as SLEEP or BENCHMARK goes on with a value that is none.
        if limit is not None and monotonic() - begin >= limit:
            raise TemporaryFailure("the database took longer than it was allowed to", error_class="timeout")
    return {"rows": rows, "count": len(rows)}


def _exact(description: Any) -> None:
    """The server writes the numbers of these columns with six digits, whatever they have; nothing tells the difference."""
    if rounded := [str(column[0]) for column in description or () if column[1] == FIELD_TYPE.FLOAT]:
        raise invalid(
            f"expected columns that come as they are kept, got of type FLOAT, of which MySQL sends six digits: {', '.join(rounded)}; "
            f"write cast({rounded[0]} as double) in query"
        )


def _too_much(expected: str) -> PermanentFailure:
    return PermanentFailure(
        f"expected {expected}; raise it, or read less, with LIMIT or WHERE in query", error_class="data_error"
    )


# -- connections ---------------------------------------------------------------------------------------------------------


@contextmanager
def _connected(context: StepContext, config: ExtractorConfig) -> Iterator[tuple[Any, float | None]]:
    """
    A cursor in a transaction that only reads, whose rows stay with the server until they are asked for, and how many seconds
    the server has for a statement. The connection is
    closed whatever happens, and when the time of the attempt is up: the driver itself would wait for a server that stands
    still.
    """
    fields = context.connection or {}
    remaining = context.remaining()
    connection = _connect(fields, _PATIENCE if remaining is None else min(_PATIENCE, remaining))
    late = Late(connection._sock.fileno(), context.remaining())  # noqa: SLF001 - the driver has no other way to it
    cursor = connection.cursor(SSCursor)
    found: Exception
    try:
        with late:
            yield cursor, _begin(connection, context, config, fields)
    except pymysql.Error as error:
        found = error
    except UnicodeDecodeError:
        message = "a text of the query is not what the database says it is, and no UTF-8; have it as bytes, with cast(... as binary) in query"
        raise PermanentFailure(message, error_class="data_error") from None
    except UnicodeEncodeError:
        raise invalid(
            "expected parameters of whole characters, got: a text with half a character (a lone surrogate)"
        ) from None
    except _GARBAGE:
        found = _malformed()
    else:
        return
    finally:
        _close(connection, cursor)
    if late.struck:
        raise TemporaryFailure("the database did not answer in the time of the attempt", error_class="timeout")
    raise _told(found)


def _connect(fields: Mapping[str, Any], limit: float) -> Any:
    begin = monotonic()
    try:
        return connect_mysql(fields, limit, conv=_TYPES, autocommit=True)
    except pymysql.Error as error:
        found: Exception = error
    except RuntimeError:  # how it logs in needs another package, unless TLS hides the password
        message = "no connection to the database: the way in which the server wants the password needs TLS, or the package cryptography"
        raise PermanentFailure(message, error_class="missing_dependency") from None
    except _GARBAGE:
        found = _malformed()
    except OSError as error:  # of the file of the authority; those of the network are the driver's
        found = error
    known = failure(found)
    message = f"no connection to the database: {known.why}"
    if isinstance(found, OSError):
        message = "no connection to the database: the file of the authority (sslrootcert) cannot be read"
        raise PermanentFailure(message, error_class="tls_verify")
    if known.fields == ("url", "database"):
        raise PermanentFailure(message, error_class="missing_input")
    if monotonic() - begin >= limit:
        raise TemporaryFailure("no connection to the database: no answer in time", error_class="timeout")
    if "sslmode" in known.fields:
        raise PermanentFailure(message, error_class="tls_verify")
    verdict = classify(found)
    if verdict.category == "permanent":
        raise PermanentFailure(message, error_class=verdict.error_class)
    if known.kind in ("auth", "permission"):
        raise PermanentFailure(message, error_class=_REFUSED[known.kind])
    raise TemporaryFailure(message, error_class=_REFUSED.get(known.kind, verdict.error_class))


def _begin(
    connection: pymysql.Connection[Any], context: StepContext, config: ExtractorConfig, fields: Mapping[str, Any]
) -> float | None:
    """One moment, no writing, instants in UTC; and how long the server works on a statement, in seconds."""
    remaining = context.remaining()
    limits = [config.statement_timeout_ms or fields.get("statement_timeout_ms")]
    limits.append(None if remaining is None else max(1, int(remaining * 1000)))
    statements = ["set time_zone = '+00:00'", "set transaction isolation level repeatable read"]
    if known := [one for one in limits if one is not None]:
        is_mariadb = "mariadb" in str(connection.get_server_info()).lower()
        limit = f"max_statement_time = {min(known) / 1000:.6f}" if is_mariadb else f"max_execution_time = {min(known)}"
        statements.append(f"set session {limit}")
    statements.append("start transaction with consistent snapshot, read only")
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    return min(known) / 1000 if known else None


def _close(connection: Any, cursor: Any) -> None:
    """Hang up. To say goodbye the driver would first read all rows that nobody wants."""
    if cursor._result is not None:  # noqa: SLF001 - see above
        cursor._result.unbuffered_active = False  # noqa: SLF001
    cursor.connection = None
    with suppress(Exception):  # it may be broken; what has ended it is told elsewhere
        connection._force_close()  # noqa: SLF001


def _malformed() -> Exception:
    made: Exception = pymysql.err.OperationalError(2027, "malformed packet")
    return made


def _told(error: Exception) -> OutlastError:
    """What the driver raised, without the values that it quotes."""
    number = error.args[0] if error.args else None
    if isinstance(error, pymysql.err.InternalError) and not isinstance(number, int):  # packets in the wrong order
        error, number = _malformed(), 2027
    verdict = classify(error)
    why = said(error)
    if number in _NAMES:
        why = sanitise(f"{number}, {error.args[1]}")
    elif verdict.error_class == "database_connection":
        why = failure(error).why if number not in _LOST else "the connection broke"
    kind = PermanentFailure if verdict.category == "permanent" else TemporaryFailure
    return kind(f"the database says: {why}", error_class=verdict.error_class)


# -- values --------------------------------------------------------------------------------------------------------------


def _bound(parameters: Any) -> Any:
    """Mappings are documents, lists are the values of IN (...)."""
    if isinstance(parameters, Mapping):
        return {name: _value(name, value) for name, value in parameters.items()}
    return [_value(str(number), value) for number, value in enumerate(parameters, 1)]


def _value(name: str, value: Any) -> Any:
    try:
        if not isinstance(value, list | tuple):
            return cell_for(value, "mysql", "")
        values = [cell_for(one, "mysql", "") for one in value]
    except (TypeError, ValueError, RecursionError) as wrong:
        raise invalid(f"the parameter {name} is no value for MySQL: {wrong}") from None
    if not values:
        raise invalid(f"expected the parameter {name} to have values, got: none; IN () is no SQL")
    return values
