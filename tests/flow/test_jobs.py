"""Flows as durable jobs: a worker goes on with the same run until it is completed, or has failed and is undone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from datetime import datetime

import pytest

import outlast
from forked import Forked
from labor import Beside, laborer, outcomes, wait_until
from outlast.alerts import evaluate, rules_from
from outlast.alerts.reading import facts_of
from outlast.kernel.clock import REAL, roll_for
from outlast.report.views import Views
from outlast.store.troubles import RetryTotal
from outlast.testing import capture_events, virtual_time

FUNCTIONS = '''
import os, signal, threading
from pathlib import Path

HERE = Path(__file__).parent

def note(line):
    with (HERE / "notes").open("a") as notes:
        notes.write(line + "\\n")

def play(name):
    """Do what the script of this function says for this call; the last line holds for all that follow."""
    made = (HERE / "notes").read_text().splitlines().count(name) if (HERE / "notes").exists() else 0
    note(name)
    script = (HERE / f"{name}.script").read_text().split() if (HERE / f"{name}.script").exists() else ["ok"]
    what = script[min(made, len(script) - 1)]
    if what == "reset":
        raise ConnectionResetError("the line is cut")
    if what == "value":
        raise ValueError("no such card")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hold":
        while not (HERE / f"{name}.go").exists():
            threading.Event().wait(0.005)
        note(f"{name} ends")

def book():
    play("book")
    return {"number": 7}

def unbook(number):
    play("unbook")

def pay(token=""):
    play("pay")
    return {"length": len(token)}

def send():
    play("send")
'''
TRIP = """
name: trip
steps:
  - id: book
    component: python
    config: {call: "MODULE:book"}
    idempotent: true
    compensate: {component: python, config: {call: "MODULE:unbook", args: {number: "${steps.book.outputs.number}"}}, UNDO}
  - id: pay
    component: python
    config: {call: "MODULE:pay"}
    retry: RETRY
    idempotent: true
  - id: send
    component: python
    config: {call: "MODULE:send"}
"""
TWICE = "{max_attempts: 2, initial_delay_ms: 100, jitter: 0}"


class Trip:
    """A flow of three steps, each of which does what its script says, and what has happened to it."""

    def __init__(self, project):
        self.project = project
        project.functions(FUNCTIONS)

    def load(self, *, retry=TWICE, undo="", text=TRIP, **options):
        undo = undo or "retry: {max_attempts: 2, initial_delay_ms: 100, jitter: 0}"
        return self.project.load(text.replace("RETRY", retry).replace("UNDO", undo), **options)

    def plays(self, **scripts):
        for name, script in scripts.items():
            (self.project.root / f"{name}.script").write_text(script)

    def go(self, name):
        (self.project.root / f"{name}.go").touch()

    @property
    def notes(self):
        path = self.project.root / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def run(self, app, key):
        return app.store.find_run("trip", key)

    def states(self, app, key):
        rows = app.store.flow_steps(self.run(app, key).number)
        return {f"{row.deed} {row.step}": row.state for row in rows}

    def attempts(self, app, key):
        return [(row.deed, row.step, row.outcome) for row in app.store.step_attempts(self.run(app, key).number)]


@pytest.fixture
def trip(project):
    return Trip(project)


# -- attempts of the job ---------------------------------------------------------------------------------------------------


def test_an_exhausted_step_is_requeued_and_only_that_step_is_done_again(app, trip):
    """D-8: fast retries inside, slow ones outside; each attempt of the job goes on at the failed step, with fresh attempts."""
    trip.plays(pay="reset reset reset ok")
    handle = trip.load().enqueue(app=app, run_key="monday")
    with virtual_time() as time, capture_events() as events:
        result = outlast.testing.work(app)
    assert (result.succeeded, result.requeued, result.failed) == (1, 1, 0)
    assert trip.notes == ["book", "pay", "pay", "pay", "pay", "send"]
    first, second = handle.history()
    assert (first.outcome, first.error, first.error_class) == ("failed", "the line is cut", "connection_reset")
    assert (second.outcome, second.number) == ("succeeded", 2)
    assert 24 <= time.now <= 40
    came = handle.result()
    assert (came.status, came.run_key, handle.run_key) == ("completed", "monday", "monday")
    assert [(step.id, step.status, len(step.attempts)) for step in came.steps] == [
        ("book", "succeeded", 1),
        ("pay", "succeeded", 4),
        ("send", "succeeded", 1),
    ]
    assert came["book"].outputs["number"] == 7
    ends = [(event.status, event.reason) for event in events if event.name == "run_finished"]
    assert ends == [("interrupted", "requeued"), ("completed", None)]
    assert list(app.dead_letters.find()) == []


def test_what_was_done_is_undone_after_the_last_attempt_only(app, trip):
    """D-8, C-11: nothing is undone while the job comes back; then everything is, and the job tells it in one dead letter."""
    trip.plays(pay="reset")
    handle = trip.load().enqueue(app=app, run_key="monday")
    assert outlast.testing.work(app).failed == 1
    assert trip.notes == ["book", *["pay"] * 8, "unbook"]
    assert (handle.status, handle.attempts, handle.error) == ("failed", 4, "the line is cut")
    assert outcomes(handle) == ["failed"] * 4
    assert trip.states(app, "monday") == {
        "do book": "compensated",
        "undo book": "succeeded",
        "do pay": "failed",
    }
    run = trip.run(app, "monday")
    assert (run.status, run.reason) == ("failed", "step_failed")
    (letter,) = app.dead_letters.find()
    assert (letter.kind, letter.item_key, letter.stop_reason) == ("job", handle.id, "exhausted")
    with pytest.raises(outlast.JobFailed, match="the line is cut") as failed:
        handle.result()
    assert (failed.value.error_class, failed.value.stop_reason) == ("connection_reset", "exhausted")
    assert "run key: monday" in failed.value.__notes__


def test_a_flow_with_nothing_to_undo_is_requeued_too(app, trip):
    """Whether a step can be undone has nothing to do with whether it is tried again."""
    trip.plays(pay="reset reset ok")
    text = """
name: trip
steps:
  - {id: pay, component: python, config: {call: "MODULE:pay"}, idempotent: true}
