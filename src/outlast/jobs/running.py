"""
One claimed job at a time: its attempt is made, in the event loop or in a thread, and becomes a `JobEnd`.

A bare async job is awaited directly. One with a guard goes through a `JobCall`, which gives up its slot whenever it
waits: for another attempt inside, for a circuit, or in the line of a limit. Blocking jobs run in `Threads`, and those
with ``isolation="process"`` in a child that the thread waits for.

An attempt that is given up (its time is up, an operator or the worker ends it) is cancelled. Code that goes on all the
same keeps its slot and is told about once; the job is `held` until that code has ended, so that it never runs twice at
a time.
"""

from __future__ import annotations

import asyncio
import os
from contextvars import copy_context
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

from outlast.calls.drivers import afall_back, arun, fall_back, run
from outlast.calls.records import Context, Notes
from outlast.calls.state import Call, current_work, gave_up, latest, running
from outlast.errors import AttemptTimeoutError, PermanentFailure
from outlast.isolation.threads import ThreadAttempt
from outlast.jobs import outcome
from outlast.jobs.outcome import Ending, When
from outlast.kernel.clock import Stop, here, stopping
from outlast.kernel.log import warn
from outlast.kernel.raised import set_frames
from outlast.observe import for_an_item
from outlast.pipeline.engine.attempts import failure_of, scripted
from outlast.settings.callables import PLAIN, awaitable
from outlast.work.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from outlast.jobs.job import Job
    from outlast.kernel.clock import Clock, Timer
    from outlast.policy import RetryPolicy
    from outlast.store.records import ClaimedJob, JobEnd

    #: Why an attempt is given up: its time is up, an operator cancels it, the worker gives it back, or has lost it.
    Why: TypeAlias = Literal["timeout", "cancel", "release", "lost"]
    #: What a thread brings back: a result as it is stored, or an error.
    Came: TypeAlias = "tuple[bytes | None, None] | tuple[None, BaseException]"

GRACE = 5.0  # seconds that code has to end after it was cancelled
_forks = 0  # between the process in which this was loaded and this one: a runner of another one is a copy


def _after_fork() -> None:
    global _forks  # noqa: PLW0603 - once a child, always a child
    _forks += 1


os.register_at_fork(after_in_child=_after_fork)


class Kind:
    """A job as this worker runs it: the function with the faults of a test in front, and what it uses."""

    __slots__ = ("bare", "declared", "fn", "is_async", "kwargs", "policy", "process", "timeout", "unique_for_us")

    def __init__(self, declared: Job[..., Any], kwargs: dict[str, Any]) -> None:
        guard = declared.guard
        self.declared = declared
        self.fn: Callable[..., Any] = scripted(declared.fn, declared.kind)
        self.is_async = declared.is_async
        self.policy: RetryPolicy = declared.retry
        self.kwargs = kwargs
        self.bare = guard is None
        self.process = guard is not None and guard.isolation == "process"
        # The guard of a job in a process bounds it without the time that a child needs to get ready.
        own = guard is not None and self.process and guard.timeout == declared.timeout
        self.timeout = None if own else declared.timeout
        unique = declared.unique_for
        self.unique_for_us = None if unique is None else round(unique * 1e6)


class _Underway:
    """The value of `running` around the code of a job that has no `Call` of its own."""

    @property
    def deadline(self) -> float | None:
        active: Any = current_work.get()
        return None if active is None else active.deadline

    def context(self) -> Context:
        active: Any = current_work.get()
        return Context() if active is None else active.context()


UNDERWAY: Any = _Underway()


