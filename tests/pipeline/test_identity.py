"""What makes a run itself, and what is told or refused when it goes on as another one."""

from __future__ import annotations

import functools
import json
import logging
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

import outlast
from captured import captured
from forked import Forked
from outlast.pipeline.identity import body_of, changed
from stores import sql

ROWS = [{"id": n, "other": f"o{n}"} for n in range(3)]


@outlast.stage
def passing(row):
    return row


def count(path):
    return len(Path(path).read_text().splitlines())


KEYS = {
    "content": None,
    "field": "id",
    "other field": "other",
    "function": lambda row: str(row["id"]),
    "function of the same": lambda row: f"{row['id']}",
    "function of another": lambda row: row["other"],
}


@pytest.mark.parametrize(
    ("first", "then", "refused"),
    [
        ("content", "field", "the content of an item, got: 'id'"),
        ("field", "content", "'id', got: the content of an item"),
        ("field", "other field", "'id', got: 'other'"),
        ("field", "field", None),
        ("field", "function", None),
        ("field", "function of another", "got: none of them for the first 3 items"),
        ("function", "field", None),
        ("function", "other field", "got: none of them"),
        ("function", "function of the same", None),
        ("function", "function of another", "got: none of them"),
        ("function", "content", "got: none of them"),
    ],
)
def test_another_item_key_is_refused_and_a_function_is_judged_by_its_keys(app, tmp_path, first, then, refused):
    """D-24, user B5: nothing is done again or written twice; the run stays what it was, and the message says the way out."""
    sink = tmp_path / "out.jsonl"
    pipeline = outlast.Pipeline("p", passing, app=app)
    result = pipeline.run(ROWS, run_key="k", item_key=KEYS[first], sink=sink)
    if refused is None:
        assert pipeline.run(ROWS, run_key="k", item_key=KEYS[then], sink=sink).counts.succeeded == 3
    else:
        for _ in range(2):  # what was refused once is no part of the run
            with pytest.raises(outlast.ConfigurationError, match=refused) as raised:
                pipeline.run(ROWS, run_key="k", item_key=KEYS[then], sink=sink)
        assert "give the same item_key, or another run_key" in str(raised.value)
        record = app.store.run(result.id)
        assert (record.status, record.why, record.counts.succeeded) == ("completed", result.why, 3)
        assert app.store.run_lease(record.number, 0) is None
        again = pipeline.run([*ROWS, {"id": 3, "other": "o3"}], run_key="k", item_key=KEYS[first], sink=sink)
        assert again.counts.succeeded == 4
    assert count(sink) == (3 if refused is None else 4)


def test_a_function_that_stays_the_same_may_meet_only_new_items(app):
    """D-24: a source that has nothing of what it had is no reason to doubt the keys; with another function it is."""
    pipeline = outlast.Pipeline("p", passing, app=app)
    key = KEYS["function"]
    pipeline.run(ROWS, run_key="k", item_key=key)
    result = pipeline.run([{"id": 7, "other": "o7"}], run_key="k", item_key=key)
    assert result.counts.succeeded == 4
    with pytest.raises(outlast.ConfigurationError, match="none of them for the first 1 items"):
        pipeline.run([{"id": 8, "other": "o8"}], run_key="k", item_key=KEYS["function of the same"])


def test_a_callable_sink_and_the_store_are_different_places(app):
    """D-24: outputs that went to a function are not in the store, and the other way round."""
    pipeline = outlast.Pipeline("p", passing, app=app)
    pipeline.run(ROWS, run_key="k", sink=lambda _: None)
    with pytest.raises(outlast.ConfigurationError, match="a callable, got: the store"):
        pipeline.run(ROWS, run_key="k")
    pipeline.run(ROWS, run_key="other")
    with pytest.raises(outlast.ConfigurationError, match="the store, got: a callable"):
        pipeline.run(ROWS, run_key="other", sink=lambda _: None)


