"""
How sync code drives a run: until it ends, or result by result. What signals do in the meantime.

Ctrl-C and SIGTERM wind a run down; a second one does not wait for running attempts. Once the run has ended, the signal
does what it would have done without a run: KeyboardInterrupt, the end of the program (SystemExit with 128 + its number,
so that everything is closed on the way), or the handler of the program's own. What the program ignores stays ignored.
"""

from __future__ import annotations

import asyncio
import queue
import signal
import socket
import threading
from collections import deque
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from outlast.isolation.threads import start_thread
from outlast.pipeline.errors import mark_with_result
from outlast.pipeline.intake import ReadInterrupted
from outlast.pipeline.lifecycle import Run, announce

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from typing import Protocol, Self

    from outlast.pipeline.plan import Plan
    from outlast.pipeline.results import ItemResult, RunResult

    C_co = TypeVar("C_co", covariant=True)

    class Drivable(Protocol[C_co]):
        """A run, over items or of a flow."""

        @property
        def plan(self) -> Any: ...
        def wind_down_soon(self, request: str) -> None: ...
        def waiting_here(self) -> bool: ...
        def go(self) -> Coroutine[Any, Any, C_co]: ...


T = TypeVar("T")

_CROWDED = 1000  # results that a stream has ready and nobody has taken, before no more is read
_HEARD = (signal.SIGINT, signal.SIGTERM)
_LOOK = 0.5  # seconds between two looks whether a thread is over


def _ignored(_: int, __: object) -> None:
    return


def blocking(run: Drivable[T]) -> T:
    """
    What a run came to. It is worked on until it ends, in this thread, or in another one if an event loop is running here, as in a notebook.
    """
    result: T | None = None
    problem: BaseException | None = None
    with Signals(lambda: run.wind_down_soon("interrupted"), run.waiting_here) as signals:
        try:
            result = (
                elsewhere(lambda: _here(run), lambda: run.wind_down_soon("interrupted")) if in_loop() else _here(run)
            )
        except BaseException as error:  # noqa: BLE001 - raised below, unless a signal is what ends it
            problem = error
    try:
        signals.pass_on(result, problem, quiet=run.plan.watch is not None)
        if result is None:
            assert problem is not None  # noqa: S101 - one of the two
            raise problem
        return result
    finally:
        del problem


class Signals:
    """
    Between enter and exit, a signal winds the run down. `pass_on` then does what the signal would have done without a
    run.
    """

    def __init__(self, wind_down: Callable[[], None], waiting_here: Callable[[], bool]) -> None:
        self._wind_down = wind_down
        self._waiting_here = waiting_here
        self._before: dict[int, Any] = {}
        self._over = False
        self.caught: list[int] = []
        self.away = False  # the caller's own code runs: between two results of a stream
        self.last = False  # one that came has had its effect, and the process ends: no other one does anything
        self.raised: BaseException | None = None  # in there

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _HEARD:
                before = _still_there(number, signal.getsignal(number))
                if before is None or before is signal.SIG_IGN:  # None: of another language
                    continue
                self._before[number] = before
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        if threading.current_thread() is threading.main_thread():  # else whoever handles it then gives it back
            for number, before in self._before.items():
                if signal.getsignal(number) == self._handle:  # somebody may have set another one since
                    signal.signal(number, _ignored if self.last and self.caught else before)

    def _handle(self, number: int, _: object) -> None:
        if self._over:
            if not (self.last and self.caught):
                signal.signal(number, self._before[number])
                signal.raise_signal(number)
            return
        if self.away and not self._own(number):
            self._wind_down()
            self.raised = _ending(number)
            raise self.raised
        self.caught.append(number)
        self._wind_down()
        if self._waiting_here():  # in a queue, a pipe, a page of a service: as without a run, the signal ends that
            raise ReadInterrupted

    def before(self, number: int) -> Any:
        """What was there before it, once it is over; else None."""
        return self._before.get(number) if self._over else None

    def _own(self, number: int) -> bool:
        return callable(self._before[number]) and self._before[number] is not signal.default_int_handler

    def pass_on(self, result: Any, problem: BaseException | None, *, quiet: bool) -> None:
        """
        Do what the signals that came would have done. Returns if there were none, or if all were for handlers of the
        program's own.
        """
        if not self.caught:
            return
        if result is not None and not quiet:  # who watches tells it in its own way
            announce(result)
        numbers = list(dict.fromkeys(self.caught))
        for number in [number for number in numbers if self._own(number)]:
            try:
                self._before[number](number, None)
            except BaseException as error:
                if result is not None:
                    mark_with_result(error, result)
                raise
        for number in numbers:
            if not self._own(number):
                ending = _ending(number)
                cause = problem if result is None else result.error
                if result is not None:
                    mark_with_result(ending, result)
                # InterruptedError only says that nothing was begun.
                raise ending from (None if isinstance(cause, InterruptedError) else cause)

    def again(self) -> None:
        """What came while a stream was being left comes again: nobody hears what is raised there."""
        for number in dict.fromkeys(self.caught):
            threading.Thread(target=signal.raise_signal, args=(number,), name="outlast-signal").start()


