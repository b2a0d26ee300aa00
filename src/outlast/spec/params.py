"""
Parameters: what a file declares, and the value that each has. A value given by hand wins over the environment, that
over the profile, that over the default (C-26). Pure: the environment is an argument.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from outlast.errors import ConfigurationError, Problem
from outlast.kernel.wording import numeral
from outlast.settings.checks import show
from outlast.spec.yaml import DEEPEST

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Where a parameter has its value from: by hand, from an environment variable, the profile, its default.
Source: TypeAlias = Literal["given", "environment", "profile", "default"]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}", re.ASCII)
_INTEGER = re.compile(r"[-+]?[0-9]{1,400}", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][-+]?[0-9]{1,4})?", re.ASCII)
_MOST_TEXT = 65_536  # characters of a value
_LONGEST_CHOICE = 60  # characters of a list or a mapping among the values of an enum
_FLATTEN = "flatten it, or put it into a file that a step reads"
WHAT = {
    "string": "a text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "list": "a list",
    "object": "a mapping",
}


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter as it is declared. `default` means nothing without `has_default`."""

    name: str
    type: str
    default: Any = None
    has_default: bool = False
    enum: tuple[Any, ...] | None = None
    min: float | None = None
    max: float | None = None
    sensitive: bool = False

    @property
    def variable(self) -> str:
        """The environment variable that gives it a value."""
        return variable_of(self.name)


def variable_of(name: str) -> str:
    return "OUTLAST_PARAM_NAME".replace("NAME", name.upper().replace("-", "_"))


class Unfit(ValueError):
    """
    A value that a parameter cannot have; `expected` and `got` say why, and `way_out` what to do, if that is clear. Of a
    sensitive one nothing is shown.
    """

    def __init__(self, expected: str, got: str, way_out: str = "") -> None:
        super().__init__(expected)
        self.expected, self.got, self.way_out = expected, got, way_out


def value_for(param: Param, given: Any, *, is_text: bool = False) -> Any:
    """
    The value as the parameter's type has it. `is_text`: it comes from a shell or the environment, where all is text.

    >>> value_for(Param("n", "integer", min=1), "12", is_text=True)
    12
    """
    value = _read(param, given) if is_text and isinstance(given, str) else given
    if param.type == "number" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 1e300 else value
    if isinstance(value, list | dict):
        _check_size(value)
    shown = "a value that is not shown" if param.sensitive else _shown(value)
    if not _is(param.type, value):
        raise Unfit(WHAT[param.type], shown)
    if param.enum is not None and value not in param.enum:
        choices = ", ".join(_written(one) for one in param.enum[:20])
        raise Unfit("one of its values" if param.sensitive else f"one of {choices}", shown)
    measured, unit = (value, "") if isinstance(value, int | float) else (None, "")
    if isinstance(value, str | list):
        measured, unit = len(value), " characters" if isinstance(value, str) else " entries"
    if measured is not None and not isinstance(value, bool):
        what = WHAT[param.type] + (" of" if not unit else " with")
        counted = f"{shown} with {measured:,}" if unit and not param.sensitive else shown
        if param.min is not None and measured < param.min:
            raise Unfit(f"{what} at least {numeral(param.min)}{unit}", counted)
        if param.max is not None and measured > param.max:
            raise Unfit(f"{what} at most {numeral(param.max)}{unit}", counted)
    return value


def open_value(name: str, type: str, given: Any, *, is_text: bool = True) -> Any:  # noqa: A002 - as the file calls it
    """
    The value of a parameter that is given when the pipeline runs, of the type that its file declares. From a shell or the
    environment it comes as a text (`is_text`), from Python as it is. ConfigurationError shows nothing of it.

    >>> open_value("ports", "list", "[80, 443]")
    [80, 443]
    """
    try:
        return value_for(Param(name, type, sensitive=True), given, is_text=is_text)
    except Unfit as unfit:
        as_json = "Write it as JSON." if is_text and type in ("list", "object") else ""
        way_out = f"{unfit.way_out[:1].upper()}{unfit.way_out[1:]}." if unfit.way_out else as_json
        raise ConfigurationError([Problem(("params", name), unfit.expected, unfit.got, way_out)]) from None


