"""
Threads in which code of a job runs beside its own: those of guards with ``isolation="thread"``, and those of the event loop's
executor, as `asyncio.to_thread` uses them. Such code goes on when nobody waits for it any more. An attempt that fails is over
only when it has ended: what undoes the job must not come before what is to be undone, nor the next attempt beside this one.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from outlast.calls.state import current_work

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


class Inside:
    """The threads of one attempt."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._closed = False

    @property
    def running(self) -> bool:
        """Whether code runs in one of them."""
        return self._running > 0

    def watched(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function, known here from its start to its end; it does not start once the attempt is over."""

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._changed:
                if self._closed:
                    raise InterruptedError("the attempt of the job that has begun this is over")
                self._running += 1
            try:
                return fn(*args, **kwargs)
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

        return call

    def close(self) -> bool:
        """Let nothing more start; whether something still runs."""
        with self._changed:
            self._closed = True
            return self._running > 0

    def join(self) -> None:
        """Wait until all of it has ended, however long that takes."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)


def watched(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, watched by the job whose code asks for it; as it is, where that is no job."""
    watch: Callable[[Callable[..., Any]], Callable[..., Any]] | None = getattr(current_work.get(), "watched", None)
    return fn if watch is None else watch(fn)


class _Executor(ThreadPoolExecutor):
    """As every event loop has one, for threads that are known to the job that has begun them."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(watched(fn), *args, **kwargs)


def watch_executor(loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop's own executor watched; one that somebody has chosen stays."""
    if isinstance(loop, asyncio.BaseEventLoop) and getattr(loop, "_default_executor", loop) is None:
        loop.set_default_executor(_Executor(thread_name_prefix="asyncio"))
