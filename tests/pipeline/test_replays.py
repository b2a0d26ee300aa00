"""Replays of dead letters: fenced like runs, resumed under their key, and at home in the runs that the letters come from."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sqlite3
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import outlast
from captured import captured
from outlast import report
from outlast.components import open_sink
from outlast.components.parquet import Parquet
from outlast.components.tables import TableSink
from outlast.deadletters import DeadLetterEntry, Directory
from outlast.deadletters.fingerprints import fingerprint
from outlast.kernel.clock import stopping
from outlast.pipeline import replays
from outlast.pipeline.plan import Tuning
from outlast.report.views import run_document
from outlast.store import Store, StoreUnavailable
from outlast.testing import virtual_time
from outlast.work import leases
from stores import contents

ONCE = outlast.RetryPolicy(max_attempts=1)


class Mill:
    """A pipeline that fails for the numbers in `bad`; what it made of the others is ``{"n": n}``."""

    def __init__(self, app, name="mill", **options):
        self.bad: set[int] = set()
        self.seen: list[int] = []
        self.before = lambda: None
        self.app = app

        @outlast.stage(retry=ONCE, concurrency=2)
        def clean(n):
            return n

        @outlast.stage(retry=ONCE, concurrency=2)
        def grind(n):
            self.seen.append(n)
            self.before()
            if n in self.bad:
                raise ValueError(f"cannot grind {n}")
            return {"n": n}

        self.pipeline = outlast.Pipeline(name, clean, grind, app=app, **{"failure_budget": 1.0} | options)

    def fail(self, numbers, *, bad, run_key="k", sink=None):
        """Run these, of which some fail; then the cause is gone."""
        self.bad = set(bad)
        result = self.pipeline.run(numbers, run_key=run_key, item_key=str, sink=sink, check=False)
        self.bad = set()
        self.seen.clear()
        return result

    def run(self, key="k"):
        return self.app.store.find_run(self.pipeline.name, key)

    def letters(self):
        found = self.app.dead_letters.find(pipeline=self.pipeline.name, status=None)
        return sorted((letter.item_key, letter.status) for letter in found)


def rows_of(sink):
    """What a sink holds."""
    if isinstance(sink, outlast.Table):
        with sqlite3.connect(sink.target.removeprefix("sqlite:///")) as connection:
            return sorted(row[0] for row in connection.execute(f"select n from {sink.name}"))
    path = Path(sink)
    if path.suffix == ".parquet":
        return sorted(row["n"] for row in pq.read_table(path).to_pylist())
    text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
    if ".csv" in path.name:
        return sorted(int(line) for line in text.splitlines()[1:])
    return sorted(json.loads(line)["n"] for line in text.splitlines())


@pytest.fixture(params=["jsonl", "csv.gz", "parquet", "table"])
def sink(request, tmp_path):
    """One of each kind."""
    if request.param == "table":
        with sqlite3.connect(tmp_path / "data.db") as connection:
            connection.execute("create table made (n integer)")
        return outlast.Table(f"sqlite:///{tmp_path}/data.db", "made")
    return str(tmp_path / f"out.{request.param}")


# --- a replay comes home ---


def test_outputs_go_to_the_sink_of_the_run_and_change_what_is_said_of_it(app, sink):
    """D-25: exactly once; counts, status and sentence of the run follow; the replay keeps outputs and counts of its own."""
    mill = Mill(app)
    before = mill.fail(range(10), bad=range(6), sink=sink)
    assert (before.status, mill.run().counts.dlq) == ("failed", 6)
    mill.bad = {0}
    result = mill.pipeline.reprocess(check=False)
    assert (result.status, result.counts.succeeded, result.counts.dlq) == ("partial_success", 5, 1)
    assert sorted(row["n"] for row in result.outputs()) == [1, 2, 3, 4, 5]
    run = mill.run()
    assert (run.status, run.reason, run.counts.succeeded, run.counts.dlq) == ("partial_success", None, 9, 1)
    assert run.why == "9 of 10 items succeeded, 1 became a dead letter: less than 95%"
    assert rows_of(sink) == list(range(1, 10))
    mill.bad = set()
    mill.pipeline.reprocess()
    run = mill.run()
    assert (run.status, run.why, run.passes, run.replayed_by) == ("completed", "10 of 10 items succeeded", 1, None)
    assert rows_of(sink) == list(range(10))
    assert app.store.run_lease(run.number, 0) is None
    again = mill.pipeline.run(range(10), run_key="k", item_key=str, sink=sink)
    assert (again.status, again.counts.succeeded, rows_of(sink)) == ("completed", 10, list(range(10)))


def test_a_run_without_a_sink_has_the_outputs_itself(app):
    """D-25: they are among its outputs and items, in the order of its source."""
    mill = Mill(app)
    run = mill.fail(range(4), bad=[1, 2])
    mill.pipeline.reprocess()
    assert [row["n"] for row in run.outputs()] == [0, 1, 2, 3]
    assert [(item.key, item.status) for item in run.items(status="dlq")] == []
    assert list(run.errors()) == []
    assert mill.pipeline.run(range(4), run_key="k", item_key=str).why == "4 of 4 items succeeded"


def test_what_is_replayed_into_another_sink_is_never_said_to_be_in_the_runs_own(app, tmp_path):
    """D-25: the run says how many of its items are where, after several replays, when it is run again, and beside what comes home."""
    mill, own, handed = Mill(app), tmp_path / "own.jsonl", []
    mill.fail(range(10), bad=range(8), sink=own)

    def again(bad, **options):
        mill.bad = set(bad)
        mill.pipeline.reprocess(check=False, **options)
        mill.bad = set()
        return mill.run().why

    dead = "7 became dead letters: less than 50%"
    mended = "3 of 10 items succeeded, 1 of them was replayed into"
    assert again(range(1, 8), sink=tmp_path / "a.jsonl") == f"{mended} {tmp_path}/a.jsonl, {dead}"
    told = f"1 of them was replayed into {tmp_path}/a.jsonl, 2 into {tmp_path}/b.jsonl"
    assert (
        again(range(3, 8), sink=tmp_path / "b.jsonl")
        == f"5 of 10 items succeeded, {told}, 5 became dead letters: less than 95%"
    )
    assert again([4, 5, 6, 7]) == f"6 of 10 items succeeded, {told}, 4 became dead letters: less than 95%"
    rest = f"{told}, 4 into the callable list.extend"
    assert again([], sink=handed.extend) == f"10 of 10 items succeeded, {rest}"
    assert (rows_of(own), sorted(row["n"] for row in handed)) == ([3, 8, 9], [4, 5, 6, 7])
    result = mill.pipeline.run(range(10), run_key="k", item_key=str, sink=own)
    assert (result.status, result.why) == ("completed", f"10 of 10 items succeeded, {rest}")
    assert mill.run().why == result.why
    assert mill.pipeline.run(range(12), run_key="k", item_key=str, sink=own).why == f"12 of 12 items succeeded, {rest}"


def test_the_file_of_the_run_itself_is_refused_with_the_way_out(app, tmp_path):
    """D-25: it comes home without being told; nothing has changed, and no run is left behind."""
    mill = Mill(app)
    mill.fail(range(3), bad=[1], sink=tmp_path / "own.jsonl")
    with pytest.raises(outlast.ConfigurationError, match=r"that of the run 'k'\. .* leave sink out\."):
        mill.pipeline.reprocess(sink=tmp_path / "own.jsonl")
    assert (mill.letters(), len(app.store.runs("mill"))) == ([("1", "open")], 1)
    mill.pipeline.reprocess()
    assert rows_of(tmp_path / "own.jsonl") == [0, 1, 2]
    (letter,) = app.dead_letters.find(status="resolved")
    assert letter.replays == 1


def test_nobody_says_that_rows_are_in_a_sink_which_a_dead_replay_has_left(app, sink, monkeypatch):
    """D-25: as long as nobody has made it good, record, command line and report say what may be missing in a table or a Parquet file."""
    mill = Mill(app)
    mill.fail(range(3), bad=[1], sink=sink)
    mill.bad = set()
    kind = type(open_sink(sink))
    with monkeypatch.context() as patched:  # as if it were killed behind the commit
        patched.setattr(kind, "finish", lambda _: 1 / 0)
        if isinstance(sink, outlast.Table):
            patched.setattr(kind, "settle", lambda _: 1 / 0)
        mill.pipeline.reprocess(check=False)
    late = isinstance(sink, outlast.Table) or sink.endswith("parquet")
    assert (mill.run().counts.succeeded, rows_of(sink)) == (3, [0, 2] if late else [0, 1, 2])
    warned = "A replay has its sink open: what that has brought may not be there"
    shown = [mill.run().told, report.read(app, mill.run().id).run.why, run_document(mill.run())["why"]]
    assert [warned in text for text in shown] == [late] * 3
    mill.pipeline.run(range(3), run_key="k", item_key=str, sink=sink)
    assert (mill.run().told, rows_of(sink)) == ("3 of 3 items succeeded", [0, 1, 2])


def test_a_run_that_gets_its_own_table_again_has_everything_at_home(app, tmp_path):
    """D-25: a table whose address is not on record is given again with `sink`; that is no other sink."""
    mill = Mill(app)
    with sqlite3.connect(tmp_path / "data.db") as connection:
        connection.execute("create table made (n integer)")
    table = outlast.Table(f"sqlite:///{tmp_path}/data.db", "made")
    mill.fail(range(3), bad=[1], sink=table)
    mill.pipeline.reprocess(sink=outlast.Table(f"sqlite:///{tmp_path}/data.db", "made"))
    assert (mill.run().why, rows_of(table)) == ("3 of 3 items succeeded", [0, 1, 2])


def test_each_run_gets_its_own_and_one_that_cannot_stops_no_other(app, tmp_path):
    """D-25: to each run's own sink; letters whose sink is gone, is a callable, or whose run is worked on now stay open with the reason."""
    mill, handed = Mill(app), []
    places = {key: tmp_path / f"{key}.jsonl" for key in ("a", "b", "gone", "busy")}
    for number, (key, place) in enumerate(places.items()):
        mill.fail(range(10 * number, 10 * number + 4), bad=[10 * number], run_key=key, sink=place)
    mill.fail([90, 91], bad=[90], run_key="callable", sink=handed.extend)
    places["gone"].unlink()
    busy = replays.take(app.store, mill.run("busy"))
    result = mill.pipeline.reprocess(check=False)
    assert (result.status, result.counts.succeeded, result.counts.dlq) == ("failed", 2, 3)
    assert "the sink of its run is gone" in result.why
    assert mill.seen == [0, 10]
    assert rows_of(places["a"]) == [0, 1, 2, 3]
    assert rows_of(places["b"]) == [10, 11, 12, 13]
    left = {letter.payload: letter for letter in app.dead_letters.find(pipeline="mill")}
    assert sorted(left) == [20, 30, 90]
    assert "gone.jsonl" in left[20].reason
    assert "is busy: process" in left[30].reason
    assert "give it again with sink=" in left[90].reason
    assert [(letter.error, letter.replays) for letter in left.values()] == [
        (f"cannot grind {n}", 0) for n in (letter.payload for letter in left.values())
    ]
    replays.let_go(app.store, busy)
    mill.pipeline.reprocess(sink=handed.extend)
    assert sorted(row["n"] for row in handed) == [20, 30, 90, 91]
    assert [mill.run(key).status for key in (*places, "callable")] == ["completed"] * 5


