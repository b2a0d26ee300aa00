"""Steps that lose rows: how their flow ends, what a job does with it, and what a resume does next."""

from __future__ import annotations

from collections import Counter

import pytest

import outlast

FUNCTIONS = """
from pathlib import Path
import outlast

HERE = Path(__file__).parent
BREAKER = outlast.CircuitBreaker("prices", failure_threshold=2, reset_timeout=0.01)

def note(word):
    with (HERE / "notes").open("a") as notes:
        notes.write(f"{word}\\n")

def book():
    note("book")
    return {"number": 7}

def unbook(number):
    note("unbook")

def away(row):
    raise ConnectionRefusedError("the service is away")

guarded = outlast.stage(guard=outlast.Guard("away", breaker=BREAKER, retry=None))(away)

@outlast.stage(concurrency=1)
def costs(row):
    outlast.current().spend(cents=10)
    return row

prices = outlast.Pipeline("prices", guarded)
spends = outlast.Pipeline("spends", costs, spend_limit={"cents": 20})
"""
BOOK = """
name: shop
steps:
  - id: book
    component: python
    config: {call: "MODULE:book"}
    idempotent: true
    compensate: {component: python, config: {call: "MODULE:unbook", args: {number: "${steps.book.outputs.number}"}}}
"""
ROWS = "[{id: 1}, {id: 2}, {id: 3}, {id: 4}, {id: 5}, {id: 6}, {id: 7}, {id: 8}]"


def notes(project):
    path = project.root / "notes"
    return Counter(path.read_text().split()) if path.exists() else Counter()


# -- outages ---------------------------------------------------------------------------------------------------------------

EACH = f"""
  - id: ask
    component: python
    for_each: {{items: {ROWS}, key: id}}
    config: {{call: "MODULE:away"}}
    retry: {{max_attempts: 2, initial_delay_ms: 100}}
    idempotent: true
"""
OUTAGES = {
    "rows": (EACH, "connection_refused"),
    "rows behind a breaker": (
        EACH + "    circuit_breaker: {failure_threshold: 5, reset_timeout_ms: 1000}\n",
        "circuit_open",
    ),
    "a pipeline behind a breaker": (
        f"""
  - id: ask
    component: pipeline
    config: {{target: "MODULE:prices", input: {ROWS}}}
    retry: {{max_attempts: 1}}
    idempotent: true
""",
        "circuit_open",
    ),
}


@pytest.mark.parametrize("outage", OUTAGES)
def test_an_outage_costs_every_attempt_of_the_job_with_a_breaker_and_without(sqlite_app, project, outage):
    """D-42: a breaker that stays open says nothing about the rows: nothing is compensated before the last attempt."""
    step, error_class = OUTAGES[outage]
    project.functions(FUNCTIONS)
    handle = project.load(BOOK + step).enqueue(app=sqlite_app, run_key="k")
    outlast.testing.work(sqlite_app)
    ends = [(one.error_class, one.stop_reason) for one in handle.history()]
    assert ends == [(error_class, None)] * 3 + [(error_class, "exhausted")]
    assert (handle.status, notes(project)) == ("failed", {"book": 1, "unbook": 1})


def test_rows_behind_an_isolated_breaker_wait_for_its_release(sqlite_app, project):
    """D-42: somebody isolated the breaker, so no row failed: the job goes on after the release."""
    project.functions(FUNCTIONS)
    step, _ = OUTAGES["a pipeline behind a breaker"]
    flow = project.load(BOOK + step)
    flow.run(app=sqlite_app, run_key="other", check=False)  # imports the module
    project.namespace().BREAKER.isolate("maintenance")
    handle = flow.enqueue(app=sqlite_app, run_key="k")
    sqlite_app.work(until_idle=True)
    assert ([one.error_class for one in handle.history()], handle.status) == (["circuit_open"], "queued")


def test_a_spend_limit_that_is_reached_is_no_outage(sqlite_app, project):
    """D-42: the next attempt of the job has spent as much, so there is none."""
    project.functions(FUNCTIONS)
    step = OUTAGES["a pipeline behind a breaker"][0].replace("prices", "spends")
    handle = project.load(BOOK + step).enqueue(app=sqlite_app, run_key="k")
    outlast.testing.work(sqlite_app)
    (attempt,) = handle.history()
    assert (handle.status, attempt.error_class, attempt.stop_reason) == ("failed", "permanent_failure", "permanent")
    assert "spend limit" in attempt.error
