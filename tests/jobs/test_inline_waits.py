"""C-11: waits of a job's own guard, inside of an attempt: short ones off its slot, long ones in the queue."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

import outlast
from labor import Beside, outcomes, wait_until
from outlast.jobs.doors import made
from outlast.kernel.clock import here
from outlast.testing import capture_events, virtual_time, work

SLOW = outlast.RetryPolicy(max_attempts=3, initial_delay=500, max_delay=None, jitter=0)
TOLD = {"job_claimed", "step_retry_attempt", "step_retry_exhausted", "job_requeued", "job_failed", "job_succeeded"}


def guarded(*delays, **options):
    return outlast.Guard("fetch", retry=outlast.RetryPolicy(delays=delays, jitter=0), **options)


def fails_in_a_child():
    """Two attempts fail, wherever they are made."""
    if outlast.current().attempt < 3:
        raise ConnectionResetError("down")
    return "there"


def declared(app, kind, guard, **options):
    """A job that fails until its third attempt, whichever way it is run."""
    given = {"retry": SLOW, "guard": guard} | options
    if kind == "process":
        return app.job(isolation="process", **given)(fails_in_a_child)
    if kind == "sync":

        @app.job(name="sync", **given)
        def sync_job() -> str:
            return fails_in_a_child()

        return sync_job

    @app.job(name="async", **given)
    async def async_job() -> str:
        return fails_in_a_child()

    return async_job


def story(events):
    """What happened, with the attempt of the job or of its guard, and the wait that follows."""
    return [
        (event.name, event.attempt, getattr(event, "next_delay", getattr(event, "delay", None)))
        for event in events
        if event.name in TOLD
    ]


@pytest.mark.parametrize("kind", ["sync", "async", "process"])
def test_a_long_wait_of_a_guard_becomes_a_requeue(app, kind):
    """C-11: above 30 s the attempt is over, and the job is due after exactly that wait; each costs an attempt."""
    handle = declared(app, kind, guarded(31, 60)).enqueue()
    with capture_events() as events:
        result = work(app)
    assert (result.succeeded, result.requeued, handle.result(), handle.attempts) == (1, 2, "there", 3)
    assert story(events) == [
        ("job_claimed", 1, None),
        ("step_retry_attempt", 1, 31.0),
        ("job_requeued", 1, 31.0),
        ("job_claimed", 2, None),
        ("step_retry_attempt", 1, 31.0),
        ("job_requeued", 2, 31.0),
        ("job_claimed", 3, None),
        ("job_succeeded", 3, None),
    ]
    rows = handle.history()
    assert [(row.outcome, row.error_class, row.stop_reason) for row in rows] == [
        ("failed", "connection_reset", None),
        ("failed", "connection_reset", None),
        ("succeeded", None, None),
    ]
    waits = [(row.next_run_at - row.started_at).total_seconds() - row.duration for row in rows[:2]]
    assert waits == [pytest.approx(31, abs=20)] * 2


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_short_wait_stays_inside(app, kind):
    """C-11: 30 s are waited off the slot, by the guard; its second attempt is the same attempt of the job."""
    calls = []

    def fetch() -> str:
        calls.append(outlast.current().attempt)
        if len(calls) == 1:
            raise ConnectionResetError("down")
        return "there"

    @app.job(name="sync", retry=SLOW, guard=guarded(30))
    def sync_job() -> str:
        return fetch()

    @app.job(name="async", retry=SLOW, guard=guarded(30))
    async def async_job() -> str:
        return fetch()

    handle = app.kinds[kind].enqueue()
    with capture_events() as events:
        work(app)
    assert (handle.result(), handle.attempts, calls) == ("there", 1, [1, 1])
    assert story(events) == [
        ("job_claimed", 1, None),
        ("step_retry_attempt", 1, 30.0),
        ("job_succeeded", 1, None),
    ]


def test_the_last_attempt_of_a_job_waits_where_it_is(app):
    """Nothing of what its guard grants is lost: four calls in two attempts of the job, then it is over."""
    calls = []

    @app.job(retry=SLOW.replace(max_attempts=2), guard=guarded(40, 50))
    async def fetch() -> None:
        calls.append(outlast.current().attempt)
        raise ConnectionResetError("down")

    handle = fetch.enqueue()
    with capture_events() as events:
        assert work(app).failed == 1
    assert calls == [1, 2, 2, 2]
    assert story(events) == [
        ("job_claimed", 1, None),
        ("step_retry_attempt", 1, 40.0),
        ("job_requeued", 1, 40.0),
        ("job_claimed", 2, None),
        ("step_retry_attempt", 1, 40.0),
        ("step_retry_attempt", 2, 50.0),
        ("step_retry_exhausted", 3, None),
        ("job_failed", 2, None),
    ]
    assert (outcomes(handle), handle.history()[-1].stop_reason) == (["failed", "failed"], "exhausted")


def test_a_long_retry_after_becomes_a_requeue(app):
    """C-11, D-6: what the service asks for, and the guard's own wait on top."""

    @app.job(retry=SLOW, guard=outlast.Guard(retry=outlast.RetryPolicy(initial_delay=2, jitter=0)))
    async def fetch() -> str:
        if outlast.current().attempt == 1:
            raise outlast.TemporaryFailure("too many", retry_after=70)
        return "there"

    handle = fetch.enqueue()
    with capture_events() as events:
        work(app)
    assert handle.result() == "there"
    assert [event.delay for event in events if event.name == "job_requeued"] == [72.0]


