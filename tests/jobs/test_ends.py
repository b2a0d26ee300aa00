"""How workers end: at once when they are idle, and with everything given back, however they end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import pytest
import trio

import forked
import outlast
from forked import Forked
from labor import Beside, jobs, laborer, living, notes, outcomes, wait_until
from outlast import observe
from outlast.jobs.worker import WorkResult
from outlast.observe.events import JobSucceeded
from outlast.store import open_store
from outlast.testing import FaultProxy

TESTS = Path(__file__).resolve().parent.parent
SAID = {
    "idle": {2},
    "drain": {"succeeded"},
    "signal": {"interrupted"},
    "second signal": {"interrupted"},
    "lease lost": {"queued", "succeeded"},  # it registers again, and may do the job once more before it ends
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["idle", "drain", "signal", "second signal", "lease lost"])
def test_everything_is_back_after_an_end(app, how):
    """Threads, sockets, files and children of a process that goes on: no more of any than before its worker began."""
    command = [sys.executable, str(TESTS / "ends.py"), app.store_url, app.name, how]
    done = forked.run(command, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {kind: count for kind, count in found["after"].items() if count > found["before"][kind]} == {}
    assert found["said"] in SAID[how]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["twice", "again and again", "anyio", "with all tasks"])
def test_a_worker_that_is_cancelled_more_than_once_gives_everything_back(app, how):
    """Its jobs cost no attempt, its lease is gone, its resources are closed, and no thread of it is left."""
    story, threads = [], set(threading.enumerate())

    @asynccontextmanager
    async def client():
        story.append("opened")
        yield "client"
        await asyncio.sleep(0)
        story.append("closed")

    @app.job
    async def long(_: str = outlast.use(client)) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            with suppress(asyncio.CancelledError):
                await goes_on.wait()
            await asyncio.to_thread(threading.Event().wait, 0.1)  # cleaning up takes its time

    handle = long.enqueue()
    begun, ending, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def in_a_scope():
        async with anyio.create_task_group() as group:
            group.start_soon(app.awork)
            await begun.wait()
            group.cancel_scope.cancel()
            asyncio.get_running_loop().call_soon(goes_on.set)
            await ending.wait()

    async def main():
        if how == "anyio":
            await in_a_scope()
            return
        task = asyncio.create_task(app.awork())
        await begun.wait()
        task.cancel()
        await ending.wait()
        if how == "with all tasks":
            return  # `asyncio.run` cancels all there are
        while not task.done():
            task.cancel()
            goes_on.set()
            await (asyncio.sleep(0) if how != "twice" else asyncio.wait([task]))
        assert task.cancelled()

    asyncio.run(main())
    assert (handle.status, handle.attempts, outcomes(handle)) == ("queued", 0, ["released"])
    assert (living(app), story) == ([], ["opened", "closed"])
    assert set(threading.enumerate()) <= threads


@pytest.mark.timeout(240)
def test_everything_is_back_after_an_end_without_a_store(postgres, postgres_app):
    """As above: the connections are cut and no new one is taken; the worker is told three times to end."""
    proxy = FaultProxy(postgres.socket).start()
    store = f"postgresql://postgres@127.0.0.1:{proxy.port}/{postgres.name}"
    command = [sys.executable, str(TESTS / "ends.py"), store, postgres_app.name, "store away"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Forked(command, text=True, **pipes) as process:
        said = process.stdout.readline()
        proxy.stop()
        out, err = process.communicate("\n", timeout=200)
    assert said == "ready\n", err
    assert process.returncode == 0, err
    found = json.loads(out)
    assert {kind: count for kind, count in found["after"].items() if count > found["before"][kind]} == {}
    assert found["said"] == "ended"


def test_threads_that_a_job_has_left_in_the_executor_of_the_loop_do_not_keep_its_worker(app):
    """They take all that there are, and do not end: the worker gives its lease back in another one."""
    go = threading.Event()

    @app.job
    async def leaves() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(100):
            loop.run_in_executor(None, go.wait, 200)

    leaves.enqueue()
    try:
        result = app.work(until_idle=True)
        assert (result.succeeded, living(app), go.is_set()) == (1, [], False)
    finally:
        go.set()


def test_no_thread_of_the_worker_is_left_when_it_has_ended(app):
    """Neither of its own nor of jobs that have ended: whatever they hold, such as the store of a test, can go."""

    @app.job
    async def kept() -> int:
        return await outlast.current().step("once", one)

    @app.job
    def blocking() -> None: ...

    async def one() -> int:
        return 1

    for _ in range(5):
        for kind in (kept, blocking, blocking):
            kind.enqueue()
        before = set(threading.enumerate())
        assert app.work(until_idle=True).succeeded == 3
        assert {thread.name for thread in set(threading.enumerate()) - before} == set()


class Loop(asyncio.SelectorEventLoop):
    """An event loop that writes down how long each wait was to be that has ended."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def call_at(self, when, callback, *args, context=None):
        seconds = max(0.0, when - self.time())

        def ring():
            self.waits.append(seconds)
            callback(*args)

        return super().call_at(when, ring, context=context)


