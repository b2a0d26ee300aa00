"""
What happened, as values: the attempts of a call, its outcome, and the context of the running code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from outlast.settings.checks import show

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from outlast.kernel.aliases import StopReason
    from outlast.verdicts import Verdict

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """
    One attempt: a value without the exception object, so that keeping it keeps nothing else alive.

    `error` is sanitised and None for a success; `delay` is the wait that followed, None after the last attempt. A plain
    ``@retry`` does not look at the clock before its first attempt, so there `duration` is 0.0 and `started_at` is when
    it failed. `spent` and `warnings` are what the code said through ``outlast.current()``.
    """

    number: int
    started_at: datetime
    duration: float
    error: str | None
    verdict: Verdict | None
    delay: float | None
    spent: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What an exception carries when a protected call raises it. Values only."""

    attempts: tuple[AttemptRecord, ...]
    reason: StopReason
    retried: bool  # a layer that did not retry does not own the error
    number: int  # grows with every history made; tells a mark of this call from one left by an earlier call
    note: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Outcome(Generic[T]):
    """
    How a call ended, returned instead of raised. `value` is meaningful when `ok`; `reason` says why it stopped when
    not.
    """

    ok: bool
    value: T
    error: Exception | None
    attempts: tuple[AttemptRecord, ...]
    elapsed: float
    reason: StopReason | None

    def __repr__(self) -> str:
        # Neither the value nor the error's text: both can hold what must not be seen.
        what = type(self.value).__name__ if self.ok else f"{type(self.error).__name__}, {self.reason}"
        return f"<Outcome ok={self.ok} ({what}) attempts={len(self.attempts)} elapsed={self.elapsed:.3f}>"


def amount(name: str, value: float) -> float:
    """What can be counted: a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"expected {name} to be a finite number of at least 0, got: {show(value)}")
    return float(value)


class Notes:
    """What the code of one attempt has said about it."""

    __slots__ = ("spent", "warnings")

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.warnings: list[str] = []


def add_to(totals: dict[str, float], more: Mapping[str, float]) -> None:
    """Add amounts to what was spent before, by their names."""
    for name, value in more.items():
        totals[name] = totals.get(name, 0.0) + value


class Context:
    """
    The attempt that the running code belongs to; `outlast.current()` returns it.

    Known in guards with a timeout, a limit, a breaker or a budget; a plain ``@retry`` fills it from the second attempt
    on. Before that, and outside of any call: attempt 1, nothing else known.
    """

    __slots__ = (
        "_deadline",
        "_key",
        "_monotonic",
        "_notes",
        "attempt",
        "item_key",
        "item_keys",
        "job_id",
        "last_error",
        "max_attempts",
        "run_id",
        "stage",
    )

    def __init__(
        self,
        *,
        attempt: int = 1,
        max_attempts: int = 1,
        last_error: Exception | None = None,
        deadline: float | None = None,
        monotonic: Callable[[], float] | None = None,
        key: Callable[[], str] | None = None,
        notes: Callable[[], Notes] | None = None,
    ) -> None:
        self.run_id: str | None = None
        self.item_key: str | None = None
        # Of all items that the running code works on, in a batch stage and elsewhere.
        self.item_keys: tuple[str, ...] = ()
        self.stage: str | None = None
        self.job_id: str | None = None
        self.attempt = attempt
        self.max_attempts = max_attempts
        self.last_error = last_error
        self._deadline = deadline
        self._monotonic = monotonic
        self._key = key
        self._notes = notes

    @property
    def idempotency_key(self) -> str:
        """A key that is the same in every attempt of this call and in no other call."""
        if self._key is None:
            raise LookupError(
                "this call has no idempotency key: a plain @retry prepares nothing for its first attempt. "
                "Use a Guard with a total_timeout, or make a key yourself outside of the retried function."
            )
        return self._key()

    @property
    def deadline(self) -> float | None:
        """The instant on the monotonic clock at which the time of all enclosing calls is up."""
        return self._deadline

    def remaining(self) -> float | None:
        """Seconds left until the nearest total timeout around this code, never below 0; None without one."""
        if self._deadline is None or self._monotonic is None:
            return None
        return max(0.0, self._deadline - self._monotonic())

    def spend(self, **amounts: float) -> None:
        """
        Say what this attempt has used: tokens, money, bytes. It is added up in the attempt's record and settles what
        was estimated for a limit's rates of the same names. Outside of any protected call it goes nowhere.
        """
        checked = {name: amount(name, value) for name, value in amounts.items()}
        if self._notes is not None:
            add_to(self._notes().spent, checked)

    def warn(self, message: str, /) -> None:
        """
        Say something about this attempt that a person should read although it did not fail; it lands in the attempt's
        record.
        """
        if self._notes is not None:
            from outlast.kernel.redact import sanitise

            self._notes().warnings.append(sanitise(str(message)))

    def __repr__(self) -> str:
        left = self.remaining()
        time = "" if left is None else f", {left:.3f} s left"
        return f"<Context attempt {self.attempt} of {self.max_attempts}{time}>"
