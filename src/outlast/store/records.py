"""
What the store keeps, as values.

Instants that come by the million are integers, microseconds since the epoch; those that people read are aware and in
UTC. The two rows that every attempt makes are named tuples: they cost a third of a frozen dataclass, and a database
takes them as they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from outlast.kernel.aliases import StopReason
    from outlast.store.compensations import CompensationRecord
    from outlast.store.steps import ArtifactRecord

RunStatus: TypeAlias = Literal[
    "running", "paused", "interrupted", "cancelled", "completed", "partial_success", "failed"
]
#: A run over items, a replay of dead letters, or a run of a declared pipeline.
RunKind = Literal["run", "replay", "flow"]
#: `compensate`: be cancelled, and undo what its steps have done.
RunRequest = Literal["pause", "cancel", "compensate"]
ItemStatus: TypeAlias = Literal["succeeded", "skipped", "dlq", "failed"]
AttemptOutcome = Literal["success", "retrying", "failed"]
LetterStatus = Literal["open", "replaying", "resolved", "archived"]
LetterKind = Literal["item", "job", "step", "compensation"]
#: What processes share, the breakers of a run that shares none, as they were last seen, the open breakers of processes that
#: share none, and what webhooks were told.
StateKind = Literal["breaker", "limit", "budget", "watched_breaker", "process_breakers", "pool", "alerts"]
Prunable = Literal["runs", "dead_letters", "events", "jobs", "failed_jobs"]
#: `ready` may be claimed, `waiting` is due later; `alone` has crashed two workers and is claimed by one that has nothing
#: else; `held` is to be done again, but the code of its last attempt still runs. One that has `failed` or is `cancelled`
#: while its code still runs keeps its `worker` until that code has ended.
JobState: TypeAlias = Literal["ready", "waiting", "alone", "held", "processing", "succeeded", "failed", "cancelled"]
#: What people see of it.
JobStatus: TypeAlias = Literal["queued", "processing", "succeeded", "failed", "cancelled"]
JobOutcome: TypeAlias = Literal["succeeded", "failed", "timeout", "crashed", "released", "snoozed"]

#: Statuses after which a run is over, until it is resumed.
ENDED: frozenset[str] = frozenset({"cancelled", "completed", "partial_success", "failed"})
#: Where a run may go. A new one is running. Whatever is not cancelled can be resumed; a run whose process has died is
#: still called running, hence running to running. A replay that brings items home changes how a run has ended, and a
#: sink that could not keep an output makes it one to be resumed.
RUN_MOVES: Mapping[RunStatus, frozenset[RunStatus]] = {
    "running": frozenset({"running", "paused", "interrupted", "cancelled", "completed", "partial_success", "failed"}),
    "paused": frozenset({"running", "cancelled"}),
    "interrupted": frozenset({"running", "cancelled"}),
    "completed": frozenset({"running", "interrupted", "partial_success", "failed"}),
    "partial_success": frozenset({"running", "interrupted", "cancelled", "completed", "failed"}),
    "failed": frozenset({"running", "interrupted", "cancelled", "completed", "partial_success"}),
    "cancelled": frozenset(),
}
#: Where a dead letter may go. A resolved one stays.
LETTER_MOVES: Mapping[str, frozenset[str]] = {
    "open": frozenset({"replaying", "resolved", "archived"}),
    "replaying": frozenset({"open", "resolved"}),
    "archived": frozenset({"open"}),
    "resolved": frozenset(),
}

#: Where a job may go. A new one is ready or waiting. Only an operator's requeue leaves `failed` and `cancelled`.
JOB_MOVES: Mapping[JobState, frozenset[JobState]] = {
    "ready": frozenset({"processing", "cancelled"}),
    "waiting": frozenset({"ready", "alone", "cancelled"}),
    "alone": frozenset({"processing", "cancelled"}),
    "held": frozenset({"ready", "waiting", "alone", "cancelled"}),
    "processing": frozenset({"succeeded", "failed", "cancelled", "ready", "waiting", "alone", "held"}),
    "succeeded": frozenset(),
    "failed": frozenset({"ready", "held"}),
    "cancelled": frozenset({"ready", "held"}),
}
#: The states of a job that is over.
JOB_ENDS: frozenset[JobState] = frozenset({"succeeded", "failed", "cancelled"})
#: The states behind each status.
JOB_STATES: Mapping[JobStatus, tuple[JobState, ...]] = {
    "queued": ("ready", "waiting", "alone", "held"),
    "processing": ("processing",),
    "succeeded": ("succeeded",),
    "failed": ("failed",),
    "cancelled": ("cancelled",),
}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST, _LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def to_us(instant: datetime) -> int:
    """
    Microseconds since the epoch, exactly.

    >>> to_us(datetime(2026, 11, 15, tzinfo=UTC))
    1794700800000000
    """
    if instant.tzinfo is None:
        message = f"expected an aware instant, got: {instant.isoformat()}. Say which zone it is in, for example with tzinfo=UTC."
        raise ValueError(message)
    return (instant - _EPOCH) // _MICROSECOND


def from_us(microseconds: int) -> datetime:
    """
    The instant, aware and in UTC; one beyond the calendar is its first or last. A damaged row must not keep others from
    being read.

    >>> from_us(10**18).isoformat()
    '9999-12-31T23:59:59.999999+00:00'
    """
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return _LAST if microseconds > 0 else _FIRST


def storable(text: str) -> str:
    r"""
    The text as every database can hold it: no NUL, no half of a surrogate pair.

    >>> storable("zero \0, half \ud800")
    'zero \ufffd, half ?'
    """
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


CODED = ("\ufffd'", '\ufffd"')  # begins a key that stands for another one


def coded(key: str) -> str:
    r"""
    The key in letters that every database can hold. Two keys are never coded alike.

    >>> coded("zero \0, half \ud800")
    "\ufffd'zero \\x00, half \\ud800'"
    """
    return f"\ufffd{key!a}"


def key_text(key: str) -> str:
    """The key as it is on record: itself, or coded if no database can hold it. What is on record is its own text."""
    return key if key.isprintable() or storable(key) == key else coded(key)


@dataclass(frozen=True, slots=True)
class StageMark:
    """One stage as it was when the run began, to notice that the code has changed."""

    name: str
    version: str = "1"
    checkpoint: bool = False


class ItemCounts:
    """What follows from counts of items: `total` were read, and the others count those that are finished."""

    __slots__ = ()
    total: int
    succeeded: int
    skipped: int
    dlq: int
    failed: int

    @property
    def finished(self) -> int:
        """Items that have ended, one way or another."""
        return self.succeeded + self.skipped + self.dlq + self.failed

    @property
    def success_rate(self) -> float:
        """Succeeded items as a share of those that were not skipped; 1.0 if there are none."""
        wanted = self.total - self.skipped
        return self.succeeded / wanted if wanted else 1.0


@dataclass(frozen=True, slots=True)
class RunCounts(ItemCounts):
    """`total` items were read; the others count those that are finished. `degraded` is part of `succeeded`."""

    total: int = 0
    succeeded: int = 0
    skipped: int = 0
    dlq: int = 0
    failed: int = 0
    degraded: int = 0

    @property
    def pending(self) -> int:
        """Items that were read and have not ended."""
        return max(0, self.total - self.finished)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """
    A run. `number` is its name inside the store, `passes` how often it was started or resumed, `wanted` what somebody
    asked it to do.

    `sink_at` says how its sink is opened again, `replayed_by` which replay has opened it and not finished with it.
    `elsewhere` are its items that replays have brought into other sinks: how many, by the name of the sink.
    """

    id: str
    number: int
    pipeline: str
    run_key: str
    kind: RunKind
    status: RunStatus
    reason: str | None
    why: str
    stages: tuple[StageMark, ...]
    counts: RunCounts
    source_exhausted: bool
    spent: Mapping[str, float]
    passes: int
    wanted: RunRequest | None
    sink: str | None
    started_at: datetime
    finished_at: datetime | None
    identity: Mapping[str, Any] | None = None  # what makes it itself; None if it began before that was recorded
    sink_at: str | None = None
    replayed_by: str | None = None
    elsewhere: Mapping[str, int] = field(default_factory=dict)

    @property
    def job(self) -> int | None:
        """The job that this run of a flow is the work of."""
        return _job_in(self.identity) if self.kind == "flow" and self.identity else None

    @property
    def told(self) -> str:
        """What is said of it, with what must not be taken for granted while a replay has its sink."""
        # Lines are in their file before they count; rows of a table and of a Parquet file come there after that.
        late = (self.sink or "").startswith("table ") or (self.sink or "").endswith((".parquet", ".pq"))
        if self.replayed_by is None or self.kind == "replay" or not late:
            return self.why
        return f"{self.why}. {_OPEN}" if self.why else _OPEN


_OPEN = (
    "A replay has its sink open: what that has brought may not be there before it ends, or if it has died, before the next replay or "
    "resume"
)


@dataclass(frozen=True, slots=True)
class Lease:
    """
    The right to work on something and to write for it, until another owner takes it. `token` grows with every owner;
    every write carries it. `before` is the previous owner, if that did not give the lease back.
    """

    kind: str
    key: str
    token: int
    owner: str
    until: datetime
    ttl: float
    before: str = ""


def shard_key(run_number: int, shard: int) -> str:
    """A run's shard as the key of a lease."""
    return f"{run_number}/{shard}"


