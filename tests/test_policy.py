"""A policy decides: what is retried, how often, after which wait. Values in, values out; nothing here waits."""

from __future__ import annotations

import copy
import errno
import logging
import math
import pickle
import random
import statistics
from datetime import timedelta
from itertools import pairwise

import pytest

from outlast import CircuitBreakerOpenError, PermanentFailure, RetryPolicy, TemporaryFailure, Verdict, classify
from outlast.kernel.clock import Dice, roll_for
from tables import table


def library(module: str, name: str, *bases: type[Exception]) -> type[Exception]:
    """An exception type that claims to come from a library which is not installed."""
    return type(name, bases or (Exception,), {"__module__": module})


class HttpError(Exception):
    """As clients raise it: a status, perhaps with a Retry-After."""

    def __init__(self, status: int, retry_after: str | None = None) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status
        self.headers = {} if retry_after is None else {"Retry-After": retry_after}


DatabaseDown = library("psycopg2", "OperationalError")
DuplicateKey = library("psycopg2", "IntegrityError")
RequestTimeout = library("requests.exceptions", "Timeout")


class VendorError(Exception):
    """No rule knows it."""


def bands(policy: RetryPolicy) -> list[tuple[float, float, float]]:
    return [(delay.nominal, delay.min, delay.max) for delay in policy.schedule()]


def nominals(policy: RetryPolicy) -> list[float]:
    return [delay.nominal for delay in policy.schedule()]


def reason(policy: RetryPolicy, error: Exception, attempt: int = 1) -> str | None:
    return policy.decide(error, attempt=attempt).reason


def drawn(policy: RetryPolicy, attempt: int, rolls: list[float], **more: float) -> list[float]:
    error = ConnectionResetError()
    return [policy.decide(error, attempt=attempt, roll=roll, **more).delay for roll in rolls]


# --- how often --------------------------------------------------------------------------------------------------------


def test_defaults_are_three_attempts_doubling_from_one_to_thirty_seconds_with_a_quarter_of_jitter():
    """D-4: what a bare @retry promises."""
    policy = RetryPolicy()
    assert (policy.max_attempts, policy.backoff, policy.initial_delay, policy.multiplier) == (
        3,
        "exponential",
        1.0,
        2.0,
    )
    assert (policy.max_delay, policy.jitter, policy.cap, policy.max_retry_after) == (30.0, 0.25, "after_jitter", 120.0)
    assert (policy.on_errors, policy.skip_on_errors, policy.retry_limits) == (("transient",), (), None)
    assert bands(policy) == [(1.0, 0.75, 1.25), (2.0, 1.5, 2.5)]


@table(
    ("settings", "attempts"),
    [
        ({}, 3),
        ({"delays": [30, 120, 480]}, 4),
        ({"retry_limits": {"database": 5, "network": 3}}, 6),
        ({"retry_limits": {}}, 1),
        ({"retry_limits": {"database": 0}}, 1),
        ({"max_attempts": 2, "delays": [30, 120, 480]}, 2),
        ({"max_attempts": 9, "delays": [30]}, 9),
        ({"max_attempts": 2, "retry_limits": {"database": 5}}, 2),
    ],
)
def test_max_attempts_follows_from_delays_or_limits_unless_given(settings, attempts):
    """D-4, C-02: one more than the list of delays or than the largest limit; an explicit number wins."""
    policy = RetryPolicy(**settings)
    assert policy.max_attempts == attempts
    assert len(policy.schedule()) == attempts - 1


def test_max_attempts_counts_every_execution():
    """S0-02, S4-03, C-01: of three attempts the first two may be followed by another, the third may not."""
    decisions = [RetryPolicy(max_attempts=3).decide(TimeoutError(), attempt=n) for n in (1, 2, 3)]
    assert [(decision.retry, decision.reason) for decision in decisions] == [
        (True, None),
        (True, None),
        (False, "exhausted"),
    ]


def test_nothing_is_waited_for_after_the_last_attempt():
    """S0-11: a decision to stop has no delay."""
    assert RetryPolicy(max_attempts=2).decide(TimeoutError(), attempt=2).delay == 0.0
    assert RetryPolicy().decide(ValueError(), attempt=1).delay == 0.0


def test_one_attempt_means_no_retry():
    """S3-11, C-01: max_attempts=1 is a call without retrying."""
    policy = RetryPolicy(max_attempts=1)
    assert list(policy.schedule()) == []
    assert reason(policy, TimeoutError()) == "exhausted"


# --- how long: growth -------------------------------------------------------------------------------------------------


