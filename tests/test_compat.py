"""The older names: each has the meaning it had where it came from."""

import asyncio
import logging
import pickle
import subprocess
import sys
from unittest.mock import Mock

import psycopg2
import pytest
import requests

import outlast
from outlast import compat
from outlast.testing import capture_events, virtual_time
from tables import table


class Flaky:
    """Fails with these errors in order, then returns "success"."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "success"

    async def later(self, *args, **kwargs):
        return self()


class TooManyRequests(Exception):
    status_code = 429


# --- tiers (S2) ---


@table(
    ("error", "status", "expected"),
    [
        (psycopg2.OperationalError("pool exhausted"), None, (True, "database")),
        (psycopg2.InterfaceError("closed"), None, (True, "database")),
        (requests.Timeout(), None, (True, "network")),
        (requests.ConnectionError(), None, (True, "network")),
        (requests.exceptions.ReadTimeout(), None, (True, "network")),
        (ConnectionResetError(), None, (True, "network")),
        (BrokenPipeError(), None, (True, "network")),
        (TimeoutError(), None, (True, "network")),
        (TooManyRequests(), None, (True, "http_429_503")),
        (Exception("http"), 429, (True, "http_429_503")),
        (Exception("http"), 503, (True, "http_429_503")),
        (Exception("http"), 500, (True, "http_500_502_504")),
        (Exception("http"), 502, (True, "http_500_502_504")),
        (Exception("http"), 504, (True, "http_500_502_504")),
        (ConnectionResetError(), 404, (True, "network")),
        (ConnectionResetError(), 503, (True, "network")),
        (psycopg2.OperationalError("gone"), 500, (True, "database")),
        (ValueError(), None, (False, "data")),
        (KeyError(), None, (False, "data")),
        (TypeError(), None, (False, "data")),
        (psycopg2.IntegrityError(), None, (False, "data")),
        (Exception("http"), 404, (False, "unknown")),
        (Exception("http"), 501, (False, "unknown")),
        (ValueError(), 404, (False, "data")),
        (KeyError(), 501, (False, "data")),
        (TypeError(), 200, (False, "data")),
        (ValueError(), 503, (True, "http_429_503")),
        (Exception("http"), 0, (False, "unknown")),
        (ValueError(), -1, (False, "data")),
        (RuntimeError("who knows"), None, (False, "unknown")),
    ],
)
def test_an_error_is_retryable_and_has_a_tier(error, status, expected):
    """S2-01, S2-02, S2-03, S2-04, S2-05, S2-06, S2-07, S2-08, S2-09: by full name, subclasses and aliases included; a status too."""
    assert compat.is_retryable_error(error, status) == expected


def test_a_tier_that_is_not_listed_has_no_retries():
    """S2-10, S2-12: a partial table is legal."""
    assert compat.get_max_retries_for_tier("database", {"database": 5}) == 5
    assert compat.get_max_retries_for_tier("network", {"database": 5}) == 0


@table(
    ("errors", "limits", "base", "calls", "seconds"),
    [
        ([psycopg2.OperationalError("pool exhausted")] * 3, {"database": 5}, 1.0, 4, 7.0),
        ([requests.Timeout()] * 2, {"network": 3}, 1.0, 3, 3.0),
        ([TooManyRequests()] * 3, {"http_429_503": 3}, 2.0, 4, 14.0),
        ([psycopg2.OperationalError("pool exhausted")] * 5, {"database": 5}, 1.0, 6, 31.0),
    ],
)
def test_the_worked_examples(errors, limits, base, calls, seconds):
    """S2-13, S2-14, S2-16: calls and seconds as promised, to the millisecond."""
    work = Flaky(*errors)
    with virtual_time() as time:
        assert compat.execute_with_tiered_retry(work, limits, backoff_base=base) == "success"
    assert (work.calls, round(time.now, 3)) == (calls, seconds)


def test_a_data_error_costs_one_execution():
    """S2-05, S2-16, S2-28: no wait, and its own exception."""
    work = Flaky(ValueError("Field 'scale': Must be non-negative"))
    with virtual_time() as time, pytest.raises(ValueError, match="non-negative"):
        compat.execute_with_tiered_retry(work, {"database": 5, "network": 3})
    assert (work.calls, time.sleeps) == (1, [])


def test_a_mock_of_a_database_is_tried_five_times_more():
    """S2-13, S2-16: what a unit test hands in is called, as often as the tier of its errors allows."""
    work = Mock(side_effect=[*(psycopg2.OperationalError("pool exhausted") for _ in range(5)), "success"])
    with virtual_time() as time:
        assert compat.execute_with_tiered_retry(work, retry_limits={"database": 5}) == "success"
    assert (work.call_count, time.sleeps) == (6, [1, 2, 4, 8, 16])


def test_a_mock_with_wrong_data_is_called_once():
    """S2-16: data errors cost one call."""
    work = Mock(side_effect=ValueError("Invalid data"))
    with pytest.raises(ValueError, match="Invalid data"):
        compat.execute_with_tiered_retry(work, retry_limits={"database": 5})
    assert work.call_count == 1


def test_the_older_name_tells_at_the_levels_it_had(caplog):
    """S2-17, S2-18, S2-19, D-27: what is permanent and what ran out are errors, a retry is a warning, each with its tier."""
    with virtual_time(), caplog.at_level(logging.DEBUG, "outlast"):
        with pytest.raises(ValueError, match="bad"):
            compat.execute_with_tiered_retry(Flaky(ValueError("bad")), {"database": 5})
        with pytest.raises(requests.Timeout):
            compat.execute_with_tiered_retry(Flaky(*[requests.Timeout("slow")] * 2), {"network": 1})
    assert [(line.levelname, line.event, line.tier, line.attempt, line.max_retries) for line in caplog.records] == [
        ("ERROR", "step_error_permanent", "data", 1, 0),
        ("WARNING", "step_retry_attempt", "network", 1, 1),
        ("ERROR", "step_retry_exhausted", "network", 2, 1),
    ]


def test_one_counter_for_all_tiers():
    """S2-15, C-02: three database errors and then a network error with limits of 5 and 3 is the end."""
    last = requests.Timeout()
    work = Flaky(*[psycopg2.OperationalError()] * 3, last)
    with virtual_time(), pytest.raises(requests.Timeout) as caught:
        compat.execute_with_tiered_retry(work, {"database": 5, "network": 3})
    assert (work.calls, caught.value, outlast.stop_reason(last)) == (4, last, "tier_exhausted")


# --- stage policies (S3) ---


def test_stage_policies_in_their_own_words():
    """S3-09, S3-12, S3-13: the defaults, and each kind of backoff."""
    policy = compat.RetryPolicy()
    assert policy == outlast.RetryPolicy(max_delay=60, cap="before_jitter", on_errors=("all",), max_attempts=3)
    assert [d.nominal for d in compat.RetryPolicy(5, "fixed", 700).schedule()] == [0.7] * 4
    assert [d.max for d in compat.RetryPolicy(5, "linear", 20_000, 50_000).schedule()] == [20, 40, 50, 50]


def test_delays_in_whole_milliseconds():
    """S3-14, S3-15, S3-16: capped first, then varied; attempt n is the one that failed."""
    policy = compat.RetryPolicy()
    assert [compat.compute_delay(n, policy, roll=0.0) for n in (1, 2, 3, 10)] == [750, 1500, 3000, 45_000]
    assert [compat.compute_delay(n, policy, roll=1.0) for n in (1, 2, 3, 10)] == [1250, 2500, 5000, 75_000]
    assert compat.compute_delay(7, compat.RetryPolicy(9, "fixed", 1234.4), roll=0.9) == 1234


def test_the_mean_of_a_hundred_delays():
    """S3-17: for attempt 2 it lies within 1800 and 2200."""
    with virtual_time(seed=7):
        delays = [compat.compute_delay(2, compat.RetryPolicy()) for _ in range(100)]
    assert 1800 <= sum(delays) / 100 <= 2200


@table(
    ("listed", "error", "expected"),
    [
        ("all", ValueError(), True),
        ("none", TimeoutError(), False),
        ([429, 503], TooManyRequests(), True),
        ([500], TooManyRequests(), False),
        ([ConnectionError], ConnectionResetError(), True),
        (["timeout"], TimeoutError(), True),
        (["econnrefused"], ConnectionRefusedError(), True),
        (["timeout"], ConnectionResetError(), False),
        # A status against names, which it never is one of.
        (["timeout", "econnrefused"], 429, False),
        (["timeout", "econnrefused"], 404, False),
        (["econnrefused", 429], 429, True),
        (["econnrefused", 429], 430, False),
        ([ConnectionError, "requests.Timeout", 503], 503, True),
        ([ConnectionError, "requests.Timeout", 503], 500, False),
        ("all", 404, True),
        ("none", 503, False),
        ("all", 42, False),
        ("all", "timeout", False),
    ],
)
def test_what_is_retriable(listed, error, expected):
    """S3-18: all, none, or a list of statuses, classes and symbols."""
    assert compat.retriable(error, compat.RetryPolicy(retriable_errors=listed)) is expected


# --- the call and its breaker (S4) ---


def test_retry_with_backoff_waits_as_promised():
    """S4-02, S4-03, S4-04: 1 to 2 s, then 2 to 3 s, and three calls in all."""
    work = Flaky(TimeoutError(), ConnectionResetError())

    async def main():
        with virtual_time(seed=3) as time:
            result = await compat.retry_with_backoff(work.later, "argument", key="word")
        return result, time.sleeps

    result, (first, second) = asyncio.run(main())
    assert (result, work.calls) == ("success", 3)
    assert 1 <= first <= 2
    assert 2 <= second <= 3


def test_retry_with_backoff_without_jitter_and_with_a_ceiling():
    """S4-02, S4-04: base, doubled, capped."""
    work = Flaky(*[outlast.TemporaryFailure("busy")] * 4)

    async def main():
        with virtual_time() as time:
            await compat.retry_with_backoff(work.later, max_attempts=5, base_delay=10, max_delay=30, jitter=False)
        return time.sleeps

    assert asyncio.run(main()) == [10, 20, 30, 30]


def test_retry_with_backoff_lets_other_errors_through():
    """S4-05, S4-06: by class; what is not listed goes up at once, the last error when no attempt is left."""

    async def attempt(work, **options):
        with virtual_time():
            return await compat.retry_with_backoff(work.later, **options)

    other = Flaky(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        asyncio.run(attempt(other))
    assert other.calls == 1
    errors = [ConnectionResetError(n) for n in range(3)]
    with pytest.raises(ConnectionResetError) as caught:
        asyncio.run(attempt(Flaky(*errors)))
    assert caught.value is errors[-1]
    listed = Flaky(KeyError())
    assert asyncio.run(attempt(listed, retryable_exceptions=(KeyError,))) == "success"


def test_the_story_of_the_breaker():
    """S4-09, S4-10, S4-11, S4-12, S4-13, S4-14, S4-15, S4-16: five failures, sixty seconds, two successes."""
    breaker = compat.CircuitBreaker(5, 60, 2)

    async def good():
        return "good"

    async def bad():
        raise ValueError("every exception counts")

    async def main():
        with virtual_time() as time, capture_events() as events:
            for _ in range(4):
                with pytest.raises(ValueError, match="counts"):
                    await breaker.call(bad)
            assert await breaker.call(good) == "good"
            assert (breaker.state, breaker.failure_count) == ("closed", 0)
            for _ in range(5):
                with pytest.raises(ValueError, match="counts"):
                    await breaker.call(bad)
            opened = breaker.opened_at
            assert (breaker.state, breaker.failure_count, breaker.last_failure_time) == ("open", 5, opened)
            with pytest.raises(compat.CircuitBreakerOpenError, match=opened.isoformat().replace("+", r"\+")):
                await breaker.call(good)
            time.advance(60)
            with pytest.raises(ValueError, match="counts"):
                await breaker.call(bad)
            assert (breaker.state, breaker.success_count) == ("open", 0)
            time.advance(60)
            assert await breaker.call(good) == "good"
            assert (breaker.state, breaker.success_count) == ("half_open", 1)
            assert await breaker.call(good) == "good"
            assert (breaker.state, breaker.failure_count, breaker.opened_at) == ("closed", 0, None)
        return [event.name for event in events]

    assert asyncio.run(main()) == [
        "circuit_breaker_open",
        "call_rejected",
        "circuit_breaker_half_open",
        "circuit_breaker_reopened",
        "circuit_breaker_half_open",
        "circuit_breaker_closed",
    ]


def test_two_breakers_are_two_circuits():
    """S4-16, S4-17: events and metrics tell them apart, and a copy of one never becomes the other."""
    first, second = compat.CircuitBreaker(1), compat.CircuitBreaker(1, name="git")

    async def bad():
        raise ValueError("boom")

    with capture_events() as events:
        for breaker in (first, second):
            with pytest.raises(ValueError, match="boom"):
                asyncio.run(breaker.call(bad))
    assert [(event.name, event.breaker) for event in events] == [
        ("circuit_breaker_open", first.name),
        ("circuit_breaker_open", "git"),
    ]
    third = compat.CircuitBreaker(1)
    assert [pickle.loads(pickle.dumps(breaker)).state for breaker in (first, third)] == ["open", "closed"]
    assert {compat.CircuitState.OPEN, compat.CircuitState.CLOSED, compat.CircuitState.HALF_OPEN} == {
        "open",
        "closed",
        "half_open",
    }


def test_a_pipelines_dead_letters_by_their_older_names(tmp_path):
    """S3-24, S3-26, S3-28: a sample is tried, put aside with its reason, found and run again."""
    app = outlast.App("forge", store=f"sqlite:///{tmp_path}/store.db")
    down = True

    @outlast.stage(retry=compat.RetryPolicy(2, "fixed", 700))
    def llm_call(sample: dict) -> str:
        if down:
            raise TimeoutError("no answer")
        return sample["text"].upper()

    @outlast.stage
    async def shorten(text: str) -> str:
        return text[:1]

    pipeline = outlast.Pipeline("forge", llm_call, shorten, app=app)
    with virtual_time() as time, pytest.raises(TimeoutError) as caught:
        compat.apply_with_retry({"text": "hello"}, llm_call)
    assert time.sleeps == [0.7]
    assert asyncio.run(compat.apply_with_retry("hello", shorten)) == "h"
    with capture_events() as events:
        letter_id = compat.move_to_dlq(pipeline, {"text": "hello"}, "llm_call", caught.value, sample_id="s-1")
    assert [(event.name, event.pipeline, event.item_id, event.step_id, event.error) for event in events] == [
        ("dead_letter_enqueue", "forge", "s-1", "llm_call", "no answer")
    ]
    (letter,) = compat.get_dlq_samples(pipeline)
    assert (letter.id, letter.stage, letter.item_key, letter.payload) == (
        letter_id,
        "llm_call",
        "s-1",
        {"text": "hello"},
    )
    down = False
    result = compat.reprocess_dlq(pipeline, stage="llm_call")
    assert (result.status, list(result.outputs()), compat.get_dlq_samples(pipeline)) == ("completed", ["H"], [])
    with pytest.raises(outlast.ConfigurationError, match=r"expected stage to be one of llm_call, shorten, got: 'llm'"):
        compat.move_to_dlq(pipeline, {}, "llm", ValueError())


def test_a_pipelines_dead_letters_are_listed_by_their_last_change(tmp_path):
    """S3-26: the newest first; one that was replayed and failed again is newer than those after it."""
    app = outlast.App("forge", store=f"sqlite:///{tmp_path}/store.db")

    @outlast.stage(retry=None)
    def llm_call(sample: str) -> str:
        raise ValueError(f"no answer to {sample}")

    pipeline = outlast.Pipeline("forge", llm_call, app=app)
    with virtual_time() as time:
        for name in ("s-1", "s-2", "s-3", "s-4"):
            compat.move_to_dlq(pipeline, name, "llm_call", ValueError(f"no answer to {name}"), sample_id=name)
            time.advance(60)
        assert [one.item_key for one in compat.get_dlq_samples(pipeline)] == ["s-4", "s-3", "s-2", "s-1"]
        pipeline.reprocess(text="no answer to s-2", check=False)
        assert [one.item_key for one in compat.get_dlq_samples(pipeline)] == ["s-2", "s-4", "s-3", "s-1"]
    app.store.close()


def test_older_event_names_are_known():
    """S4-07, C-23: filters accept them."""
    assert compat.canonical("retry_attempt") == compat.canonical("step.error.retrying") == "step_retry_attempt"
    assert compat.canonical("circuit_breaker_opened") == "circuit_breaker_open"


# --- what the documents ask of any protected call ---


@table(
    ("error", "category"),
    [
        (TimeoutError(), "transient"),
        (PermissionError(), "permanent"),
        (ModuleNotFoundError(), "permanent"),
        (FileNotFoundError(), "permanent"),
        (RuntimeError(), "unclear"),
    ],
)
def test_the_kinds_of_errors_are_told_apart(error, category):
    """S4-01: transient; permanent (no such thing, no permission, a missing dependency); and what nobody can know."""
    assert outlast.classify(error).category == category


def test_each_mode_of_failure_has_its_answer(tmp_path):
    """S4-01: transient is retried, permanent is not, 3 of 10 that fail leave 7, a cascade is cut off, a crash loses nothing."""
    transient, permanent = Flaky(TimeoutError()), Flaky(PermissionError("no such repository"))
    with virtual_time():
        assert (outlast.retry(transient)(), transient.calls) == ("success", 2)
        with pytest.raises(PermissionError):
            outlast.retry(permanent)()
    assert permanent.calls == 1

    def third(number):
        if number % 3 == 2:
            raise ValueError(f"no repository {number}")
        return number

    partial = outlast.map(third, range(10))
    assert (partial.status, len(partial.succeeded), len(partial.failed)) == ("partial", 7, 3)

    down = Flaky(*[ConnectionRefusedError("down")] * 100)
    guard = outlast.Guard(retry=None, breaker=outlast.CircuitBreaker("cascade", failure_threshold=5))
    ends = [type(guard.outcome(down).error).__name__ for _ in range(20)]
    assert (down.calls, set(ends[5:])) == (5, {"CircuitBreakerOpenError"})

    program = """
