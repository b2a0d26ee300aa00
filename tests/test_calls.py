"""What a protected call does, told as a whole: its attempts, its waits to the millisecond, its events in order, its end."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import logging
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, timedelta
from itertools import pairwise

import pytest

import outlast
from lanes import lane  # noqa: F401 - a fixture
from outlast import (
    AttemptTimeoutError,
    CircuitBreaker,
    CircuitBreakerOpenError,
    Guard,
    PermanentFailure,
    RetryBudget,
    RetryPolicy,
    Stop,
    TemporaryFailure,
    TotalTimeoutError,
    classify,
    current,
    history,
    observe,
    presets,
    retry,
    stop_reason,
)
from outlast.testing import Faults, capture_events, disabled, inject, virtual_time
from tables import table

pytestmark = pytest.mark.usefixtures("lane")  # what a program does, and what the flow does

EXACT = RetryPolicy(jitter=0)  # 3 attempts, after 1 and 2 seconds
PATIENT = RetryPolicy(max_attempts=10, jitter=0, max_delay=None)
AT_ONCE = RetryPolicy(initial_delay=0)


class HttpError(Exception):
    def __init__(self, status: int, retry_after: str | None = None) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status
        self.headers = {} if retry_after is None else {"Retry-After": retry_after}


class VendorError(Exception):
    """No rule knows it."""


DatabaseDown = type("OperationalError", (Exception,), {"__module__": "psycopg2"})


class Service:
    """Does what it is told, one step for each call: raises an exception, returns anything else; afterwards it works."""

    def __init__(self, *steps: object, takes: float = 0.0) -> None:
        self.steps = list(steps)
        self.takes = takes
        self.calls = 0
        self.time = None

    def __call__(self) -> object:
        self.calls += 1
        if self.time is not None:
            self.time.advance(self.takes)
        step = self.steps.pop(0) if self.steps else "done"
        if isinstance(step, Exception):
            raise step
        return step


def down(times: int = 99, kind: type[Exception] = ConnectionResetError) -> Service:
    return Service(*(kind(f"failure {n}") for n in range(1, times + 1)))


@pytest.fixture(params=["sync", "async"])
def perform(request):
    """Call a function under a guard, as a sync function or as a coroutine function."""

    def sync(guard: Guard, fn) -> object:
        return guard.call(fn)

    def in_a_loop(guard: Guard, fn) -> object:
        async def attempt() -> object:
            return fn()

        return asyncio.run(guard.acall(attempt))

    return sync if request.param == "sync" else in_a_loop


TELL = {
    "step_retry_attempt": lambda e: (e.attempt, e.error_class, e.next_delay),
    "step_retry_exhausted": lambda e: (e.attempt, e.error_class, e.reason),
    "step_error_permanent": lambda e: (e.attempt, e.error_class, e.reason),
    "step_success": lambda e: (e.attempt, e.tier),
    "attempt_timeout": lambda e: (e.attempt, e.scope, e.timeout),
    "retry_budget_exhausted": lambda e: (e.attempt, e.budget),
    "fallback_used": lambda e: (e.attempt, e.error_class, e.reason),
    "call_rejected": lambda e: (e.by, e.which),
    "circuit_breaker_open": lambda e: (e.breaker, e.failure_count),
    "circuit_breaker_half_open": lambda e: (e.breaker,),
    "circuit_breaker_closed": lambda e: (e.breaker,),
    "circuit_breaker_reopened": lambda e: (e.breaker,),
}


def story(events) -> list[tuple[object, ...]]:
    """Every event as its name and what matters of it."""
    return [(event.name, *TELL[event.name](event)) for event in events]


def recorded(error: BaseException) -> list[tuple[object, ...]]:
    """The attempts behind an error: number, error class, delay."""
    return [(record.number, record.verdict and record.verdict.error_class, record.delay) for record in history(error)]


@contextmanager
def watched(seed: int | None = None):
    """Virtual time and captured events."""
    with virtual_time(seed=seed) as time, capture_events() as events:
        yield time, events


def note(error: BaseException) -> str:
    """The one note that Outlast left on the error."""
    (found,) = [text for text in error.__notes__ if text.startswith("outlast ")]
    return found


# --- worked examples --------------------------------------------------------------------------------------------------


@table(
    ("policy", "service", "calls", "waits"),
    [
        pytest.param(presets.tiered, lambda: down(3, DatabaseDown), 4, [1, 2, 4], id="a database pool: 7 s"),
        pytest.param(presets.tiered, lambda: down(2), 3, [1, 2], id="a network: 3 s"),
        pytest.param(
            presets.tiered.replace(initial_delay=2),
            lambda: Service(*(HttpError(429) for _ in range(3))),
            4,
            [2, 4, 8],
            id="a rate limit with base 2: 14 s",
        ),
        pytest.param(presets.tiered, lambda: down(5, DatabaseDown), 6, [1, 2, 4, 8, 16], id="a long outage: 31 s"),
    ],
)
def test_worked_examples_that_succeed(perform, policy, service, calls, waits):
    """S2-13, S2-14, S2-16, S2-19, S2-20, S0-36: calls, seconds and events, exactly."""
    service = service()
    tiers = [classify(error).tier for error in service.steps]
    classes = [classify(error).error_class for error in service.steps]
    with watched() as (time, events):
        assert perform(Guard("fetch", retry=policy), service) == "done"
    assert (service.calls, time.sleeps, time.now) == (calls, waits, sum(waits))
    assert story(events) == [
        *(("step_retry_attempt", n, c, w) for n, (c, w) in enumerate(zip(classes, waits, strict=True), start=1)),
        ("step_success", calls, tiers[-1]),
    ]


def test_a_data_error_costs_one_call(perform):
    """S2-05, S2-16, S2-17, S2-28, S0-12, S0-28: no retry, no wait, the original exception at once."""
    wrong = ValueError("bad row")
    service = Service(wrong)
    with watched() as (time, events), pytest.raises(ValueError, match="bad row") as caught:
        perform(Guard("fetch", retry=presets.tiered), service)
    assert caught.value is wrong
    assert (service.calls, time.sleeps, time.now) == (1, [], 0.0)
    assert story(events) == [("step_error_permanent", 1, "data_error", "permanent")]


def test_a_step_that_connects_four_times():
    """S2-16: three failed connects inside of it, then the whole step succeeds."""
    connect = down(3, DatabaseDown)

    def step() -> str:
        connect()
        return "written"

    with watched() as (time, _):
        outcome = Guard("load", retry=presets.tiered).outcome(step)
    assert (outcome.ok, outcome.value, connect.calls, time.now) == (True, "written", 4, 7.0)


def test_one_counter_for_all_tiers(perform):
    """S2-15, S2-18, C-02: three database errors, then a network error whose limit of three is used up."""
    last = ConnectionResetError("cut")
    service = Service(DatabaseDown(), DatabaseDown(), DatabaseDown(), last)
    with watched() as (time, events), pytest.raises(ConnectionResetError) as caught:
        perform(Guard("fetch", retry=RetryPolicy(retry_limits={"database": 5, "network": 3}, jitter=0)), service)
    assert caught.value is last
    assert (service.calls, time.now) == (4, 7.0)
    assert story(events) == [
        ("step_retry_attempt", 1, "database_connection", 1.0),
        ("step_retry_attempt", 2, "database_connection", 2.0),
        ("step_retry_attempt", 3, "database_connection", 4.0),
        ("step_retry_exhausted", 4, "connection_reset", "tier_exhausted"),
    ]


def test_a_flaky_connection_with_the_defaults(perform):
    """S3-02: what is retried without saying anything: 429, timeouts, connection errors (S4-02)."""
    service = Service(HttpError(429), TimeoutError())
    with watched(seed=1) as (time, events):
        assert perform(Guard(), service) == "done"
    assert service.calls == 3
    first, second = time.sleeps
    assert 0.75 <= first <= 1.25
    assert 1.5 <= second <= 2.5
    assert [name for name, *_ in story(events)] == ["step_retry_attempt", "step_retry_attempt", "step_success"]


def test_ten_minutes_pass_in_no_time(perform):
    """S1-05, S1-06, S1-07: a job's waits, in virtual time, are 30, 120 and 480 s within a fifth."""
    with watched(seed=3) as (time, _), pytest.raises(ConnectionResetError):
        perform(Guard(retry=presets.jobs), down())
    assert [24 <= a <= 36 and 96 <= b <= 144 and 384 <= c <= 576 for a, b, c in [time.sleeps]] == [True]
    assert time.now == pytest.approx(sum(time.sleeps))


# --- how a call ends --------------------------------------------------------------------------------------------------


def test_the_last_failure_is_raised_as_it_is(perform):
    """S0-11, S0-13, S2-13, S2-18, S4-06, U-04: the last attempt's own exception, not a silent None; no wait after it."""
    errors = [ConnectionResetError(n) for n in (1, 2, 3)]
    service = Service(*errors)
    with watched() as (time, events), pytest.raises(ConnectionResetError) as caught:
        perform(Guard("fetch", retry=EXACT), service)
    assert caught.value is errors[2]
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert (service.calls, time.sleeps) == (3, [1.0, 2.0])
    assert story(events) == [
        ("step_retry_attempt", 1, "connection_reset", 1.0),
        ("step_retry_attempt", 2, "connection_reset", 2.0),
        ("step_retry_exhausted", 3, "connection_reset", "exhausted"),
    ]


def test_each_failure_is_judged_by_itself(perform):
    """S0-28, S0-33, D-2: retried while transient, stopped by the first error that is not."""
    service = Service(TimeoutError(), HttpError(503), ValueError("bad"), "never")
    with watched() as (time, events), pytest.raises(ValueError, match="bad"):
        perform(Guard("fetch", retry=PATIENT), service)
    assert (service.calls, time.sleeps) == (3, [1.0, 2.0])
    assert story(events) == [
        ("step_retry_attempt", 1, "timeout", 1.0),
        ("step_retry_attempt", 2, "unavailable", 2.0),
        ("step_error_permanent", 3, "data_error", "permanent"),
    ]


def test_an_error_that_is_not_listed_propagates_at_once(perform):
    """S4-06, S3-18: not listed, not retried."""
    service = down()
    with watched() as (time, events), pytest.raises(ConnectionResetError):
        perform(Guard("fetch", retry=RetryPolicy(on_errors=["timeout"])), service)
    assert (service.calls, time.sleeps) == (1, [])
    assert story(events) == [("step_error_permanent", 1, "connection_reset", "not_listed")]


