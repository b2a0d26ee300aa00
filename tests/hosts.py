"""Hosts whose clocks are wrong."""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from outlast.kernel.clock import REAL, Clock, World, here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime


class SkewedClock(Clock):
    """That of a host whose time is wrong."""

    def __init__(self, hours: float) -> None:
        super().__init__()
        self._off = timedelta(hours=hours)

    def now(self) -> datetime:
        return super().now() + self._off


@contextmanager
def on_host(hours: float) -> Iterator[None]:
    """Whatever is done here, also in contexts copied from this one, is done on a host whose clock is off by so many hours."""
    real, before = time.time, here.set(World(SkewedClock(hours), REAL.dice, REAL.ids))
    time.time = lambda: real() + hours * 3600
    try:
        yield
    finally:
        time.time = real
        here.reset(before)
