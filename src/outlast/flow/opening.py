"""
A run of a flow is opened: found or created by its key, admitted or refused, leased, with what became of who had it before, and
with what is to be done again and undone first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from outlast.errors import ConfigurationError, LeaseLost, nearest
from outlast.flow.progress import CUT_OFF, DONE, after_crash, behind, compared, for_a_new_round, in_doubt, plain
from outlast.flow.record import doubtful, doubtful_rows, newest_rows, progress_of, result_of_record
from outlast.flow.steps import letter_of
from outlast.kernel.clock import here
from outlast.kernel.wording import counted
from outlast.pipeline.lease import let_go, take
from outlast.spec.manifest import ManifestStep
from outlast.store.flows import AfterCrash
from outlast.store.records import StageMark
from outlast.work.patience import keep_trying

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from outlast.flow.progress import Changed, Progress
    from outlast.flow.results import FlowResult
    from outlast.kernel.aliases import StopReason
    from outlast.pipeline.home import Home
    from outlast.spec.manifest import Manifest
    from outlast.store import Store
    from outlast.store.flows import FlowStep
    from outlast.store.records import Lease, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """
    What is to be run, and how. `files` says where the pipeline and its connections are, for whoever goes on with the run.
    In a durable job, `follows` answers a step that fails in this pass: the seconds until the job is retried, or why it is
    not. `final` decides over all failed steps: if the job is retried, nothing is compensated. `attempts_left` are those of
    the job after this one. `spent`: the job has no attempt left, and only what it has begun is undone.
    """

    manifest: Manifest
    home: Home
    run_key: str
    is_new: bool = False  # the key was generated: no stored run has it
    root: str
    allowed: tuple[str, ...] = ()
    secret: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    hidden: tuple[str, ...] = field(default=(), repr=False)  # every secret that it is given, as a text
    connection: Callable[[str], Mapping[str, Any]]
    files: Mapping[str, Any] = field(default_factory=dict[str, Any])
    from_step: str | None = None
    on_change: Literal["stop", "keep", "redo"] = "stop"
    watch: Callable[[Any], None] | None = None
    follows: Callable[[ManifestStep, Exception, StopReason, int | None], float | StopReason] | None = None
    final: Callable[[Sequence[tuple[FlowStep, BaseException | None]]], bool] | None = None
    attempts_left: int = 0
    undo_only: bool = False  # it was cancelled: undo what stands, and begin nothing
    spent: bool = False


@dataclass(slots=True)
class Opened:
    """A run that is this process's to work on."""

    record: RunRecord
    lease: Lease
    rows: list[FlowStep]
    round: int
    redo: list[str] = field(default_factory=list)  # steps to do again
    first: list[str] = field(default_factory=list)  # of these, and of an earlier round, what has to be undone before
    changed: Changed | None = None


def identity_of(plan: FlowPlan, redo: list[str] | None = None) -> dict[str, Any]:
    return {"flow": {"manifest": plan.manifest.as_data(), **plan.files}} | ({} if not redo else {"redo": redo})


def _marks(manifest: Manifest) -> list[StageMark]:
    return [StageMark(step.id, step.work_fingerprint, "compensate" in step.work) for step in manifest.steps]


def opened(store: Store, plan: FlowPlan) -> Opened | FlowResult:
    """The run of this key, leased, with what became of who had it before; or its end, if there is nothing to do."""
    manifest = plan.manifest
    check_from(plan)
    record: RunRecord = keep_trying(
        lambda: store.open_run(
            manifest.name, plan.run_key, _marks(manifest), kind="flow", identity=identity_of(plan), is_new=plan.is_new
        ),
        "the store",
    )
    admit(plan, record)
    rows: list[FlowStep] = keep_trying(lambda: store.flow_steps(record.number), "the store")
    changed = compared(manifest, rows)
    check_changed(plan, record, changed)
    check_doubt(store, plan, record, rows)
    if _is_over(plan, record, rows, changed):
        return result_of_record(store, plan.home.codec, record, manifest)
    lease = take(store, record)
    try:
        again: RunRecord | None = keep_trying(lambda: store.run(record.id), "the store")
        if again is None:
            raise LeaseLost(f"the run {plan.run_key!r} is gone")
        admit(plan, again)
        rows = keep_trying(lambda: store.flow_steps(record.number), "the store")
        changed = compared(manifest, rows)
        check_changed(plan, again, changed)
        check_doubt(store, plan, again, rows)
        if _is_over(plan, again, rows, changed):  # another process has ended it, while its lease was waited for
            let_go(store, lease)
            return result_of_record(store, plan.home.codec, again, manifest)
        reason = "cancelling" if plan.undo_only or again.reason == "cancelling" else None
        marks, identity = _marks(manifest), identity_of(plan, _left_to_redo(again))
        goes_on = keep_trying(
            lambda: store.set_run(
                lease,
                record.id,
                status="running",
                reason=reason,
                undoes=plan.undo_only,
                stages=None if [*again.stages] == marks else marks,
                identity=None if again.identity == identity else identity,
            ),
            "the store",
        )
        if not goes_on:
            raise _cancelled(plan)
        rows = keep_trying(
            lambda: store.recover_steps(lease, judge=partial(_judged, plan, again), owner=lease.before), "the store"
        )
        here.get().ids.begin(f"{record.id}/{again.passes}")
        return _arranged(store, plan, again, lease, rows, changed)
    except BaseException:
        let_go(store, lease)
        raise