"""
    handle = trip.load(text=text).enqueue(app=app, run_key="monday")
    outlast.testing.work(app)
    assert (handle.status, outcomes(handle), trip.notes) == (
        "succeeded",
        ["failed", "failed", "succeeded"],
        ["pay"] * 3,
    )


def test_a_decorrelated_wait_follows_the_one_before_it_in_the_queue(sqlite_app, trip):
    """S0-10: the second wait is drawn from the first one, which another pass of the run has made."""
    trip.plays(pay="reset reset ok")
    given = {"max_attempts": 3, "initial_delay": 60.0, "max_delay": 36_000.0, "jitter": "decorrelated"}
    policy = outlast.RetryPolicy(**given)
    more = "{max_attempts: 3, initial_delay_ms: 60000, max_delay_ms: 36000000, jitter: decorrelated}"
    trip.load(retry=more).enqueue(app=sqlite_app, run_key="monday")
    with virtual_time():
        outlast.testing.work(sqlite_app)
    run = trip.run(sqlite_app, "monday")
    rows = [row for row in sqlite_app.store.step_attempts(run.number) if row.step == "pay"]
    first = policy.delay(1, roll_for(run.id, 1, "pay", "do", 1))
    second = policy.delay(2, roll_for(run.id, 1, "pay", "do", 2), previous=first)
    for row, wait in zip(rows, (first, second), strict=False):
        assert wait - 0.01 <= (row.next_run_us - row.started_us - row.took_us) / 1e6 < wait + 10


def test_a_compensation_is_announced_once_however_often_it_is_tried(sqlite_app, trip):
    """Its second attempt is made in another pass of the run, for the queue waits for it."""
    trip.plays(pay="value", unbook="reset ok")
    undo = "retry: {max_attempts: 2, initial_delay_ms: 60000, max_delay_ms: 60000, jitter: 0}"
    trip.load(undo=undo).enqueue(app=sqlite_app, run_key="monday")
    with virtual_time(), capture_events() as events:
        outlast.testing.work(sqlite_app)
    assert trip.notes == ["book", "pay", "unbook", "unbook"]
    assert [event.name for event in events if event.name.startswith("compensation")] == [
        *("compensation_triggered", "compensation_completed"),
    ]


def test_a_compensation_that_fails_in_a_job_is_a_dead_letter(sqlite_app, trip):
    """C-21: beside that of the job, also where the step has none, for somebody has to undo it by hand."""
    trip.plays(pay="value", unbook="value")
    text = TRIP.replace(
        "    idempotent: true\n    compensate", "    idempotent: true\n    dead_letter: false\n    compensate"
    )
    trip.load(text=text).enqueue(app=sqlite_app, run_key="monday")
    outlast.testing.work(sqlite_app)
    letters = {letter.kind: letter for letter in sqlite_app.dead_letters.find()}
    assert set(letters) == {"job", "compensation"}
    assert (letters["compensation"].stage, letters["compensation"].error_class) == ("book", "data_error")


def test_a_permanent_error_is_undone_at_once(app, trip):
    """The policy decides about the step's own error: what cannot get better costs one attempt of the job."""
    trip.plays(pay="value")
    handle = trip.load().enqueue(app=app, run_key="monday")
    outlast.testing.work(app)
    assert trip.notes == ["book", "pay", "unbook"]
    assert (handle.status, handle.attempts, handle.history()[0].stop_reason) == ("failed", 1, "permanent")
    assert handle.history()[0].error_type == "ValueError"
    assert "in pay" in handle.history()[0].traceback


def test_of_two_failed_steps_the_one_that_is_not_tried_again_decides(app, trip):
    """Side by side, one fails with what may pass and one with what does not: the job has failed with the second."""
    text = """
name: trip
steps:
  - {id: book, component: python, config: {call: "MODULE:book"}, idempotent: true, needs: []}
  - {id: pay, component: python, config: {call: "MODULE:pay"}, idempotent: true, needs: []}
"""
    trip.plays(book="reset", pay="value")
    handle = trip.load(text=text).enqueue(app=app, run_key="monday")
    outlast.testing.work(app)
    assert sorted(set(trip.notes)) in (["book", "pay"], ["pay"])
    assert (handle.status, handle.error, outcomes(handle)[-1]) == ("failed", "no such card", "failed")


def test_a_failure_that_nobody_has_decided_about_is_decided_when_the_run_goes_on(app, trip):
    """The process has ended right after the step has failed: it is tried again if the job has attempts for its error."""
    trip.plays(pay="reset ok")
    handle = trip.load(retry="{max_attempts: 1}").enqueue(app=app, run_key="monday")
    app.work(until_idle=True)
    run = trip.run(app, "monday")
    with app.store._database.writing() as tx:
        tx.execute("update outlast_runs set status = 'running', reason = null where id = ?", run.id)
    outlast.testing.work(app)
    assert (handle.status, trip.notes) == ("succeeded", ["book", "pay", "pay", "send"])


def test_a_step_that_wants_no_second_layer_is_not_requeued(app, trip):
    """D-8: with retry_exhausted: false what a step has retried in vain is not tried again by the job."""
    trip.plays(pay="reset")
    retry = "{max_attempts: 2, initial_delay_ms: 100, jitter: 0, retry_exhausted: false}"
    handle = trip.load(retry=retry).enqueue(app=app, run_key="monday")
    outlast.testing.work(app)
    assert trip.notes == ["book", "pay", "pay", "unbook"]
    assert (handle.attempts, handle.history()[0].stop_reason) == (1, "nested_exhausted")


def test_an_operator_who_requeues_gets_a_new_round(app, trip):
    """What was undone is done again, and nothing else is carried over."""
    trip.plays(pay="value ok")
    handle = trip.load().enqueue(app=app, run_key="monday")
    outlast.testing.work(app)
    app.jobs.requeue(handle.id, reason="the card is there now")
    outlast.testing.work(app)
    assert trip.notes == ["book", "pay", "unbook", "book", "pay", "send"]
    assert (handle.status, handle.result().status) == ("succeeded", "completed")


def test_a_replay_of_the_dead_letter_does_the_same(app, trip):
    """The letter of a job is replayed by putting the job back; it is resolved by its success."""
    trip.plays(pay="value ok")
    handle = trip.load().enqueue(app=app, run_key="monday")
    outlast.testing.work(app)
    assert app.dead_letters.replay(pipeline="trip").requeued == (handle.id,)
    outlast.testing.work(app)
    assert (handle.status, [letter.status for letter in app.dead_letters.find(status="resolved")]) == (
        "succeeded",
        ["resolved"],
    )


# -- waits -----------------------------------------------------------------------------------------------------------------


def test_a_long_wait_gives_the_worker_back(app, trip):
    """C-11: more than 30 s between two attempts of a step are waited for in the queue, and cost the job nothing."""
    trip.plays(pay="reset ok")
    handle = trip.load(retry="{max_attempts: 2, initial_delay_ms: 300000, max_delay_ms: 300000, jitter: 0}").enqueue(
        app=app, run_key="monday"
    )
    result = app.work(until_idle=True)
    assert (result.requeued, result.later, handle.status, handle.attempts) == (1, 1, "queued", 0)
    (row,) = handle.history()
    assert row.outcome == "snoozed"
    assert 295 <= (handle.next_run_at - row.started_at).total_seconds() <= 301
    assert trip.states(app, "monday") == {"do book": "succeeded", "do pay": "waiting"}
    run = trip.run(app, "monday")
    assert (run.status, run.reason) == ("interrupted", "requeued")
    assert outlast.testing.work(app).succeeded == 1
    assert (trip.notes, handle.attempts) == (["book", "pay", "pay", "send"], 1)


