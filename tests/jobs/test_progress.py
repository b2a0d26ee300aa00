"""Progress of a job: what its code reports, who sees it, and which attempt it is of."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta

import pytest

import outlast
from job_hands import Hands
from labor import NOW, Beside, wait_until
from outlast.cli.worker import _Watched
from outlast.display.watch import Lines
from outlast.display.worker import WorkerNow, lines
from outlast.store.steps import NewProgress
from outlast.testing import work
from shells import Shell
from stores import sql

JOBS = """
import outlast

app = outlast.App("shop")


@app.job
def pages() -> None:
    outlast.current().progress(1200, 3000, "postgresql://ann:hunter2@db/shop\\n" + "x" * 999)


@app.job(guard=outlast.Guard(isolation="process"))
def apart() -> int:
    outlast.current().progress(1, 2)
    return 1
"""


@pytest.mark.parametrize("is_async", [False, True])
def test_the_last_report_is_stored_with_the_end_of_the_job(app, is_async):
    """Also of a job that is over within a second; a report replaces the one before."""

    def pages(n: int) -> None:
        for done in range(n + 1):
            outlast.current().progress(done, n, "pages")

    async def apages(n: int) -> None:
        await asyncio.sleep(0)
        pages(n)

    job = app.job(name="pages")(apages if is_async else pages)
    three, five = job.enqueue(3), job.enqueue(5)
    assert three.progress is None
    work(app)
    assert (three.progress, five.progress) == ((3, 3, "pages"), (5, 5, "pages"))


def test_it_is_seen_while_the_job_runs_and_by_the_display_of_its_worker(app):
    """The worker stores it about once a second, of each job its own; from a step and from another thread, too."""
    go = threading.Event()

    @app.job
    def rows(start: int) -> None:
        outlast.current().step("first", lambda: outlast.current().progress(start + 0.5))
        go.wait(200)

    @app.job
    async def files() -> None:
        await asyncio.to_thread(outlast.current().progress, 3, 10, "files")
        await asyncio.to_thread(go.wait, 200)

    one, two, three = rows.enqueue(1), rows.enqueue(2), files.enqueue()
    with Beside(app) as beside:
        try:
            wait_until(lambda: all(job.progress for job in (one, two, three)), "all have reported")
            seen = [job.progress for job in (one, two, three)]
            now = _Watched(Lines(keep=False, tell=lines), beside.worker, app, {}).look()
        finally:
            go.set()
    assert seen == [(1.5, None, ""), (2.5, None, ""), (3, 10, "files")]
    assert now.progress == (
        (f"rows {one.id}", "1.5"),
        (f"rows {two.id}", "2.5"),
        (f"files {three.id}", "3 of 10, files"),
    )


def test_the_next_attempt_begins_without_one(app):
    """What a failed attempt has reported is shown until then, and a report of a lost attempt changes nothing."""

    @app.job(retry=NOW)
    def pages() -> None:
        attempt = outlast.current().attempt
        if attempt == 1:
            outlast.current().progress(7, 9)
            raise ConnectionError
        if attempt == 2:
            reported.append(handle.progress)
            raise ConnectionError
        outlast.current().progress(1, 9)

    reported = []
    handle = pages.enqueue()
    work(app)
    assert (reported, handle.progress) == ([None], (1, 9, ""))
    again = pages.enqueue()
    (claimed,) = Hands(app).take()
    for token, expected in ((claimed.token, (5, None, "")), (claimed.token - 1, (5, None, ""))):
        app.store.put_progress([NewProgress(claimed.id, token, 5 if token == claimed.token else 6, None, "")])
        assert again.progress == expected
    app.store.put_progress([NewProgress(claimed.id, claimed.token + 1, 8, None, "")])
    assert again.progress == (5, None, "")


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_report_that_comes_while_another_is_written_is_stored_too(app, monkeypatch, is_stored):
    """A second later, while the job still runs, also if the write of the first one fails."""
    writing, reported, again = threading.Event(), threading.Event(), threading.Event()
    store = app.store.put_progress

    def slowly(rows):
        if writing.is_set():
            store(rows)
            again.set()
            return
        writing.set()
        assert reported.wait(60)
        if not is_stored:
            raise RuntimeError("the store is away")
        store(rows)

    @app.job(retry=None)
    def pages() -> bool:
        outlast.current().progress(1, 2)
        assert writing.wait(60)
        outlast.current().progress(2, 2)
        reported.set()
        return again.wait(20)

    monkeypatch.setattr(app.store, "put_progress", slowly)
    handle = pages.enqueue()
    app.work(until_idle=True)
    assert (handle.result(), handle.progress) == (True, (2, 2, ""))


def test_a_progress_that_cannot_be_stored_holds_up_no_job(app, monkeypatch):
    """The end of the job is stored all the same, once."""

    @app.job
    def pages() -> str:
        outlast.current().progress(1)
        return "done"

    def fails(rows):
        raise RuntimeError("no such table")

    handle = pages.enqueue()
    monkeypatch.setattr(app.store, "put_progress", fails)
    assert work(app).succeeded == 1
    assert (handle.result(), handle.progress, len(handle.history())) == ("done", None, 1)


@pytest.mark.parametrize("when", ["while the job runs", "with its end"])
def test_a_report_whose_write_failed_is_written_by_the_next_look(app, monkeypatch, when):
    """The job reports once and the first write fails: a failed write does not count as stored."""
    failed, again = threading.Event(), threading.Event()
    store = app.store.put_progress

    def away_once(rows):
        if not failed.is_set():
            failed.set()
            raise RuntimeError("the store is away")
        store(rows)
        again.set()

    @app.job(retry=None)
    def pages() -> bool:
        outlast.current().progress(1, 2, "pages")
        assert failed.wait(60)
        return when == "with its end" or again.wait(20)

    monkeypatch.setattr(app.store, "put_progress", away_once)
    handle = pages.enqueue()
    app.work(until_idle=True)
    assert (handle.result(), handle.progress) == (True, (1, 2, "pages"))


def test_where_it_goes_nowhere_and_what_is_refused(sqlite_app):
    """Outside of a job nothing happens; what is no number is refused there, too, as `spend` refuses it."""
    app = sqlite_app

    @app.job
    def pages() -> None:
        outlast.current().progress(1, 2)

    outlast.current().progress(1, 2, "pages")
    pages()

    for given in ((float("nan"),), (-1,), (True,), ("3",), (1, float("inf")), (1, -2)):
        with pytest.raises(ValueError, match=r"expected (done|total) to be a finite number of at least 0, got: "):
            outlast.current().progress(*given)


def test_commands_show_it_without_secrets(tmp_path):
    """`jobs show` in a line and in JSON; a note is one line, short, and hides passwords."""
    shell = Shell(tmp_path, {"jobs.py": JOBS})
    shell("enqueue jobs.py:pages")
    assert shell.json("jobs show 1")["progress"] is None
    assert "progress" not in shell("jobs show 1").stdout
    shell("worker jobs.py --until-idle")
    (line,) = [line for line in shell("jobs show 1").stdout.splitlines() if line.startswith("progress")]
    assert line.startswith("progress     1,200 of 3,000, postgresql://***@db/shop xxx")
    found = shell.json("jobs show 1")["progress"]
    assert (found["done"], found["total"], len(found["note"])) == (1200, 3000, 200)
    assert "hunter2" not in json.dumps(shell.json("jobs list"))
    shell("enqueue jobs.py:apart")
    shell("worker jobs.py --until-idle")
    apart = shell.json("jobs show 2")
    assert (apart["result"], apart["progress"]) == (1, None)  # a child process has no store
    assert b"hunter2" not in b"".join(file.read_bytes() for file in (tmp_path / ".outlast").iterdir() if file.is_file())


def test_retention_deletes_it_with_its_job(app):
    """Nothing of a deleted job is left."""

    @app.job
    def pages() -> None:
        outlast.current().progress(1)

    handles = [pages.enqueue() for _ in range(2)]
    work(app)
    ids = tuple(int(handle.id) for handle in handles)
    count = "select count(*) from outlast_job_progress where job in (?, ?)"
    assert sql(app.store, count, *ids) == [(2,)]
    app.store.prune("jobs", datetime.now(UTC) + timedelta(days=1))
    assert sql(app.store, count, *ids) == [(0,)]


def test_the_display_shows_five_jobs_and_counts_the_others():
    """A worker with hundreds of jobs keeps its lines short; what a job reports cannot steer a terminal."""
    now = WorkerNow(
        app="shop",
        elapsed=1.0,
        concurrency=8,
        progress=tuple((f"pages {n}", "1 of 2, \x1b[2Jx") for n in range(7)),
    )
    (line,) = lines(now)
    assert line.count("1 of 2, \ufffd[2Jx") == 5
    assert line.endswith("pages 4: 1 of 2, \ufffd[2Jx, 2 more jobs with progress")
