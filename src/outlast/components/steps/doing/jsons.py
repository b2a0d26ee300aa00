"""
JSON as others say it. `strict` reads what must be JSON and nothing else, `document` what must stay as it is; `one_value` finds the one JSON value in what a
model has said, and repairs nothing.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_FENCE = "```"
_LANGUAGE = re.compile(r"[\w.+-]*")  # of a fenced block, behind the fence that opens it
_MARKS = "\ufeff \t\r\n"  # a byte order mark, and what may stand around JSON
_THOUGHT, _THOUGHT_ENDS = "<think>", "</think>"
_OPENS = re.compile(r"[\[{]")
_BRACKETS = re.compile(r"[\[\]{}]")


class NoValue(ValueError):
    """There is no JSON value, or it is not clear which one; its text says why, in our own words."""


def strict(text: str | bytes, number: Callable[[str], Any] | None = None) -> Any:
    """
    JSON, and nothing that only Python takes for it: no NaN, no number that would become infinity, no name twice in one
    object. `number` makes one of digits with a fraction or an exponent.

    >>> strict('{"a": [1.5]}')
    {'a': [1.5]}
    """
    hooks: dict[str, Any] = _HOOKS if number is None else {**_HOOKS, "parse_float": number}
    return json.loads(text, **hooks)


def exact(text: str) -> float | Decimal:
    """
    A number with all its digits: a float, or what is exact where a float is another number.

    >>> exact("0.10"), exact("12345678901234567890.123")
    (0.1, Decimal('12345678901234567890.123'))
    """
    found, whole = float(text), Decimal(text)
    return found if math.isfinite(found) and Decimal(repr(found)) == whole else whole


def document(text: str | bytes) -> Any:
    """
    JSON of which nothing is lost: as `strict`, and each number is the same as a float. An exact number in its place would
    be written as a text again.

    >>> document('[0.1, 12345678901234567890]')
    [0.1, 12345678901234567890]
    """
    return strict(text, _same)


def _same(text: str) -> float:
    found = exact(text)
    if not isinstance(found, float):
        raise ValueError("a number has more digits than a float holds, or is too large or too small for one")  # noqa: TRY004 - it is what was read
    return found


def one_value(said: str) -> Any:
    r"""
    The JSON value in what a model has said: all of it, what stands in its one fenced block, or its one object or list, if
    no other bracket stands around it. Raises `NoValue` if there is none, or more than one that could be meant.

    >>> one_value('Here you are:\n```json\n{"stars": 5}\n```')
    {'stars': 5}
    >>> one_value('I would say {"stars": 5}. Shall I go on?')
    {'stars': 5}
    """
    text = said.strip(_MARKS)
    if text.startswith(_THOUGHT):  # what some models think aloud is no part of their answer
        _, found, text = text.partition(_THOUGHT_ENDS)
        if not found:
            raise NoValue("a thought that does not end")
        text = text.strip(_MARKS)
    if not text:
        raise NoValue("nothing")
    try:
        return strict(text)
    except (ValueError, RecursionError):
        pass
    blocks = _fenced(text)
    if len(blocks) > 1:
        raise NoValue("several fenced blocks")
    if blocks:
        try:
            return strict(blocks[0].strip(_MARKS))
        except (ValueError, RecursionError):
            raise NoValue("a fenced block that is no JSON") from None
    return _between(text)


def _fenced(text: str) -> list[str]:
    """
    What stands in fenced blocks. Each line is looked at once: an answer may be long, and an expression that looks for the
    end of every fence from where it opens would take the square of that.
    """
    blocks: list[str] = []
    inside: list[str] | None = None
    for line in text.split("\n"):
        stripped = line.strip(" \t\r")
        language = stripped.removeprefix(_FENCE).strip(" \t") if stripped.startswith(_FENCE) else None
        if inside is None:
            if language is not None and _LANGUAGE.fullmatch(language):
                inside = []
        elif language == "":
            blocks.append("\n".join(inside))
            inside = None
        else:
            inside.append(line)
    return blocks  # a block that does not end is none


def _between(text: str) -> Any:
    begin = _OPENS.search(text)
    if begin is None:
        raise NoValue("text without an object or a list")
    try:
        value, end = json.JSONDecoder(**_HOOKS).raw_decode(text, begin.start())
    except (ValueError, RecursionError):
        raise NoValue("text whose first object or list is no JSON") from None
    if _BRACKETS.search(text, 0, begin.start()) or _BRACKETS.search(text, end):
        raise NoValue("text with more than one object or list")
    return value


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _number(text: str) -> float:
    """A number that is too large would become infinity, which is no JSON."""
    found = float(text)
    if math.isinf(found):
        raise ValueError("a number is too large")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values of one name one would be lost in silence."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name comes twice")
    return made


_HOOKS: dict[str, Any] = {"parse_constant": _no_number, "parse_float": _number, "object_pairs_hook": _object}