@table(
    ("settings", "expected"),
    [
        ({"backoff": "exponential"}, [1, 2, 4, 8]),
        ({"backoff": "exponential", "multiplier": 4, "initial_delay": 30}, [30, 120, 480, 1920]),
        ({"backoff": "exponential", "multiplier": 1}, [1, 1, 1, 1]),
        ({"backoff": "linear"}, [1, 2, 3, 4]),
        ({"backoff": "linear", "initial_delay": 0.5}, [0.5, 1, 1.5, 2]),
        ({"backoff": "fixed"}, [1, 1, 1, 1]),
        ({"backoff": "fixed", "initial_delay": 0}, [0, 0, 0, 0]),
        ({"delays": [30, 120, 480]}, [30, 120, 480, 480]),
        ({"delays": [timedelta(minutes=1)]}, [60, 60, 60, 60]),
        ({"initial_delay": timedelta(milliseconds=250)}, [0.25, 0.5, 1, 2]),
    ],
)
def test_growth(settings, expected):
    """S0-04, S0-10, C-03: doubling, adding, staying, or a schedule whose last value repeats."""
    assert nominals(RetryPolicy(max_attempts=5, max_delay=None, **settings)) == expected


def test_growth_without_a_cap_is_one_two_four_eight_sixteen():
    """S2-14: base times 2 to the power of the retry, in seconds, neither capped nor jittered."""
    policy = RetryPolicy(max_attempts=6, max_delay=None, jitter=0)
    assert bands(policy) == [(n, n, n) for n in (1.0, 2.0, 4.0, 8.0, 16.0)]
    assert nominals(policy.replace(initial_delay=2, max_attempts=4)) == [2, 4, 8]


def test_attempt_is_the_one_that_just_failed():
    """S3-16: after attempt 1 about one second, after 2 two, after 3 four."""
    policy = RetryPolicy(max_attempts=9)
    assert [policy.decide(TimeoutError(), attempt=n).delay for n in (1, 2, 3)] == [1.0, 2.0, 4.0]


def test_schedule_numbers_the_attempts_it_leads_to():
    """The delay before attempt 2 is the one after attempt 1 (S0-31)."""
    assert [delay.attempt for delay in RetryPolicy(max_attempts=4).schedule()] == [2, 3, 4]


# --- how long: jitter and cap -------------------------------------------------------------------------------------------


@table("jitter", [0.0, 0.1, 0.2, 0.25, 0.5, 1.0])
def test_jitter_is_symmetric_around_the_nominal_delay(jitter):
    """S0-06, C-04: a factor drawn from [1 - j, 1 + j]."""
    (first, *_) = RetryPolicy(jitter=jitter, max_delay=None).schedule()
    assert (first.nominal, first.min, first.max) == (1.0, 1 - jitter, 1 + jitter)


def test_a_ratio_of_ten_percent():
    """S0-06: 1000 ms ±10 %, 2000 ms ±10 %."""
    assert bands(RetryPolicy(jitter=0.1)) == [
        (1.0, pytest.approx(0.9), pytest.approx(1.1)),
        (2.0, pytest.approx(1.8), pytest.approx(2.2)),
    ]


@table(
    ("nominal", "expected"),
    [
        (10.0, (10.0, 7.5, 12.5)),  # below the cap
        (28.0, (28.0, 21.0, 30.0)),  # the band reaches over the cap
        (30.0, (30.0, 22.5, 30.0)),
        (64.0, (30.0, 22.5, 30.0)),
    ],
)
def test_cap_after_jitter_is_a_hard_ceiling(nominal, expected):
    """S0-05, S0-09, C-05, D-5: [min(n, M)(1 - j), min(n(1 + j), M)]."""
    policy = RetryPolicy(backoff="linear", initial_delay=0.5, max_attempts=200)
    assert bands(policy)[round(nominal / 0.5) - 1] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("nominal", "expected"), [(10.0, (10.0, 7.5, 12.5)), (30.0, (30.0, 22.5, 37.5)), (64.0, (30.0, 22.5, 37.5))]
)
def test_cap_before_jitter_is_a_soft_ceiling(nominal, expected):
    """S3-14, C-05, D-5: min(n, M) times [1 - j, 1 + j]; up to a quarter above the cap."""
    policy = RetryPolicy(backoff="linear", initial_delay=0.5, max_attempts=200, cap="before_jitter")
    assert bands(policy)[round(nominal / 0.5) - 1] == pytest.approx(expected)


@table("cap", ["after_jitter", "before_jitter"])
@table("jitter", [0.1, 0.25, "full", "equal", {"add": 1.0}])
def test_delays_at_the_cap_still_differ(cap, jitter):
    """D-5: clamping onto one value would send the herd back in step, so 100 draws are 100 values within the band."""
    policy = RetryPolicy(max_attempts=50, jitter=jitter, cap=cap)
    dice = random.Random(1)
    delays = drawn(policy, 40, [dice.random() for _ in range(100)])
    last = policy.schedule()[39]
    assert len(set(delays)) == 100
    assert all(last.min <= delay <= last.max for delay in delays)
    if cap == "after_jitter":
        assert max(delays) <= 30.0


@table(("roll", "delay"), [(0.0, 0.75), (0.25, 0.875), (0.5, 1.0), (0.75, 1.125), (None, 1.0), (0.999999, 1.25)])
def test_roll_picks_the_point_in_the_band(roll, delay):
    """S0-32, D-5: lo + roll times (hi - lo); without a roll the middle, so that a decision is repeatable."""
    assert RetryPolicy().decide(TimeoutError(), attempt=1, roll=roll).delay == pytest.approx(delay, abs=1e-5)


