"""
A flow's run at one instant, as a value: what a watcher is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlast.flow.progress import DONE, PARTIAL
from outlast.flow.record import _OVER, _status
from outlast.store.records import from_us

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from outlast.flow.progress import Progress
    from outlast.flow.results import FlowResult, StepStatus
    from outlast.store.records import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """
    A step. `attempt` is the one under way or the last one, of `max_attempts`; `due_at` is when the next one is, while it
    waits. `undoing` says that what undoes it is under way; then these are about that. `took` are the seconds from its first
    attempt to its end, once it has ended. `begun`: an attempt was begun in this round, or is about to be. `counts` are
    those of its rows or items, while they are worked on.
    """

    id: str
    component: str
    needs: Sequence[str]
    status: StepStatus
    attempt: int
    max_attempts: int
    started_at: datetime | None
    due_at: datetime | None
    error: str | None
    error_class: str | None = None
    took: float | None = None
    undoing: bool = False
    waiting: bool = False
    begun: bool = True
    counts: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowView:
    """
    A run of a flow. `requested` is how it was asked to end, while it winds down; `result` what it came to, once it is over.
    """

    id: str
    run_key: str
    pipeline: str
    steps: Sequence[StepView]
    undoing: bool
    result: FlowResult | None = None
    requested: str | None = None


def view_of(
    progress: Progress,
    record: RunRecord,
    running: Mapping[str, Any],
    *,
    result: FlowResult | None = None,
    requested: str | None = None,
) -> FlowView:
    """What is known now. What a result says of a step is known best."""
    told: dict[str, StepStatus] = {} if result is None else {one.id: one.status for one in result.steps}
    over = result is not None and result.status in _OVER
    return FlowView(
        id=record.id,
        run_key=record.run_key,
        pipeline=record.pipeline,
        steps=tuple(
            _step(progress, step, running.get(step.id), told.get(step.id), over=over)
            for step in progress.manifest.steps
        ),
        undoing=any(work.deed == "undo" for work, _ in running.values()),
        result=result,
        requested=requested,
    )


def _step(progress: Progress, step: Any, active: Any, told: StepStatus | None, *, over: bool) -> StepView:
    row = progress.do.get(step.id)
    work = None if active is None else active[0]
    status = "running" if work is not None else told or _status(row, progress.undo.get(step.id), over=over)
    due = None if row is None or row.due_us is None or row.state != "waiting" else from_us(row.due_us)
    waiting = work is not None and work.due_us is not None
    if work is not None and work.due_us is not None:
        due = from_us(work.due_us)
    undo = progress.undo.get(step.id)
    if work is None and told is None and status in DONE and undo is not None and undo.state == "succeeded":
        status = "compensated"  # its own row says so when it is read again
    last = undo if status == "compensation_failed" else row
    retry = "compensate_retry" if work is not None and work.deed == "undo" else "retry"
    began = None if row is None or row.state not in {*DONE, PARTIAL, "failed"} else row.began_us
    return StepView(
        id=step.id,
        component=step.component,
        needs=step.needs,
        status=status,
        attempt=work.attempt if work is not None else 0 if last is None else last.attempts,
        max_attempts=int(step.policy.get(retry, step.policy["retry"])["max_attempts"]),
        started_at=from_us(work.started_us) if work is not None and work.started_us else None,
        due_at=due,
        error=work.last_error if work is not None else None if last is None else last.error,
        error_class=work.last_class if work is not None else None if last is None else last.error_class,
        took=None if began is None or row is None else max(0.0, (row.changed_us - began) / 1e6),
        undoing=work is not None and work.deed == "undo",
        waiting=waiting,
        begun=work is not None or (row is not None and row.made_in_round),
        counts=None if work is None else work.counts,
    )
