"""The retry budget: retries as a share of the traffic."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outlast
from outlast import ConfigurationError, Guard, RetryBudget, RetryPolicy
from outlast.testing import capture_events, virtual_time
from tables import table

FOREVER = RetryPolicy(max_attempts=50, initial_delay=1, jitter=0, max_delay=1)


def fail(*_):
    raise ConnectionResetError


def succeed(*_):
    return "fine"


async def afail(*_):
    raise ConnectionResetError


def guarded(budget: RetryBudget, **options) -> Guard:
    return Guard("shop", **{"retry": FOREVER, "retry_budget": budget} | options)


def count(guard: Guard, calls: int) -> int:
    """The attempts of so many calls that all fail."""
    attempts = 0
    for _ in range(calls):
        outcome = guard.outcome(fail)
        attempts += len(outcome.attempts)
    return attempts


def test_retries_are_bounded_by_the_share_and_the_reserve():
    """D-12, semantics 33: a hundred first successes and the reserve pay for thirty retries, however many calls fail."""
    budget = RetryBudget("shop", ratio=0.2, reserve=10)
    guard = guarded(budget)
    with virtual_time():
        for _ in range(100):
            guard.call(succeed)
        assert budget.available == 30
        assert count(guard, 200) == 200 + 30
    assert budget.available == 0


@settings(max_examples=40)
@given(
    ratio=st.floats(0, 1, allow_nan=False),
    reserve=st.integers(0, 20),
    outcomes=st.lists(st.booleans(), max_size=60),
)
def test_the_bound_holds_for_any_traffic(ratio, reserve, outcomes):
    """D-12, semantics 33: retries never exceed the share of first successes plus the reserve."""
    budget, retries, successes = RetryBudget("shop", ratio=ratio, reserve=reserve), 0, 0
    guard = guarded(budget)
    with virtual_time():
        for good in outcomes:
            outcome = guard.outcome(succeed if good else fail)
            successes += good
            retries += len(outcome.attempts) - 1
            assert retries <= ratio * successes + reserve + 1e-6


def test_waiting_retries_are_already_counted():
    """D-12, semantics 33: when all of them wait in backoff at the same time the bound holds too."""
    budget, attempts = RetryBudget("shop", reserve=10), []

    async def work():
        attempts.append(1)
        raise ConnectionResetError

    async def main():
        return await asyncio.gather(*(guarded(budget).aoutcome(work) for _ in range(100)))

    with virtual_time():
        outcomes = asyncio.run(main())
    assert len(attempts) == 100 + 10
    assert {outcome.reason for outcome in outcomes} == {"retry_budget"}


def test_an_empty_budget_ends_the_call_with_its_own_error():
    """D-12, semantics 34: the original exception, the reason, and an event that names the budget."""
    error = ConnectionResetError("mine")

    def work():
        raise error

    with virtual_time() as time, capture_events() as events, pytest.raises(ConnectionResetError) as caught:
        guarded(RetryBudget("openai", reserve=0)).call(work)
    assert caught.value is error
    assert outlast.stop_reason(error) == "retry_budget"
    assert any("budget" in note for note in error.__notes__)
    assert time.sleeps == []
    assert [(event.name, getattr(event, "budget", None)) for event in events] == [
        ("retry_budget_exhausted", "openai"),
        ("step_retry_exhausted", None),
    ]


def test_only_first_successes_deposit():
    """D-12, semantics 34: a success that took a retry, or a failure, earns nothing."""
    budget = RetryBudget("shop", ratio=1, reserve=5)
    answers = iter([ConnectionResetError(), "fine"])

    def work():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with virtual_time():
        assert guarded(budget).call(work) == "fine"
        assert budget.available == 4
        with pytest.raises(ValueError, match="never"):
            guarded(budget).call(raise_value)
        assert budget.available == 4
        guarded(budget).call(succeed)
    assert budget.available == 5


def raise_value():
    raise ValueError("never")


def test_errors_that_are_not_retried_withdraw_nothing():
    """D-12: only the decision to retry costs."""
    budget = RetryBudget("shop", reserve=5)
    with virtual_time():
        for _ in range(10):
            with pytest.raises(ValueError, match="never"):
                guarded(budget).call(raise_value)
        with pytest.raises(ConnectionResetError):
            guarded(budget, retry=RetryPolicy(max_attempts=1)).call(fail)
        with pytest.raises(ConnectionResetError) as caught:
            guarded(budget, total_timeout=0.5).call(fail)
    assert outlast.stop_reason(caught.value) == "total_timeout"
    assert budget.available == 5


def test_retrying_a_result_withdraws_too():
    """D-12, semantics 33: it is load on the service like any other retry; when the budget is empty the result is returned."""
    budget, calls = RetryBudget("shop", reserve=2), []
    with virtual_time():
        outcome = guarded(budget, retry_if=lambda _: True).outcome(lambda: calls.append(1) or "pending")
    assert len(calls) == 3
    assert (outcome.value, outcome.reason) == ("pending", "retry_budget")
    assert budget.available == 0


def test_a_budget_is_shared_by_policies():
    """D-12, semantics 34: two guards with one budget."""
    budget = RetryBudget("shop", reserve=6)
    with virtual_time():
        first = count(guarded(budget, retry=RetryPolicy(max_attempts=5, jitter=0)), 1)
        second = count(guarded(budget), 1)
    assert (first, second) == (5, 3)


def test_a_budget_is_shared_by_threads():
    """D-12, semantics 34: no retry is granted twice under contention."""
    budget, barrier, granted = RetryBudget("shop", reserve=500), threading.Barrier(8), []

    def work():
        barrier.wait(20)
        granted.append(sum(budget.withdraw() for _ in range(200)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sum(granted) == 500


def test_deposits_of_threads_are_not_lost():
    """D-12, semantics 34: each first success counts."""
    budget, barrier = RetryBudget("shop", ratio=1, reserve=0), threading.Barrier(8)

    def work():
        barrier.wait(20)
        for _ in range(100):
            budget.deposit()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert budget.available == 800


def test_a_good_day_does_not_pay_for_a_storm():
    """D-12: what can be saved is bounded."""
    budget = RetryBudget("shop", ratio=0.2, reserve=10)
    for _ in range(100_000):
        budget.deposit()
    assert budget.available == 10 + 200


def test_shares_add_up_exactly():
    """D-12: ten deposits of a tenth are one retry, whatever floats say."""
    for ratio, deposits in ((0.1, 10), (0.2, 5), (0.05, 20), (1 / 3, 3)):
        budget = RetryBudget("shop", ratio=ratio, reserve=0)
        for _ in range(deposits - 1):
            budget.deposit()
        assert (budget.available, budget.withdraw()) == (0, False)
        budget.deposit()
        assert (budget.available, budget.withdraw()) == (1, True)
        assert not budget.withdraw()


def test_zero_is_honoured():
    """semantics 73: no share, no reserve, no retry."""
    with virtual_time():
        assert count(guarded(RetryBudget("shop", ratio=0, reserve=0)), 5) == 5


@pytest.mark.parametrize("kind", ["decorated", "async", "attempts"])
def test_every_door_asks_the_budget(kind):
    """D-12: decorated, awaited, or in a loop."""
    budget, calls = RetryBudget("shop", reserve=2), []
    guard = guarded(budget)

    def work():
        calls.append(1)
        raise ConnectionResetError

    async def awork():
        work()

    with virtual_time(), pytest.raises(ConnectionResetError):
        if kind == "decorated":
            guard(work)()
        elif kind == "async":
            asyncio.run(guard(awork)())
        else:
            for attempt in guard.attempts():
                with attempt:
                    work()
    assert len(calls) == 3


@table(
    ("options", "said"),
    [
        ({"ratio": -0.1}, r"ratio.*at least 0"),
        ({"ratio": 1.5}, r"ratio.*at most 1"),
        ({"ratio": "0.2"}, r"ratio.*'0\.2'"),
        ({"ratio": float("nan")}, r"ratio"),
        ({"ratio": True}, r"ratio"),
        ({"reserve": -1}, r"reserve.*at least 0"),
        ({"reserve": 2.5}, r"reserve"),
        ({"shared": 1}, r"shared to be True or False"),
        ({"rate": 0.2}, r"'rate'.*'ratio'"),
    ],
)
def test_a_wrong_setting_is_named(options, said):
    """D-12: field, what was expected, what came."""
    with pytest.raises(ConfigurationError, match=said):
        RetryBudget("shop", **options)


def test_a_budget_needs_a_name():
    """D-12: it is told in events."""
    with pytest.raises(ConfigurationError, match="name"):
        RetryBudget("")


def test_it_tells_what_is_left():
    """D-12: a repr for people."""
    budget = RetryBudget("shop", reserve=3)
    budget.withdraw()
    assert repr(budget) == "<RetryBudget 'shop' 2.0 retries left>"


def test_it_works_after_a_fork():
    """semantics 65: a lock held at the moment of the fork is free in the child."""
    script = """
import os, signal
from outlast import RetryBudget
budget = RetryBudget("forked", reserve=3)
with budget._lock:
    child = os.fork()
if child == 0:
    signal.alarm(10)
    os._exit(0 if budget.withdraw() else 3)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), budget.available)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "0 3\n", done.stderr
