"""Configuration and testing: what is given is obeyed, defaults are safe, and tests need neither waiting nor luck."""

from __future__ import annotations

import asyncio
import importlib
import pickle
import sys
import threading
import time
from collections import Counter
from datetime import timedelta

import pytest

from conformance.adapter import statement
from conformance.bodies import (
    PATIENCE,
    Story,
    caught,
    failing,
    frames,
    in_new_process,
    in_thread,
    in_threads,
    settled,
    trip,
)
from conformance.cases import cases

# -- what is given


@statement(73)
@cases("nothing", [(), [], frozenset()])
def test_an_empty_list_of_errors_retries_nothing(subject, way, mode, nothing):
    """semantics 73: nothing listed is nothing retried, not the default."""
    story = failing()
    assert mode.catch(subject.protect(mode.body(story.fn), way=way, on=nothing)) is story.raised[0]
    assert story.calls == 1


@statement(73, needs=["clock"])
@cases("zero", [{"first": 0}, {"first": 0.0}, {"first": timedelta(0)}, {"cap": 0}, {"waits": (0, 0)}])
def test_a_delay_of_zero_is_no_delay(subject, way, mode, zero):
    """semantics 73: zero seconds are zero seconds, with jitter too."""
    story = failing()
    with subject.time() as clock:
        mode.catch(subject.protect(mode.body(story.fn), way=way, jitter=0.5, **zero))
    assert (story.calls, sum(clock.sleeps), clock.now) == (3, 0.0, 0.0)


@statement(73, needs=["clock"])
@cases("jitter", [0, 0.0])
def test_a_jitter_of_zero_is_no_jitter(subject, way, mode, jitter):
    """semantics 73: then the delays are exactly the nominal ones."""
    with subject.time() as clock:
        mode.catch(subject.protect(mode.body(failing().fn), way=way, first=1.0, jitter=jitter))
    assert clock.sleeps == [1.0, 2.0]


@statement(73, needs=["tiers"])
@cases("tiers", [{}, {"network": 0}])
def test_limits_of_zero_grant_no_retry(subject, way, mode, tiers):
    """semantics 73: a tier with zero retries, or no tier listed, is called once."""
    story = failing()
    mode.catch(subject.protect(mode.body(story.fn), way=way, tiers=tiers))
    assert story.calls == 1


@statement(73, needs=["breaker"])
@cases("zero", [0, 0.0, timedelta(0)])
def test_an_open_time_of_zero_admits_a_probe_at_once(subject, zero):
    """semantics 73: the circuit opens, and the next call is the probe."""
    breaker = subject.breaker(failures=1, open_for=zero, probes=1, successes=1)
    trip(breaker)
    assert breaker.state != "closed"
    assert breaker.call(Story()) == "done"
    assert breaker.state == "closed"


@statement(73, needs=["budget"])
def test_a_budget_of_nothing_grants_nothing(subject, mode):
    """semantics 73: zero in reserve and a ratio of zero."""
    budget, story = subject.budget(ratio=0, reserve=0), failing()
    for _ in range(20):
        mode.run(subject.protect(mode.body(Story().fn), budget=budget))
    mode.catch(subject.protect(mode.body(story.fn), budget=budget))
    assert story.calls == 1


@statement(73, needs=["nested"])
def test_a_given_no_is_a_no(subject):
    """semantics 73: saying explicitly that exhausted errors are not repeated means the same as not saying it."""
    for said in ({}, {"again": None}, {"again": False}):
        story = failing()
        inner = subject.protect(story.fn)
        caught(subject.protect(inner, **said))
        assert story.calls == 3


@statement(73)
def test_falsy_results_are_results(subject, way, mode):
    """semantics 73: what the function returns is returned, also if it is nothing much."""
    for value in (None, 0, False, "", [], {}):
        got = mode.run(subject.protect(mode.body(lambda: value), way=way))  # noqa: B023 - called here
        assert got is value


# -- what is not given