def test_a_success_at_the_first_attempt_tells_nothing(perform):
    """D-18: step_success only after a retry."""
    with watched() as (time, events):
        assert perform(Guard("fetch"), Service()) == "done"
    assert (events, time.sleeps) == ([], [])


@table("value", [None, 0, False, "", [], (), {}])
def test_falsy_results_are_results(perform, value):
    """S2-13: what was returned is returned, as the very same object."""
    with virtual_time():
        assert perform(Guard(retry=EXACT), Service(TimeoutError(), value)) is value


def test_zero_waits_are_waits(perform):
    """C-03: zeros are recorded, no time passes."""
    with virtual_time() as time, pytest.raises(ConnectionResetError):
        perform(Guard(retry=AT_ONCE), down())
    assert (time.sleeps, time.now) == ([0.0, 0.0], 0.0)


def test_a_wait_that_was_asked_for(perform):
    """D-6: hint plus backoff, up to 120 s; the next error without one goes on with the normal sequence."""
    service = Service(HttpError(429, "10"), HttpError(503, "3600"), TimeoutError())
    with virtual_time() as time:
        assert perform(Guard(retry=PATIENT), service) == "done"
    assert time.sleeps == [11.0, 122.0, 4.0]


def test_a_hint_does_not_blow_up_decorrelated_waits(perform):
    """D-6: a server's delay changes nothing else: the next wait grows from the backoff, not from the hint."""
    policy = RetryPolicy(max_attempts=3, jitter="decorrelated", max_delay=None)
    with virtual_time(seed=1) as time:
        perform(Guard(retry=policy), Service(HttpError(429, "100"), TimeoutError()))
    first, second = time.sleeps
    backoff = first - 100
    assert 1.0 <= backoff <= 3.0
    assert 1.0 <= second <= 3 * backoff


def test_same_seed_same_story():
    """S0-32, C-06: reproducible, sync and async alike."""

    def sleeps(seed: int) -> list[float]:
        with virtual_time(seed=seed) as time:
            Guard(retry=RetryPolicy(max_attempts=5)).outcome(down())
        return time.sleeps

    assert sleeps(7) == sleeps(7)
    assert sleeps(7) != sleeps(8)


def test_control_flow_is_never_caught(perform):
    """C-08: interrupts and exits leave after one attempt, whatever on_errors says."""
    for interruption in (KeyboardInterrupt, SystemExit, GeneratorExit):
        calls = []

        def body(interruption=interruption, calls=calls) -> None:
            calls.append(1)
            raise interruption

        with watched() as (time, events), pytest.raises(interruption):
            perform(Guard(retry=RetryPolicy(on_errors=["all"])), body)
        assert (calls, time.sleeps, events) == ([1], [], [])


def test_an_exception_that_cannot_be_changed(perform):
    """U-04: a frozen dataclass is an exception too: retried, raised as itself, with its history."""

    @dataclasses.dataclass(frozen=True)
    class Frozen(ConnectionError):
        number: int

    service = Service(Frozen(1), Frozen(2), Frozen(3))
    with virtual_time() as time, pytest.raises(Frozen) as caught:
        perform(Guard(retry=EXACT), service)
    assert (caught.value.number, time.sleeps) == (3, [1.0, 2.0])
    assert recorded(caught.value) == [(1, "network_error", 1.0), (2, "network_error", 2.0), (3, "network_error", None)]


def test_an_exception_whose_text_cannot_be_had(perform):
    """U-04: somebody else's __str__ may fail; the call goes on (S0-41)."""

    class Mute(ConnectionError):
        def __str__(self) -> str:
            raise RuntimeError("no")

    with watched() as (_, events), pytest.raises(Mute) as caught:
        perform(Guard(retry=EXACT), Service(Mute(), Mute(), Mute()))
    assert {record.error for record in history(caught.value)} == {"<Mute has no readable text>"}
    assert {event.error for event in events} == {"<Mute has no readable text>"}


def test_a_garbled_retry_after_is_logged_once_for_each_failure(perform, caplog):
    """D-6: also when a breaker has looked at the error as well."""
    guard = Guard(retry=None, breaker=CircuitBreaker("garbled"))
    with virtual_time(), caplog.at_level(logging.WARNING, "outlast"), pytest.raises(HttpError):
        perform(guard, Service(HttpError(503, "soon")))
    assert [record.getMessage() for record in caplog.records if "Retry-After" in record.getMessage()] == [
        "ignored a Retry-After that is neither a number of seconds nor a date"
    ]


# --- events and logs --------------------------------------------------------------------------------------------------


def test_event_of_a_retry():
    """S0-34, S0-37, S2-19, S4-07, C-01, C-23, D-18: everything a reader needs, in one value."""
    with watched() as (_, events):
        Guard("fetch", retry=EXACT).call(Service(TimeoutError("slow")))
    event = events[0]
    fields = event.as_dict()
    assert {key: value for key, value in fields.items() if key not in {"ts", "seq", "next_attempt_at"}} == {
        "event": "step_retry_attempt",
        "run_id": None,
        "pipeline": None,
        "step_id": "fetch",
        "job_id": None,
        "job_kind": None,
        "item_id": None,
        "attempt": 1,
        "max_attempts": 3,
        "max_retries": 2,
        "retries_used": 0,
        "tier": "network",
        "category": "transient",
        "error_class": "timeout",
        "error_type": "TimeoutError",
        "error": "slow",
        "next_delay": 1.0,
        "next_delay_ms": 1000,
        "next_attempt": 2,
    }
    assert (event.level, event.ts.tzinfo, event.next_attempt_at - event.ts) == ("warning", UTC, timedelta(seconds=1))


def test_event_of_a_success():
    """S2-20, D-18: after how many retries, and from which tier's failure."""
    with watched() as (_, events):
        Guard("fetch", retry=EXACT).call(down(2))
    event = events[-1]
    assert (event.name, event.level) == ("step_success", "info")
    fields = event.as_dict()
    assert {key: fields.get(key) for key in ("step_id", "attempt", "max_attempts", "tier", "total_retries")} == {
        "step_id": "fetch",
        "attempt": 3,
        "max_attempts": 3,
        "tier": "network",
        "total_retries": 2,
    }


def test_event_of_an_exhausted_call():
    """S0-38, S2-18, C-01: calls made, retries granted, and what ran out."""
    with watched() as (_, events), pytest.raises(HttpError):
        Guard("fetch", retry=presets.tiered).call(Service(*(HttpError(500) for _ in range(3))))
    event = events[-1]
    assert (event.name, event.level, event.reason) == ("step_retry_exhausted", "error", "tier_exhausted")
    assert (event.attempt, event.max_retries, event.retries_used, event.max_attempts) == (3, 2, 2, 6)
    assert event.as_dict()["retries_used"] == 2


def test_event_of_a_permanent_error():
    """S2-17: tier, error, and no retries."""
    with watched() as (_, events), pytest.raises(KeyError):
        Guard("fetch", retry=presets.tiered).call(Service(KeyError("id")))
    (event,) = events
    assert (event.name, event.level) == (
        "step_error_permanent",
        "debug",
    )  # it reaches its caller, and nothing was retried
    assert (event.tier, event.retries_used, event.max_retries, event.error) == ("data", 0, 0, "'id'")


def test_events_are_numbered_and_timed_in_order():
    """S1-19, S0-35, D-18: seq grows, instants are aware UTC and follow the waits."""
    with watched() as (_, events), pytest.raises(ConnectionResetError):
        Guard("fetch", retry=EXACT).call(down())
    assert [b.seq - a.seq for a, b in pairwise(events)] == [1, 1]
    assert [b.ts - a.ts for a, b in pairwise(events)] == [
        timedelta(seconds=1),
        timedelta(seconds=2),
    ]


def test_events_go_to_the_log(caplog):
    """S0-34, S0-35, S2-28, S4-07, C-23, D-27: one line each: retry a warning, the end of retries an error, success an info, an error that reaches its caller at once a detail; fields in extra."""
    with virtual_time(), caplog.at_level(logging.DEBUG, "outlast"):
        Guard("fetch", retry=EXACT).call(down(1))
        with pytest.raises(ValueError, match="bad"):
            Guard("parse").call(Service(ValueError("bad")))
        with pytest.raises(ConnectionResetError):
            Guard("push", retry=RetryPolicy(max_attempts=2, jitter=0)).call(down())
    assert [(r.levelname, r.event, r.step_id, r.attempt) for r in caplog.records] == [
        ("WARNING", "step_retry_attempt", "fetch", 1),
        ("INFO", "step_success", "fetch", 2),
        ("DEBUG", "step_error_permanent", "parse", 1),
        ("WARNING", "step_retry_attempt", "push", 1),
        ("ERROR", "step_retry_exhausted", "push", 2),
    ]
    first = caplog.records[0]
    assert (first.tier, first.error, first.next_delay, first.next_delay_ms, first.max_attempts) == (
        "network",
        "failure 1",
        1.0,
        1000,
        3,
    )
    assert first.getMessage() == (
        "fetch: attempt 1 of 3 failed with ConnectionResetError (connection_reset): failure 1; attempt 2 in 1 s"
    )


def test_secrets_stay_out_of_events_history_and_notes():
    """S0-41: the error is sanitised on its way out; the exception itself is the caller's and stays as it is."""
    error = ConnectionResetError("postgresql://shop:hunter2@db failed, password=hunter2")
    with watched() as (_, events), pytest.raises(ConnectionResetError) as caught:
        Guard("fetch", retry=None).call(Service(error))
    told = [
        str(events),
        str([event.as_dict() for event in events]),
        events[0].sentence(),
        str(history(error)),
        note(error),
    ]
    assert [text for text in told if "hunter2" in text] == []
    assert "hunter2" in str(caught.value)


def test_a_call_is_named_after_its_guard_or_its_function():
    """A name given wins; otherwise the function's own (S4-07)."""

    @retry(initial_delay=0)
    def fetch_user() -> None:
        raise TimeoutError

    with watched() as (_, events):
        for call in (fetch_user, lambda: Guard("users", retry=None).call(down())):
            with pytest.raises(OSError):
                call()
    assert [event.step_id.rpartition(".")[2] for event in events] == ["fetch_user"] * 3 + ["users"]


