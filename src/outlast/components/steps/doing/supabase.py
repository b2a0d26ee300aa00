"""
`supabase.writer` and `supabase.deleter`: requests to PostgREST, each of which is one transaction of the database.

What the service answers is believed only as far as it fits what was asked: it must say how many rows there were.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from outlast.components.reaching import plain_value, supabase_url
from outlast.components.sql import said_by_postgres
from outlast.components.steps.doing import columns_of, invalid, keep, listed, request_after, row_at
from outlast.components.steps.doing.http import (
    Request,
    answered,
    beginning,
    headers_of,
    parsed_url,
    refused,
    trusted_place,
    unpacked,
    unusable,
)
from outlast.components.steps.doing.jsons import exact, strict
from outlast.components.steps.doing.wire import Wire
from outlast.components.values import json_text, tell
from outlast.errors import PermanentFailure, TemporaryFailure
from outlast.verdicts import classify

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from outlast.components.running import StepContext
    from outlast.components.steps.supabase import DeleterConfig, WriterConfig

_LONGEST = 8000  # characters of an address, which servers and what stands before them take
# Names that mean something else where filters stand. In quotes they are columns.
_RESERVED = frozenset("select order limit offset columns on_conflict and or not".split())
_RESOLUTIONS = {"upsert": "merge-duplicates", "ignore": "ignore-duplicates"}
_NATIVE = frozenset({bytes, dt.timedelta})  # of which there is more to say than JSON has
_HALF = re.compile(r"[\ud800-\udfff]")  # of a character
_STATE = re.compile(r"[0-9A-Z]{5}")
_OWN = re.compile(r"PGRST[0-9A-Z]{3}")
_COUNT = re.compile(r"(?:\*|[0-9]+-[0-9]+)/(?P<count>[0-9]+)")
# What PostgREST itself says no to, in our words: its own may quote what was sent.
_OWN_WORDS = {
    "PGRST000": "it cannot reach its database",
    "PGRST001": "it cannot reach its database",
    "PGRST002": "it cannot reach its database",
    "PGRST003": "its database took too long to let it in",
    "PGRST106": "it does not serve this schema",
    "PGRST204": "the table has no such column",
    "PGRST205": "it knows no such table",
    "PGRST301": "the key is no token that it accepts",
    "PGRST302": "it lets nobody in without a key",
    "PGRST303": "the token of the key has expired, or is not meant for it",
}


# -- supabase.writer -----------------------------------------------------------------------------------------------------


def write(config: WriterConfig, context: StepContext) -> dict[str, Any]:
    """
    All rows, in one request or, where that does no harm, in several. Each is a transaction of its own: what was written
    before one of them fails stays there, and is written once more by the next attempt, to the same effect.
    """
    rows = [row_at(number, row) for number, row in enumerate(listed(config.rows), 1)]
    columns = columns_of(rows, config.columns, config.on_conflict)
    if odd := [name for name in columns if '"' in name or "\\" in name]:
        raise invalid(f"expected columns without quotes and backslashes in their names, got: {', '.join(odd)}")
    batches = list(_batches(config, rows, columns))
    if config.mode == "insert" and len(batches) > 1:
        raise invalid(
            f"expected rows for one request (batch_rows: {config.batch_rows}, batch_bytes: {config.batch_bytes}), because mode is "
            f"insert and a row must not come twice, got: rows for {len(batches)}; raise them, or write mode: upsert with on_conflict"
        )
    service = _Service(config, context)
    returned: list[Any] = []
    sent = 0
    for others, (count, body) in enumerate(batches):
        try:
            with request_after(others):
                returned += _sent(service, config, columns, count, body)
        except Exception as error:
            if sent:
                _add(error, f"{sent} of {len(rows)} rows were written before")
            raise
        sent += count
    return {"count": len(rows), "table": config.table, "rows": returned}


def _batches(
    config: WriterConfig, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> Iterator[tuple[int, bytes]]:
    """The rows as JSON, as many at a time as one request may have."""
    texts: list[str] = []
    size = 1  # a bracket; behind each row stands a comma or the other bracket
    for number, row in enumerate(rows, 1):
        try:
            told = _timed(tell({name: row[name] for name in columns}, _NATIVE))
            if lacking := [name for name, value in told.items() if _has_bytes(value)]:
                raise invalid(
                    f"expected row {number}, column {lacking[0]}: a value that JSON has, got: bytes; make it a text in a step before, "
                    "for bytea one of \\x and hexadecimal digits"
                )
            text = json_text(told)
            length = len(text.encode()) + 1
        except (TypeError, ValueError, RecursionError) as wrong:
            why = "a text with half a character" if isinstance(wrong, UnicodeError) else str(wrong)
            raise invalid(f"row {number} cannot be a row of the table: {why}") from None
        if length + 1 > config.batch_bytes:
            raise invalid(f"expected row {number} to have at most batch_bytes ({config.batch_bytes}), got: more")
        if texts and (len(texts) == config.batch_rows or size + length > config.batch_bytes):
            yield len(texts), f"[{','.join(texts)}]".encode()
            texts, size = [], 1
        texts.append(text)
        size += length
    if texts:
        yield len(texts), f"[{','.join(texts)}]".encode()


def _timed(value: Any) -> Any:
    """Durations in a value as texts."""
    if isinstance(value, dict):
        return {name: _timed(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_timed(one) for one in value]
    return _duration(value) if isinstance(value, dt.timedelta) else value


def _duration(value: dt.timedelta) -> str:
    """
    A duration as PostgreSQL reads it, be it for an interval or a time. The digits of a number of seconds would be those of
    an hour and a minute for a time. One that is no time of day is refused there.

    >>> _duration(dt.timedelta(minutes=39, seconds=5)), _duration(-dt.timedelta(hours=30))
    ('00:39:05.000000', '-30:00:00.000000')
    """
    minutes, rest = divmod(abs(value), dt.timedelta(minutes=1))
    sign = "-" if value < dt.timedelta() else ""
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}:{rest.seconds:02}.{rest.microseconds:06}"


def _has_bytes(value: Any) -> bool:
    """Whether there are some in a value. As a text of digits they would be kept as something else."""
    if isinstance(value, dict):
        return any(map(_has_bytes, value.values()))
    return any(map(_has_bytes, value)) if isinstance(value, list) else isinstance(value, bytes)


def _sent(service: _Service, config: WriterConfig, columns: Sequence[str], count: int, body: bytes) -> list[Any]:
    """Send one batch; the rows that came back, if they were asked for."""
    prefers = ["return=representation" if config.returning == "rows" else "return=minimal", "count=exact"]
    query = {"columns": ",".join(f'"{name}"' for name in columns)}
    if config.mode != "insert":
        prefers.append(f"resolution={_RESOLUTIONS[config.mode]}")
        query["on_conflict"] = ",".join(f'"{name}"' for name in config.on_conflict)
    answer = service.ask("POST", query, prefers, body, most=config.batch_bytes)
    written = answer.count()
    # Of rows that were there the service says nothing; of the others it counts each.
    if written > count or (written < count and config.mode != "ignore"):
        raise _unlike(f"that {count} rows were written", f"{written}")
    if config.returning == "nothing":
        return []
    rows = answer.rows()
    if len(rows) != count:
        raise _unlike(f"the {count} rows that were written", f"{len(rows)}")
    return rows


def _add(error: Exception, more: str) -> None:
    """Say more in the message of an error, which is what is on record."""
    error.args = (f"{error}; {more}", *error.args[1:])


def _unlike(expected: str, got: str) -> PermanentFailure:
    message = (
        f"expected the service to say {expected}, got: {got}; a policy or a trigger of the table may have left some out"
    )
    return unusable(message)


# -- supabase.deleter ----------------------------------------------------------------------------------------------------


def delete(config: DeleterConfig, context: StepContext) -> dict[str, Any]:
    """One request, and so one transaction: all of these rows or none."""
    filters = {_column(name): _filter(name, value) for name, value in config.match.items()}
    filters |= {_column(name): "is.null" for name in config.is_null}
    answer = _Service(config, context).ask("DELETE", filters, ["return=minimal", "count=exact"], None, most=_LONGEST)
    return {"count": answer.count()}


def _column(name: str) -> str:
    return f'"{name}"' if name.lower() in _RESERVED else name


def _filter(name: str, value: Any) -> str:
    r"""
    A condition. One value stands as it is behind the operator, whatever signs it has; those of a list stand in quotes.

    >>> _filter("a", 'x,"y".z'), _filter("a", ["x,y", 'a"b', True, 3])
    ('eq.x,"y".z', 'in.("x,y","a\\"b","true","3")')
    """
    if not isinstance(value, list):
        return f"eq.{_text(name, value)}"
    texts = [_text(name, one).replace("\\", "\\\\").replace('"', '\\"') for one in value]
    return "in.(" + ",".join(f'"{text}"' for text in texts) + ")"


def _text(name: str, value: Any) -> str:
    try:
        told = _timed(tell(value, _NATIVE))
    except (TypeError, ValueError, RecursionError):
        told = None
    if told is None or isinstance(told, list | dict | bytes):
        raise invalid(f"expected {name} of match to be a value, got: one of type {type(value).__name__}")
    text = str(told).lower() if isinstance(told, bool) else str(told)
    if "\x00" in text or _HALF.search(text):
        raise invalid(f"expected {name} of match to be a text that PostgreSQL can keep, got: another")
    return text


# -- requests ------------------------------------------------------------------------------------------------------------


class _Service:
    """Where the table is, as whom it is reached, and until when."""

    def __init__(self, config: WriterConfig | DeleterConfig, context: StepContext) -> None:
        connection = context.connection or {}
        remaining = context.remaining()
        self._context = context
        self._table = config.table
        self._base = parsed_url(supabase_url(connection))
        self._schema = config.schema_ or connection.get("schema")
        self._key = str(plain_value(connection["key"]))
        if not (self._key.isprintable() and self._key.isascii()):
            raise invalid("expected key of the connection to be one line of text, got: one with other characters")
        self._wire = Wire(trusted_place(self._base, connection), None if remaining is None else monotonic() + remaining)

    def ask(
        self, method: str, query: Mapping[str, str], prefers: Sequence[str], content: bytes | None, most: int
    ) -> _Answer:
        """The answer to one request, if it says that it was done. Raises what the service says otherwise."""
        said = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items())
        address = f"{self._base}/{quote(self._table, safe='')}?{said}"
        if len(address) > _LONGEST:
            raise invalid(
                f"expected an address of at most {_LONGEST} characters, got: {len(address)}; give fewer values"
            )
        request = Request(method, parsed_url(address), self._headers(prefers, content), content)
        with answered(request, self._wire) as answer:
            headers = headers_of(answer)
            if answer.status not in (200, 201, 204):
                raw = beginning(answer, headers, self._wire)
                keep(self._context, "answer", raw)
                raise _refusal(answer.status, headers, raw, request.where)
            # What comes back has more than was sent: defaults, and columns that were not written.
            raw = b"".join(unpacked(answer, headers, request.where, 10 * most))
        return _Answer(request.where, headers, raw)

    def _headers(self, prefers: Sequence[str], content: bytes | None) -> dict[str, str]:
        made = {
            "accept": "application/json",
            "accept-encoding": "gzip, deflate",
            "user-agent": "outlast",
            "apikey": self._key,
            "authorization": f"Bearer {self._key}",
            "prefer": ", ".join(prefers),
        }
        if content is not None:
            made["content-type"] = "application/json"
        if self._schema is not None:
            made["content-profile"] = str(self._schema)
        return made


class _Answer:
    """What the service says of a request that was done."""

    def __init__(self, where: str, headers: Mapping[str, str], raw: bytes) -> None:
        self._where = where
        self._headers = headers
        self._raw = raw

    def count(self) -> int:
        """How many rows there were. Who does not say it may have done anything."""
        found = _COUNT.fullmatch(self._headers.get("content-range", "").strip())
        if found is None:
            raise unusable(
                f"{self._where}: expected the service to say how many rows there were (Content-Range), got: nothing that "
                "says it. The rows may be written. A proxy may have removed the header.",
                "unknown",
            )
        return int(found["count"])

    def rows(self) -> list[Any]:
        try:
            rows = strict(self._raw, exact)  # a numeric comes with all its digits
        except (ValueError, RecursionError):
            rows = None
        if not isinstance(rows, list):
            raise unusable(f"{self._where}: expected the service to give back rows, got: another answer")
        return rows


class _Stated(Exception):
    """An error of which the SQLSTATE is known, to be classified by it."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


def _refusal(status: int, headers: Mapping[str, str], raw: bytes, where: str) -> Exception:
    """What the service says no with: by the SQLSTATE of its database, if it has one, else by the status."""
    told: dict[str, Any] = {}
    with suppress(ValueError, RecursionError):
        found = json.loads(raw)
        told = found if isinstance(found, dict) else {}
    code = told.get("code")
    if isinstance(code, str) and _STATE.fullmatch(code):
        verdict = classify(_Stated(code))
        if verdict.error_class != "unknown":
            why = said_by_postgres(str(told.get("message") or ""), code)
            kind = PermanentFailure if verdict.category == "permanent" else TemporaryFailure
            made: Any = kind(f"the database says: {why}", error_class=verdict.error_class)
            made.sqlstate = code  # that a transaction was rolled back proves that nothing was done
            error: Exception = made
            return error
    if code == "PGRST205":
        return PermanentFailure(f"{where}: {_OWN_WORDS[code]} ({code})", error_class="missing_input")
    error = refused(status, headers, where)
    if isinstance(code, str) and _OWN.fullmatch(code):
        _add(error, f"{_OWN_WORDS.get(code, 'see the error codes of PostgREST')} ({code})")
    return error
