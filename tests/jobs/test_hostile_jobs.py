"""Jobs that do what no job should: the worker, or its successor, deals with each."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from dataclasses import dataclass

import pytest

import outlast
from labor import Beside, outcomes, wait_until
from outlast.jobs import outcome
from outlast.jobs.doors import made
from outlast.jobs.tenure import TurnBatch
from outlast.store import Store
from outlast.store.faults import StoreUnavailable
from outlast.store.records import Rescue
from outlast.testing import FaultProxy

NOW = outlast.RetryPolicy(max_attempts=2, initial_delay=0, jitter=0)


UNRECORDED = (
    "the end of 1 job is not on record: the worker was asked to stop while the store could not be used. This job will be "
    "run again by another worker."
)


def killed_by_itself() -> None:
    os._exit(7)


def greedy() -> int:
    """Runs into a limit of its own."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    return len(bytearray(1 << 34))


def stuck() -> None:
    threading.Event().wait(200)


def patient(seconds: float) -> str:
    threading.Event().wait(seconds)
    return f"attempt {outlast.current().attempt}, job {outlast.current().job_id}"


@pytest.mark.failure(9, 11)
@pytest.mark.timeout(120)
def test_a_job_that_blocks_the_event_loop_keeps_its_lease(app, on_terms):
    """Four times as long as the lease lasts, while another worker sweeps."""
    on_terms(ttl=0.5)
    runs = []

    @app.job(queue="blocking")
    async def blocks() -> str:
        runs.append(1)
        threading.Event().wait(2.0)
        return "done"

    handle = blocks.enqueue()
    with Beside(app):
        wait_until(lambda: runs, "it runs")
        assert app.work(until_idle=True, queues=["other"]).lost == 0
        wait_until(lambda: handle.status == "succeeded", "it is done")
    assert (outcomes(handle), len(runs)) == (["succeeded"], 1)


@pytest.mark.failure(20, 23)
@pytest.mark.timeout(120)
def test_a_job_of_ten_times_the_lease_runs_once(app, on_terms):
    """How long a job takes is no reason to take it from its worker."""
    on_terms(ttl=0.2)
    runs = []

    @app.job
    def long() -> str:
        runs.append(1)
        threading.Event().wait(2.0)
        return "done"

    handle = long.enqueue()
    with Beside(app), Beside(app):
        assert handle.result(100) == "done"
    assert (outcomes(handle), len(runs)) == (["succeeded"], 1)


@pytest.mark.timeout(120)
def test_a_job_that_forks(app):
    """A child that comes back from the job is no worker: it ends, and records nothing."""
    children = []

    @app.job
    def forks() -> str:
        child = os.fork()
        if child:
            children.append(child)
            return "parent"
        return "child"

    @app.job
    async def forks_too() -> str:
        child = os.fork()
        if child:
            children.append(child)
            return "parent"
        return "child"

    handles = [forks.enqueue(), forks_too.enqueue()]
    assert app.work(until_idle=True).succeeded == 2
    assert [handle.result() for handle in handles] == ["parent", "parent"]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]


@pytest.mark.timeout(200)
def test_jobs_in_processes_are_really_killed(app):
    """D-9: out of time, out of memory or ended by themselves: the worker goes on, and each is on record."""
    exits = app.job(isolation="process", retry=NOW)(killed_by_itself)
    eats = app.job(isolation="process", retry=NOW)(greedy)
    hangs = app.job(isolation="process", timeout=0.3, retry=NOW)(stuck)
    works = app.job(isolation="process", retry=NOW)(patient)
    handles = [exits.enqueue(), eats.enqueue(), hangs.enqueue(), works.enqueue(0.0)]
    result = app.work(until_idle=True)
    while result.later:
        result = app.work(until_idle=True)
    assert [outcomes(handle) for handle in handles] == [
        ["crashed", "crashed"],
        ["failed"] * len(handles[1].history()),
        ["timeout", "timeout"],
        ["succeeded"],
    ]
    assert (handles[0].history()[0].error_class, handles[3].result()) == (
        "worker_lost",
        f"attempt 1, job {handles[3].id}",
    )
    assert "MemoryError" in {row.error_type for row in handles[1].history()}