import os, sys, outlast

@outlast.stage(concurrency=1)
async def work(number):
    if number == 6 and sys.argv[1] == "dies":
        os._exit(9)
    return number

result = outlast.Pipeline("crash", work).run(range(10), run_key="k", sink="out.jsonl")
print(result.counts.succeeded)
"""
    for way, code, printed in (("dies", 9, ""), ("lives", 0, "10")):
        ran = subprocess.run(
            [sys.executable, "-c", program, way], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stdout.strip()) == (code, printed), ran.stderr
    assert sorted(map(int, (tmp_path / "out.jsonl").read_text().split())) == list(range(10))


def test_each_function_has_a_policy_of_its_own():
    """A policy belongs to what it protects; two functions in one program need not share one (S0-01)."""
    slow, fast = Flaky(*[TimeoutError()] * 3), Flaky(*[TimeoutError()] * 3)
    with virtual_time() as time:
        assert outlast.retry(max_attempts=4, initial_delay=10, jitter=0)(slow)() == "success"
        with pytest.raises(TimeoutError):
            outlast.retry(max_attempts=2, initial_delay=1, jitter=0)(fast)()
    assert (slow.calls, fast.calls, time.sleeps) == (4, 2, [10, 20, 30, 1])


def test_defaults_cannot_make_a_storm():
    """S0-44, S4-28: attempts are few, waits grow, differ and end; nested retries do not multiply; a breaker opens after five failures."""
    policy = outlast.RetryPolicy()
    assert policy.max_attempts == 3
    assert [(delay.nominal, delay.min, delay.max) for delay in policy.schedule()] == [(1, 0.75, 1.25), (2, 1.5, 2.5)]
    waits = [delay.nominal for delay in policy.replace(max_attempts=8).schedule()]
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    assert policy.replace(max_attempts=100).schedule()[-1].max <= 30
    work = Flaky(*[TimeoutError()] * 30)
    with virtual_time(), pytest.raises(TimeoutError):
        outlast.retry(outlast.retry(outlast.retry(work)))()
    assert work.calls == 3
    breaker, calls = outlast.CircuitBreaker("shop"), Flaky(*[TimeoutError()] * 100)
    for _ in range(20):
        with pytest.raises((TimeoutError, outlast.CircuitBreakerOpenError)):
            breaker.call(calls)
    assert (breaker.state, calls.calls) == ("open", 5)


def test_an_idempotency_key_says_nothing_of_the_call():
    """It is random, so nothing that was passed can be in it; and it is not logged (S0-42)."""
    keys = []

    def pay(card):
        keys.append(outlast.current().idempotency_key)
        if len(keys) < 3:
            raise ConnectionResetError

    logger = logging.getLogger("outlast")
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    try:
        with virtual_time():
            outlast.Guard("pay", total_timeout=60).call(pay, "4111-1111-1111-1111")
    finally:
        logger.removeHandler(handler)
    assert len(set(keys)) == 1
    assert len(keys[0]) == 32
    assert "4111" not in keys[0]
    assert not any(keys[0] in line or "4111" in line for line in lines)
