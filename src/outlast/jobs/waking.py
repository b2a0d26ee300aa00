"""
How a worker that waits hears of new jobs at once. Whatever is missed here is found a second later by polling.

    PostgreSQL   a thread listens for notifications, on a connection of its own; a probe shows whether they arrive.
                 Behind a pooler that lends its connections nobody can listen: there jobs are found by polling only
    SQLite       enqueues of this process tell it; of others it sees that the file has changed: as soon as the system tells
                 that somebody has written (Linux), or 50 times in a second
"""

from __future__ import annotations

import os
import select
import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from outlast.kernel.clock import REAL
from outlast.kernel.log import logger, warn

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.store import Store

CHANNEL = "outlast_jobs"
PROBE = 10.0  # seconds between two probes of a connection that listens
_ANSWER = 5.0  # seconds in which a probe must come back
_LOOK = 0.02  # seconds between two looks at a file
_MOMENT = 0.0005  # seconds between two looks at one that was written to just now,
_LOOKS = 40  # so often
_WRITTEN = 2  # IN_MODIFY of Linux
_SLICE = 1.0  # seconds that a thread listens at a time
_AGAIN = 1.0  # seconds until another connection is tried, doubled up to
_LONGEST = 60.0


class _Unheard(Exception):
    """Nothing can be listened for here, or nothing comes."""

    def __init__(self, why: str, *, again: bool) -> None:
        super().__init__(why)
        self.again = again  # whether another connection may do better


class Waking(ABC):
    """Tells of new jobs, from a thread, between `start` and `close`."""

    def __init__(self, store: Store, wake: Callable[[], None]) -> None:
        self._store = store
        self._database: Any = store._database  # noqa: SLF001 - what is listened to is the database itself
        self._wake = wake
        self._end = threading.Event()
        self._bell, self._ear = socket.socketpair()  # wakes a thread that listens to a connection
        self._thread: threading.Thread | None = None
        self._said = False
        self._heard = False  # something of the connection that is used now

    def start(self) -> None:
        """Listen."""
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), daemon=True, name="outlast-waking"
        )
        self._thread.start()

    def close(self) -> None:
        """Listen no more. Blocks for a moment."""
        self._end.set()
        self._bell.close()
        if self._thread is not None:
            self._thread.join(5)
        self._ear.close()

    def _run(self) -> None:
        wait = _AGAIN
        while not self._end.is_set():
            connection: Any = None
            try:
                connection = self._database.connect(batches=False)
                self._listen(connection)
            except _Unheard as unheard:
                self._say(str(unheard))
                if not unheard.again:
                    return
            except Exception as error:  # noqa: BLE001 - polling finds jobs meanwhile
                logger().debug("new jobs are found by polling meanwhile: %s", type(error).__name__)
            finally:
                if connection is not None:
                    with suppress(Exception):  # it may be broken: the next one is made anew
                        connection.close()
            if self._heard:  # so the next one probably tells something, too
                self._heard, wait = False, _AGAIN
            if self._end.wait(wait):
                return
            wait = min(_LONGEST, 2 * wait)

    def _say(self, why: str) -> None:
        if not self._said:
            self._said = True
            warn("new jobs are found by polling, up to a second late: %s", why)

    @abstractmethod
    def _listen(self, connection: Any) -> None:
        """Wake for whatever this connection tells, until the end, or until it tells nothing any more."""


class Notified(Waking):
    """
    Listens to PostgreSQL. What a pooler lends for a transaction is never asked to listen: it would go on doing so for
    whoever gets it next, and each of them would gather notifications.
    """

    def _listen(self, connection: Any) -> None:
        if self._database.pooled(connection):
            raise _Unheard(
                "the store is behind a connection pooler. With the address of the server itself a worker hears of them at once.",
                again=False,
            )
        clock, mine = REAL.clock.monotonic, f"probe {REAL.ids.new()}"
        encoding = connection.info.encoding
        connection.execute(f"listen {CHANNEL}")
        self._probe(mine)
        probed, back = clock(), False
        # What the driver has heard already while it did the statement; later ones are read as they come.
        heard = [note.payload for note in connection.notifies(timeout=0)]
        server = connection.pgconn
        while not self._end.is_set():
            for payload in heard:
                if payload == mine:
                    back = self._heard = True
                elif payload == self._store.app:
                    self._wake()
            select.select([connection.fileno(), self._ear], [], [], _SLICE)
            heard = []
            server.consume_input()  # the generator of the driver would take longer than all the rest
            while (note := server.notifies()) is not None:
                heard.append(note.extra.decode(encoding))
            now = clock()
            if not back and now - probed > _ANSWER:
                raise _Unheard("notifications of PostgreSQL do not arrive.", again=True)
            if back and now - probed > PROBE:
                self._probe(mine)
                probed, back = now, False

    def _probe(self, mine: str) -> None:
        # On another connection: a session is told of its own notifications whatever becomes of those of others.
        self._database.row("select pg_notify(?, ?)", CHANNEL, mine)


class Watched(Waking):
    """Looks at a file of SQLite's; enqueues of this process need not wait for that."""

    _forget: Callable[[], None] | None = None

    def start(self) -> None:
        self._forget = self._database.listen(self._wake)
        super().start()

    def close(self) -> None:
        super().close()
        if self._forget is not None:
            self._forget()
            self._forget = None

    def _listen(self, connection: Any) -> None:
        look, database = connection.execute, self._database
        version, own = look("pragma data_version").fetchone(), database.writes
        told = _written_to(f"{database.path}-wal")
        try:
            while True:
                heard: list[Any] = [self._ear] if told is None else [self._ear, told]
                written = told in select.select(heard, [], [], _LOOK)[0]
                if self._end.is_set():
                    return
                if told is not None and written:
                    os.read(told, 4096)  # only that there is something counts
                # What is written can be read a moment later, when it is on the disk.
                for _ in range(_LOOKS if written else 1):
                    now = look("pragma data_version").fetchone()
                    if now != version:
                        # Perhaps only this process has written, which happens after every job or step: once in a while
                        # is enough then.
                        if database.writes != own and self._end.wait(_LOOK):
                            return
                        version, own = look("pragma data_version").fetchone(), database.writes
                        self._wake()
                        break
                    if written and self._end.wait(_MOMENT):
                        return
        finally:
            if told is not None:
                os.close(told)


def _written_to(path: str) -> int | None:
    """A descriptor that can be read as soon as somebody writes to this file; None where the system has none (inotify)."""
    import ctypes

    try:
        system: Any = ctypes.CDLL(None)
        told: int = system.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError):  # not Linux
        return None
    if told < 0:  # no more of them for this user
        return None
    if system.inotify_add_watch(told, os.fsencode(path), _WRITTEN) < 0:
        os.close(told)
        return None
    return told


def waking_for(store: Store, wake: Callable[[], None]) -> Waking:
    """What fits this store."""
    return (Notified if store.by_server else Watched)(store, wake)