@table(
    ("attempt", "expected"),
    [(1, (1.0, 1.0, 2.0)), (2, (2.0, 2.0, 3.0)), (3, (4.0, 4.0, 5.0)), (9, (60.0, 60.0, 61.0))],
)
def test_added_jitter_comes_on_top(attempt, expected):
    """S4-04, C-04: plus 0 to 1 second after the cap: 1..2, 2..3, 4..5, ..., 60..61 s."""
    policy = RetryPolicy(max_attempts=10, max_delay=60, jitter={"add": 1.0}, cap="before_jitter")
    assert bands(policy)[attempt - 1] == expected


def test_added_jitter_stays_under_a_hard_ceiling():
    """S0-09, D-5: at the cap the band lies below it and keeps its width."""
    policy = RetryPolicy(max_attempts=10, max_delay=60, jitter={"add": 1.0})
    assert bands(policy)[0] == (1.0, 1.0, 2.0)
    assert bands(policy)[8] == (60.0, 59.0, 60.0)


@pytest.mark.parametrize(
    ("jitter", "expected"),
    [
        ("full", [(1.0, 0.0, 1.0), (2.0, 0.0, 2.0), (4.0, 0.0, 4.0), (5.0, 0.0, 5.0)]),
        ("equal", [(1.0, 0.5, 1.0), (2.0, 1.0, 2.0), (4.0, 2.0, 4.0), (5.0, 2.5, 5.0)]),
        ("decorrelated", [(1.0, 1.0, 3.0), (2.0, 1.0, 5.0), (4.0, 1.0, 5.0), (5.0, 1.0, 5.0)]),
    ],
)
def test_bands_of_the_named_jitters(jitter, expected):
    """C-04, D-5: full is [0, c], equal [c/2, c], decorrelated [base, 3 times the previous delay], all under the cap."""
    assert bands(RetryPolicy(max_attempts=5, max_delay=5, jitter=jitter)) == expected


def test_decorrelated_jitter_depends_on_the_previous_delay():
    """C-04: drawn from [base, 3 times the previous delay]."""
    policy = RetryPolicy(max_attempts=9, jitter="decorrelated", max_delay=None)
    for previous in (1.0, 2.0, 7.5):
        low, high = drawn(policy, 3, [0.0, 1.0], previous_delay=previous)
        assert (low, high) == (1.0, pytest.approx(3 * previous))


def test_decorrelated_jitter_does_not_pile_up_at_the_cap():
    """D-5: with the cap as the previous delay 100 draws are 100 values between base and cap."""
    policy = RetryPolicy(max_attempts=99, jitter="decorrelated")
    dice = random.Random(2)
    delays = drawn(policy, 50, [dice.random() for _ in range(100)], previous_delay=30.0)
    assert len(set(delays)) == 100
    assert 1.0 <= min(delays) <= max(delays) <= 30.0


@table("attempt", [1_000, 10_000, 10**6])
@table("backoff", ["exponential", "linear", "fixed"])
@table("jitter", [0.25, {"add": 1.0}, "full", "equal", "decorrelated"])
@table("cap", ["after_jitter", "before_jitter"])
@table("max_delay", [30.0, None])
def test_no_attempt_number_overflows(attempt, backoff, jitter, cap, max_delay):
    """D-5: attempt 10,000 and the millionth have a finite delay within the ceiling."""
    policy = RetryPolicy(max_attempts=10**7, backoff=backoff, jitter=jitter, cap=cap, max_delay=max_delay)
    delays = drawn(policy, attempt, [0.0, 0.5, 0.999])
    assert all(math.isfinite(delay) and delay >= 0 for delay in delays)
    if max_delay is not None and cap == "after_jitter":
        assert max(delays) <= 30.0


def test_an_initial_delay_of_zero_waits_for_nothing_at_any_attempt():
    """C-03: zero wait is an initial delay of zero."""
    policy = RetryPolicy(max_attempts=10**7, initial_delay=0)
    assert [policy.decide(TimeoutError(), attempt=n).delay for n in (1, 2, 10_000, 10**6)] == [0.0] * 4


def test_a_schedule_is_meant_literally():
    """S1-07, C-03: max_delay bounds growth, and a schedule does not grow."""
    assert nominals(RetryPolicy(delays=[30, 120, 480])) == [30.0, 120.0, 480.0]


def test_mean_of_jittered_delays():
    """S3-17: the mean of 100 delays for attempt 2 lies within 1800..2200 ms."""
    policy = RetryPolicy(max_delay=60, cap="before_jitter")
    dice = Dice(seed=17)
    delays = [1000 * policy.decide(TimeoutError(), attempt=2, roll=dice.roll()).delay for _ in range(100)]
    assert 1800 <= statistics.mean(delays) <= 2200
    assert all(1500 <= delay <= 2500 for delay in delays)


# --- Retry-After ------------------------------------------------------------------------------------------------------


