"""Backoff and jitter: bounded, spread out, independent, reproducible, and obedient to what the server asks for."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise

import pytest

from conformance.adapter import statement
from conformance.bodies import Story, failing, in_new_process, in_threads, lines_run
from conformance.cases import cases

JITTERS = [0.0, 0.25, 1.0, "full", "equal", "decorrelated"]
SHAPES = ["exponential", "linear", "fixed"]
ROLLS = [0.0, 0.5, 1 - 2**-53]
FAR = [1, 2, 3, 10, 62, 63, 64, 100, 1023, 1024, 1025, 10_000, 10**6]


# -- bounded


@statement(24, needs=["delay"])
@cases("shape", SHAPES)
@cases("jitter", JITTERS)
@cases("growth", [1.0, 2.0, 1e9])
def test_every_delay_is_within_its_bounds(subject, shape, jitter, growth):
    """semantics 24: up to attempt 1,000,000 no delay leaves [0, cap], and nothing overflows."""
    for attempt in FAR:
        for roll in ROLLS:
            delay = subject.delay(attempt, roll=roll, first=0.5, growth=growth, cap=30.0, jitter=jitter, shape=shape)
            assert 0.0 <= delay <= 30.0


@statement(24, needs=["delay"])
@cases("shape", SHAPES)
@cases("jitter", JITTERS)
def test_every_delay_is_finite_without_a_cap(subject, shape, jitter):
    """semantics 24: also without a cap it is a number of seconds that a sleep can take."""
    for attempt in FAR:
        for roll in ROLLS:
            delay = subject.delay(attempt, roll=roll, first=0.5, growth=1000.0, cap=None, jitter=jitter, shape=shape)
            assert 0.0 <= delay < 2**33  # more than a thread can be told to wait


@statement(24, needs=["clock"])
def test_a_thousand_decorrelated_delays_without_a_cap_are_finite(subject, mode):
    """semantics 24: each delay may be three times the one before, and still none becomes too long for a sleep."""
    with subject.time(seed=3) as clock:
        protected = subject.protect(mode.body(failing().fn), attempts=1000, first=1.0, cap=None, jitter="decorrelated")
        assert isinstance(mode.catch(protected), ConnectionResetError)
    assert len(clock.sleeps) == 999
    assert all(1.0 <= sleep < 2**33 for sleep in clock.sleeps)


@statement(24, needs=["delay"])
def test_a_first_delay_of_zero_stays_zero(subject):
    """semantics 24: nothing grows out of nothing, however large the power."""
    assert {subject.delay(attempt, roll=0.9, first=0.0, growth=1e9, jitter=0.25) for attempt in FAR} == {0.0}


@statement(24, needs=["delay"])
@cases("shape", SHAPES)
@cases("jitter", JITTERS)
def test_a_late_delay_costs_as_much_as_an_early_one(subject, shape, jitter):
    """semantics 24: the steps to compute a delay do not depend on the attempt's number."""

    def steps(attempt):
        return lines_run(lambda: subject.delay(attempt, roll=0.5, first=0.5, jitter=jitter, shape=shape))

    steps(3)
    assert steps(10**6) <= steps(3) + 5


# -- spread out


def draws(subject, attempt, count, **options):
    dice = random.Random(4711)
    return [subject.delay(attempt, roll=dice.random(), **options) for _ in range(count)]


@statement(25, needs=["delay"])
@cases("jitter", [0.1, 0.25, "full", "equal", "decorrelated"])
@cases("attempt", [5, 6, 20, 2000])
def test_delays_at_the_cap_still_differ(subject, jitter, attempt):
    """semantics 25: a hundred draws at the cap give a hundred values, none above it: clamping would re-join the herd."""
    drawn = draws(subject, attempt, 100, first=1.0, cap=16.0, jitter=jitter)
    assert len(set(drawn)) >= 99
    assert max(drawn) <= 16.0


def uniform(drawn, low, high):
    """Whether the draws are spread evenly over [low, high]: no quantile is off by more than 5 % of the range."""
    ordered = sorted(drawn)
    even = [low + (high - low) * (i + 0.5) / len(ordered) for i in range(len(ordered))]
    return all(abs(have - want) <= 0.05 * (high - low) for have, want in zip(ordered, even, strict=True))


