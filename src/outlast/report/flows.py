"""
A flow's run as it is on record: what it came to, every step with every attempt, what was undone and what still stands;
as values, as a page, and what to do next.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from outlast.calls.records import add_to
from outlast.errors import ConfigurationError, nearest
from outlast.flow.doors import files_of, shown_manifest
from outlast.flow.opening import is_settled
from outlast.flow.outputs import Outputs
from outlast.flow.progress import CUT_OFF, DONE, PARTIAL, compared
from outlast.flow.record import (
    doubtful,
    in_words,
    left_alone,
    progress_of,
    result_of_record,
    rows_left,
    unknown_in_words,
    was_cut_off,
    with_letters,
)
from outlast.kernel.clock import here
from outlast.kernel.frames import place_of
from outlast.kernel.redact import mask_known, masked, sanitise
from outlast.kernel.wording import counted, process_of
from outlast.report.gather import passes_of
from outlast.report.jobs import flow_run_of
from outlast.report.model import FORMAT, plain, saved
from outlast.report.views import Shell, as_told, called
from outlast.spec.params import variable_of
from outlast.store.records import ENDED, OF_FLOW, RunCounts, from_us

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from outlast.deadletters import DeadLetter
    from outlast.flow.progress import Progress
    from outlast.flow.results import StepRow, StepStatus
    from outlast.report.model import Pass
    from outlast.spec.manifest import Manifest, ManifestStep
    from outlast.store import Store
    from outlast.store.flows import FlowStep, StepAttempt
    from outlast.store.records import JobRow, RunRecord

_UNREADABLE = "What steps have put out cannot be read here: it was stored through a codec of the app's own."


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """
    One attempt at a step, or at what undoes it. `round` is the round of the run that it belongs to: each that begins
    again what has failed is a new one. `stop_reason` is why there was no other, `next_run_at` when the next one was due,
    `spent` what its code said that it used, such as tokens and money. One that is ``running`` is under way; of one that
    has ``crashed`` nobody knows how long it took before somebody goes on with the run.
    """

    number: int
    round: int
    outcome: str
    started_at: datetime
    took: float | None
    next_run_at: datetime | None
    stop_reason: str | None
    error: str | None
    error_type: str | None
    error_class: str | None
    worker: str | None
    place: str | None
    traceback: str | None
    spent: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def succeeded(self) -> bool:
        return self.outcome == "succeeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """
    One step. `status` is ``pending``, ``running``, ``waiting``, ``succeeded``, ``partial_success`` (it lost rows), ``cached``, ``failed``,
    ``skipped`` (never begun), ``compensating``, ``compensated`` (also by hand) or ``compensation_failed``; the error is that of what undoes it, then. `took` is from the first
    attempt of its last round to the last one, waits included. `outputs` has the type of each. `dead_letter` is the open
    letter that tells of its failure, `rows` the newest run over its rows or items, `dead_letters` how many of these have an
    open one. `nothing_undone`: it is on record as undone, and nothing of it was this run's to undo. `unknown_rows` are rows of
    which nobody knows whether they were done, in this round or an earlier one. `undoing` is how far that
    is which was begun to undo it and has not ended: ``running``, ``waiting``, ``stopped``, or ``cut_off`` if its process ended in
    the middle; `undo_rows` are the rows of it: how many are to be undone (`total`), are undone, and could not be (`failed`).
    """

    id: str
    component: str
    needs: tuple[str, ...]
    status: str
    attempts: tuple[AttemptFacts, ...]
    undone_by: tuple[AttemptFacts, ...]
    took: float | None
    due_at: datetime | None
    error: str | None
    error_class: str | None
    stop_reason: str | None
    outputs: Mapping[str, str]
    dead_letter: str | None
    dead_letters: int
    rows: str | None
    nothing_undone: bool = False
    unknown_rows: int = 0
    undoing: str | None = None
    undo_rows: Mapping[str, int] | None = None
    word: str = ""  # what its status is called here


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFacts:
    """What an attempt at a step has kept for people: the name, its size in bytes, and whether only the first part is there."""

    name: str
    attempt: int
    size: int
    cut: bool
    kept_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowReport:
    """
    What a flow's run came to, and why. `undone` are the steps that were undone, also by hand, `not_undone` those that could not be,
    `undoing` those whose undoing was begun and has not ended, and `standing` those that are done and could be undone. `standing_rows` are, by
    the ids of their steps, how many rows are on record as done of steps that did not come to their end and are undone only as a whole: nothing
    undoes them. `unknown_rows` are, by the ids of their steps, how many rows nobody knows of whether they were done: they are not undone.
    `compensation` is ``none``, ``begun``, ``completed`` or ``failed``. `given` are the parameters that are in no manifest and have to be given again; `unknown` says what cannot be told. `spent` is what all
    attempts at its steps have used, and those at the rows and items of its steps.
    """

    format: int
    id: str
    pipeline: str
    run_key: str
    kind: str
    status: str
    reason: str | None
    why: str
    passes: int
    wanted: str | None
    running_at: str | None
    started_at: datetime
    finished_at: datetime | None
    took: float | None
    file: str | None
    counts: Mapping[str, int]
    steps: tuple[StepFacts, ...]
    compensation: str
    undone: tuple[str, ...]
    not_undone: tuple[str, ...]
    undoing: tuple[str, ...]
    standing: tuple[str, ...]
    standing_rows: Mapping[str, int]
    unknown_rows: Mapping[str, int]
    dead_letters: int
    given: tuple[str, ...]
    artifacts: tuple[KeptFacts, ...]
    pass_list: tuple[Pass, ...]
    unknown: tuple[str, ...] = ()
    spent: Mapping[str, float] = field(default_factory=dict[str, float])
    stored: tuple[str, ...] = field(default=(), metadata={"hidden": True})  # what a command needs to find it
    by_hand: tuple[str, ...] = field(default=(), metadata={"hidden": True})  # of `undone`, by somebody
    rows_left: tuple[str, ...] = field(default=(), metadata={"hidden": True})  # what is said of `standing_rows`
    doubted: tuple[str, ...] = field(default=(), metadata={"hidden": True})  # may be done, and must not be done twice
    called: tuple[str, ...] = field(default=(), metadata={"hidden": True})  # what a command needs to mean it

    @property
    def verdict(self) -> str:
        """What it came to, for a person who reads the commands that follow."""
        return told(self.why)

    def __getitem__(self, step: str, /) -> StepFacts:
        for one in self.steps:
            if one.id == step:
                return one
        raise KeyError(step)

    def next(self, stored: Sequence[str] | None = None) -> list[tuple[str, str]]:
        """What a person may want to do now: what it does, and the command. `stored` says where the store is."""
        return [*_next(self, self.stored if stored is None else stored)]

    def doubt(self, stored: Sequence[str]) -> Iterator[tuple[str, str]]:
        """What settles rows, or does a step again, that may be done already and must not be done twice."""
        for one in self.steps:
            if one.id in self.doubted and one.rows is not None and one.dead_letters:
                listed = shlex.join(["outlast", "dlq", "list", "--run", one.rows[:12], *stored])
                settle = shlex.join(["outlast", "dlq", "resolve", "ID", *stored])
                yield f"List the rows of {one.id} that may have been done:", listed
                yield "Settle each of them:", f"{settle} --as done|not-done"
                return
        if len(self.doubted) == 1:  # of several, to name one is refused for the others
            (step,) = self.doubted
            words = [*self.called, "--from-step", step, *missing_params(self.given), *stored]
            yield (
                f"Look first whether {step} was done. If it was not, do it again:",
                shlex.join(["outlast", "resume", *words]),
            )

    def to_dict(self) -> dict[str, Any]:
        """All of it for `json.dumps`: instants are ISO 8601."""
        found: dict[str, Any] = plain(self)
        for name in ("stored", "by_hand", "rows_left", "doubted", "called"):
            del found[name]
        for step in found["steps"]:
            del step["word"]
        return found

    def html(self) -> str:
        """One page that needs nothing else: no network, no script, no font."""
        from outlast.report.flowpage import page

        return page(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file that only its owner can read, all of it or nothing."""
        saved(path, self.html())

    def _repr_html_(self) -> str:
        from outlast.report.flowpage import summary_html

        return summary_html(self)


