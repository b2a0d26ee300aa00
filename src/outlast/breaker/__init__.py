"""
A circuit breaker: after repeated failures stop calling for a while, then let a few probes find out whether it works
again.

             failures reach the threshold, or the rate
    CLOSED ───────────────────────────────────────────► OPEN ◄──────────────┐
       ▲                                                 │ reset_timeout     │ any probe fails
       │                                                 ▼ has passed        │
       └───────────── success_threshold successes ── HALF_OPEN ──────────────┘
                                                 (at most half_open_requests at a time)

Two kinds of state, kept apart because they are shared differently:

- the circuit, in a memory of this process or in one that processes share (`outlast.breaker.circuit`);
- counts, which only the closed state has and which stay in the process (but for those of `counting`).

No lock is held during the user's call, nor while events are told.

    circuit   how a circuit changes, pure, and the memory of this process
    shared    a circuit that processes share
    counting  one that counts in the store as well: that of a step in a flow
"""

from __future__ import annotations

from _thread import allocate_lock
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from outlast.breaker.circuit import (
    ROUNDING,
    Answer,
    CircuitState,
    LocalMemory,
    Tally,
    Ticket,
    closed,
    counted,
    isolated,
    open_time,
    probed,
)
from outlast.breaker.shared import SharedMemory
from outlast.deciding import LONG_AGO
from outlast.errors import CircuitBreakerOpenError, ConfigurationError, LimitExceededError, TotalTimeoutError
from outlast.kernel.clock import here
from outlast.kernel.raised import NoFailure
from outlast.kernel.redact import sanitise
from outlast.observe import emit, listening, stands
from outlast.settings.callables import PLAIN, awaitable, dress, is_async, name_of, rewrapped
from outlast.settings.checks import Check
from outlast.sharing import named
from outlast.sharing.named import Named
from outlast.verdicts import classify

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime
    from types import TracebackType
    from typing import Literal, Never, ParamSpec, Self, TypeVar

    from outlast.breaker.circuit import Circuit
    from outlast.kernel.aliases import Seconds
    from outlast.observe.events import Event
    from outlast.verdicts import Verdict

    P = ParamSpec("P")
    R = TypeVar("R")

_NOTHING: Any = object()  # a function has returned nothing yet

__all__ = ["CircuitBreaker", "CircuitState", "Ticket"]


class _Counts:
    """What the closed state counts, with its lock. Breakers that `replace` one another share them."""

    __slots__ = ("failures", "lock", "tally")

    def __init__(self, window: int) -> None:
        self.lock = allocate_lock()
        self.keep(Tally(window))

    def keep(self, tally: Tally) -> None:
        """Under the lock: what it has come to."""
        self.tally = tally
        self.failures = tally.row  # apart from the tally because calls that succeed look at it first

    def clear(self) -> None:
        with self.lock:
            self.keep(Tally(self.tally.window, last_failure_time=self.tally.last_failure_time))


