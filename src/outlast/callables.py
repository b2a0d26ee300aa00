"""
What kind of callable is this, and is that result something to await? Asked once at decoration, so that calls need not ask.
"""

from __future__ import annotations

import functools
from types import CoroutineType

from outlast.errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

_GENERATOR, _COROUTINE, _ITERABLE_COROUTINE, _ASYNC_GENERATOR = (
    0x20,
    0x80,
    0x100,
    0x200,
)  # inspect.CO_..., without importing inspect


def flags_of(fn: Any) -> int:
    """The code flags of what runs when fn is called: through partials, methods and objects with __call__."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(fn, "__code__", None)
    if code is None and not isinstance(fn, type):
        call = getattr(type(fn), "__call__", None)  # noqa: B004 - its code is looked at, it is not called
        while isinstance(call, functools.partial):
            call = call.func
        code = getattr(call, "__code__", None) or getattr(getattr(fn, "__func__", None), "__code__", None)
    return int(getattr(code, "co_flags", 0))


def kind_of(fn: Any) -> Literal["sync", "async", "generator", "async generator"]:
    """What calling fn gives: a result, a coroutine, a generator, an async generator."""
    flags = flags_of(fn)
    if flags & _ASYNC_GENERATOR:
        return "async generator"
    if flags & (_COROUTINE | _ITERABLE_COROUTINE) or hasattr(fn, "_is_coroutine_mark"):
        return "async"
    return "generator" if flags & _GENERATOR else "sync"


def is_async(fn: Any) -> bool:
    """Whether calling fn gives a coroutine; refuses generators, whose failures happen after the call has returned."""
    kind = kind_of(fn)
    if "generator" in kind:
        message = (
            f"expected a function or a coroutine function, got: the generator function {name_of(fn)}. Decorate it with a Guard or "
            "@retry, which try again until its first item, or protect the calls that it makes."
        )
        raise ConfigurationError(message)
    return kind == "async"


def name_of(fn: Any) -> str:
    """How the callable is called in events and messages."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


# Result types seen that need no awaiting. A set look-up is the cheapest question a fast path can ask.
PLAIN: set[type] = {type(None), bool, int, float, str, bytes, tuple, list, dict, set}


def awaitable(result: object) -> bool:
    """Whether a sync function handed out something to await: then it has not run yet, or not to its end."""
    cls = type(result)
    if cls is CoroutineType or hasattr(cls, "__await__"):
        return True
    if len(PLAIN) < 1024:  # types made at run time must not pile up
        PLAIN.add(cls)
    return False


def dress(wrapper: Callable[..., Any], fn: Any) -> None:
    """Make the wrapper look like fn: name, documentation, signature, __wrapped__."""
    functools.update_wrapper(wrapper, fn)


def rewrapped(decorate: Callable[[Any], Any], fn: Any) -> Any:
    """A decorated staticmethod or classmethod object stays one; None for anything else."""
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(decorate(fn.__func__))
    if not callable(fn):
        message = f"expected a function to protect, got: a value of type {type(fn).__name__}."
        raise ConfigurationError(message)
    return None
