"""
`JobHandle`: what is on record of one job, read when it is asked for; and how to wait for its end.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from outlast.errors import ConfigurationError, OutlastError, PermanentFailure
from outlast.jobs.own import job_of
from outlast.kernel.clock import REAL, here, in_trio
from outlast.kernel.clock import ahead_us as ahead_us  # noqa: PLC0414 - the worker finds it here
from outlast.kernel.frames import place_of
from outlast.kernel.wording import counted, duration
from outlast.settings.checks import Check, a_value_of
from outlast.store.codec import Lost
from outlast.store.compensations import in_all
from outlast.store.connections import answer_by
from outlast.store.faults import StoreUnavailable
from outlast.store.records import FLOW, from_us, served_kind
from outlast.store.steps import ArtifactRecord
from outlast.store.upkeep import plain_key
from outlast.work.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime
    from typing import Literal, Self

    from outlast.jobs.job import Job
    from outlast.kernel.aliases import Seconds, StopReason
    from outlast.store import Store
    from outlast.store.codec import Codec
    from outlast.store.compensations import CompensationRecord
    from outlast.store.records import JobAttempt, JobRow, WholeJob
    from outlast.store.unique import HeldKey

    class JobHome(Protocol):
        """An app, as far as jobs need it."""

        @property
        def name(self) -> str: ...
        @property
        def store(self) -> Store: ...
        @property
        def store_url(self) -> str: ...
        @property
        def store_file(self) -> str | None: ...
        @property
        def codec(self) -> Codec: ...
        @property
        def kinds(self) -> dict[str, Job[..., Any]]:
            """Its jobs, each by its kind."""
            ...

        @property
        def own_kinds(self) -> dict[str, Job[..., Any]]:
            """Those of Outlast's own jobs that it has needed so far."""
            ...

        @property
        def flows(self) -> dict[str, Job[..., Any]]:
            """The jobs of its flows that have a schedule, each by its kind."""
            ...

        @property
        def retention_days(self) -> Mapping[str, int | None]: ...
        @property
        def present(self) -> JobHome:
            """Itself, or the one that a test has put in its place."""
            ...

        def has_pipeline(self, name: str) -> bool: ...


T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")
_LAST_ANSWER_S = 1.0  # that the store has at least, also at the end of a caller's time
_THREADS = 32  # of each event loop, for `beside`
# Not those of the loop's own executor: code of the user's may keep all of these busy, perhaps until a job goes on here.
_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, Pool] = WeakKeyDictionary()

#: Event loops that workers run in, once for each of them.
workers_in: list[asyncio.AbstractEventLoop] = []

_FIRST_LOOK, _LAST_LOOK, _GROWTH = 0.005, 0.5, 1.5  # seconds between two looks at a job that is waited for
_SHOWN = 20  # attempts in a note, jobs in a message
_BATCH = 1000  # jobs that are read in one transaction


class JobNotFound(OutlastError, LookupError):
    """
    There is no such job in the store: the transaction that it was enqueued in is not committed or was rolled back, or
    the job has ended so long ago that it is not kept any more.
    """


class ResultTimeoutError(OutlastError, TimeoutError):
    """A job has not ended in the time that its result was waited for. The job itself goes on."""


class ResultLost(PermanentFailure):
    """
    A job has succeeded, and the value that its function returned cannot be had: it was too large or of a type that
    cannot be stored, or its class has changed since. The job is not done again. `job` is its handle.
    """

    job: JobHandle[Any]

    def __init__(self, message: str, *, job: JobHandle[Any]) -> None:
        super().__init__(message, error_class="data_error")
        self.job = job


