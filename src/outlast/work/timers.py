"""
Timers: what is to go on at a later time. They follow the clock, also a virtual one.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, Generic, TypeVar

from outlast.kernel.clock import Signal

if TYPE_CHECKING:
    from outlast.kernel.clock import Clock

T = TypeVar("T")
_ROUNDING = 1e-9


class Timer(Generic[T]):
    """A timer for `what`."""

    __slots__ = ("live", "what")

    def __init__(self, what: T) -> None:
        self.what = what
        self.live = True

    def cancel(self) -> None:
        """It does not come due."""
        self.live = False


class Timers(Generic[T]):
    """The timers of an event loop. Only that loop uses them, except for `waiting`, which any thread may call."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Timer[T]]] = []
        self._order = count()
        self._alarm: Signal | None = None

    def add(self, due: float, what: T) -> Timer[T]:
        """Have it come due at this time of the monotonic clock."""
        timer = Timer(what)
        heapq.heappush(self._heap, (due, next(self._order), timer))
        if self._heap[0][2] is timer:
            self.look()
        return timer

    def look(self) -> None:
        """Wake `due`: there may be less to wait for."""
        if self._alarm is not None:
            self._alarm.set()

    def waiting(self) -> list[T]:
        """All that waits for its time."""
        return [timer.what for _, _, timer in tuple(self._heap) if timer.live]

    def clear(self) -> list[T]:
        """Take all out; answers as `waiting`."""
        waiting = self.waiting()
        self._heap.clear()
        return waiting

    async def due(self, *, busy: bool) -> list[T]:
        """
        Wait until something is due, or `look`, and take it out. While other work is `busy`, virtual time does not jump.
        """
        clock, heap = self._clock, self._heap
        self._alarm = signal = Signal()
        while heap and not heap[0][2].live:
            heapq.heappop(heap)
        seconds = max(0.0, heap[0][0] - clock.monotonic()) if heap else None
        await clock.wait_signal(signal, seconds, bounds=busy)
        now, due = clock.monotonic() + _ROUNDING, list[T]()
        while heap and heap[0][0] <= now:
            timer = heapq.heappop(heap)[2]
            if timer.live:
                timer.live = False
                due.append(timer.what)
        return due
