"""
A flow's run as it is on record: steps, their attempts, what they came to, in values and in words.
"""

from __future__ import annotations

import re
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.flow.outputs import Outputs
from outlast.flow.progress import DONE, PARTIAL, Progress, in_doubt, is_begun, may_be_done, of_rows
from outlast.flow.results import FlowResult, StepRow
from outlast.jobs.handle import AttemptRow
from outlast.kernel.wording import counted
from outlast.spec.manifest import Manifest
from outlast.store.records import from_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from outlast.flow.results import StepStatus
    from outlast.store import Store
    from outlast.store.codec import Codec
    from outlast.store.flows import FlowStep, StepAttempt
    from outlast.store.records import ItemRow, ItemStatus, RunRecord

_OVER = frozenset({"completed", "partial_success", "failed", "cancelled"})
_ENDED = frozenset({"completed", "partial_success", "failed"})
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
    requeued = said.get("reason", record.reason) == "requeued"
    alone = left_alone(store, record, progress)
    steps = tuple(
        _step_row(store, codec, record, progress, step, attempts, alone.get(step.id), over=over, requeued=requeued)
        for step in manifest.steps
    )
    fields: dict[str, Any] = {
        "id": record.id,
        "run_key": record.run_key,
        "pipeline": record.pipeline,
        "status": record.status,
        "reason": record.reason,
        "compensation": progress.compensation(alone),
        "dead_letters": open_letters(store, record, steps, max((row.round for row in rows), default=1)),
        **said,
    }
    fields.setdefault("why", with_letters(record.why, fields["dead_letters"]))
    return FlowResult(steps=steps, error=error, **fields)


