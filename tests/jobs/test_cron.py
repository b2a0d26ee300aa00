"""When a schedule is due, and what follows: pure, with every instant said."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import outlast
from outlast.jobs.cron import Schedule, Step, key_of, newest_tick, next_tick, step, ticks_after
from outlast.store.records import ScheduleRow, to_us

MINUTE, HOUR, DAY = 60_000_000, 3_600_000_000, 86_400_000_000
T = to_us(datetime(2026, 11, 16, 9, 0, tzinfo=UTC))
EVERY = Schedule("*/5 * * * *")


def at(text, zone="UTC"):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


def first(count, expression, since, zone="UTC"):
    """The first ticks after an instant, on the wall clock and in UTC."""
    ticks = ticks_after(Schedule(expression, zone), at(since))
    found = [next(ticks) for _ in range(count)]
    return [f"{tick.astimezone(ZoneInfo(zone)):%d %H:%M} = {tick:%H:%M}" for tick in found]


# --- ticks ---


@pytest.mark.parametrize(
    ("zone", "since", "expected"),
    [
        # The clock jumps from 2 to 3, which is 1:00 in UTC.
        ("Europe/Berlin", "2026-03-28 22:00", ["29 03:00 = 01:00", "30 02:30 = 00:30", "31 02:30 = 00:30"]),
        # It goes back from 3 to 2: 2:30 comes twice.
        ("Europe/Berlin", "2026-10-24 22:00", ["25 02:30 = 00:30", "26 02:30 = 01:30", "27 02:30 = 01:30"]),
        ("America/New_York", "2026-03-08 05:00", ["08 03:00 = 07:00", "09 02:30 = 06:30", "10 02:30 = 06:30"]),
    ],
)
def test_a_time_of_the_day_comes_once_a_day(zone, since, expected):
    """A time that does not exist is due when the clock has jumped; one that comes twice, the first time."""
    assert first(3, "30 2 * * *", since, zone) == expected


def test_a_time_that_comes_twice_in_new_york():
    expected = ["01 01:30 = 05:30", "02 01:30 = 06:30", "03 01:30 = 06:30"]
    assert first(3, "30 1 * * *", "2026-11-01 04:00", "America/New_York") == expected


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ("2026-03-29 00:15", ["29 01:30 = 00:30", "29 03:00 = 01:00", "29 03:30 = 01:30"]),
        ("2026-10-25 00:15", ["25 02:30 = 00:30", "25 02:00 = 01:00", "25 02:30 = 01:30", "25 03:00 = 02:00"]),
    ],
)
def test_stars_follow_the_wall_clock_as_it_is(since, expected):
    """Every half hour is every half hour, also in the hour that comes twice."""
    assert first(len(expected), "*/30 * * * *", since, "Europe/Berlin") == expected


def test_asked_in_the_second_half_of_the_hour_that_comes_twice():
    """A tick of the first half is past: the next one is tomorrow's."""
    schedule = Schedule("15,45 2 * * *", "Europe/Berlin")
    assert next_tick(schedule, at("2026-10-25 01:20")) == at("2026-10-26 01:15")
    assert newest_tick(schedule, at("2026-10-24 00:00"), at("2026-10-25 01:20")) == at("2026-10-25 00:45")


def test_leap_years():
    schedule = Schedule("0 0 29 2 *")
    assert next_tick(schedule, at("2026-01-01")) == at("2028-02-29")
    assert next_tick(schedule, at("2096-03-01")) == at("2104-02-29")


