"""Events, shared states, and how long anything is kept."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outlast.errors import LeaseLost
from outlast.store import StoreRefused, StoreUnavailable, open_store
from outlast.store.database import Transaction
from outlast.store.records import EventRow, from_us
from stores import START, TABLES, Plan, changes, contents, sql, started

LATER = datetime(2100, 1, 1, tzinfo=UTC)


def event(number, name="item_failed", run=None, **data):
    return EventRow(f"{number:032x}", name, START + number, run, data)


def test_events_are_read_in_order_in_pages(store):
    """By run and by name; the number of the last one leads to the next page (D-18)."""
    store.add_events([event(number, run="a" * 32 if number % 2 else None, n=number) for number in range(10)])
    first = store.events(limit=4)
    rest = store.events(after=first[-1].number)
    assert [found.data["n"] for found in first + rest] == list(range(10))
    assert [found.at_us for found in first] == [START + number for number in range(4)]
    assert [found.data["n"] for found in store.events(run="a" * 32)] == [1, 3, 5, 7, 9]
    assert store.events(name="run_started") == []


def test_an_event_written_twice_is_there_once(store):
    """Also within one call."""
    store.add_events([event(1), event(1), event(2)])
    store.add_events([event(2), event(3)])
    assert [int(found.id, 16) for found in store.events()] == [1, 2, 3]
    store.add_events([])


def test_events_are_added_all_or_none_and_under_the_newest_lease(store, monkeypatch):
    """
    A row that no database takes, a fault at any statement, a lease that was lost: nothing of them is there. Once more they are
    there once, as they were (C-14, C-22).
    """
    run, lease = started(store)
    rows = [event(1, run=run.id, total=5), event(2)]
    before = contents(store)
    with pytest.raises(StoreRefused) as caught:
        store.add_events([*rows, replace(event(3, text="private"), name=None)], lease)
    assert ("private" in str(caught.value), caught.value.__cause__) == (False, None)
    plan, broken = Plan(store, monkeypatch), 0
    for at in range(1, 20):
        plan.fail(at)
        try:
            store.add_events(rows, lease)
            break
        except StoreUnavailable:
            broken += 1
        finally:
            plan.fail(None)
        assert contents(store) == before
    assert broken >= 4
    store.add_events(rows, lease)
    assert [replace(found, number=0) for found in store.events()] == rows
    store.drop_lease(lease)
    with pytest.raises(LeaseLost):
        store.add_events([event(4)], lease)
    assert len(store.events()) == 2


def test_who_follows_the_events_misses_none(store):
    """Eight threads add while one reads on from where it was: numbers become visible in order."""
    done = threading.Event()

    def add(writer):
        for number in range(20):
            store.add_events([event(writer * 1000 + number)])

    threads = [threading.Thread(target=add, args=(writer,)) for writer in range(8)]
    seen: list[EventRow] = []

    def follow():
        while True:
            finished = done.is_set()
            page = store.events(after=seen[-1].number if seen else None, limit=50)
            seen.extend(page)
            if finished and not page:
                return

    reader = threading.Thread(target=follow)
    for thread in (*threads, reader):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    reader.join()
    assert len({found.id for found in seen}) == len(seen) == 160


def test_an_event_never_becomes_visible_before_one_with_a_lower_number(postgres, monkeypatch):
    """
    One process has added an event, with its number, and stands still before its commit; another one adds events of its own. Who reads
    on meanwhile sees none of those, or it would never see the first one. Batches are written all the same: they wait for no events.
    """
    inside, go_on, insert = threading.Event(), threading.Event(), Transaction.insert
    seen, slow, ours = [], [], 10**9  # no other test has events of these ids

    def stopping(tx, table, columns, rows):
        insert(tx, table, columns, rows)
        if slow and threading.current_thread() is slow[0]:
            inside.set()
            assert go_on.wait(30)

    monkeypatch.setattr(Transaction, "insert", stopping)
    with open_store(postgres.dsn, app="follow") as first, open_store(postgres.dsn, app="follow") as second:

        def follow():
            page = second.events(after=seen[-1].number if seen else None)
            seen.extend(page)
            return len(page)

        second.add_events([event(ours + 1)])
        assert follow() == 1
        slow.append(threading.Thread(target=first.add_events, args=([event(ours + 2)],)))
        slow[0].start()
        assert inside.wait(30)
        others = [threading.Thread(target=second.add_events, args=([event(ours + number)],)) for number in range(3, 7)]
        for thread in others:
            thread.start()
        while _waiting(postgres) < len(others) and follow() == 0:
            pass  # they are on their way
        assert [int(found.id, 16) - ours for found in seen] == [1]
        run, lease = started(second)
        second.write(lease, changes(0, 1))
        assert second.run(run.id).counts.succeeded == 2
        go_on.set()
        for thread in (*slow, *others):
            thread.join()
        assert follow() == 5
        assert [found.number for found in seen] == sorted(found.number for found in second.events())
        assert sorted(int(found.id, 16) - ours for found in seen) == [1, 2, 3, 4, 5, 6]


def _waiting(postgres):
    """How many sessions wait for their turn to add events."""
    return int(postgres.execute("select count(*) from pg_locks where locktype = 'advisory' and not granted"))


def test_a_state_changes_only_from_the_version_that_was_seen(store):
    """Compare and set, for circuits and limits apart (D-10)."""
    assert store.state("breaker", "openai") is None
    assert store.save_state("breaker", "openai", {"state": "open"}, expect=0)
    assert not store.save_state("breaker", "openai", {"state": "closed"}, expect=0)
    found = store.state("breaker", "openai")
    assert (found.name, found.version, found.data) == ("openai", 1, {"state": "open"})
    assert found.changed_at.tzinfo is UTC
    assert store.save_state("breaker", "openai", {"state": "half_open"}, expect=1)
    assert not store.save_state("breaker", "openai", {"state": "closed"}, expect=1)
    assert not store.save_state("breaker", "other", {}, expect=3)
    store.save_state("breaker", "anthropic", {}, expect=0)
    assert [(state.name, state.version) for state in store.states("breaker")] == [("anthropic", 1), ("openai", 2)]
    assert store.states("limit") == []


def test_of_many_that_change_a_state_each_change_counts_once(store):
    """Eight threads count to ten each, by compare and set."""
    store.save_state("limit", "calls", {"n": 0}, expect=0)

    def count():
        done = 0
        while done < 10:
            seen = store.state("limit", "calls")
            done += store.save_state("limit", "calls", {"n": seen.data["n"] + 1}, expect=seen.version)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.state("limit", "calls").data == {"n": 80}


def test_a_run_that_ended_is_pruned_with_all_that_is_its_own(store, monkeypatch):
    """In chunks; runs that can still be resumed stay, whatever their age."""
    monkeypatch.setattr("outlast.store.upkeep._CHUNK", 7)
    over, lease = started(store, "over")
    kept, kept_lease = started(store, "kept")
    store.write(lease, changes(*range(30)))
    store.write(kept_lease, changes(*range(5)))
    store.set_run(lease, over.id, status="completed")
    store.set_run(kept_lease, kept.id, status="interrupted")
    assert store.prune("runs", datetime.now(UTC) - timedelta(hours=1)) == 0
    assert store.prune("runs", LATER) == 1
    assert store.run(over.id) is None
    assert store.run(kept.id).counts.succeeded == 5
    assert {table: len(sql(store, f"select * from {table}")) for table in TABLES[:5]} == {
        "outlast_runs": 1,
        "outlast_shards": 1,
        "outlast_progress": 1,
        "outlast_items": 5,
        "outlast_attempts": 10,
    }
    again = store.open_run("reviews", "over", ())
    assert again.number not in {over.number, kept.number}


def test_pruning_that_is_interrupted_anywhere_goes_on_the_next_time(store, monkeypatch):
    """A run that is going is seen by nobody and can be opened anew; at the end nothing of it is left."""
    monkeypatch.setattr("outlast.store.upkeep._CHUNK", 3)
    plan = Plan(store, monkeypatch)
    plan.fail(None)
    empty = contents(store)
    for at in range(1, 100):
        run, lease = started(store, "over")
        store.write(lease, changes(*range(5)))
        store.set_run(lease, run.id, status="failed")
        plan.fail(at)
        try:
            store.prune("runs", LATER)
        except StoreUnavailable:
            plan.fail(None)
            fresh = store.open_run("reviews", "over", ())
            assert fresh.id == run.id or store.run(run.id) is None
            store.set_run(None, fresh.id, status="failed")
            store.prune("runs", LATER)
        else:
            break
        finally:
            plan.fail(None)
        assert contents(store) == empty
    assert at > 10


def test_events_are_pruned_by_their_age(store, monkeypatch):
    """Whatever they tell."""
    monkeypatch.setattr("outlast.store.upkeep._CHUNK", 4)
    store.add_events([event(number) for number in range(20)])
    assert store.prune("events", from_us(START + 15)) == 15
    assert [int(found.id, 16) for found in store.events()] == [15, 16, 17, 18, 19]


def test_what_cannot_be_pruned_is_an_error(store):
    """A mistake in a name must not pass for "nothing to do"; nor may an instant without a zone."""
    with pytest.raises(ValueError, match="one of runs, dead_letters, events, jobs, failed_jobs, got: 'items'"):
        store.prune("items", LATER)
    with pytest.raises(ValueError, match="expected an aware instant"):
        store.prune("events", datetime(2100, 1, 1))  # noqa: DTZ001 - the mistake


# -- what processes share, changed in one transaction ---------------------------------------------------------------------


def test_a_change_sees_what_is_shared_and_the_time_of_the_database(store):
    """D-10, semantics 16: the document, the database's clock, and an answer for who asked; None leaves everything as it was."""
    seen = []

    def count(shared, now):
        seen.append((shared, now))
        return {"n": (shared or {"n": 0})["n"] + 1}, len(seen)

    assert store.change_state("breaker", "openai", lambda shared, now: (None, shared)) is None
    assert store.state("breaker", "openai") is None
    assert store.look("breaker", "openai")[0] is None
    assert [store.change_state("breaker", "openai", count) for _ in range(3)] == [1, 2, 3]
    assert [shared for shared, _ in seen] == [None, {"n": 1}, {"n": 2}]
    shared, now = store.look("breaker", "openai")
    assert shared == {"n": 3}
    assert [at for _, at in seen] == sorted(at for _, at in seen)
    assert seen[-1][1] - 0.1 <= now <= store.now() + 0.1
    assert abs(store.now() - datetime.now(UTC).timestamp()) < 60
    assert store.change_state("breaker", "openai", lambda shared, now: (None, "as it was")) == "as it was"
    assert store.state("breaker", "openai").version == 3


