"""
What a declared pipeline costs beside other orchestrators and beside a floor written by hand: `make bench-flows`.

    benchmarks/flows.py                  ours, the floors and every peer, into docs/bench-flows.md
    benchmarks/flows.py --ours           ours and the floors; the page is left alone
    benchmarks/flows.py --quick          the same with a short chain, once: whether it works, never how fast it is

A chain of trivial steps, each of which gets what the one before has put out. What a step does, and how a run is timed, is in chains.py;
the programs are peers/*/flows.py. Nothing here passes or fails: a person reads it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chains
from beside import BUILD, HERE, OURS, adopt_orphans, below, end, environment_for, figures_in, reap
from environment import Failed, install, python_of
from queue_bench import Durable, opened
from report import amount, between, disk_of, grid, renew, verdict

FLOOR = "floor"
STEPS, ROUNDS = 100, 3
SHORT = 12  # steps of a chain with which only the program is tried
PATIENCE = 100.0  # seconds for one process
POLL = 0.01


@dataclass(frozen=True, kw_only=True)
class Way:
    """One line of the tables: a tool, used in one way."""

    name: str
    folder: str  # of peers/
    case: str
    used: str  # how it is used
    keeps: str  # on record, of a step that has succeeded
    repeats: int = 1  # runs in one process
    store: str = "sqlite"
    command: tuple[str, ...] = ()  # a whole process, in place of its program

    @property
    def whole(self) -> bool:
        """Whether the process is timed, from its start to its end."""
        return bool(self.command)

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.folder in {OURS, FLOOR} else python_of(BUILD / self.folder)

    def line(self, steps: int, repeats: int) -> list[str | Path]:
        """What is started. In a command, ``{program}`` is its program, and ``{steps}`` the length of the chain."""
        program = HERE / "peers" / self.folder / "flows.py"
        if not self.whole:
            return [self.python, program, self.case, str(steps), str(repeats)]
        first, *rest = (one.format(program=program, steps=steps) for one in self.command)
        return [self.python.with_name(first), *rest]


ATTEMPTS, BOTH = "every attempt, its output", "every attempt, its output, its key, what undoes it"
ROWS, STATES, EVENTS = "its begin, its output", "its states", "its events"
WAYS = [
    Way(
        name="**outlast**, SQLite",
        folder=OURS,
        case="plain",
        used="`Flow.run`",
        keeps=ATTEMPTS,
        repeats=15,
    ),
    Way(
        name="**outlast**, SQLite, keys and compensations",
        folder=OURS,
        case="guarded",
        used="`Flow.run`, each commit flushed",
        keeps=BOTH,
        repeats=8,
    ),
    Way(
        name="**outlast**, PostgreSQL",
        folder=OURS,
        case="plain",
        used="`Flow.run`, each commit flushed",
        keeps=ATTEMPTS,
        repeats=8,
        store="postgres",
    ),
    Way(name="floor", folder=FLOOR, case="plain", used="sqlite3, two rows for a step", keeps=ROWS, repeats=20),
    Way(
        name="floor, flushed",
        folder=FLOOR,
        case="flushed",
        used="sqlite3, two rows for a step",
        keeps=ROWS,
        repeats=8,
    ),
    Way(
        name="Prefect",
        folder="prefect",
        case="plain",
        used="a flow of tasks, its own server, SQLite",
        keeps=STATES,
        repeats=2,
    ),
    Way(
        name="Dagster",
        folder="dagster",
        case="plain",
        used="a job of ops, in one process, SQLite",
        keeps=EVENTS,
        repeats=2,
    ),
    Way(
        name="**outlast**",
        folder=OURS,
        case="once",
        used="`outlast run chain.yaml`",
        keeps=ATTEMPTS,
        command=("outlast", "run", chains.FILE, "--no-progress"),
    ),
    Way(
        name="Prefect",
        folder="prefect",
        case="once",
        used="`python chain.py`, its own server",
        keeps=STATES,
        command=("python", "{program}", "once", "{steps}", "1"),
    ),
    Way(
        name="Dagster",
        folder="dagster",
        case="once",
        used="`dagster job execute`",
        keeps=f"{EVENTS}, its output",
        command=("dagster", "job", "execute", "-f", "{program}", "-a", "chain"),
    ),
]


@dataclass
class Line:
    """What was seen of a way: the seconds of each run in each round, or why there are none."""

    way: Way
    version: str = ""
    fault: str = ""
    walls: list[list[float]] = field(default_factory=list)
    settled: list[list[float]] = field(default_factory=list)  # until all of it was on record
    of_ours: list[float] = field(default_factory=list)  # medians, against that of ours in the same round
    late_of_ours: list[float] = field(default_factory=list)  # the same until all of it was on record

    @property
    def all(self) -> list[float]:
        return [one for walls in self.walls for one in walls]

    @property
    def median(self) -> float:
        return statistics.median(self.all)


# One process.


class Fault(Exception):
    """A measurement that came to nothing; the message is for the table."""


def measured(way: Way, *, steps: int, repeats: int, parent: str, database: str) -> dict[str, Any]:
    """One process of a tool, from nothing to nothing: what its program says, or how long it took as a whole."""
    spare = frozenset(below(os.getpid()))
    with tempfile.TemporaryDirectory(prefix="bench-flows-", dir=parent, ignore_cleanup_errors=True) as folder:
        home, output, errors = Path(folder, "home"), Path(folder, "output"), Path(folder, "errors")
        home.mkdir()
        if way.folder == OURS and way.whole:
            chains.project(home, steps)
        variables = environment_for(way.folder, folder, database) | {"BENCH_STEPS": str(steps)}
        began = time.perf_counter()
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                way.line(steps, repeats), stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=home, env=variables
            )
        try:
            code: int | None = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = None
        took = time.perf_counter() - began
        end(spare)
        process.wait(10)
        found = {"version": "", "walls": [took], "settled": [took]} if way.whole else figures_in(output)
        if code != 0 or found is None:
            print(errors.read_text(errors="replace")[-3000:], file=sys.stderr)
            # No words of its own: a page gets them.
            raise Fault(f"not done in {PATIENCE:.0f} s" if code is None else f"failed, exit code {code}")
        if way.folder == OURS and way.whole:
            prove(home / ".outlast" / "outlast.db", steps)
        return found


def prove(file: Path, steps: int) -> None:
    """That the command has done it."""
    with opened(str(file)) as ask:
        done = ask("select count(*) from outlast_flow_steps where state = 'succeeded'")
    if done != steps:
        raise Fault(f"{done} of {steps} steps on record")


def measure(line: Line, server: Durable | None, number: int, options: argparse.Namespace) -> None:
    """One round of a line; one failure is enough to know that there will be none."""
    if line.fault:
        return
    way, database = line.way, ""
    try:
        if server is not None and way.store == "postgres":
            with opened(server.dsn) as ask:
                ask(f'create database "flows_{number}"')
            database = server.at(f"flows_{number}")
        repeats = 1 if options.quick else way.repeats
        found = measured(way, steps=options.steps, repeats=repeats, parent=options.folder, database=database)
    except Fault as fault:
        line.fault = str(fault)
    except Exception as error:  # noqa: BLE001 - the others can be measured all the same
        line.fault = f"could not be measured: {type(error).__name__}"
        traceback.print_exc()
    else:
        line.version = found["version"]
        line.walls.append(found["walls"])
        line.settled.append(found["settled"])
    reap(below(os.getpid()))


def measure_all(lines: list[Line], server: Durable | None, options: argparse.Namespace) -> None:
    """Everybody in turn, and in another order in the next round. A ratio is formed within a round, with the like of ours."""
    began = time.monotonic()
    for number in range(options.rounds):
        turn = number * len(lines) // max(1, options.rounds)
        order = [*lines[turn:], *lines[:turn]]
        for line in order if number % 2 == 0 else reversed(order):
            measure(line, server, number, options)
            said = line.fault or f"{statistics.median(line.walls[-1]):.3f} s"
            print(f"{time.monotonic() - began:4.0f} s  round {number + 1}  {line.way.folder} {line.way.case}: {said}", file=sys.stderr, flush=True)  # fmt: skip
        for whole in (False, True):
            group = [line for line in lines if line.way.whole == whole]
            if not group or group[0].way.folder != OURS or group[0].fault:
                continue
            mine, late = (statistics.median(seen[-1]) for seen in (group[0].walls, group[0].settled))
            for line in group:
                if not line.fault:
                    line.of_ours.append(statistics.median(line.walls[-1]) / mine)
                    line.late_of_ours.append(statistics.median(line.settled[-1]) / late)


# The report.


def table(lines: list[Line], steps: int) -> str:
    """Of chains within a process: the cost of a step."""
    head = ["", "version", "used with", "ms per step", "least to most", f"{steps} steps, s", "on record, s", "/ ours", "least to most", "on record of a step"]  # fmt: skip
    return grid(head, [[*cells(line, steps), line.way.keeps] for line in ordered(lines)])


def cells(line: Line, steps: int) -> list[str]:
    head = [line.way.name, line.version, line.way.used]
    if not line.walls or line.fault:
        return [*head, line.fault or "not measured", *["—"] * 5]
    each = [one / steps * 1e3 for one in line.all]
    late = statistics.median([one for settled in line.settled for one in settled])
    ours = [amount(statistics.median(line.of_ours)), between(line.of_ours)] if line.of_ours else ["—", "—"]
    return [*head, amount(statistics.median(each)), between(each), amount(line.median), amount(late), *ours]


def wholes(lines: list[Line]) -> str:
    """Of processes."""
    head = ["", "started as", "s", "least to most", "/ ours", "least to most", "on record of a step"]
    body: list[list[str]] = []
    for line in ordered(lines):
        figures = [line.fault or "not measured", *["—"] * 3]
        if line.walls and not line.fault:
            ours = [amount(statistics.median(line.of_ours)), between(line.of_ours)] if line.of_ours else ["—", "—"]
            figures = [amount(line.median), between(line.all), *ours]
        body.append([line.way.name, line.way.used, *figures, line.way.keeps])
    return grid(head, body)


def ordered(lines: list[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: line.median if line.walls and not line.fault else float("inf"))


MOST, TIMES = 3.0, 10.0  # milliseconds for a step; how much faster than a peer


def bars(lines: list[Line], steps: int) -> list[list[str]]:
    """Ours on SQLite against a number, and against each peer in the same round."""
    ours, *others = lines
    if ours.fault or not ours.walls:
        return [["A trivial step on SQLite", ours.fault or "not measured", verdict(holds=False)]]
    each = ours.median / steps * 1e3
    found = [[f"A trivial step on SQLite: at most {amount(MOST)} ms", f"{amount(each)} ms", verdict(each <= MOST)]]
    for line in others:
        if line.way.folder in {OURS, FLOOR}:
            continue
        goal = f"A chain of {steps} steps: at least {TIMES:.0f} times faster than {line.way.name}"
        if line.fault or not line.of_ours:
            found.append([goal, line.fault or "not measured", "not known"])
            continue
        for until, ratios in (("until it returns", line.of_ours), ("until all is on record", line.late_of_ours)):
            times = statistics.median(ratios)
            found.append([f"{goal}, {until}", f"{amount(times)} times ({between(ratios)})", verdict(times >= TIMES)])
    return found


def report(figures: dict[str, Any], lines: list[Line]) -> str:
    inside, whole = ([line for line in lines if line.way.whole == one] for one in (False, True))
    steps = figures["steps"]
    where = f"{figures['postgres']} and SQLite {figures['sqlite']} on {figures['device']} ({figures['filesystem']})"
    with_what = f"Measured on {figures['day']} with {figures['python']}, {figures['processors']} processors, {where}"
    load = f"The load of the machine was {figures['load']:.1f} before it began"
    parts = [f"{with_what}; {figures['rounds']} rounds, {figures['minutes']:.0f} minutes. {load}."]
    parts.append(f"### A chain of {steps} steps\n\n{table(inside, steps)}")
    if whole:
        parts.append(f"### The same, as a process of its own\n\n{wholes(whole)}")
    parts.append(f"### Against our bars\n\n{grid(['bar', 'measured', ''], bars(inside, steps))}")
    return "\n\n".join(parts)


def as_data(figures: dict[str, Any], lines: list[Line]) -> dict[str, Any]:
    """Everything that was seen, as JSON has it."""
    return figures | {
        "lines": [
            {
                "name": line.way.name.replace("*", ""),
                "folder": line.way.folder,
                "case": line.way.case,
                "whole": line.way.whole,
                "version": line.version,
                "fault": line.fault,
                "walls": line.walls,
                "settled": line.settled,
                "of_ours": line.of_ours,
                "late_of_ours": line.late_of_ours,
            }
            for line in lines
        ]
    }


def installed(ways: list[Way]) -> dict[str, str]:
    """Make the environments of the peers; why one could not be made, by its folder."""
    faults: dict[str, str] = {}
    for folder in sorted({way.folder for way in ways} - {OURS, FLOOR}):
        try:
            install(BUILD / folder, HERE / "peers" / folder / "requirements.txt")
        except (Failed, OSError, subprocess.SubprocessError) as failed:
            print(failed, file=sys.stderr)
            faults[folder] = "could not be installed"
    return faults


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ours and the floors, a short chain: whether it works")
    parser.add_argument("--ours", action="store_true", help="ours and the floors, no peers")
    parser.add_argument("--peers", nargs="+", default=[], metavar="FOLDER", help="of the peers these")
    parser.add_argument("--rounds", type=int, help=f"how often everything is measured; {ROUNDS}")
    parser.add_argument("--steps", type=int, help=f"of the chain; {STEPS}")
    parser.add_argument("--folder", default="/var/tmp", help="where the data is; on a real disk")
    parser.add_argument("--json", type=Path, metavar="FILE", default=HERE.parent / "build" / "bench-flows.json")
    options = parser.parse_args()
    options.page = not (options.quick or options.ours or options.peers or options.steps)
    options.rounds = options.rounds or (1 if options.quick else ROUNDS)
    options.steps = options.steps or (SHORT if options.quick else STEPS)
    return options


def main() -> None:
    options = arguments()
    wanted = {OURS, FLOOR, *options.peers}
    everybody = not (options.quick or options.ours or options.peers)
    ways = [way for way in WAYS if everybody or way.folder in wanted]
    faults = installed(ways)
    lines = [Line(way, fault=faults.get(way.folder, "")) for way in ways]
    device, filesystem = disk_of(options.folder)
    if filesystem == "tmpfs" and not options.quick:
        sys.exit(f"expected --folder to be on a disk, got: {options.folder}, which is memory.")
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended on the way out
    load, began, version = os.getloadavg()[0], time.monotonic(), ""
    with Durable(options.folder) if any(way.store == "postgres" for way in ways) else nullcontext() as server:
        if server is not None:
            with opened(server.dsn) as ask:
                version = f"PostgreSQL {ask('show server_version')}"
                durable = (ask("show fsync"), ask("show synchronous_commit"), ask("show full_page_writes"))
                assert durable == ("on", "on", "on"), durable
        measure_all(lines, server, options)
    figures = {
        "day": time.strftime("%Y-%m-%d"),
        "python": f"CPython {platform.python_version()}",
        "processors": os.cpu_count(),
        "postgres": version,
        "sqlite": sqlite3.sqlite_version,
        "device": device,
        "filesystem": filesystem,
        "steps": options.steps,
        "rounds": options.rounds,
        "minutes": (time.monotonic() - began) / 60,
        "load": load,
    }
    text = report(figures, lines)
    print(text)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(as_data(figures, lines), indent=1), encoding="utf-8")
    if options.page:
        renew("bench-flows.md", text)


if __name__ == "__main__":
    main()
