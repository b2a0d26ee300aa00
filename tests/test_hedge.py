"""Hedges: a slow attempt is started once more beside itself, and the first to come back wins."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import pickle
from contextvars import ContextVar

import pytest
import trio
import trio.testing

import outlast
from outlast import (
    AttemptTimeoutError,
    CircuitBreaker,
    ConfigurationError,
    Guard,
    Hedge,
    Limit,
    Rate,
    RetryBudget,
    RetryPolicy,
    TotalTimeoutError,
)
from outlast.kernel.clock import here
from outlast.testing import capture_events, disabled, virtual_time
from tables import table

ONCE = RetryPolicy(max_attempts=1)
STEADY = RetryPolicy(max_attempts=3, initial_delay=1, multiplier=1, jitter=0)
LIBRARIES = pytest.mark.parametrize("library", ["asyncio", "trio"])
who: ContextVar[str] = ContextVar("who", default="nobody")


async def pause(seconds: float) -> None:
    """Sleep in virtual time; in trio, whose tasks jump one by one, for real."""
    if here.get().clock.__class__.__name__ == "_VirtualClock" and outlast.kernel.clock.in_trio() is None:
        await here.get().clock.asleep(seconds)
    else:
        await trio.sleep(seconds)


async def forever() -> None:
    if outlast.kernel.clock.in_trio() is not None:
        await trio.sleep_forever()
    await asyncio.get_running_loop().create_future()


def run(library, fn, *args):
    """Run a coroutine function in virtual time; asyncio shows no complaint about results that nobody fetched."""

    async def main():
        return await fn(*args)

    with virtual_time():
        if library == "asyncio":
            return asyncio.run(main())
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


class Script:
    """What each execution does, in the order in which they start; `log` has what happened."""

    def __init__(self, *steps) -> None:
        self.steps, self.log = list(steps), []
        self.started = 0

    async def __call__(self):
        number = self.started
        self.started += 1
        self.log.append(f"{number} starts")
        try:
            step = self.steps[number]
            if step is forever:
                await forever()
            if isinstance(step, BaseException):
                raise step
            if callable(step):
                return await step()
            return step
        finally:
            self.log.append(f"{number} ends")


@LIBRARIES
def test_the_hedge_wins_and_the_loser_is_cancelled_and_awaited(library, caplog):
    """semantics 71: its finally has run before the call returns, one event tells of the hedge, and it is still attempt 1."""
    work = Script(forever, "fast")
    guard = Guard("shop", retry=STEADY, hedge=Hedge(after=2))

    async def main():
        result = await guard.acall(work)
        return result, list(work.log)

    with capture_events() as events:
        assert run(library, main) == ("fast", ["0 starts", "1 starts", "1 ends", "0 ends"])
    assert [(event.name, event.step_id, event.attempt, event.after) for event in events] == [
        ("step_hedge", "shop", 1, 2.0)
    ]
    assert not [record for record in caplog.records if record.name == "asyncio"]


@LIBRARIES
def test_a_fast_attempt_is_not_hedged(library):
    """semantics 71: it came back before `after`."""
    work = Script("fast")
    with capture_events() as events:
        assert run(library, Guard(hedge=Hedge(after=2)).acall, work) == "fast"
    assert (work.log, events) == (["0 starts", "0 ends"], [])


@LIBRARIES
def test_the_first_execution_may_win_after_all(library):
    """semantics 71: then the hedge is cancelled and awaited."""
    gate = []

    async def slow():
        while not gate:
            await pause(0.01)
        return "first"

    async def hedged():
        gate.append(1)
        await forever()

    work = Script(slow, hedged)
    assert run(library, Guard(hedge=Hedge(after=0.02)).acall, work) == "first"
    assert work.log == ["0 starts", "1 starts", "0 ends", "1 ends"]


def test_the_times_of_hedges_are_exact():
    """semantics 71: each one `after` its predecessor, whatever fails in between, and no more than max_hedges."""
    began = []

    async def work():
        began.append(here.get().clock.time.now)
        if len(began) == 2:
            await here.get().clock.asleep(1)
            raise ConnectionResetError
        await here.get().clock.asleep(100 if len(began) < 4 else 1)
        return len(began)

    assert run("asyncio", Guard(retry=ONCE, hedge=Hedge(after=3, max_hedges=3)).acall, work) == 4
    assert began == [0.0, 3.0, 6.0, 9.0]


@LIBRARIES
def test_when_all_fail_the_last_error_counts(library):
    """semantics 71: one attempt, its error that of the execution that failed last."""
    first, last = ConnectionResetError("first"), TimeoutError("last")
    gate = []

    async def one():
        while not gate:
            await pause(0.01)
        raise first

    async def other():
        gate.append(1)
        await pause(0.1)
        raise last

    outcome = run(library, Guard(retry=ONCE, hedge=Hedge(after=0.02)).aoutcome, Script(one, other))
    assert outcome.error is last
    assert len(outcome.attempts) == 1
    assert outcome.reason == "exhausted"


@LIBRARIES
def test_a_failure_before_the_hedge_is_plainly_retried(library):
    """semantics 71: no hedge was started, so the attempt has failed; the next one begins after its delay."""
    work = Script(ConnectionResetError(), "second")
    with capture_events() as events:
        outcome = run(library, Guard(retry=STEADY, hedge=Hedge(after=2)).aoutcome, work)
    assert (outcome.value, [attempt.delay for attempt in outcome.attempts]) == ("second", [1.0, None])
    assert [event.name for event in events] == ["step_retry_attempt", "step_success"]


@LIBRARIES
def test_a_failure_leaves_the_field_to_the_other(library):
    """semantics 71: the first fails while its hedge is under way, and the hedge's result counts."""
    gate = []

    async def one():
        while not gate:
            await pause(0.01)
        raise ConnectionResetError

    async def other():
        gate.append(1)
        await pause(0.1)
        return "hedge"

    work = Script(one, other)
    assert run(library, Guard(retry=ONCE, hedge=Hedge(after=0.02)).acall, work) == "hedge"
    assert work.log == ["0 starts", "1 starts", "0 ends", "1 ends"]


