"""
Threads for blocking stages. Items go in one by one and come back in bursts; a thread carries an item on through blocking stages that
follow each other.

A stage's slots are tokens in a deque, so threads take and give them without a lock. Who finds no token parks the item at the stage; who gives
one back looks for parked items. Each does its own step before it looks for the other's, so nobody is forgotten.
"""

from __future__ import annotations

import threading
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING

from outlast.work.memory import LARGE, size_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from outlast.pipeline.engine.batches import Convoy
    from outlast.pipeline.engine.item import Journey, Next, Post
    from outlast.work.memory import Memory

    Traveller: TypeAlias = "Journey | Convoy"

_TASTES = 100
_PATIENCE = 0.002  # seconds that items may wait for a thread before there are more of them


class Crew:
    """The threads of one run. Everything but `_work` belongs to the event loop."""

    def __init__(
        self,
        posts: Sequence[Post],
        attempt: Callable[[Traveller, Post], Next],
        came_back: Callable[[list[tuple[Traveller, Next | BaseException]]], None],
        go: Next,
        line: Next,
        end: Next,
        loop: asyncio.AbstractEventLoop,
        room: Memory,
        review: Callable[[object], None],
        most: int,
    ) -> None:
        self._posts = posts
        self._attempt = attempt
        self._came_back = came_back
        self._go = go
        self._line = line
        self._end = end
        self._loop = loop
        self._room = room
        self._review = review
        self._most = min(most, sum(post.stage.concurrency for post in posts if not post.is_async))
        self._threads = 0
        self._inbox: deque[Traveller] = deque()
        self._work = threading.Semaphore(0)
        self._done: deque[tuple[Traveller, Next | BaseException]] = deque()
        self._told = False
        self._burst = 0  # of those that have come back, how many the loop looks at now
        self._tasted = 0  # results that were weighed here
        self._growing = False
        self._closed = False
        self._abandoned = False
        self.held = 0  # items in here: on their way to a thread, in one, or parked
        # Who has just failed: nobody begins anything before the loop has decided whether that stops the run.
        self.holding: set[Traveller] = set()
        self._stalled: set[Traveller] = set()  # those that wait for this decision in a thread
        self._released = threading.Condition()
        self.careful = False  # the same for whoever ends, well or not

    def put(self, journey: Traveller) -> None:
        """Have the item's stage attempted by a thread."""
        self.held += 1
        self._inbox.append(journey)
        if self._threads == 0:
            self._start()
        elif not self._growing and self._threads < self._most:
            self._growing = True
            self._loop.call_later(_PATIENCE, self._grow)
        self._work.release()

    def _start(self) -> None:
        self._threads += 1
        thread = threading.Thread(
            target=copy_context().run, args=(self._run,), daemon=True, name=f"outlast-stage-{self._threads}"
        )
        thread.start()

    def _grow(self) -> None:
        """Start more threads as long as items wait for one: blocking stages need many, busy ones are better off with few."""
        self._growing = False
        waiting = len(self._inbox)
        if self._closed or not waiting:
            return
        for _ in range(min(waiting, self._threads, self._most - self._threads)):
            self._start()
        if self._threads < self._most:
            self._growing = True
            self._loop.call_later(_PATIENCE, self._grow)

    @property
    def busy(self) -> int:
        """Items that are in a thread or on their way to one, and not parked."""
        return self.held - sum(len(post.ready) for post in self._posts if not post.is_async and post.alone)

    @property
    def unseen(self) -> int:
        """Items that have come back and that the loop has not looked at."""
        return len(self._done) + self._burst

    def inbox(self) -> tuple[Traveller, ...]:
        """The items that are on their way to a thread."""
        return tuple(self._inbox)

    def waiting(self) -> list[Traveller]:
        """The items that no thread has begun with: on their way to one, parked, or waiting in one for a decision of the loop."""
        parked = (
            traveller for post in self._posts if not post.is_async and post.alone for traveller in tuple(post.ready)
        )
        with self._released:
            return [*self._inbox, *parked, *self._stalled]

    def unstarted(self) -> list[Traveller]:
        """Take back the items that no thread has begun with."""
        found: list[Traveller] = []
        for waiting in (self._inbox, *(post.ready for post in self._posts if not post.is_async and post.alone)):
            while True:
                try:
                    found.append(waiting.popleft())
                except IndexError:
                    break
        self.held -= len(found)
        return found

    def close(self) -> None:
        """No thread begins anything more; those that are busy end by themselves."""
        self._closed = True
        self._room.open_for_good()
        self._work.release(self._threads or 1)
        with self._released:
            self._released.notify_all()

    def abandon(self) -> None:
        """The run is over: nobody goes on with what is in here, or comes back from now on. It gives back what it holds."""
        self._closed = self._abandoned = True
        for traveller in self.unstarted():
            _release(traveller)
        self._forsake()

    def _forsake(self) -> None:
        """Give back what those hold who have come back to nobody. Any thread may do that, for each of them one does."""
        while True:
            try:
                traveller, _ = self._done.popleft()
            except IndexError:
                return
            _release(traveller)

    def hold(self, traveller: Traveller) -> None:
        """Let nobody begin anything until `release`. From any thread."""
        with self._released:
            self.holding.add(traveller)

    def release(self, traveller: Traveller) -> None:
        """It is known what its end means. From any thread."""
        with self._released:
            self.holding.discard(traveller)
            if not self.holding:
                self._released.notify_all()

    def _wait_for_release(self, traveller: Traveller) -> None:
        with self._released:
            self._stalled.add(traveller)
            while self.holding and not self._closed:
                self._released.wait()
            self._stalled.discard(traveller)

    def _collect(self) -> None:
        self._told = False
        burst: list[tuple[Traveller, Next | BaseException]] = []
        while True:
            try:
                burst.append(self._done.popleft())
            except IndexError:
                break
        self.held -= len(burst)
        self._burst = len(burst)
        self._came_back(burst)
        self._burst = 0
        if not self._room.is_open():
            self._review(None)

    # -- in a thread

    def _run(self) -> None:
        while True:
            self._work.acquire()
            if self._closed:
                return
            try:
                journey = self._inbox.popleft()
            except IndexError:  # it was taken back
                continue
            try:
                after: Next | BaseException | None = self._carry(journey)
            except BaseException as abort:  # noqa: BLE001 - the loop decides
                after = abort
            if after is not None:
                if self._tasted < _TASTES:  # later the loop says it, which may be far behind in the beginning
                    self._tasted += 1
                    size = size_of(getattr(journey, "output", None))
                    if size > LARGE:
                        self._room.weigh(size)
                self._done.append((journey, after))
                if self._abandoned:  # after the step before: of the two, one sees what the other has done
                    self._forsake()
                elif not self._told:
                    self._told = True
                    try:
                        self._loop.call_soon_threadsafe(self._collect)
                    except RuntimeError:  # the loop is closed, and nobody waits for this
                        self._forsake()
                        return
            del journey, after

    def _enter(self) -> None:
        """Wait until there is room for what an attempt may bring back."""
        room = self._room
        if room.typical and not room.holds(self.unseen):
            room.shut()
            try:
                self._loop.call_soon_threadsafe(self._review, None)
            except RuntimeError:  # the run is over
                room.open_for_good()
        room.wait()

    def _carry(self, journey: Traveller) -> Next | None:
        self._enter()
        while True:
            if self.holding:
                self._wait_for_release(journey)
            post = self._posts[journey.at]
            if not post.alone:  # a convoy, whose slot the loop has taken and gives back
                return self._attempt(journey, post)
            if journey.seated:  # it has stood in line with its slot in hand
                journey.seated = False
            else:
                try:
                    post.free.pop()
                except IndexError:
                    post.ready.append(journey)
                    self.look(post)
                    return None
            after: Next | None = None
            try:
                after = self._attempt(journey, post)
                if after is self._end:
                    if self.careful:
                        self.hold(journey)
                elif self.holding:
                    self.release(journey)
            finally:
                if after is self._line:
                    journey.seated = True
                else:
                    post.free.append(None)
                    if post.ready:
                        self.look(post)
            if after is not self._go or self._closed:
                return after
            following = self._posts[journey.at]
            if following.is_async or not following.alone:
                return after

    def look(self, post: Post) -> None:
        """Send a parked item on if there is a slot for it."""
        if not post.free:
            return
        try:
            journey = post.ready.popleft()
        except IndexError:
            return
        self._inbox.append(journey)
        self._work.release()


def _release(traveller: Traveller) -> None:
    """What its call holds goes back: a place at the limit, a turn in the line, a probe."""
    call = traveller.call
    if call is not None:
        call.interrupted(GeneratorExit())
