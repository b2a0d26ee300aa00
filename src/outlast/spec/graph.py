"""
Which step comes after which. Pure: ids and what each needs, in the order of the file.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Graph:
    """
    Steps and their needs. `order` is the order in which they may run: each after all that it needs, and otherwise as
    the file has them. `cycles` are steps that wait for each other; they are in no order.

    >>> graph = Graph({"c": ["a"], "a": [], "b": ["a", "c"]})
    >>> graph.order, graph.is_before("a", "b"), graph.is_before("b", "c")
    (['a', 'c', 'b'], True, False)
    """

    def __init__(self, needs: Mapping[str, Sequence[str]]) -> None:
        self.needs = {step: [one for one in before if one in needs] for step, before in needs.items()}
        self._number = {step: number for number, step in enumerate(self.needs)}
        self.order = self._sorted()
        self.cycles = self._cycles() if len(self.order) < len(self.needs) else []
        self._before: dict[str, int] = {}
        for step in self.order:  # a set of steps is a number, one bit for each
            above = 0
            for one in self.needs[step]:
                above |= self._before[one] | (1 << self._number[one])
            self._before[step] = above

    def is_before(self, earlier: str, later: str) -> bool:
        """Whether a step has surely succeeded when another one begins."""
        return bool(self._before.get(later, 0) >> self._number[earlier] & 1) if earlier in self._number else False

    def set_of(self, steps: Iterable[str]) -> int:
        """Steps as a set, for `is_after_any`."""
        return sum(1 << self._number[step] for step in set(steps) if step in self._number)

    def is_after_any(self, step: str, others: int) -> bool:
        """Whether one of these has surely succeeded when a step begins."""
        return bool(self._before.get(step, 0) & others)

    def is_ordered(self, step: str) -> bool:
        """Whether a step has a place in the order: it is in no cycle, and behind none."""
        return step in self._before

    def _sorted(self) -> list[str]:
        waiting = {step: len(set(before)) for step, before in self.needs.items()}
        after: dict[str, list[str]] = {step: [] for step in self.needs}
        for step, before in self.needs.items():
            for one in set(before):
                after[one].append(step)
        steps = list(self.needs)
        ready = [self._number[step] for step, count in waiting.items() if not count]
        heapq.heapify(ready)
        found: list[str] = []
        while ready:
            step = steps[heapq.heappop(ready)]
            found.append(step)
            for one in after[step]:
                waiting[one] -= 1
                if not waiting[one]:
                    heapq.heappush(ready, self._number[one])
        return found

    def _cycles(self) -> list[list[str]]:
        """One round for each knot of steps that wait for each other, from the first of it in the file."""
        found: list[list[str]] = []
        for knot in self._knots(set(self.order)):
            path: list[str] = []
            step = min(knot, key=self._number.__getitem__)
            place: dict[str, int] = {}
            while step not in place:
                place[step] = len(path)
                path.append(step)
                step = next(one for one in self.needs[step] if one in knot)
            round_ = path[place[step] :]
            first = min(range(len(round_)), key=lambda i: self._number[round_[i]])
            found.append(round_[first:] + round_[:first])
        return sorted(found, key=lambda round_: self._number[round_[0]])

    def _knots(self, sorted_out: set[str]) -> list[set[str]]:
        """Steps each of which waits for all others of its set (Tarjan), without recursion."""
        found: list[set[str]] = []
        index: dict[str, int] = {}
        lowest: dict[str, int] = {}
        open_: dict[str, None] = {}  # those whose knot is not known yet, in the order in which they were met
        for start in self.needs:
            if start in sorted_out or start in index:
                continue
            work = [(start, iter(self.needs[start]))]
            while work:
                step, rest = work[-1]
                if step not in index:
                    index[step] = lowest[step] = len(index)
                    open_[step] = None
                after = next((one for one in rest if one not in sorted_out), None)
                if after is not None:
                    if after not in index:
                        work.append((after, iter(self.needs[after])))
                    elif after in open_:
                        lowest[step] = min(lowest[step], index[after])
                    continue
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[step])
                if lowest[step] == index[step]:
                    knot: set[str] = set()
                    while step not in knot:
                        knot.add(open_.popitem()[0])
                    if len(knot) > 1 or step in self.needs[step]:
                        found.append(knot)
        return found
