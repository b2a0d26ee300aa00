"""
What happened, as values: the attempts of a call, its outcome, and the context of the running code.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

from outlast.settings.checks import show

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from datetime import datetime

    from outlast.kernel.aliases import StopReason
    from outlast.verdicts import Verdict

T = TypeVar("T")
P = ParamSpec("P")


class Durable(Protocol):
    """What the code of a job can have put on record while it runs."""

    def step(self, name: str, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def compensate(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def keep(self, name: str, raw: str | bytes) -> None: ...
    def finish_in(self, transaction: object, result: object) -> None: ...
    async def afinish_in(self, transaction: object, result: object) -> None: ...


class PlainCall(Durable, Protocol):
    """The same for the function of a job that is called without a worker."""

    def idempotency_key(self) -> str: ...


# While the function of a job is called without a worker: nothing is on record then.
here_and_now: ContextVar[PlainCall | None] = ContextVar("outlast_here_and_now", default=None)


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


LONGEST_NOTE = 200  # characters of the note of a progress


def _counted(name: str, value: float) -> float:
    return value if isinstance(value, int) and amount(name, value) >= 0 else amount(name, value)


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
        "_durable",
        "_key",
        "_monotonic",
        "_notes",
        "_report",
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
        self._durable: Callable[[], Durable] | None = None  # in a job
        self._report: Callable[[tuple[float, float | None, str]], None] | None = None  # in a job, for its progress

    @property
    def idempotency_key(self) -> str:
        """A key that is the same in every attempt of this call and in no other call."""
        if self._key is None:
            plain_call = here_and_now.get()
            if plain_call is not None:
                return plain_call.idempotency_key()
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

    def progress(self, done: float, total: float | None = None, note: str = "", /) -> None:
        """
        In a job: report how far it is. The worker stores the newest report about once a second and at the end of the attempt;
        the next attempt begins without one. Outside of a job it goes nowhere.
        """
        whole = None if total is None else _counted("total", total)
        report = _counted("done", done), whole
        if self._report is not None:
            from outlast.kernel.redact import sanitise

            self._report((*report, sanitise(str(note), LONGEST_NOTE) if note else ""))

    @overload
    def step(
        self, name: str, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """
        In a job: call a function once, and store what it returns under this name. In further attempts of the job the
        function is not called again, and what is stored is returned. An async function gives an awaitable.

        The same name with other arguments is an error. A function that raises stores nothing.
        """
        return self._in_job("step").step(name, fn, args, kwargs)

    @overload
    def compensate(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[P, Coroutine[Any, Any, object]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, None]: ...
    @overload
    def compensate(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    def compensate(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """
        In a job: register what undoes a part of it, before that is done. If the job fails for good, all that is registered is
        called, the last one first, by whichever worker is there; if it is tried again, succeeds or is cancelled, nothing is. An
        async function gives an awaitable.

        The function must be at the top level of a module, and its arguments such that they can be stored. The same call
        registered twice is one. It may be called twice after a crash.
        """
        return self._in_job("compensate").compensate(fn, args, kwargs)

    def finish_in(self, transaction: object, *, result: Any = None) -> None:
        """
        In a job: let it succeed in this transaction of yours, with this `result`. What you have done there and the end of
        the job are committed together, or neither is. Call it last, then commit; what the function returns is not looked
        at. `LeaseLost` if the job was taken over: roll back.
        """
        self._in_job("finish_in").finish_in(transaction, result)

    async def afinish_in(self, transaction: object, *, result: Any = None) -> None:
        """As `finish_in`; for a transaction of an async library it is the only way."""
        await self._in_job("afinish_in").afinish_in(transaction, result)

    def keep(self, name: str, raw: str | bytes, /) -> None:
        """
        In a job: keep this for people to look at, such as the raw answer of a model, also if the attempt fails. What
        this attempt has kept under the same name is replaced.
        """
        self._in_job("keep").keep(name, raw)

    def _in_job(self, method: str) -> Durable:
        durable = here_and_now.get() if self._durable is None else self._durable()
        if durable is None:
            message = (
                f"current().{method} needs a job: what it stores belongs to one. Call it from a function that is made a job with "
                "@app.job, which a worker runs."
            )
            raise LookupError(message)
        return durable

    def __repr__(self) -> str:
        left = self.remaining()
        time = "" if left is None else f", {left:.3f} s left"
        return f"<Context attempt {self.attempt} of {self.max_attempts}{time}>"
