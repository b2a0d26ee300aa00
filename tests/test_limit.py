"""Limits: how many calls at a time, how much over time, and what a "too many" of the service means for all who share one."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import os
import pickle
import random
import subprocess
import sys
import threading
from collections import deque
from math import inf

import pytest
import trio
import trio.lowlevel
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import outlast
from lanes import lane  # noqa: F401 - a fixture
from outlast import (
    CircuitBreaker,
    CircuitBreakerOpenError,
    ConfigurationError,
    Guard,
    Limit,
    LimitExceededError,
    Rate,
    RetryBudget,
    RetryPolicy,
    Stop,
    TotalTimeoutError,
)
from outlast.kernel.clock import here
from outlast.limits import _Bucket
from outlast.testing import capture_events, disabled, virtual_time
from tables import table

pytestmark = pytest.mark.usefixtures("lane")  # what a program does, and what the flow does

ONCE = RetryPolicy(max_attempts=1)
STEADY = RetryPolicy(max_attempts=3, initial_delay=1, multiplier=1, jitter=0)


class TooMany(Exception):
    """A 429 as HTTP clients raise it."""

    def __init__(self, after: float | None = None, status: int = 429) -> None:
        super().__init__(status)
        self.status_code = status
        self.headers = {} if after is None else {"Retry-After": str(after)}


def run_threads(*works) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


def until(condition) -> None:
    """Wait until another thread has got that far."""
    for _ in range(200_000):
        if condition():
            return
        os.sched_yield()
    raise AssertionError("it never happened")


def told(events) -> list[tuple]:
    """Events as rows: the name, then what matters of it."""
    fields = ("limit", "under_way", "waiting", "retry_after", "pause", "width", "attempt", "reason")
    return [(event.name, {f: getattr(event, f) for f in fields if hasattr(event, f)}) for event in events]


# -- how many at a time ------------------------------------------------------------------------------------------------------


class Gauge:
    """Counts what is inside, and the most that ever was."""

    def __init__(self) -> None:
        self.inside = self.most = self.total = 0
        self._lock = threading.Lock()

    def __enter__(self):
        with self._lock:
            self.inside += 1
            self.total += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_):
        with self._lock:
            self.inside -= 1


def test_never_more_than_so_many_threads_are_under_way():
    """semantics 69: a hundred threads, seven places."""
    limit, gauge = Limit("threads", concurrency=7), Gauge()
    guard = Guard(limit=limit)

    def work():
        with gauge:
            os.sched_yield()

    def worker():
        for _ in range(5):
            guard.call(work)

    run_threads(*[worker] * 100)
    assert (gauge.total, gauge.most <= 7) == (500, True)
    assert (limit.under_way, limit.waiting) == (0, 0)


def test_never_more_than_so_many_tasks_are_under_way():
    """semantics 69: a thousand tasks, seven places, all of them used."""
    limit, gauge = Limit("tasks", concurrency=7), Gauge()

    @Guard(limit=limit)
    async def work():
        with gauge:
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(*(work() for _ in range(1000)))

    asyncio.run(main())
    assert (gauge.total, gauge.most) == (1000, 7)
    assert (limit.under_way, limit.waiting) == (0, 0)


def test_threads_and_several_event_loops_share_one_limit():
    """semantics 69: threads, two asyncio loops and a trio run at once, three places."""
    limit, gauge = Limit("mixed", concurrency=3), Gauge()
    guard = Guard(limit=limit)

    def work():
        with gauge:
            os.sched_yield()

    async def awork():
        with gauge:
            await asyncio.sleep(0)

    async def twork():
        with gauge:
            await trio.lowlevel.checkpoint()

    def in_asyncio():
        async def main():
            await asyncio.gather(*(guard.acall(awork) for _ in range(100)))

        asyncio.run(main())

    def in_trio():
        async def main():
            async with trio.open_nursery() as nursery:
                for _ in range(100):
                    nursery.start_soon(guard.acall, twork)

        trio.run(main)

    def in_threads():
        for _ in range(25):
            guard.call(work)

    run_threads(in_asyncio, in_asyncio, in_trio, *[in_threads] * 8)
    assert (gauge.total, gauge.most <= 3) == (500, True)
    assert (limit.under_way, limit.waiting) == (0, 0)


def test_first_come_first_served():
    """semantics 69: tasks get their place in the order in which they asked for it."""
    limit, order = Limit("line", concurrency=1), []

    @Guard(limit=limit)
    async def work(number):
        order.append(number)
        await asyncio.sleep(0)

    async def main():
        await asyncio.gather(*(work(number) for number in range(200)))

    asyncio.run(main())
    assert order == list(range(200))


def test_threads_are_served_in_order_too():
    """semantics 69: one after the other gets into line, and they leave it in that order."""
    limit, order = Limit("line", concurrency=1), []
    assert limit.acquire_nowait()
    threads = []
    for number in range(20):

        def work(number=number):
            with limit:
                order.append(number)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        until(lambda: limit.waiting == len(threads))
    assert not limit.acquire_nowait()
    limit.release()
    for thread in threads:
        thread.join(20)
    assert order == list(range(20))
    assert not limit._line


def test_nobody_overtakes_the_line():
    """semantics 69: a newcomer does not slip in although a place is free for it."""
    limit = Limit("line", rates={"tokens": Rate(1, per=1, burst=10)})
    with virtual_time():
        assert limit.acquire_nowait(tokens=8)
        turn = limit.line_up({"tokens": 5})
        assert not limit.acquire_nowait(tokens=1)
        limit.withdraw(turn)
        assert limit.acquire_nowait(tokens=1)


def test_no_place_is_held_between_attempts():
    """semantics 69: while one call waits for its second attempt another one has the only place."""
    limit, order = Limit("only", concurrency=1), []

    @Guard(retry=STEADY, limit=limit)
    async def work(name, failures):
        order.append((name, limit.under_way))
        if outlast.current().attempt <= failures:
            raise ConnectionResetError
        return name

    async def main():
        return await asyncio.gather(work("first", 1), work("second", 0))

    with virtual_time() as time:
        assert asyncio.run(main()) == ["first", "second"]
    assert order == [("first", 1), ("second", 1), ("first", 1)]
    assert time.sleeps == [1.0]


@table(
    "how", ["success", "failure", "interrupt", "generator", "closed generator", "loop", "broken loop", "unused attempt"]
)
def test_the_place_is_given_back_however_a_call_ends(how):
    """semantics 69: success, failure, BaseException, a generator that is closed, a loop that is left."""
    limit = Limit("all ends", concurrency=1)
    guard = Guard(retry=ONCE, limit=limit)

    def work(error=None):
        assert limit.under_way == 1
        if error is not None:
            raise error

    @guard
    def items():
        yield limit.under_way
        yield limit.under_way

    if how == "success":
        guard.call(work)
    elif how == "failure":
        with pytest.raises(ConnectionResetError):
            guard.call(work, ConnectionResetError())
    elif how == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            guard.call(work, KeyboardInterrupt())
    elif how == "generator":
        assert list(items()) == [1, 1]
    elif how == "closed generator":
        opened = items()
        assert next(opened) == 1
        opened.close()
    elif how == "loop":
        for attempt in guard.attempts():
            with attempt:
                work()
    elif how == "broken loop":
        for attempt in guard.attempts():
            with attempt:
                work()
                break
    else:
        for _ in guard.attempts():
            break
    assert (limit.under_way, limit.waiting) == (0, 0)


@table("run", [asyncio.run, trio.run], ids=["asyncio", "trio"])
@table("how", ["success", "failure", "interrupt", "generator", "closed generator", "broken loop", "unused attempt"])
def test_the_place_is_given_back_in_async_code_too(run, how):
    """semantics 69: the same ends, awaited."""
    limit = Limit("all ends", concurrency=1)
    guard = Guard(retry=ONCE, limit=limit)

    class Exit(BaseException):
        pass

    @guard
    async def work(error=None):
        assert limit.under_way == 1
        if error is not None:
            raise error

    @guard
    async def items():
        yield limit.under_way
        yield limit.under_way

    async def main():
        if how == "success":
            await work()
        elif how == "failure":
            with pytest.raises(ConnectionResetError):
                await work(ConnectionResetError())
        elif how == "interrupt":
            with pytest.raises(Exit):
                await work(Exit())
        elif how == "generator":
            assert [item async for item in items()] == [1, 1]
        elif how == "closed generator":
            opened = items()
            assert await anext(opened) == 1
            await opened.aclose()
        else:
            loop = guard.attempts().__aiter__()
            async for attempt in loop:
                if how == "broken loop":
                    with attempt:
                        break
                break
            del loop
        return limit.under_way, limit.waiting

    assert run(main) if run is trio.run else run(main()) == (0, 0)
    assert limit.under_way == 0


def test_a_rejection_by_the_breaker_gives_everything_back():
    """design, semantics 69: the call was never made, so neither a place nor a share of the rate is used up."""
    limit = Limit("whole", concurrency=1, rates={"calls": Rate(1, per=60)})
    breaker = CircuitBreaker("limit-whole", failure_threshold=1, reset_timeout=5)
    guard = Guard(retry=ONCE, limit=limit, breaker=breaker, on_open="wait", total_timeout=1000)
    with virtual_time() as time:
        breaker.settle(breaker.admit(), failed=True)
        assert guard.call(lambda: time.now) == 5.0
        assert limit.under_way == 0
        assert guard.call(lambda: time.now) == 65.0


def test_an_open_circuit_is_not_worth_standing_in_line():
    """design: with a full limit the call is rejected at once all the same."""
    limit = Limit("full", concurrency=1)
    breaker = CircuitBreaker("limit-full", failure_threshold=1)
    guard = Guard(retry=ONCE, limit=limit, breaker=breaker)
    with virtual_time() as time, limit:
        breaker.settle(breaker.admit(), failed=True)
        with pytest.raises(CircuitBreakerOpenError) as caught:
            guard.call(lambda: None)
    assert outlast.stop_reason(caught.value) == "breaker_open"
    assert time.now == 0.0
    assert limit.waiting == 0


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_calls_in_line_end_at_once_when_the_circuit_opens(kind):
    """design, semantics 69: a thousand calls in line, five places: at most five more reach the service, and no time passes."""
    count = 1000
    limit = Limit("queue", concurrency=5)
    breaker = CircuitBreaker(f"limit-queue-{kind}", failure_threshold=1, reset_timeout=60)
    guard = Guard(retry=ONCE, limit=limit, breaker=breaker)
    calls, ends, gate = [], [], threading.Event()

    def work():
        calls.append(1)
        gate.wait(20)
        raise ConnectionResetError

    async def awork():
        calls.append(1)
        await asyncio.sleep(0)
        raise ConnectionResetError

    def caller():
        ends.append(guard.outcome(work))

    async def main():
        ends.extend(await asyncio.gather(*(guard.aoutcome(awork) for _ in range(count))))

    with virtual_time() as time:
        if kind == "tasks":
            asyncio.run(main())
        else:
            threads = [threading.Thread(target=caller) for _ in range(count)]
            for thread in threads:
                thread.start()
            until(lambda: limit.waiting == count - 5)
            gate.set()
            for thread in threads:
                thread.join(20)
    assert len(calls) <= 10
    assert len(ends) == count
    assert sum(isinstance(end.error, CircuitBreakerOpenError) for end in ends) == count - len(calls)
    assert time.now == 0.0
    assert (limit.under_way, limit.waiting) == (0, 0)


# -- waiters that leave ----------------------------------------------------------------------------------------------------------


def test_a_cancelled_waiter_leaves_the_line():
    """semantics 69: cancelled before and after its place was granted; the next in line gets it."""
    limit = Limit("line", concurrency=1)

    async def hold(order, name):
        async with limit:
            order.append(name)

    async def main():
        order = []
        assert limit.acquire_nowait()
        tasks = [asyncio.create_task(hold(order, name)) for name in "abc"]
        await asyncio.sleep(0)
        assert limit.waiting == 3
        tasks[0].cancel()
        await asyncio.wait([tasks[0]])
        assert limit.waiting == 2
        limit.release()  # granted to b, which is cancelled before it runs
        assert limit.under_way == 1
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [True, True, False]
        return order

    assert asyncio.run(main()) == ["c"]
    assert (limit.under_way, limit.waiting) == (0, 0)


def test_wait_for_takes_a_waiter_out_of_the_line():
    """semantics 69: asyncio.wait_for around a call in line."""
    limit = Limit("line", concurrency=1)
    guard = Guard(limit=limit)

    async def main():
        with limit:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(guard.acall(asyncio.sleep, 0), 0.001)
            return limit.waiting

    assert asyncio.run(main()) == 0
    assert limit.under_way == 0


def test_a_trio_scope_takes_a_waiter_out_of_the_line():
    """semantics 69: cancelled by a trio scope, and the next one is served."""
    limit, order = Limit("line", concurrency=1), []

    async def hold(name):
        async with limit:
            order.append(name)

    async def main():
        assert limit.acquire_nowait()
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as inner:
                    inner.start_soon(hold, "cancelled")
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.start_soon(hold, "next")
                    await trio.testing.wait_all_tasks_blocked()
                    assert limit.waiting == 2
                    scope.cancel()
            assert limit.waiting == 1
            limit.release()

    trio.run(main)
    assert order == ["next"]
    assert (limit.under_way, limit.waiting) == (0, 0)


def test_an_interrupt_takes_a_waiting_thread_out_of_the_line():
    """semantics 69: Ctrl-C while a sync call stands in line."""
    script = """
