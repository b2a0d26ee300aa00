"""Runs, and who may write for them."""

from __future__ import annotations

import os
import sys
import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from typing import get_args

import pytest

import forked
from outlast.errors import LeaseLost
from outlast.kernel.clock import here
from outlast.store import StoreUnavailable, open_store
from outlast.store.leases import fenced
from outlast.store.records import (
    RUN_MOVES,
    Changes,
    Checkpoint,
    EventRow,
    RunCounts,
    RunStatus,
    ShardState,
    StageMark,
    to_us,
)
from outlast.testing import virtual_time
from stores import STAGES, START, Plan, changes, contents, item, letter, sql, started


def test_a_run_key_opens_one_run(store):
    """The same key finds the same run, as it was, whatever is said the second time."""
    first = store.open_run("reviews", "today", STAGES, sink="out.jsonl")
    again = store.open_run("reviews", "today", (StageMark("other"),), kind="replay")
    assert again == first
    assert (first.status, first.kind, first.sink, first.stages) == ("running", "run", "out.jsonl", STAGES)
    assert (first.counts, first.passes, first.spent, first.source_exhausted) == (RunCounts(), 0, {}, False)
    assert len(first.id) == 32
    assert store.run(first.id) == store.find_run("reviews", "today") == first
    assert store.run("0" * 32) is store.find_run("reviews", "tomorrow") is None


def test_a_run_is_found_by_the_little_a_person_types(store):
    """By its id before all else, by its key, or by the first four digits of its id, the newest first; a pipeline narrows down the last two."""
    with virtual_time():
        first, second = (store.open_run(name, "today", STAGES) for name in ("reviews", "orders"))
        odd = store.open_run("reviews", "zero \0", STAGES)
        named = store.open_run("reviews", first.id, STAGES)  # a key that looks like another run's id

    def found(*text):
        return [(run.pipeline, run.run_key) for run in store.find_runs(*text)]

    assert found("today") == [("orders", "today"), ("reviews", "today")]
    assert found("today", "reviews") == [("reviews", "today")]
    assert found(first.id) == found(first.id, "orders") == [("reviews", "today")]
    assert found(second.id[:31]) == [("orders", "today")]
    assert found(second.id[:31], "reviews") == []
    assert found("zero \0") == found(odd.run_key) == [("reviews", odd.run_key)]
    assert found(named.id) == [("reviews", first.id)]
    short = "%___", "____", "", first.id[:3], "tomorrow", "\ud800", "\0"
    assert [found(text) for text in short] == [[]] * len(short)


def test_instants_are_aware_and_in_utc(store):
    """What goes in as any aware instant comes out in UTC, to the microsecond (D-18)."""
    with virtual_time():
        now = here.get().clock.now()
        run = store.open_run("reviews", "today", STAGES)
    assert run.started_at == now
    assert run.started_at.tzinfo is UTC
    lease = store.take_run(run.number, 0, "me", 20)
    assert lease.until.tzinfo is UTC
    assert timedelta(seconds=15) < lease.until - datetime.now(UTC) < timedelta(seconds=25)


def test_runs_are_listed_newest_first_in_pages(store):
    """Pages meet without a gap or a repetition, also when runs are added meanwhile."""
    with virtual_time():
        clock = here.get().clock
        for number in range(7):
            store.open_run("reviews", f"key-{number // 2}-{number}", STAGES)
            if number % 2:
                clock.sleep(1)
        pages = [store.runs(limit=3)]
        store.open_run("reviews", "later", STAGES)
        while page := store.runs(limit=3, before=pages[-1][-1]):
            pages.append(page)
    keys = [run.run_key for page in pages for run in page]
    assert keys == [f"key-{number // 2}-{number}" for number in reversed(range(7))]
    assert [run.run_key for run in store.runs(status="completed")] == []
    assert store.runs("other") == []