def test_the_total_timeout_of_a_step_counts_across_the_attempts_of_its_job(app, trip):
    """C-19: a step that waits in the queue has only the rest of its total afterwards. After a failed attempt of its job it has all of it."""
    trip.plays(pay="reset reset reset ok")
    retry = (
        "{max_attempts: 5, initial_delay_ms: 60000, max_delay_ms: 60000, jitter: 0}\n    timeout: {total_ms: 100000}"
    )
    handle = trip.load(retry=retry).enqueue(app=app, run_key="monday")
    outlast.testing.work(app)
    assert trip.notes == ["book", "pay", "pay", "pay", "pay", "send"]
    assert (handle.status, outcomes(handle)) == ("succeeded", ["snoozed", "failed", "snoozed", "succeeded"])
    pay = [one for one in app.store.step_attempts(trip.run(app, "monday").number) if one.step == "pay"]
    assert [(one.round, one.stop_reason) for one in pay] == [(1, None), (1, None), (2, None), (2, None)]


def test_a_long_wait_while_undoing_gives_the_worker_back_too(app, trip):
    """C-11: what undoes a step waits in the queue as well, and the job fails when that is over."""
    trip.plays(pay="value", unbook="reset ok")
    undo = "retry: {max_attempts: 2, initial_delay_ms: 300000, max_delay_ms: 300000, jitter: 0}"
    handle = trip.load(undo=undo).enqueue(app=app, run_key="monday")
    app.work(until_idle=True)
    assert (handle.status, outcomes(handle)) == ("queued", ["snoozed"])
    outlast.testing.work(app)
    assert trip.notes == ["book", "pay", "unbook", "unbook"]
    assert (handle.status, outcomes(handle), handle.error) == ("failed", ["snoozed", "failed"], "no such card")
    last = handle.history()[-1]
    assert (last.error_type, last.error_class, last.stop_reason) == ("ValueError", "data_error", "permanent")


def test_short_waits_stay_with_the_worker(app, trip):
    """C-11: 30 s and less are waited for in the step."""
    trip.plays(pay="reset ok")
    handle = trip.load(retry="{max_attempts: 2, initial_delay_ms: 30000, jitter: 0}").enqueue(app=app)
    outlast.testing.work(app)
    assert (outcomes(handle), trip.notes) == (["succeeded"], ["book", "pay", "pay", "send"])


def test_an_open_circuit_gives_the_worker_back(app, trip):
    """C-11: nothing is called while it is open; the job is due when it may be tried, and no attempt is counted for that."""
    trip.plays(pay="reset ok")
    circuit = """{max_attempts: 1}
    circuit_breaker: {failure_threshold: 1, reset_timeout_ms: 300000, shared: false}"""
    handle = trip.load(retry=circuit).enqueue(app=app, run_key="monday")
    with virtual_time() as time:
        outlast.testing.work(app)
    assert trip.notes == ["book", "pay", "pay", "send"]
    # The queue and the circuit have a clock each: it may come a moment too early, and is put off once more.
    first, *waits, last = outcomes(handle)
    assert (handle.status, first, set(waits), last, handle.attempts) == (
        "succeeded",
        "failed",
        {"snoozed"},
        "succeeded",
        2,
    )
    assert len(waits) <= 2
    assert 300 <= time.now <= 305


def test_what_could_not_be_undone_has_a_letter_of_its_own(app, trip):
    """The job's letter tells of the step, the other one of what stands."""
    trip.plays(pay="value", unbook="value")
    handle = trip.load().enqueue(app=app, run_key="monday")
    outlast.testing.work(app)
    assert trip.notes == ["book", "pay", "unbook"]
    letters = {letter.kind: letter for letter in app.dead_letters.find()}
    assert {kind: letter.error for kind, letter in letters.items()} == {
        "job": "no such card",
        "compensation": "no such card",
    }
    assert (handle.status, trip.run(app, "monday").reason) == ("failed", "compensation_failed")


def test_two_steps_that_wait_are_gone_on_with_when_the_first_is_due(app, trip):
    """The queue waits for the earliest of them."""
    text = """
name: trip
steps:
  - {id: book, component: python, config: {call: "MODULE:book"}, idempotent: true, needs: [],
     retry: {max_attempts: 2, initial_delay_ms: 100000, max_delay_ms: 100000, jitter: 0}}
  - {id: pay, component: python, config: {call: "MODULE:pay"}, idempotent: true, needs: [],
     retry: {max_attempts: 2, initial_delay_ms: 200000, max_delay_ms: 200000, jitter: 0}}
"""
    trip.plays(book="reset ok", pay="reset ok")
    handle = trip.load(text=text).enqueue(app=app, run_key="monday")
    with virtual_time() as time:
        outlast.testing.work(app)
    assert (handle.status, outcomes(handle)) == ("succeeded", ["snoozed", "snoozed", "succeeded"])
    assert 199 <= time.now <= 203


# -- crashes ---------------------------------------------------------------------------------------------------------------


def dies(app, folder):
    """A worker that a step kills."""
    with laborer(app, folder, until_idle=True) as process:
        process.wait()
        assert process.returncode == -signal.SIGKILL


def comes_due(app, handle):
    """What a worker finds to do is done, also to take jobs over from one that is gone; then the job is due."""
    app.work(until_idle=True)
    assert handle.status == "queued"
    with app.store._database.writing() as tx:
        tx.execute(f"update outlast_jobs set due = {app.store._database.now} where id = ?", int(handle.id))


@pytest.mark.timeout(240)
def test_a_killed_worker_repeats_nothing_that_is_done(app, trip, tmp_path):
    """D-16: killed in the middle of a step; the next worker goes on with that step, which has lost no attempt."""
    trip.plays(pay="kill reset ok")
    handle = trip.load().enqueue(app=app, run_key="monday")
    dies(app, tmp_path)
    assert trip.notes == ["book", "pay"]
    outlast.testing.work(app)
    assert trip.notes == ["book", "pay", "pay", "pay", "send"]
    assert (handle.status, handle.crashes, outcomes(handle)) == ("succeeded", 1, ["crashed", "succeeded"])
    assert [one for one in trip.attempts(app, "monday") if one[1] == "pay"] == [
        ("do", "pay", "crashed"),
        ("do", "pay", "failed"),
        ("do", "pay", "succeeded"),
    ]


