"""What `make chaos-items` does, a few times each; and that its counting finds what is lost, doubled or wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mended
import outlast

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.timeout(600)
def test_nothing_is_lost_doubled_or_wrong_whatever_happens():
    """
    C-22, D-25: stalls, cuts, vanished files, full disks and hostile values, once or twice each; kills have tests of
    their own.
    """
    command = [sys.executable, str(ROOT / "benchmarks" / "chaos.py"), "--scale", "0.05", "--stores", "sqlite"]
    command += ["--sinks", "jsonl", "table"]
    kinds = ("stalled", "cut connections", "vanished files", "full disk, sink", "hostile values")
    done = subprocess.run([*command, "--only", *kinds], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert {row[0].removeprefix("| ") for row in rows} == {*kinds}
    assert all(row[5:] == ["0", "0", "0 |"] for row in rows), done.stdout


def test_what_is_lost_doubled_or_wrong_is_counted(tmp_path):
    """
    A row that is gone, one that is there twice, one with another text, a run that is not on record: each is found.
    """
    app, pattern = outlast.App(mended.APP, store=str(tmp_path / "s.db")), str(tmp_path / "out*.jsonl")
    told = []
    mended.act(told.append, str(tmp_path / "s.db"), pattern, 30, "fail")
    mended.pipeline(app, broken=False).reprocess()
    assert (told, mended.faults(app, pattern, 30)) == (["starting", "done"], mended.Found())
    file = tmp_path / "out1.jsonl"
    _, second, third, *rest = file.read_text().splitlines(keepends=True)
    file.write_text("".join([second, second, third.replace("ü", "u"), *rest]))
    found = mended.faults(app, pattern, 30)
    assert (found.lost, found.doubled, found.wrong) == (2, 1, 1)
    (tmp_path / "out2.jsonl").write_text("")
    assert mended.faults(app, pattern, 30).lost == 12
    app.store.close()