def test_a_hook_that_fails_never_breaks_the_call(perform, caplog):
    """Watching does not change what is watched; the hook is reported once (S0-35)."""

    def broken(event: object) -> None:
        raise ZeroDivisionError

    unsubscribe = observe.subscribe(broken)
    try:
        with virtual_time(), caplog.at_level(logging.ERROR, "outlast"):
            assert perform(Guard(retry=EXACT), down(2)) == "done"
    finally:
        unsubscribe()
    assert [r.getMessage() for r in caplog.records if "broken" in r.getMessage()] != []
    assert len([r for r in caplog.records if "ZeroDivisionError" in r.getMessage()]) == 1


# --- timeouts ---------------------------------------------------------------------------------------------------------


async def hang() -> None:
    await asyncio.Event().wait()


def test_an_attempt_that_hangs_is_ended_on_time():
    """S0-14, S0-16, C-19: a timeout is class timeout, hence retried; each attempt has its own."""

    async def main() -> None:
        await Guard("ask", retry=EXACT, timeout=5).acall(hang)

    with watched() as (time, events), pytest.raises(AttemptTimeoutError) as caught:
        asyncio.run(main())
    assert isinstance(caught.value, TimeoutError)
    assert (time.sleeps, time.now) == ([1.0, 2.0], 18.0)
    assert story(events) == [
        ("attempt_timeout", 1, "attempt", 5.0),
        ("step_retry_attempt", 1, "timeout", 1.0),
        ("attempt_timeout", 2, "attempt", 5.0),
        ("step_retry_attempt", 2, "timeout", 2.0),
        ("attempt_timeout", 3, "attempt", 5.0),
        ("step_retry_exhausted", 3, "timeout", "exhausted"),
    ]


def test_an_attempt_timeout_need_not_be_retried():
    """C-19: skip_on_errors=[timeout] makes it final."""
    guard = Guard("ask", retry=RetryPolicy(skip_on_errors=["timeout"]), timeout=5)
    with watched() as (time, events), pytest.raises(AttemptTimeoutError):
        asyncio.run(guard.acall(hang))
    assert time.now == 5.0
    assert story(events) == [("attempt_timeout", 1, "attempt", 5.0), ("step_error_permanent", 1, "timeout", "skipped")]


def test_an_attempt_that_succeeds_after_a_timeout():
    """S0-14, S0-16: the late attempt is cancelled before the next one starts."""
    ended = []

    async def ask() -> str:
        if current().attempt == 2:
            return "done"
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(current().attempt)
        raise AssertionError

    with watched() as (time, events):
        assert asyncio.run(Guard("ask", retry=EXACT, timeout=5).acall(ask)) == "done"
    assert (ended, time.now) == ([1], 6.0)
    assert story(events) == [
        ("attempt_timeout", 1, "attempt", 5.0),
        ("step_retry_attempt", 1, "timeout", 1.0),
        ("step_success", 2, "network"),
    ]


def test_the_total_timeout_strikes_inside_an_attempt():
    """S0-15, S0-16, D-7: TotalTimeoutError, at the deadline, and no further attempt."""
    with watched() as (time, events), pytest.raises(TotalTimeoutError) as caught:
        asyncio.run(Guard("ask", retry=PATIENT, timeout=5, total_timeout=8).acall(hang))
    assert time.now == 8.0
    assert stop_reason(caught.value) == "total_timeout"
    assert story(events) == [
        ("attempt_timeout", 1, "attempt", 5.0),
        ("step_retry_attempt", 1, "timeout", 1.0),
        ("attempt_timeout", 2, "total", 2.0),
        ("step_retry_exhausted", 2, "timeout", "total_timeout"),
    ]


def test_a_wait_that_would_cross_the_deadline_is_not_begun(perform):
    """S0-15, D-7, C-19: 1 + 2 s fit into 6, 4 more do not: stop now with the last attempt's own error."""
    service = down()
    with watched() as (time, events), pytest.raises(ConnectionResetError, match="failure 3") as caught:
        perform(Guard("fetch", retry=PATIENT, total_timeout=6), service)
    assert (service.calls, time.sleeps, time.now) == (3, [1.0, 2.0], 3.0)
    assert stop_reason(caught.value) == "total_timeout"
    assert story(events) == [
        ("step_retry_attempt", 1, "connection_reset", 1.0),
        ("step_retry_attempt", 2, "connection_reset", 2.0),
        ("step_retry_exhausted", 3, "connection_reset", "total_timeout"),
    ]


@table(("total", "calls"), [(7.001, 4), (7.0, 3), (6.999, 3), (1.0, 1), (0.5, 1)])
def test_the_deadline_itself_is_too_late(perform, total, calls):
    """D-7: elapsed + delay >= total stops."""
    service = down()
    with virtual_time(), pytest.raises(ConnectionResetError):
        perform(Guard(retry=PATIENT, total_timeout=total), service)
    assert service.calls == calls


def test_the_total_includes_the_attempts_themselves():
    """S0-15, C-19: from the first start, attempts and waits."""
    service = down()
    service.takes = 10.0
    with virtual_time() as time, pytest.raises(ConnectionResetError):
        service.time = time
        Guard(retry=PATIENT, total_timeout=30).call(service)
    assert (service.calls, time.sleeps, time.now) == (3, [1.0, 2.0], 33.0)


def test_blocking_code_is_not_left_by_a_total_timeout():
    """D-9: checked between attempts; a result that comes late is a result."""
    service = Service("late", takes=100.0)
    with virtual_time() as time:
        service.time = time
        assert Guard(retry=PATIENT, total_timeout=30).call(service) == "late"


def test_a_hint_that_does_not_fit_ends_the_call(perform):
    """D-6, D-7: told to come back after the deadline, it does not wait at all."""
    with virtual_time() as time, pytest.raises(HttpError) as caught:
        perform(Guard(total_timeout=30), Service(HttpError(429, "60")))
    assert (time.now, stop_reason(caught.value)) == (0.0, "total_timeout")


def test_nested_deadlines_take_the_minimum(perform):
    """C-19, D-7: an inner call cannot extend an outer one, and sees what is left."""
    inner = down()
    left = []

    def outer() -> object:
        left.append(current().remaining())
        return Guard("inner", retry=PATIENT, total_timeout=100).call(
            lambda: (left.append(current().remaining()), inner())[1]
        )

    with virtual_time() as time, pytest.raises(ConnectionResetError):
        perform(Guard("outer", retry=None, total_timeout=6), outer)
    assert (inner.calls, time.now) == (3, 3.0)
    assert left == [6.0, 6.0, 5.0, 3.0]


def test_an_outer_deadline_bounds_an_inner_attempt():
    """C-19: the attempt's time is the least of its own timeout and all totals around it."""
    released = threading.Event()

    def body() -> object:
        return Guard("inner", retry=None, timeout=5, isolation="thread").call(released.wait)

    try:
        with virtual_time() as time, pytest.raises(TimeoutError):
            Guard("outer", retry=None, total_timeout=1).call(body)
    finally:
        released.set()
    assert time.now == 1.0


def test_cancellation_ends_the_call_and_is_not_retried():
    """C-08, D-10: a cancelled task leaves at once; the error it was waiting on stays visible."""

    async def main() -> asyncio.CancelledError:
        waiting = asyncio.Event()
        unsubscribe = observe.subscribe(lambda event: waiting.set())
        task = asyncio.create_task(Guard(retry=EXACT.replace(initial_delay=30)).acall(fail))
        await waiting.wait()
        unsubscribe()
        task.cancel()
        try:
            await task
        except asyncio.CancelledError as cancelled:
            return cancelled
        raise AssertionError

    calls = []

    async def fail() -> None:
        calls.append(1)
        raise ConnectionResetError("cut")

    cancelled = asyncio.run(main())
    assert calls == [1]
    chain, link = [], cancelled
    while link is not None and len(chain) < 9:
        chain.append(type(link))
        link = link.__cause__ or link.__context__
    assert ConnectionResetError in chain


# --- timeouts of blocking code ------------------------------------------------------------------------------------------


@pytest.fixture
def released():
    """An event on which threads wait; it is set, and they are waited for, when the test is over: not those of other tests."""
    event, others = threading.Event(), {*threading.enumerate()}
    yield event
    event.set()
    for thread in {*threading.enumerate()} - others:
        if thread.name.startswith("outlast-"):
            thread.join(10)


def test_a_blocking_attempt_is_left_on_time_and_not_repeated_while_it_runs(released):
    """S0-14, S0-16, D-9: the caller returns, nothing overlaps, the reason is still_running."""
    started = []

    def block() -> None:
        started.append(1)
        released.wait()

    with watched() as (time, events), pytest.raises(AttemptTimeoutError) as caught:
        Guard("block", retry=EXACT, timeout=5, isolation="thread").call(block)
    assert (started, time.now) == ([1], 6.0)
    assert stop_reason(caught.value) == "still_running"
    assert story(events) == [
        ("attempt_timeout", 1, "attempt", 5.0),
        ("step_retry_attempt", 1, "timeout", 1.0),
        ("step_retry_exhausted", 1, "timeout", "still_running"),
    ]


def test_a_blocking_attempt_that_has_ended_meanwhile_is_repeated(released):
    """D-9: late results are discarded, and then the next attempt may start."""
    gone, others = threading.Event(), {*threading.enumerate()}

    def block() -> str:
        if current().attempt == 1:
            gone.wait()
            return "late"
        return "in time"

    def end_it(event: object) -> None:
        gone.set()
        for thread in threading.enumerate():
            if thread.name.startswith("outlast-") and thread not in others:
                thread.join(10)

    with watched() as (time, events):
        unsubscribe = observe.subscribe(end_it)
        try:
            result = Guard("block", retry=EXACT, timeout=5, isolation="thread").call(block)
        finally:
            unsubscribe()
    assert (result, time.now) == ("in time", 6.0)
    assert [name for name, *_ in story(events)] == ["attempt_timeout", "step_retry_attempt", "step_success"]


def test_a_blocking_attempt_sees_the_callers_context_and_its_place():
    """D-9: context variables and current() reach the thread."""
    variable = ContextVar("variable", default="unset")
    variable.set("set")
    with virtual_time():
        seen = Guard("block", timeout=5, total_timeout=9, isolation="thread").call(
            lambda: (variable.get(), current().attempt, current().remaining(), threading.current_thread().daemon)
        )
    assert seen == ("set", 1, 9.0, True)