class LeftAlone(dict[str, "StepStatus"]):
    """
    Steps of which nothing was this run's to undo. `unknown` are, by the ids of their steps, how many rows nobody knows of
    whether they were done: they were not undone, in whichever round that was.
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
        if undo.definition["work"].get("compensate", {}).get("per") != "row":
            continue
        rounds = [(run, _undos(store, run)) for _, run in _rows_of(store, record, name, range(1, last + 1))]
        half = is_begun(undo)
        if unknown := _unknown(store, rounds, half=half):
            found.unknown[name] = len(unknown)
        if undo.state != "succeeded":
            continue
        rows, undos = rounds[-1] if rounds else (None, [])
        if not all(0 < run.counts.total == len(_left_by(store, run)) for run in undos):
            continue
        status = _status(progress.do.get(name), None, over=True)
        if status == "compensated":
            status = "cached" if rows is not None and rows.counts.succeeded else "succeeded"
        found[name] = status
    return found


def _rows_of(store: Store, record: RunRecord, step: str, rounds: Iterable[int]) -> Iterator[tuple[int, RunRecord]]:
    """The runs over the rows of a step in these rounds, of those that have one."""
    for number in rounds:
        key = f"{record.id}/{step}" + ("" if number == 1 else f"/{number}")
        if (found := store.find_run(f"{record.pipeline}.{step}", key)) is not None:
            yield number, found


def _undos(store: Store, rows: RunRecord) -> list[RunRecord]:
    """The runs that undo rows, the newest last: what could not be undone at first has one of its own."""
    found: list[RunRecord] = []
    while True:
        key = f"{rows.run_key}/undo" + (f"/{len(found) + 1}" if found else "")
        run = store.find_run(f"{rows.pipeline}.undo", key)
        if run is None:
            return found
        found.append(run)


def _unknown(store: Store, rounds: Sequence[tuple[RunRecord, Sequence[RunRecord]]], *, half: bool) -> set[str]:
    """
    Keys of the rows of which nobody knows whether they were done, by all rounds of a step and what undid each, the oldest
    first. A later round that has done a row, and an undoing that has undone it, tell what has become of it; a later round
    that never came to it, or that failed with it, tells nothing of the earlier one. `half`: the last undoing is not over.
    """
    found: set[str] = set()
    for place, (rows, undos) in enumerate(rounds, 1):
        found -= _keys(store, rows, "succeeded") if found else found
        for undo in undos:
            if half and place == len(rounds) and undo is undos[-1] and undo.status not in _ENDED:
                continue  # which says itself that it was begun, and how far it is
            found -= _keys(store, undo, "succeeded") if found else found
            found |= _left_by(store, undo)
    return found


def _left_by(store: Store, undo: RunRecord) -> set[str]:
    """Keys of the rows that an undoing has left as they are, because nobody knows of them."""
    if not undo.counts.skipped:
        return set()
    # What undoes a row may leave it, too, for reasons of its own.
    return {row.key for row in _items(store, undo, "skipped") if row.reason == UNKNOWN}


def _keys(store: Store, run: RunRecord, status: ItemStatus) -> set[str]:
    return {row.key for row in _items(store, run, status)}


def _items(store: Store, run: RunRecord, status: ItemStatus) -> Iterator[ItemRow]:
    """The items of a run that have ended so."""
    after = None
    while True:
        page = store.items(run.number, status=status, after=after, limit=_PAGE)
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].seq


def unknown_in_words(unknown: Mapping[str, int]) -> list[str]:
    """
    A sentence for each step with rows of which nobody knows.

    >>> unknown_in_words({"pay": 2})
    ['nobody knows whether 2 rows of pay were done, so they are not undone']
    """
    found: list[str] = []
    for name, many in unknown.items():
        were, they = ("was", "it is") if many == 1 else ("were", "they are")
        found.append(f"nobody knows whether {counted(many, 'row')} of {name} {were} done, so {they} not undone")
    return found


# -- rows that stand -------------------------------------------------------------------------------------------------------


class RowsLeft(NamedTuple):
    """
    Rows of a step that were done and stand, because what undoes all rows at once is only for a step that came to its end.
    `total` is None where nobody has counted the rows; `cut_off`: a process has died in the middle, and more may be done
    than is on record.
    """

    done: int
    total: int | None
    cut_off: bool

    def in_words(self, step: str) -> str:
        """
        What is to be said of them.

        >>> RowsLeft(8, 12, cut_off=False).in_words("pack")
        '8 of 12 rows of pack were done and stand'
        >>> RowsLeft(1, None, cut_off=True).in_words("pack")
        'at least 1 row of pack was done and stands'
        >>> RowsLeft(0, None, cut_off=True).in_words("pack")
        'nobody knows whether rows of pack were done, so they are not undone'
        """
        if not self.done:
            return f"nobody knows whether rows of {step} were done, so they are not undone"
        rows = counted(self.done, "row") if self.total is None else f"{self.done:,} of {counted(self.total, 'row')}"
        were = "was done and stands" if self.done == 1 else "were done and stand"
        return f"{'at least ' if self.cut_off else ''}{rows} of {step} {were}"


def rows_left(store: Store, codec: Codec, record: RunRecord, progress: Progress) -> dict[str, RowsLeft]:
    """
    Rows that were done and stand, of steps that are undone once for all rows and did not come to their end; by the ids of
    the steps. What undoes a step has undone all rows of the rounds up to its own.
    """
    steps = [row for row in progress.do.values() if _leaves_rows(row)]
    if not steps:
        return {}
    found: dict[str, RowsLeft] = {}
    attempts = store.step_attempts(record.number)
    last = max(row.round for row in (*progress.do.values(), *progress.undo.values()))
    for step in steps:
        own = [one for one in attempts if one.step == step.step]
        since = max((one.round for one in own if one.deed == "undo"), default=0) + 1
        runs = [*_rows_of(store, record, step.step, range(since, last + 1))]
        done: set[str] = set()
        for _, run in runs:
            done |= _done_here(store, codec, run, by_key="idempotency" in step.definition["work"])
        crashed = {one.round for one in own if (one.deed, one.outcome) == ("do", "crashed")}
        cut_off = any(_has_open(run) and (run.status == "running" or number in crashed) for number, run in runs)
        if done or cut_off:
            newest = runs[-1][1]
            total = newest.counts.total if newest.source_exhausted else None
            found[step.step] = RowsLeft(len(done), total, cut_off)
    return found


def _leaves_rows(row: FlowStep) -> bool:
    """Whether a step is undone once for all of its rows, and has not come to its end: then nothing undoes those that are done."""
    how = row.definition["work"].get("compensate")
    if (
        how is None
        or "for_each" not in row.definition["work"]
        or row.state not in {"failed", PARTIAL, "pending", "waiting"}
    ):
        return False
    return how.get("per") != "row" and not (how["when"] == "started" and row.made_in_round)


def _done_here(store: Store, codec: Codec, run: RunRecord, *, by_key: bool) -> set[str]:
    """Keys of the rows that a run has done; `by_key`: what another run has done under its key is that run's."""
    found: set[str] = set()
    for row in _items(store, run, "succeeded"):
        kept = codec.decode(row.output or b"") if by_key else None
        if not (isinstance(kept, dict) and "cached" in kept):
            found.add(row.key)
    return found


