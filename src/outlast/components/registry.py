"""
Registered components: sources, sinks and components of steps, found by name.

A name is the scheme of an address (``pages://out``) and the ending of a file (``out.avro``). It belongs to what was
registered in this process, or to an entry point of an installed package in the group ``outlast.sources`` or
``outlast.sinks``. Outlast's own names come first. A component of a step is a `Component`, in the same way, in the group
``outlast.components``, and a family of connections a `Family`, in ``outlast.connections``.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

from outlast.errors import ConfigurationError
from outlast.kernel.redact import error_text, mask
from outlast.kernel.wording import ended
from outlast.settings.checks import Check, show

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from importlib.metadata import EntryPoint
    from typing import Literal, TypeAlias

    from outlast.components.describing import Component, Family

    Group: TypeAlias = Literal["sources", "sinks"]
    Described: TypeAlias = Literal["components", "connections"]

_D = TypeVar("_D", "Component", "Family")
_WHAT = {"components": "the component", "connections": "the family of connections"}
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_NAME = re.compile(r"[a-z][a-z0-9+-]*")  # an ending has no dot inside: that of a.tar.gz is gz
_made: dict[str, dict[str, Callable[[str], Any]]] = {"sources": {}, "sinks": {}}
# What Outlast itself makes of an ending or a scheme; a component of this name would never be asked.
OWN = frozenset("jsonl ndjson json csv tsv parquet pq gz zst sqlite postgresql postgres".split())


def register_source(name: str, make: Callable[[str], object]) -> None:
    """
    Have ``run("name://...")`` and ``run("in/*.name")`` read what `make` gives for that text: a `Source`, or anything
    else that a run can read.
    """
    _register("sources", name, make)


def register_sink(name: str, make: Callable[[str], object]) -> None:
    """Have ``sink="name://..."`` and ``sink="out.name"`` write to what `make` gives for that text: a `Sink`."""
    _register("sinks", name, make)


def _register(group: Group, name: str, make: Callable[[str], object]) -> None:
    check = Check()
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        check.add("name", "a scheme or an ending in small letters without a dot, such as 'avro'", name)
    elif name in OWN:
        check.add("name", "one that Outlast does not have itself", name)
    check.question("make", make, ("an address",))
    if make is None:
        check.add("make", "a function of an address", make)
    check.raise_if_any()
    _made[group][name] = make


def name_in(address: str | PurePath) -> str:
    """The scheme of an address, or the ending of a file."""
    found = _ADDRESS.match(address) if isinstance(address, str) else None
    return (found[1] if found else PurePath(address).suffix[1:]).lower()


def is_address(text: object) -> bool:
    """Whether this is an address with a scheme rather than a path."""
    return isinstance(text, str) and _ADDRESS.match(text) is not None


def find(group: Group, address: str | PurePath) -> Callable[[str], Any] | None:
    """What makes the component that this address or path names; None if nothing does."""
    name = name_in(address)
    if not name or name in OWN:
        return None
    if name in _made[group]:
        return _made[group][name]
    from importlib.metadata import entry_points

    for entry in entry_points(group=f"outlast.{group}", name=name):
        try:
            return entry.load()  # type: ignore[no-any-return]
        except KeyboardInterrupt:
            raise
        except BaseException as broken:
            what = f"the component {show(name)} ({entry.value})"
            message = f"{what} cannot be loaded: {type(broken).__name__}: {ended(error_text(broken))}"
            raise ConfigurationError(message) from broken
    return None


def names(group: Group) -> list[str]:
    """All names that are registered, by this process or an installed package."""
    from importlib.metadata import entry_points

    return sorted({*_made[group], *entry_points(group=f"outlast.{group}").names})


def made(group: Group, address: str | PurePath) -> Any:
    """The component that this address or path names; None if nothing does."""
    make = find(group, address)
    if make is None:
        return None
    thing = make(str(address))
    if thing is None:
        message = f"expected the component {name_in(address)!r} to make something of {mask(str(address))!r}, got: None."
        raise ConfigurationError(message)
    return thing


# -- components of steps, and families of connections -------------------------------------------------------------------------

_components: dict[str, Component] = {}
_families: dict[str, Family] = {}


def register_component(component: Component) -> None:
    """Have pipeline files know this component. One of this name that was registered before is replaced."""
    from outlast.components.describing import Component as Description
    from outlast.components.steps import OWN as OWN_STEPS

    _check_new(component, Description, "component", "a Component", OWN_STEPS)
    _components[component.name] = component


def register_family(family: Family) -> None:
    """Have connections files know this family. One of this name that was registered before is replaced."""
    from outlast.components.describing import Family as Description
    from outlast.components.steps import OWN_FAMILIES

    _check_new(family, Description, "family", "a Family", OWN_FAMILIES)
    _families[family.name] = family


def _check_new(given: Any, kind: type[Any], name: str, what: str, own: Collection[str]) -> None:
    check = Check()
    if not isinstance(given, kind):
        check.add(name, what, given)
    elif given.name in own:
        check.add("name", "one that Outlast does not have itself", given.name)
    check.raise_if_any()


def find_component(name: str) -> Component | None:
    """The component of this name; None if there is none. Its module is loaded when it is first asked for."""
    from outlast.components.describing import Component as Description
    from outlast.components.steps import OWN as OWN_STEPS

    return _found(name, _components, OWN_STEPS, "components", Description)


def find_family(name: str) -> Family | None:
    """The family of connections of this name; None if nobody has described one."""
    from outlast.components.describing import Family as Description
    from outlast.components.steps import OWN_FAMILIES

    return _found(name, _families, OWN_FAMILIES, "connections", Description)


def _found(name: str, known: dict[str, _D], own: Mapping[str, str], group: Described, kind: type[_D]) -> _D | None:
    if name in known:
        return known[name]
    if name in own:
        return _kept(name, own[name], _own(own[name]), known, kind)
    entries = _installed(group, tuple(sys.path)).get(name, ())
    if not entries:
        return None
    if len(entries) > 1:
        places = " and ".join(sorted(f"{entry.value} of {_package(entry)}" for entry in entries))
        message = f"expected one package to have the name {show(name)} in outlast.{group}, got: {places}. Uninstall one of them."
        raise ConfigurationError(message)
    entry = next(iter(entries))
    try:
        found = entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as broken:  # somebody else's package may do anything when it is loaded, sys.exit too
        what = f"{_WHAT[group]} {show(name)} ({entry.value} of {_package(entry)})"
        message = f"{what} cannot be loaded: {type(broken).__name__}: {ended(error_text(broken))}"
        raise ConfigurationError(message) from broken
    return _kept(name, entry.value, found, known, kind)


def component_names() -> list[str]:
    """All components that a pipeline file may name."""
    from outlast.components.steps import OWN as OWN_STEPS

    return sorted({*OWN_STEPS, *_components, *_installed("components", tuple(sys.path))})


def family_names() -> list[str]:
    """
    All families that a connections file may have: those that are described, and those that a component asks for. A
    component that cannot be loaded asks for none.
    """
    from outlast.components.steps import OWN_FAMILIES

    asked = set[str]()
    for name in component_names():
        with suppress(ConfigurationError):
            component = find_component(name)
            asked |= {component.connection} if component is not None and component.connection else set()
    return sorted({*OWN_FAMILIES, *_families, *_installed("connections", tuple(sys.path)), *asked})


@lru_cache(maxsize=8)
def _installed(group: Described, path: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:  # noqa: ARG001 - where packages are installed
    """What installed packages have. Looking through those takes long, and a file may name many components."""
    from importlib.metadata import entry_points

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=f"outlast.{group}"):
        others = found.get(entry.name, ())
        if not any((entry.value, _package(entry)) == (one.value, _package(one)) for one in others):
            found[entry.name] = (*others, entry)
    return found


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unknown package"


def _own(place: str) -> object:
    from outlast.settings.names import import_name

    try:
        return import_name(place)
    except ImportError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "pydantic":
            raise
        message = "Pipeline files need pydantic, which is not installed: pip install 'outlast[flows]'."
        raise ConfigurationError(message) from None


def _kept(name: str, place: str, found: object, known: dict[str, _D], kind: type[_D]) -> _D:
    if not isinstance(found, kind) or found.name != name:
        got = f"the one called {show(found.name)}" if isinstance(found, kind) else show(found)
        raise ConfigurationError(f"expected {place} to be the {kind.__name__} {show(name)}, got: {got}.")
    known[name] = found
    return found
