"""
What follows a failure, and what it means that nothing does.

`after_failure` is the one decision: from facts that are values it answers *again, after d seconds* or *stop, because
r*. A call, a stage, a batch, `RetryPolicy.decide`: each gathers the facts and asks it, and nothing else decides.
`ORDER` says which reason is heard first.

`REASONS` is what each stop reason means where there is no further attempt. A reason without a row fails a test.
"""

from __future__ import annotations

from outlast.kernel.value import Value, put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from outlast.kernel.aliases import StopReason

    #: Seconds to wait before another attempt, or why there is none.
    Answer: TypeAlias = float | StopReason

#: The facts that say no, in the order in which they are heard, and the reason of each; the policy has its own word.
ORDER: tuple[tuple[str, StopReason | None], ...] = (
    ("handed_out", "generator_started"),
    ("owned", "nested_exhausted"),
    ("cut_short", "total_timeout"),
    ("policy", None),
    ("ambiguous", "ambiguous"),
    ("late", "total_timeout"),
    ("stopping", "shutdown"),
    ("blocked", "breaker_open"),
    ("unpaid", "retry_budget"),
)
LONG_AGO = float("-inf")


def after_failure(
    policy: Answer,
    *,
    now: float = 0.0,
    deadline: float | None = None,
    open_until: float = LONG_AGO,
    handed_out: bool = False,
    owned: bool = False,
    cut_short: bool = False,
    ambiguous: bool = False,
    stopping: bool = False,
    unpaid: bool = False,
) -> Answer:
    """
    What follows a failed attempt. Pure: time, dice and whatever else was asked are in the facts.

    - `policy`: what the policy says of this error after so many attempts, with the previous delay and the roll.
    - `now`, `deadline`, `open_until`: instants on one clock, whichever it is. A wait that reaches the deadline is not
      begun, nor one after which the circuit would still be open.
    - `handed_out`: items of a generator are with the caller already.
    - `owned`: a retry inside of the attempt has given up on this error.
    - `cut_short`: the total timeout has struck inside of the attempt.
    - `ambiguous`: it may have been done, and must not be done twice.
    - `stopping`: somebody has asked to wind down.
    - `unpaid`: the retry budget has refused. To ask it takes from it: ask here first without this fact, then the
      budget if all others say yes, then here again if it refuses.

    >>> after_failure(2.0, now=5.0, deadline=60.0), after_failure(2.0, now=58.0, deadline=60.0)
    (2.0, 'total_timeout')
    >>> after_failure("permanent", stopping=True)
    'permanent'
    """
    refused, then = (True, now) if isinstance(policy, str) else (False, now + policy)
    late = deadline is not None and then >= deadline
    blocked = then < open_until
    if not (refused or late or blocked or stopping or owned or cut_short or ambiguous or unpaid or handed_out):
        return policy
    said = {
        "handed_out": handed_out,
        "owned": owned,
        "cut_short": cut_short,
        "policy": refused,
        "ambiguous": ambiguous,
        "late": late,
        "stopping": stopping,
        "blocked": blocked,
        "unpaid": unpaid,
    }
    heard: StopReason | None = next(reason for fact, reason in ORDER if said[fact])
    return policy if heard is None else heard


