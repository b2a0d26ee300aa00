"""
The protected call of an item at a stage. It is a `Call` with four rules of its own:

- While a circuit is open, the item waits without its slot.
- When the service behind a limit refuses attempts, these are not charged for the first `PATIENCE` seconds.
- An empty retry budget delays the next attempt, for `PATIENCE` seconds at the most, and does not end the call at once.
- An open circuit inside of the stage's function is not the stage's own: it fails the attempt as a transient error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.calls.state import Call, current_work
from outlast.deciding import REASONS, after_failure
from outlast.kernel import raised
from outlast.kernel.clock import roll_for
from outlast.limits.throttle import DEFERRED, LONGEST_FLOOR, LONGEST_WAIT, PATIENCE
from outlast.observe import listening
from outlast.policy import plain
from outlast.verdicts import classify, refusal, surely_undone

if TYPE_CHECKING:
    from outlast.calls.records import Context
    from outlast.kernel.aliases import StopReason
    from outlast.pipeline.engine.item import Item
    from outlast.verdicts import Verdict

_FIRST_FLOOR = 0.01  # seconds: where the least wait begins to grow, if the service gave no hint


def _floor(count: int, roll: float, asked: float) -> float:
    """
    The least wait after so many uncharged refusals of an item, ±25 %, in seconds. A policy of milliseconds suits
    failures, which are counted; refusals are not, and a service that says no would be asked thousands of times.
    """
    nominal = 0.0 if asked else min(_FIRST_FLOOR * 2.0 ** min(count - 1, 32), LONGEST_FLOOR)
    return nominal * (0.75 + 0.5 * roll)


class _Underway:
    """The value of `running` during a first attempt that has no `Call` yet."""

    deadline = None

    def context(self) -> Context:
        work: Any = current_work.get()
        context: Context = work.context()
        return context


UNDERWAY: Any = _Underway()


class StageCall(Call):
    """A protected call of one item at a stage, with the rules above."""

    has_own_key = True
    item: Item
    circuits = defers = True
    uncharged = 0  # attempts that the service refused, and that do not count

    @property
    def tries(self) -> int:
        """Attempts made at this stage, the uncharged ones included."""
        return self.number + self.uncharged

    def roll(self) -> float:
        """A run is reproducible from its id: the wait follows from item, stage and attempt."""
        item = self.item
        return roll_for(item.stage.run.run_id, item.stage.name, item.key, self.tries + item.numbered)

    def who(self) -> dict[str, Any]:
        item = self.item
        run = item.stage.run
        return super().who() | {
            "attempt": self.tries,
            "item_id": item.key,
            "run_id": run.run_id,
            "pipeline": run.pipeline,
        }

    def _tell_end(self, error: BaseException, reason: StopReason, verdict: Verdict | None) -> None:
        again = self.item.stage.run.retried_after(error, reason) if isinstance(error, Exception) else None
        if again is None or verdict is None:
            super()._tell_end(error, reason, verdict)
        elif listening():
            self._tell_retry(error, verdict, again, level="debug")  # the job logs that it is requeued

    def context(self) -> Context:
        context = super().context()
        context.attempt = max(1, self.tries)
        context._key = self._ask_key  # noqa: SLF001 - known at every stage, also with a plain guard
        return context

    def key(self) -> str:
        """The idempotency key: the item's own, at this stage."""
        if self._key is None:
            self._key = self.item.idempotency_key()
        return self._key

    def held_up_by(self) -> str:
        """What `begin` asked to wait for."""
        if self.owing is not None and self.guard.retry_budget is not None:
            return f"retry_budget {self.guard.retry_budget.name}"
        if self.turn is not None:
            return self.at_limit("throttled" if self.turn.limit.paused else "limit")
        return "breaker" if self.guard.breaker is None else f"breaker {self.guard.breaker.name}"

    def at_limit(self, kind: str) -> str:
        return kind if self.guard.limit is None else f"{kind} {self.guard.limit.name}"

    def begin(self) -> float | None:
        if self.owing is not None:
            budget, now = self.guard.retry_budget, self.world.clock.monotonic()
            if budget is None or budget.withdraw():
                self.owing = None
            elif now - self.owing >= PATIENCE:
                self._end_with_last("retry_budget")
            else:
                return max(DEFERRED, self.previous or 0.0)
        return super().begin()

    def failed(self, error: Exception) -> float | None:
        if self.guard.limit is not None and self.world.retries:
            verdict = classify(error)
            # What the service has refused may be tried for long, but not what may have been done before the refusal.
            twice = self.guard.idempotent or self.asked or surely_undone(error, verdict)
            if twice and refusal(error, verdict) is not None:
                wait = self._refused(error, verdict)
                if wait is not None:
                    return wait
        return super().failed(error)

    def is_final(self, error: Exception) -> bool:
        """
        Whether a failure ends the item also while its run winds down: one that is surely its own, or one after which the
        work may have been done and must not be done twice. A fallback that would answer does not run any more.
        """
        if isinstance(error, raised.NoFailure):
            return False
        verdict = classify(error)
        if not (self.guard.idempotent or self.asked or surely_undone(error, verdict)):
            return True
        says, owned, cut_short = self._first_facts(error, verdict)
        answer = after_failure(says, owned=owned, cut_short=cut_short)
        own = verdict.category == "permanent" and verdict.error_class != "cancelled"
        return own and isinstance(answer, str) and not REASONS[plain(answer)].retriable and self.guard.fallback is None

    def covers(self, error: Exception) -> bool:
        return not self._stopped() and super().covers(error)

    def _refused(self, error: Exception, verdict: Verdict) -> float | None:
        """The seconds to wait after a refusal that is not charged; None if it is."""
        now, policy, item = self.world.clock.monotonic(), self.guard.retry, self.item
        if item.throttled_at is None:
            item.throttled_at = now
        roll, count, asked = self.roll(), 1 + self.uncharged, policy.asked(verdict)
        wait = policy.delay(count, roll, None, self.previous)
        if policy.max_delay is None and not policy.delays:
            wait = min(wait, LONGEST_WAIT)
        wait = max(wait, _floor(count, roll, asked))
        self.previous, wait = wait, wait + asked
        answer = after_failure(wait, now=now, deadline=self.deadline, stopping=self._stopped())
        if isinstance(answer, str) or now - item.throttled_at >= PATIENCE:
            return None
        if self.ticket is not None:
            self._settle(error, verdict)
        if self.entry >= 0:
            self._leave(error, verdict)
        self._again(error, verdict, wait, now)
        if self.notes is not None:
            self.notes.pop(self.number, None)  # on record; the next attempt has the same number, and says its own
        self.number -= 1
        self.uncharged += 1
        return wait
