"""
A replay of jobs: they go back into the queue, and workers do them. Those of a canary go first, and the others only when
all of those have succeeded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from outlast.deadletters.letters import ReplayedJobs
from outlast.kernel.clock import ahead_us, here
from outlast.kernel.wording import counted
from outlast.store.faults import StoreRefused
from outlast.work.patience import keep_trying

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from outlast.store import Store

_FIRST_LOOK, _LAST_LOOK, _GROWTH = 0.05, 1.0, 1.5  # seconds between two looks at a canary
_UNTAKEN = 60.0  # seconds in which a worker must have taken a canary


def requeue(store: Store, jobs: Mapping[str, str], canary: Sequence[str]) -> ReplayedJobs:
    """Requeue the jobs of these letters, by id; the letters of the `canary` first."""
    left: dict[str, str] = {}
    requeued = _requeued(store, {letter: jobs[letter] for letter in canary}, left)
    others = {letter: job for letter, job in jobs.items() if letter not in set(canary)}
    end, said = _end(store, requeued) if canary and others else (None, "")
    if end in {"failed", "unknown"}:
        left |= dict.fromkeys(others, said)
        why = f"{counted(len(requeued), 'job')} of the canary requeued; {said}; {counted(len(others), 'other')} left open."
        return ReplayedJobs(requeued=tuple(requeued), left=left, why=why, canary=end)
    requeued += _requeued(store, others, left)
    why = f"{counted(len(requeued), 'job')} requeued" + (f", {len(left):,} left as they are." if left else ".")
    return ReplayedJobs(requeued=tuple(requeued), left=left, why=why, canary=end)


def _requeued(store: Store, jobs: Mapping[str, str], left: dict[str, str]) -> list[str]:
    """The jobs that were; the others are `left`, with the reason."""
    done: list[str] = []
    for letter, job in jobs.items():
        try:
            number = int(job) if job.isdecimal() else 0
            moved = number and keep_trying(
                lambda number=number: store.requeue_job(number, ahead_us=ahead_us()),  # type: ignore[misc]
                "the store",
                unclear=False,
            )
        except StoreRefused as refused:
            left[letter] = str(refused)
            continue
        if moved:
            done.append(job)
        else:
            found = store.job(number)
            left[letter] = "its job is not kept any more" if found is None else f"its job is {found.status}"
    return done


def _end(store: Store, jobs: Iterable[str]) -> tuple[Literal["succeeded", "failed", "unknown"], str]:
    """How the jobs of a canary have ended. An attempt that failed is enough: nobody waits for the next one."""
    clock = here.get().clock
    untaken, wait = clock.monotonic() + _UNTAKEN, _FIRST_LOOK
    waiting = [int(job) for job in jobs]
    if not waiting:
        return "unknown", "none of them could be requeued"
    while True:
        rows = {job: store.job(job) for job in waiting}
        for job, row in rows.items():
            if (
                row is None
                or row.status in {"failed", "cancelled"}
                or (row.status == "queued" and row.error is not None)
            ):
                return "failed", f"the job {job} did not succeed" + (
                    "" if row is None or not row.error else f" ({row.error})"
                )
        waiting = [job for job, row in rows.items() if row is not None and row.status != "succeeded"]
        if not waiting:
            return "succeeded", ""
        if not any(worker.alive for worker in store.workers()):
            return "unknown", "no worker is there to do them"
        if any(row is not None and row.status != "queued" for row in rows.values()):
            untaken = clock.monotonic() + _UNTAKEN
        elif clock.monotonic() >= untaken:
            return "unknown", f"no worker took them within {_UNTAKEN:g} s"
        clock.sleep(wait)
        wait = min(_LAST_LOOK, wait * _GROWTH)
