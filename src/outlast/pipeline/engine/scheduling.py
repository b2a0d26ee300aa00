"""
How items move: from stage to stage, in tasks and threads, through slots, and through waits.

Async stages run in long-lived tasks, blocking ones in the threads of a `Crew`. Each takes the most advanced item whose stage has a free slot and
carries it on as long as slots are free. An item that waits (for another attempt, a circuit, the record of its checkpoint) holds no slot; only in
the line of a limit it keeps it: all others at its stage would have to stand there too, and once its turn comes it must not wait again.
"""

from __future__ import annotations

import asyncio
import heapq
from contextvars import copy_context
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

from outlast.calls.drivers import same
from outlast.calls.state import latest, standing
from outlast.kernel.clock import Signal
from outlast.pipeline.engine.attempts import Attempts, as_failure, inside, rest
from outlast.pipeline.engine.batches import LINGER, Convoy
from outlast.pipeline.engine.item import Next

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator

    from outlast.kernel.clock import Clock
    from outlast.pipeline.engine.batches import Gathering
    from outlast.pipeline.engine.item import Journey, Post
    from outlast.pipeline.engine.threads import Crew
    from outlast.pipeline.record.endings import Ledger
    from outlast.pipeline.record.writer import WriteBatch
    from outlast.work.memory import Memory
    from outlast.work.writer import BatchWriter

T = TypeVar("T")
LOW = 128  # items that are read and not begun, below which more are read
ROUNDING = 1e-9
_MOMENT = 0.0005  # seconds of real time
_TURN = 64  # items after which a task lets others have their turn
_ROOM = 64  # free places in the window that are worth reading for while there is other work
_GO, _END, _WAIT, _LINE, _HOLD, _BACK = Next.GO, Next.END, Next.WAIT, Next.LINE, Next.HOLD, Next.BACK
_APART = Next.APART


