"""
Measures queues: fills them, starts worker processes, sees on the board what ran and in the queue's own tables what is on record.

A measurement has a database of its own, which is vacuumed, analysed and written to disk after it was filled, so that nobody pays for what
came before. It fails if a job ran twice or not at all, if not all of them are recorded as succeeded, or if it takes too long.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from beside import below, end, reap
from contenders import FLOOR, OURS
from environment import python_of
from queues import Board

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from servers.postgres import Postgres  # noqa: E402 - of the tests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from contenders import System

BUILD = HERE.parent / "build" / "peers-jobs"
LIMIT = 60.0  # seconds for a process, and for the jobs of one measurement
RECORDED = 30.0  # seconds until all that has run must be on record
POLL = 0.005
CHUNK = 100_000  # jobs that are enqueued at once, of a backlog
MEASURED = 40_000  # jobs of a backlog
WARM = 3  # single jobs before those that count
PARTING = 3.0  # seconds in which a program that was asked to end must end
MEMORY = "/dev/shm"


class Fault(Exception):
    """A measurement that came to nothing; the message is for the table."""


@dataclass(frozen=True)
class Sizes:
    """How much is done: all of it, or just enough to see that it works."""

    share: float = 1.0
    backlogs: tuple[int, int] = (10_000, 1_000_000)
    pings: int = 200  # single jobs in one round: of fewer, the slowest hundredth is one moment of the disk
    steps: int = 900

    def of(self, jobs: int) -> int:
        return max(20, round(jobs * self.share))


class Durable(Postgres):
    """A server on loopback, as it is when nobody has set anything: every commit waits for the disk."""

    def __init__(self, parent: str) -> None:
        super().__init__()
        self.parent = parent
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.options = f"-c listen_addresses=127.0.0.1 -c port={self._port}"

    @property
    def dsn(self) -> str:
        return self.at(self.name)

    def at(self, name: str) -> str:
        return f"postgresql://postgres:none@127.0.0.1:{self._port}/{name}"


@contextmanager
def opened(address: str) -> Iterator[Any]:
    """Runs statements, each by itself; returns the first value of the answer, if it has one."""
    if address.startswith("postgresql:"):
        limit = f"-c statement_timeout={LIMIT:.0f}s"
        with psycopg.connect(address, autocommit=True, options=limit) as connection:

            def ask(statement: str) -> Any:
                cursor = connection.execute(statement.encode())
                return cursor.fetchone()[0] if cursor.description else None  # type: ignore[index]

            yield ask
    else:
        with closing(sqlite3.connect(address, isolation_level=None, timeout=LIMIT)) as file:
            yield lambda statement: (file.execute(statement).fetchone() or [None])[0]


class Bench:
    """Measures. What is measured once in a round serves every scenario that asks for it."""

    def __init__(self, server: Durable | None, folder: str, sizes: Sizes) -> None:
        self._server = server
        self._folder = folder
        self._sizes = sizes
        self._number = 0
        self._known: dict[Any, tuple[float, float]] = {}
        self._kept = ExitStack()  # databases that serve several rounds
        self._deep: dict[System, str] = {}
        self.versions: dict[System, str] = {}

    def new_round(self) -> None:
        self._known.clear()

    def close(self) -> None:
        self._kept.close()

    # -- what can be asked: figures, and the number of jobs behind them -------------------------------------------------

    def drain(self, system: System, *, workers: int = 1, pinned: bool = False) -> tuple[float, int]:
        """Jobs in a second, from the beginning of the first until the success of the last is on record."""
        jobs = self._sizes.of(system.jobs)
        return self._drained(system, jobs, workers, pinned=pinned)[0], jobs

    def two(self, system: System) -> tuple[float, int]:
        """The same with two worker processes."""
        return self.drain(system, workers=2)

    def enqueue(self, system: System) -> tuple[float, int]:
        """Jobs in a second, enqueued at once in the best way there is."""
        jobs = self._sizes.of(system.many)
        if jobs == self._sizes.of(system.jobs):
            return self._drained(system, jobs, 1)[1], jobs
        with self._database(system) as database:
            return jobs / self._fill(system, database, jobs, settled=False), jobs

    def pinned(self, system: System) -> tuple[tuple[float, float], int]:
        """Its rate while a transaction of somebody else is open all the time, and without."""
        rate, jobs = self.drain(system, pinned=True)
        return (rate, self.drain(system)[0]), jobs

    def backlog(self, system: System) -> tuple[tuple[float, float], int]:
        """Its rate with very many jobs left in the queue, and with few."""
        few, many = self._sizes.backlogs
        measured = self._sizes.of(MEASURED)
        if system not in self._deep:
            self._deep[system] = self._kept.enter_context(self._database(system))
            self._fill(system, self._deep[system], many)
        deep = self._first_of(system, self._deep[system], many, measured)
        with self._database(system) as database:
            self._fill(system, database, measured + few)
            return (deep, self._first_of(system, database, measured + few, measured)), measured

    def latency(self, system: System) -> tuple[list[float], int]:
        """Milliseconds from the call that enqueues a single job until it begins in another process, which was idle."""
        pings = self._sizes.pings + WARM
        with self._database(system) as database, self._board(database, pings) as (board, variables):
            self._fill(system, database, 0)
            os.sync()  # nobody waits for what was written before
            with self._workers(system, board, variables, role=system.listener):
                self._program(system, "ping", variables, 0, pings)
            prove(board, pings)
            taken = [(began - asked) / 1e6 for asked, began in zip(board.asked, board.began(0), strict=True)]
        return taken[WARM:], pings - WARM

    def steps(self, system: System) -> tuple[float, int]:
        """Microseconds for one stored step."""
        steps = self._sizes.steps
        with self._database(system) as database, self._board(database, 1) as (_, variables):
            said = self._program(system, "step", variables, steps)
        return said["seconds"] / steps * 1e6, steps

    # -- parts ----------------------------------------------------------------------------------------------------------

    def _drained(self, system: System, jobs: int, workers: int, *, pinned: bool = False) -> tuple[float, float]:
        """The rate at which jobs were done, and the rate at which they were enqueued before."""
        key = (system, jobs, workers, pinned)
        if key not in self._known:
            with self._database(system) as database, ExitStack() as during:
                board, variables = during.enter_context(self._board(database, jobs, workers))
                filled = jobs / self._fill(system, database, jobs)
                ask = during.enter_context(opened(database))
                recorded = partial(ask, system.recorded.format(jobs=jobs))
                if pinned:
                    during.enter_context(held_open(database))
                with self._workers(system, board, variables, workers) as processes:
                    wait(lambda: board.done() >= jobs, processes, lambda: f"{board.done():,} of {jobs:,} jobs done")
                    wait(
                        lambda: recorded() >= jobs,
                        processes,
                        lambda: f"{recorded():,} of {jobs:,} jobs on record",
                        limit=RECORDED,
                    )
                    ended = time.monotonic_ns()
                prove(board, jobs)
                self._known[key] = jobs / (ended - board.instants()[0]) * 1e9, filled
        return self._known[key]

    def _first_of(self, system: System, database: str, jobs: int, measured: int) -> float:
        """The rate at which the first so many jobs of a queue are done."""
        with self._board(database, jobs) as (board, variables):
            with self._workers(system, board, variables, gently=True) as processes:
                wait(
                    lambda: board.done() >= measured,
                    processes,
                    lambda: f"{board.done():,} of {measured:,} jobs done",
                    pause=4 * POLL,
                )
            if max(board.times()) > 1:
                raise Fault("a job ran twice")
            instants = board.instants()
            return (measured - 1) / (instants[measured - 1] - instants[0]) * 1e9

    def _fill(self, system: System, database: str, jobs: int, *, settled: bool = True) -> float:
        """Enqueue so many; how long that took. What there is to tidy up afterwards is done, and is not in it."""
        variables = {"BENCH_DATABASE": database}
        took = 0.0
        for first in range(0, max(jobs, 1), CHUNK):
            said = self._program(system, "fill", variables, first, min(CHUNK, jobs - first))
            took += said["seconds"]
        if settled and system.store == "postgres":
            with opened(database) as ask:
                ask("vacuum analyze")
                ask("checkpoint")
        return took

    @contextmanager
    def _database(self, system: System) -> Iterator[str]:
        """An empty database, or a place for a file, gone afterwards."""
        self._number += 1
        name = f"bench_{self._number}"
        if system.store == "sqlite":
            with tempfile.TemporaryDirectory(prefix="outlast-bench-", dir=self._folder) as folder:
                yield f"{folder}/{name}.db"
            return
        assert self._server is not None
        with opened(self._server.dsn) as ask:
            ask(f"create database {name}")
        try:
            yield self._server.at(name)
        finally:
            with opened(self._server.dsn) as ask:
                ask(f"drop database {name} with (force)")

    @contextmanager
    def _board(self, database: str, jobs: int, workers: int = 1) -> Iterator[tuple[Board, dict[str, str]]]:
        with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
            path = f"{folder}/board"
            names = {"BOARD": path, "JOBS": jobs, "WORKERS": workers, "WORKER": 0, "DATABASE": database}
            yield Board(path, jobs, workers), {f"BENCH_{name}": str(value) for name, value in names.items()}

    @contextmanager
    def _workers(
        self,
        system: System,
        board: Board,
        variables: dict[str, str],
        workers: int = 1,
        *,
        role: str = "work",
        gently: bool = False,
    ) -> Iterator[list[Process]]:
        """So many worker processes, all of them begun at the same moment. They are killed afterwards, or may give work back first."""
        with ExitStack() as running:
            processes = [
                running.enter_context(self._started(system, role, variables | {"BENCH_WORKER": str(worker)}))
                for worker in range(workers)
            ]
            wait(board.ready, processes, lambda: "a worker did not start")
            board.slots[0] = 1
            yield processes
            if gently:
                for process in processes:
                    process.ask_to_end()

    def _program(self, system: System, role: str, variables: dict[str, str], *numbers: int) -> dict[str, Any]:
        """Run a program of the system to its end; what it said."""
        with self._started(system, role, variables, *numbers) as process:
            try:
                code = process.popen.wait(LIMIT)
            except subprocess.TimeoutExpired:
                raise Fault(f"{role}: not done in {LIMIT:.0f} s") from None
            said = [line for line in process.output() if line.startswith('{"version"')]
            if code or not said:
                process.tell()
                raise Fault(f"{role}: failed, exit code {code}")  # no words of its own: a page gets this
        found: dict[str, Any] = json.loads(said[-1])
        self.versions[system] = found["version"]
        return found

    @contextmanager
    def _started(self, system: System, role: str, variables: dict[str, str], *numbers: int) -> Iterator[Process]:
        python = sys.executable if system.folder in {OURS, FLOOR} else str(python_of(BUILD / system.folder))
        program = HERE / "peers" / system.folder / "jobs.py"
        spare = frozenset(below(os.getpid()))
        with tempfile.TemporaryDirectory(prefix="outlast-bench-", ignore_cleanup_errors=True) as folder:
            output, errors = Path(folder, "output"), Path(folder, "errors")
            home = Path(folder, "home")
            home.mkdir()
            with output.open("wb") as out, errors.open("wb") as err:
                popen = subprocess.Popen(
                    [python, str(program), role, system.variant, *map(str, numbers)],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    cwd=home,
                    env=self._environment(system, folder) | variables,
                )
            process = Process(popen, output, errors)
            try:
                yield process
            finally:
                process.kill()
                if system.folder not in {OURS, FLOOR}:
                    end(spare)  # what it has left behind
                reap(below(os.getpid()))

    def _environment(self, system: System, home: str) -> dict[str, str]:
        """Little of what is set here; no tool is to send anything home."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        path = str(HERE)
        if system.folder in {OURS, FLOOR} and os.environ.get("PYTHONPATH"):
            path += os.pathsep + os.environ["PYTHONPATH"]
        return kept | {"HOME": home, "PYTHONPATH": path, "DO_NOT_TRACK": "1"}


