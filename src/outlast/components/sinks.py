"""
The base class of all sinks, and the sink for a callable.

A sink writes a batch before the store commits it; until then its rows do not count. The commit records the sink's
offset. When a run goes on, whatever is in the sink beyond the recorded offset was never committed, and the sink removes
it. So each output is there exactly once, whenever the process dies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError, PermanentFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from outlast.store.records import SinkClaim


class Refused(PermanentFailure):
    """
    Some outputs of a batch can never be written: their places in it, each with what is wrong. Nothing was written.
    """

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        super().__init__(f"{len(errors)} outputs cannot be written", error_class="validation_error")
        self.errors = errors


class Busy(ConfigurationError):
    """Another process or run writes to the same sink now."""


class Sink(ABC):
    """
    Takes the outputs of one batch at a time, in the writer's thread, before the batch is committed. It never tries
    again by itself.
    """

    name: str | None = None  # where outputs go, for the record; None if that cannot be compared
    refuses = True  # whether single outputs may be refused, by `write` or by `settle`; False keeps less in memory
    place: Path | None = None  # the file that outputs go to
    others: Sequence[SinkClaim] = ()  # what other runs have in it by the store's word; `open` takes nothing of it away

    def encode(self, value: Any) -> Any:
        """The output as it will be written; raises for one that cannot be."""
        return value

    def look_for(self, offset: int | None) -> None:  # noqa: B027 - not every sink can be gone
        """Raise if nothing is there although an earlier pass has committed so much; nothing is made."""

    def claim(self) -> None:  # noqa: B027 - not every sink has something to do here
        """
        Acquire what only one process can hold, or raise `Busy`. Called before the lease is taken, so that a process
        that cannot write does not take the lease away from one that can. `close` releases it.
        """

    def open(  # noqa: B027 - as above
        self,
        offset: int | None,
        *,
        run: str,
        token: int,
        alone: bool = True,
        settled: bool | None = None,
        mark: str | None = None,
    ) -> None:
        """
        Prepare to write. `offset` is what earlier passes of this run have committed, `token` that of this pass's lease.
        Not `alone`: the previous owner of the lease has not given it back and may live, so what it writes from now on
        must do no harm. `settled`: everything that this run has written is committed, so whatever else is there belongs
        to another run; None if only the mark can tell. `mark` was recorded with the offset: a sink that does not fit it
        is another one, and is refused before anything is changed.
        """

    @property
    def mark(self) -> str | None:
        """
        What identifies the sink at the offset that the last `write` returned; the commit records it. It begins with
        that offset.
        """
        return None

    def left(self) -> str | None:
        """The mark of a sink that nothing more is written to, once everything is committed that was."""
        return self.mark

    @abstractmethod
    def write(self, outputs: Sequence[Any], keys: Sequence[str]) -> int | None:
        """
        Write what `encode` made; the offset that the commit is to record. Writing the same batch once more changes
        nothing.
        """

    def settle(self) -> Mapping[int, Exception] | None:
        """
        The batch is committed. Calling it twice changes nothing. Returns the outputs that could not be kept after all,
        by their place in the batch: their items have failed. If that answer is lost, their keys are in `returned` after
        the next `open`.
        """
        return None

    returned: Sequence[str] = ()  # keys of items, once it is open: on record, and not here

    def finish(self) -> None:  # noqa: B027 - not every sink has something to do here
        """The run is over. A resume or a replay may still add to the sink later."""

    @property
    def waits(self) -> str | None:
        """Where outputs are that no one can read before the run is over."""
        return None

    def close(self) -> None:  # noqa: B027 - not every sink has something to do here
        """Let everything go."""


def spool_of(path: Path) -> Path:
    """The file in which the outputs for this one wait, if it can only be made at the end."""
    return path.with_name(f"{path.name}.spool")


class Batched(list[Any]):
    """
    The outputs that a callable sink is handed; `keys` are those of their items, to tell what came before from what is
    new.
    """

    keys: tuple[str, ...] = ()


class CallableSink(Sink):
    """
    A callable: it is handed each batch before that is committed, so after a crash it may see outputs again, with the
    same keys.
    """

    refuses = False

    def __init__(self, take: Callable[[Any], object]) -> None:
        self._take = take
        self._taken: object = None  # a batch whose commit failed is not handed over twice

    def write(self, outputs: Sequence[Any], keys: Sequence[str]) -> int | None:
        if outputs and self._taken is not outputs:
            batch = Batched(outputs)
            batch.keys = tuple(keys)
            self._take(batch)
            self._taken = outputs
        return None

    def settle(self) -> None:
        self._taken = None