def sentence(said: str) -> str:
    """Words of a run's `why` as a sentence of their own."""
    return f"{sanitise(said[:1].upper() + said[1:])}."


def told(why: str) -> str:
    """What a run came to, without how Python goes on with it: where this is shown, a command follows."""
    return _IN_PYTHON.split(why, maxsplit=1)[0]


_IN_PYTHON = re.compile(r"; run it again with run_key=|(?<= was done): run it again with run_key=")


# -- from the store --------------------------------------------------------------------------------------------------------


class _Names(Shell):
    """What steps have put out as a shell can show it: nothing, if it was stored through a codec of the app's own."""

    unreadable = False

    def bring_back(self, data: bytes, known: Mapping[str, type]) -> Any:
        """The outputs."""
        found = self.decode(data, known)
        if isinstance(found, dict) and {"values", "tables"} <= found.keys():
            return found
        self.unreadable = True
        return {"values": {}, "tables": {}}


def flow_report(store: Store, record: RunRecord) -> FlowReport:
    """What is on record of a flow's run."""
    record = as_told(store, record)
    manifest = shown_manifest(record)
    rows = store.flow_steps(record.number)
    progress = progress_of(manifest, rows, record)
    failed = progress.not_undone()
    progress.by_hand = frozenset(name for name in failed if is_settled(store, progress.undo[name]))
    attempts = store.step_attempts(record.number)
    codec = _Names()
    result = result_of_record(store, codec, record, manifest)
    letters = _open_letters(store, rows)
    runs_over_items = _runs_over_items(store, record, manifest, rows)
    over_rows = {name: found[0] for name, found in runs_over_items.items()}
    alone = left_alone(store, record, progress)
    left = rows_left(store, Shell(), record, progress)
    lease = store.run_lease(record.number, 0)
    at_work = record.status == "running" and lease is not None
    half = {
        name: (_undoing(progress.undo[name], at_work=at_work), _undo_rows(store, record, progress, name, over_rows))
        for name in progress.half_undone()
    }
    steps = tuple(
        replace(
            _with_rows(
                store,
                _step(step, row, progress, attempts, letters, record, at_work=at_work),
                over_rows.get(step.id),
            ),
            nothing_undone=step.id in alone and step.id not in alone.unknown,
            unknown_rows=alone.unknown.get(step.id, 0),
            undoing=half.get(step.id, (None, None))[0],
            undo_rows=half.get(step.id, (None, None))[1],
            word=_word(row.status, record, half.get(step.id, (None, None))[0]),
        )
        for step, row in zip(manifest.steps, result.steps, strict=True)
    )
    steps = tuple(_undone_by_hand(step) if step.id in progress.by_hand else step for step in steps)
    with store.counting(record) as count:
        passes = passes_of(count.passes())
    undone = tuple(
        name
        for name, row in progress.undo.items()
        if (row.state == "succeeded" and name not in alone) or name in progress.by_hand
    )
    why = _why(record, progress, result.dead_letters, alone, rows_in_words(steps))
    counts = _counts(steps, progress)
    return FlowReport(
        format=FORMAT,
        id=record.id,
        pipeline=sanitise(record.pipeline),
        run_key=sanitise(record.run_key),
        kind=record.kind,
        status=record.status,
        reason=record.reason,
        why=_with_hands(
            why, counts, progress, failed, over=record.status == "cancelled" and not (alone.unknown or left)
        ),
        passes=record.passes,
        wanted=record.wanted,
        running_at=process_of(lease.owner) if at_work and lease is not None else None,
        started_at=record.started_at,
        finished_at=record.finished_at,
        took=_took(record, attempts),
        file=files_of(record).get("file"),
        counts=counts,
        steps=steps,
        compensation=progress.compensation(alone),
        undone=undone,
        not_undone=tuple(progress.not_undone()),
        undoing=tuple(half),
        standing=tuple(progress.standing()),
        standing_rows={sanitise(name): one.done for name, one in left.items()},
        unknown_rows={sanitise(name): many for name, many in alone.unknown.items()},
        dead_letters=result.dead_letters,
        given=tuple(manifest.open_params),
        artifacts=tuple(
            KeptFacts(name=sanitise(name), attempt=attempt, size=size, cut=cut, kept_at=from_us(kept))
            for name, attempt, size, cut, kept in store.kept_of_run(record.number)
        ),
        pass_list=passes,
        unknown=(
            *((_UNREADABLE,) if codec.unreadable else ()),
            *(sentence(said) for said in unknown_in_words(alone.unknown) if said not in why),
        ),
        spent=_spent(record, [run for found in runs_over_items.values() for run in found]),
        stored=tuple(store.place_option()),
        by_hand=tuple(name for name in undone if name in progress.by_hand),
        rows_left=tuple(sentence(one.in_words(name)) for name, one in left.items()),
        doubted=tuple(doubtful(store, record, manifest, rows)),
        called=tuple(map(sanitise, called(store, record))),
    )