@LIBRARIES
def test_hedges_count_no_attempts(library):
    """semantics 71: two attempts with a hedge each are two attempts."""

    async def work():
        seen.append(outlast.current().attempt)
        if len(seen) in {1, 3}:
            await forever()
        if len(seen) == 2:
            raise ConnectionResetError
        return "done"

    seen = []
    guard = Guard(retry=STEADY, timeout=5, hedge=Hedge(after=1))
    outcome = run(library, guard.aoutcome, work)
    # The hedge of attempt 1 fails and the first execution hangs until the timeout; the hedge of attempt 2 wins.
    assert (outcome.value, seen, len(outcome.attempts)) == ("done", [1, 1, 2, 2], 2)


@LIBRARIES
def test_every_hedge_needs_a_retry_from_the_budget(library):
    """semantics 71, D-12: one is left, so one of two hedges starts; an empty budget starts none."""
    budget = RetryBudget("hedges", reserve=1, ratio=0)
    guard = Guard(retry=ONCE, retry_budget=budget, timeout=10, hedge=Hedge(after=1, max_hedges=2))
    with capture_events() as events:
        work = Script(forever, forever, "never")
        outcome = run(library, guard.aoutcome, work)
        assert isinstance(outcome.error, AttemptTimeoutError)
        assert (work.started, budget.available) == (2, 0)
        again = Script(forever, "never")
        run(library, guard.aoutcome, again)
        assert again.started == 1
    assert [event.name for event in events if event.name == "step_hedge"] == ["step_hedge"]


@LIBRARIES
def test_no_hedge_at_a_full_limit(library):
    """semantics 71, 69: a hedge takes a place of its own; without one it is not started, and the budget keeps its retry."""
    budget = RetryBudget("hedges", reserve=1)
    limit = Limit("full", concurrency=1)
    work = Script(forever, "never")
    guard = Guard(retry=ONCE, limit=limit, retry_budget=budget, timeout=5, hedge=Hedge(after=1))
    outcome = run(library, guard.aoutcome, work)
    assert (work.started, outcome.reason) == (1, "exhausted")
    assert (budget.available, limit.under_way) == (1, 0)


@LIBRARIES
def test_a_hedge_takes_and_frees_its_place(library):
    """semantics 69, 71: two places while both run, and its share of the rate stays used."""
    limit = Limit("two", concurrency=2, rates={"calls": Rate(1, per=1000, burst=3)})
    places = []

    async def fast():
        places.append(limit.under_way)

    async def main():
        await Guard(limit=limit, hedge=Hedge(after=1)).acall(Script(forever, fast))
        assert limit.under_way == 0
        return [limit.acquire_nowait(), limit.acquire_nowait()]

    assert run(library, main) == [True, False]
    assert places == [2]


