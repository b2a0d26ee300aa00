"""
Reads a source and makes the items of a run: each has a number and a key; items that are finished are left out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextvars import copy_context
from functools import partial
from itertools import islice
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any

from outlast.components import Unreadable
from outlast.kernel.log import warn
from outlast.pipeline.engine.item import Item
from outlast.pipeline.identity import other_keys
from outlast.pipeline.keys import Keys
from outlast.store.codec import Lost
from outlast.work.memory import size_of
from outlast.work.patience import keep_trying

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence

    from outlast.kernel.clock import Stop
    from outlast.pipeline.record.writer import WriteBatch
    from outlast.pipeline.replays import Origins
    from outlast.pipeline.stages import Stage
    from outlast.store import Store
    from outlast.store.records import Checkpoint, RunRecord

PAGE = 500
_MOST_BYTES = 8 * 2**20  # of a chunk
_TASTE = 16  # items read between two looks at the clock
_SLICE = 0.005  # seconds of reading before others have their turn


class ReadInterrupted(KeyboardInterrupt):
    """A signal came while a source blocked. It only ends that wait; `Run.wind_down_soon` tells the run of it."""


class SourceFailed(Exception):
    """
    The source raised `error`, and nothing more can be read. `error` is wrapped because it may be a cancellation, which
    must not look like one of the reading task.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def in_thread_until(stop: Stop) -> Callable[[Callable[[], Any]], Awaitable[Any]]:
    """
    A way to ask the store in a thread, so that the loop goes on. An error that may pass is waited out, until the stop.
    """
    loop = asyncio.get_running_loop()

    async def in_thread(ask: Callable[[], Any]) -> Any:
        context = copy_context()
        return await loop.run_in_executor(None, lambda: context.run(keep_trying, ask, "the store", stop))

    return in_thread