@statement(26, needs=["delay"])
@cases(("attempt", "top"), [(1, 1.0), (3, 4.0), (10, 30.0)])
def test_full_jitter_is_even_from_zero(subject, attempt, top):
    """semantics 26: full jitter is uniform on [0, top], where top grows up to the cap."""
    assert uniform(draws(subject, attempt, 2000, first=1.0, cap=30.0, jitter="full"), 0.0, top)


@statement(26, needs=["delay"])
@cases(("attempt", "top"), [(1, 1.0), (3, 4.0), (10, 30.0)])
def test_equal_jitter_is_even_in_the_upper_half(subject, attempt, top):
    """semantics 26: equal jitter is uniform on [top/2, top]."""
    assert uniform(draws(subject, attempt, 2000, first=1.0, cap=30.0, jitter="equal"), top / 2, top)


@statement(26, needs=["clock"])
def test_decorrelated_jitter_stays_between_base_and_cap_without_piling_up(subject, way, mode):
    """semantics 26: each delay is between the base and three times the one before, and the cap itself is no resting place."""
    with subject.time(seed=7) as clock:
        protected = subject.protect(
            mode.body(failing().fn), way=way, attempts=200, first=1.0, cap=20.0, jitter="decorrelated"
        )
        mode.catch(protected)
    sleeps = clock.sleeps
    assert len(sleeps) == 199
    assert all(1.0 <= sleep <= 20.0 for sleep in sleeps)
    assert all(after <= 3 * before for before, after in pairwise(sleeps))
    assert sleeps.count(20.0) == 0
    assert len(set(sleeps)) == 199
    assert sum(sleep > 19.8 for sleep in sleeps) < 20


# -- independent


@statement(27, needs=["clock", "async"])
def test_concurrent_coroutines_each_see_the_whole_sequence(subject, way):
    """semantics 27: backoff belongs to one call; five at once under one policy wait 1, 2, 4 and 8 s each."""

    async def body():
        await asyncio.sleep(0)
        raise ConnectionResetError

    async def main():
        protected = subject.protect(body, way=way, attempts=5, first=1.0)
        return await asyncio.gather(*(protected() for _ in range(5)), return_exceptions=True)

    with subject.time() as clock:
        errors = asyncio.run(main())
    assert {type(error) for error in errors} == {ConnectionResetError}
    assert sorted(clock.sleeps) == sorted([1.0, 2.0, 4.0, 8.0] * 5)


@statement(27, needs=["virtual_time"])
def test_concurrent_threads_each_see_the_whole_sequence(subject, way):
    """semantics 27: the same for threads."""
    protected = subject.protect(failing().fn, way=way, attempts=5, first=1.0)

    def work(_):
        with subject.time() as clock:
            try:
                protected()
            except ConnectionResetError:
                return clock.sleeps

    assert in_threads(8, work) == [[1.0, 2.0, 4.0, 8.0]] * 8


# -- reproducible


@statement(28, needs=["virtual_time"])
def test_chance_can_be_chosen(subject, way, mode):
    """semantics 28: the same seed gives the same delays, another seed others."""

    def sleeps(seed):
        with subject.time(seed=seed) as clock:
            mode.catch(subject.protect(mode.body(failing().fn), way=way, attempts=6, first=1.0, jitter="full"))
        return clock.sleeps

    assert sleeps(1) == sleeps(1)
    assert sleeps(1) != sleeps(2)


FORKED = """
import os, time
from conformance.adapter import SUBJECTS
from conformance.bodies import caught, failing

slept = []
time.sleep = slept.append
protected = SUBJECTS[{name!r}].protect(failing().fn, attempts=5, first=1.0, jitter="full")
caught(protected)
for _ in range(3):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        slept.clear()
        caught(protected)
        os.write(write, repr(slept).encode())
        os._exit(0)
    os.waitpid(child, 0)
    print(os.read(read, 4096).decode())
slept.clear()
caught(protected)
print(slept)
"""


@statement(28, lanes=False)
def test_forked_children_do_not_wait_in_lockstep(subject):
    """semantics 28: after a fork every child, and the parent, draw delays of their own."""
    lines = in_new_process(FORKED.format(name=subject.name))
    assert len(lines) == 4
    assert all(line.count(",") == 3 for line in lines)
    assert len(set(lines)) == 4


# -- what the server asks for


class Refused(Exception):
    """A response of an HTTP client, as an exception."""

    def __init__(self, retry_after=None, status=503):
        super().__init__(f"status {status}")
        headers = {} if retry_after is None else {"Retry-After": retry_after}
        self.response = type("Response", (), {"status_code": status, "headers": headers})()


