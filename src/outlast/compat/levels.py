"""
The levels at which older code logged: every failure as an error, also one that reaches its caller.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from outlast.observe.events import loud

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def as_loud() -> Iterator[None]:
    """What fails in here is told at the level it had."""
    token = loud.set(True)
    try:
        yield
    finally:
        loud.reset(token)
