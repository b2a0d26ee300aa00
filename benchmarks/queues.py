"""
What is the same for every queue that is measured: the job, how it is seen that it ran, and how the programs in peers/ are asked.

A program gets a role: `fill` makes the tables and enqueues many jobs at once, `work` is a worker process, `ping` enqueues one job at a
time. What the processes of one measurement tell each other is on a board, a file in memory that all of them map: a job leaves on it that it
ran, and when. The programs in peers/ import this, each in the environment of its tool: standard library only.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import json
import mmap
import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SLOTS = 8  # numbers at the beginning of a board: the first is the signal to go, the others say which workers are ready
APART = (0.03, 0.07)  # seconds between two single jobs, at random: the worker is idle by then
PATIENCE = 20.0  # seconds for a single job to begin


class Board:
    """For each worker process a byte for every job, how often it ran, and the instant at which it began, in nanoseconds."""

    def __init__(self, path: str | Path, jobs: int, workers: int = 1) -> None:
        self._jobs = jobs
        self._workers = workers
        size = 8 * (SLOTS + jobs + jobs * workers) + jobs * workers
        if not Path(path).exists():
            with Path(path).open("wb") as file:
                file.truncate(size)
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        whole = memoryview(self._map)
        numbers = whole[: 8 * (SLOTS + jobs + jobs * workers)].cast("q")
        self.slots = numbers[:SLOTS]
        self.asked = numbers[SLOTS : SLOTS + jobs]  # when a single job was enqueued
        self._began = numbers[SLOTS + jobs :]
        self._ran = whole[8 * (SLOTS + jobs + jobs * workers) :]
        self._views = [whole, numbers, self.slots, self.asked, self._began, self._ran]

    def began(self, worker: int) -> memoryview:
        """When each job began in this worker; 0 if it did not."""
        return self._began[worker * self._jobs : (worker + 1) * self._jobs]

    def ran(self, worker: int) -> memoryview:
        """How often each job ran in this worker."""
        return self._ran[worker * self._jobs : (worker + 1) * self._jobs]

    def ready(self) -> bool:
        return all(self.slots[1 + worker] for worker in range(self._workers))

    def done(self) -> int:
        """How many jobs have run, each counted once for each worker."""
        return sum(self._jobs - bytes(self.ran(worker)).count(0) for worker in range(self._workers))

    def instants(self) -> list[int]:
        """The instants at which jobs began, in their order."""
        return sorted(when for when in self._began if when)

    def times(self) -> list[int]:
        """How often each job ran, in all workers together."""
        return [sum(one) for one in zip(*(self.ran(worker) for worker in range(self._workers)), strict=True)]


def board_of_this_process() -> tuple[Board, int]:
    jobs, workers, worker = (int(os.environ[f"BENCH_{name}"]) for name in ("JOBS", "WORKERS", "WORKER"))
    return Board(os.environ["BENCH_BOARD"], jobs, workers), worker


if "BENCH_BOARD" in os.environ:
    board, me = board_of_this_process()
    _began, _ran = board.began(me), board.ran(me)


def ran(number: int, now: Callable[[], int] = time.monotonic_ns) -> None:
    """What a job does: nothing but leaving word that it did it."""
    _began[number] = now()
    _ran[number] += 1


async def job(*, number: int) -> None:
    """The same as a coroutine, for who wants a function that can be imported."""
    ran(number)


def go() -> None:
    """All is loaded: wait until everybody else has come so far."""
    board.slots[1 + me] = 1
    while not board.slots[0]:
        time.sleep(0.001)


def database() -> str:
    """Where the queue is: an address of PostgreSQL, or the path of a file for SQLite."""
    return os.environ["BENCH_DATABASE"]


def place() -> dict[str, Any]:
    """The parts of an address of PostgreSQL."""
    from urllib.parse import urlsplit

    parts = urlsplit(database())
    return {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "password": parts.password or "",
        "database": parts.path[1:],
    }


async def ping(enqueue: Callable[[int], Any], numbers: Sequence[int]) -> None:
    """Enqueue one job, see it begin, wait a moment, and so on. A job that never begins is left at zero."""
    dice = random.Random(1)
    began = board.began(0)
    for number in numbers:
        await asyncio.sleep(dice.uniform(*APART))
        board.asked[number] = time.monotonic_ns()
        asked = enqueue(number)
        if inspect.isawaitable(asked):
            await asked
        until = time.monotonic() + PATIENCE
        while not began[number] and time.monotonic() < until:  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.002)
        if not began[number]:
            return


def main(package: str | None, roles: dict[str, Callable[..., Any]]) -> None:
    """
    Do what the command line asks for: a role, a variant of the tool, numbers. `fill` returns the seconds it took, without the time to
    connect. The line that is printed says them, with the version.
    """
    role, variant, *numbers = sys.argv[1:]
    found = roles[role](variant, *map(int, numbers))
    if inspect.iscoroutine(found):
        found = asyncio.run(found)
    version = "" if package is None else importlib.metadata.version(package)
    print(json.dumps({"version": version, "seconds": found}), flush=True)
