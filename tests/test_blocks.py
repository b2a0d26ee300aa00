"""Guards and their parts as configuration: read from blocks, shown as blocks, and the same again after both."""

from __future__ import annotations

import functools
import inspect
import json
import os
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outlast
from outlast import (
    CircuitBreaker,
    ConfigurationError,
    Guard,
    Hedge,
    Limit,
    Rate,
    RetryBudget,
    RetryPolicy,
    TemporaryFailure,
    presets,
)
from outlast.settings.keys import BLOCKS, keys_of

read = Guard.from_config


def problems(make) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        make()
    return list(caught.value.problems)


def price(*_: object) -> dict[str, float]:
    return {"tokens": 1.0}


def cheap(*_: object) -> str:
    return "cheap"


def unwanted(result: object) -> bool:
    return result is None


# --- one block ---

WHOLE = {
    "name": "reviews",
    "preset": "llm",
    "retry": {"max_attempts": 2},
    "timeout": {"step_ms": 30000, "total_ms": 60000},
    "circuit_breaker": {"failure_threshold": 5, "reset_timeout_s": 60, "half_open_requests": 2, "on_open": "wait"},
    "limit": {
        "concurrency": 8,
        "rates": {"calls": "500/min", "tokens": {"amount": 90000, "per": "1m"}},
        "max_wait": "500ms",
    },
    "retry_budget": {"ratio": 0.1, "reserve": 5},
    "hedge": {"after_ms": 200},
    "idempotent": True,
}


def test_one_block_makes_a_whole_guard():
    """S0-14, S0-15, S0-26: every part, with the guard's name where it has none of its own."""
    guard = read(WHOLE)
    assert guard.retry == presets.llm.replace(max_attempts=2)
    assert (guard.name, guard.timeout, guard.total_timeout, guard.on_open) == ("reviews", 30.0, 60.0, "wait")
    assert (guard.breaker.name, guard.breaker.failure_threshold, guard.breaker.reset_timeout) == ("reviews", 5, 60.0)
    assert guard.limit.rates == {"calls": Rate(500, per=60), "tokens": Rate(90000, per=60)}
    assert (guard.limit.name, guard.limit.concurrency, guard.limit.max_wait) == ("reviews", 8, 0.5)
    assert (guard.retry_budget.ratio, guard.retry_budget.reserve) == (0.1, 5)
    assert guard.hedge == Hedge(after=0.2)


def test_an_empty_block_is_a_plain_guard():
    """What is left out has the guard's own defaults; null for retry is one attempt."""
    assert read({}).retry == RetryPolicy()
    assert read({"retry": None}).retry == RetryPolicy(max_attempts=1)
    assert read({}).to_config() == {}
    nothing = ("retry", "timeout", "circuit_breaker", "limit", "retry_budget", "hedge", "fallback")
    assert read(dict.fromkeys(nothing)).to_config() == {"retry": None}


@pytest.mark.parametrize(
    "written",
    [
        {"timeout": 30, "total_timeout": 90},
        {"timeout_s": 30, "total_timeout_s": 90.0},
        {"timeout_ms": 30000, "total_timeout_ms": 90000},
        {"timeout": "30s", "total_timeout": "1.5m"},
        {"timeout": "30000 ms", "total_timeout": "1.5 min"},
        {"timeout": "30", "total_timeout": "90.0"},
        {"timeout_ms": "30000", "total_timeout_s": "90"},
        {"timeout": timedelta(seconds=30), "total_timeout": timedelta(seconds=90)},
        {"timeout": {"step_ms": 30000, "total_ms": 90000}},
        {"timeout": {"step": "30s", "total_s": 90}},
        {"timeout": {"step": 30}, "total_timeout": "90s"},
    ],
)
def test_every_way_to_write_a_duration(written):
    """C-19: a number in the unit of its key, or a text that has its unit with it."""
    guard = read(written)
    assert (guard.timeout, guard.total_timeout) == (30.0, 90.0)


def test_numbers_from_the_environment_are_text():
    """C-19: an environment variable is text, and the number in it counts."""
    breaker = CircuitBreaker.from_config(
        {"name": "a", "window": "70", "failure_rate": "0.5", "shared": "false", "slow_call": "250ms"}
    )
    assert (breaker.window, breaker.failure_rate, breaker.shared, breaker.slow_call) == (70, 0.5, False, 0.25)
    policy = RetryPolicy.from_config(
        {
            "max_attempts": "4",
            "multiplier": "3",
            "jitter": "0.5",
            "initial_delay": "500ms",
            "max_delay_ms": "9000",
            "retry_limits": {"network": "2"},
            "retry_exhausted": "true",
        }
    )
    assert policy == RetryPolicy(
        max_attempts=4,
        multiplier=3,
        jitter=0.5,
        initial_delay=0.5,
        max_delay=9,
        retry_limits={"network": 2},
        retry_exhausted=True,
    )
    assert RetryPolicy.from_config({"delays": ["1s", "2m", 3]}).delays == (1.0, 120.0, 3.0)


