"""
Retry budgets: how many of all calls may be retries.

A budget of one process is a number that deposits raise and retries lower. One that processes share stands in a store.
Each process gathers its deposits and hands them in now and then; and it borrows a few retries at a time, which are the
store's no more from that moment on. So over all processes there are never more retries than were there, whatever
happens to any of them: what a process had borrowed when it was killed is lost.
"""

from __future__ import annotations

import weakref
from _thread import allocate_lock

from outlast.kernel.clock import here
from outlast.settings.checks import Check
from outlast.sharing.contact import Unreachable, on_loop
from outlast.sharing.named import Named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Never, Self

    from outlast.sharing.contact import Commons, Contact
    from outlast.sharing.named import Bond

_CREDIT = 1000  # successes whose deposits are kept: a good day must not pay for a storm
_ROUNDING = 1e-9  # five deposits of 0.2 are one retry, whatever floats say
_SHARE = 4  # the part of what is there that one process borrows: a quarter
_LARGEST_LOAN = 20
_BRIEF = 0.1  # seconds that an event loop waits for a loan, which is asked for ahead if it can be
_HAND_IN = 1.0  # seconds that deposits are gathered, and that a loan may lie idle
_DOZE = 20.0  # seconds without use after which a budget is no longer looked at


class RetryBudget(Named):
    """
    Retries as a share of the traffic, for all calls that share the budget.

    Each call that succeeds at its first attempt deposits `ratio`; the decision to retry withdraws 1. `reserve` is there
    from the start. When a dependency fails for good the deposits dry up, and so do the retries that would keep it down.
    Empty: the call ends with its own error, reason ``retry_budget``. With ``shared=True`` all processes that use the
    app's store have one budget of this name; without the store each of them has one of its own.
    """

    _kind = "budget"
    _settings = ("ratio", "reserve", "shared")

    def __init__(
        self, name: str, *, ratio: float = 0.2, reserve: int = 10, shared: bool = False, **unknown: Never
    ) -> None:
        check = Check()
        check.unknown(unknown, ("name", *self._settings))
        self.name = check.name("name", name)
        self.ratio = check.number("ratio", ratio, low=0, high=1, default=0.2)
        self.reserve = check.integer("reserve", reserve, low=0, default=10)
        self.shared = check.truth("shared", shared)
        check.raise_if_any()
        self._known()
        self.most = self.reserve + self.ratio * _CREDIT
        self._tokens = float(self.reserve)
        self.full = self._tokens >= self.most and not self.shared  # a deposit would change nothing
        self._lock = allocate_lock()
        self._common = None if self.bond is None else _Common(self, self.bond)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], /, *, name: str | None = None) -> Self:
        """
        A budget from a configuration block. `name` is for a block that has none. Every mistake is reported, at once.
        """
        from outlast.settings.keys import named

        return named(cls, "retry_budget", config, name)

    def to_config(self) -> dict[str, Any]:
        """The configuration block that makes such a budget: its name and what differs from the defaults."""
        from outlast.settings.keys import shown

        options = {"name": self.name, **self._as_settings()}
        return shown("retry_budget", options, RetryBudget.__init__.__kwdefaults__ or {})

    @property
    def available(self) -> int:
        """Retries that would be granted now; of a shared budget as far as is known."""
        contact = None if self._common is None else self._common.contact()
        if self._common is not None and contact is not None:
            return self._common.available()
        return int(self._tokens + _ROUNDING)

    def deposit(self) -> None:
        """A call succeeded at its first attempt."""
        if self.full or (self._common is not None and self._common.deposit()):
            return
        with self._lock:
            self._tokens = min(self._tokens + self.ratio, self.most)
            self.full = self._tokens == self.most and not self.shared

    def withdraw(self) -> bool:
        """Ask for one retry, at the moment of the decision: waiting retries are already counted."""
        if self._common is not None and (granted := self._common.withdraw()) is not None:
            return granted
        with self._lock:
            if self._tokens < 1 - _ROUNDING:
                return False
            self._tokens -= 1
            self.full = False
            return True

    def __repr__(self) -> str:
        if self._common is not None:
            return f"<RetryBudget {self.name!r}, shared>"
        return f"<RetryBudget {self.name!r} {self._tokens:.1f} retries left>"

    def _renew(self) -> None:
        """A forked child begins with what a new budget has."""
        self._lock = allocate_lock()
        self._tokens = float(self.reserve)
        self.full = False
        if self._common is not None:
            self._common.renew()