def test_until_idle_returns_without_waiting_once_it_is_idle(app):
    """
    Within 50 ms of the last end: measured by what the worker has waited for since that was on record, whatever the
    machine has to do beside it.
    """

    @app.job
    async def quick() -> None: ...

    @app.job
    def blocking() -> None: ...

    for kind in (quick, blocking, quick, blocking):
        kind.enqueue()
    quick.options(delay=3600).enqueue()
    loop, told = Loop(), []
    unsubscribe = observe.subscribe(lambda event: told.append((event, len(loop.waits))))
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            result = runner.run(app.awork(until_idle=True))
            waited = loop.waits[max(count for event, count in told if isinstance(event, JobSucceeded)) :]
    finally:
        unsubscribe()
    assert (result.succeeded, result.later) == (4, 1)
    assert sum(waited) <= 0.05


@pytest.mark.timeout(240)
def test_a_rescued_job_holds_no_place_of_its_queue(app, tmp_path):
    """
    Row 13: a worker is killed in a queue where one job runs at a time. The place is free with the rescue, for the job
    itself and for all others, also when that job waits for its time after a second crash.
    """
    kinds = jobs(app, tmp_path)
    first = kinds["hold"].enqueue("a")
    for number in (1, 2):
        with laborer(app, tmp_path, concurrency=1) as process:
            wait_until(lambda: notes(tmp_path).count("begins a") == number, "the job has begun")  # noqa: B023
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    others = [kinds["quick"].enqueue(name) for name in "bcd"]
    (tmp_path / "go a").touch()
    result = app.work(queues={"default": 1}, until_idle=True)
    assert (result.succeeded, {other.status for other in others}) == (4, {"succeeded"})
    assert (outcomes(first), first.crashes) == (["crashed", "crashed", "succeeded"], 2)


@pytest.mark.timeout(240)
def test_a_rescued_job_that_waits_does_not_hold_up_its_queue(app, tmp_path):
    """Row 13: after its second crash the job is due in an hour; the others of its queue are done meanwhile."""
    kinds = jobs(app, tmp_path)
    kinds["hold"].retry = outlast.RetryPolicy(delays=[3600, 3600], jitter=0)
    first = kinds["hold"].enqueue("a")
    for number in (1, 2):
        with laborer(app, tmp_path, concurrency=1) as process:
            wait_until(lambda: notes(tmp_path).count("begins a") == number, "the job has begun")  # noqa: B023
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    others = [kinds["quick"].enqueue(name) for name in "bcd"]
    result = app.work(queues={"default": 1}, until_idle=True)
    assert (result.succeeded, result.later, {other.status for other in others}) == (3, 1, {"succeeded"})
    assert (first.status, outcomes(first)) == ("queued", ["crashed", "crashed"])


