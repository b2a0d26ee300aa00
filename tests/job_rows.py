"""What tests of durable jobs in the store say again and again: new jobs, workers, ends, and what is on record of a job."""

from __future__ import annotations

from itertools import count

from outlast.store.records import JobEnd, NewJob, Rescue
from stores import letter as dead_letter

KINDS = {"send": 1, "sum": 3}
SECOND = 1_000_000
_workers = count(1)


def new(payload=b"{}", *, queue="mail", kind="send", version=1, priority=0, delay=0.0, key=None):
    return NewJob(queue, kind, version, priority, round(delay * SECOND), payload, key)


def enqueued(store, *jobs, **how):
    """The ids of new jobs."""
    return [done.id for done in store.enqueue(jobs or [new()], **how)]


def worker(store, owner="here", ttl=600.0):
    """The lease of a worker that nobody else has been."""
    return store.take_lease("worker", f"worker-{next(_workers)}", owner, ttl)


def claimed(store, lease, most=1, queue="mail", **how):
    """Jobs that are claimed now."""
    return store.turn(lease, [], {queue: most}, KINDS, **how).claimed


def end(job, state="succeeded", outcome=None, **how):
    """How the attempt of a claimed job ended."""
    usual = {"succeeded": "succeeded", "cancelled": "released", "held": "timeout", "ready": "released"}
    took = {"started_us": job.claimed_us, "took_us": 5}
    return JobEnd(job.id, job.token, job.made, state, outcome or usual.get(state, "failed"), **(took | how))


def failed(job, text="no answer", **how):
    """A job's last failure, with its dead letter."""
    kept = dead_letter(
        job.id, seq=None, pipeline=job.kind, stage=job.kind, item_key=str(job.id), kind="job", error=text,
        metadata={"queue": job.queue, "version": job.version},
    )  # fmt: skip
    told = {"error": text, "error_type": "VendorError", "error_class": "server_error", "stop_reason": "exhausted"}
    return end(job, "failed", letter=kept, **(told | how))


def finished(store, lease, *ends):
    """Write ends and claim nothing; the ids of those that were late."""
    return store.turn(lease, ends, {}, KINDS).lost


def story(store, number):
    """The outcomes of a job's attempts, and its state."""
    return [attempt.outcome for attempt in store.job_attempts(number)], store.job(number).state


def dead(*owners):
    """Says which owners are certainly dead."""
    return lambda owner: owner in owners


def rescued(store, *owners, decide=None, **how):
    """What a sweep brings back: the id and the state of each job."""
    return [(job.id, job.state) for job in store.sweep(dead(*owners), decide or by_crashes, **how)]


def by_crashes(orphan):
    """D-16: claimable at once, then alone after a delay, then poison."""
    if orphan.crashes == 1:
        return Rescue("ready", error="its worker was lost", error_type="WorkerLost", error_class="worker_lost")
    if orphan.crashes == 2:
        return Rescue("alone", 30 * SECOND, error="its worker was lost", error_class="worker_lost")
    kept = dead_letter(
        orphan.id, seq=None, pipeline=orphan.kind, stage=orphan.kind, kind="job", item_key=str(orphan.id),
        error_class="poison", metadata={"queue": orphan.queue, "version": orphan.version},
    )  # fmt: skip
    return Rescue("failed", error="three workers were lost", error_class="poison", stop_reason="exhausted", letter=kept)