class Meaning(Value):
    """
    What a stop reason means.

    - `advice`: what a call says that gave up for it, and `uncalled` if it has not even begun.
    - `retriable`: the error might have been tried again, and something else was in the way.
    - `listed`: a policy's lists may say it of one error; of a group, the first such row that a leaf has.
    - `repairable`: another input may help.
    - `divisible`: one item of a batch may be the cause, and the others come through without it.
    - `unfinished`: an item that stops for it has not failed: it stays to be done.
    - `blameless`: it counts neither for nor against the items of a run.
    - `requeued`: a durable job whose code gave up for it goes back to the queue, if its own policy has an attempt left.
    """

    __slots__ = (
        "advice",
        "blameless",
        "divisible",
        "listed",
        "repairable",
        "requeued",
        "retriable",
        "uncalled",
        "unfinished",
    )
    advice: str
    uncalled: str | None
    retriable: bool
    listed: bool
    repairable: bool
    divisible: bool
    unfinished: bool
    blameless: bool
    requeued: bool

    def __init__(
        self,
        advice: str,
        uncalled: str | None = None,
        *,
        retriable: bool = True,
        listed: bool = False,
        repairable: bool = False,
        divisible: bool = False,
        unfinished: bool = False,
        blameless: bool = False,
        requeued: bool = False,
    ) -> None:
        put(self, "advice", advice)
        put(self, "uncalled", uncalled)
        put(self, "retriable", retriable)
        put(self, "listed", listed)
        put(self, "repairable", repairable)
        put(self, "divisible", divisible)
        put(self, "unfinished", unfinished)
        put(self, "blameless", blameless)
        put(self, "requeued", requeued)


def _of_the_error(advice: str) -> Meaning:
    """It is the error itself, which comes from what the code was given: not from load, time or the service."""
    return Meaning(advice, retriable=False, listed=True, repairable=True, divisible=True)


REASONS: dict[StopReason, Meaning] = {
    "skipped": _of_the_error("not retried: skip_on_errors lists it."),
    "permanent": _of_the_error(
        "not retried: {why}, which is permanent. Name {type} in on_errors if it should be retried all the same."
    ),
    "unclear": _of_the_error(
        "not retried: {why}. Add it to on_errors, or teach Outlast with outlast.register({type}, ...)."
    ),
    "not_listed": _of_the_error("not retried: {error_class} is not in on_errors."),
    "breaker_open": Meaning(
        "gave up after {count}: the circuit breaker is open.",
        "nothing was called: the circuit breaker is open.",
        listed=True,
        unfinished=True,
        blameless=True,
        requeued=True,
    ),
    "exhausted": Meaning(
        "gave up after {count}, {elapsed} s: {why}. Raise max_attempts to try longer.",
        divisible=True,
        requeued=True,
    ),
    "tier_exhausted": Meaning(
        "gave up after {count}, {elapsed} s: retry_limits grants the tier {tier} no further retry.",
        divisible=True,
        requeued=True,
    ),
    "nested_exhausted": Meaning(
        "not retried here: a retry inside of this call has already given up on it. "
        "Set retry_exhausted=True to retry anyway.",
        divisible=True,
        requeued=True,
    ),
    "total_timeout": Meaning(
        "gave up after {count}, {elapsed} s: no further attempt fits into the total timeout.",
        "nothing was called: the total timeout ran out {where}.",
        divisible=True,  # the time of another item may be what was up
        requeued=True,
    ),
    "retry_budget": Meaning(
        "gave up after {count}: the retry budget is used up, which spares a struggling service more load.",
        requeued=True,
    ),
    "throttled": Meaning(
        "gave up after {count}: no place at the limit within its max_wait.",
        "nothing was called: no place at the limit within its max_wait.",
        blameless=True,
        requeued=True,
    ),
    "shutdown": Meaning(
        "gave up after {count}: asked to stop.",
        "nothing was called: asked to stop.",
        unfinished=True,
        blameless=True,
        requeued=True,
    ),
    "ambiguous": Meaning(
        "not retried: {why}, so it may have been done, and idempotent=False says that it must not be done twice. "
        "Send outlast.current().idempotency_key along and it is retried.",
        retriable=False,
    ),
    "still_running": Meaning(
        "gave up after {count}: the attempt that timed out is still running, and a second one would overlap with it."
    ),
    "generator_started": Meaning(
        "not retried: items were already handed out, and starting anew would hand them out twice.", requeued=True
    ),
    "cancelled": Meaning("gave up after {count}: cancelled."),
    "poison": Meaning("gave up after {count}: three workers have ended or stood still while they ran it."),
    "incomplete": Meaning(
        "gave up after {count}: rows are open. Resume the flow to run only these.", retriable=False, requeued=True
    ),
}
