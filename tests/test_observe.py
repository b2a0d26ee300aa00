"""What is told: every event as a value, in order, through hooks and the standard log, and what it never tells."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import logging
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

import outlast
from outlast import CircuitBreaker, Guard, RetryBudget, RetryPolicy
from outlast.display.snapshot import Snapshot
from outlast.display.telling import lines
from outlast.observe import events as told
from outlast.observe import listening, subscribe
from outlast.sharing.contact import Contact
from outlast.testing import capture_events, virtual_time
from tables import table

AT = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)
names = itertools.count()

STEP = {"step_id": "shop.fetch", "attempt": 2, "max_attempts": 3}
FAILURE = STEP | {
    "max_retries": 2,
    "tier": "network",
    "category": "transient",
    "error_class": "connection_reset",
    "error_type": "ConnectionResetError",
    "error": "reset by peer",
}
BREAKER = {"breaker": "openai", "failure_count": 5, "reason": "5 failures in a row"}
SAMPLES = [
    told.StepRetryAttempt(**FAILURE, next_delay=1.5, next_attempt_at=AT),
    told.StepRetryExhausted(**FAILURE, reason="exhausted"),
    told.StepErrorPermanent(**FAILURE, reason="permanent"),
    told.StepSuccess(**STEP, tier="network"),
    told.AttemptTimeout(**STEP, timeout=30.0, scope="attempt"),
    told.RetryBudgetExhausted(**STEP, budget="openai"),
    told.StepHedge(**STEP, after=0.8),
    told.FallbackUsed(**STEP, error_class="connection_reset", error_type="ConnectionResetError", reason="exhausted"),
    told.CallRejected(step_id="shop", by="breaker", which="openai"),
    told.CallFinished(step_id="shop", outcome="succeeded", attempts=2, duration=1.5),
    told.HookFailed(hook="watch", error_type="KeyError"),
    told.Throttled(limit="openai", retry_after=7.0, pause=7.0, width=None),
    told.LimitExceeded(limit="openai", under_way=64, waiting=9),
    told.CircuitBreakerOpen(**BREAKER, threshold=5, opened_at=AT, retry_at=AT),
    told.CircuitBreakerHalfOpen(**BREAKER),
    told.CircuitBreakerClosed(**BREAKER),
    told.CircuitBreakerReopened(**BREAKER, opened_at=AT, retry_at=AT),
]
every_event = table("event", SAMPLES, ids=lambda event: event.name)


def policy(max_attempts: int = 3, **options) -> RetryPolicy:
    return RetryPolicy(max_attempts=max_attempts, initial_delay=1, jitter=0, **options)


def failing(*errors: Exception, result: object = "fine"):
    """A function that raises these one after the other and then returns the result."""
    script = iter(errors)

    def work(*args, **kwargs):
        error = next(script, None)
        if error is not None:
            raise error
        return result

    return work


def drive(guard: Guard, work, kind: str):
    """The guarded call through one of its doors."""
    if kind == "sync":
        return guard.call(work)
    if kind == "decorated":
        return guard(work)()
    if kind == "attempts":
        for attempt in guard.attempts():
            with attempt:
                result = work()
        return result

    async def awork():
        return work()

    if kind == "async":
        return asyncio.run(guard.acall(awork))

    async def loop():
        async for attempt in guard.attempts():
            with attempt:
                result = await awork()
        return result

    return asyncio.run(loop())


every_door = pytest.mark.parametrize("kind", ["sync", "decorated", "async", "attempts", "async attempts"])


def story(events) -> list[str]:
    return [event.name for event in events]


@pytest.fixture
def records():
    """Every log record of Outlast, as an application's own handler sees it."""

    class Handler(logging.Handler):
        def __init__(self):
            super().__init__()
            self.records: list[logging.LogRecord] = []

        def emit(self, record):
            self.records.append(record)

    handler, logger = Handler(), logging.getLogger("outlast")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler.records
    logger.setLevel(level)
    logger.removeHandler(handler)


# --- events as values ---


