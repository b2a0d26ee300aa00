"""What a failed call keeps alive: nothing. Reference counting alone frees it, so the collector is off in all of these."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import json
import logging
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

import outlast
from outlast import CircuitBreaker, Guard, RetryBudget, RetryPolicy
from outlast.pipeline.engine.batches import Group
from outlast.pipeline.engine.item import Item
from outlast.testing import capture_events, virtual_time
from stores import prepared

names = itertools.count()
QUICK = RetryPolicy(initial_delay=0, jitter=0)
SOON = RetryPolicy(initial_delay=0.001)


class Big:
    """Something a body holds that should be freed with it."""


class Failed(ConnectionError):
    """A failure that can be watched."""


@pytest.fixture(autouse=True)
def without_collector(monkeypatch):
    """The collector would hide what this is about, and pytest keeps every log record for its report."""
    monkeypatch.setattr("outlast.observe.heard", lambda: False)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Watch:
    """A body that fails with a local variable in its frame; `alive` are the locals and errors of its earlier runs."""

    def __init__(self, make_error=Failed, succeed_at: int = 99) -> None:
        self.refs: list[weakref.ref] = []
        self.left_over: list[int] = []
        self.make_error = make_error
        self.succeed_at = succeed_at
        self.calls = 0

    def alive(self) -> int:
        return sum(ref() is not None for ref in self.refs)

    def __call__(self, *args, **kwargs):
        self.calls += 1
        self.left_over.append(self.alive())
        if self.calls >= self.succeed_at:
            return "fine"
        big = Big()
        self.refs.append(weakref.ref(big))
        return self.deeper(big)

    def deeper(self, big):
        held = [big]
        self.raise_error()
        return held

    def raise_error(self):
        raise self.make_error()

    async def later(self, *args, **kwargs):
        await asyncio.sleep(0)
        return self()


def full_guard(**options) -> Guard:
    return Guard(
        f"full-{next(names)}",
        retry=QUICK,
        breaker=CircuitBreaker(f"memory-{next(names)}", failure_threshold=10**9),
        retry_budget=RetryBudget("memory", reserve=10**9),
        **options,
    )


def fall_back_badly(*_):
    raise Failed("the fallback fails too")


def nested(work):
    inner, outer = Guard(retry=QUICK), Guard(retry=QUICK)
    return outer(inner(work))


def in_attempts(work):
    for attempt in Guard(retry=QUICK).attempts():
        with attempt:
            work()


async def in_async_attempts(work):
    async for attempt in Guard(retry=QUICK, timeout=20).attempts():
        with attempt:
            await work()


async def in_a_task(call):
    """Run in a task of its own, which keeps its exception for whoever asks."""
    return await asyncio.create_task(call())


async def let_go():
    """A few rounds of the loop, in which asyncio drops the tasks and timers that are done."""
    for _ in range(3):
        await asyncio.sleep(0)


def protected_by(make_guard):
    """How a guard made anew each time protects a function."""

    def protect(work):
        guard = make_guard()
        return guard(work)

    return protect


def breaker() -> CircuitBreaker:
    return CircuitBreaker(f"memory-{next(names)}", failure_threshold=10**9)


SYNC = {
    "bare": outlast.retry(initial_delay=0),
    "decorated": outlast.retry(QUICK),
    "call": lambda work: functools.partial(Guard(retry=QUICK).call, work),
    "one attempt": Guard(retry=None),
    "total timeout": Guard(retry=QUICK, total_timeout=60),
    "full guard": protected_by(functools.partial(full_guard, total_timeout=60)),
    "fallback that fails": protected_by(functools.partial(full_guard, fallback=fall_back_badly)),
    "thread": protected_by(functools.partial(full_guard, timeout=20, isolation="thread")),
    "attempts": lambda work: functools.partial(in_attempts, work),
    "nested": nested,
    "breaker": protected_by(breaker),
    "breaker call": lambda work: functools.partial(breaker().call, work),
}
ASYNC = {
    "bare": outlast.retry(initial_delay=0),
    "acall": lambda work: functools.partial(Guard(retry=QUICK).acall, work),
    "timeout": Guard(retry=QUICK, timeout=20),
    "full guard": protected_by(functools.partial(full_guard, timeout=20, total_timeout=60)),
    "fallback that fails": protected_by(functools.partial(full_guard, timeout=20, fallback=fall_back_badly)),
    "attempts": lambda work: functools.partial(in_async_attempts, work),
    "nested": nested,
    "breaker": protected_by(breaker),
    "task": lambda work: functools.partial(in_a_task, Guard(retry=QUICK, timeout=20)(work)),
}
every_sync = pytest.mark.parametrize("protect", SYNC.values(), ids=SYNC)
every_async = pytest.mark.parametrize("protect", ASYNC.values(), ids=ASYNC)


def run_and_drop(call) -> None:
    """Call, see the error, and let it go."""
    try:
        call()
    except Failed:
        pass
    else:
        pytest.fail("it should have failed")


# --- after a failed call ---


@every_sync
def test_a_failed_call_keeps_nothing(protect):
    """semantics 63: once the exception is dropped, so are the body's locals."""
    work = Watch()
    run_and_drop(protect(work))
    assert work.calls in {1, 3}
    assert work.alive() == 0


