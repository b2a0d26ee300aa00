"""
From finished items to the store, in batches, by a thread of its own: outputs to the sink, then everything in one transaction.

What the store has not taken is not finished. Errors that may pass are waited out; when the patience is over, or nothing can help, the journal
is broken, and says so to the run.
"""

from __future__ import annotations

import queue
import threading
from contextvars import copy_context
from itertools import islice
from typing import TYPE_CHECKING, Any

from outlast.components import Refused
from outlast.kernel.clock import Stop, here
from outlast.store.records import Batch, EventRow, Homecoming, to_us
from outlast.work.patience import persist

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping

    from outlast.components import Sink
    from outlast.observe.events import Event
    from outlast.pipeline.engine.item import Journey
    from outlast.pipeline.replays import Origin
    from outlast.store import Store
    from outlast.store.records import (
        AttemptRow,
        Checkpoint,
        DeadLetterRow,
        FailedAgain,
        ItemRow,
        Lease,
        Mended,
        Settled,
    )

MOST_ITEMS = 2000  # in a batch
BATCH_BYTES = 8 * 2**20  # after which a batch goes, however few items are in it
MOST_BYTES = 64 * 2**20  # of values that are finished and not on record; one that is larger passes alone
LARGE = 4096  # bytes of a value that is worth a thought
_SMALL = frozenset({int, float, bool, type(None)})
_SEVERAL = frozenset({list, tuple, set, frozenset})
_SOME = 16  # parts of a value that are looked at
_LATENCY = 0.05  # seconds after which a batch goes, however small
_OUTSTANDING = 2  # batches on their way to the store


class Room:
    """
    Room for the values of a run in memory. While there is none, no attempt begins; what is under way ends, and what is finished goes on record.

    The event loop knows how many bytes wait for the store, and opens and shuts. A thread that sees many results that nobody has weighed yet may
    shut it too, if the loop looks at it afterwards.
    """

    __slots__ = ("_always", "_free", "held", "is_open", "most", "typical", "wait")

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        self.held = 0  # bytes of values that are finished and not on record
        self.typical = 0  # bytes of one value, going by the larger ones of late; 0 while all are small
        self._free = threading.Event()
        self._free.set()
        self._always = False
        self.is_open = self._free.is_set
        self.wait = self._free.wait

    def weigh(self, size: int) -> None:
        """A value had so many bytes."""
        self.typical = size if size > self.typical else self.typical - ((self.typical - size) >> 5)

    def holds(self, values: int, share: int = 1) -> bool:
        """Whether so many more values of the usual size have room, in a share of it."""
        return self.held + self.typical * values < self.most // share

    def shut(self) -> None:
        if not self._always:
            self._free.clear()

    def open(self) -> None:
        self._free.set()

    def open_for_good(self) -> None:
        """Nothing is begun any more: nobody has to wait for room."""
        self._always = True
        self._free.set()


class Load:
    """What goes to the store together, and who waits for it."""

    __slots__ = (
        "attempts",
        "bytes",
        "checkpoints",
        "events",
        "exhausted",
        "held",
        "homes",
        "items",
        "journeys",
        "keys",
        "letters",
        "outputs",
        "read",
        "resolved",
        "returned",
        "told",
    )

    def __init__(self) -> None:
        self.items: list[ItemRow] = []
        self.attempts: list[AttemptRow] = []
        self.checkpoints: list[Checkpoint] = []
        self.letters: list[DeadLetterRow] = []
        self.resolved: list[Settled] = []
        self.homes: dict[int, Parcel] = {}  # what comes home to other runs, by their numbers
        self.returned: list[Origin] = []  # the run of each letter that is settled here
        self.events: list[EventRow] = []
        self.outputs: list[Any] = []
        self.keys: list[str] = []
        self.journeys: list[Journey] = []  # whose outputs these are, if the sink may refuse some
        self.held: list[Journey] = []  # go on when this is on record
        self.told: list[Any] = []  # results to hand out when this is on record
        self.bytes = 0  # of the values in it
        self.read = 0
        self.exhausted = False

    def parcel(self, origin: Origin) -> Parcel:
        """What comes home to this run."""
        return self.homes.setdefault(origin.record.number, Parcel(origin))

    @property
    def empty(self) -> bool:
        return not (self.items or self.checkpoints or self.letters or self.resolved or self.events or self.attempts)


