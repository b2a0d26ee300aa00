"""
Steps that look at one field each: they check it, and put into order what can be put into order without guessing.

Every message says which field, what is wrong, what is expected, and gives an example; none needs a programmer to be
understood.
"""

from __future__ import annotations

import re
import unicodedata
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from outlast.errors import nearest
from outlast.pipeline.record.rowerrors import RowError, shown
from outlast.rows.steps import RowTransformStep, StepResult
from outlast.settings.checks import Check, Shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from outlast.calls.records import Context

    Parser: TypeAlias = Callable[[Any], Any]

MOST_FALLBACKS = 2
# What a parser may raise to say that a value is not what it reads; a lookup that failed is none of these, and is tried
# again.
UNREADABLE = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError)
_MOST_CHOICES = 12  # named in a message


def is_empty(value: Any) -> bool:
    """Whether a cell is empty: nothing, only space, or what tables have for a missing number or date."""
    if value is None:
        return True
    if isinstance(value, str):
        return not value.strip()
    try:
        return bool(value != value)  # noqa: PLR0124 - NaN and NaT are not equal to themselves
    except Exception:  # noqa: BLE001 - pandas.NA does not even say whether it is
        return type(value).__name__ == "NAType"


class FieldStep(RowTransformStep):
    """
    A step that looks at one field. Many of them may be wrong at the same time, so it runs although others have
    complained.
    """

    despite_errors = True

    def __init__(self, word: str, field: str, *, optional: bool = False) -> None:
        check = Check()
        self.field = check.name("field", field)
        self.name = f"{word}({self.field})"
        self.optional = optional
        check.raise_if_any()

    def apply(self, row: dict[str, Any], context: Context) -> StepResult:  # noqa: ARG002 - a field needs nothing else
        if self.field not in row and not self.optional:
            return StepResult(row, errors=[missing_column(self.field, row)])
        value = row.get(self.field)
        if self.optional and is_empty(value):
            return StepResult(row)
        return self.read(row, value)

    @abstractmethod
    def read(self, row: dict[str, Any], value: Any) -> StepResult: ...

    def wrong(self, row: dict[str, Any], value: Any, kind: str, sentence: str) -> StepResult:
        """The row with an error about this field."""
        error = RowError(f"Field '{self.field}': {sentence}", self.field, kind, shown(value, 200))
        return StepResult(row, errors=[error])


def missing_column(field: str, row: Mapping[str, Any], name: str | None = None) -> RowError:
    """
    A column is not there; perhaps it is, under a name that was misspelt. `name` is the field's own, if it is inside of
    another.
    """
    near = nearest(name or field, [str(other) for other in row])
    return RowError(f"Field '{field}': The column is missing.{near.replace('Did you mean', 'Is it')}", field, "missing")


# -- chains of parsers ---------------------------------------------------------------------------------------------------


class _Cleanse(FieldStep):
    def __init__(
        self,
        field: str,
        parse: Parser,
        fallbacks: Sequence[tuple[Parser, str]],
        *,
        what: str,
        expected: str,
        example: str,
        optional: bool,
    ) -> None:
        super().__init__("cleanse", field, optional=optional)
        self._ways = ((parse, None), *fallbacks)
        self._sentence = f"as {what}. Expected format: {expected}. Example: {example}"

    def read(self, row: dict[str, Any], value: Any) -> StepResult:
        for parse, warning in self._ways:
            try:
                found = parse(value)
            except UNREADABLE:
                continue
            return StepResult(row | {self.field: found}, warnings=[] if warning is None else [warning])
        return self.wrong(row, value, "format", f"Cannot parse '{shown(value)}' {self._sentence}")

    def apply(self, row: dict[str, Any], context: Context) -> StepResult:
        # A column that is not there is a value that cannot be read, so that there is one message for both.
        return super().apply(row if self.field in row else row | {self.field: None}, context)


