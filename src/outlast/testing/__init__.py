"""
Tests without waiting and without luck: virtual time, scripted faults, captured events, a switch that turns protection
off; jobs in a store that is gone after the test, done at once or only written down. proxy: `FaultProxy`, a TCP proxy whose
connections break as they are told to.

Every scope belongs to the context that opened it, and to the threads and tasks started inside of it; scopes nest, and
leaving one restores exactly what was before, so that tests may run side by side.
"""

from __future__ import annotations

import heapq
import itertools
import shutil
import tempfile
import threading
import weakref
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil
from random import Random
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from outlast.calls import guard
from outlast.errors import ConfigurationError, nearest
from outlast.kernel.clock import Clock, Dice, Ids, Signal, World, here, later
from outlast.observe import captures
from outlast.settings.callables import name_of
from outlast.settings.checks import Check, Shown
from outlast.sharing.named import apart

if TYPE_CHECKING:
    import asyncio
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextvars import Context

    from outlast.app import App
    from outlast.jobs.handle import JobHandle
    from outlast.jobs.worker import WorkResult
    from outlast.kernel.clock import Event as Done
    from outlast.kernel.clock import Stop, Timer
    from outlast.observe.events import Event
    from outlast.pipeline import Pipeline, RunResult
    from outlast.testing.proxy import FaultProxy as FaultProxy

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_NOTHING: Mapping[Any, Any] = MappingProxyType({})

_GRACE = 0.05  # real seconds that a body may be busy elsewhere before a virtual timeout strikes


class Time:
    """
    Virtual time: Outlast's own waits, deadlines and windows. Your own ``time.sleep`` stays real.

    `now` begins at 0.0; `sleeps` has every wait between attempts in order, zeros included. Waits jump by themselves: in
    an event loop to the nearest wake-up once no task can go on without it. A timeout strikes in the same way, after 50
    ms of real time in which nothing moved (`grace` seconds, if that is more); one of a child process after 200 ms.
    """

    def __init__(self, *, grace: float = _GRACE) -> None:
        self.now = 0.0
        self.grace = grace
        self.sleeps: list[float] = []
        self._alarms: list[_Alarm] = []
        self._lock = threading.Lock()

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        if not seconds >= 0:
            raise ValueError(f"expected seconds to be at least 0, got: {seconds}. Time does not run backwards.")
        self._reach(self.now + seconds)

    def _reach(self, instant: float) -> None:
        due: list[_Alarm] = []
        with self._lock:
            self.now = max(self.now, instant)
            while self._alarms and self._alarms[0].at <= self.now:
                due.append(heapq.heappop(self._alarms))
        for alarm in due:
            alarm.ring()

    def _set(self, alarm: _Alarm) -> None:
        with self._lock:
            heapq.heappush(self._alarms, alarm)
        _Idle.watch(self, alarm.loop, patient=alarm.timeout)

    def _next(self) -> _Alarm | None:
        with self._lock:
            while self._alarms and (self._alarms[0].cancelled or self._alarms[0].loop.is_closed()):
                heapq.heappop(self._alarms)
            return self._alarms[0] if self._alarms else None


class _Alarm:
    """Something to do at a virtual instant, in its own event loop."""

    _numbers = itertools.count()

    def __init__(
        self, at: float, loop: asyncio.AbstractEventLoop, callback: Callable[[], None], *, timeout: bool
    ) -> None:
        self.at = at
        self.loop = loop
        self.timeout = timeout
        self.cancelled = False
        self._callback = callback
        self._number = next(self._numbers)

    def cancel(self) -> None:
        self.cancelled = True

    def ring(self) -> None:
        if not self.cancelled and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        if not self.cancelled:
            self._callback()

    def __lt__(self, other: _Alarm) -> bool:
        return (self.at, self._number) < (other.at, other._number)