import os, signal, threading
from outlast import Guard, Limit
limit, seen = Limit("line", concurrency=1), []
assert limit.acquire_nowait()
def handler(*_):
    if not seen:
        seen.append(True)
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, handler)
def interrupt():
    while not limit.waiting or next(iter(limit._line)).ring is None:
        os.sched_yield()
    while not seen:  # one that comes just before the thread blocks is noticed with the next one only
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        os.sched_yield()
threading.Thread(target=interrupt).start()
try:
    Guard(limit=limit).call(print, "never")
except KeyboardInterrupt:
    print(limit.waiting, limit.under_way)
limit.release()
with limit:
    print(limit.under_way)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout == "0 1\n1\n", done.stderr


def test_an_interrupt_at_the_moment_of_the_grant_leaks_no_place(monkeypatch):
    """semantics 69: the wait has come back with the place, and Ctrl-C comes before the call has it."""
    limit = Limit("line", concurrency=1)
    waiting = Limit.wait

    def interrupted(self, turn, seconds):
        assert waiting(self, turn, seconds) == "granted"
        raise KeyboardInterrupt

    monkeypatch.setattr(Limit, "wait", interrupted)
    assert limit.acquire_nowait()
    caught = []

    def work():
        with pytest.raises(KeyboardInterrupt) as interrupt:
            Guard(limit=limit).call(print, "never")
        caught.append(interrupt.type)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: limit.waiting == 1)
    limit.release()
    thread.join(20)
    assert caught == [KeyboardInterrupt]
    assert (limit.under_way, limit.waiting) == (0, 0)


