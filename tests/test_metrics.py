"""What is counted and traced: Prometheus, OpenTelemetry and structlog, each with the real library."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from weakref import WeakSet

import prometheus_client
import pytest
import structlog
from opentelemetry import metrics as otel_metrics
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from prometheus_client.parser import text_string_to_metric_families

from outlast import App, CircuitBreaker, Guard, Pipeline, RetryBudget, RetryPolicy, observe, stage
from outlast.observe import emit, listening, otel, prometheus
from outlast.observe import events as told
from outlast.observe.metrics import METRICS, MOST, TRANSITIONS, Samples
from outlast.testing import virtual_time

ROOT = Path(__file__).resolve().parent.parent
AT = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)
STEP = {"step_id": "fetch", "attempt": 2, "max_attempts": 3}
FAILURE = STEP | {
    "max_retries": 2,
    "tier": "network",
    "category": "transient",
    "error_class": "connection_reset",
    "error_type": "ConnectionResetError",
    "error": "reset by peer",
}
BREAKER = {"breaker": "api", "failure_count": 5, "reason": "5 failures in a row"}
JOB = {"job_id": "17", "kind": "send", "queue": "mail", "attempt": 1, "max_attempts": 4}
SCHEDULE = {"kind": "send", "queue": "mail"}
FLOW = {"run_key": "k", "step_id": "reserve", "component": "python"}
SAMPLES = [
    told.StepRetryAttempt(**FAILURE, next_delay=1.5, next_attempt_at=AT),
    told.StepRetryExhausted(**FAILURE, reason="exhausted"),
    told.StepErrorPermanent(**FAILURE, reason="permanent"),
    told.StepSuccess(**STEP, tier="network"),
    told.AttemptTimeout(**STEP, timeout=30.0, scope="attempt"),
    told.RetryBudgetExhausted(**STEP, budget="shared"),
    told.StepHedge(**STEP, after=0.8),
    told.FallbackUsed(**STEP, error_class="connection_reset", error_type="ConnectionResetError", reason="exhausted"),
    told.CallRejected(step_id="fetch", by="breaker", which="api"),
    told.CallFinished(step_id="fetch", outcome="succeeded", attempts=2, duration=1.5),
    told.HookFailed(hook="watch", error_type="KeyError"),
    told.Throttled(limit="api", retry_after=7.0, pause=7.0, width=None),
    told.LimitExceeded(limit="api", under_way=64, waiting=9),
    told.CircuitBreakerOpen(**BREAKER, threshold=5, opened_at=AT, retry_at=AT),
    told.CircuitBreakerHalfOpen(**BREAKER),
    told.CircuitBreakerReopened(**BREAKER, opened_at=AT, retry_at=AT),
    told.CircuitBreakerClosed(**BREAKER),
]
RUN = {"run_id": "r", "pipeline": "reviews"}
ITEM = {"item_id": "i", "step_id": "label"}
ERROR = {"error": "gone", "error_type": "ConnectionResetError", "error_class": "connection_reset"}
COUNTS = dict.fromkeys(("total", "succeeded", "skipped", "dlq", "failed", "pending"), 1)
SAMPLES[6:6] = [
    told.RunStarted(**RUN, run_key="k", finished=0),
    told.RunPaused(**RUN, run_key="k"),
    told.RunFinished(**RUN, run_key="k", status="completed", outcome="success", reason=None, why="done", **COUNTS),
    told.FailureBudgetExceeded(**RUN, run_key="k", rate=0.5, budget=0.1, processed=100, failed=50, stopped=True),
    told.LeaseLost(**RUN, run_key="k", owner="host:1"),
    told.IdempotencyHit(**RUN, **FLOW, done_at=AT, done_by="r"),
    told.StepArtifactKept(**RUN, **FLOW, attempt=1, artifact="answer", size=12),
    told.CompensationTriggered(**RUN, **FLOW, because="pay failed"),
    told.CompensationCompleted(**RUN, **FLOW),
    told.CompensationFailed(**RUN, **FLOW, **ERROR, reason="permanent"),
    told.ItemSucceeded(**RUN, **ITEM, attempts=1),
    told.ItemFailed(**RUN, **ITEM, **ERROR, attempts=3),
    told.DeadLetterEnqueue(**RUN, **ITEM, **ERROR, letter_id="d"),
    told.DeadLetterReplay(**RUN, **ITEM, letter_id="d", status="resolved"),
    told.DeadLettersOverThreshold(count=12, threshold=10, oldest_at=AT),
    told.JobClaimed(**JOB, worker="w"),
    told.ArtifactKept(**JOB, artifact="answer", size=12),
    told.JobRequeued(**JOB, **ERROR, outcome="failed", duration=1.0, delay=30.0, next_run_at=AT),
    told.JobSucceeded(**JOB, duration=1.0, since_enqueued=31.5),
    told.JobFailed(**JOB, **ERROR, duration=1.0, reason="permanent"),
    told.JobScheduled(**SCHEDULE, job_id="17", tick_at=AT),
    told.TicksMissed(**SCHEDULE, first_at=AT, last_at=AT, job_id=None, job_waits=False),
    told.ScheduleChanged(**SCHEDULE, expression="0 7 * * *", timezone="UTC", before=None),
    told.WorkerLost(app="shop", worker="w", jobs=3, failed=1, job_ids=("17",)),
]


def failing(*errors: Exception):
    script = iter(errors)

    def work():
        error = next(script, None)
        if error is not None:
            raise error
        return "fine"

    return work


def policy(max_attempts: int = 3) -> RetryPolicy:
    return RetryPolicy(max_attempts=max_attempts, initial_delay=1, jitter=0)


def busy() -> None:
    """A retry that succeeds, a call that gives up, a permanent error, a refused retry and a breaker's whole life."""
    with virtual_time() as time:
        Guard("fetch", retry=policy()).outcome(failing(ConnectionResetError("a"), TimeoutError("b")))
        Guard("fetch", retry=policy(2)).outcome(failing(ConnectionResetError("c"), ConnectionResetError("d")))
        Guard("parse", retry=policy()).outcome(failing(ValueError("e")))
        empty = RetryBudget("shared", ratio=0, reserve=0)
        Guard("thrifty", retry=policy(), retry_budget=empty).outcome(failing(ConnectionResetError("f")))
        breaker = CircuitBreaker(name="api", failure_threshold=1, reset_timeout=10, success_threshold=1)
        plain = Guard("call", retry=policy(1), breaker=breaker)
        plain.outcome(failing(ConnectionResetError("g")))
        time.advance(11)
        plain.outcome(failing(ConnectionResetError("h")))
        time.advance(60)
        plain.outcome(failing())


