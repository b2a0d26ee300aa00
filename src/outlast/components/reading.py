"""
What all sources share: an item that could not be read, the words for a source that fails, and a thread for reading that
takes its time.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError, PermanentFailure
from outlast.work.threads import Pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterator, Sequence

_FAREWELL = 5.0  # seconds for a reader to close


class Source(ABC):
    """
    Where items come from: subclass it, and give it to a run, or register it by a name. It never tries again by itself.
    """

    @abstractmethod
    def items(self) -> Iterator[Any] | AsyncIterable[Any]:
        """
        The items, from the beginning and in the same order each time that it is asked: a run that goes on passes over
        what is finished. Nothing is read yet; what cannot be a source is said now.
        """

    def count(self) -> int | None:
        """How many there are, if that can be known; asked in a thread of its own, for a display."""
        return None


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


class ThreadedReader:
    """
    An async iterator over items that a thread reads in batches, so that the event loop does not block on a slow
    database.

    One thread does all of the reading, because some drivers demand it. `at_hand` is how many items are here without
    waiting. On `aclose`, ``interrupt`` of the reader is called, if it has one.
    """

    def __init__(self, begin: Callable[[], Iterator[Sequence[Any]]]) -> None:
        self._begin = begin
        self._thread: Pool | None = None
        self._batches: Any = None
        self._batch: Iterator[Any] = iter(())
        self.at_hand = 0

    def __aiter__(self) -> ThreadedReader:
        return self

    async def __anext__(self) -> Any:
        while not self.at_hand:
            try:
                batch = await asyncio.get_running_loop().run_in_executor(self._reader(), self._next)
            except Exception:
                await self.aclose()
                raise
            if batch is None:
                await self.aclose()
                raise StopAsyncIteration
            self._batch, self.at_hand = iter(batch), len(batch)
        self.at_hand -= 1
        return next(self._batch)

    def _reader(self) -> Pool:
        if self._thread is None:
            self._thread = Pool(1, "outlast-source")
        return self._thread

    def _next(self) -> Sequence[Any] | None:
        if self._batches is None:
            self._batches = self._begin()
        return next(self._batches, None)

    async def aclose(self) -> None:
        """Nothing more is read."""
        if self._thread is None:
            return
        interrupt = getattr(self._batches, "interrupt", None)
        if interrupt is not None:
            with suppress(Exception):  # it may be over already
                await asyncio.to_thread(interrupt)
        if self._batches is not None:  # else nothing was begun, perhaps because there was no thread
            closing = asyncio.get_running_loop().run_in_executor(self._thread, self._close)
            await asyncio.wait([closing], timeout=_FAREWELL)
        self._thread.shutdown(wait=False)
        self._thread = None

    def _close(self) -> None:
        if hasattr(self._batches, "close"):
            with suppress(Exception):  # everything that was read is taken care of
                self._batches.close()
