"""Watching a run: what is seen is what is there, in a terminal, in lines, and not at all where nobody watches."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import FrozenInstanceError

import pytest
from rich.console import Console

import outlast
from outlast.components import expected_items
from outlast.display import watch as watching
from outlast.display.snapshot import CostLine, Edge, Snapshot, Speed, StageLine, View
from outlast.display.telling import protections
from outlast.display.watch import Lines, Watch
from outlast.pipeline.view import BudgetView
from outlast.testing import virtual_time
from tables import table
from terminal import SOURCE, Terminal


@pytest.fixture
def app(tmp_path):
    made = outlast.App("tests", store=str(tmp_path / "outlast.db"))
    yield made
    made.store.close()


@contextmanager
def closing_hook(hook):
    stop = outlast.observe.subscribe(hook)
    try:
        yield
    finally:
        stop()


# --- what is seen of a run ---


def test_a_look_at_a_run_that_waits_for_everything(app):
    """An open circuit with its next probe, a line at a limit, waiting retries, all at their stages, on the run's own clock (S3-05, S0-26)."""
    limit = outlast.Limit("llm", concurrency=8, rates={"calls": outlast.Rate(6, per=60)})
    breaker = outlast.CircuitBreaker("shop", failure_threshold=2, reset_timeout=300)
    later = outlast.RetryPolicy(max_attempts=3, initial_delay=100, max_delay=None, jitter=0)
    budget = outlast.RetryBudget("llm", reserve=20)
    views, looks, failed = [], [], set()

    def fail_once(what):
        if what not in failed:
            failed.add(what)
            raise ConnectionResetError("once")

    @outlast.stage
    async def parse(number):
        if number == 11:
            raise outlast.Skip("no order")
        return number

    @outlast.stage(guard=outlast.Guard("llm", retry=later, limit=limit, retry_budget=budget), concurrency=4)
    async def ask(number):
        if number in {1, 4}:
            fail_once(("ask", number))
        if number in {0, 7}:
            looks.append(views[0].look())
        outlast.current().spend(usd=0.5)
        return number

    @outlast.stage(guard=outlast.Guard("shop", retry=later, breaker=breaker))
    async def pay(number):
        if number in {2, 3}:
            fail_once(("pay", number))
        return number

    @outlast.stage
    async def ship(number):
        return number

    def watch(view):
        if not views:
            views.append(View(view, lambda: 12))

    pipeline = outlast.Pipeline("orders", parse, ask, pay, ship, app=app, spend_limit={"usd": 100})
    with virtual_time(seed=1):
        result = pipeline.run(
            range(12), run_key="today", watch=watch, sink=app.store_url.replace("outlast.db", "out.jsonl")
        )
        last = views[0].look()
    look = looks[1]
    assert (look.status, look.elapsed, look.expected, look.left) == ("running", 70.0, 12, None)
    assert look.stages == (
        StageLine(name="parse", done=11, skipped=1),
        StageLine(name="ask", done=5, running=1, waiting=2, throttled=3, behind=("limit llm", "budget llm")),
        StageLine(name="pay", done=1, waiting=4, behind=("breaker shop",)),
        StageLine(name="ship", done=1),
    )
    assert look.edges == (
        Edge(start="source", end="parse", count=12),
        Edge(start="parse", end="ask", count=11),
        Edge(start="ask", end="pay", count=5),
        Edge(start="pay", end="ship", count=1),
        Edge(start="ship", end="out.jsonl", count=1),
    )
    # Eight calls in 70 s.
    speed = Speed(name="calls", amount=6.0, per=60.0, used=7 / 70 * 60)
    (limit,), (breaker,) = look.limits, look.breakers
    assert (limit.name, limit.under_way, limit.width, limit.concurrency, limit.waiting) == ("llm", 1, 8, 8, 3)
    assert look.speeds == {"llm": (speed,)}
    assert (breaker.name, breaker.state, breaker.since, breaker.probe_in) == ("shop", "open", 40.0, 260.0)
    assert look.budgets == (BudgetView(name="llm", available=18 + 1),)
    assert (last.status, last.why, last.finished) == ("completed", result.why, 12)
    assert [(stage.done, stage.retries) for stage in last.stages] == [(11, 0), (11, 2), (11, 2), (11, 0)]
    assert last.costs == (CostLine(name="usd", spent=5.5, an_item=5.5 / 12, limit=100.0),)


