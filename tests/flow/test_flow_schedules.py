"""Flows that a schedule starts, and the names that the jobs of flows have."""

from __future__ import annotations

import pytest

import outlast
from job_rows import worker
from jobs.test_schedules import Time
from labor import Beside, wait_until
from outlast.jobs.schedules import Scheduler
from outlast.report.metrics import metrics_text
from outlast.report.views import Views
from outlast.testing import capture_events

FUNCTIONS = """
from pathlib import Path

HERE = Path(__file__).parent

def go(fails=False):
    with (HERE / "notes").open("a") as notes:
        notes.write("x")
    if fails:
        raise ValueError("no such order")
"""
FLOW = """
name: NAME
SCHEDULE
params: {fails: {type: boolean, default: false}, token: {type: string, sensitive: true}}
steps:
  - {id: go, component: python, config: {call: "MODULE:go", args: {fails: "${params.fails}"}}, idempotent: true}
"""
NOON = 'schedule: "0 12 * * *"'


@pytest.fixture
def clock(monkeypatch):
    return Time(monkeypatch)


@pytest.fixture
def flows(project, monkeypatch):
    """The path of a flow file of this name, with this schedule."""
    project.functions(FUNCTIONS)
    monkeypatch.setenv("OUTLAST_PARAM_TOKEN", "hidden")

    def file(name="trip", schedule=NOON):
        path = project.root / f"{name}.yaml"
        text = FLOW.replace("NAME", name).replace("SCHEDULE", schedule).replace("MODULE", project.module)
        path.write_text('oml_version: "0.1.0"\n' + text)
        return path

    return file


def look(app):
    """A worker's look at the schedules, by one that begins now."""
    Scheduler(app.store, app.kinds | app.flows).look()


def started(app, kind="flow:trip"):
    return [(job.run_key, job.unique_key) for job in reversed([*app.jobs.find(kind=kind)])]


def states(app):
    return {view.row.kind: view.state for view in Views(app.store).jobs.schedules()}


# -- schedules -------------------------------------------------------------------------------------------------------------


def test_each_tick_starts_one_run_with_a_key_of_its_own(app, flows, clock):
    """D-45: also with two workers, and each run is carried out."""
    flow = app.flow(flows())
    workers = [Scheduler(app.store, app.kinds | app.flows) for _ in range(2)]
    for days in (0, 1, 1):
        clock.pass_(days=days)
        for one in workers:
            one.look()
        outlast.testing.work(app)
    assert started(app) == [(f"trip-2031-05-0{day}T12:00Z", f"cron:2031-05-0{day}T12:00:00+00:00") for day in (5, 6)]
    assert [(run.run_key, run.status) for run in reversed(app.store.runs())] == [
        (f"trip-2031-05-0{day}T12:00Z", "completed") for day in (5, 6)
    ]
    assert flow.manifest.name == "trip"


def test_missed_ticks_start_one_run_or_none(app, flows, clock):
    """D-45: `missed` is that of jobs."""
    app.flow(flows())
    app.flow(flows("skipper", 'schedule: {cron: "0 12 * * *", missed: skip}'))
    look(app)
    clock.pass_(days=3)
    look(app)
    assert [key for key, _ in started(app)] == ["trip-2031-05-07T12:00Z"]
    assert started(app, "flow:skipper") == []


def test_a_schedule_is_on_the_wall_clock_of_its_timezone(sqlite_app, flows, clock):
    """D-45: noon in Berlin is ten o'clock in summer."""
    sqlite_app.flow(flows(schedule='schedule: {cron: "0 12 * * *", timezone: Europe/Berlin}'))
    look(sqlite_app)
    clock.pass_(days=1)
    look(sqlite_app)
    assert [key for key, _ in started(sqlite_app)] == ["trip-2031-05-05T10:00Z"]