def test_the_list_of_events_is_complete():
    """C-23, D-18: the names of what a call and a breaker tell."""
    letters = (told.DeadLetterEnqueue, told.DeadLetterReplay, told.DeadLettersOverThreshold)
    runs = (told.RunEvent, told.ItemEvent, told.JobEvent, told.WorkerLost, told.ScheduleEvent, told.FlowEvent, *letters)
    calls = sorted(name for name, event in told.EVENTS.items() if not issubclass(event, runs))
    assert calls == sorted(event.name for event in SAMPLES)
    assert calls == [
        "attempt_timeout",
        "call_finished",
        "call_rejected",
        "circuit_breaker_closed",
        "circuit_breaker_half_open",
        "circuit_breaker_open",
        "circuit_breaker_reopened",
        "fallback_used",
        "hook_failed",
        "limit_exceeded",
        "retry_budget_exhausted",
        "step_error_permanent",
        "step_hedge",
        "step_retry_attempt",
        "step_retry_exhausted",
        "step_success",
        "throttled",
    ]
    assert all(told.EVENTS[event.name] is type(event) for event in SAMPLES)


@every_event
def test_an_event_is_named_after_its_class(event):
    """C-23: StepRetryAttempt is step_retry_attempt."""
    assert event.name == "_".join(re.findall("[A-Z][a-z]+", type(event).__name__)).lower()


@table(
    ("name", "level"),
    [
        ("step_retry_attempt", "warning"),
        ("step_retry_exhausted", "error"),
        ("step_error_permanent", "error"),
        ("step_success", "info"),
        ("attempt_timeout", "warning"),
        ("retry_budget_exhausted", "warning"),
        ("circuit_breaker_open", "warning"),
        ("circuit_breaker_half_open", "info"),
        ("circuit_breaker_closed", "info"),
        ("circuit_breaker_reopened", "warning"),
    ],
)
def test_an_event_has_its_level(name, level):
    """C-23: retry is a warning, the end an error, success an information."""
    assert told.EVENTS[name].level == level


@every_event
def test_an_event_is_ready_for_json(event):
    """C-23, D-18: plain values only, instants in ISO 8601 with their zone, and it comes back as it was."""
    fields = event.as_dict()
    assert json.loads(json.dumps(fields, allow_nan=False)) == fields
    assert fields["event"] == event.name
    assert {"ts", "seq", "run_id", "pipeline", "event"} <= set(fields)
    instants = [name for name in fields if name == "ts" or name.endswith("_at")]
    assert all(datetime.fromisoformat(fields[name]).utcoffset() == timedelta(0) for name in instants)


@every_event
def test_an_event_is_a_sentence_for_people(event):
    """C-23: one line that says whom it is about."""
    sentence = event.sentence()
    assert "\n" not in sentence
    assert "None" not in sentence
    assert (
        next(getattr(event, field) for field in ("breaker", "limit", "step_id", "hook") if hasattr(event, field))
        in sentence
    )


