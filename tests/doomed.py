"""
A run that is made to be killed, and what is on record of it.

    python tests/doomed.py STORE SINK ITEMS PAUSE

One item of fifty is skipped and one becomes a dead letter. `PAUSE` is how many seconds its second stage waits for each item.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import outlast
from outlast.pipeline.record import writer
from outlast.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def dawdle() -> None:
    """As on a slow disk: the file grows in pieces, and the commit takes its time. Kills then hit the moments in between."""
    pwrite, write = os.pwrite, Store.write

    def in_pieces(file: int, data: bytes, at: int) -> int:
        time.sleep(0.001)
        return pwrite(file, data[:307], at)

    def slowly(store: Any, lease: Any, batch: Any) -> None:
        time.sleep(0.002)
        write(store, lease, batch)
        time.sleep(0.001)

    writer.MOST_ITEMS = 60
    os.pwrite, Store.write = in_pieces, slowly


def main(address: str, sink: str, items: int, pause: float) -> None:
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
        print("reading", flush=True)  # noqa: T201 - the one that kills waits for it
        yield from range(items)

    print(pipeline.run(source(), run_key=KEY, sink=sink).status, flush=True)  # noqa: T201


if __name__ == "__main__":
    dawdle()
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
