"""
How commands speak: tables for people, one JSON document for programs, complaints on stderr, exit codes for scripts.
"""

from __future__ import annotations

import os
import shlex
import sys
from datetime import UTC, datetime
from enum import IntEnum
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from outlast.display.terminal import Screen
from outlast.kernel.redact import harmless, in_json, masked, plain, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence


_T = TypeVar("_T")


class Code(IntEnum):
    """What a command came to."""

    COMPLETED = 0
    FAILED = 1
    INVALID = 2
    PARTIAL = 3
    BUDGET = 4
    NOT_UNDONE = 5
    INTERRUPTED = 130
    TERMINATED = 143


def with_signal(code: Code, signalled: Code | None) -> Code:
    """The exit code of a run that a signal met: that of the signal only if it left something undone."""
    return signalled if signalled is not None and code is Code.INTERRUPTED else code


def no_worker(where: Sequence[str] = ()) -> str:
    """That nobody works on jobs, and the command for it; `where` are the options that name the store and the app."""
    place = where[where.index("--store") : where.index("--store") + 2] if "--store" in where else ()
    return f"No worker is running. Start one: {' '.join(['outlast worker TARGET', *map(shlex.quote, place)])}"


def console() -> Screen:
    """Where people read; a pipe gets whole lines, however long, unless COLUMNS says otherwise."""
    pipe = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Screen(highlight=False, emoji=False, width=10_000 if pipe else None, soft_wrap=pipe)


def refuse(*problems: str) -> NoReturn:
    """The input is wrong: everything about it at once."""
    for problem in problems:
        hint(problem)
    raise typer.Exit(Code.INVALID)


def refuse_options(of: str, given: Mapping[str, object], why: str) -> list[str]:
    """What is to be said about options that mean nothing for what was named; nothing if none was given."""
    used = [option for option, value in given.items() if value]
    return [f"expected no {' or '.join(used)} with {of}, {why}"] if used else []


def say(text: str = "") -> None:
    """A sentence for a person: one line, whatever is in it."""
    typer.echo(harmless(text))


def print_block(text: str) -> None:
    """Several lines of our own making, such as JSON."""
    typer.echo(harmless(in_json(text), lines=True))


def print_value(name: str, value: Any, *, reveal: bool) -> None:
    """A value as JSON under its name, masked unless it is to be seen as it is; where that hides something, it says so."""
    try:
        whole = to_json(value, indent=2)
        shown = whole if reveal else to_json(masked(value), indent=2)
    except (RecursionError, ValueError):
        whole = shown = "<nested too deeply to be shown>"
    say(name if shown == whole else f"{name} (masked; --reveal shows it as it is)")
    print_block(shown)


def hint(text: str) -> None:
    """What to do next; on stderr, so that it is never part of what a program reads."""
    typer.echo(harmless(text), err=True)


def shortened(text: str, width: int) -> str:
    """
    A text of at most so many characters.

    >>> shortened("no answer", 5)
    'no a…'
    """
    return text if len(text) <= width else text[: width - 1] + "…"


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """One document; with no `indent`, on one line."""
    print_document(to_json(value, indent=indent, default=_plain))


def print_document(text: str) -> None:
    """What a program reads."""
    typer.echo(text)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)


def print_found(
    found: Sequence[_T],
    document: Callable[[_T], Any],
    row: Callable[[_T], Sequence[Any]],
    *,
    as_json: bool,
    none: str,
    headings: Sequence[str],
    fold: str = "",
    drop: Sequence[str] = (),
    wrap: Sequence[str] = (),
    below: Sequence[str] = (),
) -> bool:
    """What was found: as JSON, as a table, or in a sentence that it is nothing. Whether it was a table."""
    if as_json:
        print_json([document(one) for one in found])
    elif not found:
        say(none)
    elif wrap:
        print_whole_table(headings, map(row, found), wrap=wrap)
    elif below:
        print_full_rows(headings, map(row, found), fold=fold, below=below)
    else:
        print_table(headings, map(row, found), fold=fold, drop=drop)
    return bool(found) and not as_json


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[Any]], *, fold: str = "", drop: Sequence[str] = ()
) -> None:
    """
    A table; numbers to the right. Where the terminal is narrow, the columns of `drop` go in this order, until `fold`
    has room to be read; what does not fit into that is cut.
    """
    out = console()
    rows = list(rows)
    cells = [[_cell(value) for value in row] for row in rows]
    shown = list(range(len(headings)))
    natural = _widths(headings, cells)
    folded = headings.index(fold) if fold else -1
    least = min(natural[folded], _LEAST) if fold else 0
    for name in drop:
        if _taken(natural, shown, folded) + least <= out.width:
            break
        shown.remove(headings.index(name))
    table = _table()
    for place in shown:
        # Numbers and ids are never cut: what gives way is the column that can be read in part.
        room = max(_SHORTEST, out.width - _taken(natural, shown, folded)) if place == folded else natural[place]
        table.add_column(
            headings[place],
            justify=_justify(rows, place),
            no_wrap=True,
            overflow="ellipsis",
            width=min(room, natural[place]),
        )
    for row in cells:
        table.add_row(*(row[place] for place in shown))
    out.print(table)


