"""Leases of any kind: taken, renewed, lost, fenced and given back, on both databases, and kept by a heartbeat that knows no runs."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from outlast.errors import LeaseLost
from outlast.store import StoreUnavailable, open_store
from outlast.store import leases as leases_of_store
from outlast.store.leases import fenced
from outlast.store.records import Lease
from outlast.testing import virtual_time
from outlast.work import leases
from stores import sql

DEAD = f"{leases._host()}:{2**22 + 1}:77:1"  # no process has this number


def write(store, lease, number):
    """What a worker may do under its lease: one row, and only with the newest token."""
    with store._database.writing() as tx:
        fenced(store._database, tx, store.app, lease)
        values = (store.app, f"by {lease.owner}", str(number))
        tx.execute(
            "insert into outlast_states (app, kind, name, version, data, changed) values (?, ?, ?, 1, '{}', 0)", *values
        )


def written(store):
    return sorted(sql(store, "select kind, name from outlast_states"))


def taken(lease):
    return LeaseLost(f"{lease.kind} {lease.key} is worked on by {lease.owner}")


def take(store, kind="worker", key="mail"):
    """A lease as a worker takes it."""
    return leases.take(
        partial(store.take_lease, kind, key),
        partial(store.lease_of, kind, key),
        store.drop_lease,
        what=f"{kind} {key}",
        taken=taken,
    )


def test_a_lease_of_any_kind_has_one_owner(store, address):
    """It is refused to others until it has run out or was given back; kinds, keys and apps do not meet."""
    lease = store.take_lease("worker", "mail", "first", 600)
    assert lease == Lease("worker", "mail", 1, "first", lease.until, 600, "")
    assert store.take_lease("worker", "mail", "second", 600) is None
    assert store.lease_of("worker", "mail") == lease
    others = (
        ("worker", "shop"),
        ("schedule", "mail"),
        ("schedule", "an 'odd' name\u2028 of any length " * 9),
        ("schedule", "zero \0, half \ud800"),
    )
    for kind, key in others:
        assert store.lease_of(kind, key) is None
        assert store.take_lease(kind, key, "second", 600).token == 1
    with open_store(address, app="other") as other:
        assert other.lease_of("worker", "mail") is None
        assert other.take_lease("worker", "mail", "third", 600).token == 1
    store.drop_lease(lease)
    assert store.lease_of("worker", "mail") is None
    again = store.take_lease("worker", "mail", "second", 600)
    assert (again.token > lease.token, again.before) == (True, "")


def test_a_lease_of_any_kind_is_renewed_until_another_owner_has_taken_it(store):
    """The renewed lease has the same token and a later end; one that has run out is renewed as long as it is not taken."""
    lease = store.take_lease("job", "4711", "first", 0.0)
    assert store.lease_of("job", "4711") is None
    renewed = store.renew_lease(lease)
    assert (renewed.token, renewed.until >= lease.until) == (lease.token, True)
    second = store.take_lease("job", "4711", "second", 600)
    assert (second.token, second.before) == (lease.token + 1, "first")
    with pytest.raises(LeaseLost, match="the lease of first on job 4711"):
        store.renew_lease(lease)
    store.drop_lease(lease)
    assert store.lease_of("job", "4711") == replace(second, before="")


def test_a_lease_is_dropped_only_if_it_was_not_renewed(store):
    """With `unless_renewed`, one that was renewed meanwhile stays with its owner."""
    lease = store.take_lease("job", "4711", "first", 600)
    sql(store, "update outlast_leases set until = until + 1")
    store.drop_lease(lease, unless_renewed=True)
    held = store.lease_of("job", "4711")
    assert held.owner == "first"
    store.drop_lease(held, unless_renewed=True)
    assert store.lease_of("job", "4711") is None


def test_what_is_written_under_a_lost_lease_does_not_land(store):
    """Every way to lose it: taken over when it has run out, or given back."""
    lost = store.take_lease("worker", "mail", "first", 0.0)
    write(store, lost, 1)
    newest = store.take_lease("worker", "mail", "second", 600)
    given_back = store.take_lease("worker", "shop", "third", 600)
    store.drop_lease(given_back)
    for lease in (lost, given_back):
        with pytest.raises(LeaseLost):
            write(store, lease, 2)
    write(store, newest, 3)
    assert written(store) == [("by first", "1"), ("by second", "3")]


def test_a_take_over_waits_for_what_is_being_written_or_ends_it(store):
    """However writes and a take-over fall together: what was accepted was accepted before it, and nothing after."""
    old = store.take_lease("worker", "mail", "first", 0.0)
    accepted, unclear, done = [], [], threading.Event()

    def work():
        for number in range(200):
            try:
                write(store, old, number)
                accepted.append(number)
            except LeaseLost:
                continue
            except StoreUnavailable:  # ended by the take-over: perhaps after its commit, before the answer
                unclear.append(number)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while len(accepted) < 20 and not done.is_set():
        done.wait(0.001)
    new = store.take_lease("worker", "mail", "second", 600)
    kept = written(store)
    thread.join()
    assert written(store) == kept
    numbers = {int(number) for _, number in kept}
    assert set(accepted) <= numbers <= {*accepted, *unclear}
    write(store, new, 500)


@pytest.mark.parametrize("address", ["postgres"], indirect=True)
def test_who_asks_in_the_middle_of_a_take_over_finds_it_lost(store, postgres):
    """PostgreSQL gives a row as it was to who locks it for its key only, if the change beside it leaves the key alone."""
    old = store.take_lease("worker", "mail", "first", 0.0)
    met = []

    def work():
        try:
            write(store, old, 1)
            met.append("accepted")
        except LeaseLost:
            met.append("lost")

    thread = threading.Thread(target=work)
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with store._database.writing() as tx:
        assert leases_of_store.take(store._database, tx, store.app, "worker", "mail", "second", 600) is not None
        thread.start()
        while postgres.execute(waiting) == "0":
            assert not met
    thread.join()
    assert (met, written(store)) == (["lost"], [])


def test_a_lease_is_renewed_while_something_is_written_under_it(store):
    """A heartbeat does not wait for a long transaction of its own owner. (With SQLite there is one writer at a time anyway.)"""
    lease = store.take_lease("worker", "mail", "first", 600)
    if store._database.name == "sqlite":
        assert store.renew_lease(lease).until >= lease.until
        return
    with store._database.writing() as tx:
        fenced(store._database, tx, store.app, lease)
        tx.execute("set local lock_timeout = '1s'")
        assert store.renew_lease(lease).until >= lease.until


def test_a_dead_owner_is_not_waited_for(store):
    """A process of this machine that is gone gives its lease up at once, whatever is leased."""
    assert store.take_lease("schedule", "nightly", DEAD, 600).owner == DEAD
    with virtual_time() as time:
        lease = take(store, "schedule", "nightly")
    assert (time.sleeps, leases.held(lease), lease.before) == ([], True, "")
    leases.ended(lease)
    assert leases.certainly_dead(lease.owner)


def test_an_owner_that_lives_keeps_it(store):
    """One that renews it is seen to live; what is raised is the caller's sentence."""
    other = store.take_lease("schedule", "nightly", "elsewhere/1:17:4711:1", 600)
    looks = iter([other, replace(other, until=other.until + timedelta(seconds=1))])
    with virtual_time(), pytest.raises(LeaseLost, match="schedule nightly is worked on by elsewhere"):
        leases.take(
            partial(store.take_lease, "schedule", "nightly"),
            lambda: next(looks),
            store.drop_lease,
            what="the schedule",
            taken=taken,
        )


