"""Configuration: every accepted spelling means what it meant where it came from, and every mistake says what is wrong."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta

import pytest

from outlast import (
    CircuitBreaker,
    ConfigurationError,
    Guard,
    OutlastError,
    RetryBudget,
    RetryPolicy,
    TemporaryFailure,
    presets,
    retry,
)
from tables import table

NAN, INF = math.nan, math.inf
read = RetryPolicy.from_config


class HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status


class VendorError(Exception):
    """No rule knows it."""


def library(module: str, name: str) -> Exception:
    return type(name, (Exception,), {"__module__": module})()


def problems(build) -> list[str]:
    """What the ConfigurationError complains about: there must be one."""
    with pytest.raises(ConfigurationError) as caught:
        build()
    return list(caught.value.problems)


def milliseconds(policy: RetryPolicy) -> list[tuple[float, float, float]]:
    return [tuple(round(1000 * x, 6) for x in (d.nominal, d.min, d.max)) for d in policy.schedule()]


def reasons(policy: RetryPolicy, *errors: Exception) -> list[str | None]:
    return [policy.decide(error, attempt=1).reason for error in errors]


# --- each origin's own spelling -----------------------------------------------------------------------------------------

STEP = {
    "max_attempts": 3,
    "backoff": "exponential",
    "initial_delay_ms": 1000,
    "max_delay_ms": 30000,
    "jitter": 0.1,
    "on_errors": ["network_error", "timeout"],
    "skip_on_errors": ["syntax_error", "permission_denied"],
}
JOBS = {
    "max_attempts": 4,
    "mode": "requeue",
    "backoff": "exponential",
    "multiplier": 4,
    "initial_delay_ms": 30000,
    "max_delay_ms": None,
    "jitter": 0.2,
    "on_errors": ["transient", "5xx"],
    "unclear": "fail",
}
TIERED = {
    "retry_limits": {"database": 5, "network": 3, "http_429_503": 3, "http_500_502_504": 2},
    "retry_backoff_base": 1.0,
}
STAGE = {
    "max_attempts": 3,
    "backoff": "jittered_exponential",
    "base_delay_ms": 1000,
    "max_delay_ms": 30000,
    "retriable_errors": [429, 500, 502, 503, 504, "httpx.TransportError", "httpx.HTTPError"],
}
CALL = {"max_attempts": 3, "base_delay": 1.0, "max_delay": 60.0, "jitter": True}


@table(
    ("config", "expected"),
    [
        pytest.param(STEP, [(1000, 900, 1100), (2000, 1800, 2200)], id="step"),
        pytest.param(
            STEP | {"backoff": "linear", "max_attempts": 4, "jitter": 0},
            [(n, n, n) for n in (1000, 2000, 3000)],
            id="step, linear",
        ),
        pytest.param(STEP | {"backoff": "none", "jitter": 0}, [(1000, 1000, 1000)] * 2, id="step, none"),
        pytest.param(
            JOBS, [(30_000, 24_000, 36_000), (120_000, 96_000, 144_000), (480_000, 384_000, 576_000)], id="jobs"
        ),
        pytest.param(
            {"backoff": "schedule", "delays_ms": [30_000, 120_000, 480_000], "jitter": 0.2},
            [(30_000, 24_000, 36_000), (120_000, 96_000, 144_000), (480_000, 384_000, 576_000)],
            id="jobs, as a schedule",
        ),
        pytest.param(TIERED, [(n, n, n) for n in (1000, 2000, 4000, 8000, 16_000)], id="tiered"),
        pytest.param(
            {"retry_backoff_base": 2.0, "max_retries": 3}, [(n, n, n) for n in (2000, 4000, 8000)], id="tiered, base 2"
        ),
        pytest.param(STAGE, [(1000, 750, 1250), (2000, 1500, 2500)], id="stage"),
        pytest.param(
            {"base_delay_ms": 1000, "max_attempts": 4},
            [(1000, 750, 1250), (2000, 1500, 2500), (4000, 3000, 5000)],
            id="stage, third delay",
        ),
        pytest.param(
            {"base_delay_ms": 5000, "backoff": "fixed", "max_attempts": 4}, [(5000, 5000, 5000)] * 3, id="stage, fixed"
        ),
        pytest.param(
            {"base_delay_ms": 1000, "backoff": "linear", "max_attempts": 4},
            [(n, n, n) for n in (1000, 2000, 3000)],
            id="stage, linear",
        ),
        pytest.param(CALL, [(1000, 1000, 2000), (2000, 2000, 3000)], id="call"),
        pytest.param(CALL | {"jitter": False}, [(1000, 1000, 1000), (2000, 2000, 2000)], id="call, no jitter"),
    ],
)
def test_bands_of_each_spelling(config, expected):
    """S0-03, S0-06, S0-10, S1-05, S1-06, S1-07, S2-14, S3-13, S3-14, S3-15, S4-04: the delays each origin promised."""
    assert milliseconds(read(config)) == expected


@table(
    ("config", "attempt", "expected"),
    [
        pytest.param(STEP, 6, (30_000, 27_000, 30_000), id="step: hard"),
        pytest.param({"base_delay_ms": 1000}, 7, (60_000, 45_000, 75_000), id="stage: soft"),
        pytest.param(STAGE, 6, (30_000, 22_500, 37_500), id="stage of an LLM: soft"),
        pytest.param({"base_delay_ms": 1000, "backoff": "linear"}, 60, (60_000,) * 3, id="stage, linear"),
        pytest.param({"base_delay_ms": 1000, "backoff": "linear"}, 90, (60_000,) * 3, id="stage, linear, capped"),
        pytest.param({"base_delay_ms": 90_000, "backoff": "fixed"}, 5, (90_000,) * 3, id="stage, fixed: no cap"),
        pytest.param(CALL, 7, (60_000, 60_000, 61_000), id="call: soft"),
        pytest.param({"retry_backoff_base": 1.0}, 13, (4_096_000,) * 3, id="tiered: none"),
    ],
)
def test_cap_of_each_spelling(config, attempt, expected):
    """S0-09, S2-14, S3-14, S3-15, S4-04, D-4: before jitter, after it, or not at all."""
    assert milliseconds(read(config).replace(max_attempts=100))[attempt - 1] == expected


def test_blocks_of_the_origins_are_the_presets():
    """S0-02, S1-04, S2-11, S3-09, S4-02: what a document says and what ships are one and the same."""
    assert read(STEP) == presets.step
    assert read(JOBS).schedule() == presets.jobs.schedule()
    assert read(TIERED) == presets.tiered
    assert read({"retry_backoff_base": 1.0}) == presets.tiered
    assert read(CALL) == presets.call


def test_a_stage_block_without_a_list_retries_everything():
    """S3-12, D-4: in that spelling the default was all: 3 attempts, 1 s to 60 s, a quarter of jitter after the cap."""
    policy = read({"base_delay_ms": 1000})
    assert policy == presets.stage.replace(on_errors=["all"])
    assert reasons(policy, VendorError(), ValueError(), TimeoutError()) == [None, None, None]


def test_an_llm_stage():
    """S3-10: statuses, a transport error and an HTTP error class, named without importing the client."""
    policy = read(STAGE)
    statuses = [HttpError(status) for status in (429, 500, 502, 503, 504)]
    clients = [library("httpx", "TransportError"), library("httpx", "HTTPError")]
    assert reasons(policy, *statuses, *clients) == [None] * 7
    assert (policy.max_attempts, policy.max_delay, milliseconds(policy)[0]) == (3, 30.0, (1000, 750, 1250))
    assert reasons(policy, HttpError(501), HttpError(404), TimeoutError()) == ["unclear", "permanent", "not_listed"]


def test_a_list_of_exceptions_and_statuses():
    """S2-11, C-10: the whitelist of names, public or canonical, together with the statuses."""
    policy = read(
        TIERED
        | {
            "retryable_exceptions": [
                "psycopg2.OperationalError",
                "psycopg2.InterfaceError",
                "requests.Timeout",
                "requests.ConnectionError",
                "builtins.ConnectionResetError",
                "builtins.BrokenPipeError",
                "builtins.TimeoutError",
            ],
            "retryable_http_status_codes": (429, 500, 502, 503, 504),
        }
    )
    retried = [
        library("psycopg2", "OperationalError"),
        library("requests.exceptions", "Timeout"),
        library("requests.exceptions", "ConnectionError"),
        ConnectionResetError(),
        TimeoutError(),
        HttpError(429),
        HttpError(504),
    ]
    assert reasons(policy, *retried) == [None] * len(retried)
    assert reasons(policy, ValueError(), VendorError(), ConnectionRefusedError()) == [
        "permanent",
        "unclear",
        "not_listed",
    ]


@table("key", ["retryable_exceptions", "retryable_http_status_codes", "on_errors", "retriable_errors"])
def test_an_empty_list_means_nothing(key):
    """D-1, C-09: a list that is empty was not forgotten."""
    assert reasons(read({key: []}), TimeoutError(), HttpError(503)) == ["not_listed", "not_listed"]


# --- one meaning for every word -------------------------------------------------------------------------------------------


@table(
    ("config", "expected"),
    [
        ({}, {}),
        ({"max_attempts": 5}, {"max_attempts": 5}),
        ({"max_attempts": None}, {}),
        ({"max_retries": 4}, {"max_attempts": 5}),
        ({"max_retries": 0}, {"max_attempts": 1}),
        ({"max_retries": 4, "max_attempts": 5}, {"max_attempts": 5}),
        ({"backoff": "exponential"}, {}),
        ({"backoff": "exp"}, {}),
        ({"backoff": "linear"}, {"backoff": "linear"}),
        ({"backoff": "fixed"}, {"backoff": "fixed"}),
        ({"backoff": "none"}, {"backoff": "fixed"}),
        ({"multiplier": 4}, {"multiplier": 4}),
        ({"initial_delay_ms": 500}, {"initial_delay": 0.5}),
        ({"initial_delay_s": 0.5}, {"initial_delay": 0.5}),
        ({"initial_delay": 0.5}, {"initial_delay": 0.5}),
        ({"initial_delay": timedelta(milliseconds=500)}, {"initial_delay": 0.5}),
        ({"initial_delay_ms": 0}, {"initial_delay": 0}),
        ({"max_delay_ms": 5000}, {"max_delay": 5}),
        ({"max_delay_s": 5}, {"max_delay": 5}),
        ({"max_delay": 5}, {"max_delay": 5}),
        ({"max_delay_ms": None}, {"max_delay": None}),
        ({"max_delay": None}, {"max_delay": None}),
        ({"delays_ms": [100, 200]}, {"delays": [0.1, 0.2]}),
        ({"delays_s": [1, 2]}, {"delays": [1, 2]}),
        ({"delays": [1, 2]}, {"delays": [1, 2]}),
        (
            {"on_errors": "auto", "base_delay_ms": 1000},
            {"on_errors": ["transient"], "jitter": 0.25, "max_delay": 60, "cap": "before_jitter"},
        ),
        ({"backoff": "schedule", "delays_ms": [100]}, {"delays": [0.1]}),
        ({"jitter": 0}, {"jitter": 0}),
        ({"jitter": False}, {"jitter": 0}),
        ({"jitter": True}, {"jitter": {"add": 1.0}}),
        ({"jitter": 1}, {"jitter": 1.0}),
        ({"jitter": {"add_ms": 250}}, {"jitter": {"add": 0.25}}),
        ({"jitter": {"add_s": 2}}, {"jitter": {"add": 2}}),
        ({"jitter": {"add": 2}}, {"jitter": {"add": 2}}),
        ({"jitter": "full"}, {"jitter": "full"}),
        ({"jitter": "equal"}, {"jitter": "equal"}),
        ({"jitter": "decorrelated"}, {"jitter": "decorrelated"}),
        ({"cap": "before_jitter"}, {"cap": "before_jitter"}),
        ({"max_retry_after_ms": 5000}, {"max_retry_after": 5}),
        ({"max_retry_after_s": 5}, {"max_retry_after": 5}),
        ({"max_retry_after": 0}, {"max_retry_after": 0}),
        ({"on_errors": ["timeout", 429, "5xx"]}, {"on_errors": ["timeout", 429, "5xx"]}),
        ({"on_errors": "all"}, {"on_errors": ["all"]}),
        ({"retriable_errors": "all"}, {"on_errors": ["all"]}),
        ({"retriable_errors": "none"}, {"on_errors": []}),
        ({"retriable_errors": "auto"}, {"on_errors": ["transient"]}),
        ({"retriable_errors": ["timeout", "econnrefused"]}, {"on_errors": ["timeout", "econnrefused"]}),
        ({"on_errors": ["timeout"], "retriable_errors": "auto"}, {"on_errors": ["timeout"]}),
        ({"unclear": "fail"}, {}),
        ({"unclear": "retry"}, {"on_errors": ["transient", "unclear"]}),
        ({"unclear": "retry", "on_errors": ["timeout"]}, {"on_errors": ["timeout", "unclear"]}),
        ({"unclear": "retry", "on_errors": ["unclear"]}, {"on_errors": ["unclear"]}),
        ({"retryable_http_status_codes": [429]}, {"on_errors": [429]}),
        ({"on_errors": ["timeout"], "retryable_http_status_codes": [429]}, {"on_errors": ["timeout", 429]}),
        ({"skip_on_errors": ["timeout"]}, {"skip_on_errors": ["timeout"]}),
        ({"retry_limits": {"database": 5}}, {"retry_limits": {"database": 5}}),
        ({"retry_exhausted": True}, {"retry_exhausted": True}),
        ({"retry_exhausted_steps": True}, {"retry_exhausted": True}),
        ({"mode": "inline"}, {}),
        ({"mode": "requeue"}, {}),
    ],
)
def test_a_key_and_what_it_means(config, expected):
    """C-01, C-03, C-04, C-05, C-09, C-24, D-1: every key in every unit; what is left out keeps its default."""
    assert read(config) == RetryPolicy(**expected)


def test_tier_limits_come_with_their_spelling_only_if_nothing_else_bounds_the_attempts():
    """D-4, C-01: attempts and retries are two words for one number, so both bound the tiers' defaults away."""
    assert read({"retry_backoff_base": 1.0}).retry_limits == presets.tiered.retry_limits
    assert read({"retry_backoff_base": 1.0, "max_attempts": 4}) == read({"retry_backoff_base": 1.0, "max_retries": 3})