async def slow() -> None:
    async def forever():
        await asyncio.Event().wait()

    await Guard("slow", retry=policy(1), timeout=0.01).aoutcome(forever)


RETRY = {
    ("pipeline_retry_attempts_total", "tier=network step_name=fetch"): 3,
    ("pipeline_retry_success_total", "tier=network step_name=fetch"): 1,
    ("pipeline_retry_exhausted_total", "tier=network step_name=fetch"): 1,
    ("pipeline_retry_exhausted_total", "tier=network step_name=thrifty"): 1,
    ("pipeline_retry_exhausted_total", "tier=network step_name=call"): 2,
    ("outlast_permanent_errors_total", "error_class=data_error step_name=parse"): 1,
    ("outlast_retry_budget_refusals_total", "budget=shared"): 1,
    ("outlast_breaker_transitions_total", "breaker=api state=open"): 2,
    ("outlast_breaker_transitions_total", "breaker=api state=half_open"): 2,
    ("outlast_breaker_transitions_total", "breaker=api state=closed"): 1,
    ("outlast_breaker_state", "breaker=api state=open"): 0,
    ("outlast_breaker_state", "breaker=api state=half_open"): 0,
    ("outlast_breaker_state", "breaker=api state=closed"): 1,
}


def key(name: str, labels: dict[str, str]) -> tuple[str, str]:
    """A sample's name and labels, in the order of the table."""
    (metric,) = [metric for metric in METRICS if metric.name == name]
    assert sorted(labels) == sorted(metric.labels)
    return name, " ".join(f"{label}={labels[label]}" for label in metric.labels)


@pytest.fixture(autouse=True)
def nothing_of_other_tests(monkeypatch):
    """Only the breakers and the apps that the test itself makes are on its page: others may not be collected yet."""
    monkeypatch.setattr("outlast.observe._standing", None)
    monkeypatch.setattr("outlast.observe.metrics._places", WeakSet())


@pytest.fixture
def registry():
    """An empty one."""
    return prometheus_client.CollectorRegistry()