def _undone_by_hand(step: StepFacts) -> StepFacts:
    """A step that somebody has undone where its run could not: its attempts still say how that failed."""
    return replace(step, status="compensated", error=None, error_class=None, stop_reason=None, word="undone by hand")


def _with_hands(why: str, counts: Mapping[str, int], progress: Progress, failed: Sequence[str], *, over: bool) -> str:
    """
    A sentence as it is on record, from when these could not be undone, with what somebody has undone by hand since. `over`: the
    run is cancelled, and leaves no rows that it tells of itself.
    """
    if not progress.by_hand:
        return why
    by_hand = [name for name in failed if name in progress.by_hand]
    now, steps = counts["succeeded"], counted(counts["total"], "step")
    then = now + sum(progress.state(name) in DONE for name in by_hand)
    why = why.replace(f"{then} of {steps} succeeded", f"{now} of {steps} succeeded")
    said = [f"undone by hand: {', '.join(by_hand)}"]
    if left := progress.not_undone():
        said.append(f"could not be undone and still stands: {', '.join(left)}")
    why = why.replace(f"could not be undone and still stands: {', '.join(failed)}", "; ".join(said))
    over = over and not progress.standing() and not progress.half_undone()
    return f"{why}; nothing is left that could be undone" if over else why


def _why(
    record: RunRecord, progress: Progress, letters: int, alone: Mapping[str, StepStatus], rows: Mapping[str, str]
) -> str:
    if record.status == "running":
        return f"running: {in_words(progress, 'running', record.run_key, letters, alone=alone, rows=rows)}"
    if record.status == "interrupted" and not record.reason and "; run it again" not in record.why:
        # Its process was killed: nobody has said how far it came.
        said = in_words(progress, "interrupted", record.run_key, letters, alone=alone, rows=rows)
        return f"{record.why.removesuffix('.')}; {said}"
    return with_letters(record.told, letters)