def test_the_block_is_not_changed_by_reading_it():
    """Reading twice gives the same (S0-32)."""
    config = {
        "max_retries": 3,
        "delays_ms": [100],
        "jitter": {"add_ms": 5},
        "on_errors": ["timeout"],
        "unclear": "retry",
    }
    before = repr(config)
    assert read(config) == read(config)
    assert repr(config) == before


def test_a_subclass_reads_itself():
    """C-24: from_config is a constructor like any other."""

    class Patient(RetryPolicy):
        __slots__ = ()

    assert type(Patient.from_config({"max_attempts": 9})) is Patient


# --- mistakes in a policy -------------------------------------------------------------------------------------------------

SECONDS = "seconds"
FINITE = "a finite number"
NAMES = "a category, an error class, a tier, a status, a range such as 5xx, or a dotted exception name"
KINDS = "an error name, an HTTP status, an exception class or a predicate"

# field, wrong value, what is expected, what came, and the way out where one is promised
WRONG = [
    *(("max_attempts", value, "an integer of at least 1", shown, "max_attempts=") for value, shown in (
        (0, "0"), (-1, "-1"), (True, "True"), (2.0, "2.0"), ("3", "'3'"), (NAN, "nan"), (INF, "inf"), ([3], "a value of type list"))),
    ("backoff", "Linear", "one of exponential, linear, fixed", "'Linear'", "'linear'"),
    ("backoff", "exponental", "one of exponential, linear, fixed", "'exponental'", "'exponential'"),
    ("backoff", None, "one of exponential, linear, fixed", "None", ""),
    ("backoff", 2, "one of exponential, linear, fixed", "2", ""),
    *((field, value, SECONDS, shown, "") for field in ("initial_delay", "max_delay", "max_retry_after") for value, shown in (
        (-1, "-1"), (-0.5, "-0.5"), (NAN, "nan"), (INF, "inf"), (True, "True"), ("1", "'1'"), (timedelta(seconds=-1), "-1"))),
    ("initial_delay", None, SECONDS, "None", ""),
    ("max_retry_after", None, SECONDS, "None", ""),
    *(("multiplier", value, f"{FINITE} of at least 1", shown, "") for value, shown in (
        (0, "0"), (0.5, "0.5"), (-2, "-2"), (NAN, "nan"), (INF, "inf"), (True, "True"), ("2", "'2'"), (None, "None"))),
    ("delays", 5, "a sequence of seconds", "5", ""),
    ("delays", "1, 2", "a sequence of seconds", "'1, 2'", ""),
    ("delays", None, "a sequence of seconds", "None", ""),
    ("delays[1]", [1, -1], SECONDS, "-1", ""),
    ("delays[0]", [NAN], SECONDS, "nan", ""),
    ("delays[0]", ["1"], SECONDS, "'1'", ""),
    ("delays[0]", [True], SECONDS, "True", ""),
    *(("jitter", value, "a ratio from 0 to 1", shown, "") for value, shown in (
        (-0.1, "-0.1"), (1.5, "1.5"), (NAN, "nan"), (INF, "inf"), (True, "True"), (None, "None"), ([0.1], "a value of type list"))),
    ("jitter", "ful", '"full", "equal", "decorrelated"', "'ful'", "'full'"),
    ("jitter", {"plus": 1}, '{"add": seconds}', "plus", ""),
    ("jitter", {"add": 1, "also": 2}, '{"add": seconds}', "also", ""),
    ("jitter['add']", {"add": -1}, SECONDS, "-1", ""),
    ("cap", "before", "one of after_jitter, before_jitter", "'before'", "'before_jitter'"),
    ("cap", None, "one of after_jitter, before_jitter", "None", ""),
    *((field, value, "a list of errors", shown, f"{field}=[...]") for field in ("on_errors", "skip_on_errors") for value, shown in (
        ("timeout", "'timeout'"), (None, "None"), (429, "429"), (TimeoutError, "TimeoutError"), ({"a": 1}, "a value of type dict"))),
    *((f"{field}[1]", [503, value], "a subclass of Exception", value.__name__, "Control flow") for field in ("on_errors", "skip_on_errors") for value in (
        BaseException, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, int)),
    ("on_errors[0]", ["netwrk_error"], NAMES, "'netwrk_error'", "'network_error'"),
    ("on_errors[0]", ["transiant"], NAMES, "'transiant'", "'transient'"),
    ("on_errors[0]", ["TimeoutErorr"], NAMES, "'TimeoutErorr'", "'TimeoutError'"),
    ("on_errors[0]", [""], NAMES, "''", ""),
    ("skip_on_errors[2]", [429, 503, "sintax_error"], NAMES, "'sintax_error'", "'syntax_error'"),
    *(("on_errors[0]", [value], "an HTTP status from 100 to 599", shown, "") for value, shown in (
        (99, "99"), (600, "600"), (-1, "-1"), ("6xx", "'6xx'"), ("0xx", "'0xx'"), ("42", "'42'"))),
    *(("on_errors[0]", [value], KINDS, shown, "") for value, shown in (
        (None, "None"), (True, "True"), (4.5, "4.5"), ([429], "a value of type list"), (ValueError(), "a value of type ValueError"))),
    ("retry_limits", 5, "a mapping from tier to retries", "5", ""),
    ("retry_limits", [("database", 5)], "a mapping from tier to retries", "a value of type list", ""),
    ("retry_limits['databse']", {"databse": 5}, "a tier", "'databse'", "'database'"),
    *(("retry_limits['database']", {"database": value}, "an integer of at least 0", shown, "") for value, shown in (
        (-1, "-1"), (True, "True"), (1.5, "1.5"), ("5", "'5'"), (None, "None"), (NAN, "nan"), (INF, "inf"))),
    ("retry_exhausted", "yes", "true, false or None", "'yes'", ""),
    ("retry_exhausted", 1, "true, false or None", "1", ""),
]  # fmt: skip


