"""Files as sinks while others meddle with them: deleted, rotated, truncated, locked by a child, written by somebody who was thought to be dead."""

from __future__ import annotations

import os
import shutil
import threading
from contextvars import copy_context
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import outlast
from captured import captured
from outlast.components.lines import FileSink, Lines, Rows
from outlast.components.parquet import Parquet
from outlast.pipeline import replays
from outlast.pipeline.plan import Tuning
from outlast.work import leases
from outlast.work.writer import BatchLimits
from stores import left_running, sql


@outlast.stage
async def same(item):
    return item


def pipeline(app, stage=same):
    return outlast.Pipeline("p", stage, app=app, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0)


def contents(path):
    if path.suffix == ".parquet":
        return pq.read_table(path)["n"].to_pylist()
    lines = path.read_text().splitlines()
    return [int(line) for line in lines[1:]] if path.suffix == ".csv" else [int(line.strip('{"n:}')) for line in lines]


HARMS = {
    "deleted": lambda path: path.unlink(),
    "rotated": lambda path: path.rename(f"{path}.1"),
    "replaced": lambda path: (path.rename(f"{path}.1"), path.write_bytes(Path(f"{path}.1").read_bytes())),
    "truncated": lambda path: os.truncate(path, 5),
    "written to": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "overwritten": lambda path: path.write_bytes(other(path.read_bytes())),
}


def other(content):
    """As many bytes, and one of the last is another one."""
    return content[:-30] + bytes([content[-30] ^ 1]) + content[-29:]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet"])
@pytest.mark.parametrize("moment", ["between batches", "at the end"])
def test_a_file_that_is_changed_in_mid_run_fails_the_run(app, tmp_path, monkeypatch, harm, name, moment):
    """D-21: never `completed` while outputs are gone; a resume does not say so either, until the file is back."""
    monkeypatch.setattr(outlast.Pipeline, "_tuning", Tuning(batches=BatchLimits(entries=20)))
    sink = tmp_path / name
    file = sink if name != "out.parquet" else Path(f"{sink}.spool")
    settle, finish, settled = FileSink.settle, type(outlast.components.open_sink(sink)).finish, []

    def settling(self):
        settle(self)
        settled.append(self._offset)
        if len(settled) == 3 and moment == "between batches":
            HARMS[harm](file)

    def finishing(self):
        if moment == "at the end" and len(settled) < 100:
            settled.extend([0] * 100)
            HARMS[harm](file)
        finish(self)

    monkeypatch.setattr(FileSink, "settle", settling)
    monkeypatch.setattr(type(outlast.components.open_sink(sink)), "finish", finishing)
    rows = [{"n": n} for n in range(200)]
    result = pipeline(app).run(rows, run_key="k", sink=sink, check=False, ordered=True)
    assert (result.status, result.reason) == ("failed", "store_error")
    assert f"expected the sink {file} to stay as it is while the run writes to it" in result.why
    if harm in {"deleted", "truncated", "overwritten"}:
        with pytest.raises(outlast.ConfigurationError, match="It was changed since"):
            pipeline(app).run(rows, run_key="k", sink=sink)
    if harm == "rotated":
        Path(f"{file}.1").rename(file)
    if harm not in {
        "deleted",
        "truncated",
        "overwritten",
    }:  # with the file at its place, what was not committed is cut off
        assert pipeline(app).run(rows, run_key="k", sink=sink, ordered=True).status == "completed"
        assert contents(sink) == list(range(200))


def test_a_parquet_file_of_somebody_else_is_not_overwritten(app, tmp_path, monkeypatch):
    """One that appears while the run works stays as it is; the rows wait in the spool."""
    sink, finish = tmp_path / "out.parquet", Parquet.finish

    def finishing(self):
        sink.write_bytes(b"somebody's")
        finish(self)

    with monkeypatch.context() as patched:
        patched.setattr(Parquet, "finish", finishing)
        result = pipeline(app).run([{"n": 1}], run_key="k", sink=sink, check=False)
    assert (result.status, sink.read_bytes()) == ("failed", b"somebody's")
    assert "got: another file. What the run has made waits in" in result.why
    sink.unlink()
    assert pipeline(app).run([{"n": 1}], run_key="k", sink=sink).status == "completed"
    assert contents(sink) == [1]


