"""Dead letters of jobs: read, edited, archived, and sent again by putting their jobs back into the queue."""

from __future__ import annotations

import json
import threading

import pytest
from typer.testing import CliRunner

import outlast
from job_hands import Hands
from labor import Beside, wait_until
from outlast.cli import app as command_line
from outlast.deadletters import ReplayStopped
from outlast.testing import work


@pytest.fixture
def send(app):
    @app.job
    def send(to: str, day: int = 1) -> str:
        return to

    return send


@pytest.fixture
def hands(app, send):
    return Hands(app)


def letters(app, status="open"):
    return [*app.dead_letters.find(status=status)]


def problems(work):
    with pytest.raises(outlast.ConfigurationError) as caught:
        work()
    return list(caught.value.problems)


def test_a_failed_job_is_a_dead_letter_like_any_other(app, send, hands):
    """Found, grouped, counted and put away (C-14)."""
    jobs = [send.enqueue(name) for name in "abc"]
    hands.fail(text="no answer")
    (group,) = app.dead_letters.groups(pipeline="send")
    assert (group.count, group.pipeline, group.stage, group.message) == (3, "send", "send", "no answer")
    found = letters(app)
    assert {(letter.kind, letter.item_key, letter.pipeline, letter.run_id) for letter in found} == {
        ("job", job.id, "send", None) for job in jobs
    }
    assert sorted(letter.payload["to"] for letter in found) == ["a", "b", "c"]
    assert app.dead_letters.archive(ids=[found[0].id], reason="not wanted") == 1
    assert len(letters(app)) == 2


def test_a_replay_puts_jobs_back_and_a_success_resolves_the_letter(app, send, hands):
    """The id stays, the history goes on, the letter is replaying meanwhile; nothing is a run."""
    job, other = send.enqueue("a"), send.enqueue("b")
    hands.fail()
    letter = next(letter for letter in letters(app) if letter.item_key == job.id)
    done = app.dead_letters.replay(ids=[letter.id])
    assert (done.requeued, dict(done.left), done.why, done.canary) == ((job.id,), {}, "1 job requeued.", None)
    assert (job.status, other.status) == ("queued", "failed")
    assert [found.id for found in letters(app, "replaying")] == [letter.id]
    assert app.dead_letters.release() == 0  # no run has claimed it: it waits for its job
    assert "It is being replayed" in problems(lambda: app.dead_letters.replay(ids=[letter.id]))[0]
    hands.succeed()
    (resolved,) = letters(app, "resolved")
    assert (resolved.id, resolved.replays) == (letter.id, 1)
    assert (job.result(), [attempt.outcome for attempt in job.history()]) == ("a", ["failed", "succeeded"])


def test_a_job_that_fails_again_opens_its_letter_again(app, send, hands):
    """One letter for one job, with the failures before."""
    send.enqueue("a")
    hands.fail(text="first")
    app.dead_letters.replay(group=letters(app)[0].group)
    hands.fail(text="second")
    (letter,) = letters(app)
    assert (letter.error, letter.replays) == ("second", 1)
    assert [earlier["error"] for earlier in letter.metadata["earlier_failures"]] == ["first"]


def test_an_edit_changes_what_the_job_gets(app, send, hands):
    """The job's payload changes when it is replayed; what is no arguments by name is refused."""
    job = send.enqueue("a", day=3)
    hands.fail()
    (letter,) = letters(app)
    assert (
        "to be its arguments by name, got: a value of type list."
        in problems(lambda: app.dead_letters.edit(letter.id, ["b"], reason="wrong address"))[0]
    )
    assert app.dead_letters.edit(letter.id, {"to": "b", "day": 3}, reason="wrong address").edited
    app.dead_letters.replay(ids=[letter.id])
    hands.succeed()
    assert job.result() == "b"


@pytest.mark.parametrize("shell", [False, True], ids=["python", "shell"])
def test_a_replay_from_the_start_does_all_steps_again(app, shell):
    """As a requeue does it: what the steps came to is forgotten, and that is on record. Without it they stay done."""
    done = []

    @app.job(retry=None)
    def publish(document: int) -> None:
        outlast.current().step("label", done.append, document)
        if len(done) < 2:
            raise ValueError("not mended")

    job = publish.enqueue(7)
    work(app)
    app.dead_letters.replay(pipeline="publish")
    work(app)
    assert (job.status, done) == ("failed", [7])
    if shell:
        code, said = run(app, "dlq", "replay", "--pipeline", "publish", "--from-start")
        assert (code, said.splitlines()[0]) == (0, "1 job requeued from the start.")
    else:
        assert app.dead_letters.replay(pipeline="publish", from_start=True).why == "1 job requeued from the start."
    assert app.store.steps(int(job.id)) == []
    work(app)
    assert (job.status, done, letters(app)) == ("succeeded", [7, 7], [])
    why = "its dead letter was replayed"
    assert [(change.change, change.reason) for change in job.changes()] == [
        ("requeued", why),
        ("forgot steps", why),
        ("requeued", why),
    ]


@pytest.mark.parametrize("from_start", [False, True])
def test_a_canary_and_the_others_begin_alike(app, from_start):
    """Those that follow a canary have their steps done again if those of the canary have."""
    done, mended = [], []

    @app.job(retry=None)
    def publish(document: int) -> None:
        outlast.current().step("label", done.append, document)
        if not mended:
            raise ValueError("not mended")

    for document in range(3):
        publish.enqueue(document)
    work(app)
    mended.append(1)
    with Beside(app):
        wait_until(lambda: any(worker.alive for worker in app.store.workers()), "a worker is there")
        replayed = app.dead_letters.replay(pipeline="publish", canary=1, from_start=from_start)
        wait_until(lambda: not app.jobs.stats(), "all are done")
    assert (len(replayed.requeued), replayed.canary) == (3, "succeeded")
    assert sorted(done) == sorted([0, 1, 2] * (1 + from_start))


