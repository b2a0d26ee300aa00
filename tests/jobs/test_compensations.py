"""What undoes a job that fails for good: all of it, the last one first, each once on record, whoever does it."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import outlast
import sagas
from job_hands import Hands
from labor import NOW, Beside, wait_until
from outlast.jobs import onrecord, undoing
from outlast.jobs.places import place_of
from outlast.jobs.tenure import Tenure
from outlast.report.jobs import JobViews
from outlast.spec.blocks import COMPENSATION
from outlast.store import Store, retention
from outlast.store.compensations import CompensationEnd
from outlast.store.faults import StoreRefused, StoreUnavailable
from outlast.testing import capture_events, inline, work
from outlast.work.leases import this_user
from stores import sql

DONE: list[tuple[str, object]] = []  # what was done, and undone, in the world outside
BROKEN: dict[object, list[Exception]] = {}  # by what it is called with: what the function raises, one after the other
HOLD, HELD = threading.Event(), threading.Event()
FINAL = outlast.RetryPolicy(max_attempts=1)


@dataclass
class Seat:
    row: int


@pytest.fixture(autouse=True)
def _nothing_done():
    DONE.clear()
    BROKEN.clear()
    HOLD.clear()
    HELD.clear()


def undo(what: object) -> None:
    DONE.append(("undo", what))
    if BROKEN.get(what):
        raise BROKEN[what].pop(0)


async def aundo(what: object) -> None:
    await asyncio.sleep(0)
    undo(what)


def free(seat: Seat) -> None:
    DONE.append(("free", seat))


def look(what: str) -> None:
    context = outlast.current()
    DONE.append((what, (context.job_id, context.attempt, context.max_attempts, context.idempotency_key)))


def look_twice(what: str) -> None:
    look(what)
    if outlast.current().attempt == 1:
        raise ConnectionError("away")


def step_inside(what: str) -> None:
    outlast.current().step(what, undo, what)


def hold(what: str) -> None:
    DONE.append(("undo", what))
    HELD.set()
    HOLD.wait(60)


def hold_and_raise(what: str) -> None:
    hold(what)
    if BROKEN.get(what):
        raise BROKEN[what].pop(0)


async def deaf(what: str) -> None:
    DONE.append(("undo", what))
    HELD.set()
    while not HOLD.is_set():
        with suppress(asyncio.CancelledError, TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)


async def ahold(what: str) -> None:
    DONE.append(("undo", what))
    HELD.set()
    await asyncio.Event().wait()


@outlast.retry(max_attempts=2, initial_delay=0.001)
def undo_with_retry(what: str) -> None:
    undo(what)


def given_a_shelf(fn):
    @functools.wraps(fn)
    def call(*args):
        return fn("shelf", *args)

    return call


@given_a_shelf
def with_shelf(shelf: str, what: str) -> None:
    undo((shelf, what))


class Shelf:
    def take(self) -> None:
        """A method of an object, which no other process has."""

    @classmethod
    def clear(cls, what: str) -> None:
        DONE.append(("cleared", what))


def do(what: object) -> object:
    """Registers what undoes it, and does it."""
    outlast.current().compensate(undo, what)
    DONE.append(("do", what))
    return what


async def ado(what: object) -> object:
    await outlast.current().compensate(aundo, what)
    DONE.append(("do", what))
    return what


def declared(app, is_async, error=ValueError, **options):
    """A job of two steps that are undone, and of a third part that is no step; then it fails."""

    @app.job(name="order", **options)
    def order(number: int) -> str:
        context = outlast.current()
        context.step("reserve", do, "a")
        context.step("pay", do, "b")
        context.compensate(undo, "c")
        if number > 0:
            raise error("no money")
        return "paid"

    if not is_async:
        return order

    @app.job(name="aorder", **options)
    async def aorder(number: int) -> str:
        context = outlast.current()
        await context.step("reserve", ado, "a")
        await context.step("pay", ado, "b")
        await context.compensate(aundo, "c")
        if number > 0:
            raise error("no money")
        return "paid"

    return aorder


def undone(handle):
    return [(one.function.partition(":")[2], one.step, one.status, one.attempts) for one in handle.compensations()]


# -- when it is undone, and when not --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_a_job_that_fails_for_good_is_undone_in_reverse_order(app, is_async):
    """C-21, C-23: each once, after the end of the job, which stays failed with its own error; and it is told."""
    handle = declared(app, is_async).enqueue(1)
    with capture_events() as events:
        result = work(app)
    assert (result.failed, handle.status, handle.error, handle.compensation) == (1, "failed", "no money", "completed")
    assert DONE == [("do", "a"), ("do", "b"), ("undo", "c"), ("undo", "b"), ("undo", "a")]
    name = "aundo" if is_async else "undo"
    assert undone(handle) == [
        (name, "reserve", "completed", 1),
        (name, "pay", "completed", 1),
        (name, None, "completed", 1),
    ]
    told = [event for event in events if event.name.startswith("compensation")]
    assert [(event.name, event.step_id) for event in told] == [
        (f"compensation_{what}", step)
        for step in (handle.kind, "pay", "reserve")
        for what in ("triggered", "completed")
    ]
    assert {(event.job_id, event.kind, event.queue, event.run_key) for event in told} == {
        (handle.id, handle.kind, "default", None)
    }
    assert told[0].because == "its job failed: no money"
    assert [letter.kind for letter in app.dead_letters.find()] == ["job"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_job_that_is_tried_again_is_not_undone_and_registers_nothing_twice(app, is_async):
    """C-21: a retry is no end. Three attempts register the same three functions, and they are called once."""
    handle = declared(app, is_async, ConnectionError, retry=NOW.replace(max_attempts=3)).enqueue(1)
    work(app)
    assert [row.outcome for row in handle.history()] == ["failed"] * 3
    assert DONE == [("do", "a"), ("do", "b"), ("undo", "c"), ("undo", "b"), ("undo", "a")]
    assert len(handle.compensations()) == 3


def test_a_job_that_succeeds_is_not_undone(app):
    """What it has registered is not needed, and nothing of it is left to do."""
    handle = declared(app, False).enqueue(0)
    result = work(app)
    assert (result.succeeded, handle.result(), handle.compensation) == (1, "paid", "none")
    assert [status for _, _, status, _ in undone(handle)] == ["not_needed"] * 3
    assert DONE == [("do", "a"), ("do", "b")]


def test_a_snoozed_job_is_not_undone(app):
    """Nor is one that was given back: nothing has failed."""

    @app.job
    def wait() -> None:
        do("a")
        if len(DONE) == 1:
            raise outlast.Snooze(60)

    handle = wait.enqueue()
    work(app)
    assert (handle.status, DONE) == ("succeeded", [("do", "a"), ("do", "a")])


@pytest.mark.parametrize("end", ["timeout", "spent"])
def test_every_end_that_is_final_is_undone(app, end):
    """C-21, D-16: an attempt that takes too long, and one that was claimed with no attempt left after a crash."""

    @app.job(name="slow", retry=FINAL, timeout=0.05 if end == "timeout" else None)
    async def slow() -> None:
        await ado("a")
        if end == "timeout":
            await asyncio.Event().wait()

    handle = slow.enqueue()
    if end == "spent":
        hands = Hands(app)
        (claimed,) = hands.take()
        register(app, claimed, "a")
        app.store.drop_lease(hands.lease)
    work(app)
    assert (handle.status, handle.compensation, DONE[-1]) == ("failed", "completed", ("undo", "a"))


def register(app, claimed, *whats):
    """As the code of a claimed job does it."""
    from outlast.store.compensations import NewCompensation

    for place, what in enumerate(whats, 1):
        data = app.codec.encode({"args": [what], "kwargs": {}})
        row = NewCompensation(
            claimed.id, claimed.token, claimed.made, place, f"{__name__}:undo", data, f"print {what}", "step"
        )
        assert app.store.put_results([row]) == [True]


def test_a_job_that_kills_its_workers_is_undone_by_one_that_does_not_know_its_handler_is_not(app):
    """D-16: who sweeps lets it fail for good and need not know it; what undoes it waits for a worker that does."""
    declared(app, False)
    order = app.kinds["order"]
    handle = order.enqueue(1)
    for _ in range(3):
        hands = Hands(app)
        sql(
            app.store,
            f"update outlast_jobs set state = 'ready' where app = '{app.name}' and state in ('waiting', 'alone')",
        )
        (claimed,) = hands.take()
        if claimed.made == 1:
            register(app, claimed, "a", "b")
        app.store.drop_lease(hands.lease)
        stranger = outlast.App(app.name, store=app.store_url)
        stranger.job(do)
        stranger.work(until_idle=True)
        stranger.store.close()
    assert (handle.status, handle.compensation, DONE) == ("failed", "pending", [])
    assert app.store.job(int(handle.id)).error_class == "poison"
    work(app)
    assert (handle.compensation, DONE) == ("completed", [("undo", "b"), ("undo", "a")])
    assert app.store.job(int(handle.id)).error_class == "poison"


def test_code_that_goes_on_after_its_time_is_undone_when_it_has_ended(sqlite_app):
    """Nothing is undone while it may still be done."""
    app = sqlite_app

    @app.job(retry=FINAL, timeout=0.05)
    def stay() -> None:
        do("a")
        HOLD.wait(60)
        DONE.append(("do", "late"))

    with Beside(app):
        handle = stay.enqueue()
        wait_until(lambda: handle.status == "failed", "its time is up")
        assert DONE == [("do", "a")]
        HOLD.set()
        wait_until(lambda: handle.compensation == "completed", "it is undone")
    assert DONE == [("do", "a"), ("do", "late"), ("undo", "a")]


def late() -> None:
    """What is left in its thread when nobody waits for it any more."""
    number = len([what for what, _ in DONE if what == "begin"]) + 1
    DONE.append(("begin", number))
    outlast.current().compensate(undo, "a")
    HELD.set()
    HOLD.wait(60)
    DONE.append(("do", number))


def leaving(app, how, **options):
    """A job that fails while a part of its code goes on in another thread."""
    short = outlast.Guard("short", timeout=0.5, isolation="thread", retry=None)

    if how == "sync guard":

        @app.job(name="leave", **options)
        def leave() -> None:
            short.call(late)

        return leave

    @app.job(name="leave", **({} if how == "async guard" else {"timeout": 0.5}), **options)
    async def aleave() -> None:
        if how == "chosen executor":
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
        if how == "async guard":
            await short.acall(late)
        elif how == "to_thread":
            await asyncio.to_thread(late)
        elif how == "caught":
            with suppress(asyncio.CancelledError):
                await asyncio.to_thread(late)
        else:
            await outlast.current().step("late", asyncio.to_thread, late)

    return aleave


@pytest.mark.parametrize("how", ["step", "chosen executor", "to_thread", "caught", "sync guard", "async guard"])
def test_a_thread_that_outlives_the_code_of_a_job_is_waited_for(sqlite_app, how):
    """The next attempt does not begin beside it."""
    app = sqlite_app
    twice = outlast.RetryPolicy(max_attempts=2, initial_delay=0.001, jitter=0)
    job = leaving(app, how, retry=twice)
    with Beside(app):
        handle = job.enqueue()
        wait_until(lambda: len(handle.history()) == 1, "its first attempt is over")
        assert (handle.history()[0].outcome, DONE) == ("timeout", [("begin", 1)])
        HOLD.set()
        wait_until(lambda: handle.status in {"failed", "succeeded"}, "it has ended")
    assert (handle.attempts, DONE[:2]) == (2, [("begin", 1), ("do", 1)])


@pytest.mark.parametrize("how", ["step", "to_thread", "sync guard", "async guard"])
def test_what_a_thread_does_late_is_undone_after_it(sqlite_app, how):
    """Nothing is undone while it may still be done, in whichever thread."""
    app = sqlite_app
    job = leaving(app, how, retry=FINAL)
    with Beside(app):
        handle = job.enqueue()
        wait_until(lambda: handle.status == "failed", "it has failed")
        assert (handle.compensation, DONE) == ("pending", [("begin", 1)])
        HOLD.set()
        wait_until(lambda: handle.compensation == "completed", "it is undone")
    assert DONE == [("begin", 1), ("do", 1), ("undo", "a")]


def test_a_guard_of_the_job_does_not_call_it_beside_its_own_thread(sqlite_app):
    """The queue has it wait until that has ended."""
    app = sqlite_app
    own = outlast.Guard("own", retry=outlast.RetryPolicy(max_attempts=3, initial_delay=0.001, jitter=0))
    job = leaving(app, "sync guard", retry=FINAL, guard=own)
    with Beside(app):
        handle = job.enqueue()
        wait_until(lambda: handle.status == "failed", "it has failed")
        assert DONE == [("begin", 1)]
        HOLD.set()
        wait_until(lambda: handle.compensation == "completed", "it is undone")
    assert DONE == [("begin", 1), ("do", 1), ("undo", "a")]


def test_a_cancelled_job_is_undone_when_somebody_asks_for_it(app):
    """C-21 names what is final, and a cancellation is not among it: what was done stands, and is shown, until an operator has it undone."""

    @app.job(retry=None)
    def stay() -> None:
        do("a")
        raise outlast.Snooze(600)

    handle = stay.enqueue()
    app.work(until_idle=True)
    app.jobs.cancel(handle.id)
    work(app)
    assert (handle.status, handle.compensation, [one.status for one in handle.compensations()]) == (
        "cancelled",
        "none",
        ["registered"],
    )
    assert DONE == [("do", "a")]
    app.jobs.undo(handle.id, reason="not wanted")
    assert handle.compensation == "pending"
    work(app)
    assert (handle.status, handle.compensation, DONE) == ("cancelled", "completed", [("do", "a"), ("undo", "a")])
    assert [(change.change, change.by, change.reason) for change in handle.changes()] == [
        ("cancelled", this_user(), None),
        ("undo", this_user(), "not wanted"),
    ]
    with pytest.raises(outlast.ConfigurationError, match="got: cancelled, and all of it is undone"):
        app.jobs.undo(handle.id)


def test_steps_of_a_cancelled_job_are_not_forgotten_while_what_they_did_stands(app):
    """Nobody would know of it any more. Without from_start the job goes on where it was."""

    @app.job(retry=None)
    def stay() -> None:
        outlast.current().step("do", do, "a")
        raise outlast.Snooze(600)

    handle = stay.enqueue()
    app.work(until_idle=True)
    app.jobs.cancel(handle.id)
    with pytest.raises(
        StoreRefused,
        match=rf"it was cancelled, and what .*:undo would undo stands\. Have it undone first: outlast jobs compensate {handle.id}\. "
        "Or requeue it, but not from the start: it goes on where it was",
    ):
        app.jobs.requeue(handle.id, from_start=True)
    assert handle.status == "cancelled"
    app.jobs.requeue(handle.id)
    app.jobs.cancel(handle.id)
    app.jobs.undo(handle.id)
    work(app)
    app.jobs.requeue(handle.id, from_start=True)
    app.work(until_idle=True)
    assert DONE == [("do", "a"), ("undo", "a"), ("do", "a")]


# -- retries, and what cannot be undone ------------------------------------------------------------------------------------


def test_each_compensation_has_three_attempts_also_after_unclear_errors(app):
    """D-17: the policy of the steps of flows: 1 s and 2 s, ±10 %; the others wait until it is over."""
    assert COMPENSATION.replace(retry_exhausted=False) == undoing.POLICY
    BROKEN["b"] = [ConnectionError("away"), RuntimeError("odd")]
    handle = declared(app, False).enqueue(1)
    work(app)
    assert DONE[2:] == [("undo", "c"), ("undo", "b"), ("undo", "b"), ("undo", "b"), ("undo", "a")]
    assert (handle.compensation, [attempts for *_, attempts in undone(handle)]) == ("completed", [1, 3, 1])
    second = (
        sql(app.store, f"select ended - registered from outlast_compensations where place = 3 and app = '{app.name}'")[
            0
        ][0]
        / 1e6
    )
    assert 2.6 < second < 30


def test_one_that_fails_stops_no_other_and_leaves_a_dead_letter(app):
    """C-21: the job says so, and so do an event and a dead letter; the others are undone."""
    BROKEN["b"] = [ValueError("locked")]
    handle = declared(app, False).enqueue(1)
    with capture_events() as events:
        work(app)
    assert DONE[2:] == [("undo", "c"), ("undo", "b"), ("undo", "a")]
    assert (handle.status, handle.error, handle.compensation) == ("failed", "no money", "failed")
    failed = handle.compensations()[1]
    assert (failed.status, failed.error, failed.error_class, failed.stop_reason) == (
        "failed",
        "locked",
        "data_error",
        "permanent",
    )
    (letter,) = [one for one in app.dead_letters.find() if one.kind == "compensation"]
    assert (letter.id, letter.pipeline, letter.stage, letter.item_key) == (
        failed.dead_letter,
        "order",
        "undo",
        handle.id,
    )
    told = [event for event in events if event.name in {"compensation_failed", "dead_letter_enqueue"}]
    assert [(event.name, event.error) for event in told] == [
        ("dead_letter_enqueue", "no money"),
        ("compensation_failed", "locked"),
        ("dead_letter_enqueue", "locked"),
    ]
    with pytest.raises(outlast.JobFailed) as raised:
        handle.result()
    assert f"could not be undone, and still stands: {__name__}:undo" in raised.value.__notes__


def test_a_compensation_that_is_tried_again_is_told_once(app):
    """C-23: `compensation_triggered` once for each, with the first attempt; the end once, however many attempts there were."""
    BROKEN["b"] = [ConnectionError("away"), ConnectionError("away")]
    handle = declared(app, False).enqueue(1)
    with capture_events() as events:
        work(app)
    assert [(one.step, one.attempts, one.status) for one in handle.compensations()] == [
        ("reserve", 1, "completed"),
        ("pay", 3, "completed"),
        (None, 1, "completed"),
    ]
    assert [(event.name, event.step_id) for event in events if event.name.startswith("compensation")] == [
        (f"compensation_{what}", step)
        for step in (handle.kind, "pay", "reserve")
        for what in ("triggered", "completed")
    ]


def test_a_retry_of_the_function_itself_is_its_policy(app):
    """D-8: what its own retry has given up on is not tried again."""
    BROKEN["x"] = [ConnectionError("away")] * 9

    @app.job
    def order() -> None:
        outlast.current().compensate(undo_with_retry, "x")
        raise ValueError("no")

    handle = order.enqueue()
    work(app)
    assert (len(DONE), handle.compensations()[0].stop_reason) == (2, "nested_exhausted")


def test_what_could_not_be_undone_is_tried_again_by_an_operator(app):
    """Until then a requeue is refused; its dead letter is resolved with it, and the one of the job stays."""
    BROKEN["b"] = [ValueError("locked"), ValueError("still locked")]
    handle = declared(app, False).enqueue(1)
    work(app)
    with pytest.raises(
        StoreRefused,
        match=rf"undo has failed, and what it undoes still stands\. Try it once more: outlast jobs compensate {handle.id}\.",
    ):
        app.jobs.requeue(handle.id)
    for wanted, error in (("failed", "still locked"), ("completed", None)):
        DONE.clear()
        app.jobs.undo(handle.id)
        work(app)
        assert (DONE, handle.compensation, handle.compensations()[1].error) == ([("undo", "b")], wanted, error)
    assert [(one.kind, one.status) for one in app.dead_letters.find(status="resolved")] == [
        ("compensation", "resolved")
    ]
    app.jobs.requeue(handle.id)
    assert handle.status == "queued"


def test_what_was_undone_by_hand_counts_as_undone(app):
    """As with flows: its dead letter is put away, and the job can be done again."""
    BROKEN["b"] = [ValueError("locked")]
    handle = declared(app, False).enqueue(1)
    work(app)
    app.dead_letters.archive(ids=[handle.compensations()[1].dead_letter], reason="by hand")
    assert (handle.compensation, [one.status for one in handle.compensations()]) == ("completed", ["completed"] * 3)
    assert [said for _, said in JobViews(app.store).show(handle.id).undoing()] == [
        "completed",
        "completed by hand",
        "completed",
    ]
    app.jobs.requeue(handle.id)
    DONE.clear()
    work(app)
    assert DONE[:2] == [("do", "a"), ("do", "b")]


def test_what_was_called_undone_by_hand_can_still_be_undone(app):
    """Somebody was wrong about it. Where that fails, its dead letter is open again."""
    BROKEN["b"] = [ValueError("locked"), ValueError("still locked")]
    handle = declared(app, False).enqueue(1)
    work(app)
    letter = handle.compensations()[1].dead_letter
    for wanted in ("failed", "completed"):
        app.dead_letters.archive(ids=[letter], reason="by hand")
        app.jobs.undo(handle.id)
        DONE.clear()
        work(app)
        assert (DONE, handle.compensation) == ([("undo", "b")], wanted)


def test_retention_does_not_call_undone_what_still_stands(app):
    """C-28: a dead letter that nobody has looked at stays open, so that nothing is done on top of it, and the job is kept."""
    BROKEN["b"] = [ValueError("locked")]
    handle = declared(app, False).enqueue(1)
    work(app)
    sql(app.store, f"update outlast_dead_letters set moved = 0 where app = '{app.name}'")
    assert app.dead_letters.auto_archive(older_than_days=1) == 1  # the one of the job
    later = handle.enqueued_at.replace(year=handle.enqueued_at.year + 1)
    retention.apply(app.store, {"open_dead_letters": 1}, later)
    assert (handle.compensation, [one.kind for one in app.dead_letters.find()]) == ("failed", ["compensation"])
    with pytest.raises(StoreRefused, match="still stands"):
        app.jobs.requeue(handle.id)
    assert app.store.prune("failed_jobs", later) == 0
    app.jobs.undo(handle.id)
    work(app)
    assert handle.compensation == "completed"


# -- done again ------------------------------------------------------------------------------------------------------------


def test_a_requeue_does_again_what_was_undone_and_what_came_after(app):
    """D-17: the result of a step that was undone is no longer true, nor is what was made of it; what came before stays done."""

    @app.job(retry=None)
    def order(good: bool) -> str:
        context = outlast.current()
        context.step("ask", DONE.append, ("ask", 1))
        context.step("reserve", do, "a")
        context.step("pack", DONE.append, ("pack", 1))
        if not good and len(DONE) < 5:
            raise ValueError("no")
        return "sent"

    handle = order.enqueue(False)
    work(app)
    assert DONE == [("ask", 1), ("do", "a"), ("pack", 1), ("undo", "a")]
    app.jobs.requeue(handle.id)
    assert [step.name for step in app.store.steps(int(handle.id))] == ["ask"]
    work(app)
    assert (DONE[4:], handle.status) == ([("do", "a"), ("pack", 1)], "succeeded")
    assert [change.change for change in handle.changes()] == ["forgot steps", "requeued"]
    assert [(one.status, one.current) for one in handle.compensations()] == [("completed", False), ("not_needed", True)]


def test_what_was_registered_outside_of_a_step_has_all_steps_done_again(app):
    """Nobody knows which of them it has undone."""

    @app.job(retry=None)
    def order() -> None:
        outlast.current().step("ask", DONE.append, ("ask", 1))
        outlast.current().compensate(undo, "a")
        raise ValueError("no")

    handle = order.enqueue()
    for _ in range(2):
        work(app)
        assert DONE == [("ask", 1), ("undo", "a")]
        DONE.clear()
        app.jobs.requeue(handle.id)


def test_a_requeue_waits_for_what_is_still_to_be_undone(app):
    """It is refused: done and undone would be mixed."""
    handle = declared(app, False).enqueue(1)
    hands = Hands(app)
    (claimed,) = hands.take()
    register(app, claimed, "a")
    from job_rows import failed

    hands.finish(failed(claimed))
    with pytest.raises(
        StoreRefused, match=r"undo is still to be called\. A worker that knows this kind of job does that"
    ):
        app.jobs.requeue(handle.id, from_start=True)
    assert handle.status == "failed"


def test_an_edited_job_is_undone_with_the_arguments_of_then(app):
    """What was done was done with those; the next round has its own."""

    @app.job(retry=None)
    def order(number: int) -> int:
        outlast.current().step("do", do, number)
        if number < 2:
            raise ValueError("no")
        return number

    handle = order.enqueue(1)
    work(app)
    (letter,) = app.dead_letters.find()
    app.dead_letters.edit(letter.id, {"number": 2}, reason="better")
    app.dead_letters.replay(ids=[letter.id])
    work(app)
    assert (DONE, handle.result()) == ([("do", 1), ("undo", 1), ("do", 2)], 2)


def test_what_is_registered_by_somebody_who_was_cancelled_is_known(app, monkeypatch):
    """
    C-20, C-21: it is on record when the cancellation is raised. Registered once more it is the same, and so it is with the result of a
    step.
    """
    put, unread = onrecord.ResultWriter.put, []

    def told_late(writer, whose, row):
        """As ever, but that it is on record is told when the test says so."""
        told = asyncio.get_running_loop().create_future()
        unread.append((put(writer, whose, row), told))
        return told

    async def cancelled(work):
        task = asyncio.ensure_future(work)
        while not unread:
            assert not task.done()
            await asyncio.sleep(0)
        task.cancel()
        ((writing, told),) = unread
        unread.clear()
        told.set_result(await writing)
        with pytest.raises(asyncio.CancelledError):
            await task

    async def reserve():
        DONE.append(("do", "a"))

    @app.job(retry=None)
    async def book():
        context = outlast.current()
        await cancelled(context.compensate(aundo, "a"))
        await cancelled(context.step("reserve", reserve))
        await context.compensate(aundo, "a")
        await context.step("reserve", reserve)
        raise ValueError("no money")

    monkeypatch.setattr(onrecord.ResultWriter, "put", told_late)
    handle = book.enqueue()
    app.work(until_idle=True)
    assert (handle.error, DONE, undone(handle)) == (
        "no money",
        [("do", "a"), ("undo", "a")],
        [("aundo", None, "completed", 1)],
    )


def test_a_decorator_may_add_arguments(sqlite_app):
    """What is called counts, and not the function inside of it."""
    app = sqlite_app

    @app.job(retry=None)
    def book() -> None:
        outlast.current().compensate(with_shelf, "a")
        raise ValueError("no money")

    handle = book.enqueue()
    work(app)
    assert (handle.compensation, DONE) == ("completed", [("undo", ("shelf", "a"))])


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [((), {}, "missing a required argument"), ((1, 2), {}, "too many"), ((1,), {"z": 3}, "unexpected keyword")],
)
def test_what_can_never_be_called_is_not_registered(sqlite_app, args, kwargs, why):
    """It would be known only when the job has failed, and what it is for still stands."""
    app = sqlite_app

    @app.job(retry=None)
    def book() -> None:
        outlast.current().compensate(undo, *args, **kwargs)

    handle = book.enqueue()
    work(app)
    assert (handle.status, handle.compensations()) == ("failed", [])
    assert handle.error.startswith("expected arguments that undo takes")
    assert why in handle.error


# -- crashes and late workers ----------------------------------------------------------------------------------------------


def claim_undoing(app, hands):
    """The one job that this worker claims now to undo it."""
    kinds = {kind: job.version for kind, job in app.kinds.items()}
    (job,) = app.store.claim_undoing(hands.lease, None, kinds, 8)
    return job


def claimed_for_undoing(app, *whats, hands=None):
    """A failed job that a worker has begun to undo; the worker's lease, the job, and its handle."""
    handle = (app.kinds.get("order") or declared(app, False)).enqueue(1)
    hands = hands or Hands(app)
    (claimed,) = hands.take()
    register(app, claimed, *whats)
    from job_rows import failed

    hands.finish(failed(claimed))
    job = claim_undoing(app, hands)
    assert [one.place for one in job.left] == [*range(len(whats), 0, -1)]
    return hands.lease, job, handle


