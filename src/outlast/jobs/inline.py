"""
Jobs in tests: a store that tells whoever watches it of each job that is enqueued, a watcher that writes them down, and
one that has them done at once.

There is no second way to run a job: `Inline` starts a worker, as it is, in virtual time, whenever something was
enqueued, and lets it do all that there is to do.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from outlast.jobs.doors import blocking, made
from outlast.jobs.handle import JobHandle
from outlast.jobs.own import job_of
from outlast.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from outlast.jobs.worker import WorkResult
    from outlast.pipeline.home import Substitute
    from outlast.store.jobs import ParamStyle
    from outlast.store.records import Enqueued, NewJob


T = TypeVar("T")


class Watcher(Protocol):
    """Who is told of jobs in a `WatchedStore`."""

    def enqueued(self, jobs: Sequence[NewJob], done: Sequence[Enqueued]) -> None:
        """They are on record."""

    def promised(self, jobs: Sequence[NewJob], done: Sequence[Enqueued]) -> None:
        """They will be on record if the caller's transaction is committed."""


class WatchedStore(Store):
    """A store that tells its watchers what is enqueued."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.watchers: list[Watcher] = []

    @contextmanager
    def watched(self, watcher: Watcher) -> Iterator[None]:
        """Tell this one, too."""
        self.watchers.append(watcher)
        try:
            yield
        finally:
            self.watchers.remove(watcher)

    def enqueue(self, jobs: Sequence[NewJob], *, ahead_us: int = 0) -> list[Enqueued]:
        """As every store does it."""
        done = super().enqueue(jobs, ahead_us=ahead_us)
        for watcher in [*self.watchers]:
            watcher.enqueued(jobs, done)
        return done

    def enqueue_many(self, jobs: Iterable[NewJob], *, ahead_us: int = 0) -> int:
        """As every store does it, and knowing which of them are new."""
        return sum(one.new for one in self.enqueue([*jobs], ahead_us=ahead_us))

    def enqueue_steps(
        self, jobs: Sequence[NewJob], *, paramstyle: ParamStyle, ahead_us: int = 0
    ) -> Generator[tuple[str, tuple[Any, ...]], Sequence[Any], list[Enqueued]]:
        """As every store does it."""
        done = yield from super().enqueue_steps(jobs, paramstyle=paramstyle, ahead_us=ahead_us)
        for watcher in [*self.watchers]:
            watcher.promised(jobs, done)
        return done


class _Seen(NamedTuple):
    job: Any
    new: bool
    number: int
    at_us: int | None  # when it was enqueued, if it is not known whether that was committed


class Capture(Generic[T]):
    """Writes down what is enqueued. Jobs of a caller's transaction are in `jobs` after `settle`, if it was committed."""

    def __init__(self, home: Substitute, record: Callable[..., T]) -> None:
        """`record` makes what is written down of a job."""
        self.jobs: list[T] = []
        self._home = home
        self._record = record
        self._seen: list[_Seen] = []

    def enqueued(self, jobs: Sequence[NewJob], done: Sequence[Enqueued]) -> None:
        """They are on record."""
        seen = [_Seen(self._shown(job, one), one.new, one.id, None) for job, one in zip(jobs, done, strict=True)]
        self._seen += seen
        self.jobs += [one.job for one in seen]

    def promised(self, jobs: Sequence[NewJob], done: Sequence[Enqueued]) -> None:
        """They may be on record when the block ends."""
        self._seen += [
            _Seen(self._shown(job, one), one.new, one.id, one.at_us or 0) for job, one in zip(jobs, done, strict=True)
        ]

    def settle(self) -> None:
        """Take in what was committed, each in its place."""
        self.jobs[:] = [one.job for one in self._seen if one.at_us is None or self._is_there(one)]

    def _is_there(self, one: _Seen) -> bool:
        row = self._home.store.job(one.number)
        return row is not None and (not one.new or row.enqueued_us == one.at_us)

    def _shown(self, new: NewJob, done: Enqueued) -> T:
        known: Any = job_of(self._home, new.kind)
        return self._record(
            new.kind,
            known.bind_payload(new.payload, new.version)[1],
            new.queue,
            new.priority,
            new.delay_us / 1e6,
            new.unique_key,
            done.new,
            JobHandle(self._home, done.id, done.at_us if done.new else None, new=done.new),
        )


_working: ContextVar[tuple[object, ...]] = ContextVar("outlast_working", default=())


class Inline:
    """Has each job done as soon as it is enqueued. What jobs enqueue themselves, the worker that is at it does too."""

    def __init__(
        self, home: Substitute, world: Callable[[], AbstractContextManager[Any]], provided: Mapping[Any, Any]
    ) -> None:
        """`world` gives the time and the faults in which a worker does its work."""
        self._home = home
        self._world = world
        self._provided = provided
        self._before = {row.id for row in self._failed()}

    def enqueued(self, jobs: Sequence[NewJob], done: Sequence[Enqueued]) -> None:  # noqa: ARG002 - as a Watcher has it
        """They are on record: do them."""
        self.work()

    def promised(self, jobs: Sequence[NewJob], done: Sequence[Enqueued]) -> None:
        """Nobody sees them before the caller's transaction is committed: they are done after that, when the block ends."""

    def work(self) -> WorkResult | None:
        """Do what there is to do; nothing, if this is called by a job that is being done."""
        if self._home in _working.get():
            return None
        token = _working.set((*_working.get(), self._home))
        try:
            with self._world():
                home: Any = self._home
                return blocking(made(home, (), 64, until_idle=True, due_later=True, provided=self._provided))
        finally:
            _working.reset(token)

    def raise_if_failed(self) -> None:
        """Raise the end of the first job that has failed since."""
        failed = sorted(row.id for row in self._failed() if row.id not in self._before)
        if failed:
            JobHandle[Any](self._home, failed[0]).result()

    def _failed(self) -> list[Any]:
        found: list[Any] = []
        while rows := self._home.store.jobs(status="failed", after=found[-1].id if found else None, limit=500):
            found += rows
        return found
