"""What needs attention fires out of the box, on both databases, until it is handled; and the open breakers of every process with a store."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

import outlast
from forked import Forked
from job_rows import SECOND, claimed, end, enqueued, failed, finished, new, worker
from outlast import compat
from outlast.alerts import evaluate, rules_from
from outlast.alerts.reading import acknowledge, acknowledgements, facts_of
from outlast.breaker.shared import by_hand
from outlast.deadletters import Directory
from outlast.pipeline import breakers
from outlast.report.views import Views
from outlast.sharing import named
from outlast.store import open_store
from outlast.store.records import FLOW, EventRow, from_us
from outlast.store.schedules import ScheduleChange, ScheduleRow
from outlast.testing import work
from servers.scripted import ScriptedServer
from shells import Shell
from stores import letter as any_letter
from stores import prepared, sql

ROOT = Path(__file__).parents[1]
DAY = 86_400 * SECOND
G = 'oml_version: "0.1.0"\nname: trip\nsteps:\n  - {id: book, component: python, config: {call: "shop:book"}}\n'


@pytest.fixture(scope="session")
def database(postgres_server):
    """A database for all tests here, each with an app of its own."""
    return postgres_server.database("attention")


@pytest.fixture(params=["sqlite", "postgres"])
def app(request, tmp_path):
    address = prepared(tmp_path / "outlast.db")
    if request.param == "postgres":
        address = request.getfixturevalue("database").dsn
    made = outlast.App(f"attention-{uuid4().hex}", store=address)
    yield made
    made.store.close()


@pytest.fixture
def store(app):
    return app.store


def letter(**fields):
    """A dead letter with an id of its own: those of failed jobs are named by their numbers."""
    return any_letter(**({"id": uuid4().hex} | fields))


def firing(store, *settings, at_us=None, folders=()):
    """The alerts that fire, by id."""
    problems: list[str] = []
    rules = rules_from(settings, problems)
    assert problems == []
    found = evaluate(facts_of(store, Views(store), rules, folders=folders, at_us=at_us), rules)
    return {alert.id: alert for alert in found}


def now_us(store):
    return round(store.now() * 1e6)


def ran(store, status, run_key="k", *, pipeline="import", kind="run", identity=None, read=0, dlq=0, exhausted=True):
    """A run that has come to this status, with as many items."""
    run = store.open_run(pipeline, run_key, (), kind=kind, identity=identity)
    sql(
        store,
        "update outlast_runs set status = ?, why = 'because', finished = ? where number = ?",
        *(status, None if status in {"running", "paused"} else now_us(store), run.number),
    )
    sql(
        store,
        f"insert into outlast_progress (run, shard, read, dlq, exhausted, spent) values (?, 0, ?, ?, {str(exhausted).lower()}, '{{}}')",
        *(run.number, read, dlq),
    )
    return run


# --- everything that has failed ---------------------------------------------------------------------------------------


def test_failed_jobs_runs_and_flows_are_reported_each_with_its_count(app, tmp_path, monkeypatch):
    """D-41, U-23: fifty failed jobs of a kind are one alert, a flow in a queue is one alert as a flow and none as a job."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    @app.job
    def nightly() -> None:
        raise ValueError("the import is broken")

    @outlast.stage
    def parse(_: int) -> int:
        raise ValueError("every row is broken")

    name = f"shop_{uuid4().hex}"
    Path(f"{name}.py").write_text("def book(): raise ValueError('no room')\n")
    Path("trip.yaml").write_text(G.replace("shop:", f"{name}:"))
    for _ in range(50):
        nightly.enqueue()
    flow = outlast.Flow.load("trip.yaml")
    queued = flow.enqueue(app=app)
    work(app)
    outlast.Pipeline("import", parse, app=app).run(range(40), check=False)
    assert flow.run(app=app, check=False).status == "failed"
    found = firing(app.store)
    assert {id_: alert.value for id_, alert in found.items()} == {
        "run_failed:trip": 2,
        "run_failed:import": 1,
        "job_failed:nightly": 50,
    }
    assert "the import is broken" in found["job_failed:nightly"].why
    assert found["run_failed:trip"].message == "The flow trip failed."
    assert found["run_failed:import"].message == "The run import failed."
    # Each way of handling it ends its part, and no other one.
    app.jobs.requeue(queued.id)
    assert firing(app.store)["run_failed:trip"].value == 1
    app.dead_letters.archive(pipeline="import", reason="known")
    assert sorted(firing(app.store)) == ["job_failed:nightly", "run_failed:trip"]
    first, *_ = app.jobs.find(kind="nightly", status="failed")
    app.jobs.requeue(first.id)
    assert firing(app.store)["job_failed:nightly"].value == 49
    app.dead_letters.archive(pipeline="nightly", reason="known")
    assert sorted(firing(app.store)) == ["run_failed:trip"]


def test_how_a_run_ended_decides_which_rule_fires(store):
    """D-41: failed, partial and interrupted ones each have a rule; completed, cancelled, paused and running ones and replays have none."""
    for status in ("completed", "cancelled", "paused", "failed", "partial_success", "interrupted"):
        ran(store, status, pipeline=status)
        ran(store, status, pipeline=f"replay {status}", kind="replay")
    alive = ran(store, "running", pipeline="alive")
    assert store.take_run(alive.number, 0, "elsewhere", 600.0) is not None
    ran(store, "running", pipeline="killed")
    assert sorted(firing(store)) == [
        "run_failed:failed",
        "run_incomplete:partial_success",
        "run_interrupted:interrupted",
        "run_interrupted:killed",
    ]
    assert sorted(firing(store, "run_interrupted=off", "run_failed:failed=off")) == ["run_incomplete:partial_success"]