def test_a_longer_line_that_was_never_committed_is_cut_off(app, tmp_path):
    """D-15: what a resume writes may be shorter than what a crash has left behind; the file holds the outputs and nothing else."""
    sink = tmp_path / "out.jsonl"
    pipeline(app).run([{"n": 1}], run_key="k", sink=sink)
    with sink.open("ab") as file:
        file.write(b'{"n":22222222222222222222222222222222222222222222222222}\n')
    left_running(app.store)
    pipeline(app).run([{"n": 1}, {"n": 2}], run_key="k", sink=sink)
    assert sink.read_bytes() == b'{"n":1}\n{"n":2}\n'


@pytest.mark.parametrize("ending", ["jsonl", "csv.gz"])
def test_a_file_that_has_more_than_an_ended_run_has_left_is_not_touched(app, tmp_path, ending):
    """D-25, D-26: lines that somebody added, and another run's file of that name, are cut off neither by a rerun nor by a replay."""
    down = [True]  # a plain value would be part of the code of the stage

    @outlast.stage(retry=None)
    def work(n: int) -> dict:
        if n == 1 and down:
            raise ValueError("not yet")
        return {"n": n}

    sink = tmp_path / f"out.{ending}"
    made = outlast.Pipeline("p", work, app=app, min_success_rate=0.1, failure_budget=1.0)
    first = made.run(range(3), run_key="monday", sink=sink)
    sink.rename(tmp_path / "monday")
    made.run(range(10, 40), run_key="tuesday", sink=sink)
    theirs = sink.read_bytes()
    down.clear()
    with pytest.raises(outlast.ConfigurationError, match=r"expected the sink .* to be as the run has left it"):
        made.run(range(3), run_key="monday", sink=sink)
    assert app.store.find_run("p", "monday").status == first.status
    replayed = made.reprocess(check=False)
    assert "to be as the run has left it" in replayed.why
    assert [letter.status for letter in app.dead_letters.find(status=None)] == ["open"]
    assert sink.read_bytes() == theirs
    (tmp_path / "monday").replace(sink)  # back in its place
    assert made.reprocess().counts.succeeded == 1
    assert (made.run(range(3), run_key="monday", sink=sink).counts.succeeded, sink.stat().st_size > 0) == (3, True)


def begun(app, sink, rows, end):
    """A run whose first half is on record: interrupted, killed, or at its end."""

    @outlast.stage
    async def same(row):
        if row["n"] == 50 and end == "interrupted":
            runs[0].end("interrupted")
        return row

    with captured() as runs:
        result = pipeline(app, same).run(
            rows[:50] if end != "interrupted" else rows, run_key="k", sink=sink, check=False, ordered=True
        )
    assert result.status == ("interrupted" if end == "interrupted" else "completed")
    if end == "killed":
        left_running(app.store)


def refused(app, sink, rows, why):
    with pytest.raises(outlast.ConfigurationError, match=why):
        pipeline(app).run(rows, run_key="k", sink=sink)


ROWS = [{"n": n} for n in range(100)]


@pytest.mark.parametrize("end", ["interrupted", "killed", "ended"])
@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.csv.gz", "out.jsonl.zst", "out.parquet"])
def test_another_file_of_the_same_size_is_not_taken_for_the_sink(app, tmp_path, name, end):
    """D-15: whatever state its run is in, it is refused, and stays as it is; with its own file in its place the run goes on."""
    sink = tmp_path / name
    begun(app, sink, ROWS, end)
    file = Path(f"{sink}.spool") if name == "out.parquet" and end == "interrupted" else sink
    mine = file.read_bytes()
    theirs = other(mine)
    if file.suffix == ".parquet":  # a row is another one, and the metadata are those of the run
        table = pq.read_table(sink)
        pq.write_table(table.set_column(0, table.schema.field(0), [[*table["n"].to_pylist()[:-1], 77]]), sink)
        theirs = sink.read_bytes()
    file.write_bytes(theirs)
    before = app.store.find_run("p", "k")
    refused(app, sink, ROWS, "to be as (the|this) run has left it, got: (other bytes|another file)")
    assert (file.read_bytes(), app.store.find_run("p", "k").counts) == (theirs, before.counts)
    file.write_bytes(mine)
    assert pipeline(app).run(ROWS, run_key="k", sink=sink, ordered=True).status == "completed"
    assert outlast.Files(sink).count() == 100


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv.gz"])
def test_what_somebody_adds_to_the_file_of_an_interrupted_run_is_not_cut_off(app, tmp_path, name):
    """A pass that ended in order has left nothing uncommitted: what is behind its bytes is somebody's."""
    sink = tmp_path / name
    begun(app, sink, ROWS, "interrupted")
    mine = sink.read_bytes()
    sink.write_bytes(mine + b"somebody's\n")
    refused(app, sink, ROWS, "Somebody else has written to it")
    assert sink.read_bytes() == mine + b"somebody's\n"
    sink.write_bytes(mine)
    assert pipeline(app).run(ROWS, run_key="k", sink=sink).counts.succeeded == 100