def test_a_crash_while_it_is_undone_goes_on_with_what_is_not_on_record_as_undone(app):
    """C-21, C-22: none is missed, none that is on record is repeated, and the crash is on record."""
    lease, job, handle = claimed_for_undoing(app, "a", "b", "c")
    store = app.store
    assert store.begin_compensation(lease, job.id, job.token, 3, attempt=1)
    assert store.end_compensation(lease, job.id, job.token, CompensationEnd(3, "undone"))
    assert store.begin_compensation(lease, job.id, job.token, 2, attempt=1)
    store.drop_lease(lease)
    work(app)
    assert (DONE, handle.status, handle.compensation) == ([("undo", "b"), ("undo", "a")], "failed", "completed")
    assert [one.crashes for one in handle.compensations()] == [0, 1, 0]


def test_a_crash_costs_a_compensation_no_attempt(app):
    """D-16: also the first one, after which it is called at once: three attempts are left, and each knows its number."""
    lease, job, handle = claimed_for_undoing(app, "a")
    assert app.store.begin_compensation(lease, job.id, job.token, 1, attempt=1)
    app.store.drop_lease(lease)
    BROKEN["a"] = [ConnectionError("away") for _ in range(3)]
    work(app)
    assert DONE == [("undo", "a")] * 3
    (row,) = handle.compensations()
    assert (row.status, row.attempts, row.crashes) == ("failed", 3, 1)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_compensation_that_raises_stopiteration_has_failed(sqlite_app, is_async):
    """C-21: no future takes that error, and nobody may wait for it for ever: it has its attempts, and the others are undone."""
    app = sqlite_app
    BROKEN["c"] = [StopIteration() for _ in range(3)]
    handle = declared(app, is_async).enqueue(1)
    work(app)
    assert (handle.status, handle.compensation) == ("failed", "failed")
    assert [(one.status, one.error_type) for one in handle.compensations()] == [
        ("completed", None),
        ("completed", None),
        ("failed", "RuntimeError"),
    ]


