"""
What is done to workers, and what must be true of their jobs afterwards: kills, stalls, restarts, cut connections.

A trial lets a few worker processes do so many jobs, and meanwhile strikes them. What is struck next waits until so many
attempts have been begun, never for a time: a slow machine takes longer, and finds the same.

Every attempt of a job writes a line when it begins and one when it comes to its end, with its job and the token of its
claim, into a file of its process. So in the end there are two stories, what ran and what is on record, and `account` counts
where they differ. `benchmarks/chaos_jobs.py` makes long trials, a test makes short ones.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

import outlast
import outlast.jobs.worker  # so that processes are forked with it
import standing
from outlast.calls.state import current_work
from outlast.jobs.doors import FAST
from outlast.store.upkeep import name_of
from outlast.testing import FaultProxy
from outlast.work import leases
from outlast.work.patience import Terms, terms
from servers.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

APP = "toil"
HANG = 200.0  # seconds in which nothing at all happens: it hangs
AHEAD = 150  # jobs that wait while something strikes, so that workers are busy then
SHORT = 0.1  # seconds without which any lease is renewed in time
CHUNK = 50  # that are enqueued at a time
CONCURRENCY = 16
TWICE = "to be said twice"
MAX_ENDED_ALONE = 20  # workers
_TRIES = 20  # for an answer that is to be lost
NOW = outlast.RetryPolicy(max_attempts=20, initial_delay=0.01, max_delay=0.1)

# Each worker is a fork of a process that has loaded everything.
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["job_trials"])


# -- jobs, and the process that does them ------------------------------------------------------------------------------


class Log:
    """A file of one process: a line for every attempt that begins or ends here, as soon as it does."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def line(self, what: str) -> tuple[int, int]:
        """Write that the attempt of the job which runs here `begins`, `ends` or `raises`; its job and its token."""
        job = current_work.get().job  # type: ignore[union-attr]
        self._write(f"{what} {job.id} {job.made} {job.token}")
        return job.id, job.token

    def late(self, since: float) -> None:
        """Write that this process did not run since then."""
        self._write(f"late {since:.6f} 0 0")

    def refused(self) -> None:
        """Write that the system has refused something."""
        self._write("refused 0 0 0")

    def _write(self, text: str) -> None:
        os.write(self._file, f"{text} {os.getpid()} {time.monotonic():.6f}\n".encode())


def declare(app: outlast.App, folder: Path, log: Log) -> dict[str, Any]:
    """The jobs, by kind. A result names its job, so that one of another job is found out."""

    def result(n: int) -> list[int]:
        job, token = log.line("ends")
        return [n, job, token]

    @app.job(retry=NOW)
    async def brief(n: int) -> list[int]:
        log.line("begins")
        await asyncio.sleep(n % 40 / 1000)
        return result(n)

    @app.job(retry=NOW, queue="threads")
    def blocking(n: int) -> list[int]:
        log.line("begins")
        time.sleep(0.02 + n % 100 / 1000)
        return result(n)

    @app.job(retry=NOW, queue="threads")
    def long(n: int) -> list[int]:
        """Still runs when a worker goes on that had it before."""
        log.line("begins")
        with every_descriptor(log) if shortage.leaks else nullcontext():
            time.sleep(1 + n % 3)
        return result(n)

    @app.job(retry=NOW)
    async def flaky(n: int) -> list[int]:
        """Fails at first."""
        log.line("begins")
        await asyncio.sleep(n % 20 / 1000)
        if outlast.current().attempt == 1:
            log.line("raises")
            raise ConnectionResetError("once more")
        return result(n)

    @app.job(retry=NOW)
    async def twice(n: int) -> list[int]:
        """Fails at first, after a while, and takes long when it is tried again: whoever says once more how it failed finds it running."""
        log.line("begins")
        await asyncio.sleep(0.3)
        if outlast.current().attempt == 1:
            log.line("raises")
            raise ConnectionResetError(TWICE)
        await asyncio.sleep(1.5)
        return result(n)

    @app.job(retry=NOW)
    async def broken(n: int) -> None:
        log.line("begins")
        await asyncio.sleep(n % 20 / 1000)
        log.line("raises")
        raise outlast.PermanentFailure("never")

    @app.job(retry=NOW)
    def hold(n: int) -> list[int]:
        """Ends when it may."""
        log.line("begins")
        while not (folder / "go").exists():
            time.sleep(0.02)
        return result(n)

    return app.kinds


def kind_of(n: int) -> str:
    if n % 25 == 9:
        return "long" if n % 50 == 9 else "twice"
    return ("broken", "flaky", "blocking")[n % 10] if n % 10 < 3 else "brief"


def key_for(n: int) -> str:
    return str(n)