@table(
    ("field", "value", "expected", "shown", "way_out"),
    [pytest.param(*case, id=f"{case[0]}={case[3]}") for case in WRONG],
)
def test_a_wrong_setting_of_a_policy(field, value, expected, shown, way_out):
    """S0-29, C-08: one sentence with the field, what was expected, what came, and the way out."""
    name = field.partition("[")[0]
    (problem,) = problems(lambda: RetryPolicy(**{name: value}))
    assert problem.startswith(f"expected {field} to be ")
    assert expected in problem
    assert f"got: {shown}" in problem or f"{shown}'" in problem
    assert way_out in problem


@table(
    ("typo", "meant"),
    [
        ("max_attemps", "max_attempts"),
        ("backof", "backoff"),
        ("intial_delay", "initial_delay"),
        ("multiplyer", "multiplier"),
        ("max_delays", "max_delay"),
        ("delay", "delays"),
        ("jiter", "jitter"),
        ("on_error", "on_errors"),
        ("skip_errors", "skip_on_errors"),
        ("retry_limit", "retry_limits"),
        ("wait", "initial_delay"),  # names of other libraries
        ("on", "on_errors"),
        ("tries", "max_attempts"),
        ("retries", "max_attempts"),
    ],
)
def test_an_argument_that_does_not_exist(typo, meant):
    """C-24: the nearest right name is offered (S0-29)."""
    assert problems(lambda: RetryPolicy(**{typo: 1})) == [f"expected no argument {typo!r}. Did you mean {meant!r}?"]


