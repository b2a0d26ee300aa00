"""
Secrets have no place in a pipeline file, nor in what it is filled with: here they are looked for in data, by the names of
keys, which the redaction knows, and by what a text surely is.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from outlast.kernel.redact import UNKNOWN, has_literal, holds_secret, is_query_key, is_secret_name, looks_like_secret
from outlast.spec import references, yaml
from outlast.spec.model import Template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from outlast.spec.mistakes import Path
    from outlast.spec.references import Reference
    from outlast.spec.yaml import Node

CONNECTION = re.compile(r"@(?P<family>[a-z][a-z0-9_-]*)(?:\.(?P<alias>[A-Za-z0-9_][A-Za-z0-9_-]*))?", re.ASCII)
HIDDEN = "a value that is not shown"
_OF_QUERY = "?key"  # what a parameter `key` of an address is called
_INSIDE = "."  # between the names of keys one inside of the other
_OF_KEYS = re.compile(r"(?i)(?:keys?|pass|signature)\.?$")


def static(parts: Sequence[references.Part]) -> str:
    """A text with a mark in place of each reference."""
    return "".join(part if isinstance(part, str) else UNKNOWN for part in parts)


def written(text: str) -> str:
    """The same of a text as the file has it."""
    if "${" not in text:
        return text
    try:
        return static(references.parse(text))
    except references.Unreadable:
        return text


def inline(
    value: Any, node: Node, path: Path, is_safe: Callable[[Reference], bool], name: str = ""
) -> Iterator[tuple[Node, Path]]:
    """
    The places of secrets in data that stands at this node, under this name. `is_safe`: whether what a reference stands
    for is kept out of the manifest. Where a reference has been filled, the node is that of the reference.
    """
    waiting: list[tuple[Any, Node, Path, str]] = [(value, node, path, name)]
    while waiting:
        one, at, where, called = waiting.pop()
        if isinstance(one, dict):
            for key, inner in one.items():
                below = (at.get(key) if at.kind == "map" else None) or at
                if holds_secret(key):
                    yield at.key(key) or at, (*where, yaml.step(key))
                waiting.append((inner, below, (*where, yaml.step(key)), _named(called, key, one)))
        elif isinstance(one, list):
            items = at.items if at.kind == "list" and len(at.items) == len(one) else (at,) * len(one)
            waiting += [(inner, items[number], (*where, number), called) for number, inner in enumerate(one)]
        elif _is_secret(one, called, is_safe):
            yield at, where


def _named(outer: str, key: str, siblings: dict[str, Any]) -> str:
    """What a value is called: by its key, with that of a secret around it, or as its sibling `name` says."""
    if outer and is_named(outer):
        inside = f"{outer}{_INSIDE}{key}"
        # What is in a mapping of keys are keys, whatever each of them is called: {api_keys: {shop: ...}}.
        return f"{outer}{_INSIDE}" if _OF_KEYS.search(outer) and is_named(f"secret{_INSIDE}{key}") else inside
    if outer == "query" and key == "key":
        return _OF_QUERY
    if key != "value":
        return outer if outer and may_be(outer) and not may_be(key) else key
    said = (siblings.get(one) for one in ("name", "key", "variable"))
    return next((one for one in said if isinstance(one, str) and is_named(one)), key)


def _is_secret(value: Any, name: str, is_safe: Callable[[Reference], bool]) -> bool:
    if isinstance(value, str):
        if name == _OF_QUERY:
            return is_query_key(value) or holds_secret(value)
        named = may_be(name) and looks_like_secret(name, value) and not CONNECTION.fullmatch(value)
        return named or holds_secret(value)
    if isinstance(value, Template):
        text = static(value.parts)
        if holds_secret(text):
            return True
        if not is_named(name):
            return False
        return has_literal(name, text) or not all(map(is_safe, references.references_in(value.parts)))
    # A number may be a secret itself; inside of one it is a time or a size.
    return isinstance(value, int | float) and not isinstance(value, bool) and _INSIDE not in name and is_named(name)


@lru_cache(maxsize=4096)
def is_named(name: str) -> bool:
    """Whether a key of this name holds a secret."""
    return bool(name) and is_secret_name(name)


@lru_cache(maxsize=4096)
def may_be(name: str) -> bool:
    """The same with names that are secrets only if their values look like it: looked at once for each name."""
    return bool(name) and looks_like_secret(name, "aB3-aB3-aB3-aB3")