def test_what_nobody_undoes_is_stuck_and_counted(app):
    """U-23, C-21, D-16: while the lease of who undoes it lasts it is running, then pending and stuck; also when it is free and due."""
    lease, job, _ = claimed_for_undoing(app, "a", "b")
    store, hour = app.store, 3_600_000_000
    ended = store.job(job.id).ended_us

    def seen(at_us):
        stuck = [
            (one.queue, one.late, one.orphaned, one.undo, one.undo_us) for one in store.stuck_jobs(10, at_us=at_us)
        ]
        return stuck, store.jobs_undoing(), [(one.queue, one.queued, one.undo) for one in store.queue_stats()]

    waits = [("default", 0, 1)]
    assert store.jobs_undoing() == {"pending": 1, "running": 0, "failed": 0}  # taken, and not begun
    assert store.begin_compensation(lease, job.id, job.token, 2, attempt=1)
    began = store.compensations(job.id)[1].began_us
    assert seen(ended + 11) == ([], {"pending": 0, "running": 1, "failed": 0}, waits)
    assert [one.jobs for one in store.workers() if one.key == lease.key] == [1]
    sql(store, f"update outlast_leases set until = {began} where key = '{lease.key}'")
    pending = {"pending": 1, "running": 0, "failed": 0}
    assert seen(began + 10) == ([], pending, waits)
    assert seen(began + 11) == ([("default", 0, 0, 1, began)], pending, waits)
    store.pause_queue("default")  # a worker has begun, and nobody has taken the job from it: it is stuck all the same
    assert seen(began + 10) == ([], pending, waits)
    assert seen(began + 11) == ([("default", 0, 0, 1, began)], pending, waits)
    store.resume_queue("default")
    store.sweep(lambda _: False, lambda _: None)
    assert seen(began + 10) == ([], pending, waits)
    assert seen(began + 11) == ([("default", 0, 0, 1, began)], pending, waits)
    sql(store, f"update outlast_compensations set due = {began + hour} where app = '{app.name}' and place = 2")
    assert seen(began + hour) == ([], pending, waits)
    assert seen(began + hour + 11) == ([("default", 0, 0, 1, began + hour)], pending, waits)
    store.pause_queue("default")
    assert seen(began + hour + 11) == ([], pending, waits)
    store.resume_queue("default")
    sql(store, f"update outlast_compensations set due = null where app = '{app.name}'")
    BROKEN["a"] = [ValueError("no")]
    work(app)
    assert seen(began + 2 * hour) == ([], {"pending": 0, "running": 0, "failed": 1}, [])
    assert store.undo_job(job.id) == 1
    (change,) = store.job_changes(job.id)
    assert seen(change.at_us + 10) == ([], pending, waits)
    assert seen(change.at_us + 11) == ([("default", 0, 0, 1, change.at_us)], pending, waits)
    work(app)
    assert seen(began + 2 * hour) == ([], {"pending": 0, "running": 0, "failed": 0}, [])


