"""
What commands ask about a flow's run before they go on with it: the manifest that is on record, how another one differs
from it, and what a run would do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outlast.flow.opening import admit, check_changed, check_doubt, check_from, what_again
from outlast.flow.progress import DONE, PARTIAL, compared, recovered
from outlast.flow.record import newest_rows, progress_of, settled_rows
from outlast.kernel.wording import counted
from outlast.spec.manifest import Manifest, ManifestStep
from outlast.work.leases import certainly_dead

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlast.flow.opening import FlowPlan
    from outlast.flow.progress import Changed
    from outlast.store import Store
    from outlast.store.flows import FlowStep
    from outlast.store.records import RunRecord


def files_of(record: RunRecord) -> Mapping[str, Any]:
    """Where the pipeline file, its connections and its root were, as far as the run knows."""
    found = (record.identity or {}).get("flow") or {}
    return {name: found[name] for name in ("file", "root", "connections") if found.get(name)}


def shown_manifest(record: RunRecord) -> Manifest:
    """
    The manifest of a run, to be looked at: also one of another version, which would not be run. Without one on record,
    the steps by their names.
    """
    data = ((record.identity or {}).get("flow") or {}).get("manifest") or {}
    steps = tuple(
        ManifestStep(one["id"], one["work"], one["policy"], one.get("timing", {})) for one in data.get("steps", ())
    )
    if not steps:
        nothing = {"component": "unknown", "needs": (), "config": {}}
        steps = tuple(ManifestStep(mark.name, nothing, {"retry": {"max_attempts": 1}}) for mark in record.stages)
    return Manifest(
        record.pipeline,
        steps,
        data.get("params", {}),
        tuple(data.get("open_params", ())),
        data.get("profile"),
        params_from=data.get("params_from", {}),
        open_types=data.get("open_types", {}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How one manifest differs from another: ids of steps."""

    work: tuple[str, ...] = ()
    policy: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.work or self.policy or self.new or self.gone)

    def __str__(self) -> str:
        parts = (
            (self.work, "other work in"),
            (self.policy, "other retries or limits in"),
            (self.new, "new"),
            (self.gone, "gone"),
        )
        return "; ".join(f"{word} {', '.join(steps)}" for steps, word in parts if steps)


def difference(before: Manifest, after: Manifest) -> Difference:
    """How the second differs from the first in what its steps do, and in what happens when they fail."""
    was = {step.id: step for step in before.steps}
    now = {step.id: step for step in after.steps}
    both = [step for step in after.steps if step.id in was]
    return Difference(
        work=tuple(step.id for step in both if step.work_fingerprint != was[step.id].work_fingerprint),
        policy=tuple(step.id for step in both if step.policy_fingerprint != was[step.id].policy_fingerprint),
        new=tuple(name for name in now if name not in was),
        gone=tuple(name for name in was if name not in now),
    )