def fits(expression, wall):
    """Whether a wall clock shows a time that fields of stars, steps and numbers name."""

    def one(field, value, low):
        base, _, by = field.partition("/")
        return (base == "*" or value == int(base)) and (not by or (value - low) % int(by) == 0)

    minute, hour, day, month, weekday = expression.split()
    dates = one(day, wall.day, 1) and one(month, wall.month, 1) and one(weekday, wall.isoweekday() % 7, 0)
    return dates and one(minute, wall.minute, 0) and one(hour, wall.hour, 0)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["*/5 * * * *", "7 * * * *", "* */3 * * *", "*/20 * * * 0", "13 */2 * * *", "* 2 * * *"]),
    # Not Australia/Lord_Howe, whose clock jumps by half an hour: there the library is off by one tick on that day.
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "Asia/Kathmandu"]),
    st.sampled_from(["2026-03-28", "2026-10-24", "2026-03-07", "2026-10-31", "2026-04-04", "2026-10-03", "2026-06-01"]),
    st.integers(0, 47 * 60),
    st.integers(0, 600),
)
@example("*/5 * * * *", "Europe/Berlin", "2026-10-24", 24 * 60, 300)
def test_ticks_are_those_that_a_wall_clock_shows(expression, zone, day, begin, length):
    """Where a star stands for the minute or the hour, against a clock that is looked at every minute."""
    since = at(day) + timedelta(minutes=begin)
    until = since + timedelta(minutes=length)
    minutes = [since + timedelta(minutes=number) for number in range(1, length + 1)]
    expected = [tick for tick in minutes if fits(expression, tick.astimezone(ZoneInfo(zone)))]
    schedule = Schedule(expression, zone)
    found = []
    for tick in ticks_after(schedule, since):
        if tick > until:
            break
        found.append(tick)
    assert found == expected
    assert newest_tick(schedule, since, until) == (expected[-1] if expected else None)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["30 2 * * *", "0 0 * * *", "15,45 1-3 * * *", "0 12 * * 1-5", "59 1 1 * *", "5 4 29 2 *"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    st.integers(0, 3 * 365 * 24 * 60),
    st.integers(0, 400 * 24 * 60),
)
def test_ticks_of_a_time_of_the_day_are_the_same_from_wherever_one_begins(expression, zone, begin, length):
    """Any look continues where another one has ended, and none sees a tick twice."""
    schedule, since = Schedule(expression, zone), at("2025-01-01") + timedelta(minutes=begin)
    now = since + timedelta(minutes=length)
    steps, tick = [], since
    while (tick := next_tick(schedule, tick)) is not None and tick <= now:
        steps.append(tick)
    assert steps == sorted(set(steps))
    assert newest_tick(schedule, since, now) == (steps[-1] if steps else None)
    if steps:
        assert newest_tick(schedule, steps[-1], now) is None


def test_years_without_a_worker_are_looked_at_at_once(monkeypatch):
    """Of millions of ticks only the newest are looked at."""
    looked = []

    def ticks(schedule, instant):
        for tick in ticks_after(schedule, instant):
            looked.append(tick)
            yield tick

    monkeypatch.setattr("outlast.jobs.cron.ticks_after", ticks)
    schedule = Schedule("* * * * *")
    assert newest_tick(schedule, at("2020-01-01"), at("2026-01-01 12:34")) == at("2026-01-01 12:34")
    assert len(looked) == 61
    assert newest_tick(Schedule("0 0 1 1 *"), at("2020-01-01"), at("2026-11-16")) == at("2026-01-01")
    assert len(looked) < 80


# --- what follows ---


def row(**fields):
    given = {
        "kind": "report",
        "expression": EVERY.expression,
        "timezone": "UTC",
        "missed": "once",
        "declared_us": T,
        "since_us": T,
        "seen_us": T,
        "tick_us": None,
        "job": None,
        "next_us": T + 5 * MINUTE,
    }
    return ScheduleRow(**(given | fields))


def stepped(on_record, now_us, declared=EVERY, *, began_us=T, waits=False):
    return step(declared, "report", on_record, now_us=now_us, began_us=began_us, waits=waits)


def test_the_first_tick_is_the_next_one():
    """Not one that is past, and not the one of this very instant."""
    assert stepped(None, T) == Step(row())


