"""
The way that calls take in a program: decorated functions, without a scope of `outlast.testing` and with nobody listening, do what the flow does.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager, nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outlast
from lanes import on_the_short_way
from outlast import AttemptTimeoutError, CircuitBreaker, Guard, Limit, Rate, RetryBudget, RetryPolicy
from outlast.kernel.clock import here
from outlast.observe import subscribe
from outlast.testing import virtual_time


def flaky(bad):
    if bad:
        raise ConnectionResetError


async def aflaky(bad):
    flaky(bad)


@pytest.fixture
def nobody_listens(monkeypatch):
    monkeypatch.setattr("outlast.calls.state.listening", lambda: False)


# --- doors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["decorated", "async decorated", "call", "acall", "outcome"])
def test_every_door_of_a_guard_counts_successes(door):
    """semantics 46: failures that alternate with successes are none in a row, however the guard is used."""
    breaker = CircuitBreaker(f"doors {door}", failure_threshold=3)
    guard = Guard(retry=None, breaker=breaker)
    call = {
        "decorated": guard(flaky),
        "async decorated": lambda bad: asyncio.run(guard(aflaky)(bad)),
        "call": lambda bad: guard.call(flaky, bad),
        "acall": lambda bad: asyncio.run(guard.acall(aflaky, bad)),
        "outcome": lambda bad: raised(guard.outcome(flaky, bad)),
    }[door]
    for _ in range(4):  # more often than the threshold
        with pytest.raises(ConnectionResetError):
            call(True)
        call(False)
    assert (breaker.failure_count, breaker.state) == (0, "closed")


def raised(outcome):
    if outcome.error is not None:
        raise outcome.error


STEADY = RetryPolicy(max_attempts=5, initial_delay=20, jitter=0, backoff="fixed")


@pytest.mark.parametrize("is_async", [False, True])
def test_an_inner_decorated_call_keeps_to_the_outer_deadline(is_async):
    """semantics 22: its wait does not fit, so it ends with its own error at once, and is not cancelled in a wait."""
    inner = Guard(retry=STEADY, retry_budget=RetryBudget("inner"))(aflaky if is_async else flaky)
    guard = Guard(retry=None, total_timeout=10)

    @guard
    def outer():
        inner(True)

    @guard
    async def aouter():
        await inner(True)

    began = time.monotonic()
    with pytest.raises(ConnectionResetError) as caught:
        asyncio.run(aouter()) if is_async else outer()
    assert outlast.stop_reason(caught.value) in ("total_timeout", "nested_exhausted", "exhausted")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("is_async", [False, True])
def test_the_shorter_of_two_time_limits_bounds_a_decorated_first_attempt(is_async):
    """semantics 24: `timeout`, if it is less than `total_timeout`, and then it is an attempt that took too long."""
    if not is_async:
        guard = Guard(retry=None, timeout=0.05, total_timeout=60, isolation="thread")
        event = threading.Event()
        with pytest.raises(AttemptTimeoutError):
            guard(lambda: event.wait(20))()
        event.set()
        return

    @Guard(retry=None, timeout=0.05, total_timeout=60)
    async def hangs():
        await asyncio.Event().wait()

    with pytest.raises(AttemptTimeoutError):
        asyncio.run(hangs())


def test_of_two_equal_time_limits_the_total_one_strikes():
    """D-7: `timeout` and `total_timeout` alike: nothing is tried again, as there is no time left for it."""
    calls = []

    @Guard(retry=STEADY, timeout=0.05, total_timeout=0.05)
    async def hangs():
        calls.append("call")
        await asyncio.Event().wait()

    with pytest.raises(outlast.TotalTimeoutError) as caught:
        asyncio.run(hangs())
    assert (calls, outlast.stop_reason(caught.value)) == (["call"], "total_timeout")


@pytest.mark.usefixtures("nobody_listens")
@pytest.mark.parametrize("is_async", [False, True])
def test_max_attempts_hold_in_the_fast_lane(is_async):
    """S0-02: after another guard has used the policy up to its end, a plain @retry with it makes as many attempts, and no more."""
    policy = RetryPolicy(max_attempts=2, initial_delay=0, jitter=0)
    Guard(retry=policy, retry_if=lambda _: True).call(lambda: 1)
    calls = []

    def fetch():
        calls.append(1)
        raise ConnectionResetError

    async def afetch():
        fetch()

    for _ in range(2):
        calls.clear()
        with pytest.raises(ConnectionResetError):
            asyncio.run(outlast.retry(policy)(afetch)()) if is_async else outlast.retry(policy)(fetch)()
        assert len(calls) == 2


@pytest.mark.usefixtures("nobody_listens")
@pytest.mark.parametrize("is_async", [False, True])
def test_the_fast_lane_waits(is_async):
    """S0-04: the promised waits, in real time, also when nothing has to be worked out any more."""
    fetch = outlast.retry(initial_delay=0.05, jitter=0, backoff="fixed")(aflaky if is_async else flaky)
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(ConnectionResetError):
            asyncio.run(fetch(True)) if is_async else fetch(True)
        assert time.monotonic() - began >= 0.1


# --- the same on both lanes -----------------------------------------------------------------------------------------------


class Script:
    """Does what it is told, one step for each attempt: raise, return, take so long; it may ask which attempt it is, or for its key."""

    def __init__(self, steps, *, asks=None):
        self.steps = iter(steps)
        self.asks = asks
        self.heard = []
        self.calls = 0

    def step(self):
        self.calls += 1
        if self.asks is not None:
            current = outlast.current()
            self.heard.append((current.attempt, type(current.last_error)))
            if self.asks == "key":
                self.heard.append(len(current.idempotency_key))
        what, takes = next(self.steps, ("ok", 0.0))
        return what, takes

    def __call__(self):
        what, takes = self.step()
        here.get().clock.sleep(takes) if takes else None
        return self.end(what)

    async def later(self):
        what, takes = self.step()
        if takes:
            await here.get().clock.asleep(takes)
        return self.end(what)

    def end(self, what):
        errors = {
            "reset": ConnectionResetError,
            "refused": ConnectionRefusedError,
            "late": TimeoutError,
            "value": ValueError,
            "bug": AttributeError,
            "interrupt": KeyboardInterrupt,
        }
        if what in errors:
            raise errors[what](f"call {self.calls}")
        return what


GUARDS = st.fixed_dictionaries(
    {
        "attempts": st.sampled_from([1, 1, 2, 3, 4]),
        "on_errors": st.sampled_from([("transient",), ("all",), ()]),
        "total_timeout": st.sampled_from([None, None, 2.5, 60]),
        "limit": st.sampled_from([None, "places", "rate"]),
        "breaker": st.sampled_from([None, "row", "rate", "slow"]),
        "on_open": st.sampled_from(["fail", "wait"]),
        "budget": st.sampled_from([None, 0, 2]),
        # Seldom: a function with one of these takes no short way at all.
        "retry_if": st.sampled_from([False] * 7 + [True]),
        "fallback": st.sampled_from([None] * 8 + ["default", "all"]),
        "timeout": st.booleans(),
        "idempotent": st.sampled_from([True, True, False]),
        "asks": st.sampled_from([None, "attempt", "key"]),
        "listens": st.booleans(),
    }
)
STEP = st.tuples(
    st.sampled_from(
        ["ok", "ok", "pending", "reset", "reset", "refused", "late", "value", "bug", "interrupt", "interrupt"]
    ),
    st.sampled_from([0.0, 0.0, 0.7, 2.0]),
)


def made(options, *, is_async):
    breakers = {
        "row": {"failure_threshold": 2},
        "rate": {"failure_rate": 0.5, "min_calls": 3, "window": 5},
        "slow": {"failure_threshold": 2, "slow_call": 1.0},
    }
    limits = {"places": {"concurrency": 1}, "rate": {"rates": {"calls": Rate(2, per=1)}}}
    kind, room = options["breaker"], options["limit"]
    breaker = None if kind is None else CircuitBreaker("both", reset_timeout=3, **breakers[kind])
    limit = None if room is None else Limit("both", max_wait=5, **limits[room])
    budget = None if options["budget"] is None else RetryBudget("both", ratio=0.5, reserve=options["budget"])
    policy = RetryPolicy(max_attempts=options["attempts"], jitter=0, on_errors=options["on_errors"])
    return Guard(
        "both",
        retry=policy,
        timeout=1.0 if options["timeout"] and is_async else None,
        total_timeout=options["total_timeout"],
        limit=limit,
        breaker=breaker,
        on_open=options["on_open"] if breaker is not None else "fail",
        retry_budget=budget,
        retry_if=(lambda result: result == "pending") if options["retry_if"] else None,
        fallback=None if options["fallback"] is None else lambda: "stale",
        fallback_on=["all"] if options["fallback"] == "all" else None,
        idempotent=options["idempotent"],
    )


def story(options, scripts, *, is_async):
    """Everything that can be seen from outside of a few calls, one after the other."""
    guard, told, events = made(options, is_async=is_async), [], []
    with virtual_time() as clock, listening(events) if options["listens"] else nullcontext():
        for steps in scripts:
            script = Script(steps, asks=options["asks"])
            try:
                result = asyncio.run(guard.acall(script.later)) if is_async else guard.call(script)
            except BaseException as error:  # noqa: BLE001 - compared
                result = (
                    type(error),
                    outlast.stop_reason(error),
                    [(record.number, record.error, record.delay, record.verdict) for record in outlast.history(error)],
                    getattr(error, "__notes__", None) if not options["fallback"] else None,
                )
            breaker, limit, budget = guard.breaker, guard.limit, guard.retry_budget
            told.append(
                (
                    result,
                    script.calls,
                    script.heard,
                    clock.now,
                    None if breaker is None else (breaker.state, breaker.failure_count, breaker.success_count),
                    None if limit is None else (limit.under_way, limit.waiting, limit.taken),
                    None if budget is None else budget._tokens,
                    outlast.current().attempt,
                )
            )
    return told, clock.sleeps, events


INSTANTS = {"ts", "seq", "next_attempt_at", "opened_at", "retry_at"}


@contextmanager
def listening(events):
    """Every event, without what differs from one time to the next."""

    def hook(event):
        fields = event.as_dict()
        events.append({name: fields[name] for name in fields if name not in INSTANTS})

    forget = subscribe(hook)
    try:
        yield
    finally:
        forget()


@settings(max_examples=500)
@given(options=GUARDS, scripts=st.lists(st.lists(STEP, max_size=5), min_size=1, max_size=6), is_async=st.booleans())
def test_the_short_way_does_what_the_flow_does(options, scripts, is_async):
    """For any guard and any script of outcomes: the same results, calls, waits, histories, notes, events, circuits, places and budgets."""
    if made(options, is_async=is_async).plain:  # a plain one does not time its first attempt
        scripts = [[(what, 0.0) for what, _ in steps[:1]] + steps[1:] for steps in scripts]
    by_the_flow = story(options, scripts, is_async=is_async)
    with on_the_short_way():
        decorated = story(options, scripts, is_async=is_async)
    assert decorated == by_the_flow
