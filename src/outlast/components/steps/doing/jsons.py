"""
JSON as others say it. `strict` reads what must be JSON and nothing else; `one_value` finds the one JSON value in what a
model has said, and repairs nothing.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

_FENCE = re.compile(r"^[ \t]*```[ \t]*[\w.+-]*[ \t]*$(?P<inside>.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_MARKS = "\ufeff \t\r\n"  # a byte order mark, and what may stand around JSON
_THOUGHT, _THOUGHT_ENDS = "<think>", "</think>"
_OPENS = re.compile(r"[\[{]")
_BRACKETS = re.compile(r"[\[\]{}]")


class NoValue(ValueError):
    """There is no JSON value, or it is not clear which one; its text says why, in our own words."""


def strict(text: str | bytes) -> Any:
    """
    JSON, and nothing that only Python takes for it: no NaN, no number that would become infinity, no name twice in one
    object.

    >>> strict('{"a": [1.5]}')
    {'a': [1.5]}
    """
    return json.loads(text, **_HOOKS)


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
    blocks = _FENCE.findall(text)
    if len(blocks) > 1:
        raise NoValue("several fenced blocks")
    if blocks:
        try:
            return strict(blocks[0].strip(_MARKS))
        except (ValueError, RecursionError):
            raise NoValue("a fenced block that is no JSON") from None
    return _between(text)


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
