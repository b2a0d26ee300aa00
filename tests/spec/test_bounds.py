"""What a manifest says in advance is never less than what is seen when the policy runs: in virtual time, with made-up policies."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass, field

from hypothesis import Phase, given, reject, settings
from hypothesis import strategies as st

from outlast import presets
from outlast.calls.guard import Guard
from outlast.kernel.clock import here
from outlast.limits import Limit, Rate
from outlast.policy import RetryPolicy
from outlast.spec import plan
from outlast.spec.compile import compile_text
from outlast.spec.rules import Look, check
from outlast.spec.schedule import attempts
from outlast.testing import virtual_time
from tables import table

CLOSE = 1e-6  # seconds by which a sum of floats may be off

delays = st.integers(0, 5000) | st.floats(0, 5000).map(lambda one: round(one, 3))
RETRY = st.fixed_dictionaries(
    {"max_attempts": st.integers(1, 6)},
    optional={
        "backoff": st.sampled_from(["none", "linear", "exponential"]),
        "initial_delay_ms": delays,
        "max_delay_ms": st.none() | delays.map(lambda one: one + 5000),
        "multiplier": st.floats(1, 4),
        "jitter": st.floats(0, 1)
        | st.sampled_from(["full", "equal", "decorrelated", {"add_ms": 700}, {"add_ms": 0.3}]),
        "cap": st.sampled_from(["after_jitter", "before_jitter"]),
        "max_retry_after_ms": delays,
        "on_errors": st.just("all") | st.just(["transient"]) | st.just(["timeout", 429]),
        "retry_limits": st.just({"network": 2, "http_429_503": 4}),
        "retry_exhausted": st.booleans(),
    },
)
limits = st.integers(1, 9000) | st.floats(0.1, 9000).map(lambda one: round(one, 3))
TIMEOUT = st.fixed_dictionaries({}, optional={"step_ms": limits, "total_ms": limits.map(lambda one: one + 9000)})


class Refused(Exception):
    """Too many requests, with or without the wait that the service asks for."""

    status_code = 429

    def __init__(self, seconds: float | None) -> None:
        super().__init__("too many requests")
        self.headers = {} if seconds is None else {"Retry-After": f"{seconds:g}"}


class Odd(Exception):
    """A status of the server that says little."""

    status_code = 599


@dataclass
class Observed:
    """What was seen of one call: when each attempt began and what it had left, the waits, and when it was over."""

    began: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    sleeps: list[float] = field(default_factory=list)
    ended: float = 0.0
    executions: int = 0


# What each attempt does: it takes this share of the time that it has, or hangs, and then fails like this. A number is a
# wait that the service asks for. The worst that can happen is drawn as often as everything else.
ERRORS = st.sampled_from([ConnectionResetError("gone"), TimeoutError("late"), None, 0.5, 3.0, 60.0])
ATTEMPTS = st.lists(st.tuples(st.floats(0, 1), st.booleans(), ERRORS), min_size=6, max_size=6) | ERRORS.map(
    lambda error: [(1.0, False, error)] * 6
)
ROLLS = st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 1 - 2**-53])
QUICK = (Phase.explicit, Phase.reuse, Phase.generate)  # what fails is not made smaller: that would take long


def line(step) -> Limit | None:
    """The limit that the manifest has."""
    found = step.policy.get("limit")
    if found is None:
        return None
    rates = {name: Rate(one["amount"], per=one["per_ms"] / 1000) for name, one in found["rates"].items()}
    return Limit("line", rates=rates, max_wait=found["max_wait_ms"] / 1000)


def observed(step, attempts, roll: float = 0.5, *, layers: bool = False) -> Observed:
    """Run the policy that the manifest has against its own time limits; with `layers`, inside of a durable job's."""
    seen, plan = Observed(), itertools.cycle(attempts)
    limit, total = (step.policy.get("timeout", {}).get(key) for key in ("step_ms", "total_ms"))
    inner = Guard(
        "inner",
        retry=RetryPolicy.from_config(step.policy["retry"]),
        timeout=None if limit is None else limit / 1000,
        total_timeout=None if total is None else total / 1000,
        limit=line(step),
    )
    with virtual_time() as time:
        here.get().dice.roll = lambda: roll

        async def body() -> None:
            seen.executions += 1
            share, hangs, error = next(plan)
            bounds = [
                one / 1000 for one in (limit, None if total is None else total - time.now * 1000) if one is not None
            ]
            left = min(bounds, default=None)
            seen.began.append(time.now)
            seen.left.append(float("inf") if left is None else left)
            if left is not None and not layers:
                time.advance(left + CLOSE / 100 if hangs else share * left)
                if hangs:
                    await asyncio.Event().wait()  # until its time is up
            raise error if isinstance(error, Exception) else Refused(error)

        async def job() -> None:
            await inner.acall(body)

        requeues = presets.jobs.replace(retry_exhausted=inner.retry.retry_exhausted is not False)
        call = Guard("outer", retry=requeues).acall(job) if layers else inner.acall(body)
        outcome = asyncio.run(ended(call))
        assert outcome is not None, "nothing failed"
        seen.sleeps, seen.ended = list(time.sleeps), time.now
    return seen