def test_a_long_run_that_was_interrupted_is_reported_from_then_on(store):
    """D-41: the week begins when it was interrupted, not when it was started."""
    run = ran(store, "interrupted")
    sql(store, "update outlast_runs set started = started - ?, finished = null where number = ?", 8 * DAY, run.number)
    assert firing(store) == {}
    at = now_us(store)
    store.add_events([EventRow(uuid4().hex, "run_finished", at, run.id, {})])
    assert firing(store)["run_interrupted:import"].since == from_us(at)
    assert firing(store, at_us=at + 7 * DAY) == {}


def test_a_run_whose_process_died_is_reported_as_one_that_was_interrupted(store):
    """D-41: neither a replay, nor one of more than a week ago, nor a flow whose job goes on; with others it is one alert."""
    at = now_us(store)

    def died(pipeline, ago_us, **how):
        run = ran(store, "running", uuid4().hex, pipeline=pipeline, **how)
        sql(store, "update outlast_runs set started = ? where number = ?", at - ago_us, run.number)
        return run

    died("replayed", 60, kind="replay")
    died("old", 7 * DAY)
    died("almost", 7 * DAY - 1)
    lease = worker(store)
    (job,) = enqueued(store, new())
    died("trip", 60, kind="flow", identity={"flow": {"job": {"id": str(job), "since": 1}}})
    assert sorted(firing(store, at_us=at)) == ["run_interrupted:almost"]
    finished(store, lease, failed(claimed(store, lease)[0]))
    assert sorted(firing(store, at_us=at)) == ["run_interrupted:almost", "run_interrupted:trip"]
    _, newest, _ = (died("many", ago) for ago in (50, 20, 40))
    told = ran(store, "interrupted", pipeline="many")
    sql(store, "update outlast_runs set started = ?, finished = null where number = ?", at - 30, told.number)
    found = firing(store, at_us=at)["run_interrupted:many"]
    assert (found.value, found.since, found.facts["run_key"]) == (4, from_us(at - 50), newest.run_key)


def test_what_a_step_of_a_flow_has_run_is_reported_with_the_flow_only(store):
    """D-41: one cause is one alert; a run whose key only looks alike is reported."""
    flow = ran(store, "failed", pipeline="trip", kind="flow")
    ran(store, "failed", f"{flow.id}/locate", pipeline="trip.locate")
    ran(store, "running", f"{flow.id}/rate", pipeline="trip.rate")
    ran(store, "failed", "2026/locate", pipeline="other")
    assert sorted(firing(store)) == ["run_failed:other", "run_failed:trip"]


@pytest.mark.parametrize("status", ["failed", "partial_success", "interrupted"])
def test_a_flow_whose_job_goes_on_is_not_reported(store, status):
    """D-41: between two attempts of its job a flow is interrupted or failed, and needs nobody; when the job has failed it does."""
    lease = worker(store)
    (job,) = enqueued(store, new())
    ran(store, status, pipeline="trip", kind="flow", identity={"flow": {"job": {"id": str(job), "since": 1}}})
    assert firing(store) == {}
    finished(store, lease, failed(claimed(store, lease)[0]))
    rule = {"failed": "run_failed", "partial_success": "run_incomplete", "interrupted": "run_interrupted"}[status]
    assert sorted(firing(store)) == [f"{rule}:trip"]
    sql(store, "update outlast_dead_letters set status = 'archived' where app = ?", store.app)
    assert firing(store) == {}


@pytest.mark.parametrize("status", ["failed", "partial_success", "interrupted"])
def test_a_flow_whose_job_was_cancelled_is_reported_if_it_had_ended(store, status):
    """D-41: a failed run is not handled by cancelling the job that would have continued it; an interrupted one has been ended."""
    (job,) = enqueued(store, new())
    ran(store, status, pipeline="trip", kind="flow", identity={"flow": {"job": {"id": str(job), "since": 1}}})
    assert store.cancel_job(job)
    rule = {"failed": ["run_failed:trip"], "partial_success": ["run_incomplete:trip"]}.get(status, [])
    assert sorted(firing(store)) == rule


def test_a_flow_that_failed_before_it_had_a_run_is_a_failed_job(store):
    """D-41: a job that is named by no run is reported as a job, and so is the job of a run that completed."""
    lease = worker(store)
    first, second = enqueued(store, new(), new())
    ran(store, "completed", pipeline="trip", kind="flow", identity={"flow": {"job": {"id": str(first), "since": 1}}})
    finished(store, lease, *map(failed, claimed(store, lease, 2)))
    assert {id_: alert.value for id_, alert in firing(store).items()} == {"job_failed:send": 2}
    assert firing(store)["job_failed:send"].facts["job"] == str(second)


def test_a_flow_is_no_failed_job_although_its_run_ended_a_little_before(store):
    """D-41: neither when the run is older than a week and its job is not quite."""
    lease = worker(store)
    (job,) = enqueued(store, new())
    run = ran(store, "failed", pipeline="trip", kind="flow", identity={"flow": {"job": {"id": str(job), "since": 1}}})
    finished(store, lease, failed(claimed(store, lease)[0]))
    at, hour = now_us(store), 3600 * SECOND
    sql(store, "update outlast_runs set finished = ? where number = ?", at - 7 * DAY - hour, run.number)
    sql(store, "update outlast_jobs set ended = ? where app = ?", at - 7 * DAY + hour, store.app)
    assert firing(store, "dead_letters_old=off", at_us=at) == {}
    assert sorted(firing(store, "dead_letters_old=off", at_us=at - 2 * hour)) == ["run_failed:trip"]


def test_the_newest_of_failed_jobs_is_the_one_that_failed_last(store):
    """D-41: whichever was enqueued last; its queue and its error are told with its time."""
    lease = worker(store)
    first, second = enqueued(store, new(), new(queue="other"))
    jobs = {job.id: job for job in (*claimed(store, lease), *claimed(store, lease, queue="other"))}
    finished(store, lease, failed(jobs[second], "no answer"))
    finished(store, lease, failed(jobs[first], "no money"))
    at = now_us(store)
    sql(
        store,
        "update outlast_jobs set ended = case when id = ? then ? else ? end where app = ?",
        first,
        at,
        at - 5,
        store.app,
    )
    found = firing(store)["job_failed:send"]
    assert (found.value, found.since, found.facts["last"]) == (2, from_us(at - 5), from_us(at).isoformat())
    assert [found.facts[name] for name in ("job", "queue", "error")] == [str(first), "mail", "no money"]