def toil(
    store: str, app: str, folder: str, number: int, ttl: float, concurrency: int, host: str, starved: str = ""
) -> None:
    """
    Work until it is ended, in this process. With a `host`, others take it for a process of another machine, of which nobody
    can tell at once that it is dead. What a worker is `starved` of, the system refuses to it.
    """
    errors = os.open(f"{folder}/{number}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    if host:
        leases._host = lambda: f"{host}/boot/1"
    log = Log(Path(folder, f"{number}.log"))
    if starved:
        starve(starved, number, log)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # whatever ends the trial ends this, too
    threading.Thread(target=_watch, args=(log, ttl / 10), daemon=True).start()
    terms.set(Terms(ttl=ttl))
    home = outlast.App(app, store=store)
    declare(home, Path(folder), log)
    home.work(concurrency=concurrency)


def _watch(log: Log, longest: float) -> None:
    """Note when this machine has no time for this process: its lease may run out then, which is nobody's fault."""
    before = time.monotonic()
    while True:
        time.sleep(0.05)
        now = time.monotonic()
        if now - before > longest:
            log.late(before)
        before = now


# -- what the system refuses to a worker -------------------------------------------------------------------------------

DESCRIPTORS, THREADS, PROC, HOSTS = "no descriptors", "no threads", "hidden /proc", "equal host names"
MAX_DESCRIPTORS = 256
FIRST_UID = 4001
FIRST_PID_SPACE = "pid:[4026531836]"  # the number of the first PID name space on every Linux machine
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 1, 4, 8
_CAPABILITY_VERSION, _CAP_DAC_OVERRIDE = 0x20080522, 1
_CLONE_NEWNS, _CLONE_NEWPID = 0x00020000, 0x20000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18


@dataclass
class Shortage:
    """Of this process."""

    leaks: bool = False  # a long job holds all descriptors that are left
    holds: threading.Lock = field(default_factory=threading.Lock)  # one job at a time does
    threads: int = 0  # of the pool for jobs, that were to be started


shortage = Shortage()


def starve(what: str, number: int, log: Log) -> None:
    """Let this process meet a shortage from now on. Those of /proc and of host names need root. The others are logged."""
    if what == DESCRIPTORS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_DESCRIPTORS, MAX_DESCRIPTORS))
        shortage.leaks = True
    elif what == THREADS:
        _refuse_threads(log)
    elif what == PROC:
        _system("unshare", _CLONE_NEWNS)
        _mount(b"none", b"/", flags=_MS_REC | _MS_PRIVATE)
        _mount(b"proc", b"/proc", b"proc", options=b"hidepid=2")
        _become_user(FIRST_UID + number)
        if Path("/proc/1").exists():
            raise RuntimeError("the processes of other users can be seen")
    elif what == HOSTS:
        _look_like_another_machine()
    else:
        raise ValueError(what)


@contextmanager
def every_descriptor(log: Log) -> Iterator[None]:
    """Hold all descriptors that are left, unless another job does."""
    held: list[int] = []
    alone = shortage.holds.acquire(blocking=False)
    try:
        while alone:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                log.refused()
                break
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        if alone:
            shortage.holds.release()


