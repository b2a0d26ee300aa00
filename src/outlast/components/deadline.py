"""
The end of an attempt's time, for drivers that would wait for a server that stands still.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress


class Late:
    """Hangs up when the time is over, so that whoever waits for the server hears of it."""

    def __init__(self, descriptor: int, remaining: float | None) -> None:
        self.struck = False
        self._socket = os.dup(descriptor)
        self._lock = threading.Lock()
        self._timer = None if remaining is None else threading.Timer(remaining, self._strike)

    def _strike(self) -> None:
        with self._lock:
            if self._socket >= 0:
                self.struck = True
                self._shut(socket.SHUT_RDWR)

    def _shut(self, how: int | None = None) -> None:
        with socket.socket(fileno=self._socket) as mine, suppress(OSError):
            self._socket = -1
            if how is not None:
                mine.shutdown(how)

    def __enter__(self) -> None:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            if self._socket >= 0:
                self._shut()
