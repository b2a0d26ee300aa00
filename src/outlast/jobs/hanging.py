"""
A worker whose event loop hangs: what blocks it, and how signals end it all the same.

A handler in Python runs only between two steps of the main thread's own code, and whatever it asks of the loop is never
done if that hangs. The system tells each signal to a thread here, too (`signal.set_wakeup_fd`). Once a worker was asked
to end, the thread looks whether its loop moves. If it does, the worker ends by itself. If not, nothing can be cancelled
or given back: the thread says what is left, and ends the process.

    first signal      when the drain is over and the loop has not moved for 5 seconds
    second signal     when the loop has not moved for 5 seconds
    third signal      at once
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from outlast.errors import TemporaryFailure
from outlast.isolation.threads import start_thread
from outlast.jobs.running import JobRunner
from outlast.kernel.clock import REAL
from outlast.kernel.log import heard, warn
from outlast.kernel.redact import harmless
from outlast.kernel.wording import counted
from outlast.work.pulse import Pulse, place_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Self

    from outlast.jobs.running import ActiveJob

_LOOK = 0.25  # seconds between two looks at the loop
_MISSED = 20  # of them without an answer
_LAST_WORDS = 2.0  # seconds for what is done at every end of a process
_HEARD = frozenset((signal.SIGINT, signal.SIGTERM))
_THIRD = 3
_HOW = {  # a job has ended whose code goes on
    "succeeded": ("has succeeded with its own transaction", "have succeeded with their own transactions"),
    "failed": ("has failed for good", "have failed for good"),
    "cancelled": ("was cancelled", "were cancelled"),
}
# Below these begins what a loop was asked to do.
_BEGINS = frozenset(
    (JobRunner._bare.__code__, JobRunner._guarded.__code__, asyncio.Handle._run.__code__)  # noqa: SLF001
)
_listening: list[Unheard] = []


def blocked_by(loop: asyncio.AbstractEventLoop, thread: int, jobs: Iterable[ActiveJob]) -> str:
    """What blocks this loop, as far as that can be seen from another thread; in words."""
    task = asyncio.current_task(loop)
    active = None if task is None else next((one for one in [*jobs] if one.task is task), None)
    what = "code that is no job of it" if active is None else f"the job {active.job.id} ({active.job.kind})"
    where = place_in(thread, _BEGINS.__contains__)
    return f"{what} blocks it, at {where}" if where else f"{what} blocks it"


class Unheard:
    """Ends this process if a worker was asked to end by signals and its loop does not move. Only in the main thread."""

    def __init__(
        self,
        loop: Callable[[], asyncio.AbstractEventLoop | None],
        drain: float,
        left: Callable[[], str],
    ) -> None:
        """`left` says what is left when the process ends; it is called in a thread."""
        self._loop_of = loop
        self._drain = drain
        self._left = left
        self._pulse: Pulse | None = None
        self._look_at = 0.0
        self._came: list[int] = []
        self._first_at = 0.0
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        before = signal.set_wakeup_fd(-1)
        if before != -1:  # somebody else listens
            signal.set_wakeup_fd(before)
            return self
        self._ends = read, write = socket.socketpair()
        write.settimeout(0)
        read.settimeout(None)
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        thread = threading.Thread(target=self._listen, args=(read,), daemon=True, name="outlast-signals")
        try:
            start_thread(thread)
        except TemporaryFailure as refused:
            warn("signals cannot end this worker while its event loop is blocked: %s", refused)
            signal.set_wakeup_fd(-1)
            read.close()
            write.close()
            self._ends = None
            return self
        self._thread = thread
        _listening.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ends is None or self._thread is None:
            return
        with suppress(ValueError):  # a child of this process, which does not listen
            _listening.remove(self)
        read, write = self._ends
        now = signal.set_wakeup_fd(-1)
        if now not in {-1, write.fileno()}:  # somebody has begun to listen since
            signal.set_wakeup_fd(now)
        write.close()
        self._thread.join(_LAST_WORDS)
        read.close()

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _listen(self, read: socket.socket) -> None:
        while True:
            try:
                told = read.recv(64)
            except TimeoutError:
                told = None
            except OSError:
                return
            if told == b"":
                return  # the worker is over
            now = REAL.clock.monotonic()
            for number in told or ():
                if number in _HEARD:
                    self._first_at = self._first_at if self._came else now
                    self._came.append(number)
            if not self._came:
                continue
            read.settimeout(_LOOK)
            if self._is_stuck(now):
                self._end()

    def _is_stuck(self, now: float) -> bool:
        if self._pulse is None:
            loop = self._loop_of()
            if loop is None:
                return False
            self._pulse = Pulse(loop)
        if now >= self._look_at:  # not at every signal: those may come faster than any loop answers
            self._look_at = now + _LOOK
            self._pulse.look()
        missed = self._pulse.missed
        if len(self._came) >= _THIRD:
            return missed > 1
        return missed >= _MISSED and (len(self._came) > 1 or now >= self._first_at + self._drain)

    def _end(self) -> None:
        # In a thread of its own: what hangs may hold the very lock that is needed to tell it.
        telling = threading.Thread(target=self._tell, daemon=True, name="outlast-last-words")
        with suppress(TemporaryFailure):
            start_thread(telling)
            telling.join(_LAST_WORDS)
        os._exit(128 + self._came[0])

    def _tell(self) -> None:
        with suppress(Exception):  # the process ends in any case, and its exit code tells how
            text = f"ended by {signal.Signals(self._came[0]).name}: {self._left()}"
            if heard():
                warn("%s", text)
            else:  # nobody else says why this program is gone
                sys.stderr.write(f"{harmless(text)}\n")
        with suppress(Exception):  # as above: of a closed stream, or of code of the program's own
            sys.stdout.flush()
            sys.stderr.flush()
            atexit._run_exitfuncs()  # noqa: SLF001 - what is done at every end


def left_words(jobs: int, ended: Mapping[str, int], blocked: str) -> str:
    """What a worker leaves behind that is ended while its loop hangs; `ended` as for `again_words`."""
    cut = f" {counted(jobs, 'job was', 'jobs were')} cut off. {again_words(jobs, ended)}" if jobs else ""
    return f"the event loop of the worker does not move: {blocked}.{cut}"


def again_words(cut_off: int, ended: Mapping[str, int]) -> str:
    """
    Who does jobs again whose code was cut off. So many of them had `ended` before, by how: nobody does those again.

    >>> again_words(1, {}), again_words(1, {"failed": 1})
    ('Another worker does it again.', 'It has failed for good before, and is not done again.')
    >>> again_words(4, {"failed": 1, "cancelled": 2})
    '1 has failed for good before, 2 were cancelled before; another worker does the other one again.'
    """
    if not any(ended.values()):
        return "Another worker does it again." if cut_off == 1 else "Other workers do them again."
    if cut_off == 1:
        how = next(how for how, count in ended.items() if count)
        return f"It {_HOW[how][0]} before, and is not done again."
    said = ", ".join(f"{counted(ended[how], *words)} before" for how, words in _HOW.items() if ended.get(how))
    left = cut_off - sum(ended.values())
    if not left:
        return f"{said}; none of them is done again."
    rest = "another worker does the other one" if left == 1 else "other workers do the rest"
    return f"{said}; {rest} again."


def _after_fork() -> None:
    """A child shares the socket: its signals must not count as those of the worker."""
    if _listening:
        _listening.clear()
        with suppress(ValueError):  # not in the main thread
            signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_after_fork)
