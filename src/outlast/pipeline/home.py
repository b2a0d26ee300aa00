"""
Where pipelines keep their runs: a store, a codec, dead letters. An `App` is a `Home`; pipelines without an app use
`DEFAULT`.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from outlast.deadletters import DeadLetters
from outlast.errors import ConfigurationError, nearest
from outlast.kernel.clock import REAL, here
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text
from outlast.observe.metrics import count_at
from outlast.pipeline.breakers import report_breakers_to
from outlast.sharing.contact import Unreachable
from outlast.store import StoreError, open_store, retention
from outlast.store.address import Address
from outlast.store.codec import Codec
from outlast.store.retention import DEFAULT_DAYS
from outlast.work.leases import certainly_dead

_PATIENCE = 2.0  # seconds that something shared waits for a busy or silent database
_OFTEN = 5.0  # seconds between two looks at the jobs that have ended, and at those that wait,
_RARER = 20.0  # or so many times what a look has taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from typing import TypeVar

    from outlast.observe.figures import Backlog, JobTally
    from outlast.sharing.contact import Change
    from outlast.store import Store
    from outlast.store.codec import Seal

    T = TypeVar("T")

    class Replayable(Protocol):
        """A pipeline, as far as dead letters need it."""

        @property
        def name(self) -> str: ...
        @property
        def replayed(self) -> Callable[..., Any]: ...


class Home:
    """A name, a store that is opened when it is first needed, and the pipelines that were made for it."""

    def __init__(
        self,
        name: str,
        store_url: str,
        *,
        seal: Seal | None = None,
        retention_days: Mapping[str, int | None] | None = None,
        dead_letter_threshold: int | None = None,
        names_store: bool = True,
    ) -> None:
        self.name = name
        self._names_store = names_store
        self.codec = Codec(seal)
        self.retention_days = {**DEFAULT_DAYS, **(retention_days or {})}
        self.dead_letter_threshold = dead_letter_threshold
        self._url = store_url
        self._settled: str | None = None
        self._store: tuple[str, Store] | None = None
        self._commons: HomeCommons | None = None
        self._opening = threading.Lock()
        self._substitutes: list[Substitute] = []  # of tests that are under way, the newest last
        self._tested = False  # whether there ever was one
        self.kinds: dict[str, Any] = {}  # jobs by their kind
        self.own_kinds: dict[str, Any] = {}  # and those of Outlast's own that were needed
        self.flows: dict[str, Any] = {}  # and those of flows that have a schedule, by their kind
        self._pipelines: weakref.WeakValueDictionary[str, Replayable] = weakref.WeakValueDictionary()
        _homes.add(self)

    def address_to_send(self) -> str | None:
        """
        Where its store is, for another process. None if that may hold a password.
        """
        other = self._substitute()
        return sendable(self._address() if other is None else Address(other.store_url).settled)

    @property
    def present(self) -> Any:
        """This home; in a test that has put a store in the place of its own, the home with that one, for good."""
        return self._substitute() or self

    @property
    def store_url(self) -> str:
        """Where the store is."""
        other = self._substitute()
        return self._url if other is None else other.store_url

    @property
    def store_file(self) -> str | None:
        """The file of the store, if it is one of SQLite."""
        other = self._substitute()
        return Address(self._address() if other is None else other.store_url).file

    @property
    def store(self) -> Store:
        """The store, open."""
        if (other := self._substitute()) is not None:
            return other.store
        with self._opening:
            address = self._address()
            if self._store is not None and self._store[0] == address:
                return self._store[1]
            store = open_store(address, app=self.name)
            self._store = (address, store)
        count_at(self.commons)
        report_breakers_to(self)
        self._apply_retention(store, here.get().clock.now())
        return store

    def _address(self) -> str:
        """
        Where the store is, from whichever folder: a relative address is meant from the one where it is first used.
        """
        if self._settled is None:
            self._settled = Address(self._url).settled
        return self._settled

    @contextmanager
    def substituted(self, other: Substitute) -> Iterator[None]:
        """
        Use this store in the place of its own: in this context, and in whatever context knows of no other one, so that
        a thread that was there before does not write to the real one.
        """
        self._tested = True
        self._substitutes.append(other)
        token = _substitutes.set((*_substitutes.get(), other))
        try:
            yield
        finally:
            self._substitutes.remove(other)
            _substitutes.reset(token)

    def _substitute(self) -> Substitute | None:
        if self._tested:
            # One that is over stays that of the threads which were started in its test: they do not write to the real
            # one.
            mine = [other for other in _substitutes.get() if other.home is self] or self._substitutes
            if mine:
                return mine[-1]
        home_of = here.get().home_of
        return None if home_of is None or self.names_store else home_of(self)

    @property
    def names_store(self) -> bool:
        """Whether the program says where the store is."""
        return self._names_store

    def tidy(self, store: Store, began: datetime) -> None:
        """
        What is done by itself when a run has ended, as of when that began, so that nothing of its own goes: retention,
        and telling that there are too many open dead letters. Never in the way of a run: whatever fails here is done
        the next time.
        """
        self._apply_retention(store, began)
        if self.dead_letter_threshold is not None:
            with _harmless("the open dead letters could not be counted"):
                self.dead_letters.check_size(most=self.dead_letter_threshold)

    def _apply_retention(self, store: Store, now: datetime) -> None:
        with _harmless("what is too old could not be put away"):
            retention.apply(store, self.retention_days, now)

    @property
    def commons(self) -> HomeCommons:
        """What its processes share."""
        with self._opening:
            place = HomeCommons(self.name, self._address())
            if self._commons is None or self._commons != place:
                self._commons = place
            return self._commons

    @property
    def place(self) -> HomeCommons:
        """The same as `commons`, without waiting for a store that another thread is opening."""
        return HomeCommons(self.name, self._address())

    @property
    def dead_letters(self) -> DeadLetters:
        """What could not be saved."""
        return DeadLetters(
            lambda: self.store,
            self.codec,
            self._replay,
            retention_days=self.retention_days,
            gone=certainly_dead,
            make_good=self._make_good,
            fits=self._fits,
            nothing=self._nothing_replayed,
        )

    def add_pipeline(self, pipeline: Replayable) -> None:
        """Know the pipeline, so that its dead letters can be replayed; the newest of a name counts."""
        self._pipelines[pipeline.name] = pipeline

    def has_pipeline(self, name: str) -> bool:
        """Whether a pipeline of this name is known."""
        return name in self._pipelines

    def _fits(self, kind: str, arguments: Mapping[str, Any], version: object) -> None:
        """Raise if the job of this kind does not take these arguments. Those of an older version its `upgrade` knows."""
        job = self.kinds.get(kind)
        if job is not None and not (isinstance(version, int) and version < job.version and job.upgrade is not None):
            job.arguments((), arguments)

    def _make_good(self, sink: object) -> None:
        from outlast.pipeline.replays import make_good

        make_good(self.store, sink)

    def _nothing_replayed(self, pipeline: str, run_key: str) -> Any:
        """The result of a replay that found no open dead letter: no run was made, so it has no id."""
        from outlast.pipeline.results import Counts, RunResult

        result: RunResult[Any] = RunResult(
            id="",
            run_key=run_key,
            pipeline=pipeline,
            status="completed",
            outcome="success",
            reason=None,
            why="there was nothing to replay: no open dead letter fits",
            counts=Counts(source_exhausted=True),
            _kind="replay",
            _store=lambda: self.store,
            _decode=self.codec.decode,
        )
        return result

    def _replay(self, name: str, ids: Sequence[str], /, **how: Any) -> Any:
        pipeline = self._pipelines.get(name)
        if pipeline is None:
            raise ConfigurationError(
                f"expected the pipeline {name!r} to be known to the app {self.name!r}, got: no such one.{nearest(name, [*self._pipelines])} "
                "Import the module that makes it first."
            )
        return pipeline.replayed(ids, **how)


class Substitute:
    """
    A home with another store in the place of its own, for a test. What was enqueued there keeps it, and knows its store
    when the test is over.
    """

    def __init__(self, home: Home, store: Store, url: str) -> None:
        self.home = home
        self.store = store
        self.store_url = url
        self.name = home.name
        self.codec = home.codec
        self.kinds = home.kinds
        self.own_kinds = home.own_kinds
        self.flows = home.flows
        self.has_pipeline = home.has_pipeline
        self.retention_days: Mapping[str, int | None] = home.retention_days
        self.commons = home.commons

    @property
    def present(self) -> Substitute:
        """Itself."""
        return self

    @property
    def store_file(self) -> str | None:
        """The file of the store, if it is one of SQLite."""
        return Address(self.store_url).file

    def tidy(self, store: Store, began: datetime) -> None:
        """As `Home.tidy`."""
        self.home.tidy(store, began)


_substitutes: ContextVar[tuple[Substitute, ...]] = ContextVar("outlast_substitutes", default=())


@contextmanager
def _harmless(consequence: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        warn("%s: %s", consequence, error_text(error))


class HomeCommons:
    """
    What the processes of one app share, in its store. If the store cannot be asked, its methods raise `Unreachable`.
    """

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self._url = url  # the same from whichever folder
        self._store: Store | None = None
        self._known = False  # whether there was a store
        self._tallies: tuple[float, float, Sequence[JobTally]] | None = None  # window, when to ask again, what was said
        self._backlog: tuple[float, Backlog] | None = None  # when to ask again, what was said
        self._opening = threading.Lock()
        _places.add(self)

    def change(self, kind: Any, name: str, decide: Change[T]) -> T:
        """Decide in one transaction."""
        return self._ask(lambda store: store.change_state(kind, name, decide))

    def look(self, kind: Any, name: str) -> tuple[Mapping[str, Any] | None, float]:
        """What is shared, and the store's own time."""
        return self._ask(lambda store: store.look(kind, name))

    def open_letters(self) -> Mapping[str, int] | None:
        """How many dead letters are open, by pipeline; None if the store cannot be asked."""
        try:
            return self._ask(lambda store: store.open_letters())
        except Unreachable:
            return None

    def job_tallies(self, window: float) -> Sequence[JobTally] | None:
        """
        The jobs that have ended within so many seconds; None if the store cannot be asked. It is asked at most every
        `_OFTEN` seconds, however many metrics come from it: of a busy app those are many rows.
        """
        now = REAL.clock.monotonic()
        if self._tallies is None or self._tallies[0] != window or now >= self._tallies[1]:
            try:
                found = self._ask(lambda store: store.job_tallies(round(window * 1e6)))
            except Unreachable:
                return None
            after = REAL.clock.monotonic()
            self._tallies = (window, after + max(_OFTEN, _RARER * (after - now)), found)
        return self._tallies[2]

    def backlog(self) -> Backlog | None:
        """What is left to do; None if the store cannot be asked. It is asked as rarely as for `job_tallies`."""
        now = REAL.clock.monotonic()
        if self._backlog is None or now >= self._backlog[0]:
            try:
                found = self._ask(lambda store: store.backlog())
            except Unreachable:
                return None
            after = REAL.clock.monotonic()
            self._backlog = (after + max(_OFTEN, _RARER * (after - now)), found)
        return self._backlog[1]

    @property
    def app(self) -> str:
        """Whose it is."""
        return self._name

    def _ask(self, question: Callable[[Store], T]) -> T:
        try:
            return question(self._open())
        except (StoreError, ConfigurationError, ImportError) as error:
            self._store = None  # it may be another file when it is back
            raise Unreachable(str(error)) from None

    def _open(self) -> Store:
        with self._opening:
            if self._store is None:
                if self._known and "://" not in self._url and not Path(self._url).exists():
                    raise Unreachable(f"the store {self._url} was deleted or moved. Put it back.")
                # Not the app's own: whoever shares something would rather decide alone than wait as long as a run does.
                self._store = open_store(self._url, app=self._name, patience=_PATIENCE)
                self._known = True
            return self._store

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HomeCommons) and (self._name, self._url) == (other._name, other._url)

    def __hash__(self) -> int:
        return hash((self._name, self._url))

    def __repr__(self) -> str:
        return f"<what the app {self._name!r} shares in {Address(self._url)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _commons_there, (self._name, sendable(self._url))