@pytest.mark.timeout(240)
def test_a_worker_killed_while_it_undoes_is_taken_over(app, trip, tmp_path):
    """What was begun to be undone goes on first; no step is done again, and the job fails with the step's own error."""
    trip.plays(pay="value", unbook="kill ok")
    handle = trip.load().enqueue(app=app, run_key="monday")
    dies(app, tmp_path)
    assert trip.notes == ["book", "pay", "unbook"]
    outlast.testing.work(app)
    assert trip.notes == ["book", "pay", "unbook", "unbook"]
    assert (handle.status, outcomes(handle), handle.error) == ("failed", ["crashed", "failed"], "no such card")
    assert (handle.history()[-1].error_type, handle.history()[-1].stop_reason) == ("ValueError", "permanent")
    assert trip.states(app, "monday")["do book"] == "compensated"


@pytest.mark.timeout(240)
def test_a_worker_killed_between_attempts_of_the_job_changes_nothing(app, trip, tmp_path):
    """The run waits on record; whoever claims the job next goes on with it."""
    trip.plays(pay="reset reset kill ok")
    handle = trip.load().enqueue(app=app, run_key="monday")
    with laborer(app, tmp_path) as process:
        wait_until(lambda: outcomes(handle) == ["failed"], "the first attempt is over")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    run = trip.run(app, "monday")
    assert (run.status, run.reason, handle.status) == ("interrupted", "requeued", "queued")
    comes_due(app, handle)
    dies(app, tmp_path)
    outlast.testing.work(app)
    assert trip.notes == ["book", "pay", "pay", "pay", "pay", "send"]
    assert outcomes(handle) == ["failed", "crashed", "succeeded"]
    assert app.store.retry_totals() == [RetryTotal("pay", "network", 2, 1, 0)]  # a crash is no retry


@pytest.mark.timeout(240)
def test_attempts_used_up_by_crashes_still_undo(app, trip, tmp_path):
    """No attempt is left after two failures and two crashes: nothing is begun any more, and what was done is undone."""
    trip.plays(pay="reset kill")
    handle = trip.load(retry="{max_attempts: 1}").enqueue(app=app, run_key="monday")
    with app.store._database.writing() as tx:
        tx.execute("update outlast_jobs set attempts = 2 where id = ?", int(handle.id))
    comes_due(app, handle)  # the third attempt fails
    dies(app, tmp_path)  # the fourth crashes
    assert trip.notes == ["book", "pay", "pay"]
    outlast.testing.work(app)
    assert trip.notes == ["book", "pay", "pay", "unbook"]
    assert (handle.status, outcomes(handle)) == ("failed", ["failed", "crashed", "failed"])
    assert (handle.history()[-1].error_class, handle.history()[-1].stop_reason) == ("worker_lost", "exhausted")
    run = trip.run(app, "monday")
    assert (run.status, run.reason) == ("failed", "exhausted")
    (letter,) = app.dead_letters.find()
    assert (letter.kind, letter.stop_reason) == ("job", "exhausted")
    trip.plays(pay="reset kill ok")
    app.jobs.requeue(handle.id)
    outlast.testing.work(app)
    assert trip.notes[4:] == ["book", "pay", "send"]


@pytest.mark.timeout(240)
def test_a_flow_that_is_done_when_its_attempts_are_used_up_has_succeeded(app, trip):
    """Whoever finds all steps done undoes none of them, also if the job has no attempt left."""
    handle = trip.load().enqueue(app=app, run_key="monday")
    trip.load().run(app=app, run_key="monday")
    with app.store._database.writing() as tx:
        tx.execute("update outlast_jobs set attempts = 4, crashes = 2 where id = ?", int(handle.id))
    outlast.testing.work(app)
    assert (handle.status, trip.notes) == ("succeeded", ["book", "pay", "send"])


@pytest.mark.timeout(240)
def test_a_step_that_kills_three_workers_is_poison_and_is_compensated(app, trip, tmp_path):
    """D-16, C-21: the step is not tried again, the job fails as poison, and what was completed is compensated, as in a direct run."""
    trip.plays(pay="kill")
    handle = trip.load().enqueue(app=app, run_key="monday")
    for _ in range(2):
        dies(app, tmp_path)
    comes_due(app, handle)
    dies(app, tmp_path)
    outlast.testing.work(app)
    assert trip.notes == ["book", "pay", "pay", "pay", "unbook"]
    assert (handle.status, handle.crashes, outcomes(handle)) == ("failed", 3, [*["crashed"] * 3, "failed"])
    run = trip.run(app, "monday")
    assert (run.status, handle.history()[-1].stop_reason) == ("failed", "poison")
    (letter,) = app.dead_letters.find()
    assert (letter.kind, letter.stop_reason) == ("job", "poison")
    trip.plays(pay="ok")
    app.jobs.requeue(handle.id)
    outlast.testing.work(app)
    assert (handle.status, trip.notes[5:]) == ("succeeded", ["book", "pay", "send"])


@pytest.mark.timeout(240)
def test_a_compensation_that_kills_three_workers_is_poison(app, trip, tmp_path):
    """A step and then its compensation crash their workers three times each: both are bounded, and the job ends with what is left."""
    trip.plays(pay="kill", unbook="kill kill kill")
    handle = trip.load(undo="retry: {max_attempts: 9, initial_delay_ms: 1, jitter: 0}").enqueue(
        app=app, run_key="monday"
    )
    for crash in range(6):
        if crash > 1:
            comes_due(app, handle)
        dies(app, tmp_path)
    outlast.testing.work(app)
    assert trip.notes == ["book", *["pay"] * 3, *["unbook"] * 3]
    assert (handle.status, handle.crashes) == ("failed", 6)
    assert {letter.kind for letter in app.dead_letters.find()} == {"job", "compensation"}


@pytest.mark.timeout(240)
def test_a_step_that_must_not_be_done_twice_is_not_done_again_after_a_crash(app, trip, tmp_path):
    """It may have been done: the run is undone, and neither the job nor an attempt of it does the step again."""
    trip.plays(send="kill ok")
    text = TRIP.replace('config: {call: "MODULE:send"}', 'config: {call: "MODULE:send"}\n    idempotent: false')
    handle = trip.load(text=text).enqueue(app=app, run_key="monday")
    dies(app, tmp_path)
    outlast.testing.work(app)
    assert trip.notes == ["book", "pay", "send", "unbook"]
    assert (handle.status, handle.history()[-1].stop_reason) == ("failed", "ambiguous")