async def ended(call) -> Exception | None:
    try:
        await call
    except Exception as error:  # noqa: BLE001 - whatever it ends with
        return error
    return None


def compiled(retry, timeout, **rest):
    step = {"id": "a", "component": "python", "config": {"call": "a:b"}, "retry": retry, "timeout": timeout, **rest}
    found = compile_text(json.dumps({"oml_version": "0.1.0", "name": "n", "steps": [step]}), rules=(check,))
    if found.manifest is None:
        reject()  # settings that do not go together
    assert found.model is not None
    return found, found.manifest["a"]


def asked(attempts) -> bool:
    return any(isinstance(error, float) for _, _, error in attempts)


@settings(max_examples=100, phases=QUICK)
@given(RETRY, TIMEOUT, ATTEMPTS, ROLLS)
def test_no_wait_and_no_end_comes_later_than_the_manifest_says(retry, timeout, attempts, roll):
    """S0-31, C-06: every wait is in its band, every sum and every start within its bound, the end within the worst case."""
    _, step = compiled(retry, timeout)
    seen = observed(step, attempts, roll)
    rows, timing = step.timing["delays"], step.timing
    asking = step.policy["retry"]["max_retry_after_ms"] / 1000 if asked(attempts) else 0.0
    so_far = 0.0
    for number, (wait, row) in enumerate(zip(seen.sleeps, rows, strict=False), 1):
        so_far += wait
        assert row["min_ms"] / 1000 - CLOSE <= wait <= row["max_ms"] / 1000 + asking + CLOSE
        assert row["sum_min_ms"] / 1000 - CLOSE <= so_far <= row["sum_max_ms"] / 1000 + number * asking + CLOSE
        assert ("latest_start_ms" in row) == bool(timeout)
        if timeout and number < len(seen.began):
            assert seen.began[number] <= row["latest_start_ms"] / 1000 + CLOSE
    assert len(seen.sleeps) <= len(rows)
    assert len(seen.began) <= timing["attempts"] == timing["calls"]["run"]
    worst = timing["worst_ms"]
    assert (worst is None) == (not timeout)
    if worst is not None:
        assert seen.ended <= worst / 1000 + CLOSE


LIMIT = st.fixed_dictionaries(
    {
        "rates": st.fixed_dictionaries({"calls": st.fixed_dictionaries({"amount": st.just(1), "per_ms": limits})}),
        "max_wait_ms": limits,
    }
)


