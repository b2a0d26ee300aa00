"""
The driver for items: it reads, makes attempts, waits and records, for one shard of a run in one event loop.

How items move is `traffic`. What is read and not finished is bounded by a window, what is finished and not on record by its writer.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from contextvars import copy_context
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.calls.state import running
from outlast.components import Unreadable
from outlast.errors import LeaseLost
from outlast.kernel.clock import Stop, here, stopping
from outlast.pipeline.engine.attempts import scripted
from outlast.pipeline.engine.batches import Convoy, Gathering
from outlast.pipeline.engine.item import Bearings, Next, Post
from outlast.pipeline.engine.itemcall import UNDERWAY
from outlast.pipeline.engine.scheduling import LOW, Traffic
from outlast.pipeline.engine.threads import Crew
from outlast.pipeline.intake import SourceFailed
from outlast.pipeline.record.writer import ItemWriter, as_row
from outlast.pipeline.resources import Resources
from outlast.store.records import to_us
from outlast.work.leases import Heartbeat
from outlast.work.memory import Memory, size_of
from outlast.work.patience import persist

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from outlast.components import Sink
    from outlast.kernel.clock import Signal
    from outlast.observe.events import Event
    from outlast.pipeline.engine.item import Journey
    from outlast.pipeline.intake import Intake
    from outlast.pipeline.plan import Plan
    from outlast.pipeline.record.books import Accounting
    from outlast.pipeline.record.endings import Ledger
    from outlast.pipeline.record.writer import WriteBatch
    from outlast.pipeline.results import RunResult
    from outlast.store import Store
    from outlast.store.records import Lease, RunRecord

LEAST_WINDOW = 256
MOST_TASKS = 4096
_FAREWELL = 5.0  # seconds for what was cancelled to clean up


class Whereabouts(NamedTuple):
    """The items at one stage: those that are attempted, that wait for a slot, for another attempt or a circuit, and for a limit."""

    running: int
    queued: int
    waiting: int
    in_line: int


class Runner(Traffic):
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
        self._virtual = world.clock.virtual
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
        self.window = plan.window or max(LEAST_WINDOW, *most)
        self._least_window = min(self.window, sum(one.concurrency * (one.batch or 1) for one in plan.stages) + 1)
        self.memory = Memory(plan.tuning.memory)
        self._input_size = 0  # bytes of an item as it was read, roughly, of the larger ones of late
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
            self.posts,
            self.attempt_in_thread,
            self._safely(self._came_back),
            Next.GO,
            Next.LINE,
            Next.END,
            self.loop,
            self.memory,
            self._safely(self._review),
            plan.tuning.threads,
        )
        self._opener: asyncio.Task[Any] | None = None  # as long as resources are opened
        self.batches = ItemWriter(
            store,
            lease,
            sink,
            self.ledger.refused,
            written=self._safely(self._committed),
            broken=self._writer_broke,
            loop=self.loop,
            memory=self.memory,
            limits=plan.tuning.batches,
        ).batches
        self.heartbeat: Heartbeat[Any]

    # -- from the beginning to the end ------------------------------------------------------------------------------------------

    async def run(self, started: Event | None = None) -> None:
        """Do all that can be done; `started` goes on record first."""
        factories = [factory for post in self.posts for factory in post.stage.resources.values()]
        if not await self._opened(factories):
            await self.intake.close()
            return
        for post in self.posts:
            post.kwargs = self.resources.for_stage(post.stage.resources)
            post.direct = post.native = not post.kwargs and iscoroutinefunction(post.work)
        soon = self.loop.call_soon_threadsafe
        self.batches.start()
        self.heartbeat = heartbeat = Heartbeat(
            self.store.beat,
            self.lease,
            self.loop,
            drop=self.store.drop_lease,
            lost=lambda error: _unless_closed(soon, self.lose, error),
            wanted=lambda wish: _unless_closed(soon, self.end, wish),
        )
        if started is not None:
            self.batches.batch.events.append(as_row(started))
        self._background = [self.loop.create_task(self._feed()), self.loop.create_task(self._ring())]
        for task in self._background:
            task.add_done_callback(self._left)
        try:
            await self._done
            await self._leave()
            await self._settle()
            await self.at_end()
        except asyncio.CancelledError:
            self.end("interrupted")
            self.cancel()
            await self._leave()
            await self._settle()
            raise
        finally:
            self._cancelling = True
            heartbeat.close()
            self.batches.close()
            self.crew.close()
            await self._dismiss([*self._background, *self._tasks, *self._lines])
            self.crew.abandon()
            await self.intake.close()
            try:
                await self.resources.close()
            except Exception as error:  # noqa: BLE001 - the work is done and on record
                from outlast.kernel.log import warn

                warn("a resource could not be closed: %s", type(error).__name__)

    async def _opened(self, factories: list[Any]) -> bool:
        """Whether what the stages use is open, and they are to begin."""
        task = self._opener = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one
        try:
            await self.resources.open(factories)
        except asyncio.CancelledError as error:
            if self._cancelling:  # it was not waited for any longer
                task.uncancel()
            if task.cancelling():
                self.end("interrupted")
                raise
            if not self._cancelling:
                self.stop("resource_error", error)
            return False
        except KeyboardInterrupt as error:
            self._abort(error)
            return False
        except BaseException as error:  # noqa: BLE001 - told as the run's failure
            self.stop("resource_error", error)
            return False
        finally:
            self._opener = None
        if self._cancelling and task.cancelling():  # somebody's code has swallowed it
            task.uncancel()
        return True

    async def _settle(self) -> None:
        """Wait until everything that is finished is on record."""
        while not self.batches.settled:
            self._settled = self.loop.create_future()
            self.batches.flush()
            await self._settled

    async def _leave(self) -> None:
        """What is given up is on record, too."""
        if self._cancelling and self._tasks:
            await asyncio.wait([*self._tasks], timeout=_FAREWELL)

    async def _dismiss(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_FAREWELL)  # a stage may refuse to be cancelled

    def stop(self, reason: str, error: BaseException | None = None, *, drop: bool = False, begin: bool = False) -> None:
        """
        Read no more, and begin no item that was not begun, unless `begin`; with `drop`, give back whatever is not being attempted at this
        moment too.
        """
        if self.reason is None:
            self.reason, self.error = reason, error
        self._reading = False
        if not begin:
            self._drop(self._unbegun())
        if drop:
            self._dropping = True
            self.memory.open_for_good()
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

    def begin_no_more(self) -> None:
        """Read no more, and begin no item that was not begun."""
        self._reading = False
        self._drop(self._unbegun())

    def end(self, wish: str) -> None:
        """Wind down: attempts that are running may end, nothing else is begun. `wish` is pause, cancel or interrupted."""
        if self.status is not None:
            return
        self.status = {"pause": "paused", "cancel": "cancelled"}.get(wish, "interrupted")
        grace = self.plan.tuning.grace
        self.ends_on = self.bearings.monotonic() + grace
        self.stop(self.status, drop=True)
        self._stop.set()  # only now: a thread whose attempt ends with it finds nothing more to begin
        self.loop.call_later(grace, self.cancel)

    def cancel(self) -> None:
        """Do not wait for running attempts any longer."""
        if self._cancelling:
            return
        self._cancelling = True
        self._stop.set()
        if self._opener is not None:
            self._opener.cancel()
        self.batches.hurry()
        self.memory.open_for_good()
        for task in self._tasks:
            task.cancel()
        if not self._done.done():
            self._done.set_result(None)

    def lose(self, error: Exception) -> None:
        """Somebody else works on this: stop at once, and write nothing more."""
        self.status = self.status or "lost"
        self.reason, self.error = "lease_lost", error
        self.batches.abandon()
        self.stop("lease_lost", error, drop=True)
        self.cancel()
        self._wake_settled()

    def _writer_broke(self, error: BaseException) -> None:
        if isinstance(error, LeaseLost):
            self.lose(error)
            return
        # Also if it was asked to end before: what was finished meanwhile is not on record.
        self.status, self.reason, self.error = "failed", "store_error", error
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

    def hold(self, journey: Journey | Convoy) -> None:
        self.crew.hold(journey)

    def _wary(self) -> bool:
        """Whether one of the items in hand may be the one at which the failure budget ends the run."""
        books = self.books
        return books.over_budget and self.reason is None and books.processed + self.window >= books.next_check

    @property
    def reading(self) -> bool:
        """Whether there may be items that are not read yet, and they are wanted."""
        return self._reading

    @property
    def stoppable(self) -> bool:
        """Whether anything is left to stop: something to read, or an item in hand that has not begun at its stage."""
        if self._reading:
            return True
        if self.reason is not None or self.in_hand == 0:
            return False
        lines = [
            (*self._fresh, *self._metered, *self._granted, *self._lines.values()),
            (journey for _, _, journey in self._timers),
            self.crew.waiting(),
            *(post.ready for post in self.posts if post.is_async or not post.alone),
        ]
        return any(traveller.untouched for traveller in itertools.chain.from_iterable(lines))

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
                room = self._wide() - self.in_hand
                if room <= 0 or len(self._fresh) >= LOW or self.batches.full or self.crowded():
                    self._hungry = self.loop.create_future()
                    await self._hungry
                    continue
                # Without a name of its own: it would keep these items, and what becomes of them, until the next are read.
                self._take_in(await self.intake.chunk(min(room, self.plan.tuning.chunk)))
                if self.intake.exhausted:
                    self.books.source_exhausted = self.batches.batch.exhausted = True
                    self._reading = False
                    break
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise
        except KeyboardInterrupt as error:
            self._abort(error)
        except SourceFailed as failed:
            self.stop("source_error", failed.error, begin=True)  # which says nothing against the items before it
        except Exception as error:  # noqa: BLE001 - what it is compared with could not be had
            self.stop("source_error", error, begin=True)
        for post in self.posts:
            if not post.alone:
                self._gathered(post)
        self._check_done()

    def _wide(self) -> int:
        """The window as it is for values of their present size."""
        size = max(self.memory.typical, self._input_size)
        if size * self.window <= self.memory.most:
            return self.window
        return max(self._least_window, self.memory.most // size)

    def _take_in(self, chunk: list[Journey]) -> None:
        self.books.total = self.batches.batch.read = self.intake.read
        if chunk and self.books.bounds.spend_limit and (what := self.books.overspent) is not None:
            self.stop_spending(what)
        if not self._reading:
            return  # asked to stop meanwhile: they are read, and pending
        self.in_hand += len(chunk)
        if chunk:
            size = size_of(chunk[-1].value)
            self._input_size = max(size, self._input_size - ((self._input_size - size) >> 2))
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

    def _review(self, _: object = None) -> None:
        """See whether there is room for more values."""
        if not self.memory.is_open() and self.memory.holds(self.crew.unseen, share=2):
            self.memory.open()
            self.feed_more()
            self._relieve()

    # -- the record ---------------------------------------------------------------------------------------------------------------

    def _committed(self, batch: WriteBatch) -> None:
        self.ledger.committed(batch)
        self.intake.recorded(batch)
        self._review()
        now = self.bearings.monotonic()
        for journey in batch.held:
            self._held -= 1
            journey.waited(now)
            if self._dropping:
                self.give_back(journey)
            else:
                self._set_ready(journey)
        self.feed_more()
        self._relieve()
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