def test_an_end_that_only_the_run_knows_is_that_of_the_job(app, trip):
    """The worker ended between the end of the run and that of the job: nothing is begun anew."""
    trip.plays(pay="value")
    handle = trip.load().enqueue(app=app, run_key="monday")
    outlast.testing.work(app)
    with app.store._database.writing() as tx:
        now = app.store._database.now
        tx.execute(
            f"update outlast_jobs set state = 'ready', due = {now}, ended = null, attempts = 1 where id = ?",
            int(handle.id),
        )
    outlast.testing.work(app)
    assert trip.notes == ["book", "pay", "unbook"]
    assert (handle.status, handle.error, handle.history()[-1].stop_reason) == ("failed", "no such card", "permanent")


# -- workers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(240)
def test_a_worker_that_ends_gives_the_flow_back(app, trip):
    """It begins no further step, and waits for the one that runs; the job is given back, which costs no attempt."""
    trip.plays(pay="hold ok")
    handle = trip.load().enqueue(app=app, run_key="monday")
    with Beside(app) as worker:
        wait_until(lambda: "pay" in trip.notes, "the step has begun")
        worker.worker.ask_soon()
        wait_until(lambda: worker.worker.view().drains_until is not None, "the worker ends")
        trip.go("pay")
        wait_until(lambda: handle.status == "queued", "it is given back")
    assert (worker.result.released, handle.status, handle.attempts) == (1, "queued", 0)
    assert trip.notes == ["book", "pay", "pay ends"]
    assert trip.states(app, "monday") == {"do book": "succeeded", "do pay": "succeeded"}
    assert trip.run(app, "monday").status == "interrupted"
    outlast.testing.work(app)
    assert (trip.notes, outcomes(handle)) == (["book", "pay", "pay ends", "send"], ["released", "succeeded"])


@pytest.mark.timeout(240)
def test_a_step_that_outlives_its_worker_is_no_crash(app, trip):
    """A worker that is asked twice does not wait for the step: given back, it is done again, and is nobody's poison."""
    trip.plays(pay="hold ok")
    handle = trip.load().enqueue(app=app, run_key="monday")
    with Beside(app) as worker:
        wait_until(lambda: "pay" in trip.notes, "the step has begun")
        worker.worker.ask_soon()
        worker.worker.ask_soon()
        wait_until(lambda: handle.status == "queued", "it is given back")
        trip.go("pay")
    assert trip.states(app, "monday") == {"do book": "succeeded", "do pay": "pending"}
    outlast.testing.work(app)
    assert (handle.status, handle.crashes, outcomes(handle)) == ("succeeded", 0, ["released", "succeeded"])
    assert trip.attempts(app, "monday") == [
        ("do", "book", "succeeded"),
        ("do", "pay", "released"),
        ("do", "pay", "succeeded"),
        ("do", "send", "succeeded"),
    ]


@pytest.mark.timeout(240)
def test_a_cancelled_job_leaves_its_run_interrupted_and_says_what_stands(app, trip, on_terms):
    """An operator cancels the job: the run winds down, nothing is undone, and a requeue goes on with it."""
    on_terms(ttl=2.0)
    trip.plays(pay="hold ok")
    handle = trip.load().enqueue(app=app, run_key="monday")
    with Beside(app) as beside:
        wait_until(lambda: "pay" in trip.notes, "the step has begun")
        app.jobs.cancel(handle.id, reason="wrong day")
        wait_until(lambda: [one.why for one in [*beside.worker._running]] == ["cancel"], "the worker has heard of it")
        trip.go("pay")
        wait_until(lambda: handle.status == "cancelled", "it has ended")
    assert "cancelled by an operator; its run 'monday'" in handle.error
    assert "2 of 3 steps succeeded" in handle.error
    assert trip.run(app, "monday").status == "interrupted"
    app.jobs.requeue(handle.id)
    outlast.testing.work(app)
    assert (handle.status, trip.notes.count("book"), trip.notes[-1]) == ("succeeded", 1, "send")


def test_a_cancelled_run_cancels_its_job(app, trip):
    """Who cancels the run while the job waits has cancelled the job: it does not begin the run again."""
    trip.plays(pay="reset")
    handle = trip.load().enqueue(app=app, run_key="monday")
    app.work(until_idle=True)
    run = trip.run(app, "monday")
    with app.store._database.writing() as tx:
        tx.execute("update outlast_runs set status = 'cancelled' where id = ?", run.id)
    outlast.testing.work(app)
    assert (handle.status, trip.notes) == ("cancelled", ["book", "pay", "pay"])
    assert "its run 'monday' was cancelled" in handle.error


@pytest.mark.parametrize("retry", ["", "{max_attempts: 2, initial_delay_ms: 300000, max_delay_ms: 300000, jitter: 0}"])
def test_a_run_that_is_cancelled_before_its_job_waits_is_not_gone_on_with(app, trip, monkeypatch, retry):
    """The step has failed, and its job would try it again, or waits for its next attempt: but the run was cancelled meanwhile."""
    trip.plays(pay="reset")
    flow = trip.load(retry=retry) if retry else trip.load()
    handle = flow.enqueue(app=app, run_key="monday")
    real, asked = type(app.store).fail_attempt, []

    def fail_attempt(store, lease, attempt, **named):
        real(store, lease, attempt, **named)
        if named["state"] == "failed" or retry:
            asked.append(store.request_end(trip.run(app, "monday").id, "cancel"))

    monkeypatch.setattr(type(app.store), "fail_attempt", fail_attempt)
    outlast.testing.work(app)
    assert (asked, trip.run(app, "monday").status, handle.status) == ([True], "cancelled", "cancelled")
    assert "its run 'monday' was cancelled" in handle.error


def test_a_paused_run_goes_on_once_its_job_is_requeued(app, trip):
    """Who pauses the run calls its job off, and who requeues that job wants the run to go on."""
    trip.plays(pay="hold")
    handle = trip.load().enqueue(app=app, run_key="monday")
    with Beside(app):
        wait_until(lambda: "pay" in trip.notes, "the step has begun")
        assert app.store.request_end(trip.run(app, "monday").id, "pause")
        trip.go("pay")
        wait_until(lambda: handle.status == "cancelled", "it has ended")
    assert trip.run(app, "monday").status == "paused"
    app.jobs.requeue(handle.id)
    outlast.testing.work(app)
    assert (handle.status, trip.notes) == ("succeeded", ["book", "pay", "pay ends", "send"])


def alerts(app):
    rules = rules_from((), [])
    return sorted(alert.id for alert in evaluate(facts_of(app.store, Views(app.store), rules), rules))


