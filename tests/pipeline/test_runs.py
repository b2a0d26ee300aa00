"""Runs: sources, sinks, keys, resuming, pausing, streams, notebooks, and who may work on a run."""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import outlast
from outlast.testing import capture_events, virtual_time
from outlast.work import leases

ONCE = outlast.RetryPolicy(max_attempts=1)


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def counted(seen, **options):
    @outlast.stage(**options)
    async def work(item):
        seen.append(item)
        return item

    return work


# --- sources ---


def test_a_source_may_be_files_with_broken_lines(app, tmp_path):
    """S3-03, S3-38: JSON Lines and CSV, one or many; a line that cannot be read is a dead letter of the source and stops nobody."""
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n\nnot json\n{"n": 2}\n')
    (tmp_path / "b.jsonl").write_text('{"n": 3}')
    seen = []
    pipeline = outlast.Pipeline("p", counted(seen), app=app, min_success_rate=0.5)
    result = pipeline.run(f"{tmp_path}/*.jsonl")
    assert sorted(row["n"] for row in seen) == [1, 2, 3]
    (letter,) = app.dead_letters.find(pipeline="p")
    assert (letter.stage, letter.payload, letter.error_class) == ("source", "not json", "validation_error")
    assert "a.jsonl line 3" in letter.error
    assert result.counts == outlast.Counts(total=4, succeeded=3, dlq=1, source_exhausted=True)
    (tmp_path / "c.csv").write_text("n,t\n1,a\n2\n3,c\n")
    seen.clear()
    result = pipeline.run(tmp_path / "c.csv", check=False)
    assert seen == [{"n": "1", "t": "a"}, {"n": "3", "t": "c"}]
    assert result.counts.dlq == 1


def test_a_source_that_is_none_is_refused_before_anything_runs(app, tmp_path):
    """The message names what is possible; nothing is left behind that another run would have to wait for."""
    pipeline = outlast.Pipeline("p", counted([]), app=app)
    for wrong in (tmp_path / "nothing.jsonl", "also/*/nothing.csv", tmp_path, 5, b"x", {"a": 1}):
        with pytest.raises(outlast.ConfigurationError):
            pipeline.run(wrong, run_key="one")
    (tmp_path / "x.xlsx").write_text("")
    with pytest.raises(outlast.ConfigurationError, match="jsonl"):
        pipeline.run(tmp_path / "x.xlsx", run_key="one")
    assert pipeline.run([1], run_key="one").counts.succeeded == 1


def test_a_source_may_be_async_and_may_fail(app):
    """An async iterable is read in the loop; a source that raises leaves a run that can be resumed."""
    seen = []

    async def source(end):
        for number in range(10):
            if number == end:
                raise OSError("disk")
            yield number

    pipeline = outlast.Pipeline("p", counted(seen), app=app)

    async def main():
        result = await pipeline.arun(source(5), run_key="k", check=False)
        assert (result.status, result.reason, result.counts.total) == ("failed", "source_error", 5)
        assert "disk" in result.why
        return await pipeline.arun(source(None), run_key="k")

    result = asyncio.run(main())
    assert (result.status, result.counts.total) == ("completed", 10)
    assert sorted(seen) == list(range(10))


# --- keys ---


def test_keys_are_content_and_occurrence_or_the_users_own(app):
    """D-15: equal items differ by a number; a named field or a function gives the user's own."""
    pipeline = outlast.Pipeline("p", counted([]), app=app)

    def keys(items, **options):
        return [item.key for item in pipeline.run(items, **options).items()]

    first, again, third = keys([{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2}])
    assert again == f"{first}#2"
    assert len(third) == 32
    assert keys([{"id": 7}, {"id": 8}, {"id": 7}], item_key="id") == ["7", "8", "7#2"]
    assert keys([3, 4], item_key=lambda item: f"row-{item}") == ["row-3", "row-4"]
    with pytest.raises(outlast.ConfigurationError, match="none in the first item"):
        pipeline.run([{"id": 7}], item_key="identity")
    one, other = keys([{"id": 7}, {"no": 8}], item_key="id")
    assert (one, len(other)) == ("7", 32)


# --- sinks ---


