"""In a notebook: a real one is executed by a real kernel, and what it shows is looked at. Everything from outside is escaped."""

from __future__ import annotations

import html.parser
import os
import re
import signal

import nbclient
import pytest
from nbformat.v4 import new_code_cell, new_notebook

import outlast
from outlast.display.page import Page, groups_page, pipeline_page, result_page, run_page, schedule
from outlast.display.snapshot import Edge, Snapshot, StageLine
from test_display import RUN, changed

# One process starts a kernel for those who only look at it.
pytestmark = pytest.mark.xdist_group("notebook")

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>\" onload=\"&amp;"

SETUP = """
import asyncio
import outlast
from outlast.display import watch

shown = []
show = watch.Notebook.show
def counted(self, now):
    show(self, now)
    shown.append(now)
watch.Notebook.show = counted

@outlast.stage
def parse(row):
    return row

@outlast.stage(retry=outlast.RetryPolicy(max_attempts=1), concurrency=4)
async def label(row):
    while row["key"] == "last" and len(shown) < 4:
        await asyncio.to_thread(shown.__len__)
    if row["key"] == "wait":
        print("waiting", flush=True)
        await asyncio.Event().wait()
    if "<" in row["key"]:
        raise ValueError("cannot label " + row["key"])
    return row

app = outlast.App("notebook", store="outlast.db")
pages = outlast.Pipeline("pages", parse, label, app=app, min_success_rate=0.5)
"""


class Client(nbclient.NotebookClient):
    """Executes a notebook, and keeps the messages that change an output in place."""

    def __init__(self, *cells: str, folder) -> None:
        self.updates: list[dict] = []
        notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
        super().__init__(notebook, timeout=50, kernel_name="python3", resources={"metadata": {"path": str(folder)}})

    def process_message(self, msg, cell, cell_index):
        if msg["msg_type"] == "update_display_data":
            self.updates.append(msg["content"]["data"])
        return super().process_message(msg, cell, cell_index)

    def shown(self, cell: int) -> list[dict]:
        """The outputs of a cell that are more than printed text."""
        return [output["data"] for output in self.nb.cells[cell].outputs if "data" in output]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """One kernel for what is looked at below."""
    client = Client(
        SETUP,
        f"keys = ['a', {HOSTILE!r}, 'b', 'last']",
        "run = pages.run([{'key': key} for key in keys], run_key='today', item_key='key', progress=True)",
        "run",
        "pages",
        "app.dead_letters",
        "run.groups",
        "outlast.map(int, ['1', keys[1], '3'])",
        folder=tmp_path_factory.mktemp("notebook"),
    )
    client.execute()
    return client


def text_of(page: str) -> str:
    """What a browser would show; no tag that loads, runs or listens may be in it."""
    found: list[str] = []

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            assert tag in {"div", "span", "b", "code", "table", "thead", "tbody", "tr", "th", "td", "br"}, tag
            assert {name for name, _ in attrs} <= {"style", "title"}

        def handle_data(self, data):
            found.append(data)

    Reader().feed(page)
    return re.sub(r"\s+", " ", " ".join(found))


def test_progress_changes_one_output_in_place(notebook):
    """Pictures arrive while the cell runs, in one output, which stays as it was at the end (S3-05, S3-07)."""
    (output,) = notebook.shown(2)
    last = text_of(output["text/html"])
    assert "completed" in last
    assert "3 of 4 items succeeded, 1 became a dead letter; it is open" in last
    assert output["text/plain"].startswith("pages today: 4 of 4 (100 %), ")
    pictures = [text_of(update["text/html"]) for update in notebook.updates]
    assert len(pictures) >= 2
    assert "running" in pictures[0]
    assert notebook.updates[-1] == output


def test_a_hostile_item_is_text(notebook):
    """Its key and its message stand there as they are, and are no part of the page (S0-41)."""
    for cell in range(2, 8):
        for output in notebook.shown(cell):
            page = output["text/html"]
            assert "<script" not in page
            assert "<img" not in page
            text_of(page)
    assert "cannot label <script>alert('x')</script>" in text_of(notebook.shown(3)[0]["text/html"])


