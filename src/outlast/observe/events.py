"""
What is worth telling, as frozen values. The list of events is the observability API: logs, the store, metrics and
traces are fed from it.

An event is named after its class: `StepRetryAttempt` is ``step_retry_attempt``. Instants are aware UTC; `seq` grows
within a process.
"""

from __future__ import annotations

import itertools
import re
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from outlast.kernel.clock import here
from outlast.kernel.wording import counted, process_of
from outlast.observe import for_an_item

if TYPE_CHECKING:
    from datetime import datetime

_numbers = itertools.count(1)
# Set by the older names: every failure is told as loudly as its class says, also where an error reaches its caller
# anyway.
loud: ContextVar[bool] = ContextVar("outlast_loud", default=False)


_BAD_ENDS = {"failed": "error", "interrupted": "warning"}
_FAILED = "{0.step_id}: attempt {0.attempt} of {0.max_attempts} failed with {0.error_type} ({0.error_class}): {0.error}"


def _now() -> datetime:
    return here.get().clock.now()


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened. `run_id` and `pipeline` are None in plain calls."""

    name: ClassVar[str] = "event"
    level: ClassVar[str] = "info"  # of the class; one event may have another
    _says: ClassVar[str] = "{0.name}"  # its sentence, with fields of the event
    _derived: ClassVar[tuple[str, ...]] = ()  # properties that are told like fields

    ts: datetime = field(default_factory=_now)
    seq: int = field(default_factory=lambda: next(_numbers))
    run_id: str | None = None
    pipeline: str | None = None

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def as_dict(self) -> dict[str, Any]:
        """The fields and the derived numbers with the event's name, instants in ISO 8601; ready for JSON."""
        names = (*(each.name for each in fields(self)), *self._derived)
        plain = {name: getattr(self, name) for name in names}
        return {"event": self.name} | {k: v.isoformat() if hasattr(v, "isoformat") else v for k, v in plain.items()}

    def sentence(self) -> str:
        """The event for a person's eye."""
        return self._says.format(self)

    def _told_at(self, level: str) -> None:
        object.__setattr__(self, "level", level)


@dataclass(frozen=True, kw_only=True)
class StepEvent(Event):
    """Something that happened to a protected call, stage, step or job. `job_id` and `job_kind` are of the job around it."""

    _derived: ClassVar[tuple[str, ...]] = ("retries_used",)

    step_id: str
    job_id: str | None = None
    job_kind: str | None = None
    item_id: str | None = None
    attempt: int
    max_attempts: int

    @property
    def retries_used(self) -> int:
        """Executions after the first."""
        return max(0, self.attempt - 1)

    def sentence(self) -> str:
        """The event for a person's eye."""
        said = super().sentence()
        return said if self.job_id is None else f"job {self.job_id} ({self.job_kind}): {said}"


@dataclass(frozen=True, kw_only=True)
class StepFailure(StepEvent):
    """An attempt failed. `error` is sanitised; `max_retries` is what the policy grants this kind of error."""

    max_retries: int
    tier: str
    category: str
    error_class: str
    error_type: str
    error: str


@dataclass(frozen=True, kw_only=True)
class StepRetryAttempt(StepFailure):
    """An attempt failed and another one follows after `next_delay` seconds."""

    level: ClassVar[str] = "warning"
    _says: ClassVar[str] = _FAILED + "; attempt {0.next_attempt} in {0.next_delay:.3g} s"
    _derived: ClassVar[tuple[str, ...]] = ("retries_used", "next_attempt", "next_delay_ms")

    next_delay: float
    next_attempt_at: datetime

    @property
    def next_attempt(self) -> int:
        """The number of the attempt that follows."""
        return self.attempt + 1

    @property
    def next_delay_ms(self) -> int:
        """The wait in whole milliseconds."""
        return round(self.next_delay * 1000)


@dataclass(frozen=True, kw_only=True)
class StepFailedForGood(StepFailure):
    """An attempt failed and none follows."""

    level: ClassVar[str] = "error"

    reason: str

    def __post_init__(self) -> None:
        # Where nothing was retried the caller gets the error itself; and the end of an item is told by the item.
        told = self.attempt <= 1 or self.pipeline is not None or for_an_item.get()
        if told and not loud.get():
            self._told_at("debug")