def test_a_json_lines_sink_has_each_output_once(app, tmp_path):
    """Only succeeded items are in it (C-17); a second run of the same key adds nothing; another run does not overwrite it."""

    @outlast.stage(retry=ONCE)
    async def work(item):
        if item == 3:
            raise ValueError("three")
        return {"n": item}

    pipeline = outlast.Pipeline("p", work, app=app, min_success_rate=0.5)
    sink = tmp_path / "deep" / "out.jsonl"
    for _ in range(2):
        result = pipeline.run(range(6), run_key="k", sink=sink)
        assert sorted(row["n"] for row in lines(sink)) == [0, 1, 2, 4, 5]
        assert result.counts.total == 6
    with pytest.raises(outlast.ConfigurationError, match="to be new or empty"):
        pipeline.run(range(6), run_key="other", sink=sink)
    with pytest.raises(outlast.ConfigurationError, match="to stay the same"):
        pipeline.run(range(6), run_key="k")
    sink.write_text("")
    with pytest.raises(outlast.ConfigurationError, match="to hold at least"):
        pipeline.run(range(6), run_key="k", sink=sink)


def test_a_csv_sink_has_the_columns_of_the_first_row(app, tmp_path):
    """A row with other columns is a dead letter; the header is written once, also over a resume."""

    @outlast.stage(concurrency=1)
    async def work(item):
        return {"n": item, "text": 'a "quoted", text'} if item != 2 else {"other": 1}

    pipeline = outlast.Pipeline("p", work, app=app, min_success_rate=0.5)
    sink = tmp_path / "out.csv"
    pipeline.run(range(3), run_key="k", sink=sink)
    pipeline.run(range(5), run_key="k", sink=sink)
    with sink.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["n"] for row in rows] == ["0", "1", "3", "4"]
    assert {row["text"] for row in rows} == {'a "quoted", text'}


def test_a_callable_sink_gets_outputs_with_keys_and_a_failing_one_loses_nothing(app):
    """D-15: at least once, with keys; what it did not take is not finished."""
    taken = []
    broken = [True]

    def sink(outputs):
        if broken:
            raise ValueError("sink is closed")
        taken.extend(zip(outputs.keys, outputs, strict=True))

    pipeline = outlast.Pipeline("p", counted([]), app=app)
    result = pipeline.run([1, 2], run_key="k", item_key=str, sink=sink, check=False)
    assert (result.status, result.reason, result.counts.pending) == ("failed", "store_error", 2)
    assert "sink is closed" in result.why
    broken.clear()
    result = pipeline.run([1, 2], run_key="k", item_key=str, sink=sink)
    assert sorted(taken) == [("1", 1), ("2", 2)]
    assert result.counts.succeeded == 2


def test_ordered_outputs_come_in_the_order_of_the_source(app, tmp_path):
    """Whoever is ready first waits for those before it."""
    gate = asyncio.Event()

    @outlast.stage
    async def work(item):
        if item == 0:
            await gate.wait()
        if item == 9:
            gate.set()
        return item

    pipeline = outlast.Pipeline("p", work, app=app)
    pipeline.run(range(10), sink=tmp_path / "out.jsonl", ordered=True)
    assert lines(tmp_path / "out.jsonl") == list(range(10))


# --- resuming ---


def test_the_same_key_goes_on_where_it_stopped(app):
    """Finished items stay; new ones in the source are taken; failures are not tried again (they are dead letters)."""
    seen = []

    @outlast.stage(retry=ONCE)
    async def work(item):
        seen.append(item)
        if item == 2:
            raise ValueError("two")
        return item

    pipeline = outlast.Pipeline("p", work, app=app, min_success_rate=0.5)
    first = pipeline.run(range(4), run_key="k")
    second = pipeline.run(range(6), run_key="k")
    assert first.id == second.id
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]
    assert second.counts == outlast.Counts(total=6, succeeded=5, dlq=1, source_exhausted=True)
    assert list(second.outputs()) == [0, 1, 3, 4, 5]


def test_a_source_in_another_order_is_recognised_by_its_keys(app):
    """Nothing is done twice, and nothing is left out, when the source comes back shuffled and longer."""
    seen = []
    pipeline = outlast.Pipeline("p", counted(seen), app=app)
    pipeline.run(range(1200), run_key="k")
    result = pipeline.run([*reversed(range(1200)), *range(1200, 1210)], run_key="k")
    assert sorted(seen) == list(range(1210))
    assert result.counts == outlast.Counts(total=1210, succeeded=1210, source_exhausted=True)