def test_a_result_that_is_not_wanted_waits_in_the_queue_too(app):
    """And no fallback answers for what is tried again later."""
    guard = outlast.Guard(
        retry=outlast.RetryPolicy(delays=(45,), jitter=0),
        retry_if=lambda found: found is None,
        fallback=lambda: "instead",
    )

    @app.job(retry=SLOW, guard=guard)
    async def fetch() -> str | None:
        return None if outlast.current().attempt == 1 else "there"

    @app.job(retry=SLOW, guard=guard)
    def failing() -> str:
        if outlast.current().attempt == 1:
            raise ConnectionResetError("down")
        return "there"

    handles = [fetch.enqueue(), failing.enqueue()]
    work(app)
    assert [handle.result() for handle in handles] == ["there", "there"]
    assert [outcomes(handle) for handle in handles] == [["failed", "succeeded"]] * 2
    assert handles[0].history()[0].error == "retry_if wants another result"


def test_a_long_wait_that_does_not_fit_into_the_total_timeout_is_not_begun(app):
    """D-7: neither inside nor in the queue."""

    @app.job(retry=SLOW, guard=guarded(60, total_timeout=50))
    async def fetch() -> None:
        raise ConnectionResetError("down")

    handle = fetch.enqueue()
    assert work(app).failed == 1
    assert (outcomes(handle), handle.history()[0].stop_reason) == (["failed"], "total_timeout")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_waits_between_attempts_are_not_of_the_attempts_time(app, kind):
    """Twice 25 s are waited in an attempt of 40 s: what waits off its slot uses up nothing."""
    left, calls = [], []

    def fetch() -> str:
        left.append(outlast.current().remaining())
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionResetError("down")
        return "there"

    given = {"retry": None, "timeout": 40, "guard": guarded(25, 25)}

    @app.job(name="sync", **given)
    def sync_job() -> str:
        return fetch()

    @app.job(name="async", **given)
    async def async_job() -> str:
        return fetch()

    handle = app.kinds[kind].enqueue()
    work(app)
    assert (handle.status, handle.attempts) == ("succeeded", 1)
    assert all(30 < seconds <= 40 for seconds in left)
    assert len(left) == 3


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_code_takes_counts_through_all_waits(app, kind):
    """Ten seconds of work, a wait of twenty, ten more: an attempt of 15 s is over in the second ten."""
    given = {"retry": None, "timeout": 15, "guard": guarded(20, 20)}

    @app.job(name="sync", **given)
    def sync_job() -> None:
        left.append(outlast.current().remaining())
        here.get().clock.sleep(10, None)
        raise ConnectionResetError("down")

    @app.job(name="async", **given)
    async def async_job() -> None:
        left.append(outlast.current().remaining())
        await here.get().clock.asleep(10, None)
        raise ConnectionResetError("down")

    left = []
    handle = app.kinds[kind].enqueue()
    with virtual_time():
        asyncio.run(made(app, (), 4, until_idle=True, due_later=True).run())
    assert (outcomes(handle), handle.status) == (["timeout"], "failed")
    assert handle.history()[0].error == "the attempt took longer than 15 s"
    assert left == [pytest.approx(15, abs=1), pytest.approx(5, abs=1)]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_code_that_took_too_long_is_not_called_again(app, kind):
    """It fails after its time, before the worker has seen that this is up: its guard waits for no other attempt."""
    given = {"retry": None, "timeout": 15, "guard": guarded(20, 20)}
    calls = []

    def overlong() -> None:
        calls.append(outlast.current().remaining())
        time.advance(20)  # at once: the event loop, which would end it, has no turn in between
        raise ConnectionResetError("down")

    @app.job(name="sync", **given)
    def sync_job() -> None:
        overlong()

    @app.job(name="async", **given)
    async def async_job() -> None:
        overlong()

    handle = app.kinds[kind].enqueue()
    with virtual_time() as time:
        asyncio.run(made(app, (), 4, until_idle=True, due_later=True).run())
    assert calls == [pytest.approx(15, abs=1)]
    assert (outcomes(handle), handle.status) == (["timeout"], "failed")
    assert handle.history()[0].error == "the attempt took longer than 15 s"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_line_before_the_second_attempt_is_not_of_the_attempts_time(app, kind):
    """It stands in the line of a limit again, longer than its timeout, and has all that was left of it."""
    limit = outlast.Limit(f"again, {kind}", concurrency=1)
    guard = outlast.Guard(retry=outlast.RetryPolicy(initial_delay=0, jitter=0), limit=limit)
    turns, left = [], []

    def fetch() -> str:
        left.append(outlast.current().remaining())
        if not turns:
            turns.append(limit.line_up(None))  # somebody who comes before the second attempt
            raise ConnectionResetError("down")
        return "there"

    given = {"retry": None, "timeout": 1000, "guard": guard}

    @app.job(name="sync", **given)
    def sync_job() -> str:
        return fetch()

    @app.job(name="async", **given)
    async def async_job() -> str:
        return fetch()

    handle = app.kinds[kind].enqueue()
    worker = made(app, (), 4, until_idle=True)

    def in_line():
        return [one for one in [*worker._running] if one.away and not one.uncalled]

    async def story():
        task = asyncio.create_task(worker.run())
        (active,) = await asyncio.to_thread(wait_until, in_line, "it is in line again")
        active.left_at -= 5000  # it has waited for so long
        active.started -= 5000
        active.runner._late(active)  # and its timer has struck
        limit.leave(turns[0].entry)
        return await task

    result = asyncio.run(story())
    assert (result.succeeded, handle.attempts, handle.status) == (1, 1, "succeeded")
    assert [900 < seconds <= 1000 for seconds in left] == [True, True]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_worker_that_ends_while_a_job_comes_back_to_its_slot_loses_no_place(sqlite_app, kind):
    """The limit has granted its place, and the slot is still another job's: the place goes back, and nothing is called."""
    app, limit = sqlite_app, outlast.Limit(f"stopped, {kind}", concurrency=1)
    inside, go_on, called = threading.Event(), threading.Event(), []
    given = {"retry": None, "guard": outlast.Guard(retry=None, limit=limit)}

    @app.job(name="sync", **given)
    def sync_job() -> None:
        called.append("sync")

    @app.job(name="async", **given)
    async def async_job() -> None:
        called.append("async")

    @app.job
    def other() -> None:
        inside.set()
        go_on.wait(100)

    assert limit.acquire_nowait()
    handle, after = app.kinds[kind].enqueue(), other.enqueue()
    with Beside(app, concurrency=1) as beside:
        assert inside.wait(100)  # so the first one waits in line, off its slot
        limit.release()
        wait_until(lambda: limit.under_way == 1, "its place is granted")
        beside.worker.ask_soon()
        wait_until(lambda: beside.worker.view().drains_until is not None, "its worker ends")
        go_on.set()
    assert (limit.under_way, limit.waiting, called) == (0, 0, [])
    assert (handle.status, handle.attempts, after.status) == ("queued", 0, "succeeded")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_open_circuit_before_the_second_attempt_is_not_of_the_attempts_time(app, kind):
    """on_open="wait": the circuit opens with the first attempt, for longer than the job may take."""
    breaker = outlast.CircuitBreaker(f"again, {kind}", failure_threshold=1, reset_timeout=300)
    policy = outlast.RetryPolicy(max_attempts=2, initial_delay=0, jitter=0)
    given = {"retry": None, "timeout": 60, "guard": outlast.Guard(retry=policy, breaker=breaker, on_open="wait")}
    left = []

    def fetch() -> str:
        left.append(outlast.current().remaining())
        if len(left) == 1:
            raise ConnectionResetError("down")
        return "there"

    @app.job(name="sync", **given)
    def sync_job() -> str:
        return fetch()

    @app.job(name="async", **given)
    async def async_job() -> str:
        return fetch()

    handle = app.kinds[kind].enqueue()
    work(app)
    assert (handle.result(), handle.attempts) == ("there", 1)
    assert [50 < seconds <= 60 for seconds in left] == [True, True]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("total", [None, 100])
