"""
PostgreSQL: many hosts, many writers.

Nothing depends on a session: no temporary tables, no session locks, no setting that outlives its transaction, so any
connection pooler works. Statements that are done again and again are kept prepared, where the session is surely ours. Ownership is a row with a token, and all times in it are the server's.
"""

from __future__ import annotations

import os
import select
from functools import lru_cache
from math import inf
from struct import Struct, pack
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs

from outlast.errors import ConfigurationError
from outlast.kernel.redact import mask, remember_secret, sanitise
from outlast.store.connections import seconds_left, unhurried
from outlast.store.database import Database, Duplicate
from outlast.store.faults import StoreRefused, StoreUnavailable, fault
from outlast.store.records import SERVED_KIND

try:
    import psycopg
    from psycopg import Capabilities, conninfo, errors, pq
    from psycopg.adapt import Transformer
    from psycopg.pq import ExecStatus, Format
except ImportError as missing:
    message = "PostgreSQL as a store needs psycopg 3, which is not installed: pip install 'outlast[postgres]'."
    raise ImportError(message, name=missing.name) from None

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from psycopg.pq.abc import PGresult

    from outlast.store.connections import Connection
    from outlast.store.database import Transaction
    from outlast.store.faults import StoreError
    from outlast.store.turns import Asked

# The keys of advisory locks, which all users of a database share: arbitrary numbers that are ours.
_SCHEMA = 7_813_240_561_943_027
_EVENTS = 7_813_240_561_943_028
# Until a connection stands; and until a silent one is given up, so that a vanished host does not hold a run for hours.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "outlast",
    "client_encoding": "utf8",
}
# How each column travels in a binary COPY; every other one is text.
_TYPES = {
    **dict.fromkeys(
        "run seq started took delay at first_failed last_attempt created moved due first_due enqueued job token next_run".split(),
        "int8",
    ),
    **dict.fromkeys("pass number attempts replays priority".split(), "int4"),
    "stage": "int2",
    "degraded": "bool",
    **dict.fromkeys("output payload original".split(), "bytea"),
}
_OTHERWISE = {
    "outlast_dead_letters": {"run": "text", "stage": "text"},  # by their names
    "outlast_events": {"run": "text"},
    "outlast_jobs": {"version": "int4"},
}

_NUMBERS: dict[str, tuple[str, int]] = {"int8": ("!iq", 8), "int4": ("!ii", 4)}
_COPY_BEGIN, _COPY_END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
_COPIED = 2**17  # bytes that a COPY sends at a time
# Of `outlast_turn`: ints come as the text of an array, which is made in a third of the time that an array takes.
_PARAMETERS = (
    *("?", "?", "?", "?", "?", "?"),
    *("?::bigint[]", "?::bigint[]", "?::integer[]", "?::bigint[]", "?::bigint[]", "?::bytea[]", "?::bigint[]"),
    *("?::text[]", "?::integer[]", "?::integer[]", "?::bigint[]", "?", "?::text[]", "?::integer[]"),
)


# Jobs of one queue, as `outlast_turn` claims them, at three quarters of its cost. What has become due is left to a turn, and who has no lease
# finds nothing. Nothing is written if there is nothing to claim: the lease is looked at, and its row locked, after the jobs.
_ONE_QUEUE = f"""
with picked as materialized (
    select job.id as number from outlast_jobs job
    where (select set_config('application_name', $4, true)) is not null and (select set_config('lock_timeout', $5, true)) is not null
        and job.app = $1 and job.queue = $7 and job.state = 'ready'
        and job.version <= ($10::integer[])[array_position($9::text[], {SERVED_KIND})]
        and not exists (select 1 from outlast_queues paused where paused.app = $1 and paused.queue = $7 and paused.paused)
    order by job.priority desc, job.id limit $8::integer for update skip locked
), held as materialized (
    select (date_part('epoch', clock_timestamp()) * 1000000)::bigint + $6 as instant from outlast_leases lease
    where lease.app = $1 and lease.kind = 'worker' and lease.key = $2 and lease.token = $3 for key share
)
update outlast_jobs job
set state = 'processing', token = job.token + 1, worker = $2, claimed = held.instant, began = coalesce(job.began, held.instant),
    attempts = job.attempts + 1, made = job.made + 1
from picked, held where job.id = picked.number and job.state || '' = 'ready'
returning job.id, job.kind, job.version, job.queue, job.priority, job.payload, job.token, job.attempts, job.made, job.crashes,
    job.previous, job.snoozed, job.enqueued, job.began, job.claimed, job.error, job.error_type, job.error_class
"""
# Its plan looks rows up by their keys, whatever the figures of a table were when it was made.
_BY_KEY = (
    "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_bitmapscan = off; set enable_hashjoin = off; "
    "set enable_mergejoin = off; set enable_sort = off"
)