def shard_of(key: str) -> tuple[int, int]:
    """
    The run's number and the shard that the key of a lease means.

    >>> shard_of(shard_key(17, 0))
    (17, 0)
    """
    number, _, shard = key.partition("/")
    return int(number), int(shard)


class ShardState(NamedTuple):
    """
    How far a shard has come: items read, committed bytes of the sink with their mark, and whether the source has ended.
    """

    read: int
    sink_offset: int | None
    source_exhausted: bool
    sink_mark: str | None = None


class SinkClaim(NamedTuple):
    """What another run has committed to a sink of the same address, and whether that run is the newer one."""

    pipeline: str
    run_key: str
    offset: int
    mark: str | None
    newer: bool


class Failure(NamedTuple):
    """
    How an item failed, beside the sentence in its row: why it was not tried again, its fingerprint, and the class and
    type of its error.
    """

    stop_reason: StopReason | None
    fingerprint: str | None
    error_class: str | None
    error_type: str | None


class ItemRow(NamedTuple):
    """
    A finished item. `stage` is the last it was in, by number; `took_us` is from its first attempt to its end. `output`
    holds the encoded output, or the particulars of the failure. `waits` are the waits that no recorded attempt
    followed: the item ended while it waited, or successful attempts are not recorded.
    """

    seq: int
    key: str
    status: ItemStatus
    stage: int
    attempts: int
    degraded: bool
    reason: str | None
    warnings: tuple[str, ...]
    spent: Mapping[str, float]
    output: bytes | None
    started_us: int
    took_us: int
    waits: Mapping[str, int] | None = None
    failure: Failure | None = None

    @property
    def stop_reason(self) -> StopReason | None:
        """Why a failed item was not tried again; None for others, and for those from before this was on record."""
        return None if self.failure is None else self.failure.stop_reason