def _refuse_threads(log: Log) -> None:
    """Refuse the first thread for jobs, and every second one after it, as the system does at its limit."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("outlast-job"):
            shortage.threads += 1
            if shortage.threads % 2:
                log.refused()
                raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = refuse  # type: ignore[method-assign]


def _become_user(uid: int) -> None:
    """Be another user, who can load every module, but can neither see nor signal the processes of other users."""
    _LIBC.prctl(_PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    capabilities = 1 << _CAP_DAC_OVERRIDE
    _system("capset", (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)(capabilities, capabilities))
    _LIBC.prctl(_PR_SET_DUMPABLE, 1)  # as a service manager's exec would leave it: /proc/self can be read


def _look_like_another_machine() -> None:
    """Have a boot id and process numbers of its own, and the host name and the PID name space that every machine may have."""
    _system("unshare", _CLONE_NEWNS | _CLONE_NEWPID)
    if child := os.fork():  # only children are in the new PID name space
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    _mount(b"none", b"/", flags=_MS_REC | _MS_PRIVATE)
    _mount(b"proc", b"/proc", b"proc")
    with tempfile.NamedTemporaryFile("w") as boot:
        boot.write(f"{uuid.uuid4()}\n")
        boot.flush()
        _mount(boot.name.encode(), b"/proc/sys/kernel/random/boot_id", flags=_MS_BIND)
    readlink = Path.readlink

    def read(path: Path) -> Path:
        return Path(FIRST_PID_SPACE) if str(path) == "/proc/self/ns/pid" else readlink(path)

    Path.readlink = read  # type: ignore[method-assign]


def _mount(
    source: bytes, target: bytes, kind: bytes | None = None, flags: int = 0, options: bytes | None = None
) -> None:
    _system("mount", source, target, kind, ctypes.c_ulong(flags), options)


def _system(name: str, *args: Any) -> None:
    if getattr(_LIBC, name)(*args):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


class Toiler:
    """A worker process, by the number of its log."""

    def __init__(self, number: int, address: Callable[[], tuple[Any, ...]]) -> None:
        self.number = number
        self._process = _forks.Process(target=toil, args=address(), daemon=True)
        self._process.start()
        self.killed = False
        self.stopped_at: float | None = None
        self.stalls: list[tuple[float, float]] = []
        self.had: set[int] = set()  # jobs when it was stopped
        self.place = 0  # among those that work at a time

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def living(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self.killed = True
        self._process.kill()
        self._process.join()

    def end(self) -> int | None:
        """Let it drain; its exit code, None if it does not come to an end."""
        self._process.terminate()
        self._process.join(HANG)
        return self._process.exitcode

    def stand_still(self) -> None:
        """Stop all its threads, and wait until they have."""
        self.stopped_at = self.stopped_at or time.monotonic()
        standing.stand_still(self.pid)

    @property
    def stands_still(self) -> bool:
        return standing.stands_still(self.pid)

    def go_on(self) -> None:
        assert self.stopped_at is not None
        os.kill(self.pid, signal.SIGCONT)
        if (now := time.monotonic()) - self.stopped_at > SHORT:
            self.stalls.append((self.stopped_at, now))
        self.stopped_at = None


# -- what ran, what is on record, and where they differ ----------------------------------------------------------------


@dataclass
class Ran:
    """One attempt, as its process has written it."""

    job: int
    number: int
    token: int
    worker: int  # the number of the process
    began: float
    ended: float | None = None
    raised: bool = False


class Story(NamedTuple):
    """What the log of a process says."""

    ran: list[Ran]
    late: list[tuple[float, float]]
    refused: int


def read_log(path: Path) -> Story:
    """What ran in a process, when the machine had no time for it, and how often the system refused something."""
    refused = 0
    ran, late = dict[tuple[int, int], Ran](), list[tuple[float, float]]()
    again: list[Ran] = []
    worker = int(path.stem)
    for text in path.read_text().splitlines():
        what, job, number, token, _, at = text.split()
        if what == "late":
            late.append((float(job), float(at)))
            continue
        if what == "refused":
            refused += 1
            continue
        key = int(job), int(token)
        if what == "begins":
            if key in ran:
                again.append(ran[key])
            ran[key] = Ran(*key[:1], int(number), key[1], worker, float(at))
        else:
            ran[key].ended, ran[key].raised = float(at), what == "raises"
    return Story([*again, *ran.values()], late, refused)


@dataclass
class Tally:
    """What was found. The first five must be zero; `notes` says what was wrong."""

    lost: int = 0
    wrong: int = 0
    changed: int = 0
    doubled: int = 0
    missing: int = 0
    repeated: int = 0  # attempts in flight when something struck, made again
    poisoned: int = 0
    attempts: int = 0  # that were begun
    refused: int = 0  # descriptors and threads
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, note: str, count: int = 1) -> None:
        setattr(self, name, getattr(self, name) + count)
        self.notes.append(f"{name}: {note}")

    def __bool__(self) -> bool:
        return bool(self.lost or self.wrong or self.changed or self.doubled or self.missing)


class JobNow(NamedTuple):
    """A job as it is on record."""

    id: int
    n: int  # its argument, which is its key too
    kind: str
    state: str
    made: int
    crashes: int
    error_class: str | None
    stop_reason: str | None
    result: Any


class Attempt(NamedTuple):
    """An attempt as it is on record; `recorded` is when, on this machine's monotonic clock."""

    number: int
    token: int
    outcome: str
    recorded: float


class Struck(NamedTuple):
    """What explains that an attempt was made again: processes that were killed, and times in which one stood still."""

    killed: frozenset[int]
    stalls: dict[int, list[tuple[float, float]]]
    everywhere: list[tuple[float, float]]  # restarts of the database
    ttl: float

    def explains(self, ran: Ran, recorded: float) -> bool:
        """Whether a lease could run out, or its owner die, between the begin of an attempt and the record of its crash."""
        if ran.worker in self.killed:
            return True
        since = ran.began - self.ttl
        return any(
            began < recorded and ended > since for began, ended in (*self.stalls.get(ran.worker, ()), *self.everywhere)
        )


def account(
    asked: Collection[int],
    jobs: Sequence[JobNow],
    attempts: dict[int, list[Attempt]],
    ran: Iterable[Ran],
    struck: Struck,
) -> Tally:
    """Compare what ran with what is on record. `asked` are the arguments, which are the keys too, of all jobs enqueued."""
    tally = Tally()
    ran_of: dict[int, list[Ran]] = {}
    for one in ran:
        tally.attempts += 1
        ran_of.setdefault(one.job, []).append(one)
    keys = Counter(job.n for job in jobs)
    for n in {*asked} - keys.keys():
        tally.add("lost", f"the job {kind_of(n)} {n} is not on record")
    for n, times in keys.items():
        if times > 1 or n not in asked:
            tally.add("wrong", f"the job {kind_of(n)} {n} is {times} times on record")
    for number in ran_of.keys() - {job.id for job in jobs}:
        tally.add("wrong", f"job {number} ran and is not on record")
    for job in jobs:
        _check(tally, job, attempts.get(job.id, []), ran_of.get(job.id, []), struck)
    return tally


