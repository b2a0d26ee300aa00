"""
Threads for work that blocks. Work goes in one by one, and its results come back to the event loop in bursts.

The caller passes `do`, the function that a thread calls with a piece of work. `do` may park the work at `Slots` and
return None; when a slot is free, `again` puts the work back into the pool. `in_thread` is for a single piece of work that
the loop waits for.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from outlast.errors import TemporaryFailure
from outlast.isolation.threads import REFUSED, start_thread
from outlast.kernel.clock import REAL
from outlast.kernel.log import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.kernel.clock import Stop
    from outlast.work.slots import Slots

T = TypeVar("T")
R = TypeVar("R")
_END = 5.0  # seconds that a thread without work has to end
_PATIENCE = 0.002  # seconds that work may wait for a thread before there are more of them
_RETRY_S = 0.05  # between two tries to start a thread that the system refuses
_REFUSED_S = 5.0  # until work fails for which the system refuses every thread


async def in_thread(do: Callable[[], Any], waits: Stop | None = None) -> Any:
    """
    Do it in a thread, and do not leave it there: who is cancelled meanwhile hears of it when it is done, and what it
    waits for by `waits` ends. What is written at the end of a run must not be half written, and its lease must be given
    back. If the system refuses every thread, it is done here, and the loop stands still.
    """
    return await to_its_end(begun_in_thread(do, else_here=True), lambda: None if waits is None else waits.set())


async def to_its_end(work: asyncio.Future[R], interrupted: Callable[[], object]) -> R:
    """
    What a future comes to, which is left alone: who is cancelled meanwhile calls `interrupted`, and hears of it when the
    work has ended.
    """
    cancelled: asyncio.CancelledError | None = None
    try:
        while not work.done():
            try:
                await asyncio.wait([work])  # which leaves it alone
            except asyncio.CancelledError as interruption:
                cancelled = interruption
                interrupted()
        if cancelled is not None:
            raise cancelled from (None if work.cancelled() else work.exception())
        return work.result()
    finally:
        del work, cancelled  # an exception and this frame must not keep each other


def begun_in_thread(do: Callable[[], R], *, left: bool = False, else_here: bool = False) -> asyncio.Future[R]:
    """
    Do it in a thread of its own, which has ended when the future is done. It may be `left` behind: then the end of the
    program does not wait for it. If the system refuses every thread it fails, or is done in the loop: `else_here`.

    The threads of the loop's executor are for the user's code: where it keeps all of them busy, nothing else would get
    one, and nobody could tell at the end which of them to wait for.
    """
    loop, context = asyncio.get_running_loop(), copy_context()
    done: asyncio.Future[R] = loop.create_future()

    def work() -> None:
        came: Any = None
        wrong: BaseException | None = None
        try:
            came = context.run(do)
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits for it
            wrong = error
        try:
            if threading.current_thread() is thread:
                loop.call_soon_threadsafe(arrive, came, wrong)
            else:
                settle(came, wrong)
        except RuntimeError:  # the loop is closed: nobody waits
            return
        finally:
            del came, wrong  # an exception and this frame must not keep each other

    def arrive(came: Any, wrong: BaseException | None) -> None:
        thread.join()  # there is nothing left for it to do; until it is gone, it keeps what it has used
        settle(came, wrong)

    def settle(came: Any, wrong: BaseException | None) -> None:
        if done.done():  # cancelled, by somebody who cancels all there is
            return
        if wrong is None:
            done.set_result(came)
        else:
            done.set_exception(_raisable(wrong))

    thread = threading.Thread(target=work, daemon=left, name="outlast-work")
    start_patiently(thread, lambda refused: work() if else_here else settle(None, refused))
    return done


def start_patiently(thread: threading.Thread, refused: Callable[[TemporaryFailure], object]) -> None:
    """Start it, and try again for `_REFUSED_S` if the system refuses; then `refused` is called in the loop. Call it there."""
    loop, clock = asyncio.get_running_loop(), REAL.clock.monotonic
    until = clock() + _REFUSED_S

    def attempt() -> None:
        try:
            start_thread(thread)
        except TemporaryFailure as error:
            if clock() < until:
                loop.call_later(_RETRY_S, attempt)
            else:
                refused(error)

    attempt()


class Pool(ThreadPoolExecutor):
    """
    A pool for which the system may refuse threads. With some, work waits for one of them; with none, `submit` raises and the work is
    not done later either: who was refused may enqueue the same job once more.
    """

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if self._threads:
                return
            self._work_queue.get_nowait()
            raise TemporaryFailure(REFUSED, error_class="resource_exhausted") from None


def _raisable(error: BaseException) -> BaseException:
    """The error, as a future takes it: none takes StopIteration, which would end whatever awaits it as if it had returned."""
    if not isinstance(error, StopIteration):
        return error
    raised = RuntimeError("the function raised StopIteration")
    raised.__cause__ = error
    return raised


class Threads(Generic[T, R]):
    """
    A pool that starts more threads while work waits for one. Only the event loop uses it, except for the methods that
    say "From any thread".
    """

    def __init__(
        self,
        do: Callable[[T], R | None],
        *,
        back: Callable[[list[tuple[T, R | BaseException]]], None],
        seen: Callable[[], None],
        lost: Callable[[T], None],
        loop: asyncio.AbstractEventLoop,
        slots: Sequence[Slots[T]],
        most: int,
        name: str = "outlast-stage",
    ) -> None:
        """
        `do` runs in a thread. In the loop, `back` is called with the results of a burst, and `seen` after it. `lost`
        releases what a piece of work holds when its result reaches no loop. Work parks at `slots`.
        """
        self._do = do
        self._back = back
        self._seen = seen
        self._lost = lost
        self._loop = loop
        self._slots = slots
        self._most = most
        self._name = name
        self._threads = 0
        self._started: list[threading.Thread] = []
        self._inbox: deque[T] = deque()
        self._ready = threading.Semaphore(0)
        self._done: deque[tuple[T, R | BaseException]] = deque()
        self._told = False
        self._burst = 0  # how many of those that have come back the loop looks at now
        self._growing = False
        self._refused_at: float | None = None  # since when the system refuses every thread
        self.closed = False
        self._abandoned = False
        self.outstanding = 0  # work that is in here: on its way to a thread, in one, or parked
        # Work that has just failed: nothing begins before the loop has decided what follows.
        self.holding: set[T] = set()
        self._stalled: set[T] = set()  # work that waits for this decision in a thread
        self._released = threading.Condition()

    def put(self, work: T) -> None:
        """Have a thread do it."""
        self.outstanding += 1
        self._inbox.append(work)
        self._ready.release()
        if self._growing or self._threads >= self._most:
            return
        if self._threads == 0 and self._start() is None:
            return
        self._grow_in(_PATIENCE if self._threads else _RETRY_S)

    def again(self, work: T | None) -> None:
        """Have a thread go on with work that was parked, if there is any. From any thread."""
        if work is not None:
            self._inbox.append(work)
            self._ready.release()

    def _start(self) -> TemporaryFailure | None:
        """Start one more thread; why the system refuses it."""
        number = self._threads + 1
        thread = threading.Thread(
            target=copy_context().run, args=(self._run,), daemon=True, name=f"{self._name}-{number}"
        )
        try:
            start_thread(thread)
        except TemporaryFailure as refused:
            if self._refused_at is None:
                self._refused_at = REAL.clock.monotonic()
                warn("%s; %d threads work here, and more are tried again and again", refused, self._threads)
            return refused
        self._threads, self._refused_at = number, None
        self._started.append(thread)
        return None

    def _grow_in(self, seconds: float) -> None:
        self._growing = True
        self._loop.call_later(seconds, self._grow)

    def _grow(self) -> None:
        """Start more threads as long as work waits for one: work that waits needs many, work that computes few."""
        self._growing = False
        waiting = len(self._inbox)
        if self.closed or not waiting:
            return
        refused: TemporaryFailure | None = None
        for _ in range(min(waiting, max(1, self._threads), self._most - self._threads)):
            refused = self._start()
            if refused is not None:
                break
        since = self._refused_at
        if (
            self._threads == 0
            and refused is not None
            and since is not None
            and REAL.clock.monotonic() - since >= _REFUSED_S
        ):
            self._refused_at = None
            self._fail_waiting(refused)
        elif self._threads < self._most:
            self._grow_in(_PATIENCE if refused is None else _RETRY_S)

    def _fail_waiting(self, refused: TemporaryFailure) -> None:
        """No thread can be had: all that waits for one fails."""
        while self._inbox:
            self._done.append((self._inbox.popleft(), refused))
        self._collect()

    @property
    def busy(self) -> int:
        """How much is in a thread or on its way to one, and not parked."""
        return self.outstanding - sum(len(slots.waiting) for slots in self._slots)

    @property
    def unseen(self) -> int:
        """How much has come back that the loop has not looked at. From any thread."""
        return len(self._done) + self._burst

    def inbox(self) -> tuple[T, ...]:
        """What is on its way to a thread. From any thread."""
        return tuple(self._inbox)

    def waiting(self) -> list[T]:
        """What no thread has begun with: on its way to one, parked, or waiting in one for a decision of the loop."""
        parked = (work for slots in self._slots for work in tuple(slots.waiting))
        with self._released:
            return [*self._inbox, *parked, *self._stalled]

    def unstarted(self) -> list[T]:
        """Take back what no thread has begun with."""
        found: list[T] = []
        for waiting in (self._inbox, *(slots.waiting for slots in self._slots)):
            while True:
                try:
                    found.append(waiting.popleft())
                except IndexError:
                    break
        self.outstanding -= len(found)
        return found

    def close(self) -> None:
        """No thread begins anything more; those that are busy end by themselves."""
        self.closed = True
        self._ready.release(self._threads or 1)
        with self._released:
            self._released.notify_all()

    def join(self) -> None:
        """After `close`: wait until the threads have ended, unless code that they run does not. Blocks for a moment."""
        if not self.outstanding:
            for thread in self._started:
                thread.join(_END)

    def abandon(self) -> None:
        """The loop takes nothing back from now on: what is in here is lost."""
        self.closed = self._abandoned = True
        for work in self.unstarted():
            self._lost(work)
        self._lose()

    def _lose(self) -> None:
        """Lose what has come back. Any thread may do that; each piece is lost once."""
        while True:
            try:
                work, _ = self._done.popleft()
            except IndexError:
                return
            self._lost(work)

    def hold(self, work: T) -> None:
        """Let nothing begin until `release`. From any thread."""
        with self._released:
            self.holding.add(work)

    def release(self, work: T) -> None:
        """It is known what its end means. From any thread."""
        with self._released:
            self.holding.discard(work)
            if not self.holding:
                self._released.notify_all()

    def wait_for_release(self, work: T) -> None:
        """Wait, in a thread, until all that `hold` was called for is released."""
        with self._released:
            self._stalled.add(work)
            while self.holding and not self.closed:
                self._released.wait()
            self._stalled.discard(work)

    def _collect(self) -> None:
        self._told = False
        burst: list[tuple[T, R | BaseException]] = []
        while True:
            try:
                burst.append(self._done.popleft())
            except IndexError:
                break
        self.outstanding -= len(burst)
        self._burst = len(burst)
        self._back(burst)
        self._burst = 0
        self._seen()

    # -- in a thread

    def _run(self) -> None:
        while True:
            self._ready.acquire()
            if self.closed:
                return
            try:
                work = self._inbox.popleft()
            except IndexError:  # it was taken back
                continue
            try:
                came: R | BaseException | None = self._do(work)
            except BaseException as abort:  # noqa: BLE001 - the loop decides
                came = abort
            if came is not None:
                self._done.append((work, came))
                if self._abandoned:  # after the step before: of the two, one sees what the other has done
                    self._lose()
                elif not self._told:
                    self._told = True
                    try:
                        self._loop.call_soon_threadsafe(self._collect)
                    except RuntimeError:  # the loop is closed, and nothing waits for this
                        self._lose()
                        return
            del work, came
