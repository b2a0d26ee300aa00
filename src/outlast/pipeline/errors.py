"""
The exceptions that carry the result of a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.errors import OutlastError
from outlast.kernel import raised

if TYPE_CHECKING:
    from outlast.flow.results import FlowResult
    from outlast.pipeline.results import RunResult


class RunFailed(OutlastError):
    """A run over items ended as failed. `result` is what it came to; the same run key resumes it."""

    result: RunResult[Any]

    def __init__(self, message: str, *, result: Any) -> None:
        super().__init__(message)
        self.result = result


class RunIncomplete(RunFailed):
    """
    A run over items ended as a partial success: fewer than `min_success_rate` of its items succeeded, or a replayed dead
    letter failed again.
    """


class FailureBudgetExceeded(RunFailed):
    """More than the allowed share of the items failed, so no further ones were begun."""

    rate: float
    budget: float
    processed: int
    failed: int

    def __init__(
        self, message: str, *, result: RunResult[Any], rate: float, budget: float, processed: int, failed: int
    ) -> None:
        super().__init__(message, result=result)
        self.rate = rate
        self.budget = budget
        self.processed = processed
        self.failed = failed


class RunInterrupted(RunFailed):
    """
    A run over items was interrupted, paused or cancelled before its end. Unless it was cancelled, the same run key goes
    on with it.
    """


def mark_with_result(error: BaseException, result: Any) -> None:
    """Let an exception say which run ended with it, and how that goes on."""
    if not isinstance(error, RunFailed):
        raised.fields(error)["__outlast_result__"] = result  # any exception has room for one
    raised.add_note(error, f"outlast: {result.way_on()}")


def result_of(error: BaseException, /) -> RunResult[Any] | FlowResult | None:
    """
    What the run came to that ended with this exception: RunFailed, or what a signal or a cancellation became; None if
    it was no run.
    """
    each: BaseException | None = error
    for _ in range(_DEEPEST):  # `asyncio.timeout` and others raise an exception of their own from it
        if each is None:
            return None
        found = each.result if isinstance(each, RunFailed) else raised.fields(each).get("__outlast_result__")
        if found is not None:
            return found
        each = raised.cause(each)
    return None


_DEEPEST = 100  # causes that are looked at; they may form a circle
