"""
A program that makes runs, or replays their dead letters, and to which anything may happen at any moment; and what
must be true in the end.

    mended.py STORE SINK LETTERS run | fail | replay [KEY]
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import sqlite3
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import outlast
from outlast.components import parquet, tables
from outlast.pipeline.plan import Tuning
from outlast.store import Store
from outlast.work.patience import Terms, terms
from outlast.work.writer import BatchLimits

APP, PIPELINE = "mended", "mill"
RUNS = 3  # that the letters come from, each with a sink of its own


@dataclass
class Found:
    """What was lost, doubled or wrong, with words about it."""

    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    notes: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lost or self.doubled or self.wrong)

    def add(self, note: str, *, lost: int = 0, doubled: int = 0, wrong: int = 0) -> None:
        self.lost, self.doubled, self.wrong = self.lost + lost, self.doubled + doubled, self.wrong + wrong
        self.notes.append(note)

    def join(self, other: Found) -> None:
        self.lost, self.doubled, self.wrong = (
            self.lost + other.lost,
            self.doubled + other.doubled,
            self.wrong + other.wrong,
        )
        self.notes += other.notes


def text_of(n: int) -> str:
    """The text of a row, which no compression makes small."""
    return "ü" + hashlib.blake2b(str(n).encode()).hexdigest()[:100]


def slowly() -> None:
    """As on a slow disk: files grow in pieces, commits take their time. Kills then hit the moments in between."""
    outlast.Pipeline._tuning = Tuning(batches=BatchLimits(entries=20))
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
        (tables.TableSink, "settle"),
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
        return {"n": n, "text": text_of(n)}

    return outlast.Pipeline(PIPELINE, grind, app=app, failure_budget=1.0, min_success_rate=1.0, min_partial_rate=0.0)


def rows_of(pattern: str, run: int, fetch=None) -> list[int]:
    """What the sink of a run holds; a row with another text than its own is -1."""
    return [n if text == text_of(n) else -1 for n, text in _cells(sink_of(pattern, run), fetch)]


def _cells(sink, fetch) -> list[tuple[int, str]]:
    if isinstance(sink, outlast.Table):
        sql = f"select n, text from {sink.name}"
        if fetch is not None:
            return fetch(sql)
        with sqlite3.connect(sink.target.removeprefix("sqlite:///"), timeout=30) as connection:
            return connection.execute(sql).fetchall()
    path = Path(sink)
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return [(row["n"], row["text"]) for row in pq.read_table(path).to_pylist()]
    text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
    if ".csv" in path.name:
        return [(int(n), text) for n, _, text in (line.partition(",") for line in text.splitlines()[1:])]
    return [(row["n"], row["text"]) for row in map(json.loads, text.splitlines())]


def faults(app, pattern: str, letters: int, fetch=None) -> Found:
    """All that is lost, doubled or wrong once everything has ended."""
    found = Found()
    each = letters // RUNS
    for run in range(RUNS):
        wanted = Counter(range(run * each, (run + 1) * each))
        try:
            there = Counter(rows_of(pattern, run, fetch))
        except Exception as error:  # noqa: BLE001 - whatever its reader says of it
            found.add(f"run {run}: its sink cannot be read, {type(error).__name__}", wrong=each)
            continue
        lost, doubled = wanted - there, there - wanted
        strange = sum(count for n, count in doubled.items() if n not in wanted)
        if lost or doubled:
            twice = doubled.total() - strange
            note = f"run {run}: {lost.total()} lost, {twice} doubled, {strange} wrong"
            found.add(note, lost=lost.total(), doubled=twice, wrong=strange)
        record = app.store.find_run(PIPELINE, f"k{run}")
        if record is None:
            found.add(f"run {run}: not on record", wrong=1)
            continue
        if (record.status, record.counts.succeeded, record.counts.dlq) != ("completed", each, 0):
            found.add(f"run {run}: {record.status}, {record.counts}, {record.why}", wrong=1)
        if record.replayed_by is not None:
            found.add(f"run {run}: its sink is not finished", wrong=1)
    for stat in app.store.stats():
        if stat.status != "resolved":
            found.add(f"letters: {stat}", wrong=stat.count)
    return found


class _Waits(logging.Handler):
    """Tells when the program waits for its store or its sink."""

    def __init__(self, tell) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record) -> None:
        if hasattr(record, "outlast_waits"):
            self._tell("waiting")


def act(tell, store, pattern, letters, what, key=None, *, ttl=None, patience=None, locks=True) -> None:
    """
    Do it and tell how it went. A lease lasts `ttl` seconds, a disk or a database is waited for as long as `patience`;
    without `locks` it is as on a file system that has none.
    """
    app = outlast.App(APP, store=store)
    each = letters // RUNS
    if what != "fail":
        slowly()
    usual = Terms()
    terms.set(Terms(usual.patience if patience is None else patience, usual.ttl if ttl is None else ttl))
    if not locks:
        import fcntl

        fcntl.flock = lambda *_: None
    waits = _Waits(tell)
    logging.getLogger("outlast").addHandler(waits)
    tell("starting")  # who kills it waits for that
    try:
        mill = pipeline(app, broken=what == "fail")
        if what == "replay":
            result = mill.reprocess(run_key=key, check=False)
            if result.status != "completed":
                tell(f"{result.status}: {result.why}")
                return
        else:
            for run in range(RUNS):
                items = range(run * each, (run + 1) * each)
                mill.run(items, run_key=f"k{run}", item_key=str, sink=sink_of(pattern, run), check=what != "fail")
    except Exception as error:  # noqa: BLE001 - whatever it is, who watches decides what to make of it
        tell(f"{type(error).__name__}: {error}")
        return
    finally:
        logging.getLogger("outlast").removeHandler(waits)
    tell("done")  # who has not killed it waits for that


def main() -> None:
    store, pattern, letters, what, *rest = sys.argv[1:]
    act(lambda said: print(said, flush=True), store, pattern, int(letters), what, *rest)  # noqa: T201 - as above


if __name__ == "__main__":
    main()
