"""Workers whose event loop hangs: others take their jobs over, and signals end them."""

from __future__ import annotations

import asyncio
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import outlast
from forked import Forked
from labor import NOW, Beside, living, outcomes, wait_until
from outlast.jobs.hanging import Unheard
from outlast.jobs.worker import FENCE
from outlast.kernel.clock import REAL
from outlast.store.records import Lease
from outlast.work.leases import Heartbeat
from outlast.work.pulse import Pulse
from shells import Shell


@pytest.mark.failure(3, 11)
@pytest.mark.timeout(240)
def test_jobs_of_a_worker_whose_loop_hangs_are_done_elsewhere(app, on_terms, caplog):
    """A crash is on record for each, it is told once what blocks, and the worker registers again when its loop moves."""
    on_terms(ttl=1.0)
    release, hanging = threading.Event(), threading.Event()

    @app.job(retry=NOW, timeout=100)
    async def hangs() -> str:
        if outlast.current().attempt == 1:
            hanging.set()
            release.wait()
        return "done"

    @app.job(retry=NOW)
    async def innocent() -> str:
        if outlast.current().attempt == 1:
            begun.set()
            await asyncio.Event().wait()
        return "done"

    begun = threading.Event()
    handles = [innocent.enqueue()]
    with Beside(app) as first:
        begun.wait()
        handles.append(hangs.enqueue())
        hanging.wait()
        (key,) = living(app)
        try:
            with Beside(app):
                wait_until(lambda: all(one.status == "succeeded" for one in handles), "another worker has done them")
            assert living(app) == []
        finally:
            release.set()
        wait_until(lambda: living(app), "it has registered again")
        assert living(app) != [key]
        wait_until(lambda: first.worker.view().counts["lost"] == 2, "it knows what it has lost")
        handles.append(hangs.enqueue())
        wait_until(lambda: handles[-1].status == "succeeded", "it goes on")
    assert [outcomes(one) for one in handles] == [["crashed", "succeeded"], ["crashed", "succeeded"], ["succeeded"]]
    (told,) = [record.getMessage() for record in caplog.records if "event loop" in record.getMessage()]
    assert re.fullmatch(
        rf"the event loop of this worker has not moved for 1 s: the job {handles[1].id} \(hangs\) blocks it, at "
        r"test_hanging.py:\d+ in hangs, threading.py:\d+ in wait, .*\. What blocks must not be async\. The lease of this worker is "
        r"not renewed, so that other workers take its jobs over",
        told,
    ), told


@pytest.mark.timeout(240)
def test_a_loop_that_moves_again_before_anybody_took_over_loses_nothing(app, on_terms, caplog):
    """Its lease is renewed at once: no job is given back because that was not done while the loop hung."""
    on_terms(ttl=1.0)
    release, hanging, begun = threading.Event(), threading.Event(), threading.Event()
    ends = []

    @app.job(retry=NOW)
    async def hangs() -> str:
        hanging.set()
        release.wait()
        return "done"

    @app.job(retry=NOW)
    async def innocent() -> str:
        goes_on = asyncio.Event()
        ends.append((asyncio.get_running_loop(), goes_on))
        begun.set()
        await goes_on.wait()
        return "done"

    handles = [innocent.enqueue()]
    with Beside(app) as only:
        begun.wait()
        handles.append(hangs.enqueue())
        hanging.wait()
        heart = only.worker._tenure.heartbeat
        late = FENCE * 1.0
        wait_until(lambda: heart.hangs and REAL.clock.monotonic() - heart.renewed_at > late, "nothing is renewed")
        since = heart.renewed_at
        release.set()
        wait_until(lambda: not heart.hangs and heart.renewed_at > since, "the lease is renewed")
        (loop, goes_on), *_ = ends
        loop.call_soon_threadsafe(goes_on.set)
        wait_until(lambda: all(one.status == "succeeded" for one in handles), "both are done")
    assert [outcomes(one) for one in handles] == [["succeeded"]] * 2
    told = [record.getMessage() for record in caplog.records]
    assert told[1:] == ["the event loop of this worker moves again"], told


