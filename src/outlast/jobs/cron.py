"""
When a job is due by its cron expression. Pure: what is declared, what is on record and the time go in, what to do comes
out. `schedules` does it.

    nothing on record            it is put on record now: the first tick is the next one, never a past one
    no tick since the last one   nothing
    a tick is due                one job for it
    several ticks are due        ``missed="once"``: one job for all of them; ``"skip"``: only one for the newest, and none
                                 if that is more than a minute old
    its last job has not begun   none: that one stands for this tick, too
    declared otherwise           what is due by the old words is settled, and then the new ones count

A tick is an instant at which an expression is due. Wall clocks jump: see `ticks_after`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.errors import nearest
from outlast.settings.checks import Shown
from outlast.store.records import ScheduleRow, from_us, to_us

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal
    from zoneinfo import ZoneInfo

    from outlast.settings.checks import Check

MISSED = ("once", "skip")
FIELDS = ("minute", "hour", "day of the month", "month", "day of the week")
GRACE = 60.0  # seconds after which a tick is missed
FRESH = 30.0  # seconds in which a worker looks at its schedules at the latest
STALE = 300.0  # seconds after which nobody declares a schedule any more as it is on record
_AHEAD = 3600.0  # seconds that what is on record may be ahead of the clock; more, and the clock was set back
_REFERENCE = datetime(2024, 1, 1, tzinfo=UTC)  # from which on every expression that can come due does so
_WINDOW = 3600.0  # seconds, first; each is eight times the one before
_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Schedule(NamedTuple):
    """What the code declares: a cron expression, on the wall clock of a timezone."""

    expression: str
    timezone: str = "UTC"
    missed: Literal["once", "skip"] = "once"


class Step(NamedTuple):
    """
    What follows a look at a schedule: `row` goes on record. `tick_us` is what to enqueue a job for. The ticks from the
    first to the last of `missed_us` have no job of their own: if the last job `waits`, that one stands for them.
    """

    row: ScheduleRow
    tick_us: int | None = None
    missed_us: tuple[int, int] | None = None
    waits: bool = False
    clock_set_back: bool = False


# -- ticks -------------------------------------------------------------------------------------------------------------


def ticks_after(schedule: Schedule, instant: datetime) -> Iterator[datetime]:
    """
    The ticks after an instant, in UTC. Wall clocks jump, and this is what Debian's cron does: if both minute and hour
    are said (neither begins with a star), a time that does not exist is due when the clock has jumped, and one that
    comes twice is due the first time. Other expressions follow the wall clock as it is.
    """
    ticks = _library().CronSim(schedule.expression, instant.astimezone(_zone(schedule.timezone)))
    for tick in ticks:
        at = tick.astimezone(UTC)
        # In an hour that comes twice, the library begins with ticks of its first half.
        if at > instant:
            yield at


def next_tick(schedule: Schedule, instant: datetime) -> datetime | None:
    """The first tick after an instant; None: there is none in 50 years."""
    return next(ticks_after(schedule, instant), None)


def newest_tick(schedule: Schedule, since: datetime, now: datetime) -> datetime | None:
    """
    The last tick after `since` that is not after `now`. However long that time is, few ticks are looked at: the newest
    ones.
    """
    # Not the library's way backwards: it leaves ticks out in an hour that comes twice.
    window = timedelta(seconds=_WINDOW)
    while True:
        first = max(since, now - window)
        newest = None
        for tick in ticks_after(schedule, first):
            if tick > now:
                break
            newest = tick
        if newest is not None or first <= since:
            return newest
        window *= 8


# -- what to do --------------------------------------------------------------------------------------------------------


def step(
    declared: Schedule, kind: str, row: ScheduleRow | None, *, now_us: int, began_us: int, waits: bool = False
) -> Step | None:
    """
    What a worker does that declares this schedule and began at `began_us`; None: nothing. `waits`: the job of the last
    tick has not begun.

    If workers declare it differently, as they do while new code is rolled out, the one counts that began last: the
    others do nothing, unless nobody has declared it as it is on record for five minutes.
    """
    if row is None:
        return Step(_begin(declared, kind, now_us, began_us))
    if _declared(row) == declared:
        return _go_on(declared, row, now_us, began_us, waits=waits)
    if began_us <= row.declared_us and now_us - row.seen_us < STALE * 1e6:
        return None
    before = Schedule(row.expression, row.timezone, declared.missed)
    settled = _go_on(before, row, now_us, began_us, waits=waits) if not problems(before) else None
    new = _begin(declared, kind, now_us, began_us)
    if settled is None:
        return Step(new._replace(tick_us=row.tick_us, job=row.job))
    return settled._replace(row=new._replace(tick_us=settled.row.tick_us, job=row.job))


def _declared(row: ScheduleRow) -> Schedule:
    return Schedule(row.expression, row.timezone, row.missed)


def _begin(declared: Schedule, kind: str, now_us: int, began_us: int) -> ScheduleRow:
    return ScheduleRow(
        kind=kind,
        expression=declared.expression,
        timezone=declared.timezone,
        missed=declared.missed,
        declared_us=began_us,
        since_us=now_us,
        seen_us=now_us,
        tick_us=None,
        job=None,
        next_us=_next_us(declared, now_us),
    )


def _go_on(declared: Schedule, row: ScheduleRow, now_us: int, began_us: int, *, waits: bool) -> Step | None:
    base_us = max(row.since_us, row.tick_us or row.since_us)
    if base_us > now_us + _AHEAD * 1e6:  # else nothing would come due before the clock is there again
        anew = _begin(declared, row.kind, now_us, max(began_us, row.declared_us))
        return Step(anew._replace(job=row.job), clock_set_back=True)
    now, since = from_us(now_us), from_us(min(base_us, now_us))
    kept = row._replace(declared_us=max(began_us, row.declared_us), seen_us=now_us)
    kept = kept._replace(next_us=_next_us(declared, now_us))  # anew: timezones have new rules now and then
    newest = newest_tick(declared, since, now)
    if newest is None:
        fresh = now_us - row.seen_us < FRESH * 1e6 and kept == row._replace(seen_us=now_us)
        return None if fresh else Step(kept)
    tick_us, first_us = to_us(newest), to_us(next_tick(declared, since) or newest)
    done = kept._replace(tick_us=tick_us)
    missed = (first_us, tick_us)
    if waits or (declared.missed == "skip" and now_us - tick_us > GRACE * 1e6):
        return Step(done, missed_us=missed, waits=waits)
    return Step(done, tick_us, missed_us=missed if first_us != tick_us else None)


def _next_us(schedule: Schedule, now_us: int) -> int | None:
    following = next_tick(schedule, from_us(now_us))
    return None if following is None else to_us(following)


def key_of(tick: datetime) -> str:
    """
    The unique key of the job of a tick.

    >>> key_of(datetime(2026, 11, 16, 9, tzinfo=UTC))
    'cron:2026-11-16T09:00:00+00:00'
    """
    return f"cron:{tick.isoformat()}"


# -- what is declared --------------------------------------------------------------------------------------------------


def checked(check: Check, cron: object, timezone: object, missed: object) -> Schedule | None:
    """The schedule of a job, with all that is wrong about it in `check`; None without one."""
    if cron is None:
        for field, value, default in (("timezone", timezone, "UTC"), ("missed", missed, "once")):
            if value != default:
                check.add(field, "cron= beside it", Shown("none"), "It has no effect on a job without a schedule.")
        return None
    before = len(check.problems)
    check.choice("missed", missed, MISSED)
    if not isinstance(timezone, str):
        check.add("timezone", "a name such as 'Europe/Berlin'", timezone)
    if not isinstance(cron, str):
        check.add("cron", "an expression such as '*/5 * * * *'", cron)
        return None
    try:
        _library()
    except ImportError:
        check.add("cron", "cronsim to be installed", Shown("nothing"), "pip install 'outlast[cron]'.")
        return None
    schedule = Schedule(" ".join(cron.split()), str(timezone), "skip" if missed == "skip" else "once")
    if isinstance(timezone, str):
        for field, expected, got, way_out in problems(schedule):
            check.add(field, expected, Shown(got), way_out)
    else:
        for field, expected, got, way_out in problems(schedule._replace(timezone="UTC")):
            check.add(field, expected, Shown(got), way_out)
    return schedule if len(check.problems) == before else None


@lru_cache(maxsize=256)
def problems(schedule: Schedule) -> tuple[tuple[str, str, str, str], ...]:
    """All that is wrong with an expression and a timezone: the field, what was expected, what came, and the way out."""
    found: list[tuple[str, str, str, str]] = []
    expression, zone, _ = schedule
    if (known := _zone_or_none(zone)) is None:
        from zoneinfo import available_timezones

        way_out = nearest(zone, sorted(available_timezones())).strip()
        if not available_timezones():
            way_out = "This machine knows no timezones: pip install tzdata."
        found.append(("timezone", "the name of a timezone such as 'Europe/Berlin'", repr(zone), way_out))
    wrong = _wrong_fields(expression)
    if wrong:
        found += wrong
    elif next_tick(Schedule(expression, zone if known else "UTC"), _REFERENCE) is None:
        found.append(("cron", "an expression that comes due", repr(expression), "There is no such day."))
    return tuple(found)


def _wrong_fields(expression: str) -> list[tuple[str, str, str, str]]:
    fields = expression.split()
    shown = repr(expression)
    what = "five fields: minute, hour, day of the month, month, day of the week"
    if expression.lower() in _NAMED:
        return [("cron", what, shown, f"Write {_NAMED[expression.lower()]!r}.")]
    if len(fields) == len(FIELDS) + 1:
        return [("cron", what, shown, "There is none for seconds: a job begins a moment after its tick anyway.")]
    if len(fields) != len(FIELDS):
        return [("cron", what, shown, "")]
    wrong = [
        ("cron", f"a {name} as cron knows it", repr(field), "")
        for place, (name, field) in enumerate(zip(FIELDS, fields, strict=True))
        if not _parses(" ".join(field if place == other else "*" for other in range(len(FIELDS))))
    ]
    if not wrong and not _parses(expression):  # each is right by itself, and together they name no day
        wrong = [("cron", "an expression that comes due", shown, "There is no such day.")]
    return wrong


def _parses(expression: str) -> bool:
    try:
        _library().CronSim(expression, _REFERENCE)
    except ImportError:
        raise
    except Exception:  # noqa: BLE001 - it says no in more than one way
        return False
    return True


def _zone_or_none(name: str) -> ZoneInfo | None:
    try:
        return _zone(name)
    except Exception:  # noqa: BLE001 - a name that is a folder, a path, or none at all: each fails in its own way
        return None


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo

    return ZoneInfo(name)


def _library() -> Any:
    import cronsim

    return cronsim
