"""
Keys of items: the user's own, or the hash of an item's content. If a key comes again, it gets a number.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from outlast.components import Unreadable
from outlast.components.values import plain
from outlast.errors import ConfigurationError
from outlast.store.records import CODED, coded, key_text

if TYPE_CHECKING:
    from collections.abc import Callable

_MISSING = object()
_FULL = 0.6  # of the table, before it grows


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=plain).encode


class Seen:
    """How often each key has come, in 8 to 30 bytes a key whatever its length: a table of 64-bit hashes."""

    def __init__(self) -> None:
        self._room = 1 << 12
        self._table = array("q", bytes(8 * self._room))
        self._used = 0
        self._again: dict[int, int] = {}

    def count(self, mark: int) -> int:
        """How often this mark came before."""
        mark = mark or 1
        table, mask = self._table, self._room - 1
        place = mark & mask
        while (there := table[place]) and there != mark:
            place = (place + 1) & mask
        if there:
            before = self._again.get(mark, 1)
            self._again[mark] = before + 1
            return before
        table[place] = mark
        self._used += 1
        if self._used > _FULL * self._room:
            self._grow()
        return 0

    def has(self, mark: int) -> bool:
        """Whether this mark has come."""
        mark = mark or 1
        table, mask = self._table, self._room - 1
        place = mark & mask
        while (there := table[place]) and there != mark:
            place = (place + 1) & mask
        return bool(there)

    def skip(self, mark: int, to: int) -> None:
        """This mark counts as if it had come so often."""
        self._again[mark or 1] = to

    def _grow(self) -> None:
        old = self._table
        self._room *= 2
        self._table = table = array("q", bytes(8 * self._room))
        mask = self._room - 1
        for mark in old:
            if mark:
                place = mark & mask
                while table[place]:
                    place = (place + 1) & mask
                table[place] = mark


class NoKey(ConfigurationError):
    """
    The first item has no key of the kind that was asked for: the name of the field, or the function, is the wrong one.
    """


class Ahead(Iterator[Any]):
    """A source whose first item was read in advance. An error at that item is raised later, by the first `next`."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source
        self.first: Any = _MISSING
        self._raised: BaseException | None = None
        try:
            self.first = next(source, _MISSING)
        except BaseException as error:  # noqa: BLE001 - the run says so
            self._raised = error

    def __next__(self) -> Any:
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
        if self.first is _MISSING:
            return next(self._source)
        item, self.first = self.first, _MISSING
        return item

    def close(self) -> None:
        """Nothing more is read."""
        close = getattr(self._source, "close", None)
        if close is not None:
            close()

    def checked(self, item_key: str | Callable[[Any], str]) -> Ahead:
        """Itself, if its first item has such a key."""
        if self.first is not _MISSING and not isinstance(self.first, Unreadable):
            try:
                Keys(item_key).of(self.first, 0)
            except NoKey:
                self.close()
                raise
        return self


def checked(source: Any, item_key: str | Callable[[Any], str] | None) -> Any:
    """
    The same items, if the first of them has a key; `NoKey` before anything is on record. What has to be waited for is
    asked later.
    """
    if item_key is None or not isinstance(source, Iterator):
        return source
    return Ahead(source).checked(item_key)


class Keys:
    """
    Gives each item of a source its key, and no two the same. The same source in the same order gets the same keys.

    A key that came before gets a number: the first one that makes it a key that has not come, whoever had that.
    """

    def __init__(self, item_key: str | Callable[[Any], str] | None) -> None:
        self._of = item_key
        self._seen = Seen()
        self._first = True
        self.bare = False  # the newest item has no key of its own

    def of(self, item: Any, seq: int) -> str:
        """The key of the item at this position."""
        key = None if self._of is None else self._own(item)
        return self._once(self._content(item, seq) if key is None else key)

    def of_content(self, content: Any, seq: int) -> str:
        """The key of something that is no item: what could not be read."""
        return self._once(self._content(content, seq))

    def _once(self, key: str) -> str:
        if not key.isprintable() or key.startswith(CODED):
            # What begins like a code could be taken for one.
            key = coded(key) if key.startswith(CODED) else key_text(key)
        seen, mark = self._seen, hash(key)  # differs from process to process, and is kept by none
        before = seen.count(mark)
        if not before:
            return key
        number = before + 1
        while seen.has(hash(numbered := f"{key}#{number}")):  # somebody's own key
            number += 1
        seen.skip(mark, number)
        seen.count(hash(numbered))
        return numbered

    @staticmethod
    def _content(item: Any, seq: int) -> str:
        try:
            return blake2b(_canonical(item).encode(errors="surrogatepass"), digest_size=16).hexdigest()
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - what an item says of itself is the user's code
            return f"@{seq}"  # nothing else is known of it than where it stood

    def _own(self, item: Any) -> str | None:
        of, value, raised = self._of, _MISSING, None
        first, self._first = self._first, False
        if callable(of):
            try:
                value = of(item)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - said for the first item, and not the end of the others
                raised = error
        elif isinstance(item, Mapping):
            value = item.get(of, _MISSING)
        else:
            value = getattr(item, str(of), _MISSING)
        self.bare = value is _MISSING or value is None
        if not self.bare:
            return str(value)
        if first:
            what = "the function item_key to give a key" if callable(of) else f"every item to have the item_key {of!r}"
            got = "none" if raised is None else type(raised).__name__
            raise NoKey(f"expected {what}, got: {got} in the first item.") from raised
        return None  # one item without a key must not stop the others: it is known by its content
