"""Blocking code in a thread of its own: the caller leaves on time, and what stays behind does no harm."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import subprocess
import sys
import threading

import pytest

import outlast
from outlast import AttemptTimeoutError, ConfigurationError, Guard, RetryPolicy
from outlast.isolation import threads
from outlast.kernel.clock import Clock, Dice, Ids, World, here
from outlast.testing import capture_events, disabled, virtual_time

QUICK = RetryPolicy(initial_delay=1, jitter=0)
color = contextvars.ContextVar("color", default="unset")


class Blocking:
    """A body that blocks until it is released, and knows how many of it run at once."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.release = threading.Event()
        self.calls = 0
        self.running = 0
        self.most = 0
        self.threads: list[threading.Thread] = []

    def __call__(self):
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        self.threads.append(threading.current_thread())
        self.started.set()
        try:
            assert self.release.wait(30)
        finally:
            self.running -= 1
        return "late"

    def end(self) -> None:
        self.release.set()
        for thread in self.threads:
            thread.join(20)


@pytest.fixture
def blocking():
    body = Blocking()
    yield body
    body.end()


def guard(**options) -> Guard:
    return Guard("blocking", **{"retry": QUICK, "timeout": 5, "isolation": "thread"} | options)


# --- the caller ---


def test_the_caller_returns_on_time(blocking):
    """D-9, S0-14, S0-16: after the timeout, with a timeout's error, although the body still blocks."""
    with virtual_time() as time, pytest.raises(outlast.AttemptTimeoutError, match="5 s"):
        guard(retry=None).call(blocking)
    assert time.now == 5
    assert blocking.running == 1


def test_the_caller_returns_on_time_in_real_time(blocking):
    """D-9, semantics 41, 42: also without a virtual clock, and from a thread that is not the main one."""
    caught = []

    def call():
        try:
            guard(retry=None, timeout=0.01).call(blocking)
        except TimeoutError as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(20)
    assert [type(error) for error in caught] == [outlast.AttemptTimeoutError]
    assert blocking.running == 1


def test_results_and_errors_come_through():
    """D-9: an isolated call that is on time is like a plain one, its error the very object that was raised."""
    error = ValueError("mine")

    def fail():
        raise error

    assert guard().call(lambda value: value * 2, 21) == 42
    with pytest.raises(ValueError, match="mine") as caught:
        guard().call(fail)
    assert caught.value is error
    assert (error.__cause__, error.__context__) == (None, None)


def test_a_timeout_of_the_body_is_its_own():
    """D-9: a TimeoutError that the function raises is not mistaken for ours."""

    def fail():
        raise TimeoutError("from the socket")

    with virtual_time(), capture_events() as events, pytest.raises(TimeoutError, match="from the socket") as caught:
        guard().call(fail)
    assert type(caught.value) is TimeoutError
    assert "attempt_timeout" not in [event.name for event in events]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_control_flow_comes_through(error):
    """semantics 1: what the body raises to end the program ends the call, after one attempt."""
    calls = []

    def stop():
        calls.append(1)
        raise error

    with pytest.raises(error):
        guard().call(stop)
    assert calls == [1]


def test_fast_failures_are_retried_as_usual():
    """D-9: each attempt has a thread of its own, one after the other."""
    threads = []

    def fail():
        threads.append(threading.current_thread())
        raise ConnectionResetError

    with virtual_time() as time, pytest.raises(ConnectionResetError) as caught:
        guard().call(fail)
    assert len(set(threads)) == 3
    assert time.sleeps == [1, 2]
    assert outlast.stop_reason(caught.value) == "exhausted"


def test_a_decorated_function_keeps_its_nature():
    """D-9: name, text and arguments."""

    @guard()
    def read(path, *, mode="r"):
        """Read it."""
        return path, mode

    assert read("a", mode="b") == ("a", "b")
    assert (read.__name__, read.__doc__) == ("read", "Read it.")