def print_whole_table(headings: Sequence[str], rows: Iterable[Sequence[Any]], *, wrap: Sequence[str] = ()) -> None:
    """
    A table of which nothing is left out or cut. Where the terminal is narrow, the cells of `wrap` get several lines; where
    it is too narrow for that, each row becomes a block with a line or more for each of its cells.
    """
    out = console()
    rows = list(rows)
    cells = [[_cell(value) for value in row] for row in rows]
    widths = _widths(headings, cells)
    if _whole(widths) > out.width:  # headings of several words may get several lines, too
        widths = _widths([name.replace(" ", "\n") for name in headings], cells)
        _shrink(widths, [headings.index(name) for name in wrap], _whole(widths) - out.width)
    if _whole(widths) > out.width:
        _print_blocks(out, headings, cells)
        return
    table = _table()
    for place, heading in enumerate(headings):
        table.add_column(heading, justify=_justify(rows, place), overflow="fold", width=widths[place])
    for row in cells:
        table.add_row(*row)
    out.print(table)


def print_full_rows(
    headings: Sequence[str], rows: Iterable[Sequence[Any]], *, fold: str = "", below: Sequence[str] = ()
) -> None:
    """
    A table of which nothing is cut; a column that is empty in all rows is left out. Where the terminal is narrow, columns
    go beneath their row until the others fit: `fold`, which gets lines of its own, then those of `below`, the widest first.
    Where that is not enough, each row becomes a block, as in `print_whole_table`.
    """
    out = console()
    rows = list(rows)
    cells = [[_cell(value) for value in row] for row in rows]
    widths = _widths(headings, cells)
    beside = [place for place in range(len(headings)) if any(row[place] for row in cells)]
    long = [headings.index(fold)] if fold else []
    beneath: list[int] = []
    for place in (*long, *sorted(map(headings.index, below), key=lambda place: -widths[place])):
        if place in beside and _whole([widths[other] for other in beside]) > out.width:
            beside.remove(place)
            beneath.append(place)
    if _whole([widths[place] for place in beside]) > out.width:
        _print_blocks(out, [name.replace("\n", " ") for name in headings], cells)
        return
    right = {place for place in beside if _justify(rows, place) == "right"}
    for names in zip_longest(*(headings[place].split("\n") for place in beside), fillvalue=""):
        heading = {place: Text(name) for place, name in zip(beside, names, strict=True)}
        out.print(_line(heading, widths, right), style="bold", soft_wrap=True)
    lines = [sorted(set(beneath).difference(long)), [place for place in long if place in beneath]]
    for row in cells:
        out.print(_line({place: row[place] for place in beside}, widths, right), soft_wrap=True)
        for line in lines:
            if said := [_named(headings[place], row[place]) for place in line if row[place]]:
                _print_beneath(out, said)


def _named(heading: str, cell: Text) -> Text:
    return Text.assemble((heading.replace("\n", " "), "bold"), " ", cell)


def _line(cells: Mapping[int, Text], widths: Sequence[int], right: Container[int]) -> Text:
    line = Text()
    for place, cell in cells.items():
        room = " " * (widths[place] - cell.cell_len)
        line.append_text(Text.assemble(room, cell) if place in right else Text.assemble(cell, room)).append("  ")
    line.rstrip()
    return line


def _print_beneath(out: Screen, said: Sequence[Text]) -> None:
    """In one line, if they fit; else each in a line or more of its own."""
    room = max(_SHORTEST, out.width - len(_INDENT))
    together = Text("   ").join(said)
    for text in [together] if together.cell_len <= room else said:
        for line in text.wrap(out, room, overflow="fold"):
            line.rstrip()
            out.print(Text.assemble(_INDENT, line), soft_wrap=True)


def _shrink(widths: list[int], wrapped: Sequence[int], over: int) -> None:
    """Take what is too much from the widest of the columns that may be wrapped, as long as they can be read."""
    while over > 0 and wrapped:
        widest = max(wrapped, key=lambda place: widths[place])
        if widths[widest] <= _LEAST:
            return
        widths[widest] -= 1
        over -= 1


def _print_blocks(out: Screen, headings: Sequence[str], cells: list[list[Text]]) -> None:
    for number, (first, *rest) in enumerate(cells):
        if number:
            out.print()
        out.print(first)
        block = Table.grid(padding=(0, 2, 0, 0))
        block.add_column(width=2)
        block.add_column(style="bold", no_wrap=True)
        block.add_column(overflow="fold")
        for heading, cell in zip(headings[1:], rest, strict=True):
            if cell.plain:
                block.add_row("", heading, cell)
        out.print(block)


def _whole(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))


def _widths(headings: Sequence[str], cells: list[list[Text]]) -> list[int]:
    return [
        max([*map(len, name.split("\n")), *(row[place].cell_len for row in cells)])
        for place, name in enumerate(headings)
    ]


def _justify(rows: list[Sequence[Any]], place: int) -> Literal["left", "right"]:
    numeric = bool(rows) and all(isinstance(row[place], int | float) or row[place] is None for row in rows)
    return "right" if numeric else "left"


_LEAST = 24  # columns in which a message can be read
_SHORTEST = 6  # if nothing else can go
_INDENT = "    "  # before what stands beneath its row


def _taken(natural: list[int], shown: list[int], folded: int) -> int:
    return sum(natural[place] + 2 for place in shown if place != folded)


def _cell(value: Any) -> Text:
    if value is None:
        return Text("")
    if isinstance(value, datetime):
        return Text(moment(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return Text(f"{value:,}")
    return Text(plain(str(value)))


def moment(instant: datetime) -> str:
    """
    An instant for a person's eye, in UTC.

    >>> moment(datetime(2026, 11, 15, 9, 30, 5, tzinfo=UTC))
    '2026-11-15 09:30:05'
    """
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
