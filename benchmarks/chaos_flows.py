"""
A flow of six steps with two branches is killed at random boundaries, again and again: `make chaos-flows`.

Each trial is a run of its own, directly or as a durable job, on SQLite or PostgreSQL. Its process is killed up to three times, before or
after any write to the store and anything that a step or its compensation does; then it is run to its end. What was done, which is
in a ledger, is compared with what is on record. docs/reliability.md is renewed; it ends with an error if anything is wrong.

    benchmarks/chaos_flows.py --scale 0.1
    benchmarks/chaos_flows.py --trials 20 --stores sqlite --ways direct

What is done is in tests/sagas.py.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from report import grid, renew

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
WAYS = {"direct": "run directly", "job": "run as a job"}
TRIALS = 60
HEAD = ["store", "how", "runs", "kills", "boundaries", "missed, repeated or otherwise wrong"]


def trials(store: str, way: str, count: int, seed: int, folder: Path) -> tuple[list[str], int, int]:
    """What is wrong, how many kills there were, and how many different boundaries a run has."""
    import sagas
    from servers.postgres import Postgres
    from stores import prepared

    dice, wrong, kills = random.Random(seed), [], 0
    with Postgres() if store == "postgres" else nullcontext() as server:

        def address(name: str) -> str:
            return prepared(folder / f"{name}.db") if server is None else server.dsn

        os.environ["SAGA_FAILS"] = "1"
        _, met, _ = sagas.trial(folder / "whole", address("whole"), f"whole {way}", way, None)
        for number in range(count):
            found, done = sagas.storm(folder / str(number), address(str(number)), f"{way} {number}", way, met, dice)
            kills += done
            for line in found:
                sys.stdout.write(f"{store} {way} {number}: {line}\n")
            wrong += found
        os.chdir(ROOT)
    return wrong, kills, len(met)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--trials", type=int, help=f"of each kind; {TRIALS} at full size")
    options.add_argument("--scale", type=float, default=1.0, help="of the trials: 0.1 for a tenth")
    options.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    options.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    chosen.trials = chosen.trials or max(1, round(TRIALS * chosen.scale))
    rows: list[list[str]] = []
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        for store in chosen.stores:
            for way in chosen.ways:
                where = Path(folder, f"{store}-{way}")
                where.mkdir()
                found, kills, boundaries = trials(store, way, chosen.trials, chosen.seed, where)
                wrong += found
                rows.append(
                    [STORES[store], WAYS[way], f"{chosen.trials:,}", f"{kills:,}", str(boundaries), str(len(found))]
                )
                sys.stdout.write(f"{' | '.join(rows[-1])}\n")
                sys.stdout.flush()
    whole = chosen.trials >= TRIALS and set(chosen.stores) == set(STORES) and set(chosen.ways) == set(WAYS)
    if whole and not wrong:
        renew("reliability.md", grid(HEAD, rows), name="flows")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
