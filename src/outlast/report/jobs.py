"""
What a store has on record of durable jobs, and what operators ask for, as commands need it.

    JobViews       jobs, queues and workers; requeue, cancel, pause, resume
    JobView        one job with all that can be said of it
    ScheduleView   a schedule, and whether a worker declares it
    Answer         what a wish came to, job by job
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.errors import ConfigurationError, nearest
from outlast.kernel.frames import place_of
from outlast.kernel.redact import masked, sanitise
from outlast.kernel.wording import counted, process_of
from outlast.observe.figures import figures_of
from outlast.store.compensations import in_all
from outlast.store.faults import StoreRefused
from outlast.store.records import FLOW, JOB_STATES, from_us, served_kind
from outlast.store.upkeep import is_hash, plain_key
from outlast.work.leases import certainly_dead, is_of_this_host, this_user

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from outlast.observe.figures import JobFigures
    from outlast.store import Store
    from outlast.store.codec import Codec
    from outlast.store.compensations import CompensationRecord
    from outlast.store.records import (
        DeadLetterRow,
        Enqueued,
        JobAttempt,
        JobChangeRow,
        JobRow,
        JobStatus,
        NewJob,
        QueueState,
        ScheduleRow,
        WorkerKinds,
        WorkerState,
    )
    from outlast.store.steps import ArtifactRecord, StepRecord

STATUSES: tuple[JobStatus, ...] = tuple(JOB_STATES)
DECLARED = 90.0  # seconds since a worker has looked at a schedule, after which none declares it
_LARGEST = 2**63 - 1
_STAYS = {
    "queued": "it is in the queue already.",
    "processing": "a worker is at it.",
    "succeeded": "it has succeeded, and is not done again: enqueue it anew, with another unique key if it has one.",
}
_OVER = {
    "succeeded": "it has succeeded already.",
    "failed": "it has failed already.",
    "cancelled": "it is cancelled already.",
}
_NOT_UNDONE = {
    "queued": "it may still succeed. Cancel it first.",
    "processing": "it may still succeed. Cancel it first.",
    "succeeded": "it has succeeded, and nothing of it is undone.",
    "failed": "all that it has registered is undone, or it has registered nothing.",
    "cancelled": "it has registered nothing that undoes it, or all of that is undone.",
}
_UNDOING = {**_NOT_UNDONE, "failed": "a worker is to undo it already.", "cancelled": "a worker is to undo it already."}
_WAITS = {
    "alone": "Two of its workers have died: a worker that has nothing else takes it.",
    "held": "Its time was up and its code still runs: it is not begun again before that has ended.",
}


class JobView(NamedTuple):
    """
    A job with its attempts, and what operators have done to it. `worker` has it now, for a person's eye; `waits_for` says what a queued job waits for
    beside its time, and what one that is to be undone, or whose worker is gone, waits for.
    """

    job: JobRow
    attempts: Sequence[JobAttempt]
    worker: str | None
    waits_for: Sequence[str]
    steps: Sequence[StepRecord] = ()
    artifacts: Sequence[ArtifactRecord] = ()
    changes: Sequence[JobChangeRow] = ()
    compensations: Sequence[CompensationRecord] = ()

    @property
    def compensation(self) -> str:
        """As `JobHandle.compensation`."""
        return in_all(self.compensations, self.job.status)

    def undoing(self) -> Iterator[tuple[CompensationRecord, str]]:
        """What undoes it, each with how far that is, for people."""
        for one in self.compensations:
            said = "completed by hand" if one.by_hand else one.status(self.job.status).replace("_", " ")
            if said == "running" and self.worker is None:
                said = "begun, its worker is gone"
            yield one, f"{said}, before the requeue" if one.closed else said


class FlowOfJob(NamedTuple):
    """The run that the job of a flow works on, and the project's root where it was enqueued."""

    pipeline: str
    run_key: str
    root: str


def flow_run_of(job: JobRow, codec: Codec) -> FlowOfJob | None:
    """What the job of a flow works on; None of other jobs, and of one whose arguments cannot be read."""
    if served_kind(job.kind) != FLOW:
        return None
    try:
        given = codec.decode(job.payload)
        return FlowOfJob(str(given["manifest"]["name"]), str(given["run_key"]), str(given["root"]))
    except (ValueError, KeyError, TypeError):  # edited, or stored by a codec that is not known here
        return None


class ScheduleView(NamedTuple):
    """A schedule and its state: ``active``, or ``undeclared`` if no worker that runs now declares it."""

    row: ScheduleRow
    state: str