@dataclass(frozen=True, kw_only=True)
class StepRetryExhausted(StepFailedForGood):
    """The last attempt has failed although the error was worth retrying; `reason` says what ran out."""

    _says: ClassVar[str] = _FAILED + "; giving up: {0.reason}"


@dataclass(frozen=True, kw_only=True)
class StepErrorPermanent(StepFailedForGood):
    """An error that the policy does not retry; `reason` says why."""

    _says: ClassVar[str] = _FAILED + "; not retried: {0.reason}"


@dataclass(frozen=True, kw_only=True)
class StepSuccess(StepEvent):
    """An attempt succeeded after at least one had failed; `tier` is that of the last failure."""

    _says: ClassVar[str] = "{0.step_id}: attempt {0.attempt} of {0.max_attempts} succeeded"
    _derived: ClassVar[tuple[str, ...]] = ("retries_used", "total_retries")

    tier: str

    @property
    def total_retries(self) -> int:
        """Executions after the first."""
        return self.attempt - 1


@dataclass(frozen=True, kw_only=True)
class AttemptTimeout(StepEvent):
    """An attempt took longer than `timeout` seconds; `scope` tells ``attempt`` from ``total``."""

    level: ClassVar[str] = "warning"
    _says: ClassVar[str] = (
        "{0.step_id}: attempt {0.attempt} of {0.max_attempts} ran out of time after {0.timeout:.3g} s ({0.scope})"
    )

    timeout: float
    scope: str


@dataclass(frozen=True, kw_only=True)
class RetryBudgetExhausted(StepEvent):
    """The retry budget had nothing left, so an error that was worth retrying was not retried."""

    level: ClassVar[str] = "warning"
    _says: ClassVar[str] = "{0.step_id}: not retried, the retry budget {0.budget} is used up"

    budget: str


@dataclass(frozen=True, kw_only=True)
class StepHedge(StepEvent):
    """An attempt has not come back after `after` seconds, so the same was started once more beside it."""

    _says: ClassVar[str] = (
        "{0.step_id}: attempt {0.attempt} of {0.max_attempts} is slow, started once more after {0.after:.3g} s"
    )

    after: float


@dataclass(frozen=True, kw_only=True)
class FallbackUsed(StepEvent):
    """
    A fallback has answered in place of a call that failed, once for each answer; `reason` says why no further attempt
    was made. `attempt` is 0 if nothing was called.
    """

    _says: ClassVar[str] = "{0.step_id}: the fallback answered after {0.error_type} ({0.error_class})"

    error_class: str
    error_type: str
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class CallRejected(Event):
    """
    Nothing was called, because a breaker or a limit turned the call away, once for each such call: `by` is ``breaker``
    or ``limit``, `which` its name. `step_id` is None where no guard was asked.
    """

    level: ClassVar[str] = "debug"

    step_id: str | None = None
    job_id: str | None = None
    job_kind: str | None = None
    item_id: str | None = None
    by: str
    which: str

    def sentence(self) -> str:
        """The event for a person's eye."""
        job = "" if self.job_id is None else f"job {self.job_id} ({self.job_kind}): "
        return f"{job}{self.step_id or 'a call'}: turned away by the {self.by} {self.which}, nothing was called"


@dataclass(frozen=True, kw_only=True)
class CallFinished(Event):
    """
    A call of a guard has ended, while `count_calls` is on: `outcome` is ``succeeded``, ``failed``, or ``unwanted`` for a result
    that `retry_if` still did not want at the end. `duration` is that of the whole call in seconds, with its waits.
    """

    level: ClassVar[str] = "debug"

    step_id: str
    job_id: str | None = None
    job_kind: str | None = None
    item_id: str | None = None
    outcome: str
    attempts: int
    duration: float

    def sentence(self) -> str:
        """The event for a person's eye."""
        attempts = f"{self.attempts} attempt{'' if self.attempts == 1 else 's'}"
        return f"{self.step_id}: {self.outcome} after {self.duration:.3g} s and {attempts}"


@dataclass(frozen=True, kw_only=True)
class HookFailed(Event):
    """
    A hook that watches events has failed with an error of this type; what it watched went on. Told to the other hooks.
    """

    level: ClassVar[str] = "debug"
    _says: ClassVar[str] = "the hook {0.hook} failed with {0.error_type}"

    hook: str
    error_type: str