def test_an_argument_that_resembles_nothing_is_answered_with_all_names():
    """A name nobody can guess gets the list (S0-29)."""
    (problem,) = problems(lambda: RetryPolicy(zzz=1))
    assert problem.startswith("expected no argument 'zzz'. Known: ")
    for name in ("max_attempts", "jitter", "on_errors", "retry_limits"):
        assert name in problem


@pytest.mark.parametrize("field", ["timeout", "total_timeout"])
def test_a_policy_has_no_time_limits(field):
    """The message names the place of a time limit, in code and in a block (S0-29)."""
    belongs = "Time limits belong to the guard, beside its retry."
    assert problems(lambda: RetryPolicy(**{field: 1})) == [f"expected no argument {field!r}. {belongs}"]
    assert problems(lambda: read({field: 1})) == [f"expected a known key, got: {field!r}. {belongs}"]


def test_a_number_too_large_for_a_float_is_a_mistake_like_any_other():
    """No other exception gets out of checking (S0-29)."""
    for field in ("initial_delay", "max_delay", "multiplier", "max_retry_after"):
        (problem,) = problems(lambda field=field: RetryPolicy(**{field: 10**400}))
        assert problem.startswith(f"expected {field} to be ")


@table(
    ("settings", "field", "words"),
    [
        ({"initial_delay": 60}, "initial_delay", ("at most max_delay (30 s)", "got: 60", "max_delay=None")),
        (
            {"initial_delay": 5, "max_delay": 2},
            "initial_delay",
            ("at most max_delay (2 s)", "got: 5", "Raise max_delay"),
        ),
        ({"on_errors": ["timeout"], "skip_on_errors": ["timeout"]}, "on_errors", ("skip_on_errors", "'timeout'")),
        ({"on_errors": [429], "skip_on_errors": [429]}, "on_errors", ("skip_on_errors", "429")),
        ({"on_errors": [429], "skip_on_errors": ["429"]}, "on_errors", ("skip_on_errors", "429")),
        ({"on_errors": [OSError], "skip_on_errors": [OSError]}, "on_errors", ("skip_on_errors", "OSError")),
        ({"on_errors": ["OSError"], "skip_on_errors": [OSError]}, "on_errors", ("skip_on_errors", "OSError")),
        ({"delays": [30, 120], "jitter": "decorrelated"}, "jitter", ("delays", "decorrelated")),
    ],
)
def test_settings_that_contradict_each_other(settings, field, words):
    """S0-29, C-08: each is fine by itself; together they cannot be meant."""
    (problem,) = problems(lambda: RetryPolicy(**settings))
    assert problem.startswith(f"expected {field} to be ")
    assert [word for word in words if word not in problem] == []


@table(
    ("field", "value", "more"),
    [
        ("initial_delay", 30.0, {}),
        ("initial_delay", 60.0, {"max_delay": None}),
        ("initial_delay", 60.0, {"delays": [1]}),
        ("initial_delay", 0.0, {"max_delay": 0}),
        ("max_attempts", 1, {}),
        ("multiplier", 1.0, {}),
        ("jitter", 0.0, {}),
        ("jitter", 1.0, {}),
        ("max_retry_after", 0.0, {}),
        ("on_errors", (), {}),
        ("on_errors", ("network_error",), {"skip_on_errors": ["connection_refused"]}),
        ("on_errors", ("5xx",), {"skip_on_errors": [501]}),
        ("on_errors", ("some.unknown.library.Error",), {}),
        ("on_errors", (100, 599, "1xx"), {}),
        ("retry_limits", {"database": 0}, {}),
        ("retry_exhausted", False, {}),
    ],
)
def test_settings_at_the_edge_are_accepted(field, value, more):
    """Zero, one, empty and None mean what they say (S0-29)."""
    assert getattr(RetryPolicy(**{field: value} | more), field) == value


def test_all_mistakes_of_a_policy_are_reported_at_once():
    """S0-29: nobody should have to correct one mistake to see the next."""
    assert problems(
        lambda: RetryPolicy(
            max_attempts=0,
            backoff="linaer",
            initial_delay=-1,
            multiplier=0.5,
            jitter=3,
            cap="before",
            on_errors=["netwrk_error", 700],
            retry_limits={"databse": 5},
            zzz=3,
        )
    ) == [
        "expected no argument 'zzz'. Known: backoff, cap, delays, initial_delay, jitter, max_attempts, max_delay, max_retry_after, multiplier, on_errors, retry_exhausted, retry_limits, skip_on_errors.",
        "expected backoff to be one of exponential, linear, fixed, got: 'linaer'. Did you mean 'linear'?",
        "expected initial_delay to be seconds (a number or a timedelta) of at least 0, got: -1.",
        "expected multiplier to be a finite number of at least 1, got: 0.5.",
        'expected jitter to be a ratio from 0 to 1, "full", "equal", "decorrelated" or {"add": seconds}, got: 3.',
        "expected cap to be one of after_jitter, before_jitter, got: 'before'. Did you mean 'before_jitter'?",
        "expected on_errors[0] to be a category, an error class, a tier, a status, a range such as 5xx, or a dotted exception name, got: 'netwrk_error'. Did you mean 'network_error'?",
        "expected on_errors[1] to be an HTTP status from 100 to 599, got: 700.",
        "expected retry_limits['databse'] to be the limit of a tier (network, database, http_429_503, http_500_502_504, http_5xx_other, unknown, worker, circuit, limit, resource, data, code, http_4xx, auth), got: 'databse'. Did you mean 'database'?",
        "expected max_attempts to be an integer of at least 1, got: 0. Use max_attempts=1 to call once without retrying.",
    ]


