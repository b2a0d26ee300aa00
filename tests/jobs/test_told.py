"""What is told of jobs: whose retry a line is of, which attempt has run out of time, and one line for what strikes many."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

import hostile
import outlast
from job_hands import Hands
from job_rows import end
from outlast.observe.events import WorkerLost
from outlast.store.faults import StoreUnavailable
from outlast.testing import capture_events, work
from outlast.work.patience import keep_trying


@pytest.mark.parametrize("kind", ["thread", "loop", "own"])
def test_retries_inside_of_a_job_say_which_job(sqlite_app, caplog, kind):
    """Its id and its kind, in the line and in the event; a call outside of jobs says nothing of one."""
    app = sqlite_app
    service = outlast.Guard("service", retry=outlast.RetryPolicy(delays=[0.1]))
    calls: list[int] = []

    def ask() -> None:
        calls.append(1)
        if len(calls) % 2:
            raise ConnectionResetError("hung up")

    async def aask() -> None:
        ask()

    if kind == "thread":

        @app.job(name="fetch")
        def fetch_in_thread() -> None:
            service.call(ask)
    elif kind == "loop":

        @app.job(name="fetch")
        async def fetch() -> None:
            await service.call(aask)
    else:
        app.job(name="fetch", guard=service)(ask)
    handle = app.kinds["fetch"].enqueue()
    with caplog.at_level(logging.WARNING, "outlast"), capture_events() as events:
        work(app)
    assert handle.status == "succeeded"
    said = (
        f"job {handle.id} (fetch): service: attempt 1 of 2 failed with ConnectionResetError (connection_reset): hung up"
    )
    (line,) = [record.getMessage() for record in caplog.records if "hung up" in record.getMessage()]
    assert line.startswith(said)
    told = [(event.job_id, event.job_kind) for event in events if event.name in {"step_retry_attempt", "step_success"}]
    assert told == [(handle.id, "fetch")] * 2

    calls.clear()
    with capture_events() as outside:
        service.call(ask)
    assert {(event.job_id, event.job_kind) for event in outside if hasattr(event, "job_kind")} == {(None, None)}


@pytest.mark.timeout(240)
def test_a_timeout_of_a_child_is_told_once_and_of_the_attempt_of_the_job(app, caplog):
    """The guard of the job makes one attempt, whatever the number of the job's own is."""
    app.job(name="hog", isolation="process", timeout=0.5, retry=outlast.RetryPolicy(delays=[0]))(hostile.hang)
    handle = app.kinds["hog"].enqueue()
    with caplog.at_level(logging.WARNING, "outlast"), capture_events() as events:
        app.work(until_idle=True)
    assert [(row.outcome, row.error) for row in handle.history()] == [
        ("timeout", "the attempt took longer than 0.5 s")
    ] * 2
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" with ")[0] for line in lines] == [
        f"job {handle.id} (hog): attempt 1 of 2 failed",
        f"job {handle.id} (hog) failed after attempt 2 of 2",
    ]
    assert [event.job_id for event in events if event.name == "attempt_timeout"] == [
        handle.id
    ] * 2  # metrics count them


def test_attempts_of_a_guard_with_retries_have_their_own_numbers(app):
    """Which of them ran out of time is worth knowing."""
    guard = outlast.Guard("slow", timeout=0.1, retry=outlast.RetryPolicy(delays=[0.1]))

    @app.job(guard=guard, retry=None)
    async def hangs() -> None:
        await asyncio.Event().wait()

    handle = hangs.enqueue()
    work(app)
    assert handle.history()[0].error == "attempt 2 took longer than 0.1 s"


@pytest.mark.timeout(240)
def test_a_store_that_is_away_is_told_once_for_all_jobs_of_a_worker(sqlite_app, caplog):
    """Each of them waits for it, in a thread of its own."""
    app, many = sqlite_app, 16
    together, away = threading.Barrier(many), dict.fromkeys(range(many), 2)

    @app.job
    def waits(n: int) -> None:
        def ask() -> None:
            if away[n]:
                away[n] -= 1
                raise StoreUnavailable("connection refused")

        together.wait(100)
        keep_trying(ask, "the store")

    for n in range(many):
        waits.enqueue(n)
    with caplog.at_level(logging.WARNING, "outlast"):
        assert app.work(until_idle=True, concurrency=many).succeeded == many
    told = [record.getMessage() for record in caplog.records if "is waited for" in record.getMessage()]
    assert len(told) == 1, told


def test_a_cancelled_job_has_no_class_of_an_older_error(app):
    """Its text and its class are of one end."""

    @app.job(retry=outlast.RetryPolicy(delays=[0]))
    def fails() -> None: ...

    handle, hands = fails.enqueue(), Hands(app)
    (job,) = hands.take()
    told = {"error": "reset", "error_type": "ConnectionResetError", "error_class": "connection_reset"}
    hands.finish(end(job, "waiting", "failed", **told))
    (job,) = hands.take()
    hands.finish(end(job, "ready", "released", error="given back by its worker"))
    row = app.store.job(int(handle.id))
    assert (row.error, row.error_type, row.error_class) == ("reset", "ConnectionResetError", "connection_reset")
    (job,) = hands.take()
    hands.finish(end(job, "cancelled", "failed", error="cancelled by an operator", stop_reason="cancelled"))
    row = app.store.job(int(handle.id))
    assert (row.error, row.error_type, row.error_class) == ("cancelled by an operator", None, None)


def test_code_in_a_child_is_told_what_to_do_instead_of_keeping(sqlite_app):
    """It has no store: the way out is one that also what is kept can take."""
    sqlite_app.job(name="keeps", isolation="process", retry=None)(hostile.keep_something)
    handle = sqlite_app.kinds["keeps"].enqueue()
    sqlite_app.work(until_idle=True)
    assert "return what is to be kept" in handle.error


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        ("vm/4026531836:17620:5201017:1", "the worker vm, process 17620 is gone: 1 job was taken from it"),
        ("", "1 job was taken over from a worker that has ended"),
    ],
)
def test_a_worker_that_has_ended_by_itself_is_not_named_as_one_that_is_gone(worker, said):
    """It has given its lease back, and so has no name; its job waited until its code was cut off."""
    event = WorkerLost(app="shop", worker=worker, jobs=1, failed=0, job_ids=("17",))
    assert event.sentence() == said
