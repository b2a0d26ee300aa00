"""
What a worker tells: events, made only if somebody listens.

Nearly all jobs succeed, thousands in a second: of those nothing is told unless a hook, a test or the debug level of the
log wants it. A job that failed for good is one line at ERROR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from outlast import observe
from outlast.kernel.log import heard as logged
from outlast.kernel.log import logger
from outlast.observe import emit
from outlast.store.records import from_us, pipeline_of_kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlast.jobs.running import ActiveJob
    from outlast.store.compensations import CompensationEnd, CompensationRecord, UndoneJob
    from outlast.store.records import ClaimedJob, DeadLetterRow, JobEnd, Orphan, Rescue, Rescued


class SweptFailure(NamedTuple):
    """A job that fails for good because its workers have ended while they ran it."""

    orphan: Orphan
    rescue: Rescue
    max_attempts: int
    took_us: int


def loud() -> bool:
    """Whether anybody wants to hear of every job."""
    return bool(observe._hooks or observe.captures.get() or (logged() and logger().isEnabledFor(10)))  # noqa: SLF001 - one bus


def heard() -> bool:
    """Whether anybody wants to hear of jobs that fail."""
    return observe.listening()


def claimed(job: ClaimedJob, max_attempts: int, worker: str) -> None:
    """A job was claimed by this worker."""
    from outlast.observe.events import JobClaimed

    emit(JobClaimed(**_who(job, max_attempts), worker=worker))


def kept(active: ActiveJob, artifact: str, size: int) -> None:
    """The code of a job has kept something for people."""
    from outlast.observe.events import ArtifactKept

    emit(ArtifactKept(**_who(active.job, active.kind.policy.max_attempts), artifact=artifact, size=size))


def ended(active: ActiveJob, end: JobEnd, state: str) -> None:
    """How an attempt ended is on record."""
    from outlast.observe import events

    job = active.job
    who = _who(job, active.kind.policy.max_attempts)
    took = end.took_us / 1e6
    if state == "succeeded":
        waited = (end.started_us + end.took_us - job.enqueued_us) / 1e6
        emit(events.JobSucceeded(**who, duration=took, since_enqueued=max(0.0, waited)))
        return
    error: dict[str, Any] = {
        "error": end.error or "",
        "error_type": end.error_type or "",
        "error_class": end.error_class or "",
    }
    if state in {"failed", "cancelled"}:
        # An attempt that would have been followed by another one has no reason of its own.
        reason = "cancelled" if state == "cancelled" else end.stop_reason
        emit(events.JobFailed(**who, **error, duration=took, reason=reason, traceback=end.traceback))
        if end.letter is not None and state == "failed":
            _letter(job, end.letter, error)
        return
    due = from_us(end.started_us + end.took_us + end.delay_us)  # the database's clock, as all that is on record
    delay = end.delay_us / 1e6
    how: dict[str, Any] = {"outcome": end.outcome, "traceback": end.traceback}
    emit(events.JobRequeued(**who, **error, **how, duration=took, delay=delay, next_run_at=due))


def rescued(app: str, jobs: Sequence[Rescued], failures: Mapping[int, SweptFailure]) -> None:
    """A sweep took jobs from workers that are gone; `failures` are those that it would let fail, by id."""
    if not jobs or not heard():
        return
    from outlast.observe.events import JobFailed, WorkerLost

    for worker in dict.fromkeys(job.owner for job in jobs):
        taken = [job for job in jobs if job.owner == worker]
        emit(
            WorkerLost(
                app=app,
                worker=worker,
                jobs=len(taken),
                failed=sum(job.state == "failed" for job in taken),
                job_ids=tuple(str(job.id) for job in taken[:20]),
            )
        )

    for one in jobs:
        if one.state != "failed" or one.id not in failures:
            continue
        orphan, rescue, max_attempts, took_us = failures[one.id]
        error: dict[str, Any] = {
            "error": rescue.error or "",
            "error_type": rescue.error_type or "",
            "error_class": rescue.error_class or "",
        }
        emit(JobFailed(**_who(orphan, max_attempts), **error, duration=took_us / 1e6, reason=rescue.stop_reason))
        if rescue.letter is not None:
            _letter(orphan, rescue.letter, error)


def undoing(what: str, job: UndoneJob, one: CompensationRecord, end: CompensationEnd | None) -> None:
    """Something that a failed job has done is being undone (triggered), is undone (completed), or could not be (failed)."""
    if not heard():
        return
    from outlast.observe import events

    who: dict[str, Any] = {
        "pipeline": pipeline_of_kind(job.kind),
        "job_id": str(job.id),
        "kind": job.kind,
        "queue": job.queue,
        "step_id": one.step or job.kind,
        "component": one.call,
    }
    if what == "triggered":
        because = "its job was cancelled" if job.state == "cancelled" else f"its job failed: {job.error or ''}"
        emit(events.CompensationTriggered(**who, because=because))
    elif what == "completed":
        emit(events.CompensationCompleted(**who))
    elif end is not None:
        error: dict[str, Any] = {
            "error": end.error or "",
            "error_type": end.error_type or "",
            "error_class": end.error_class or "",
        }
        emit(events.CompensationFailed(**who, **error, reason=end.stop_reason))
        if end.letter is not None:
            letter: dict[str, Any] = {"letter_id": end.letter.id, "item_id": str(job.id), "step_id": end.letter.stage}
            emit(events.DeadLetterEnqueue(pipeline=pipeline_of_kind(job.kind), **letter, **error))


def _letter(job: ClaimedJob | Orphan, letter: DeadLetterRow, error: Mapping[str, Any]) -> None:
    from outlast.observe.events import DeadLetterEnqueue

    emit(
        DeadLetterEnqueue(
            pipeline=pipeline_of_kind(job.kind), letter_id=letter.id, item_id=str(job.id), step_id=job.kind, **error
        )
    )


def _who(job: ClaimedJob | Orphan, max_attempts: int) -> dict[str, Any]:
    return {
        "job_id": str(job.id),
        "kind": job.kind,
        "queue": job.queue,
        "attempt": job.attempts,
        "max_attempts": max_attempts,
    }