def _check(tally: Tally, job: JobNow, attempts: list[Attempt], ran: list[Ran], struck: Struck) -> None:
    by_token = {attempt.token: attempt for attempt in attempts}
    crashed = sum(attempt.outcome == "crashed" for attempt in attempts)
    if job.state not in {"succeeded", "failed"}:
        tally.add("lost", f"job {job.id} is {job.state} although nothing is left to do")
    if [attempt.number for attempt in attempts] != [*range(1, job.made + 1)] or len(by_token) != len(attempts):
        tally.add("missing", f"job {job.id} has {job.made} attempts, on record are {attempts}")
    if crashed != job.crashes:
        tally.add("wrong", f"job {job.id} has {job.crashes} crashes, on record are {crashed}")
    for token, times in Counter(one.token for one in ran).items():
        if times > 1:
            tally.add("doubled", f"job {job.id} was begun {times} times under one claim ({token})", times - 1)
    for one in ran:
        attempt = by_token.get(one.token)
        if attempt is None or attempt.number != one.number:
            tally.add("missing", f"job {job.id}: attempt {one.number} of claim {one.token} ran and is not on record")
        elif attempt.outcome in {"crashed", "released"}:
            if struck.explains(one, attempt.recorded):
                tally.repeated += 1
            else:
                tally.add("doubled", f"job {job.id}: {one} is on record as {attempt}, and nothing had struck it")
    _check_end(tally, job, attempts, {one.token: one for one in ran}, crashed)


def _check_end(tally: Tally, job: JobNow, attempts: list[Attempt], ran: dict[int, Ran], crashed: int) -> None:
    """Whether each attempt on record is one that ran like that, and the job's end follows from the last one."""
    for attempt in attempts:
        one = ran.get(attempt.token)
        came = one is not None and one.ended is not None
        if attempt.outcome == "succeeded" and not (came and one is not None and not one.raised):
            tally.add("wrong", f"job {job.id}: {attempt} has succeeded, but did not come to its end: {one}")
        elif attempt.outcome == "failed" and not (came and one is not None and one.raised):
            tally.add("wrong", f"job {job.id}: {attempt} has failed, but raised nothing: {one}")
        elif attempt.outcome not in {"succeeded", "failed", "crashed", "released"}:
            tally.add("wrong", f"job {job.id}: nothing of it can end as {attempt}")
    last = attempts[-1] if attempts else None
    if any(attempt.outcome == "succeeded" for attempt in attempts[:-1]):
        tally.add("wrong", f"job {job.id} was begun again after its success: {attempts}")
    if job.state == "succeeded":
        if last is None or last.outcome != "succeeded" or job.result != [job.n, job.id, last.token]:
            tally.add("wrong", f"job {job.id} ({job.kind} {job.n}) has succeeded with {job.result} after {last}")
        if job.kind == "broken":
            tally.add("wrong", f"job {job.id} has succeeded, which it cannot")
    elif job.state == "failed" and job.stop_reason == "poison":
        tally.poisoned += 1
        if crashed != 3 or last is None or last.outcome != "crashed":
            tally.add("wrong", f"job {job.id} is said to end its workers, on record are {attempts}")
    elif job.state == "failed" and (job.kind != "broken" or last is None or last.outcome != "failed"):
        tally.add(
            "wrong", f"job {job.id} ({job.kind}) has failed with {job.error_class}, {job.stop_reason}: {attempts}"
        )


# -- a trial -----------------------------------------------------------------------------------------------------------

KILL, STALL, RESTART, CUT, ANSWER = "kill", "stall", "restart", "cut", "answer"


@dataclass
class JobTrial:
    """So many jobs (more, if all of them are begun before everything has struck), so many workers, and what strikes them how often."""

    store: str  # "sqlite" or "postgres"
    jobs: int
    workers: int = 4
    kills: int = 0
    stalls: int = 0
    restarts: int = 0
    cuts: int = 0
    starved: str = ""  # of what
    answers: int = 0  # that are lost: what was committed is said again, and somebody else has the job by then
    ttl: float = FAST
    most: float = 1500.0  # seconds in which it must be over
    seed: int = 1
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    say: Callable[[str], None] = lambda _: None

    def run(self) -> Tally:
        """Make it; what was found."""
        began = time.monotonic()
        with ExitStack() as open_now:
            folder = Path(open_now.enter_context(tempfile.TemporaryDirectory(prefix="outlast-jobs-", dir=memory())))
            server = open_now.enter_context(Postgres()) if self.store == "postgres" else None
            # One for each worker, and one for who enqueues.
            proxies = [
                open_now.enter_context(FaultProxy(server.socket)) for _ in range(self.workers + 1) if server is not None
            ]
            trial = _Trial(self, folder, server, proxies)
            open_now.callback(trial.close)
            self.tally = trial.run()
        self.seconds = time.monotonic() - began
        return self.tally


def memory() -> str | None:
    """A folder in memory, if there is one: thousands of commits need not wait for a disk."""
    return "/dev/shm" if not os.environ.get("TMPDIR") and os.access("/dev/shm", os.W_OK) else None


