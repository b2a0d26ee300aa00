"""
A run that is made to be killed, and what is on record of it.

    python tests/doomed.py STORE SINK ITEMS PAUSE

One item of fifty is skipped and one becomes a dead letter. `PAUSE` is how many seconds its second stage waits for
each item.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import outlast
from mended import Found
from outlast.pipeline.plan import Tuning
from outlast.store import Store
from outlast.work.writer import BatchLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

APP, PIPELINE, KEY = "doomed", "doomed", "once"


def expected(item: int) -> str:
    """How an item must end."""
    return {7: "skipped", 9: "dlq"}.get(item % 50, "succeeded")


class Recorded(NamedTuple):
    ends: dict[int, str]  # of the finished items
    attempts: Counter[int]  # that are on record
    needed: dict[int, int]  # attempts that finished items have made
    offset: int  # bytes of the sink that count


def recorded(store: Any) -> Recorded:
    run = store.find_run(PIPELINE, KEY)
    if run is None:
        return Recorded({}, Counter(), {}, 0)
    rows = list(_pages(lambda **page: store.items(run.number, **page), 5000, lambda row: row.seq))
    attempts = _pages(lambda **page: store.attempts(run.number, **page), 20_000, lambda row: row)
    return Recorded(
        {row.seq: row.status for row in rows},
        Counter(row.seq for row in attempts),
        {row.seq: row.attempts for row in rows},
        store.shard_state(run.number, 0).sink_offset or 0,
    )


def _pages(read: Any, size: int, mark: Any) -> Iterator[Any]:
    after = None
    while page := read(after=after, limit=size):
        yield from page
        after = mark(page[-1])


def faults(ends: dict[int, str], letters: int, sink: Path, items: int) -> Found:
    """All that is lost, doubled or wrong once the run has ended."""
    found = Found()
    lines = Counter(json.loads(line)["n"] for line in sink.read_text().splitlines())
    lost = sum(seq not in ends or (expected(seq) == "succeeded" and seq not in lines) for seq in range(items))
    wrong = sum(status != expected(seq) for seq, status in ends.items())
    wrong += sum(seq not in range(items) or expected(seq) != "succeeded" for seq in lines)
    wrong += abs(letters - sum(expected(seq) == "dlq" for seq in range(items)))
    doubled = sum(times - 1 for times in lines.values())
    if lost or doubled or wrong:
        found.add(f"{lost} lost, {doubled} doubled, {wrong} wrong", lost=lost, doubled=doubled, wrong=wrong)
    return found


def dawdle() -> None:
    """
    As on a slow disk: the file grows in pieces, and the commit takes its time. Kills then hit the moments in between.
    """
    pwrite, write = os.pwrite, Store.write

    def in_pieces(file: int, data: bytes, at: int) -> int:
        time.sleep(0.001)
        return pwrite(file, data[:307], at)

    def slowly(store: Any, lease: Any, batch: Any) -> None:
        time.sleep(0.002)
        write(store, lease, batch)
        time.sleep(0.001)

    outlast.Pipeline._tuning = Tuning(batches=BatchLimits(entries=60))
    os.pwrite, Store.write = in_pieces, slowly


def act(tell: Callable[[str], object], address: str, sink: str, items: int, pause: float) -> None:
    """Run it, and tell who kills it when it has begun and how it ended."""
    dawdle()

    @outlast.stage
    def parse(item):
        if expected(item) == "skipped":
            raise outlast.Skip("seven")
        return {"n": item, "text": "x" * 60}

    @outlast.stage(concurrency=24, checkpoint=True)
    async def label(row):
        if pause:
            await asyncio.sleep(pause)
        return row

    @outlast.stage(concurrency=24, retry=outlast.RetryPolicy(max_attempts=2, initial_delay=0.001, jitter=0))
    async def check(row):
        if expected(row["n"]) == "dlq":
            raise ConnectionResetError("nine")
        return row

    app = outlast.App(APP, store=address)
    pipeline = outlast.Pipeline(PIPELINE, parse, label, check, app=app, min_success_rate=0.5, failure_budget=1.0)

    def source():
        tell("reading")
        yield from range(items)

    tell(pipeline.run(source(), run_key=KEY, sink=sink).status)


if __name__ == "__main__":
    address, sink, items, pause = sys.argv[1:]
    act(lambda said: print(said, flush=True), address, sink, int(items), float(pause))  # noqa: T201