def test_a_handle_has_all_that_is_on_record_of_a_compensation(app):
    """Before its first attempt, between two of them, and when it is over; read one by one as at once."""
    lease, job, handle = claimed_for_undoing(app, "a")
    store = app.store

    def seen():
        (row,) = handle.compensations()
        assert asyncio.run(app.jobs.aget(handle.id)).compensations() == [row]
        return row

    first = seen()
    enqueued = handle.enqueued_at
    assert (first.step, first.attempts, first.next_run_at, first.ended_at, first.error) == ("step", 0, None, None, None)
    assert enqueued <= first.registered_at <= enqueued + timedelta(minutes=10)
    assert store.begin_compensation(lease, job.id, job.token, 1, attempt=1)
    told = {"error": "away", "error_type": "ConnectionError", "error_class": "connection_reset"}
    assert store.end_compensation(lease, job.id, job.token, CompensationEnd(1, "due", 3_600_000_000, **told))
    again = seen()
    assert (again.error, again.error_type, again.error_class, again.attempts) == (*told.values(), 1)
    assert timedelta(minutes=59) < again.next_run_at - first.registered_at < timedelta(minutes=70)
    assert (again.status, again.ended_at, again.stop_reason) == ("pending", None, None)
    sql(store, f"update outlast_compensations set due = null where app = '{app.name}'")
    assert store.begin_compensation(lease, job.id, job.token, 1, attempt=2)
    end = CompensationEnd(1, "failed", stop_reason="exhausted", **told)
    assert store.end_compensation(lease, job.id, job.token, end)
    last = seen()
    assert (last.status, last.attempts, last.next_run_at, last.stop_reason) == ("failed", 2, None, "exhausted")
    assert first.registered_at <= last.ended_at <= first.registered_at + timedelta(minutes=10)


