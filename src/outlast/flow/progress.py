"""
How far a flow's run is, and what follows. Pure: what is on record goes in, what to do comes out.

    forward   every step whose needs have succeeded begins, until all have, or one fails for good
    drain     a step has failed: nothing new begins, what runs comes to its end
    undo      what has been done is undone, one by one, in the reverse order in which it succeeded

Nothing else says which of the three a run is in: a step that has failed for good means that the run is to be undone,
whoever goes on with it. A step that lost rows compensates nothing: steps that do not need it run, and then the run is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from outlast.spec.references import parse, references_in
from outlast.verdicts import classify
from outlast.verdicts.rules import UNDONE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from outlast.spec.manifest import Manifest
    from outlast.store.flows import FlowStep, StepState

Phase: TypeAlias = Literal["forward", "drain", "undo", "over"]
#: States of a step whose outputs are on record.
DONE = frozenset({"succeeded", "cached"})
#: The state of a step that lost rows: fewer succeeded than it needs, and enough for a resume to run only the open ones.
PARTIAL: Final = "partial_success"
_OPEN = frozenset({"pending", "waiting"})


@dataclass(slots=True)
class Progress:
    """
    The steps of a run by their ids, and what undoes them, as they are on record. `cancelling`: it is to be undone although
    nothing has failed.
    """

    manifest: Manifest
    do: dict[str, FlowStep] = field(default_factory=dict)
    undo: dict[str, FlowStep] = field(default_factory=dict)
    cancelling: bool = False
    redoing: set[str] = field(default_factory=set)  # to be done again, as soon as what stands of them is undone
    by_hand: frozenset[str] = frozenset()  # could not be undone, and somebody has done that since; for reports

    def put(self, rows: Iterable[FlowStep]) -> None:
        """What is on record now."""
        for row in rows:
            (self.do if row.deed == "do" else self.undo)[row.step] = row

    def state(self, step: str) -> str:
        """pending, running, waiting, succeeded, cached, failed or compensated."""
        row = self.do.get(step)
        return "pending" if row is None else row.state

    @property
    def failed(self) -> list[str]:
        """The steps that have failed for good, in the order of the manifest."""
        if not any(row.state == "failed" for row in self.do.values()):  # asked after every step
            return []
        return [step.id for step in self.manifest.steps if self.state(step.id) == "failed"]

    @property
    def partial(self) -> list[str]:
        """The steps that lost rows, in the order of the manifest."""
        return [step.id for step in self.manifest.steps if self.state(step.id) == PARTIAL]

    @property
    def undoing(self) -> bool:
        """Whether something of this round was begun to be undone."""
        return any(
            row.state != "pending" or row.attempts or row.crashes
            for name, row in self.undo.items()
            if name not in self.redoing
        )

    def phase(self, running: Collection[str]) -> Phase:
        """What the run is in, while these steps run. One that is to be done again is never over."""
        if self.redoing and not self.cancelling:
            return "forward"
        if self.failed or self.cancelling or self.undoing:
            if running:
                return "drain"
            return "undo" if self.to_undo() else "over"
        if all(self.state(step.id) in DONE for step in self.manifest.steps):
            return "over"
        return "over" if self.partial and not running and not self.ready(()) else "forward"

    def ready(self, running: Collection[str]) -> list[str]:
        """The steps that may begin now, in the order of the manifest."""
        found: list[str] = []
        rows = self.do
        whole: set[str] = set()  # done, and so is all that they need: of a new round more may be done than that
        for step in self.manifest.steps:  # each comes after what it needs
            name = step.id
            row = rows.get(name)
            if row is not None and row.state not in _OPEN and row.state not in DONE:
                continue
            if not whole.issuperset(step.work["needs"]):
                continue
            if row is not None and row.state in DONE:
                whole.add(name)
            elif name not in running:
                found.append(name)
        return found

    def to_undo(self) -> list[str]:
        """
        What is still to be undone, the next one first. A step that was not executed, because its key was known, is an
        earlier run's; one that failed is undone only with ``when: started``, or where its rows are undone one by one: of
        those some may be done.
        """
        found: list[tuple[float, str]] = []
        for name, row in self.do.items():
            how = row.definition["work"].get("compensate")
            if how is None or not self._is_left(name):
                continue
            if row.state == "succeeded":
                found.append((float(row.completed or 0), name))
            elif _may_stand(row):
                found.append((float("inf"), name))
        return [name for _, name in sorted(found, key=lambda one: (-one[0], one[1]))]

    def _is_left(self, name: str) -> bool:
        undo = self.undo.get(name)
        return undo is None or undo.state not in {"succeeded", "failed"}

    def stands(self, name: str) -> bool:
        """Whether something of a step is done and could be undone, also if that was tried in vain."""
        row, undo = self.do.get(name), self.undo.get(name)
        if (
            row is None
            or "compensate" not in row.definition["work"]
            or (undo is not None and undo.state == "succeeded")
            or name in self.by_hand
        ):
            return False
        return row.state == "succeeded" or _may_stand(row)

    def standing(self) -> list[str]:
        """
        Steps that have been done and could be undone, in the order in which they succeeded. Of one whose undoing was begun
        nobody can say that it stands: that is `half_undone`.
        """
        half = self.half_undone()
        rows = [row for name, row in self.do.items() if self.stands(name) and name not in half]
        return [row.step for row in sorted(rows, key=lambda row: row.completed or 0)]

    def half_undone(self) -> list[str]:
        """Steps whose undoing was begun and has not ended: it is under way, waits, was stopped, or was cut off."""
        return [name for name, row in self.undo.items() if is_begun(row)]

    def not_undone(self) -> list[str]:
        """Steps that could not be undone, in the order of the manifest."""
        return [name for name, row in self.undo.items() if row.state == "failed" and name not in self.by_hand]

    def compensation(self, alone: Collection[str] = ()) -> Literal["none", "begun", "completed", "failed"]:
        """What came of undoing; `alone` are the steps of which nothing was this run's to undo."""
        if self.not_undone():
            return "failed"
        if self.half_undone():
            return "begun"
        undone = {name for name, row in self.undo.items() if row.state == "succeeded"} | self.by_hand
        if undone.issubset(alone):
            return "none"
        return "begun" if (self.failed or self.cancelling) and self.to_undo() else "completed"