def test_archived_letters_do_not_excuse_items_that_were_never_read(store):
    """D-41: a run that stopped in the middle still needs attention when its dead letters are archived."""
    whole, half = ran(store, "failed", "a", read=2, dlq=2), ran(store, "failed", "b", read=2, dlq=1, exhausted=False)
    store.add_letters([letter(run=run.id, seq=1, pipeline="import") for run in (whole, half)])
    assert firing(store)["run_failed:import"].value == 2
    sql(store, "update outlast_dead_letters set status = 'replaying' where app = ?", store.app)
    assert firing(store)["run_failed:import"].value == 2  # a replay has not succeeded yet
    sql(store, "update outlast_dead_letters set status = 'archived' where app = ?", store.app)
    assert firing(store)["run_failed:import"].facts["run_key"] == "b"
    assert firing(store)["run_failed:import"].value == 1
    lost = ran(store, "failed", "c", read=2, dlq=1)  # its source is read to the end, and an item has come to none
    store.add_letters([letter(run=lost.id, seq=1, pipeline="import", status="archived")])
    assert firing(store)["run_failed:import"].facts["run_key"] == "c"
    assert firing(store)["run_failed:import"].value == 2


def test_ended_work_is_reported_for_seven_days(store):
    """D-41: no longer, and to the microsecond; an open dead letter stays an old one."""
    ran(store, "failed")
    lease = worker(store)
    enqueued(store, new())
    finished(store, lease, failed(claimed(store, lease)[0]))
    store.add_letters([letter(kind="compensation", pipeline="trip")])
    at = now_us(store)
    sql(store, "update outlast_runs set finished = ? where app = ?", at, store.app)
    sql(store, "update outlast_jobs set ended = ? where app = ?", at, store.app)
    sql(store, "update outlast_dead_letters set created = ?, last_attempt = ? where app = ?", at, at, store.app)
    ended = ["compensation_failed:trip", "job_failed:send", "run_failed:import"]
    old = ["dead_letters_old:send", "dead_letters_old:trip"]
    assert sorted(firing(store, at_us=at + 7 * DAY - 1)) == sorted([*ended, *old])
    assert sorted(firing(store, at_us=at + 7 * DAY)) == old


# --- acknowledged -----------------------------------------------------------------------------------------------------


def test_what_was_acknowledged_is_silent_until_it_happens_again(store):
    """D-41: for that subject alone; what failed later fires, with its own count; who, when and why is an event."""
    lease = worker(store)
    enqueued(store, *(new() for _ in range(4)), new(queue="other"))
    finished(store, lease, *map(failed, claimed(store, lease, 3)))
    ran(store, "failed", "a")
    ran(store, "failed", "b", pipeline="other")
    ran(store, "partial_success", "c")
    found = firing(store)
    done = acknowledge(store, found["job_failed:send"], "the provider is down, token=hunter22")
    acknowledge(store, found["run_failed:import"], "known")
    assert sorted(firing(store)) == ["run_failed:other", "run_incomplete:import"]
    assert [one.alert for one in acknowledgements(store)] == ["job_failed:send", "run_failed:import"]
    assert (done.until_us, "hunter22" in done.reason) == (
        round(datetime.fromisoformat(found["job_failed:send"].facts["last"]).timestamp() * 1e6),
        False,
    )
    (event, _) = store.events(None, "alert_acknowledged")
    assert (event.data["alert"], event.data["by"], event.data["reason"]) == ("job_failed:send", done.by, done.reason)
    finished(store, lease, failed(claimed(store, lease)[0]))
    ran(store, "failed", "d")
    again = firing(store)
    assert (again["job_failed:send"].value, again["run_failed:import"].value) == (1, 1)
    acknowledge(store, again["job_failed:send"], "still down")
    assert "job_failed:send" not in firing(store)
    assert [one.reason for one in acknowledgements(store)][-1] == "still down"
    assert len(acknowledgements(store)) == 2


@pytest.mark.parametrize("subject", ["flow:trip", "a:b"])
def test_a_subject_with_a_colon_is_acknowledged(store, subject):
    """D-41: of a job, a run and a compensation; only that subject, and not what is called like a part of it."""
    lease = worker(store)
    others = subject.split(":")
    for kind in (subject, *others):
        enqueued(store, new(kind=kind))
        ran(store, "failed", pipeline=kind)
        store.add_letters([letter(kind="compensation", pipeline=kind, created_us=now_us(store))])
    jobs = store.turn(lease, [], {"mail": 3}, dict.fromkeys([FLOW, subject, *others], 1)).claimed
    finished(store, lease, *map(failed, jobs))
    rules = ("job_failed", "run_failed", "compensation_failed")
    found = firing(store)
    assert sorted(found) == sorted(f"{rule}:{kind}" for rule in rules for kind in (subject, *others))
    for rule in rules:
        acknowledge(store, found[f"{rule}:{subject}"], "known")
    assert sorted(firing(store)) == sorted(f"{rule}:{kind}" for rule in rules for kind in others)


