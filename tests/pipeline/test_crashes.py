"""Processes that die at any moment, and stores that go away: nothing is lost, nothing is done twice in the output."""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

import doomed
import forked
import outlast
from forked import Forked
from outlast.store import Store, StoreRefused, StoreUnavailable
from outlast.store import postgres as database
from outlast.testing import capture_events, virtual_time
from servers.disk import Disk
from servers.postgres import Postgres

ITEMS = 6000
KILLS = 25


def half_written(sink: Path) -> bool:
    """Whether the file ends in the middle of a line."""
    written = sink.read_bytes() if sink.exists() else b""
    return bool(written) and not written.endswith(b"\n")


@pytest.mark.timeout(600)
def test_a_process_may_be_killed_at_any_moment(tmp_path):
    """C-22, D-15: after 25 kills every item is accounted for, the sink is exact, no end ever changed, no attempt of a finished item is lost."""
    address, sink = tmp_path / "s.db", tmp_path / "out.jsonl"
    command = [sys.executable, doomed.__file__, address, sink, str(ITEMS), "0"]
    store = outlast.App(doomed.APP, store=str(address)).store
    dice = random.Random(7)  # reproducible moments
    ended, torn, tail, unfinished = {}, 0, 0, 0
    for number in range(KILLS):
        with Forked(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "reading\n"
            if number % 5 == 4:  # chance alone may miss the moments that matter on a busy machine
                while process.poll() is None and not half_written(sink):
                    pass
            else:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.01 + dice.random() * 0.12)
            unfinished += process.poll() is None
            process.kill()
        now, attempts, needed, offset = doomed.recorded(store)
        assert {seq: now.get(seq) for seq in ended} == ended, "an end has changed"
        assert all(attempts[seq] >= count for seq, count in needed.items())
        ended = now
        written = sink.read_bytes() if sink.exists() else b""
        torn += half_written(sink)
        tail += len(written) > offset
    assert unfinished == KILLS, "it was done before all kills: more items are needed"
    assert torn >= 3, f"kills must hit torn lines to prove anything: {torn} torn, {tail} with a tail"
    assert tail >= torn
    done = forked.run(command, check=True)
    assert done.stdout == "reading\ncompleted\n"
    ended, attempts, needed, offset = doomed.recorded(store)
    assert sorted(ended) == list(range(ITEMS))
    assert Counter(ended.values()) == {"succeeded": 5760, "skipped": 120, "dlq": 120}
    assert all(attempts[seq] >= count for seq, count in needed.items())
    numbers = [json.loads(line)["n"] for line in sink.read_text().splitlines()]
    assert sorted(numbers) == [seq for seq in range(ITEMS) if ended[seq] == "succeeded"]
    assert sink.stat().st_size == offset
    assert len(store.letters(limit=1000)) == 120
    assert store.find_run(doomed.PIPELINE, doomed.KEY).counts.total == ITEMS
    store.close()


PAYING = """
import asyncio, os, sys
import outlast

def line(file, item):
    os.write(file, f"{item}\\n".encode())

paid, used = (os.open(name, os.O_CREAT | os.O_APPEND | os.O_WRONLY) for name in sys.argv[2:4])
crashes = int(sys.argv[4])

@outlast.stage
def parse(item):
    return item

@outlast.stage(checkpoint=True)
async def pay(item):
    line(paid, item)
    return item

@outlast.stage
async def use(item):
    line(used, item)
    await asyncio.sleep(0.0005)
    if item == crashes:
        os.kill(os.getpid(), 9)
    return item

pipeline = outlast.Pipeline("p", parse, pay, use, app=outlast.App("a", store=sys.argv[1]))
print(pipeline.run(range(10_000), run_key="k").status)
"""


@pytest.mark.timeout(600)
def test_a_checkpointed_stage_is_paid_once_although_the_next_one_kills_the_process(tmp_path):
    """
    D-15: an item passes such a stage only when its output is on record, so a crash behind it pays for nothing again but what was being
    paid at that very moment.
    """
    program, paid, used = tmp_path / "program.py", tmp_path / "paid", tmp_path / "used"
    program.write_text(PAYING)

    def go(crashes):
        command = [sys.executable, program, tmp_path / "s.db", paid, used, str(crashes)]
        return forked.run(command)

    def payments():
        return Counter(map(int, paid.read_text().split()))

    behind = {}  # items that have reached the last stage, and how often they were paid for until then
    for crashes in (500, 3000, 8000):
        assert go(crashes).returncode == -9
        now = payments()
        assert {item: now[item] for item in behind} == behind, "paid again although it was on record"
        behind |= {item: now[item] for item in map(int, used.read_text().split())}
    done = go(-1)
    assert (done.returncode, done.stdout) == (0, "completed\n")
    now = payments()
    assert {item: now[item] for item in behind} == behind
    assert sorted(now) == list(range(10_000))
    assert sum(now.values()) - 10_000 <= 3 * 256  # at most a window at each crash


