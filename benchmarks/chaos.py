"""
Everything bad that can happen to runs and to replays, many times: `make chaos-items`.

Processes are killed and stopped, connections are cut, files vanish, disks are full, values are hostile: with each
store, into each kind of sink, for runs and for replays. Then what was lost, doubled or wrong is counted, and
docs/reliability.md is renewed. It ends with an error if anything was.

    benchmarks/chaos.py --scale 0.05 --only killed stalled --stores sqlite --sinks parquet table

Trials run side by side, one on each core. Only all of them at their full size renew the page. What is done in each is
in tests/trials.py.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from report import renew

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
os.environ["PYTHONPATH"] = str(ROOT / "tests")  # for the processes

if TYPE_CHECKING:
    from trials import Trial

STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
KINDS = {"jsonl": "JSON Lines", "csv": "CSV", "jsonl.gz": "gzip", "parquet": "Parquet", "table": "table"}


def planned(scale: float, seed: int) -> list[Trial]:
    """All trials, those that take longest first."""
    import trials
    from trials import FILES, SINKS, Trial

    def times(full: int) -> int:
        return max(1, round(full * scale))

    # What, how often for runs and for replays, items or letters of a round, and into which sinks.
    table: list[tuple[str, int, int, int, tuple[str, ...]]] = [
        (trials.KILLED, 100, 200, 1500, SINKS),
        (trials.STALLED, 15, 15, 600, SINKS),
        (trials.CUT, 40, 40, 900, SINKS),
        (trials.VANISHED, 20, 10, 600, FILES),
        (trials.FULL_SINK, 10, 10, 600, SINKS),
        (trials.FULL_STORE, 10, 10, 600, ("jsonl", "table")),
        (trials.VALUES, 1400, 1400, 700, SINKS),
    ]
    plan = [
        Trial(trials.LONG_RUN, "run", store, "jsonl", times(200), max(6000, int(100_000 * scale)), seed)
        for store in STORES
    ]
    for what, runs, replays, size, sinks in table:
        plan += [
            Trial(what, of, store, sink, times(number), size, seed)
            for sink in sinks
            for of, number in (("replay", replays), ("run", runs))
            for store in STORES
            if _possible(what, store, sink)
        ]
    return plan


def _possible(what: str, store: str, sink: str) -> bool:
    import trials

    if what == trials.CUT:  # with SQLite there is a connection to cut only where the table is in PostgreSQL
        return store == "postgres" or sink == "table"
    if what == trials.FULL_STORE:
        return store == "sqlite"
    return not (what == trials.FULL_SINK and store == "postgres" and sink == "table")


def table(trials: list[Trial]) -> str:
    """One row for what was tried of runs or replays with a store; the sinks beside it."""
    rows: dict[tuple[str, str, str], list[Trial]] = {}
    for trial in trials:
        if trial.times or trial.found:
            rows.setdefault((trial.what, trial.of, trial.store), []).append(trial)
    lines = ["| tried | of | store | into | times | lost | doubled | wrong |", "|---|---|---|---|---:|---:|---:|---:|"]
    for (what, of, store), some in rows.items():
        each = {trial.times for trial in some}
        sinks = [KINDS[trial.sink] if len(each) == 1 else f"{KINDS[trial.sink]} {trial.times:,}" for trial in some]
        into = ", ".join(sinks) + (f": {each.pop():,} each" if len(each) == 1 and len(some) > 1 else "")
        found = [sum(getattr(trial.found, name) for trial in some) for name in ("lost", "doubled", "wrong")]
        numbers = " | ".join(f"{number:,}" for number in (sum(trial.times for trial in some), *found))
        lines.append(f"| {what} | {of}s | {STORES[store]} | {into} | {numbers} |")
    torn, tails = sum(trial.torn for trial in trials), sum(trial.tails for trial in trials)
    if tails:
        size = max(trial.size for trial in trials if trial.tails)
        said = f"The long runs have {size:,} items; their kills left half a line {torn} times"
        lines += ["", f"{said}, and lines that were never committed {tails} times."]
    return "\n".join(lines)


def durations(trials: list[Trial]) -> str:
    spent: dict[str, float] = {}
    for trial in trials:
        spent[trial.what] = spent.get(trial.what, 0.0) + trial.seconds
    return "\n".join(f"{what}: {seconds / 60:.1f} minutes of one core" for what, seconds in spent.items())


def make(trials: list[Trial], jobs: int) -> None:
    """Make them side by side. Whoever does not want to wait any more has what was found until then."""
    from trials import Servers, stop

    servers, out = Servers(), threading.Lock()

    def one(trial: Trial) -> None:
        if stop.is_set():
            trial.error = "not made"
            return
        try:
            trial.run(servers)
        except Exception:  # noqa: BLE001 - the others go on
            trial.error = traceback.format_exc()
        with out:
            print(f"{trial.name}: {trial.times:,} times, {trial.seconds:.0f} s", file=sys.stderr)
            print(
                *trial.found.notes[:5], *([trial.error] if trial.error else []), sep="\n", file=sys.stderr, flush=True
            )

    pool = ThreadPoolExecutor(jobs)
    try:
        futures = [pool.submit(one, trial) for trial in trials]
        for future in futures:
            future.result()
    except KeyboardInterrupt:
        print("stopping: what is under way comes to its end", file=sys.stderr, flush=True)
        stop.set()
    finally:
        pool.shutdown()
        servers.close()


def main() -> None:
    from trials import ROUNDS, SINKS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of everything: 0.1 for a tenth")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="trials side by side")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[*ROUNDS], choices=[*ROUNDS])
    parser.add_argument("--of", nargs="+", default=["run", "replay"], choices=["run", "replay"])
    parser.add_argument("--stores", nargs="+", default=[*STORES], choices=[*STORES])
    parser.add_argument("--sinks", nargs="+", default=[*SINKS], choices=SINKS)
    options = parser.parse_args()
    plan = planned(options.scale, options.seed)
    chosen = [
        trial
        for trial in plan
        if trial.what in options.only
        and trial.of in options.of
        and trial.store in options.stores
        and trial.sink in options.sinks
    ]
    began = time.monotonic()
    make(chosen, options.jobs)
    text = table(chosen)
    print(text)
    print(f"\n{durations(chosen)}\n{(time.monotonic() - began) / 60:.1f} minutes in all", file=sys.stderr)
    for trial in chosen:
        for note in trial.found.notes:
            print(f"{trial.name}: {note}", file=sys.stderr)
    if any(trial.found for trial in chosen):
        sys.exit("something was lost, doubled or wrong")
    if any(trial.error for trial in chosen):
        sys.exit("not all trials came to their end")
    if options.scale >= 1 and len(chosen) == len(plan):
        renew("reliability.md", text, name="items")


if __name__ == "__main__":
    main()