@pytest.mark.timeout(200)
def test_the_timeout_of_a_job_in_a_process_ends_its_guard_too(app):
    """It bounds the attempt of the job, retries inside included; the total timeout is another thing."""
    guard = outlast.Guard(total_timeout=100, retry=outlast.RetryPolicy(max_attempts=3, initial_delay=0, jitter=0))
    hangs = app.job(isolation="process", timeout=0.5, retry=NOW, guard=guard)(stuck)
    handle = hangs.enqueue()
    result = app.work(until_idle=True)
    while result.later:
        result = app.work(until_idle=True)
    assert (outcomes(handle), handle.status) == (["timeout", "timeout"], "failed")
    assert handle.history()[-1].stop_reason == "exhausted"


@pytest.mark.timeout(120)
def test_an_operators_cancellation_that_is_ignored_is_told(app, on_terms, monkeypatch, caplog):
    """The slot stays taken, and the job is nobody else's meanwhile; what it returns after all counts."""
    on_terms(ttl=0.4)
    monkeypatch.setattr("outlast.jobs.running.GRACE", 0.05)
    goes_on, begun = threading.Event(), []

    @app.job
    def deaf() -> str:
        begun.append(1)
        goes_on.wait(100)
        return "whole"

    handle = deaf.enqueue()
    with Beside(app):
        wait_until(lambda: begun, "it has begun")
        assert app.jobs.cancel(handle.id)
        wait_until(lambda: "goes on although it was cancelled" in caplog.text, "it is told")
        assert (handle.status, app.work(until_idle=True, queues=["other"]).succeeded) == ("processing", 0)
        goes_on.set()
        assert handle.result(100) == "whole"
    assert len(begun) == 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("signals", "drain", "farewell"), [(1, 0.1, 0.2), (2, 1000.0, 0.2), (3, 1000.0, 1000.0)], ids=str
)
def test_a_worker_ends_although_its_store_is_away(postgres, tmp_path, monkeypatch, signals, drain, farewell):
    """
    When its time to drain is over, at a second signal, and at a third one at once. What could not be recorded is raised;
    the job is on record as processing, and whoever sweeps brings it back.
    """
    monkeypatch.setattr("outlast.jobs.worker.FAREWELL", farewell)
    proxy = FaultProxy(postgres.socket).start()
    address = f"postgresql://postgres@127.0.0.1:{proxy.port}/{postgres.name}"
    app, direct = (outlast.App(f"away-{tmp_path.name}", store=where) for where in (address, postgres.dsn))
    goes_on, begun = threading.Event(), []

    def blocks() -> str:
        begun.append(1)
        goes_on.wait(100)
        return "done"

    app.job(blocks)
    handle = direct.job(blocks).enqueue()
    worker, errors = made(app, (), 4, until_idle=False, drain=drain), []

    def work():
        try:
            asyncio.run(worker.run())
        except StoreUnavailable as error:
            errors.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: begun, "it has begun")
    proxy.stop()
    goes_on.set()
    for _ in range(signals):
        worker.ask_soon()
    thread.join(100)
    assert errors == [UNRECORDED]
    assert handle.status == "processing"
    assert direct.work(until_idle=True).succeeded == 1
    assert (outcomes(handle), len(begun)) == (["crashed", "succeeded"], 2)
    app.store.close()
    direct.store.close()


