"""
A million rows from where data lives, and back: what they cost, and that they are exact after `kill -9`. Writes docs/sources.md.

    make bench-sources              ARGS="--rows 100000" for a quick look

Each line is a program of its own: it makes its data, notes its memory, runs a pipeline of one stage over all rows, and notes its memory again. The
peak is that of the process. Then the same run is killed three times at random moments and resumed, and its output is compared with what it must be: how many rows, which ids, and the sum of a column.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
SMALL = 10_000

PROGRAM = """
import json, sys, time
import outlast

def peak():
    # Of this program alone: what getrusage says begins with the size of whoever has started it.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

way, count, folder, dsn, phase = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
source_kind, sink_kind = way.split(" to ")
text = lambda n: f"review number {n}, which says something of medium length about a thing"

if source_kind == "DataFrame":
    import pandas as pd, pyarrow
    source = pd.DataFrame({"id": range(count), "text": map(text, range(count)), "price": [n / 4 for n in range(count)]})
elif source_kind == "Parquet":
    import pyarrow as pa, pyarrow.parquet as pq
    from pathlib import Path
    source = f"{folder}/in-{count}.parquet"
    if not Path(source).exists():
        with pq.ParquetWriter(source, pa.schema({"id": pa.int64(), "text": pa.string(), "price": pa.float64()})) as writer:
            for start in range(0, count, 10_000):
                ids = range(start, start + 10_000)
                writer.write_table(pa.table({"id": ids, "text": list(map(text, ids)), "price": [n / 4 for n in ids]}))
else:
    import psycopg
    source = outlast.Query(dsn, "select id, text, price from reviews where id < %s order by id", count)
if sink_kind == "Parquet":
    sink = f"{folder}/{phase}-{count}-{source_kind}.parquet"
elif sink_kind == "JSONL.gz":
    sink = f"{folder}/{phase}-{count}-{source_kind}.jsonl.gz"
else:
    sink = outlast.Table(dsn, f"labels_{phase}_{count}")

@outlast.stage
async def label(row):
    return {"id": row["id"], "length": len(row["text"]), "price": row["price"]}

app = outlast.App("bench", store=f"{folder}/{phase}-{count}-{source_kind}.db")
pipeline = outlast.Pipeline("label", label, app=app)
with open("/proc/self/clear_refs", "w") as peaks:
    peaks.write("5")  # what making the data took does not count
before, began = peak(), time.perf_counter()
print("begun", flush=True)
result = pipeline.run(source, run_key="k", sink=sink, audit="failures")
took = time.perf_counter() - began
print(json.dumps({"status": result.status, "succeeded": result.counts.succeeded, "before": before, "peak": peak(), "seconds": took}))
"""
WAYS = ("DataFrame to Parquet", "Parquet to JSONL.gz", "PostgreSQL to table")


def program(way, count, folder, dsn, phase):
    return [sys.executable, "-c", PROGRAM, way, str(count), str(folder), dsn, phase]


def measured(way, count, folder, dsn):
    done = subprocess.run(program(way, count, folder, dsn, "once"), stdout=subprocess.PIPE, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["status"], said["succeeded"]) == ("completed", count), said
    return said


def killed(way, count, folder, dsn, seconds):
    """The run, killed three times; how often it was in the midst of it."""
    dice, hits = random.Random(5), 0
    for _ in range(3):
        with subprocess.Popen(program(way, count, folder, dsn, "killed"), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "begun\n"
            try:
                process.wait(seconds * (0.1 + 0.15 * dice.random()))
            except subprocess.TimeoutExpired:
                hits += 1
            process.kill()
    subprocess.run(program(way, count, folder, dsn, "killed"), stdout=subprocess.DEVNULL, check=True)
    return hits


def exact(way, count, folder, dsn):
    """Whether each output is there once, with the values it must have."""
    import duckdb

    source, _, sink = way.partition(" to ")
    if sink == "table":
        import psycopg

        with psycopg.connect(dsn) as connection:
            found = connection.execute(
                f"select count(*), count(distinct id), min(id), max(id), sum(price)::float8 from labels_killed_{count}"
            ).fetchone()
    else:
        ending = "parquet" if sink == "Parquet" else "jsonl.gz"
        path = f"{folder}/killed-{count}-{source}.{ending}"
        reader = "read_parquet" if sink == "Parquet" else "read_json"
        found = duckdb.sql(
            f"select count(*), count(distinct id), min(id), max(id), sum(price)::double from {reader}('{path}')"
        ).fetchall()[0]
    return tuple(found) == (count, count, 0, count - 1, count * (count - 1) / 8)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "sources.md")
    rows, out = (options := parser.parse_args()).rows, options.out

    from servers.postgres import Postgres

    lines = []
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder, Postgres() as server:
        server.execute(
            f"create table reviews as select n as id, 'review number ' || n || ', which says something of medium length about a thing' as text, "
            f"n / 4.0::float8 as price from generate_series(0, {rows - 1}) n",
            "alter table reviews add primary key (id)",
            *(
                f"create table labels_{phase}_{n} (id integer, length integer, price float8)"
                for n in {rows, SMALL}
                for phase in ("once", "killed")
            ),
        )
        for way in WAYS:
            small = measured(way, SMALL, folder, server.dsn)
            large = measured(way, rows, folder, server.dsn)
            hits = killed(way, rows, folder, server.dsn, large["seconds"])
            right = exact(way, rows, folder, server.dsn)
            assert right, way
            lines.append(
                f"| {way} | {small['peak'] - small['before']:.0f} MB | {large['peak'] - large['before']:.0f} MB | {large['peak']:.0f} MB | "
                f"{rows / large['seconds']:,.0f} | exact, killed {hits} times |"
            )
            print(lines[-1], flush=True)
    out.write_text(
        PAGE.format(rows=f"{rows:,}", table="\n".join(lines), machine=machine(), day=time.strftime("%Y-%m-%d"))
    )


def machine():
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"


PAGE = """# Sources and sinks, measured

{rows} rows from a DataFrame, a Parquet file and a PostgreSQL table, through one async stage, into a Parquet file, a compressed file of lines and
a table; SQLite as the store, `audit="failures"`. `make bench-sources` measures it anew; last on {day} ({machine}).

| From and to | Memory added by 10,000 rows | by {rows} rows | Peak of the process | Items a second | After `kill -9` |
|---|---|---|---|---|---|
{table}

Memory is what the run adds to a process that has loaded its libraries and, in the first line, the DataFrame itself. What making a large
DataFrame has left free is used first, and not counted. Between the two sizes memory grows by twenty to forty bytes a row; the larger part of it are the keys of
items, which are kept to tell equal rows apart. The last column is another run of the same kind, killed at random moments and resumed: every output is there once, as many rows, as many different ids, the same first and last, the same sum of a column.
"""

if __name__ == "__main__":
    main()