def _has_open(run: RunRecord) -> bool:
    """Whether rows may be without an end."""
    return not run.source_exhausted or run.counts.pending > 0


def newest_rows(store: Store, record: RunRecord, step: str, last: int) -> RunRecord | None:
    """The newest run over the rows or items of a step, of a round up to `last`."""
    for number in range(last, 0, -1):
        key = f"{record.id}/{step}" + ("" if number == 1 else f"/{number}")
        for run in store.find_runs(key, None):
            if run.run_key == key:
                return run
    return None


def settled_rows(store: Store, run: RunRecord) -> dict[str, str]:
    """Rows of a run whose outcome was settled by hand, by their keys: ``done`` or ``not-done``."""
    found: dict[str, str] = {}
    after = None
    while True:
        page = store.letters(after=after, limit=_PAGE, run=run.id)
        found |= {one.item_key: str(one.metadata["settled"]["as"]) for one in page if "settled" in one.metadata}
        if len(page) < _PAGE:
            return found
        after = page[-1]


def doubtful(store: Store, record: RunRecord, manifest: Manifest, rows: Sequence[FlowStep]) -> list[str]:
    """As `in_doubt`, without steps of which every doubtful row was settled by hand."""
    return [
        name
        for name in in_doubt(manifest, rows)
        if doubtful_rows(store, record, next(row for row in rows if (row.step, row.deed) == (name, "do"))) != 0
    ]


def doubtful_rows(store: Store, record: RunRecord, row: FlowStep) -> int | None:
    """How many rows of a step may have been done and are not settled; None if what is in doubt are no rows."""
    run = newest_rows(store, record, row.step, row.round) if of_rows(row) else None
    if run is None or run.status not in _ENDED:
        return None
    settled = settled_rows(store, run)
    failed = (one for how in ("dlq", "failed") for one in _items(store, run, how))
    return sum(row_may_be_done(one) and one.key not in settled for one in failed)


def row_may_be_done(row: ItemRow) -> bool:
    """Whether a row may have been done although it failed."""
    return row.failure is not None and may_be_done(row.failure.stop_reason, row.failure.error_class)


def open_letters(store: Store, record: RunRecord, steps: Sequence[StepRow], last: int) -> int:
    """Open dead letters of rows and items, of steps that have succeeded or lost rows."""
    found = 0
    for step in steps:
        if step.status == PARTIAL and (run := newest_rows(store, record, step.id, last)) is not None:
            found += len(store.letter_owners(run=run.id, status="open"))
        elif (
            step.status in DONE
            and {"dead_letters", "outcome", "run"} <= {*step.outputs}
            and step.outputs["dead_letters"]
        ):
            found += len(store.letter_owners(run=str(step.outputs["run"]), status="open"))
    return found


_SUCCEEDED = re.compile(
    r"(\d of [\d,]+ steps? succeeded(?:, \d+ of them before, by (?:its key|their keys))?)"
    r"(?:; [\d,]+ dead letters? of rows (?:is|are) open)?"
)


