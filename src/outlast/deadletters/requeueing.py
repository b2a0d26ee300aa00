"""
A replay of jobs: they go back into the queue, and workers do them. Those of a canary go first, and the others only when
all of those have succeeded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from outlast.deadletters.letters import ReplayedJobs
from outlast.kernel.clock import ahead_us, here
from outlast.kernel.wording import counted
from outlast.store.faults import StoreRefused
from outlast.work.leases import this_user
from outlast.work.patience import keep_trying

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from outlast.store import Store

_FIRST_LOOK, _LAST_LOOK, _GROWTH = 0.05, 1.0, 1.5  # seconds between two looks at a canary
_UNTAKEN = 60.0  # seconds in which a worker must have taken a canary


def requeue(store: Store, jobs: Mapping[str, str], canary: Sequence[str], *, from_start: bool = False) -> ReplayedJobs:
    """
    Requeue the jobs of these letters, by id; the letters of the `canary` first. With `from_start` all of their steps are
    done again.
    """
    left: dict[str, str] = {}
    requeued = _requeued(store, {letter: jobs[letter] for letter in canary}, left, from_start=from_start)
    others = {letter: job for letter, job in jobs.items() if letter not in set(canary)}
    end, said = _end(store, requeued) if canary else (None, "")
    if end in {"failed", "unknown"}:
        left |= dict.fromkeys(others, said)
        open_still = f"; {counted(len(others), 'other')} left open" if others else ""
        why = f"{counted(len(requeued), 'job')} of the canary requeued; {said}{open_still}."
        return ReplayedJobs(requeued=tuple(requeued), left=left, why=why, canary=end)
    requeued += _requeued(store, others, left, from_start=from_start)
    anew = " from the start" if from_start and requeued else ""
    why = f"{counted(len(requeued), 'job')} requeued{anew}" + (f", {len(left):,} left as they are." if left else ".")
    return ReplayedJobs(requeued=tuple(requeued), left=left, why=why, canary=end)


def _requeued(store: Store, jobs: Mapping[str, str], left: dict[str, str], *, from_start: bool) -> list[str]:
    """The jobs that were; the others are `left`, with the reason."""
    done: list[str] = []
    how: dict[str, Any] = {"by": this_user(), "reason": "its dead letter was replayed", "from_start": from_start}
    for letter, job in jobs.items():
        try:
            number = int(job) if job.isdecimal() and len(job) < 19 else 0
            found = store.job(number)
            if found is not None and found.letter != letter:
                found = None  # the letter was imported: the job of this number is another one
            moved = found is not None and keep_trying(
                lambda number=number: store.requeue_job(number, **how, ahead_us=ahead_us()),  # type: ignore[misc]
                "the store",
                unclear=False,
            )
        except StoreRefused as refused:
            left[letter] = str(refused)
            continue
        if moved:
            done.append(job)
        else:
            now = None if found is None else store.job(number)
            left[letter] = (
                "its job is not in this store, or not kept any more; enqueue it anew"
                if now is None
                else f"its job is {now.status}"
            )
    return done


def _end(store: Store, jobs: Iterable[str]) -> tuple[Literal["succeeded", "failed", "unknown"], str]:
    """How the jobs of a canary have ended. An attempt that failed is enough: nobody waits for the next one."""
    clock = here.get().clock
    untaken, wait = clock.monotonic() + _UNTAKEN, _FIRST_LOOK
    waiting = [int(job) for job in jobs]
    if not waiting:
        return "unknown", "none of them could be requeued"
    them = "it" if len(waiting) == 1 else "them"
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
            return "unknown", f"no worker is there to do {them}"
        if any(row is not None and row.status != "queued" for row in rows.values()):
            untaken = clock.monotonic() + _UNTAKEN
        elif clock.monotonic() >= untaken:
            return "unknown", f"no worker took {them} within {_UNTAKEN:g} s"
        clock.sleep(wait)
        wait = min(_LAST_LOOK, wait * _GROWTH)