class _Idle:
    """
    Watches an event loop until nothing in it can go on, then jumps to the next alarm.

    One watcher for each loop, whatever the number of scopes: two would take each other for work that is still to be
    done.
    """

    _watchers: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Idle]] = weakref.WeakKeyDictionary()

    def __init__(self) -> None:
        self._times: list[Time] = []
        self._rounds = 0
        self._waited_for: list[_Alarm] = []
        self._resting: asyncio.TimerHandle | None = None

    @classmethod
    def watch(cls, time: Time, loop: asyncio.AbstractEventLoop, *, patient: bool) -> None:
        watcher = cls._watchers.get(loop)
        if watcher is None:
            watcher = cls._watchers[loop] = cls()
            loop.call_soon(watcher._look, loop)
        elif watcher._resting is not None and not patient:  # what jumps at once does not wait for a timeout's moment
            watcher._resting.cancel()
            watcher._resting = None
            loop.call_soon(watcher._look, loop)
        if time not in watcher._times:
            watcher._times.append(time)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._resting = None
        alarms = [(time, alarm) for time in self._times if (alarm := time._next()) is not None]  # noqa: SLF001 - one room
        if not alarms:
            del self._watchers[loop]
            return
        # asyncio's own loops show what is ready to run; of others we only know that a few rounds have passed.
        ready = getattr(loop, "_ready", None)
        self._rounds += 1
        if bool(ready) if ready is not None else self._rounds < 20:
            loop.call_soon(self._look, loop)
            return
        self._rounds = 0
        # A wait jumps at once; a timeout gives what it bounds a moment of real time.
        due = [(time, alarm) for time, alarm in alarms if not alarm.timeout or alarm in self._waited_for]
        if due:
            for time, alarm in due:
                time._reach(alarm.at)  # noqa: SLF001 - one room
            self._waited_for.clear()
            loop.call_soon(self._look, loop)
        else:
            self._waited_for = [alarm for _, alarm in alarms]
            self._resting = loop.call_later(max(time.grace for time, _ in alarms), self._look, loop)


class _VirtualClock(Clock):
    virtual = True

    def __init__(self, time: Time) -> None:
        super().__init__()
        self.time = time
        self.monotonic = self._monotonic
        # Continues real time, so that state made before the scope was entered keeps its meaning.
        self._origin = ceil(monotonic() * 1024) / 1024  # few digits, so that sums with it stay exact
        self._wall = datetime.now(UTC)

    def _monotonic(self) -> float:
        return self._origin + self.time.now

    def now(self) -> datetime:
        return later(self._wall, self.time.now)

    def skip(self) -> None:
        self.time.sleeps.append(0.0)

    def sleep(self, seconds: float, stop: Stop | None = None) -> bool:
        self.time.sleeps.append(seconds)
        if stop is not None and stop.is_set():
            return True
        self.time._reach(self.time.now + seconds)  # noqa: SLF001 - one room
        return False

    async def asleep(self, seconds: float, stop: Stop | None = None) -> bool:
        self.time.sleeps.append(seconds)
        signal = Signal()
        forget = None if stop is None else stop.tell(signal.set)
        try:
            await self.wait_signal(signal, seconds, bounds=False)
        finally:
            if forget is not None:
                forget()
        return stop is not None and stop.is_set()

    async def wait_signal(self, signal: Signal, seconds: float | None, *, bounds: bool = True) -> bool:
        if seconds is None:
            return await super().wait_signal(signal, seconds)
        if signal.trio is not None:  # its own clock decides when tasks that wait for something else go on
            if bounds:
                await super().wait_signal(signal, min(seconds, self.time.grace))
            else:
                await signal.trio.lowlevel.checkpoint()
            if not signal.trio_event.is_set():
                self.time._reach(self.time.now + seconds)  # noqa: SLF001 - one room
            return bool(signal.trio_event.is_set())
        alarm = _Alarm(self.time.now + seconds, signal.loop, signal.expire, timeout=bounds)
        self.time._set(alarm)  # noqa: SLF001 - one room
        try:
            return await signal.future
        finally:
            alarm.cancel()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        import asyncio

        alarm = _Alarm(self.time.now + seconds, asyncio.get_running_loop(), callback, timeout=True)
        self.time._set(alarm)  # noqa: SLF001 - one room
        return alarm

    def wait_event(self, event: Done, seconds: float | None, *, bounds: bool = True) -> bool:
        if seconds is None:
            return event.wait()
        if event.is_set() or (bounds and event.wait(max(getattr(event, "grace", _GRACE), self.time.grace))):
            return True
        self.time._reach(self.time.now + seconds)  # noqa: SLF001 - one room
        return event.is_set()


