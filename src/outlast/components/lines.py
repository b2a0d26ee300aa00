"""
Files of lines, read and written: JSON Lines, and comma- or tab-separated values, also compressed.

A line that cannot be read is an item too, a broken one: it ends as a dead letter and does not stop the other items. Of
a file that is written, the store knows how many bytes are committed; when a run goes on, the bytes after these are cut
off. A digest of the last committed bytes is in the store too, so another file of the same size is not taken for this
one.
"""

from __future__ import annotations

import json
import os
import re
from abc import abstractmethod
from codecs import BOM_UTF8
from contextlib import suppress
from hashlib import blake2b
from stat import S_ISDIR, S_ISFIFO, S_ISSOCK
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.components import csvs
from outlast.components.csvs import TABLES, delimiter_of
from outlast.components.packed import inner, is_damage, opened, packer
from outlast.components.reading import broken_item, broken_source
from outlast.components.sinks import Busy, Sink
from outlast.components.values import json_text, row_of, tell, unfit
from outlast.errors import ConfigurationError, PermanentFailure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from outlast.store.records import SinkClaim

JSON_LINES = (".jsonl", ".ndjson")
_PIECE = 1 << 20
QUOTE = '"'
_TAIL = 256  # bytes at the end of what counts by which a file is known again
_WHOLE = "whole"  # in a mark: behind what counts there is nothing


# -- reading --------------------------------------------------------------------------------------------------------------------


def read(
    path: Path, delimiter: str | None = None, encoding: str | None = None, *, kind: str | None = None
) -> Iterator[Any]:
    """
    The items of a file; how a table is written is asked for there only. `kind` is the ending of files of its kind, where
    its name does not have it.
    """
    ending = kind or inner(path)
    if ending in TABLES and ending != inner(path):
        delimiter = delimiter or ("\t" if ending == ".tsv" else ",")
    items = csvs.read(path, delimiter, encoding) if ending in TABLES else _json_lines(path)
    count = 0
    try:
        for item in items:
            yield item
            count += 1
    except Exception as wrong:
        if not is_damage(wrong):
            raise
        message = f"{path.name} is cut off or damaged after {count} items: {wrong}. Put the whole file there."
        raise broken_source(message) from None