def test_a_sink_of_its_own_gets_all_of_it(app, tmp_path):
    """D-25: the runs get their counts, and say where the rest is; the file holds each output once."""
    mill = Mill(app)
    mill.fail([0, 1], bad=[0], run_key="a", sink=tmp_path / "a.jsonl")
    mill.fail([2, 3], bad=[2], run_key="b")
    result = mill.pipeline.reprocess(sink=tmp_path / "mended.jsonl")
    assert (result.counts.succeeded, list(result.outputs())) == (2, [])
    assert rows_of(tmp_path / "mended.jsonl") == [0, 2]
    assert rows_of(tmp_path / "a.jsonl") == [1]
    told = f"2 of 2 items succeeded, 1 of them was replayed into {tmp_path}/mended.jsonl"
    assert [mill.run(key).why for key in "ab"] == [told] * 2


def test_a_run_that_was_stopped_keeps_its_reason_and_gets_its_numbers(app):
    """D-25: what was not read is not called finished; going on with it completes it."""
    mill = Mill(app)
    mill.bad = {0}
    stopped = mill.pipeline.run(range(500), run_key="k", on_item_error="stop", check=False)
    mill.bad = set()
    assert stopped.reason == "item_error"
    mill.pipeline.reprocess()
    run = mill.run()
    assert (run.status, run.reason, run.counts.dlq) == ("failed", "item_error", 0)
    assert f"; {run.counts.succeeded} of {run.counts.total} items succeeded" in run.why
    assert "dead letter" not in run.why
    assert mill.pipeline.run(range(500), run_key="k").why == "500 of 500 items succeeded"