@pytest.mark.parametrize("text", ["500/min", "500/60s", "500 / 1m", "500/60"])
def test_a_rate_in_one_word(text):
    """C-19: so much per so long."""
    assert Rate.from_config(text) == Rate(500, per=60)


# --- presets ---


@pytest.mark.parametrize("name", ["default", "llm", "database", "step", "jobs", "tiered", "stage", "call"])
def test_every_preset_by_its_name(name):
    """In a retry block, in a guard's block, and with nothing changed (S0-29)."""
    policy = getattr(presets, name)
    assert RetryPolicy.from_config({"preset": name}) == policy
    assert read({"preset": name}).retry == policy == read({"retry": {"preset": name}}).retry


@pytest.mark.parametrize(
    ("block", "changed"),
    [
        ({"preset": "llm", "max_attempts": 9}, {"max_attempts": 9}),
        ({"preset": "llm", "max_retries": 2, "jitter": "full"}, {"max_attempts": 3, "jitter": "full"}),
        ({"preset": "llm", "max_delay_ms": None}, {"max_delay": None}),
        ({"preset": "llm", "on_errors": ["timeout"]}, {"on_errors": ["timeout"]}),
        ({"preset": "llm", "unclear": "retry"}, {"on_errors": ["transient", "5xx", 408, 409, "unclear"]}),
        ({"preset": "stage", "unclear": "fail"}, {"on_errors": ["transient"]}),
        ({"preset": "jobs", "delays_s": [1, 2]}, {"delays": [1, 2]}),
        (
            {"preset": "jobs", "backoff": "fixed", "initial_delay_ms": 50},
            {"delays": (), "backoff": "fixed", "initial_delay": 0.05},
        ),
        ({"preset": "llm", "backoff": "schedule", "delays": [1]}, {"delays": [1]}),
        ({"preset": "tiered", "retry_limits": {"network": 1}}, {"retry_limits": {"network": 1}}),
    ],
)
def test_a_block_changes_its_preset(block, changed):
    """What the block says wins, everything else is the preset's (S0-29)."""
    assert RetryPolicy.from_config(block) == getattr(presets, block["preset"]).replace(**changed)


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (
            {"preset": "lm"},
            "expected preset to be one of default, llm, database, step, jobs, tiered, stage, call, got: 'lm'. Did you mean 'llm'?",
        ),
        (
            {"preset": 5},
            "expected preset to be one of default, llm, database, step, jobs, tiered, stage, call, got: 5.",
        ),
        (
            {"preset": "llm", "retry": None},
            "expected preset to be left out with retry: null, got: 'llm'. Without retries there is nothing to preset: leave one of the two out.",
        ),
        (
            {"preset": "llm", "retry": {"preset": "jobs"}},
            "expected preset to be given once, got: both preset and retry.preset.",
        ),
        (
            {"retry": {"preset": "llm", "base_delay_ms": 5}},
            "expected retry.base_delay_ms to be left out with a preset, got: 5. It brings defaults of its own: write initial_delay_ms.",
        ),
        (
            {"preset": "jobs", "retry": {"max_delay_ms": 5}},
            "expected retry.max_delay_ms to be left out when delays are listed, got: 5. Delays are waited as they are listed: leave it out.",
        ),
        (
            {"preset": "llm", "retry": {"max_delay_ms": 5}},
            "expected retry.initial_delay_ms to be at most max_delay_ms (5), got: 1000. Raise max_delay_ms, or set max_delay_ms: null for no ceiling.",
        ),
    ],
)
def test_a_preset_that_cannot_be(block, problem):
    """D-26: an unknown name, and what would have no effect."""
    assert problems(lambda: read(block)) == [problem]


# --- mistakes ---