def test_a_watcher_gets_values(app):
    """What was seen once stays as it was; the same pass at a later instant is asked for, and nothing of it ends the run."""
    views = []

    @outlast.stage
    def same(item):
        return item

    result = outlast.Pipeline("p", same, app=app).run(range(10), run_key="k", watch=views.append)
    first, last = views[0], views[-1]
    assert (first.status, first.counts.finished, first.over) == ("running", 0, False)
    assert (last.status, last.counts, last.why, last.over) == ("completed", result.counts, result.why, True)
    assert first.now() == last
    assert [(stage.name, stage.done, stage.running) for stage in last.stages] == [("same", 10, 0)]
    with pytest.raises(FrozenInstanceError):
        first.status = "paused"


def test_a_watcher_is_told_how_many_there_are(app, tmp_path):
    """As a display is: by the length of a list, by a source's own count, by the lines of a file, and by the end."""
    file = tmp_path / "in.jsonl"
    file.write_text("1\n2\n3\n")

    class Three(outlast.components.Source):
        def items(self):
            return iter(range(3))

        def count(self):
            return 3

    @outlast.stage
    async def same(item):
        for thread in threading.enumerate():
            if thread.name == "outlast-count":
                thread.join()
        seen.append(views[0].now().expected)
        return item

    pipeline = outlast.Pipeline("p", same, app=app)
    for source in ([1, 2, 3], Three(), str(file), range(3)):
        views, seen = [], []
        pipeline.run(source, watch=views.append)
        assert (seen[0], views[-1].expected) == (3, 3)
    views, seen = [], []
    asyncio.run(pipeline.arun([1, 2, 3], watch=views.append))
    assert views[0].expected == 3
    views, seen = [], []
    pipeline.run(iter([1, 2, 3]), watch=views.append)
    assert (views[0].expected, views[-1].expected) == (None, 3)


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_watcher_that_raises_does_not_touch_the_run(app, caplog, at_the_end):
    """Whenever it is: one warning with the type, no more calls, and the run ends as it would have."""
    calls, mended, ran = [], [], []

    def watch(view):
        calls.append(view)
        if view.over or not at_the_end:
            raise KeyError("mine")

    @outlast.stage(retry=None)
    async def same(item):
        if not mended:
            raise ValueError("not yet")
        return item

    pipeline = outlast.Pipeline("p", same, app=app, failure_budget=1.0, min_partial_rate=0.0, min_success_rate=0.0)
    runs = [
        lambda: pipeline.run(range(4), run_key="k1", watch=watch),
        lambda: asyncio.run(pipeline.arun(range(4), run_key="k2", watch=watch)),
        lambda: pipeline.reprocess(run=ran[0].id, run_key="k3", watch=watch),
        lambda: app.dead_letters.replay(run=ran[1].id, pipeline="p", run_key="k4", watch=watch),
    ]
    for number, run in enumerate(runs, 1):
        caplog.clear(), calls.clear()
        mended.extend([True] if number == 3 else [])
        ran.append(run())
        assert ran[-1].status == "completed"
        assert [view.over for view in calls].count(True) == (1 if at_the_end else 0)
        assert len(calls) == 1 or at_the_end
        said = [record.getMessage() for record in caplog.records if "watch" in record.getMessage()]
        assert said == [f"the watch function of run k{number} raised KeyError: 'mine'. It is called no more"]


def test_a_watcher_must_be_a_function_that_answers(app):
    """What cannot be called and what has to be awaited are refused before anything begins."""

    async def later(view):
        pass

    @outlast.stage
    def same(item):
        return item

    pipeline = outlast.Pipeline("p", same, app=app)
    for wrong, said in ((5, "got: 5"), (later, "got: the coroutine function")):
        for run in (
            lambda watch: pipeline.run([1], watch=watch),
            lambda watch: asyncio.run(pipeline.arun([1], watch=watch)),
            lambda watch: pipeline.reprocess(watch=watch),
            lambda watch: app.dead_letters.replay(pipeline="p", watch=watch),
        ):
            with pytest.raises(
                outlast.ConfigurationError, match=f"expected watch to be a function of a RunView.*{said}"
            ):
                run(wrong)
    assert app.store.runs() == []


