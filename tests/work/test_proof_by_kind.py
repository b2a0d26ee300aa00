"""D-39 for each kind of work that has an owner: jobs, runs, flows, replays, idempotency keys and sinks."""

from __future__ import annotations

import itertools
import os

import pytest

import outlast
from job_rows import by_crashes, claimed, enqueued, new
from outlast.report.views import as_told
from outlast.store.idempotency import IdempotencyConflict
from outlast.testing import virtual_time
from outlast.work import leases
from outlast.work.leases import certainly_dead

TTL = 20.0
NUMBERS = itertools.count()


def dead():
    """A process of this machine that does not exist."""
    return f"{leases._host()}:{2**22 + 1}:77:1"


def hidden():
    """A process of this machine that lives, and of which nothing can be read."""
    return f"{leases._host()}:{os.getppid()}:{leases._started(os.getppid())}:1"


def elsewhere():
    """A process with a number that is free here, on a machine of the same name."""
    name, _, space = leases._host().split("/")
    return f"{name}/00000000-0000-4000-8000-000000000000/{space}:{2**22 + 1}:77:1"


@pytest.fixture(params=[dead, hidden, elsewhere], ids=lambda owner: owner.__name__)
def owner(request, monkeypatch):
    found, mine = request.param(), str(os.getpid())
    if request.param is hidden:
        read = leases._started
        monkeypatch.setattr(leases, "_started", lambda pid: read(pid) if str(pid) == mine else None)
    return found


@pytest.fixture
def is_dead(owner):
    return owner == dead()


@outlast.stage
def same(x):
    return x


@pytest.fixture
def app(tmp_path):
    return outlast.App("proof", store=f"sqlite:///{tmp_path}/s.db")


def end_leases(app):
    """All leases run out."""
    with app.store._database.writing() as tx:
        for table in ("outlast_leases", "outlast_shards"):
            tx.execute(f"update {table} set until = 1 where until is not null")


def test_a_job(app, owner, is_dead):
    """A sweep rescues jobs of the dead at once, and those of others when their lease has ended."""
    store = app.store
    (number,) = enqueued(store, new())
    lease = store.take_lease("worker", "w", owner, TTL)
    assert [job.id for job in claimed(store, lease)] == [number]
    rescued = [job.id for job in store.sweep(certainly_dead, by_crashes)]
    assert rescued == ([number] if is_dead else [])
    end_leases(app)
    assert [job.id for job in store.sweep(certainly_dead, by_crashes)] == ([] if is_dead else [number])


def waited(time, is_dead):
    """At once, or as long as a lease lasts that cannot be seen to be renewed."""
    assert time.sleeps == [] if is_dead else sum(time.sleeps) > TTL


def test_a_run(app, owner, is_dead):
    """Who resumes it waits for the lease, unless its owner is dead."""
    pipeline = outlast.Pipeline("p", same, app=app)
    pipeline.run([1], run_key="k")
    assert app.store.take_run(app.store.find_run("p", "k").number, 0, owner, TTL)
    with virtual_time() as time:
        assert pipeline.run([1, 2], run_key="k").counts.succeeded == 2
    waited(time, is_dead)


def test_a_flow(app, owner, is_dead, tmp_path, monkeypatch):
    """As a run."""
    module = f"proven_{next(NUMBERS)}"
    (tmp_path / f"{module}.py").write_text("def f():\n    return {'a': 1}\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = (
        'oml_version: "0.1.0"\nname: f\nsteps:\n  - {id: a, component: python, config: {call: "MODULE:f"}}\n'.replace(
            "MODULE", module
        )
    )
    (tmp_path / "f.yaml").write_text(text)
    flow = outlast.Flow.load(tmp_path / "f.yaml")
    record = app.store.open_run("f", "k", (), kind="flow")
    assert app.store.take_run(record.number, 0, owner, TTL)
    with virtual_time() as time:
        assert flow.run(run_key="k", app=app).status == "completed"
    waited(time, is_dead)


def test_a_replay(app, owner, is_dead):
    """Dead letters that it has claimed are open again at once, or when its lease has ended."""
    broken = [True]

    def fail(x):
        if broken:
            raise ValueError(x)
        return x

    pipeline = outlast.Pipeline("p", outlast.stage(retry=None)(fail), app=app)
    pipeline.run(range(3), run_key="k", check=False)
    store, letters = app.store, app.dead_letters
    replay = store.open_run("p", "replay", (), kind="replay")
    lease = store.take_run(replay.number, 0, owner, TTL)
    store.claim_for_replay(lease, replay.id, [letter.id for letter in letters.find()], reason="replayed")
    broken.clear()
    assert len(list(letters.find())) == (3 if is_dead else 0)
    if not is_dead:
        with pytest.raises(outlast.TemporaryFailure, match="Another process replays 3 dead letters"):
            pipeline.reprocess()
        end_leases(app)
    assert pipeline.reprocess().counts.succeeded == 3


def test_a_key(app, owner, is_dead):
    """Work under an idempotency key is in progress as long as its owner may live."""
    store = app.store
    first, second = store.take_lease("worker", "w", owner, TTL), store.take_lease("worker", "v", leases.myself(), TTL)
    begin = {"scope": "pay", "key": "a" * 64, "config": ""}
    store.begin_key(**begin, holder="job 1", lease=first, dead=certainly_dead)
    if not is_dead:
        with pytest.raises(IdempotencyConflict, match="job 1 is at it"):
            store.begin_key(**begin, holder="job 2", lease=second, dead=certainly_dead)
        store.drop_lease(first)
    assert store.begin_key(**begin, holder="job 2", lease=second, dead=certainly_dead).attempts == 2


def test_a_view(app, owner, is_dead):
    """A run whose process is dead is shown as interrupted; one that may live is shown as running."""
    record = app.store.open_run("p", "k", ())
    assert app.store.take_run(record.number, 0, owner, TTL)
    assert as_told(app.store, app.store.run(record.id)).status == ("interrupted" if is_dead else "running")


def test_a_process_that_lives_is_found_busy_within_a_second(app):
    """No heartbeat is waited for: the start of the process was read."""
    pipeline = outlast.Pipeline("p", same, app=app)
    pipeline.run([1], run_key="k")
    assert app.store.take_run(app.store.find_run("p", "k").number, 0, hidden(), TTL)
    with (
        virtual_time() as time,
        pytest.raises(
            outlast.LeaseLost, match=rf"is busy: process {os.getppid()} on .* last heartbeat was at .* use another"
        ),
    ):
        pipeline.run([1, 2], run_key="k")
    assert time.sleeps == [1.0]