def test_the_timeout_of_a_job_in_a_process_is_the_attempts(app, total):
    """Not the total timeout, whoever has noticed it."""
    guard = outlast.Guard(retry=None, total_timeout=total)
    hangs = app.job(isolation="process", timeout=0.3, retry=None, guard=guard)(hang)
    plain = app.job(name="plain", isolation="process", timeout=0.3, retry=None)(hang)
    handles = [hangs.enqueue(), plain.enqueue()]
    app.work(until_idle=True)
    for handle in handles:
        (row,) = handle.history()
        assert (row.outcome, row.error_type) == ("timeout", "AttemptTimeoutError")
        assert row.error.endswith("took longer than 0.3 s")


def hang():
    """For longer than anybody waits."""
    threading.Event().wait(1000)


# -- guards inside of the body ---------------------------------------------------------------------------------------------


def fetching(app, is_async, made_with, **options):
    """A job of two steps, the second of which has a guard of its own that fails once."""
    calls = []

    def first() -> int:
        calls.append("first")
        return 1

    async def afirst() -> int:
        return first()

    @made_with
    def fetch() -> str:
        calls.append("fetch")
        if calls.count("fetch") == 1:
            raise ConnectionResetError("down")
        return "there"

    @made_with
    async def afetch() -> str:
        calls.append("fetch")
        if calls.count("fetch") == 1:
            raise ConnectionResetError("down")
        return "there"

    @app.job(name="sync", **({"retry": SLOW} | options))
    def sync_job() -> str:
        outlast.current().step("first", first)
        try:
            return outlast.current().step("fetch", fetch)
        except Exception:  # noqa: BLE001 - that a job waits is no failure of its code
            return "never"

    @app.job(name="async", **({"retry": SLOW} | options))
    async def async_job() -> str:
        await outlast.current().step("first", afirst)
        try:
            return await outlast.current().step("fetch", afetch)
        except Exception:  # noqa: BLE001 - as above
            return "never"

    return (async_job if is_async else sync_job), calls


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("wait", [30, 31])
def test_a_long_wait_of_a_guard_inside_of_the_body_becomes_a_requeue(app, is_async, wait):
    """C-11: of a retry in a step, too, after exactly that wait; steps that are done are not done again. 30 s are waited inside."""
    job, calls = fetching(app, is_async, outlast.retry(delays=(wait,), jitter=0))
    handle = job.enqueue()
    with capture_events() as events:
        work(app)
    assert (handle.result(), calls) == ("there", ["first", "fetch", "fetch"])
    again = [("job_requeued", 1, 31.0), ("job_claimed", 2, None)] if wait > 30 else []
    assert story(events) == [
        ("job_claimed", 1, None),
        ("step_retry_attempt", 1, float(wait)),
        *again,
        ("job_succeeded", 2 if again else 1, None),
    ]
    assert [row.error_class for row in handle.history()] == (["connection_reset"] if again else []) + [None]


