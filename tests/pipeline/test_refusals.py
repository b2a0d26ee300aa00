"""What was refused before the first item is read binds nobody: the same run_key works as if it had never been tried."""

from __future__ import annotations

import pytest

import outlast
from outlast.components.lines import FileSink
from outlast.pipeline import lifecycle
from stores import contents


@outlast.stage
def passing(row):
    return row


def pipeline(app, *stages, **options):
    return outlast.Pipeline("p", *(stages or (passing,)), app=app, **options)


ROWS = [{"n": n} for n in range(3)]


def _occupied(path):
    path.write_text("somebody's\n")
    return path


def _folder(path):
    path.mkdir()
    return path


def _under_a_file(path):
    path.write_text("")
    return path / "out.jsonl"


WRONG = {
    "not empty": lambda folder: _occupied(folder / "taken.jsonl"),
    "a folder": lambda folder: _folder(folder / "folder.jsonl"),
    "under a file": lambda folder: _under_a_file(folder / "file"),
    "a table that is not there": lambda folder: outlast.Table(f"sqlite:///{_occupied(folder / 'no.db')}", "orders"),
    "a Parquet file of somebody": lambda folder: _occupied(folder / "taken.parquet"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_sink_that_was_refused_binds_nothing(app, tmp_path, wrong):
    """D-24: the store is as it was, and the same key takes another sink, other stages and another item key."""
    before = contents(app.store)
    with pytest.raises((outlast.OutlastError, OSError)):
        pipeline(app).run(ROWS, run_key="k", item_key="n", sink=WRONG[wrong](tmp_path))
    assert contents(app.store) == before

    @outlast.stage
    def other(row):
        return row

    sink = tmp_path / "out.jsonl"
    assert pipeline(app, passing, other).run(ROWS, run_key="k", sink=sink).status == "completed"
    assert len(sink.read_text().splitlines()) == 3


def test_a_run_that_has_read_nothing_binds_nothing(app, tmp_path):
    """D-24: a source that fails at once leaves its run on record; corrected, it may have another sink, and other stages."""

    def broken():
        raise OSError("no such share")
        yield

    first = pipeline(app).run(broken(), run_key="k", sink=tmp_path / "first.jsonl", check=False)
    assert (first.status, first.reason, first.counts.total) == ("failed", "source_error", 0)

    @outlast.stage
    def other(row):
        return row

    theirs = _occupied(tmp_path / "theirs.jsonl")
    with pytest.raises(outlast.ConfigurationError, match="11 bytes that no run of this key has written"):
        pipeline(app, other).run(ROWS, run_key="k", sink=theirs)
    assert theirs.read_text() == "somebody's\n"
    second = pipeline(app, other).run(ROWS, run_key="k", item_key="n", sink=tmp_path / "second.jsonl")
    record = app.store.run(second.id)
    assert (second.status, first.id, record.sink) == ("completed", second.id, str(tmp_path / "second.jsonl"))
    assert [mark.name for mark in record.stages] == ["other"]
    with pytest.raises(outlast.ConfigurationError, match="expected the sink of the run 'k' to stay the same"):
        pipeline(app, other).run(ROWS, run_key="k", item_key="n", sink=tmp_path / "third.jsonl")


def test_who_waited_for_a_run_that_is_withdrawn_begins_it_anew(app, tmp_path, monkeypatch):
    """Two begin one key at once, and one of them is refused: the other one has a run, and not the ghost of one."""
    take, tried = lifecycle.take, []
    before = len(contents(app.store)["outlast_progress"])

    def after_another(store, record, *args, **options):
        if not tried:
            tried.append(record.id)
            lifecycle._withdraw(store, record)
        return take(store, record, *args, **options)

    monkeypatch.setattr(lifecycle, "take", after_another)
    result = pipeline(app).run(ROWS, run_key="k", sink=tmp_path / "out.jsonl")
    assert (result.status, result.counts.succeeded, result.id in tried) == ("completed", 3, False)
    assert [run.id for run in app.store.runs()] == [result.id]
    assert len(contents(app.store)["outlast_progress"]) == before + 1


def test_what_was_read_before_the_lease_binds(app, tmp_path, monkeypatch):
    """Between finding a run that has read nothing and having its lease somebody else may have done all of it: its sink stays."""
    take, tried = lifecycle.take, []
    sink = tmp_path / "out.jsonl"
    pipeline(app).run([], run_key="k", sink=sink)

    def after_another(store, record, *args, **options):
        if not tried:
            tried.append(record.id)
            pipeline(app).run(ROWS, run_key="k", sink=sink)
        return take(store, record, *args, **options)

    monkeypatch.setattr(lifecycle, "take", after_another)
    with pytest.raises(outlast.ConfigurationError, match="expected the sink of the run 'k' to stay the same"):
        pipeline(app).run(ROWS, run_key="k", sink=tmp_path / "other.jsonl")
    assert (len(sink.read_text().splitlines()), app.store.find_run("p", "k").sink) == (3, str(sink))


def test_a_disk_that_cannot_be_written_to_binds_nothing(app, tmp_path, monkeypatch):
    """An error of the operating system while the sink is opened is a refusal, too."""
    before = contents(app.store)
    with monkeypatch.context() as patched:
        patched.setattr(FileSink, "_cut", lambda *_: (tmp_path / "nowhere").stat())
        with pytest.raises(FileNotFoundError):
            pipeline(app).run(ROWS, run_key="k", sink=tmp_path / "out.jsonl")
    assert contents(app.store) == before
    assert pipeline(app).run(ROWS, run_key="k").status == "completed"


def test_a_name_that_can_be_written_nowhere_is_refused(app):
    """Before anything is on record; a run key of that kind has a spelling of its own."""
    with pytest.raises(outlast.ConfigurationError, match=r"expected name to be a name in Unicode, got: 'p\\ud800'"):
        outlast.Pipeline("p\ud800", passing, app=app)
    assert outlast.Pipeline("p", passing, app=app).run([1], run_key="k\ud800").status == "completed"
