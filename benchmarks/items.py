"""
What a run costs: items through three stages, every attempt on record, beside a bare pool written by hand.

    benchmarks/items.py                 all cases, medians of five rounds, into docs/items.md
    benchmarks/items.py --quick         fewer items and rounds, nothing written
    benchmarks/items.py --peers         beside other tools, each in an environment of its own: see beside.py

Each measurement is a process of its own, so that memory is its own too. Nothing here passes or fails: a person reads it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import beside
from report import renew
from stages import WIDTH, afirst, asecond, athird, pool

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

STAGES = 3


# What is run.


async def ten_milliseconds(item: int) -> int:
    await asyncio.sleep(0.01)
    return item


def ours(store: str, items: int, *functions: Any) -> None:
    import outlast

    stages = [outlast.stage(concurrency=WIDTH)(function) for function in functions]
    app = outlast.App("bench", store=store)
    pipeline: Any = outlast.Pipeline("bench", *stages, app=app)
    run = pipeline.run(range(items), run_key="bench", item_key=str, sink=_drop)
    assert (run.status, run.counts.succeeded) == ("completed", items), run.why


def _drop(_: object) -> None:
    pass


def measure(case: str, items: int) -> dict[str, float]:
    """One run in this process: seconds, seconds of processor time, the most memory it had. Imports are not part of it."""
    import outlast.pipeline.engine.runner
    import outlast.store.sqlite  # noqa: F401 - loaded before the clock starts

    with tempfile.TemporaryDirectory() as folder:
        store = os.environ.get("OUTLAST_BENCH_STORE") or f"{folder}/bench.db"
        wall, cpu = time.perf_counter(), time.process_time()
        if case == "floor":
            asyncio.run(pool(items, [afirst, asecond, athird]))
        elif case == "floor-io":
            asyncio.run(pool(items, [ten_milliseconds], yields=False))
        elif case == "io":
            ours(store, items, ten_milliseconds)
        else:
            ours(store, items, afirst, asecond, athird)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall": wall, "cpu": cpu, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


# The report.


@dataclass(frozen=True)
class Case:
    name: str
    case: str
    items: int
    stages: int = STAGES
    postgres: bool = False


def once(case: Case, postgres: str) -> dict[str, float]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")}
    if case.postgres:
        environment["OUTLAST_BENCH_STORE"] = postgres
    command = [sys.executable, __file__, "--case", case.case, "--items", str(case.items)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def spread(values: list[float], form: str) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--case")
    parser.add_argument("--items", type=int, default=0)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], metavar="FOLDER", help="with --peers: these of peers/")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.case, options.items)))
        return
    if options.peers:
        beside.main(
            quick=options.quick, rounds=options.rounds or (1 if options.quick else beside.ROUNDS), only=options.only
        )
        return
    from servers.postgres import Postgres

    many, most = (20_000, 100_000) if options.quick else (100_000, 1_000_000)
    cases = [
        Case("bare pool, nothing on record", "floor", many),
        Case("**outlast**, SQLite", "run", many),
        Case("**outlast**, PostgreSQL", "run", many, postgres=True),
        Case("**outlast**, SQLite, 10,000 items", "run", 10_000),
        Case(f"**outlast**, SQLite, {most:,} items", "run", most),
        Case("bare pool, 10 ms of I/O", "floor-io", 20_000, stages=1),
        Case("**outlast**, SQLite, 10 ms of I/O", "io", 20_000, stages=1),
    ]
    rounds = options.rounds or (1 if options.quick else 5)
    figures: dict[str, list[dict[str, float]]] = {case.name: [] for case in cases}
    for number in range(rounds):
        for case in cases:
            if case.items == most and number >= max(1, rounds // 2):
                continue  # the long one, less often
            with Postgres() as server:
                figures[case.name].append(once(case, server.dsn))
            print(case.name, figures[case.name][-1], file=sys.stderr, flush=True)
    lines = ["| | µs per item and stage | of it processor time | items/s | most memory |", "|---|---:|---:|---:|---:|"]
    for case in cases:
        runs, steps = figures[case.name], case.items * case.stages
        wall = spread([run["wall"] / steps * 1e6 for run in runs], ".1f")
        cpu = statistics.median(run["cpu"] for run in runs) / steps * 1e6
        rate = statistics.median(case.items / run["wall"] for run in runs)
        memory = statistics.median(run["memory"] for run in runs)
        lines.append(f"| {case.name} | {wall} | {cpu:.1f} | {rate:,.0f} | {memory:.0f} MB |")
    text = "\n".join(lines)
    print(text)
    if not options.quick:
        renew("items.md", text)


if __name__ == "__main__":
    main()