def test_passes_count_the_starts_of_a_run(app):
    """1, 2, 3 in views, in the rows of attempts and in the run; numbers of an older version are not used twice."""
    views = []

    @outlast.stage
    def same(item):
        return item

    pipeline = outlast.Pipeline("p", same, app=app)
    for start in (1, 2, 3):
        run = pipeline.run(range(start), run_key="k", watch=views.append)
        assert views[-1].pass_number == app.store.run(run.id).passes == start
    number = app.store.run(run.id).number
    assert [attempt.pass_ for attempt in app.store.attempts(number)] == [1, 2, 3]
    with app.store._database.writing() as tx:
        tx.execute("update outlast_attempts set pass = 5 where run = ? and pass = 3", number)
    pipeline.run(range(4), run_key="k", watch=views.append)
    assert [attempt.pass_ for attempt in app.store.attempts(number)] == [1, 2, 5, 6]
    assert (views[-1].pass_number, app.store.run(run.id).passes) == (6, 4)


def test_a_line_that_cannot_be_read_is_dead_at_no_stage(app, tmp_path):
    """A report has it under the source; a view counts it with all others, and no stage has it."""
    file, views = tmp_path / "in.jsonl", []
    file.write_text("1\n{no\n3\n")

    @outlast.stage(retry=None)
    def same(item):
        if item == 3:
            raise ValueError("no threes")
        return item

    pipeline = outlast.Pipeline("p", same, app=app, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0)
    result = pipeline.run(file, watch=views.append)
    (stage,) = views[-1].stages
    assert (result.counts.dlq, views[-1].counts.dlq, stage.dead, stage.done) == (2, 2, 1, 1)


def test_what_a_watcher_sees_of_limits_and_breakers_is_a_value_too(app):
    """A view that is kept shows them as they were, and nothing in it acts on the run."""
    limit = outlast.Limit("llm", concurrency=3, rates={"calls": outlast.Rate(1000, per=1, burst=1000)})
    breaker, budget = outlast.CircuitBreaker("svc"), outlast.RetryBudget("b", reserve=8)
    views, inside = [], []

    @outlast.stage(guard=outlast.Guard("g", limit=limit, breaker=breaker, retry_budget=budget))
    async def ask(number):
        inside.append(views[0].now())
        return number

    result = outlast.Pipeline("p", ask, app=app, spend_limit={"usd": 9}).run(range(5), watch=views.append)
    first, last = views[0], views[-1]
    breaker.isolate("by hand")
    assert result.status == "completed"
    assert (first.limits["llm"].taken["calls"], last.limits["llm"].taken["calls"]) == (0, 5)
    assert (inside[0].limits["llm"].under_way, last.limits["llm"].under_way) == (1, 0)
    assert (first.limits["llm"].width, first.limits["llm"].rates["calls"].amount) == (3, 1000)
    assert (last.breakers["svc"].state, last.breakers["svc"].isolated) == (outlast.CircuitState.CLOSED, None)
    assert last.now().breakers["svc"].isolated == "by hand"
    assert (first.budgets["b"].available, last.budgets["b"].available) == (8, 9)
    stage = last.stages[0]
    assert (stage.limit, stage.breaker, stage.budget) == ("llm", "svc", "b")
    assert not hasattr(last.breakers["svc"], "isolate")
    for mapping in (last.limits, last.breakers, last.budgets, last.spent, last.spend_limit, last.limits["llm"].taken):
        with pytest.raises(TypeError):
            mapping["x"] = 1