class JobFailed(OutlastError):
    """
    The result of a job was asked for, and the job has failed or was cancelled. `job` is its handle; `error_class` and
    `stop_reason` are those of its end. Its attempts are in a note.
    """

    job: JobHandle[Any]
    error_class: str | None
    stop_reason: StopReason | None

    def __init__(
        self,
        message: str,
        *,
        job: JobHandle[Any],
        error_class: str | None = None,
        stop_reason: StopReason | None = None,
    ) -> None:
        super().__init__(message)
        self.job = job
        self.error_class = error_class
        self.stop_reason = stop_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """
    One attempt of a job or a step, as it is on record. `outcome` is how it ended: ``crashed`` if its worker died,
    ``released`` if that gave it back, ``snoozed`` if the job itself did. `next_run_at` is when the next one was due;
    `stop_reason` why there was none. `traceback` is where a failed attempt failed, without secrets and without the
    frames of Outlast, and `place` the last of the user's own code in it.
    """

    number: int
    started_at: datetime
    duration: float
    outcome: Literal["succeeded", "failed", "timeout", "crashed", "released", "snoozed"]
    error: str | None = None
    error_class: str | None = None
    error_type: str | None = None
    stop_reason: StopReason | None = None
    worker: str | None = None
    next_run_at: datetime | None = None
    traceback: str | None = None

    @property
    def place(self) -> str | None:
        """Where it failed: ``/srv/shop/jobs.py:12 in send``."""
        found = place_of(self.traceback)
        return None if found is None else str(found)

    def __str__(self) -> str:
        error = "" if self.error is None else f": {self.error}"
        then = "" if self.next_run_at is None else f"; next run at {self.next_run_at:%Y-%m-%d %H:%M:%S} UTC"
        why = "" if self.stop_reason is None else f"; no further attempt: {self.stop_reason}"
        return f"attempt {self.number} {self.outcome} after {duration(self.duration)}{error}{then}{why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """
    What an operator did to a job: requeued it, cancelled it or asked its worker to, or edited its arguments in its dead
    letter, or had what it has done undone (``undo``). ``forgot steps`` goes before a requeue from the start, and before one of a job that was
    undone. `by` is who, as far as known.
    """

    at: datetime
    change: Literal["requeued", "cancelled", "edited", "forgot steps", "undo"]
    by: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """
    What an attempt of a job has kept for people, without what it says: `JobHandle.artifact` has that. `size` are its
    bytes; if it was `cut`, the first part of them is on record.
    """

    name: str
    attempt: int
    size: int
    cut: bool
    kept_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensation:
    """
    What undoes a part of a job, in case that fails for good. `function` is where it is, `step` the one that has registered it.
    `status`: ``registered`` while the job may still succeed, and if it was cancelled; ``not_needed`` if it has succeeded; then ``pending``,
    ``running`` and ``completed``, or ``failed``: what it undoes still stands, and `dead_letter` is open. It is not `current` if the job was
    requeued since.
    """

    function: str
    step: str | None
    status: Literal["registered", "pending", "running", "completed", "failed", "not_needed"]
    registered_at: datetime
    attempts: int = 0
    crashes: int = 0
    next_run_at: datetime | None = None
    ended_at: datetime | None = None
    error: str | None = None
    error_class: str | None = None
    error_type: str | None = None
    stop_reason: StopReason | None = None
    dead_letter: str | None = None
    current: bool = True


class _Read(NamedTuple):
    """What `JobHandle.arefresh` has read: the job, or the key that it holds if it is not kept any more."""

    job: WholeJob | None
    held: HeldKey | None


class JobHandle(Generic[T_co]):
    """
    One job. Each attribute is what is on record now, read from the store when it is asked for. After `arefresh` the attributes
    answer from what that has read.
    """

    __slots__ = ("_at", "_home", "_new", "_number", "_read")

    def __init__(self, home: JobHome, number: int, at_us: int | None = None, *, new: bool | None = None) -> None:
        """`at_us` is when it was enqueued, if another job may get its number."""
        self._home = home
        self._number = number
        self._at = at_us
        self._new = new
        self._read: _Read | None = None  # None: each attribute reads the store

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} of {self._home.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the way to its store: that may hold a password, and elsewhere there may be none.
        return _elsewhere, (self._home.name, self._number, self._at)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JobHandle):
            return False
        same = self._at == other._at or self._at is None or other._at is None
        return same and (self._home.name, self._number) == (other._home.name, other._number)

    def __hash__(self) -> int:
        return hash((self._home.name, self._number))

    @property
    def id(self) -> str:
        """Its number, as people write it."""
        return str(self._number)

    @property
    def new(self) -> bool | None:
        """
        Whether the enqueue that gave this handle has made the job; False if there was one with its unique key. None of a
        handle that comes from elsewhere.
        """
        return self._new

    @property
    def kind(self) -> str:
        """The name of its function, or the one that was given."""
        return self._row().kind

    @property
    def queue(self) -> str:
        """Where it waits, or waited."""
        return self._row().queue

    @property
    def priority(self) -> int:
        """A larger one goes first."""
        return self._row().priority

    @property
    def enqueued_at(self) -> datetime:
        """When it was enqueued, on the clock of the database."""
        return from_us(self._row().enqueued_us)

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Its arguments by name, as its function gets them. The app must know its kind."""
        row = self._row()
        given: dict[str, Any] = self._kind(row).bind_payload(row.payload, row.version)[1]
        return given

    @property
    def run_key(self) -> str | None:
        """The key of the run that the job of a `Flow` works on; None of other jobs."""
        row = self._row()
        return None if served_kind(row.kind) != FLOW else str(self._home.codec.decode(row.payload)["run_key"])

    @property
    def status(self) -> Literal["queued", "processing", "succeeded", "failed", "cancelled"]:
        """Where it is in its life. One that is not kept any more, and still holds its unique key, has succeeded."""
        try:
            return self._row().status
        except JobNotFound:
            if self._held() is not None:
                return "succeeded"
            raise

    @property
    def next_run_at(self) -> datetime | None:
        """When it is due, if it is queued."""
        row = self._row()
        return from_us(row.due_us) if row.status == "queued" else None

    @property
    def attempts(self) -> int:
        """Attempts that count, since it was enqueued or requeued: those given back and snoozed do not."""
        return self._row().attempts

    @property
    def crashes(self) -> int:
        """How many of its workers were lost: they ended, or stood still for longer than their lease."""
        return self._row().crashes

    @property
    def error(self) -> str | None:
        """The newest error, with nothing secret in it."""
        return self._row().error

    @property
    def progress(self) -> tuple[float, float | None, str] | None:
        """
        How far its newest attempt says it is with ``current().progress``: done, total and a note, without secrets. None if it has
        reported nothing.
        """
        return self._row().progress

    @property
    def unique_key(self) -> str | None:
        """The key that no other job of its kind has; of one longer than 1,000 bytes only ``sha256:`` and its hash."""
        key = self._row().unique_key
        return key if key is None else plain_key(key)

    def history(self) -> Sequence[AttemptRow]:
        """All attempts that have ended, the first one first."""
        self._row()
        read = self._whole
        rows = self._home.store.job_attempts(self._number) if read is None else read.attempts
        return [_attempt(row) for row in rows]

    def changes(self) -> Sequence[JobChange]:
        """What operators have done to it, the first change first."""
        self._row()
        read = self._whole
        rows = self._home.store.job_changes(self._number) if read is None else read.changes
        return [
            JobChange(at=from_us(row.at_us), change=row.change, by=row.by or None, reason=row.reason or None)
            for row in rows
        ]

    @property
    def compensation(self) -> Literal["none", "pending", "completed", "failed"]:
        """
        Whether what the job has done was undone since it failed: ``pending`` until all of it is, ``failed`` if something still stands;
        ``none`` if there is nothing to undo.
        """
        return in_all(self._compensations(), self._row().status)

    def compensations(self) -> Sequence[Compensation]:
        """What its code has registered to undo it, the first one first; it is undone in the reverse order."""
        status = self._row().status
        return [_compensation(row, status) for row in self._compensations()]

    def _compensations(self) -> list[CompensationRecord]:
        read = self._whole
        return self._home.store.compensations(self._number) if read is None else read.compensations

    def artifacts(self) -> Sequence[Artifact]:
        """
        What its attempts have kept for people, the first one first. Of a `Flow`: what the steps of its run have, each under the name of
        the step, a space and its own, with the number of the step's attempt.
        """
        row, read = self._row(), self._whole
        found: Iterable[tuple[str, int, int, bool, int]]
        if read is not None:
            found = read.artifacts
        elif served_kind(row.kind) == FLOW:
            found = self._kept_of_run(row)
        else:
            found = self._home.store.artifacts(self._number)
        return [
            Artifact(name=name, attempt=attempt, size=size, cut=cut, kept_at=from_us(kept_us))
            for name, attempt, size, cut, kept_us in found
        ]

    def artifact(self, name: str, *, attempt: int | None = None) -> str | bytes:
        """
        What is kept under this name, of the newest attempt that has kept it or of this one; `LookupError` if nothing is. What steps
        have kept are bytes. It is read from the store, also after `arefresh`.
        """
        row, store = self._row(), self._home.store
        if served_kind(row.kind) == FLOW:
            run = self._run(row)
            data = None if run is None else store.kept_data(run, name, attempt)
            if data is not None:
                return data
        else:
            data = store.artifact(self._number, name, attempt)
        if data is None:
            where = "" if attempt is None else f" of attempt {attempt}"
            known = ", ".join(dict.fromkeys(one.name for one in self.artifacts())) or "nothing"
            message = f"the job {self.id} has kept no {name!r}{where}. It has kept: {known}."
            raise LookupError(message)
        kept: str | bytes = self._home.codec.decode(data)
        return kept

    def _run(self, row: JobRow) -> int | None:
        """The number of the run that the job of a `Flow` works on; None if it was never begun, or is not kept any more."""
        given = self._home.codec.decode(row.payload)
        record = self._home.store.find_run(given["manifest"]["name"], given["run_key"])
        return None if record is None else record.number

    def _kept_of_run(self, row: JobRow) -> list[tuple[str, int, int, bool, int]]:
        run = self._run(row)
        return [] if run is None else self._home.store.kept_of_run(run)

    async def arefresh(self) -> Self:
        """
        Read everything once, in a thread, while the event loop goes on. From then on the attributes answer from that, and block
        nothing. `JobNotFound` if there is no such job.
        """
        await beside(partial(refresh, [self]))
        _ = self.status
        return self

    def result(self, timeout: Seconds | None = None) -> T_co:
        """
        What the job returned; waits for its end, at most `timeout` seconds. `JobFailed` if it failed or was cancelled,
        `ResultTimeoutError` if it has not ended in time, `ResultLost` if there is no result to be had. `ConfigurationError` in the
        event loop of a worker, which it would block.
        """
        clock = here.get().clock
        waits = Waits(timeout, clock.monotonic())
        while (row := self._look(waits)).status in {"queued", "processing"}:
            pause = waits.next(self, row, clock.monotonic())
            refuse_in_loop()
            clock.sleep(pause)
        return self._result(row)

    async def aresult(self, timeout: Seconds | None = None) -> T_co:  # noqa: ASYNC109 - as `result` has it
        """As `result`."""
        clock = here.get().clock
        waits = Waits(timeout, clock.monotonic())
        while (row := await beside(lambda: self._look(waits))).status in {"queued", "processing"}:
            await clock.asleep(waits.next(self, row, clock.monotonic()))
        return await beside(lambda: self._result(row))

    def _look(self, waits: Waits) -> JobRow:
        """As `_newest_row`, and no longer than its caller waits."""
        return waits.look(self._newest_row, f"the state of the job {self.id}")

    def _take(self, job: WholeJob | None) -> None:
        """Answer from this from now on; None: the job does not exist."""
        if job is not None and served_kind(job.row.kind) == FLOW:
            job = job._replace(artifacts=[ArtifactRecord(*one) for one in self._kept_of_run(job.row)])
        self._read = None
        self._read = _Read(job, self._held() if job is None else None)

    @property
    def _whole(self) -> WholeJob | None:
        """What `arefresh` has read of it; None if it has read nothing."""
        return None if self._read is None else self._read.job

    def _held(self) -> HeldKey | None:
        """The unique key that it holds although it may not be kept any more."""
        if self._at is not None:  # another job may have its number
            return None
        return self._home.store.held_key(self._number) if self._read is None else self._read.held

    def _row(self) -> JobRow:
        if self._read is None:
            return self._there(self._home.store.job(self._number))
        return self._there(None if self._read.job is None else self._read.job.row)

    def _newest_row(self) -> JobRow:
        """As `_row`, whatever `arefresh` has read before. What has succeeded stays so."""
        if self._whole is not None and self._whole.row.status == "succeeded":
            return self._row()
        return self._there(self._home.store.job(self._number))

    def _there(self, row: JobRow | None) -> JobRow:
        if row is None and (held := self._held()) is not None:
            message = (
                f"the job {self._number} ({held.kind}) has succeeded, at {from_us(held.ended_us):%Y-%m-%d %H:%M:%S} UTC, and is not kept any "
                f"more; its unique key is held until {from_us(held.until_us):%Y-%m-%d %H:%M:%S} UTC."
            )
            raise JobNotFound(message)
        if row is None or self._at not in {None, row.enqueued_us}:
            message = (
                f"there is no job {self._number} in the store of {self._home.name!r}: the transaction that it was enqueued in "
                "is not committed or was rolled back, or the job ended so long ago that it is not kept any more."
            )
            raise JobNotFound(message)
        return row

    def _result(self, row: JobRow) -> T_co:
        if self._whole is not None and self._whole.row is not row:
            refresh([self])  # its attributes must not contradict its end
        if row.status != "succeeded":
            raise self._failure(row)
        if row.result is None:
            return None  # type: ignore[return-value]  # what a function returns that returns nothing
        try:
            return self._kind(row).result_in(self._home, row.result)  # type: ignore[no-any-return]
        except Lost as error:
            message = f"the job {self.id} ({row.kind}) has succeeded, but its result is lost: {error}"
            raise ResultLost(message, job=self) from None

    def _kind(self, row: JobRow) -> Job[..., Any]:
        job = job_of(self._home, row.kind)
        if job is None:
            message = f"expected the job {row.kind!r} to be known to the app {self._home.name!r}. Import the module that makes it first."
            raise ConfigurationError(message)
        return job

    def _failure(self, row: JobRow) -> JobFailed:
        said = "was cancelled" if row.status == "cancelled" else "failed"
        text = f": {row.error}" if row.error else "."
        failed = JobFailed(
            f"the job {self.id} ({row.kind}) {said}{text}",
            job=self,
            error_class=row.error_class,
            stop_reason=row.stop_reason,
        )
        if served_kind(row.kind) == FLOW:
            failed.add_note(f"run key: {self.run_key}")
        history = self.history()
        lines = [f"  {attempt}" for attempt in history[-_SHOWN:]]
        what = f"{counted(len(history), 'attempt')} on record" + (
            f", the last {_SHOWN}:" if len(history) > _SHOWN else ":"
        )
        kind = [] if row.error_class is None else [f"error class: {row.error_class}"]
        why = [] if row.stop_reason is None else [f"no further attempt: {row.stop_reason}"]
        failed.add_note(
            "\n".join([*kind, *why, what, *lines]) if history else "\n".join([*kind, *why, "no attempt on record"])
        )
        if standing := [one.function for one in self.compensations() if one.current and one.status == "failed"]:
            failed.add_note(f"could not be undone, and still stands: {', '.join(standing)}")
        if history and history[-1].traceback is not None:
            failed.add_note(f"in its last attempt:\n{history[-1].traceback.rstrip()}")
        return failed


