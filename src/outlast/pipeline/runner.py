"""
The driver for items: it reads, makes attempts, waits and records, for one shard of a run in one event loop.

Async stages run in long-lived tasks, blocking ones in the threads of a `Crew`. Each takes the most advanced item whose stage has a free slot and
carries it on as long as slots are free. An item that waits (for another attempt, a circuit, the record of its checkpoint) holds no slot; only
in the line of a limit it keeps it, for all others at its stage would have to stand there too, and once its turn comes it must not wait again. What is read and not finished is bounded by a window, what is finished and not on record by the journal.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter, deque
from contextvars import copy_context
from inspect import iscoroutinefunction
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from outlast.call import latest, running, standing
from outlast.clock import Clock, Signal, Stop, here, stopping
from outlast.components import Unreadable
from outlast.drivers import same
from outlast.errors import LeaseLost
from outlast.pipeline.attempts import Attempts, inside, rest, scripted
from outlast.pipeline.batches import LINGER, Convoy, Gathering
from outlast.pipeline.crew import Crew
from outlast.pipeline.journal import Journal, as_row, persist
from outlast.pipeline.journey import UNDERWAY, Bearings, Next, Post
from outlast.pipeline.resources import Resources
from outlast.pipeline.tenure import Heart
from outlast.store.records import to_us

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from outlast.components import Sink
    from outlast.observe.events import Event
    from outlast.pipeline.accounting import Accounting
    from outlast.pipeline.intake import Intake
    from outlast.pipeline.journal import Load
    from outlast.pipeline.journey import Journey
    from outlast.pipeline.ledger import Ledger
    from outlast.pipeline.plan import Plan
    from outlast.pipeline.results import RunResult
    from outlast.store import Store
    from outlast.store.records import Lease, RunRecord

T = TypeVar("T")
LEAST_WINDOW = 256
MOST_TASKS = 4096
_FAREWELL = 5.0  # seconds for what was cancelled to clean up
GRACE = 25.0  # seconds that attempts may still take once the run was asked to end
_TURN = 64  # items after which a task lets others have their turn
_CHUNK = 256
_LOW = 128  # items that are read and not begun, below which more are read
_ROOM = 64  # free places in the window that are worth reading for while there is other work
_ROUNDING = 1e-9
_GO, _END, _WAIT, _LINE, _HOLD, _BACK = Next.GO, Next.END, Next.WAIT, Next.LINE, Next.HOLD, Next.BACK
_APART = Next.APART


class Whereabouts(NamedTuple):
    """The items at one stage: those that are attempted, that wait for a slot, for another attempt or a circuit, and for a limit."""

    running: int
    queued: int
    waiting: int
    in_line: int


class Runner(Attempts):
    """
    One pass over one shard. `run` returns when everything that could be done is done and on record; then `reason`, `error` and the books say
    how it went. All of it belongs to its event loop; `end` may be called from anywhere.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        record: RunRecord,
        lease: Lease,
        books: Accounting,
        sink: Sink | None,
        intake: Callable[[Runner], Intake],
        ledger: Callable[[Runner], Ledger],
    ) -> None:
        self.plan = plan
        self.store = store
        self.record = record
        self.lease = lease
        self.books = books
        self.sink = sink
        self.loop = asyncio.get_running_loop()
        world = here.get()
        self.clock = world.clock
        self._virtual = type(world.clock) is not Clock
        self.bearings = Bearings(
            pipeline=plan.name,
            run_id=record.id,
            pass_=lease.token,
            monotonic=world.clock.monotonic,
            wall_us=to_us(world.clock.now()),
            audit_all=plan.audit == "all",
        )
        last = len(plan.stages) - 1
        self.posts = [Post(self.bearings, stage, i, last=i == last) for i, stage in enumerate(plan.stages)]
        self._gatherings: list[Gathering] = []
        for post in self.posts:
            post.work = scripted(post.work, post.name)
            if not post.alone:
                post.ready = Gathering(post, post.stage.batch or 1)
                self._gatherings.append(post.ready)
        self._async_posts = [post for post in reversed(self.posts) if post.is_async]
        self._stop = Stop()
        # What every attempt finds: the context of whoever started the run, and a way to be told that it ends.
        self._base = copy_context()
        self._base.run(stopping.set, self._stop)
        self._base.run(running.set, UNDERWAY)
        # Twice what can be under way at a batch stage: one batch is worked on while the next one gathers.
        most = (4 * one.concurrency if one.batch is None else 2 * one.concurrency * one.batch for one in plan.stages)
        self.window = max(LEAST_WINDOW, *most)
        self._most_tasks = min(MOST_TASKS, sum(post.stage.concurrency for post in self._async_posts))
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._fresh: deque[Journey] = deque()
        # Before blocking stages whose spending is limited: threads must not run far ahead of the books.
        self._metered: deque[Journey] = deque()
        self._meters = bool(plan.bounds.spend_limit) and not self.posts[0].is_async and self.posts[0].alone
        self._timers: list[tuple[float, int, Journey | Convoy]] = []
        self._order = itertools.count()
        self._granted: deque[Journey | Convoy] = deque()  # their turn at a limit has come; each has its slot
        self._lines: dict[asyncio.Task[None], Journey | Convoy] = {}
        self._hungry: asyncio.Future[None] | None = None
        self._relieving = False
        self._alarm: Signal | None = None
        self.in_hand = 0  # items read and neither finished nor given back
        self._held = 0  # of these, those that wait for the record of their checkpoint
        self._reading = True
        self._done = self.loop.create_future()
        self._settled: asyncio.Future[None] | None = None
        self.reason: str | None = None  # why no more is read, if not because there is nothing more
        self.error: BaseException | None = None
        self.detail = ""  # what exactly, for people
        self.status: str | None = None  # what the end is called, if the books do not decide it
        self.ends_on: float | None = None  # when attempts that still run are given up, once it was asked to end
        self.result: RunResult[Any] | None = None  # once it is over
        self._dropping = False  # items that could go on are given back instead
        self._cancelling = False
        self.at_end: Callable[[], Awaitable[None]] = _nothing  # when all is on record, and the lease still held
        self.crowded: Callable[[], bool] = _never  # whether somebody is behind with taking results
        self._background: list[asyncio.Task[None]] = []
        self.resources = Resources(plan.provided)
        self.intake = intake(self)
        self.ledger = ledger(self)
        self.crew = Crew(
            self.posts, self.attempt_in_thread, self._safely(self._came_back), Next.GO, Next.LINE, self.loop
        )
        self.journal: Journal

    # -- from the beginning to the end ------------------------------------------------------------------------------------------

    async def run(self, started: Event | None = None) -> None:
        """Do all that can be done; `started` goes on record first."""
        factories = [factory for post in self.posts for factory in post.stage.resources.values()]
        try:
            await self.resources.open(factories)
        except Exception as error:  # noqa: BLE001 - told as the run's failure
            self.stop("resource_error", error)
            return
        for post in self.posts:
            post.kwargs = self.resources.for_stage(post.stage.resources)
            post.direct = post.native = not post.kwargs and iscoroutinefunction(post.work)
        soon = self.loop.call_soon_threadsafe
        self.journal = Journal(
            self.store,
            self.lease,
            self.sink,
            loop=self.loop,
            committed=self._safely(self._committed),
            refused=self.ledger.refused,
            broken=self._journal_broke,
        )
        heart = Heart(
            self.store,
            self.lease,
            lost=lambda error: _unless_closed(soon, self.lose, error),
            wanted=lambda wish: _unless_closed(soon, self.end, wish),
        )
        if started is not None:
            self.journal.load.events.append(as_row(started))
        self._background = [self.loop.create_task(self._feed()), self.loop.create_task(self._ring())]
        for task in self._background:
            task.add_done_callback(self._left)
        try:
            await self._done
            await self._settle()
            await self.at_end()
        except asyncio.CancelledError:
            self.end("interrupted")
            self.cancel()
            await self._settle()
            raise
        finally:
            heart.close()
            self.journal.close()
            self.crew.close()
            await self._dismiss([*self._background, *self._tasks, *self._lines])
            await self.intake.close()
            try:
                await self.resources.close()
            except Exception as error:  # noqa: BLE001 - the work is done and on record
                from outlast.log import logger

                logger().warning("a resource could not be closed: %s", type(error).__name__)

    async def _settle(self) -> None:
        """Wait until everything that is finished is on record."""
        while not self.journal.settled:
            self._settled = self.loop.create_future()
            self.journal.flush()
            await self._settled

    async def _dismiss(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_FAREWELL)  # a stage may refuse to be cancelled

    def stop(self, reason: str, error: BaseException | None = None, *, drop: bool = False) -> None:
        """Begin no new item; with `drop`, give back whatever is not being attempted at this moment too."""
        if self.reason is None:
            self.reason, self.error = reason, error
        self._reading = False
        self._drop(self._unbegun())
        if drop:
            self._dropping = True
            self._drop(self._granted)
            for post in self.posts:
                if post.is_async or not post.alone:
                    self._drop(post.ready)
            waiting = [journey for _, _, journey in self._timers]
            self._timers.clear()
            self._drop(waiting)
            self._drop(self.crew.unstarted())
            for task in [*self._lines]:
                task.cancel()
        self._check_done()

    def end(self, wish: str) -> None:
        """Wind down: attempts that are running may end, nothing else is begun. `wish` is pause, cancel or interrupted."""
        if self.status is not None:
            return
        self.status = {"pause": "paused", "cancel": "cancelled"}.get(wish, "interrupted")
        self._stop.set()
        self.ends_on = self.bearings.monotonic() + GRACE
        self.stop(self.status, drop=True)
        self.loop.call_later(GRACE, self.cancel)

    def cancel(self) -> None:
        """Do not wait for running attempts any longer."""
        if self._cancelling:
            return
        self._cancelling = True
        self._stop.set()
        for task in self._tasks:
            task.cancel()
        if not self._done.done():
            self._done.set_result(None)

    def lose(self, error: Exception) -> None:
        """Somebody else works on this: stop at once, and write nothing more."""
        self.status = self.status or "lost"
        self.reason, self.error = "lease_lost", error
        self.journal.abandon()
        self.stop("lease_lost", error, drop=True)
        self.cancel()
        self._wake_settled()

    def _journal_broke(self, error: Exception) -> None:
        if isinstance(error, LeaseLost):
            self.lose(error)
            return
        self.status = self.status or "interrupted"
        self.stop("store_error", error, drop=True)
        self.cancel()
        self._wake_settled()

    def _wake_settled(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def _check_done(self) -> None:
        if not self._reading and self.in_hand == 0 and not self._done.done():
            self._done.set_result(None)

    def stop_spending(self, what: str) -> None:
        """The limit of what may be spent is reached; if nothing is left to begin, that stops nobody."""
        unbegun = self._unbegun() if self.reason is None else []
        if unbegun or self.reading:
            self.reason, self.detail = "spend_limit", what
            self._drop(unbegun)
            self.stop("spend_limit")

    def _unbegun(self) -> list[Journey | Convoy]:
        """Take out those that wait for a slot, for a thread or for others of their batch, and for whom nothing was done in this pass."""
        unbegun: list[Journey | Convoy] = [*self._fresh, *self._metered]
        self._fresh.clear()
        self._metered.clear()
        waiting = [*self.crew.unstarted(), *self._granted]
        self._granted.clear()
        for post in self.posts:
            if post.is_async or not post.alone:
                waiting += post.ready
                post.ready.clear()
        for traveller in waiting:
            if traveller.started is None:
                unbegun.append(traveller)
            elif traveller.seated:
                self._seat(traveller)
            else:
                self._set_ready(traveller)
        return unbegun

    def _drop(self, journeys: Any) -> None:
        dropped = [*journeys]
        journeys.clear()
        for journey in dropped:
            self.give_back(journey)

    @property
    def reading(self) -> bool:
        """Whether there may be items that are not read yet, and they are wanted."""
        return self._reading

    @property
    def over(self) -> bool:
        """Whether all that could be done is done."""
        return self._done.done()

    def whereabouts(self) -> list[Whereabouts]:
        """Where the items in hand are, by stage. Any thread may ask; what moves meanwhile may be missed."""
        inbox = self.crew.inbox()
        seated = Counter(
            traveller.at
            for traveller in (*tuple(self._lines.values()), *tuple(self._granted), *inbox)
            if traveller.seated
        )
        queued = _items_at([*inbox, *tuple(self._granted), *tuple(self._metered)])
        waiting = _items_at(journey for _, _, journey in tuple(self._timers))
        in_line = _items_at(journey for task, journey in tuple(self._lines.items()) if not task.done())
        return [
            Whereabouts(
                running=post.stage.concurrency - len(post.free) - seated[post.index],
                queued=len(post.ready) + queued[post.index],
                waiting=waiting[post.index],
                in_line=in_line[post.index],
            )
            for post in self.posts
        ]

    def let_go(self, journey: Journey) -> None:
        """The item does not wait for its checkpoint any longer: it has failed."""
        self._held -= 1
        self.ledger.finish(journey)

    # -- reading ----------------------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        try:
            while self._reading:
                room = self.window - self.in_hand
                if room <= 0 or len(self._fresh) >= _LOW or self.journal.full or self.crowded():
                    self._hungry = self.loop.create_future()
                    await self._hungry
                    continue
                chunk = await self.intake.chunk(min(room, _CHUNK))
                self._take_in(chunk)
                if self.intake.exhausted:
                    self.books.source_exhausted = self.journal.exhausted = True
                    self._reading = False
                    break
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the source's own
            self.stop("source_error", error)
        for post in self.posts:
            if not post.alone:
                self._gathered(post)
        self._check_done()

    def _take_in(self, chunk: list[Journey]) -> None:
        self.books.total = self.journal.read = self.intake.read
        if chunk and self.books.bounds.spend_limit and (what := self.books.overspent) is not None:
            self.stop_spending(what)
        if not self._reading:
            return  # asked to stop meanwhile: they are read, and pending
        self.in_hand += len(chunk)
        self.ledger.taken_in(chunk)
        first_async = self.posts[0].is_async and self.posts[0].alone
        for journey in chunk:
            if isinstance(journey.value, Unreadable):
                self.ledger.unreadable(journey)
            elif self._meters and not journey.at:
                self._metered.append(journey)
            elif journey.at or not first_async:
                self._set_ready(journey)
            else:
                self._fresh.append(journey)
        if self._fresh:
            self._wake(1)
        self._meter()

    def _meter(self) -> None:
        while self._metered and self.crew.held < 2 * self.posts[0].stage.concurrency:
            self.crew.put(self._metered.popleft())

    def feed_more(self) -> None:
        if self._hungry is not None and not self._hungry.done():
            self._hungry.set_result(None)

    async def aside(self, ask: Callable[[], Any]) -> Any:
        """Ask the store without holding up the loop; an error that may pass is waited out."""
        context = copy_context()
        return await self.loop.run_in_executor(None, lambda: context.run(persist, ask, "the store", self._stop))

    # -- tasks for async stages ---------------------------------------------------------------------------------------------------

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
        for post in self._async_posts:
            if post.ready and post.free:
                post.free.pop()
                return post.ready.popleft()
        first = self.posts[0]
        if self._fresh and first.free and not self.journal.full:
            first.free.pop()
            if len(self._fresh) == _LOW:
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
                    self.journal.flush()  # nobody works: what waits for the record need not wait longer
                waiting = self.loop.create_future()
                self._idle.append(waiting)
                await waiting
                continue
            if await self._carry(journey):
                # A stage has changed the context variables of this task. Nobody else may see that: another task takes over.
                self._tasks.discard(asyncio.current_task())
                self._wake(1)
                return
            turns += 1
            if turns >= _TURN:
                turns = 0
                await asyncio.sleep(0)

    async def _carry(self, journey: Any) -> bool:
        """From stage to stage as long as slots are free; the slot of the first is held already. Whether the task's context was changed."""
        posts, monotonic, enter = self.posts, self.bearings.monotonic, standing.set
        changed = False
        after: Next | None = None
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
                    except asyncio.CancelledError as cancelled:
                        after = self.cancelled_inside(journey, post, cancelled, began)
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
                    except asyncio.CancelledError as cancelled:
                        after = self.cancelled_inside(journey, post, cancelled, began)
                    else:
                        after = journey.passed(post, result, began)
                        result = None
            except BaseException:
                self.give_back(journey)
                raise
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
        """An item has a status and is in the journal's hands."""
        self.in_hand -= 1
        if self._reading:
            if self.window - self.in_hand >= _ROOM and len(self._fresh) < _LOW:
                self.feed_more()
        elif self.in_hand == 0:
            self._check_done()

    def _came_back(self, burst: list[tuple[Any, Next | BaseException]]) -> None:
        for journey, after in burst:
            if journey.__class__ is Convoy and after is not _LINE:
                journey.seated = False
                self.posts[journey.at].free.append(None)
            if isinstance(after, BaseException):
                self.give_back(journey)
                self._abort(after)
            else:
                self._go_on(journey, after)
        if self._metered:
            self._meter()
        if self.crew.held < _ROOM:
            self.feed_more()
        if self.crew.held == 0:
            if self._virtual and self._alarm is not None:
                self._alarm.set()  # nobody is busy any more: time may jump at once
            if len(self._idle) >= len(self._tasks):
                self.journal.flush()

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
            await clock.wait_signal(signal, seconds, bounds=self.crew.held > 0 or self._held > 0)
            now = clock.monotonic() + _ROUNDING
            while timers and timers[0][0] <= now:
                journey = heapq.heappop(timers)[2]
                journey.waited(now - _ROUNDING)
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
            call = journey.call
            if call is not None and call.turn is not None:
                call.turn.limit.withdraw(call.turn)  # harmless if it has left the line already
                call.turn = None
            self.give_back(journey)
        else:
            self._left(task)

    # -- the record ---------------------------------------------------------------------------------------------------------------

    def _committed(self, load: Load) -> None:
        self.ledger.committed(load)
        now = self.bearings.monotonic()
        for journey in load.held:
            self._held -= 1
            journey.waited(now)
            if self._dropping:
                self.give_back(journey)
            else:
                self._set_ready(journey)
        self.feed_more()
        if self._fresh:
            self._wake(1)
        self._wake_settled()
        if self._virtual and self._held == 0 and self._alarm is not None:
            self._alarm.set()


def _items_at(travellers: Iterable[Journey | Convoy]) -> Counter[int]:
    """How many items there are at each stage, those of a batch included."""
    found: Counter[int] = Counter()
    for traveller in travellers:
        found[traveller.at] += len(traveller.journeys) if isinstance(traveller, Convoy) else 1
    return found


def _never() -> bool:
    return False


async def _nothing() -> None:
    pass


def _unless_closed(soon: Callable[..., Any], *args: Any) -> None:
    try:
        soon(*args)
    except RuntimeError:  # the run is over
        return