def test_retries_before_a_checkpoint_are_counted(app):
    """The record of an item is written in parts, and none of them is forgotten (S3-05)."""
    failed, views = set(), []

    @outlast.stage(checkpoint=True)
    async def ask(number):
        if number not in failed:
            failed.add(number)
            raise ConnectionResetError("once")
        return number

    @outlast.stage
    async def keep(number):
        return number

    with virtual_time():
        outlast.Pipeline("p", ask, keep, app=app).run(range(5), watch=lambda view: views or views.append(View(view)))
    look = views[0].look()
    assert [(stage.done, stage.retries) for stage in look.stages] == [(5, 5), (5, 0)]
    assert [stage.queued for stage in views[0].run.now().stages] == [0, 0]


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("on_item_error", ["dlq", "collect"])
@pytest.mark.parametrize("sync", [False, True])
def test_rows_that_a_sink_refuses_are_dead_in_the_picture_too(app, tmp_path, sync, on_item_error, batch):
    """D-15: a run that is watched ends as any other, its numbers are those of the books, and no success is told of what failed (S3-05)."""
    place, views, told = tmp_path / "rows.db", [], []
    with closing(sqlite3.connect(place)) as table:
        table.execute("create table rows (id integer primary key, n integer check (n % 3 <> 1))")

    def row(n):
        return {"id": n, "n": n}

    async def asynchronous(n):
        return row(n) if batch is None else [row(one) for one in n]

    def synchronous(n):
        return row(n) if batch is None else [row(one) for one in n]

    work = outlast.stage(**({} if batch is None else {"batch": batch}))(synchronous if sync else asynchronous)
    pipeline = outlast.Pipeline("p", work, app=app, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0)
    with closing_hook(told.append):
        result = pipeline.run(
            range(8),
            sink=outlast.Table(f"sqlite:///{place}", "rows"),
            watch=lambda view: views or views.append(View(view)),
            on_item_error=on_item_error,
        )
    look = views[0].look()
    assert (result.status, result.counts.succeeded, result.counts.finished) == ("completed", 5, 8)
    assert [(stage.done, stage.dead, stage.retries) for stage in look.stages] == [(5, 3, 0)]
    names = Counter(event.name for event in told)
    assert (names["item_succeeded"], names["item_failed"]) == (5, 3)
    with closing(sqlite3.connect(place)) as table:
        assert [n for (n,) in table.execute("select n from rows order by n")] == [0, 2, 3, 5, 6]


def test_a_letter_whose_replay_the_sink_refuses_stays_open(app, tmp_path):
    """D-23: there is no second letter, and the first says what was wrong this time."""
    place, broken = tmp_path / "rows.db", [True]
    with closing(sqlite3.connect(place)) as table:
        table.execute("create table rows (id integer primary key, n integer check (n % 3 <> 1))")

    @outlast.stage(retry=None)
    async def work(n):
        if broken:
            raise ValueError("not yet")
        return {"id": n, "n": n}

    pipeline = outlast.Pipeline("p", work, app=app, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0)
    pipeline.run(range(4), check=False)
    broken.clear()
    result = pipeline.reprocess(sink=outlast.Table(f"sqlite:///{place}", "rows"), check=False)
    assert (result.counts.succeeded, result.counts.dlq) == (3, 1)
    letters = {letter.payload: (letter.status, letter.error) for letter in app.dead_letters.find(status=None)}
    assert {payload: status for payload, (status, _) in letters.items()} == {
        0: "resolved",
        1: "open",
        2: "resolved",
        3: "resolved",
    }
    assert "refuses it" in letters[1][1]


def test_a_service_that_asks_for_a_pause_is_seen(app):
    """D-12: for how long the gate is closed, for all who share the limit."""

    class Busy(Exception):
        status_code = 429
        headers = {"Retry-After": "30"}  # noqa: RUF012 - as libraries have it

    limit = outlast.Limit("llm", concurrency=2)
    looks, views, refused = [], [], []

    @outlast.stage(guard=outlast.Guard("llm", retry=outlast.presets.stage, limit=limit), concurrency=4)
    async def ask(number):
        if not refused:
            refused.append(number)
            raise Busy("too many")
        return number

    @outlast.stage
    async def beside(number):
        return number

    def watch(view):
        views or views.append(View(view))

    with virtual_time() as time:
        pipeline = outlast.Pipeline("p", ask, beside, app=app)
        with closing_hook(lambda event: event.name == "throttled" and looks.append(views[0].look())):
            pipeline.run(range(8), watch=watch)
        assert time.now >= 30
    assert looks[0].limits[0].paused == 30.0
    assert [calm for kind, _, _, calm in protections(looks[0]) if kind == "limit"] == [False]


def test_a_replay_begins_where_it_failed(app):
    """The way of its items leads from the source to that stage, and the stages before have nothing to do with it (S3-28, S4-23)."""
    mended, views = [], []

    @outlast.stage
    def parse(number):
        return number

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=1))
    def label(number):
        if number % 2 and not mended:
            raise ValueError("odd")
        return number

    pipeline = outlast.Pipeline("p", parse, label, app=app, min_success_rate=0.5)
    pipeline.run(range(10))
    mended.append(True)

    def watch(view):
        if not views or views[-1].run.id != view.id:
            views.append(View(view))

    app.dead_letters.replay(pipeline="p", canary=2, watch=watch)
    (whole,) = (view.look() for view in views)  # the canaries are the first of its items
    assert (whole.expected, whole.finished, whole.before) == (5, 5, 0)
    assert [(stage.name, stage.done) for stage in whole.stages] == [("parse", 0), ("label", 5)]
    assert [(edge.start, edge.end, edge.count) for edge in whole.edges] == [
        ("source", "parse", 0),
        ("parse", "label", 0),
        ("label", "the store", 5),
        ("source", "label", 5),
    ]