@pytest.fixture
def counted(registry):
    """A registry in which everything is counted until the test is over."""
    uninstall = prometheus.install(registry)
    yield registry
    uninstall()


@pytest.fixture
def quiet(monkeypatch):
    """Nobody reads the log: a test with many events keeps no records."""
    monkeypatch.setattr("outlast.observe.heard", lambda: False)


def exposed(registry) -> dict[tuple[str, str], float]:
    """What the official parser reads from the official page, without the instants at which counters were made."""
    page = prometheus_client.generate_latest(registry).decode()
    found = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    counts = [sample for sample in found if not sample.name.endswith("_created")]
    return {key(sample.name, sample.labels): sample.value for sample in counts}


# --- the table ---


def test_every_event_is_counted():
    """U-22: no event passes without a number, and no metric is left without an event."""
    assert {event.name for event in SAMPLES} == set(told.EVENTS)
    found = [list(Samples().of(event)) for event in SAMPLES]
    assert all(found)
    assert {sample.metric for samples in found for sample in samples} == {m for m in METRICS if not m.asked}
    assert all(tuple(sample.labels) == sample.metric.labels for samples in found for sample in samples)


def test_an_event_that_nobody_knows_is_not_counted():
    """An event of somebody's own is no mistake."""
    assert list(Samples().of(told.Event())) == []


def test_retry_counters_have_the_agreed_names_and_labels():
    """S2-25: three counters, each by tier and step_name, and by nothing else."""
    agreed = ["pipeline_retry_attempts_total", "pipeline_retry_success_total", "pipeline_retry_exhausted_total"]
    assert {metric.name: metric.labels for metric in METRICS if metric.name.startswith("pipeline_")} == dict.fromkeys(
        agreed, ("tier", "step_name")
    )


def test_every_metric_is_in_the_reference_with_its_labels():
    """Each has its row, and no row is without its metric."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge) \| ([^|]+) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [
        (metric.name, metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.about)
        for metric in METRICS
    ]


# --- Prometheus ---


def test_what_happened_is_on_the_page(counted):
    """S2-25, S4-17, U-22: the official parser reads exactly what happened."""
    busy()
    assert exposed(counted) == RETRY


def test_time_that_ran_out_is_counted_by_whose_limit_it_was(counted):
    """U-22: the attempt's own limit or the total."""
    asyncio.run(slow())
    assert exposed(counted)["outlast_attempt_timeouts_total", "scope=attempt step_name=slow"] == 1


def test_a_breaker_is_in_one_state_at_a_time(counted):
    """U-22, S4-17: the gauge is 1 for the state that the breaker is in."""
    states = []
    for event in [sample for sample in SAMPLES if hasattr(sample, "breaker")]:
        emit(event)
        now = exposed(counted)
        states += [
            state
            for state in ("closed", "half_open", "open")
            if now["outlast_breaker_state", f"breaker=api state={state}"]
        ]
    assert states == ["open", "half_open", "open", "closed"]


def test_open_dead_letters_are_what_the_store_has_now(counted, meters, reader, tmp_path):
    """S4-23: whoever made, replayed or archived them, in this process or another; back to 0, and silent without a store."""
    uninstall = otel.install(meter_provider=meters)
    app = App("letters", store=f"sqlite:///{tmp_path}/s.db")

    @stage(retry=RetryPolicy(max_attempts=1))
    def label(number: int) -> int:
        raise ValueError("odd")

    def seen() -> set[float | None]:
        name = "outlast_dead_letters_open"
        labels = "app=letters pipeline=reviews"
        return {exposed(counted).get((name, labels)), measured(reader).get((name, labels))}

    assert seen() == {None}
    Pipeline("reviews", label, app=app, failure_budget=1.0).run([1, 2, 3], check=False)
    assert seen() == {3}
    other = App("letters", store=f"sqlite:///{tmp_path}/s.db")  # as another process has it
    other.dead_letters.archive(text="odd", reason="known", ids=[next(app.dead_letters.ids())])
    assert seen() == {2}
    other.dead_letters.archive(pipeline="reviews", reason="known")
    assert seen() == {0}
    other.dead_letters.unarchive(pipeline="reviews")
    assert seen() == {3}
    for one in (app, other):
        one.store.close()
    for file in tmp_path.iterdir():
        file.unlink()
    assert seen() == {None}
    uninstall()


