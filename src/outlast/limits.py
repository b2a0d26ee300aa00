"""
What bounds the traffic of many calls at once.
"""

from __future__ import annotations

import os
import weakref
from _thread import allocate_lock

from outlast.checks import Check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Never

_CREDIT = 1000  # successes whose deposits are kept: a good day must not pay for a storm


class RetryBudget:
    """
    Retries as a share of the traffic, for all calls that share the budget.

    Each call that succeeds at its first attempt deposits `ratio`; the decision to retry withdraws 1. `reserve` is there from the start.
    When a dependency fails for good the deposits dry up, and so do the retries that would keep it down. Empty: the call ends with its own
    error, reason ``retry_budget``.
    """

    def __init__(
        self, name: str, *, ratio: float = 0.2, reserve: int = 10, shared: bool = False, **unknown: Never
    ) -> None:
        check = Check()
        check.unknown(unknown, ("name", "ratio", "reserve", "shared"))
        self.name = check.name("name", name)
        self.ratio = check.number("ratio", ratio, low=0, high=1, default=0.2)
        self.reserve = check.integer("reserve", reserve, low=0, default=10)
        if shared:
            check.add("shared", "False", shared, "Budgets are shared through a store, and this version has none.")
        check.raise_if_any()
        self._tokens = float(self.reserve)
        _budgets.add(self)
        self._most = self.reserve + self.ratio * _CREDIT
        self._lock = allocate_lock()

    @property
    def available(self) -> int:
        """Retries that would be granted now."""
        return int(self._tokens + 1e-9)

    def deposit(self) -> None:
        """A call succeeded at its first attempt."""
        with self._lock:
            self._tokens = min(self._tokens + self.ratio, self._most)

    def withdraw(self) -> bool:
        """Ask for one retry, at the moment of the decision: waiting retries are already counted."""
        with self._lock:
            if self._tokens < 1 - 1e-9:  # five deposits of 0.2 are one retry, whatever floats say
                return False
            self._tokens -= 1
            return True

    def __repr__(self) -> str:
        return f"<RetryBudget {self.name!r} {self._tokens:.1f} retries left>"


_budgets: weakref.WeakSet[RetryBudget] = weakref.WeakSet()


def _after_fork() -> None:
    # A thread of the parent may have held a lock at the moment of the fork. The child begins with what a new budget has.
    for budget in _budgets:
        budget._lock = allocate_lock()  # noqa: SLF001 - same room
        budget._tokens = float(budget.reserve)  # noqa: SLF001 - same room


os.register_at_fork(after_in_child=_after_fork)