def _is_over(plan: FlowPlan, record: RunRecord, rows: list[FlowStep], changed: Changed) -> bool:
    """Whether the run is completed, and nothing of it is to be done again."""
    states = {row.step: row.state for row in rows if row.deed == "do"}
    return (
        record.status == "completed"
        and all(states.get(step.id) in DONE for step in plan.manifest.steps)
        and not to_redo(plan, record, rows, changed)
    )


def _arranged(
    store: Store, plan: FlowPlan, record: RunRecord, lease: Lease, rows: list[FlowStep], changed: Changed
) -> Opened:
    """What is to be done again, and what has to be undone before that. It is on record before anything is done."""
    number = max((row.round for row in rows), default=1)
    progress = progress_of(plan.manifest, rows, record)
    opened = Opened(record, lease, rows, number, changed=changed)
    again: list[str] = []
    if plan.undo_only:  # asked for now: what could not be undone before is tried again
        again = _to_undo_first(store, progress, list(progress.do))
    elif record.reason != "cancelling":
        opened.redo, opened.first = what_again(store, plan, record, progress, rows, changed)
        again = opened.first
        if opened.redo:
            identity = identity_of(plan, opened.redo)
            keep_trying(
                lambda: store.set_run(lease, record.id, status="running", identity=identity, same_pass=True),
                "the store",
            )
    if stuck := [name for name in again if name in progress.not_undone()]:
        keep_trying(lambda: store.reset_undo(lease, stuck), "the store")
        opened.rows = keep_trying(lambda: store.flow_steps(record.number), "the store")
    return opened


def what_again(
    store: Store, plan: FlowPlan, record: RunRecord, progress: Progress, rows: list[FlowStep], changed: Changed
) -> tuple[list[str], list[str]]:
    """The steps that are done again, and those of them that are undone first."""
    redo = to_redo(plan, record, rows, changed)
    stuck = [name for name in progress.not_undone() if progress.stands(name)]
    if has_open_steps(record) and not plan.spent:
        redo += [name for name in for_a_new_round(plan.manifest, rows, (*redo, *stuck)) if name not in redo]
    elif not redo and not progress.undoing and not plan.spent:
        again = _again_in_job(plan, record, progress)
        if again or not progress.failed:  # what is done stays: nothing of it was undone
            return [*progress.failed, *_open_again(store, plan, record, progress, rows)], []
    keeps = [name for name in progress.partial if name not in changed.mended]  # else its rows are other work now
    return redo, _to_undo_first(store, progress, redo, keeps)


def _open_again(store: Store, plan: FlowPlan, record: RunRecord, progress: Progress, rows: list[FlowStep]) -> list[str]:
    """
    The steps whose open rows run when an unfinished run continues. In a job they run when it is retried for them: a job that
    only waited for another step would call bad rows once more each time.
    """
    if plan.final is not None and progress.partial:
        newest = {one.step: one for one in store.step_attempts(record.number) if one.deed == "do"}
        if all(name in newest and newest[name].next_run_us is None for name in progress.partial):
            return []
    doubted = doubtful(store, record, plan.manifest, rows)
    return [name for name in progress.partial if name not in doubted]


def _to_undo_first(store: Store, progress: Progress, names: list[str], keeps: Collection[str] = ()) -> list[str]:
    """
    Those of the steps that stand and can be undone, unless somebody has undone them by hand. Those in `keeps` go on with the
    rows that they have done.
    """
    return [
        name
        for name in names
        if progress.stands(name)
        and name not in keeps
        and not (name in progress.not_undone() and is_settled(store, progress.undo[name]))
    ]


