"""What whoever enqueues a job sees of it, and what operators do with it; on both databases."""

from __future__ import annotations

import asyncio
import pickle
import threading
from datetime import UTC, datetime, timedelta

import pytest
import trio

import outlast
from job_hands import Hands
from job_rows import end
from outlast.kernel.clock import here
from outlast.kernel.wording import duration
from outlast.testing import virtual_time


@pytest.fixture
def send(app):
    @app.job
    def send(to: str, day: int = 1) -> list[str]:
        return [to] * day

    return send


@pytest.fixture
def hands(app, send):
    return Hands(app)


def problems(work):
    with pytest.raises(outlast.ConfigurationError) as caught:
        work()
    return list(caught.value.problems)


def recently(instant):
    return abs(instant - datetime.now(UTC)) < timedelta(minutes=5)


# --- enqueue ---


def test_a_job_is_queued_until_a_worker_takes_it(app, send, hands):
    """Each attribute is what is on record now."""
    job = send.enqueue("me", day=2)
    assert (job.status, job.kind, job.queue, job.attempts, job.crashes, job.error) == (
        "queued",
        "send",
        "default",
        0,
        0,
        None,
    )
    assert recently(job.next_run_at)
    assert repr(job) == f"<JobHandle {job.id} of {app.name!r}>"
    (claimed,) = hands.take()
    assert send.bind_payload(claimed.payload, claimed.version) == ((), {"to": "me", "day": 2})
    assert (job.status, job.attempts, job.next_run_at) == ("processing", 1, None)
    hands.finish(end(claimed, result=send.encode_result(["me", "me"])))
    assert (job.status, job.result()) == ("succeeded", ["me", "me"])


def test_options_say_when_where_and_in_which_order(app, send, hands):
    """A delay is counted from the database's own now; a larger priority goes first."""
    later = send.options(delay=timedelta(hours=2)).enqueue("later")
    assert timedelta(minutes=119) < later.next_run_at - datetime.now(UTC) < timedelta(minutes=121)
    low = send.enqueue("low")
    high = send.options(priority=5).enqueue("high")
    other = send.options(queue="slow").enqueue("other")
    assert [str(claimed.id) for claimed in hands.take()] == [high.id, low.id]
    assert [str(claimed.id) for claimed in hands.take("slow")] == [other.id]
    assert later.status == "queued"


def test_a_unique_key_gives_the_job_that_is_there(app, send, hands):
    """Held while it is queued, processed or has succeeded; after a failure there is a new one (C-20)."""
    first = send.options(unique_key="f-1").enqueue("a")
    assert send.options(unique_key=lambda to, day: f"f-{day}").enqueue("b") == first
    assert first.unique_key == "f-1"
    assert send.options(unique_key="f-2").enqueue("a") != first
    hands.fail()
    again = send.options(unique_key="f-1").enqueue("a")
    assert again != first
    hands.succeed()
    assert send.options(unique_key="f-1").enqueue("c") == again
    assert again.result() == ["a"]


def test_a_handle_knows_whether_its_enqueue_has_made_the_job(app, send, hands):
    """Also of an async one and of one in a transaction of the caller's; a handle that was looked up or copied does not know."""
    keyed = send.options(unique_key="f-1")
    first, second = keyed.enqueue("a"), keyed.enqueue("b")
    assert (first.new, second.new, first == second) == (True, False, True)
    assert asyncio.run(keyed.aenqueue("c")).new is False
    assert asyncio.run(send.aenqueue("c")).new is True
    assert (app.jobs.get(first.id).new, pickle.loads(pickle.dumps(first)).new) == (None, None)
    hands.succeed()
    assert keyed.enqueue("a").new is False
    with pytest.raises(AttributeError):
        first.new = False


def test_a_handle_has_what_was_enqueued(app, send):
    """Arguments come as the function gets them, defaults included or not as it was called."""
    before = datetime.now(UTC)
    job = send.options(priority=5).enqueue("me", day=2)
    assert (job.priority, job.arguments) == (5, {"to": "me", "day": 2})
    assert abs(job.enqueued_at - before) < timedelta(minutes=10)
    app.kinds.clear()
    with pytest.raises(outlast.ConfigurationError, match="Import the module that makes it first"):
        job.arguments


