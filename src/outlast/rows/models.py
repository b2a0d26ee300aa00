"""
A pydantic model as a row step. pydantic speaks to programmers; what it complains about is said again for those who own
the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError, nearest
from outlast.pipeline.record.rowerrors import RowError, shown
from outlast.rows.fields import missing_column, unexpected_column
from outlast.rows.steps import RowTransformStep, StepResult
from outlast.settings.checks import show

if TYPE_CHECKING:
    from outlast.calls.records import Context

# What is wrong, what is expected, an example, by the beginning of pydantic's own name for it. Longer beginnings first.
_SAID: tuple[tuple[str, str, str, str, str], ...] = (
    ("int_from_float", "format", "is no whole number", "a whole number", "42"),
    ("int", "format", "is no whole number", "a whole number", "42"),
    ("float", "format", "is no number", "a number", "12.5"),
    ("decimal_max", "range", "has too many digits", "fewer digits", "12.5"),
    ("decimal_whole", "range", "has too many digits", "fewer digits", "12.5"),
    ("decimal", "format", "is no number", "a number", "12.5"),
    ("finite_number", "format", "is no number", "a number", "12.5"),
    ("bool", "format", "is neither yes nor no", "true or false", "true"),
    ("date_past", "range", "is not in the past", "a day in the past", "2025-01-15"),
    ("date_future", "range", "is not in the future", "a day in the future", "2099-01-15"),
    ("datetime_past", "range", "is not in the past", "a time in the past", "2025-01-15 09:30"),
    ("datetime_future", "range", "is not in the future", "a time in the future", "2099-01-15 09:30"),
    ("datetime", "format", "is no date with a time", "a date with a time", "2025-01-15 09:30"),
    ("date", "format", "is no date", "a date as YYYY-MM-DD", "2025-01-15"),
    ("timezone", "format", "has no time zone, or has one too many", "a date with a time", "2025-01-15 09:30"),
    ("time_delta", "format", "is no length of time", "hours, minutes and seconds", "01:30:00"),
    ("time", "format", "is no time of day", "hours and minutes", "09:30"),
    ("uuid", "format", "is no identifier of the right form", "32 letters and digits in five groups", "123e4567-e89b-12d3-a456-426614174000"),
    ("url", "format", "is no web address", "a web address", "https://example.com"),
    ("string_type", "format", "is no text", "text", "abc"),
    ("string_pattern_mismatch", "format", "does not have the right form", "text of the form {pattern}", ""),
    ("list", "format", "is no list", "a list", "[1, 2]"),
    ("dict", "format", "is no group of named values", "named values", '{"name": 1}'),
    ("model", "format", "is no group of named values", "named values", '{"name": 1}'),
)  # fmt: skip


class _Model(RowTransformStep):
    despite_errors = True

    def __init__(self, model: Any) -> None:
        self._model = model
        self.name = str(model.__name__)
        self._fields: Mapping[str, Any] = model.model_fields
        self._names = [field.alias or name for name, field in self._fields.items()]

    def apply(self, row: dict[str, Any], context: Context) -> StepResult:  # noqa: ARG002 - the model knows all it needs
        from pydantic import ValidationError

        try:
            made = self._model.model_validate(row)
        except ValidationError as wrong:
            found = wrong.errors(include_url=False)
            return StepResult(row, errors=[self._said(each, row) for each in found])
        return StepResult(made.model_dump(), warnings=self._unused(row, made.model_fields_set))

    def _unused(self, row: Mapping[str, Any], used: set[str]) -> list[str]:
        """
        A column that the model passes over is as it should be, unless it looks like one that is wanted and was not
        found.
        """
        open_names = [field.alias or name for name, field in self._fields.items() if name not in used]
        strange = [str(name) for name in row if name not in self._names and name not in self._fields]
        pairs = [(name, nearest(name, open_names)) for name in strange]
        return [f"Field '{shown(name)}': The column is not used.{near}" for name, near in pairs if near]

    def _said(self, error: Any, row: Mapping[str, Any]) -> RowError:
        place, kind = error["loc"], error["type"]
        where = _where(place)
        if kind == "missing":
            inside = error["input"]
            return missing_column(where, inside if isinstance(inside, Mapping) else row, str(place[-1]))
        if kind == "extra_forbidden":
            return unexpected_column(where, self._names)
        word, wrong, expected, example = _sentence(kind, error.get("ctx") or {}, error["msg"])
        field = self._fields.get(str(place[0])) if len(place) == 1 else None
        examples, description = getattr(field, "examples", None), getattr(field, "description", None)
        example = str(examples[0]) if examples else example
        if kind == "string_pattern_mismatch" and description:  # a regular expression is no explanation
            expected = description.rstrip(".")
        value = error["input"]
        if not where:
            said = f"{wrong}."
        else:
            said = f"'{shown(value)}' {wrong}." if wrong[:1].islower() else f"{wrong}, got '{shown(value)}'."
        said += f" Expected: {expected}." if expected else ""
        said += f" Example: {example}" if example else ""
        return RowError(f"Field '{where}': {said}" if where else said, where or None, word, shown(value, 200))


def _where(place: tuple[Any, ...]) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return shown(text)


def _sentence(kind: str, about: Mapping[str, Any], message: str) -> tuple[str, str, str, str]:
    """A word for it, what is wrong, what is expected, an example."""
    match kind:
        case "greater_than_equal" if about["ge"] == 0:
            return "range", "Must be non-negative", "a number of at least 0", "0"
        case "greater_than_equal":
            return "range", "Too small", f"at least {about['ge']}", str(about["ge"])
        case "greater_than":
            return "range", "Too small", f"more than {about['gt']}", ""
        case "less_than_equal":
            return "range", "Too large", f"at most {about['le']}", str(about["le"])
        case "less_than":
            return "range", "Too large", f"less than {about['lt']}", ""
        case "multiple_of":
            return "range", "Not a multiple", f"a multiple of {about['multiple_of']}", str(about["multiple_of"])
        case "string_too_short" if about["min_length"] == 1:
            return "missing", "A value is required", "", ""
        case "string_too_short":
            return "length", "Too short", f"at least {about['min_length']} characters", ""
        case "string_too_long":
            return "length", "Too long", f"at most {about['max_length']} characters", ""
        case "too_short" | "too_long":
            return "length", "Not the right number of entries", _lengths(about), ""
        case "literal_error" | "enum":
            return "choice", "is not one of the allowed values", str(about["expected"]).replace("'", ""), ""
        case "value_error" | "assertion_error":
            own = str(about.get("error") or message)
            return "invalid", own[:1].upper() + own[1:].rstrip(".") if own else "Not accepted", "", ""
        case _:
            pass
    for beginning, word, wrong, expected, example in _SAID:
        if kind.startswith(beginning):
            return word, wrong, expected.format_map(_Given(about)), example
    return "invalid", "is not accepted", message.removeprefix("Input should be ").removeprefix("Value error, "), ""


class _Given(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "that is agreed"


def _lengths(about: Mapping[str, Any]) -> str:
    low, high = about.get("min_length"), about.get("max_length")
    return f"at least {low} of them" if low is not None else f"at most {json.dumps(high)} of them"


def from_model(model: Any, /) -> RowTransformStep:
    """
    A step that checks a row with a pydantic model. The row becomes what the model makes of it, by the names of its
    fields. An example in an error comes from ``Field(examples=[...])`` if there is one.
    """
    if not isinstance(model, type) or not hasattr(model, "model_validate") or not hasattr(model, "model_fields"):
        raise ConfigurationError(f"expected a pydantic model (a class), of pydantic 2 or newer, got: {show(model)}.")
    return _Model(model)
