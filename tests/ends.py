"""
A worker that ends, and what this process has before and after that: threads, sockets, files, children.

    python ends.py STORE APP HOW

Prints what there was before and after, as JSON. With ``store away`` it prints ``ready`` first, and goes on when it can
read a line: by then its store cannot be reached.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import outlast
from labor import NOW, Beside, living, wait_until
from outlast.jobs.doors import blocking, made
from outlast.jobs.outcome import after_crash
from outlast.work.patience import Terms, terms

PATIENCE = 60.0  # seconds for threads and children to end: by then the counts say what has not
go, begun = threading.Event(), threading.Event()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def elsewhere() -> int:
    return os.getpid()


def children_of(task):
    try:
        return len((task / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):  # a thread that has ended since
        return 0


def held(app) -> dict[str, int]:
    """
    What this process has open now. The store keeps as many connections as were in use at once, which differs from run to
    run: it closes them first, so that only those count that nobody has given back.
    """
    app.store._database._disconnect()
    gc.collect()
    kinds = Counter()
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            kinds["sockets" if str(fd.readlink()).startswith("socket:") else "files"] += 1
    tasks = Path("/proc/self/task").iterdir()
    children = sum(map(children_of, tasks))
    return {"threads": len([*Path("/proc/self/task").iterdir()]), "children": children, **kinds}


def main(store: str, name: str, how: str) -> None:
    terms.set(Terms(ttl=2.0))
    app = outlast.App(name, store=store)

    @app.job
    async def quick() -> None: ...

    apart = app.job(isolation="process", timeout=100)(elsewhere)

    @app.job(retry=NOW)
    def hold() -> None:
        begun.set()
        go.wait(200)

    def some() -> None:
        for kind in (quick, apart):
            kind.enqueue()

    some()
    app.work(until_idle=True)
    before = held(app)
    some()
    said = end(app, how, hold)
    go.set()
    say(json.dumps({"before": before, "after": settled(app, before), "said": said}))


def settled(app, before: dict[str, int]) -> dict[str, int]:
    """What there is once threads and children had the time to end."""
    until = time.monotonic() + PATIENCE
    while True:
        after = held(app)
        if all(after[kind] <= before[kind] for kind in before) or time.monotonic() > until:
            return after
        threading.Event().wait(0.01)


def end(app, how, hold):
    """Let a worker end so; what came of it."""
    if how == "idle":
        return app.work(until_idle=True).succeeded
    job = hold.enqueue()
    if how in {"signal", "second signal"}:
        return interrupted(app, twice=how == "second signal")
    with suppress(outlast.OutlastError), Beside(app, drain=200.0) as beside:
        try:
            begun.wait(200)
            happens(app, how, beside.worker)
        finally:
            go.set()
    if how == "store away":
        return "ended"
    return job.status


def happens(app, how, worker):
    if how == "lease lost":
        (key,) = living(app)
        app.store.sweep(lambda _: True, lambda orphan: after_crash(orphan, None, roll=0.5, letter="x"))
        wait_until(lambda: living(app) not in ([], [key]), "it has registered again")
    if how == "store away":
        say("ready")
        sys.stdin.readline()
        for _ in range(3):
            worker.ask_soon()


def interrupted(app, *, twice: bool) -> str:
    worker = made(app, (), 8, until_idle=False, drain=200.0)

    def press() -> None:
        begun.wait(200)
        os.kill(os.getpid(), signal.SIGINT)
        if twice:
            # Of two signals that come before the first one is heard, the system keeps one.
            wait_until(lambda: worker.view().drains_until is not None, "it has heard the first one")
            os.kill(os.getpid(), signal.SIGINT)
        else:
            go.set()

    thread = threading.Thread(target=press)
    thread.start()
    try:
        blocking(worker)
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        thread.join()
    return "returned"


if __name__ == "__main__":
    main(*sys.argv[1:])