# A lock is waited for by the server itself, for less than that. Only a server that stands still is silent for longer.
_SPARE_S = 10.0
_SILENCE_S = 30.0 + _SPARE_S
_UNHURRIED_S = 3600.0  # for what may take long: migrations, and what deletes
_INTERVAL_S = 0.1  # between two looks of the driver
_poll: Any = getattr(select, "poll", None)  # not on every system
_SOON = ", set_config('synchronous_commit', 'off', true)"  # the commit of its transaction does not wait for the disk,
_FLUSH = "select pg_logical_emit_message(true, 'outlast', '')"  # that of this one does: for all that was written before
# The same, by a lock of the row: a worker that looks for jobs at this moment leaves it out. If the row is gone, so much has been written since.
_FLUSHED = "select 1 from outlast_jobs where id = ? for key share"
_MAY_FLUSH = (
    "select 1 from pg_proc where pronamespace = 'pg_catalog'::regnamespace and proname = 'pg_logical_emit_message' "
    "and proargtypes[2] = 'text'::regtype and has_function_privilege(oid, 'execute')"
)
_TOLD = ", pg_notify('outlast_jobs', ?)"  # after the columns that a statement returns
# What a statement was prepared for has changed, or it is gone: nothing has been done.
_GONE = (errors.FeatureNotSupported, errors.InvalidSqlStatementName)
_NEVER = 2**31
_OFTEN = 5  # times that a statement is done in a session before it is kept prepared there


class _Silent(psycopg.OperationalError):
    """The server has sent nothing for too long; the connection is closed."""


class _Session(psycopg.Connection[Any]):
    """A connection that knows whether its session on the server is its own, and how long its server may be silent."""

    silence = _SILENCE_S
    often = 0  # times that a statement was done that could be kept prepared
    own: bool | None = None
    flushes = False  # whether its role may do `_FLUSH`
    kept: Mapping[str, bytes] = MappingProxyType({})  # statements that are prepared without the driver, and their names
    adapts: Any = None  # knows how what they find is read
    letters = ""  # how texts travel

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        try:
            return super().wait(_heard(gen, self.patience()), *args, **options)
        except _Silent:
            self.close()
            raise

    def patience(self) -> float:
        """For how many seconds the server may be silent now."""
        if unhurried.get():
            return max(_UNHURRIED_S, self.silence)
        left = seconds_left()
        return self.silence if left is None else min(left, self.silence)


def _heard(gen: Any, longest: float) -> Any:
    """The same generator; it fails once the server has been silent for so many seconds. Its driver wakes it ten times in a second."""
    since: float | None = None
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready:
                since = None
            else:
                now = monotonic()
                since = since or now
                if now - since >= longest - _INTERVAL_S:
                    raise _Silent(_unheard(longest))
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value


def _unheard(longest: float) -> str:
    return f"the server has sent nothing for {longest:.3g} s"


def _quickly(connection: _Session, sql: str, parameters: Sequence[Any]) -> list[Any]:
    """What a statement finds, kept prepared in the connection's own session."""
    name = _kept(connection, sql)
    _send(connection, name, parameters)
    return _rows(connection, _answered(connection, ExecStatus.TUPLES_OK))


def _seen_early(connection: _Session, sql: str, parameters: Sequence[Any]) -> tuple[list[Any], bool]:
    """
    As `_quickly`, for a statement with `_SOON`: others see what it did while it is on its way to the disk. Whether it is there now, too:
    else `_FLUSH` has failed, and nothing else. Whatever others write on account of it stands behind it, and is not there without it.
    """
    server = connection.pgconn
    name, flush = _kept(connection, sql), _kept(connection, _FLUSH)
    try:
        server.enter_pipeline_mode()
        _send(connection, name, parameters)
        server.pipeline_sync()  # which sends it, and ends its transaction
        server.send_query_prepared(flush, None)
        server.pipeline_sync()
        answer, flushed = _of_each(connection, 2)
        server.exit_pipeline_mode()
    except BaseException:
        connection.close()  # in the middle of a pipeline it is of no use to anybody
        raise
    return _rows(connection, _wanted(connection, answer, ExecStatus.TUPLES_OK)), flushed.status == ExecStatus.TUPLES_OK