def test_a_pass_that_stopped_half_way_is_completed_by_the_next(app, tmp_path, on_terms):
    """Pause through the store: what runs may end, the rest is pending; the same key completes it and each item is done once."""
    seen = []
    reached = threading.Event()
    store = app.store

    @outlast.stage(concurrency=4)
    def work(item):
        seen.append(item)
        if item == 40:
            reached.set()
        return item

    class Source:
        def __init__(self, pause):
            self.pause = pause

        def __iter__(self):
            for number in range(2000):
                if number == 900 and self.pause:
                    assert reached.wait(20)
                    (run,) = store.runs(pipeline="p")
                    store.request_end(run.id, "pause")
                    heard.wait(20)
                yield number

    heard = threading.Event()
    pipeline = outlast.Pipeline("p", work, app=app)
    on_terms(ttl=0.4)  # so that the request is heard soon
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases.Heartbeat, "_beat", _beats_until(heard, leases.Heartbeat._beat))
        with capture_events() as events, pytest.raises(outlast.RunInterrupted) as paused:
            pipeline.run(Source(True), run_key="k", sink=tmp_path / "o.jsonl")
    result = paused.value.result
    assert result.status == "paused"
    counts = result.counts
    assert counts.total == counts.finished + counts.pending
    assert not counts.source_exhausted
    assert [event.name for event in events if event.name.startswith("run_")] == [
        "run_started",
        "run_paused",
        "run_finished",
    ]
    assert app.store.run(result.id).status == "paused"
    result = pipeline.run(range(2000), run_key="k", sink=tmp_path / "o.jsonl")
    assert (result.status, result.counts.succeeded) == ("completed", 2000)
    assert sorted(lines(tmp_path / "o.jsonl")) == list(range(2000))
    repeated = len(seen) - len(set(seen))
    assert repeated <= 4  # at most what was running


def _beats_until(heard, beat):
    """The heartbeat's own loop; it says when it has passed a request on."""

    def run(self):
        requested = self._requested

        def tell(request):
            requested(request)
            heard.set()

        self._requested = tell
        beat(self)

    return run


def test_a_cancelled_run_stays_cancelled(app):
    """A cancel ends it for good; the key cannot be used again."""
    pipeline = outlast.Pipeline("p", counted([]), app=app)
    result = pipeline.run([1], run_key="k")
    assert app.store.set_run(None, result.id, status="running")
    assert app.store.set_run(None, result.id, status="cancelled")
    with pytest.raises(outlast.ConfigurationError, match="was cancelled"):
        pipeline.run([1], run_key="k")


def test_changed_stages_stop_a_resume_unless_told_otherwise(app):
    """D-15: `version` says that code has changed; `on_change` says what that means for checkpoints."""
    calls = []

    def pipeline(version, *, broken):
        @outlast.stage(checkpoint=True, version=version)
        async def pay(item):
            calls.append((version, item))
            return item

        @outlast.stage(retry=ONCE)
        async def use(item):
            if broken:
                raise KeyboardInterrupt
            return item

        return outlast.Pipeline("p", pay, use, app=app)

    with pytest.raises(KeyboardInterrupt):
        pipeline("1", broken=True).run([1], run_key="k")
    with pytest.raises(outlast.ConfigurationError, match="stages have changed"):
        pipeline("2", broken=False).run([1], run_key="k")
    assert calls == [("1", 1)]
    with pytest.raises(KeyboardInterrupt):
        pipeline("2", broken=True).run([1], run_key="k", on_change="keep")
    assert calls == [("1", 1)]
    assert pipeline("2", broken=False).run([1], run_key="k", on_change="redo").counts.succeeded == 1
    assert calls == [("1", 1), ("2", 1)]


def test_who_works_on_a_run_is_not_disturbed(app):
    """A living process keeps its run, and the message says who it is; a dead one of this machine is not waited for."""
    pipeline = outlast.Pipeline("p", counted([]), app=app)
    pipeline.run([1], run_key="k")
    run = app.store.find_run("p", "k")
    lease = app.store.take_run(run.number, 0, leases.myself(), 20.0)
    with pytest.raises(outlast.LeaseLost, match=r"is busy: process .* works on it"):
        pipeline.run([1, 2], run_key="k")
    app.store.drop_lease(lease)
    host = leases.myself().partition(":")[0]
    assert app.store.take_run(run.number, 0, f"{host}:999999999:1", 600.0)
    assert pipeline.run([1, 2], run_key="k").counts.succeeded == 2


