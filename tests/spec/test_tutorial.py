"""
The tutorial on declared pipelines, and the guides whose commands build on each other: every command on such a page is run in
its order, and prints what the page says. This file as a program writes anew what the pages show: read it before you
believe it.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from labor import wait_until
from outlast.spec.compile import compile_text
from outlast.spec.connections import load
from outlast.spec.rules import check
from servers.postgres import programs

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorial" / "flows.md"
TO_POSTGRES = ROOT / "docs" / "guides" / "flow-api-to-postgres.md"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"<!-- file (\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = "/home/ann/project"  # where the pages say that their folder is
PORT = "8765"  # where the pages say that their service listens


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of all blocks, each with what the page shows below it."""
    return [
        (command, shown)
        for block in CONSOLE.findall(text)
        for command, _, shown in (part.partition("\n") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:])
        if not command.startswith(("pip ", "export "))
    ]


class Reader:
    """Somebody who follows a page in a folder of their own, with what they have set in their environment."""

    def __init__(self, text: str, folder: Path, port: str = PORT, **variables: str) -> None:
        self.folder = folder
        self.port = port
        path = os.pathsep.join([str(Path(sys.executable).parent), str(programs()), os.environ["PATH"]])
        plain = {"COLUMNS": "120", "NO_COLOR": "1", "LC_ALL": "C.UTF-8", "PSQL_PAGER": "", "TZ": "UTC"}
        self._environment = {**os.environ, "PATH": path, **plain, **variables}
        self._services: list[subprocess.Popen[bytes]] = []
        for name, body in FILE.findall(text):
            (folder / name).write_text(body)

    def told(self, command: str) -> str:
        """What a command prints, on both streams. A program in Python is a service, and runs until the end."""
        command = command.replace(PORT, self.port)
        how = {"cwd": self.folder, "env": self._environment, "stderr": subprocess.STDOUT}
        if command.startswith("python "):
            log = (self.folder / "service.log").open("wb")
            with log:
                self._services.append(subprocess.Popen([sys.executable, *command.split()[1:]], stdout=log, **how))
            wait_until(self._listens, "the service listens")
            return ""
        done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, timeout=200, check=False, **how)
        text = done.stdout.decode().replace(str(self.folder), ELSEWHERE).replace(f":{self.port}", f":{PORT}")
        return "".join(f"{line.rstrip()}\n" for line in text.splitlines())

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(self.port))) == 0

    def end(self) -> None:
        """End what was begun here."""
        for service in self._services:
            service.kill()
            service.wait()


@contextmanager
def reading(text, folder, **variables):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    url = {"STOCK_URL": f"http://127.0.0.1:{port}", "STOCK_TOKEN": "not-a-secret"}
    reader = Reader(text, folder, port, **url, **variables)
    try:
        yield reader
    finally:
        reader.end()


def settled(command: str, text: str) -> str:
    """Without what differs from one run to the next: ids, instants, how long things took, and so how wide columns are."""
    if not command.startswith(("outlast run", "outlast resume", "outlast dlq")):
        return text
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "(instant)", text)
    text = re.sub(r"\b[0-9a-f]{12}\b", "(id)", text)
    text = re.sub(r"\b[0-9a-f]{32}\b", "(whole id)", text)
    return re.sub(r"  +", "  ", re.sub(r"\b[\d.]+ (?:ms|s)\b", "(took)", text))


def follow(text, reader):
    for command, expected in commands(text):
        assert settled(command, reader.told(command)) == settled(command, expected), command


def test_the_tutorial_is_true(tmp_path):
    """Whoever follows the page sees what it shows: a pipeline that is checked, compiled, run, broken, mended and run on (S0-29, S0-31)."""
    text = TUTORIAL.read_text()
    assert len([command for command, _ in commands(text) if command.startswith("outlast ")]) == 14
    with reading(text, tmp_path) as reader:
        follow(text, reader)


@pytest.mark.timeout(180)
def test_the_guide_from_an_api_to_postgres_is_true(tmp_path, postgres_server):
    """From a CSV file through an API to a table, with rows that fail, a failure in the middle, what is undone, and a kill (S0-29)."""
    text = TO_POSTGRES.read_text()
    assert len([command for command, _ in commands(text) if command.startswith("outlast ")]) > 8
    with reading(text, tmp_path, SHOP_URL=postgres_server.database("prices").dsn) as reader:
        follow(text, reader)


def test_the_example_follows_the_rules():
    """No mistake, no warning, not even a note (S0-29)."""
    text = (ROOT / "examples" / "movies.yaml").read_text()
    compiled = compile_text(text, rules=(check,), connections=load(ROOT / "examples" / "connections.yaml"))
    assert [str(one) for one in compiled.mistakes] == []
    assert compiled.manifest is not None
    assert compiled.manifest["extract-data"].timing["attempts"] == 3
    assert compile_text(text, params={"attempts": 5}).manifest is not None


if __name__ == "__main__":
    import tempfile

    from servers.postgres import Postgres

    with Postgres() as server:
        for page in (TUTORIAL, TO_POSTGRES):
            text = written = page.read_text()
            with (
                tempfile.TemporaryDirectory() as name,
                reading(text, Path(name), SHOP_URL=server.database(page.stem).dsn) as reader,
            ):
                at = 0
                for command, shown in commands(text):
                    found = written.index(f"$ {command}\n{shown}", at)
                    new = f"$ {command}\n{reader.told(command)}"
                    written = written[:found] + new + written[found + len(f"$ {command}\n{shown}") :]
                    at = found + len(new)
            page.write_text(written)