def test_every_mistake_in_every_block_at_once():
    """S0-29: with its path, the nearest name and the way out; nothing is said of what only follows from another mistake."""
    block = {
        "retry": {"max_atempts": 2, "initial_delay": "soon"},
        "timeout": {"step_ms": "30s", "totl_ms": 3},
        "circuit_breaker": {"failure_treshold": 5, "window": 0, "name": ""},
        "limit": {"rates": {"calls": "500", "tokens": {"per": 0}}},
        "retry_budget": 5,
        "hedge": {},
        "fallback": "os:system",
        "cost": 5,
        "on_open": "wait",
        "total_timeout": "1s",
        "isolatoin": "thread",
    }
    assert problems(lambda: read(block)) == [
        "expected a known key, got: 'isolatoin'. Did you mean 'isolation'?",
        "expected a known key in retry, got: 'max_atempts'. Did you mean 'max_attempts'?",
        'expected retry.initial_delay to be seconds of at least 0, got: \'soon\'. A text has its unit with it: "500ms", "30s", "5m", "2h", "1d".',
        "expected a known key in circuit_breaker, got: 'failure_treshold'. Did you mean 'failure_threshold'?",
        "expected circuit_breaker.window to be left out without failure_rate, got: 0. How many calls the rate looks at.",
        "expected circuit_breaker.name to be a name (a string that is not empty), got: ''.",
        "expected circuit_breaker.window to be an integer of at least 1, got: 0.",
        'expected limit.rates.calls to be a rate, such as "500/min", or a mapping with amount and per, got: \'500\'. Say in which time: "500/min".',
        "expected limit.rates.tokens.amount to be given, got: nothing. How much.",
        "expected limit.rates.tokens.per to be seconds greater than 0, got: 0.",
        "expected limit.name to be given, got: nothing. Say name in the block, or give one to its guard.",
        'expected cost to be the name of a function, as "module:name", got: 5.',
        "expected retry_budget to be a mapping of settings, got: 5.",
        "expected hedge.after to be given, got: nothing. Time until the next execution starts.",
        "expected fallback to be a function as \"module:name\", of a module that may be imported, got: 'os:system'. Allow its module where the block is read: imports=['os'].",
        "expected a known key in timeout, got: 'totl_ms'. Did you mean 'total_ms'?",
        "expected timeout.step_ms to be milliseconds greater than 0, got: '30s'. A text has its unit with it: write it under step.",
    ]


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (5, "expected a mapping of settings, got: 5."),
        ({"retry": 5}, "expected retry to be a mapping of settings, got: 5."),
        ({"timeout_ms": 30000, "total_timeout_ms": 10000}, "expected total_timeout_ms to be at least timeout (30 s), got: 10 s. The total includes every attempt."),
        ({"timeout": 3, "timeout_ms": 3}, "expected timeout to be given once, got: both timeout and timeout_ms."),
        ({"timeout": {"total": 9}, "total_timeout": 9}, "expected total_timeout to be given once, got: both total_timeout and timeout.total."),
        ({"name": "a", "circuit_breaker": {"on_open": "wait"}, "on_open": "wait"}, "expected on_open to be given once, got: both on_open and circuit_breaker.on_open."),
        ({"on_open": "wait"}, "expected on_open to be 'fail' without a breaker, got: 'wait'. It says what to do while a circuit is open."),
        ({"timeout": True}, "expected timeout to be seconds greater than 0, got: True."),
        ({"timeout": "nan"}, 'expected timeout to be seconds greater than 0, got: \'nan\'. A text has its unit with it: "500ms", "30s", "5m", "2h", "1d".'),
        ({"timeout_ms": "30s"}, "expected timeout_ms to be milliseconds greater than 0, got: '30s'. A text has its unit with it: write it under timeout."),
        ({"timeout_s": "30s"}, "expected timeout_s to be seconds greater than 0, got: '30s'. A text has its unit with it: write it under timeout."),
        ({"timeout_s": "soon"}, "expected timeout_s to be seconds greater than 0, got: 'soon'."),
        ({"retry": {"delays_s": ["5min"]}}, "expected retry.delays_s[0] to be seconds of at least 0, got: '5min'. A text has its unit with it: write it under delays."),
        ({"timeout": "inf"}, "expected timeout to be seconds greater than 0, got: 'inf'. It must be finite."),
        ({"timeout_s": float("inf")}, "expected timeout_s to be seconds greater than 0, got: inf. It must be finite."),
        ({"retry": {"on_errors": ["KeyboardInterrupt"]}}, "expected retry.on_errors[0] to be a subclass of Exception, got: 'KeyboardInterrupt'. Control flow (interrupts, exits, cancellation) is never caught or retried."),
        ({"retry": {"on_errors": ["asyncio.CancelledError"]}}, "expected retry.on_errors[0] to be a subclass of Exception, got: 'asyncio.CancelledError'. Control flow (interrupts, exits, cancellation) is never caught or retried."),
        ({"timeout_s": -1}, "expected timeout_s to be seconds greater than 0, got: -1."),
        ({"idempotent": "nope"}, "expected idempotent to be true or false, got: 'nope'."),
        ({"name": "a", "circuit_breaker": {"failure_rate": 0.5, "window": 5, "min_calls": "9"}}, "expected circuit_breaker.min_calls to be at most window (5), got: 9. Lower it, or raise window: the rate would never be looked at."),
        ({"name": "a", "limit": {"adaptive": False}}, "expected limit.concurrency to be given, or rates, or adaptive, got: none of them. It would limit nothing."),
        ({"name": "a", "limit": {"rates": [1]}}, "expected limit.rates to be a mapping from a name such as calls or tokens to a rate, got: a value of type list."),
        ({"name": "a", "limit": {"rates": {"to kens": "5/s"}}}, "expected limit.rates to be a mapping from a name such as calls or tokens to a Rate, got: a value of type dict."),
        ({"circuit_breaker": {}}, "expected circuit_breaker.name to be given, got: nothing. Say name in the block, or give one to its guard."),
        ({"retry_budget": {"name": "a", "ratio": "2"}}, "expected retry_budget.ratio to be a finite number of at least 0 and at most 1, got: 2."),
        ({"fallback_on": ["timeout"]}, "expected fallback_on to be None without a fallback, got: a list. It says which errors that answers for."),
    ],
)  # fmt: skip
def test_a_wrong_block_is_told_under_the_key_that_was_written(block, problem):
    """One mistake, one sentence, in the words and units of the block (S0-29)."""
    assert problems(lambda: read(block)) == [problem]


