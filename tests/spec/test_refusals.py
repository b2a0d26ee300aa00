"""What a service refuses behind a limit: of rows it is tried again and not charged for a while, and everything that is told in advance says so."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import outlast
from outlast.cli import app
from outlast.limits import Limit, Rate
from outlast.policy import RetryPolicy
from outlast.spec import plan
from outlast.spec.compile import compile_text
from outlast.spec.manifest import Manifest
from outlast.spec.rules import check
from outlast.testing import virtual_time
from spec.test_bounds import CLOSE, QUICK, RETRY, Refused, compiled, limits, observed
from tables import table

ROWS = {"for_each": {"items": [1]}, "idempotent": True}
STEADY = {"max_attempts": 3, "initial_delay_ms": 1000, "multiplier": 1, "jitter": 0, "max_retry_after_ms": 0}
LIMIT = {"concurrency": 1, "max_wait_ms": 2000}


def seen_of_row(step, errors, *, took: float = 0.0) -> tuple[list[float], float]:
    """When each attempt of a row began, as an item of a run with the policy of the manifest; and when it had failed."""
    began: list[float] = []
    following = itertools.chain(errors, itertools.repeat(errors[-1]))
    limit, budget = step.policy.get("limit"), step.policy.get("retry_budget")
    bounds = step.policy.get("timeout", {})
    rates = (
        {}
        if limit is None
        else {name: Rate(one["amount"], per=one["per_ms"] / 1000) for name, one in (limit.get("rates") or {}).items()}
    )
    guard = outlast.Guard(
        "row",
        retry=RetryPolicy.from_config(step.policy["retry"]),
        timeout=bounds["step_ms"] / 1000 if "step_ms" in bounds else None,
        total_timeout=bounds["total_ms"] / 1000 if "total_ms" in bounds else None,
        limit=None if limit is None else Limit("line", rates=rates, max_wait=limit["max_wait_ms"] / 1000),
        retry_budget=None
        if budget is None
        else outlast.RetryBudget("few", ratio=budget["ratio"], reserve=budget["reserve"]),
    )
    with virtual_time(seed=1) as time:
        ended = 0.0

        async def work(item):
            nonlocal ended
            began.append(time.now)
            error = next(following)
            if error == "hangs":
                time.advance(bounds["step_ms"] / 1000 + CLOSE / 100)
                ended = time.now
                await asyncio.Event().wait()  # until its time is up
            time.advance(took)
            ended = time.now
            raise error

        result = outlast.Pipeline("rows", outlast.stage(work, guard=guard), failure_budget=1.0).tested([1], {})
        assert result.counts.dlq == 1
    return began, ended


def test_refusals_of_a_row_behind_a_limit_are_not_attempts():
    """D-11, D-19: a quarter of an hour, whatever is listed; the manifest says so, and its worst case has it (S0-31)."""
    for retry in (STEADY, {"max_attempts": 1}, STEADY | {"on_errors": ["timeout"], "skip_on_errors": [429]}):
        _, step = compiled(retry | {"max_retry_after_ms": 0}, {"step_ms": 500}, limit=LIMIT, **ROWS)
        began, ended = seen_of_row(step, [Refused(None)])
        timing = step.timing
        assert timing["refusals"]["uncharged_ms"] == 900_000
        assert len(began) > 20 > timing["attempts"]
        assert began[-timing["attempts"]] > 900 or retry.get("skip_on_errors")
        assert 900 < ended <= timing["worst_ms"] / 1000
        assert (
            max(after - before for before, after in itertools.pairwise(began))
            <= timing["refusals"]["longest_wait_ms"] / 1000
        )


def test_a_step_without_rows_is_charged_for_every_refusal():
    """D-11: as a call is; so nothing about them is in its manifest."""
    _, step = compiled(STEADY, {"step_ms": 500}, limit=LIMIT)
    assert "refusals" not in step.timing
    seen = observed(step, [(0.0, False, None)] * 3)
    assert (len(seen.began), step.timing["attempts"], step.timing["worst_ms"]) == (3, 3, 3 * 2500 + 2000)
    _, free = compiled(STEADY, {"step_ms": 500}, **ROWS)
    assert "refusals" not in free.timing
    began, ended = seen_of_row(free, [Refused(None)])  # no limit hears of it
    assert len(began) == 3
    assert ended <= free.timing["worst_ms"] / 1000 == 3.5


def test_the_worst_case_of_refusals_by_hand():
    """The first refused attempt, a quarter of an hour, the wait after the last refusal; then all attempts and waits (S0-31)."""
    _, step = compiled(STEADY | {"max_retry_after_ms": 30_000}, {"step_ms": 500}, limit=LIMIT, **ROWS)
    free = 2500 + 900_000 + 31_000
    assert step.timing["refusals"] == {"uncharged_ms": 900_000, "longest_wait_ms": 31_000}
    assert step.timing["worst_ms"] == free + 3 * 2500 + 2 * 31_000
    assert [row["latest_start_ms"] for row in step.timing["delays"]] == [free + 35_500, free + 69_000]
    assert [row["sum_max_ms"] for row in step.timing["delays"]] == [1000, 2000]
    _, bounded = compiled(STEADY, {"step_ms": 500, "total_ms": 60_000}, limit=LIMIT, **ROWS)
    assert bounded.timing["worst_ms"] == 60_000
    assert seen_of_row(bounded, [Refused(None)])[1] <= 60


@table(
    ("retry", "longest"),
    [
        (STEADY, 6250),  # the floor of waits without a hint
        (STEADY | {"initial_delay_ms": 8000}, 8000),
        ({"max_attempts": 3, "max_retry_after_ms": 0, "jitter": 0}, 30_000),  # the usual ceiling
        ({"max_attempts": 3, "max_retry_after_ms": 0, "jitter": 0, "max_delay_ms": None}, 60_000),
        (
            {"max_attempts": 3, "max_retry_after_ms": 0, "jitter": 0.5, "max_delay_ms": 20_000, "cap": "before_jitter"},
            30_000,
        ),
        ({"max_retry_after_ms": 0, "jitter": 0, "delays_ms": [9000, 8000]}, 9000),
        ({"max_attempts": 3, "max_retry_after_ms": 0, "jitter": "decorrelated", "max_delay_ms": 20_000}, 20_000),
    ],
)
def test_waits_between_refusals_are_no_longer_than_said(retry, longest):
    """D-11: the policy's own schedule goes on to its ceiling, and never below a floor."""
    _, step = compiled(retry, {"step_ms": 500}, limit=LIMIT, **ROWS)
    assert step.timing["refusals"]["longest_wait_ms"] == longest
    began, ended = seen_of_row(step, [Refused(None)])
    assert max(after - before for before, after in itertools.pairwise(began)) <= longest / 1000 + CLOSE
    assert ended <= step.timing["worst_ms"] / 1000 + CLOSE