class _Elsewhere:
    """The app of a handle that has come from another process, or is a copy."""

    kinds: ClassVar[dict[str, Any]] = {}

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        message = (
            f"this handle was copied without its store. Ask the app {self.name!r} for the job: app.jobs.get(handle.id)."
        )
        raise ConfigurationError(message)


def _elsewhere(name: str, number: int, at_us: int | None = None) -> JobHandle[Any]:
    home: Any = _Elsewhere(name)
    return JobHandle(home, number, at_us)


def _record_of(handle: JobHandle[Any]) -> tuple[JobHome, int, int | None]:
    """Its app, its number, and when it was enqueued if another job may have that number."""
    return handle._home, handle._number, handle._at  # noqa: SLF001 - of this module


def refresh(handles: Sequence[JobHandle[Any]]) -> None:
    """Read these jobs of one app: all that their attributes say, and whether they exist."""
    for first in range(0, len(handles), _BATCH):
        batch = handles[first : first + _BATCH]
        found = _record_of(batch[0])[0].store.whole_jobs(_record_of(handle)[1] for handle in batch)
        for handle in batch:
            handle._take(found.get(_record_of(handle)[1]))  # noqa: SLF001 - of this module


def handles_of(home: JobHome, jobs: Iterable[JobHandle[Any]]) -> list[JobHandle[Any]]:
    """These handles; `ConfigurationError` if one of them is not that of a job of this app, in this store."""
    handles = list(jobs)
    for number, job in enumerate(handles):
        given: object = job
        if isinstance(given, JobHandle):
            its = _record_of(given)[0]
            if its is home or (its.name, its.store_url) == (home.name, home.store_url):
                continue
            shown = f"{given!r} in another store" if its.name == home.name else repr(given)
        else:
            shown = a_value_of(given) + ". app.jobs.get(id) gives it"
        message = f"expected jobs[{number}] to be the handle of a job of the app {home.name!r}, got: {shown}."
        raise ConfigurationError(message)
    return handles


