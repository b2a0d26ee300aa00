"""
Objects known by their kind and name: breakers, limits and retry budgets, of this process or shared by many.

A copy is the same object. A pickle holds the kind, the name and the settings: a process that has an object of that kind
and name uses it, with its state there; another process makes one with the same settings. The pickle of a shared one
also says which commons it belongs to. An object with ``shared=True``
belongs to one commons, which never changes and which its `Bond` knows. It is that of the first pipeline that runs with
the object, or of the app whose `share` was called with it. If the object is used before either, it is that of the
default app.
"""

from __future__ import annotations

import os
import weakref
from _thread import allocate_lock
from contextvars import ContextVar

from outlast.errors import ConfigurationError
from outlast.kernel.clock import here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, ClassVar, Self

    from outlast.sharing.contact import Commons, Contact


#: Whether a test has put a store in the place of an app's own.
apart: ContextVar[bool] = ContextVar("outlast_apart", default=False)


class Bond:
    """
    The commons that a shared object belongs to. An object and the one that `replace` made of it have the same bond.
    """

    __slots__ = ("__weakref__", "_commons", "_lock", "_unknown", "kind", "name")

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        self._commons: Commons | None = None
        self._unknown: str | None = None  # why it is not known where another process shares it
        self._lock = allocate_lock()
        _bonds.add(self)

    def bind(self, commons: Commons) -> None:
        """Belong to this commons; ConfigurationError if it is another one's already."""
        with self._lock:
            if self._commons is None:
                self._commons = commons
            elif self._commons != commons:
                raise ConfigurationError(
                    f"expected the shared {self.kind} {self.name!r} to be used with one store, got: it belongs to {self._commons!r} and is "
                    f"now used with {commons!r}. Share it with one app before its first use: app.share(...); or make one for each app."
                )

    def commons(self) -> Commons | None:
        """
        Where it is shared. None in virtual time and with a store for a test, where everything is this process's own.
        """
        if here.get().clock.virtual or apart.get():
            return None
        if self._commons is None:
            if self._unknown is not None:
                raise ConfigurationError(self._unknown)
            self.bind(_default())
        return self._commons

    def sent(self) -> Commons:
        """Where it is shared, for another process. To send it binds nothing here."""
        return _default() if self._commons is None else self._commons

    def received(self, commons: Commons | str) -> None:
        """
        Belong to the commons of the process that sent it, unless it belongs to one in this process; a text says why that
        one is not known here.
        """
        with self._lock:
            if isinstance(commons, str):
                self._unknown = commons
            elif self._commons is None:
                self._commons = commons

    def contact(self) -> Contact | None:
        """This process's contact with where it is shared; None as for `commons`."""
        from outlast.sharing.contact import contact_with

        commons = self.commons()
        return None if commons is None else contact_with(commons)


def bind(things: Iterable[Any], commons: Commons) -> None:
    """
    Bind those of the things that are shared; the others, and None, are passed over. With a store for a test nothing is
    bound: that store will be gone, and a bond never changes.
    """
    if apart.get():
        return
    for thing in things:
        bond = getattr(thing, "bond", None)
        if isinstance(bond, Bond):
            bond.bind(commons)


def _default() -> Commons:
    """The default app's commons."""
    # The one place where the core looks up: imports go down only, and the store lies above. By then somebody has asked
    # for a thing that is shared, so loading it is what is wanted.
    from outlast.pipeline.home import DEFAULT

    return DEFAULT.commons


class Named:
    """
    Base class of objects that are known by their kind and name.

    A subclass defines `_kind`, and lists in `_settings` the attributes that make the same object again. Its `__init__`
    sets these and `shared`, and then calls `_known`. `_renew` is called in a child that was forked from this process.
    """

    _kind: ClassVar[str]
    _settings: ClassVar[tuple[str, ...]]
    name: str
    shared: bool
    bond: Bond | None

    def _known(self) -> None:
        """From now on it is known here. The first of its name is the one that a pickle finds."""
        self.bond = Bond(self._kind, self.name) if self.shared else None
        _all.add(self)
        _by_name.setdefault((self._kind, self.name), self)

    def _replaced_by(self, other: Named) -> None:
        """From now on a pickle finds the other one."""
        _by_name[self._kind, self.name] = other

    if TYPE_CHECKING:

        def _renew(self) -> None:
            """
            Begin as new in a forked child. A thread of the parent may have held a lock at the moment of the fork, and
            nothing in the child would ever release it.
            """

    def _as_settings(self) -> dict[str, Any]:
        """With what it was made, apart from its name."""
        return {name: getattr(self, name) for name in self._settings}

    def __reduce__(self) -> tuple[Any, ...]:
        made_by = next(kind for kind in type(self).__mro__ if "_kind" in vars(kind))  # whatever made a subclass of it
        commons = None if self.bond is None else self.bond.sent()
        return _of_name, (made_by, self.name, self._as_settings(), commons)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self  # a copy of a guard protects the same dependency


#: Called with a breaker that is not shared when its circuit has changed; None as long as this process has no store.
report_change: Callable[[Named], None] | None = None

_all: weakref.WeakSet[Named] = weakref.WeakSet()
_by_name: weakref.WeakValueDictionary[tuple[str, str], Named] = weakref.WeakValueDictionary()
_unpickled: dict[tuple[str, str], Named] = {}  # only this keeps them alive
_bonds: weakref.WeakSet[Bond] = weakref.WeakSet()


def _of_name(made_by: Any, name: str, settings: dict[str, Any], commons: Commons | str | None = None) -> Named:
    known = _by_name.get((made_by._kind, name))  # noqa: SLF001 - same room
    if known is None:
        known = _unpickled[made_by._kind, name] = made_by(name, **settings)  # noqa: SLF001 - same room
        if commons is not None and known.bond is not None:
            known.bond.received(commons)
    return known


def known(kind: str) -> list[Any]:
    """All objects of this kind that this process has."""
    return [one for one in list(_all) if one._kind == kind]  # noqa: SLF001 - same module


def _after_fork() -> None:
    for bond in _bonds:
        bond._lock = allocate_lock()  # noqa: SLF001 - same room
    for thing in _all:
        thing._renew()  # noqa: SLF001 - same room


os.register_at_fork(after_in_child=_after_fork)
