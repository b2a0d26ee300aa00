"""Jobs that a schedule enqueues: one for each tick, whatever happens to workers, clocks and databases."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

import outlast
import ticking
from job_hands import Hands
from job_rows import end
from labor import Beside, wait_until
from outlast.jobs import schedules
from outlast.jobs.schedules import Scheduler
from outlast.kernel.clock import here
from outlast.store.faults import StoreError
from outlast.store.records import to_us
from outlast.testing import capture_events, work
from servers.postgres import Postgres
from stores import Plan, sql

DAY = timedelta(days=1)
NOON = "0 12 * * *"


class Time:
    """The clock of schedules, which stands still between two looks, as far as days are concerned."""

    def __init__(self, monkeypatch):
        # 09:00 on a day in the future, so that no real time plays a part.
        self.now = datetime(2031, 5, 5, 9, tzinfo=UTC)
        self.skew = threading.local()
        monkeypatch.setattr(schedules, "ahead_us", self.ahead_us)

    def ahead_us(self):
        ahead = self.now.timestamp() - time.time() + getattr(self.skew, "seconds", 0.0)
        return round(ahead * 1e6)

    def pass_(self, **time):
        self.now += timedelta(**time)


@pytest.fixture
def clock(monkeypatch):
    return Time(monkeypatch)


def noon(day):
    return datetime(2031, 5, day, 12, tzinfo=UTC)


def ticks(app, kind="report"):
    """The ticks that jobs were enqueued for, the oldest job first."""
    return [datetime.fromisoformat(row.unique_key.removeprefix("cron:")) for row in reversed(app.store.jobs(kind=kind))]


def declared(app, cron=NOON, **options):
    @app.job(name="report", cron=cron, **options)
    def report(scheduled_at: datetime | None = None) -> str:
        return f"of {scheduled_at}"

    return report


def told(events):
    return [event for event in events if event.name in {"job_scheduled", "ticks_missed", "schedule_changed"}]


def looked(app):
    """A worker's look at its schedules, by one that begins now."""
    Scheduler(app.store, app.kinds).look()


# --- one job for each tick ---


@pytest.mark.failure(28)
def test_a_job_is_enqueued_once_for_each_tick(app, clock):
    """The first tick is the next one; two workers look, and one of them enqueues."""
    report = declared(app, queue="reports")
    one, other = (Scheduler(app.store, app.kinds) for _ in range(2))
    with capture_events() as events:
        for look in (one, other):
            look.look()
        assert ticks(app) == []
        for _ in range(3):
            clock.pass_(days=1)
            for look in (one, other, one):
                look.look()
            Hands(app).succeed("reports")
    assert ticks(app) == [noon(5), noon(6), noon(7)]
    handles = list(reversed(list(app.jobs.find(kind="report"))))
    story = [(event.name, getattr(event, "job_id", None), getattr(event, "tick_at", None)) for event in told(events)]
    assert story == [
        ("schedule_changed", None, None),
        *(("job_scheduled", handle.id, noon(day)) for handle, day in zip(handles, (5, 6, 7), strict=True)),
    ]
    assert [handle.queue for handle in handles] == ["reports"] * 3
    assert [handle.result() for handle in handles] == [f"of {noon(day)}" for day in (5, 6, 7)]
    assert report.enqueue().id not in {handle.id for handle in handles}  # by hand, too


def test_the_next_look_is_when_the_next_tick_is_due(sqlite_app, clock):
    """And at the latest after half a minute, since another worker may have declared another schedule."""
    declared(sqlite_app)
    scheduler = Scheduler(sqlite_app.store, sqlite_app.kinds)
    assert scheduler.look() == 30.0
    clock.now = noon(5) - timedelta(seconds=2)
    assert 0.0 < scheduler.look() < 3.0
    clock.now = noon(5) + timedelta(seconds=1)
    assert scheduler.look() == 30.0
    assert ticks(sqlite_app) == [noon(5)]


@pytest.mark.failure(28)
def test_a_tick_whose_job_is_gone_is_not_enqueued_again(app, clock):
    """After retention has removed the job, or it was cancelled, and whoever comes."""
    declared(app)
    looked(app)
    clock.pass_(days=1)
    looked(app)
    assert app.jobs.cancel(next(app.jobs.find()).id)
    sql(app.store, "delete from outlast_jobs where app = ?", app.name)
    looked(app)
    assert ticks(app) == []


