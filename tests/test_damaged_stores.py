"""A store that a disk has damaged: every command says so in a sentence, and none shows a traceback."""

from __future__ import annotations

import os
import random
import sqlite3
import sys

import pytest

import outlast
from outlast.cli import main


def command(monkeypatch, *line: str) -> int:
    monkeypatch.setattr(sys, "argv", ["outlast", *line])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The bytes of a store with a run and dead letters."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTLAST_STORE", raising=False)
    app = outlast.App(store="sqlite:///whole.db")

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=2, initial_delay=0, on_errors=["all"]))
    def label(row: dict) -> dict:
        if row["n"] % 3 == 0:
            raise ValueError("größer als möglich")
        return row

    pipeline = outlast.Pipeline("reviews", label, app=app, failure_budget=1.0)
    pipeline.run([{"n": number} for number in range(30)], run_key="today", check=False)
    app.store.close()
    connection = sqlite3.connect("whole.db")
    connection.execute("pragma journal_mode = delete")
    connection.close()
    return (tmp_path / "whole.db").read_bytes()


def test_flipped_bytes_are_a_sentence(kept, monkeypatch, capsys):
    """Low: whatever the bytes are, a command ends with a code, and complaints are for people."""
    dice = random.Random(7)
    asked = [
        ["runs", "list"],
        ["runs", "items", "today", "--json"],
        ["runs", "report", "today"],
        ["dlq", "list", "--json"],
        ["dlq", "stats"],
        ["events"],
    ]
    codes = set()
    for _ in range(12):
        damaged = bytearray(kept)
        for _ in range(dice.choice([1, 20, 200])):
            damaged[dice.randrange(100, len(damaged))] = dice.randrange(256)
        with open("damaged.db", "wb") as file:  # noqa: PTH123 - beside its journals
            file.write(damaged)
        for line in asked:
            codes.add(command(monkeypatch, *line, "--store", "sqlite:///damaged.db"))
        for name in os.listdir():  # noqa: PTH208 - the journals of what was read
            if name.startswith("damaged.db"):
                os.unlink(name)  # noqa: PTH108 - as above
    assert codes <= {0, 1, 2}
    assert 1 in codes
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("update outlast_schema set version = 'odd'", "expected the store's schema to be a number, got: 'odd'"),
        (
            "update outlast_dead_letters set metadata = '{'",
            "holds what cannot be read (JSONDecodeError): it is damaged",
        ),
        ("update outlast_dead_letters set first_failed = 'x'", "holds what cannot be read (TypeError): it is damaged"),
    ],
)
def test_a_row_that_nobody_writes_is_named(kept, damage, said, monkeypatch, capsys):
    """Low: a schema that is no number, JSON that is none, a text where a number was."""
    connection = sqlite3.connect("whole.db")
    connection.execute(damage)
    connection.commit()
    connection.close()
    assert command(monkeypatch, "dlq", "list", "--store", "sqlite:///whole.db") == 1
    assert said in capsys.readouterr().err
