"""
Leases: the right to work on something. A thread renews them while the process lives.

The caller passes what is leased and where leases are stored, as functions: `take` and `Heartbeat` know no store and no
runs.
"""

from __future__ import annotations

import getpass
import itertools
import os
import socket
import threading
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from outlast.errors import LeaseLost
from outlast.isolation.threads import start_thread
from outlast.kernel.clock import REAL, here, stopping
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text
from outlast.verdicts import classify
from outlast.work.patience import keep_trying, terms
from outlast.work.pulse import Pulse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from outlast.store.records import Lease

W = TypeVar("W")

_tenures = itertools.count(1)
# Owners of this process that still work, each with its event loop once it has one. An owner that is missing here could
# not give its lease back.
_alive: dict[str, asyncio.AbstractEventLoop | None] = {}


def myself() -> str:
    """This process, so that others can tell whether it lives: host, boot and name space, process, when it started."""
    pid = os.getpid()
    return f"{_host()}:{pid}:{_own_start(pid)}"


def this_user() -> str:
    """Who runs this process, for a person's eye."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        user = f"user {os.getuid()}" if hasattr(os, "getuid") else "somebody"
    return f"{user} on {socket.gethostname()}"


def _host() -> str:
    return _host_of(os.getpid())


# Read once in each process: later it may have no descriptor left to read with.
@lru_cache(maxsize=1)
def _host_of(_pid: int) -> str:
    """Host name, boot id and PID name space; one that cannot be read is empty."""
    boot = space = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
    return f"{socket.gethostname()}/{boot}/{space}"


@lru_cache(maxsize=1)
def _own_start(pid: int) -> str | None:
    try:
        if str(Path("/proc/self").readlink()) != str(pid):
            return None  # this /proc is that of another PID name space
    except OSError:
        return None
    return _started(pid)


def _started(pid: int) -> str | None:
    """When a process started, or "ended" if only its exit code is left; None if that cannot be read."""
    try:
        with Path(f"/proc/{pid}/stat").open(encoding="utf-8", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return None
    return "ended" if fields[0] in {"Z", "X"} else fields[19]


def certainly_dead(owner: str) -> bool:
    """
    Whether there is proof that the owner is dead: a process of this machine that has ended, or ended work of this process.

    Without proof the owner may live, and its lease must run out. A process that another user hides, or that cannot be read
    because no descriptor is left, is no proof.
    """
    if owner.startswith(f"{myself()}:"):
        return not _works(owner)
    process = _process(owner)
    return process is not None and _has_ended(*process)


def _has_ended(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)  # unlike /proc, it needs no descriptor and knows the processes of all users
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    now = _started(pid)
    return now is not None and now != started


def certainly_alive(owner: str) -> bool:
    """Whether there is proof that the process of an owner lives: one of this machine that began when the owner says."""
    process = _process(owner)
    return process is not None and _started(process[0]) == process[1]


def process_here(owner: str) -> tuple[int, str] | None:
    """The number and the start of another process of this machine; None if that is this one, or cannot be looked at."""
    process = _process(owner)
    return None if process is None or process[0] == os.getpid() else process


def this_machine() -> str | None:
    """How all owners begin whose processes can be looked at from here; None if none can be."""
    host, pid = _host(), os.getpid()
    return None if "" in host.split("/") or _own_start(pid) is None else f"{host}:"


def is_of_this_host(owner: str) -> bool:
    """Whether that is a process of this host since it was started, in whichever PID name space."""
    return owner.startswith(f"{_host().rpartition('/')[0]}/")


def _process(owner: str) -> tuple[int, str] | None:
    host, _, rest = owner.partition(":")
    pid, _, rest = rest.partition(":")
    started, _, _ = rest.partition(":")
    known = pid.isascii() and pid.isdigit() and int(pid) > 0 and started not in {"", "None"}
    return (int(pid), started) if known and f"{host}:" == this_machine() else None


class Drop(Protocol):
    """Gives a lease back. With `unless_renewed`, only if the lease still ends at `lease.until`."""

    def __call__(self, lease: Lease, /, *, unless_renewed: bool = False) -> None: ...


def take(
    ask: Callable[[str, float], Lease | None],
    look: Callable[[], Lease | None],
    drop: Drop,
    *,
    what: str,
    taken: Callable[[Lease], Exception],
) -> Lease:
    """
    A lease. An owner that is dead is not waited for. One whose process lives has a second to give it back, then what `taken`
    makes of its lease is raised; whether any other lives is seen by its next beat.

    `ask` takes the lease for an owner and so many seconds, or answers None; `look` says which lease is in the way.
    """
    owner, clock = f"{myself()}:{next(_tenures)}", here.get().clock
    seen: Lease | None = None
    waited, left = 0.0, ""
    while True:
        lease: Lease | None = keep_trying(lambda: ask(owner, terms.get().ttl), "the store")
        if lease is not None:
            _alive[owner] = None
            return replace(lease, before=lease.before or left)
        other: Lease | None = keep_trying(look, "the store")
        if other is None:
            continue
        if certainly_dead(other.owner):
            keep_trying(partial(drop, other), "the store")
            continue
        alive = certainly_alive(other.owner)
        if seen is not None and (alive or (other.token, other.until) != (seen.token, seen.until)):
            raise taken(other)
        if other.owner.startswith(myself()):
            raise taken(other)
        if waited > other.ttl + 1:
            # It should have ended or been renewed by now: the clock by which it ends was set back since.
            keep_trying(partial(drop, other, unless_renewed=True), "the store")
            left = other.owner  # which may live
            continue
        if seen is None and not alive:
            warn("%s is held by %s; waiting to see whether it lives", what, other.owner)
        seen = other
        if clock.sleep(1.0, stopping.get()):
            raise InterruptedError("asked to stop while waiting to see whether another process lives")
        waited += 1.0


def ended(lease: Lease) -> None:
    """Nothing works under it any more, whether the store could be told or not."""
    _alive.pop(lease.owner, None)


def kept(lease: Lease) -> None:
    """Its heartbeat has ended, and perhaps its event loop: something works under it all the same, until `ended`."""
    _alive[lease.owner] = None


def held(lease: Lease) -> bool:
    """Whether this process holds it still and works under it."""
    return _works(lease.owner)


def _works(owner: str) -> bool:
    # A loop that was closed in the middle never goes on with what was in it.
    loop = _alive.get(owner)
    return owner in _alive and (loop is None or not loop.is_closed())


class Heartbeat(Generic[W]):
    """
    Renews leases in a thread of its own, also while the event loop is busy. It ends when that loop is closed.

    `beat` renews a lease and returns what its owner is asked to do (such as a pause), or None. `requested` is called
    with each new request for the first lease. `lost` is called when another owner has taken a lease. If the loop is
    closed before `close` is called, the thread drops the leases.

    With `hung`, the loop must move: once it has not answered for the time of a lease, nothing is renewed, so that others
    take over, until it answers again. `hung` is called in the thread with True, and later with False.
    """

    def __init__(
        self,
        beat: Callable[[Lease], tuple[Lease, W | None]],
        lease: Lease,
        loop: asyncio.AbstractEventLoop,
        *,
        drop: Drop,
        lost: Callable[[Exception], None],
        requested: Callable[[W], object],
        hung: Callable[[bool], None] | None = None,
        beats: int = 4,
    ) -> None:
        """`beats` is how many there are while a lease lasts."""
        self._renew = beat
        self._loop = loop
        self._first = lease.kind, lease.key
        self._leases: dict[tuple[str, str], Lease] = {}
        self._drop = drop
        self._lost = lost
        self._requested = requested
        self._hung = hung
        self._beats = beats
        self._pause = lease.ttl / beats
        self._pulse = Pulse(loop, self._moves)
        self.hangs = False  # the loop has not moved for so long that nothing is renewed
        self._wake = threading.Event()
        self.renewed_at = REAL.clock.monotonic()  # when the newest renewal that succeeded was begun, in real time
        self._end = threading.Event()
        self.also(lease)
        thread = threading.Thread(target=copy_context().run, args=(self._beat,), daemon=True, name="outlast-heartbeat")
        start_thread(thread)
        self._thread = thread

    def also(self, lease: Lease) -> None:
        """Beat for this one too."""
        _alive[lease.owner] = self._loop
        self._leases[lease.kind, lease.key] = lease

    def no_more(self, lease: Lease) -> None:
        """It is given back."""
        self._leases.pop((lease.kind, lease.key), None)

    def _moves(self) -> None:
        """The loop has answered: if that was waited for, the leases are renewed at once, or are lost."""
        if self.hangs:
            self._wake.set()

    def _rest(self) -> bool:
        """Wait for the next beat; whether it is the end."""
        while True:
            self._wake.wait(self._pause)
            self._wake.clear()
            if self._end.is_set() or self._loop.is_closed():
                return True
            if self._hung is None or self._pulse.look() < self._beats:
                return False
            if not self.hangs:
                self.hangs = True
                self._hung(True)  # noqa: FBT003 - as its owner says

    def _beat(self) -> None:
        told = None
        while not self._rest():
            for key, lease in tuple(self._leases.items()):
                began = REAL.clock.monotonic()
                try:
                    _, request = self._renew(lease)
                    self.renewed_at = began
                except LeaseLost as error:
                    if key not in self._leases:
                        continue  # given back meanwhile
                    self._lost(error)
                    return
                except Exception as error:  # noqa: BLE001 - what is written under it fails too, and that decides
                    if classify(error).category == "permanent":
                        warn("the lease could not be renewed: %s", error_text(error))
                    continue
                if key == self._first and request is not None and request != told:
                    told = request
                    self._requested(request)
            if self.hangs and self._hung is not None:  # only now: the leases were not renewed before
                self.hangs = False
                self._hung(False)  # noqa: FBT003 - as above

        if not self._end.is_set():  # nothing is left that could give them back
            for lease in tuple(self._leases.values()):
                ended(lease)
                with suppress(Exception):  # it ends by itself
                    self._drop(lease)

    def close(self) -> None:
        """Beat no more, and give nothing back."""
        self._end.set()
        self._wake.set()
        self._thread.join(5)
