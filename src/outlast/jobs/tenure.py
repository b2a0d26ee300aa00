"""
One registration of a worker: its lease, its heartbeat, its turns at the store, and the jobs that it has.

A worker that is given up for dead has lost its lease: whatever it still has is lost with it, and it registers again
under another key. So a late result never meets the attempt that somebody else has begun.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from outlast.errors import LeaseLost
from outlast.kernel.clock import REAL, Stop, here
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text
from outlast.kernel.wording import process_of
from outlast.store.steps import NewProgress
from outlast.work import leases
from outlast.work.leases import Heartbeat
from outlast.work.memory import Memory
from outlast.work.patience import Terms, keep_trying, terms
from outlast.work.writer import BatchLimits, BatchWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Self

    from outlast.jobs.running import ActiveJob
    from outlast.jobs.waking import Ask
    from outlast.store import Store
    from outlast.store.records import ClaimedJob, Idle, JobEnd, Lease
    from outlast.store.turns import Asked

# A turn goes as soon as none is under way; what ends meanwhile goes with the next one.
_LIMITS = BatchLimits(entries=1_000_000, latency=0.0, under_way=1)
FOREVER = float("inf")
MISSED = 10.0  # seconds after which a claim is on record that nobody here knows of: its answer is lost
_END = 5.0  # seconds that the thread of the turns has to end
_queue = attrgetter("queue")


class TurnBatch:
    """What one turn brings to the store and asks for, and what came of it."""

    __slots__ = (
        "active",
        "after",
        "ahead_us",
        "alone",
        "asks_idle",
        "asks_queues",
        "cancelled",
        "claimed",
        "claims",
        "ends",
        "found",
        "idle",
        "last",
        "lost",
        "made",
        "most",
        "queues",
        "released",
        "sought",
        "told",
        "took",
        "unsure",
        "wants",
    )

    def __init__(self) -> None:
        self.ends: list[JobEnd] = []
        self.active: list[ActiveJob] = []  # whose ends these are
        self.released: list[ActiveJob] = []  # held ones whose code has ended
        self.wants: Mapping[str, int] = {}
        self.after: Mapping[str, tuple[int, int]] = {}
        self.most = 0
        self.alone = False
        self.told = False  # it only claims, since somebody has told of jobs: it may go without the thread
        self.claims = True  # False: that is done
        self.unsure = False  # perhaps it has claimed, or one before it, and the answer is lost
        self.asks_idle = False
        self.asks_queues = False  # also if jobs were claimed
        self.ahead_us = 0
        self.claimed: list[ClaimedJob] = []
        self.made: list[ActiveJob] = []  # of these, if they were made ready before that was sure
        self.found: Mapping[str, int] = {}  # by queue, how many were claimed, and the last of them
        self.last: Mapping[str, ClaimedJob] = {}
        self.took = 0.0  # seconds
        self.lost: tuple[int, ...] = ()
        self.cancelled: tuple[int, ...] = ()
        self.idle: Idle | None = None
        self.queues: list[str] = []  # that have jobs to claim, if all are served
        self.sought: float | None = None  # seconds that it took to learn them, if they were asked for

    @property
    def empty(self) -> bool:
        return not (self.ends or self.released or self.wants or self.asks_idle or self.asks_queues or self.unsure)

    def following(self) -> Self:
        return type(self)()


class Tenure:
    """A registration of a worker, until `close` or until it is lost."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        kinds: Mapping[str, int],
        queues: tuple[str, ...] | None,
        *,
        prepare: Callable[[Tenure, TurnBatch], None],
        written: Callable[[Tenure, TurnBatch], None],
        failed: Callable[[Tenure, BaseException], None],
        wanted: Callable[[Tenure, tuple[tuple[int, int], ...]], None],
        hung: Callable[[bool], None],
        ask: Ask,
        coming: Callable[[TurnBatch], None],
        missed: Callable[[Tenure], None],
        in_hand: Callable[[], set[int]],
    ) -> None:
        """
        `queues` are those that it serves; None: all. `prepare` and `written` are called in the loop around each turn; `failed` when the lease is lost (`LeaseLost`)
        or nothing can be written; `wanted` with the ids and tokens of jobs that an operator has cancelled; `hung` in a
        thread, with True when the loop hangs and the lease is renewed no more, with False when it moves again. `ask` is that of
        what the worker is woken by; `coming` is called with a turn that has claimed something, unless its commit fails;
        `missed` when a job is on record as claimed here that is not in hand. `in_hand`, called from a thread, are the ids of jobs whose code
        runs here or that are being undone.
        """
        loop = asyncio.get_running_loop()
        self.store = store
        self.lease = lease
        self.jobs: dict[int, ActiveJob] = {}  # claimed, and their end is not written
        self.over = False
        self._kinds = kinds
        self._queues = queues
        self._ask = ask
        self._asks: tuple[Any, ...] = ()  # by the last turn that went from the loop, and as it was sent
        self._asked: Asked | None = None
        self._coming = coming
        self.give_up = Stop()  # set: wait no longer for a store that cannot be used

        def tell(callback: Callable[..., None], *arguments: Any) -> None:
            try:
                loop.call_soon_threadsafe(callback, self, *arguments)
            except RuntimeError:  # the loop is closed
                return

        self._storing_progress = threading.Lock()
        self._tell, self._missed, self._in_hand = tell, missed, in_hand
        self._strange: set[tuple[int, int]] = set()  # at the last beat: ended, with this worker, and not in hand
        self.turns: BatchWriter[TurnBatch] = BatchWriter(
            TurnBatch(),
            self._write,
            written=lambda turn: written(self, turn),
            broken=lambda error: failed(self, error),
            loop=loop,
            memory=Memory(),
            limits=_LIMITS,
            give_up=self.give_up,
            prepare=lambda turn: prepare(self, turn),
            at_once=self._claim,
        )
        # What has ended is never given up while the worker lives, however long the store is away.
        context = copy_context()
        context.run(terms.set, Terms(patience=FOREVER, ttl=lease.ttl))
        context.run(self.turns.start)
        self.heartbeat: Heartbeat[tuple[tuple[int, int], ...]]
        try:
            self.heartbeat = Heartbeat(
                self._beat,
                lease,
                loop,
                drop=store.drop_lease,
                lost=lambda error: tell(failed, error),
                requested=lambda cancelled: tell(wanted, cancelled),
                hung=hung,
            )
        except BaseException:  # the system refuses a thread
            self.turns.close()
            raise

    # -- in the loop -------------------------------------------------------------------------------------------------

    def _claim(self, turn: TurnBatch) -> bool:
        """Send a turn that only claims from here: to wake a thread for it, and to be woken by that, takes longer than it does."""
        if not (turn.told and turn.wants):
            return False
        asks = (turn.wants, turn.most, turn.after, turn.ahead_us)
        if self._asked is None or asks != self._asks:
            wants, most, after, ahead_us = self._asks = asks
            self._asked = self.store.claim_asked(
                self.lease, wants, self._kinds, most=most, after=after, ahead_us=ahead_us
            )
        asked, began = self._asked, REAL.clock.monotonic()
        return self._ask(asked, partial(self._answered, turn, asked, began), partial(self._seen, turn, asked, began))

    def _seen(self, turn: TurnBatch, asked: Asked, began: float, rows: list[Any]) -> None:
        """What such a turn will have claimed, unless its commit fails: while that waits for the disk, what can be made ready is."""
        with suppress(LeaseLost):  # as it is told when it is answered
            _note(turn, self.store.claim_answered(asked, self.lease, turn.wants, rows), began)
            self._coming(turn)

    def _answered(self, turn: TurnBatch, asked: Asked, began: float, answer: list[Any] | Exception) -> None:
        """What came of a turn that was sent from here. Whatever else it is to find out takes a thread."""
        if isinstance(answer, Exception):
            turn.unsure, turn.claimed, turn.made = True, [], []
            self.turns.hand_over(turn)
            return
        if not turn.made:
            try:
                _note(turn, self.store.claim_answered(asked, self.lease, turn.wants, answer), began)
            except LeaseLost as error:
                self.turns.failed(error)
                return
        turn.claims = False
        if turn.asks_queues or (turn.asks_idle and not turn.claimed):
            self.turns.hand_over(turn)
        else:
            self.turns.came_back(turn)

    # -- in threads --------------------------------------------------------------------------------------------------

    def store_progress(self, jobs: Iterable[ActiveJob]) -> None:
        """Store what these jobs have reported of their progress since it was last stored. Nothing waits for it or fails with it."""
        late = [job for job in jobs if job.progress is not job.progress_stored]
        if not late:
            return
        # One at a time, so that an older report never replaces a newer one. If the store is away, the next call tries again.
        with self._storing_progress, suppress(Exception):
            reported = [(job, progress) for job in late if (progress := job.progress) is not None]
            self.store.put_progress([NewProgress(job.job.id, job.job.token, *progress) for job, progress in reported])
            for job, progress in reported:
                job.progress_stored = progress

    def _beat(self, lease: Lease) -> tuple[Lease, tuple[tuple[int, int], ...] | None]:
        renewed = self.store.renew_lease(lease)
        known = self.jobs.copy()  # before the store is asked: what ends meanwhile is in it
        for number, token in self.store.processing_of(lease.key, MISSED):
            active = known.get(number)
            if active is None or active.job.token != token:
                self._tell(self._missed)
                break
        self._release_strange(lease)
        return renewed, tuple(self.store.cancelled_of(lease.key)) or None

    def _release_strange(self, lease: Lease) -> None:
        """
        Give back jobs that have ended and are with this worker on record, and nobody here knows of them: the answer to a claim that was to
        undo them is lost, and the server was not done with it when the undoer looked. When they were claimed is not on record: they
        are released at the second beat that finds them. An answer that comes later finds its token worth nothing.
        """
        known = self._in_hand()
        found = {(number, token) for number, token in self.store.ended_of(lease.key) if number not in known}
        if again := found & self._strange:
            self.store.release_held(lease, again)
        self._strange = found - again

    def _write(self, turn: TurnBatch) -> None:
        first = not turn.unsure

        def do() -> None:
            nonlocal first
            known = None
            if not first:
                # The answer to a commit may be lost, and with it jobs that were claimed: these come again.
                known = self.turns.in_loop(
                    lambda: [(job.id, job.token) for job in (one.job for one in self.jobs.values())]
                )
            first = False
            self.store_progress(turn.active)  # before their ends: who waits for one finds the last report
            if turn.claims and (turn.ends or turn.wants or turn.unsure):
                began = REAL.clock.monotonic()
                done = self.store.turn(
                    self.lease,
                    turn.ends,
                    turn.wants,
                    self._kinds,
                    alone=turn.alone,
                    after=turn.after,
                    known=known,
                    most=turn.most,
                    ahead_us=turn.ahead_us,
                )
                turn.lost, claimed, turn.cancelled = done
                _note(turn, claimed, began)
            if turn.released:  # after the ends: the same turn may bring that it is held
                self.store.release_held(
                    self.lease, [(one.job.id, one.job.token) for one in turn.released], ahead_us=turn.ahead_us
                )
            nothing = turn.asks_idle and not turn.claimed
            if self._queues is None and (turn.asks_queues or nothing):
                began = REAL.clock.monotonic()
                turn.queues = self.store.ready_queues()
                turn.sought = REAL.clock.monotonic() - began
            if nothing:
                turn.idle = self.store.idle(self._queues, self._kinds, ahead_us=turn.ahead_us)

        keep_trying(do, "the store", self.give_up)

    # -- the end -----------------------------------------------------------------------------------------------------

    def hurry(self) -> None:
        """Wait no longer for a store that cannot be used."""
        self.turns.hurry()

    def close(self) -> None:
        """Beat no more and write no more; blocks for a moment."""
        self.over = True
        self.turns.close()
        self.heartbeat.close()
        self.turns.join(_END)

    def give_back(self) -> None:
        """End the registration: what it had is given back or lost. Blocks."""
        try:
            self.store.drop_lease(self.lease)
        except LeaseLost:
            pass
        except Exception as error:  # noqa: BLE001 - it ends by itself
            warn("the lease of the worker could not be given back: %s", error_text(error))
        leases.ended(self.lease)