def changed_since(store: Store, record: RunRecord, manifest: Manifest) -> Changed:
    """How the manifest differs from what the steps of a run have done."""
    return compared(manifest, store.flow_steps(record.number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """
    What a run would do: `kept` steps are done and stay so, `run` are begun, `again` have been done and are done again;
    `first` are undone before anything is begun, and `undo` with nothing begun; then `failed` and `undone` are so
    already, but for those of `failed` that are `cut_off`: the run would record that. Whether the work of those that have an idempotency key (`keyed`) was done by another run is known only when
    they are begun: the key may follow from what is done before.
    """

    kept: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    cut_off: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    keyed: tuple[str, ...] = ()
    open_rows: Mapping[str, int] = field(default_factory=dict[str, int])  # of steps that keep the others

    def of(self, step: str) -> str:
        """What would become of a step, in words."""
        unless = ", unless another run has done it under its key" if step in self.keyed else ""
        if step in self.first:
            return "undone first, then done again" + unless if step in (*self.again, *self.run) else "undone"
        if step in self.undo:
            return "undone"
        if step in self.again:
            return f"done again{unless}"
        if step in self.run and step in self.open_rows:
            return f"run its {counted(self.open_rows[step], 'open row')}{unless}"
        if step in self.run:
            return f"run{unless}"
        if step in self.cut_off:
            return "fails: its process ended in the middle of an attempt"
        if step in self.failed or step in self.undone:
            return "stays failed" if step in self.failed else "is undone already"
        return "kept as it is" if step in self.kept else "not begun"

    @property
    def why(self) -> str:
        """All of it in a sentence."""
        parts = [
            f"{word} {', '.join(steps)}"
            for word, steps in (
                ("record the failure of", self.cut_off),
                ("undo", (*self.first, *self.undo)),
                ("do again", self.again),
                ("run", self.run),
                ("keep what was done by", self.kept),
            )
            if steps
        ]
        nothing = not (self.run or self.again or self.first or self.undo or self.cut_off)
        if nothing:
            return "nothing is left to do"
        begun = [name for name in self.keyed if name in (*self.again, *self.run)]
        unless = f"; {', '.join(begun)} only if no other run has done it under its key" if begun else ""
        rows = [f"of {name} only {counted(many, 'open row')}" for name, many in self.open_rows.items()]
        unless = "".join(f"; {one}" for one in rows) + unless
        return f"it would {', '.join(parts)}{unless}"


def outlook(plan: FlowPlan, store: Store | None) -> Outlook:
    """
    What a run of this plan would do, by what is on record in `store`; None if there is none yet. Raises what the run itself
    would refuse.
    """
    names = tuple(step.id for step in plan.manifest.steps)
    keyed = tuple(step.id for step in plan.manifest.steps if "idempotency" in step.work)
    check_from(plan)
    record = None if store is None else store.find_run(plan.manifest.name, plan.run_key)
    if record is None or store is None:
        from outlast.errors import ConfigurationError

        if plan.from_step is not None and plan.manifest[plan.from_step].needs:
            raise ConfigurationError(
                f"expected a run {plan.run_key!r} in which everything before {plan.from_step} is done, got: no such run. "
                "Leave from_step out."
            )
        return Outlook(run=names, keyed=keyed)
    admit(plan, record)
    rows = store.flow_steps(record.number)
    changed = compared(plan.manifest, rows)
    check_changed(plan, record, changed)
    check_doubt(store, plan, record, rows)
    lease = store.run_lease(record.number)
    running = {row.step for row in rows if row.state == "running" and row.deed == "do"}
    if lease is None or certainly_dead(lease.owner):
        rows = [recovered(row) for row in rows]
    progress = progress_of(plan.manifest, rows, record)
    done = [name for name in names if progress.state(name) in DONE]
    redo, first = what_again(store, plan, record, progress, rows, changed)
    if record.reason == "cancelling" or (progress.failed and not redo):
        undo = tuple(progress.to_undo())
        return Outlook(
            kept=tuple(one for one in done if one not in undo),
            undo=undo,
            failed=tuple(progress.failed),
            cut_off=tuple(name for name in progress.failed if name in running),
            undone=tuple(name for name in names if progress.state(name) == "compensated"),
        )
    again = tuple(name for name in done if name in redo)
    kept = tuple(name for name in done if name not in redo)
    run = tuple(name for name in names if name not in done)
    undone = {row.step for row in rows if row.deed == "undo" and row.made}
    others = {*undone, *first, *changed.mended}  # these run all of their rows
    open_rows = _open_rows(store, record, [row for row in rows if row.step in run and row.step not in others])
    return Outlook(kept=kept, run=run, again=again, first=tuple(first), keyed=keyed, open_rows=open_rows)


def _open_rows(store: Store, record: RunRecord, rows: Sequence[FlowStep]) -> dict[str, int]:
    """How many rows of each step are open, as far as all of them were read."""
    found: dict[str, int] = {}
    for row in rows:
        lost = row.deed == "do" and row.state in {"failed", PARTIAL}
        run = newest_rows(store, record, row.step, row.round) if lost else None
        if run is not None and run.source_exhausted and run.counts.succeeded:
            done_by_hand = [*settled_rows(store, run).values()].count("done")
            found[row.step] = run.counts.total - run.counts.succeeded - run.counts.skipped - done_by_hand
    return found
