"""Batches: all or nothing, twice is once, finished stays finished; and how what they wrote is read."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from outlast import classify
from outlast.errors import LeaseLost
from outlast.store import StoreRefused, StoreUnavailable
from outlast.store.records import Changes, Checkpoint, EventRow, Homecoming, LetterFailure, Mended, RunCounts, Settled
from stores import START, Plan, attempt, changes, contents, counts, item, letter, sql, started

AGAIN = LetterFailure("label", "again", "E", "timeout", "network", "f" * 16, attempts=2, first_us=START)
EVERYTHING = {
    "items": [
        item(0, output=b"\x00\xff"),
        item(1, "skipped", reason=""),
        item(2, "dlq", reason="boom", warnings=("odd", "odder"), spent={"usd": 0.5}),
        item(3, "failed", degraded=False),
        item(4, degraded=True, warnings=("small model",)),
    ],
    "attempts": [
        attempt(0),
        attempt(1, error_class="skipped"),
        attempt(1, 1, delay_us=7),
        attempt(2, 1, 1, outcome="retrying", error_class="timeout", error_type="E", error="slow", delay_us=500),
        attempt(2, 1, 2, outcome="failed", error_class="timeout", error_type="E", error="slow", spent={"usd": 0.5}),
    ],
    "checkpoints": [Checkpoint(9, "key-9", 1, "2", b"\x00made")],
    "dead_letters": [letter(2)],
    "resolved": [
        Settled(letter(77).id, "resolved", seq=0),
        Settled(letter(78).id, "open", AGAIN, seq=2),
        Settled(letter(79).id, "open", None, "its sink is gone", seq=3),
    ],
    "read": 10,
    "sink_offset": 1234,
    "source_exhausted": True,
}


def said(standing, before, after, exhausted):
    return standing._replace(why=f"{before.succeeded} and now {after.succeeded} of {after.total}, {exhausted}")


def prepared(store):
    """A replay, its lease, and a batch of it that brings an item home to another run."""
    run, lease = started(store)
    _, held = started(store, "yesterday", owner="second")
    store.write(held, Changes(items=[item(0), item(5, "dlq", reason="boom")], read=6, sink_offset=10))
    store.add_letters([letter(number, status="replaying", claimed_by=run.id) for number in (77, 78, 79)])
    mended = [Mended(5, 0, "succeeded", degraded=True, reason=None, warnings=("late",), output=b"home")]
    coming = Homecoming(lease=held, items=mended, sink_offset=30, judge=said)
    return run, lease, Changes(**EVERYTHING, homes=[coming])


def test_a_batch_comes_back_as_it_was(store):
    """Every field of every row, in order (C-27)."""
    run, lease, full = prepared(store)
    store.write(lease, full)
    assert store.items(run.number) == full.items
    assert store.attempts(run.number) == full.attempts
    assert store.checkpoints_of(run.number, [8, 9]) == {9: full.checkpoints[0]}
    assert store.letter(letter(2).id) == full.dead_letters[0]
    resolved, reopened = store.letter(letter(77).id), store.letter(letter(78).id)
    assert (resolved.status, resolved.replays, resolved.error) == ("resolved", 1, letter(77).error)
    assert (reopened.status, reopened.replays, reopened.error) == ("open", 1, "again")
    untried = store.letter(letter(79).id)
    assert (untried.status, untried.replays, untried.error, untried.reason) == (
        *("open", 0, letter(79).error),
        "its sink is gone",
    )
    home = store.find_run("reviews", "yesterday")
    assert (home.counts, home.why) == (
        RunCounts(total=6, succeeded=2, degraded=1),
        "1 and now 2 of 6, False",
    )
    assert store.shard_state(home.number, 0).sink_offset == 30
    assert [(row.seq, row.status, row.output) for row in store.items(home.number)] == [
        (0, "succeeded", None),
        (5, "succeeded", b"home"),
    ]
    assert list(store.outputs(run.number)) == [b"\x00\xff"]
    found = store.run(run.id)
    assert found.counts == RunCounts(total=10, succeeded=2, skipped=1, dlq=1, failed=1, degraded=1)
    assert found.spent == {"usd": 0.5}
    assert found.source_exhausted


@pytest.mark.parametrize("loss", ["released", "claimed by another", "home", "own"])
def test_a_replay_that_has_lost_a_letter_or_a_lease_writes_nothing(store, loss):
    """C-14, C-22: neither its item nor what comes home, nor a letter, if somebody else may have done one of them."""
    run, lease, full = prepared(store)
    if loss == "released":
        store.move_letters([letter(77).id], from_="replaying", to="open")
    elif loss == "claimed by another":
        sql(store, "update outlast_dead_letters set claimed_by = 'another' where id = ?", letter(78).id)
    else:
        store.drop_lease(full.homes[0].lease if loss == "home" else lease)
    before = contents(store)
    with pytest.raises(LeaseLost):
        store.write(lease, full)
    assert contents(store) == before
    assert run.counts.total == 0


def test_a_success_can_be_taken_back(store):
    """Its row goes, with what it counted and spent; it may end in another way. Twice is once, and nothing but successes is touched."""
    run, lease = started(store)
    rows = [item(0, degraded=True, spent={"usd": 0.25}), item(1, spent={"usd": 0.5}), item(2, "dlq")]
    store.write(lease, Changes(items=rows, read=3))
    assert store.find_keys(run.number, [rows[0].key]) == {rows[0].key: (0, "succeeded")}
    undone = Changes(undone=[0, 2, 99], items=[item(0, "dlq", spent={"usd": 0.25})], read=3)
    for _ in range(2):
        store.write(lease, undone)
        found = store.run(run.id)
        assert found.counts == RunCounts(total=3, succeeded=1, skipped=0, dlq=2, failed=0, degraded=0)
        assert found.spent == {"usd": 0.75}
    assert store.find_keys(run.number, [rows[0].key]) == {rows[0].key: (0, "dlq")}
    store.write(lease, Changes(undone=[1], read=3))
    assert store.run(run.id).counts == RunCounts(total=3, succeeded=0, skipped=0, dlq=2, failed=0, degraded=0)
    assert store.run(run.id).spent == {"usd": 0.25}
    assert [row.seq for row in store.items(run.number)] == [0, 2]


def test_a_fault_at_any_statement_leaves_nothing_behind(store, monkeypatch):
    """Wherever a batch breaks, before a statement or after it, nothing of it is there; and then it can be written (C-14)."""
    run, lease, full = prepared(store)
    before = contents(store)
    plan = Plan(store, monkeypatch)
    plan.fail(None)
    broken = []
    for at in range(1, 100):
        plan.fail(at)
        try:
            store.write(lease, full)
            break
        except StoreUnavailable as error:
            broken.append(classify(error).error_class)
        finally:
            plan.fail(None)
        assert contents(store) == before
    assert len(broken) >= 10
    assert set(broken) <= {"database_error", "database_connection"}
    assert counts(store, run)[0] == counts(store, run)[1] == (2, 1, 1, 1, 1)


def test_a_commit_whose_answer_is_lost_can_be_written_again(store, monkeypatch):
    """Nobody knows whether it was committed; the same batch again gives the state of having written it once."""
    _, lease, full = prepared(store)
    plan = Plan(store, monkeypatch)
    plan.fail(1000)
    store.write(lease, Changes())
    beside = plan.seen  # what an empty batch takes, its commit last
    plan.fail(None)
    before = contents(store)
    statements = 0
    for at in range(beside, 100):
        plan.fail(at, after=True)
        with pytest.raises(StoreUnavailable):
            store.write(lease, full)
        plan.fail(None)
        statements = at
        if contents(store) != before:  # this time it was the commit
            break
    committed = contents(store)
    assert statements < 99
    store.write(lease, full)
    store.write(lease, full)
    assert contents(store) == committed


@pytest.mark.parametrize("part", ["items", "attempts", "checkpoints", "dead_letters"])
def test_one_bad_row_takes_the_whole_batch_with_it(store, part):
    """A row that no database takes: the error is clear, permanent, and quotes nothing of the row (C-14)."""
    _, lease, full = prepared(store)
    before = contents(store)
    rows = list(getattr(full, part))
    bad = {
        "items": lambda row: row._replace(status=None, started_us=None),
        "attempts": lambda row: row._replace(outcome=None),
        "checkpoints": lambda row: row._replace(output=None),
        "dead_letters": lambda row: replace(row, error=None, payload=b"private"),
    }[part](rows[-1])
    with pytest.raises(StoreRefused) as caught:
        store.write(lease, replace(full, **{part: [*rows[:-1], bad]}))
    assert "private" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert contents(store) == before
    store.write(lease, full)


def test_what_is_written_twice_is_there_once(store):
    """A batch again, as a whole or mixed with new rows, changes nothing and counts nothing twice."""
    run, lease, full = prepared(store)
    store.write(lease, full)
    once = contents(store)
    store.write(lease, full)
    assert contents(store) == once
    mixed = replace(
        full,
        items=[*full.items, item(20, spent={"usd": 0.25})],
        attempts=[attempt(20), *full.attempts],
        dead_letters=[letter(3), *full.dead_letters],
    )
    store.write(lease, mixed)
    store.write(lease, mixed)
    assert counts(store, run) == ((3, 1, 1, 1, 1),) * 2
    assert store.run(run.id).spent == {"usd": 0.75}
    assert len(store.attempts(run.number)) == 6
    assert store.letter(letter(78).id).replays == 1


@pytest.mark.parametrize("status", ["skipped", "dlq", "failed"])
def test_a_finished_item_never_changes(store, status):
    """Another status for it is a defect of whoever writes: refused, with everything that came along."""
    run, lease = started(store)
    store.write(lease, changes(0, 1))
    before = contents(store)
    with pytest.raises(StoreRefused, match=f"item 1 is finished as 'succeeded' and cannot become '{status}'"):
        store.write(lease, Changes(items=[item(7), item(1, status)], dead_letters=[letter(9)]))
    assert contents(store) == before
    store.write(lease, Changes(items=[item(1, reason="told otherwise", attempts=9)]))
    assert store.items(run.number)[1] == item(1)


def test_a_batch_that_contradicts_itself_is_refused(store):
    """The same item twice in one batch."""
    run, lease = started(store)
    with pytest.raises(StoreRefused, match="there already"):
        store.write(lease, Changes(items=[item(0), item(0, "failed")]))
    assert store.items(run.number) == []


def test_a_checkpoint_may_be_made_again(store):
    """Changed code makes another; the one of the furthest stage is found."""
    run, lease = started(store)
    store.write(lease, Changes(checkpoints=[Checkpoint(1, "a", 0, "1", b"old"), Checkpoint(1, "a", 2, "1", b"far")]))
    store.write(lease, Changes(checkpoints=[Checkpoint(1, "a", 2, "2", b"new"), Checkpoint(2, "b", 0, "1", b"b")]))
    assert store.checkpoints_of(run.number, [1, 2, 3]) == {
        1: Checkpoint(1, "a", 2, "2", b"new"),
        2: Checkpoint(2, "b", 0, "1", b"b"),
    }
    assert store.checkpoints_of(run.number, []) == {}


def test_texts_that_no_database_takes_are_written_as_near_as_they_can_be(store):
    """NUL and half surrogates in keys, reasons and errors; an item with such a key is found by it."""
    run, lease = started(store)
    odd = "nul \0 half \ud800 tab \t back \\ quote ' ü 🎈"
    store.write(
        lease,
        Changes(
            items=[item(0, "failed", key=odd, reason=odd, warnings=(odd,)), item(1, key="")],
            attempts=[attempt(0, outcome="failed", error_class="x", error_type="y", error=odd)],
            dead_letters=[letter(1, item_key=odd, error=odd, metadata={odd: odd})],
        ),
    )
    store.add_events([EventRow("e" * 32, "x", START, None, {"text": odd})])
    safe = "nul \ufffd half ? tab \t back \\ quote ' ü 🎈"
    name = f"\ufffd{odd!a}"  # a key stays different from every other
    assert [row.key for row in store.items(run.number)] == [name, ""]
    assert store.attempts(run.number, odd)[0].error == safe
    assert store.find_keys(run.number, [odd, "", "no"]) == {odd: (0, "failed"), "": (1, "succeeded")}
    assert store.letter(letter(1).id).error == safe


def test_finished_items_come_by_position(store):
    """Those of a range, in order; items that are not finished leave gaps."""
    run, lease = started(store)
    store.write(lease, changes(5, 1, 9, 3))
    assert store.finished(run.number, 1, 5) == [
        (1, "key-1", "succeeded"),
        (3, "key-3", "succeeded"),
        (5, "key-5", "succeeded"),
    ]
    assert store.finished(run.number, 100, 5) == []
    assert store.finished(run.number + 1, 0, 100) == []


def test_keys_are_found_in_any_order_also_those_written_since(store):
    """The first call reads them all; later batches of this store are known too, and another run has its own."""
    run, lease = started(store)
    other, lease_of_other = started(store, "tomorrow")
    store.write(lease, changes(*range(50)))
    store.write(lease_of_other, changes(7))
    assert store.find_keys(run.number, ["key-49", "key-0", "no"]) == {
        "key-49": (49, "succeeded"),
        "key-0": (0, "succeeded"),
    }
    store.write(lease, Changes(items=[item(60, "failed")]))
    assert store.find_keys(run.number, ["key-60"]) == {"key-60": (60, "failed")}
    assert store.find_keys(other.number, ["key-7", "key-0"]) == {"key-7": (7, "succeeded")}
    assert store.find_keys(run.number, []) == {}


def test_items_and_attempts_are_read_in_pages(store):
    """Pages meet without a gap; one status, one item, or all."""
    run, lease = started(store)
    rows = [item(seq, "failed" if seq % 3 else "succeeded") for seq in range(10)]
    store.write(lease, Changes(items=rows, attempts=[attempt(seq, stage) for seq in range(10) for stage in (1, 0)]))
    first = store.items(run.number, limit=4)
    assert first + store.items(run.number, after=first[-1].seq) == rows
    assert [row.seq for row in store.items(run.number, "succeeded")] == [0, 3, 6, 9]
    page = store.attempts(run.number, limit=7)
    rest = store.attempts(run.number, after=page[-1])
    assert [(row.seq, row.stage) for row in page + rest] == [(seq, stage) for seq in range(10) for stage in (0, 1)]
    assert [row.stage for row in store.attempts(run.number, 4)] == [0, 1]
    assert store.attempts(run.number, "key-4") == store.attempts(run.number, 4)
    assert store.attempts(run.number, "no such key") == []


def test_outputs_stream_in_order_while_the_run_goes_on(store):
    """More than one page of them, and what is written while they are read comes too."""
    run, lease = started(store)
    store.write(lease, Changes(items=[item(seq, output=b"%d" % seq) for seq in range(1200)]))
    stream = store.outputs(run.number)
    head = [next(stream) for _ in range(600)]
    store.write(lease, Changes(items=[item(5000, output=b"last"), item(5001, "failed", output=b"no")]))
    assert [*head, *stream] == [*(b"%d" % seq for seq in range(1200)), b"last"]


def test_sizes_at_the_edge_of_a_statement(store):
    """Batches of 0, 1, 499, 500, 501 and 2000 items are written whole."""
    run, lease = started(store)
    first = 0
    for size in (0, 1, 499, 500, 501, 2000):
        store.write(lease, changes(*range(first, first + size)))
        first += size
    assert counts(store, run) == ((first, 0, 0, 0, 0),) * 2
    assert sql(store, "select count(*) from outlast_attempts") == [(2 * first,)]


def test_large_outputs_are_kept_whole(store):
    """Some megabytes in one row."""
    run, lease = started(store)
    large = bytes(range(256)) * 20_000
    store.write(lease, Changes(items=[item(0, output=large)]))
    assert next(store.outputs(run.number)) == large


def test_the_keys_read_for_resuming_are_gone_with_the_store(store):
    """They are in a file of nobody's, which closes with the store."""
    run, _ = started(store)
    store.find_keys(run.number, ["a"])
    keys = store._keys._found
    store.close()
    with pytest.raises(sqlite3.ProgrammingError):
        keys.execute("select 1")


def test_items_that_failed_without_a_dead_letter_are_open_again(store):
    """D-38: only these, with their cost, and only for the owner of the lease."""
    run, lease, full = prepared(store)
    failed = item(3, "failed", reason="boom", spent={"usd": 0.25})
    store.write(lease, replace(full, items=[*full.items[:3], failed, full.items[4]]))
    before = store.run(run.id)
    with pytest.raises(LeaseLost):
        store.reopen_failed(replace(lease, token=lease.token + 1))
    assert (store.reopen_failed(lease), store.reopen_failed(lease)) == (1, 0)
    after = store.run(run.id)
    assert (after.counts, after.spent) == (replace(before.counts, failed=0), {"usd": 0.5})
    assert [each.seq for each in store.items(run.number)] == [0, 1, 2, 4]
    assert store.find_keys(run.number, [failed.key]) == {}
