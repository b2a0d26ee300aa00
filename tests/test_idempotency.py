"""Work that must not be done twice: idempotent=False, and the key that makes a retry safe."""

from __future__ import annotations

import asyncio

import pytest
import trio

import outlast
from outlast import (
    AttemptTimeoutError,
    CircuitBreaker,
    ConfigurationError,
    Guard,
    Limit,
    PermanentFailure,
    RetryPolicy,
    TemporaryFailure,
)
from outlast.testing import capture_events, virtual_time
from tables import table

STEADY = RetryPolicy(max_attempts=3, initial_delay=1, multiplier=1, jitter=0)


def once(**options) -> Guard:
    return Guard("pay", **{"retry": STEADY, "idempotent": False} | options)


class Answer(Exception):
    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(status)
        self.status_code, self.headers = status, headers


class VendorError(Exception):
    pass


def raised_while(handled: Exception, error: Exception, *, cause: bool = False) -> Exception:
    """The error as it leaves a handler of another one."""
    error.__context__ = handled
    if cause:
        error.__cause__ = handled
    return error


def raiser(error: Exception):
    def work():
        raise error

    return work


def test_an_ambiguous_failure_is_not_retried():
    """semantics 37: the error, the reason, the note and the one event."""
    error = ConnectionResetError("lost")
    with virtual_time() as time, capture_events() as events:
        outcome = once().outcome(raiser(error))
    assert outcome.error is error
    assert (outcome.reason, len(outcome.attempts), time.sleeps) == ("ambiguous", 1, [])
    assert outlast.stop_reason(error) == "ambiguous"
    (note,) = error.__notes__
    assert note == (
        "outlast pay: not retried: it is a ConnectionResetError, so it may have been done, and idempotent=False says that it "
        "must not be done twice. Send outlast.current().idempotency_key along and it is retried."
    )
    assert [(event.name, event.reason) for event in events] == [("step_error_permanent", "ambiguous")]


TABLE = [
    (ConnectionRefusedError(), True),
    (TemporaryFailure("not yet"), True),
    (Answer(429), True),
    (Answer(503, **{"Retry-After": "1"}), True),
    (Answer(503), False),
    (Answer(500), False),
    (Answer(408), False),
    (ConnectionResetError(), False),
    (BrokenPipeError(), False),
    (TimeoutError(), False),
    (AttemptTimeoutError("late"), False),
    (outlast.LimitExceededError("full", name="x", retry_after=None), True),
    (raised_while(ConnectionRefusedError(), VendorError("wrapped"), cause=True), True),
    (raised_while(ConnectionRefusedError(), VendorError("sent elsewhere since")), False),
    (raised_while(ConnectionRefusedError(), TimeoutError()), False),
    (raised_while(Answer(429), ConnectionResetError()), False),
]


@table(("error", "retried"), TABLE, ids=[f"{n}-{type(e).__name__}" for n, (e, _) in enumerate(TABLE)])
def test_what_surely_had_no_effect_is_retried(error, retried):
    """semantics 36, 37: never sent, or refused; what merely happened before the error proves nothing."""
    policy = STEADY.replace(on_errors=["transient", "unclear", "permanent"], retry_exhausted=True)
    with virtual_time():
        outcome = once(retry=policy).outcome(raiser(error))
    assert (len(outcome.attempts), outcome.reason) == ((3, "exhausted") if retried else (1, "ambiguous"))


def test_a_permanent_failure_is_no_question_of_ambiguity():
    """semantics 37: what the policy does not retry keeps the policy's reason."""
    with virtual_time():
        assert once().outcome(raiser(PermanentFailure())).reason == "permanent"
        assert once(retry=None).outcome(raiser(ConnectionResetError())).reason == "exhausted"


def test_an_open_circuit_inside_is_no_attempt_at_the_work():
    """semantics 36: the inner breaker rejected, so nothing was sent, and the outer guard may try again."""
    breaker = CircuitBreaker("idempotency-inner", failure_threshold=1, reset_timeout=2)
    inner = Guard(retry=None, breaker=breaker)
    policy = STEADY.replace(on_errors=["transient", "circuit_open"])
    with virtual_time():
        breaker.settle(breaker.admit(), failed=True)
        assert once(retry=policy).call(lambda: inner.call(lambda: "done")) == "done"


def test_a_full_limit_is_no_attempt_at_the_work():
    """semantics 36: a retry that got no place was never sent."""
    limit = Limit("idempotency", concurrency=1, max_wait=0)
    with virtual_time(), limit:
        outcome = once(limit=limit).outcome(lambda: pytest.fail("called"))
    assert outcome.reason == "throttled"


@pytest.mark.parametrize("kind", ["sync", "asyncio", "trio", "isolated", "attempts", "generator", "async generator"])
def test_the_key_makes_it_safe_and_is_the_same_in_every_attempt(kind):
    """semantics 37: each door; with the key read every attempt is made, without it the first is the last."""
    keys: list[str] = []

    def work(*, with_key=True):
        keys.append(outlast.current().idempotency_key if with_key else "none")
        raise ConnectionResetError

    def attempt(**how):
        if kind == "sync":
            once().call(work, **how)
        elif kind == "isolated":
            once(isolation="thread").call(work, **how)
        elif kind == "attempts":
            for one in once().attempts():
                with one:
                    work(**how)
        elif kind == "generator":

            @once()
            def items():
                work(**how)
                yield

            next(items())
        else:

            async def awork():
                work(**how)

            @once()
            async def aitems():
                work(**how)
                yield

            async def main():
                if kind == "async generator":
                    await anext(aitems())
                else:
                    await once().acall(awork)

            if kind == "trio":
                trio.run(main)
            else:
                asyncio.run(main())

    with virtual_time():
        with pytest.raises(ConnectionResetError):
            attempt()
        with pytest.raises(ConnectionResetError) as caught:
            attempt(with_key=False)
    assert len(keys[0]) == 32
    assert keys == [keys[0]] * 3 + ["none"]
    assert outlast.stop_reason(caught.value) == "ambiguous"


def test_two_calls_have_two_keys():
    """semantics 37: the same in every attempt of a call and in no other call."""
    keys = [once().call(lambda: outlast.current().idempotency_key) for _ in range(2)]
    assert keys[0] != keys[1]


def test_a_timeout_is_ambiguous():
    """semantics 37: the attempt was cancelled, and nobody knows how far it had come."""

    async def work():
        await asyncio.get_running_loop().create_future()

    with virtual_time():
        outcome = asyncio.run(once(timeout=1).aoutcome(work))
    assert isinstance(outcome.error, AttemptTimeoutError)
    assert (outcome.reason, len(outcome.attempts)) == ("ambiguous", 1)


def test_a_result_that_is_not_wanted_is_tried_again():
    """semantics 37: whoever writes retry_if has seen the result, and asks for another."""
    answers = iter(["pending", "done"])
    with virtual_time():
        assert once(retry_if=lambda result: result == "pending").call(lambda: next(answers)) == "done"


@pytest.mark.parametrize("value", ["no", 0, 1.0])
def test_idempotent_is_yes_or_no(value):
    """semantics 37: anything else is a mistake."""
    with pytest.raises(ConfigurationError, match="idempotent"):
        Guard(idempotent=value)