@every_event
def test_an_event_is_frozen(event):
    """C-23: what has happened does not change."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.seq = 0


@every_event
def test_an_event_of_a_plain_call_belongs_to_no_run(event):
    """D-18: run and pipeline are there, and None."""
    assert (event.run_id, event.pipeline) == (None, None)


def test_a_retry_carries_every_promised_field():
    """C-01, C-23: attempt, next attempt, limits, retries used, error and delay, also in the dictionary."""
    fields = SAMPLES[0].as_dict()
    assert fields | {"ts": None, "seq": None} == FAILURE | {
        "event": "step_retry_attempt",
        "ts": None,
        "seq": None,
        "run_id": None,
        "pipeline": None,
        "job_id": None,
        "job_kind": None,
        "item_id": None,
        "retries_used": 1,
        "next_attempt": 3,
        "next_delay": 1.5,
        "next_delay_ms": 1500,
        "next_attempt_at": AT.isoformat(),
    }


@table("event", SAMPLES[:6], ids=lambda event: event.name)
def test_every_event_of_a_step_says_how_many_retries_were_used(event):
    """C-01, D-18: as a field, where logs and stores find it."""
    assert event.retries_used == 1
    assert event.as_dict()["retries_used"] == 1


def test_a_success_says_how_many_retries_it_took():
    """Tier, attempt and total retries, also in the dictionary."""
    fields = SAMPLES[3].as_dict()
    assert (fields["tier"], fields["attempt"], fields["total_retries"]) == ("network", 2, 1)


@table(
    ("older", "name"),
    [
        ("step.error.retrying", "step_retry_attempt"),
        ("stage retry", "step_retry_attempt"),
        ("retry_attempt", "step_retry_attempt"),
        ("step.error.retry_exhausted", "step_retry_exhausted"),
        ("max_retries", "step_retry_exhausted"),
        ("step.error.permanent", "step_error_permanent"),
        ("non-retriable", "step_error_permanent"),
        ("step.success", "step_success"),
        ("record_success", "step_success"),
        ("circuit_breaker_opened", "circuit_breaker_open"),
        ("circuit_breaker_half_open", "circuit_breaker_half_open"),
        ("circuit_breaker_closed", "circuit_breaker_closed"),
        ("circuit_breaker_reopened", "circuit_breaker_reopened"),
    ],
)
def test_an_older_name_means_the_same_event(older, name):
    """C-23: filters written for another system go on working."""
    assert told.canonical(older) == name


def test_a_name_stands_for_itself():
    """C-23: canonical names are their own, and every alias leads to an event that exists."""
    assert [told.canonical(name) for name in told.EVENTS] == list(told.EVENTS)
    assert set(told.ALIASES.values()) <= set(told.EVENTS)
    assert set(told.ALIASES).isdisjoint(told.EVENTS)
    assert told.canonical("something_else") == "something_else"


# --- the story of a call ---


@every_door
def test_two_failures_and_a_success(kind):
    """S0-34, S0-37, S2-19, S2-20, S4-07, D-18: two retries with their waits, then the success; the same through every door."""
    work = failing(ConnectionResetError("reset by peer"), TimeoutError("too slow"))
    with virtual_time(), capture_events() as events:
        assert drive(Guard("shop", retry=policy()), work, kind) == "fine"
    first, second, success = events
    assert story(events) == ["step_retry_attempt", "step_retry_attempt", "step_success"]
    assert first.next_attempt_at - first.ts == timedelta(seconds=1)
    assert second.ts - first.ts == timedelta(seconds=1)
    assert success.ts - second.ts == timedelta(seconds=2)
    assert [
        (e.step_id, e.attempt, e.max_attempts, e.max_retries, e.error_type, e.error, e.next_delay) for e in events[:2]
    ] == [
        ("shop", 1, 3, 2, "ConnectionResetError", "reset by peer", 1.0),
        ("shop", 2, 3, 2, "TimeoutError", "too slow", 2.0),
    ]
    assert [(e.tier, e.category, e.error_class) for e in events[:2]] == [
        ("network", "transient", "connection_reset"),
        ("network", "transient", "timeout"),
    ]
    assert (success.step_id, success.attempt, success.total_retries, success.tier) == ("shop", 3, 2, "network")


@every_door
def test_the_last_failure(kind):
    """S0-38, S2-18: exhausted is told once, with the attempt that was the last and why it was."""
    work = failing(*(ConnectionResetError(str(n)) for n in range(3)))
    with virtual_time(), capture_events() as events, pytest.raises(ConnectionResetError):
        drive(Guard("shop", retry=policy()), work, kind)
    assert story(events) == ["step_retry_attempt", "step_retry_attempt", "step_retry_exhausted"]
    assert (events[-1].attempt, events[-1].max_retries, events[-1].reason) == (3, 2, "exhausted")


@every_door
def test_an_error_that_is_not_retried(kind):
    """S2-17, S0-28: one event, after one attempt, with no retry used."""
    with virtual_time(), capture_events() as events, pytest.raises(ValueError, match="bad"):
        drive(Guard("shop", retry=policy()), failing(ValueError("bad row")), kind)
    (event,) = events
    assert (event.name, event.attempt, event.retries_used, event.tier) == ("step_error_permanent", 1, 0, "data")
    assert (event.error, event.reason, event.category) == ("bad row", "permanent", "permanent")


@table(
    ("error", "options", "name", "reason"),
    [
        (KeyError("id"), {}, "step_error_permanent", "permanent"),
        (Exception("?"), {}, "step_error_permanent", "unclear"),
        (ConnectionResetError(), {"on_errors": ["timeout"]}, "step_error_permanent", "not_listed"),
        (ConnectionResetError(), {"skip_on_errors": ["network_error"]}, "step_error_permanent", "skipped"),
        (ConnectionResetError(), {"max_attempts": 1}, "step_retry_exhausted", "exhausted"),
        (ConnectionResetError(), {"retry_limits": {"database": 5}}, "step_retry_exhausted", "tier_exhausted"),
    ],
)
def test_the_end_tells_its_reason(error, options, name, reason):
    """S2-17, S2-18, C-02: what was worth retrying is exhausted, what was not is permanent; each with its reason."""
    with virtual_time(), capture_events() as events, pytest.raises(type(error)):
        Guard("shop", retry=RetryPolicy(**options)).call(failing(error))
    assert [(event.name, event.reason) for event in events] == [(name, reason)]


def test_success_at_the_first_attempt_is_not_told():
    """D-18: step_success only after a retry."""
    with capture_events() as events:
        assert Guard("shop").call(failing()) == "fine"
        assert outlast.retry(failing())() == "fine"
    assert events == []


def test_the_retries_of_a_tier_are_what_its_limit_grants():
    """C-02, S2-18: max_retries is the tier's, not only the policy's."""
    guard = Guard("shop", retry=RetryPolicy(retry_limits={"network": 1, "database": 5}, jitter=0))
    work = failing(*(ConnectionResetError() for _ in range(3)))
    with virtual_time(), capture_events() as events, pytest.raises(ConnectionResetError):
        guard.call(work)
    assert [(e.name, e.max_retries, e.max_attempts) for e in events] == [
        ("step_retry_attempt", 1, 6),
        ("step_retry_exhausted", 1, 6),
    ]


def test_the_retries_that_are_told_are_no_more_than_the_attempts_allow():
    """C-02: a limit of a tier above max_attempts grants nothing more."""
    guard = Guard("shop", retry=RetryPolicy(max_attempts=2, retry_limits={"network": 5}, jitter=0))
    with virtual_time(), capture_events() as events, pytest.raises(ConnectionResetError):
        guard.call(failing(*(ConnectionResetError() for _ in range(9))))
    assert [(e.name, e.attempt, e.max_retries, e.max_attempts) for e in events] == [
        ("step_retry_attempt", 1, 1, 2),
        ("step_retry_exhausted", 2, 1, 2),
    ]


def test_an_attempt_that_runs_out_of_time_is_told_before_its_retry():
    """D-18: attempt_timeout with its scope, then what became of the attempt (S0-16)."""

    async def hang():
        await asyncio.Event().wait()

    with virtual_time(), capture_events() as events:
        with pytest.raises(outlast.AttemptTimeoutError):
            asyncio.run(Guard("shop", retry=policy(2), timeout=5).acall(hang))
        with pytest.raises(outlast.TotalTimeoutError):
            asyncio.run(Guard("shop", retry=policy(2), total_timeout=7).acall(hang))
    assert [(e.name, e.attempt, getattr(e, "scope", getattr(e, "reason", None))) for e in events] == [
        ("attempt_timeout", 1, "attempt"),
        ("step_retry_attempt", 1, None),
        ("attempt_timeout", 2, "attempt"),
        ("step_retry_exhausted", 2, "exhausted"),
        ("attempt_timeout", 1, "total"),
        ("step_retry_exhausted", 1, "total_timeout"),
    ]
    assert [e.timeout for e in events if e.name == "attempt_timeout"] == [5, 5, 7]


def test_a_timeout_is_told_once():
    """D-18: a later failure of another kind is not taken for a timeout."""
    calls = itertools.count()

    async def work():
        if next(calls) == 0:
            await asyncio.Event().wait()
        raise ConnectionResetError

    with virtual_time(), capture_events() as events, pytest.raises(ConnectionResetError):
        asyncio.run(Guard("shop", retry=policy(2), timeout=5).acall(work))
    assert story(events) == ["attempt_timeout", "step_retry_attempt", "step_retry_exhausted"]


def test_an_empty_retry_budget_is_told():
    """D-12, D-18: which budget, and then the end."""
    guard = Guard("shop", retry=policy(5), retry_budget=RetryBudget("openai", reserve=1))
    with virtual_time(), capture_events() as events, pytest.raises(ConnectionResetError):
        guard.call(failing(*(ConnectionResetError() for _ in range(5))))
    assert story(events) == ["step_retry_attempt", "retry_budget_exhausted", "step_retry_exhausted"]
    assert (events[1].budget, events[1].attempt, events[2].reason) == ("openai", 2, "retry_budget")


def test_a_result_that_is_tried_again_is_told():
    """A retry is a retry, also one that a result has asked for (S0-34, S0-35)."""
    answers = iter(["pending", "pending", "done"])
    guard = Guard("shop", retry=policy(), retry_if=lambda answer: answer == "pending")
    with virtual_time(), capture_events() as events:
        assert guard.call(lambda: next(answers)) == "done"
    assert story(events) == ["step_retry_attempt", "step_retry_attempt", "step_success"]
    assert [event.next_delay for event in events[:2]] == [1.0, 2.0]


def test_nested_calls_tell_both_stories():
    """D-8: the inner layer owns the error; the outer one says that it did not try again."""
    inner = Guard("inner", retry=policy(2))
    work = failing(ConnectionResetError(), ConnectionResetError())
    with virtual_time(), capture_events() as events, pytest.raises(ConnectionResetError):
        Guard("outer", retry=policy(3)).call(lambda: inner.call(work))
    assert [(e.step_id, e.name, getattr(e, "reason", None)) for e in events] == [
        ("inner", "step_retry_attempt", None),
        ("inner", "step_retry_exhausted", "exhausted"),
        ("outer", "step_retry_exhausted", "nested_exhausted"),
    ]


def test_a_breaker_tells_its_moves():
    """S4-16, S0-40: opened with count and threshold, half-open, reopened with count, closed."""
    breaker = CircuitBreaker(f"observed-{next(names)}", failure_threshold=2)
    with virtual_time() as time, capture_events() as events:
        for wait in (0, 0, 60, 60):
            time.advance(wait)
            for body in [failing(ConnectionResetError())] if wait == 0 or len(events) == 1 else [failing(), failing()]:
                try:
                    breaker.call(body)
                except ConnectionResetError:
                    continue
    assert [(e.name, e.failure_count) for e in events] == [
        ("circuit_breaker_open", 2),
        ("circuit_breaker_half_open", 2),
        ("circuit_breaker_reopened", 3),
        ("circuit_breaker_half_open", 3),
        ("circuit_breaker_closed", 0),
    ]
    assert events[0].threshold == 2


def test_the_function_names_the_step_if_the_guard_has_no_name():
    """S4-07: who failed can be read from the event."""

    @outlast.retry
    def fetch_orders():
        raise ValueError("bad")

    with capture_events() as events, pytest.raises(ValueError, match="bad"):
        fetch_orders()
    assert events[0].step_id.endswith("fetch_orders")


def test_errors_are_short_and_on_one_line():
    """C-23, S0-41: at most 280 characters without line breaks."""
    with capture_events() as events, pytest.raises(ValueError, match="first"):
        Guard("shop").call(failing(ValueError("first\n\n\tsecond " + "x" * 1000)))
    error = events[0].error
    assert error.startswith("first second x")
    assert len(error) == 280
    assert "\n" not in events[0].sentence()


def test_an_exception_without_readable_text_is_still_told():
    """semantics 10: somebody else's __str__ does not break the call."""

    class MuteError(ConnectionError):
        def __str__(self):
            raise RuntimeError("no text")

    with virtual_time(), capture_events() as events, pytest.raises(MuteError):
        Guard("shop", retry=policy(2)).call(failing(MuteError(), MuteError()))
    assert story(events) == ["step_retry_attempt", "step_retry_exhausted"]
    assert "MuteError" in events[0].error


