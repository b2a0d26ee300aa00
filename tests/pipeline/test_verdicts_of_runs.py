"""What a run that failed is to those who decide about another attempt: jobs, `classify`, retries around it."""

import pickle

import pytest

import outlast
from outlast import RetryPolicy, RunFailed, classify
from outlast.kernel.clock import stopping
from outlast.testing import temporary_store, virtual_time, work

ONCE = RetryPolicy(max_attempts=1)
TWICE = RetryPolicy(max_attempts=2, initial_delay=0.1)


class Wrapped(Exception):
    """One that no rule knows."""


def refused(x):
    raise ConnectionRefusedError("the service is away")


def wrong(x):
    raise ValueError("not a number")


def mixed(x):
    raise ConnectionRefusedError("away") if x % 3 else ValueError("wrong")


def mixed_evenly(x):
    raise ConnectionRefusedError("away") if x % 2 else ValueError("wrong")


def mostly_wrong(x):
    # Of each service that is away there are fewer items than wrong ones, of all of them together there are more.
    raise ValueError("wrong") if x < 8 else ConnectionRefusedError(f"service {'abcdefghijkl'[x % 12]} is away")


def locked_out(x):
    raise ConnectionRefusedError("away") if x < 5 else outlast.PermanentFailure("no", error_class="auth_error")


def own_word(x):
    raise outlast.PermanentFailure("never", error_class="timeout")


def own_name(x):
    raise outlast.TemporaryFailure("later", error_class="shop_closed")


def busy_of_a_class(x):
    raise outlast.TemporaryFailure("busy", error_class="validation_error")


def busy_of_an_unclear_class(x):
    raise outlast.TemporaryFailure("busy", error_class="resource_exhausted")


def busy_or_wrong(x):
    raise outlast.TemporaryFailure("busy", error_class="data_error") if x % 3 else ValueError("wrong")


def unknown(x):
    raise RuntimeError("what is it")


def spends(x):
    outlast.current().spend(usd=1)
    refused(x)


def run_of(app, fn, *, retry=ONCE, breaker=None, **options):
    guard = None if breaker is None else outlast.Guard(breaker=breaker)
    return outlast.Pipeline(fn.__name__, outlast.stage(retry=retry, guard=guard, concurrency=1)(fn), app=app, **options)


def end_of(run, items=20, **options):
    with pytest.raises(RunFailed) as failed:
        run.run(range(items), **options)
    return failed.value


def test_a_run_that_failed_is_what_most_of_its_items_failed_with():
    """The class with the most failed items decides, whatever their messages; a transient one if two are equal."""
    app = outlast.App("verdicts")
    away = outlast.CircuitBreaker("verdicts-away", failure_threshold=3, reset_timeout=1)
    table = [
        (run_of(app, refused), {}, "connection_refused", "transient"),
        (run_of(app, wrong), {}, "data_error", "permanent"),
        (run_of(app, mixed), {}, "connection_refused", "transient"),
        (run_of(app, mixed_evenly), {}, "connection_refused", "transient"),
        (run_of(app, mostly_wrong), {}, "connection_refused", "transient"),
        (run_of(app, mostly_wrong), {"items": 12}, "data_error", "permanent"),
        (run_of(app, own_word), {}, "timeout", "permanent"),
        (run_of(app, own_name), {}, "shop_closed", "transient"),
        (run_of(app, busy_of_a_class), {}, "validation_error", "transient"),
        (run_of(app, busy_of_a_class, retry=TWICE), {}, "validation_error", "transient"),
        (run_of(app, busy_of_an_unclear_class), {}, "resource_exhausted", "transient"),
        (run_of(app, busy_or_wrong), {}, "data_error", "transient"),
        (run_of(app, unknown), {}, "unknown", "unclear"),
        (run_of(app, refused, breaker=away), {}, "circuit_open", "transient"),
        (run_of(app, locked_out), {}, "auth_error", "permanent"),
        (run_of(app, spends, spend_limit={"usd": 3}), {}, "permanent_failure", "permanent"),
        (run_of(app, refused, min_success_rate=1.0, min_partial_rate=0.0), {}, "connection_refused", "transient"),
    ]
    found, expected = [], []
    with temporary_store(app), virtual_time():
        for run, options, error_class, category in table:
            error = end_of(run, **options)
            # Also of one that was sent here, and under another exception.
            copy = pickle.loads(pickle.dumps(error))
            outer = Wrapped("the nightly import failed")
            outer.__cause__ = error
            found.append(
                (run.name, {(classify(each).error_class, classify(each).category) for each in (error, copy, outer)})
            )
            expected.append((run.name, {(error_class, category)}))
    assert found == expected