def cleanse(
    field: str,
    parse: Parser,
    *fallbacks: tuple[Parser, str],
    what: str,
    expected: str,
    example: str,
    optional: bool = False,
) -> RowTransformStep:
    """
    A step that reads a field with `parse`, and if that cannot, with at most two `fallbacks`, in order and at once: this
    is no retry. A parser returns the value as it should be, or raises ValueError (or another error that says so) for
    what it does not read. A fallback comes with the warning that the item gets when it was the one that could. If none
    can, the row is wrong.
    """
    check = Check()
    if len(fallbacks) > MOST_FALLBACKS:
        check.add("fallbacks", f"at most {MOST_FALLBACKS}", Shown(f"{len(fallbacks)} of them"))
    for place, each in enumerate(fallbacks, 1):
        if not (isinstance(each, tuple) and len(each) == 2 and callable(each[0]) and isinstance(each[1], str)):
            check.add(f"fallback {place}", "a function and the warning that goes with it", each)
    if not callable(parse):
        check.add("parse", "a function of a value", parse)
    check.raise_if_any()
    return _Cleanse(field, parse, fallbacks, what=what, expected=expected, example=example, optional=optional)


# -- checks ----------------------------------------------------------------------------------------------------------------


class _Required(FieldStep):
    def __init__(self, field: str, example: str | None) -> None:
        super().__init__("required", field)
        self._example = "" if example is None else f" Example: {example}"

    def read(self, row: dict[str, Any], value: Any) -> StepResult:
        if is_empty(value):
            return self.wrong(row, "", "missing", f"A value is required, but it is empty.{self._example}")
        return StepResult(row)


def required(field: str, *, example: str | None = None) -> RowTransformStep:
    """A step that wants a value in the field: not nothing, not only space, not a missing number."""
    return _Required(field, example)


class _Number(FieldStep):
    def __init__(self, field: str, *, low: float | None, high: float | None, whole: bool, optional: bool) -> None:
        super().__init__("number", field, optional=optional)
        self._low, self._high, self._whole = low, high, whole
        bounds = (
            f" from {low:g} to {high:g}"
            if low is not None and high is not None
            else f" of at least {low:g}"
            if low is not None
            else f" of at most {high:g}"
            if high is not None
            else ""
        )
        example = 0 if (low is None or low <= 0) and (high is None or high >= 0) else low if low is not None else high
        kind = "a whole number" if whole else "a number"
        self._expected = f"Expected: {kind}{bounds}. Example: {example:g}"

    def read(self, row: dict[str, Any], value: Any) -> StepResult:
        warnings: list[str] = []
        try:
            found = _number(value)
        except UNREADABLE:
            try:
                found, warnings = _tidied_number(value), ["Number format cleansed"]
            except UNREADABLE:
                return self.wrong(row, value, "format", f"'{shown(value)}' is no number. {self._expected}")
        if self._whole and found != int(found):
            return self.wrong(row, value, "format", f"'{shown(value)}' is no whole number. {self._expected}")
        if self._low is not None and found < self._low:
            said = "Must be non-negative" if self._low == 0 else "Too small"
            return self.wrong(row, value, "range", f"{said}, got '{shown(value)}'. {self._expected}")
        if self._high is not None and found > self._high:
            return self.wrong(row, value, "range", f"Too large, got '{shown(value)}'. {self._expected}")
        return StepResult(row | {self.field: int(found) if self._whole else found}, warnings=warnings)


_PLAIN_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", re.ASCII)


def _number(value: Any) -> Any:
    if isinstance(value, str):
        if not _PLAIN_NUMBER.fullmatch(value) or len(value) > 300:
            raise ValueError
        return int(value) if value.lstrip("+-").isdecimal() else _finite(float(value))
    if isinstance(value, bool) or type(value).__name__ in {"bool", "bool_"}:
        raise TypeError
    if isinstance(value, int):
        return value
    return _finite(value)


def _finite(value: Any) -> Any:
    if not -float("inf") < value < float("inf"):
        raise ValueError
    float(value)  # what compares with a number and is none, such as a mixture of units, is refused
    return value


def _tidied_number(value: Any) -> Any:
    """
    Digits of full width, space around, and commas between thousands; not "1.234,5", which means something else
    elsewhere.
    """
    if not isinstance(value, str) or len(value) > 300:
        raise TypeError
    text = unicodedata.normalize("NFKC", value).strip().replace("\u2212", "-")
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    return _number(text)


def number(
    field: str, *, low: float | None = None, high: float | None = None, whole: bool = False, optional: bool = False
) -> RowTransformStep:
    """
    A step that wants a number, from `low` to `high` if these are given. Text becomes a number; "1,234" does so with a
    warning.
    """
    check = Check()
    if low is not None:
        low = check.number("low", low, low=-1e300, default=0)
    if high is not None:
        high = check.number("high", high, low=-1e300, default=0)
    if low is not None and high is not None and low > high:
        check.add("low", "at most high", low)
    check.raise_if_any()
    return _Number(field, low=low, high=high, whole=whole, optional=optional)


