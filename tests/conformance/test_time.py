"""Time: one clock that only goes forward, deadlines that hold, waits that can be ended."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import sys
import threading
import time
from datetime import timedelta

import pytest

from conformance.adapter import SUBJECTS, statement
from conformance.bodies import PATIENCE, Story, caught, failing, in_thread, settled, trip
from conformance.cases import cases

HOUR = 3600.0


# -- which clock


@pytest.fixture
def wall_clock(monkeypatch):
    """Set the wall clock by hand: `wall_clock(-3600)` puts it back one hour."""
    real_time, real_datetime = time.time, dt.datetime
    moved = [0.0]

    class Moved(real_datetime):
        @classmethod
        def now(cls, tz=None):
            return real_datetime.now(tz) + timedelta(seconds=moved[0])

    def move(seconds):
        moved[0] += seconds

    monkeypatch.setattr(time, "time", lambda: real_time() + moved[0])
    monkeypatch.setattr(dt, "datetime", Moved)
    packages = {package for subject in SUBJECTS.values() for package in subject.packages}
    for name, module in list(sys.modules.items()):  # those that have taken the class itself
        if name.partition(".")[0] in packages and getattr(module, "datetime", None) is real_datetime:
            monkeypatch.setattr(module, "datetime", Moved)
    return move


@statement(15)
@pytest.mark.parametrize("change", [-HOUR, HOUR])
def test_setting_the_wall_clock_changes_nothing_for_a_call(subject, way, mode, wall_clock, change):
    """semantics 15: a call with a total timeout makes all its attempts whichever way the wall clock is set during them."""
    story = failing()

    def body():
        wall_clock(change)
        story()

    protected = subject.protect(mode.body(body), way=way, waits=(0.001, 0.001), total_timeout=PATIENCE)
    assert mode.catch(protected) is story.raised[-1]
    assert (story.calls, subject.reason(story.raised[-1])) == (3, "exhausted")


@statement(15, needs=["breaker"])
def test_setting_the_wall_clock_back_does_not_keep_a_circuit_open(subject, wall_clock):
    """semantics 15: an open circuit admits a probe after its time, although the wall clock says that it has not begun."""
    breaker = subject.breaker(failures=1, open_for=0.01, probes=1)
    trip(breaker)
    wall_clock(-HOUR)
    give_up = time.monotonic() + PATIENCE
    while isinstance(error := caught(breaker.call, Story()), subject.rejected) and time.monotonic() < give_up:
        threading.Event().wait(0.002)
    assert (error, breaker.state) == (None, "closed")


@statement(15, needs=["breaker"])
def test_setting_the_wall_clock_forward_does_not_end_the_open_time(subject, wall_clock):
    """semantics 15: an open circuit stays open although the wall clock says that its time is over."""
    breaker = subject.breaker(failures=1, open_for=HOUR / 2)
    trip(breaker)
    wall_clock(HOUR)
    assert isinstance(caught(breaker.call, Story()), subject.rejected)


# -- deadlines


@statement(17, needs=["clock"])
def test_a_wait_that_does_not_fit_is_not_begun(subject, way, mode):
    """semantics 17: with 0.2 s in all and a wait of 0.5 s the call ends at once, with the last error."""
    story = failing()
    with subject.time() as clock:
        error = mode.catch(subject.protect(mode.body(story.fn), way=way, waits=(0.5, 0.5), total_timeout=0.2))
    assert (error, story.calls) == (story.raised[0], 1)
    assert (clock.now, clock.sleeps, subject.reason(error)) == (0.0, [], "total_timeout")


@statement(18, needs=["clock"])
@cases(("total", "calls"), [(1.0, 1), (1.001, 2), (2.999, 2), (3.0, 2), (3.001, 3), (100.0, 3)])
def test_a_wait_is_begun_only_if_it_ends_before_the_deadline(subject, way, mode, total, calls):
    """semantics 18: time spent plus the next wait must stay below the total, or the call gives up now with its last error."""
    story = failing()
    with subject.time() as clock:
        error = mode.catch(subject.protect(mode.body(story.fn), way=way, waits=(1.0, 2.0), total_timeout=total))
    assert error is story.raised[-1]
    assert (story.calls, clock.sleeps) == (calls, [1.0, 2.0][: calls - 1])
    assert subject.reason(error) == ("exhausted" if calls == 3 else "total_timeout")


@statement(19, needs=["virtual_time", "timeout", "async"])
def test_an_attempt_ends_with_its_timeout_or_with_what_is_left(subject, way):
    """semantics 19: a full attempt timeout first, and the last attempt only gets what the total timeout has left for it."""
    ended, calls = [], []

    async def body():
        calls.append(len(calls) + 1)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(clock.now)

    with subject.time() as clock:
        protected = subject.protect(body, way=way, waits=(0.5, 0.5), timeout=4.0, total_timeout=6.0)
        with pytest.raises(subject.total_timed_out) as error:
            asyncio.run(protected())
    assert (calls, ended, clock.sleeps) == ([1, 2], [4.0, 6.0], [0.5])
    assert (clock.now, subject.reason(error.value)) == (6.0, "total_timeout")
    assert issubclass(subject.attempt_timed_out, TimeoutError)
    assert issubclass(subject.total_timed_out, TimeoutError)


@statement(19, needs=["virtual_time", "thread_timeout"])
def test_a_blocking_attempt_ends_with_what_is_left(subject):
    """semantics 19: the same for sync code in a thread of its own."""
    release, calls = threading.Event(), []

    def body():
        calls.append(len(calls) + 1)
        if len(calls) == 1:
            clock.advance(5.0)
            raise ConnectionResetError
        release.wait(PATIENCE)

    with subject.time() as clock:
        protected = subject.protect(body, timeout=4.0, total_timeout=6.0, thread=True)
        with pytest.raises(subject.total_timed_out):
            protected()
        release.set()
    assert (calls, clock.now) == ([1, 2], 6.0)


@statement(19, needs=["virtual_time", "thread_timeout", "nested"])
@cases("timeout", [10.0, None])
def test_a_blocking_attempt_ends_with_what_an_outer_call_has_left(subject, timeout):
    """semantics 19: the deadline that bounds an attempt may be that of a call further out."""
    release = threading.Event()
    inner = subject.protect(lambda: release.wait(PATIENCE), timeout=timeout, thread=True)
    outer = subject.protect(inner, total_timeout=3.0)
    with subject.time() as clock:
        rescue = threading.Timer(PATIENCE / 10, release.set)  # nothing else would end an attempt without a deadline
        rescue.daemon = True
        rescue.start()
        error = caught(outer)
        released, ended = release.is_set(), clock.now
        rescue.cancel()
        release.set()
    assert isinstance(error, TimeoutError)
    assert (ended, released) == (3.0, False)


def after_five_seconds(subject, way, mode, total):
    """A call whose first attempt fails after 5 s, with waits of 1 s: its error, the calls, the waits and the time at its end."""
    story = failing()

    def body():
        clock.advance(5.0)
        story()

    with subject.time() as clock:
        error = mode.catch(subject.protect(mode.body(body), way=way, waits=(1.0, 1.0), total_timeout=total))
    return error is story.raised[0], story.calls, clock.sleeps, clock.now


@statement(18, needs=["clock"])
def test_a_wait_that_no_longer_fits_after_a_slow_attempt_is_not_begun(subject, way, mode):
    """semantics 18: an attempt of 5 s leaves no room for a wait of 1 s in 5.5 s."""
    assert after_five_seconds(subject, way, mode, 5.5) == (True, 1, [], 5.0)


@statement(20, needs=["clock"])
def test_the_time_of_the_attempt_itself_counts(subject, way, mode):
    """semantics 20: what is spent is measured after the attempt, so an attempt of 5 s is the last one in 4.5 s."""
    assert after_five_seconds(subject, way, mode, 4.5) == (True, 1, [], 5.0)


@statement(21, needs=["clock", "nested"])
@cases("inner_total", [None, 100.0])
def test_an_inner_call_cannot_extend_an_outer_deadline(subject, way, mode, inner_total):
    """semantics 21: of nested deadlines the nearest counts, and the inner call gives up in time for it."""
    story = failing()
    more = {} if inner_total is None else {"total_timeout": inner_total}
    inner = subject.protect(mode.body(story.fn), way=way, attempts=9, waits=(2.0,), **more)
    if mode.asynchronous:

        async def call():
            await inner()
    else:

        def call():
            inner()

    with subject.time() as clock:
        error = mode.catch(subject.protect(call, total_timeout=5.0))
    assert (error, story.calls, clock.now) == (story.raised[-1], 3, 4.0)


@statement(21, needs=["clock", "nested"])
def test_an_outer_call_cannot_extend_an_inner_deadline(subject, way, mode):
    """semantics 21: the minimum is taken both ways."""
    story = failing()
    inner = subject.protect(mode.body(story.fn), way=way, attempts=9, waits=(2.0,), total_timeout=5.0)
    if mode.asynchronous:

        async def call():
            await inner()
    else:

        def call():
            inner()

    with subject.time() as clock:
        error = mode.catch(subject.protect(call, total_timeout=100.0))
    assert (error, story.calls, clock.now) == (story.raised[-1], 3, 4.0)


@statement(21, needs=["clock", "remaining"])
def test_the_body_knows_what_is_left(subject, way, mode):
    """semantics 21: `remaining` is the time to the nearest deadline, in every attempt, and None without one."""
    seen = []

    def body():
        seen.append(subject.remaining())
        clock.advance(1.0)
        raise ConnectionResetError

    with subject.time() as clock:
        mode.catch(subject.protect(mode.body(body), way=way, waits=(2.0, 2.0), total_timeout=10.0))
        assert subject.remaining() is None
    assert seen == [10.0, 7.0, 4.0]


@statement(21, needs=["clock", "remaining", "nested"])
def test_the_body_knows_the_nearest_of_nested_deadlines(subject, way, mode):
    """semantics 21: inside of two calls it is the minimum, whichever of them is nearer."""
    seen = []

    def look():
        seen.append(subject.remaining())

    def nested(outer, inner):
        protected = subject.protect(mode.body(look), way=way, total_timeout=inner)
        if not mode.asynchronous:
            return subject.protect(protected, total_timeout=outer)

        async def call():
            await protected()

        return subject.protect(call, total_timeout=outer)

    with subject.time():
        for outer, inner in ((3.0, 100.0), (100.0, 3.0)):
            mode.run(nested(outer, inner))
    assert seen == [3.0, 3.0]


@statement(21, needs=["clock", "remaining", "thread_timeout"])
def test_what_is_left_is_known_in_the_thread_of_an_attempt(subject):
    """semantics 21: a thread that the library starts knows the deadline of the call it works for."""
    with subject.time():
        assert subject.protect(subject.remaining, timeout=4.0, total_timeout=10.0, thread=True)() == 10.0


@statement(21, needs=["clock", "remaining", "async"])
def test_what_is_left_is_known_in_child_tasks(subject, way):
    """semantics 21: a task that the body starts knows the deadline too."""

    async def child():
        return subject.remaining()

    async def body():
        return await asyncio.create_task(child())

    with subject.time():
        assert asyncio.run(subject.protect(body, way=way, total_timeout=10.0)()) == 10.0


# -- what makes no sense


@statement(22)
@cases("field", ["timeout", "total_timeout"])
@cases("value", [0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf, timedelta(0), timedelta(seconds=-1)])
def test_a_timeout_that_makes_no_sense_is_refused(subject, field, value):
    """semantics 22: zero, negative, NaN and infinite are refused at once, and the message names the field and the value."""
    with pytest.raises(subject.misconfigured) as wrong:
        subject.protect(lambda: None, thread=True, **{field: value})
    assert field in str(wrong.value)
    shown = value.total_seconds() if isinstance(value, timedelta) else value
    assert repr(shown) in str(wrong.value)


@statement(22, needs=["clock"])
@cases("attempts", [1, 2, 3])
def test_nothing_is_waited_for_after_the_last_attempt(subject, way, mode, attempts):
    """semantics 22: a wait stands between two attempts and nowhere else."""
    story = failing()
    with subject.time() as clock:
        mode.catch(subject.protect(mode.body(story.fn), way=way, attempts=attempts, waits=(0.2,)))
    assert (story.calls, clock.sleeps, clock.now) == (attempts, [0.2] * (attempts - 1), sum([0.2] * (attempts - 1)))


# -- winding down


@statement(23, needs=["stop", "reasons"])
def test_a_stop_ends_the_wait_of_a_sync_call(subject, way):
    """semantics 23: asked to stop from another thread while it waits for an hour, a call raises its last error at once."""
    story, failed, stop = failing(), threading.Event(), subject.stop()

    def body():
        failed.set()
        story()

    def ask():
        assert failed.wait(PATIENCE)
        asked.append(time.monotonic())
        stop.set()

    def work():
        with stop:
            return caught(subject.protect(body, way=way, waits=(HOUR, HOUR))), time.monotonic()

    asked = []
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    error, ended = in_thread(work)
    asking.join(PATIENCE)
    assert (error, story.calls, subject.reason(error)) == (story.raised[0], 1, "shutdown")
    assert ended - asked[0] < PATIENCE / 3


@statement(23, needs=["stop", "reasons", "async"])
@pytest.mark.parametrize("from_thread", [True, False])
def test_a_stop_ends_the_wait_of_an_async_call(subject, way, from_thread):
    """semantics 23: the same for a coroutine, asked from its own loop or from another thread."""
    story, stop = failing(), subject.stop()

    async def body():
        story()

    async def main():
        with stop:
            task = asyncio.create_task(subject.protect(body, way=way, waits=(HOUR, HOUR))())
        await settled()
        assert not task.done()
        if from_thread:
            await asyncio.to_thread(stop.set)
        else:
            stop.set()
        (error,) = await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), PATIENCE)
        return error

    error = asyncio.run(main())
    assert (error, story.calls, subject.reason(error)) == (story.raised[0], 1, "shutdown")


@statement(23, needs=["stop", "reasons"])
def test_after_a_stop_nothing_is_tried_again(subject, way, mode):
    """semantics 23: a call that fails when stopping was already asked for does not begin to wait."""
    story, stop = failing(), subject.stop()
    stop.set()
    with stop:
        error = mode.catch(subject.protect(mode.body(story.fn), way=way, waits=(HOUR, HOUR)))
    assert (error, story.calls, subject.reason(error)) == (story.raised[0], 1, "shutdown")


@statement(23, needs=["stop", "clock"])
def test_a_stop_concerns_only_the_calls_inside_of_it(subject, way, mode):
    """semantics 23: calls outside of the scope go on."""
    story, stop = Story(ConnectionResetError), subject.stop()
    with stop:
        pass
    stop.set()
    with subject.time() as clock:
        assert mode.run(subject.protect(mode.body(story.fn), way=way, waits=(5.0,))) == "done"
    assert clock.sleeps == [5.0]


@statement(23, needs=["stop", "result_retry"])
def test_a_stop_ends_the_wait_for_a_better_result_with_the_last_one(subject):
    """semantics 23: a call that retries a result has no error to raise; it returns what it has."""
    returned, stop = threading.Event(), subject.stop()

    def body():
        returned.set()
        return "busy"

    def ask():
        assert returned.wait(PATIENCE)
        stop.set()

    def work():
        with stop:
            return subject.protect(body, waits=(HOUR, HOUR), again_if=lambda result: True)()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    assert in_thread(work) == "busy"
    asking.join(PATIENCE)
