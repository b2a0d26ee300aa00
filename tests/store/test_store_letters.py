"""Dead letters: found, grouped, edited and moved."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from outlast.errors import LeaseLost
from outlast.kernel.clock import here
from outlast.store.records import Changes, LetterGroup, LetterStat, Settled, from_us
from outlast.testing import virtual_time
from stores import START, letter


def ids(letters):
    return [int(found.id, 16) for found in letters]


def test_a_dead_letter_comes_back_as_it_was(store):
    """Every field, the payload to the byte (C-14)."""
    given = letter(
        1, kind="step", payload=b"\x00\xff", metadata={"repos": ["a"], "n": None}, run="r" * 32, replays=2, reason="x"
    )
    assert store.add_letters([given]) == 1
    assert store.letter(given.id) == given
    assert store.letter("0" * 32) is None
    assert "payload" not in repr(given)


def test_adding_a_letter_again_changes_nothing(store):
    """An import can be repeated."""
    store.add_letters([letter(1)])
    assert store.add_letters([letter(1, error="other"), letter(2), letter(2)]) == 1
    assert store.letter(letter(1).id) == letter(1)


def test_letters_are_found_by_any_of_their_marks(store):
    """Filters add up; what is not named is not asked about."""
    store.add_letters(
        [
            letter(1),
            letter(2, stage="parse", error="Disk FULL at 100%"),
            letter(3, pipeline="mails", run="a" * 32),
            letter(4, status="archived", fingerprint="0" * 16),
            letter(5, item_key="under_score"),
            letter(6, error="über back\\slash"),
        ]
    )
    assert ids(store.letters()) == [6, 5, 4, 3, 2, 1]
    assert ids(store.letters(status="open")) == [6, 5, 3, 2, 1]
    assert ids(store.letters(pipeline="mails")) == ids(store.letters(run="a" * 32)) == [3]
    assert ids(store.letters(stage="parse", status="open")) == [2]
    assert ids(store.letters(group="0" * 16)) == [4]
    assert ids(store.letters(group="0" * 16, status="open")) == []
    assert ids(store.letters(text="disk full AT 100%")) == [2]
    assert ids(store.letters(text="100_")) == []
    assert ids(store.letters(text="r_s")) == [5]
    assert ids(store.letters(text="back\\")) == [6]
    assert ids(store.letters(text="ÜBER")) == []  # only ASCII letters match in any case
    assert ids(store.letters(text="über BACK")) == [6]
    assert ids(store.letters(limit=2)) == [6, 5]


def test_the_newest_change_comes_first(store):
    """S3-26: made, moved or edited, whichever was last; pages follow that order, and so does the age of a letter."""
    day = 86_400.0
    with virtual_time() as time:
        store.add_letters([letter(number) for number in (1, 2, 3)])
        time.advance(day)
        store.add_letters([letter(4)])
        time.advance(day)
        store.edit_letter(letter(2).id, b"new", "typo")
        time.advance(day)
        store.move_letters([letter(1).id], to="replaying")
        store.move_letters([letter(1).id], from_="replaying", to="open")
        assert ids(store.letters()) == [1, 2, 4, 3]
        assert ids(store.letters(order="created")) == [4, 3, 2, 1]
        first = store.letters(limit=2)
        assert ids(store.letters(limit=5, after=first[-1])) == [4, 3]
        assert ids(store.letters(older_than_days=1.5)) == [4, 3]
        assert ids(store.letters(older_than_days=0)) == [2, 4, 3]
        assert [id_ for id_, _, _ in store.letter_owners(older_than_days=2.5)] == [letter(3).id]


def test_pages_are_complete_and_stable_while_letters_are_added(store):
    """Every letter that was there at the start comes once; letters of the same instant are no exception."""
    store.add_letters([letter(number, created_us=START + number // 10) for number in range(100)])
    seen, after = [], None
    while page := store.letters(status="open", limit=7, after=after, order="created"):
        seen += ids(page)
        after = page[-1]
        store.add_letters([letter(1000 + len(seen), created_us=START + 1000)])
    assert seen == [number for tens in reversed(range(10)) for number in reversed(range(tens * 10, tens * 10 + 10))]


def test_groups_tell_the_largest_problem_first(store):
    """Same fingerprint and stage are one; message and samples are the newest letters'."""
    store.add_letters(
        [letter(number, error=f"error {number}", run="a" * 32 if number < 3 else None) for number in range(1, 6)]
        + [letter(10, fingerprint="0" * 16, stage="parse", error_class="timeout")]
        + [letter(11, pipeline="mails"), letter(12, status="archived")]
    )
    groups = store.groups()
    assert groups[0] == LetterGroup(
        *("f" * 16, "reviews", "label", "server_error", "VendorError", "error 5", 5, ("key-5", "key-4", "key-3")),
        *(from_us(START + 1), from_us(START + 6)),
    )
    assert [(group.pipeline, group.stage, group.count) for group in groups] == [
        ("reviews", "label", 5),
        ("reviews", "parse", 1),
        ("mails", "label", 1),
    ]
    assert [group.count for group in store.groups(run="a" * 32)] == [2]
    assert [group.count for group in store.groups(pipeline="mails")] == [1]
    assert [group.count for group in store.groups(status="archived")] == [1]
    assert sum(group.count for group in store.groups(status=None)) == 8


