"""
`Jobs`: what operators do with the jobs of an app.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError
from outlast.jobs.handle import JobHandle, Waits, all_read, beside, handles_of, refuse_in_loop, unfinished
from outlast.kernel.clock import ahead_us, here
from outlast.kernel.redact import sanitise
from outlast.observe.figures import figures_of
from outlast.settings.checks import Check, Shown, a_value_of, show
from outlast.work.leases import this_user

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from typing import Literal

    from outlast.jobs.handle import JobHome
    from outlast.kernel.aliases import Seconds
    from outlast.observe.figures import JobFigures
    from outlast.store.records import WorkerState

STATUSES = ("queued", "processing", "succeeded", "failed", "cancelled")
DAY = 86400.0  # seconds
_BY_KIND: tuple[Literal["kind"], ...] = ("kind",)
_PAGE = 200
_LARGEST_ID = 2**63 - 1
_STATES = "the state of the jobs"
_STAYS = {
    "queued": "It is in the queue already.",
    "processing": "A worker is at it; cancel it first.",
    "succeeded": "What has succeeded is not done again: enqueue it anew, with another unique key if it has one.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """
    One queue: how many jobs are due (`queued`), are due later (`scheduled`) and are being worked on (`processing`).
    One that timed out while its code still runs is due, or due later, and starts when that code has ended.
    `oldest_wait` is how long the oldest of those that may start now has waited since it was due, in seconds.
    `undo` are jobs that have ended and are to be undone, or are being undone.
    """

    queue: str
    queued: int
    scheduled: int
    processing: int
    paused: bool
    oldest_wait: float | None
    undo: int = 0


class Jobs:
    """The jobs of an app: find them, cancel them, put them back into the queue; pause queues."""

    def __init__(self, home: JobHome) -> None:
        self._home = home

    def get(self, id: str | int, /) -> JobHandle[Any]:  # noqa: A002 - what it is called everywhere
        """The job of this id; `JobNotFound` if there is none."""
        handle: JobHandle[Any] = JobHandle(self._home, _number(id))
        _ = handle.status
        return handle

    async def aget(self, id: str | int, /) -> JobHandle[Any]:  # noqa: A002 - as above
        """As `get`, in a thread, with everything read: its attributes block nothing. `await handle.arefresh()` reads again."""
        return await JobHandle[Any](self._home, _number(id)).arefresh()

    def find(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        status: str | None = None,
        unique_key: str | None = None,
    ) -> Iterator[JobHandle[Any]]:
        """The newest first, read as they are asked for."""
        check = Check()
        if status is not None:
            check.choice("status", status, STATUSES)
        for field, value in (("queue", queue), ("kind", kind), ("unique_key", unique_key)):
            if value is not None:
                check.name(field, value)
        check.raise_if_any()
        return self._found(queue, kind, status, unique_key)

    def _found(
        self, queue: str | None, kind: str | None, status: Any, unique_key: str | None
    ) -> Iterator[JobHandle[Any]]:
        after: int | None = None
        while rows := self._home.store.jobs(
            queue=queue, kind=kind, status=status, unique_key=unique_key, after=after, limit=_PAGE
        ):
            for row in rows:
                yield JobHandle(self._home, row.id)
            after = rows[-1].id

    def requeue(self, id: str, /, *, reason: str = "", from_start: bool = False) -> JobHandle[Any]:  # noqa: A002 - as above
        """
        Put a failed or cancelled job back into the queue, with fresh attempts; it keeps its id, and its history goes
        on. With `from_start` all of its steps are done again. Who did it and the `reason` are among its `changes`.
        """
        handle = self.get(id)
        how: dict[str, Any] = {"by": this_user(), "reason": _reason(reason), "from_start": from_start}
        if not self._home.store.requeue_job(int(handle.id), **how, ahead_us=ahead_us()):
            now = handle.status
            message = f"expected the job {handle.id} to be failed or cancelled, got: {now}. {_STAYS.get(now, '')}"
            raise ConfigurationError(message.strip())
        return handle

    def cancel(self, id: str, /, *, reason: str = "") -> bool:  # noqa: A002 - as above
        """
        Ask for a job to be cancelled; whether that was asked, False if it has ended already.

        A queued job is cancelled when this returns. The worker of a running one is asked to stop: blocking code cannot
        be stopped and may still succeed, so look at `status`. Who asked and the `reason` are among its `changes`.
        """
        number, said = int(self.get(id).id), _reason(reason)
        return self._home.store.cancel_job(number, by=this_user(), reason=said, ahead_us=ahead_us())

    async def arequeue(self, id: str, /, *, reason: str = "", from_start: bool = False) -> JobHandle[Any]:  # noqa: A002 - as above
        """As `requeue`, in a thread, with everything read as `aget` does."""
        handle = await beside(lambda: self.requeue(id, reason=reason, from_start=from_start))
        return await handle.arefresh()

    async def acancel(self, id: str, /, *, reason: str = "") -> bool:  # noqa: A002 - as above
        """As `cancel`, in a thread."""
        return await beside(lambda: self.cancel(id, reason=reason))

    def wait_all(
        self, jobs: Iterable[JobHandle[Any]], /, *, timeout: Seconds | None = None
    ) -> Sequence[JobHandle[Any]]:
        """
        Wait until all of these jobs have succeeded, failed or were cancelled, at most `timeout` seconds. The same handles, in the same
        order, with everything read as `arefresh` does: their attributes and `result` say how each has ended. `ResultTimeoutError` says
        how many are left, `JobNotFound` which jobs are not kept any more.
        """
        handles = handles_of(self._home, jobs)
        clock = here.get().clock
        waits = Waits(timeout, clock.monotonic())
        left = waits.look(partial(unfinished, handles), _STATES)
        while left:
            pause = waits.pause(clock.monotonic(), f"{len(left):,} of {len(handles):,} jobs have not")
            refuse_in_loop()
            clock.sleep(pause)
            left = waits.look(partial(unfinished, left), _STATES)
        return all_read(handles)

    async def await_all(
        self,
        jobs: Iterable[JobHandle[Any]],
        /,
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - as `wait_all` has it
    ) -> Sequence[JobHandle[Any]]:
        """As `wait_all`, with its reading in a thread."""
        handles = handles_of(self._home, jobs)
        clock = here.get().clock
        waits = Waits(timeout, clock.monotonic())
        left = await beside(partial(waits.look, partial(unfinished, handles), _STATES))
        while left:
            await clock.asleep(waits.pause(clock.monotonic(), f"{len(left):,} of {len(handles):,} jobs have not"))
            left = await beside(partial(waits.look, partial(unfinished, left), _STATES))
        return await beside(lambda: all_read(handles))

    def undo(self, id: str, /, *, reason: str = "") -> JobHandle[Any]:  # noqa: A002 - as above
        """
        Have undone what could not be undone of a failed job, or all that a cancelled one has registered; workers do it. Who did it and
        the `reason` are among its `changes`.
        """
        handle = self.get(id)
        if not self._home.store.undo_job(int(handle.id), by=this_user(), reason=_reason(reason), ahead_us=ahead_us()):
            undone = {
                "none": "nothing was registered",
                "pending": "a worker is to undo it already",
                "completed": "all of it is undone",
            }
            status, how = handle.status, undone.get(handle.compensation, "something of it is undone now")
            message = (
                f"expected the job {handle.id} to be failed with something that could not be undone, or cancelled with something registered, "
                f"got: {status}{f', and {how}' if status in {'failed', 'cancelled'} else ''}."
            )
            raise ConfigurationError(message)
        return handle

    def pause(self, queue: str, /) -> None:
        """Start no further job of this queue, on any worker, until `resume`. What has begun goes on."""
        self._home.store.pause_queue(_queue(queue))

    def resume(self, queue: str, /) -> None:
        """Start jobs of this queue again."""
        self._home.store.resume_queue(_queue(queue))

    def stats(self) -> Sequence[QueueStats]:
        """Every queue that has jobs that have not ended or are to be undone, or is paused."""
        return [
            QueueStats(
                queue=row.queue,
                queued=row.queued,
                scheduled=row.scheduled,
                processing=row.processing,
                paused=row.paused,
                oldest_wait=None if row.oldest_wait_us is None else row.oldest_wait_us / 1_000_000,
                undo=row.undo,
            )
            for row in self._home.store.queue_stats(ahead_us=ahead_us())
        ]

    def figures(
        self, *, window: Seconds = DAY, by: Collection[Literal["kind", "queue"]] = _BY_KIND
    ) -> Sequence[JobFigures]:
        """
        How the jobs did that have ended within the last `window` seconds: a `JobFigures` for each kind, or for each
        kind, queue or both that `by` names; with nothing named, one of all of them, if there are any.
        """
        check = Check()
        seconds = check.seconds("window", window, DAY, positive=True)
        kept = self._home.retention_days["jobs"]
        if kept is not None and seconds > kept * DAY:
            check.add(
                "window",
                f"at most {kept} days",
                Shown(f"{seconds / DAY:g} days"),
                'Jobs that succeeded are not kept for longer, and every share would be too large. See retention_days["jobs"].',
            )
        for name in by:
            check.choice("by", name, ("kind", "queue"))
        if isinstance(by, str):
            check.add("by", "a list of names", by, f"Use [{by!r}].")
        check.raise_if_any()
        tallies = self._home.store.job_tallies(round(seconds * 1e6), ahead_us=ahead_us())
        return figures_of(tallies, kinds="kind" in by, queues="queue" in by)

    def workers(self) -> Sequence[WorkerState]:
        """The workers that hold a lease, with how many jobs each is at."""
        return self._home.store.workers()


def _number(id_: object) -> int:
    if isinstance(id_, int) and not isinstance(id_, bool) and 0 < id_ <= _LARGEST_ID:
        return id_
    if isinstance(id_, str) and id_.isascii() and id_.isdecimal() and 0 < int(id_[:20]) <= _LARGEST_ID:
        return int(id_)
    message = f"expected the id of a job, a number such as '17', got: {show(id_)}."
    raise ConfigurationError(message)


def _reason(reason: object) -> str:
    if not isinstance(reason, str):
        message = f"expected reason to be a text, got: {a_value_of(reason)}."
        raise ConfigurationError(message)
    return sanitise(reason)


def _queue(queue: object) -> str:
    check = Check()
    name = check.name("queue", queue)
    check.raise_if_any()
    return name
