"""
What stages share: clients, connections, models. Opened once for a run, closed after its last item.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from outlast.errors import ConfigurationError
from outlast.settings.callables import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager as AsyncManager
    from contextlib import AbstractContextManager as Manager

T = TypeVar("T")


class Use:
    """The default value of a stage's parameter: a placeholder that a run replaces by the opened resource."""

    __slots__ = ("factory",)

    def __init__(self, factory: Callable[[], Any]) -> None:
        self.factory = factory

    def __repr__(self) -> str:
        return f"use({name_of(self.factory)})"


def use(factory: Callable[[], AsyncManager[T] | Manager[T]], /) -> T:
    """
    As the default of a stage's parameter: what the factory's context manager gives. It is opened once per worker
    process and event loop, before the first item, and closed after the last one.
    """
    if not callable(factory):
        message = f"expected use() to get a function that gives a context manager, got: a value of type {type(factory).__name__}."
        raise ConfigurationError(message)
    return Use(factory)  # type: ignore[return-value]


class Resources:
    """The open resources of one run in one event loop."""

    def __init__(self, provided: Mapping[Any, Any] | None = None) -> None:
        self._values: dict[Any, Any] = dict(provided or {})
        self._open = AsyncExitStack()

    async def open(self, factories: Iterable[Callable[[], Any]]) -> None:
        """Open what is not provided; if one fails, those before it are closed again."""
        try:
            for factory in factories:
                if factory not in self._values:
                    self._values[factory] = await self._enter(factory)
        except BaseException:
            await self.close()
            raise

    async def _enter(self, factory: Callable[[], Any]) -> Any:
        manager = factory()
        if isinstance(manager, AbstractAsyncContextManager):
            return await self._open.enter_async_context(manager)
        if isinstance(manager, AbstractContextManager):
            return self._open.enter_context(manager)
        raise ConfigurationError(
            f"expected {name_of(factory)}() to give a context manager, got: a value of type {type(manager).__name__}. "
            "Decorate it with contextlib.contextmanager or asynccontextmanager."
        )

    def for_stage(self, wanted: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """The keyword arguments of a stage."""
        return {name: self._values[factory] for name, factory in wanted.items()}

    async def close(self) -> None:
        """Close in the opposite order."""
        await self._open.aclose()