def _kept(connection: _Session, sql: str) -> bytes:
    """The name under which a statement is prepared in the connection's own session."""
    name = connection.kept.get(sql)
    if name is None:
        name, connection.letters = b"outlast_%d" % len(connection.kept), connection.info.encoding
        try:
            connection.pgconn.send_prepare(name, _numbered(sql).encode(connection.letters))
            _answered(connection, ExecStatus.COMMAND_OK)
            connection.kept = {**connection.kept, sql: name}
        except BaseException:
            connection.close()  # nobody knows which names are taken there
            raise
    return name


def _send(connection: _Session, name: bytes, parameters: Sequence[Any]) -> None:
    encoding = connection.letters
    given = [_as_text(value, encoding) for value in parameters]
    formats = [value.__class__ is bytes for value in parameters]  # text or binary
    connection.pgconn.send_query_prepared(name, given, formats, result_format=Format.BINARY)


def _answered(connection: _Session, wanted: ExecStatus) -> PGresult:
    """The answer to what was sent. A signal is heard meanwhile, as it is by the driver; the connection is of no use after that."""
    answer: PGresult | None = None
    while (result := _next(connection)) is not None:
        if answer is None or answer.status == wanted:  # the first error is the one that counts
            answer = result
    return _wanted(connection, answer, wanted)


def _of_each(connection: _Session, count: int) -> list[PGresult]:
    """In a pipeline of so many transactions with a statement each: what came of each. An error of its commit follows what the statement found."""
    came: list[PGresult] = []
    answer: PGresult | None = None
    ended = False
    while len(came) < count:
        result = _next(connection)
        if result is None:
            if ended:  # one follows each statement
                raise errors.OperationalError("the server has not said that it is done")
            ended = True
            continue
        ended = False
        if result.status != ExecStatus.PIPELINE_SYNC:
            answer = result if answer is None or answer.status == ExecStatus.TUPLES_OK else answer
        elif answer is None:
            raise errors.OperationalError("the server has not answered")
        else:
            came.append(answer)
            answer = None
    return came


def _wanted(connection: _Session, answer: PGresult | None, wanted: ExecStatus) -> PGresult:
    if answer is None:
        raise errors.OperationalError("the server has not answered")
    if answer.status != wanted:
        raise errors.error_from_result(answer, connection.info.encoding)
    return answer


def _next(connection: _Session) -> PGresult | None:
    """What comes back next for what was sent; None: nothing more for this statement."""
    server = connection.pgconn
    while server.flush():
        _ready(connection, writing=True)
        server.consume_input()  # or both sides wait for the other to read
    while server.is_busy():
        _ready(connection)
        server.consume_input()
    return server.get_result()


def _refuse_lost(connection: _Session) -> None:
    """Raise if the server has ended this session meanwhile: then nothing was asked, and it may be asked again."""
    if _poll is None:
        return
    server, ready = connection.pgconn, _poll()
    ready.register(server.socket, select.POLLIN)
    while ready.poll(0):
        server.consume_input()


def _ready(connection: _Session, *, writing: bool = False) -> None:
    """Wait until its socket can be read from, or written to if that is asked for, too."""
    place, longest = connection.pgconn.socket, connection.patience()
    if _poll is None:
        found: Sequence[Any] = [
            *select.select([place], [place] if writing else [], [], None if longest == inf else longest)[:2]
        ]
        silent = not any(found)
    else:
        ready = _poll()  # knows no largest number of a socket
        ready.register(place, select.POLLIN | select.POLLOUT if writing else select.POLLIN)
        silent = not ready.poll(None if longest == inf else longest * 1000)
    if silent:
        connection.close()
        raise _Silent(_unheard(longest))


