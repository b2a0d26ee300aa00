"""
How declared things travel to other processes.

Plain pickle sends a function by its name and refuses one without. cloudpickle (Ray, joblib, Dask, Spark) sends by value
what another process could not import. What plain pickle does by itself is right for neither of the two as soon as a
name leads to the declared thing and no longer to its function. A `Parcel` is a class made for one value: cloudpickle
sends such a class by value and asks no registry, plain pickle asks `copyreg`, which has the answer from here.
"""

from __future__ import annotations

import copyreg
import sys
from functools import partial
from pickle import PicklingError
from types import FunctionType
from typing import Any

_MAIN = "__main__"


class _Parcel(type):
    """The type of parcels: `held` has the value, `plainly` what plain pickle makes of it."""

    held: tuple[Any]
    plainly: tuple[Any, ...]


def _plainly(parcel: _Parcel) -> tuple[Any, ...]:
    first, *rest = parcel.plainly
    if isinstance(first, str):
        raise PicklingError(first)
    return first, tuple(rest)


copyreg.pickle(_Parcel, _plainly)


def _parcel(value: Any, *plainly: Any) -> _Parcel:
    return _Parcel("Parcel", (), {"held": (value,), "plainly": plainly})


def packed(owner: str, field: str, value: Any) -> Any:
    """The value of a field, or a parcel for a function that plain pickle must refuse: with the name of that field."""
    if type(value) is tuple:
        return tuple(packed(owner, f"{field}[{place}]", each) for place, each in enumerate(value))
    if type(value) is dict:
        return {key: packed(owner, f"{field}[{key!r}]", each) for key, each in value.items()}
    fn = value
    while isinstance(fn, partial):
        fn = fn.func
    if type(fn) is not FunctionType or home_of(fn) is not None:
        return value
    return _parcel(
        value,
        f"cannot pickle {field} of {owner}: {fn.__qualname__} has no name by which another process could import it. "
        "Define it with def at the top of a module, or send it with cloudpickle.",
    )


def unpacked(value: Any) -> Any:
    """What `packed` was given."""
    if type(value) is tuple:
        return tuple(map(unpacked, value))
    if type(value) is dict:
        return {key: unpacked(each) for key, each in value.items()}
    return value.held[0] if isinstance(value, _Parcel) else value


def home_of(thing: Any) -> tuple[str, str] | None:
    """Module and name by which another process can import the thing; None if there is no such name."""
    module = getattr(thing, "__module__", None)
    loaded = sys.modules.get(module) if isinstance(module, str) else None
    if loaded is None or module is None:
        return None
    names = [getattr(thing, "__qualname__", "")]
    if type(thing) is not FunctionType:
        names += [name for name, value in list(vars(loaded).items()) if value is thing]
    return next(((module, name) for name in names if name and _found(module, name, None) is thing), None)


def reduced(thing: Any, state: Any, home: tuple[str, str] | None) -> tuple[Any, ...]:
    """
    For `__reduce__`: by name if another process can import it, else as its class and a state for `__setstate__`.

    What a program's main module defines has a name for plain pickle only: a process that unpickles with cloudpickle has
    another main module.
    """
    if home is None:
        return _blank, (type(thing),), state
    if home[0] != _MAIN:
        return _found, home
    return _blank, (type(thing), _parcel(None, _found, *home)), _parcel(state, _nothing)


def contents(state: Any) -> dict[str, Any] | None:
    """The state that `reduced` was given; None for a thing that was found by its name."""
    if state is None:
        return None
    found: dict[str, Any] = unpacked(unpacked(state))  # what is in the parcel, and what is in its fields
    return found


def _found(module: str, name: str, *default: Any) -> Any:
    if module not in sys.modules:
        __import__(module)
    thing: Any = sys.modules[module]
    for part in name.split("."):
        thing = getattr(thing, part, *default)
    return thing


def _blank(cls: type[Any], there: Any = None) -> Any:
    """The thing of that name in this process, or an empty one, whose state follows."""
    return object.__new__(cls) if there is None or isinstance(there, _Parcel) else there


def _nothing() -> None:
    """The state of a thing that was found by its name."""