@statement(74, needs=["clock"])
def test_the_bare_decorator_is_bounded(subject, mode):
    """semantics 74: a handful of attempts with growing waits between them, then the error itself."""
    story = failing()
    with subject.time() as clock:
        error = mode.catch(subject.bare(mode.body(story.fn)))
    assert error is story.raised[-1]
    assert 2 <= story.calls <= 10
    assert len(clock.sleeps) == story.calls - 1
    assert all(0 < sleep <= 60 for sleep in clock.sleeps)
    assert clock.now <= 600


@statement(74, needs=["clock"])
def test_the_bare_decorator_spreads_its_waits(subject, mode):
    """semantics 74: many callers that fail together do not come back together."""
    first = []
    for seed in range(20):
        with subject.time(seed=seed) as clock:
            mode.catch(subject.bare(mode.body(failing().fn)))
        first.append(clock.sleeps[0])
    assert len(set(first)) == 20


@statement(74, needs=["classification", "clock"])
@cases("error", [ValueError, TypeError, KeyError, AttributeError, NotImplementedError, PermissionError])
def test_the_bare_decorator_does_not_repeat_mistakes(subject, mode, error):
    """semantics 74: what cannot get better is raised after one call."""
    story = failing(error)
    with subject.time() as clock:
        assert mode.catch(subject.bare(mode.body(story.fn))) is story.raised[0]
    assert (story.calls, clock.sleeps) == (1, [])


@statement(74)
def test_the_bare_decorator_changes_nothing_that_works(subject, mode):
    """semantics 74: name, documentation, arguments and result are those of the function."""

    def add(one, /, two=2, *, three=3):
        """Add."""
        return one + two + three

    async def async_add(one, /, two=2, *, three=3):
        """Add."""
        return one + two + three

    fn = async_add if mode.asynchronous else add
    protected = subject.bare(fn)
    assert mode.run(protected, 1, three=5) == 8
    assert (protected.__name__, protected.__doc__, protected.__wrapped__) == (fn.__name__, "Add.", fn)


@statement(75, needs=["docs"])
def test_the_documentation_is_run(subject):
    """semantics 75: the tests of the documentation exist and find programs on its pages."""
    docs = importlib.import_module("test_docs")
    assert docs.test_block_runs_and_prints_what_the_page_says
    assert [program for page in docs.PAGES for program in docs.programs(page) if not program.skipped]


# -- test mode


@statement(76, needs=["virtual_time"])
def test_leaving_virtual_time_restores_what_was_before(subject):
    """semantics 76: also when the test fails, nothing is left that was not there: threads, waits and chance are real again."""
    start, story, slept = threading.Thread.start, Story(ConnectionResetError), []
    with pytest.raises(ZeroDivisionError), subject.time() as clock, subject.events(), subject.off():
        raise ZeroDivisionError
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", slept.append)
        assert subject.protect(story.fn, waits=(5.0,))() == "done"
    assert (slept, clock.sleeps, clock.now) == ([5.0], [], 0.0)
    assert threading.Thread.start is start


@statement(76, needs=["virtual_time"])
def test_virtual_time_nests(subject, mode):
    """semantics 76: inside there is another time; leaving it, the outer one goes on where it was."""

    def wait():
        mode.catch(subject.protect(mode.body(failing().fn), attempts=2, waits=(5.0,)))

    with subject.time() as outer:
        wait()
        with pytest.raises(ZeroDivisionError), subject.time() as inner:
            wait()
            wait()
            raise ZeroDivisionError
        wait()
    assert (outer.sleeps, outer.now) == ([5.0, 5.0], 10.0)
    assert (inner.sleeps, inner.now) == ([5.0, 5.0], 10.0)


@statement(76, needs=["virtual_time", "off", "events"])
def test_scopes_of_different_kinds_nest(subject):
    """semantics 76: turning off inside of virtual time keeps the time, and coming back keeps the rest."""
    story = failing()
    protected = subject.protect(story.fn, waits=(5.0,))
    with subject.time() as clock, subject.events() as outer:
        with subject.off(), subject.events() as inner:
            caught(protected)
            assert story.calls == 1
        caught(protected)
    assert (story.calls, clock.sleeps, inner) == (4, [5.0, 5.0], [])
    assert [subject.kind(event) for event in outer] == ["retry", "retry", "gave_up"]


