"""
Running blocking code so that its caller can go on without it.

A thread cannot be killed. What is promised instead: the caller returns on time, the late result is discarded, the
abandoned thread is counted and never keeps the process alive, and nobody starts the same work again while it still
runs.
"""

from __future__ import annotations

import os
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from outlast.errors import TemporaryFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.kernel.clock import Clock

REFUSED = "the system refused to start a thread. Raise its limit of threads or memory (ulimit -u, pids limit), or lower the concurrency."
MOST_ABANDONED = 256  # threads that nobody waits for; beyond that no isolated attempt starts until some have ended
_running: set[ThreadAttempt] = set()


os.register_at_fork(after_in_child=_running.clear)  # a child has none of its parent's threads


def start_thread(thread: threading.Thread) -> None:
    """Start it. `TemporaryFailure` if the system refuses; the same thread can be started later."""
    try:
        thread.start()
    except (RuntimeError, MemoryError):
        raise TemporaryFailure(REFUSED, error_class="resource_exhausted") from None


def abandoned() -> int:
    """Threads that go on although nobody waits for them any more."""
    return sum(1 for attempt in tuple(_running) if attempt.given_up and attempt.running)


class ThreadAttempt:
    """One call in a thread of its own, with the caller's context variables."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if abandoned() >= MOST_ABANDONED:
            message = f"{MOST_ABANDONED} calls that timed out are still running in their threads: no further one is started beside them"
            raise TemporaryFailure(message, error_class="resource_exhausted")
        self.given_up = False
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        context = copy_context()

        def run() -> None:
            try:
                self._result = context.run(fn, *args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                self._error = error
            finally:
                if self.given_up:  # late: nobody will ask for it
                    self._result = self._error = None
                _running.discard(self)
                self._done.set()

        _running.add(self)
        # A daemon: a call that hangs must not keep the program from ending.
        try:
            start_thread(threading.Thread(target=run, daemon=True, name=f"outlast-{getattr(fn, '__name__', 'call')}"))
        except BaseException:
            _running.discard(self)
            raise

    @property
    def running(self) -> bool:
        """Whether it has not come back yet."""
        return not self._done.is_set()

    def join(self) -> None:
        """Wait until it has come back, however long that takes."""
        self._done.wait()

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        self.given_up = True

    def result(self, clock: Clock, seconds: float | None) -> Any:
        """
        What the call returned or raised; TimeoutError if it has not come back in time, and then its outcome is
        discarded.
        """
        try:
            in_time = clock.wait_event(self._done, seconds)
        except BaseException:  # interrupted: nobody waits for it any more
            self.given_up = True
            raise
        if not in_time and self.running:
            self.given_up = True
            if not self.running:  # it came back in this very moment
                self._result = self._error = None
            raise TimeoutError
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # this frame is in the traceback: holding the exception would be a cycle
