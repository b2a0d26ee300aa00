"""Reports: what a run came to, in numbers that agree with its rows, on both databases."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter, defaultdict
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outlast
from outlast import report
from outlast.report.gather import spread
from outlast.report.stories import Moment
from outlast.store.records import Changes, StageMark
from outlast.testing import virtual_time
from reports import EVIL, LENIENT, STEADY, hostile, scripted
from stores import attempt, item, prepared


def test_a_scripted_run_is_reported_exactly(app):
    """S3-22, S3-23, U-15: retries needed, errors by rank, reliability of stages, time, cost, amplification: every number."""
    result = scripted(app)
    found = report.of(result)
    assert found.verdict == "4 of 6 items succeeded. 1 failed in label: ConnectionResetError."
    assert found.run.pipeline == "reviews"
    assert found.complete
    assert found.unknown == ()
    assert found.counts == report.model.CountFacts(
        total=6, succeeded=4, skipped=1, dlq=1, failed=0, pending=0, degraded=0, source_exhausted=True, success_rate=0.8
    )
    assert found.retries == report.model.Retries(none=2, one=2, two=2, more=0)  # a repair is one too
    parse, label = found.stages
    assert (parse.entered, parse.attempts, parse.first_try, parse.skipped, parse.dead) == (6, 6, 5, 1, 0)
    assert parse.took == report.model.Spread(p50=0.015625, p95=0.015625, p99=0.015625, max=0.015625, total=0.09375)
    # fine 1, once 2, twice 3, long 1 and repaired 1, never 3
    assert (label.entered, label.attempts, label.failures) == (5, 11, 7)
    assert (label.first_try, label.after_retry, label.skipped, label.dead) == (1, 3, 0, 1)
    assert label.first_try_rate == 0.2
    assert label.retries == report.model.Retries(none=1, one=2, two=2, more=0)
    assert label.retried_rate == 0.8
    assert label.took == report.model.Spread(p50=0.25, p95=0.25, p99=0.25, max=0.25, total=2.75)
    assert found.amplification == report.model.Amplification(calls=17, units=11, ratio=17 / 11, target=1.3)
    (wait,) = found.time.waits
    assert (wait.kind, wait.name, wait.count) == ("retry", None, 5)
    assert 7.0 <= wait.seconds <= 9.0  # 1 + 1 + 2 + 1 + 2, each until the attempt of another was over
    assert found.time.work == pytest.approx(2.84375)
    assert found.time.total == pytest.approx(found.time.work + wait.seconds + found.time.slots)
    assert [(each.error_type, each.error_class, each.count, each.saved, each.dead) for each in found.errors] == [
        ("ConnectionResetError", "connection_reset", 3, 0, 1),
        ("TimeoutError", "timeout", 3, 2, 0),
        ("PermanentFailure", "validation_error", 1, 1, 0),
    ]
    assert [round(each.share, 6) for each in found.errors] == [round(3 / 7, 6), round(3 / 7, 6), round(1 / 7, 6)]
    (cost,) = found.cost
    assert (cost.name, cost.total, cost.per_succeeded) == ("tokens", 1100.0, 275.0)
    # failed: once 1, twice 2, long 1, never 3; of these never's are those of a dead item
    assert (cost.on_failed_attempts, cost.on_dead_items, cost.wasted) == (700.0, 300.0, 700.0)
    (group,) = found.letters
    assert (group.count, group.open, group.share, group.sample_keys) == (1, 1, 1.0, ("never",))
    replay = f"outlast dlq replay --group {group.group} --run {found.run.id[:12]} --target FILE:NAME"
    several = len(app.store.apps()) > 1
    assert group.replay == (f"{replay} --app {app.name}" if several else replay)
    assert found.warnings == (
        report.model.Warned(message="input of label repaired by shorten after PermanentFailure", count=1),
    )
    assert {each.key for each in found.slowest} == {"fine", "empty", "once", "twice", "long", "never"}
    assert found.slowest[0].took == max(each.took for each in found.slowest)
    assert sum(bucket.finished for bucket in found.throughput.buckets) == 6
    assert found.passes == 1
    (only,) = found.pass_list
    assert (only.finished_before, only.status) == (0, result.status)
    assert found.left_out == {"errors": 0, "warnings": 0, "letters": 0}


# Every name in the JSON of a report, so that none is lost without somebody taking it out here, too.
NAMES = """
format verdict complete passes unknown
run: id pipeline run_key kind status reason why started_at finished_at took worked
counts: total succeeded skipped dlq failed pending degraded source_exhausted success_rate
letters: group stage error_class error_type message count share open sample_keys first_seen_at last_seen_at look replay
retries: none one two more
stages: name version checkpoint entered attempts failures first_try first_try_rate after_retry fell_back skipped dead mended unfinished \
  retried_rate waited
