"""Circuits, limits and retry budgets that steps share: one name, one definition, and none that does nothing."""

from __future__ import annotations

from outlast.spec.compile import compile_text
from tables import table

HEAD = 'oml_version: "0.1.0"\nname: p\nsteps:\n'
STEP = "  - {id: %s, component: http.caller, timeout: {step: 5s}, config: {connection: '@http.fx', url: /x}, %s}\n"


def told(*blocks: str) -> list[str]:
    steps = "".join(STEP % (id_, block) for id_, block in zip("abc", blocks, strict=False))
    return [str(one) for one in compile_text(HEAD + steps, "p.yaml").errors]


@table(
    ("one", "other", "got"),
    [
        ("limit: {concurrency: 4}", "limit: {concurrency: 10}", "concurrency 10 (there 4)"),
        ("limit: {concurrency: 4}", "limit: {concurrency: 4, max_wait: 5s}", "max_wait 5 s (there none)"),
        (
            "limit: {rates: {calls: 5/s}}",
            "limit: {rates: {calls: 10/min}}",
            "rates 10 calls in 1 min (there 5 calls in 1 s)",
        ),
        ("limit: {concurrency: 1}", "limit: {concurrency: 1, shared: true}", "shared true (there false)"),
        (
            "circuit_breaker: {failure_threshold: 3, reset_timeout: 10s}",
            "circuit_breaker: {failure_threshold: 50, reset_timeout: 100s}",
            "failure_threshold 50 (there 3), reset_timeout 1 min 40 s (there 10 s)",
        ),
        (
            "retry: {}, retry_budget: {ratio: 0.1}",
            "retry: {}, retry_budget: {ratio: 0.2}",
            "ratio 0.2 (there 0.1)",
        ),
    ],
)
def test_two_definitions_of_one_name_are_an_error(one, other, got):
    """C-24: it names both places and what differs; equal ones, in whichever spelling, are fine."""
    (line,) = told(one, other)
    key = next(key for key in ("circuit_breaker", "limit", "retry_budget") if f"{key}: {{" in one)
    assert line.startswith("p.yaml:5:")
    assert f": steps.b.{key}: expected the " in line
    assert (
        f" @http.fx as steps.a.{key} has it (line 4), got {got}; say the same in both, or give one of them a " in line
    )
    assert told(one, one) == []


@table(
    ("one", "other"),
    [
        ("limit: {concurrency: 4}", "limit: {concurrency: 10, name: other}"),
        ("limit: {rates: {calls: 60/min}}", "limit: {rates: {calls: {amount: 60, per_s: 60}}}"),
        ("circuit_breaker: {reset_timeout: 60s}", "circuit_breaker: {reset_timeout_ms: 60000, on_open: wait}"),
        ("circuit_breaker: {failure_threshold: 3}", "circuit_breaker: {failure_threshold: 9, scope: slow}"),
        ("limit: {concurrency: 4}", "circuit_breaker: {failure_threshold: 9}"),
        ("retry: {}, retry_budget: {}", "retry_budget: {}"),  # whose successes count for the other
        ("retry_budget: {shared: true}", "retry: {}"),
    ],
)
def test_what_is_the_same_or_has_another_name_is_fine(one, other):
    """C-24: and on_open is each step's own."""
    assert told(one, other) == []


def test_each_step_that_says_something_else_is_told():
    """C-24: all at once, against the first."""
    lines = told("limit: {concurrency: 1}", "limit: {concurrency: 2}", "limit: {concurrency: 3}")
    assert [line.split(": ")[1] for line in lines] == ["steps.b.limit", "steps.c.limit"]


def test_a_retry_budget_without_retries_is_refused():
    """D-26: as a guard refuses it; nothing would be taken from it."""
    (line,) = told("retry_budget: {ratio: 0.1}")
    assert "steps.a.retry_budget: expected it left out with one attempt, got a retry budget; without retries" in line
    assert len(told("retry_budget: {}", "retry: {max_attempts: 1}, retry_budget: {}")) == 2


@table(
    "retry",
    [
        "{jitter: 7}",
        "{max_attempts: 0}",
        "5",
        "{max_atempts: x}",
        '{max_attempts: "${params.none}"}',
        "{on_errors: [nope]}",
    ],
)
def test_nothing_follows_from_a_retry_block_that_is_wrong(retry):
    """C-24: one mistake, one line: whether it retries is known once it is mended."""
    lines = told(f"retry: {retry}, retry_budget: {{}}")
    assert len(lines) == len(told(f"retry: {retry}")) > 0
    assert not any("steps.a.retry_budget" in line for line in lines)
    assert len(told(f"retry: {retry}, retry_budget: {{}}", "retry_budget: {}")) == len(lines)


@table(
    "wrong",
    [
        "limit: {concurrency: x, max_wait: 5s}",
        "limit: {concurency: 4, max_wait: 5s}",
        "circuit_breaker: {failure_threshold: x, reset_timeout: 5s}",
        "circuit_breaker: {on_open: perhaps, reset_timeout: 5s}",
    ],
)
def test_nothing_follows_from_a_part_that_is_wrong(wrong):
    """C-24: a definition that could not be read is not compared with another one."""
    key = wrong.partition(":")[0]
    (line,) = told(wrong, f"{key}: {{}}")
    assert "steps.a." in line
    (line,) = told(f"{key}: {{}}", wrong)
    assert "steps.b." in line