def test_a_row_that_the_table_refuses_is_open_again(app, tmp_path):
    """D-25, C-14: with what the table says; the others are in it, and no second letter is made."""
    with sqlite3.connect(tmp_path / "data.db") as connection:
        connection.execute("create table made (n integer check (n <> 2))")
    table = outlast.Table(f"sqlite:///{tmp_path}/data.db", "made")
    mill = Mill(app)
    mill.fail(range(4), bad=[1, 2], sink=table)
    for own in (None, table):
        result = mill.pipeline.reprocess(sink=own, check=False)
        assert (result.counts.succeeded, result.counts.dlq) == ((1, 1) if own is None else (0, 1))
        assert mill.letters() == [("1", "resolved"), ("2", "open")]
        assert "CHECK constraint failed" in next(app.dead_letters.find()).error
    assert rows_of(table) == [0, 1, 3]
    assert (mill.run().counts.succeeded, mill.run().counts.dlq) == (3, 1)


def test_more_runs_than_can_be_held_at_a_time(app, tmp_path):
    """D-25: those with nothing under way are given back before another one is opened."""
    mill, runs = Mill(app), range(replays.MOST_OPEN + 4)
    for number in runs:
        mill.fail([number, 100 + number], bad=[number], run_key=str(number), sink=tmp_path / f"{number}.jsonl")
    assert mill.pipeline.reprocess(canary=2).counts.succeeded == len(runs)
    assert [rows_of(tmp_path / f"{number}.jsonl") for number in runs] == [[n, 100 + n] for n in runs]


def test_what_a_replay_has_left_in_a_sink_is_made_good_also_when_no_letter_is_left(
    app, tmp_path, monkeypatch, on_terms
):
    """D-25: it died before its Parquet file was built; the next one has nothing to do but that."""
    mill, sink = Mill(app), tmp_path / "out.parquet"
    mill.fail(range(4), bad=[1, 2], sink=sink)

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Parquet, "finish", full)
        on_terms(patience=0.0)
        assert mill.pipeline.reprocess(check=False).reason == "store_error"
        mark = mill.run().replayed_by
        with pytest.raises(OSError, match="No space left"):  # nor can the next one
            mill.pipeline.reprocess()
        assert mark is not None
        assert mill.run().replayed_by == mark
    assert (mill.letters(), rows_of(sink)) == ([("1", "resolved"), ("2", "resolved")], [0, 3])
    assert mill.pipeline.reprocess().id == ""
    assert rows_of(sink) == [0, 1, 2, 3]
    assert not Path(f"{sink}.spool").exists()


def test_what_a_dead_replay_has_left_in_a_file_refuses_no_later_run(app, tmp_path):
    """D-25: its mark on the run tells of it; what was never committed is cut off."""
    mill, sink = Mill(app), tmp_path / "out.jsonl"
    mill.fail(range(3), bad=[], sink=sink)
    store = app.store
    replay = store.open_run("mill", "dead", (), kind="replay")
    lease = store.take_run(mill.run().number, 0, f"{leases._host()}:{2**22 + 1}:77:1", 600, counted=False)
    store.hold_sink(lease, replay.id)
    store.drop_lease(lease)
    with sink.open("a") as file:
        file.write('{"n": 100}\n{"n"')
    assert mill.pipeline.run(range(4), run_key="k", item_key=str, sink=sink).counts.succeeded == 4
    assert rows_of(sink) == [0, 1, 2, 3]


def test_what_a_living_replay_has_opened_is_left_to_it(app, tmp_path):
    """D-25: its mark stays as long as its lease says that somebody works on it; when that is over, the sink is made good."""
    mill, sink = Mill(app), tmp_path / "out.jsonl"
    mill.fail(range(4), bad=[1], sink=sink)
    store = app.store
    run = store.open_run("mill", "elsewhere", (), kind="replay")
    lease = store.take_run(run.number, 0, "another-host:1:1:1", 600)
    origin = store.take_run(mill.run().number, 0, "another-host:1:1:2", 600)
    store.hold_sink(origin, run.id)
    store.drop_lease(origin)
    replays.make_good(store)
    assert mill.run().replayed_by == run.id
    store.drop_lease(lease)
    replays.make_good(store)
    assert mill.run().replayed_by is None


# --- who has claimed a letter ---