@LIBRARIES
def test_an_empty_budget_gives_the_place_back(library):
    """semantics 69, 71: it was taken, then the budget refused: neither the place nor the rate is used up."""
    limit = Limit("back", concurrency=5, rates={"calls": Rate(1, per=1000, burst=2)})
    guard = Guard(retry=ONCE, limit=limit, retry_budget=RetryBudget("none", reserve=0), timeout=5, hedge=Hedge(after=1))
    run(library, guard.aoutcome, Script(forever))
    assert limit.under_way == 0
    assert [limit.acquire_nowait(), limit.acquire_nowait()] == [True, False]


def test_a_cancelled_hedge_is_no_success_for_the_limit():
    """semantics 71, D-11: it says nothing about the width; a refused one does."""
    limit = Limit("told", concurrency=10)
    gate = []

    async def slow():
        while not gate:
            await pause(0.5)
        return "first"

    async def lost():
        gate.append(1)
        await forever()

    async def refused():
        gate.append(1)
        error = Exception("too many")
        error.status_code, error.headers = 429, {"Retry-After": "7"}
        raise error

    guard = Guard(retry=ONCE, limit=limit, hedge=Hedge(after=2))
    limit._worked = 0
    run("asyncio", guard.acall, Script(slow, lost))
    assert limit._worked == 1
    gate.clear()
    limit._worked = float("inf")
    with virtual_time() as time, capture_events() as events:

        async def main():
            result = await guard.acall(Script(slow, refused))
            async with limit:
                return result, time.now

        assert asyncio.run(main()) == ("first", 9.0)
    assert [event.name for event in events] == ["step_hedge", "throttled"]


@LIBRARIES
def test_no_hedge_unless_the_circuit_is_closed(library):
    """semantics 71: a hedge must not add to the load of a service that suffers."""
    breaker = CircuitBreaker(f"hedge-{library}", failure_threshold=1)

    async def opens():
        breaker.isolate("by hand")
        await forever()

    work = Script(opens, "never")
    run(library, Guard(retry=ONCE, breaker=breaker, timeout=5, hedge=Hedge(after=1)).aoutcome, work)
    assert work.started == 1


@LIBRARIES
def test_what_the_winner_set_stays_set(library):
    """semantics 71: context variables, as after a plain await; the loser's are gone."""

    async def loser():
        who.set("loser")
        await forever()

    async def winner():
        assert who.get() == "caller"
        who.set("winner")

    async def main():
        who.set("caller")
        await Guard(hedge=Hedge(after=1)).acall(Script(loser, winner))
        return who.get()

    assert run(library, main) == "winner"


@LIBRARIES
@pytest.mark.parametrize("field", ["timeout", "total_timeout"])
def test_the_timeouts_hold_for_the_whole_race(library, field):
    """semantics 71: both executions are ended and awaited when the time is up."""
    work = Script(forever, forever)
    outcome = run(library, Guard(retry=ONCE, hedge=Hedge(after=1), **{field: 3}).aoutcome, work)
    assert isinstance(outcome.error, AttemptTimeoutError if field == "timeout" else TotalTimeoutError)
    assert sorted(work.log[2:]) == ["0 ends", "1 ends"]


def test_cancelling_the_call_ends_both():
    """semantics 71: asyncio cancels from outside during the race, and both have ended before the cancellation goes on."""
    work = Script(forever, forever)

    async def main():
        task = asyncio.create_task(Guard(retry=STEADY, hedge=Hedge(after=1)).acall(work))
        while work.started < 2:
            await pause(0.25)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return list(work.log)

    assert run("asyncio", main) == ["0 starts", "1 starts", "0 ends", "1 ends"]


def test_a_trio_scope_ends_both():
    """semantics 71: the same in trio."""
    both = trio.Event()

    async def second():
        both.set()
        await forever()

    work = Script(forever, second)

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Guard(retry=STEADY, hedge=Hedge(after=1)).acall, work)
            with trio.move_on_after(30):
                await both.wait()
            nursery.cancel_scope.cancel()
        return work.log

    assert sorted(run("trio", main)[2:]) == ["0 ends", "1 ends"]


def test_a_loser_that_is_slow_to_end_is_awaited():
    """semantics 71: a cancellation during that time is not lost."""
    log = []

    async def stubborn():
        try:
            await forever()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            log.append("cleaned up")

    async def main():
        result = await Guard(hedge=Hedge(after=1)).acall(Script(stubborn, "fast"))
        log.append("returned")
        return result

    assert run("asyncio", main) == "fast"
    assert log == ["cleaned up", "returned"]