def test_the_head_learns_that_only_time_is_missing():
    """semantics 69, 70: it waited for a place; when that is free and the rate is not, it must watch the clock itself."""
    limit = Limit("both", concurrency=1, rates={"calls": Rate(1, per=10)})
    guard = Guard(retry=ONCE, limit=limit)

    async def work():
        await here.get().clock.asleep(1)
        return here.get().clock.monotonic()

    async def main():
        began = here.get().clock.monotonic()
        return [end - began for end in await asyncio.gather(*(guard.acall(work) for _ in range(3)))]

    with virtual_time():
        assert asyncio.run(main()) == [1.0, 11.0, 21.0]


def test_a_gate_does_not_forget_who_waited_for_a_place():
    """semantics 69, D-11: the only call under way is told to come back in five seconds, and the one in line waits just as long."""
    limit, ends = Limit("gated", concurrency=1), []
    answers = iter([TooMany(5), None, None])

    @Guard(retry=STEADY, limit=limit)
    async def work(name):
        await asyncio.sleep(0)
        answer = next(answers)
        if answer is not None:
            raise answer
        ends.append((name, time.now))

    async def main():
        await asyncio.wait_for(asyncio.gather(work("first"), work("second")), 20)

    with virtual_time() as time:
        asyncio.run(main())
    assert ends == [("second", 5.0), ("first", pytest.approx(5.0, abs=1.5))]


def test_many_waiters_of_a_dead_event_loop_are_passed_over():
    """semantics 69: a loop that was closed with two thousand tasks in line does not keep the place."""
    limit = Limit("dead", concurrency=1)
    assert limit.acquire_nowait()
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(limit.__aenter__()) for _ in range(2000)]
    loop.run_until_complete(asyncio.sleep(0))
    assert limit.waiting == 2000
    for task in tasks:
        task._log_destroy_pending = False
    loop.close()
    limit.release()
    assert (limit.under_way, limit.waiting) == (0, 0)
    del tasks, task
    gc.collect()
    assert (limit.under_way, limit.waiting) == (0, 0)


def test_garbage_may_be_collected_in_the_middle_of_everything(monkeypatch):
    """semantics 69: a forgotten waiter and a forgotten stream are ended by the collector while the same thread holds the lock."""
    limit, looking = Limit("garbage", concurrency=2), Limit._hold

    class Knot:
        pass

    @Guard(limit=limit)
    def items():
        yield 1

    def forget():
        loop, knot = asyncio.new_event_loop(), Knot()
        knot.stream, knot.me = items(), knot
        next(knot.stream)
        limit._forced()
        for _ in range(3):
            loop.create_task(limit.__aenter__())._log_destroy_pending = False
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    def collecting(self, cost, now):
        gc.collect()
        return looking(self, cost, now)

    gc.disable()
    try:
        forget()
        assert (limit.under_way, limit.waiting) == (2, 3)
        monkeypatch.setattr(Limit, "_hold", collecting)
        limit.release()
        assert (limit.under_way, limit.waiting) == (0, 0)
    finally:
        gc.enable()
    with limit:
        assert limit.under_way == 1


def test_threads_and_loops_that_give_up_at_random_leave_nothing_behind():
    """semantics 69: impatient threads, cancelled tasks and trio scopes at one limit; in the end it is empty and works."""
    limit, gauge = Limit("wild", concurrency=3), Gauge()
    guard = Guard(retry=ONCE, limit=limit)

    def work():
        with gauge:
            os.sched_yield()

    def in_threads():
        impatient = Guard(retry=ONCE, limit=limit, total_timeout=0.002)
        for number in range(60):
            (impatient if number % 2 else guard).outcome(work)

    async def awork():
        with gauge:
            await asyncio.sleep(0)

    async def twork():
        with gauge:
            await trio.lowlevel.checkpoint()

    def in_asyncio():
        async def main():
            rolls = random.Random(3)
            tasks = [asyncio.create_task(guard.acall(awork)) for _ in range(200)]
            for task in rolls.sample(tasks, 100):
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait(tasks)

        asyncio.run(main())

    def in_trio():
        async def impatient():
            with trio.move_on_after(0.002):
                await guard.acall(twork)

        async def main():
            async with trio.open_nursery() as nursery:
                for _ in range(100):
                    nursery.start_soon(impatient)

        trio.run(main)

    run_threads(in_asyncio, in_asyncio, in_trio, *[in_threads] * 6)
    assert gauge.most <= 3
    assert (limit.under_way, limit.waiting) == (0, 0)
    assert [limit.acquire_nowait() for _ in range(4)] == [True, True, True, False]


@settings(max_examples=60)
@given(data=st.data())
def test_any_order_of_arrivals_and_cancellations_leaves_nothing_behind(data):
    """semantics 69, 70: tasks arrive, work, fail and are cancelled at random; in the end all is free and no rate was overcharged."""
    seed = data.draw(st.integers(0, 2**32))
    rolls = random.Random(seed)
    concurrency = rolls.randint(1, 4)
    limit = Limit(
        "any", concurrency=concurrency, rates={"calls": Rate(10, per=1, burst=3)}, max_wait=rolls.choice([None, 2.0])
    )
    guard = Guard(retry=STEADY, limit=limit)
    gauge = Gauge()

    async def work():
        with gauge:
            await here.get().clock.asleep(rolls.random() / 2)
            if rolls.random() < 0.3:
                raise ConnectionResetError

    async def main():
        tasks = []
        for _ in range(rolls.randint(1, 30)):
            tasks.append(asyncio.create_task(guard.aoutcome(work)))
            if rolls.random() < 0.5:
                await here.get().clock.asleep(rolls.random() / 5)
            if rolls.random() < 0.3:
                rolls.choice(tasks).cancel()
        await asyncio.wait(tasks)

    with virtual_time(seed=seed):
        asyncio.run(main())
        assert gauge.most <= concurrency
        assert (limit.under_way, limit.waiting) == (0, 0)
        here.get().clock.time.advance(1)
        assert [limit.acquire_nowait() for _ in range(concurrency + 1)] == [
            n < min(3, concurrency) for n in range(concurrency + 1)
        ]


class Line(RuleBasedStateMachine):
    """The limit beside a model of it: a list of who waits, a count of who is inside, a bucket."""

    def __init__(self) -> None:
        super().__init__()
        self._scope = virtual_time()
        self.time = self._scope.__enter__()
        self.limit = Limit("model", concurrency=2, rates={"calls": Rate(1, per=1, burst=2)})
        self.level, self.inside, self.line = 2.0, [], []

    def teardown(self):
        self._scope.__exit__(None, None, None)

    def settle(self):
        while self.line and len(self.inside) < 2 and self.level >= 1:
            self.inside.append(self.line.pop(0))
            self.level -= 1

    @rule()
    def ask(self):
        free = not self.line and len(self.inside) < 2 and self.level >= 1
        entry = self.limit.take()
        assert (entry >= 0) == free
        if free:
            self.level -= 1
            self.inside.append(None)

    @rule()
    def stand_in_line(self):
        turn = self.limit.line_up()
        self.line.append(turn)
        self.settle()
        self.limit._look(turn, float("inf"))

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def give_up(self, data):
        turn = data.draw(st.sampled_from(self.line))
        self.line.remove(turn)
        self.limit.withdraw(turn)
        self.settle()

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), undone=st.booleans())
    def leave(self, data, undone):
        turn = self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1)))
        self.limit.leave(0 if turn is None else turn.entry, undone=undone)
        if undone:
            self.level = min(2.0, self.level + 1)
        self.settle()

    @precondition(lambda self: any(self.inside))
    @rule(data=st.data())
    def give_up_what_was_granted(self, data):
        turn = data.draw(st.sampled_from([turn for turn in self.inside if turn is not None]))
        self.inside.remove(turn)
        self.limit.withdraw(turn)
        self.level = min(2.0, self.level + 1)
        self.settle()

    @rule(ticks=st.integers(1, 8))
    def time_passes(self, ticks):
        self.time.advance(ticks / 4)
        self.level = min(2.0, self.level + ticks / 4)
        self.settle()
        if self.limit._line:
            self.limit._look(next(iter(self.limit._line)), float("inf"))

    @invariant()
    def model_and_limit_agree(self):
        assert self.limit.under_way == len(self.inside)
        assert list(self.limit._line) == self.line
        assert all(turn.entry >= 0 for turn in self.inside if turn is not None)
        assert all(turn.entry < 0 for turn in self.line)


