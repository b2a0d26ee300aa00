"""A worker in this process: jobs run, are tried again, fail, wait for their turn, and are given back."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import prometheus_client
import pytest

import outlast
from job_hands import Hands
from job_rows import end
from labor import Beside, living, outcomes, wait_until
from outlast.jobs.doors import made
from outlast.jobs.worker import Worker
from outlast.kernel.clock import stopping
from outlast.observe import prometheus
from outlast.observe.events import JobClaimed, JobEvent
from outlast.store import Store
from outlast.testing import Faults, capture_events, virtual_time, work
from outlast.work.writer import BatchLimits

QUICK = outlast.RetryPolicy(max_attempts=3, initial_delay=30.0, jitter=0)


@pytest.mark.pooled
def test_jobs_run_to_their_end(app):
    """S1-15, S1-16, S1-17: async and sync jobs, results, retries, failures with a dead letter; later attempts too, in virtual time."""
    tries = []

    @app.job
    async def double(n: int) -> int:
        return 2 * n

    @app.job
    def add(n: int, more: int = 1) -> int:
        return n + more

    @app.job(retry=QUICK)
    async def flaky() -> str:
        tries.append(outlast.current().attempt)
        if len(tries) < 3:
            raise ConnectionResetError("once more")
        return "done"

    @app.job
    def broken() -> None:
        raise ValueError("never")

    handles = [double.enqueue(4), add.enqueue(4), flaky.enqueue(), broken.enqueue()]
    result = work(app)
    assert (result.succeeded, result.failed, result.requeued, result.lost, result.later) == (3, 1, 2, 0, 0)
    assert [handle.status for handle in handles] == ["succeeded", "succeeded", "succeeded", "failed"]
    assert [handle.result() for handle in handles[:3]] == [8, 5, "done"]
    assert (tries, outcomes(handles[2])) == ([1, 2, 3], ["failed", "failed", "succeeded"])
    (letter,) = app.dead_letters.find()
    assert (letter.kind, letter.pipeline, letter.item_key, letter.error) == ("job", "broken", handles[3].id, "never")


def test_until_idle_leaves_what_is_due_later_and_says_when(app):
    """It returns as soon as nothing is due, with how many are left and when the first of them is."""

    @app.job
    async def note() -> None:
        return

    note.enqueue()
    note.options(delay=3600).enqueue()
    note.options(delay=7200).enqueue()
    began = time.monotonic()
    result = app.work(until_idle=True)
    assert (result.succeeded, result.later) == (1, 2)
    assert timedelta(minutes=59) < result.next_run_at - datetime.now(UTC) < timedelta(minutes=61)
    assert time.monotonic() - began < 30  # only to tell a hang


def test_until_idle_of_an_empty_store_returns(app):
    assert app.work(until_idle=True) == outlast.WorkResult()


def test_the_context_of_a_job(app):
    """`current()`: its id, its attempt, a key that is the same in all of them; also in calls inside, and in children."""
    seen, left = [], []

    @outlast.retry
    def inside() -> None:
        seen.append(outlast.current())

    @app.job(retry=QUICK, timeout=60)
    async def look() -> None:
        seen.append(outlast.current())
        left.append(round(outlast.current().remaining(), 1))
        inside()
        if outlast.current().attempt < 2:
            raise TimeoutError

    @app.job(retry=QUICK, guard=outlast.Guard(total_timeout=500))
    def guarded() -> tuple[str | None, int, int, str]:
        context = outlast.current()
        assert 400 < context.remaining() <= 500
        return context.job_id, context.attempt, context.max_attempts, context.idempotency_key

    handle, other = look.enqueue(), guarded.enqueue()
    work(app)
    assert {context.job_id for context in seen} == {handle.id}
    assert [(context.attempt, context.max_attempts) for context in seen] == [(1, 3), (1, 3), (2, 3), (1, 3)]
    assert len({context.idempotency_key for context in seen}) == 1
    assert left == [60.0, 60.0]
    assert tuple(other.result()[:3]) == (other.id, 1, 3)
    assert other.result()[3] != seen[0].idempotency_key


def test_the_total_timeout_of_a_job_counts_all_its_attempts(app):
    """C-19: from the first claim on, with the waits. A requeue begins a new total."""
    seen = []

    @app.job(
        retry=outlast.RetryPolicy(max_attempts=9, delays=(60.0,), jitter=0),
        guard=outlast.Guard(retry=None, total_timeout=100),
    )
    def away() -> None:
        seen.append(round(outlast.current().remaining()))
        raise ConnectionResetError("away")

    handle = away.enqueue()
    work(app)
    assert (seen, handle.status, handle.history()[-1].stop_reason) == ([100, 40], "failed", "total_timeout")
    app.jobs.requeue(handle.id)
    work(app)
    assert (seen, handle.history()[-1].stop_reason) == ([100, 40, 100, 40], "total_timeout")


def test_a_decorrelated_wait_of_a_job_grows_from_its_own_record(app):
    """D-5: each delay is read back from the store, in seconds, before the next one is drawn from it."""
    policy = outlast.RetryPolicy(max_attempts=40, initial_delay=1.0, max_delay=None, jitter="decorrelated")

    @app.job(retry=policy)
    def away() -> None:
        raise ConnectionResetError("away")

    handle = away.enqueue()
    with virtual_time(seed=3):
        work(app)
    began = [row.started_at for row in handle.history()]
    waits = [(later - earlier).total_seconds() for earlier, later in pairwise(began)]
    assert (len(waits), max(waits) > 100) == (39, True)
    assert [wait for before, wait in pairwise(waits) if wait > 3 * before + 2] == []


@pytest.mark.parametrize("together", [True, False])
def test_each_job_has_an_idempotency_key_of_its_own(app, together):
    """A service that heeds keys would do only one of two equal payments, also of those that were enqueued in the same instant."""
    keys: dict[str, set[str]] = {}

    @app.job(retry=QUICK)
    def pay(amount: int) -> None:
        context = outlast.current()
        keys.setdefault(context.job_id, set()).add(context.idempotency_key)
        if context.attempt < 2:
            raise TimeoutError

    if together:
        pay.enqueue_many([{"amount": 5}] * 3)
    else:
        for _ in range(3):
            pay.enqueue(5)
    work(app)
    assert [len(of_job) for of_job in keys.values()] == [1, 1, 1]
    assert len(set().union(*keys.values())) == 3


def test_a_guard_retries_inside_and_the_job_outside(app):
    """D-8: fast inside, slow outside: two attempts in each of three attempts of the job."""
    calls = []

    @app.job(retry=QUICK, guard=outlast.Guard(retry=outlast.RetryPolicy(max_attempts=2, jitter=0)))
    async def fetch() -> None:
        calls.append(outlast.current().attempt)
        raise ConnectionResetError("down")

    handle = fetch.enqueue()
    with virtual_time() as clock:
        worker = made(app, (), 4, until_idle=True, due_later=True)
        asyncio.run(worker.run())
    assert calls == [1, 1, 2, 2, 3, 3]
    assert (handle.status, outcomes(handle), clock.now >= 60) == ("failed", ["failed"] * 3, True)
    assert handle.history()[-1].stop_reason == "exhausted"


def test_an_open_breaker_costs_no_attempt(app):
    """D-10: the job is due again when the circuit may be tried."""
    breaker = outlast.CircuitBreaker("api", failure_threshold=1, reset_timeout=100)

    @app.job(retry=QUICK, guard=outlast.Guard(retry=None, breaker=breaker))
    async def call() -> str:
        return "through"

    breaker.isolate("down for the test")
    handle = call.enqueue()
    with virtual_time():
        asyncio.run(_some(app, handle.history))
        breaker.reset()
        asyncio.run(made(app, (), 4, until_idle=True, due_later=True).run())
    assert outcomes(handle)[0] == "released"
    assert outcomes(handle)[-1] == "succeeded"
    assert handle.attempts == 1


async def _some(app, until):
    """Work until something is so."""
    worker = made(app, (), 4, until_idle=False)
    task = asyncio.create_task(worker.run())
    while not await asyncio.to_thread(until):
        await asyncio.to_thread(threading.Event().wait, 0.005)
    worker.ask_soon()
    return await task


def test_jobs_at_a_limit_hold_no_slot(app):
    """Jobs that wait for their turn let others run, although one slot is all there is."""
    limit = outlast.Limit("narrow", concurrency=1)
    order, first = [], threading.Event()

    @app.job(guard=outlast.Guard(retry=None, limit=limit))
    async def slow() -> None:
        order.append("slow begins")
        await asyncio.to_thread(first.wait, 100)
        order.append("slow ends")

    @app.job
    async def free() -> None:
        order.append("free")
        if order.count("free") == 2:
            first.set()

    slow.enqueue()
    slow.enqueue()
    free.enqueue()
    free.enqueue()
    result = app.work(until_idle=True, concurrency=2)
    assert result.succeeded == 4
    assert order == ["slow begins", "free", "free", "slow ends", "slow begins", "slow ends"]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("known", [True, False], ids=["its job is here", "nobody has named it"])
def test_a_queue_whose_jobs_wait_holds_up_no_other(app, is_async, known):
    """However many of them wait for their turn at a limit, and also if the other queue was unknown before."""
    limit = outlast.Limit("narrow", concurrency=1)
    place = limit.take()

    def wait() -> None: ...

    async def await_() -> None: ...

    def free() -> None: ...

    limited = app.job(queue="limited", guard=outlast.Guard(retry=None, limit=limit))(await_ if is_async else wait)
    other = app.job(free) if not known else app.job(queue="free")(free)
    handles = [limited.enqueue() for _ in range(20)]
    with Beside(app):
        wait_until(lambda: limit.waiting == 16, "as many of them wait as may")
        done = other.options(queue="free").enqueue()
        wait_until(lambda: done.status == "succeeded", "the other one is done")
        limit.leave(place)
        wait_until(lambda: all(handle.status == "succeeded" for handle in handles), "the others are done")


def test_snooze_puts_off_and_skip_is_refused(app):
    asked = []

    @app.job
    async def wait_for_file() -> str:
        asked.append(1)
        if len(asked) < 3:
            raise outlast.Snooze(3600)
        return "there"

    @app.job
    def skipping() -> None:
        raise outlast.Skip("not today")

    handle, other = wait_for_file.enqueue(), skipping.enqueue()
    work(app)
    assert (outcomes(handle), handle.attempts, handle.result()) == (["snoozed", "snoozed", "succeeded"], 1, "there")
    assert "no meaning in a job" in other.error


def test_snoozes_of_no_time_are_no_busy_loop(app):
    """A job that asks for 0 seconds is away for a second each time, or it would fill the queue and its history."""
    begun = []

    @app.job
    def wait_for_file() -> None:
        begun.append(1)
        if len(begun) < 4:
            raise outlast.Snooze(0)

    handle = wait_for_file.enqueue()
    work(app)
    rows = handle.history()
    assert ([row.outcome for row in rows], handle.attempts) == (["snoozed"] * 3 + ["succeeded"], 1)
    # The clock of the store and the one of virtual time differ by a little.
    assert all(row.next_run_at - row.started_at > timedelta(seconds=0.9) for row in rows[:3])


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_snooze_goes_through_guards_as_it_is(app, kind):
    """No retry tries again, no breaker counts it, no fallback answers: neither the job's own guard nor one inside."""
    breakers = [outlast.CircuitBreaker(f"{where} {kind}", failure_threshold=1) for where in ("around", "inside")]
    policy = outlast.RetryPolicy(max_attempts=3, initial_delay=1, on_errors=("all",))
    around, inside = (outlast.Guard(retry=policy, breaker=breaker, fallback=lambda: "instead") for breaker in breakers)
    asked = []

    @inside
    def ask() -> str:
        asked.append(1)
        if len(asked) < 3:
            raise outlast.Snooze(3600)
        return "there"

    @app.job(name="sync", guard=around)
    def sync_job() -> str:
        return ask()

    @app.job(name="async", guard=around)
    async def async_job() -> str:
        return ask()

    handle = app.kinds[kind].enqueue()
    work(app)
    assert (outcomes(handle), handle.result()) == (["snoozed", "snoozed", "succeeded"], "there")
    assert (len(asked), handle.attempts) == (3, 1)
    assert [breaker.state for breaker in breakers] == ["closed", "closed"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_time_of_an_attempt_begins_when_its_guard_calls(app, kind):
    """What waits in the line of a limit longer than its timeout has used up nothing of it."""
    limit = outlast.Limit(f"one at a time, {kind}", concurrency=1)
    guard = outlast.Guard(retry=None, limit=limit)

    @app.job(name="sync", guard=guard, timeout=1000, retry=None)
    def sync_job() -> float:
        return outlast.current().remaining()

    @app.job(name="async", guard=guard, timeout=1000, retry=None)
    async def async_job() -> float:
        return outlast.current().remaining()

    place = limit.take()
    handles = [app.kinds[kind].enqueue() for _ in range(2)]
    worker = made(app, (), 4, until_idle=True)

    async def story():
        task = asyncio.create_task(worker.run())
        await asyncio.to_thread(wait_until, lambda: sum(one.away for one in [*worker._running]) == 2, "both wait")
        for active in worker._running:
            active.started -= 900  # it waits for so long
            active.runner._late(active)  # and its timer strikes
        limit.leave(place)
        return await task

    assert asyncio.run(story()).succeeded == 2
    assert all(900 < handle.result() <= 1000 for handle in handles)
    assert all(handle.history()[0].duration < 900 for handle in handles)


def test_queues_priorities_and_pauses(app):
    """Larger priorities first; a paused queue is left alone; queues that no job here names are served too."""
    done = []

    @app.job(queue="first")
    async def note(what: str) -> None:
        done.append(what)

    for what, priority in (("low", -1), ("usual", 0), ("high", 5)):
        note.options(priority=priority).enqueue(what)
    note.options(queue="elsewhere").enqueue("elsewhere")
    note.options(queue="stopped").enqueue("stopped")
    app.store.pause_queue("stopped")
    assert app.work(queues=["first"], until_idle=True, concurrency=1).succeeded == 3
    assert done == ["high", "usual", "low"]
    assert app.work(until_idle=True).succeeded == 1
    assert done[-1] == "elsewhere"
    app.store.resume_queue("stopped")
    assert app.work(until_idle=True).succeeded == 1
    assert done[-1] == "stopped"


@pytest.mark.parametrize("until_idle", [False, True])
def test_a_queue_that_no_job_names_is_served_beside_a_backlog(app, until_idle):
    """Also if the others always have jobs, so that the worker is never without one."""
    begun, served = threading.Event(), threading.Event()

    @app.job
    async def busy() -> None:
        begun.set()
        if not served.is_set():
            busy.enqueue()  # another one is ready already, so that no claim finds nothing

    @app.job
    async def serve() -> None:
        served.set()

    for _ in range(3):
        busy.enqueue()
    with Beside(app, concurrency=1, until_idle=until_idle):
        try:
            wait_until(begun.is_set, "it has jobs")
            serve.options(queue="of nobody here").enqueue()
            wait_until(served.is_set, "the other queue is served", seconds=60)
        finally:
            served.set()


@pytest.mark.parametrize("bounds", [(), {"a": 1, "b": 1, "c": 1}], ids=["all", "mapping"])
def test_queues_take_turns(app, bounds):
    """One job of each with one slot, whatever else the worker asks of its store meanwhile; an empty queue misses its turn."""
    order = []

    @app.job(queue="a")
    async def note(queue: str) -> None:
        order.append(queue)

    @app.job(queue="b")
    def other() -> None: ...

    @app.job(queue="c")
    def third() -> None: ...

    for queue, count in (("a", 20), ("b", 20), ("c", 2)):
        note.options(queue=queue).enqueue_many({"queue": queue} for _ in range(count))
    assert app.work(queues=bounds, concurrency=1, until_idle=True).succeeded == 42
    assert "".join(order) == "abcabc" + 18 * "ab"


@pytest.mark.parametrize(("poll", "share"), [(4000.0, 10), (0.0, 1e12)])
def test_a_worker_asks_for_other_queues_once_in_a_while(sqlite_app, monkeypatch, poll, share):
    """Not in every turn, however many there are; the rarer, the longer the answer takes."""
    asked = []
    seen = Store.ready_queues
    monkeypatch.setattr(Store, "ready_queues", lambda store: asked.append(1) or seen(store))
    monkeypatch.setattr("outlast.jobs.worker.POLL", poll)
    monkeypatch.setattr("outlast.jobs.worker._SHARE", share)

    @sqlite_app.job
    async def count(n: int) -> None: ...

    count.enqueue_many({"n": n} for n in range(300))
    assert sqlite_app.work(until_idle=True, concurrency=1).succeeded == 300
    assert len(asked) <= 3  # at first, and when nothing is left


def test_a_queue_has_a_concurrency_of_its_own(app):
    """A mapping says how many jobs of each queue may run at a time."""
    now, most = {"a": 0, "b": 0}, {"a": 0, "b": 0}

    @app.job
    async def busy(name: str) -> None:
        now[name] += 1
        most[name] = max(most[name], now[name])
        for _ in range(20):
            await asyncio.sleep(0)
        now[name] -= 1

    for name in ("a", "b"):
        busy.options(queue=name).enqueue_many({"name": name} for _ in range(12))
    result = app.work(queues={"a": 1, "b": 4}, concurrency=8, until_idle=True)
    assert (result.succeeded, most["a"]) == (24, 1)
    assert 1 < most["b"] <= 4


@pytest.mark.parametrize("queues", [(), {"default": 3}], ids=["all queues", "a bound"])
def test_large_results_take_no_slot_along(app, monkeypatch, queues):
    """They go to the store while a turn is under way that claims; what that one has reserved is given back, and bounds hold."""
    monkeypatch.setattr(
        "outlast.jobs.tenure._LIMITS", BatchLimits(entries=1_000_000, bytes=1, latency=0.0, under_way=1)
    )
    running, most, sent = set(), 0, []
    prepare, turn = Worker._prepare, Store.turn

    def prepared(worker, tenure, batch):
        prepare(worker, tenure, batch)
        if batch.ends:
            sent.append(worker._tenure.turns._under_way)

    def slowly(store, lease, ends, wants, *given, **how):
        """A claim is under way until another turn goes, or nothing runs that would have it go."""
        done, before = turn(store, lease, ends, wants, *given, **how), len(sent)
        if wants:
            wait_until(lambda: len(sent) > before or not running, "another turn goes")
        return done

    monkeypatch.setattr(Worker, "_prepare", prepared)
    monkeypatch.setattr(Store, "turn", slowly)

    @app.job
    async def large(number: int) -> str:
        nonlocal most
        running.add(number)
        most = max(most, len(running))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        running.discard(number)
        return "x" * 100

    large.enqueue_many({"number": number} for number in range(100))
    worker = made(app, queues, 8, until_idle=True)
    assert asyncio.run(worker.run()).succeeded == 100
    assert max(sent) >= 1  # it went beside another one
    assert len(worker._slots.free) == 8
    assert most <= (3 if queues else 8)


def test_wrong_settings_are_refused_at_once(app):
    with pytest.raises(outlast.ConfigurationError) as refused:
        app.work(queues={"a": 100}, concurrency=0, until_idle="yes", queue="a")
    assert len(refused.value.problems) == 4


def test_resources_are_opened_once_and_closed(app):
    opened = []

    @asynccontextmanager
    async def client():
        opened.append("open")
        yield "client"
        opened.append("closed")

    @app.job
    async def send(to: str, via: str = outlast.use(client)) -> str:
        return f"{to} by {via}"

    handles = [send.enqueue("ann"), send.enqueue("bob")]
    app.work(until_idle=True)
    assert ([handle.result() for handle in handles], opened) == (["ann by client", "bob by client"], ["open", "closed"])
    handle = send.enqueue("cem")
    work(app, provide={client: "a fake"})
    assert (handle.result(), opened) == ("cem by a fake", ["open", "closed"])


def test_scripted_faults_strike_jobs_in_order(app):
    @app.job(retry=QUICK)
    async def send() -> str:
        return "sent"

    handle = send.enqueue()
    result = work(app, faults=[Faults("send", TimeoutError("late"), None)])
    assert (result.succeeded, result.requeued, outcomes(handle)) == (1, 1, ["failed", "succeeded"])
    with pytest.raises(outlast.ConfigurationError, match="Did you mean 'send'"):
        work(app, faults=[Faults("sent")])


def test_the_story_of_a_job_is_told_in_events(app):
    """C-23, D-27: claimed, requeued, succeeded or failed; and a failed job is one line at ERROR."""

    @app.job(retry=QUICK)
    async def send() -> None:
        return

    @app.job
    def broken() -> None:
        raise ValueError("no")

    send.enqueue()
    with capture_events() as events:
        work(app, faults=[Faults("send", TimeoutError("late"))])
    names = "job_claimed job_requeued job_claimed job_succeeded"
    assert [event.name for event in events if event.name.startswith("job")] == names.split()
    requeued = next(event for event in events if event.name == "job_requeued")
    assert (requeued.delay, requeued.error, requeued.outcome, requeued.level) == (30.0, "late", "failed", "warning")
    assert 30 <= events[-1].since_enqueued < 60
    broken.enqueue()
    with capture_events() as events:
        work(app)
    assert [event.name for event in events if event.level == "error"] == ["job_failed"]
    failed = next(event for event in events if event.name == "job_failed")
    assert (failed.kind, failed.error, failed.reason) == ("broken", "no", "permanent")


def test_a_job_that_cannot_be_given_its_arguments_fails_with_a_sentence(app):
    @app.job(name="send")
    async def before(to: str) -> None:
        return

    handle = before.enqueue("ann")
    app.kinds.clear()

    @app.job(name="send")
    async def send(address: str) -> None:
        raise AssertionError

    assert app.work(until_idle=True).failed == 1
    assert (handle.status, "do not fit send" in handle.error) == ("failed", True)
    assert handle.history()[-1].stop_reason == "permanent"


@pytest.mark.failure(5)
def test_jobs_of_unknown_kinds_and_newer_versions_are_left_alone(app):
    """Nothing is failed that newer code could do."""

    @app.job(name="future")
    async def future() -> None:
        return

    @app.job(name="known", version=2)
    async def known() -> None:
        return

    handles = [future.enqueue(), known.enqueue()]
    app.kinds.clear()

    @app.job(name="known")
    async def older() -> None:
        raise AssertionError

    assert app.work(until_idle=True) == outlast.WorkResult()
    assert [handle.status for handle in handles] == ["queued", "queued"]


def test_a_job_with_more_attempts_than_the_code_allows_now_keeps_its_error(app):
    """It is exhausted without being run, and neither it nor its dead letter speaks of a lost worker."""

    @app.job(retry=None)
    def send() -> None:
        raise AssertionError

    handle, hands = send.enqueue(), Hands(app)
    told = {"error": "no answer", "error_type": "ConnectionError", "error_class": "network"}
    hands.finish(*(end(job, "waiting", **told) for job in hands.take()))
    assert app.work(until_idle=True).failed == 1
    row = app.store.job(int(handle.id))
    assert (row.state, row.stop_reason, row.crashes) == ("failed", "exhausted", 0)
    for found in (row, app.store.letter(row.letter)):
        assert (found.error, found.error_type, found.error_class) == tuple(told.values())


def test_a_result_that_is_awaitable_is_refused(app):
    async def later() -> None:
        return

    @app.job
    def sync():
        return later()

    handle = sync.enqueue()
    assert app.work(until_idle=True).failed == 1
    assert "declare it with `async def`" in handle.error


@pytest.mark.pooled
def test_a_worker_drains_and_gives_back_what_has_not_ended(app):
    """C-22: a clean shutdown costs no attempt, and another worker goes on at once."""
    began = threading.Event()

    @app.job
    async def long() -> None:
        began.set()
        await asyncio.Event().wait()

    handle = long.enqueue()
    worker = made(app, (), 4, until_idle=False, drain=0.01)
    thread = threading.Thread(target=lambda: (began.wait(100), worker.ask_soon()))
    thread.start()
    result = asyncio.run(worker.run())
    thread.join()
    assert (result.released, result.cut_off) == (1, 0)
    assert (handle.status, handle.attempts, outcomes(handle)) == ("queued", 0, ["released"])
    assert living(app) == []


def test_a_worker_that_drains_lets_jobs_end(app):
    began, goes_on = threading.Event(), threading.Event()

    @app.job
    def long() -> str:
        began.set()
        goes_on.wait(100)
        return "whole"

    handle, other = long.enqueue(), long.enqueue()
    worker = made(app, (), 1, until_idle=False)

    def ask():
        began.wait(100)
        worker.ask_soon()
        goes_on.set()

    thread = threading.Thread(target=ask)
    thread.start()
    assert asyncio.run(worker.run()).succeeded == 1
    thread.join()
    assert sorted([handle.status, other.status]) == ["queued", "succeeded"]


def test_a_cancelled_task_gives_back_what_runs(app):
    """`awork` lets a cancellation through, and leaves nothing claimed."""
    began = threading.Event()

    @app.job
    async def long() -> None:
        began.set()
        await asyncio.Event().wait()

    handle = long.enqueue()

    async def story():
        task = asyncio.create_task(app.awork())
        await asyncio.to_thread(began.wait, 100)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert (handle.status, outcomes(handle), living(app)) == ("queued", ["released"], [])


@pytest.mark.parametrize("end", ["drain", "cancel"])
@pytest.mark.parametrize("body", ["raises", "returns"])
def test_no_fallback_answers_for_a_job_that_is_to_end(app, on_terms, end, body):
    """It waits for another attempt inside of its guard when the worker drains, or an operator cancels it."""
    on_terms(ttl=4.0)
    guard = outlast.Guard(
        retry=outlast.RetryPolicy(max_attempts=5, initial_delay=30, jitter=0),
        retry_if=lambda result: result == "not yet",
        fallback=lambda: "instead",
    )

    def called() -> str:
        if body == "raises":
            raise ConnectionResetError("down")
        return "not yet"

    @app.job(guard=guard)
    def blocking() -> str:
        return called()

    @app.job(guard=guard)
    async def awaiting() -> str:
        return called()

    handles = [blocking.enqueue(), awaiting.enqueue()]
    worker = made(app, (), 4, until_idle=end == "cancel", drain=0.01)

    async def story():
        task = asyncio.create_task(worker.run())
        await asyncio.to_thread(wait_until, lambda: sum(one.away for one in [*worker._running]) == 2, "both wait")
        if end == "drain":
            worker.ask_soon()
        else:
            for handle in handles:
                app.store.cancel_job(int(handle.id))
        return await task

    result = asyncio.run(story())
    assert (result.succeeded, result.released, result.cancelled) == ((0, 2, 0) if end == "drain" else (0, 0, 2))
    assert {handle.status for handle in handles} == ({"queued"} if end == "drain" else {"cancelled"})


@pytest.mark.pooled
def test_an_operator_cancels_a_running_job(app, on_terms):
    on_terms(ttl=4.0)  # a beat a second; shorter, and a busy machine lets the lease run out
    began = threading.Event()

    @app.job
    async def long() -> None:
        began.set()
        await asyncio.Event().wait()

    handle = long.enqueue()
    thread = threading.Thread(target=lambda: (began.wait(100), app.store.cancel_job(int(handle.id))))
    thread.start()
    result = app.work(until_idle=True)
    thread.join()
    assert (result.cancelled, handle.status) == (1, "cancelled")
    assert handle.history()[-1].stop_reason == "cancelled"


def test_a_job_that_is_cancelled_while_it_fails_is_told_as_cancelled(app, caplog):
    """No other attempt follows because of the cancellation, whatever the failure would have meant."""

    @app.job
    def fails() -> None:
        app.jobs.cancel(handle.id)
        raise ConnectionError("comes back later")

    handle = fails.enqueue()
    with capture_events() as events, caplog.at_level("INFO", "outlast"):
        assert app.work(until_idle=True).cancelled == 1
    (told,) = [event for event in events if isinstance(event, JobEvent) and not isinstance(event, JobClaimed)]
    assert (told.name, told.reason) == ("job_failed", "cancelled")
    assert [(line.levelname, line.getMessage()) for line in caplog.records] == [
        ("INFO", f"job {handle.id} (fails) was cancelled")
    ]
    (attempt,) = handle.history()
    assert (handle.status, attempt.outcome, attempt.stop_reason) == ("cancelled", "failed", "cancelled")
    assert app.store.job(int(handle.id)).stop_reason == "cancelled"


@pytest.mark.failure(18)
def test_a_worker_that_lives_shortly_applies_retention(app):
    """Once for an app in an hour, and not only when a worker has lived for an hour."""

    @app.job
    def old() -> None: ...

    handle = old.enqueue()
    with app.store._database.writing() as tx:
        tx.execute(
            "update outlast_jobs set state = 'succeeded', ended = enqueued - 864000000000 where id = ?", int(handle.id)
        )
    assert app.work(until_idle=True).succeeded == 0
    assert app.store.job(int(handle.id)) is None
    assert app.jobs.workers() == []


def test_nothing_is_left_behind(app):
    """Places, threads, tasks and leases are back after every kind of end."""
    limit = outlast.Limit("narrow", concurrency=2)
    before = {thread.name for thread in threading.enumerate()}

    @app.job(retry=None, guard=outlast.Guard(retry=None, limit=limit))
    def works(how: str) -> None:
        if how == "raises":
            raise ValueError(how)
        if how == "exits":
            raise SystemExit(3)

    @app.job(retry=None)
    async def cancels() -> None:
        raise asyncio.CancelledError

    for how in ("returns", "raises", "exits"):
        works.enqueue(how)
    cancels.enqueue()
    result = app.work(until_idle=True)
    assert (result.succeeded, result.failed) == (1, 3)
    assert [limit.acquire_nowait(), limit.acquire_nowait(), limit.acquire_nowait()] == [True, True, False]
    left = {thread for thread in threading.enumerate() if thread.name not in before and "asyncio" not in thread.name}
    for thread in left:
        thread.join(100)
    assert living(app) == []


def test_what_becomes_of_jobs_is_counted(sqlite_app):
    """S1-22: retries, final failures, and the time to success."""
    registry = prometheus_client.CollectorRegistry()
    uninstall = prometheus.install(registry)

    @sqlite_app.job(retry=QUICK)
    async def send() -> None:
        return

    @sqlite_app.job
    def broken() -> None:
        raise ValueError("no")

    send.enqueue()
    broken.enqueue()
    try:
        work(sqlite_app, faults=[Faults("send", TimeoutError())])
        found = {
            status: registry.get_sample_value("outlast_jobs_total", {"kind": kind, "status": status})
            for kind, status in (("send", "requeued"), ("send", "succeeded"), ("broken", "failed"))
        }
        assert found == {"requeued": 1.0, "succeeded": 1.0, "failed": 1.0}
        assert 30 <= registry.get_sample_value("outlast_job_success_seconds_total", {"kind": "send"}) < 60
    finally:
        uninstall()


@pytest.mark.failure(34)
def test_jobs_enqueue_jobs(app):
    """No transaction is open while a job runs, so it may write to the same store."""

    @app.job
    def child(n: int) -> int:
        return n

    @app.job
    async def parent() -> list[int]:
        handles = [await child.aenqueue(n) for n in range(5)]
        return [int(handle.id) for handle in handles]

    handle = parent.enqueue()
    assert app.work(until_idle=True).succeeded == 6
    assert len(handle.result()) == 5


@pytest.mark.failure(24)
def test_waits_longer_than_any_lease_are_kept(app):
    """What is known of a job lives as long as the job."""

    @app.job(retry=outlast.RetryPolicy(delays=(86400.0 * 3, 86400.0 * 30), jitter=0))
    async def rarely() -> int:
        attempt = outlast.current().attempt
        if attempt < 3:
            raise TimeoutError
        return attempt

    handle = rarely.enqueue()
    work(app)
    assert (handle.result(), outcomes(handle)) == (3, ["failed", "failed", "succeeded"])


@pytest.mark.pooled
def test_two_workers_share_the_work(app):
    """Each job runs once, whoever claims it."""
    done = []

    @app.job
    async def note(n: int) -> None:
        done.append(n)
        await asyncio.sleep(0)

    note.enqueue_many({"n": n} for n in range(500))
    with Beside(app), Beside(app):
        app.work(until_idle=True)
    assert sorted(done) == list(range(500))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stop_of_the_code_itself_ends_no_worker(app, is_async):
    """Its retries end at once, and the policy of the job decides: it is charged, and waits."""
    stop = outlast.Stop()
    stop.set()
    retrying = outlast.Guard("service", retry=outlast.RetryPolicy(max_attempts=3, initial_delay=5))

    def fetch() -> None:
        raise ConnectionResetError

    async def afetch() -> None:
        raise ConnectionResetError

    def once() -> None:
        with stop:
            retrying.call(fetch)

    async def aonce() -> None:
        with stop:
            await retrying.acall(afetch)

    handle = app.job(retry=outlast.RetryPolicy(max_attempts=2, initial_delay=20))(aonce if is_async else once).enqueue()
    work(app)
    assert (handle.status, outcomes(handle), handle.attempts) == ("failed", ["failed", "failed"], 2)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_job_is_cancelled_before_its_worker_knows_of_it(app, monkeypatch, on_terms, is_async):
    """The answer to its claim is on its way when an operator cancels it: it is not forgotten until that has come."""
    on_terms(ttl=1.0)
    begun, turn = [], Store.turn

    def wait() -> None:
        begun.append("sync")
        while not stopping.get().is_set():
            threading.Event().wait(0.005)
        raise ConnectionResetError

    async def await_() -> None:
        begun.append("async")
        await asyncio.Event().wait()

    handle = app.job(retry=None)(await_ if is_async else wait).enqueue()
    beside = Beside(app)

    def late(self, *given, **how):
        done = turn(self, *given, **how)
        if done.claimed:
            app.jobs.cancel(handle.id)
            wait_until(lambda: beside.worker._cancelled, "the worker has heard of it")
        return done

    monkeypatch.setattr(Store, "turn", late)
    with beside:
        wait_until(lambda: handle.status == "cancelled", "it has ended")