def _rows(connection: _Session, answer: PGresult) -> list[Any]:
    if (adapts := connection.adapts) is None:
        adapts = connection.adapts = Transformer()  # of no connection: each would keep the other
    adapts.set_pgresult(answer)
    found: list[Any] = adapts.load_rows(0, answer.ntuples, tuple)
    adapts.set_pgresult(None)  # nobody needs it any more, however large it is
    return found


class Line:
    """
    A session of our own that is told of jobs and does turns that only claim, for whoever reads its socket: once it is made, nothing
    here waits for the server. A driver's own way to wait costs more than the rest of such a turn. One thread uses it at a time.
    """

    def __init__(self, connection: Any, statements: Sequence[str]) -> None:
        """The connection listens already, and is lent by nobody. Blocks."""
        self._connection: psycopg.Connection[Any] = connection
        self._server = connection.pgconn
        self._encoding: str = connection.info.encoding
        self._adapts = Transformer(connection)
        self._asked: Asked | None = None  # sent last: an idle worker sends the same again and again
        self._given: list[bytes | None] = []
        self._error: Exception | None = None
        self._done = False
        self.coming: list[Any] | None = None  # the rows of a turn whose transaction has not ended, and may still fail
        connection.execute(_BY_KEY)
        self._names = {sql: b"outlast_%d" % number for number, sql in enumerate(statements)}
        for sql, name in self._names.items():
            self._server.send_prepare(name, _numbered(sql).encode())
            _answered(connection, ExecStatus.COMMAND_OK)
        # What was told while these statements were done is known to the driver alone.
        self._told = [note.payload for note in connection.notifies(timeout=0)]
        self._early = Capabilities().has_pipeline()
        if self._early:
            self._server.enter_pipeline_mode()

    def fileno(self) -> int:
        """Of its socket."""
        return self._connection.fileno()

    def send(self, asked: Asked) -> None:
        """Begin a turn, when no other is under way; `flush` says whether all of it is on its way."""
        if asked is not self._asked:
            self._asked, self._given = asked, [_as_text(value, self._encoding) for value in asked.parameters]
        server = self._server
        server.send_query_prepared(self._names[asked.statement], self._given, result_format=Format.BINARY)
        if self._early:
            server.send_flush_request()  # the rows are sent before the commit waits for the disk
            server.pipeline_sync()

    def flush(self) -> bool:
        """Whether nothing is left to be sent; else again when the socket can be written to."""
        return not self._server.flush()

    def told(self) -> list[str]:
        """Read what the socket has; the texts of the notifications in it."""
        self._server.consume_input()
        told, self._told = self._told, []
        while (note := self._server.notifies()) is not None:
            told.append(note.extra.decode(self._encoding))
        return told

    def answer(self) -> list[Any] | Exception | None:
        """
        After `told`: the rows of the turn that is under way, or what went wrong; None: not all of it has come, and perhaps the rows, to
        `coming`.
        """
        server = self._server
        while not server.is_busy():
            result = server.get_result()
            if result is not None and result.status == ExecStatus.TUPLES_OK:
                self._adapts.set_pgresult(result)
                self.coming = self._adapts.load_rows(0, result.ntuples, tuple)
                self._adapts.set_pgresult(None)
            elif result is not None and result.status != ExecStatus.PIPELINE_SYNC:
                self._error = self._error or errors.error_from_result(result, self._encoding)
            elif result is None and self._early and not self._done:
                self._done = True  # the statement, not its transaction
            else:
                if result is None and self._early:
                    self._error = self._error or errors.OperationalError("the server has not said that it is done")
                answer, self._error, self.coming, self._done = self._error or self.coming, None, None, False
                return answer
        return None

    def close(self) -> None:
        self._connection.close()


def _as_text(value: Any, encoding: str) -> bytes | None:
    """A parameter, as the server reads it from a text; bytes are as they are."""
    if isinstance(value, str):
        return value.encode(encoding)
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, list):
        return f"{{{','.join(map(_element, value))}}}".encode(encoding)
    return None if value is None else bytes(value)