def test_the_line_is_as_its_model():
    """Whoever comes, waits, gives up and leaves: places, rates and turns are those of the model."""
    run_state_machine_as_test(Line, settings=settings(max_examples=60, stateful_step_count=40))


# -- how much over time ----------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    amount=st.integers(1, 50),
    per=st.sampled_from([1, 7, 60]),
    burst=st.sampled_from([None, 1, 3, 20]),
    arrivals=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), min_size=1, max_size=40),
)
def test_no_window_holds_more_than_its_share(amount, per, burst, arrivals):
    """D-12, semantics 70: over any window w at most rate · w plus the burst or the largest single cost; and each waits no longer than for that."""
    bucket, speed, full = _Bucket(Rate(amount, per=per, burst=burst)), amount / per, burst or 1
    now, taken = 1000.0, []
    level, at = full, now  # what is there, by hand
    for pause, cost in arrivals:
        now += pause / 8
        level, at, came = min(full, level + (now - at) * speed), now, now
        for _ in range(3):  # rounding may leave a rest to wait for
            now += bucket.wait(cost, now)
        assert bucket.wait(cost, now) == 0
        assert now - came == pytest.approx(max(0.0, min(cost, full) - level) / speed, abs=1e-6)
        level, at = min(full, level + (now - at) * speed) - cost, now
        bucket.give(-cost)
        taken.append((now, cost))
    most = max(burst or 1, *(cost for _, cost in arrivals))
    for first, (begin, _) in enumerate(taken):
        total = 0
        for end, cost in taken[first:]:
            total += cost
            assert total <= amount / per * (end - begin) + most + 1e-6


def test_a_clock_read_late_does_not_fill_a_bucket_twice():
    """D-12, semantics 70: eight threads ask as fast as they can, and no window holds more than its share."""
    limit, taken, lock = Limit("threads", rates={"calls": Rate(2000, per=1)}), [], threading.Lock()
    clock = here.get().clock

    def worker():
        for _ in range(50):
            with limit, lock:
                taken.append(clock.monotonic())

    run_threads(*[worker] * 8)
    assert taken[-1] - taken[0] >= (len(taken) - 1 - 1) / 2000 - 0.002


@table(
    ("costs", "bursts"),
    [((50, 100, 200), (None, None)), ((500, 900, 1300), (None, None)), ((50, 300, 900), (20, 5000))],
    ids=["calls are tight", "tokens are tight", "both, with bursts"],
)
def test_two_rates_are_both_held_and_used(costs, bursts):
    """D-12, semantics 70: with work waiting the tighter rate is used to at least 90 %, and neither is exceeded."""
    rates = {"calls": Rate(500, per=60, burst=bursts[0]), "tokens": Rate(200_000, per=60, burst=bursts[1])}
    limit, rolls, began = Limit("llm", rates=rates), random.Random(7), []

    @Guard(retry=ONCE, limit=limit, cost=lambda tokens: {"tokens": tokens})
    async def ask(tokens):
        began.append((here.get().clock.monotonic(), tokens))
        outlast.current().spend(tokens=tokens)

    async def main():
        await asyncio.gather(*(ask(rolls.choice(costs)) for _ in range(1000)))

    with virtual_time() as time:
        asyncio.run(main())
        span = time.now
    used = sum(tokens for _, tokens in began) / 200_000 * 60
    assert len(began) == 1000
    assert max(1000 / 500 * 60, used) / span >= 0.9
    calls = [(instant, 1) for instant, _ in began]
    for rate, amounts, most in ((500, calls, bursts[0] or 1), (200_000, began, bursts[1] or max(costs))):
        for first in range(0, 1000, 50):
            total, begin = 0, began[first][0]
            for instant, amount in amounts[first:]:
                total += amount
                assert total <= rate / 60 * (instant - begin) + most + 1e-3


def starts(rates, costs, **options) -> list[float]:
    """When calls of these costs start, one after another and all asked for at once."""
    limit, found = Limit("starts", rates=rates, **options), []

    @Guard(retry=ONCE, limit=limit, cost=lambda cost: cost)
    def work(_):
        found.append(time.now)

    with virtual_time() as time:
        for cost in costs:
            work(cost)
    return found


def test_the_burst_is_one_unless_it_is_given():
    """D-12: evenly spaced from the first on; a burst goes at once."""
    assert starts({"calls": Rate(2, per=1)}, [{}] * 4) == [0.0, 0.5, 1.0, 1.5]
    assert starts({"calls": Rate(2, per=1, burst=3)}, [{}] * 5) == [0.0, 0.0, 0.0, 0.5, 1.0]


def test_what_costs_more_than_the_burst_passes_and_is_paid_for_afterwards():
    """D-12: it waits for a full bucket and leaves a debt."""
    tokens = {"tokens": Rate(10, per=1, burst=20)}
    assert starts(tokens, [{"tokens": 50}, {"tokens": 10}, {"tokens": 50}]) == [0.0, 4.0, 6.0]


@table(
    ("said", "words"),
    [
        ({"tokns": 4}, "amounts of the limit's rates, got: 'tokns'. Did you mean 'tokens'?"),
        ({"usd": 4, "tokens": 1}, "amounts of the limit's rates, got: 'usd'. Known: tokens."),
        ({1: 4}, "amounts of the limit's rates, got: 1. Known: tokens."),
        (7, """a mapping such as {"tokens": 800}, got: 7."""),
        (None, """a mapping such as {"tokens": 800}, got: None."""),
    ],
)
def test_what_is_no_amount_of_a_rate_is_refused_at_that_call(said, words):
    """D-26: a misspelt rate would turn the limit off; the call is not made, and the next one finds everything in its place."""
    limit = Limit("refused", concurrency=1, rates={"tokens": Rate(10, per=1)})
    guard = Guard(retry=STEADY, limit=limit, cost=lambda cost: cost, fallback=lambda _: "not asked")
    with virtual_time():
        for door in (guard.call, lambda fn, cost: guard(fn)(cost), lambda fn, cost: asyncio.run(guard.acall(fn, cost))):
            with pytest.raises(ConfigurationError) as caught:
                door(lambda _: pytest.fail("called"), said)
            assert str(caught.value).endswith(f"returns to be {words}")
            assert (limit.under_way, limit.waiting, limit.taken) == (0, 0, {"tokens": 0.0})
            assert outlast.current().attempt == outlast.current().max_attempts == 1
    assert guard.call(lambda _: "called", {"tokens": 1}) == "called"


def spending(estimate, *spends, fails=False) -> float:
    """When a second call of 10 tokens starts, after one with this estimate that spent so much; ten tokens come each second."""
    limit = Limit("spending", rates={"tokens": Rate(10, per=1, burst=100)})
    guard = Guard(retry=ONCE, limit=limit, cost=lambda cost: {"tokens": cost})

    def work(_):
        for amount in spends:
            outlast.current().spend(tokens=amount, usd=1)
        if fails:
            raise ConnectionResetError

    with virtual_time() as time:
        with contextlib.suppress(ConnectionResetError):
            guard.call(work, estimate)
        return guard.call(lambda _: time.now, 10)