class _Trial:
    """A trial that is being made."""

    def __init__(self, trial: JobTrial, folder: Path, server: Postgres | None, proxies: list[FaultProxy]) -> None:
        self._trial = trial
        self._folder = folder
        self._server = server
        self._proxies = proxies  # the last one is that of who enqueues
        self._dice = random.Random(f"{trial.seed}{trial.store}")
        self._direct = server.dsn if server is not None else f"{folder}/store.db"
        # What is enqueued goes the way that is cut; what is looked at does not.
        self._app = outlast.App(APP, store=self._by(-1))
        self._eye = outlast.App(APP, store=self._direct)
        self._kinds = declare(self._app, folder, Log(folder / "none"))
        self._workers: list[Toiler] = []
        self._all: list[Toiler] = []
        self._restarts: list[tuple[float, float]] = []
        self._asked = 0  # jobs that are on record, as the store says
        self._most = sys.maxsize  # while something is to strike, there are more of them
        self._ends: dict[int, tuple[Any, ...]] = {}
        self._kept: set[tuple[Any, ...]] = set()
        self._found: list[tuple[Toiler, str]] = []
        self._changes: list[str] = []
        self._ended_alone: list[str] = []
        self._read: dict[Path, tuple[int, int]] = {}  # of each log: bytes, and attempts begun
        self._jobs: set[bytes] = set()  # that have been begun
        self._looked = 0.0
        self._stalls = 0
        self._unanswered = 0
        self._clocks = time.monotonic() - time.time()
        self._over_at = time.monotonic() + trial.most

    def _by(self, place: int) -> str:
        """The address of the store for who has this place."""
        return (
            f"postgresql://postgres:@127.0.0.1:{self._proxies[place].port}/postgres" if self._proxies else self._direct
        )

    def close(self) -> None:
        for worker in self._all:
            if worker.living:
                worker.kill()
        self._app.store.close()
        self._eye.store.close()

    def run(self) -> Tally:
        """From the first job to the last."""
        trial, plan = self._trial, self._plan()
        self._app.store.stats()
        if trial.starved == PROC:  # each worker is of another user
            for path in (self._folder, *self._folder.iterdir()):
                path.chmod(0o777)
        self._enqueue(AHEAD)
        for _ in range(trial.workers):
            self._start()
        for gap, what in plan:
            before = self._begun()[0]
            self._until(lambda enough=before + gap: self._begun()[0] >= enough)
            self._strike(what)
        self._most = max(trial.jobs, self._asked)
        self._until(lambda: not self._stalled() and self._done())
        for worker in self._workers:
            if (code := worker.end()) not in {0, -signal.SIGTERM, 128 + signal.SIGTERM}:
                self._ended_alone.append(f"worker {worker.number} ended with {code}: {self._errors(worker)}")
        self._look()
        trial.jobs = self._asked
        return self._count()

    def _plan(self) -> list[tuple[int, str]]:
        """What strikes, and how many attempts are begun before each."""
        trial = self._trial
        strikes = [KILL] * trial.kills + [STALL] * trial.stalls + [RESTART] * trial.restarts + [CUT] * trial.cuts
        strikes += [ANSWER] * trial.answers
        self._dice.shuffle(strikes)
        # What was ahead may be done while a stall or a restart goes on.
        rests = 2 * trial.stalls + trial.restarts + trial.answers + 1
        last = max(trial.jobs // 4, int(0.9 * trial.jobs) - rests * AHEAD)
        places = sorted(self._dice.randrange(last) for _ in strikes)
        return [(place - before, what) for before, place, what in zip([0, *places], places, strikes, strict=False)]

    # -- what happens all the time

    def _until(self, true: Callable[[], bool], *, feed: bool = True) -> None:
        """Wait for something, and enqueue, start, look and wake in the meantime."""
        moved, before = time.monotonic(), (0, 0, 0)
        while not true():
            begun, different = self._begun()
            if feed:
                self._enqueue(different + AHEAD)
            self._replace()
            self._wake()
            if time.monotonic() - self._looked > 1.0:
                self._look()
            now = begun, len(self._ends), len(self._kept)
            if now != before:
                moved, before = time.monotonic(), now
            if time.monotonic() > self._over_at:
                raise RuntimeError(f"it is not over after {self._trial.most:g} s: {now}\n{self._stuck()}")
            if time.monotonic() - moved > HANG:
                raise RuntimeError(
                    f"nothing happens any more: {now} attempts begun, jobs ended, attempts ended\n{self._stuck()}"
                )
            time.sleep(0.01)

    def _begun(self) -> tuple[int, int]:
        """Attempts that have been begun, and jobs. Of each log only what is new is read."""
        for path in self._folder.glob("*.log"):
            read, begun = self._read.get(path, (0, 0))
            if path.stat().st_size > read:
                with path.open("rb") as file:
                    file.seek(read)
                    new = file.read()
                # By their numbers: who claims a job may be killed before its first attempt begins.
                self._jobs.update(re.findall(rb"begins (\d+) ", new))
                self._read[path] = read + len(new), begun + new.count(b"begins")
        return sum(begun for _, begun in self._read.values()), len(self._jobs)

    def _enqueue(self, most: int) -> None:
        """Enqueue up to so many jobs in all. Where no answer comes they are enqueued again: their keys keep them single."""
        most = min(most, self._most)
        while self._asked < most:
            some = range(self._asked, min(self._asked + CHUNK, self._most))
            for kind, job in self._kinds.items():
                arguments = [{"n": n} for n in some if kind_of(n) == kind]
                keyed = job.options(unique_key=key_for, priority=some[0] % 3)
                if arguments:
                    self._insist(lambda keyed=keyed, arguments=arguments: keyed.enqueue_many(arguments))
            self._asked = some.stop

    def _insist(self, do: Callable[[], Any]) -> Any:
        until = time.monotonic() + HANG
        while True:
            try:
                return do()
            except Exception as error:
                if outlast.classify(error).category == "permanent" or time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def _start(self) -> None:
        number = len(self._all)
        # Every second one is of another machine, as far as others can tell. Those that are starved can look at each other.
        host = f"elsewhere-{number}" if number % 2 and not self._trial.starved else ""
        place = min({*range(self._trial.workers)} - {worker.place for worker in self._workers})
        args = (
            self._by(place),
            APP,
            str(self._folder),
            number,
            self._trial.ttl,
            CONCURRENCY,
            host,
            self._trial.starved,
        )
        worker = Toiler(number, lambda: args)
        worker.place = place
        self._all.append(worker)
        self._workers.append(worker)

    def _replace(self) -> None:
        for worker in [*self._workers]:
            if not worker.living:
                self._ended_alone.append(f"worker {worker.number} ended by itself: {self._errors(worker)}")
                self._workers.remove(worker)
                if len(self._ended_alone) > MAX_ENDED_ALONE:
                    raise RuntimeError(f"workers do not start: {self._ended_alone[-1]}")
                self._start()

    def _errors(self, worker: Toiler) -> str:
        path = self._folder / f"{worker.number}.err"
        return path.read_text()[-2000:] if path.exists() else ""

    # -- what strikes

    def _strike(self, what: str) -> None:
        if what in {STALL, ANSWER}:  # both need another worker that goes on
            self._until(lambda: not self._stalled(), feed=False)
        if what == STALL:
            self._stall()
            return
        if what == KILL:
            self._kill()
        elif what == CUT:
            self._cut()
        elif what == ANSWER:
            self._lose_answer()
        else:
            self._restart()

    def _kill(self) -> None:
        worker = self._dice.choice([worker for worker in self._workers if worker.stopped_at is None])
        worker.kill()
        self._workers.remove(worker)
        self._start()

    def _stalled(self) -> list[Toiler]:
        return [worker for worker in self._workers if worker.stopped_at is not None]

    def _stall(self) -> None:
        """Stop a worker in the middle of a long job, outside of transactions of SQLite's: nobody else could end those."""
        self._until(self._in_hand)
        worker, key = self._dice.choice(self._found)
        self._stop(worker)
        worker.had = {job for (job,) in self._fetch(f"select id from outlast_jobs where worker = '{key}'")}
        self._stalls += 1

    def _in_hand(self, kind: str = "long", more: str = "1 = 1") -> bool:
        """Find the workers that have jobs of this kind, each with the key of its lease; whether there are any."""
        rows = self._fetch(f"select worker from outlast_jobs where state = 'processing' and kind = '{kind}' and {more}")
        busy, leased = {key for (key,) in rows}, self._leased()
        self._found = [
            (worker, key)
            for worker in self._workers
            if (key := leased.get(worker.pid, "")) in busy and worker.stopped_at is None
        ]
        return bool(self._found)

    def _stop(self, worker: Toiler) -> None:
        worker.stand_still()
        while self._server is None and _writes(worker.pid, self._folder / "store.db-shm"):
            worker.go_on()
            time.sleep(0.002)
            worker.stand_still()

    def _leased(self) -> dict[int, str]:
        """The processes that have leases, with their keys; those whose lease a sweep has ended are not among them."""
        rows = self._fetch("select owner, key from outlast_leases where kind = 'worker'")
        return {int(owner.split(":")[1]): key for owner, key in rows}

    def _wake(self) -> None:
        """
        Let a worker go on that stands still, once others have taken its lease and one of them has begun with a job that
        it had: its late result would meet that attempt.
        """
        stalled = self._stalled()
        leased = self._leased() if stalled else {}
        for worker in stalled:
            if worker.pid not in leased:
                if self._taken_over(worker.had):
                    worker.go_on()
            elif not worker.stands_still:  # a system lets stopped processes go on when the shell of their group ends
                self._stop(worker)

    def _taken_over(self, jobs: set[int]) -> bool:
        """Whether one of these is being processed, or all of them have ended."""
        if not jobs:
            return True
        among = f"id in ({', '.join(map(str, jobs))})"
        states = [state for (state,) in self._fetch(f"select state from outlast_jobs where {among}")]
        return "processing" in states or {*states} <= {"succeeded", "failed"}

    def _lose_answer(self) -> None:
        """
        Lose the answer to a commit of a worker. What it has said is on record: a job has failed, and another worker tries it
        again. Then its connections are cut, and it says the same once more.
        """
        for _ in range(_TRIES):
            self._until(lambda: self._in_hand("twice", "made = 1"))
            worker, key = self._dice.choice(self._found)
            began, proxy = time.monotonic(), self._proxies[worker.place]
            proxy.hold_back(TWICE.encode(), b"COMMIT\0")
            mine = (
                "select 1 from outlast_jobs join outlast_job_attempts on job = id and outlast_job_attempts.worker = "
                f"'{key}' where kind = 'twice' and state = 'processing' and outlast_jobs.worker <> '{key}'"
            )
            before = len(self._fetch(mine))
            until = began + self._trial.ttl  # it may have said nothing of the kind
            self._until(lambda: len(self._fetch(mine)) > before or time.monotonic() > until)  # noqa: B023
            lost = len(self._fetch(mine)) > before
            proxy.cut()
            worker.stalls.append((began, time.monotonic()))
            if lost:
                self._unanswered += 1
                return
        raise RuntimeError(f"no answer could be lost in {_TRIES} tries")

    def _cut(self) -> None:
        """Cut all connections: the clients' side, or the server's."""
        if self._dice.random() < 0.7:
            for proxy in self._proxies:
                proxy.cut()
        else:
            with psycopg.connect(self._direct, autocommit=True) as connection:
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
                )

    def _restart(self) -> None:
        assert self._server is not None
        began = time.monotonic()
        self._server.stop("immediate")
        self._server.start()
        self._restarts.append((began, time.monotonic()))

    # -- what is on record

    def _fetch(self, statement: str) -> list[Any]:
        def fetch() -> list[Any]:
            with self._eye.store._database.reading() as tx:
                return [tuple(row) for row in tx.rows(statement)]

        rows: list[Any] = self._insist(fetch)
        return rows

    def _look(self) -> None:
        """What has ended must stay as it is: jobs, and attempts too."""
        kept = {tuple(row) for row in self._fetch("select job, number, token, outcome from outlast_job_attempts")}
        ends = {
            row[0]: tuple(row)
            for row in self._fetch(
                "select id, state, ended, token, made, result, error_class, stop_reason, letter from outlast_jobs "
                "where state in ('succeeded', 'failed', 'cancelled')"
            )
        }
        self._changes += [
            f"job {job} was {before}, is {ends.get(job)}"
            for job, before in self._ends.items()
            if ends.get(job) != before
        ]
        self._changes += [f"the attempt {row} is not on record any more" for row in self._kept - kept]
        self._ends, self._kept = ends, kept
        self._looked = time.monotonic()
        trial = self._trial
        trial.say(
            f"{trial.store}: {len(ends):,} of {trial.jobs:,} jobs ended, {sum(worker.killed for worker in self._all)} kills, "
            f"{self._stalls} stalls, {len(self._restarts)} restarts"
        )

    def _done(self) -> bool:
        if self._asked < self._most:
            return False
        (left,) = self._fetch(
            "select count(*) from outlast_jobs where state not in ('succeeded', 'failed', 'cancelled')"
        )[0]
        return not left

    def _stuck(self) -> str:
        rows = self._fetch("select state, count(*) from outlast_jobs group by state")
        leases = self._fetch("select owner, until from outlast_leases where kind = 'worker'")
        return f"{rows}\n{leases}\n" + "\n".join(
            f"{worker.number} {worker.pid}: {self._errors(worker)}" for worker in self._workers
        )

    def _count(self) -> Tally:
        stories = {
            worker.number: read_log(path)
            for worker in self._all
            if (path := self._folder / f"{worker.number}.log").exists()
        }
        stalls = {
            worker.number: worker.stalls + stories[worker.number].late
            for worker in self._all
            if worker.number in stories
        }
        struck = Struck(
            frozenset(worker.number for worker in self._all if worker.killed), stalls, self._restarts, self._trial.ttl
        )
        columns = "id, unique_key, kind, state, made, crashes, error_class, stop_reason, result"
        jobs = [
            JobNow(number, int(name_of(key)), kind, *rest, self._result(kind, result))
            for number, key, kind, *rest, result in self._fetch(f"select {columns} from outlast_jobs order by id")
        ]
        attempts: dict[int, list[Attempt]] = {}
        for job, number, token, outcome, started, took in self._fetch(
            "select job, number, token, outcome, started, took from outlast_job_attempts order by job, number"
        ):
            recorded = (started + took) / 1e6 + self._clocks
            attempts.setdefault(job, []).append(Attempt(number, token, outcome, recorded))
        ran = [one for story in stories.values() for one in story.ran]
        tally = account(range(self._asked), jobs, attempts, ran, struck)
        tally.refused = sum(story.refused for story in stories.values())
        for note in self._changes:
            tally.add("changed", note)
        for note in self._ended_alone:
            tally.add("wrong", note)
        return tally

    def _result(self, kind: str, data: Any) -> Any:
        return None if data is None else self._kinds[kind].decode_result(bytes(data))