def test_a_look_changes_nothing_and_sees_letters_of_the_dead_as_open(app):
    """C-14: find, groups, stats and show recognise at once that a claimant of this machine is dead, and write nothing."""
    mill = Mill(app)
    mill.fail(range(3), bad=range(3))
    store = app.store
    run = store.open_run("mill", "dead", (), kind="replay")
    lease = store.take_run(run.number, 0, f"{leases._host()}:{2**22 + 1}:77:1", 600)
    ids = [letter.id for letter in app.dead_letters.find()]
    store.claim_for_replay(lease, run.id, ids[:2], reason="replayed by dead")
    before = contents(store)
    letters = app.dead_letters
    assert sorted(letter.status for letter in letters.find(status=None)) == ["open"] * 3
    assert len(list(letters.find())) == 3
    assert list(letters.find(status="replaying")) == []
    assert [group.count for group in letters.groups()] == [3]
    assert [(stat.status, stat.count) for stat in letters.stats()] == [("open", 3)]
    assert letters.show(ids[0]).status == "open"
    assert contents(store) == before
    letters.edit(ids[0], 7, reason="typo")
    with pytest.raises(outlast.LeaseLost):
        store.beat(lease)
    assert store.run(run.id).status == "interrupted"
    assert mill.pipeline.reprocess().counts.succeeded == 3


def test_a_replay_that_was_given_up_writes_nothing_more(app, tmp_path):
    """C-14, C-22: its lease has ended, another one has replayed its letters; it comes back, and neither table nor store has anything twice."""
    with sqlite3.connect(tmp_path / "data.db") as connection:
        connection.execute("create table made (n integer)")
    sink = outlast.Table(f"sqlite:///{tmp_path}/data.db", "made")
    slow, quick = Mill(app), Mill(app)
    slow.fail(range(8), bad=range(4), sink=sink)
    there, go_on, ends = threading.Event(), threading.Event(), []

    def hold(n):
        there.set()
        go_on.wait(30)
        return {"n": n}

    slow.pipeline.stages[1].__dict__["fn"] = hold

    def replay():
        ends.append(slow.pipeline.reprocess(run_key="slow", check=False))

    thread = threading.Thread(target=replay)
    thread.start()
    assert there.wait(30)
    store = app.store
    with store._database.writing() as tx:  # as if the process had stood still for longer than a lease lasts
        tx.execute("update outlast_shards set until = 0, owner = ''")
    app.add_pipeline(quick.pipeline)
    assert quick.pipeline.reprocess().counts.succeeded == 4
    go_on.set()
    thread.join(30)
    (late,) = ends
    assert (late.status, late.reason) == ("failed", "lease_lost")
    assert rows_of(sink) == list(range(8))
    assert slow.letters() == [(str(n), "resolved") for n in range(4)]
    assert (slow.run().counts.succeeded, slow.run().counts.dlq) == (8, 0)


# --- under a key ---


def test_a_replay_goes_on_under_its_key(app, tmp_path):
    """D-25: what it has tried it does not try again, what it has not it does, and its list does not grow."""
    mill = Mill(app)
    mill.fail(range(6), bad=range(6))
    mill.bad = {0}
    seen = mill.seen

    @outlast.stage(retry=ONCE, concurrency=1)
    def grind(n):
        seen.append(n)
        if n == 3 and runners:
            runner = runners.pop()
            runner.loop.call_soon_threadsafe(runner.end, "interrupted")
            while runner.status is None:
                os.sched_yield()
        if n in mill.bad:
            raise ValueError("no")
        return {"n": n}

    stopped = outlast.Pipeline("mill", mill.pipeline.stages[0], grind, app=app, failure_budget=1.0)
    letters = app.dead_letters
    with captured() as runners:
        letters.replay(pipeline="mill", run_key="mend", check=False)
    first = app.store.find_run("mill", "mend")
    assert first.status == "interrupted"
    assert "replaying" not in [status for _, status in mill.letters()]
    mill.fail([50], bad=[50], run_key="later")
    mill.bad = {0}
    result = stopped.reprocess(run_key="mend", check=False)
    assert (result.counts.total, result.counts.succeeded, result.counts.dlq) == (6, 5, 1)
    assert mill.letters() == [("0", "open"), *((str(n), "resolved") for n in range(1, 6)), ("50", "open")]
    again = app.dead_letters.replay(run_key="mend", check=False)
    assert again.counts == result.counts
    with pytest.raises(outlast.ConfigurationError, match="which is a replay of dead letters"):
        stopped.run([1], run_key="mend")
    with pytest.raises(outlast.ConfigurationError, match="which is a run"):
        stopped.reprocess(run_key="k")


def test_a_replay_raises_as_a_run_does(app):
    """D-21: RunFailed with the result, unless check=False; and the result says which problems there were."""
    mill = Mill(app)
    mill.fail(range(3), bad=range(3))
    mill.bad = {0, 1, 2}
    with pytest.raises(outlast.RunFailed) as caught:
        mill.pipeline.reprocess()
    (group,) = caught.value.result.groups
    assert (group.count, group.stage, group.message[:-1]) == (3, "grind", "cannot grind ")  # whichever ended last
    assert mill.pipeline.reprocess(check=False).status == "failed"
    with pytest.raises(outlast.RunFailed):
        app.dead_letters.replay(pipeline="mill")
    assert {letter.replays for letter in app.dead_letters.find()} == {3}


def test_a_replay_that_never_began_leaves_nothing(app, tmp_path):
    """A sink that is refused, and letters that somebody else was faster with: no run is left behind, and a canary is one start."""
    mill = Mill(app)
    mill.fail(range(6), bad=range(6))
    (tmp_path / "mine.jsonl").write_text("mine\n")
    with pytest.raises(outlast.ConfigurationError, match="to be new or empty"):
        mill.pipeline.reprocess(sink=tmp_path / "mine.jsonl")
    with pytest.raises(outlast.ConfigurationError, match="none of the dead letters that are open fits"):
        mill.pipeline.replayed(["0" * 32], run_key="late")
    assert [run.run_key for run in app.store.runs()] == ["k"]
    result = mill.pipeline.reprocess(canary=2)
    assert (app.store.run(result.id).passes, result.counts.succeeded) == (1, 6)


