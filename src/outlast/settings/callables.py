"""
What kind of callable is this, and is that result something to await? Asked once at decoration, so that calls need not
ask.
"""

from __future__ import annotations

import functools
import sys
from types import CodeType, CoroutineType, FunctionType, MethodType, ModuleType

from outlast.errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, Literal

_MORE, _ANYTHING = 0x04, 0x08
# inspect.CO_..., without importing inspect.
_GENERATOR, _COROUTINE, _ITERABLE_COROUTINE, _ASYNC_GENERATOR = (0x20, 0x80, 0x100, 0x200)
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
    Whether fn is marked as a coroutine function, by `inspect.markcoroutinefunction` or as the mock of one. The marks
    themselves are compared: what answers every attribute has none.
    """
    fn = _innermost(fn)
    for module, mark, attribute in _MARKS:  # nobody can have put a mark of a module that is not loaded
        sign = getattr(sys.modules.get(module), mark, None)
        if sign is not None and getattr(fn, attribute, None) is sign:
            return True
    return False


def kind_of(fn: Any) -> Literal["sync", "async", "generator", "async generator"]:
    """What calling fn gives: a result, a coroutine, a generator, an async generator."""
    plain = type(fn) is FunctionType and not fn.__dict__  # a function that nobody has marked
    flags = fn.__code__.co_flags if plain else flags_of(fn)
    if flags & _ASYNC_GENERATOR:
        return "async generator"
    if flags & (_COROUTINE | _ITERABLE_COROUTINE) or (not plain and _marked(fn)):
        return "async"
    return "generator" if flags & _GENERATOR else "sync"


def is_async(fn: Any) -> bool:
    """Whether calling fn gives a coroutine; refuses generators, whose failures happen after the call has returned."""
    kind = kind_of(fn)
    if "generator" in kind:
        raise ConfigurationError(
            f"expected a function or a coroutine function, got: the generator function {name_of(fn)}. Decorate it with a Guard or "
            "@retry, which try again until its first item, or protect the calls that it makes."
        )
    return kind == "async"


def name_of(fn: Any) -> str:
    """How the callable is called in events and messages."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", None)
    return name if isinstance(name, str) and name else type(fn).__qualname__


def defined_in(thing: Any) -> list[str]:
    """The modules that define what runs when thing is called; "" for what is defined in none, such as a text."""
    if isinstance(thing, ModuleType):
        return [""]
    owner: list[Any] = []
    for _ in range(_DEEPEST):
        if isinstance(thing, functools.partial):
            thing = thing.func
        elif type(thing) is MethodType:
            owner.append(thing.__self__)
            thing = thing.__func__
        else:
            break
    homes = [getattr(one, "__module__", None) for one in (thing, *owner)]
    return [home if isinstance(home, str) else "" for home in homes]


class Shape:
    """Which arguments a callable takes."""

    __slots__ = ("anything", "more", "named", "needed", "positional", "required")

    def __init__(
        self,
        positional: Sequence[str],
        required: int,
        named: Iterable[str],
        needed: Iterable[str],
        *,
        more: bool,
        anything: bool,
    ) -> None:
        self.positional = tuple(positional)  # the names of those that go by their place
        self.required = required  # how many of them have no default
        self.named = frozenset(named)  # those that can be given by name
        self.needed = frozenset(needed)  # those that must be
        self.more = more  # any number by place
        self.anything = anything  # any name

    def __str__(self) -> str:
        named = sorted(self.named.difference(self.positional))
        shown = [*self.positional, *(["*args"] if self.more else []), *named, *(["**kwargs"] if self.anything else [])]
        return f"({', '.join(shown)})"

    def takes(self, count: int) -> bool:
        """Whether it can be called with so many values."""
        return self.required <= count and (self.more or count <= len(self.positional)) and not self.needed

    def follows(self, other: Shape) -> bool:
        """
        Whether it can be called along with the other one: it takes what every call there has, and needs nothing else.
        """
        if not self.more and len(self.positional) < other.required:
            return False
        if not other.more and not other.needed.issuperset(self.positional[other.required : self.required]):
            return False
        if not other.anything and not self.needed <= other.needed:
            return False
        # By place and by name must mean the same.
        return not any(
            name != there and name in other.named
            for name, there in zip(self.positional, other.positional, strict=False)
        )

    def fitting(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Shape | None = None
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """
        Of the arguments of a call, those that it takes; `given` is the shape of what is called, where names may differ.
        """
        if kwargs and given is not None and not self.named.issuperset(kwargs):
            left = dict(kwargs)
            for name in given.positional[len(args) :]:
                if name not in left:
                    break
                args = (*args, left.pop(name))
            kwargs = left
        if not self.more and len(args) > len(self.positional):
            args = args[: len(self.positional)]
        if not self.anything and not self.named.issuperset(kwargs):
            kwargs = {name: value for name, value in kwargs.items() if name in self.named}
        return args, kwargs


def shape_of(fn: Any) -> Shape | None:
    """What fn takes; None if nobody knows."""
    inner, bound = fn, 0
    if type(inner) is MethodType:
        inner, bound = inner.__func__, 1
    if type(inner) is FunctionType and not inner.__dict__:  # read at once, without the module that can read everything
        code, defaults = inner.__code__, inner.__defaults__ or ()
        places, keyword = code.co_argcount, code.co_kwonlyargcount
        names = code.co_varnames
        by_name = names[places : places + keyword]
        return Shape(
            names[bound:places],
            max(0, places - len(defaults) - bound),
            (*names[max(bound, code.co_posonlyargcount) : places], *by_name),
            [name for name in by_name if name not in (inner.__kwdefaults__ or {})],
            more=bool(code.co_flags & _MORE),
            anything=bool(code.co_flags & _ANYTHING),
        )
    from inspect import signature

    try:
        parameters = signature(fn).parameters.values()
    except (TypeError, ValueError, AttributeError):  # a builtin, or something that only looks like a function
        return None
    by_place = [found for found in parameters if found.kind <= 1]
    return Shape(
        [found.name for found in by_place],
        sum(found.default is found.empty for found in by_place),
        [found.name for found in parameters if found.kind in (1, 3)],
        [found.name for found in parameters if found.kind == 3 and found.default is found.empty],
        more=any(found.kind == 2 for found in parameters),
        anything=any(found.kind == 4 for found in parameters),
    )


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


def discard(result: object) -> None:
    """Let go of something to await that nobody will await, without a warning from its end."""
    close = getattr(result, "close", None)
    if close is not None and type(result) is CoroutineType:
        close()


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
        raise ConfigurationError(f"expected a function to protect, got: a value of type {type(fn).__name__}.")
    return None