def test_what_cannot_be_requeued_is_left_with_its_reason(app, send, hands):
    """A unique key that another job has, and a job that was requeued by hand; the others go on."""
    first = send.options(unique_key="k").enqueue("a")
    gone = send.enqueue("b")
    hands.fail()
    held = {letter.item_key: letter.id for letter in letters(app)}
    send.options(unique_key="k").enqueue("a")
    app.jobs.cancel(gone.id)
    done = app.dead_letters.replay(pipeline="send")
    assert done.requeued == (gone.id,)
    assert "expected the unique key of job" in done.left[held[first.id]]
    assert done.why == "1 job requeued, 1 left as they are."
    assert [letter.id for letter in letters(app)] == [held[first.id]]


def test_options_of_runs_mean_nothing_for_jobs(app, send, hands, tmp_path):
    """And letters of jobs and of items are not replayed in one."""
    send.enqueue("a")
    hands.fail()
    assert problems(lambda: app.dead_letters.replay(pipeline="send", watch=print, sink="out.jsonl")) == [
        "expected no sink for dead letters of jobs: they are put back into the queue.",
        "expected no watch for dead letters of jobs: they are put back into the queue.",
    ]

    @outlast.stage(retry=None)
    def check(row: dict) -> dict:
        raise outlast.PermanentFailure("no answer")

    outlast.Pipeline("rows", check, app=app).run([{"id": 1}], check=False)
    assert problems(lambda: app.dead_letters.replay(text="no answer")) == [
        "expected dead letters of items or of jobs, got: 1 and 1. Name the pipeline or the kind of job with pipeline=, the stage with stage=, or the letters with ids=."
    ]
    assert app.dead_letters.replay(pipeline="none").status == "completed"


def test_a_canary_goes_first_and_the_others_only_if_it_succeeds(app, send, hands):
    """With a worker that is there; a failure leaves the others open, and is raised (D-21)."""
    for name in "abcd":
        send.enqueue(name)
    hands.fail()
    outcome = []

    def replay():
        try:
            outcome.append(app.dead_letters.replay(pipeline="send", canary=1))
        except ReplayStopped as stopped:
            outcome.append(stopped.result)

    def played(work):
        waiting = threading.Thread(target=replay)
        waiting.start()
        while not [*app.jobs.find(status="queued")]:
            pass
        work()
        waiting.join()
        return outcome.pop()

    stopped = played(hands.fail)
    assert (len(stopped.requeued), len(stopped.left), stopped.canary) == (1, 3, "failed")
    assert stopped.why.endswith("did not succeed (no answer); 3 others left open.")
    assert len(letters(app)) == 4
    whole = played(hands.succeed)
    assert (len(whole.requeued), dict(whole.left), whole.canary) == (4, {}, "succeeded")
    assert len(letters(app, "replaying")) == 3


def test_a_canary_that_no_worker_takes_leaves_the_others(app, send):
    """Nobody waits for ever; the jobs of the canary stay in the queue."""
    for name in "ab":
        send.enqueue(name)
    hands = Hands(app)
    hands.fail()
    app.store.drop_lease(hands.lease)
    done = app.dead_letters.replay(pipeline="send", canary=1)
    assert (len(done.requeued), len(done.left), done.canary) == (1, 1, "unknown")
    assert done.why == "1 job of the canary requeued; no worker is there to do it; 1 other left open."


def test_a_canary_of_all_letters_is_waited_for_too(app, send):
    """With fewer letters than the canary may have, it is all of them; whether they succeed is told all the same."""
    for name in "ab":
        send.enqueue(name)
    hands = Hands(app)
    hands.fail()
    app.store.drop_lease(hands.lease)
    done = app.dead_letters.replay(pipeline="send", canary=20)
    assert (len(done.requeued), dict(done.left), done.canary) == (2, {}, "unknown")
    assert done.why == "2 jobs of the canary requeued; no worker is there to do them."


# --- in a shell ---


def run(app, *words):
    done = CliRunner().invoke(
        command_line, [*words, "--store", app.store_url, "--app", app.name], env={"COLUMNS": "200"}
    )
    return done.exit_code, done.output


def test_a_shell_shows_and_replays_letters_of_jobs(app, send, hands):
    """They read as jobs, and need no code to be sent again."""
    job = send.enqueue("secret-address")
    hands.fail(text="no answer")
    (letter,) = letters(app)
    code, listed = run(app, "dlq", "list")
    assert (code, "(job)" in listed, "send" in listed) == (0, True, True)
    code, shown = run(app, "dlq", "show", letter.id[:12])
    assert code == 0
    assert f"job          {job.id} (send)" in shown
    assert "run " not in shown
    assert "payload, its arguments" in shown
    assert "  attempt 1 failed: VendorError: no answer" in shown
    (attempt,) = json.loads(run(app, "dlq", "show", letter.id[:12], "--json")[1])["history"]
    assert (attempt["attempt"], attempt["outcome"], attempt["stop_reason"]) == (1, "failed", "exhausted")
    assert f"Send it again: outlast dlq replay {letter.id[:12]}" in shown
    assert "--target" not in shown
    code, said = run(app, "dlq", "replay", letter.id[:12], "--output", "out.jsonl")
    assert code == 2
    assert "expected no --output for dead letters of jobs" in said
    code, said = run(app, "dlq", "replay", letter.id[:12], "--json")
    assert (code, json.loads(said)["requeued"]) == (0, [job.id])
    assert job.status == "queued"
    hands.succeed()
    assert run(app, "dlq", "list", "--status", "resolved")[0] == 0
