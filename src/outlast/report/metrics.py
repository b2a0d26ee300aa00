"""
What a store has on record, as metrics: asked for when it is wanted, so that nothing of it is stale.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

from outlast.observe.exposition import exposition
from outlast.observe.metrics import (
    EXHAUSTED,
    GOES_DOWN,
    METRICS,
    OPEN_LETTERS,
    RECORDED,
    RETRIES,
    STATE,
    SUCCESSES,
    WINDOW,
    Samples,
)
from outlast.store.records import JOB_STATES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from outlast.observe.figures import Backlog, JobTally
    from outlast.observe.metrics import Sample
    from outlast.report.views import Views
    from outlast.store import Store
    from outlast.store.troubles import OnRecord

_RUNS, _ITEMS, _STEPS, _JOBS, _UNDOING, _LETTERS, _DATABASE_RETRY_RATE, _NETWORK_EXHAUSTED = RECORDED
#: What the command exposes, in this order.
EXPOSED = (
    RETRIES._replace(
        about=f"Attempts on record that failed and were to be followed by another one, by the tier of the failure. {GOES_DOWN}"
    ),
    SUCCESSES._replace(
        about=f"Items at a stage, steps and jobs on record that succeeded after a retry, by the tier of the last failure. {GOES_DOWN}"
    ),
    EXHAUSTED._replace(
        about=f"Times on record that an item, a step or a job gave up on an error worth retrying, by the tier of the failure. {GOES_DOWN}"
    ),
    *RECORDED,
    OPEN_LETTERS._replace(about="Dead letters that are open now."),
    *(metric for metric in METRICS if metric.asked and metric is not OPEN_LETTERS),
    STATE._replace(about="1 for the state that a circuit breaker is in, 0 for the others, as it is on record."),
)
_Counted: TypeAlias = "list[tuple[tuple[str, ...], int]]"
_STATUS = {state: status for status, states in JOB_STATES.items() for state in states}


class _Asked:
    """A store as a place whose figures are asked for; what it refuses is the command's failure."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def app(self) -> str:
        return self._store.app

    def open_letters(self) -> Mapping[str, int]:
        """Also of pipelines that had some: they have 0."""
        known = dict.fromkeys((stat.pipeline for stat in self._store.stats()), 0)
        return known | self._store.open_letters()

    def job_tallies(self, window: float) -> Sequence[JobTally]:
        return self._store.job_tallies(round(window * 1e6))

    def backlog(self) -> Backlog:
        return self._store.backlog()


def samples_of(store: Store, views: Views) -> Iterator[Sample]:
    """What is on record now."""
    samples, app = Samples(), store.app
    for total in store.retry_totals():
        for metric, value in ((RETRIES, total.retries), (SUCCESSES, total.successes), (EXHAUSTED, total.exhausted)):
            yield samples.one(metric, total.tier, total.step, value=value)
    on_record = store.on_record()
    runs, steps = _as_told(store, views, on_record)
    for (pipeline, status), count in runs:
        yield samples.one(_RUNS, app, pipeline, status, value=count)
    for pipeline, read, *ended in on_record.items:
        for status, count in zip(("succeeded", "skipped", "dlq", "failed"), ended, strict=True):
            yield samples.one(_ITEMS, app, pipeline, status, value=count)
        yield samples.one(_ITEMS, app, pipeline, "pending", value=max(0, read - sum(ended)))
    for (pipeline, deed, state), count in steps:
        yield samples.one(_STEPS, app, pipeline, deed, state, value=count)
    for kind, queue, state, count in on_record.jobs:
        yield samples.one(_JOBS, app, kind, queue, _STATUS[state], value=count)
    for state, count in store.jobs_undoing().items():
        yield samples.one(_UNDOING, app, state, value=count)
    for stat in store.stats():
        yield samples.one(_LETTERS, app, stat.pipeline, stat.status, value=stat.count)
    window_us = round(WINDOW * 1e6)
    for rate in store.step_rates("database", window_us):
        yield samples.one(_DATABASE_RETRY_RATE, app, *rate.step, value=rate.retried / max(1, rate.operations))
    exhausted = sum(one.times for one in store.given_up("network", window_us))
    yield samples.one(_NETWORK_EXHAUSTED, app, value=exhausted)
    letters = False
    for sample in samples.asked([_Asked(store)]):
        letters = letters or sample.metric is OPEN_LETTERS
        yield sample
    if not letters:  # a queue that never had a letter is empty, which is a number
        yield samples.one(OPEN_LETTERS, app, "", value=0)
    for breaker in views.breakers_now():
        yield from samples.state(breaker["name"], breaker["state"])


def _as_told(store: Store, views: Views, found: OnRecord) -> tuple[_Counted, _Counted]:
    """Runs and steps by what people are told of them: nothing is running whose process was killed."""
    runs = Counter({(pipeline, status): count for pipeline, status, count in found.runs})
    steps = Counter({(pipeline, deed, state): count for pipeline, deed, state, count in found.steps})
    for run in views.abandoned():
        _move(runs, (run.pipeline, "running"), (run.pipeline, run.status))
        for step in store.flow_steps(run.number) if run.kind == "flow" else ():
            if step.state == "running":
                _move(steps, (run.pipeline, step.deed, "running"), (run.pipeline, step.deed, run.status))
    return sorted(runs.items()), sorted(steps.items())


def _move(counted: Counter[Any], before: tuple[str, ...], after: tuple[str, ...]) -> None:
    if counted[before] > 0:  # else it has come to its end between two looks
        counted[before] -= 1
        counted[after] += 1
    if not counted[before]:
        del counted[before]


def metrics_text(store: Store, views: Views) -> str:
    """As Prometheus reads it."""
    return exposition(EXPOSED, samples_of(store, views))


def metrics_document(store: Store, views: Views) -> list[dict[str, object]]:
    """As programs read it."""
    return [
        {"name": sample.metric.name, "labels": sample.labels, "value": sample.value}
        for sample in samples_of(store, views)
    ]