@pytest.mark.parametrize(
    ("block", "keys"),
    [
        ({"circuit_breaker": {"failure_threshold": 0, "on_open": "wiat"}}, ["failure_threshold", "on_open"]),
        ({"circuit_breaker": {"typo": 1, "on_open": "wiat"}}, ["typo", "on_open"]),
        ({"limit": {"rates": {"t": {"amount": "x", "burst": -1}}}}, ["per", "amount", "burst"]),
        ({"limit": {"rates": {"t": {"burst": 0}}}}, ["amount", "per", "burst"]),
        ({"hedge": {"max_hedges": 0}}, ["after", "max_hedges"]),
        ({"hedge": {"max_hedges": 0, "after": "soon"}}, ["after", "max_hedges"]),
        ({"fallback": "os:system", "fallback_on": ["tiemout"]}, ["fallback", 0]),
        ({"limit": {"concurrency": 0}, "cost": "json:nothing"}, ["concurrency", "cost"]),
        ({"limit": {"concurrency": 0}, "on_open": "wait"}, ["concurrency", "on_open"]),
    ],
)
def test_one_mistake_hides_no_other(block, keys):
    """What is missing or wrong does not keep the rest from being looked at, and is told once (S0-29)."""
    with pytest.raises(ConfigurationError) as caught:
        read({"name": "a", **block})
    assert [one.path[-1] for one in caught.value.details] == keys


def test_the_keys_of_a_breaker_inside_a_guard_are_known():
    """On_open may stand there, and so it is offered there (S0-29)."""
    assert problems(lambda: read({"name": "a", "circuit_breaker": {"on_opne": "wait"}})) == [
        "expected a known key in circuit_breaker, got: 'on_opne'. Did you mean 'on_open'?"
    ]


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ({"circuit_breaker": {"failure_rate": 0.5, "failure_threshold": 3}}, "expected circuit_breaker.failure_threshold to be left out with failure_rate, got: 3. failure_rate stands in its place."),
        ({"circuit_breaker": {"window": 50}}, "expected circuit_breaker.window to be left out without failure_rate, got: 50. How many calls the rate looks at."),
        ({"circuit_breaker": {"failure_rate": None, "min_calls": "5"}}, "expected circuit_breaker.min_calls to be left out without failure_rate, got: '5'. Calls before the rate means anything."),
        ({"retry": None, "retry_budget": {}}, "expected retry_budget to be left out with one attempt, got: a value of type dict. Without retries and hedges nothing is taken from it."),
        ({"retry": {"max_attempts": 1}, "retry_budget": {}}, "expected retry_budget to be left out with one attempt, got: a value of type dict. Without retries and hedges nothing is taken from it."),
        ({"preset": "llm", "retry": {"max_attempts": 1}, "retry_budget": {}}, "expected retry_budget to be left out with one attempt, got: a value of type dict. Without retries and hedges nothing is taken from it."),
        ({"hedge": {"after": 1}, "isolation": "process"}, "expected hedge to be None with isolation, got: a value of type Hedge. A hedge is for coroutine functions, isolation for the others."),
        ({"hedge": {"after": 1}, "isolation": "thread"}, "expected hedge to be None with isolation, got: a value of type Hedge. A hedge is for coroutine functions, isolation for the others."),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_refused(block, problem):
    """S0-29: a key that changes nothing is a mistake like any other."""
    assert problems(lambda: read({"name": "a", **block})) == [problem]


@pytest.mark.parametrize(
    "block",
    [
        {"retry": None, "retry_budget": {"shared": True}},
        {"retry": None, "retry_budget": {}, "hedge": {"after": 1}},
        {"retry": None, "retry_budget": None},
        {"preset": "jobs", "retry": {"max_attempts": 1}},
        {"isolation": "thread"},
        {"circuit_breaker": {"failure_rate": None, "failure_threshold": 3}},
    ],
)
def test_what_has_an_effect_is_kept(block):
    """A shared budget gets deposits, a hedge takes from one, and a thread keeps an event loop free (S0-29)."""
    again = read({"name": "a", **block}).to_config()
    assert again == read(again).to_config()


