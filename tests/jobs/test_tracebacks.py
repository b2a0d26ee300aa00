"""Where a job has failed: on record with the attempt, in the log, and for whoever asks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from itertools import pairwise
from typing import Any

import pytest

import hostile
import outlast
from job_rows import claimed, end, enqueued, finished, new, worker
from outlast.kernel.frames import MOST_BYTES, from_here, place_of, traceback_of
from outlast.kernel.redact import remember_secret
from outlast.testing import capture_events, work
from stores import sql

TWICE = outlast.RetryPolicy(delays=[1])
MACHINERY = re.compile(r"[/\\](?:asyncio|concurrent|outlast|threading\.py)\b")


def look_up(data, name):
    return data[name]


async def alook_up(data, name):
    await asyncio.sleep(0)
    return data[name]


def names(traceback):
    """The functions in it, the outermost first."""
    return re.findall(r", in (.+)", traceback)


def failing(app):
    """A job of each sort that fails in a function of its own."""
    twice = outlast.Guard("twice", retry=outlast.RetryPolicy(delays=[0.1]))

    @app.job(retry=TWICE)
    def in_thread(data: dict[str, int]) -> int:
        return look_up(data, "lost")

    @app.job(retry=TWICE)
    async def in_loop(data: dict[str, int]) -> int:
        return await alook_up(data, "lost")

    @app.job(retry=TWICE, guard=twice)
    def guarded(data: dict[str, int]) -> int:
        return look_up(data, "lost")

    @app.job(retry=TWICE, guard=twice)
    async def aguarded(data: dict[str, int]) -> int:
        return await alook_up(data, "lost")

    @app.job(retry=TWICE)
    def in_step(data: dict[str, int]) -> int:
        return outlast.current().step("look", look_up, data, "lost")

    return [in_thread, in_loop, guarded, aguarded, in_step]


@pytest.mark.parametrize("place", range(5))
def test_a_failed_attempt_has_its_traceback_on_record(app, place):
    """With the user's frames and lines only, whatever runs the job; the value of no argument is in it."""
    job = failing(app)[place]
    handle = job.enqueue({"card": 4111111111111111})
    work(app)
    (attempt,) = handle.history()
    assert (attempt.outcome, attempt.error_type) == ("failed", "KeyError")
    looks = "alook_up" if job.is_async else "look_up"
    assert names(attempt.traceback) == [job.kind, looks]
    assert attempt.traceback.startswith("Traceback (most recent call last):\n")
    assert attempt.traceback.endswith("\n    return data[name]\nKeyError: 'lost'\n")
    assert not MACHINERY.search(attempt.traceback)
    assert "4111111111111111" not in attempt.traceback
    assert re.fullmatch(rf".+test_tracebacks\.py:\d+ in {looks}", attempt.place)


def test_only_failed_attempts_have_one(app):
    """A success, a Snooze and a job that is given back carry nothing."""
    snoozed = []

    @app.job
    def well() -> None:
        if not snoozed:
            snoozed.append(1)
            raise outlast.Snooze(5)

    handle = well.enqueue()
    work(app)
    assert [(row.outcome, row.traceback, row.place) for row in handle.history()] == [
        ("snoozed", None, None),
        ("succeeded", None, None),
    ]


def test_every_attempt_has_its_own(app):
    @app.job(retry=TWICE)
    def job() -> None:
        if outlast.current().attempt == 1:
            raise ConnectionResetError("first")
        look_up({}, "lost")

    handle = job.enqueue()
    work(app)
    assert [names(row.traceback) for row in handle.history()] == [["job"], ["job", "look_up"]]


def test_the_log_and_the_events_have_it(app, caplog):
    """Below the sentence, with whatever formatter; once in the text, and as a field of the record."""
    job = failing(app)[0]

    @app.job(retry=TWICE)
    def flaky() -> None:
        raise ConnectionResetError("reset")

    job.enqueue({})
    flaky.enqueue()
    with caplog.at_level(logging.WARNING, "outlast"), capture_events() as events:
        work(app)
    told = {(event.name, event.kind): event.traceback for event in events if hasattr(event, "traceback")}
    assert {key: names(text) for key, text in told.items()} == {
        ("job_failed", "in_thread"): ["in_thread", "look_up"],
        ("job_requeued", "flaky"): ["flaky"],
        ("job_failed", "flaky"): ["flaky"],
    }
    for record in caplog.records:
        if record.__dict__.get("event") in {"job_failed", "job_requeued"}:
            shown = logging.Formatter("%(levelname)s %(message)s").format(record)
            assert shown.count("Traceback (most recent call last):") == 1
            assert shown.endswith(told[record.event, record.kind].rstrip())
    assert sum(bool(record.exc_text) for record in caplog.records) == 3


