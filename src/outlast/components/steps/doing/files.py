"""
`files.reader` and `files.writer`: files under the project's root, by the same code that reads and writes those of runs
over items.
"""

from __future__ import annotations

import glob
import json
import math
import os
import re
import shutil
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.components import lines, open_sink, packed
from outlast.components.csvs import TABLES
from outlast.components.files import PARQUET
from outlast.components.lines import flush_folder
from outlast.components.reading import Unreadable
from outlast.components.steps.doing import enough, keep, listed
from outlast.errors import ConfigurationError, PermanentFailure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outlast.components.running import StepContext
    from outlast.components.sinks import Sink
    from outlast.components.steps.files import ReaderConfig, WriterConfig

_BATCH = 10_000  # rows that are written at a time


def read(config: ReaderConfig, context: StepContext) -> dict[str, Any]:
    """All rows of all files, in the order of their names. A row that cannot be read is an error of the step."""
    rows: list[Any] = []
    left = config.max_bytes
    for path in _found(config.path, context):
        kind = _kind(path, config.format)
        left -= _size(path, kind, left)
        if left < 0:
            message = f"{path.name}: expected files of at most max_bytes ({config.max_bytes}) together once they are unpacked, got: more"
            raise PermanentFailure(message, error_class="data_error")
        rows += rows_of(path, kind, context, config.delimiter, config.encoding)
    return {"rows": rows, "count": len(rows)}


def rows_of(
    path: Path,
    kind: str,
    context: StepContext,
    delimiter: str | None = None,
    encoding: str | None = None,
    *,
    way_out: str | None = None,
) -> Iterator[Any]:
    """
    The rows of a file of this kind, an ending. One that cannot be read is an error of the step, and is kept. `way_out` is what
    helps with a table that is written otherwise, where the step has no keys `delimiter` and `encoding`.
    """
    try:
        for row in _rows(path, kind, delimiter, encoding):
            if isinstance(row, Unreadable):
                keep(context, "unreadable", row.raw)
                raise row.error
            yield row
    except (PermanentFailure, ConfigurationError) as wrong:
        raise _of_step(wrong, way_out) from None


def _size(path: Path, kind: str, most: int) -> int:
    """How many bytes a file has once it is unpacked, counted up to `most`."""
    if kind == ".parquet":
        from outlast.components import parquet

        return parquet.unpacked_size(path, most)
    return packed.unpacked_size(path, most)


# How what is wrong with a table is mended, in the words of runs over items: an option of Python, and one of the command.
_WAY_OUT = re.compile(r"Files\(\.\.\., (?P<key>\w+)=(?P<value>[^)]+)\), or --\w+(?: (?:'[^']*'|[\w-]+))?")
_ONE_COLUMN = re.compile(r"If it is one column: delimiter=(?P<value>'[^']*')")


def _of_step(wrong: PermanentFailure | ConfigurationError, way_out: str | None) -> Exception:
    """The same error, with keys of the step as the way out, or with that of a step that has none of them."""
    said = _WAY_OUT.sub(way_out or r"give the step \g<key>: \g<value>", str(wrong))
    said = _ONE_COLUMN.sub("If it is one column: " + ("the same" if way_out else r"delimiter: \g<value>"), said)
    if said == str(wrong):
        return wrong
    if isinstance(wrong, PermanentFailure):
        return PermanentFailure(said, error_class=wrong.error_class)
    return ConfigurationError(said)


def _finite(path: Path, rows: Iterator[Any]) -> Iterator[Any]:
    """Rows of JSON Lines. NaN, Infinity and what is too large for a number are no JSON, though Python reads them."""
    for number, row in enumerate(rows, 1):
        if isinstance(row, Unreadable) or _is_finite(row):
            yield row
            continue
        message = f"{path.name} row {number}: NaN, Infinity or a number that is too large, which is no JSON; write null, or a text"
        yield Unreadable(json.dumps(row), PermanentFailure(message, error_class="validation_error"))


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list) or all(map(_is_finite, value))


