"""Processes that are killed at any moment while they read and write: each output is there once, in a file or in a table."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from uuid import uuid4

import psycopg
import pyarrow.parquet as pq
import pymysql
import pytest

import forked
import outlast
from forked import ForkedWithArrow

PROGRAM = """
import os, sys, time
import outlast
from outlast.pipeline.plan import Tuning
from outlast.work.writer import BatchLimits
from outlast.components import parquet, tables
from outlast.store import Store

# As on a slow disk: files grow in pieces, commits take their time, and so does the making of the Parquet file. Kills then hit the moments in between.
outlast.Pipeline._tuning = Tuning(batches=BatchLimits(entries=60))
piecemeal, write, stage, settle, build = os.pwrite, Store.write, tables.TableSink.write, tables.TableSink.settle, parquet.Parquet._build

def slow(file, data, at):
    time.sleep(0.0003)
    return piecemeal(file, data[:700], at)

def before_and_after(do):
    def call(*args):
        time.sleep(0.002)
        done = do(*args)
        time.sleep(0.002)
        return done
    return call

os.pwrite, Store.write, tables.TableSink.settle, parquet.Parquet._build = slow, *map(before_and_after, (write, settle, build))

@outlast.stage
def parse(row):
    if row["id"] % 50 == 7:
        raise outlast.Skip("seven")
    return {"id": row["id"], "text": row["text"] * 5}

@outlast.stage
async def label(row):
    if row["id"] % 50 == 9:
        raise outlast.PermanentFailure("nine")
    return row | {"share": row["id"] / 2 if row["id"] % 2 else None}

store, source, sink, items = sys.argv[1:]
if sink.startswith("maria:"):
    import pymysql
    _, port, name = sink.split(":")
    sink = outlast.Table(lambda: pymysql.connect(host="127.0.0.1", port=int(port), user="root", database="shop"), name)
elif "://" in sink:
    address, _, name = sink.rpartition("#")
    sink = outlast.Table(address, name)
if "://" in source:
    address, _, name = source.rpartition("#")
    source = outlast.Query(address, f"select id, text from {name} where id < {items} order by id")
app = outlast.App("a", store=store)
pipeline = outlast.Pipeline("p", parse, label, app=app, min_success_rate=0.5, failure_budget=1.0)
print("starting", flush=True)
result = pipeline.run(source, run_key="k", sink=sink)
print(result.status, flush=True)
"""
ITEMS, KILLS = 1500, 8
WANTED = [n for n in range(ITEMS) if n % 50 not in {7, 9}]


def rows_of(sink):
    if str(sink).endswith(".parquet"):
        return [row["id"] for row in pq.read_table(sink).to_pylist()]
    with gzip.open(sink) as lines:
        return [json.loads(line)["id"] for line in lines]


def finished(tmp_path):
    """The share of the items that is done."""
    app = outlast.App("a", store=str(tmp_path / "s.db"))
    run = app.store.find_run("p", "k")
    app.store.close()
    done = 0 if run is None else run.counts.succeeded + run.counts.skipped + run.counts.dlq
    return done / ITEMS


def through_kills(tmp_path, source, sink, seed, look=lambda: None):
    """Run the program with kills at reproducible moments, then to its end; how often it was killed in the midst of it."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, program, tmp_path / "s.db", source, sink, str(ITEMS)]
    dice, killed, longest, before = random.Random(seed), 0, 0.3, 0.0
    for _ in range(KILLS):
        with ForkedWithArrow(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "starting\n"
            try:
                process.wait((0.1 + 0.9 * dice.random()) * longest)
            except subprocess.TimeoutExpired:
                killed += 1
            process.kill()
        look()
        done = finished(tmp_path)
        if done > (killed + 1) / KILLS:
            longest /= 2  # this machine is quick: there must be something left for the other kills
        elif done == before:
            longest *= 2  # it is slow: there must be something to be killed
        before = done
    done = forked.run(command, check=True, start=ForkedWithArrow)
    assert done.stdout == "starting\ncompleted\n"
    app = outlast.App("a", store=str(tmp_path / "s.db"))
    counts = app.store.find_run("p", "k").counts
    app.store.close()
    assert (counts.total, counts.succeeded, counts.skipped, counts.dlq) == (ITEMS, len(WANTED), 30, 30)
    return killed


def lines(tmp_path):
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(
        gzip.compress("".join(json.dumps({"id": n, "text": f"ü{n}"}) + "\n" for n in range(ITEMS)).encode())
    )
    return path


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl.gz"])
def test_a_file_is_exact_after_kills_at_any_moment(tmp_path, name):
    """C-22, D-15: a Parquet file by way of its spool, and a compressed file of lines; never half a file, and each output once."""
    sink = tmp_path / name
    seen = Counter()

    def look():
        if sink.suffix == ".parquet":
            seen["spool"] += Path(f"{sink}.spool").exists()
            if sink.exists():
                pq.read_metadata(sink)  # whatever is there is whole

    killed = through_kills(tmp_path, lines(tmp_path), sink, 5, look)
    assert killed >= KILLS // 2
    assert sorted(rows_of(sink)) == WANTED
    if sink.suffix == ".parquet":
        assert seen["spool"] >= 2
        assert sorted(path.name for path in tmp_path.glob("out.*")) == ["out.parquet"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb"])
def test_a_table_is_exact_after_kills_at_any_moment(tmp_path, request, kind):
    """C-22, D-15: rows read from the same database, staged, committed and moved; after every kill none is there twice, at the end each once."""
    name, source = f"t_{uuid4().hex[:10]}", f"s_{uuid4().hex[:10]}"
    fill = [(n, f"ü{n}") for n in range(ITEMS)]
    if kind == "sqlite":
        path = tmp_path / "data.db"
        connection = sqlite3.connect(path)
        connection.execute("pragma journal_mode = wal")
        sink, origin = f"sqlite:///{path}#{name}", f"sqlite:///{path}#{source}"
    elif kind == "postgres":
        dsn = request.getfixturevalue("postgres").dsn
        connection = psycopg.connect(dsn)
        sink, origin = f"{dsn}#{name}", f"{dsn}#{source}"
    else:
        port = request.getfixturevalue("mariadb").port
        connection = pymysql.connect(host="127.0.0.1", port=port, user="root", charset="utf8mb4")
        connection.cursor().execute("create database if not exists shop character set utf8mb4")
        connection.select_db("shop")
        sink, origin = f"maria:{port}:{name}", lines(tmp_path)
    cursor = connection.cursor()
    cursor.execute(f"create table {name} (id integer, text varchar(100), share double precision)")
    if kind != "mariadb":
        mark = "?" if kind == "sqlite" else "%s"
        cursor.execute(f"create table {source} (id integer, text varchar(100))")
        cursor.executemany(f"insert into {source} values ({mark}, {mark})", fill)
    connection.commit()

    def found():
        cursor.execute(f"select id from {name} order by id")
        rows = [row[0] for row in cursor.fetchall()]
        connection.commit()
        return rows

    def look():
        rows = found()
        assert len(rows) == len(set(rows))

    killed = through_kills(tmp_path, origin, sink, 7, look)
    assert killed >= KILLS // 2
    assert found() == WANTED
    cursor.execute("select count(*) from outlast_staged")
    assert cursor.fetchone()[0] == 0
    connection.close()