class AttemptRow(NamedTuple):
    """
    One attempt at one stage of one item. `pass_` is the pass of the run that made it; older versions put the token of
    the run's lease there, which grows faster.

    `waits` is what the item waited for before it, in microseconds by reason: ``retry`` (the backoff after an error),
    ``retry_after`` (as long as the service asked), ``result`` (`retry_if` wanted another one), ``limit NAME``,
    ``throttled NAME`` (the service behind that limit asked for a pause), ``breaker NAME``, ``retry_budget NAME``,
    ``snooze``, ``checkpoint`` (until that was on record). What is left between two attempts is the wait for a slot.
    `stop_reason` is why no further attempt followed a failed one.
    """

    seq: int
    stage: int
    pass_: int
    number: int
    outcome: AttemptOutcome
    started_us: int
    took_us: int
    error_class: str | None = None
    error_type: str | None = None
    error: str | None = None
    delay_us: int | None = None
    spent: Mapping[str, float] | None = None
    waits: Mapping[str, int] | None = None
    stop_reason: StopReason | None = None


class Checkpoint(NamedTuple):
    """What a stage made of an item that is not finished yet."""

    seq: int
    key: str
    stage: int
    version: str
    output: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRow:
    """
    What could not be saved, with all that is needed to try again; it outlives its run. `original` is the payload before
    it was edited.
    """

    id: str
    run: str | None  # the run's id
    seq: int | None
    pipeline: str
    stage: str
    item_key: str
    kind: LetterKind = "item"
    payload: bytes = field(repr=False)
    error: str
    error_type: str
    error_class: str
    tier: str
    fingerprint: str
    attempts: int
    first_failed_us: int
    last_attempt_us: int
    created_us: int
    status: LetterStatus = "open"
    replays: int = 0
    reason: str | None = None  # why it was moved last
    metadata: Mapping[str, Any] = field(default_factory=dict)
    original: bytes | None = field(default=None, repr=False)
    updated_us: int = field(default=0, compare=False)  # when it was made, moved or edited last; the store says it
    stop_reason: StopReason | None = None  # why there was no further attempt, the last time it failed
    claimed_by: str | None = None  # the id of the replay that has it, or had it last

    @property
    def of_job(self) -> bool:
        """As `is_of_job`."""
        return is_of_job(self)