def test_a_blocking_attempt_raises_its_own_errors():
    """D-9: also a TimeoutError of its own is its own."""
    own = TimeoutError("mine")
    with virtual_time(), pytest.raises(TimeoutError) as caught:
        Guard(retry=None, timeout=5, isolation="thread").call(Service(own))
    assert caught.value is own


def test_the_total_timeout_leaves_a_blocking_attempt(released):
    """S0-15, D-7, D-9: inside an attempt: TotalTimeoutError."""
    with watched() as (time, events), pytest.raises(TotalTimeoutError) as caught:
        Guard("block", retry=EXACT, total_timeout=5, isolation="thread").call(released.wait)
    assert (time.now, stop_reason(caught.value)) == (5.0, "total_timeout")
    assert story(events) == [
        ("attempt_timeout", 1, "total", 5.0),
        ("step_retry_exhausted", 1, "timeout", "total_timeout"),
    ]


# --- nested retries -----------------------------------------------------------------------------------------------------


def test_three_times_three_is_three(perform):
    """D-8, C-12: what an inner retry gave up on is not tried again outside; the history is the inner one's."""
    service = down()
    inner = Guard("inner", retry=EXACT)
    with watched() as (time, events), pytest.raises(ConnectionResetError) as caught:
        perform(Guard("outer", retry=EXACT), lambda: inner.call(service))
    assert (service.calls, time.sleeps) == (3, [1.0, 2.0])
    assert stop_reason(caught.value) == "nested_exhausted"
    assert recorded(caught.value) == [
        (1, "connection_reset", 1.0),
        (2, "connection_reset", 2.0),
        (3, "connection_reset", None),
    ]
    assert [(event.step_id, *told) for event, told in zip(events, story(events), strict=True)] == [
        ("inner", "step_retry_attempt", 1, "connection_reset", 1.0),
        ("inner", "step_retry_attempt", 2, "connection_reset", 2.0),
        ("inner", "step_retry_exhausted", 3, "connection_reset", "exhausted"),
        ("outer", "step_retry_exhausted", 1, "connection_reset", "nested_exhausted"),
    ]


def test_three_levels_still_make_three_calls(perform):
    """D-8: the mark goes on outwards."""
    service = down()
    layers = [Guard(f"layer {n}", retry=EXACT) for n in range(3)]
    with virtual_time(), pytest.raises(ConnectionResetError) as caught:
        perform(layers[0], lambda: layers[1].call(lambda: layers[2].call(service)))
    assert (service.calls, stop_reason(caught.value)) == (3, "nested_exhausted")


def test_retry_exhausted_asks_for_the_product(perform):
    """D-8: opted in, 3 x 3 = 9."""
    service = down()
    inner = Guard("inner", retry=EXACT)
    with virtual_time() as time, pytest.raises(ConnectionResetError) as caught:
        perform(Guard("outer", retry=EXACT.replace(retry_exhausted=True)), lambda: inner.call(service))
    assert (service.calls, stop_reason(caught.value)) == (9, "exhausted")
    assert time.sleeps == [1.0, 2.0, 1.0, 1.0, 2.0, 2.0, 1.0, 2.0]


@table(
    "inner",
    [
        Guard("inner", retry=None),
        Guard("inner", retry=RetryPolicy(on_errors=["timeout"])),
        Guard("inner", retry=RetryPolicy(skip_on_errors=["network_error"])),
    ],
    ids=["one attempt", "not listed", "skipped"],
)
def test_a_layer_that_did_not_retry_leaves_no_mark(perform, inner):
    """D-8: then the outer one owns the error."""
    service = down()
    with virtual_time(), pytest.raises(ConnectionResetError) as caught:
        perform(Guard("outer", retry=EXACT), lambda: inner.call(service))
    assert (service.calls, stop_reason(caught.value), len(history(caught.value))) == (3, "exhausted", 3)


def test_a_mark_of_an_earlier_call_is_not_taken_for_nested(perform):
    """D-8: one exception object, raised again and again, belongs to the call that raises it now."""
    same = ConnectionResetError("cached")
    service = Service(*[same] * 6)
    with virtual_time():
        for calls in (3, 6):
            with pytest.raises(ConnectionResetError) as caught:
                perform(Guard(retry=EXACT), service)
            assert (service.calls, stop_reason(caught.value), len(history(caught.value))) == (calls, "exhausted", 3)
    assert note(same).endswith("Raise max_attempts to try longer.")


def test_a_wrapped_inner_error_is_still_the_inner_ones(perform):
    """D-8: translating it does not make it new."""
    service = down()
    inner = Guard("inner", retry=EXACT)

    def body() -> None:
        try:
            inner.call(service)
        except ConnectionResetError as error:
            raise TimeoutError("translated") from error

    with virtual_time(), pytest.raises(TimeoutError) as caught:
        perform(Guard("outer", retry=EXACT), body)
    assert (service.calls, stop_reason(caught.value)) == (3, "nested_exhausted")


def test_an_inner_failure_that_was_dealt_with_marks_nothing(perform):
    """D-8: only the error that comes out counts."""
    inner, outer = down(), down(2)

    def body() -> object:
        Guard("inner", retry=EXACT).outcome(inner)
        return outer()

    with virtual_time():
        assert perform(Guard("outer", retry=EXACT), body) == "done"
    assert outer.calls == 3


def test_a_plain_decorator_outside_of_time_scopes_knows_nested_errors_too():
    """D-8: the short way of @retry obeys the same rule."""
    service = down()
    inner = retry(AT_ONCE)(service)
    outer = retry(AT_ONCE)(inner)
    with pytest.raises(ConnectionResetError) as caught:
        outer()
    assert (service.calls, stop_reason(caught.value)) == (3, "nested_exhausted")


# --- what can be decorated ----------------------------------------------------------------------------------------------


class Client:
    """Methods of every kind, each failing twice."""

    failures = 2

    def _fail(self) -> str:
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionResetError
        return "done"

    @retry(AT_ONCE)
    def method(self, word: str, *, mark: str = "!") -> str:
        return self._fail() + word + mark

    @retry(AT_ONCE)
    async def async_method(self, word: str) -> str:
        return self._fail() + word

    @classmethod
    @retry(AT_ONCE)
    def class_method(cls, word: str) -> str:
        return cls()._fail_once() + word

    @retry(AT_ONCE)
    @classmethod
    def class_method_inside(cls, word: str) -> str:
        return cls()._fail_once() + word

    @staticmethod
    @retry(AT_ONCE)
    def static_method(service: Service) -> object:
        return service()

    @retry(AT_ONCE)
    @staticmethod
    def static_method_inside(service: Service) -> object:
        return service()

    def _fail_once(self) -> str:
        if current().attempt < 2:
            raise ConnectionResetError
        return type(self).__name__

    def __call__(self) -> str:
        return self._fail()


class AsyncCallable:
    def __init__(self) -> None:
        self.service = down(2)

    async def __call__(self) -> object:
        return self.service()


@pytest.fixture(params=["real time", "virtual time"])
def scope(request):
    """The short way that real calls take, and the long way that a test scope takes, must not differ."""
    if request.param == "real time":
        yield
    else:
        with virtual_time():
            yield


@pytest.mark.usefixtures("scope")
class TestDecorated:
    def test_methods(self):
        """S4-08, U-03: bound as usual, with all arguments."""
        assert Client().method("a", mark="?") == "donea?"
        assert asyncio.run(Client().async_method("a")) == "donea"

    def test_class_methods_and_static_methods(self):
        """S4-08, U-03: decorated inside or outside."""

        class Child(Client):
            pass

        assert Client.class_method("!") == "Client!"
        assert Child.class_method("!") == "Child!"
        assert Child().class_method_inside("!") == "Child!"
        assert Client.static_method(down(2)) == "done"
        assert Client().static_method_inside(down(2)) == "done"

    def test_bound_methods_partials_and_objects(self):
        """U-03: whatever can be called."""
        service = down(2)
        assert retry(AT_ONCE)(Client()._fail)() == "done"
        assert retry(AT_ONCE)(functools.partial(lambda fn, *, word: fn() + word, service))(word="!") == "done!"
        assert retry(AT_ONCE)(Client())() == "done"
        assert retry(AT_ONCE)(functools.partial(functools.partial(lambda a, b: (a, b), 1), 2))() == (1, 2)

    def test_coroutine_functions_of_every_kind(self):
        """U-03: partials of coroutine functions and objects with an async __call__ are awaited inside of the loop."""
        service = down(2)

        async def ask(word: str) -> str:
            return service() + word

        decorated = retry(AT_ONCE)(functools.partial(ask, "!"))
        assert inspect.iscoroutinefunction(decorated)
        assert asyncio.run(decorated()) == "done!"
        assert inspect.iscoroutinefunction(retry(AT_ONCE)(AsyncCallable()))
        assert asyncio.run(retry(AT_ONCE)(AsyncCallable())()) == "done"

    @pytest.mark.parametrize(
        "guard", [Guard(retry=AT_ONCE), Guard(retry=AT_ONCE, total_timeout=60)], ids=["plain", "full"]
    )
    def test_a_sync_function_that_returns_a_coroutine(self, guard):
        """U-03: the attempt is what was returned, so it is awaited inside of the loop, or refused; never tried once in silence."""
        service = down(2)

        async def work() -> object:
            return service()

        def hand_out() -> object:
            return work()

        async def main() -> object:
            return await guard(hand_out)()

        assert asyncio.run(main()) == "done"
        assert service.calls == 3

    def test_the_decorated_function_looks_like_the_original(self):
        """U-03: name, documentation, signature, kind."""

        def fetch(url: str, *, size: int = 1) -> bytes:
            """Fetch it."""
            return b""

        async def ask(prompt: str) -> str:
            return prompt

        for decorated, original in ((retry(fetch), fetch), (Guard(total_timeout=5)(fetch), fetch), (retry(ask), ask)):
            assert decorated.__name__ == original.__name__
            assert decorated.__doc__ == original.__doc__
            assert decorated.__wrapped__ is original
            assert inspect.signature(decorated) == inspect.signature(original)
            assert inspect.iscoroutinefunction(decorated) == inspect.iscoroutinefunction(original)

    def test_bare_and_with_options(self):
        """S4-08, D-4: @retry, @retry(), @retry(option), @retry(policy)."""
        assert [
            retry(lambda: 1)(),
            retry()(lambda: 1)(),
            retry(max_attempts=2)(lambda: 1)(),
            retry(AT_ONCE)(lambda: 1)(),
        ] == [1] * 4


