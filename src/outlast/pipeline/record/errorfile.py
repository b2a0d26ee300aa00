"""
Errors as a file that opens in a spreadsheet: CSV in UTF-8 with a mark that says so, one header, one line for each
error.

What stands in a cell came from outside, and a spreadsheet runs cells that look like formulas. So what begins like one
gets an apostrophe in front, which makes it text; numbers stay numbers. Spreadsheets of some countries split lines at
semicolons: what would look like a formula behind one is made text too.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from dataclasses import fields
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.components.values import plain
from outlast.errors import ConfigurationError
from outlast.kernel.redact import in_json, mask, masked, to_json
from outlast.pipeline.record.rowerrors import ErrorLine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HEADER = tuple(field.name for field in fields(ErrorLine))
# A cell holds 32,767 characters.
_LONGEST = {"message": 1_000, "original_value": 200, "item_key": 200, "raw_row": 30_000}
_OPEN = frozenset({"message", "original_value", "raw_row"})  # where anything may stand
_CHUNK = 1 << 20  # characters written at a time
_BOM = "\ufeff"

# and those that some programs take for them
_SIGNS = "=+\\-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u207c\u207a\u207b\u208c\u208a\u208b"
_SPACE = '\\s"\ufeff\u200b-\u200f\u2060'  # what may stand before a sign and is not seen
_FORMULA = re.compile(rf"[\t\r\n]|[{_SPACE}]*[{_SIGNS}]")
# A sign behind separators; a run of them is looked at once, or a hostile text would take for ever.
_BEHIND = re.compile(rf"(?<![;{_SPACE}])([;{_SPACE}]++)([{_SIGNS}])")
_SEPARATORS = frozenset(";\t\r\n")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:[.,]\d+)*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def defused(text: str) -> str:
    """
    A cell that no spreadsheet runs.

    >>> defused("=cmd|' /C calc'!A0"), defused("-5"), defused("a;@b")
    ("'=cmd|' /C calc'!A0", '-5', "a;'@b")
    """
    if _NUMBER.fullmatch(text):
        return text
    return ("'" if _FORMULA.match(text) else "") + _BEHIND.sub(_quoted, text)


def _quoted(found: re.Match[str]) -> str:
    return found[0] if _SEPARATORS.isdisjoint(found[1]) else f"{found[1]}'{found[2]}"


def _spelt(found: re.Match[str]) -> str:
    return found[0] if _SEPARATORS.isdisjoint(found[1]) else f"{found[1]}\\u{ord(found[2]):04x}"


def append_errors(path: str | Path, lines: Iterable[ErrorLine], *, reveal: bool = False) -> int:
    """
    Put the lines at the end of the file, which is made if it is not there, with its folders; how many there were. A
    line that stands there already is not written again. Processes take turns.
    """
    path = Path(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o600)
    try:
        _take_turn(file)
        waiting = iter(lines)
        first = list(islice(waiting, 1))
        known, end = _read(file, path, first[0].run_id if first else "")
        try:
            written = _write(file, end, known, chain(first, waiting), reveal=reveal)
            os.fsync(file)
        except BaseException:
            os.ftruncate(file, end)  # a full disk leaves the file as it was
            raise
        return written
    finally:
        os.close(file)


def _take_turn(file: int) -> None:
    try:
        import fcntl
    except ImportError:  # another operating system: who writes there takes care
        return
    fcntl.flock(file, fcntl.LOCK_EX)


def _read(file: int, path: Path, run: str) -> tuple[set[tuple[str, ...]], int]:
    """
    What is in the file already, and where the next line goes: behind the last whole one, for a crash may have left half
    a line. One without a newline may be whole, if an editor has saved it so; if it is of this run, it is written anew
    and so need not be believed.
    """
    with os.fdopen(os.dup(file), "rb") as stream:
        data = stream.read()
    if f"{_BOM}{','.join(HEADER)}\r\n".encode().startswith(data):  # nothing, or part of the header
        return set(), 0
    known: set[tuple[str, ...]] = set()
    end = 0
    for number, (record, behind) in enumerate(_records(data)):
        if number == 0 and tuple(record) != HEADER:
            raise ConfigurationError(
                f"expected {path} to be new, or a file of errors with the columns {', '.join(HEADER)}, got: a file with others. "
                "Choose another name."
            )
        open_end = behind == len(data) and not data.endswith(b"\n")
        if len(record) < len(HEADER) or (open_end and record[0] == run):
            break
        known.add(_identity(record))
        end = behind
    if end == len(data) and not data.endswith(b"\n"):
        end -= data.endswith(b"\r")
        os.lseek(file, end, os.SEEK_SET)
        end += os.write(file, b"\r\n")
    return known, end


def _records(data: bytes) -> Iterator[tuple[list[str], int]]:
    """The records of a CSV file, each with the offset behind it; without a last one whose quotes are not closed."""
    start, quotes, at = 0, 0, 0
    while start < len(data):
        newline = data.find(b"\n", at)
        stop = len(data) if newline < 0 else newline + 1
        quotes += data.count(b'"', at, stop)
        at = stop
        if quotes % 2 == 0:
            text = data[start:stop].decode("utf-8", errors="replace").removeprefix(_BOM)
            record = next(csv.reader([text], strict=False), None) if "\n" not in text[:-1] else _one(text)
            yield record or [], stop
            start, quotes = stop, 0
        elif newline < 0:
            return


def _one(text: str) -> list[str]:
    return next(csv.reader(io.StringIO(text, newline="")), [])


def _identity(cells: Iterable[str]) -> tuple[str, ...]:
    named = dict(zip(HEADER, cells, strict=False))
    return tuple(named[name] for name in ("run_id", "row_index", "stage", "field", "message"))


def _write(file: int, end: int, known: set[tuple[str, ...]], lines: Iterable[ErrorLine], *, reveal: bool) -> int:
    text = io.StringIO(newline="")
    table = csv.writer(text)
    if end == 0:
        text.write(_BOM)
        table.writerow(HEADER)
    count, at = 0, end
    for line in lines:
        cells = cells_of(line, reveal=reveal)
        if _identity(cells) in known:
            continue
        table.writerow(cells)
        count += 1
        if text.tell() >= _CHUNK:
            at = _put(file, at, text)
    at = _put(file, at, text)
    os.ftruncate(file, at)
    return count


def _put(file: int, at: int, text: io.StringIO) -> int:
    os.lseek(file, at, os.SEEK_SET)
    data = memoryview(text.getvalue().encode())
    at += len(data)
    while data:
        data = data[os.write(file, data) :]
    text.seek(0)
    text.truncate()
    return at


def cells_of(line: ErrorLine, *, reveal: bool = False) -> list[str]:
    """The cells of a line. Without `reveal`, what looks like a credential is masked."""
    return [_cell(name, getattr(line, name), reveal=reveal) for name in HEADER]


def _cell(name: str, value: Any, *, reveal: bool) -> str:
    if value is None:
        return ""
    if name == "timestamp":
        return str(value.isoformat(timespec="seconds"))
    longest = _LONGEST.get(name, 300)
    json_cell = name == "raw_row" and not isinstance(value, str)
    # Twice as long, so that what is masked is whole when the rest is cut.
    text = (_json(value, reveal=reveal) if json_cell else str(value))[: 2 * longest]
    if name in _OPEN and not reveal and not json_cell:
        text = mask(text)
    text = in_json(text)  # what is not seen or is obeyed is spelt out
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    if json_cell:  # JSON can spell a character so that nobody takes it for a sign
        text = _BEHIND.sub(_spelt, text)
    return defused(text)


def _json(value: Any, *, reveal: bool) -> str:
    """A row as JSON, which it still is when something in it is masked."""
    text = as_json(value)
    if reveal or (hidden := mask(text)) == text:
        return text
    try:
        return to_json(masked(json.loads(text)))
    except (ValueError, RecursionError):  # what is told as it looks is no JSON
        return hidden


def as_json(value: Any) -> str:
    """A row as a person may read it; what JSON does not know is told as it looks."""
    try:
        return to_json(value, default=_plain)
    except (TypeError, ValueError):  # names of columns that JSON does not know
        return str(value)
    except RecursionError:
        return f"<a {type(value).__name__} that is nested too deeply>"


def _plain(value: Any) -> Any:
    try:
        return plain(value)
    except TypeError:
        return str(value)