def test_many_jobs_are_enqueued_all_or_none(app, send):
    """How many are new; what is wrong is told with its place, and then there is none of them."""
    assert send.enqueue_many({"to": f"n-{n}"} for n in range(1_500)) == 1_500
    keyed = send.options(unique_key=lambda to: to)
    assert keyed.enqueue_many([{"to": "a"}, {"to": "b"}, {"to": "a"}]) == 2
    assert keyed.enqueue_many([{"to": "b"}, {"to": "c"}]) == 1
    assert send.enqueue_many([]) == 0
    before = len([*app.jobs.find()])
    assert problems(lambda: send.enqueue_many([{"to": "a"}, {"day": 3}, 5, {"to": "a", "dya": 1}])) == [
        "arguments[1]: expected the argument to of send, got: nothing.",
        "expected arguments[2] to be the keyword arguments of a job as a mapping, got: a value of type int.",
        "arguments[3]: expected no argument 'dya' of send. Did you mean 'day'?",
    ]
    assert problems(lambda: send.options(unique_key="one").enqueue_many([{"to": "a"}])) == [
        "expected unique_key to be a function of the arguments for enqueue_many, got: one text. All of them would be the same job."
    ]
    assert "got: one mapping. Write [...] around it." in problems(lambda: send.enqueue_many({"to": "a"}))[0]
    assert len([*app.jobs.find()]) == before == 1_503


def test_jobs_are_enqueued_from_async_code(app, send):
    """The event loop goes on meanwhile; in asyncio and in trio."""

    async def main():
        job = await send.aenqueue("me")
        new = await send.options(unique_key=lambda to: to).aenqueue_many([{"to": "a"}, {"to": "a"}])
        return job.id, new

    (first, new), (second, none) = asyncio.run(main()), trio.run(main)
    assert (new, none) == (1, 0)
    assert {first, second} < {job.id for job in app.jobs.find(kind="send")}


def test_wrong_options_are_told_at_once(app, send):
    """An option that is wrong, unknown or without effect is refused where it is written."""

    async def key(to):
        return to

    assert problems(lambda: send.options(unique_key="", delay=-1, priority=2.5, queue="", prioritty=1)) == [
        "expected no argument 'prioritty'. Did you mean 'priority'?",
        "expected unique_key to be a name (a string that is not empty), got: ''.",
        "expected delay to be seconds (a number or a timedelta) of at least 0, got: -1.",
        f"expected priority to be an integer from -{2**31 - 1} to {2**31 - 1}, got: 2.5.",
        "expected queue to be a name (a string that is not empty), got: ''.",
    ]
    assert "got: the coroutine function" in problems(lambda: send.options(unique_key=key))[0]
    assert "a function of (to, day), by name, got:" in problems(lambda: send.options(unique_key=lambda file: file))[0]
    (said,) = problems(lambda: send.options(unique_key=lambda day: day).enqueue("a"))
    assert said.endswith("to return a text of 1 to 500 characters as unique_key, got: a value of type int.")
    assert [*app.jobs.find()] == []


# --- results ---


def test_the_result_of_a_failed_job_raises_with_its_own_error_and_its_history(app, send, hands):
    """What it says is so: the error's text and class, why there was no other attempt, and each attempt."""
    job = send.enqueue("me")
    (claimed,) = hands.take()
    hands.finish(
        end(
            claimed, "waiting", "failed", delay_us=0, error="busy", error_type="VendorError", error_class="server_error"
        )
    )
    hands.fail(text="no answer")
    with pytest.raises(outlast.JobFailed) as caught:
        job.result()
    failure = caught.value
    assert str(failure) == f"the job {job.id} (send) failed: no answer"
    assert (failure.job, failure.error_class, failure.stop_reason) == (job, "server_error", "exhausted")
    (note,) = failure.__notes__
    first, second = job.history()
    assert note.splitlines() == [
        "error class: server_error",
        "no further attempt: exhausted",
        "2 attempts on record:",
        f"  attempt 1 failed after {duration(first.duration)}: busy; next run at {first.next_run_at:%Y-%m-%d %H:%M:%S} UTC",
        f"  attempt 2 failed after {duration(second.duration)}: no answer; no further attempt: exhausted",
    ]
    assert (first.number, first.outcome, first.error, first.error_class, first.error_type) == (
        1,
        "failed",
        "busy",
        "server_error",
        "VendorError",
    )
    assert (second.number, second.stop_reason, second.next_run_at, second.worker) == (
        2,
        "exhausted",
        None,
        hands.lease.key,
    )
    assert recently(first.started_at)