def test_a_failed_compensation_is_acknowledged_by_its_pipeline(store):
    """D-41: one that fails later, the same one that fails again, and that of another pipeline still fire."""
    at = now_us(store)
    ids = [letter(kind="compensation", pipeline=name, last_attempt_us=at) for name in ("trip", "order")]
    store.add_letters(ids)
    sql(store, "update outlast_dead_letters set created = ? where app = ?", at, store.app)
    acknowledge(store, firing(store)["compensation_failed:trip"], "compensated by hand")
    assert sorted(firing(store)) == ["compensation_failed:order"]
    late = {"created_us": at + SECOND, "last_attempt_us": at + SECOND}
    store.add_letters([letter(kind="compensation", pipeline="trip", **late)])
    found = firing(store)["compensation_failed:trip"]
    assert (found.value, found.facts["last"]) == (1, from_us(at + SECOND).isoformat())
    sql(store, "update outlast_dead_letters set last_attempt = ? where id = ?", at + 2, ids[0].id)
    assert firing(store)["compensation_failed:trip"].value == 2


def test_the_command_acknowledges_with_a_reason(tmp_path):
    """D-41: what does not fire and what still lasts is refused, each with the way out; nothing is stored then."""
    shell, address = Shell(tmp_path, {}), prepared(tmp_path / "s.db")
    with open_store(address) as store:
        ran(store, "failed")
        store.add_letters([letter()])
    at = f"--store {address}"
    refused = shell(f"alerts ack run_failed:import run_faild:import dead_letters {at} --reason x")
    assert (refused.returncode, refused.stderr.splitlines()) == (
        2,
        [
            "No alert 'run_faild:import' fires. Did you mean 'run_failed:import'? Those that fire: run_failed:import.",
            (
                "dead_letters lasts until its cause is gone, so it cannot be acknowledged. "
                "Silence it: outlast alerts check --rule dead_letters=off"
            ),
        ],
    )
    assert shell(f"alerts ack run_failed:import {at} --reason ' '").returncode == 2
    assert shell(f"alerts check {at} --rule dead_letters_old=off").returncode == 1
    done = shell(f"alerts ack run_failed:import run_failed:import {at} --reason known")
    assert (done.returncode, done.stdout) == (
        0,
        "Acknowledged run_failed:import: The run import failed. It fires again for what fails from now on.\n",
    )
    quiet = shell(f"alerts check {at} --rule dead_letters_old=off")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (
        0,
        "Quiet: of 12 rules none fires.\n",
        "1 acknowledgement in effect: outlast events --name alert_acknowledged\n",
    )
    assert shell(f"events --name alert_acknowledged {at}").stdout.count("alert=run_failed:import") == 1
    document = json.loads(shell(f"alerts check {at} --json").stdout)
    assert [(one["alert"], one["reason"]) for one in document["acknowledged"]] == [("run_failed:import", "known")]
    with open_store(address, app="other") as store:
        ran(store, "failed", pipeline="export")
    assert shell(f"alerts ack run_failed:export {at} --app default --reason known").returncode == 2
    done = shell(f"alerts ack run_failed:export {at} --app other --reason known --json")
    assert [(one["alert"], one["reason"]) for one in json.loads(done.stdout)] == [("run_failed:export", "known")]


# --- schedules, workers, dead letters ---------------------------------------------------------------------------------


def scheduled(store, kind, next_us):
    row = ScheduleRow(kind, "0 * * * *", "UTC", "once", 1, 1, 1, None, None, next_us)
    store.change_schedule(kind, lambda *_: ScheduleChange(row))


def test_a_schedule_that_missed_its_tick_fires_until_a_worker_enqueues_it(store):
    """D-41: late by more than five minutes, for a week; a tick to come and a schedule without one are quiet."""
    tick = now_us(store)
    scheduled(store, "nightly", tick)
    scheduled(store, "never", None)
    minutes = 60 * SECOND
    ids = [
        sorted(firing(store, at_us=tick + late)) for late in (-1, 5 * minutes, 5 * minutes + 1, 7 * DAY, 7 * DAY + 1)
    ]
    assert ids == [[], [], ["schedule_missed:nightly"], ["schedule_missed:nightly"], []]
    assert sorted(firing(store, "schedule_missed:nightly=1m", at_us=tick + 2 * minutes)) == ["schedule_missed:nightly"]
    assert firing(store, "schedule_missed:nightly=off", at_us=tick + DAY) == {}
    scheduled(store, "nightly", tick + 2 * DAY)
    assert firing(store, at_us=tick + DAY) == {}


def test_due_jobs_that_no_living_worker_serves_fire(store):
    """D-41: by queue, above a minute; a worker of another queue, a dead one and one that leaves do not count, and a paused queue is quiet."""
    enqueued(store, new(queue="mail"), new(queue="images"), new(queue="later", delay=3600 * SECOND))
    at = now_us(store)

    def idle(late=120 * SECOND, *settings):
        return sorted(firing(store, "stuck_jobs=off", *settings, at_us=at + late))

    sql(store, "update outlast_jobs set due = ? where app = ? and queue <> 'later'", at, store.app)
    assert idle(60 * SECOND) == []
    assert idle(60 * SECOND + 1) == idle() == ["no_worker:images", "no_worker:mail"]
    assert idle(30 * SECOND, "no_worker:mail=10s") == ["no_worker:mail"]
    lease = worker(store)
    store.tell_worker(lease.key, ["images"], {})
    assert idle() == ["no_worker:mail"]
    assert firing(store, at_us=at + 120 * SECOND)["no_worker:mail"].facts == {"due": 1, "workers": 1}
    assert idle(700 * SECOND) == ["no_worker:images", "no_worker:mail"]  # its lease has ended by then
    leaves = worker(store, owner="leaves")
    store.tell_worker(leaves.key, None, {})
    assert idle() == []
    store.drop_lease(leaves)
    assert idle() == ["no_worker:mail"]
    assert firing(store, at_us=at + 120 * SECOND)["no_worker:mail"].facts == {"due": 1, "workers": 1}
    store.pause_queue("mail")
    assert idle() == []
    store.resume_queue("mail")
    every = worker(store, owner="all")
    store.tell_worker(every.key, None, {})
    assert idle() == []