def has_open_steps(record: RunRecord) -> bool:
    """Whether the run is over, and a new round does what is not done."""
    return record.status in {"failed", "partial_success"}


def _again_in_job(plan: FlowPlan, record: RunRecord, progress: Progress) -> bool:
    """
    Whether steps that have failed are tried again: a job has come back for them, or its process has ended before it was
    decided. What must not be done twice, or has ended three processes, is not.
    """
    if not progress.failed or record.reason == "requeued":
        return bool(progress.failed)
    final = plan.final
    return final is not None and not final([(progress.do[name], None) for name in progress.failed])


def is_settled(store: Store, undo: FlowStep) -> bool:
    """Whether somebody has put the dead letter of a compensation away: it was undone by hand."""
    letter = None if undo.letter is None else store.letter(undo.letter)
    return letter is not None and letter.status in {"archived", "resolved"}


def _judged(plan: FlowPlan, record: RunRecord, row: FlowStep) -> AfterCrash:
    """What follows the crash of who had the run before, with a dead letter if the step has failed for that."""
    error, error_class, reason = after_crash(row)
    step = ManifestStep(row.step, row.definition["work"], row.definition["policy"])
    told = reason is not None and (row.deed == "undo" or plan.final is None)
    kept = row.deed == "undo" or bool(step.policy.get("dead_letter", True))
    letter = None
    if told and kept:
        said = (error, "WorkerLost", error_class)
        letter = letter_of(plan.home, record, step, row.deed, said, reason, row.attempts, row.changed_us)
    return AfterCrash(error, error_class, reason, letter)


def cancelled(store: Store, record: RunRecord, why: str) -> bool:
    """
    End a run that nobody works on; whether there was something to end. What was under way when its process ended is put on
    record as cut off: nobody goes on with the run, who would do that else. `LeaseLost` if somebody works on it after all.
    """
    lease = take(store, record, counted=False)
    try:
        store.recover_steps(lease, judge=lambda _: AfterCrash(CUT_OFF, "worker_lost"), owner=lease.before)
        return store.set_run(lease, record.id, status="cancelled", reason="cancelled", why=why)
    finally:
        let_go(store, lease)


def check_from(plan: FlowPlan) -> None:
    if plan.from_step is None:
        return
    known = [step.id for step in plan.manifest.steps]
    if plan.from_step not in known:
        way_out = nearest(plan.from_step, known) or f"It has {', '.join(known)}."
        raise ConfigurationError(
            f"expected from_step to be a step of {plan.manifest.name}, got: {plan.from_step!r}. {way_out}"
        )


def admit(plan: FlowPlan, record: RunRecord) -> None:
    if record.kind != "flow":
        what = "a replay of dead letters" if record.kind == "replay" else "a run over items"
        raise ConfigurationError(
            f"expected run_key to be that of a run of a flow, got: {record.run_key!r}, which is {what}. Choose another run_key."
        )
    if record.status == "cancelled" and not plan.undo_only:
        raise _cancelled(plan)
    check_keys(plan, record)


def _cancelled(plan: FlowPlan) -> ConfigurationError:
    return ConfigurationError(
        f"the run {plan.run_key!r} of {plan.manifest.name} was cancelled: begin another one with another run_key."
    )


def check_keys(plan: FlowPlan, record: RunRecord) -> None:
    """
    Another secret makes other digests of the same idempotency keys: what is stored under the old ones would be neither found
    nor released. To undo a step as a whole, the stored digests are enough.
    """
    was, now = ((record.identity or {}).get("flow") or {}).get("keys"), plan.files.get("keys")
    by_row = any(
        "idempotency" in step.work and step.work.get("compensate", {}).get("per") == "row"
        for step in plan.manifest.steps
    )
    if was is not None and now is not None and was != now and (by_row or not plan.undo_only):
        raise ConfigurationError(
            f"expected the OUTLAST_IDEMPOTENCY_SECRET with which the run {record.run_key!r} of {record.pipeline} made its idempotency "
            "keys, got: another one, or none. Set it here, or unset it if the run had none. Nothing was changed."
        )