def _word(status: str, record: RunRecord, undoing: str | None) -> str:
    """What the state of a step is called: where nothing goes on any more, nothing is pending."""
    if status == "compensating":
        return {"running": "undoing", "waiting": "undoing", "cut_off": "undo cut off"}.get(undoing or "", "undo begun")
    if status == "pending" and record.status in ENDED:
        return "not finished"
    from outlast.display.flows import STATES

    return STATES[status][0]


def _runs_over_items(
    store: Store, record: RunRecord, manifest: Manifest, rows: Sequence[FlowStep]
) -> dict[str, list[RunRecord]]:
    """The runs over rows and items that steps have made, the newest first, by the ids of the steps."""
    last = max((row.round for row in rows), default=1)
    found: dict[str, list[RunRecord]] = {}
    for step in manifest.steps:
        if "for_each" not in step.work and step.component != "pipeline":
            continue
        only = f"{record.pipeline}.{step.id}" if "for_each" in step.work else None
        for number in range(last, 0, -1):
            key = f"{record.id}/{step.id}" + ("" if number == 1 else f"/{number}")
            for run in store.find_runs(key, only):
                if run.run_key == key:
                    found.setdefault(step.id, []).append(run)
    return found


def _undoing(undo: FlowStep, *, at_work: bool) -> str:
    """How far an undoing is that was begun and has not ended."""
    if at_work:
        return "running" if undo.state == "running" else "waiting"
    return "cut_off" if was_cut_off(undo) else "stopped"


