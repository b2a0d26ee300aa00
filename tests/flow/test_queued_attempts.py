"""Attempts of a flow in a queue are retries of its job: events, rows, counters and the two rates say so."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import pairwise

import pytest

import outlast
from flow.test_jobs import Trip
from outlast.flow.record import result_of_record
from outlast.store.troubles import GivenUp, RetryTotal, Step, StepRate
from outlast.testing import capture_events, virtual_time

HOUR = 3_600_000_000
STEPS = """
from pathlib import Path

HERE = Path(__file__).parent

def load(n, fails, kind="reset"):
    import psycopg2
    path = HERE / f"{n}.calls"
    made = len(path.read_text()) if path.exists() else 0
    path.write_text("." * (made + 1))
    if made < fails:
        raise {
            "reset": ConnectionResetError("the line is cut"),
            "database": psycopg2.OperationalError("server closed the connection unexpectedly"),
            "value": ValueError("no such order"),
        }[kind]
    return {"n": n}
"""
LOAD = """
name: orders
params: {n: {type: integer}, fails: {type: integer}, kind: {type: string, default: reset}}
steps:
  - id: load
    component: python
    config: {call: "MODULE:load", args: {n: "${params.n}", fails: "${params.fails}", kind: "${params.kind}"}}
    idempotent: true
"""


@pytest.fixture
def trip(project):
    return Trip(project)


@pytest.fixture
def orders(project, app):
    project.functions(STEPS)

    def enqueue(n, **params):
        return project.load(LOAD, params={"n": n, **params}).enqueue(app=app, run_key=f"order {n}")

    return enqueue


def told(events):
    names = ("step_retry_attempt", "step_success", "step_retry_exhausted", "step_error_permanent")
    return [(event.name, event.attempt, event.max_attempts) for event in events if event.name in names]


def test_three_failures_and_a_success_are_three_retries(app, orders):
    """S0-35, S0-38, S2-25, S2-27: nothing gave up, so nothing says so; each row says when the next attempt was due."""
    handles = [orders(n, fails=3) for n in range(4)]
    with virtual_time(), capture_events() as events:
        outlast.testing.work(app)
    assert {handle.status for handle in handles} == {"succeeded"}
    retries = [("step_retry_attempt", number, 4) for number in (1, 2, 3)]
    assert sorted(told(events)) == sorted([*retries, ("step_success", 4, 4)] * 4)
    assert app.store.retry_totals() == [RetryTotal("load", "network", 12, 4, 0)]
    assert app.store.given_up("network", HOUR) == []
    rows = handles[0].result().steps[0].attempts
    assert [(row.outcome, row.stop_reason, row.next_run_at is None) for row in rows] == [
        *[("failed", None, False)] * 3,
        ("succeeded", None, True),
    ]
    for row, following in pairwise(rows):
        assert abs(row.next_run_at - following.started_at) < timedelta(seconds=2)


def test_what_gives_up_is_reported_once_at_the_end(app, orders):
    """S0-38, S2-25, S2-27: after the last attempt of the job, and with the reason."""
    handle = orders(1, fails=9)
    with virtual_time(), capture_events() as events:
        outlast.testing.work(app)
    assert handle.status == "failed"
    assert told(events) == [
        *(("step_retry_attempt", number, 4) for number in (1, 2, 3)),
        ("step_retry_exhausted", 4, 4),
    ]
    assert app.store.retry_totals() == [RetryTotal("load", "network", 3, 0, 1)]
    (given_up,) = app.store.given_up("network", HOUR)
    assert given_up[:3] == GivenUp(Step("orders", "load"), "network", 1, 0)[:3]
    rows = app.store.step_attempts(app.store.find_run("orders", "order 1").number)
    assert [(row.stop_reason, row.next_run_us is None) for row in rows] == [*[(None, False)] * 3, ("exhausted", True)]


def test_retries_of_step_and_job_are_counted_together(app, project):
    """S0-38: a step with two attempts in each of the job's four has seven retries in every event."""
    project.functions("def load():\n    raise ConnectionResetError('the line is cut')\n")
    text = """
name: orders
steps:
  - id: load
    component: python
    config: {call: "MODULE:load"}
    idempotent: true
    retry: {max_attempts: 2, initial_delay_ms: 100, jitter: 0}
"""
    project.load(text).enqueue(app=app, run_key="order")
    with virtual_time(), capture_events() as events:
        outlast.testing.work(app)
    names = ("step_retry_attempt", "step_retry_exhausted")
    assert [event.max_retries for event in events if event.name in names] == [7] * 8