def test_sequence_numbers_grow_in_every_thread():
    """C-23: seq orders the events of a process; none is given twice."""
    barrier = threading.Barrier(4)

    def work():
        barrier.wait(20)
        for _ in range(50):
            with pytest.raises(ValueError, match="bad"):
                Guard("shop").call(failing(ValueError("bad")))

    seen: dict[int, list[int]] = {}

    def hook(event):
        seen.setdefault(threading.get_ident(), []).append(event.seq)

    forget = subscribe(hook)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    forget()
    numbers = [number for thread in seen.values() for number in thread]
    assert len(numbers) == len(set(numbers)) == 200
    assert all(thread == sorted(thread) for thread in seen.values())


# --- hooks ---


def test_a_hook_hears_every_event_until_it_is_forgotten():
    """Subscribe hands out how to end it; ending it twice is no mistake (S3-05)."""
    heard: list[str] = []
    forget = subscribe(lambda event: heard.append(event.name))
    with pytest.raises(ValueError, match="bad"):
        outlast.retry(failing(ValueError("bad")))()
    forget()
    forget()
    with pytest.raises(ValueError, match="bad"):
        outlast.retry(failing(ValueError("bad")))()
    assert heard == ["step_error_permanent"]


def test_each_subscription_ends_by_itself():
    """Two parts of a program may give the same hook; one that leaves does not silence the other (S3-05)."""
    heard: list[str] = []

    def hook(event):
        heard.append(event.name)

    forget_one, forget_other = subscribe(hook), subscribe(hook)
    forget_one()
    with pytest.raises(ValueError, match="bad"):
        Guard("shop").call(failing(ValueError("bad")))
    forget_other()
    assert heard == ["step_error_permanent"]