def test_bare_retry_is_the_default_policy():
    """D-4: three attempts, one to two seconds apart, give or take a quarter."""
    service = down()

    @retry
    def fetch() -> object:
        return service()

    with virtual_time(seed=5) as time, pytest.raises(ConnectionResetError):
        fetch()
    assert service.calls == 3
    assert len(time.sleeps) == 2
    assert 0.75 <= time.sleeps[0] <= 1.25
    assert 1.5 <= time.sleeps[1] <= 2.5


def test_options_of_retry_reach_policy_and_guard():
    """S4-08: what belongs to a call is an option like any other."""
    guard = retry(max_attempts=5, initial_delay=0.5, total_timeout=60, on_errors=["timeout"])
    assert (guard.retry.max_attempts, guard.retry.initial_delay, guard.total_timeout) == (5, 0.5, 60.0)
    assert guard.retry.on_errors == ("timeout",)


# --- call, acall, outcome, aoutcome, attempts ---------------------------------------------------------------------------


def test_call_passes_arguments_on():
    """As they came, in each attempt; the caller's own keywords are free (S4-02) (S2-13)."""
    seen = []

    def push(*args: object, **kwargs: object) -> str:
        seen.append((args, kwargs))
        if len(seen) < 2:
            raise TimeoutError
        return "done"

    async def apush(*args: object, **kwargs: object) -> str:
        return push(*args, **kwargs)

    with virtual_time():
        assert Guard().call(push, 1, fn=2, self=3, guard=4) == "done"
        assert seen == [((1,), {"fn": 2, "self": 3, "guard": 4})] * 2
        assert asyncio.run(Guard().acall(apush, 1, fn=2, self=3, guard=4)) == "done"


def test_outcome_of_a_success():
    """U-04: returned instead of raised, with the record of all attempts."""
    service = down(1)
    service.takes = 0.5
    with virtual_time() as time:
        service.time = time
        outcome = Guard(retry=EXACT).outcome(service)
    assert (outcome.ok, outcome.value, outcome.error, outcome.reason, outcome.elapsed) == (
        True,
        "done",
        None,
        None,
        2.0,
    )
    assert [(r.number, r.error, r.duration, r.delay) for r in outcome.attempts] == [
        (1, "failure 1", 0.5, 1.0),
        (2, None, 0.5, None),
    ]
    assert [r.started_at - outcome.attempts[0].started_at for r in outcome.attempts] == [
        timedelta(0),
        timedelta(seconds=1.5),
    ]
    assert outcome.attempts[0].verdict == classify(ConnectionResetError())
    assert outcome.attempts[1].verdict is None


def test_outcome_of_a_failure():
    """U-04: the error is there as an object, the reason as a word."""
    with virtual_time():
        outcome = Guard(retry=EXACT).outcome(down())
    assert (outcome.ok, outcome.value, outcome.reason, outcome.elapsed) == (False, None, "exhausted", 3.0)
    assert isinstance(outcome.error, ConnectionResetError)
    assert outcome.attempts == history(outcome.error)


def test_outcome_is_the_same_for_coroutines():
    """U-03: aoutcome tells what outcome tells."""

    def steps() -> Service:
        return Service(TimeoutError("a"), HttpError(503, "4"), ValueError("bad"))

    service = steps()

    async def ask() -> object:
        return service()

    with virtual_time(seed=2):
        one = Guard("ask", retry=RetryPolicy(max_attempts=5)).outcome(steps())
    with virtual_time(seed=2):
        two = asyncio.run(Guard("ask", retry=RetryPolicy(max_attempts=5)).aoutcome(ask))
    told = [
        (
            o.ok,
            o.value,
            o.reason,
            o.elapsed,
            type(o.error),
            [(r.number, r.error, r.delay, r.verdict) for r in o.attempts],
        )
        for o in (one, two)
    ]
    assert told[0] == told[1]
    assert told[0][2] == "permanent"