def range_of(param: Param) -> str:
    """
    What values a parameter may have, in words.

    >>> range_of(Param("n", "integer", max=0)), range_of(Param("s", "string"))
    ('an integer of at most 0', 'a text')
    """
    if param.enum is not None:
        return f"one of {', '.join(_written(one) for one in param.enum[:20])}"
    unit = {"string": " characters", "list": " entries"}.get(param.type, "")
    bounds = [
        f"at {'least' if name == 'min' else 'most'} {numeral(one)}{unit}"
        for name in ("min", "max")
        if (one := getattr(param, name)) is not None
    ]
    joined = " and ".join(bounds)
    return WHAT[param.type] + (f" {'with' if unit else 'of'} {joined}" if bounds else "")


def _shown(value: Any) -> str:
    return "a list" if isinstance(value, list) else "a mapping" if isinstance(value, dict) else show(value)


def _written(value: Any) -> str:
    """One of the values that a parameter may have, as a file has it."""
    if not isinstance(value, list | dict):
        return show(value)
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_CHOICE else f"{text[: _LONGEST_CHOICE - 3]}..."


def _read(param: Param, text: str) -> Any:
    if param.type == "integer" and _INTEGER.fullmatch(text):
        return int(text)
    if param.type == "number" and _NUMBER.fullmatch(text):
        return float(text)
    if param.type == "boolean" and text in ("true", "false"):
        return text == "true"
    if param.type in ("list", "object"):
        try:
            return json.loads(text)
        except ValueError:
            return text
        except RecursionError:
            raise _too_deep() from None
    return text


def _too_deep() -> Unfit:
    return Unfit(f"at most {DEEPEST} levels of lists and mappings", "more", _FLATTEN)


def _check_size(value: list[Any] | dict[Any, Any]) -> None:
    """
    Data has no more levels than a file may have, and no more in it than a text. It is counted level by level: what is
    built in Python may hold itself, or one list a million times.
    """
    level: list[Any] = [value]
    count = 0
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for one in level:
            parts = [*one, *one.values()] if isinstance(one, dict) else one
            count += len(parts) + sum(len(part) for part in parts if isinstance(part, str))
            if count > _MOST_TEXT:
                raise Unfit(f"at most {_MOST_TEXT:,} characters as JSON", "more", _FLATTEN)
            inner += [part for part in parts if isinstance(part, list | dict)]
        level = inner
    if level:
        raise _too_deep()


def _is(kind: str, value: Any) -> bool:
    if kind == "string":
        return isinstance(value, str) and len(value) <= _MOST_TEXT and not any("\ud800" <= c <= "\udfff" for c in value)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**400
    if kind == "number":
        return isinstance(value, float) and math.isfinite(value)
    plain = isinstance(value, list if kind == "list" else dict)
    return plain and _is_json(value)


def _is_json(value: Any) -> bool:
    try:
        text = json.dumps(value, allow_nan=False)
        return len(text) <= _MOST_TEXT and bool(json.loads(text) == value)  # a key that is no text would become one
    except (TypeError, ValueError, RecursionError):
        return False


def sources(
    name: str, given: Mapping[str, Any], environment: Mapping[str, str], profile: Mapping[str, Any]
) -> tuple[str, Any] | None:
    """Where a parameter has its value from, and that; None if only its default is left."""
    if name in given:
        return "given", given[name]
    if (variable := variable_of(name)) in environment:
        return variable, environment[variable]
    return ("profile", profile[name]) if name in profile else None


def kind_of(source: str) -> Source:
    """What `sources` says, without the name of a variable."""
    return "given" if source == "given" else "profile" if source == "profile" else "environment"