@pytest.mark.usefixtures("quiet")
def test_distinct_messages_make_no_more_series(counted):
    """Semantics 79, U-22: 100,000 errors that differ in message, type and attempt are still the same few series."""

    def tell(number):
        other = {"error": f"order {number} is wrong", "error_type": f"Wrong{number}", "attempt": number + 1}
        emit(told.StepRetryAttempt(**FAILURE | other, next_delay=number / 10, next_attempt_at=AT))
        if number % 10 == 0:
            emit(told.CircuitBreakerHalfOpen(**BREAKER | {"failure_count": number, "reason": f"reason {number}"}))

    tell(0)
    few = set(exposed(counted))
    for number in range(1, 100_000):
        tell(number)
    assert set(exposed(counted)) <= few  # what other tests have left behind may go meanwhile
    assert exposed(counted)["pipeline_retry_attempts_total", "tier=network step_name=fetch"] == 100_000


@pytest.mark.usefixtures("quiet")
def test_calls_with_distinct_messages_make_no_more_series(counted):
    """Semantics 79: the same through real calls."""

    def calls(numbers):
        with virtual_time():
            for number in numbers:
                Guard("fetch", retry=policy(2)).outcome(failing(ConnectionResetError(f"peer {number} is gone")))
                Guard("parse").outcome(failing(ValueError(f"order {number}")))
        return set(exposed(counted))

    assert calls(range(1)) == calls(range(500))


@pytest.mark.usefixtures("quiet")
def test_names_without_end_are_counted_together(counted):
    """Semantics 79: a label takes a thousand values; what comes later is `other`, and nothing is lost."""
    for number in range(MOST + 500):
        emit(told.StepSuccess(**STEP | {"step_id": f"order-{number}"}, tier="network"))
    emit(told.StepSuccess(**STEP | {"step_id": "order-7"}, tier="network"))
    found = exposed(counted)
    assert MOST == 1000
    assert len(found) == MOST + 1
    assert found["pipeline_retry_success_total", "tier=network step_name=other"] == 500
    assert found["pipeline_retry_success_total", "tier=network step_name=order-7"] == 2


@pytest.mark.usefixtures("quiet")
def test_breakers_without_end_have_no_common_state(counted):
    """Semantics 79: changes of breakers beyond the thousandth are counted; a state they have not."""
    for number in range(MOST + 5):
        emit(told.CircuitBreakerHalfOpen(**BREAKER | {"breaker": f"api-{number}"}))
    found = exposed(counted)
    assert found["outlast_breaker_transitions_total", "breaker=other state=half_open"] == 5
    assert len([name for name, _ in found if name == "outlast_breaker_state"]) == 3 * MOST
    assert not any("other" in labels for name, labels in found if name == "outlast_breaker_state")


@pytest.mark.parametrize("name", ['say "no"', "two\nlines", "back\\slash", "größe", "lone \udcff half", "", "{}=,"])
def test_any_name_leaves_the_page_readable(counted, name):
    """A name is anything that somebody wrote."""
    emit(told.StepSuccess(**STEP | {"step_id": name}, tier="network"))
    ((metric, labels),) = list(exposed(counted))
    assert metric == "pipeline_retry_success_total"
    assert labels == f"tier=network step_name={name.encode(errors='replace').decode()}"


