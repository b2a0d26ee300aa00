"""Slots, timers and threads, used without items: pieces of work are numbers, and what is done with them is the test's."""

from __future__ import annotations

import asyncio
import threading

import pytest

from outlast.kernel.clock import here
from outlast.testing import virtual_time
from outlast.work.slots import Slots
from outlast.work.threads import Threads, in_thread
from outlast.work.timers import Timers

# --- slots ---


def test_work_takes_a_slot_and_gives_it_back():
    """There are as many as were asked for, and no more."""
    slots = Slots[int](2)
    slots.take()
    slots.take()
    assert (slots.under_way, bool(slots.free)) == (2, False)
    with pytest.raises(IndexError):
        slots.take()
    slots.give()
    assert (slots.under_way, bool(slots.free)) == (1, True)


def test_work_that_keeps_its_slot_is_not_under_way():
    """It goes on with the slot that it has, or gives it back; both only once."""
    slots = Slots[str](2)
    slots.take()
    slots.take()
    slots.keep("a")
    slots.keep("b")
    assert (slots.under_way, len(slots.free), slots.keeps("a")) == (0, 0, True)
    assert [slots.resume("a"), slots.resume("a")] == [True, False]
    assert [slots.release("b"), slots.release("b")] == [True, False]
    assert (slots.under_way, len(slots.free)) == (1, 1)


def test_parked_work_goes_on_when_there_is_a_slot():
    """The first that waits goes first; a slot that was given just before it parked is not missed."""
    slots = Slots[int](1)
    slots.take()
    assert [slots.park(1), slots.park(2), slots.next()] == [None, None, None]
    slots.give()
    assert [slots.next(), slots.park(3), slots.next(), slots.next()] == [1, 2, 3, None]


# --- timers ---


def rung_at(*dues, cancelled=()):
    """What comes due, and when, in virtual time."""
    story = []

    async def run():
        clock = here.get().clock
        begin, timers = clock.monotonic(), Timers[str](clock)
        made = {what: timers.add(begin + due, what) for what, due in dues}
        for what in cancelled:
            made[what].cancel()
        assert sorted(timers.waiting()) == sorted({what for what, _ in dues} - {*cancelled})
        while timers.waiting():
            story.extend((what, round(clock.monotonic() - begin, 3)) for what in await timers.due(busy=False))

    with virtual_time():
        asyncio.run(run())
    return story


def test_timers_ring_in_the_order_of_their_times():
    """Whichever was added first; virtual time jumps from one to the next."""
    assert rung_at(("c", 3600.0), ("a", 1.0), ("b", 60.0)) == [("a", 1.0), ("b", 60.0), ("c", 3600.0)]


def test_a_cancelled_timer_neither_rings_nor_moves_time():
    """Nothing waits for it any more."""
    assert rung_at(("a", 1.0), ("b", 60.0), cancelled=["a"]) == [("b", 60.0)]


def test_a_timer_that_is_added_first_wakes_what_waits():
    """Something that is due earlier is not late because of what is due later."""

    async def run():
        clock = here.get().clock
        begin, timers, story = clock.monotonic(), Timers[str](clock), []
        timers.add(begin + 100, "b")
        waiting = asyncio.create_task(timers.due(busy=False))
        timers.add(begin + 1, "a")
        while len(story) < 2:
            story += [(what, clock.monotonic() - begin) for what in await waiting]
            waiting = asyncio.create_task(timers.due(busy=False))
        waiting.cancel()
        return story

    with virtual_time():
        assert asyncio.run(run()) == [("a", 1.0), ("b", 100.0)]


def test_all_timers_can_be_taken_out():
    """What waited is answered, and nothing comes due later."""

    async def run():
        timers = Timers[str](here.get().clock)
        timers.add(1.0, "a")
        return timers.clear(), timers.clear()

    assert asyncio.run(run()) == (["a"], [])


def test_virtual_time_does_not_overtake_what_is_busy():
    """Time jumps when nothing is busy any more, and not before."""

    async def run():
        clock = here.get().clock
        begin, timers = clock.monotonic(), Timers[str](clock)
        timers.add(begin + 100, "a")
        waiting = asyncio.create_task(timers.due(busy=True))
        for _ in range(50):
            await asyncio.sleep(0)
        before = clock.monotonic() - begin
        timers.look()
        return before, await waiting, await timers.due(busy=False), clock.monotonic() - begin

    with virtual_time():
        assert asyncio.run(run()) == (0.0, [], ["a"], 100.0)


# --- threads ---


class Desk:
    """Threads with what has come back from them."""

    def __init__(self, do, *, most=4, slots=()):
        self.came, self.lost, self.news, self.bursts = {}, [], asyncio.Event(), 0
        self.threads = Threads(
            do,
            back=self.back,
            seen=self.seen,
            lost=self.lost.append,
            loop=asyncio.get_running_loop(),
            slots=slots,
            most=most,
        )

    def back(self, burst):
        self.came.update(burst)

    def seen(self):
        self.bursts += 1
        self.news.set()

    async def all(self, many):
        while len(self.came) < many:
            self.news.clear()
            await self.news.wait()
        return self.came


