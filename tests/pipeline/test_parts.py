"""The pure parts: books, keys, sinks, and typed payloads."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

import outlast
from outlast.components import open_sink
from outlast.components.lines import Lines
from outlast.pipeline.keys import Keys, Seen
from outlast.pipeline.record.books import SAME_FAILURES, Accounting, Bounds
from outlast.store.records import ItemRow
from outlast.work.leases import certainly_dead, myself

statuses = st.sampled_from(["succeeded", "skipped", "dlq", "failed"])


def row(status, *, degraded=False, spent=None):
    return ItemRow(0, "k", status, 0, 1, degraded, None, (), spent or {}, None, 0, 0)


@given(st.lists(st.tuples(statuses, st.booleans())), st.integers(0, 50))
def test_the_books_always_add_up(ends, pending):
    """D-13: total is succeeded, skipped, dlq, failed and pending together; degraded is part of succeeded; what is on record is what counts."""
    books = Accounting(Bounds())
    books.total = len(ends) + pending
    for status, degraded in ends:
        books.judge(status)
        books.record([row(status, degraded=degraded and status == "succeeded")])
        counts = books.counts()
        assert counts.total == counts.succeeded + counts.skipped + counts.dlq + counts.failed + counts.pending
        assert counts.degraded <= counts.succeeded
    assert books.counts().pending == pending


def test_counting_for_the_budget_begins_anew_and_skipped_ones_do_not_count():
    """D-14: what an earlier pass had does not count in this one."""
    before = outlast.Counts(total=2000, dlq=2000)
    books = Accounting(Bounds(failure_check_interval=10), before)
    stops = [books.judge("succeeded" if n % 10 else "dlq", fingerprint=str(n)) for n in range(30)]
    assert stops == [None] * 30
    books = Accounting(Bounds(failure_check_interval=10))
    for n in range(100):
        assert books.judge("skipped") is None
        if n < 9:
            assert books.judge("dlq", fingerprint=str(n)) is None
    assert books.judge("dlq", fingerprint="last") == "failure_budget_exceeded"


def test_same_failures_must_stand_in_a_row():
    """D-14: a success or another failure between them begins a new row."""
    books = Accounting(Bounds(failure_check_interval=10**6))
    for n in range(5 * SAME_FAILURES):
        assert books.judge("dlq" if n % SAME_FAILURES else "succeeded", fingerprint="a") is None
    books.judge("succeeded")
    stops = [books.judge("dlq", fingerprint="a") for _ in range(SAME_FAILURES)]
    assert stops == [None] * (SAME_FAILURES - 1) + ["same_failure"]


@given(st.lists(st.integers(-3, 3)))
def test_seen_counts_as_a_dictionary_would(marks):
    """Also 0 and negative marks."""
    seen, counts = Seen(), {}
    for mark in marks:
        expected = counts.get(mark or 1, 0)
        assert seen.count(mark) == expected
        counts[mark or 1] = expected + 1


def test_seen_grows():
    """A hundred thousand keys, each once."""
    seen = Seen()
    assert not any(seen.count(hash(str(number))) for number in range(100_000))
    assert all(seen.count(hash(str(number))) == 1 for number in range(0, 100_000, 1000))


@given(
    st.lists(
        st.recursive(
            st.none() | st.integers() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=8,
        ),
        max_size=20,
    )
)
def test_keys_are_unique_and_the_same_for_the_same_source(items):
    """D-15: a second reading gives the same keys; equal content differs by a number."""
    one, other = Keys(None), Keys(None)
    keys = [one.of(item, seq) for seq, item in enumerate(items)]
    assert keys == [other.of(item, seq) for seq, item in enumerate(items)]
    assert len(set(keys)) == len(items)


def test_an_item_without_content_is_known_by_its_place():
    """What JSON cannot hold has no hash."""
    assert Keys(None).of(object(), 7) == "@7"


def test_a_file_sink_writes_a_batch_again_without_doubling_it(tmp_path):
    """After a commit that failed the same batch comes again: the file is the same."""
    sink = Lines(tmp_path / "o.jsonl")
    sink.open(None, run="r", token=1)
    batch = [sink.encode({"n": 1}), sink.encode("ü")]
    assert sink.write(batch, []) == sink.write(batch, []) == 13
    sink.settle()
    assert sink.write([sink.encode(3)], []) == 15
    sink.close()
    assert (tmp_path / "o.jsonl").read_text() == '{"n":1}\n"ü"\n3\n'


def test_a_sink_file_has_one_writer(tmp_path):
    """Two runs into one file would destroy it; a name that says nothing is refused."""
    first, second = Lines(tmp_path / "o.jsonl"), Lines(tmp_path / "o.jsonl")
    first.open(None, run="r", token=1)
    with pytest.raises(outlast.ConfigurationError, match="another process"):
        second.open(None, run="r", token=1)
    first.close()
    second.open(None, run="r", token=1)
    second.close()
    for wrong in ("out.xlsx", 5):
        with pytest.raises(outlast.ConfigurationError):
            open_sink(wrong)


def test_a_process_knows_itself_alive_and_others_dead():
    """A number that was used again is another process; of another machine nothing is certain."""
    me = myself()
    host, pid, started = me.rsplit(":", 2)
    assert not certainly_dead(me)
    assert certainly_dead(f"{host}:{pid}:{int(started) + 1}")
    assert not certainly_dead(f"elsewhere/4026531836:{pid}:1")
    assert not certainly_dead("strange")
