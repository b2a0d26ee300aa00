"""
What a flow's run came to, as values, and the exceptions that carry it.
"""

from __future__ import annotations

import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from outlast.calls.state import mark_exhausted
from outlast.errors import PermanentFailure, TemporaryFailure
from outlast.kernel.redact import error_text, mask_known
from outlast.pipeline.errors import RunFailed, RunInterrupted, mark_with_result
from outlast.pipeline.results import as_stopped
from outlast.verdicts import as_listed, classify, give_verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from outlast.jobs.handle import AttemptRow
    from outlast.verdicts import Verdict

StepStatus: TypeAlias = Literal[
    "pending",
    "running",
    "succeeded",
    "partial_success",
    "cached",
    "failed",
    "skipped",
    "compensating",
    "compensated",
    "compensation_failed",
]
FlowStatus: TypeAlias = Literal[
    "running", "paused", "interrupted", "cancelled", "completed", "partial_success", "failed"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """
    One step of a flow's run, as it is on record. `attempts` are those at the step, `undone_by` those at what undoes it.
    `outputs` is what it has put out; nothing unless it is `succeeded` or `cached`. A step is `skipped` that a run which
    has ended never began. It is a ``partial_success`` if it lost rows: a resume runs only the open ones.
    """

    id: str
    component: str
    status: StepStatus
    attempts: Sequence[AttemptRow] = ()
    outputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None
    stop_reason: str | None = None
    undone_by: Sequence[AttemptRow] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FlowResult:
    """
    What a flow's run came to. `why` says it in a sentence, with what is left to do. ``result["read"]`` is the step of
    that id. `compensation` is ``failed`` if something could not be undone. `dead_letters` are open letters of rows and
    items that failed, of steps that have succeeded or are a partial success.
    """

    id: str
    run_key: str
    pipeline: str
    status: FlowStatus
    why: str
    steps: Sequence[StepRow]
    compensation: Literal["none", "begun", "completed", "failed"] = "none"
    reason: str | None = None
    dead_letters: int = 0
    error: BaseException | None = None

    def __getitem__(self, step: str, /) -> StepRow:
        for one in self.steps:
            if one.id == step:
                return one
        raise KeyError(step)

    def __repr__(self) -> str:
        return f"<FlowResult {self.pipeline!r} {self.run_key!r} {self.status}: {self.why}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the exception and without the way to a store: elsewhere there is neither.
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "error"}
        fields["steps"] = [
            {name: getattr(step, name) for name in step.__dataclass_fields__} | {"outputs": dict(step.outputs)}
            for step in self.steps
        ]
        return _restored, (fields,)

    def way_on(self) -> str:
        """What it came to, and how to go on with it."""
        return f"run {self.run_key!r} of {self.pipeline} {self.why}"

    def raise_for_status(self) -> Self:
        """
        Itself, if it is completed; else FlowFailed, FlowIncomplete if a step lost rows, or FlowInterrupted if it was
        interrupted, paused or cancelled.
        """
        if self.status == "completed":
            return self
        kinds: dict[str, type[FlowFailed | FlowInterrupted]] = {"failed": FlowFailed, "partial_success": FlowIncomplete}
        raised = kinds.get(self.status, FlowInterrupted)(f"{self.pipeline}: {self.why}", result=self)
        mark_with_result(raised, self)
        give_verdict(raised, self._verdict())
        step = self._failed_step()
        if step is not None and len(step.attempts) > 1:
            mark_exhausted(raised, step.attempts[-1].stop_reason or "exhausted")
        raise raised from self.error

    def _failed_step(self) -> StepRow | None:
        """The first step that failed or lost rows, if one did."""
        return next(
            (step for step in self.steps if step.status in {"failed", "partial_success"} and step.attempts), None
        )

    def _verdict(self) -> Verdict:
        """What this run is that did not complete: what its step failed with."""
        step = self._failed_step()
        last = None if step is None else step.attempts[-1]
        if isinstance(self.error, Exception) and not isinstance(self.error, RunFailed):
            return classify(self.error)
        if step is not None and last is not None and last.error_class is not None:
            return as_ended(last.error_class, last.error_type, step.stop_reason or last.stop_reason)
        if self.status in {"interrupted", "paused", "running"}:
            return classify("temporary_failure")
        return classify("cancelled" if self.status == "cancelled" else "permanent_failure")


def as_ended(error_class: str, error_type: str | None, reason: str | None) -> Verdict:
    """The verdict on the error of a step, of which this is stored. If it lost rows, its type tells whether one may recover."""
    if reason == "incomplete":
        return as_listed(error_class, category="transient" if error_type == "RowsPending" else "permanent")
    return as_stopped(error_class, reason)


def without_secrets(error: BaseException) -> BaseException:
    """
    The error itself. If it says a secret that is known, or one that it comes from does, another one of its name, with the
    same frames, that says the rest: whoever does not catch it prints it.
    """
    try:
        said = "".join(traceback.format_exception(error)) + repr(error)
    except Exception:  # noqa: BLE001 - somebody else's text; nothing can be said of it
        said = ""
    if mask_known(said) == said:
        return error
    kind, text = type(error), error_text(error)
    shown: Any = None
    if kind.__module__ == "builtins":
        with suppress(Exception):  # one that takes other arguments is stood in for below
            shown = kind(text)
    if shown is None or str(shown) != text:
        found = classify(error)
        base = TemporaryFailure if found.category == "transient" else PermanentFailure
        shown = type(kind.__name__, (base,), {})(text, error_class=found.error_class)
    made: BaseException = shown.with_traceback(error.__traceback__)
    return made


def _restored(fields: dict[str, Any]) -> FlowResult:
    steps = tuple(StepRow(**step) for step in fields.pop("steps"))
    return FlowResult(steps=steps, **fields)


class FlowFailed(RunFailed):
    """A flow's run ended as failed. `result` is what it came to; the same run key begins a new round."""

    result: FlowResult  # type: ignore[assignment]


class FlowIncomplete(FlowFailed):
    """A flow's run ended as a partial success: a step lost rows. The same run key runs only the open rows."""


class FlowInterrupted(RunInterrupted):
    """A flow's run was interrupted, paused or cancelled. Unless it was cancelled, the same run key goes on with it."""

    result: FlowResult  # type: ignore[assignment]