def _note(turn: TurnBatch, claimed: list[ClaimedJob], began: float) -> None:
    """What a turn has claimed."""
    turn.claimed = claimed
    if len(claimed) == 1:  # the usual number where somebody waits for it
        (job,) = claimed
        turn.found, turn.last = {job.queue: 1}, {job.queue: job}
    else:
        turn.found = Counter(map(_queue, claimed))
        turn.last = {job.queue: job for job in claimed}
    turn.took = REAL.clock.monotonic() - began


def register(store: Store, queues: Sequence[str] | None, kinds: Mapping[str, int]) -> Lease:
    """A lease for a worker that serves this, under a key that was never used. Blocks."""
    ids = here.get().ids
    if ids.repeatable and (stored := sum(stat.count for stat in store.stats())):
        ids.begin(f"a worker beside {stored} dead letters")  # which have ids of the same seed
    key = ids.new()
    lease = leases.take(
        lambda owner, ttl: store.take_lease("worker", key, owner, ttl),
        lambda: store.lease_of("worker", key),
        store.drop_lease,
        what=f"the worker {key}",
        taken=lambda lease: LeaseLost(f"the key {key} of a worker is held by {process_of(lease.owner)}"),
    )
    try:
        store.tell_worker(key, queues, kinds)
    except Exception as error:  # noqa: BLE001 - it is only for people's eyes
        warn("what this worker serves could not be put on record: %s", error_text(error))
    return lease