def _element(value: str | int | None) -> str:
    """One of an array."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "null" if value is None else str(value)


def _begin(patience: float) -> str:
    # Nobody waits for ever for somebody who stands still. In one message, and for this transaction only.
    return (
        "begin isolation level read committed; "
        f"set local idle_in_transaction_session_timeout = '{min(20_000, round(patience * 1000))}ms'; "
        f"set local lock_timeout = '{round(patience * 1000)}ms'"
    )


class Postgres(Database):
    name = "postgres"
    begin = _begin(30.0)
    patience = "30000ms"
    # A transaction has its name for as long as it lasts, so that it can be found and ended.
    labelled = "set_config('application_name', ?, true)"
    said = f"(select {labelled}, set_config('lock_timeout', ?, true)) as said, "
    for_update = "for update"
    for_change = "for no key update"
    for_share = "for key share"
    skip_locked = "for update skip locked"
    arrays = True
    at_once = f"select * from outlast_turn({', '.join(_PARAMETERS)})"
    one_queue = _ONE_QUEUE
    known_here = "select to_regclass('outlast_store') is not null"
    # When it was started: the identifier of a cluster is the same in a copy of its files, and not for everybody's eyes.
    server = "(extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint"
    transaction = "select txid_current()"
    # Without figures about a table that has just grown, or shrunk, a planner reads all of it instead.
    one_by_one = ", ".join(
        f"set_config('enable_{way}', 'off', true)" for way in ("seqscan", "bitmapscan", "hashjoin", "mergejoin")
    )
    notifies = "select pg_notify('outlast_jobs', ?)"
    among = "= any(?)"
    lower = 'lower({} collate "C")'
    now = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
    still = "begin isolation level repeatable read read only"
    # A NUL, which JSON can say and no text here can hold, becomes the sign for what cannot be shown.
    pairs = r"json_each_text(replace({}, '\u0000', '\ufffd')::json) as pair"
    elements = r"json_array_elements_text(replace({}, '\u0000', '\ufffd')::json) as element(value)"
    driver_error = psycopg.Error

    def __init__(self, url: str, *, patience: float | None = None, bounded: bool = True) -> None:
        """`bounded`: a server that stands still is not waited for without end. What others ask of theirs has its own time."""
        super().__init__()
        self._silence = _SILENCE_S if bounded else inf
        try:
            self._settings = _DEFAULTS | {key: str(value) for key, value in conninfo.conninfo_to_dict(url).items()}
        except psycopg.Error:
            # What the driver says quotes the address, password and all.
            problem = f"expected the store's address to be like postgresql://user@host:5432/name, got: {mask(url)!r}."
            known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
            options = url.partition("?")[2]
            unknown = [name for name in parse_qs(options) if name not in known]
            if unknown and "@" not in options:  # else these may be parts of a password
                problem += f" PostgreSQL has no option {unknown[0]!r} for a connection."
            raise ConfigurationError(problem) from None
        if patience is not None:
            # The driver's shortest time to connect is two seconds.
            self._settings["connect_timeout"] = str(max(2, round(patience)))
            self._settings["tcp_user_timeout"] = str(round(patience * 1000))
            self.begin = _begin(patience)
            self.patience = f"{round(patience * 1000)}ms"
            self._silence = patience + _SPARE_S if bounded else inf
        if self._settings.get("password"):
            remember_secret(self._settings["password"])

    def __repr__(self) -> str:
        return f"<PostgreSQL {self._where()}>"

    def _where(self) -> str:
        host, name = self._settings.get("host", "localhost"), self._settings.get("dbname")
        return mask(f"{name!r} on {host}" if name else f"on {host}")

    def connect(self, *, batches: bool) -> Connection:  # noqa: ARG002 - every commit is flushed
        settings = self._settings
        if (left := seconds_left()) is not None:
            # The driver's shortest time to connect is two seconds.
            settings = settings | {"connect_timeout": str(min(int(settings["connect_timeout"]), max(2, round(left))))}
        made = _Session.connect(**settings, autocommit=True, prepare_threshold=None)  # type: ignore[arg-type]
        made.silence = self._silence
        # What the server has told of itself. With this off, the driver writes lists of bytes that the server reads as others.
        if made.info.parameter_status("standard_conforming_strings") == "off":
            role, name = made.info.user, made.info.dbname
            made.close()
            raise StoreRefused(
                f"expected the store {self._where()} to have standard_conforming_strings on, got: off, with which it would damage bytes. "
                f'Set it: alter role "{role}" in database "{name}" set standard_conforming_strings = on.'
            )
        return made

    def pooled(self, connection: Any) -> bool:
        """
        Whether something between us and the server lends its connections: then the process that answers is not the one
        that was named when we connected. What is set for a session there, or listened for, would be somebody else's.
        """
        (answers,) = connection.execute("select pg_backend_pid()").fetchone()
        return bool(answers != connection.info.backend_pid)

    def line(self, connection: Any) -> Line:
        """What a connection that listens, and is not `pooled`, can do beside. Blocks."""
        return Line(connection, (self.at_once, self.one_queue))

    def spelled(self, sql: str) -> str:
        return _spelled(sql)

    def passed(self, values: Iterable[Any]) -> list[Any]:
        return list(values)

    def once(self, sql: str, *parameters: Any) -> list[Any]:
        with self._faults(), self._batches.lend() as connection:
            return self._prepared(connection, sql, parameters)

    def put(self, insert: str, *parameters: Any, tell: str | None = None) -> Any:
        told, given = ("", parameters) if tell is None else (_TOLD, (*parameters, tell))
        with self._faults(), self._many.lend() as lent:
            connection = cast("_Session", lent)
            _refuse_lost(connection)
            flushed = True
            try:
                if not self._keeps(connection):
                    return self._plainly(connection, insert + told, given)[0]
                if tell is not None and connection.flushes:
                    found, flushed = _seen_early(connection, insert + told + _SOON, given)
                else:
                    found = _quickly(connection, insert + told, given)
            except _GONE:
                self._gone(connection)
                return self._plainly(connection, insert + told, given)[0]
            except psycopg.OperationalError as error:
                error.undecided = True  # type: ignore[attr-defined]  # see `fault`
                raise
            if not flushed:
                connection.flushes = False
                self._plainly(connection, _FLUSHED, found[0][:1])
            return found[0]

    def _prepared(self, lent: Any, sql: str, parameters: tuple[Any, ...]) -> list[Any]:
        """
        What a statement finds that is a transaction by itself. The server need not read and plan it each time: that is a
        third of what it does for a short one.
        """
        connection = cast("_Session", lent)
        if self._keeps(connection):
            try:
                return self._plainly(connection, sql, parameters, prepare=True)
            except _GONE:
                self._gone(connection)
        return self._plainly(connection, sql, parameters)

    def _plainly(
        self, connection: _Session, sql: str, parameters: Sequence[Any], *, prepare: bool | None = None
    ) -> list[Any]:
        spelled: Any = self.spelled(sql)  # the driver would have it written out
        # Binary: half the time to read many rows.
        return connection.execute(spelled, parameters, binary=True, prepare=prepare).fetchall()

    def _gone(self, connection: _Session) -> None:
        """Prepare nothing here any more."""
        connection.own, connection.prepare_threshold = False, None

    def _keeps(self, connection: _Session) -> bool:
        if connection.own is None:
            connection.often += 1
            if connection.often > _OFTEN:
                connection.own = not self.pooled(connection)
                if connection.own and Capabilities().has_pipeline():
                    connection.flushes = connection.execute(_MAY_FLUSH).fetchone() is not None
                # With None nothing is ever prepared, whoever asks for it; now what asks for it is, and nothing else.
                connection.prepare_threshold = _NEVER if connection.own else None
        return connection.own is True

    def bulk(self, connection: Connection, table: str, columns: str, rows: Sequence[tuple[Any, ...]]) -> None:
        cursor: psycopg.Cursor[Any] = connection.cursor()  # type: ignore[attr-defined]
        try:
            with cursor.copy(f"copy {table} ({columns}) from stdin (format binary)".encode()) as copy:
                copy.set_types(_types(table, columns))
                for row in rows:
                    copy.write_row(row)
        except errors.UniqueViolation:
            raise Duplicate from None

    def bulk_alike(
        self,
        connection: Connection,
        table: str,
        columns: str,
        row: tuple[Any, ...],
        place: int,
        values: Sequence[bytes],
    ) -> None:
        # All but one field of a row are made once; the driver would make them for each.
        fields = [_field(kind, value) for kind, value in zip(_types(table, columns), row, strict=True)]
        before = pack("!h", len(fields)) + b"".join(fields[:place])
        after, size = b"".join(fields[place + 1 :]), Struct("!i").pack
        parts: list[bytes] = [_COPY_BEGIN]
        held = 0
        cursor: psycopg.Cursor[Any] = connection.cursor()  # type: ignore[attr-defined]
        with cursor.copy(f"copy {table} ({columns}) from stdin (format binary)".encode()) as copy:
            for value in values:
                parts += (before, size(len(value)), value, after)
                held += len(value) + len(before) + len(after)
                if held > _COPIED:
                    copy.write(b"".join(parts))
                    parts, held = [], 0
            parts.append(_COPY_END)
            copy.write(b"".join(parts))

    def stream(self, transaction: Transaction, sql: str, *parameters: Any) -> Iterator[Any]:
        # Without a name the driver would read all rows before it gives the first.
        connection: psycopg.Connection[Any] = transaction.connection  # type: ignore[assignment]
        with connection.cursor(name="outlast_rows") as cursor:
            cursor.itersize = 5000
            cursor.execute(self.spelled(sql).encode(), parameters)
            yield from cursor

    def fault(self, error: Exception) -> StoreError:
        what = f"the store {self._where()} failed"
        primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
        if isinstance(error, errors.IdleInTransactionSessionTimeout):
            return StoreUnavailable(f"{what}: {primary}.", error_class="database_connection")
        if isinstance(error, errors.ReadOnlySqlTransaction):
            # A server that is a standby now, or is being switched over: the next connection may lead to the one that
            # takes writes.
            self._disconnect()
            return StoreUnavailable(
                f"{what}: it takes no writes at present ({primary}).", error_class="database_connection"
            )
        if primary is None and isinstance(error, psycopg.OperationalError):
            # No word from the server: it could not be reached, or went away. Why is in the driver's own words.
            said = sanitise(". ".join(line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()))
            stop = "" if said.endswith("?") else "."
            if isinstance(error, _Silent):
                what = f"the store {self._where()} did not answer"
            unanswered = getattr(error, "undecided", False)
            named = self._settings.get("dbname") or os.environ.get("PGDATABASE")
            more = "" if named else " Its address names no database. Write it as postgresql://host:5432/name."
            return StoreUnavailable(
                f"{what}: {said}{stop}{more}", error_class="database_connection", unanswered=unanswered
            )
        return fault(what, error, text=sanitise(primary) if primary else None)

    def taken(self, error: Exception) -> bool:
        return isinstance(error, errors.UniqueViolation)

    def evict(self, transaction: Transaction, labels: Sequence[str]) -> int:
        # A process that is stopped in the middle of sending rows is waited for by the server without any limit. Sessions of
        # other roles too, if we may: a job may end in a transaction of its own code (`finish_in`). To ask the server to end
        # one that we may not end is an error, so this is its own rule.
        (count,) = transaction.row(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity where pid <> pg_backend_pid() "
            "and datname = current_database() and application_name = any(?) and (usename = current_user "
            "or (select rolsuper from pg_roles where rolname = current_user) "
            "or ((pg_has_role(usesysid, 'usage') or pg_has_role('pg_signal_backend', 'usage')) "
            "and not (select rolsuper from pg_roles where oid = usesysid)))",
            list(labels),
        )
        return int(count)

    def unmade(self, error: Exception) -> bool:
        return isinstance(error, errors.UndefinedTable)

    def forbidden(self, error: Exception) -> bool:
        return isinstance(error, errors.InsufficientPrivilege)

    def lock_schema(self, transaction: Transaction) -> None:
        transaction.execute("select pg_advisory_xact_lock(?)", _SCHEMA)

    def lock_events(self, transaction: Transaction) -> None:
        transaction.execute("select pg_advisory_xact_lock(?)", _EVENTS)


def _field(kind: str, value: Any) -> bytes:
    """One field of a binary COPY."""
    if value is None:
        return pack("!i", -1)
    if kind in _NUMBERS:
        return pack(*_NUMBERS[kind], value)
    data = value.encode() if isinstance(value, str) else value
    return pack("!i", len(data)) + bytes(data)


@lru_cache(maxsize=256)
def _spelled(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


@lru_cache(maxsize=256)
def _numbered(sql: str) -> str:
    """In the server's own spelling."""
    first, *others = sql.split("?")
    return first + "".join(f"${place}{other}" for place, other in enumerate(others, 1))


@lru_cache(maxsize=16)
def _types(table: str, columns: str) -> list[str]:
    known = _TYPES | _OTHERWISE.get(table, {})
    return [known.get(column.strip(), "text") for column in columns.split(",")]