def test_replace_checks_again():
    """A changed copy is a new policy (S0-29)."""
    assert problems(lambda: RetryPolicy().replace(max_attempts=0, jitter=2)) != []
    assert problems(lambda: RetryPolicy().replace(max_attemps=4)) == [
        "expected no argument 'max_attemps'. Did you mean 'max_attempts'?"
    ]


def test_the_error_can_be_caught_as_a_value_error():
    """It belongs to Outlast's family, and to the one that callers expect (S0-29)."""
    with pytest.raises(ConfigurationError) as caught:
        RetryPolicy(max_attempts=0, jitter=2)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, OutlastError)
    assert str(caught.value).startswith("2 problems:\n  - expected ")
    with pytest.raises(ConfigurationError) as caught:
        RetryPolicy(max_attempts=0)
    assert str(caught.value) == caught.value.problems[0]


def test_no_message_shows_the_contents_of_a_value():
    """A payload that strayed into a setting stays out of the message; a long text is cut (S0-41, S0-29)."""
    (problem,) = problems(lambda: RetryPolicy(jitter={"password": "hunter2"}))
    assert "hunter2" not in problem
    (problem,) = problems(lambda: RetryPolicy(on_errors=[["hunter2"]]))
    assert "hunter2" not in problem
    (problem,) = problems(lambda: RetryPolicy(backoff="x" * 10_000))
    assert len(problem) < 300


# --- mistakes in a block --------------------------------------------------------------------------------------------------


@table(
    ("config", "expected"),
    [
        ({"initial_delay_ms": "fast"}, ["expected initial_delay_ms to be milliseconds of at least 0, got: 'fast'."]),
        ({"initial_delay_ms": -5}, ["expected initial_delay_ms to be milliseconds of at least 0, got: -5."]),
        ({"initial_delay_ms": True}, ["expected initial_delay_ms to be milliseconds of at least 0, got: True."]),
        ({"initial_delay_ms": NAN}, ["expected initial_delay_ms to be milliseconds of at least 0, got: nan."]),
        (
            {"max_delay_ms": INF},
            ["expected max_delay_ms to be milliseconds of at least 0, got: inf. It must be finite."],
        ),
        (
            {"initial_delay_s": "1s"},
            [
                "expected initial_delay_s to be seconds of at least 0, got: '1s'. A text has its unit with it: write it under initial_delay."
            ],
        ),
        ({"base_delay_ms": -1}, ["expected base_delay_ms to be milliseconds of at least 0, got: -1."]),
        ({"retry_backoff_base": -1}, ["expected retry_backoff_base to be seconds of at least 0, got: -1."]),
        ({"max_retry_after_ms": None}, ["expected max_retry_after_ms to be milliseconds of at least 0, got: None."]),
        (
            {"delays_ms": [100, "x", -1]},
            [
                "expected delays_ms[1] to be milliseconds of at least 0, got: 'x'.",
                "expected delays_ms[2] to be milliseconds of at least 0, got: -1.",
            ],
        ),
        ({"jitter": {"add_ms": -5}}, ["expected jitter.add_ms to be milliseconds of at least 0, got: -5."]),
        ({"max_retries": -1}, ["expected max_retries to be an integer of at least 0, got: -1."]),
        ({"max_retries": 1.5}, ["expected max_retries to be an integer of at least 0, got: 1.5."]),
        ({"max_retries": True}, ["expected max_retries to be an integer of at least 0, got: True."]),
        ({"mode": "later"}, ["expected mode to be inline or requeue, got: 'later'."]),
        ({"mode": ["inline"]}, ["expected mode to be inline or requeue, got: a value of type list."]),
        ({"unclear": "maybe"}, ["expected unclear to be fail or retry, got: 'maybe'."]),
        ({"retryable_exceptions": "OSError"}, ["expected retryable_exceptions to be a list, got: 'OSError'."]),
        (
            {"max_attempts": 4, "max_retries": 4},
            ["expected max_retries to be one less than max_attempts, got: 4. Give only one of the two."],
        ),
        (
            {"initial_delay_ms": 1, "initial_delay": 2},
            ["expected initial_delay to be given once, got: both initial_delay and initial_delay_ms."],
        ),
        (
            {"delays_ms": []},
            [
                "expected delays_ms to be a list of at least one delay, got: an empty one. Leave it out for backoff, or say max_attempts: 1."
            ],
        ),
        (
            {"retry_limits": {}},
            [
                "expected retry_limits to be the limit of at least one tier, got: an empty mapping. Leave it out for no limits by tier, or say max_attempts: 1."
            ],
        ),
        (
            {"delays_ms": [5], "initial_delay_ms": 3, "max_delay_s": 4, "multiplier": 3},
            [
                f"expected {key} to be left out when delays are listed, got: {value}. Delays are waited as they are listed: leave it out."
                for key, value in (("initial_delay_ms", 3), ("max_delay_s", 4), ("multiplier", 3))
            ],
        ),
        (
            {"backoff": "linear", "multiplier": 3},
            [
                "expected multiplier to be left out with backoff linear, got: 3. Only exponential backoff is multiplied: leave it out."
            ],
        ),
        (
            {"on_errors": ["timeout", "unclear"], "unclear": "fail"},
            ["expected unclear to be retry, or left out, got: 'fail'. on_errors lists unclear: keep it in one."],
        ),
        (
            {"retry_exhausted": True, "retry_exhausted_steps": False},
            ["expected retry_exhausted to be given once, got: both retry_exhausted and retry_exhausted_steps."],
        ),
        (
            {"on_errors": ["timeout"], "retriable_errors": ["timeout"]},
            ["expected on_errors to be given once, got: both on_errors and retriable_errors."],
        ),
        (
            {"delays_ms": [1000], "backoff": "linear"},
            ["expected backoff to be schedule when delays are listed, got: 'linear'."],
        ),
        (
            {"backoff": "schedule"},
            ["expected delays_ms to be a list of delays (backoff: schedule needs them), got: none."],
        ),
    ],
)
def test_a_wrong_block(config, expected):
    """S0-29, C-01, C-24: the sentence names the key and the value as they were written, in their unit."""
    assert problems(lambda: read(config)) == expected