# --- the store ---


def doubled(app):
    @outlast.stage
    async def work(item):
        return item * 2

    return outlast.Pipeline("p", work, app=app)


def test_a_store_that_goes_away_for_a_while_is_waited_for(app, monkeypatch):
    """The run waits, with growing pauses, and completes with correct counts when the cause is gone."""
    write, lost = Store.write, [StoreUnavailable("the server is restarting")] * 8

    def unsteady(store, lease, batch):
        if lost:
            if len(lost) % 2:
                write(store, lease, batch)  # committed, but nobody hears of it
            raise lost.pop()
        write(store, lease, batch)

    monkeypatch.setattr(Store, "write", unsteady)
    with virtual_time():
        result = doubled(app).run(range(500), run_key="k")
    assert (result.status, result.counts.succeeded) == ("completed", 500)
    assert app.store.find_run("p", "k").counts.succeeded == 500


def test_a_store_that_stays_away_ends_the_run_with_a_message_and_resume_completes_it(app, monkeypatch):
    """What the store did not take is not reported as finished."""
    write = Store.write
    batches = []

    def away(store, lease, batch):
        batches.append(batch)
        if len(batches) > 1:
            raise StoreUnavailable("connection refused")
        write(store, lease, batch)

    monkeypatch.setattr(Store, "write", away)
    with virtual_time():
        result = doubled(app).run(range(9000), run_key="k", check=False)
    assert (result.status, result.reason) == ("failed", "store_error")
    assert "connection refused" in result.why
    counts = result.counts
    assert counts.succeeded == len(batches[0].items)
    assert counts.total == counts.finished + counts.pending
    monkeypatch.setattr(Store, "write", write)
    result = doubled(app).run(range(9000), run_key="k")
    assert (result.status, result.counts.succeeded) == ("completed", 9000)
    assert list(result.outputs()) == [2 * item for item in range(9000)]


def test_what_the_store_refuses_is_not_tried_again(app, monkeypatch):
    """A contradiction is a defect: it ends the run at once, with the reason."""
    monkeypatch.setattr(Store, "write", lambda *_: (_ for _ in ()).throw(StoreRefused("no such column")))
    result = doubled(app).run(range(10), check=False)
    assert (result.status, result.reason, result.counts.succeeded) == ("failed", "store_error", 0)
    assert "no such column" in result.why


def test_a_store_that_cannot_be_reached_at_the_start_is_said(tmp_path):
    """No silent fallback: nothing runs without its record."""
    place = tmp_path / "file"
    place.write_text("not a folder")
    seen = []

    @outlast.stage
    async def work(item):
        seen.append(item)

    app = outlast.App("a", store=str(place / "s.db"))
    with virtual_time(), pytest.raises(outlast.OutlastError):
        outlast.Pipeline("p", work, app=app).run([1])
    assert seen == []


def test_a_full_disk_under_the_sink_loses_nothing(app, tmp_path, monkeypatch):
    """The run waits for room and then stops; a resume completes the file exactly."""
    fdatasync = os.fdatasync
    full = [True]

    def sync(file):
        if full:
            raise OSError(28, "No space left on device")
        fdatasync(file)

    monkeypatch.setattr(os, "fdatasync", sync)
    sink = tmp_path / "out.jsonl"
    with virtual_time():
        result = doubled(app).run(range(100), run_key="k", sink=sink, check=False)
    assert (result.status, result.reason, result.counts.succeeded) == ("failed", "store_error", 0)
    assert "No space left" in result.why
    full.clear()
    doubled(app).run(range(100), run_key="k", sink=sink)
    assert sorted(map(int, Path(sink).read_text().split())) == [2 * item for item in range(100)]


def test_a_database_whose_connections_are_cut_again_and_again_is_waited_for(postgres):
    """Every session is ended in the middle of the run, several times: the counts are right and nothing is doubled."""
    app = outlast.App("cut", store=postgres.dsn)
    cuts = []

    def source():
        for number in range(12_000):
            if number and number % 3000 == 0:
                with psycopg.connect(postgres.dsn, autocommit=True) as connection:
                    cuts.append(
                        connection.execute(
                            "select count(pg_terminate_backend(pid)) from pg_stat_activity "
                            "where pid <> pg_backend_pid() and datname = current_database()"
                        ).fetchone()[0]
                    )
            yield number

    result = doubled(app).run(source(), run_key="k")
    assert (result.status, result.counts.succeeded) == ("completed", 12_000)
    assert sum(cuts) >= 3
    assert list(result.outputs()) == [2 * item for item in range(12_000)]
    app.store.close()


