"""The commands of the tutorial of durable jobs do what the page shows, on both databases."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from uuid import uuid4

import pytest

import outlast
from forked import Forked
from shells import Shell
from test_docs import FENCE, ROOT

PAGE = ROOT / "docs" / "tutorial" / "jobs.md"


def blocks(language):
    return [match["body"] for match in FENCE.finditer(PAGE.read_text()) if match["language"] == language]


def sessions():
    """Each command of the page, and what stands below it."""
    found = [block.removeprefix("$ ").split("\n$ ") for block in blocks("console")]
    return [one.partition("\n")[::2] for block in found for one in block]


def settled(text):
    """Without what differs from one time to the next: instants, how long things took, and when a live line was drawn."""
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith("worker of shop: ")]
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "(instant)", "\n".join(lines))
    text = re.sub(r"(?<=\(instant\)) +[\d.]+ m?s *", " (took) ", re.sub(r"again in [\d.]+ s", "again in (wait)", text))
    return re.sub(r"  +", "  ", text)  # columns are as wide as what is in them


@pytest.fixture
def store(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/.outlast/outlast.db"
    return request.getfixturevalue("postgres_server").database(f"tutorial-{uuid4().hex}").dsn


def ended(store):
    """Wait for the job's end; what it has returned."""
    app = outlast.App("shop", store=store)

    @app.job
    def process_report() -> str: ...

    try:
        return app.jobs.get("1").result(timeout=150)
    finally:
        app.store.close()


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
def test_tutorial_of_jobs_does_what_it_shows(store, tmp_path):
    """From nothing to a job that fails twice and succeeds: the same commands on both databases; only the address differs."""
    shell = Shell(tmp_path, {"jobs.py": blocks("python")[0]})
    environment = shell.env | ({} if store.startswith("sqlite") else {"OUTLAST_STORE": store})

    def start(command):
        words = [sys.executable, "-m", "outlast.cli", *command.removeprefix("outlast ").split()]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return Forked(words, cwd=tmp_path, env=environment, text=True, **pipes)

    _, *first, export, enqueue, worker, show = sessions()
    assert export[0].startswith("export OUTLAST_STORE=postgresql://")
    assert [command for command, _ in first] == [command for command, _ in (enqueue, worker, show)]
    for command, shown in first:
        with start(command) as process:
            if command.startswith("outlast worker"):
                assert ended(store) == "4 pages of f-1"
                process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=200)
        assert process.returncode == 0, out
        assert settled(out) == settled(shown)
