"""
What one limit is worth that several processes share: `make bench-shared`.

Two and four programs use one ``Limit(shared=True)`` as much as they can, for some seconds, on SQLite and on PostgreSQL. Every instant at which a call
was let through is kept, and all of them together are held against the limit: the fullest window as a share of rate · w + burst, and how much
was used of what there was. One more row: one of two programs is killed half-way.

    PYTHONPATH=tests benchmarks/shared.py --seconds 10
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from report import renew

from servers.postgres import Postgres

PROGRAM = """
import json, sys, threading, time
from outlast import App, Guard, Limit, Rate, RetryPolicy

options = json.loads(sys.argv[1])
rates = {name: Rate(amount, per=per, burst=burst) for name, (amount, per, burst) in options["rates"].items()}
limit = Limit("service", rates=rates, shared=True)
App("bench", store=options["store"]).share(limit)
guard = Guard(limit=limit, retry=RetryPolicy(max_attempts=1), cost=lambda tokens: {"tokens": tokens})
record = open(options["record"], "w", buffering=1)
charge = limit._charge

def granted(cost, sign=1):
    record.write(f"{next(iter(limit._buckets.values()))._at!r} {cost['tokens']}\\n")
    charge(cost, sign)

limit._charge = granted
print("ready", flush=True)
sys.stdin.readline()
until = time.monotonic() + options["seconds"]

def work(number):
    while time.monotonic() < until:
        number += 7
        guard.call(lambda _: None, options["costs"][number % len(options["costs"])])

threads = [threading.Thread(target=work, args=(number,)) for number in range(options["threads"])]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
RATES: dict[str, dict[str, Any]] = {
    "40 calls/s, burst 1": {"rates": {"calls": (40, 1, 1)}, "costs": [0]},
    "500 calls/min, burst 10": {"rates": {"calls": (500, 60, 10)}, "costs": [0]},
    "1,000 calls/s, burst 50": {"rates": {"calls": (1000, 1, 50)}, "costs": [0]},
    "400 calls/s and 20,000 tokens/s, uneven costs": {
        "rates": {"calls": (400, 1, 20), "tokens": (20_000, 1, 2_000)},
        "costs": [40, 300, 900, 1500, 120],
    },
}


@dataclass(frozen=True)
class Row:
    calls: int
    fullest: float  # the fullest window, as a share of what it may hold
    used: float
    least: float  # the share of the process that got least


def measure(store: str, case: dict[str, Any], *, many: int, seconds: float, kill: bool = False) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / str(number) for number in range(many)]
        options = {**case, "store": store, "seconds": seconds, "threads": 16}
        programs = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, json.dumps(options | {"record": str(path)})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for path in paths
        ]
        for program in programs:
            assert program.stdout is not None
            program.stdout.readline()
        for program in programs:
            assert program.stdin is not None
            program.stdin.write("\n")
            program.stdin.flush()
        killed = inf
        if kill:
            time.sleep(seconds / 2)
            programs[0].kill()
            killed = time.monotonic()
        for program in programs:
            program.communicate()
        each = [[tuple(map(float, line.split())) for line in path.read_text().splitlines()] for path in paths]
    calls = sorted(call for record in each for call in record)
    begin = calls[0][0] + 1  # by then all are there, and the burst is used up
    end = calls[0][0] + seconds - 0.2
    fullest, used = 0.0, 0.0
    for name, (amount, per, burst) in case["rates"].items():
        speed = amount / per
        taken = [(at, 1.0 if name == "calls" else tokens) for at, tokens in calls]
        most = max(burst, *(cost for _, cost in taken))
        total, lowest = 0.0, inf
        for at, cost in taken:
            lowest = min(lowest, total - speed * at)
            total += cost
            fullest = max(fullest, (total - speed * at - lowest) / most)
        inside = sum(cost for at, cost in taken if begin <= at < end)
        used = max(used, inside / (speed * (end - begin)))
    counted = each[1:] if killed < inf else each
    return Row(len(calls), fullest, used, min(map(len, counted)) / len(calls))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    table = [
        "| store | programs | limit | calls | burst used in the fullest window | used | least share |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    with Postgres() as server, tempfile.TemporaryDirectory() as folder:
        number = 0
        for where in ("SQLite", "PostgreSQL"):
            for title, case in RATES.items():
                for many, kill in ((2, False), (4, False), (2, True)):
                    number += 1
                    store = f"sqlite:///{folder}/{number}.db" if where == "SQLite" else server.dsn
                    if where == "PostgreSQL" and number > len(RATES) * 3 + 1:
                        server.execute("delete from outlast_states")
                    row = measure(store, case, many=many, seconds=options.seconds, kill=kill)
                    programs = f"{many}, one killed half-way" if kill else many
                    table.append(
                        f"| {where} | {programs} | {title} | {row.calls:,} | {row.fullest:.1%} | {row.used:.1%} | {row.least:.0%} |"
                    )
                    print(table[-1], flush=True)
    renew("pacing.md", "\n".join(table), name="shared")


if __name__ == "__main__":
    main()