def test_two_apps_in_one_database_see_nothing_of_each_other(address):
    """The same names mean different runs, letters, events and states."""
    with open_store(address, app="shop") as shop, open_store(address, app="mail") as mail:
        run, lease = started(shop)
        event = EventRow("e" * 32, "run_started", START)
        shop.write(lease, changes(0, dead_letters=[letter(1)]))
        shop.add_events([event], lease)
        shop.save_state("breaker", "openai", {"open": True}, expect=0)
        assert mail.run(run.id) is None
        assert (
            mail.runs()
            == mail.letters()
            == mail.groups()
            == mail.stats()
            == mail.events()
            == mail.states("breaker")
            == []
        )
        assert mail.letter(letter(1).id) is None
        assert mail.claim_letters() == []
        assert mail.edit_letter(letter(1).id, b"", "mine?") is None
        assert not mail.request_end(run.id, "pause")
        assert not mail.set_run(None, run.id, status="failed")
        assert mail.prune("events", datetime(2100, 1, 1, tzinfo=UTC)) == 0
        assert mail.open_run("reviews", "today", STAGES).id != run.id
        assert len(shop.events()) == len(shop.letters()) == len(shop.runs()) == 1


def test_a_run_moves_as_the_table_says_and_in_no_other_way(store):
    """Every pair of statuses that is not among the legal moves is refused, and the run stays as it was."""
    ways = {"running": (), **{status: (status,) for status in RUN_MOVES["running"]}}  # from its beginning
    assert set(RUN_MOVES) == set(get_args(RunStatus)) == set(ways)
    for before, after in product(RUN_MOVES, repeat=2):
        run = store.open_run("reviews", f"{before} to {after}", STAGES)
        assert all(store.set_run(None, run.id, status=status) for status in ways[before])
        stood = store.run(run.id)
        assert store.set_run(None, run.id, status=after, why="moved") is (after in RUN_MOVES[before])
        assert store.run(run.id).status == (after if after in RUN_MOVES[before] else before)
        assert after in RUN_MOVES[before] or store.run(run.id) == stood


def test_a_run_that_moves_is_told_anew(store):
    """Compare and set: of two that move it, one does. One that goes on again has no end and no reason."""
    run, lease = started(store)
    assert store.set_run(lease, run.id, status="failed", reason="budget", why="too many")
    assert not store.set_run(lease, run.id, status="paused")
    failed = store.run(run.id)
    assert (failed.status, failed.reason, failed.why) == ("failed", "budget", "too many")
    assert failed.finished_at is not None
    assert store.set_run(lease, run.id, status="running", stages=STAGES[:1])
    resumed = store.run(run.id)
    assert (resumed.status, resumed.reason, resumed.finished_at, resumed.stages) == ("running", None, None, STAGES[:1])


def test_a_wish_is_heard_with_the_next_beat(store):
    """Pause and cancel come with the beat; of a run that goes on only the request to cancel is left, and one that ended takes none."""
    run, lease = started(store)
    assert store.beat(lease)[1] is None
    assert store.request_end(run.id, "pause")
    assert store.beat(lease)[1] == "pause"
    assert store.run(run.id).wanted == "pause"
    assert store.request_end(run.id, None)
    assert store.beat(lease)[1] is None
    for request, left in (("pause", None), ("cancel", "cancel")):
        store.request_end(run.id, request)
        store.set_run(lease, run.id, status="running")
        assert store.run(run.id).wanted == left
    store.set_run(lease, run.id, status="cancelled")
    assert not store.request_end(run.id, "pause")


def test_a_living_lease_is_not_given_twice(store):
    """Whoever asks is told no, and can see who has it and until when (C-22)."""
    run, lease = started(store, owner="host-a:17")
    assert store.take_run(run.number, 0, "host-b:4", 20) is None
    assert store.run_lease(run.number, 0) == lease
    assert store.take_run(run.number, 1, "host-b:4", 20).token == 1
    assert store.run_lease(run.number, 7) is None


