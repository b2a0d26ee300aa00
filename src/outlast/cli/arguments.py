"""
From ``--arg file_id=f-1`` to the arguments of a job, typed as its function says.

A text is taken as what the annotation of the parameter names: a number, a truth, a date, one of a few choices, None
where that is allowed; JSON for lists, mappings, dataclasses and models. Without an annotation it stays a text.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Hashable
from dataclasses import is_dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict
from uuid import UUID

from outlast.errors import ConfigurationError
from outlast.kernel.redact import error_text
from outlast.settings.keys import truth_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outlast.jobs.job import Job

_NOTHING = {"none", "null", ""}


class _Wrong(Exception):
    """What was expected instead."""


def arguments_of(
    job: Job[..., Any], texts: Sequence[str], as_json: Sequence[str], whole: str | None
) -> Mapping[str, Any]:
    """The arguments by name; `ConfigurationError` has all that is wrong with them."""
    problems: list[str] = []
    given: dict[str, Any] = {}
    hints = _hints(job.fn)

    def put(name: str, value: Any) -> None:
        if name in given:
            problems.append(f"expected the argument {name} once, got: twice.")
        given[name] = value

    if whole is not None:
        for name, value in _object(whole, problems).items():
            put(name, value)
    for text in as_json:
        name, said = _parted("--arg-json", text, problems)
        if name:
            try:
                put(name, _json(said))
            except _Wrong as wrong:
                problems.append(f"expected the argument {name} to be {wrong}.")
                given.setdefault(name, None)
    for text in texts:
        name, said = _parted("--arg", text, problems)
        if name:
            try:
                put(name, typed(said, hints.get(name, str)) if name in job.names else said)
            except _Wrong as wrong:
                problems.append(f"expected the argument {name} to be {wrong}, got: {said!r}.")
                given.setdefault(name, None)
    try:
        arguments = job.arguments((), given)
    except ConfigurationError as wrong:
        raise ConfigurationError([*problems, *wrong.problems]) from None
    if problems:
        raise ConfigurationError(problems)
    order = {name: place for place, name in enumerate(inspect.signature(job.fn).parameters)}
    return dict(sorted(arguments.items(), key=lambda one: order.get(one[0], len(order))))


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(inspect.unwrap(fn))
    except Exception:  # noqa: BLE001 - annotations are the author's own, and may name what is not there
        return {}


def _parted(option: str, text: str, problems: list[str]) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    name = name.strip()
    if not mark or not name.isidentifier():
        problems.append(f"expected {option} to be a name and a value, such as file_id=f-1, got: {text!r}.")
        return "", ""
    return name, value


def _object(text: str, problems: list[str]) -> dict[str, Any]:
    try:
        found = _json(text)
    except _Wrong as wrong:
        problems.append(f"expected --json-args to be {wrong}.")
        return {}
    if isinstance(found, dict):
        return found
    problems.append(
        """expected --json-args to be an object with the arguments by name, such as '{"file_id": "f-1"}'."""
    )
    return {}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise _Wrong("JSON that is nested less deeply") from None
    except ValueError as wrong:
        raise _Wrong(f"JSON ({wrong})") from None


def typed(text: str, wanted: Any) -> Any:
    """
    The value that a text says for a parameter of this annotation.

    >>> typed("5", int), typed("5", str), typed("none", int | None), typed("[1]", list[int]), typed("off", bool)
    (5, '5', None, [1], False)
    """
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Annotated:
        return typed(text, inner[0])
    if origin in {Union, UnionType}:
        return _one_of(text, inner)
    if origin is Literal:
        return _choice(text, {str(value): value for value in inner})
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return _choice(text, {str(one.value): one for one in wanted} | {one.name: one for one in wanted})
    if isinstance(wanted, Hashable) and wanted in _READ:
        what, read = _READ[wanted]
        try:
            return read(text)
        except (ValueError, InvalidOperation):
            raise _Wrong(what) from None
    if wanted is Any or wanted is object:
        return text
    return _made(_json(text), wanted) if isinstance(wanted, type) else _json(text)


def _made(found: Any, wanted: type) -> Any:
    """What JSON says for a parameter of a class: one of ours is made of its fields."""
    fields = f"the fields of {wanted.__name__} as a JSON object"
    validate = getattr(wanted, "model_validate", None)
    if not callable(validate) and not is_dataclass(wanted):
        if wanted.__module__ in {"builtins", "collections", "collections.abc", "typing"} or is_typeddict(wanted):
            return found
        raise _Wrong(f"one that a shell can say: a {wanted.__name__} is enqueued from Python")
    if not isinstance(found, dict):
        raise _Wrong(fields)
    try:
        return validate(found) if callable(validate) else wanted(**found)
    except Exception as error:  # noqa: BLE001 - of somebody else's class
        raise _Wrong(f"{fields} ({error_text(error)})") from None


def _one_of(text: str, kinds: tuple[Any, ...]) -> Any:
    if NoneType in kinds and text.strip().lower() in (_NOTHING if str not in kinds else _NOTHING - {""}):
        return None
    expected: list[str] = []
    # A text is always one: it is heard last.
    for kind in sorted((one for one in kinds if one is not NoneType), key=lambda one: one is str):
        try:
            return typed(text, kind)
        except _Wrong as wrong:
            expected.append(str(wrong))
    raise _Wrong(" or ".join([*dict.fromkeys(expected), *(["none"] if NoneType in kinds else [])]))


def _choice(text: str, choices: Mapping[str, Any]) -> Any:
    if text in choices:
        return choices[text]
    raise _Wrong(f"one of {', '.join(choices)}")


def _truth(text: str) -> bool:
    found = truth_of(text)
    if not isinstance(found, bool):
        raise ValueError(text)  # noqa: TRY004 - it is a text, and says something else
    return found


def _none(text: str) -> None:
    if text.strip().lower() not in _NOTHING:
        raise ValueError(text)


_READ: dict[Any, tuple[str, Callable[[str], Any]]] = {
    str: ("a text", str),
    int: ("an integer", int),
    float: ("a number", float),
    bool: ("true or false", _truth),
    None: ("none", _none),
    NoneType: ("none", _none),
    datetime: ("an instant such as 2026-11-15T09:30:00Z", datetime.fromisoformat),
    date: ("a date such as 2026-11-15", date.fromisoformat),
    Decimal: ("a number", Decimal),
    UUID: ("a UUID", UUID),
}