def test_hooks_hear_in_the_order_in_which_they_came():
    """And each hears the same object (S3-05)."""
    heard: list[tuple[str, object]] = []
    forget = [subscribe(lambda event, who=who: heard.append((who, event))) for who in ("first", "second")]
    with pytest.raises(ValueError, match="bad"):
        Guard("shop").call(failing(ValueError("bad")))
    for end in forget:
        end()
    assert [who for who, _ in heard] == ["first", "second"]
    assert heard[0][1] is heard[1][1]


def test_subscribing_in_many_threads_loses_nobody():
    """Every hook given at the same moment is heard (S3-05)."""
    heard: list[int] = []
    barrier, forget = threading.Barrier(8), []

    def join():
        barrier.wait(20)
        forget.extend(subscribe(lambda _event, number=number: heard.append(number)) for number in range(50))

    threads = [threading.Thread(target=join) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    with pytest.raises(ValueError, match="bad"):
        Guard("shop").call(failing(ValueError("bad")))
    for end in forget:
        end()
    assert len(heard) == 400


@every_door
def test_a_hook_that_fails_breaks_nothing(kind, records):
    """semantics 10: the call goes on, the other hooks hear, and the failure is reported once, without its message."""

    def broken_hook(event):
        raise RuntimeError("hunter2-in-a-hook")

    heard: list[str] = []
    forget = [subscribe(broken_hook), subscribe(lambda event: heard.append(event.name))]
    try:
        with virtual_time():
            work = failing(ConnectionResetError(), ConnectionResetError())
            assert drive(Guard("shop", retry=policy()), work, kind) == "fine"
    finally:
        for end in forget:
            end()
    assert heard == ["step_retry_attempt", "hook_failed"] * 2 + ["step_success", "hook_failed"]
    (line,) = [record.getMessage() for record in records if "broken_hook" in record.getMessage()]
    assert "RuntimeError" in line
    assert "hunter2" not in line


def test_every_hook_that_fails_is_reported(records):
    """semantics 10: a hook that came after another was forgotten is not mistaken for it."""
    for _ in range(20):

        def hook(event):
            raise RuntimeError

        forget = subscribe(hook)
        with pytest.raises(ValueError, match="bad"):
            Guard("shop").call(failing(ValueError("bad")))
        forget()
        del hook, forget
    assert len([record for record in records if "RuntimeError" in record.getMessage()]) == 20


def test_a_capture_hears_its_own_context_only():
    """semantics 76: what another thread does at the same time is not in it."""
    inside, done = threading.Event(), threading.Event()

    def stranger():
        assert inside.wait(20)
        with pytest.raises(ValueError, match="bad"):
            Guard("stranger").call(failing(ValueError("bad")))
        done.set()

    thread = threading.Thread(target=stranger)
    thread.start()
    with capture_events() as events:
        inside.set()
        assert done.wait(20)
        with pytest.raises(ValueError, match="bad"):
            Guard("own").call(failing(ValueError("bad")))
    thread.join(20)
    assert [event.step_id for event in events] == ["own"]


# --- the standard log ---


def test_every_event_is_a_record_with_its_fields(records):
    """C-23, S0-34, S1-19: logger "outlast", a level, a sentence, and every field as an attribute."""
    breaker = CircuitBreaker(f"logged-{next(names)}", failure_threshold=1)
    work = failing(ConnectionResetError("reset"), TimeoutError("slow"))
    with virtual_time(), capture_events() as events:
        assert Guard("shop", retry=policy()).call(work) == "fine"
        with pytest.raises(ValueError, match="bad"):
            Guard("shop", retry=policy()).call(failing(ValueError("bad")))
        with pytest.raises(ConnectionResetError):
            breaker.call(failing(ConnectionResetError()))
    assert [(record.event, record.levelname) for record in records] == [
        ("step_retry_attempt", "WARNING"),
        ("step_retry_attempt", "WARNING"),
        ("step_success", "INFO"),
        ("step_error_permanent", "DEBUG"),
        ("circuit_breaker_open", "WARNING"),
    ]
    for event, record in zip(events, records, strict=True):
        assert record.name == "outlast"
        assert record.getMessage() == event.sentence()
        assert {key: record.__dict__[key] for key in event.as_dict()} == event.as_dict()


def test_a_record_can_be_formatted_by_anybody(records):
    """C-23: no field hides one of logging's own, and the text has no place-holders left to fill."""
    with pytest.raises(ValueError, match="100"):
        Guard("shop").call(failing(ValueError("100 %s %(x)s {}")))
    formatter = logging.Formatter("%(name)s %(levelname)s %(event)s %(attempt)d %(message)s")
    line = formatter.format(records[0])
    assert line.startswith("outlast DEBUG step_error_permanent 1 shop: attempt 1 of 3 failed with ValueError")
    assert "100 %s %(x)s {}" in line


def test_levels_of_the_logger_are_obeyed(records):
    """C-23: an application that wants errors only gets errors only."""
    logging.getLogger("outlast").setLevel(logging.ERROR)
    with virtual_time(), pytest.raises(ConnectionResetError):
        Guard("shop", retry=policy(2)).call(failing(ConnectionResetError(), ConnectionResetError()))
    assert [record.event for record in records] == ["step_retry_exhausted"]


def test_nobody_listens_and_nothing_is_made(monkeypatch):
    """C-23: with the NullHandler alone there is no record and no event."""
    logger = logging.getLogger("outlast")
    monkeypatch.setattr(logger, "propagate", False)
    made = []
    factory = logging.getLogRecordFactory()
    logging.setLogRecordFactory(lambda *args, **kwargs: made.append(args) or factory(*args, **kwargs))
    before = told.StepRetryExhausted(**FAILURE, reason="exhausted").seq
    try:
        assert not listening()
        with pytest.raises(ConnectionResetError):
            Guard("shop", retry=RetryPolicy(initial_delay=0)).call(failing(*(ConnectionResetError() for _ in range(3))))
    finally:
        logging.setLogRecordFactory(factory)
    assert made == []
    assert told.StepRetryExhausted(**FAILURE, reason="exhausted").seq == before + 1


def test_a_silent_program_stays_silent():
    """C-23: without a handler nothing is written anywhere, and logging is not even imported."""
    script = """
import sys
import outlast
@outlast.retry(initial_delay=0)
def work(): raise ConnectionResetError
try: work()
except ConnectionResetError: pass
assert "logging" not in sys.modules
import logging
try: work()
except ConnectionResetError: pass
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_program_that_configures_logging_hears_it():
    """C-23: one line for each event."""
    script = """
import logging
import outlast
logging.basicConfig(format="%(levelname)s %(event)s")
@outlast.retry(initial_delay=0)
def work(): raise ConnectionResetError
try: work()
except ConnectionResetError: pass
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines() == [
        "WARNING step_retry_attempt",
        "WARNING step_retry_attempt",
        "ERROR step_retry_exhausted",
    ]


@every_door
def test_no_argument_of_a_call_is_told(kind, records):
    """What a function was called with is its own affair (S0-41)."""
    guard = Guard("shop", retry=policy())

    def work(*args, **kwargs):
        raise ConnectionResetError

    bound = {"args": ("blue-whale-7",), "kwargs": {"customer": "blue-whale-8"}}

    async def awork(*args, **kwargs):
        raise ConnectionResetError

    with virtual_time(), capture_events() as events, pytest.raises(ConnectionResetError):
        if kind == "async":
            asyncio.run(guard.acall(awork, *bound["args"], **bound["kwargs"]))
        elif kind == "decorated":
            guard(work)(*bound["args"], **bound["kwargs"])
        elif kind == "sync":
            guard.call(work, *bound["args"], **bound["kwargs"])
        else:
            drive(guard, lambda: work(*bound["args"], **bound["kwargs"]), kind)
    assert len(events) == 3
    everything = [repr(event) + event.sentence() + json.dumps(event.as_dict()) for event in events]
    everything += [repr(vars(record)) + record.getMessage() for record in records]
    assert [text for text in everything if "blue-whale" in text] == []


def test_sentences_say_a_word_once(caplog):
    """One failure is one, a sentence ends once, and a run that was interrupted is not so twice."""
    breaker = CircuitBreaker("one", failure_threshold=1)

    def reset():
        raise ConnectionResetError("reset")

    with capture_events() as events, pytest.raises(ConnectionResetError):
        Guard("g", breaker=breaker, retry=None).call(reset)
    assert [event.reason for event in events if event.name == "circuit_breaker_open"] == ["1 failure in a row"]
    counts = dict.fromkeys(("total", "succeeded", "skipped", "dlq", "failed", "pending"), 0)
    ended = {"run_key": "k", "outcome": "interrupted", "reason": None, "pipeline": "p", **counts}
    event = told.RunFinished(status="interrupted", why="interrupted: 3 of 9 items succeeded", **ended)
    assert event.sentence().endswith(" interrupted: 3 of 9 items succeeded")
    assert event.sentence().count("interrupted") == 1
    seen = Snapshot(pipeline="p", run_key="k", status="interrupted", elapsed=1.0, why="interrupted: 3 of 9")
    assert [*lines(seen)][-1] == "p k: interrupted: 3 of 9"
    caplog.clear()
    Contact("the store").lose("its file is gone. Put it back.")
    assert "Put it back; until it can" in caplog.text


# --- counted calls ----------------------------------------------------------------------------------------------------


@contextmanager
def heard():
    """The events of this block."""
    events = []
    unsubscribe = subscribe(events.append)
    try:
        yield events
    finally:
        unsubscribe()


def calls_made(work):
    """The Python functions that are called while this is."""
    names = []
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        work()
    finally:
        sys.setprofile(None)
    return names


def test_calls_are_counted_while_that_is_asked_for():
    """U-22: each call once with its outcome and attempts, of every kind; the last stop ends it, and each stop counts once."""
    tries = []

    @outlast.retry(initial_delay=0.001)
    def second():
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionResetError("hung up")

    @outlast.retry
    async def waits():
        return 1

    @outlast.retry
    def rows():
        yield from (1, 2)

    shop = outlast.Guard(
        "shop", breaker=outlast.CircuitBreaker("counted"), limit=outlast.Limit("counted", concurrency=1)
    )
    picky = outlast.Guard(
        "picky", retry=outlast.RetryPolicy(max_attempts=2, initial_delay=0.001), retry_if=lambda _: True
    )
    first, other = outlast.observe.count_calls(), outlast.observe.count_calls()
    with heard() as events:
        first()
        first()
        second()
        asyncio.run(waits())
        assert list(rows()) == [1, 2]
        shop(lambda: 3)()
        shop.outcome(int, "two")
        picky.call(lambda: 1)
        for attempt in outlast.Guard("loop").attempts():
            with attempt:
                pass
        other()
        asyncio.run(waits())
        shop.call(lambda: 4)
    counted = [event for event in events if event.name == "call_finished"]
    local = "test_calls_are_counted_while_that_is_asked_for.<locals>."
    assert [(event.step_id.removeprefix(local), event.outcome, event.attempts) for event in counted] == [
        ("second", "succeeded", 2),
        ("waits", "succeeded", 1),
        ("rows", "succeeded", 1),
        ("shop", "succeeded", 1),
        ("shop", "failed", 1),
        ("picky", "unwanted", 2),
        ("loop", "succeeded", 1),
    ]
    assert all(event.duration >= 0 for event in counted)
    assert counted[0].duration > 0
    assert outlast.observe.counting == 0


def test_a_rejected_call_and_one_that_is_cancelled():
    """U-22: a breaker that turns a call away is its failure, with no attempt; a cancellation is neither."""
    breaker = outlast.CircuitBreaker("rejects")
    breaker.isolate("maintenance")
    stop = outlast.observe.count_calls()

    def interrupted():
        raise KeyboardInterrupt

    with heard() as events:
        with pytest.raises(outlast.CircuitBreakerOpenError):
            outlast.Guard("shop", breaker=breaker).call(int)
        with pytest.raises(KeyboardInterrupt):
            outlast.Guard("shop").call(interrupted)
    stop()
    assert [(event.outcome, event.attempts) for event in events if event.name == "call_finished"] == [("failed", 0)]


def test_what_is_not_counted_takes_the_fast_path():
    """D-4, U-22: off, and off again, a call that succeeds at once calls nothing but the function."""

    @outlast.retry
    def fetch():
        return 3

    assert calls_made(fetch) == ["wrapper", "fetch"]
    stop = outlast.observe.count_calls()
    assert len(calls_made(fetch)) > 2
    stop()
    assert calls_made(fetch) == ["wrapper", "fetch"]
