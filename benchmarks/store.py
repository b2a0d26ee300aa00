"""
What the store costs: writing attempts in batches, and reading a hundred thousand dead letters.

    python benchmarks/store.py [sqlite] [postgres] [--items 100000] [--letters 100000]

Processor time is this process's own, PostgreSQL's is not in it. On a machine that is busy with other things, trust it over the clock.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from outlast.store import open_store
from outlast.store.records import AttemptRow, Changes, DeadLetterRow, ItemRow, StageMark

BATCH = 2000
STAGES = ("parse", "ask", "check")
START = 1_800_000_000_000_000


@contextmanager
def opened(backend):
    if backend == "sqlite":
        with tempfile.TemporaryDirectory() as folder, open_store(f"{folder}/store.db") as store:
            yield store
    else:
        from servers.postgres import Postgres

        with Postgres() as server, open_store(server.dsn) as store:
            yield store


def batches(items, token):
    for first in range(0, items, BATCH):
        seqs = range(first, min(items, first + BATCH))
        yield Changes(
            items=[ItemRow(n, f"{n:032x}", "succeeded", 2, 3, 0, None, (), {}, None, START + n, 900) for n in seqs],
            attempts=[AttemptRow(n, stage, token, 1, "success", START + n, 300) for n in seqs for stage in range(3)],
            read=seqs[-1] + 1,
        )


def write(store, items):
    run = store.open_run("bench", "write", [StageMark(name) for name in STAGES])
    lease = store.take_run(run.number, 0, "bench", 600)
    wall = cpu = 0.0
    for batch in batches(
        items, lease.token
    ):  # made when it is written: a list of them all would be the collector's work
        began = time.perf_counter(), time.process_time()
        store.write(lease, batch)
        wall, cpu = wall + time.perf_counter() - began[0], cpu + time.process_time() - began[1]
    rows = 3 * items
    print(f"  write, per attempt row       {wall / rows * 1e6:7.2f} us  ({cpu / rows * 1e6:.2f} us processor time)")
    again = time.perf_counter()
    store.write(lease, next(batches(items, lease.token)))
    print(f"  write a batch that is there  {(time.perf_counter() - again) * 1e3:7.1f} ms")
    measure("a page of finished items", lambda: store.finished(run.number, items // 2, 1000))
    first = time.perf_counter()
    store.find_keys(run.number, ["0"])
    print(f"  read all keys                {(time.perf_counter() - first) * 1e3:7.1f} ms")
    measure("find 1000 keys", lambda: store.find_keys(run.number, [f"{n:032x}" for n in range(1000)]))
    assert store.run(run.id).counts.succeeded == items


def read_letters(store, count):
    dice = random.Random(3)
    groups = [min(int(dice.expovariate(0.7)), 39) for _ in range(count)]
    letters = [
        DeadLetterRow(
            id=f"{dice.getrandbits(128):032x}",
            run=f"{n % 20:032x}",
            seq=n,
            pipeline=f"pipeline-{n % 5}",
            stage=STAGES[n % 3],
            item_key=f"key-{n}",
            payload=b'{"v":1,"d":{"text":"' + b"x" * 400 + b'"}}',
            error=f"the service answered 503 to request {n}",
            error_type=f"VendorError{group}",
            error_class="server_error",
            tier="http",
            fingerprint=f"{group:016x}",
            attempts=3,
            first_failed_us=START + n,
            last_attempt_us=START + n + 500,
            created_us=START + n + 600,
            status="open" if dice.random() < 0.9 else "archived",
        )
        for n, group in enumerate(groups)
    ]
    wall = time.perf_counter()
    for first in range(0, count, BATCH):
        store.add_letters(letters[first : first + BATCH])
    print(f"  add a dead letter            {(time.perf_counter() - wall) / count * 1e6:7.1f} us")
    middle = letters[count // 2]
    measure("groups", store.groups)
    measure("groups of a pipeline", lambda: store.groups(pipeline="pipeline-2"))
    measure("groups of a run", lambda: store.groups(run=f"{7:032x}"))
    measure("first page", lambda: store.letters(status="open"))
    measure(
        "page of a stage, in the middle",
        lambda: store.letters(pipeline="pipeline-2", stage="ask", status="open", after=middle, order="created"),
    )
    measure("page of a group", lambda: store.letters(group=f"{1:016x}", status="open"))
    measure("page of a run", lambda: store.letters(run=f"{7:032x}", status="open"))
    measure("page of any status", store.letters)
    measure("page by text", lambda: store.letters(text="request 777", status="open"))
    measure("stats", store.stats)
    wall = time.perf_counter()
    moved = store.move_letters(group=f"{0:016x}", to="archived", reason="known")
    print(f"  move {moved} letters          {(time.perf_counter() - wall) / moved * 1e6:7.1f} us each")


def measure(what, call):
    times = []
    for _ in range(7):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    print(f"  {what:30} {statistics.median(times) * 1e3:7.2f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("backends", nargs="*", default=["sqlite", "postgres"])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--letters", type=int, default=100_000)
    given = parser.parse_args()
    for backend in given.backends:
        with opened(backend) as store:
            print(f"{backend}: {given.items} items of 3 attempts, {given.letters} dead letters")
            if given.items:
                write(store, given.items)
            if given.letters:
                read_letters(store, given.letters)


if __name__ == "__main__":
    main()