def test_a_file_in_the_place_of_one_that_has_nothing_yet_is_not_cut_off(app, tmp_path):
    """A run that died before its first batch owns what it has made, and nothing else of that name."""
    sink = tmp_path / "out.jsonl"
    pipeline(app).run([], run_key="k", sink=sink)
    left_running(app.store)
    sink.write_bytes(b"half a ba")  # what it was about to write is its own
    assert pipeline(app).run(ROWS[:1], run_key="k", sink=sink).status == "completed"
    sink.unlink()
    pipeline(app).run([], run_key="other", sink=sink)
    left_running(app.store)
    (tmp_path / "theirs").write_bytes(b"somebody's\n")
    (tmp_path / "theirs").replace(sink)
    with pytest.raises(outlast.ConfigurationError, match="11 bytes that no run of this key has written"):
        pipeline(app).run(ROWS, run_key="other", sink=sink)
    assert sink.read_bytes() == b"somebody's\n"


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_a_replay_does_not_come_home_to_another_file_of_the_same_size(app, tmp_path, name):
    """D-25: its letters stay open, with the reason, and the file stays as it is."""
    down = [True]

    @outlast.stage(retry=None)
    def work(n: int) -> dict:
        if n == 1 and down:
            raise ValueError("not yet")
        return {"n": n}

    sink = tmp_path / name
    made = outlast.Pipeline("p", work, app=app, min_success_rate=0.1, failure_budget=1.0)
    made.run(range(30), run_key="k", sink=sink)
    mine = sink.read_bytes()
    HARMS["overwritten"](sink)
    theirs = sink.read_bytes()
    down.clear()
    assert "as the run has left it" in made.reprocess(check=False).why.replace("as this run", "as the run")
    assert sink.read_bytes() == theirs
    sink.write_bytes(mine)
    assert (made.reprocess().counts.succeeded, sorted(contents(sink))) == (1, list(range(30)))


def test_a_sink_of_a_store_without_marks_goes_on(app, tmp_path):
    """C-28: an older version has recorded how far the file counts and nothing else; a mark for another place says nothing either."""
    sink = tmp_path / "out.jsonl"
    for end, mark in ((10, None), (20, "5 0123 whole")):
        pipeline(app).run(ROWS[:end], run_key="k", sink=sink, ordered=True)
        sql(app.store, "update outlast_progress set sink_mark = ?", mark)
    assert pipeline(app).run(ROWS, run_key="k", sink=sink, ordered=True).status == "completed"
    assert contents(sink) == list(range(100))


@pytest.mark.parametrize("kind", [Lines, Parquet])
def test_a_forked_child_keeps_no_lock(tmp_path, kind):
    """A stage may fork. When its process is gone, the next one has the file although the children still live."""
    path = tmp_path / ("o.parquet" if kind is Parquet else "o.jsonl")
    sink = kind(path)
    sink.open(None, run="r", token=1)
    wait, go = os.pipe()
    here, there = os.pipe()
    child = os.fork()
    if not child:
        os.close(go)
        os.write(there, b"x")
        os.read(wait, 1)
        os._exit(0)
    try:
        os.read(here, 1)
        sink.close()  # as if its process had died
        next_one = kind(path)
        next_one.open(None, run="r", token=2)
        next_one.close()
    finally:
        for end in (go, wait, here, there):
            os.close(end)
        os.waitpid(child, 0)