def test_a_result_says_what_it_came_to_and_what_to_do_next(notebook):
    """S3-27: status, why, counts, groups, and how to send them again, from a shell and from here (S3-07)."""
    (output,) = notebook.shown(3)
    page = text_of(output["text/html"])
    group = re.search(r"outlast dlq list --group (\w+)", page)[1]
    assert "partial_success" not in page
    assert "3 succeeded · 1 dead letter" in page
    assert f"outlast dlq replay --group {group} --run " in page
    assert f".reprocess(group='{group}', run='" in page
    assert output["text/plain"].startswith("<RunResult 'pages' 'today' completed: 3 of 4 items succeeded")


def test_pipelines_and_dead_letters_show_themselves(notebook):
    """The stages with what protects them; dead letters by what they have in common (S3-26)."""
    pipeline = text_of(notebook.shown(4)[0]["text/html"])
    assert re.search(r"source .* parse 16 threads .* label 4 async .* sink", pipeline)
    assert "3 attempts: then after 1 s, 2 s" in pipeline
    assert "1 failure, 1 problem" in text_of(notebook.shown(5)[0]["text/html"])
    pages = [notebook.shown(cell)[0]["text/html"] for cell in (5, 6)]
    # The same groups, and what sends one again: of that run, or of the pipeline.
    assert len({page.partition("outlast dlq replay")[0] for page in pages}) == 1
    assert ["--run" in page for page in pages] in ([True, False], [False, True])
    mapped = notebook.shown(7)[0]
    assert "2 succeeded · 1 failed" in text_of(mapped["text/html"])
    assert mapped["text/plain"].startswith("<PartialResult partial: 2 of 3 items succeeded, 1 failed, ")


def test_interrupting_a_cell_ends_the_run_and_says_how_to_go_on(tmp_path):
    """D-13: the first interruption winds down and says what a second one does; that one does not wait."""
    client = Client(
        SETUP, "pages.run([{'key': 'a'}, {'key': 'wait'}], run_key='today', progress=True)", folder=tmp_path
    )
    interrupted = []

    def heard(msg, cell, cell_index):
        page = str(msg["content"].get("data", {}).get("text/html", ""))
        waiting = msg["msg_type"] == "stream" and "waiting" in msg["content"]["text"]
        if (waiting and not interrupted) or ("Interrupting again gives them up" in page and len(interrupted) == 1):
            interrupted.append(page)
            os.kill(client.km.provisioner.pid, signal.SIGINT)
        return Client.process_message(client, msg, cell, cell_index)

    client.process_message = heard
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="KeyboardInterrupt"):
        client.execute()
    assert re.search(r"winding down: 1 attempt may end, 2\d s at most\.", text_of(interrupted[1]))
    last = text_of(client.updates[-1]["text/html"])
    assert "interrupted: 1 of 2 items succeeded, 1 is pending; run it again with run_key='today' to go on" in last


# --- pieces ---


def test_a_page_has_all_of_the_picture():
    """The way with its counts, the stages, limit, breaker, budget, cost, failures (S3-05)."""
    page = text_of(run_page(RUN))
    for said in (
        "reviews 2026-11-15",
        "12,345 of 20,000 · 62 %",
        "148 items/s · about 52 s left · 1,812 retries · 23 waiting · 310 throttled",
        "12,290 succeeded (31 degraded) · 12 skipped · 43 dead letters · 123 pending",
        "source 12,468 ───▸ parse 12,400 ───▸ label 12,350 ───▸ store 12,290 ───▸ out.jsonl",
        "paused 12 s (429) · 40 of 40 under way (of 64) · 310 in line · shared by 3 processes",
        "calls 492 of 500/min · tokens 187,312 of 2,000,000/min",
        "12.34 of 200 spent · 0.001 an item · about 20 at the end",
        "label client_error: HTTP 422 from the service",
    ):
        assert said in page
    assert repr(Page(RUN)).startswith("reviews 2026-11-15: 12,345 of 20,000 (62 %)")