def test_what_has_no_effect_is_not_shown():
    """D-26: the options of a guard made in code come back as the block that is accepted."""
    guard = Guard(
        "a",
        retry=RetryPolicy(max_attempts=1, delays=[1, 2], on_errors=["timeout"]),
        breaker=CircuitBreaker("b", failure_rate=0.5, failure_threshold=3),
        retry_budget=RetryBudget("c"),
    )
    block = guard.to_config()
    assert block == {
        "name": "a",
        "retry": {"max_attempts": 1, "on_errors": ["timeout"]},
        "circuit_breaker": {"name": "b", "failure_rate": 0.5},
    }
    assert read(block).to_config() == block
    assert CircuitBreaker("b", window=7).to_config() == {"name": "b"}


def test_hostile_blocks_are_answered_in_a_few_lines():
    """C-19: however many mistakes there are, and however long."""
    blocks = (
        {f"key {n}": n for n in range(50_000)},
        {"circuit_breaker": {f"key {n}": n for n in range(50_000)}, "name": "a"},
        {"timeout": "1" * 1_000_000 + "s"},
        {"fallback": "x" * 1_000_000 + ":y"},
        {"preset": "x" * 1_000_000},
        {"name": "a", "limit": {"rates": {"calls": "9" * 1_000_000 + "/s"}}},
    )
    for block in blocks:
        found = problems(lambda block=block: read(block))
        assert len(found) <= 25
        assert sum(map(len, found)) < 20_000


def test_no_payload_and_no_secret_is_told():
    """What strayed into a block stays out of the message (S0-41)."""
    block = {
        "timeout": {"step_ms": {"password": "hunter2"}},
        "hedge": ["hunter2"],
        "fallback": "postgresql://u:hunter2@h/d",
    }
    assert "hunter2" not in "".join(problems(lambda: read(block)))


@pytest.mark.parametrize(
    ("text", "truth"),
    [("1", True), ("Yes", True), ("on", True), ("TRUE", True), ("0", False), ("no", False), (" Off ", False)],
)
def test_true_and_false_may_be_text(text, truth):
    """C-19: in the words that environment variables have for it."""
    assert CircuitBreaker.from_config({"name": "a", "shared": text}).shared is truth
    assert RetryPolicy.from_config({"retry_exhausted": text}).retry_exhausted is truth


def test_no_preset_may_be_null():
    """C-19: null is nothing, as if the key were left out."""
    assert read({"preset": None}).retry == read({}).retry
    assert read({"preset": None, "retry": {"max_attempts": 2}}).retry == RetryPolicy(max_attempts=2)
    assert read({"preset": None, "retry": None}).retry.max_attempts == 1
    assert RetryPolicy.from_config({"preset": None, "base_delay": 1}) == RetryPolicy.from_config({"base_delay": 1})


@pytest.mark.parametrize(
    ("rate", "per"),
    [
        ("5/hour", 3600),
        ("5/ minute", 60),
        ("5/second", 1),
        ("5/day", 86_400),
        ("5/5min", 300),
        ({"amount": 5, "per": "min"}, 60),
        ({"amount": 5, "per": "hour"}, 3600),
        ({"amount": 5, "per_ms": 500}, 0.5),
    ],
)
def test_a_rate_may_say_its_time_by_a_unit_alone(rate, per):
    """C-19: in one word and in a block alike."""
    assert Rate.from_config(rate) == Rate(5, per=per)


# --- functions ---


def test_functions_come_from_modules_that_are_allowed():
    """Configuration loads no code but that which its reader has named (S0-41)."""
    block = {
        "name": "a",
        "fallback": f"{__name__}:cheap",
        "cost": f"{__name__}:price",
        "retry_if": f"{__name__}:unwanted",
        "limit": {"rates": {"tokens": "9/s"}},
    }
    guard = read(block, imports=[__name__])
    assert (guard.fallback, guard.cost, guard.retry_if) == (cheap, price, unwanted)
    assert len(problems(lambda: read(block))) == 3
    assert len(problems(lambda: read(block, imports=[__name__[:-1]]))) == 3
    assert guard.to_config()["fallback"] == block["fallback"]
    assert problems(lambda: read({"fallback": "json:dunps"}, imports=["json"])) == [
        "expected fallback to be a function as \"module:name\", got: 'json:dunps', which cannot be had: AttributeError: module 'json' has no attribute 'dunps'."
    ]
    assert read({"fallback": "json.encoder:py_encode_basestring"}, imports=["json"]).fallback is not None
    assert problems(lambda: read({}, imports="json")) == [
        "expected imports to be a list of modules, such as ['shop.guards']."
    ]
    assert len(problems(lambda: read({"fallback": "json:__doc__"}, imports=["json"]))) == 1


class Kept:
    """A class with functions of this module, of another, and of a base that another module defines."""

    foreign = staticmethod(os.path.join)

    @staticmethod
    def cheap() -> int:
        return 1

    @classmethod
    def made(cls) -> int:
        return 2

    def method(self) -> int:
        return 3


class Inherited(json.JSONDecoder):
    pass


KEPT, INHERITED = Kept(), Inherited()
PART, FOREIGN_PART = functools.partial(cheap, 1), functools.partial(functools.partial(os.system), "exit")
CACHED = functools.lru_cache(cheap)
API_KEY = "correct-horse-battery"


