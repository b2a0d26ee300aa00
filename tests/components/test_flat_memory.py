"""Fifty thousand rows take no more memory than five thousand, wherever they come from and go to."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from uuid import uuid4

import pytest

import outlast
from outlast.pipeline.engine import runner
from outlast.pipeline.plan import Tuning
from outlast.store import Store
from outlast.work.memory import Memory
from outlast.work.writer import BatchLimits

PROGRAM = """
import json, sys
import outlast

def peak():
    # Of this program alone: what getrusage says begins with the size of whoever has started it.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

kind, count, place, store = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
sink = None
if kind == "frame":
    import pandas as pd, pyarrow
    source = pd.DataFrame({"id": range(count), "text": [f"text number {n} " * 5 for n in range(count)], "share": [n / 7 for n in range(count)]})
    sink = f"{place}/out{count}.parquet"
elif kind == "parquet":
    import pyarrow as pa, pyarrow.parquet as pq
    source, sink = f"{place}/in{count}.parquet", f"{place}/out{count}.jsonl.gz"
    with pq.ParquetWriter(source, pa.schema({"id": pa.int64(), "text": pa.string(), "share": pa.float64()})) as writer:
        for start in range(0, count, 5_000):
            ids = range(start, start + 5_000)
            writer.write_table(pa.table({"id": ids, "text": [f"text number {n} " * 5 for n in ids], "share": [n / 7 for n in ids]}))
else:
    import psycopg
    source = outlast.Query(place, "select n as id, repeat('text number ' || n, 5) as text, n / 7.0 as share from generate_series(1, %s) n", count)

@outlast.stage
async def label(row):
    return {"id": row["id"], "length": len(row["text"])}

pipeline = outlast.Pipeline("p", label, app=outlast.App("a", store=store))
with open("/proc/self/clear_refs", "w") as peaks:
    peaks.write("5")  # what making the data took does not count
before = peak()
result = pipeline.run(source, sink=sink, audit="failures")
print(json.dumps({"status": result.status, "succeeded": result.counts.succeeded, "grown": peak() - before}))
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["frame", "parquet", "query"])
def test_memory_does_not_grow_with_the_number_of_rows(tmp_path, request, kind):
    """Ten times the rows, from a DataFrame to Parquet, from Parquet to gzip, from PostgreSQL to the store; a fixed margin (S3-39)."""
    place = request.getfixturevalue("postgres").dsn if kind == "query" else str(tmp_path)
    grown = {}
    for count in (5_000, 50_000):
        command = [sys.executable, "-c", PROGRAM, kind, str(count), place, str(tmp_path / f"{uuid4().hex}.db")]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        said = json.loads(done.stdout)
        assert (said["status"], said["succeeded"]) == ("completed", count)
        grown[count] = said["grown"]
    assert grown[50_000] - grown[5_000] < 25, f"MB grown while running: {grown}"


HEAVY = """
import json, sys
import outlast

kind, store = sys.argv[1:]
heavy = "y" * 1_000_000

if kind == "async":
    async def label(n):
        return {"n": n, "text": heavy[:-1] + "x"}
else:
    def label(n):
        return {"n": n, "text": heavy[:-1] + "x"}

stage = outlast.stage(retry=None, concurrency=2)(label)
sink = None if kind == "store" else f"{store}.jsonl"
result = outlast.Pipeline("p", stage, app=outlast.App("a", store=store)).run(range(220), item_key=str, sink=sink)
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
print(json.dumps({"status": result.status, "succeeded": result.counts.succeeded, "peak": peak}))
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["async", "sync", "store"])
def test_memory_does_not_grow_with_the_size_of_the_outputs(tmp_path, kind):
    """What is finished and not on record is bounded in bytes, not in items: 220 outputs of a megabyte, made faster than they can be written (S3-39)."""
    command = [sys.executable, "-c", HEAVY, kind, str(tmp_path / "heavy.db")]
    said = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert (said["status"], said["succeeded"]) == ("completed", 220)
    assert said["peak"] < 300


def then_marked(text):
    return text + "!"


def marked_again(text):
    return text + "?"


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_an_output_larger_than_all_the_room_passes(app, tmp_path, monkeypatch, sync, ordered):
    """Nothing waits for room that there will never be; what is small comes through beside it."""
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(memory=1000, batches=BatchLimits(bytes=500)))

    async def asynchronous(n):
        return "y" * (5000 if n % 10 == 0 else n)

    def synchronous(n):
        return "y" * (5000 if n % 10 == 0 else n)

    work = outlast.stage(concurrency=4)(synchronous if sync else asynchronous)
    then = outlast.stage(concurrency=2, checkpoint=True)(then_marked)
    last = outlast.stage(concurrency=2)(marked_again)
    out = tmp_path / "out.jsonl"
    pipeline = outlast.Pipeline("p", work, then, last, app=app)
    result = pipeline.run(range(600), item_key=str, sink=str(out), ordered=ordered)
    assert (result.status, result.counts.succeeded) == ("completed", 600)
    lengths = [len(json.loads(line)) - 2 for line in out.read_text().splitlines()]
    assert sorted(lengths) == sorted(5000 if n % 10 == 0 else n for n in range(600))


def test_no_attempt_begins_while_what_is_finished_fills_the_room(app, monkeypatch):
    """With a store that takes nothing, an async stage comes to a halt after what the room holds, and goes on when there is room (S3-39)."""
    full, begun, at_the_halt = threading.Event(), [], []

    class Watched(Memory):
        def block(self):
            super().block()
            full.set()

    def held(store, lease, batch):
        if batch.items and not at_the_halt:  # the first batch
            at_the_halt.append(full.wait(10) and len(begun))
        write(store, lease, batch)

    write = Store.write
    monkeypatch.setattr(runner, "Memory", Watched)
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(memory=5_000, batches=BatchLimits(bytes=1_000)))
    monkeypatch.setattr(Store, "write", held)

    @outlast.stage(concurrency=4)
    async def work(n):
        begun.append(n)
        return "y" * 500

    result = outlast.Pipeline("p", work, app=app).run(range(1_000), item_key=str)
    assert (result.status, result.counts.succeeded) == ("completed", 1_000)
    assert 0 < at_the_halt[0] < 50