def is_begun(undo: FlowStep | None) -> bool:
    """Whether something was begun that undoes a step, and has not ended. The row of an earlier round says nothing."""
    if undo is None:
        return False
    return undo.state in {"running", "waiting"} or (undo.state == "pending" and undo.made_in_round)


def _may_stand(row: FlowStep) -> bool:
    """Whether something of a step that is not done may have been done, and is undone."""
    how = row.definition["work"]["compensate"]
    begun = row.made_in_round and row.state in {"failed", PARTIAL, "pending", "waiting"}
    return begun and (how["when"] == "started" or how.get("per") == "row")


def tried_since(history: Iterable[tuple[str, str, int]], before: int) -> int:
    """
    The round since which one and the same deed is tried: the one after the last in which the step was done or undone, of
    those before this one. A service that is sent a key of this round takes an attempt after a failure, a lost answer or a
    crash for what it is, and what is done anew for something new. `history` has deeds, how they ended, and in which round.

    What was begun to be undone counts as undone, however that ended: no step is begun anew before it is undone, or
    somebody has done that by hand.

    >>> tried_since([("do", "failed", 1), ("do", "crashed", 2)], 3)
    1
    >>> tried_since([("do", "failed", 1), ("do", "succeeded", 2), ("undo", "succeeded", 2), ("do", "failed", 3)], 4)
    3
    """
    over = [number for deed, end, number in history if number < before and (deed == "undo" or end == "succeeded")]
    return max(over, default=0) + 1


# -- after a crash ---------------------------------------------------------------------------------------------------------

CUT_OFF = "the process that ran it ended or stood still in the middle of an attempt"
POISON = 3  # processes that ended while they ran a step, after which it is not begun again


def after_crash(row: FlowStep) -> tuple[str, str, Literal["poison", "ambiguous"] | None]:
    """
    What follows when the process ended in the middle of an attempt: the error, its class, and why the step is not begun
    again, if it is not. It is begun again, which costs no attempt, unless it is the third such end, or the step must not
    be done twice and no key tells whether it was done.
    """
    crashes = row.crashes + 1
    if crashes >= POISON:
        return f"{crashes} processes ended or stood still while they ran it: it is not begun again", "poison", "poison"
    work = row.definition["work"]
    keyed = row.key_digest is not None or ("for_each" in work and "idempotency" in work)  # of each row, its own
    if row.definition["policy"].get("idempotent") is False and not keyed and row.deed == "do":
        return f"{CUT_OFF}: it may have been done, and must not be done twice", "worker_lost", "ambiguous"
    return CUT_OFF, "worker_lost", None


def recovered(row: FlowStep) -> FlowStep:
    """A step as it is when its run goes on after the process that had it has ended."""
    if row.state != "running":
        return row
    error, error_class, reason = after_crash(row)
    state: StepState = "pending" if reason is None else "failed"
    return row._replace(state=state, error=error, error_class=error_class, stop_reason=reason)


