"""
How jobs do, in figures: what a store has on record of those that have ended, added up. Pure: rows go in, figures come
out. What each figure means stands at `JobFigures`, and in the reference of the metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: The error class of output that is not what was agreed.
SCHEMA_CLASS = "invalid_output"


class JobTally(NamedTuple):
    """
    Jobs of one kind and queue that have ended in one way: how many they are, how many of them were retried, how many attempts
    all of them took, and how long, in microseconds, from when they were due to their end (`waited_us`). Of that, `backoff_us`
    were delays before a retry and `queued_us` waits for a worker. `delayed_us` is how long they were asked to wait, which is
    no part of it. `schema` is how many of them failed on the output of a model. `artifacts` are what was kept by jobs of the
    kind, in whatever state.
    """

    kind: str
    queue: str
    status: str
    error_class: str | None = None
    jobs: int = 0
    retried: int = 0
    attempts: int = 0
    waited_us: int = 0
    artifacts: int = 0
    delayed_us: int = 0
    backoff_us: int = 0
    queued_us: int = 0
    schema: int = 0


class QueueBacklog(NamedTuple):
    """A queue as it is now: `oldest_wait` is in seconds, of the jobs that may start; 0 if there is none."""

    queue: str
    queued: int = 0
    scheduled: int = 0
    processing: int = 0
    paused: bool = False
    oldest_wait: float = 0.0


class Backlog(NamedTuple):
    """What an app has to do: each queue that has jobs which are not over, or is paused; and how many workers live."""

    queues: Sequence[QueueBacklog]
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """
    Jobs that have ended within a window of time. What is divided by nothing is None.

    `ended` = `succeeded` + `failed`; jobs that were `cancelled` are in no other figure but `artifacts`. An attempt counts
    if it succeeded, failed, ran out of time or crashed; one that was given back or snoozed does not.

    - `retry_rate`: of those that ended, the share that took more than one attempt. A requeue by hand is no retry: the
      attempts before it do not count.
    - `failure_rate`: of those that ended, the share that failed for good.
    - `mean_time_to_success`: seconds from when a job was first due to its success, on average of those that succeeded. A delay
      that was asked for is not in it. After a requeue by hand it counts from that.
    - `mean_delay`, `mean_backoff`, `mean_wait`: on average of the same jobs, the seconds that were asked for before they were
      due or by a `Snooze`, and, as parts of `mean_time_to_success`, the delays before a retry and the waits for a worker.
    - `schema_failure_share`: of those that failed, the share that failed on the output of a model. Their last error has the
      class ``invalid_output``; or it is a failed validation (``validation_error``, or JSON that cannot be read), and the same
      attempt has kept an artifact, or a step `llm.caller` of the flow has succeeded.
    - `retry_amplification`: attempts for each job that ended.
    - `artifacts`: how many `current().keep` has kept within the window, whatever became of the job.

    `kind` and `queue` are None where the figures are of all of them.
    """

    kind: str | None = None
    queue: str | None = None
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    attempts: int = 0
    retry_rate: float | None = None
    failure_rate: float | None = None
    mean_time_to_success: float | None = None
    schema_failure_share: float | None = None
    retry_amplification: float | None = None
    artifacts: int = 0
    mean_delay: float | None = None
    mean_backoff: float | None = None
    mean_wait: float | None = None

    @property
    def ended(self) -> int:
        """Those that succeeded and those that failed."""
        return self.succeeded + self.failed


def figures_of(tallies: Iterable[JobTally], *, kinds: bool = True, queues: bool = True) -> list[JobFigures]:
    """
    The figures of each kind and queue, by name; of each kind, if those of all `queues` are one; of all together, if
    those of all `kinds` are one as well.
    """
    groups: dict[tuple[str, str], list[JobTally]] = {}
    for tally in tallies:
        groups.setdefault((tally.kind if kinds else "", tally.queue if queues else ""), []).append(tally)
    return [_figures(groups[key], key[0] if kinds else None, key[1] if queues else None) for key in sorted(groups)]


def _figures(tallies: list[JobTally], kind: str | None, queue: str | None) -> JobFigures:
    succeeded = [one for one in tallies if one.status == "succeeded"]
    failed = [one for one in tallies if one.status == "failed"]
    ended = succeeded + failed
    jobs, failures, successes = _sum(ended), _sum(failed), _sum(succeeded)
    attempts = sum(one.attempts for one in ended)
    return JobFigures(
        kind=kind,
        queue=queue,
        succeeded=successes,
        failed=failures,
        cancelled=_sum(one for one in tallies if one.status == "cancelled"),
        attempts=attempts,
        retry_rate=_share(sum(one.retried for one in ended), jobs),
        failure_rate=_share(failures, jobs),
        mean_time_to_success=_share(sum(one.waited_us for one in succeeded) / 1e6, successes),
        schema_failure_share=_share(sum(one.schema for one in failed), failures),
        retry_amplification=_share(attempts, jobs),
        artifacts=sum(one.artifacts for one in tallies),
        mean_delay=_share(sum(one.delayed_us for one in succeeded) / 1e6, successes),
        mean_backoff=_share(sum(one.backoff_us for one in succeeded) / 1e6, successes),
        mean_wait=_share(sum(one.queued_us for one in succeeded) / 1e6, successes),
    )


def _sum(tallies: Iterable[JobTally]) -> int:
    return sum(one.jobs for one in tallies)


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None