def test_a_lease_says_who_had_it_and_did_not_give_it_back(store):
    """Of one that has ended by itself nobody knows whether its owner lives; one that was given back leaves no doubt."""
    run, lease = started(store, owner="host-a:17")
    assert lease.before == ""
    store.drop_lease(lease)
    first = store.take_run(run.number, 0, "host-b:4", 0.0)
    second = store.take_run(run.number, 0, "host-c:5", 20)
    assert (first.before, second.before) == ("", "host-b:4")


def test_a_dropped_lease_can_be_taken_at_once_and_writes_no_more(store):
    """Giving back is final: the old token is worth nothing, and dropping it again takes nothing from the next owner."""
    run, lease = started(store)
    store.drop_lease(lease)
    assert store.run_lease(run.number, 0) is None
    second = store.take_run(run.number, 0, "second", 600)
    assert second.token > lease.token
    store.drop_lease(lease)
    assert store.run_lease(run.number, 0) == second
    with pytest.raises(LeaseLost):
        store.write(lease, changes(0))
    assert store.run(run.id).passes == 2


def test_a_beat_prolongs_the_lease(store):
    """The renewed lease has the same token and a later end, also after it had run out and nobody wanted it."""
    run, lease = started(store, ttl=0.0)
    assert store.run_lease(run.number, 0) is None
    sql(store, "update outlast_shards set ttl = 600")
    renewed, _ = store.beat(lease)
    assert renewed.token == lease.token
    assert renewed.until >= lease.until


def test_a_paused_owner_that_wakes_up_writes_nothing_on_any_path(store):
    """
    An owner stops, its lease runs out, another takes over, the first goes on: every write says LeaseLost, and nothing of it lands,
    neither items nor attempts, checkpoints, dead letters, resolved letters, events or counters (C-22).
    """
    run, old = started(store, ttl=0.0)
    store.write(old, changes(0, dead_letters=[letter(1, status="replaying")]))
    new = store.take_run(run.number, 0, "second", 600)
    assert new.token > old.token
    before = contents(store)
    late = changes(
        *(1, 2),
        checkpoints=[Checkpoint(3, "key-3", 1, "2", b"{}")],
        dead_letters=[letter(2)],
        resolved=[(letter(1).id, "resolved", None)],
        sink_offset=10,
        source_exhausted=True,
    )
    for write in (
        lambda: store.write(old, late),
        lambda: store.write(old, Changes()),
        lambda: store.write(old, changes(0)),
        lambda: store.beat(old),
        lambda: store.add_events([EventRow("e" * 32, "item_failed", START)], old),
        lambda: store.set_run(old, run.id, status="completed"),
    ):
        with pytest.raises(LeaseLost, match=r"nothing|Nothing"):
            write()
    store.drop_lease(old)
    assert contents(store) == before
    store.write(new, changes(1, 2, pass_=2))
    assert store.run(run.id).counts == RunCounts(total=3, succeeded=3)