@every_async
def test_a_failed_async_call_keeps_nothing(protect):
    """semantics 63: the same for coroutines, with and without a task around them."""
    work = Watch()

    async def main():
        call = protect(work.later)
        try:
            await call()
        except Failed:
            pass
        else:
            pytest.fail("it should have failed")
        await let_go()
        return work.alive()

    with asyncio.Runner() as runner:
        assert runner.run(main()) == 0
    assert work.calls in {1, 3}


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "full"])
def test_an_outcome_keeps_its_error_and_nothing_after_it(plain):
    """semantics 63: dropping the outcome drops it all."""
    work = Watch()
    guard = Guard(retry=QUICK) if plain else full_guard()
    outcome = guard.outcome(work)
    assert (outcome.ok, work.alive()) == (False, 1)
    del outcome
    assert work.alive() == 0

    async def main():
        outcome = await guard.aoutcome(work.later)
        assert not outcome.ok
        del outcome
        await let_go()
        return work.alive()

    with asyncio.Runner() as runner:
        assert runner.run(main()) == 0


@every_sync
def test_the_exception_itself_is_freed(protect):
    """semantics 63: nothing of ours holds on to it, neither the guard nor the call."""
    errors = []

    def make():
        error = Failed("watched")
        errors.append(weakref.ref(error))
        return error

    call = protect(Watch(make))
    run_and_drop(call)
    assert [ref() for ref in errors] == [None] * len(errors)


@pytest.mark.parametrize("scope", ["attempt", "total"])
@pytest.mark.parametrize("in_task", [False, True], ids=["in the caller's task", "in its own task"])
@pytest.mark.parametrize("door", ["decorator", "attempts"])
def test_a_timed_out_attempt_keeps_nothing(scope, in_task, door):
    """semantics 63: the frames that were cancelled go with the timeout's exception."""
    refs: list[weakref.ref] = []
    guard = Guard(retry=None, timeout=0.001) if scope == "attempt" else Guard(retry=None, total_timeout=0.001)

    async def body():
        big = Big()
        refs.append(weakref.ref(big))
        await asyncio.Event().wait()
        return big

    async def loop():
        async for attempt in guard.attempts():
            with attempt:
                await body()

    async def main():
        call = guard(body) if door == "decorator" else loop
        try:
            await (in_a_task(call) if in_task else call())
        except TimeoutError:
            pass
        else:
            pytest.fail("it should have timed out")
        await let_go()
        return [ref() for ref in refs]

    with asyncio.Runner() as runner:
        assert runner.run(main()) == [None]


def test_a_timed_out_thread_keeps_nothing_once_it_ends():
    """D-9, semantics 40, 63: the late result is discarded, not kept."""
    refs, end = [], threading.Event()

    def body():
        big = Big()
        refs.append(weakref.ref(big))
        assert end.wait(20)
        return big

    guard = Guard(retry=None, timeout=0.001, isolation="thread")
    try:
        guard.call(body)
    except outlast.AttemptTimeoutError as error:
        kept = error
    threads = [thread for thread in threading.enumerate() if thread.name == "outlast-body"]
    end.set()
    for thread in threads:
        thread.join(20)
    del threads, thread
    assert outlast.stop_reason(kept) == "exhausted"
    assert [ref() for ref in refs] == [None]