def test_work_goes_through_threads_and_comes_back():
    """Results and errors alike; what is in hand is counted."""

    async def run():
        def do(number):
            if number == 3:
                raise LookupError("three")
            return number * 10

        desk = Desk(do)
        for number in range(5):
            desk.threads.put(number)
        assert desk.threads.outstanding == 5
        came = await desk.all(5)
        assert {number: str(what) for number, what in came.items()} == {0: "0", 1: "10", 2: "20", 3: "three", 4: "40"}
        assert (desk.threads.outstanding, desk.threads.busy, desk.threads.unseen) == (0, 0, 0)
        desk.threads.close()

    asyncio.run(run())


def test_work_that_waits_gets_more_threads_up_to_a_bound():
    """Four pieces that wait for each other need four threads, and have them."""

    async def run():
        meeting = threading.Barrier(4, timeout=20)
        desk = Desk(lambda number: meeting.wait() >= 0 and number, most=4)
        for number in range(8):
            desk.threads.put(number)
        assert sorted((await desk.all(8)).values()) == list(range(8))
        desk.threads.close()

    asyncio.run(run())


def test_parked_work_is_held_and_not_busy():
    """It can be taken back as what no thread has begun with."""

    async def run():
        slots, parked = Slots[int](1), threading.Event()
        slots.take()

        def do(number):
            desk.threads.again(slots.park(number))
            parked.set()

        desk = Desk(do, slots=[slots])
        desk.threads.put(1)
        await asyncio.to_thread(parked.wait, 20)
        assert (desk.threads.outstanding, desk.threads.busy, desk.threads.waiting()) == (1, 0, [1])
        assert (desk.threads.unstarted(), desk.threads.outstanding) == ([1], 0)
        desk.threads.close()

    asyncio.run(run())


def test_what_fails_holds_up_the_others_until_it_is_decided():
    """Nothing begins in a thread between the failure and what the loop makes of it."""

    async def run():
        failed, story = threading.Event(), []

        def do(number):
            if number == 0:
                desk.threads.hold(number)
                story.append("failed")
                failed.set()
                return number
            failed.wait(20)
            desk.threads.wait_for_release(number)
            story.append("begun")
            return number

        desk = Desk(do, most=2)

        def back(burst):
            for work, _ in burst:
                if work == 0:
                    story.append("decided")
                    desk.threads.release(work)
            desk.came.update(burst)

        desk.threads._back = back
        desk.threads.put(1)
        desk.threads.put(0)
        await desk.all(2)
        desk.threads.close()
        return story

    assert asyncio.run(run()) == ["failed", "decided", "begun"]


def test_what_comes_back_to_no_loop_is_lost_once():
    """Whether it waited, or was in a thread when it was abandoned: what it holds can be given back."""

    async def run():
        begun, go_on = threading.Event(), threading.Event()

        def do(number):
            begun.set()
            go_on.wait(20)
            return number

        desk, both = Desk(do, most=1), threading.Semaphore(0)
        desk.threads._lost = lambda work: (desk.lost.append(work), both.release())
        desk.threads.put(1)
        desk.threads.put(2)
        await asyncio.to_thread(begun.wait, 20)
        desk.threads.close()
        desk.threads.abandon()
        go_on.set()
        assert await asyncio.to_thread(lambda: both.acquire(timeout=20) and both.acquire(timeout=20))
        return desk.lost, desk.came

    assert asyncio.run(run()) == ([2, 1], {})


# --- one piece of work in a thread ---


def test_a_thread_for_one_piece_of_work_has_ended_when_its_result_is_there():
    """Whatever it has used is free then: nothing waits for a thread that is about to end."""

    async def run():
        thread = await in_thread(threading.current_thread)
        assert not thread.is_alive()
        with pytest.raises(KeyError, match="gone") as raised:
            await in_thread(lambda: {}["gone"])
        return thread, raised.value

    thread, error = asyncio.run(run())
    assert thread is not threading.main_thread()
    assert isinstance(error, KeyError)


def test_a_piece_of_work_gets_a_thread_although_the_executor_of_the_loop_has_none():
    """The executor is the user's: code that does not end may have all of its threads."""
    go = threading.Event()

    async def run():
        loop = asyncio.get_running_loop()
        taken = [loop.run_in_executor(None, go.wait, 200) for _ in range(100)]
        try:
            return await in_thread(go.is_set)
        finally:
            go.set()
            await asyncio.gather(*taken)

    assert asyncio.run(run()) is False


def test_a_piece_of_work_is_not_left_in_its_thread_by_who_is_cancelled():
    """The cancellation is heard when it is done."""
    go, story = threading.Event(), []

    def work():
        go.wait(200)
        story.append("done")

    async def run():
        task = asyncio.create_task(in_thread(work))
        await asyncio.sleep(0)  # so that it begins
        task.cancel()
        await asyncio.sleep(0)
        story.append("cancelled" if task.done() else "waits")
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert story == ["waits", "done"]
