"""
What a call that gave up says: why, and what can be done about it.
"""

from __future__ import annotations

from outlast.kernel.redact import harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from outlast.kernel.aliases import StopReason
    from outlast.policy import RetryPolicy
    from outlast.verdicts import Verdict

    class Ending(Protocol):
        """What is to be known of the call."""

        name: str
        number: int
        asking: bool

        @property
        def policy(self) -> RetryPolicy: ...
        @property
        def elapsed(self) -> float: ...


_ADVICE: dict[str, str] = {
    "permanent": "not retried: {why}, which is permanent. Name {type} in on_errors if it should be retried all the same.",
    "unclear": "not retried: {why}. Add it to on_errors, or teach Outlast with outlast.register({type}, ...).",
    "not_listed": "not retried: {error_class} is not in on_errors.",
    "skipped": "not retried: skip_on_errors lists it.",
    "exhausted": "gave up after {count}, {elapsed} s: {why}. Raise max_attempts to try longer.",
    "tier_exhausted": "gave up after {count}, {elapsed} s: retry_limits grants the tier {tier} no further retry.",
    "total_timeout": "gave up after {count}, {elapsed} s: no further attempt fits into the total timeout.",
    "retry_budget": "gave up after {count}: the retry budget is used up, which spares a struggling service more load.",
    "breaker_open": "gave up after {count}: the circuit breaker is open.",
    "throttled": "gave up after {count}: no place at the limit within its max_wait.",
    "ambiguous": "not retried: {why}, so it may have been done, and idempotent=False says that it must not be done twice. Send outlast.current().idempotency_key along and it is retried.",
    "nested_exhausted": "not retried here: a retry inside of this call has already given up on it. Set retry_exhausted=True to retry anyway.",
    "still_running": "gave up after {count}: the attempt that timed out is still running, and a second one would overlap with it.",
    "shutdown": "gave up after {count}: asked to stop.",
    "generator_started": "not retried: items were already handed out, and starting anew would hand them out twice.",
}


_NOT_CALLED: dict[str, str] = {
    "breaker_open": "nothing was called: the circuit breaker is open.",
    "throttled": "nothing was called: no place at the limit within its max_wait.",
    "total_timeout": "nothing was called: the total timeout ran out {where}.",
    "shutdown": "nothing was called: asked to stop.",
}


def note(call: Ending, error: Exception, reason: StopReason, verdict: Verdict | None) -> str:
    """The sentence that a call leaves on the exception it lets go."""
    advice = _ADVICE[reason] if call.number else _NOT_CALLED[reason]
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
