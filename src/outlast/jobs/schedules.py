"""
What a worker does for jobs that have a schedule: it looks when the next tick is due, and does what `cron` says.

Every worker that knows such a job looks, whichever queues it serves, without a leader: the store lets one of them have
each tick. In a thread of its own, so that neither jobs nor retention hold a tick up.
"""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from outlast.isolation.threads import start_thread
from outlast.jobs.cron import FRESH, step
from outlast.kernel.clock import ahead_us
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text
from outlast.observe import emit, listening
from outlast.store.records import from_us
from outlast.store.schedules import ScheduleChange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outlast.jobs.cron import Step
    from outlast.jobs.job import Job
    from outlast.store import Store
    from outlast.store.records import Enqueued, ScheduleRow

_AGAIN = 5.0  # seconds after which a store that is away is asked again


class Scheduler:
    """Enqueues the jobs of an app that are due by their schedules."""

    def __init__(self, store: Store, jobs: Mapping[str, Job[..., Any]]) -> None:
        self._store = store
        self._jobs = {kind: job for kind, job in sorted(jobs.items()) if job.schedule is not None}
        self._began_us: int | None = None  # on the database's clock
        self._apart: set[str] = set()  # kinds that are told to be declared otherwise
        self._failed = False
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look now, and again and again until `close`; without a job that has a schedule, never."""
        if not self._jobs:
            return
        wait = self._surely_look()
        thread = threading.Thread(
            target=copy_context().run, args=(self._run, wait), daemon=True, name="outlast-schedules"
        )
        start_thread(thread)
        self._thread = thread

    def close(self) -> None:
        """Look no more. Blocks until what is under way is done."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self, wait: float) -> None:
        while not self._end.wait(wait):
            wait = self._surely_look()

    def _surely_look(self) -> float:
        try:
            wait = self.look()
        except Exception as error:  # noqa: BLE001 - the store may be away; ticks of that time are settled afterwards
            if not self._failed:
                warn("schedules cannot be looked at: %s", error_text(error))
            self._failed = True
            return _AGAIN
        self._failed = False
        return wait

    def look(self) -> float:
        """Enqueue what is due; the seconds until the next look."""
        rows, now_us = self._store.schedules(ahead_us=ahead_us())
        if self._began_us is None:
            self._began_us = now_us
        known = {row.kind: row for row in rows}
        following: list[int] = []
        for kind, job in self._jobs.items():
            row = known.get(kind)
            # Most looks find nothing to do: then nobody is made to wait for a transaction that writes.
            if row is None or self._step(job, row, now_us) is not None:
                row = self._change(job)
            elif not self._mine(job, row):
                self._stand_back(job, row)
            if row is not None and row.next_us is not None:
                following.append(row.next_us)
        wait = FRESH if not following else (min(following) - now_us) / 1e6
        return min(max(wait, 0.0), FRESH)

    def _step(self, job: Job[..., Any], row: ScheduleRow | None, now_us: int, *, waits: bool = False) -> Step | None:
        assert job.schedule is not None  # noqa: S101 - only those are kept
        return step(job.schedule, job.kind, row, now_us=now_us, began_us=self._began_us or now_us, waits=waits)

    def _change(self, job: Job[..., Any]) -> ScheduleRow | None:
        before: ScheduleRow | None = None
        decided: Step | None = None

        def decide(row: ScheduleRow | None, waits: bool, now_us: int) -> ScheduleChange | None:  # noqa: FBT001 - the store's
            nonlocal before, decided
            before, decided = row, self._step(job, row, now_us, waits=waits)
            if decided is None:
                return None
            return ScheduleChange(
                decided.row, None if decided.tick_us is None else job.new_of_tick(from_us(decided.tick_us))
            )

        made = self._store.change_schedule(job.kind, decide, ahead_us=ahead_us())
        if decided is None:
            return before
        self._apart.discard(job.kind)
        self._tell(job, before, decided, made)
        return decided.row

    def _mine(self, job: Job[..., Any], row: ScheduleRow) -> bool:
        return job.schedule == (row.expression, row.timezone, row.missed)

    def _stand_back(self, job: Job[..., Any], row: ScheduleRow) -> None:
        if job.kind not in self._apart:
            self._apart.add(job.kind)
            warn(
                "%s has the schedule %r (%s) here and %r (%s) on a worker that began later: that one counts",
                *(job.kind, *_said(job.schedule), *_said(row[1:3])),
            )

    def _tell(self, job: Job[..., Any], before: ScheduleRow | None, done: Step, made: Enqueued | None) -> None:
        if done.clock_set_back:
            warn("the database's clock was set back: the schedule of %s goes on from now", job.kind)
        if not listening():
            return
        from outlast.observe.events import JobScheduled, ScheduleChanged, TicksMissed

        who: dict[str, Any] = {"kind": job.kind, "queue": job.queue}
        if before is None or not self._mine(job, before):
            row = done.row
            was = None if before is None else f"{before.expression} ({before.timezone})"
            emit(ScheduleChanged(**who, expression=row.expression, timezone=row.timezone, before=was))
        if made is not None and done.tick_us is not None:
            emit(JobScheduled(**who, job_id=str(made.id), tick_at=from_us(done.tick_us)))
        if done.missed_us is not None:
            first, last = done.missed_us
            stands = made.id if made is not None else done.row.job if done.waits else None
            by = None if stands is None else str(stands)
            emit(TicksMissed(**who, first_at=from_us(first), last_at=from_us(last), job_id=by, job_waits=done.waits))


def _said(schedule: Any) -> tuple[str, str]:
    return schedule[0], schedule[1]