ENDS = st.lists(
    st.sampled_from([Refused(None), Refused(0.5), Refused(60.0), ConnectionResetError("gone"), "hangs"]),
    min_size=1,
    max_size=12,
)
NARROW = st.fixed_dictionaries(
    {"max_wait_ms": limits},
    optional={
        "rates": st.fixed_dictionaries({"calls": st.fixed_dictionaries({"amount": st.just(1), "per_ms": limits})})
    },
)


@settings(max_examples=40, phases=QUICK)
@given(RETRY, limits, ENDS, st.floats(0, 1), NARROW | st.none(), st.booleans())
def test_no_row_takes_longer_than_the_manifest_says(retry, step_ms, errors, share, limit, budget):
    """D-11, D-19: with refusals in between, at a limit or not, and with a retry budget that is empty (S0-31)."""
    rest = ROWS | ({} if limit is None else {"limit": limit})
    rest |= {"retry_budget": {"ratio": 0, "reserve": 1}} if budget and retry["max_attempts"] > 1 else {}
    _, step = compiled(retry, {"step_ms": step_ms}, **rest)
    began, ended = seen_of_row(step, errors, took=share * step_ms / 1000)
    assert ended <= step.timing["worst_ms"] / 1000 + CLOSE
    if "refusals" not in step.timing:
        assert len(began) <= step.timing["attempts"]


def test_an_empty_retry_budget_holds_a_row_up_and_the_manifest_says_so():
    """D-12: for a quarter of an hour before each retry, which is in the worst case; a step without rows fails at once (S0-31)."""
    budget = {"ratio": 0, "reserve": 0}
    _, step = compiled(STEADY, {"step_ms": 500}, retry_budget=budget, **ROWS)
    assert (step.timing["deferred_ms"], step.timing["worst_ms"]) == (900_000, 1500 + 2 * 901_000)
    assert [row["latest_start_ms"] for row in step.timing["delays"]] == [901_500, 1_803_000]
    said = list(plan.sentences(step.policy, step.timing, step.work))
    assert "While its retry budget is empty, a row waits for the next attempt for up to 15 min, and fails then." in said
    _, once = compiled(STEADY, {"step_ms": 500}, retry_budget=budget)
    assert ("deferred_ms" in once.timing, once.timing["worst_ms"]) == (False, 3500)


def test_rows_wait_for_an_open_circuit_whatever_is_said():
    """D-10: so only a total time limit bounds them."""
    for on_open in ("fail", "wait"):
        circuit = {"on_open": on_open}
        _, step = compiled(STEADY, {"step_ms": 500}, circuit_breaker=circuit, **ROWS)
        assert (step.timing["worst_ms"], step.timing["unbounded"]) == (None, ["circuit_breaker"])
        said = " ".join(plan.sentences(step.policy, step.timing, step.work))
        assert "while it is open, the row waits." in said
    _, once = compiled(STEADY, {"step_ms": 500}, circuit_breaker={"on_open": "fail"})
    assert once.timing["worst_ms"] == 3500


FLOW = """\
oml_version: "0.1.0"
name: orders
steps:
  - {id: read, component: files.reader, config: {path: in.csv}}
  - id: locate
    component: http.caller
    for_each: {items: "${steps.read.outputs.rows}", key: id}
    config: {url: "https://geo.example.com/", query: {q: "${item.city}"}}
    retry: {max_attempts: 3, max_retry_after_ms: 30000}
    timeout: {step_ms: 5000}
    limit: {rates: {calls: 10/s}, max_wait_ms: 10000}
"""


