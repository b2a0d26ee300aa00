"""
A program that replays dead letters and may be killed at any moment, and what must be true whenever it was.

    mended.py STORE SINK LETTERS fail | replay KEY | settle
"""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path

import outlast
from outlast.components import parquet, tables
from outlast.pipeline.record import writer
from outlast.store import Store

APP, PIPELINE = "mended", "mill"
RUNS = 3  # that the letters come from, each with a sink of its own


def slowly() -> None:
    """As on a slow disk: files grow in pieces, commits take their time. Kills then hit the moments in between."""
    writer.MOST_ITEMS = 20
    piecemeal = os.pwrite

    def pieces(file, data, at):
        time.sleep(0.0003)
        return piecemeal(file, data[:300], at)

    def before_and_after(do):
        def call(*args, **options):
            time.sleep(0.002)
            done = do(*args, **options)
            time.sleep(0.002)
            return done

        return call

    os.pwrite = pieces
    for owner, name in (
        (Store, "write"),
        (tables.Inserted, "settle"),
        (parquet.Parquet, "_build"),
        (Store, "hold_sink"),
    ):
        setattr(owner, name, before_and_after(getattr(owner, name)))


def sink_of(pattern: str, run: int):
    """The sink of a run: a file, or a table by its address."""
    if "://" not in pattern:
        return pattern.replace("*", str(run))
    address, _, name = pattern.rpartition("#")
    return outlast.Table(address, f"{name}{run}")


def pipeline(app, *, broken: bool):
    @outlast.stage(retry=None, concurrency=2)
    def grind(n):
        if broken and n % 10:
            raise ValueError("not yet")
        return {"n": n, "text": "ü" * 40}

    return outlast.Pipeline(PIPELINE, grind, app=app, failure_budget=1.0, min_success_rate=1.0, min_partial_rate=0.0)


def rows_of(pattern: str, run: int, fetch=None) -> list[int]:
    """What the sink of a run holds, half lines included as -1."""
    sink = sink_of(pattern, run)
    if isinstance(sink, outlast.Table):
        if fetch is not None:
            return fetch(f"select n from {sink.name}")
        with sqlite3.connect(sink.target.removeprefix("sqlite:///"), timeout=30) as connection:
            return [row[0] for row in connection.execute(f"select n from {sink.name}")]
    path = Path(sink)
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return [row["n"] for row in pq.read_table(path).to_pylist()]
    text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
    if ".csv" in path.name:
        return [int(line.partition(",")[0]) for line in text.splitlines()[1:]]
    return [json.loads(line)["n"] for line in text.splitlines()]


def faults(app, pattern: str, letters: int, fetch=None) -> list[str]:
    """All that is lost, doubled or wrong once the last replay has ended."""
    found = []
    each = letters // RUNS
    for run in range(RUNS):
        wanted = Counter(range(run * each, (run + 1) * each))
        there = Counter(rows_of(pattern, run, fetch))
        if there != wanted:
            found.append(f"run {run}: {len(wanted - there)} lost, {len(there - wanted)} doubled")
        record = app.store.find_run(PIPELINE, f"k{run}")
        if (record.status, record.counts.succeeded, record.counts.dlq) != ("completed", each, 0):
            found.append(f"run {run}: {record.status}, {record.why}")
        if record.replayed_by is not None:
            found.append(f"run {run}: its sink is not finished")
    open_now = [stat for stat in app.store.stats() if stat.status != "resolved"]
    if open_now:
        found.append(f"letters: {open_now}")
    return found


def main() -> None:
    store, pattern, letters, what, *rest = sys.argv[1:]
    app = outlast.App(APP, store=store)
    if what == "fail":
        each = int(letters) // RUNS
        for run in range(RUNS):
            items = range(run * each, (run + 1) * each)
            pipeline(app, broken=True).run(
                items, run_key=f"k{run}", item_key=str, sink=sink_of(pattern, run), check=False
            )
        return
    slowly()
    mill = pipeline(app, broken=False)
    print("starting", flush=True)  # noqa: T201 - who kills it waits for that
    try:
        mill.reprocess(run_key=rest[0] if rest else None)
    except outlast.ConfigurationError as nothing:
        if "no open dead letters" not in str(nothing):
            raise
    print("done", flush=True)  # noqa: T201 - who has not killed it waits for that


if __name__ == "__main__":
    main()
