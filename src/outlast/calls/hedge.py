"""
Hedging: when an attempt is slow, start the same once more beside it, and take whichever comes back first.

The executions of one attempt race: the first result wins, the others are cancelled and awaited, and their errors are
ignored. If one execution fails, the others go on; the attempt fails when all have failed. A hedge must not add load to
a service in trouble: it starts only with a retry from the budget, a free place at the limit and a closed circuit.
"""

from __future__ import annotations

from contextvars import copy_context

from outlast.calls.state import racing, running
from outlast.kernel.clock import Signal, in_trio
from outlast.kernel.value import Value, put
from outlast.observe import emit, listening
from outlast.settings.checks import Check
from outlast.verdicts import refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import Context as Variables
    from typing import Any, Never, Self

    from outlast.calls.state import Call
    from outlast.kernel.aliases import Seconds


class Hedge(Value):
    """
    Start an attempt once more beside itself when it has not come back `after` so many seconds, at most `max_hedges`
    times.
    """

    __slots__ = ("after", "max_hedges")
    after: float
    max_hedges: int

    def __init__(self, *, after: Seconds, max_hedges: int = 1, **unknown: Never) -> None:
        check = Check()
        check.unknown(unknown, ("after", "max_hedges"))
        put(self, "after", check.seconds("after", after, 1.0, positive=True))
        put(self, "max_hedges", check.integer("max_hedges", max_hedges, low=1, default=1))
        check.raise_if_any()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], /) -> Self:
        """A hedge from a configuration block. Every mistake is reported, at once."""
        from outlast.settings.keys import Block

        return Block("hedge", config).made(cls)

    def to_config(self) -> dict[str, Any]:
        """The configuration block that makes this hedge."""
        from outlast.settings.keys import shown

        return shown("hedge", {name: getattr(self, name) for name in self._fields}, {"max_hedges": 1})


class _Race:
    """The executions of one attempt, and how they came out."""

    def __init__(self, call: Call, work: Callable[[], Any]) -> None:
        self._call = call
        self._work = work
        self._came_back: list[tuple[bool, Any, Variables | None]] = []  # worked, result or error, variables
        # An interrupt, an exit, a cancellation that the work itself raised.
        self._broken_by: BaseException | None = None
        self._signal: Signal | None = None
        self._started = self._ended = self._waiting = 0
        self._over = False

    async def hedge(self) -> None:
        """
        One execution more, if it is permitted. What it needs is taken here, in its own task: one that is cancelled
        before it has run at all has taken nothing, and nobody would give it back.
        """
        leave = None if self._over or self._decided() else permission(self._call)
        if leave is not None:
            await self.execute(leave)
            return
        self._ended += 1
        if self._signal is not None:
            self._signal.ring()

    async def execute(self, leave: Callable[..., None] | None = None) -> None:
        """One execution; `leave` gives back what a hedge took."""
        error: Exception | None = None
        worked = False
        racing.set(self._others_may_answer)  # of this task only
        try:
            result = await self._work()
        except Exception as raised:  # noqa: BLE001 - kept for the end
            error = raised
            self._came_back.append((False, raised, None))
        except BaseException as interruption:
            # From outside, it ends this execution; raised by the work itself, it ends the race.
            if self._over or type(interruption).__name__ in {"Cancelled", "GeneratorExit"}:
                raise
            self._broken_by = interruption
        else:
            worked = True
            self._came_back.append((True, result, copy_context()))
        finally:
            if leave is not None:
                leave(worked, error)
            del error
            if self._signal is not None:
                self._signal.ring()

    async def run(self, start: Callable[..., Any]) -> None:
        """Start executions and wait until the race is decided."""
        hedge, clock = self._call.guard.hedge, self._call.world.clock
        start(self.execute)
        self._started = 1
        newest = clock.monotonic()
        try:
            while not self._decided():
                self._signal = signal = Signal()
                more = hedge is not None and self._started <= hedge.max_hedges
                seconds = max(0.0, newest + hedge.after - clock.monotonic()) if more and hedge is not None else None
                if not await clock.wait_signal(signal, seconds) and more:
                    self._started += 1  # also if it is not permitted: it is not asked for again and again
                    newest = clock.monotonic()
                    start(self.hedge)
        finally:
            self._over = True

    def _others_may_answer(self) -> bool:
        """An execution is about to wait for long: whether another one runs that is not."""
        self._waiting += 1
        return self._started - self._ended - len(self._came_back) > self._waiting

    def _decided(self) -> bool:
        return (
            self._broken_by is not None
            or any(worked for worked, _, _ in self._came_back)
            or len(self._came_back) + self._ended >= self._started
        )

    def result(self) -> Any:
        """The first result; if there is none, the error of the execution that failed last is raised."""
        came_back, self._came_back = self._came_back, []
        broken_by, self._broken_by = self._broken_by, None
        if broken_by is not None:
            try:
                raise broken_by
            finally:
                del broken_by, came_back
        for worked, result, variables in came_back:
            if worked:
                _adopt(variables)
                return result
        error = came_back[-1][1]
        del came_back
        try:
            raise error
        finally:
            del error


def permission(call: Call) -> Callable[[bool, Exception | None], None] | None:
    """Leave to start one more execution, as a function that ends it; None if there is none."""
    guard = call.guard
    limit, cost = guard.limit, call.cost
    if guard.breaker is not None and not guard.breaker.memory.circuit.passing:
        return None
    entry = -1 if limit is None else limit.take(cost)
    if limit is not None and entry < 0:
        return None
    if guard.retry_budget is not None and not guard.retry_budget.withdraw():
        if limit is not None:
            limit.leave(entry, cost, undone=True)
        return None
    if listening() and guard.hedge is not None:
        from outlast.observe.events import StepHedge

        emit(StepHedge(**call.who(), after=guard.hedge.after))

    def leave(worked: bool, error: Exception | None) -> None:  # noqa: FBT001 - how it ended
        if limit is not None:
            limit.leave(entry, cost, worked=worked, refused=refusal(error))

    return leave


async def race(call: Call, work: Callable[[], Any]) -> Any:
    """Await `work`, and whatever hedges are started beside it."""
    contest = _Race(call, work)
    trio = in_trio()
    if trio is not None:
        async with trio.open_nursery() as nursery:
            await contest.run(nursery.start_soon)
            nursery.cancel_scope.cancel()
        return contest.result()
    import asyncio

    tasks: list[asyncio.Task[None]] = []
    try:
        await contest.run(lambda execute: tasks.append(asyncio.ensure_future(execute())))
    finally:
        for task in tasks:
            task.cancel()
        await _all_ended(tasks)
    return contest.result()


async def _all_ended(tasks: list[Any]) -> None:
    """Wait until every task has ended, however; a cancellation that comes meanwhile is raised afterwards."""
    import asyncio

    interruption: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as cancelled:
            interruption = cancelled
    ends = [task.exception() for task in tasks if not task.cancelled()]
    if interruption is not None:
        raise interruption
    for end in ends:
        if end is not None:  # an exit out of what a loser had to clean up
            raise end


def _adopt(variables: Variables | None) -> None:
    """What the winner set stays set, as after a plain await."""
    missing = object()
    for variable, value in (variables or {}).items():
        if variable not in (running, racing) and variable.get(missing) is not value:
            variable.set(value)
