"""
What a type checker must see of runs over items. Checked by mypy and pyright, never run.

The first part is the contract's example as far as runs go; the rest pins what users lean on: stages must fit each other, and results have types.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_type

import outlast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence


class OpenAI: ...


@dataclass
class Review:
    text: str


@dataclass
class Label:
    name: str


@asynccontextmanager
async def open_client() -> AsyncIterator[OpenAI]:
    yield OpenAI()


@contextmanager
def open_model() -> Iterator[int]:
    yield 1


def shorten(review: Review, error: Exception) -> Review:
    return review


async def ask(prompt: str) -> str:
    return prompt


def fetch(url: str) -> bytes:
    return url.encode()


# --- the contract's example, as far as runs go ---

llm = outlast.Guard("llm", retry=outlast.presets.llm, timeout=30)
app = outlast.App("shop", store="postgresql://x", secrets=[outlast.Secret.env("OPENAI_API_KEY")])


@outlast.stage
def parse(row: dict[str, Any]) -> Review:
    if not row["text"]:
        raise outlast.Skip("empty review")
    return Review(row["text"])


@outlast.stage(guard=llm, concurrency=64, checkpoint=True, repairs=[shorten], version="2")
async def label(review: Review, client: OpenAI = outlast.use(open_client)) -> Label:
    return Label("x")


reviews = outlast.Pipeline("reviews", parse, label, app=app, failure_budget=0.10, spend_limit={"usd": 200})
assert_type(reviews, outlast.Pipeline[dict[str, Any], Label])
run = reviews.run("in.jsonl", run_key="2026-11-15", item_key="id", sink="out.jsonl", progress=True)
assert_type(run, outlast.RunResult[Label])
for result in reviews.stream([{"text": "a"}]):
    assert_type(result.value, Label | None)
assert_type(reviews.reprocess(stage="label", canary=20), outlast.RunResult[Label])
assert_type(outlast.map(fetch, ["a", "b"], concurrency=32), outlast.PartialResult[str, bytes])


async def main() -> None:
    assert_type(await outlast.amap(ask, ["a"]), outlast.PartialResult[str, str])
    assert_type(await reviews.arun([{"text": "a"}]), outlast.RunResult[Label])
    async for found in reviews.astream([{"text": "a"}]):
        assert_type(found, outlast.ItemResult[Label])


for group in app.dead_letters.groups(pipeline="reviews"):
    assert_type(group, outlast.FailureGroup)
app.dead_letters.replay(group="g", canary=20)
faults = [outlast.testing.Faults("label", TimeoutError(), None)]
assert_type(
    outlast.testing.run(reviews, [{"text": "x"}], faults=faults, provide={open_client: OpenAI()}),
    outlast.RunResult[Label],
)


# --- what users lean on ---


@outlast.stage
async def maybe(review: Review) -> Label | outlast.Degraded[Label]:
    return outlast.Degraded(Label(review.text), "from the cache")


@outlast.stage(timeout=5)
def measure(made: Label, model: int = outlast.use(open_model)) -> float:
    return float(model)


three = outlast.Pipeline("three", parse, maybe, measure)
assert_type(three, outlast.Pipeline[dict[str, Any], float])
outlast.Pipeline("wrong", label, parse)  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
outlast.stage(concurency=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
outlast.Snooze("soon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def take(outputs: Sequence[Label]) -> None: ...


reviews.run([{"text": "a"}], sink=take, ordered=True, audit="failures", on_item_error="collect", on_change="redo")
reviews.run([{"text": "a"}], on_item_error="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
assert_type(run.counts.pending, int)
assert_type(run.success_rate, float)
spent: Mapping[str, float] = run.spent
assert_type(list(run.outputs()), list[Label])
assert_type(run.raise_for_status(), outlast.RunResult[Label])
try:
    run.raise_for_status()
except outlast.FailureBudgetExceeded as exceeded:
    assert_type(exceeded.rate, float)
    assert_type(exceeded.result, outlast.RunResult[Any])


# --- rows ---


class Trim(outlast.RowTransformStep):
    def apply(self, row: dict[str, Any], context: outlast.Context) -> outlast.StepResult:
        return outlast.StepResult(row=row | {"text": row["text"].strip()}, warnings=["trimmed"])


class LookUp(outlast.RowTransformStep):
    async def apply(self, row: dict[str, Any], context: outlast.Context) -> outlast.StepResult:
        return outlast.StepResult(row)


def shout(row: dict[str, Any]) -> dict[str, Any]:
    return row


clean = outlast.rows.row_stage(Trim(), LookUp(), outlast.rows.required("text"), shout, name="tidy", retry=None)
assert_type(outlast.Pipeline("rows", clean, parse), "outlast.Pipeline[Mapping[str, Any], Review]")
assert_type(run.write_errors("errors.csv", reveal=True), int)