def _rows(path: Path, kind: str, delimiter: str | None, encoding: str | None) -> Iterator[Any]:
    packed.check(path)
    if kind == ".parquet":
        from outlast.components import parquet

        return (row for batch in parquet.read(path) for row in batch)
    found = lines.read(path, delimiter, encoding, kind=kind)
    return found if kind in TABLES else _finite(path, found)


def _kind(path: Path, said: str | None) -> str:
    """What kind of file it is, as an ending: by its name, unless the step says it."""
    ending = packed.inner(path) if said is None else f".{said}"
    return ".parquet" if ending in PARQUET else ending


def _found(pattern: str, context: StepContext) -> list[Path]:
    """The files that are meant, each under the project's root, by name."""
    # A file of that very name wins: brackets are legal in names.
    if (one := context.path(pattern)).is_file():
        return [one]
    names = sorted(glob.glob(pattern, root_dir=context.path("."), recursive=True))  # noqa: PTH207 - from the root
    paths = [path for path in (context.path(name) for name in names) if path.is_file()]
    if not paths:
        got = "a folder" if one.is_dir() else "none"
        raise PermanentFailure(f"expected files at {pattern}, got: {got}", error_class="missing_input")
    return paths


def write(config: WriterConfig, context: StepContext) -> dict[str, Any]:
    """
    Write all rows to a new file in a folder beside the one that is meant, and give it that name once it is on disk. Whoever
    reads the file sees the old one or the new one.
    """
    rows = listed(config.rows)
    enough(rows, config.min_rows, f"the file {config.path}")
    target = Path(os.path.realpath(context.path(config.path)))  # a link stays one
    if target.exists() and not target.is_file():
        got = "a folder" if target.is_dir() else "a device or the like"
        raise PermanentFailure(f"expected {config.path} to be a file, got: {got}", error_class="data_error")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Of earlier attempts at the same work, which are dead, or given up: then they have nothing left to give that name to.
    begin = f".{target.name[:100]}.{blake2b(context.idempotency_key.encode(), digest_size=6).hexdigest()}."
    for left in target.parent.glob(f"{glob.escape(begin)}*.partial"):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=begin, suffix=".partial", dir=target.parent))
    try:
        made = folder / _named(target, config.format)
        sink = open_sink(made)
        assert sink is not None  # noqa: S101 - of a path there always is one
        try:
            fill(sink, rows, context)
        finally:
            sink.close()
        if (pack := packed.packer(made)) is not None and not made.stat().st_size:
            with made.open("wb") as file:  # no rows: 0 bytes are no packed file
                file.write(pack(b""))
                file.flush()
                os.fsync(file.fileno())
        made.replace(target)
        flush_folder(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"path": config.path, "count": len(rows)}


def _named(target: Path, said: str | None) -> str:
    """A name by which the kind of the file is known, whatever its own says."""
    kind = _kind(target, said)
    if kind == _kind(target, None) != ".json":
        return target.name
    ending = target.suffix.lower() if target.suffix.lower() in packed.PACKED and kind != ".parquet" else ""
    return f"{target.name}{'.jsonl' if kind == '.json' else kind}{ending}"


def fill(sink: Sink, rows: Sequence[Any], context: StepContext) -> None:
    """Write all rows. One that cannot be written is told by its number."""
    sink.claim()
    sink.open(None, run=context.run_id, token=0)
    for begin in range(0, len(rows), _BATCH):
        batch = [_encoded(sink, number, row) for number, row in enumerate(rows[begin : begin + _BATCH], begin + 1)]
        sink.write(batch, [])
        sink.settle()
    sink.finish()


def _encoded(sink: Sink, number: int, row: Any) -> Any:
    try:
        return sink.encode(row)
    except PermanentFailure as wrong:
        raise PermanentFailure(f"row {number}: {wrong}", error_class=wrong.error_class) from None
