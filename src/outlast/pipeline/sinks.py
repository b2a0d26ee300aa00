"""
Where outputs go: a file of lines that holds each of them exactly once, a callable, or the store itself.

A file is written before the batch is committed, and the commit records how many of its bytes count. Whatever stands behind them when a
run goes on was never committed, and is cut off. So the file is exact whenever the process dies.
"""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from outlast.errors import ConfigurationError, PermanentFailure
from outlast.pipeline.keys import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_to_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=plain).encode


class Sink(Protocol):
    """Takes the outputs of one batch at a time, in the writer's thread, before the batch is committed."""

    name: str | None

    def encode(self, value: Any) -> Any:
        """The output as it will be written; raises for one that cannot be."""
        ...

    def open(self, offset: int | None) -> None:
        """Get ready; `offset` is what an earlier pass has committed."""
        ...

    def write(self, outputs: Sequence[Any], keys: Sequence[str]) -> int | None:
        """Write what `encode` made; the offset that the commit is to record. Writing the same batch once more changes nothing."""
        ...

    def settle(self) -> None:
        """The batch is committed."""
        ...

    def close(self) -> None: ...


def open_sink(sink: object) -> Sink | None:
    """The sink for what a user gave; None keeps the outputs in the store."""
    if sink is None:
        return None
    if isinstance(sink, str | Path):
        suffix = Path(sink).suffix.lower()
        if suffix in {".jsonl", ".ndjson"}:
            return Lines(Path(sink))
        if suffix in {".csv", ".tsv"}:
            return Rows(Path(sink))
        message = f"expected a sink that ends in .jsonl, .ndjson, .csv or .tsv, got: {Path(sink).name}."
        raise ConfigurationError(message)
    if callable(sink):
        return Handed(sink)
    message = f"expected sink to be a path, a callable or None, got: a value of type {type(sink).__name__}."
    raise ConfigurationError(message)


class Lines:
    """A file of JSON Lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name: str | None = str(path)
        self._file = -1
        self._offset = 0
        self._written = 0  # the offset after the batch that is being committed

    def encode(self, value: Any) -> bytes:
        try:
            return (_to_json(value) + "\n").encode()
        except (TypeError, ValueError, RecursionError) as wrong:
            message = f"the output cannot be written to {self._path.name}: {wrong}"
            raise PermanentFailure(message, error_class="validation_error") from wrong

    def open(self, offset: int | None) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            size = os.fstat(self._file).st_size
            if offset is None and size:
                message = (
                    f"expected the sink {self._path} to be new or empty, got: {size} bytes that no run of this key has written. "
                    "Choose another file, or move this one away."
                )
                raise ConfigurationError(message)
            if offset is not None and size < offset:
                message = (
                    f"expected the sink {self._path} to hold at least the {offset} bytes that were committed, got: {size}. "
                    "It was changed since: put it back, or begin a new run with another run_key."
                )
                raise ConfigurationError(message)
            self._offset = self._written = offset or 0
            if size > self._offset:
                os.ftruncate(self._file, self._offset)
                os.fsync(self._file)
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # another operating system: the lease on the run has to be enough
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            message = f"expected the sink {self._path} to be free, got: another process writes to it."
            raise ConfigurationError(message) from None

    def write(self, outputs: Sequence[bytes], keys: Sequence[str]) -> int | None:  # noqa: ARG002 - a file has no keys
        at = self._offset
        data = memoryview(b"".join(self._batch(outputs)))
        end = at + len(data)
        while data:  # at a place of its own: writing it once more after a failed commit gives the same file
            done = os.pwrite(self._file, data, at)
            data, at = data[done:], at + done
        if end != self._offset:
            getattr(os, "fdatasync", os.fsync)(self._file)  # not every system has the cheaper one
        self._written = end
        return end

    def _batch(self, outputs: Sequence[bytes]) -> Sequence[bytes]:
        return outputs

    def settle(self) -> None:
        self._offset = self._written

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Rows(Lines):
    """A file of comma- or tab-separated values, with the columns of the first row."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        self._columns: list[str] | None = None

    def open(self, offset: int | None) -> None:
        super().open(offset)
        if offset:
            with self._path.open(newline="", encoding="utf-8") as lines:
                self._columns = next(csv.reader(lines, delimiter=self._delimiter))

    def encode(self, value: Any) -> bytes:
        row = value if isinstance(value, dict) else _columns_of(value, self._path)
        if self._columns is None:
            self._columns = [str(name) for name in row]
        columns = self._columns
        if len(row) != len(columns) or any(name not in row for name in columns):
            message = (
                f"the output has the columns {', '.join(map(str, row))}, but {self._path.name} has {', '.join(columns)}"
            )
            raise PermanentFailure(message, error_class="validation_error")
        return self._line([_cell(row[name]) for name in columns])

    def _batch(self, outputs: Sequence[bytes]) -> Sequence[bytes]:
        if self._offset or not outputs or self._columns is None:
            return outputs
        return [self._line(self._columns), *outputs]

    def _line(self, cells: Sequence[Any]) -> bytes:
        text = io.StringIO()
        csv.writer(text, delimiter=self._delimiter, lineterminator="\n").writerow(cells)
        return text.getvalue().encode()


def _columns_of(value: Any, path: Path) -> dict[str, Any]:
    try:
        row = plain(value)
    except TypeError:
        row = None
    if not isinstance(row, dict):
        message = f"the output cannot be a row of {path.name}: it is a {type(value).__name__}, which has no columns"
        raise PermanentFailure(message, error_class="validation_error")
    return row


def _cell(value: Any) -> Any:
    return _to_json(value) if isinstance(value, dict | list | tuple) else value


class Batched(list[Any]):
    """The outputs that a callable sink is handed; `keys` are those of their items, to tell what came before from what is new."""

    keys: tuple[str, ...] = ()


class Handed:
    """A callable: it is handed each batch before that is committed, so after a crash it may see outputs again, with the same keys."""

    name: str | None = None

    def __init__(self, take: Callable[[Any], object]) -> None:
        self._take = take
        self._taken: object = None  # a batch whose commit failed is not handed over twice

    def encode(self, value: Any) -> Any:
        return value

    def open(self, offset: int | None) -> None:
        pass

    def write(self, outputs: Sequence[Any], keys: Sequence[str]) -> int | None:
        if outputs and self._taken is not outputs:
            batch = Batched(outputs)
            batch.keys = tuple(keys)
            self._take(batch)
            self._taken = outputs
        return None

    def settle(self) -> None:
        self._taken = None

    def close(self) -> None:
        pass