def test_a_late_error_of_a_thread_is_not_kept():
    """D-9, semantics 40, 63: also not while somebody still holds the timeout's exception."""
    refs, end = [], threading.Event()

    def body():
        big = Big()
        refs.append(weakref.ref(big))
        assert end.wait(20)
        raise Failed(big)

    try:
        Guard(retry=None, timeout=0.001, isolation="thread").call(body)
    except outlast.AttemptTimeoutError as error:
        kept = error
    threads = [thread for thread in threading.enumerate() if thread.name == "outlast-body"]
    end.set()
    for thread in threads:
        thread.join(20)
    del threads, thread
    assert kept is not None
    assert [ref() for ref in refs] == [None]


def test_a_rejected_call_keeps_nothing():
    """semantics 13, 63: the arguments of a call that was not made, and the rejection."""
    breaker = CircuitBreaker(f"memory-{next(names)}", failure_threshold=1)
    with pytest.raises(Failed):
        breaker.call(Watch())
    for call in (breaker.call, Guard(breaker=breaker).call, breaker(print), Guard(breaker=breaker)(print)):
        big = Big()
        ref = weakref.ref(big)
        try:
            call(print, big) if call.__name__ == "call" else call(big)
        except outlast.CircuitBreakerOpenError:
            pass
        else:
            pytest.fail("it should have been rejected")
        del big
        assert ref() is None


def test_a_call_that_opened_its_circuit_keeps_nothing():
    """semantics 63: the last attempt's error is raised from elsewhere and still freed."""
    work = Watch()
    breaker = CircuitBreaker(f"memory-{next(names)}", failure_threshold=2)
    run_and_drop(Guard(retry=QUICK, breaker=breaker)(work))
    assert (work.calls, work.alive()) == (2, 0)


def test_a_stopped_call_keeps_nothing():
    """semantics 23, 63: ended during its wait."""
    work, stop = Watch(), outlast.Stop()
    forget = outlast.observe.subscribe(lambda _: stop.set())
    try:
        with stop:
            run_and_drop(Guard(retry=RetryPolicy(initial_delay=20))(work))
    finally:
        forget()
    assert (work.calls, work.alive()) == (1, 0)


def test_a_success_keeps_nothing_of_the_failures_before_it():
    """semantics 63, 64: neither errors nor frames."""
    for protect in (SYNC["bare"], SYNC["full guard"], SYNC["nested"], SYNC["thread"]):
        work = Watch(succeed_at=3)
        assert protect(work)() == "fine"
        assert work.alive() == 0


def test_listening_keeps_nothing():
    """semantics 63: events are values; those who keep them keep no exception and no frame."""
    for protect in (SYNC["bare"], SYNC["full guard"]):
        work = Watch()
        with virtual_time(), capture_events() as events:
            run_and_drop(protect(work))
        assert len(events) == 3
        assert work.alive() == 0


def test_a_result_that_is_tried_again_is_not_kept():
    """semantics 64: while the next attempt runs, the answer that was not wanted is gone."""
    refs, left_over = [], []

    def work():
        left_over.append(sum(ref() is not None for ref in refs))
        big = Big()
        refs.append(weakref.ref(big))
        return big

    result = Guard(retry=QUICK, retry_if=lambda _: True).call(work)
    assert left_over == [0, 0, 0]
    assert refs[2]() is result


# --- while attempts run ---


@every_sync
def test_no_attempt_sees_what_an_earlier_one_held(protect):
    """semantics 64: while attempt k runs nothing of the locals of attempts before it is alive."""
    work = Watch()
    run_and_drop(protect(work))
    assert work.left_over == [0] * work.calls


@every_async
def test_no_async_attempt_sees_what_an_earlier_one_held(protect):
    """semantics 64: the same for coroutines."""
    work = Watch()

    async def main():
        with pytest.raises(Failed):
            await protect(work.later)()

    with asyncio.Runner() as runner:
        runner.run(main())
    assert work.left_over == [0] * work.calls


def chained():
    """A failure with a cause and, beside it, another context: both have frames."""
    local = Big()
    try:
        raise OSError(local)
    except OSError:
        cause = KeyError("elsewhere")
        raise Failed("chained") from cause


def suppressed():
    local = Big()
    try:
        raise OSError(local)
    except OSError:
        raise Failed("suppressed") from None


def deep():
    """A chain of twelve."""
    try:
        raise OSError(Big())
    except OSError as first:
        error: Exception = first
    for _ in range(12):
        try:
            raise Failed("link") from error
        except Failed as link:
            error = link
    raise error


