"""
Jobs whose steps leave a mark in a file, and a program that works on them until it is killed:

    python stepping.py STORE APP FOLDER TTL [CUT]

A cut is where the process kills itself, once: "before 2", "in 2", "after 2". "hold 2": inside of step 2 it waits for a file.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import outlast
from forked import Forked
from labor import NOW
from outlast.work.patience import Terms, terms

STEPS = (1, 2, 3)


def jobs(app, folder, cut=""):
    """The jobs, by kind: each does three steps, and returns what they came to."""
    folder = Path(folder)

    def reach(place):
        if place == cut:
            os.kill(os.getpid(), signal.SIGKILL)

    def mark(number):
        with (folder / "marks").open("a") as marks:
            marks.write(f"{number} {os.getpid()}\n")

    def effect(number: int) -> str:
        mark(number)
        reach(f"in {number}")
        while cut == f"hold {number}" and not (folder / "go on").exists():
            threading.Event().wait(0.005)
        return f"step {number}"

    async def aeffect(number: int) -> str:
        return await asyncio.to_thread(effect, number)

    @app.job(retry=NOW)
    def chain() -> list[str]:
        done = []
        for number in STEPS:
            reach(f"before {number}")
            done.append(outlast.current().step(f"step {number}", effect, number))
            reach(f"after {number}")
        return done

    @app.job(retry=NOW)
    async def achain() -> list[str]:
        done = []
        for number in STEPS:
            reach(f"before {number}")
            done.append(await outlast.current().step(f"step {number}", aeffect, number))
            reach(f"after {number}")
        return done

    return app.kinds


def marks(folder):
    """The steps whose effects were had, in the order of their effects."""
    path = Path(folder) / "marks"
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def stepper(app, folder, cut, *, ttl=20.0):
    """A process of its own that works on the jobs of an app until it is ended."""
    command = [sys.executable, __file__, app.store_url, app.name, str(folder), str(ttl), cut]
    process = Forked(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def main(store, name, folder, ttl, cut):
    app = outlast.App(name, store=store)
    jobs(app, folder, cut)
    terms.set(Terms(ttl=float(ttl)))
    app.work(until_idle=not cut.startswith("hold"))
    app.store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
