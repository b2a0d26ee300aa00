"""
What durable jobs cost beside other queues and beside floors written by hand: `make bench-jobs`.

    benchmarks/jobs.py                    all scenarios, ours, the floors and every peer, into docs/bench-jobs.md
    benchmarks/jobs.py --ours             ours and the floors; the page is left alone
    benchmarks/jobs.py --only drain two   these scenarios
    benchmarks/jobs.py --quick --ours     small numbers, one round: whether it works, never how fast it is

How it is measured is in queue_bench.py, what is measured in contenders.py, and how a process leaves word of the jobs it ran in queues.py.
Nothing here passes or fails: a person reads it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
import traceback
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beside import adopt_orphans
from contenders import FLOOR, OURS, SYSTEMS
from environment import Failed, install
from queue_bench import BUILD, HERE, Bench, Durable, Fault, Sizes, opened
from report import amount, between, disk_of, grid, renew, verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from contenders import System

ROUNDS = 3
QUICK = Sizes(share=0.004, backlogs=(200, 2_000), pings=3, steps=20)
SMALL = Sizes(share=0.1, backlogs=(10_000, 100_000), pings=20, steps=200)


@dataclass(frozen=True)
class Scenario:
    id: str
    title: str
    unit: str
    store: str = "postgres"
    measure: str = ""  # what of the bench; its own name if empty
    less: bool = False  # whether less is better
    of_itself: tuple[str, str] | tuple[()] = ()  # its figure is a ratio of two of its own, which are called so


SCENARIOS = [
    # First, while the disk is idle too: what the others leave it to write would be counted as waiting.
    Scenario("latency", "From the call that enqueues one job to its start in an idle process", "ms", less=True),
    Scenario("drain", "One worker process", "jobs/s"),
    Scenario("two", "Two worker processes", "jobs/s"),
    Scenario("enqueue", "Enqueue many at once", "jobs/s"),
    Scenario(
        "backlog",
        "Rate with a million jobs in the queue, of that with ten thousand",
        "ratio",
        of_itself=("few, jobs/s", "many, jobs/s"),
    ),
    Scenario(
        "pinned",
        "Rate while a transaction is held open, of that without",
        "ratio",
        of_itself=("alone, jobs/s", "held open, jobs/s"),
    ),
    Scenario("sqlite", "SQLite, one worker process", "jobs/s", store="sqlite", measure="drain"),
    Scenario("sqlite-enqueue", "SQLite, enqueue many at once", "jobs/s", store="sqlite", measure="enqueue"),
    Scenario("steps", "A stored step, PostgreSQL", "µs", less=True),
    Scenario("sqlite-steps", "A stored step, SQLite", "µs", store="sqlite", measure="steps", less=True),
]


@dataclass
class Line:
    """What was seen of a system in a scenario: a figure for each round, or why there is none."""

    system: System
    jobs: int = 0
    fault: str = ""
    figures: list[float] = field(default_factory=list)
    samples: list[list[float]] = field(default_factory=list)  # in each round, where a figure is the median of many
    rates: list[tuple[float, float]] = field(default_factory=list)  # in each round, where a figure is a ratio of two
    of_ours: list[float] = field(default_factory=list)  # against ours, in the same round

    @property
    def ours(self) -> bool:
        return self.system.folder == OURS

    @property
    def peer(self) -> bool:
        return self.system.folder not in {OURS, FLOOR}


Lines = dict[str, list[Line]]


# Rounds.


def measure(bench: Bench, scenario: Scenario, line: Line) -> float | None:
    """One figure more for a line; one failure is enough to know that there will be none."""
    if line.fault:
        return None
    try:
        found, line.jobs = getattr(bench, scenario.measure or scenario.id)(line.system)
    except Fault as fault:
        line.fault = str(fault)
        return None
    except Exception as error:  # noqa: BLE001 - the others can be measured all the same
        line.fault = f"could not be measured: {type(error).__name__}"
        traceback.print_exc()
        return None
    if isinstance(found, list):
        line.samples.append(found)
        found = statistics.median(found)
    elif isinstance(found, tuple):
        line.rates.append(found)
        found = found[0] / found[1]
    line.figures.append(float(found))
    return line.figures[-1]


def measure_all(bench: Bench, chosen: list[Scenario], lines: Lines, rounds: int) -> None:
    """Everybody in turn, ours first, so that there is something to compare with; then in another order each time."""
    began = time.monotonic()
    for number in range(rounds):
        bench.new_round()
        for scenario in chosen:
            first, *others = lines[scenario.id]
            turn = number % max(1, len(others))
            mine: float | None = None
            for line in (first, *others[turn:], *others[:turn]):
                figure = measure(bench, scenario, line)
                mine = figure if line is first else mine
                if figure is not None and mine is not None:
                    line.of_ours.append(figure / mine)
                told(began, number, scenario, line)


def told(began: float, number: int, scenario: Scenario, line: Line) -> None:
    figure = line.fault or f"{line.figures[-1]:,.2f} {scenario.unit}"
    who = f"{line.system.folder} {line.system.variant}"
    print(f"{time.monotonic() - began:4.0f} s  round {number + 1}  {scenario.id}  {who}: {figure}", file=sys.stderr, flush=True)  # fmt: skip


# The report.


def percentile(values: list[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: list[float]) -> float:
    return statistics.median(values)


def pooled(line: Line) -> list[float]:
    return [one for samples in line.samples for one in samples]


RECORDS = ("drain", "sqlite")  # the tables that also say what is kept


def cells(scenario: Scenario, line: Line, versions: dict[System, str]) -> list[str]:
    system = line.system
    figures = [line.fault or "not measured"] if line.fault or not line.figures else figures_of(scenario, line)
    kept = [system.keeps, system.crash] if scenario.id in RECORDS else []
    missing = ["—"] * (len(heads(scenario)) - 3 - len(figures) - len(kept))
    return [system.name, versions.get(system, ""), system.used(scenario.id), *missing, *figures, *kept]


def figures_of(scenario: Scenario, line: Line) -> list[str]:
    middle, spread = amount(median(line.figures)), between(line.figures)
    if line.rates:
        rates = [amount(median([pair[place] for pair in line.rates])) for place in (1, 0)]
        return [f"{line.jobs:,}", *rates, middle, spread]
    ours = [amount(median(line.of_ours)), between(line.of_ours)] if line.of_ours else ["—", "—"]
    if scenario.id == "latency":
        every = pooled(line)
        return [f"{len(every):,}", *(amount(percentile(every, share)) for share in (0.5, 0.99)), spread, *ours]
    return [f"{line.jobs:,}", middle, spread, *ours]


def heads(scenario: Scenario) -> list[str]:
    head = ["", "version", "used with", "steps" if scenario.id.endswith("steps") else "jobs"]
    if scenario.of_itself:
        return [*head, *scenario.of_itself, "ratio", "least to most"]
    kept = ["on record of a success", "when its worker is killed"] if scenario.id in RECORDS else []
    figures = ["p50, ms", "p99, ms", "p50 of a round"] if scenario.id == "latency" else [scenario.unit, "least to most"]
    return [*head, *figures, "/ ours", "least to most", *kept]


def table(scenario: Scenario, lines: list[Line], versions: dict[System, str]) -> str:
    def place(line: Line) -> float:
        if line.fault or not line.figures:
            return float("inf")
        return median(line.figures) if scenario.less else -median(line.figures)

    body = [cells(scenario, line, versions) for line in sorted(lines, key=place)]
    return f"### {scenario.title}\n\n{grid(heads(scenario), body)}"


# The bars.


def against(scenario: Scenario, lines: list[Line], bar: float | None) -> list[list[str]]:
    """Ours against a number, and against the best of the peers."""
    first = lines[0]
    if first.fault or not first.figures:
        return [[scenario.title, first.fault or "not measured", "**missed**"]]
    peers = [line for line in lines if line.peer and line.figures and not line.fault]
    unit = "" if scenario.of_itself else f" {scenario.unit}"
    measures: list[tuple[str, Callable[[Line], float], float | None]] = [("", lambda line: median(line.figures), bar)]
    if first.samples:
        measures = [
            (", p50", lambda line: percentile(pooled(line), 0.5), bar),
            (", p99", lambda line: percentile(pooled(line), 0.99), LATEST),
        ]
    rows: list[list[str]] = []
    for what, of, limit in measures:
        mine = of(first)
        if limit is not None:
            sign, holds = ("at most", mine <= limit) if scenario.less else ("at least", mine >= limit)
            wanted = f"{scenario.title}{what}: {sign} {amount(limit)}{unit}"
            rows.append([wanted, f"{amount(mine)}{unit}", verdict(holds)])
        if peers and not scenario.of_itself:
            best = (min if scenario.less else max)(peers, key=of)
            ahead = mine < of(best) if scenario.less else mine > of(best)
            measured = f"{amount(mine)}{unit}, {best.system.name} {amount(of(best))}"
            rows.append([f"{scenario.title}{what}: ahead of every peer", measured, verdict(ahead)])
    return rows


LATEST = 5  # milliseconds, for 99 of 100 single jobs
BARS = {
    "drain": 20_000,
    "two": None,
    "enqueue": 100_000,
    "latency": 2,
    "backlog": 0.8,
    "pinned": 0.7,
    "sqlite": 20_000,
    "sqlite-enqueue": None,
    "sqlite-steps": 150,
}


def report(figures: dict[str, Any], chosen: list[Scenario], lines: Lines, versions: dict[System, str]) -> str:
    where = f"{figures['postgres']} and SQLite {figures['sqlite']} on {figures['device']} ({figures['filesystem']})"
    with_what = f"Measured on {figures['day']} with {figures['python']}, {figures['processors']} processors, {where}"
    parts = [f"{with_what}; {figures['rounds']} rounds, {figures['minutes']:.0f} minutes."]
    parts += [table(scenario, lines[scenario.id], versions) for scenario in chosen]
    bars = [row for scenario in chosen if scenario.id in BARS for row in against(scenario, lines[scenario.id], BARS[scenario.id])]  # fmt: skip
    parts.append(f"### Against our bars\n\n{grid(['bar', 'measured', ''], bars)}")
    return "\n\n".join(parts)


def as_data(figures: dict[str, Any], lines: Lines, versions: dict[System, str]) -> dict[str, Any]:
    """Everything that was seen, as JSON has it."""
    scenarios = {
        name: [
            {
                "system": line.system.name.replace("*", ""),
                "folder": line.system.folder,
                "variant": line.system.variant,
                "version": versions.get(line.system, ""),
                "jobs": line.jobs,
                "fault": line.fault,
                "figures": line.figures,
                "of_ours": line.of_ours,
                "samples": line.samples,
                "rates": line.rates,
            }
            for line in found
        ]
        for name, found in lines.items()
    }
    return figures | {"scenarios": scenarios}


def installed(systems: list[System]) -> dict[str, str]:
    """Make the environments of the peers; why one could not be made, by its folder."""
    faults: dict[str, str] = {}
    for folder in sorted({system.folder for system in systems} - {OURS, FLOOR}):
        try:
            install(BUILD / folder, HERE / "peers" / folder / "requirements.txt")
        except (Failed, OSError, subprocess.SubprocessError) as failed:
            print(failed, file=sys.stderr)
            faults[folder] = "could not be installed"
    return faults


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="very small numbers: whether it works")
    parser.add_argument("--small", action="store_true", help="a tenth of the numbers: a first impression")
    parser.add_argument("--rounds", type=int, help=f"how often everything is measured; {ROUNDS}")
    parser.add_argument("--only", nargs="+", default=[], choices=[one.id for one in SCENARIOS], help="these scenarios")
    parser.add_argument("--ours", action="store_true", help="ours and the floors, no peers")
    parser.add_argument("--peers", nargs="+", default=[], metavar="FOLDER", help="of the peers these")
    parser.add_argument("--folder", default="/var/tmp", help="where the data is; on a real disk")
    parser.add_argument("--json", type=Path, metavar="FILE", default=HERE.parent / "build" / "bench-jobs.json")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    chosen = [one for one in SCENARIOS if not options.only or one.id in options.only]
    wanted = {OURS, FLOOR, *options.peers}
    systems = [one for one in SYSTEMS if one.folder in wanted or not (options.ours or options.peers)]
    if options.quick:
        systems = [one for one in systems if one.main]  # one way of each is enough
    systems.sort(key=lambda one: not (one.folder == OURS and one.main))  # all others are compared with it
    lines: Lines = {
        scenario.id: [Line(system) for system in systems if scenario.id in system.scenarios] for scenario in chosen
    }
    faults = installed([line.system for found in lines.values() for line in found])
    for found in lines.values():
        for line in found:
            line.fault = faults.get(line.system.folder, "")
    device, filesystem = disk_of(options.folder)
    if filesystem == "tmpfs" and not options.quick:
        sys.exit(f"expected --folder to be on a disk, got: {options.folder}, which is memory.")
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended on the way out
    began = time.monotonic()
    server = Durable(options.folder) if any(one.store == "postgres" for one in chosen) else nullcontext()
    with server as postgres:
        version = ""
        if postgres is not None:
            with opened(postgres.dsn) as ask:
                version = f"PostgreSQL {ask('show server_version')}"
                durable = (ask("show fsync"), ask("show synchronous_commit"), ask("show full_page_writes"))
                assert durable == ("on", "on", "on"), durable
        with closing(Bench(postgres, options.folder, QUICK if options.quick else SMALL if options.small else Sizes())) as bench:  # fmt: skip
            measure_all(bench, chosen, lines, rounds)
            versions = bench.versions
    import sqlite3

    figures = {
        "day": time.strftime("%Y-%m-%d"),
        "python": f"CPython {platform.python_version()}",
        "processors": os.cpu_count(),
        "postgres": version or "no PostgreSQL",
        "sqlite": sqlite3.sqlite_version,
        "device": device,
        "filesystem": filesystem,
        "rounds": rounds,
        "minutes": (time.monotonic() - began) / 60,
        "size": "quick" if options.quick else "small" if options.small else "full",
    }
    text = report(figures, chosen, lines, versions)
    print(text)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(as_data(figures, lines, versions), indent=1), encoding="utf-8")
    if not (options.quick or options.small or options.only or options.ours or options.peers):
        renew("bench-jobs.md", text)


if __name__ == "__main__":
    main()