def test_stats_count_by_place_and_status(store):
    """What a person asks first."""
    store.add_letters([letter(1), letter(2), letter(3, status="resolved"), letter(4, stage="parse")])
    assert store.stats() == [
        LetterStat("reviews", "label", "open", 2, from_us(START + 3), from_us(START + 4)),
        LetterStat("reviews", "label", "resolved", 1, from_us(START + 5), from_us(START + 5)),
        LetterStat("reviews", "parse", "open", 1, from_us(START + 6), from_us(START + 6)),
    ]


def test_an_edit_keeps_the_first_payload_and_who_when_and_why(store):
    """However often it is edited."""
    store.add_letters([letter(1, payload=b"first", metadata={"kept": True})])
    with virtual_time():
        now = here.get().clock.now().isoformat()
        edited = store.edit_letter(letter(1).id, b"second", "typo", by="ann")
        again = store.edit_letter(letter(1).id, b"third", "another", by="bob")
    assert (edited.payload, edited.original) == (b"second", b"first")
    assert (again.payload, again.original) == (b"third", b"first")
    assert again.metadata == {
        "kept": True,
        "edits": [{"at": now, "by": "ann", "reason": "typo"}, {"at": now, "by": "bob", "reason": "another"}],
    }
    assert store.letter(letter(1).id) == again


def test_an_edit_makes_a_letter_young_again(store):
    """C-14: who asks for letters to which nothing has happened for days, or puts those away, does not mean one that was edited since."""
    with virtual_time() as clock:
        now = int(here.get().clock.now().timestamp() * 1e6)
        store.add_letters([letter(number, created_us=now + number) for number in (1, 2)])
        clock.advance(3 * 86_400)
        store.edit_letter(letter(1).id, b"{}", "typo")
        assert ids(store.letters(older_than_days=2)) == [2]
        assert store.put_away(here.get().clock.now() - timedelta(days=2), "old", limit=9) == [letter(2).id]


def test_only_a_letter_in_the_expected_status_is_edited(store):
    """One that is being replayed must not change under the replay."""
    store.add_letters([letter(1, status="replaying")])
    assert store.edit_letter(letter(1).id, b"late", "typo") is None
    assert store.edit_letter("0" * 32, b"late", "typo") is None
    assert store.letter(letter(1).id) == letter(1, status="replaying")


def test_moving_says_how_many_and_which(store):
    """By ids, by filter, by both; at most so many; with the reason kept."""
    store.add_letters([letter(number, stage="parse" if number % 2 else "label") for number in range(1, 11)])
    assert store.move_letters(stage="parse", to="archived", reason="known") == 5
    assert store.letter(letter(1).id).reason == "known"
    assert store.move_letters([letter(2).id, letter(1).id, "0" * 32], to="resolved") == 1
    assert [int(claimed, 16) for claimed in store.claim_letters(limit=2)] == [4, 6]
    assert store.claim_letters([letter(8).id], stage="parse") == []
    assert store.claim_letters([]) == []
    assert store.move_letters(from_="archived", to="open", reason="again") == 5
    assert {(stat.stage, stat.status): stat.count for stat in store.stats()} == {
        ("label", "open"): 2,
        ("label", "replaying"): 2,
        ("label", "resolved"): 1,
        ("parse", "open"): 5,
    }


@pytest.mark.parametrize(
    ("from_", "to"), [("resolved", "open"), ("archived", "replaying"), ("replaying", "archived"), ("open", "open")]
)
def test_a_move_that_makes_no_sense_is_refused(store, from_, to):
    """The table of moves: open to anything, a replay ends, an archived one comes back, a resolved one stays (C-14)."""
    with pytest.raises(ValueError, match=f"a dead letter that is {from_} to become"):
        store.move_letters(from_=from_, to=to)


def test_more_letters_than_one_transaction_moves(store, monkeypatch):
    """They are moved in chunks, all of them."""
    monkeypatch.setattr("outlast.store.letters._CHUNK", 10)
    store.add_letters([letter(number) for number in range(35)])
    assert store.move_letters(to="archived") == 35
    assert ids(store.letters(status="open")) == []