class _OneOf(FieldStep):
    def __init__(self, field: str, choices: tuple[Any, ...], *, optional: bool) -> None:
        super().__init__("one_of", field, optional=optional)
        self._choices = choices
        listed = ", ".join(shown(choice) for choice in choices[:_MOST_CHOICES])
        rest = f" and {len(choices) - _MOST_CHOICES} more" if len(choices) > _MOST_CHOICES else ""
        self._expected = f"Expected: {listed}{rest}. Example: {shown(choices[0])}" if choices else ""

    def read(self, row: dict[str, Any], value: Any) -> StepResult:
        if any(value is choice or (type(value) is type(choice) and value == choice) for choice in self._choices):
            return StepResult(row)
        text = shown(value)
        tidy = [choice for choice in self._choices if isinstance(choice, str) and choice.casefold() == _tidy(value)]
        if len(tidy) == 1:
            return StepResult(row | {self.field: tidy[0]}, warnings=["Spelling cleansed"])
        near = nearest(text, [shown(choice) for choice in self._choices])
        return self.wrong(row, value, "choice", f"'{text}' is not one of the allowed values.{near} {self._expected}")


def _tidy(value: Any) -> str | None:
    return unicodedata.normalize("NFKC", value).strip().casefold() if isinstance(value, str) else None


def one_of(field: str, choices: Iterable[Any], *, optional: bool = False) -> RowTransformStep:
    """A step that wants one of these values. Other case and space around are put right with a warning."""
    check = Check()
    given = () if isinstance(choices, str) else tuple(choices)
    if not given:
        check.add("choices", "the values that are allowed", choices)
    check.raise_if_any()
    return _OneOf(field, given, optional=optional)


class _Matching(FieldStep):
    def __init__(self, field: str, pattern: re.Pattern[str], expected: str, example: str, *, optional: bool) -> None:
        super().__init__("matching", field, optional=optional)
        self._pattern = pattern
        self._expected = f"Expected: {expected}. Example: {example}"

    def read(self, row: dict[str, Any], value: Any) -> StepResult:
        if isinstance(value, str) and self._pattern.fullmatch(value):
            return StepResult(row)
        return self.wrong(row, value, "format", f"'{shown(value)}' does not have the right form. {self._expected}")


def matching(field: str, pattern: str, *, expected: str, example: str, optional: bool = False) -> RowTransformStep:
    """
    A step that wants text of a form: the whole of it must fit the regular expression; `expected` and `example` say the
    form in words.
    """
    check = Check()
    expected, example = check.name("expected", expected), check.name("example", example)
    compiled = re.compile("")
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as wrong:
        check.add("pattern", "a regular expression", Shown(f"one that cannot be read: {wrong}"))
    check.raise_if_any()
    if not compiled.fullmatch(example):
        check.add("example", "text that the pattern fits", example)
    check.raise_if_any()
    return _Matching(field, compiled, expected, example, optional=optional)


# -- columns ---------------------------------------------------------------------------------------------------------------


class _Columns(RowTransformStep):
    name = "columns"
    despite_errors = True

    def __init__(self, names: tuple[str, ...], *, extra: bool) -> None:
        self._names = names
        self._extra = extra

    def apply(self, row: dict[str, Any], context: Context) -> StepResult:  # noqa: ARG002 - the names are enough
        errors = [missing_column(name, row) for name in self._names if name not in row]
        if not self._extra:
            errors += [unexpected_column(str(name), self._names) for name in row if name not in self._names]
        return StepResult(row, errors=errors)


def unexpected_column(name: str, known: Sequence[str]) -> RowError:
    """A column that nobody asked for, with the name it was perhaps meant to have."""
    name = shown(name)
    way_out = nearest(name, known) or f" Expected: {', '.join(known[:_MOST_CHOICES])}"
    return RowError(f"Field '{name}': The column is not expected.{way_out}", name, "unexpected")


def columns(*names: str, extra: bool = False) -> RowTransformStep:
    """
    A step that wants these columns, and no others unless `extra`; each that is missing or too many is named, with the
    nearest right name.
    """
    check = Check()
    for place, name in enumerate(names, 1):
        check.name(f"column {place}", name)
    if not names:
        check.add("columns", "at least one name", "none")
    check.raise_if_any()
    return _Columns(names, extra=extra)
