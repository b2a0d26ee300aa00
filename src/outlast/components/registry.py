"""
Registered components: sources and sinks of other packages, found by name.

A name is the scheme of an address (``pages://out``) and the ending of a file (``out.avro``). It belongs to what was
registered in this process, or to an entry point of an installed package in the group ``outlast.sources`` or
``outlast.sinks``. Outlast's own names come first.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError
from outlast.kernel.redact import error_text, mask
from outlast.settings.checks import Check, show

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal, TypeAlias

    Group: TypeAlias = Literal["sources", "sinks"]

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
        except Exception as broken:
            what = f"the component {show(name)} ({entry.value})"
            message = f"{what} cannot be loaded: {type(broken).__name__}: {error_text(broken)}."
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