def test_a_display_that_breaks_does_not_break_the_run(app, caplog):
    """The run is worth more than its picture (S3-06)."""

    class Broken:
        every = 0.001

        def open(self):
            raise OSError("no terminal")

        def show(self, now):
            raise AssertionError("never shown after that")

        close = show

    @outlast.stage
    def same(item):
        return item

    with Watch(Broken()) as watch:
        result = outlast.Pipeline("p", same, app=app).run(range(10), watch=watch)
    assert result.status == "completed"
    assert [record.getMessage() for record in caplog.records] == ["the run is not shown any more: no terminal"]


# --- lines ---


def test_lines_become_rarer(capsys):
    """One after 5 s, after an hour one a minute: a log of a long run stays readable (S3-05)."""
    screen = Lines(keep=False)
    for second in range(4000):
        screen.show(Snapshot(pipeline="p", run_key="k", status="running", elapsed=float(second)))
    screen.close(Snapshot(pipeline="p", run_key="k", status="completed", elapsed=4000.0, why="all is done"))
    assert 75 <= len(capsys.readouterr().err.splitlines()) <= 110


def test_without_a_terminal_progress_is_lines_with_one_at_the_end(app, capsys):
    """What it came to, in the same words (S3-05, S3-07)."""

    @outlast.stage
    def same(item):
        return item

    pipeline = outlast.Pipeline("p", same, app=app)
    result = pipeline.run(range(10), run_key="k", progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("p k: 10 of 10 (100 %), ")
    assert lines[0].endswith(" items/s, 10 succeeded")
    assert lines[1] == "p k: completed, 10 of 10 items succeeded"
    assert repr(result) == "<RunResult 'p' 'k' completed: 10 of 10 items succeeded>"


@table(
    ("source", "expected"), [([1, 2], 2), (range(5), 5), (iter([1]), None), ("nothing/*.jsonl", None), (object(), None)]
)
def test_how_many_there_are_is_asked_of_the_source(source, expected):
    """A list knows it, a stream does not, and of files that are not there nothing is promised (S3-05)."""
    assert expected_items(source)() == expected


def test_files_are_counted_beside_the_run(tmp_path):
    """Packed ones too; until they are counted nobody knows (S3-05)."""
    with gzip.open(tmp_path / "in.jsonl.gz", "wt") as file:
        file.write("1\n2\n\n3\n")
    ask = expected_items(tmp_path / "in.jsonl.gz")
    for thread in threading.enumerate():
        if thread.name == "outlast-count":
            thread.join()
    assert ask() == 3


def test_who_is_not_watched_pays_nothing(tmp_path):
    """No thread, no room of the display, no count of stages (S3-05)."""
    program = """
import sys, threading
import outlast

@outlast.stage
def same(item):
    assert not [t for t in threading.enumerate() if t.name == "outlast-watch"]
    return item

outlast.Pipeline("p", same).run(range(3))
assert not [name for name in sys.modules if name.startswith(("outlast.display", "rich"))]
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(SOURCE)}, check=True)


# --- in a terminal ---

PROGRAM = """
import asyncio, sys
import outlast
from outlast.display import watch

frames = []
show = watch.Terminal.show
def counted(self, now):
    show(self, now)
    frames.append(now)
watch.Terminal.show = counted

@outlast.stage
def parse(row):
    return row

@outlast.stage(retry=outlast.RetryPolicy(max_attempts=1), concurrency=4)
async def label(row):
    if row["text"] == "wait":
        print("waits for a signal", flush=True)
        await asyncio.Event().wait()
    while row["text"] == "last" and len(frames) < 4:
        await asyncio.to_thread(frames.__len__)
    if row["text"] == "bad":
        raise ValueError("cannot label this")
    return row

pages = outlast.Pipeline("pages", parse, label, min_success_rate=0.5)
"""


def wrote(folder, *texts: str, name: str = "app.py", more: str = "") -> None:
    (folder / name).write_text(PROGRAM + more)
    rows = [json.dumps({"id": number, "text": text}) for number, text in enumerate(texts)]
    (folder / "in.jsonl").write_text("".join(f"{row}\n" for row in rows))


RUN = 'pages.run("in.jsonl", run_key="today", item_key="id", sink="out.jsonl", progress=True)\n'


def test_progress_in_a_terminal_is_a_picture_that_stays(tmp_path):
    """Drawn in place, no line wraps, nothing moves; the last one says what the run came to (S3-05, S3-07)."""
    wrote(tmp_path, *["good"] * 20, "bad", "last", more=RUN)
    with Terminal("app.py", folder=tmp_path) as terminal:
        assert terminal.finish() == 0
    pictures = [screen for screen in terminal.screens() if screen[0].startswith("pages  today")]
    assert len(pictures) >= 5
    assert max(len(row) for screen in pictures for row in screen) <= 80
    assert {screen[5] for screen in pictures} == {
        "                done  running  waiting  throttled  retries  skipped    dead"
    }
    assert {screen[9].split()[1] for screen in pictures} == {"out.jsonl"}
    last = [row for row in terminal.screen() if row]
    assert last[0].startswith("pages  today")
    assert "completed" in last[0]
    assert last[2:] == [
        "21 of 22 items succeeded, 1 became a dead letter; it is open",
        "21 succeeded   1 dead letter   0 pending",
        "                done  running  waiting  throttled  retries  skipped    dead",
        "┌ source          22",
        "├ parse           22        ·        ·          ·        ·        ·       ·",
        "├ label           21        ·        ·          ·        ·        ·       1",
        "▼ out.jsonl       21",
        "      1 \N{MULTIPLICATION SIGN} label  data_error: cannot label this",
    ]


def test_what_stages_print_goes_where_it_went(tmp_path):
    """Above the picture in a terminal; a file that standard output leads to is left alone (S3-05)."""
    wrote(tmp_path, "good", "last", more='print("before")\n' + RUN + 'print("after")\n')
    program = (tmp_path / "app.py").read_text().replace('"last" and', '"last" and not print("printed") and')
    (tmp_path / "app.py").write_text(program)
    with (tmp_path / "printed.txt").open("w") as file, Terminal("app.py", folder=tmp_path, stdout=file) as terminal:
        assert terminal.finish() == 0
    assert set((tmp_path / "printed.txt").read_text().split()) == {"before", "printed", "after"}
    assert "printed" not in terminal.written
    with Terminal("app.py", folder=tmp_path, width=100) as terminal:
        assert terminal.finish() == 0
    screen = terminal.screen()
    assert screen[0] == "before"
    assert "after" in screen


TALKATIVE = """
import logging, sys, threading
import outlast
from outlast.display import watch

logging.basicConfig(level="WARNING", format="logged %(message)s")  # holds the stream as it is now
frames, show = threading.Semaphore(0), watch.Terminal.show
def counted(self, now):
    show(self, now)
    frames.release()
watch.Terminal.show = counted

@outlast.stage(concurrency=1)
def speak(number):
    frames.acquire(timeout=20)
    logging.getLogger("mine").warning("line %d", number)
    frames.acquire(timeout=20)
    print("printed line", number)
    return number

outlast.Pipeline("talk", speak).run(range(3), run_key="today", progress=True)
logging.getLogger("mine").warning("after")
assert logging.root.handlers[0].stream is sys.stderr is sys.__stderr__
"""


def test_what_is_logged_and_printed_stands_above_the_picture(tmp_path):
    """Each line once and whole, also of a handler that was there before; afterwards everything goes where it went (S3-05)."""
    (tmp_path / "talk.py").write_text(TALKATIVE)
    with Terminal("talk.py", folder=tmp_path, height=40) as terminal:
        assert terminal.finish() == 0
    last = [row for row in terminal.screen() if row]
    assert last[:6] == [f"{how} line {number}" for number in range(3) for how in ("logged", "printed")]
    assert last[6].startswith("talk  today")
    assert last[-1] == "logged after"
    assert sum(row.startswith("talk  today") for row in last) == 1


def test_a_picture_that_breaks_gives_the_streams_back(app, monkeypatch):
    """Who logs and prints afterwards is heard (S3-06)."""
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger("mine").addHandler(handler)
    before = (sys.stdout, sys.stderr)
    screen = watching.Terminal(console=Console(file=io.StringIO(), force_terminal=True))
    redirected = []

    def broken(now):
        redirected.append(handler.stream is not before[1])
        raise OSError("gone")

    monkeypatch.setattr(screen, "show", broken)
    screen.every = 0.001

    @outlast.stage
    def wait(item):
        while not redirected:
            threading.Event().wait(0.001)
        return item

    try:
        with Watch(screen) as watch:
            outlast.Pipeline("p", wait, app=app).run(range(3), watch=watch)
        assert (redirected, handler.stream, sys.stdout, sys.stderr) == ([True], before[1], *before)
    finally:
        logging.getLogger("mine").removeHandler(handler)


def test_ctrl_c_is_answered_in_the_picture_and_a_second_one_ends_it(tmp_path):
    """D-13: it says that it winds down, what it waits for and what a second one does; that leaves a run that can be resumed."""
    wrote(tmp_path, *["good"] * 5, "wait", more=RUN)
    with Terminal("app.py", folder=tmp_path) as terminal:
        terminal.read_until("waits for a signal")
        terminal.read_until("5 succeeded")
        terminal.process.send_signal(signal.SIGINT)
        said = terminal.read_until("gives them up")
        assert re.search(r"winding down: 1 attempt may end, 2\d s at most\. Ctrl-C again gives them up", said)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.finish() == -signal.SIGINT  # as the shell wants it: its script ends, too
    last = " ".join(terminal.screen())
    assert "interrupted: 5 of 6 items succeeded, 1 is pending" in last
    assert "run it again with run_key='today' to go on" in last
    assert "\x1b[?25h" in terminal.written.rpartition("\x1b[?25l")[2]


def test_without_rich_a_terminal_gets_lines(tmp_path):
    """The core needs nothing installed; a display is worth less than a run."""
    wrote(tmp_path, "good", more=RUN)
    program = tmp_path / "app.py"
    program.write_text("import sys\nsys.modules['rich'] = None\n" + program.read_text())
    with Terminal("app.py", folder=tmp_path) as terminal:
        assert terminal.finish() == 0
    assert terminal.written.startswith("pages today: 1 of 1 (100 %), ")
    assert "\x1b" not in terminal.written


def test_a_terminal_that_cannot_draw_gets_lines(tmp_path):
    """TERM=dumb, as in some editors (S3-05)."""
    wrote(tmp_path, "good", more=RUN)
    with Terminal("app.py", folder=tmp_path, TERM="dumb") as terminal:
        assert terminal.finish() == 0
    assert "\x1b" not in terminal.written


def test_replays_are_shown_too(tmp_path):
    """From a shell and from Python; the way of their items begins at the stage that failed (S3-28, S4-23)."""
    wrote(tmp_path, *["good"] * 9, "bad", more='if __name__ == "__main__":\n    ' + RUN)
    with Terminal("-m", "outlast.cli", "run", "app.py:pages", "--input", "in.jsonl", folder=tmp_path) as terminal:
        assert terminal.finish() == 0
    wrote(tmp_path, "good", more="")
    mended = (tmp_path / "app.py").read_text().replace('== "bad"', '== "worse"').replace('"last" and', '"bad" and')
    (tmp_path / "app.py").write_text(mended)
    with Terminal("-m", "outlast.cli", "dlq", "reprocess", "app.py:pages", folder=tmp_path) as terminal:
        assert terminal.finish() == 0
    pictures = [
        screen for screen in terminal.screens() if screen[0].startswith("pages  replay-") and "running" in screen[0]
    ]
    assert [row.split()[:2] for row in pictures[-1][6:9]] == [["┌─╮", "source"], ["├", "│"], ["├─╯", "label"]]
    assert "1 item read   1 succeeded" in terminal.screen()
    assert not [row for row in terminal.screen() if row.startswith("┌")]  # the report has taken its place


def test_reprocess_in_python_shows_its_progress(app, capsys):
    """As `run` does (S3-28)."""
    mended = []

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=1))
    def label(number):
        if not mended:
            raise ValueError("not yet")
        return number

    pipeline = outlast.Pipeline("p", label, app=app)
    pipeline.run(range(3), check=False)
    mended.append(True)
    pipeline.reprocess(progress=True)
    assert "completed, 3 of 3 items succeeded" in capsys.readouterr().err