@pytest.mark.timeout(600)
def test_a_database_that_is_restarted_in_mid_run_is_waited_for(tmp_path):
    """C-22, D-13: killed and started again twice while batches are on their way; the counts are right and the file is exact."""
    with Postgres() as server:
        app, sink = outlast.App("restarted", store=server.dsn), tmp_path / "out.jsonl"

        def source():
            for number in range(9000):
                if number in {3000, 6000}:
                    server.stop("immediate")
                    server.start()
                yield number

        result = doubled(app).run(source(), run_key="k", sink=sink)
        assert (result.status, result.counts.succeeded, result.counts.pending) == ("completed", 9000, 0)
        assert app.store.find_run("p", "k").counts.succeeded == 9000
        app.store.close()
    assert sorted(map(int, sink.read_text().split())) == [2 * item for item in range(9000)]


@pytest.fixture
def disk():
    small = Disk("1m")
    yield small
    small.close()


@pytest.mark.timeout(600)
def test_a_full_disk_stops_the_run_with_a_message_and_resume_completes_it(disk, on_terms):
    """C-14, D-13: store and sink on one small disk; nothing that was not stored counts, and with room again all of it comes true."""
    on_terms(patience=0.3)
    store, sink = disk.folder / "store.db", disk.folder / "out.jsonl"
    app = outlast.App("full", store=str(store))
    result = doubled(app).run(range(20_000), run_key="k", sink=sink, check=False)
    counts = result.counts
    assert (result.status, result.reason) == ("failed", "store_error")
    assert "Make room on that disk" in result.why or "No space left" in result.why
    assert counts.total == counts.finished + counts.pending
    assert counts.pending > 0
    disk.grow()
    result = doubled(app).run(range(20_000), run_key="k", sink=sink)
    assert (result.status, result.counts.succeeded, result.counts.pending) == ("completed", 20_000, 0)
    assert sorted(map(int, sink.read_text().split())) == [2 * item for item in range(20_000)]
    app.store.close()


@pytest.mark.timeout(600)
def test_a_disk_that_gets_room_again_in_time_is_waited_for(disk):
    """The run goes on by itself, and was never stopped."""
    app, sink = outlast.App("waits", store=str(disk.folder / "store.db")), disk.folder / "out.jsonl"
    told = threading.Event()

    class Heard(logging.Handler):
        def emit(self, record):
            if "is waited for" in record.getMessage():
                told.set()

    heard = Heard()
    logging.getLogger("outlast").addHandler(heard)
    rescue = threading.Thread(target=lambda: told.wait(60) and disk.grow())
    rescue.start()
    try:
        result = doubled(app).run(range(20_000), run_key="k", sink=sink)
    finally:
        told.set()
        rescue.join()
        logging.getLogger("outlast").removeHandler(heard)
    assert (result.status, result.counts.succeeded) == ("completed", 20_000)
    assert sorted(map(int, sink.read_text().split())) == [2 * item for item in range(20_000)]
    app.store.close()


@pytest.mark.timeout(600)
def test_a_database_that_takes_no_writes_for_a_while_is_waited_for(postgres, monkeypatch):
    """A failover: the server is read-only until the other one has taken over; the run waits, says so once, and loses nothing."""
    postgres.execute("create database failover")
    head, _, options = postgres.dsn.partition("?")
    app = outlast.App("failover", store=f"{head.rpartition('/')[0]}/failover?{options}")
    heard, refused, fault = [], [], database.Postgres.fault

    def switching(server, error):
        found = fault(server, error)
        if "takes no writes" in str(found):
            refused.append(found)
            postgres.execute("alter database failover reset default_transaction_read_only")
        return found

    class Heard(logging.Handler):
        def emit(self, record):
            if hasattr(record, "outlast_waits"):
                heard.append(record.getMessage())

    def rows():
        for number in range(3000):
            if number == 1000:
                postgres.execute(
                    "alter database failover set default_transaction_read_only = on",
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'failover'",
                )
            yield number

    monkeypatch.setattr(database.Postgres, "fault", switching)
    handler = Heard()
    logging.getLogger("outlast").addHandler(handler)
    try:
        result = doubled(app).run(rows(), run_key="k")
    finally:
        logging.getLogger("outlast").removeHandler(handler)
        app.store.close()
        postgres.execute("drop database failover with (force)")
    assert (result.status, result.counts.succeeded) == ("completed", 3000)
    assert len(heard) == 1
    assert refused


