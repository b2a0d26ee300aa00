"""Figures of jobs: what a store has on record, added up; the same after every restart, on both databases."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import groupby

import jsonschema
import prometheus_client
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import outlast
from job_hands import Hands
from job_rows import end
from labor import wait_until
from outlast import JobFigures
from outlast.components.answers import json_of
from outlast.observe import otel, prometheus
from outlast.observe.figures import Backlog, JobTally, QueueBacklog, figures_of
from outlast.observe.metrics import MOST, OTHER, Samples
from outlast.testing import work

QUICK = outlast.RetryPolicy(max_attempts=3, initial_delay=30.0, jitter=0)
COUNTS = ("succeeded", "failed", "timeout", "crashed")

# --- pure: rows to figures ---

ended = st.fixed_dictionaries(
    {
        "kind": st.sampled_from("ab"),
        "queue": st.sampled_from("xy"),
        "status": st.sampled_from(["succeeded", "failed", "cancelled"]),
        "error_class": st.sampled_from([None, "validation_error", "invalid_output", "timeout", "data_error"]),
        "attempts": st.integers(0, 5),
        "waited_us": st.integers(0, 10**12),
        "delayed_us": st.integers(0, 10**12),
        "backoff_us": st.integers(0, 10**12),
        "queued_us": st.integers(0, 10**12),
        "schema": st.booleans(),
    }
)


def tallied(jobs: list[dict]) -> list[JobTally]:
    """As the database does it."""

    def key(job):
        failed = job["status"] == "failed"
        return (
            *(job["kind"], job["queue"], job["status"]),
            *((job["error_class"] or "",) if failed else ("",)),
        )

    return [
        JobTally(
            *(kind, queue, status, error_class or None, len(some)),
            sum(job["attempts"] > 1 for job in some),
            sum(job["attempts"] for job in some),
            sum(job["waited_us"] for job in some),
            delayed_us=sum(job["delayed_us"] for job in some),
            backoff_us=sum(job["backoff_us"] for job in some),
            queued_us=sum(job["queued_us"] for job in some),
            schema=sum(job["schema"] and job["status"] == "failed" for job in some),
        )
        for (kind, queue, status, error_class), found in groupby(sorted(jobs, key=key), key)
        if (some := list(found))
    ]


@given(st.lists(ended, max_size=30), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_figures_are_those_of_the_jobs_one_by_one(jobs, kinds, queues):
    """S1-22, S1-23, C-12: each by its definition, whatever the groups are."""
    found = figures_of(tallied(jobs), kinds=kinds, queues=queues)
    groups = {(job["kind"] if kinds else None, job["queue"] if queues else None) for job in jobs}
    assert [(one.kind, one.queue) for one in found] == sorted(groups, key=str)
    for one in found:
        mine = [job for job in jobs if one.kind in {None, job["kind"]} and one.queue in {None, job["queue"]}]
        over = [job for job in mine if job["status"] != "cancelled"]
        good = [job for job in over if job["status"] == "succeeded"]
        bad = [job for job in over if job["status"] == "failed"]
        schema = [job for job in bad if job["schema"]]
        assert (one.succeeded, one.failed, one.cancelled, one.ended) == (
            len(good),
            len(bad),
            len(mine) - len(over),
            len(over),
        )
        assert one.attempts == sum(job["attempts"] for job in over)
        expected = {
            "retry_rate": (sum(job["attempts"] > 1 for job in over), len(over)),
            "failure_rate": (len(bad), len(over)),
            "mean_time_to_success": (sum(job["waited_us"] for job in good) / 1e6, len(good)),
            "mean_delay": (sum(job["delayed_us"] for job in good) / 1e6, len(good)),
            "mean_backoff": (sum(job["backoff_us"] for job in good) / 1e6, len(good)),
            "mean_wait": (sum(job["queued_us"] for job in good) / 1e6, len(good)),
            "schema_failure_share": (len(schema), len(bad)),
            "retry_amplification": (one.attempts, len(over)),
        }
        for name, (part, whole) in expected.items():
            assert getattr(one, name) == (pytest.approx(part / whole) if whole else None), name
        assert one.retry_rate is None or 0 <= one.retry_rate <= 1
        assert one.failure_rate is None or 0 <= one.failure_rate <= 1
        assert one.schema_failure_share is None or 0 <= one.schema_failure_share <= 1


def test_of_nothing_there_are_no_figures():
    assert figures_of([]) == []
    assert figures_of([], kinds=False, queues=False) == []
    (only,) = figures_of([JobTally("send", "mail", "cancelled", jobs=2)])
    assert only == JobFigures(kind="send", queue="mail", cancelled=2)


# --- what is on record ---


def lived(app):
    """Jobs that ended in every way."""

    @app.job(retry=QUICK, queue="mail")
    def send(to: str) -> str:
        if to == "eve" or (to == "bob" and outlast.current().attempt == 1):
            raise ConnectionResetError("hung up")
        return to

    @app.job(retry=QUICK)
    def parse(text: str) -> int:
        try:
            return json.loads(text)
        except ValueError:
            raise outlast.PermanentFailure("the answer is no JSON", error_class="invalid_output") from None

    @app.job(retry=QUICK)
    def waits() -> None:
        if outlast.current().attempt == 1 and not hurried:
            hurried.append(1)
            raise outlast.Snooze(600)

    hurried = []
    send.enqueue_many([{"to": "ann"}, {"to": "bob"}, {"to": "eve"}])
    parse.enqueue("{")
    parse.enqueue("7")
    waits.enqueue()
    app.jobs.cancel(send.options(delay=60, queue="slow").enqueue("cancelled").id)
    return work(app)


def test_figures_of_what_is_on_record(app):
    """S1-22, S1-23, C-12: retry rate, final failure rate, mean time to success, share of schema failures, amplification."""
    result = lived(app)
    assert (result.succeeded, result.failed) == (4, 2)
    parse, send, waits = app.jobs.figures(window=3600 * 24)
    assert (parse.kind, parse.queue, parse.succeeded, parse.failed) == ("parse", None, 1, 1)
    assert (parse.retry_rate, parse.failure_rate, parse.schema_failure_share, parse.retry_amplification) == (
        0,
        0.5,
        1,
        1,
    )
    assert (send.kind, send.ended, send.cancelled, send.attempts) == ("send", 3, 1, 6)  # of ann 1, of bob 2, of eve 3
    assert (send.retry_rate, send.failure_rate, send.schema_failure_share) == (2 / 3, 1 / 3, 0)
    assert send.retry_amplification == 2
    assert 15 <= send.mean_time_to_success < 30  # ann at once, bob after 30 s
    # Neither the attempt that was snoozed counts nor the time that it asked for, which is a delay.
    assert (waits.succeeded, waits.attempts, waits.retry_rate, waits.retry_amplification) == (1, 1, 0, 1)
    assert waits.mean_time_to_success < 30
    assert 600 <= waits.mean_delay < 700
    assert waits.schema_failure_share is None


def test_bad_input_is_no_failure_of_a_schema(app):
    """S1-13, S1-23: only output that was marked so counts; input that is missing, refused or no JSON does not."""

    @app.job(retry=QUICK)
    def report(why: str) -> None:
        if why == "JSONDecodeError":
            json.loads("{")
        raise outlast.PermanentFailure("it cannot be used", error_class=why)

    for why in ("validation_error", "JSONDecodeError", "missing_input", "data_error", "invalid_output"):
        report.enqueue(why)
    work(app)
    (figures,) = app.jobs.figures()
    assert (figures.failed, figures.attempts, figures.schema_failure_share) == (5, 5, 1 / 5)


class Stars(pydantic.BaseModel):
    stars: int


CHECKS = {
    "json.loads": json.loads,
    "pydantic": Stars.model_validate_json,
    "jsonschema": lambda raw: jsonschema.validate({"stars": raw}, {"properties": {"stars": {"type": "integer"}}}),
    "json_of": json_of,
}


@pytest.mark.parametrize("check", CHECKS)
def test_output_that_was_kept_and_does_not_fit_is_a_failure_of_a_schema(app, check):
    """S1-23: whatever checks it, if the attempt that failed has kept what it checked; another error of it does not count."""

    @app.job(retry=QUICK)
    def review(raw: str) -> None:
        outlast.current().keep("answer", raw)
        CHECKS[check](raw)

    @app.job(retry=QUICK)
    def other(raw: str) -> None:
        outlast.current().keep("answer", raw)
        raise ValueError("not of the output")

    review.enqueue("{")
    other.enqueue("{")
    work(app)
    found = {one.kind: one.schema_failure_share for one in app.jobs.figures()}
    assert found == {"review": 1, "other": 0}


def test_what_an_earlier_attempt_has_kept_says_nothing_of_the_last_one(app):
    """S1-23: an answer that was kept by the attempt before is not what failed."""

    @app.job(retry=outlast.RetryPolicy(max_attempts=2, initial_delay=30.0, jitter=0))
    def review() -> None:
        if outlast.current().attempt == 1:
            outlast.current().keep("answer", "{}")
            raise ConnectionResetError("hung up")
        json.loads("{")

    review.enqueue()
    work(app)
    (figures,) = app.jobs.figures()
    assert (figures.failed, figures.schema_failure_share) == (1, 0)


def test_a_delay_that_was_asked_for_backoff_and_a_wait_are_told_apart(app):
    """S1-25: time to success has neither the delay of the enqueuer nor the snooze; of the rest, backoff and wait are parts."""

    @app.job(retry=QUICK)
    def delayed() -> None: ...

    @app.job(retry=QUICK)
    def retried() -> None:
        if outlast.current().attempt < 3:
            raise ConnectionResetError("hung up")

    delayed.options(delay=3600).enqueue()
    delayed.options(delay=1800).enqueue()
    retried.options(delay=600).enqueue()
    work(app)
    late, again = app.jobs.figures(window=3600 * 24)
    assert (late.kind, late.mean_delay, late.mean_backoff) == ("delayed", pytest.approx(2700, abs=1), 0)
    assert late.mean_time_to_success == pytest.approx(late.mean_wait, abs=1)
    assert late.mean_time_to_success < 30
    assert (again.kind, again.mean_delay) == ("retried", pytest.approx(600, abs=1))
    assert again.mean_backoff == pytest.approx(60, abs=1)  # twice 30 s
    assert 59 <= again.mean_time_to_success < 90
    assert again.mean_wait <= again.mean_time_to_success - again.mean_backoff + 0.1


def test_a_wait_for_a_worker_is_no_backoff(app):
    """S1-25: a job that nobody takes for ten minutes has waited, and was not delayed."""

    @app.job(retry=QUICK)
    def plain() -> None: ...

    plain.enqueue()
    with app.store._database.writing() as tx:
        tx.execute(
            "update outlast_jobs set enqueued = enqueued - 600000000, due = due - 600000000, first_due = first_due - 600000000"
        )
    work(app)
    (figures,) = app.jobs.figures()
    assert (figures.mean_delay, figures.mean_backoff) == (0, 0)
    assert 600 <= figures.mean_wait <= figures.mean_time_to_success + 1e-6 < 660


def test_a_requeue_by_hand_is_no_retry(app):
    """S1-22, S1-25: neither a retry nor an attempt of the new round, and the time that it was failed is not in its time to success."""

    @app.job(retry=QUICK)
    def fatal() -> None:
        if not mended:
            raise ValueError("wrong")

    mended = []
    handle = fatal.enqueue()
    work(app)
    (before,) = app.jobs.figures()
    assert (before.failed, before.retry_rate, before.attempts) == (1, 0, 1)
    with app.store._database.writing() as tx:
        tx.execute("update outlast_jobs set enqueued = enqueued - 7200000000, first_due = first_due - 7200000000")
    mended.append(True)
    app.jobs.requeue(handle.id)
    work(app)
    (figures,) = app.jobs.figures()
    assert (figures.succeeded, figures.attempts, figures.retry_rate, figures.retry_amplification) == (1, 1, 0, 1)
    assert figures.mean_time_to_success < 60
    assert (figures.mean_delay, figures.mean_backoff) == (0, 0)


def cannot_refund() -> None:
    raise ValueError("the bank is closed")


def test_only_a_requeue_begins_a_new_round(app):
    """S1-22, S1-25: what was tried before the compensation is done by hand is still counted."""

    @app.job(retry=QUICK)
    def pay() -> None:
        outlast.current().compensate(cannot_refund)
        raise ConnectionResetError("hung up")

    handle = pay.enqueue()
    work(app)
    assert (handle.status, handle.compensation) == ("failed", "failed")
    (before,) = app.jobs.figures()
    app.jobs.undo(handle.id)
    (after,) = app.jobs.figures()
    assert (after, after.attempts, after.retry_rate, after.retry_amplification) == (before, 3, 1, 3)


def test_figures_are_those_of_each_job_on_record(app):
    """The database adds up what `history` says of each job; by kind, by queue, by both, and of all."""
    lived(app)
    for by in ((), ("kind",), ("queue",), ("kind", "queue")):
        handles = [handle for handle in app.jobs.find() if handle.status in {"succeeded", "failed"}]
        for one in app.jobs.figures(by=by):
            mine = [
                handle for handle in handles if one.kind in {None, handle.kind} and one.queue in {None, handle.queue}
            ]
            tries = [sum(row.outcome in COUNTS for row in handle.history()) for handle in mine]
            assert (one.ended, one.attempts) == (len(mine), sum(tries))
            assert one.retry_rate == (sum(number > 1 for number in tries) / len(tries) if tries else None)
    (everything,) = app.jobs.figures(by=())
    assert (everything.kind, everything.queue, everything.succeeded, everything.failed) == (None, None, 4, 2)
    assert everything.cancelled == 1


def test_figures_are_the_same_after_a_restart(app):
    lived(app)
    again = outlast.App(app.name, store=app.store_url)
    assert again.jobs.figures(by=("kind", "queue")) == app.jobs.figures(by=("kind", "queue"))
    again.store.close()


def test_crashes_count_and_what_is_given_back_does_not(app):
    """As for the policy: a crash is charged, a release is not."""

    @app.job
    def note() -> None: ...

    note.enqueue()
    hands = Hands(app)
    for outcome in ("crashed", "released", "succeeded"):
        (claimed,) = hands.take()
        state = "succeeded" if outcome == "succeeded" else "ready"
        hands.finish(end(claimed, state, outcome, charged=outcome != "released"))
    (figures,) = app.jobs.figures()
    assert (figures.succeeded, figures.attempts, figures.retry_rate, figures.retry_amplification) == (1, 2, 1, 2)


@pytest.mark.parametrize("outcome", ["failed", "timeout", "crashed"])
def test_the_pause_after_each_kind_of_failure_is_backoff(app, outcome):
    """S1-25: a job that crashed twice and waits to run alone waits for no worker."""

    @app.job
    def note() -> None: ...

    note.enqueue()
    hands = Hands(app)
    (claimed,) = hands.take()
    hands.finish(end(claimed, "waiting", outcome, delay_us=300_000))
    (again,) = wait_until(hands.take, "the job is due")
    hands.finish(end(again))
    (figures,) = app.jobs.figures()
    assert figures.mean_backoff == pytest.approx(0.3, abs=0.05)
    assert figures.mean_wait <= figures.mean_time_to_success - figures.mean_backoff + 0.1


def test_only_what_ended_within_the_window_counts(app):
    @app.job
    def note() -> None: ...

    for _ in range(3):
        note.enqueue()
    work(app)
    with app.store._database.writing() as tx:
        tx.execute(
            "update outlast_jobs set ended = ended - 7200000000 where id in (select min(id) from outlast_jobs where app = ?)",
            app.name,
        )
    assert [app.jobs.figures(window=window)[0].succeeded for window in (3600, timedelta(hours=3))] == [2, 3]
    assert app.jobs.figures(window=1e-6) == []


def test_a_window_that_cannot_be_true_is_refused(sqlite_app):
    """Jobs that succeeded are kept for seven days: of older ones only failures are on record."""
    with pytest.raises(outlast.ConfigurationError, match="expected window to be at most 7 days, got: 8 days"):
        sqlite_app.jobs.figures(window=8 * 86400)
    for wrong in ({"window": 0}, {"window": "x"}, {"by": ("kinds",)}, {"by": "kind"}):
        with pytest.raises(outlast.ConfigurationError):
            sqlite_app.jobs.figures(**wrong)


def test_what_was_kept_is_counted(app):
    """S1-23, U-11: raw output that broke its schema, also of an attempt that failed; only of the window."""
    registry = prometheus_client.CollectorRegistry()
    uninstall = prometheus.install(registry)

    @app.job(retry=QUICK)
    def ask(answer: str) -> int:
        outlast.current().keep("raw", answer)
        if not answer.startswith("{"):
            raise outlast.PermanentFailure("the answer is no JSON", error_class="invalid_output")
        return json.loads(answer)["pages"]

    @app.job(queue="mail")
    def send() -> None: ...

    try:
        ask.enqueue("no json")
        ask.enqueue('{"pages": 3}')
        send.enqueue()
        work(app)
        asked, sent = app.jobs.figures()
        assert (asked.kind, asked.artifacts, asked.schema_failure_share, asked.failed) == ("ask", 2, 1, 1)
        assert (sent.kind, sent.artifacts) == ("send", 0)
        labels = {"app": app.name, "kind": "ask", "queue": "default"}
        assert registry.get_sample_value("outlast_job_artifacts", labels) == 2
    finally:
        uninstall()
    with app.store._database.writing() as tx:
        tx.execute("update outlast_artifacts set kept = kept - 7200000000 where kind = 'job'")
    assert app.jobs.figures(window=3600)[0].artifacts == 0


# --- metrics ---


def test_the_figures_are_metrics(app):
    """U-22: read from the store when they are asked for, with few labels."""
    registry = prometheus_client.CollectorRegistry()
    uninstall = prometheus.install(registry)
    try:
        lived(app)
        labels = {"app": app.name, "kind": "parse", "queue": "default"}
        found = {
            name: registry.get_sample_value(f"outlast_job_{name}", labels)
            for name in ("retry_rate", "failure_rate", "schema_failure_share", "retry_amplification")
        }
        assert found == {"retry_rate": 0, "failure_rate": 0.5, "schema_failure_share": 1, "retry_amplification": 1}
        assert registry.get_sample_value("outlast_job_success_seconds_mean", labels) < 60
        ended_now = {
            status: registry.get_sample_value("outlast_jobs_ended", labels | {"status": status})
            for status in ("succeeded", "failed", "cancelled")
        }
        assert ended_now == {"succeeded": 1, "failed": 1, "cancelled": 0}
        waits = labels | {"kind": "waits"}
        assert (
            registry.get_sample_value("outlast_job_schema_failure_share", waits) is None
        )  # of no failure there is no share
    finally:
        uninstall()


def test_the_figures_by_opentelemetry(sqlite_app):
    """Each gauge has its own numbers."""
    reader = InMemoryMetricReader()
    uninstall = otel.install(meter_provider=MeterProvider([reader]))
    try:
        lived(sqlite_app)
        told = {
            metric.name: [
                point.value
                for point in metric.data.data_points
                if point.attributes.get("app") == sqlite_app.name and point.attributes["kind"] == "parse"
            ]
            for resource in reader.get_metrics_data().resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name.startswith("outlast_job_") and metric.name.endswith(("rate", "share", "amplification"))
        }
        assert told == {
            "outlast_job_retry_rate": [0],
            "outlast_job_failure_rate": [0.5],
            "outlast_job_schema_failure_share": [1],
            "outlast_job_retry_amplification": [1],
        }
    finally:
        uninstall()


def test_labels_stay_few_and_their_shares_true():
    """Kinds beyond the bound are one group, whose figures are those of all of them."""

    class Place:
        app = "shop"

        def open_letters(self):
            return {}

        def job_tallies(self, window):
            return [
                JobTally(f"k{number}", "q", "failed" if number % 2 else "succeeded", jobs=1, attempts=1)
                for number in range(MOST + 10)
            ]

    samples = [sample for sample in Samples()._jobs([Place()]) if sample.metric.name == "outlast_job_failure_rate"]
    assert len(samples) == MOST + 1
    (other,) = [sample for sample in samples if sample.labels["kind"] == OTHER]
    assert other.value == 0.5


def waiting(app):
    """One queue with a job that may start and one that is due later, a paused one, and a worker that has one job."""

    @app.job
    def note() -> None: ...

    note.enqueue()
    hands = Hands(app)
    hands.take()
    note.enqueue()
    note.options(delay=600).enqueue()
    note.options(queue="mail").enqueue()
    app.jobs.pause("mail")
    return hands


BACKLOG = ("jobs_queued", "jobs_scheduled", "jobs_processing", "queue_paused")


def test_the_backlog_is_metrics(app, monkeypatch):
    """U-22: what waits, is processed and is paused, and who works, as `jobs stats` counts it; a queue keeps its 0."""
    monkeypatch.setattr("outlast.pipeline.home._OFTEN", 0.0)
    monkeypatch.setattr("outlast.pipeline.home._RARER", 0.0)
    registry = prometheus_client.CollectorRegistry()
    uninstall = prometheus.install(registry)

    def read(queue):
        labels = {"app": app.name, "queue": queue}
        return [registry.get_sample_value(f"outlast_{name}", labels) for name in BACKLOG]

    def wait(queue):
        return registry.get_sample_value("outlast_jobs_oldest_wait_seconds", {"app": app.name, "queue": queue})

    try:
        waiting(app)
        assert (read("default"), read("mail")) == ([1, 1, 1, 0], [1, 0, 0, 1])
        assert registry.get_sample_value("outlast_workers_alive", {"app": app.name}) == 1
        with app.store._database.writing() as tx:
            tx.execute("update outlast_jobs set due = due - 60000000 where queue = 'mail'")
        assert 60 <= wait("mail") < 120
        app.jobs.resume("mail")
        for handle in app.jobs.find(queue="mail"):
            app.jobs.cancel(handle.id)
        assert (read("mail"), wait("mail")) == ([0, 0, 0, 0], 0)
        with app.store._database.writing() as tx:
            tx.execute("update outlast_leases set until = 1 where kind = 'worker'")
        assert registry.get_sample_value("outlast_workers_alive", {"app": app.name}) == 0
    finally:
        uninstall()


def test_the_store_is_not_asked_for_its_backlog_at_every_read(sqlite_app):
    """A long queue takes long to count: the answer holds for five seconds, however many gauges come from it."""
    before = sqlite_app.commons.backlog()
    waiting(sqlite_app)
    assert sqlite_app.commons.backlog() is before


def test_the_backlog_by_opentelemetry(sqlite_app):
    """U-22: each gauge has its own numbers."""
    reader = InMemoryMetricReader()
    uninstall = otel.install(meter_provider=MeterProvider([reader]))
    try:
        waiting(sqlite_app)
        told = {
            metric.name.removeprefix("outlast_"): {
                point.attributes.get("queue"): point.value
                for point in metric.data.data_points
                if point.attributes.get("app") == sqlite_app.name
            }
            for resource in reader.get_metrics_data().resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
    finally:
        uninstall()
    assert [told[name]["default"] for name in BACKLOG] == [1, 1, 1, 0]
    assert [told[name]["mail"] for name in BACKLOG] == [1, 0, 0, 1]
    assert told["workers_alive"] == {None: 1}
    assert told["jobs_oldest_wait_seconds"]["mail"] >= 0


def test_queues_beyond_the_bound_are_counted_together():
    """No queue is lost, nor remembered for ever; many together are neither paused nor not."""

    class Place:
        app = "shop"

        def backlog(self):
            return Backlog([QueueBacklog(f"q{n}", queued=2, paused=True, oldest_wait=n) for n in range(MOST + 10)], 3)

    samples, place = Samples(), Place()
    for _ in range(2):
        found = list(samples._backlog([place]))
        other = {one.metric.name: one.value for one in found if one.labels.get("queue") == OTHER}
        assert other == {
            "outlast_jobs_queued": 20,
            "outlast_jobs_scheduled": 0,
            "outlast_jobs_processing": 0,
            "outlast_jobs_oldest_wait_seconds": MOST + 9,
        }
        assert [one.value for one in found if one.metric.name == "outlast_workers_alive"] == [3]
        assert len(found) == 1 + 5 * MOST + 4
    assert len(samples._queues[place]) == MOST
