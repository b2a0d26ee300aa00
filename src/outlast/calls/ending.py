"""
What a call that gave up says: why, and what can be done about it.
"""

from __future__ import annotations

from outlast.deciding import REASONS
from outlast.kernel.redact import harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from outlast.kernel.aliases import StopReason
    from outlast.policy import RetryPolicy
    from outlast.verdicts import Verdict

    class Ending(Protocol):
        """The facts about a call that `note` needs."""

        name: str
        number: int
        asking: bool

        @property
        def policy(self) -> RetryPolicy: ...
        @property
        def elapsed(self) -> float: ...


def note(call: Ending, error: Exception, reason: StopReason, verdict: Verdict | None) -> str:
    """The sentence that a call leaves on the exception it lets go."""
    means = REASONS[reason]
    advice = means.advice if call.number else means.uncalled or means.advice
    if reason == "exhausted" and call.policy.max_attempts == 1:
        advice = "failed at its only attempt: {why}. There are no retries: max_attempts is 1."
    if (more := getattr(reason, "why", None)) is not None:
        return f"outlast {call.name}: {more}"
    text = advice.format(
        why=verdict.why if verdict else "",
        type=type(error).__name__,
        error_class=verdict.error_class if verdict else "",
        tier=verdict.tier if verdict else "",
        count=f"{call.number} attempt{'' if call.number == 1 else 's'}",
        elapsed=f"{call.elapsed:.3g}",
        where="while a shared circuit was asked" if call.asking else "in the line of the limit",
    )
    return harmless(f"outlast {call.name}: {text}")
