"""
Writes finished items: the outputs of a batch to the sink, then all rows of the batch to the store in one transaction.

An item that is not in the store is not finished. A write that fails with a transient error is repeated while the
patience lasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlast.components import Refused
from outlast.errors import ConfigurationError
from outlast.kernel.clock import here
from outlast.settings.checks import show
from outlast.store.records import Changes, EventRow, Homecoming, to_us
from outlast.work.patience import keep_trying

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.components import Sink
    from outlast.kernel.clock import Stop
    from outlast.observe.events import Event
    from outlast.pipeline.engine.item import Item
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


class WriteBatch:
    """The rows and outputs that are written together, and the items that go on when they are in the store."""

    __slots__ = (
        "attempts",
        "checkpoints",
        "events",
        "exhausted",
        "homes",
        "items",
        "keys",
        "letters",
        "marks",
        "outputs",
        "read",
        "recording",
        "resolved",
        "returned",
        "sent",
        "told",
    )

    def __init__(self, read: int = 0, *, exhausted: bool = False) -> None:
        self.items: list[ItemRow] = []
        self.attempts: list[AttemptRow] = []
        self.checkpoints: list[Checkpoint] = []
        self.letters: list[DeadLetterRow] = []
        self.resolved: list[Settled] = []
        self.homes: dict[int, OriginPart] = {}  # what goes to other runs, by their numbers
        self.returned: list[Origin] = []  # the run of each dead letter that this batch settles
        self.events: list[EventRow] = []
        self.outputs: list[Any] = []
        self.keys: list[str] = []
        self.sent: list[Item] = []  # the items of the outputs, if the sink may refuse some
        self.recording: list[Item] = []  # items that go on when their checkpoint is in the store
        self.told: list[Any] = []  # results to deliver when this batch is in the store
        self.read = read  # items read so far
        self.exhausted = exhausted  # whether the source has no more items
        self.marks = (read, exhausted)  # `read` and `exhausted` as the previous batch wrote them

    def of(self, origin: Origin) -> OriginPart:
        """The part that goes to this run."""
        return self.homes.setdefault(origin.record.number, OriginPart(origin))

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        rows = self.items or self.checkpoints or self.letters or self.resolved or self.events or self.attempts
        return not rows and self.marks == (self.read, self.exhausted)

    def following(self) -> WriteBatch:
        """The next batch."""
        return WriteBatch(self.read, exhausted=self.exhausted)


class OriginPart:
    """The part of a batch that goes to the run that its letters come from."""

    __slots__ = ("failed", "keys", "mended", "origin", "outputs", "sent", "undone")

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.mended: list[Mended] = []
        self.failed: list[FailedAgain] = []
        self.undone: list[Mended] = []  # what the sink has refused
        self.outputs: list[Any] = []
        self.keys: list[str] = []
        self.sent: list[Item] = []  # the items of the outputs, if the sink may refuse some


class ItemWriter:
    """Writes the batches of a run, in the thread of a `BatchWriter`."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        sink: Sink | None,
        refused: Callable[[WriteBatch, WriteBatch | OriginPart, Mapping[int, Exception]], None],
        give_up: Stop,
    ) -> None:
        """`refused` makes failures of outputs that a sink does not take; `give_up` ends the waits."""
        self._store = store
        self._lease = lease
        self._sink = sink
        self._refused = refused
        self._give_up = give_up

    def write(self, batch: WriteBatch) -> None:
        """Outputs to the sinks, then all of it to the store."""
        offset = None if self._sink is None else self._hand_out(self._sink, batch, batch)
        homes = [self._homecoming(batch, part) for part in batch.homes.values()]
        rows = Changes(
            items=batch.items,
            attempts=batch.attempts,
            checkpoints=batch.checkpoints,
            dead_letters=batch.letters,
            resolved=batch.resolved,
            homes=homes,
            read=batch.read,
            sink_offset=offset,
            sink_mark=None if self._sink is None else self._sink.mark,
            source_exhausted=batch.exhausted,
        )
        if batch.events:  # before the batch: what began has begun, whatever comes of this
            keep_trying(lambda: self._store.add_events(batch.events, self._lease), "the store", self._give_up)
        keep_trying(lambda: self._store.write(self._lease, rows), "the store", self._give_up)
        if self._sink is not None:
            self._settle(self._sink, batch, batch)
        for part in batch.homes.values():
            if part.origin.sink is not None:
                self._settle(part.origin.sink, batch, part)

    def _settle(self, sink: Sink, batch: WriteBatch, part: WriteBatch | OriginPart) -> None:
        late = keep_trying(sink.settle, "the sink", self._give_up)
        if late:
            self._take_back(sink, batch, part, late)

    def _take_back(
        self, sink: Sink, batch: WriteBatch, part: WriteBatch | OriginPart, errors: Mapping[int, Exception]
    ) -> None:
        """These are on record as successes, and their outputs could not be kept after all."""
        _understood(sink, part, errors)
        items, letters = [part.sent[place] for place in errors], len(batch.letters)
        undone = {item.seq for item in items}
        self._refused(batch, part, errors)
        homes = [
            Homecoming(
                lease=each.origin.lease,
                items=[],
                undone=[(mended.seq, mended.replayed) for mended in each.undone if mended.replayed in undone],
                failed=[again for again in each.failed if again.replayed in undone],
                sink_offset=None,
                judge=each.origin.judge,
            )
            for each in batch.homes.values()
        ]
        rows = Changes(
            undone=sorted(undone),
            items=[row for row in batch.items if row.seq in undone],
            dead_letters=batch.letters[letters:],
            resolved=[settled for settled in batch.resolved if settled.seq in undone],
            homes=homes,
            read=batch.read,
            source_exhausted=batch.exhausted,
        )
        keep_trying(lambda: self._store.write(self._lease, rows), "the store", self._give_up)

    def _homecoming(self, batch: WriteBatch, part: OriginPart) -> Homecoming:
        origin = part.origin
        offset = None if origin.sink is None else self._hand_out(origin.sink, batch, part)
        return Homecoming(
            lease=origin.lease,
            items=part.mended,
            failed=part.failed,
            sink_offset=offset,
            sink_mark=None if origin.sink is None else origin.sink.mark,
            judge=origin.judge,
        )

    def _hand_out(self, sink: Sink, batch: WriteBatch, part: WriteBatch | OriginPart) -> int | None:
        while True:
            try:
                return keep_trying(lambda: sink.write(part.outputs, part.keys), "the sink", self._give_up)  # type: ignore[no-any-return]
            except Refused as some:
                _understood(sink, part, some.errors)
                self._refused(batch, part, some.errors)
            except Exception:
                # If the lease is lost, that is the error: LeaseLost.
                self._store.beat(self._lease)
                raise


def _understood(sink: Sink, part: WriteBatch | OriginPart, errors: Any) -> None:
    """Complain unless these are outputs of the part, each with what is wrong with it, of a sink that may say so."""
    what = f"expected the sink {type(sink).__name__} to"
    if not sink.refuses:
        raise ConfigurationError(f"{what} have refuses = True, because it refuses single outputs, got: False.")
    places = range(len(part.sent))
    if not isinstance(errors, Mapping) or not all(
        place in places and isinstance(error, Exception) for place, error in errors.items()
    ):
        message = f"{what} name the outputs that it refuses by a mapping from their places in the batch to exceptions, got: {show(errors)}."
        raise ConfigurationError(message)


def as_row(event: Event) -> EventRow:
    """An event as the store keeps it."""
    return EventRow(
        id=here.get().ids.new(), name=event.name, at_us=to_us(event.ts), run=event.run_id, data=event.as_dict()
    )