def test_a_lease_does_not_outlive_its_owner_because_the_clock_was_set_back(app):
    """It says that it is good for three hours, and nobody renews it: after its own time it is taken over. One that is renewed is respected."""
    record = app.store.open_run("p", "k", doubled(app)._plan(run_key="k").marks)
    dead = app.store.take_run(record.number, 0, "gone.example/1:4711:1:1", 20.0)

    def set_back():
        with app.store._database.writing() as tx:
            tx.execute("update outlast_shards set until = until + 10800000000 where run = ?", record.number)

    set_back()
    with virtual_time() as time:
        result = doubled(app).run(range(10), run_key="k")
    assert (result.status, result.counts.succeeded) == ("completed", 10)
    assert 20 < time.now < 40
    with pytest.raises(outlast.LeaseLost):
        app.store.beat(dead)
    alive = app.store.take_run(record.number, 0, "there.example/1:4711:1:1", 20.0)
    set_back()
    beaten = []

    def beat(record):
        if "waiting to see whether it lives" in record.getMessage():
            beaten.append(app.store.beat(alive))
        return True

    logging.getLogger("outlast").addFilter(beat)
    try:
        with (
            virtual_time(),
            pytest.raises(outlast.LeaseLost, match=r"is busy: process 4711 on there.example works on it"),
        ):
            doubled(app).run(range(20), run_key="k")
    finally:
        logging.getLogger("outlast").removeFilter(beat)
    assert len(beaten) == 1


def test_a_store_that_is_away_when_the_run_ends_is_waited_for(app, monkeypatch):
    """What is returned as completed is completed in the store."""
    set_run, lost = Store.set_run, [StoreUnavailable("the server is restarting")] * 5

    def unsteady(store, lease, run_id, *, status, **how):
        if status == "completed" and lost:
            raise lost.pop()
        return set_run(store, lease, run_id, status=status, **how)

    monkeypatch.setattr(Store, "set_run", unsteady)
    with virtual_time():
        result = doubled(app).run(range(10), run_key="k")
    assert (result.status, lost) == ("completed", [])
    assert app.store.find_run("p", "k").status == "completed"
    assert [event.name for event in app.store.events(result.id)] == ["run_started", "run_finished"]


@pytest.mark.parametrize(
    ("fault", "reason", "said"),
    [
        (StoreUnavailable("the server is restarting"), "store_error", "the end of the run could not be recorded"),
        (outlast.LeaseLost("taken over"), "lease_lost", "another process works on this run now"),
    ],
)
def test_an_end_that_is_not_on_record_is_no_good_end(app, monkeypatch, fault, reason, said):
    """D-21: the caller hears of it, so do those who listen, and the same key ends the run."""
    set_run = Store.set_run

    def away(store, lease, run_id, *, status, **how):
        if status == "completed":
            raise fault
        return set_run(store, lease, run_id, status=status, **how)

    with monkeypatch.context() as patched, virtual_time(), capture_events() as told:
        patched.setattr(Store, "set_run", away)
        with pytest.raises(outlast.RunFailed, match=said) as raised:
            doubled(app).run(range(10), run_key="k")
    result = raised.value.result
    assert (result.status, result.reason, result.error, result.counts.succeeded) == ("failed", reason, fault, 10)
    assert [(event.status, event.reason) for event in told if event.name == "run_finished"] == [("failed", reason)]
    assert app.store.find_run("p", "k").status == "running"
    again = doubled(app).run(range(10), run_key="k")
    assert (again.status, again.counts.succeeded) == ("completed", 10)


def test_a_run_that_is_cancelled_while_its_lease_is_waited_for_does_not_begin(app):
    """D-21: what is cancelled stays so, in the store and in what the caller is told; the lease is given back."""
    record = app.store.open_run("p", "k", doubled(app)._plan(run_key="k").marks)
    app.store.take_run(record.number, 0, "gone.example/1:4711:1:1", 3.0)

    def cancel(line):
        if "waiting to see whether it lives" in line.getMessage():
            assert app.store.set_run(None, record.id, status="cancelled", why="by hand")
        return True

    logging.getLogger("outlast").addFilter(cancel)
    try:
        with virtual_time(), pytest.raises(outlast.ConfigurationError, match="was cancelled"):
            doubled(app).run(range(10), run_key="k")
    finally:
        logging.getLogger("outlast").removeFilter(cancel)
    assert (app.store.find_run("p", "k").status, app.store.run_lease(record.number, 0)) == ("cancelled", None)


@pytest.mark.parametrize(("asked", "kept"), [("cancel", "cancel"), ("pause", None)])
def test_a_request_to_cancel_outlives_the_process_that_should_have_heard_it(app, asked, kept):
    """D-21: who was told that the run is asked to cancel is right, whichever process goes on with it."""
    record = app.store.open_run("p", "k", doubled(app)._plan(run_key="k").marks)
    assert app.store.request_end(record.id, asked)
    lease = app.store.take_run(record.number, 0, "here", 20.0)
    assert app.store.set_run(lease, record.id, status="running")
    assert app.store.beat(lease)[1] == kept
    app.store.drop_lease(lease)
