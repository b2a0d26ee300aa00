"""
What is done to runs and to replays, and what must be true afterwards: kills, stalls, cut connections, vanished files,
full disks, hostile values.

A trial does one of these so many times to runs or replays of `mended`, with one store and into one kind of sink.
Whatever happened, each output must be once in the sink of its own run, with the run's counts and its letters.
`benchmarks/chaos.py` makes many of them, a test makes a few.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psycopg

import doomed
import mended
import odd_values
import outlast
from mended import Found
from servers.disk import Disk
from servers.postgres import Postgres
from standing import stand_still
from stores import sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FILES = ("jsonl", "csv", "jsonl.gz", "parquet")
SINKS = (*FILES, "table")
LONG = 120.0  # seconds after which a process that says nothing hangs
TTL = 0.6  # seconds that a lease lasts where processes are stopped

# Each process is a fork of one that has loaded everything: what is tried begins at once.
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["trials", "pyarrow.parquet"])
stop = threading.Event()  # nothing new is begun


class Stopped(Exception):
    """Somebody does not want to wait for the rest."""


@dataclass
class Trial:
    """What is tried, how often so far, and what came of it."""

    what: str
    of: str  # "run" or "replay"
    store: str  # "sqlite" or "postgres"
    sink: str
    wanted: int  # times
    size: int  # items or letters of a round
    seed: int = 1
    times: int = 0
    found: Found = field(default_factory=Found)
    seconds: float = 0.0
    torn: int = 0  # kills that left half a line in the file
    tails: int = 0  # kills that left lines behind what was committed
    error: str = ""

    def __post_init__(self) -> None:
        self.dice = random.Random(f"{self.seed}{self.what}{self.of}{self.store}{self.sink}")

    @property
    def name(self) -> str:
        return f"{self.what}, {self.of}, {self.store}, {self.sink}"

    def run(self, servers: Servers) -> None:
        """Make rounds of it until it was tried often enough."""
        began, rounds = time.monotonic(), 0
        try:
            while self.times < self.wanted and not self.found:
                rounds += 1
                if rounds > 20 + 5 * self.wanted:
                    raise RuntimeError("it ends before anything can be done to it: make the rounds larger")
                with servers.place(self) as place:
                    ROUNDS[self.what](self, place)
        except Stopped:
            self.error = "not finished"
        finally:
            self.seconds += time.monotonic() - began

    def counted(self, times: int = 1) -> None:
        self.times += times
        if stop.is_set():
            raise Stopped


class Process:
    """A process that something is done to."""

    def __init__(self, act: Callable[..., None], *args: Any, **how: Any) -> None:
        self._ear, mouth = _forks.Pipe(duplex=False)
        self._process = _forks.Process(target=_act, args=(mouth, act, args, how), daemon=True)
        self._process.start()
        mouth.close()
        self.said: list[str] = []

    def hear(self, seconds: float = LONG) -> str | None:
        """What it says next, "" when it is gone; None if it says nothing for so long."""
        try:
            if not self._ear.poll(seconds):
                return None
            said: str = self._ear.recv()
        except EOFError:
            return ""
        self.said.append(said)
        return said

    def begun(self) -> Process:
        if not self.hear():
            raise RuntimeError("the process does not begin")
        return self

    def end(self, seconds: float = LONG) -> str | None:
        """Its last words; None if it does not come to an end for so long."""
        until = time.monotonic() + seconds
        while (said := self.hear(max(0.0, until - time.monotonic()))) != "":
            if said is None:
                return None
        self._process.join()
        return self.said[-1] if self.said else "nothing: it died"

    def live(self, seconds: float) -> bool:
        """Let it live for so long; whether it still does."""
        return self.end(seconds) is None

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._ear.close()

    def stop(self) -> None:
        """Have all its threads stand still, and wait until they do. One that has come to its end meanwhile does too."""
        assert self._process.pid is not None
        stand_still(self._process.pid)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has come to its end
            os.kill(self._process.pid or 0, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _act(mouth: Any, act: Callable[..., None], args: Any, how: Any) -> None:
    act(mouth.send, *args, **how)


class Servers:
    """PostgreSQL servers, one for each trial that goes on; each trial has a database of its own."""

    def __init__(self) -> None:
        self._free: list[Postgres] = []
        self._all = ExitStack()
        self._lock = threading.Lock()
        self._databases = 0

    @contextmanager
    def server(self) -> Iterator[tuple[Postgres, str]]:
        with self._lock:
            server = self._free.pop() if self._free else self._all.enter_context(Postgres())
            self._databases += 1
            name = f"trial{self._databases}"
        try:
            yield server, server.database(name).dsn
        finally:
            with suppress(RuntimeError):
                server.execute(f"drop database if exists {name} with (force)")
            with self._lock:
                self._free.append(server)

    @contextmanager
    def place(self, trial: Trial) -> Iterator[Place]:
        with ExitStack() as open_now:
            folder = Path(open_now.enter_context(tempfile.TemporaryDirectory(prefix="outlast-trial-")))
            server, address = None, ""
            if trial.store == "postgres" or (trial.what == CUT):
                server, address = open_now.enter_context(self.server())
            yield Place(trial, folder, server, address)

    def close(self) -> None:
        self._all.close()


class Place:
    """Where one round happens: a store, sinks, and a database for both where there is one."""

    def __init__(self, trial: Trial, folder: Path, server: Postgres | None, address: str) -> None:
        self.trial = trial
        self.server = server
        self.address = address
        self.folder = folder
        self.store = address if trial.store == "postgres" else f"{folder}/store.db"
        self.sinks = folder / "sinks"
        self.sinks.mkdir()

    @property
    def pattern(self) -> str:
        if self.trial.sink != "table":
            return f"{self.sinks}/out*.{self.trial.sink}"
        return f"{self.address or f'sqlite:///{self.sinks}/data.db'}#made"

    def prepare(self) -> None:
        """Make the tables of the store and of the sinks, and for a replay the letters."""
        with self.app() as app:
            app.store.stats()
        if self.trial.sink == "table":
            tables = [f"create table made{run} (n integer, text varchar(200))" for run in range(mended.RUNS)]
            if self.address:
                with psycopg.connect(self.address, autocommit=True) as connection:
                    for each in tables:
                        connection.execute(each)
            else:
                with closing(sqlite3.connect(self.sinks / "data.db")) as connection:
                    for each in tables:
                        connection.execute(each)
        if self.trial.of == "replay":
            with self.start("fail") as process:
                self.expect(process.end(), "done")

    def start(self, what: str = "", *, key: str | None = "", **how: Any) -> Process:
        """A process that makes the runs, or a replay under a key or without one, as it comes."""
        what = what or self.trial.of
        if key == "":
            key = "mend" if self.trial.dice.random() < 0.5 else None
        return Process(mended.act, self.store, self.pattern, self.trial.size, what, key, **how).begun()

    def expect(self, said: str | None, *wanted: str) -> None:
        if said not in wanted:
            self.trial.found.add(f"expected it to say {' or '.join(wanted)}, got: {said}", wrong=1)

    def finish(self) -> None:
        """Let it come to its end, with and without a key, and look."""
        for key in ("mend", None) if self.trial.of == "replay" else (None,):
            with self.start(key=key) as process:
                said = process.end()
            if key is None or not (said or "").startswith(
                "partial_success"
            ):  # a replay tries no letter twice under its key
                self.expect(said, "done", "nothing to do")
        self.look()

    def look(self) -> None:
        with self.app() as app:
            self.trial.found.join(
                mended.faults(app, self.pattern, self.trial.size, self.fetch if self.address else None)
            )

    def fetch(self, statement: str) -> list[Any]:
        with psycopg.connect(self.address) as connection:
            return connection.execute(statement).fetchall()

    @contextmanager
    def app(self) -> Iterator[outlast.App]:
        app = outlast.App(mended.APP, store=self.store)
        try:
            yield app
        finally:
            app.store.close()

    def records(self) -> dict[str, Any]:
        """What is on record of items, letters and outputs."""
        with self.app() as app:
            return {
                name: sorted(map(repr, sql(app.store, statement)))
                for name, statement in {
                    "items": "select run, seq, items.status, attempts from outlast_items items, outlast_runs "
                    "where run = number and kind = 'run'",
                    "attempts": "select run, seq, stage, pass, attempts.number from outlast_attempts attempts",
                    "letters": "select id, case when status = 'replaying' then 'open' else status end "
                    "from outlast_dead_letters",
                    "counts": "select run, succeeded, dlq from outlast_progress, outlast_runs "
                    "where run = number and kind = 'run' and read > 0",
                }.items()
            }

    def under_way(self) -> bool:
        """Whether a run or a replay that is not over has its lease."""
        with self.app() as app:
            held = (
                "select count(*) from outlast_runs, outlast_shards "
                "where run = number and owner <> '' and status = 'running'"
            )
            return bool(sql(app.store, held)[0][0])

    def stop_outside_of_transactions(self, process: Process) -> None:
        """
        Stop it where another one can go on: nobody can end a transaction of SQLite but the process that has begun it.
        """
        process.stop()
        while any(map(_is_locked, self.folder.rglob("*.db"))):
            process.signal(signal.SIGCONT)
            time.sleep(0.002)
            process.stop()

    def outputs(self) -> dict[str, str]:
        """What is in the sinks; a file without a byte has nothing."""
        if self.trial.sink == "table":
            fetch = self.fetch if self.address else None
            return {str(run): str(sorted(mended.rows_of(self.pattern, run, fetch))) for run in range(mended.RUNS)}
        return {
            str(path.relative_to(self.sinks)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.sinks.rglob("*")
            if path.is_file() and (path.stat().st_size or self.trial.what != STALLED)
        }


def _is_locked(path: Path) -> bool:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("begin exclusive")
        except sqlite3.OperationalError:
            return True
        connection.execute("rollback")
        return False


# -- kills -------------------------------------------------------------------------------------------------------------


def kill_long_run(trial: Trial, place: Place) -> None:
    """A long run with skips and failures is killed so often, then comes to its end."""
    sink, longest, ends = place.sinks / "out.jsonl", 0.95, dict[int, str]()
    store = outlast.App(doomed.APP, store=place.store).store

    def start() -> Process:
        return Process(doomed.act, place.store, str(sink), trial.size, 0.02 if trial.size > 6000 else 0.0).begun()

    def look(now: doomed.Recorded) -> None:
        changed = sum(now.ends.get(seq) != status for seq, status in ends.items())
        missing = sum(max(0, number - now.attempts[seq]) for seq, number in now.needed.items())
        if changed or missing:
            trial.found.add(f"{changed} ends changed, {missing} attempts missing", wrong=changed + missing)
        ends.update(now.ends)

    with closing(store):
        while trial.times < trial.wanted:
            with start() as process:
                lives = process.live((0.05 + 0.95 * trial.dice.random()) * longest)
            if not lives:
                raise RuntimeError(f"it was done after {trial.times} kills: more items are needed")
            written = sink.read_bytes() if sink.exists() else b""
            run = store.find_run(doomed.PIPELINE, doomed.KEY)
            offset = 0 if run is None else store.shard_state(run.number, 0).sink_offset or 0
            trial.torn += bool(written) and not written.endswith(b"\n")
            trial.tails += len(written) > offset
            trial.counted()
            if run is not None and trial.times % 10 == 0:
                look(doomed.recorded(store))
                if len(ends) / trial.size > 0.95 * trial.times / trial.wanted:
                    longest *= 0.8  # this machine is quick: there must be something left for the other kills
        with start() as process:
            place.expect(process.end(1800), "completed")
        look(doomed.recorded(store))
        letters = sum(stat.count for stat in store.stats())
        trial.found.join(doomed.faults(ends, letters, sink, trial.size))


def kill(trial: Trial, place: Place) -> None:
    """Kill runs or replays until none are left; a round more if there are more kills to make."""
    place.prepare()
    lives = True
    while trial.times < trial.wanted and lives:
        with place.start() as process:
            lives = process.live(0.02 + trial.dice.random() * 0.4)
        if lives:
            trial.counted()
    place.finish()


# -- stalls ------------------------------------------------------------------------------------------------------------


def stall(trial: Trial, place: Place) -> None:
    """
    Stop one past its lease, have another one do it, let the first go on: it writes nothing any more. Where the file
    system has locks the other one must leave the sink alone.
    """
    place.prepare()
    how: dict[str, Any] = {"ttl": TTL, "locks": trial.sink in FILES and trial.dice.random() < 0.3, "key": "mend"}
    with place.start(**how) as first:
        if not first.live(0.02 + trial.dice.random() * 0.5):
            return
        place.stop_outside_of_transactions(first)
        time.sleep(TTL * 1.2)
        if not place.under_way():
            return  # there is nothing that it could lose
        with place.start(**how) as second:
            answer = second.end(10 if place.address and trial.sink == "table" else LONG)
            if answer is None:  # it waits for a transaction of the first, in which the rows are moved into the table
                first.signal(signal.SIGCONT)
                first.end()
                second.end()
            else:
                _wake(trial, place, first, answer, locks=how["locks"])
        trial.counted()
    place.finish()


def _wake(trial: Trial, place: Place, first: Process, answer: str, *, locks: bool) -> None:
    """Another one has given this answer: the first goes on."""
    outputs, records = place.outputs(), place.records()
    first.signal(signal.SIGCONT)
    late = first.end() or "nothing"
    if locks and ("another process writes to it" in answer or "not tried" in answer):
        # The sink was left to the first one, which goes on, or has lost its replay and ends: all of it is looked at in the end.
        if late == "nothing":
            trial.found.add("expected the first one to come to its end, got: nothing", wrong=1)
        return
    place.expect(answer, "done")
    # "done" is true where all of its items were on record when it was stopped, and only the run's own line was not.
    if late == "nothing":
        trial.found.add("expected the first one to come to its end, got: nothing", wrong=1)
    if changed := {*outputs.items()} ^ {*place.outputs().items()}:
        trial.found.add(f"the first one has changed the sink: {sorted({name for name, _ in changed})}", wrong=1)
    if changed := [name for name, rows in place.records().items() if rows != records[name]]:
        trial.found.add(f"the first one has changed {', '.join(changed)}", wrong=1)


# -- cut connections ---------------------------------------------------------------------------------------------------

_SESSIONS = (
    "select count(pg_terminate_backend(pid)) from pg_stat_activity "
    "where datname = current_database() and pid <> pg_backend_pid()"
)


def cut(trial: Trial, place: Place) -> None:
    """End all sessions, or restart the server, again and again: it waits, and comes to its end by itself."""
    place.prepare()
    assert place.server is not None
    with place.start() as process:
        while trial.times < trial.wanted and process.live(0.02 + trial.dice.random() * 0.3):
            if trial.dice.random() < 0.15:
                place.server.stop(trial.dice.choice(["fast", "immediate"]))
                place.server.start()
                trial.counted()
            else:
                with psycopg.connect(place.address, autocommit=True) as connection:
                    (ended,) = connection.execute(_SESSIONS).fetchone() or (0,)
                trial.counted(bool(ended))
        place.expect(process.end(), "done")
    place.finish()


# -- vanished files ----------------------------------------------------------------------------------------------------

WAYS = ("deleted", "truncated", "replaced", "replaced by one of the same size", "folder gone")


def vanish(trial: Trial, place: Place) -> None:
    """
    Between two kills the files of the sinks are not what they were: nothing is begun, nothing changes; put back, it
    goes on.
    """
    place.prepare()
    lives = True
    while trial.times < trial.wanted and lives:
        with place.start() as process:
            while (lives := process.live(0.01)) and not _under_way(place):
                pass  # nothing is written yet
            lives = lives and process.live(trial.dice.random() * 0.1)
        if not lives or not _under_way(place):
            continue
        way = WAYS[trial.times % len(WAYS)]
        aside = place.folder / "aside"
        place.sinks.rename(aside)  # the very files come back: nothing committed marks a copy
        shutil.copytree(aside, place.sinks)
        _spoil(place.sinks, way)
        outputs, records, folder = place.outputs(), place.records(), place.sinks.exists()
        with place.start() as process:
            answer = process.end() or "nothing"
        if answer == "done" or not (str(place.sinks) in answer or "not tried" in answer):
            trial.found.add(f"{way}: expected an error that names the file, got: {answer}", wrong=1)
        if outputs != place.outputs() or folder != place.sinks.exists():
            trial.found.add(
                f"{way}: it has left other files: {sorted(outputs)} before, {sorted(place.outputs())} now", wrong=1
            )
        if changed := [name for name, rows in place.records().items() if rows != records[name]]:
            trial.found.add(f"{way}: it has changed {', '.join(changed)}", wrong=1)
        shutil.rmtree(place.sinks, ignore_errors=True)
        aside.rename(place.sinks)
        trial.counted()
    place.finish()


def _under_way(place: Place) -> bool:
    """Whether a run that is not complete has something in its sink."""
    with place.app() as app:
        for run in range(mended.RUNS):
            record = app.store.find_run(mended.PIPELINE, f"k{run}")
            if (
                record is not None
                and record.status != "completed"
                and app.store.shard_state(record.number, 0).sink_offset
            ):
                return True
    return False


def _spoil(folder: Path, way: str) -> None:
    if way == "folder gone":
        shutil.rmtree(folder)
        return
    for path in [*folder.iterdir()]:
        size = path.stat().st_size
        if way == "truncated":
            os.truncate(path, size // 20)  # surely less than was committed
            continue
        path.unlink()
        if way == "replaced":
            path.write_bytes(b'{"n": 0}\n')
        elif way != "deleted":
            path.write_bytes(b"x" * (size - 1) + b"\n" if size else b"")


# -- full disks --------------------------------------------------------------------------------------------------------


def fill(trial: Trial, place: Place) -> None:
    """
    The disk of the sinks, or that of the store, is full all at once; it waits for room, or stops and goes on when it
    is started again.
    """
    disk = Disk("16m")
    try:
        if trial.what == FULL_STORE:
            place.store = f"{disk.folder}/store.db"
        else:
            place.sinks = disk.folder / "sinks"
            place.sinks.mkdir()
        _fill(trial, place, disk.folder / "ballast")
    finally:
        disk.close()


def _fill(trial: Trial, place: Place, ballast: Path) -> None:
    place.prepare()
    waits = trial.dice.random() < 0.5
    with place.start(**({} if waits else {"patience": 0.2})) as process:
        if not process.live(0.02 + trial.dice.random() * 0.4):
            return
        with ballast.open("wb", buffering=0) as file:
            for piece in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while True:
                        file.write(bytes(piece))
        heard = process.hear()
        if heard == "done":
            return
        if waits and heard == "waiting":
            ballast.unlink()
            place.expect(process.end(), "done")
        else:  # what has not begun does not wait
            answer = process.end() or ""
            # Half a batch that was taken back may have left just enough room.
            if answer != "done" and not any(
                word in answer for word in ("No space left", "full", "Make room", "disk I/O error")
            ):
                trial.found.add(f"expected an error about the full disk, got: {answer}", wrong=1)
            ballast.unlink()
    trial.counted()
    place.finish()


# -- hostile values ----------------------------------------------------------------------------------------------------


def values(trial: Trial, place: Place) -> None:
    """Values of every kind into the sink and back; what it has no place for is that row's dead letter."""
    count = min(trial.size, trial.wanted - trial.times)
    seed = trial.dice.random()
    with Process(
        odd_values.act, place.store, place.address, str(place.sinks), trial.sink, trial.of, seed, count
    ) as process:
        said = process.end()
    if not isinstance(said, Found):
        raise TypeError(f"expected the values to go through, got: {said}")
    trial.found.join(said)
    trial.counted(count)


LONG_RUN, KILLED, STALLED, CUT = "killed, a long run", "killed", "stalled", "cut connections"
VANISHED, FULL_SINK, FULL_STORE, VALUES = "vanished files", "full disk, sink", "full disk, store", "hostile values"
ROUNDS: dict[str, Callable[[Trial, Place], None]] = {
    LONG_RUN: kill_long_run,
    KILLED: kill,
    STALLED: stall,
    CUT: cut,
    VANISHED: vanish,
    FULL_SINK: fill,
    FULL_STORE: fill,
    VALUES: values,
}
