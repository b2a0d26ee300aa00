"""
Parquet files, read and written.

A Parquet file cannot be appended to, and is of no use before its last byte is written. So the rows of each committed
batch are appended to a spool beside it, as files of lines are, and when the run is over the spool becomes one Parquet
file:

    out.parquet.spool   "OUTLAST1", the offset at which it begins (8 bytes), then for each batch its length (8 bytes)
                        and an Arrow IPC stream
    out.parquet         written under another name, flushed, renamed; its metadata say up to which offset it has rows

Offsets count all bytes of batches that were ever appended. A file that covers offset C and a spool that begins at B ≤ C
together hold every committed row once, whenever the process died: the rows are those of the file, and those of the
spool from C on. A run that goes on after its end begins a new spool at C, and at its next end the file is written anew
from both. Both are identified when the run goes on: the file by its footer, the spool by its last bytes and by the file
before it.
"""

from __future__ import annotations

import io
import json
import os
import struct
from glob import escape
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from outlast.components import columns
from outlast.components.arrow import SLICE, library, python
from outlast.components.lines import FileSink, Mark, flush_folder
from outlast.components.reading import broken_source
from outlast.components.sinks import spool_of
from outlast.components.values import row_of, tell, unfit
from outlast.errors import ConfigurationError, PermanentFailure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_MAGIC = b"OUTLAST1"
_HEAD = 16
_LENGTH = struct.Struct("<q")
_SCHEMA = 1 << 16  # bytes in which the schema of a batch is usually found
_GROUP = (131_072, 64 << 20)  # rows and bytes of a row group
_READ = 1 << 20  # bytes that a column is read ahead
_MARKS = 10_000  # shapes of rows that are remembered
_FILE = "file"  # in a mark: the Parquet file has all that counts
_SHAPE = b"outlast_shape"  # metadata of a batch: what all rows up to this one are like


# -- reading --------------------------------------------------------------------------------------------------------------------


def read(path: Path) -> Iterator[list[Any]]:
    """The rows of a file in lists."""
    pa = library("a Parquet file")
    done = 0
    try:
        with _opened(path) as file:
            for batch in file.iter_batches(batch_size=SLICE):
                yield from python(batch, done, path.name)
                done += len(batch)
    except (pa.ArrowException, OSError) as wrong:
        message = f"{path.name} is cut off or damaged after {done} rows: {str(wrong).splitlines()[0]}"
        raise broken_source(message) from None


def unpacked_size(path: Path, most: int) -> int:
    """How many bytes the rows have in memory, counted up to `most` and one batch. `read` reports damaged files."""
    pa = library("a Parquet file")
    size = 0
    try:
        with _opened(path) as file:
            told = file.metadata
            size = int(sum(told.row_group(number).total_byte_size for number in range(told.num_row_groups)))
            if size > most:  # before any page of it is unpacked
                return size
            size = 0
            for batch in file.iter_batches(batch_size=SLICE):
                size += int(batch.nbytes)
                if size > most:
                    break
    except (pa.ArrowException, OSError):
        return 0
    return size


_KINDS = {str: "string", int: "int64", float: "float64", bool: "bool", bytes: "binary"}


def table_bytes(rows: list[dict[str, Any]], kinds: Mapping[str, type]) -> bytes | None:
    """Rows with these columns, each of one of the types in `_KINDS`, as Parquet; None where pyarrow is not installed."""
    try:
        pa, pq = library("rows"), _parquet()
    except ConfigurationError:
        return None
    names = list(rows[0])
    schema = pa.schema([(name, getattr(pa, _KINDS[kinds[name]])()) for name in names])
    try:
        table = pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowException, UnicodeError):  # a half of a surrogate pair, for one
        return None
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def rows_of_bytes(data: bytes) -> list[dict[str, Any]]:
    """The rows that `table_bytes` was given."""
    found: list[dict[str, Any]] = _parquet().read_table(io.BytesIO(data)).to_pylist()
    return found


def count(path: Path) -> int:
    """How many rows the file has, by its own word."""
    with _opened(path) as file:
        return int(file.metadata.num_rows)


