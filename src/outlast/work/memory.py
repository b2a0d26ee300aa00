"""
How much memory values may take between the end of their work and the store: an estimate of their size, and a bound.
"""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_BYTES = 64 * 2**20
LARGE = 4096  # bytes; smaller values need no bound
_SMALL = frozenset({int, float, bool, type(None)})
_SEVERAL = frozenset({list, tuple, set, frozenset})
_SOME = 16  # parts of a value that are looked at


class Memory:
    """
    A bound on the bytes of values that are finished and not written. A single value may be larger than the bound.

    While it blocks, no work begins; work that has begun ends and is written. The event loop counts the bytes, blocks
    and unblocks. A thread may block too, when many results are not counted yet; the loop checks it then.
    """

    __slots__ = ("_always", "_free", "has_room", "most", "typical", "used", "wait")

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        self.used = 0  # bytes of values that are finished and not written
        self.typical = 0  # bytes of one value, estimated from recent large ones; 0 while all are small
        self._free = threading.Event()
        self._free.set()
        self._always = False
        self.has_room = self._free.is_set
        self.wait = self._free.wait

    def weigh(self, size: int) -> None:
        """Learn from the size of one value."""
        self.typical = size if size > self.typical else self.typical - ((self.typical - size) >> 5)

    def fits(self, values: int, share: int = 1) -> bool:
        """Whether so many more values of the typical size fit into the bound, or into a share of it."""
        return self.used + self.typical * values < self.most // share

    def block(self) -> None:
        """Let no work begin."""
        if not self._always:
            self._free.clear()

    def unblock(self) -> None:
        """Let work begin."""
        self._free.set()

    def unblock_for_good(self) -> None:
        """No work begins any more, so nothing may wait here."""
        self._always = True
        self._free.set()


def size_of(value: Any, depth: int = 3) -> int:
    """
    The bytes of a value in memory, a quick estimate. It looks at a few of many parts, and at the attributes of objects.

    >>> size_of("x" * 1000), size_of([1.5] * 1000), size_of({"rows": ["x" * 1000] * 1000})
    (1048, 32064, 1048192)
    """
    kind = value.__class__
    if kind is str or kind is bytes:
        return 48 + len(value)
    if kind in _SMALL:
        return 32
    if depth == 0:
        return 64
    if kind is dict:
        return 64 + _many(value.values(), len(value), depth - 1) + 64 * len(value)
    if kind in _SEVERAL:
        return 64 + _many(value, len(value), depth - 1)
    try:
        return 64 + memoryview(value).nbytes
    except TypeError:
        pass
    try:
        return 64 + _many(vars(value).values(), len(vars(value)), depth - 1)
    except Exception:  # noqa: BLE001 - a class of the user's may do anything
        return 64


def _many(parts: Iterable[Any], count: int, depth: int) -> int:
    some = list(islice(parts, _SOME))
    return sum(size_of(part, depth) for part in some) * count // len(some) if some else 0