def test_a_lost_lease_stops_at_once_and_writes_nothing(app, tmp_path):
    """D-16, C-22: the fence is the token; what was not written under it is not finished."""
    store = app.store

    def source():
        for number in range(10_000):
            if number == 3000:
                run = store.find_run("p", "k")
                store.drop_lease(store.run_lease(run.number, 0))
                assert store.take_run(run.number, 0, "elsewhere:1:1", 600.0)
            yield number

    pipeline = outlast.Pipeline("p", counted([]), app=app)
    with capture_events() as events, pytest.raises(outlast.RunFailed, match="another process") as caught:
        pipeline.run(source(), run_key="k")
    result = caught.value.result
    assert (result.status, result.reason) == ("failed", "lease_lost")
    record = store.find_run("p", "k")
    assert record.status == "running"
    assert record.counts.succeeded == result.counts.succeeded
    assert "lease_lost" in [event.name for event in events]


# --- doors ---


def test_a_run_works_inside_of_a_running_loop(app):
    """As in a notebook: the sync door works in a thread of its own, streams too."""
    pipeline = outlast.Pipeline("p", counted([]), app=app)

    async def cell():
        result = pipeline.run(range(5))
        return result.counts.succeeded, sorted(item.value for item in pipeline.stream(range(5)))

    assert asyncio.run(cell()) == (5, [0, 1, 2, 3, 4])


def test_a_run_inside_of_a_running_loop_is_wound_down_when_it_is_interrupted(app):
    """Ctrl-C in a notebook: the cell ends when the run has, and not before; the run can be resumed."""

    def source():
        for number in itertools.count():
            if number == 1000:
                os.kill(os.getpid(), signal.SIGINT)
            yield number

    async def cell():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as a kernel has it
        outlast.Pipeline("p", counted([]), app=app).run(source(), run_key="k")

    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(cell())
    finally:
        signal.signal(signal.SIGINT, before)
    assert app.store.find_run("p", "k").status == "interrupted"


def test_a_stream_hands_out_results_as_they_finish(app):
    """Each when it is on record; also failures; a stream that is left is interrupted."""

    @outlast.stage(retry=ONCE)
    async def work(item):
        if item == 1:
            raise ValueError("one")
        return item * 2

    pipeline = outlast.Pipeline("p", work, app=app, min_success_rate=0.5)
    results = {item.key: item for item in pipeline.stream(range(3))}
    assert sorted((item.status, item.value) for item in results.values() if item.value is not None) == [
        ("succeeded", 0),
        ("succeeded", 4),
    ]
    assert [item.error for item in results.values() if item.status == "dlq"] == ["work: ValueError: one"]
    stream = pipeline.stream(iter(range(10**9)))
    assert next(stream).status in {"succeeded", "dlq"}
    stream.close()
    newest = app.store.runs(pipeline="p")[0]
    assert newest.status == "interrupted"
    assert app.store.run_lease(newest.number, 0) is None


