"""
What is counted, whoever keeps the numbers: the metrics as a table, what an event adds to them, and labels that stay
few.

A label is a name that somebody chose (a step, a tier, a breaker), never a message, an attempt number or an argument.
Names can be made up without end too, so each label of each metric takes `MOST` different values; what comes later is
counted as ``other``.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakSet

from outlast.kernel.redact import in_json
from outlast.observe import events as told
from outlast.observe import subscribe, watch
from outlast.observe.figures import QueueBacklog, figures_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from outlast.observe import Hook
    from outlast.observe.events import Event
    from outlast.observe.figures import Backlog, JobTally

MOST: Final = 1000  # values of one label of one metric
OTHER: Final = "other"
WINDOW: Final = 3600.0  # seconds before now: of the jobs that ended in them, figures are told
STATES: Final = ("closed", "half_open", "open")


class Metric(NamedTuple):
    """A counter of events, or a gauge that is 1 for what holds now and 0 for what does not."""

    name: str
    labels: tuple[str, ...]
    about: str
    kind: Literal["counter", "gauge"] = "counter"
    asked: bool = False  # its value is asked for when somebody reads it, and told by no event


RETRIES = Metric(
    "pipeline_retry_attempts_total",
    ("tier", "step_name"),
    "Attempts that failed and were followed by another one, by the tier of the failure.",
)
SUCCESSES = Metric(
    "pipeline_retry_success_total",
    ("tier", "step_name"),
    "Calls that succeeded after at least one retry, by the tier of the last failure.",
)
EXHAUSTED = Metric(
    "pipeline_retry_exhausted_total",
    ("tier", "step_name"),
    "Calls that gave up on an error worth retrying, by the tier of the last failure.",
)
PERMANENT = Metric(
    "outlast_permanent_errors_total",
    ("error_class", "step_name"),
    "Calls that ended with an error that their policy does not retry.",
)
TIMEOUTS = Metric(
    "outlast_attempt_timeouts_total",
    ("scope", "step_name"),
    "Attempts that ran out of time, by whose limit it was: the attempt's own or the total.",
)
REFUSALS = Metric(
    "outlast_retry_budget_refusals_total",
    ("budget",),
    "Retries that a retry budget did not grant.",
)
HEDGES = Metric(
    "outlast_hedges_total",
    ("step_name",),
    "Attempts that were slow and got a second one beside them.",
)
FALLBACKS = Metric(
    "outlast_fallbacks_total",
    ("error_class", "step_name"),
    "Answers that a fallback gave in place of a call that failed, by what it failed with.",
)
REJECTED = Metric(
    "outlast_calls_rejected_total",
    ("by", "which", "step_name"),
    "Calls that a breaker or a limit turned away, so that nothing was called.",
)
CALLS = Metric(
    "outlast_calls_total",
    ("outcome", "step_name"),
    "Calls of guards by outcome (succeeded, failed, unwanted), while `outlast.observe.count_calls` is on.",
)
CALL_SECONDS = Metric(
    "outlast_call_seconds_total",
    ("outcome", "step_name"),
    "Seconds that calls of guards took, with their waits, added up, while `outlast.observe.count_calls` is on.",
)
HOOKS = Metric(
    "outlast_hook_failures_total",
    ("hook",),
    "Failures of hooks that watch events; what they watched went on.",
)
THROTTLED = Metric(
    "outlast_limit_throttled_total",
    ("limit",),
    "Bursts of refusals by the service behind a limit.",
)
LATE = Metric(
    "outlast_limit_exceeded_total",
    ("limit",),
    "Calls that got no place at a limit in time.",
)
ITEMS = Metric(
    "outlast_items_total",
    ("pipeline", "status"),
    "Items that succeeded or failed, of runs and of map.",
)
RUNS = Metric(
    "outlast_runs_total",
    ("pipeline", "status"),
    "Passes of runs that began, paused, were stopped by a bound, lost their lease or ended, by what became of them.",
)
STEPS_UNDONE = Metric(
    "outlast_compensations_total",
    ("pipeline", "status"),
    "Steps of flows, and parts of jobs, that were being undone (triggered), are undone (completed), or could not be (failed).",
)
KEY_HITS = Metric(
    "outlast_idempotency_hits_total",
    ("pipeline", "step_name"),
    "Steps of flows that were not executed, because the work for their key was done before.",
)
LETTERS = Metric(
    "outlast_dead_letters_total",
    ("pipeline", "status"),
    "Dead letters that were made (open), and those that were replayed (resolved, or open again as reopened).",
)
OPEN_LETTERS = Metric(
    "outlast_dead_letters_open",
    ("app", "pipeline"),
    "Dead letters that are open now, of apps that this process has opened the store of; the store is asked when the metric is read.",
    "gauge",
    asked=True,
)
OVER = Metric(
    "outlast_dead_letters_over_threshold_total",
    ("threshold",),
    "Times that more dead letters than the threshold were found open.",
)
TRANSITIONS = Metric(
    "outlast_breaker_transitions_total",
    ("breaker", "state"),
    "Changes of a circuit breaker, by the state it changed to.",
)
STATE = Metric(
    "outlast_breaker_state",
    ("breaker", "state"),
    "1 for the state that a circuit breaker is in, 0 for the others, as far as this process knows.",
    "gauge",
)
JOBS = Metric(
    "outlast_jobs_total",
    ("kind", "status"),
    "Jobs that were claimed, and what became of them: succeeded, failed for good, requeued after an attempt that failed, released (given back), snoozed or cancelled.",
)
JOB_SECONDS = Metric(
    "outlast_job_success_seconds_total",
    ("kind",),
    "Seconds from the enqueueing of jobs to their success, added up, with every delay that was asked for.",
)
JOBS_ENDED = Metric(
    "outlast_jobs_ended",
    ("app", "kind", "queue", "status"),
    "Jobs on record that have ended within the last hour, by how: succeeded, failed or cancelled. The store is asked when the metric is read, at most every five seconds; so for the next six.",
    "gauge",
    asked=True,
)
JOB_RETRY_RATE = Metric(
    "outlast_job_retry_rate",
    ("app", "kind", "queue"),
    "Of the jobs that ended (succeeded or failed) within the last hour, the share that took more than one attempt.",
    "gauge",
    asked=True,
)
JOB_FAILURE_RATE = Metric(
    "outlast_job_failure_rate",
    ("app", "kind", "queue"),
    "Of the jobs that ended within the last hour, the share that failed for good.",
    "gauge",
    asked=True,
)
JOB_MEAN_SUCCESS = Metric(
    "outlast_job_success_seconds_mean",
    ("app", "kind", "queue"),
    "Seconds from when a job was first due to its success, on average of the jobs that succeeded within the last hour. A delay that was asked for is not in it.",
    "gauge",
    asked=True,
)
JOB_MEAN_DELAY = Metric(
    "outlast_job_delay_seconds_mean",
    ("app", "kind", "queue"),
    "Seconds that jobs were asked to wait, when they were enqueued or by a `Snooze`, on average of the jobs that succeeded within the last hour.",
    "gauge",
    asked=True,
)
JOB_MEAN_BACKOFF = Metric(
    "outlast_job_backoff_seconds_mean",
    ("app", "kind", "queue"),
    "Seconds of delay before retries, on average of the jobs that succeeded within the last hour.",
    "gauge",
    asked=True,
)
JOB_MEAN_WAIT = Metric(
    "outlast_job_wait_seconds_mean",
    ("app", "kind", "queue"),
    "Seconds that due jobs waited for a worker, on average of the jobs that succeeded within the last hour.",
    "gauge",
    asked=True,
)
JOB_SCHEMA_SHARE = Metric(
    "outlast_job_schema_failure_share",
    ("app", "kind", "queue"),
    "Of the jobs that failed within the last hour, the share that failed on the output of a model: `invalid_output`, or a failed validation of an attempt that has kept an artifact or of a step after an `llm.caller`.",
    "gauge",
    asked=True,
)
JOB_ARTIFACTS = Metric(
    "outlast_job_artifacts",
    ("app", "kind", "queue"),
    "What the code of jobs has kept within the last hour, such as raw output, whatever became of them.",
    "gauge",
    asked=True,
)
JOB_AMPLIFICATION = Metric(
    "outlast_job_retry_amplification",
    ("app", "kind", "queue"),
    "Attempts for each job that ended within the last hour.",
    "gauge",
    asked=True,
)
JOBS_QUEUED = Metric(
    "outlast_jobs_queued",
    ("app", "queue"),
    "Jobs on record that are due and that nobody works on, as `outlast jobs stats` counts them; also one that timed out while its code still runs, which starts when that has ended. The store is asked when the metric is read, at most every five seconds; so for the next five.",
    "gauge",
    asked=True,
)
JOBS_SCHEDULED = Metric(
    "outlast_jobs_scheduled", ("app", "queue"), "Jobs on record that are due later.", "gauge", asked=True
)
JOBS_PROCESSING = Metric(
    "outlast_jobs_processing", ("app", "queue"), "Jobs on record that workers work on now.", "gauge", asked=True
)
OLDEST_WAIT = Metric(
    "outlast_jobs_oldest_wait_seconds",
    ("app", "queue"),
    "For how long the oldest of the jobs that may start has been due; 0 if there is none.",
    "gauge",
    asked=True,
)
QUEUE_PAUSED = Metric(
    "outlast_queue_paused", ("app", "queue"), "1 for a queue that is paused, 0 for others.", "gauge", asked=True
)
WORKERS = Metric(
    "outlast_workers_alive",
    ("app",),
    "Workers on record whose lease has not run out, of every process and host.",
    "gauge",
    asked=True,
)
ARTIFACTS = Metric(
    "outlast_artifacts_total",
    ("kind",),
    "Artifacts that jobs and steps of flows have kept, such as raw answers of models, by the kind of the job or the component.",
)
SCHEDULES = Metric(
    "outlast_schedules_total",
    ("kind", "status"),
    "What schedules of jobs have done: job_scheduled (a job for its tick), ticks_missed (ticks without a job of their own) and schedule_changed.",
)
WORKERS_LOST = Metric(
    "outlast_workers_lost_total",
    ("app",),
    "Workers of jobs that were found dead, by the process that took their jobs over.",
)
# In the order in which they stand above.
METRICS: Final = tuple(one for one in list(globals().values()) if isinstance(one, Metric))

# Of the command `outlast metrics` alone: nothing counts them while it happens.
GOES_DOWN: Final = "Goes down when retention deletes what is over."
RECORDED: Final = (
    Metric("outlast_runs_on_record", ("app", "pipeline", "status"), f"Runs by status. {GOES_DOWN}", "gauge"),
    Metric(
        "outlast_items_on_record",
        ("app", "pipeline", "status"),
        f"Items of runs by what became of them: succeeded, skipped, dlq, failed; pending are read and not over. Each round of a step with for_each is a run: rows that it takes over count in it, too. {GOES_DOWN}",
        "gauge",
    ),
    Metric(
        "outlast_steps_on_record",
        ("app", "pipeline", "deed", "state"),
        f"Steps of flows (deed do), and what undoes them (deed undo) once that was begun, by state. {GOES_DOWN}",
        "gauge",
    ),
    Metric(
        "outlast_jobs_on_record",
        ("app", "kind", "queue", "status"),
        f"Jobs by status: queued, processing, succeeded, failed, cancelled. {GOES_DOWN}",
        "gauge",
    ),
    Metric(
        "outlast_jobs_undoing",
        ("app", "state"),
        "Jobs by how far they are undone: pending are to be undone and nobody is at it, running are undone now by a worker that lives, "
        "failed could not be undone and still stand.",
        "gauge",
    ),
    Metric(
        "outlast_dead_letters",
        ("app", "pipeline", "status"),
        f"Dead letters by status: open, replaying, resolved, archived. {GOES_DOWN}",
        "gauge",
    ),
    Metric(
        "pipeline_database_retry_rate",
        ("app", "pipeline", "step_name"),
        "Of the operations of a step in the last hour, the share that required a retry for a database error. Only of steps that had such a "
        "retry. A kind of jobs has no pipeline.",
        "gauge",
    ),
    Metric(
        "pipeline_network_exhausted",
        ("app",),
        "Times in the last hour that steps gave up on network errors.",
        "gauge",
    ),
)

_REACHED: dict[type[Event], str] = {
    told.CircuitBreakerOpen: "open",
    told.CircuitBreakerHalfOpen: "half_open",
    told.CircuitBreakerClosed: "closed",
    told.CircuitBreakerReopened: "open",
}


class Place(Protocol):
    """Where dead letters and jobs are; equal to another one that has the same."""

    @property
    def app(self) -> str: ...
    def open_letters(self) -> Mapping[str, int] | None: ...
    def job_tallies(self, window: float) -> Iterable[JobTally] | None: ...
    def backlog(self) -> Backlog | None: ...


_places: WeakSet[Place] = WeakSet()
_changing = Lock()


def count_at(place: Place) -> None:
    """Count open dead letters, jobs and workers here, too, whenever somebody reads the metrics, as long as the place is in use."""
    with _changing:
        _places.add(place)


class Sample(NamedTuple):
    """A counter grows by `value`, a gauge becomes it."""

    metric: Metric
    labels: dict[str, str]
    value: float


class Samples:
    """What events add to the metrics. Each keeper of numbers has its own, for the labels that it has seen."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], dict[str, str]] = {}
        self._lock = Lock()
        self._pipelines: WeakKeyDictionary[Place, dict[str, None]] = WeakKeyDictionary()
        self._queues: WeakKeyDictionary[Place, dict[str, None]] = WeakKeyDictionary()

    def of(self, event: Event) -> Iterator[Sample]:
        """What this event adds."""
        match event:
            case told.StepRetryAttempt():
                yield self._one(RETRIES, event.tier, event.step_id)
            case told.StepSuccess():
                yield self._one(SUCCESSES, event.tier, event.step_id)
            case told.StepRetryExhausted():
                yield self._one(EXHAUSTED, event.tier, event.step_id)
            case told.StepErrorPermanent():
                yield self._one(PERMANENT, event.error_class, event.step_id)
            case told.AttemptTimeout():
                yield self._one(TIMEOUTS, event.scope, event.step_id)
            case told.RetryBudgetExhausted():
                yield self._one(REFUSALS, event.budget)
            case told.StepHedge():
                yield self._one(HEDGES, event.step_id)
            case told.FallbackUsed():
                yield self._one(FALLBACKS, event.error_class, event.step_id)
            case told.CallRejected():
                yield self._one(REJECTED, event.by, event.which, event.step_id or "")
            case told.CallFinished():
                yield self._one(CALLS, event.outcome, event.step_id)
                yield self._one(CALL_SECONDS, event.outcome, event.step_id, value=event.duration)
            case told.HookFailed():
                yield self._one(HOOKS, event.hook)
            case told.Throttled():
                yield self._one(THROTTLED, event.limit)
            case told.LimitExceeded():
                yield self._one(LATE, event.limit)
            case told.ItemSucceeded():
                yield self._one(ITEMS, event.pipeline or event.step_id, "succeeded")
            case told.ItemFailed():
                yield self._one(ITEMS, event.pipeline or event.step_id, "failed")
            case told.IdempotencyHit():
                yield self._one(KEY_HITS, event.pipeline or "", event.step_id)
            case told.StepArtifactKept():
                yield self._one(ARTIFACTS, event.component)
            case told.FlowEvent():
                yield self._one(STEPS_UNDONE, event.pipeline or "", event.name.removeprefix("compensation_"))
            case told.DeadLetterEnqueue():
                yield self._one(LETTERS, event.pipeline or "", "open")
            case told.DeadLetterReplay():
                status = "reopened" if event.status == "open" else event.status
                yield self._one(LETTERS, event.pipeline or "", status)
            case told.DeadLettersOverThreshold():
                yield self._one(OVER, str(event.threshold))
            case told.JobClaimed():
                yield self._one(JOBS, event.kind, "claimed")
            case told.JobSucceeded():
                yield self._one(JOBS, event.kind, "succeeded")
                yield self._one(JOB_SECONDS, event.kind, value=event.since_enqueued)
            case told.JobFailed():
                yield self._one(JOBS, event.kind, "cancelled" if event.reason == "cancelled" else "failed")
            case told.JobRequeued():
                put_off = event.outcome in {"released", "snoozed"}
                yield self._one(JOBS, event.kind, event.outcome if put_off else "requeued")
            case told.ArtifactKept():
                yield self._one(ARTIFACTS, event.kind)
            case told.ScheduleEvent():
                yield self._one(SCHEDULES, event.kind, event.name)
            case told.WorkerLost():
                yield self._one(WORKERS_LOST, event.app)
            case told.RunFinished():
                yield self._one(RUNS, event.pipeline or "", event.status)
            case told.RunEvent():
                yield self._one(RUNS, event.pipeline or "", event.name)
            case told.BreakerEvent() if type(event) in _REACHED:
                reached = _REACHED[type(event)]
                if not event.learnt:  # counted by the process that has done it
                    yield self._one(TRANSITIONS, event.breaker, reached)
                yield from self.state(event.breaker, reached)
            case _:
                return

    def one(self, metric: Metric, *values: str, value: float) -> Sample:
        """A value of a metric, with labels that stay few."""
        return self._one(metric, *values, value=value)

    def state(self, breaker: str, reached: str) -> list[Sample]:
        """The state that a breaker is in."""
        states = [self._one(STATE, breaker, state, value=int(state == reached)) for state in STATES]
        return states if states[0].labels["breaker"] != OTHER else []  # many breakers together are in no state

    def asked(self, places: Sequence[Place] | None = None) -> Iterator[Sample]:
        """What is asked for now, at these places or at all that are in use; a store that cannot be asked says nothing."""
        if places is None:
            with _changing:
                places = list(_places)
        yield from self._open_letters(places)
        yield from self._jobs(places)
        yield from self._backlog(places)

    def _jobs(self, places: Iterable[Place]) -> Iterator[Sample]:
        """How the jobs did that have ended; kinds and queues beyond `MOST` together."""
        found: dict[tuple[str, str, str], list[JobTally]] = {}
        for place in places:
            for tally in place.job_tallies(WINDOW) or ():
                labels = self._one(JOB_RETRY_RATE, place.app, tally.kind, tally.queue).labels
                found.setdefault((labels["app"], labels["kind"], labels["queue"]), []).append(tally)
        for names, tallies in found.items():
            (figures,) = figures_of(tallies, kinds=False, queues=False)
            for status in ("succeeded", "failed", "cancelled"):
                yield self._one(JOBS_ENDED, *names, status, value=getattr(figures, status))
            for metric, value in (
                (JOB_RETRY_RATE, figures.retry_rate),
                (JOB_FAILURE_RATE, figures.failure_rate),
                (JOB_MEAN_SUCCESS, figures.mean_time_to_success),
                (JOB_MEAN_DELAY, figures.mean_delay),
                (JOB_MEAN_BACKOFF, figures.mean_backoff),
                (JOB_MEAN_WAIT, figures.mean_wait),
                (JOB_SCHEMA_SHARE, figures.schema_failure_share),
                (JOB_AMPLIFICATION, figures.retry_amplification),
                (JOB_ARTIFACTS, figures.artifacts),
            ):
                if value is not None:  # a share of nothing is no number
                    yield self._one(metric, *names, value=value)

    def _backlog(self, places: Iterable[Place]) -> Iterator[Sample]:
        """What waits and is processed, by queue, and who works. A queue that had jobs keeps its 0."""
        found: dict[tuple[str, str], list[QueueBacklog]] = {}
        workers: dict[str, int] = {}
        for place in places:
            backlog = place.backlog()
            if backlog is None:
                continue
            app = self._one(WORKERS, place.app).labels["app"]
            workers[app] = workers.get(app, 0) + backlog.workers
            known = self._queues.setdefault(place, {})
            now = {one.queue: one for one in backlog.queues}
            for queue in dict.fromkeys((*known, *now)):
                labels = self._one(JOBS_QUEUED, place.app, queue).labels
                if labels["queue"] != OTHER:  # those that share a label are not remembered one by one
                    known[queue] = None
                found.setdefault((labels["app"], labels["queue"]), []).append(now.get(queue, QueueBacklog(queue)))
        for app, alive in workers.items():
            yield self._one(WORKERS, app, value=alive)
        for names, some in found.items():
            yield self._one(JOBS_QUEUED, *names, value=sum(one.queued for one in some))
            yield self._one(JOBS_SCHEDULED, *names, value=sum(one.scheduled for one in some))
            yield self._one(JOBS_PROCESSING, *names, value=sum(one.processing for one in some))
            yield self._one(OLDEST_WAIT, *names, value=max(one.oldest_wait for one in some))
            if names[1] != OTHER:  # many queues together are neither paused nor not
                yield self._one(QUEUE_PAUSED, *names, value=int(any(one.paused for one in some)))

    def _open_letters(self, places: Iterable[Place]) -> Iterator[Sample]:
        """Open dead letters. A pipeline that had some keeps its 0."""
        found: dict[tuple[str, str], int] = {}
        for place in places:
            counts = place.open_letters()
            if counts is None:
                continue
            known = self._pipelines.setdefault(place, {})
            known |= dict.fromkeys(counts)
            for pipeline in known:
                key = (place.app, pipeline)
                found[key] = found.get(key, 0) + counts.get(pipeline, 0)
        summed: dict[tuple[str, ...], Sample] = {}
        for names, value in found.items():
            sample = self._one(OPEN_LETTERS, *names, value=value)
            labels = tuple(sample.labels.values())
            before = summed[labels].value if labels in summed else 0  # many pipelines may be one "other"
            summed[labels] = sample._replace(value=before + value)
        yield from summed.values()

    def _one(self, metric: Metric, *values: str, value: float = 1) -> Sample:
        labels = {
            label: self._bounded(metric.name, label, said) for label, said in zip(metric.labels, values, strict=True)
        }
        return Sample(metric, labels, value)

    def _bounded(self, metric: str, label: str, value: str) -> str:
        with self._lock:
            seen = self._seen.setdefault((metric, label), {})
            if value in seen:
                return seen[value]
            if len(seen) >= MOST:
                return OTHER
            # A name may come from an imported dead letter: what a terminal obeys and what is unseen is spelt as an escape. Line
            # feeds stay, for which the format has its own, and what cannot be encoded would spoil the whole page.
            text = value.encode(errors="replace").decode()
            seen[value] = in_json(text).replace("\r", "\\r").replace("\t", "\\t")
            return seen[value]