class CircuitBreaker(Named):
    """
    Protects a dependency, and whoever waits for it, from calls that cannot succeed.

    It opens after `failure_threshold` failures in a row or, if `failure_rate` is given, instead when that share of the
    last `window` calls failed, once there were `min_calls`. A call that takes longer than `slow_call` counts as a
    failure. With ``count="faults"`` only transient and unclear errors count; others neither count nor reset. After
    `reset_timeout` seconds (varied by `open_jitter`, grown by `open_growth` with each failed round) at most
    `half_open_requests` probes run at a time; `success_threshold` successes (as many as probes, if not given) close it,
    one failure opens it again. ``mode="shadow"`` tells what it would do and rejects nothing.

    With ``shared=True`` all processes that use the app's store have one circuit of this name: they open and close it
    together, and its probes are counted over all of them. Failures are still counted by each process. Without the store
    each process decides alone.

    One object serves sync and async code, threads and event loops: as a decorator, by `call` and `acall`, or in
    ``with``.
    """

    _kind = "breaker"
    _settings = (
        *("failure_threshold", "reset_timeout", "half_open_requests", "success_threshold", "failure_rate", "window"),
        *("min_calls", "slow_call", "open_jitter", "open_growth", "count", "mode", "shared"),
    )

    def __init__(
        self,
        name: str,
        *,
        failure_threshold: int = 5,
        reset_timeout: Seconds = 60.0,
        half_open_requests: int = 2,
        success_threshold: int | None = None,
        failure_rate: float | None = None,
        window: int = 100,
        min_calls: int = 20,
        slow_call: Seconds | None = None,
        open_jitter: float = 0.0,
        open_growth: float = 1.0,
        count: Literal["faults", "any"] = "faults",
        mode: Literal["on", "shadow"] = "on",
        shared: bool = False,
        **unknown: Never,
    ) -> None:
        check = Check()
        check.unknown(unknown, ("name", *self._settings))
        self.name = check.name("name", name)
        self.failure_threshold = check.integer("failure_threshold", failure_threshold, low=1, default=5)
        self.reset_timeout = check.seconds("reset_timeout", reset_timeout, 60.0)
        self.half_open_requests = check.integer("half_open_requests", half_open_requests, low=1, default=2)
        self.success_threshold = (
            self.half_open_requests
            if success_threshold is None
            else check.integer("success_threshold", success_threshold, low=1, default=2)
        )
        self.failure_rate = (
            None
            if failure_rate is None
            else check.number("failure_rate", failure_rate, low=0, high=1, default=0.5, open_low=True)
        )
        self.window = check.integer("window", window, low=1, default=100)
        self.min_calls = check.integer("min_calls", min_calls, low=1, default=20)
        self.slow_call = None if slow_call is None else check.seconds("slow_call", slow_call, 1.0, positive=True)
        self.open_jitter = check.number("open_jitter", open_jitter, low=0, high=1, default=0.0)
        self.open_growth = check.number("open_growth", open_growth, low=1, default=1.0)
        self.count = check.choice("count", count, ("faults", "any"))
        self.mode = check.choice("mode", mode, ("on", "shadow"))
        if failure_rate is not None and self.min_calls > self.window:
            check.add(
                "min_calls",
                f"at most window ({self.window})",
                min_calls,
                "Lower it, or raise window: the rate would never be looked at.",
            )
        self.shared = check.truth("shared", shared)
        check.raise_if_any()
        self._known()
        self.memory = LocalMemory() if self.bond is None else SharedMemory(self.bond)
        self.counts = _Counts(self.window)
        self._inside: list[Ticket] = []  # of `with` blocks under way
        # In a closed circuit that only counts failures in a row, a success has nothing to record, and a call nothing to
        # time.
        self.free = self.failure_rate is None and self.slow_call is None
        stands(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], /, *, name: str | None = None) -> Self:
        """
        A breaker from a configuration block. `name` is for a block that has none. Every mistake is reported, at once.
        """
        from outlast.settings.keys import named

        return named(cls, "circuit_breaker", config, name)

    def to_config(self) -> dict[str, Any]:
        """The configuration block that makes such a breaker: its name and what differs from the defaults."""
        from outlast.settings.keys import shown

        usual = {**(CircuitBreaker.__init__.__kwdefaults__ or {}), "success_threshold": self.half_open_requests}
        return shown("circuit_breaker", {"name": self.name, **self._as_settings()}, usual)

    # -- what it looks like -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> CircuitState:
        """closed, open or half_open. An open circuit turns half-open with the first call after its time."""
        return self.memory.known().state

    @property
    def failure_count(self) -> int:
        """Failures in a row."""
        return self.counts.failures

    @property
    def last_failure_time(self) -> datetime | None:
        """When a call last failed."""
        return self.counts.tally.last_failure_time

    @property
    def success_count(self) -> int:
        """Successful probes since the circuit turned half-open."""
        return self.memory.known().successes

    @property
    def opened_at(self) -> datetime | None:
        """When it opened, if it is not closed."""
        return self.memory.known().opened_at

    def seems(self) -> str:
        """Its state as far as it is known here, without asking anybody."""
        return self.memory.circuit.state.value

    def __repr__(self) -> str:
        # As far as is known: to look at something asks nobody.
        state, shared = self.memory.circuit.state.value, ", shared" if self.shared else ""
        return f"<CircuitBreaker {self.name!r} {state}, failures: {self.failure_count}{shared}>"

    # -- asking and telling ---------------------------------------------------------------------------------------------------

    def admit(self) -> Ticket:
        """Leave to call once, or CircuitBreakerOpenError. Each ticket must be given back to `settle`."""
        try:
            while (ticket := self.ask()) is None:
                here.get().clock.sleep(self.memory.moment)
        except CircuitBreakerOpenError:
            self._turned_away()
            raise
        return ticket

    def _turned_away(self) -> None:
        if listening():
            from outlast.observe.events import CallRejected

            emit(CallRejected(by="breaker", which=self.name))

    def ask(self) -> Ticket | None:
        """
        As `admit`; None if the answer is on its way: then it is asked again in a moment. Never waits in an event loop.
        """
        world = here.get()
        if not world.retries:
            return Ticket(-1, None, world.clock.monotonic())  # of no era: what becomes of it counts nowhere
        while True:
            circuit = self.memory.circuit
            if circuit.passing:
                return Ticket(circuit.era, None, world.clock.monotonic())
            answer = self.memory.enter(self)
            if isinstance(answer, Ticket):
                return answer
            if answer is Answer.SOON:
                return None
            if answer is Answer.REJECTED:
                if self.mode == "shadow":
                    return Ticket(-1, None, world.clock.monotonic())
                raise self.rejection()

    def era(self) -> int | None:
        """A ticket for a closed circuit, which has nothing to change or to time before a call; None: ask `admit`."""
        circuit = self.memory.circuit
        return circuit.era if circuit.passing and self.slow_call is None else None

    def passed(self, ticket: Ticket | int | None) -> None:
        """The call of this ticket succeeded."""
        if ticket is not None and (self.counts.failures or not self.free or not isinstance(ticket, int)):
            self.settle(ticket, failed=False)

    def settle(self, ticket: Ticket | int, failed: bool | None) -> None:  # noqa: FBT001 - the outcome
        """What became of an admitted call: failed, succeeded (False), or neither (None)."""
        if not here.get().retries:
            return
        if not isinstance(ticket, int):
            if failed is False and self.slow_call is not None:
                failed = here.get().clock.monotonic() - ticket.started > self.slow_call
            if ticket.probe is not None:
                self._settle_probe(ticket, failed)
                return
            ticket = ticket.era
        if failed is not None and ticket == self.memory.circuit.era:
            self._settle_closed(ticket, failed)

    def judge(self, error: BaseException, verdict: Verdict | None = None) -> bool | None:
        """Whether this error counts as a failure (True) or not at all (None); `verdict` spares asking for it again."""
        if not isinstance(error, Exception) or isinstance(
            error, CircuitBreakerOpenError | LimitExceededError | TotalTimeoutError | NoFailure
        ):
            return None
        return True if self.count == "any" or (verdict or classify(error)).category != "permanent" else None

    def open_until(self) -> float:
        """When it may be tried, on the monotonic clock, as far as is known; long ago, if it does not reject now."""
        circuit = self.memory.circuit
        if circuit.state is not CircuitState.OPEN or self.mode == "shadow" or not here.get().retries:
            return LONG_AGO
        return circuit.retry_on - ROUNDING

    def open_beyond(self, seconds: float) -> bool:
        """Whether it will still be open, and reject, so many seconds from now."""
        return here.get().clock.monotonic() + seconds < self.open_until()

    def isolate(self, reason: str) -> None:
        """Open by hand, until `reset`: beats every automatic transition."""
        why = sanitise(reason)

        def tell(_: Circuit, changed: Circuit, __: None) -> None:
            self._tell("Open", changed, f"isolated: {why}")

        self.memory.by_hand(lambda circuit, now, wall: (isolated(circuit, now, wall, why), None), tell)

    def reset(self) -> None:
        """Close by hand and forget all counts."""

        def tell(circuit: Circuit, changed: Circuit, _: None) -> None:
            self.counts.clear()
            if circuit.state is not CircuitState.CLOSED:
                self._tell("Closed", changed, "reset by hand")

        self.memory.by_hand(lambda circuit, _, __: (closed(circuit), None), tell)

    def replace(self, **changes: Any) -> CircuitBreaker:
        """
        The same circuit under changed settings: state, counts and window go on; calls under way end with the old
        settings.

        A window of another size starts empty.
        """
        return self._continued_by(CircuitBreaker(self.name, **(self._as_settings() | changes)))

    def _continued_by(self, other: CircuitBreaker) -> CircuitBreaker:
        if other.shared == self.shared:
            other.memory, other.bond = self.memory, self.bond
        other.counts = self.counts
        with self.counts.lock:
            tally = self.counts.tally
            if tally.window != other.window:
                self.counts.keep(Tally(other.window, tally.row, tally.last_failure_time))
        self._replaced_by(other)
        return other

    def _renew(self) -> None:
        """In a forked child the counts start anew: it has made no call yet."""
        self.counts.lock = allocate_lock()
        self.counts.clear()
        self.memory.renew()

    # -- the machinery ----------------------------------------------------------------------------------------------------------

    def _settle_closed(self, era: int, failed: bool) -> None:  # noqa: FBT001 - the outcome
        counts = self.counts
        with counts.lock:
            circuit = self.memory.circuit
            if circuit.era != era:
                return
            tally, reason = counted(counts.tally, failed, here.get().clock.now() if failed else None, self)
            counts.tally, counts.failures = tally, tally.row  # as `keep`
        if reason is None:
            return

        def tell(_: Circuit, changed: Circuit, opened: bool) -> None:  # noqa: FBT001 - the answer
            if opened:
                self._tell("Open", changed, reason)

        self.memory.trip(circuit, open_time(self, 0, here.get().dice.roll() if self.open_jitter else 0.5), tell)

    def _settle_probe(self, ticket: Ticket, failed: bool | None) -> None:  # noqa: FBT001 - the outcome
        wall, roll = here.get().clock.now(), here.get().dice.roll() if self.open_jitter else 0.5

        def decide(circuit: Circuit, now: float, wall: datetime) -> tuple[Circuit, None]:
            return probed(circuit, ticket.probe or 0, failed, now, wall, self, roll), None

        def tell(circuit: Circuit, changed: Circuit, _: None) -> None:
            if changed is circuit or changed.probes == circuit.probes:
                return  # of an earlier era, or its place has gone to another
            if failed:
                with self.counts.lock:
                    tally = self.counts.tally
                    self.counts.keep(tally._replace(row=tally.row + 1, last_failure_time=wall))
            if changed.state is CircuitState.OPEN:
                self._tell("Reopened", changed, "a probe failed")
            elif changed.state is CircuitState.CLOSED:
                self.counts.clear()
                times = self.success_threshold
                self._tell("Closed", changed, f"{times} probe{'s' if times > 1 else ''} succeeded")

        self.memory.leave(ticket, decide, tell)

    def rejection(self) -> CircuitBreakerOpenError:
        """What a call that is not admitted raises; a new object each time, for a raised exception grows a traceback."""
        circuit, clock = self.memory.circuit, here.get().clock
        now, wall = clock.monotonic(), clock.now()
        opened_at = circuit.opened_at or wall
        if circuit.state is CircuitState.HALF_OPEN or (circuit.late and now >= circuit.retry_on - ROUNDING):
            after = min(1.0, max(self.reset_timeout, 0.05))
            retry_at, why = wall + timedelta(seconds=after), "probes are under way"
        else:
            after, retry_at = max(0.0, circuit.retry_on - now), circuit.retry_at or wall
            why = f"isolated: {circuit.isolated}" if circuit.isolated else f"next try at {retry_at.isoformat()}"
        message = f"circuit breaker {self.name!r} is open since {opened_at.isoformat()}: nothing was called; {why}"
        return CircuitBreakerOpenError(
            message, name=self.name, opened_at=opened_at, retry_at=retry_at, retry_after=after
        )

    def told(self, before: Circuit, after: Circuit, reason: str, *, learnt: bool = False) -> None:
        """The circuit has changed its state; `learnt` says that another process has done it."""
        if learnt and after.state is CircuitState.CLOSED:
            self.counts.clear()
        kind = {CircuitState.HALF_OPEN: "HalfOpen", CircuitState.CLOSED: "Closed"}.get(after.state, "Open")
        self._tell(
            "Reopened" if kind == "Open" and after.rounds > before.rounds else kind, after, reason, learnt=learnt
        )

    def _tell(self, kind: str, circuit: Circuit, reason: str, *, learnt: bool = False) -> None:
        if named.report_change is not None and not self.shared:
            named.report_change(self)
        if not listening():
            return
        from outlast.observe import events

        cls: type[Event] = getattr(events, f"CircuitBreaker{kind}")
        fields: dict[str, Any] = {"breaker": self.name, "failure_count": self.failure_count, "reason": reason}
        fields["learnt"] = learnt
        if kind in {"Open", "Reopened"}:
            fields |= {"opened_at": circuit.opened_at, "retry_at": circuit.retry_at}
        if kind == "Open":
            fields["threshold"] = self.failure_threshold if self.failure_rate is None else self.failure_rate
        emit(cls(**fields))

    # -- around a call ------------------------------------------------------------------------------------------------------------

    def __call__(self, fn: Callable[P, R], /) -> Callable[P, R]:
        """Decorate a function, a coroutine function or a method."""
        if (method := rewrapped(self.__call__, fn)) is not None:
            return method  # type: ignore[no-any-return]
        protected = self._around_async(fn) if is_async(fn) else self._around(fn)
        dress(protected, fn)
        return protected

    def _around(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        call = self.call

        def protected(*args: Any, **kwargs: Any) -> Any:
            return call(fn, *args, **kwargs)

        return protected

    def _around_async(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        acall = self.acall

        async def protected(*args: Any, **kwargs: Any) -> Any:
            return await acall(fn, *args, **kwargs)

        return protected

    def call(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call fn if the circuit admits it."""
        circuit = self.memory.circuit
        # A closed circuit lets everything pass: nothing to change before the call, and nothing to time unless slow
        # calls count.
        if circuit.passing and self.slow_call is None:
            ticket: Ticket | int = circuit.era
            free = self.free
        elif here.get().retries:
            ticket = self.admit()
            free = False
        else:
            return fn(*args, **kwargs)
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:
            self.settle(ticket, self.judge(error))
            raise
        if result.__class__ in PLAIN or not awaitable(result):
            if not free or self.counts.failures:
                self.settle(ticket, failed=False)
            return result
        return self._awaited(result, ticket)  # type: ignore[return-value, arg-type]

    async def acall(self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Await fn if the circuit admits it."""
        circuit = self.memory.circuit
        if circuit.passing and self.slow_call is None:
            ticket: Ticket | int = circuit.era
            free = self.free
        elif here.get().retries:
            # Before the coroutine exists: a rejected one would never be awaited.
            try:
                while (asked := self.ask()) is None:
                    await here.get().clock.asleep(self.memory.moment)
            except CircuitBreakerOpenError:
                self._turned_away()
                raise
            ticket = asked
            free = False
        else:
            work: Any = fn(*args, **kwargs)
            if not awaitable(work):
                raise _blocking(fn)
            return await work  # type: ignore[no-any-return]
        work = _NOTHING
        try:
            work = fn(*args, **kwargs)
            value: R = await work
        except BaseException as error:
            if work is not _NOTHING and isinstance(error, TypeError) and not awaitable(work):
                self.settle(ticket, failed=None)  # that says nothing about the service
                raise _blocking(fn) from None
            self.settle(ticket, self.judge(error))
            raise
        if not free or self.counts.failures:
            self.settle(ticket, failed=False)
        return value

    async def _awaited(self, result: Awaitable[R], ticket: Ticket | int) -> R:
        try:
            value = await result
        except BaseException as error:
            self.settle(ticket, self.judge(error))
            raise
        self.settle(ticket, failed=False)
        return value

    def __enter__(self) -> Self:
        ticket = self.admit()
        self._inside.append(ticket)
        _entered.set((*_entered.get(), ticket))
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        # The newest that this context has entered; a block may also end in another context than it began in (a fixture
        # does).
        mine = [ticket for ticket in _entered.get() if ticket in self._inside]
        ticket = mine[-1] if mine else self._inside[-1]
        self._inside.remove(ticket)
        _entered.set(tuple(other for other in _entered.get() if other is not ticket))
        self.settle(ticket, failed=False if e is None else self.judge(e))


# -- the breakers of this process -----------------------------------------------------------------------------------------------

_entered: ContextVar[tuple[Ticket, ...]] = ContextVar("outlast_breakers_entered", default=())


def _blocking(fn: Callable[..., Any]) -> ConfigurationError:
    return ConfigurationError(
        f"expected something to await from {name_of(fn)}, got: a result. It is a sync function, and has held up the event loop: use `call`, "
        'or give a Guard this breaker and isolation="thread" to await it.'
    )