def _ending(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


def _still_there(number: int, handler: Any) -> Any:
    """The handler, or what was there before if it is one of ours that is over and could not be taken away."""
    for _ in range(100):
        ours = getattr(handler, "__self__", None)
        before = ours.before(number) if isinstance(ours, Signals) else None
        if before is None:
            break
        handler = before
    return handler


def in_loop() -> bool:
    """Whether an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _here(run: Drivable[T]) -> T:
    with asyncio.Runner() as runner, _woken(runner.get_loop()):
        return to_its_end(runner.get_loop(), run.go(), lambda: run.wind_down_soon("interrupted"))


@contextmanager
def _woken(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """
    Signals end a wait of this loop. Python calls a handler between two steps of its own code: for a signal that comes
    right before the loop waits, that would be when something else happens, and perhaps never.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.set_wakeup_fd(-1)
    if before != -1:  # somebody else listens, and its loop is woken
        signal.set_wakeup_fd(before)
        yield
        return
    read, write = socket.socketpair()
    with read, write:
        read.settimeout(0)
        write.settimeout(0)
        loop.add_reader(read, _drain, read)
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            now = signal.set_wakeup_fd(-1)
            if now not in {-1, write.fileno()}:  # somebody has begun to listen since
                signal.set_wakeup_fd(now)
            if not loop.is_closed():
                loop.remove_reader(read)


def _drain(read: socket.socket) -> None:
    with suppress(OSError):
        read.recv(4096)


def to_its_end(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], wind_down: Callable[[], None]) -> T:
    """Run it in this loop to its end, whatever interrupts that: then it winds down first."""
    task = loop.create_task(work)
    interrupted: KeyboardInterrupt | None = None
    while True:
        try:
            result = loop.run_until_complete(task)
        except SystemExit:
            # Of a task that a stage has made, and that ends the loop: whoever awaits that task gets it, too, and it is
            # that item's failure.
            if task.done():
                raise
        except KeyboardInterrupt as interruption:
            # Of one of several stages, or of a handler of the program's own: the first of them is raised when all has
            # wound down.
            if task.done():
                raise
            interrupted = interrupted or interruption
            wind_down()
        else:
            break
    if interrupted is not None:
        if _is_result(result):
            mark_with_result(interrupted, result)
        raise interrupted
    return result


def _is_result(thing: Any) -> bool:
    """Whether this is what a run came to, over items or of a flow."""
    return hasattr(thing, "way_on") and hasattr(thing, "run_key")


def elsewhere(drive: Callable[[], T], wind_down: Callable[[], None]) -> T:
    """What comes of it in a thread of its own, where no event loop is running."""
    outcome: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(drive())
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            errors.append(error)
        finally:
            over.set()

    # An event, and not the thread itself: one whose `join` was interrupted is taken for dead, and the run would go on
    # unseen.
    over = threading.Event()
    start_thread(threading.Thread(target=copy_context().run, args=(work,), name="outlast-run"))
    interrupted: BaseException | None = None
    while not over.is_set():
        try:
            over.wait(_LOOK)  # a signal that comes right before it does not end it
        except BaseException as interruption:  # noqa: BLE001 - not by a signal that we know of; the run winds down all the same
            interrupted = interrupted or interruption
            wind_down()
    if interrupted is not None:
        if outcome and _is_result(outcome[0]):
            mark_with_result(interrupted, outcome[0])
        raise interrupted
    if errors:
        raise errors.pop()
    return outcome.pop()


# -- result by result -------------------------------------------------------------------------------------------------------------