def _undo_rows(
    store: Store, record: RunRecord, progress: Progress, name: str, newest: Mapping[str, RunRecord]
) -> dict[str, int] | None:
    """What became of the rows of a step that are undone one by one; None where nothing is on record of them."""
    work = progress.undo[name].definition["work"]
    done = newest.get(name)
    if work.get("compensate", {}).get("per") != "row" or done is None:
        return None
    runs: list[RunRecord] = []
    while True:  # what could not be undone at first has a run of its own
        key = f"{done.run_key}/undo" + (f"/{len(runs) + 1}" if runs else "")
        found = store.find_run(f"{record.pipeline}.{name}.undo", key)
        if found is None:
            break
        runs.append(found)
    # Rows are read as they are undone. All that were done are undone, unless some are the work of another run.
    known = done.counts.succeeded if "idempotency" not in work else 0
    undone = sum(run.counts.succeeded for run in runs)
    failed = runs[-1].counts.failed + runs[-1].counts.dlq if runs else 0
    return {"total": max(known, runs[0].counts.total if runs else 0), "undone": undone, "failed": failed}


def rows_in_words(steps: Sequence[StepFacts]) -> dict[str, str]:
    """How many rows are undone, of the steps whose rows are."""
    return {
        step.id: f"{step.undo_rows['undone']:,} of {counted(step.undo_rows['total'], 'row')} undone"
        for step in steps
        if step.undo_rows is not None
    }


def _with_rows(store: Store, step: StepFacts, run: RunRecord | None) -> StepFacts:
    """
    A step with how many of its rows have a letter that is open now. One that has not put out what its rows came to has them
    on record all the same.
    """
    if step.rows is not None and step.dead_letters:
        return replace(step, dead_letters=len(store.letter_owners(run=step.rows, status="open")))
    if run is None or step.rows is not None:
        return step
    dead = len(store.letter_owners(run=run.id, status="open")) if run.counts.dlq else 0
    return replace(step, rows=run.id, dead_letters=dead)


def _spent(record: RunRecord, over_items: Sequence[RunRecord]) -> dict[str, float]:
    """What the run has spent, with what the runs over items of its steps have."""
    found: dict[str, float] = {}
    for run in (record, *over_items):
        add_to(found, {sanitise(name): amount for name, amount in run.spent.items()})
    return found


def _took(record: RunRecord, attempts: Sequence[StepAttempt]) -> float | None:
    if record.finished_at is not None:
        return max(0.0, (record.finished_at - record.started_at).total_seconds())
    last = max((one.started_us + one.took_us for one in attempts), default=None)
    return None if last is None else max(0.0, (from_us(last) - record.started_at).total_seconds())


def _counts(steps: Sequence[StepFacts], progress: Progress) -> dict[str, int]:
    """Where the steps are; one that could not be undone still counts as what it was, one that is half undone does not."""
    states = [progress.state(step.id) if step.status == "compensation_failed" else step.status for step in steps]
    done = sum(state in DONE for state in states)
    failed = states.count("failed")
    partial = states.count(PARTIAL)
    undone, skipped, half = states.count("compensated"), states.count("skipped"), states.count("compensating")
    pending = len(states) - done - failed - partial - skipped - undone - half
    return {
        "total": len(states),
        "succeeded": done,
        "partial_success": partial,
        "failed": failed,
        "compensating": half,
        "compensated": undone,
        "skipped": skipped,
        "pending": pending,
    }


def _step(
    step: ManifestStep,
    result: StepRow,
    progress: Progress,
    attempts: Sequence[StepAttempt],
    letters: Mapping[str, str],
    record: RunRecord,
    *,
    at_work: bool,
) -> StepFacts:
    row, undo = progress.do.get(step.id), progress.undo.get(step.id)
    failed: FlowStep | None = undo if result.status == "compensation_failed" else row
    made = [one for one in attempts if one.step == step.id]
    outputs = result.outputs
    waits = row is not None and row.state == "waiting" and record.status not in ENDED
    rows = outputs["run"] if "run" in outputs and "outcome" in outputs else None
    dead = outputs["dead_letters"] if rows is not None and "dead_letters" in outputs else 0
    return StepFacts(
        id=sanitise(step.id),
        component=sanitise(step.component),
        needs=tuple(step.needs),
        status="waiting" if waits and result.status == "pending" else result.status,
        attempts=(*(_attempt(one) for one in made if one.deed == "do"), *_under_way(row, at_work=at_work)),
        undone_by=(*(_attempt(one) for one in made if one.deed == "undo"), *_under_way(undo, at_work=at_work)),
        took=_span([one for one in made if one.deed == "do"]),
        due_at=None if not waits or row is None or row.due_us is None else from_us(row.due_us),
        error=None if result.error is None else sanitise(result.error),
        error_class=None if result.error is None or failed is None else failed.error_class,
        stop_reason=result.stop_reason,
        outputs={sanitise(name): kind for name, kind in _types(outputs).items()},
        dead_letter=None if failed is None or failed.letter is None else letters.get(failed.letter),
        dead_letters=dead if isinstance(dead, int) else 0,
        rows=rows if isinstance(rows, str) else None,
    )