def test_what_was_spent_settles_the_estimate():
    """D-12: less gives back, more is owed, several add up, nothing said or a failure keeps the estimate."""
    assert spending(100, 40) == 0.0
    assert spending(100) == 1.0
    assert spending(50, 200) == 11.0
    assert spending(50, 60, 80, 60) == 11.0
    assert spending(100, fails=True) == 1.0
    assert spending(100, 40, fails=True) == 0.0
    assert spending(0, 150) == 6.0


def test_spending_in_an_isolated_thread_counts():
    """D-12, semantics 39: the thread has the caller's context."""
    limit = Limit("thread", rates={"tokens": Rate(10, per=1, burst=100)})
    guard = Guard(retry=ONCE, limit=limit, isolation="thread", timeout=60, cost=lambda: {"tokens": 100})
    with virtual_time() as time:
        outcome = guard.outcome(lambda: outlast.current().spend(tokens=30))
        guard.call(lambda: None)
        assert time.now == 3.0
    assert outcome.attempts[0].spent == {"tokens": 30.0}


def test_records_keep_what_was_said():
    """D-12: spending and warnings land in the record of their attempt, and nothing changes them afterwards."""
    kept = []

    def work():
        here_now = outlast.current()
        kept.append(here_now)
        here_now.spend(tokens=here_now.attempt, usd=0.5)
        here_now.warn(f"attempt {here_now.attempt}")
        if here_now.attempt == 1:
            raise ConnectionResetError

    with virtual_time():
        outcome = Guard(retry=STEADY, total_timeout=60).outcome(work)
    kept[0].spend(tokens=100)
    assert [(a.spent, a.warnings) for a in outcome.attempts] == [
        ({"tokens": 1.0, "usd": 0.5}, ("attempt 1",)),
        ({"tokens": 2.0, "usd": 0.5}, ("attempt 2",)),
    ]
    outlast.current().spend(tokens=3)  # outside of any call: nobody counts


@pytest.mark.parametrize("kind", ["threads", "asyncio", "trio"])
def test_virtual_time_holds_rates_for_everybody(kind):
    """D-12, semantics 77: ten who ask at once are served one a second, and that takes no real second."""
    limit, began = Limit("virtual", rates={"calls": Rate(1, per=1)}), []

    def thread():
        with limit:
            began.append(time.now)

    async def task():
        async with limit:
            began.append(time.now)

    async def in_asyncio():
        await asyncio.gather(*(task() for _ in range(10)))

    async def in_trio():
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(task)

    with virtual_time() as time:
        if kind == "threads":
            run_threads(*[thread] * 10)
        elif kind == "asyncio":
            asyncio.run(in_asyncio())
        else:
            trio.run(in_trio)
    assert began == pytest.approx(range(10))


@table("amount", [-1, float("nan"), float("inf"), True, "3", None])
def test_only_amounts_can_be_spent(amount):
    """D-12: a finite number of at least 0."""
    with pytest.raises(ValueError, match="expected tokens to be a finite number of at least 0"):
        outlast.current().spend(tokens=amount)


@table(
    ("cost", "kind"),
    [
        (lambda: 1 / 0, ZeroDivisionError),
        (lambda: {"calls": -1}, ValueError),
        (lambda: {"calls": float("nan")}, ValueError),
        (lambda: {"calls": "3"}, ValueError),
    ],
)
@table("around", [{}, {"fallback": lambda: "stale"}, {"total_timeout": 60}])
def test_an_estimate_that_fails_is_the_end_of_that_call(cost, kind, around):
    """D-26: nobody knows what it would cost, so it is not made, not tried again, not answered by a fallback; its place is free."""
    limit = Limit("broken", concurrency=1, rates={"calls": Rate(1, per=1)})
    guard = Guard(retry=STEADY, limit=limit, cost=cost, **around)

    async def never():
        pytest.fail("called")

    with virtual_time() as time:
        for door in (
            lambda: guard.call(lambda: pytest.fail("called")),
            guard(lambda: pytest.fail("called")),
            lambda: asyncio.run(guard.acall(never)),
            lambda: asyncio.run(guard(never)()),
        ):
            with pytest.raises(kind):
                door()
            assert (limit.under_way, limit.waiting, limit.taken, time.now) == (0, 0, {"calls": 0.0}, 0.0)
            assert outlast.current().remaining() is None


SHAPES = {
    "the same": (lambda prompt, size: {}, True),
    "only the first": (lambda prompt: {}, False),
    "none": (lambda: {"tokens": 1}, False),
    "one more": (lambda prompt, size, model: {}, False),
    "in another order": (lambda size, prompt: {}, False),
    "any": (lambda *args, **kwargs: {}, True),
    "first, then any name": (lambda prompt, **_: {}, False),
    "first, then any": (lambda prompt, *_: {}, True),
    "other names": (lambda one, other: {}, True),
    "a default more": (lambda prompt, size, model="x": {}, True),
    "a needed name": (lambda prompt, size, *, model: {}, False),
}


@table(("cost", "fits"), SHAPES.values(), ids=list(SHAPES))
def test_a_cost_that_cannot_take_the_arguments_is_refused_at_decoration(cost, fits):
    """D-26: where it is written, in every way to write it, and not by a limit that is off for the whole night."""

    def ask(prompt, size):
        return prompt, size

    async def aask(prompt, size):
        return prompt, size

    guard = Guard(limit=Limit("shape", rates={"tokens": Rate(1, per=1)}), cost=cost)
    if fits:
        assert guard(ask)("a", size=1) == guard.call(ask, "a", 1) == asyncio.run(guard(aask)("a", 1)) == ("a", 1)
        return
    for write in (
        lambda: guard(ask),
        lambda: guard(aask),
        lambda: guard.call(ask, "a", 1),
        lambda: guard.outcome(ask, "a", 1),
        lambda: asyncio.run(guard.acall(aask, "a", 1)),
        lambda: asyncio.run(guard.aoutcome(aask, "a", 1)),
    ):
        with pytest.raises(
            ConfigurationError, match=r"expected cost to take the arguments of .*ask\(prompt, size\), got:"
        ):
            write()


def test_a_cost_gets_only_what_it_takes():
    """D-26: what a call may leave out, a cost need not take."""
    seen = []
    guard = Guard(
        limit=Limit("only", rates={"tokens": Rate(1000, per=1, burst=1000)}),
        cost=lambda prompt: seen.append(prompt) or {},
    )
    ask = guard(lambda prompt, model="small", *more, **options: (prompt, model, more, options))
    assert ask("a", "large", 3, top=1) == ("a", "large", (3,), {"top": 1})
    assert ask("b") == ("b", "small", (), {})
    assert seen == ["a", "b"]


def test_a_cost_without_rates_is_refused():
    """D-26: it would have no effect."""
    with pytest.raises(ConfigurationError, match="expected cost to be None without rates in the limit"):
        Guard(limit=Limit("none", concurrency=1), cost=dict)
    with pytest.raises(ConfigurationError, match="expected cost to be None without a limit"):
        Guard(cost=dict)


# -- waiting no longer ------------------------------------------------------------------------------------------------------------


def outcome_in(kind, guard, work):
    """The outcome of one call in the sync, the asyncio or the trio way."""
    if kind == "sync":
        return guard.outcome(work)

    async def awork():
        return work()

    async def main():
        return await guard.aoutcome(awork)

    return asyncio.run(main()) if kind == "asyncio" else trio.run(main)


KINDS = pytest.mark.parametrize("kind", ["sync", "asyncio", "trio"])


