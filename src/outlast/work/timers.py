"""
Timers: what is to go on at a later time, in one task of the event loop. They follow the clock, also a virtual one.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, Generic, TypeVar

from outlast.kernel.clock import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.kernel.clock import Clock

T = TypeVar("T")
_ROUNDING = 1e-9


class Timer(Generic[T]):
    """One of them. `what` waits for it, unless that is None."""

    __slots__ = ("_ring", "live", "what")

    def __init__(self, what: T | None, ring: Callable[[T | None, float], None]) -> None:
        self.what = what
        self._ring = ring
        self.live = True

    def cancel(self) -> None:
        """It does not ring."""
        self.live = False

    def ring(self, now: float) -> None:
        """Its time has come."""
        self.live = False
        self._ring(self.what, now)


class Timers(Generic[T]):
    """Belongs to the event loop; `waiting` may be asked from any thread."""

    def __init__(self, clock: Clock, busy: Callable[[], bool]) -> None:
        """`busy` says whether work goes on that virtual time must not overtake."""
        self._clock = clock
        self._busy = busy
        self._heap: list[tuple[float, int, Timer[T]]] = []
        self._order = count()
        self._alarm: Signal | None = None

    def add(self, due: float, what: T | None, ring: Callable[[T | None, float], None]) -> Timer[T]:
        """Have `ring` called with it and the time then, at this time of the monotonic clock."""
        timer = Timer(what, ring)
        heapq.heappush(self._heap, (due, next(self._order), timer))
        if self._heap[0][2] is timer:
            self.look()
        return timer

    def look(self) -> None:
        """See again how long to wait: another timer is the first, or nothing is busy any more."""
        if self._alarm is not None:
            self._alarm.set()

    def waiting(self) -> list[T]:
        """All that waits for its time."""
        return [timer.what for _, _, timer in tuple(self._heap) if timer.live and timer.what is not None]

    def clear(self) -> list[T]:
        """Take all out; answers as `waiting`."""
        waiting = self.waiting()
        self._heap.clear()
        return waiting

    async def run(self) -> None:
        """Ring, until cancelled."""
        clock, heap = self._clock, self._heap
        while True:
            self._alarm = signal = Signal()
            while heap and not heap[0][2].live:
                heapq.heappop(heap)
            seconds = max(0.0, heap[0][0] - clock.monotonic()) if heap else None
            await clock.wait_signal(signal, seconds, bounds=self._busy())
            now = clock.monotonic()
            while heap and heap[0][0] <= now + _ROUNDING:
                timer = heapq.heappop(heap)[2]
                if timer.live:
                    timer.ring(now)
