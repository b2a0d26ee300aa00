"""
What a worker does beside its jobs, in a thread of its own: it sweeps, looks around, and applies retention.

Sweeping is no job, so nothing that is wrong with jobs can hold it up. Every worker sweeps, without a leader: the leases
of workers that have run out, or whose process is certainly dead, are ended, and their jobs go on (`outcome.after_crash`).

    every 5 s             a sweep
    a process here ends   an early sweep, by whichever worker of this machine comes first (`neighbours`): each waits for a
                          random moment, the longer the more of them there are, and sweeps if its lease is still there
    every second          a look at who has leases on this machine: newcomers are watched from then on, and one that died
                          before, or cannot be watched, is found; the progress that jobs have reported is stored
"""

from __future__ import annotations

import threading
from collections import Counter
from contextvars import copy_context
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from outlast import presets
from outlast.isolation.threads import start_thread
from outlast.jobs import telling
from outlast.jobs.neighbours import Neighbours
from outlast.jobs.outcome import after_crash
from outlast.jobs.own import ends_itself
from outlast.jobs.telling import SweptFailure
from outlast.kernel.clock import REAL, ahead_us, here
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text
from outlast.store.records import JOB_ENDS, from_us, served_kind
from outlast.verdicts import classify
from outlast.work.leases import certainly_dead, this_machine
from outlast.work.patience import terms

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from outlast.jobs.running import Kind
    from outlast.store import Store
    from outlast.store.records import Orphan, Rescue, Rescued

SWEEPS = 4  # in the time of a lease
LOOK = 1.0  # seconds between two looks at who has leases on this machine
_APART = 0.005  # seconds, by the number of workers that hear of a death: so far from each other they look, on average
_RETENTION = 3600.0  # seconds
_tidied: WeakKeyDictionary[Any, float] = WeakKeyDictionary()  # when retention was last applied for an app, in real time


class Upkeep:
    """
    The thread. In the loop, `woken` is called when jobs were brought back, `alone` when some wait to run with nothing
    beside them, `undo` when failed ones are to be undone. `each_second` is called in the thread. `ends` are jobs that came to their end by a sweep, by how.
    """

    def __init__(
        self,
        home: Any,
        store: Store,
        kinds: Mapping[str, Kind],
        queues: tuple[str, ...] | None,
        loop: asyncio.AbstractEventLoop,
        *,
        alone: Callable[[], None],
        undo: Callable[[], None],
        woken: Callable[[], None],
        sure: Callable[[], bool],
        each_second: Callable[[], None],
    ) -> None:
        """
        `queues` are those that the worker serves; None: all. While it is not `sure` that this worker has its own lease,
        nothing is swept: it may be the one that is late.
        """
        self._home = home
        self._store = store
        self._kinds = kinds
        self._queues = queues
        self._versions = {name: kind.declared.version for name, kind in kinds.items()}
        self._loop = loop
        self._alone = alone
        self._undo = undo
        self._woken = woken
        self._sure = sure
        self._each_second = each_second
        self.ends: Counter[str] = Counter()
        self._failures: dict[int, SweptFailure] = {}  # of the sweep that is under way
        self._dead: set[str] = set()  # owners on this machine that a sweep has been made for
        self._neighbours: Neighbours | None = None
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Sweep now, and again and again until `close`."""
        self._neighbours = Neighbours()
        thread = threading.Thread(
            target=copy_context().run, args=(self._run, self._neighbours), daemon=True, name="outlast-upkeep"
        )
        try:
            start_thread(thread)
        except BaseException:
            self._neighbours.close()
            self._neighbours = None
            raise
        self._thread = thread

    def close(self) -> None:
        """Sweep no more. Blocks until what is under way is done."""
        self._end.set()
        if self._neighbours is not None:
            self._neighbours.ring()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self, neighbours: Neighbours) -> None:
        try:
            self._keep_up(neighbours)
        finally:
            neighbours.close()

    def _keep_up(self, neighbours: Neighbours) -> None:
        pause, roll = terms.get().ttl / SWEEPS, REAL.dice.roll
        while not self._loop.is_closed():
            try:
                if self._sure():
                    self._sweep()
                # At once, too: many workers live only until they are idle.
                now = REAL.clock.monotonic()
                if now - _tidied.get(self._home, -_RETENTION) >= _RETENTION:
                    # By the database's clock: one of this host that is ahead must not make everything too old.
                    began = from_us(round(self._store.now() * 1e6) + ahead_us())
                    _tidied[self._home] = now
                    self._home.tidy(self._store, began)
            except Exception as error:  # noqa: BLE001 - the store may be away; the next sweep finds what this one has not
                if classify(error).category == "permanent":
                    warn("workers that are gone could not be looked for: %s", error_text(error))
            if self._rest(neighbours, pause * (0.8 + 0.4 * roll())):
                return

    def _rest(self, neighbours: Neighbours, seconds: float) -> bool:
        """Wait so long, or until a worker of this machine has died. Whether it is the end."""
        clock = REAL.clock.monotonic
        until = clock() + seconds
        while not self._end.is_set() and not self._loop.is_closed() and (left := until - clock()) > 0:
            self._each_second()
            if self._found_dead(neighbours):
                break
            if neighbours.wait(min(left, LOOK)):
                # All of them hear of it at the same moment: the first one sweeps, and the others find its lease gone.
                self._end.wait(_APART * len(neighbours) * REAL.dice.roll())
        return self._end.is_set()

    def _found_dead(self, neighbours: Neighbours) -> bool:
        """Whether an owner on this machine is dead for which no sweep was made; those that live are watched from now on."""
        machine = this_machine()
        if machine is None or not self._sure():
            return False
        try:
            owners = self._store.owners_of_workers(machine)
        except Exception:  # noqa: BLE001 - the store may be away; the next sweep says so if it is something else
            return False
        neighbours.watch(owners)  # and look afterwards: one that ends in between is heard of
        dead = {owner for owner in owners if certainly_dead(owner)}
        found = not dead <= self._dead
        self._dead = dead
        return found

    def _sweep(self) -> None:
        rescued: list[Rescued] = []
        try:
            self._store.sweep(certainly_dead, self._decide, ahead_us=ahead_us(), done=rescued)
        finally:  # one worker's jobs could not be brought back: those of the others are told all the same
            self.ends.update(one.state for one in rescued if one.state in JOB_ENDS)
            telling.rescued(self._store.app, rescued, self._failures)
            self._failures.clear()
            if rescued:
                self._tell(self._woken)
        if self._store.waits_alone(self._queues, self._versions):
            self._tell(self._alone)
        if self._store.undoing_waits(self._queues, self._versions, ahead_us=ahead_us()):
            self._tell(self._undo)

    def _decide(self, orphan: Orphan) -> Rescue:
        kind, world = self._kinds.get(served_kind(orphan.kind)), here.get()
        known = kind is not None and orphan.version <= kind.declared.version
        policy = kind.policy if kind is not None and known else None
        itself = ends_itself(orphan.kind)
        rescue = after_crash(orphan, policy, roll=world.dice.roll(), letter=world.ids.new(), ends_itself=itself)
        if rescue.state == "failed":
            attempts = (policy or presets.jobs).max_attempts
            took_us = max(0, orphan.swept_us - orphan.claimed_us)
            self._failures[orphan.id] = SweptFailure(orphan, rescue, attempts, took_us)
        return rescue

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the worker is over
            return