def _span(attempts: Sequence[StepAttempt]) -> float | None:
    """From the first attempt of the last round to the end of the last one."""
    newest = max((one.round for one in attempts), default=None)
    of_round = [one for one in attempts if one.round == newest]
    if not of_round:
        return None
    return (max(one.started_us + one.took_us for one in of_round) - min(one.started_us for one in of_round)) / 1e6


def _attempt(one: StepAttempt) -> AttemptFacts:
    place = place_of(one.traceback)
    return AttemptFacts(
        number=one.number,
        round=one.round,
        outcome=one.outcome,
        started_at=from_us(one.started_us),
        took=one.took_us / 1e6,
        next_run_at=None if one.next_run_us is None else from_us(one.next_run_us),
        stop_reason=one.stop_reason,
        error=None if one.error is None else sanitise(one.error),
        error_type=one.error_type,
        error_class=one.error_class,
        worker=None if one.worker is None else process_of(one.worker),
        place=None if place is None else sanitise(str(place)),
        traceback=one.traceback,
        spent={sanitise(name): amount for name, amount in (one.spent or {}).items()},
    )


def _under_way(row: FlowStep | None, *, at_work: bool) -> Iterator[AttemptFacts]:
    """The attempt that has begun and has no end on record: it runs, or its process has ended in the middle of it."""
    if row is None or row.state != "running":
        return
    started = from_us(row.changed_us)
    yield AttemptFacts(
        number=row.made,
        round=row.round,
        outcome="running" if at_work else "crashed",
        started_at=started,
        took=max(0.0, (here.get().clock.now() - started).total_seconds()) if at_work else None,
        next_run_at=None,
        stop_reason=None,
        error=None if at_work else CUT_OFF,
        error_type=None if at_work else "WorkerLost",
        error_class=None if at_work else "worker_lost",
        worker=None,
        place=None,
        traceback=None,
    )


_TYPES = {
    "NoneType": "null",
    "bool": "boolean",
    "int": "integer",
    "float": "number",
    "str": "string",
    "list": "list",
    "tuple": "list",
    "dict": "object",
}


def _types(outputs: Mapping[str, Any]) -> dict[str, str]:
    """The type of each output; a table is not read for that."""
    tables: Mapping[str, str] = outputs._tables if isinstance(outputs, Outputs) else {}  # noqa: SLF001 - of one package
    found: dict[str, str] = {}
    for name in outputs:
        kind = "table" if name in tables else type(outputs[name]).__name__
        found[name] = _TYPES.get(kind, kind)
    return found


def _open_letters(store: Store, rows: Sequence[FlowStep]) -> dict[str, str]:
    """The dead letters of steps that are open."""
    found: dict[str, str] = {}
    for row in rows:
        letter = None if row.letter is None else store.letter(row.letter)
        if letter is not None and letter.status == "open":
            found[letter.id] = letter.id
    return found


#: Outputs whose names sound like secrets, and are none.
_NO_SECRETS = {"s3.writer": ("key", "sha256"), "s3.deleter": ("key",)}
_SHA256 = re.compile("[0-9a-f]{64}")