def test_a_failure_and_its_handle_travel_without_their_store(app, send):
    """As every error of ours; the address of a store may hold a password."""
    job = send.enqueue("me")
    app.jobs.cancel(job.id)
    with pytest.raises(outlast.JobFailed) as caught:
        job.result()
    raw = pickle.dumps(caught.value)
    assert app.store_url.encode() not in raw
    copy = pickle.loads(raw)
    assert (str(copy), copy.__notes__, copy.job.id, copy.job) == (
        str(caught.value),
        caught.value.__notes__,
        job.id,
        job,
    )
    assert problems(lambda: copy.job.status) == [
        f"this handle was copied without its store. Ask the app {app.name!r} for the job: app.jobs.get(handle.id)."
    ]


def test_the_result_of_a_cancelled_job_raises_too(app, send):
    """Nothing more will come."""
    job = send.enqueue("me")
    assert app.jobs.cancel(job.id)
    with pytest.raises(outlast.JobFailed, match=rf"the job {job.id} \(send\) was cancelled\.") as caught:
        job.result()
    assert caught.value.__notes__ == ["no attempt on record"]
    assert not app.jobs.cancel(job.id)


def test_a_result_is_waited_for_with_growing_pauses_until_the_time_is_up(app, send):
    """In virtual time: minutes pass at once. The job itself goes on."""
    job = send.options(delay=7200).enqueue("me")
    with virtual_time() as time:
        with pytest.raises(
            outlast.ResultTimeoutError,
            match=rf"the job {job.id} \(send\) has not ended within 120 s: it is queued, due at ",
        ) as caught:
            job.result(timeout=120)
        assert time.sleeps[:3] == [0.005, 0.0075, 0.01125]
        assert max(time.sleeps) == 0.5
        assert sum(time.sleeps) == pytest.approx(120)
    assert isinstance(caught.value, TimeoutError)
    assert outlast.classify(caught.value).error_class == "timeout"

    async def main():
        with virtual_time() as time, pytest.raises(outlast.ResultTimeoutError, match="has not ended within 5 s"):
            await job.aresult(timeout=5)
        assert (time.sleeps[:3], sum(time.sleeps)) == ([0.005, 0.0075, 0.01125], pytest.approx(5))

    asyncio.run(main())
    assert problems(lambda: job.result(timeout=-1)) == [
        "expected timeout to be seconds (a number or a timedelta) of at least 0, got: -1."
    ]
    assert job.status == "queued"


def test_a_result_comes_when_the_job_has_ended(app, send, hands):
    """While somebody waits for it, in a thread and in a task."""
    jobs = [send.enqueue("a"), send.enqueue("b")]
    came = []
    waiting = threading.Thread(target=lambda: came.append(jobs[0].result(timeout=200)))
    waiting.start()

    async def main():
        pending = asyncio.create_task(jobs[1].aresult(timeout=200))
        await asyncio.to_thread(hands.succeed)
        return await pending

    assert asyncio.run(main()) == ["b"]
    waiting.join()
    assert came == [["a"]]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (threading.Lock, "it is, or holds, a value of type lock."),
        (lambda: "x" * 2**20, "it takes 1,048,"),
    ],
)
def test_a_result_that_was_not_stored_says_why(app, hands, made, why):
    """The job has succeeded all the same; that its value is lost is no mistake in the configuration of who asks for it."""

    @app.job
    def make(kind: str) -> object:
        return made()

    job = make.enqueue("a")
    hands.succeed()
    assert job.status == "succeeded"
    text = f"the job {job.id} (make) has succeeded, but its result is lost: it was not stored: {why}"
    for read in (job.result, lambda: asyncio.run(job.aresult())):
        with pytest.raises(outlast.ResultLost) as caught:
            read()
        assert (str(caught.value)[: len(text)], caught.value.job) == (text, job)
    assert outlast.classify(caught.value).category == "permanent"
    nothing = outlast.App(app.name, store=app.store_url)
    assert "Import the module that makes it first." in problems(nothing.jobs.get(job.id).result)[0]
    nothing.store.close()


# --- operators ---


def test_jobs_are_found_by_what_is_known_of_them(app, send, hands):
    """The newest first, in pages that meet."""
    ids = [send.options(queue="bulk").enqueue(str(n)).id for n in range(3)]
    assert send.options(queue="bulk").enqueue_many({"to": "x"} for _ in range(450)) == 450
    key = send.options(unique_key="k").enqueue("x")
    assert len({job.id for job in app.jobs.find()}) == 454
    assert [job.id for job in app.jobs.find(queue="bulk")][-3:] == ids[::-1]
    assert [*app.jobs.find(unique_key="k")] == [*app.jobs.find(kind="send", queue="default")] == [key]
    assert [*app.jobs.find(kind="other")] == [*app.jobs.find(status="failed")] == []
    assert problems(lambda: app.jobs.find(status="waiting", kind="")) == [
        "expected status to be one of queued, processing, succeeded, failed, cancelled, got: 'waiting'.",
        "expected kind to be a name (a string that is not empty), got: ''.",
    ]


