"""
What is wrong with an item, error by error, in words for whoever owns the data; and the same read back from a store, for
an error file.
"""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlast.deadletters.beginnings import source_of
from outlast.errors import PermanentFailure
from outlast.kernel.redact import error_text, in_json
from outlast.store.records import from_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from outlast.store import Store
    from outlast.store.records import ItemRow, ItemStatus

_PAGE = 500
_FIELD = re.compile(r"Field '([^']{1,200})': ")


def visible(text: str) -> str:
    r"""
    The text with what cannot be seen written out: control characters, characters that turn the direction of reading,
    half characters.

    >>> visible("a\nb\u202ec")
    'a\\nb\\u202ec'
    """
    return in_json(text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t"))


def shown(value: object, most: int = 60) -> str:
    """A value as a person may see it: one line, at most so many characters, whatever it is."""
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - somebody else's __str__, or a number of more digits than Python prints
        text = f"<{type(value).__name__}>"
    return visible(text if len(text) <= most else text[: most - 1] + "…")


@dataclass(frozen=True, slots=True)
class RowError:
    """
    One thing that is wrong with a row. `message` is a sentence for whoever owns the data; `kind` is a word to sort by,
    such as ``missing``, ``format`` or ``range``; `value` is what stood there, as it may be shown.
    """

    message: str
    field: str | None = None
    kind: str = "invalid"
    value: str | None = None

    @classmethod
    def of(cls, error: RowError | str, kind: str = "invalid") -> RowError:
        """A sentence as an error; one that begins with ``Field '...':`` says which field it is about."""
        if isinstance(error, RowError):
            return error
        text = str(error)
        about = _FIELD.match(text)
        return cls(text, None if about is None else about[1], kind)


class InvalidRow(PermanentFailure):
    """
    A row is wrong, and stays so until its owner changes it: `errors` has all that is wrong with it. Its class is
    ``validation_error``.
    """

    def __init__(self, errors: Sequence[RowError | str]) -> None:
        self.errors = tuple(RowError.of(error) for error in errors)
        messages = [error.message for error in self.errors]
        if len(messages) > 1:
            messages = [message.rstrip(".") for message in messages]
        super().__init__("; ".join(messages), error_class="validation_error")

    @property
    def problem(self) -> str:
        """
        What rows with the same problem have in common: which fields are wrong in which way; where that says nothing,
        the sentence.
        """
        ways = {f"{error.field} {error.message if error.kind == 'invalid' else error.kind}" for error in self.errors}
        return ", ".join(sorted(ways))


def particulars(stage: str, error: Exception, error_class: str) -> dict[str, Any]:
    """What is kept with a failed item of what went wrong."""
    errors: Sequence[RowError] = (RowError.of(error_text(error) or error_class, error_class),)
    if isinstance(error, InvalidRow):
        errors = error.errors
    told = [[_text(each.field), str(each.kind), str(each.message), _text(each.value)] for each in errors]
    return {"stage": stage, "errors": told}


def _text(value: object) -> str | None:
    # What somebody's own step has put there must not keep a failure from being recorded.
    return None if value is None else value if isinstance(value, str) else shown(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLine:
    """
    One error of one item, with what is needed to find and mend it. `row_index` is the item's place in the source, from
    0; `raw_row` the item as the source gave it.
    """

    run_id: str
    run_key: str
    timestamp: datetime
    pipeline: str
    stage: str
    row_index: int
    item_key: str
    field: str | None
    error_type: str
    message: str
    original_value: str | None
    raw_row: Any


def error_lines(store: Store, run_id: str, decode: Callable[[bytes], Any]) -> Iterator[ErrorLine]:
    """Every error of a run, in the order of its source."""
    run = store.run(run_id)
    if run is None:
        return
    names = [mark.name for mark in run.stages]
    kinds: tuple[ItemStatus, ...] = ("dlq", "failed")
    pages = (_failed(store, run.number, kind, decode) for kind in kinds)
    for item, told, raw, failed_us in heapq.merge(*pages, key=lambda found: found[0].seq):
        stage = told.get("stage") or (names[item.stage] if 0 <= item.stage < len(names) else str(item.stage))
        errors: list[Any] = told.get("errors") or [[None, "failed", item.reason or "", None]]
        for field, kind, message, value in errors:
            yield ErrorLine(
                run_id=run.id,
                run_key=run.run_key,
                timestamp=from_us(failed_us),
                pipeline=run.pipeline,
                stage=stage,
                row_index=item.seq,
                item_key=item.key,
                field=field,
                error_type=kind,
                message=message,
                original_value=value,
                raw_row=raw,
            )


def _failed(
    store: Store, number: int, status: ItemStatus, decode: Callable[[bytes], Any]
) -> Iterator[tuple[ItemRow, dict[str, Any], Any, int]]:
    """
    Failed items with their particulars, what the source gave, and when they failed last: that may have been in a
    replay.
    """
    after: int | None = None
    while rows := store.items(number, status, after=after, limit=_PAGE):
        after = rows[-1].seq
        told = [_told(row, decode) for row in rows]
        letters = store.letters_by_id(each["letter"] for each in told if each.get("letter"))
        for row, each in zip(rows, told, strict=True):
            letter = letters.get(each.get("letter") or "")
            source = None if letter is None else source_of(letter)
            raw = each.get("input") if letter is None else source and _read(source, decode)
            ended = row.started_us + row.took_us
            yield row, each, raw, letter.last_attempt_us if letter is not None and letter.replays else ended


def _told(row: ItemRow, decode: Callable[[bytes], Any]) -> dict[str, Any]:
    told = None if row.output is None else _read(row.output, decode)
    return told if isinstance(told, dict) else {}  # sealed by a codec that is not here, or from before this was kept


def _read(data: bytes, decode: Callable[[bytes], Any]) -> Any:
    """What was stored; one that cannot be read hides no other."""
    try:
        return decode(data)
    except Exception as error:  # noqa: BLE001 - a codec that is not here, or a damaged row
        return f"<cannot be read: {type(error).__name__}>"
