"""
The functions that do the work of the components, one file a family. Each is imported when a step first runs it, and the
driver that it needs with it. None of them tries again.

    python      calls a function of the project
    files       reads files; writes one, whole or not at all
    http        one HTTP request; wire: which address is connected to, and until when
    llm         one question to a model; jsons: the JSON value in what it said
    postgres    the rows of a query; rows into a table, all or none
    s3          one object, read, written or deleted
    rows        changes rows, and checks them against a JSON Schema
    resource    takes a share of a pool, and gives it back
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from outlast.components.running import called
from outlast.errors import PermanentFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.components.running import StepContext


def invalid(message: str) -> PermanentFailure:
    """What came from earlier steps is not what it must be."""
    return PermanentFailure(message, error_class="validation_error")


def listed(rows: Any) -> list[Any]:
    """The rows of a config. What stands for them in a file is filled in by now: a text is none."""
    if not isinstance(rows, list):
        raise invalid(f"expected rows to be a list, got: a value of type {type(rows).__name__}")
    return rows


def row_at(number: int, row: Any) -> Mapping[str, Any]:
    """A row that has columns; they are counted from 1."""
    if not isinstance(row, Mapping):
        raise invalid(f"expected row {number} to be a mapping, got: a value of type {type(row).__name__}")
    return row


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


def keep(context: StepContext, name: str, raw: str | bytes) -> None:
    """Keep what people may want to look at. That it cannot be kept must not hide why the step has failed."""
    with suppress(Exception):
        context.keep(name, raw)


def strict_json(raw: str | bytes) -> Any:
    """What a JSON text holds. ValueError where Python would lose or make up something."""
    return json.loads(raw, parse_constant=_no_number, parse_float=_number, object_pairs_hook=_object)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _number(text: str) -> float:
    """A number that is too large would become infinity, which is no JSON."""
    found = float(text)
    if math.isinf(found):
        raise ValueError("a number is too large")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values of one name one would be lost in silence."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name comes twice")
    return made