@pytest.mark.parametrize("way", ["direct", "another job", "fails again", "cancelled"])
def test_what_continues_a_failed_flow_without_its_job_settles_the_job(app, trip, way):
    """D-41: the letter of the job is archived, so that nothing is reported that was handled; a run that fails again is."""
    trip.plays(pay="value")
    flow = trip.load()
    first, neighbour = flow.enqueue(app=app, run_key="monday"), flow.enqueue(app=app, run_key="tuesday")
    outlast.testing.work(app)
    assert (first.status, neighbour.status, alerts(app)) == ("failed", "failed", ["run_failed:trip"])
    app.jobs.requeue(neighbour.id)  # so that one of two is left
    if way == "fails again":
        assert flow.run(run_key="monday", app=app, check=False).status == "failed"
    elif way == "cancelled":
        assert app.store.set_run(None, trip.run(app, "monday").id, status="cancelled")
    trip.plays(pay="ok")
    if way == "direct":
        assert flow.run(run_key="monday", app=app).status == "completed"
    elif way == "another job":
        flow.enqueue(app=app, run_key="monday")
    outlast.testing.work(app)
    assert (first.status, neighbour.status) == ("failed", "succeeded")
    assert alerts(app) == (["run_failed:trip"] if way == "fails again" else [])
    letters = {letter.item_key: letter.status for letter in app.dead_letters.find(status=None) if letter.kind == "job"}
    assert letters == {first.id: "archived", neighbour.id: "resolved"}


def test_a_requeue_by_its_own_job_keeps_the_letter(app, trip):
    """The run is continued by the job that it is of: its letter is that job's until it has succeeded."""
    trip.plays(pay="value value ok")
    handle = trip.load().enqueue(app=app, run_key="monday")
    for status in ("open", "open", "resolved"):
        outlast.testing.work(app)
        (letter,) = (one for one in app.dead_letters.find(status=None) if one.kind == "job")
        assert letter.status == status
        if status == "open":
            app.jobs.requeue(handle.id)
    assert handle.status == "succeeded"


def test_a_job_that_is_cancelled_while_it_waits_continues_no_run(app, trip):
    """D-41: nothing says that the job continues the run, and nothing is reported that a person has ended."""
    trip.plays(pay="reset")
    handle = trip.load().enqueue(app=app, run_key="monday")
    app.work(until_idle=True)
    assert "its job goes on with it" in Views(app.store).flows.report(trip.run(app, "monday")).why
    app.jobs.cancel(handle.id)
    report = Views(app.store).flows.report(trip.run(app, "monday"))
    assert report.reason is None
    assert f"job {handle.id}, which ran it, was cancelled while it waited for its next attempt" in report.why
    assert alerts(app) == []
    app.jobs.requeue(handle.id)
    trip.plays(pay="ok")
    outlast.testing.work(app)
    assert (handle.status, trip.notes.count("book")) == ("succeeded", 1)


@pytest.mark.timeout(240)
def test_two_jobs_of_one_run_do_not_fail_it(app, trip):
    """The second one finds the run being worked on: it waits in the queue, and finds it completed then."""
    trip.plays(pay="hold ok")
    flow = trip.load()
    first, second = flow.enqueue(app=app, run_key="monday"), flow.enqueue(app=app, run_key="monday")
    with Beside(app):
        wait_until(lambda: "pay" in trip.notes and (outcomes(first) or outcomes(second)), "both have begun")
        trip.go("pay")
        wait_until(lambda: "succeeded" in (first.status, second.status), "the first is done")
    waiting = next(one for one in (first, second) if one.status == "queued")
    assert (outcomes(waiting), waiting.attempts) == (["snoozed"], 0)
    assert "is busy: process" in waiting.history()[0].error
    outlast.testing.work(app)
    assert (waiting.status, waiting.result().status) == ("succeeded", "completed")
    assert trip.notes == ["book", "pay", "pay ends", "send"]


@pytest.mark.timeout(240)
def test_two_workers_do_each_flow_once(app, trip):
    """Several flows, two workers: each step of each is done once."""
    flow = trip.load()
    handles = [flow.enqueue(app=app, run_key=f"run {number}") for number in range(6)]
    with Beside(app, concurrency=2), Beside(app, concurrency=2):
        wait_until(lambda: all(handle.status == "succeeded" for handle in handles), "all are done")
    assert sorted(trip.notes) == ["book"] * 6 + ["pay"] * 6 + ["send"] * 6


# -- what a worker needs ---------------------------------------------------------------------------------------------------

SECRET = TRIP.replace("steps:\n", "params:\n  token: {type: string, sensitive: true}\nsteps:\n", 1).replace(
    'config: {call: "MODULE:pay"}', 'config: {call: "MODULE:pay", args: {token: "${params.token}"}}'
)


def test_a_secret_is_the_workers_own_and_nowhere_in_the_store(app, trip, monkeypatch):
    """A sensitive parameter is not stored with the job; the environment of the worker has it."""
    secret = "s3cr3t-of-the-shop"
    monkeypatch.setenv("OUTLAST_PARAM_TOKEN", secret)
    handle = trip.load(text=SECRET).enqueue(app=app, run_key="monday")
    outlast.testing.work(app)
    assert handle.result()["pay"].outputs["length"] == len(secret)
    database = app.store._database
    tables = [
        "outlast_jobs",
        "outlast_job_attempts",
        "outlast_runs",
        "outlast_flow_steps",
        "outlast_steps",
        "outlast_events",
    ]
    for table in tables:
        assert secret not in repr([tuple(map(_text, row)) for row in database.rows(f"select * from {table}")])


def _text(value):
    return bytes(value).decode(errors="replace") if isinstance(value, bytes | memoryview) else value


def test_a_secret_that_is_given_by_hand_cannot_be_enqueued(sqlite_app, trip):
    """It would be stored: the message says where to set it."""
    flow = trip.load(text=SECRET, params={"token": "s3cr3t"})
    with pytest.raises(outlast.ConfigurationError, match="set OUTLAST_PARAM_TOKEN where the worker runs") as refused:
        flow.enqueue(app=sqlite_app)
    assert "s3cr3t" not in str(refused.value)
    assert list(sqlite_app.jobs.find()) == []


def test_a_worker_that_lacks_a_variable_fails_nothing_for_good(app, trip, monkeypatch):
    """Another worker may have it: the job comes back, and nothing was begun."""
    monkeypatch.setenv("OUTLAST_PARAM_TOKEN", "s3cr3t")
    handle = trip.load(text=SECRET).enqueue(app=app, run_key="monday")
    monkeypatch.delenv("OUTLAST_PARAM_TOKEN")
    app.work(until_idle=True)
    assert (handle.status, outcomes(handle), trip.notes) == ("queued", ["failed"], [])
    assert "this worker cannot run trip" in handle.error
    assert "OUTLAST_PARAM_TOKEN" in handle.error
    monkeypatch.setenv("OUTLAST_PARAM_TOKEN", "s3cr3t")
    outlast.testing.work(app)
    assert (handle.status, trip.notes) == ("succeeded", ["book", "pay", "send"])


