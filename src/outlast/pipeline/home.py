"""
Where pipelines keep their runs: a store, a codec, dead letters. Every app is one; pipelines without an app share the default one.
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from outlast.commons import Unreachable
from outlast.deadletters import DeadLetters
from outlast.errors import ConfigurationError, nearest
from outlast.redact import mask
from outlast.store import EMBEDDED, StoreError, open_store
from outlast.store.codec import Codec

_PATIENCE = 2.0  # seconds that something shared waits for a busy or silent database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeVar

    from outlast.commons import Change
    from outlast.store import Store
    from outlast.store.codec import Seal
    from outlast.store.records import DeadLetterRow

    T = TypeVar("T")

    class Replayable(Protocol):
        """A pipeline, as far as dead letters need it."""

        @property
        def name(self) -> str: ...
        def replayed(self, letters: Iterable[DeadLetterRow], /, *, run_key: str, from_start: bool) -> Any: ...


class Home:
    """A name, a store that is opened when it is first needed, and the pipelines that were made for it."""

    def __init__(
        self,
        name: str,
        store_url: str,
        *,
        seal: Seal | None = None,
        retention_days: Mapping[str, int] | None = None,
    ) -> None:
        self.name = name
        self.codec = Codec(seal)
        self.retention_days = dict(retention_days or {})
        self._url = store_url
        self._store: tuple[object, Store] | None = None
        self._commons_store: tuple[object, Store] | None = None
        self._opening = threading.Lock()
        self._pipelines: weakref.WeakValueDictionary[str, Replayable] = weakref.WeakValueDictionary()

    @property
    def store_url(self) -> str:
        """Where the store is."""
        return self._url

    @property
    def store(self) -> Store:
        """The store, open."""
        with self._opening:
            address = self._address()
            if self._store is None or self._store[0] != address:
                self._store = (address, open_store(self.store_url, app=self.name))
            return self._store[1]

    @property
    def commons(self) -> HomeCommons:
        """What its processes share."""
        return HomeCommons(self)

    def _address(self) -> tuple[str, Path]:
        # A relative address means another file from another folder.
        return (self.store_url, Path.cwd())

    def _impatient(self) -> Store:
        """The same store, for those who would rather decide alone than wait for it."""
        with self._opening:
            address = self._address()
            if self._commons_store is None or self._commons_store[0] != address:
                self._commons_store = (address, open_store(self.store_url, app=self.name, patience=_PATIENCE))
            return self._commons_store[1]

    @property
    def dead_letters(self) -> DeadLetters:
        """What could not be saved."""
        return DeadLetters(lambda: self.store, self.codec, self._replay, retention_days=self.retention_days)

    def add_pipeline(self, pipeline: Replayable) -> None:
        """Know the pipeline, so that its dead letters can be replayed; the newest of a name counts."""
        self._pipelines[pipeline.name] = pipeline

    def _replay(self, name: str, letters: Iterable[DeadLetterRow], /, *, run_key: str, from_start: bool) -> Any:
        pipeline = self._pipelines.get(name)
        if pipeline is None:
            message = (
                f"expected the pipeline {name!r} to be known to the app {self.name!r}, got: no such one.{nearest(name, [*self._pipelines])} "
                "Import the module that makes it first."
            )
            raise ConfigurationError(message)
        return pipeline.replayed(letters, run_key=run_key, from_start=from_start)


class HomeCommons:
    """What the processes of one app share, in its store. All that keeps it from being asked is `Unreachable`."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def change(self, kind: Any, name: str, decide: Change[T]) -> T:
        """Decide in one transaction."""
        return self._ask(lambda store: store.change_state(kind, name, decide))

    def look(self, kind: Any, name: str) -> tuple[Mapping[str, Any] | None, float]:
        """What is shared, and the store's own time."""
        return self._ask(lambda store: store.look(kind, name))

    def _ask(self, question: Callable[[Store], T]) -> T:
        try:
            return question(self._home._impatient())  # noqa: SLF001 - same room
        except (StoreError, ConfigurationError, ImportError) as error:
            raise Unreachable(str(error)) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HomeCommons) and self._where() == other._where()

    def __hash__(self) -> int:
        return hash(self._home.name)

    def _where(self) -> tuple[str, str]:
        return self._home.name, self._home.store_url

    def __repr__(self) -> str:
        return f"<what the app {self._home.name!r} shares in {mask(self._home.store_url)}>"


class _Default(Home):
    """Of pipelines without an app: where its store is, is asked anew each time."""

    def __init__(self) -> None:
        super().__init__("default", EMBEDDED)

    @property
    def store_url(self) -> str:
        return os.environ.get("OUTLAST_STORE") or EMBEDDED

    def __repr__(self) -> str:
        return "<the default app>"


DEFAULT = _Default()