def _writes(pid: int, path: Path) -> bool:
    """Whether a process has the lock under which SQLite writes (byte 120 of the file beside the log)."""
    inode = f":{path.stat().st_ino}"
    for text in Path("/proc/locks").read_text().splitlines():
        fields = text.split()
        if "->" not in fields and fields[3:5] == ["WRITE", str(pid)] and fields[5].endswith(inode):
            first, last = fields[6:8]
            if int(first) <= 120 and (last == "EOF" or int(last) >= 120):
                return True
    return False


# -- how long until a job goes on elsewhere ----------------------------------------------------------------------------


def can_be_apart() -> bool:
    """Whether processes can have numbers of their own here, so that none can look whether another one lives."""
    command = [*_APART, "true"]
    return (
        shutil.which(command[0]) is not None
        and not subprocess.run(command, capture_output=True, check=False).returncode
    )


_APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


class Pair:
    """A worker that has a job and is killed, and one that waits for work: both programs of their own, in an app of their own."""

    def __init__(self, address: str, folder: Path, number: int, *, ttl: float, apart: bool) -> None:
        self._folder = folder
        self._numbers = 2 * number, 2 * number + 1
        self._terms = ttl, apart
        self._programs: list[subprocess.Popen[bytes]] = []
        self.app = outlast.App(f"{APP}-{number}", store=address)
        declare(self.app, folder, Log(folder / "none"))["hold"].enqueue(number)
        self._begin(self._numbers[0])

    def _begin(self, number: int) -> None:
        ttl, apart = self._terms
        command = [
            sys.executable,
            __file__,
            self.app.store_url,
            self.app.name,
            str(self._folder),
            str(number),
            str(ttl),
        ]
        # What the worker says is in a file; `unshare` itself grumbles about signals that it cannot block.
        self._programs.append(subprocess.Popen([*_APART, *command] if apart else command, stderr=subprocess.DEVNULL))

    def ready(self) -> None:
        """Wait until the first one has the job, and the second one has registered, too."""
        self._wait(lambda: self._began(0))
        self._begin(self._numbers[1])
        self._wait(lambda: len(self.app.store.workers()) == 2)

    def kill(self, *, after: float) -> float:
        """Kill the first one after so many seconds; the seconds until the second one has begun with its job."""
        time.sleep(after)
        killed_at = time.monotonic()
        os.kill(self._pid(self._programs[0]), signal.SIGKILL)
        self._wait(lambda: self._began(1))
        return self._began(1)[0] - killed_at

    def close(self) -> None:
        for program in self._programs:
            with suppress(ProcessLookupError, ValueError):
                os.kill(self._pid(program), signal.SIGKILL)
            program.wait()
        self.app.store.close()

    def _pid(self, program: subprocess.Popen[bytes]) -> int:
        """The worker itself, not what has started it."""
        _, apart = self._terms
        return int(Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text()) if apart else program.pid

    def _began(self, which: int) -> list[float]:
        path = self._folder / f"{self._numbers[which]}.log"
        return [one.began for one in read_log(path).ran] if path.exists() else []

    def _wait(self, true: Callable[[], object]) -> None:
        until = time.monotonic() + HANG
        while not true():
            if time.monotonic() > until:
                raise RuntimeError(f"it hangs: {[path.read_text()[-2000:] for path in self._folder.glob('*.err')]}")
            time.sleep(0.01)


