"""No place is ever lost: what a call takes (a place, a turn in the line, a probe, a retry of the budget) is back when it has ended, however."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import time
from dataclasses import dataclass

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast import CircuitBreaker, Guard, Hedge, Limit, Rate, RetryBudget, RetryPolicy
from outlast.kernel.clock import here
from outlast.observe import subscribe
from outlast.testing import virtual_time

RESERVE = 50
WIDTH = 2


class Refused(Exception):
    """As a client of a web service raises it for 429."""

    status_code = 429

    def __init__(self) -> None:
        super().__init__("429")
        self.headers = {"Retry-After": "0.001"}


ENDS = {
    "returns": None,
    "transient": ConnectionResetError,
    "permanent": KeyError,
    "refused": Refused,
    "exits": SystemExit,
    "interrupts": KeyboardInterrupt,
    "cancels": asyncio.CancelledError,
    "hangs": None,
    "slow": None,  # until the moment in which a hedge is due
}
DOORS = ("decorated", "call", "handed on", "attempts", "generator", "limit", "breaker")


@dataclass(frozen=True)
class Case:
    """Some calls at once through one guard, what each of their attempts does, and when they are cancelled."""

    doors: tuple[str, ...]
    steps: tuple[tuple[str, ...], ...]
    cancelled: tuple[int, ...]  # after how many rounds of the loop; 0: not at all
    circuit: str = "closed"
    timeout: bool = False
    total: bool = False
    hedged: bool = False
    fallback: bool = False
    patient: bool = True  # waits in line, and for an open circuit
    taken: int = 0  # places that somebody else has all the while
    rated: bool = False
    reserve: int = RESERVE


calls = st.integers(1, 4).flatmap(
    lambda many: st.tuples(
        st.lists(st.sampled_from(DOORS), min_size=many, max_size=many).map(tuple),
        st.lists(
            st.lists(st.sampled_from(sorted(ENDS)), min_size=3, max_size=3).map(tuple), min_size=many, max_size=many
        ).map(tuple),
        st.lists(st.sampled_from((0, 0, 1, 2, 3, 5, 8, 20)), min_size=many, max_size=many).map(tuple),
    )
)
cases = st.builds(
    lambda three, **rest: Case(*three, **rest),
    calls,
    circuit=st.sampled_from(("closed", "open", "half_open", "nearly open")),
    timeout=st.booleans(),
    total=st.booleans(),
    hedged=st.booleans(),
    fallback=st.booleans(),
    patient=st.booleans(),
    taken=st.integers(0, WIDTH),
    rated=st.booleans(),
    reserve=st.sampled_from((0, 1, RESERVE)),
)


class World:
    """The guard of a case, and what is counted about it."""

    def __init__(self, case: Case, scale: float) -> None:
        self.case, self.scale = case, scale
        self.limit = Limit(
            "places",
            concurrency=WIDTH,
            rates={"calls": Rate(1, per=0.001 * scale, burst=2)} if case.rated else None,
            max_wait=scale if case.patient else 0,
        )
        self.breaker = CircuitBreaker(
            "places", failure_threshold=3, reset_timeout=0.5 * scale, half_open_requests=1, count="any"
        )
        self.budget = RetryBudget("places", ratio=0, reserve=case.reserve)
        self.withdrawn = 0
        for _ in range({"closed": 0, "nearly open": 2}.get(case.circuit, 3)):
            with contextlib.suppress(ConnectionResetError), self.breaker:
                raise ConnectionResetError
        if case.circuit == "half_open":
            self.breaker.memory.circuit = _due(self.breaker.memory.circuit)
        for _ in range(case.taken):
            assert self.limit.acquire_nowait()

    def heard(self, event: object) -> None:
        """A decision to retry, or to hedge: each is one retry less in the budget."""
        self.withdrawn += type(event).__name__ in {"StepRetryAttempt", "StepHedge"}

    def guard(self, *, is_async: bool, door: str) -> Guard:
        case, scale, whole = self.case, self.scale, door in {"decorated", "call", "handed on"}
        return Guard(
            "places",
            retry=RetryPolicy(max_attempts=3, initial_delay=0.05 * scale, jitter=0),
            limit=self.limit,
            breaker=self.breaker,
            retry_budget=self.budget,
            timeout=0.2 * scale if case.timeout and is_async and door != "handed on" else None,
            total_timeout=0.4 * scale if case.total else None,
            hedge=Hedge(after=0.1 * scale) if case.hedged and is_async and door in {"decorated", "call"} else None,
            fallback=(lambda *_: "instead") if case.fallback and whole else None,
            on_open="wait" if case.patient else "fail",
        )

    def check(self) -> None:
        """Nothing is taken but what somebody else has, nobody is in line, and all places can be had again."""
        for _ in range(self.case.taken):
            self.limit.release()
        assert (self.limit.under_way, self.limit.waiting) == (0, 0)
        assert (self.breaker.memory.circuit.probes, self.breaker.memory.circuit.late) == ((), ())
        assert self.budget.available == self.case.reserve - self.withdrawn
        assert self.limit._calm or self.case.rated or self.limit._worked < float("inf")


class Later:
    """Something to await that complains to nobody if nobody does."""

    def __init__(self, steps) -> None:
        self.steps = steps

    def __await__(self):
        return self.steps()


def _due(circuit):
    from dataclasses import replace

    return replace(circuit, retry_on=here.get().clock.monotonic() - 1)


# -- async ---------------------------------------------------------------------------------------------------------------------------


async def adoor(world: World, door: str, steps: tuple[str, ...]) -> None:
    guard, left = world.guard(is_async=True, door=door), iter(steps)

    async def work() -> str:
        step = next(left, "returns")
        await asyncio.sleep(0)
        if step in {"hangs", "slow"}:
            await here.get().clock.asleep((0.3 if step == "hangs" else 0.1) * world.scale)
        if ENDS[step] is not None:
            raise ENDS[step]
        return "done"

    async def items():
        yield await work()
        yield await work()

    if door == "decorated":
        await guard(work)()
    elif door == "call":
        await guard.acall(work)
    elif door == "handed on":
        await guard(lambda: Later(lambda: work().__await__()))()
    elif door == "attempts":
        async for attempt in guard.attempts():
            with attempt:
                await work()
    elif door == "generator":
        async with contextlib.aclosing(guard(items)()) as stream:
            async for _ in stream:
                pass
    elif door == "limit":
        async with world.limit:
            await work()
    else:
        await world.breaker.acall(work)


async def all_at_once(world: World) -> None:
    case = world.case
    tasks = []
    for door, steps in zip(case.doors, case.steps, strict=True):
        tasks.append(asyncio.ensure_future(_held(world, door, steps)))
    for tick in range(1, 21):
        for task, when in zip(tasks, case.cancelled, strict=True):
            if when == tick:
                task.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)


async def _held(world: World, door: str, steps: tuple[str, ...]) -> None:
    # An exit must not end the event loop of the test.
    try:
        await adoor(world, door, steps)
    except (SystemExit, KeyboardInterrupt):
        return


def checked(case: Case, scale: float, run) -> None:
    world = World(case, scale)
    stop = subscribe(world.heard)
    try:
        run(world)
    finally:
        stop()
    world.check()


@settings(max_examples=120)
@given(cases)
def test_async_calls_give_everything_back_in_virtual_time(case):
    """C3: whatever ends them, and whenever they are cancelled; through every door, with everything in their way."""
    with virtual_time(seed=1):
        checked(case, 1.0, lambda world: asyncio.run(all_at_once(world)))


@settings(max_examples=40)
@given(cases)
def test_async_calls_give_everything_back_the_way_production_takes(case):
    """C3: the same without virtual time, where a decorated function has a shorter way of its own."""
    checked(case, 0.01, lambda world: asyncio.run(all_at_once(world)))


# -- sync ----------------------------------------------------------------------------------------------------------------------------


def door_of(world: World, door: str, steps: tuple[str, ...]) -> None:
    guard, left = world.guard(is_async=False, door=door), iter(steps)

    def work() -> str:
        step = next(left, "returns")
        if ENDS[step] is not None:
            raise ENDS[step]
        return "done"

    def items():
        yield work()
        yield work()

    if door == "decorated":
        guard(work)()
    elif door == "call":
        guard.call(work)
    elif door == "handed on":  # and nobody awaits it
        guard(lambda: Later(lambda: iter([work()])))()
    elif door == "attempts":
        for attempt in guard.attempts():
            with attempt:
                work()
    elif door == "generator":
        for _ in guard(items)():
            if steps[-1] == "hangs":
                break  # the consumer leaves early
    elif door == "limit":
        with world.limit:
            work()
    else:
        world.breaker.call(work)


def one_by_one(world: World) -> None:
    import warnings

    for door, steps in zip(world.case.doors, world.case.steps, strict=True):
        with contextlib.suppress(BaseException), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # never awaited: that is the point
            door_of(world, door, steps)


@settings(max_examples=80)
@given(cases)
def test_sync_calls_give_everything_back(case):
    """C3: the same for sync code; what is to be awaited and never is holds nothing either."""
    with virtual_time(seed=1):
        checked(case, 1.0, one_by_one)


@settings(max_examples=40)
@given(cases)
def test_sync_calls_give_everything_back_the_way_production_takes(case):
    """C3: the same without virtual time."""
    checked(case, 0.001, one_by_one)


# -- hedges --------------------------------------------------------------------------------------------------------------------------


def test_a_hedge_that_is_too_late_to_run_takes_nothing():
    """C3: the race is decided in the round of the loop in which the hedge is due: its task is cancelled before it has run at all."""
    limit, budget = Limit("db", concurrency=3), RetryBudget("db", ratio=0, reserve=9)
    guard = Guard("query", limit=limit, retry_budget=budget, hedge=Hedge(after=0.01), retry=None)
    hedges = []

    async def query():
        loop = asyncio.get_running_loop()
        answer = loop.create_future()

        def busy() -> None:
            until = time.monotonic() + 0.003
            while time.monotonic() < until:  # both are due by then
                pass
            answer.set_result(1)

        loop.call_later(0.0095, busy)
        return await answer

    async def main():
        for _ in range(4):
            assert await asyncio.wait_for(guard.acall(query), 5) == 1

    stop = subscribe(lambda event: hedges.append(event) if type(event).__name__ == "StepHedge" else None)
    try:
        asyncio.run(main())
    finally:
        stop()
    assert (limit.under_way, limit.waiting) == (0, 0)
    assert budget.available == 9 - len(hedges)


@pytest.mark.parametrize("first", [0.1, 0.2, 0.3])
def test_hedges_under_trio_give_everything_back(first):
    """C3: before the hedge is due, in the same moment, and after it; then cancelled in the middle."""
    limit, budget = Limit("trio", concurrency=4), RetryBudget("trio", ratio=0, reserve=9)
    guard = Guard("query", limit=limit, retry_budget=budget, hedge=Hedge(after=0.2, max_hedges=2), retry=None)
    hedges = []

    async def query():
        await trio.sleep_until(trio.current_time() + first)  # of a clock that jumps

    async def main():
        await guard.acall(query)
        with trio.move_on_after(0.45):
            await guard.acall(trio.sleep_forever)
        assert (limit.under_way, limit.waiting) == (0, 0)

    stop = subscribe(lambda event: hedges.append(event) if type(event).__name__ == "StepHedge" else None)
    try:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        stop()
    assert budget.available == 9 - len(hedges)


def test_a_task_that_is_cancelled_before_it_began_holds_nothing():
    """C3: a decorated sync function that hands out a coroutine has begun its attempt; the task around it may never run."""
    limit = Limit("handed on", concurrency=1)

    async def query():
        return 1

    async def main():
        task = asyncio.ensure_future(Guard(limit=limit)(lambda: query())())  # noqa: PLW0108 - no coroutine function
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        del task

    with pytest.warns(RuntimeWarning, match="never awaited"):
        asyncio.run(main())
    assert limit.under_way == 0


@pytest.mark.parametrize("decorated", [False, True])
def test_a_cancellation_in_the_moment_of_a_timeout_is_a_cancellation(decorated):
    """semantics 3, 30: cancelled in the round of the loop in which the attempt's timeout strikes: no further attempt is made."""

    async def main():
        calls = []

        async def slow():
            calls.append(1)
            await asyncio.get_running_loop().create_future()

        guard = Guard(timeout=0.05, retry=RetryPolicy(initial_delay=0.5, jitter=0))
        task = asyncio.create_task(guard(slow)() if decorated else guard.acall(slow))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert calls == [1]
        until = time.monotonic() + 0.06
        while time.monotonic() < until:  # now the timeout is due, and strikes in the next round of the loop
            pass
        asyncio.get_running_loop().call_later(0, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert calls == [1]

    asyncio.run(main())


# -- names ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [lambda: Limit("one name", concurrency=1), lambda: CircuitBreaker("one name"), lambda: RetryBudget("one name")],
    ids=["limit", "breaker", "budget"],
)
def test_a_pickle_finds_the_first_of_its_name(make):
    """Decision 0005: for limits, breakers and budgets alike; when that is gone, one that is made then is the first."""
    first, second = make(), make()
    assert pickle.loads(pickle.dumps(second)) is pickle.loads(pickle.dumps(first)) is first
    data = pickle.dumps(second)
    del first, second
    gc.collect()
    third = make()
    assert pickle.loads(data) is third


# -- heeding -------------------------------------------------------------------------------------------------------------------------


class Overloaded(Exception):
    """As a client of a model's service raises it for 529."""

    status_code = 529

    def __init__(self, hint: str | None) -> None:
        super().__init__("overloaded")
        self.headers = {} if hint is None else {"Retry-After": hint}


def test_a_529_is_heeded_like_a_429():
    """D-11, D-31: with a long hint all who share the limit pause, otherwise fewer calls are under way; it proves nothing about the effect."""
    with virtual_time():
        limit = Limit("model", concurrency=10)
        with contextlib.suppress(Overloaded), limit:
            raise Overloaded("30")
        assert limit.paused == 30
        limit = Limit("model", concurrency=10)
        with contextlib.suppress(Overloaded), contextlib.ExitStack() as stack:
            for _ in range(10):
                stack.enter_context(limit)
            raise Overloaded(None)
        assert (limit.paused, limit.width < 10) == (0, True)
        calls = []

        def pay():
            calls.append(1)
            raise Overloaded("30")

        with pytest.raises(Overloaded):
            Guard(retry=RetryPolicy(on_errors=["5xx"]), idempotent=False).call(pay)
        assert calls == [1]