@pytest.mark.failure(29)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_job_that_goes_on_after_its_time(app, kind, monkeypatch, caplog):
    """Recorded as a timeout, its slot stays taken, it is told, and nobody begins it before it has ended."""
    monkeypatch.setattr("outlast.jobs.running.GRACE", 0.05)
    goes_on, begun = threading.Event(), []

    def body():
        begun.append(outlast.current().attempt)

    @app.job(name="sync", retry=NOW, timeout=0.1)
    def sync_job() -> str:
        body()
        if len(begun) == 1:
            goes_on.wait(100)
        return f"attempt {outlast.current().attempt}"

    @app.job(name="async", retry=NOW, timeout=0.1)
    async def async_job() -> str:
        body()
        while len(begun) == 1 and not goes_on.is_set():
            try:
                await asyncio.to_thread(goes_on.wait, 0.01)
            except asyncio.CancelledError:
                continue
        return f"attempt {outlast.current().attempt}"

    handle = app.kinds[kind].enqueue()
    worker = made(app, (), 1, until_idle=False)
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    wait_until(lambda: outcomes(handle) == ["timeout"], "its time is up, and that is on record")
    assert app.store.job(int(handle.id)).state == "held"
    assert (len(worker._slots.free), handle.status, begun) == (0, "queued", [1])
    assert [[one.id for one in app.jobs.find(status=each)] for each in ("queued", "processing")] == [[handle.id], []]
    (stats,), (gauges,) = app.jobs.stats(), app.store.backlog().queues
    assert [(one.queued + one.scheduled, one.processing) for one in (stats, gauges)] == [(1, 0)] * 2
    assert "still runs although its time is up" in caplog.text
    goes_on.set()
    wait_until(lambda: handle.status == "succeeded", "it was tried again")
    worker.ask_soon()
    thread.join()
    assert (handle.result(), outcomes(handle), begun) == ("attempt 2", ["timeout", "succeeded"], [1, 2])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["held and cancelled", "failed", "cancelled"])
def test_a_requeued_job_waits_for_its_own_code(app, how, on_terms, monkeypatch):
    """Whatever the job has become while its code still runs: it is begun again when that has ended, never twice at a time."""
    monkeypatch.setattr("outlast.jobs.running.GRACE", 0.05)
    on_terms(ttl=2.0)
    goes_on, begun, ended = threading.Event(), [], []

    @app.job(retry=NOW if how != "failed" else None, timeout=0.1 if how != "cancelled" else 1.0)
    async def stays() -> str:
        first = not begun
        begun.append(len(ended))
        while first and not goes_on.is_set():
            try:
                await asyncio.to_thread(goes_on.wait, 0.01)
            except asyncio.CancelledError:
                continue
        ended.append(1)
        return "done"

    handle = stays.enqueue()
    with Beside(app):
        wait_until(lambda: begun, "it has begun")
        if how == "cancelled":
            assert app.jobs.cancel(handle.id)
        wait_until(handle.history, "its end is on record")
        if how == "held and cancelled":
            assert app.jobs.cancel(handle.id)
        assert handle.status == how.split()[-1]
        app.jobs.requeue(handle.id)
        assert app.store.job(int(handle.id)).state == "held"
        another = stays.enqueue()
        wait_until(lambda: another.status == "succeeded", "the worker claims what it may")
        assert handle.status == "queued"
        goes_on.set()
        wait_until(lambda: handle.status == "succeeded", "it was done again")
    assert begun == [0, 0, 2]
    assert app.store.job(int(handle.id)).worker is None


@pytest.mark.timeout(120)
def test_a_guard_of_a_blocking_job_leaves_its_thread(app):
    """D-9: the thread of the job's own guard goes on: as above."""
    goes_on, begun = threading.Event(), []

    @app.job(retry=NOW, guard=outlast.Guard(retry=None, timeout=0.1, isolation="thread"))
    def blocks() -> str:
        begun.append(1)
        if len(begun) == 1:
            goes_on.wait(100)
        return "done"

    handle = blocks.enqueue()
    with Beside(app):
        wait_until(lambda: outcomes(handle) == ["timeout"], "its time is up")
        assert app.store.job(int(handle.id)).state == "held"
        goes_on.set()
        wait_until(lambda: handle.status == "succeeded", "it was tried again")
    assert (outcomes(handle), len(begun)) == (["timeout", "succeeded"], 2)