def test_a_late_worker_changes_nothing(app):
    """D-16: one that was taken for dead can neither begin nor end anything, nor give the job back."""
    lease, job, handle = claimed_for_undoing(app, "a")
    store = app.store
    assert store.begin_compensation(lease, job.id, job.token, 1, attempt=1)
    sql(app.store, f"update outlast_leases set until = 0 where key = '{lease.key}'")
    work(app)
    before = store.compensations(job.id)
    assert not store.begin_compensation(lease, job.id, job.token, 1, attempt=1)
    assert not store.end_compensation(lease, job.id, job.token, CompensationEnd(1, "failed", error="late"))
    with suppress(outlast.LeaseLost):
        store.release_held(lease, [(job.id, job.token)])
    assert (store.compensations(job.id), handle.compensation, DONE) == (before, "completed", [("undo", "a")])


@pytest.mark.parametrize("late", ["an earlier claim of the same worker", "another worker that knows the token"])
def test_token_and_worker_each_keep_a_late_write_out(app, late):
    """D-16: each of the two alone, before a compensation begins and while it runs."""
    hands = Hands(app)
    lease, job, _ = claimed_for_undoing(app, "a", hands=hands)
    store, mine = app.store, (lease, job.id, job.token)
    if late.startswith("an earlier"):
        store.release_held(lease, [(job.id, job.token)])
        wrong, mine = mine, (lease, job.id, claim_undoing(app, hands).token)
    else:
        wrong = (Hands(app).lease, job.id, job.token)
    assert not store.begin_compensation(*wrong, 1, attempt=1)
    assert store.begin_compensation(*mine, 1, attempt=1)
    before = store.compensations(job.id)
    assert not store.end_compensation(*wrong, CompensationEnd(1, "failed", error="late"))
    store.release_held(wrong[0], [(job.id, wrong[2])])
    assert (store.compensations(job.id), store.job(job.id).worker) == (before, lease.key)
    assert store.end_compensation(*mine, CompensationEnd(1, "undone"))


def test_a_claim_whose_answer_is_lost_gives_back_nothing_that_is_known(app):
    """What this worker is at stays its own, and so does what another one has."""
    hands, other = Hands(app), Hands(app)
    _, known, _ = claimed_for_undoing(app, "a", hands=hands)
    _, lost, _ = claimed_for_undoing(app, "a", hands=hands)
    _, elsewhere, _ = claimed_for_undoing(app, "a", hands=other)
    app.store.release_undoing(hands.lease, {known.id})
    workers = [app.store.job(job.id).worker for job in (known, lost, elsewhere)]
    assert workers == [hands.lease.key, None, other.lease.key]


def test_three_crashes_are_the_end_of_a_compensation(app):
    """D-16: it kills its workers; the others are undone all the same."""
    lease, job, handle = claimed_for_undoing(app, "a", "b")
    for crash in range(3):
        if crash:
            sql(app.store, f"update outlast_compensations set due = null where app = '{app.name}'")
            hands = Hands(app)
            lease, job = hands.lease, claim_undoing(app, hands)
            end = undoing.after_crash(job.left[0], 0.5)
            assert app.store.end_compensation(lease, job.id, job.token, end)
        assert app.store.begin_compensation(lease, job.id, job.token, 2, attempt=1)
        app.store.drop_lease(lease)
        app.store.sweep(lambda _: False, lambda _: None)
    work(app)
    rows = handle.compensations()
    assert [(one.status, one.crashes, one.stop_reason) for one in rows] == [
        ("completed", 0, None),
        ("failed", 3, "poison"),
    ]
    assert DONE == [("undo", "a")]
    (letter,) = [one for one in app.dead_letters.find() if one.kind == "compensation"]
    assert (rows[1].attempts, letter.attempts) == (0, 3)  # called three times, and none of them has come to an end
    app.jobs.undo(handle.id)  # it begins anew: another crash is the first one
    hands = Hands(app)
    job = claim_undoing(app, hands)
    assert app.store.begin_compensation(hands.lease, job.id, job.token, 2, attempt=1)
    app.store.drop_lease(hands.lease)
    app.store.sweep(lambda _: False, lambda _: None)
    work(app)
    row = handle.compensations()[1]
    assert (row.status, row.crashes, row.attempts, DONE) == ("completed", 1, 1, [("undo", "a"), ("undo", "b")])


def test_a_compensation_that_is_asked_for_again_has_all_its_attempts(app):
    """`jobs compensate` after the last attempt: another transient failure is not the end."""
    _, _, handle = claimed_for_undoing(app, "a")
    app.store.sweep(lambda _: True, lambda _: None)
    BROKEN["a"] = [ConnectionError("away")] * undoing.POLICY.max_attempts
    work(app)
    (row,) = handle.compensations()
    assert (row.status, row.attempts, row.stop_reason) == ("failed", undoing.POLICY.max_attempts, "exhausted")
    BROKEN["a"] = [ConnectionError("away")]
    app.jobs.undo(handle.id)
    work(app)
    (row,) = handle.compensations()
    assert (row.status, row.attempts, handle.compensation) == ("completed", 2, "completed")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("where", ["sqlite", "postgres"])
def test_a_kill_at_any_boundary_misses_nothing_and_repeats_nothing(request, tmp_path, where):
    """C-21, C-22, D-17: forward and backward, before and after every write and every effect; what was done is what is on record."""
    store = str(tmp_path / "whole.db") if where == "sqlite" else request.getfixturevalue("postgres").dsn
    command = [sys.executable, sagas.__file__, "steps", store, str(tmp_path / "steps")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(sagas.__file__).parent)
    assert done.returncode == 0, done.stderr
    *faults, last = done.stdout.splitlines()
    assert faults == []
    count = json.loads(last)
    assert count["kills"] > 60  # at every boundary, but for looks that a quicker run did not take
    assert count["kills"] + count["looks that did not come"] == count["boundaries"]
    assert count["looks that did not come"] < count["boundaries"] / 4
    assert count["killed again"] > 2


def held_order(app, fn=None):
    """A job that fails and is undone by two functions, the first of which waits for `HOLD`."""

    @app.job(retry=None, name="order")
    def order() -> None:
        outlast.current().compensate(undo, "a")
        outlast.current().compensate(fn or hold, "b")
        raise ValueError("no")

    return order.enqueue()