@dataclass(frozen=True, kw_only=True)
class Throttled(Event):
    """
    The service behind a limit said "too many": told once for a burst. All who share the limit pause for `pause`
    seconds, or at most `width` calls are under way from now on (None: any number).
    """

    level: ClassVar[str] = "warning"

    limit: str
    retry_after: float
    pause: float
    width: int | None

    def sentence(self) -> str:
        """The event for a person's eye."""
        what = f"all pause for {self.pause:.3g} s" if self.pause else f"at most {self.width} calls at a time"
        return f"limit {self.limit}: the service asks for less: {what}"


@dataclass(frozen=True, kw_only=True)
class LimitExceeded(Event):
    """A call got no place at a limit in time, and was not made."""

    level: ClassVar[str] = "warning"
    _says: ClassVar[str] = "limit {0.limit}: no place in time, {0.under_way} under way and {0.waiting} waiting"

    limit: str
    under_way: int
    waiting: int


@dataclass(frozen=True, kw_only=True)
class BreakerEvent(Event):
    """A circuit breaker changed its state."""

    verb: ClassVar[str] = "changed"
    _says: ClassVar[str] = "circuit breaker {0.breaker} {0.verb}: {0.reason}"

    breaker: str
    failure_count: int
    reason: str
    learnt: bool = False  # whether another process has changed the shared circuit, and told that there


@dataclass(frozen=True, kw_only=True)
class CircuitBreakerOpen(BreakerEvent):
    """The circuit opened: calls are rejected until `retry_at`. `threshold` is what tripped it."""

    level: ClassVar[str] = "warning"
    verb: ClassVar[str] = "opened"

    threshold: float
    opened_at: datetime
    retry_at: datetime


@dataclass(frozen=True, kw_only=True)
class CircuitBreakerHalfOpen(BreakerEvent):
    """The circuit admits probes."""

    verb: ClassVar[str] = "is half-open"


@dataclass(frozen=True, kw_only=True)
class CircuitBreakerClosed(BreakerEvent):
    """The circuit works again."""

    verb: ClassVar[str] = "closed"


@dataclass(frozen=True, kw_only=True)
class CircuitBreakerReopened(BreakerEvent):
    """A probe failed: the circuit is open again, until `retry_at`."""

    level: ClassVar[str] = "warning"
    verb: ClassVar[str] = "opened again"

    opened_at: datetime
    retry_at: datetime


@dataclass(frozen=True, kw_only=True)
class RunEvent(Event):
    """Something that happened to a run over items."""

    run_key: str

    def _which(self) -> str:
        return f"{self.pipeline} {self.run_key}"


@dataclass(frozen=True, kw_only=True)
class RunStarted(RunEvent):
    """
    A run began, or goes on: then `finished` items were finished before, or what `unit` says: ``steps`` of a flow. `target` is where its code
    is, as `outlast` takes it, if known.
    """

    finished: int = 0
    target: str | None = None
    unit: str | None = None

    def sentence(self) -> str:
        """The event for a person's eye."""
        return (
            f"run {self._which()} started"
            if not self.finished
            else f"run {self._which()} goes on after {self.finished} {self.unit or 'items'}"
        )


@dataclass(frozen=True, kw_only=True)
class RunFinished(RunEvent):
    """A run ended, for good or until it is resumed; `why` says in a sentence what it came to."""

    status: str
    outcome: str
    reason: str | None
    why: str
    total: int
    succeeded: int
    skipped: int
    dlq: int
    failed: int
    pending: int

    def __post_init__(self) -> None:
        if self.status in _BAD_ENDS:
            self._told_at(_BAD_ENDS[self.status])

    def sentence(self) -> str:
        """The event for a person's eye."""
        return f"run {self._which()} {self.status}: {self.why.removeprefix(f'{self.status}: ')}"


@dataclass(frozen=True, kw_only=True)
class RunPaused(RunEvent):
    """A run was asked to pause: no new item is begun."""

    _says: ClassVar[str] = "run {0.pipeline} {0.run_key} pauses"


@dataclass(frozen=True, kw_only=True)
class FailureBudgetExceeded(RunEvent):
    """
    A larger share of the items failed than is allowed; with input left the run stops, `stopped` says whether it did.
    """

    level: ClassVar[str] = "error"

    rate: float
    budget: float
    processed: int
    failed: int
    stopped: bool

    def sentence(self) -> str:
        """The event for a person's eye."""
        end = "Aborting run to prevent resource waste." if self.stopped else "The input was exhausted already."
        return (
            f"run {self._which()}: failure rate {self.rate:.1%} exceeds the budget of {self.budget:.1%} "
            f"({self.failed} of {self.processed} items failed). {end}"
        )