@pytest.mark.parametrize("attempts", [1, 3])
def test_plan_and_explain_say_it(attempts, tmp_path, monkeypatch):
    """Nobody takes the number of attempts for the number of calls (S0-29)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yaml").write_text(FLOW.replace("max_attempts: 3", f"max_attempts: {attempts}"))
    shown = CliRunner().invoke(app, ["compile", "f.yaml"], env={"COLUMNS": "250"}).stdout
    line = next(line for line in shown.splitlines() if line.startswith("locate ") and "http.caller" in line)
    assert f" {attempts} and refusals " in line
    assert "refusals for 15 min" in line
    document = json.loads(CliRunner().invoke(app, ["explain", "f.yaml", "locate", "--json"]).stdout)
    said = document["sentences"]
    assert (
        "What the service refuses (429, 529, 503 with Retry-After) is tried again and uses up no attempt, whatever is listed, for "
        "15 min from the first refusal of a row; the waits between grow to 1 min at the most, and nothing but time bounds the calls."
    ) in said
    assert "One attempt: nothing is retried but refusals." in said if attempts == 1 else "Up to 3 attempts." in said[4]
    (worst,) = [one for one in said if one.startswith("Worst case: ")]
    assert "refusals that use up no attempt" in worst


def said_of(retry, timeout) -> tuple[list[str], str]:
    """The sentences about a step with rows and a limit, and what its row in the plan says is retried."""
    found, step = compiled(retry, timeout, limit=LIMIT, **ROWS)
    return [*plan.sentences(step.policy, step.timing, step.work)], plan.step_rows(found.manifest)[0][-1]


@table(
    ("skipped", "sentence", "retried"),
    [
        (
            [429],
            "429; what the service refuses among that, once the time for refusals is used up.",
            "timeout, refusals for 15 min, then not 429",
        ),
        ([504], "504.", "timeout, but not 504, refusals for 15 min"),
        (
            ["5xx", 404],
            "404, 5xx; what the service refuses among that, once the time for refusals is used up.",
            "timeout, but not 404, refusals for 15 min, then not 5xx",
        ),
        (
            ["shop.Closed"],  # which may be anything
            "shop.Closed; what the service refuses among that, once the time for refusals is used up.",
            "timeout, refusals for 15 min, then not shop.Closed",
        ),
    ],
)
def test_what_is_skipped_is_tried_again_while_there_is_time_for_refusals(skipped, sentence, retried):
    """D-11: no two sentences about the same error say different things (S0-29)."""
    lines, cell = said_of(STEADY | {"on_errors": ["timeout"], "skip_on_errors": skipped}, {"step_ms": 500})
    assert f"Not retried, whatever else is said: {sentence}" in lines
    assert cell == retried


def test_executions_of_a_durable_job_are_told_without_refusals():
    """Also of one attempt, which the job repeats (S0-29)."""
    for retry, times in ((STEADY, 12), ({"max_attempts": 1}, 4)):
        lines, _ = said_of(retry, {"step_ms": 500})
        assert (
            f"As a durable job, which tries again after that, it is executed up to {times} times, refusals not counted."
            in lines
        )


def test_the_total_ends_refusals():
    """What is told of their time is never more than everything may take, and less is told as it is (S0-31)."""
    lines, cell = said_of({"max_attempts": 1}, {"step_ms": 500, "total_ms": 5_000})
    (line,) = [one for one in lines if one.startswith("What the service refuses")]
    assert (
        "whatever is listed, until the total time limit of 5 s is up; the waits between grow to 5 s at the most" in line
    )
    assert cell == "refusals for 5 s"
    _, step = compiled(STEADY, {"step_ms": 500, "total_ms": 5_000}, limit=LIMIT, retry_budget={}, **ROWS)
    assert step.timing["refusals"] == {"uncharged_ms": 5_000, "longest_wait_ms": 5_000}
    assert step.timing["deferred_ms"] == 5_000
    _, step = compiled(STEADY, {"step_ms": 500, "total_ms": 1_000_000}, limit=LIMIT, **ROWS)
    assert step.timing["refusals"] == {"uncharged_ms": 900_000, "longest_wait_ms": 6_250}


def test_a_key_is_remembered_for_longer_than_refusals_may_take():
    """R19 counts them (S0-18)."""
    key = {"idempotency": {"key": "${item}", "cache_ttl_ms": 600_000}}
    found, step = compiled(STEADY, {"step_ms": 500}, limit=LIMIT, **ROWS, **key)
    assert [one.code for one in found.mistakes if one.code == "R19"] == ["R19"]
    assert step.timing["worst_ms"] > 900_000
    found, _ = compiled(STEADY, {"step_ms": 500}, **ROWS, **key)
    assert [one.code for one in found.mistakes if one.code == "R19"] == []


def test_such_a_manifest_is_read_again():
    """U-20: with what is said of refusals."""
    found = compile_text(FLOW, rules=(check,)).manifest
    assert found is not None
    assert Manifest.from_json(found.to_json()) == found