def grouped():
    """A group whose leaves were raised, and have frames."""
    leaves = []
    for _ in range(2):
        try:
            suppressed()
        except Failed as leaf:
            leaves.append(leaf)
    raise ExceptionGroup("several", leaves)


@pytest.mark.parametrize("fail", [chained, suppressed, deep, grouped], ids=lambda fail: fail.__name__)
@pytest.mark.parametrize("kind", ["plain", "full"])
def test_no_part_of_an_earlier_failure_keeps_frames(fail, kind):
    """semantics 64: causes, contexts beside causes, long chains and the leaves of groups are failures too."""
    work = Watch()
    work.raise_error = fail
    guard = Guard(retry=QUICK) if kind == "plain" else full_guard()
    with pytest.raises((Failed, ExceptionGroup)) as caught:
        guard(work)()
    del caught
    assert work.left_over == [0, 0, 0]


def test_waiting_keeps_nothing():
    """semantics 64: during the wait the failed body's locals are already gone."""
    work, alive = Watch(), []
    forget = outlast.observe.subscribe(lambda _: None)
    from outlast.kernel.clock import Clock, Dice, Ids, World, here

    class Looking(Clock):
        def sleep(self, seconds, stop=None):
            alive.append(work.alive())
            return False

    token = here.set(World(Looking(), Dice(), Ids()))
    try:
        run_and_drop(Guard(retry=RetryPolicy())(work))
    finally:
        here.reset(token)
        forget()
    assert alive == [0, 0]


# --- many calls, in a process of their own: threads that other tests have left here make objects too ---


def growth(call, times: int) -> int:
    """How many more objects the collector knows after so many calls."""
    for _ in range(20):
        call()
    before = len(gc.get_objects())
    for _ in range(times):
        call()
    return len(gc.get_objects()) - before


def after_failures(protect, times: int = 1000) -> int:
    def fail():
        raise Failed

    protected = protect(fail)

    def call():
        try:
            protected()
        except Failed:
            return

    return growth(call, times)


async def after_async_failures(protect) -> int:
    async def fail():
        raise Failed

    protected = protect(fail)

    async def call():
        try:
            await protected()
        except Failed:
            return

    for _ in range(20):
        await call()
    await let_go()
    before = len(gc.get_objects())
    for _ in range(1000):
        await call()
    await let_go()
    return len(gc.get_objects()) - before


def after_rejections() -> int:
    breaker = CircuitBreaker("memory of rejections")
    breaker.isolate("memory")

    def call():
        try:
            breaker.call(print)
        except outlast.CircuitBreakerOpenError:
            return

    return growth(call, 1000)


def after_threads() -> int:
    def call():
        thread = threading.Thread(target=int)
        thread.start()
        thread.join(20)

    with virtual_time():
        return growth(call, 200)


def growths() -> dict[str, int]:
    """What each kind of call has left behind, in a process in which nothing else goes on and nobody hears of it."""
    logging.getLogger("outlast").disabled = True
    gc.collect()
    gc.disable()
    found = {name: after_failures(protect, 50 if name == "thread" else 1000) for name, protect in SYNC.items()}
    for name, protect in ASYNC.items():
        with asyncio.Runner() as runner:
            found[f"async {name}"] = runner.run(after_async_failures(protect))
    return found | {"rejections": after_rejections(), "threads in virtual time": after_threads()}


def test_a_thousand_calls_leave_no_object():
    """semantics 13, 63, 76: not one; failed ones, sync and async, ones that an open circuit rejects, and threads in a scope of virtual time."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == len(SYNC) + len(ASYNC) + 2
    assert {name: grown for name, grown in found.items() if grown > 0} == {}


def test_a_decorated_function_is_small():
    """semantics 63: under 2 KiB for each, bare and with options, measured in a process of its own."""
    script = """
