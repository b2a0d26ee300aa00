"""
Frozen values for the rooms that load with ``@retry``.

`dataclasses` costs more to import than the whole of a protected call is allowed to (it pulls in `inspect` and `re`), so
the few values that exist before anything has failed are built on this base instead. Rooms that load later use
dataclasses.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, Self

put = object.__setattr__  # how an __init__ fills a frozen value


class Value:
    """
    A frozen, comparable, hashable, picklable value. A subclass lists its fields in ``__slots__`` and puts them in
    ``__init__``.
    """

    __slots__ = ()
    # What repr, equality and replace look at; slots that start with "_" are derived from the others.
    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        slots: tuple[str, ...] = cls.__slots__
        cls._fields = tuple(name for name in slots if not name.startswith("_"))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"{type(self).__name__} is frozen: {name} cannot be set. Make a changed copy with replace({name}=...)."
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be deleted.")

    def _astuple(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._fields)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._astuple() == other._astuple()

    def __hash__(self) -> int:
        return hash((type(self), self._astuple()))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({inside})"

    def __reduce__(self) -> tuple[Any, ...]:
        from outlast.kernel.parcel import packed

        owner = f"a {type(self).__name__}"
        return _rebuild, (type(self), {name: packed(owner, name, getattr(self, name)) for name in self._fields})

    def replace(self, **changes: Any) -> Self:
        """A copy with these fields changed; everything is checked again."""
        return type(self)(**{name: getattr(self, name) for name in self._fields} | changes)


def _rebuild(cls: type[Value], fields: dict[str, Any]) -> Value:
    from outlast.kernel.parcel import unpacked

    return cls(**{name: unpacked(value) for name, value in fields.items()})
