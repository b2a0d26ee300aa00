"""
Where a function is that another process has to find: the name of its module and its own in there, ``shop.orders:release``.

The module that a program was started with is called ``__main__`` in every program. Started with ``python -m`` it has a name by which
others find it, too. A script has none: its functions are found in the same script only, so who stores such a place stores `program` with it.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from operator import attrgetter
from types import MethodType
from typing import Any

from outlast.errors import ConfigurationError
from outlast.settings.callables import name_of

_MAIN = "__main__"
_MAINS = {_MAIN, "__mp_main__"}  # the second one: in a process that multiprocessing has started


class NotFound(Exception):
    """There is no such function in this process."""


def is_main(place: str) -> bool:
    """Whether it is in a script, and has to be in the same one where it is found."""
    return place.partition(":")[0] == _MAIN


def program() -> str | None:
    """Which script this process was started with; None if with none, as an interactive one."""
    file = getattr(sys.modules.get(_MAIN), "__file__", None)
    return os.path.realpath(file) if isinstance(file, str) and os.path.isfile(file) else None  # noqa: PTH113


def _own_name() -> str | None:
    """The name by which others find the module that this process was started with (``python -m``)."""
    name = getattr(getattr(sys.modules.get(_MAIN), "__spec__", None), "name", None)
    return name if isinstance(name, str) and name not in _MAINS else None


def place_of(fn: Any) -> str:
    """Where it is; `ConfigurationError` for one that other processes would not find."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if module in _MAINS:
        module = _own_name() or _MAIN
    if isinstance(fn, functools.partial):
        got = "a partial. Pass its function, and then its arguments"
    elif isinstance(fn, MethodType) and not isinstance(fn.__self__, type):
        got = f"the method {name_of(fn)} of an object. Write a function that makes the object, or finds it, from the arguments"
    elif not isinstance(module, str) or not isinstance(name, str):
        got = f"an object of the type {type(fn).__qualname__}. Write a function around it"
    elif "<" in name:
        got = f"{name}, which was made inside of a function. Move it to the top level of its module"
    elif module == _MAIN and program() is None:
        got = f"{name} of a program that is in no file. Move it to a module"
    else:
        place = f"{module}:{name}"
        try:
            known = found_at(place)
        except NotFound:
            got = f"{place}, which is not there. Give it the name that it has in its module"
        else:
            if known == fn:
                return place
            got = f"another function than {place}. Decorate it where it is defined"
    message = f"expected a function at the top level of a module, which another process finds by its name, got: {got}."
    raise ConfigurationError(message)


def found_at(place: str) -> Any:
    """The function; `NotFound` if it is not there, or its module cannot be loaded."""
    module, _, name = place.partition(":")
    try:
        # Not loaded a second time under its other name.
        loaded = sys.modules.get(_MAIN if module == _own_name() else module) or importlib.import_module(module)
        return attrgetter(name)(loaded)
    except (ImportError, AttributeError) as error:
        raise NotFound(f"{place} is not there ({type(error).__name__})") from None
    except BaseException as error:  # noqa: BLE001 - whatever its module does when it is loaded, sys.exit too
        raise NotFound(f"{module} cannot be loaded ({type(error).__name__})") from None
