"""
The door from the core to what processes share.

A breaker, a limit or a retry budget with ``shared=True`` keeps a small document under its kind and its name in a store, where every process
that uses the same app finds it. The core knows no store: it knows a `Commons`, which changes such a document in one transaction and says
what time it is there. No instant of a process's own clock is ever written into it.

A shared thing belongs to one commons for good, which its `Bond` knows: that of the first pipeline which runs with it, of the app that was told
to `share` it, or, when it is used before either, that of the default app.
"""

from __future__ import annotations

import os
import weakref
from _thread import allocate_lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from outlast.clock import Clock, here
from outlast.errors import ConfigurationError, OutlastError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

T = TypeVar("T")
if TYPE_CHECKING:
    #: From what is shared now (None: nothing yet) and the store's own time, in seconds since the epoch, to what is to be shared (None: as it
    #: is) and an answer. Pure and quick: everybody else waits, and it may be asked again.
    Change: TypeAlias = Callable[[Mapping[str, Any] | None, float], tuple[Mapping[str, Any] | None, T]]


class Unreachable(OutlastError):
    """The store could not be asked. It stays inside: whoever shares something decides alone until the store is back."""


class Commons(Protocol):
    """Where processes share things. Blocking, and safe in threads; two that compare equal are the same place."""

    def change(self, kind: str, name: str, decide: Change[T]) -> T:
        """Decide in one transaction, with nobody else in between; the answer. `Unreachable` if that could not be done."""
        ...

    def look(self, kind: str, name: str) -> tuple[Mapping[str, Any] | None, float]:
        """What is shared under a name, and the store's own time."""
        ...


class Bond:
    """To which commons a shared thing belongs. Those that `replace` one another have one bond."""

    __slots__ = ("__weakref__", "_commons", "_lock", "kind", "name")

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        self._commons: Commons | None = None
        self._lock = allocate_lock()
        _bonds.add(self)

    def bind(self, commons: Commons) -> None:
        """Belong to this commons; ConfigurationError if it is another one's already."""
        with self._lock:
            if self._commons is None:
                self._commons = commons
            elif self._commons != commons:
                message = (
                    f"expected the shared {self.kind} {self.name!r} to be used with one store, got: it belongs to {self._commons!r} and is "
                    f"now used with {commons!r}. Share it with one app before its first use: app.share(...); or make one for each app."
                )
                raise ConfigurationError(message)

    def commons(self) -> Commons | None:
        """Where it is shared. None in virtual time, where everything is this process's own: a test needs no store."""
        if type(here.get().clock) is not Clock:
            return None
        if self._commons is None:
            self.bind(_default())
        return self._commons


def bind(things: Iterable[Any], commons: Commons) -> None:
    """Bind those of the things that are shared; the others, and None, are passed over."""
    for thing in things:
        bond = getattr(thing, "bond", None)
        if isinstance(bond, Bond):
            bond.bind(commons)


def _default() -> Commons:
    """The default app's commons."""
    # The one place where the core looks up: imports go down only, and the store lies above. By then somebody has asked for a thing that is
    # shared, so loading it is what is wanted.
    from importlib import import_module

    commons: Commons = import_module("outlast.pipeline.home").DEFAULT.commons
    return commons


_bonds: weakref.WeakSet[Bond] = weakref.WeakSet()


def _after_fork() -> None:
    # A thread of the parent may have held a lock at the moment of the fork; nobody in the child would ever release it.
    for bond in _bonds:
        bond._lock = allocate_lock()  # noqa: SLF001 - same room


os.register_at_fork(after_in_child=_after_fork)