def test_a_timeout_without_isolation_is_refused():
    """D-9: for sync code, at decoration, and it says what to do."""
    with pytest.raises(ConfigurationError, match='isolation="thread"'):
        Guard(timeout=5)(print)
    with pytest.raises(ConfigurationError, match='isolation="thread"'):
        outlast.retry(timeout=5)(print)
    with pytest.raises(ConfigurationError, match='isolation="thread"'):
        Guard(timeout=5).call(print)


def test_isolation_of_async_code_is_refused():
    """D-9: it needs none."""

    async def work():
        pass

    with pytest.raises(ConfigurationError, match="isolation"):
        guard()(work)


def test_a_total_timeout_alone_does_not_change_the_thread():
    """D-9: it is checked between attempts and visible through current().remaining()."""
    with virtual_time() as time:
        seen = Guard(total_timeout=60).call(
            lambda: (time.advance(20), threading.get_ident(), outlast.current().remaining())
        )
    assert seen[1:] == (threading.get_ident(), pytest.approx(40))


def test_a_total_timeout_ends_an_isolated_attempt(blocking):
    """D-7, D-9, S0-15, semantics 19: the attempt is bounded by what is left in all."""
    with virtual_time() as time, pytest.raises(outlast.TotalTimeoutError) as caught:
        guard(timeout=None, total_timeout=7).call(blocking)
    assert time.now == 7
    assert outlast.stop_reason(caught.value) == "total_timeout"


def test_the_smaller_of_both_timeouts_ends_an_isolated_attempt(blocking):
    """D-7, D-9, semantics 19: the second attempt has only what the first has left."""
    calls = []

    def work():
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionResetError
        blocking()

    with virtual_time() as time, pytest.raises(outlast.TotalTimeoutError):
        guard(timeout=5, total_timeout=5, retry=RetryPolicy(initial_delay=3, jitter=0)).call(work)
    assert time.now == 5
    assert len(calls) == 2


def test_an_outer_deadline_ends_an_isolated_attempt(blocking):
    """semantics 19, 21: nested deadlines take the minimum, also where nothing else could end the inner attempt."""
    with virtual_time() as time, pytest.raises(TimeoutError):
        Guard("outer", retry=None, total_timeout=3).call(guard(retry=None, timeout=30)(blocking))
    assert time.now == pytest.approx(3)


# --- what is inside ---


def test_context_is_kept():
    """D-9, semantics 39, 21: variables, the place in the call, and the time left are visible in the thread."""
    seen = []

    def look():
        current = outlast.current()
        seen.append((color.get(), current.attempt, current.remaining()))
        if current.attempt == 1:
            raise ConnectionResetError

    token = color.set("blue")
    try:
        with virtual_time():
            guard(total_timeout=60).call(look)
    finally:
        color.reset(token)
    assert seen == [("blue", 1, pytest.approx(60)), ("blue", 2, pytest.approx(59))]


def test_changes_of_the_body_stay_in_its_thread():
    """D-9: what it sets in its copy of the context is not seen outside, nor by the next attempt."""
    seen = []

    def change():
        seen.append(color.get())
        color.set("red")
        if len(seen) == 1:
            raise ConnectionResetError

    with virtual_time():
        guard().call(change)
    assert (seen, color.get()) == (["unset", "unset"], "unset")


def test_the_thread_is_a_daemon_with_a_name():
    """D-9, semantics 39: it keeps no program alive, and a dump of threads tells whose it is."""

    def read_file():
        thread = threading.current_thread()
        return thread.daemon, thread.name

    daemon, name = guard().call(read_file)
    assert daemon
    assert "read_file" in name


