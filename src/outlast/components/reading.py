"""
What all sources share: an item that could not be read, the words for a source that fails, and a thread for reading that takes its time.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError, PermanentFailure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

_FAREWELL = 5.0  # seconds for a reader to close


class Unreadable:
    """An item that could not be read: the text as it stands there, and what is wrong with it."""

    __slots__ = ("error", "raw")

    def __init__(self, raw: str, error: Exception) -> None:
        self.raw = raw
        self.error = error


def broken_item(raw: str, message: str) -> Unreadable:
    """One item is wrong, and stops nobody else."""
    return Unreadable(raw, PermanentFailure(message, error_class="validation_error"))


def broken_source(message: str) -> PermanentFailure:
    """Nothing more can be read; what came before is taken care of."""
    return PermanentFailure(message, error_class="data_error")


def missing(what: str, package: str, extra: str) -> ConfigurationError:
    """Something that is not installed; say how to get it."""
    return ConfigurationError(f"{what} needs {package}, which is not installed: pip install 'outlast[{extra}]'.")


async def aside(begin: Callable[[], Iterator[Sequence[Any]]]) -> AsyncGenerator[Any, None]:
    """
    The items of batches that a thread of their own reads: the event loop does not stand still while a database thinks.

    All of the reading is one thread's, from beginning to end, as some drivers demand. A reader with an ``interrupt`` is told when nobody wants
    the rest any more.
    """
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, "outlast-source")
    batches: Any = None
    try:
        batches = await loop.run_in_executor(thread, begin)
        while (batch := await loop.run_in_executor(thread, next, batches, None)) is not None:
            for item in batch:
                yield item
    finally:
        interrupt = getattr(batches, "interrupt", None)
        if interrupt is not None:
            with suppress(Exception):  # it may be over already
                interrupt()
        if hasattr(batches, "close"):
            await asyncio.wait([loop.run_in_executor(thread, _close, batches)], timeout=_FAREWELL)
        thread.shutdown(wait=False)


def _close(batches: Any) -> None:
    with suppress(Exception):  # everything that was read is taken care of
        batches.close()