def test_nothing_is_due_before_its_tick():
    assert stepped(row(), T + 5 * MINUTE - 1) is not None  # it is seen, half a minute is long over
    assert stepped(row(seen_us=T + 5 * MINUTE - 2), T + 5 * MINUTE - 1) is None


def test_a_tick_that_is_due_is_moved_on_to():
    now = T + 5 * MINUTE
    assert stepped(row(), now) == Step(row(tick_us=now, seen_us=now, next_us=now + 5 * MINUTE), now)
    assert stepped(row(tick_us=now, seen_us=now, next_us=now + 5 * MINUTE), now + 1) is None


@pytest.mark.parametrize("minutes", [3, 60, 60 * 24 * 400])
def test_after_an_outage_of_any_length_one_job_stands_for_all_missed_ticks(minutes):
    now = T + (10 + minutes) * MINUTE + 1234
    done = stepped(row(), now)
    newest = now - now % (5 * MINUTE)
    assert (done.tick_us, done.missed_us) == (newest, (T + 5 * MINUTE, newest))
    assert done.row.next_us == newest + 5 * MINUTE


@pytest.mark.parametrize(
    ("late", "tick", "missed"),
    [
        (0, 10, (5, 10)),  # seconds; minutes after T
        (60, 10, (5, 10)),
        (61, None, (5, 10)),
    ],
)
def test_skip_leaves_out_what_is_more_than_a_minute_late(late, tick, missed):
    """A tick is missed when a minute has passed: until then it is merely late."""
    skips = Schedule(EVERY.expression, missed="skip")
    done = stepped(row(missed="skip"), T + 10 * MINUTE + late * 1_000_000, skips)
    assert done.tick_us == (None if tick is None else T + tick * MINUTE)
    assert done.missed_us == tuple(T + minute * MINUTE for minute in missed)
    assert done.row.tick_us == T + 10 * MINUTE


def test_a_job_that_has_not_begun_stands_for_later_ticks_too():
    now = T + 5 * MINUTE
    done = stepped(row(job=7), now, waits=True)
    assert done == Step(row(job=7, tick_us=now, seen_us=now, next_us=now + 5 * MINUTE), None, (now, now), waits=True)


def test_another_expression_counts_from_now_on():
    """What the old one had due is settled first; the new one begins with its next tick."""
    now, hourly = T + 7 * MINUTE, Schedule("30 * * * *", "Europe/Berlin")
    done = stepped(row(), now, hourly, began_us=now)
    assert done.tick_us == T + 5 * MINUTE
    expected = row(
        expression="30 * * * *",
        timezone="Europe/Berlin",
        declared_us=now,
        since_us=now,
        seen_us=now,
        tick_us=T + 5 * MINUTE,
        next_us=T + 30 * MINUTE,
    )
    assert done.row == expected
    assert stepped(done.row, now + MINUTE, hourly, began_us=now).tick_us is None
    assert stepped(done.row, T + 30 * MINUTE, hourly, began_us=now).tick_us == T + 30 * MINUTE


def test_the_worker_that_began_last_says_what_counts():
    """While new code is rolled out, workers of the old one stand back; if nobody else is left, they go on."""
    hourly = Schedule("30 * * * *")
    newer = stepped(row(), T + MINUTE, hourly, began_us=T + MINUTE).row
    assert stepped(newer, T + 2 * MINUTE, EVERY, began_us=T) is None
    assert stepped(newer, T + 20 * MINUTE, EVERY, began_us=T).row.expression == EVERY.expression
    older = stepped(newer, T + 20 * MINUTE, EVERY, began_us=T).row
    assert stepped(older, T + 20 * MINUTE, hourly, began_us=T + MINUTE).row.expression == hourly.expression