def is_of_job(letter: Any) -> bool:
    """
    Whether a dead letter, as a row or as people see it, is of a durable job. Programs whose letters were imported call
    theirs jobs, too: a pipeline that has the name of such a program replays them.
    """
    return letter.kind == "job" and "queue" in letter.metadata


class Claimant(NamedTuple):
    """
    A replay that has claimed dead letters: the `claim` as the letters hold it, and the run of the replay with its
    lease, if there are any.
    """

    claim: str
    run: str | None
    number: int | None
    lease: Lease | None


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """Dead letters with one fingerprint at one stage; error and samples are those of the newest."""

    id: str
    pipeline: str
    stage: str
    error_class: str
    error_type: str
    message: str
    count: int
    sample_keys: tuple[str, ...]
    first_seen_at: datetime
    last_seen_at: datetime


@dataclass(frozen=True, slots=True)
class LetterStat:
    """How many dead letters of one status a stage has, and when the oldest and the newest of them were made."""

    pipeline: str
    stage: str
    status: LetterStatus
    count: int
    oldest_at: datetime
    newest_at: datetime


@dataclass(frozen=True, slots=True)
class EventRow:
    """
    An event on record. `id` makes writing it twice harmless; `number` is its place in the order, given by the store.
    """

    id: str
    name: str
    at_us: int
    run: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0


@dataclass(frozen=True, slots=True)
class SharedState:
    """What processes share under a name, such as a circuit. `version` grows with every change."""

    name: str
    version: int
    data: Mapping[str, Any]
    changed_at: datetime


UNTRIED = "not tried: "  # how the reason of an item begins whose dead letter could not be replayed


class LetterFailure(NamedTuple):
    """
    How the work of a dead letter failed when it was replayed; `attempts` were made this time, the first of them failed
    at `first_us`. `begins` is the stage whose input the letter keeps, which need not be the one that failed now.
    """

    stage: str
    error: str
    error_type: str
    error_class: str
    tier: str
    fingerprint: str
    attempts: int
    first_us: int
    stop_reason: StopReason | None = None
    begins: str | None = None


class Settled(NamedTuple):
    """
    What came of a dead letter in a replay: ``resolved``; or ``open`` again, with the `failure` of this time; or open
    and untried, with the `reason`. `seq` is the number of its item in the replay.
    """

    letter: str
    status: LetterStatus
    failure: LetterFailure | None = None
    reason: str | None = None
    seq: int | None = None


