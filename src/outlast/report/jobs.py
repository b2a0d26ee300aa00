"""
What a store has on record of durable jobs, and what operators ask for, as commands need it.

    JobViews       jobs, queues and workers; requeue, cancel, pause, resume
    JobView        one job with all that can be said of it
    Answer         what a wish came to, job by job
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.errors import ConfigurationError, nearest
from outlast.kernel.redact import masked
from outlast.store.faults import StoreRefused
from outlast.store.records import JOB_STATES, from_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from outlast.store import Store
    from outlast.store.codec import Codec
    from outlast.store.records import (
        DeadLetterRow,
        Enqueued,
        JobAttempt,
        JobRow,
        JobStatus,
        NewJob,
        QueueState,
        WorkerState,
    )

STATUSES: tuple[JobStatus, ...] = tuple(JOB_STATES)
_LARGEST = 2**63 - 1
_STAYS = {
    "queued": "it is in the queue already.",
    "processing": "a worker is at it.",
    "succeeded": "it has succeeded, and is not done again: enqueue it anew.",
}
_OVER = {
    "succeeded": "it has succeeded already.",
    "failed": "it has failed already.",
    "cancelled": "it is cancelled already.",
}
_WAITS = {
    "alone": "Two of its workers have died: a worker that has nothing else takes it.",
    "held": "Its time was up and its code still runs: it is not begun again before that has ended.",
}


class JobView(NamedTuple):
    """
    A job with its attempts. `worker` has it now, for a person's eye; `waits_for` says what a queued job waits for
    beside its time.
    """

    job: JobRow
    attempts: Sequence[JobAttempt]
    worker: str | None
    waits_for: Sequence[str]


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
            raise ConfigurationError(f"There is no job {wanted}. Those there are: outlast jobs list")
        workers = self.workers()
        worker = next((process_of(one.owner) for one in workers if one.key == job.worker), None)
        return JobView(job, self._store.job_attempts(job.id), worker, self._waits_for(job, workers))

    def of_letter(self, letter: DeadLetterRow) -> JobView | None:
        """The job whose dead letter it is; None of a letter of a run, of another program, or of a job that is gone."""
        if letter.kind != "job" or not letter.item_key.isdecimal() or len(letter.item_key) > 18:
            return None
        job = self._store.job(int(letter.item_key))
        return self.show(letter.item_key) if job is not None and job.letter == letter.id else None

    def idle(self) -> bool:
        """Whether no worker is running."""
        return not any(worker.alive for worker in self.workers())

    def _waits_for(self, job: JobRow, workers: Sequence[WorkerState]) -> list[str]:
        if job.status != "queued":
            return []
        said = [_WAITS[job.state]] if job.state in _WAITS else []
        if any(stats.paused for stats in self.queues() if stats.queue == job.queue):
            said.append(f"The queue {job.queue} is paused.")
        if not any(worker.alive for worker in workers):
            said.append("No worker is running.")
        return said

    def queues(self) -> list[QueueState]:
        """Every queue that has jobs which are not over, or is paused."""
        return self._store.queue_stats()

    def workers(self) -> list[WorkerState]:
        """The workers that have leases."""
        return self._store.workers()

    def next_due(self, queues: Iterable[str] | None, kinds: Mapping[str, int]) -> datetime | None:
        """When the next job is due of these kinds (each with its version) that is not due yet; None: of every queue."""
        return _instant(self._store.idle(queues, kinds).next_due_us)

    # -- what operators do ---------------------------------------------------------------------------------------------

    def enqueue(self, job: NewJob) -> Enqueued:
        """Put a job on record; what there is already under its unique key."""
        return self._store.enqueue([job])[0]

    def requeue(self, ids: Sequence[str]) -> list[Answer]:
        """Put failed and cancelled jobs back into the queue; what became of each."""
        return [self._requeue(number) for number in _numbers(ids)]

    def _requeue(self, number: int) -> Answer:
        try:
            if self._store.requeue_job(number):
                return Answer(str(number), done=True, said="back in the queue")
        except StoreRefused as refused:
            return Answer(str(number), done=False, said=str(refused))
        return self._refused(number, _STAYS)

    def cancel(self, ids: Sequence[str]) -> list[Answer]:
        """Take jobs out of the queue, and ask the workers of others to stop; what became of each."""
        return [self._cancel(number) for number in _numbers(ids)]

    def _cancel(self, number: int) -> Answer:
        if not self._store.cancel_job(number):
            return self._refused(number, _OVER)
        job = self._store.job(number)
        if job is None or job.status != "processing":
            return Answer(str(number), done=True, said="cancelled")
        owner = next((one.owner for one in self.workers() if one.key == job.worker), None)
        asked = "its worker" if owner is None else process_of(owner)
        return Answer(str(number), done=True, said=f"asked {asked} to stop; it hears that within seconds")

    def _refused(self, number: int, why: Mapping[str, str]) -> Answer:
        job = self._store.job(number)
        # One that fits again by now was moved by somebody else in between.
        said = "there is no such job." if job is None else why.get(job.status, f"it is {job.status} by now.")
        return Answer(str(number), done=False, said=said)

    def set_paused(self, queues: Sequence[str], *, paused: bool) -> list[str]:
        """Pause queues, or resume them; what is to be said about names that no job has."""
        known = {stats.queue for stats in self.queues()}
        change = self._store.pause_queue if paused else self._store.resume_queue
        unknown = [queue for queue in queues if queue not in known and not self.find(queue=queue, limit=1)]
        for queue in queues:
            change(queue)
        return [f"No job was ever in the queue {queue!r}.{nearest(queue, sorted(known))}" for queue in unknown]


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


def process_of(owner: str) -> str:
    """The owner of a lease, for a person's eye; a lease that was given back has none."""
    if not owner:
        return "one that has ended"
    host, _, rest = owner.partition(":")
    return f"{host.partition('/')[0]}, process {rest.partition(':')[0]}"


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
        "cancel_wanted": job.wanted == "cancel",
        "unique_key": job.unique_key,
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
        "history": [job_attempt_document(attempt) for attempt in view.attempts],
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
    }


def queue_document(stats: QueueState) -> dict[str, Any]:
    waited = stats.oldest_wait_us
    kept = {name: value for name, value in stats._asdict().items() if name != "oldest_wait_us"}
    return kept | {"oldest_wait": None if waited is None else waited / 1e6}


def worker_document(worker: WorkerState) -> dict[str, Any]:
    return {
        "id": worker.key,
        "process": process_of(worker.owner),
        "jobs": worker.jobs,
        "alive": worker.alive,
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
    return f"<not kept: {kept['unstored']}>" if "unstored" in kept else kept.get("value")


def next_run_at(job: JobRow) -> datetime | None:
    """When it is due, if it is queued."""
    return from_us(job.due_us) if job.status == "queued" else None


def _instant(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)