def test_of_two_workers_that_began_in_the_same_instant_one_counts():
    """Else each would replace the schedule of the other at every look, and no tick would ever come due."""
    hourly = Schedule("30 * * * *")
    assert stepped(row(), T + MINUTE, hourly, began_us=T) is None
    assert stepped(row(), T + MINUTE, hourly, began_us=T + 1).row.expression == hourly.expression
    stale = T + 5 * MINUTE  # the owner of the schedule was last seen five minutes ago
    assert stepped(row(), stale - 1, hourly, began_us=T) is None
    assert stepped(row(), stale, hourly, began_us=T).row.expression == hourly.expression


@pytest.mark.parametrize("unreadable", [{"expression": "every now and then"}, {"timezone": "Mars/Olympus"}])
def test_a_schedule_that_replaces_an_unreadable_one_keeps_its_waiting_job(unreadable):
    """The job of the last tick has not begun: it stands for the next tick, too, and the ticks before are known."""
    old = row(job=7, tick_us=T + 5 * MINUTE, **unreadable)
    done = stepped(old, T + 7 * MINUTE, began_us=T + MINUTE, waits=True)
    assert (done.tick_us, done.row.job, done.row.tick_us) == (None, 7, T + 5 * MINUTE)
    assert (done.row.expression, done.row.timezone) == (EVERY.expression, EVERY.timezone)
    readable = stepped(row(job=7, tick_us=T + 5 * MINUTE), T + 7 * MINUTE, Schedule("30 * * * *"), began_us=T + MINUTE)
    assert (readable.row.job, readable.row.tick_us) == (7, T + 5 * MINUTE)


def test_an_expression_that_nobody_can_read_any_more_is_replaced():
    done = stepped(row(expression="every now and then"), T + 10 * MINUTE, EVERY, began_us=T + 10 * MINUTE)
    assert (done.tick_us, done.row.expression) == (None, EVERY.expression)


def test_a_clock_that_was_set_back_stops_nothing():
    """A database's clock ran a year ahead for a while: ticks go on now, not in a year."""
    ahead = row(tick_us=T + 365 * DAY, next_us=T + 365 * DAY + 5 * MINUTE)
    done = stepped(ahead, T + MINUTE)
    assert (done.clock_set_back, done.tick_us, done.row.next_us) == (True, None, T + 5 * MINUTE)
    assert stepped(done.row, T + 5 * MINUTE).tick_us == T + 5 * MINUTE
    little = row(tick_us=T + 10 * MINUTE, next_us=T + 15 * MINUTE, seen_us=T + 10 * MINUTE)
    assert stepped(little, T + 9 * MINUTE).tick_us is None
    assert stepped(little, T + 9 * MINUTE).row.tick_us == T + 10 * MINUTE


def test_a_clock_that_was_set_back_forgets_neither_the_waiting_job_nor_who_counts():
    """More than an hour is a clock that was set back, and an hour is not."""
    ahead = row(tick_us=T + HOUR, job=7, declared_us=T + 5 * MINUTE)
    assert stepped(ahead, T) is None
    done = stepped(ahead, T - 1)
    assert (done.clock_set_back, done.row.job, done.row.declared_us) == (True, 7, T + 5 * MINUTE)
    assert stepped(ahead, T - 1, began_us=T + 6 * MINUTE).row.declared_us == T + 6 * MINUTE


def test_a_schedule_is_seen_every_half_minute():
    """So that a worker of older code knows that it is declared."""
    assert stepped(row(), T + 30 * 1_000_000 - 1) is None
    assert stepped(row(), T + 30 * 1_000_000).row.seen_us == T + 30 * 1_000_000


@pytest.mark.parametrize(("old", "new", "tick"), [("skip", "once", T + 5 * MINUTE), ("once", "skip", None)])
def test_what_the_old_expression_missed_is_settled_as_the_new_code_says(old, new, tick):
    """The tick is two minutes late, which `skip` leaves out."""
    done = stepped(row(missed=old), T + 7 * MINUTE, Schedule("30 * * * *", missed=new), began_us=T + 7 * MINUTE)
    assert (done.tick_us, done.row.tick_us, done.row.missed) == (tick, T + 5 * MINUTE, new)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-90, 400), min_size=1, max_size=40), st.sampled_from(["once", "skip"]))