class Intake:
    """
    Reads a source. After a resume the items of earlier passes are compared with what is on record, page by page; if the
    source has another order than before, every key is looked up.
    """

    origins: Origins | None = None  # of a replay: their leases are renewed with that of the run

    def __init__(
        self,
        source: Iterator[Any] | AsyncIterable[Any],
        item_key: str | Callable[[Any], str] | None,
        *,
        store: Store,
        run: RunRecord,
        read_before: int,
        stages: Sequence[Stage[..., Any, Any]],
        valid: Callable[[Any], bool],
        decode: Callable[[bytes, int], Any],
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        doubted: bool = False,
    ) -> None:
        self._items = source
        self._more: AsyncIterator[Any] | None = None
        if not isinstance(self._items, Iterator):
            self._more = aiter(self._items)
        self._keys = Keys(item_key)
        self._called = repr(item_key) if isinstance(item_key, str) else "that item_key gives"  # for people
        self._bare: set[str] = set()  # items of this chunk that are known by their content, although others have a key
        self._warned = False
        self._store = store
        self._run = run
        self._known = read_before  # positions that an earlier pass has read
        self._next = read_before  # the number of the next item that no pass has read
        self._position = 0
        self._shuffled = False
        self._free: deque[int] = deque()  # numbers of unfinished items, for a source that has another order than before
        self._stages = stages
        self._valid = valid
        self._decode = decode
        self._in_thread = in_thread
        self._doubted = doubted  # whether the keys may be others than those on record, for the same items
        self._lost: set[str] = set()  # stages whose checkpoints cannot be used
        self._broken: BaseException | None = None
        self._closing = False
        self.reading: tuple[int, float] | None = None  # by which thread, since when, in the user's own code
        self.exhausted = False
        # Of an async source: its reader, what that has read, whether it has come to an end, and how the two sides wake
        # each other.
        self._pump: asyncio.Task[None] | None = None
        self._here: list[Any] = []
        self._ended = False
        self._wanted = 0
        self._signal: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    @property
    def read(self) -> int:
        """Items read in all passes."""
        return self._next

    async def close(self) -> None:
        """Nothing more is read: a generator may clean up."""
        source: Any = self._items if self._more is None else self._more
        self._closing = True
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])
        try:
            if hasattr(source, "aclose"):
                await source.aclose()
            elif hasattr(source, "close"):
                source.close()
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 - everything that was read is taken care of
            warn("the source could not be closed: %s", type(error).__name__)

    async def chunk(self, most: int) -> list[Item]:
        """Some of the next items, at most so many; none left to do among them if the list is empty."""
        if self._broken is not None and not self._here:
            if isinstance(self._broken, KeyboardInterrupt):
                raise self._broken
            raise SourceFailed(self._broken)
        resuming = self._position < self._known or self._shuffled
        if resuming:
            most = PAGE
        items = await self._several(most) if self._more is not None else self._slice(most)
        if not items:
            return []
        first, self._position = self._position, self._position + len(items)
        try:
            keys = [self._key(item, first + offset) for offset, item in enumerate(items)]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's function, at the first item
            raise SourceFailed(error) from None
        if not resuming:
            start, self._next = self._next, self._next + len(items)
            left = [Item(start + place, key, item) for place, (key, item) in enumerate(zip(keys, items, strict=True))]
        else:
            left = await self._unfinished(first, keys, items)
        if self._bare:
            self._warn_of_bare(left)
        return left

    def _warn_of_bare(self, left: list[Item]) -> None:
        said = f"it has no key {self._called}, and is known by its content"
        for item in left:
            if item.key in self._bare:
                item.warn(said)
                if not self._warned:
                    self._warned = True
                    warn("item %s of the source: %s; so is every other one without it", f"{item.seq:,}", said)
        self._bare.clear()

    def recorded(self, batch: WriteBatch) -> None:
        """The ends of these items are on record."""

    def _slice(self, most: int) -> list[Any]:
        items: list[Any] = []
        source, until = self._items, perf_counter() + _SLICE
        assert isinstance(source, Iterator)  # noqa: S101 - async ones are read by `_several`
        try:
            self.reading = (get_ident(), until)
            while len(items) < most and not self.exhausted:
                before = len(items)
                for item in islice(source, min(_TASTE, most - before) if items else 1):
                    items.append(item)  # noqa: PERF402 - what came before an error is kept
                self.exhausted = len(items) == before
                if perf_counter() > until or (items and size_of(items[-1]) * len(items) > _MOST_BYTES):
                    break
            self.reading = None
        except BaseException as error:  # noqa: BLE001 - raised when those before it are taken care of
            self.reading = None
            self._broken = InterruptedError("ended by a signal") if isinstance(error, ReadInterrupted) else error
        return items

    async def _several(self, most: int) -> list[Any]:
        """What an async source has given by now, at most so many; only if that is nothing, it is waited for."""
        self._wanted, self._signal = most, asyncio.get_running_loop().create_future()
        if self._pump is None:
            self._pump = asyncio.create_task(self._read_on())
        elif self._room is not None and not self._room.done():
            self._room.set_result(None)
        if not self._here and not self._ended:
            await self._signal
        items, self._here = self._here, []
        if self._ended and not items:
            self.exhausted = self._broken is None
        return items

    async def _read_on(self) -> None:
        """Reads an async source in a task of its own: what is here need not wait for what is still to come."""
        assert self._more is not None  # noqa: S101 - an async source
        until = perf_counter() + _SLICE
        try:
            while True:
                if len(self._here) >= self._wanted or perf_counter() > until:
                    self._tell()
                    self._room = asyncio.get_running_loop().create_future()
                    await self._room
                    until = perf_counter() + _SLICE
                item = await anext(self._more)
                self._here.append(item)
                self._tell()
        except StopAsyncIteration:
            pass
        except BaseException as error:
            if self._closing:
                raise
            self._broken = error
        self._ended = True
        self._tell()

    def _tell(self) -> None:
        if self._signal is not None and not self._signal.done():
            self._signal.set_result(None)

    def _key(self, item: Any, seq: int) -> str:
        if isinstance(item, Unreadable):
            return self._keys.of_content(item.raw, seq)
        key = self._keys.of(item, seq)
        if self._keys.bare:
            self._bare.add(key)
        return key

    async def _unfinished(self, first: int, keys: list[str], items: list[Any]) -> list[Item]:
        store, run = self._store, self._run.number
        rows = await self._in_thread(lambda: store.finished(run, first, len(keys)))
        there: dict[int, str] = {seq: key for seq, key, _ in rows}
        for offset, item in enumerate(items):
            # Lines that could not be read and were alike had one key in older versions.
            bare = keys[offset].partition("#")[0]
            if isinstance(item, Unreadable) and there.get(first + offset) == bare:
                keys[offset] = bare
        # What did not end at this place may have ended at another one.
        doubtful = [key for offset, key in enumerate(keys) if there.get(first + offset) != key]
        elsewhere = await self._in_thread(lambda: store.find_keys(run, doubtful)) if doubtful else {}
        if self._doubted and (there or elsewhere):
            if len(doubtful) == len(keys) and not elsewhere:
                raise other_keys(self._run.run_key, len(keys))
            self._doubted = False
        if not self._shuffled and (elsewhere or any(there.get(first + n, key) != key for n, key in enumerate(keys))):
            self._shuffled = True
            await self._find_free(first)
        left: list[Item] = []
        for offset, (key, item) in enumerate(zip(keys, items, strict=True)):
            seq = first + offset
            if there.get(seq) == key or key in elsewhere:
                continue
            if self._shuffled and self._free:
                seq = self._free.popleft()
            elif self._shuffled or seq >= self._known:  # its place is taken, or nobody has been here before
                seq, self._next = self._next, self._next + 1
            left.append(Item(seq, key, item))
        await self._remember(left)
        await self._set_ahead(left)
        return left

    async def _remember(self, left: list[Item]) -> None:
        """What earlier passes have tried with an item and spent on it counts as its own."""
        seqs = [item.seq for item in left if item.seq < self._known]
        if not seqs:
            return
        before = await self._in_thread(lambda: self._store.attempted(self._run.number, seqs))
        for item in left:
            count, spent = before.get(item.seq, (0, None))
            item.attempts += count
            item.spent = spent or None

    async def _find_free(self, first: int) -> None:
        """The numbers of those that were read before, did not end, and come again somewhere from here on."""
        for start in range(first, self._known, PAGE):
            many = min(PAGE, self._known - start)
            rows = await self._in_thread(partial(self._store.finished, self._run.number, start, many))
            ended = {row[0] for row in rows}
            self._free.extend(seq for seq in range(start, start + many) if seq not in ended)

    async def _set_ahead(self, left: list[Item]) -> None:
        """Items with a checkpoint go on behind it."""
        if not left or not any(stage.checkpoint for stage in self._stages):
            return
        number, checkpoints_of = self._run.number, self._store.checkpoints_of
        waiting: dict[int | None, list[Item]] = {None: left}  # by the stage before which to look
        while waiting:
            before, asked = waiting.popitem()
            seqs = [item.seq for item in asked]
            checkpoints = await self._in_thread(partial(checkpoints_of, number, seqs, before=before))
            for item in asked:
                found = checkpoints.get(item.seq)
                if found is not None and not self._begun_behind(item, found):
                    waiting.setdefault(found.stage, []).append(item)

    def _begun_behind(self, item: Item, found: Checkpoint) -> bool:
        """
        Whether the item goes on with what this checkpoint has; if that is not its own, or would not be what it was, it
        begins earlier.
        """
        if found.key != item.key or not self._valid(found):
            return False
        try:
            value = self._decode(found.output, found.stage)
        except Lost as lost:
            stage = self._stages[found.stage].name
            if stage not in self._lost:
                self._lost.add(stage)
                warn("the checkpoints of %s are not used: %s; its items begin earlier", stage, lost)
            return False
        item.at = found.stage + 1
        item.saved = (item.at, found.output)
        item.value = value
        return True