def test_an_async_stream_and_a_cancelled_run(app):
    """`astream` in the caller's loop; a cancelled `arun` is interrupted, on record, and can be resumed."""
    started = asyncio.Event()

    @outlast.stage
    async def work(item):
        if item == 5:
            started.set()
            await asyncio.Event().wait()
        return item

    pipeline = outlast.Pipeline("p", work, app=app)

    async def main():
        found = [item.value async for item in pipeline.astream([1, 2, 3])]
        task = asyncio.create_task(pipeline.arun(range(10), run_key="k"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return found

    assert sorted(asyncio.run(main())) == [1, 2, 3]
    record = app.store.find_run("p", "k")
    assert record.status == "interrupted"
    assert record.counts.total == 10
    assert record.counts.succeeded <= 9


def test_a_failed_run_raises_with_its_result_unless_asked_not_to(app):
    """D-13: RunFailed has the result; `check=False` returns it."""

    @outlast.stage(retry=ONCE)
    async def work(item):
        raise ValueError("never")

    pipeline = outlast.Pipeline("p", work, app=app)
    with pytest.raises(outlast.RunFailed, match="0 of 2 items succeeded") as caught:
        pipeline.run([1, 2], run_key="k")
    assert caught.value.result.counts.dlq == 2
    result = pipeline.run([1, 2], run_key="k", check=False)
    assert (result.status, result.reason, result.outcome) == ("failed", "low_success_rate", "failure")
    (group,) = result.groups
    assert (group.stage, group.count, group.share) == ("work", 2, 1.0)


def half_odd(app, **options):
    """A pipeline that fails for every tenth item and for 3 and 13, each in its own way."""

    @outlast.stage(retry=ONCE)
    def work(item):
        if item % 10 == 0:
            raise ValueError("bad row")
        if item % 10 == 3:
            raise KeyError("odd")
        return item

    return outlast.Pipeline("half", work, app=app, **options)


def _run(pipeline, **options):
    return pipeline.run(range(8), run_key="k", **options)


def _arun(pipeline, **options):
    return asyncio.run(pipeline.arun(range(8), run_key="k", **options))


def _stream(pipeline, **options):
    return [*pipeline.stream(range(8), **options)]


def _astream(pipeline, **options):
    async def all_of_them():
        return [item async for item in pipeline.astream(range(8), **options)]

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("start", [_run, _arun, _stream, _astream])
def test_a_partial_success_raises_unless_asked_not_to(sqlite_app, start):
    """D-38, D-21: each way to start a run raises RunIncomplete with the counts, the top cause and the next command."""
    pipeline = half_odd(sqlite_app)
    with pytest.raises(outlast.RunIncomplete) as caught:
        start(pipeline)
    result, said = caught.value.result, str(caught.value)
    assert isinstance(caught.value, outlast.RunFailed)
    assert outlast.result_of(caught.value) is result
    assert (result.status, result.counts.succeeded, result.counts.dlq) == ("partial_success", 6, 2)
    assert "6 of 8 items succeeded, 2 became dead letters: less than 95%" in said
    assert f"1 of 2 failed with work: {result.groups[0].error_class}: " in said
    assert f"After the fix: outlast dlq replay --group {result.groups[0].id} --run {result.id[:12]}" in said
    assert "replay its dead letters after the fix" in caught.value.__notes__[0]
    sqlite_app.dead_letters.archive(reason="not wanted", ids=[one.id for one in sqlite_app.dead_letters.find()])
    unchecked = start(pipeline, check=False)
    assert len(unchecked) == 8 if isinstance(unchecked, list) else unchecked.status == "partial_success"


def test_the_bounds_decide_what_is_incomplete(sqlite_app):
    """D-38: equality is enough, one item less is not; below min_partial_rate the run has failed."""
    assert _run(half_odd(sqlite_app, min_success_rate=0.75)).status == "completed"
    with pytest.raises(outlast.RunIncomplete, match="less than 76%"):
        half_odd(sqlite_app, min_success_rate=0.76).run(range(8))
    with pytest.raises(outlast.RunFailed) as caught:
        half_odd(sqlite_app, min_partial_rate=0.76).run(range(8))
    assert type(caught.value) is outlast.RunFailed


def test_a_caller_who_collects_errors_gets_a_partial_success(sqlite_app):
    """D-38: `on_item_error="collect"` returns it, and still raises for a failed run; the result itself raises when asked."""
    pipeline = half_odd(sqlite_app)
    result = _run(pipeline, on_item_error="collect")
    assert (result.status, result.counts.failed) == ("partial_success", 2)
    assert asyncio.run(pipeline.arun(range(8), on_item_error="collect")).status == "partial_success"
    with pytest.raises(outlast.RunIncomplete, match=f"Inspect: outlast runs errors {result.id[:12]}"):
        result.raise_for_status()
    with pytest.raises(outlast.RunFailed):
        pipeline.run([0, 3], on_item_error="collect")


def test_a_replay_returns_only_if_every_letter_succeeded(sqlite_app):
    """D-36, D-38: the rates are for runs: one dead letter of thirty that fails again is no success."""
    fixed = set()

    @outlast.stage(retry=ONCE)
    def work(item):
        if item not in fixed:
            raise ValueError("bad row")
        return item

    pipeline = outlast.Pipeline("p", work, app=sqlite_app)
    pipeline.run(range(30), check=False)
    fixed |= {*range(29)}
    with pytest.raises(outlast.RunIncomplete, match="29 of 30 items succeeded, 1 failed again") as caught:
        pipeline.reprocess()
    assert (caught.value.result.status, caught.value.result.outcome) == ("partial_success", "partial")
    with pytest.raises(outlast.RunFailed, match="0 of 1 item succeeded, 1 failed again"):
        sqlite_app.dead_letters.replay(pipeline="p")
    fixed.add(29)
    assert pipeline.reprocess().status == "completed"


def test_a_partial_success_raises_without_its_store(sqlite_app):
    """D-38: the counts are known when the store cannot be read, and in another process."""

    def unreachable():
        raise OSError("no route to the store")

    result = _run(half_odd(sqlite_app), check=False)
    for elsewhere in (pickle.loads(pickle.dumps(result)), dataclasses.replace(result, _store=unreachable)):
        with pytest.raises(outlast.RunIncomplete, match=r"less than 95%\n"):
            elsewhere.raise_for_status()


def test_audit_may_be_of_failures_only(app):
    """C-27, S3-35: rows of attempts that succeeded at once can be left out."""
    pipeline = outlast.Pipeline("p", counted([]), app=app)
    full, small = pipeline.run(range(10)), pipeline.run(range(10), audit="failures")
    assert len(app.store.attempts(full._number)) == 10
    assert app.store.attempts(small._number) == []


def test_thirty_thousand_attempts_are_no_thirty_thousand_transactions(app):
    """C-27, S3-35: here of a thousand items with three attempts each: every attempt is a row, and a transaction has many of them."""
    retry = outlast.RetryPolicy(max_attempts=3, initial_delay=0, jitter=0)

    @outlast.stage(retry=retry, concurrency=64)
    async def work(item):
        if outlast.current().attempt < 3:
            raise ConnectionResetError("not yet")
        return item

    before = app.store._database.writes
    result = outlast.Pipeline("p", work, app=app).run(range(1000))
    written = app.store._database.writes - before
    assert len(app.store.attempts(result._number, limit=5000)) == 3000
    assert written < 300


def test_dead_letters_are_reprocessed_from_the_stage_that_failed(app):
    """S3-26, S3-27, S3-28, S4-22, C-14: with the stored input, as a run of its own; nothing is deleted; a failure is open again, with one replay more."""
    calls = []
    fixed = []

    @outlast.stage
    async def pay(item):
        calls.append(item)
        return {"n": item}

    @outlast.stage(retry=ONCE)
    async def label(row):
        if not fixed or (row["n"] == 3 and len(fixed) < 2):
            raise ValueError(f"row {row['n']}")
        return row["n"] * 10

    pipeline = outlast.Pipeline("p", pay, label, app=app)
    pipeline.run(range(4), run_key="k", check=False)
    assert {letter.stage for letter in app.dead_letters.find(pipeline="p")} == {"label"}
    fixed.append(True)
    calls.clear()
    result = pipeline.reprocess(stage="label", check=False)
    assert (result.counts.succeeded, result.counts.dlq) == (3, 1)
    assert sorted(result.outputs()) == [0, 10, 20]
    assert calls == []
    (again,) = app.dead_letters.find(pipeline="p")
    assert (again.status, again.replays, again.payload) == ("open", 1, {"n": 3})
    fixed.append(True)
    result = pipeline.reprocess(from_start=True)
    assert (result.counts.succeeded, calls) == (1, [3])
    assert list(app.dead_letters.find(pipeline="p")) == []
    assert len(list(app.dead_letters.find(pipeline="p", status="resolved"))) == 4
    counts = app.store.find_run("p", "k").counts
    assert (counts.succeeded, counts.dlq) == (4, 0)  # they have come home (D-25)


SCRIPT = """
import sys, threading
import outlast

@outlast.stage(concurrency=2)
def work(item):
    if item == 20:
        print("ready", flush=True)
        go.wait(20)
    return item

go = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), go.set()), daemon=True).start()
pipeline = outlast.Pipeline("p", work, app=outlast.App("a", store=sys.argv[1]))
try:
    pipeline.run(iter(range(10**9)), run_key="k")
    print("the next line: an upload of what there is", flush=True)
except BaseException as error:
    result = outlast.result_of(error)
    print(result.status, result.counts.total == result.counts.finished + result.counts.pending, flush=True)
    raise
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_run_that_can_be_resumed_and_says_how(number, code, tmp_path):
    """D-21: the running attempt may end; what is left and how to go on is told on standard error; then the program ends as the signal wants it."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, script, tmp_path / "s.db"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        process.stdin.write("\n")
        out, err = process.communicate(timeout=200)
    assert process.returncode == code, err
    assert out == "interrupted True\n"
    assert "interrupted: " in err
    assert "run it again with run_key='k' to go on" in err


# --- waiting and reading ---


def test_a_waiting_retry_gives_up_its_slot(app):
    """C-11, S3-19: with one slot, the others pass while one waits in process for its next attempt."""
    order = []

    @outlast.stage(concurrency=1, retry=outlast.RetryPolicy(max_attempts=2, initial_delay=20, jitter=0))
    async def work(item):
        order.append(item)
        if item == 0 and order.count(0) == 1:
            raise ConnectionResetError("later")
        return item

    with virtual_time():
        result = outlast.Pipeline("p", work, app=app).run(range(4))
    assert order == [0, 1, 2, 3, 0]
    assert result.counts.succeeded == 4


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_no_more_is_read_than_the_window_holds(app, sync):
    """Back-pressure: items that wait are bounded, however long the source is."""
    read = []

    def source():
        for number in range(1500):
            read.append(number)
            yield number

    ahead = []

    def work(item):
        ahead.append(len(read) - len(done))
        if outlast.current().attempt == 1:
            raise ConnectionResetError("later")
        done.append(item)
        return item

    async def awork(item):
        return work(item)

    done = []
    stage = outlast.stage(retry=outlast.RetryPolicy(max_attempts=2, initial_delay=5, jitter=0))(work if sync else awork)
    with virtual_time():
        result = outlast.Pipeline("p", stage, app=app).run(source())
    assert result.counts.succeeded == 1500
    assert max(ahead) <= 256 + 1


def test_the_idempotency_key_is_the_same_in_every_attempt_and_after_a_resume(app):
    """S3-33: that work may be done twice is for the stage to know; the key lets it say so to a service."""
    keys = []

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=2, initial_delay=0))
    async def work(item):
        keys.append(outlast.current().idempotency_key)
        if len(keys) == 1:
            raise ConnectionResetError("again")
        if len(keys) == 2:
            raise KeyboardInterrupt
        return item

    pipeline = outlast.Pipeline("p", work, app=app)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(["a"], run_key="k")
    pipeline.run(["a"], run_key="k")
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_progress_is_lines_on_standard_error(app, capsys):
    """At least one at the end; whoever wants another display is given values."""
    pipeline = outlast.Pipeline("p", counted([]), app=app)
    pipeline.run(range(10), progress=True)
    assert "10 of 10 (100 %), " in capsys.readouterr().err
    looks = []
    pipeline.run(range(10), watch=lambda view: looks.append(view.counts.finished))
    assert looks[-1] == 10