def test_awork_needs_an_event_loop_of_asyncio(sqlite_app):
    """Said before anything is claimed or the store is opened; what is named as the way out works."""
    app = sqlite_app

    @app.job
    def send() -> str:
        return "sent"

    handle = send.enqueue()
    said = "expected awork to be awaited in an event loop of asyncio, got: {}. "
    for run, found in [
        (lambda: anyio.run(app.awork, backend="trio"), "one of trio"),
        (lambda: trio.run(app.awork), "one of trio"),
        (lambda: app.awork().send(None), "no event loop"),
    ]:
        with pytest.raises(outlast.ConfigurationError, match=re.escape(said.format(found))):
            run()
    assert (handle.status, app.store.workers()) == ("queued", [])
    work = partial(app.work, until_idle=True)
    assert trio.run(trio.to_thread.run_sync, work).succeeded == 1
    assert handle.result() == "sent"


@pytest.mark.timeout(120)
def test_a_worker_that_is_asked_to_end_does_not_wait_for_its_store(sqlite_app, monkeypatch, tmp_path):
    """It has nothing in hand: it returns while the store is still being opened, and leaves no lease there."""
    app, begun, go_on, ended = sqlite_app, threading.Event(), threading.Event(), threading.Event()
    jobs(app, tmp_path)
    real = open_store

    def slowly(*args, **how):
        begun.set()
        assert go_on.wait(100)
        try:
            return real(*args, **how)
        finally:
            ended.set()

    monkeypatch.setattr("outlast.pipeline.home.open_store", slowly)
    beside = Beside(app)
    with beside:
        assert begun.wait(100)
    assert (beside.result, beside.worker.opened) == (WorkResult(), False)
    go_on.set()
    assert ended.wait(100)
    assert app.store.workers() == []


# --- code that is cut off, of jobs that have ended before ---


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["failed", "cancelled", "held and cancelled", "failed and requeued", "held"])
def test_a_job_that_has_ended_before_its_code_is_cut_off_is_told_apart(app, how, monkeypatch):
    """It failed for good by its timeout, or an operator has cancelled it: nobody does it again."""
    monkeypatch.setattr("outlast.jobs.worker.FAREWELL", 0.3)
    monkeypatch.setattr("outlast.jobs.running.GRACE", 0.05)
    inside, go_on = threading.Event(), threading.Event()
    again = outlast.RetryPolicy(max_attempts=2, initial_delay=0)

    @app.job(retry=again if how.startswith("held") else None, timeout=None if how == "cancelled" else 0.1)
    def stays() -> None:
        inside.set()
        assert go_on.wait(200)

    handle = stays.enqueue()
    try:
        with Beside(app, drain=0.0) as beside:
            assert inside.wait(200)
            if how == "cancelled":
                assert app.jobs.cancel(handle.id)
                wait_until(lambda: {one.why for one in beside.worker._running} == {"cancel"}, "its worker knows")
            else:
                wait_until(lambda: outcomes(handle) == ["timeout"], "its time is up")
            if how == "held and cancelled":
                assert app.jobs.cancel(handle.id)
            if how == "failed and requeued":
                app.jobs.requeue(handle.id)
        words = how.split()
        status = {"held": "queued", "requeued": "queued"}.get(words[-1], words[-1])
        assert (handle.status, beside.result.cut_off) == (status, 1)
        assert beside.worker.not_again == ({} if status == "queued" else {status: 1})
        if how == "cancelled":  # and not given back, although the store would call that cancelled as well
            (row,) = handle.history()
            assert (handle.error, row.outcome, row.error) == ("cancelled by an operator", "failed", handle.error)
        counts = (beside.result.failed, beside.result.cancelled, beside.result.requeued, beside.result.released)
        assert counts == {"failed": (1, 0, 0, 0), "cancelled": (0, 1, 0, 0), "held": (0, 0, 1, 0)}[words[0]]
    finally:
        go_on.set()