def test_protection_is_no_part_of_a_run(app, tmp_path):
    """D-24: retries, guards, timeouts, concurrency and budgets may change; so may comments, layout and decorators."""

    def made(**options):
        def work(row):
            return row

        return outlast.stage(**options)(work)

    sink = tmp_path / "out.jsonl"
    outlast.Pipeline("p", made(), app=app).run(ROWS, run_key="k", sink=sink)
    other = made(retry=outlast.RetryPolicy(max_attempts=7), timeout=30, concurrency=3)
    result = outlast.Pipeline("p", other, app=app, failure_budget=0.5).run(ROWS, run_key="k", sink=sink)
    assert result.why == "3 of 3 items succeeded"


def test_a_changed_body_is_told_once(app, caplog):
    """D-24, user F5: finished items keep their outputs; version= decides; the sentence says so, in the next pass only."""

    def first():
        @outlast.stage
        def label(row):
            return row["id"]

        return label

    def second():
        @outlast.stage
        def label(row):
            """Mended."""
            return -row["id"]

        return label

    outlast.Pipeline("p", first(), app=app).run(ROWS, run_key="k")
    with caplog.at_level(logging.WARNING, "outlast"):
        result = outlast.Pipeline("p", second(), app=app).run([*ROWS, {"id": 3}], run_key="k")
    said = "the code of label has changed since, and what is finished keeps its outputs: say version="
    assert said in result.why
    assert [said in record.getMessage() for record in caplog.records] == [True]
    assert list(result.outputs()) == [0, 1, 2, -3]
    assert outlast.Pipeline("p", second(), app=app).run([*ROWS, {"id": 3}], run_key="k").why == "4 of 4 items succeeded"
    assert "changed" not in outlast.Pipeline("q", second(), app=app).run(ROWS, run_key="k").why


def nightly(app, *factors, failing=()):
    """A pipeline of one name whose stages are written in one way for each factor."""

    def make(place, factor):
        def work(row):
            if row["id"] in failing:
                raise ValueError("wrong")
            return row if factor else None

        work.__name__ = f"step{place}"
        return outlast.stage(work)

    return outlast.Pipeline("nightly", *(make(place, factor) for place, factor in enumerate(factors)), app=app)


def test_a_run_that_other_code_has_finished_is_refused(app, tmp_path):
    """D-24: with nothing left to do and every stage written in another way it is another program's run, every time."""
    sink = tmp_path / "out.jsonl"
    nightly(app, 1, 1).run(ROWS, run_key="2026-11-19", item_key="id", sink=sink)
    before, written = app.store.find_run("nightly", "2026-11-19"), sink.read_text()
    for _ in range(2):
        with pytest.raises(outlast.ConfigurationError) as refused:
            nightly(app, 2, 2).run(ROWS, run_key="2026-11-19", item_key="id", sink=sink)
        assert str(refused.value) == (
            "The run '2026-11-19' of nightly has nothing left to do, and the code of all its stages differs from the code that "
            "finished it. Another program may use the same names. Give another run_key, or the pipeline another name. "
            'To accept what is finished, give on_change="keep" (--on-change keep).'
        )
        after = app.store.find_run("nightly", "2026-11-19")
        assert (after.status, after.why, after.identity, after.counts) == (
            before.status,
            before.why,
            before.identity,
            before.counts,
        )
        assert sink.read_text() == written
    # Each way out is one, and the first program still has its run.
    assert nightly(app, 1, 1).run(ROWS, run_key="2026-11-19", item_key="id", sink=sink).status == "completed"
    assert nightly(app, 2, 2).run(ROWS, run_key="another").counts.succeeded == 3
    assert (
        nightly(app, 3, 3).run(ROWS, run_key="2026-11-19", item_key="id", sink=sink, on_change="keep").status
        == "completed"
    )