def test_old_dead_letters_fire_by_pipeline(store):
    """D-41, S4-24: open for more than a day; resolved and archived ones are quiet, and a pipeline can have a limit of its own."""
    store.add_letters([letter(pipeline=name) for name in ("a", "a", "b")])
    at = now_us(store)
    sql(store, "update outlast_dead_letters set created = ? where app = ?", at, store.app)
    assert [len(firing(store, at_us=at + late)) for late in (DAY, DAY + 1)] == [0, 2]
    found = firing(store, at_us=at + 2 * DAY)
    assert {id_: alert.value for id_, alert in found.items()} == {"dead_letters_old:a": 2, "dead_letters_old:b": 1}
    assert sorted(firing(store, "dead_letters_old=off", "dead_letters_old:b=1h", at_us=at + 7200 * SECOND)) == [
        "dead_letters_old:b"
    ]
    sql(store, "update outlast_dead_letters set status = 'archived' where app = ? and pipeline = 'a'", store.app)
    assert sorted(firing(store, at_us=at + 2 * DAY)) == ["dead_letters_old:b"]


def test_a_pipeline_with_a_threshold_of_its_own_is_not_part_of_the_total(store):
    """D-41: neither what is set for it nor what is off for it counts among the others."""
    store.add_letters([letter(pipeline=name) for name in ("a", "a", "a", "b", "c")])

    def counts(*settings):
        found = firing(store, "dead_letters_old=off", *settings)
        return {id_: (alert.value, alert.threshold) for id_, alert in found.items()}

    assert counts("dead_letters=4") == {"dead_letters": (5, 4)}
    assert counts("dead_letters=1", "dead_letters:a=2") == {"dead_letters": (2, 1), "dead_letters:a": (3, 2)}
    assert counts("dead_letters=2", "dead_letters:a=3") == {}
    assert counts("dead_letters=1", "dead_letters:a=off") == {"dead_letters": (2, 1)}
    assert counts("dead_letters=off", "dead_letters:c=0") == {"dead_letters:c": (1, 0)}
    sql(store, "update outlast_dead_letters set created = 1000000 where app = ? and pipeline = 'a'", store.app)
    (alert,) = firing(store, "dead_letters=0", "dead_letters:a=off", "dead_letters_old=off").values()
    assert alert.since > from_us(1_000_000)  # since one of those that count


def test_the_folder_of_the_older_queue_is_looked_at(tmp_path, monkeypatch):
    """D-41, S4-24: its default folder without being asked, others by option; too many or too old, and what is no entry does not count."""
    monkeypatch.chdir(tmp_path)
    queue = compat.DeadLetterQueue()
    for number in range(3):
        asyncio.run(queue.enqueue(f"wf-{number}", {"type": "sweep"}, ["a"], "adapter", RuntimeError("x")))
    Path(".mahavishnu/dead_letter/notes.json").write_text("{}")
    shell, address = Shell(tmp_path, {}), prepared(tmp_path / "s.db")
    line = f"alerts check --json --store {address}"
    folder = ".mahavishnu/dead_letter"
    found = json.loads(shell(f"{line} --rule dead_letters=2").stdout)["firing"]
    assert [(one["id"], one["value"], one["command"]) for one in found] == [(f"dead_letters:{folder}", 3, None)]
    assert json.loads(shell(f"{line} --rule dead_letters=3").stdout)["firing"] == []
    assert json.loads(shell(f"{line} --rule dead_letters=2 --rule dead_letters:{folder}=3").stdout)["firing"] == []
    entry = Directory(folder).entries()[0][0]
    entry.timestamp = (datetime.now(UTC) - timedelta(hours=25)).isoformat()
    Directory(folder).write(entry)
    (one,) = json.loads(shell(f"{line} --dead-letters {folder}").stdout)["firing"]
    assert (one["id"], one["value"]) == (f"dead_letters_old:{folder}", 1)
    missing = shell(f"{line} --dead-letters nowhere")
    assert (missing.returncode, missing.stderr) == (2, "Folder not found: nowhere.\n")


# --- how rules are set ------------------------------------------------------------------------------------------------


def test_a_file_sets_rules_and_the_command_line_wins(tmp_path):
    """D-41: window, minimum, folders and rules of a file; the same rule on the command line counts."""
    shell, address = Shell(tmp_path, {}), prepared(tmp_path / "s.db")
    (tmp_path / "rules.toml").write_text(
        'window = "2h"\nminimum = 5\n[rules]\ndead_letters = 0\nbreaker_open = false\n"run_failed:import" = "off"\n'
    )
    with open_store(address) as store:
        store.add_letters([letter()])
        sql(store, "update outlast_dead_letters set created = ?", now_us(store))
        ran(store, "failed")
    line = f"alerts check --json --store {address}"

    def check(extra="", **env):
        found = json.loads(shell(f"{line} {extra}", **env).stdout)
        return (
            [one["id"] for one in found["firing"]],
            found["window"],
            found["minimum"],
            "breaker_open" in found["rules"],
        )

    assert check() == (["run_failed:import"], 3600.0, 20, True)
    assert check("--rules rules.toml") == (["dead_letters"], 7200.0, 5, False)
    assert check(OUTLAST_ALERT_RULES="rules.toml") == (["dead_letters"], 7200.0, 5, False)
    assert check("--rules rules.toml --rule run_failed:import=on --rule dead_letters=1 --window 3h --minimum 6") == (
        ["run_failed:import"], 10800.0, 6, False,
    )  # fmt: skip