def in_a_minute(zone):
    at = datetime.now(UTC) + timedelta(seconds=60)
    if zone == "GMT":
        return format_datetime(at, usegmt=True)
    if zone == "offset":
        return format_datetime(at.astimezone(tz=datetime.strptime("+0530", "%z").tzinfo))
    if zone == "unknown":
        return at.strftime("%a, %d %b %Y %H:%M:%S -0000")
    if zone == "asctime":
        return at.strftime("%a %b %d %H:%M:%S %Y")
    return at.strftime("%a, %d %b %Y %H:%M:%S")


HINTS = {
    "integer": ("7", 7.0),
    "float": ("1.5", 1.5),
    "padded": ("  7 ", 7.0),
    "zero": ("0", 0.0),
    "negative": ("-5", 0.0),
    "huge": ("100000000000000000000", 120.0),
    "too large for a float": ("1" + "0" * 400, 120.0),
    "a number, not a text": (7, 7.0),
    "garbage": ("soon", 0.0),
    "empty": ("", 0.0),
    "not a number": ("nan", 0.0),
    "infinite": ("inf", 0.0),
    "a date with a zone": (lambda: in_a_minute("GMT"), 60.0),
    "a date elsewhere": (lambda: in_a_minute("offset"), 60.0),
    "a date of unknown zone": (lambda: in_a_minute("unknown"), 60.0),
    "a date without a zone": (lambda: in_a_minute("none"), 60.0),
    "a date as C writes it": (lambda: in_a_minute("asctime"), 60.0),
    "a date in the past": ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
    "a date that never comes": ("Thu, 31 Dec 9999 23:59:59 GMT", 120.0),
    "no date": ("Sun, 99 Nov 1994 08:49:37 GMT", 0.0),
}


@statement(29, needs=["clock", "retry_after"])
@cases(("hint", "seconds"), HINTS.values(), ids=HINTS)
def test_retry_after_is_understood_in_every_form(subject, mode, hint, seconds):
    """semantics 29: numbers and dates are honoured, the past is now, too much is cut, and nonsense is ignored."""
    for status in (429, 503):
        story = Story(Refused(hint() if callable(hint) else hint, status))
        with subject.time() as clock:
            assert mode.run(subject.protect(mode.body(story.fn), first=0.25)) == "done"
        (slept,) = clock.sleeps
        slack = 2.0 if callable(hint) else 0.0  # dates have whole seconds, and time passes
        assert seconds - slack <= slept <= seconds + 0.25
        assert slept >= 0.25 or seconds > 0


@statement(29, needs=["clock", "retry_after"])
@pytest.mark.parametrize("hint", ["soon", "", "nan", "Sun, 99 Nov 1994 08:49:37 GMT"])
def test_nonsense_in_a_retry_after_is_logged_once(subject, way, mode, hint, caplog):
    """semantics 29: one response that makes no sense is one line in the log."""
    story = Story(Refused(hint))
    with subject.time():
        assert mode.run(subject.protect(mode.body(story.fn), way=way, first=0.25)) == "done"
    assert len([record for record in caplog.records if "retry-after" in record.message.lower()]) == 1


@statement(30, needs=["clock", "retry_after"])
def test_a_hint_does_not_disturb_the_sequence(subject, way, mode):
    """semantics 30: the wait that was asked for comes on top once; before and after it the delays are 1, 2, 4, 8 s."""
    story = Story(Refused(), Refused("10"), Refused(), Refused())
    with subject.time() as clock:
        assert mode.run(subject.protect(mode.body(story.fn), way=way, attempts=5, first=1.0)) == "done"
    before, hinted, *after = clock.sleeps
    assert (before, after) == (1.0, [4.0, 8.0])
    assert 10.0 <= hinted <= 12.0


@statement(30, needs=["virtual_time", "retry_after"])
def test_a_herd_told_the_same_does_not_return_at_once(subject, mode):
    """semantics 30: a hundred callers told "10" come back at a hundred different instants, none too early."""
    sleeps = []
    for seed in range(100):
        with subject.time(seed=seed) as clock:
            mode.run(subject.protect(mode.body(Story(Refused("10")).fn), first=1.0, jitter=0.25))
        sleeps += clock.sleeps
    assert len(set(sleeps)) >= 99
    assert 10.0 <= min(sleeps) <= max(sleeps) <= 12.0