def test_a_job_that_is_not_there_is_said_to_be_missing(app, send):
    """With what may have become of it; another app's is not there either."""
    other = outlast.App("other", store=app.store_url)
    job = send.enqueue("me")
    for jobs, wanted in ((app.jobs, str(int(job.id) + 1_000)), (other.jobs, job.id)):
        with pytest.raises(outlast.JobNotFound, match=f"there is no job {wanted} in the store of"):
            jobs.get(wanted)
    assert issubclass(outlast.JobNotFound, LookupError)
    assert problems(lambda: app.jobs.get("f-1")) == ["expected the id of a job, a number such as '17', got: 'f-1'."]
    other.store.close()


def test_a_failed_job_is_put_back_with_fresh_attempts_and_its_history(app, send, hands):
    """It keeps its id; what is queued, processed or has succeeded is not requeued."""
    job = send.enqueue("me")
    assert "got: queued. It is in the queue already." in problems(lambda: app.jobs.requeue(job.id))[0]
    hands.fail()
    assert app.jobs.requeue(job.id) == job
    assert (job.status, job.attempts, job.error) == ("queued", 0, None)
    hands.succeed()
    assert [attempt.outcome for attempt in job.history()] == ["failed", "succeeded"]
    assert (
        "got: succeeded. What has succeeded is not done again: enqueue it anew, with another unique key"
        in problems(lambda: app.jobs.requeue(job.id))[0]
    )
    other = send.enqueue("you")
    app.jobs.cancel(other.id)
    assert app.jobs.requeue(other.id).status == "queued"


def test_a_paused_queue_starts_nothing_until_it_goes_on(app, send, hands):
    """What stats say of it."""
    send.enqueue("a")
    send.enqueue("b")
    send.options(delay=60).enqueue("c")
    (claimed,) = hands.take(most=1)
    app.jobs.pause("default")
    assert hands.take() == []
    (stats,) = app.jobs.stats()
    assert (stats.queue, stats.queued, stats.scheduled, stats.processing, stats.paused) == ("default", 1, 1, 1, True)
    assert 0 <= stats.oldest_wait < 200
    app.jobs.resume("default")
    assert len(hands.take()) == 1
    (worker,) = app.jobs.workers()
    assert (worker.key, worker.jobs, worker.alive) == (hands.lease.key, 2, True)
    hands.finish(end(claimed))


def test_a_handle_in_virtual_time_knows_when_it_is_due(app, send, hands):
    """Enqueued an hour ahead, due another minute later: nothing of it is left to the database's clock."""
    with virtual_time() as time:
        time.advance(3600)
        now = here.get().clock.now()
        job = send.options(delay=60).enqueue("me")
        assert abs(job.next_run_at - now - timedelta(seconds=60)) < timedelta(seconds=30)


def test_what_operators_do_in_virtual_time_happens_at_that_time(app, send):
    """An hour ahead: enqueues, a cancellation, a requeue, and which jobs are due or have ended within a window."""

    async def others():
        made = await send.aenqueue("async")
        await send.aenqueue_many([{"to": "async many"}])
        return made

    app.jobs.cancel(send.options(queue="before").enqueue("early").id)
    with virtual_time() as time:
        time.advance(3600)
        then = here.get().clock.now() - timedelta(seconds=30)  # the database's clock goes on meanwhile
        made = [send.enqueue("one"), asyncio.run(others())]
        send.enqueue_many([{"to": "many"}])
        assert len(made) + 2 == len([*app.jobs.find(status="queued")])
        assert [job.id for job in app.jobs.find(status="queued") if job.enqueued_at < then] == []
        late = send.options(delay=60, queue="late").enqueue("late")
        app.jobs.cancel(made[0].id)
        app.jobs.requeue(made[0].id)
        assert [change.at >= then for change in made[0].changes()] == [True, True]
        assert made[0].next_run_at >= then

        def seen(queue):
            (found,) = [row for row in app.jobs.stats() if row.queue == queue]
            return found.queued, found.scheduled

        assert (seen("default"), seen("late")) == ((4, 0), (0, 1))
        time.advance(120)
        assert (late.status, seen("late")) == ("queued", (1, 0))
        app.jobs.cancel(late.id)
        cancelled = {
            window: {row.queue: row.cancelled for row in app.jobs.figures(window=window, by=("queue",))}
            for window in (600, 7200)
        }
        assert cancelled == {600: {"late": 1}, 7200: {"before": 1, "late": 1}}
