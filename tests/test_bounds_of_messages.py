"""What is said about mistakes: the right name, and never more than a person can read."""

from __future__ import annotations

import time

import pytest

from outlast import CircuitBreaker, ConfigurationError, Guard, RetryPolicy


def problems(make):
    with pytest.raises(ConfigurationError) as caught:
        make()
    return caught.value.problems


def test_names_of_habit_lead_to_what_is_meant():
    """C-19: the name that looks alike is not always the one that was meant."""
    assert problems(lambda: CircuitBreaker("a", threshold=3)) == (
        "expected no argument 'threshold'. Did you mean 'failure_threshold'?",
    )
    assert problems(lambda: RetryPolicy(retries=3)) == ("expected no argument 'retries'. Did you mean 'max_attempts'?",)
    assert problems(lambda: RetryPolicy(max_attempts="5")) == (
        "expected max_attempts to be an integer of at least 1, got: '5'. Write max_attempts=5, without quotes.",
    )


def test_hostile_configuration_is_answered_in_a_few_lines():
    """C-19: neither a minute nor a hundred megabytes, however many mistakes there are and however long their names."""
    began = time.process_time()
    for make in (
        lambda: RetryPolicy.from_config({f"key {n}": n for n in range(200_000)}),
        lambda: RetryPolicy.from_config({"x" * 1_000_000: 1}),
        lambda: Guard(**{f"key{n}": n for n in range(50_000)}),
    ):
        found = problems(make)
        assert len(found) <= 25
        assert sum(map(len, found)) < 40_000
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("on", "skip"), [("connection_reset", "network_error"), ("database_connection", "database_error")]
)
def test_what_a_skipped_parent_covers_cannot_be_retried(on, skip):
    """D-26: listed and skipped at once has no effect, and is refused."""
    (problem,) = problems(lambda: RetryPolicy(on_errors=[on], skip_on_errors=[skip]))
    assert problem.startswith("expected on_errors to be free of what skip_on_errors lists")
    assert RetryPolicy(on_errors=[skip], skip_on_errors=[on]).on_errors == (skip,)


def test_a_name_that_a_loaded_module_does_not_have_is_refused():
    """D-26: a list that can never match is no list; what is not loaded yet may come."""
    (problem,) = problems(lambda: RetryPolicy(on_errors=["builtins.ConnectionResetEror"]))
    assert problem.startswith(
        "expected on_errors[0] to be an exception of builtins, which is loaded and has no such one"
    )
    assert problem.endswith("Did you mean 'builtins.ConnectionResetError'?")
    assert RetryPolicy(on_errors=["not_loaded.Anything", "builtins.OSError"]).on_errors == (
        "not_loaded.Anything",
        "builtins.OSError",
    )


def test_an_empty_schedule_is_refused():
    """D-26: a list that came out empty by mistake must not become exponential backoff without a word."""
    (problem,) = problems(lambda: RetryPolicy(delays=[]))
    assert "at least one delay" in problem
