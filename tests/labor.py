"""
Jobs for workers that are killed, stopped and cut off, and a program that works on them:

    python labor.py STORE APP FOLDER TTL [KEY=VALUE]...

What a job does is in files of the folder: it notes when it begins, and waits for a file to be there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path

import outlast
from forked import Forked
from outlast.jobs.doors import made
from outlast.work.patience import Terms, terms
from standing import stand_still

NOW = outlast.RetryPolicy(max_attempts=5, initial_delay=0, jitter=0)


def jobs(app, folder):
    """The jobs, by kind."""
    folder = Path(folder)

    def note(line):
        with (folder / "notes").open("a") as notes:
            notes.write(f"{line} {os.getpid()}\n")

    def wait_for(name):
        while not (folder / name).exists():
            threading.Event().wait(0.005)

    @app.job(retry=NOW)
    def hold(name: str) -> str:
        """Begins, and ends when it may."""
        note(f"begins {name}")
        wait_for(f"go {name}")
        note(f"ends {name}")
        return f"{name} by {os.getpid()}"

    @app.job(retry=NOW)
    async def quick(name: str) -> str:
        note(f"does {name}")
        return name

    @app.job(retry=NOW)
    def dies() -> None:
        note("dies")
        os.kill(os.getpid(), signal.SIGKILL)

    return app.kinds


def notes(folder):
    """What jobs have noted, without who did."""
    path = Path(folder) / "notes"
    return [line.rpartition(" ")[0] for line in path.read_text().splitlines()] if path.exists() else []


def wait_until(true, what, seconds=200.0):
    """Wait for something that must come; the time only tells a hang."""
    for _ in range(int(seconds / 0.01)):
        if found := true():
            return found
        threading.Event().wait(0.01)
    raise AssertionError(f"waited in vain until {what}")


@contextmanager
def laborer(app, folder, *, ttl=20.0, **options):
    """A process of its own that works on the jobs of an app until it is ended."""
    given = [f"{name}={value}" for name, value in options.items()]
    command = [sys.executable, __file__, app.store_url, app.name, str(folder), str(ttl), *given]
    process = Forked(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def stop(process, database):
    """
    Stop it, but not in the middle of a write: then it would hold the whole file of SQLite, as any program does that is
    stopped there.
    """
    while True:
        stand_still(process.pid)
        if database.writable():
            return
        os.kill(process.pid, signal.SIGCONT)


def outcomes(handle):
    """How its attempts have ended."""
    return [row.outcome for row in handle.history()]


def living(app):
    """The workers that have a lease now."""
    return [worker.key for worker in app.store.workers() if worker.alive]


class Beside:
    """A worker in a thread of this process."""

    def __init__(self, app, *, queues=(), concurrency=8, **options):
        self.worker = made(app, queues, concurrency, **({"until_idle": False} | options))
        self.result = None
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,))  # with the terms of the test

    def _run(self):
        self.result = asyncio.run(self.worker.run())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.worker.ask_soon()
        self._thread.join()


def main(store, name, folder, ttl, *options):
    app = outlast.App(name, store=store)
    jobs(app, folder)
    logging.basicConfig(filename=Path(folder) / "log", level=logging.INFO)
    terms.set(Terms(ttl=float(ttl)))
    given = dict(option.split("=") for option in options)
    app.work(concurrency=int(given.get("concurrency", 8)), until_idle=given.get("until_idle") == "True")
    app.store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