import tracemalloc
import outlast
def make(): return [lambda: None for _ in range(1000)]
for decorate in (outlast.retry, lambda fn: outlast.retry(max_attempts=5)(fn)):
    decorate(make()[0])
    functions, kept = make(), []
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for fn in functions:
        kept.append(decorate(fn))
    print((tracemalloc.get_traced_memory()[0] - before) // 1000)
    tracemalloc.stop()
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sizes = [int(line) for line in done.stdout.split()]
    assert len(sizes) == 2
    assert max(sizes) < 2048, sizes


# -- runs and map -----------------------------------------------------------------------------------------------------------

held: list[weakref.ref] = []


def fails_mostly(number):
    """Every third item comes through, so that nothing stops the run."""
    if number % 3 == 0:
        return number
    big = Big()
    held.append(weakref.ref(big))
    raise Failed(str(number))


async def fails_mostly_later(number):
    await asyncio.sleep(0)
    return fails_mostly(number)


def fails_together(numbers):
    return [fails_mostly(number) for number in numbers]


def failures() -> int:
    return sum(isinstance(known, Failed) for known in gc.get_objects())


def items() -> int:
    return sum(isinstance(known, Item | Group) for known in gc.get_objects())


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (fails_mostly, {"retry": None}),
        (fails_mostly_later, {"retry": None}),
        (fails_together, {"retry": None, "batch": 8}),
        (fails_mostly, {"retry": None, "isolation": "process", "timeout": 60, "concurrency": 2}),
        (
            fails_mostly,
            {"guard": Guard("memory", retry=QUICK, timeout=60, limit=outlast.Limit("memory", concurrency=4))},
        ),
        (fails_mostly, {"retry": QUICK}),
        (fails_mostly_later, {"retry": QUICK}),
        (fails_together, {"retry": QUICK, "batch": 8}),
        (fails_mostly, {"retry": SOON}),
        (fails_mostly_later, {"retry": SOON}),
        (fails_together, {"retry": SOON, "batch": 8}),
    ],
    ids=[
        *("sync", "async", "batch", "process", "guarded", "retried", "retried async", "retried batch"),
        *("retried later", "retried later async", "retried later batch"),
    ],
)
def test_a_failed_item_of_a_run_leaves_nothing_behind(tmp_path, body, options):
    """semantics 63: neither its error nor what its frames held, as soon as its end is on record: no collector is needed."""
    app = outlast.App(f"memory-{next(names)}", store=prepared(tmp_path / "outlast.db"))
    held.clear()
    pipeline = outlast.Pipeline(
        "p", outlast.stage(**options)(body), app=app, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0
    )
    result = pipeline.run(range(60), check=False)
    assert (result.counts.succeeded, result.counts.dlq) == (20, 40)
    assert (sum(ref() is not None for ref in held), failures(), items()) == (0, 0, 0)
    app.store.close()


@pytest.mark.parametrize("body", [fails_mostly, fails_mostly_later], ids=["sync", "async"])
@pytest.mark.parametrize("end", ["recovers", "falls back"])
def test_an_item_that_succeeds_after_failures_leaves_nothing_behind(tmp_path, body, end):
    """semantics 63: neither the errors of its attempts, nor the error that a fallback has answered for, nor the item."""
    app = outlast.App(f"memory-{next(names)}", store=prepared(tmp_path / "outlast.db"))
    held.clear()
    tries = itertools.count()

    def recovers(number):
        return number if next(tries) >= 60 else fails_mostly(number)

    async def recovers_later(number):
        await asyncio.sleep(0)
        return recovers(number)

    if end == "falls back":
        stage = outlast.stage(guard=Guard(retry=SOON, fallback=lambda number: -number))(body)
    else:
        stage = outlast.stage(retry=SOON)(recovers if body is fails_mostly else recovers_later)
    assert outlast.Pipeline("p", stage, app=app, failure_budget=1.0).run(range(60)).counts.succeeded == 60
    assert len(held) >= 40
    assert (sum(ref() is not None for ref in held), failures(), items()) == (0, 0, 0)
    app.store.close()


@pytest.mark.parametrize("guard", [None, Guard(retry=QUICK)], ids=["plain", "guarded"])
@pytest.mark.parametrize("way", ["map", "amap"])
def test_what_failed_in_a_map_is_freed_with_its_result(way, guard):
    """semantics 63: the result keeps the errors, and when it goes they go."""
    held.clear()
    if way == "map":
        result = outlast.map(fails_mostly, range(30), guard=guard)
    else:
        result = asyncio.run(outlast.amap(fails_mostly_later, range(30), guard=guard))
    assert (len(result.succeeded), len(result.failed)) == (10, 20)
    del result
    assert (sum(ref() is not None for ref in held), failures()) == (0, 0)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(growths()))
