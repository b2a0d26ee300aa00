"""
The tutorial on declared pipelines: every command on the page is run in its order, and prints what the page says, fingerprint
included. This file as a program writes anew what the page shows: read it before you believe it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from outlast.spec.compile import compile_text
from outlast.spec.rules import check

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial" / "flows.md"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of all blocks, each with what the page shows below it."""
    return [
        (command, shown)
        for block in CONSOLE.findall(text)
        for command, _, shown in (part.partition("\n") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:])
        if not command.startswith("pip ")
    ]


def told(command: str, folder: Path) -> str:
    """What a command prints, on both streams."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "COLUMNS": "120", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, timeout=200, check=False, **both)
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.decode().splitlines())


def begin(text: str, folder: Path) -> None:
    """The file that the page begins with."""
    found = re.search(r"<!-- file movies.yaml -->\n```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    (folder / "movies.yaml").write_text(found[1])


def test_the_tutorial_is_true(tmp_path):
    """S0-29, S0-31: whoever follows the page sees what it shows."""
    text = PAGE.read_text()
    begin(text, tmp_path)
    shown = commands(text)
    assert len([command for command, _ in shown if command.startswith("outlast ")]) == 9
    for command, expected in shown:
        assert told(command, tmp_path) == expected, command


def test_the_example_follows_the_rules():
    """S0-29: no mistake, no warning, not even a note."""
    text = (ROOT / "examples" / "movies.yaml").read_text()
    compiled = compile_text(text, rules=(check,))
    assert [str(one) for one in compiled.mistakes] == []
    assert compiled.manifest is not None
    assert compiled.manifest["label"].timing["attempts"] == 3
    assert compile_text(text, params={"attempts": 5}).manifest is not None


if __name__ == "__main__":
    import tempfile

    page = PAGE.read_text()
    with tempfile.TemporaryDirectory() as name:
        begin(page, Path(name))
        for command, shown in commands(page):
            page = page.replace(f"$ {command}\n{shown}", f"$ {command}\n{told(command, Path(name))}", 1)
    PAGE.write_text(page)