def test_threads_lose_no_count(counted):
    """Each event is counted once, wherever it happens."""

    def work():
        for number in range(200):
            emit(told.StepSuccess(**STEP | {"step_id": f"order-{number}"}, tier="network"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(exposed(counted).values()) == {4: 200}


def test_installing_twice_counts_once(registry):
    """Two parts of a program may both want the metrics; they stay until both are done."""
    first, second = prometheus.install(registry), prometheus.install(registry)
    emit(SAMPLES[3])
    first()
    first()
    emit(SAMPLES[3])
    assert list(exposed(registry).values()) == [2]
    second()
    assert prometheus_client.generate_latest(registry) == b""


def test_uninstalling_leaves_nothing_behind(registry, quiet):
    """Neither the hook nor the metrics; and the names are free again."""
    prometheus.install(registry)()
    assert not listening()
    assert list(registry.collect()) == []
    again = prometheus.install(registry)
    assert len(list(registry.collect())) == len(METRICS)
    again()


def test_two_registries_count_for_themselves(counted):
    """One registry's metrics say nothing about another one's."""
    other = prometheus_client.CollectorRegistry()
    emit(SAMPLES[3])
    uninstall = prometheus.install(other)
    emit(SAMPLES[3])
    uninstall()
    assert list(exposed(counted).values()) == [2]


def test_the_clients_own_registry_is_the_default():
    """What an application exposes already."""
    uninstall = prometheus.install()
    emit(SAMPLES[3])
    labels = {"tier": "network", "step_name": "fetch"}
    value = prometheus_client.REGISTRY.get_sample_value("pipeline_retry_success_total", labels)
    uninstall()
    assert value == 1
    assert prometheus_client.REGISTRY.get_sample_value("pipeline_retry_success_total", labels) is None


def test_a_name_that_is_taken_installs_nothing(registry, quiet):
    """All metrics or none: the client's complaint comes out, and the registry is as it was."""
    taken = prometheus_client.Counter("outlast_attempt_timeouts", "somebody else's", registry=registry)
    with pytest.raises(ValueError, match="outlast_attempt_timeouts"):
        prometheus.install(registry)
    assert [family.name for family in registry.collect()] == ["outlast_attempt_timeouts"]
    assert not listening()
    registry.unregister(taken)
    prometheus.install(registry)()


WORKERS = """
import multiprocessing
import prometheus_client
from prometheus_client import multiprocess
from outlast.observe import emit, events, prometheus

def work(reached):
    prometheus.install()
    emit(reached(breaker="api", failure_count=1, reason="test"))
    emit(events.StepSuccess(step_id="fetch", attempt=2, max_attempts=3, tier="network"))

for reached in (events.CircuitBreakerClosed, events.CircuitBreakerClosed, events.CircuitBreakerHalfOpen):
    worker = multiprocessing.get_context("fork").Process(target=work, args=(reached,))
    worker.start()
    worker.join()
registry = prometheus_client.CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(prometheus_client.generate_latest(registry).decode())
"""


def test_worker_processes_share_their_numbers(tmp_path):
    """In the client's mode for several processes, counters add up and a state counts the processes that are in it."""
    environ = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", WORKERS], capture_output=True, text=True, check=True, env=environ)
    lines = done.stdout.splitlines()
    assert 'pipeline_retry_success_total{step_name="fetch",tier="network"} 3.0' in lines
    assert 'outlast_breaker_state{breaker="api",state="closed"} 2.0' in lines
    assert 'outlast_breaker_state{breaker="api",state="half_open"} 1.0' in lines


# --- OpenTelemetry ---


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def tracers(spans):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    yield provider
    provider.shutdown()


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def meters(reader):
    provider = MeterProvider([reader], shutdown_on_exit=False)
    yield provider
    provider.shutdown()


def measured(reader) -> dict[tuple[str, str], float]:
    data = reader.get_metrics_data()
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
    assert {scope.scope.name for scope in scopes} <= {"outlast"}
    return {
        key(metric.name, point.attributes): point.value
        for scope in scopes
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_meters_count_what_prometheus_counts(meters, reader):
    """U-22: the same numbers under the same names."""
    uninstall = otel.install(meter_provider=meters)
    busy()
    uninstall()
    busy()
    assert measured(reader) == RETRY


def test_events_stand_on_the_current_span(tracers, meters, spans):
    """U-22: name, instant and fields of each event; None is left out."""
    uninstall = otel.install(meter_provider=meters)
    with virtual_time(), tracers.get_tracer("test").start_as_current_span("import"):
        Guard("fetch", retry=policy()).call(failing(ConnectionResetError("reset by peer")))
    uninstall()
    (span,) = spans.get_finished_spans()
    retried, succeeded = span.events
    assert [retried.name, succeeded.name] == ["step_retry_attempt", "step_success"]
    fields = dict(retried.attributes)
    assert fields.pop("outlast.seq") > 0
    at = datetime.fromisoformat(fields.pop("outlast.next_attempt_at"))
    assert (at - datetime.fromtimestamp(retried.timestamp / 1e9, UTC)).total_seconds() == pytest.approx(1, abs=0.001)
    assert fields == {
        "outlast.step_id": "fetch",
        "outlast.attempt": 1,
        "outlast.max_attempts": 3,
        "outlast.max_retries": 2,
        "outlast.retries_used": 0,
        "outlast.tier": "network",
        "outlast.category": "transient",
        "outlast.error_class": "connection_reset",
        "outlast.error_type": "ConnectionResetError",
        "outlast.error": "reset by peer",
        "outlast.next_delay": 1.0,
        "outlast.next_delay_ms": 1000,
        "outlast.next_attempt": 2,
    }


def test_no_secret_reaches_a_span(tracers, meters, spans):
    """U-24: of an error's text a span has the sanitised line only."""
    uninstall = otel.install(meter_provider=meters)
    with tracers.get_tracer("test").start_as_current_span("import"):
        Guard("connect").outcome(failing(PermissionError("postgresql://shop:hunter2@db/shop\nrefused " + "x y " * 500)))
    uninstall()
    (span,) = spans.get_finished_spans()
    (event,) = span.events
    assert "hunter2" not in repr(event.attributes)
    assert event.attributes["outlast.error"].startswith("postgresql://***@db/shop refused x y")
    assert len(event.attributes["outlast.error"]) == 280


def test_a_text_that_cannot_be_encoded_is_mended_for_the_exporter(tracers, meters, spans):
    """File names from disk hold such halves; a batch must not be lost for one."""
    uninstall = otel.install(meter_provider=meters)
    with tracers.get_tracer("test").start_as_current_span("import"):
        Guard("read").outcome(failing(FileNotFoundError("no such file: \udcff.csv")))
    uninstall()
    assert spans.get_finished_spans()[0].events[0].attributes["outlast.error"] == "no such file: \ufffd.csv"


def test_an_event_outside_any_span_is_only_counted(spans, meters, reader):
    """Without a span there is nothing to tell; the numbers are complete."""
    uninstall = otel.install(meter_provider=meters)
    emit(SAMPLES[3])
    uninstall()
    assert spans.get_finished_spans() == ()
    assert list(measured(reader).values()) == [1]


def test_with_a_tracer_an_event_outside_any_span_is_a_span_of_its_own(tracers, meters, spans):
    """Asked for with `tracer_provider`; inside a span it changes nothing."""
    uninstall = otel.install(tracers, meters)
    emit(SAMPLES[3])
    with tracers.get_tracer("test").start_as_current_span("import"):
        emit(SAMPLES[3])
    uninstall()
    emit(SAMPLES[3])
    alone, around = spans.get_finished_spans()
    assert (alone.name, alone.start_time) == ("step_success", alone.end_time)
    assert alone.attributes["outlast.step_id"] == "fetch"
    assert (around.name, [event.name for event in around.events]) == ("import", ["step_success"])


def test_a_span_that_was_not_sampled_gets_nothing(tracers, meters, spans):
    """A trace that was left out stays left out."""
    off = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    uninstall = otel.install(tracers, meters)
    with off.get_tracer("test").start_as_current_span("import"):
        assert trace.get_current_span().get_span_context().is_valid
        emit(SAMPLES[3])
    uninstall()
    assert spans.get_finished_spans() == ()


@pytest.mark.usefixtures("quiet")
def test_installing_opentelemetry_twice_tells_once(tracers, meters, spans, reader):
    """Neither two events on a span nor two counts; it ends when both are done."""
    first, second = otel.install(tracers, meters), otel.install(tracers, meters)
    with tracers.get_tracer("test").start_as_current_span("import"):
        emit(SAMPLES[3])
        first()
        emit(SAMPLES[3])
        second()
        emit(SAMPLES[3])
    (span,) = spans.get_finished_spans()
    assert len(span.events) == 2
    assert list(measured(reader).values()) == [2]
    assert not listening()


@pytest.mark.usefixtures("quiet")
def test_the_global_provider_is_the_default():
    """Naming the global provider or nobody is the same; without an SDK it costs a little and does nothing."""
    first, second = otel.install(), otel.install(meter_provider=otel_metrics.get_meter_provider())
    for event in SAMPLES:
        emit(event)
    first()
    assert listening()
    second()
    assert not listening()


@pytest.mark.usefixtures("quiet")
def test_attributes_of_meters_are_bounded_too(meters, reader):
    """Semantics 79: the same bound as for Prometheus."""
    uninstall = otel.install(meter_provider=meters)
    for number in range(MOST + 10):
        emit(told.StepSuccess(**STEP | {"step_id": f"order-{number}"}, tier="network"))
    uninstall()
    found = measured(reader)
    assert len(found) == MOST + 1
    assert found["pipeline_retry_success_total", "tier=network step_name=other"] == 10


# --- structlog ---


@pytest.fixture
def unmarked():
    """Log records as outside of any run: one that another test left in mid-air may not have been collected yet."""
    factory = logging.getLogRecordFactory()
    logging.setLogRecordFactory(logging.LogRecord)
    yield
    logging.setLogRecordFactory(factory)


@pytest.mark.usefixtures("unmarked")
def test_structlog_shows_every_field(capsys):
    """U-22: through its formatter for the standard log, a line has the event's name and all its fields."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logger = logging.getLogger("outlast")
    logger.addHandler(handler)
    emit(SAMPLES[0])
    logger.removeHandler(handler)
    assert json.loads(capsys.readouterr().out) == SAMPLES[0].as_dict() | {"level": "warning"}


# --- without the extras ---


@pytest.mark.parametrize(("room", "extra"), [("prometheus", "metrics"), ("otel", "otel")])
def test_without_its_library_a_room_says_what_to_install(room, extra):
    """The core needs neither; who asks for a room is told which extra it needs."""
    story = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\nimport outlast.observe.{room}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", story], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith(
        f"Error: outlast.observe.{room} needs an extra: pip install 'outlast[{extra}]'"
    )


def test_observing_loads_no_library_of_metrics():
    """Whoever only subscribes a hook pays for nothing else."""
    story = "import sys, outlast; outlast.observe.subscribe(print)\nprint({'prometheus_client', 'opentelemetry'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", story], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --- states, fallbacks, rejections ---


def test_a_breaker_has_a_state_from_the_beginning(registry):
    """D-28: one that was made before the metrics, and one that was made after them; an alert needs data before anything happens."""
    before = CircuitBreaker("before", failure_threshold=1)
    opened = CircuitBreaker("opened", failure_threshold=1)
    opened.isolate("test")
    uninstall = prometheus.install(registry)
    after = CircuitBreaker("after", failure_threshold=1)
    states = {name: value for (metric, name), value in exposed(registry).items() if metric == "outlast_breaker_state"}
    assert states == {
        f"breaker={name} state={state}": float(state == found)
        for name, found in (("before", "closed"), ("opened", "open"), ("after", "closed"))
        for state in ("closed", "half_open", "open")
    }
    after.isolate("test")
    assert exposed(registry)["outlast_breaker_state", "breaker=after state=open"] == 1
    uninstall()
    del before, opened
    assert CircuitBreaker("later").state == "closed"  # nobody is told any more


def test_fallbacks_rejections_and_failing_hooks_are_counted(counted):
    """D-28, D-26: stale answers and calls that were kept away have a number, and so has a hook that fails."""

    def hook(_):
        raise ValueError

    def down():
        raise ConnectionRefusedError

    breaker = CircuitBreaker("shop", failure_threshold=1)
    guard = Guard("price", retry=policy(1), breaker=breaker, fallback=lambda: "stale")
    end = observe.subscribe(hook)
    try:
        with virtual_time():
            assert [guard.call(down) for _ in range(4)] == ["stale"] * 4
    finally:
        end()
    numbers = exposed(counted)
    assert numbers["outlast_fallbacks_total", "error_class=connection_refused step_name=price"] == 1
    assert numbers["outlast_fallbacks_total", "error_class=circuit_open step_name=price"] == 3
    assert numbers["outlast_calls_rejected_total", "by=breaker which=shop step_name=price"] == 3
    assert [value for (name, _), value in numbers.items() if name == "outlast_hook_failures_total"] == [9]


def test_a_breaker_is_made_although_its_watcher_fails(caplog):
    """D-26: keeping its state is no part of it."""

    def watcher(_):
        raise ValueError("hunter2")

    unwatch = observe.watch(watcher)
    try:
        assert [CircuitBreaker(f"watched {number}").state for number in range(2)] == ["closed", "closed"]
    finally:
        unwatch()
    assert [record.message.partition(" failed ")[2] for record in caplog.records] == [
        "with ValueError; what it watches went on"
    ]


def test_a_change_that_was_only_learnt_is_not_counted():
    """D-18: of all processes that share a circuit one counts the transition."""
    learnt = told.CircuitBreakerClosed(breaker="b", failure_count=0, reason="x", learnt=True)
    assert [sample for sample in Samples().of(learnt) if sample.metric is TRANSITIONS] == []