@table(
    ("config", "words"),
    [
        ({"initial_delay_ms": 50_000, "max_delay_ms": 30_000}, ["initial_delay_ms", "50000", "max_delay_ms", "30000"]),
        ({"initial_delay_ms": 50_000}, ["initial_delay_ms", "50000"]),
        ({"base_delay_ms": 90_000}, ["base_delay_ms", "90000"]),
        ({"base_delay": 90}, ["base_delay", "90"]),
        ({"retriable_errors": [429, 999]}, ["retriable_errors[1]", "999"]),
        ({"retriable_errors": "some"}, ["retriable_errors", "'some'"]),
        ({"retryable_http_status_codes": [429, 999]}, ["retryable_http_status_codes[1]", "999"]),
        ({"retryable_exceptions": ["OSEror"]}, ["retryable_exceptions[0]", "'OSEror'"]),
        ({"retry_exhausted_steps": "maybe"}, ["retry_exhausted_steps", "'maybe'"]),
        ({"delays_ms": 5}, ["delays_ms", "5"]),
    ],
)
def test_a_wrong_block_in_an_older_spelling_is_answered_in_that_spelling(config, words):
    """C-24: nobody finds a key in their file that they did not write (S0-29)."""
    (problem,) = problems(lambda: read(config))
    assert [word for word in words if word not in problem] == []


@table(
    ("typo", "meant"),
    [
        ("max_atempts", "max_attempts"),
        ("max_retry", "max_retries"),
        ("initial_delay_msec", "initial_delay_ms"),
        ("max_delay_millis", "max_delay_ms"),
        ("jiter", "jitter"),
        ("on_error", "on_errors"),
        ("skip_errors", "skip_on_errors"),
        ("retryable_errors", "retriable_errors"),
        ("retry_limit", "retry_limits"),
        ("backof", "backoff"),
    ],
)
def test_a_key_that_does_not_exist(typo, meant):
    """C-24: an unknown key is never silently ignored (S0-29)."""
    (problem,) = problems(lambda: read({typo: 1}))
    assert repr(typo) in problem
    assert f"Did you mean {meant!r}?" in problem


@pytest.mark.parametrize(
    ("word", "meant"), [("shedule", "schedule"), ("jitered_exponential", "jittered_exponential"), ("fixd", "fixed")]
)
def test_a_backoff_that_does_not_exist_in_a_block(word, meant):
    """C-03: the words a block may use are offered, the older ones too (S0-29)."""
    (problem,) = problems(lambda: read({"backoff": word}))
    assert problem.startswith("expected backoff to be one of ")
    assert f"Did you mean {meant!r}?" in problem


@table("block", [None, 5, "retry", ["max_attempts"], [("max_attempts", 3)]])
def test_a_block_that_is_no_mapping(block):
    """What stands in its place is named (S0-29)."""
    (problem,) = problems(lambda: read(block))
    assert problem.startswith("expected retry to be a mapping of settings, got: ")


def test_a_key_that_is_no_text():
    """C-24: also a number as a key is an unknown key."""
    (problem,) = problems(lambda: read({5: 1}))
    assert problem.startswith("expected a known key, got: 5. Known: preset, max_attempts, max_retries, ")


def test_all_mistakes_of_a_block_are_reported_at_once():
    """C-24: unknown keys, wrong types, ranges and contradictions together (S0-29)."""
    assert problems(
        lambda: read(
            {
                "max_atempts": 3,
                "max_attempts": 4,
                "max_retries": 5,
                "initial_delay_ms": "soon",
                "cap": "before",
                "jitter": 1.5,
                "on_errors": ["network_error", "timout"],
                "skip_on_errors": ["network_error"],
                "retry_limits": {"database": -1},
                "unclear": "maybe",
                "mode": "later",
            }
        )
    ) == [
        "expected a known key, got: 'max_atempts'. Did you mean 'max_attempts'?",
        "expected max_retries to be one less than max_attempts, got: 5. Give only one of the two.",
        "expected initial_delay_ms to be milliseconds of at least 0, got: 'soon'.",
        "expected unclear to be fail or retry, got: 'maybe'.",
        "expected mode to be inline or requeue, got: 'later'.",
        'expected jitter to be a ratio from 0 to 1, "full", "equal", "decorrelated" or {"add": seconds}, got: 1.5.',
        "expected cap to be one of after_jitter, before_jitter, got: 'before'. Did you mean 'before_jitter'?",
        "expected on_errors[1] to be a category, an error class, a tier, a status, a range such as 5xx, or a dotted exception name, got: 'timout'. Did you mean 'timeout'?",
        "expected retry_limits['database'] to be an integer of at least 0, got: -1.",
        "expected on_errors to be free of what skip_on_errors lists, got: 'network_error'. skip_on_errors would always win: keep it in one.",
    ]


# --- mistakes in a guard --------------------------------------------------------------------------------------------------

DURATIONS = [(0, "0"), (-1, "-1"), (NAN, "nan"), (INF, "inf"), (True, "True"), ("5", "'5'"), (timedelta(0), "0")]
WRONG_GUARD = [
    ("name", 5, "a name", "5", ""),
    ("name", "", "a name", "''", ""),
    ("name", True, "a name", "True", ""),
    ("retry", {"max_attempts": 3}, "a RetryPolicy or None", "a value of type dict", "RetryPolicy.from_config"),
    ("retry", 3, "a RetryPolicy or None", "3", ""),
    ("retry", RetryPolicy, "a RetryPolicy or None", "RetryPolicy", ""),
    *(
        (field, value, "greater than 0", shown, "")
        for field in ("timeout", "total_timeout")
        for value, shown in DURATIONS
    ),
    ("isolation", "proces", "thread, process", "'proces'", "'process'"),
    ("isolation", "thraed", "thread", "'thraed'", "'thread'"),
    ("isolation", True, "thread", "True", ""),
    ("breaker", "payments", "a CircuitBreaker or None", "'payments'", ""),
    ("breaker", CircuitBreaker, "a CircuitBreaker or None", "CircuitBreaker", ""),
    ("breaker", 5, "a CircuitBreaker or None", "5", ""),
    ("retry_budget", 0.2, "a RetryBudget or None", "0.2", ""),
    ("retry_budget", RetryBudget, "a RetryBudget or None", "RetryBudget", ""),
    ("on_open", "wiat", "one of fail, wait", "'wiat'", "'wait'"),
    ("on_open", None, "one of fail, wait", "None", ""),
    ("on_open", True, "one of fail, wait", "True", ""),
    ("retry_if", "empty", "a function of a result", "'empty'", ""),
    ("retry_if", True, "a function of a result", "True", ""),
    ("fallback", "nothing", "a function or None", "'nothing'", ""),
    ("fallback", 0, "a function or None", "0", ""),
]