@table(
    ("hint", "settings", "expected"),
    [
        ("10", {}, (10.75, 11.25)),
        ("0", {}, (0.75, 1.25)),
        ("120", {}, (120.75, 121.25)),
        ("3600", {}, (120.75, 121.25)),
        ("3600", {"max_retry_after": 5}, (5.75, 6.25)),
        ("10", {"max_retry_after": 0}, (0.75, 1.25)),
        ("10", {"initial_delay": 0}, (10.0, 10.0)),
    ],
)
def test_a_wait_that_was_asked_for_is_added(hint, settings, expected):
    """D-6, C-10: min(hint, max_retry_after) plus the jittered backoff; 120 s at most unless told otherwise."""
    policy = RetryPolicy(**settings)
    delays = [policy.decide(HttpError(429, hint), attempt=1, roll=roll).delay for roll in (0.0, 1.0)]
    assert delays == pytest.approx(expected)


def test_a_hint_changes_nothing_else():
    """D-6: after it, the normal sequence goes on where it was."""
    policy = RetryPolicy(max_attempts=5, jitter=0)
    errors = [HttpError(503, "50"), TimeoutError(), TimeoutError()]
    assert [policy.decide(error, attempt=n).delay for n, error in enumerate(errors, start=1)] == [51.0, 2.0, 4.0]


def test_temporary_failure_says_when():
    """D-6: the caller's own word counts like a header."""
    policy = RetryPolicy(jitter=0)
    assert policy.decide(TemporaryFailure(retry_after=7), attempt=1).delay == 8.0
    assert policy.decide(TemporaryFailure(retry_after=timedelta(seconds=3)), attempt=2).delay == 5.0


# --- deadline ---------------------------------------------------------------------------------------------------------


@table(
    ("elapsed", "total", "expected"),
    [
        (0.0, 1.01, (True, 1.0, None)),
        (0.0, 1.0, (False, 0.0, "total_timeout")),
        (4.0, 5.0, (False, 0.0, "total_timeout")),
        (3.9, 5.0, (True, 1.0, None)),
        (60.0, 5.0, (False, 0.0, "total_timeout")),
        (60.0, None, (True, 1.0, None)),
        (0.0, timedelta(seconds=1), (False, 0.0, "total_timeout")),
    ],
)
def test_a_wait_that_does_not_fit_is_not_begun(elapsed, total, expected):
    """D-7, C-19: elapsed + delay >= total stops now; the wait is never clipped."""
    decision = RetryPolicy(jitter=0).decide(TimeoutError(), attempt=1, elapsed=elapsed, total_timeout=total)
    assert (decision.retry, decision.delay, decision.reason) == expected


def test_a_hint_beyond_the_deadline_stops():
    """D-6, D-7: a Retry-After that does not fit ends the call at once."""
    decision = RetryPolicy().decide(HttpError(429, "100"), attempt=1, total_timeout=60)
    assert (decision.retry, decision.reason) == (False, "total_timeout")


# --- which errors -----------------------------------------------------------------------------------------------------


@table(
    ("error", "expected"),
    [
        (TimeoutError(), None),
        (ConnectionResetError(), None),
        (HttpError(429), None),
        (HttpError(503), None),
        (SyntaxError(), "permanent"),
        (PermissionError(), "permanent"),
        (HttpError(404), "permanent"),
        (ValueError(), "permanent"),
        (Exception(), "unclear"),
        (VendorError(), "unclear"),
        (MemoryError(), "unclear"),
        (PermanentFailure(), "permanent"),
        (TemporaryFailure(), None),
    ],
)
def test_transient_is_retried_and_permanent_never(error, expected):
    """S0-27, S0-28, S2-06: three categories; by default only the transient one is worth another attempt."""
    assert reason(RetryPolicy(), error) == expected


@table("error", [Exception(), VendorError(), MemoryError(), HttpError(507)])
def test_unclear_errors_are_retried_when_listed(error):
    """S0-27, C-09: what generic errors mean is configurable."""
    assert reason(RetryPolicy(), error) == "unclear"
    assert reason(RetryPolicy(on_errors=["transient", "unclear"]), error) is None


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "refused")


