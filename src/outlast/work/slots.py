"""
Slots: how much of one kind of work runs at a time. The event loop and threads take slots and give them back.

A slot is a token in a deque, so taking one and giving one back are single steps and need no lock. Work that finds no
slot is parked. No parked work is forgotten, because each side acts before it looks: `park` first adds the work to the
queue and then looks for a free slot; after a slot was given back, `next` looks for parked work.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Slots(Generic[T]):
    """
    A fixed number of slots, and the queue of work that waits for one. Work may keep its slot while it is not running.
    """

    __slots__ = ("free", "give", "kept", "size", "take", "waiting")

    def __init__(self, size: int, waiting: Any = None) -> None:
        """`waiting` takes the place of the plain queue, for work that waits for more than a slot."""
        self.size = size
        self.free: deque[None] = deque([None] * size)
        # Bound here, because each is called once or more for every item.
        self.take: Callable[[], None] = self.free.pop  # raises IndexError if there is none
        self.give: Callable[[], None] = partial(self.free.append, None)
        self.waiting: Any = deque() if waiting is None else waiting
        self.kept: set[T] = set()

    @property
    def under_way(self) -> int:
        """Slots that are taken by work that is under way."""
        return self.size - len(self.free) - len(self.kept)

    def park(self, work: T) -> T | None:
        """Have it wait for a slot; answers as `next`."""
        self.waiting.append(work)
        return self.next()

    def next(self) -> T | None:
        """Take out the first that waits, if there is a slot that it can take."""
        if not self.free:
            return None
        try:
            work: T = self.waiting.popleft()
        except IndexError:
            return None
        return work

    def keep(self, work: T) -> None:
        """It keeps its slot, and is not under way until `resume`."""
        self.kept.add(work)

    def keeps(self, work: T) -> bool:
        """Whether it has kept a slot."""
        return work in self.kept

    def resume(self, work: T) -> bool:
        """It is under way again, if it has kept its slot."""
        if work in self.kept:
            self.kept.discard(work)
            return True
        return False

    def release(self, work: T) -> bool:
        """Give back the slot that it has kept, if it has."""
        kept = self.resume(work)
        if kept:
            self.give()
        return kept