def test_secrets_are_in_none_of_it(app):
    """Neither those of the message, nor of the source, nor those that this process knows."""
    remember_secret("orange-lamp")

    @app.job
    def pays() -> None:
        sent = {"password": "hunter2hunter2", "note": "orange-lamp"}; raise ValueError("api_key=sk-12345678901234567890", sent)  # fmt: skip  # noqa: E702

    handle = pays.enqueue()
    work(app)
    (attempt,) = handle.history()
    assert names(attempt.traceback) == ["pays"]
    assert not re.search("hunter2|orange-lamp|sk-1234", attempt.traceback)
    assert "sent = {" in attempt.traceback


def test_a_secret_that_becomes_known_later_is_taken_out_of_lines_that_were_shown_before(sqlite_app):
    """The same line fails again and again, and what was made of it is kept."""

    @sqlite_app.job
    def pays() -> None:
        raise ValueError("blue-kettle", 1)

    found = []
    for _ in range(2):
        handle = pays.enqueue()
        work(sqlite_app)
        found.append(handle.history()[0].traceback.count("blue-kettle"))
        remember_secret("blue-kettle")
    assert found == [2, 0]


def test_what_an_exception_came_from_is_in_it(app):
    """The cause before the exception, and what is inside of a group after it; what is suppressed is not."""

    @app.job
    def chained() -> None:
        hostile.fail_with_cause()

    @app.job
    def quiet() -> None:
        try:
            look_up({}, "lost")
        except KeyError:
            raise ValueError("no such thing") from None

    @app.job
    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(alook_up({}, "lost"))

    found = {job.kind: job.enqueue() for job in (chained, quiet, grouped)}
    work(app)
    texts = {kind: handle.history()[0].traceback for kind, handle in found.items()}
    ends = [texts["chained"].index(said) for said in ("KeyError: 'first'", "ValueError: second", "RuntimeError: ")]
    assert all(one < other for one, other in pairwise(ends))
    assert texts["chained"].count("was the direct cause of the following exception") == 2
    assert names(texts["quiet"]) == ["quiet"]
    assert names(texts["grouped"]) == ["grouped", "alook_up"]
    assert place_of(texts["grouped"]).function == "alook_up"


def test_a_child_process_brings_its_frames_along(app):
    """Those of the whole chain; also if the exception itself cannot leave the child."""
    alone = outlast.Guard("alone", retry=None, isolation="process")
    app.job(guard=alone, name="chained", retry=None)(hostile.fail_with_cause)
    app.job(guard=alone, name="kept", retry=None)(hostile.fail_in_front_of_a_locked_cause)
    found = {kind: app.kinds[kind].enqueue() for kind in ("chained", "kept")}
    work(app)
    text = found["chained"].history()[0].traceback
    assert names(text) == ["fail_with_cause"] * 3
    assert text.endswith("RuntimeError: ('third', 3)\n")
    assert not MACHINERY.search(text)
    assert "fail_in_front_of_a_locked_cause" in names(found["kept"].history()[0].traceback)


def test_an_attempt_that_runs_out_of_time_says_where_it_was(app):
    """An async job where it was cancelled, a thread where it still is."""
    goes_on = threading.Event()

    def waits() -> None:
        goes_on.wait(100)

    @app.job(timeout=0.1, retry=None)
    async def hangs() -> None:
        await asyncio.Event().wait()

    @app.job(timeout=0.1, retry=None)
    def blocks() -> None:
        waits()

    found = {job.kind: job.enqueue() for job in (hangs, blocks)}
    thread = threading.Thread(target=app.work, kwargs={"until_idle": True})
    thread.start()
    try:
        for handle in found.values():
            with contextlib.suppress(outlast.JobFailed):
                handle.result(100)
    finally:
        goes_on.set()
        thread.join()
    texts = {kind: handle.history()[0] for kind, handle in found.items()}
    assert names(texts["hangs"].traceback) == ["hangs"]
    assert names(texts["blocks"].traceback) == ["blocks", "waits"]
    for row in texts.values():
        assert row.outcome == "timeout"
        assert row.traceback.endswith("AttemptTimeoutError: the attempt took longer than 0.1 s\n")


def test_it_is_bounded_and_the_newest_frames_stay(app):
    """However deep the code and long the lines: at most 8 KiB, and the place of the failure is in it."""

    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        else:
            look_up({}, "lost" * 1000)

    @app.job
    def deep() -> None:
        deeper(200)

    handle = deep.enqueue()
    work(app)
    (attempt,) = handle.history()
    assert 1000 < len(attempt.traceback.encode()) <= MOST_BYTES
    assert names(attempt.traceback)[-3:] == ["deeper", "deeper", "look_up"]
    assert attempt.place.endswith(" in look_up")

    space: dict[str, Any] = {}
    code = "def f(error, before):\n    raise error from before\n"
    exec(compile(code, f"/srv/{'ü' * 190}", "exec"), space)
    error: Exception = ValueError("x" * 279)
    for _ in range(30):
        try:
            space["f"](ValueError("y" * 279), error)
        except ValueError as raised:
            error = raised
    text = traceback_of(error)
    assert len(text.encode()) <= MOST_BYTES
    assert text.endswith("y" * 279 + "\n")