@table(
    ("spec", "listed", "not_listed"),
    [
        ("transient", TimeoutError(), ValueError()),
        ("unclear", VendorError(), TimeoutError()),
        ("permanent", ValueError(), TimeoutError()),
        ("all", ValueError(), None),
        ("timeout", TimeoutError(), REFUSED),
        ("connection_refused", REFUSED, ConnectionResetError()),
        ("network_error", REFUSED, TimeoutError()),  # the parent of connection_refused
        ("network_error", DatabaseDown(), DuplicateKey()),  # database_connection has two parents
        ("database_error", DatabaseDown(), REFUSED),
        ("network", TimeoutError(), HttpError(503)),  # a tier
        ("http_429_503", HttpError(429), HttpError(500)),
        (429, HttpError(429), HttpError(503)),
        ("429", HttpError(429), HttpError(503)),
        ("5xx", HttpError(599), HttpError(404)),
        ("4xx", HttpError(404), HttpError(503)),
        ("requests.exceptions.Timeout", RequestTimeout(), TimeoutError()),
        ("requests.Timeout", RequestTimeout(), TimeoutError()),
        ("TimeoutError", TimeoutError(), REFUSED),
        ("builtins.TimeoutError", TimeoutError(), REFUSED),
        ("asyncio.TimeoutError", TimeoutError(), REFUSED),
        ("socket.timeout", TimeoutError(), REFUSED),
        ("ConnectionError", REFUSED, TimeoutError()),
        ("TemporaryFailure", TemporaryFailure(), TimeoutError()),
        ("outlast.TemporaryFailure", TemporaryFailure(), TimeoutError()),
        (ConnectionError, REFUSED, TimeoutError()),  # subclasses match
        (Exception, ValueError(), None),
        (lambda error: "again" in str(error), VendorError("again"), VendorError("never")),
        ("econnrefused", REFUSED, ConnectionResetError(errno.ECONNRESET, "reset")),
        ("ECONNREFUSED", REFUSED, TimeoutError()),
        ("enospc", OSError(errno.ENOSPC, "full"), OSError(errno.EACCES, "no")),
    ],
)
def test_an_entry_of_on_errors(spec, listed, not_listed):
    """D-1, S0-07, S3-18, S4-05: a category, a class or its parent, a tier, a status, a range, a name, a type, a predicate."""
    policy = RetryPolicy(on_errors=[spec])
    assert reason(policy, listed) is None
    if not_listed is not None:
        assert reason(policy, not_listed) in {"permanent", "unclear", "not_listed"}


@pytest.mark.parametrize("spec", ["econnrefused", "connection_refused"])
def test_a_symbol_finds_the_error_behind_the_error(spec):
    """S3-18, D-2: a refused connection is one, with or without its number, also when a client has wrapped it."""
    wrapped = VendorError("cannot connect")
    wrapped.__cause__ = REFUSED
    policy = RetryPolicy(on_errors=[spec])
    assert [reason(policy, error) for error in (REFUSED, ConnectionRefusedError(), wrapped)] == [None, None, None]


@table(
    ("on_errors", "error", "expected"),
    [
        ([429, 500, 502, 503, 504], HttpError(429), None),
        ([429, 500, 502, 503, 504], HttpError(501), "unclear"),
        ([429, 500, 502, 503, 504], TimeoutError(), "not_listed"),
        ([], TimeoutError(), "not_listed"),
        ([], ValueError(), "permanent"),
        (["all"], ValueError(), None),
        (["all"], VendorError(), None),
    ],
)
def test_what_is_not_listed_is_not_retried(on_errors, error, expected):
    """S3-18, S4-06, C-09: a list means those only, an empty one nothing, all everything but control flow."""
    assert reason(RetryPolicy(on_errors=on_errors), error) == expected


@table("spec", [ValueError, "ValueError", "data_error", "data", "permanent"])
def test_an_explicit_entry_is_obeyed_even_for_permanent_errors(spec):
    """D-1: whoever lists it means it."""
    assert reason(RetryPolicy(on_errors=[spec]), ValueError()) is None


@table(
    ("on_errors", "skip", "error", "expected"),
    [
        (["network_error"], ["connection_refused"], REFUSED, "skipped"),
        (["network_error"], ["connection_refused"], ConnectionResetError(), None),
        (["all"], ["syntax_error", "permission_denied"], PermissionError(), "skipped"),
        (["all"], ["syntax_error", "permission_denied"], ValueError(), None),
        (["5xx"], [501], HttpError(501), "skipped"),
        (["5xx"], [501], HttpError(500), None),
        (["transient"], ["timeout"], TimeoutError(), "skipped"),
        (["transient"], ["network"], REFUSED, "skipped"),
        (["transient"], [ConnectionError], REFUSED, "skipped"),
        (["transient"], ["all"], REFUSED, "skipped"),
        (["transient"], [lambda error: True], REFUSED, "skipped"),
        (["transient"], ["data_error"], ValueError(), "skipped"),
    ],
)
def test_skip_on_errors_wins(on_errors, skip, error, expected):
    """S0-08, S0-12, D-1, D-2: what is skipped is never retried, whatever else lists it."""
    assert reason(RetryPolicy(on_errors=on_errors, skip_on_errors=skip), error) == expected


def test_facts_come_before_the_policy():
    """D-2, S0-33: the verdict is the same whatever the policy says about it."""
    error = HttpError(503, "4")
    for policy in (RetryPolicy(), RetryPolicy(on_errors=[]), RetryPolicy(skip_on_errors=[503])):
        assert policy.decide(error, attempt=1).verdict == classify(error)


def test_decision_carries_the_verdict():
    """S0-33: what was decided, and upon which facts."""
    decision = RetryPolicy(jitter=0).decide(HttpError(503, "4"), attempt=1)
    assert (decision.retry, decision.delay, decision.reason) == (True, 5.0, None)
    assert decision.verdict == Verdict(
        category="transient",
        error_class="unavailable",
        tier="http_429_503",
        why="HTTP status 503",
        retry_after=4.0,
        status=503,
    )


