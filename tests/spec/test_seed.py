"""The blocks that the format goes back to compile as they are, and mean what they say."""

from __future__ import annotations

import pytest

from outlast.components.registry import find_component as find
from outlast.components.steps import OWN
from outlast.policy import RetryPolicy
from outlast.spec.compile import compile_text
from outlast.spec.rules import check
from spec.seed import BLOCKS, whole


def compiled(name: str):
    found = compile_text(whole(BLOCKS[name]), f"{name}.yaml", find=find, rules=(check,))
    assert [str(mistake) for mistake in found.errors] == []
    return found.manifest


@pytest.mark.parametrize("name", BLOCKS)
def test_block_compiles_as_it_is(name):
    """S0-01, D-19: every line of it is in the file, unchanged and in order, and the file has no mistake."""
    text = iter(whole(BLOCKS[name]).splitlines())
    assert all(line in text for line in BLOCKS[name].splitlines())
    assert compiled(name).name == "seed"


def test_all_components_are_those_that_there_are():
    """S0-01: each is Outlast's own, with the config that it really takes."""
    named = {line.split()[-1] for block in BLOCKS.values() for line in block.splitlines() if "component:" in line}
    assert named - OWN.keys() == set()


def test_retry_block_is_the_policy_that_it_says():
    """S0-02, S0-03, S0-04, S0-05, S0-06, S0-07, S0-08: each key means what its name says, and the manifest has only canonical keys (C-24)."""
    (step,) = compiled("retry").steps
    assert step.policy["retry"] == {
        "max_attempts": 3,
        "backoff": "exponential",
        "multiplier": 2.0,
        "initial_delay_ms": 1000,
        "max_delay_ms": 30000,
        "jitter": 0.1,
        "cap": "after_jitter",
        "max_retry_after_ms": 120000,
        "on_errors": ["network_error", "timeout"],
        "skip_on_errors": ["permission_denied", "syntax_error"],
    }
    # S0-03, S0-04, S0-05, S0-06, S0-07
    assert RetryPolicy.from_config(step.policy["retry"]).max_attempts == 3
    assert [(one.attempt, one.min, one.nominal, one.max) for one in step.schedule] == [
        (2, 0.9, 1, 1.1),
        (3, 1.8, 2, 2.2),
    ]
    assert step.timing["errors"]["permanent"] == "fail"
    assert "timeout" in step.timing["errors"]["transient"]["retry"]


def test_timeout_block_bounds_an_attempt_and_everything():
    """S0-14, S0-15: 5 minutes for an attempt, 10 for all of them."""
    (step,) = compiled("timeout").steps
    assert step.policy["timeout"] == {"step_ms": 300000, "total_ms": 600000}
    assert step.timing["worst_ms"] == 300000


def test_idempotency_block_is_a_template_and_a_time():
    """S0-17, S0-18, S0-19, S0-20: own config and parameters are filled in; the record lives for an hour."""
    (step,) = compiled("idempotency").steps
    assert step.work["idempotency"] == {"key": "@supabase.main:movies:b-1", "cache_ttl_ms": 3_600_000}


def test_compensation_names_a_component_and_the_outputs_of_the_step_itself():
    """S0-21, S0-22, S0-30: the reference stays for the run; depends_on orders the steps."""
    manifest = compiled("compensate")
    assert manifest["reserve-capacity"].work["compensate"] == {
        "component": "resource.deallocator",
        "config": {"allocation_id": "${steps.reserve-capacity.outputs.allocation_id}"},
        "when": "completed",
    }
    assert list(manifest["process-data"].needs) == ["reserve-capacity"]
    missing = whole(BLOCKS["compensate"]).replace("resource.deallocator", "resource.dealocator")
    (mistake,) = compile_text(missing, "c.yaml", find=find).errors
    assert "c.yaml:10:18: steps.reserve-capacity.compensate.component: expected the name of a component" in str(mistake)
    assert "did you mean 'resource.deallocator'?" in str(mistake)


def test_circuit_breaker_block_has_its_three_numbers():
    """S0-26: 5 failures, 60 s, 2 probes; everything else is resolved."""
    (step,) = compiled("circuit_breaker").steps
    breaker = step.policy["circuit_breaker"]
    assert (breaker["failure_threshold"], breaker["reset_timeout_ms"], breaker["half_open_requests"]) == (5, 60000, 2)
    assert (breaker["scope"], breaker["on_open"], breaker["success_threshold"]) == ("seed.call-external-api", "fail", 2)