def rescue_times(store: str, *, kills: int, ttl: float, apart: bool, together: int = 10, seed: int = 1) -> list[float]:
    """
    Seconds from the kill of a worker until its job has begun with another one; so many pairs of workers at a time. With
    `apart`, each is in a space of process numbers of its own, as in containers.
    """
    dice, taken = random.Random(seed), list[float]()
    with ExitStack() as open_now:
        folder = Path(open_now.enter_context(tempfile.TemporaryDirectory(prefix="outlast-jobs-", dir=memory())))
        address = open_now.enter_context(Postgres()).dsn if store == "postgres" else f"{folder}/store.db"
        for first in range(0, kills, together):
            with ExitStack() as of_these:
                pairs: list[Pair] = []
                for number in range(first, min(kills, first + together)):
                    pairs.append(Pair(address, folder, number, ttl=ttl, apart=apart))
                    of_these.callback(pairs[-1].close)
                for pair in pairs:
                    pair.ready()
                with ThreadPoolExecutor(together) as pool:  # at any moment between two beats
                    killing = [pool.submit(pair.kill, after=dice.uniform(0, ttl / 2)) for pair in pairs]
                    taken += [one.result() for one in killing]
    return taken


if __name__ == "__main__":
    toil(*sys.argv[1:4], int(sys.argv[4]), float(sys.argv[5]), 4, "")
