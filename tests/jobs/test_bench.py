"""What `make bench-jobs` does, with very few jobs; and that it accepts no figure of jobs that were lost or ran twice."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCENARIOS = {"drain": 200, "enqueue": 400, "latency": 3, "sqlite": 200, "sqlite-enqueue": 400}


def test_the_benchmark_of_jobs_measures_ours_beside_floors(tmp_path):
    """Done means 4: every line has a figure for each round and its ratio to ours; what was done is on record."""
    command = [sys.executable, str(ROOT / "benchmarks" / "jobs.py"), "--quick", "--ours", "--only", *SCENARIOS]
    command += ["--folder", "/dev/shm" if Path("/dev/shm").is_dir() else str(tmp_path)]
    done = subprocess.run([*command, "--json", f"{tmp_path}/figures.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["rounds"], figures["size"]) == (1, "quick")
    for name, jobs in SCENARIOS.items():
        first, *others = figures["scenarios"][name]
        assert (first["system"], first["of_ours"]) == ("outlast", [1.0])
        assert {other["folder"] for other in others} == {"floor"}
        for line in (first, *others):
            assert (line["fault"], len(line["figures"]), len(line["of_ours"])) == ("", 1, 1), done.stderr
            assert line["figures"][0] > 0
            assert line["of_ours"][0] == pytest.approx(line["figures"][0] / first["figures"][0])
            assert line["jobs"] == jobs
            assert line["version"] or line["system"].startswith("floor")
    assert [len(samples) for samples in figures["scenarios"]["latency"][0]["samples"]] == [3]
    titles = [line for line in done.stdout.splitlines() if line.startswith("### ")]
    assert len(titles) == len(SCENARIOS) + 1
    assert "| **outlast**" in done.stdout


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import queue_bench

    return queue_bench


def test_a_job_that_ran_twice_or_not_at_all_is_no_figure(bench, tmp_path):
    """In one worker or in two: each must have run once in all of them together."""
    board = bench.Board(tmp_path / "board", 4, 2)
    for worker, number in ((0, 0), (0, 1), (0, 3), (1, 2)):
        board.ran(worker)[number] += 1
    bench.prove(board, 4)
    assert board.done() == 4
    board.ran(0)[2] += 1
    with pytest.raises(bench.Fault, match="0 of 4 jobs did not run, 1 ran twice"):
        bench.prove(board, 4)
    board.ran(0)[2] = board.ran(0)[0] = 0
    with pytest.raises(bench.Fault, match="1 of 4 jobs did not run, 0 ran twice"):
        bench.prove(board, 4)


def test_the_board_is_the_same_for_all_processes(bench, tmp_path):
    """What one process leaves on it another one reads."""
    path = tmp_path / "board"
    board, other = bench.Board(path, 3, 2), bench.Board(path, 3, 2)
    other.slots[1] = 1
    assert not board.ready()
    other.slots[2] = 1
    other.began(1)[2], other.began(0)[0] = 70, 50
    assert board.ready()
    assert board.instants() == [50, 70]
    assert board.times() == [0, 0, 0]


@pytest.fixture
def program(monkeypatch):
    """benchmarks/jobs.py itself; by its path, for there is more than one thing called jobs."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("bench_jobs", ROOT / "benchmarks" / "jobs.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_jobs", module)
    spec.loader.exec_module(module)
    return module


class Replay:
    """A bench whose figures are known: one for each system and round, or the reason why there is none."""

    def __init__(self, figures):
        self._figures = {name: iter(found) for name, found in figures.items()}

    def new_round(self):
        pass

    def drain(self, system):
        found = next(self._figures[system.folder])
        if isinstance(found, Exception):
            raise found
        return found, 1000


