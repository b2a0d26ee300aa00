"""
The only doors for time, chance and identity.

Whatever decides takes instants, rolls and ids as inputs; whatever waits does it through the `World` it stands in. The
real world is the default; `outlast.testing.virtual_time` puts another one in its place for one context. Inside a
process only a monotonic clock decides; wall-clock instants (aware, UTC) are for people and for records.
"""

from __future__ import annotations

import os
import sys
import time
from _random import Random  # the generator itself: the `random` module around it costs 3 ms to import
from _thread import TIMEOUT_MAX, allocate_lock, get_ident
from contextvars import Context, ContextVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from types import TracebackType
    from typing import Any, Protocol, Self

    class Timer(Protocol):
        def cancel(self) -> None: ...

    class Event(Protocol):
        def is_set(self) -> bool: ...
        def wait(self, timeout: float | None = None) -> bool: ...


_LONGEST_WAIT = TIMEOUT_MAX  # what a lock can wait; some centuries


class Clock:
    """Real time. Every wait takes the `Stop` that may end it early, and returns True if it did."""

    virtual = False  # time passes only for those who wait in it: a test's, or a simulation's

    def __init__(self) -> None:
        # Bound directly: it is read several times in every call that fails.
        self.monotonic: Callable[[], float] = time.monotonic

    def now(self) -> datetime:
        from datetime import UTC, datetime

        return datetime.now(UTC)

    def sleep(self, seconds: float, stop: Stop | None = None) -> bool:
        if stop is not None:
            return stop.wait(seconds)
        time.sleep(seconds)
        return False

    def skip(self) -> None:
        """A wait of no length: nothing to do, and a real sleep of zero seconds would cost more than the attempt."""

    async def asleep(self, seconds: float, stop: Stop | None = None) -> bool:
        if stop is not None:
            signal = Signal()
            forget = stop.tell(signal.set)
            try:
                await self.wait_signal(signal, seconds)
            finally:
                forget()
            return stop.is_set()
        trio = in_trio()
        if trio is not None:
            await trio.sleep(seconds)
        else:
            import asyncio

            await asyncio.sleep(seconds)
        return False

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Run the callback in the running event loop after so many seconds, unless cancelled before."""
        import asyncio

        # In a context of its own: a cancelled timer stays with the loop until its time, and would keep the caller's
        # variables alive.
        return asyncio.get_running_loop().call_later(seconds, callback, context=Context())

    def wait_event(self, event: Event, seconds: float | None, *, bounds: bool = True) -> bool:  # noqa: ARG002 - for virtual time
        """
        Wait for the end of work that goes on elsewhere; False when the time ran out first.

        The time `bounds` what others do, or it is what is waited for itself; then virtual time can jump.
        """
        return event.wait(None if seconds is None else min(seconds, _LONGEST_WAIT))

    async def wait_signal(self, signal: Signal, seconds: float | None, *, bounds: bool = True) -> bool:  # noqa: ARG002 - for virtual time
        """As `wait_event`, for a task's signal."""
        if signal.trio is not None:
            with signal.trio.move_on_after(float("inf") if seconds is None else seconds):
                await signal.trio_event.wait()
            return signal.trio_event.is_set()  # type: ignore[no-any-return]
        timer = None if seconds is None else signal.loop.call_later(seconds, signal.expire, context=Context())
        try:
            return await signal.future
        finally:
            if timer is not None:
                timer.cancel()


def in_trio() -> Any:
    """The trio module, if the running code is inside of a trio run; it is never imported to ask."""
    trio = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_run() else None


def ahead_us() -> int:
    """How far the time here is ahead of real time, in microseconds: 0, except in virtual time."""
    clock = here.get().clock
    return round(max(0.0, clock.monotonic() - time.monotonic()) * 1_000_000) if clock.virtual else 0


def later(instant: datetime, seconds: float) -> datetime:
    """So many seconds after an instant; the end of time if that is beyond it."""
    from datetime import datetime, timedelta

    try:
        return instant + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=instant.tzinfo)