stages.retries: none one two more
stages.took: p50 p95 p99 max total
amplification: calls units ratio target
time: total work work_share slots slots_share
time.waits: kind name text seconds count longest share
errors: group stage error_class error_type message count share first_seen_at last_seen_at saved dead
throughput: width per_second
throughput.buckets: at succeeded skipped dead
cost: name total per_succeeded on_failed_attempts on_dead_items wasted wasted_share
pass_list: started_at finished_before ended_at status why
slowest: key position status stage attempts took
warnings: message count
stop_reasons: exhausted
left_out: errors warnings letters
"""


def named(document, path=""):
    """The names of a document, below the names of what they are in; of a list those of its first element."""
    found = {}
    for name, value in document.items():
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict) and inner:
            found |= named(inner, f"{path}.{name}".strip("."))
        else:
            found.setdefault(path, set()).add(name)
    return found


def differences(value, read, path=""):
    """Where a document says something else than the value that it was made of."""
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value) if field.name != "stored"}
    if isinstance(value, dict) or hasattr(value, "items"):
        assert [*value] == [*read], path
        return [each for name in value for each in differences(value[name], read[name], f"{path}.{name}")]
    if isinstance(value, list | tuple):
        assert len(value) == len(read), path
        return [each for one, other in zip(value, read, strict=True) for each in differences(one, other, f"{path}[]")]
    value = value.isoformat() if isinstance(value, datetime) else value
    return [] if (type(value), value) == (type(read), read) else [(path, value, read)]


def test_a_report_is_json_with_the_same_names(app):
    """Every field of the values with what it holds, and nothing that JSON cannot say."""
    found = report.of(scripted(app))
    read = json.loads(json.dumps(found.to_dict()))
    lines = [line.rpartition(":") for line in NAMES.strip().splitlines()]
    assert named(read) == {path: set(names.split()) for path, _, names in lines}
    assert differences(found, read) == []
    assert datetime.fromisoformat(read["run"]["started_at"]).tzinfo == UTC
    assert read["stages"][1]["took"]["p95"] == 0.25
    assert read == json.loads(json.dumps(report.read(app, "night", pipeline="reviews").to_dict()))


def test_every_field_is_in_the_reference():
    """Programs that read the JSON have a page to look it up in."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "runs.md").read_text()
    shown = set(re.findall(r"`(\w+)`", page))
    values = [thing for thing in (*vars(report.model).values(), report.Story, Moment) if is_dataclass(thing)]
    assert len(values) > 15
    assert {field.name for value in values for field in fields(value)} - shown == set()


def test_with_failures_only_on_record_the_report_says_what_is_not_known(app):
    """What succeeded has no rows: the report says so, and still has all there is."""
    found = report.of(scripted(app, audit="failures"))
    assert not found.complete
    assert "Attempts that succeeded are not on record" in found.unknown[0]
    parse, label = found.stages
    assert (parse.entered, parse.attempts, parse.took, parse.first_try, parse.after_retry) == (
        6,
        None,
        None,
        None,
        None,
    )
    assert (label.entered, label.dead, label.failures) == (5, 1, 7)
    assert label.retries == report.model.Retries(none=1, one=2, two=2, more=0)
    assert (found.amplification.calls, found.amplification.ratio) == (None, None)
    assert [each.count for each in found.time.waits] != []
    assert [(each.error_type, each.saved, each.dead) for each in found.errors] == [
        ("ConnectionResetError", 0, 1),
        ("TimeoutError", 2, 0),
        ("PermanentFailure", 1, 0),
    ]
    assert found.html().count("not on record") >= 1