class Secret(str):
    """A text whose class this module defines."""

    __slots__ = ()


SECRET = Secret(API_KEY)


@pytest.mark.parametrize("name", ["Kept.cheap", "Kept.made", "KEPT.method", "PART", "CACHED", "Kept"])
def test_a_function_is_what_an_allowed_module_defines(name):
    """Also by way of a class or an object of that module, a partial and a wrapper (S0-41)."""
    assert callable(read({"fallback": f"{__name__}:{name}"}, imports=[__name__]).fallback)


@pytest.mark.parametrize(
    ("name", "part", "home"),
    [
        ("read", "read", "outlast.calls.guard"),
        ("Kept.foreign", "foreign", os.path.join.__module__),
        ("FOREIGN_PART", "FOREIGN_PART", os.system.__module__),
        ("INHERITED.decode", "decode", "json.decoder"),
        ("Guard.from_config", "Guard", "outlast.calls.guard"),
        ("Kept.__class__", "__class__", "builtins"),
        ("__loader__.load_module", "__loader__", type(__loader__).__module__),
    ],
)
def test_no_function_of_a_module_that_is_not_listed_is_had(name, part, home):
    """Not through what an allowed module has imported, and the refusal says where it is defined (S0-41)."""
    text = f"{__name__}:{name}"
    assert problems(lambda: read({"fallback": text}, imports=[__name__])) == [
        f"expected fallback to be a function as \"module:name\", of a module that may be imported, got: '{text}', where {part} is defined in {home}. Name it there, and allow that module where the block is read: imports=['{home}']."
    ]


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("os.system", "where os is a module. Name a function by the module that defines it."),
        ("os", "where os is a module. Name a function by the module that defines it."),
        ("API_KEY", "where API_KEY is a value of type str."),
        ("SECRET", "where SECRET is a value of type Secret."),
        ("WHOLE", "where WHOLE is a value of type dict."),
        ("cheap.__globals__", "where __globals__ is a value of type dict."),
        ("Kept.__subclasses__", "where __subclasses__ is a value of type builtin_function_or_method."),
    ],
)
def test_a_module_or_a_value_is_no_function(name, got):
    """A value that does not stand in the block is told by its type alone (S0-41)."""
    text = f"{__name__}:{name}"
    assert problems(lambda: read({"fallback": text}, imports=[__name__])) == [
        f"expected fallback to be a function as \"module:name\", of a module that may be imported, got: '{text}', {got}"
    ]


def test_no_file_is_loaded(tmp_path, monkeypatch):
    """A path that begins like an allowed module is none (S0-41)."""
    (tmp_path / "shop.d").mkdir()
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\ndef run(): pass\n")
    monkeypatch.chdir(tmp_path)
    for text in ("shop.d/../evil.py:run", "shop:d/evil.py:run", "shop.d/../evil.py:run.run", "shop.:run", "shop:"):
        assert len(problems(lambda text=text: read({"fallback": text}, imports=["shop"]))) == 1
    assert not (tmp_path / "ran").exists()


def test_what_cannot_be_data_is_refused_with_the_way_out():
    """D-26: a guard that is shown as configuration loses nothing in silence."""
    guard = Guard(fallback=lambda: 1, retry=RetryPolicy(on_errors=[lambda error: True]))
    assert problems(guard.to_config) == [
        "expected retry.on_errors[0] to be an error that a name leads to, got: test_what_cannot_be_data_is_refused_with_the_way_out.<locals>.<lambda>. Configuration lists errors by name: raise an exception class of a module for it.",
        "expected fallback to be a function that its name leads to, got: test_what_cannot_be_data_is_refused_with_the_way_out.<locals>.<lambda>. Configuration names a function as module:name. Define it at the top of a module.",
    ]


def test_a_function_from_elsewhere_is_shown_where_it_is_defined():
    """D-26: what is listed for that module reads it again, and the name that it was imported under does not."""
    block = Guard("a", fallback=json.JSONDecoder).to_config()
    assert block["fallback"] == "json.decoder:JSONDecoder"
    assert read(block, imports=["json.decoder"]).to_config() == block
    assert read({"fallback": "json:JSONDecoder"}, imports=["json"], name="a").to_config() == block


@pytest.mark.parametrize("name", ["default", "llm", "database", "step", "jobs", "tiered", "stage", "call"])
def test_a_preset_is_shown_as_the_block_that_makes_it(name):
    """D-26: policies are alike if their blocks are, also where one lists classes and the other their names."""
    policy = getattr(presets, name)
    assert RetryPolicy.from_config(json.loads(json.dumps(policy.to_config()))).to_config() == policy.to_config()