def test_window_minimum_and_app_decide_what_is_counted(tmp_path):
    """U-23, S2-26: they reach the rules, from the command line and from a file, and not only the document that shows them."""
    shell, address = Shell(tmp_path, {}), prepared(tmp_path / "s.db")
    locked = {"error_class": "database_connection", "error_type": "OperationalError", "error": "locked"}
    with open_store(address, app="shop") as store:
        lease = worker(store)
        enqueued(store, *(new(delay=0) for _ in range(5)))
        hour = 3600 * SECOND
        jobs = claimed(store, lease, 5)
        back = {"delay_us": 20 * hour, "started_us": now_us(store) - 2 * hour}
        finished(store, lease, *(end(job, "waiting", "failed", **back, **locked) for job in jobs))
    with open_store(address, app="other") as store:
        ran(store, "completed")
    (tmp_path / "rules.toml").write_text('minimum = 5\nwindow = "3h"\n')
    line = f"alerts check --json --store {address}"

    def check(extra, app="shop"):
        return [one["id"] for one in json.loads(shell(f"{line} --app {app} {extra}").stdout)["firing"]]

    assert check("--window 3h") == check("--minimum 5") == check("--minimum 6 --window 3h") == []
    assert check("--window 3h --minimum 5") == check("--rules rules.toml") == ["database_retry_rate:send"]
    assert check("--rules rules.toml --minimum 6") == check("--rules rules.toml --window 1h") == []
    assert check("--window 3h --minimum 5", app="other") == []


def test_a_lasting_alert_is_sent_again_when_it_was_asked_for(tmp_path):
    """U-23: after --renotify, which counts instead of what a file says; usually after four hours."""
    shell, address = Shell(tmp_path, {}), prepared(tmp_path / "s.db")
    with open_store(address) as store:
        ran(store, "failed")
    (tmp_path / "rules.toml").write_text("renotify = 0.001\n")
    with ScriptedServer() as server:
        line = f"alerts check --json --store {address} --webhook {server.url}"
        options = ("", "", "--renotify 0.001", "--rules rules.toml", "--rules rules.toml --renotify 4h")
        sent = [json.loads(shell(f"{line} {extra}").stdout)["told"] for extra in options]
        assert sent == [1, 0, 1, 1, 0]
        with open_store(address) as store:  # as if all of that were four hours ago
            ((data,),) = sql(store, "select data from outlast_states where kind = 'alerts'")
            kept = json.loads(data)
            kept["alerts"]["run_failed:import"]["sent"] -= 4 * 3600
            sql(store, "update outlast_states set data = ? where kind = 'alerts'", json.dumps(kept))
        assert [json.loads(shell(line).stdout)["told"] for _ in range(2)] == [1, 0]


def test_the_commands_of_a_check_name_its_store_and_app(tmp_path):
    """U-23: so that they show the same when they are copied."""
    shell, address = Shell(tmp_path, {}), prepared(tmp_path / "s.db")
    with open_store(address, app="shop") as store:
        run = ran(store, "failed")
    said = " ".join(shell(f"alerts check --store {address} --app shop", COLUMNS="400").stdout.split())
    assert f"Inspect: outlast runs show {run.id[:12]} --store {address} --app shop" in said
    assert shell(f"runs show {run.id[:12]} --store {address} --app shop").returncode == 0


def test_folders_in_a_file_of_rules_are_beside_that_file(tmp_path):
    """D-41: wherever the command is started; --dead-letters on the command line counts instead."""
    shell, address = Shell(tmp_path, {}), prepared(tmp_path / "s.db")
    for place, many in (("etc/letters", 2), ("letters", 3), ("other", 4)):
        (tmp_path / place).mkdir(parents=True)
        queue = compat.DeadLetterQueue(tmp_path / place)
        for number in range(many):
            asyncio.run(queue.enqueue(f"wf-{number}", {"type": "sweep"}, ["a"], "adapter", RuntimeError("x")))
    (tmp_path / "etc" / "rules.toml").write_text('dead_letters = ["letters"]\n[rules]\ndead_letters = 1\n')
    line = f"alerts check --json --store {address} --rules etc/rules.toml"

    def check(extra=""):
        found = json.loads(shell(f"{line} {extra}").stdout)["firing"]
        return {one["id"]: one["value"] for one in found}

    assert check() == {"dead_letters:etc/letters": 2}
    assert check("--dead-letters other") == {"dead_letters:other": 4}
    assert check("--dead-letters other --dead-letters letters") == {"dead_letters:letters": 3, "dead_letters:other": 4}


def test_every_mistake_in_a_file_of_rules_is_reported_at_once(tmp_path):
    shell, address = Shell(tmp_path, {}), prepared(tmp_path / "s.db")
    (tmp_path / "rules.toml").write_text(
        'windw = "2h"\nminimum = 0\nrenotify = "soon"\ndead_letters = "x"\n[rules]\ndead_leters = 3\nstuck_jobs = "never"\n'
    )
    wrong = shell(f"alerts check --store {address} --rules rules.toml")
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines() == [
        "Unknown key 'windw' in rules.toml. Did you mean 'window'? There are: rules, window, minimum, renotify, dead_letters.",
        "expected minimum in rules.toml to be an integer of at least 1, got: 0.",
        "expected dead_letters in rules.toml to be a list of folders, got: 'x'.",
        (
            "expected renotify in rules.toml to be a duration such as 90s, 10m or 2h, or a number of seconds, longer than nothing "
            "and ten years at most, got: 'soon'."
        ),
        "expected --rule to be one of the rules, got: 'dead_leters'. Did you mean 'dead_letters'?",
        "expected --rule stuck_jobs to be a duration such as 90s, 10m or 2h, of ten years at most, or off, got: 'never'.",
    ]
    assert shell(f"alerts check --store {address} --rules gone.toml").stderr == "File not found: gone.toml.\n"
    (tmp_path / "rules.toml").write_text("[rules")
    assert shell(f"alerts check --store {address} --rules rules.toml").stderr.startswith(
        "Cannot read rules.toml as TOML: "
    )


