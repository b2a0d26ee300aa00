"""
The functions that do the work of the components, one file a family. Each is imported when a step first runs it, and the
driver that it needs with it. None of them tries again.

    python      calls a function of the project
    files       reads files; writes one, whole or not at all
    http        one HTTP request; wire: which address is connected to, and until when
    llm         one question to a model; jsons: the JSON value in what it said
    mysql       the rows of a query
    postgres    the rows of a query; rows into a table, all or none
    s3          one object, read, written or deleted
    supabase    rows into a table over HTTP, and rows out of it
    rows        changes rows, and checks them against a JSON Schema
    sql         a query over rows, in memory
    resource    takes a share of a pool, and gives it back
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from outlast.components.running import called
from outlast.errors import PermanentFailure
from outlast.kernel.wording import counted
from outlast.verdicts import mark_begun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from outlast.components.running import StepContext


def invalid(message: str) -> PermanentFailure:
    """What came from earlier steps is not what it must be."""
    return PermanentFailure(message, error_class="validation_error")


def listed(rows: Any) -> list[Any]:
    """The rows of a config. What stands for them in a file is filled in by now: a text is none."""
    if not isinstance(rows, list):
        raise invalid(f"expected rows to be a list, got: a value of type {type(rows).__name__}")
    return rows


def enough(rows: Sequence[Any], least: int, what: str) -> None:
    """Refuse to write fewer rows than the config asks for, before anything is replaced."""
    if len(rows) < least:
        message = f"expected at least {counted(least, 'row')} for {what}, because min_rows is {least}, got: {len(rows):,}. Nothing was written"
        raise invalid(message)


def row_at(number: int, row: Any) -> Mapping[str, Any]:
    """A row that has columns; they are counted from 1."""
    if not isinstance(row, Mapping):
        raise invalid(f"expected row {number} to be a mapping, got: a value of type {type(row).__name__}")
    return row


def columns_of(rows: Sequence[Mapping[str, Any]], given: Sequence[str] | None, key: Sequence[str]) -> list[str]:
    """The columns that are written, those of the first row if none are `given`: every row has every one of them, and each key is there once."""
    columns = list(given or ())
    if given is None and rows:
        columns = [str(name) for name in rows[0]]
        if not columns:
            raise invalid("expected row 1 to have columns, got: none")
    seen: dict[Any, int] = {}
    for number, row in enumerate(rows, 1):
        if lacking := [name for name in columns if name not in row]:
            raise invalid(f"expected row {number} to have {', '.join(lacking)}, got: no such column")
        if given is None and (more := [str(name) for name in row if name not in columns]):
            raise invalid(f"expected row {number} to have the columns of row 1, got also: {', '.join(more)}")
        if not key:
            continue
        if lacking := [name for name in key if row.get(name) is None]:
            raise invalid(f"expected row {number} to have {', '.join(lacking)}, which is the key, got: nothing")
        with suppress(TypeError):  # a list or a mapping: the server tells whether it comes twice
            other = seen.setdefault(tuple(row[name] for name in key), number)
            if other != number:
                raise invalid(f"expected each key once, got rows {other} and {number} with the same one")
    return columns


def names_of(description: Any) -> list[str]:
    """The columns of a query, by what a driver says of them. Of two with one name, one would be gone."""
    names = [str(column[0]) for column in description or ()]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise invalid(f"expected the columns of query to have names that differ, got twice: {', '.join(twice)}; use AS")
    return names


def result_of(name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """
    What a function of the project comes to. What it raises goes up as it is, but for what ends loops and would be taken
    for the end of one here: it has no words of its own.
    """
    try:
        return called(function, *args, **kwargs)
    except (StopIteration, StopAsyncIteration) as end:
        message = f"{name} raised {type(end).__name__}; next(...) with a default does not raise it"
        raise PermanentFailure(message, error_class="code_error") from end


@contextmanager
def request_after(others: int) -> Iterator[None]:
    """A request of an attempt that has made `others` before: that this one was refused does not prove that nothing was done."""
    try:
        yield
    except Exception as error:
        if others:
            mark_begun(error)
        raise


def keep(context: StepContext, name: str, raw: str | bytes) -> None:
    """Keep what people may want to look at. That it cannot be kept must not hide why the step has failed."""
    with suppress(Exception):
        context.keep(name, raw)
