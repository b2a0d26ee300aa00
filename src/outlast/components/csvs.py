"""
Files of rows with commas, tabs or the like between their cells, read record by record: nothing is guessed, and nothing
is lost in silence.

A record that cannot be read is a broken item, and reading goes on at the next line. The hard case is a quote that is
never closed: the lines after it look like one long text, which has no end or ends at a quote with something behind it.
Only the line with the opening quote is broken if the text has no end, if the quote at its end opens a cell, or if all
lines in between look like rows. The lines after it are then read again, strictly: a quote in the middle of a cell
breaks a line, because it may be the end of a real text. Otherwise all lines of the text are one broken record.
"""

from __future__ import annotations

import codecs
import io
import re
from collections import deque
from typing import TYPE_CHECKING, Any

from outlast.components.packed import inner, opened
from outlast.components.reading import broken_item
from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from outlast.components.reading import Unreadable

TABLES = (".csv", ".tsv")
_REACH = 1 << 24  # characters that a text in quotes may span lines for
_BOMS = (  # the longer ones first: one begins like another
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_WIDE = ((1, 3), (0, 2), (1, 2, 3), (0, 1, 2))  # where UTF-16 and UTF-32 have zeros; a cell of UTF-8 may begin with one
_MARKED = re.compile("[\udc00-\udcff]")  # what `_mark` makes of a byte, and no decoder makes of a text
_CLOSED = re.compile(r'[^"]*(?:""[^"]*)*"(?!")')
_OTHERS = ",;\t|"


def _mark(error: UnicodeError) -> tuple[str, int]:
    """A byte that is no text stays in sight until its record is told about."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(chr(0xDC00 + byte) for byte in wrong), error.end


codecs.register_error("outlast.mark", _mark)


def encoding_of(path: Path) -> str | None:
    """The encoding that the first bytes of a file give away; None if they do not."""
    with opened(path) as file:
        head = file.read(4)
    zeros = tuple(place for place, byte in enumerate(head) if not byte)
    return next((name for bom, name in _BOMS if head.startswith(bom)), "?" if zeros in _WIDE else None)


def delimiter_of(path: Path) -> str:
    """What stands between cells, by the name of the file."""
    return "\t" if inner(path) == ".tsv" else ","


def read(path: Path, delimiter: str | None = None, encoding: str | None = None) -> Iterator[Any]:
    """The rows of a file, each a dict of texts, and broken items for those that cannot be read."""
    if encoding is None:
        encoding = encoding_of(path) or "utf-8"
        if encoding == "?":
            raise ConfigurationError(
                f"expected {path.name} to be text, UTF-8 unless it says otherwise, got: bytes that are zero, as in UTF-16. "
                'Say how it is encoded: Files(..., encoding="utf-16-le"), or --encoding utf-16-le.'
            )
    with (
        opened(path) as file,
        io.TextIOWrapper(file, newline="", encoding=encoding, errors="outlast.mark") as lines,
    ):
        records = _Records(path.name, lines, delimiter or delimiter_of(path), encoding)
        header = records.header(sure=delimiter is not None)
        if header is None:
            return
        wide = len(header)
        for record in records:
            if type(record) is not list:
                yield record
            elif len(record) == wide:
                yield dict(zip(header, record, strict=True))
            else:
                yield records.broken(f"{len(record)} columns instead of {wide}")


def columns(path: Path, delimiter: str) -> list[str] | None:
    """The names of the columns of a file that a sink has written."""
    with opened(path) as file, io.TextIOWrapper(file, newline="", encoding="utf-8") as lines:
        return _Records(path.name, lines, delimiter, "utf-8").header(sure=True)


class _Records:
    """
    The records of a text, each a list of cells or a broken item. `number` is the line on which the last one began.
    """

    def __init__(self, name: str, lines: Iterator[str], delimiter: str, encoding: str) -> None:
        self._name = name
        self._lines = lines
        self._delimiter = delimiter
        self._between = f'"{delimiter}"'
        self._encoding = encoding
        self._ahead: deque[str] = deque()  # lines that were looked at in vain: they are read strictly
        self._read = 0  # lines taken so far
        self._span = 0  # characters since the record began
        self._wide = 0  # columns, once they are known
        self._number = 0
        self._raw = ""

    def header(self, *, sure: bool) -> list[str] | None:
        """The names of the columns; None if there is nothing at all."""
        names = next(self, None)
        if names is None:
            return None
        if not isinstance(names, list):
            message = f"expected {self._name} to begin with the names of its columns, got: {names.error}"
            raise ConfigurationError(message)
        if twice := sorted({name for name in names if names.count(name) > 1}):
            message = f"expected the columns of {self._name} to have names that differ, got twice: {', '.join(map(repr, twice))}. Give them other names in its first line."
            raise ConfigurationError(message)
        others = [mark for mark in _OTHERS if mark in names[0]]
        if len(names) == 1 and others and not sure:
            raise ConfigurationError(
                f"expected {self._name} to have {self._delimiter!r} between its columns, got: the single column {names[0][:200]!r}. "
                f"If {others[0]!r} stands between them: Files(..., delimiter={others[0]!r}), or --delimiter {others[0]!r}. "
                f"If it is one column: delimiter={self._delimiter!r}."
            )
        self._wide = len(names)
        return names

    def __iter__(self) -> _Records:
        return self

    def __next__(self) -> list[str] | Unreadable:
        while True:
            strict = bool(self._ahead)
            line = self._line()
            self._number, self._raw = self._read, line
            if '"' not in line:
                bare = line.rstrip("\r\n")
                if not bare:
                    continue
                if not line.isascii() and _MARKED.search(line):
                    return self._undecodable()
                return bare.split(self._delimiter)
            bare = line.rstrip("\r\n")
            # All cells in quotes and none inside: most files with quotes.
            if bare[0] == bare[-1] == '"' and line.isascii():
                cells = bare[1:-1].split(self._between)
                if len(cells) == self._wide and bare.count('"') == 2 * self._wide:
                    return cells
            return self._quoted(line, strict=strict)

    def _line(self) -> str:
        line = self._ahead.popleft() if self._ahead else next(self._lines)
        if not self._read:
            line = line.removeprefix("\ufeff")  # of an encoding that was said, and does not look for it
        self._read += 1
        return line

    def _quoted(self, line: str, *, strict: bool) -> list[str] | Unreadable:
        """A record with quotes in it, which may go on over several lines."""
        cells: list[str] = []
        taken, self._span = [line], 0
        at, mark = 0, self._delimiter
        while True:
            if line.startswith('"', at):
                begin = at + 1
                text: list[str] = []
                while (end := _CLOSED.match(line, begin)) is None:
                    text.append(line[begin:])
                    more = self._more(taken)
                    if more is None:
                        return self._unclosed(taken)
                    line, begin = more, 0
                text.append(line[begin : end.end() - 1])
                cells.append("".join(text).replace('""', '"'))
                at = end.end()
            else:
                end_ = line.find(mark, at)
                cell = line[at:] if end_ < 0 else line[at:end_]
                at += len(cell)
                if end_ < 0:
                    bare = cell.rstrip("\r\n")
                    at -= len(cell) - len(bare)
                    cell = bare
                if strict and '"' in cell:
                    return self._wrong(taken, "a quote in the middle of a cell")
                cells.append(cell)
            if line.startswith(mark, at):
                at += len(mark)
            elif not line[at:].rstrip("\r\n"):
                break
            else:
                return self._junk(taken)
        self._raw = "".join(taken)
        if not self._raw.isascii() and _MARKED.search(self._raw):
            return self._undecodable()
        return cells

    def _more(self, taken: list[str]) -> str | None:
        """The next line of a text in quotes; None if it goes on for too long, or is at its end."""
        if self._span > _REACH:
            return None
        try:
            line = self._line()
        except StopIteration:
            return None
        self._span += len(line)
        taken.append(line)
        return line

    def _unclosed(self, taken: list[str]) -> Unreadable:
        return self._wrong(taken[:1], "a quote that is not closed", back=taken[1:])

    def _junk(self, taken: list[str]) -> Unreadable:
        """
        A closing quote with something behind it: either that is wrong, or the quote that was open since a line before.
        """
        between, mark = taken[1:-1], self._delimiter
        if len(taken) > 1 and (
            _is_strict(taken[-1], mark)  # what looks like an end is the beginning of a cell
            or (self._wide > 1 and between and all(line.count(mark) == self._wide - 1 for line in between))
        ):
            return self._unclosed(taken)
        return self._wrong(taken, "something behind a closing quote")

    def _wrong(self, taken: list[str], why: str, back: list[str] | None = None) -> Unreadable:
        """The lines that were taken are a broken record; those in `back` are read again."""
        if back:
            self._ahead.extendleft(reversed(back))
            self._read -= len(back)
        self._raw = "".join(taken)
        return self.broken(why)

    def _undecodable(self) -> Unreadable:
        found = _MARKED.search(self._raw)
        byte = 0 if found is None else ord(found[0]) - 0xDC00
        way = (
            ""
            if self._encoding != "utf-8"
            else '. If all of it has another encoding: Files(..., encoding="cp1252"), or --encoding'
        )
        return self.broken(f"the byte 0x{byte:02x} is not {self._encoding}{way}")

    def broken(self, why: str) -> Unreadable:
        """The record that was read last, as an item that cannot be one."""
        raw = _MARKED.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", self._raw).rstrip("\r\n")
        return broken_item(raw, f"{self._name} line {self._number}: {why}")


def _is_strict(line: str, delimiter: str) -> bool:
    """Whether a line can be the beginning of a record in which quotes stand around whole cells only."""
    mark = re.escape(delimiter)
    whole = r'"[^"]*(?:""[^"]*)*"'
    cell = rf'(?:{whole}|[^"{mark}\r\n]*)'
    return re.fullmatch(rf'{cell}(?:{mark}{cell})*(?:\r?\n|\r)?|(?:{cell}{mark})*"[^"]*(?:""[^"]*)*', line) is not None