@dataclass(frozen=True, kw_only=True)
class LeaseLost(RunEvent):
    """Somebody else has taken the run over; this process writes nothing more to it."""

    level: ClassVar[str] = "error"
    _says: ClassVar[str] = "run {0.pipeline} {0.run_key}: lease lost by {0.owner}"

    owner: str


@dataclass(frozen=True, kw_only=True)
class FlowEvent(Event):
    """Something that happened to a step of a flow's run."""

    run_key: str
    step_id: str
    component: str


@dataclass(frozen=True, kw_only=True)
class IdempotencyHit(FlowEvent):
    """
    A step was not executed: the work for its key was done before, at `done_at` by `done_by`, and its outputs are those of
    that time.
    """

    _says: ClassVar[str] = (
        "{0.step_id} was not executed: the work for its key was done at {0.done_at:%Y-%m-%d %H:%M:%S} UTC by {0.done_by}"
    )

    done_at: datetime
    done_by: str


@dataclass(frozen=True, kw_only=True)
class StepArtifactKept(FlowEvent):
    """
    A step has kept something for people, such as the raw answer of a model: `artifact` is its name, `size` its bytes. What it
    says is the user's data, and no part of this. A step in a process of its own keeps things, and does not tell of it.
    """

    level: ClassVar[str] = "debug"
    _says: ClassVar[str] = "attempt {0.attempt} at {0.step_id} has kept {0.artifact!r}, {0.size:,} bytes"

    attempt: int
    artifact: str
    size: int


@dataclass(frozen=True, kw_only=True)
class CompensationEvent(FlowEvent):
    """
    Something that was done is undone: a step of a flow's run, with its `run_key`; or a part of a durable job, with its `job_id`,
    `kind` and `queue`. There `step_id` is the step that has registered it, else the kind, and `component` is the function.
    """

    run_key: str | None = None  # type: ignore[assignment]  # of a flow
    job_id: str | None = None
    kind: str | None = None
    queue: str | None = None


@dataclass(frozen=True, kw_only=True)
class CompensationTriggered(CompensationEvent):
    """A run or a job has failed for good, or is cancelled, and something that has been done is being undone."""

    level: ClassVar[str] = "warning"
    _says: ClassVar[str] = "{0.step_id} is being undone by {0.component}: {0.because}"

    because: str


@dataclass(frozen=True, kw_only=True)
class CompensationCompleted(CompensationEvent):
    """A step, or a part of a job, is undone; it counts as not done."""

    _says: ClassVar[str] = "{0.step_id} is undone"


@dataclass(frozen=True, kw_only=True)
class CompensationFailed(CompensationEvent):
    """A step, or a part of a job, could not be undone: what it has done still stands. The others are undone all the same."""

    level: ClassVar[str] = "error"
    _says: ClassVar[str] = "{0.step_id} could not be undone: {0.error_type} ({0.error_class}): {0.error}"

    error: str
    error_type: str
    error_class: str
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class ItemEvent(Event):
    """An item ended. `run_id` and `pipeline` are None outside of runs."""

    item_id: str
    step_id: str
    attempts: int


@dataclass(frozen=True, kw_only=True)
class ItemSucceeded(ItemEvent):
    """An item came through."""

    level: ClassVar[str] = "debug"
    _says: ClassVar[str] = "{0.step_id}: item {0.item_id} succeeded"

    def __post_init__(self) -> None:
        if loud.get():
            self._told_at("info")


@dataclass(frozen=True, kw_only=True)
class ItemFailed(ItemEvent):
    """An item failed for good at the stage `step_id`; `error` is sanitised."""

    level: ClassVar[str] = "error"
    _says: ClassVar[str] = "{0.step_id}: item {0.item_id} failed with {0.error_type} ({0.error_class}): {0.error}"

    error: str
    error_type: str
    error_class: str


@dataclass(frozen=True, kw_only=True)
class DeadLetterEnqueue(Event):
    """An item that failed for good became a dead letter, with the input of the stage that failed."""

    level: ClassVar[str] = "error"
    _says: ClassVar[str] = "dead letter {0.letter_id}: item {0.item_id} at {0.step_id}: {0.error_type}: {0.error}"

    letter_id: str
    item_id: str
    step_id: str
    error: str
    error_type: str
    error_class: str

    def __post_init__(self) -> None:
        if self.pipeline is not None and not loud.get():  # that the item failed has been told
            self._told_at("info")