@statement(76, needs=["virtual_time"])
def test_a_thread_outside_of_the_scope_lives_in_real_time(subject):
    """semantics 76: virtual time belongs to the context that asked for it."""
    entered, done = threading.Event(), threading.Event()

    def outside():
        assert entered.wait(PATIENCE)
        try:
            began = time.monotonic()
            caught(subject.protect(failing().fn, attempts=2, waits=(0.02,)))
            return time.monotonic() - began
        finally:
            done.set()

    def inside():
        with subject.time() as clock:
            entered.set()
            assert done.wait(PATIENCE)
            return clock.sleeps

    took, sleeps = in_threads(2, lambda number: (outside, inside)[number]())
    assert took >= 0.02
    assert sleeps == []


@statement(76, needs=["virtual_time", "off", "events"])
def test_tests_may_run_side_by_side(subject):
    """semantics 76: threads with scopes of their own see neither each other's time nor each other's events."""

    def work(number):
        story = failing()
        protected = subject.protect(story.fn, attempts=number + 1, waits=(float(number + 1),))
        for _ in range(20):
            with subject.time() as clock, subject.events() as events:
                caught(protected)
            assert clock.sleeps == [number + 1.0] * number
            assert len(events) == number + 1
            with subject.off():
                before = story.calls
                caught(protected)
                assert story.calls == before + 1
        return "fine"

    assert in_threads(6, work) == ["fine"] * 6


@statement(76, needs=["virtual_time"])
def test_threads_and_tasks_started_inside_are_inside(subject):
    """semantics 76: what a test starts belongs to it."""
    protected = subject.protect(failing().fn, attempts=2, waits=(3600.0,))

    async def main():
        await asyncio.gather(asyncio.to_thread(caught, protected), asyncio.create_task(child()))

    async def child():
        caught(protected)

    with subject.time() as clock:
        in_thread(lambda: caught(protected))
        asyncio.run(main())
    assert clock.sleeps == [3600.0] * 3


@statement(77, needs=["virtual_time"])
def test_ten_minutes_pass_in_a_moment(subject, way, mode):
    """semantics 77: the recorded waits are the promised sequence, and testing them costs less than 50 ms."""
    took = []
    for _ in range(5):  # the best of five: the machine may be busy
        story, began = failing(), time.thread_time()
        with subject.time() as clock:
            mode.catch(subject.protect(mode.body(story.fn), way=way, attempts=12, first=1.0, growth=2.0, cap=120.0))
        took.append(time.thread_time() - began)
        assert clock.sleeps == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 120.0, 120.0, 120.0, 120.0]
        assert clock.now == 607.0
    assert min(took) < 0.05


# -- turned off


@statement(78, needs=["off"])
def test_turned_off_the_function_is_called_once(subject, way, mode):
    """semantics 78: success or failure, one call; nothing waits, nothing is told."""
    story, good = failing(), Story()
    protected, fine = subject.protect(mode.body(story.fn), way=way), subject.protect(mode.body(good.fn), way=way)
    with subject.off(), subject.time() as clock, subject.events() as events:
        assert mode.catch(protected) is story.raised[0]
        assert mode.run(fine) == "done"
    assert (story.calls, good.calls, clock.sleeps, events) == (1, 1, [], [])


@statement(78, needs=["off", "fallback", "result_retry", "budget"])
def test_turned_off_nothing_else_happens_either(subject, mode):
    """semantics 78: no fallback, no second look at the result, no timeout, no budget."""
    ran, story = [], failing()
    budget = subject.budget(ratio=1.0, reserve=1)
    protected = subject.protect(
        mode.body(story.fn),
        fallback=mode.body(lambda: ran.append(1)),
        budget=budget,
        again_if=lambda result: ran.append(2),
    )
    with subject.off():
        assert mode.catch(protected) is story.raised[0]
        assert mode.run(subject.protect(mode.body(Story().fn), again_if=lambda result: ran.append(3))) == "done"
    assert ran == []
    again = failing()
    mode.catch(subject.protect(mode.body(again.fn), attempts=9, budget=budget))
    assert again.calls == 2  # the reserve was not touched


