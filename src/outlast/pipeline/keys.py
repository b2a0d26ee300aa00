"""
What an item is known by: a key of the user's own, or the hash of its content; the second of two equal ones gets a number.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

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


class Keys:
    """
    Gives each item of a source its key, and no two the same. The same source in the same order gets the same keys.

    A key that came before gets a number: the first one that makes it a key that has not come, whoever had that.
    """

    def __init__(self, item_key: str | Callable[[Any], str] | None) -> None:
        self._of = item_key
        self._seen = Seen()

    def of(self, item: Any, seq: int) -> str:
        """The key of the item at this position."""
        key = None if self._of is None else self._own(item, seq)
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

    def _own(self, item: Any, seq: int) -> str | None:
        of, value = self._of, _MISSING
        if callable(of):
            try:
                value = of(item)
            except KeyboardInterrupt:
                raise
            except BaseException:
                if seq == 0:
                    raise
        elif isinstance(item, Mapping):
            value = item.get(of, _MISSING)
        else:
            value = getattr(item, str(of), _MISSING)
        if value is not _MISSING and value is not None:
            return str(value)
        if seq == 0:
            message = f"expected every item to have the item_key {of!r}, got: none in the first item."
            raise ConfigurationError(message)
        return None  # one item without a key must not stop the others: it is known by its content