def test_exception_classes_are_shown_by_their_names():
    """The policy that comes back retries the same errors (S0-07)."""
    policy = RetryPolicy(on_errors=[ConnectionError, TemporaryFailure, json.JSONDecodeError], skip_on_errors=[429])
    again = RetryPolicy.from_config(policy.to_config())
    assert policy.to_config()["on_errors"] == [
        "ConnectionError",
        "outlast.errors.TemporaryFailure",
        "json.decoder.JSONDecodeError",
    ]
    errors = (
        ConnectionResetError(),
        TemporaryFailure("x"),
        json.JSONDecodeError("x", "y", 0),
        ValueError(),
        TimeoutError(),
    )
    assert [again.decide(error, attempt=1, roll=0.5) for error in errors] == [
        policy.decide(error, attempt=1, roll=0.5) for error in errors
    ]


# --- there and back ---

times = st.one_of(st.floats(0.001, 1e6), st.integers(1, 10**6))
waits = st.one_of(st.just(0), times)
errors = st.lists(
    st.sampled_from(
        ["transient", "unclear", "timeout", "network_error", "5xx", 429, "503", "ConnectionError", OSError]
    ),
    max_size=3,
)


@st.composite
def policies(draw):
    jitter = st.one_of(st.floats(0, 1), st.sampled_from(["full", "equal"]), st.builds(lambda add: {"add": add}, waits))
    options = {
        "max_attempts": draw(st.none() | st.integers(1, 50)),
        "backoff": draw(st.sampled_from(["exponential", "linear", "fixed"])),
        "multiplier": draw(st.floats(1, 10)),
        "jitter": draw(jitter),
        "cap": draw(st.sampled_from(["after_jitter", "before_jitter"])),
        "max_retry_after": draw(waits),
        "on_errors": draw(errors),
        "retry_limits": draw(st.none() | st.dictionaries(st.sampled_from(["network", "database"]), st.integers(0, 9))),
        "retry_exhausted": draw(st.none() | st.booleans()),
        "delays": draw(st.just(()) | st.lists(waits, min_size=1, max_size=5)),
    }
    first, top = sorted((float(draw(waits)), float(draw(waits))))
    return RetryPolicy(**options, initial_delay=first, max_delay=draw(st.sampled_from([top, None])))


def breakers():
    return st.builds(
        CircuitBreaker,
        st.text(min_size=1, max_size=9),
        failure_threshold=st.integers(1, 99),
        reset_timeout=waits,
        half_open_requests=st.integers(1, 9),
        success_threshold=st.none() | st.integers(1, 9),
        failure_rate=st.none() | st.floats(0.01, 1),
        window=st.integers(50, 99),
        min_calls=st.integers(1, 50),
        slow_call=st.none() | times,
        open_jitter=st.floats(0, 1),
        open_growth=st.floats(1, 9),
        count=st.sampled_from(["faults", "any"]),
        mode=st.sampled_from(["on", "shadow"]),
        shared=st.booleans(),
    )


rates = st.builds(lambda amount, per, burst: Rate(amount, per=per, burst=burst), times, times, st.none() | times)


def limits():
    return st.builds(
        Limit,
        st.text(min_size=1, max_size=9),
        concurrency=st.integers(1, 99),
        rates=st.dictionaries(st.sampled_from(["calls", "tokens"]), rates),
        max_wait=st.none() | waits,
        adaptive=st.booleans(),
        shared=st.booleans(),
    )


budgets = st.builds(
    RetryBudget,
    st.text(min_size=1, max_size=9),
    ratio=st.floats(0, 1),
    reserve=st.integers(0, 99),
    shared=st.booleans(),
)
hedges = st.builds(Hedge, after=times, max_hedges=st.integers(1, 9))


def behaviour(thing):
    """Everything that decides how it behaves: of a policy its decisions, of everything else its options."""
    if isinstance(thing, RetryPolicy):
        failures = (ConnectionResetError(), TimeoutError(), ValueError(), TemporaryFailure("x", retry_after=7))
        decisions = [thing.decide(error, attempt=n, roll=0.3) for error in failures for n in (1, 2, 5)]
        return [*thing.schedule()[:9], *decisions, thing.retry_exhausted, thing.max_attempts]
    if isinstance(thing, CircuitBreaker | Limit | RetryBudget | Guard):
        parameters = inspect.signature(type(thing).__init__).parameters.values()
        names = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
        options = {name: behaviour(getattr(thing, name)) for name in ("name", *names)}
        if isinstance(thing, CircuitBreaker):
            rated = thing.failure_rate is not None
            options |= dict.fromkeys(["failure_threshold"] if rated else ["window", "min_calls"])
        once = isinstance(thing, Guard) and thing.retry.max_attempts == 1 and thing.hedge is None
        if once and thing.retry_budget is not None and not thing.retry_budget.shared:
            options["retry_budget"] = None
        return options
    return thing