def test_a_program_ends_although_an_attempt_hangs():
    """D-9, semantics 39: at once, with its own exit code."""
    script = """
import outlast.isolation.threads, sys, threading
try:
    outlast.Guard(retry=None, timeout=0.01, isolation="thread").call(threading.Event().wait)
except outlast.AttemptTimeoutError:
    print("left", outlast.isolation.threads.abandoned())
sys.exit(7)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False, timeout=200
    )
    assert (done.returncode, done.stdout) == (7, "left 1\n"), done.stderr


# --- what stays behind ---


def test_no_second_attempt_while_the_first_still_runs(blocking):
    """D-9, semantics 38: the call ends with the timeout, reason still_running; nothing overlaps."""
    with virtual_time() as time, capture_events() as events, pytest.raises(outlast.AttemptTimeoutError) as caught:
        guard().call(blocking)
    assert (blocking.calls, blocking.most) == (1, 1)
    assert outlast.stop_reason(caught.value) == "still_running"
    assert any("still running" in note for note in caught.value.__notes__)
    assert [record.number for record in outlast.history(caught.value)] == [1]
    assert events[-1].name == "step_retry_exhausted"
    assert events[-1].reason == "still_running"
    assert time.now <= 6


def test_another_attempt_follows_if_the_first_has_ended_meanwhile(blocking):
    """D-9, semantics 38: late, but before the wait was over; then there is nothing to overlap with."""
    calls = []

    def work():
        calls.append(1)
        return blocking() if len(calls) == 1 else "second"

    class Releasing(Clock):
        """Time in which every wait for the thread runs out, and every wait between attempts lets it end."""

        waits = 0

        def wait_event(self, event, seconds):
            assert blocking.started.wait(20)
            self.waits += 1
            return event.wait(20) if self.waits > 1 else False

        def sleep(self, seconds, stop=None):
            blocking.end()
            return False

    token = here.set(World(Releasing(), Dice(), Ids()))
    try:
        assert guard().call(work) == "second"
    finally:
        here.reset(token)
    assert len(calls) == 2
    assert blocking.most == 1


def test_the_late_result_is_discarded_and_the_thread_counted(blocking):
    """D-9, semantics 40: abandoned() counts it for as long as it runs."""
    before = threads.abandoned()
    with virtual_time(), pytest.raises(outlast.AttemptTimeoutError):
        guard(retry=None).call(blocking)
    assert threads.abandoned() == before + 1
    blocking.end()
    assert threads.abandoned() == before


def test_threads_that_are_waited_for_are_not_abandoned(blocking):
    """semantics 40: only those that nobody waits for."""
    before, result = threads.abandoned(), []
    caller = threading.Thread(target=lambda: result.append(guard(timeout=20).call(blocking)))
    caller.start()
    assert blocking.started.wait(20)
    assert threads.abandoned() == before
    blocking.end()
    caller.join(20)
    assert result == ["late"]


def test_an_interrupted_caller_leaves_an_abandoned_thread(blocking):
    """semantics 40, 45: Ctrl-C while waiting for the thread."""

    class Interrupted(Clock):
        def wait_event(self, event, seconds):
            assert blocking.started.wait(20)
            raise KeyboardInterrupt

    before = threads.abandoned()
    token = here.set(World(Interrupted(), Dice(), Ids()))
    try:
        with pytest.raises(KeyboardInterrupt):
            guard().call(blocking)
    finally:
        here.reset(token)
    assert threads.abandoned() == before + 1


def test_a_late_error_is_discarded_in_silence():
    """D-9, semantics 40: it is nobody's unhandled exception."""
    release, threads, hooked = threading.Event(), [], []
    before, threading.excepthook = threading.excepthook, hooked.append

    def fail_late():
        threads.append(threading.current_thread())
        assert release.wait(20)
        raise ValueError("too late")

    try:
        with virtual_time(), pytest.raises(outlast.AttemptTimeoutError):
            guard(retry=None).call(fail_late)
        release.set()
        for thread in threads:
            thread.join(20)
    finally:
        threading.excepthook = before
    assert hooked == []


def test_calls_in_isolation_do_not_wait_for_each_other(blocking):
    """D-9: one that hangs does not hold up the next call of the same guard."""
    shared = guard(retry=None)
    with virtual_time():
        with pytest.raises(outlast.AttemptTimeoutError):
            shared.call(blocking)
        assert shared.call(lambda: "fine") == "fine"


def test_a_fallback_runs_in_the_callers_thread(blocking):
    """D-9: it stands outside of the attempt."""
    with virtual_time():
        assert guard(retry=None, fallback=threading.get_ident).call(blocking) == threading.get_ident()