def test_outcome_does_not_swallow_control_flow():
    """C-08: an interrupt is no outcome."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guard().outcome(interrupt)


def test_outcome_shows_neither_value_nor_text():
    """Both may hold what must not be seen (S0-41)."""
    with virtual_time():
        assert "hunter2" not in repr(Guard().outcome(lambda: "hunter2"))
        assert "hunter2" not in repr(Guard(retry=None).outcome(Service(ValueError("hunter2"))))


def test_a_loop_over_attempts():
    """S4-08, U-03: for code that is no function; each loop is a call of its own."""
    attempts = Guard("push", retry=EXACT).attempts()
    for _ in range(2):
        service, numbers = down(2), []
        with watched() as (time, events):
            for attempt in attempts:
                with attempt:
                    numbers.append((attempt.number, current().attempt))
                    result = service()
        assert (result, numbers, time.sleeps) == ("done", [(1, 1), (2, 2), (3, 3)], [1.0, 2.0])
        assert story(events) == [
            ("step_retry_attempt", 1, "connection_reset", 1.0),
            ("step_retry_attempt", 2, "connection_reset", 2.0),
            ("step_success", 3, "network"),
        ]


def test_an_async_loop_over_attempts():
    """S0-14, U-03: with an attempt timeout if the guard has one."""
    numbers = []

    async def main() -> str:
        async for attempt in Guard("push", retry=EXACT, timeout=5).attempts():
            with attempt:
                numbers.append(attempt.number)
                if attempt.number == 1:
                    await asyncio.Event().wait()
                if attempt.number == 2:
                    raise HttpError(503)
                result = "done"
        return result

    with watched() as (time, events):
        assert asyncio.run(main()) == "done"
    assert (numbers, time.sleeps, time.now) == ([1, 2, 3], [1.0, 2.0], 8.0)
    assert story(events) == [
        ("attempt_timeout", 1, "attempt", 5.0),
        ("step_retry_attempt", 1, "timeout", 1.0),
        ("step_retry_attempt", 2, "unavailable", 2.0),
        ("step_success", 3, "http_429_503"),
    ]


def test_a_loop_over_attempts_ends_with_the_last_error():
    """S0-13, U-04: raised from the with block, with its history."""
    service = down()
    with virtual_time() as time, pytest.raises(ConnectionResetError, match="failure 3") as caught:
        for attempt in Guard(retry=EXACT).attempts():
            with attempt:
                service()
    assert (service.calls, time.sleeps, stop_reason(caught.value)) == (3, [1.0, 2.0], "exhausted")
    with virtual_time(), pytest.raises(ValueError, match="bad"):
        for attempt in Guard(retry=EXACT).attempts():
            with attempt:
                raise ValueError("bad")


def test_a_loop_over_attempts_stops_at_the_total_timeout():
    """S0-15, D-7: as any call."""
    service = down()
    with virtual_time(), pytest.raises(ConnectionResetError) as caught:
        for attempt in Guard(retry=PATIENT, total_timeout=6).attempts():
            with attempt:
                service()
    assert (service.calls, stop_reason(caught.value)) == (3, "total_timeout")


def test_a_loop_may_be_left_early():
    """U-03: break, and return out of the block, are no failures."""
    with watched() as (_, events):
        for attempt in Guard(retry=EXACT).attempts():
            with attempt:
                break
    assert events == []


def test_an_attempt_that_was_never_entered_is_a_mistake():
    """U-04: a loop that does nothing must not pass for a success."""
    with pytest.raises(RuntimeError, match="never entered"):
        for _ in Guard(retry=EXACT).attempts():
            pass


# --- current ------------------------------------------------------------------------------------------------------------


def test_current_tells_where_the_attempt_stands(perform):
    """C-01, D-9: attempt, attempts in all, last error, time left; a key that is the same in each attempt and no other call."""
    seen = []
    errors = [TimeoutError("one"), TimeoutError("two")]

    def body() -> str:
        here = current()
        seen.append((here.attempt, here.max_attempts, here.last_error, here.remaining(), here.idempotency_key))
        if len(seen) % 3:
            raise errors[len(seen) % 3 - 1]
        return "done"

    with virtual_time():
        for _ in range(2):
            perform(Guard(retry=EXACT, total_timeout=60), body)
    keys = [key for *_, key in seen]
    assert [row[:4] for row in seen[:3]] == [(1, 3, None, 60.0), (2, 3, errors[0], 59.0), (3, 3, errors[1], 57.0)]
    assert len(set(keys[:3])) == len(set(keys[3:])) == 1
    assert keys[0] != keys[3]
    assert len(keys[0]) >= 32


def test_current_outside_of_any_call():
    """C-01: attempt 1, nothing else known; asking for a key says so."""
    here = current()
    assert (here.attempt, here.max_attempts, here.last_error, here.remaining(), here.run_id, here.stage) == (
        1,
        1,
        None,
        None,
        None,
        None,
    )
    with pytest.raises(LookupError, match="idempotency key"):
        here.idempotency_key


def test_current_in_a_plain_retry_is_filled_from_the_second_attempt_on():
    """D-4: the first attempt costs nothing; outside of test scopes it knows only its number."""
    seen = []

    @retry(AT_ONCE)
    def body() -> str:
        here = current()
        seen.append((here.attempt, type(here.last_error)))
        if len(seen) < 3:
            raise ConnectionResetError
        return "done"

    body()
    assert seen == [(1, type(None)), (2, ConnectionResetError), (3, ConnectionResetError)]


def test_current_belongs_to_the_innermost_call(perform):
    """C-12: and the outer one is back when the inner one is over, also after a failure."""
    seen = []

    def inner() -> None:
        seen.append(("inner", current().attempt))
        raise TimeoutError

    def outer() -> str:
        seen.append(("outer", current().attempt))
        Guard("inner", retry=RetryPolicy(max_attempts=2, jitter=0), total_timeout=60).outcome(inner)
        seen.append(("outer", current().attempt))
        if current().attempt == 1:
            raise ConnectionResetError
        return "done"

    with virtual_time():
        perform(Guard("outer", retry=EXACT, total_timeout=600), outer)
    once = [("inner", 1), ("inner", 2)]
    assert seen == [("outer", 1), *once, ("outer", 1), ("outer", 2), *once, ("outer", 2)]
    assert current().attempt == 1
    assert current().remaining() is None


# --- history, stop reason, note -------------------------------------------------------------------------------------------


def after_shutdown() -> None:
    stop = Stop()
    with stop:

        def body() -> None:
            stop.set()
            raise TimeoutError

        Guard("fetch", retry=EXACT).call(body)


def with_an_open_breaker() -> None:
    breaker = CircuitBreaker("payments", failure_threshold=2)
    Guard("fetch", retry=PATIENT, breaker=breaker).call(down())


def with_a_hanging_thread() -> None:
    released = threading.Event()
    try:
        Guard("fetch", retry=EXACT, timeout=5, isolation="thread").call(released.wait)
    finally:
        released.set()


def inside_another() -> None:
    inner = Guard("inner", retry=EXACT)
    Guard("fetch", retry=EXACT).call(lambda: inner.call(down()))


REASONS = {
    "permanent": (lambda: Guard("fetch").call(Service(ValueError())), 1, "ValueError"),
    "unclear": (lambda: Guard("fetch").call(Service(VendorError())), 1, "outlast.register"),
    "not_listed": (lambda: Guard("fetch", retry=RetryPolicy(on_errors=[])).call(down()), 1, "on_errors"),
    "skipped": (
        lambda: Guard("fetch", retry=RetryPolicy(skip_on_errors=["network"])).call(down()),
        1,
        "skip_on_errors",
    ),
    "exhausted": (lambda: Guard("fetch", retry=EXACT).call(down()), 3, "3 attempts, 3 s"),
    "tier_exhausted": (
        lambda: Guard("fetch", retry=RetryPolicy(retry_limits={"network": 1, "database": 5})).call(down()),
        2,
        "network",
    ),
    "total_timeout": (lambda: Guard("fetch", retry=EXACT, total_timeout=2).call(down()), 2, "total timeout"),
    "retry_budget": (lambda: Guard("fetch", retry_budget=RetryBudget("b", reserve=0)).call(down()), 1, "budget"),
    "breaker_open": (with_an_open_breaker, 2, "circuit breaker"),
    "nested_exhausted": (inside_another, 3, "retry_exhausted=True"),
    "still_running": (with_a_hanging_thread, 1, "still running"),
    "shutdown": (after_shutdown, 1, "asked to stop"),
}


@table("around", ["plain", "full", "loop", "stage"])
@table("is_async", [False, True])
def test_a_plain_retry_inside_of_another_call_counts_its_own_attempts(around, is_async):
    """semantics 21: nothing of the outer number shows; its time, its key and its record are passed on, in every inner attempt."""
    seen, fails = [], {(1, 1): ConnectionResetError, (2, 1): ConnectionResetError, (2, 2): ConnectionResetError}
    outer_number = 0
    policy = RetryPolicy(max_attempts=3, initial_delay=0, on_errors=["all"], retry_exhausted=True)

    def look():
        here = current()
        key = None if around in ("plain", "loop") else here.idempotency_key
        seen.append((outer_number, here.attempt, here.max_attempts, here.remaining() is not None, key))
        here.spend(usd=1)
        fault = fails.get((outer_number, here.attempt))
        if fault is not None:
            raise fault(f"{outer_number} {here.attempt}")
        return outer_number

    async def alook():
        await asyncio.sleep(0)
        return look()

    inner = retry(max_attempts=2, initial_delay=0)(alook if is_async else look)

    def begin():
        nonlocal outer_number
        outer_number += 1

    def outer(*_):
        begin()
        value = inner()
        if outer_number == 1:
            raise KeyError("again")
        return value

    async def aouter(*_):
        begin()
        value = await inner()
        if outer_number == 1:
            raise KeyError("again")
        return value

    async def looped():
        async for attempt in Guard(retry=policy, total_timeout=60).attempts():
            with attempt:
                outcome = await aouter() if is_async else outer()
        return outcome

    work = aouter if is_async else outer
    spent = None
    if around == "stage":
        result = outlast.testing.run(outlast.Pipeline("outer", outlast.stage(retry=policy)(work)), [1])
        (value,), spent = result.outputs(), dict(result.spent)
    elif around == "loop":
        value = asyncio.run(looped())
    else:
        guard = Guard(retry=policy, total_timeout=None if around == "plain" else 60)
        value = asyncio.run(guard(work)()) if is_async else guard(work)()
    assert value == 3
    unprepared = 1 if around == "plain" else 2  # where no call has begun at all
    assert [(outer_, attempt, of) for outer_, attempt, of, _, _ in seen] == [
        (1, 1, unprepared),
        (1, 2, 2),
        (2, 1, 2),
        (2, 2, 2),
        (3, 1, 2),
    ]
    assert {timed for *_, timed, _ in seen} == {around in ("full", "loop")}
    assert len({key for *_, key in seen}) == 1
    assert spent in (None, {"usd": 5.0})


@table("reason", REASONS)
def test_every_stop_has_its_reason_its_history_and_its_note(reason):
    """S0-35, U-04, C-01: on the exception, for programs and for people; the last attempt has no wait after it."""
    fail, attempts, words = REASONS[reason]
    with virtual_time(), pytest.raises((OSError, ValueError, VendorError)) as caught:
        fail()
    error = caught.value
    assert stop_reason(error) == reason
    records = history(error)
    assert [record.number for record in records] == list(range(1, attempts + 1))
    # A thread that still runs is noticed only after the wait.
    assert [record.delay is None for record in records] == [False] * (attempts - 1) + [reason != "still_running"]
    assert all(record.verdict == classify(error) or reason == "still_running" for record in records)
    assert note(error).startswith("outlast fetch: ")
    assert words in note(error)


def test_an_error_that_no_call_raised_has_no_history():
    """U-04: nothing is made up."""
    error = ValueError()
    assert (history(error), stop_reason(error)) == ((), None)


def test_history_holds_values_only(lane):  # noqa: F811 - the fixture
    """U-04: instants, numbers and sanitised text; no exception object is kept alive by it. On the short way the first is not timed."""
    service = down(kind=TimeoutError)
    service.takes = 0.25
    with virtual_time() as time, pytest.raises(TimeoutError) as caught:
        service.time = time
        Guard("fetch", retry=EXACT).call(service)
    records = history(caught.value)
    assert [(r.number, r.duration, r.error, r.delay) for r in records] == [
        (1, 0.25 if lane == "flow" else 0.0, "failure 1", 1.0),
        (2, 0.25, "failure 2", 2.0),
        (3, 0.25, "failure 3", None),
    ]
    assert [r.started_at.tzinfo for r in records] == [UTC] * 3
    assert [(b.started_at - a.started_at).total_seconds() for a, b in pairwise(records)] == [
        1.25 if lane == "flow" else 1.0,
        2.25,
    ]
    with pytest.raises(dataclasses.FrozenInstanceError):
        records[0].number = 5


def test_an_exception_raised_again_has_the_history_of_its_last_call():
    """D-8, U-04: one note, one history, however often the same object is raised."""
    same = ConnectionResetError()
    with virtual_time():
        for attempts in (3, 2):
            with pytest.raises(ConnectionResetError):
                Guard("fetch", retry=RetryPolicy(max_attempts=attempts, jitter=0)).call(Service(*[same] * attempts))
            assert len(history(same)) == attempts
    assert "2 attempts" in note(same)


def test_own_notes_are_kept():
    """U-04: what the body has noted stays first."""
    error = ValueError()
    error.add_note("row 7")
    with pytest.raises(ValueError):
        Guard("fetch").call(Service(error))
    assert error.__notes__[0] == "row 7"
    assert len(error.__notes__) == 2


# --- fallback -------------------------------------------------------------------------------------------------------------


def test_the_fallback_gets_the_same_arguments_when_all_has_failed():
    """semantics 72: and may look at the error; the events tell that the call itself failed."""
    seen = []

    def fallback(url: str, *, size: int) -> str:
        seen.append((url, size, type(current().last_error), current().attempt))
        return "cached"

    def fetch(url: str, *, size: int) -> str:
        raise ConnectionResetError

    guarded = Guard("fetch", retry=EXACT, fallback=fallback)(fetch)
    with watched() as (time, events):
        assert guarded("http://x", size=3) == "cached"
    assert (seen, time.sleeps) == ([("http://x", 3, ConnectionResetError, 3)], [1.0, 2.0])
    assert story(events)[-2:] == [
        ("step_retry_exhausted", 3, "connection_reset", "exhausted"),
        ("fallback_used", 3, "connection_reset", "exhausted"),
    ]


@table("error", [ValueError(), VendorError(), PermanentFailure()])
def test_the_fallback_also_answers_what_was_not_retried(perform, error):
    """semantics 72: permanent errors too."""
    with virtual_time():
        assert perform(Guard(retry=EXACT, fallback=lambda: "cached"), Service(error)) == "cached"


def test_a_fallback_may_be_a_coroutine_function():
    """U-03: for coroutine functions; a plain one will do as well."""

    async def cached() -> str:
        return "cached"

    async def ask() -> str:
        raise TimeoutError

    with virtual_time():
        assert asyncio.run(Guard(fallback=cached).acall(ask)) == "cached"
        assert asyncio.run(Guard(fallback=lambda: "cached").acall(ask)) == "cached"


def test_the_fallback_is_not_called_after_a_success_or_for_control_flow(perform):
    """C-08: an interrupt is nobody's to answer."""

    def never() -> None:
        raise AssertionError

    def interrupt() -> None:
        raise KeyboardInterrupt

    with virtual_time():
        assert perform(Guard(fallback=never), down(1)) == "done"
        with pytest.raises(KeyboardInterrupt):
            perform(Guard(fallback=never), interrupt)


@pytest.mark.parametrize("said", [outlast.Skip("not wanted"), outlast.Snooze(60)], ids=["skip", "snooze"])
def test_what_says_no_failure_goes_through_a_guard_as_it_is(perform, said):
    """It costs no attempt, no retry of the budget and no failure of the breaker, and no fallback answers."""
    breaker, budget = CircuitBreaker("said", failure_threshold=1, count="any"), RetryBudget("said", reserve=5)
    every = RetryPolicy(max_attempts=3, initial_delay=1, on_errors=("all",))
    before = budget.available
    full = Guard(retry=every, breaker=breaker, retry_budget=budget, limit=outlast.Limit("said", concurrency=1))
    for guard in (Guard(retry=every), full, Guard(retry=every, fallback=lambda: "cached", fallback_on=("all",))):
        service = Service(said, said)
        with watched() as (time, events), pytest.raises(type(said)) as caught:
            perform(guard, service)
        assert (caught.value, service.calls, time.sleeps, events) == (said, 1, [], [])
    assert (breaker.state, budget.available) == ("closed", before)
    assert perform(full, Service()) == "done"


