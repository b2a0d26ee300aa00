"""
Whether an event loop moves, and what blocks it if it does not. Threads ask; the loop need not know of them.
"""

from __future__ import annotations

import os.path
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

_SHOWN = 6  # frames of what blocks


class Pulse:
    """
    Asks a loop again and again whether it moves. `missed` is to how many looks in a row it has not answered.

    Looks are counted, not seconds: while the whole process stands still (stopped, or code holds the interpreter's lock),
    nobody looks, and afterwards the loop has its time to answer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, answered: Callable[[], None] | None = None) -> None:
        """`answered` is called in the loop, with each answer."""
        self._loop = loop
        self._answered = answered
        self._open = False  # asked, and there is no answer yet
        self.missed = 0

    def look(self) -> int:
        """How many looks it has not answered to; one that has answered is asked again. From one thread only."""
        if self._open:
            self.missed += 1
            return self.missed
        self.missed, self._open = 0, True
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:  # it is closed: nothing waits for it
            self._open = False
        return 0

    def _answer(self) -> None:
        self._open = False
        if self._answered is not None:
            self._answered()


def place_in(thread: int | None, inside: Callable[[Any], bool]) -> str:
    """
    Where the code of a thread is now, in one line with the innermost call last; of all calls, those below the innermost
    one whose code is `inside`. Empty if it cannot be said.
    """
    frame = None if thread is None else sys._current_frames().get(thread)  # noqa: SLF001 - there is no other way
    frames: list[str] = []
    for code, line in _calls(frame):
        if inside(code):
            break
        frames.append(f"{os.path.basename(code.co_filename)}:{line} in {code.co_name}")  # noqa: PTH119 - no path: a name
    return ", ".join(reversed(frames[:_SHOWN]))


def _calls(frame: Any) -> Iterator[tuple[Any, int]]:
    """What is called, the innermost first. The frames are not kept: they hold all the variables of that code."""
    while frame is not None:
        yield frame.f_code, frame.f_lineno
        frame = frame.f_back
