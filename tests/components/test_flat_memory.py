"""A hundred thousand rows take no more memory than ten thousand, wherever they come from and go to."""

from __future__ import annotations

import json
import subprocess
import sys
from uuid import uuid4

import pytest

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
        for start in range(0, count, 10_000):
            ids = range(start, start + 10_000)
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


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["frame", "parquet", "query"])
def test_memory_does_not_grow_with_the_number_of_rows(tmp_path, request, kind):
    """S3-39: ten times the rows, from a DataFrame to Parquet, from Parquet to gzip, from PostgreSQL to the store; a fixed margin."""
    place = request.getfixturevalue("postgres").dsn if kind == "query" else str(tmp_path)
    grown = {}
    for count in (10_000, 100_000):
        command = [sys.executable, "-c", PROGRAM, kind, str(count), place, str(tmp_path / f"{uuid4().hex}.db")]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        said = json.loads(done.stdout)
        assert (said["status"], said["succeeded"]) == ("completed", count)
        grown[count] = said["grown"]
    assert grown[100_000] - grown[10_000] < 40, f"MB grown while running: {grown}"