@KINDS
def test_max_wait_ends_the_wait(kind):
    """semantics 70: LimitExceededError, reason throttled, one event, nothing called; and the line is empty again."""
    limit = Limit("late", concurrency=1, max_wait=3)
    guard = Guard("shop", retry=STEADY, limit=limit)
    with virtual_time() as time, limit, capture_events() as events:
        outcome = outcome_in(kind, guard, lambda: pytest.fail("called"))
        assert time.now == 3.0
    error = outcome.error
    assert isinstance(error, LimitExceededError)
    assert str(error) == "limit 'late': no place within 3 s, 1 under way and 0 waiting; nothing was called"
    assert error.__notes__ == ["outlast shop: nothing was called: no place at the limit within its max_wait."]
    assert (error.name, error.retry_after) == ("late", None)
    assert (outcome.reason, outcome.attempts) == ("throttled", ())
    assert told(events)[:1] == [("limit_exceeded", {"limit": "late", "under_way": 1, "waiting": 0})]
    assert [(event.name, event.step_id, event.by, event.which) for event in events[1:]] == [
        ("call_rejected", "shop", "limit", "late")
    ]
    assert (limit.under_way, limit.waiting) == (0, 0)


@KINDS
def test_the_total_timeout_counts_in_line(kind):
    """semantics 70: TotalTimeoutError, reason total_timeout, and nothing was called."""
    limit = Limit("late", concurrency=1, max_wait=30)
    guard = Guard("shop", retry=STEADY, limit=limit, total_timeout=2)
    with virtual_time(), limit, capture_events() as events:
        outcome = outcome_in(kind, guard, lambda: pytest.fail("called"))
    assert isinstance(outcome.error, TotalTimeoutError)
    assert str(outcome.error) == "the total timeout ran out in the line of the limit 'late': nothing was called"
    assert outcome.error.__notes__ == [
        "outlast shop: nothing was called: the total timeout ran out in the line of the limit."
    ]
    assert (outcome.reason, outcome.attempts, events) == ("total_timeout", (), [])
    assert limit.waiting == 0


@KINDS
def test_it_is_the_limit_that_was_late_when_time_is_left(kind):
    """semantics 70: max_wait ran out although the total timeout would have lasted, if not for another wait as long."""
    limit = Limit("late", concurrency=1, max_wait=5)
    guard = Guard("shop", retry=STEADY, limit=limit, total_timeout=8)
    with virtual_time(), limit:
        outcome = outcome_in(kind, guard, lambda: pytest.fail("called"))
    assert isinstance(outcome.error, LimitExceededError)
    assert outcome.reason == "throttled"


def test_a_wait_that_cannot_be_in_time_is_not_begun():
    """semantics 70: the rate needs ten seconds, the call has three."""
    limit = Limit("slow", rates={"calls": Rate(1, per=10)}, max_wait=3)
    guard = Guard(retry=ONCE, limit=limit)
    with virtual_time() as time:
        guard.call(lambda: None)
        with pytest.raises(LimitExceededError) as caught:
            guard.call(lambda: None)
        assert time.now == 0.0
        assert caught.value.retry_after == 10.0


def test_a_retry_without_a_place_ends_with_the_last_error():
    """semantics 70: reason throttled, with the events of the failure, of the line and of the end."""
    limit = Limit("late", concurrency=1, max_wait=3)
    error = ConnectionResetError("mine")

    def work():
        limit._forced()  # somebody else takes the place while this call waits for its second attempt
        raise error

    with virtual_time() as time, capture_events() as events:
        outcome = Guard("shop", retry=STEADY, limit=limit).outcome(work)
    assert outcome.error is error
    assert outcome.reason == "throttled"
    assert error.__notes__ == ["outlast shop: gave up after 1 attempt: no place at the limit within its max_wait."]
    assert [event.name for event in events] == ["step_retry_attempt", "limit_exceeded", "step_retry_exhausted"]
    assert events[-1].reason == "throttled"
    assert time.now == 4.0


@KINDS
def test_stopping_ends_the_wait_in_line(kind):
    """semantics 70: asked to stop, a call in line ends at once."""
    limit, stop = Limit("stopping", concurrency=1), Stop()
    guard = Guard("shop", retry=STEADY, limit=limit)
    with virtual_time() as time, limit, stop:
        waiter = threading.Thread(target=lambda: (until(lambda: limit.waiting == 1), stop.set()))
        waiter.start()
        outcome = outcome_in(kind, guard, lambda: pytest.fail("called"))
        waiter.join(20)
    assert isinstance(outcome.error, LimitExceededError)
    assert "asked to stop" in str(outcome.error)
    assert outcome.error.__notes__ == ["outlast shop: nothing was called: asked to stop."]
    assert outcome.reason == "shutdown"
    assert time.now == 0.0
    assert limit.waiting == 0


def test_after_stopping_nobody_takes_a_place():
    """semantics 70: granted in the moment of the stop, it is given back."""
    limit, stop = Limit("stopping", concurrency=1), Stop()
    assert limit.acquire_nowait()
    turn = limit.line_up()
    limit.release()
    stop.set()
    with stop:
        assert limit.wait(turn, None) == "stopped"
    assert (limit.under_way, limit.waiting) == (0, 0)


def test_a_signal_handler_can_stop_tasks_in_line():
    """semantics 70: the loop sleeps in its selector when the signal comes."""
    script = """
import asyncio, os, signal, threading
from outlast import Guard, Limit, Stop
limit, stop = Limit("line", concurrency=1), Stop()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
def ask():
    while not limit.waiting:
        os.sched_yield()
    while not stop.is_set():  # one that comes just before the loop blocks is noticed with the next one only
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
        os.sched_yield()
async def main():
    with limit, stop:
        threading.Thread(target=ask).start()
        return await Guard(limit=limit).aoutcome(asyncio.sleep, 0)
print(asyncio.run(main()).reason)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout == "shutdown\n", done.stderr


def test_a_storm_of_signals_does_not_stop_a_waiting_thread_for_good():
    """semantics 70: handlers ring while the interrupted thread is anywhere in its wait, and the place is found at last."""
    script = """
import os, signal, threading
from outlast import Limit
limit = Limit("line", concurrency=1)
rung = []
def ring(*_):
    rung.append(1)
    for turn in limit._line.copy():
        if turn.ring is not None:
            turn.ring()
signal.signal(signal.SIGUSR1, ring)
assert limit.acquire_nowait()
def storm():
    while not limit.waiting:
        os.sched_yield()
    while len(rung) < 500:  # one that comes just before the thread blocks is noticed with the next one only
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        os.sched_yield()
    limit.release()
threading.Thread(target=storm).start()
with limit:
    print(limit.under_way, len(rung) >= 500)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout == "1 True\n", done.stderr


def test_an_outer_deadline_bounds_an_inner_line():
    """semantics 70: nested deadlines take the minimum, in line too."""
    limit = Limit("inner", concurrency=1)
    inner, outer = Guard("inner", retry=STEADY, limit=limit), Guard("outer", retry=ONCE, total_timeout=4)
    with virtual_time() as time, limit, pytest.raises(TotalTimeoutError):
        outer.call(lambda: inner.call(lambda: pytest.fail("called")))
    assert time.now == 4.0


# -- by itself ----------------------------------------------------------------------------------------------------------------------


def test_with_blocks_share_the_limit_with_guards():
    """semantics 69, 70: blocks, acquire_nowait and guards count together."""
    limit = Limit("shared", concurrency=2, max_wait=0)
    with limit:
        assert limit.acquire_nowait()
        with pytest.raises(LimitExceededError), limit:
            pytest.fail("entered")
        assert Guard(limit=limit).outcome(lambda: None).reason == "throttled"
        limit.release()
        assert Guard(limit=limit).call(lambda: limit.under_way) == 2
    assert limit.under_way == 0


def test_releasing_what_nobody_took_is_an_error():
    """semantics 69: it would make room for one too many."""
    limit = Limit("none", concurrency=1)
    with pytest.raises(RuntimeError, match="limit 'none': release without a place that was taken"):
        limit.release()