@pytest.mark.parametrize("is_async", [False, True])
def test_the_last_attempt_waits_for_a_guard_inside_where_it_is(app, is_async):
    """Else what that guard grants would be lost."""
    job, calls = fetching(app, is_async, outlast.retry(delays=(40,), jitter=0), retry=None)
    handle = job.enqueue()
    work(app)
    assert (handle.result(), handle.attempts, calls) == ("there", 1, ["first", "fetch", "fetch"])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_circuit_that_is_open_for_long_is_waited_for_in_the_queue(app, is_async):
    """C-11, D-10: on_open="wait" of a guard inside. It opens with the first attempt, and the job comes back when it may be tried."""
    breaker = outlast.CircuitBreaker("mail", failure_threshold=1, reset_timeout=50)
    guard = outlast.Guard("mail", retry=outlast.RetryPolicy(initial_delay=1, jitter=0), breaker=breaker, on_open="wait")
    job, calls = fetching(app, is_async, guard)
    handle = job.enqueue()
    with capture_events() as events:
        work(app)
    assert (handle.result(), calls) == ("there", ["first", "fetch", "fetch"])
    (requeued,) = [event for event in events if event.name == "job_requeued"]
    assert (requeued.delay, requeued.error_class) == (pytest.approx(49, abs=1.1), "connection_reset")