def cut(worker):
    """Ask it to end, and not to wait for what runs."""
    worker.ask_soon()
    worker.ask_soon()
    wait_until(lambda: worker.view().cutting, "it cuts off what runs")


def test_a_worker_that_ends_gives_back_what_it_undoes(sqlite_app):
    """D-16: a second signal cuts it off; it costs no attempt, no crash, and the next worker goes on with it."""
    app = sqlite_app

    @app.job(retry=None, name="aorder")
    async def aorder() -> None:
        await outlast.current().compensate(aundo, "a")
        await outlast.current().compensate(ahold, "b")
        raise ValueError("no")

    handle = aorder.enqueue()
    with Beside(app, drain=60) as beside:
        wait_until(HELD.is_set, "it is being undone")
        cut(beside.worker)
    assert beside.result.cut_off == 0
    row = handle.compensations()[1]
    assert ("ahold" in row.function, row.status, row.attempts, row.crashes) == (True, "pending", 0, 0)
    sql(app.store, f"update outlast_compensations set call = '{__name__}:aundo'")
    app.work(until_idle=True)
    assert (handle.compensation, DONE) == ("completed", [("undo", "b"), ("undo", "b"), ("undo", "a")])


@pytest.mark.parametrize("raises", [False, True])
def test_a_blocking_function_that_ends_after_the_cut_counts_unless_it_raises(app, raises):
    """D-16: it is waited for; what it has raised then may come of the end of its worker, and costs no attempt."""
    handle = held_order(app, hold_and_raise if raises else hold)
    BROKEN["b"] = [ConnectionError("away")]
    with Beside(app, drain=60) as beside:
        wait_until(HELD.is_set, "it is being undone")
        cut(beside.worker)
        assert app.store.job(int(handle.id)).worker is not None
        HOLD.set()
    assert beside.result.cut_off == 0
    row = handle.compensations()[1]
    status, attempts = ("pending", 0) if raises else ("completed", 1)
    assert (row.status, row.attempts, row.crashes) == (status, attempts, 0)
    assert app.store.job(int(handle.id)).worker is None
    app.work(until_idle=True)
    assert (handle.compensation, DONE) == ("completed", [("undo", "b")] * (1 + raises) + [("undo", "a")])


@pytest.mark.parametrize("raises", [False, True])
def test_a_function_that_outlives_its_worker_is_not_called_beside_itself(app, raises, on_terms, monkeypatch):
    """D-16: in a program that goes on it keeps its lease; when it has ended, that is on record, and others go on with the job."""
    monkeypatch.setattr("outlast.jobs.worker.FAREWELL", 0.05)
    on_terms(ttl=0.8)
    handle = held_order(app, hold_and_raise if raises else hold)
    BROKEN["b"] = [ConnectionError("away")]
    with Beside(app, drain=60) as beside:
        wait_until(HELD.is_set, "it is being undone")
        cut(beside.worker)
    assert (beside.result.cut_off, beside.worker.undoing_cut_off, beside.worker.not_again) == (1, 1, {})
    ((key, until),) = leases_of(app)
    with Beside(app) as other:
        wait_until(lambda: other.worker._tenure is not None, "another worker is there")
        wait_until(
            lambda: dict(leases_of(app))[key] > until + timedelta(seconds=1),
            "its lease was kept for longer than it lasts",
        )
        assert (DONE, handle.compensations()[1].status) == ([("undo", "b")], "running")
        assert app.store.job(int(handle.id)).worker == key
        HOLD.set()
        wait_until(lambda: handle.compensation == "completed", "it is undone")
        wait_until(lambda: key not in dict(leases_of(app)), "its lease is given back")
    assert (handle.status, DONE) == ("failed", [("undo", "b")] * (1 + raises) + [("undo", "a")])
    assert [(one.attempts, one.crashes) for one in handle.compensations()] == [(1, 0), (1, 0)]


def leases_of(app):
    return [(one.key, one.until) for one in app.store.workers() if one.alive]


def test_an_async_function_that_does_not_let_itself_be_cancelled_keeps_its_lease(sqlite_app, monkeypatch):
    """D-16: in an event loop that goes on after its worker."""
    monkeypatch.setattr("outlast.jobs.worker.FAREWELL", 0.05)
    app = sqlite_app

    @app.job(retry=None, name="aorder")
    async def aorder() -> None:
        await outlast.current().compensate(deaf, "b")
        raise ValueError("no")

    handle = aorder.enqueue()

    async def story():
        working = asyncio.create_task(app.awork())
        await asyncio.to_thread(HELD.wait, 100)
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        assert handle.compensations()[0].status == "running"
        assert leases_of(app)
        HOLD.set()
        await asyncio.to_thread(wait_until, lambda: handle.compensation == "completed", "it is undone")
        await asyncio.to_thread(wait_until, lambda: not leases_of(app), "its lease is given back")

    asyncio.run(story())
    assert (DONE, handle.compensations()[0].crashes) == ([("undo", "b")], 0)


def test_a_worker_that_drains_ends_what_it_undoes_and_begins_no_other(sqlite_app):
    """The rest is for the next one."""
    app = sqlite_app

    @app.job(retry=None)
    def order() -> None:
        outlast.current().compensate(undo, "a")
        outlast.current().compensate(hold, "b")
        raise ValueError("no")

    handle = order.enqueue()
    with Beside(app, drain=60) as beside:
        wait_until(HELD.is_set, "it is being undone")
        beside.worker.ask_soon()
        wait_until(lambda: beside.worker.view().drains_until is not None, "it drains")
        HOLD.set()
        wait_until(lambda: beside.result is not None, "it has ended")
    assert [one.status for one in handle.compensations()] == ["pending", "completed"]
    app.work(until_idle=True)
    assert (handle.compensation, DONE) == ("completed", [("undo", "b"), ("undo", "a")])


def test_a_claim_whose_answer_is_lost_is_given_back_and_made_again(app, monkeypatch):
    """While its worker lives nobody else looks at the job: it must find out itself."""
    real, lost = Store.claim_undoing, []

    def claims(self, *args, **kwargs):
        found = real(self, *args, **kwargs)
        if found and not lost:
            lost.append(found)
            raise StoreUnavailable("the answer is lost", error_class="database_connection")
        return found

    monkeypatch.setattr(Store, "claim_undoing", claims)
    handle = declared(app, False).enqueue(1)
    app.work(until_idle=True)
    assert (len(lost), handle.compensation, DONE[2:]) == (1, "completed", [("undo", "c"), ("undo", "b"), ("undo", "a")])


def test_a_claim_that_is_committed_after_it_was_looked_for_is_given_back(app, monkeypatch, on_terms):
    """The server is done with it only when the worker has given back what it did not know of: a beat finds it, and the next one."""
    on_terms(ttl=0.8)
    claim, release, lost, looked = Store.claim_undoing, Store.release_undoing, [], []

    def claims(self, *given, **how):
        if not lost:
            lost.append((self, given, how))
            raise StoreUnavailable("the answer is lost", error_class="database_connection")
        return claim(self, *given, **how) if looked else []

    def releases(self, *given):
        release(self, *given)
        if not looked:
            (store, asked, how), *_ = lost
            looked.extend(claim(store, *asked, **how))

    monkeypatch.setattr(Store, "claim_undoing", claims)
    monkeypatch.setattr(Store, "release_undoing", releases)
    handle = declared(app, False).enqueue(1)
    app.work(until_idle=True)
    assert (len(looked), handle.compensation) == (1, "completed")
    assert DONE[2:] == [("undo", "c"), ("undo", "b"), ("undo", "a")]
    assert [one.crashes for one in handle.compensations()] == [0, 0, 0]


def test_what_is_undone_for_longer_than_two_beats_stays_in_hand(app, on_terms, monkeypatch):
    """Nor is a job released whose code goes on after its end."""
    on_terms(ttl=0.4)
    beats, beat = threading.Semaphore(0), Tenure._release_strange
    monkeypatch.setattr(Tenure, "_release_strange", lambda *given: (beat(*given), beats.release()))
    handle = held_order(app)
    with Beside(app):
        wait_until(HELD.is_set, "it is being undone")
        for _ in range(4):
            assert beats.acquire(timeout=100)
        assert app.store.job(int(handle.id)).worker is not None
        HOLD.set()
        wait_until(lambda: handle.compensation == "completed", "it is undone")
    assert (DONE, [one.crashes for one in handle.compensations()]) == ([("undo", "b"), ("undo", "a")], [0, 0])


