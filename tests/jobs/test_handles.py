"""Handles that were read once, which block no event loop, and many jobs whose ends are waited for together; on both databases."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest
import trio

import outlast
from job_hands import Hands
from job_rows import end
from outlast.store.faults import StoreUnavailable
from outlast.testing import virtual_time


@pytest.fixture
def send(app):
    @app.job(retry=None)
    def send(n: int) -> int:
        outlast.current().keep("answer", f"of {n}")
        outlast.current().progress(n, 10, "pages")
        if n == 3:
            raise ValueError("three")
        return n * 2

    return send


@pytest.fixture
def statements(app):
    """The threads in which the store is asked, one entry for each time that somebody takes a connection."""
    seen = []
    for connections in {id(one): one for one in vars(app.store._database).values() if hasattr(one, "lend")}.values():
        lend = connections.lend

        def noted(*args, lend=lend, **kwargs):
            seen.append(threading.current_thread())
            return lend(*args, **kwargs)

        connections.lend = noted
    return seen


def attributes(job):
    """All that a handle says, except of what is in an artifact."""
    names = "id kind queue status next_run_at attempts crashes error progress unique_key priority enqueued_at arguments run_key compensation"
    said = {name: getattr(job, name) for name in names.split()}
    return said | {name: list(getattr(job, name)()) for name in ("history", "changes", "compensations", "artifacts")}


def prune(app):
    """Remove what has succeeded, also jobs that hold a unique key, of which the key stays."""
    soon = datetime.now(UTC) + timedelta(days=1)
    app.store.prune("jobs", soon)
    with app.store._database.writing() as tx:
        tx.execute("update outlast_unique_keys set made = 0 where app = ?", app.name)
    app.store.prune("jobs", soon)
    assert [*app.jobs.find(status="succeeded")] == []


# --- one handle ---


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_a_refreshed_handle_answers_from_what_was_read(app, send, statements, library):
    """Everything is read in a thread; then no attribute asks the store, and each is what the store has."""
    bad, good = send.options(unique_key="k", priority=2).enqueue(3), send.enqueue(4)
    app.work(until_idle=True)
    app.jobs.requeue(bad.id, reason="again")
    app.work(until_idle=True)
    expected = attributes(app.jobs.get(bad.id)), attributes(app.jobs.get(good.id))
    statements.clear()

    async def main():
        assert await bad.arefresh() is bad
        found = await app.jobs.aget(good.id)
        asked = len(statements)
        assert (attributes(bad), attributes(found)) == expected
        assert found.result() == 8  # what has succeeded stays so
        assert len(statements) == asked
        assert threading.current_thread() not in statements

    asyncio.run(main()) if library == "asyncio" else trio.run(main)
    assert (expected[0]["status"], len(expected[0]["history"]), len(expected[0]["changes"])) == ("failed", 2, 1)
    assert [kept.name for kept in expected[1]["artifacts"]] == ["answer"]
    assert bad.artifact("answer") == "of 3"


def test_a_refreshed_handle_stays_as_it_was_until_it_is_refreshed_again(app, send):
    """Its result is the newest all the same, and its attributes follow."""
    job, other = send.enqueue(1), send.enqueue(2)
    asyncio.run(job.arefresh())
    asyncio.run(other.arefresh())
    app.work(until_idle=True)
    assert (job.status, job.attempts, job.history(), job.progress) == ("queued", 0, [], None)
    assert asyncio.run(job.aresult()) == 2
    assert (job.status, job.attempts, len(job.history()), job.progress) == ("succeeded", 1, 1, (1, 10, "pages"))
    assert asyncio.run(other.arefresh()).status == "succeeded"


def test_the_result_of_a_refreshed_handle_waits_for_a_requeued_job(app):
    """A failure that was read before is not the end of a job that is in the queue again."""
    works = []

    @app.job(retry=None)
    def send() -> str:
        if not works:
            raise ValueError("no")
        return "done"

    job = send.enqueue()
    app.work(until_idle=True)
    asyncio.run(job.arefresh())
    works.append("now")
    app.jobs.requeue(job.id)
    with pytest.raises(outlast.ResultTimeoutError):
        job.result(timeout=0)
    app.work(until_idle=True)
    assert (job.status, job.result(), job.status) == ("failed", "done", "succeeded")


def test_operators_act_from_async_code(app, send, statements):
    """`acancel` and `arequeue` do as `cancel` and `requeue`, in a thread."""
    job = send.enqueue(1)
    statements.clear()

    async def main():
        assert await app.jobs.acancel(job.id, reason="late") is True
        assert await app.jobs.acancel(job.id) is False
        again = await app.jobs.arequeue(job.id, reason="after all")
        asked = len(statements)
        assert (again, again.status, [(one.change, one.reason) for one in again.changes()]) == (
            job,
            "queued",
            [("cancelled", "late"), ("requeued", "after all")],
        )
        assert len(statements) == asked
        with pytest.raises(outlast.ConfigurationError, match="to be failed or cancelled, got: queued"):
            await app.jobs.arequeue(job.id)
        with pytest.raises(outlast.JobNotFound):
            await app.jobs.acancel("999999999")

    asyncio.run(main())
    assert threading.current_thread() not in statements


def test_steps_are_done_again_when_async_code_requeues_from_the_start(app):
    """Only then; the steps are forgotten before the job is requeued."""
    made = []

    @app.job(retry=None)
    def pay() -> int:
        outlast.current().step("charge", lambda: made.append("charge"))
        if len(runs) < 3:
            runs.append("run")
            raise ValueError("no")
        return len(made)

    runs = []
    job = pay.enqueue()
    changes = []
    for from_start in (None, False, True):
        if from_start is not None:
            again = asyncio.run(app.jobs.arequeue(job.id, reason="after all", from_start=from_start))
            changes.append([one.change for one in again.changes()])
        app.work(until_idle=True)
    assert (job.status, made) == ("failed", ["charge"] * 2)
    assert changes == [["requeued"], ["requeued", "forgot steps", "requeued"]]


def test_a_job_that_is_not_kept_any_more_cannot_be_refreshed(app, send):
    """`JobNotFound`; if it still holds its unique key, it has succeeded, as `get` says."""
    send.unique_for = 3600.0
    keyed = send.options(unique_key="k")
    job, held = send.enqueue(1), keyed.enqueue(2)
    app.work(until_idle=True)
    old = asyncio.run(app.jobs.aget(job.id))
    prune(app)
    with pytest.raises(outlast.JobNotFound, match=f"there is no job {job.id}"):
        asyncio.run(old.arefresh())
    with pytest.raises(outlast.JobNotFound):
        _ = old.kind
    with pytest.raises(outlast.JobNotFound, match=f"there is no job {job.id}"):
        asyncio.run(app.jobs.aget(job.id))
    found = asyncio.run(app.jobs.aget(held.id))
    assert found.status == "succeeded" == app.jobs.get(held.id).status
    with pytest.raises(outlast.JobNotFound, match=r"has succeeded, at .* and is not kept any more"):
        _ = found.kind


# --- many ---


@pytest.mark.parametrize("way", ["wait_all", "await_all"])
def test_all_jobs_are_waited_for(app, send, way, statements):
    """The same handles in the same order, each read, also of jobs that have failed or were cancelled."""
    jobs = [send.enqueue(n) for n in (5, 3, 1, 2)]
    app.jobs.cancel(jobs[3].id)
    worker = threading.Thread(target=lambda: app.work(until_idle=True))
    worker.start()
    given = iter([*jobs, jobs[0]])
    came = app.jobs.wait_all(given) if way == "wait_all" else asyncio.run(app.jobs.await_all(given))
    worker.join()
    statements.clear()
    assert [one is other for one, other in zip(came, [*jobs, jobs[0]], strict=True)] == [True] * 5
    assert [job.status for job in came] == ["succeeded", "failed", "succeeded", "cancelled", "succeeded"]
    assert (came[0].result(), came[2].result(), came[1].error) == (10, 2, "three")
    assert [len(job.history()) for job in came] == [1, 1, 1, 0, 1]
    assert statements == []
    with pytest.raises(outlast.JobFailed, match="three"):
        came[1].result()


def test_a_wait_for_many_says_how_many_are_left(app, send):
    """The pauses grow as for one result; each look is one statement, and only asks for those that are left."""
    jobs = [send.enqueue(n) for n in range(3)]
    hands = Hands(app)
    (first,) = [claimed for claimed in hands.take() if str(claimed.id) == jobs[1].id]
    hands.finish(end(first, result=None))
    asked = []
    look = app.store.job_states
    app.store.job_states = lambda ids: asked.append(len(set(ids))) or look(ids)
    with virtual_time() as time:
        with pytest.raises(outlast.ResultTimeoutError, match=r"^2 of 3 jobs have not ended within 60 s\.$") as caught:
            app.jobs.wait_all(jobs, timeout=60)
        assert time.sleeps[:3] == [0.005, 0.0075, 0.01125]
        assert sum(time.sleeps) == pytest.approx(60)
        assert asked == [3] + [2] * len(time.sleeps)
    assert isinstance(caught.value, TimeoutError)

    async def main():
        asked.clear()
        with virtual_time() as time, pytest.raises(outlast.ResultTimeoutError, match=r"2 of 3 jobs .* within 5 s"):
            await app.jobs.await_all(jobs, timeout=5)
        assert (asked, sum(time.sleeps)) == ([3] + [2] * len(time.sleeps), pytest.approx(5))

    asyncio.run(main())
    with pytest.raises(outlast.ConfigurationError, match="expected timeout to be seconds"):
        app.jobs.wait_all(jobs, timeout=-1)
    with pytest.raises(outlast.ResultTimeoutError, match="1 of 1 jobs"):
        app.jobs.wait_all(jobs[:1], timeout=0)


@pytest.mark.parametrize("kind", ["result", "aresult", "wait_all", "await_all"])
def test_a_wait_goes_on_while_the_store_is_away(app, monkeypatch, kind):
    """A database that is restarted ends no wait that has a time of its own; without one its error is raised."""

    @app.job
    def double(n: int) -> int:
        return 2 * n

    job = double.enqueue(4)
    outlast.testing.work(app)
    away = [2]
    for method in ("job", "job_states"):
        real = getattr(app.store, method)

        def look(*given, real=real):
            if away[0]:
                away[0] -= 1
                raise StoreUnavailable("it is restarted", error_class="database_connection")
            return real(*given)

        monkeypatch.setattr(app.store, method, look)
    waits = {
        "result": job.result,
        "aresult": lambda timeout: asyncio.run(job.aresult(timeout)),
        "wait_all": lambda timeout: app.jobs.wait_all([job], timeout=timeout)[0].result(),
        "await_all": lambda timeout: asyncio.run(app.jobs.await_all([job], timeout=timeout))[0].result(),
    }
    assert (waits[kind](30), away) == (8, [0])
    away[0] = 1
    with pytest.raises(StoreUnavailable):
        waits[kind](None)
    away[0] = 10**9
    with pytest.raises(outlast.ResultTimeoutError, match="is unknown after 0 s: it is restarted"):
        waits[kind](0)


def test_a_wait_for_no_jobs_returns_immediately(app):
    """There is nothing to wait for."""
    assert app.jobs.wait_all([]) == [] == asyncio.run(app.jobs.await_all([], timeout=0))


@pytest.mark.parametrize("way", ["wait_all", "await_all"])
def test_a_job_that_was_removed_meanwhile_is_named(app, send, way):
    """Its end cannot be known; one that still holds its unique key has succeeded."""
    send.unique_for = 3600.0
    keyed = send.options(unique_key="k")
    held, gone = app.jobs.get(keyed.enqueue(2).id), send.enqueue(1)
    app.work(until_idle=True)
    prune(app)
    left = send.enqueue(4)
    wait = app.jobs.wait_all if way == "wait_all" else lambda jobs: asyncio.run(app.jobs.await_all(jobs))
    with pytest.raises(
        outlast.JobNotFound, match=rf"^1 job that you wait for cannot be found in the store: {gone.id}\."
    ):
        wait([left, gone, held])
    app.work(until_idle=True)
    assert [job.status for job in wait([left, held])] == ["succeeded", "succeeded"]


def test_a_job_that_is_removed_before_the_last_look_is_named(app, send):
    """Between the last look at the states and the reading of all."""
    job = send.enqueue(1)
    app.work(until_idle=True)
    read = app.store.whole_jobs

    def late(ids):
        prune(app)
        return read(ids)

    app.store.whole_jobs = late
    with pytest.raises(outlast.JobNotFound, match=f"in the store: {job.id}"):
        app.jobs.wait_all([job])


def test_jobs_of_elsewhere_are_refused(app, send, tmp_path):
    """Of another app, of another store, and what is no handle; a second App at the same store is the same app."""
    other = outlast.App("other", store=app.store_url)
    away = outlast.App(app.name, store=tmp_path / "away.db")
    twin = outlast.App(app.name, store=app.store_url)
    for there in (other, away):
        there.job(send.fn)
    job = send.enqueue(1)
    expected = f"expected jobs[1] to be the handle of a job of the app {app.name!r}, got: "
    strangers = {
        other.kinds["send"].enqueue(1): "<JobHandle",
        away.kinds["send"].enqueue(1): "in another store",
        job.id: "a value of type str. app.jobs.get(id) gives it",
    }
    for stranger, shown in strangers.items():
        with pytest.raises(outlast.ConfigurationError) as caught:
            app.jobs.wait_all([job, stranger])
        assert (str(caught.value).startswith(expected), shown in str(caught.value)) == (True, True), str(caught.value)
    app.work(until_idle=True)
    assert twin.jobs.wait_all([job])[0].status == "succeeded"
    for there in (other, away, twin):
        there.store.close()


def test_ten_thousand_jobs_are_waited_for(app, send):
    """Each look is one statement however many there are, and they are read in batches."""
    send.enqueue_many({"n": n} for n in range(10_000))
    jobs = [*app.jobs.find()][::-1]
    with pytest.raises(outlast.ResultTimeoutError, match=r"^10,000 of 10,000 jobs have not ended within 0 s\.$"):
        app.jobs.wait_all(jobs, timeout=0)
    for job in jobs[:10]:
        app.jobs.cancel(job.id)
    with app.store._database.writing() as tx:
        tx.execute("update outlast_jobs set state = 'cancelled', ended = due where app = ?", app.name)
    came = app.jobs.wait_all(jobs, timeout=0)
    assert [job.id for job in came] == [job.id for job in jobs]
    assert {job.status for job in came} == {"cancelled"}
    assert [len(job.changes()) for job in came[:11]] == [1] * 10 + [0]


def test_a_wait_for_many_is_refused_in_the_loop_of_a_worker(app):
    """As for one result: no job would go on there."""

    @app.job(retry=None)
    async def inner() -> int:
        return 1

    @app.job(retry=None)
    async def outer() -> int:
        jobs = [inner.enqueue(), inner.enqueue()]
        with pytest.raises(outlast.ConfigurationError, match="in the event loop of a worker"):
            app.jobs.wait_all(jobs)
        return sum([job.result() for job in await app.jobs.await_all(jobs)])

    job = outer.enqueue()
    app.work(until_idle=True)
    assert job.result() == 2
