"""
The pictures of the README, made from a real run: `.venv/bin/python docs/pictures.py` (needs Chromium).

    docs/pictures/report.png     the report of the run, as `outlast runs report --html` writes it
    docs/pictures/terminal.svg   the commands and what they print
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parent / "pictures"
WIDTH = 108
PROGRAM = """
import asyncio, random
import outlast

@outlast.stage
def parse(row: dict) -> dict:
    if not row["text"]:
        raise outlast.Skip("empty review")
    return {"id": int(row["id"]), "text": row["text"]}

@outlast.stage(concurrency=32, checkpoint=True, retry=outlast.RetryPolicy(initial_delay=0.05))
async def label(review: dict) -> dict:
    await asyncio.sleep(0.002)
    if random.random() < 0.05:
        raise ConnectionResetError("connection reset by peer")
    return review | {"label": "long" if len(review["text"]) > 10 else "short"}

reviews = outlast.Pipeline("reviews", parse, label)
"""
COMMANDS = (
    "outlast run app.py:reviews --input reviews.jsonl --output labels.jsonl --run-key today --item-key id",
    "outlast dlq groups",
)


def main() -> None:
    """Make them."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "app.py").write_text(PROGRAM)
        rows = (
            {"id": f"no. {n}" if n % 400 == 11 else n, "text": "" if n % 60 == 7 else f"a fine thing, number {n}"}
            for n in range(10_000)
        )
        (folder / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        printed = [f"$ {line}\n{_outlast(line, folder)}" for line in COMMANDS]
        _outlast("outlast runs report today --html report.html", folder)
        _screenshot(folder / "report.html", PICTURES / "report.png", folder)
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115 - ends with the program
    console.print(Text.from_ansi("\n".join(printed)))
    svg = console.export_svg(title="outlast")
    # No picture asks another host for a font.
    (PICTURES / "terminal.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


def _outlast(line: str, folder: Path) -> str:
    env = os.environ | {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", *line.split()]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{line}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout + "".join(part for part in done.stderr.splitlines(keepends=True) if "\r" not in part)


def _screenshot(page: Path, picture: Path, folder: Path) -> None:
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"]
    flags += [f"--user-data-dir={folder / 'chromium'}", "--window-size=1200,900", f"--screenshot={picture}"]
    subprocess.run(["chromium", *flags, page.as_uri()], check=True, capture_output=True, timeout=60)


if __name__ == "__main__":
    main()
