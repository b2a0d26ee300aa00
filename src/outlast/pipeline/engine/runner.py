"""
The driver for items: it reads, makes attempts, waits and records, for one shard of a run in one event loop.

It is put together from parts: the scheduler moves items (through slots, timers and threads), the endings make rows of
those that have ended, the writer takes these to the store in batches. The runner reads, and decides when to stop. What
is read and not finished is bounded by a window, what is finished and not on record by memory.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from outlast.calls.state import running
from outlast.components import Unreadable
from outlast.errors import LeaseLost
from outlast.kernel.clock import Stop, here, stopping
from outlast.kernel.log import warn
from outlast.kernel.wording import counted
from outlast.observe import emit, listening
from outlast.pipeline.engine.attempts import scripted
from outlast.pipeline.engine.item import Phase, RunFacts, RunStage
from outlast.pipeline.engine.itemcall import UNDERWAY
from outlast.pipeline.engine.scheduling import LOW, Scheduler
from outlast.pipeline.errors import FailureBudgetExceeded
from outlast.pipeline.intake import SourceFailed
from outlast.pipeline.record.endings import Endings
from outlast.pipeline.record.writer import ItemWriter, WriteBatch, as_row
from outlast.pipeline.resources import Resources
from outlast.store.records import to_us
from outlast.work.leases import Heartbeat
from outlast.work.memory import Memory, size_of
from outlast.work.writer import BatchWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outlast.components import Sink
    from outlast.observe.events import Event
    from outlast.pipeline.engine.item import Item
    from outlast.pipeline.intake import Intake
    from outlast.pipeline.plan import Plan
    from outlast.pipeline.record.books import Accounting
    from outlast.pipeline.record.endings import Halt
    from outlast.pipeline.record.writer import OriginPart
    from outlast.pipeline.results import ItemResult, RunResult
    from outlast.store import Store
    from outlast.store.records import Lease, RunRecord

LEAST_WINDOW = 256
_FAREWELL = 5.0  # seconds for what was cancelled to clean up


class Runner:
    """
    One pass over one shard. `run` returns when everything that could be done is done and on record; then `reason`,
    `error` and the books say how it went. All of it belongs to its event loop.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        record: RunRecord,
        lease: Lease,
        books: Accounting,
        sink: Sink | None,
        intake: Intake,
        stop: Stop,
        deliver: Callable[[ItemResult[Any]], None] | None = None,
    ) -> None:
        """Attempts find `stop` in their context: it is set when the run is asked to end."""
        self.plan = plan
        self.store = store
        self.record = record
        self.lease = lease
        self.books = books
        self.sink = sink
        self.intake = intake
        self.loop = asyncio.get_running_loop()
        self._stop = stop
        clock = self.clock = here.get().clock
        facts = self._facts = RunFacts(
            pipeline=plan.name,
            run_id=record.id,
            pass_=record.passes,
            monotonic=clock.monotonic,
            wall_us=to_us(clock.now()),
            audit_all=plan.audit == "all",
            known_by=plan.known_by,
            follows=plan.follows,
        )
        self.phase = Phase()
        last = len(plan.stages) - 1
        self.stages = [
            RunStage(facts, stage, i, last=i == last, most_rounds=plan.breaker_rounds)
            for i, stage in enumerate(plan.stages)
        ]
        for stage in self.stages:
            stage.work = scripted(stage.work, stage.name)
        # Twice what can be under way at a batch stage: one batch is worked on while the next one gathers.
        most = (4 * one.concurrency if one.batch is None else 2 * one.concurrency * one.batch for one in plan.stages)
        self.window = plan.window or max(LEAST_WINDOW, *most)
        self._least_window = min(self.window, sum(one.concurrency * (one.batch or 1) for one in plan.stages) + 1)
        self._memory = Memory(plan.tuning.memory)
        self._input_size = 0  # bytes of an item as it was read, estimated from recent large ones
        self._hungry: asyncio.Future[None] | None = None
        self._done = self.loop.create_future()
        self._settled: asyncio.Future[None] | None = None
        self.reason: str | None = None  # why no more is read, if not because there is nothing more
        self.error: BaseException | None = None
        self.detail = ""  # what exactly, for people
        self.status: str | None = None  # the final status, if the books do not decide it
        self.ends_on: float | None = None  # when running attempts are given up, once it was asked to end
        self.result: RunResult[Any] | None = None  # once it is over
        self.crowded: Callable[[], bool] = _never  # whether results are not taken as fast as they come
        self._background: list[asyncio.Task[None]] = []  # once it has begun
        self._resources = Resources(plan.provided)
        self._opener: asyncio.Task[Any] | None = None  # as long as resources are opened
        give_up = Stop()
        self.writer = BatchWriter(
            WriteBatch(),
            ItemWriter(store, lease, sink, self._refused, give_up).write,
            written=self._recorded,
            broken=self._writer_broke,
            loop=self.loop,
            memory=self._memory,
            limits=plan.tuning.batches,
            give_up=give_up,
        )
        self.endings = Endings(plan, facts, self.phase, books, self.writer, sink, deliver)
        base = copy_context()
        base.run(stopping.set, stop)
        base.run(running.set, UNDERWAY)
        self.scheduler = Scheduler(
            self,
            self.stages,
            facts,
            self.phase,
            self.endings,
            self.writer,
            base=base,
            clock=clock,
            window=self.window,
            threads=plan.tuning.threads,
            metered=bool(plan.bounds.spend_limit),
        )
        self.heartbeat: Heartbeat[Any]

    # -- from the beginning to the end -------------------------------------------------------------------------------

    async def run(self, started: Event | None = None) -> bool:
        """
        Do all that can be done; `started` goes on record first. False if it did not begin. When all is on record, the
        lease is still held, until `close`.
        """
        if not await self._opened():
            return False
        for stage in self.stages:
            stage.kwargs = self._resources.for_stage(stage.declared.resources)
            stage.direct = stage.native = not stage.kwargs and iscoroutinefunction(stage.work)
        soon, scheduler = self.loop.call_soon_threadsafe, self.scheduler
        self.writer.start()
        try:
            self.heartbeat = Heartbeat(
                self.store.beat,
                self.lease,
                self.loop,
                drop=self.store.drop_lease,
                lost=lambda error: _unless_closed(soon, self.lose, error),
                requested=lambda request: _unless_closed(soon, self.end, request),
            )
        except BaseException:  # the system refuses a thread
            self.writer.close()
            await self._resources.close()
            raise
        if self.intake.origins is not None:
            self.intake.origins.heartbeat = self.heartbeat
        if started is not None:
            self.writer.batch.events.append(as_row(started))
        self._background = [self.loop.create_task(self._feed()), self.loop.create_task(scheduler.ring())]
        for task in self._background:
            task.add_done_callback(scheduler.left)
        try:
            await self._done
            await self._leave()
            await self._settle()
        except asyncio.CancelledError:
            self.end("interrupted")
            self.cancel()
            await self._leave()
            await self._settle()
            raise
        return True

    async def close(self) -> None:
        """End what works for it, and give back what it holds, except for the lease."""
        scheduler = self.scheduler
        if self._background:
            self.phase.cancelling = True
            self.heartbeat.close()
            self.writer.close()
            self._memory.unblock_for_good()
            scheduler.threads.close()
            await _dismiss([*self._background, *scheduler.open_tasks])
            scheduler.threads.abandon()
        await self.intake.close()
        if not self._background:
            return
        try:
            await self._resources.close()
        except Exception as error:  # noqa: BLE001 - the work is done and on record
            warn("a resource could not be closed: %s", type(error).__name__)

    async def _opened(self) -> bool:
        """Whether what the stages use is open, and they are to begin."""
        task = self._opener = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one
        phase = self.phase
        try:
            await self._resources.open(
                [factory for stage in self.stages for factory in stage.declared.resources.values()]
            )
        except asyncio.CancelledError as error:
            if phase.cancelling:  # it was not waited for any longer
                task.uncancel()
            if task.cancelling():
                self.end("interrupted")
                raise
            if not phase.cancelling:
                self.stop("resource_error", error)
            return False
        except KeyboardInterrupt as error:
            self.abort(error)
            return False
        except BaseException as error:  # noqa: BLE001 - told as the run's failure
            self.stop("resource_error", error)
            return False
        finally:
            self._opener = None
        if phase.cancelling and task.cancelling():  # the code of a resource has swallowed it
            task.uncancel()
        return True

    async def _settle(self) -> None:
        """Wait until everything that is finished is on record."""
        while not self.writer.settled:
            self._settled = self.loop.create_future()
            self.writer.flush()
            await self._settled

    async def _leave(self) -> None:
        """Let attempts that are given up end: they are on record, too."""
        if self.phase.cancelling and self.scheduler.tasks:
            await asyncio.wait([*self.scheduler.tasks], timeout=_FAREWELL)

    # -- stopping ----------------------------------------------------------------------------------------------------

    def stop(self, reason: str, error: BaseException | None = None, *, drop: bool = False, begin: bool = False) -> None:
        """
        Read no more, and begin no item that was not begun, unless `begin`; with `drop`, give back whatever is not being
        attempted at this moment too.
        """
        if self.reason is None:
            self.reason, self.error = reason, error
        self.phase.reading = False
        if not begin:
            self.scheduler.drop_unbegun()
        if drop:
            self.phase.dropping = True
            self._memory.unblock_for_good()
            self.scheduler.drop_waiting()
        self.check_done()

    def end(self, request: str) -> None:
        """Wind down: running attempts may end, nothing else is begun. `request` is pause, cancel or interrupted."""
        if self.status is not None:
            return
        self.status = {"pause": "paused", "cancel": "cancelled"}.get(request, "interrupted")
        grace = self.plan.tuning.grace
        self.ends_on = self._facts.monotonic() + grace
        self.stop(self.status, drop=True)
        self._stop.set()  # only now: a thread whose attempt ends with it finds nothing more to begin
        self.loop.call_later(grace, self.cancel)

    def cancel(self) -> None:
        """Do not wait for running attempts any longer."""
        if self.phase.cancelling:
            return
        self.phase.cancelling = True
        self._stop.set()
        if self._opener is not None:
            self._opener.cancel()
        self.writer.hurry()
        self._memory.unblock_for_good()
        self.scheduler.cancel()
        if not self._done.done():
            self._done.set_result(None)

    def lose(self, error: Exception) -> None:
        """Another process works on this: stop at once, and write nothing more."""
        self.status = self.status or "lost"
        self.reason, self.error = "lease_lost", error
        self.writer.abandon()
        self.stop("lease_lost", error, drop=True)
        self.cancel()
        self._wake_settled()

    def abort(self, error: BaseException) -> None:
        """End at once: the error is no item's failure. It outweighs what ended the reading before."""
        self.status = self.status or "interrupted"
        self.reason, self.error = "aborted", error
        self.stop("aborted", error, drop=True)
        self.cancel()

    def stay_open(self, stage: RunStage) -> None:
        """The circuit breaker of a stage stays open: stop."""
        self.detail = self.detail or _what_stays_open(stage)
        self.stop("breaker_open", drop=True)

    def halt(self, halts: Sequence[Halt]) -> None:
        """Stop, because of how items have ended; if there is anything left to stop."""
        for reason, error, detail in halts:
            match reason:
                case "out_of_order":  # it stops the run when those before it have ended
                    self.phase.reading = False
                    self.scheduler.drop_unbegun()
                case "spend_limit":
                    self._stop_spending(detail)
                case "failure_budget_exceeded":
                    stops = self.stoppable
                    self._tell_over_budget(error, stopped=stops)
                    if stops:
                        self.stop(reason, error, drop=True)
                case "same_failure" if not self.stoppable:
                    pass
                case _:
                    self.detail = detail
                    self.stop(reason, error, drop=True)

    def _stop_spending(self, what: str) -> None:
        """The limit of what may be spent is reached; that stops the run if anything is left to begin."""
        dropped = self.scheduler.drop_unbegun() if self.reason is None else 0
        if dropped or self.phase.reading:
            self.reason, self.detail = "spend_limit", what
            self.stop("spend_limit")

    def _tell_over_budget(self, error: BaseException | None, *, stopped: bool) -> None:
        if not listening() or not isinstance(error, FailureBudgetExceeded):
            return
        from outlast.observe.events import FailureBudgetExceeded as Told

        emit(
            Told(
                run_id=self.record.id,
                pipeline=self.plan.name,
                run_key=self.record.run_key,
                rate=error.rate,
                budget=error.budget,
                processed=error.processed,
                failed=error.failed,
                stopped=stopped,
            )
        )

    def check_done(self) -> None:
        """See whether nothing is left to do."""
        if not self.phase.reading and self.phase.in_hand == 0 and not self._done.done():
            self._done.set_result(None)

    def wary(self) -> bool:
        """Whether one of the items in hand may be the one at which the failure budget ends the run."""
        books = self.books
        return books.over_budget and self.reason is None and books.processed + self.window >= books.next_check

    @property
    def stoppable(self) -> bool:
        """Whether anything is left to stop: something to read, or an item in hand that has not begun at its stage."""
        if self.phase.reading:
            return True
        return self.reason is None and self.phase.in_hand > 0 and self.scheduler.any_untouched()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        phase = self.phase
        try:
            while phase.reading:
                room = self._wide() - phase.in_hand
                if room <= 0 or self.scheduler.unbegun >= LOW or self.writer.behind or self.crowded():
                    self._hungry = self.loop.create_future()
                    await self._hungry
                    continue
                # Without a name, which would keep these items and what becomes of them until the next are read.
                self._take_in(await self.intake.chunk(min(room, self.plan.tuning.chunk)))
                if self.intake.exhausted:
                    self.books.source_exhausted = self.writer.batch.exhausted = True
                    phase.reading = False
                    break
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise
        except KeyboardInterrupt as error:
            self.abort(error)
        except SourceFailed as failed:
            self.stop("source_error", failed.error, begin=True)  # which says nothing against the items before it
        except Exception as error:  # noqa: BLE001 - what it is compared with could not be had
            self.stop("source_error", error, begin=True)
        self.scheduler.no_more_to_come()
        self.check_done()

    def _wide(self) -> int:
        """The window as it is for values of their present size."""
        size = max(self._memory.typical, self._input_size)
        if size * self.window <= self._memory.most:
            return self.window
        return max(self._least_window, self._memory.most // size)

    def _take_in(self, chunk: list[Item]) -> None:
        self.books.total = self.writer.batch.read = self.intake.read
        if chunk and self.books.bounds.spend_limit and (what := self.books.overspent) is not None:
            self._stop_spending(what)
        if not self.phase.reading:
            return  # asked to stop meanwhile: they are read, and pending
        self.phase.in_hand += len(chunk)
        if chunk:
            size = size_of(chunk[-1].value)
            self._input_size = max(size, self._input_size - ((self._input_size - size) >> 2))
        self.endings.taken_in(chunk)
        carried = self.plan.carried
        readable = [item for item in chunk if not isinstance(item.value, Unreadable) and item.key not in carried]
        if len(readable) < len(chunk):
            for item in chunk:
                if item.key in carried:
                    item.output, item.status = carried[item.key], "succeeded"
                    self.scheduler.finish(item)
                elif isinstance(item.value, Unreadable):
                    self.endings.unreadable(item)
                    self.scheduler.finish(item)
        if self.phase.reading:
            self.scheduler.take_in(readable)
        else:  # one that could not be read has stopped the run
            for item in readable:
                self.scheduler.give_back(item)

    def feed_more(self) -> None:
        """There is room for more items: read on."""
        if self._hungry is not None and not self._hungry.done():
            self._hungry.set_result(None)

    def review(self) -> None:
        """See whether there is memory for more values."""
        if not self._memory.has_room() and self._memory.fits(self.scheduler.threads.unseen, share=2):
            self._memory.unblock()
            self.feed_more()
            self.scheduler.relieve()

    # -- the record --------------------------------------------------------------------------------------------------

    def _recorded(self, batch: WriteBatch) -> None:
        """All of this batch is on record."""
        try:
            self.endings.recorded(batch)
            self.intake.recorded(batch)
            self.review()
            self.scheduler.recorded(batch.recording)
            self.feed_more()
            self._wake_settled()
        except Exception as error:  # noqa: BLE001 - a defect of ours, or of a hook; the run would wait for ever
            self.abort(error)

    def _refused(self, batch: WriteBatch, part: WriteBatch | OriginPart, errors: Mapping[int, Exception]) -> None:
        """In the writer's thread: have the loop make failures of outputs that a sink does not take."""
        self.writer.in_loop(lambda: self.halt(self.endings.refused(batch, part, errors)))

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


async def _dismiss(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_FAREWELL)  # a stage may refuse to be cancelled


def _what_stays_open(stage: RunStage) -> str:
    breaker = stage.guard.breaker
    if breaker is None:
        return "a circuit breaker stayed open"
    isolated = breaker.memory.circuit.isolated
    tried = f"stayed open after {counted(stage.most_rounds, 'round')} of probes"
    how = tried if isolated is None else f"is isolated: {isolated}"
    return f"the circuit breaker {breaker.name} {how}"


def _never() -> bool:
    return False


def _unless_closed(soon: Callable[..., Any], *args: Any) -> None:
    try:
        soon(*args)
    except RuntimeError:  # the run is over
        return