@settings(max_examples=100, phases=QUICK)
@given(RETRY, TIMEOUT, ATTEMPTS, ROLLS, LIMIT)
def test_no_attempt_begins_later_than_the_manifest_says_behind_a_limit(retry, timeout, attempts, roll, limit):
    """C-19: what an attempt stands in line for counts, before the first one too (S0-31)."""
    _, step = compiled(retry, timeout, limit=limit)
    seen = observed(step, attempts, roll)
    for began, row in zip(seen.began[1:], step.timing["delays"], strict=False):
        assert ("latest_start_ms" in row) == bool(timeout)
        if timeout:
            assert began <= row["latest_start_ms"] / 1000 + CLOSE
    if timeout:
        assert seen.ended <= step.timing["worst_ms"] / 1000 + CLOSE


def test_what_an_attempt_stands_in_line_for_is_in_its_latest_start():
    """C-19: one call in 5 s, and attempts that fail at once (S0-31)."""
    retry = {"max_attempts": 3, "initial_delay_ms": 100, "multiplier": 1, "jitter": 0, "max_retry_after_ms": 0}
    limit = {"rates": {"calls": {"amount": 1, "per_ms": 5000}}, "max_wait_ms": 6000}
    _, step = compiled(retry, {"step_ms": 1000}, limit=limit)
    seen = observed(step, [(0.0, False, ConnectionResetError("gone"))] * 6)
    assert [round(one, 3) for one in seen.began] == [0.0, 5.0, 10.0]
    assert [row["latest_start_ms"] for row in step.timing["delays"]] == [1100 + 12_000, 2200 + 18_000]
    assert step.timing["worst_ms"] == 3200 + 18_000


ASKED = {"max_attempts": 3, "initial_delay_ms": 100.2, "multiplier": 1, "jitter": 0, "max_retry_after_ms": 700.3}


@table(
    ("retry", "timeout", "latest", "worst"),
    [
        (ASKED, {"step_ms": 1000.4}, [1801, 3602], 4603),
        (ASKED | {"max_retry_after_ms": 0}, {"step_ms": 1000.4}, [1101, 2202], 3202),
        (ASKED, {"step_ms": 1000.4, "total_ms": 3000.5}, [1801, 3001], 3001),
        (ASKED, {"total_ms": 3000.5}, [3001, 3001], 3001),
    ],
)
def test_the_latest_start_and_the_worst_case_by_hand(retry, timeout, latest, worst):
    """Rounded up, with what a service may ask for, and no later than the total (S0-31)."""
    _, step = compiled(retry, timeout)
    assert [row["latest_start_ms"] for row in step.timing["delays"]] == latest
    assert step.timing["worst_ms"] == worst
    assert [row["max_ms"] for row in step.timing["delays"]] == [101, 101]
    assert [row["min_ms"] for row in step.timing["delays"]] == [100, 100]


@table(
    ("retry", "timeout", "sentence"),
    [
        (ASKED, {"step_ms": 1000.4}, "Worst case: 4.603 s, with the longest waits that the service may ask for."),
        (ASKED | {"max_retry_after_ms": 0}, {"step_ms": 1000.4}, "Worst case: 3.202 s."),
        (ASKED | {"max_attempts": 1}, {"step_ms": 1000.4}, "Worst case: 1.001 s."),
        (ASKED, {"total_ms": 3000.5}, "Worst case: 3.001 s, the total time limit."),
        (ASKED, {"total_ms": 3000}, "Worst case: 3 s, the total time limit."),
        (
            ASKED,
            {},
            "Worst case: no bound, since an attempt may take as long as it likes. A total time limit would be one.",
        ),
    ],
)
def test_the_sentence_about_the_worst_case(retry, timeout, sentence):
    """It names the waits that a service may ask for if they are part of it, and only then (S0-31)."""
    _, step = compiled(retry, timeout)
    (said,) = [one for one in plan.sentences(step.policy, step.timing, step.work) if one.startswith("Worst case: ")]
    assert said == sentence


def test_the_latest_start_is_reached():
    """It is no later than it must be (S0-31)."""
    retry = ASKED | {"on_errors": ["transient"]}
    _, step = compiled(retry, {"step_ms": 1000.4})
    seen = observed(step, [(1.0, False, 60.0)] * 6)
    bounds = [row["latest_start_ms"] / 1000 for row in step.timing["delays"]]
    assert [round(bound - began, 3) for began, bound in zip(seen.began[1:], bounds, strict=True)] == [0.0, 0.0]