# -- what can be registered ------------------------------------------------------------------------------------------------


def made_inside():
    return lambda: None


@pytest.mark.parametrize(
    ("fn", "args", "words"),
    [
        (lambda: None, (), "made inside of a function. Move it to the top level"),
        (made_inside(), (), "made inside of a function. Move it to the top level"),
        (functools.partial(undo, 1), (), "got: a partial. Pass its function, and then its arguments"),
        (Shelf().take, (), "the method Shelf.take of an object"),
        (DONE.append, (1,), "got: an object of the type builtin_function_or_method"),
        (undo, (threading.Lock(),), "a value of type lock. Pass its id"),
        (undo, (Seat(1),), "a value of Seat, whose class no parameter of undo names. Annotate it"),
        (undo, ("x" * 2**20,), "bytes. Pass the name of large data"),
        (aundo, (1,), "a function that is not async where nothing can be awaited"),
        ("undo", (), "expected a function that undoes something"),
    ],
)
def test_what_another_process_could_not_call_is_refused_at_once(sqlite_app, fn, args, words):
    """Before anything is done, for good, and with the way out."""
    app = sqlite_app

    @app.job
    def order() -> None:
        outlast.current().compensate(fn, *args)
        DONE.append(("do", 1))

    handle = order.enqueue()
    work(app)
    assert (handle.status, DONE, handle.compensations()) == ("failed", [], [])
    assert words in handle.error


def test_a_blocking_function_in_an_async_job_is_registered_from_a_thread(sqlite_app):
    """To register it in the event loop would hold that up: it is refused with the way out, which works."""
    app = sqlite_app

    @app.job(retry=None)
    async def order(right: bool) -> None:
        if right:
            await asyncio.to_thread(outlast.current().compensate, undo, "a")
        else:
            outlast.current().compensate(undo, "a")
        raise ValueError("no")

    wrong, right = order.enqueue(False), order.enqueue(True)
    work(app)
    assert "await asyncio.to_thread(outlast.current().compensate, undo, ...)" in wrong.error
    assert (right.error, DONE) == ("no", [("undo", "a")])


def test_arguments_come_back_as_they_were_and_class_methods_are_found(app):
    """D-23: a dataclass by the annotation of the function."""

    @app.job
    def order() -> None:
        outlast.current().compensate(free, Seat(3))
        outlast.current().compensate(Shelf.clear, what="all")
        raise ValueError("no")

    order.enqueue()
    work(app)
    assert [("cleared", "all"), ("free", Seat(3))] == DONE


def test_what_current_says_while_something_is_undone(sqlite_app):
    """Its own attempt, and a key that is the same in each; steps belong to jobs."""
    app = sqlite_app

    @app.job
    def order() -> None:
        outlast.current().compensate(look, "look")
        outlast.current().compensate(step_inside, "step")
        raise ValueError("no")

    handle = order.enqueue()
    work(app)
    ((_, (job, attempt, most, key)),) = DONE
    assert (job, attempt, most, len(key)) == (handle.id, 1, 3, 32)
    assert "current().step needs a job" in handle.compensations()[1].error


def test_each_compensation_has_an_idempotency_key_of_its_own(sqlite_app):
    """The same in all of its attempts, but not that of the job, nor of another compensation or of another job."""
    app, keys = sqlite_app, []

    @app.job(retry=None)
    def order() -> None:
        keys.append(outlast.current().idempotency_key)
        for seat in ("1a", "1b"):
            outlast.current().compensate(look_twice, seat)
        raise ValueError("no")

    order.enqueue_many([{}, {}])
    work(app)
    assert sorted(attempt for _, (_, attempt, _, _) in DONE) == [1, 1, 1, 1, 2, 2, 2, 2]
    of_compensations = {key for _, (_, _, _, key) in DONE}
    assert (len(of_compensations), len({*keys}), of_compensations & {*keys}) == (4, 2, set())


def test_a_function_that_is_gone_is_waited_for_a_day(sqlite_app):
    """D-16: another worker may have it. In the end it has failed, and says where it was."""
    app = sqlite_app
    handle = declared(app, False).enqueue(1)
    hands = Hands(app)
    (claimed,) = hands.take()
    register(app, claimed, "a")
    from job_rows import failed

    hands.finish(failed(claimed))
    sql(app.store, f"update outlast_compensations set call = 'nowhere:undo' where app = '{app.name}'")
    app.work(until_idle=True)
    row = handle.compensations()[0]
    assert (row.status, row.attempts, row.error) == (
        "pending",
        0,
        "this worker cannot undo it: nowhere:undo is not there (ModuleNotFoundError)",
    )
    work(app)
    row = handle.compensations()[0]
    assert (row.status, row.stop_reason, row.error_class) == ("failed", "exhausted", "code_error")
    waited = (
        sql(app.store, f"select ended - registered from outlast_compensations where app = '{app.name}'")[0][0] / 1e6
    )
    assert waited == pytest.approx(15_330 + 5 * 14_400, rel=0.01)
    app.jobs.undo(handle.id)  # for another day
    app.work(until_idle=True)
    assert handle.compensations()[0].status == "pending"


def test_what_waits_for_its_function_is_undone_at_once_when_somebody_asks(sqlite_app):
    """U-23: once the function is there again nobody has to wait for hours; and what is under way is said to be."""
    app = sqlite_app
    lease, job, handle = claimed_for_undoing(app, "a")
    with pytest.raises(outlast.ConfigurationError, match="got: failed, and a worker is to undo it already"):
        app.jobs.undo(handle.id)
    app.store.drop_lease(lease)
    app.store.sweep(lambda _: False, lambda _: None)
    where = f"where app = '{app.name}' and job = {job.id}"
    sql(app.store, f"update outlast_compensations set call = 'nowhere:undo' {where}")
    app.work(until_idle=True)
    sql(app.store, f"update outlast_compensations set call = '{place_of(undo)}' {where}")
    assert (app.work(until_idle=True).later, DONE, handle.compensation) == (1, [], "pending")
    app.jobs.undo(handle.id, reason="deployed again")
    app.work(until_idle=True)
    assert (DONE, handle.compensation) == ([("undo", "a")], "completed")
    with pytest.raises(outlast.ConfigurationError, match="got: failed, and all of it is undone"):
        app.jobs.undo(handle.id)


PROGRAM = """
import sys
import outlast

app = outlast.App("shop", store="sqlite:///shop.db")

def undo(what):
    if "broken" in sys.argv:
        raise ConnectionError("down")
    print("undone by", WHO, what)

@app.job(retry=None)
def order():
    outlast.current().compensate(undo, "a")
    raise ValueError("no")

if __name__ == "__main__":
    if "enqueue" in sys.argv:
        order.enqueue()
    app.work(until_idle=True)
    for one in app.jobs.get("1").compensations():
        print(one.function, one.status, one.error)
"""


