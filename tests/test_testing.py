"""The testing helpers: time that does not pass, faults on demand, events on record, and a switch; each for one context."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time as real_time
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta

import pytest

import outlast
from outlast import CircuitBreaker, Guard, RetryPolicy
from outlast.kernel.clock import REAL, here
from outlast.testing import Faults, capture_events, disabled, inject, virtual_time

names = itertools.count()


def policy(max_attempts: int = 3, **options) -> RetryPolicy:
    return RetryPolicy(**{"max_attempts": max_attempts, "initial_delay": 1, "jitter": 0} | options)


def failing(times: int, error=ConnectionResetError):
    """A function that fails so many times and then returns how often it was called."""
    calls = itertools.count(1)

    def work(*_):
        number = next(calls)
        if number <= times:
            raise error
        return number

    return work


def later(work):
    async def awork(*args):
        return work(*args)

    return awork


async def hang():
    await asyncio.Event().wait()


# --- virtual time ---


def test_waits_take_no_time_and_are_on_record():
    """C-06, semantics 77: ten minutes of policy in milliseconds, and the sleeps are the promised sequence."""
    guard = outlast.retry(policy(7, initial_delay=30, multiplier=2, max_delay=240))
    began = real_time.perf_counter()
    with virtual_time() as time:
        assert guard(failing(6))() == 7
    assert real_time.perf_counter() - began < 5
    assert time.sleeps == [30, 60, 120, 240, 240, 240]
    assert time.now == 930


def test_async_waits_take_no_time_and_are_on_record():
    """C-06, semantics 77: the same in an event loop."""
    guard = outlast.retry(policy(7, initial_delay=30, multiplier=2, max_delay=240))
    began = real_time.perf_counter()
    with virtual_time() as time:
        assert asyncio.run(guard(later(failing(6)))()) == 7
    assert real_time.perf_counter() - began < 5
    assert time.sleeps == [30, 60, 120, 240, 240, 240]
    assert time.now == 930


def test_zero_waits_are_on_record_too():
    """C-06: sleeps has every wait between attempts, zeros included."""
    with virtual_time() as time:
        outlast.retry(policy(4, initial_delay=0))(failing(3))()
        asyncio.run(outlast.retry(policy(4, initial_delay=0))(later(failing(3)))())
    assert time.sleeps == [0.0] * 6
    assert time.now == 0


def test_the_wall_clock_moves_with_it():
    """D-18: instants are aware, and as far apart as the waits were."""
    with virtual_time() as time, capture_events() as events:
        before = datetime.now(UTC)
        Guard("shop", retry=policy(3)).call(failing(2))
        assert time.now == 3
    assert [event.ts - events[0].ts for event in events] == [timedelta(seconds=s) for s in (0, 1, 3)]
    assert abs(events[0].ts - before) < timedelta(seconds=30)


def test_advance_lets_time_pass_for_everything():
    """C-06: breakers and deadlines look at the same clock."""
    breaker = CircuitBreaker(f"virtual-{next(names)}", failure_threshold=1)
    with virtual_time() as time:
        with pytest.raises(ConnectionResetError):
            breaker.call(failing(1))
        time.advance(60)
        assert breaker.call(int) == 0
        guard = Guard(total_timeout=10)
        assert guard.call(lambda: (time.advance(4), outlast.current().remaining())[1]) == pytest.approx(6)
    assert time.now == 64


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan")])
def test_time_does_not_run_backwards(seconds):
    """C-06: that is a mistake of the test."""
    with virtual_time() as time, pytest.raises(ValueError, match="backwards"):
        time.advance(seconds)


def test_state_from_before_the_scope_keeps_its_meaning():
    """C-06: a breaker that opened a moment ago in real time is open for a minute from then."""
    breaker = CircuitBreaker(f"virtual-{next(names)}", failure_threshold=1)
    with pytest.raises(ConnectionResetError):
        breaker.call(failing(1))
    with virtual_time() as time:
        time.advance(55)
        with pytest.raises(outlast.CircuitBreakerOpenError):
            breaker.call(int)
        time.advance(5)
        assert breaker.call(int) == 0


def test_scopes_nest_and_restore():
    """semantics 76: an inner scope has its own time; leaving it restores the outer one, also after an error."""
    with virtual_time() as outer:
        outlast.retry(policy())(failing(1))()
        world = here.get()
        with pytest.raises(RuntimeError, match="inside"), virtual_time() as inner:
            outlast.retry(policy())(failing(2))()
            raise RuntimeError("inside")
        assert here.get() is world
        outlast.retry(policy())(failing(1))()
    assert (outer.sleeps, inner.sleeps) == ([1, 1], [1, 2])
    assert here.get() is REAL


def test_leaving_restores_the_way_threads_start():
    """semantics 76: what was changed to let threads inherit a scope is exactly as before."""
    before = threading.Thread.start
    with virtual_time(), capture_events(), disabled():
        pass
    with suppress(RuntimeError), virtual_time():
        raise RuntimeError
    assert threading.Thread.start is before


def test_threads_inherit_the_scope():
    """C-06, semantics 76: their waits are virtual and on record, their events captured."""
    with virtual_time() as time, capture_events() as events:
        threads = [threading.Thread(target=Guard("shop", retry=policy()).call, args=(failing(2),)) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert sorted(time.sleeps) == [1] * 5 + [2] * 5
    assert [event.name for event in events].count("step_success") == 5


def test_a_thread_from_outside_is_not_touched():
    """semantics 76: one that was started before, or elsewhere, stays in the real world."""
    go, worlds = threading.Event(), []

    def look():
        assert go.wait(20)
        worlds.append(here.get())
        nested = threading.Thread(target=lambda: worlds.append(here.get()))
        nested.start()
        nested.join(20)

    thread = threading.Thread(target=look)
    thread.start()
    with virtual_time():
        go.set()
        thread.join(20)
    assert worlds == [REAL, REAL]


def test_a_thread_outlives_its_scope_in_it():
    """semantics 76: a thread started inside keeps the time it was started in."""
    go, sleeps = threading.Event(), []

    def work():
        assert go.wait(20)
        sleeps.append(outlast.retry(policy())(failing(2))())

    with virtual_time() as time:
        thread = threading.Thread(target=work)
        thread.start()
    go.set()
    thread.join(20)
    assert (sleeps, time.sleeps) == ([3], [1, 2])


def test_two_threads_have_two_times():
    """semantics 76: scopes open side by side do not see each other."""
    inside, seen = threading.Barrier(2), {}

    def work(failures):
        with virtual_time() as time, capture_events() as events:
            inside.wait(20)
            Guard("shop", retry=policy(5)).call(failing(failures))
            inside.wait(20)
            seen[failures] = (time.sleeps, time.now, len(events))

    threads = [threading.Thread(target=work, args=(failures,)) for failures in (1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == {1: ([1], 1, 2), 3: ([1, 2, 4], 7, 4)}
    assert here.get() is REAL


def test_two_threads_may_leave_in_any_order():
    """semantics 76: the scope that opened first may close first."""
    opened, close = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]
    results = []

    def work(number):
        with virtual_time() as time:
            opened[number].set()
            assert close[number].wait(20)
            outlast.retry(policy())(failing(1))()
            results.append((number, time.sleeps))

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread, event in zip(threads, opened, strict=True):
        thread.start()
        assert event.wait(20)
    for number in (0, 1):
        close[number].set()
        threads[number].join(20)
    assert results == [(0, [1]), (1, [1])]


def test_concurrent_waits_overlap():
    """semantics 77: ten tasks that wait three seconds each wait three seconds, not thirty."""

    async def main():
        work = [outlast.retry(policy())(later(failing(2)))() for _ in range(10)]
        return await asyncio.gather(*work)

    with virtual_time() as time:
        assert asyncio.run(main()) == [3] * 10
    assert time.now == 3
    assert sorted(time.sleeps) == [1] * 10 + [2] * 10


def test_tasks_wake_in_the_order_of_their_waits():
    """semantics 77: the nearest wake-up comes first, whoever slept first."""
    order = []

    async def work(delay):
        await outlast.retry(policy(2, initial_delay=delay, max_delay=None))(later(failing(1)))()
        order.append((delay, here.get().clock.time.now))

    async def main():
        await asyncio.gather(*(work(delay) for delay in (30, 10, 20, 40)))

    with virtual_time():
        asyncio.run(main())
    assert order == [(10, 10), (20, 20), (30, 30), (40, 40)]


def test_time_waits_for_tasks_that_can_go_on():
    """semantics 77: nobody is woken while another task has something to do now."""
    steps = []

    async def busy():
        for _ in range(50):
            await asyncio.sleep(0)
        steps.append("busy is done")

    async def waiting():
        await outlast.retry(policy(2))(later(failing(1)))()
        steps.append("waiting is done")

    async def main():
        await asyncio.gather(waiting(), busy())

    with virtual_time():
        asyncio.run(main())
    assert steps == ["busy is done", "waiting is done"]


def test_a_cancelled_wait_is_forgotten():
    """semantics 4: cancelling the wait ends the call, and time does not jump to where it would have ended."""

    async def main(time):
        task = asyncio.create_task(outlast.retry(policy(2, initial_delay=20))(later(failing(9)))())
        short = asyncio.create_task(outlast.retry(policy(2))(later(failing(1)))())
        assert await short == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.now == 1
        await outlast.retry(policy(2))(later(failing(1)))()
        assert time.now == 2

    with virtual_time() as time:
        asyncio.run(main(time))


def test_a_hanging_attempt_times_out_by_itself():
    """S0-14, S0-16, semantics 77: nothing moves any more, so the timeout is what comes next."""
    with virtual_time() as time:
        with pytest.raises(outlast.AttemptTimeoutError):
            asyncio.run(Guard(retry=policy(3), timeout=30).acall(hang))
        assert time.now == 93
        assert time.sleeps == [1, 2]
        with pytest.raises(outlast.TotalTimeoutError):
            asyncio.run(Guard(retry=policy(3), timeout=30, total_timeout=45).acall(hang))
        assert time.now == pytest.approx(93 + 45)


def test_a_timeout_does_not_strike_an_attempt_that_is_busy_elsewhere():
    """semantics 77: an attempt that waits for a thread is given real time to come back."""

    async def main():
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        threading.Timer(0.005, loop.call_soon_threadsafe, (done.set_result, "came back")).start()
        return await done

    with virtual_time() as time:
        assert asyncio.run(Guard(timeout=0.001).acall(main)) == "came back"
    assert time.now == 0


@pytest.mark.parametrize("isolation", [None, "thread"])
def test_grace_is_the_real_time_that_what_has_a_timeout_may_take(isolation):
    """semantics 77: a body that waits for a real server is not struck before that has answered, however busy the machine is."""
    answered = threading.Event()

    def ask():
        threading.Timer(0.2, answered.set).start()
        answered.wait()
        return "answered"

    async def aask():
        return await asyncio.to_thread(ask)

    with virtual_time(grace=60) as time:
        if isolation is None:
            came = asyncio.run(Guard(retry=None, timeout=0.001).acall(aask))
        else:
            came = Guard(retry=None, timeout=0.001, isolation=isolation).call(ask)
    assert (came, time.now, time.grace) == ("answered", 0, 60)


def test_advance_makes_timeouts_strike():
    """C-06, S0-16: a body that lets time pass runs out of it."""

    async def main(time):
        started = asyncio.Event()

        async def work():
            started.set()
            await hang()

        task = asyncio.create_task(Guard(retry=None, timeout=30).acall(work))
        await started.wait()
        time.advance(29)
        await asyncio.sleep(0)
        assert not task.done()
        time.advance(1)
        with pytest.raises(outlast.AttemptTimeoutError):
            await task
        assert time.now == 30

    with virtual_time() as time:
        asyncio.run(main(time))


def test_advance_wakes_who_waits():
    """C-06: from another thread too."""

    async def main(time):
        task = asyncio.create_task(outlast.retry(policy(2, initial_delay=20))(later(failing(1)))())
        advancing = threading.Thread(target=time.advance, args=(20,))
        advancing.start()
        assert await task == 2
        advancing.join(20)

    with virtual_time() as time:
        asyncio.run(main(time))


def test_a_hanging_thread_times_out_by_itself():
    """D-9, semantics 77: an isolated sync attempt runs into its virtual timeout."""
    end = threading.Event()
    try:
        with virtual_time() as time, pytest.raises(outlast.AttemptTimeoutError):
            Guard(retry=None, timeout=30, isolation="thread").call(end.wait, 20)
        assert time.now == 30
    finally:
        end.set()


def test_several_loops_share_one_time():
    """semantics 58: each thread has an event loop, all of them in one scope."""
    results = []

    def work():
        results.append(asyncio.run(outlast.retry(policy(4))(later(failing(3)))()))

    with virtual_time() as time:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert results == [4] * 4
    assert sorted(time.sleeps) == [1] * 4 + [2] * 4 + [4] * 4


def test_a_second_loop_after_the_first():
    """semantics 58: asyncio.run again in the same scope."""
    with virtual_time() as time:
        for _ in range(3):
            assert asyncio.run(outlast.retry(policy(2))(later(failing(1)))()) == 2
    assert time.now == 3


def test_a_stop_ends_a_virtual_wait():
    """semantics 23: set before it begins, or by another task during it."""

    async def main(time):
        stop = outlast.Stop()
        with stop:
            task = asyncio.create_task(outlast.retry(policy(2, initial_delay=20))(later(failing(9)))())
        await asyncio.sleep(0)
        stop.set()
        with pytest.raises(ConnectionResetError) as caught:
            await task
        assert outlast.stop_reason(caught.value) == "shutdown"
        assert time.now == 0

    with virtual_time() as time:
        asyncio.run(main(time))


def test_a_seed_makes_jitter_and_ids_the_same():
    """C-06: two runs with one seed are one run; another seed is another (S0-32)."""

    def story(seed):
        keys = []

        def work():
            keys.append(outlast.current().idempotency_key)
            raise ConnectionResetError

        with virtual_time(seed=seed) as time:
            for _ in range(5):
                with pytest.raises(ConnectionResetError):
                    Guard(retry=RetryPolicy(max_attempts=5), total_timeout=600).call(work)
        return time.sleeps, keys

    assert story(7) == story(7)
    assert story(7)[0] != story(8)[0]
    assert story(7)[1] != story(8)[1]
    assert len(set(story(7)[0])) == 20
    assert len(set(story(7)[1])) == 5


def test_without_a_seed_jitter_differs():
    """semantics 25: a test without a seed sees what production sees."""

    def sleeps():
        with virtual_time() as time, pytest.raises(ConnectionResetError):
            Guard(retry=RetryPolicy(max_attempts=6)).call(failing(9))
        return time.sleeps

    assert sleeps() != sleeps()


@pytest.mark.timeout(60)
def test_scopes_work_in_tasks():
    """semantics 76: two tasks of one loop, each with a time of its own."""

    async def work(failures):
        with virtual_time() as time:
            await outlast.retry(policy(5))(later(failing(failures)))()
            return time.sleeps

    async def main():
        return await asyncio.gather(work(1), work(3))

    assert asyncio.run(main()) == [[1], [1, 2, 4]]


# --- captured events ---


def test_captures_nest():
    """semantics 76: the outer one hears all, the inner one its part."""
    with virtual_time(), capture_events() as outer:
        Guard("first", retry=policy()).call(failing(1))
        with capture_events() as inner:
            Guard("second", retry=policy()).call(failing(1))
        Guard("third", retry=policy()).call(failing(1))
    assert [event.step_id for event in outer[::2]] == ["first", "second", "third"]
    assert [event.step_id for event in inner] == ["second", "second"]


def test_a_capture_ends_with_its_scope():
    """semantics 76: also after an error inside."""
    with suppress(RuntimeError), capture_events() as events:
        raise RuntimeError
    with pytest.raises(ValueError, match="bad"):
        Guard("shop").call(failing(1, ValueError("bad")))
    assert events == []


def test_a_function_decorated_before_is_captured():
    """semantics 76: when it was decorated does not matter."""
    work = outlast.retry(failing(1, ValueError("bad")))
    with capture_events() as events, pytest.raises(ValueError, match="bad"):
        work()
    assert len(events) == 1


# --- disabled ---


@pytest.mark.parametrize("kind", ["bare", "full", "async", "attempts", "outcome"])
def test_disabled_calls_once(kind):
    """semantics 78: one call, the error as it was, no wait, no note, no event."""
    work, error = failing(1, ConnectionResetError("once")), None
    with virtual_time() as time, disabled(), capture_events() as events:
        if kind == "outcome":
            error = Guard(retry=policy()).outcome(work).error
        else:
            with pytest.raises(ConnectionResetError, match="once") as caught:
                if kind == "bare":
                    outlast.retry(work)()
                elif kind == "full":
                    Guard(retry=policy(), total_timeout=9, fallback=int).call(work)
                elif kind == "async":
                    asyncio.run(Guard(retry=policy(), timeout=9, fallback=int).acall(later(work)))
                else:
                    for attempt in Guard(retry=policy()).attempts():
                        with attempt:
                            work()
            error = caught.value
    assert work() == 2
    assert (time.sleeps, events) == ([], [])
    assert getattr(error, "__notes__", []) == []
    assert outlast.history(error) == ()


def test_disabled_takes_away_timeouts_and_isolation():
    """semantics 78: the function runs where it was called, as long as it takes."""
    with virtual_time() as time, disabled():
        guard = Guard(timeout=5, isolation="thread")
        assert guard.call(threading.get_ident) == threading.get_ident()
        assert Guard(total_timeout=5).call(lambda: time.advance(60) or "late") == "late"
        assert Guard(total_timeout=5).call(lambda: outlast.current().remaining()) is None


def test_disabled_does_not_look_at_results():
    """semantics 78: what came is what is returned."""
    with disabled():
        assert Guard(retry=policy(), retry_if=lambda _: True).call(lambda: "first") == "first"


def test_disabled_nests_and_restores():
    """semantics 76, 78: inside of it and after it, also after an error."""
    with virtual_time() as time:
        with suppress(RuntimeError), disabled():
            with disabled(), pytest.raises(ConnectionResetError):
                outlast.retry(policy())(failing(1))()
            with pytest.raises(ConnectionResetError):
                outlast.retry(policy())(failing(1))()
            raise RuntimeError
        assert outlast.retry(policy())(failing(1))() == 2
    assert time.sleeps == [1]


def test_virtual_time_inside_disabled_stays_disabled():
    """semantics 76: an inner scope changes what it is about and nothing else."""
    with disabled(), virtual_time() as time, pytest.raises(ConnectionResetError):
        outlast.retry(policy())(failing(1))()
    assert time.sleeps == []


@pytest.mark.parametrize("value", ["1", "true", "yes"])
def test_the_environment_disables(value):
    """semantics 78: OUTLAST_DISABLE=1 turns everything off for a process."""
    script = """
