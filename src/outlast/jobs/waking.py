"""
How a worker that waits hears of new jobs at once. Whatever is missed here is found a second later by polling.

    PostgreSQL   the event loop listens for notifications, on a connection of its own that a thread has made, and claims there
                 what it is told of; a probe shows whether they arrive. Where a loop can watch no socket, the thread listens.
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
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from outlast.errors import TemporaryFailure
from outlast.isolation.threads import start_thread
from outlast.kernel.clock import REAL
from outlast.kernel.log import logger, warn
from outlast.work.patience import terms

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from outlast.store import Store
    from outlast.store.postgres import Line
    from outlast.store.turns import Asked

    Then: TypeAlias = Callable[[list[Any] | Exception], None]
    Seen: TypeAlias = Callable[[list[Any]], None]
    Ask: TypeAlias = Callable[[Asked, Then, Seen], bool]

CHANNEL = "outlast_jobs"
PROBE = 10.0  # seconds between two probes of a connection that listens
# Seconds in which a probe must come back, and a claim be answered; that within half of a lease, too: so what it has claimed is
# found and begun under the same lease, long before anybody could take the worker for dead. A server that is only slow loses nothing
# by that: the claim is looked for as after any lost answer.
_ANSWER = 5.0
_OF_LEASE = 0.5
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
    """Tells of new jobs between `start` and `close`: in an event loop if there is one, else from a thread."""

    def __init__(self, store: Store, wake: Callable[[], None], loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._woken = wake
        self._store = store
        self._database: Any = store._database  # noqa: SLF001 - what is listened to is the database itself
        self._end = threading.Event()
        self._rung = threading.Event()  # wakes a thread that waits while the loop listens
        self._bell, self._ear = socket.socketpair()  # wakes a thread that listens to a connection
        self._thread: threading.Thread | None = None
        self._said = False
        self._heard = False  # something of the connection that is used now

    def start(self) -> None:
        """Listen."""
        thread = threading.Thread(target=copy_context().run, args=(self._run,), daemon=True, name="outlast-waking")
        try:
            start_thread(thread)
        except TemporaryFailure as refused:
            self._say(str(refused))
        else:
            self._thread = thread

    @property
    def free(self) -> bool:
        """Whether `ask` can be used now. In the loop."""
        return False

    def ask(self, asked: Asked, then: Then, seen: Seen) -> bool:  # noqa: ARG002
        """
        Do a turn that only claims, here in the loop and without a thread, if that can be done now; else nothing is sent. `then` is called
        later with its rows, or with an error, after which nobody knows whether it was done; `seen` perhaps before it, with the rows
        of a turn whose commit may still fail.
        """
        return False

    def let_go(self) -> bool:
        """Wait no longer for the answer to such a turn: `then` hears that none will come. Whether there was one. In the loop."""
        return False

    def _wake(self) -> None:
        """From any thread."""
        if self._loop is None:
            self._woken()
        else:
            self._later(self._woken)

    def _later(self, do: Callable[..., object], *arguments: Any) -> bool:
        """Have the loop do it; False if it is closed."""
        assert self._loop is not None  # noqa: S101 - of those that have one
        try:
            self._loop.call_soon_threadsafe(do, *arguments)
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        """Listen no more. Blocks for a moment; not in the loop."""
        self._end.set()
        self._rung.set()
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

    _line: _InLoop | None = None  # only the loop changes it

    @property
    def free(self) -> bool:
        return self._line is not None and self._line.free

    def ask(self, asked: Asked, then: Then, seen: Seen) -> bool:
        return self._line is not None and self._line.ask(asked, then, seen)

    def let_go(self) -> bool:
        return self._line is not None and self._line.unanswered(0.0)

    def _listen(self, connection: Any) -> None:
        if self._database.pooled(connection):
            raise _Unheard(
                "the store is behind a connection pooler. With the address of the server itself a worker hears of them at once.",
                again=False,
            )
        mine = f"probe {REAL.ids.new()}"
        connection.execute(f"listen {CHANNEL}")
        if self._loop is None or not self._by_loop(connection, mine, self._loop):
            self._by_thread(connection, mine)

    def _by_loop(self, connection: Any, mine: str, loop: asyncio.AbstractEventLoop) -> bool:
        """Have the loop listen, and see that it hears something; False if it can watch no socket. Here only probes are sent."""
        heard = _InLoop(self._database.line(connection), loop, mine, self._store.app, self._woken, self._rung.set)
        if not self._in_loop(loop, lambda: self._begin(heard)):
            return False
        clock = REAL.clock.monotonic
        longest = min(_ANSWER, _OF_LEASE * terms.get().ttl)
        try:
            self._probe(mine)
            probed = clock()
            while not (self._end.is_set() or heard.over):
                self._rung.wait(_SLICE)
                self._rung.clear()
                now = clock()
                if now - heard.asked_at > longest:
                    self._in_loop(loop, partial(heard.unanswered, longest))
                if heard.back:
                    self._heard = True
                    if now - probed > PROBE:
                        heard.back = False
                        self._probe(mine)
                        probed = now
                elif now - probed > _ANSWER and self._in_loop(loop, partial(heard.deaf, probed)):
                    raise _Unheard("notifications of PostgreSQL do not arrive.", again=True)
        finally:
            self._in_loop(loop, heard.end)
        return True

    def _by_thread(self, connection: Any, mine: str) -> None:
        clock, encoding = REAL.clock.monotonic, connection.info.encoding
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

    def _begin(self, heard: _InLoop) -> bool:
        begun = heard.begin()
        self._line = heard if begun else None
        return begun

    def _in_loop(self, loop: asyncio.AbstractEventLoop, do: Callable[[], bool]) -> bool:
        """What the loop says, however long it does not move; False if it is closed."""
        done, came = threading.Event(), list[bool]()

        def act() -> None:
            try:
                came.append(do())
            finally:
                done.set()

        if not self._later(act):
            return False
        while not done.wait(_SLICE):
            if loop.is_closed():
                return False
        return bool(came and came[0])

    def _probe(self, mine: str) -> None:
        # On another connection: a session is told of its own notifications whatever becomes of those of others.
        self._database.row("select pg_notify(?, ?)", CHANNEL, mine)


class _InLoop:
    """
    The connection that listens, in the hands of the loop: nobody else uses it before it is `over`. What it is told of is claimed on it,
    by the process of the server that has told of it and is awake.
    """

    def __init__(
        self,
        line: Line,
        loop: asyncio.AbstractEventLoop,
        mine: str,
        app: str,
        woken: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        """`mine` is what a probe says; `lost` is called when nothing more can be heard."""
        self._line = line
        self._loop = loop
        self._place = line.fileno()
        self._mine = mine
        self._app = app
        self._woken = woken
        self._lost = lost
        self.over = False
        self.back = False  # the newest probe
        self._free_at = 0.0  # since when the server can tell something: it does not during a turn
        self.asked_at = float("inf")  # when the turn was begun whose answer is waited for
        self._then: Then | None = None  # waits for an answer
        self._seen: Seen | None = None  # and has not seen what will be in it
        self._full = False  # not all of what was asked is on its way

    @property
    def free(self) -> bool:
        """Whether `ask` can be used now."""
        return self._then is None and not self.over

    def begin(self) -> bool:
        """Listen; False if the loop can watch no socket."""
        try:
            self._loop.add_reader(self._place, self._read)
        except NotImplementedError:
            return False
        self._read()  # what has been told before
        return True

    def ask(self, asked: Asked, then: Then, seen: Seen) -> bool:
        """See `Waking.ask`."""
        if not self.free:
            return False
        try:
            self._line.send(asked)
        except Exception:  # noqa: BLE001 - nothing is sent; what the matter is comes out when it is read from
            return False
        self._then, self._seen, self.asked_at = then, seen, REAL.clock.monotonic()
        self._flush()
        return True

    def _flush(self) -> None:
        try:
            sent = self._line.flush()
        except Exception as error:  # noqa: BLE001 - the connection is of no use any more
            self._break(error)
            return
        if not sent:
            self._full = True
            self._loop.add_writer(self._place, self._flush)
        elif self._full:
            self._full = False
            self._loop.remove_writer(self._place)

    def _read(self) -> None:
        if self.over:
            return
        try:
            told = self._line.told()
            answer = None if self._then is None else self._line.answer()
        except Exception as error:  # noqa: BLE001 - as above
            self._break(error)
            return
        if answer is None and self._seen is not None and self._line.coming is not None:
            seen, self._seen = self._seen, None
            seen(self._line.coming)
        if isinstance(
            answer, Exception
        ):  # what is prepared there may be of no use any more: another connection is made
            self._break(answer)
        elif answer is not None and self._then is not None:
            then, self._then, self._free_at = self._then, None, REAL.clock.monotonic()
            self.asked_at = float("inf")
            then(answer)
        for payload in told:
            if payload == self._mine:
                self.back = True
            elif payload == self._app:
                self._woken()

    def _break(self, error: Exception) -> None:
        logger().debug("new jobs are found by polling meanwhile: %s", type(error).__name__)
        self.end(error)
        self._lost()

    def deaf(self, probed: float) -> bool:
        """Whether the probe of that moment should have come back long ago; then it is over. The loop itself may have stood still."""
        self._read()
        late = REAL.clock.monotonic() - max(probed, self._free_at) > _ANSWER
        return self.free and not self.back and late and self.end()

    def unanswered(self, longest: float) -> bool:
        """
        Whether a turn has waited for its answer for longer than that; then it is over. A connection may stay open on which nothing
        comes any more, and without an end the worker would claim nothing, for ever. The loop itself may have stood still.
        """
        self._read()
        if self._then is None or REAL.clock.monotonic() - self.asked_at <= longest:
            return False
        self._break(TimeoutError("a claim was not answered"))
        return True

    def end(self, error: Exception | None = None) -> bool:
        """Listen no more. Who waits for an answer hears that none will come, and not from in here."""
        if self.over:
            return True
        self.over, self.asked_at = True, float("inf")
        self._loop.remove_reader(self._place)
        self._loop.remove_writer(self._place)
        with suppress(Exception):  # it may be broken
            self._line.close()
        if self._then is not None:
            then, self._then = self._then, None
            self._loop.call_soon(then, error or ConnectionError("the connection that listens was closed"))
        return True


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


def waking_for(store: Store, wake: Callable[[], None], loop: asyncio.AbstractEventLoop | None = None) -> Waking:
    """What fits this store; `wake` is called in the loop, if there is one."""
    return (Notified if store.by_server else Watched)(store, wake, loop)