# --- once for each keeper ---


class _Installed:
    def __init__(self, uninstall: Callable[[], None]) -> None:
        self.uninstall = uninstall
        self.times = 0


_installed: dict[Hashable, _Installed] = {}


def keeping(
    samples: Samples, keep: Callable[[Iterable[Sample]], None], clean: Callable[[], None]
) -> tuple[Hook, Callable[[], None]]:
    """
    A hook that keeps what events add, and its clean-up. What has a state is kept from now on, not from its first
    change.
    """
    unwatch = watch(lambda breaker: keep(samples.state(breaker.name, breaker.seems())))

    def count(event: Event) -> None:
        keep(samples.of(event))

    def end() -> None:
        unwatch()
        clean()

    return count, end


def install_once(key: Hashable, make: Callable[[], tuple[Hook, Callable[[], None]]]) -> Callable[[], None]:
    """
    Subscribe the hook that `make` gives with its clean-up, unless one is there under this key: nothing is counted
    twice. It goes when everybody who asked for it has called what is returned.
    """
    with _changing:
        there = _installed.get(key)
        if there is None:
            hook, clean = make()
            unsubscribe = subscribe(hook)

            def uninstall() -> None:
                unsubscribe()
                clean()

            there = _installed[key] = _Installed(uninstall)
        there.times += 1
        mine = [there]

    def leave() -> None:
        with _changing:
            if not mine:
                return  # called before
            left = mine.pop()
            left.times -= 1
            if left.times == 0:
                del _installed[key]
                left.uninstall()

    return leave