@pytest.mark.parametrize("kind", [Lines, Rows, Parquet])
def test_a_writer_who_was_thought_to_be_dead_damages_nothing(tmp_path, monkeypatch, kind):
    """Where locks do not hold: who takes over goes on in a file of its own, so what comes late changes nothing, and is noticed."""
    import fcntl

    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    path = tmp_path / {Lines: "o.jsonl", Rows: "o.csv", Parquet: "o.parquet"}[kind]
    slow, quick = kind(path), kind(path)
    slow.open(None, run="r", token=1)
    end = slow.write([slow.encode({"n": 1})], [])
    slow.settle()
    slow.write([slow.encode({"n": 2})], [])  # and is stopped here
    quick.open(end, run="r", token=2, alone=False)
    os.pwrite(slow._file, b"late" * 100, slow._offset)
    quick.write([quick.encode({"n": n}) for n in (2, 3)], [])
    quick.settle()
    os.pwrite(slow._file, b"later" * 100, slow._offset)
    with pytest.raises(outlast.PermanentFailure, match=r"got: (another file has its name|it is gone)"):
        slow.write([slow.encode({"n": 2})], [])
    quick.finish()
    quick.close()
    with pytest.raises(outlast.PermanentFailure, match=r"got: (another file|it is gone)"):
        slow.finish()
    slow.close()
    assert contents(path) == [1, 2, 3]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", [Lines, Rows])
def test_who_made_the_file_and_comes_late_leaves_what_another_has_written(tmp_path, monkeypatch, kind):
    """Where locks do not hold: stopped between making the file and its first look at it, it is refused, and the file stays."""
    import fcntl

    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    path = tmp_path / {Lines: "o.jsonl", Rows: "o.csv"}[kind]
    slow, quick, refused = kind(path), kind(path), kind(tmp_path / "none")
    slow.claim()
    quick.open(None, run="r", token=2)
    quick.write([quick.encode({"n": n}) for n in (1, 2)], [])
    quick.settle()
    quick.finish()
    quick.close()
    with pytest.raises(outlast.ConfigurationError):
        slow.open(None, run="r", token=1)
    assert contents(path) == [1, 2]
    with pytest.raises(outlast.ConfigurationError):  # what nobody has written to does not stay
        refused.open(10, run="r", token=1)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_who_finds_the_file_taken_leaves_the_lease_alone(app, tmp_path, monkeypatch, on_terms):
    """One that is only slow goes on: the next one is refused before it has taken anything away."""
    on_terms(ttl=0.0)
    monkeypatch.setattr(leases.Heartbeat, "_beat", lambda _: None)  # as if the process stood still
    monkeypatch.setattr(replays, "_BUSY", 0.0)
    begun, go = threading.Event(), threading.Event()
    sink = tmp_path / "out.jsonl"

    @outlast.stage
    def slow(n):
        begun.set()
        go.wait(60)
        return n

    ends = []
    first = lambda: ends.append(pipeline(app, slow).run(range(5), run_key="k", sink=sink))  # noqa: E731
    thread = threading.Thread(target=copy_context().run, args=(first,))
    thread.start()
    begun.wait(60)
    with pytest.raises(outlast.ConfigurationError, match="to be free, got: another process writes to it"):
        pipeline(app, slow).run(range(5), run_key="k", sink=sink)
    go.set()
    thread.join(60)
    assert [end.status for end in ends] == ["completed"]
    assert sorted(map(int, sink.read_text().split())) == list(range(5))


@pytest.mark.parametrize("end", ["given back", "expired"])
def test_a_file_is_renewed_only_when_nobody_knows_who_has_it(app, tmp_path, monkeypatch, end):
    """A pass that gave back its lease leaves no doubt; after one of another machine that fell silent the file is copied."""
    sink = tmp_path / "out.jsonl"
    pipeline(app).run(range(3), run_key="k", sink=sink)
    record = app.store.runs("p")[0]
    if end == "expired":
        app.store.take_run(record.number, 0, "elsewhere/1:17:4711:1", 0.0)
    before = sink.stat().st_ino
    pipeline(app).run(range(5), run_key="k", sink=sink)
    assert (sink.stat().st_ino == before) is (end == "given back")
    assert sorted(map(int, sink.read_text().split())) == list(range(5))


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_a_run_whose_file_is_gone_makes_none_in_its_place(app, tmp_path, name):
    """C-22: neither the file nor its folder, which may be a disk that is not there now; put back, the run goes on."""
    folder, good = tmp_path / "out", list[bool]()

    @outlast.stage
    def work(n):
        return {"n": n}

    def source():
        yield from range(9)
        if not good:
            raise ValueError("not today")
        yield 9

    def run():
        return outlast.Pipeline("p", work, app=app).run(source(), run_key="k", sink=folder / name, check=False)

    assert run().counts.succeeded == 9
    good.append(True)
    for missing in (folder, folder / name):
        shutil.copytree(folder, tmp_path / "aside")
        shutil.rmtree(folder)
        if missing != folder:
            folder.mkdir()
        with pytest.raises(outlast.ConfigurationError, match="no such file"):
            run()
        assert (folder.exists(), [*folder.glob("*")]) == (missing != folder, [])
        shutil.rmtree(folder, ignore_errors=True)
        (tmp_path / "aside").rename(folder)
    assert (run().status, run().counts.succeeded) == ("completed", 10)


