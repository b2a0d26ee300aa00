"""A process that stands still: a signal stops its threads one after the other, and on a busy machine they go on for a while."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path


def stand_still(pid: int) -> None:
    """Stop all its threads, and wait until they have. One that has come to its end meanwhile stands still, too."""
    try:
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:
        return
    while not stands_still(pid):
        threading.Event().wait(0.001)


def stands_still(pid: int) -> bool:
    try:
        return all(_state(task) in "TtZX" for task in Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return True


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return "X"
