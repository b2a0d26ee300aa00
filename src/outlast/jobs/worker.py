"""
The worker: it claims jobs, runs them, records how they ended, and gives back what it cannot finish.

    claim      no more than there are free slots, in the same turn that brings the ends of others to the store
    run        `running`: in the event loop, in threads, in child processes
    end        `outcome` decides, the next turn records it; the slot is free at once
    wait       for a notification, for what is due next, or a second
    undo       what failed jobs have registered (`undoing`), beside those that run
    drain      on a signal: claim nothing, let jobs end, then cancel them and give them back, which costs no attempt

While the store cannot be reached, ends wait for it. If the lease was not renewed for 0.7 of its time, somebody else may
soon take the worker for dead: it claims nothing, cancels what runs, and gives it back as soon as it can. If the lease
is lost, everything in hand is lost with it, and the worker registers again (`tenure`). If the event loop hangs, the
lease is renewed no more, and signals end the process (`hanging`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlast.errors import LeaseLost, TemporaryFailure
from outlast.jobs import telling
from outlast.jobs.handle import workers_in
from outlast.jobs.hanging import Unheard, blocked_by, left_words
from outlast.jobs.own import own_jobs
from outlast.jobs.running import JobRunner, Kind
from outlast.jobs.schedules import Scheduler
from outlast.jobs.tenure import Tenure, register
from outlast.jobs.undoing import Undoer
from outlast.jobs.upkeep import Upkeep
from outlast.jobs.waking import waking_for
from outlast.kernel.clock import REAL, Stop, ahead_us, here
from outlast.kernel.log import logger, warn
from outlast.kernel.redact import error_text
from outlast.kernel.wording import counted
from outlast.pipeline.resources import Resources
from outlast.sharing.named import bind
from outlast.store.faults import StoreUnavailable
from outlast.store.records import from_us, served_kind
from outlast.work import leases
from outlast.work.patience import keep_trying
from outlast.work.slots import Slots
from outlast.work.threads import begun_in_thread, in_thread, to_its_end
from outlast.work.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from outlast.jobs.job import Job
    from outlast.jobs.running import ActiveJob, Progress
    from outlast.jobs.tenure import TurnBatch
    from outlast.jobs.waking import Waking
    from outlast.pipeline.home import Home
    from outlast.store import Store
    from outlast.store.records import Idle, JobEnd, Lease

POLL = 1.0  # seconds after which the queue is looked at, whether somebody has told of jobs or not
_SOON = 0.02  # seconds between two looks of a worker that waits for others to end
_ECHO = 0.03  # seconds after a notification: others within 20 ms of it are not sent
FENCE = 0.7  # of a lease's time without a beat, after which nothing is claimed
# Seconds at the end of a worker: for what was cancelled to clean up; then for a store that is away to come back; then
# for the last try to write to it.
FAREWELL = 5.0
_OPENS = 1.0  # seconds in which a store is open that answers, for a worker that is asked to end before
# Seconds for all that the end of a worker waits for its store, the farewell included; and of these, for one that was asked
# to end a second time: a store that answers has answered by then.
_LEAVES, _LEAVES_AT_ONCE = 10.0, 2.0
# Jobs in hand for each place, those that wait for a limit included: of one queue, so that it holds up no other, and in all.
_IN_QUEUE, _IN_ALL = 2, 8
# Seconds that a busy worker claims nothing for a job that must run alone, and seconds after such a wait in vain in which
# it claims as usual. Both are doubled each time, up to an hour and two: sooner or later the wait is longer than the
# longest job that runs, and until then two thirds of the time are the others'. Without an end a worker would do nothing
# for days, for one job.
_PATIENCE, _MOST_PATIENCE = 5.0, 3600.0
_PAUSE, _LONGEST_PAUSE = 10.0, 7200.0
_TOGETHER = 100  # jobs that one turn claims if there is room; of more, half of the room,
_LARGEST = 1000  # up to this
# Seconds in which the thread of the turns gets the interpreter's lock and sends what it has to a server. Without them it
# would get it when many jobs have run, and the server would wait for that.
_HANDOVER = 0.0001
# Jobs that a turn claims which goes from the loop, at most: what they bring is read there. If there are more, the next turn has
# them at once.
_AT_ONCE = 8
_AGAIN = 0.1  # seconds after which jobs are looked for from the start of a queue,
# Or this many times what such a look takes, up to `POLL`. Queues are asked for as rarely, without that bound.
_SHARE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkResult:
    """
    What a worker has done. `failed` are also jobs of dead workers that it has put on record as that. `lost` are jobs that
    somebody else had taken meanwhile: their results changed nothing.

    `requeued` jobs failed or were put off, and are due again; `released` ones were given back unfinished, which costs no
    attempt; `cancelled` ones an operator has ended. `later` jobs are due later, the first of them at `next_run_at`.
    The code of `cut_off` jobs was still running when the worker ended, also of those that had failed or were cancelled
    before, and code that undid one.
    """

    succeeded: int = 0
    failed: int = 0
    requeued: int = 0
    lost: int = 0
    released: int = 0
    cancelled: int = 0
    cut_off: int = 0
    later: int = 0
    next_run_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """
    What a worker is doing now. `processing` jobs have a slot, `waiting` ones wait without one, and `stuck` slots are
    taken by code that was given up and does not end. `counts` are those of `WorkResult`. `drains_until` is on the real
    clock's `monotonic`; a `fenced` worker has not renewed its lease for too long. `progress` is what its jobs have
    reported, each with its kind and its number.
    """

    concurrency: int
    processing: int
    waiting: int
    stuck: int
    counts: Mapping[str, int]
    drains_until: float | None
    cutting: bool
    fenced: bool
    progress: Sequence[tuple[str, int, Progress]] = ()


class Worker:
    """
    Works on the jobs of an app, in one event loop. `run` returns when it is idle, if it is to, or was asked to end.
    """

    def __init__(
        self,
        home: Home,
        *,
        queues: Mapping[str, int] | None,
        concurrency: int,
        until_idle: bool = False,
        due_later: bool = False,
        drain: float = 20.0,
        provided: Mapping[Any, Any] | None = None,
    ) -> None:
        """
        `queues` is how many jobs of each may run at a time; None: of every queue there is, `concurrency` in all. With
        `due_later` it is not idle before those are done that are due later.
        """
        self._home: Any = home
        self._bounds = queues
        self._concurrency = concurrency
        self._until_idle = until_idle
        self._due_later = due_later
        self._drain = drain
        self._provided = provided
        self._wishes: deque[None] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining = self._cutting = self._hurried = self._fenced = False
        self._misses = False  # a claim whose answer was lost
        self._drains_until: float | None = None
        self._hurried_at = 0.0
        self._heard = 0  # how often it was asked to end
        self._waits_since: float | None = None  # for its store, at its end, on the real clock;
        self._leaves_by = float("inf")  # and until when
        self._leaves_at_once = False
        self._leaves_lease = False  # it runs out by itself: the store would have to be waited for to give it back
        counted = ("succeeded", "failed", "requeued", "lost", "released", "cancelled")
        self._counts: dict[str, int] = dict.fromkeys(counted, 0)
        self._upkeep: Upkeep | None = None
        self._later: Idle | None = None
        self._error: BaseException | None = None
        self._tenure: Tenure | None = None
        self._told = False  # and what is asked for is what somebody has told of
        self._asked = False  # claim, as soon as there is a turn
        self._known = False  # and if there is nothing, ask for nothing else
        self._next_due_at = float("inf")  # on the loop's clock, as it was when last asked
        self._watching: asyncio.TimerHandle | None = None
        self._polling: asyncio.TimerHandle | None = None
        self.opened = False  # its store
        self.not_again: dict[
            str, int
        ] = {}  # jobs that were cut off and had ended before, by how: nobody does them again
        self.undoing_cut_off = 0  # jobs that were being undone by code which was cut off
        self._ended_themselves: set[ActiveJob] = set()
        self._ended_for_good: dict[ActiveJob, str] = {}  # those that failed or were cancelled, and their code runs: how
        self._running: set[ActiveJob] = set()  # whose code runs
        self._undecided: set[ActiveJob] = set()  # of a lease that is lost, and their own transaction decides
        self._by_queue: dict[str, int] = {}
        self._claiming: TurnBatch | None = None  # under way: it has as many slots as it may claim jobs
        self._owed = 0  # slots that are taken beyond their number
        self._first = 0  # the place of the queue that is claimed from first
        self._ask_queues_at = 0.0  # on the loop's clock: then for queues that nobody here knew of
        self._quiet: set[str] = set()  # queues that had less than was wanted
        self._cancelled: frozenset[tuple[int, int]] = frozenset()  # what operators want to end, as last told: id, token
        self._again = False  # the last look came right after one that saw jobs which it did not get
        # Of many, half at a time: while these run, the store works on the other half.
        self._most = max(_TOGETHER, min(_LARGEST, (concurrency + 1) // 2))
        self._places: dict[str, tuple[int, int]] = {}  # by queue, where the next claim begins: see `Store.turn`
        self._look_again_at = 0.0  # on the loop's clock: then from the start
        self._alone: ActiveJob | None = None  # runs with nothing beside it
        self._wants_alone = False
        self._patience, self._pause = _PATIENCE, _PAUSE
        self._next_wait_at = 0.0  # on the loop's clock: before, nothing is left out for a job that must run alone
        self._waiting_alone: asyncio.TimerHandle | None = None

    # -- from outside ------------------------------------------------------------------------------------------------

    def ask_soon(self) -> None:
        """
        Drain; when asked twice, without waiting for what runs; when asked three times, without waiting for a store that
        is away. From any thread, from a signal handler, and before it has begun.
        """
        self._wishes.append(None)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hear)

    def unheard(self) -> Unheard:
        """What ends this process, in a `with`, if the worker was asked to end by signals and its loop hangs."""
        return Unheard(lambda: self._loop, self._drain, self._left_behind)

    def view(self) -> WorkerView:
        """What it is doing now; from any thread."""
        running = [*self._running]
        stuck = sum(active.over for active in running)
        waiting = sum(active.away for active in running)
        return WorkerView(
            concurrency=self._concurrency,
            processing=len(running) - stuck - waiting,
            waiting=waiting,
            stuck=stuck,
            counts=self._all_counts(),
            drains_until=self._drains_until,
            cutting=self._cutting,
            fenced=self._fenced,
            progress=[
                (active.job.kind, active.job.id, active.progress)
                for active in running
                if active.progress and not active.over
            ],
        )

    def _store_progress(self) -> None:
        """In a thread."""
        if (tenure := self._tenure) is not None and not tenure.over:
            tenure.store_progress(tenure.jobs.copy().values())

    def _all_counts(self) -> dict[str, int]:
        """Also those that a sweep of this worker has ended: nobody else tells of them."""
        ends = {} if self._upkeep is None else self._upkeep.ends
        return {how: count + ends.get(how, 0) for how, count in self._counts.items()}

    def _hear(self) -> None:
        while self._wishes:
            self._wishes.popleft()
            self._heard += 1
            if self._heard > 1 and not self._asked_twice.done():
                self._asked_twice.set_result(None)
            if self._cutting:
                self._hurry()
            elif self._draining:
                self._cut()
            else:
                self._end()

    # -- from the beginning to the end -------------------------------------------------------------------------------

    async def run(self) -> WorkResult:
        """Work until it is idle or was asked to end; raises what keeps it from recording what has ended."""
        self._loop = loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._done: asyncio.Future[None] = loop.create_future()
        self._asked_twice: asyncio.Future[None] = loop.create_future()
        self._clock = here.get().clock
        self._stop = Stop()  # ends the worker's own waits for its store, until it has one
        self._cutting_short = Stop()  # ends the waits of calls inside of jobs
        self._slots: Slots[ActiveJob] = Slots(self._concurrency)
        self._timers: Timers[None] = Timers(self._clock)
        self._hear()
        workers_in.append(loop)
        try:
            with self._stop:
                # Cancelled once: a second time, or each `await` in a scope of anyio that was cancelled, would leave a
                # worker behind that nobody ends. Somebody may have cancelled all tasks that there are.
                work = loop.create_task(self._run())
                return await to_its_end(work, lambda: work.cancelling() or work.cancel())
        finally:
            workers_in.remove(loop)

    async def _run(self) -> WorkResult:
        store = await self._open()
        if store is None:
            return WorkResult()
        self._store, self.opened = store, True
        declared = own_jobs(self._home) | self._home.kinds
        bind([thing for job in declared.values() for thing in _shared(job)], self._home.commons)
        resources = Resources(self._provided)
        await resources.open([factory for job in declared.values() for factory in job.resources.values()])
        try:
            return await self._work(
                store, {kind: Kind(job, resources.for_stage(job.resources)) for kind, job in declared.items()}
            )
        finally:
            await resources.close()

    async def _open(self) -> Store | None:
        """
        The store. None: it was asked to end meanwhile, and does not wait for a server that does not answer, or a file
        that is locked; nothing is in hand.
        """
        loop = asyncio.get_running_loop()
        opening: asyncio.Future[Store] = begun_in_thread(
            lambda: keep_trying(lambda: self._home.store, "the store"), left=True
        )
        stopped: asyncio.Future[None] = loop.create_future()
        forget = self._stop.tell(lambda: _unless_closed(loop, stopped.cancel))
        either: list[asyncio.Future[Any]] = [opening, stopped]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([opening], timeout=_OPENS)
        except asyncio.CancelledError:
            self._stop.set()
            raise
        finally:
            forget()
            stopped.cancel()
            opening.add_done_callback(_heard_of)
        return opening.result() if opening.done() else None

    async def _work(self, store: Store, kinds: Mapping[str, Kind]) -> WorkResult:
        loop = asyncio.get_running_loop()
        self._kinds = kinds
        self._versions = {name: kind.declared.version for name, kind in kinds.items()}
        self._queues = tuple(self._bounds) if self._bounds is not None else _declared(self._home.kinds)
        self._runner = JobRunner(
            kinds,
            app=self._home.name,
            clock=self._clock,
            most_threads=_IN_ALL * self._concurrency,
            ended=self._ended,
            freed=self._freed,
            left=self._left,
            returned=self._returned,
            stop=self._cutting_short,
        )
        self._undoer = Undoer(
            self._runner,
            kinds,
            None if self._bounds is None else self._queues,
            codec=self._home.codec,
            app=self._home.name,
            in_hand=lambda: {active.job.id for active in self._running},
            changed=self._undone,
        )
        upkeep = self._upkeep = Upkeep(
            self._home,
            store,
            kinds,
            None if self._bounds is None else self._queues,
            loop,
            alone=self._leave_room,
            undo=self._look_for_undoing,
            woken=self._woken,
            sure=self._sure,
            each_second=self._store_progress,
        )
        waking = waking_for(store, self._woken, loop)
        self._waking: Waking = waking
        ringing = loop.create_task(self._ring())
        # Where time jumps to whatever is due later, ticks would go on for ever.
        scheduler = Scheduler(store, {} if self._due_later else self._home.kinds | self._home.flows)
        try:
            self._hear()
            await in_thread(scheduler.start, self._stop)
            await self._register(store)
            upkeep.start()
            waking.start()
            await self._done
            await self._part()
            if self._draining:
                found = await in_thread(lambda: self._look_again(store))
                self._ended_for_good = {active: how for active, how in found.items() if active in self._running}
        except (asyncio.CancelledError, TemporaryFailure) as ending:
            if isinstance(ending, StoreUnavailable):
                raise
            self._cut()  # the system may have refused a thread when jobs were claimed already
            await self._part()
            if self._error is not None:
                warn("%s", error_text(self._error))
            raise
        finally:
            ringing.cancel()
            if self._watching is not None:
                self._watching.cancel()
            if self._polling is not None:
                self._polling.cancel()
            now = REAL.clock.monotonic()
            self._leaves_by = (now if self._waits_since is None else self._waits_since) + _LEAVES
            for close in (scheduler.close, upkeep.close, waking.close):
                await self._before_it_leaves(close)
            # Also those of which nobody knows how they have ended.
            left = len(self._running.union(() if self._tenure is None else self._tenure.jobs.values()))
            themselves = self._ended_themselves & self._running  # else they were counted when their code had ended
            ended = dict(self._ended_for_good)
            self.undoing_cut_off = self._undoer.cut_off
            await self._leave()
        if self._error is not None:
            raise self._error
        later = self._later
        self._counts["succeeded"] += len(themselves)
        self.not_again = dict(
            Counter(["succeeded"] * len(themselves) + [how for one, how in ended.items() if one not in themselves])
        )
        return WorkResult(
            **self._all_counts(),
            cut_off=left + self.undoing_cut_off,
            later=0 if later is None else later.later,
            next_run_at=None if later is None or later.next_due_us is None else from_us(later.next_due_us),
        )

    def _look_again(self, store: Store) -> dict[ActiveJob, str]:
        """
        What is on record at the end. What was due later when it was last idle may have been done since; and jobs whose
        code goes on after their attempt may have been cancelled, of which their worker is not told. Blocks.
        """
        self._later = None
        found = dict(self._ended_for_good)
        with suppress(Exception):  # the store may be away
            queues = None if self._bounds is None else self._queues
            self._later = store.idle(queues, self._versions, ahead_us=ahead_us())
            for active in [one for one in [*self._running] if one.held]:
                row = store.job(active.job.id)
                if row is not None and row.status in {"failed", "cancelled"}:
                    found[active] = row.status
                else:
                    found.pop(active, None)  # put back since, by an operator
        return found

    async def _register(self, store: Store) -> None:
        queues = None if self._bounds is None else self._queues
        lease = await self._registered(store, queues)
        self._fenced = False
        self._tenure = Tenure(
            store,
            lease,
            self._versions,
            None if self._bounds is None else self._queues,
            prepare=self._prepare,
            written=self._written,
            failed=self._failed,
            wanted=self._wanted,
            hung=self._hung,
            ask=self._waking.ask,
            coming=self._make_ready,
            missed=self._miss,
            in_hand=lambda: {active.job.id for active in [*self._running]} | self._undoer.in_hand(),
        )
        self._watch()
        self._ask()
        self._look_for_undoing()

    async def _registered(self, store: Store, queues: tuple[str, ...] | None) -> Lease:
        """
        A lease. Once the worker is asked to end, it is waited for a moment only: nothing is in hand, and a file may be
        locked for long. Then InterruptedError is raised, and what comes too late is given back.
        """
        loop, left = asyncio.get_running_loop(), threading.Event()

        def do() -> Lease:
            lease = register(store, queues, self._versions)
            if left.is_set():
                leases.ended(lease)
                store.drop_lease(lease)
            return lease

        registering: asyncio.Future[Lease] = begun_in_thread(do, left=True)
        registering.add_done_callback(_heard_of)
        stopped: asyncio.Future[None] = loop.create_future()
        forget = self._stop.tell(lambda: _unless_closed(loop, stopped.cancel))
        cancelled: asyncio.CancelledError | None = None
        until: float | None = None
        try:
            while not registering.done() and (until is None or REAL.clock.monotonic() < until):
                either: list[asyncio.Future[Any]] = [registering] if stopped.done() else [registering, stopped]
                rest = None if until is None else until - REAL.clock.monotonic()
                try:
                    await asyncio.wait(either, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
                except asyncio.CancelledError as interruption:
                    cancelled = interruption
                    self._stop.set()
                if until is None and (stopped.done() or cancelled is not None):
                    until = REAL.clock.monotonic() + _OPENS
        finally:
            forget()
            stopped.cancel()
        if cancelled is not None or not registering.done():
            left.set()
            raise cancelled or InterruptedError("asked to stop while the store could not be used")
        return registering.result()

    async def _part(self) -> None:
        """The farewell, however often it is cancelled: without it nothing of this worker would be given back."""
        while True:
            try:
                await self._farewell()
            except asyncio.CancelledError:
                self._cut()
            else:
                return

    async def _farewell(self) -> None:
        """Let what was cancelled end, and have all that has ended on record."""
        if self._cutting:
            until = REAL.clock.monotonic() + FAREWELL
            while self._running and (left := until - REAL.clock.monotonic()) > 0:
                tasks = [one.task for one in self._running if one.task is not None]
                if tasks:
                    await asyncio.wait(tasks, timeout=left)
                else:
                    await asyncio.sleep(min(left, _SOON))
            await self._undoer.close(until - REAL.clock.monotonic())
            self._ended_themselves |= await self._runner.cut_off([*self._running], FAREWELL)
        tenure, since, cut = self._tenure, None, frozenset(self._running)
        # What a claim brings that is answered only now is given back, too.
        while (
            tenure is not None
            and not tenure.over
            and not (tenure.turns.settled and self._running <= cut)
            and self._error is None
        ):
            now = REAL.clock.monotonic()
            if self._cutting and since is None:
                since = now
                self._waits_since = self._waits_since or now
            if since is not None and not self._hurried and now > since + FAREWELL:
                self._hurry()
            if since is not None and self._hurried and now > max(since, self._hurried_at) + FAREWELL:
                self._leaves_lease = True  # the last try hangs
                self._give_up_ends(tenure, hangs=True)
                return
            tenure.turns.flush()
            await asyncio.sleep(0.001)

    def _hurry(self) -> None:
        """Wait no longer for a store that is away: what can be written at once is written."""
        if not self._hurried:
            self._hurried, self._hurried_at = True, REAL.clock.monotonic()
        if self._tenure is not None:
            self._tenure.hurry()
            self._waking.let_go()  # the last try finds what it has claimed

    def _give_up_ends(self, tenure: Tenure, *, hangs: bool = False) -> None:
        """
        The worker ends, and what has ended cannot be put on record; nor can be found out what a claim has got whose answer
        is lost, or does not come since the server `hangs`.
        """
        tenure.over = True
        tenure.turns.abandon()
        if count := sum(_success_of(active) is None for active in tenure.jobs.values()):
            ends = "the end of 1 job is" if count == 1 else f"the ends of {count:,} jobs are"
            again = "This job" if count == 1 else "These jobs"
            self._error = StoreUnavailable(
                f"{ends} not on record: the worker was asked to stop while the store could not be used. {again} will be "
                "run again by another worker.",
                error_class="database_connection",
            )
        elif (
            self._claiming is not None and (hangs or self._claiming.unsure) and tenure.store.by_server
        ):  # a file answers, or nothing was claimed
            self._error = StoreUnavailable(
                "a claim was not answered: the worker was asked to stop while the store could not be used. If jobs were claimed by it, "
                "they have not run here, and will be run by another worker.",
                error_class="database_connection",
            )

    async def _before_it_leaves(self, do: Callable[[], None]) -> bool:
        """
        Do it in a thread, whoever cancels this meanwhile, and wait for it as long as the end of a worker waits for its
        store. Whether it is done; else its thread is left behind.
        """
        work: asyncio.Future[None] = begun_in_thread(do, left=True, else_here=True)
        work.add_done_callback(_heard_of)
        while not work.done():
            now = REAL.clock.monotonic()
            if self._asked_twice.done() and not self._leaves_at_once:
                self._leaves_at_once = True
                self._leaves_by = min(self._leaves_by, now + _LEAVES_AT_ONCE)
            either = [work] if self._leaves_at_once else [work, self._asked_twice]
            with suppress(asyncio.CancelledError):
                rest = None if self._leaves_by == float("inf") else max(0.0, self._leaves_by - now)
                await asyncio.wait(either, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and REAL.clock.monotonic() >= self._leaves_by:
                return False
        work.result()
        return True

    async def _leave(self) -> None:
        tenure, self._tenure = self._tenure, None
        self._runner.close()
        if tenure is not None:
            await self._before_it_leaves(tenure.close)
            if self._undoer.outlive(tenure):
                pass  # code that undoes a job goes on under the lease
            elif self._leaves_lease:
                leases.ended(tenure.lease)
            elif not await self._before_it_leaves(tenure.give_back):
                leases.ended(tenure.lease)
                warn(
                    "the lease of the worker is not given back, since the store does not answer: it runs out by itself"
                )
        await self._before_it_leaves(self._runner.join)
        self._runner.threads.abandon()

    # -- ending ------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Claim nothing more, and let what runs end."""
        if not self._draining:
            logger().info(
                "the worker ends: no more jobs begin; what runs has %g s to end, then it is given back", self._drain
            )
        self._draining = True
        self._drains_until = REAL.clock.monotonic() + self._drain
        self._stop.set()
        if self._loop is not None:
            self._loop.call_later(self._drain, self._cut)
        if self._tenure is not None:
            self._undoer.end()
            self._runner.halt([*self._running])
        self._check()

    def _cut(self) -> None:
        """Do not wait for what runs any longer: it is given back."""
        self._draining = self._cutting = True
        self._stop.set()
        self._cutting_short.set()
        for active in [*self._running]:
            self._runner.give_up(active, "release")
        if self._tenure is not None:
            self._undoer.cut()
        if not self._done.done():
            self._done.set_result(None)

    def _check(self) -> None:
        """Whether nothing is left to do for a worker that drains."""
        tenure = self._tenure
        if self._running or (tenure is not None and (self._undoer.busy or not tenure.turns.settled)):
            return
        if self._draining and not self._done.done():
            self._done.set_result(None)

    def _failed(self, tenure: Tenure, error: BaseException) -> None:
        """The lease is lost, or nothing can be recorded any more."""
        if tenure is not self._tenure:
            return
        if self._hurried and isinstance(error, InterruptedError):
            self._give_up_ends(tenure)
            return
        loop = asyncio.get_running_loop()
        self._tenure = None
        tenure.over = True
        tenure.turns.abandon()
        if self._claiming is not None:
            reserved, self._claiming = self._claiming.most, None
            self._unreserve(reserved)
        lost, undecided = self._lose(tenure)
        for active in [*tenure.jobs.values()]:
            self._runner.give_up(active, "lost")
        self._undoer.lose()
        said = f"{counted(lost, 'job is', 'jobs are')} lost to it"
        if undecided:
            said += f", {counted(undecided, 'other one ends as its', 'others end as their')} own transaction does"
        if not isinstance(error, LeaseLost):
            self._error = self._error or error
            if not self._done.done():
                self._done.set_result(None)
        elif self._draining:
            warn("the lease of this worker was taken over: %s", said)
        else:
            warn("the lease of this worker was taken over: %s; it registers again", said)
        self._changing = loop.create_task(self._change(tenure))

    def _lose(self, tenure: Tenure) -> tuple[int, int]:
        """
        Count what a registration had that is no more: how many jobs are lost, and of how many that is not known yet,
        since they may end with a transaction of their own. One that has so ended is a success.
        """
        unwritten = [*tenure.jobs.values()]
        for active in unwritten:
            if (end := _success_of(active)) is not None:
                del tenure.jobs[active.job.id]
                self._succeeded_itself(active, end)
        undecided = {active for active in tenure.jobs.values() if active.finishing and not active.over}
        self._undecided |= undecided
        lost = len(tenure.jobs) - len(undecided)
        self._counts["lost"] += lost
        return lost, len(undecided)

    def _succeeded_itself(self, active: ActiveJob, end: JobEnd) -> None:
        """It is on record by its own transaction: no turn brings it there."""
        self._counts["succeeded"] += 1
        if telling.loud():
            telling.ended(active, end, end.state)

    async def _change(self, tenure: Tenure) -> None:
        """Close a registration that is lost, and begin another one."""
        try:
            await in_thread(tenure.close)
            await in_thread(tenure.give_back)
            if self._error is None and not self._draining:
                await self._register(self._store)
            self._check()
        except Exception as error:  # noqa: BLE001 - raised by `run`
            self._error = self._error or error
            if not self._done.done():
                self._done.set_result(None)

    # -- the lease ---------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look, in real time, whether the heartbeat lands."""
        tenure = self._tenure
        if tenure is None or self._loop is None:
            return
        ttl = tenure.lease.ttl
        heartbeat = tenure.heartbeat
        # After a hang the lease is renewed at once, or is lost: that is not to be judged before it has been tried.
        late = REAL.clock.monotonic() - heartbeat.renewed_at > FENCE * ttl and not heartbeat.hangs
        if late and not self._fenced:
            self._fenced = True
            warn(
                "the lease of this worker was not renewed for %g s: it claims nothing and gives back what runs",
                FENCE * ttl,
            )
            for active in [*tenure.jobs.values()]:
                self._runner.give_up(active, "release")
        elif not late and self._fenced:
            self._fenced = False
            self._ask()
        self._watching = self._loop.call_later(ttl / 20, self._watch)

    def _hung(self, hangs: bool) -> None:  # noqa: FBT001 - as the heartbeat says it
        """The loop does not move, so that the lease is renewed no more; or it moves again. In the heartbeat's thread."""
        if not hangs:
            warn("the event loop of this worker moves again")
            return
        tenure = self._tenure
        warn(
            "the event loop of this worker has not moved for %g s: %s. What blocks must not be async. The lease of this "
            "worker is not renewed, so that other workers take its jobs over",
            0.0 if tenure is None else tenure.lease.ttl,
            self._blocked(),
        )

    def _blocked(self) -> str:
        """What blocks the loop. From any thread."""
        try:
            return "it has not begun" if self._loop is None else blocked_by(self._loop, self._thread, self._running)
        except Exception:  # noqa: BLE001 - what is seen of running code may change while one looks
            return "nobody knows what blocks it"

    def _left_behind(self) -> str:
        """What is left, as the process ends while the loop hangs. From any thread."""
        tenure = self._tenure
        jobs = self._running.union(() if tenure is None else tenure.jobs.values())
        return left_words(len(jobs), Counter(self._ended_for_good.values()), self._blocked())

    def _sure(self) -> bool:
        """Whether this worker surely lives for others, too. From any thread."""
        tenure = self._tenure
        if tenure is None:
            return False
        return REAL.clock.monotonic() - tenure.heartbeat.renewed_at < FENCE * tenure.lease.ttl

    def _wanted(self, tenure: Tenure, cancelled: tuple[tuple[int, int], ...]) -> None:
        """Operators have cancelled these; one may be of a claim whose answer has not come yet."""
        self._cancelled = frozenset(cancelled)
        self._cancel(tenure.jobs[number] for number, _ in cancelled if number in tenure.jobs)

    def _cancel(self, jobs: Iterable[ActiveJob]) -> None:
        for active in jobs:
            if (active.job.id, active.job.token) in self._cancelled:
                self._runner.give_up(active, "cancel")

    # -- claiming ----------------------------------------------------------------------------------------------------

    def _ask(self, *, known: bool = False) -> None:
        """Claim what there is room for, as soon as there is a turn."""
        self._asked, self._known = True, known
        self._quiet.clear()
        if self._tenure is not None:
            self._tenure.turns.flush()

    def _woken(self) -> None:
        """Somebody has told of jobs; what was enqueued right after it is told by nobody."""
        self._told = True
        self._ask()
        self._poll(_ECHO, self._look)

    def _look(self) -> None:
        """Claim as `_ask` does; if there is nothing, what is due later is known from before."""
        self._ask(known=self._known or not self._asked)

    def _poll(self, seconds: float, look: Callable[[], None] | None = None) -> None:
        if self._loop is None or self._done.done():
            return
        due = self._loop.time() + seconds
        if self._polling is not None:
            if self._polling.when() <= due:
                return
            self._polling.cancel()
        self._polling = self._loop.call_at(due, self._polled, look or self._ask)

    def _polled(self, look: Callable[[], None]) -> None:
        self._polling = None
        look()

    def _miss(self, tenure: Tenure) -> None:
        """A claim is on record that nobody here knows of: the turn that looked for it came before the server was done with it."""
        if tenure is self._tenure:
            self._misses = True
            self._ask()

    def _leave_room(self) -> None:
        """A job waits that must run alone: claim nothing else for a while."""
        if self._wants_alone or self._alone is not None or self._loop is None:
            return
        if self._loop.time() < self._next_wait_at:
            return
        self._wants_alone = True
        if self._waiting_alone is not None:
            self._waiting_alone.cancel()  # of a wait that has ended before
        self._waiting_alone = self._loop.call_later(self._patience, self._impatient)
        self._ask()

    def _impatient(self) -> None:
        """Jobs that run here take too long for one that must run alone: go on with others for a while."""
        if self._wants_alone and self._alone is None and self._loop is not None:
            self._wants_alone = False
            if self._pause == _PAUSE:
                warn(
                    "a job that was lost with two workers waits to be run with nothing beside it, and jobs here take longer "
                    "than %g s: this worker begins no other job for longer and longer times, up to %g s, until nothing else runs",
                    self._patience,
                    _MOST_PATIENCE,
                )
            elif self._patience == _MOST_PATIENCE:
                warn(
                    "a job that was lost with two workers still waits to be run with nothing beside it: jobs here take longer "
                    "than %g s, and it may wait until this worker, or another one, has nothing else to do",
                    self._patience,
                )
            self._next_wait_at = self._loop.time() + self._pause
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._ask()

    def _prepare(self, tenure: Tenure, turn: TurnBatch) -> None:
        turn.ahead_us = ahead_us()
        turn.wants, turn.most, turn.after = {}, 0, {}
        turn.alone = turn.told = turn.asks_idle = turn.asks_queues = turn.unsure = False
        if tenure is not self._tenure or not (self._asked or turn.ends):
            return
        turn.unsure, self._misses = self._misses, False
        if self._claiming is not None:
            # Large results go while a turn is under way. How many jobs that one gets, and of which queues, nobody knows yet:
            # what there is room for is claimed after it.
            if not self._asked:
                self._asked = self._known = True
            return
        asked, self._asked, self._known = self._asked and not self._known, False, False
        told, self._told = self._told, False
        if self._draining or self._fenced or self._alone is not None or self._done.done():
            return
        nothing, room = not self._running, True
        if self._wants_alone:
            if not nothing:
                return
            turn.alone, turn.wants, turn.most = True, dict.fromkeys(self._queues, 1), 1
        else:
            turn.wants = self._room()
            in_all = _IN_ALL * self._concurrency - len(self._running)
            turn.told = told and not (turn.ends or turn.released or turn.unsure) and self._waking.free
            turn.most = max(0, min(len(self._slots.free), in_all, _AT_ONCE if turn.told else self._most))
            if asyncio.get_running_loop().time() >= self._look_again_at:
                self._places.clear()
            turn.after = {queue: self._places[queue] for queue in turn.wants if queue in self._places}
            room = turn.most > 0
            if not (room and turn.wants):
                turn.wants, turn.most = {}, 0
        if turn.wants:
            self._claiming = turn
            for _ in range(turn.most):
                self._slots.take()
        # Who has no room does not care what there is; queues that are full leave room for those that nobody knew of.
        turn.asks_idle = asked and (nothing or (room and not self._until_idle))
        if self._bounds is None and room and not turn.told:  # a turn for what has begun follows
            self._seek_queues(turn)

    def _seek_queues(self, turn: TurnBatch) -> None:
        """Ask for queues that nobody here knew of now and then, also while those that are known have jobs without end."""
        now = asyncio.get_running_loop().time()
        if now >= self._ask_queues_at:
            turn.asks_queues, self._ask_queues_at = True, now + POLL
        elif turn.empty:
            self._poll(self._ask_queues_at - now)  # there is no turn after which somebody would look again

    def _room(self) -> dict[str, int]:
        """How many jobs of each queue may be begun now; another queue is first after each one that gave some."""
        queues, bounds, counts = self._queues, self._bounds, self._by_queue
        most = _IN_QUEUE * self._concurrency
        if bounds is None and len(queues) == 1:
            room = min(self._concurrency, most - len(self._running))
            return {queues[0]: room} if room > 0 else {}
        first = self._first % max(1, len(queues))
        order = [*queues[first:], *queues[:first]]
        if bounds is None:
            rooms = ((queue, min(self._concurrency, most - counts.get(queue, 0))) for queue in order)
            return {queue: room for queue, room in rooms if room > 0 and queue not in self._quiet}
        return {
            queue: room
            for queue in order
            if queue not in self._quiet and (room := bounds[queue] - counts.get(queue, 0)) > 0
        }

    def _written(self, tenure: Tenure, turn: TurnBatch) -> None:
        if tenure is not self._tenure:  # lost meanwhile, and with it what was claimed; not what is on record
            self._record_late(tenure, turn)
            return
        if turn is self._claiming:
            self._claiming = None
        told = self._asked  # after the claim: it may have missed what somebody has told of
        self._record(tenure, turn)
        taken = self._take(tenure, turn)
        self._unreserve(max(0, turn.most - len(taken)))
        if turn.alone:
            if taken:
                self._patience, self._pause, self._next_wait_at = _PATIENCE, _PAUSE, 0.0
            else:
                self._wants_alone = False
        elif turn.wants:
            self._note_places(turn, told=told)
        if turn.found and len(self._queues) > 1:
            self._next_first(turn)
        if turn.sought is not None:
            pause = max(POLL, _SHARE * turn.sought)
            self._ask_queues_at = asyncio.get_running_loop().time() + pause
        if new := [queue for queue in turn.queues if queue not in self._queues]:
            self._queues = (*self._queues, *new)
            self._asked = True
        elif turn.idle is not None:
            self._judge(turn.idle, alone=turn.alone)
        elif self._polling is None:
            self._poll(min(POLL, max(_SOON, self._next_due_at - asyncio.get_running_loop().time())))
        if turn.released or any(end.state == "failed" for end in turn.ends):
            self._undoer.look(tenure)
        if turn.released or (self._until_idle and not self._running and turn.idle is None):
            self._asked = True
        if self._asked:
            tenure.turns.flush()  # before these begin: the store works while they run
            if len(taken) >= _TOGETHER and tenure.store.by_server:
                REAL.clock.sleep(_HANDOVER)
        if taken and (self._draining or self._fenced or not self._sure()):
            # Perhaps others have these by now: none of their code runs, and they are given back as they came.
            for active in taken:
                self._runner.give_up(active, "release")
        start = self._runner.start
        for active in taken:
            start(active)
        if self._cancelled:
            self._cancel(taken)
        if self._draining:
            self._check()

    def _note_places(self, turn: TurnBatch, *, told: bool) -> None:
        """
        How far each queue was looked through: the next claim goes on from there, past what was claimed before and cannot
        be removed yet. It looks from the start where fewer came than were wanted, and again and again: that is where jobs
        of a higher priority are, and those that came back.
        """
        places = self._places
        if not turn.after:
            pause = min(POLL, max(_AGAIN, _SHARE * turn.took))  # a long look must not be all that is done
            self._look_again_at = asyncio.get_running_loop().time() + pause
        if len(turn.claimed) >= turn.most:
            self._asked = True  # there may be more
            places.update((queue, (job.priority, job.id)) for queue, job in turn.last.items())
            return
        for queue, room in turn.wants.items():
            if turn.found.get(queue, 0) >= min(room, turn.most):
                last = turn.last[queue]
                places[queue] = last.priority, last.id
            elif queue in turn.after:
                places.pop(queue, None)
                self._asked = True
            elif not told:
                self._quiet.add(queue)

    def _next_first(self, turn: TurnBatch) -> None:
        """After the queue that gave jobs first comes the next one: a turn without jobs is nobody's turn."""
        gave = next((queue for queue in turn.wants if queue in turn.found), None)
        if gave is not None:
            self._first = self._queues.index(gave) + 1

    def _unreserve(self, count: int) -> None:
        for _ in range(count):
            self._slots.give()
        self._seat()

    def _make_ready(self, turn: TurnBatch) -> None:
        """What these jobs need that has no effect: it is not sure yet that they are claimed."""
        came = self._clock.monotonic()
        turn.made = [self._runner.take(job, came) for job in turn.claimed]
        for active in turn.made:
            active.make_ready()

    def _take(self, tenure: Tenure, turn: TurnBatch) -> list[ActiveJob]:
        """What was claimed, with a slot for each."""
        came = self._clock.monotonic()
        take, jobs, running, counts = self._runner.take, tenure.jobs, self._running, self._by_queue
        heard = telling.loud()
        taken = turn.made or [take(job, came) for job in turn.claimed]
        for active in taken:
            job = active.job
            if heard:
                telling.claimed(job, self._kinds[served_kind(job.kind)].policy.max_attempts, tenure.lease.owner)
            active.tenure = tenure
            jobs[job.id] = active
        running.update(taken)
        for queue, count in turn.found.items():
            counts[queue] = counts.get(queue, 0) + count
        for _ in range(
            len(taken) - turn.most
        ):  # the answer to an earlier claim was lost, and its slots were given back
            self._take_anyway()
        if turn.alone and taken:
            self._alone, self._wants_alone = taken[-1], False
        return taken

    def _take_anyway(self) -> None:
        try:
            self._slots.take()
        except IndexError:
            self._owed += 1

    def _record(self, tenure: Tenure, turn: TurnBatch) -> None:
        """Ends are on record: count them and tell them."""
        if not turn.ends:
            return
        counts, jobs = self._counts, tenure.jobs
        heard, failures = telling.loud(), telling.heard()
        late, cancelled = frozenset(turn.lost), frozenset(turn.cancelled)
        succeeded = 0
        for active, end in zip(turn.active, turn.ends, strict=True):
            jobs.pop(end.id, None)
            if end.state == "succeeded" and not late and not heard:
                succeeded += 1
                continue
            if end.id in late:
                counts["lost"] += 1
                continue
            state = "cancelled" if end.id in cancelled else end.state
            counts[_COUNTED_STATES[state] if state == "cancelled" else _counted_as(end)] += 1
            if state in {"failed", "cancelled"} and active in self._running:
                self._ended_for_good[active] = state
            if heard or (failures and state != "succeeded"):
                telling.ended(active, end, state)
        counts["succeeded"] += succeeded

    def _record_late(self, tenure: Tenure, turn: TurnBatch) -> None:
        """The lease is lost, and then comes that ends are on record: they were counted as lost."""
        known = [(active, end) for active, end in zip(turn.active, turn.ends, strict=True) if end.id in tenure.jobs]
        turn.active, turn.ends = [active for active, _ in known], [end for _, end in known]
        self._counts["lost"] -= len(turn.ends)
        self._record(tenure, turn)

    def _judge(self, idle: Idle, *, alone: bool) -> None:
        """Nothing could be claimed: how long to wait, and for what."""
        self._later = idle
        if idle.undo:
            self._look_for_undoing()
        due, again, self._again = idle.due and not self._running, self._again, False
        self._next_due_at = asyncio.get_running_loop().time() + (0.0 if due else _until_due(idle))
        if not self._until_idle:
            if due and idle.alone and not alone:
                self._wants_alone = self._asked = True
            elif due and not again:
                self._again = True
                self._ask()  # it came after the claim
            else:
                self._poll(_SOON if due else min(POLL, _until_due(idle)))
            return
        if self._running or self._asked or self._undoer.busy:
            return
        if idle.alone and not alone and not idle.processing:
            self._wants_alone = self._asked = True
        elif idle.due and self._due_later and not idle.processing:
            # It came due while one looked; where time only moves when nothing else happens, it has to move for that.
            self._timers.add(self._clock.monotonic() + _SOON, None)
        elif idle.due or idle.processing:
            self._poll(_SOON)
        elif idle.later and self._due_later:
            self._timers.add(self._clock.monotonic() + _until_due(idle), None)
        elif not self._done.done():
            self._done.set_result(None)

    def _look_for_undoing(self) -> None:
        """Failed jobs may have to be undone."""
        if not (self._draining or self._fenced or self._done.done()):
            self._undoer.look(self._tenure)

    def _undone(self, done: bool) -> None:  # noqa: FBT001 - as a callback has it
        """Nothing is being undone any more."""
        if self._draining:
            self._check()
        elif done:
            self._ask()
        elif self._until_idle:
            self._poll(_SOON)

    async def _ring(self) -> None:
        while True:
            if await self._timers.due(busy=bool(self._running) or self._undoer.busy):
                self._ask()

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _ended(self, active: ActiveJob, end: JobEnd) -> None:
        tenure = self._tenure
        if tenure is None or active.tenure is not tenure:
            if active in self._undecided and _success_of(active) is not None:
                self._undecided.discard(active)
                self._succeeded_itself(active, end)
            return
        batch = tenure.turns.batch
        batch.ends.append(end)
        batch.active.append(active)
        tenure.turns.added(0 if end.result is None else len(end.result))

    def _freed(self, active: ActiveJob) -> None:
        self._running.discard(active)
        self._ended_for_good.pop(active, None)
        if active in self._undecided:
            self._undecided.discard(active)
            self._counts["lost"] += 1
        queue = active.job.queue
        self._by_queue[queue] -= 1
        if active.away:
            self._waiting_no_more(active)
        elif self._owed:
            self._owed -= 1
        else:
            self._slots.give()
            if self._slots.waiting:
                self._seat()
        if active is self._alone:
            self._alone = None
            self._ask()
        elif active.tenure is not self._tenure:  # no end of it goes to the store
            self._ask()
        if active.held and active.tenure is self._tenure and self._tenure is not None:
            turns = self._tenure.turns
            turns.batch.released.append(active)
            turns.added()
        if self._draining:
            self._check()

    # -- jobs that wait without a slot -------------------------------------------------------------------------------

    def _left(self, _: ActiveJob) -> None:
        self._slots.give()
        if self._loop is not None:
            _unless_closed(self._loop, self._room_again)

    def _room_again(self) -> None:
        self._seat()
        self._ask()

    def _returned(self, active: ActiveJob) -> None:
        """It wants a slot again: before what is claimed next. From any thread."""
        self._slots.waiting.append(active)
        if self._loop is not None:
            _unless_closed(self._loop, self._seat)

    def _seat(self) -> None:
        slots = self._slots
        while (active := slots.next()) is not None:
            slots.take()
            active.away = False
            if active.seat is not None:
                active.seat()

    def _waiting_no_more(self, active: ActiveJob) -> None:
        try:
            self._slots.waiting.remove(active)
        except ValueError:
            return