def test_a_predicate_that_fails_counts_as_false_and_is_reported_once(caplog):
    """D-1: a broken predicate must not hide the error it was asked about."""

    def broken(error: Exception) -> bool:
        raise ZeroDivisionError("secret text")

    policy = RetryPolicy(on_errors=[broken])
    with caplog.at_level(logging.ERROR, "outlast"):
        assert [reason(policy, VendorError()) for _ in range(3)] == ["unclear"] * 3
    (record,) = caplog.records
    assert "broken" in record.getMessage()
    assert "ZeroDivisionError" in record.getMessage()
    assert "secret text" not in record.getMessage()


def test_an_open_circuit_is_not_retried_as_a_transient_error():
    """C-13, D-10: whether to wait for a breaker is the breaker's business, unless the policy names it."""
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    rejection = CircuitBreakerOpenError("open", name="x", opened_at=now, retry_at=now, retry_after=5.0)
    assert reason(RetryPolicy(), rejection) == "breaker_open"
    assert reason(RetryPolicy(on_errors=["transient", "circuit_open"]), rejection) is None


# --- groups -------------------------------------------------------------------------------------------------------------


@table(
    ("leaves", "expected"),
    [
        ([TimeoutError(), REFUSED], None),
        ([TimeoutError(), ValueError()], "permanent"),
        ([TimeoutError(), VendorError()], "unclear"),
        ([VendorError(), ValueError()], "permanent"),
        ([TimeoutError(), ExceptionGroup("inner", [HttpError(503), REFUSED])], None),
        ([TimeoutError(), ExceptionGroup("inner", [HttpError(404)])], "permanent"),
    ],
)
def test_a_group_is_retried_if_each_of_its_leaves_would_be(leaves, expected):
    """D-2: one leaf that cannot succeed is enough to stop (S0-28)."""
    assert reason(RetryPolicy(), ExceptionGroup("several", leaves)) == expected


@table(
    ("settings", "expected"),
    [
        ({"skip_on_errors": ["timeout"]}, "skipped"),
        ({"on_errors": ["timeout"]}, "not_listed"),
        ({"on_errors": ["timeout", "connection_refused"]}, None),
        ({"on_errors": [ExceptionGroup]}, None),
        ({"on_errors": ["all"]}, None),
        ({"max_attempts": 1}, "exhausted"),
        ({"retry_limits": {"database": 5}}, "tier_exhausted"),
    ],
)
def test_lists_look_into_a_group(settings, expected):
    """D-1, D-2: each leaf is asked; a policy may also name the group's own type."""
    group = ExceptionGroup("several", [TimeoutError(), REFUSED])
    assert reason(RetryPolicy(**settings), group) == expected


@pytest.mark.parametrize("leaves", [[TimeoutError(), DatabaseDown()], [DatabaseDown(), TimeoutError()]], ids=["a", "b"])
def test_each_leaf_of_a_group_needs_a_retry_of_its_tier(leaves):
    """C-02, D-2: the order of the leaves does not matter; one tier without retries is enough to stop."""
    group = ExceptionGroup("several", leaves)
    assert reason(RetryPolicy(retry_limits={"database": 5}), group) == "tier_exhausted"
    assert reason(RetryPolicy(retry_limits={"database": 5, "network": 1}), group) is None
    assert reason(RetryPolicy(retry_limits={"database": 5, "network": 1}), group, attempt=2) == "tier_exhausted"


def is_group(error: Exception) -> bool:
    return isinstance(error, ExceptionGroup)


@table("spec", [ExceptionGroup, "ExceptionGroup", "builtins.ExceptionGroup", is_group])
def test_a_group_can_be_named_itself(spec):
    """D-1: by its type, its name or a predicate; in skip_on_errors it wins as anything does there."""
    group = ExceptionGroup("several", [TimeoutError(), REFUSED])
    assert reason(RetryPolicy(on_errors=[spec]), group) is None
    assert reason(RetryPolicy(skip_on_errors=[spec]), group) == "skipped"
    assert reason(RetryPolicy(skip_on_errors=[spec]), TimeoutError()) is None


# --- tiers ------------------------------------------------------------------------------------------------------------

LIMITS = {"database": 5, "network": 3, "http_429_503": 3, "http_500_502_504": 2}


def granted(policy: RetryPolicy, error: Exception) -> int:
    """The number of retries that an error which never goes away gets."""
    return sum(policy.decide(error, attempt=attempt).retry for attempt in range(1, 20))