def test_what_stands_is_said_if_no_worker_could_go_on(app, trip, monkeypatch):
    """The last attempt finds no variable: the run stays as it is, the dead letter says so, and a requeue goes on with it."""
    monkeypatch.setenv("OUTLAST_PARAM_TOKEN", "s3cr3t")
    trip.plays(pay="reset reset ok")
    handle = trip.load(text=SECRET).enqueue(app=app, run_key="monday")
    app.work(until_idle=True)
    monkeypatch.delenv("OUTLAST_PARAM_TOKEN")
    outlast.testing.work(app)
    assert (handle.status, trip.notes) == ("failed", ["book", "pay", "pay"])
    (letter,) = app.dead_letters.find()
    assert "What the run 'monday' has done stands" in letter.error
    monkeypatch.setenv("OUTLAST_PARAM_TOKEN", "s3cr3t")
    app.jobs.requeue(handle.id)
    outlast.testing.work(app)
    assert (handle.status, trip.notes) == ("succeeded", ["book", "pay", "pay", "pay", "send"])


def test_a_component_that_a_worker_lacks_is_no_end(app, trip):
    """Newer code may have it."""
    flow = trip.load()
    handle = flow.enqueue(app=app, run_key="monday")
    with app.store._database.writing() as tx:
        (payload,) = tx.row("select payload from outlast_jobs where id = ?", int(handle.id))
        arguments = app.codec.decode(bytes(payload))
    manifest = dict(arguments["manifest"])
    assert manifest["name"] == "trip"
    manifest["oml_version"] = "9.9"
    with app.store._database.writing() as tx:
        changed = app.codec.encode({**arguments, "manifest": manifest})
        tx.execute("update outlast_jobs set payload = ? where id = ?", changed, int(handle.id))
    app.work(until_idle=True)
    assert (handle.status, outcomes(handle)) == ("queued", ["failed"])
    assert "its manifest cannot be read here" in handle.error


def test_the_root_is_the_workers(sqlite_app, trip, tmp_path, monkeypatch):
    """OUTLAST_ROOT, else the folder of the one who enqueued it, else the one that the worker was started in."""
    from outlast.flow.enqueued import connections_here, root_here

    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    other.mkdir()
    monkeypatch.chdir(here)
    assert root_here(str(other)) == str(other)
    assert root_here(str(tmp_path / "gone")) == str(here)
    monkeypatch.setenv("OUTLAST_ROOT", str(here))
    assert root_here(str(other)) == str(here)
    assert connections_here(None, str(here)) is None
    (here / "connections.yaml").touch()
    assert connections_here(None, str(here)) == str(here / "connections.yaml")
    assert connections_here("conf/live.yaml", str(here)) == str(here / "connections.yaml")
    assert connections_here("conf/live.yaml", str(other)) == str(other / "conf/live.yaml")
    monkeypatch.delenv("OUTLAST_ROOT")
    handle = trip.load().enqueue(app=sqlite_app)
    assert handle.arguments["root"] == str(trip.project.root)


def test_a_manifest_that_is_too_large_is_refused(sqlite_app, trip):
    """With the way out, and nothing is enqueued."""
    text = TRIP + "    metadata: {text: '" + "x" * 1_100_000 + "'}\n"
    with pytest.raises(
        outlast.ConfigurationError, match="expected the manifest of trip to take at most 1,048,576 bytes"
    ):
        trip.load(text=text).enqueue(app=sqlite_app)
    assert list(sqlite_app.jobs.find()) == []


# -- doors -----------------------------------------------------------------------------------------------------------------


def test_a_flow_is_enqueued_as_any_job_is(app, trip):
    """Queue, delay and unique key are those of the job; the run and the job name each other."""
    flow = trip.load()
    handle = flow.enqueue(app=app, run_key="monday", queue="nightly", delay=60, unique_key="once")
    again = flow.enqueue(app=app, run_key="tuesday", unique_key="once")
    assert (handle == again, again.new, handle.kind, handle.queue, handle.run_key) == (
        True,
        False,
        "flow:trip",
        "nightly",
        "monday",
    )
    outlast.testing.work(app)
    assert trip.run(app, "monday").identity["flow"]["job"]["id"] == handle.id
    assert app.jobs.get(handle.id).result().run_key == "monday"


def test_aenqueue_is_enqueue(sqlite_app, trip):
    """In an event loop."""
    flow = trip.load()
    handle = asyncio.run(flow.aenqueue(app=sqlite_app))
    assert (handle.status, handle.run_key is not None) == ("queued", True)
    options = {"run_key": "monday", "queue": "nightly", "delay": 3600, "unique_key": "once"}
    made = asyncio.run(flow.aenqueue(app=sqlite_app, **options))
    assert (made.run_key, made.queue, made.unique_key) == ("monday", "nightly", "once")
    assert (made.next_run_at - made.enqueued_at).total_seconds() == 3600
    assert asyncio.run(flow.aenqueue(app=sqlite_app, unique_key="once")) == made


def test_the_name_of_our_own_jobs_is_refused(sqlite_app):
    """No job of a user is taken for one of ours."""
    with pytest.raises(outlast.ConfigurationError, match=r"one that does not begin with outlast\."):

        @sqlite_app.job(name="outlast.flow")
        def mine() -> None: ...


def test_inline_and_enqueued_know_flows(sqlite_app, trip):
    """As all jobs: done where they are enqueued, or only written down."""
    flow = trip.load()
    with outlast.testing.inline(sqlite_app):
        assert flow.enqueue(app=sqlite_app, run_key="monday").result().status == "completed"
    with outlast.testing.enqueued(sqlite_app) as jobs:
        flow.enqueue(app=sqlite_app, run_key="tuesday", queue="nightly")
    assert [(job.kind, job.arguments["run_key"], job.queue) for job in jobs] == [("flow:trip", "tuesday", "nightly")]
    assert trip.notes == ["book", "pay", "send"]


