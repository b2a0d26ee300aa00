"""Outlast, as it is in the environment: all attempts on record, or those that failed; and the floor, a pool by hand without any of it."""

import asyncio
import itertools
import os

import stages

import outlast

STEPS = (stages.afirst, stages.asecond, stages.athird)
case, _, _ = stages.asked()
numbers = itertools.count()


def floor(items):
    return asyncio.run(stages.pool(items, STEPS))


def run(items):
    total = 0

    def sink(outputs):
        nonlocal total
        total += sum(outputs)

    key = f"run {next(numbers)}"
    result = pipeline.run(range(items), run_key=key, item_key=str, sink=sink, audit=case)
    assert result.counts.succeeded == items, result.why
    return total


if case != "floor":
    app = outlast.App("bench", store=os.environ.get("BENCH_DATABASE") or "bench.db")
    steps = [outlast.stage(concurrency=stages.WIDTH)(step) for step in STEPS]  # 3 attempts: its own default
    pipeline = outlast.Pipeline("bench", *steps, app=app)
stages.time_it(*((None, floor) if case == "floor" else ("outlast", run)))
