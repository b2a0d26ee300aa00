"""
Everything bad that can happen to workers, many times: `make chaos-jobs`.

Worker processes are killed and stopped past their leases, PostgreSQL is restarted as after a crash, connections are cut,
while thousands of jobs are enqueued and done. Then what ran is compared with what is on record. Other workers are starved:
they have no descriptors or no threads left, cannot see each other's processes, or share a host name. At last, the time
from the kill of a worker until its job runs elsewhere is measured. docs/reliability.md is renewed; it ends with an error
if anything was lost, wrong or doubled, or took too long.

    benchmarks/chaos_jobs.py --scale 0.1
    benchmarks/chaos_jobs.py --jobs 4000 --kills 60 --stalls 5 --restarts 5 --cuts 20 --stores postgres --only faults
    benchmarks/chaos_jobs.py --only starved --of "hidden /proc" --starved 1000

At its full size each part is kept in build/chaos-jobs.json, once it is over and nothing was found; `--resume` makes those
that are missing there. Only whole tables renew the page. What is done is in tests/job_trials.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from report import grid, renew

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])  # for the processes

if TYPE_CHECKING:
    from collections.abc import Callable

STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
WORKERS = 4
STRUCK = {"jobs": 20_000, "kills": 200, "stalls": 20, "restarts": 12, "cuts": 60, "answers": 20}
FULL = STRUCK | {"starved": 2_000, "rescues": 20}
PARTS = ("faults", "starved", "rescues")


WAYS = {
    "apart": ("in another PID name space", 20.0, 30.0),
    "apart, fast": ("in another PID name space", 4.0, 6.0),
    # The system tells of its end at once; a sweep that must be waited for would take 3 s on average, and 6 s at most.
    "same machine": ("on the same machine", 20.0, 1.0),
}
FAULTS = (
    "store|jobs|workers|kills|stalls|restarts|cuts|lost answers|attempts begun|begun again after a fault|poison".split(
        "|"
    )
)
FAULTS += ["lost", "wrong", "changed", "doubled", "missing"]
STARVED = "workers have|store|jobs|workers|refused|attempts begun|lost|wrong|changed|doubled|missing|poison".split("|")
SHORTAGES = ("no descriptors", "no threads", "hidden /proc", "equal host names")
RESCUED = ["killed worker", "store", "lease", "kills", "median", "longest", "must be"]


class Kept:
    """The rows of the tables that were made, each under its name, with the sizes that it was made with."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        self._rows: dict[str, Any] = json.loads(path.read_text()) if resume and path.exists() else {}

    def row(self, name: str, sizes: dict[str, int]) -> list[str] | None:
        found = self._rows.get(name)
        return found["row"] if found is not None and found["sizes"] == sizes else None

    def add(self, name: str, sizes: dict[str, int], row: list[str]) -> None:
        self._rows[name] = {"sizes": sizes, "row": row}
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text(json.dumps(self._rows, indent=1))


