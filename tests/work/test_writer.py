"""The writer of batches, used without items: what it is given are numbers, what writes is a function of the test."""

from __future__ import annotations

import asyncio
import threading

import pytest

from outlast.kernel.clock import Stop
from outlast.work.memory import Memory
from outlast.work.patience import keep_trying
from outlast.work.writer import BatchLimits, BatchWriter


class Numbers(list):
    """A batch of whole numbers."""

    @property
    def empty(self):
        return not self

    def following(self):
        return Numbers()


class Desk:
    """A writer with what it has told, and a write that can be held up."""

    def __init__(self, *, write=None, memory=None, at_once=None, **limits):
        self.told, self.on_record, self.give_up = [], [], Stop()
        self.news = asyncio.Event()
        self.writer = BatchWriter(
            Numbers(),
            write or self.on_record.append,
            written=lambda batch: self.tell("written", list(batch)),
            broken=lambda error: self.tell("broken", repr(error)),
            loop=asyncio.get_running_loop(),
            memory=memory or Memory(),
            limits=BatchLimits(**{"latency": 60.0} | limits),
            give_up=self.give_up,
            at_once=at_once,
        )
        self.writer.start()

    def tell(self, *what):
        self.told.append(what)
        self.news.set()

    def add(self, *numbers, size=0):
        for number in numbers:
            self.writer.batch.append(number)
            self.writer.added(size)

    async def hear(self, many):
        while len(self.told) < many:
            self.news.clear()
            await self.news.wait()
        return self.told


def test_a_batch_may_be_written_without_the_thread():
    """One at a time, without bytes; whoever has begun it says that it is written, or hands it over."""

    async def story():
        begun = []
        desk = Desk(entries=1, under_way=1, at_once=lambda batch: (begun.append(batch), batch[0] < 10)[1])
        desk.add(1)
        desk.add(2)
        assert (begun, desk.on_record, desk.writer.settled) == ([[1]], [], False)
        desk.writer.came_back(begun[0])
        assert begun == [[1], [2]]
        desk.writer.hand_over(begun[1])
        await desk.hear(2)
        desk.add(10)
        await desk.hear(3)
        desk.add(3, size=5)
        assert await desk.hear(4) == [("written", [1]), ("written", [2]), ("written", [10]), ("written", [3])]
        assert (begun, desk.on_record) == ([[1], [2], [10]], [[2], [10], [3]])
        desk.add(4)
        desk.writer.failed(OSError("gone"))
        desk.writer.failed(OSError("gone again"))
        desk.writer.hand_over(begun[3])
        assert desk.told[4:] == [("broken", "OSError('gone')")]
        assert desk.writer.settled
        desk.writer.close()

    asyncio.run(story())


def test_nothing_goes_to_the_thread_while_a_batch_is_written_without_it():
    """Also of many bytes: what that one does is known before the next one is begun. It goes when that is back, or the thread's."""

    async def story():
        begun = []
        desk = Desk(entries=1, bytes=5, under_way=1, at_once=lambda batch: (begun.append(batch), True)[1])
        desk.add(1)
        desk.add(2, size=5)
        assert desk.writer.batch == [2]
        desk.writer.came_back(begun[0])
        assert await desk.hear(2) == [("written", [1]), ("written", [2])]
        desk.add(3)
        desk.add(4, size=5)
        assert desk.writer.batch == [4]
        desk.writer.hand_over(begun[1])
        assert desk.writer.batch == []
        assert await desk.hear(4) == [("written", [number]) for number in (1, 2, 3, 4)]
        assert desk.on_record == [[2], [3], [4]]
        desk.writer.close()

    asyncio.run(story())


def test_a_batch_goes_when_it_has_its_entries():
    """The third number sends the first three; the fourth waits in the open batch until it is told to go."""

    async def story():
        desk = Desk(entries=3)
        desk.add(1, 2)
        assert (desk.writer.settled, desk.writer.batch) == (False, [1, 2])
        desk.add(3, 4)
        assert desk.writer.batch == [4]
        await desk.hear(1)
        desk.writer.flush()
        assert await desk.hear(2) == [("written", [1, 2, 3]), ("written", [4])]
        assert desk.writer.settled
        desk.writer.close()

    asyncio.run(story())