@pytest.mark.parametrize(("missed", "expected"), [("once", [14]), ("skip", [])])
def test_after_an_outage_missed_ticks_are_made_up_for_once_or_not_at_all(app, clock, missed, expected):
    declared(app, missed=missed)
    looked(app)
    clock.pass_(days=10)
    with capture_events() as events:
        looked(app)
    assert ticks(app) == [noon(day) for day in expected]
    (event,) = [event for event in told(events) if event.name == "ticks_missed"]
    job_id = next(app.jobs.find()).id if expected else None
    assert (event.first_at, event.last_at, event.job_id, event.job_waits) == (noon(5), noon(14), job_id, False)
    assert event.level == "warning"
    clock.pass_(days=1)
    clock.now = noon(15) + timedelta(seconds=1)
    Hands(app).succeed()
    looked(app)
    assert ticks(app) == [noon(day) for day in (*expected, 15)]


def test_no_second_job_waits_while_the_first_has_not_begun(app, clock):
    """A paused queue, or one that nobody serves: one job stands for all ticks until it begins."""
    declared(app)
    app.jobs.pause("default")
    looked(app)
    with capture_events() as events:
        for _ in range(3):
            clock.pass_(days=1)
            looked(app)
    assert ticks(app) == [noon(5)]
    missed = [event for event in events if event.name == "ticks_missed"]
    (handle,) = app.jobs.find()
    assert [(event.last_at, event.job_id, event.job_waits, event.level) for event in missed] == [
        (noon(day), handle.id, True, "info") for day in (6, 7)
    ]
    app.jobs.resume("default")
    hands = Hands(app)
    (claimed,) = hands.take()
    clock.pass_(days=1)
    looked(app)  # it has begun, and is not done
    assert ticks(app) == [noon(5), noon(8)]
    assert claimed.id == int(handle.id)


def test_a_job_that_is_tried_again_stands_for_no_later_tick(app, clock):
    """It has begun: what it looked at then was before the tick."""
    declared(app)
    looked(app)
    clock.pass_(days=1)
    looked(app)
    hands = Hands(app)
    (claimed,) = hands.take()
    hands.finish(end(claimed, "waiting", delay_us=10**15))
    clock.pass_(days=1)
    looked(app)
    assert ticks(app) == [noon(5), noon(6)]


@pytest.mark.failure(30)
def test_clocks_of_hosts_play_no_part(app, clock, monkeypatch):
    """The database's clock says when a tick is due, also for a host that lives in 1970."""
    declared(app)
    looked(app)
    clock.pass_(days=1)
    monkeypatch.setattr(type(here.get().clock), "now", lambda _: datetime(1970, 1, 1, tzinfo=UTC))
    looked(app)
    assert ticks(app) == [noon(5)]