def test_a_fallback_that_fails_is_chained_to_the_error(perform):
    """U-04: both failures are visible."""

    def broken() -> None:
        raise LookupError("no cache")

    with virtual_time(), pytest.raises(LookupError, match="no cache") as caught:
        perform(Guard(retry=EXACT, fallback=broken), down())
    assert isinstance(caught.value.__context__, ConnectionResetError)
    assert stop_reason(caught.value.__context__) == "exhausted"


def test_outcome_with_a_fallback():
    """semantics 72: ok, with the fallback's value; the reason still says why it was needed."""
    with virtual_time():
        outcome = Guard(retry=EXACT, fallback=lambda: "cached").outcome(down())
    assert (outcome.ok, outcome.value, outcome.error, outcome.reason, len(outcome.attempts)) == (
        True,
        "cached",
        None,
        "exhausted",
        3,
    )


def test_the_fallback_answers_an_open_breaker(perform):
    """D-10: nothing was called, and still there is an answer."""
    breaker = CircuitBreaker("payments")
    breaker.isolate("maintenance")
    service = Service()
    with virtual_time():
        assert perform(Guard(breaker=breaker, fallback=lambda: "cached"), service) == "cached"
    assert service.calls == 0


# --- retry_if -------------------------------------------------------------------------------------------------------------


def pending(result: object) -> bool:
    return result == "pending"


def test_a_result_may_be_retried(perform):
    """S4-08: what the predicate accepts is tried again, after the same waits, and told like any retry (S0-35)."""
    service = Service("pending", "pending", "ready")
    with watched() as (time, events):
        assert perform(Guard(retry=EXACT, retry_if=pending), service) == "ready"
    assert (service.calls, time.sleeps) == (3, [1.0, 2.0])
    assert story(events) == [
        ("step_retry_attempt", 1, "unknown", 1.0),
        ("step_retry_attempt", 2, "unknown", 2.0),
        ("step_success", 3, "unknown"),
    ]


def test_the_last_result_is_returned_as_it_is(perform):
    """U-04: when no attempt is left: never None, never an invented error."""
    service = Service(*["pending"] * 9)
    with virtual_time() as time:
        assert perform(Guard(retry=EXACT, retry_if=pending), service) == "pending"
        assert (service.calls, time.sleeps) == (3, [1.0, 2.0])
        outcome = Guard(retry=EXACT, retry_if=pending).outcome(service)
    assert (outcome.ok, outcome.value, outcome.error, outcome.reason, len(outcome.attempts)) == (
        False,
        "pending",
        None,
        "exhausted",
        3,
    )


def test_a_result_is_not_waited_for_beyond_the_deadline(perform):
    """D-7: the wait that does not fit is not begun."""
    service = Service(*["pending"] * 9)
    with virtual_time() as time:
        assert perform(Guard(retry=PATIENT, retry_if=pending, total_timeout=6), service) == "pending"
    assert (service.calls, time.now) == (3, 3.0)


def test_results_and_errors_share_the_attempts(perform):
    """C-01: attempts count executions, whatever became of them."""
    service = Service("pending", ConnectionResetError("cut"), "pending")
    with watched() as (time, events):
        assert perform(Guard(retry=EXACT, retry_if=pending), service) == "pending"
    assert (service.calls, time.sleeps) == (3, [1.0, 2.0])
    assert story(events) == [
        ("step_retry_attempt", 1, "unknown", 1.0),
        ("step_retry_attempt", 2, "connection_reset", 2.0),
        ("step_retry_exhausted", 3, "unknown", "exhausted"),
    ]


def test_a_predicate_that_fails_does_not_destroy_the_result(perform, caplog):
    """The result counts as good; the predicate is reported once (S0-35)."""

    def broken(result: object) -> bool:
        raise ZeroDivisionError

    with virtual_time(), caplog.at_level(logging.ERROR, "outlast"):
        guard = Guard(retry=EXACT, retry_if=broken)
        assert [perform(guard, Service("a")), perform(guard, Service("b"))] == ["a", "b"]
    assert len([r for r in caplog.records if "broken" in r.getMessage()]) == 1


def test_retrying_a_result_draws_on_the_retry_budget(perform):
    """D-12: the decision to retry withdraws, whatever asked for it."""
    budget = RetryBudget("b", reserve=1)
    service = Service(*["pending"] * 9)
    with virtual_time():
        assert perform(Guard(retry=PATIENT, retry_if=pending, retry_budget=budget), service) == "pending"
    assert (service.calls, budget.available) == (2, 0)


def test_a_rejected_result_does_not_become_good_because_there_is_a_fallback():
    """U-04: either the fallback answers, or the outcome says that the result was not wanted."""
    with virtual_time():
        outcome = Guard(retry=EXACT, retry_if=pending, fallback=lambda: "cached").outcome(Service(*["pending"] * 3))
    assert (outcome.ok, outcome.value) in {(False, "pending"), (True, "cached")}


# --- breaker, as a call sees it -------------------------------------------------------------------------------------------


def test_the_call_that_trips_the_breaker_raises_its_own_error(perform):
    """D-10, C-13: retry outside, breaker inside; once open, the last attempt's own error comes out, without a wait."""
    breaker = CircuitBreaker("payments", failure_threshold=2)
    service = down()
    with watched() as (time, events), pytest.raises(ConnectionResetError, match="failure 2") as caught:
        perform(Guard("fetch", retry=PATIENT, breaker=breaker), service)
    assert (service.calls, time.sleeps, stop_reason(caught.value)) == (2, [1.0], "breaker_open")
    assert caught.value.__context__ is None
    assert story(events) == [
        ("step_retry_attempt", 1, "connection_reset", 1.0),
        ("circuit_breaker_open", "payments", 2),
        ("step_retry_exhausted", 2, "connection_reset", "breaker_open"),
    ]


def test_an_open_breaker_rejects_without_calling(perform):
    """C-13, D-10: no attempt, no wait, CircuitBreakerOpenError."""
    breaker = CircuitBreaker("payments")
    breaker.isolate("maintenance")
    service = Service()
    with virtual_time() as time, pytest.raises(CircuitBreakerOpenError) as caught:
        perform(Guard("fetch", retry=PATIENT, breaker=breaker), service)
    assert (service.calls, time.sleeps, stop_reason(caught.value), history(caught.value)) == (0, [], "breaker_open", ())


def test_waiting_for_a_breaker_costs_no_attempt(perform):
    """D-10, C-13: on_open=wait waits until probes are admitted, then goes on where it was."""
    breaker = CircuitBreaker("payments", failure_threshold=2, reset_timeout=60)
    service = down(2)
    with watched() as (time, events):
        assert perform(Guard("fetch", retry=EXACT, breaker=breaker, on_open="wait"), service) == "done"
    assert (service.calls, time.sleeps) == (3, [1.0, 2.0, 58.0])
    assert story(events) == [
        ("step_retry_attempt", 1, "connection_reset", 1.0),
        ("circuit_breaker_open", "payments", 2),
        ("step_retry_attempt", 2, "connection_reset", 2.0),
        ("circuit_breaker_half_open", "payments"),
        ("step_success", 3, "network"),
    ]


def test_a_breaker_is_not_waited_for_beyond_the_deadline(perform):
    """D-7, D-10: if it does not fit, fail at once."""
    breaker = CircuitBreaker("payments", failure_threshold=2, reset_timeout=60)
    with virtual_time() as time, pytest.raises(ConnectionResetError) as caught:
        perform(Guard("fetch", retry=PATIENT, breaker=breaker, on_open="wait", total_timeout=30), down())
    assert (time.now, stop_reason(caught.value)) == (3.0, "breaker_open")


# --- retry budget -----------------------------------------------------------------------------------------------------------


def test_an_empty_budget_ends_the_call_with_its_own_error(perform):
    """D-12: three retries for all calls that share it, then none."""
    guard = Guard("fetch", retry=EXACT, retry_budget=RetryBudget("openai", reserve=3))
    calls = []
    with watched() as (_, events):
        for _ in range(3):
            service = down()
            with pytest.raises(ConnectionResetError) as caught:
                perform(guard, service)
            calls.append((service.calls, stop_reason(caught.value)))
    assert calls == [(3, "exhausted"), (2, "retry_budget"), (1, "retry_budget")]
    assert story(events)[3:] == [
        ("step_retry_attempt", 1, "connection_reset", 1.0),
        ("retry_budget_exhausted", 2, "openai"),
        ("step_retry_exhausted", 2, "connection_reset", "retry_budget"),
        ("retry_budget_exhausted", 1, "openai"),
        ("step_retry_exhausted", 1, "connection_reset", "retry_budget"),
    ]


def test_first_successes_fill_the_budget_and_retried_ones_do_not(perform):
    """D-12: five successes at 20 % are one retry."""
    budget = RetryBudget("openai", ratio=0.2, reserve=1)
    guard = Guard(retry=EXACT, retry_budget=budget)
    with virtual_time():
        perform(guard, down(1))
        assert budget.available == 0
        for _ in range(5):
            perform(guard, Service())
    assert budget.available == 1


def test_an_error_that_is_not_retried_costs_nothing(perform):
    """D-12: only the decision to retry withdraws."""
    budget = RetryBudget("openai", reserve=2)
    for guard in (
        Guard(retry_budget=budget),
        Guard(retry=None, retry_budget=budget),
        Guard(retry_budget=budget, total_timeout=0.1),
    ):
        for error in (ValueError(), TimeoutError()):
            if isinstance(error, TimeoutError) and guard.retry.max_attempts > 1 and guard.total_timeout is None:
                continue
            with virtual_time(), pytest.raises(type(error)):
                perform(guard, Service(error))
    assert budget.available == 2


# --- stop -------------------------------------------------------------------------------------------------------------------


def test_a_stop_ends_the_call_at_the_next_decision(perform):
    """semantics 23: asked to stop during an attempt: no wait, the last error, reason shutdown."""
    stop = Stop()
    service = down()

    def body() -> object:
        if service.calls == 1:
            stop.set()
        return service()

    with watched() as (time, events), stop, pytest.raises(ConnectionResetError, match="failure 2") as caught:
        perform(Guard("fetch", retry=PATIENT), body)
    assert (service.calls, time.sleeps, stop_reason(caught.value)) == (2, [1.0], "shutdown")
    assert story(events) == [
        ("step_retry_attempt", 1, "connection_reset", 1.0),
        ("step_retry_exhausted", 2, "connection_reset", "shutdown"),
    ]


