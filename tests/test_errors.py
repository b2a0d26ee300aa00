"""Every error of ours: it survives pickle, copy and context managers with all it carries, and fits the clauses people wrote before."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta

import pytest

import outlast
from outlast import (
    AttemptTimeoutError,
    CircuitBreakerOpenError,
    ConfigurationError,
    Guard,
    LimitExceededError,
    OutlastError,
    PermanentFailure,
    RetryPolicy,
    TemporaryFailure,
    TotalTimeoutError,
)
from outlast.errors import as_seconds, nearest
from outlast.testing import virtual_time
from tables import table

AT = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)


class Throttled(TemporaryFailure):
    """A user's own subclass, with arguments of its own."""

    def __init__(self, service: str, *, code: int) -> None:
        super().__init__(f"{service} said {code}", retry_after=3, error_class="rate_limited")
        self.service = service
        self.code = code


ERRORS = {
    "OutlastError": lambda: OutlastError("something"),
    "ConfigurationError": lambda: ConfigurationError(["one is wrong.", "two is wrong."]),
    "ConfigurationError, one": lambda: ConfigurationError("one is wrong."),
    "TemporaryFailure": lambda: TemporaryFailure("later", retry_after=2.5, error_class="rate_limited"),
    "TemporaryFailure, empty": TemporaryFailure,
    "PermanentFailure": lambda: PermanentFailure("never", error_class="data_error"),
    "AttemptTimeoutError": lambda: AttemptTimeoutError("attempt 2 took longer than 5 s"),
    "TotalTimeoutError": lambda: TotalTimeoutError("the total timeout ran out"),
    "CircuitBreakerOpenError": lambda: CircuitBreakerOpenError(
        "circuit breaker 'openai' is open",
        name="openai",
        opened_at=AT,
        retry_at=AT + timedelta(minutes=1),
        retry_after=60.0,
    ),
    "LimitExceededError": lambda: LimitExceededError("limit 'openai': no place", name="openai", retry_after=2.5),
    "LeaseLost": lambda: outlast.LeaseLost("taken over"),
    "RunFailed": lambda: outlast.RunFailed("failed", result=None),
    "RunIncomplete": lambda: outlast.RunIncomplete("partial_success", result=None),
    "RunInterrupted": lambda: outlast.RunInterrupted("interrupted", result=None),
    "FlowFailed": lambda: outlast.FlowFailed("failed", result=None),
    "FlowIncomplete": lambda: outlast.FlowIncomplete("partial_success", result=None),
    "FlowInterrupted": lambda: outlast.FlowInterrupted("interrupted", result=None),
    "FailureBudgetExceeded": lambda: outlast.FailureBudgetExceeded(
        "too many", result=None, rate=0.5, budget=0.1, processed=10, failed=5
    ),
    "JobFailed": lambda: outlast.JobFailed("failed", job=None, error_class="connection_reset", stop_reason="exhausted"),
    "JobNotFound": lambda: outlast.JobNotFound("no such job"),
    "ResultLost": lambda: outlast.ResultLost("it was not stored", job=None),
    "ResultTimeoutError": lambda: outlast.ResultTimeoutError("not yet"),
    "a subclass": lambda: Throttled("openai", code=429),
}
every_error = table("make", ERRORS.values(), ids=ERRORS)


def fields(error: BaseException) -> dict[str, object]:
    return {name: value for name, value in vars(error).items() if not name.startswith("__")}


def public_errors() -> set[type]:
    found = {getattr(outlast, name) for name in outlast.__all__}
    return {one for one in found if isinstance(one, type) and issubclass(one, Exception)}


def test_every_public_error_is_in_this_file():
    """semantics 11: none is forgotten, and all have one base; what a stage raises to say something is no error."""
    said = {outlast.Skip, outlast.Snooze}
    assert public_errors() - said == {type(make()) for make in ERRORS.values()} - {Throttled}
    assert all(issubclass(error, OutlastError) for error in public_errors() - said)