@dataclass(frozen=True)
class Process:
    """A program of a system that runs."""

    popen: subprocess.Popen[bytes]
    _output: Path
    _errors: Path

    def output(self) -> list[str]:
        return self._output.read_text(errors="replace").splitlines()

    def tell(self) -> None:
        """Print the last of what it had to say."""
        said = self._errors.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        print("\n".join(said[-20:]), file=sys.stderr)

    def ask_to_end(self) -> None:
        """Let it give back what it has begun."""
        self.popen.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(PARTING)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()


def wait(
    until: Callable[[], bool],
    processes: list[Process],
    told: Callable[[], str],
    *,
    pause: float = POLL,
    limit: float | None = None,
) -> None:
    """Wait until it is so, for as long as a measurement may take, and as long as the processes live."""
    limit = LIMIT if limit is None else limit
    last = time.monotonic() + limit
    while not until():
        for process in processes:
            if (code := process.popen.poll()) is not None and not until():
                process.tell()
                raise Fault(f"a worker ended with exit code {code}: {told()}")
        if time.monotonic() > last:
            for process in processes:
                process.tell()
            raise Fault(f"not done in {limit:g} s: {told()}")
        time.sleep(pause)


def prove(board: Board, jobs: int) -> None:
    """Every job ran, and none twice."""
    times = board.times()
    if times != [1] * jobs:
        raise Fault(f"{times.count(0):,} of {jobs:,} jobs did not run, {sum(one > 1 for one in times):,} ran twice")


@contextmanager
def held_open(database: str) -> Iterator[None]:
    """A transaction that has seen something and then does nothing: what it may still want to see cannot be cleared away."""
    with psycopg.connect(database) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select count(*) from pg_class")
        yield