def test_ways_that_part_are_named():
    """Where more than one way leaves a column, each says from where to where (S3-05)."""
    ways = [("source", "parse", 3), ("source", "label", 2), ("parse", "label", 3), ("label", "the store", 5)]
    edges = tuple(Edge(start=start, end=end, count=count) for start, end, count in ways)
    page = text_of(run_page(changed(RUN, edges=edges)))
    assert "source → parse 3 source → label 2 ───▸ parse 3 ───▸ label 5 ───▸ the store" in page


def test_names_from_outside_are_escaped_everywhere():
    """Of pipelines, stages, runs, problems and reasons (S0-41)."""
    snapshot = Snapshot(
        pipeline=HOSTILE,
        run_key=HOSTILE,
        status="failed",
        elapsed=1,
        stages=(StageLine(name=HOSTILE, behind=(HOSTILE,)),),
        edges=(Edge(start=HOSTILE, end="b"),),
        problems=((1, HOSTILE, HOSTILE),),
        why=HOSTILE,
    )
    assert text_of(run_page(snapshot)).count("<script>") == 8


def test_a_result_away_from_its_store_shows_what_it_knows(tmp_path):
    """A store that cannot be read takes nothing but the groups away."""

    @outlast.stage(retry=outlast.RetryPolicy(max_attempts=1))
    def odd(number):
        if number % 2:
            raise ValueError("odd")
        return number

    app = outlast.App("tests", store=str(tmp_path / "outlast.db"))
    result = outlast.Pipeline("p", odd, app=app).run(range(4), check=False)
    app.store.close()
    page = text_of(result._repr_html_())
    assert "2 succeeded · 2 dead letters" in page
    assert "partial success" in page
    assert "no dead letters" in text_of(groups_page(()))


def test_what_protects_a_stage_is_in_words():
    """Attempts and waits, time limits, limits, breakers; before anything runs (S0-31)."""
    limit = outlast.Limit("openai", concurrency=64, rates={"calls": outlast.Rate(500, per=60)})
    guard = outlast.Guard(
        "llm",
        retry=outlast.RetryPolicy(max_attempts=9, initial_delay=1, jitter=0),
        timeout=30,
        total_timeout=300,
        limit=limit,
        breaker=outlast.CircuitBreaker("openai"),
        retry_budget=outlast.RetryBudget("openai"),
    )

    @outlast.stage(guard=guard, concurrency=64, checkpoint=True, version="2")
    async def label(row: str) -> str:
        return row

    pipeline = outlast.Pipeline("reviews", label, spend_limit={"usd": 200})
    page = text_of(pipeline._repr_html_())
    assert schedule(guard.retry) == "9 attempts: then after 1 s, 2 s, 4 s, 8 s, 16 s, …"
    for said in (
        "30 s an attempt, 5 min 00 s in all",
        "limit openai (64 at a time, 500 calls/min), breaker openai (closed), retry budget openai",
        "checkpoint, version 2",
        "completed from 95% · stops at 10% failures · spends at most 200 usd",
    ):
        assert said in page
    assert repr(pipeline) == "<Pipeline 'reviews': label>"
    assert "p" in text_of(pipeline_page("p", (label,), {}))


def test_a_replay_that_failed_is_not_resumed_by_its_key():
    """Its letters are open again where they were; only a run of its own goes on with its key (S3-28)."""
    fields = {"id": "1", "run_key": "k", "pipeline": "p", "status": "failed", "outcome": "failure", "reason": None}
    counts = outlast.Counts(total=1, dlq=1)
    assert "go on with" in text_of(result_page(outlast.RunResult(**fields, why="all failed", counts=counts), ()))
    replayed = outlast.RunResult(**fields, why="all failed", counts=counts, _kind="replay")
    assert "go on with" not in text_of(result_page(replayed, ()))