@pytest.mark.parametrize("is_async", [False, True])
def test_the_circuit_of_the_jobs_own_guard_is_waited_for_in_the_queue(app, is_async):
    """D-10: nothing was called, so it costs no attempt."""
    breaker = outlast.CircuitBreaker("own", failure_threshold=1, reset_timeout=50)
    guard = outlast.Guard("own", retry=None, breaker=breaker, on_open="wait")
    calls = []

    @app.job(name="sync", retry=SLOW, guard=guard)
    def sync_job() -> int:
        calls.append(1)
        return len(calls)

    @app.job(name="async", retry=SLOW, guard=guard)
    async def async_job() -> int:
        return sync_job.fn()

    handle = (async_job if is_async else sync_job).enqueue()
    with virtual_time():
        with pytest.raises(ConnectionResetError):
            guard(lambda: (_ for _ in ()).throw(ConnectionResetError("down")))()
        result = app_work(app)
    assert (result.requeued + result.released, handle.result(), handle.attempts) == (1, 1, 1)
    assert outcomes(handle) == ["released", "succeeded"]


def app_work(app):
    return asyncio.run(made(app, (), 8, until_idle=True, due_later=True).run())


def test_tasks_of_a_job_that_wait_for_long_leave_it_together(app):
    """A task group holds what each of them has raised; the first wait counts."""

    @outlast.retry(delays=(60,), jitter=0)
    async def fetch(number: int) -> None:
        if outlast.current().job_id and asks.count(number) < 1:
            asks.append(number)
            raise ConnectionResetError("down")

    asks: list[int] = []

    @app.job(retry=SLOW)
    async def both() -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(fetch(1))
            group.create_task(fetch(2))
        return "both"

    handle = both.enqueue()
    result = work(app)
    assert (result.requeued, handle.result(), [row.error for row in handle.history()]) == (1, "both", ["down", None])


