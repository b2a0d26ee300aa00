"""What operators do to jobs is on record; what they change is checked; letters that were imported move nobody else's job."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from typer.testing import CliRunner

import outlast
from job_hands import Hands
from outlast.cli.commands import command_line
from outlast.jobs import upkeep
from outlast.testing import capture_events, work
from outlast.work.leases import this_user


@pytest.fixture
def send(app):
    @app.job
    def send(to: str, day: int = 1) -> str:
        if to == "nobody":
            raise ValueError("no such address")
        return to

    return send


def shown(app, command):
    """What a shell prints."""
    words = [*shlex.split(command), "--store", app.store_url, "--app", app.name]
    done = CliRunner().invoke(command_line(words), words, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


def problems(work):
    with pytest.raises(outlast.ConfigurationError) as caught:
        work()
    return " ".join(caught.value.problems)


def test_a_requeue_and_a_cancellation_are_on_record(app, send):
    """S1-21, U-10: who, when and why, beside the attempts; in Python and in a shell."""
    job = send.enqueue("nobody")
    work(app)
    assert job.changes() == []
    app.jobs.requeue(job.id, reason="the address is mended, password=hunter2hunter2")
    assert app.jobs.cancel(job.id)
    app.jobs.requeue(job.id)
    work(app)
    first, second, third = job.changes()
    assert [change.change for change in job.changes()] == ["requeued", "cancelled", "requeued"]
    assert (first.by, second.reason, third.reason) == (this_user(), None, None)
    assert first.reason.startswith("the address is mended")
    assert "hunter2" not in first.reason
    assert first.at <= second.at <= third.at
    assert job.history()[0].started_at <= first.at
    assert [attempt.outcome for attempt in job.history()] == ["failed", "failed"]
    assert not app.jobs.cancel(job.id)  # it has failed: nothing was done, and nothing is on record of it
    assert len(job.changes()) == 3
    with pytest.raises(outlast.ConfigurationError, match="expected reason to be a text"):
        app.jobs.requeue(job.id, reason=7)


def test_a_shell_says_who_requeued_and_why(app, send):
    job = send.enqueue("nobody")
    work(app)
    shown(app, f"jobs requeue {job.id} --reason 'try again'")
    shown(app, f"jobs cancel {job.id} --reason 'not wanted'")
    lines = [line.split() for line in shown(app, f"jobs show {job.id}").splitlines()]
    told = [line for line in lines if line[:1] in (["requeued"], ["cancelled"])]
    assert [(line[0], line[3:5], " ".join(line[-2:])) for line in told] == [
        ("requeued", ["UTC", "by"], "try again"),
        ("cancelled", ["UTC", "by"], "not wanted"),
    ]
    document = json.loads(shown(app, f"jobs show {job.id} --json"))
    assert [(change["change"], change["by"], change["reason"]) for change in document["changes"]] == [
        ("requeued", this_user(), "try again"),
        ("cancelled", this_user(), "not wanted"),
    ]


def test_a_replay_is_among_the_changes_of_its_job(app, send):
    job = send.enqueue("nobody")
    work(app)
    app.dead_letters.replay(pipeline="send")
    (change,) = job.changes()
    assert (change.change, change.by, change.reason) == ("requeued", this_user(), "its dead letter was replayed")


def test_changes_go_with_their_job(app, send):
    """Retention leaves nothing of a job behind."""
    job = send.enqueue("ann")
    app.jobs.cancel(job.id)
    app.store.prune("jobs", datetime.now(UTC) + timedelta(days=1))
    with app.store._database.reading() as tx:
        assert tx.row("select count(*) from outlast_job_changes where job = ?", int(job.id))[0] == 0
    with pytest.raises(outlast.JobNotFound):
        job.changes()


def test_an_edit_must_fit_the_job(app, send):
    """Names that the function does not take, names that are missing, and too much are refused; the letter stays as it was."""
    send.enqueue("nobody")
    work(app)
    (letter,) = app.dead_letters.find()

    def edit(payload):
        return lambda: app.dead_letters.edit(letter.id, payload, reason="typo")

    assert "expected no argument 'too' of send. Did you mean 'to'?" in problems(edit({"too": "ann"}))
    assert "expected the argument to of send, got: nothing." in problems(edit({"day": 2}))
    assert "expected the payload of a job to have at most 1,048,576 bytes" in problems(edit({"to": "x" * 2**20}))
    (same,) = app.dead_letters.find()
    assert (same.payload, same.edited) == ({"to": "nobody"}, False)
    assert edit({"to": "ann", "day": 2})().edited
    app.dead_letters.replay(ids=[letter.id])
    assert work(app).succeeded == 1


def test_an_edit_of_older_arguments_is_left_to_upgrade(app):
    """Arguments of an older version are those of older code; `upgrade` brings them up to date when they are replayed."""

    @app.job(name="push")
    def push(to: str) -> str:
        raise ValueError(to)

    push.enqueue("ann")
    work(app)
    newer = outlast.App(app.name, store=app.store_url)

    @newer.job(name="push", version=2, upgrade=lambda old, _: {"address": old["to"]})
    def push_two(address: str) -> str:
        return address

    (letter,) = newer.dead_letters.find()
    newer.dead_letters.edit(letter.id, {"to": "bob"}, reason="typo")
    newer.dead_letters.replay(ids=[letter.id])
    work(newer)
    assert [job.result() for job in newer.jobs.find()] == ["bob"]
    newer.store.close()


def test_an_imported_letter_of_a_job_moves_no_job_of_the_same_number(app, send, tmp_path):
    """Exported from one store and taken in by another one, by a shell: its job is not there, whatever has its number."""
    send.enqueue("nobody")
    work(app)
    (letter,) = app.dead_letters.find()
    folder = tmp_path / "letters"
    shown(app, f"dlq export {folder}")
    other = outlast.App(f"tests-{uuid4().hex}", store=tmp_path / "other.db")

    @other.job
    def bill(n: int) -> None:
        raise ValueError("never")

    while (last := bill.enqueue(1)) and int(last.id) < int(letter.item_key):
        if int(letter.item_key) - int(last.id) > 200:  # numbers of a database that many tests share
            with other.store._database.writing() as tx:
                tx.execute("update sqlite_sequence set seq = ? where name = 'outlast_jobs'", int(letter.item_key) - 1)
    work(other)
    same_number = other.jobs.get(letter.item_key)
    assert same_number.status == "failed"
    shown(other, f"dlq import {folder}")
    (imported,) = other.dead_letters.find(pipeline="send")
    assert (imported.id, imported.kind, imported.payload) == (letter.id, "job", {"to": "nobody"})
    done = other.dead_letters.replay(ids=[imported.id], check=False)
    assert done.requeued == ()
    assert done.left == {imported.id: "its job is not in this store, or not kept any more; enqueue it anew"}
    assert same_number.status == "failed"
    assert [found.status for found in other.dead_letters.find(pipeline="send", status=None)] == ["open"]
    other.store.close()


def test_a_letter_that_comes_home_requeues_its_job(app, send, tmp_path):
    """Imported where its job is, it is the letter that is there already."""
    job = send.enqueue("nobody")
    work(app)
    folder = tmp_path / "letters"
    shown(app, f"dlq export {folder}")
    shown(app, f"dlq import {folder}")
    (letter,) = app.dead_letters.find()
    assert app.dead_letters.replay(ids=[letter.id]).requeued == (job.id,)


def test_a_long_unique_key_is_shown_for_what_it_is(app, send):
    """Of a key that no index holds its hash is kept; the key itself still finds the job."""
    short = "order 17"
    with pytest.raises(outlast.ConfigurationError, match="at most 500 characters"):
        send.options(unique_key="é" * 501)
    long = "\N{PILE OF POO}" * 400  # 1,600 bytes
    job, other = send.options(unique_key=long).enqueue("ann"), send.options(unique_key=short).enqueue("ann")
    assert send.options(unique_key=long).enqueue("ann") == job
    assert job.unique_key.startswith("sha256:")
    assert other.unique_key == short
    assert [found.id for found in app.jobs.find(unique_key=long)] == [job.id]
    line = next(line for line in shown(app, f"jobs show {job.id}").splitlines() if line.startswith("unique key"))
    assert line == f"unique key   {job.unique_key} (the hash of a key of more than 1,000 bytes)"
    documents = [json.loads(shown(app, f"jobs show {each.id} --json")) for each in (job, other)]
    assert [(document["unique_key"], document["unique_key_is_hash"]) for document in documents] == [
        (job.unique_key, True),
        (short, False),
    ]


def test_what_a_sweep_brought_back_is_told_although_another_worker_could_not_be_swept(app, monkeypatch):
    """One worker's broken row hides nothing of the others."""

    @app.job
    def note(n: int) -> None: ...

    handles = [note.enqueue(n) for n in range(2)]
    gone = [Hands(app), Hands(app)]
    for hands in gone:
        assert len(hands.take(most=1)) == 1
        app.store.drop_lease(hands.lease)
    broken = int(handles[0].id)
    real = upkeep.after_crash

    def fails(orphan, *args, **kwargs):
        if orphan.id == broken:
            raise ValueError("cannot be decided")
        return real(orphan, *args, **kwargs)

    monkeypatch.setattr(upkeep, "after_crash", fails)
    with capture_events() as events:
        swept = upkeep.Upkeep(
            app,
            app.store,
            {},
            None,
            None,
            alone=lambda: None,
            undo=lambda: None,
            woken=lambda: None,
            sure=lambda: True,
            each_second=lambda: None,
        )
        swept._tell = lambda callback: callback()
        with pytest.raises(ValueError, match="cannot be decided"):
            swept._sweep()
    assert [event.job_ids for event in events if event.name == "worker_lost"] == [(handles[1].id,)]
    assert (handles[0].status, handles[1].status) == ("processing", "queued")