@table(
    ("field", "value", "expected", "shown", "way_out"),
    [pytest.param(*case, id=f"{case[0]}={case[3]}") for case in WRONG_GUARD],
)
def test_a_wrong_setting_of_a_guard(field, value, expected, shown, way_out):
    """C-19: field, expectation, what came, and the way out (S0-29)."""
    (problem,) = problems(lambda: Guard(**{field: value}))
    assert problem.startswith(f"expected {field} to be ")
    assert expected in problem
    assert f"got: {shown}" in problem
    assert way_out in problem


@table(
    ("typo", "meant"),
    [
        ("brekaer", "breaker"),
        ("time_out", "timeout"),
        ("totaltimeout", "total_timeout"),
        ("fall_back", "fallback"),
        ("retri", "retry"),
        ("retries", "retry"),
        ("max_time", "total_timeout"),
    ],
)
def test_an_argument_that_a_guard_does_not_have(typo, meant):
    """The nearest right name is offered (S0-29)."""
    assert problems(lambda: Guard(**{typo: 1})) == [f"expected no argument {typo!r}. Did you mean {meant!r}?"]


def test_all_mistakes_of_a_guard_are_reported_at_once():
    """C-19: total_timeout below timeout is one of them (S0-29)."""
    assert problems(lambda: Guard("", retry=3, timeout=5, total_timeout=2, on_open="wiat", fallback="x", limits=1)) == [
        "expected no argument 'limits'. Did you mean 'limit'?",
        "expected name to be a name (a string that is not empty), got: ''.",
        "expected retry to be a RetryPolicy or None, got: 3. RetryPolicy.from_config reads a mapping.",
        "expected total_timeout to be at least timeout (5 s), got: 2.0. The total includes every attempt.",
        "expected on_open to be one of fail, wait, got: 'wiat'. Did you mean 'wait'?",
        "expected fallback to be a function or None, got: 'x'.",
    ]


def test_total_timeout_may_equal_timeout():
    """C-19: only a smaller one is a contradiction."""
    guard = Guard(timeout=timedelta(seconds=5), total_timeout=5)
    assert (guard.timeout, guard.total_timeout) == (5.0, 5.0)


# --- mistakes at decoration -------------------------------------------------------------------------------------------------


def sync() -> None: ...


async def coroutine() -> None: ...


def generator():
    yield 1


async def async_generator():
    yield 1


async def async_fallback() -> None: ...


@table(
    ("guard", "fn", "words"),
    [
        (Guard(timeout=5), sync, ['isolation="thread"', "sync", "total_timeout"]),
        (Guard(isolation="thread", timeout=5), coroutine, ["no isolation", "coroutine"]),
        (Guard(fallback=async_fallback), sync, ["fallback", "async_fallback"]),
        (Guard(timeout=5), generator, ["no timeout", "generator"]),
        (Guard(fallback=sync), async_generator, ["no fallback", "async_generator"]),
        (Guard(isolation="process"), coroutine, ["no isolation", "coroutine"]),
        (Guard(isolation="process"), generator, ["no isolation", "generator"]),
        (Guard(isolation="process"), lambda: 0, ["import", "lambda", 'isolation="thread"']),
        (Guard(idle_timeout=5), generator, ["no idle_timeout", "generator"]),
        (Guard(idle_timeout=5), sync, ["no idle_timeout", "async generator"]),
        (Guard(), 5, ["function", "int"]),
        (Guard(), None, ["function", "NoneType"]),
    ],
)
def test_what_a_guard_cannot_protect_is_refused_when_it_is_decorated(guard, fn, words):
    """D-9: a promise that cannot be kept is an error before the first call, with the way out (S0-16)."""
    (problem,) = problems(lambda: guard(fn))
    assert [word for word in words if word not in problem] == []


def test_what_cannot_be_decorated_cannot_be_called_either():
    """D-9: call and outcome refuse as the decorator does."""
    for method in (Guard(timeout=5).call, Guard(timeout=5).outcome):
        (problem,) = problems(lambda method=method: method(sync))
        assert 'isolation="thread"' in problem
    (problem,) = problems(lambda: Guard().outcome(coroutine))
    assert "aoutcome" in problem


@pytest.mark.parametrize(
    ("guard", "field"),
    [
        (Guard(fallback=sync), "fallback"),
        (Guard(retry_if=bool), "retry_if"),
        (Guard(isolation="thread"), "isolation"),
    ],
)
def test_a_loop_over_attempts_has_no_function_to_apply_settings_to(guard, field):
    """D-9: what could not work is refused."""
    (problem,) = problems(guard.attempts)
    assert f"expected no {field} in a loop over attempts" in problem


def test_a_sync_loop_over_attempts_cannot_end_one_on_time():
    """D-9: an attempt timeout needs `async for` (S0-16)."""
    (problem,) = problems(lambda: iter(Guard(timeout=5).attempts()))
    assert "timeout" in problem
    assert "async for" in problem


# --- mistakes in a breaker --------------------------------------------------------------------------------------------------

WRONG_BREAKER = [
    ("name", 5, "a name", "5", ""),
    ("name", "", "a name", "''", ""),
    *((field, value, "an integer of at least 1", shown, "") for field in
      ("failure_threshold", "half_open_requests", "success_threshold", "window", "min_calls") for value, shown in
      ((0, "0"), (-1, "-1"), (True, "True"), (1.5, "1.5"), ("5", "'5'"), (NAN, "nan"), (INF, "inf"))),
    *(("reset_timeout", value, SECONDS, shown, "") for value, shown in
      ((-1, "-1"), (NAN, "nan"), (INF, "inf"), (True, "True"), ("60", "'60'"), (None, "None"))),
    *(("slow_call", value, "greater than 0", shown, "") for value, shown in DURATIONS),
    *(("failure_rate", value, "greater than 0 and at most 1", shown, "") for value, shown in
      ((0, "0"), (1.1, "1.1"), (-0.5, "-0.5"), (NAN, "nan"), (INF, "inf"), (True, "True"), ("0.5", "'0.5'"))),
    *(("open_jitter", value, "of at least 0 and at most 1", shown, "") for value, shown in
      ((-0.1, "-0.1"), (1.5, "1.5"), (NAN, "nan"), (True, "True"), (None, "None"))),
    *(("open_growth", value, "of at least 1", shown, "") for value, shown in
      ((0.5, "0.5"), (NAN, "nan"), (INF, "inf"), (True, "True"), ("2", "'2'"))),
    ("count", "fault", "one of faults, any", "'fault'", "'faults'"),
    ("count", None, "one of faults, any", "None", ""),
    ("mode", "shadw", "one of on, shadow", "'shadw'", "'shadow'"),
    ("mode", True, "one of on, shadow", "True", ""),
    ("shared", 1, "True or False", "1", ""),
]  # fmt: skip