def in_doubt(manifest: Manifest, rows: Iterable[FlowStep]) -> list[str]:
    """
    The steps that may have been done and must not be done twice: they, or rows of them, have failed in a way that does not
    tell, such as by an answer that was lost, and nobody has undone them. What the file says now counts.
    """
    rows = list(rows)
    once = {step.id for step in manifest.steps if step.policy.get("idempotent") is False}
    undone = {row.step for row in rows if row.deed == "undo" and row.state == "succeeded" and not _of_done_rows(row)}
    return [
        row.step
        for row in rows
        if row.deed == "do"
        and row.state in {"failed", PARTIAL}
        and row.step in once - undone
        and may_be_done(row.stop_reason, row.error_class)
    ]


def _of_done_rows(undo: FlowStep) -> bool:
    """Whether it undoes only the rows that are on record as done: the others stay as doubtful as they were."""
    how = undo.definition["work"].get("compensate", {})
    return bool(how.get("per") == "row" and how.get("when") == "completed")


def of_rows(row: FlowStep) -> bool:
    """Whether what is in doubt of a step are rows with an end on record, which are settled by hand one by one."""
    return "for_each" in row.definition["work"] and row.error_class not in {"worker_lost", "poison"}


def may_be_done(reason: str | None, error_class: str | None) -> bool:
    """Whether what has failed with this may have been done: an answer was lost, or came and could not be used."""
    lost = error_class not in UNDONE and classify(error_class or "unknown").category == "transient"
    return reason == "ambiguous" or lost


# -- a run that is there already -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Changed:
    """How a manifest differs from what a run has on record: ids of steps."""

    work: tuple[str, ...] = ()  # finished, and now something else is to be done
    gone: tuple[str, ...] = ()  # finished, and not in the manifest any more
    policy: tuple[str, ...] = ()  # the same work, with other retries or limits
    mended: tuple[str, ...] = ()  # not finished, and now something else is to be done

    @property
    def other_work(self) -> tuple[str, ...]:
        return (*self.work, *self.gone)


def compared(manifest: Manifest, rows: Iterable[FlowStep]) -> Changed:
    """How the manifest differs from what is on record."""
    now = {step.id: step for step in manifest.steps}
    found: dict[str, list[str]] = {"work": [], "gone": [], "policy": [], "mended": []}
    for row in rows:
        if row.deed != "do":
            continue
        step = now.get(row.step)
        if step is None:
            if row.state in DONE:
                found["gone"].append(row.step)
        elif row.work != step.work_fingerprint:
            found["work" if row.state in DONE else "mended"].append(row.step)
        elif row.definition.get("policy") != plain(step.policy):
            found["policy"].append(row.step)
    return Changed(*(tuple(found[one]) for one in ("work", "gone", "policy", "mended")))


def plain(value: Any) -> Any:
    """The values of a manifest as plain data, which JSON takes and anybody may change."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def behind(manifest: Manifest, steps: Iterable[str]) -> list[str]:
    """These steps, and all that need them, in the order of the manifest."""
    found = set(steps)
    for step in manifest.steps:  # each comes after what it needs
        if any(one in found for one in step.needs):
            found.add(step.id)
    return [step.id for step in manifest.steps if step.id in found]


def definition_of(step: Any) -> dict[str, Any]:
    """A step as it is kept with its run: what is done, and what happens when it fails."""
    return {"work": plain(step.work), "policy": plain(step.policy)}


def for_a_new_round(manifest: Manifest, rows: Sequence[FlowStep], also: Iterable[str] = ()) -> list[str]:
    """
    The steps that a new round does again: those that were begun and are not done, and those that are done with what one
    of these has put out. That was undone, or never came to be: what was made of it stands for nothing.
    """
    again = {row.step for row in rows if row.deed == "do" and row.state not in DONE} | {*also}
    begun = {row.step for row in rows if row.deed == "do"}
    for step in manifest.steps:  # each comes after those that it refers to
        if step.id in begun and not again.isdisjoint(refers_to(step.work)):
            again.add(step.id)
    return [step.id for step in manifest.steps if step.id in again] + sorted(
        again - {step.id for step in manifest.steps}
    )


def refers_to(work: Any) -> set[str]:
    """
    The steps whose outputs the parts of a step refer to; what undoes it does not count.

    >>> sorted(refers_to({"config": {"rows": "${steps.read.outputs.rows}", "day": "${params.day}"}}))
    ['read']
    """
    found: set[str] = set()
    waiting: list[Any] = [one for key, one in work.items() if key != "compensate"]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            found |= {part.step for part in references_in(parse(one)) if part.kind == "output"}
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
    return found