@pytest.mark.timeout(120)
def test_a_store_that_is_away_fences_the_worker(postgres, tmp_path, on_terms):
    """Self-fencing: no beat lands for 0.7 of the lease: what runs is cancelled and given back, uncharged."""
    on_terms(ttl=1.0)
    cancelled = threading.Event()
    proxy = FaultProxy(postgres.socket).start()
    port = proxy.port
    app = outlast.App(f"fenced-{tmp_path.name}", store=f"postgresql://postgres@127.0.0.1:{port}/{postgres.name}")
    direct = outlast.App(app.name, store=postgres.dsn)
    tries = []

    async def long() -> str:
        tries.append(1)
        try:
            if len(tries) == 1:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "done"

    app.job(long)
    handle = direct.job(long).enqueue()
    with Beside(app):
        wait_until(lambda: tries, "it has begun")
        proxy.stop()
        assert cancelled.wait(100)
        with FaultProxy(postgres.socket, port=port):
            wait_until(lambda: handle.status == "succeeded", "it is done when the store is back")
        assert (outcomes(handle), handle.attempts, len(tries)) == (["released", "succeeded"], 1, 2)
    app.store.close()
    direct.store.close()


@pytest.mark.failure(29)
def test_a_job_whose_thread_ends_before_its_timeout_is_written_is_begun_again(app, monkeypatch):
    """
    That it is held and that its thread has ended may reach the store in one turn. On a machine that is busy they may come one
    after the other all the same, with the same end.
    """
    turns, free, overdue, turn = [], threading.Event(), threading.Event(), Store.turn
    init = TurnBatch.__init__

    def seen(batch):
        init(batch)
        turns.append(batch)

    def slowly(store, lease, ends, *how, **more):
        if ends and not free.is_set() and all(end.result is None for end in ends):
            free.set()  # `slow` was late before `quick` had ended
        if any(end.result is not None for end in ends) and not free.is_set():
            # That of `quick`: the ends of `slow` collect meanwhile.
            wait_until(
                lambda: any(one.ends and not one.released for one in turns if one.ends is not ends), "it is late"
            )
            free.set()
            wait_until(lambda: any(one.ends and one.released for one in turns), "its thread has ended")
        return turn(store, lease, ends, *how, **more)

    monkeypatch.setattr(TurnBatch, "__init__", seen)
    monkeypatch.setattr(Store, "turn", slowly)
    runs = []

    @app.job(timeout=0.5, retry=NOW)
    def slow() -> str:
        runs.append(1)
        if len(runs) == 1:
            overdue.set()
            free.wait(200)
        return "in time"

    @app.job
    def quick() -> str:
        overdue.wait(200)
        return "done"

    handles = [slow.enqueue(), quick.enqueue()]
    result = app.work(until_idle=True)
    assert (result.succeeded, result.requeued, result.failed) == (2, 1, 0)
    assert [outcomes(handle) for handle in handles] == [["timeout", "succeeded"], ["succeeded"]]


@dataclass(frozen=True)
class Declined(Exception):
    """Of which nothing can be set."""

    code: int