def with_letters(why: str, letters: int) -> str:
    """A sentence that is on record, with how many letters of rows are open now: some were put away since, or sent again."""
    *_, last = (None, *_SUCCEEDED.finditer(why))
    return why if last is None else f"{why[: last.start()]}{last[1]}{_open_in_words(letters)}{why[last.end() :]}"


def _open_in_words(letters: int) -> str:
    return f"; {counted(letters, 'dead letter')} of rows {'is' if letters == 1 else 'are'} open" if letters else ""


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
    requeued: bool,
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
        stop_reason=None if told is None or requeued else told.stop_reason,
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
    left: Mapping[str, RowsLeft] | None = None,
    retried: bool = False,
) -> str:
    """
    What a run came to, and what is left to do. `alone` are the steps of which nothing was this run's to undo, `rows` says how far the
    undoing of a step's rows is, `left` are rows that were done and that nothing undoes. `retried`: the job of the run tries again what
    has failed.
    """
    half = progress.half_undone()
    unknown = alone.unknown if isinstance(alone, LeftAlone) else {}
    states = {step.id: alone.get(step.id) or progress.state(step.id) for step in progress.manifest.steps}
    done = sum(state in DONE and name not in half for name, state in states.items())
    said = f"{done} of {counted(len(states), 'step')} succeeded"
    cached = sum(state == "cached" for state in states.values())
    if cached:
        said += f", {cached} of them before, by {'its key' if cached == 1 else 'their keys'}"
    said += _open_in_words(letters)
    if status == "completed":
        return "; ".join([said, *unknown_in_words(unknown)])
    parts: list[str] = []
    for name in progress.failed:
        row = progress.do[name]
        how = row.error_class if retried else f"{row.error_class}, {row.stop_reason}"
        parts.append(f"{name} failed ({how}): {row.error}")
    for name in progress.partial:
        row = progress.do[name]
        how = f" ({row.error_class})" if retried else ""
        parts.append(f"{name} is incomplete{how}: {row.error}")
    parts.append(said)
    undone = [name for name, row in progress.undo.items() if row.state == "succeeded" and name not in alone]
    if undone:
        parts.append(f"undone: {', '.join(undone)}")
    elif {*alone} - {*unknown}:
        parts.append("nothing was this run's to undo")
    parts += unknown_in_words(unknown)
    stand = [one.in_words(name) for name, one in (left or {}).items()] if status in {"failed", "cancelled"} else []
    parts += stand
    if stuck := progress.not_undone():
        parts.append(f"could not be undone and still stands: {', '.join(stuck)}")
    parts += half_in_words(progress, rows or {}, at_work=status == "running")
    over = status in {"failed", "partial_success"}
    doubt = in_doubt(progress.manifest, [*progress.do.values(), *progress.undo.values()]) if over else []
    if doubt and all(of_rows(progress.do[name]) for name in doubt):
        parts.append(
            f"settle the rows of {', '.join(doubt)} that may have been done (outlast dlq resolve ID --as done|not-done); "
            f"run it again with run_key={key!r} after that"
        )
    elif doubt:
        parts.append(
            f"look first whether {', '.join(doubt)} was done: run it again with run_key={key!r} and from_step={doubt[0]!r} "
            "only if it was not, for that does it once more"
        )
    elif status == "partial_success":
        parts.append(f"run it again with run_key={key!r} to run only the open rows, and what needs them")
    elif status == "failed":
        parts.append(f"run it again with run_key={key!r} to try what is not done")
    elif status == "cancelled":
        standing = [name for name in progress.standing() if name not in stuck]  # those are told already
        if standing:
            parts.append(f"still stands: {', '.join(standing)}")
        elif not half and not unknown and not stand and not stuck:
            parts.append("nothing is left that could be undone")
    elif status != "running" and not retried:
        parts.append(f"run it again with run_key={key!r} to go on")
    return "; ".join(parts)