import asyncio, outlast
calls = []
def work():
    calls.append(1)
    raise ConnectionResetError
async def awork(): work()
breaker = outlast.CircuitBreaker("b", failure_threshold=1)
for call in (
    outlast.retry(work), outlast.Guard(total_timeout=9, fallback=int)(work), breaker(work), outlast.Guard(breaker=breaker)(work),
    lambda: asyncio.run(outlast.retry(awork)()),
):
    try: call()
    except ConnectionResetError as error: assert outlast.history(error) == ()
print(len(calls), breaker.state)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=os.environ | {"OUTLAST_DISABLE": value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "5 closed\n", done.stderr


@pytest.mark.parametrize("value", ["", "0", "no", "false"])
def test_the_environment_does_not_disable_by_other_words(value):
    """semantics 73: zero and no mean no."""
    script = "from outlast.kernel.clock import REAL; print(REAL.retries)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"OUTLAST_DISABLE": value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr


# --- scripted faults ---


def test_faults_come_in_order_and_none_lets_the_call_run():
    """C-06: the first two attempts fail as scripted, the third runs."""
    guard, calls = Guard("fetch", retry=policy(4)), []
    script = Faults("fetch", TimeoutError("slow"), ConnectionResetError("reset"), None)
    with virtual_time() as time, inject(script), capture_events() as events:
        assert guard.call(lambda: calls.append(1) or "fine") == "fine"
        assert guard.call(lambda: "the script is over") == "the script is over"
    assert (calls, time.sleeps) == ([1], [1, 2])
    assert [event.name for event in events] == ["step_retry_attempt", "step_retry_attempt", "step_success"]
    assert [event.error for event in events[:2]] == ["slow", "reset"]


@pytest.mark.parametrize("kind", ["sync", "decorated", "async", "async decorated", "outcome"])
def test_faults_reach_every_kind_of_call(kind):
    """C-06: whichever door the call takes."""
    guard, work = Guard("fetch", retry=policy(2)), failing(0)
    with virtual_time(), inject(Faults("fetch", TimeoutError())):
        if kind == "sync":
            result = guard.call(work)
        elif kind == "decorated":
            result = guard(work)()
        elif kind == "async":
            result = asyncio.run(guard.acall(later(work)))
        elif kind == "async decorated":
            result = asyncio.run(guard(later(work))())
        else:
            result = guard.outcome(work).value
    assert result == 1


def test_a_function_without_a_guard_name_is_known_by_its_own():
    """C-06: by its qualified name."""

    @outlast.retry(initial_delay=1)
    def fetch():
        return "fine"

    with virtual_time() as time, inject(Faults(fetch.__qualname__, TimeoutError())):
        assert fetch() == "fine"
    assert len(time.sleeps) == 1


def test_other_calls_are_left_alone():
    """C-06: a script is for one name."""
    with inject(Faults("fetch", ValueError("scripted"))):
        assert Guard("other").call(failing(0)) == 1


def test_scripts_nest_and_end():
    """semantics 76: an inner script adds to the outer one, and leaving ends it."""
    one, two = Guard("one", retry=None), Guard("two", retry=None)
    with inject(Faults("one", ValueError("outer"), ValueError("outer again"))):
        with inject(Faults("two", ValueError("inner"))):
            with pytest.raises(ValueError, match="outer"):
                one.call(int)
            with pytest.raises(ValueError, match="inner"):
                two.call(int)
        assert two.call(int) == 0
        with pytest.raises(ValueError, match="outer again"):
            one.call(int)
    assert one.call(int) == 0


def test_a_fault_must_be_an_exception():
    """C-06: a class or a number is a mistake of the test, said at once."""
    with pytest.raises(TypeError, match="exception"):
        Faults("fetch", TimeoutError)
    with pytest.raises(TypeError, match="exception"):
        Faults("fetch", 503)


# --- runs ---


@contextmanager
def open_client():
    """A service that no test may reach."""
    raise AssertionError("the real service was opened")
    yield


@outlast.stage(retry=outlast.RetryPolicy(max_attempts=3))
def ask(number: int, client: str = outlast.use(open_client)) -> str:
    return f"{client} {number}"


def test_a_run_refuses_what_the_pipeline_does_not_know():
    """D-26: a misspelt stage would make a test pass for nothing, and a wrong key in provide would open the real service."""
    pipeline = outlast.Pipeline("asking", ask)
    with pytest.raises(outlast.ConfigurationError) as caught:
        outlast.testing.run(
            pipeline, [1], faults=[Faults("asks", TimeoutError())], provide={"open_client": "fake", print: "fake"}
        )
    assert list(caught.value.problems) == [
        "expected faults to be those of ask, got: 'asks'. Did you mean 'ask'? For a call inside of a stage use outlast.testing.inject.",
        "expected provide to be what the stages use (open_client), by the function itself, got: 'open_client'. Use provide={function: value}.",
        "expected provide to be what the stages use (open_client), by the function itself, got: print. Use provide={function: value}.",
    ]


def test_two_scripts_of_one_name_are_refused():
    """D-26: the first of them would have no effect."""
    with (
        pytest.raises(outlast.ConfigurationError, match="expected one Faults for 'ask', got: 2"),
        outlast.testing.inject(Faults("ask", TimeoutError()), Faults("ask", ValueError())),
    ):
        pass


def test_a_run_takes_the_key_of_its_items_its_own_and_a_sink(tmp_path):
    """They mean what they mean in Pipeline.run; with a seed the waits are the same every time."""

    def story() -> tuple[object, ...]:
        result = outlast.testing.run(
            outlast.Pipeline("asking", ask),
            [{"id": 7}],
            faults=[Faults("ask", TimeoutError())],
            provide={open_client: "fake"},
            run_key="today",
            item_key="id",
            sink=tmp_path / "out.jsonl",
            seed=5,
        )
        (item,) = result.items()
        lines = (tmp_path / "out.jsonl").read_text()
        (tmp_path / "out.jsonl").unlink()
        return result.run_key, item.key, item.attempts, lines, outlast.report.of(result).run.took

    first = story()
    assert first[:4] == ("today", "7", 2, "\"fake {'id': 7}\"\n")
    assert story() == first


# --- stores in virtual time ---


def tens(factor: int = 10):
    """A pipeline without an app, so that no program says where its store is."""

    @outlast.stage
    def multiply(number: int) -> int:
        return factor * number

    return outlast.Pipeline("tens", multiply)


def test_tests_of_one_pipeline_do_not_see_each_others_items(tmp_path, monkeypatch):
    """D-43: each scope of virtual time has a temporary store, so a changed stage is called in the next test run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTLAST_STORE", raising=False)
    found = []
    for factor, items in ((10, [1, 2, 3]), (10, [10, 20]), (30, [1, 2, 3])):
        with virtual_time(seed=0):
            result = tens(factor).run(items)
            again = tens(factor).run([*items, 5], run_key=result.run_key)
            found.append((sorted(result.outputs()), again.counts.total, result.id))
    assert [outputs for outputs, _, _ in found] == [[10, 20, 30, 50], [50, 100, 200], [30, 60, 90, 150]]
    assert [total for _, total, _ in found] == [4, 3, 4]  # within a scope there is one store
    assert len({id_ for _, _, id_ in found}) == 1  # the same from the seed each time
    assert not (tmp_path / ".outlast").exists()


def test_scopes_inside_of_another_one_use_its_store(tmp_path, monkeypatch):
    """D-43: what a fixture's scope has enqueued, the test's own scope finds; handles still answer afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTLAST_STORE", raising=False)
    app = outlast.App("nested")

    @app.job
    def double(number: int) -> int:
        return 2 * number

    with virtual_time(seed=1):
        job = double.enqueue(21)
        with virtual_time(), disabled():
            assert outlast.testing.work(app).succeeded == 1
    assert (job.result(), [*app.jobs.find()], (tmp_path / ".outlast").exists()) == (42, [], True)


@pytest.mark.parametrize("named", ["argument", "environment", "temporary_store"])
def test_a_store_that_the_test_names_is_kept_and_no_run_resumes_another(tmp_path, monkeypatch, named):
    """D-43: the same seed gives runs without a key, dead letters and events of their own in one store."""
    address = f"sqlite:///{tmp_path / 'kept.db'}"
    monkeypatch.delenv("OUTLAST_STORE", raising=False)
    if named == "environment":
        monkeypatch.setenv("OUTLAST_STORE", address)
    app = outlast.App("kept", store=address if named == "argument" else None)

    @outlast.stage(retry=None)
    def refuse_odd(number: int) -> int:
        if number % 2:
            raise ValueError("odd")
        return number

    numbers = outlast.Pipeline("numbers", refuse_odd, app=app)

    @app.job(retry=None)
    def fail() -> None:
        raise ValueError("no")

    found = []
    for items in ([1, 2], [3, 4, 6]):
        kept = outlast.testing.temporary_store(app, store=address) if named == "temporary_store" else nullcontext()
        with virtual_time(seed=1), kept:
            result = numbers.run(items, check=False)
            resumed = numbers.run([*items, 8], run_key="day", check=False)
            job = fail.enqueue()
            outlast.testing.work(app)
            found.append((result, resumed, job.status))
            letters = len(app.store.letter_owners())
    assert [sorted(result.outputs()) for result, _, _ in found] == [[2], [4, 6]]
    assert [resumed.counts.total for _, resumed, _ in found] == [3, 6]  # a key that the test gives means the same run
    assert ([status for _, _, status in found], letters) == (["failed", "failed"], 6)
    assert len({result.id for result, _, _ in found} | {resumed.id for _, resumed, _ in found}) == 3