def test_a_ratio_is_formed_within_a_round_and_a_failure_keeps_its_line(program, bench):
    """What fails is told with its reason and is not measured again; what could not be installed never was."""
    from contenders import SYSTEMS

    folders = ("ours", "floor", "pgqueuer", "saq", "chancy")
    systems = [next(one for one in SYSTEMS if one.folder == name) for name in folders]
    drain = next(one for one in program.SCENARIOS if one.id == "drain")
    lines = {"drain": [program.Line(system) for system in systems]}
    lines["drain"][4].fault = "could not be installed"
    late = bench.Fault("not done in 60 s: 7 of 1,000 jobs done")
    figures = {"ours": [100, 400, 200], "floor": [200, 400, 600], "pgqueuer": [50, late], "saq": [ValueError()]}
    program.measure_all(Replay(figures), [drain], lines, 3)
    ours, floor, slow, odd, missing = lines["drain"]
    assert (ours.figures, ours.of_ours) == ([100, 400, 200], [1, 1, 1])
    assert (floor.figures, floor.of_ours) == ([200, 400, 600], [2, 1, 3])
    assert (slow.figures, slow.fault) == ([50], "not done in 60 s: 7 of 1,000 jobs done")
    assert (odd.figures, odd.fault, missing.figures) == ([], "could not be measured: ValueError", [])
    rows = program.table(drain, lines["drain"], {ours.system: "0.1.0"}).splitlines()[4:]
    cells = {row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:-1]] for row in rows}
    assert cells["**outlast**"][:2] == ["0.1.0", "500 at a time"]
    assert cells[floor.system.name][2:7] == ["1,000", "400", "200 to 600", "2.00", "1.00 to 3.00"]
    assert [cells[name][6] for name in ("PgQueuer", "SAQ", "Chancy")] == [slow.fault, odd.fault, missing.fault]
    assert all(
        row[7:] == [one.system.keeps, one.system.crash] for one in lines["drain"] for row in [cells[one.system.name]]
    )
    rows = program.against(drain, lines["drain"], 150)
    assert [row[2] for row in rows] == ["holds"]  # whose run has failed is nobody to be ahead of
    assert [row[2] for row in program.against(drain, lines["drain"], 201)] == ["**missed**"]


def test_ours_must_be_ahead_of_the_best_peer(program):
    """The greatest rate of a peer, the least latency; floors are no peers."""
    from contenders import SYSTEMS

    names = ("ours", "floor", "saq", "chancy")
    ours, floor, peer, other = (next(one for one in SYSTEMS if one.folder == name) for name in names)
    drain, latency = (next(one for one in program.SCENARIOS if one.id == name) for name in ("drain", "latency"))
    lines = [program.Line(ours, figures=[10]), program.Line(floor, figures=[99]), program.Line(peer, figures=[9])]
    lines.append(program.Line(other, figures=[8]))
    assert [row[2] for row in program.against(drain, lines, 5)] == ["holds", "holds"]
    assert [row[2] for row in program.against(latency, lines, 10)] == ["holds", "**missed**"]
    lines[2].figures = [11]
    assert [row[2] for row in program.against(drain, lines, 5)] == ["holds", "**missed**"]
    lines[3].figures = [12]
    assert [row[1:] for row in program.against(latency, lines, 10)][1] == ["10.0 ms, SAQ 11.0", "holds"]
    late = [program.Line(ours, figures=[1], samples=[[1.0] * 98 + [5.5, 6.0]])]
    assert [row[2] for row in program.against(latency, late, 2)] == ["holds", "**missed**"]


def test_every_system_has_a_program_and_a_lock(bench):
    """Whoever is measured can be measured by somebody else."""
    from contenders import FLOOR, OURS, SYSTEMS

    for system in SYSTEMS:
        folder = ROOT / "benchmarks" / "peers" / system.folder
        assert (folder / "jobs.py").is_file()
        assert system.folder in {OURS, FLOOR} or (folder / "requirements.txt").is_file()
        assert system.keeps
        assert system.crash
    assert {system.folder for system in SYSTEMS} == {
        *(OURS, FLOOR, "pgqueuer", "procrastinate", "saq", "chancy", "awa", "dbos", "huey", "litequeue")
    }


def test_jobs_that_ran_and_are_not_on_record_are_no_figure(bench, monkeypatch, tmp_path):
    """However fast it was: a success that was never written is none."""
    from contenders import FLOOR, SYSTEMS

    floor = next(one for one in SYSTEMS if (one.folder, one.store) == (FLOOR, "sqlite"))
    forgetful = dataclasses.replace(floor, recorded="select {jobs} - 1")
    few = bench.Bench(None, str(tmp_path), bench.Sizes(share=0.0))
    assert few.drain(floor)[1] == 20
    monkeypatch.setattr(bench, "RECORDED", 0.5)
    with pytest.raises(bench.Fault, match=r"not done in 0\.5 s: 19 of 20 jobs on record"):
        few.drain(forgetful)
