"""
The right to work on a run: a lease, kept by a thread that beats as long as the process lives.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.errors import LeaseLost
from outlast.kernel.clock import here, stopping
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text
from outlast.verdicts import classify
from outlast.work.patience import persist

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from outlast.store import Store
    from outlast.store.records import Lease, RunRecord

_tenures = itertools.count(1)
# Owners of this process that still work, each with its event loop once it has one; who is missing here could not give back its lease.
_alive: dict[str, asyncio.AbstractEventLoop | None] = {}
TTL = 20.0
ABANDONED = "interrupted: the process that ran it is gone, or cannot reach the store."
_BEATS = 4  # in a ttl


def myself() -> str:
    """Who this process is, so that others can tell whether it lives: host and name space, process, when it started."""
    return f"{_host()}:{os.getpid()}:{_started(os.getpid())}"


def _host() -> str:
    try:
        space = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
    except OSError:
        space = ""
    return f"{socket.gethostname()}/{space}"


def _started(pid: int) -> str | None:
    try:
        with Path(f"/proc/{pid}/stat").open(encoding="utf-8", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {"Z", "X"} else fields[19]


def certainly_dead(owner: str) -> bool:
    """Whether that was a process of this machine that is gone, or a run of this process that has ended."""
    host, _, rest = owner.partition(":")
    pid, _, rest = rest.partition(":")
    started, _, tenure = rest.partition(":")
    if tenure and owner.startswith(f"{myself()}:"):
        return not _works(owner)
    if host != _host() or host.endswith("/") or not pid.isdigit() or started in {"", "None"}:
        return False
    return _started(int(pid)) != started


def as_told(store: Store, run: RunRecord) -> RunRecord:
    """
    The run as people are told of it. One whose process was killed could not say so: it stays on record as running, and is told as
    interrupted once that process is known to be dead, or its lease has ended.
    """
    if run.status != "running":
        return run
    lease = store.lease_of(run.number, 0)
    if lease is not None and not certainly_dead(lease.owner):
        return run
    return replace(run, status="interrupted", why=run.why or ABANDONED)


def take(store: Store, run: RunRecord, shard: int = 0, *, counted: bool = True) -> Lease:
    """
    The lease on a shard of a run. Who had it and is dead is not waited for; of anybody else it is seen by the next beat whether they live.
    It counts as another pass of the run unless told otherwise.
    """
    owner, clock = f"{myself()}:{next(_tenures)}", here.get().clock
    seen: Lease | None = None
    waited, left = 0.0, ""
    while True:
        lease: Lease | None = persist(
            lambda: store.take_lease(run.number, shard, owner, TTL, counted=counted), "the store"
        )
        if lease is not None:
            _alive[owner] = None
            return replace(lease, before=lease.before or left)
        other: Lease | None = persist(lambda: store.lease_of(run.number, shard), "the store")
        if other is None:
            continue
        if certainly_dead(other.owner):
            _drop(store, other)
            continue
        if seen is not None and (other.token, other.until) != (seen.token, seen.until):
            raise taken(run, other)
        if other.owner.startswith(myself()):
            raise taken(run, other)
        if waited > other.ttl + 1:
            # It says that it is good, and nobody has renewed it for longer than it lasts: the clock by which it ends was set back since.
            persist(partial(store.drop_lease, other, unless_renewed=True), "the store")
            left = other.owner  # which may live
            continue
        if seen is None:
            warn("run %s of %s is held by %s; waiting to see whether it lives", run.run_key, run.pipeline, other.owner)
        seen = other
        if clock.sleep(1.0, stopping.get()):
            message = "asked to stop while waiting to see whether another process lives"
            raise InterruptedError(message)
        waited += 1.0


def ended(lease: Lease) -> None:
    """Nobody works on it any more, whether the store could be told or not."""
    _alive.pop(lease.owner, None)


def held(lease: Lease) -> bool:
    """Whether this process holds it still and works on it."""
    return _works(lease.owner)


def _works(owner: str) -> bool:
    # A loop that somebody has closed in the middle never goes on with what was in it.
    loop = _alive.get(owner)
    return owner in _alive and (loop is None or not loop.is_closed())


def _drop(store: Store, lease: Lease) -> None:
    persist(lambda: store.drop_lease(lease), "the store")


def taken(run: RunRecord, lease: Lease) -> LeaseLost:
    """Somebody works on this run, and how to go on."""
    host, _, rest = lease.owner.partition(":")
    return LeaseLost(
        f"run {run.run_key!r} of {run.pipeline} is being worked on by process {rest.partition(':')[0]} on {host.partition('/')[0]} "
        f"(lease until {lease.until.isoformat()}). Wait for it to end, stop it, or use another run_key."
    )


class Heart:
    """
    Beats for leases in a thread of its own, whatever the event loop is busy with, as long as that loop is there. The first is the run's own.
    """

    def __init__(
        self,
        store: Store,
        lease: Lease,
        loop: asyncio.AbstractEventLoop,
        *,
        lost: Callable[[Exception], None],
        wanted: Callable[[str], None],
    ) -> None:
        self._loop = loop
        _alive[lease.owner] = loop
        self._store = store
        self._lease = lease
        self._others: dict[int, Lease] = {}
        self._lost = lost
        self._wanted = wanted
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._beat,), daemon=True, name="outlast-heart"
        )
        self._thread.start()

    def also(self, lease: Lease) -> None:
        """Beat for this one too."""
        _alive[lease.owner] = self._loop
        self._others[lease.run_number] = lease

    def no_more(self, lease: Lease) -> None:
        """It is given back."""
        self._others.pop(lease.run_number, None)

    def _beat(self) -> None:
        told = None
        while not self._end.wait(self._lease.ttl / _BEATS) and not self._loop.is_closed():
            for lease in (self._lease, *tuple(self._others.values())):
                own = lease.run_number == self._lease.run_number
                try:
                    renewed, wish = self._store.beat(lease)
                except LeaseLost as error:
                    if not own and lease.run_number not in self._others:
                        continue  # given back meanwhile
                    self._lost(error)
                    return
                except Exception as error:  # noqa: BLE001 - the writer notices too, and decides
                    if classify(error).category == "permanent":
                        warn("the lease could not be renewed: %s", error_text(error))
                    continue
                if own:
                    self._lease = renewed
                    if wish is not None and wish != told:
                        told = wish
                        self._wanted(wish)

        if not self._end.is_set():  # nobody is left who could give them back
            for lease in (self._lease, *self._others.values()):
                ended(lease)
                with suppress(Exception):  # it ends by itself
                    self._store.drop_lease(lease)

    def close(self) -> None:
        self._end.set()
        self._thread.join(5)
