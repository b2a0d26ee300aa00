"""What `make bench-flows` does, with a short chain; and that it accepts no figure of steps that are not on record."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
INSIDE = [("ours", "plain"), ("ours", "guarded"), ("ours", "plain"), ("floor", "plain"), ("floor", "flushed")]


def test_the_benchmark_of_flows_measures_ours_beside_floors(tmp_path):
    """Every line has a figure and its ratio to ours in the same round; a command is compared with commands."""
    command = [sys.executable, str(ROOT / "benchmarks" / "flows.py"), "--quick", "--steps", "4"]
    command += ["--folder", "/dev/shm" if Path("/dev/shm").is_dir() else str(tmp_path)]
    done = subprocess.run([*command, "--json", f"{tmp_path}/figures.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["rounds"], figures["steps"]) == (1, 4)
    lines = figures["lines"]
    assert [(line["folder"], line["case"]) for line in lines] == [*INSIDE, ("ours", "once")]
    for line in lines:
        assert (line["fault"], len(line["walls"]), len(line["settled"])) == ("", 1, 1), done.stderr
        assert line["whole"] == (line["case"] == "once")
        (wall,), (ours,) = line["walls"][0], lines[-1 if line["whole"] else 0]["walls"][0]
        assert line["of_ours"] == [pytest.approx(wall / ours)]
    assert "A trivial step on SQLite: at most 3.00 ms" in done.stdout


@pytest.fixture
def program(monkeypatch):
    """benchmarks/flows.py itself."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("bench_flows", ROOT / "benchmarks" / "flows.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_flows", module)
    spec.loader.exec_module(module)
    return module


def test_ours_is_held_to_its_bars_in_the_same_round(program):
    """Milliseconds for a step; how much longer a peer takes, until it returns and until all is on record."""
    found = {(way.folder, way.case): program.Line(way) for way in reversed(program.WAYS)}  # of ours, that on SQLite
    ours, floor, prefect, dagster = (found[name, "plain"] for name in ("ours", "floor", "prefect", "dagster"))
    ours.walls = [[0.2, 0.25, 0.3]]
    floor.walls, floor.of_ours = [[0.02]], [0.08]
    prefect.walls, prefect.of_ours, prefect.late_of_ours = [[2.4]], [9.6, 9.5, 12.0], [40.0]
    ours.settled, prefect.settled = ours.walls, [[10.0]]
    dagster.fault = "failed, exit code 1"
    rows = program.bars([ours, floor, prefect, dagster], 100)
    assert [row[1:] for row in rows] == [
        ["2.50 ms", "holds"],
        ["9.60 times (9.50 to 12.0)", "**missed**"],
        ["40.0 times (40.0 to 40.0)", "holds"],
        ["failed, exit code 1", "not known"],
    ]
    text = program.table([dagster, prefect, ours], 100)
    assert [line.split("|")[1].strip() for line in text.splitlines()[2:]] == [
        "**outlast**, SQLite",
        "Prefect",
        "Dagster",
    ]
    ours.walls = [[0.31]]
    assert program.bars([ours], 100)[0][1:] == ["3.10 ms", "**missed**"]


@pytest.fixture
def chains(program, monkeypatch):
    """What every program is timed by."""
    monkeypatch.setattr(sys, "argv", ["flows.py", "plain", "3", "2"])
    monkeypatch.setattr(program.chains, "PATIENCE", 0.0)
    return program.chains


def test_steps_that_did_not_run_or_are_not_on_record_are_no_figure(chains, capsys):
    """However fast it was."""
    recorded = iter([3, 6, 9])
    chains.time_it(None, lambda: 5 * chains.APART + 2, lambda: next(recorded))
    assert len(json.loads(capsys.readouterr().out)["walls"]) == 2
    with pytest.raises(AssertionError, match="expected 3 steps on record, got: 2"):
        chains.time_it(None, lambda: chains.APART + 2, lambda: 2)
    with pytest.raises(AssertionError, match="expected 2 steps after the first, got: 1"):
        chains.time_it(None, lambda: chains.APART + 1, lambda: 3)


def test_every_tool_has_a_program_and_a_lock(program):
    """Whoever is measured can be measured by somebody else."""
    for way in program.WAYS:
        folder = ROOT / "benchmarks" / "peers" / way.folder
        assert (folder / "flows.py").is_file()
        assert way.folder in {"ours", "floor"} or (folder / "requirements.txt").is_file()
        assert way.keeps
    assert {way.folder for way in program.WAYS} == {"ours", "floor", "prefect", "dagster"}