@pytest.mark.parametrize("how", ["bare except", "thread", "gather", "wait", "own guard"])
def test_a_wait_that_the_code_has_caught_is_made_all_the_same(app, how):
    """C-11: the job waits in the queue. It has not succeeded, whatever its code has returned."""
    calls, returned = [], []

    @outlast.retry(delays=(60,), jitter=0)
    def fetch() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionResetError("down")
        return "there"

    @outlast.retry(delays=(60,), jitter=0)
    async def afetch() -> str:
        return fetch.__wrapped__()

    def caught() -> str:
        if how == "thread":
            came: list[str] = []
            variables = contextvars.copy_context()
            thread = threading.Thread(target=lambda: came.append(_quiet(lambda: variables.run(fetch))))
            thread.start()
            thread.join()
            return came[0]
        return _quiet(fetch)

    async def acaught() -> str:
        if how == "gather":
            return str((await asyncio.gather(afetch(), return_exceptions=True))[0])
        task = asyncio.ensure_future(afetch())
        await asyncio.wait([task])
        return "never" if task.exception() else task.result()

    @app.job(name="sync", retry=SLOW, **({"guard": guarded(1)} if how == "own guard" else {}))
    def sync_job() -> str:
        returned.append(caught())
        return returned[-1]

    @app.job(name="async", retry=SLOW)
    async def async_job() -> str:
        returned.append(await acaught())
        return returned[-1]

    handle = (async_job if how in {"gather", "wait"} else sync_job).enqueue()
    with capture_events() as events:
        work(app)
    assert (handle.result(), len(calls), returned[1:]) == ("there", 2, ["there"])
    assert [each for each in story(events) if each[0].startswith("job")] == [
        ("job_claimed", 1, None),
        ("job_requeued", 1, 60.0),
        ("job_claimed", 2, None),
        ("job_succeeded", 2, None),
    ]
    assert [(row.outcome, row.error) for row in handle.history()] == [("failed", "down"), ("succeeded", None)]


def _quiet(do):
    try:
        return do()
    except:  # noqa: E722 - what code does
        return "never"


def test_a_hedge_of_which_all_wait_for_long_waits_in_the_queue(app):
    """C-11: nobody is left who could answer meanwhile, and the slot is for others."""
    hedged = outlast.Guard("hedged", hedge=outlast.Hedge(after=0.1))
    inner = outlast.Guard("inner", retry=outlast.RetryPolicy(max_attempts=2, initial_delay=60, max_delay=None))
    calls: list[int] = []

    async def fetch() -> str:
        calls.append(len(calls))
        await here.get().clock.asleep(0.2)
        raise ConnectionResetError("down")

    async def guarded_fetch() -> str:
        return await inner.call(fetch)

    @app.job(retry=SLOW)
    async def job() -> str:
        return await hedged.call(guarded_fetch)

    handle = job.enqueue()
    work(app)
    # Two calls in each of the first attempts; the last one has no queue to wait in, and makes both attempts of both.
    assert (outcomes(handle), len(calls)) == (["failed"] * 3, 2 + 2 + 4)


def test_a_hedge_that_would_wait_for_long_leaves_the_answer_to_the_other(app):
    """C-11, C-14: an execution that fails leaves the field to the other one, which may be about to answer; nothing is requeued."""
    hedged = outlast.Guard("hedged", hedge=outlast.Hedge(after=0.1))
    inner = outlast.Guard("inner", retry=outlast.RetryPolicy(max_attempts=3, initial_delay=60, max_delay=None))
    calls: list[int] = []

    async def fetch() -> str:
        calls.append(len(calls))
        if calls[-1]:
            raise ConnectionResetError("down")
        await here.get().clock.asleep(0.5)
        return "there"

    async def guarded_fetch() -> str:
        return await inner.call(fetch)

    @app.job(retry=SLOW)
    async def job() -> str:
        return await hedged.call(guarded_fetch)

    handle = job.enqueue()
    work(app)
    assert (handle.result(), outcomes(handle), calls) == ("there", ["succeeded"], [0, 1])