def test_an_outcome_tells_of_the_timeout(blocking):
    """D-9: returned instead of raised."""
    with virtual_time():
        outcome = guard().outcome(blocking)
    assert (outcome.ok, outcome.reason, len(outcome.attempts)) == (False, "still_running", 1)
    assert isinstance(outcome.error, outlast.AttemptTimeoutError)


def test_abandoned_threads_are_bounded():
    """D-9, semantics 40: past the bound no further thread is started, and the call says why; when some end, it goes on."""
    release, others = threading.Event(), {*threading.enumerate()}
    guard = Guard(retry=None, timeout=0.001, isolation="thread")
    for _ in range(threads.MOST_ABANDONED):
        with pytest.raises(outlast.AttemptTimeoutError):
            guard.call(release.wait, 200)
    try:
        with pytest.raises(
            outlast.TemporaryFailure, match=f"{threads.MOST_ABANDONED} calls that timed out are still running"
        ) as caught:
            guard.call(int)
        assert outlast.classify(caught.value).error_class == "resource_exhausted"
    finally:
        release.set()
        for thread in {*threading.enumerate()} - others:
            thread.join(20)
    assert Guard(retry=None, timeout=20, isolation="thread").call(int) == 0


# --- blocking code awaited ---


def _number() -> tuple[int, bool]:
    return os.getpid(), threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize("runner", ["asyncio", "trio"])
def test_blocking_code_is_awaited_in_a_thread(runner):
    """The loop goes on meanwhile, attempts and waits are as ever, and a timeout is left on time."""
    import trio

    seen, ticks, gate = [], [], threading.Event()

    def load(item):
        seen.append(threading.current_thread())
        assert gate.wait(20)
        if len(seen) == 1:
            raise ConnectionResetError
        return item, outlast.current().attempt

    guard = Guard(retry=RetryPolicy(initial_delay=0), timeout=30, isolation="thread")

    async def main():
        async def tick():
            ticks.append(1)
            gate.set()

        if runner == "trio":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tick)
                return await guard.acall(load, "a")
        task = asyncio.create_task(tick())
        try:
            return await guard.acall(load, "a")
        finally:
            await task

    assert (trio.run(main) if runner == "trio" else asyncio.run(main())) == ("a", 2)
    assert ticks == [1]
    assert threading.main_thread() not in seen


def test_blocking_code_is_awaited_in_a_process():
    """Another process, and its result."""
    pid, main = asyncio.run(Guard(timeout=60, isolation="process").acall(_number))
    assert pid != os.getpid()
    assert main


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_awaited_blocking_code_that_hangs_is_left_on_time_or_at_a_cancellation(kind):
    """D-9: the caller goes on; a thread is abandoned and counted, a process is dead; the place at the limit is free."""
    limit, hanging = outlast.Limit(f"awaited {kind}", concurrency=1), threading.Event()
    hang = functools.partial(_hang, None if kind == "process" else hanging)

    async def main():
        late = await Guard(retry=None, timeout=0.05, isolation=kind, limit=limit).aoutcome(hang)
        assert isinstance(late.error, AttemptTimeoutError)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Guard(isolation=kind, limit=limit).acall(hang), 0.05)
        assert (limit.under_way, limit.waiting) == (0, 0)

    asyncio.run(main())
    hanging.set()


def _hang(event: threading.Event | None) -> None:
    (event or threading.Event()).wait(60)


def test_a_sync_function_without_isolation_is_refused_by_acall_with_the_way_out():
    """It has held up the loop already: that is said, once, and not tried again; its place is free."""
    calls, limit = [], outlast.Limit("refused by acall", concurrency=1)
    guard = Guard(limit=limit, fallback=lambda: "not asked")

    async def inner():
        return "awaited"

    async def main():
        for door in (guard.acall, guard.aoutcome):
            with pytest.raises(
                ConfigurationError, match=r'give the guard isolation="thread" to await it, or use `call`'
            ):
                await door(lambda: calls.append(1))
        assert await guard.acall(lambda: inner()) == "awaited"  # noqa: PLW0108 - a sync function that gives something to await

    asyncio.run(main())
    assert (len(calls), limit.under_way) == (2, 0)
    with disabled():
        assert asyncio.run(Guard(isolation="thread").acall(lambda: 5)) == 5