@table(
    ("error", "retries"),
    [
        (DatabaseDown(), 5),
        (library("psycopg2", "InterfaceError")(), 5),
        (RequestTimeout(), 3),
        (library("requests.exceptions", "ConnectionError")(), 3),
        (ConnectionResetError(), 3),
        (BrokenPipeError(), 3),
        (TimeoutError(), 3),
        (HttpError(429), 3),
        (HttpError(503), 3),
        (HttpError(500), 2),
        (HttpError(502), 2),
        (HttpError(504), 2),
        (ValueError(), 0),
        (KeyError(), 0),
        (TypeError(), 0),
        (DuplicateKey(), 0),
        (VendorError(), 0),
        (HttpError(501), 0),
    ],
)
def test_each_tier_has_its_own_number_of_retries(error, retries):
    """S2-01, S2-02, S2-03, S2-04, S2-05, S2-06, S0-28, C-02: limits are retries, calls are one more."""
    policy = RetryPolicy(retry_limits=LIMITS)
    assert policy.max_attempts == 6
    assert granted(policy, error) == retries


@table(
    ("limits", "error", "retries"),
    [
        ({"database": 5}, DatabaseDown(), 5),
        ({"database": 5}, TimeoutError(), 0),
        ({"database": 5, "network": 0}, TimeoutError(), 0),
        ({}, DatabaseDown(), 0),
    ],
)
def test_a_tier_that_is_not_listed_has_no_retries(limits, error, retries):
    """S2-10, S2-12, C-02: partial limits are legal, and what they leave out is 0."""
    assert granted(RetryPolicy(retry_limits=limits), error) == retries


def test_a_tier_that_has_none_left_is_told_from_a_policy_that_has_none_left():
    """C-02: the reasons differ."""
    policy = RetryPolicy(retry_limits=LIMITS)
    assert reason(policy, HttpError(500), attempt=3) == "tier_exhausted"
    assert reason(policy, TimeoutError(), attempt=4) == "tier_exhausted"
    assert reason(policy, DatabaseDown(), attempt=6) == "exhausted"


def test_one_counter_is_shared_by_all_tiers():
    """S2-15, C-02: three database errors, then a network error whose limit is three: nothing is left."""
    policy = RetryPolicy(retry_limits={"database": 5, "network": 3})
    story = [DatabaseDown(), DatabaseDown(), DatabaseDown(), ConnectionResetError()]
    decisions = [policy.decide(error, attempt=attempt) for attempt, error in enumerate(story, start=1)]
    assert [decision.retry for decision in decisions] == [True, True, True, False]
    assert decisions[-1].reason == "tier_exhausted"
    assert policy.decide(DatabaseDown(), attempt=4).retry


def test_max_attempts_bounds_every_tier():
    """C-02: retried only while both the tier and the policy have something left."""
    policy = RetryPolicy(max_attempts=3, retry_limits=LIMITS)
    assert [granted(policy, error) for error in (DatabaseDown(), TimeoutError(), HttpError(500))] == [2, 2, 2]


def test_a_listed_permanent_error_still_needs_a_limit_for_its_tier():
    """C-02, D-2: tier limits come last, whatever lists the error."""
    policy = RetryPolicy(on_errors=["all"], retry_limits={"data": 1, "network": 3})
    assert [granted(policy, error) for error in (ValueError(), VendorError(), TimeoutError())] == [1, 0, 3]


# --- deterministic ----------------------------------------------------------------------------------------------------


def test_the_same_policy_has_the_same_schedule():
    """S0-31, S0-32: equal policies give equal schedules, to the last digit of their repr."""
    one, two = (RetryPolicy(max_attempts=7, jitter=0.1) for _ in range(2))
    assert one.schedule() == two.schedule()
    assert repr(list(one.schedule())) == repr(list(two.schedule()))


def test_the_same_roll_gives_the_same_decision():
    """S0-32, C-06: chance is an input."""
    policy = RetryPolicy(max_attempts=9)
    for attempt in range(1, 9):
        one, two = (policy.decide(TimeoutError(), attempt=attempt, roll=0.123) for _ in range(2))
        assert one == two


def test_roll_for_belongs_to_run_step_item_and_attempt():
    """C-06: the same identity rolls the same, everywhere and always; another one differently."""
    identity = ("run-1", "fetch", "item-7", 2)
    assert roll_for(*identity) == roll_for(*identity)
    others = [
        ("run-2", *identity[1:]),
        ("run-1", "push", *identity[2:]),
        (*identity[:2], "item-8", 2),
        (*identity[:3], 3),
    ]
    rolls = {roll_for(*identity), *(roll_for(*other) for other in others)}
    assert len(rolls) == 5
    assert roll_for("a", "bc") != roll_for("ab", "c")


def test_roll_for_is_the_same_in_every_process():
    """C-06: the value is pinned, not merely stable within a process."""
    assert roll_for("run-1", "fetch", "item-7", 2) == pytest.approx(0.338911566004138)


def test_rolls_of_many_items_spread():
    """C-06: different items of one run do not come back together."""
    rolls = [roll_for("run-1", "fetch", f"item-{n}", 1) for n in range(1000)]
    assert all(0 <= roll < 1 for roll in rolls)
    assert len(set(rolls)) == 1000
    assert 0.45 < statistics.mean(rolls) < 0.55
    assert [sum(low <= roll < low + 0.25 for roll in rolls) > 200 for low in (0, 0.25, 0.5, 0.75)] == [True] * 4