_places: weakref.WeakSet[HomeCommons] = weakref.WeakSet()
_homes: weakref.WeakSet[Home] = weakref.WeakSet()


def sendable(address: str) -> str | None:
    """A store's settled address, if another process may be told it: one that may hold a password stays here."""
    if "://" not in address:  # a file
        return address
    try:
        hidden = urlsplit(address).password is not None or "passw" in address.lower()
    except ValueError:  # whatever it is
        hidden = True
    return None if hidden else address


def home_there(name: str, address: str | None) -> Home | None:
    """The app of this process with this name and this address, if it was sent."""
    named = [home for home in list(_homes) if home.name == name]
    if address is None:
        return named[0] if len(named) == 1 else None
    return next((home for home in named if home._address() == address), None)  # noqa: SLF001 - same module


def address_there(name: str, address: str | None) -> str:
    """Where the store of an app is that another process has sent."""
    if address is None and not os.environ.get("OUTLAST_STORE"):
        raise ConfigurationError(
            f"The address of the store of the app {name!r} may hold a password, so it was not sent to this process. "
            "Set OUTLAST_STORE here, or import the module that makes the app first."
        )
    return address or Address.wanted().settled


def _commons_there(name: str, address: str | None) -> HomeCommons | str:
    """What the app shares; why it is not known here is raised when it is used, if no app has shared it by then."""
    home = home_there(name, address)
    try:
        return HomeCommons(name, address_there(name, address)) if home is None else home.commons
    except ConfigurationError as unknown:
        return str(unknown)


def _after_fork() -> None:
    # A thread of the parent may have been opening a store; nobody in the child would ever release its lock.
    for place in list(_places):
        place._opening = threading.Lock()  # noqa: SLF001 - same room
    for home in list(_homes):
        home._opening = threading.Lock()  # noqa: SLF001 - same room


os.register_at_fork(after_in_child=_after_fork)


class _Default(Home):
    """The home of pipelines without an app. Each run looks up the address of the store when it begins, and keeps it."""

    def __init__(self) -> None:
        super().__init__("default", "")

    @property
    def names_store(self) -> bool:
        return bool(os.environ.get("OUTLAST_STORE"))

    @property
    def store_url(self) -> str:
        other = self._substitute()
        return Address.wanted().text if other is None else other.store_url

    def _address(self) -> str:
        return Address.wanted().settled

    def __repr__(self) -> str:
        return "<the default app>"

    def __reduce__(self) -> str:
        return "DEFAULT"


DEFAULT = _Default()