def test_no_fallback_answers_for_a_call_that_was_asked_to_stop(perform):
    """D-28: it answers for failures. Whoever has asked to stop hears that the work is not done."""
    stop = Stop()
    stop.set()
    guard = Guard(retry=PATIENT, retry_if=pending, fallback=lambda: "cached")
    with watched() as (_, events), stop:
        with pytest.raises(ConnectionResetError) as caught:
            perform(guard, down())
        assert perform(guard, Service("pending")) == "pending"
        outcome = guard.outcome(Service("pending"))
    assert stop_reason(caught.value) == "shutdown"
    assert (outcome.ok, outcome.value, outcome.reason) == (False, "pending", "shutdown")
    assert "fallback_used" not in {kind for kind, *_ in story(events)}


def test_a_stop_does_not_prevent_a_first_attempt(perform):
    """semantics 23: work that needs no retry goes on; only waits end."""
    stop = Stop()
    stop.set()
    with virtual_time(), stop:
        assert perform(Guard(), Service()) == "done"
        with pytest.raises(ConnectionResetError):
            perform(Guard(), down())


def test_a_stop_ends_a_wait_that_has_begun(perform):
    """semantics 23: set from another thread while the call waits, in real time; the wait of an hour is over at once."""
    stop, waiting = Stop(), threading.Event()
    ended = []

    def work() -> None:
        with stop:
            try:
                perform(Guard("fetch", retry=RetryPolicy(initial_delay=3600, max_delay=None)), down())
            except ConnectionResetError as error:
                ended.append(stop_reason(error))

    unsubscribe = observe.subscribe(lambda event: waiting.set())
    try:
        thread = threading.Thread(target=work)
        thread.start()
        assert waiting.wait(10)
        stop.set()
        thread.join(10)
    finally:
        unsubscribe()
    assert ended == ["shutdown"]


def test_calls_outside_of_the_block_do_not_listen(perform):
    """semantics 23: a stop concerns those inside it, nested or not."""
    outer, inner = Stop(), Stop()
    with outer:
        with inner:
            pass
        inner.set()
        with virtual_time():
            assert perform(Guard(retry=EXACT), down(2)) == "done"


def interrupted_wait(guard: Guard, step) -> object:
    """A coroutine's call whose first wait is ended by a stop."""

    async def ask() -> object:
        return step()

    async def main() -> object:
        stop = Stop()

        async def later() -> None:
            stop.set()

        with stop:
            task = asyncio.create_task(later())
            try:
                return await guard.acall(ask)
            finally:
                await task

    with virtual_time():
        return asyncio.run(main())


def test_a_stop_while_a_result_is_waited_for_returns_that_result():
    """U-04: as when no attempt is left: the last result, as it is."""
    assert interrupted_wait(Guard(retry=PATIENT, retry_if=pending), Service("pending", "ready")) == "pending"


def test_a_stop_while_a_breaker_is_waited_for():
    """D-10: nothing was called, so it is the breaker's error that comes out, with the reason shutdown."""
    breaker = CircuitBreaker("payments", failure_threshold=1)
    with pytest.raises(ConnectionResetError):
        breaker.call(down())
    with pytest.raises(CircuitBreakerOpenError) as caught:
        interrupted_wait(Guard(breaker=breaker, on_open="wait"), Service())
    assert stop_reason(caught.value) == "shutdown"


# --- scripted faults, and no protection at all ------------------------------------------------------------------------------


def test_scripted_faults_happen_to_the_call_of_that_name(perform):
    """semantics 76: in order; None lets an attempt run; others are not touched (S0-35)."""
    fetch, push = Service(), Service()
    with watched() as (time, events), inject(Faults("fetch", TimeoutError(), None, HttpError(503))):
        assert perform(Guard("fetch", retry=EXACT), fetch) == "done"
        assert perform(Guard("push", retry=EXACT), push) == "done"
        assert perform(Guard("fetch", retry=EXACT), fetch) == "done"
        assert perform(Guard("fetch", retry=EXACT), fetch) == "done"
    assert (fetch.calls, push.calls, time.sleeps) == (3, 1, [1.0, 1.0])
    assert story(events) == [
        ("step_retry_attempt", 1, "timeout", 1.0),
        ("step_success", 2, "network"),
        ("step_retry_attempt", 1, "unavailable", 1.0),
        ("step_success", 2, "http_429_503"),
    ]


def test_scripted_faults_reach_decorated_functions_by_their_own_name():
    """semantics 76: without a guard's name it is the function's."""

    @retry(AT_ONCE)
    def fetch() -> str:
        return "done"

    name = fetch.__wrapped__.__qualname__
    with capture_events() as events, inject(Faults(name, TimeoutError())):
        assert fetch() == "done"
    assert story(events) == [("step_retry_attempt", 1, "timeout", 0.0), ("step_success", 2, "network")]
    assert fetch() == "done"


def test_scripted_faults_nest_and_end_with_their_scope(perform):
    """semantics 76: the inner script hides the outer one, which goes on where it was."""
    guard = Guard("fetch", retry=None)
    with virtual_time(), inject(Faults("fetch", TimeoutError(), TimeoutError())):
        with inject(Faults("fetch", ValueError())), pytest.raises(ValueError):
            perform(guard, Service())
        with pytest.raises(TimeoutError):
            perform(guard, Service())
    assert perform(guard, Service()) == "done"


@table("wrong", [TimeoutError, "timeout", KeyboardInterrupt(), 503])
def test_a_fault_is_an_exception_or_nothing(wrong):
    """A class or a word would be a test that tests nothing (S0-29)."""
    with pytest.raises(TypeError, match="expected every fault to be an exception or None"):
        Faults("fetch", None, wrong)


def test_disabled_calls_run_once_without_protection(perform):
    """semantics 78: no retry, no fallback, no breaker, no timeout; nothing is told, nothing is attached."""
    breaker = CircuitBreaker("payments")
    breaker.isolate("maintenance")
    guard = Guard("fetch", retry=EXACT, breaker=breaker, fallback=lambda: "cached", total_timeout=1, retry_if=bool)
    service = down()
    with watched() as (time, events), disabled():
        with pytest.raises(ConnectionResetError) as caught:
            perform(guard, service)
        assert perform(guard, Service("value")) == "value"
    assert (service.calls, time.sleeps, events) == (1, [], [])
    assert (stop_reason(caught.value), history(caught.value)) == (None, ())
    assert getattr(caught.value, "__notes__", []) == []


def test_disabled_is_over_when_its_block_is():
    """semantics 78: also after an error; scopes nest."""
    with virtual_time():
        with pytest.raises(ZeroDivisionError), disabled():
            raise ZeroDivisionError
        assert Guard(retry=EXACT).call(down(2)) == "done"


def test_protection_can_be_turned_off_from_outside():
    """semantics 78: OUTLAST_DISABLE=1 in the environment."""
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from outlast import retry\n"
        "calls = []\n"
        "@retry(initial_delay=0)\n"
        "def fail():\n"
        "    calls.append(1)\n"
        "    raise ConnectionResetError\n"
        "try:\n"
        "    fail()\n"
        "except ConnectionResetError:\n"
        "    print(len(calls))\n"
    )
    told = {}
    for value in ("1", "0", ""):
        environ = os.environ | {"OUTLAST_DISABLE": value}
        done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
        told[value] = done.stdout.strip()
    assert told == {"1": "1", "0": "3", "": "3"}


# --- the caller's own word ------------------------------------------------------------------------------------------------


def test_temporary_and_permanent_failure(perform):
    """D-2, D-6: code may say itself whether and when another attempt is worth it (S4-02)."""
    service = Service(TemporaryFailure("later", retry_after=5), PermanentFailure("never"), "unreached")
    with watched() as (time, events), pytest.raises(PermanentFailure):
        perform(Guard("fetch", retry=PATIENT), service)
    assert time.sleeps == [6.0]
    assert story(events) == [
        ("step_retry_attempt", 1, "temporary_failure", 6.0),
        ("step_error_permanent", 2, "permanent_failure", "permanent"),
    ]


def test_a_group_of_failures_is_retried_as_a_whole(perform):
    """D-2: if each of its leaves would be, and not otherwise."""
    good = ExceptionGroup("both", [TimeoutError(), HttpError(503, "4")])
    bad = ExceptionGroup("mixed", [TimeoutError(), ValueError()])
    with virtual_time() as time, pytest.raises(ExceptionGroup) as caught:
        perform(Guard(retry=PATIENT), Service(good, bad))
    assert caught.value is bad
    assert (time.sleeps, stop_reason(bad)) == ([5.0], "permanent")


def test_one_guard_serves_many_calls_at_once():
    """U-03: the state of a call is its own: each sees the whole sequence."""
    guard = Guard("fetch", retry=EXACT)

    async def main() -> list[object]:
        async def one(service: Service) -> object:
            async def ask() -> object:
                return service()

            return await guard.acall(ask)

        return await asyncio.gather(*(one(down(2)) for _ in range(20)))

    with virtual_time() as time:
        assert asyncio.run(main()) == ["done"] * 20
    assert sorted(time.sleeps) == [1.0] * 20 + [2.0] * 20
    assert time.now == 3.0


def test_public_names_are_the_ones_used_here():
    """U-03: everything above is what `import outlast` offers."""
    for name in ("retry", "Guard", "RetryPolicy", "current", "history", "stop_reason", "Stop", "RetryBudget"):
        assert getattr(outlast, name) is globals()[name]


def test_a_timeout_does_not_strike_what_was_there_in_time():
    """A loop that somebody has held up sees to what has come meanwhile first; what is still missing then is cancelled."""
    guard = outlast.Guard("g", timeout=0.05, retry=None)

    async def quick():
        loop = asyncio.get_running_loop()
        there = loop.create_future()
        loop.call_later(0.001, there.set_result, "here")
        return await there

    async def never():
        await asyncio.Event().wait()

    async def held_up(fn):
        asyncio.get_running_loop().call_soon(threading.Event().wait, 0.2)
        return await guard.acall(fn)

    assert asyncio.run(held_up(quick)) == "here"
    with pytest.raises(outlast.AttemptTimeoutError):
        asyncio.run(held_up(never))