@every_error
@table("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickle(make, protocol):
    """semantics 11: type, message and every field."""
    error = make()
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert (str(again), again.args, fields(again)) == (str(error), error.args, fields(error))


@every_error
@table("way", [copy.copy, copy.deepcopy])
def test_an_error_survives_copy(make, way):
    """semantics 11: type, message and every field."""
    error = make()
    again = way(error)
    assert again is not error
    assert type(again) is type(error)
    assert (str(again), again.args, fields(again)) == (str(error), error.args, fields(error))


@every_error
def test_a_copy_has_fields_of_its_own(make):
    """semantics 11: changing the copy leaves the original as it is."""
    error = make()
    again = copy.copy(error)
    again.extra = 1
    assert not hasattr(error, "extra")


@every_error
def test_an_error_passes_through_context_managers(make):
    """semantics 11: as the same object, through generators and stacks."""

    @contextmanager
    def manager():
        yield

    error = make()
    with pytest.raises(type(error)) as caught, manager(), ExitStack() as stack:
        stack.enter_context(manager())
        raise error
    assert caught.value is error


@every_error
def test_an_error_passes_through_async_context_managers(make):
    """semantics 11: the same for async generators."""
    import asyncio

    @asynccontextmanager
    async def manager():
        yield

    async def main():
        async with manager():
            raise error

    error = make()
    with pytest.raises(type(error)) as caught:
        asyncio.run(main())
    assert caught.value is error


@every_error
def test_an_error_keeps_its_history_when_it_is_pickled(make):
    """semantics 11: attempts, stop reason and note come along."""
    error = make()

    def work():
        raise error

    with virtual_time(), pytest.raises(type(error)):
        Guard("shop", retry=RetryPolicy(on_errors=["all"], max_attempts=2)).call(work)
    again = pickle.loads(pickle.dumps(error))
    assert outlast.history(again) == outlast.history(error)
    assert outlast.stop_reason(again) == outlast.stop_reason(error) is not None
    assert again.__notes__ == error.__notes__ != []
    assert len(outlast.history(again)) == 2


def test_foreign_errors_keep_their_history_too():
    """semantics 11: history is made of values, so an exception that could be pickled before still can be."""

    def work():
        raise ConnectionResetError("reset by peer")

    with virtual_time(), pytest.raises(ConnectionResetError) as caught:
        outlast.retry(work)()
    again = pickle.loads(pickle.dumps(caught.value))
    assert len(outlast.history(again)) == 3
    assert outlast.history(again) == outlast.history(caught.value)
    assert copy.copy(caught.value).__notes__ == caught.value.__notes__


def test_errors_cross_threads():
    """semantics 11: a future hands out the same object."""
    error = TemporaryFailure("later")

    def work():
        raise error

    with ThreadPoolExecutor(1) as pool, pytest.raises(TemporaryFailure) as caught:
        pool.submit(work).result(20)
    assert caught.value is error


@pytest.mark.parametrize(
    ("error", "parent"),
    [(AttemptTimeoutError, TimeoutError), (TotalTimeoutError, TimeoutError), (ConfigurationError, ValueError)],
)
def test_an_error_fits_the_clauses_written_before(error, parent):
    """Timeouts are TimeoutErrors, wrong settings ValueErrors."""
    assert issubclass(error, parent)
    assert issubclass(error, OutlastError)


def test_nothing_of_ours_is_control_flow():
    """semantics 1: all of them are Exceptions, none is more than that."""
    assert all(issubclass(error, Exception) for error in public_errors())


def test_a_configuration_error_lists_every_problem():
    """One problem is the message; several are counted and listed (S0-29)."""
    assert str(ConfigurationError("a is wrong.")) == "a is wrong."
    assert ConfigurationError("a is wrong.").problems == ("a is wrong.",)
    several = ConfigurationError(["a is wrong.", "b is wrong."])
    assert str(several).splitlines() == ["2 problems:", "  - a is wrong.", "  - b is wrong."]
    assert several.problems == ("a is wrong.", "b is wrong.")


def test_a_rejection_says_who_and_when():
    """S4-12, C-13: fields for code, a message for people."""
    breaker = outlast.CircuitBreaker("rejecting", failure_threshold=1, reset_timeout=30)
    with virtual_time(), pytest.raises(ConnectionResetError):
        breaker.call(raise_reset)
    with pytest.raises(CircuitBreakerOpenError) as caught:
        breaker.call(print)
    error = caught.value
    assert error.name == "rejecting"
    assert error.retry_at - error.opened_at == timedelta(seconds=30)
    assert 0 < error.retry_after <= 31
    assert error.opened_at.isoformat() in str(error)
    assert "'rejecting'" in str(error)


def raise_reset():
    raise ConnectionResetError


def test_a_temporary_failure_may_say_when():
    """D-6: in seconds or as a timedelta, and the wait is added to the backoff (S4-02)."""
    assert TemporaryFailure("later", retry_after=timedelta(seconds=90)).retry_after == 90.0
    assert TemporaryFailure("later", retry_after=2).retry_after == 2.0
    assert TemporaryFailure().retry_after is None

    def work():
        raise TemporaryFailure("later", retry_after=timedelta(seconds=10))

    with virtual_time() as time, pytest.raises(TemporaryFailure):
        outlast.retry(RetryPolicy(max_attempts=2, initial_delay=1, jitter=0))(work)()
    assert time.sleeps == [11]


def test_markers_decide_before_anything_else():
    """D-2: whoever raises them, or a subclass, knows (S4-02) (S4-05)."""
    assert outlast.classify(TemporaryFailure()).category == "transient"
    assert outlast.classify(PermanentFailure()).category == "permanent"
    verdict = outlast.classify(Throttled("openai", code=429))
    assert (verdict.category, verdict.error_class, verdict.tier) == ("transient", "rate_limited", "http_429_503")
    assert verdict.retry_after == 3


def test_durations_are_seconds():
    """C-24: a number or a timedelta."""
    assert [as_seconds(value) for value in (2, 2.5, timedelta(minutes=1))] == [2.0, 2.5, 60.0]


def test_the_nearest_name_is_offered():
    """C-24: when one is near; otherwise nothing (S0-29)."""
    assert nearest("max_attemps", ["max_attempts", "jitter"]) == " Did you mean 'max_attempts'?"
    assert nearest("xyz", ["max_attempts", "jitter"]) == ""
