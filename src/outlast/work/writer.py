"""
Batches, written by a thread. The caller passes the batches and the function that writes one.

The event loop adds entries to the open batch. The open batch is sent to the thread when it has many entries or bytes,
when its oldest entry has waited for a moment, or on `flush`. While the thread has enough batches, the open batch grows:
larger batches are cheaper. An entry that is not written is not finished: after an error the writer is broken and writes
nothing more.
"""

from __future__ import annotations

import queue
import threading
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from outlast.isolation.threads import start_thread
from outlast.work.memory import LARGE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Self

    from outlast.kernel.clock import Stop
    from outlast.work.memory import Memory


class Writable(Protocol):
    """A batch: the entries that are written together."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        ...

    def following(self) -> Self:
        """The empty batch that is filled after this one."""
        ...


B = TypeVar("B", bound=Writable)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """
    When a batch is sent to the thread: at so many entries or bytes, or after `latency` seconds. `under_way` is how many
    batches the thread has at the most.
    """

    entries: int = 2000
    bytes: int = 8 * 2**20
    latency: float = 0.05
    under_way: int = 2


class BatchWriter(Generic[B]):
    """
    The open batch, and the thread that writes the batches before it. Only the event loop uses it, except for `in_loop`,
    which `write` may call in the thread.
    """

    def __init__(
        self,
        first: B,
        write: Callable[[B], None],
        *,
        written: Callable[[B], None],
        broken: Callable[[BaseException], None],
        loop: asyncio.AbstractEventLoop,
        memory: Memory,
        limits: BatchLimits,
        give_up: Stop,
        prepare: Callable[[B], None] | None = None,
        at_once: Callable[[B], bool] | None = None,
    ) -> None:
        """
        `write` is called in the thread; `written` and `broken` say in the loop what came of it. `give_up` is set when
        `write` should wait no longer for what it writes to. `prepare` is called in the loop with a batch that is about
        to be sent: it adds what is known only then. `at_once` is called in the loop with a batch without bytes, when the thread
        has none: whether it is being written without the thread. Then `came_back`, `hand_over` or `failed` is called later, and
        before that nothing goes to the thread: batches are written one after the other.
        """
        self.batch = first  # the open one
        self.memory = memory
        self.limits = limits
        self._write = write
        self._written = written
        self._broken = broken
        self._loop = loop
        self._entries = 0  # of the open batch
        self._bytes = 0
        self._due = False  # the open batch is due, but enough others are under way
        self._under_way = 0
        self._timer: asyncio.TimerHandle | None = None
        self._queue: queue.SimpleQueue[tuple[B, int] | None] = queue.SimpleQueue()
        self._give_up = give_up
        self._prepare = prepare
        self._at_once = at_once
        self._without = False  # the thread: so is a batch written now
        self._failed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, in the context of the caller."""
        thread = threading.Thread(target=copy_context().run, args=(self._run,), daemon=True, name="outlast-writer")
        start_thread(thread)
        self._thread = thread

    @property
    def behind(self) -> bool:
        """Whether there is more to write than there should be. Then no new work should begin."""
        limits = self.limits
        full = self._entries >= limits.entries and self._under_way >= limits.under_way
        return full or not self.memory.has_room()

    @property
    def settled(self) -> bool:
        """Whether everything is written, or nothing more will be."""
        return self._failed or (self._under_way == 0 and self.batch.empty)

    def added(self, size: int = 0, entries: int = 1) -> None:
        """Something was put into the open batch. It may go now, so all that belongs together must be in it."""
        memory, limits = self.memory, self.limits
        self._entries += entries
        self._bytes += size
        memory.used += size
        if size > LARGE or memory.typical:
            memory.weigh(size)
        if self._entries >= limits.entries or self._bytes >= limits.bytes:
            self._due = True
            self.flush()
            if memory.used >= memory.most:
                memory.block()
        elif self._timer is None:
            self._due = False
            self._timer = self._loop.call_later(limits.latency, self._late)

    def _late(self) -> None:
        self._timer = None
        self._due = True
        self.flush()

    def flush(self) -> None:
        """Send the open batch, unless enough are under way. Then it may grow in entries, but not in bytes."""
        limits = self.limits
        if self._failed or self._without or (self._under_way >= limits.under_way and self._bytes < limits.bytes):
            return
        batch = self.batch
        if self._prepare is not None:
            self._prepare(batch)
        if batch.empty:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        size = self._bytes
        self.batch = batch.following()
        self._entries = self._bytes = 0
        self._due = False
        self._under_way += 1
        if size or self._at_once is None or self._under_way > 1:
            self._queue.put((batch, size))
            return
        self._without = True  # before it is begun: it may come back at once
        if not self._at_once(batch):
            self._without = False
            self._queue.put((batch, size))

    def came_back(self, batch: B) -> None:
        """A batch is written that the thread has not."""
        self._without = False
        self._back(batch, 0)

    def hand_over(self, batch: B) -> None:
        """A batch that was begun without the thread: that does what is left of it."""
        self._without = False
        if not self._failed:
            self._queue.put((batch, 0))
            if self._due:
                self.flush()

    def failed(self, error: BaseException) -> None:
        """A batch that was begun without the thread cannot be written, nor can any other."""
        if not self._failed:
            self._fail(error)

    def _back(self, batch: B, size: int) -> None:
        self._under_way -= 1
        self.memory.used -= size
        self._written(batch)
        if self._due:
            self.flush()

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._broken(error)

    def hurry(self) -> None:
        """Wait no longer for what is written to. What can be written at once is still written."""
        self._give_up.set()

    def abandon(self) -> None:
        """Write nothing more."""
        self._failed = True
        self._give_up.set()

    def close(self) -> None:
        """End the thread, after what was sent to it."""
        if self._timer is not None:
            self._timer.cancel()
        self._queue.put(None)

    def join(self, seconds: float) -> None:
        """After `close`: wait until the thread has ended, unless it was told to give up. Blocks."""
        if self._thread is not None and not self._give_up.is_set():
            self._thread.join(seconds)

    # -- in the thread

    def _run(self) -> None:
        while (sent := self._queue.get()) is not None:
            try:
                self._write(sent[0])
            except BaseException as error:  # noqa: BLE001 - a sink may raise anything; the loop is told
                self._tell(self._fail, error)
                del sent, error
                return
            self._tell(self._back, *sent)
            del sent

    def _tell(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed: nothing waits for this
            return

    def in_loop(self, do: Callable[[], R]) -> R:
        """Have the event loop do it, and wait for that."""
        done = threading.Event()
        came: list[R] = []
        wrong: list[BaseException] = []

        def act() -> None:
            try:
                came.append(do())
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                wrong.append(error)
            done.set()

        self._tell(act)
        while not done.wait(1.0):
            if self._loop.is_closed():
                raise InterruptedError("the run is over")
        if wrong:
            raise wrong.pop()
        return came.pop()