def _json_lines(path: Path) -> Iterator[Any]:
    encoding = csvs.encoding_of(path)
    if encoding not in {None, "utf-8-sig"}:
        what = "bytes that are zero" if encoding == "?" else encoding.upper() if encoding else ""
        message = f"expected {path.name} to be UTF-8, as JSON Lines are, got: {what}. Convert it first, as with iconv."
        raise ConfigurationError(message)
    with opened(path) as lines:
        begun = False
        for number, line in enumerate(lines, 1):
            if line.isspace():
                continue
            if not begun and inner(path) == ".json" and line.removeprefix(BOM_UTF8).lstrip().startswith(b"["):
                raise ConfigurationError(
                    f"expected {path.name} to hold JSON Lines, one value a line, got: an array. Write each element to a line of its own, "
                    f"as jq -c '.[]' does. If each line is an item that is an array, have its name end in .jsonl."
                )
            begun = True
            try:
                yield _from_json(line.removeprefix(BOM_UTF8).decode(errors="surrogatepass"))
            except (ValueError, RecursionError) as wrong:  # not JSON, not even text, or too deep
                text = line.decode(errors="backslashreplace").rstrip("\r\n")
                yield broken_item(text, f"{path.name} line {number}: {wrong}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):  # Python would keep the last one, and lose the others in silence
        twice = next(name for place, (name, _) in enumerate(pairs) if any(name == other for other, _ in pairs[:place]))
        raise ValueError(f"two values have the name {twice!r}")
    return made


_from_json = json.JSONDecoder(object_pairs_hook=_object).decode


def count(path: Path) -> int:
    """Lines that are not empty, as far as a quick look can tell; of a table all but the first."""
    found, last = 0, b"\n"
    with opened(path) as file:
        while piece := file.read(_PIECE):
            joined = last + piece
            found += piece.count(b"\n") - joined.count(b"\n\n")
            last = piece[-1:]
    found += last != b"\n"
    return max(0, found - 1) if inner(path) in TABLES else found


# -- writing --------------------------------------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """
    Identifies a file by its committed bytes: how many there are (`offset`), a digest of the last of them, and the kind
    of the mark.
    """

    offset: int
    digest: str = ""
    kind: str = ""

    @classmethod
    def of(cls, text: str | None, offset: int | None) -> Mark:
        """
        The mark as on record. One for another offset says nothing: a version that knows no marks has written since.
        """
        place, *rest = text.split() if text else ("",)
        return cls(offset, *rest) if offset is not None and place == str(offset) else cls(offset or 0)

    def __str__(self) -> str:
        return " ".join(map(str, self)).rstrip()


_open: set[FileSink] = set()  # sinks with an open file


def _let_go_in_child() -> None:
    """
    A lock is held as long as any process has the file open. A child of this one must not keep it when this one is dead.
    """
    for sink in [*_open]:
        sink.close()


if hasattr(os, "register_at_fork"):  # not every system has fork
    os.register_at_fork(after_in_child=_let_go_in_child)


class FileSink(Sink):
    """A file that grows by a batch at a time, of which the first bytes count. It has one writer."""

    refuses = False
    _mode = 0o644  # as other programs make files: the output is its owner's to share

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()  # the file that grows, whatever folder somebody goes to
        self.place = self._path
        self.name = str(path)
        self._file = -1
        self._made = False  # whether there was none before
        self._offset = 0
        self._written = 0  # the offset after the batch that is being committed
        self._reach = 0  # how far was ever written
        self._begins = 0  # where in the file the first batch is
        # The last bytes that are committed, and those after the batch that is being committed.
        self._tail = self._next_tail = b""

    def look_for(self, offset: int | None) -> None:
        if offset and not self._path.exists():
            raise self._too_short(offset, "no such file")

    def claim(self) -> None:
        if self._file < 0:
            for path in {self._path, self.place or self._path}:
                if path.exists() and not path.is_file():
                    raise self._no_file(path)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._made = not self._path.exists()
            self._hold(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._mode))

    def open(
        self,
        offset: int | None,
        *,
        run: str,  # noqa: ARG002 - a file is known by its name
        token: int,
        alone: bool = True,
        settled: bool | None = None,
        mark: str | None = None,
    ) -> None:
        self.claim()
        try:
            size, known = os.fstat(self._file).st_size, Mark.of(mark, offset)
            if size and (offset is None or (offset == 0 and known.digest not in {"", self._digest(b"")})):
                raise self._not_new(size)
            if offset is not None and size < offset:
                raise self._too_short(offset, size)
            if offset and known.digest not in {"", self._digest(self._tail_at(offset))}:
                raise self._another(offset)
            if offset is not None and (known.kind == _WHOLE if settled is None else settled) and size > offset:
                raise self._too_long(offset, size)
            self._spare(offset or 0, size)
            if not alone:
                size = self._renew(offset or 0, token)
            self._cut(offset or 0, size)
        except BaseException:
            self._leave()
            raise

    def _spare(self, kept: int, size: int, begins: int = 0) -> None:
        """
        Complain if what is there is another run's, by what that has on record, and would be cut off or written over.
        """
        for other in self.others:
            known, end = Mark.of(other.mark, other.offset), self._begins + other.offset - begins
            spared = other.offset < kept or (other.offset == kept and not other.newer)
            if spared or other.offset <= begins or end > size:
                continue
            if known.digest in self._digests(self._tail_at(end)) if known.digest else end == size:
                raise self._of_another_run(other)

    def _leave(self) -> None:
        """It cannot be used: what is there stays, and nothing new is left."""
        path = self._path.resolve()  # a link stays
        if self._made and path.exists() and path.stat().st_size == 0:  # else another process has written to it
            path.unlink(missing_ok=True)
        self.close()

    def _hold(self, file: int) -> None:
        """Have this file, and be the only one who has it."""
        self._file = file
        _open.add(self)
        try:
            import fcntl
        except ImportError:  # another operating system: see `_renew`
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            message = f"expected the sink {self._path} to be free, got: another process writes to it. Wait for it to end, stop it, or choose another file."
            raise Busy(message) from None

    def _renew(self, size: int, token: int) -> int:
        """
        Go on in another file of the same name, with the first bytes of this one. Not every file system has locks that
        hold: whoever had this one and still writes, now or in an hour, writes to what nobody reads any more, and
        notices it.
        """
        path = self._path.resolve()
        other = path.with_name(f"{path.name}.{token}.taken")
        old = self._file
        try:
            new = os.open(other, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, os.fstat(old).st_mode & 0o777)
            self._hold(new)
            at = 0
            while at < size and (piece := os.pread(old, min(_PIECE, size - at), at)):
                at += os.pwrite(new, piece, at)
            os.fsync(new)
            other.replace(path)
            flush_folder(path.parent)
        finally:
            if self._file != old:
                os.close(old)
            other.unlink(missing_ok=True)
        return size

    def _look(self) -> None:
        """The file is the one that was opened, and has what was committed and nothing else."""
        mine = os.fstat(self._file)
        try:
            there = self._path.stat()
        except FileNotFoundError:
            raise self._changed("it is gone") from None
        if not os.path.samestat(mine, there):
            raise self._changed("another file has its name")
        if mine.st_size < self._offset:
            raise self._changed(f"it has {mine.st_size} bytes")
        if mine.st_size > max(self._offset, self._reach):
            raise self._changed(f"somebody else has written to it, {mine.st_size} bytes are there")
        if self._tail_at(self._offset) != self._tail:
            raise self._changed("other bytes are there")

    def _changed(self, got: str) -> PermanentFailure:
        message = (
            f"expected the sink {self._path} to stay as it is while the run writes to it, {self._offset} bytes, got: {got}. "
            "Outputs of this run are missing there: put the file back, or begin a new run with another run_key."
        )
        return PermanentFailure(message, error_class="data_error")

    def _cut(self, offset: int, size: int) -> None:
        self._offset = self._written = self._reach = offset
        self._tail = self._next_tail = self._tail_at(offset)
        if size > offset:
            os.ftruncate(self._file, offset)
            os.fsync(self._file)

    # -- by what it is known again

    def _tail_at(self, offset: int) -> bytes:
        """The last bytes before this place in the file."""
        start = max(self._begins, offset - _TAIL)
        return os.pread(self._file, max(0, offset - start), start)

    def _digest(self, tail: bytes) -> str:
        if not tail:  # as long as nothing counts: the file itself
            there = os.fstat(self._file)
            tail = f"{there.st_dev} {there.st_ino}".encode()
        return blake2b(tail, digest_size=16).hexdigest()

    def _digests(self, tail: bytes) -> set[str]:
        """How a run that has left this file with these last bytes may have marked it."""
        return {self._digest(tail)}

    @property
    def mark(self) -> str | None:
        return str(Mark(self._written, self._digest(self._next_tail)))

    def left(self) -> str | None:
        return str(Mark(self._offset, self._digest(self._tail), _WHOLE))

    # -- what is refused

    def _no_file(self, path: Path) -> ConfigurationError:
        mode = path.stat().st_mode
        kinds = {"a folder": S_ISDIR, "a pipe": S_ISFIFO, "a socket": S_ISSOCK}
        kind = next((name for name, is_one in kinds.items() if is_one(mode)), "a device")
        return ConfigurationError(
            f"expected the sink {self.name} to be a file, got: {kind}. What was written there cannot be found again when the run goes on. Choose a file, "
            "or give a callable."
        )

    def _not_new(self, size: int) -> ConfigurationError:
        return ConfigurationError(
            f"expected the sink {self.name} to be new or empty, got: {size} bytes that no run of this key has written. "
            "Choose another file, or move this one away."
        )

    def _of_another_run(self, other: SinkClaim) -> ConfigurationError:
        return ConfigurationError(
            f"expected the sink {self.name} to be as the run has left it, got: the file of the run {other.run_key!r} of {other.pipeline}. Put the run's "
            "own file back, or begin a new run with another run_key and sink."
        )

    def _too_short(self, offset: int, got: object) -> ConfigurationError:
        return ConfigurationError(
            f"expected the sink {self.name} to hold at least the {offset} bytes that were committed, got: {got}. "
            "It was changed since: put it back, or begin a new run with another run_key."
        )

    def _another(self, offset: int) -> ConfigurationError:
        return ConfigurationError(
            f"expected the sink {self.name} to be as the run has left it, got: other bytes before the {offset} that were committed. "
            "It was changed since, or is another file: put the run's own file back, or begin a new run with another run_key and sink."
        )

    def _too_long(self, offset: int, size: int) -> ConfigurationError:
        return ConfigurationError(
            f"expected the sink {self.name} to be as the run has left it, {offset} bytes, got: {size}. Somebody else has written to it, or it is "
            "another file: put the run's own file back, or begin a new run with another run_key and sink."
        )

    def write(self, outputs: Sequence[Any], keys: Sequence[str]) -> int | None:  # noqa: ARG002 - a file has no keys
        self._look()
        at = self._offset
        data = memoryview(self._batch(outputs))
        end, tail = at + len(data), (self._tail + bytes(data[-_TAIL:]))[-_TAIL:]
        self._reach = max(self._reach, end)
        while data:  # at a place of its own: writing it once more after a failed commit gives the same file
            done = os.pwrite(self._file, data, at)
            data, at = data[done:], at + done
        if end != self._offset:
            getattr(os, "fdatasync", os.fsync)(self._file)  # not every system has the cheaper one
        self._written, self._next_tail = end, tail
        return end

    @abstractmethod
    def _batch(self, outputs: Sequence[Any]) -> bytes: ...

    def settle(self) -> None:
        self._offset, self._tail = self._written, self._next_tail

    def finish(self) -> None:
        self._look()

    def close(self) -> None:
        file, self._file = self._file, -1
        _open.discard(self)
        if file >= 0:
            os.close(file)


class Lines(FileSink):
    """A file of JSON Lines."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._pack = packer(path)

    def encode(self, value: Any) -> bytes:
        try:
            return (json_text(value) + "\n").encode()
        except (TypeError, ValueError, RecursionError) as wrong:
            message = f"the output cannot be written to {self._path.name}: {wrong}"
            raise PermanentFailure(message, error_class="validation_error") from None

    def _batch(self, outputs: Sequence[bytes]) -> bytes:
        data = b"".join(outputs)
        return self._pack(data) if data and self._pack is not None else data


class Rows(Lines):
    """A file of comma- or tab-separated values, with the columns of the first row."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._delimiter = delimiter_of(path)
        self._special = re.compile(rf'["\r\n{re.escape(self._delimiter)}]|^\ufeff')
        self._columns: list[str] | None = None

    def open(self, offset: int | None, **how: Any) -> None:
        super().open(offset, **how)
        if offset:
            self._columns = csvs.columns(self._path, self._delimiter)

    def encode(self, value: Any) -> bytes:
        where = self._path.name
        row = row_of(value, where)
        columns = list(row) if self._columns is None else self._columns
        if len(row) != len(columns) or any(name not in row for name in columns):
            raise unfit(where, f"it has the columns {', '.join(row)}, and the file has {', '.join(columns)}")
        try:
            line = self._line([_cell(row[name]) for name in columns])
            if self._columns is None:
                self._line(columns)
                if any("\0" in name for name in columns):
                    raise unfit(where, "a name of a column has a zero in it, and no reader takes such a file for text")
        except (TypeError, ValueError, RecursionError) as wrong:
            raise unfit(where, str(wrong)) from None
        self._columns = columns
        return line

    def _batch(self, outputs: Sequence[bytes]) -> bytes:
        if self._offset or not outputs or self._columns is None:
            return super()._batch(outputs)
        return super()._batch([self._line(self._columns), *outputs])

    def _line(self, cells: Sequence[str]) -> bytes:
        # Python's own writer leaves a carriage return without quotes, where it would be the end of a row.
        special = self._special
        text = self._delimiter.join(
            f'"{cell.replace(QUOTE, QUOTE + QUOTE)}"' if special.search(cell) else cell for cell in cells
        )
        return ((text or '""') + "\n").encode()


def _cell(value: Any) -> str:
    told = tell(value)
    if told is None:
        return ""
    if isinstance(told, str):
        return told
    return json_text(told) if isinstance(told, list | dict) else repr(told)


def flush_folder(folder: Path) -> None:
    """Have a name that was given to a file survive a crash."""
    with suppress(OSError):  # not every system can
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
