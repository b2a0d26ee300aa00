"""A tree of YAML for tests: as plain data, and scalar by scalar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.spec.yaml import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.spec.yaml import Node


def data_of(node: Node) -> Any:
    """A whole tree as plain data."""
    if node.kind == "scalar":
        return value_of(node)
    if node.kind == "list":
        return [data_of(one) for one in node.items]
    return {key.text: data_of(value) for key, value in node.pairs}


def scalars(node: Node, path: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every scalar of a tree: its path, its text, its style and its place."""
    if node.kind == "scalar":
        yield path, node.text, node.style, node.line, node.column
    for number, one in enumerate(node.items):
        yield from scalars(one, (*path, number))
    for key, value in node.pairs:
        yield from scalars(value, (*path, key.text))
