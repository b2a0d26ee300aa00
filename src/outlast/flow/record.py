"""
A flow's run as it is on record: steps, their attempts, what they came to, in values and in words.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from outlast.flow.outputs import Outputs
from outlast.flow.progress import DONE, Progress, in_doubt, is_begun
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
NOTHING: Mapping[str, StepStatus] = MappingProxyType({})
#: Why a row was left as it is when its step was undone.
UNKNOWN = "nobody knows whether it was done"
_PAGE = 500


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
    alone = left_alone(store, record, progress)
    steps = tuple(
        _step_row(store, codec, record, progress, step, attempts, alone.get(step.id), over=over)
        for step in manifest.steps
    )
    fields: dict[str, Any] = {
        "id": record.id,
        "run_key": record.run_key,
        "pipeline": record.pipeline,
        "status": record.status,
        "why": record.why,
        "reason": record.reason,
        "compensation": progress.compensation(alone),
        "dead_letters": open_letters(steps),
        **said,
    }
    return FlowResult(steps=steps, error=error, **fields)


class LeftAlone(dict[str, "StepStatus"]):
    """
    Steps of which nothing was this run's to undo. `unknown` are, by the ids of their steps, how many rows nobody knows of
    whether they were done: they were not undone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unknown: dict[str, int] = {}


def left_alone(store: Store, record: RunRecord, progress: Progress) -> LeftAlone:
    """
    Steps that are on record as undone row by row, and had no row that was this run's to undo, with what they are in truth: as
    they were, and ``cached`` if their rows were known by their keys.
    """
    found = LeftAlone()
    last = max((row.round for row in (*progress.do.values(), *progress.undo.values())), default=1)
    for name, undo in progress.undo.items():
        ended = undo.state in {"succeeded", "failed"}
        if not ended or undo.definition["work"].get("compensate", {}).get("per") != "row":
            continue
        rows = _newest_rows(store, record, name, last)
        undos = [] if rows is None else _undos(store, rows)
        if undos and (unknown := _unknown(store, undos[-1])):
            found.unknown[name] = unknown
        if undo.state == "failed" or not all(0 < run.counts.total == found.unknown.get(name, 0) for run in undos):
            continue
        status = _status(progress.do.get(name), None, over=True)
        if status == "compensated":
            status = "cached" if rows is not None and rows.counts.succeeded else "succeeded"
        found[name] = status
    return found


def _newest_rows(store: Store, record: RunRecord, step: str, last: int) -> RunRecord | None:
    """The newest run over the rows of a step."""
    for number in range(last, 0, -1):
        key = f"{record.id}/{step}" + ("" if number == 1 else f"/{number}")
        if (found := store.find_run(f"{record.pipeline}.{step}", key)) is not None:
            return found
    return None


def _undos(store: Store, rows: RunRecord) -> list[RunRecord]:
    """The runs that undo rows, the newest last: what could not be undone at first has one of its own."""
    found: list[RunRecord] = []
    while True:
        key = f"{rows.run_key}/undo" + (f"/{len(found) + 1}" if found else "")
        run = store.find_run(f"{rows.pipeline}.undo", key)
        if run is None:
            return found
        found.append(run)


def _unknown(store: Store, undo: RunRecord) -> int:
    """How many rows an undoing has left as they are, because nobody knows of them."""
    many, after = 0, None
    while undo.counts.skipped:  # what undoes a row may leave it, too
        page = store.items(undo.number, status="skipped", after=after, limit=_PAGE)
        many += sum(row.reason == UNKNOWN for row in page)
        if len(page) < _PAGE:
            break
        after = page[-1].seq
    return many


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
    alone: StepStatus | None,
    *,
    over: bool,
) -> StepRow:
    row, undo = progress.do.get(step.id), progress.undo.get(step.id)
    status = alone or _status(row, undo, over=over)
    outputs: Mapping[str, Any] = {}
    if status in DONE or status == "compensating":  # who undoes it by hand needs them, too
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
        error=None if told is None or status in {*DONE, "compensating", "compensated"} else told.error,
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
    if row.state in DONE and is_begun(undo):
        return "compensating"
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


def half_in_words(progress: Progress, rows: Mapping[str, str], *, at_work: bool) -> list[str]:
    """Which steps were begun to be undone and are not, and how far that is; `rows` says that of those that have rows."""
    half = progress.half_undone()
    if at_work:
        return [f"being undone: {_named(half, rows)}"] if half else []
    cut = [name for name in half if was_cut_off(progress.undo[name])]
    rest = [name for name in half if name not in cut]
    found = [f"begun to be undone, and not finished: {_named(rest, rows)}"] if rest else []
    if cut:
        found.append(f"begun to be undone, and cut off, nobody knows how far it came: {_named(cut, rows)}")
    return found


def was_cut_off(undo: FlowStep) -> bool:
    """Whether an undoing that nobody is at was cut off in the middle of an attempt; else it was stopped between two."""
    return undo.state == "running" or (undo.state == "pending" and undo.error_type == "WorkerLost")


def _named(names: Sequence[str], rows: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({rows[name]})" if name in rows else name for name in names)


def in_words(
    progress: Progress,
    status: str,
    key: str,
    letters: int = 0,
    *,
    alone: Mapping[str, StepStatus] = NOTHING,
    rows: Mapping[str, str] | None = None,
) -> str:
    """
    What a run came to, and what is left to do. `alone` are the steps of which nothing was this run's to undo, `rows` says how far the
    undoing of a step's rows is.
    """
    half = progress.half_undone()
    unknown = alone.unknown if isinstance(alone, LeftAlone) else {}
    states = {step.id: alone.get(step.id) or progress.state(step.id) for step in progress.manifest.steps}
    done = sum(state in DONE and name not in half for name, state in states.items())
    said = f"{done} of {counted(len(states), 'step')} succeeded"
    cached = sum(state == "cached" for state in states.values())
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
    undone = [name for name, row in progress.undo.items() if row.state == "succeeded" and name not in alone]
    if undone:
        parts.append(f"undone: {', '.join(undone)}")
    elif {*alone} - {*unknown}:
        parts.append("nothing was this run's to undo")
    for name, many in unknown.items():
        were, they = ("was", "it is") if many == 1 else ("were", "they are")
        parts.append(f"nobody knows whether {counted(many, 'row')} of {name} {were} done, so {they} not undone")
    if left := progress.not_undone():
        parts.append(f"could not be undone and still stands: {', '.join(left)}")
    parts += half_in_words(progress, rows or {}, at_work=status == "running")
    if status == "failed" and (doubt := in_doubt(progress.manifest, [*progress.do.values(), *progress.undo.values()])):
        parts.append(
            f"look first whether {', '.join(doubt)} was done: run it again with run_key={key!r} and from_step={doubt[0]!r} "
            "only if it was not, for that does it once more"
        )
    elif status == "failed":
        parts.append(f"run it again with run_key={key!r} to try what is not done")
    elif status == "cancelled":
        standing = progress.standing()
        if standing:
            parts.append(f"still stands: {', '.join(standing)}")
        elif not half and not unknown:
            parts.append("nothing is left that could be undone")
    elif status != "running":
        parts.append(f"run it again with run_key={key!r} to go on")
    return "; ".join(parts)