def test_a_changed_schedule_takes_effect(app, flows, clock):
    """D-45: the worker that began last counts, as for jobs."""
    app.flow(flows())
    look(app)
    app.flow(flows(schedule='schedule: "0 18 * * *"'))
    clock.pass_(minutes=10)
    look(app)
    clock.pass_(days=1)
    look(app)
    assert [key for key, _ in started(app)] == ["trip-2031-05-05T18:00Z"]


def test_a_schedule_that_the_file_lost_ends_and_is_shown_as_undeclared(app, flows, clock):
    """D-45: nothing is enqueued for it, and the list of schedules says so."""
    app.flow(flows())
    with Beside(app):
        wait_until(lambda: states(app) == {"flow:trip": "active"}, "the worker has declared its schedule")
    app.flow(flows(schedule="description: no schedule"))
    clock.pass_(days=1)
    look(app)
    assert (started(app), states(app)) == ([], {"flow:trip": "undeclared"})


def test_a_flow_of_an_app_runs_in_it_unless_another_is_named(sqlite_app, flows, tmp_path):
    """What `app.flow` returns is a flow like any other."""
    flow = sqlite_app.flow(flows(schedule=""), params={"fails": False})
    other = outlast.App("other", store=str(tmp_path / "other.db"))
    assert flow.enqueue(run_key="a").kind == "flow:trip"
    flow.run(run_key="b")
    flow.run(run_key="c", app=other)
    assert [run.run_key for run in sqlite_app.store.runs()] == ["b"]
    assert [run.run_key for run in other.store.runs()] == ["c"]
    assert (sqlite_app.flows, len(list(sqlite_app.jobs.find()))) == ({}, 1)


def test_what_could_never_be_enqueued_is_refused_at_once(sqlite_app, flows):
    """Not at its tick: a secret that would be stored, another file of the same name, an unknown argument."""
    with pytest.raises(outlast.ConfigurationError, match=r"params\.token"):
        sqlite_app.flow(flows(), params={"token": "hidden"})
    assert sqlite_app.flows == {}
    sqlite_app.flow(flows())
    again = flows().rename(flows().with_name("copy.yaml"))
    with pytest.raises(outlast.ConfigurationError, match=r"one that no other file of .* has"):
        sqlite_app.flow(again)
    with pytest.raises(outlast.ConfigurationError, match="expected no argument 'profiles'"):
        sqlite_app.flow(flows(), profiles="x")


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("whenever", "schedule: expected five fields"),
        ('"0 12 * * mañana"', "schedule: expected a day of the week as cron knows it, got 'mañana'"),
        ('"0 12 31 2 *"', "schedule: expected an expression that comes due"),
        (
            '"@daily"',
            "schedule: expected five fields: minute, hour, day of the month, month, day of the week, got '@daily'; write '0 0 * * *'",
        ),
        (
            "[1]",
            "schedule: expected a cron expression, or a mapping with cron, timezone and missed, got a value of type list",
        ),
        (
            "{timezone: UTC}",
            "schedule: expected a cron expression, or a mapping with cron, timezone and missed, got no cron",
        ),
        ("{cron: 5}", "schedule.cron: expected an expression such as '*/5 * * * *', got 5"),
        ('{cron: "* * * * *", timezone: Europe/Berln}', "did you mean 'Europe/Berlin'?"),
        ('{cron: "* * * * *", missed: twice}', "schedule.missed: expected one of once, skip, got 'twice'"),
        ('{cron: "* * * * *", misd: skip}', "schedule.misd: expected a known key, got 'misd'; did you mean 'missed'?"),
    ],
)
def test_a_schedule_that_cannot_be_carried_out_is_an_error_of_the_file(flows, schedule, said):
    """D-45: with its place, whatever the file is loaded for."""
    with pytest.raises(outlast.ConfigurationError) as caught:
        outlast.Flow.load(flows(schedule=f"schedule: {schedule}"))
    (problem,) = caught.value.problems
    assert (said in problem, "trip.yaml:4:" in problem) == (True, True), problem