class Bell:
    """
    As `threading.Event`, for one thread that waits; but a signal handler may ring it, also in that very thread.

    An Event takes a lock to be set, and the thread that the handler has interrupted may hold it.
    """

    __slots__ = ("_silent",)

    def __init__(self) -> None:
        self._silent = allocate_lock()
        self._silent.acquire()

    def set(self) -> None:
        """Ring it; once is enough."""
        try:
            self._silent.release()
        except RuntimeError:  # it rings already
            return

    def is_set(self) -> bool:
        """Whether it rings."""
        return not self._silent.locked()

    def clear(self) -> None:
        """Make it silent."""
        self._silent.acquire(blocking=False)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it rings, and make it silent; False if the time ran out first."""
        return self._silent.acquire(timeout=-1 if timeout is None else timeout)


class Signal:
    """What one task waits for and any thread may give, once; in asyncio and in trio."""

    __slots__ = ("_thread", "future", "loop", "trio", "trio_event")

    def __init__(self) -> None:
        self.trio = in_trio()
        self._thread = get_ident()
        if self.trio is not None:
            self.trio_event: Any = self.trio.Event()
            self.loop: Any = self.trio.lowlevel.current_trio_token()
        else:
            import asyncio

            self.loop = asyncio.get_running_loop()
            self.future: asyncio.Future[bool] = self.loop.create_future()

    def set(self) -> bool:
        """Give it, from any thread or signal handler; False if nobody can take it any more."""
        try:
            if self.trio is not None:
                self.loop.run_sync_soon(self.trio_event.set)
            else:
                self.loop.call_soon_threadsafe(self._resolve, True)  # noqa: FBT003 - the future's value
        except RuntimeError:  # the loop is closed, the trio run finished
            return False
        return True

    def ring(self) -> bool:
        """
        As `set`, and quicker in the loop's own thread; but a loop that sleeps would not notice a signal handler's.
        """
        if self.trio is not None or self._thread != get_ident() or self.loop.is_closed():
            return self.set()
        self._resolve(True)  # noqa: FBT003 - the future's value
        return True

    def expire(self) -> None:
        """The time for it is over."""
        self._resolve(False)  # noqa: FBT003 - the future's value

    def _resolve(self, value: bool) -> None:  # noqa: FBT001 - the future's value
        if not self.future.done():
            self.future.set_result(value)


class Dice:
    """Rolls in [0, 1)."""

    def __init__(self, seed: int | None = None) -> None:
        self.reseed(seed)

    def reseed(self, seed: int | None = None) -> None:
        """Start anew: with the same seed the same rolls follow, without one nobody knows."""
        self._random = Random() if seed is None else Random(seed)
        self.roll: Callable[[], float] = self._random.random


def roll_for(*identity: object) -> float:
    """
    The roll that belongs to an identity such as (run, step, item, attempt): the same for the same parts, everywhere.

    >>> roll_for("run-1", "fetch", "item-7", 2) == roll_for("run-1", "fetch", "item-7", 2)
    True
    >>> roll_for("run-1", "fetch", "item-7", 2) == roll_for("run-1", "fetch", "item-8", 2)
    False
    """
    import hashlib

    digest = hashlib.sha256(repr(identity).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


class Ids:
    """New identities: 32 hexadecimal digits, never the same twice."""

    repeatable = False  # a test's seed gives the same ones again

    def new(self) -> str:
        return os.urandom(16).hex()

    def begin(self, name: str) -> None:
        """Repeatable ids continue with a sequence of this name. Stored rows need that: their ids are unique in the store."""


class World:
    """
    Where a call stands: its clock, its dice, its ids. Without `retries` every call runs once; `faults` are scripted
    failures. In a test, `home_of` gives an app whose store has no name the home that replaces it.
    """

    __slots__ = ("clock", "dice", "faults", "home_of", "ids", "retries")

    def __init__(
        self,
        clock: Clock,
        dice: Dice,
        ids: Ids,
        *,
        retries: bool = True,
        faults: dict[str, Iterator[Exception | None]] | None = None,
        home_of: Callable[[Any], Any] | None = None,
    ) -> None:
        self.faults = faults
        self.home_of = home_of
        self.clock = clock
        self.dice = dice
        self.ids = ids
        self.retries = retries


REAL = World(Clock(), Dice(), Ids(), retries=os.environ.get("OUTLAST_DISABLE", "") not in {"1", "true", "yes"})
os.register_at_fork(after_in_child=REAL.dice.reseed)  # children must not wait in lockstep
here: ContextVar[World] = ContextVar("outlast_world", default=REAL)


class Stop:
    """
    A request to wind down that ends waits.

    Calls made inside ``with stop:`` listen to it. Once `set` (from any thread), a call that waits between attempts
    raises its last error at once, with the stop reason ``shutdown``, and no further attempt starts.
    """

    # No lock: `set` may be called by a signal handler, which interrupts the very thread that would hold it. Each step
    # below is one operation on a dict, and whoever takes a listener out of it is the one to call it.

    def __init__(self) -> None:
        self._asked = False
        self._listeners: dict[object, Callable[[], object]] = {}

    def set(self) -> None:
        """Ask to stop; cannot be taken back. Safe in signal handlers and from any thread."""
        self._asked = True
        while self._listeners:
            try:
                _, listener = self._listeners.popitem()
            except KeyError:
                return
            listener()

    def is_set(self) -> bool:
        """Whether stopping was asked for."""
        return self._asked

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until stopping is asked for, at most so many seconds; whether it was."""
        waiting = allocate_lock()
        waiting.acquire()
        forget = self.tell(waiting.release)
        try:
            waiting.acquire(timeout=-1 if seconds is None else min(seconds, _LONGEST_WAIT))
        finally:
            forget()
        return self._asked

    def tell(self, listener: Callable[[], object]) -> Callable[[], object]:
        """Call the listener once when set (now, if it is already); returns how to forget it."""
        key = object()
        self._listeners[key] = listener
        if self._asked and self._listeners.pop(key, None) is not None:
            listener()
        return lambda: self._listeners.pop(key, None)

    def __enter__(self) -> Self:
        _stops.set((*_stops.get(), stopping.get()))
        stopping.set(self)
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        # A block may end in another context than it began in (a fixture's does): there is nothing of it to take back.
        entered = _stops.get()
        if entered:
            _stops.set(entered[:-1])
            stopping.set(entered[-1])


# What to go back to lives in the context, not in the Stop: one may be entered by many threads and tasks at a time.
_stops: ContextVar[tuple[Stop | None, ...]] = ContextVar("outlast_stops", default=())
stopping: ContextVar[Stop | None] = ContextVar("outlast_stop", default=None)