class Unjudged(Exception):
    """Cannot be judged: whoever looks for what is wrong with it finds this."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("unjudged", [False, True])
def test_one_strange_error_costs_no_other_job_its_end(app, unjudged, monkeypatch):
    """What came back in the same burst is recorded, and so is the job that raised."""
    together, failed = threading.Barrier(8), outcome.failed

    def judged(job, error, *facts):
        if type(error) is Unjudged:
            raise LookupError("nothing is known of it")
        return failed(job, error, *facts)

    monkeypatch.setattr(outcome, "failed", judged)

    @app.job(retry=None)
    def strange(n: int) -> int:
        together.wait(100)
        if n == 0:
            raise Unjudged if unjudged else Declined(4)
        return n

    handles = [strange.enqueue(n) for n in range(8)]
    assert app.work(until_idle=True).succeeded == 7
    assert [handle.status for handle in handles] == ["failed", *["succeeded"] * 7]
    assert len([*app.dead_letters.find()]) == 1
    if unjudged:
        assert handles[0].history()[-1].error_class == "code_error"
        assert "raised Unjudged, and LookupError was raised when it was judged" in handles[0].error


@pytest.mark.timeout(120)
def test_what_an_async_job_returns_after_its_time_is_discarded(app):
    """C-19: as with a blocking job, which cannot be cancelled at all."""

    @app.job(timeout=0.05, retry=NOW)
    async def swallows() -> str:
        if outlast.current().attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "late"
        return "in time"

    handle = swallows.enqueue()
    result = app.work(until_idle=True)
    while result.later:
        result = app.work(until_idle=True)
    assert (handle.result(), outcomes(handle)) == ("in time", ["timeout", "succeeded"])


@pytest.mark.timeout(120)
def test_a_thread_that_goes_on_after_the_total_timeout_keeps_its_slot(app):
    """The job has failed for good, and what still runs of it counts against the worker's concurrency."""
    goes_on = threading.Event()

    @app.job(retry=NOW, guard=outlast.Guard(retry=None, total_timeout=0.1, isolation="thread"))
    def blocks() -> None:
        goes_on.wait(100)

    handle = blocks.enqueue()
    with Beside(app) as beside:
        wait_until(lambda: handle.status == "failed", "its time is up")
        taken = len(beside.worker._running)
        goes_on.set()
        wait_until(lambda: not beside.worker._running, "its thread has ended")
    assert (outcomes(handle), taken) == (["timeout"], 1)


@pytest.mark.timeout(600)
def test_jobs_in_processes_that_are_cancelled_together_all_end(app, on_terms):
    """Who ends a child must not take its end away from the thread that waits for it."""
    on_terms(ttl=4.0)
    held = [app.job(name=f"stuck-{number}", isolation="process")(stuck) for number in range(3)]
    handles = [job.enqueue() for job in held]
    with Beside(app):
        wait_until(lambda: all(handle.status == "processing" for handle in handles), "all run")
        assert [app.jobs.cancel(handle.id) for handle in handles] == [True] * 3
        wait_until(lambda: all(handle.status == "cancelled" for handle in handles), "all are cancelled")


@pytest.mark.timeout(120)
def test_an_end_that_is_on_record_is_not_lost_with_the_lease(app, on_terms, monkeypatch):
    """The answer to the turn that brought it comes after the worker has heard that its lease is lost."""
    on_terms(ttl=600.0)
    real, held = Store.turn, []

    def turn(store, lease, ends, *args, **how):
        done = real(store, lease, ends, *args, **how)
        if ends and not held:
            tenure = beside.worker._tenure
            held.append(tenure)
            store.sweep(lambda _: True, lambda _: Rescue("ready"))
            beside.worker._loop.call_soon_threadsafe(beside.worker._failed, tenure, outlast.LeaseLost("as a beat says"))
            wait_until(lambda: beside.worker._tenure is not tenure, "the worker knows that its lease is lost")
        return done

    @app.job(retry=NOW)
    def send() -> str:
        return "sent"

    handle = send.enqueue()
    beside = Beside(app)
    monkeypatch.setattr(Store, "turn", turn)
    with beside:
        wait_until(lambda: held and beside.worker._tenure not in {None, *held}, "it has registered again")
        wait_until(lambda: beside.worker.view().counts["succeeded"] == 1, "the answer has come")
    assert (handle.result(), outcomes(handle)) == ("sent", ["succeeded"])
    assert (beside.result.succeeded, beside.result.lost) == (1, 0)