# -- whatever happens, the numbers agree with the rows ---------------------------------------------------------------------------------

fates = st.sampled_from(["fine", "once", "twice", "never", "skip", "late_skip", "permanent", "snooze", "degraded"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@settings(max_examples=15)
@given(plays=st.lists(st.tuples(fates, fates), max_size=25), audit=st.sampled_from(["all", "all", "failures"]))
def test_the_numbers_agree_with_the_rows(request, database, plays, audit):
    """S3-23, U-15: over random runs; each figure is what counting the rows one by one gives."""
    with tempfile.TemporaryDirectory() as folder, virtual_time() as time:
        store = prepared(Path(folder, "s.db")) if database == "sqlite" else request.getfixturevalue("postgres").dsn
        app = outlast.App(f"tests-{uuid4().hex}", store=store)
        tries = Counter()

        def work(stage, number):
            time.advance(0.001 * (number % 7 + 1))
            fate = plays[number][stage]
            tries[stage, number] += 1
            tried = tries[stage, number]
            outlast.current().spend(usd=0.5)
            if fate == "skip" or (fate == "late_skip" and tried == 2):
                raise outlast.Skip("unwanted")
            if fate == "snooze" and tried == 1:
                raise outlast.Snooze(3)
            if (fate in {"once", "late_skip"} and tried == 1) or (fate == "twice" and tried <= 2) or fate == "never":
                raise TimeoutError(f"no answer from {number}")
            if fate == "permanent":
                raise ValueError(f"bad {number}")
            return outlast.Degraded(number, "so so") if fate == "degraded" else number

        @outlast.stage(retry=STEADY, checkpoint=True)
        async def first(number):
            return work(0, number)

        @outlast.stage(retry=STEADY, concurrency=2)
        def second(number):
            return work(1, number)

        pipeline = outlast.Pipeline("p", first, second, app=app, **LENIENT)
        result = pipeline.run(range(len(plays)), item_key=str, check=False, audit=audit)
        found = report.of(result)
        items = {row.seq: row for row in app.store.items(result._number, limit=1000)}
        rows = app.store.attempts(result._number, limit=10_000)
        assert found.counts.total == found.counts.succeeded + found.counts.skipped + found.counts.dlq == len(plays)
        needed = Counter(row.seq for row in rows if row.outcome == "retrying")
        retries = Counter(min(3, needed[seq]) for seq in items)
        assert (found.retries.none, found.retries.one, found.retries.two, found.retries.more) == tuple(
            retries[number] for number in range(4)
        )
        troubled = defaultdict(list)
        for row in rows:
            if row.outcome != "success":
                troubled[row.seq, row.stage].append(row)
        assert sum(group.count for group in found.errors) == sum(len(each) for each in troubled.values())
        dead = {unit for unit in troubled if items[unit[0]].status == "dlq" and items[unit[0]].stage == unit[1]}
        assert sum(group.dead for group in found.errors) == len(dead) == found.counts.dlq
        assert sum(group.saved for group in found.errors) == len(troubled) - len(dead)
        for place, stage in enumerate(found.stages):
            ended = Counter(items[seq].status for seq in items if items[seq].stage == place)
            assert (stage.skipped, stage.dead) == (ended["skipped"], ended["dlq"])
            assert stage.entered == sum(items[seq].stage >= place for seq in items)
            if found.complete and plays:
                assert stage.entered == stage.first_try + stage.after_retry + stage.skipped + stage.dead
                assert (stage.fell_back, stage.mended, stage.unfinished) == (0, 0, 0)
                mine = [row for row in rows if row.stage == place]
                assert stage.attempts == len(mine)
                if mine:
                    assert stage.took.max == max(row.took_us for row in mine) / 1e6
                    assert stage.took.total == pytest.approx(sum(row.took_us for row in mine) / 1e6)
        waited = Counter()
        for row in (*rows, *items.values()):
            waited.update(row.waits or {})
        assert {wait.kind: round(wait.seconds * 1e6) for wait in found.time.waits} == dict(waited)
        assert sum(bucket.finished for bucket in found.throughput.buckets) == len(plays)
        assert sum(group.count for group in found.letters) == found.counts.dlq
        for cost in found.cost:
            assert cost.total == pytest.approx(sum(row.spent.get("usd", 0.0) for row in items.values()))
            assert cost.wasted <= cost.total + 1e-9
        assert found.complete == (len(rows) >= sum(row.attempts for row in items.values()))
        assert found.complete or audit == "failures"
        json.dumps(found.to_dict())
        assert found.html()
        app.store.close()


def test_percentiles_are_off_by_half_a_percent_at_most(app):
    """Durations are counted in classes of three digits."""
    run = app.store.open_run("p", "k", (StageMark("only"),))
    lease = app.store.take_run(run.number, 0, "me", 60)
    durations = [int(1.007**n) for n in range(1, 3000)]
    rows = [attempt(seq)._replace(took_us=took) for seq, took in enumerate(durations)]
    items = [item(seq, stage=0, attempts=1)._replace(took_us=took) for seq, took in enumerate(durations)]
    app.store.write(lease, Changes(items=items, attempts=rows, read=len(rows)))
    (stage,) = report.read(app, run.id).stages
    for share, value in ((0.5, stage.took.p50), (0.95, stage.took.p95), (0.99, stage.took.p99)):
        exact = durations[int(-(-share * len(durations) // 1)) - 1] / 1e6
        assert abs(value - exact) <= 0.005 * exact + 1e-6
    assert stage.took.max == durations[-1] / 1e6
    assert spread([]) is None


def test_a_run_that_was_resumed_tells_its_passes(app):
    """Each start is told with what it found and how it ended; a killed one has no end."""
    seen = []

    @outlast.stage(concurrency=1)
    async def work(number):
        seen.append(number)
        return number

    def source(end):
        yield from range(end)
        if end < 6:
            raise OSError("disk is gone")

    pipeline = outlast.Pipeline("p", work, app=app, **LENIENT)
    pipeline.run(source(3), run_key="k", item_key=str, check=False)
    pipeline.run(source(6), run_key="k", item_key=str)
    found = report.read(app, "k")
    assert found.passes == 2
    assert [(each.finished_before, each.status) for each in found.pass_list] == [(0, "failed"), (3, "completed")]
    assert "Passes" in found.html()


def test_an_item_enters_a_stage_once_however_often_the_run_goes_on(app):
    """What a pass did and another one does again is two calls and one unit: no more items enter a stage than there are."""
    store = app.store
    run = store.open_run("p", "k", (StageMark("parse"), StageMark("label")))
    lease = store.take_run(run.number, 0, "me", 60)
    cut = {"outcome": "retrying", "error_class": "unknown", "error_type": "InterruptedError", "delay_us": 0}
    # Item 0 ends in the first pass; 1 is cut short at the second stage, 2 before it.
    rows = [attempt(seq, stage=0, pass_=lease.token) for seq in range(3)]
    rows += [attempt(0, stage=1, pass_=lease.token), attempt(1, stage=1, pass_=lease.token, error="cut", **cut)]
    store.write(lease, Changes(items=[item(0, stage=1, attempts=2)], attempts=rows, read=3))
    store.drop_lease(lease)
    lease = store.take_run(run.number, 0, "another", 60)
    rows = [attempt(seq, stage=stage, pass_=lease.token) for seq in (1, 2, 3) for stage in (0, 1)]
    ended = [item(1, stage=1, attempts=4), item(2, stage=1, attempts=3), item(3, stage=1, attempts=2)]
    store.write(lease, Changes(items=ended, attempts=rows, read=4, source_exhausted=True))
    found = report.read(app, "k")
    parse, label = found.stages
    assert (found.passes, found.complete) == (2, True)
    assert (parse.entered, parse.attempts, parse.first_try, parse.after_retry) == (4, 6, 4, 0)
    assert (label.entered, label.attempts, label.first_try, label.after_retry) == (4, 5, 3, 1)
    assert (parse.first_try_rate, label.first_try_rate) == (1.0, 0.75)
    assert (found.amplification.calls, found.amplification.units, found.amplification.ratio) == (11, 8, 11 / 8)


def test_an_empty_run_and_one_that_is_not_over_are_reported(app):
    """No items, no stages' rows, nothing to divide by."""

    @outlast.stage
    async def work(number):
        return number

    empty = report.of(outlast.Pipeline("p", work, app=app).run([]))
    assert empty.verdict == "There were no items."
    assert empty.amplification.ratio is None
    assert empty.throughput.buckets == ()
    run = app.store.open_run("p", "open", (StageMark("work"),))
    begun = report.read(app, run.id)
    assert begun.verdict == "The run was interrupted and can be resumed. There were no items."  # nobody holds it
    assert begun.run.took is None
    for each in (empty, begun):
        assert "<h1>" in each.html()
        json.dumps(each.to_dict())


def test_a_report_of_a_run_under_way_is_of_one_instant(app):
    """Whatever is written meanwhile, its numbers agree with each other."""
    seen = []

    @outlast.stage(concurrency=2)
    def work(number):
        if number % 50 == 0:
            seen.append(report.read(app, "k"))
        return number

    outlast.Pipeline("p", work, app=app).run(range(1000), run_key="k", item_key=str)
    assert len(seen) == 20
    for found in seen:
        counts, retries = found.counts, found.retries
        finished = counts.succeeded + counts.dlq
        assert found.run.status == "running"
        assert finished == retries.none == sum(bucket.finished for bucket in found.throughput.buckets)
        assert finished == found.stages[0].first_try


def test_a_run_or_an_item_that_is_not_there_is_named(app):
    """Bad input gets a clear error."""
    with pytest.raises(outlast.ConfigurationError, match=r"expected the id or the key of a run, got: 'nope'"):
        report.read(app, "nope")
    for pipeline in ("a", "b"):
        app.store.open_run(pipeline, "same", (StageMark("s"),))
    with pytest.raises(outlast.ConfigurationError, match=r"a, b have one called 'same': name the pipeline"):
        report.read(app, "same")
    assert report.read(app, "same", pipeline="b").run.pipeline == "b"
    with pytest.raises(outlast.ConfigurationError, match=r"the key or the position of an item of same, got: 'x'"):
        report.story(app, "same", "x", pipeline="a")


def test_letters_whose_sink_only_a_program_has_are_replayed_from_python(app):
    """No command is proposed that would be refused."""

    @outlast.stage
    def first(number):
        if number == 3:
            raise ValueError("broken")
        return number

    pipeline = outlast.Pipeline("p", first, app=app, **LENIENT)
    result = pipeline.run(range(40), sink=lambda rows: None)
    (group,) = report.of(result).letters
    assert group.replay == f"app.dead_letters.replay(group={group.group!r}, run={result.id!r}, sink=...)"


# -- after replays ----------------------------------------------------------------------------------------------------------------------


def test_what_a_replay_has_mended_is_no_failure_any_more(app):
    """The sentence, the groups and the letters of a run speak of what is still failed, here and in the run's own result."""
    mended = []

    @outlast.stage
    def first(number):
        if number % 4 == 1 and not mended:
            raise ValueError("first is broken")
        return number

    @outlast.stage
    def second(number):
        if number % 10 == 0 and len(mended) < 2:
            raise KeyError("second is broken")
        return number

    pipeline = outlast.Pipeline("p", first, second, app=app, **LENIENT)
    pipeline.run(range(40), run_key="k")
    mended.append("first")
    pipeline.reprocess(stage="first")
    found = report.read(app, "k")
    assert found.verdict == ("36 of 40 items succeeded. 4 failed, all of them in second: KeyError.")
    assert [(group.stage, group.count, group.open, group.share) for group in found.letters] == [("second", 4, 4, 1.0)]
    assert found.left_out["letters"] == 0
    result = pipeline.run(range(40), run_key="k")
    assert [(group.count, group.stage) for group in result.groups] == [(4, "second")]
    # Put away is not mended: the items are dead letters as before.
    app.dead_letters.archive(reason="nobody wants them", stage="second")
    assert [(group.count, group.stage) for group in result.groups] == [(4, "second")]
    assert "4 failed, all of them in second: KeyError" in report.read(app, "k").verdict
    app.dead_letters.unarchive(stage="second")
    mended.append("second")
    pipeline.reprocess()
    again = pipeline.run(range(40), run_key="k")
    assert (again.counts.dlq, list(again.groups)) == (0, [])
    after = report.read(app, "k")
    assert (after.verdict, after.letters) == ("All 40 items succeeded.", ())
    assert "ValueError at" not in after.html().partition("What went wrong")[2].partition("</section>")[0]


def test_a_line_that_was_mended_leaves_the_record_complete(app, tmp_path):
    """It was no attempt of the run that could not read it: everything that the run did is on record all the same."""
    (tmp_path / "in.csv").write_text("id,a\n1,x\n2\n3,z\n")

    @outlast.stage
    def work(row):
        return row

    pipeline = outlast.Pipeline("p", work, app=app, **LENIENT)
    pipeline.run(tmp_path / "in.csv", run_key="k")
    (letter,) = app.dead_letters.find()
    app.dead_letters.edit(letter.id, {"id": "2", "a": "y"}, reason="typo")
    pipeline.reprocess()
    found = report.read(app, "k")
    assert (found.complete, found.unknown) == (True, ())
    assert (found.stages[0].entered, found.stages[0].attempts, found.stages[0].first_try) == (2, 2, 2)
    story = report.story(app, "k", 1)
    assert [moment.kind for moment in story.moments] == ["read", "replay", "attempt", "end"]
    assert story.attempts == 1


# -- one item's way ---------------------------------------------------------------------------------------------------------------------


def test_an_items_story_has_every_attempt_and_every_wait(app):
    """S3-22: each attempt with its error, each wait with its reason, warnings, spend and the end, in order."""
    scripted(app)
    told = report.story(app, "night", "twice")
    kinds = [(moment.kind, moment.stage, moment.outcome, moment.why) for moment in told.moments if moment.why != "slot"]
    assert kinds == [
        ("read", None, None, None),
        ("attempt", "parse", "success", None),
        ("attempt", "label", "retrying", None),
        ("wait", None, None, "retry"),
        ("attempt", "label", "retrying", None),
        ("wait", None, None, "retry"),
        ("attempt", "label", "success", None),
        ("end", "label", "succeeded", None),
    ]
    assert told.spent == {"tokens": 300.0}
    assert told.worked == pytest.approx(0.765625)
    assert told.took == pytest.approx(
        sum(moment.seconds or 0 for moment in told.moments)
    )  # nothing is left unexplained
    lines = [line[14:] for line in told.lines()]
    assert lines[0] == "read from the source, at position 3"
    assert (
        "attempt 1 at label failed after 0.2 s with TimeoutError (timeout): no answer in 1 s; to be tried again in 1 s; spent 100 tokens"
        in lines
    )
    assert lines[-1].startswith("succeeded after 4 attempts in")
    json.dumps(told.to_dict())
    never = report.story(app, "night", 5)
    assert (never.key, never.status) == ("never", "dlq")
    assert f"outlast dlq show {never.letter[:12]}" in never.lines()[-1]
    repaired = report.story(app, "night", "long")
    assert "warning: input of label repaired by shorten after PermanentFailure" in [
        line[14:] for line in repaired.lines()
    ]
    skipped = report.story(app, "night", "empty")
    assert skipped.lines()[-1].endswith("skipped at parse: nothing to do")


def test_a_repaired_attempt_is_tried_again_and_counts_as_a_retry(app):
    """Its story does not say that it was not tried again, and the report counts it in both places."""
    result = scripted(app)
    lines = [moment.text for moment in report.story_of(result, "long").moments if moment.stage == "label"]
    assert lines[0].endswith("26 characters are too long; to be tried again at once; spent 100 tokens")
    assert lines[1].startswith("attempt 2 at label came through")
    assert not any("not tried again" in line for line in lines)
    label = report.of(result).stages[1]
    assert label.after_retry == 3  # once, twice, long
    assert label.retries == report.model.Retries(none=1, one=2, two=2, more=0)  # and never, which needed two in vain


def test_a_story_goes_on_through_every_replay(app):
    """Each attempt of each replay, which replay that was, and the end as it is now."""
    broken = [True, True]

    @outlast.stage
    def first(number):
        return number

    @outlast.stage
    def second(number):
        outlast.current().spend(tokens=10)
        if broken:
            raise ValueError("no" if len(broken) == 2 else "not yet")
        return number

    pipeline = outlast.Pipeline("p", first, second, app=app, **LENIENT)
    # Every key has the others' in it.
    pipeline.run(range(120), run_key="k", item_key=lambda number: "1" * (number + 1), check=False)
    broken.pop()
    (letter,) = [each for each in app.dead_letters.find() if each.item_key == "1"]
    again = app.dead_letters.replay(ids=[letter.id], check=False)
    told = report.story(app, "k", 0)
    assert told.letter == letter.id
    assert [(each.kind, each.stage, each.outcome) for each in told.moments] == [
        ("read", None, None),
        ("attempt", "first", "success"),
        ("attempt", "second", "failed"),
        ("replay", None, "dlq"),
        ("attempt", "second", "failed"),
        ("replay", None, "dlq"),
        ("end", "second", "dlq"),
    ]
    texts = [each.text for each in told.moments]
    assert texts[3] == f"its dead letter was replayed by {again.run_key}"
    assert texts[5] == "it failed again: second: ValueError: not yet"
    assert texts[6].startswith(
        "is still a dead letter after 3 attempts: second: ValueError: not yet; not tried again: permanent; spent 20 tokens in all"
    )
    broken.clear()
    final = app.dead_letters.replay(ids=[letter.id])
    told = report.story(app, "k", 0)
    assert (told.status, told.attempts, told.spent) == ("succeeded", 4, {"tokens": 30.0})
    assert [each.kind for each in told.moments] == [
        *("read", "attempt", "attempt", "replay", "attempt", "replay", "replay", "attempt", "end"),
    ]
    assert told.moments[-1].text.startswith(
        f"succeeded after 4 attempts, in the replay {final.run_key}; spent 30 tokens in all; look: outlast dlq show {letter.id[:12]}"
    )
    assert told.moments[-1].at >= told.moments[-2].at
    assert told.lines()


def test_the_story_of_an_item_that_is_not_finished_ends_at_its_checkpoint(app):
    """What is on record of it is told, and that a resume goes on."""

    @outlast.stage(checkpoint=True)
    async def first(number):
        return number

    @outlast.stage
    async def second(number):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outlast.Pipeline("p", first, second, app=app).run(["a"], run_key="k", item_key=str)
    told = report.story(app, "k", "a")
    assert told.status is None
    assert [moment.kind for moment in told.moments] == ["read", "attempt", "checkpoint", "end"]
    assert told.moments[-1].text == "not finished: a resume goes on with it"


def test_an_item_that_ended_while_it_waited_tells_the_wait(app):
    """The last wait stands on the item's own row."""
    limit = outlast.Limit("vendor", rates={"calls": outlast.Rate(1, per=100)}, max_wait=30)

    @outlast.stage(guard=outlast.Guard("g", retry=STEADY, limit=limit))
    async def work(number):
        return number

    with virtual_time():
        outlast.Pipeline("p", work, app=app, **LENIENT).run(range(2), run_key="k", item_key=str)
    told = report.story(app, "k", "1")
    (wait,) = [moment for moment in told.moments if moment.kind == "wait"]
    assert wait.why == "limit vendor"
    assert "turn at the limit vendor; no attempt on record came after it" in wait.text
    assert report.read(app, "k").time.waits[0].text == "turn at the limit vendor"


# -- hostile texts ----------------------------------------------------------------------------------------------------------------------


def test_hostile_texts_are_texts_and_secrets_stay_inside(app):
    """Nothing on record can become markup, and what looks like a secret is masked; payloads are not there at all."""
    run = hostile(app.store)
    found = report.read(app, run.id)
    told = report.story(app, run.id, 0)
    page = found.html()
    for text in (
        page,
        json.dumps(found.to_dict()),
        json.dumps(told.to_dict()),
        "\n".join(told.lines()),
        found._repr_html_(),
    ):
        assert "hunter2" not in text
        assert "payload" not in text
    for text in (page, found._repr_html_()):
        assert "<script" not in text
        assert "<img" not in text
        assert "<b>stage" not in text
        assert "\x00" not in text
        assert "\x1b" not in text
        text.encode()
    assert page.count("<title>") >= 1
    assert report.story(app, run.id, EVIL).position == 0


def test_the_fates_of_a_stage_add_up(app, tmp_path):
    """Fallbacks, refused outputs, replays that mend or skip, and items that are not finished: each that entered is somewhere, once."""
    broken = [True]
    once = outlast.RetryPolicy(max_attempts=2, initial_delay=0.001)
    guard = outlast.Guard("one", retry=once, fallback=lambda n: n, fallback_on=["timeout"])

    @outlast.stage(guard=guard, concurrency=1)
    async def one(n):
        if n % 10 == 3:
            raise TimeoutError("always")
        if n % 10 == 4 and outlast.current().attempt == 1:
            raise ConnectionResetError("once")
        if n == 5:
            raise outlast.Skip("not wanted")
        return n

    @outlast.stage(
        guard=outlast.Guard("two", retry=once, fallback=lambda n: -n, fallback_on=["timeout"]), concurrency=1
    )
    async def two(n):
        if n == 23:
            raise TimeoutError("always")
        if broken and n in {6, 7, 8}:
            raise ValueError("six")
        if n == 7:
            raise outlast.Skip("not wanted either")
        return object() if n == 9 else n

    pipeline = outlast.Pipeline("p", one, two, app=app, min_success_rate=0.1)
    pipeline.run(range(30), run_key="k", item_key=str)

    def fates():
        names = ("entered", "first_try", "after_retry", "fell_back", "skipped", "dead", "mended", "unfinished")
        return [tuple(getattr(stage, name) for name in names) for stage in report.read(app, "k").stages]

    assert fates() == [(30, 23, 3, 3, 1, 0, 0, 0), (29, 24, 0, 1, 0, 4, 0, 0)]
    broken.clear()
    pipeline.reprocess(check=False)
    assert fates() == [(30, 23, 3, 3, 1, 0, 0, 0), (29, 24, 0, 1, 0, 1, 3, 0)]


def test_the_time_of_an_item_covers_its_replays(app):
    """What it took is at least what its attempts worked; a run that was started twice says what its passes took without the pause."""
    broken = [True]

    @outlast.stage
    def work(n: int) -> int:
        if broken:
            raise ValueError("broken")
        return n + sum(range(100_000))

    pipeline = outlast.Pipeline("p", work, app=app)
    pipeline.run([1], run_key="k", check=False)
    broken.clear()
    pipeline.reprocess()
    story = report.story(app, "k", 0)
    assert story.took >= story.worked > 0
    pipeline.run([1], run_key="k")
    facts = report.read(app, "k").run
    assert 0 < facts.worked < facts.took
