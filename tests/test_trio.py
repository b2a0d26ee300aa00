"""Protected coroutines under trio: the same promises, without a dependency on it."""

import subprocess
import sys

import pytest
import trio
import trio.testing

import outlast
from outlast import CircuitBreaker, Guard, RetryPolicy
from outlast.testing import capture_events, virtual_time

POLICY = RetryPolicy(jitter=0)


class Work:
    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self):
        self.calls += 1
        await trio.lowlevel.checkpoint()
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def hang(self):
        self.calls += 1
        await trio.sleep_forever()


def run(fn, *args):
    """On trio's own virtual clock, which jumps whenever every task waits."""
    return trio.run(fn, *args, clock=trio.testing.MockClock(autojump_threshold=0))


def test_waits_are_those_of_the_policy():
    """semantics 77: on trio's clock the call takes exactly what the policy says."""
    work = Work(ConnectionResetError(), TimeoutError())

    async def main():
        began = trio.current_time()
        assert await outlast.retry(POLICY)(work)() == "done"
        return trio.current_time() - began

    assert (run(main), work.calls) == (3.0, 3)


def test_cancelled_is_never_caught():
    """semantics 3: a cancel scope around a retried call ends with the scope cancelled, after one attempt."""
    work = Work()

    async def main():
        with trio.move_on_after(5) as scope:
            await Guard(retry=POLICY.replace(on_errors=["all"]), total_timeout=60)(work.hang)()
        return scope.cancelled_caught, trio.current_time()

    caught, _ = run(main)
    assert (caught, work.calls) == (True, 1)


def test_cancellation_during_the_wait_ends_the_call():
    """semantics 4: no further attempt starts."""
    work = Work(*[ConnectionResetError()] * 9)

    async def main():
        with trio.move_on_after(0.5) as scope:
            await outlast.retry(POLICY)(work)()
        return scope.cancelled_caught

    assert (run(main), work.calls) == (True, 1)


def test_time_limits_hold():
    """semantics 17, semantics 19: an attempt that hangs is cancelled and tried again; the total bounds everything."""
    work = Work()

    async def main():
        began = trio.current_time()
        with pytest.raises(outlast.AttemptTimeoutError) as attempt:
            await Guard(retry=POLICY, timeout=5)(work.hang)()
        middle = trio.current_time()
        with pytest.raises(outlast.TotalTimeoutError) as total:
            await Guard(retry=POLICY, total_timeout=7)(work.hang)()
        return middle - began, trio.current_time() - middle, attempt.value, total.value

    first, second, attempt, total = run(main)
    assert (first, work.calls) == (18.0, 4)
    assert second == pytest.approx(7.0, abs=0.1)  # what is left of the total is read on the process's own clock
    assert (outlast.stop_reason(attempt), outlast.stop_reason(total)) == ("exhausted", "total_timeout")


def test_a_timeout_of_our_own_is_not_taken_for_the_callers():
    """semantics 45: who cancels from outside sees a cancellation, not a timeout; the breaker counts neither."""
    breaker = CircuitBreaker("trio", failure_threshold=1)
    work = Work()

    async def main():
        with trio.move_on_after(1) as scope:
            await Guard(retry=POLICY, timeout=5, breaker=breaker)(work.hang)()
        return scope.cancelled_caught

    assert run(main)
    assert breaker.failure_count == 0


def test_a_stop_ends_the_wait():
    """semantics 23: at once, with the last error."""
    work = Work(*[ConnectionResetError()] * 9)
    stop = outlast.Stop()

    async def main():
        async def ask():
            await trio.sleep(0.25)
            stop.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with stop, pytest.raises(ConnectionResetError) as caught:
                await outlast.retry(POLICY)(work)()
        return trio.current_time(), caught.value

    _, error = run(main)
    assert (work.calls, outlast.stop_reason(error)) == (1, "shutdown")


def test_loops_streams_and_events_work():
    """semantics 60, semantics 61: attempts in a block, an async generator, and the story."""
    work = Work(ConnectionResetError())
    starts = []

    async def items():
        starts.append(1)
        if len(starts) < 2:
            raise ConnectionResetError
        yield 1
        yield 2

    async def main():
        numbers = []
        async for attempt in outlast.retry(POLICY).attempts():
            with attempt:
                numbers.append(attempt.number)
                await work()
        return numbers, [item async for item in outlast.retry(POLICY)(items)()]

    with capture_events() as events:
        assert run(main) == ([1, 2], [1, 2])
    assert [event.name for event in events] == ["step_retry_attempt", "step_success"] * 2


def test_a_loop_that_is_left_early_leaves_nothing_for_the_event_loop_to_finish():
    """semantics 3: trio warns of async generators that are dropped; here, a warning is an error. The probe's place is free again."""
    breaker = CircuitBreaker("left", failure_threshold=1, reset_timeout=0, half_open_requests=1, open_jitter=0)
    with pytest.raises(ConnectionResetError), breaker:
        raise ConnectionResetError

    async def main():
        async for attempt in Guard(retry=POLICY, breaker=breaker).attempts():
            assert attempt.number == 1
            break  # never entered
        with trio.move_on_after(5) as scope:
            async for attempt in outlast.retry(POLICY).attempts():
                with attempt:
                    await trio.sleep_forever()
        return scope.cancelled_caught

    assert run(main)
    assert breaker.call(str) == ""


def test_virtual_time_takes_no_time():
    """semantics 77: with our own virtual clock as well."""
    work = Work(ConnectionResetError(), ConnectionResetError())

    async def main():
        with virtual_time() as time:
            await outlast.retry(POLICY)(work)()
        return time.sleeps

    assert trio.run(main) == [1, 2]


def test_trio_is_never_imported():
    """Conventions: who does not use it does not pay for it."""
    script = """
import asyncio, sys
from outlast import retry
@retry(initial_delay=0.001, total_timeout=5)
async def f(n=[0]):
    n[0] += 1
    if n[0] < 3: raise ConnectionResetError
asyncio.run(f())
print("trio" in sys.modules)
"""
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
    )