def test_of_many_that_want_a_lease_one_gets_it(store):
    """Sixteen threads ask at once."""
    run = store.open_run("reviews", "today", STAGES)
    ready = threading.Barrier(16)
    leases = []

    def take(number):
        ready.wait()
        leases.append(store.take_run(run.number, 0, f"owner-{number}", 600))

    threads = [threading.Thread(target=take, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([lease for lease in leases if lease is not None]) == 1


def test_taking_over_and_writing_never_interleave(store):
    """However an old owner's batches and take-overs fall together, a batch that was accepted was accepted under the newest token."""
    run, lease = started(store, ttl=0.0)
    accepted, refused = [], []
    done = threading.Event()

    def write(old):
        left = list(range(200))
        while left:
            try:
                store.write(old, changes(left[0], pass_=old.token))
                accepted.append(left.pop(0))
            except LeaseLost:
                refused.append(left.pop(0))
            except StoreUnavailable:
                continue  # the new owner has ended its session
        done.set()

    thread = threading.Thread(target=write, args=(lease,))
    thread.start()
    while len(accepted) < 20 and not done.is_set():
        done.wait(0.001)
    new = store.take_run(run.number, 0, "second", 600)
    kept = {row.seq for row in store.items(run.number, limit=1000)}
    thread.join()
    assert {row.seq for row in store.items(run.number, limit=1000)} == kept == set(accepted)
    assert all(one < other for one, other in pairwise(accepted))
    assert set(refused) == set(range(200)) - kept
    store.write(new, changes(500, pass_=new.token))


def test_a_shard_knows_how_far_it_has_come(store):
    """Reading and writing only ever advance; a shard that never began has done nothing."""
    run, lease = started(store)
    assert store.shard_state(run.number, 0) == ShardState(0, None, False)
    assert store.shard_state(run.number, 3) == ShardState(0, None, False)
    store.write(lease, Changes(read=10, sink_offset=120))
    store.write(lease, Changes(read=7, source_exhausted=True))
    assert store.shard_state(run.number, 0) == ShardState(10, 120, True)
    store.write(lease, Changes(sink_offset=60))
    assert store.shard_state(run.number, 0) == ShardState(10, 120, True)


def test_the_counts_of_a_run_are_those_of_its_shards(store):
    """Two shards, two owners, one sum; the source is exhausted when all of them are."""
    run, first = started(store)
    store.write(first, changes(0, 1, source_exhausted=True))
    assert store.run(run.id).source_exhausted
    second = store.take_run(run.number, 1, "second", 600)
    store.write(second, Changes(items=[item(1_000_000, "skipped", spent={"usd": 0.5})], read=5))
    store.write(first, Changes(items=[item(5, "failed", spent={"usd": 0.25, "tokens": 3.0})]))
    found = store.run(run.id)
    assert found.counts == RunCounts(total=7, succeeded=2, skipped=1, failed=1)
    assert found.spent == {"usd": 0.75, "tokens": 3.0}
    assert not found.source_exhausted


def test_a_lease_survives_an_owner_that_was_killed_until_it_runs_out(store, address):
    """A killed process leaves its lease behind; nobody else writes before it has run out, and then somebody can (C-22)."""
    code = (
        "import os, signal, sys\n"
        "from outlast.store import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "run = store.open_run('reviews', 'today', ())\n"
        "store.take_run(run.number, 0, 'killed', 600)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = forked.run([sys.executable, "-c", code, address], env=os.environ | {"OUTLAST_STORE": ""})
    assert done.returncode < 0
    run = store.open_run("reviews", "today", ())
    assert store.take_run(run.number, 0, "second", 600) is None
    assert store.run_lease(run.number, 0).owner == "killed"
    sql(store, "update outlast_shards set until = ?", to_us(datetime.now(UTC)) - 1_000_000)
    assert store.take_run(run.number, 0, "second", 600).token == 2


def test_a_beat_does_not_wait_for_a_batch(postgres):
    """A batch may take longer than a lease lasts; the heartbeat keeps it meanwhile. (On SQLite all writers wait for each other.)"""
    with open_store(postgres.dsn, app="long") as store:
        run, lease = started(store)
        with store._database.writing(batches=True) as tx:
            fenced(store._database, tx, store.app, lease)
            assert store.beat(lease)[0].until >= lease.until
            assert store.take_run(run.number, 0, "second", 600) is None


def test_a_lease_whose_taking_was_lost_in_the_commit_is_not_held_twice(store, monkeypatch):
    """The answer to a commit got lost: asking again says that somebody has it, never two tokens that are both good."""
    run = store.open_run("reviews", "today", STAGES)
    plan = Plan(store, monkeypatch)
    # Begin, select, two inserts, select, update, evict, two updates, commit.
    plan.fail(9 + (store._database.name == "postgres"), after=True)
    with pytest.raises(Exception, match=r"planted"):
        store.take_run(run.number, 0, "me", 600)
    plan.fail(None)
    assert store.take_run(run.number, 0, "me", 600) is None
    assert store.run_lease(run.number, 0).token == 1
