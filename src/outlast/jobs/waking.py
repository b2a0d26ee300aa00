"""
How a worker that waits hears of new jobs at once. Whatever is missed here is found a second later by polling.

    PostgreSQL   a thread listens for notifications, on a connection of its own; a probe shows whether they arrive
    SQLite       enqueues of this process tell it; of others it sees that the file has changed, 50 times in a second
"""

from __future__ import annotations

import select
import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from outlast.kernel.clock import REAL
from outlast.kernel.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.store import Store

CHANNEL = "outlast_jobs"
PROBE = 10.0  # seconds between two probes of a connection that listens
_ANSWER = 5.0  # seconds in which a probe must come back
_LOOK = 0.02  # seconds between two looks at a file
_SLICE = 1.0  # seconds that a thread listens at a time
_AGAIN = 1.0  # seconds until another connection is tried, doubled up to
_LONGEST = 60.0


class Waking(ABC):
    """Tells of new jobs, from a thread, between `start` and `close`."""

    def __init__(self, store: Store, wake: Callable[[], None]) -> None:
        self._store = store
        self._database: Any = store._database  # noqa: SLF001 - what is listened to is the database itself
        self._wake = wake
        self._end = threading.Event()
        self._bell, self._ear = socket.socketpair()  # wakes a thread that listens to a connection
        self._thread: threading.Thread | None = None

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
                wait = _AGAIN
            except Exception as error:  # noqa: BLE001 - polling finds jobs meanwhile
                logger().debug("new jobs are found by polling meanwhile: %s", type(error).__name__)
            finally:
                if connection is not None:
                    with suppress(Exception):  # it may be broken: the next one is made anew
                        connection.close()
            if self._end.wait(wait):
                return
            wait = min(_LONGEST, 2 * wait)

    @abstractmethod
    def _listen(self, connection: Any) -> None:
        """Wake for whatever this connection tells, until the end, or until it tells nothing any more."""


class Notified(Waking):
    """Listens to PostgreSQL. Behind a pooler that lends connections for single transactions no probe comes back."""

    def _listen(self, connection: Any) -> None:
        clock, mine = REAL.clock.monotonic, f"probe {REAL.ids.new()}"
        connection.execute(f"listen {CHANNEL}")
        connection.execute("select pg_notify(%s, %s)", (CHANNEL, mine))
        probed, back = clock(), False
        while not self._end.is_set():
            select.select([connection.fileno(), self._ear], [], [], _SLICE)
            for note in connection.notifies(timeout=0):
                if note.payload == mine:
                    back = True
                elif note.payload == self._store.app:
                    self._wake()
            now = clock()
            if not back and now - probed > _ANSWER:
                message = "a notification did not come back"
                raise ConnectionError(message)
            if back and now - probed > PROBE:
                connection.execute("select pg_notify(%s, %s)", (CHANNEL, mine))
                probed, back = now, False


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
        look = connection.execute
        version = look("pragma data_version").fetchone()
        while not self._end.wait(_LOOK):
            now = look("pragma data_version").fetchone()
            if now != version:
                version = now
                self._wake()


def waking_for(store: Store, wake: Callable[[], None]) -> Waking:
    """What fits this store."""
    kind = Notified if store._database.name == "postgres" else Watched  # noqa: SLF001 - as above
    return kind(store, wake)