def test_a_parquet_file_that_is_another_one_gets_no_spool_beside_it(tmp_path):
    """C-22: the run is refused, and the folder is as it was."""
    path = tmp_path / "out.parquet"
    path.write_bytes(b"another file")
    with pytest.raises(outlast.ConfigurationError, match="another file"):
        Parquet(path).open(1000, run="r", token=1)
    assert [*tmp_path.iterdir()] == [path]


def killed(app, sink, key, at):
    """A run that is killed about when so many of its items are on record."""

    @outlast.stage
    async def same(row):
        if row["n"] == at:
            runs[0].end("interrupted")
        return row

    with captured() as runs:
        pipeline(app, same).run(ROWS, run_key=key, sink=sink, check=False, ordered=True)
    left_running(app.store)


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet"])
@pytest.mark.parametrize("known", ["the same rows", "nothing committed", "no marks"])
def test_what_another_run_has_written_is_not_cut_off(app, tmp_path, name, known):
    """D-25: also if all fits that is on record of the run: nothing was committed yet, the same rows were, or an older version has kept no marks."""
    sink = tmp_path / name
    file = Path(f"{sink}.spool") if name == "out.parquet" else sink
    killed(app, sink, "k", 20)
    if known == "nothing committed":
        sql(app.store, "update outlast_progress set sink_offset = 0, sink_mark = null")
    mine = file.rename(tmp_path / "mine")
    killed(app, sink, "other", 80)
    if known == "no marks":
        sql(app.store, "update outlast_progress set sink_mark = null")
    theirs = file.read_bytes()
    refused(app, sink, ROWS, "got: the file of the run 'other' of p. Put the run's own file back")
    assert file.read_bytes() == theirs
    assert pipeline(app).run(ROWS, run_key="other", sink=sink).status == "completed"
    assert outlast.Files(sink).count() == 100
    sink.unlink()
    mine.rename(file)
    assert pipeline(app).run(ROWS, run_key="k", sink=sink).status == "completed"
    assert (outlast.Files(sink).count() == 100) == (known != "nothing committed")


def test_a_replay_of_others_does_not_cut_the_file_of_another_run(app, tmp_path, caplog):
    """D-25: what a dead replay has left is made good in its own file, and waits as long as that is away."""
    down, sink = [True], tmp_path / "out.jsonl"

    @outlast.stage(retry=None)
    def work(row):
        if row["n"] == 1 and down:
            raise ValueError("not yet")
        return row

    one, two = (outlast.Pipeline(name, work, app=app, failure_budget=1.0) for name in ("one", "two"))
    one.run(ROWS[:30], run_key="monday", sink=sink, check=False)
    two.run(ROWS[:3], run_key="k", check=False)
    sql(app.store, "update outlast_runs set replayed_by = 'dead' where run_key = 'monday'")
    left_running(app.store)
    mine = sink.rename(tmp_path / "mine")
    down.clear()
    one.run(ROWS[:1] + ROWS[2:], run_key="tuesday", sink=sink)  # which begins as monday's does
    theirs = sink.read_bytes()
    assert two.reprocess().counts.succeeded == 1
    assert (sink.read_bytes(), app.store.find_run("one", "monday").replayed_by) == (theirs, "dead")
    assert "stays so: expected the sink" in caplog.text
    sink.rename(tmp_path / "theirs")
    mine.rename(sink)
    assert one.reprocess().counts.succeeded == 1
    assert (sorted(contents(sink)), app.store.find_run("one", "monday").replayed_by) == (list(range(30)), None)


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv.gz", "out.parquet"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_refused_at_once(app, tmp_path, name, kind):
    """With what it is; nothing was read, and nothing is on record."""
    sink = tmp_path / name
    makers = {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/full"), "folder": Path.mkdir}
    makers[kind](sink)
    with pytest.raises(outlast.ConfigurationError, match=f"{name} to be a file, got: a {kind}. "):
        pipeline(app).run(ROWS, run_key="k", sink=sink)
    assert (app.store.runs(), [path.name for path in tmp_path.glob("out.*")]) == ([], [name])
