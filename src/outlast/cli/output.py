"""
How commands speak: tables for people, one JSON document for programs, complaints on stderr, exit codes for scripts.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from outlast.display.terminal import Screen
from outlast.kernel.redact import harmless, in_json, plain, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


_T = TypeVar("_T")


class Code(IntEnum):
    """What a command came to."""

    COMPLETED = 0
    FAILED = 1
    INVALID = 2
    PARTIAL = 3
    BUDGET = 4
    INTERRUPTED = 130
    TERMINATED = 143


NO_WORKER = "No worker is running. Start one: outlast worker TARGET"


def console() -> Screen:
    """Where people read; a pipe gets whole lines, however long, unless COLUMNS says otherwise."""
    pipe = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Screen(highlight=False, emoji=False, width=10_000 if pipe else None, soft_wrap=pipe)


def refuse(*problems: str) -> NoReturn:
    """The input is wrong: everything about it at once."""
    for problem in problems:
        hint(problem)
    raise typer.Exit(Code.INVALID)


def say(text: str = "") -> None:
    """A sentence for a person: one line, whatever is in it."""
    typer.echo(harmless(text))


def print_block(text: str) -> None:
    """Several lines of our own making, such as JSON."""
    typer.echo(harmless(in_json(text), lines=True))


def hint(text: str) -> None:
    """What to do next; on stderr, so that it is never part of what a program reads."""
    typer.echo(harmless(text), err=True)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """One document; with no `indent`, on one line."""
    typer.echo(to_json(value, indent=indent, default=_plain))


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
) -> bool:
    """What was found: as JSON, as a table, or in a sentence that it is nothing. Whether it was a table."""
    if as_json:
        print_json([document(one) for one in found])
    elif not found:
        say(none)
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
    natural = [max([len(name), *(row[place].cell_len for row in cells)]) for place, name in enumerate(headings)]
    folded = headings.index(fold) if fold else -1
    least = min(natural[folded], _LEAST) if fold else 0
    for name in drop:
        if _taken(natural, shown, folded) + least <= out.width:
            break
        shown.remove(headings.index(name))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for place in shown:
        numeric = bool(rows) and all(isinstance(row[place], int | float) or row[place] is None for row in rows)
        # Numbers and ids are never cut: what gives way is the column that can be read in part.
        room = max(_SHORTEST, out.width - _taken(natural, shown, folded)) if place == folded else natural[place]
        table.add_column(
            headings[place],
            justify="right" if numeric else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=min(room, natural[place]),
        )
    for row in cells:
        table.add_row(*(row[place] for place in shown))
    out.print(table)


_LEAST = 24  # columns in which a message can be read
_SHORTEST = 6  # if nothing else can go


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