@pytest.mark.parametrize("how", [["shop.py"], ["-m", "shop"]])
def test_a_function_of_a_script_is_never_that_of_another_one(tmp_path, how):
    """Each program calls its own module __main__. Only with ``python -m`` has it a name by which others find it."""
    for name in ("shop", "other"):
        (tmp_path / f"{name}.py").write_text(PROGRAM.replace("WHO", repr(name)))

    def ran(*args):
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(tmp_path / "shop.db")) as db, db:
            db.execute("update outlast_compensations set due = null")
        done = subprocess.run(
            [sys.executable, *args], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.splitlines()

    place = "__main__:undo" if how == ["shop.py"] else "shop:undo"
    assert ran(*how, "enqueue", "broken") == [f"{place} pending down"]
    if how == ["shop.py"]:
        why = f"{place} is the one of {tmp_path / 'shop.py'}, and this program is another one"
        assert ran("other.py") == [f"{place} pending this worker cannot undo it: {why}"]
        assert ran(*how) == ["undone by shop a", f"{place} completed None"]
    else:
        assert ran("other.py") == ["undone by shop a", f"{place} completed None"]


def test_a_function_of_a_program_without_a_file_is_refused(sqlite_app, monkeypatch):
    """No other process could ever find it."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", None, raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(undo, "__module__", "__main__")
    with pytest.raises(
        outlast.ConfigurationError, match=r"got: undo of a program that is in no file\. Move it to a mod"
    ):
        place_of(undo)


def promise(what: str) -> object:
    """It is no coroutine function, and undoes nothing."""
    return aundo(what)


def one_by_one(what: str):
    return (undo(each) for each in [what])


@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (promise, "returned something to await: declare it with `async def`"),
        (one_by_one, "returned a generator, which was not run"),
    ],
)
def test_what_was_not_undone_has_failed(sqlite_app, fn, error):
    """A function that only promises to undo something has undone nothing; the others are undone."""
    app = sqlite_app

    @app.job(retry=None)
    def order() -> None:
        outlast.current().compensate(undo, "a")
        outlast.current().compensate(fn, "b")
        raise ValueError("no")

    handle = order.enqueue()
    work(app)
    assert (handle.compensation, DONE) == ("failed", [("undo", "a")])
    last = handle.compensations()[1]
    assert (last.status, last.error_class, error in last.error) == ("failed", "code_error", True)


def test_a_module_that_ends_its_program_is_one_that_cannot_be_loaded(sqlite_app, tmp_path, monkeypatch):
    """It is on record, and the job is given back for another worker."""
    app = sqlite_app
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    handle = declared(app, False).enqueue(1)
    hands = Hands(app)
    (claimed,) = hands.take()
    register(app, claimed, "a")
    from job_rows import failed

    hands.finish(failed(claimed))
    sql(app.store, f"update outlast_compensations set call = 'leaves:undo' where app = '{app.name}'")
    app.work(until_idle=True)
    assert (handle.compensations()[0].status, handle.compensations()[0].error) == (
        "pending",
        "this worker cannot undo it: leaves cannot be loaded (SystemExit)",
    )
    assert app.store.job(int(handle.id)).worker is None


def test_whatever_happens_around_it_the_job_is_given_back(sqlite_app, monkeypatch):
    """No other worker looks at what one has that lives: it is on record, and waits."""
    app = sqlite_app
    monkeypatch.setattr(undoing.Undoer, "_found", lambda *_: 1 / 0)
    handle = declared(app, False).enqueue(1)
    app.work(until_idle=True)
    assert (handle.compensation, handle.compensations()[2].error) == (
        "pending",
        "this worker cannot undo it: ZeroDivisionError was raised around it",
    )
    assert app.store.job(int(handle.id)).worker is None


@pytest.mark.parametrize("is_async", [False, True])
def test_the_same_registration_from_many_threads_is_one(sqlite_app, monkeypatch, is_async):
    """The bound holds, too: what is about to be put on record counts."""
    app = sqlite_app
    monkeypatch.setattr(onrecord, "MOST_COMPENSATIONS", 4)
    refused = []

    def go(what: str) -> None:
        try:
            outlast.current().compensate(undo, what)
        except outlast.PermanentFailure as error:
            refused.append(error)

    async def ago(what: str) -> None:
        try:
            await outlast.current().compensate(aundo, what)
        except outlast.PermanentFailure as error:
            refused.append(error)

    names = [*"aaaaaaaaaa", *"bcdefg"]

    @app.job(name="sync", retry=None)
    def order() -> None:
        with ThreadPoolExecutor(16) as pool:
            for name in names:
                pool.submit(copy_context().run, go, name)
        raise ValueError("no")

    @app.job(name="async", retry=None)
    async def aorder() -> None:
        await asyncio.gather(*(ago(name) for name in names))
        raise ValueError("no")

    handle = (aorder if is_async else order).enqueue()
    work(app)
    undone = [what for _, what in DONE]
    assert (len(undone), len(set(undone)), undone.count("a"), len(handle.compensations())) == (4, 4, 1, 4)
    assert len(refused) == 3


def test_a_paused_queue_undoes_nothing(app):
    """What the operator has stopped stays stopped."""
    handle = declared(app, False).enqueue(1)
    hands = Hands(app)
    (claimed,) = hands.take()
    register(app, claimed, "a")
    from job_rows import failed

    hands.finish(failed(claimed))
    app.jobs.pause("default")
    app.work(until_idle=True)
    assert (handle.compensation, DONE) == ("pending", [])
    app.jobs.resume("default")
    app.work(until_idle=True)
    assert (handle.compensation, DONE) == ("completed", [("undo", "a")])


def test_a_job_that_ends_in_a_transaction_of_its_own_is_not_undone(sqlite_app):
    """A success is one, however it comes about."""
    app = sqlite_app

    @app.job
    def order(path: str) -> None:
        import sqlite3

        do("a")
        with sqlite3.connect(path) as connection:
            outlast.current().finish_in(connection, result="paid")
        connection.close()
        raise ValueError("too late")

    handle = order.enqueue(app.store_file)
    work(app)
    assert (handle.status, handle.compensation, DONE) == ("succeeded", "none", [("do", "a")])


def test_inline_undoes_too(sqlite_app):
    """As every worker does."""
    order = declared(sqlite_app, False)
    with pytest.raises(outlast.JobFailed), inline(sqlite_app):
        order.enqueue(1)
    assert DONE[2:] == [("undo", "c"), ("undo", "b"), ("undo", "a")]


def test_a_plain_call_of_the_function_undoes_nothing_and_refuses_the_same(sqlite_app):
    """There is no job that could fail for good: its error goes to the caller."""
    order = declared(sqlite_app, False)
    with pytest.raises(ValueError, match="no money"):
        order(1)
    assert DONE == [("do", "a"), ("do", "b")]

    @sqlite_app.job
    def wrong() -> None:
        outlast.current().compensate(lambda: None)

    with pytest.raises(outlast.ConfigurationError, match="top level of a module"):
        wrong()


def test_retention_keeps_a_job_that_is_not_undone(sqlite_app):
    """C-28: without it nobody would know what still stands; with it go its rows."""
    app = sqlite_app
    BROKEN["b"] = [ValueError("locked")]
    handle = declared(app, False).enqueue(1)
    work(app)
    job = next(one for one in app.dead_letters.find() if one.kind == "job")
    app.dead_letters.archive(ids=[job.id], reason="known")
    sql(app.store, f"update outlast_dead_letters set status = 'resolved' where id = '{job.id}'")
    later = handle.enqueued_at.replace(year=handle.enqueued_at.year + 1)
    assert app.store.prune("failed_jobs", later) == 0
    app.dead_letters.archive(ids=[handle.compensations()[1].dead_letter], reason="by hand")
    assert app.store.prune("failed_jobs", later) == 1
    assert sql(app.store, "select count(*) from outlast_compensations") == [(0,)]


# -- any history of registrations, failures and crashes ----------------------------------------------------------------------

PARTS = st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=8)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(PARTS, min_size=1, max_size=3), fails=st.sets(st.sampled_from("abcdef"), max_size=2))
def test_any_history_is_undone_in_the_reverse_order_of_its_first_registrations(sqlite_app, rounds, fails):
    """C-21: over attempts that fail at any place, with steps and without; what fails is told, and stops none."""
    DONE.clear()
    BROKEN.clear()
    BROKEN.update({what: [ValueError("locked")] for what in fails})
    app = outlast.App(f"any-{os.urandom(8).hex()}", store=sqlite_app.store_url)
    left = [*rounds]

    @app.job(retry=NOW.replace(max_attempts=len(rounds)))
    def order() -> None:
        context = outlast.current()
        for what, in_step in left.pop(0):
            if in_step:
                context.step(what, do, what)
            else:
                context.compensate(undo, what)
        raise ConnectionError("away")

    handle = order.enqueue()
    work(app)
    registered = [*dict.fromkeys(what for parts in rounds for what, _ in parts)]
    assert [what for deed, what in DONE if deed == "undo"] == registered[::-1]
    assert [one.status for one in handle.compensations()] == [
        "failed" if what in fails else "completed" for what in registered
    ]
    wanted = "none" if not registered else "failed" if fails & {*registered} else "completed"
    assert (handle.status, handle.error, handle.compensation) == ("failed", "away", wanted)
    app.store.close()