def test_a_lease_that_should_have_ended_is_taken(store):
    """The clock by which it ends was set back: nobody has renewed it for longer than it lasts."""
    other = store.take_lease("schedule", "nightly", "elsewhere/1:17:4711:1", 5)
    sql(store, "update outlast_leases set until = until + 3600000000")
    with virtual_time() as time:
        lease = take(store, "schedule", "nightly")
    assert (lease.before, lease.token > other.token) == (other.owner, True)
    assert len(time.sleeps) == 7


def test_a_heartbeat_renews_any_lease_and_tells_that_it_was_lost(store, on_terms):
    """It takes a function: what is leased, and where, is not its business."""
    on_terms(ttl=0.2)
    first, second = take(store), take(store, "job", "4711")
    loop, renewed, lost = asyncio.new_event_loop(), threading.Semaphore(0), threading.Event()

    def beat(lease):
        found = store.renew_lease(lease)
        renewed.release()
        return found, None

    def tell(error):
        assert isinstance(error, LeaseLost)
        lost.set()

    heartbeat = leases.Heartbeat(beat, first, loop, drop=store.drop_lease, lost=tell, requested=pytest.fail)
    try:
        heartbeat.also(second)
        for _ in range(4):
            assert renewed.acquire(timeout=20)
        heartbeat.no_more(second)
        store.drop_lease(second)
        assert renewed.acquire(timeout=20)
        assert not lost.is_set()
        sql(store, "update outlast_leases set token = token + 1 where kind = 'worker'")
        assert lost.wait(20)
    finally:
        heartbeat.close()
        loop.close()
        for lease in (first, second):
            leases.ended(lease)


def test_a_heartbeat_whose_loop_was_closed_gives_back_what_is_left(store, on_terms):
    """Nothing is left that could do it: both leases are free for others at once."""
    on_terms(ttl=0.2)
    first, second = take(store), take(store, "job", "4711")
    loop = asyncio.new_event_loop()
    heartbeat = leases.Heartbeat(
        lambda lease: (store.renew_lease(lease), None),
        first,
        loop,
        drop=store.drop_lease,
        lost=pytest.fail,
        requested=pytest.fail,
    )
    heartbeat.also(second)
    loop.close()
    heartbeat._thread.join(20)
    assert (leases.held(first), leases.held(second)) == (False, False)
    assert (store.lease_of("worker", "mail"), store.lease_of("job", "4711")) == (None, None)


def test_the_lease_on_a_run_is_a_lease_like_any_other(store):
    """What is leased as a run's shard is seen, renewed and dropped by its kind and key, and stays where older programs look for it."""
    run = store.open_run("reviews", "today", ())
    lease = store.take_run(run.number, 0, "first", 600)
    key = f"{run.number}/0"
    assert (lease.kind, lease.key) == ("run", key)
    assert store.lease_of("run", key) == store.run_lease(run.number) == lease
    assert store.take_lease("run", key, "second", 600) is None
    assert store.renew_lease(lease).token == lease.token
    assert sql(store, "select run, shard, token, owner from outlast_shards") == [(run.number, 0, lease.token, "first")]
    # As a program of an older version takes it.
    sql(store, "update outlast_shards set token = token + 1, owner = 'older'")
    sql(store, "update outlast_progress set token = token + 1")
    assert store.run_lease(run.number).owner == "older"
    with pytest.raises(LeaseLost):
        store.set_run(lease, run.id, status="completed")
    assert store.take_run(run.number, 0, "second", 600) is None
