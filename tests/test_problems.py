"""Mistakes as values: where, what was expected, what came and the way out, and the sentence that is made of them."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from outlast import (
    CircuitBreaker,
    ConfigurationError,
    Guard,
    Hedge,
    Limit,
    Rate,
    RetryBudget,
    RetryPolicy,
    presets,
    stage,
)
from outlast.errors import Item, Problem
from outlast.settings.checks import Check


def wrong(make) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        make()
    return caught.value


# --- values ---


def test_each_problem_is_a_value_and_a_sentence():
    """What a message says can be had without reading it: path, expectation, what came, way out (S0-29)."""
    error = wrong(lambda: RetryPolicy.from_config({"max_atempts": 3, "initial_delay_ms": -5, "delays": 5}))
    assert [(one.kind, one.path, one.expected, one.got, one.way_out) for one in error.details] == [
        ("key", ("max_atempts",), "a known key", "'max_atempts'", "Did you mean 'max_attempts'?"),
        ("value", ("initial_delay_ms",), "milliseconds of at least 0", "-5", ""),
        ("value", ("delays",), "a list", "5", ""),
    ]
    assert tuple(map(str, error.details)) == error.problems


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"delays_ms": [1, -1]}, ("delays_ms", 1)),
        ({"jitter": {"add_ms": -1}}, ("jitter", "add_ms")),
        ({"retryable_exceptions": ["ValueError", "tiemout"]}, ("retryable_exceptions", 1)),
        ({"retriable_errors": ["transient"], "retryable_http_status_codes": [700]}, ("retryable_http_status_codes", 0)),
        ({"retry_limits": {"database": -1}}, ("retry_limits", "database")),
        ({"skip_on_errors": [1000]}, ("skip_on_errors", 0)),
    ],
)
def test_a_path_leads_to_the_very_entry(config, path):
    """Through lists and mappings, under the keys that were written: what knows its lines can point at one (S0-29)."""
    (problem,) = wrong(lambda: RetryPolicy.from_config(config)).details
    assert problem.path == path


def test_a_path_in_words():
    """One grammar: names with dots, places in lists with brackets, keys of a Python mapping in quotes."""
    path = ("stages", 2, "retry", "max_attempts")
    assert Problem(path, "an integer", "'x'").where == "stages[2].retry.max_attempts"
    assert Problem(("retry_limits", Item("database"))).where == "retry_limits['database']"
    assert Problem(kind="text", expected="It is wrong.").where == ""


def test_a_block_inside_of_another():
    """The part that is checked by itself does not know where it stands; whoever put it there says so (S0-29)."""
    check = Check()
    check.take(wrong(lambda: RetryPolicy.from_config({"mode": "x", "max_atempts": 1})), "stages", 2, "retry")
    check.take(ConfigurationError("It is wrong."), "limit")
    assert wrong(check.raise_if_any).problems == (
        "expected a known key in stages[2].retry, got: 'max_atempts'. Did you mean 'max_attempts'?",
        "expected stages[2].retry.mode to be inline or requeue, got: 'x'.",
        "limit: It is wrong.",
    )


def test_a_place_in_a_file():
    """File, line and column stand in front of the sentence, and nothing else changes (S0-29)."""
    problem = Problem(("retry", "mode"), "inline or requeue", "'x'").replace(place="flow.yaml:12:5")
    assert str(problem) == "flow.yaml:12:5: expected retry.mode to be inline or requeue, got: 'x'."
    assert ConfigurationError([problem]).details == (problem,)


def test_problems_travel():
    """They are hashable, and an error keeps them through copies and pickles."""
    error = wrong(lambda: Guard(timeout=-1, retry=3))
    for other in (copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert (other.details, other.problems, str(other)) == (error.details, error.problems, str(error))
    assert len({*error.details, *error.details}) == 2


def test_a_secret_is_in_no_part_of_a_problem():
    """What the sentence masks, the values do not tell (S0-41)."""
    secret = "postgresql://shop:hunter2@db/shop"
    error = ConfigurationError([Problem(("store",), "an address", repr(secret))])
    assert "hunter2" not in repr(error.details) + str(error)


def test_every_room_gathers_values():
    """Nothing that checks settings makes a sentence by itself (S0-29)."""
    makes = (
        lambda: RetryPolicy(max_attempts=0),
        lambda: Guard(timeout=-1),
        lambda: CircuitBreaker("a", window=0),
        lambda: Limit("a", concurrency=0),
        lambda: Limit("a", rates={"tokens": 5}),
        lambda: Rate(0, per=1),
        lambda: RetryBudget("a", ratio=2),
        lambda: Hedge(after=0),
        lambda: stage(repairs=[None])(len),
    )
    paths = [problem.path for make in makes for problem in wrong(make).details]
    assert paths == [
        ("max_attempts",),
        ("timeout",),
        ("window",),
        ("concurrency",),
        ("rates", "tokens"),
        ("amount",),
        ("ratio",),
        ("after",),
        ("repairs", 0),
    ]


# --- copies that lose nothing ---


def enough(result: object) -> bool:
    return result is None


def cheap(item: object) -> object:
    return item


def price(item: object) -> dict[str, float]:
    return {"tokens": 1.0}


# A value other than the default for every option of a guard.
EVERY = {
    "name": "reviews",
    "retry": presets.llm,
    "timeout": 3.0,
    "total_timeout": 60.0,
    "idle_timeout": 5.0,
    "isolation": "thread",
    "breaker": CircuitBreaker("reviews"),
    "limit": Limit("reviews", rates={"tokens": Rate(10, per=1)}),
    "cost": price,
    "retry_budget": RetryBudget("reviews"),
    "hedge": Hedge(after=1.0),
    "on_open": "wait",
    "retry_if": enough,
    "fallback": cheap,
    "fallback_on": ("timeout",),
    "idempotent": False,
}
# What cannot be together with something else, and what a stage of one output has no use for.
SYNC_ONLY, ASYNC_ONLY, NEVER = {"isolation", "idempotent"}, {"hedge"}, {"idle_timeout"}


def options() -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(Guard).parameters
    return {name: one for name, one in parameters.items() if one.kind is not inspect.Parameter.VAR_KEYWORD}


def test_every_option_of_a_guard_is_looked_at_here():
    """D-26: an option that is added to `Guard` needs a value above, and then its copies are proved too."""
    assert set(EVERY) == set(options())
    assert [name for name, one in options().items() if EVERY[name] == one.default] == []


def test_replace_keeps_every_option():
    """D-26: a copy differs in what was named and in nothing else."""
    for leave in (ASYNC_ONLY, SYNC_ONLY):
        given = {name: value for name, value in EVERY.items() if name not in leave}
        guard = Guard(**given)
        for changed in (guard.replace(), guard.replace(timeout=9.0)):
            assert {name: getattr(changed, name) for name in given} == given | {"timeout": changed.timeout}
        assert guard.replace(timeout=9.0).timeout == 9.0
        assert guard.timeout == 3.0


async def wait_for(item: object) -> object:
    return item


@pytest.mark.parametrize(("fn", "leave"), [(cheap, ASYNC_ONLY | NEVER), (wait_for, SYNC_ONLY | NEVER)])
def test_no_option_of_a_guard_is_lost_in_a_stage(fn, leave):
    """D-26: a stage protects its items with all that its guard was given."""
    given = {name: value for name, value in EVERY.items() if name not in leave}
    made = stage(guard=Guard(**given))(fn)
    assert {name: getattr(made.guard, name) for name in given} == given
    assert set(given) | leave == set(options())


def test_what_a_stage_changes_of_its_guard_is_what_it_was_told():
    """D-26: retry, timeout and isolation of the stage win; everything else is the guard's."""
    given = {name: value for name, value in EVERY.items() if name not in ASYNC_ONLY | NEVER}
    made = stage(guard=Guard(**given), retry=presets.stage, timeout=9.0, isolation="process")(cheap)
    changed = {"retry": presets.stage, "timeout": 9.0, "isolation": "process"}
    assert {name: getattr(made.guard, name) for name in given} == given | changed


def test_a_change_that_a_guard_does_not_know_is_refused():
    """D-26: with the nearest name, as when it is made."""
    assert wrong(lambda: Guard().replace(timout=3)).problems == (
        "expected no argument 'timout'. Did you mean 'timeout'?",
    )
