"""
Where pipelines keep their runs: a store, a codec, dead letters. Every app is one; pipelines without an app share the default one.
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from outlast.deadletters import DeadLetters
from outlast.errors import ConfigurationError, nearest
from outlast.store import EMBEDDED, open_store
from outlast.store.codec import Codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from outlast.store import Store
    from outlast.store.codec import Seal
    from outlast.store.records import DeadLetterRow

    class Replayable(Protocol):
        """A pipeline, as far as dead letters need it."""

        @property
        def name(self) -> str: ...
        def replayed(
            self, letters: Iterable[DeadLetterRow], /, *, run_key: str, from_start: bool, watch: Any
        ) -> Any: ...


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
            # A relative address means another file from another folder.
            address = (self.store_url, Path.cwd())
            if self._store is None or self._store[0] != address:
                self._store = (address, open_store(self.store_url, app=self.name))
            return self._store[1]

    @property
    def dead_letters(self) -> DeadLetters:
        """What could not be saved."""
        return DeadLetters(lambda: self.store, self.codec, self._replay, retention_days=self.retention_days)

    def add_pipeline(self, pipeline: Replayable) -> None:
        """Know the pipeline, so that its dead letters can be replayed; the newest of a name counts."""
        self._pipelines[pipeline.name] = pipeline

    def _replay(
        self, name: str, letters: Iterable[DeadLetterRow], /, *, run_key: str, from_start: bool, watch: Any = None
    ) -> Any:
        pipeline = self._pipelines.get(name)
        if pipeline is None:
            message = (
                f"expected the pipeline {name!r} to be known to the app {self.name!r}, got: no such one.{nearest(name, [*self._pipelines])} "
                "Import the module that makes it first."
            )
            raise ConfigurationError(message)
        return pipeline.replayed(letters, run_key=run_key, from_start=from_start, watch=watch)


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