def test_acquire_nowait_takes_its_cost():
    """semantics 70: of rates that exist; another name is a mistake."""
    limit = Limit("now", rates={"tokens": Rate(10, per=1, burst=10)})
    with virtual_time() as time:
        assert limit.acquire_nowait(tokens=8)
        assert not limit.acquire_nowait(tokens=8)
        time.advance(1)
        assert limit.acquire_nowait(tokens=8)
    with pytest.raises(ConfigurationError, match=r"'token'.*'tokens'"):
        limit.acquire_nowait(token=1)


def test_it_shows_what_is_under_way():
    """D-11: a repr for people."""
    limit = Limit("openai", concurrency=4)
    with limit:
        assert repr(limit) == "<Limit 'openai' 1 of 4 under way, 0 waiting>"
    assert repr(Limit("free")) == "<Limit 'free' 0 of any number under way, 0 waiting>"
    assert (limit.width, Limit("free").width) == (4, None)


def test_copies_share_the_limit():
    """D-11: a copy of a guard stands in the same line; a pickle finds the limit of its name."""
    limit = Limit("copied", concurrency=4, rates={"calls": Rate(3, per=1)}, max_wait=2, adaptive=False)
    assert copy.copy(limit) is limit
    assert copy.deepcopy([limit])[0] is limit
    assert pickle.loads(pickle.dumps(limit)) is limit


def test_a_limit_travels_to_a_process_that_has_none():
    """D-11: there it is made with the same settings, once."""
    limit = Limit("travels", concurrency=4, rates={"calls": Rate(3, per=1, burst=2)}, max_wait=2, adaptive=False)
    script = """
import pickle, sys
one, two = (pickle.loads(bytes.fromhex(sys.argv[1])) for _ in "12")
print(one is two, one.name, one.concurrency, dict(one.rates), one.max_wait, one.adaptive)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, pickle.dumps(limit).hex()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"True travels 4 {{'calls': {Rate(3, per=1, burst=2)!r}}} 2.0 False\n", done.stderr


def test_a_rate_is_a_value():
    """D-12: equal, hashable, picklable, with fields that can be replaced and are checked again."""
    rate = Rate(500, per=60)
    assert rate == Rate(500.0, per=60.0, burst=1)
    assert len({rate, Rate(500, per=60), rate.replace(burst=5)}) == 2
    assert pickle.loads(pickle.dumps(rate)) == copy.deepcopy(rate) == rate
    assert repr(rate) == "Rate(amount=500.0, burst=1.0, per=60.0)"
    with pytest.raises(ConfigurationError, match="per"):
        rate.replace(per=0)


def test_a_forked_child_has_a_limit_of_its_own():
    """semantics 65: locks are free, nothing is under way, and a place that the parent took is not given back in the child."""
    script = """
import os, signal, threading
from outlast import Limit
limit = Limit("forked", concurrency=2)
def child():
    signal.alarm(10)
    assert (limit.under_way, limit.waiting) == (0, 0)
    assert [limit.acquire_nowait() for _ in range(3)] == [True, True, False]
with limit:
    limit.acquire_nowait()
    turn = limit.line_up()
    with limit._lock:
        pid = os.fork()
    if pid == 0:
        child()
if pid == 0:
    os._exit(0 if limit.under_way == 2 else 3)
limit.withdraw(turn)
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status), limit.under_way)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout == "0 1\n", done.stderr