def _masked_outputs(component: str, outputs: Mapping[str, Any]) -> Any:
    """What a step has put out, without secrets. The key of an object is one only if its text looks like one."""
    hidden = masked(outputs)
    names = _NO_SECRETS.get(component, ())
    if names and isinstance(hidden, dict):
        _put_back(names, hidden, outputs)
        for told, entry in _pairs(hidden.get("rows"), outputs.get("rows")):  # of a step for each row
            for inside, was in _pairs([told.get("outputs")], [entry.get("outputs")]):
                _put_back(names, inside, was)
    return hidden


def _pairs(told: Any, was: Any) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    if isinstance(told, list) and isinstance(was, list):
        yield from (
            (one, other)
            for one, other in zip(told, was, strict=False)
            if isinstance(one, dict) and isinstance(other, dict)
        )


def _put_back(names: Sequence[str], told: dict[str, Any], was: Mapping[str, Any]) -> None:
    for name in names:
        value = was.get(name)
        if isinstance(value, str) and name in told:
            digest = name == "sha256" and _SHA256.fullmatch(value) is not None
            told[name] = mask_known(value) if digest else masked(value)


# -- what is asked of a flow -------------------------------------------------------------------------------------------------


class FlowViews:
    """All that may be asked of a store about flows, from outside of the program that runs them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def report(self, record: RunRecord) -> FlowReport:
        """What a run came to."""
        return flow_report(self._store, record)

    def artifact(self, record: RunRecord, name: str, attempt: int | None) -> bytes:
        """What a step has kept under a name: that of the step, a space, and its own; or its own, if only one step has it."""
        kept = self._store.kept_of_run(record.number)
        names = list(dict.fromkeys(one[0] for one in kept))
        fitting = [one for one in names if one == name] or [one for one in names if one.partition(" ")[2] == name]
        if len(fitting) > 1:
            raise ConfigurationError(f"expected one artifact, but several are called {name!r}: {', '.join(fitting)}.")
        data = None if not fitting else self._store.kept_data(record.number, fitting[0], attempt)
        if data is None:
            where = "" if attempt is None else f" in attempt {attempt}"
            said = f"It has kept: {', '.join(names)}." if names else "It has kept nothing."
            near = "" if fitting else nearest(name, names)
            raise ConfigurationError(
                f"The run {record.run_key} has kept no {sanitise(name)!r}{where}.{near or f' {sanitise(said)}'}"
            )
        return data

    def outputs(self, record: RunRecord, *, reveal: bool = False) -> Iterator[dict[str, Any]]:
        """What the steps of a run have put out, step by step; masked unless told otherwise."""
        codec = _Names()
        result = result_of_record(self._store, codec, record, shown_manifest(record))
        if codec.unreadable:
            raise ConfigurationError(_UNREADABLE)
        for step in result.steps:
            if step.status in DONE or step.status == "compensating":
                found = {name: step.outputs[name] for name in step.outputs}
                yield {"step": step.id, "outputs": found if reveal else _masked_outputs(step.component, found)}

    def run_of(self, letter: DeadLetter) -> RunRecord | None:
        """The run of a flow whose step, or what undoes one, has this dead letter; None of other letters, and if it is gone."""
        run = None if letter.run_id is None else self._store.run(letter.run_id)
        return None if run is None or run.kind != "flow" else as_told(self._store, run)

    def rows_of(self, letter: DeadLetter) -> tuple[RunRecord, str] | None:
        """The flow's run and the step whose row has this dead letter; None of a letter of something else."""
        found = self._store.rows_above(letter.run_id) if letter.kind == "item" else None
        return None if found is None else (as_told(self._store, found[0]), found[1])

    def owner_of(self, run: RunRecord) -> tuple[RunRecord, str] | None:
        """The flow's run and the step whose rows this is a run over; None of another run."""
        found = self._store.rows_above(run.id)
        return None if found is None else (as_told(self._store, found[0]), found[1])

    def of_job(self, job: JobRow) -> FlowReport | None:
        """The run that the job of a flow works on; None of other jobs, and if it has not begun or is gone."""
        found = flow_run_of(job, Shell())
        run = None if found is None else self._store.find_run(found.pipeline, found.run_key)
        return None if run is None or run.kind != "flow" else self.report(run)

    def above(self, run: RunRecord) -> tuple[RunRecord, str] | None:
        """The flow's run and the step that has made this run, over rows, over items, or of what undoes them; None of another."""
        found = self._store.flow_above(run)
        return None if found is None else (as_told(self._store, found[0]), found[1])

    def over_items(self, record: RunRecord) -> dict[str, list[RunRecord]]:
        """The runs over rows and items that the steps of a run have made, the newest first."""
        rows = self._store.flow_steps(record.number)
        return _runs_over_items(self._store, record, shown_manifest(record), rows)

    def is_completed(self, pipeline: str, run_key: str) -> bool:
        """Whether there is such a run, with nothing left to do."""
        found = self._store.find_run(pipeline, run_key)
        return found is not None and found.kind == "flow" and found.status == "completed"

    def other_work(self, record: RunRecord) -> tuple[str, ...]:
        """Steps that are done, and are something else in the manifest that is on record."""
        return compared(shown_manifest(record), self._store.flow_steps(record.number)).other_work

    def with_counts(self, records: Sequence[RunRecord]) -> list[RunRecord]:
        """These runs, flows with the counts of their steps."""
        states = self._store.step_states([record.number for record in records if record.kind == "flow"])
        return [
            record if record.kind != "flow" else replace(record, counts=_as_counts(record, states[record.number]))
            for record in records
        ]