class Mended(NamedTuple):
    """
    An item that was a dead letter and that a replay has finished. `seq` is its number in its own run, `replayed` its
    number in the replay.
    """

    seq: int
    replayed: int
    status: ItemStatus
    degraded: bool
    reason: str | None
    warnings: tuple[str, ...]
    output: bytes | None


class FailedAgain(NamedTuple):
    """An item that failed in a replay again and stays a dead letter. Its numbers are those of `Mended`."""

    seq: int
    replayed: int
    reason: str | None
    output: bytes | None
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Homecoming:
    """
    What a batch of a replay changes in the run that its dead letters come from. The replay has a lease on that run.

    `judge` gets that run's present standing, its counts before and after the batch, and whether its source has ended.
    It returns the run's new standing.
    """

    lease: Lease
    items: Sequence[Mended]
    failed: Sequence[FailedAgain] = ()
    sink_offset: int | None
    sink_mark: str | None = None
    # Items that came home and could not be kept: their numbers there and in the replay.
    undone: Sequence[tuple[int, int]] = ()
    judge: Callable[[Standing, RunCounts, RunCounts, bool], Standing]


class Standing(NamedTuple):
    """Status, reason and sentence of a run; `elsewhere` as in its record."""

    status: RunStatus
    reason: str | None
    why: str
    elsewhere: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """
    What one transaction writes. `read` and `sink_offset` are absolute and never shrink; `sink_mark` is the mark of the
    sink at its offset.

    `resolved` ends replays of dead letters, and `homes` says what that means for the runs they come from. `undone` are
    the numbers of items that are on record as succeeded although the sink could not keep their outputs. Their rows are
    deleted first; `items` may contain them again.
    """

    items: tuple[ItemRow, ...] | list[ItemRow] = ()
    attempts: tuple[AttemptRow, ...] | list[AttemptRow] = ()
    checkpoints: tuple[Checkpoint, ...] | list[Checkpoint] = ()
    dead_letters: tuple[DeadLetterRow, ...] | list[DeadLetterRow] = ()
    resolved: tuple[Settled, ...] | list[Settled] = ()
    homes: tuple[Homecoming, ...] | list[Homecoming] = ()
    read: int = 0
    sink_offset: int | None = None
    sink_mark: str | None = None
    source_exhausted: bool = False
    undone: tuple[int, ...] | list[int] = ()


# -- jobs --------------------------------------------------------------------------------------------------------------


class NewJob(NamedTuple):
    """A job to be enqueued. `version` is that of its payload; the larger `priority` is claimed first."""

    queue: str
    kind: str
    version: int
    priority: int
    delay_us: int
    payload: bytes
    unique_key: str | None = None


class AlikeJobs(Sequence[NewJob]):
    """Jobs to be enqueued that differ in their payloads only: like one of them."""

    def __init__(self, like: NewJob, payloads: list[bytes]) -> None:
        self.like = like
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, place: int) -> NewJob: ...
    @overload
    def __getitem__(self, place: slice) -> AlikeJobs: ...
    def __getitem__(self, place: int | slice) -> NewJob | AlikeJobs:
        if isinstance(place, slice):
            return AlikeJobs(self.like, self.payloads[place])
        return self.like._replace(payload=self.payloads[place])


class Enqueued(NamedTuple):
    """
    The id of a job; `new` is False for the job that had the unique key already. `at_us` is when it was enqueued, where
    another job may have, or get, its id: SQLite gives that of a transaction which is rolled back out again.
    """

    id: int
    new: bool
    at_us: int | None = None


#: What workers serve that run flows.
FLOW = "outlast.flow"
#: How the kind of a job begins that runs a flow; the flow's name follows. So a flow and a job may have one name.
OF_FLOW = "flow:"
#: The kind that a worker must serve to do a job, in SQL.
SERVED_KIND = f"case when substr(kind, 1, {len(OF_FLOW)}) = '{OF_FLOW}' then '{FLOW}' else kind end"