class Parcel:
    """What of a load comes home to the run that its letters come from."""

    __slots__ = ("failed", "journeys", "keys", "mended", "origin", "outputs", "undone")

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.mended: list[Mended] = []
        self.failed: list[FailedAgain] = []
        self.undone: list[Mended] = []  # what the sink has refused
        self.outputs: list[Any] = []
        self.keys: list[str] = []
        self.journeys: list[Journey] = []  # whose outputs these are, if the sink may refuse some


class Journal:
    """Used by the event loop; `_run` and what it calls is the writer's thread."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        sink: Sink | None,
        *,
        loop: asyncio.AbstractEventLoop,
        room: Room,
        committed: Callable[[Load], None],
        refused: Callable[[Load, Load | Parcel, Mapping[int, Exception]], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._lease = lease
        self._sink = sink
        self._loop = loop
        self._room = room
        self._committed = committed
        self._refused = refused
        self._broken = broken
        self.load = Load()
        self._queue: queue.SimpleQueue[Load | None] = queue.SimpleQueue()
        self._out = 0
        self._timer: asyncio.TimerHandle | None = None
        self._give_up = Stop()
        self._failed = False
        self.read = 0
        self.exhausted = False
        self._written = (0, False)  # read and exhausted, as on record
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), daemon=True, name="outlast-journal"
        )
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether the store is behind: then no new items are begun."""
        return (len(self.load.items) >= MOST_ITEMS and self._out >= _OUTSTANDING) or not self._room.is_open()

    @property
    def settled(self) -> bool:
        """Whether all is on record."""
        return self._failed or (self._out == 0 and self.load.empty and self._written == (self.read, self.exhausted))

    def added(self) -> None:
        """Something was put into the load."""
        load = self.load
        if len(load.items) >= MOST_ITEMS or load.bytes >= BATCH_BYTES:
            self.flush()
            if self._room.held >= self._room.most:
                self._room.shut()
        elif self._timer is None:
            self._timer = self._loop.call_later(_LATENCY, self._late)

    def _late(self) -> None:
        self._timer = None
        self.flush()

    def flush(self) -> None:
        """Send what there is, unless enough is on its way already: then it grows, for larger batches are cheaper, but not in bytes."""
        if self._failed or (self._out >= _OUTSTANDING and self.load.bytes < BATCH_BYTES):
            return
        news = (self.read, self.exhausted)
        if self.load.empty and news == self._written:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        load, self.load = self.load, Load()
        load.read, load.exhausted = self._written = news
        self._out += 1
        self._queue.put(load)

    def _back(self, load: Load) -> None:
        self._out -= 1
        self._room.held -= load.bytes
        self._committed(load)
        now = self.load
        if not now.empty and (len(now.items) >= MOST_ITEMS or now.bytes >= BATCH_BYTES or self._timer is None):
            self.flush()

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._broken(error)

    def hurry(self) -> None:
        """Wait no longer for a store or a sink that cannot be used now; what they take at once is still written."""
        self._give_up.set()

    def abandon(self) -> None:
        """Write nothing more, and do not wait for the store any longer."""
        self._failed = True
        self._give_up.set()

    def close(self) -> None:
        """End the thread; what was flushed is written before."""
        if self._timer is not None:
            self._timer.cancel()
        self._queue.put(None)

    # -- in the writer's thread

    def _run(self) -> None:
        while (load := self._queue.get()) is not None:
            try:
                self._write(load)
            except BaseException as error:  # noqa: BLE001 - a sink may raise anything; the loop is told
                self._tell(self._fail, error)
                del load, error
                return
            self._tell(self._back, load)
            del load

    def _tell(self, callback: Callable[[Any], None], argument: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, argument)
        except RuntimeError:  # the loop is gone: nobody is waiting any more
            return

    def _write(self, load: Load) -> None:
        offset = None if self._sink is None else self._hand_out(self._sink, load, load)
        homes = [self._homecoming(load, parcel) for parcel in load.homes.values()]
        batch = Batch(
            items=load.items,
            attempts=load.attempts,
            checkpoints=load.checkpoints,
            dead_letters=load.letters,
            resolved=load.resolved,
            homes=homes,
            events=load.events,
            read=load.read,
            sink_offset=offset,
            sink_mark=None if self._sink is None else self._sink.mark,
            source_exhausted=load.exhausted,
        )
        persist(lambda: self._store.write(self._lease, batch), "the store", self._give_up)
        if self._sink is not None:
            self._settle(self._sink, load, load)
        for parcel in load.homes.values():
            if parcel.origin.sink is not None:
                self._settle(parcel.origin.sink, load, parcel)

    def _settle(self, sink: Sink, load: Load, parcel: Load | Parcel) -> None:
        late = persist(sink.settle, "the sink", self._give_up)
        if late:
            self._take_back(load, parcel, late)

    def _take_back(self, load: Load, parcel: Load | Parcel, errors: Mapping[int, Exception]) -> None:
        """These are on record as successes, and their outputs could not be kept after all."""
        journeys, letters = [parcel.journeys[place] for place in errors], len(load.letters)
        undone = {journey.seq for journey in journeys}
        self._fail_items(load, parcel, errors)
        homes = [
            Homecoming(
                lease=each.origin.lease,
                items=[],
                undone=[(mended.seq, mended.replayed) for mended in each.undone if mended.replayed in undone],
                failed=[again for again in each.failed if again.replayed in undone],
                sink_offset=None,
                judge=each.origin.judge,
            )
            for each in load.homes.values()
        ]
        batch = Batch(
            undone=sorted(undone),
            items=[row for row in load.items if row.seq in undone],
            dead_letters=load.letters[letters:],
            resolved=[settled for settled in load.resolved if settled.seq in undone],
            homes=homes,
            read=load.read,
            source_exhausted=load.exhausted,
        )
        persist(lambda: self._store.write(self._lease, batch), "the store", self._give_up)

    def _homecoming(self, load: Load, parcel: Parcel) -> Homecoming:
        origin = parcel.origin
        offset = None if origin.sink is None else self._hand_out(origin.sink, load, parcel)
        return Homecoming(
            lease=origin.lease,
            items=parcel.mended,
            failed=parcel.failed,
            sink_offset=offset,
            sink_mark=None if origin.sink is None else origin.sink.mark,
            judge=origin.judge,
        )

    def _hand_out(self, sink: Sink, load: Load, parcel: Load | Parcel) -> int | None:
        while True:
            try:
                return persist(lambda: sink.write(parcel.outputs, parcel.keys), "the sink", self._give_up)  # type: ignore[no-any-return]
            except Refused as some:
                self._fail_items(load, parcel, some.errors)
            except Exception:
                # Who has lost the run need not look for what is wrong with its sink: LeaseLost.
                self._store.beat(self._lease)
                raise

    def _fail_items(self, load: Load, parcel: Load | Parcel, errors: Mapping[int, Exception]) -> None:
        """Have the loop make failures of these successes; the parcel comes back without their outputs."""
        done, wrong = threading.Event(), list[BaseException]()

        def change() -> None:
            try:
                self._refused(load, parcel, errors)
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                wrong.append(error)
            done.set()

        self._tell(lambda _: change(), None)
        while not done.wait(1.0):
            if self._loop.is_closed():
                message = "the run is over"
                raise InterruptedError(message)
        if wrong:
            raise wrong.pop()