# --- the schedule as a sequence -----------------------------------------------------------------------------------------


def test_schedule_is_a_sequence_that_is_computed_when_looked_at():
    """A policy of a million attempts shows its last delay without working out the others (S0-31)."""
    schedule = RetryPolicy(max_attempts=10**6 + 1).schedule()
    assert len(schedule) == 10**6
    assert (schedule[0].attempt, schedule[-1].attempt, schedule[-1].nominal) == (2, 10**6 + 1, 30.0)
    assert [delay.attempt for delay in schedule[2:5]] == [4, 5, 6]
    assert [delay.attempt for delay in schedule[-2:]] == [10**6, 10**6 + 1]
    with pytest.raises(IndexError):
        schedule[10**6]
    with pytest.raises(IndexError):
        schedule[-(10**6) - 1]


def test_schedule_grows_until_the_cap():
    """No delay is shorter than the one before it (S0-10)."""
    nominal = nominals(RetryPolicy(max_attempts=40))
    assert all(one <= two for one, two in pairwise(nominal))
    assert nominal[-1] == 30.0


# --- a frozen value -----------------------------------------------------------------------------------------------------


def always(error: Exception) -> bool:
    return True


POLICIES = [
    RetryPolicy(),
    RetryPolicy(jitter={"add": 1.0}, retry_limits={"database": 5}, on_errors=[429, "5xx", ConnectionError, always]),
    RetryPolicy(delays=[30, 120], jitter="full", skip_on_errors=["timeout"]),
]


@table("policy", POLICIES)
@table("copied", [copy.copy, copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_policy_survives_copying_and_pickling(policy, copied):
    """A value: equal to its copies, with the same hash and the same decisions (S0-32)."""
    twin = copied(policy)
    assert twin == policy
    assert hash(twin) == hash(policy)
    assert twin.decide(TimeoutError(), attempt=1, roll=0.3) == policy.decide(TimeoutError(), attempt=1, roll=0.3)


def test_a_policy_cannot_be_changed():
    """Frozen, with what it holds (S0-32)."""
    policy = RetryPolicy(jitter={"add": 1.0}, retry_limits={"database": 5})
    with pytest.raises(AttributeError, match=r"replace\(max_attempts=\.\.\.\)"):
        policy.max_attempts = 5
    with pytest.raises(AttributeError):
        del policy.max_attempts
    with pytest.raises(TypeError):
        policy.retry_limits["network"] = 3
    with pytest.raises(TypeError):
        policy.jitter["add"] = 3
    assert policy == RetryPolicy(jitter={"add": 1.0}, retry_limits={"database": 5})


def test_what_was_passed_in_may_change_afterwards():
    """A policy keeps its own copies (S0-32)."""
    limits, listed, delays = {"database": 5}, ["timeout"], [1, 2]
    policy = RetryPolicy(retry_limits=limits, on_errors=listed, delays=delays)
    limits["network"], delays[0] = 9, 99
    listed.append("all")
    assert policy == RetryPolicy(retry_limits={"database": 5}, on_errors=["timeout"], delays=[1, 2])


def test_replace_changes_a_copy():
    """Different strategies for different failures, from one starting point (S0-28)."""
    policy = RetryPolicy(max_attempts=3)
    other = policy.replace(max_attempts=5, jitter=0)
    assert (policy.max_attempts, other.max_attempts, other.jitter, other.max_delay) == (3, 5, 0.0, 30.0)


def test_policies_differ_in_any_field():
    """Equality looks at every setting (S0-32)."""
    base = RetryPolicy()
    changes = [
        {"max_attempts": 4},
        {"backoff": "linear"},
        {"initial_delay": 2},
        {"multiplier": 3},
        {"max_delay": 31},
        {"delays": [1, 2]},
        {"jitter": 0.1},
        {"cap": "before_jitter"},
        {"max_retry_after": 1},
        {"on_errors": ["all"]},
        {"skip_on_errors": ["timeout"]},
        {"retry_limits": {"network": 2}},
        {"retry_exhausted": True},
    ]
    assert [base.replace(**change) == base for change in changes] == [False] * len(changes)
    assert len({base, *(base.replace(**change) for change in changes)}) == len(changes) + 1


def test_repr_shows_what_is_not_default():
    """What one reads is what one would write (S0-32)."""
    assert repr(RetryPolicy(jitter=0.1, max_delay=None)) == "RetryPolicy(max_attempts=3, max_delay=None, jitter=0.1)"


def test_whether_a_wait_is_rolled_for_does_not_depend_on_calls_before():
    """U-03: a wait without any spread takes no roll, the first time as later; so the same seed gives the same waits."""
    policy = RetryPolicy(max_attempts=3, delays=(0.0, 1.0), jitter=1.0)
    error, rolls = TimeoutError(), []

    def roll():
        rolls.append(0.5)
        return 0.5

    waits = [policy.answer(error, classify(error), number, roll, None) for number in (1, 2, 1, 2)]
    assert (waits, len(rolls)) == ([0.0, 1.0, 0.0, 1.0], 2)