@dataclass(frozen=True, kw_only=True)
class DeadLetterReplay(Event):
    """A dead letter was tried again; `status` is ``resolved``, or ``open`` if it failed again."""

    _says: ClassVar[str] = "dead letter {0.letter_id} of item {0.item_id} replayed: {0.status}"

    letter_id: str
    item_id: str
    step_id: str
    status: str


@dataclass(frozen=True, kw_only=True)
class DeadLettersOverThreshold(Event):
    """
    More dead letters are open than somebody wants to be told of: `count` of them, the oldest since `oldest_at`. None is
    refused.
    """

    level: ClassVar[str] = "warning"

    count: int
    threshold: int
    oldest_at: datetime

    def sentence(self) -> str:
        """The event for a person's eye."""
        return f"{self.count:,} dead letters are open, more than {self.threshold:,}; the oldest since {self.oldest_at.isoformat()}"


@dataclass(frozen=True, kw_only=True)
class JobEvent(Event):
    """Something that happened to a durable job of this `kind`. `attempt` counts those that are charged."""

    job_id: str
    kind: str
    queue: str
    attempt: int
    max_attempts: int

    def _which(self) -> str:
        return f"job {self.job_id} ({self.kind})"


@dataclass(frozen=True, kw_only=True)
class JobClaimed(JobEvent):
    """A worker has taken a job and begins with it."""

    level: ClassVar[str] = "debug"

    worker: str

    def sentence(self) -> str:
        """The event for a person's eye."""
        return f"{self._which()}: attempt {self.attempt} of {self.max_attempts} begins"


@dataclass(frozen=True, kw_only=True)
class ArtifactKept(JobEvent):
    """
    The code of a job has kept something for people, such as the raw answer of a model: `artifact` is its name, `size`
    its bytes. What it says is the user's data, and no part of this.
    """

    level: ClassVar[str] = "debug"

    artifact: str
    size: int

    def sentence(self) -> str:
        """The event for a person's eye."""
        return f"{self._which()}: attempt {self.attempt} has kept {self.artifact!r}, {self.size:,} bytes"


@dataclass(frozen=True, kw_only=True)
class JobRequeued(JobEvent):
    """
    An attempt of a job has ended, and another one is due after `delay` seconds. `outcome` is how it ended: ``failed``,
    ``timeout``, ``crashed``, ``released`` (given back, nothing was charged) or ``snoozed``. `error` and `traceback` are
    sanitised; the traceback is also that of the log record.
    """

    level: ClassVar[str] = "warning"

    outcome: str
    error: str
    error_type: str
    error_class: str
    duration: float
    delay: float
    next_run_at: datetime
    traceback: str | None = None

    def __post_init__(self) -> None:
        if self.outcome in {"released", "snoozed"}:
            self._told_at("info")

    def sentence(self) -> str:
        """The event for a person's eye."""
        again = f"again in {self.delay:.3g} s"
        if self.outcome in {"released", "snoozed"}:
            why = f": {self.error}" if self.error else ""
            return f"{self._which()}: {self.outcome}, {again}{why}"
        what = f"{self.error_type} ({self.error_class}): {self.error}"
        return f"{self._which()}: attempt {self.attempt} of {self.max_attempts} failed with {what}; {again}"


@dataclass(frozen=True, kw_only=True)
class JobSucceeded(JobEvent):
    """A job succeeded. Its last attempt took `duration` seconds; `since_enqueued` counts from its enqueueing."""

    level: ClassVar[str] = "debug"

    duration: float
    since_enqueued: float

    def sentence(self) -> str:
        """The event for a person's eye."""
        return f"{self._which()} succeeded after {self.duration:.3g} s"


@dataclass(frozen=True, kw_only=True)
class JobFailed(JobEvent):
    """
    A job failed for good, or an operator has cancelled it while it ran; `reason` says why there is no further attempt.
    `error` and `traceback` are sanitised; the traceback is also that of the log record.
    """

    level: ClassVar[str] = "error"

    error: str
    error_type: str
    error_class: str
    duration: float
    reason: str | None
    traceback: str | None = None

    def __post_init__(self) -> None:
        if self.reason == "cancelled":
            self._told_at("info")

    def sentence(self) -> str:
        """The event for a person's eye."""
        if self.reason == "cancelled":
            return f"{self._which()} was cancelled"
        what = f"{self.error_type} ({self.error_class}): {self.error}"
        return f"{self._which()} failed after attempt {self.attempt} of {self.max_attempts} with {what}; {self.reason}"