def test_what_a_failed_decision_would_have_changed_stays_as_it_was(store):
    """An exception rolls back, also the first time."""
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            store.change_state("limit", "calls", lambda shared, now: ({}, 1 / 0))
    assert store.states("limit") == []
    assert store.change_state("limit", "calls", lambda shared, now: ({"n": 1}, shared)) is None


def test_of_many_that_change_at_once_nobody_is_in_between(address, store):
    """D-10: eight threads, two stores, from nothing; every change counts once."""
    with open_store(address) as other:

        def count(which):
            for _ in range(10):
                which.change_state("budget", "calls", lambda shared, now: ({"n": (shared or {"n": 0})["n"] + 1}, None))

        threads = [threading.Thread(target=count, args=(which,)) for which in (store, other) * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.look("budget", "calls")[0] == {"n": 80}


NAMES = [
    "a",
    "A",
    "a ",
    " a",
    "ä",
    "a\u0308",
    "a\0",
    "a\ufffd",
    "a\0b",
    "\ufffd",
    "\ufffd61",
    "\ud800",
    "?",
    "%s",
    "'",
    "x" * 5000,
    "x" * 5001,
]


def test_two_names_never_share_a_state(store):
    """Semantics 55: whatever the names look like, and whatever the kind is."""
    for number, name in enumerate(NAMES):
        for kind in ("breaker", "limit", "budget"):
            assert (
                store.change_state(kind, name, lambda shared, now, n=number, k=kind: ({"n": n, "k": k}, shared)) is None
            )
    for number, name in enumerate(NAMES):
        for kind in ("breaker", "limit", "budget"):
            assert store.look(kind, name)[0] == store.state(kind, name).data == {"n": number, "k": kind}
    short = {name for name in NAMES if len(name) < 100}
    assert short < {state.name for state in store.states("breaker")}
    assert len(store.states("breaker")) == len(NAMES)
