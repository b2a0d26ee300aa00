"""
A pipeline over samples that no bad sample can stop: the design of seed document 003, with its own names and numbers.

A deterministic filter is not retried, a model is asked up to three times with jittered waits. What fails for good waits in
the dead-letter queue, is looked at, and is run again once the stage is mended. The run is a partial success or a failure by
its share of successes, a broken stage is noticed early, and every attempt is a row that can be counted. Nothing waits in
earnest: the time of this program is virtual. Run it: ``python examples/designs/items.py``.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import outlast
from outlast.compat import RetryPolicy, compute_delay, get_dlq_samples, reprocess_dlq
from outlast.testing import capture_events, virtual_time

LLM_POLICY = RetryPolicy(
    max_attempts=3,
    backoff="jittered_exponential",
    base_delay_ms=1000,
    max_delay_ms=30_000,
    retriable_errors=[429, 500, 502, 503, 504, ConnectionError],
)
NO_RETRIES = RetryPolicy(max_attempts=1)


class ModelError(Exception):
    """What the model's client raises: an HTTP status, and nothing else."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class Model:
    """Answers by a plan: for each sample the statuses of its calls; without a plan it answers at once."""

    def __init__(self, plan: dict[str, list[int]]) -> None:
        self.plan = {sample: list(statuses) for sample, statuses in plan.items()}
        self.calls = 0

    def ask(self, sample: str) -> str:
        self.calls += 1
        statuses = self.plan.get(sample, [])
        status = statuses.pop(0) if statuses else 200
        if status != 200:
            raise ModelError(status)
        return f"label of {sample}"


def pipeline(app: outlast.App, model: Model, **options: float) -> outlast.Pipeline:
    """A filter, then a model: each with a policy of its own."""

    @outlast.stage(retry=NO_RETRIES, concurrency=1)
    async def filter_samples(sample: dict) -> dict:
        if not sample["text"]:
            raise outlast.Skip("nothing to label")
        if sample["text"].startswith("{"):
            raise ValueError("malformed JSON")
        return sample

    @outlast.stage(retry=LLM_POLICY, concurrency=1)
    async def llm_call(sample: dict) -> str:
        return model.ask(sample["id"])

    return outlast.Pipeline("labels", filter_samples, llm_call, app=app, **options)


def samples(count: int) -> list[dict]:
    return [{"id": f"s-{number:02}", "text": "fine"} for number in range(1, count + 1)]


def told(run: outlast.RunResult) -> None:
    counts = run.counts
    print(f"  {run.status}: {run.why}")
    print(
        f"  total {counts.total}, succeeded {counts.succeeded}, skipped {counts.skipped}, dlq {counts.dlq}, failed {counts.failed}"
    )


def partial_success(app: outlast.App) -> None:
    """Twenty samples: two cannot be read, one has nothing to say, four meet a model that is busy."""
    rows = samples(20)
    rows[4]["text"] = rows[9]["text"] = '{"text": '
    rows[6]["text"] = ""
    model = Model({"s-01": [429, 429], "s-02": [503], "s-03": [429, 429, 429, 429], "s-04": [422]})
    made = pipeline(app, model, failure_budget=0.5)
    with capture_events() as events:
        run = made.run(rows, run_key="monday", item_key="id", check=False)
        told(run)
        print(f"  the model was called {model.calls} times")
        for event in events:
            if event.name == "step_retry_attempt":
                print(
                    f"  {event.item_id}, {event.step_id}: attempt {event.attempt} failed, next in {event.next_delay_ms} ms"
                )
        history(app, run)
        analyses(run)
        print("The dead-letter queue")
        for letter in get_dlq_samples(made):  # the one that changed last first
            print(f"  {letter.item_key} at {letter.stage}: {letter.error} ({letter.attempts} attempts)")
        print("The model is well again: reprocess_dlq(pipeline, stage='llm_call')")
        model.plan.clear()
        told(reprocess_dlq(made, stage="llm_call"))
        print(f"  left: {', '.join(letter.item_key for letter in get_dlq_samples(made))}")


def history(app: outlast.App, run: outlast.RunResult) -> None:
    """Every attempt at one sample, as a row."""
    print("Every attempt at s-01 and s-03 is a row")
    store = app.store
    names = ("filter_samples", "llm_call")
    keys = dict(enumerate(item.key for item in run.items()))
    for row in store.attempts(store.run(run.id).number):
        if keys[row.seq] in ("s-01", "s-03"):
            print(f"  {keys[row.seq]} | {names[row.stage]} | {row.number} | {row.outcome} | {row.error or 'NULL'}")


def analyses(run: outlast.RunResult) -> None:
    """What the attempts tell: how many retries were needed, which errors are common, which stage is reliable."""
    report = outlast.report.of(run)
    print("What the attempts tell")
    for stage in report.stages:
        needed = stage.retries
        print(f"  {stage.name}: {stage.entered} samples, {stage.retried_rate:.0%} retried")
        print(f"    retries needed: none {needed.none}, one {needed.one}, two {needed.two}, more {needed.more}")
    for group in report.errors:
        print(f"  {group.count} x {group.stage}: {group.message}")


def failure_budget(app: outlast.App) -> None:
    """A key that no longer holds: the run stops after the first hundred samples, not after ten thousand."""
    model = Model({f"s-{number:02}": [422] for number in range(1, 10_001, 4)})
    made = pipeline(app, model, failure_budget=0.10, failure_check_interval=100)
    try:
        made.run(samples(10_000), run_key="tuesday", item_key="id")
    except outlast.FailureBudgetExceeded as stopped:
        print(f"  {type(stopped).__name__}: rate {stopped.rate:.2f}, budget {stopped.budget:.2f}")
        print(f"  processed {stopped.processed}, failed {stopped.failed}; the model was called {model.calls} times")


def thresholds(app: outlast.App) -> None:
    """Completed from 95 % on, a partial success from 50 % on, else failed."""
    for failures in (1, 2, 10, 11):
        model = Model({f"s-{number:02}": [422] for number in range(1, failures + 1)})
        made = pipeline(app, model, failure_budget=1.0)
        run = made.run(samples(20), run_key=f"rate {failures}", item_key="id", check=False)
        print(f"  {run.success_rate:.0%} succeeded: {run.status}")


def delays() -> None:
    """Waits in milliseconds after each failed attempt, for the lowest, the middle and the highest roll."""
    default = RetryPolicy()
    for said, policy in (("default", default), ("llm_call", LLM_POLICY)):
        for attempt in (1, 2, 3, 10):
            low, middle, high = (compute_delay(attempt, policy, roll=roll) for roll in (0.0, 0.5, 1.0))
            print(f"  {said}, attempt {attempt}: {low} to {high}, on average {middle}")
    linear, fixed = RetryPolicy(backoff="linear"), RetryPolicy(backoff="fixed")
    print(f"  linear: {[compute_delay(attempt, linear) for attempt in (1, 2, 3, 100)]}")
    print(f"  fixed: {[compute_delay(attempt, fixed) for attempt in (1, 2, 3)]}")


def main() -> None:
    logging.getLogger("outlast").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory() as folder, virtual_time(seed=3):
        app = outlast.App("forge", store=f"sqlite:///{Path(folder) / 'outlast.db'}")
        print("Waits between attempts")
        delays()
        print("Twenty samples")
        partial_success(app)
        print("A run by its share of successes")
        thresholds(app)
        print("A failure budget of 10 %, looked at every 100 samples")
        failure_budget(app)
        app.store.close()


if __name__ == "__main__":
    main()