@LIBRARIES
def test_a_loser_that_fails_while_it_is_cancelled_disturbs_nobody(library, caplog):
    """semantics 71: what it raises is nobody's concern, and no log says "never retrieved"."""

    async def angry():
        with contextlib.suppress(BaseException):
            await forever()
        raise ValueError("angry")

    # trio forbids to swallow its cancellation; there it fails in a finally
    async def angry_in_trio():
        try:
            await forever()
        finally:
            raise ValueError("angry")

    with caplog.at_level(logging.DEBUG):
        loser = angry if library == "asyncio" else angry_in_trio
        assert run(library, Guard(hedge=Hedge(after=1)).acall, Script(loser, "fast")) == "fast"
    assert not [record for record in caplog.records if "retrieved" in record.getMessage()]


@LIBRARIES
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_an_interrupt_in_one_execution_ends_the_race(library, kind):
    """semantics 71: it goes up as it is, after the others have ended."""
    work = Script(forever, kind())
    with pytest.raises(kind):
        run(library, Guard(retry=STEADY, hedge=Hedge(after=1)).acall, work)
    assert sorted(work.log) == ["0 ends", "0 starts", "1 ends", "1 starts"]
    alone = Script(kind())
    with pytest.raises(kind):
        run(library, Guard(retry=STEADY, hedge=Hedge(after=1)).acall, alone)
    assert alone.started == 1


def test_the_loser_is_not_kept_alive():
    """semantics 71: the winner's result is all that is left of the race."""
    import weakref

    class Big:
        pass

    kept = []

    async def one():
        big = Big()
        kept.append(weakref.ref(big))
        await forever()

    run("asyncio", Guard(hedge=Hedge(after=1)).acall, Script(one, "fast"))
    assert kept[0]() is None


def test_hedges_do_nothing_when_protection_is_off():
    """semantics 71: one execution, in the caller's own task."""

    async def main():
        task = asyncio.current_task()

        async def work():
            return asyncio.current_task() is task

        with disabled():
            return await Guard(hedge=Hedge(after=1)).acall(work)

    assert asyncio.run(main())


def test_what_cannot_be_hedged_is_refused():
    """semantics 71: sync functions, generators, loops, and work that must not be done twice."""
    guard = Guard(hedge=Hedge(after=1))

    def work():
        pass

    def items():
        yield

    async def aitems():
        yield

    with pytest.raises(ConfigurationError, match=r"expected no hedge for the sync function .*work"):
        guard(work)
    with pytest.raises(ConfigurationError, match=r"expected no hedge for the sync function .*work"):
        guard.call(work)
    for stream in (items, aitems):
        with pytest.raises(ConfigurationError, match=r"expected no hedge for .*items.*each would come twice"):
            guard(stream)
    with pytest.raises(ConfigurationError, match=r"expected no hedge in a loop over attempts"):
        guard.attempts()
    with pytest.raises(ConfigurationError, match="expected hedge to be None with idempotent=False"):
        Guard(hedge=Hedge(after=1), idempotent=False)


@table(
    ("options", "said"),
    [
        ({"after": 0}, r"after.*greater than 0"),
        ({"after": -1}, r"after"),
        ({"after": "soon"}, r"after"),
        ({"after": 1, "max_hedges": 0}, r"max_hedges.*at least 1"),
        ({"after": 1, "max_hedges": 1.5}, r"max_hedges"),
        ({"after": 1, "max_hedge": 1}, r"'max_hedge'.*'max_hedges'"),
    ],
)
def test_a_wrong_setting_is_named(options, said):
    """semantics 71: field, what was expected, what came."""
    with pytest.raises(ConfigurationError, match=said):
        Hedge(**options)


def test_a_hedge_is_a_value():
    """semantics 71: equal, hashable, picklable."""
    hedge = Hedge(after=0.5, max_hedges=2)
    assert hedge == Hedge(after=0.5, max_hedges=2) == pickle.loads(pickle.dumps(hedge)) == copy.deepcopy(hedge)
    assert hash(hedge) == hash(Hedge(after=0.5, max_hedges=2))
    assert repr(hedge) == "Hedge(after=0.5, max_hedges=2)"
    with pytest.raises(ConfigurationError, match=r"hedge.*Hedge"):
        Guard(hedge=0.5)
