"""Workers of one machine: that one has died is known at once to the others, which do not wait for their next sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path

import psycopg
import pytest

from job_hands import Hands
from job_rows import by_crashes, end
from labor import Beside, jobs, laborer, living, notes, outcomes, wait_until
from outlast.jobs import upkeep
from outlast.jobs.neighbours import Neighbours
from outlast.store.records import Rescue
from outlast.testing import capture_events
from outlast.work import leases

RESCUES = {
    "ready": Rescue("ready", error="lost"),
    "waiting": Rescue("alone", 30_000_000, error="lost"),
    "failed": Rescue("failed", error="lost", stop_reason="poison"),
}
NEVER = 4000.0  # seconds that a lease lasts: a sweep comes once in a thousand


@pytest.fixture
def kinds(app, tmp_path):
    return jobs(app, tmp_path)


@pytest.fixture
def watched(monkeypatch):
    """How many processes each look of a worker has found to watch, the newest look last."""
    seen, real = [], Neighbours.watch

    def watch(self, owners):
        real(self, owners)
        seen.append(len(self))

    monkeypatch.setattr(Neighbours, "watch", watch)
    return seen


@pytest.mark.timeout(240)
def test_the_job_of_a_killed_worker_is_taken_over_without_a_sweep_to_come(
    app, kinds, tmp_path, on_terms, watched, monkeypatch
):
    """Done 3 of jobs: a dead process of the same machine is recognised at once. No look helps here: the system tells of it."""
    on_terms(ttl=NEVER)
    monkeypatch.setattr(upkeep, "LOOK", NEVER)
    handle = kinds["hold"].enqueue("a")
    with laborer(app, tmp_path, ttl=NEVER) as process:
        wait_until(lambda: "begins a" in notes(tmp_path), "the job has begun")
        with capture_events() as events, Beside(app):
            wait_until(lambda: 1 in watched, "the other worker knows it")
            os.kill(process.pid, signal.SIGKILL)
            (tmp_path / "go a").touch()
            wait_until(lambda: handle.status == "succeeded", "the other worker has done the job")
    assert outcomes(handle) == ["crashed", "succeeded"]
    assert handle.result() == f"a by {os.getpid()}"
    assert [event.job_ids for event in events if event.name == "worker_lost"] == [(handle.id,)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("pidfd", [True, False])
def test_a_newcomer_is_known_by_the_next_look(app, kinds, tmp_path, on_terms, watched, monkeypatch, pidfd):
    """It registers after the other one has swept. Where the system tells of no end, the next look finds that, too."""
    on_terms(ttl=NEVER)
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    with Beside(app):
        wait_until(lambda: watched, "it has swept")
        with laborer(app, tmp_path, ttl=NEVER, concurrency=1) as process:
            wait_until(lambda: len(living(app)) == 2, "the other one is there, too")
            handles = [kinds["hold"].enqueue(str(number)) for number in range(9)]
            wait_until(lambda: len(notes(tmp_path)) == 9, "each has a part of them")
            if pidfd:
                wait_until(lambda: 1 in watched, "it is known")
            os.kill(process.pid, signal.SIGKILL)
            for number in range(9):
                (tmp_path / f"go {number}").touch()
            wait_until(lambda: all(handle.status == "succeeded" for handle in handles), "all are done")
    assert sorted(outcomes(handle) for handle in handles) == [["crashed", "succeeded"]] + [["succeeded"]] * 8
    assert (1 in watched) == pidfd


@pytest.mark.timeout(240)
def test_many_that_hear_of_one_death_rescue_its_job_once(app, kinds, tmp_path, on_terms, watched):
    """They hear of it at the same moment; one brings the job back, one runs it, one crash is on record."""
    on_terms(ttl=NEVER)
    handle = kinds["hold"].enqueue("a")
    with laborer(app, tmp_path, ttl=NEVER) as process:
        wait_until(lambda: "begins a" in notes(tmp_path), "the job has begun")
        with capture_events() as events, ExitStack() as all_of_them:
            for _ in range(8):
                all_of_them.enter_context(Beside(app))
            wait_until(lambda: watched.count(1) >= 8, "all know it")
            os.kill(process.pid, signal.SIGKILL)
            wait_until(lambda: len(living(app)) == 8, "it is known to be dead")
            (tmp_path / "go a").touch()
            wait_until(lambda: handle.status == "succeeded", "one has done the job")
    assert outcomes(handle) == ["crashed", "succeeded"]
    assert (handle.crashes, notes(tmp_path)) == (1, ["begins a", "begins a", "ends a"])
    assert [event.jobs for event in events if event.name == "worker_lost"] == [1]


@pytest.mark.parametrize("left", ["running", "held"])
def test_who_sweeps_tells_whoever_waits_for_jobs(app, left):
    """It may have no room for them itself, or not serve their queue."""

    @app.job
    def note() -> None: ...

    note.enqueue()
    gone, heard = Hands(app), []
    (job,) = gone.take()
    if left == "held":
        gone.finish(end(job, "held", delay_us=0))
    app.store.drop_lease(gone.lease)
    with ExitStack() as listening:
        if app.store_file:
            listening.callback(app.store._database.listen(lambda: heard.append(app.name)))
        else:
            ear = listening.enter_context(psycopg.connect(app.store_url, autocommit=True))
            ear.execute("listen outlast_jobs")
        assert [one.state for one in app.store.sweep(lambda _: False, by_crashes)] == ["ready"]
        if not app.store_file:
            heard += [one.payload for one in ear.notifies(timeout=200, stop_after=1)]
        assert heard == [app.name]
        assert app.store.sweep(lambda _: False, by_crashes) == []
        assert heard == [app.name]


@contextmanager
def notifications(app):
    """A function that returns the notifications about new jobs since its last call."""
    if app.store_file:
        received = []
        forget = app.store._database.listen(lambda: received.append(app.name))
        try:
            yield lambda: [received.pop() for _ in [*received]]
        finally:
            forget()
        return
    with psycopg.connect(app.store_url, autocommit=True) as listener:
        listener.execute("listen outlast_jobs")

        def since():
            listener.execute("notify outlast_jobs, 'last'")
            payloads = (note.payload for note in listener.notifies(timeout=200))
            return [*takewhile(lambda payload: payload != "last", payloads)]

        yield since


def test_a_sweep_notifies_workers_if_any_of_its_jobs_is_ready(app):
    """Other jobs of the same sweep may wait or have failed; if none is ready, no worker is notified."""

    @app.job
    def note(n: int) -> None: ...

    for states in (("waiting", "ready"), ("ready", "waiting"), ("failed", "ready"), ("waiting", "failed")):
        for n in range(2):
            note.enqueue(n)
        gone = Hands(app)
        state_of = dict(zip([job.id for job in gone.take()], states, strict=True))
        app.store.drop_lease(gone.lease)
        with notifications(app) as since:
            app.store.sweep(lambda _: False, lambda orphan, known=state_of: RESCUES[known[orphan.id]])
            assert since() == [app.name] * ("ready" in states), states
        assert [app.store.job(number).state for number in state_of] == [*states]
        Hands(app).take()  # so that no job of this round is left for the next one


# -- what is watched ----------------------------------------------------------------------------------------------------


@pytest.fixture
def sleeper():
    """A process that does nothing, and the owner of a lease that it could have."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process, f"{leases._host()}:{process.pid}:{leases._started(process.pid)}:1"
    process.kill()
    process.communicate()