class Answer(NamedTuple):
    """What a wish about one job came to."""

    id: str
    done: bool
    said: str


class JobViews:
    """All that may be asked of a store about jobs, from outside of the program that has their code."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # -- what is on record ---------------------------------------------------------------------------------------------

    def find(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        status: JobStatus | None = None,
        unique_key: str | None = None,
        limit: int = 50,
    ) -> list[JobRow]:
        """The newest jobs that fit."""
        return self._store.jobs(queue=queue, kind=kind, status=status, unique_key=unique_key, limit=limit)

    def show(self, wanted: str) -> JobView:
        """The job of this id."""
        job = self._store.job(number_of(wanted))
        if job is None:
            other = self._store.app_of_job(number_of(wanted))
            where = "in this store" if other is None else f"of the app {self._store.app!r}: it is one of {other!r}"
            raise ConfigurationError(f"There is no job {wanted} {where}.")
        workers = self.workers()
        worker = next((process_of(one.owner) for one in workers if one.key == job.worker and one.alive), None)
        undone_by = self._store.compensations(job.id)
        left = job.status in {"failed", "cancelled"} and in_all(undone_by, job.status) == "pending"
        return JobView(
            job,
            self._store.job_attempts(job.id),
            worker,
            self._waits_for(job, workers, left=left),
            self._store.steps(job.id),
            self._store.artifacts(job.id),
            self._store.job_changes(job.id),
            undone_by,
        )

    def artifact(self, wanted: str, name: str, attempt: int | None, codec: Codec) -> str | bytes:
        """What a job has kept under a name."""
        view = self.show(wanted)
        data = self._store.artifact(view.job.id, name, attempt)
        if data is None:
            where = "" if attempt is None else f" in attempt {attempt}"
            known = list(dict.fromkeys(kept.name for kept in view.artifacts))
            said = f" It has kept: {', '.join(known)}." if known else " It has kept nothing."
            raise ConfigurationError(f"The job {wanted} has kept no {name!r}{where}.{nearest(name, known) or said}")
        kept: str | bytes = codec.decode(data)
        return kept

    def of_letter(self, letter: DeadLetterRow) -> JobView | None:
        """The job whose dead letter it is; None of a letter of a run, of another program, or of a job that is gone."""
        if letter.kind != "job" or not letter.item_key.isdecimal() or len(letter.item_key) > 18:
            return None
        job = self._store.job(int(letter.item_key))
        return self.show(letter.item_key) if job is not None and job.letter == letter.id else None

    def idle(self) -> bool:
        """Whether no worker is running."""
        return not any(worker.alive for worker in self.workers())

    def _waits_for(self, job: JobRow, workers: Sequence[WorkerState], *, left: bool) -> list[str]:
        if job.status != "queued" and any(worker.alive for worker in workers if worker.key == job.worker):
            return []
        said = [_WAITS[job.state]] if job.state in _WAITS else []
        if job.status == "processing":
            said.append("Its worker is gone: a worker of this app takes it over.")
        elif left:
            gone = job.worker is not None
            said.append(f"It is to be undone{', and its worker is gone: a worker of this app takes it over' * gone}.")
        elif job.status != "queued":
            return []
        if any(stats.paused for stats in self.queues() if stats.queue == job.queue):
            said.append(f"The queue {job.queue} is paused.")
        alive = [worker for worker in workers if worker.alive]
        if not alive:
            said.append("No worker is running.")
        return said + _unserved(job, [worker.serves for worker in alive])

    def unknown_queues(self, queues: Iterable[str], declared: Iterable[str]) -> list[str]:
        """What is to be said about queues that no job declares, and that no job was ever in."""
        known = {*declared, *(stats.queue for stats in self.queues())}
        return [
            f"No job of this app is for the queue {queue!r}, and none is in it.{nearest(queue, sorted(known))}"
            for queue in queues
            if queue not in known and not self.find(queue=queue, limit=1)
        ]

    def queues(self) -> list[QueueState]:
        """Every queue that has jobs which are not over or are to be undone, or is paused."""
        return self._store.queue_stats()

    def figures(self, window: float) -> list[JobFigures]:
        """How the jobs did that have ended within so many seconds, by kind and queue."""
        return figures_of(self._store.job_tallies(round(window * 1e6)))

    def workers(self) -> list[WorkerState]:
        """The workers that have leases. One of this machine that is dead is not alive, however long its lease lasts."""
        return [
            worker._replace(alive=worker.alive and not certainly_dead(worker.owner)) for worker in self._store.workers()
        ]

    def schedules(self) -> list[ScheduleView]:
        """Every schedule that is on record, with what is so of it now."""
        rows, now_us = self._store.schedules()
        alive = [worker.serves for worker in self.workers() if worker.alive]
        return [ScheduleView(row, _state_of(row, now_us, alive)) for row in rows]

    def next_due(self, queues: Iterable[str] | None, kinds: Mapping[str, int]) -> datetime | None:
        """When the next job is due of these kinds (each with its version) that is not due yet; None: of every queue."""
        return _instant(self._store.idle(queues, kinds).next_due_us)

    # -- what operators do ---------------------------------------------------------------------------------------------

    def enqueue(self, job: NewJob) -> Enqueued:
        """Put a job on record; what there is already under its unique key."""
        return self._store.enqueue([job])[0]

    def requeue(self, ids: Sequence[str], *, reason: str = "", from_start: bool = False) -> list[Answer]:
        """Put failed and cancelled jobs back into the queue, without what their steps came to; what became of each."""
        return [self._requeue(number, sanitise(reason), from_start=from_start) for number in _numbers(ids)]

    def _requeue(self, number: int, reason: str, *, from_start: bool) -> Answer:
        if (in_vain := self._in_vain(number)) is not None:
            return Answer(str(number), done=False, said=in_vain)
        try:
            if self._store.requeue_job(number, by=this_user(), reason=reason, from_start=from_start):
                anew = "; all of its steps are done again" if from_start else ""
                job = self._store.job(number)
                held = (
                    ""
                    if job is None or job.state != "held"
                    else ", and begun when its code has ended, which still runs"
                )
                return Answer(str(number), done=True, said=f"back in the queue{held}{anew}")
        except StoreRefused as refused:
            return Answer(str(number), done=False, said=str(refused))
        return self._refused(number, _STAYS)

    def _in_vain(self, number: int) -> str | None:
        """Why the job of a flow would end as before: its run was cancelled, or a step may have been done that must not be done twice."""
        from outlast.report.flows import FlowViews

        job = self._store.job(number)
        flow = None if job is None or job.status not in {"failed", "cancelled"} else FlowViews(self._store).of_job(job)
        if flow is not None and flow.status == "cancelled":
            return f"its run {flow.run_key!r} was cancelled and never continues. Enqueue the flow with another run key."
        if flow is None or not flow.doubted:
            return None
        ways = "".join(f" {what} {way}" for what, way in flow.doubt(self._store.app_option()))
        return f"{', '.join(flow.doubted)} may have been done and must not be done twice (idempotent: false).{ways}"

    def cancel(self, ids: Sequence[str], *, reason: str = "") -> list[Answer]:
        """Take jobs out of the queue, and ask the workers of others to stop; what became of each."""
        return [self._cancel(number, sanitise(reason)) for number in _numbers(ids)]

    def _cancel(self, number: int, reason: str) -> Answer:
        if not self._store.cancel_job(number, by=this_user(), reason=reason):
            return self._refused(number, _OVER)
        job = self._store.job(number)
        if job is None or job.worker is None:
            return Answer(str(number), done=True, said="cancelled")
        owner = next((one.owner for one in self.workers() if one.key == job.worker), None)
        if job.status != "processing":
            # It was held: nothing ends its code but its own end, or that of its worker.
            where = "" if owner is None else f" in {process_of(owner)}"
            return Answer(str(number), done=True, said=f"cancelled; its code still runs{where}, past its time")
        asked = "its worker" if owner is None else process_of(owner)
        return Answer(str(number), done=True, said=f"asked {asked} to stop; it hears that within seconds")

    def undo(self, ids: Sequence[str], *, reason: str = "") -> list[Answer]:
        """Have undone what failed and cancelled jobs have done, and still stands; what became of each."""
        return [self._undo(number, sanitise(reason)) for number in _numbers(ids)]

    def _undo(self, number: int, reason: str) -> Answer:
        count = self._store.undo_job(number, by=this_user(), reason=reason)
        if count:
            return Answer(str(number), done=True, said=f"{counted(count, 'function')} to be called, by a worker")
        job = self._store.job(number)
        left = job is not None and in_all(self._store.compensations(number), job.status) == "pending"
        return self._refused(number, _UNDOING if left else _NOT_UNDONE)

    def _refused(self, number: int, why: Mapping[str, str]) -> Answer:
        job = self._store.job(number)
        # One that fits again by now was moved by somebody else in between.
        said = "there is no such job." if job is None else why.get(job.status, f"it is {job.status} by now.")
        return Answer(str(number), done=False, said=said)

    def never_used(self, queues: Sequence[str]) -> list[str]:
        """What is to be said about queues that no job was ever in, that are not paused, and that no worker names."""
        named = [worker.serves.queues or () for worker in self.workers() if worker.serves is not None]
        known = {stats.queue for stats in self.queues()}.union(*named)
        return [
            f"No job was ever in the queue {queue!r}.{nearest(queue, sorted(known))}"
            for queue in queues
            if queue not in known and not self.find(queue=queue, limit=1)
        ]

    def set_paused(self, queues: Sequence[str], *, paused: bool) -> list[str]:
        """Pause queues, or resume them; those that were not so before."""
        before = {stats.queue for stats in self.queues() if stats.paused}
        change = self._store.pause_queue if paused else self._store.resume_queue
        for queue in queues:
            change(queue)
        return [queue for queue in dict.fromkeys(queues) if (queue in before) != paused]


def _unserved(job: JobRow, workers: Sequence[WorkerKinds | None]) -> list[str]:
    """Why no running worker takes the job, if that is known of all of them."""
    serving = [one for one in workers if one is not None]
    if len(serving) < len(workers) or not workers:  # one of an older program does not say
        return []
    served = served_kind(job.kind)
    versions = [one.kinds[served] for one in serving if served in one.kinds]
    if not versions:
        from outlast.jobs.own import way_to  # a list of jobs does without

        way = way_to(job.kind)
        return [f"No running worker knows the kind {job.kind}{'.' if way is None else f': {way}'}"]
    if max(versions) < job.version:
        return [f"Running workers know {job.kind} only up to version {max(versions)}, and this job has {job.version}."]
    able = [one for one in serving if one.kinds.get(served, 0) >= job.version]
    if not any(one.queues is None or job.queue in one.queues for one in able):
        return [f"No running worker that knows {job.kind} serves the queue {job.queue}."]
    return []


def number_of(wanted: str) -> int:
    """The number of a job, as a person has written it."""
    if wanted.isascii() and wanted.isdecimal() and len(wanted) < 20 and 0 < int(wanted) <= _LARGEST:
        return int(wanted)
    raise ConfigurationError(f"expected the id of a job, a number such as 17, got: {wanted!r}.")


def _numbers(ids: Sequence[str]) -> list[int]:
    """All of them, before anything is done to the first one."""
    problems: list[str] = []
    numbers: dict[int, None] = {}
    for wanted in ids:
        try:
            numbers[number_of(wanted)] = None
        except ConfigurationError as wrong:
            problems += wrong.problems
    if problems:
        raise ConfigurationError(problems)
    return list(numbers)


# -- documents -------------------------------------------------------------------------------------------------------------


def job_document(job: JobRow, codec: Codec, *, reveal: bool = False) -> dict[str, Any]:
    arguments = codec.decode(job.payload)
    return {
        "id": str(job.id),
        "kind": job.kind,
        "queue": job.queue,
        "status": job.status,
        "priority": job.priority,
        "enqueued_at": from_us(job.enqueued_us),
        "next_run_at": next_run_at(job),
        "claimed_at": _instant(job.claimed_us),
        "ended_at": _instant(job.ended_us),
        "attempts": job.attempts,
        "attempts_in_all": job.made,
        "crashes": job.crashes,
        "progress": None if job.progress is None else dict(zip(("done", "total", "note"), job.progress, strict=True)),
        "cancel_wanted": job.wanted == "cancel",
        "unique_key": None if job.unique_key is None else plain_key(job.unique_key),
        "unique_key_is_hash": job.unique_key is not None and is_hash(job.unique_key),
        "unique_until": _instant(job.unique_until_us),
        "error": job.error,
        "error_type": job.error_type,
        "error_class": job.error_class,
        "stop_reason": job.stop_reason,
        "dead_letter": job.letter,
        "version": job.version,
        "arguments": arguments if reveal else masked(arguments),
    }


def job_view_document(view: JobView, codec: Codec, *, reveal: bool = False) -> dict[str, Any]:
    result = result_of(view.job, codec)
    return job_document(view.job, codec, reveal=reveal) | {
        "worker": view.worker,
        "waits_for": list(view.waits_for),
        "result": result if reveal else masked(result),
        "result_not_stored": unstored_of(view.job, codec),
        "history": [job_attempt_document(attempt) for attempt in view.attempts],
        "changes": [job_change_document(change) for change in view.changes],
        "steps": [
            {"name": step.name, "attempt": step.attempt, "ended_at": from_us(step.ended_us)} for step in view.steps
        ],
        "compensation": view.compensation,
        "compensations": [
            {
                "function": one.call,
                "step": one.step,
                "status": one.status(view.job.status),
                "registered_at": from_us(one.registered_us),
                "attempts": one.attempts,
                "crashes": one.crashes,
                "next_run_at": _instant(one.due_us),
                "ended_at": _instant(one.ended_us),
                "error": one.error,
                "error_type": one.error_type,
                "error_class": one.error_class,
                "stop_reason": one.stop_reason,
                "dead_letter": one.letter,
                "current": not one.closed,
            }
            for one in view.compensations
        ],
        "artifacts": [
            {
                "name": kept.name,
                "attempt": kept.attempt,
                "size": kept.size,
                "cut": kept.cut,
                "kept_at": from_us(kept.kept_us),
            }
            for kept in view.artifacts
        ],
    }


def job_attempt_document(attempt: JobAttempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "outcome": attempt.outcome,
        "started_at": from_us(attempt.started_us),
        "took": attempt.took_us / 1e6,
        "next_run_at": _instant(attempt.next_run_us),
        "stop_reason": attempt.stop_reason,
        "error": attempt.error,
        "error_type": attempt.error_type,
        "error_class": attempt.error_class,
        "worker": attempt.worker,
        "place": None if (place := place_of(attempt.traceback)) is None else str(place),
        "traceback": attempt.traceback,
    }


def job_change_document(change: JobChangeRow) -> dict[str, Any]:
    return {
        "at": from_us(change.at_us),
        "change": change.change,
        "by": change.by or None,
        "reason": change.reason or None,
    }


def queue_document(stats: QueueState) -> dict[str, Any]:
    waited = stats.oldest_wait_us
    kept = {name: value for name, value in stats._asdict().items() if name != "oldest_wait_us"}
    return kept | {"oldest_wait": None if waited is None else waited / 1e6}


def figures_document(figures: JobFigures) -> dict[str, Any]:
    return asdict(figures)


def _state_of(row: ScheduleRow, now_us: int, alive: Iterable[WorkerKinds | None]) -> str:
    """A running worker may know the kind without this schedule: it has not looked at it for a while, then."""
    known = any(
        one is None or served_kind(row.kind) in one.kinds for one in alive
    )  # one of an older program does not say
    return "active" if known and now_us - row.seen_us < DECLARED * 1e6 else "undeclared"


def schedule_document(view: ScheduleView) -> dict[str, Any]:
    row = view.row
    return {
        "kind": row.kind,
        "cron": row.expression,
        "timezone": row.timezone,
        "missed": row.missed,
        "state": view.state,
        "since": from_us(row.since_us),
        "last_tick_at": _instant(row.tick_us),
        "last_job": None if row.job is None else str(row.job),
        "next_tick_at": _instant(row.next_us) if view.state == "active" else None,
        "seen_at": from_us(row.seen_us),
    }


def runs_here(worker: WorkerState) -> bool:
    """Whether it is a process of this host, or of a container with this host name."""
    return is_of_this_host(worker.owner)


def worker_document(worker: WorkerState) -> dict[str, Any]:
    return {
        "id": worker.key,
        "process": process_of(worker.owner),
        "jobs": worker.jobs,
        "alive": worker.alive,
        "queues": None if worker.serves is None or worker.serves.queues is None else list(worker.serves.queues),
        "kinds": None if worker.serves is None else dict(worker.serves.kinds),
        "lease_until": worker.until if worker.owner else None,
        "lease_ttl": worker.ttl,
    }


def result_of(job: JobRow, codec: Codec) -> Any:
    """What a job returned, as far as it is on record."""
    if job.result is None:
        return None
    kept = codec.decode(job.result)
    if not isinstance(kept, dict):  # what a shell cannot read
        return kept
    return kept.get("value")


def unstored_of(job: JobRow, codec: Codec) -> str | None:
    """Why there is no result of a job that has returned one."""
    kept = None if job.result is None else codec.decode(job.result)
    return str(kept["unstored"]) if isinstance(kept, dict) and "unstored" in kept else None


def shown_key(key: str) -> str:
    """A unique key for a person's eye."""
    return plain_key(key) + (" (the hash of a key of more than 1,000 bytes)" if is_hash(key) else "")


def next_run_at(job: JobRow) -> datetime | None:
    """When it is due, if it is queued."""
    return from_us(job.due_us) if job.status == "queued" else None


def _instant(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)