def test_a_run_that_was_stopped_is_transient_and_a_cancelled_one_is_not():
    """Pending items can be done later, unless an operator has said that they are not to be."""
    app = outlast.App("verdicts-stopped")
    found = {}
    for how in ("pause", "cancel"):

        def stops(x, how=how):
            run = next(run for run in app.store.runs() if run.status == "running")
            app.store.request_end(run.id, how)
            assert stopping.get().wait(20)
            return x

        with temporary_store(app):
            error = end_of(run_of(app, stops), items=200)
            found[error.result.status] = classify(error).category
    assert found == {"paused": "transient", "cancelled": "permanent"}


def test_an_inner_retry_owns_the_run_that_failed():
    """A retry around a run whose items were tried again stops at once; around one whose items were not, it goes on."""
    app = outlast.App("verdicts-owned")
    found = {}
    with temporary_store(app), virtual_time():
        for retry in (ONCE, TWICE):
            run, calls = run_of(app, refused, retry=retry), []

            @outlast.retry(max_attempts=3)
            def nightly(run=run, calls=calls):
                calls.append("run")
                run.run(range(3))

            with pytest.raises(RunFailed) as failed:
                nightly()
            found[retry.max_attempts] = (len(calls), outlast.stop_reason(failed.value))
    assert found == {1: (3, "exhausted"), 2: (1, "nested_exhausted")}


def test_a_run_whose_items_must_not_be_done_twice_is_not_tried_again():
    """An outcome that is unknown stays with the items: neither a retry nor a job around the run does them once more."""
    app = outlast.App("verdicts-ambiguous")
    calls = []

    @outlast.stage(guard=outlast.Guard(idempotent=False))
    def charge(x):
        calls.append(x)
        raise ConnectionResetError("the answer was lost")

    charges = outlast.Pipeline("charges", charge, app=app)

    @app.job
    def bill():
        charges.run([1])

    with temporary_store(app), virtual_time():
        with pytest.raises(RunFailed):
            outlast.retry(max_attempts=3)(charges.run)([1])
        assert calls == [1]
        job = bill.enqueue()
        work(app)
        assert (calls, [(row.error_class, row.stop_reason) for row in job.history()]) == (
            [1, 1],
            [("connection_reset", "ambiguous")],
        )


def test_a_job_around_a_run_is_tried_again_as_one_around_a_call():
    """D-42: an outage inside of a run, of an async one, of a flow and under another exception is one of the job."""
    app = outlast.App("verdicts-jobs")
    labels = run_of(app, refused, retry=TWICE)
    broken = run_of(app, wrong)

    def of_job(fn):
        return app.job(fn)

    @of_job
    def direct():
        refused(1)

    @of_job
    def over_items():
        labels.run(range(20), run_key="k")

    @of_job
    async def over_items_async():
        await labels.arun(range(20))

    @of_job
    def over_a_stream():
        list(labels.stream(range(20)))

    @of_job
    def under_another():
        try:
            labels.run(range(20))
        except RunFailed as failed:
            raise Wrapped("no labels today") from failed

    @of_job
    def over_wrong_items():
        broken.run(range(20))

    with temporary_store(app):
        handles = [job.enqueue() for job in (direct, over_items, over_items_async, over_a_stream, under_another)]
        bad = over_wrong_items.enqueue()
        work(app)
        found = {job.kind: [(row.error_class, row.stop_reason) for row in job.history()] for job in handles}
        assert found == {
            job.kind: [("connection_refused", None)] * 3 + [("connection_refused", "exhausted")] for job in handles
        }
        assert [(row.error_class, row.stop_reason) for row in bad.history()] == [("data_error", "permanent")]


FLOW = """
oml_version: "0.1.0"
name: trip
steps:
  - id: ask
    component: python
    config: {call: "verdict_shop:ask"}
    retry: {max_attempts: 2, initial_delay_ms: 100}
    idempotent: true
"""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("ConnectionRefusedError", ("connection_refused", "transient")),
        ("ValueError", ("data_error", "permanent")),
    ],
)
def test_a_flow_that_failed_is_what_its_step_failed_with(tmp_path, monkeypatch, error, expected):
    """D-42: also when it is read from the store by a run that has nothing to do, and where it was sent."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "verdict_shop", raising=False)
    (tmp_path / "verdict_shop.py").write_text(f"def ask(): raise {error}('away')\n")
    (tmp_path / "trip.yaml").write_text(FLOW)
    app = outlast.App("verdicts-flow", store=f"sqlite:///{tmp_path}/flow.db")
    flow = outlast.Flow.load("trip.yaml")
    with virtual_time():
        with pytest.raises(outlast.FlowFailed) as failed:
            flow.run(app=app, run_key="k")
        with pytest.raises(outlast.FlowFailed) as again:
            flow.run(app=app, run_key="k", check=False).raise_for_status()
        stored = again.value
        for each in (failed.value, stored, pickle.loads(pickle.dumps(failed.value))):
            assert (classify(each).error_class, classify(each).category) == expected
        around = []

        @outlast.retry
        def twice():
            around.append("run")
            flow.run(app=app)

        with pytest.raises(outlast.FlowFailed):
            twice()
        assert around == ["run"]
