"""
What a run is asked to do, before it begins: a value without state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from outlast.pipeline.stages import annotations_of
from outlast.store.codec import types_in
from outlast.store.records import StageMark
from outlast.work.memory import MOST_BYTES
from outlast.work.writer import BatchLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from outlast.kernel.aliases import StopReason
    from outlast.pipeline.record.books import Bounds
    from outlast.pipeline.stages import Stage
    from outlast.pipeline.view import RunView
    from outlast.sharing.contact import Commons
    from outlast.store import Store
    from outlast.store.codec import Codec

OnItemError = Literal["dlq", "collect", "stop"]
OnChange = Literal["stop", "keep", "redo"]


class Keeps(Protocol):
    """Where a run is kept: an app's `Home`, or the temporary one of a test."""

    @property
    def name(self) -> str: ...
    @property
    def store(self) -> Store: ...
    @property
    def codec(self) -> Codec: ...
    @property
    def commons(self) -> Commons: ...
    def tidy(self, store: Store, began: datetime, /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Sizes and times of the parts of a run. Nearly every run is well served by these; tests choose others."""

    batches: BatchLimits = field(default_factory=BatchLimits)
    memory: int = MOST_BYTES  # of values that are finished and not on record
    chunk: int = 256  # items that are read at a time
    grace: float = 25.0  # seconds that attempts may still take once the run was asked to end
    threads: int = 256
    blocked: float = 0.1  # seconds after which a source is not waited for if a signal comes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a run of a pipeline is asked to do, except for its source."""

    name: str
    stages: tuple[Stage[..., Any, Any], ...]
    home: Keeps
    bounds: Bounds
    run_key: str | None = None
    kind: Literal["run", "replay"] = "run"
    item_key: str | Callable[[Any], str] | None = None
    sink: object = None
    ordered: bool = False
    audit: Literal["all", "failures"] = "all"
    on_item_error: OnItemError = "dlq"
    on_change: OnChange = "stop"
    breaker_rounds: int = 3
    from_start: bool = False
    reopens_failed: bool = False  # of a run that failed: items without a dead letter run again
    keep_outputs: bool = True
    provided: Mapping[Any, Any] = field(default_factory=dict)
    watch: Callable[[RunView], None] | None = None
    tuning: Tuning = field(default_factory=Tuning)
    window: int | None = None  # how many items may be in hand, if not as many as the stages can use
    expected: Callable[[], int | None] = lambda: None  # how many items there are, as far as that is known
    # What an item is known by to services, from its key, where that outlives the run. Else it is its place in the run.
    known_by: Callable[[str], str] | None = None
    # Outputs of items that an earlier run did, by their keys: this one only records them, and calls no stage.
    carried: Mapping[str, Any] = field(default_factory=dict)
    # In a durable job: the seconds until it is retried for an item that gave up on an error, or why it is not.
    follows: Callable[[Exception, StopReason], float | StopReason] | None = None
    target: str | None = None  # where the pipeline's code is, as the command line takes it, if that is known

    @property
    def marks(self) -> tuple[StageMark, ...]:
        """The stages as the store knows them."""
        return tuple(StageMark(stage.name, stage.version, stage.checkpoint) for stage in self.stages)

    def types(self) -> dict[str, type]:
        """The classes that the stages' annotations name, for what comes back from the store."""
        return types_in(*(hint for stage in self.stages for hint in annotations_of(stage.fn)))