@statement(78, needs=["off", "breaker"])
def test_turned_off_a_breaker_neither_counts_nor_rejects(subject, mode):
    """semantics 78: in every way to use it, with or without a retry around."""
    breaker, broken = subject.breaker(failures=1), subject.breaker(failures=1)
    trip(broken)
    with subject.off():
        mode.catch(breaker(mode.body(failing().fn)))
        with pytest.raises(ConnectionResetError), breaker:
            raise ConnectionResetError
        assert mode.run(broken(mode.body(Story().fn))) == "done"
        assert mode.run(subject.protect(mode.body(Story().fn), breaker=broken)) == "done"
        with broken:
            pass
    assert (breaker.state, broken.state) == ("closed", "open")


@statement(78, needs=["off"])
@pytest.mark.parametrize("full", [False, True], ids=["alone", "with everything"])
def test_turned_off_a_call_is_one_frame_deeper(subject, mode, full):
    """semantics 78: the wrapper itself is all that stands between the caller and the function."""

    def depth():
        return frames(sys._getframe())

    fn = mode.body(depth)
    protected = subject.protect(fn, way=subject.ways[:2][-full])
    with subject.off():
        assert mode.run(protected) - mode.run(fn) <= 1


SWITCHED_OFF = """
import asyncio, sys
from conformance.adapter import SUBJECTS
from conformance.bodies import Story, caught, failing, frames

subject, story = SUBJECTS[{name!r}], failing()
assert caught(subject.protect(story.fn, waits=(3600.0,))) is story.raised[0]
assert caught(subject.bare(story.fn)) is story.raised[1]
assert subject.bare(Story().fn)() == "done"

async def body():
    story()

assert caught(lambda: asyncio.run(subject.bare(body)())) is story.raised[2]

def depth():
    return frames(sys._getframe())

print(story.calls, subject.bare(depth)() - depth())
"""


@statement(78, needs=["off"], lanes=False)
def test_the_environment_turns_everything_off(subject):
    """semantics 78: one switch for a whole process, with the same result."""
    calls, deeper = in_new_process(SWITCHED_OFF.format(name=subject.name), **subject.switch_off)[0].split()
    assert calls == "3"
    assert int(deeper) <= 1


# -- what metrics may be split by


@statement(79, needs=["events", "breaker"])
def test_what_events_may_be_counted_by_is_bounded(subject, mode):
    """semantics 79: neither messages nor attempt numbers nor arguments become labels, so more traffic makes no more series."""

    def labels(calls):
        found = set()
        with subject.events() as events:
            for number in range(calls):

                def body(number=number):
                    if number % 3 == 0:
                        raise ValueError(f"wrong order {number}")
                    raise ConnectionResetError(f"peer {number} is gone")

                breaker = named if number % 5 else subject.breaker(failures=1)
                protected = subject.protect(mode.body(body), attempts=number % 7 + 1, breaker=breaker)
                mode.catch(protected)
            found.update(tuple(label for label in subject.labels(event) if label) for event in events)
        return {labels for labels in found if not any(label.startswith("circuit-") for label in labels)}

    named = subject.breaker(failures=10**6)
    some, many = labels(30), labels(120)
    assert some == many
    text = repr(many)
    assert not any(character.isdigit() for character in text)


# -- reloading


@statement(80, needs=["breaker", "clock"])
def test_a_reloaded_breaker_keeps_its_row_of_failures(subject):
    """semantics 80: two failures before and one after the reload are three in a row."""
    breaker = subject.breaker(failures=3, open_for=10.0)
    trip(breaker, 2)
    reloaded = subject.reload(breaker, open_for=99.0)
    assert reloaded.state == "closed"
    with subject.time():
        trip(reloaded)
        assert reloaded.state == "open"
        assert caught(reloaded.call, Story()).retry_after == pytest.approx(99.0)


