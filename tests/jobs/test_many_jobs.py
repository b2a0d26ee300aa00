"""Many short jobs: they share tasks and nothing else, and no long queue hides what must go first."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from weakref import WeakKeyDictionary

import pytest

import outlast

_MANY = 300_000  # jobs after which a job counts as starved
noted: contextvars.ContextVar[int] = contextvars.ContextVar("noted")


@pytest.fixture
def run(sqlite_app):
    """Makes a job of a function, enqueues it for each of some numbers, and works until all have run."""

    def run_all(fn, numbers, **options):
        job = sqlite_app.job(**options)(fn)
        job.enqueue_many([{"n": n} for n in numbers])
        return sqlite_app.work(until_idle=True, concurrency=50)

    return run_all


# -- jobs that share a task


def test_each_job_has_variables_of_its_own(run):
    """What one job sets in its context no other one sees, whether they wait or not."""
    seen = []

    async def note(n: int) -> None:
        seen.append(noted.get(None))
        noted.set(n)
        if n % 3 == 0:
            await asyncio.sleep(0)
        assert noted.get() == n

    assert run(note, range(20)).succeeded == 20
    assert seen == [None] * 20


def test_a_job_that_waits_holds_up_no_other(run):
    """The first waits for what the last one does."""
    last, order = asyncio.Event(), []

    async def wait(n: int) -> None:
        if n == 0:
            await last.wait()
        elif n == 9:
            last.set()
        order.append(n)

    assert run(wait, range(10)).succeeded == 10
    assert order == [*range(1, 10), 0]


def test_a_timeout_inside_of_a_job_strikes_that_job(run):
    """asyncio.timeout asks for the running task; the jobs around the one whose time is up go on."""
    struck, ended = [], []

    async def hurry(n: int) -> None:
        try:
            async with asyncio.timeout(0.01 if n == 3 else 100):
                if n == 3:
                    await asyncio.Event().wait()
        except TimeoutError:
            struck.append(n)
        await asyncio.sleep(0)
        ended.append(n)

    assert run(hurry, range(8)).succeeded == 8
    assert (struck, sorted(ended)) == ([3], [*range(8)])


@pytest.mark.parametrize("taken_back", [False, True])
def test_a_job_that_cancels_its_own_task_and_ends_cancels_no_other(run, taken_back):
    """Neither a request that stands nor, on Python 3.11, one that was taken back reaches the next job's wait."""
    ended = []

    async def cancel(n: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        if n % 2 == 0:
            task.cancel()
            if taken_back:
                task.uncancel()
        else:
            await asyncio.sleep(0)
        ended.append(n)

    assert run(cancel, range(10)).succeeded == 10
    assert sorted(ended) == [*range(10)]


def test_what_a_job_keeps_of_its_task_belongs_to_it_alone(run):
    """The task itself, a weak reference to it, its name, a callback at its end: no other job meets any of them."""
    kept, weakly, names, told = [], WeakKeyDictionary(), [], []

    async def keep(n: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert task not in kept
        assert task not in weakly
        names.append(task.get_name())
        if n == 1:
            kept.append(task)
        elif n == 3:
            weakly[task] = n
        elif n == 5:
            task.set_name("mine")
        elif n == 7:
            task.add_done_callback(lambda _: told.append(n))
        elif n == 8:
            assert told == []  # the task of the one before is over, and its callbacks come next
        elif n == 9:
            await asyncio.sleep(0)
            assert told == [7]

    assert run(keep, range(10)).succeeded == 10
    assert "mine" not in names
    assert kept[0].done()


def test_a_job_that_takes_long_without_waiting_lets_the_loop_look_at_others(run):
    """A thousand of them are no reason to hear of nothing else meanwhile."""
    heard, last = threading.Event(), []

    async def block(n: int) -> None:
        if n == 0:
            asyncio.get_running_loop().call_soon(heard.set)
        heard.wait(0.02)  # blocks the loop
        last.append(heard.is_set())

    assert run(block, range(50)).succeeded == 50
    assert last.count(False) < 5


def test_one_that_fails_among_short_ones_fails_alone(run):
    """The exit of a job, or an error, ends its own attempt."""

    async def fail(n: int) -> None:
        if n == 2:
            raise SystemExit(3)
        if n == 4:
            raise ValueError("never")

    result = run(fail, range(8), retry=None)
    assert (result.succeeded, result.failed) == (6, 2)


# -- a long queue


def _endless(app, until):
    """A job that keeps the queue long until something has happened, and how many of it have run."""
    ran = []

    @app.job
    async def fill(n: int) -> None:
        ran.append(n)
        if n == 0 and not until() and len(ran) < _MANY:
            fill.enqueue_many([{"n": 1} for _ in range(1000)] + [{"n": 0}])

    fill.enqueue_many([{"n": 0} for _ in range(5)])
    return ran


def test_a_higher_priority_is_claimed_before_the_rest_of_a_long_queue(app):
    """A worker that goes on from where it was looks from the start again and again."""
    urgent_ran = []
    ran = _endless(app, lambda: urgent_ran)

    @app.job
    async def urgent() -> None:
        urgent_ran.append(len(ran))

    @app.job
    async def begin() -> None:
        urgent.options(priority=5).enqueue()

    begin.options(delay=0.05).enqueue()
    assert app.work(until_idle=True, concurrency=400).failed == 0
    assert urgent_ran[0] < _MANY


def test_a_job_that_comes_back_is_claimed_before_the_rest_of_a_long_queue(app):
    """One that failed and is due again has a lower id than all that were claimed since."""
    attempts = []
    ran = _endless(app, lambda: len(attempts) == 2)

    @app.job(retry=outlast.RetryPolicy(max_attempts=2, initial_delay=0.05, jitter=0))
    async def flaky() -> None:
        attempts.append(len(ran))
        if len(attempts) == 1:
            raise ConnectionResetError("once more")

    flaky.enqueue()
    assert app.work(until_idle=True, concurrency=400).failed == 0
    assert attempts[1] < _MANY


def test_jobs_of_many_priorities_run_in_their_order(app):
    """The place of one priority is no place of another."""
    order = []

    @app.job
    async def note(n: int) -> None:
        order.append(n)

    for n in range(12):
        note.options(priority=n % 4).enqueue_many([{"n": n % 4}] * 60)
    assert app.work(until_idle=True, concurrency=300).succeeded == 720
    assert order == sorted(order, reverse=True)