@dataclass(frozen=True, kw_only=True)
class ScheduleEvent(Event):
    """Something that happened to the schedule of a `kind` of durable jobs."""

    kind: str
    queue: str


@dataclass(frozen=True, kw_only=True)
class JobScheduled(ScheduleEvent):
    """A job was enqueued because its schedule was due at `tick_at`."""

    level: ClassVar[str] = "debug"

    job_id: str
    tick_at: datetime

    def sentence(self) -> str:
        """The event for a person's eye."""
        return f"{self.kind}: job {self.job_id} enqueued for {self.tick_at.isoformat()}"


@dataclass(frozen=True, kw_only=True)
class TicksMissed(ScheduleEvent):
    """
    Ticks of a schedule, from the first to the last, have no job of their own. The job `job_id` stands for all of them;
    None: they were skipped. If `job_waits`, it was enqueued before and has not begun.
    """

    level: ClassVar[str] = "warning"

    first_at: datetime
    last_at: datetime
    job_id: str | None
    job_waits: bool

    def __post_init__(self) -> None:
        if self.job_waits:
            self._told_at("info")

    def sentence(self) -> str:
        """The event for a person's eye."""
        first, last = self.first_at.isoformat(), self.last_at.isoformat()
        which = f"the tick of {last}" if first == last else f"the ticks from {first} to {last}"
        if self.job_id is None:
            return f"{self.kind}: skipped {which}: it came too late for them"
        waits = ", which has not begun" if self.job_waits else ""
        return f"{self.kind}: one job for {which}: {self.job_id}{waits}"


@dataclass(frozen=True, kw_only=True)
class ScheduleChanged(ScheduleEvent):
    """A schedule was put on record, or another one in the place of the one `before`; it counts from now on."""

    expression: str
    timezone: str
    before: str | None

    def sentence(self) -> str:
        """The event for a person's eye."""
        was = "" if self.before is None else f", no longer {self.before}"
        return f"{self.kind}: due at {self.expression} ({self.timezone}) from now on{was}"


@dataclass(frozen=True, kw_only=True)
class WorkerLost(Event):
    """
    A worker of jobs is gone, and another one has taken its `jobs`: `failed` of them are not tried again. `job_ids` has
    the first twenty. `worker` is empty if it has ended by itself, and code of these jobs was cut off.
    """

    level: ClassVar[str] = "warning"

    app: str
    worker: str
    jobs: int
    failed: int
    job_ids: tuple[str, ...]

    def sentence(self) -> str:
        """The event for a person's eye."""
        verb = "has" if self.failed == 1 else "have"
        failed = f"; {self.failed:,} of them {verb} failed for good" if self.failed else ""
        taken = counted(self.jobs, "job was", "jobs were")
        if not self.worker:  # it has given its lease back, and code of these jobs was cut off
            return f"{taken} taken over from a worker that has ended{failed}"
        return f"the worker {process_of(self.worker)} is gone: {taken} taken from it{failed}"


# Those above from which no other is made, in the order in which they stand there.
EVENTS: dict[str, type[Event]] = {
    one.name: one
    for one in list(globals().values())
    if isinstance(one, type) and issubclass(one, Event) and not one.__subclasses__()
}

# Names under which older documents know an event; filters accept them.
ALIASES: dict[str, str] = {
    "retry_attempt": "step_retry_attempt",
    "stage retry": "step_retry_attempt",
    "step.error.retrying": "step_retry_attempt",
    "step.error.retry_exhausted": "step_retry_exhausted",
    "max_retries": "step_retry_exhausted",
    "step.error.permanent": "step_error_permanent",
    "non-retriable": "step_error_permanent",
    "step.success": "step_success",
    "record_success": "step_success",
    "circuit_breaker_opened": "circuit_breaker_open",
    "dlq enqueue": "dead_letter_enqueue",
    "repo_processing_failed": "item_failed",
    "repo_processing_success": "item_succeeded",
    "FailureBudgetExceeded": "failure_budget_exceeded",
}


def canonical(name: str) -> str:
    """The event's one name, also for an older one."""
    return ALIASES.get(name, name)
