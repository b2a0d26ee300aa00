"""
Stages as a graph, drawn from its edges. Pure: names in, text out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def ordered(edges: Iterable[tuple[str, str]]) -> list[str]:
    """
    Every node behind those that lead to it, otherwise in the order they are named in.

    >>> ordered([("a", "c"), ("a", "b"), ("b", "c")])
    ['a', 'b', 'c']
    """
    pairs = [*edges]
    left = [*dict.fromkeys(name for pair in pairs for name in pair)]
    found: list[str] = []
    while left:
        held = {end for start, end in pairs if start in left}
        # A circle has no beginning: cut it somewhere.
        following = next((name for name in left if name not in held), left[0])
        left.remove(following)
        found.append(following)
    return found


def ranks(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """
    The nodes in columns, each as far to the left as those that lead to it allow.

    >>> ranks([("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    [['a'], ['b', 'c'], ['d']]
    """
    pairs = [*edges]
    rank: dict[str, int] = {}
    for name in ordered(pairs):
        rank[name] = max((rank[start] + 1 for start, end in pairs if end == name and start in rank), default=0)
    columns: list[list[str]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    for name, place in rank.items():
        columns[place].append(name)
    return columns


def gutter(
    edges: Iterable[tuple[str, str]], order: Sequence[str] = (), most: int | None = None
) -> list[tuple[str, str]]:
    """
    A line for each node, from the first to the last: what stands before its name, and the name. Lanes are edges on
    their way down. `order` has all nodes, each behind those that lead to it; without it they are sorted here. A graph
    that needs more than `most` lanes side by side is not drawn: there is nothing.

    >>> for lines, name in gutter([("in", "a"), ("in", "b"), ("a", "out"), ("b", "out")]): print(lines, name)
    ┌─╮ in
    ├ │ a
    │ ├ b
    ▼─╯ out
    """
    pairs = [*dict.fromkeys(edges)]
    lanes: list[str | None] = []
    rows: list[tuple[str, str]] = []
    ends: dict[str, list[str]] = {}
    for start, end in pairs:
        ends.setdefault(start, []).append(end)
    for name in order or ordered(pairs):
        coming = [place for place, end in enumerate(lanes) if end == name]
        outward = ends.get(name, [])
        at = coming[0] if coming else _free(lanes, 0)
        for place in coming[1:]:
            lanes[place] = None
        lanes[at] = outward[0] if outward else None
        opened: list[int] = []
        for end in outward[1:]:
            place = _free(lanes, at + 1)
            lanes[place] = end
            opened.append(place)
            if most is not None and len(lanes) > most:
                return []
        if most is not None and len(lanes) > most:
            return []
        rows.append((_row(lanes, at, coming, opened, last=not outward), name))
        while lanes and lanes[-1] is None:
            lanes.pop()
    width = max((len(lines) for lines, _ in rows), default=0)
    return [(lines.ljust(width), name) for lines, name in rows]


def _free(lanes: list[str | None], start: int) -> int:
    for place in range(start, len(lanes)):
        if lanes[place] is None:
            return place
    lanes.extend([None] * (max(0, start - len(lanes)) + 1))
    return len(lanes) - 1


def _row(lanes: Sequence[str | None], at: int, coming: Sequence[int], opened: Sequence[int], *, last: bool) -> str:
    reach = max([at, *coming, *opened])
    cells: list[str] = []
    for place, end in enumerate(lanes):
        if place == at:
            cell = "▼" if last else "├" if coming else "┌"
        elif place in opened and place in coming:
            cell = "┼" if place < reach else "┤"
        elif place in opened:
            cell = "┬" if place < reach else "╮"
        elif place in coming:
            cell = "┴" if place < reach else "╯"
        elif at < place < reach:
            cell = "─" if end is None else "┼"
        else:
            cell = " " if end is None else "│"
        cells.append(cell + ("─" if at <= place < reach else " "))
    return "".join(cells).rstrip()