class ActiveJob:
    """A claimed job that this worker has. While its code runs, `current_work` holds it."""

    __slots__ = (
        "away",
        "call",
        "came",
        "gone",
        "held",
        "job",
        "kind",
        "notes",
        "over",
        "runner",
        "seat",
        "seen",
        "started",
        "stop",
        "task",
        "tenure",
        "timer",
        "why",
    )

    def __init__(self, runner: JobRunner, job: ClaimedJob, kind: Kind, came: float) -> None:
        self.runner = runner
        self.job = job
        self.kind = kind
        self.came = came  # when the claim came back: `job.claimed_us` on this clock
        self.started = came
        self.seen = 0
        self.task: asyncio.Task[None] | None = None
        self.call: JobCall | None = None
        self.notes: Notes | None = None
        self.stop: Stop | None = None
        self.timer: Timer | None = None
        self.why: Why | None = None
        self.over = False  # its end is known; its code may still run
        self.gone = False  # its code has ended
        self.held = False  # its end is on record, and that its code still runs
        self.away = False  # it waits without a slot
        self.seat: Callable[[], object] | None = None  # called when it has a slot again
        self.tenure: Any = None

    # -- for the code of the job

    @property
    def deadline(self) -> float | None:
        """When the time of this attempt is up, or that of the whole job, on the monotonic clock."""
        timeout, whole = self.kind.declared.timeout, self.whole
        own = None if timeout is None else self.started + timeout
        return min((at for at in (own, whole) if at is not None), default=None)

    @property
    def whole(self) -> float | None:
        """When the time of the whole job is up."""
        guard = self.kind.declared.guard
        return None if guard is None or guard.total_timeout is None else self.began + guard.total_timeout

    @property
    def began(self) -> float:
        """When it was first claimed since it was enqueued or requeued."""
        return self.came - (self.job.claimed_us - self.job.began_us) / 1e6

    def context(self) -> Context:
        """What `current` says in a job."""
        return Context(
            attempt=self.job.attempts,
            max_attempts=self.kind.policy.max_attempts,
            deadline=self.deadline,
            monotonic=self.runner.monotonic,
            key=self.idempotency_key,
            notes=self._take_notes,
        )

    def fill(self, context: Context) -> None:
        """What `current` says in a job, and in any call that is made there."""
        context.job_id = str(self.job.id)

    def idempotency_key(self) -> str:
        """The same in all attempts of the job, whoever makes them."""
        job = self.job
        parts = f"{self.runner.app}\x1f{job.kind}\x1f{job.id}\x1f{job.enqueued_us}"
        return blake2b(parts.encode(), digest_size=16).hexdigest()

    def _take_notes(self) -> Notes:
        if self.notes is None:
            self.notes = Notes()
        return self.notes

    # -- its slot while it waits

    def leave(self) -> None:
        """It waits: others may have its slot. From any thread."""
        self.away = True
        if self.uncalled and self.call is not None:
            self.call.deadline = self.whole
        self.runner.left(self)

    @property
    def uncalled(self) -> bool:
        """Whether its guard has called nothing so far: the time of the attempt has not begun."""
        return self.call is not None and self.call.number == 0

    def _seated(self, go_on: Callable[[], object]) -> None:
        if self.uncalled and self.call is not None:
            self.runner.begin_anew(self)
            self.call.deadline = self.deadline
        go_on()

    def back(self) -> None:
        """Wait in a thread until it has a slot again."""
        stop, seated = self.stop or Stop(), Stop()
        self.seat = partial(self._seated, seated.set)
        self.runner.returned(self)
        forget = stop.tell(seated.set)
        seated.wait()
        forget()

    async def aback(self) -> None:
        """As `back`, in the event loop."""
        seated: asyncio.Future[None] = self.runner.loop.create_future()
        self.seat = partial(self._seated, partial(_set, seated))
        self.runner.returned(self)
        await seated

    def when(self, now: float) -> When:
        """When this attempt began and what it took so far, on the database's clock."""
        return When(self.job.claimed_us + int((self.started - self.came) * 1e6), int((now - self.started) * 1e6))


class JobCall(Call):
    """The protected call of a job that has a guard. Its total timeout counts from the first claim of the job."""

    has_own_key = True
    active: ActiveJob

    def key(self) -> str:
        return self.active.idempotency_key()

    def context(self) -> Context:
        context, active = super().context(), self.active
        context.attempt, context.max_attempts = active.job.attempts, active.kind.policy.max_attempts
        context._key = self._ask_key  # noqa: SLF001 - known in every job, also with a plain guard
        return context

    def covers(self, error: Exception) -> bool:
        return self.active.why is None and super().covers(error)  # what is given up has no answer

    def who(self) -> dict[str, Any]:
        return super().who() | {"job_id": str(self.active.job.id)}