def test_a_result_and_its_error_can_be_pickled(app, tmp_path):
    """Without the way to the store, which elsewhere is another: reading from it is an error, and no empty answer."""

    @outlast.stage(retry=ONCE)
    async def work(item):
        raise ValueError("never")

    with pytest.raises(outlast.RunFailed) as caught:
        outlast.Pipeline("p", work, app=app).run([1])
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.result.counts == caught.value.result.counts
    for read in (
        lambda result: list(result.outputs()),
        lambda result: list(result.items()),
        lambda result: list(result.errors()),
        lambda result: result.write_errors(tmp_path / "errors.csv"),
        lambda result: result.groups,
    ):
        with pytest.raises(outlast.ConfigurationError, match=r"came from another process.* outlast runs show"):
            read(again.result)
    with pytest.raises(outlast.RunFailed):
        again.result.raise_for_status()
    assert "came from another process" in again.result._repr_html_()


def test_a_source_is_closed_when_no_more_is_read(app):
    """A generator may clean up, also if the run stops in the middle of it."""
    story = []

    def source():
        try:
            yield from range(10**6)
        finally:
            story.append("closed")

    async def asource():
        try:
            for number in range(10**6):
                yield number
        finally:
            story.append("closed too")

    @outlast.stage(retry=ONCE)
    async def work(item):
        raise ValueError("always the same")

    pipeline = outlast.Pipeline("p", work, app=app)
    pipeline.run(source(), check=False)
    assert story == ["closed"]
    asyncio.run(pipeline.arun(asource(), check=False))
    assert story == ["closed", "closed too"]


def test_other_engines_are_announced_as_missing(app):
    """A clear message instead of a silent fallback."""
    with pytest.raises(outlast.ConfigurationError, match="local"):
        outlast.Pipeline("p", counted([]), app=app).run([1], engine="ray")