@pytest.mark.parametrize("end", ["returns", "decorated", "raises", "in line", "block"])
def test_a_call_that_began_before_a_fork_gives_nothing_back_in_the_child(end):
    """semantics 65: it holds a place of its parent. However it ends in the child, the child has as many as before."""
    script = f"""
import contextlib, os, signal
from outlast import Guard, Limit
limit = Limit("forked", concurrency=1)
def work():
    pid = os.fork()
    if {end!r} == "raises":
        error = KeyError(pid)
        raise error
    return pid
if {end!r} == "decorated":
    pid = Guard(limit=limit, retry=None)(work)()
elif {end!r} in ("returns", "raises"):
    try:
        pid = Guard(limit=limit, retry=None).call(work)
    except KeyError as error:
        pid = error.args[0]
elif {end!r} == "block":
    with limit:
        pid = work()
else:
    turn = limit.line_up()
    assert limit.wait(turn, 0) == "granted"
    pid = work()
    limit.withdraw(turn)
if pid == 0:
    signal.alarm(10)
    os._exit(0 if (limit.acquire_nowait(), limit.acquire_nowait()) == (True, False) else 3)
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status), limit.under_way)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout == "0 0\n", done.stderr


def test_a_waiter_that_comes_while_a_place_is_given_back_gets_it():
    """The fast way back takes no lock: whoever lines up between its look and its place has seen none, and nothing else would wake it."""
    limit, turns, rung = Limit("line", concurrency=1), [], []

    class Places(deque):
        def append(self, place):
            turns.append(limit.line_up())
            assert limit._look(turns[0], inf)[0] == inf
            turns[0].ring = lambda: rung.append(turns[0])
            super().append(place)

    entry = limit.take()
    limit._free = Places(limit._free)
    limit.done(entry)
    assert (rung, turns[0].entry >= 0, limit.under_way, limit.waiting) == (turns, True, 1, 0)


def test_limits_do_nothing_when_protection_is_off():
    """D-11: guards pass by, blocks enter a full limit, and a 429 tells nothing."""
    limit = Limit("off", concurrency=1)
    with limit, disabled():
        assert Guard(limit=limit).call(lambda: limit.under_way) == 1
        assert limit.acquire_nowait()
        limit.release()
        with pytest.raises(TooMany), limit:
            assert limit.under_way == 2
            raise TooMany(60)
    assert limit.under_way == 0
    assert limit._gate == float("-inf")


@table(
    ("options", "said"),
    [
        ({"concurrency": 0}, r"concurrency.*at least 1"),
        ({"concurrency": 2.5}, r"concurrency"),
        ({"concurrency": True}, r"concurrency"),
        ({"rates": [Rate(1, per=1)]}, r"rates.*mapping"),
        ({"rates": {"calls per minute": Rate(1, per=60)}}, r"rates.*mapping"),
        ({"rates": {"calls": 5}}, r"rates\['calls'\].*a Rate.*outlast\.Rate\(500, per=60\)"),
        ({"max_wait": -1}, r"max_wait.*at least 0"),
        ({"adaptive": "yes"}, r"adaptive"),
        ({"adaptive": False}, r"concurrency.*limit nothing"),
        ({"concurrency": 1, "shared": "yes"}, r"shared.*true, false"),
        ({"concurency": 1}, r"'concurency'.*'concurrency'"),
    ],
)
def test_a_wrong_setting_is_named(options, said):
    """D-11, D-12: field, what was expected, what came."""
    with pytest.raises(ConfigurationError, match=said):
        Limit("shop", **options)


@table(
    ("make", "said"),
    [
        (lambda: Rate(0, per=1), r"amount.*greater than 0"),
        (lambda: Rate(1, per=0), r"per.*greater than 0"),
        (lambda: Rate(1, per=1, burst=0), r"burst.*greater than 0"),
        (lambda: Rate(1, per="minute"), r"per"),
        (lambda: Rate(1, per=1, bursts=3), r"'bursts'.*'burst'"),
        (lambda: Limit(""), r"name"),
        (lambda: Guard(limit=5), r"limit.*Limit"),
        (lambda: Guard(cost=dict), r"cost.*without a limit"),
        (lambda: Guard(limit=Limit("x"), cost=5), r"cost"),
    ],
)
def test_wrong_rates_and_guards_are_named(make, said):
    """D-12: the same for rates and for guards with limits."""
    with pytest.raises(ConfigurationError, match=said):
        make()


# -- heeding the service ------------------------------------------------------------------------------------------------------------


def test_a_long_hint_closes_a_gate_for_all_who_share_the_limit():
    """D-11: one call of one guard is refused; the other guard, a block and the retry start five seconds later, no sooner."""
    limit, began = Limit("gate", concurrency=10), []
    one, other = Guard("one", retry=STEADY, limit=limit), Guard("other", retry=ONCE, limit=limit)
    answers = iter([TooMany(5), None])

    async def ask():
        began.append(("ask", time.now))
        answer = next(answers)
        if answer:
            raise answer

    async def task(name):
        began.append((name, time.now))

    async def block():
        async with limit:
            began.append(("block", time.now))

    async def main():
        await asyncio.gather(one.acall(ask), other.acall(task, "guard"), block())

    with virtual_time() as time, capture_events() as events:
        asyncio.run(main())
    assert began[0] == ("ask", 0.0)
    assert began[1:3] == [("guard", 5.0), ("block", 5.0)]
    assert began[3][0] == "ask"
    assert began[3][1] >= 5.0
    assert [event.name for event in events] == ["throttled", "step_retry_attempt", "step_success"]
    assert told(events)[0][1] == {"limit": "gate", "retry_after": 5.0, "pause": 5.0, "width": 10}


def test_a_burst_of_refusals_is_one_signal():
    """D-11: twenty refusals at once are told once, and the gate is as long as the longest asks."""
    limit = Limit("burst", concurrency=100)
    entries = [limit.take() for _ in range(20)]
    with virtual_time() as time, capture_events() as events:
        for number, entry in enumerate(entries):
            limit.leave(entry, refused=2 + number / 10)
        assert not limit.acquire_nowait()
        time.advance(3.875)
        assert not limit.acquire_nowait()
        time.advance(0.03)
        assert limit.acquire_nowait()
    assert [event.name for event in events] == ["throttled"]


def test_a_short_hint_cuts_the_width_once_for_a_burst():
    """D-11: less than a second, or none: fewer calls at a time, told once, and no pause."""
    limit = Limit("width", concurrency=100)
    entries = [limit.take() for _ in range(100)]
    with virtual_time() as time, capture_events() as events:
        for entry in entries[:10]:
            limit.leave(entry, refused=0.2)
        assert limit.width == 85
        for entry in entries[10:30]:
            limit.leave(entry, refused=0.0)
        assert limit.width == 70  # each further one only tells how much too wide it was
        for entry in entries[30:]:
            limit.leave(entry, worked=True)
        assert limit.width == 70  # they started before the cut, and tell nothing new
        assert [limit.acquire_nowait() for _ in range(71)] == [True] * 70 + [False]
        assert time.now == 0.0
    assert told(events) == [("throttled", {"limit": "width", "retry_after": 0.2, "pause": 0.0, "width": 85})]


def test_the_width_grows_back_to_the_concurrency():
    """D-11: with every success while it is fully used, up to what was asked for, and then it is gone."""
    limit = Limit("growing", concurrency=20)
    entries = [limit.take() for _ in range(20)]
    limit.leave(entries.pop(), refused=0.0)
    assert limit.width == 17
    for entry in entries:
        limit.leave(entry)
    inside, widths = [], []
    for _ in range(100):
        while (entry := limit.take()) >= 0:
            inside.append(entry)
        limit.leave(inside.pop(0), worked=True)
        widths.append(limit.width)
    assert widths == sorted(widths)
    assert sorted(set(widths)) == [17, 18, 19, 20]
    assert limit._width == float("inf")


def test_a_limit_that_is_hardly_used_does_not_grow():
    """D-11: successes of few calls say nothing about many."""
    limit = Limit("idle", concurrency=20)
    for number, entry in enumerate([limit.take() for _ in range(20)]):
        limit.leave(entry, refused=0.0 if number == 0 else None)
    for _ in range(100):
        limit.leave(limit.take(), worked=True)
    assert limit.width == 17


@table(
    ("error", "pause"),
    [
        (TooMany(7), 7.0),
        (TooMany(7, 503), 7.0),
        (TooMany(None, 503), 0.0),
        (TooMany(7, 500), 0.0),
        (TooMany(600), 120.0),
        (LimitExceededError("ours", name="inner", retry_after=7.0), 0.0),
        (ConnectionResetError(), 0.0),
        (ValueError("x"), 0.0),
    ],
)
def test_what_counts_as_a_refusal(error, pause):
    """D-11: a 429, or a 503 with Retry-After; at most 120 seconds; never our own LimitExceededError."""
    limit = Limit("kinds", concurrency=10)

    def work():
        raise error

    with virtual_time() as time, capture_events() as events:
        Guard(retry=ONCE, limit=limit).outcome(work)
        with limit:
            assert time.now == pause
    assert [event.pause for event in events if event.name == "throttled"] == ([pause] if pause else [])
    assert limit.width == 10


def test_blocks_heed_the_service_too():
    """D-11: a 429 that leaves ``with limit:`` closes the gate."""
    limit = Limit("block", concurrency=10)
    with virtual_time() as time:
        with pytest.raises(TooMany), limit:
            raise TooMany(5)
        with limit:
            assert time.now == 5.0


def test_a_limit_that_does_not_adapt_ignores_refusals():
    """D-11: adaptive=False."""
    limit = Limit("stubborn", concurrency=10, adaptive=False)
    with virtual_time() as time, capture_events() as events:
        for hint in (0.0, 60.0):
            limit.leave(limit.take(), refused=hint)
        assert limit.acquire_nowait()
        assert (limit.width, events, time.now) == (10, [], 0.0)


def test_a_refused_call_that_was_undone_charges_nothing():
    """D-12: what the service never saw is not counted against the rate."""
    limit = Limit("undone", rates={"calls": Rate(1, per=10)})
    with virtual_time():
        limit.leave(limit.take(), undone=True)
        assert limit.acquire_nowait()
        assert not limit.acquire_nowait()


def test_a_dead_dependency_costs_hardly_more_than_its_calls():
    """D-12, semantics 33: with a budget, attempts are at most 1.2 times the calls plus the reserve."""
    budget, attempts = RetryBudget("dead", ratio=0.2, reserve=10), []
    guard = Guard(retry=STEADY, retry_budget=budget, limit=Limit("dead", concurrency=50))

    @guard
    async def work():
        attempts.append(1)
        await asyncio.sleep(0)
        raise ConnectionResetError

    async def main():
        await asyncio.gather(*(work() for _ in range(1000)), return_exceptions=True)

    with virtual_time():
        asyncio.run(main())
    assert len(attempts) <= 1.2 * 1000 + 10
    assert len(attempts) == 1010


def test_mistakes_in_what_goes_with_a_limit_are_told_at_once():
    """D-1: a cost that must be awaited, a cost without a limit, a word where yes or no is expected."""

    async def estimate(_):
        return {"tokens": 1}

    with pytest.raises(ConfigurationError) as caught:
        Guard(cost=estimate, idempotent="no", limit=3)
    assert list(caught.value.problems) == [
        "expected limit to be a Limit or None, got: 3.",
        (
            "expected cost to be a sync function, got: the coroutine function "
            "test_mistakes_in_what_goes_with_a_limit_are_told_at_once.<locals>.estimate. It is asked before each call."
        ),
        "expected idempotent to be true or false, got: 'no'.",
    ]


def test_the_class_shows_what_it_takes():
    """Editors and `help` read the signature, also of a class that may make another one."""
    import inspect

    names = ["name", "concurrency", "rates", "max_wait", "adaptive", "shared", "unknown"]
    assert list(inspect.signature(outlast.Limit).parameters) == names
