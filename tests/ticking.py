"""
A worker in a process of its own, for which a minute of its schedules takes a moment:

    python ticking.py STORE APP FOLDER SPEED SKEW

Its schedules see the database's clock run SPEED times as fast, and SKEW seconds ahead. Its job notes every tick.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import outlast
from forked import Forked
from outlast.jobs import schedules
from outlast.work.patience import Terms, terms

BEGAN = "began"  # a file that says when the fast clock was the real one


def declare(app, folder):
    folder = Path(folder)

    @app.job(cron="* * * * *", retry=outlast.RetryPolicy(max_attempts=9, initial_delay=0, jitter=0))
    async def tick(scheduled_at: datetime | None = None) -> None:
        line = f"{outlast.current().job_id} {None if scheduled_at is None else scheduled_at.isoformat()}\n"
        with (folder / "ticks").open("a") as notes:
            notes.write(line)

    return tick


def noted(folder):
    """The ticks that were noted, each with the ids of the jobs that did."""
    path = Path(folder) / "ticks"
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        job, _, tick = line.partition(" ")
        found.setdefault(datetime.fromisoformat(tick), set()).add(job)
    return found


@contextmanager
def ticker(app, folder, *, speed, skew):
    command = [sys.executable, __file__, app.store_url, app.name, str(folder), str(speed), str(skew)]
    process = Forked(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def main(store, name, folder, speed, skew):
    import time

    began = float((Path(folder) / BEGAN).read_text())
    schedules.ahead_us = lambda: int(((time.time() - began) * float(speed) + float(skew)) * 1e6)
    schedules.FRESH = schedules._AGAIN = 0.005
    app = outlast.App(name, store=store)
    declare(app, folder)
    terms.set(Terms(ttl=4.0))
    app.work(concurrency=8)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
