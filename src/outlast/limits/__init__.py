"""
What bounds the traffic of many calls at once: `Limit`, how many at a time, how much per second.

A limit has one line for all who wait, threads and tasks of any event loop alike, first come, first served. It decides
under its lock and never waits there; whoever waits does so in a loop of its own (`wait`, `await_turn`) and looks again
when rung for. Only the head of the line needs a timer: everybody else can go no earlier.

    throttle    what to make of a service that says "too many", pure
    stretches   the arithmetic of a rate that processes share, pure
    shared      a limit that processes share, and the agent that talks to the store
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from contextvars import ContextVar
from math import inf

from outlast.errors import ConfigurationError, Item, LimitExceededError
from outlast.kernel.clock import Bell, Signal, here, stopping
from outlast.kernel.value import Value, put
from outlast.limits.throttle import LONGEST_GATE, MANY, Heed
from outlast.observe import emit, listening
from outlast.settings.checks import Check, Frozen, Shown
from outlast.sharing.named import Named
from outlast.verdicts import refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Any, Literal, Never, Self, TypeAlias

    from outlast.kernel.aliases import Seconds
    from outlast.observe.events import Event

    Waited: TypeAlias = Literal["granted", "late", "stopped"]

_ROUNDING = 1e-9


class Rate(Value):
    """So much per so many seconds; `burst` is what may be taken at once, 1 if not given."""

    __slots__ = ("amount", "burst", "per")
    amount: float
    per: float
    burst: float

    def __init__(self, amount: float, /, *, per: Seconds, burst: float | None = None, **unknown: Never) -> None:
        check = Check()
        check.unknown(unknown, ("per", "burst"))
        put(self, "amount", check.number("amount", amount, low=0, default=1.0, open_low=True))
        put(self, "per", check.seconds("per", per, 1.0, positive=True))
        put(
            self,
            "burst",
            1.0 if burst is None else check.number("burst", burst, low=0, default=1.0, open_low=True),
        )
        check.raise_if_any()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rate, (self.amount, self.per, self.burst)

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str, /) -> Self:
        """
        A rate from a configuration block, or from a text. Every mistake is reported, at once.

        >>> Rate.from_config("500/min") == Rate.from_config({"amount": 500, "per_s": 60})
        True
        """
        from outlast.settings.keys import Block, rate_of

        return Block("rate", rate_of(config)).made(lambda amount, **rest: cls(amount, **rest))  # noqa: PLW0108 - its amount has no name

    def to_config(self) -> dict[str, Any]:
        """The configuration block that makes this rate."""
        from outlast.settings.keys import shown

        return shown("rate", {name: getattr(self, name) for name in self._fields}, {"burst": 1.0})

    def replace(self, **changes: Any) -> Rate:
        """A copy with these fields changed; everything is checked again."""
        fields: dict[str, Any] = {"amount": self.amount, "per": self.per, "burst": self.burst} | changes
        return Rate(fields.pop("amount"), **fields)


def _rate(amount: float, per: float, burst: float) -> Rate:
    return Rate(amount, per=per, burst=burst)


def _rates(given: object, check: Check) -> Mapping[str, Rate]:
    if given is None:
        return Frozen()
    if not isinstance(given, dict | Frozen) or not all(isinstance(name, str) and name.isidentifier() for name in given):
        check.add("rates", "a mapping from a name such as calls or tokens to a Rate", given)
        return Frozen()
    for name, rate in given.items():
        if not isinstance(rate, Rate):
            check.add(("rates", Item(name)), "a Rate", rate, "Write outlast.Rate(500, per=60).")
    return Frozen({name: rate for name, rate in given.items() if isinstance(rate, Rate)})


def _configured(given: object) -> Mapping[str, Rate]:
    """The rates of a configuration block."""
    check, rates = Check(), {}
    if not isinstance(given, dict | Frozen):
        check.add((), "a mapping from a name such as calls or tokens to a rate", given)
        check.raise_if_any()
    for name, rate in given.items():  # type: ignore[attr-defined]
        try:
            rates[name] = Rate.from_config(rate)
        except ConfigurationError as wrong:
            check.take(wrong, str(name))
    check.raise_if_any()
    return rates


def _of(cost: Mapping[str, float] | None, name: str) -> float:
    """What a call takes of a rate: as estimated, and otherwise one call and nothing else."""
    if cost is not None and name in cost:
        return cost[name]
    return 1.0 if name == "calls" else 0.0


class _Bucket:
    """
    Holds at most `burst` and fills with `speed`. What is taken may leave it in debt, so that a cost beyond the burst
    passes too: over any time t no more is taken than speed · t plus the burst or, if that is more, plus the largest
    single cost.
    """

    __slots__ = ("at", "burst", "level", "speed")

    def __init__(self, rate: Rate) -> None:
        self.burst = rate.burst
        self.speed = rate.amount / rate.per
        self.level = rate.burst
        self.at = -inf

    def wait(self, cost: float, now: float) -> float:
        """The seconds until so much may be taken."""
        if now > self.at:
            self.level = min(self.burst, self.level + (now - self.at) * self.speed) if self.at != -inf else self.burst
        self.at = now
        missing = min(cost, self.burst) - self.level
        # What is forgiven is owed: it leaves the bucket that much emptier.
        return 0.0 if missing <= _ROUNDING * max(self.burst, self.speed) else missing / self.speed

    def give(self, amount: float) -> None:
        """Take less than nothing: give back what was not used after all, or take what was used beyond the estimate."""
        self.level = min(self.burst, self.level + amount)

    settle = give


class Turn:
    """A place in the line of a limit."""

    __slots__ = ("cost", "due", "entry", "hurried", "limit", "ring")

    def __init__(self, limit: Limit, cost: Mapping[str, float] | None) -> None:
        self.limit = limit
        self.cost = cost
        self.entry = -1  # what `Limit.take` gives, once it has been granted
        self.due = inf  # when it looks again by itself
        self.hurried = False  # its patience is what a total timeout has left, not the limit's
        self.ring: Callable[[], object] | None = None


class Limit(Heed, Named):
    """
    How many calls may be under way at a time (`concurrency`), and how much may be spent over time (`rates`), for all
    who share it.

    ``calls`` in `rates` counts calls; other names (``tokens``) count what a guard's `cost` estimates and
    ``outlast.current().spend`` settles. Who must wait waits in line, at most `max_wait` seconds, and then gets
    LimitExceededError. `adaptive` heeds a service that answers "too many requests": everybody who shares the limit
    pauses as long as it asks or, if it asks for less than a second, fewer calls are under way until it works again.

    Give it to guards, or use it by itself: ``with limit:``, ``async with limit:``, or `acquire_nowait` and `release`.
    """

    _kind = "limit"
    _settings = ("concurrency", "rates", "max_wait", "adaptive", "shared")
    #: How many processes share it, as far as this one knows.
    processes: int = 1

    if not TYPE_CHECKING:

        def __new__(cls, *_: Any, shared: object = False, **__: Any) -> Self:
            if shared is not True or cls is not Limit:
                return object.__new__(cls)
            from outlast.limits.shared import SharedLimit

            return object.__new__(SharedLimit)

    def __init__(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rates: Mapping[str, Rate] | None = None,
        max_wait: Seconds | None = None,
        adaptive: bool = True,
        shared: bool = False,
        **unknown: Never,
    ) -> None:
        check = Check()
        check.unknown(unknown, ("name", *self._settings))
        self.name = check.name("name", name)
        self.concurrency = None if concurrency is None else check.integer("concurrency", concurrency, low=1, default=1)
        self.rates = _rates(rates, check)
        self.max_wait = None if max_wait is None else check.seconds("max_wait", max_wait, 1.0)
        self.adaptive = bool(check.maybe_bool("adaptive", adaptive))
        if concurrency is None and not self.rates and not self.adaptive:
            check.add("concurrency", "given, or rates, or adaptive", Shown("none of them"), "It would limit nothing.")
        self.shared = bool(check.maybe_bool("shared", shared))
        check.raise_if_any()
        # Reentrant: a collection of garbage may end a forgotten waiter or stream, which then leaves, in the middle of
        # what this thread does.
        self._lock = threading.RLock()
        self._start(0)
        self._known()

    if not TYPE_CHECKING:
        __new__.__wrapped__ = __init__  # what it takes, for `inspect.signature` and editors

    def _start(self, era: int) -> None:
        self._line: OrderedDict[Turn, None] = OrderedDict()
        self._buckets = {name: _Bucket(rate) for name, rate in self.rates.items()}
        self.taken = dict.fromkeys(self.rates, 0.0)  # of each rate, so far
        # Places are tokens, made when they are first needed. Taking one out and putting it back is a single step each,
        # without a lock.
        self._room: float = inf if self.concurrency is None else self.concurrency  # how many there may be
        self._places = 0  # how many there are; more than the room until those that are under way come back
        self._free: deque[None] = deque()
        self._trust(era)
        self._born = era  # a place taken before belongs to the process that this one was forked from
        self._calm = self._is_calm()

    def _is_calm(self) -> bool:
        """Nobody in line, and nothing to look at but the places: then taking and leaving are one step each."""
        if self._worked > MANY:
            self._worked = inf
        return (
            self._worked == inf and self._width == inf and self._gate == -inf and not self._buckets and not self._line
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any], /, *, name: str | None = None) -> Self:
        """
        A limit from a configuration block. `name` is for a block that has none. Every mistake is reported, at once.
        """
        from outlast.settings.keys import named

        return named(cls, "limit", config, name, {"rates": _configured})

    def to_config(self) -> dict[str, Any]:
        """The configuration block that makes such a limit: its name and what differs from the defaults."""
        from outlast.settings.keys import shown

        usual = {**(Limit.__init__.__kwdefaults__ or {}), "rates": {}}
        parts = {"rates": lambda rates: {name: rate.to_config() for name, rate in rates.items()}}
        return shown("limit", {"name": self.name, **self._as_settings()}, usual, parts)

    # -- what it looks like ---------------------------------------------------------------------------------------------------

    @property
    def under_way(self) -> int:
        """Calls that hold a place."""
        return self._places - len(self._free)

    @property
    def waiting(self) -> int:
        """Calls in line."""
        return len(self._line)

    @property
    def width(self) -> int | None:
        """
        How many calls may be under way now: `concurrency`, or fewer after the service refused some; None if any number.
        """
        return None if self._room == inf else int(self._room)

    @property
    def paused(self) -> float:
        """For how many seconds the gate is closed: the service has asked for it."""
        return max(0.0, self._gate - here.get().clock.monotonic())

    def __repr__(self) -> str:
        width = "any number" if self.width is None else self.width
        return f"<Limit {self.name!r} {self.under_way} of {width} under way, {len(self._line)} waiting>"

    def _renew(self) -> None:
        """A forked child begins with what a new limit has."""
        self._lock = threading.RLock()
        self._start(self._cuts + 1)

    # -- taking and leaving: all a guard needs ----------------------------------------------------------------------------------

    def take(self, cost: Mapping[str, float] | None = None) -> int:
        """
        Take a place now: a number to give back to `leave` or `done`, or -1 if there is none, or somebody is in line
        already.
        """
        if self._calm:
            try:
                self._free.pop()
            except IndexError:
                pass
            else:
                return self._cuts
        with self._lock:
            if self._line or self._hold(cost, here.get().clock.monotonic()) or not self._grab():
                return -1
            self._charge(cost)
            self._calm = self._is_calm()
            return self._cuts

    def done(self, entry: int) -> None:
        """Give back the place of a call that succeeded, and that cost one call."""
        if self._calm and entry >= self._born:
            self._free.append(None)
            if not self._calm:  # somebody got into line in between, and saw no place
                self._look_again()
        else:
            self.leave(entry, worked=True)

    def line_up(self, cost: Mapping[str, float] | None = None) -> Turn:
        """Get into line; hand the turn to `wait`, `await_turn` or `withdraw`."""
        turn = Turn(self, cost)
        with self._lock:
            self._line[turn] = None
            self._calm = False
        return turn

    def leave(
        self,
        entry: int,
        cost: Mapping[str, float] | None = None,
        spent: Mapping[str, float] | None = None,
        *,
        worked: bool = False,
        refused: float | None = None,
        undone: bool = False,
    ) -> None:
        """
        Give a place back. `worked`: the service took the call; `refused`: it said "too many", and to come back after so
        many seconds; `undone`: it was never asked, so nothing was used up.
        """
        told: Event | None = None
        with self._lock:
            if entry < self._born:
                return
            used = self.under_way
            self._free.append(None)
            self._absorb()
            if undone:
                self._charge(cost, -1)
            elif spent and self._buckets:
                for name, bucket in self._buckets.items():
                    if name in spent:
                        unused = _of(cost, name) - spent[name]
                        bucket.settle(unused)
                        self.taken[name] -= unused
            if not self.adaptive:
                pass
            elif refused is not None:
                told = self._refuse(refused, entry, used)
            elif worked:
                self._worked += 1
                if self._width != inf and entry == self._cuts and used >= self._width - 1:
                    self._widen()
            rung = self._serve() if self._line else ()
            self._calm = self._is_calm()
        _ring(rung)
        if told is not None:
            emit(told)

    # -- waiting in line --------------------------------------------------------------------------------------------------------

    def wait(self, turn: Turn, seconds: float | None) -> Waited:
        """Wait for the turn, at most so many seconds."""
        clock, stop, bell = here.get().clock, stopping.get(), Bell()
        turn.ring = bell.set
        forget = None if stop is None else stop.tell(bell.set)
        until = inf if seconds is None else clock.monotonic() + seconds
        try:
            while True:
                bell.clear()
                hold, left = self._look(turn, until)
                if stop is not None and stop.is_set():
                    return self._without(turn, "stopped")
                if hold < 0:
                    return "granted"
                if left <= 0 or left < hold < inf:
                    return self._without(turn, "late")
                timed = hold < left
                longest = hold if timed else left
                clock.wait_event(bell, None if longest == inf else longest, bounds=not timed)
        except BaseException:
            self.withdraw(turn)
            raise
        finally:
            turn.ring = None
            if forget is not None:
                forget()

    async def await_turn(self, turn: Turn, seconds: float | None) -> Waited:
        """As `wait`, for tasks of asyncio and trio."""
        clock, stop = here.get().clock, stopping.get()
        until = inf if seconds is None else clock.monotonic() + seconds
        try:
            while True:
                signal = Signal()
                turn.ring = signal.ring
                hold, left = self._look(turn, until)
                if stop is not None and stop.is_set():
                    return self._without(turn, "stopped")
                if hold < 0:
                    return "granted"
                if left <= 0 or left < hold < inf:
                    return self._without(turn, "late")
                timed = hold < left
                longest = hold if timed else left
                forget = None if stop is None else stop.tell(signal.set)
                try:
                    await clock.wait_signal(signal, None if longest == inf else longest, bounds=not timed)
                finally:
                    if forget is not None:
                        forget()
        except BaseException:
            self.withdraw(turn)
            raise
        finally:
            turn.ring = None

    def withdraw(self, turn: Turn) -> None:
        """Leave the line, or give back the place if it was granted meanwhile."""
        _ring(self._take_back(turn))

    def _take_back(self, turn: Turn) -> list[Turn]:
        with self._lock:
            if turn.entry < 0:
                self._line.pop(turn, None)
            elif turn.entry >= self._born:
                self._free.append(None)
                self._absorb()
                self._charge(turn.cost, -1)
            turn.entry = -1
            rung = self._serve()
            self._calm = self._is_calm()
            return rung

    def _without(self, turn: Turn, why: Literal["late", "stopped"]) -> Waited:
        self.withdraw(turn)
        return why

    def _look(self, turn: Turn, until: float) -> tuple[float, float]:
        """
        (The seconds until the turn comes, infinite if only others can bring it; -1 if it has come. The patience that is
        left.)
        """
        clock = here.get().clock
        with self._lock:
            now = clock.monotonic()  # under the lock: buckets must see instants in their order
            rung = [other for other in self._serve(now) if other is not turn]
            if turn.entry >= 0:
                hold = -1.0
            elif self._head() is turn:
                hold = self._hold(turn.cost, now) or inf  # only time was in its way, or else it lacks a place
                turn.due = now + hold
            else:
                hold = self._gate - now if self._gate > until else inf  # nobody passes a closed gate
        _ring(rung)
        return hold, until - now

    # -- under the lock -----------------------------------------------------------------------------------------------------------

    def _hold(self, cost: Mapping[str, float] | None, now: float) -> float:
        """The seconds until a call of this cost may start, as far as only time is in its way."""
        if self._gate != -inf:
            self._gate = min(self._gate, now + LONGEST_GATE)
            if now < self._gate:
                return self._gate - now
            self._gate = -inf
        hold = 0.0
        for name, bucket in self._buckets.items():
            hold = max(hold, bucket.wait(_of(cost, name), now))
        return hold

    def _grab(self) -> bool:
        """Take a token, if there is one."""
        try:
            self._free.pop()
        except IndexError:
            if self._places >= self._room:
                return False
            self._places += 1
        return True

    def _absorb(self) -> None:
        """Take away the tokens that there is no room for, as far as they are back."""
        while self._places > self._room:
            try:
                self._free.pop()
            except IndexError:
                return
            self._places -= 1

    def _charge(self, cost: Mapping[str, float] | None, sign: int = 1) -> None:
        for name, bucket in self._buckets.items():
            amount = sign * _of(cost, name)
            bucket.give(-amount)
            self.taken[name] += amount

    def _look_again(self) -> None:
        with self._lock:
            rung = self._serve()
            self._calm = self._is_calm()
        _ring(rung)

    def _head(self) -> Turn | None:
        """The first in line."""
        while True:
            try:
                return next(iter(self._line), None)
            except RuntimeError:  # a collection of garbage has just changed the line: see the lock
                continue

    def _serve(self, now: float | None = None) -> list[Turn]:
        """
        Grant what can be granted, from the head of the line; those to ring for: the granted, and a head that must watch
        the time.
        """
        rung: list[Turn] = []
        if not self._line:
            return rung
        if now is None:
            now = here.get().clock.monotonic()
        while (turn := self._head()) is not None:
            hold = self._hold(turn.cost, now)
            if turn not in self._line:
                continue  # gone meanwhile: see the lock
            if hold or not self._grab():
                if hold and now + hold < turn.due - _ROUNDING:
                    rung.append(turn)  # until now it waited for others, or for longer
                break
            del self._line[turn]
            self._charge(turn.cost)
            turn.entry = self._cuts
            rung.append(turn)
        return rung

    # -- heeding the service: under the lock too ---------------------------------------------------------------------------------

    def _refuse(self, hint: float, entry: int, used: int) -> Event | None:
        """The service has refused a call; what there is to tell, once for a burst."""
        first, pause = self._heed(hint, entry, used, here.get().clock.monotonic())
        if not first or not listening():
            return None
        from outlast.observe.events import Throttled

        return Throttled(limit=self.name, retry_after=hint, pause=pause, width=self.width)

    def _set_width(self, width: float) -> None:
        super()._set_width(width)
        self._room = self._places_at_most()
        self._absorb()

    # -- by itself ----------------------------------------------------------------------------------------------------------------

    def acquire_nowait(self, **cost: float) -> bool:
        """
        Take a place, and one call and this much of the rates, if that is possible at once; `release` gives the place
        back.
        """
        for name, amount in cost.items():
            if name not in self.rates:
                check = Check()
                check.unknown({name: amount}, tuple(self.rates))
                check.raise_if_any()
        return (self.take(cost or None) if here.get().retries else self._forced()) >= 0

    def release(self) -> None:
        """Give back the place that `acquire_nowait` took."""
        if self.under_way <= 0:
            raise RuntimeError(f"limit {self.name!r}: release without a place that was taken")
        self.leave(self._cuts, worked=True)

    def __enter__(self) -> Self:
        entry = self._forced() if not here.get().retries else self.take()
        if entry < 0:
            turn = self.line_up()
            self._check(self.wait(turn, self.max_wait))
            entry = turn.entry
        _entered.set((*_entered.get(), (self, entry)))
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        entered = _entered.get()
        # The newest of this limit; a block may also end in another context than it began in (a fixture does).
        mine = next((pair for pair in reversed(entered) if pair[0] is self), None)
        _entered.set(tuple(pair for pair in entered if pair is not mine))
        entry, heeded = self._cuts if mine is None else mine[1], here.get().retries
        self.leave(entry, worked=heeded and e is None, refused=refusal(e) if heeded else None)

    async def __aenter__(self) -> Self:
        entry = self._forced() if not here.get().retries else self.take()
        if entry < 0:
            turn = self.line_up()
            self._check(await self.await_turn(turn, self.max_wait))
            entry = turn.entry
        _entered.set((*_entered.get(), (self, entry)))
        return self

    async def __aexit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.__exit__(t, e, tb)

    def _forced(self) -> int:
        """A place whether there is one or not: protection is turned off here."""
        with self._lock:
            if not self._grab():
                self._places += 1
            return self._cuts

    def _check(self, how: str) -> None:
        if how == "granted":
            return
        rejection = self.rejection("asked to stop" if how == "stopped" else None)
        if how == "late" and listening():
            from outlast.observe.events import CallRejected

            emit(CallRejected(by="limit", which=self.name))
        raise rejection

    def rejection(self, why: str | None = None) -> LimitExceededError:
        """What a call that gets no place raises; a new object each time."""
        with self._lock:
            hold = self._hold(None, here.get().clock.monotonic())
            under_way, waiting = self.under_way, len(self._line)
        waited = f"no place within {self.max_wait:g} s" if self.max_wait is not None else "no place"
        message = (
            f"limit {self.name!r}: {why or waited}, {under_way} under way and {waiting} waiting; nothing was called"
        )
        if why is None:
            self.tell_exceeded()
        return LimitExceededError(message, name=self.name, retry_after=hold if 0 < hold < inf else None)

    def tell_exceeded(self) -> None:
        """Tell that a call got no place in time."""
        if listening():
            from outlast.observe.events import LimitExceeded

            emit(LimitExceeded(limit=self.name, under_way=self.under_way, waiting=len(self._line)))


def _ring(turns: Sequence[Turn]) -> None:
    """Wake those who wait; outside of the lock, for they look at once."""
    rung = list(turns)
    for turn in rung:
        ring = turn.ring
        if ring is not None and ring() is False:  # its event loop is gone, and nobody will ever look
            rung += turn.limit._take_back(turn)  # noqa: SLF001 - same room


_entered: ContextVar[tuple[tuple[Limit, int], ...]] = ContextVar("outlast_limits_entered", default=())
