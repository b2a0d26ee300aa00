"""`outlast runs report` as a person uses it: in a terminal, as JSON, as a page, for one item."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest

import forked
import outlast
from outlast import report
from reports import hostile, scripted


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with a run whose every number is known, and one whose every text is an attack."""
    folder = tmp_path_factory.mktemp("cli")
    app = outlast.App("shop", store=str(folder / "outlast.db"))
    scripted(app)
    evil = hostile(app.store)
    yield folder, app, evil
    app.store.close()


def shell(store, *words, columns=80):
    folder, _, _ = store
    env = {key: value for key, value in os.environ.items() if key != "OUTLAST_STORE"}
    env |= {"NO_COLOR": "1", "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "outlast.cli", "runs", "report", *words, "--store", str(folder / "outlast.db")]
    return forked.run(command, cwd=folder, env=env, encoding="utf-8", timeout=200)


def test_a_report_fits_a_terminal_and_needs_no_colour(store):
    """S3-23, U-15: retries, errors, stages, time and cost in 80 columns; then what to do next, on stderr."""
    done = shell(store, "night")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert "\x1b" not in done.stdout
    rows = [line.split() for line in lines]
    assert ["parse", "6", "100", "%", "0", "1", "0", "15.6", "ms", "15.6", "ms", "15.6", "ms"] in [
        row[:13] for row in rows
    ]
    assert ["none", "2", "33", "%", "█" * 7] in rows
    assert "1.55 calls per item, above the target of 1.3" in lines
    assert ["tokens", "1,100", "275", "700", "64", "%"] in rows
    (line,) = [line for line in lines if "ConnectionResetError" in line and line.split()[0] == "3"]
    assert line.split()[:5] == ["3", "0", "1", "label", "ConnectionResetError"]
    hints = done.stderr.splitlines()
    assert any(hint.startswith("Inspect: outlast dlq list --group ") for hint in hints)
    assert any(hint.startswith("As a page: outlast runs report ") for hint in hints)


def test_a_narrow_terminal_gets_less_and_a_pipe_whole_lines(store):
    """What matters least is left out first."""
    assert max(len(line) for line in shell(store, "night", columns=60).stdout.splitlines()) <= 60


@pytest.fixture
def named(store, monkeypatch):
    """The store as a command has opened it that was given its address."""
    folder, app, _ = store
    monkeypatch.setattr(app.store, "named", ("--store", str(folder / "outlast.db")))


@pytest.mark.usefixtures("named")
def test_a_report_as_json_is_the_report(store):
    """One document with the names of the values; its commands name the store that was given."""
    _, app, _ = store
    assert json.loads(shell(store, "night", "--json").stdout) == json.loads(
        json.dumps(report.read(app, "night").to_dict())
    )
    told = json.loads(shell(store, "night", "--item", "twice", "--json").stdout)
    assert told == json.loads(json.dumps(report.story(app, "night", "twice").to_dict()))


@pytest.mark.usefixtures("named")
def test_a_page_is_written_where_it_is_wanted(store):
    """The verdict is said, and the file is the page; its commands name the store that was given."""
    folder, app, _ = store
    done = shell(store, "night", "--html", "night.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == report.read(app, "night").verdict
    page = (folder / "night.html").read_text(encoding="utf-8")
    assert page == report.read(app, "night").html()
    commands = re.findall(r"<code>(outlast .*?)</code>", page)
    assert commands
    assert [command for command in commands if "--store" not in command] == []


def test_one_items_way_is_a_timeline(store):
    """S3-22: each attempt and each wait on a line of its own, with when it was."""
    done = shell(store, "night", "--item", "twice")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["twice", "succeeded"]
    assert max(len(line) for line in lines) <= 80
    assert sum(": backoff after an error" in line for line in lines) == 2
    assert sum(" failed after 0.2 s with TimeoutError (timeout)" in line for line in lines) == 2
    assert lines[-1].startswith("00:00:") or "succeeded after 4 attempts" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nope",), "expected the id or the key of a run, got: 'nope'"),
        (("night", "--item", "nope"), "expected the key or the position of an item of night, got: 'nope'"),
        (("night", "--html", "r.html", "--json"), "expected --html alone, got it with --json"),
        (("night", "--html", "r.html", "--item", "twice"), "expected --html alone, got it with --item"),
        (
            ("night", "--html", "missing/r.html"),
            "expected --html to be a file that can be written, got: missing/r.html",
        ),
    ],
)
def test_a_mistake_is_said_and_exits_with_2(store, words, said):
    """What was expected, what came, and the way out."""
    done = shell(store, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_hostile_text_cannot_command_the_terminal(store):
    """Escape sequences and signs that turn the reading around are replaced; secrets are masked."""
    _, _, evil = store
    for words in ((evil.id,), (evil.id, "--item", "0")):
        done = shell(store, *words)
        assert done.returncode == 0, done.stderr
        for sign in ("\x1b", "\u202e", "\x00", "hunter2"):
            assert sign not in done.stdout + done.stderr
