"""Replays that are killed at any moment: what they mended is in the sink of its own run, once."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from uuid import uuid4

import psycopg
import pytest

import forked
import mended
import outlast
from forked import ForkedWithArrow

LETTERS, KILLS = 300, 4


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize("kind", ["jsonl", "csv.gz", "parquet", "table"])
def test_a_replay_is_exact_after_kills_at_any_moment(tmp_path, request, kind, store):
    """D-25, C-22: under its key, and without one; each output once, counts and letters with it, and nothing left to be made good."""
    address, pattern, fetch = str(tmp_path / "s.db"), str(tmp_path / f"out*.{kind}"), None
    connection = None
    if store == "postgres":
        address = request.getfixturevalue("postgres_server").database(f"mended_{uuid4().hex[:8]}").dsn
    if kind == "table":
        name = f"made_{uuid4().hex[:8]}_"
        pattern = f"{address}#{name}" if store == "postgres" else f"sqlite:///{tmp_path}/data.db#{name}"
        connection = (
            psycopg.connect(address, autocommit=True) if store == "postgres" else sqlite3.connect(tmp_path / "data.db")
        )
        for run in range(mended.RUNS):
            connection.execute(f"create table {name}{run} (n integer, text varchar(200))")
        connection.commit()
        fetch = lambda sql: connection.execute(sql).fetchall()  # noqa: E731 - one line
    command = [sys.executable, mended.__file__, address, pattern, str(LETTERS)]
    forked.run([*command, "fail"], check=True, timeout=200, start=ForkedWithArrow)
    dice, killed, longest, before = random.Random(f"{kind}{store}"), 0, 0.35, LETTERS * 9 // 10
    app = outlast.App(mended.APP, store=address)
    for number in range(KILLS):
        key = ["mend"] if number % 2 else []
        with ForkedWithArrow([*command, "replay", *key], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "starting\n"
            try:
                process.wait((0.05 + 0.95 * dice.random()) * longest)
            except subprocess.TimeoutExpired:
                killed += 1
            process.kill()
        left = sum(stat.count for stat in app.store.stats() if stat.status != "resolved")
        if left < LETTERS * 0.9 * (1 - (killed + 1) / KILLS):
            longest /= 2  # this machine is quick: there must be something left for the other kills
        elif left == before:
            longest *= 2  # it is slow: there must be something to be killed
        before = left
    for key in (["mend"], []):
        done = forked.run([*command, "replay", *key], check=True, timeout=200, start=ForkedWithArrow)
        assert done.stdout == "starting\ndone\n"
    assert killed  # how many hit it depends on the machine; the benchmark counts to two hundred
    assert mended.faults(app, pattern, LETTERS, fetch) == mended.Found()
    app.store.close()
    if connection is not None:
        connection.close()