def served_kind(kind: str) -> str:
    """
    The kind that a worker must serve to do a job of this kind.

    >>> served_kind("flow:trip"), served_kind("mail")
    ('outlast.flow', 'mail')
    """
    return FLOW if kind.startswith(OF_FLOW) else kind


def job_of_run(kind: str, identity: str | None) -> int | None:
    """The job that a flow's run is the work of, as it is stored with the run; None of other runs."""
    return _job_in(json.loads(identity)) if kind == "flow" and identity else None


def _job_in(identity: Mapping[str, Any]) -> int | None:
    flow = identity.get("flow")
    job = flow.get("job") if isinstance(flow, dict) else None
    number = job.get("id") if isinstance(job, dict) else None
    return int(number) if number is not None and str(number).isdecimal() else None


def pipeline_of_kind(kind: str) -> str:
    """
    The pipeline that dead letters and events of such a job name: the flow, as those of its steps do.

    >>> pipeline_of_kind("flow:trip"), pipeline_of_kind("mail")
    ('trip', 'mail')
    """
    return kind.removeprefix(OF_FLOW)


class ClaimedJob(NamedTuple):
    """
    A job as its worker gets it. `attempts` counts those that are charged, this one included, and `made` all of them:
    the number of this attempt in the history. `previous_us` is the newest delay, `began_us` the first claim. The error is
    that of the attempt before.
    """

    id: int
    kind: str
    version: int
    queue: str
    priority: int
    payload: bytes
    token: int
    attempts: int
    made: int
    crashes: int
    previous_us: int | None
    snoozed_us: int | None
    enqueued_us: int
    began_us: int
    claimed_us: int
    error: str | None = None
    error_type: str | None = None
    error_class: str | None = None


class JobEnd(NamedTuple):
    """
    How one claimed attempt ended, and what becomes of the job: `state`, due after `delay_us` if it waits or is held.

    An attempt that is not `charged` does not count: it was released, snoozed, or kept out by an open breaker. `letter`
    is the dead letter of a failed job; if the job has one already, that one is opened again with this failure. `running`
    says that its code goes on: the job keeps its worker until `release_held`, and nobody begins it before that.
    `traceback` is where it failed, redacted and bounded.
    """

    id: int
    token: int
    number: int
    state: Literal["succeeded", "failed", "cancelled", "ready", "waiting", "alone", "held"]
    outcome: JobOutcome
    started_us: int
    took_us: int
    delay_us: int = 0
    charged: bool = True
    error: str | None = None
    error_type: str | None = None
    error_class: str | None = None
    stop_reason: StopReason | None = None
    result: bytes | None = None
    unique_for_us: int | None = None
    letter: DeadLetterRow | None = None
    running: bool = False
    traceback: str | None = None


class Turn(NamedTuple):
    """
    What a turn did: the ids of ends that were late and changed nothing, the jobs it claimed, and the ids of jobs that
    were to go on and are cancelled instead, because somebody has asked for it.
    """

    lost: tuple[int, ...]
    claimed: list[ClaimedJob]
    cancelled: tuple[int, ...] = ()


class Orphan(NamedTuple):
    """A job whose worker is gone; `crashes` counts this one too. `swept_us` is when that was seen."""

    id: int
    kind: str
    version: int
    queue: str
    payload: bytes
    token: int
    attempts: int
    made: int
    crashes: int
    previous_us: int | None
    enqueued_us: int
    began_us: int
    claimed_us: int
    worker: str
    swept_us: int


class Rescue(NamedTuple):
    """What becomes of an orphan."""

    state: Literal["ready", "waiting", "alone", "failed"]
    delay_us: int = 0
    error: str | None = None
    error_type: str | None = None
    error_class: str | None = None
    stop_reason: StopReason | None = None
    letter: DeadLetterRow | None = None