def strike(store: str, options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Make a trial, which has the machine for itself: its row, and what was found."""
    from job_trials import JobTrial

    both = store == "postgres"
    trial = JobTrial(
        store,
        jobs=options.jobs,
        workers=options.workers,
        kills=options.kills,
        stalls=options.stalls,
        restarts=options.restarts if both else 0,
        cuts=options.cuts if both else 0,
        answers=options.answers if both else 0,
        most=options.most,
        seed=options.seed,
        say=_say,
    )
    tally = trial.run()
    print(f"\n{STORES[store]}: {trial.seconds:.0f} s", file=sys.stderr, flush=True)
    numbers = [trial.jobs, trial.workers, trial.kills, trial.stalls, trial.restarts, trial.cuts, trial.answers]
    numbers += [tally.attempts, tally.repeated, tally.poisoned]
    numbers += [tally.lost, tally.wrong, tally.changed, tally.doubled, tally.missing]
    found = [f"{STORES[store]}: {note}" for note in tally.notes] if tally else []
    return [STORES[store], *(f"{number:,}" for number in numbers)], found


def starve(store: str, what: str, options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Let two workers meet a shortage all the time: the row, and what was found. Nothing excuses a second attempt."""
    from job_trials import HOSTS, PROC, JobTrial, can_be_apart

    if what in {PROC, HOSTS} and not can_be_apart():
        sys.exit(f"expected to be allowed to make name spaces (unshare) for {what!r}, got: not allowed.")
    trial = JobTrial(
        store, jobs=options.starved, workers=2, starved=what, most=options.most, seed=options.seed, say=_say
    )
    tally = trial.run()
    counts = [tally.lost, tally.wrong, tally.changed, tally.doubled, tally.missing, tally.poisoned]
    found = [f"{STORES[store]}, {what}: {note}" for note in tally.notes] if tally else []
    if tally.poisoned and not found:
        found.append(f"{STORES[store]}, {what}: {tally.poisoned} jobs are poison")
    numbers = [trial.jobs, trial.workers, tally.refused, tally.attempts, *counts]
    return [what, STORES[store], *(f"{number:,}" for number in numbers)], found


def measure(store: str, way: str, options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """How long it takes until the job of a killed worker runs elsewhere: its row, and what took too long."""
    from job_trials import can_be_apart, rescue_times

    what, ttl, bar = WAYS[way]
    apart = way != "same machine"
    if apart and not can_be_apart():
        sys.exit("expected to be allowed to make PID name spaces (unshare --pid), got: not allowed. Use --only faults.")
    taken = rescue_times(store, kills=options.rescues, ttl=ttl, apart=apart, seed=options.seed)
    print(f"{STORES[store]}, {way}: {sorted(round(one, 2) for one in taken)}", file=sys.stderr, flush=True)
    longest = max(taken)
    row = [what, STORES[store], f"{ttl:g} s", str(len(taken)), _time(statistics.median(taken)), _time(longest)]
    late = [f"{STORES[store]}, {way}: {_time(longest)}, it may take {bar:g} s"] if longest > bar else []
    return [*row, f"≤ {bar:g} s"], late


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _say(text: str) -> None:
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"{time.strftime('%H:%M:%S')} {text}", end=end, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in FULL.items():
        parser.add_argument(f"--{name}", type=int, help=f"{number:,} at full size")
    parser.add_argument("--scale", type=float, default=1.0, help="of everything: 0.1 for a tenth")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--most", type=float, default=1500.0, help="seconds that the faults of a store may take")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[*PARTS], choices=PARTS)
    parser.add_argument("--of", nargs="+", default=[*SHORTAGES], choices=SHORTAGES, help="what workers are starved of")
    parser.add_argument("--stores", nargs="+", default=[*STORES], choices=[*STORES])
    parser.add_argument("--resume", action="store_true", help="take the parts that are kept, and make the others")
    options = parser.parse_args()
    for name, number in FULL.items():
        if getattr(options, name) is None:
            setattr(options, name, max(1, round(number * options.scale)))
    kept = Kept(ROOT / "build" / "chaos-jobs.json", resume=options.resume)
    sizes = {name: getattr(options, name) for name in (*FULL, "workers", "seed")}
    full = all(sizes[name] >= number for name, number in FULL.items()) and options.workers >= WORKERS
    found: list[str] = []

    def rows(names: list[str], make: Callable[[str], tuple[list[str], list[str]]]) -> list[list[str]]:
        made = []
        for name in names:
            row = kept.row(name, sizes)
            if row is None:
                row, problems = make(name)
                found.extend(problems)
                if full and not problems:
                    kept.add(name, sizes, row)
            made.append(row)
        return made

    tables: dict[str, list[str]] = {"jobs": [], "starved": []}
    if "faults" in options.only:
        struck = rows([f"faults/{store}" for store in options.stores], lambda name: strike(name.split("/")[1], options))
        tables["jobs"].append(grid(FAULTS, struck))
    if "rescues" in options.only:
        names = [f"rescues/{store}/{way}" for store in options.stores for way in WAYS]
        tables["jobs"].append(grid(RESCUED, rows(names, lambda name: measure(*name.split("/")[1:], options))))
    if "starved" in options.only:
        names = [f"starved|{store}|{what}" for what in options.of for store in options.stores]
        tables["starved"].append(grid(STARVED, rows(names, lambda name: starve(*name.split("|")[1:], options))))
    texts = {name: "\n\n".join(some) for name, some in tables.items() if some}
    print(*texts.values(), sep="\n\n")
    if found:
        print(*found, sep="\n", file=sys.stderr)
        sys.exit("something was lost, wrong, changed, doubled or missing, or took too long")
    if full and len(options.stores) == len(STORES):
        if len(tables["jobs"]) == 2:
            renew("reliability.md", texts["jobs"], name="jobs")
        if tables["starved"] and len(options.of) == len(SHORTAGES):
            renew("reliability.md", texts["starved"], name="starved")


if __name__ == "__main__":
    main()
