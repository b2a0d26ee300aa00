"""Limits and hedges: how many may run at once, how often, and what may be begun a second time."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections import defaultdict

import pytest

from conformance.adapter import statement
from conformance.bodies import PATIENCE, Story, caught, failing, in_thread, in_threads, settled
from conformance.cases import cases

ENDINGS = [ConnectionResetError, ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]


class Room:
    """A body that stays until its door is opened; it knows who came in, in order, and how many were inside at most."""

    def __init__(self):
        self._doors = defaultdict(asyncio.Event)
        self.came, self.inside, self.most = [], 0, 0

    async def stay(self, who):
        self.came.append(who)
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self._doors[who].wait()
        finally:
            self.inside -= 1

    def open(self, *who):
        for each in who:
            self._doors[each].set()


async def leave_in_turn(room, *who):
    for each in who:
        room.open(each)
        await settled()


# -- how many at once


@statement(69, needs=["async", "concurrency"])
def test_no_more_tasks_run_than_the_limit_admits(subject, way):
    """semantics 69: all slots are used, none is used twice, and who waits is served in the order of arrival."""
    room = Room()

    async def main():
        protected = subject.protect(room.stay, way=way, limit=subject.limit(concurrency=3))
        tasks = [asyncio.create_task(protected(who)) for who in range(10)]
        await settled()
        assert room.came == [0, 1, 2]
        await leave_in_turn(room, *range(10))
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert (room.came, room.most) == (list(range(10)), 3)


@statement(69, needs=["concurrency"])
def test_no_more_threads_run_than_the_limit_admits(subject, way):
    """semantics 69: three at a time get in, and never a fourth."""
    together, lock, inside, most = threading.Barrier(3), threading.Lock(), 0, 0

    def body(number):
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        together.wait(PATIENCE)  # nobody leaves before three are in
        with lock:
            inside -= 1
        return number

    protected = subject.protect(body, way=way, limit=subject.limit(concurrency=3))
    assert in_threads(12, protected) == list(range(12))
    assert most == 3


@statement(69, needs=["async", "concurrency"])
def test_nobody_overtakes_who_waits(subject, way):
    """semantics 69: who comes at the moment in which a slot becomes free stands behind those who have waited for it."""
    room = Room()

    async def main():
        protected = subject.protect(room.stay, way=way, limit=subject.limit(concurrency=1))
        tasks = []
        for who in range(3):
            tasks.append(asyncio.create_task(protected(who)))
            await settled()
        for rounds in range(6):
            room.open(rounds)
            for _ in range(rounds):
                await asyncio.sleep(0)
            tasks.append(asyncio.create_task(protected(len(tasks))))
            await settled()
        await leave_in_turn(room, *range(len(tasks)))
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert (room.came, room.most) == (list(range(9)), 1)


@statement(69, needs=["async", "concurrency"])
@cases("rounds", range(12))
def test_a_cancelled_waiter_neither_keeps_a_slot_nor_a_wake_up(subject, way, rounds):
    """semantics 69: cancelled before, while or after it is handed the slot, it leaves the limit to the next one."""
    room = Room()

    async def main():
        protected = subject.protect(room.stay, way=way, limit=subject.limit(concurrency=1))
        tasks = []
        for who in range(3):
            tasks.append(asyncio.create_task(protected(who)))
            await settled()
        assert room.came == [0]
        room.open(0)
        for _ in range(rounds):
            await asyncio.sleep(0)
        tasks[1].cancel()
        await settled()
        assert (room.came[-1], room.inside) == (2, 1)
        tasks += [asyncio.create_task(protected(who)) for who in (3, 4)]
        await settled()
        assert room.inside == 1
        await leave_in_turn(room, 2, 3, 4)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        return [type(end) for end in ends]

    nothing = type(None)
    assert asyncio.run(main()) == [nothing, asyncio.CancelledError, nothing, nothing, nothing]
    assert room.most == 1


@statement(69, needs=["async", "concurrency"])
def test_no_slot_is_held_between_the_attempts_of_a_coroutine(subject, way):
    """semantics 69: while one call waits for its next attempt another one runs; cancelled then, it has nothing to give back."""
    room = Room()

    async def body(who):
        if who == "unlucky":
            raise ConnectionResetError
        await room.stay(who)

    async def main():
        protected = subject.protect(body, way=way, waits=(3600.0, 3600.0), limit=subject.limit(concurrency=1))
        unlucky = asyncio.create_task(protected("unlucky"))
        await settled()
        others = [asyncio.create_task(protected(who)) for who in range(3)]
        await settled()
        assert (unlucky.done(), room.came) == (False, [0])
        unlucky.cancel()
        await settled()
        assert room.came == [0]
        await leave_in_turn(room, *range(3))
        await asyncio.gather(*others)
        with pytest.raises(asyncio.CancelledError):
            await unlucky

    asyncio.run(main())
    assert (room.came, room.most) == ([0, 1, 2], 1)


@statement(69, needs=["concurrency"])
def test_no_slot_is_held_between_attempts(subject, way, monkeypatch):
    """semantics 69: the same for a sync call: while it sleeps, another one has the only slot."""
    seen = []

    def body(who):
        if who == "first" and not seen:
            raise ConnectionResetError
        return who

    monkeypatch.setattr(time, "sleep", lambda seconds: seen.append((seconds, in_thread(lambda: protected("second")))))
    protected = subject.protect(body, way=way, waits=(5.0,), limit=subject.limit(concurrency=1, max_wait=0.0))
    assert protected("first") == "first"
    assert seen == [(5.0, "second")]


@statement(69, needs=["concurrency"])
@cases("ending", ENDINGS)
def test_a_slot_is_given_back_however_an_attempt_ends(subject, way, mode, ending):
    """semantics 69: by an error that is retried, by one that is not, by an interruption."""
    story = Story(ending, ending)
    limit = subject.limit(concurrency=1, max_wait=0.0)
    protected = subject.protect(mode.body(story.fn), way=way, attempts=2, limit=limit)
    for _ in range(2):
        mode.catch(protected)
    assert mode.run(protected) == "done"


@statement(69, needs=["concurrency"])
def test_a_sync_call_that_may_not_wait_is_refused_at_once(subject, way):
    """semantics 69: nothing of it runs, and who is inside is not disturbed."""
    entered, refused = [], []

    def body(depth):
        entered.append(depth)
        if depth:
            refused.append(caught(protected, depth - 1))

    protected = subject.protect(body, way=way, attempts=1, limit=subject.limit(concurrency=2, max_wait=0.0))
    for _ in range(2):  # the second time as the first: nothing was kept
        entered.clear()
        refused.clear()
        protected(2)
        assert (entered, refused[1:]) == ([2, 1], [None])
        assert isinstance(refused[0], subject.limit_exceeded)


@statement(69, needs=["async", "concurrency"])
@cases("max_wait", [0.0, 0.05])
def test_a_call_that_may_not_wait_so_long_is_refused(subject, way, max_wait):
    """semantics 69: at once or when its time is over; it takes nothing with it."""
    room = Room()

    async def main():
        limit = subject.limit(concurrency=1, max_wait=max_wait)
        protected = subject.protect(room.stay, way=way, attempts=1, limit=limit)
        inside = asyncio.create_task(protected(0))
        await settled()
        with pytest.raises(subject.limit_exceeded):
            await protected(1)
        room.open(0, 2)
        await inside
        await protected(2)

    asyncio.run(main())
    assert room.came == [0, 2]


@statement(69, needs=["limit_blocks"])
def test_a_block_takes_a_slot_and_gives_it_back(subject):
    """semantics 69: in `with` and `async with`, also when the block fails; asking without waiting never waits."""
    limit = subject.limit(concurrency=1)

    async def block():
        async with limit:
            assert not subject.take(limit)
            raise ZeroDivisionError

    with limit:
        assert not subject.take(limit)
    with pytest.raises(ZeroDivisionError), limit:
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        asyncio.run(block())
    assert [subject.take(limit), subject.take(limit)] == [True, False]
    subject.give(limit)
    assert subject.take(limit)


# -- how often


def densest(instants, window):
    """The most of these instants that any window of that length has."""
    return max(sum(first <= instant < first + window - 1e-6 for instant in instants) for first in instants)


def calls(protected, mode, count):
    """So many calls, one after the other."""
    if not mode.asynchronous:
        return [protected() for _ in range(count)]

    async def main():
        return [await protected() for _ in range(count)]

    return asyncio.run(main())


each_burst = cases("burst", [None, 1, 5])


@statement(70, needs=["rate", "clock"])
@each_burst
def test_no_window_has_more_calls_than_the_rate_and_the_burst(subject, way, mode, burst):
    """semantics 70: calls that wait for their turn keep to the rate, and are not held up longer than it asks for."""
    with subject.time() as clock:
        instants = []
        limit = subject.limit(rate=5, per=10.0, burst=burst)
        calls(subject.protect(mode.body(lambda: instants.append(clock.now)), way=way, limit=limit), mode, 40)
    assert len(instants) == 40
    assert densest(instants, 10.0) <= 5 + (5 if burst is None else burst)
    assert instants[-1] <= 40 / 5 * 10.0 + 1.0


@statement(70, needs=["rate", "clock", "async"])
@each_burst
def test_no_window_has_more_calls_when_all_come_at_once(subject, way, burst):
    """semantics 70: the same for forty tasks that begin together."""
    with subject.time() as clock:
        instants = []

        async def body():
            instants.append(clock.now)

        async def main():
            protected = subject.protect(body, way=way, limit=subject.limit(rate=5, per=10.0, burst=burst))
            await asyncio.gather(*(protected() for _ in range(40)))

        asyncio.run(main())
    assert len(instants) == 40
    assert densest(instants, 10.0) <= 5 + (5 if burst is None else burst)


@statement(70, needs=["rate", "clock"])
@each_burst
def test_no_window_has_more_calls_however_they_arrive(subject, way, burst):
    """semantics 70: in bursts and after pauses, with calls refused in between, which count for nothing."""
    arrivals, instants = random.Random(7), []
    with subject.time() as clock:
        limit = subject.limit(rate=5, per=10.0, burst=burst, max_wait=0.0)
        protected = subject.protect(lambda: instants.append(clock.now), way=way, attempts=1, limit=limit)
        for _ in range(400):
            clock.advance(arrivals.choice([0.0, 0.0, 0.25, 1.0, 6.0]))
            error = caught(protected)
            assert error is None or isinstance(error, subject.limit_exceeded)
        total = clock.now
    assert densest(instants, 10.0) <= 5 + (5 if burst is None else burst)
    assert len(instants) >= total / 10.0  # far less than the rate, and far from nothing


@statement(70, needs=["rate", "clock"])
def test_a_call_that_may_not_wait_is_refused_at_once(subject, way, mode):
    """semantics 70: no time passes, the function is not called, and the next turn comes when the rate says."""
    story = Story()
    with subject.time() as clock:
        limit = subject.limit(rate=1, per=10.0, burst=1, max_wait=0.0)
        protected = subject.protect(mode.body(story.fn), way=way, attempts=1, limit=limit)
        assert mode.run(protected) == "done"
        errors = [mode.catch(protected) for _ in range(3)]
        assert [isinstance(error, subject.limit_exceeded) for error in errors[1:]] == [True, True]
        assert (story.calls <= 2, clock.now) == (True, 0.0)
        before = story.calls
        clock.advance(10.0)
        assert (mode.run(protected), story.calls) == ("done", before + 1)


@statement(70, needs=["rate", "clock"])
def test_a_call_waits_as_long_as_it_may(subject, way, mode):
    """semantics 70: a turn that comes in time is waited for; one that comes too late is not, or not to the end."""
    with subject.time() as clock:
        for max_wait, served in ((15.0, True), (1.0, False)):
            story, began = Story(), clock.now
            limit = subject.limit(rate=1, per=10.0, burst=1, max_wait=max_wait)
            protected = subject.protect(mode.body(story.fn), way=way, attempts=1, limit=limit)
            ends = [mode.catch(protected) for _ in range(3)]
            assert all(end is None or isinstance(end, subject.limit_exceeded) for end in ends)
            assert (story.calls == 3, ends[-1] is None) == (served, served)
            assert served or clock.now - began <= 2 * 1.1


@statement(70, needs=["rate", "clock", "async"])
def test_a_cancelled_waiter_frees_its_place(subject, way):
    """semantics 70: who stood behind it moves up, once."""
    with subject.time() as clock:
        instants = []

        async def body():
            instants.append(clock.now)

        async def main():
            protected = subject.protect(body, way=way, limit=subject.limit(rate=1, per=10.0, burst=1))
            await protected()
            while not instants[-1]:  # a library may admit one more at once; then the next one waits
                waiting = asyncio.create_task(protected())
                await settled()
                if not waiting.done():
                    break
            behind = asyncio.create_task(protected())
            await settled()
            waiting.cancel()
            await behind
            await protected()

        asyncio.run(main())
    *_, behind, last = instants
    assert 9.5 <= behind <= 10.5
    assert last - behind >= 9.5


# -- a second one beside the first


class Twins:
    """An async body; each call of it does what it is told, and `story` has what happened."""

    def __init__(self, *parts, cleanup=None):
        self._parts = parts
        self._cleanup = cleanup
        self._orders = defaultdict(asyncio.Event)
        self.story = []

    @property
    def calls(self):
        return sum(part.startswith("begun") for part in self.story)

    def order(self, number):
        self._orders[number].set()

    async def body(self):
        number = self.calls + 1
        self.story.append(f"begun {number}")
        part = self._parts[number - 1]
        try:
            if part == "hang":
                await asyncio.Event().wait()
            if part == "fail when told":
                await self._orders[number].wait()
                raise ConnectionResetError(number)
            if part == "return when told":
                await self._orders[number].wait()
        except asyncio.CancelledError:
            await settled(3)  # a loser may need its time
            self.story.append(f"ended {number}")
            if self._cleanup is not None:
                raise self._cleanup from None
            raise
        self.story.append(f"returned {number}")
        return number


HEDGE = ["hedge", "async", "virtual_time"]


@statement(71, needs=HEDGE)
def test_a_call_that_takes_long_has_a_second_one_beside_it(subject):
    """semantics 71: the first success is the result; the loser is cancelled, and has ended before the call returns."""
    twins = Twins("hang", "return")
    with subject.time() as clock:
        assert asyncio.run(subject.protect(twins.body, hedge=5.0)()) == 2
    assert (twins.story, clock.now) == (["begun 1", "begun 2", "returned 2", "ended 1"], 5.0)


@statement(71, needs=HEDGE)
def test_a_call_that_is_quick_is_alone(subject):
    """semantics 71: nothing is begun that was not needed, and no time passes."""
    twins = Twins("return", "return")
    with subject.time() as clock:
        assert asyncio.run(subject.protect(twins.body, hedge=5.0)()) == 1
    assert (twins.story, clock.now) == (["begun 1", "returned 1"], 0.0)


@statement(71, needs=HEDGE)
def test_the_first_may_still_win(subject):
    """semantics 71: then the second is cancelled and awaited."""
    twins = Twins("return when told", "hang")

    async def main():
        task = asyncio.create_task(subject.protect(twins.body, hedge=5.0)())
        await settled()
        clock.advance(5.0)
        await settled()
        assert twins.calls == 2
        twins.order(1)
        return await task

    with subject.time() as clock:
        assert asyncio.run(main()) == 1
    assert twins.story == ["begun 1", "begun 2", "returned 1", "ended 2"]


@statement(71, needs=HEDGE)
def test_a_failure_of_one_leaves_the_other_its_chance(subject):
    """semantics 71: the first success wins, not the first end."""
    twins = Twins("fail when told", "return when told")

    async def main():
        task = asyncio.create_task(subject.protect(twins.body, hedge=5.0, attempts=1)())
        await settled()
        clock.advance(5.0)
        await settled()
        twins.order(1)
        await settled()
        assert not task.done()
        twins.order(2)
        return await task

    with subject.time() as clock:
        assert asyncio.run(main()) == 2
    assert twins.story == ["begun 1", "begun 2", "returned 2"]


@statement(71, needs=HEDGE)
def test_no_more_hedges_are_begun_than_asked_for(subject):
    """semantics 71: each after the same time, and all losers end."""
    twins = Twins("hang", "hang", "return")
    with subject.time() as clock:
        assert asyncio.run(subject.protect(twins.body, hedge=5.0, hedges=2)()) == 3
    assert (clock.now, twins.calls, sorted(twins.story[-2:])) == (10.0, 3, ["ended 1", "ended 2"])
    alone = Twins("hang", "hang", "return")
    with subject.time():
        error = caught(lambda: asyncio.run(subject.protect(alone.body, hedge=5.0, timeout=60.0, attempts=1)()))
    assert (type(error), alone.calls) == (subject.attempt_timed_out, 2)


@statement(71, needs=HEDGE)
def test_what_a_loser_raises_is_heard_by_nobody(subject):
    """semantics 71: not by the caller, and not by the event loop as an exception that was never retrieved."""
    twins, heard = Twins("hang", "return", cleanup=RuntimeError("late")), []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))
        result = await subject.protect(twins.body, hedge=5.0)()
        gc.collect()
        await settled()
        return result

    with subject.time():
        assert asyncio.run(main()) == 2
    assert (heard, twins.story[-1]) == ([], "ended 1")


@statement(71, needs=HEDGE)
def test_a_cancelled_call_ends_both(subject):
    """semantics 71: and waits for both."""
    twins = Twins("hang", "hang")

    async def main():
        task = asyncio.create_task(subject.protect(twins.body, hedge=5.0)())
        await settled()
        clock.advance(5.0)
        await settled()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return sorted(twins.story)

    with subject.time() as clock:
        assert asyncio.run(main()) == ["begun 1", "begun 2", "ended 1", "ended 2"]


@statement(71, needs=HEDGE)
def test_a_failure_before_the_hedge_is_retried_as_usual(subject):
    """semantics 71: a hedge is for calls that take long, not for those that fail."""
    story = failing()

    async def body():
        story()

    with subject.time() as clock:
        error = caught(lambda: asyncio.run(subject.protect(body, attempts=3, waits=(1.0, 2.0), hedge=50.0)()))
    assert (error, story.calls, clock.now) == (story.raised[-1], 3, 3.0)


@statement(71, needs=HEDGE)
def test_only_what_may_happen_twice_is_hedged(subject):
    """semantics 71: work that is not idempotent, and sync code, which cannot be cancelled, are refused when they are protected."""

    async def body():
        return "done"

    with pytest.raises(subject.misconfigured, match="idempotent"):
        subject.protect(body, hedge=5.0, idempotent=False)
    with pytest.raises(subject.misconfigured, match="hedge"):
        subject.protect(lambda: "done", hedge=5.0)


@statement(71, needs=[*HEDGE, "budget"])
def test_a_hedge_is_paid_from_the_budget(subject):
    """semantics 71: a hedge is load as a retry is; when the budget is empty there is none."""
    budget, story = subject.budget(ratio=0.001, reserve=1), []
    for _ in range(2):
        twins = Twins("hang", "return")
        protected = subject.protect(twins.body, hedge=5.0, timeout=20.0, attempts=1, budget=budget)
        with subject.time():
            error = caught(lambda protected=protected: asyncio.run(protected()))
        story.append((twins.calls, type(error)))
    assert story == [(2, type(None)), (1, subject.attempt_timed_out)]
