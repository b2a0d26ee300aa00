"""
One claimed job at a time: its attempt is made, in the event loop or in a thread, and becomes a `JobEnd`.

A bare async job is awaited directly; those that never wait share a task. One with a guard goes through a `JobCall`,
which gives up its slot whenever it waits: for another attempt inside, for a circuit, or in the line of a limit.
Blocking jobs run in `Threads`, and those with ``isolation="process"`` in a child that the thread waits for.

An attempt that is given up (its time is up, an operator or the worker ends it) is cancelled. Code that goes on all the
same keeps its slot and is told about once; the job is `held` until that code has ended, so that it never runs twice at
a time.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal
from weakref import getweakrefcount

from outlast.calls.drivers import afall_back, arun, fall_back, run
from outlast.calls.records import Context, Notes
from outlast.calls.state import Call, current_work, gave_up, latest, racing, running
from outlast.errors import AttemptTimeoutError, PermanentFailure, TemporaryFailure, TotalTimeoutError
from outlast.jobs import outcome
from outlast.jobs.inside import Inside, watch_executor
from outlast.jobs.outcome import Ending, When
from outlast.kernel.clock import REAL, Stop, here, stopping
from outlast.kernel.frames import stack_of, traceback_of
from outlast.kernel.log import warn
from outlast.kernel.raised import NoFailure, set_frames
from outlast.observe import for_an_item, listening
from outlast.pipeline.engine.attempts import failure_of, rest, scripted
from outlast.settings.callables import PLAIN, awaitable
from outlast.store.database import lock_patience
from outlast.store.records import served_kind
from outlast.verdicts import classify
from outlast.work.patience import terms, waiter
from outlast.work.threads import Threads, begun_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextvars import Context as Variables
    from types import FrameType
    from typing import TypeAlias

    from outlast.deciding import Answer
    from outlast.jobs.job import Job
    from outlast.jobs.onrecord import OnRecord, ResultWriter
    from outlast.kernel.aliases import StopReason
    from outlast.kernel.clock import Clock, Timer
    from outlast.policy import RetryPolicy
    from outlast.store.records import ClaimedJob, JobEnd

    #: Why an attempt is given up: its time is up, an operator cancels it, the worker gives it back, or has lost it.
    Why: TypeAlias = Literal["timeout", "cancel", "release", "lost"]
    Progress: TypeAlias = "tuple[float, float | None, str]"
    #: What a thread brings back: a result as it is stored, or an error.
    Came: TypeAlias = "tuple[bytes | None, None] | tuple[None, BaseException]"

GRACE = 5.0  # seconds that code has to end after it was cancelled
_LOOK = 0.5  # seconds between two looks at the transaction of code that goes on after its time
_LOCKED = 5.0  # seconds that the code of a job waits for a locked store
_SHORTEST = 1.0  # but not less than this, however short the lease of its worker is
_SLICE = 0.005  # seconds that short jobs run one after the other, before the loop may look at something else
# Who counts no references cannot say whether code keeps its task.
_references: Any = getattr(sys, "getrefcount", lambda _: object())
_making = threading.Lock()
_forks = 0  # between the process in which this was loaded and this one: a runner of another one is a copy


def _after_fork() -> None:
    global _forks, _making  # noqa: PLW0603 - once a child, always a child
    _forks += 1
    _making = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _at_once(fn: Callable[..., object], *args: Any) -> None:
    fn(*args)


class Kind:
    """A job as this worker runs it: the function with the faults of a test in front, and what it uses."""

    __slots__ = ("bare", "declared", "fn", "is_async", "kwargs", "policy", "process", "timeout", "unique_for_us")

    def __init__(self, declared: Job[..., Any], kwargs: dict[str, Any]) -> None:
        guard = declared.guard
        self.declared = declared
        self.fn: Callable[..., Any] = scripted(declared.fn, declared.kind)
        if guard is not None and declared.is_async:
            self.fn = _looking(self.fn)
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
        active = _active()
        return None if active is None else active.deadline

    def context(self) -> Context:
        active = _active()
        return Context() if active is None else active.context()


def _active() -> Any:
    """The job whose code runs here, or what undoes it; also around the steps of a flow that it runs."""
    work: Any = current_work.get()
    while work is not None and not hasattr(work, "deadline"):
        work = getattr(work, "around", None)
    return work


UNDERWAY: Any = _Underway()


class ActiveJob:
    """A claimed job that this worker has. While its code runs, `current_work` holds it."""

    __slots__ = (
        "again",
        "away",
        "call",
        "came",
        "decided",
        "excused",
        "given",
        "gone",
        "halt",
        "held",
        "inside",
        "job",
        "kept",
        "kind",
        "left_at",
        "notes",
        "over",
        "progress",
        "progress_stored",
        "runner",
        "said",
        "seat",
        "seen",
        "started",
        "stop",
        "task",
        "tenure",
        "timer",
        "waits",
        "why",
    )

    def __init__(self, runner: JobRunner, job: ClaimedJob, kind: Kind, came: float) -> None:
        self.runner = runner
        self.job = job
        self.kind = kind
        self.came = came  # when the claim came back: `job.claimed_us` on this clock
        self.started = came
        self.given: dict[str, Any] | None = None  # its arguments, if they are made already
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
        self.left_at = 0.0  # since when
        self.excused = 0.0  # seconds that it has waited so: they are not of its attempt's time
        self.again: float | None = None  # seconds after which its guard wants another attempt, in the queue
        self.seat: Callable[[], object] | None = None  # called when it has a slot again
        self.tenure: Any = None
        self.kept: OnRecord | None = None  # of jobs whose code has asked for it
        self.inside: Inside | None = None  # the other threads of its code, if there were any
        self.waits: outcome.ToQueue | None = None  # what its code was left for, or has caught
        # Of jobs of our own. What ends with this error was decided when its code has asked (`follows`):
        self.decided: tuple[BaseException, float | StopReason] | None = None
        self.halt: Callable[[], object] | None = None  # called when the worker ends: it comes to a halt by itself
        self.said: str | None = None  # what its code says of being cancelled
        self.progress: Progress | None = None  # as its code reported it last
        self.progress_stored: Progress | None = None  # the one that is in the store

    def make_ready(self) -> None:
        """Make what can be made of it without anything that anybody could notice."""
        kind, job = self.kind, self.job
        if kind.is_async and kind.bare:
            self.given = kind.declared.plain_arguments(job.payload, job.version)

    # -- for the code of the job

    @property
    def deadline(self) -> float | None:
        """When the time of this attempt is up, or that of the whole job, on the monotonic clock."""
        timeout, whole = self.kind.declared.timeout, self.whole
        own = None if timeout is None else self.started + self.excused + timeout
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
        if not self.kind.declared.ends_itself:  # whose code is not the user's, and has a record of its own
            context._durable = self.durably  # noqa: SLF001 - known in every call that is made in a job
            context._report = self.report_progress  # noqa: SLF001 - as above

    def report_progress(self, progress: Progress) -> None:
        """Its code says how far it is; from any thread. The worker writes it about once a second."""
        self.progress = progress

    @property
    def told(self) -> dict[str, Any]:
        """What events of calls that are made in the job say of it."""
        return {"job_id": str(self.job.id), "job_kind": self.job.kind}

    def durably(self) -> OnRecord:
        """What its code has put on record: made when it is first asked for."""
        if self.kept is None:
            from outlast.jobs.onrecord import OnRecord

            with _making:  # threads of one job share it: with two of them, a step would be done twice
                if self.kept is None:
                    self.kept = OnRecord(self)
        return self.kept

    def watched(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function, for another thread of its code: how long it runs is known here."""
        if self.kind.declared.ends_itself:  # which sees to its threads itself
            return fn
        if self.inside is None:
            with _making:
                if self.inside is None:
                    self.inside = Inside()
        return self.inside.watched(fn)

    @property
    def finishing(self) -> bool:
        """Whether a transaction of its own code may decide how it ends."""
        return self.kept is not None and self.kept.finishing

    def idempotency_key(self) -> str:
        """The same in all attempts of the job, whoever makes them."""
        job = self.job
        parts = f"{self.runner.app}\x1f{job.kind}\x1f{job.id}\x1f{job.enqueued_us}"
        return blake2b(parts.encode(), digest_size=16).hexdigest()

    def _take_notes(self) -> Notes:
        if self.notes is None:
            self.notes = Notes()
        return self.notes

    def follows(
        self, error: Exception, reason: StopReason | None, *, retried: bool, retry_exhausted: bool | None = None
    ) -> float | StopReason:
        """
        What follows if this attempt fails with this error: seconds to wait, or why there is no other. To be so, it goes
        into `decided`. `reason` is why the work inside is not tried again, which says more than why its last call was
        not; `retried` whether that has tried again, and `retry_exhausted` whether what it has given up on may be tried
        again by the job.
        """
        seen, policy = gave_up(error, self.seen), self.kind.policy
        if retry_exhausted is not None:
            policy = policy.replace(retry_exhausted=retry_exhausted)
        owned = seen[1] or retried
        ending = Ending(roll=self.runner.roll(), letter="", gave_up=reason or seen[0], owned=owned)
        return outcome.follows(self.job, error, policy, ending)

    def long_wait(self, seconds: float, last: Exception | None) -> None:
        """
        A call that its code makes has to wait. If that is long, and the job has an attempt left for it, it is the queue that waits: what
        is stored of its steps makes the second time short.
        """
        if self.kind.declared.ends_itself or self.over or self.why is not None or self.finishing:
            return
        if outcome.for_the_queue(self.job, self.kind.policy, seconds):
            others_may_answer = racing.get()
            if others_may_answer is not None and others_may_answer():
                return
            self.waits = outcome.ToQueue(seconds, last)
            raise outcome.ToQueue(seconds, last)

    @property
    def spent(self) -> bool:
        """Whether it was claimed with no attempt left: it only puts things in order."""
        return self.job.attempts > self.kind.policy.max_attempts

    # -- its slot while it waits

    def leave(self) -> None:
        """It waits: others may have its slot. From any thread."""
        self.away, self.left_at = True, self.runner.monotonic()
        if self.call is not None:
            self.call.deadline = self.whole
        self.runner.left(self)

    @property
    def uncalled(self) -> bool:
        """Whether its guard has called nothing so far: the time of the attempt has not begun."""
        return self.call is not None and self.call.number == 0

    def out_of_time(self, now: float) -> bool:
        """Whether its code alone has taken more time than an attempt may."""
        timeout = self.kind.timeout
        return timeout is not None and now - self.started - self.excused >= timeout

    def _seated(self, go_on: Callable[[], object]) -> None:
        if self.call is not None:
            self.runner.go_on_timing(self)
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
        # What is given up has no answer, and what is tried again later, or has ended, needs none.
        if self.active.why is not None or self.active.again is not None or self._has_ended():
            return False
        return super().covers(error)

    def begin(self) -> float | None:
        inside = self.active.inside
        if self.number and inside is not None and inside.running:  # code of the attempt before
            self._end_with_last("still_running")
        return super().begin()

    def failed(self, error: Exception) -> float | None:
        self.active.waits = None  # the code is called anew, or the job fails with this
        if self.active.kept is not None:
            self.active.kept.raised = True
        if not isinstance(error, NoFailure) and self._has_ended():
            self._failed_late(error)
            return None
        delay = super().failed(error)
        return None if delay is not None and self._queued(delay) else delay

    def _failed_late(self, error: Exception) -> None:
        """The job has ended before, and tells of this error itself: it is no failed attempt that anything could follow."""
        verdict = classify(error)
        self._settle(error, verdict)
        self._leave(error, verdict)
        if listening():
            self._tell_timeout(error)

    def succeeded(self, result: object) -> float | None:
        delay = super().succeeded(result)
        if delay is not None and self._queued(delay):
            raise TemporaryFailure("retry_if wants another result")
        return delay

    def _is_unwanted(self, result: object) -> bool:
        # What the job came to is what it has given to finish_in.
        return not self._has_ended() and super()._is_unwanted(result)

    def _has_ended(self) -> bool:
        """Whether its code has let the job end with a transaction: then it is not called again."""
        kept = self.active.kept
        if kept is None or not kept.finishing:
            return False
        return kept.ended if self.active.kind.is_async else kept.is_ended()

    def _queued(self, delay: float) -> bool:
        """Whether this wait is for the queue: then the attempt of the job is over."""
        active = self.active
        if not outcome.for_the_queue(active.job, active.kind.policy, delay):
            return False
        active.again = delay
        return True

    def _patience(self, seconds: float) -> float | None:
        wait = super()._patience(seconds)
        if wait is None or wait <= outcome.INLINE_MAX_DELAY:
            return wait
        # The queue waits for the circuit: if nothing was called, that costs no attempt.
        return None if self.number == 0 or self._queued(wait) else wait

    # A wait between attempts, for a circuit or in a line takes nothing of the attempt's own time.

    def _follows(self, policy: Answer, now: float, **facts: bool) -> Answer:
        kept, self.deadline = self.deadline, self.active.whole
        try:
            return super()._follows(policy, now, **facts)
        finally:
            self.deadline = kept

    def _too_late(self, delay: float) -> bool:
        whole = self.active.whole
        return whole is not None and self.world.clock.monotonic() + delay >= whole

    def left_in_all(self) -> float | None:
        whole = self.active.whole
        return None if whole is None or not self.world.retries else max(0.0, whole - self.world.clock.monotonic())

    def who(self) -> dict[str, Any]:
        return super().who() | self.active.told

    @property
    def shown_number(self) -> int:
        # Without retries of its own it is the job's attempt, which has another number.
        return self.number if self.guard.retry.max_attempts > 1 else 0


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
        self.halting = False  # the worker ends
        self.kinds = kinds
        self.app = app
        self.monotonic = clock.monotonic
        self.loop = asyncio.get_running_loop()
        watch_executor(self.loop)
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
        base.run(waiter.set, self)
        # A job that has locked the store keeps its worker from saying that it lives: what it then writes elsewhere, and
        # waits for itself, fails before that is too late.
        self.lock_patience = min(_LOCKED, max(_SHORTEST, terms.get().ttl / 4))
        base.run(lock_patience.set, self.lock_patience)
        self._due: deque[ActiveJob] = deque()  # bare async jobs that have not begun
        self._short: asyncio.Task[None] | None = None  # begins them
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

    @functools.cached_property
    def results(self) -> ResultWriter:
        """Writes what async jobs have done."""
        from outlast.jobs.onrecord import ResultWriter

        return ResultWriter(self.loop, self._base.copy())

    @property
    def base(self) -> Variables:
        """The variables that the code of a job begins with."""
        return self._base

    def close(self) -> None:
        """Begin nothing more."""
        self.threads.close()
        if "results" in vars(self):
            self.results.close()

    def join(self) -> None:
        """After `close`: wait until the threads that run no code of a job have ended. Blocks for a moment."""
        self.threads.join()
        if "results" in vars(self):
            self.results.join()

    def take(self, job: ClaimedJob, came: float) -> ActiveJob:
        """A job that was claimed: it begins with `start`."""
        return ActiveJob(self, job, self.kinds[served_kind(job.kind)], came)

    def start(self, active: ActiveJob) -> None:
        """Begin with a job."""
        kind = active.kind
        if active.spent and not kind.declared.ends_itself:
            self.loop.call_soon(self._spent, active)
            return
        if not kind.is_async:
            active.stop = Stop()
            self.threads.put(active)
        elif kind.bare:
            self._due.append(active)
            if self._short is None:
                self._begin_short()
        else:
            active.task = self.loop.create_task(self._guarded(active), context=self._base.copy())
        if kind.timeout is not None:
            self._time(active)

    def _time(self, active: ActiveJob) -> None:
        if active.kind.timeout is not None:
            spent = max(0.0, self.monotonic() - active.started - active.excused) if active.excused else 0.0
            left = max(0.0, active.kind.timeout - spent)
            active.timer = self._clock.call_later(left, partial(self._late, active))

    def go_on_timing(self, active: ActiveJob) -> None:
        """
        It has a slot again. What it has waited is not of its attempt's time, which begins now if it has called nothing
        so far.
        """
        if active.over or active.why is not None:
            return
        now = self.monotonic()
        if active.uncalled:
            active.started, active.excused = now, 0.0
        else:
            active.excused += now - active.left_at
        if active.timer is not None:
            active.timer.cancel()
        if active.out_of_time(now):
            self._time_out(active, at_once=False)
        else:
            self._time(active)

    # -- attempts ----------------------------------------------------------------------------------------------------

    def _begin_short(self) -> None:
        self._short = self.loop.create_task(self._run_short(), context=self._base.copy()) if self._due else None

    async def _run_short(self) -> None:
        """
        Bare jobs, one after the other: a task for each would cost as much as all the rest of a short one. Each has
        variables of its own. One that waits keeps this task to its end, and so does one that leaves anything at the task
        or keeps it: the others go on in a new one, and no job meets the task of another.
        """
        due, base, clock = self._due, self._base, REAL.clock.monotonic
        task: Any = asyncio.current_task()
        try:
            until, fresh = clock() + _SLICE, _traces(task)
            while due:
                active = due.popleft()
                variables, work = base.copy(), self._bare(active)
                active.task = task
                try:
                    waits = variables.run(work.send, None)
                except StopIteration:
                    if _traces(task) != fresh:
                        return
                else:
                    self._begin_short()
                    task = None
                    await rest(variables, work, waits)
                    return
                if clock() > until:
                    await asyncio.sleep(0)
                    until, fresh = clock() + _SLICE, _traces(task)
        finally:
            if task is not None:
                self._begin_short()

    async def _bare(self, active: ActiveJob) -> None:
        current_work.set(active)
        job, kind = active.job, active.kind
        active.seen, active.started = latest[0], self.monotonic()
        try:
            if active.why is not None:
                raise asyncio.CancelledError
            kwargs = active.given
            if kwargs is None:
                kwargs = kind.declared.bind_payload(job.payload, job.version)[1]
            result = await kind.fn(**kwargs, **kind.kwargs)
            stored = None if result is None else kind.declared.encode_result(result)
            if kind.timeout is not None:
                self._judge_time(active)
        except BaseException as error:  # noqa: BLE001 - the attempt's end, whatever it is
            if active.kept is None and active.inside is None:
                self._fail(active, error)
            else:
                await self._settle(active, error, None)
            return
        if active.kept is None and active.inside is None:
            self._succeed(active, stored)
        else:
            await self._settle(active, None, stored)

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
            if kind.timeout is not None:
                self._judge_time(active)
        except BaseException as error:  # noqa: BLE001 - as above
            if active.kept is None and active.inside is None:
                self._fail(active, error)
            else:
                await self._settle(active, error, None)
            return
        if active.kept is None and active.inside is None:
            self._succeed(active, stored)
        else:
            await self._settle(active, None, stored)

    async def _settle(self, active: ActiveJob, error: BaseException | None, stored: bytes | None) -> None:
        """The end of an attempt that has put something on record, or has used other threads."""
        try:
            if active.kept is not None:
                stored, error = await active.kept.aend(stored, error)
        except BaseException as broken:  # noqa: BLE001 - it must have an end
            error = error or broken
        if self._goes_on(active, error):
            ended = begun_in_thread(active.inside.join, left=True)  # type: ignore[union-attr]
            while not ended.done():
                with suppress(asyncio.CancelledError):  # it is over anyway, and its threads are not
                    await asyncio.wait([ended])
        if error is None:
            self._succeed(active, stored)
        else:
            self._fail(active, error)
        del error

    def _judge_time(self, active: ActiveJob) -> None:
        """An async job has returned. Its timer is heard by the loop only: if that was blocked, the time is judged now."""
        now = active.left_at if active.away else self.monotonic()
        if active.over or active.why is not None or not active.out_of_time(now):
            return
        active.why = "timeout"
        if not active.finishing:  # else its own transaction decides
            warn(
                "the job %s (%s) returned after %.3g s, past its timeout of %g s, since the event loop was blocked: it is "
                "recorded as timeout, and what it returned is discarded. What blocks must not be async",
                *(active.job.id, active.job.kind, now - active.started - active.excused, active.kind.timeout),
            )

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
            stored = None if result is None else kind.declared.encode_result(result)
        except BaseException as error:  # noqa: BLE001 - the loop decides
            self._wait_for_threads(active, error)
            return (None, error) if active.kept is None else active.kept.end(None, error)
        came: Came = (stored, None) if active.kept is None else active.kept.end(stored, None)
        self._wait_for_threads(active, came[1])
        return came

    def _wait_for_threads(self, active: ActiveJob, error: BaseException | None) -> None:
        if self._goes_on(active, error, self.loop.call_soon_threadsafe):
            active.inside.join()  # type: ignore[union-attr]

    def _goes_on(self, active: ActiveJob, error: BaseException | None, call: Callable[..., object] = _at_once) -> bool:
        """
        Whether an attempt that has not succeeded goes on in other threads of its code: it is the job that still runs. Then its
        end goes on record, and nobody begins it, or undoes it, before they have ended.
        """
        if active.inside is None or (error is None and active.why is None and active.waits is None):
            return False
        if not active.inside.close():
            return False
        call(self._overdue, active, error or active.waits or InterruptedError())
        return True

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
        # Success that its own transaction has put on record is none that could be lost, or come too late.
        committed = active.kept is not None and active.kept.committed
        if active.over or (active.why == "lost" and not committed):
            self._leave(active)
            return
        call, why = active.call, None if committed else active.why
        if why == "timeout" or (why is not None and call is not None and call.reason == "shutdown"):
            self._fail(active, InterruptedError())  # what comes after its time, or because it was to stop, is no result
            return
        if active.waits is not None and not committed:
            warn(
                "the code of the job %s (%s) has caught what was to leave it, and returned: it waits in the queue for %g s, and what "
                "it returned is discarded. Let BaseException through",
                *(active.job.id, active.job.kind, active.waits.delay),
            )
            self._fail(active, active.waits)
            return
        end = outcome.succeeded(active.job, active.when(self.monotonic()), stored, active.kind.unique_for_us)
        if committed and active.kept is not None:
            active.kept.success = end
        self._end(active, end)
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
            end = outcome.undecided(active.job, type(error).__name__, broken, when, self._world.ids.new())
            return end._replace(traceback=traceback_of(error))

    def _failure(self, active: ActiveJob, error: BaseException, *, still: bool = False) -> JobEnd:
        job, when = active.job, active.when(self.monotonic())
        if active.why == "cancel":
            return outcome.cancelled(job, when, active.said)
        if active.why == "release":
            return outcome.released(job, when, "given back by its worker, which is ending")
        raised, again = error, active.again
        if (waits := outcome.waits_in(error)) is not None:
            again = waits.delay
            error = waits.last or TemporaryFailure("a call inside of it waits for a circuit, or for another result")
        if active.why == "timeout" and not isinstance(error, AttemptTimeoutError):
            seconds = active.kind.declared.timeout or 0.0
            error = AttemptTimeoutError(f"the attempt took longer than {seconds:g} s")
        failure = error if isinstance(error, Exception) else failure_of(f"the job {job.kind}", error)
        reason, owned = gave_up(failure, active.seen)
        call, guard = active.call, active.kind.declared.guard
        left = None
        if guard is not None and guard.total_timeout is not None:
            left = max(0.0, active.began + guard.total_timeout - self.monotonic())
        decided = active.decided
        ending = Ending(
            roll=self._world.dice.roll(),
            letter=self._world.ids.new(),
            called=call is None or call.number > 0,
            running=still,
            gave_up=reason,
            owned=owned,
            left=left,
            again=again,
            answer=decided[1] if decided is not None and decided[0] is error else None,
            spent=active.spent,
        )
        end = outcome.failed(job, failure, active.kind.policy, when, ending)
        # One that was given back or has snoozed has not failed.
        if not end.charged:
            return end
        found = traceback_of(raised, failure)
        if found is None and still and not active.kind.is_async:
            found = stack_of(_present_frame(active), failure)
        return end._replace(traceback=found)

    def _end(self, active: ActiveJob, end: JobEnd) -> None:
        active.over = True
        active.held = end.running
        if active.timer is not None:
            active.timer.cancel()
            active.timer = None
        self._ended(active, end)

    def _leave(self, active: ActiveJob) -> None:
        active.gone = True
        active.call = active.task = active.halt = active.decided = None
        self._freed(active)

    # -- giving up ---------------------------------------------------------------------------------------------------

    def roll(self) -> float:
        """Chance, for a delay."""
        return self._world.dice.roll()

    def halt(self, jobs: Collection[ActiveJob]) -> None:
        """The worker ends: those that can come to a halt by themselves begin with it."""
        self.halting = True
        for active in jobs:
            if active.halt is not None:
                active.halt()

    def _spent(self, active: ActiveJob) -> None:
        """Claimed with no attempt left, after crashes: it ends without being run."""
        if not active.over and active.why is None:
            self._end(active, outcome.lost(active.job, active.when(active.came), self._world.ids.new()))
        self._leave(active)

    async def cut_off(self, jobs: Collection[ActiveJob], patience: float) -> set[ActiveJob]:
        """
        The worker ends, and their code still runs: they are given back, and what that code brings changes nothing. Not
        those that have ended with a transaction, or may do so; which of them have.
        """
        looks = {
            active: begun_in_thread(active.kept.status, else_here=True)
            for active in jobs
            if not active.over and active.kept is not None and active.kept.finishing
        }
        if looks:
            await asyncio.wait(looks.values(), timeout=patience)
        ended: set[ActiveJob] = set()
        for active in jobs:
            look = looks.get(active)
            if look is None or (look.done() and look.result() == "rolled back"):
                self._give_back(active)
            elif look.done() and look.result() == "committed":
                ended.add(active)
        return ended

    def _give_back(self, active: ActiveJob) -> None:
        if not active.over:
            if active.why != "cancel":  # that is its end, whether its code has heard of it or not
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
        """Its time is up; unless it only waits, and has time left: that goes on when it has a slot again."""
        if active.over or active.gone or (active.away and not active.out_of_time(active.left_at)):
            return
        self._time_out(active, at_once=not (active.kind.is_async or active.kind.process or active.away))

    def _time_out(self, active: ActiveJob, *, at_once: bool) -> None:
        self.give_up(active, "timeout")
        if not at_once:
            active.timer = self._clock.call_later(GRACE, partial(self._overdue, active, None))
        else:
            self._overdue(active, None)

    def _overdue(self, active: ActiveJob, error: BaseException | None) -> None:
        """It goes on although it was given up: its end is recorded, and nobody begins it before it has ended."""
        if active.over or active.gone:
            return
        if active.kept is not None and active.kept.finishing:
            self._look_at(active, active.kept, error)
            return
        self._end_running(active, error)

    def _look_at(self, active: ActiveJob, kept: OnRecord, error: BaseException | None, *, told: bool = False) -> None:
        """
        Its row may be locked by its own transaction: how that ends is asked when its code has ended. If it was rolled
        back, and the code goes on, it is like all others.
        """

        def seen(look: asyncio.Future[Any]) -> None:
            if active.over or active.gone or look.cancelled():
                return
            found = look.result()
            if found == "rolled back":
                self._end_running(active, error)
                return
            if found == "open" and not told:
                warn(
                    "the job %s (%s) still runs although its time is up, with its transaction open",
                    active.job.id,
                    active.job.kind,
                )
            if found in {"open", None}:
                self.loop.call_later(_LOOK, again, told or found == "open")

        def again(told: bool) -> None:  # noqa: FBT001 - as `call_later` passes it
            if not active.over and not active.gone:
                self._look_at(active, kept, error, told=told)

        begun_in_thread(kept.status, else_here=True).add_done_callback(seen)

    def _end_running(self, active: ActiveJob, error: BaseException | None) -> None:
        self._end(active, _still_running(self._surely_failed(active, error or TimeoutError(), still=True)))
        late = active.why == "timeout" or error is None or isinstance(error, AttemptTimeoutError | TotalTimeoutError)
        warn(
            "the job %s (%s) still runs %s; its slot stays taken, and it is not begun again before it has ended",
            active.job.id,
            active.job.kind,
            "although its time is up" if late else "in another thread, although its function has ended",
        )


def _looking(fn: Callable[..., Any]) -> Callable[..., Any]:
    """An async job that looks, when it ends, whether it has ended with a transaction: its guard cannot await that."""

    @functools.wraps(fn)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await fn(*args, **kwargs)
        finally:
            active: Any = current_work.get()
            if active is not None and active.finishing:
                await active.kept.look()

    return call


def _present_frame(active: ActiveJob) -> FrameType | None:
    """Where the thread of a job is that goes on after its time. Looked for, so that no job pays for noting its thread."""
    own = JobRunner._blocking.__code__  # noqa: SLF001 - of this module
    for newest in sys._current_frames().values():  # noqa: SLF001 - the only way to them
        frame: FrameType | None = newest
        while frame is not None:
            if frame.f_code is own and frame.f_locals.get("active") is active:
                return newest
            frame = frame.f_back
    return None


def _traces(task: Any) -> tuple[object, ...]:
    """Whatever code could have left at its task, or kept of it."""
    kept = _references(task), getweakrefcount(task)
    return *kept, task.cancelling(), task._must_cancel, task._callbacks, task.get_name()  # noqa: SLF001 - asyncio does not say it otherwise


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