@statement(80, needs=["breaker"])
def test_a_reloaded_breaker_keeps_its_window(subject):
    """semantics 80: the outcomes seen before the reload count in the rate after it."""
    breaker = subject.breaker(rate=0.5, window=100, least=20)
    trip(breaker, 9)
    for _ in range(10):
        breaker.call(Story())
    reloaded = subject.reload(breaker, open_for=99.0)
    assert reloaded.state == "closed"
    trip(reloaded)
    assert reloaded.state == "open"


@statement(80, needs=["breaker", "clock"])
def test_a_reloaded_breaker_is_as_open_as_before(subject):
    """semantics 80: an open circuit stays open for its time, an isolated one stays isolated."""
    with subject.time() as clock:
        breaker, isolated = subject.breaker(failures=1, open_for=10.0), subject.breaker()
        trip(breaker)
        isolated.isolate("maintenance")
        breaker, isolated = subject.reload(breaker, failures=50), subject.reload(isolated, failures=50)
        assert isinstance(caught(breaker.call, Story()), subject.rejected)
        clock.advance(10.0)
        assert breaker.call(Story()) == "done"
        assert isinstance(caught(isolated.call, Story()), subject.rejected)


@statement(80, needs=["breaker", "async"])
def test_what_is_under_way_during_a_reload_counts_in_the_same_circuit(subject):
    """semantics 80: a call admitted before the reload ends after it, and its failure is one of the row."""

    async def main():
        end = asyncio.Event()

        async def fail():
            await end.wait()
            raise ConnectionResetError

        old = subject.breaker(failures=3)
        trip(old)
        under_way = asyncio.create_task(old.acall(fail))
        await settled()
        new = subject.reload(old, open_for=99.0)
        end.set()
        await asyncio.gather(under_way, return_exceptions=True)
        assert new.state == "closed"
        trip(new)
        return old.state, new.state

    assert asyncio.run(main()) == ("open", "open")


@statement(80, needs=["breaker", "async", "clock"])
def test_what_is_under_way_during_a_reload_is_judged_by_the_old_settings(subject):
    """semantics 80: a call of 5 s was not slow when it began, and is not made so afterwards."""

    async def main():
        end = asyncio.Event()
        old = subject.breaker(failures=1, slow=10.0)
        under_way = asyncio.create_task(old.acall(end.wait))
        await settled()
        new = subject.reload(old, slow=1.0)
        clock.advance(5.0)
        end.set()
        await under_way
        assert new.state == "closed"
        new.call(clock.advance, 5.0)
        return new.state

    with subject.time() as clock:
        assert asyncio.run(main()) == "open"


@statement(80, needs=["breaker"])
def test_after_a_reload_the_name_means_the_new_breaker(subject):
    """semantics 80: what travels by name arrives with the settings that hold now."""
    breaker = subject.breaker(failures=1)
    reloaded = subject.reload(breaker, failures=5)
    assert pickle.loads(pickle.dumps(reloaded)) is reloaded


@statement(80, needs=["budget"])
def test_a_new_policy_keeps_the_budget(subject, mode):
    """semantics 80: what has been spent under the old policy is spent."""
    budget, story = subject.budget(ratio=0.2, reserve=3), failing()
    mode.catch(subject.protect(mode.body(story.fn), attempts=3, budget=budget))
    mode.catch(subject.protect(mode.body(story.fn), attempts=9, budget=budget))
    assert story.calls == 3 + 2


@statement(80, needs=["clock"])
def test_a_call_under_way_ends_under_the_policy_it_began_with(subject, way, mode):
    """semantics 80: protecting the same function anew does not change how long the running call goes on."""
    calls = Counter()

    def body(which):
        calls[which] += 1
        if which == "old" and calls["old"] == 1:
            reloaded = subject.protect(fn, way=way, attempts=2, waits=(7.0,))
            inner.append(reloaded)
        raise ConnectionResetError

    inner, fn = [], mode.body(body)
    with subject.time() as clock:
        mode.catch(subject.protect(fn, way=way, attempts=4, waits=(1.0,)), "old")
        mode.catch(inner[0], "new")
    assert calls == {"old": 4, "new": 2}
    assert clock.sleeps == [1.0, 1.0, 1.0, 7.0]