def as_row(event: Event) -> EventRow:
    """An event as the store keeps it."""
    return EventRow(
        id=here.get().ids.new(), name=event.name, at_us=to_us(event.ts), run=event.run_id, data=event.as_dict()
    )


def rough(value: Any, depth: int = 3) -> int:
    """
    The bytes of a value in memory, roughly and quickly: of many parts a few are looked at, of objects of a kind that nobody knows the attributes.

    >>> rough("x" * 1000), rough([1.5] * 1000), rough({"rows": ["x" * 1000] * 1000})
    (1048, 32064, 1048192)
    """
    kind = value.__class__
    if kind is str or kind is bytes:
        return 48 + len(value)
    if kind in _SMALL:
        return 32
    if depth == 0:
        return 64
    if kind is dict:
        return 64 + _many(value.values(), len(value), depth - 1) + 64 * len(value)
    if kind in _SEVERAL:
        return 64 + _many(value, len(value), depth - 1)
    try:
        return 64 + memoryview(value).nbytes
    except TypeError:
        pass
    try:
        return 64 + _many(vars(value).values(), len(vars(value)), depth - 1)
    except Exception:  # noqa: BLE001 - whatever it is, it hides what it has
        return 64


def _many(parts: Iterable[Any], count: int, depth: int) -> int:
    some = list(islice(parts, _SOME))
    return sum(rough(part, depth) for part in some) * count // len(some) if some else 0