@pytest.fixture
def neighbours():
    made = Neighbours()
    yield made
    made.close()


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_end_of_a_process_ends_the_wait(sleeper, neighbours):
    """Told once; and who looks at its owner then finds it dead, although nobody has asked for its exit code."""
    process, owner = sleeper
    neighbours.watch([owner, f"{owner.removesuffix(':1')}:2", f"{leases.myself()}:1", "elsewhere/1:77:78:1", "strange"])
    assert (len(neighbours), neighbours.wait(0), leases.certainly_dead(owner)) == (1, False, False)
    process.kill()
    assert neighbours.wait(200)
    assert (len(neighbours), neighbours.wait(0), leases.certainly_dead(owner)) == (0, False, True)


def test_who_has_no_lease_any_more_is_not_watched(sleeper):
    """And nothing is left open."""
    process, owner = sleeper
    before = descriptors()
    neighbours = Neighbours()
    neighbours.watch([owner])
    held = descriptors()
    neighbours.watch([])
    assert (held - descriptors(), len(neighbours)) == (1, 0)
    process.kill()
    process.wait()
    assert not neighbours.wait(0)
    neighbours.watch([owner])  # it has ended
    assert len(neighbours) == 0
    neighbours.close()
    assert descriptors() == before


def test_somebody_rings(neighbours):
    thread = threading.Thread(target=neighbours.ring)
    thread.start()
    assert not neighbours.wait(200)
    thread.join()
    assert not neighbours.wait(200)  # for good
