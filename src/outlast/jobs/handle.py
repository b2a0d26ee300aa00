"""
`JobHandle`: what is on record of one job, read when it is asked for; and how to wait for its end.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from outlast.errors import ConfigurationError, OutlastError
from outlast.kernel.clock import ahead_us as ahead_us  # noqa: PLC0414 - the worker finds it here
from outlast.kernel.clock import here, in_trio
from outlast.kernel.wording import counted
from outlast.settings.checks import Check
from outlast.store.codec import Lost
from outlast.store.records import from_us

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from typing import Literal

    from outlast.jobs.job import Job
    from outlast.kernel.aliases import Seconds, StopReason
    from outlast.store import Store
    from outlast.store.codec import Codec
    from outlast.store.records import JobAttempt, JobRow

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

        def has_pipeline(self, name: str) -> bool: ...


T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")

_FIRST_LOOK, _LAST_LOOK, _GROWTH = 0.005, 0.5, 1.5  # seconds between two looks at a job that is waited for
_SHOWN = 20  # attempts in a note


class JobNotFound(OutlastError, LookupError):
    """
    There is no such job in the store: the transaction that it was enqueued in is not committed or was rolled back, or
    the job has ended so long ago that it is not kept any more.
    """


class ResultTimeoutError(OutlastError, TimeoutError):
    """A job has not ended in the time that its result was waited for. The job itself goes on."""


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
    `stop_reason` why there was none.
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

    def __str__(self) -> str:
        error = "" if self.error is None else f": {self.error}"
        then = "" if self.next_run_at is None else f"; next run at {self.next_run_at:%Y-%m-%d %H:%M:%S} UTC"
        why = "" if self.stop_reason is None else f"; no further attempt: {self.stop_reason}"
        return f"attempt {self.number} {self.outcome} after {self.duration:.3g} s{error}{then}{why}"


class JobHandle(Generic[T_co]):
    """One job. Each attribute is what is on record now, read from the store when it is asked for."""

    __slots__ = ("_at", "_home", "_number")

    def __init__(self, home: JobHome, number: int, at_us: int | None = None) -> None:
        """`at_us` is when it was enqueued, if another job may get its number."""
        self._home = home
        self._number = number
        self._at = at_us

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
    def kind(self) -> str:
        """The name of its function, or the one that was given."""
        return self._row().kind

    @property
    def queue(self) -> str:
        """Where it waits, or waited."""
        return self._row().queue

    @property
    def status(self) -> Literal["queued", "processing", "succeeded", "failed", "cancelled"]:
        """Where it is in its life."""
        return self._row().status

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
        """How many of its workers died."""
        return self._row().crashes

    @property
    def error(self) -> str | None:
        """The newest error, with nothing secret in it."""
        return self._row().error

    @property
    def unique_key(self) -> str | None:
        """The key that no other job of its kind has."""
        return self._row().unique_key

    def history(self) -> Sequence[AttemptRow]:
        """All attempts that have ended, the first one first."""
        self._row()
        return [_attempt(row) for row in self._home.store.job_attempts(self._number)]

    def result(self, timeout: Seconds | None = None) -> T_co:
        """
        What the job returned; waits for its end, at most `timeout` seconds. `JobFailed` if it failed or was cancelled,
        `ResultTimeoutError` if it has not ended in time.
        """
        clock = here.get().clock
        waits = _Waits(timeout, clock.monotonic())
        while (row := self._row()).status in {"queued", "processing"}:
            clock.sleep(waits.next(self, row, clock.monotonic()))
        return self._result(row)

    async def aresult(self, timeout: Seconds | None = None) -> T_co:  # noqa: ASYNC109 - as `result` has it
        """As `result`."""
        clock = here.get().clock
        waits = _Waits(timeout, clock.monotonic())
        while (row := await beside(self._row)).status in {"queued", "processing"}:
            await clock.asleep(waits.next(self, row, clock.monotonic()))
        return await beside(lambda: self._result(row))

    def _row(self) -> JobRow:
        row = self._home.store.job(self._number)
        if row is None or self._at not in {None, row.enqueued_us}:
            message = (
                f"there is no job {self._number} in the store of {self._home.name!r}: the transaction that it was enqueued in "
                "is not committed or was rolled back, or the job ended so long ago that it is not kept any more."
            )
            raise JobNotFound(message)
        return row

    def _result(self, row: JobRow) -> T_co:
        if row.status != "succeeded":
            raise self._failure(row)
        if row.result is None:
            return None  # type: ignore[return-value]  # what a function returns that returns nothing
        job = self._home.kinds.get(row.kind)
        if job is None:
            message = f"expected the job {row.kind!r} to be known to the app {self._home.name!r}. Import the module that makes it first."
            raise ConfigurationError(message)
        try:
            return job.decode_result(row.result)  # type: ignore[no-any-return]
        except Lost as error:
            message = f"the job {self.id} ({row.kind}) has succeeded, and its result cannot be had: {error}"
            raise ConfigurationError(message) from None

    def _failure(self, row: JobRow) -> JobFailed:
        said = "was cancelled" if row.status == "cancelled" else "failed"
        text = f": {row.error}" if row.error else "."
        failed = JobFailed(
            f"the job {self.id} ({row.kind}) {said}{text}",
            job=self,
            error_class=row.error_class,
            stop_reason=row.stop_reason,
        )
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


class _Waits:
    """How long to wait for the next look at a job, until the time is up."""

    def __init__(self, timeout: Seconds | None, now: float) -> None:
        check = Check()
        seconds = None if timeout is None else check.seconds("timeout", timeout, 0.0)
        check.raise_if_any()
        self._timeout = seconds
        self._until = float("inf") if seconds is None else now + seconds
        self._wait = _FIRST_LOOK

    def next(self, job: JobHandle[Any], row: JobRow, now: float) -> float:
        left = self._until - now
        if left <= 0:
            due = f", due at {from_us(row.due_us):%Y-%m-%d %H:%M:%S} UTC" if row.status == "queued" else ""
            message = (
                f"the job {job.id} ({row.kind}) has not ended within {self._timeout:g} s: it is {row.status}{due}."
            )
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
    )


async def beside(work: Callable[[], R]) -> R:
    """Do what blocks in a thread, while the event loop goes on."""
    trio = in_trio()
    if trio is not None:
        return await trio.to_thread.run_sync(work)  # type: ignore[no-any-return]
    return await asyncio.to_thread(work)