def check_changed(plan: FlowPlan, record: RunRecord, changed: Changed) -> None:
    if not changed.other_work or plan.on_change != "stop" or plan.undo_only:
        return
    parts = [f"other work in {', '.join(changed.work)}"] if changed.work else []
    parts += [f"without {', '.join(changed.gone)}"] if changed.gone else []
    others = _other_params(plan.manifest, record)
    word = "parameter" if len(others) == 1 else "parameters"
    given = (
        f"The {word} {', '.join(others)} had another value in that run: give the one that it had. " if others else ""
    )
    raise ConfigurationError(
        f"the steps have changed since the run {record.run_key!r} of {record.pipeline} did them: {' and '.join(parts)}. "
        f"{given}"
        'on_change="keep" goes on with what they have put out, on_change="redo" does them again, and all that need them; '
        "or choose another run_key."
    )


def _other_params(manifest: Manifest, record: RunRecord) -> list[str]:
    """The parameters that have another value than the run was started with; one that is new or gone is none of them."""
    flow = (record.identity or {}).get("flow") or {}
    before: Mapping[str, Any] = (flow.get("manifest") or {}).get("params", {})
    return [name for name, value in manifest.params.items() if name in before and plain(value) != before[name]]


def check_doubt(store: Store, plan: FlowPlan, record: RunRecord, rows: list[FlowStep]) -> None:
    """
    What may have been done, and must not be done twice, is done again only if you name the step, or settle its rows by
    hand.
    """
    if not has_open_steps(record) or plan.undo_only or plan.spent:
        return
    chosen = {*_left_to_redo(record), *(behind(plan.manifest, [plan.from_step]) if plan.from_step is not None else ())}
    if left := [name for name in doubtful(store, record, plan.manifest, rows) if name not in chosen]:
        row = next(one for one in rows if (one.step, one.deed) == (left[0], "do"))
        if many := doubtful_rows(store, record, row):
            run = newest_rows(store, record, row.step, row.round)
            raise ConfigurationError(
                f"{counted(many, 'row')} of {left[0]} in the run {record.run_key!r} of {record.pipeline} may have been done, and must not "
                f"be done twice (idempotent: false). List them: outlast dlq list --run {'' if run is None else run.id[:12]}. Look whether each was "
                f"done, and settle it: outlast dlq resolve ID --as done, or --as not-done. from_step={left[0]!r} "
                f"(--from-step {left[0]}) runs them again without that."
            )
        raise ConfigurationError(
            f"the run {record.run_key!r} of {record.pipeline} has failed in {', '.join(left)}, which may have been done and must not be "
            f"done twice (idempotent: false). Look first whether it was done. If it was not, or was undone by hand, from_step={left[0]!r} "
            f"(--from-step {left[0]}) does it again; if it was, choose another run_key, and leave out what is done."
        )


def _left_to_redo(record: RunRecord) -> list[str]:
    """What was to be done again when the run was last worked on, and has not begun to be."""
    return [*(record.identity or {}).get("redo", ())]


def to_redo(plan: FlowPlan, record: RunRecord, rows: list[FlowStep], changed: Changed) -> list[str]:
    """The steps that somebody wants to be done again, now or before, and those that need them."""
    manifest = plan.manifest
    begun = {row.step for row in rows if row.deed == "do"}
    wanted: set[str] = set()
    if plan.on_change == "redo":
        wanted |= {*changed.other_work}
    if plan.from_step is not None:
        before = [one for one in _ancestors(manifest, plan.from_step) if not _is_done(rows, one)]
        if before and plan.from_step not in in_doubt(manifest, rows):  # those are begun again with it
            are = "is" if len(before) == 1 else "are"
            raise ConfigurationError(
                f"expected everything before {plan.from_step} to be done in the run {record.run_key!r}, got: {', '.join(before)} "
                f"{are} not. Leave from_step out: it begins with what is not done."
            )
        wanted.add(plan.from_step)
    # Rows that were done with another config are no rows of this one: they are looked at again in a round of their own.
    mixed = {row.step for row in rows if row.step in changed.mended and row.made_in_round and _has_rows(row)}
    # What was found before is all of it: those that need it were looked for then.
    found = {*behind(manifest, wanted), *wanted, *mixed, *_left_to_redo(record)} & begun
    known = [step.id for step in manifest.steps if step.id in found]
    return [*known, *sorted(found - {*known})]


def _has_rows(row: FlowStep) -> bool:
    work = row.definition["work"]
    return row.deed == "do" and ("for_each" in work or work["component"] == "pipeline")


def _is_done(rows: list[FlowStep], step: str) -> bool:
    return any(row.step == step and row.deed == "do" and row.state in DONE for row in rows)


def _ancestors(manifest: Manifest, step: str) -> list[str]:
    found: set[str] = set()
    waiting = [*manifest[step].needs]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += manifest[one].needs
    return [one.id for one in manifest.steps if one.id in found]