def test_a_name_that_the_store_does_not_know_is_reported_and_the_rest_is_checked(tmp_path):
    """D-41: exit code 2 if nothing fires, and 1 if something does; a known kind, queue, pipeline and breaker pass."""
    shell, address = Shell(tmp_path, {}), prepared(tmp_path / "s.db")
    with open_store(address) as store:
        enqueued(store, new(queue="mail"))
        ran(store, "completed")
    line = f"alerts check --store {address}"
    assert (
        shell(f"{line} --rule job_failed:send=off --rule no_worker:mail=off --rule run_failed:import=off").returncode
        == 0
    )
    with open_store(address) as store:
        scheduled(store, "nightly", now_us(store) + DAY)
        store.pause_queue("empty")
        store.add_letters([letter(pipeline="old")])
        sql(store, "update outlast_dead_letters set created = ?", now_us(store))
        store.change_state("breaker", "openai", lambda document, now: (by_hand(document, now, None), None))
    (tmp_path / "letters").mkdir()
    for known in ("schedule_missed:nightly", "no_worker:empty", "dead_letters:old", "breaker_open:openai"):
        assert shell(f"{line} --rule {known}=off").returncode == 0, known
    assert shell(f"{line} --dead-letters letters --rule dead_letters:letters=off").returncode == 0
    slip = shell(f"{line} --rule run_failed:imprt=off")
    assert (slip.returncode, slip.stdout, slip.stderr) == (
        2,
        "Quiet: of 13 rules none fires.\n",
        "A rule is set for 'imprt', and the store knows no such name. Did you mean 'import'?\n",
    )
    with open_store(address) as store:
        ran(store, "failed", "second")
    assert shell(f"{line} --rule run_failed:imprt=off").returncode == 1


def test_the_exit_code_is_1_while_the_end_of_an_alert_is_not_delivered(tmp_path):
    """U-23: nothing fires any more, and the webhook is down: that is no success."""
    shell, address = Shell(tmp_path, {}), prepared(tmp_path / "s.db")
    with open_store(address) as store:
        ran(store, "failed")
    line = f"alerts check --store {address}"
    with ScriptedServer() as server:
        hook = {"OUTLAST_WEBHOOK": f"{server.url}/hidden"}
        server.answer(200)
        assert shell(line, **hook).returncode == 1
        assert shell(f"alerts ack run_failed:import --store {address} --reason known").returncode == 0
        server.answer(503)
        down = shell(line, **hook)
        assert (down.returncode, down.stdout) == (1, "Quiet: of 13 rules none fires.\n")
        assert f"The webhook at {server.url} has not taken the notice: it answered 503." in down.stderr
        server.answer(200)
        assert shell(line, **hook).returncode == 0


def test_the_crontab_of_the_guide_works_as_printed(tmp_path):
    """U-23: with the environment that cron gives, which is almost none; what fires is delivered and in the log."""
    page = (ROOT / "docs" / "guides" / "alerts.md").read_text()
    crontabs = re.findall(r"```crontab\n(.*?)```", page, re.DOTALL)
    address = prepared(tmp_path / "s.db")
    with open_store(address) as store:
        ran(store, "failed")
    programs = Path(sys.executable).parent
    with ScriptedServer() as server:
        server.answer(200)
        lines = "\n".join(crontabs)
        for printed, here in (
            ("postgresql://ops@db/shop", address),
            ("https://hooks.example.com/services/T0/B0/secret", f"{server.url}/secret"),
            ("/opt/shop/.venv/bin", str(programs)),
            ("/var/log", str(tmp_path)),
            ("/var/lib/node_exporter", str(tmp_path)),
        ):
            assert printed in lines
            lines = lines.replace(printed, here)
        settings = [line.partition("=") for line in lines.splitlines() if re.match(r"[A-Z_]+=", line)]
        env = {"PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "HOME": str(tmp_path)} | {
            name: to for name, _, to in settings
        }
        commands = [line.removeprefix("* * * * * ") for line in lines.splitlines() if line.startswith("* ")]
        assert len(commands) == 2
        codes = [
            subprocess.run(["/bin/sh", "-c", one], env=env, cwd=tmp_path, check=False).returncode for one in commands
        ]
    assert codes == [1, 0]
    log = (tmp_path / "outlast-alerts.log").read_text()
    assert "run_failed:import" in log
    assert "Sent to the webhook: 1 notice." in log
    assert (
        'outlast_runs_on_record{app="default",pipeline="import",status="failed"} 1'
        in (tmp_path / "outlast.prom").read_text()
    )


# --- breakers of processes --------------------------------------------------------------------------------------------


OPENS = """
import asyncio, sys
import outlast
from outlast import compat

app = outlast.App("shop", store={address!r})
guard = outlast.Guard("adapter", retry=None, breaker=outlast.CircuitBreaker("adapter", failure_threshold=1))
old = compat.CircuitBreaker(failure_threshold=1, name="llamaindex")

async def hangs_up():
    raise ConnectionResetError("hung up")

for call in (lambda: guard.outcome(asyncio.run, hangs_up()), lambda: asyncio.run(old.call(hangs_up))):
    try:
        call()
    except ConnectionResetError:
        pass
print("open", flush=True)
for line in sys.stdin:
    {then}
    print("done", flush=True)
"""