def test_hostile_exceptions_do_not_keep_a_job_from_its_end(app, monkeypatch):
    """Names with line breaks, a text that cannot be had, and a traceback that cannot be made."""

    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def raises() -> None:
        exec(
            compile("def f(error):\n    raise error\n", 'evil\n  File "fake", line 1, in fake\x1b[2J', "exec"),
            space := {},
        )
        space["f"](Odd())

    app.job(name="odd")(raises)
    handle = app.kinds["odd"].enqueue()
    work(app)
    text = handle.history()[0].traceback
    assert "\x1b" not in text
    assert "fake" not in names(text)[0]
    assert text.endswith("Odd: <Odd has no readable text>\n")
    assert [line for line in text.splitlines() if line.startswith("  File ")][1].count("fake") == 2

    monkeypatch.setattr("outlast.kernel.frames._frames", lambda _: 1 / 0)
    handle = app.kinds["odd"].enqueue()
    work(app)
    assert (handle.status, handle.history()[0].traceback) == ("failed", None)


def test_the_error_of_a_result_has_it_in_a_note(app):
    handle = failing(app)[0].enqueue({})
    work(app)
    with pytest.raises(outlast.JobFailed) as caught:
        handle.result()
    assert caught.value.__notes__[-1] == f"in its last attempt:\n{handle.history()[-1].traceback.rstrip()}"


def test_nothing_is_kept_of_a_job_that_is_over(app):
    """Frames hold what a job had in hand: none of them outlives the text."""
    gone = threading.Event()

    class Large:
        def __del__(self) -> None:
            gone.set()

    @app.job
    def holds() -> None:
        kept = Large()
        look_up({}, str(type(kept)))

    holds.enqueue()
    work(app)
    assert gone.is_set()


def test_it_is_written_beside_other_ends(app):
    """Several ends in one turn, with one, without one, and with what no database takes; a program of older code writes none."""
    lease, ids = worker(app.store), enqueued(app.store, new(), new(), new())
    jobs = claimed(app.store, lease, 3)
    texts = [None, "Traceback\0 ü\n", "Traceback\n"]
    finished(
        app.store, lease, *(end(job, "failed", "failed", traceback=text) for job, text in zip(jobs, texts, strict=True))
    )
    rows = [app.store.job_attempts(number)[0].traceback for number in ids]
    assert rows == [None, "Traceback\ufffd ü\n", "Traceback\n"]
    sql(
        app.store,
        "insert into outlast_job_attempts (job, number, token, started, took, outcome) values (?, 2, 9, 1, 1, 'failed')",
        ids[0],
    )
    assert [row.traceback for row in app.store.job_attempts(ids[0])] == [None, None]


@pytest.mark.parametrize(
    ("files", "place"),
    [
        (["/srv/shop/jobs.py", "/srv/venv/lib/python3.12/site-packages/httpx/_client.py"], "/srv/shop/jobs.py:1 in f0"),
        (["/v/site-packages/shop/jobs.py", "/v/site-packages/shop/db.py", "/v/site-packages/psycopg/x.py"], "/v/site-packages/shop/db.py:2 in f1"),
        (["<string>", "/usr/lib/python3.12/json/decoder.py"], "/usr/lib/python3.12/json/decoder.py:2 in f1"),
        ([], None),
    ],
)  # fmt: skip
def test_the_place_is_that_of_their_own_code(files, place):
    text = "".join(f'  File "{file}", line {n + 1}, in f{n}\n    pass\n' for n, file in enumerate(files))
    found = place_of(text)
    assert (None if found is None else str(found)) == place


def test_groups_in_groups_and_sources_that_end_the_program_are_survived(monkeypatch, tmp_path):
    """What is made of an exception stays small, and nothing that its module does gets out."""

    def group(depth: int) -> Exception:
        return ExceptionGroup("many", [group(depth - 1) for _ in range(4)]) if depth else ValueError("one")

    try:
        raise group(5)
    except ExceptionGroup as error:
        text = traceback_of(error)
    assert text.count("ExceptionGroup: many") <= 16

    class Loader:
        def get_source(self, _: str) -> str:
            raise SystemExit

    space: dict[str, Any] = {"__loader__": Loader(), "__name__": "odd"}
    exec(compile("def f():\n    raise ValueError\n", "/nowhere/odd.py", "exec"), space)
    with pytest.raises(ValueError, match=r"^$") as caught:
        space["f"]()
    assert traceback_of(caught.value) is None

    class Empty(Exception):
        def __len__(self) -> int:
            return 0

    with pytest.raises(KeyError) as lost:
        look_up({}, "lost")
    assert traceback_of(lost.value, Empty("nothing")).endswith(".Empty: nothing\n")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert from_here("/srv/a.py:1 in f") == "/srv/a.py:1 in f"