@settings(max_examples=60, phases=QUICK)
@given(RETRY, TIMEOUT.filter(lambda one: "total_ms" in one), ATTEMPTS, ROLLS)
def test_an_attempt_that_lacks_time_was_told_of(retry, timeout, attempts, roll):
    """S0-29: R03 knows of the first attempt that may not begin or not have its time, or of an earlier one."""
    found, step = compiled(retry, timeout)
    quiet = [(share, hangs, None if isinstance(error, float) else error) for share, hangs, error in attempts]
    seen = observed(step, quiet, roll)
    limit = timeout.get("step_ms", 0.0) / 1000
    lacking = [number for number, left in enumerate(seen.left, 1) if number > 1 and left < limit - CLOSE]
    if lacking:
        doubt = step.timing["in_doubt"]
        assert doubt["attempt"] <= lacking[0]
        assert "R03" in {one.code for one in found.mistakes}
        if doubt["attempt"] == lacking[0]:
            assert doubt["left_ms"] / 1000 <= seen.left[lacking[0] - 1] + CLOSE


@settings(max_examples=40, phases=QUICK)
@given(RETRY, ATTEMPTS)
def test_no_layer_executes_more_often_than_the_manifest_says(retry, attempts):
    """D-8: the product through the layers, where a durable job tries again what the step has exhausted."""
    found, step = compiled(retry, {})
    seen = observed(step, attempts, layers=True)
    assert seen.executions <= step.timing["calls"]["job"]
    assert found.model is not None
    circuit, _ = compiled(retry, {}, circuit_breaker={"shared": False})
    assert circuit.model is not None
    assert observed(step, attempts).executions <= Look(circuit.model).calls_of_circuit["n.a"]


def test_the_product_is_reached():
    """D-8: it is no larger than it must be."""
    _, step = compiled({"max_attempts": 3}, {})
    seen = observed(step, [(0.0, False, ConnectionResetError("gone"))] * 6, layers=True)
    assert seen.executions == step.timing["calls"]["job"] == 12
    _, owned = compiled({"max_attempts": 3, "retry_exhausted": False}, {})
    seen = observed(owned, [(0.0, False, ConnectionResetError("gone"))] * 6, layers=True)
    assert seen.executions == owned.timing["calls"]["run"] == 3
    once = [(0.0, False, Odd("what a step does not retry, and a job does"))] * 3
    seen = observed(owned, [*once, *[(0.0, False, ConnectionResetError("gone"))] * 3], layers=True)
    assert seen.executions == owned.timing["calls"]["job"] == 6


@settings(max_examples=40, phases=QUICK)
@given(RETRY, TIMEOUT, ATTEMPTS, st.integers(1, 60_000))
def test_an_idempotency_key_that_is_not_warned_of_outlives_the_retries(retry, timeout, attempts, lifetime):
    """R19 counts attempts, waits, and what a service may ask for (S0-18)."""
    found, step = compiled(retry, timeout, idempotency={"key": "${call}", "cache_ttl_ms": lifetime})
    if timeout and "R19" not in {one.code for one in found.mistakes}:
        assert observed(step, attempts).ended <= lifetime / 1000 + CLOSE


@table(
    "policy, expected",
    [
        ({"on_errors": ["timeout"]}, 2),
        ({"on_errors": ["database_connection"]}, 6),
        ({"on_errors": ["unavailable"]}, 1),
        ({"on_errors": [504]}, 1),
        ({"on_errors": ["timeout", "shop.errors.Locked"]}, 6),  # nobody knows its tier before it comes
        ({}, 6),
    ],
)
def test_only_tiers_of_what_is_retried_count(policy, expected):
    """As many attempts as the policy can decide on, and no more (S0-31)."""
    limits = {"database": 5, "network": 1}
    found = RetryPolicy(max_attempts=6, retry_limits=limits, **policy)
    assert attempts(found) == expected
