"""
Where items come from: iterables, async iterables, and files of lines (JSON Lines, CSV), also many of them.

A line that cannot be read is an item too, a broken one: it ends as a dead letter and stops nobody else.
"""

from __future__ import annotations

import csv
import glob
import json
from collections.abc import AsyncIterable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError, PermanentFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Unreadable:
    """An item that could not be read: the text as it stands there, and what is wrong with it."""

    __slots__ = ("error", "raw")

    def __init__(self, raw: str, error: Exception) -> None:
        self.raw = raw
        self.error = error


def open_source(source: object) -> Iterator[Any] | AsyncIterable[Any]:
    """The items of a source, one after the other."""
    if isinstance(source, str | Path):
        return _files(source)
    if isinstance(source, AsyncIterable):
        return source
    if isinstance(source, Iterable) and not isinstance(source, bytes | dict):
        return iter(source)
    kind = "something with __arrow_c_stream__" if hasattr(source, "__arrow_c_stream__") else type(source).__name__
    message = f"expected an iterable, an async iterable, or the path of JSON Lines or CSV files, got: {kind}."
    raise ConfigurationError(message)


def _files(pattern: str | Path) -> Iterator[Any]:
    text = str(pattern)
    # A file of that very name wins: brackets are legal in names.
    paths = [Path(text)] if Path(text).is_file() else [Path(found) for found in sorted(glob.glob(text, recursive=True))]  # noqa: PTH207 - the pattern may be absolute
    paths = [path for path in paths if path.is_file()]
    if not paths:
        message = f"expected files at {text!r}, got: none."
        raise ConfigurationError(message)
    readers = [(_reader(path), path) for path in paths]  # all suffixes are known before the first item is handed out
    return (item for read, path in readers for item in read(path))


def _reader(path: Path) -> Callable[[Path], Iterator[Any]]:
    suffix = path.suffix.lower()
    if suffix in {".jsonl", ".ndjson", ".json"}:
        return _json_lines
    if suffix in {".csv", ".tsv"}:
        return _rows
    message = f"expected a file that ends in .jsonl, .ndjson, .csv or .tsv, got: {path.name}."
    raise ConfigurationError(message)


def _json_lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.isspace():
                continue
            try:
                yield json.loads(line)
            except ValueError as wrong:  # not JSON, or not even text
                error = PermanentFailure(f"{path.name} line {number}: {wrong}", error_class="validation_error")
                yield Unreadable(line.decode(errors="replace").rstrip("\r\n"), error)


def _rows(path: Path) -> Iterator[Any]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        rows = csv.reader(lines, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        header = next(rows, None)
        while header is not None:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as wrong:
                error = PermanentFailure(f"{path.name} line {rows.line_num}: {wrong}", error_class="validation_error")
                yield Unreadable("", error)
                continue
            if not row:
                continue
            if len(row) != len(header):
                message = f"{path.name} line {rows.line_num}: {len(row)} columns instead of {len(header)}"
                yield Unreadable(",".join(row), PermanentFailure(message, error_class="validation_error"))
            else:
                yield dict(zip(header, row, strict=True))
