"""
Everything bad that can happen to workers, many times: `make chaos-jobs`.

Worker processes are killed and stopped past their leases, PostgreSQL is restarted as after a crash, connections are cut,
while thousands of jobs are enqueued and done. Then what ran is compared with what is on record. After that, the time
from the kill of a worker until its job runs elsewhere is measured. docs/reliability.md is renewed; it ends with an error
if anything was lost, wrong or doubled, or took too long.

    benchmarks/chaos_jobs.py --jobs 4000 --kills 60 --stalls 5 --restarts 5 --cuts 20 --stores postgres --only faults

Only all of it at its full size renews the page. What is done is in tests/job_trials.py.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from report import grid, renew

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
os.environ["PYTHONPATH"] = str(ROOT / "tests")  # for the processes

if TYPE_CHECKING:
    from job_trials import JobTrial

STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
FULL = {"jobs": 20_000, "workers": 4, "kills": 200, "stalls": 20, "restarts": 12, "cuts": 60}
RESCUES = 20


class Rescues(NamedTuple):
    """How long it took, so many times, and how long it may."""

    store: str
    what: str
    ttl: float
    apart: bool
    bar: float
    taken: list[float]


def strike(options: argparse.Namespace) -> list[JobTrial]:
    """Make the trials, one after the other: each has the machine for itself."""
    from job_trials import JobTrial

    made = []
    for store in options.stores:
        both = store == "postgres"
        trial = JobTrial(
            store,
            jobs=options.jobs,
            workers=options.workers,
            kills=options.kills,
            stalls=options.stalls,
            restarts=options.restarts if both else 0,
            cuts=options.cuts if both else 0,
            seed=options.seed,
            say=_say,
        )
        trial.run()
        made.append(trial)
        print(f"\n{STORES[store]}: {trial.seconds:.0f} s", file=sys.stderr)
        print(*trial.tally.notes[:20], sep="\n", file=sys.stderr, flush=True)
    return made


def measure(options: argparse.Namespace) -> list[Rescues]:
    """How long it takes until the job of a killed worker runs elsewhere."""
    from job_trials import can_be_apart, rescue_times
    from outlast.jobs.doors import FAST

    if not can_be_apart():
        sys.exit("expected to be allowed to make PID name spaces (unshare --pid), got: not allowed. Use --only faults.")
    made = []
    for store in options.stores:
        for what, ttl, apart, bar in (
            ("apart", 20.0, True, 30.0),
            ("apart, fast", FAST, True, 6.0),
            # A sweep comes every 5 s, 6 s at most; a lease that must run out first would take 15 s at least.
            ("same machine", 20.0, False, 10.0),
        ):
            taken = rescue_times(store, kills=options.rescues, ttl=ttl, apart=apart, seed=options.seed)
            made.append(Rescues(store, what, ttl, apart, bar, taken))
            print(f"{STORES[store]}, {what}: {sorted(round(one, 2) for one in taken)}", file=sys.stderr, flush=True)
    return made


def _say(text: str) -> None:
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"{time.strftime('%H:%M:%S')} {text}", end=end, file=sys.stderr, flush=True)


def faults_table(trials: list[JobTrial]) -> str:
    """One row for each store."""
    head = "store|jobs|workers|kills|stalls|restarts|cuts|attempts begun|begun again after a fault|poison".split("|")
    head += ["lost", "wrong", "changed", "doubled", "missing"]
    body = []
    for trial in trials:
        tally = trial.tally
        numbers = [trial.jobs, trial.workers, trial.kills, trial.stalls, trial.restarts, trial.cuts]
        numbers += [tally.attempts, tally.repeated, tally.poisoned]
        numbers += [tally.lost, tally.wrong, tally.changed, tally.doubled, tally.missing]
        body.append([STORES[trial.store], *(f"{number:,}" for number in numbers)])
    return grid(head, body)


def rescues_table(made: list[Rescues]) -> str:
    """One row for each way to kill."""
    head = ["killed worker", "store", "lease", "kills", "median", "longest", "must be"]
    body = [
        [
            "in another PID name space" if one.apart else "on the same machine",
            STORES[one.store],
            f"{one.ttl:g} s",
            str(len(one.taken)),
            f"{statistics.median(one.taken):.1f} s",
            f"{max(one.taken):.1f} s",
            f"≤ {one.bar:g} s",
        ]
        for one in made
    ]
    return grid(head, body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in FULL.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--rescues", type=int, default=RESCUES, help="kills whose rescue is timed, of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=["faults", "rescues"], choices=["faults", "rescues"])
    parser.add_argument("--stores", nargs="+", default=[*STORES], choices=[*STORES])
    options = parser.parse_args()
    trials = strike(options) if "faults" in options.only else []
    made = measure(options) if "rescues" in options.only else []
    tables = [faults_table(trials)] * bool(trials) + [rescues_table(made)] * bool(made)
    text = "\n\n".join(tables)
    print(text)
    for trial in trials:
        print(*(f"{STORES[trial.store]}: {note}" for note in trial.tally.notes), sep="\n", file=sys.stderr)
    if any(trial.tally for trial in trials):
        sys.exit("something was lost, wrong, changed, doubled or missing")
    if late := [f"{one.what}, {one.store}: {max(one.taken):.1f} s" for one in made if max(one.taken) > one.bar]:
        sys.exit(f"it took longer than it may: {'; '.join(late)}")
    full = all(getattr(options, name) >= number for name, number in FULL.items()) and options.rescues >= RESCUES
    if full and trials and made and len(options.stores) == len(STORES):
        renew("reliability.md", text, name="jobs")


if __name__ == "__main__":
    main()