@pytest.mark.parametrize("canary", [2, 4])
def test_letters_that_cannot_be_tried_say_nothing_about_the_canary(app, tmp_path, canary):
    """D-25: others take their place, the rest follows, and the sentence tells what failed from what was not tried."""
    mill = Mill(app)
    mill.fail(range(6), bad=range(5), run_key="a", sink=tmp_path / "a.jsonl")
    mill.fail(range(10, 16), bad=range(10, 15), run_key="b", sink=tmp_path / "b.jsonl")
    (tmp_path / "a.jsonl").unlink()
    result = mill.pipeline.reprocess(canary=canary, run_key="mend", check=False)
    assert sorted(mill.seen) == [10, 11, 12, 13, 14]
    assert result.why == (
        "5 of 10 items succeeded, 5 were not tried. Not tried and still open: 5 letters: "
        f"the sink of its run is gone: {tmp_path}/a.jsonl. Put it back, or give another one with sink= (--output in a shell)."
    )
    assert rows_of(tmp_path / "b.jsonl") == [10, 11, 12, 13, 14, 15]
    again = mill.pipeline.reprocess(canary=canary, run_key="mend", check=False)
    assert again.why.startswith("5 of 10 items succeeded, 5 were not tried. Nothing was tried now: ")
    assert len(mill.seen) == 5


def test_letters_that_cannot_be_tried_spend_no_failure_budget(app, tmp_path):
    """They say nothing about the service: neither their share nor fifty in a row with one reason stop the others."""
    mill = Mill(app)
    mill.fail(range(70), bad=[n for n in range(70) if n % 10], run_key="a", sink=tmp_path / "a.jsonl")
    mill.fail(range(100, 106), bad=range(100, 105), run_key="b", sink=tmp_path / "b.jsonl")
    (tmp_path / "a.jsonl").unlink()
    strict = Mill(app, failure_budget=0.0, failure_check_interval=1)
    result = strict.pipeline.reprocess(check=False)
    assert sorted(strict.seen) == [100, 101, 102, 103, 104]
    assert (result.reason, result.counts.succeeded, result.counts.dlq) == ("low_success_rate", 5, 63)
    assert rows_of(tmp_path / "b.jsonl") == [100, 101, 102, 103, 104, 105]


def test_a_replay_that_is_paused_counts_the_untried_that_have_ended(sqlite_app, tmp_path, monkeypatch):
    """What was read and given back is pending, and no number in its sentence is below zero."""
    mill = Mill(sqlite_app)
    mill.fail(range(40), bad=range(40), run_key="a", sink=tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "a.jsonl").write_text("of somebody else\n")
    read, whole = [], replays.LetterIntake.chunk
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(chunk=10))

    async def chunk(letters, most):
        read.append(await whole(letters, most))
        if len(read) == 2:
            runners[-1].end("pause")
        return read[-1]

    monkeypatch.setattr(replays.LetterIntake, "chunk", chunk)
    with captured() as runners:
        result = mill.pipeline.reprocess(run_key="mend", check=False)
    first, second = map(len, read)
    assert (result.counts.dlq, result.counts.pending) == (first, second)
    assert result.why.startswith(
        f"paused: 0 of {first + second} items succeeded, {first} were not tried, {second} are pending, "
    )


def test_a_canary_that_fails_stops_the_rest_also_behind_letters_that_cannot_be_tried(app, tmp_path):
    """What takes the place of an untried letter is a canary as well (S3-27)."""
    mill = Mill(app)
    mill.fail(range(6), bad=range(5), run_key="a", sink=tmp_path / "a.jsonl")
    mill.fail(range(10, 36), bad=range(10, 35), run_key="b", sink=tmp_path / "b.jsonl")
    (tmp_path / "a.jsonl").unlink()
    mill.bad = set(range(10, 35))
    result = mill.pipeline.reprocess(canary=3, check=False)
    assert 1 <= len(mill.seen) <= 3
    assert result.why.startswith(f"canary: {len(mill.seen)} of {len(mill.seen)} failed again, so the other ")
    assert ". Not tried and still open: " in result.why


# --- letters that begin elsewhere, or nowhere ---


def test_letters_of_stages_that_are_no_more_begin_at_the_start(app):
    """S3-28: of a first stage, whose payload is the source, and of a later one, which keeps it."""
    mill = Mill(app)
    mill.fail(range(2), bad=[1])

    @outlast.stage(retry=ONCE)
    def first(n):
        raise ValueError("no")

    outlast.Pipeline("mill", first, app=app, failure_budget=1.0).run([7], run_key="other", check=False)

    @outlast.stage
    def tenfold(n):
        return n * 10

    renamed = outlast.Pipeline("mill", tenfold, app=app)
    assert sorted(renamed.reprocess(stage="grind").outputs()) == [10]
    assert sorted(renamed.reprocess().outputs()) == [70]


def test_entries_of_another_program_are_replayed_and_one_that_cannot_be_stops_no_other(app, tmp_path):
    """S4-22: an imported entry begins at the start, with its repositories; a payload that cannot be read stays, with the reason."""
    mill = Mill(app)
    mill.fail(range(3), bad=range(3))
    foreign = DeadLetterEntry(
        *(
            "7f0c2f0e-7f42-4c5b-9b44-0a3c8f6b1e55",
            "w-1",
            {"type": "sweep"},
            ["repo-a", "repo-b"],
            "mill",
            "boom",
            "ValueError",
        ),
        timestamp="2026-11-15T09:30:00+00:00",
        metadata={},
    )
    Directory(tmp_path / "in").write(foreign)
    app.dead_letters.import_(tmp_path / "in")
    with app.store._database.writing() as tx:
        tx.execute("update outlast_dead_letters set payload = ?, metadata = '{}' where item_key = '1'", b"\x00\xff")

    @outlast.stage
    def clean(value):
        return value

    @outlast.stage
    def grind(value):
        return value

    work = {"task": {"type": "sweep"}, "repos": ["repo-a", "repo-b"], "adapter": "mill"}
    result = outlast.Pipeline("mill", clean, grind, app=app).reprocess(check=False)
    assert sorted(result.outputs(), key=str) == [0, 2, work]
    assert (result.counts.total, result.counts.succeeded, result.counts.dlq) == (4, 3, 1)
    assert "Not tried and still open: 1 letter: cannot be replayed, because" in result.why
    (left,) = app.store.letters(status="open")
    assert (left.item_key, left.replays) == ("1", 0)