@contextmanager
def a_loop():
    """A loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_loop_is_counted_as_hanging_by_looks_it_does_not_answer():
    release, answers = threading.Event(), []
    with a_loop() as loop:
        pulse = Pulse(loop, lambda: answers.append(pulse.missed))
        assert pulse.look() == 0
        wait_until(lambda: answers, "it has answered")
        loop.call_soon_threadsafe(release.wait)
        assert [pulse.look() for _ in range(4)] == [0, 1, 2, 3]
        release.set()
        wait_until(lambda: len(answers) == 2, "it moves again")
        assert pulse.look() == 0
    wait_until(lambda: len(answers) == 3, "the last answer")
    assert [pulse.look() for _ in range(3)] == [0, 0, 0]  # a closed loop hangs for nobody


def test_nothing_is_renewed_while_the_loop_hangs_and_at_once_when_it_moves():
    release, story = threading.Event(), []

    def beat(lease):
        story.append("renewed")
        return lease, None

    def hung(hangs):
        story.append(f"hangs: {hangs}")

    lease = Lease(kind="worker", key="k", owner="o", token=1, until=0.0, ttl=400.0)
    with a_loop() as loop:
        heart = Heartbeat(
            beat, lease, loop, drop=lambda *_, **__: None, lost=story.append, requested=story.append, hung=hung
        )
        try:
            loop.call_soon_threadsafe(release.wait)
            for seen in (1, 2, 3, 4, 5, 5):  # its own rest lasts 100 s: it is woken for each look
                heart._wake.set()
                wait_until(lambda seen=seen: not heart._wake.is_set() and len(story) >= seen, "it has looked")
            wait_until(lambda: heart._pulse.missed == 5, "it has looked for the last time")
            assert (story, heart.hangs) == (["renewed"] * 4 + ["hangs: True"], True)
            release.set()
            wait_until(lambda: len(story) >= 7, "it beats again, although its rest is not over")
            assert (story[5:7], heart.hangs) == (["renewed", "hangs: False"], False)
        finally:
            release.set()
            heart.close()


@pytest.mark.parametrize(
    ("signals", "missed", "seconds", "ends"),
    [
        (1, 19, 1000, False),
        (1, 20, 29, False),
        (1, 20, 30, True),
        (2, 19, 1, False),
        (2, 20, 1, True),
        (3, 1, 1, False),
        (3, 2, 1, True),
    ],
)
def test_when_a_worker_that_was_asked_to_end_is_ended(signals, missed, seconds, ends):
    """Five seconds without an answer; after the first signal not before the drain is over, after the third at once."""
    unheard = Unheard(lambda: None, 30.0, str)
    unheard._came, unheard._first_at = [signal.SIGTERM] * signals, 5.0
    unheard._pulse = SimpleNamespace(look=lambda: None, missed=missed)
    assert unheard._is_stuck(5.0 + seconds) is ends


def test_signals_that_come_faster_than_a_loop_answers_end_nothing():
    release = threading.Event()
    with a_loop() as loop:
        loop.call_soon_threadsafe(release.wait)
        unheard = Unheard(lambda: loop, 30.0, str)
        unheard._came = [signal.SIGTERM] * 9
        assert [unheard._is_stuck(now) for now in (5.0, 5.0, 5.0, 5.1, 5.1, 5.25, 5.3, 5.5)] == [False] * 7 + [True]
        release.set()


JOBS = """
import ctypes, threading

import outlast

app = outlast.App("shop")


@app.job
async def python() -> None:
    print("hanging", flush=True)
    threading.Event().wait()


@app.job
async def native() -> None:
    "Locks a mutex twice: no signal interrupts that, and no handler of Python's runs."
    mutex, lock = ctypes.create_string_buffer(256), ctypes.CDLL(None).pthread_mutex_lock
    print("hanging", flush=True)
    lock(mutex)
    lock(mutex)
"""


def pending(pid):
    """Whether a signal is on its way: a second one of its kind would be the same."""
    try:
        return int(re.search("ShdPnd:\\s*(\\w+)", Path(f"/proc/{pid}/status").read_text())[1], 16)
    except OSError:
        return 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("kind", "numbers", "code"),
    [
        ("python", [signal.SIGTERM, signal.SIGTERM], 143),
        ("native", [signal.SIGINT, signal.SIGTERM], 130),
        ("native", [signal.SIGTERM] * 3, 143),
        ("python", [signal.SIGTERM], 143),
    ],
)
def test_signals_end_a_worker_whose_loop_hangs(tmp_path, kind, numbers, code):
    """Its exit code says that something was cut off, and its last words what."""
    shell = Shell(tmp_path, {"jobs.py": JOBS})
    id_ = shell.json(f"enqueue jobs.py:{kind}")["id"]
    process = shell.start("worker jobs.py:app --drain 0")
    assert process.stdout.readline() == "hanging\n"
    for number in numbers:
        process.send_signal(number)
        wait_until(lambda: not pending(process.pid), "the system has told it")
    _, said = process.communicate(timeout=200)
    assert process.returncode == code, said
    name = signal.Signals(code - 128).name
    assert (
        f"WARNING ended by {name}: the event loop of the worker does not move: the job {id_} ({kind}) blocks it" in said
    )
    assert "1 job was cut off. Another worker does it again." in said


ALONE = """
import os, signal, threading
from outlast.jobs.hanging import Unheard
from outlast.jobs.worker import FENCE
from outlast.kernel.clock import REAL

signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGINT, lambda *_: None)
with Unheard(lambda: None, 1000.0, str) as unheard:
    if not (child := os.fork()):
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    os.waitpid(child, 0)
    os.kill(os.getpid(), signal.SIGINT)
    while not unheard._came:
        threading.Event().wait(0.01)
    print(unheard._came)
print(signal.set_wakeup_fd(-1), [one.name for one in threading.enumerate()])
"""


def test_signals_of_a_child_do_not_count_and_nothing_is_left():
    done = Forked([sys.executable, "-c", ALONE], stdout=subprocess.PIPE, text=True)
    said, _ = done.communicate(timeout=200)
    assert said.splitlines() == ["[2]", "-1 ['MainThread']"]


@pytest.mark.parametrize("guard", [None, outlast.Guard(retry=None)], ids=["bare", "guard"])
def test_what_an_async_job_returns_after_its_time_is_no_result(app, caplog, guard):
    """The loop hears no timer while code blocks it: the time is judged when the code returns, also if it awaits before."""

    @app.job(timeout=0.1, retry=NOW, guard=guard)
    async def slow(*, awaits: bool) -> str:
        if outlast.current().attempt == 1:
            threading.Event().wait(0.15)
        if awaits:
            await asyncio.sleep(0)
        return f"attempt {outlast.current().attempt}"

    handles = [slow.enqueue(awaits=awaits) for awaits in (False, True)]
    app.work(until_idle=True, concurrency=1)
    assert [(one.result(), outcomes(one)) for one in handles] == [("attempt 2", ["timeout", "succeeded"])] * 2
    late = handles[0].history()[0]
    assert (late.error, late.error_class) == ("the attempt took longer than 0.1 s", "timeout")
    told = [record.getMessage() for record in caplog.records if "event loop was blocked" in record.getMessage()]
    for one, said in zip(handles, told, strict=True):
        assert re.match(rf"the job {one.id} \(slow\) returned after 0\.\d+ s, past its timeout of 0\.1 s, since", said)


def test_a_job_that_has_ended_with_its_transaction_after_its_time_has_succeeded(sqlite_app, caplog):
    app = sqlite_app

    @app.job(timeout=0.1, retry=NOW)
    async def slow() -> str:
        threading.Event().wait(0.15)
        with closing(sqlite3.connect(app.store_file)) as connection, connection:
            await outlast.current().afinish_in(connection, result="done")
        return "done"

    handle = slow.enqueue()
    app.work(until_idle=True)
    assert (handle.result(), outcomes(handle)) == ("done", ["succeeded"])
    assert "event loop was blocked" not in caplog.text


def test_a_wait_for_a_result_is_refused_in_the_loop_of_a_worker(app):
    """It would block the loop for ever, since the other job runs there too. What needs no wait is given."""

    @app.job(retry=None)
    async def inner() -> int:
        return 1

    @app.job(retry=None)
    async def outer() -> int:
        handle = inner.enqueue()
        with pytest.raises(outlast.ResultTimeoutError):
            handle.result(timeout=0)
        with pytest.raises(
            outlast.ConfigurationError, match=r"in the event loop of a worker.* Use `await handle.aresult\(\)`"
        ):
            handle.result()
        return await handle.aresult() + handle.result()

    @app.job(retry=None)
    def plain() -> int:
        return inner.enqueue().result()

    handles = [outer.enqueue(), plain.enqueue()]
    app.work(until_idle=True)
    assert [one.result() for one in handles] == [2, 1]
    assert asyncio.run(_waits_outside(inner.enqueue(), app)) == 1  # no worker is there any more


async def _waits_outside(handle, app):
    with Beside(app, until_idle=True):
        return handle.result()