class Rescued(NamedTuple):
    """A job that a sweep took from a worker that is gone; `held` ones had only to be released."""

    id: int
    kind: str
    queue: str
    state: JobState
    crashes: int
    worker: str
    owner: str
    held: bool = False


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as it is on record."""

    id: int
    queue: str
    kind: str
    version: int
    state: JobState
    priority: int
    due_us: int
    payload: bytes = field(repr=False)
    unique_key: str | None
    enqueued_us: int
    token: int
    worker: str | None
    claimed_us: int | None
    began_us: int | None
    attempts: int
    made: int
    crashes: int
    previous_us: int | None
    snoozed_us: int | None
    wanted: Literal["cancel"] | None
    error: str | None
    error_type: str | None
    error_class: str | None
    stop_reason: StopReason | None
    result: bytes | None = field(repr=False)
    ended_us: int | None
    unique_until_us: int | None
    letter: str | None
    progress: tuple[float, float | None, str] | None  # of the newest attempt: done, total and a note

    @property
    def status(self) -> JobStatus:
        return "queued" if self.state in JOB_STATES["queued"] else self.state  # type: ignore[return-value]


class JobAttempt(NamedTuple):
    """
    One attempt of a job, on record once it has ended. `worker` is the key of the worker's lease; `traceback` where it
    failed.
    """

    job: int
    number: int
    token: int
    worker: str | None
    started_us: int
    took_us: int
    outcome: JobOutcome
    error_class: str | None
    error_type: str | None
    error: str | None
    stop_reason: StopReason | None
    next_run_us: int | None
    traceback: str | None = None


class JobChangeRow(NamedTuple):
    """What an operator did to a job or, in its dead letter, to its arguments, and when; who and why, as far as it was said."""

    at_us: int
    change: Literal["requeued", "cancelled", "edited", "forgot steps"]
    by: str
    reason: str


class WholeJob(NamedTuple):
    """A job with everything on record of it that is small, read at one instant: without the contents of its artifacts."""

    row: JobRow
    attempts: list[JobAttempt]
    changes: list[JobChangeRow]
    compensations: list[CompensationRecord]
    artifacts: list[ArtifactRecord]


class QueueState(NamedTuple):
    """
    A queue: how many jobs are due, are due later, are processed; whether it is paused; and for how long the oldest of
    those that may be claimed has been due. Held jobs are due or due later, and may not be claimed. `undo` are jobs that have
    ended and are to be undone, or are being undone.
    """

    queue: str
    queued: int
    scheduled: int
    processing: int
    paused: bool
    oldest_wait_us: int | None
    undo: int = 0


class Idle(NamedTuple):
    """
    What is left to do: jobs that are due, that are processed (or held), that are due later, and when the first of
    those is. `due` counts no further than 1,000; `later` is counted only if nothing else is left. `now_us` is when this
    was seen. `alone`: some of those that are due must run with nothing beside them. `undo` are ended jobs that are to be undone
    now; those that are being undone count as processed, and those that are to be later as due later.
    """

    due: int
    processing: int
    later: int
    next_due_us: int | None
    now_us: int = 0
    alone: bool = False
    undo: int = 0


class WorkerKinds(NamedTuple):
    """What a worker serves: its queues (None: all), and its kinds, each with the newest version of a payload it takes."""

    queues: tuple[str, ...] | None
    kinds: Mapping[str, int]


class WorkerState(NamedTuple):
    """
    A worker as its lease tells: until when it is alive if it does not renew it, and how many jobs it has. What it
    `serves` is not known of one from before this was recorded.
    """

    key: str
    owner: str
    until: datetime
    ttl: float
    alive: bool
    jobs: int
    serves: WorkerKinds | None = None


class ScheduleRow(NamedTuple):
    """
    The schedule of a kind of jobs, as it was declared last, by a worker that began at `declared_us`. Ticks after
    `since_us` count. `seen_us` is when a worker last looked that declares it so. `tick_us` is the newest tick on record,
    `job` the newest job that was enqueued for one, and `next_us` when the next tick is due.
    """

    kind: str
    expression: str
    timezone: str
    missed: Literal["once", "skip"]
    declared_us: int
    since_us: int
    seen_us: int
    tick_us: int | None
    job: int | None
    next_us: int | None