def test_a_worker_without_flows_loads_nothing_for_them(tmp_path):
    """Neither pydantic nor YAML is loaded before a flow runs."""
    program = (
        "import outlast, sys\n"
        "app = outlast.App('shop', store='shop.db')\n"
        "@app.job\n"
        "def send() -> None: ...\n"
        "send.enqueue()\n"
        "app.work(until_idle=True)\n"
        "print([name for name in sys.modules if name in {'pydantic', 'yaml'} or name.startswith(('outlast.spec', 'outlast.flow.'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "['outlast.flow.enqueued']\n"


def test_a_worker_without_the_packages_leaves_flows_to_others(sqlite_app, trip, monkeypatch):
    """They stay in the queue, and whoever looks is told what is missing."""
    from outlast.jobs import own
    from outlast.report.views import Views

    handle = trip.load().enqueue(app=sqlite_app)
    monkeypatch.setattr(own, "find_spec", lambda name: None)
    with Beside(sqlite_app):
        wait_until(lambda: any(one.alive and one.serves for one in sqlite_app.store.workers()), "it has told its kinds")
        said = Views(sqlite_app.store).jobs.show(handle.id).waits_for
    assert (handle.status, handle.attempts) == ("queued", 0)
    assert said == ["No running worker knows the kind flow:trip: pip install 'outlast[flows]' where a worker runs."]


def test_a_pipeline_file_is_enqueued_from_a_shell(sqlite_app, trip):
    """With its run key, and `jobs show` names the run and how to see it; what is for jobs only is refused."""
    trip.load()
    store = sqlite_app.store_url

    def shell(*words):
        command = [sys.executable, "-m", "outlast.cli", *words, "--store", store]
        with Forked(
            command, cwd=trip.project.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            out, err = process.communicate()
        return process.returncode, out, err

    code, out, err = shell("enqueue", "pipeline.yaml", "--run-key", "monday", "--queue", "nightly", "--app", "shop")
    assert (code, out) == (0, "Enqueued job 1 (trip, run monday) in nightly.\n")
    assert "Start one: outlast worker --store" in err
    code, out, err = shell("worker", "--until-idle", "--app", "shop", "--no-progress")
    assert (code, out.splitlines()[0]) == (0, "1 succeeded   0 failed   0 requeued")
    code, out, err = shell("jobs", "show", "1")
    assert "runs         trip, run monday" in out
    assert "What its steps did: outlast runs show monday" in err
    assert trip.notes == ["book", "pay", "send"]
    code, out, err = shell("enqueue", "pipeline.yaml", "--arg", "a=b")
    assert (code, "a pipeline file takes --param" in err) == (2, True)
    line = ("enqueue", "pipeline.yaml", "--app", "shop", "--unique-key", "once", "--delay", "1h", "--priority", "7")
    first, second = (json.loads(shell(*line, "--json")[1]) for _ in range(2))
    assert (first["new"], second["new"], first["id"]) == (True, False, second["id"])
    shown = json.loads(shell("jobs", "show", first["id"], "--json")[1])
    assert (shown["queue"], shown["priority"], shown["unique_key"]) == ("default", 7, "once")
    due, made = (datetime.fromisoformat(shown[name]) for name in ("next_run_at", "enqueued_at"))
    assert (due - made).total_seconds() == 3600


def test_what_the_steps_of_its_run_have_kept_can_be_read_from_the_job(app, project):
    """S1-11, S1-23: a job that runs a pipeline file has what its steps have kept, under the name of the step; before it has begun, nothing."""
    flow = project.load(
        "name: checked\nsteps:\n"
        "  - id: check\n    component: schema.validator\n    config: {data: {pages: many}, schema: {required: [title]}}\n"
    )
    job = flow.enqueue(app=app, run_key="monday")
    with pytest.raises(LookupError, match=f"the job {job.id} has kept no 'check raw'. It has kept: nothing."):
        job.artifact("check raw")
    outlast.testing.work(app)
    (kept,) = job.artifacts()
    assert asyncio.run(app.jobs.aget(job.id)).artifacts() == [kept]  # read once as one by one
    assert (job.status, kept.name, kept.attempt, kept.cut) == ("failed", "check raw", 1, False)
    raw = job.artifact("check raw")
    assert (kept.size, raw) == (len(raw), job.artifact("check raw", attempt=1))
    assert b"many" in raw
    for name in ("raw", "check raw"):
        with pytest.raises(LookupError, match=rf"has kept no '{name}' of attempt 2. It has kept: check raw."):
            job.artifact(name, attempt=2)


# -- run keys --------------------------------------------------------------------------------------------------------------


def test_every_flow_without_a_run_key_does_its_own_work(trip, app):
    """D-43: flows that are enqueued in the same second share no run, so no job succeeds for the work of another."""
    flow = trip.load(
        text='name: trip\nsteps:\n  - {id: send, component: python, config: {call: "MODULE:send"}, idempotent: true}\n'
    )
    jobs = [flow.enqueue(app=app) for _ in range(40)]
    with virtual_time(seed=1):
        jobs += [flow.enqueue(app=app) for _ in range(3)]
        direct = flow.run(app=app)
    with virtual_time(seed=1):
        jobs += [flow.enqueue(app=app) for _ in range(3)]
        again = flow.run(app=app)
    app.work(until_idle=True)
    assert {job.status for job in jobs} == {"succeeded"}
    keys = [job.result().run_key for job in jobs] + [direct.run_key, again.run_key]
    assert (len({*keys}), len(trip.notes)) == (48, 48)
    assert {len(key) for key in keys} == {32}


def test_a_generated_key_that_is_stored_is_a_defect(trip, app, monkeypatch):
    """D-43: Outlast refuses to continue a run because of a key that it has generated itself."""
    monkeypatch.setattr(REAL.ids, "new", lambda: "0" * 32)
    flow, stage = trip.load(), outlast.stage(lambda item: item)
    pipeline = outlast.Pipeline("twice", stage, app=app)
    with virtual_time(seed=1):
        assert (flow.run(app=app).status, pipeline.run([1]).status) == ("completed", "completed")
        for run in (lambda: flow.run(app=app), lambda: pipeline.run([2])):
            with pytest.raises(RuntimeError, match="belongs to a stored run"):
                run()


# -- flows in a job of the user's --------------------------------------------------------------------------------------------


_trips = []


def run_trip() -> str:
    """What a job is compensated with must be at the top level of a module."""
    return _trips[-1]()


def test_a_job_runs_a_flow_in_each_of_its_places(app, trip):
    """In a function and a coroutine function, with a time limit, in a stored step and in what compensates the job."""
    _trips.append(lambda: trip.load().run(app=app).status)
    plain = app.job(name="plain")(run_trip)
    timed = app.job(name="timed", timeout=60)(run_trip)

    @app.job
    async def awaited() -> str:
        return (await trip.load().arun(app=app)).status

    @app.job
    def stored() -> str:
        return outlast.current().step("trip", run_trip)

    @app.job
    def compensated() -> None:
        outlast.current().compensate(run_trip)
        raise ValueError("no")

    *ran, undone = [job.enqueue() for job in (plain, timed, awaited, stored, compensated)]
    app.work(until_idle=True)
    assert [(job.kind, job.error) for job in ran] == [(kind, None) for kind in ("plain", "timed", "awaited", "stored")]
    assert [job.result() for job in ran] == ["completed"] * 4
    assert (undone.status, undone.compensation) == ("failed", "completed")
    assert {note: trip.notes.count(note) for note in trip.notes} == {"book": 5, "pay": 5, "send": 5}
