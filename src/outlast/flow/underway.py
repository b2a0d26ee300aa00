"""
What this process is at for the steps of flows: the code of their attempts, in whatever thread it runs.

An attempt whose time is up is left alone in its thread, which nobody can end, and its run goes on. What it does from then
on it still does: who undid the step meanwhile would undo nothing, and the work would stand for good. So whoever undoes a
step waits here until its code has come back. Rows are known by their step. What runs in a process of its own is killed
when it is left, and what another process of this machine is at is not known here.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from outlast.kernel.clock import here

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds that code which was left has to come back before its step is undone: as long as a thread that somebody has given up
#: elsewhere. Its own time limit says nothing about it: that is over.
PATIENCE = 5.0
_ends: dict[tuple[str, str], set[threading.Event]] = {}
_lock = threading.Lock()


def _forget() -> None:
    """A child has none of its parent's threads."""
    global _lock  # noqa: PLW0603 - one that is held here would be held for ever there
    _lock = threading.Lock()
    _ends.clear()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def under_way(run: str, step: str) -> Iterator[None]:
    """The code of a step, or of one of its rows, runs in this thread."""
    end = threading.Event()
    with _lock:
        _ends.setdefault((run, step), set()).add(end)
    try:
        yield
    finally:
        with _lock:
            left = _ends[run, step]
            left.discard(end)
            if not left:
                del _ends[run, step]
        end.set()


def is_under_way(run: str, step: str) -> bool:
    """Whether code of a step runs in this process."""
    with _lock:
        return (run, step) in _ends


def run_is_under_way(run: str) -> bool:
    """Whether code of any step of a run runs in this process."""
    with _lock:
        return any(one == run for one, _ in _ends)


def has_come_back(run: str, step: str) -> bool:
    """Wait, not for ever, for the code of a step in this process; whether none of it is under way any more."""
    clock = here.get().clock
    until = clock.monotonic() + PATIENCE
    with _lock:
        ends = [*_ends.get((run, step), ())]
    return all(clock.wait_event(end, max(0.0, until - clock.monotonic())) for end in ends)