def _parquet() -> Any:
    library("a Parquet file")
    from pyarrow import parquet  # type: ignore[import-untyped]

    return parquet


def _opened(path: Path) -> Any:
    parquet = _parquet()
    # Pages as they are needed: a row group may be all there is.
    return parquet.ParquetFile(path, buffer_size=_READ, pre_buffer=False)


def _footer(path: Path) -> bytes:
    """
    The end of a file, which says where everything in it is and between which values: of another file it is another one.
    """
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        return blake2b(file.read(length), digest_size=16).digest()


# -- writing --------------------------------------------------------------------------------------------------------------------


class Parquet(FileSink):
    """One Parquet file, once the run is over."""

    _mode = 0o600  # of the spool, which is nobody else's

    def __init__(self, path: Path) -> None:
        self._pa = library("a Parquet file as a sink")
        super().__init__(spool_of(path))
        self.name = str(path)
        self._target = self.place = path.absolute()
        self._run = ""
        self._token = 0
        self._seen: tuple[int, int, int] | None = None  # which file had the name of the target
        self._shape: Any = None  # of all rows that were taken
        # Shapes of rows that it has room for, and whether they have structures without fields.
        self._marks: dict[Any, bool] = {}
        self._begin = 0  # the offset at which the spool begins
        self._covered = 0  # the offset up to which the file has everything
        self._footer = b""  # that of the file
        self._begins = _HEAD

    # -- opening

    def claim(self) -> None:
        super().claim()
        self._real.parent.mkdir(parents=True, exist_ok=True)

    @property
    def _real(self) -> Path:
        """Where the file is: its name may be a link, which stays one."""
        return self._target.resolve()

    def look_for(self, offset: int | None) -> None:
        if offset and not self._path.exists() and not self._target.exists():
            raise self._too_short(offset, "no such file")

    def open(  # the file says itself which run has made it
        self,
        offset: int | None,
        *,
        run: str,
        token: int,
        alone: bool = True,
        settled: bool | None = None,  # noqa: ARG002 - as above
        mark: str | None = None,
    ) -> None:
        self._run, self._token = run, token
        self.claim()
        try:
            self._go_on(offset, Mark.of(mark, offset), alone=alone)
        except BaseException:
            self._leave()
            raise

    def _go_on(self, offset: int | None, known: Mark, *, alone: bool) -> None:
        size = os.fstat(self._file).st_size
        self._seen = self._state()
        there = self._seen is not None
        # A head alone is what somebody left who died before the store knew of it.
        if offset is None and (there or size > _HEAD):
            raise self._not_new(self._target.stat().st_size if there else size)
        offset = offset or 0
        self._covered, self._footer = (self._covers(), _footer(self._target)) if there else (0, b"")
        self._begin = self._beginning(size)
        whole = self._covered == offset and (there or not offset)
        self._spare(0 if whole else offset, size, self._begin)
        if whole:  # the file has all of it: whatever is spooled is of no use
            self._begin, size = self._covered, 0
        have = self._begin + max(0, size - _HEAD)
        if not self._begin <= self._covered <= offset <= max(have, self._covered):
            raise self._too_short(offset, have)
        self._compare(known, offset, in_file=self._covered == offset)
        if not alone:
            self._renew(size, self._token)
        if size < _HEAD:
            self._begin = self._covered
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, _MAGIC + _LENGTH.pack(self._begin), 0)
            os.fsync(self._file)
        self._cut(_HEAD + offset - self._begin, max(size, _HEAD))
        self._learn(there=there)

    def _compare(self, known: Mark, offset: int, *, in_file: bool) -> None:
        """
        What is there is what the mark says. Who died after making the file had no time to mark it: then the file's own
        word must do.
        """
        if not known.digest or not offset or in_file != (known.kind == _FILE):
            return
        if known.digest != self._digest(b"" if in_file else self._tail_at(_HEAD + offset - self._begin)):
            raise self._other_file() if in_file else self._another(offset)

    def _digest(self, tail: bytes) -> str:
        return blake2b(self._footer + tail, digest_size=16).hexdigest()

    def _digests(self, tail: bytes) -> set[str]:
        return {self._digest(tail), blake2b(tail, digest_size=16).hexdigest()}  # another run has gone on from no file

    @property
    def mark(self) -> str | None:
        offset = self._begin + self._written - _HEAD
        in_file = self._covered == offset and self._footer != b""
        return str(Mark(offset, self._digest(b"" if in_file else self._next_tail), _FILE if in_file else ""))

    def left(self) -> str | None:
        return self.mark

    def _covers(self) -> int:
        """Up to which offset the Parquet file has everything."""
        try:
            with _opened(self._target) as file:
                said = json.loads((file.metadata.metadata or {}).get(b"outlast", b"{}"))
        except (self._pa.ArrowException, OSError, ValueError):
            said = {}
        if said.get("run") != self._run:
            raise self._other_file()
        return int(said["offset"])

    def _other_file(self) -> ConfigurationError:
        message = f"expected {self._target} to be as this run has left it, got: another file. Put it back, or begin a new run with another run_key."
        return ConfigurationError(message)

    def _beginning(self, size: int) -> int:
        if size < _HEAD:
            return self._covered
        head = os.pread(self._file, _HEAD, 0)
        if head[:8] != _MAGIC:
            raise self._not_new(size)
        return int(_LENGTH.unpack(head[8:])[0])

    def _learn(self, *, there: bool) -> None:
        """Find out which columns there are already: the last batch says it for all before it, and so does the file."""
        frames, pa = list(self._frames()), self._pa
        schema = None
        if there:
            with _opened(self._target) as file:
                schema = file.schema_arrow
        last = self._schema_at(*frames[-1]) if frames else schema
        if last is None:
            return
        said = (last.metadata or {}).get(_SHAPE)
        if said is None:  # of an earlier version, which made one schema of all in this way
            schemas = [schema.remove_metadata()] if schema is not None else []
            schemas += [self._schema_at(*frame) for frame in frames]
            made = pa.unify_schemas(schemas, promote_options="permissive")
            self._shape = columns.shape_in(pa, pa.struct(list(made))) if len(made) else None
        else:
            self._shape = columns.read(said)

    def _schema_at(self, at: int, length: int) -> Any:
        ipc = self._pa.ipc
        try:
            return ipc.open_stream(os.pread(self._file, min(length, _SCHEMA), at)).schema
        except (self._pa.ArrowException, OSError, EOFError):
            return ipc.open_stream(os.pread(self._file, length, at)).schema

    # -- the rows of a batch

    def encode(self, value: Any) -> dict[str, Any]:
        where = self._target.name
        row = row_of(value, where)
        try:
            known: dict[str, Any] = tell(row, columns.NATIVE)
            shape = columns.shape_of(known)
            hollow = self._marks.get(shape)
            if hollow is None:
                bare = columns.bare(shape)
                hollow = bare is not shape
                self._shape = columns.join(self._shape, bare)
                if len(self._marks) >= _MARKS:
                    self._marks.clear()
                self._marks[shape] = hollow
            if hollow:
                known = columns.filled(known)
        except (TypeError, ValueError, OverflowError, RecursionError) as wrong:
            raise unfit(where, _why(wrong)) from None
        return known

    def _batch(self, outputs: Sequence[dict[str, Any]]) -> bytes:
        if not outputs:
            return b""
        pa, shape = self._pa, self._shape  # which may grow meanwhile: the rows that it grows for are not among these
        kind = columns.arrow_type(pa, shape)
        batch = pa.RecordBatch.from_struct_array(pa.array(outputs, type=kind))
        schema = batch.schema.with_metadata({_SHAPE: columns.written(shape)})
        buffer = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd" if pa.Codec.is_available("zstd") else None)
        with pa.ipc.new_stream(buffer, schema, options=options) as stream:
            stream.write_batch(batch.replace_schema_metadata(schema.metadata))
        data = buffer.getvalue()
        return _LENGTH.pack(len(data)) + bytes(data)

    def write(self, outputs: Sequence[Any], keys: Sequence[str]) -> int | None:
        end = super().write(outputs, keys)
        return None if end is None else self._begin + end - _HEAD

    # -- the end

    @property
    def waits(self) -> str | None:
        return str(self._path) if self._file >= 0 and self._offset > _HEAD else None

    def finish(self) -> None:
        self._look()
        offset = self._begin + self._offset - _HEAD
        if not (self._covered == offset and self._target.exists()):
            # Of each pass its own: one who was thought to be dead may be busy with another.
            real = self._real
            partial = real.with_name(f"{real.name}.{self._token}.partial")
            self._build(partial, offset)
            self._look()
            partial.replace(real)
            self._seen = self._state()
            flush_folder(real.parent)
            self._covered, self._footer = offset, _footer(self._target)
        for left in self._real.parent.glob(f"{escape(self._real.name)}.*.partial"):  # of passes that died
            left.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)  # what it had is in the file; the metadata say so, should this not happen
        self.close()

    def _look(self) -> None:
        super()._look()
        if self._state() != self._seen:
            message = (
                f"expected {self._target} to be as this run has left it, got: {'another file' if self._target.exists() else 'none'}. "
                f"What the run has made waits in {self._path}: move the other one away."
            )
            raise PermanentFailure(message, error_class="data_error")

    def _state(self) -> tuple[int, int, int] | None:
        """Which file has the name of the target."""
        try:
            there = self._target.stat()
        except FileNotFoundError:
            return None
        return there.st_dev, there.st_ino, there.st_size

    def _build(self, partial: Path, offset: int) -> None:
        from pyarrow import parquet  # pyright: ignore[reportMissingTypeStubs]

        pa = self._pa
        shape = self._shape
        said = {"outlast": json.dumps({"run": self._run, "offset": offset}), _SHAPE: columns.written(shape)}
        schema = pa.schema(list(columns.arrow_type(pa, shape or ("struct", ())))).with_metadata(said)
        with partial.open("wb") as file:
            with parquet.ParquetWriter(file, schema) as writer:
                group, rows, size = [], 0, 0
                for batch in self._batches():
                    fitted = self._fitted(batch, schema)
                    group.append(fitted)
                    rows, size = rows + len(fitted), size + fitted.nbytes
                    if rows >= _GROUP[0] or size >= _GROUP[1]:
                        writer.write_table(pa.Table.from_batches(group), row_group_size=rows)
                        group, rows, size = [], 0, 0
                if group:
                    writer.write_table(pa.Table.from_batches(group), row_group_size=rows)
            file.flush()
            os.fsync(file.fileno())

    def _batches(self) -> Iterator[Any]:
        if self._covered and self._target.exists():
            with _opened(self._target) as file:
                yield from file.iter_batches(batch_size=16 * SLICE)
        for at, length in self._frames():
            yield from self._pa.ipc.open_stream(os.pread(self._file, length, at))

    def _frames(self) -> Iterator[tuple[int, int]]:
        """Where the batches are that the Parquet file does not have."""
        at = _HEAD + self._covered - self._begin
        while at < self._offset:
            (length,) = _LENGTH.unpack(os.pread(self._file, 8, at))
            yield at + 8, length
            at += 8 + length

    def _fitted(self, batch: Any, schema: Any) -> Any:
        """The batch with these columns. Every value has room in them, so nothing is changed."""
        pa = self._pa
        made = []
        for field in schema:
            if field.name not in batch.schema.names:
                made.append(pa.nulls(len(batch), field.type))
                continue
            column = batch.column(field.name)
            if column.type != field.type:
                try:
                    column = column.cast(field.type)
                except pa.ArrowException:  # of structures one has more fields; whole numbers become exact ones
                    column = self._retyped(column, field.type)
            made.append(column)
        return pa.RecordBatch.from_arrays(made, schema=schema)

    def _retyped(self, column: Any, kind: Any) -> Any:
        try:
            return self._pa.array(column.to_pylist(), type=kind)
        except self._pa.ArrowException:  # of an earlier version, which took numbers that do not fit together
            return column.cast(kind, safe=False)


def _why(wrong: Exception) -> str:
    return "a text that is not Unicode" if isinstance(wrong, UnicodeError) else str(wrong) or type(wrong).__name__