class Traffic(Attempts):
    """The part of a runner that moves items. It belongs to the event loop."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    posts: list[Post]
    crew: Crew
    ledger: Ledger
    batches: BatchWriter[WriteBatch]
    memory: Memory
    window: int
    in_hand: int  # items read and neither finished nor given back
    status: str | None
    reason: str | None
    error: BaseException | None
    detail: str
    _async_posts: list[Post]
    _gatherings: list[Gathering]
    _most_tasks: int
    _tasks: set[asyncio.Task[None]]
    _idle: list[asyncio.Future[None]]
    _fresh: deque[Journey]
    _metered: deque[Journey]
    _granted: deque[Journey | Convoy]
    _lines: dict[asyncio.Task[None], Journey | Convoy]
    _timers: list[tuple[float, int, Journey | Convoy]]
    _order: Iterator[int]
    _alarm: Signal | None
    _relieving: bool
    _held: int
    _reading: bool
    _virtual: bool

    if TYPE_CHECKING:  # of the runner

        def stop(
            self, reason: str, error: BaseException | None = None, *, drop: bool = False, begin: bool = False
        ) -> None: ...
        def cancel(self) -> None: ...
        def feed_more(self) -> None: ...
        def _check_done(self) -> None: ...
        def _meter(self) -> None: ...
        def _wary(self) -> bool: ...

    # -- slots and tasks ----------------------------------------------------------------------------------------------------------

    def _set_ready(self, journey: Journey | Convoy) -> None:
        post = self.posts[journey.at]
        if not post.is_async and post.alone:
            self.crew.put(journey)
            return
        post.ready.append(journey)
        if post.alone:
            self._wake(1)
        else:
            self._gathered(post)

    def _gathered(self, post: Post) -> None:
        """Send off who need not wait for others at a batch stage, and see to it that nobody waits for ever."""
        gathering: Gathering = post.ready
        if gathering.loose and not self._reading and gathering.loose >= self.in_hand:
            gathering.release()  # nobody else is left to come
        if post.is_async:
            if gathering:
                self._wake(1)
        else:
            while gathering and post.free and not self._dropping:
                post.free.pop()
                self._seat(gathering.popleft())
        if gathering.lingering and gathering.due is None:
            gathering.due = self.bearings.monotonic() + LINGER
            if self._alarm is not None:
                self._alarm.set()

    def _seat(self, traveller: Journey | Convoy) -> None:
        """It has a slot: nothing is in its way any more but a task or a thread that takes it on."""
        traveller.seated = True
        if self.posts[traveller.at].is_async:
            self._granted.append(traveller)
            self._wake(1)
        else:
            self.crew.put(traveller)

    def _unseat(self, traveller: Journey | Convoy) -> None:
        """It goes on without being attempted: its slot is somebody else's."""
        if not traveller.seated:
            return
        traveller.seated = False
        post = self.posts[traveller.at]
        post.free.append(None)
        if self._dropping:
            return
        if not post.alone:
            self._gathered(post)
        elif post.is_async:
            self._wake(1)
        else:
            self.crew.look(post)

    def _wake(self, count: int) -> None:
        while count > 0 and self._idle:
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result(None)
                count -= 1
        for _ in range(min(count, self._most_tasks - len(self._tasks))):
            task = self.loop.create_task(self._work(), context=self._base.copy())
            self._tasks.add(task)
            task.add_done_callback(self._left)

    def _relieve(self) -> None:
        """A task is about to wait: another one takes over what it could have done. Who does not wait needs no help."""
        if self._fresh or self._granted or any(post.ready for post in self._async_posts):
            self._wake(1)

    def _relieve_if_waiting(self) -> None:
        """As `_relieve`, when it is not known whether the task will wait: the loop comes to this only if it does."""
        if not self._relieving:
            self._relieving = True
            self.loop.call_soon(self._now_waiting)

    def _now_waiting(self) -> None:
        self._relieving = False
        self._relieve()

    def _left(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Not an attempt's failure: control flow from user code, or a defect of ours. Either way the run cannot go on.
            self._abort(error)

    def _safely(self, callback: Callable[[T], None]) -> Callable[[T], None]:
        """The callback, and an end with a message if it fails: nobody else would notice, and the run would wait for ever."""

        def call(argument: T) -> None:
            try:
                callback(argument)
            except Exception as error:  # noqa: BLE001 - a defect of ours, or of somebody's hook
                self._abort(error)

        return call

    def _abort(self, error: BaseException) -> None:
        self.status = self.status or "interrupted"
        self.reason, self.error = "aborted", error  # whatever ended the reading before
        self.stop("aborted", error, drop=True)
        self.cancel()

    def _pick(self) -> Any:
        """Who has a slot, else the most advanced item whose stage has a free one; the slot is taken."""
        if self._granted:
            traveller = self._granted.popleft()
            traveller.seated = False
            return traveller
        if not self.memory.is_open():
            return None
        for post in self._async_posts:
            if post.ready and post.free:
                post.free.pop()
                return post.ready.popleft()
        first = self.posts[0]
        if self._fresh and first.free and not self.batches.full:
            first.free.pop()
            if len(self._fresh) == LOW:
                self.feed_more()
            return self._fresh.popleft()
        return None

    async def _work(self) -> None:
        turns = 0
        while True:
            journey = self._pick()
            if journey is None:
                self.feed_more()
                if len(self._idle) + 1 >= len(self._tasks) and self.crew.held == 0:
                    self.batches.flush()  # nobody works: what waits for the record need not wait longer
                waiting = self.loop.create_future()
                self._idle.append(waiting)
                try:
                    await waiting
                except asyncio.CancelledError:
                    self._not_by_a_stage()
                continue
            if await self._carry(journey):
                # A stage has changed the context variables of this task. Nobody else may see that: another task takes over.
                self._tasks.discard(asyncio.current_task())
                self._wake(1)
                return
            turns += 1
            if turns >= _TURN:
                turns = 0
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    self._not_by_a_stage()

    def _not_by_a_stage(self) -> None:
        """Go on if a stage has cancelled this task and has ended before it felt that; called where a cancellation is caught."""
        task = asyncio.current_task()
        if self._cancelling or task is None:
            raise  # noqa: PLE0704 - the cancellation
        while task.cancelling():
            task.uncancel()

    async def _carry(self, journey: Any) -> bool:
        """From stage to stage as long as slots are free; the slot of the first is held already. Whether the task's context was changed."""
        posts, monotonic, enter = self.posts, self.bearings.monotonic, standing.set
        changed = False
        after: Next = _GO
        while True:
            post = posts[journey.at]
            try:
                if journey.call is not None or post.full or journey.falling:
                    self._relieve()
                    after = await self.attempt(journey, post)
                elif post.native and not changed:
                    # As below, in the context of this task: quicker, as long as the stage leaves that as it was.
                    journey.post, journey.seen = post, latest[0]
                    enter(journey)
                    before = copy_context()
                    self._relieve_if_waiting()
                    began = monotonic()
                    try:
                        result = await post.work(journey.value)
                    except Exception as error:  # noqa: BLE001 - told to the journey
                        after = journey.failed(post, error, began)
                    except BaseException as thrown:  # noqa: BLE001 - as above
                        after = self.thrown(journey, post, thrown, began)
                    else:
                        after = journey.passed(post, result, began)
                        result = None
                    if not same(copy_context(), before):
                        changed, post.native = True, False
                else:
                    # As `attempt`, for a first attempt that nothing has to be asked for: nearly all of them.
                    context = self._base.copy()
                    journey.post, journey.seen = post, latest[0]
                    run = context.run
                    run(enter, journey)
                    began = monotonic()
                    try:
                        work = post.work(journey.value) if post.direct else run(post.work, journey.value, **post.kwargs)
                        if work.__class__ is CoroutineType:
                            try:
                                wanted = run(work.send, None)
                            except StopIteration as end:
                                result = end.value
                            else:
                                self._relieve()
                                result = await rest(context, work, wanted)
                        else:
                            self._relieve()
                            result = await inside(context, work)
                    except Exception as error:  # noqa: BLE001 - told to the journey
                        after = run(journey.failed, post, error, began)
                    except BaseException as thrown:  # noqa: BLE001 - as above
                        after = self.thrown(journey, post, thrown, began)
                    else:
                        after = journey.passed(post, result, began)
                        result = None
            except BaseException as error:
                if isinstance(error, Exception | asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
                    self.give_back(journey)
                    raise
                after = self._ruined(journey, post, error)
            finally:
                if after is _LINE:
                    journey.seated = True
                else:
                    post.free.append(None)
            if after is not _GO or self._dropping:
                self._go_on(journey, after)
                return changed
            following = posts[journey.at]
            if not following.is_async or not following.free or following.ready or not following.alone:
                self._set_ready(journey)
                return changed
            following.free.pop()

    def _go_on(self, journey: Any, after: Next) -> None:
        """What follows an attempt."""
        if self._cancelling:
            self.give_back(journey)
        elif after is _END:
            self.ledger.finish(journey)
        elif after is _APART:
            for traveller, then in journey.outcome():
                self._go_on(traveller, then)
            self._gathered(self.posts[journey.at])
        elif after is _BACK or self._dropping:
            if after is _BACK and journey.reason == "breaker_open":
                self.detail = self.detail or _what_stays_open(self.posts[journey.at])
                self.stop("breaker_open", drop=True)
            self.give_back(journey)
        elif after is _GO:
            self._set_ready(journey)
        elif after is _WAIT:
            self._wait(journey)
        elif after is _HOLD:
            self._held += 1
            journey.why, journey.since = "checkpoint", self.bearings.monotonic()
            self.ledger.checkpoint(journey)
        else:
            task = self.loop.create_task(self._stand_in_line(journey))
            self._lines[task] = journey
            task.add_done_callback(self._out_of_line)

    def _ruined(self, traveller: Any, post: Post, thrown: BaseException) -> Next:
        """What is no Exception came out of code that decides about an attempt (a repair, a predicate, a text): the items have failed."""
        if traveller.call is not None:
            traveller.call.interrupted(GeneratorExit())
        error = as_failure(thrown, post)
        if traveller.__class__ is Convoy:
            traveller.ruined(post, error)
            return _APART
        traveller.give_up(post.name, error)
        return _END

    def give_back(self, journey: Journey | Convoy) -> None:
        """The item stays unfinished: it is pending, and a resume goes on with it."""
        self._unseat(journey)
        call = journey.call
        if call is not None:
            call.interrupted(GeneratorExit())
        if isinstance(journey, Convoy):
            for one in journey.disband():
                self.give_back(one)
            return
        self.in_hand -= 1
        self.ledger.given_back(journey)
        self._check_done()

    def finished(self) -> None:
        """An item has a status and is in the open batch."""
        self.in_hand -= 1
        if self._reading:
            if self.window - self.in_hand >= min(_ROOM, self.window) and len(self._fresh) < LOW:
                self.feed_more()
        elif self.in_hand == 0:
            self._check_done()

    def _came_back(self, burst: list[tuple[Any, Next | BaseException]]) -> None:
        for journey, after in burst:
            if journey.__class__ is Convoy and after is not _LINE:
                journey.seated = False
                self.posts[journey.at].free.append(None)
            if isinstance(after, Exception | KeyboardInterrupt):
                self.give_back(journey)
                self._abort(after)
            elif isinstance(after, BaseException):
                self._go_on(journey, self._ruined(journey, self.posts[journey.at], after))
            else:
                self._go_on(journey, after)
            if self.crew.holding:
                self.crew.release(journey)
        self.crew.careful = self._wary()
        if self._metered:
            self._meter()
        if self.crew.held < _ROOM:
            self.feed_more()
        if self._virtual and self._alarm is not None and self.crew.busy == 0:
            self._alarm.set()  # nobody is busy any more: time may jump at once
        if self.crew.held == 0 and len(self._idle) >= len(self._tasks):
            self.batches.flush()

    # -- waiting ----------------------------------------------------------------------------------------------------------------

    def _wait(self, journey: Journey | Convoy) -> None:
        journey.since = self.bearings.monotonic()
        due = journey.since + journey.wait
        heapq.heappush(self._timers, (due, next(self._order), journey))
        if self._alarm is not None and self._timers[0][2] is journey:
            self._alarm.set()

    async def _ring(self) -> None:
        """Send items on whose wait is over."""
        clock, timers = self.clock, self._timers
        while True:
            self._alarm = signal = Signal()
            due = [gathering.due for gathering in self._gatherings if gathering.due is not None]
            if timers:
                due.append(timers[0][0])
            seconds = max(0.0, min(due) - clock.monotonic()) if due else None
            await clock.wait_signal(signal, seconds, bounds=self.crew.busy > 0 or self._held > 0)
            now = clock.monotonic() + ROUNDING
            while timers and timers[0][0] <= now:
                journey = heapq.heappop(timers)[2]
                journey.waited(now - ROUNDING)
                self._set_ready(journey)
            for post in self.posts:
                if not post.alone and post.ready.due is not None and post.ready.due <= now:
                    post.ready.release()
                    self._gathered(post)

    async def _stand_in_line(self, journey: Journey | Convoy) -> None:
        """Wait for the turn at a limit, with the slot in hand."""
        call = journey.call
        assert call is not None  # noqa: S101 - it has lined up
        turn = call.turn
        assert turn is not None  # noqa: S101 - as above
        journey.since = self.bearings.monotonic()
        while self._virtual and self.crew.busy:  # noqa: ASYNC110 - threads park items without a word
            await asyncio.sleep(_MOMENT)  # time must not jump while somebody works: it would seem to have taken so long
        how = await self._base.run(turn.limit.await_turn, turn, call.patience())
        journey.waited(self.bearings.monotonic())
        if how == "granted":
            self._seat(journey)
            return
        self._unseat(journey)
        try:
            call.waited(how)
        except Exception as error:  # noqa: BLE001 - the item's end at this stage
            self._go_on(journey, journey.over(self.posts[journey.at], error))

    def _out_of_line(self, task: asyncio.Task[None]) -> None:
        journey = self._lines.pop(task)
        if task.cancelled():
            self.give_back(journey)
        else:
            self._left(task)


def _what_stays_open(post: Post) -> str:
    breaker = post.guard.breaker
    if breaker is None:
        return "a circuit breaker stayed open"
    isolated = breaker.memory.circuit.isolated
    how = "stayed open after 3 rounds of probes" if isolated is None else f"is isolated: {isolated}"
    return f"the circuit breaker {breaker.name} {how}"
