"""
Row steps, and the stage that runs them one after the other on a copy of each row.

A step *says* what is wrong; it does not raise it. What it raises is treated as in any stage: a lookup that timed out is
tried again by the stage's policy, with the row as it came in. Warnings are told once, by the attempt that came to an
end.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outlast.calls.state import current
from outlast.errors import PermanentFailure
from outlast.pipeline import stage
from outlast.pipeline.record.rowerrors import InvalidRow, RowError
from outlast.settings.callables import kind_of, name_of
from outlast.settings.checks import Check

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeAlias

    from outlast.calls.guard import Guard
    from outlast.calls.records import Context
    from outlast.kernel.aliases import Seconds
    from outlast.pipeline import Stage
    from outlast.policy import RetryPolicy

    Row: TypeAlias = dict[str, Any]
    AnyStep: TypeAlias = "RowTransformStep | Callable[..., Any]"

_SIMPLE = frozenset({str, int, float, bool, bytes, type(None)})
_UNSET: Any = object()


@dataclass(frozen=True, slots=True)
class StepResult:
    """
    What a step made of a row: the row, what a person should know about it, and what is wrong with it (sentences, or
    `RowError` values).
    """

    row: Mapping[str, Any] | None = None
    warnings: Sequence[str] = field(default_factory=list)
    errors: Sequence[RowError | str] = field(default_factory=list)


class StepSkipped(Exception):
    """
    Raise it in a step that cannot do its work and need not: the row goes on as it was before the step, with a warning
    that says why.
    """


class RowTransformStep(ABC):
    """
    One thing to do with a row; write `apply`, also as a coroutine function. The row is a copy: what happens to it is
    nobody else's.

    A step does not see a row in which steps before it found errors, unless it says ``despite_errors = True``: then
    whoever mends the row reads everything that is wrong with it at once.
    """

    name: str = "step"  # in messages and records; that of its class unless given
    despite_errors: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    @abstractmethod
    def apply(self, row: Row, context: Context) -> StepResult | Awaitable[StepResult]:
        """The row as it should be, with warnings and errors."""


class _Plain(RowTransformStep):
    """A function of a row, or of a row and its context."""

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        self.fn = fn
        self.name = name
        self._alone = not _takes_context(fn)

    def apply(self, row: Row, context: Context) -> Any:
        return self.fn(row) if self._alone else self.fn(row, context)


def _takes_context(fn: Callable[..., Any]) -> bool:
    try:
        inspect.signature(fn).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a builtin that does not tell
        return False
    return True


def as_step(step: Any, check: Check, place: str) -> RowTransformStep | None:
    """What people give as a step: one of ours, anything with `apply`, or a function."""
    if isinstance(step, RowTransformStep):
        return step
    if isinstance(step, type):
        check.add(place, "a step", step, "Make one of it: write () behind its name.")
        return None
    apply = getattr(step, "apply", None)
    work = apply if callable(apply) else step
    if not callable(work):
        check.add(place, "a RowTransformStep or a function of a row", step)
        return None
    if "generator" in kind_of(work):
        check.add(place, "a function that returns a row", step, "A step makes one row of one row.")
        return None
    given = getattr(step, "name", None)
    name = given if isinstance(given, str) else type(step).__name__ if work is apply else name_of(step)
    made = _Plain(work, name.rpartition(".")[2] or name)
    made.despite_errors = getattr(step, "despite_errors", False) is True
    return made


def row_stage(
    *steps: AnyStep,
    name: str = "clean",
    guard: Guard | None = None,
    retry: RetryPolicy | None = _UNSET,
    timeout: Seconds | None = None,
    concurrency: int = 16,
    checkpoint: bool = False,
    version: str = "1",
) -> Stage[..., Mapping[str, Any], dict[str, Any]]:
    """
    A stage that runs these steps on each row. Warnings land on the item; errors of all steps together make it fail once
    and for all, with the error class ``validation_error``. What a step raises follows the stage's policy; `guard`,
    `retry`, `timeout`, `concurrency`, `checkpoint` and `version` are those of `outlast.stage`.
    """
    check = Check()
    name = check.name("name", name)
    if not steps:
        check.add("steps", "at least one step", "none")
    made = [each for place, step in enumerate(steps, 1) if (each := as_step(step, check, f"step {place}")) is not None]
    check.raise_if_any()
    work = _working(tuple(made))
    work.__name__ = work.__qualname__ = name
    given: dict[str, Any] = {} if retry is _UNSET else {"retry": retry}
    if guard is not None:
        given["guard"] = guard
    if timeout is not None:
        given["timeout"] = timeout
    decorate: Any = stage(concurrency=concurrency, checkpoint=checkpoint, version=version, **given)
    return decorate(work)  # type: ignore[no-any-return]


def _is_async(step: RowTransformStep) -> bool:
    return kind_of(step.fn if isinstance(step, _Plain) else step.apply) == "async"


def _working(steps: tuple[RowTransformStep, ...]) -> Any:
    def in_turn(row: Mapping[str, Any]) -> dict[str, Any]:
        walk = _Walk(row)
        for step in filter(walk.wants, steps):
            try:
                walk.take(step, step.apply(copied(walk.row), current()))
            except StepSkipped as skipped:
                walk.skipped(step, skipped)
            except Exception:
                if not walk.errors:
                    raise
                break  # the row is wrong, and perhaps that is why
        return walk.end()

    async def in_turn_awaited(row: Mapping[str, Any]) -> dict[str, Any]:
        walk = _Walk(row)
        for step in filter(walk.wants, steps):
            try:
                result: Any = step.apply(copied(walk.row), current())
                walk.take(step, await result if hasattr(type(result), "__await__") else result)
            except StepSkipped as skipped:
                walk.skipped(step, skipped)
            except Exception:
                if not walk.errors:
                    raise
                break
        return walk.end()

    return in_turn_awaited if any(map(_is_async, steps)) else in_turn


class _Walk:
    """One row on its way through the steps: as it is now, and what they have said about it."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        if not isinstance(row, Mapping):
            message = f"expected a row with named columns, got: a value of type {type(row).__name__}."
            raise InvalidRow([RowError(message, kind="format")])
        self.row: Row = dict(row)
        self.errors: list[RowError] = []
        self._warnings: list[str] = []

    def wants(self, step: RowTransformStep) -> bool:
        return step.despite_errors or not self.errors

    def take(self, step: RowTransformStep, result: Any) -> None:
        if isinstance(result, Mapping):
            self.row = dict(result)
        elif isinstance(result, StepResult):
            self._warnings += map(str, _listed(result.warnings))
            # What is known to be wrong is not complained about by another step too.
            known = {error.field for error in self.errors if error.field is not None}
            self.errors += [error for error in map(RowError.of, _listed(result.errors)) if error.field not in known]
            if result.row is not None:
                self.row = dict(result.row)
        else:
            message = f"expected the step {step.name} to return a row or a StepResult, got: a value of type {type(result).__name__}."
            raise PermanentFailure(message, error_class="code_error")

    def skipped(self, step: RowTransformStep, why: StepSkipped) -> None:
        self._warnings.append(f"Step {step.name} was skipped: {why}")

    def end(self) -> Row:
        for warning in self._warnings:
            current().warn(warning)
        if self.errors:
            raise InvalidRow(self.errors)
        return self.row


def _listed(said: Sequence[Any]) -> Sequence[Any]:
    return (said,) if isinstance(said, str | RowError) else said


def copied(row: Mapping[str, Any]) -> Row:
    """A copy that shares nothing that can be changed."""
    if all(type(value) in _SIMPLE for value in row.values()):
        return dict(row)
    return {name: value if type(value) in _SIMPLE else _deep(value) for name, value in row.items()}


def _deep(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - a connection, a lock: there is only one of it
        return value
