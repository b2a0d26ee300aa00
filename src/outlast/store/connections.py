"""
Connections, lent to one thread at a time.

Both databases need the same three things: no connection is shared by two threads, a broken one is never lent again, and
a forked child uses none of its parent's. Drivers' own pools serve one database each and keep threads that a fork does
not copy.
"""

from __future__ import annotations

import os
import weakref
from _thread import allocate_lock
from collections import deque
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable, Iterator, Sequence


_MOMENT_S = 0.01


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """What both drivers offer."""

    def execute(self, sql: Any, parameters: Sequence[Any] = ..., /) -> Cursor: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


#: The instant of the real monotonic clock by which a caller in this context needs an answer from a store; None: no limit but that of the store.
answer_by: ContextVar[float | None] = ContextVar("outlast answer by", default=None)
#: Whether what is asked here may take long, such as a migration.
unhurried: ContextVar[bool] = ContextVar("outlast unhurried", default=False)


class NoPlace(Exception):
    """All connections were lent until the answer was needed."""


def seconds_left() -> float | None:
    """Until the answer is needed: at least a moment; None without a deadline."""
    until = answer_by.get()
    return None if until is None else max(_MOMENT_S, until - monotonic())


@contextmanager
def without_hurry() -> Iterator[None]:
    """What is asked here may take long."""
    token = unhurried.set(True)
    try:
        yield
    finally:
        unhurried.reset(token)


class Turns:
    """
    A number of places, given out in the order of the requests, so that many quick readers cannot hold up a heartbeat.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._lock = allocate_lock()
        self._waiting: deque[LockType] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = allocate_lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            left = seconds_left()
            if not turn.acquire(timeout=-1 if left is None else left):  # released by whoever gives a place back
                raise NoPlace
        except BaseException:
            with self._lock:
                given = turn not in self._waiting
                if not given:
                    self._waiting.remove(turn)
            if given:
                self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1


class Connections:
    """
    At most `size` connections, made when they are needed. If all are lent, the next request waits until one is given
    back.
    """

    def __init__(self, connect: Callable[[], Connection], size: int, *, broken: Callable[[], None]) -> None:
        self._connect = connect
        self._broken = broken  # told of a connection that is of no use any more
        self._size = size
        self._idle: list[Connection] = []
        self._places = Turns(size)
        self._finish = weakref.finalize(self, _close, self._idle)
        _all.add(self)

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        """A connection outside of any transaction. If the block fails, what it had begun is rolled back."""
        places, idle = self._places, self._idle
        with places:
            try:
                connection = idle.pop()
            except IndexError:
                connection = self._connect()
            try:
                yield connection
            except BaseException:
                if _rolled_back(connection):
                    idle.append(connection)
                else:
                    _close([connection])
                    self._broken()
                raise
            idle.append(connection)

    def close(self) -> None:
        """Close those that are not lent. It can still be used: the next call connects again."""
        _close(self._idle)

    def abandon(self) -> None:
        """Forget everything without closing it: a connection's goodbye would end the parent's session."""
        _parents.extend(self._idle)
        self._finish.detach()
        self._idle = []
        self._places = Turns(self._size)
        self._finish = weakref.finalize(self, _close, self._idle)


def _rolled_back(connection: Connection) -> bool:
    try:
        connection.rollback()
    except Exception:  # noqa: BLE001 - whatever it says, this connection is of no use any more
        return False
    return True


def _close(connections: list[Connection]) -> None:
    while connections:
        try:
            connection = connections.pop()
        except IndexError:
            return
        try:
            connection.close()
        except Exception:  # noqa: BLE001, S112 - it is gone either way
            continue


_all: weakref.WeakSet[Connections] = weakref.WeakSet()
_parents: list[Connection] = []  # kept, so that nothing closes them


def _after_fork() -> None:
    for connections in list(_all):
        connections.abandon()


os.register_at_fork(after_in_child=_after_fork)
