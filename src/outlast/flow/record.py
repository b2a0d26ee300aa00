"""
A flow's run as it is on record: steps, their attempts, what they came to, in values and in words.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from outlast.flow.outputs import Outputs
from outlast.flow.progress import DONE, Progress, in_doubt
from outlast.flow.results import FlowResult, StepRow
from outlast.jobs.handle import AttemptRow
from outlast.kernel.wording import counted
from outlast.spec.manifest import Manifest
from outlast.store.records import from_us

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlast.flow.results import StepStatus
    from outlast.store import Store
    from outlast.store.codec import Codec
    from outlast.store.flows import FlowStep, StepAttempt
    from outlast.store.records import RunRecord

_OVER = frozenset({"completed", "failed", "cancelled"})


def manifest_of(record: RunRecord) -> Manifest:
    """The manifest that a run was started with, or went on with last."""
    found = (record.identity or {}).get("flow")
    if found is None:
        raise ValueError(f"the run {record.run_key} is no run of a flow")
    import json

    return Manifest.from_json(json.dumps(found["manifest"]))


def progress_of(manifest: Manifest, rows: Sequence[FlowStep], record: RunRecord) -> Progress:
    """How far a run is."""
    progress = Progress(manifest, cancelling=record.reason == "cancelling")
    progress.put(rows)
    return progress


def result_of_record(
    store: Store,
    codec: Codec,
    record: RunRecord,
    manifest: Manifest | None = None,
    *,
    error: BaseException | None = None,
    **said: Any,
) -> FlowResult:
    """What is on record of a run. `said` are fields of the result that are known better."""
    manifest = manifest or manifest_of(record)
    rows = store.flow_steps(record.number)
    progress = progress_of(manifest, rows, record)
    attempts = store.step_attempts(record.number)
    over = said.get("status", record.status) in _OVER
    steps = tuple(_step_row(store, codec, record, progress, step, attempts, over=over) for step in manifest.steps)
    fields: dict[str, Any] = {
        "id": record.id,
        "run_key": record.run_key,
        "pipeline": record.pipeline,
        "status": record.status,
        "why": record.why,
        "reason": record.reason,
        "compensation": progress.compensation(),
        "dead_letters": open_letters(steps),
        **said,
    }
    return FlowResult(steps=steps, error=error, **fields)


def open_letters(steps: Sequence[StepRow]) -> int:
    """Rows and items that failed for good although their step has succeeded."""
    found = 0
    for step in steps:
        if step.status in DONE and "dead_letters" in step.outputs and "outcome" in step.outputs:
            count = step.outputs["dead_letters"]
            found += count if isinstance(count, int) else 0
    return found


def _step_row(
    store: Store,
    codec: Codec,
    record: RunRecord,
    progress: Progress,
    step: Any,
    attempts: Sequence[StepAttempt],
    *,
    over: bool,
) -> StepRow:
    row, undo = progress.do.get(step.id), progress.undo.get(step.id)
    status = _status(row, undo, over=over)
    outputs: Mapping[str, Any] = {}
    if status in DONE:
        data = store.outputs_of_step(record.number, step.id)
        if data is not None:
            outputs = Outputs(data, codec, partial(store.part_of_outputs, record.number, step.id))
    told = undo if status == "compensation_failed" and undo is not None else row
    return StepRow(
        id=step.id,
        component=step.component,
        status=status,
        attempts=_attempts(attempts, step.id, "do"),
        outputs=outputs,
        error=None if told is None or status in {*DONE, "compensated"} else told.error,
        stop_reason=None if told is None else told.stop_reason,
        undone_by=_attempts(attempts, step.id, "undo"),
    )


def _status(row: FlowStep | None, undo: FlowStep | None, *, over: bool) -> StepStatus:
    if undo is not None and undo.state == "failed":
        return "compensation_failed"
    if row is None:
        return "skipped" if over else "pending"
    if row.state in {"pending", "waiting"}:
        return "skipped" if over and not row.made_in_round else "pending"
    return row.state  # type: ignore[return-value]


def _attempts(attempts: Sequence[StepAttempt], step: str, deed: str) -> tuple[AttemptRow, ...]:
    return tuple(
        AttemptRow(
            number=one.number,
            started_at=from_us(one.started_us),
            duration=one.took_us / 1e6,
            outcome=one.outcome,
            error=one.error,
            error_class=one.error_class,
            error_type=one.error_type,
            stop_reason=one.stop_reason,
            worker=one.worker,
            next_run_at=None if one.next_run_us is None else from_us(one.next_run_us),
            traceback=one.traceback,
        )
        for one in attempts
        if one.step == step and one.deed == deed
    )


def in_words(progress: Progress, status: str, key: str, letters: int = 0) -> str:
    """What a run came to, and what is left to do."""
    steps = progress.manifest.steps
    done = sum(progress.state(step.id) in DONE for step in steps)
    said = f"{done} of {counted(len(steps), 'step')} succeeded"
    cached = sum(progress.state(step.id) == "cached" for step in steps)
    if cached:
        said += f", {cached} of them before, by {'its key' if cached == 1 else 'their keys'}"
    if letters:
        said += f"; {counted(letters, 'dead letter')} of rows {'is' if letters == 1 else 'are'} open"
    if status == "completed":
        return said
    parts: list[str] = []
    for name in progress.failed:
        row = progress.do[name]
        parts.append(f"{name} failed ({row.error_class}, {row.stop_reason}): {row.error}")
    parts.append(said)
    undone = [name for name, row in progress.undo.items() if row.state == "succeeded"]
    if undone:
        parts.append(f"undone: {', '.join(undone)}")
    if left := progress.not_undone():
        parts.append(f"could not be undone and still stands: {', '.join(left)}")
    if status == "failed" and (doubt := in_doubt(progress.manifest, [*progress.do.values(), *progress.undo.values()])):
        parts.append(
            f"look first whether {', '.join(doubt)} was done: run it again with run_key={key!r} and from_step={doubt[0]!r} "
            "only if it was not, for that does it once more"
        )
    elif status == "failed":
        parts.append(f"run it again with run_key={key!r} to try what is not done")
    elif status == "cancelled":
        standing = progress.standing()
        parts.append(f"still stands: {', '.join(standing)}" if standing else "nothing is left that could be undone")
    else:
        parts.append(f"run it again with run_key={key!r} to go on")
    return "; ".join(parts)