def test_a_requeue_by_hand_counts_anew(app, orders):
    """S2-25: the attempts before it were given up; those after it are the job's first ones again."""
    handle = orders(1, fails=5)
    with virtual_time(), capture_events() as events:
        outlast.testing.work(app)
        app.jobs.requeue(handle.id, reason="the line is back")
        outlast.testing.work(app)
    assert handle.status == "succeeded"
    assert told(events)[3:] == [("step_retry_exhausted", 4, 4), ("step_retry_attempt", 1, 4), ("step_success", 2, 4)]
    assert app.store.retry_totals() == [RetryTotal("load", "network", 4, 1, 1)]
    record = app.store.retry_record("load", HOUR)
    assert [(one.retry, one.tried, one.succeeded) for one in record] == [(1, 2, 1), (2, 1, 0), (3, 1, 0)]


def test_an_error_that_no_retry_helps_is_reported_at_once(app, orders):
    """S0-38: the job is not tried again, and neither is the step."""
    handle = orders(1, fails=9, kind="value")
    with virtual_time(), capture_events() as events:
        outlast.testing.work(app)
    assert (handle.status, told(events)) == ("failed", [("step_error_permanent", 1, 4)])
    assert app.store.retry_totals() == []


def test_flows_that_needed_a_retry_for_their_database_are_counted(app, orders):
    """S2-26: each run is one operation of its step, and each needed a retry."""
    for n in range(3):
        orders(n, fails=1, kind="database")
    orders(3, fails=0)
    with virtual_time():
        outlast.testing.work(app)
    (rate,) = app.store.step_rates("database", HOUR)
    assert rate[:3] == StepRate(Step("orders", "load"), 4, 3, 0)[:3]
    assert app.store.retry_totals() == [RetryTotal("load", "database", 3, 3, 0)]


def test_retries_of_a_step_and_of_its_job_are_one_history(app, trip):
    """S0-35, S0-38: two attempts in each of four attempts of the job are eight, and only the eighth gives up."""
    trip.plays(pay="reset")
    trip.load().enqueue(app=app, run_key="monday")
    with virtual_time(), capture_events() as events:
        outlast.testing.work(app)
    assert told(events) == [
        *(("step_retry_attempt", number, 8) for number in range(1, 8)),
        ("step_retry_exhausted", 8, 8),
    ]
    run = app.store.find_run("trip", "monday")
    rows = [row for row in app.store.step_attempts(run.number) if (row.step, row.deed) == ("pay", "do")]
    assert [row.stop_reason for row in rows] == [*[None] * 7, "exhausted"]
    assert all(row.next_run_us for row in rows[:7])


def test_a_step_counts_its_own_attempts_and_not_those_of_the_steps_before_it(app, trip):
    """S0-38: the second attempt of the job is the first of `pay`, which has three left; its success at once is no retry."""
    trip.plays(book="reset ok", pay="reset ok")
    trip.load(retry="{max_attempts: 1}").enqueue(app=app, run_key="monday")
    with virtual_time(), capture_events() as events:
        outlast.testing.work(app)
    assert [(event.step_id, *told([event])[0]) for event in events if told([event])] == [
        ("book", "step_retry_attempt", 1, 4),
        ("book", "step_success", 2, 4),
        ("pay", "step_retry_attempt", 1, 3),
        ("pay", "step_success", 2, 3),
    ]


def test_steps_of_flows_are_operations_each_in_its_run(app, trip):
    """S2-26, S2-27: what undoes a step is an operation of its own; a job that runs a flow is none, its steps are."""
    trip.plays(book="reset ok", pay="value", unbook="reset")
    trip.load().enqueue(app=app, run_key="monday")
    trip.plays(book="ok")
    trip.load().enqueue(app=app, run_key="tuesday")
    with virtual_time():
        outlast.testing.work(app)
    (rate,) = app.store.step_rates("network", HOUR)
    assert rate[:3] == StepRate(Step("trip", "book"), 4, 2, 0)[:3]  # two runs, each with what undoes it
    assert [one[:3] for one in app.store.given_up("network", HOUR)] == [(Step("trip", "book"), "network", 2)]
    assert app.store.step_rates("database", HOUR) == []


def test_what_undoes_a_step_gives_up_by_itself(app, trip):
    """S0-38: the job is not tried again for a compensation, which is an operation of its own."""
    trip.plays(pay="value", unbook="reset")
    trip.load().enqueue(app=app, run_key="monday")
    with virtual_time(), capture_events() as events:
        outlast.testing.work(app)
    assert told(events) == [
        ("step_error_permanent", 1, 8),
        ("step_retry_attempt", 1, 2),
        ("step_retry_exhausted", 2, 2),
    ]
    assert app.store.retry_totals() == [RetryTotal("book", "network", 1, 0, 1)]


