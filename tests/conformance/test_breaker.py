"""Circuit breakers: who gets in, what counts, when it opens and closes, and how it stands with retries around it."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from collections import deque
from contextlib import suppress

import pytest

from conformance.adapter import statement
from conformance.bodies import PATIENCE, Story, caught, failing, in_thread, in_threads, lines_run, settled, trip
from conformance.cases import cases


def opened(subject, clock, **options):
    """A circuit that has tripped and whose open time is over: the next call is a probe."""
    breaker = subject.breaker(**{"failures": 1, "open_for": 10.0} | options)
    trip(breaker, options.get("failures", 1))
    clock.advance(10.0)
    return breaker


def admitted(subject, breaker):
    """Whether the circuit admits a call now; the call itself says nothing about the service."""
    return not isinstance(caught(breaker.call, failing(KeyboardInterrupt)), subject.rejected)


class Slow:
    """Calls that go on until told how to end."""

    def __init__(self):
        self._end = asyncio.Event()
        self.begun = 0
        self.error = None

    async def __call__(self):
        self.begun += 1
        await self._end.wait()
        if self.error is not None:
            raise self.error
        return "done"

    async def end(self, task, error=None):
        """Let it end, and wait for its task."""
        self.error = error
        self._end.set()
        return (await asyncio.gather(task, return_exceptions=True))[0]


async def started(breaker, slow=None):
    """A call that has begun and goes on."""
    slow = slow or Slow()
    task = asyncio.create_task(breaker.acall(slow.__call__))
    await settled()
    return slow, task


# -- half-open


@statement(43, needs=["breaker", "clock", "side_by_side"])
@pytest.mark.parametrize("probes", [1, 2, 5])
def test_among_a_hundred_threads_only_the_probes_get_in(subject, probes):
    """semantics 43: however many threads come at once, so many calls run as there are places; the others are rejected."""
    count, inside, answered = 100, [], threading.Semaphore(0)
    release = threading.Event()

    def probe():
        inside.append("probe")
        answered.release()
        assert release.wait(PATIENCE)

    def work(_):
        try:
            breaker.call(probe)
        except subject.rejected:
            answered.release()
            return "rejected"
        return "admitted"

    def let_go():
        for _ in range(count):  # each thread is inside or was turned away
            assert answered.acquire(timeout=PATIENCE)
        release.set()

    with subject.time() as clock:
        breaker = opened(subject, clock, probes=probes, successes=probes)
        letting_go = threading.Thread(target=let_go, daemon=True)
        letting_go.start()
        results = in_threads(count, work)
        letting_go.join(PATIENCE)
    assert len(inside) == probes
    assert (results.count("admitted"), results.count("rejected")) == (probes, count - probes)
    assert breaker.state == "closed"


@statement(43, needs=["breaker", "clock", "async"])
@pytest.mark.parametrize("probes", [1, 2, 5])
def test_among_a_thousand_tasks_only_the_probes_get_in(subject, probes):
    """semantics 43: the same for tasks of an event loop."""

    async def main():
        slow = Slow()
        tasks = [asyncio.create_task(breaker.acall(slow.__call__)) for _ in range(1000)]
        await settled()
        assert slow.begun == probes
        await slow.end(asyncio.gather(*tasks, return_exceptions=True))
        return await asyncio.gather(*tasks, return_exceptions=True)

    with subject.time() as clock:
        breaker = opened(subject, clock, probes=probes, successes=probes)
        results = asyncio.run(main())
    assert results.count("done") == probes
    assert sum(isinstance(result, subject.rejected) for result in results) == 1000 - probes


@statement(43, needs=["breaker", "clock", "async"])
def test_no_more_probes_run_in_all_than_are_needed_to_close(subject):
    """semantics 43: with 2 at a time and 5 successes to close, the fifth probe is the last one, in every wave of callers."""
    waves = []

    async def main():
        while breaker.state != "closed":
            slow = Slow()
            tasks = asyncio.gather(*(breaker.acall(slow.__call__) for _ in range(50)), return_exceptions=True)
            await settled()
            waves.append(slow.begun)
            await slow.end(tasks)

    with subject.time() as clock:
        breaker = opened(subject, clock, probes=2, successes=5)
        asyncio.run(main())
    assert waves == [2, 2, 1]


@statement(43, needs=["breaker", "clock"])
def test_one_failed_probe_opens_the_circuit_again(subject):
    """semantics 43: the other successes of the round are forgotten with it."""
    with subject.time() as clock:
        breaker = opened(subject, clock, probes=1, successes=2)
        assert breaker.call(Story()) == "done"
        trip(breaker)
        assert breaker.state == "open"
        clock.advance(10.0)
        assert breaker.call(Story()) == "done"
        assert breaker.state == "half_open"
        assert breaker.call(Story()) == "done"
        assert breaker.state == "closed"


# -- eras


@statement(44, needs=["breaker", "clock", "async"])
@cases("error", [None, ConnectionResetError()])
def test_a_call_from_before_the_opening_cannot_speak_for_the_probes(subject, error):
    """semantics 44: a late answer, good or bad, of a call admitted when the circuit was closed changes nothing later."""

    async def main():
        breaker = subject.breaker(failures=1, open_for=10.0, probes=1, successes=1)
        late, late_task = await started(breaker)
        other, other_task = await started(breaker)
        trip(breaker)
        await late.end(late_task, error)
        assert breaker.state == "open"
        clock.advance(10.0)
        probe, probe_task = await started(breaker)
        assert breaker.state == "half_open"
        await other.end(other_task, error)
        assert breaker.state == "half_open"
        await probe.end(probe_task)
        assert breaker.state == "closed"

    with subject.time() as clock:
        asyncio.run(main())


@statement(44, needs=["breaker", "clock", "async", "strict_probes"])
@cases("error", [None, ConnectionResetError()])
def test_a_probe_of_an_earlier_round_cannot_speak_for_this_one(subject, error):
    """semantics 44: what a probe returns after its round has failed neither closes nor re-opens the circuit."""

    async def main():
        breaker = opened(subject, clock, probes=2, successes=2)
        late, late_task = await started(breaker)
        trip(breaker)
        clock.advance(10.0)
        probe, probe_task = await started(breaker)
        await late.end(late_task, error)
        assert breaker.state == "half_open"
        await probe.end(probe_task)
        assert breaker.state == "half_open"
        assert breaker.call(Story()) == "done"
        assert breaker.state == "closed"

    with subject.time() as clock:
        asyncio.run(main())


@statement(44, needs=["breaker", "clock", "async"])
def test_failures_from_before_the_opening_do_not_count_after_the_closing(subject):
    """semantics 44: a circuit that has closed again starts from nothing, also with late failures coming in."""

    async def main():
        breaker = subject.breaker(failures=3, open_for=10.0, probes=1, successes=1)
        late = [await started(breaker) for _ in range(3)]
        trip(breaker, 3)
        clock.advance(10.0)
        assert breaker.call(Story()) == "done"
        for slow, task in late:
            assert isinstance(await slow.end(task, ConnectionResetError()), ConnectionResetError)
        assert breaker.state == "closed"
        trip(breaker, 2)
        assert breaker.state == "closed"
        trip(breaker)
        assert breaker.state == "open"

    with subject.time() as clock:
        asyncio.run(main())


# -- what says nothing

NEUTRAL = [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]


@statement(45, needs=["breaker"])
@cases("interruption", NEUTRAL)
def test_an_interruption_is_neither_failure_nor_success(subject, mode, interruption):
    """semantics 45: it does not open the circuit, and it does not end a row of failures."""
    breaker = subject.breaker(failures=2)
    interrupted = breaker(mode.body(failing(interruption).fn))
    for _ in range(5):
        assert isinstance(mode.catch(interrupted), interruption)
    assert breaker.state == "closed"
    trip(breaker)
    mode.catch(interrupted)
    trip(breaker)
    assert breaker.state == "open"


@statement(45, needs=["breaker", "clock"])
@cases("interruption", NEUTRAL)
def test_an_interrupted_probe_gives_its_place_back(subject, mode, interruption):
    """semantics 45: the next call is the probe instead."""
    with subject.time() as clock:
        breaker = opened(subject, clock, probes=1, successes=1)
        for _ in range(3):
            assert isinstance(mode.catch(breaker(mode.body(failing(interruption).fn))), interruption)
            assert breaker.state == "half_open"
        assert mode.run(breaker(mode.body(Story().fn))) == "done"
    assert breaker.state == "closed"


@statement(45, needs=["breaker", "clock", "async"])
def test_a_cancelled_probe_gives_its_place_back(subject, way):
    """semantics 45: a task that is cancelled from outside, in every way to protect a call."""

    async def main():
        breaker = opened(subject, clock, probes=1, successes=1)
        slow = Slow()

        async def body():
            await slow()

        task = asyncio.create_task(subject.protect(body, way=way, breaker=breaker)())
        await settled()
        assert (slow.begun, admitted(subject, breaker)) == (1, False)
        task.cancel()
        (error,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(error, asyncio.CancelledError)
        assert breaker.state == "half_open"
        assert admitted(subject, breaker)

    with subject.time() as clock:
        asyncio.run(main())


@statement(45, needs=["breaker", "virtual_time", "async", "timeout"])
def test_an_attempt_cut_short_by_the_callers_deadline_says_nothing(subject, way):
    """semantics 45: the service may have been fast enough for anyone with more time; a full attempt timeout does count."""

    async def body():
        await asyncio.Event().wait()

    breaker = subject.breaker(failures=1)
    with subject.time():
        for _ in range(2):
            protected = subject.protect(body, way=way, attempts=1, total_timeout=2.0, breaker=breaker)
            with pytest.raises(subject.total_timed_out):
                asyncio.run(protected())
        assert breaker.state == "closed"
        protected = subject.protect(body, way=way, attempts=1, timeout=2.0, breaker=breaker)
        with pytest.raises(subject.attempt_timed_out):
            asyncio.run(protected())
    assert breaker.state == "open"


@statement(46, needs=["breaker", "clock", "async", "probe_limit"])
def test_a_probe_that_never_comes_back_loses_its_place(subject):
    """semantics 46: after a bounded time another call may probe, so that a lost probe cannot keep the circuit half-open."""

    async def main():
        breaker = opened(subject, clock, probes=1, successes=1)
        lost, lost_task = await started(breaker)
        assert not admitted(subject, breaker)
        clock.advance(600.0)
        assert breaker.call(Story()) == "done"
        assert breaker.state == "closed"
        await lost.end(lost_task, ConnectionResetError())
        assert breaker.state == "closed"

    with subject.time() as clock:
        asyncio.run(main())


@statement(46, needs=["breaker", "clock", "async", "probe_limit"])
@cases("error", [None, ConnectionResetError()])
def test_a_probe_that_has_lost_its_place_speaks_for_nobody(subject, error):
    """semantics 46: when it comes back after all, it neither counts nor frees the place of the probe that runs now."""

    async def main():
        breaker = opened(subject, clock, probes=1, successes=3)
        lost, lost_task = await started(breaker)
        clock.advance(600.0)
        assert breaker.call(Story()) == "done"
        probe, probe_task = await started(breaker)
        await lost.end(lost_task, error)
        assert breaker.state == "half_open"
        assert not admitted(subject, breaker), "two probes at a time"
        await probe.end(probe_task)
        assert breaker.state == "half_open"
        assert breaker.call(Story()) == "done"
        assert breaker.state == "closed"

    with subject.time() as clock:
        asyncio.run(main())


@statement(47, needs=["breaker"])
def test_calls_run_side_by_side(subject):
    """semantics 47: no lock is held during a call: four threads meet inside of theirs."""
    breaker, together = subject.breaker(), threading.Barrier(4)
    meet = breaker(lambda: together.wait(PATIENCE))
    results = in_threads(4, lambda _: meet())
    assert sorted(results) == [0, 1, 2, 3]


@statement(47, needs=["breaker", "clock"])
def test_probes_run_side_by_side(subject):
    """semantics 47: nor during a probe."""
    together = threading.Barrier(4)
    with subject.time() as clock:
        breaker = opened(subject, clock, probes=4, successes=4)
        results = in_threads(4, lambda _: breaker.call(together.wait, PATIENCE))
    assert sorted(results) == [0, 1, 2, 3]


# -- what counts


@statement(48, needs=["breaker"])
def test_an_error_of_the_caller_neither_counts_nor_forgives(subject, mode):
    """semantics 48: a permanent error says that the service answers, and nothing about its health."""
    breaker = subject.breaker(failures=3)
    wrong = breaker(mode.body(failing(ValueError).fn))
    for _ in range(10):
        assert isinstance(mode.catch(wrong), ValueError)
    assert breaker.state == "closed"
    trip(breaker, 2)
    mode.catch(wrong)
    trip(breaker)
    assert breaker.state == "open"


@statement(48, needs=["breaker", "clock"])
def test_a_probe_with_an_error_of_the_caller_gives_its_place_back(subject, mode):
    """semantics 48: it decides nothing, so the next call is the probe instead."""
    with subject.time() as clock:
        breaker = opened(subject, clock, probes=1, successes=1)
        assert isinstance(mode.catch(breaker(mode.body(failing(ValueError).fn))), ValueError)
        assert breaker.state == "half_open"
        assert mode.run(breaker(mode.body(Story().fn))) == "done"
    assert breaker.state == "closed"


class Service:
    """Whatever can be called and awaited."""

    def __init__(self):
        self.calls = 0

    async def fail(self):
        self.calls += 1
        raise ConnectionResetError

    __call__ = fail

    def later(self):
        return self.fail()


@statement(49, needs=["breaker", "async"])
@cases("how", ["method", "object", "partial", "function that returns a coroutine"])
def test_a_coroutine_is_judged_by_how_it_ends(subject, how):
    """semantics 49: five awaited failures open the circuit; making the coroutine is no success."""
    service = Service()
    async_fn = {
        "method": service.fail,
        "object": service,
        "partial": functools.partial(service.fail),
        "function that returns a coroutine": service.later,
    }[how]
    breaker = subject.breaker(failures=5)
    protected = breaker(async_fn)

    async def main():
        return [type((await asyncio.gather(protected(), return_exceptions=True))[0]) for _ in range(5)]

    assert asyncio.run(main()) == [ConnectionResetError] * 5
    assert (service.calls, breaker.state) == (5, "open")


@statement(50, needs=["breaker"])
def test_a_with_block_is_rejected_when_the_circuit_is_open(subject):
    """semantics 50: its failures open the circuit, and then the block does not run."""
    breaker, ran = subject.breaker(failures=2), []
    for _ in range(2):
        with pytest.raises(ConnectionResetError), breaker:
            raise ConnectionResetError
    with pytest.raises(subject.rejected), breaker:
        ran.append("block")
    assert (ran, breaker.state) == ([], "open")


@statement(50, needs=["breaker", "clock"])
def test_with_blocks_probe_and_close(subject):
    """semantics 50: blocks nest, also with other circuits, and each is settled as it ends."""
    with subject.time() as clock:
        breaker, other = opened(subject, clock, probes=2, successes=2), subject.breaker(failures=1)
        with breaker, pytest.raises(ConnectionResetError), other, breaker:
            with pytest.raises(subject.rejected), breaker:
                raise AssertionError("a third probe")
            raise ConnectionResetError
        assert (breaker.state, other.state) == ("open", "open")
        clock.advance(10.0)
        for _ in range(2):
            with breaker:
                pass
        assert breaker.state == "closed"


@statement(50, needs=["breaker", "clock"])
def test_with_blocks_that_overlap_are_settled_each_for_itself(subject):
    """semantics 50: generators may leave their blocks in another order than they entered them."""

    def block(breaker, error=None):
        with breaker:
            yield
            if error is not None:
                raise error

    with subject.time() as clock:
        one, two = opened(subject, clock, probes=1, successes=1), opened(subject, clock, probes=1, successes=1)
        first, second = block(one), block(two, ConnectionResetError())
        next(first)
        next(second)
        assert caught(next, first).__class__ is StopIteration
        assert (one.state, two.state) == ("closed", "half_open")
        assert caught(next, second).__class__ is ConnectionResetError
        assert (one.state, two.state) == ("closed", "open")


# -- telling


@statement(51, needs=["breaker", "events"])
def test_many_failures_at_once_open_the_circuit_once(subject):
    """semantics 51: fifty threads fail together, and one event says that the circuit opened."""
    breaker, together = subject.breaker(failures=3), threading.Barrier(50)

    def fail():
        together.wait(PATIENCE)
        raise ConnectionResetError

    told = []
    unsubscribe = subject.subscribe(told.append)
    try:
        in_threads(50, lambda _: caught(breaker.call, fail))
    finally:
        unsubscribe()
    assert [subject.kind(event) for event in told] == ["opened"]
    assert breaker.state == "open"


@statement(51, needs=["breaker", "events", "clock"])
def test_every_change_is_told_once_and_in_order(subject):
    """semantics 51: the whole life of a circuit, as events."""
    with subject.time() as clock, subject.events() as events:
        breaker = opened(subject, clock, probes=1, successes=2)
        trip(breaker)
        clock.advance(10.0)
        breaker.call(Story())
        breaker.call(Story())
        breaker.isolate("maintenance")
        breaker.reset()
    told = [subject.kind(event) for event in events]
    assert told == ["opened", "probing", "reopened", "probing", "closed", "opened", "closed"]


@statement(51, needs=["breaker", "events", "clock"])
def test_a_listener_may_use_the_breaker(subject):
    """semantics 51: listeners run outside of the lock: calling, tripping, resetting and looking cannot deadlock."""
    seen = []

    def listener(event):
        kind = subject.kind(event)
        seen.append((kind, breaker.state))
        if kind == "opened":
            seen.append(isinstance(caught(breaker.call, Story()), subject.rejected))
        if kind == "probing":
            breaker.reset()
        if kind == "closed":
            seen.append(breaker.call(Story()))

    def live():
        unsubscribe = subject.subscribe(listener)
        try:
            with subject.time() as clock:
                trip(breaker)
                clock.advance(10.0)
                return breaker.call(Story())
        finally:
            unsubscribe()

    breaker = subject.breaker(failures=1, open_for=10.0, probes=1)
    assert in_thread(live) == "done"
    assert seen == [("opened", "open"), True, ("probing", "half_open"), ("closed", "closed"), "done"]


# -- rates


@statement(52, needs=["breaker"])
def test_a_rate_is_looked_at_only_after_enough_calls(subject):
    """semantics 52: nineteen failures of nineteen calls say nothing when twenty are the least."""
    breaker = subject.breaker(rate=0.5, window=100, least=20)
    trip(breaker, 19)
    assert breaker.state == "closed"
    trip(breaker)
    assert breaker.state == "open"


@statement(52, needs=["breaker"])
@cases("seed", range(5))
def test_the_window_holds_the_last_calls_exactly(subject, seed):
    """semantics 52: the circuit opens with the very call that brings the share of the window to the rate."""
    dice, window, least = random.Random(seed), 50, 20
    breaker, last = subject.breaker(rate=0.5, window=window, least=least), deque(maxlen=window)
    for _ in range(least):  # from here on only a failure can raise the share
        last.append(False)
        breaker.call(Story())
    while True:
        fails = dice.random() < 0.45
        last.append(fails)
        caught(breaker.call, failing() if fails else Story())
        expected = len(last) >= least and sum(last) >= 0.5 * len(last)
        assert breaker.state == ("open" if expected else "closed")
        if expected:
            break
    assert len(last) >= least


@statement(52, needs=["breaker"])
def test_an_outcome_costs_the_same_in_a_large_window(subject):
    """semantics 52: the steps do not depend on the size of the window."""

    def steps(window):
        breaker = subject.breaker(rate=1.0, window=window, least=window)
        for _ in range(3):
            breaker.call(Story())
        return lines_run(lambda: breaker.call(story))

    story = Story()
    steps(10)
    assert steps(100_000) == steps(10)


@statement(52, needs=["breaker"], lanes=False)
def test_counts_do_not_drift(subject):
    """semantics 52: after 200,000 outcomes just below the rate, one failure more opens the circuit, and not one before."""
    breaker = subject.breaker(rate=0.3, window=10, least=10)
    error = ConnectionResetError()

    def fail():
        raise error

    quietly = suppress(ConnectionResetError)
    good, bad, ten = breaker(int), breaker(fail), (False, True) * 2 + (False,) * 6
    for _ in range(20_000):
        for fails in ten:
            if fails:
                with quietly:
                    bad()
            else:
                good()
    assert breaker.state == "closed"
    error.__traceback__ = None
    trip(breaker)
    assert breaker.state == "open"


# -- how long it stays open


def open_time(subject, breaker):
    """The seconds until the open circuit admits a probe."""
    rejection = caught(breaker.call, Story())
    assert isinstance(rejection, subject.rejected)
    return rejection.retry_after


@statement(53, needs=["breaker", "clock"])
def test_the_open_time_grows_with_each_failed_round_up_to_a_cap(subject):
    """semantics 53: 10, 20, 40 s and so on, then the same for ever, however many rounds fail; a closing starts over."""
    with subject.time() as clock:
        breaker = subject.breaker(failures=1, open_for=10.0, growth=2.0, probes=1, successes=1)
        times = []
        for _ in range(1100):
            trip(breaker)
            times.append(open_time(subject, breaker))
            clock.advance(times[-1])
        assert times[:4] == pytest.approx([10.0, 20.0, 40.0, 80.0])
        assert times == sorted(times)
        assert len(set(times[20:])) == 1
        assert times[-1] < 86_400
        breaker.call(Story())
        trip(breaker)
        assert open_time(subject, breaker) == pytest.approx(10.0)


@statement(53, needs=["breaker", "virtual_time"])
def test_the_open_time_varies(subject):
    """semantics 53: a hundred circuits that open together are not probed together."""
    with subject.time(seed=1):
        times = []
        for _ in range(100):
            breaker = subject.breaker(failures=1, open_for=10.0, jitter=0.2)
            trip(breaker)
            times.append(open_time(subject, breaker))
    assert len(set(times)) >= 99
    assert 8.0 <= min(times) <= max(times) <= 12.0


# -- by hand


@statement(54, needs=["breaker", "clock", "async"])
def test_an_isolated_circuit_stays_open(subject):
    """semantics 54: neither time, nor late successes, nor failures change what was decided by hand."""

    async def main():
        breaker = subject.breaker(failures=1, open_for=10.0, probes=1, successes=1)
        good, good_task = await started(breaker)
        bad, bad_task = await started(breaker)
        breaker.isolate("maintenance")
        clock.advance(10.0**6)
        assert not admitted(subject, breaker)
        await good.end(good_task)
        await bad.end(bad_task, ConnectionResetError())
        assert (breaker.state, admitted(subject, breaker)) == ("open", False)
        breaker.reset()
        assert (breaker.state, breaker.call(Story())) == ("closed", "done")

    with subject.time() as clock:
        asyncio.run(main())


@statement(54, needs=["breaker", "clock", "async"])
def test_isolating_beats_a_round_of_probes(subject):
    """semantics 54: a probe that is under way cannot close what has been isolated meanwhile."""

    async def main():
        breaker = opened(subject, clock, probes=1, successes=1)
        probe, probe_task = await started(breaker)
        breaker.isolate("maintenance")
        await probe.end(probe_task)
        clock.advance(10.0**6)
        assert (breaker.state, admitted(subject, breaker)) == ("open", False)

    with subject.time() as clock:
        asyncio.run(main())


@statement(54, needs=["breaker", "clock", "events"])
def test_a_shadow_tells_and_never_rejects(subject, mode):
    """semantics 54: whatever state it is in, isolated too, every call runs."""
    with subject.time() as clock, subject.events() as events:
        breaker, story = subject.breaker(failures=2, open_for=10.0, probes=1, successes=1, shadow=True), failing()
        protected = breaker(mode.body(story.fn))
        for _ in range(20):
            assert mode.catch(protected) is story.raised[-1]
            clock.advance(3.0)
        breaker.isolate("maintenance")
        assert mode.run(breaker(mode.body(Story().fn))) == "done"
        with breaker:
            pass
    assert story.calls == 20
    assert {subject.kind(event) for event in events} >= {"opened", "probing", "reopened"}


# -- with retries


@statement(56, needs=["breaker", "clock", "history"])
def test_waiting_for_an_open_circuit_costs_no_attempt(subject, way, mode):
    """semantics 56: all attempts are made, each when the circuit admits it."""
    story = failing()
    breaker = subject.breaker(failures=1, open_for=5.0, probes=1, successes=1)
    protected = subject.protect(mode.body(story.fn), way=way, attempts=3, waits=(1.0,), breaker=breaker, wait_open=True)
    with subject.time() as clock:
        error = mode.catch(protected)
    assert (error, story.calls, clock.now) == (story.raised[-1], 3, 10.0)
    assert sum(clock.sleeps) == 10.0
    assert len(subject.history(error)) == 3


@statement(56, needs=["breaker", "clock"])
def test_a_call_waits_for_a_circuit_that_others_have_opened(subject, way, mode):
    """semantics 56: the first attempt is made when the circuit admits it, and it is attempt 1."""
    numbers = []
    breaker = subject.breaker(failures=1, open_for=5.0)
    protected = subject.protect(
        mode.body(lambda: numbers.append(subject.attempt())),
        way=way,
        breaker=breaker,
        wait_open=True,
        total_timeout=6.0,
    )
    with subject.time() as clock:
        trip(breaker)
        mode.run(protected)
    assert (numbers, clock.now) == ([1], 5.0)


@statement(56, needs=["breaker", "clock", "reasons"])
@cases("options", [{"wait_open": True, "total_timeout": 4.0}, {"wait_open": True, "total_timeout": 5.0}, {}])
def test_an_open_circuit_that_cannot_be_waited_for_fails_the_call_at_once(subject, way, mode, options):
    """semantics 56: waiting was not asked for or does not fit; nothing is called and no time passes."""
    story, breaker = Story(), subject.breaker(failures=1, open_for=5.0)
    with subject.time() as clock:
        trip(breaker)
        error = mode.catch(subject.protect(mode.body(story.fn), way=way, breaker=breaker, **options))
    assert isinstance(error, subject.rejected)
    assert error.retry_after == pytest.approx(5.0)
    assert (story.calls, clock.now, clock.sleeps, subject.reason(error)) == (0, 0.0, [], "breaker_open")


@statement(56, needs=["breaker", "clock", "reasons"])
def test_a_circuit_that_opens_between_attempts_ends_the_call_with_its_own_error(subject, way, mode):
    """semantics 56: the attempts that are left are not spent on rejections."""
    story, breaker = failing(), subject.breaker(failures=2, open_for=50.0)
    with subject.time() as clock:
        protected = subject.protect(mode.body(story.fn), way=way, attempts=9, waits=(1.0,), breaker=breaker)
        error = mode.catch(protected)
    assert (error, story.calls, subject.reason(error)) == (story.raised[-1], 2, "breaker_open")
    assert clock.now <= 2.0


@statement(56, needs=["breaker", "clock", "async"])
def test_a_crowd_that_waits_for_a_circuit_gets_through_it(subject, way):
    """semantics 56: fifty calls wait together; two probe, and when the circuit has closed every call has run once."""
    ran, inside, most = [], [], []

    async def body(number):
        inside.append(number)
        if breaker.state != "closed":
            most.append(len(inside))
        await settled(3)
        inside.remove(number)
        ran.append(number)

    async def main():
        protected = subject.protect(body, way=way, breaker=breaker, wait_open=True, total_timeout=60.0)
        await asyncio.gather(*(protected(number) for number in range(50)))

    with subject.time() as clock:
        breaker = subject.breaker(failures=1, open_for=5.0, probes=2, successes=2)
        trip(breaker)
        asyncio.run(main())
    assert sorted(ran) == list(range(50))
    assert (max(most), breaker.state) == (2, "closed")
    assert 5.0 <= clock.now <= 10.0


@statement(56, needs=["breaker", "stop", "reasons"])
def test_a_stop_ends_the_wait_for_a_circuit(subject, way, mode):
    """semantics 56: nothing was called, so what is raised is the rejection."""
    breaker, stop, story = subject.breaker(failures=1, open_for=3600.0), subject.stop(), Story()
    trip(breaker)
    stop.set()
    with stop:
        error = mode.catch(subject.protect(mode.body(story.fn), way=way, breaker=breaker, wait_open=True))
    assert isinstance(error, subject.rejected)
    assert story.calls == 0


@statement(56, needs=["breaker", "clock"])
def test_an_isolated_circuit_is_not_waited_for(subject, way, mode):
    """semantics 56: nobody knows when it will be closed again."""
    breaker = subject.breaker()
    breaker.isolate("maintenance")
    with subject.time() as clock:
        error = mode.catch(subject.protect(mode.body(Story().fn), way=way, breaker=breaker, wait_open=True))
    assert isinstance(error, subject.rejected)
    assert clock.sleeps == []


@statement(57, needs=["breaker"])
def test_a_breaker_inside_of_a_retry_counts_attempts(subject, way, mode):
    """semantics 57: given to the retry, it hears of every attempt."""
    breaker = subject.breaker(failures=4)
    protected = subject.protect(mode.body(failing().fn), way=way, attempts=3, breaker=breaker)
    mode.catch(protected)
    assert breaker.state == "closed"
    mode.catch(protected)
    assert breaker.state == "open"


@statement(57, needs=["breaker"])
def test_a_breaker_around_a_retry_counts_calls(subject, way, mode):
    """semantics 57: put around the retried function, it hears of a call once, when all its attempts are over."""
    breaker, story = subject.breaker(failures=2), failing()
    protected = breaker(subject.protect(mode.body(story.fn), way=way, attempts=3))
    mode.catch(protected)
    assert breaker.state == "closed"
    mode.catch(protected)
    assert (breaker.state, story.calls) == ("open", 6)


@statement(57, needs=["breaker"])
def test_a_call_that_recovers_is_one_success_for_a_breaker_around_it(subject, way, mode):
    """semantics 57: its failed attempts are not seen outside."""
    breaker = subject.breaker(failures=2)
    for _ in range(5):
        protected = breaker(subject.protect(mode.body(Story(ConnectionResetError).fn), way=way))
        assert mode.run(protected) == "done"
    trip(breaker)
    assert breaker.state == "closed"