def opener(address, then="guard.breaker.reset()"):
    return Forked(
        [sys.executable, "-c", OPENS.format(address=address, then=then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def eventually(look, wanted):
    """Wait for what a thread of another process writes."""
    tick = threading.Event()
    for _ in range(600):
        if (found := look()) == wanted:
            return
        tick.wait(0.05)
    assert found == wanted


def test_open_breakers_of_a_process_with_a_store_are_reported_while_it_lives(app):
    """S4-17, D-41: of a Guard and of `compat`; one that closes, a process that ends and one that is killed are not."""
    address, store = app._url, open_store(app._url, app="shop")
    sql(store, "delete from outlast_states where app = 'shop'")
    views = Views(store)

    def seen():
        return {id_: alert.facts["processes"] for id_, alert in firing(store).items()}

    def listed():
        return sorted((one["name"], one["state"], one["shared"]) for one in views.breakers())

    both = {"breaker_open:adapter": 1, "breaker_open:llamaindex": 1}
    with opener(address) as first:
        assert first.stdout.readline() == "open\n"
        eventually(seen, both)
        assert listed() == [("adapter", "open", False), ("llamaindex", "open", False)]
        with opener(address) as second:
            assert second.stdout.readline() == "open\n"
            eventually(seen, dict.fromkeys(both, 2))
            assert len(views.breakers_now()) == 2
            second.send_signal(signal.SIGKILL)
            second.wait(60)
        eventually(seen, both)
        first.stdin.write("\n")
        first.stdin.flush()
        assert first.stdout.readline() == "done\n"
        eventually(seen, {"breaker_open:llamaindex": 1})
        first.stdin.close()
        first.wait(60)
    assert seen() == {}
    assert listed() == []
    store.close()


def test_a_breaker_that_ends_with_its_process_leaves_no_row_that_grows(app):
    """D-41: one document for all processes, with those that live; a part that nobody renews expires."""
    commons, now = app.commons, 1000.0
    document = {
        f"elsewhere:{number}:1": {"until": 1060.0, "changed": now, "breakers": {"api": {}}} for number in (1, 2)
    }
    document["elsewhere:3:1"] = {"until": 1000.0, "changed": 940.0, "breakers": {"api": {}}}
    document["elsewhere:4:1"] = {
        "until": 9000.0,
        "changed": 940.0,
        "breakers": {"api": {}},
    }  # of a clock set back since
    assert sorted(who for who, *_ in breakers.reported(document, now)) == ["elsewhere:1:1", "elsewhere:2:1"]
    assert [who for who, *_ in breakers.reported(document, 1060.0)] == []
    old = {"elsewhere:9:1": {"until": 1.0, "changed": 0.0, "breakers": {"api": {"state": "open"}}}}
    commons.change(breakers.KIND, "all", lambda *_: (old, None))
    breaker = outlast.CircuitBreaker("api", failure_threshold=1)
    reporter = breakers.Reporter()
    breaker.settle(breaker.era(), failed=True)
    reporter._breakers.add(breaker)
    reporter._write(commons)
    kept, _ = commons.look(breakers.KIND, "all")
    ((part),) = kept.values()
    assert list(part["breakers"]) == ["api"]
    breaker.reset()
    reporter._write(commons)
    assert commons.look(breakers.KIND, "all")[0] == {}


def test_two_breakers_of_one_name_are_open_if_one_of_them_is(app):
    """D-41: a closed one of the same name does not hide the open one; a half-open one is no alert."""
    first, second = (outlast.CircuitBreaker("api", failure_threshold=1, reset_timeout=60) for _ in range(2))
    reporter = breakers.Reporter()
    for breaker in (first, second):
        reporter._breakers.add(breaker)
    first.settle(first.era(), failed=True)
    reporter._write(app.commons)
    views = Views(app.store)
    assert [(one["name"], one["state"]) for one in views.breakers_now()] == [("api", "open")]
    first.reset()
    reporter._write(app.commons)
    assert views.breakers_now() == []


def test_a_program_without_a_store_reports_nothing(tmp_path):
    """S4-17: no hook is set, no thread runs and no file appears."""
    program = (
        "import outlast, threading, os\nfrom outlast.sharing import named\n"
        "breaker = outlast.CircuitBreaker('api', failure_threshold=1)\nbreaker.settle(breaker.era(), failed=True)\n"
        "print(breaker.state.value, named.report_change, threading.active_count(), os.listdir('.'))"
    )
    env = {name: value for name, value in os.environ.items() if name != "OUTLAST_STORE"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, text=True, capture_output=True, check=True
    )
    assert done.stdout == "open None 1 []\n"


def test_a_breaker_that_opened_before_the_store_was_there_is_reported(tmp_path):
    """S4-17, D-41: to each store as soon as the process has it; one that is closed is not."""
    early, closed = (outlast.CircuitBreaker(name, failure_threshold=1) for name in ("early", "fine"))
    early.settle(early.era(), failed=True)
    apps = [outlast.App("shop", store=f"sqlite:///{tmp_path / name}.db") for name in ("one", "two")]
    for app in apps:
        eventually(lambda app=app: [one["name"] for one in Views(app.store).breakers()], ["early"])
    early.reset()
    for app in apps:
        eventually(lambda app=app: Views(app.store).breakers(), [])
        app.store.close()
    assert closed.state == "closed"


def test_virtual_time_and_shared_breakers_are_not_reported(app):
    """S4-17: a test's circuits are its own, and a shared one is in the store as itself."""
    store = app.store
    assert named.report_change is not None
    with outlast.testing.virtual_time():
        breaker = outlast.CircuitBreaker("virtual", failure_threshold=1)
        breaker.settle(breaker.era(), failed=True)
    shared = outlast.CircuitBreaker("common", failure_threshold=1, shared=True)
    app.share(shared)
    shared.isolate("by hand")
    eventually(lambda: [one["name"] for one in Views(store).breakers()], ["common"])
    assert app.commons.look(breakers.KIND, "all")[0] is None


def test_a_breaker_of_another_process_cannot_be_steered(tmp_path):
    """S4-17: the command says whose it is and what would help."""
    address = prepared(tmp_path / "s.db")
    with opener(address) as process:
        process.stdout.readline()
        shell = Shell(tmp_path, {})
        eventually(lambda: "adapter" in shell(f"breaker list --store {address}").stdout, wanted=True)
        refused = shell(f"breaker reset adapter --store {address}")
        assert refused.returncode == 2
        assert re.fullmatch(
            rf"The breaker 'adapter' belongs to one process \(.*process {process.pid}\), which cannot be reached from here\. "
            "Make it with shared=True to isolate and reset it in all processes\\.\n",
            refused.stderr,
        )
        process.stdin.close()
        process.wait(60)