@settings(deadline=None, max_examples=150)
@given(st.one_of(policies(), breakers(), limits(), rates, budgets, hedges))
def test_what_is_shown_makes_the_same_again(thing):
    """There and back, through JSON, whatever the settings are (S0-29)."""
    block = json.loads(json.dumps(thing.to_config()))
    again = type(thing).from_config(block) if "Shared" not in type(thing).__name__ else Limit.from_config(block)
    assert behaviour(again) == behaviour(thing)
    assert again.to_config() == thing.to_config()


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_guard_that_is_shown_makes_the_same_again(data):
    """With any of its parts, there and back, through JSON (S0-29)."""
    limit, breaker, fallback = (
        data.draw(st.none() | limits()),
        data.draw(st.none() | breakers()),
        data.draw(st.none() | st.just(cheap)),
    )
    isolation, idempotent = data.draw(st.sampled_from([None, "thread", "process"])), data.draw(st.booleans())
    one, all_of_it = sorted((data.draw(times), data.draw(times)))
    guard = Guard(
        data.draw(st.none() | st.text(min_size=1, max_size=9)),
        retry=data.draw(st.none() | policies()),
        timeout=data.draw(st.sampled_from([None, one])),
        total_timeout=data.draw(st.sampled_from([None, all_of_it])),
        idle_timeout=data.draw(st.none() | times),
        isolation=isolation,
        breaker=breaker,
        limit=limit,
        cost=price if limit is not None and limit.rates else None,
        retry_budget=data.draw(st.none() | budgets),
        hedge=data.draw(st.none() | hedges) if idempotent and isolation is None else None,
        on_open="fail" if breaker is None else data.draw(st.sampled_from(["fail", "wait"])),
        retry_if=data.draw(st.none() | st.just(unwanted)),
        fallback=fallback,
        fallback_on=None if fallback is None else data.draw(st.none() | st.just(("timeout", 503))),
        idempotent=idempotent,
    )
    block = json.loads(json.dumps(guard.to_config()))
    again = Guard.from_config(block, imports=[__name__])
    assert behaviour(again) == behaviour(guard)
    assert again.to_config() == guard.to_config()


# --- the tables ---

MADE = {
    "guard": Guard,
    "circuit_breaker": CircuitBreaker,
    "limit": Limit,
    "rate": Rate,
    "retry_budget": RetryBudget,
    "hedge": Hedge,
}


def test_every_option_has_its_key():
    """D-26: an option that is added to a guard or one of its parts can be configured."""
    for block, kind in MADE.items():
        parameters = inspect.signature(kind.__init__).parameters.values()
        options = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD} - {"self"}
        assert {key.option or name for name, key in BLOCKS[block].items()} - {"preset"} == options


def test_every_key_is_read_in_every_spelling():
    """D-26: no key stands in a table for nothing."""
    values = {
        "integer": 2,
        "number": 1,
        "truth": True,
        "wait": 7,
        "time": 7,
        "list": ["timeout"],
        "function": f"{__name__}:cheap",
    }
    texts = {"name": "a", "preset": "llm", "isolation": "thread", "on_open": "wait", "count": "any", "mode": "shadow"}
    blocks = {
        "retry": {"max_attempts": 2},
        "circuit_breaker": {"name": "b"},
        "limit": {"name": "b", "rates": {"calls": "5/s"}},
        "retry_budget": {"name": "b"},
        "hedge": {"after": 1},
        "rates": {"calls": "5/s"},
    }
    needs = {
        "circuit_breaker": {"name": "a"},
        "limit": {"name": "a"},
        "retry_budget": {"name": "a"},
        "rate": {"amount": 1, "per": 1},
        "hedge": {"after": 1},
    }
    with_it = {
        "cost": {"limit": blocks["limit"]},
        "on_open": {"circuit_breaker": {"name": "b"}},
        "window": {"failure_rate": 0.5, "min_calls": 2},
        "min_calls": {"failure_rate": 0.5},
        "fallback_on": {"fallback": f"{__name__}:cheap"},
    }
    for block, kind in MADE.items():
        for key in keys_of(block):
            name = next(one for one in BLOCKS[block] if key in (one, f"{one}_s", f"{one}_ms"))
            entry = BLOCKS[block][name]
            value = texts.get(name, blocks.get(name, values.get(entry.kind)))
            before = {one: given for one, given in needs.get(block, {}).items() if one != name} | with_it.get(name, {})
            options = {"imports": [__name__]} if kind is Guard else {}
            made = kind.from_config({**before, key: value}, **options)
            option = "retry" if name == "preset" else entry.option or name
            assert getattr(made, option) is not None, (block, key)


def test_a_subclass_is_made_of_its_own_block():
    """`from_config` and `replace` give what they were asked of."""

    class Mine(Guard):
        pass

    assert type(Mine.from_config({"timeout": 3})) is Mine
    assert type(Mine().replace(timeout=3)) is Mine


def test_reading_blocks_costs_nothing_before_it_is_done():
    """The import of `outlast` and the first call load no configuration."""
    assert outlast.Guard(timeout=1).to_config() == {"timeout_s": 1.0}
