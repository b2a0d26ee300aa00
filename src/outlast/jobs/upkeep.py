"""
What a worker does beside its jobs, in a thread of its own: it sweeps, looks around, and applies retention.

Sweeping is no job, so nothing that is wrong with jobs can hold it up. Every worker sweeps, without a leader: the leases
of workers that have run out, or whose process is certainly dead, are ended, and their jobs go on (`outcome.after_crash`).
"""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from outlast import presets
from outlast.jobs import telling
from outlast.jobs.outcome import after_crash
from outlast.jobs.telling import SweptFailure
from outlast.kernel.clock import REAL, ahead_us, here
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text
from outlast.store.records import to_us
from outlast.verdicts import classify
from outlast.work.leases import certainly_dead
from outlast.work.patience import terms

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from outlast.jobs.running import Kind
    from outlast.store import Store
    from outlast.store.records import Orphan, Rescue

SWEEPS = 4  # in the time of a lease
_RETENTION = 3600.0  # seconds
_tidied: WeakKeyDictionary[Any, float] = WeakKeyDictionary()  # when retention was last applied for an app, in real time


class Upkeep:
    """
    The thread. In the loop, `woken` is called when jobs were brought back, `alone` when some wait to run with nothing
    beside them.
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
        woken: Callable[[], None],
        sure: Callable[[], bool],
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
        self._woken = woken
        self._sure = sure
        self._failures: dict[int, SweptFailure] = {}  # of the sweep that is under way
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Sweep now, and again and again until `close`."""
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), daemon=True, name="outlast-upkeep"
        )
        self._thread.start()

    def close(self) -> None:
        """Sweep no more. Blocks until what is under way is done."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        pause, roll = terms.get().ttl / SWEEPS, REAL.dice.roll
        while not self._loop.is_closed():
            try:
                if self._sure():
                    self._sweep()
                # At once, too: many workers live only until they are idle.
                now = REAL.clock.monotonic()
                if now - _tidied.get(self._home, -_RETENTION) >= _RETENTION:
                    _tidied[self._home] = now
                    self._home.tidy(self._store, here.get().clock.now())
            except Exception as error:  # noqa: BLE001 - the store may be away; the next sweep finds what this one has not
                if classify(error).category == "permanent":
                    warn("workers that are gone could not be looked for: %s", error_text(error))
            if self._end.wait(pause * (0.8 + 0.4 * roll())):
                return

    def _sweep(self) -> None:
        rescued = self._store.sweep(certainly_dead, self._decide, ahead_us=ahead_us())
        telling.rescued(self._store.app, rescued, self._failures)
        self._failures.clear()
        if rescued:
            self._tell(self._woken)
        if self._store.waits_alone(self._queues, self._versions):
            self._tell(self._alone)

    def _decide(self, orphan: Orphan) -> Rescue:
        kind, world = self._kinds.get(orphan.kind), here.get()
        known = kind is not None and orphan.version <= kind.declared.version
        policy = kind.policy if kind is not None and known else None
        now_us = to_us(world.clock.now())
        rescue = after_crash(orphan, policy, roll=world.dice.roll(), letter=world.ids.new(), now_us=now_us)
        if rescue.state == "failed":
            attempts = (policy or presets.jobs).max_attempts
            self._failures[orphan.id] = SweptFailure(orphan, rescue, attempts, max(0, now_us - orphan.claimed_us))
        return rescue

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the worker is over
            return
