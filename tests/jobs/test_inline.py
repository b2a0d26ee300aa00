"""Jobs in tests: a store that is gone afterwards, jobs done where they are enqueued, and jobs that are only written down."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

import outlast
from labor import outcomes
from outlast.testing import EnqueuedJob, Faults, enqueued, inline, temporary_store, virtual_time, work


@pytest.fixture
def real(tmp_path):
    """An app whose own store must not be touched: it would be made here."""
    made = outlast.App(f"tests-{uuid4().hex}", store=tmp_path / "real" / "outlast.db")
    yield made
    assert not (tmp_path / "real").exists()


@dataclass
class Order:
    number: int


# --- a store of its own ---


def test_a_temporary_store_takes_the_place_of_the_own_one(real):
    """The app's own store is never opened; the handle knows its store after the block, and then its folder is gone."""

    @real.job
    def double(n: int) -> int:
        return 2 * n

    own = real.store_url
    with temporary_store(real) as same:
        assert same is real
        folder = Path(real.store_file).parent
        job = double.enqueue(4)
        assert (job.status, work(real).succeeded, job.result()) == ("queued", 1, 8)
        assert [found.id for found in real.jobs.find()] == [job.id]
        assert real.jobs.get(job.id) == job
    assert real.store_url == own
    assert (job.status, [each.outcome for each in job.history()], folder.is_dir()) == ("succeeded", ["succeeded"], True)
    del job
    gc.collect()
    assert not folder.exists()


def test_every_temporary_store_is_another_one_and_they_nest(real):
    @real.job
    def note() -> None: ...

    with temporary_store(real):
        note.enqueue()
        with temporary_store(real):
            assert [*real.jobs.find()] == []
            note.enqueue()
            note.enqueue()
        assert len([*real.jobs.find()]) == 1
    with temporary_store(real):
        assert [*real.jobs.find()] == []


def test_the_own_store_is_back_after_an_error(tmp_path):
    app = outlast.App("shop", store=tmp_path / "own.db")

    @app.job
    def note() -> None: ...

    note.enqueue()
    with pytest.raises(ZeroDivisionError), temporary_store(app):
        note.enqueue()
        note.enqueue()
        _ = 1 / 0
    assert len([*app.jobs.find()]) == 1
    app.store.close()