def test_a_small_batch_goes_after_its_latency():
    """Nothing waits for others that may never come."""

    async def story():
        desk = Desk(latency=0.001)
        desk.add(1)
        assert await desk.hear(1) == [("written", [1])]
        desk.writer.close()

    asyncio.run(story())


def test_a_batch_goes_with_its_bytes_and_memory_is_shut_until_there_is_room():
    """Bytes are held from the moment they are added until they are written, and no longer."""

    async def story():
        held, memory = threading.Event(), Memory(250)
        desk = Desk(write=lambda _: held.wait(10), memory=memory, bytes=100)
        desk.add(1, size=100)
        assert (memory.used, memory.has_room(), desk.writer.behind) == (100, True, False)
        desk.add(2, 3, size=100)
        assert (memory.used, memory.has_room(), desk.writer.behind) == (300, False, True)
        held.set()
        assert await desk.hear(3) == [("written", [1]), ("written", [2]), ("written", [3])]
        assert memory.used == 0
        desk.writer.close()

    asyncio.run(story())


def test_the_open_batch_grows_while_enough_are_under_way():
    """Larger batches are cheaper: what comes meanwhile goes as one, as soon as there is a place for it."""

    async def story():
        held, wrote = threading.Event(), []

        def write(batch):
            held.wait(10)
            wrote.append(list(batch))

        desk = Desk(write=write, entries=2, under_way=1)
        desk.add(*range(7))
        assert (desk.writer.batch, desk.writer.behind) == ([2, 3, 4, 5, 6], True)
        held.set()
        await desk.hear(2)
        assert wrote == [[0, 1], [2, 3, 4, 5, 6]]
        desk.writer.close()

    asyncio.run(story())


def test_a_broken_writer_writes_nothing_more():
    """What could not be written is not finished: the error is told, and whoever waits for all to be written waits no longer."""

    async def story():
        def write(_):
            raise ValueError("no such table")

        desk = Desk(write=write, entries=1)
        desk.add(1)
        assert await desk.hear(1) == [("broken", "ValueError('no such table')")]
        desk.add(2)
        desk.writer.flush()
        assert (desk.writer.settled, desk.writer.batch) == (True, [2])

    asyncio.run(story())


def test_a_store_that_is_away_is_waited_for_until_there_is_a_hurry():
    """An error that may pass is tried again; with a hurry the writer is broken instead."""

    async def story():
        tried = threading.Event()
        desk = Desk(entries=1)

        def away():
            tried.set()
            raise ConnectionResetError

        desk.writer._write = lambda _: keep_trying(away, "the store", desk.give_up)
        desk.add(1)
        await asyncio.to_thread(tried.wait, 10)
        desk.writer.hurry()
        [(what, why)] = await desk.hear(1)
        assert what == "broken"
        assert "asked to stop while the store could not be used" in why

    asyncio.run(story())


def test_the_thread_may_have_the_loop_change_a_batch():
    """Then it goes on with what the loop answered, or with the error that the loop had."""

    async def story():
        loop_thread = threading.get_ident()

        def change(batch):
            assert threading.get_ident() == loop_thread
            if 13 in batch:
                raise LookupError("unlucky")
            batch[:] = [number * 2 for number in batch]
            return sum(batch)

        sums = []
        desk = Desk(entries=2)
        desk.writer._write = lambda batch: sums.append(desk.writer.in_loop(lambda: change(batch)))
        desk.add(1, 2)
        await desk.hear(1)
        desk.add(13, 14)
        assert await desk.hear(2) == [("written", [2, 4]), ("broken", "LookupError('unlucky')")]
        assert sums == [6]

    asyncio.run(story())


@pytest.mark.parametrize("ending", ["abandon", "close"])
def test_what_was_sent_before_the_end_is_written_unless_it_is_abandoned(ending):
    """Closing ends the thread after its work; abandoning lets nothing more go to it."""

    async def story():
        desk = Desk(entries=1)
        desk.add(1)
        getattr(desk.writer, ending)()
        desk.add(2)
        await desk.hear(1)
        assert desk.told[0] == ("written", [1])
        if ending == "abandon":
            assert (desk.writer.settled, desk.writer.batch) == (True, [2])
            desk.writer.close()

    asyncio.run(story())
