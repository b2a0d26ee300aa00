"""
Other processes of this machine that have workers: of their end a worker hears at once.

    Linux       a descriptor for each process (pidfd), which can be read as soon as that has ended. It costs nothing until
                then. A lock on a file would not do: children that a job has left behind keep it
    elsewhere   nothing is heard: whoever asks for the leases every second finds it out

That a process has ended only lets somebody look earlier. Whether the owner of a lease is dead is decided in one place
(`leases.certainly_dead`), which knows the number of a process and when it started: numbers are used again.
"""

from __future__ import annotations

import os
import selectors
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from outlast.work.leases import process_here

if TYPE_CHECKING:
    from collections.abc import Iterable


class Neighbours:
    """What one thread watches and waits for; `ring` ends its wait from any other one."""

    def __init__(self) -> None:
        self._watched: dict[tuple[int, str], int] = {}  # number and start of a process: its descriptor
        self._selector = selectors.DefaultSelector()
        self._bell, self._ear = socket.socketpair()
        self._selector.register(self._ear, selectors.EVENT_READ)

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, owners: Iterable[str]) -> None:
        """Watch the processes of these owners of leases, as far as that is possible, and no others."""
        found = {process for owner in owners if (process := process_here(owner)) is not None}
        for process in self._watched.keys() - found:
            self._forget(process)
        for process in found - self._watched.keys():
            # Where there is none: another system, an older kernel, a container that forbids it, too many open files. And
            # the process may have ended: whoever looks at its owner after this sees that.
            with suppress(OSError, AttributeError):
                self._add(process, os.pidfd_open(process[0]))

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until one of them has ended, or somebody rings. Whether one has ended; it is watched no more."""
        ended = [key.data for key, _ in self._selector.select(max(0.0, seconds)) if key.data is not None]
        for process in ended:
            self._forget(process)
        return bool(ended)

    def ring(self) -> None:
        """Let nobody wait any more."""
        with suppress(OSError):  # it is closed
            self._bell.send(b"!")

    def close(self) -> None:
        for process in tuple(self._watched):
            self._forget(process)
        self._selector.close()
        self._bell.close()
        self._ear.close()

    def _add(self, process: tuple[int, str], descriptor: int) -> None:
        try:
            self._selector.register(descriptor, selectors.EVENT_READ, process)
        except OSError:  # as many as this user may watch
            os.close(descriptor)
            raise
        self._watched[process] = descriptor

    def _forget(self, process: tuple[int, str]) -> None:
        descriptor = self._watched.pop(process)
        self._selector.unregister(descriptor)
        os.close(descriptor)
