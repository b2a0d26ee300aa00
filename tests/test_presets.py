"""The ready-made policies keep the numbers that they promise: five exactly those of the documents behind them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from outlast import RetryPolicy, TemporaryFailure, presets
from tables import table

SEEDED = {
    "step": presets.step,
    "jobs": presets.jobs,
    "tiered": presets.tiered,
    "stage": presets.stage,
    "call": presets.call,
}


class HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status


class VendorError(Exception):
    """No rule knows it."""


def library(module: str, name: str) -> Exception:
    return type(name, (Exception,), {"__module__": module})()


def milliseconds(policy: RetryPolicy, attempts: int | None = None) -> list[tuple[float, float, float]]:
    """Nominal, least and greatest delay in milliseconds, also for more attempts than the policy grants."""
    longer = policy if attempts is None else policy.replace(max_attempts=attempts)
    return [tuple(round(1000 * x, 6) for x in (d.nominal, d.min, d.max)) for d in longer.schedule()]


def reasons(policy: RetryPolicy, *errors: Exception) -> list[str | None]:
    return [policy.decide(error, attempt=1).reason for error in errors]


# --- the numbers ------------------------------------------------------------------------------------------------------


@table(
    ("policy", "attempts", "expected"),
    [
        pytest.param(presets.default, 3, [(1000, 750, 1250), (2000, 1500, 2500)], id="default"),
        pytest.param(presets.step, 3, [(1000, 900, 1100), (2000, 1800, 2200)], id="step"),
        pytest.param(
            presets.jobs,
            4,
            [(30_000, 24_000, 36_000), (120_000, 96_000, 144_000), (480_000, 384_000, 576_000)],
            id="jobs",
        ),
        pytest.param(presets.tiered, 6, [(n, n, n) for n in (1000, 2000, 4000, 8000, 16_000)], id="tiered"),
        pytest.param(presets.stage, 3, [(1000, 750, 1250), (2000, 1500, 2500)], id="stage"),
        pytest.param(presets.call, 3, [(1000, 1000, 2000), (2000, 2000, 3000)], id="call"),
    ],
)
def test_delays(policy, attempts, expected):
    """S0-02, S0-05, S0-06, S1-04, S1-05, S1-06, S1-07, S2-14, S3-12, S3-14, S4-02, S4-04: attempts and bands."""
    assert policy.max_attempts == attempts
    assert milliseconds(policy) == expected


def test_default_is_what_a_bare_retry_does():
    """D-4: the preset and the class agree."""
    assert presets.default == RetryPolicy()


@table(
    ("policy", "attempt", "expected"),
    [
        pytest.param(presets.step, 6, (30_000, 27_000, 30_000), id="step: never above 30 s"),
        pytest.param(presets.stage, 3, (4000, 3000, 5000), id="stage: third delay"),
        pytest.param(presets.stage, 7, (60_000, 45_000, 75_000), id="stage: a quarter above 60 s"),
        pytest.param(presets.stage, 40, (60_000, 45_000, 75_000), id="stage: and no further"),
        pytest.param(presets.call, 3, (4000, 4000, 5000), id="call: third delay"),
        pytest.param(presets.call, 7, (60_000, 60_000, 61_000), id="call: a second above 60 s"),
    ],
)
def test_delays_at_the_cap(policy, attempt, expected):
    """S0-09, S3-14, S4-04, D-5: a hard ceiling for a step, soft ones for a stage and a call."""
    assert milliseconds(policy, attempts=50)[attempt - 1] == expected


def test_waits_in_all():
    """S1-07, S2-14: 630 s nominal between 504 and 756 for a job; 31 s for a database that never comes back."""
    jobs, tiered = milliseconds(presets.jobs), milliseconds(presets.tiered)
    assert [sum(column) for column in zip(*jobs, strict=True)] == [630_000, 504_000, 756_000]
    assert sum(nominal for nominal, _, _ in tiered) == 31_000


def test_every_schedule_grows_and_every_one_but_tiered_is_jittered():
    """S1-02: a fixed interval would send the herd back in step; only the tiers promise exact seconds."""
    every = {name: policy for name, policy in vars(presets).items() if isinstance(policy, RetryPolicy)}
    assert set(every) == {*SEEDED, "default", "llm", "database"}
    schedules = {name: policy.schedule() for name, policy in every.items()}
    grows = {name: all(a.nominal < b.nominal for a, b in pairwise(waits)) for name, waits in schedules.items()}
    assert grows == dict.fromkeys(every, True)
    assert min(len(waits) for waits in schedules.values()) == 2  # there is something to grow in each
    spread = {name: {d.min < d.max for d in waits} for name, waits in schedules.items()}
    assert spread == {name: {name != "tiered"} for name in every}


# --- which errors -------------------------------------------------------------------------------------------------------


def test_step_retries_network_errors_and_timeouts():
    """S0-07, S0-08, S0-28: as listed; syntax and permission errors are skipped whatever happens."""
    assert reasons(
        presets.step,
        ConnectionRefusedError(),
        TimeoutError(),
        library("psycopg2", "OperationalError"),
        HttpError(503),
        VendorError(),
        ValueError(),
        SyntaxError(),
        PermissionError(),
    ) == [None, None, None, "not_listed", "unclear", "permanent", "skipped", "skipped"]


def test_jobs_retry_what_is_transient_and_every_5xx():
    """S1-08, S1-09, S1-14: timeouts, connectivity, 429 and all 5xx; 4xx but 429 are fatal, unknown ones too."""
    retried = [
        TimeoutError(),
        ConnectionResetError(),
        library("requests.exceptions", "ConnectionError"),
        library("psycopg", "OperationalError"),
        *(HttpError(status) for status in (429, 500, 501, 502, 503, 504, 507, 529, 599)),
    ]
    assert reasons(presets.jobs, *retried) == [None] * len(retried)
    fatal = [HttpError(status) for status in (400, 401, 403, 404, 409, 422)]
    assert reasons(presets.jobs, *fatal) == ["permanent"] * len(fatal)
    assert reasons(presets.jobs, VendorError()) == ["unclear"]


def test_tiers():
    """S2-01, S2-02, S2-03, S2-04, S2-05, S2-06: 5, 3, 3 and 2 retries; data and unknown errors fail fast."""
    assert presets.tiered.retry_limits == {"database": 5, "network": 3, "http_429_503": 3, "http_500_502_504": 2}
    errors = {
        5: library("psycopg2", "OperationalError"),
        3: TimeoutError(),
        2: HttpError(500),
    }
    for retries, error in errors.items():
        decisions = [presets.tiered.decide(error, attempt=attempt) for attempt in range(1, 8)]
        assert [decision.retry for decision in decisions] == [True] * retries + [False] * (7 - retries)
    assert reasons(presets.tiered, ValueError(), KeyError(), TypeError(), VendorError(), HttpError(501)) == [
        "permanent",
        "permanent",
        "permanent",
        "unclear",
        "unclear",
    ]


def test_a_stage_retries_unclear_errors_too():
    """S3-02, S3-12, D-1: everything but what cannot succeed."""
    retried = [HttpError(429), TimeoutError(), ConnectionResetError(), VendorError(), MemoryError(), HttpError(507)]
    assert reasons(presets.stage, *retried) == [None] * len(retried)
    assert reasons(presets.stage, ValueError(), HttpError(404)) == ["permanent", "permanent"]


def test_a_call_retries_timeouts_connection_errors_and_temporary_failures():
    """S4-02, S4-05, S4-06: by class hierarchy; anything else propagates at once."""
    assert (
        reasons(
            presets.call,
            TimeoutError(),
            ConnectionError(),
            BrokenPipeError(),
            ConnectionRefusedError(),
            TemporaryFailure(),
        )
        == [None] * 5
    )
    assert reasons(presets.call, HttpError(503), VendorError(), ValueError()) == ["not_listed", "unclear", "permanent"]


def test_llm_is_patient_with_rate_limits_and_overload():
    """Six attempts up to 60 s, also for the 529 that means overloaded; bad requests and credentials stop at once (S1-08)."""
    assert presets.llm.max_attempts == 6
    assert milliseconds(presets.llm)[-1] == (16_000, 12_000, 20_000)
    assert milliseconds(presets.llm, attempts=9)[-1] == (60_000, 45_000, 60_000)
    assert reasons(presets.llm, HttpError(429), HttpError(529), TimeoutError()) == [None, None, None]
    assert reasons(presets.llm, HttpError(408), HttpError(409)) == [None, None]  # D-31
    assert reasons(presets.llm, HttpError(400), HttpError(401), HttpError(402)) == ["permanent"] * 3


def test_database_waits_as_long_as_a_failover_takes():
    """Pools recover in 5 to 10 seconds; a deadlock is tried again almost at once (S2-01)."""
    schedule = milliseconds(presets.database)
    assert schedule[0] == (200, 150, 250)
    assert 5000 <= sum(nominal for nominal, _, _ in schedule) <= 10_000
    assert reasons(presets.database, library("psycopg2", "OperationalError"), TimeoutError()) == [None, None]
    assert reasons(presets.database, library("psycopg2", "IntegrityError"), VendorError()) == ["permanent", "unclear"]


@table("name", ["default", "llm", "database", *SEEDED])
def test_no_preset_retries_what_cannot_succeed(name):
    """S0-28, S2-05, S2-28: data errors, code errors and refused credentials cost one execution in every preset."""
    policy = getattr(presets, name)
    errors = [
        ValueError(),
        KeyError(),
        AttributeError(),
        ImportError(),
        PermissionError(),
        HttpError(401),
        HttpError(404),
    ]
    assert {policy.decide(error, attempt=1).retry for error in errors} == {False}