class _Common:
    """This process's part in a shared budget: what it has gathered, and what it has borrowed."""

    def __init__(self, budget: RetryBudget, bond: Bond) -> None:
        self._budget = weakref.ref(budget)
        self._ratio, self._reserve, self._most = budget.ratio, float(budget.reserve), budget.most
        self.bond = bond
        self.renew()

    def renew(self) -> None:
        """Begin with nothing; in a forked child, what there was is the parent's."""
        self._lock = allocate_lock()
        self._gathered = 0.0
        self._since = 0.0  # when the first of them was gathered
        self._loan = 0.0
        self._lent_at = self._dry_until = 0.0
        self._left = self._reserve  # in the store, when somebody last looked
        self._borrowing = self._attended = self._used = False
        self._dozed_at = 0.0

    def contact(self) -> Contact | None:
        """The contact with the store; None where this process is on its own."""
        contact = self.bond.contact()
        return None if contact is None or contact.lost else contact

    def available(self) -> int:
        return int(self._left + self._loan + self._gathered + _ROUNDING)

    # -- calls

    def deposit(self) -> bool:
        """Gather a deposit; False if this process is on its own."""
        contact = self._attend()
        if contact is None:
            return False
        with self._lock:
            if not self._gathered:
                self._since = here.get().clock.monotonic()
            self._gathered += self._ratio
        return True

    def withdraw(self) -> bool | None:
        """Take a retry from the loan, or from a new one; None if this process is on its own."""
        contact = self._attend()
        if contact is None:
            return None
        taken = self._take()
        if taken is None:
            try:
                if on_loop():
                    contact.ask(self._borrow, patience=_BRIEF)
                else:
                    contact.ask(self._borrow)
            except Unreachable:
                return None if contact.lost else False
            taken = self._take()
        elif taken and self._loan < 1 and not self._borrowing:
            self._borrowing = True  # ahead of the next one
            contact.post(self._borrow)
        return bool(taken)

    def _take(self) -> bool | None:
        """Whether there was a retry; None if it is worth asking for more."""
        now = here.get().clock.monotonic()
        with self._lock:
            if self._loan >= 1 - _ROUNDING:
                self._loan -= 1
                self._lent_at = now
                return True
            return False if now < self._dry_until else None

    def _attend(self) -> Contact | None:
        contact = self.bond.contact()
        if contact is None:
            return None
        with self._lock:
            attended, self._attended, self._used = self._attended, True, True
            if not attended:
                self._dozed_at = here.get().clock.monotonic()
        if not attended:
            contact.attend(self)
        return None if contact.lost else contact

    # -- the store: in the contact's thread

    def _borrow(self, commons: Commons) -> None:
        self._settle(commons, lend=True)

    def _settle(self, commons: Commons, *, lend: bool = False, give_back: bool = False) -> None:
        """Hand in what was gathered, and borrow more or give the loan back, in one transaction."""
        now = here.get().clock.monotonic()
        with self._lock:
            gathered, self._gathered = self._gathered, 0.0
            returned = self._loan if give_back else 0.0
            self._loan -= returned

        def change(document: Mapping[str, Any] | None, _: float) -> tuple[dict[str, Any] | None, tuple[float, float]]:
            before = self._read(document)
            tokens = min(before + gathered + returned, self._most)
            whole = int(tokens + _ROUNDING)
            lent = float(min(max(whole // _SHARE, 1), _LARGEST_LOAN, whole)) if lend else 0.0
            tokens = max(0.0, tokens - lent)
            return None if tokens == before and document is not None else {"tokens": tokens}, (tokens, lent)

        try:
            left, lent = commons.change("budget", self.bond.name, change)
        finally:
            # If that failed it may have been done all the same: what was given away is lost rather than counted twice.
            self._borrowing = False
        with self._lock:
            self._loan += lent
            self._lent_at = now
            self._found(left)
            if lend and not lent:
                self._dry_until = now + _HAND_IN

    def _look(self, commons: Commons) -> None:
        document, _ = commons.look("budget", self.bond.name)
        with self._lock:
            self._found(self._read(document))

    def _found(self, left: float) -> None:
        """Under the lock: so much is in the store."""
        self._left = left
        if left >= 1 - _ROUNDING:
            self._dry_until = 0.0
        budget = self._budget()
        if budget is not None:
            budget.full = left >= self._most - _ROUNDING and self._used

    def _read(self, document: Mapping[str, Any] | None) -> float:
        tokens = None if document is None else document.get("tokens")
        return min(max(0.0, float(tokens)), self._most) if isinstance(tokens, int | float) else self._reserve

    # -- in the background

    def attend(self, contact: Contact) -> bool:
        """Hand in what was gathered, give back what nobody needs; False when nobody has used it for a while."""
        now = here.get().clock.monotonic()
        with self._lock:
            late = self._gathered > 0 and (now - self._since > _HAND_IN or self._gathered >= 1)
            idle = self._loan > 0 and now - self._lent_at > _HAND_IN
            owing = self._gathered > 0 or self._loan > 0
            if now - self._dozed_at >= _DOZE:
                self._dozed_at = now
                self._attended, self._used = self._used or owing, False
                budget = self._budget()
                if budget is not None:
                    budget.full = False  # the next deposit shows that it is in use
                if not self._attended:
                    return False
        if late or idle:
            contact.asked(lambda commons: self._settle(commons, give_back=idle))
        else:
            contact.asked(self._look)
        return True

    def part(self, contact: Contact) -> None:
        """The process ends: others can use what it has."""
        if self._gathered or self._loan:
            contact.asked(lambda commons: self._settle(commons, give_back=True))
