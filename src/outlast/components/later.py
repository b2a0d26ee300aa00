"""
Checks of a whole config while some of its values are known only when the step runs. In their place stands `Later`, which
may be there or not and tells nothing else: a check that looks into it is not finished, and what it has found before that
is so whatever the value will be. So a check of which keys there are holds, also of somebody else's model.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping


class LooksInside(BaseException):
    """A check has looked at a value that nobody knows yet. No check catches it by accident."""


def _unknown(*_: object, **__: object) -> NoReturn:
    raise LooksInside


class Later:
    """A value that is there, and of which nothing is known, its type neither."""

    # isinstance would have an answer otherwise
    __class__ = property(_unknown)  # pyright: ignore[reportIncompatibleMethodOverride]


_ASKED = "bool eq ne lt le gt ge hash len iter contains getitem str repr format int float index add radd call getattr"
for _name in _ASKED.split():
    setattr(Later, f"__{_name}__", _unknown)


def wrong_anyway(
    model: Any, config: Mapping[str, Any], unknown: Collection[tuple[str | int, ...]]
) -> Iterator[ValueError | AssertionError]:
    """What the checks of the whole pydantic model find wrong, whatever the values at the `unknown` paths come to."""
    checks = [name for name, one in model.__pydantic_decorators__.model_validators.items() if one.info.mode == "after"]
    if not checks:
        return
    whole = _opened(config, (), frozenset(unknown))
    for name in checks:
        # What is in place of a value is no such value: whatever else a check makes of it says nothing.
        with suppress(Exception, LooksInside):
            found = _refused(getattr(model.model_construct(**whole), name))
            if found is not None:
                yield found


def _refused(check: Callable[[], object]) -> ValueError | AssertionError | None:
    try:
        check()
    except (ValueError, AssertionError) as wrong:
        return wrong
    return None


def _opened(value: Any, path: tuple[str | int, ...], unknown: frozenset[tuple[str | int, ...]]) -> Any:
    if path in unknown:
        return Later()
    if isinstance(value, dict):
        return {key: _opened(one, (*path, key), unknown) for key, one in value.items()}
    if isinstance(value, list):
        return [_opened(one, (*path, number), unknown) for number, one in enumerate(value)]
    return value
