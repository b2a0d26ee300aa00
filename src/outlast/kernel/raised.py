"""
Every touch of an exception that is somebody else's: what it carries, and what is put on it.

Its class may be a frozen dataclass, have a ``__setattr__`` or a ``__getattribute__`` of its own, or properties in the
place of ``args``, ``__dict__`` and ``__cause__``. None of that is asked: these go to the places that every exception
has.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any


class NoFailure(Exception):
    """What code raises to say something about its work, and not that it has failed: it goes through every guard as it is."""


_places: Any = BaseException.__dict__

fields: Callable[[BaseException], dict[str, Any]] = _places["__dict__"].__get__
args: Callable[[BaseException], tuple[Any, ...]] = _places["args"].__get__
cause: Callable[[BaseException], BaseException | None] = _places["__cause__"].__get__
context: Callable[[BaseException], BaseException | None] = _places["__context__"].__get__
suppressed: Callable[[BaseException], bool] = _places["__suppress_context__"].__get__
frames: Callable[[BaseException], TracebackType | None] = _places["__traceback__"].__get__
set_args: Callable[[BaseException, tuple[Any, ...]], None] = _places["args"].__set__
set_cause: Callable[[BaseException, BaseException | None], None] = _places["__cause__"].__set__
set_context: Callable[[BaseException, BaseException | None], None] = _places["__context__"].__set__
set_suppressed: Callable[[BaseException, bool], None] = _places["__suppress_context__"].__set__
set_frames: Callable[[BaseException, TracebackType | None], None] = _places["__traceback__"].__set__

PLACES = ("__cause__", "__context__", "__dict__", "args")


def ordinary(kind: type[BaseException]) -> bool:
    """
    Whether exceptions of this class may be asked in the ordinary way: it has its own idea of none of these places.
    """
    if kind.__getattribute__ not in _USUAL:
        return False
    return not any(name in vars(base) for base in kind.__mro__ for name in PLACES if base.__module__ != "builtins")


_USUAL = (BaseException.__getattribute__, object.__getattribute__)


def notes(error: BaseException) -> list[str]:
    """Its notes, as far as they are some."""
    found = fields(error).get("__notes__")
    return [one for one in found if isinstance(one, str)] if isinstance(found, list | tuple) else []


def add_note(error: BaseException, text: str) -> None:
    """One note more."""
    fields(error)["__notes__"] = [*notes(error), text]