class JobRunner:
    """
    Makes the attempts of a worker. All of it belongs to the event loop, except for what its threads do.

    `ended` is called with a job and its end, once for each job; `freed` when its code has ended too, and its slot is
    free; `left` and `returned`, from any thread, when it waits without its slot, and wants one again.
    """

    def __init__(
        self,
        kinds: Mapping[str, Kind],
        *,
        app: str,
        clock: Clock,
        most_threads: int,
        ended: Callable[[ActiveJob, JobEnd], None],
        freed: Callable[[ActiveJob], None],
        left: Callable[[ActiveJob], None],
        returned: Callable[[ActiveJob], None],
        stop: Stop,
    ) -> None:
        self._forks = _forks
        self.kinds = kinds
        self.app = app
        self.monotonic = clock.monotonic
        self.loop = asyncio.get_running_loop()
        self.left = left
        self.returned = returned
        self._clock = clock
        self._ended = ended
        self._freed = freed
        self._world = here.get()
        base = self._base = copy_context()
        base.run(running.set, UNDERWAY)
        base.run(for_an_item.set, True)  # noqa: FBT003 - the variable's value; the end of a job is told by the job
        base.run(stopping.set, stop)
        self.threads: Threads[ActiveJob, Came] = Threads(
            self._in_thread,
            back=self._came_back,
            seen=_nothing,
            lost=_nothing_of,
            loop=self.loop,
            slots=(),
            most=most_threads,
            name="outlast-job",
        )

    def start(self, job: ClaimedJob, came: float) -> ActiveJob:
        """Begin with a job that was claimed."""
        kind = self.kinds[job.kind]
        active = ActiveJob(self, job, kind, came)
        if job.attempts > kind.policy.max_attempts:
            self.loop.call_soon(self._spent, active)
            return active
        if kind.is_async:
            work = self._bare(active) if kind.bare else self._guarded(active)
            active.task = self.loop.create_task(work, context=self._base.copy())
        else:
            active.stop = Stop()
            self.threads.put(active)
        self._time(active)
        return active

    def _time(self, active: ActiveJob) -> None:
        if active.kind.timeout is not None:
            active.timer = self._clock.call_later(active.kind.timeout, partial(self._late, active))

    def begin_anew(self, active: ActiveJob) -> None:
        """It has waited for a limit or a circuit, and called nothing: its time begins now."""
        if active.over or active.why is not None:
            return
        active.started = self.monotonic()
        if active.timer is not None:
            active.timer.cancel()
        self._time(active)

    # -- attempts ----------------------------------------------------------------------------------------------------

    async def _bare(self, active: ActiveJob) -> None:
        current_work.set(active)
        job, kind = active.job, active.kind
        active.seen, active.started = latest[0], self.monotonic()
        try:
            if active.why is not None:
                raise asyncio.CancelledError
            kwargs = kind.declared.bind_payload(job.payload, job.version)[1]
            result = await kind.fn(**kwargs, **kind.kwargs)
            stored = None if result is None else kind.declared.encode_result(result)
        except BaseException as error:  # noqa: BLE001 - the attempt's end, whatever it is
            self._fail(active, error)
            return
        self._succeed(active, stored)

    async def _guarded(self, active: ActiveJob) -> None:
        current_work.set(active)
        job, kind = active.job, active.kind
        active.seen, active.started = latest[0], self.monotonic()
        try:
            if active.why is not None:
                raise asyncio.CancelledError
            kwargs = {**kind.declared.bind_payload(job.payload, job.version)[1], **kind.kwargs}
            call = self._call(active)
            drive = arun if call.guard.fallback is None else afall_back
            result = await drive(call, kind.fn, (), kwargs, copy_context())
            stored = None if result is None else kind.declared.encode_result(result)
        except BaseException as error:  # noqa: BLE001 - as above
            self._fail(active, error)
            return
        self._succeed(active, stored)

    def _call(self, active: ActiveJob) -> JobCall:
        guard: Any = active.kind.declared.guard
        call = JobCall(guard, guard.name or active.job.kind, began=active.began, outer=UNDERWAY)
        call.active, call.aside = active, active
        call.attempt_began = active.started
        active.call = call
        return call

    def _in_thread(self, active: ActiveJob) -> Came:
        came = self._base.copy().run(self._blocking, active)
        if _forks != self._forks:  # the job has forked, and its child has come back from it: it is no worker
            os._exit(0)
        return came

    def _blocking(self, active: ActiveJob) -> Came:
        current_work.set(active)
        stopping.set(active.stop)
        job, kind = active.job, active.kind
        active.seen, active.started = latest[0], self.monotonic()
        try:
            if active.why is not None:
                raise InterruptedError
            kwargs = {**kind.declared.bind_payload(job.payload, job.version)[1], **kind.kwargs}
            if kind.bare:
                result = kind.fn(**kwargs)
            else:
                call = self._call(active)
                result = (run if call.guard.fallback is None else fall_back)(call, kind.fn, (), kwargs)
            if result.__class__ not in PLAIN and awaitable(result):
                _refuse_awaitable(result, job.kind)
            return None if result is None else kind.declared.encode_result(result), None
        except BaseException as error:  # noqa: BLE001 - the loop decides
            self._wait_for_thread(active, error)
            return None, error

    def _wait_for_thread(self, active: ActiveJob, error: BaseException) -> None:
        """A thread of the job's own guard may go on after its time: it is the job that still runs."""
        thread = None if active.call is None else active.call.thread
        if isinstance(thread, ThreadAttempt) and thread.running and isinstance(error, AttemptTimeoutError):
            self.loop.call_soon_threadsafe(self._overdue, active, error)
            thread.join()

    def _came_back(self, burst: list[tuple[ActiveJob, Came | BaseException]]) -> None:
        for active, came in burst:
            stored, error = (None, came) if isinstance(came, BaseException) else came
            try:
                if error is None:
                    self._succeed(active, stored)
                else:
                    self._fail(active, error)
            except Exception:  # noqa: BLE001 - the others of the burst have come back too
                warn("the end of the job %s (%s) is lost", active.job.id, active.job.kind, exc_info=True)

    # -- ends --------------------------------------------------------------------------------------------------------

    def _succeed(self, active: ActiveJob, stored: bytes | None) -> None:
        if _forks != self._forks:
            os._exit(0)
        if active.over or active.why == "lost":
            self._leave(active)
            return
        call = active.call
        if active.why == "timeout" or (active.why is not None and call is not None and call.reason == "shutdown"):
            self._fail(active, InterruptedError())  # what comes after its time, or because it was to stop, is no result
            return
        when = active.when(self.monotonic())
        self._end(active, outcome.succeeded(active.job, when, stored, active.kind.unique_for_us))
        self._leave(active)

    def _fail(self, active: ActiveJob, error: BaseException) -> None:
        if _forks != self._forks:
            os._exit(0)
        if not (active.over or active.why == "lost"):
            self._end(active, self._surely_failed(active, error))
        self._leave(active)
        set_frames(error, None)  # its frames hold the job, which must not outlive its end

    def _surely_failed(self, active: ActiveJob, error: BaseException, *, still: bool = False) -> JobEnd:
        """As `_failure`. If that fails too, the job has failed for good: without an end it would stay as it is for ever."""
        try:
            return self._failure(active, error, still=still)
        except Exception as broken:  # noqa: BLE001 - an error, or a policy, with code of its own
            when = active.when(self.monotonic())
            return outcome.undecided(active.job, type(error).__name__, broken, when, self._world.ids.new())

    def _failure(self, active: ActiveJob, error: BaseException, *, still: bool = False) -> JobEnd:
        job, when = active.job, active.when(self.monotonic())
        if active.why == "cancel":
            return outcome.cancelled(job, when)
        if active.why == "release":
            return outcome.released(job, when, "given back by its worker, which is ending")
        if active.why == "timeout" and not isinstance(error, AttemptTimeoutError):
            seconds = active.kind.declared.timeout or 0.0
            error = AttemptTimeoutError(f"the attempt took longer than {seconds:g} s")
        failure = error if isinstance(error, Exception) else failure_of(f"the job {job.kind}", error)
        reason, owned = gave_up(failure, active.seen)
        call, guard = active.call, active.kind.declared.guard
        left = None
        if guard is not None and guard.total_timeout is not None:
            left = max(0.0, active.began + guard.total_timeout - self.monotonic())
        ending = Ending(
            roll=self._world.dice.roll(),
            letter=self._world.ids.new(),
            called=call is None or call.number > 0,
            running=still,
            gave_up=reason,
            owned=owned,
            left=left,
        )
        return outcome.failed(job, failure, active.kind.policy, when, ending)

    def _end(self, active: ActiveJob, end: JobEnd) -> None:
        active.over = True
        active.held = end.running
        if active.timer is not None:
            active.timer.cancel()
            active.timer = None
        self._ended(active, end)

    def _leave(self, active: ActiveJob) -> None:
        active.gone = True
        active.call = active.task = None
        self._freed(active)

    # -- giving up ---------------------------------------------------------------------------------------------------

    def _spent(self, active: ActiveJob) -> None:
        """Claimed with no attempt left, after crashes: it ends without being run."""
        if not active.over and active.why is None:
            self._end(active, outcome.lost(active.job, active.when(active.came), self._world.ids.new()))
        self._leave(active)

    def cut_off(self, active: ActiveJob) -> None:
        """The worker ends, and its code still runs: it is given back, and what that code brings changes nothing."""
        if not active.over:
            active.why = "release"
            self._end(active, self._surely_failed(active, InterruptedError()))

    def give_up(self, active: ActiveJob, why: Why) -> None:
        """Have it end, if it lets itself be ended. What is lost is over at once."""
        if active.gone or active.why is not None:
            if why == "lost":
                active.why = why
            return
        active.why = why
        if active.task is not None:
            active.task.cancel()
        else:
            if active.stop is not None:
                active.stop.set()
            thread = None if active.call is None else active.call.thread
            if thread is not None and active.kind.process:
                thread.abandon()
        if why == "cancel":
            self.loop.call_later(GRACE, self._ignored, active)

    def _ignored(self, active: ActiveJob) -> None:
        if not active.gone:
            warn(
                "the job %s (%s) goes on although it was cancelled; its slot stays taken",
                active.job.id,
                active.job.kind,
            )

    def _late(self, active: ActiveJob) -> None:
        """Its time is up; unless it only waits, and has called nothing."""
        if active.over or active.gone or (active.away and active.uncalled):
            return
        self.give_up(active, "timeout")
        if active.kind.is_async or active.kind.process:
            active.timer = self._clock.call_later(GRACE, partial(self._overdue, active, None))
        else:
            self._overdue(active, None)

    def _overdue(self, active: ActiveJob, error: Exception | None) -> None:
        """It goes on although it was given up: its end is recorded, and nobody begins it before it has ended."""
        if active.over or active.gone:
            return
        self._end(active, _still_running(self._surely_failed(active, error or TimeoutError(), still=True)))
        warn(
            "the job %s (%s) still runs although its time is up; its slot stays taken, and it is not begun again before it has ended",
            active.job.id,
            active.job.kind,
        )


def _still_running(end: JobEnd) -> JobEnd:
    """Nobody begins it before its code has ended, whatever it is to become."""
    return end._replace(state="held" if end.state in {"ready", "waiting", "alone"} else end.state, running=True)


def _refuse_awaitable(result: Any, kind: str) -> None:
    close = getattr(result, "close", None)
    if close is not None:
        close()
    message = f"the job {kind} is no coroutine function, but returned something to await: declare it with `async def`"
    raise PermanentFailure(message, error_class="code_error")


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _nothing() -> None:
    return


def _nothing_of(_: ActiveJob) -> None:
    return