_COUNTED_STATES = {
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
    "ready": "requeued",
    "waiting": "requeued",
    "alone": "requeued",
    "held": "requeued",
}


def _counted_as(end: JobEnd) -> str:
    return "released" if end.outcome == "released" else _COUNTED_STATES[end.state]


def _until_due(idle: Idle) -> float:
    """Seconds until the first job is due."""
    return float("inf") if idle.next_due_us is None else max(0.0, (idle.next_due_us - idle.now_us) / 1e6)


def _declared(jobs: Mapping[str, Job[..., Any]]) -> tuple[str, ...]:
    """Their queues; others are found when there is something in them."""
    return tuple(dict.fromkeys(job.queue for job in jobs.values())) or ("default",)


def _shared(job: Any) -> list[Any]:
    """What the guard of a job shares with other processes."""
    guard = job.guard
    parts = () if guard is None else (guard.breaker, guard.limit, guard.retry_budget)
    return [part for part in parts if part is not None and getattr(part, "shared", False)]


def _success_of(active: ActiveJob) -> JobEnd | None:
    """Its end, if a transaction of its own has put that on record."""
    return None if active.kept is None else active.kept.success


def _heard_of(opening: asyncio.Future[Any]) -> None:
    """Nobody waits for it any more: what went wrong there is not to be told as forgotten."""
    if not opening.cancelled():
        opening.exception()


def _unless_closed(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:  # the worker is over
        return
