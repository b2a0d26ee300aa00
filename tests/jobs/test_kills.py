"""D-16 with real kills: workers that are killed, stopped and cut off from their store."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

import outlast
from job_hands import Hands
from labor import Beside, jobs, laborer, living, notes, outcomes, stop, wait_until
from outlast.jobs.doors import made
from outlast.jobs.worker import Worker
from outlast.testing import FaultProxy, capture_events
from servers.postgres import Postgres
from stores import Plan


@pytest.fixture
def kinds(app, tmp_path):
    return jobs(app, tmp_path)


@pytest.mark.failure(8, 10, 14, 16, 21)
@pytest.mark.pooled
@pytest.mark.timeout(240)
def test_a_killed_worker_loses_no_job(app, kinds, tmp_path):
    """S1-10: killed between claim and finish; the crash is on record, and another worker goes on at once."""
    handle = kinds["hold"].enqueue("a")
    with laborer(app, tmp_path) as process:
        wait_until(lambda: "begins a" in notes(tmp_path), "the job has begun")
        assert handle.status == "processing"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    (tmp_path / "go a").touch()
    with capture_events() as events:
        result = app.work(until_idle=True)
    lost = [(event.jobs, event.failed, event.job_ids) for event in events if event.name == "worker_lost"]
    assert lost == [(1, 0, (handle.id,))]
    assert (result.succeeded, handle.status, handle.crashes, handle.attempts) == (1, "succeeded", 1, 2)
    assert outcomes(handle) == ["crashed", "succeeded"]
    assert notes(tmp_path) == ["begins a", "begins a", "ends a"]
    assert living(app) == []


@pytest.mark.failure(8, 14)
@pytest.mark.timeout(240)
def test_one_of_two_workers_is_killed(app, kinds, tmp_path, on_terms):
    """The other one does its jobs too, each to its end, also in a queue where one runs at a time."""
    on_terms(ttl=2.0)
    handles = [kinds["hold"].enqueue(name) for name in "abcdef"]
    with laborer(app, tmp_path, ttl=2.0, concurrency=3) as process:
        wait_until(lambda: len(notes(tmp_path)) == 3, "three jobs have begun")
        with Beside(app):
            wait_until(lambda: len(notes(tmp_path)) == 6, "all jobs have begun")
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            for name in "abcdef":
                (tmp_path / f"go {name}").touch()
            wait_until(lambda: all(handle.status == "succeeded" for handle in handles), "all jobs are done")
    assert sorted(outcomes(handle) for handle in handles) == [["crashed", "succeeded"]] * 3 + [["succeeded"]] * 3


@pytest.mark.failure(3)
@pytest.mark.pooled
@pytest.mark.timeout(240)
def test_a_stopped_worker_that_comes_back_changes_nothing(app, kinds, tmp_path, on_terms):
    """Stopped past its time, then continued: its late result is discarded, and it registers again."""
    on_terms(ttl=1.0)
    handle = kinds["hold"].enqueue("a")
    with laborer(app, tmp_path, ttl=1.0) as process:
        wait_until(lambda: "begins a" in notes(tmp_path), "the job has begun")
        (key,) = living(app)
        stop(process, app.store._database)
        (tmp_path / "go a").touch()
        with Beside(app):
            wait_until(lambda: handle.status == "succeeded", "another worker has done it")
        result, story = handle.result(), outcomes(handle)
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: notes(tmp_path).count("ends a") == 2, "the first one has ended, too")
        other = kinds["quick"].enqueue("b")
        wait_until(lambda: other.status == "succeeded", "it goes on with another job")
        assert living(app) != [key]
        assert (handle.result(), outcomes(handle)) == (result, story)
    assert story == ["crashed", "succeeded"]
    assert result == f"a by {os.getpid()}"


@pytest.mark.timeout(240)
def test_a_job_that_kills_its_workers_is_poison(app, kinds, tmp_path):
    """D-16: after three crashes it is not tried again, although it has attempts left."""
    handle = kinds["dies"].enqueue()
    for number in range(1, 4):
        with laborer(app, tmp_path, until_idle=True) as process:
            process.wait()
            assert process.returncode == -signal.SIGKILL
        assert len(notes(tmp_path)) == number
    result = app.work(until_idle=True)
    assert (result.succeeded, result.failed) == (0, 1)
    assert (handle.status, handle.crashes, outcomes(handle)) == ("failed", 3, ["crashed"] * 3)
    assert handle.history()[-1].error_class in {"poison", "worker_lost"}
    (letter,) = app.dead_letters.find()
    assert (letter.error_class, letter.stop_reason, letter.item_key) == ("poison", "poison", handle.id)


def test_a_job_that_a_sweep_lets_fail_is_told(app, caplog):
    """As any other that fails for good: its end, its dead letter, and one line."""

    @app.job
    def send() -> None: ...

    handle = send.enqueue()
    gone = Hands(app)
    (claimed,) = gone.take()
    with app.store._database.writing() as tx:
        tx.execute("update outlast_jobs set crashes = 2 where id = ?", claimed.id)
    app.store.drop_lease(gone.lease)
    with capture_events() as events, caplog.at_level("INFO", "outlast"):
        app.work(until_idle=True)
    told = [event for event in events if event.name in {"job_failed", "dead_letter_enqueue"}]
    (letter,) = app.dead_letters.find()
    failed, kept = told
    assert (failed.name, failed.job_id, failed.reason, failed.error_class) == (
        "job_failed",
        handle.id,
        "poison",
        "poison",
    )
    assert (failed.attempt, failed.max_attempts, failed.queue) == (1, outlast.presets.jobs.max_attempts, "default")
    assert (kept.letter_id, kept.item_id, kept.step_id) == (letter.id, handle.id, "send")
    errors = [line.getMessage() for line in caplog.records if line.levelname == "ERROR"]
    assert errors == [failed.sentence()]


def test_a_job_with_two_crashes_runs_alone(app):
    """D-16: nothing runs beside it, however many jobs there are."""
    now, beside = [], []

    @app.job
    async def usual() -> None:
        now.append("usual")
        await asyncio.sleep(0)
        now.remove("usual")

    @app.job
    async def suspect() -> None:
        beside.extend(now)
        for _ in range(50):
            await asyncio.sleep(0)
            beside.extend(now)

    handle = suspect.enqueue()
    usual.enqueue_many({} for _ in range(40))
    with app.store._database.writing() as tx:
        tx.execute("update outlast_jobs set crashes = 2, state = 'alone' where id = ?", int(handle.id))
    result = app.work(until_idle=True, concurrency=4)
    assert (result.succeeded, handle.status, beside) == (41, "succeeded", [])


@pytest.mark.timeout(240)
def test_an_idle_worker_does_not_wait_between_two_jobs_that_run_alone(app, kinds, on_terms):
    """A worker that dies twice may leave many of them: who has nothing else to do takes one after the other."""
    on_terms(ttl=4000.0)  # no sweep but the first one
    handles = [kinds["quick"].enqueue(name) for name in "abc"]
    with app.store._database.writing() as tx:
        tx.execute("update outlast_jobs set crashes = 2, state = 'alone' where app = ?", app.name)
    with Beside(app):
        wait_until(lambda: all(handle.status == "succeeded" for handle in handles), "all of them are done")


@pytest.mark.timeout(240)
def test_a_job_that_must_run_alone_does_not_starve_the_others(app, kinds, tmp_path, on_terms, monkeypatch):
    """While a long job runs, the worker leaves room for it once, and then claims as usual for a while."""
    on_terms(ttl=2.0)  # a look every half second
    monkeypatch.setattr("outlast.jobs.worker._PATIENCE", 0.0)
    looks, vain = [], []
    look, impatient = Worker._leave_room, Worker._impatient
    monkeypatch.setattr(Worker, "_leave_room", lambda self: (looks.append(1), look(self)))
    monkeypatch.setattr(Worker, "_impatient", lambda self: (vain.append(1), impatient(self)))
    hold, suspect = kinds["hold"].enqueue("a"), None
    with Beside(app):
        wait_until(lambda: "begins a" in notes(tmp_path), "the long job has begun")
        suspect = kinds["quick"].enqueue("b")
        with app.store._database.writing() as tx:
            tx.execute("update outlast_jobs set crashes = 2, state = 'alone' where id = ?", int(suspect.id))
        wait_until(lambda: vain, "it has left room in vain")
        seen = len(looks)
        wait_until(lambda: len(looks) >= seen + 3, "it has looked again")
        other = kinds["quick"].enqueue("c")
        wait_until(lambda: other.status == "succeeded", "another job is done beside the long one")
        assert (len(vain), hold.status, suspect.status) == (1, "processing", "queued")
        (tmp_path / "go a").touch()
        wait_until(lambda: suspect.status == "succeeded", "nothing runs beside it")


def test_room_is_left_for_longer_and_longer_for_a_job_that_must_run_alone(sqlite_app, caplog):
    """
    So it is run if the others take up to an hour, and these have two thirds of the time until then. Told once, and each
    time that an hour was not enough.
    """

    async def waits():
        worker = made(sqlite_app, (), 4, until_idle=False)
        loop = worker._loop = asyncio.get_running_loop()
        found = []
        for _ in range(13):
            worker._next_wait_at = 0.0
            worker._leave_room()
            wait = worker._waiting_alone.when() - loop.time()
            worker._impatient()
            found.append((round(wait), round(worker._next_wait_at - loop.time())))
        return found

    doubled = [5 * 2**number for number in range(10)]
    assert asyncio.run(waits()) == [(seconds, 2 * seconds) for seconds in (*doubled, 3600, 3600, 3600)]
    told, *later = [line.getMessage() for line in caplog.records if "nothing beside it" in line.getMessage()]
    assert (
        "jobs here take longer than 5 s: this worker begins no other job for longer and longer times, up to 3600 s"
        in told
    )
    assert [line.rpartition("jobs here take longer than ")[2].partition(",")[0] for line in later] == ["3600 s"] * 3


@pytest.mark.timeout(240)
def test_a_job_that_must_run_alone_is_run_within_a_steady_backlog(app, on_terms, monkeypatch):
    """After those that run already, with nothing beside it, and before all others; these are done once each."""
    on_terms(ttl=8.0)  # a look every two seconds
    monkeypatch.setattr("outlast.jobs.worker._PATIENCE", 600.0)
    slots, backlog, most = 4, 40, 120
    order, running, beside, go_on = [], set(), [], threading.Event()

    @app.job
    def usual(n: int) -> int:
        order.append(n)
        running.add(n)
        if n + backlog < most:
            usual.enqueue(n + backlog)  # what is done is replaced
        assert go_on.wait(200)
        running.discard(n)
        return n

    @app.job
    def suspect() -> None:
        order.append("suspect")
        beside.extend(running)
        beside.append(app.store.queue_stats()[0].processing)

    usual.enqueue_many({"n": n} for n in range(backlog))
    with Beside(app, concurrency=slots) as worker:
        try:
            wait_until(lambda: len(order) == slots, "all slots are taken")
            handle = suspect.enqueue()
            with app.store._database.writing() as tx:
                tx.execute("update outlast_jobs set crashes = 2, state = 'alone' where id = ?", int(handle.id))
            wait_until(lambda: worker.worker._wants_alone, "the worker has seen it")
        finally:
            go_on.set()
        wait_until(lambda: handle.status == "succeeded", "it was run")
        wait_until(lambda: worker.worker.view().counts["succeeded"] == most + 1, "the others are done")
    assert (order.index("suspect"), beside) == (slots, [1])
    assert sorted(one for one in order if one != "suspect") == list(range(most))
    handles = [*app.jobs.find(kind="usual")]
    assert sorted(each.result() for each in handles) == list(range(most))
    assert {tuple(outcomes(each)) for each in handles} == {("succeeded",)}
    assert (worker.result.succeeded, worker.result.lost, worker.result.requeued) == (most + 1, 0, 0)


@pytest.mark.timeout(240)
def test_a_signal_drains_a_worker(app, kinds, tmp_path):
    """SIGTERM: nothing more is claimed, what runs ends, and its worker is gone from the record."""
    handle, other = kinds["hold"].enqueue("a"), None
    with laborer(app, tmp_path) as process:
        wait_until(lambda: "begins a" in notes(tmp_path), "the job has begun")
        process.terminate()
        wait_until(lambda: "no more jobs begin" in (tmp_path / "log").read_text(), "the signal is heard")
        other = kinds["quick"].enqueue("b")
        (tmp_path / "go a").touch()
        process.wait(200)
        assert process.returncode == 128 + signal.SIGTERM
    assert (handle.status, other.status, living(app)) == ("succeeded", "queued", [])


@pytest.mark.failure(35)
@pytest.mark.timeout(240)
def test_the_database_is_restarted_under_a_worker(tmp_path):
    """S4-29: what has ended meanwhile is recorded when it is back, once, and the worker goes on."""
    with Postgres() as server:
        app = outlast.App("restarted", store=server.dsn)
        kinds = jobs(app, tmp_path)
        handle = kinds["hold"].enqueue("a")
        with Beside(app):
            wait_until(lambda: "begins a" in notes(tmp_path), "the job has begun")
            server.stop("immediate")
            (tmp_path / "go a").touch()
            wait_until(lambda: "ends a" in notes(tmp_path), "it has ended")
            server.start()
            wait_until(lambda: handle.status == "succeeded", "its end is on record")
            other = kinds["quick"].enqueue("b")
            wait_until(lambda: other.status == "succeeded", "the worker goes on")
        assert (outcomes(handle), notes(tmp_path).count("begins a")) == (["succeeded"], 1)
        app.store.close()


@pytest.mark.failure(15, 16)
@pytest.mark.timeout(240)
def test_connections_are_cut_under_a_worker(postgres, tmp_path):
    """Whatever the moment, no claim is forgotten and no end is lost."""
    with FaultProxy(postgres.socket) as proxy:
        address = f"postgresql://postgres@127.0.0.1:{proxy.port}/{postgres.name}"
        app, direct = (outlast.App(f"cut-{tmp_path.name}", store=where) for where in (address, postgres.dsn))
        done = []

        async def count(n: int) -> None:
            done.append(n)

        app.job(count)
        direct.job(count)
        direct.kinds["count"].enqueue_many({"n": n} for n in range(300))
        with Beside(app):
            for _ in range(12):
                before = len(done)
                wait_until(lambda: len(done) > before or len(done) >= 300, "jobs go on")  # noqa: B023
                proxy.cut()
            wait_until(lambda: all(job.state == "succeeded" for job in direct.store.jobs(limit=400)), "all are done")
        attempts = [direct.store.job_attempts(job.id) for job in direct.store.jobs(limit=400)]
        assert (sorted(done), {len(rows) for rows in attempts}) == (list(range(300)), {1})
        direct.store.close()
        app.store.close()


@pytest.mark.failure(15)
@pytest.mark.parametrize("after", [False, True])
def test_a_statement_of_a_turn_fails(app, monkeypatch, after):
    """A fault at every statement, before it is done or after: each job ends once and runs once."""
    done = []

    @app.job
    async def count(n: int) -> None:
        done.append(n)

    app.store  # opened before it becomes brittle
    for at in range(1, 14):
        done.clear()
        count.enqueue_many({"n": n} for n in range(3))
        plan = Plan(app.store, monkeypatch)
        plan.fail(at, after=after)
        app.work(until_idle=True)
        monkeypatch.undo()
        assert sorted(done) == [0, 1, 2], at
    rows = app.store.jobs(limit=1000)
    assert {row.state for row in rows} == {"succeeded"}
    assert {len(app.store.job_attempts(row.id)) for row in rows} == {1}
    assert living(app) == []
