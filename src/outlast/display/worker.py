"""
A worker of jobs as it is at one moment, drawn for a terminal and told in a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlast.kernel.redact import plain
from outlast.kernel.wording import counted, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

_PROGRESS = 5  # jobs whose progress is shown
_OLD = 1.5  # seconds after which what was seen of the queues is said with its age


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNow:
    """
    What a worker is doing. `processing` of `concurrency` slots run code; `waiting` jobs wait without one, for a limit, a
    circuit or a pause between attempts; `stuck` slots are taken by code that was given up and does not end.

    `queued` and `scheduled` are of the queues it serves, as they were last seen, `seen_ago` seconds before; None before
    that. `taken` are the jobs that it has taken out of them since. `ending` says what it waits for once it was asked to
    end, `trouble` what else is wrong. `progress` has the jobs that report it: which one, and how far it is.
    """

    app: str
    elapsed: float
    concurrency: int
    processing: int = 0
    waiting: int = 0
    stuck: int = 0
    succeeded: int = 0
    failed: int = 0
    requeued: int = 0
    released: int = 0
    cancelled: int = 0
    lost: int = 0
    queued: int | None = None
    scheduled: int = 0
    seen_ago: float = 0.0
    taken: int = 0
    next_in: float | None = None
    paused: tuple[str, ...] = ()
    ending: str | None = None
    trouble: str | None = None
    progress: tuple[tuple[str, str], ...] = ()


def picture(now: WorkerNow, width: int, height: int = 1000) -> RenderableType:
    """The worker for a terminal of this size: what it does, what waits, and what is wrong."""
    from rich.console import Group
    from rich.text import Text

    rows: list[Text] = []
    for parts in (_work(now), _progress(now), _queues(now), _wrong(now)):
        row = Text(no_wrap=True, overflow="ellipsis")
        for said, style in parts:
            if row.cell_len and row.cell_len + 3 + len(said) > width:
                rows.append(row)
                row = Text("  ", no_wrap=True, overflow="ellipsis")
            row.append("   " if row.cell_len > 2 else "").append(said, style=style)
        if row.cell_len:
            rows.append(row)
    return Group(*rows[: max(1, height - 1)])


def lines(now: WorkerNow) -> Iterator[str]:
    """The worker as one line for a log."""
    parts = [*_work(now)[1:], *_progress(now), *_queues(now), *_wrong(now)]
    yield plain(f"worker of {now.app}: {', '.join(said for said, _ in parts)}")


def _work(now: WorkerNow) -> list[tuple[str, str]]:
    parts = [(f"{plain(now.app)}  {whole(now.elapsed)}", "bold")]
    parts.append((f"{now.processing:,} of {now.concurrency:,} processing", "cyan" if now.processing else ""))
    parts.append((f"{now.succeeded:,} succeeded", "green" if now.succeeded else ""))
    parts.append((f"{now.failed:,} failed", "red" if now.failed else ""))
    parts.append((f"{now.requeued:,} requeued", "yellow" if now.requeued else ""))
    seldom = ((now.waiting, "waiting"), (now.cancelled, "cancelled"), (now.released, "given back"), (now.lost, "lost"))
    return parts + [(f"{number:,} {word}", "yellow") for number, word in seldom if number]


def _progress(now: WorkerNow) -> list[tuple[str, str]]:
    said = [(f"{plain(job)}: {plain(far)}", "cyan") for job, far in now.progress[:_PROGRESS]]
    more = len(now.progress) - _PROGRESS
    return [*said, (f"{counted(more, 'more job')} with progress", "")] if more > 0 else said


def _queues(now: WorkerNow) -> list[tuple[str, str]]:
    if now.queued is None:
        return []
    following = "" if now.next_in is None or not now.scheduled else f", the next in {whole(now.next_in)}"
    # It is to add up with what has ended: what is old is said with its age, what is not lacks what was taken since.
    old = now.seen_ago >= _OLD
    queued = f"{now.queued:,} queued {whole(now.seen_ago)} ago" if old else f"{max(0, now.queued - now.taken):,} queued"
    parts = [(queued, ""), (f"{now.scheduled:,} due later{following}", "")]
    if now.paused:
        parts.append((f"paused: {plain(', '.join(now.paused))}", "yellow"))
    return parts


def _wrong(now: WorkerNow) -> list[tuple[str, str]]:
    said = [now.ending, now.trouble]
    if now.stuck:
        said.append(f"{counted(now.stuck, 'slot')} taken by code that was given up and does not end")
    return [(text, "yellow") for text in said if text]