# -- names -----------------------------------------------------------------------------------------------------------------


def test_a_flow_and_a_job_of_one_name_are_told_apart(app, flows):
    """S1-22, S3-26: in the list, the figures, the metrics and the dead letters; each is found by its name."""

    @app.job(name="trip", retry=None)
    def trip() -> None:
        raise ValueError("no such order")

    job = trip.enqueue()
    flow, other = (outlast.Flow.load(flows(name, "")) for name in ("trip", "other"))
    fails = outlast.Flow.load(flows("trip", ""), params={"fails": True})
    done, lost, beside = flow.enqueue(app=app), fails.enqueue(app=app), other.enqueue(app=app)
    with capture_events() as events:
        outlast.testing.work(app)
    assert [one.status for one in (job, done, lost, beside)] == ["failed", "succeeded", "failed", "succeeded"]
    assert [one.kind for one in (job, done, lost, beside)] == ["trip", "flow:trip", "flow:trip", "flow:other"]
    assert {one.kind: (one.succeeded, one.failed) for one in app.jobs.figures()} == {
        "flow:other": (1, 0),
        "flow:trip": (1, 1),
        "trip": (0, 1),
    }
    assert {one.id for one in app.jobs.find(kind="flow:trip")} == {done.id, lost.id}
    assert {one.id for one in app.jobs.find(kind="trip")} == {job.id, done.id, lost.id}
    assert [one.id for one in app.jobs.find(kind="other")] == [beside.id]
    letters = {letter.item_key: (letter.pipeline, letter.stage) for letter in app.dead_letters.find(pipeline="trip")}
    assert letters == {job.id: ("trip", "trip"), lost.id: ("trip", "flow:trip")}
    assert sorted((group.stage, group.count) for group in app.dead_letters.groups()) == [("flow:trip", 1), ("trip", 1)]
    enqueued = [event for event in events if event.name == "dead_letter_enqueue"]
    assert {(event.pipeline, event.step_id) for event in enqueued} == {("trip", "trip"), ("trip", "flow:trip")}
    text = metrics_text(app.store, Views(app.store))
    for line in ('kind="flow:trip"', 'kind="trip"', 'kind="flow:other"'):
        assert any(line in one and one.startswith("outlast_job_failure_rate{") for one in text.splitlines()), line
    assert [total.step for total in app.store.retry_totals()] == [], "a job that runs a flow is no operation"


def test_unique_keys_belong_to_one_flow(app, flows):
    """Two flows that are enqueued with the same key are two jobs; the same flow again is not."""
    first, other = (outlast.Flow.load(flows(name, "")) for name in ("trip", "other"))
    handles = [flow.enqueue(app=app, unique_key="monday") for flow in (first, other, first)]
    assert [handle.new for handle in handles] == [True, True, False]
    outlast.testing.work(app)
    assert [handle.status for handle in handles] == ["succeeded"] * 3


@pytest.mark.parametrize("name", ["flow:trip", "outlast.flow"])
def test_no_job_can_have_the_kind_of_a_flow(sqlite_app, name):
    """A job that was taken for one would be lost to its own handler."""
    with pytest.raises(outlast.ConfigurationError, match=r"does not begin with outlast\. or flow:"):
        sqlite_app.job(name=name)(lambda: None)


def test_a_worker_that_knows_no_flows_claims_none(app, flows):
    """By any of the ways to claim: at once, step by step, those that run alone; they count as nothing to do for it."""
    handle = outlast.Flow.load(flows("trip", "")).enqueue(app=app)
    store, lease = app.store, worker(app.store)
    for kinds, found in (({"trip": 1}, []), ({"flow:trip": 1}, []), ({"trip": 1, "outlast.flow": 1}, [handle.id])):
        assert store.idle(None, kinds).due == len(found)
        assert [str(job.id) for job in store.turn(lease, [], {"default": 1}, kinds).claimed] == found
