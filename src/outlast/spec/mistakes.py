"""
What is wrong with a pipeline file: a `Mistake` has its place, what was expected, what came and the way out, in one
line.

    flow.yaml:14:11: steps.fetch.retry.max_attempts: expected an integer of at least 1, got 0; use max_attempts: 1 ...

All mistakes of a file are told at once, in the order of the file. A line shows no secret and is never broken in two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from outlast.errors import ConfigurationError, Item, Problem
from outlast.kernel.redact import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Path: TypeAlias = tuple[str | int, ...]
Severity: TypeAlias = Literal["error", "warning", "note"]

MOST = 500  # mistakes that are listed; of the others only the number is told
_LONGEST = 240  # characters of each part of a line
_IN_PYTHON = re.compile(r"\b([a-z_]+)=(?=[\w\[\"'])")


@dataclass(frozen=True, slots=True)
class Mistake:
    """
    One mistake. Lines and columns count from 1; `path` is where it stands in the file, with steps by their ids:
    ``("steps", "fetch", "retry", "max_attempts")``. `code` names the rule (``R07``), if there is one; a warning or a
    note can be silenced by it. `expected`, `got` and `way_out` are in words and never hold a secret. `profiles` are those
    that it comes under, if the file is right without them.
    """

    file: str
    line: int
    column: int
    path: Path
    expected: str
    got: str
    way_out: str = ""
    code: str = ""
    severity: Severity = "error"
    profiles: tuple[str, ...] = ()

    @property
    def problem(self) -> Problem:
        """The same as a `Problem`, which says it in the same words."""
        place = f"{_one_line(self.file)}:{self.line}:{self.column}"
        place += "" if self.severity == "error" else f": {self.severity}"
        path = tuple(_part(part) for part in self.path)
        got = self.got
        if self.profiles and self.path[:1] != ("profiles",):  # where the path itself names it
            got += f", with the profile{'s' if len(self.profiles) > 1 else ''} {', '.join(self.profiles)}"
        way_out = _one_line(self.way_out) + (f" [{self.code}]" if self.code and self.severity != "error" else "")
        return Problem(path, _one_line(self.expected), _one_line(got), way_out, place, "line")

    def __str__(self) -> str:
        return ConfigurationError([self.problem]).problems[0]  # which shows no secret


def in_order(mistakes: Iterable[Mistake]) -> tuple[Mistake, ...]:
    """As the file has them, each once, and no more than `MOST`. Of what is no YAML nothing else is said."""
    return first_of(all_in_order(mistakes))


def all_in_order(mistakes: Iterable[Mistake]) -> tuple[Mistake, ...]:
    """The same, all of them."""
    unique = dict.fromkeys(mistakes)
    unread = {(one.file, one.line, one.column) for one in unique if not one.path}
    clear = [one for one in unique if not one.path or (one.file, one.line, one.column) not in unread]
    return tuple(sorted(clear, key=lambda one: (one.file, one.line, one.column)))


def first_of(found: tuple[Mistake, ...]) -> tuple[Mistake, ...]:
    """No more than `MOST`, and then how many there are. Errors are not left out for warnings that come before them."""
    if len(found) <= MOST:
        return found
    found = errors_in(found) or found
    if len(found) <= MOST:
        return found
    last = found[MOST]
    words = (f"at most {MOST} mistakes", f"{len(found):,}, of which this is the next")
    rest = replace(last, path=(), expected=words[0], got=words[1], way_out="mend those above first", code="")
    return (*found[:MOST], rest)


def errors_in(mistakes: Iterable[Mistake]) -> tuple[Mistake, ...]:
    return tuple(one for one in mistakes if one.severity == "error")


def refused(mistakes: Sequence[Mistake]) -> ConfigurationError:
    """All of them as one exception; `problems` has a line for each."""
    return ConfigurationError([one.problem for one in mistakes])


def worded(way_out: str) -> str:
    """
    The way out as the end of a line: no capital, no full stop, keys as YAML has them.

    >>> worded("Use max_attempts=1 to call once without retrying."), worded(" Did you mean 'timeout'?")
    ('use max_attempts: 1 to call once without retrying', "did you mean 'timeout'?")
    """
    text = _IN_PYTHON.sub(r"\1: ", way_out.strip()).removesuffix(".")
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]  # YAML stays as it is


def _part(part: str | int) -> str | int:
    if isinstance(part, int):
        return part
    return Item(_one_line(part)) if isinstance(part, Item) else _one_line(part)


def _one_line(text: str) -> str:
    line = plain(text)
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