def _as_counts(record: RunRecord, states: Mapping[str, int]) -> RunCounts:
    """Steps as items are counted; those that were undone count as not done."""
    total = max(len(record.stages), sum(states.values()))
    failed, done = states.get("failed", 0) + states.get(PARTIAL, 0), sum(states.get(one, 0) for one in DONE)
    over = record.status in ENDED
    skipped = total - sum(states.values()) if over else 0
    return RunCounts(total=total, succeeded=done, skipped=skipped, failed=failed)


# -- what to do next ---------------------------------------------------------------------------------------------------------


def missing_params(given: Sequence[str]) -> list[str]:
    """What a command needs for parameters that are in no manifest, and that the environment does not have."""
    return [word for name in given if variable_of(name) not in os.environ for word in ("--param", f"{name}=...")]


def _next(report: FlowReport, stored: Sequence[str]) -> Iterator[tuple[str, str]]:
    def command(*words: str) -> str:
        return shlex.join(["outlast", *words, *stored])

    key = report.called
    again = command("resume", *key, *missing_params(report.given))
    left = bool(report.standing or report.undoing)
    cancels = command("cancel", *key, *(["--compensate"] if left else []))
    if report.running_at is not None:
        yield "To end it:", cancels
        return
    if report.reason == "requeued":
        yield "Its job goes on with it:", command("jobs", "list", "--kind", OF_FLOW + report.pipeline)
        return
    if report.status in {"interrupted", "paused", "running"}:
        yield "Go on:", again
        if report.reason != "cancelling":
            yield (
                f"To give it up{' and undo what it has done' if left else ''}:",
                cancels if not left else f"{cancels}{_more(report)}",
            )
    elif report.status == "cancelled" and left:
        yield "To undo what is left:", f"{cancels}{_more(report)}"
    elif report.status in {"failed", "partial_success"}:
        if not report.doubted:
            partial = report.status == "partial_success"
            yield f"Once the cause is gone, {'run the open rows' if partial else 'go on'}:", again
        yield from report.doubt(stored)
        for name in report.not_undone:
            if name in {step.id for step in report.steps} and (letter := report[name].dead_letter) is not None:
                archive = command("dlq", "archive", letter[:12], "--reason", "undone by hand")
                yield f"That tries first to undo {name}. If it was undone by hand:", archive
        if left and not report.not_undone:
            yield "To give it up and undo what it has done:", f"{cancels}{_more(report)}"
    for step in report.steps:
        if step.dead_letters and step.rows is not None:
            yield f"Rows of {step.id} that failed:", command("dlq", "list", "--run", step.rows[:12])
            if report.status == "completed":
                yield (
                    "Once the cause is gone, do all rows of the step again, and what needs them:",
                    command("resume", *key, "--from-step", step.id, *missing_params(report.given)),
                )
    if any(step.error is not None for step in report.steps) and report.status != "completed":
        yield "Every attempt:", command("runs", "show", *key)


def _more(report: FlowReport) -> str:
    words = missing_params(report.given)
    return f" {shlex.join(words)}" if words else ""
