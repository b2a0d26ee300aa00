"""
Which dead letters: one value, `LetterFilter`, from a command line or a call down to the SQL.

Each field is defined in this file only: its type, its meaning, its SQL. Every function that selects dead letters takes
a `LetterFilter`, and every such command has an option for each field.
"""

from __future__ import annotations

import inspect
import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, cast

from outlast.errors import ConfigurationError, nearest
from outlast.store.records import storable, to_us

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from outlast.store.records import LetterStatus

    F = TypeVar("F", bound=Callable[..., Any])

STATUSES: tuple[LetterStatus, ...] = ("open", "replaying", "resolved", "archived")
_LOWER = str.maketrans({chr(code): chr(code + 32) for code in range(65, 91)})
_MOST_DAYS = 36_500.0


class LetterFilter(TypedDict, total=False):
    """
    Which dead letters: all given fields must fit; a field that is left out or None fits every letter. `group` is a
    fingerprint, `run` a run's id; that of a flow's run means the letters of the rows and items of its steps, too. `text` is
    looked for in the error and the item's key, in any case. `older_than_days`: the letter was not made, moved or edited in
    so many days.
    """

    pipeline: str | None
    stage: str | None
    group: str | None
    status: str | None
    run: str | None
    text: str | None
    older_than_days: float | None


class Field(NamedTuple):
    """
    One field of the filter: `about` and `option` are for the command line, `condition` for the database; ``{error}``
    stands for that column in lower case.
    """

    about: str
    condition: str
    option: str
    number: bool = False  # a number instead of a text


FIELDS: Mapping[str, Field] = {
    "pipeline": Field("Only of this pipeline.", "pipeline = ?", "--pipeline"),
    "stage": Field("Only of this stage.", "stage = ?", "--stage"),
    "group": Field("Only of this failure group.", "fingerprint = ?", "--group"),
    "status": Field("open, replaying, resolved, archived or all.", "status = ?", "--status"),
    "run": Field(
        "Only of this run, by its key, its id, or the beginning of one; of a flow, also of its rows.",
        "run = ?",
        "--run",
    ),
    "text": Field(
        "Only with this text in the error or the item's key.",
        r"({error} like ? escape '\' or {item_key} like ? escape '\')",
        "--text",
    ),
    "older_than_days": Field(
        "Only those that were not made, moved or edited for so many days.", "moved < ?", "--older-than", number=True
    ),
}


def checked(where: Mapping[str, Any], *, without: tuple[str, ...] = ()) -> LetterFilter:
    """
    The filter, if it is one; all that is wrong with it at once. `without` names the fields that mean nothing here.
    """
    names = [name for name in FIELDS if name not in without]
    problems = [
        f"expected a dead letter's mark to be one of {', '.join(names)}, got: {name}.{nearest(name, names)}"
        for name in where
        if name not in names
    ]
    problems += [problem for name in names if (problem := _wrong(name, where.get(name)))]
    if problems:
        raise ConfigurationError(problems)
    return cast("LetterFilter", {name: where[name] for name in names if where.get(name) is not None})


def _wrong(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if name == "status":
        wanted = "open, replaying, resolved, archived or None"
        return None if value in STATUSES else f"expected status to be {wanted}, got: {value!r}."
    if FIELDS[name].number:
        fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        fine = fine and 0 <= value <= _MOST_DAYS
        return None if fine else f"expected {name} to be a number of days from 0 to {_MOST_DAYS:,.0f}, got: {value!r}."
    if not isinstance(value, str):
        return f"expected {name} to be a text, got: a value of type {type(value).__name__}."
    # An empty text is in every error: who left it out by mistake would mean all there are.
    return f"expected {name} to be a text to look for, got: an empty one." if name == "text" and not value else None


def chooses(where: Mapping[str, Any]) -> bool:
    """Whether the filter says which: the status alone does not."""
    return any(value is not None for name, value in where.items() if name != "status")


def in_sql(where: LetterFilter, lower: str, now: datetime) -> tuple[str, list[Any]]:
    """
    The conditions, each with ``and`` in front, and their values; `lower` is how the database spells a column in lower
    case.
    """
    sql, values = "", list[Any]()
    for name, value in where.items():
        if value is None:
            continue
        field = FIELDS[name]
        sql += " and " + field.condition.format(error=lower.format("error"), item_key=lower.format("item_key"))
        if name == "text":
            values += [_like(str(value))] * 2
        elif name == "older_than_days":
            values.append(to_us(now - timedelta(days=cast("float", value))))
        else:
            values.append(storable(str(value)))
    return sql, values


def _like(text: str) -> str:
    # ASCII letters in any case: the two databases disagree about all others.
    escaped = storable(text).translate(_LOWER).replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
    return f"%{escaped}%"


def spelled_out(*, without: tuple[str, ...] = (), **defaults: str) -> Callable[[F], F]:
    """Show the fields of the filter in the signature of a function that takes them as ``**where``."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        fields = LetterFilter.__annotations__
        mine = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        named = {one.name for one in mine}
        mine += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=fields[name])
            for name in FIELDS
            if name not in without and name not in named
        ]
        function.__signature__ = signature.replace(parameters=mine)  # type: ignore[attr-defined]
        return function

    return decorate