def test_ticks_grow_whatever_the_clock_does(seconds, missed):
    """No tick is enqueued twice, and none that is later than the clock."""
    declared = Schedule("* * * * *", missed=missed)
    now, on_record, done = T, None, []
    for passed in seconds:
        now += passed * 1_000_000
        following = stepped(on_record, now, declared)
        if following is not None:
            on_record = following.row
            if following.tick_us is not None:
                done.append(following.tick_us)
                assert following.tick_us <= now
    assert done == sorted(set(done))


# --- what is declared ---


def refused(app, **options):
    with pytest.raises(outlast.ConfigurationError) as wrong:

        @app.job(**options)
        def report() -> None: ...

    assert app.kinds == {}
    return list(wrong.value.problems)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("61 * * * *", "minute"),
        ("* 25 * * *", "hour"),
        ("* * 0 * *", "day of the month"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day of the week"),
        ("*/0 * * * *", "minute"),
        ("5-1 * * * *", "minute"),
        ("* * * * MON#6", "day of the week"),
        ("0 0 30 2 *", "comes due"),
        ("0 0 31 2,4 *", "comes due"),
        ("0 0 * * * *", "none for seconds"),
        ("* * * *", "five fields"),
        ("", "five fields"),
        ("@daily", "'0 0 * * *'"),
        ("@reboot", "five fields"),
    ],
)
def test_an_expression_that_says_nothing_is_refused(sqlite_app, expression, said):
    (problem,) = refused(sqlite_app, cron=expression)
    assert said in problem
    assert problem.startswith("expected cron to be ")


def test_every_mistake_is_told_at_once(sqlite_app):
    problems = refused(sqlite_app, cron="61 25 * * *", timezone="Europe/Berlinn", missed="never")
    assert len(problems) == 4
    assert "Did you mean 'Europe/Berlin'" in "".join(problems)


@pytest.mark.parametrize("zone", ["Europe", "../etc/passwd", "/etc/localtime", "", "Mars/Olympus", 5])
def test_a_timezone_that_is_none_is_refused(sqlite_app, zone):
    (problem,) = refused(sqlite_app, cron="0 9 * * *", timezone=zone)
    assert problem.startswith("expected timezone to be ")


def test_what_has_no_effect_is_refused(sqlite_app):
    problems = refused(sqlite_app, timezone="Europe/Berlin", missed="skip")
    assert [problem.partition(" to be ")[0] for problem in problems] == ["expected timezone", "expected missed"]


def test_nobody_gives_arguments_to_a_job_with_a_schedule(sqlite_app):
    with pytest.raises(outlast.ConfigurationError, match="one that needs file, size"):

        @sqlite_app.job(cron="0 9 * * *")
        def report(file: str, size: int, depth: int = 1, via: str = outlast.use(open)) -> None: ...

    @sqlite_app.job(cron=" 0  9 * * MON-FRI ")
    def fits(depth: int = 1, via: str = outlast.use(open), **more: int) -> None: ...

    assert fits.schedule == Schedule("0 9 * * MON-FRI")


def test_without_the_library_it_says_how_to_get_it():
    """Only jobs with a schedule need it."""
    program = """
import sys
sys.modules["cronsim"] = None
import outlast
app = outlast.App()
@app.job
def plain(): ...
try:
    @app.job(cron="0 9 * * *")
    def report(): ...
except outlast.ConfigurationError as wrong:
    print(wrong)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True)
    assert "pip install 'outlast[cron]'" in done.stdout


def test_the_unique_key_of_a_tick():
    assert key_of(at("2026-11-16 09:00")) == "cron:2026-11-16T09:00:00+00:00"