@table(
    ("field", "value", "expected", "shown", "way_out"),
    [pytest.param(*case, id=f"{case[0]}={case[3]}") for case in WRONG_BREAKER],
)
def test_a_wrong_setting_of_a_breaker(field, value, expected, shown, way_out):
    """C-13: field, expectation, what came, and the way out (S0-29)."""
    (problem,) = problems(lambda: CircuitBreaker(**{"name": "payments"} | {field: value}))
    assert problem.startswith(f"expected {field} to be ")
    assert expected in problem
    assert f"got: {shown}" in problem
    assert way_out in problem


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("failure_treshold", "failure_threshold"),
        ("reset_timout", "reset_timeout"),
        ("sucess_threshold", "success_threshold"),
    ],
)
def test_an_argument_that_a_breaker_does_not_have(typo, meant):
    """The nearest right name is offered (S0-29)."""
    assert problems(lambda: CircuitBreaker("x", **{typo: 1})) == [
        f"expected no argument {typo!r}. Did you mean {meant!r}?"
    ]


def test_all_mistakes_of_a_breaker_are_reported_at_once():
    """C-13: a rate that needs more calls than its window holds is one of them (S0-29)."""
    assert problems(
        lambda: CircuitBreaker(
            "payments",
            failure_threshold=0,
            reset_timeout=-1,
            failure_rate=0.5,
            window=10,
            count="fault",
            failure_treshold=3,
        )
    ) == [
        "expected no argument 'failure_treshold'. Did you mean 'failure_threshold'?",
        "expected failure_threshold to be an integer of at least 1, got: 0.",
        "expected reset_timeout to be seconds (a number or a timedelta) of at least 0, got: -1.",
        "expected count to be one of faults, any, got: 'fault'. Did you mean 'faults'?",
        "expected min_calls to be at most window (10), got: 20. Lower it, or raise window: the rate would never be looked at.",
    ]


# --- mistakes in a budget ---------------------------------------------------------------------------------------------------


@table(
    ("field", "value", "expected", "shown"),
    [
        ("name", "", "a name", "''"),
        ("name", 5, "a name", "5"),
        *(
            ("ratio", value, "of at least 0 and at most 1", shown)
            for value, shown in (
                (-0.1, "-0.1"),
                (1.1, "1.1"),
                (NAN, "nan"),
                (INF, "inf"),
                (True, "True"),
                ("0.2", "'0.2'"),
            )
        ),
        *(
            ("reserve", value, "an integer of at least 0", shown)
            for value, shown in ((-1, "-1"), (1.5, "1.5"), (True, "True"), (NAN, "nan"), ("1", "'1'"), (None, "None"))
        ),
        ("shared", 1, "True or False", "1"),
    ],
)
def test_a_wrong_setting_of_a_budget(field, value, expected, shown):
    """D-12: field, expectation and what came (S0-29)."""
    (problem,) = problems(lambda: RetryBudget(**{"name": "openai"} | {field: value}))
    assert problem.startswith(f"expected {field} to be ")
    assert expected in problem
    assert f"got: {shown}." in problem


def test_all_mistakes_of_a_budget_are_reported_at_once():
    """D-12: with the nearest right name (S0-29)."""
    assert problems(lambda: RetryBudget("", ratio=2, reserve=-1, reserv=3)) == [
        "expected no argument 'reserv'. Did you mean 'reserve'?",
        "expected name to be a name (a string that is not empty), got: ''.",
        "expected ratio to be a finite number of at least 0 and at most 1, got: 2.",
        "expected reserve to be an integer of at least 0, got: -1.",
    ]


# --- mistakes in @retry -----------------------------------------------------------------------------------------------------


def test_all_mistakes_of_retry_are_reported_at_once():
    """Those of the policy and those of the guard together (S0-29)."""
    assert problems(lambda: retry(max_attempts=0, jitter=2, timeout=0, total_timeout=-1)) == [
        'expected jitter to be a ratio from 0 to 1, "full", "equal", "decorrelated" or {"add": seconds}, got: 2.',
        "expected max_attempts to be an integer of at least 1, got: 0. Use max_attempts=1 to call once without retrying.",
        "expected timeout to be seconds (a number or a timedelta) greater than 0, got: 0.",
        "expected total_timeout to be seconds (a number or a timedelta) greater than 0, got: -1.",
    ]


@table(
    ("typo", "meant"),
    [("max_attemps", "max_attempts"), ("total_timout", "total_timeout"), ("time_out", "timeout"), ("jiter", "jitter")],
)
def test_an_option_that_retry_does_not_have(typo, meant):
    """The nearest right name, of the policy or of the guard (S0-29)."""
    (problem,) = problems(lambda: retry(**{typo: 1}))
    assert repr(typo) in problem
    assert f"Did you mean {meant!r}?" in problem


@table("target", [5, "max_attempts", {"max_attempts": 3}, [], 3.5])
def test_retry_on_something_that_is_no_function(target):
    """What came is named (S0-29)."""
    (problem,) = problems(lambda: retry(target))
    assert "expected a function or a RetryPolicy" in problem


def test_options_beside_a_policy():
    """A policy brings its own; the way out is replace (S0-29)."""
    found = problems(lambda: retry(RetryPolicy(), max_attempts=5))
    assert found == [
        "expected only timeout and total_timeout beside a policy, got: max_attempts=.... Use policy.replace(...) for the rest.",
    ]
    guard = retry(RetryPolicy(max_attempts=7), timeout=1, total_timeout=9)
    assert (guard.retry.max_attempts, guard.timeout, guard.total_timeout) == (7, 1.0, 9.0)


def test_options_beside_a_function():
    """A function cannot be decorated and configured in one call (S0-29)."""
    (problem,) = problems(lambda: retry(sync, max_attempts=5))
    assert "retry(" in problem


# --- mistakes in errors of one's own --------------------------------------------------------------------------------------


def test_temporary_failure_takes_seconds():
    """D-6: as a number or a timedelta."""
    assert TemporaryFailure(retry_after=timedelta(minutes=1)).retry_after == 60.0
    assert TemporaryFailure(retry_after=3).retry_after == 3.0
    assert TemporaryFailure().retry_after is None