def test_an_edit_is_replayed_or_nothing_is(app):
    """D-23, D-26: the stage that a letter was edited for is no more, and what the source gave is not taken in its place by itself."""

    @outlast.stage(retry=None)
    def first(number: int) -> int:
        return number

    @outlast.stage(retry=None)
    def second(number: int) -> int:
        raise ValueError("not five")

    @outlast.stage(retry=None)
    def renamed(number: int) -> int:
        return number

    outlast.Pipeline("p", first, second, app=app).run([5], check=False)
    [letter] = app.dead_letters.find()
    app.dead_letters.edit(letter.id, 55, reason="it is fifty-five")
    pipeline = outlast.Pipeline("p", first, renamed, app=app)
    assert "for which its input was edited" in pipeline.reprocess(check=False).why
    assert [found.status for found in app.dead_letters.find(status=None)] == ["open"]
    assert list(pipeline.reprocess(from_start=True).outputs()) == [5]


def database(path):
    """A new SQLite database with a table for what a mill has made, and a function that connects to it."""
    with sqlite3.connect(path) as connection:
        connection.execute("create table made (n integer)")
    return lambda: sqlite3.connect(path, check_same_thread=False)


def numbers_in(path):
    with sqlite3.connect(path) as connection:
        return sorted(n for (n,) in connection.execute("select n from made"))


def test_tables_that_only_functions_connect_to_are_not_taken_for_each_other(app, tmp_path, monkeypatch):
    """D-25: letters come home by the very table of their run; a process that was not given it leaves them open, and says what to give."""
    mill = Mill(app)
    places = [tmp_path / "one.db", tmp_path / "two.db"]
    for number, place in enumerate(places):
        numbers = range(10 * number, 10 * number + 4)
        mill.fail(numbers, bad=numbers[:2], run_key=place.name, sink=outlast.Table(database(place), "made"))
    mill.bad = {0, 10}
    mill.pipeline.reprocess(check=False)
    mill.bad = set()
    assert [numbers_in(place) for place in places] == [[1, 2, 3], [11, 12, 13]]
    monkeypatch.setattr(replays, "_tables", {})  # as in another process
    again = outlast.Table(lambda: sqlite3.connect(places[1], check_same_thread=False), "made")
    mill.fail([20, 21], bad=[20], run_key="third", sink=again)
    assert "has an address that is not on record: give it again with sink=" in mill.pipeline.reprocess(check=False).why
    assert [numbers_in(place) for place in places] == [[1, 2, 3], [11, 12, 13, 20, 21]]
    app.dead_letters.replay(run=mill.run("two.db").id, sink=again)
    assert [numbers_in(place) for place in places] == [[1, 2, 3], [10, 11, 12, 13, 20, 21]]
    assert mill.run("two.db").why == "4 of 4 items succeeded, 1 of them was replayed into table made in a connection"
    assert mill.letters()[0] == ("0", "open")


def test_a_table_that_is_given_is_not_taken_for_the_one_that_a_dead_replay_has_left(app, tmp_path, monkeypatch, caplog):
    """D-25: nothing says that a function connects to the same database; the run itself, with its table, makes it good."""
    mill = Mill(app)
    one, two = (database(tmp_path / name) for name in ("one.db", "two.db"))
    mill.fail(range(3), bad=[1], run_key="one", sink=outlast.Table(one, "made"))
    with monkeypatch.context() as patched:  # as if it were killed behind the commit
        for step in ("finish", "settle"):
            patched.setattr(type(open_sink(outlast.Table(one, "made"))), step, lambda _: 1 / 0)
        mill.pipeline.reprocess(check=False)
    monkeypatch.setattr(replays, "_tables", {})  # as in another process
    mill.fail([5], bad=[5], run_key="two")
    mill.pipeline.reprocess(sink=outlast.Table(two, "made"))
    assert "the sink of run one of mill, which a replay has left unfinished, stays so" in caplog.text
    assert (mill.run("one").replayed_by is None, numbers_in(tmp_path / "one.db")) == (False, [0, 2])
    mill.pipeline.run(range(3), run_key="one", item_key=str, sink=outlast.Table(one, "made"))
    assert (mill.run("one").replayed_by, numbers_in(tmp_path / "one.db")) == (None, [0, 1, 2])
    assert numbers_in(tmp_path / "two.db") == [5]


def test_a_table_is_the_same_one_from_another_folder(app, tmp_path, monkeypatch):
    """D-25: a relative address means the folder that the run was in."""
    mill = Mill(app)
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        database(tmp_path / name / "data.db")
    monkeypatch.chdir(tmp_path / "here")
    mill.fail(range(3), bad=[1], sink=outlast.Table("sqlite:///data.db", "made"))
    monkeypatch.chdir(tmp_path / "there")
    mill.pipeline.reprocess()
    assert [numbers_in(tmp_path / name / "data.db") for name in ("here", "there")] == [[0, 1, 2], []]


def test_letters_are_claimed_although_the_store_was_away_when_they_were_asked_for(app, monkeypatch):
    """D-25: asked again after a lost connection, whether the claim was committed or not, the replay has its letters and does them all."""
    for committed in (False, True):
        mill, claim, lost = Mill(app), Store.claim_for_replay, [StoreUnavailable("the server is restarting")]

        def unsteady(store, *args, claim=claim, lost=lost, committed=committed, **how):
            if lost and committed:
                claim(store, *args, **how)
            if lost:
                raise lost.pop()
            return claim(store, *args, **how)

        mill.fail(range(6), bad=range(3), run_key=f"run {committed}")
        monkeypatch.setattr(Store, "claim_for_replay", unsteady)
        with virtual_time():
            assert mill.pipeline.reprocess().counts.succeeded == 3
        monkeypatch.setattr(Store, "claim_for_replay", claim)


