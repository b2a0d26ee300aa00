"""A shell for tests of the command line: a folder in which commands are given as a person does."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from forked import Forked

if TYPE_CHECKING:
    from pathlib import Path


class Shell:
    """A folder with programs, some input, and a store of its own."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.folder = folder
        for name, text in files.items():
            (folder / name).write_text(text)
        self.env = {key: value for key, value in os.environ.items() if key not in {"OUTLAST_STORE", "COLUMNS"}}
        self.env |= {"NO_COLOR": "1", "PYTHONPATH": ""}

    def write(self, *texts: str, name: str = "in.jsonl") -> None:
        rows = [json.dumps({"id": number, "text": text}) for number, text in enumerate(texts)]
        (self.folder / name).write_text("".join(f"{row}\n" for row in rows))

    def start(self, line: str, **options: object) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [sys.executable, "-m", "outlast.cli", *shlex.split(line)]
        # A variable for the interpreter needs one that has just started.
        start = subprocess.Popen if any(name.startswith("PYTHON") for name in options) else Forked
        return start(command, cwd=self.folder, env=self.env | options, text=True, **pipes)

    def __call__(self, line: str, stdin: str = "", **options: str) -> subprocess.CompletedProcess[str]:
        with self.start(line, **options) as process:
            try:
                out, err = process.communicate(stdin, timeout=200)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(line, process.returncode, out, err)

    def json(self, line: str) -> object:
        done = self(f"{line} --json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