class _SeededIds(Ids):
    repeatable = True

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._name = ""
        self._random = Random(seed)  # noqa: S311 - the point is to be the same every time

    def new(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def begin(self, name: str) -> None:
        if name != self._name:
            self._name, self._random = name, Random(f"{self._seed}/{name}")  # noqa: S311 - as above


class _OwnStores:
    """The temporary stores of a scope: one for each app that names no store, made when it is first used."""

    def __init__(self) -> None:
        self._homes: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._making = threading.Lock()

    def home_of(self, home: Any) -> Any:
        with self._making:
            found = self._homes.get(home)
            if found is None:
                found = self._homes[home] = _temporary(home)
            return found


@contextmanager
def virtual_time(*, seed: int | None = None, grace: float = _GRACE) -> Iterator[Time]:
    """
    Waits take no time. With a seed, jitter and ids are the same in every run; run keys that Outlast generates are
    always new. An app that names no store has a temporary one here, which is deleted when nothing refers to it any more.
    `grace` is how many seconds of real time what has a timeout may be busy before that strikes: give it more where a body
    waits for a real server.

    >>> import outlast
    >>> @outlast.retry(jitter=0)
    ... def fetch() -> str:
    ...     if outlast.current().attempt < 3:
    ...         raise ConnectionResetError
    ...     return "done"
    >>> with virtual_time() as time:
    ...     fetch(), time.sleeps, time.now
    ('done', [1.0, 2.0], 3.0)
    """
    # A scope inside of another one uses its stores: what one has enqueued, the other finds.
    with _virtual(seed, grace, home_of=here.get().home_of or _OwnStores().home_of) as time:
        yield time


@contextmanager
def _virtual(
    seed: int | None = None, grace: float = _GRACE, *, home_of: Callable[[Any], Any] | None = None
) -> Iterator[Time]:
    time, outer = Time(grace=grace), here.get()
    ids = outer.ids if seed is None else _SeededIds(seed)
    with _scope(_world(outer, clock=_VirtualClock(time), dice=Dice(seed), ids=ids, home_of=home_of or outer.home_of)):
        yield time


def _world(outer: World, **changes: Any) -> World:
    """The world around, with these changes."""
    return World(**({name: getattr(outer, name) for name in World.__slots__} | changes))


@contextmanager
def disabled() -> Iterator[None]:
    """Every protected call runs once: no retry, no timeout, no limit, no breaker, no hedge, no fallback."""
    with _scope(_world(here.get(), retries=False)):
        yield


class Faults:
    """
    What happens to the attempts of the call (or stage) of that name, in order: an exception is raised, None lets it
    run.
    """

    def __init__(self, stage: str, *errors: Exception | None) -> None:
        for error in errors:
            if error is not None and not isinstance(error, Exception):
                raise TypeError(
                    f"expected every fault to be an exception or None, got: a value of type {type(error).__name__}"
                )
        self.stage = stage
        self.errors = errors


@contextmanager
def inject(*faults: Faults) -> Iterator[None]:
    """
    Make protected calls fail as scripted; a call is known by its guard's name or by its function's qualified name.

    >>> import outlast
    >>> fetch = outlast.Guard("fetch")(lambda: "done")
    >>> with virtual_time(), inject(Faults("fetch", TimeoutError(), None)), capture_events() as events:
    ...     fetch(), [event.name for event in events]
    ('done', ['step_retry_attempt', 'step_success'])
    """
    names = [script.stage for script in faults]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            message = f"expected one Faults for {name!r}, got: {names.count(name)}. Put them into one, in the order of the attempts."
            raise ConfigurationError(message)
    outer = here.get()
    scripts = dict(outer.faults or {}) | {script.stage: iter(script.errors) for script in faults}
    with _scope(_world(outer, faults=scripts)):
        yield


@contextmanager
def capture_events() -> Iterator[list[Any]]:
    """Every event of this context, in order."""
    events: list[Event] = []
    token = captures.set((*captures.get(), events.append))
    try:
        with _scope(here.get()):
            yield events
    finally:
        captures.reset(token)


def run(
    pipeline: Pipeline[_In, _Out],
    items: Iterable[_In],
    /,
    *,
    faults: Sequence[Faults] = (),
    provide: Mapping[Any, Any] = _NOTHING,
    run_key: str | None = None,
    item_key: Any = None,
    sink: Any = None,
    seed: int | None = None,
) -> RunResult[_Out]:
    """
    A run in virtual time and in a store of its own, which is gone when the result is. It never raises for how the run
    ends.

    `faults` are those of the stages, in the order of their attempts; `provide` has what stages would `use`, by the
    function that would open it. A name in either that the pipeline does not know is a ConfigurationError: the test
    would pass for nothing, or reach the real service. `run_key`, `item_key` and `sink` are those of `Pipeline.run`;
    with a `seed` jitter and ids are the same every time.

    >>> import outlast
    >>> @outlast.stage
    ... async def double(number: int) -> int:
    ...     return 2 * number
    >>> result = run(outlast.Pipeline("doubles", double), [1, 2], faults=[Faults("double", TimeoutError())])
    >>> list(result.outputs()), [item.attempts for item in result.items()]
    ([2, 4], [2, 1])
    """
    _known(pipeline, faults, provide)
    with _virtual(seed), inject(*faults):
        return pipeline.tested(items, provide, run_key=run_key, item_key=item_key, sink=sink)


def work(app: App, /, *, faults: Sequence[Faults] = (), provide: Mapping[Any, Any] = _NOTHING) -> WorkResult:
    """
    Do all jobs of the app in virtual time, until nothing is left to do: also those that are due later, and the further
    attempts of those that fail. Inside of a `virtual_time` of yours it is that time which passes. What came of each is
    in the app's store: see `temporary_store`. Schedules enqueue nothing: their ticks would never end.

    `faults` are those of the jobs by their kinds, in the order of their attempts; `provide` has what jobs would `use`,
    by the function that would open it. A name in either that the app does not know is a ConfigurationError.
    """
    from outlast.jobs.doors import blocking, made

    _known_jobs(app, faults, provide)
    home = app.present  # with the store that has the jobs
    time = nullcontext() if here.get().clock.virtual else _virtual()
    with time, inject(*faults):
        worker = made(home, (), 64, until_idle=True, due_later=True, provided=provide)
        return blocking(worker)


@contextmanager
def temporary_store(app: App, /, *, store: str | os.PathLike[str] | None = None) -> Iterator[App]:
    """
    The app has a store of its own here, in a temporary folder, which is gone when nothing refers to it any more; what
    it had before is untouched. With `store` it is the one at that address, which stays.

    It holds for this context and for whatever is started inside of it, and for threads that were there before, too.
    What is shared through a store (limits, breakers, budgets) is this process's own meanwhile.

    >>> import outlast
    >>> app = outlast.App("shop")
    >>> @app.job
    ... def send(to: str) -> str:
    ...     return f"sent to {to}"
    >>> with temporary_store(app):
    ...     job = send.enqueue("ann")
    ...     work(app).succeeded, job.result()
    (1, 'sent to ann')
    """
    with _substituted(app, store):
        yield app


@contextmanager
def inline(
    app: App,
    /,
    *,
    faults: Sequence[Faults] = (),
    provide: Mapping[Any, Any] = _NOTHING,
    check: bool = True,
) -> Iterator[App]:
    """
    Jobs are done where they are enqueued: when `enqueue` returns, a worker has done them in virtual time, with all
    their attempts and delays, and what they have enqueued themselves. Those of a transaction of yours are done when the
    next job is enqueued or the block ends, if it is committed by then.

    The app has a temporary store here, unless it has one already. `enqueue` never raises for how a job ends, as it
    never does; with `check`, leaving the block raises `JobFailed` if a job has failed. `faults` and `provide` are those
    of `work`.

    >>> import outlast
    >>> app = outlast.App("shop")
    >>> @app.job
    ... def send(to: str) -> str:
    ...     return f"sent to {to}"
    >>> with inline(app):
    ...     send.options(delay=3600).enqueue("ann").result()
    'sent to ann'
    """
    from outlast.jobs.inline import Inline

    _known_jobs(app, faults, provide)
    with inject(*faults):
        scripts = here.get().faults
    with _watched(app) as home:
        doing = Inline(home, lambda: _working_world(scripts), provide)
        with home.store.watched(doing):
            yield app
        doing.work()
        if check:
            doing.raise_if_failed()


@dataclass(frozen=True, slots=True)
class EnqueuedJob:
    """
    A job as it was enqueued. `arguments` are those of the call by name, as its worker gets them; `delay` is in seconds;
    `new` is False if another job had the unique key, and was given instead. Equal to another one that has the same;
    `handle` has no part in that.
    """

    kind: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    queue: str = "default"
    priority: int = 0
    delay: float = 0.0
    unique_key: str | None = None
    new: bool = True
    handle: JobHandle[Any] | None = field(default=None, compare=False, repr=False)


@contextmanager
def enqueued(app: App, /) -> Iterator[list[EnqueuedJob]]:
    """
    The jobs that are enqueued here, in order, as a list of `EnqueuedJob`; none of them is done. Those of a transaction
    of yours are in it when the block has ended, if it was committed.

    The app has a temporary store here, unless it has one already.

    >>> import outlast
    >>> app = outlast.App("shop")
    >>> @app.job(queue="mail")
    ... def send(to: str) -> None: ...
    >>> with enqueued(app) as jobs:
    ...     _ = send.options(priority=5).enqueue("ann")
    >>> jobs == [EnqueuedJob("send", {"to": "ann"}, queue="mail", priority=5)]
    True
    """
    from outlast.jobs.inline import Capture

    with _watched(app) as home:
        captured = Capture(home, EnqueuedJob)
        with home.store.watched(captured):
            try:
                yield captured.jobs
            finally:
                captured.settle()


@contextmanager
def _substituted(app: App, store: str | os.PathLike[str] | None) -> Iterator[Any]:
    """The app with another store."""
    home = _temporary(app, store)
    token = apart.set(True)
    try:
        with app.substituted(home), _scope(here.get()):
            yield home
    finally:
        apart.reset(token)


def _temporary(app: Any, store: str | os.PathLike[str] | None = None) -> Any:
    """The app with a store in a temporary folder, or with the one at this address."""
    from outlast.jobs.inline import WatchedStore
    from outlast.pipeline.home import Substitute
    from outlast.store.address import Address

    if store is not None:
        address = Address(Address.wanted(store).settled)
        return Substitute(app, WatchedStore.at(address, app=app.name), address.text)
    folder = tempfile.mkdtemp(prefix="outlast-test-")
    address = Address(f"{folder}/outlast.db")
    made = WatchedStore.at(address, app=app.name)
    weakref.finalize(made, shutil.rmtree, folder, ignore_errors=True)
    return Substitute(app, made, address.text)


@contextmanager
def _watched(app: App) -> Iterator[Any]:
    """The app with the temporary store that it has; with one of this scope, if it has none."""
    if app.present is not app:
        yield app.present
        return
    with _substituted(app, None) as home:
        yield home


@contextmanager
def _working_world(faults: dict[str, Iterator[Exception | None]] | None) -> Iterator[None]:
    """Virtual time, unless it is virtual already, and these faults, which go on where the last job left them."""
    if not here.get().clock.virtual:
        with _virtual(), _working_world(faults):
            yield
        return
    with _scope(_world(here.get(), faults=faults)):
        yield


def _known_jobs(app: App, faults: Sequence[Faults], provide: Mapping[Any, Any]) -> None:
    """Refuse what concerns no job of the app."""
    kinds = app.kinds
    _known_parts(faults, provide, [*kinds], [job.resources for job in kinds.values()], "job")


def _known(pipeline: Pipeline[Any, Any], faults: Sequence[Faults], provide: Mapping[Any, Any]) -> None:
    """Refuse what concerns nothing in the pipeline."""
    stages = pipeline.stages
    _known_parts(faults, provide, [stage.name for stage in stages], [stage.resources for stage in stages], "stage")


def _known_parts(
    faults: Sequence[Faults],
    provide: Mapping[Any, Any],
    names: Sequence[str],
    resources: Sequence[Mapping[str, Callable[[], Any]]],
    what: str,
) -> None:
    check = Check()
    for script in faults:
        if script.stage not in names:
            check.add(
                "faults",
                f"those of {', '.join(names) or 'nothing'}",
                Shown(repr(script.stage)),
                f"{nearest(script.stage, names).strip()} For a call inside of a {what} use outlast.testing.inject.".strip(),
            )
    used = {factory for each in resources for factory in each.values()}
    for key in provide:
        if key not in used:
            known = ", ".join(sorted(name_of(factory) for factory in used)) or "nothing"
            check.add(
                "provide",
                f"what the {what}s use ({known}), by the function itself",
                Shown(repr(key) if isinstance(key, str) else name_of(key) if callable(key) else type(key).__name__),
                "Use provide={function: value}." if used else f"No {what} has a parameter with use(...).",
            )
    check.raise_if_any()


_inherit: ContextVar[bool] = ContextVar("outlast_testing", default=False)
_start = threading.Thread.start
_guarding = threading.Lock()
_open = 0


@contextmanager
def _scope(world: World) -> Iterator[None]:
    token, flag = here.set(world), _inherit.set(True)
    _count(+1)
    try:
        yield
    finally:
        _count(-1)
        _inherit.reset(flag)
        here.reset(token)


def _count(change: int) -> None:
    global _open  # noqa: PLW0603 - how many scopes are open in this process
    with _guarding:
        _open += change
        guard.scoped(change)
        # Python 3.11 gives a new thread an empty context; while a scope is open, threads started inside of it get
        # theirs.
        threading.Thread.start = _start_inside if _open else _start  # type: ignore[method-assign,assignment]


def _start_inside(thread: threading.Thread) -> None:
    if _inherit.get():
        thread.run = _Inside(copy_context(), thread)  # type: ignore[method-assign]
    _start(thread)


class _Inside:
    """
    A thread's run in the context of who started it; gone from the thread once it runs, so that nothing goes round in a
    circle.
    """

    def __init__(self, context: Context, thread: threading.Thread) -> None:
        self._context = context
        self._thread: threading.Thread | None = thread

    def __call__(self) -> None:
        thread, self._thread = self._thread, None
        assert thread is not None  # noqa: S101 - a thread runs once
        del thread.run
        self._context.run(thread.run)


def __getattr__(name: str) -> object:
    if name != "FaultProxy":
        raise AttributeError(f"module 'outlast.testing' has no attribute {name!r}")
    from outlast.testing import proxy  # most tests need no sockets

    globals()[name] = proxy.FaultProxy
    return proxy.FaultProxy


def __dir__() -> list[str]:
    return sorted({*globals(), "FaultProxy"})