def test_a_run_that_waits_for_its_job_has_not_given_up(app, trip):
    """S0-35: neither the run nor its step names a reason to stop, while another attempt is due."""
    trip.plays(pay="reset")
    trip.load(retry="{max_attempts: 1}").enqueue(app=app, run_key="monday")
    app.work(until_idle=True)
    run = trip.run(app, "monday")
    assert (run.status, run.reason) == ("interrupted", "requeued")
    assert "pay failed (connection_reset): the line is cut" in run.why
    step = result_of_record(app.store, app.codec, run).steps[1]
    assert (step.id, step.stop_reason, step.attempts[0].next_run_at is not None) == ("pay", None, True)


def test_a_step_that_its_limit_refuses_costs_the_job_no_attempt(app, trip):
    """D-8: nothing was called. The job comes back when the limit has a place, as often as it takes."""
    more = "    limit: {name: desk, rates: {calls: 1/10m}, max_wait_ms: 1000}\n"
    text = "name: trip\nsteps:\n" + "".join(
        f'  - id: {name}\n    component: python\n    needs: []\n    config: {{call: "MODULE:{name}"}}\n{more}'
        for name in ("pay", "send")
    )
    handle = trip.load(text=text).enqueue(app=app, run_key="monday")
    with virtual_time() as time:
        outlast.testing.work(app)
    assert (handle.status, handle.attempts, sorted(trip.notes)) == ("succeeded", 1, ["pay", "send"])
    *snoozed, last = [(one.outcome, one.error_class) for one in handle.history()]
    assert (set(snoozed), last) == ({("snoozed", None)}, ("succeeded", None))
    assert 590 <= time.now < 1300


def test_a_step_behind_an_open_circuit_costs_the_job_no_attempt(app, trip):
    """D-8: the job waits until the circuit lets a call through, and has its other attempts then."""
    trip.plays(pay="reset ok")
    more = "circuit_breaker: {failure_threshold: 1, reset_timeout_s: 7200, half_open_requests: 1}"
    text = f"""
name: trip
steps:
  - {{id: pay, component: python, config: {{call: "MODULE:pay"}}, retry: {{max_attempts: 1}}, idempotent: true, {more}}}
"""
    handle = trip.load(text=text).enqueue(app=app, run_key="monday")
    with virtual_time() as time:
        outlast.testing.work(app)
    assert (handle.status, handle.attempts, trip.notes) == ("succeeded", 2, ["pay", "pay"])
    first, *snoozed, last = [one.outcome for one in handle.history()]
    assert (first, set(snoozed), last) == ("failed", {"snoozed"}, "succeeded")
    assert 7190 <= time.now < 11000


ROWS = """
name: batch
params: {fails: {type: integer}}
steps:
  - id: each
    component: python
    for_each: {items: [{n: 1}, {n: 2}]}
    config: {call: "MODULE:load", args: {n: "${item.n}", fails: "${params.fails}"}}
    idempotent: true
"""
ITEMS = """
name: batch
params: {fails: {type: integer}, numbers: {type: list, default: [1, 2]}}
steps:
  - id: each
    component: pipeline
    config: {target: "MODULE:labels", input: "${params.numbers}"}
    idempotent: true
"""
LABELS = """
import outlast

@outlast.stage(retry=outlast.RetryPolicy(max_attempts=1))
def label(n):
    return load(n, FAILS)

labels = outlast.Pipeline("labels", label)
"""


@pytest.mark.parametrize("component", ["rows", "items"])
@pytest.mark.parametrize(("fails", "gave_up"), [(1, 0), (9, 2)])
def test_rows_and_items_give_up_when_their_job_does(app, project, component, fails, gave_up):
    """S0-38, S2-25, S2-27: while an attempt of the job is left, the failure of a row is followed by another attempt."""
    project.functions(STEPS + LABELS.replace("FAILS", str(fails)))
    flow = project.load(ROWS if component == "rows" else ITEMS, params={"fails": fails})
    handle = flow.enqueue(app=app, run_key="monday")
    with virtual_time(), capture_events() as events:
        outlast.testing.work(app)
    assert handle.status == ("failed" if gave_up else "succeeded")
    of_rows = Counter(event.name for event in events if event.pipeline != "batch" and event.name.startswith("step_"))
    failures = 2 if not gave_up else 8
    assert (of_rows["step_retry_attempt"], of_rows["step_retry_exhausted"]) == (failures - gave_up, gave_up)
    assert sum(one.times for one in app.store.given_up("network", HOUR) if one.step.pipeline != "batch") == gave_up
    assert sum(total.exhausted for total in app.store.retry_totals()) == (gave_up + 1 if gave_up else 0)
