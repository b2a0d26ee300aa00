"""
Where an exception was raised, as a text for people: as Python prints it, with the exceptions that it came from.

Only frames that help are in it: those of Outlast itself and of the machinery around the user's code (tasks, threads,
imports) are left out. No value of a variable is, and every line is redacted as any text that goes out. What is too much
is cut at its beginning: the place of the failure is at the end.
"""

from __future__ import annotations

import linecache
import os
import re
from collections import deque
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from outlast.kernel import raised
from outlast.kernel.redact import error_text, mask_known, sanitise

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator
    from types import FrameType, TracebackType

_PARSES = 10  # attempts at one text
MOST_BYTES = 8_192  # of a traceback that is on record
ELSEWHERE = "__outlast_frames__"  # on an error: its frames in the child process that it comes from, as a text
_MOST_FRAMES = 40  # of one exception
_MOST_LINKS = 8  # exceptions that one came from
_MOST_INSIDE = 4  # of a group
_MOST_IN_ALL = 16  # exceptions in one text
_WIDEST = 200  # characters of a line
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120 - loaded by every child
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep  # noqa: PTH100, PTH120 - as above
_AROUND = (
    _OWN,
    *(_LIBRARY + part for part in ("asyncio" + os.sep, "threading.py", "concurrent" + os.sep)),
    "<frozen importlib",
)
_BEGINS = "Traceback (most recent call last):\n"
_CUT = "Traceback (most recent call last, what came before is left out):\n"
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"
_FILE = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_ONE = re.compile(r'(?m)(?<=\n)(?=^  File ")')
_PACKAGE = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\][^/\\]+")
_NOT_THEIRS = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib(?:64)?[/\\]python3[^/\\]*[/\\]|^<")


class Place(NamedTuple):
    """Where something was raised."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def traceback_of(error: BaseException, said: BaseException | None = None) -> str | None:
    """
    Its traceback, of at most `MOST_BYTES`; None if no code of the user's is in it. With `said`, the last line is of that
    exception: the error only has the frames. Frames of an error may be many, and exceptions somebody else's: whatever
    happens here, it must not be in the way of how an attempt ends.
    """
    try:
        parts = [*_chain(error, error if said is None else said, set())]
        if not any(part.startswith("  File ") for part in parts):
            return None
        return mask_known(_bounded(parts))
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a source that cannot be read, a class or a loader with code of its own
        return None


def stack_of(frame: FrameType | None, said: BaseException) -> str | None:
    """As `traceback_of`, for code that still runs: where it is now."""
    found: deque[tuple[FrameType, int]] = deque()
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_AROUND):
            found.appendleft((frame, frame.f_lineno))
        frame = frame.f_back
    if not found:
        return None
    try:
        parts = [_BEGINS, *(_shown(*one) for one in [*found][-_MOST_FRAMES:]), _last_line(said)]
        return mask_known(_bounded(parts))
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - as above
        return None


def frames_of(error: BaseException) -> str:
    """The frames alone, with those of a child process that it comes from; empty if there are none to show."""
    try:
        return mask_known("".join(_frames(error)))
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - as above
        return ""


def place_of(traceback: str | None) -> Place | None:
    r"""
    Where the code of the user was when the exception was raised: the last frame that is of no library.

    >>> print(place_of('Traceback (most recent call last):\n  File "/srv/shop.py", line 7, in pay\n    1 / 0\n'))
    /srv/shop.py:7 in pay
    """
    places = [Place(file, int(line), name) for file, line, name in _FILE.findall(traceback or "")]
    own = [place for place in places if not _NOT_THEIRS.search(place.file)]
    if not own and places and (package := _PACKAGE.match(places[0].file)):  # their code is installed, too
        own = [place for place in places if place.file.startswith(package[0])]
    found = own or places
    return found[-1] if found else None


def from_here(text: str) -> str:
    """A traceback or a place in which files of the current folder are named as people there name them."""
    try:
        here = os.path.join(os.getcwd(), "")  # noqa: PTH109, PTH118 - ends with a separator
    except OSError:  # it was removed
        return text
    return text.replace(f'  File "{here}', '  File "').removeprefix(here)


def _chain(error: BaseException, said: BaseException, seen: set[int]) -> Iterator[str]:
    """The exceptions that it came from, the first one first, then itself, and what is inside of a group."""
    seen.add(id(error))
    cause, context = raised.cause(error), raised.context(error)
    before, connected = (cause, _CAUSE) if cause is not None else (context, _CONTEXT)
    hidden = cause is None and raised.suppressed(error)
    if before is not None and not hidden and id(before) not in seen and len(seen) < _MOST_LINKS:
        parts = [*_chain(before, before, seen)]
        if cause is not None or any(part.startswith("  File ") for part in parts):
            yield from parts
            yield connected
    yield _BEGINS
    yield from _frames(error)
    yield _last_line(said)
    inside = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for number, one in enumerate(inside[:_MOST_INSIDE], 1):
        if id(one) not in seen and len(seen) < _MOST_IN_ALL:
            yield f"\nException {number} of {len(inside)} in this group:\n\n"
            yield from _chain(one, one, seen)


def _frames(error: BaseException) -> Iterator[str]:
    kept: deque[tuple[FrameType, int]] = deque(maxlen=_MOST_FRAMES)
    at: TracebackType | None = raised.frames(error)
    while at is not None:
        if not at.tb_frame.f_code.co_filename.startswith(_AROUND):
            kept.append((at.tb_frame, at.tb_lineno))
        at = at.tb_next
    for file in {frame.f_code.co_filename for frame, _ in kept}:
        linecache.checkcache(file)
    for frame, line in kept:
        yield _shown(frame, line)
    elsewhere = raised.fields(error).get(ELSEWHERE)
    if isinstance(elsewhere, str):
        yield from _ONE.split(elsewhere)


def _shown(frame: FrameType, line: int) -> str:
    code = frame.f_code
    source = _redacted(linecache.getline(code.co_filename, line, frame.f_globals).strip())
    file = code.co_filename if len(code.co_filename) <= _WIDEST else f"…{code.co_filename[1 - _WIDEST :]}"
    told = f'  File "{_redacted(file)}", line {line}, in {_redacted(code.co_name)}\n'
    return f"{told}    {source}\n" if source else told


def _last_line(error: BaseException) -> str:
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}.{kind.__qualname__}"
    )
    text = error_text(error)
    return f"{name}: {text}\n" if text else f"{name}\n"


# The same lines fail again and again. A secret that becomes known later is taken out of the whole text.
@lru_cache(maxsize=2048)
def _redacted(line: str) -> str:
    return sanitise(line, _WIDEST)


def _bounded(parts: list[str]) -> str:
    """As much of the end of it as may be kept."""
    left = MOST_BYTES - len(_CUT)
    kept: list[str] = []
    for part in reversed(parts):
        left -= len(part.encode(errors="replace"))  # only its size: what is kept is the text itself
        if left < 0:
            kept.append(_CUT)
            break
        kept.append(part)
    return "".join(reversed(kept))


def parse_python(text: str | bytes) -> ast.Module:
    """
    The syntax tree of a Python text. CPython 3.11 counts the depth of all trees of a process in one number: if two threads
    parse at a time, one of them may get a SystemError that says nothing about its text, and parses it again.

    >>> parse_python("x = 1").body[0].lineno
    1
    """
    import ast

    for _ in range(_PARSES - 1):
        with suppress(SystemError):
            return ast.parse(text)
    return ast.parse(text)
