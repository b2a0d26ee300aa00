"""
Where a function is that another process has to find: the name of its module and its own in there, ``shop.orders:release``.
"""

from __future__ import annotations

import functools
import importlib
import sys
from operator import attrgetter
from types import MethodType
from typing import Any

from outlast.errors import ConfigurationError
from outlast.settings.callables import name_of


class NotFound(Exception):
    """There is no such function in this process."""


def place_of(fn: Any) -> str:
    """Where it is; `ConfigurationError` for one that other processes would not find."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if isinstance(fn, functools.partial):
        got = "a partial. Pass its function, and then its arguments"
    elif isinstance(fn, MethodType) and not isinstance(fn.__self__, type):
        got = f"the method {name_of(fn)} of an object. Write a function that makes the object, or finds it, from the arguments"
    elif not isinstance(module, str) or not isinstance(name, str):
        got = f"an object of the type {type(fn).__qualname__}. Write a function around it"
    elif "<" in name:
        got = f"{name}, which was made inside of a function. Move it to the top level of its module"
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
        loaded = sys.modules.get(module) or importlib.import_module(module)
        return attrgetter(name)(loaded)
    except (ImportError, AttributeError) as error:
        raise NotFound(f"{place} is not there ({type(error).__name__})") from None
    except Exception as error:  # noqa: BLE001 - whatever its module does when it is loaded
        raise NotFound(f"{module} cannot be loaded ({type(error).__name__})") from None
