"""
The worker: it claims jobs, runs them, records how they ended, and gives back what it cannot finish.

    claim      no more than there are free slots, in the same turn that brings the ends of others to the store
    run        `running`: in the event loop, in threads, in child processes
    end        `outcome` decides, the next turn records it; the slot is free at once
    wait       for a notification, for what is due next, or a second
    drain      on a signal: claim nothing, let jobs end, then cancel them and give them back, which costs no attempt

While the store cannot be reached, ends wait for it. If the lease was not renewed for 0.7 of its time, somebody else may
soon take the worker for dead: it claims nothing, cancels what runs, and gives it back as soon as it can. If the lease
is lost, everything in hand is lost with it, and the worker registers again (`tenure`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlast.errors import LeaseLost
from outlast.jobs import telling
from outlast.jobs.running import JobRunner, Kind
from outlast.jobs.tenure import Tenure, register
from outlast.jobs.upkeep import Upkeep
from outlast.jobs.waking import waking_for
from outlast.kernel.clock import REAL, Stop, ahead_us, here
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text
from outlast.pipeline.resources import Resources
from outlast.sharing.named import bind
from outlast.store.faults import StoreUnavailable
from outlast.store.records import from_us
from outlast.work import leases
from outlast.work.patience import keep_trying
from outlast.work.slots import Slots
from outlast.work.threads import in_thread
from outlast.work.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from outlast.jobs.running import ActiveJob
    from outlast.jobs.tenure import TurnBatch
    from outlast.pipeline.home import Home
    from outlast.store import Store
    from outlast.store.records import Idle, JobEnd

POLL = 1.0  # seconds after which the queue is looked at, whether somebody has told of jobs or not
_SOON = 0.02  # seconds between two looks of a worker that waits for others to end
_ECHO = 0.03  # seconds after a notification: others within 20 ms of it are not sent
FENCE = 0.7  # of a lease's time without a beat, after which nothing is claimed
# Seconds at the end of a worker: for what was cancelled to clean up; then for a store that is away to come back; then
# for the last try to write to it.
_FAREWELL = 5.0
_PATIENCE = 5.0  # seconds that a busy worker claims nothing for a job that must run alone
_PAUSE = 10.0  # seconds after such a wait in vain, in which it claims as usual; doubled each time,
_LONGEST_PAUSE = 300.0  # up to this


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkResult:
    """
    What a worker has done. `lost` are jobs that somebody else had taken meanwhile: their results changed nothing.

    `requeued` jobs failed or were put off, and are due again; `released` ones were given back unfinished, which costs no
    attempt; `cancelled` ones an operator has ended. `later` jobs are due later, the first of them at `next_run_at`.
    `cut_off` jobs were still running when the worker ended.
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
    clock's `monotonic`; a `fenced` worker has not renewed its lease for too long.
    """

    concurrency: int
    processing: int
    waiting: int
    stuck: int
    counts: Mapping[str, int]
    drains_until: float | None
    cutting: bool
    fenced: bool


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
        self._drains_until: float | None = None
        self._hurried_at = 0.0
        self._leaves_lease = False  # it runs out by itself: the store would have to be waited for to give it back
        counted = ("succeeded", "failed", "requeued", "lost", "released", "cancelled")
        self._counts: dict[str, int] = dict.fromkeys(counted, 0)
        self._later: Idle | None = None
        self._error: BaseException | None = None
        self._tenure: Tenure | None = None
        self._asked = False  # claim, as soon as there is a turn
        self._watching: asyncio.TimerHandle | None = None
        self._polling: asyncio.TimerHandle | None = None
        self._running: set[ActiveJob] = set()  # whose code runs
        self._by_queue: dict[str, int] = {}
        self._reserved = 0  # slots for what a turn that is under way claims
        self._owed = 0  # slots that are taken beyond their number
        self._first = 0  # the queue that is claimed from first
        self._quiet: set[str] = set()  # queues that had less than was wanted
        self._alone: ActiveJob | None = None  # runs with nothing beside it
        self._wants_alone = False
        self._pause = _PAUSE
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
            counts=dict(self._counts),
            drains_until=self._drains_until,
            cutting=self._cutting,
            fenced=self._fenced,
        )

    def _hear(self) -> None:
        while self._wishes:
            self._wishes.popleft()
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
        self._done: asyncio.Future[None] = loop.create_future()
        self._clock = here.get().clock
        self._stop = Stop()  # ends the worker's own waits for its store, until it has one
        self._cutting_short = Stop()  # ends the waits of calls inside of jobs
        self._slots: Slots[ActiveJob] = Slots(self._concurrency)
        self._timers: Timers[None] = Timers(self._clock)
        self._hear()
        with self._stop:
            return await self._run()

    async def _run(self) -> WorkResult:
        store: Store = await in_thread(lambda: keep_trying(lambda: self._home.store, "the store"), self._stop)
        self._store = store
        declared = dict(self._home.kinds)
        bind([thing for job in declared.values() for thing in _shared(job)], self._home.commons)
        resources = Resources(self._provided)
        await resources.open([factory for job in declared.values() for factory in job.resources.values()])
        try:
            return await self._work(
                store, {kind: Kind(job, resources.for_stage(job.resources)) for kind, job in declared.items()}
            )
        finally:
            await resources.close()

    async def _work(self, store: Store, kinds: Mapping[str, Kind]) -> WorkResult:
        loop = asyncio.get_running_loop()
        self._kinds = kinds
        self._versions = {name: kind.declared.version for name, kind in kinds.items()}
        self._queues = tuple(self._bounds) if self._bounds is not None else _declared(kinds)
        self._runner = JobRunner(
            kinds,
            app=self._home.name,
            clock=self._clock,
            most_threads=2 * self._concurrency,
            ended=self._ended,
            freed=self._freed,
            left=self._left,
            returned=self._returned,
            stop=self._cutting_short,
        )
        upkeep = Upkeep(
            self._home,
            store,
            kinds,
            None if self._bounds is None else self._queues,
            loop,
            alone=self._leave_room,
            woken=self._woken,
            sure=self._sure,
        )
        waking = waking_for(store, lambda: _unless_closed(loop, self._woken))
        ringing = loop.create_task(self._ring())
        try:
            self._hear()
            await self._register(store)
            upkeep.start()
            waking.start()
            await self._done
            await self._farewell()
            if self._draining:
                await in_thread(lambda: self._look_again(store))
        except asyncio.CancelledError:
            self._cut()
            await self._farewell()
            if self._error is not None:
                warn("%s", error_text(self._error))
            raise
        finally:
            ringing.cancel()
            if self._watching is not None:
                self._watching.cancel()
            if self._polling is not None:
                self._polling.cancel()
            await in_thread(upkeep.close)
            await in_thread(waking.close)
            await self._leave()
        if self._error is not None:
            raise self._error
        later = self._later
        return WorkResult(
            **self._counts,
            cut_off=len(self._running),
            later=0 if later is None else later.later,
            next_run_at=None if later is None or later.next_due_us is None else from_us(later.next_due_us),
        )

    def _look_again(self, store: Store) -> None:
        """What is due later, as it is at the end: what was seen when it was last idle may have been done since. Blocks."""
        self._later = None
        with suppress(Exception):  # the store may be away
            queues = None if self._bounds is None else self._queues
            self._later = store.idle(queues, self._versions, ahead_us=ahead_us())

    async def _register(self, store: Store) -> None:
        lease = await in_thread(lambda: register(store), self._stop)
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
        )
        self._watch()
        self._ask()

    async def _farewell(self) -> None:
        """Let what was cancelled end, and have all that has ended on record."""
        if self._cutting:
            until = REAL.clock.monotonic() + _FAREWELL
            while self._running and (left := until - REAL.clock.monotonic()) > 0:
                tasks = [one.task for one in self._running if one.task is not None]
                if tasks:
                    await asyncio.wait(tasks, timeout=left)
                else:
                    await asyncio.sleep(min(left, _SOON))
            for active in [*self._running]:
                self._runner.cut_off(active)
        tenure, since = self._tenure, None
        while tenure is not None and not tenure.over and not tenure.turns.settled and self._error is None:
            now = REAL.clock.monotonic()
            if self._cutting and since is None:
                since = now
            if since is not None and not self._hurried and now > since + _FAREWELL:
                self._hurry()
            if since is not None and self._hurried and now > max(since, self._hurried_at) + _FAREWELL:
                self._leaves_lease = True  # the last try hangs
                self._give_up_ends(tenure)
                return
            tenure.turns.flush()
            await asyncio.sleep(0.001)

    def _hurry(self) -> None:
        """Wait no longer for a store that is away: what can be written at once is written."""
        if not self._hurried:
            self._hurried, self._hurried_at = True, REAL.clock.monotonic()
        if self._tenure is not None:
            self._tenure.hurry()

    def _give_up_ends(self, tenure: Tenure) -> None:
        """The worker ends, and what has ended cannot be put on record."""
        tenure.over = True
        tenure.turns.abandon()
        if count := len(tenure.jobs):
            ends = "the end of 1 job is" if count == 1 else f"the ends of {count:,} jobs are"
            again = "This job" if count == 1 else "These jobs"
            self._error = StoreUnavailable(
                f"{ends} not on record: the worker was asked to stop while the store could not be used. {again} will be "
                "run again by another worker.",
                error_class="database_connection",
            )

    async def _leave(self) -> None:
        tenure, self._tenure = self._tenure, None
        self._runner.threads.close()
        if tenure is not None:
            await in_thread(tenure.close)
            if self._leaves_lease:
                leases.ended(tenure.lease)
            else:
                await in_thread(tenure.give_back)
        self._runner.threads.abandon()

    # -- ending ------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Claim nothing more, and let what runs end."""
        self._draining = True
        self._drains_until = REAL.clock.monotonic() + self._drain
        self._stop.set()
        if self._loop is not None:
            self._loop.call_later(self._drain, self._cut)
        self._check()

    def _cut(self) -> None:
        """Do not wait for what runs any longer: it is given back."""
        self._draining = self._cutting = True
        self._stop.set()
        self._cutting_short.set()
        for active in [*self._running]:
            self._runner.give_up(active, "release")
        if not self._done.done():
            self._done.set_result(None)

    def _check(self) -> None:
        """Whether nothing is left to do for a worker that drains."""
        tenure = self._tenure
        if self._draining and not self._running and (tenure is None or tenure.turns.settled) and not self._done.done():
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
        reserved, self._reserved = self._reserved, 0
        self._unreserve(reserved)
        unwritten = set(tenure.jobs.values())
        self._counts["lost"] += len(unwritten)
        for active in unwritten:
            self._runner.give_up(active, "lost")
        if not isinstance(error, LeaseLost):
            self._error = self._error or error
            if not self._done.done():
                self._done.set_result(None)
        elif self._draining:
            warn("the lease of this worker was taken over: %d jobs are lost to it", len(unwritten))
        else:
            warn("the lease of this worker was taken over: %d jobs are lost to it; it registers again", len(unwritten))
        self._changing = loop.create_task(self._change(tenure))

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
        late = REAL.clock.monotonic() - tenure.heartbeat.renewed_at > FENCE * ttl
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

    def _sure(self) -> bool:
        """Whether this worker surely lives for others, too. From any thread."""
        tenure = self._tenure
        if tenure is None:
            return False
        return REAL.clock.monotonic() - tenure.heartbeat.renewed_at < FENCE * tenure.lease.ttl

    def _wanted(self, tenure: Tenure, cancelled: tuple[tuple[int, int], ...]) -> None:
        """Operators have cancelled these."""
        for number, token in cancelled:
            active = tenure.jobs.get(number)
            if active is not None and active.job.token == token:
                self._runner.give_up(active, "cancel")

    # -- claiming ----------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Claim what there is room for, as soon as there is a turn."""
        self._asked = True
        self._quiet.clear()
        if self._tenure is not None:
            self._tenure.turns.flush()

    def _woken(self) -> None:
        """Somebody has told of jobs; what was enqueued right after it is told by nobody."""
        self._ask()
        self._poll(_ECHO)

    def _poll(self, seconds: float) -> None:
        if self._loop is None or self._done.done():
            return
        due = self._loop.time() + seconds
        if self._polling is not None:
            if not self._polling.cancelled() and self._loop.time() < self._polling.when() <= due:
                return
            self._polling.cancel()
        self._polling = self._loop.call_at(due, self._ask)

    def _leave_room(self) -> None:
        """A job waits that must run alone: claim nothing else for a while."""
        if self._wants_alone or self._alone is not None or self._loop is None:
            return
        if self._loop.time() < self._next_wait_at:
            return
        self._wants_alone = True
        if self._waiting_alone is not None:
            self._waiting_alone.cancel()  # of a wait that has ended before
        self._waiting_alone = self._loop.call_later(_PATIENCE, self._impatient)
        self._ask()

    def _impatient(self) -> None:
        """Jobs that run here take too long for one that must run alone: go on with others for now."""
        if self._wants_alone and self._alone is None and self._loop is not None:
            self._wants_alone = False
            self._next_wait_at = self._loop.time() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._ask()

    def _prepare(self, tenure: Tenure, turn: TurnBatch) -> None:
        turn.ahead_us = ahead_us()
        turn.wants, turn.most, turn.alone, turn.asks_idle = {}, 0, False, False
        if tenure is not self._tenure or not (self._asked or turn.ends):
            return
        asked, self._asked = self._asked, False
        if self._draining or self._fenced or self._alone is not None or self._done.done():
            return
        nothing = not self._running
        if self._wants_alone:
            if not nothing:
                return
            turn.alone, turn.wants, turn.most = True, dict.fromkeys(self._queues, 1), 1
        else:
            turn.wants = self._room()
            turn.most = min(len(self._slots.free), 2 * self._concurrency - len(self._running))
            if not turn.most:
                turn.wants = {}
        self._reserved = turn.most if turn.wants else 0
        for _ in range(self._reserved):
            self._slots.take()
        turn.asks_idle = asked and (nothing or not self._until_idle)

    def _room(self) -> dict[str, int]:
        """How many jobs of each queue may be begun now; another queue is first each time."""
        queues, bounds, counts = self._queues, self._bounds, self._by_queue
        if bounds is None and len(queues) == 1:
            return {queues[0]: self._concurrency}
        self._first = (self._first + 1) % max(1, len(queues))
        order = [*queues[self._first :], *queues[: self._first]]
        if bounds is None:
            return {queue: self._concurrency for queue in order if queue not in self._quiet}
        return {
            queue: room
            for queue in order
            if queue not in self._quiet and (room := bounds[queue] - counts.get(queue, 0)) > 0
        }

    def _written(self, tenure: Tenure, turn: TurnBatch) -> None:
        if tenure is not self._tenure:  # lost meanwhile, and with it what was claimed
            return
        reserved, self._reserved = self._reserved, 0
        self._record(tenure, turn)
        claimed = turn.claimed
        if claimed:
            self._begin(tenure, turn)
        self._unreserve(max(0, reserved - len(claimed)))
        if turn.alone:
            if claimed:
                self._pause, self._next_wait_at = _PAUSE, 0.0
            else:
                self._wants_alone = False
        elif turn.wants and len(claimed) < turn.most:
            found: dict[str, int] = {}
            for job in claimed:
                found[job.queue] = found.get(job.queue, 0) + 1
            self._quiet.update(
                queue for queue, room in turn.wants.items() if found.get(queue, 0) < min(room, turn.most)
            )
        elif turn.wants:
            self._asked = True  # there may be more
        if new := [queue for queue in turn.queues if queue not in self._queues]:
            self._queues = (*self._queues, *new)
            self._asked = True
        elif turn.idle is not None:
            self._judge(turn.idle, alone=turn.alone)
        elif self._polling is None or self._polling.when() <= asyncio.get_running_loop().time():
            self._poll(POLL)
        if turn.released or (self._until_idle and not self._running and turn.idle is None):
            self._asked = True
        if self._asked:
            tenure.turns.flush()
        if self._draining:
            self._check()

    def _unreserve(self, count: int) -> None:
        for _ in range(count):
            self._slots.give()
        self._seat()

    def _begin(self, tenure: Tenure, turn: TurnBatch) -> None:
        """Start what was claimed."""
        came = self._clock.monotonic()
        start, jobs, counts = self._runner.start, tenure.jobs, self._by_queue
        heard = telling.loud()
        for number, job in enumerate(turn.claimed):
            if number >= turn.most:  # the answer to an earlier claim was lost, and its slots were given back
                self._take_anyway()
            if heard:
                telling.claimed(job, self._kinds[job.kind].policy.max_attempts, tenure.lease.owner)
            active = start(job, came)
            active.tenure = tenure
            jobs[job.id] = active
            self._running.add(active)
            counts[job.queue] = counts.get(job.queue, 0) + 1
            if turn.alone:
                self._alone, self._wants_alone = active, False

    def _take_anyway(self) -> None:
        try:
            self._slots.take()
        except IndexError:
            self._owed += 1

    def _record(self, tenure: Tenure, turn: TurnBatch) -> None:
        """Ends are on record: count them and tell them."""
        if not turn.ends:
            return
        counts, jobs, late = self._counts, tenure.jobs, turn.lost
        heard, failures = telling.loud(), telling.heard()
        for active, end in zip(turn.active, turn.ends, strict=True):
            jobs.pop(end.id, None)
            if late and end.id in late:
                counts["lost"] += 1
                continue
            state = "cancelled" if end.id in turn.cancelled else end.state
            counts[_COUNTED.get(end.outcome, _COUNTED_STATES[state])] += 1
            if heard or (failures and state != "succeeded"):
                telling.ended(active, end, state)

    def _judge(self, idle: Idle, *, alone: bool) -> None:
        """Nothing could be claimed: how long to wait, and for what."""
        self._later = idle
        if not self._until_idle:
            if idle.due and not self._running and not alone:
                self._wants_alone = self._asked = True  # it may be one that must run alone
            else:
                self._poll(_SOON if idle.due and alone else min(POLL, _until_due(idle)))
            return
        if self._running or self._asked:
            return
        if idle.due and not alone and not idle.processing:
            self._wants_alone = self._asked = True  # it may be one that must run alone
        elif idle.due or idle.processing:
            self._poll(_SOON)
        elif idle.later and self._due_later:
            self._timers.add(self._clock.monotonic() + _until_due(idle), None)
        elif not self._done.done():
            self._done.set_result(None)

    async def _ring(self) -> None:
        while True:
            if await self._timers.due(busy=bool(self._running)):
                self._ask()

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _ended(self, active: ActiveJob, end: JobEnd) -> None:
        tenure = self._tenure
        if tenure is None or active.tenure is not tenure:
            return
        batch = tenure.turns.batch
        batch.ends.append(end)
        batch.active.append(active)
        tenure.turns.added(0 if end.result is None else len(end.result))

    def _freed(self, active: ActiveJob) -> None:
        self._running.discard(active)
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


_COUNTED = {"released": "released"}
_COUNTED_STATES = {
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
    "ready": "requeued",
    "waiting": "requeued",
    "alone": "requeued",
    "held": "requeued",
}


def _until_due(idle: Idle) -> float:
    """Seconds until the first job is due."""
    return float("inf") if idle.next_due_us is None else max(0.0, (idle.next_due_us - idle.now_us) / 1e6)


def _declared(kinds: Mapping[str, Kind]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(kind.declared.queue for kind in kinds.values())) or ("default",)


def _shared(job: Any) -> list[Any]:
    """What the guard of a job shares with other processes."""
    guard = job.guard
    parts = () if guard is None else (guard.breaker, guard.limit, guard.retry_budget)
    return [part for part in parts if part is not None and getattr(part, "shared", False)]


def _unless_closed(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:  # the worker is over
        return