def test_two_threads_have_each_their_own(real):
    """Tests that run side by side do not see each other's jobs, whichever began last."""

    @real.job
    def note(n: int) -> None: ...

    met, found = threading.Barrier(2), {}

    def trial(count: int) -> None:
        with temporary_store(real):
            met.wait(60)
            for n in range(count):
                note.enqueue(n)
            met.wait(60)
            found[count] = len([*real.jobs.find()])
            met.wait(60)

    threads = [threading.Thread(target=trial, args=(count,)) for count in (2, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {2: 2, 5: 5}


def test_a_thread_that_was_there_before_writes_to_the_temporary_store(real):
    """A server's thread of the whole session knows nothing of the test; the real store is still not touched."""

    @real.job
    def note() -> None: ...

    begin, done = threading.Event(), threading.Event()

    def serve() -> None:
        begin.wait(60)
        note.enqueue()
        done.set()

    thread = threading.Thread(target=serve)
    thread.start()
    with temporary_store(real):
        begin.set()
        assert done.wait(60)
        assert len([*real.jobs.find()]) == 1
    thread.join(60)


def test_a_thread_that_outlives_its_test_does_not_write_to_the_real_store(real):
    @real.job
    def note() -> None: ...

    over, done = threading.Event(), threading.Event()

    def late() -> None:
        over.wait(60)
        note.enqueue()
        done.set()

    with temporary_store(real):
        thread = threading.Thread(target=late)
        thread.start()
    over.set()
    assert done.wait(60)
    thread.join(60)


def test_a_store_at_an_address_stays(postgres, real):
    """With `store=` an app of SQLite is tested on PostgreSQL, whose transactions its code enqueues in."""

    @real.job
    def double(n: int) -> int:
        return 2 * n

    with temporary_store(real, store=postgres.dsn), psycopg.connect(postgres.dsn) as caller:
        with caller.transaction():
            job = double.options(transaction=caller).enqueue(3)
        work(real)
    assert job.result() == 6
    with temporary_store(real, store=postgres.dsn):
        assert [found.status for found in real.jobs.find()] == ["succeeded"]
        real.store.close()


def test_dead_letters_and_runs_are_in_it_too(real):
    @real.job
    def broken() -> None:
        raise ValueError("no")

    @outlast.stage
    def add(n: int) -> int:
        return n + 1

    adding = outlast.Pipeline(f"adding-{uuid4().hex}", add, app=real)
    with temporary_store(real):
        job = broken.enqueue()
        work(real)
        assert [letter.item_key for letter in real.dead_letters.find()] == [job.id]
        assert [*adding.run([1, 2]).outputs()] == [2, 3]


def test_what_is_shared_is_not_bound_to_a_temporary_store(tmp_path):
    """A bond never changes: bound to a store that is gone, a limit could not be used any more."""
    app = outlast.App("shop", store=tmp_path / "own.db")
    limit = outlast.Limit(f"api-{uuid4().hex}", concurrency=1, shared=True)

    @app.job(guard=outlast.Guard(retry=None, limit=limit))
    def ask() -> str:
        return "answer"

    for _ in range(2):
        with temporary_store(app):
            job = ask.enqueue()
            app.work(until_idle=True)
            assert job.result() == "answer"
        assert not (tmp_path / "own.db").exists()
    job = ask.enqueue()
    assert (app.work(until_idle=True).succeeded, job.result()) == (1, "answer")
    app.store.close()


# --- jobs done where they are enqueued ---


def test_inline_a_job_is_done_when_enqueue_returns(real):
    """With its attempts, its delay and its result, as a worker would; the waits are on record and take no time."""
    tries = []

    @real.job
    def flaky(n: int) -> int:
        tries.append(outlast.current().attempt)
        if len(tries) < 3:
            raise ConnectionResetError("once more")
        return 2 * n

    @real.job
    async def later(order: Order) -> int:
        return order.number

    with inline(real):
        job = flaky.enqueue(21)
        assert (job.status, job.attempts, tries) == ("succeeded", 3, [1, 2, 3])
        first, second = job.history()[:2]
        assert 24 <= (first.next_run_at - first.started_at).total_seconds() <= 37
        assert 96 <= (second.next_run_at - second.started_at).total_seconds() <= 145
        delayed = later.options(delay=3600, queue="slow").enqueue(Order(7))
        assert delayed.result() == 7
    assert job.result() == 42


def test_inline_what_a_job_enqueues_is_done_too(real):
    """By the worker that is at it: sync and async jobs, several deep, without a worker inside of a worker."""
    done = []

    @real.job
    def leaf(n: int) -> None:
        done.append(("leaf", n))

    @real.job
    async def branch(n: int) -> None:
        done.append(("branch", n))
        await leaf.aenqueue(n)
        leaf.enqueue(n + 1)

    @real.job
    def root() -> None:
        branch.enqueue(1)
        done.append(("root", 0))

    with inline(real):
        root.enqueue()
        assert sorted(done) == [("branch", 1), ("leaf", 1), ("leaf", 2), ("root", 0)]


def test_inline_unique_keys_and_many(real):
    """A second enqueue gives the job that has succeeded; enqueue_many says how many were new, and all are done."""
    done = []

    @real.job
    def note(n: int) -> None:
        done.append(n)

    with inline(real):
        job = note.options(unique_key="one").enqueue(1)
        assert note.options(unique_key="one").enqueue(1) == job
        many = note.options(unique_key=lambda n: f"number {n}")
        assert many.enqueue_many([{"n": 2}, {"n": 3}, {"n": 2}]) == 2
        assert many.enqueue_many([{"n": 3}, {"n": 4}]) == 1
    assert (done[0], sorted(done)) == (1, [1, 2, 3, 4])


def test_inline_in_an_event_loop(real):
    """`aenqueue` leaves the loop free meanwhile; a plain `enqueue` works there as well."""
    ticks = []

    @real.job
    async def double(n: int) -> int:
        return 2 * n

    async def main() -> list[int]:
        async def tick() -> None:
            while True:
                ticks.append(1)
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        with inline(real):
            first = await double.aenqueue(1)
            second = double.enqueue(2)
            count = await double.aenqueue_many([{"n": 3}])
            ticking.cancel()
            return [await first.aresult(), second.result(), count]

    assert asyncio.run(main()) == [2, 4, 1]
    assert len(ticks) > 2


def test_inline_enqueue_never_raises_for_how_a_job_ends(real):
    """As in production; the end is in the handle, and leaving the block raises it."""
    after = []

    @real.job
    def broken() -> None:
        raise ValueError("this one")

    with pytest.raises(outlast.JobFailed, match="this one") as raised, inline(real):
        job = broken.enqueue()
        after.append(job.status)
        with pytest.raises(outlast.JobFailed, match="this one"):
            job.result()
    assert (after, raised.value.job) == (["failed"], job)
    with inline(real, check=False):
        assert broken.enqueue().status == "failed"


def test_inline_the_error_of_the_test_itself_comes_first(real):
    @real.job
    def broken() -> None:
        raise ValueError("this one")

    with pytest.raises(ZeroDivisionError), inline(real):
        broken.enqueue()
        _ = 1 / 0


def test_inline_a_failure_of_before_is_not_raised_again(real):
    @real.job
    def broken() -> None:
        raise ValueError("before")

    with temporary_store(real):
        with inline(real, check=False):
            broken.enqueue()
        with inline(real):
            assert len([*real.jobs.find(status="failed")]) == 1


def test_inline_faults_and_resources(real):
    """Faults go on where the last job left them; what is provided is used; names that nobody knows are errors."""
    opened = []

    @contextmanager
    def open_client():
        opened.append("real")
        yield "a real one"

    @real.job
    def ask(client: str = outlast.use(open_client)) -> str:
        return client

    with inline(
        real,
        faults=[Faults("ask", TimeoutError(), None, ValueError("third"))],
        check=False,
        provide={open_client: "a fake"},
    ):
        first, second = ask.enqueue(), ask.enqueue()
        assert (outcomes(first), first.result()) == (["failed", "succeeded"], "a fake")
        assert (second.status, second.error) == ("failed", "third")
    assert opened == []
    with inline(real):
        assert ask.enqueue().result() == "a real one"
    for wrong in ({"faults": [Faults("asks")]}, {"provide": {os.getcwd: 1}}):
        with pytest.raises(outlast.ConfigurationError, match=r"expected (faults|provide) to be"), inline(real, **wrong):
            raise AssertionError


def test_inline_in_virtual_time_of_the_test(real):
    """The test's own virtual time passes: waits of jobs are waits of the test."""

    @real.job
    def note() -> None: ...

    with virtual_time() as time, inline(real):
        note.options(delay=90).enqueue()
        assert 89 < time.now < 95


def test_inline_a_job_of_a_transaction_is_done_once_it_is_committed(real):
    """Before the commit nobody can see it: it is done with the next job that is enqueued, or when the block ends."""
    done = []

    @real.job
    def note(n: int) -> None:
        done.append(n)

    with inline(real):
        caller = sqlite3.connect(real.store_file)
        for n, end in ((1, caller.commit), (2, caller.rollback)):
            note.options(transaction=caller).enqueue(n)
            assert done == []
            end()
        note.enqueue(3)
        assert done == [1, 3]
        note.options(transaction=caller).enqueue(4)
        caller.commit()
        caller.close()
        assert done == [1, 3]
    assert done == [1, 3, 4]


def test_inline_two_apps(tmp_path):
    """A job of one app that enqueues into another one: that one is done by a worker of its own."""
    shop, mail = (outlast.App(name, store=tmp_path / "none" / "x.db") for name in ("shop", "mail"))
    sent = []

    @mail.job
    def send(to: str) -> None:
        sent.append(to)

    @shop.job
    def order(to: str) -> int:
        send.enqueue(to)
        return len(sent)

    with inline(shop), inline(mail):
        assert order.enqueue("ann").result() == 1
    assert not (tmp_path / "none").exists()


# --- jobs that are only written down ---


def test_what_was_enqueued_compares_with_what_was_expected(real):
    """Everything that `options` says is there; nothing is run, and the handles are those of real jobs."""
    done = []

    @real.job(queue="mail")
    def send(to: str, copies: int = 1) -> None:
        done.append(to)

    @real.job
    async def bill(order: Order) -> None:
        done.append(order)

    with enqueued(real) as jobs:
        send.enqueue("ann")
        send.options(delay=60, priority=5, queue="fast", unique_key="bob").enqueue("bob", copies=2)
        again = send.options(unique_key="bob").enqueue("bob")
        bill.enqueue(Order(7))
        assert len(jobs) == 4
    assert jobs == [
        EnqueuedJob("send", {"to": "ann"}, queue="mail"),
        EnqueuedJob("send", {"to": "bob", "copies": 2}, queue="fast", priority=5, delay=60, unique_key="bob"),
        EnqueuedJob("send", {"to": "bob"}, queue="mail", unique_key="bob", new=False),
        EnqueuedJob("bill", {"order": Order(7)}),
    ]
    assert type(jobs) is list
    assert jobs != [EnqueuedJob("send", {"to": "ann"})]
    assert (jobs[1].handle, jobs[1].handle.status) == (again, "queued")
    assert repr(jobs[3]) == (
        "EnqueuedJob(kind='bill', arguments={'order': Order(number=7)}, queue='default', priority=0, delay=0.0, unique_key=None, new=True)"
    )
    assert done == []


def test_enqueued_many_and_from_an_event_loop(real):
    @real.job
    def note(n: int) -> None: ...

    async def main() -> None:
        await note.aenqueue(1)
        await note.options(unique_key=lambda n: f"number {n}").aenqueue_many([{"n": 2}, {"n": 2}])

    with enqueued(real) as jobs:
        asyncio.run(main())
        note.enqueue_many([{"n": 4}])
    assert [(job.arguments, job.new) for job in jobs] == [
        ({"n": 1}, True),
        ({"n": 2}, True),
        ({"n": 2}, False),
        ({"n": 4}, True),
    ]


def test_enqueued_in_a_transaction_counts_if_that_was_committed(app):
    """On both databases; in the order in which they were enqueued."""

    @app.job
    def note(n: int) -> None: ...

    with temporary_store(app, store=app.store_url), enqueued(app) as jobs:
        _ = app.store  # its tables are there before the caller's transaction begins
        caller = sqlite3.connect(app.store_file) if app.store_file else psycopg.connect(app.store_url)
        bound = note.options(transaction=caller)
        bound.enqueue(1)
        caller.rollback()
        bound.enqueue(2)
        bound.enqueue_many([{"n": 3}, {"n": 4}])
        caller.commit()
        caller.close()
        note.enqueue(5)
        assert [job.arguments["n"] for job in jobs] == [5]
    assert [job.arguments["n"] for job in jobs] == [2, 3, 4, 5]
    assert [job.handle.status for job in jobs] == ["queued"] * 4


def test_enqueued_with_work_and_with_inline(real):
    """One store for all scopes of a test."""

    @real.job
    def double(n: int) -> int:
        return 2 * n

    with temporary_store(real):
        with enqueued(real) as jobs:
            double.enqueue(1)
        assert work(real).succeeded == 1
        assert jobs[0].handle.result() == 2
        with inline(real), enqueued(real) as jobs:
            assert double.enqueue(2).result() == 4
        assert jobs == [EnqueuedJob("double", {"n": 2})]


# --- small things ---


def test_a_job_that_uses_something_is_not_called_with_a_placeholder(real):
    """Called as a function it refuses clearly, by place and by name; with what it uses given it runs."""

    @contextmanager
    def open_client():
        yield "a client"

    @real.job
    def ask(n: int, client: str = outlast.use(open_client), more: int = 0) -> str:
        return f"{client} {n} {more}"

    for call in (lambda: ask(1), lambda: ask(n=1), lambda: ask(1, more=2)):
        with pytest.raises(
            TypeError, match="ask is called outside of a worker, where nothing is opened: give it client="
        ):
            call()
    assert (ask(1, "mine"), ask(1, client="mine"), ask(1, "mine", 3)) == ("mine 1 0", "mine 1 0", "mine 1 3")


def test_an_app_takes_a_path_as_its_store(tmp_path):
    app = outlast.App("shop", store=tmp_path / "jobs.db")
    assert app.store_file == str(tmp_path / "jobs.db")
    app.store.close()
    assert (tmp_path / "jobs.db").exists()
    with pytest.raises(outlast.ConfigurationError, match="expected store to be"):
        outlast.App("shop", store=7)


def test_work_is_done_in_the_virtual_time_around_it(real):
    """Whoever asks that time afterwards sees how much of it has passed."""

    @real.job
    def double(n: int) -> int:
        return 2 * n

    with temporary_store(real), virtual_time() as time:
        job = double.options(delay=3600).enqueue(4)
        assert work(real).succeeded == 1
        assert job.result() == 8
        assert 3000 < time.now < 3700  # less by what the real clock of the database has gone on meanwhile
