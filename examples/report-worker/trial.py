"""
One trial: all inputs, as a flow or as jobs, on one store. Worker processes do them while the services misbehave; then some
are killed, and the database is restarted, always in the middle of what the script says, and never by chance.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import report_jobs
from script import KILL, POISON

import outlast
from forked import LOADED, Forked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from script import Form, Input
    from services import Model, Objects, Table

HERE = Path(__file__).resolve().parent
QUEUE = "reports"
HELD = 60.0  # seconds that the model has where a worker is to be killed: longer than that takes


class Worker(Forked):
    """`outlast worker`, in a process of its own that has begun with everything loaded."""

    loaded = (
        f"{LOADED} boto3 jsonschema openai.resources.chat.completions psycopg outlast.flow.enqueued outlast.flow.runner "
        "outlast.components.steps.llm outlast.components.steps.postgres outlast.components.steps.s3 "
        "outlast.components.steps.doing.llm outlast.components.steps.doing.postgres outlast.components.steps.doing.s3"
    )


@dataclass
class Trial:
    """What a trial has: its inputs and its services, the address of its store, and how much of a hurry it is in."""

    form: Form
    store: str
    inputs: Sequence[Input]
    model: Model
    objects: Objects
    table: Table
    database: Any  # the server, which is restarted
    environment: dict[str, str]
    folder: Path
    hurry: float
    patience: float  # seconds that the model has for an answer
    workers: int = 2
    concurrency: int = 16
    most: float = 120.0  # seconds in which nothing happens: it hangs
    handles: dict[str, outlast.JobHandle[Any]] = field(default_factory=dict)
    killed: int = 0
    restarted: int = 0
    seconds: float = 0.0
    _workers: list[Worker] = field(default_factory=list)

    def run(self) -> None:
        began = time.monotonic()
        doomed = [one for one in self.inputs if one.story.kills]
        shaken = [one for one in self.inputs if one.story.restarts]
        others = [one for one in self.inputs if not (one.story.kills or one.story.restarts)]
        os.environ.update(self.environment)
        try:
            for what, do, those in (
                ("services that fail", self.misbehave, others),
                ("workers that are killed", self.kill, doomed),
                ("a database that restarts", self.restart, shaken),
            ):
                at = time.monotonic()
                do(those)
                print(f"{len(those):>4} inputs, and {what}: {time.monotonic() - at:.0f} s", flush=True)
        finally:
            for worker in [*self._workers]:
                self.end(worker, signal.SIGKILL)
        self.seconds = time.monotonic() - began

    def misbehave(self, inputs: Sequence[Input]) -> None:
        """Most of the inputs, with services that fail."""
        self.enqueue(inputs, self.patience)
        with self.working(self.workers, self.concurrency, self.patience):
            self.wait_for("all inputs have ended", self.nothing_left)

    def kill(self, inputs: Sequence[Input]) -> None:
        """
        One worker gets all of these, and is killed when each of them is where it is to be killed: its question has no answer,
        its object is written and nobody has said so, its row waits. Another worker goes on; some kill that one, too.
        """
        self.enqueue(inputs, HELD)
        asked, written = self.model.held, sum(KILL in one.story.faults.get("write", ()) for one in inputs)
        for number in range(1, POISON + 1):
            held = [one for one in inputs if one.story.kills >= number]
            asked += sum(KILL in one.story.faults.get("ask", ()) for one in held)
            waiting = sum(KILL in one.story.faults.get("update", ()) for one in held)
            must = asked, written, waiting, 0, 0, len(held)
            self.table.lock()
            worker = self.start(len(inputs), HELD)
            self.wait_for(f"inputs stand as {must}", lambda must=must: self.standing() == must)
            self.end(worker, signal.SIGKILL)
            self.killed += 1
            self.table.hang_up()
            self.table.unlock()
        with self.working(1, len(inputs), HELD):
            self.wait_for("those that went on have ended", self.nothing_left)

    def restart(self, inputs: Sequence[Input]) -> None:
        """
        The database is stopped, as by a crash, while all of these update their rows. The queue is paused until it is back: the
        waits are in a hurry, and a database is not.
        """
        self.enqueue(inputs, HELD)
        self.table.lock()
        with self.working(1, len(inputs), HELD):
            self.wait_for("all rows are being written", lambda: len(self.table.waiting()) == len(inputs))
            report_jobs.app.jobs.pause(QUEUE)
            self.database.stop("immediate")
            self.table.unlock()
            self.wait_for("all of them have failed", lambda: self.states()[2] == 0)
            self.database.start()
            self.restarted += 1
            report_jobs.app.jobs.resume(QUEUE)
            self.wait_for("they have ended", self.nothing_left)

    # -- parts

    def enqueue(self, inputs: Sequence[Input], patience: float) -> None:
        """One job for each input, by its name: a second one of that name would be the same job."""
        for one in inputs:
            if self.form == "jobs":
                handle: Any = report_jobs.process.options(unique_key=one.file).enqueue(one.file)
            else:
                params = {"file": one.file, "ask_ms": round(patience * 1000)}
                flow = outlast.Flow.load(HERE / "report.yaml", params=params)
                handle = flow.enqueue(run_key=one.file, app=report_jobs.app, queue=QUEUE, unique_key=one.file)
            self.handles[one.file] = handle

    def start(self, concurrency: int, patience: float) -> Worker:
        command = [sys.executable, "-m", "outlast.cli", "worker", "hurried.py:app", "--fast", "--no-progress"]
        command += ["--concurrency", str(concurrency), "--store", self.store]
        environment = {
            **os.environ,
            "HURRY": str(self.hurry),
            "MODEL_TIMEOUT": str(patience),
            "WAITS": str(self.folder / "waits.jsonl"),
            "PYTHONPATH": str(HERE),
        }
        log = os.open(self.folder / "workers.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)  # which it closes
        worker = Worker(
            command, cwd=HERE, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        self._workers.append(worker)
        return worker

    def end(self, worker: Worker, how: signal.Signals) -> None:
        self._workers.remove(worker)
        worker.send_signal(how)
        worker.wait()

    @contextmanager
    def working(self, count: int, concurrency: int, patience: float) -> Iterator[None]:
        workers = [self.start(concurrency, patience) for _ in range(count)]
        yield
        for worker in workers:
            self.end(worker, signal.SIGTERM)

    def standing(self) -> tuple[int, ...]:
        """How many inputs wait for the model, for S3 and for the table, and `states`."""
        return self.model.held, self.objects.stalled, len(self.table.waiting()), *self.states()

    def waits(self) -> dict[tuple[str, int], float]:
        """The wait that was decided after each attempt that another one followed, by job and attempt."""
        path = self.folder / "waits.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return {(job, attempt): delay for job, attempt, delay in map(json.loads, lines)}

    def states(self) -> tuple[int, int, int]:
        """How many jobs are due, due later, and being done."""
        stats = report_jobs.app.jobs.stats()
        return (
            sum(one.queued for one in stats),
            sum(one.scheduled for one in stats),
            sum(one.processing for one in stats),
        )

    def nothing_left(self) -> bool:
        """Whether all have ended, and what had to be undone is."""
        if self.states() != (0, 0, 0):
            return False
        return all(handle.compensation != "pending" for handle in self.handles.values())

    def wait_for(self, what: str, is_so: Callable[..., bool]) -> None:
        """It ends with an error if a worker has ended by itself, or if nothing has happened for too long."""
        until, before = time.monotonic() + self.most, self.standing()
        while not is_so():
            dead = [worker.returncode for worker in self._workers if worker.poll() is not None]
            if dead or time.monotonic() > until:
                said = (self.folder / "workers.log").read_text(errors="replace")[-3000:]
                raise SystemExit(f"expected that {what}, got: {before}, dead workers {dead}; they said:\n{said}")
            now = self.standing()
            if now != before:
                until, before = time.monotonic() + self.most, now
            threading.Event().wait(0.05)