class Stream(Generic[T]):
    """A run whose results are taken one by one while it goes on."""

    def __init__(self, plan: Plan, source: object, *, check: bool) -> None:
        self._ready: deque[ItemResult[T]] = deque()
        self._check = check
        self._run = Run(plan, source, deliver=self._deliver, crowded=lambda: len(self._ready) >= _CROWDED)
        self._news: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._ending = False  # after a signal: nothing more is handed out, and running attempts may end
        self.result: RunResult[T] | None = None

    def _deliver(self, result: ItemResult[Any]) -> None:
        self._ready.append(result)
        if self._news is not None:
            self._news[1].set()

    def waiting_here(self) -> bool:
        """As of its run."""
        return self._run.waiting_here()

    def wind_down(self) -> None:
        """Hand out nothing more, and let what is under way end; when asked twice, without waiting. From any thread."""
        self._ending = True
        self._run.wind_down_soon("interrupted")
        if self._news is not None and not self._news[0].is_closed():
            self._news[0].call_soon_threadsafe(self._news[1].set)

    async def results(self) -> AsyncIterator[ItemResult[T]]:
        """The items as they end. To leave it before its end interrupts the run."""
        ready, run = self._ready, self._run
        news = asyncio.Event()
        self._news = (asyncio.get_running_loop(), news)
        task = asyncio.create_task(run.go())
        task.add_done_callback(lambda _: news.set())
        try:
            while True:
                while ready and not self._ending:
                    yield ready.popleft()
                if run.runner is not None:
                    run.runner.feed_more()
                if task.done():
                    break
                news.clear()
                await news.wait()
            self.result = task.result()
            if self._check:
                self.result.raise_for_status()
        except BaseException as error:
            if not task.done():
                if not self._ending:
                    run.wind_down("interrupted")
                    run.wind_down("interrupted")
                await asyncio.wait([task])
                if not task.cancelled() and task.exception() is None:
                    self.result = task.result()
                    if not isinstance(error, GeneratorExit):
                        mark_with_result(error, self.result)
            raise


def stepped(stream: Stream[T]) -> Iterator[ItemResult[T]]:
    """The results for code that is not async. Work goes on while the next one is asked for."""
    return _pumped(stream) if in_loop() else _driven(stream)


def _driven(stream: Stream[T]) -> Iterator[ItemResult[T]]:
    problem: BaseException | None = None
    left = True
    signals = Signals(stream.wind_down, stream.waiting_here)
    try:
        with asyncio.Runner() as runner, signals, _woken(runner.get_loop()):
            results: Any = stream.results()
            try:
                while True:
                    try:
                        result = to_its_end(runner.get_loop(), _next(results), stream.wind_down)
                    except StopAsyncIteration:
                        break
                    except BaseException as error:  # noqa: BLE001 - raised below, unless a signal is what ends it
                        problem = error
                        break
                    if not signals.caught:
                        signals.away = True
                        yield result
                        signals.away = False
                left = False
            finally:
                signals.away = False
                to_its_end(runner.get_loop(), _closed(results), stream.wind_down)
                _told_outside(signals, stream)
    finally:
        if left:
            signals.again()
    _over(signals, stream, problem)


def _over(signals: Signals, stream: Stream[Any], problem: BaseException | None) -> None:
    try:
        signals.pass_on(stream.result, problem, quiet=False)
        if problem is not None:
            raise problem
    finally:
        del problem


def _told_outside(signals: Signals, stream: Stream[Any]) -> None:
    """A signal has ended the caller's own code, and the stream was left for it."""
    if signals.raised is not None and stream.result is not None:
        announce(stream.result)
        mark_with_result(signals.raised, stream.result)


async def _next(results: AsyncIterator[T]) -> T:
    return await anext(results)


async def _closed(results: Any) -> None:
    await results.aclose()


def _pumped(stream: Stream[T]) -> Iterator[ItemResult[T]]:
    """The results of a stream that runs in a thread of its own."""
    passed: queue.Queue[tuple[bool, Any]] = queue.Queue(64)
    left = threading.Event()

    async def pump() -> None:
        results: Any = stream.results()
        try:
            async for result in results:
                passed.put((True, result))
                if left.is_set():
                    break
        finally:
            await results.aclose()

    def work() -> None:
        try:
            with asyncio.Runner() as runner:
                to_its_end(runner.get_loop(), pump(), stream.wind_down)
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            passed.put((False, error))
        else:
            passed.put((False, None))

    problem: BaseException | None = None
    gone = True
    signals = Signals(stream.wind_down, stream.waiting_here)
    thread = threading.Thread(target=copy_context().run, args=(work,), name="outlast-stream", daemon=True)
    try:
        with signals:
            start_thread(thread)
            try:
                while True:
                    good, value = passed.get()
                    if not good:
                        problem = value
                        break
                    if not signals.caught:
                        signals.away = True
                        yield value
                        signals.away = False
                gone = False
            finally:
                signals.away = False
                left.set()
                while thread.is_alive():
                    try:
                        passed.get(timeout=0.05)
                    except queue.Empty:
                        continue
                thread.join()
                _told_outside(signals, stream)
    finally:
        if gone:
            signals.again()
    _over(signals, stream, problem)
