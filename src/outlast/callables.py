"""
What kind of callable is this, and is that result something to await? Asked once at decoration, so that calls need not ask.
"""

from __future__ import annotations

import functools
import sys
from types import CodeType, CoroutineType, MethodType

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
_DEEPEST = 100  # partials of partials, methods of methods: what is nested deeper is no function
# Where the standard library keeps the marks of coroutine functions, and under which attribute it puts them.
_MARKS = (
    ("inspect", "_is_coroutine_mark", "_is_coroutine_mark"),
    ("asyncio.coroutines", "_is_coroutine", "_is_coroutine"),
)


def flags_of(fn: Any) -> int:
    """The code flags of what runs when fn is called: through partials, methods and objects with __call__."""
    fn = _innermost(fn)
    code = getattr(fn, "__code__", None)
    # Mocks and proxies answer any attribute with something: only real code has flags.
    if type(code) is not CodeType and not isinstance(fn, type):
        call = getattr(type(fn), "__call__", None)  # noqa: B004 - its code is looked at, it is not called
        code = getattr(_innermost(call), "__code__", None)
    return code.co_flags if type(code) is CodeType else 0


def _innermost(fn: Any) -> Any:
    """What a partial, or a method, calls in the end."""
    for _ in range(_DEEPEST):
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif type(fn) is MethodType:
            fn = fn.__func__
        else:
            break
    return fn


def _marked(fn: Any) -> bool:
    """
    Whether fn is marked as a coroutine function, by `inspect.markcoroutinefunction` or as the mock of one. The marks themselves are compared:
    what answers every attribute has none.
    """
    fn = _innermost(fn)
    for module, mark, attribute in _MARKS:  # nobody can have put a mark of a module that is not loaded
        sign = getattr(sys.modules.get(module), mark, None)
        if sign is not None and getattr(fn, attribute, None) is sign:
            return True
    return False


def kind_of(fn: Any) -> Literal["sync", "async", "generator", "async generator"]:
    """What calling fn gives: a result, a coroutine, a generator, an async generator."""
    flags = flags_of(fn)
    if flags & _ASYNC_GENERATOR:
        return "async generator"
    if flags & (_COROUTINE | _ITERABLE_COROUTINE) or _marked(fn):
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
    name = getattr(fn, "__qualname__", None)
    return name if isinstance(name, str) and name else type(fn).__qualname__


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
    try:
        functools.update_wrapper(wrapper, fn)
    except TypeError:  # a proxy that answers every attribute: its name is no text
        wrapper.__module__ = type(fn).__module__
        wrapper.__name__ = wrapper.__qualname__ = name_of(fn)
        wrapper.__doc__ = None
        vars(wrapper)["__wrapped__"] = fn


def rewrapped(decorate: Callable[[Any], Any], fn: Any) -> Any:
    """A decorated staticmethod or classmethod object stays one; None for anything else."""
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(decorate(fn.__func__))
    if not callable(fn):
        message = f"expected a function to protect, got: a value of type {type(fn).__name__}."
        raise ConfigurationError(message)
    return None