def test_changed_code_with_open_work_or_an_unchanged_stage_is_a_warning(app):
    """D-24: one stage as it was, one more item, or a dead letter that is replayed: the run goes on."""
    nightly(app, 1, 1).run(ROWS, run_key="one stage")
    assert "the code of step0 has changed since" in nightly(app, 2, 1).run(ROWS, run_key="one stage").why
    nightly(app, 1, 1).run(ROWS, run_key="one more")
    more = nightly(app, 2, 2).run([*ROWS, {"id": 7}], run_key="one more")
    assert (more.counts.succeeded, "has changed since" in more.why or "have changed since" in more.why) == (4, True)
    nightly(app, 1, failing=[1]).run(ROWS, run_key="letters", check=False)
    assert nightly(app, 2).reprocess().counts.succeeded == 1
    nightly(app, 1, failing=[1]).run(ROWS, run_key="more letters", check=False)
    with pytest.raises(
        outlast.ConfigurationError, match=r"Replay its dead letters with reprocess\(\) or outlast dlq replay\."
    ):
        nightly(app, 2).run(ROWS, run_key="more letters")


def test_a_command_that_meets_a_run_of_other_code_exits_with_2(app, tmp_path, monkeypatch):
    """D-24, at the command line: refused with the option that accepts it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text('{"id": 1}\n')
    said = []
    for body in ("row", "{**row}"):
        text = f"import outlast\n@outlast.stage\ndef clean(row):\n    return {body}\nnightly = outlast.Pipeline('nightly', clean)\n"
        (tmp_path / "shop.py").write_text(text)
        for option in ((), ("--on-change", "keep")):
            words = [
                "run",
                "shop.py:nightly",
                "--input",
                "in.jsonl",
                "--run-key",
                "k",
                "--store",
                "sqlite:///cli.db",
                *option,
            ]
            with Forked([sys.executable, "-m", "outlast.cli", *words], stdout=PIPE, stderr=PIPE, text=True) as process:
                err = process.communicate()[1]
            said.append((process.returncode, "--on-change keep" in err))
    assert said == [(0, False), (0, False), (2, True), (0, False)]


def test_a_version_that_was_said_is_not_asked_for(app):
    """With another version and `on_change="keep"` the stage is told as another version; a stage without one as other code."""

    def make(version, factor):
        @outlast.stage(version=version)
        def label(row):
            return row["id"] * factor

        @outlast.stage
        def double(number):
            return number * factor

        return outlast.Pipeline("p", label, double, app=app)

    make("1", 1).run(ROWS, run_key="k")
    assert make("2", 2).run(ROWS, run_key="k", on_change="keep").why == (
        "3 of 3 items succeeded; the version of label has changed since, and what is finished keeps its outputs"
        "; the code of double has changed since, and what is finished keeps its outputs: say version= to tell the old from the new"
    )


def test_a_version_is_told_though_the_code_is_the_same(app):
    """D-24: `version` decides, also where the function is written as before."""

    def make(version):
        @outlast.stage(version=version)
        def label(n: int) -> int:
            return n

        return outlast.Pipeline("p", label, app=app)

    make("1").run(range(3), run_key="a")
    assert make("2").run(range(4), run_key="a", on_change="keep").why == (
        "4 of 4 items succeeded; the version of label has changed since, and what is finished keeps its outputs"
    )


def gone_through(rows):
    yield from rows


async def awaited(rows):
    for row in rows:
        yield row


@pytest.mark.parametrize("source", [list, gone_through, awaited])
@pytest.mark.parametrize("wrong", ["idd", lambda row: row["idd"]], ids=["field", "function"])
@pytest.mark.parametrize("sink", [None, "out.jsonl"])
def test_a_run_of_which_nothing_was_read_binds_nothing(app, tmp_path, source, wrong, sink):
    """D-24: a mistyped item_key is invalid input, said before anything is begun; mended, the same run_key is taken, with other stages too."""

    @outlast.stage
    def other(row: dict) -> dict:
        return row

    where = None if sink is None else tmp_path / sink
    pipeline = outlast.Pipeline("p", passing, app=app)
    for _ in range(2):
        with pytest.raises(outlast.ConfigurationError, match="in the first item"):
            pipeline.run(source(ROWS), run_key="k", item_key=wrong, sink=where, check=False)
    if source is not awaited:
        assert app.store.runs() == []
    result = outlast.Pipeline("p", other, app=app).run(source(ROWS), run_key="k", item_key="id", sink=where)
    record = app.store.run(result.id)
    assert (result.counts.succeeded, [mark.name for mark in record.stages]) == (3, ["other"])
    with pytest.raises(outlast.ConfigurationError, match="expected the item_key of the run 'k' to stay the same, 'id'"):
        outlast.Pipeline("p", other, app=app).run(source(ROWS), run_key="k", item_key="other", sink=where)


def test_a_later_item_without_a_key_is_known_by_its_content_and_says_so(app, caplog):
    """D-24, D-26: it stops nobody; the item carries a warning, and the log says it once."""
    rows = [{"id": 1}, {"no": 2}, {"id": None}]
    with caplog.at_level(logging.WARNING, "outlast"):
        result = outlast.Pipeline("p", passing, app=app).run(rows, item_key="id")
    warned = "it has no key 'id', and is known by its content"
    assert [(len(item.key), item.warnings) for item in result.items()] == [(1, ()), (32, (warned,)), (32, (warned,))]
    said = [record.getMessage() for record in caplog.records if "content" in record.getMessage()]
    assert said == [f"item 1 of the source: {warned}; so is every other one without it"]


def test_a_source_is_closed_if_its_first_item_is_refused(app):
    """A generator that was begun to look at its first item is not left open."""
    closed = []

    def rows():
        try:
            yield {"id": 1}
        finally:
            closed.append(True)

    with pytest.raises(outlast.ConfigurationError):
        outlast.Pipeline("p", passing, app=app).run(rows(), item_key="idd")
    assert closed == [True]


def test_a_run_from_before_this_was_recorded_is_accepted_and_recorded_now(app):
    """D-24: what it was begun with is not known; from then on it is."""
    pipeline = outlast.Pipeline("p", passing, app=app)
    pipeline.run(ROWS, run_key="k", item_key="id")
    sql(app.store, "update outlast_runs set identity = null")
    pipeline.run(ROWS, run_key="k", item_key="id")
    with pytest.raises(outlast.ConfigurationError, match="'id', got: 'other'"):
        pipeline.run(ROWS, run_key="k", item_key="other")


def test_items_that_share_a_key_are_told_apart_by_their_order(app):
    """user B5: `1`, `1#2`; a resume knows them as long as they come in the same order."""
    pipeline = outlast.Pipeline("p", passing, app=app)
    rows = [{"id": 1, "v": "a"}, {"id": 1, "v": "b"}]
    result = pipeline.run(rows, run_key="k", item_key="id")
    assert [(item.key, item.value["v"]) for item in result.items()] == [("1", "a"), ("1#2", "b")]
    assert pipeline.run([*rows, {"id": 1, "v": "c"}], run_key="k", item_key="id").counts.succeeded == 3


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (["1", "1", "1#2"], ["1", "1#2", "1#2#2"]),
        (["1#2", "1", "1", "1", "1#3"], ["1#2", "1", "1#3", "1#4", "1#3#2"]),
        (["a\0", "a\ufffd", "a\0"], ["\ufffd'a\\x00'", "a\ufffd", "\ufffd'a\\x00'#2"]),
        (["\ud800", "\ud801", "?"], ["\ufffd'\\ud800'", "\ufffd'\\ud801'", "?"]),
        (["\ufffd'a\\x00'", "a\0", "\ufffd"], ["\ufffd\"\\ufffd'a\\\\x00'\"", "\ufffd'a\\x00'", "\ufffd"]),
        (["é\n", "@1", "x#2"], ["é\n", "@1", "x#2"]),
    ],
)
def test_different_keys_are_never_taken_for_one_item(app, names, known):
    """Numbers do not meet real keys, and what no database can hold is coded: after every cut of the first pass each item is done once."""
    for cut in range(len(names) + 1):
        done = []

        @outlast.stage(concurrency=1)
        def work(place, done=done):
            done.append(place)
            return place

        pipeline = outlast.Pipeline(f"p{cut}", work, app=app)
        for places in (range(cut), range(len(names)), range(len(names))):
            result = pipeline.run(places, run_key="k", item_key=lambda place: names[place])
        assert (done, [item.key for item in result.items()]) == ([*range(len(names))], known)


def test_run_keys_that_no_database_can_hold_are_different_runs(app):
    """NUL and U+FFFD, and two halves of surrogate pairs, are four runs, each found by its key and by the one on record."""
    pipeline = outlast.Pipeline("p", passing, app=app)
    keys = ["\0", "\ufffd", "\ud800", "\ud801"]
    ids = [pipeline.run(ROWS, run_key=key).id for key in keys]
    found = [app.store.find_run("p", key) for key in keys]
    again = [app.store.find_run("p", run.run_key) for run in found]
    assert ([run.id for run in found], [run.id for run in again], len(set(ids))) == (ids, ids, 4)


def test_lines_that_cannot_be_read_and_are_alike_are_two_items(app, tmp_path):
    """The second of them is counted and is a dead letter, also if the pass before has read only the first."""
    file = tmp_path / "in.jsonl"
    pipeline = outlast.Pipeline("p", passing, app=app, failure_budget=1)
    counted = []
    for lines in (["{", "1"], ["{", "1", "{"], ["{", "1", "{"]):
        file.write_text("\n".join(lines))
        counts = pipeline.run(file, run_key="k", check=False).counts
        counted.append((counts.total, counts.succeeded, counts.dlq))
    assert counted == [(2, 1, 1), (3, 1, 2), (3, 1, 2)]


def test_alike_lines_of_a_run_of_an_older_version_are_known_again(app, tmp_path):
    """They were on record with one key, and are not done again."""
    file = tmp_path / "in.jsonl"
    file.write_text("{\n1\n{\n")
    pipeline = outlast.Pipeline("p", passing, app=app, failure_budget=1)
    pipeline.run(file, run_key="k", check=False)
    sql(app.store, "update outlast_items set key = replace(key, '#2', '')")
    counts = pipeline.run(file, run_key="k", check=False).counts
    assert (counts.total, counts.succeeded, counts.dlq) == (3, 1, 2)


def test_items_that_the_source_does_not_give_again_are_called_so(app):
    """user 3.9: pending, and why."""

    @outlast.stage(concurrency=1)
    async def work(item):
        if item == 4 and len(runners) == 1:
            runners[0].end("interrupted")
        return item

    pipeline = outlast.Pipeline("p", work, app=app, min_success_rate=0.0)
    with captured() as runners:
        pipeline.run(range(200), run_key="k", check=False)
        result = pipeline.run(range(50), run_key="k")
    assert (result.counts.succeeded, result.counts.pending) == (50, 150)
    assert "150 are pending (read by an earlier pass, and not given again by the source)" in result.why


def test_a_body_is_what_is_written_in_it():
    """Not comments, layout, docstring and decorators; but what it encloses, and what a partial adds."""

    def one(x):
        # a comment
        return x + 1

    def same():
        def one(x):
            return x + 1

        return one

    def scaled(by):
        return lambda x: x * by

    assert body_of(one) == body_of(same())
    assert body_of(scaled(2)) != body_of(scaled(3))
    assert body_of(functools.partial(pow, 2)) is None
    assert body_of(functools.partial(one, 2)) != body_of(functools.partial(one, 3)) != body_of(one)
    assert body_of(functools.partial(one, x=2)) != body_of(functools.partial(one, x=3)) != body_of(one)
    assert body_of(functools.wraps(one)(lambda *args: -one(*args))) == body_of(one)
    assert body_of(json.loads) is not None
    assert body_of(eval(compile("lambda x: x", "nowhere", "eval"))) is not None


def test_a_stage_that_is_new_has_not_changed():
    """D-24: told are the stages whose body was another one before; what was not there, or could not be looked at, was none."""
    before = {"code": {"clean": "1", "label": "1"}}
    assert changed(before, {"code": {"clean": "1", "label": "2", "check": "1"}}) == ["label"]
    assert changed(None, before) == []
