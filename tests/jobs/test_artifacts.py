"""What the code of jobs keeps for people: also when the attempt fails, each attempt its own, within bounds."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta

import pytest

import outlast
from job_hands import Hands
from labor import NOW
from outlast.jobs import onrecord
from outlast.store.steps import NewArtifact
from outlast.testing import capture_events, work


def kept(handle):
    return [(one.name, one.attempt, one.size, one.cut) for one in handle.artifacts()]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_raw_answer_is_kept_when_its_attempt_fails(app, is_async):
    """S1-11, S1-12, S1-23, U-11: invalid JSON fails the job at once, and what the model said is there to be read; it is counted."""
    answers = iter(["no JSON", '{"label": 1}'])

    def parse() -> int:
        raw = next(answers)
        outlast.current().keep("answer", raw)
        outlast.current().keep("bytes", b"\0\xff")
        return json.loads(raw)["label"]

    @app.job(retry=NOW)
    def label() -> int:
        return parse()

    async def alabel() -> int:
        return parse()

    handle = (app.job(retry=NOW)(alabel) if is_async else label).enqueue()
    with capture_events() as events:
        work(app)
    assert (handle.status, len(handle.history())) == ("failed", 1)
    assert kept(handle) == [("answer", 1, 7, False), ("bytes", 1, 2, False)]
    assert (handle.artifact("answer"), handle.artifact("bytes")) == ("no JSON", b"\0\xff")
    told = [event for event in events if event.name == "artifact_kept"]
    assert [(event.artifact, event.size, event.job_id) for event in told] == [
        ("answer", 7, handle.id),
        ("bytes", 2, handle.id),
    ]
    assert not any("no JSON" in event.sentence() for event in told)
    app.jobs.requeue(handle.id)
    work(app)
    assert handle.result() == 1
    assert [(name, attempt) for name, attempt, *_ in kept(handle)] == [
        ("answer", 1),
        ("bytes", 1),
        ("answer", 2),
        ("bytes", 2),
    ]
    assert (handle.artifact("answer"), handle.artifact("answer", attempt=1)) == ('{"label": 1}', "no JSON")
    with pytest.raises(LookupError, match=r"has kept no 'answers'. It has kept: answer, bytes"):
        handle.artifact("answers")
    with pytest.raises(LookupError, match="of attempt 9"):
        handle.artifact("answer", attempt=9)


def test_the_newest_of_a_name_counts_within_an_attempt(app):
    """A guard inside of the job may try several times."""

    @app.job(guard=outlast.Guard(retry=outlast.RetryPolicy(max_attempts=3, initial_delay=0)))
    def label() -> None:
        tries.append(1)
        outlast.current().keep("answer", f"answer {len(tries)}")
        if len(tries) < 3:
            raise ConnectionError

    tries = []
    handle = label.enqueue()
    work(app)
    assert (handle.artifact("answer"), len(handle.artifacts())) == ("answer 3", 1)


def test_what_is_too_long_is_cut_and_marked(app, caplog):
    """An answer that is kept for people must not make a job fail."""
    text, data = "é" * (1 << 20), b"x" * ((1 << 20) + 1)

    @app.job
    def label() -> None:
        outlast.current().keep("text", text)
        outlast.current().keep("data", data)

    handle = label.enqueue()
    work(app)
    assert kept(handle) == [("text", 1, 2 << 20, True), ("data", 1, (1 << 20) + 1, True)]
    assert (handle.artifact("text"), handle.artifact("data")) == (text[: 1 << 19], data[: 1 << 20])
    assert "what is beyond 1048576 is not kept" in caplog.text


def test_what_cannot_be_kept(sqlite_app, monkeypatch):
    monkeypatch.setattr(onrecord, "MOST_ARTIFACTS", 2)
    wrong = []

    @sqlite_app.job
    def label() -> None:
        context = outlast.current()
        for name, raw in (
            ("", "x"),
            ("a", 3),
            ("a", {"b": 1}),
            ("one", "x"),
            ("two", "x"),
            ("one", "y"),
            ("three", "x"),
        ):
            try:
                context.keep(name, raw)
            except Exception as error:  # noqa: BLE001 - whatever it is
                wrong.append(str(error))

    handle = label.enqueue()
    work(sqlite_app)
    assert [text.partition(", got")[0] for text in wrong] == [
        "expected the name of an artifact to be a text of 1 to 200 characters",
        "expected what is kept as 'a' to be a text or bytes",
        "expected what is kept as 'a' to be a text or bytes",
        "expected an attempt to keep at most 2 artifacts",
    ]
    assert handle.artifact("one") == "y"


@pytest.mark.parametrize("is_async", [False, True])
def test_code_whose_time_is_up_may_still_keep_what_it_has(app, is_async):
    """Its job is its own until its code has ended."""

    @app.job(retry=None, timeout=0.1)
    def label() -> None:
        waits = outlast.current()
        try:
            threading.Event().wait(0.5)
            waits.step("next", int)
        finally:
            waits.keep("answer", "half of it")

    async def alabel() -> None:
        waits = outlast.current()
        try:
            await asyncio.Event().wait()
        finally:
            waits.keep("answer", "half of it")

    handle = (app.job(retry=None, timeout=0.1)(alabel) if is_async else label).enqueue()
    app.work(until_idle=True)
    assert ([row.outcome for row in handle.history()], handle.artifact("answer")) == (["timeout"], "half of it")


def test_a_worker_that_has_lost_its_job_keeps_nothing(app):
    @app.job
    def label() -> None: ...

    handle = label.enqueue()
    hands = Hands(app)
    (job,) = hands.take()
    row = NewArtifact(job.id, job.token, 1, "answer", b"{}", 1, cut=False)
    assert app.store.put_results([row, row._replace(token=job.token + 1, name="late")], hands.lease) == [True, False]
    assert [one.name for one in handle.artifacts()] == ["answer"]


def test_an_async_job_ends_after_what_it_has_kept(app, monkeypatch):
    """Its end is not on record before."""
    order = []
    put, turn = type(app.store).put_results, type(app.store).turn
    monkeypatch.setattr(type(app.store), "put_results", lambda *a, **k: (order.append("kept"), put(*a, **k))[1])

    def turned(self, lease, ends, *more, **how):
        order.extend("ended" for _ in ends)
        return turn(self, lease, ends, *more, **how)

    monkeypatch.setattr(type(app.store), "turn", turned)

    @app.job
    async def label() -> None:
        outlast.current().keep("answer", "x")
        await asyncio.sleep(0)
        outlast.current().keep("other", "x")

    handle = label.enqueue()
    work(app)
    assert (order[-1], order.count("ended"), len(handle.artifacts())) == ("ended", 1, 2)


def test_an_app_with_a_codec_of_its_own(tmp_path):
    """What is kept is payload: it goes through the codec, as steps do."""

    class Turned:
        def encode(self, data):
            return data[::-1]

        def decode(self, data):
            return data[::-1]

    app = outlast.App("sealed", store=str(tmp_path / "sealed.db"), codec=Turned())

    @app.job(retry=NOW)
    def label() -> str:
        outlast.current().keep("answer", "a secret")
        found = outlast.current().step("ask", lambda: "another secret")
        if outlast.current().attempt == 1:
            raise ConnectionError
        return found

    handle = label.enqueue()
    work(app)
    assert (handle.artifact("answer"), handle.result()) == ("a secret", "another secret")
    raw = b"".join(
        bytes(row[0])
        for table, column in (("artifacts", "data"), ("steps", "result"))
        for row in app.store._database.rows(f"select {column} from outlast_{table}")
    )
    assert b"secret" not in raw
    assert b"terces" in raw
    app.store.close()


def test_artifacts_stay_with_their_job_as_long_as_its_letter_is_open(app):
    @app.job(retry=None)
    def label(bad: bool) -> None:
        outlast.current().keep("answer", "x")
        if bad:
            raise ValueError

    good, bad = label.enqueue(bad=False), label.enqueue(bad=True)
    work(app)
    with app.store._database.writing() as tx:
        tx.execute("update outlast_jobs set ended = 1 where app = ?", app.name)
    app.tidy(app.store, datetime.now(UTC) + timedelta(days=1))
    assert app.store._database.rows("select 1 from outlast_artifacts where owner = ?", int(good.id)) == []
    assert bad.artifact("answer") == "x"


def test_the_handle_of_a_job_that_is_gone_and_holds_its_key(app):
    """C-20: what a second enqueue gives then."""

    @app.job(unique_for=3600)
    def send() -> int:
        return 3

    bound = send.options(unique_key="k")
    handle = bound.enqueue()
    work(app)
    soon = datetime.now(UTC) + timedelta(days=1)
    app.store.prune("jobs", soon)
    with app.store._database.writing() as tx:
        tx.execute("update outlast_unique_keys set made = 0 where app = ?", app.name)
    assert app.store.prune("jobs", soon) == 1
    again = bound.enqueue()
    assert (again, again.status) == (handle, "succeeded")
    with pytest.raises(
        outlast.JobNotFound, match=r"\(send\) has succeeded, at .* and is not kept any more; its unique key is held"
    ):
        again.result()
    assert send.options(unique_key=lambda: "k").enqueue_many([{}]) == 0
    assert list(app.jobs.find()) == []