@pytest.mark.failure(28)
def test_many_look_at_the_same_time(app, clock):
    """Each tick has one job, although all look at once, with clocks that are minutes apart."""
    declared(app)
    lookers = [Scheduler(app.store, app.kinds) for _ in range(6)]
    lookers[0].look()
    together = threading.Barrier(len(lookers) + 1)
    wrong = []

    def look(looker, skew):
        clock.skew.seconds = skew
        try:
            for _ in range(5):
                together.wait(200)
                looker.look()
                together.wait(200)
        except Exception as error:  # noqa: BLE001 - told below
            wrong.append(error)
            together.abort()

    threads = [threading.Thread(target=look, args=(one, 100.0 * place)) for place, one in enumerate(lookers)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        clock.pass_(days=1)
        together.wait(200)
        together.wait(200)
        Hands(app).succeed()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert ticks(app) == [noon(day) for day in range(5, 10)]


# --- in the middle of it ---


@pytest.mark.failure(28)
@pytest.mark.parametrize("after", [False, True])
def test_tick_and_job_come_together_or_not_at_all(app, clock, monkeypatch, after):
    """Killed at any statement, before it or after it."""
    declared(app)
    looked(app)
    plan = Plan(app.store, monkeypatch)
    failed = 0
    for at in range(1, 30):
        clock.pass_(days=1)
        expected = clock.now.replace(hour=12) - DAY
        plan.fail(at, after=after)
        try:
            looked(app)
        except StoreError:
            failed += 1
        plan.fail(None)
        rows, _ = app.store.schedules()
        done = [tick for tick in ticks(app) if tick == expected]
        assert (rows[0].tick_us == to_us(expected)) is bool(done), at
        looked(app)
        assert ticks(app)[-1] == expected, at
        Hands(app).succeed()
    assert failed > 5
    assert ticks(app) == sorted(set(ticks(app)))
    assert len(ticks(app)) == 29


@pytest.mark.failure(28)
@pytest.mark.timeout(240)
def test_two_workers_one_of_them_killed_again_and_again(app, tmp_path):
    """Real processes, clocks half a minute apart, kills in the middle, and retention right behind them."""
    ticking.declare(app, tmp_path)
    (tmp_path / ticking.BEGAN).write_text(repr(time.time()))
    seen = {}

    def enough(count):
        seen.update({tick: seen.get(tick, set()) | jobs for tick, jobs in ticking.noted(tmp_path).items()})
        # As retention does, only sooner: nothing but the schedule's own record knows what was done.
        sql(app.store, "delete from outlast_jobs where app = ? and state = 'succeeded'", app.name)
        return len(seen) >= count

    with ticking.ticker(app, tmp_path, speed=600, skew=0):
        for kills in range(1, 5):
            with ticking.ticker(app, tmp_path, speed=600, skew=31) as doomed:
                wait_until(lambda count=20 * kills: enough(count), f"{20 * kills} ticks are done")
                assert doomed.poll() is None, doomed.stderr.read()
                os.kill(doomed.pid, signal.SIGKILL)
                doomed.wait()
    assert {tick: jobs for tick, jobs in seen.items() if len(jobs) > 1} == {}
    assert all((tick.second, tick.microsecond) == (0, 0) for tick in seen)


@pytest.mark.failure(28)
@pytest.mark.timeout(240)
def test_the_database_is_restarted_in_the_middle(tmp_path):
    """Ticks of that time are made up for, and none is enqueued twice."""
    with Postgres() as server:
        app = outlast.App("ticking", store=server.dsn)
        ticking.declare(app, tmp_path)
        (tmp_path / ticking.BEGAN).write_text(repr(time.time()))
        with ticking.ticker(app, tmp_path, speed=600, skew=0), ticking.ticker(app, tmp_path, speed=600, skew=31):
            wait_until(lambda: len(ticking.noted(tmp_path)) >= 15, "ticks are done")
            server.stop("immediate")
            before = len(ticking.noted(tmp_path))
            server.start()
            wait_until(lambda: len(ticking.noted(tmp_path)) >= before + 15, "ticks are done again")
        app.store.close()
    found = ticking.noted(tmp_path)
    assert {tick: jobs for tick, jobs in found.items() if len(jobs) > 1} == {}


def test_a_store_that_is_away_is_asked_again_and_told_of_once(sqlite_app, clock, monkeypatch, caplog):
    declared(sqlite_app)
    scheduler = Scheduler(sqlite_app.store, sqlite_app.kinds)
    plan = Plan(sqlite_app.store, monkeypatch)
    for _ in range(3):
        plan.fail(1)
        assert scheduler._surely_look() == 5.0
    plan.fail(None)
    assert scheduler._surely_look() == 30.0
    assert [record.getMessage()[:30] for record in caplog.records] == ["schedules cannot be looked at:"]
    plan.fail(1)  # another outage
    assert scheduler._surely_look() == 5.0
    assert len(caplog.records) == 2


def test_the_next_look_is_for_the_schedule_that_is_due_first(sqlite_app, clock):
    """Whatever their order is, and one that was moved on counts with its new tick."""

    def report() -> None: ...

    for name, cron in (("a", "0 12 * * *"), ("b", "0 9 * * *"), ("c", "0 18 * * *")):
        sqlite_app.job(name=name, cron=cron)(report)
    scheduler = Scheduler(sqlite_app.store, sqlite_app.kinds)
    for due in (noon(5), noon(5) + timedelta(hours=6), noon(6) - timedelta(hours=3)):
        clock.now = due - timedelta(seconds=10)
        assert 9.0 < scheduler.look() < 11.0, due
        clock.now = due + timedelta(seconds=1)
        assert scheduler.look() == 30.0, due
    assert [len(ticks(sqlite_app, kind)) for kind in "abc"] == [1, 1, 1]


def test_a_database_clock_that_was_set_back_is_warned_of_once(sqlite_app, clock, caplog):
    """Ticks go on from then."""
    declared(sqlite_app)
    clock.pass_(days=9)
    looked(sqlite_app)
    clock.now = noon(5) - timedelta(hours=3)
    scheduler = Scheduler(sqlite_app.store, sqlite_app.kinds)
    for _ in range(2):
        scheduler.look()
    assert [record.getMessage() for record in caplog.records] == [
        "the database's clock was set back: the schedule of report goes on from now"
    ]
    clock.now = noon(5) + timedelta(seconds=1)
    scheduler.look()
    assert ticks(sqlite_app) == [noon(5)]


# --- what is declared ---


def test_another_schedule_counts_from_now_on(app, clock):
    """Also while workers of the older code run on: they stand back, and say so once."""
    declared(app)
    older = Scheduler(app.store, dict(app.kinds))
    older.look()
    clock.pass_(hours=1)
    newer_app = outlast.App(app.name, store=app.store_url)
    declared(newer_app, cron="0 18 * * *", timezone="Europe/Berlin")
    newer = Scheduler(newer_app.store, newer_app.kinds)
    with capture_events() as events:
        newer.look()
        older.look()
    (event,) = told(events)
    assert (event.expression, event.timezone, event.before) == ("0 18 * * *", "Europe/Berlin", f"{NOON} (UTC)")
    clock.now = noon(5) + timedelta(hours=5)
    older.look()
    newer.look()
    assert ticks(app) == [datetime(2031, 5, 5, 16, tzinfo=UTC)]
    newer_app.store.close()


def test_older_workers_say_once_that_another_schedule_counts(sqlite_app, clock, caplog):
    declared(sqlite_app)
    older = Scheduler(sqlite_app.store, dict(sqlite_app.kinds))
    older.look()
    clock.pass_(hours=1)
    newer_app = outlast.App(sqlite_app.name, store=sqlite_app.store_url)
    declared(newer_app, cron="0 18 * * *")
    Scheduler(newer_app.store, newer_app.kinds).look()
    newer_app.store.close()
    older.look()
    older.look()
    assert [record.getMessage() for record in caplog.records] == [
        f"report has the schedule {NOON!r} (UTC) here and '0 18 * * *' (UTC) on a worker that began later: that one counts"
    ]
    clock.pass_(minutes=6)  # nobody has declared the other one since
    older.look()
    assert len(caplog.records) == 1
    newest_app = outlast.App(sqlite_app.name, store=sqlite_app.store_url)
    declared(newest_app, cron="0 20 * * *")
    Scheduler(newest_app.store, newest_app.kinds).look()
    newest_app.store.close()
    older.look()
    assert "'0 20 * * *' (UTC) on a worker that began later" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2


def test_a_schedule_without_a_declaration_enqueues_nothing(app, clock):
    declared(app)
    looked(app)
    clock.pass_(days=3)
    without = outlast.App(app.name, store=app.store_url)

    @without.job
    def other() -> None: ...

    looked(without)
    assert without.work(until_idle=True).succeeded == 0
    assert ticks(app) == []
    assert [row.kind for row in without.store.schedules()[0]] == ["report"]
    without.store.close()


# --- workers ---


def shifted(app, days):
    """As if so many days had passed since the schedule was last looked at."""
    us = days * 86_400_000_000
    sql(app.store, "update outlast_schedules set since = since - ?, seen = seen - ? where app = ?", us, us, app.name)


def test_a_worker_does_what_is_due_when_it_begins(app):
    """And is idle then: the next tick does not count."""
    declared(app, cron="0 0 * * *")
    assert app.work(until_idle=True).succeeded == 0
    shifted(app, 2)
    result = app.work(until_idle=True)
    assert (result.succeeded, result.later, result.next_run_at) == (1, 0, None)
    assert app.work(until_idle=True).succeeded == 0


def test_a_worker_of_another_queue_enqueues_too(app):
    """It knows the kind, and that is enough; whoever serves the queue does the job."""
    declared(app, cron="0 0 * * *", queue="reports")
    app.work(queues=["other"], until_idle=True)
    shifted(app, 2)
    assert app.work(queues=["other"], until_idle=True).succeeded == 0
    assert app.work(queues=["reports"], until_idle=True).succeeded == 1


def test_a_worker_that_goes_on_looks_by_itself(app, monkeypatch):
    monkeypatch.setattr(schedules, "FRESH", 0.01)
    declared(app, cron="0 0 * * *")
    with Beside(app):
        wait_until(lambda: app.store.schedules()[0], "the schedule is on record")
        shifted(app, 2)
        wait_until(lambda: [handle.status for handle in app.jobs.find()] == ["succeeded"], "its job is done")
    assert [thread.name for thread in threading.enumerate() if "schedules" in thread.name] == []


def test_virtual_time_makes_no_ticks(sqlite_app):
    """Else a test would never end: it enqueues by hand what it wants to see."""
    report = declared(sqlite_app, cron="* * * * *")
    later = report.options(delay=3600).enqueue()
    assert work(sqlite_app).succeeded == 1
    assert later.result() == "of None"
    assert sqlite_app.store.schedules()[0] == []


def test_a_failed_job_of_a_tick_is_retried_as_any_other(app, clock):
    @app.job(cron=NOON, retry=outlast.RetryPolicy(max_attempts=2, initial_delay=1, jitter=0))
    def report() -> None:
        raise ConnectionResetError("down")

    looked(app)
    clock.pass_(days=1)
    looked(app)
    assert work(app).failed == 1
    (handle,) = app.jobs.find()
    assert (handle.status, handle.attempts) == ("failed", 2)
    looked(app)
    assert len(list(app.jobs.find())) == 1
    assert app.jobs.requeue(handle.id).status == "queued"