def test_a_replay_that_has_lost_its_lease_touches_no_run(app, tmp_path, monkeypatch):
    """C-22, D-25: it was stopped before it had the run of its letters, and finds that run free: its sink and its mark stay as they are."""
    mill, sink, take = Mill(app), tmp_path / "out.jsonl", replays.take
    mill.fail(range(8), bad=range(4), sink=sink)
    before = sink.read_bytes()

    def stopped_before(store, run, **how):
        if run.kind == "run":
            with store._database.writing() as tx:  # meanwhile another process has taken over the replay
                tx.execute("update outlast_shards set token = token + 1 where owner <> ''")
                tx.execute("update outlast_progress set token = token + 1 where run <> ?", run.number)
        return take(store, run, **how)

    monkeypatch.setattr(replays, "take", stopped_before)
    late = mill.pipeline.reprocess(run_key="mend", check=False)
    assert (late.status, late.reason) == ("failed", "lease_lost")
    assert (sink.read_bytes(), mill.run().replayed_by, mill.run().counts.succeeded) == (before, None, 4)
    assert app.store.run_lease(mill.run().number, 0) is None


@pytest.mark.parametrize("door", ["reprocess", "replay"])
def test_a_replay_that_is_interrupted_says_so_and_goes_on(sqlite_app, door):
    """D-21, D-25: Ctrl-C winds it down, its counts are true, what it has not done is open, and the same key goes on."""
    mill = Mill(sqlite_app)
    mill.fail(range(6), bad=range(6))
    sent = []

    def interrupt():
        """What has begun ends when the replay has noticed the signal: it begins no other."""
        if not sent:
            sent.append(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        assert stopping.get().wait(60)

    again = mill.pipeline.reprocess if door == "reprocess" else sqlite_app.dead_letters.replay
    which = {} if door == "reprocess" else {"pipeline": "mill"}
    mill.before = interrupt
    with pytest.raises(KeyboardInterrupt) as ended:
        again(run_key="mend", **which)
    mill.before = lambda: None
    result = outlast.result_of(ended.value)
    done = [key for key, status in mill.letters() if status == "resolved"]
    assert (result.status, result.counts.succeeded, result.counts.dlq) == ("interrupted", len(done), 0)
    assert {status for _, status in mill.letters()} <= {"resolved", "open"}
    with pytest.raises(outlast.RunInterrupted):
        result.raise_for_status()
    (record,) = [run for run in sqlite_app.store.runs("mill") if run.kind == "replay"]
    assert (record.status, sqlite_app.store.run_lease(record.number, 0)) == ("interrupted", None)
    assert again(run_key="mend", **which).status == "completed"
    assert {status for _, status in mill.letters()} == {"resolved"}
    assert sorted(mill.seen) == list(range(6))


def test_what_holds_items_is_for_its_owner_alone(sqlite_app, tmp_path, monkeypatch):
    """Reports, error files and spools are 0600, the folders that are made for them 0700 (S0-41)."""
    monkeypatch.chdir(tmp_path)
    before = os.umask(0)
    try:
        mill = Mill(sqlite_app)
        seen = {}

        def look(_):
            seen.update({path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("*.spool")})

        stop = outlast.observe.subscribe(look)
        result = mill.fail(range(5), bad=[3], sink="out.parquet")
        stop()
        result.write_errors("errors/list.csv")
        outlast.report.of(result).save("report.html")
    finally:
        os.umask(before)
    modes = {path: Path(path).stat().st_mode & 0o777 for path in ("errors", "errors/list.csv", "report.html")}
    assert modes == {"errors": 0o700, "errors/list.csv": 0o600, "report.html": 0o600}
    assert set(seen.values()) == {0o600}


# --- a letter tells its newest failure ---


class Press:
    """A pipeline of two stages that fail as they are told: `wrong` maps a stage to what it raises."""

    def __init__(self, app):
        self.app, self.wrong = app, {}

        @outlast.stage(retry=ONCE)
        def fetch(n):
            return self._does("fetch", n)

        @outlast.stage(retry=ONCE)
        def press(n):
            return self._does("press", n)

        self.pipeline = outlast.Pipeline("press", fetch, press, app=app, failure_budget=1.0)

    def _does(self, stage, n):
        if stage in self.wrong:
            raise self.wrong[stage]
        return n

    def replay(self, **wrong):
        self.wrong = wrong
        return self.pipeline.reprocess(check=False)

    def letter(self):
        (letter,) = self.app.dead_letters.find(status=None)
        return letter


def test_a_letter_that_fails_in_another_way_tells_that_everywhere(app, tmp_path):
    """C-14, S3-27, S4-22: stage, error, group, reason, error file and export are those of the newest failure; the earlier ones are on record."""
    press = Press(app)
    press.wrong = {"fetch": TimeoutError("no answer")}
    first = press.pipeline.run([7], run_key="k", item_key=str, check=False)
    before = press.letter()
    press.replay(press=ValueError("too hard"))
    after = press.letter()
    told = ("press", "too hard", "ValueError", "data_error", "data", "permanent")
    assert (after.stage, after.error, after.error_type, after.error_class, after.tier, after.stop_reason) == told
    assert (after.id, after.status, after.replays, after.attempts) == (before.id, "open", 1, 2)
    assert after.group == fingerprint("press", "data_error", "ValueError", "too hard")
    (group,) = app.dead_letters.groups()
    assert (group.id, group.stage, group.message, group.count) == (after.group, "press", "too hard", 1)
    assert before.last_attempt_at < group.first_seen_at <= group.last_seen_at == after.last_attempt_at
    assert (list(app.dead_letters.groups(group=before.group)), after.first_failed_at) == ([], before.first_failed_at)
    assert [(stat.stage, stat.count) for stat in app.dead_letters.stats()] == [("press", 1)]
    # In the run that it comes from, too.
    (item,) = first.items()
    assert (item.status, item.error, item.stop_reason) == ("dlq", "press: ValueError: too hard", "permanent")
    (line,) = first.errors()
    assert (line.stage, line.message, line.raw_row) == ("press", "too hard", 7)
    assert line.timestamp == after.last_attempt_at
    assert [(one.stage, one.message) for one in first.groups] == [("press", "too hard")]
    report = outlast.report.of(first)
    assert [(one.stage, one.message) for one in report.letters] == [("press", "too hard")]
    assert report.verdict.endswith("1 failed in press: ValueError.")
    # What went before is kept, with the letter and with its export.
    (earlier,) = after.metadata["earlier_failures"]
    assert {
        name: earlier[name] for name in ("stage", "error", "error_type", "error_class", "group", "stop_reason")
    } == {
        "stage": "fetch",
        "error": "no answer",
        "error_type": "TimeoutError",
        "error_class": "timeout",
        "group": before.group,
        "stop_reason": before.stop_reason,
    }
    app.dead_letters.export(tmp_path / "letters")
    (entry,), _ = Directory(tmp_path / "letters").entries()
    assert (entry.error, entry.error_type, entry.task["stage"]) == ("too hard", "ValueError", "press")
    assert entry.metadata["earlier_failures"] == [earlier]
    # And the payload is still what it was: a replay begins where it did.
    assert (after.payload, after.begins_at) == (7, "fetch")
    assert (press.replay().status, press.letter().status) == ("completed", "resolved")


def test_many_failures_of_a_letter_stay_few_on_record(sqlite_app):
    """C-14: the first and the newest are kept, however often it is replayed."""
    press = Press(sqlite_app)
    press.wrong = {"fetch": ValueError("time 0")}
    press.pipeline.run([7], item_key=str, check=False)
    for number in range(1, 25):
        press.replay(fetch=ValueError(f"time {number}"))
    letter = press.letter()
    texts = [earlier["error"] for earlier in letter.metadata["earlier_failures"]]
    assert (letter.error, letter.replays, letter.attempts) == ("time 24", 24, 25)
    assert texts == ["time 0", *(f"time {number}" for number in range(5, 24))]


def test_what_cannot_be_kept_by_a_sink_is_the_newest_failure_of_its_letter(app, tmp_path):
    """C-14, D-25: a row that the table refuses late tells that in the letter and in the run it comes from."""
    with sqlite3.connect(tmp_path / "data.db") as connection:
        connection.execute("create table made (n integer check (n <> 3))")
    mill = Mill(app)
    sink = outlast.Table(f"sqlite:///{tmp_path}/data.db", "made")
    first = mill.fail(range(5), bad=[3], sink=sink)
    mill.pipeline.reprocess(check=False)
    (letter,) = app.dead_letters.find(pipeline="mill")
    (item,) = first.items(status="dlq")
    (line,) = first.errors()
    assert "CHECK constraint failed" in letter.error
    assert (letter.error in item.error, line.message) == (True, letter.error)


@pytest.mark.parametrize("moment", ["coming home", "made good"])
def test_a_connection_that_is_cut_while_a_run_is_opened_bars_nobody(app, tmp_path, monkeypatch, moment):
    """D-25: what passes is waited for, as everywhere; the letters come home in the same replay."""
    connect, cuts = database(tmp_path / "data.db"), []

    def cut():
        if cuts:
            raise cuts.pop()
        return connect()

    mill, table = Mill(app), outlast.Table(cut, "made")
    mill.fail(range(3), bad=[1], sink=table)
    if moment == "made good":
        with app.store._database.writing() as tx:
            tx.execute("update outlast_runs set replayed_by = 'dead'")
    cuts += [ConnectionResetError("terminating connection") for _ in range(3)]
    with virtual_time():
        result = mill.pipeline.reprocess()
    assert (result.counts.succeeded, cuts, numbers_in(tmp_path / "data.db")) == (1, [], [0, 1, 2])
    assert mill.run().replayed_by is None


def test_a_sink_that_is_away_for_a_moment_is_waited_for(app, tmp_path, monkeypatch):
    """D-25: the replay comes to the run of its letters while the table cannot be reached, waits, and brings all of them home."""
    with sqlite3.connect(tmp_path / "data.db") as connection:
        connection.execute("create table made (n integer)")
    mill, sink = Mill(app), outlast.Table(f"sqlite:///{tmp_path}/data.db", "made")
    mill.fail(range(6), bad=range(3), sink=sink)
    make_good, away = TableSink._make_good, [outlast.TemporaryFailure("the server is restarting")] * 3

    def unsteady(table, *given):
        if away:
            raise away.pop()
        make_good(table, *given)

    monkeypatch.setattr(TableSink, "_make_good", unsteady)
    with virtual_time():
        assert mill.pipeline.reprocess().counts.succeeded == 3
    assert (away, rows_of(sink)) == ([], list(range(6)))


def test_a_table_that_is_away_for_a_moment_is_waited_for_when_a_run_begins(app, tmp_path):
    """C-22: a connection that is cut while the table is being opened costs the run nothing."""
    connect, cuts = database(tmp_path / "data.db"), [ConnectionResetError("terminating connection") for _ in range(3)]

    def cut():
        if cuts:
            raise cuts.pop()
        return connect()

    with virtual_time() as time:
        Mill(app).fail(range(3), bad=[], sink=outlast.Table(cut, "made"))
    assert (cuts, numbers_in(tmp_path / "data.db"), 0 < time.now < 10) == ([], [0, 1, 2], True)


@pytest.mark.parametrize("question", ["claimants", "held_sinks", "letter_owners"])
def test_a_store_that_is_away_while_letters_are_chosen_is_waited_for(app, monkeypatch, question):
    """C-22, D-25: a connection that is cut before the replay has its run costs it nothing."""
    mill, asked, cuts = Mill(app), getattr(Store, question), [StoreUnavailable("the server is restarting")] * 3
    mill.fail(range(4), bad=[1])

    def unsteady(store, *given, **how):
        if cuts:
            raise cuts.pop()
        return asked(store, *given, **how)

    monkeypatch.setattr(Store, question, unsteady)
    with virtual_time() as time:
        assert app.dead_letters.replay(pipeline="mill").counts.succeeded == 1
    assert (cuts, 0 < time.now < 10) == ([], True)