def race(*calls):
    """Run calls at the same moment; what they returned, in their order."""
    ready = threading.Barrier(len(calls))
    answers = [None] * len(calls)

    def run(number):
        ready.wait()
        answers[number] = calls[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_two_that_claim_the_same_letters_get_different_ones(store):
    """No letter is replayed twice, whoever asks at the same time and in whatever order; and nobody waits for ever."""
    store.add_letters([letter(number) for number in range(200)])
    wanted = [letter(number).id for number in range(200)]
    for _ in range(5):
        first, second = race(
            lambda: store.claim_letters(wanted),
            lambda: store.claim_letters(list(reversed(wanted))),
        )
        assert sorted(first + second) == sorted(wanted)
        store.move_letters(from_="replaying", to="open")


def test_two_imports_at_once_add_every_letter_once(store):
    """Whichever comes first; together they added all of them."""
    for first in range(0, 100, 20):
        letters = [letter(number) for number in range(first, first + 20)]
        added = race(partial(store.add_letters, letters), partial(store.add_letters, list(reversed(letters))))
        assert sum(added) == 20
    assert len(store.letters()) == 100


def test_an_edit_and_a_claim_at_once_leave_one_story(store):
    """Either the edit came first and is replayed, or the claim did and the edit was refused; never an edit under a replay."""
    for number in range(1, 21):
        store.add_letters([letter(number)])
        id_ = letter(number).id
        edited, claimed = race(partial(store.edit_letter, id_, b"new", "typo"), partial(store.claim_letters, [id_]))
        found = store.letter(id_)
        assert claimed == [id_]
        assert found.status == "replaying"
        assert found.payload == (b"new" if edited else letter(number).payload)


def test_two_edits_at_once_are_both_on_record(store):
    """The later one is what is stored; neither is lost from the record."""
    for number in range(1, 11):
        store.add_letters([letter(number)])
        id_ = letter(number).id
        race(partial(store.edit_letter, id_, b"a", "a"), partial(store.edit_letter, id_, b"b", "b"))
        found = store.letter(id_)
        assert sorted(edit["reason"] for edit in found.metadata["edits"]) == ["a", "b"]
        assert found.payload.decode() == found.metadata["edits"][-1]["reason"]
        assert found.original == letter(number).payload


def test_only_what_is_over_is_pruned(store):
    """Open letters and those under replay stay for ever; the others go by when they were moved (C-14)."""
    later = datetime.now(UTC) + timedelta(days=1)
    statuses = ("open", "replaying", "resolved", "archived")
    store.add_letters([letter(number, status=status) for number, status in enumerate(statuses)])
    assert store.prune("dead_letters", datetime.now(UTC) - timedelta(days=1)) == 0
    assert store.prune("dead_letters", later) == 2
    assert [found.status for found in store.letters()] == ["replaying", "open"]


def test_a_letter_outlives_its_run_and_an_open_one_keeps_it(store):
    """D-25: a replay comes home, so that its run must be there; what is settled needs none."""
    run = store.open_run("reviews", "today", ())
    store.add_letters([replace(letter(1), run=run.id)])
    store.set_run(None, run.id, status="completed")
    later = datetime.now(UTC) + timedelta(days=1)
    assert store.prune("runs", later) == 0
    store.claim_letters([letter(1).id])
    assert store.prune("runs", later) == 0
    store.move_letters([letter(1).id], from_="replaying", to="resolved")
    assert store.prune("runs", later) == 1
    assert ids(store.letters(run=run.id)) == [1]


def test_a_replay_frees_and_settles_what_it_has_claimed_itself(store):
    """C-14: of two replays neither touches the letters of the other, although both are in the same status."""
    store.add_letters([letter(number) for number in (1, 2, 3)])
    first, second = (store.open_run("reviews", key, (), kind="replay") for key in ("first", "second"))
    leases = [store.take_run(run.number, 0, run.run_key, 600) for run in (first, second)]
    store.claim_for_replay(leases[0], first.id, [letter(1).id, letter(2).id], reason="first")
    store.claim_for_replay(leases[1], second.id, [letter(3).id], reason="second")
    done = Settled(letter(3).id, "resolved", None, None, 0)
    with pytest.raises(LeaseLost):
        store.write(leases[0], Changes(resolved=[done]))
    assert store.free_letters(leases[1], second.id, "over") == 1
    found = {int(one.id, 16): (one.status, one.claimed_by) for one in store.letters(status=None)}
    assert {number: status for number, (status, _) in found.items()} == {1: "replaying", 2: "replaying", 3: "open"}
    assert (found[1][1], found[2][1]) == (first.id, first.id)