def unfinished(handles: Sequence[JobHandle[Any]]) -> list[JobHandle[Any]]:
    """Those that have not ended, found in one statement; `JobNotFound` names those that do not exist."""
    if not handles:
        return []
    states = _record_of(handles[0])[0].store.job_states({_record_of(handle)[1] for handle in handles})
    left, missing = list[JobHandle[Any]](), list[JobHandle[Any]]()
    for handle in handles:
        home, number, at = _record_of(handle)
        ended, enqueued = states.get(number, (True, None))
        if enqueued is None or at not in {None, enqueued}:
            if at is not None or home.store.held_key(number) is None:  # else it has succeeded
                missing.append(handle)
        elif not ended:
            left.append(handle)
    _refuse_missing(missing)
    return left


def all_read(handles: list[JobHandle[Any]]) -> list[JobHandle[Any]]:
    """The same handles with everything read; `JobNotFound` names those that do not exist."""
    refresh(handles)
    _refuse_missing([handle for handle in handles if handle._read == _Read(None, None)])  # noqa: SLF001 - of this module
    return handles


def _refuse_missing(missing: Sequence[JobHandle[Any]]) -> None:
    if missing:
        names = ", ".join(job.id for job in missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        message = (
            f"{counted(len(missing), 'job')} that you wait for cannot be found in the store: {names}. The transaction of the enqueue is not "
            "committed or was rolled back, or the job ended so long ago that it is not kept any more."
        )
        raise JobNotFound(message)


def refuse_in_loop() -> None:
    """Refuse a wait that blocks the loop of a worker: no job would go on there, perhaps not the one that is waited for."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    if loop in workers_in:
        message = (
            "expected no wait for the result of a job in the event loop of a worker, which it would block, got: result(). "
            "Use `await handle.aresult()`."
        )
        raise ConfigurationError(message)


class Waits:
    """How long to wait for the next look at jobs, until the time is up."""

    def __init__(self, timeout: Seconds | None, now: float) -> None:
        check = Check()
        seconds = None if timeout is None else check.seconds("timeout", timeout, 0.0)
        check.raise_if_any()
        self.timeout = seconds
        self._until = float("inf") if seconds is None else now + seconds
        self._wait = _FIRST_LOOK

    def look(self, read: Callable[[], R], what: str) -> R:
        """What this reads. While the store is away it is asked again, no longer than the caller waits."""
        if self.timeout is None or here.get().clock.virtual:
            return read()
        token = answer_by.set(max(self._until, REAL.clock.monotonic() + _LAST_ANSWER_S))
        try:
            while True:
                try:
                    return read()
                except StoreUnavailable as error:
                    left = self._until - REAL.clock.monotonic()
                    if left <= 0:
                        raise ResultTimeoutError(f"{what} is unknown after {self.timeout:g} s: {error}") from None
                REAL.clock.sleep(min(left, _LAST_LOOK))
        finally:
            answer_by.reset(token)

    def next(self, job: JobHandle[Any], row: JobRow, now: float) -> float:
        """Seconds to wait for this job."""
        due = f", due at {from_us(row.due_us):%Y-%m-%d %H:%M:%S} UTC" if row.status == "queued" else ""
        return self.pause(now, f"the job {job.id} ({row.kind}) has not", f": it is {row.status}{due}.")

    def pause(self, now: float, who: str, rest: str = ".") -> float:
        """Seconds to wait; `ResultTimeoutError` if the time is up."""
        left = self._until - now
        if left <= 0:
            message = f"{who} ended within {self.timeout:g} s{rest}"
            raise ResultTimeoutError(message)
        wait, self._wait = self._wait, min(_LAST_LOOK, self._wait * _GROWTH)
        return min(wait, left)


def _attempt(row: JobAttempt) -> AttemptRow:
    return AttemptRow(
        number=row.number,
        started_at=from_us(row.started_us),
        duration=row.took_us / 1_000_000,
        outcome=row.outcome,
        error=row.error,
        error_class=row.error_class,
        error_type=row.error_type,
        stop_reason=row.stop_reason,
        worker=row.worker,
        next_run_at=None if row.next_run_us is None else from_us(row.next_run_us),
        traceback=row.traceback,
    )


def _compensation(row: CompensationRecord, status: str) -> Compensation:
    return Compensation(
        function=row.call,
        step=row.step,
        status=row.status(status),
        registered_at=from_us(row.registered_us),
        attempts=row.attempts,
        crashes=row.crashes,
        next_run_at=None if row.due_us is None else from_us(row.due_us),
        ended_at=None if row.ended_us is None else from_us(row.ended_us),
        error=row.error,
        error_class=row.error_class,
        error_type=row.error_type,
        stop_reason=row.stop_reason,
        dead_letter=row.letter,
        current=not row.closed,
    )


async def beside(work: Callable[[], R]) -> R:
    """Do what blocks in a thread, while the event loop goes on."""
    trio = in_trio()
    if trio is not None:
        return await trio.to_thread.run_sync(work)  # type: ignore[no-any-return]
    loop = asyncio.get_running_loop()
    pool = _pools.get(loop)
    if pool is None:
        pool = _pools[loop] = Pool(_THREADS, thread_name_prefix="outlast-store")
    return await loop.run_in_executor(pool, copy_context().run, work)
