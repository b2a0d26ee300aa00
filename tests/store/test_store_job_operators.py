"""What operators see of jobs and do to them, enqueueing in the caller's own transaction, and retention, on both databases, and behind a pooler."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
import threading
from datetime import timedelta

import psycopg
import pytest

from forked import Forked
from job_rows import KINDS, SECOND, by_crashes, claimed, end, enqueued, failed, finished, new, rescued, story, worker
from outlast.kernel.clock import here
from outlast.store import StoreRefused, jobs, open_store, retention
from outlast.store.records import JOB_ENDS, JOB_MOVES, Enqueued, Idle, from_us
from stores import address_of, contents, letter, sql

pytestmark = pytest.mark.pooled


def failed_job(store, **how):
    """A job that has failed, with its dead letter."""
    enqueued(store, new(**how))
    lease = worker(store)
    (job,) = claimed(store, lease)
    finished(store, lease, failed(job))
    return job.id


# -- cancel --------------------------------------------------------------------------------------------------------------


def test_a_queued_job_is_cancelled_at_once(store):
    """Whatever it waits for. One whose code still runs keeps its token and its worker."""
    ready, waiting, held = enqueued(store, new(), new(delay=60), new(priority=1))
    lease = worker(store)
    (job,) = claimed(store, lease)
    finished(store, lease, end(job, "held", delay_us=SECOND))
    assert [store.cancel_job(each) for each in (ready, waiting, held)] == [True] * 3
    rows = [store.job(each) for each in (ready, waiting, held)]
    assert [(row.state, row.token, row.worker, row.ended_us is not None) for row in rows] == [
        ("cancelled", 1, None, True), ("cancelled", 1, None, True), ("cancelled", 1, lease.key, True)
    ]  # fmt: skip
    assert [store.cancel_job(each) for each in (ready, 10**6)] == [False, False]
    assert claimed(store, lease, 9, ahead_us=90 * SECOND) == []


def test_the_worker_of_a_processed_job_is_asked_to_cancel_it(store):
    """Nothing is taken from it; what it says in the end counts."""
    first, second = enqueued(store, new(), new())
    lease = worker(store)
    one, two = claimed(store, lease, 2)
    assert store.cancelled_of(lease.key) == []
    assert store.cancel_job(second)
    assert store.cancelled_of(lease.key) == [(second, two.token)]
    assert store.job(second).state == "processing"
    finished(store, lease, end(one), end(two, "cancelled", "released", charged=False))
    assert (story(store, first)[1], story(store, second)) == ("succeeded", (["released"], "cancelled"))
    assert store.cancelled_of(lease.key) == []


def test_a_success_is_one_though_somebody_wanted_it_cancelled(store):
    """It was finished before anybody could stop it."""
    (number,) = enqueued(store)
    lease = worker(store)
    (job,) = claimed(store, lease)
    store.cancel_job(number)
    assert store.turn(lease, [end(job)], {}, KINDS) == ((), [], ())
    assert (store.job(number).state, store.job(number).wanted) == ("succeeded", None)
    assert not store.cancel_job(number)


@pytest.mark.parametrize("state", ["waiting", "ready", "held"])
def test_a_job_that_was_to_go_on_is_cancelled_if_somebody_wanted_it(store, state):
    """A wish is not forgotten because the worker did not hear it."""
    (number,) = enqueued(store)
    lease = worker(store)
    (job,) = claimed(store, lease)
    store.cancel_job(number)
    done = store.turn(lease, [end(job, state, "failed", error="x")], {"mail": 1}, KINDS)
    assert (done.lost, done.claimed, done.cancelled) == ((), [], (number,))
    row, (attempt,) = store.job(number), store.job_attempts(number)
    assert (row.state, row.wanted, row.worker, attempt.outcome, attempt.next_run_us) == (
        "cancelled", None, lease.key if state == "held" else None, "failed", None
    )  # fmt: skip


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("state", ["waiting", "ready", "alone", "held", "failed", "cancelled"])
def test_the_history_says_why_a_job_stopped_and_when_it_runs_again(store, state, cancel):
    """On both databases: the stop reason of the attempt is that of the job, and only a job that goes on has a next run."""
    (number,) = enqueued(store)
    lease = worker(store)
    (job,) = claimed(store, lease)
    if cancel:
        store.cancel_job(number)
    finished(store, lease, failed(job) if state == "failed" else end(job, state, "failed", delay_us=SECOND, error="x"))
    row, (attempt,) = store.job(number), store.job_attempts(number)
    now = "cancelled" if cancel and state != "failed" else state
    reason = {"failed": "exhausted", "cancelled": "cancelled"}.get(now)
    assert (row.state, row.stop_reason, attempt.stop_reason) == (now, reason, reason)
    assert attempt.next_run_us == (None if now in JOB_ENDS else row.due_us)
    error = (attempt.error, attempt.error_type, attempt.error_class)
    assert error == (("no answer", "VendorError", "server_error") if state == "failed" else ("x", None, None))


# -- requeue, and the dead letter -----------------------------------------------------------------------------------------


def test_a_failed_job_that_is_requeued_keeps_its_id_and_its_history(store):
    """Fresh attempts, no crashes, another token; the one way out of an end."""
    number = failed_job(store)
    assert store.requeue_job(number)
    row = store.job(number)
    assert (row.state, row.attempts, row.made, row.crashes, row.began_us, row.error) == ("ready", 0, 1, 0, None, None)
    lease = worker(store)
    (job,) = claimed(store, lease)
    assert (job.id, job.attempts, job.made, job.token) == (number, 1, 2, 3)
    finished(store, lease, end(job))
    assert story(store, number) == (["failed", "succeeded"], "succeeded")
    before = contents(store)
    assert [store.requeue_job(each) for each in (number, 10**6)] == [False, False]
    assert contents(store) == before


@pytest.mark.parametrize("last", ["failed", "cancelled"])
def test_a_requeued_job_is_claimed_like_a_new_one(store, last):
    """A crash, a snooze and a delay from before the requeue change neither its next wait nor its end."""
    (number,) = enqueued(store)
    claimed(store, worker(store, owner="gone"))
    rescued(store, "gone")
    lease = worker(store)
    (job,) = claimed(store, lease)
    finished(store, lease, end(job, "waiting", "snoozed", delay_us=SECOND, charged=False))
    (job,) = claimed(store, lease, ahead_us=SECOND)
    finished(store, lease, end(job, "waiting", "failed", delay_us=SECOND, error="x", error_type="E", error_class="c"))
    (job,) = claimed(store, lease, ahead_us=2 * SECOND)
    assert (job.attempts, job.crashes, job.previous_us, job.snoozed_us is None) == (3, 1, SECOND, False)
    if last == "cancelled":
        store.cancel_job(number)
    finished(store, lease, failed(job) if last == "failed" else end(job, "cancelled"))
    assert store.job(number).state == last
    assert store.requeue_job(number)
    row = store.job(number)
    assert (row.wanted, row.ended_us, row.stop_reason) == (None, None, None)
    (fresh,), (job,) = enqueued(store, new(queue="other")), claimed(store, lease)
    (new_job,) = claimed(store, lease, queue="other")
    assert (job.id, new_job.id, job.began_us) == (number, fresh, job.claimed_us)
    reset = ("attempts", "crashes", "previous_us", "snoozed_us", "error", "error_type", "error_class")
    assert {name: getattr(job, name) for name in reset} == {name: getattr(new_job, name) for name in reset}


@pytest.mark.parametrize("how", ["failed", "cancelled", "cancelled while held", "cancelled before that"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_job_whose_code_still_runs_is_requeued_as_held(store, how, gone):
    """Nobody can claim it before that code has ended, or its worker is gone; then anybody can, once."""
    (number,) = enqueued(store)
    lease, other = worker(store, owner="slow"), worker(store)
    (job,) = claimed(store, lease)
    if how == "cancelled before that":
        store.cancel_job(number)
    late = {"failed": failed(job, running=True), "cancelled": end(job, "cancelled", running=True)}
    finished(store, lease, late.get(how, end(job, "held")))
    if how == "cancelled while held":
        store.cancel_job(number)
    assert (store.job(number).state, store.job(number).worker) == (how.split()[0], lease.key)
    assert store.requeue_job(number)
    assert (store.job(number).state, store.job(number).attempts, claimed(store, other)) == ("held", 0, [])
    if gone:
        assert rescued(store, "slow") == [(number, "ready")]
    else:
        assert store.release_held(lease, [(number, job.token)]) == ()
        assert store.release_held(lease, [(number, job.token)]) == (number,)
    assert store.job(number).worker is None
    (again,) = claimed(store, other)
    assert (again.id, again.attempts, again.token > job.token) == (number, 1, True)


@pytest.mark.parametrize("gone", ["code", "worker", "lease"])
@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_an_ended_job_has_no_worker_once_its_code_has_ended(store, state, gone):
    """It stays as it ended; a requeue makes it ready."""
    (number,) = enqueued(store)
    lease = worker(store, owner="slow")
    (job,) = claimed(store, lease)
    finished(store, lease, end(job, state, running=True))
    if gone == "code":
        assert store.release_held(lease, [(number, job.token)]) == ()
    else:
        if gone == "lease":
            sql(store, "delete from outlast_leases")
        assert rescued(store, "slow") == []
    assert (store.job(number).state, store.job(number).worker) == (state, None)
    assert store.requeue_job(number)
    assert store.job(number).state == "ready"


def test_a_cancelled_job_is_requeued_and_one_under_way_is_not(store):
    """What has not ended goes on as it is."""
    (number,) = enqueued(store)
    assert not store.requeue_job(number)
    store.cancel_job(number)
    assert store.requeue_job(number)
    lease = worker(store)
    claimed(store, lease)
    assert not store.requeue_job(number)


def test_the_letter_of_a_requeued_job_is_replayed_and_resolved_by_its_success(store):
    """It is nobody's replay of a run: no claimant, nothing to be released."""
    number = failed_job(store)
    name = store.job(number).letter
    store.requeue_job(number)
    assert (store.letter(name).status, store.letter(name).claimed_by) == ("replaying", f"job {number}")
    assert store.claimants() == []
    lease = worker(store)
    (job,) = claimed(store, lease)
    finished(store, lease, end(job))
    kept = store.letter(name)
    assert (kept.status, kept.replays, kept.last_attempt_us >= job.claimed_us) == ("resolved", 1, True)


def test_the_letter_of_a_requeued_job_is_opened_again_by_its_failure(store):
    """With the failure of this time, and the one before among the earlier ones; there is no second letter."""
    number = failed_job(store)
    name = store.job(number).letter
    for replays in (1, 2):
        store.requeue_job(number)
        lease = worker(store)
        (job,) = claimed(store, lease)
        finished(store, lease, failed(job, "another answer"))
        kept = store.letter(name)
        assert (kept.status, kept.replays, kept.error, kept.claimed_by) == ("open", replays, "another answer", None)
        assert len(kept.metadata["earlier_failures"]) == replays
    assert [row.id for row in store.letters()] == [name] == [store.job(number).letter]


def test_the_letter_of_a_requeued_job_that_crashes_for_good_is_opened_again(store):
    """The third crash is a failure like any other."""
    number = failed_job(store)
    store.requeue_job(number)
    for owner in ("one", "two", "three"):
        lease = worker(store, owner=owner)
        store.turn(lease, [], {"mail": 1}, KINDS, alone=owner == "three", ahead_us=60 * SECOND)
        rescued(store, owner, decide=by_crashes)
    kept = store.letter(store.job(number).letter)
    assert (store.job(number).state, kept.status, kept.replays, kept.error_class) == ("failed", "open", 1, "poison")


def test_the_letter_of_a_requeued_job_that_is_cancelled_is_opened_again(store):
    """Queued or processed: its work was not done."""
    for cancel_processed in (False, True):
        number = failed_job(store)
        store.requeue_job(number)
        lease = worker(store)
        found = claimed(store, lease) if cancel_processed else []
        store.cancel_job(number)
        finished(store, lease, *(end(job, "waiting") for job in found))
        kept = store.letter(store.job(number).letter)
        assert (store.job(number).state, kept.status, kept.replays) == ("cancelled", "open", 0)
        assert kept.reason == "its job was cancelled"


def test_a_cancelled_job_leaves_its_letter_to_the_replay_that_has_claimed_it(store):
    """An operator opened the letter while the job was on its way, and a replay of a run took it."""
    number = failed_job(store)
    name = store.job(number).letter
    store.requeue_job(number)
    (job,) = claimed(store, lease := worker(store))
    store.move_letters([name], from_="replaying", to="open", reason="to be replayed")
    replay = store.open_run("p", "replay", (), kind="replay")
    of_run = store.take_run(replay.number, 0, "here", 600.0)
    assert store.claim_for_replay(of_run, replay.id, [name], reason="replayed") == 1
    store.cancel_job(number)
    finished(store, lease, end(job, "waiting"))
    assert (store.job(number).state, store.letter(name).status) == ("cancelled", "replaying")
    assert sql(store, "select claimed_by from outlast_dead_letters") == [(replay.id,)]


def test_a_requeue_takes_the_payload_that_its_letter_was_given(store):
    """What an operator has edited is what is done; what nobody has edited stays as it is."""
    number = failed_job(store, payload=b"old")
    store.requeue_job(number)
    assert store.job(number).payload == b"old"
    (job,) = claimed(store, lease := worker(store))
    finished(store, lease, failed(job))
    store.edit_letter(store.job(number).letter, b"new", "a typing error")
    store.requeue_job(number)
    assert store.job(number).payload == b"new"


def test_a_letter_that_was_put_away_resolved_or_deleted_is_not_in_the_way(store):
    """An archived one is taken out again; for one that is settled or gone another failure makes a new one."""
    number = failed_job(store)
    name = store.job(number).letter
    store.move_letters([name], to="archived", reason="not ours")
    store.requeue_job(number)
    assert store.letter(name).status == "replaying"
    (job,) = claimed(store, lease := worker(store))
    finished(store, lease, failed(job))
    store.move_letters([name], to="resolved", reason="done by hand")
    store.requeue_job(number)
    (job,) = claimed(store, lease)
    second = failed(job)._replace(letter=letter(10**9, kind="job", pipeline="send", item_key=str(number)))
    finished(store, lease, second)
    assert (store.letter(name).status, store.job(number).letter) == ("resolved", second.letter.id)


def test_a_letter_that_a_replay_of_a_run_has_claimed_stays_with_it(store):
    """Whoever has it settles it; the job goes its own way."""
    number = failed_job(store)
    name = store.job(number).letter
    run = store.open_run("send", "replay-1", (), kind="replay")
    lease = store.take_run(run.number, 0, "first", 600)
    assert store.claim_for_replay(lease, run.id, [name], reason="replayed by replay-1") == 1
    store.requeue_job(number)
    (job,) = claimed(store, mine := worker(store))
    finished(store, mine, end(job))
    assert (store.letter(name).status, store.letter(name).claimed_by) == ("replaying", run.id)
    assert [claimant.claim for claimant in store.claimants()] == [run.id]


def test_a_requeue_is_refused_while_another_job_has_its_unique_key(store):
    """The sentence names the other one; nothing is changed. Once that has failed, it works."""
    number = failed_job(store, key="f-1")
    (other,) = enqueued(store, new(key="f-1"))
    before = contents(store)
    with pytest.raises(
        StoreRefused, match=f"the unique key of job {number} to be free, got: it is held by job {other}"
    ):
        store.requeue_job(number)
    assert contents(store) == before
    store.cancel_job(other)
    assert store.requeue_job(number)


@pytest.mark.parametrize("seconds", [None, 3600])
def test_a_requeue_that_a_success_stands_in_the_way_of_says_until_when(store, seconds):
    """To cancel that one is no way out: it is over."""
    number = failed_job(store, key="f-1")
    (other,) = enqueued(store, new(key="f-1"))
    (job,) = claimed(store, lease := worker(store))
    finished(store, lease, end(job, unique_for_us=None if seconds is None else seconds * SECOND))
    until = store.job(other).unique_until_us
    with pytest.raises(StoreRefused) as refused:
        store.requeue_job(number)
    least = "" if until is None else f" and at least until {from_us(until):%Y-%m-%d %H:%M:%S} UTC"
    assert str(refused.value) == (
        f"expected the unique key of job {number} to be free, got: it is held by job {other}, which has succeeded. "
        f"It holds the key as long as it is on record{least}. If the work is to be done again before that, enqueue it with "
        "another key."
    )


# -- queues, lists, figures --------------------------------------------------------------------------------------------


def test_a_paused_queue_is_not_claimed_from(store):
    """Others are; what is processed goes on; resumed, it is as before."""
    (first,) = enqueued(store)
    enqueued(store, new(queue="slow"))
    lease = worker(store)
    store.pause_queue("mail")
    store.pause_queue("mail")
    assert [job.queue for job in store.turn(lease, [], {"mail": 5, "slow": 5}, KINDS).claimed] == ["slow"]
    store.resume_queue("mail")
    assert [job.id for job in claimed(store, lease)] == [first]


def test_queues_with_jobs_that_may_be_claimed_are_named(store):
    """In whichever state those are, and however many there are."""
    enqueued(
        store, *(new(queue=queue) for queue in ("b", "a", "c", "a") for _ in range(3)), new(queue="later", delay=60)
    )
    sql(store, "update outlast_jobs set state = 'alone' where queue = 'c'")
    assert store.ready_queues() == ["a", "b", "c"]
    with open_store(address_of(store), app="other") as other:
        assert other.ready_queues() == []


def test_jobs_are_listed_newest_first_and_in_pages(store):
    """By queue, kind, status and unique key."""
    ids = enqueued(store, *(new(queue="slow" if number % 2 else "mail") for number in range(6)))
    (keyed,) = enqueued(store, new(kind="sum", key="k", delay=5))
    lease = worker(store)
    (job,) = claimed(store, lease)
    finished(store, lease, end(job))
    claimed(store, lease)
    assert [row.id for row in store.jobs()] == [keyed, *reversed(ids)]
    assert [row.id for row in store.jobs(limit=2, after=ids[3])] == [ids[2], ids[1]]
    assert [row.id for row in store.jobs(queue="slow")] == [ids[5], ids[3], ids[1]]
    assert [row.id for row in store.jobs(kind="sum")] == [row.id for row in store.jobs(unique_key="k")] == [keyed]
    assert {status: len(store.jobs(status=status)) for status in ("queued", "processing", "succeeded", "failed")} == {
        "queued": 5, "processing": 1, "succeeded": 1, "failed": 0
    }  # fmt: skip
    assert store.jobs(unique_key="k")[0].unique_key == "k"


def test_figures_of_queues(store):
    """What is due, what is due later, what is processed, and how long the oldest has waited of those that may be claimed."""
    enqueued(store, *(new() for _ in range(4)), new(delay=60), new(queue="slow", delay=60))
    lease = worker(store)
    one, _ = claimed(store, lease, 2)
    finished(store, lease, end(one, "held", delay_us=SECOND))
    store.pause_queue("empty")
    store.pause_queue("slow")
    store.resume_queue("empty")
    mail, slow = store.queue_stats(ahead_us=10 * SECOND)
    assert mail[:5] == ("mail", 3, 1, 1, False)
    assert 10 * SECOND <= mail.oldest_wait_us < 60 * SECOND
    assert slow == ("slow", 0, 1, 0, True, None, 0)
    mail, slow = store.queue_stats(ahead_us=61 * SECOND)  # nobody has made them ready yet
    assert (mail[:5], slow[:5]) == (("mail", 4, 0, 1, False), ("slow", 1, 0, 0, True))
    assert SECOND <= slow.oldest_wait_us < 60 * SECOND


@pytest.mark.parametrize("delay", [0, 60])
def test_a_held_job_is_counted_as_it_is_found(store, delay):
    """Queued, or due later; it lets nobody think that a job which may start has waited."""
    enqueued(store)
    lease = worker(store)
    (job,) = claimed(store, lease)
    finished(store, lease, end(job, "held", delay_us=delay * SECOND))
    (row,) = store.jobs(status="queued")
    assert (row.state, row.status, store.jobs(status="processing")) == ("held", "queued", [])
    assert store.queue_stats() == [("mail", int(delay == 0), int(delay > 0), 0, False, None, 0)]


def test_every_state_of_a_job_that_is_not_over_is_counted_as_its_status(store):
    """None is left out, and none is counted twice."""
    for state in JOB_MOVES.keys() - JOB_ENDS:
        (number,) = enqueued(store, new(queue=state))
        for due in (0, 2**60):
            sql(store, "update outlast_jobs set state = ?, due = ? where id = ?", state, due, number)
            (stats,) = [one for one in store.queue_stats() if one.queue == state]
            counted = {"queued": stats.queued + stats.scheduled, "processing": stats.processing}
            assert counted == {"queued": 0, "processing": 0} | {store.job(number).status: 1}


def test_workers_are_seen_with_their_jobs(store):
    """Until a sweep has ended them, also those whose lease has run out."""
    enqueued(store, new(), new())
    living, over = worker(store, owner="host:1"), worker(store, owner="host:2", ttl=0.0)
    claimed(store, living, 2)
    found = {one.key: one for one in store.workers()}
    assert (found[living.key].owner, found[living.key].alive, found[living.key].jobs) == ("host:1", True, 2)
    assert (found[over.key].owner, found[over.key].alive, found[over.key].jobs) == ("host:2", False, 0)
    assert found[living.key].ttl == 600


def test_a_worker_that_has_given_its_lease_back_is_not_seen(store):
    """Unless it has left a job behind, which a sweep will bring back."""
    enqueued(store)
    idle, careless = worker(store), worker(store)
    claimed(store, careless)
    store.drop_lease(idle)
    store.drop_lease(careless)
    assert [(one.key, one.alive, one.jobs) for one in store.workers()] == [(careless.key, False, 1)]


def test_whether_a_job_waits_that_must_run_alone(store):
    """Only one that can be claimed: in a queue that is served and not paused, of a kind that is known."""
    (number,) = enqueued(store, new())
    assert not store.waits_alone(None, KINDS)
    sql(store, "update outlast_jobs set state = 'alone', crashes = 2 where id = ?", number)
    served = [store.waits_alone(queues, KINDS) for queues in (None, ("slow", "mail"), ("slow",), ())]
    assert served == [True, True, False, False]
    assert not store.waits_alone(None, {"sum": 1})
    store.pause_queue("mail")
    assert not store.waits_alone(None, KINDS)
    store.resume_queue("mail")
    assert store.waits_alone(("mail",), KINDS)
    assert store.idle(None, KINDS).alone


def test_whether_anything_is_left_to_do(store):
    """Due, processed or held, and later; in the queues and of the kinds that somebody serves; paused ones do not count."""

    def idle(queues, kinds, **how):
        return store.idle(queues, kinds, **how)._replace(now_us=0)

    assert idle(None, KINDS) == Idle(0, 0, 0, None)
    first, _, later = enqueued(store, new(), new(queue="slow"), new(delay=60))
    enqueued(store, new(kind="nobody"), new(kind="sum", version=9))
    due = store.job(later).due_us
    assert idle(None, KINDS) == Idle(2, 0, 0, due)
    assert idle(["mail"], KINDS) == Idle(1, 0, 0, due)
    store.pause_queue("slow")
    assert idle(None, KINDS) == Idle(1, 0, 0, due)
    lease = worker(store)
    (job,) = claimed(store, lease)
    assert idle(None, KINDS) == Idle(0, 1, 0, due)
    finished(store, lease, end(job, "held", delay_us=SECOND))
    assert idle(None, KINDS) == Idle(0, 1, 0, due)
    store.cancel_job(first)
    assert idle(None, KINDS) == Idle(0, 0, 1, due)
    assert idle(None, KINDS, ahead_us=61 * SECOND) == Idle(1, 0, 0, None)
    assert idle([], KINDS) == idle(None, {}) == Idle(0, 0, 0, None)


# -- in the caller's own transaction -------------------------------------------------------------------------------------


def connection_of(store):
    """A connection of the caller's own to the database of the store, with how it marks parameters."""
    database = store._database
    if database.name == "sqlite":
        return sqlite3.connect(database.path, isolation_level=None), "qmark"
    return psycopg.connect(**database._settings, autocommit=True), "format"


def runner(connection):
    def run(statement, parameters):
        return connection.execute(statement, parameters).fetchall()

    return run


def test_a_job_is_there_if_and_only_if_the_callers_transaction_commits(store):
    """Before that nobody sees it; after a rollback there is none."""
    connection, style = connection_of(store)
    connection.execute("begin")
    (gone,) = store.enqueue_in(runner(connection), [new()], paramstyle=style)
    connection.execute("rollback")
    assert (gone.new, store.jobs()) == (True, [])
    connection.execute("begin")
    done = store.enqueue_in(
        runner(connection), [new(b"1"), new(b"2", key="k", delay=9), new(key="k")], paramstyle=style
    )
    assert store.jobs() == []
    connection.execute("commit")
    connection.close()
    assert done[1].id == done[2].id
    assert [each.new for each in done] == [True, True, False]
    row, delayed = store.job(done[0].id), store.job(done[1].id)
    assert (row.state, row.payload, row.due_us) == ("ready", b"1", row.enqueued_us)
    assert (delayed.state, abs(delayed.due_us - delayed.enqueued_us - 9 * SECOND) < SECOND) == ("waiting", True)
    assert [job.id for job in claimed(store, worker(store), 9)] == [row.id]


def test_a_transaction_in_another_database_is_refused(store, tmp_path, postgres):
    """One without a store, and one with another store; the caller's transaction goes on."""
    if store._database.name == "sqlite":
        open_store(f"sqlite:///{tmp_path}/other.db").close()
        others = [sqlite3.connect(tmp_path / name, isolation_level=None) for name in ("plain.db", "other.db")]
        style = "qmark"
    else:
        postgres.execute("drop database if exists plain", "drop database if exists second")
        postgres.execute("create database plain", "create database second")
        settings = store._database._settings
        open_store(address_of(store, name="second")).close()
        others = [psycopg.connect(**settings | {"dbname": name}, autocommit=True) for name in ("plain", "second")]
        style = "format"
    for connection in others:
        connection.execute("begin")
        with pytest.raises(StoreRefused, match="got: one in another database"):
            store.enqueue_in(runner(connection), [new()], paramstyle=style)
        assert connection.execute("select 1").fetchone()[0] == 1
        connection.execute("commit")
        connection.close()
    if store._database.name == "postgres":
        postgres.execute("drop database plain with (force)", "drop database second with (force)")


def test_statements_are_spelled_for_each_kind_of_driver(store):
    """asyncpg numbers its parameters."""
    steps = store.enqueue_steps([new(b"?")], paramstyle="numeric_dollar")
    next(steps)
    steps.send([(True,)])
    statement, parameters = steps.send([(*store._identity(), 5_000)])
    assert "values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) returning id" in statement
    assert ("?" in statement, len(parameters), parameters[7]) == (False, 11, b"?")
    assert 5_000 <= parameters[6] < 6_000  # on SQLite within the millisecond that its clock says


@pytest.mark.parametrize("how", ["one", "several", "many"])
def test_an_enqueue_that_fails_keeps_no_later_one_from_notifying(store, postgres, monkeypatch, how):
    """The 20 ms begin with a notification that was sent."""
    if store._database.name == "sqlite":
        return  # nobody can be told by a file
    monkeypatch.setattr(jobs, "QUIET", 60.0)
    enqueue = {
        "one": lambda **job: store.enqueue([new(**job)]),
        "several": lambda **job: store.enqueue([new(**job), new()]),
        "many": lambda **job: store.enqueue_many([new(**job), new()]),
    }[how]
    with psycopg.connect(postgres.dsn, autocommit=True) as listener:
        listener.execute("listen outlast_jobs")
        with pytest.raises((StoreRefused, TypeError)):
            enqueue(priority="high")  # the column holds numbers
        enqueue()
        assert [note.payload for note in listener.notifies(timeout=20, stop_after=1)] == ["default"]


def test_a_queue_that_is_resumed_notifies(store, postgres):
    """Its jobs are claimed at once, and not when the next worker polls."""
    if store._database.name == "sqlite":
        return  # nobody can be told by a file
    store.pause_queue("mail")
    with psycopg.connect(postgres.dsn, autocommit=True) as listener:
        listener.execute("listen outlast_jobs")
        store.resume_queue("mail")
        assert [note.payload for note in listener.notifies(timeout=20, stop_after=1)] == ["default"]


def test_listeners_are_told_once_the_jobs_are_committed(store, postgres):
    """PostgreSQL: at most once in 20 ms and process, with the app as payload; not for jobs that are due later."""
    if store._database.name == "sqlite":
        return  # nobody can be told by a file
    listener = psycopg.connect(postgres.dsn, autocommit=True)
    listener.execute("listen outlast_jobs")
    connection, style = connection_of(store)

    def told():
        """The payloads since the last time."""
        connection.execute(
            "notify outlast_jobs, 'and that is all'", prepare=False
        )  # a pooler lends the session to others
        payloads = []
        for note in listener.notifies(timeout=200):
            if note.payload == "and that is all":
                return payloads
            payloads.append(note.payload)
        raise AssertionError(payloads)

    store.enqueue([new(delay=60)])
    assert told() == []
    store.enqueue([new()])
    assert told() == ["default"]
    store._notified = math.inf  # just now
    store.enqueue([new()])
    store.enqueue_many([new()])
    assert told() == []
    store._notified = -1.0
    store.enqueue_many([new()])
    assert told() == ["default"]
    with connection.transaction():
        store.enqueue_in(runner(connection), [new()], paramstyle=style)
        assert listener.execute("select 1").fetchone() == (1,)  # takes along what has come
        assert list(listener.notifies(timeout=0)) == []
    assert told() == ["default"]
    number = failed_job(store, priority=9)  # before the others
    told()
    store._notified = -1.0
    assert store.requeue_job(number)
    assert told() == ["default"]
    connection.close()
    listener.close()


# -- unique keys in two processes ----------------------------------------------------------------------------------------

_ENQUEUE = """
import sys
from outlast.store import open_store
from outlast.store.records import NewJob
with open_store(sys.argv[1]) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(40):
        (done,) = store.enqueue([NewJob("mail", "send", 1, 0, 0, b"{}", f"key-{number}")])
        print(done.id, int(done.new), flush=True)
"""


@pytest.mark.timeout(600)
def test_two_processes_that_enqueue_one_key_at_once_get_one_job(store, address):
    """Each key has one job, which both have the id of, and one of them has made."""
    programs = [
        Forked([sys.executable, "-c", _ENQUEUE, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for program in programs:
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        program.stdin.write("go\n")
        program.stdin.flush()
    told = [program.communicate(timeout=200)[0].split() for program in programs]
    assert told[0][::2] == told[1][::2]
    news = [int(one) + int(two) for one, two in zip(told[0][1::2], told[1][1::2], strict=True)]
    assert news == [1] * 40
    assert len(store.jobs(limit=100)) == 40


def test_a_requeue_and_an_enqueue_of_one_key_at_once_make_one_job(store):
    """However they fall together: one is queued, the other is refused or is that one."""
    for _ in range(10):
        number = failed_job(store, key="k")
        start, seen = threading.Barrier(2, timeout=60), []

        def requeue(number=number, start=start, seen=seen):
            start.wait()
            try:
                seen.append(Enqueued(number, new=store.requeue_job(number)))
            except StoreRefused:
                seen.append(None)

        thread = threading.Thread(target=requeue)
        thread.start()
        start.wait()
        (made,) = store.enqueue([new(key="k")])
        thread.join(200)
        live = [row.id for row in store.jobs(status="queued")]
        assert live == [made.id]
        assert seen == [Enqueued(number, new=True) if made.id == number else None]
        store.cancel_job(made.id)


# -- retention -----------------------------------------------------------------------------------------------------------


def ended(store, days, *states):
    """Jobs that ended so many days ago."""
    made = []
    for state in states:
        (number,) = enqueued(store)
        (job,) = claimed(store, lease := worker(store))
        finished(store, lease, end(job, state))
        sql(store, "update outlast_jobs set ended = ended - ? where id = ?", days * 86_400 * SECOND, number)
        made.append(number)
    return made


def test_retention_of_jobs_is_on_by_default(store):
    """Those that succeeded or were cancelled go after 7 days, failed ones after 90, with their attempts; what is under way stays."""
    states = ("succeeded", "cancelled", "failed")
    ended(store, 91, *states)
    week = ended(store, 8, *states)
    fresh = ended(store, 6, *states)
    (live,) = enqueued(store)
    sql(store, "update outlast_jobs set enqueued = 1, due = 1 where id = ?", live)
    done = retention.apply(store, {}, here.get().clock.now())
    assert (done["jobs"], done["failed_jobs"]) == (4, 1)
    assert [row.id for row in store.jobs()] == [live, *reversed(fresh), week[2]]
    assert len(sql(store, "select job from outlast_job_attempts")) == 4
    assert retention.apply(
        store, {"jobs": None, "failed_jobs": None}, here.get().clock.now() + timedelta(days=999)
    ) == {"dead_letters": 0}
    done = retention.apply(store, {"jobs": 0, "failed_jobs": 0}, here.get().clock.now() + timedelta(days=1))
    assert (done["jobs"], done["failed_jobs"], [row.id for row in store.jobs()]) == (2, 2, [live])


@pytest.mark.parametrize("status", ["open", "replaying", "archived", "resolved", "deleted"])
@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_job_is_kept_as_long_as_its_letter_can_be_replayed(store, state, status):
    """A letter without its job could only be looked at."""
    number = failed_job(store)
    name = store.job(number).letter
    if state == "cancelled":
        store.requeue_job(number)
        store.cancel_job(number)
    sql(store, "update outlast_jobs set ended = ended - ?", 100 * 86_400 * SECOND)
    sql(store, "update outlast_dead_letters set status = ?", status)
    if status == "deleted":
        sql(store, "delete from outlast_dead_letters")
    gone = status in {"resolved", "deleted"}
    assert store.prune("failed_jobs" if state == "failed" else "jobs", here.get().clock.now()) == gone
    assert ((store.job(number) is None), (store.letter(name) is None)) == (gone, status == "deleted")


def test_a_unique_key_outlives_the_retention_of_its_job(store):
    """As long as its job was told to hold it, a second enqueue gives the job that is there."""
    (number,) = enqueued(store, new(key="k"))
    (job,) = claimed(store, lease := worker(store))
    finished(store, lease, end(job, unique_for_us=30 * 86_400 * SECOND))
    sql(store, "update outlast_jobs set ended = ended - ?", 20 * 86_400 * SECOND)
    now = here.get().clock.now()
    assert store.prune("jobs", now) == 0
    assert store.enqueue([new(key="k")]) == [Enqueued(number, new=False)]
    for table, column in (("jobs", "unique_until"), ("unique_keys", "until")):
        sql(store, f"update outlast_{table} set {column} = {column} - ?", 31 * 86_400 * SECOND)
    assert store.prune("jobs", now) == 1
    assert store.enqueue([new(key="k")])[0].new


def test_pruning_is_bounded_and_goes_on(store, monkeypatch):
    """So many at a time; what is left goes the next time."""
    monkeypatch.setattr("outlast.store.upkeep._CHUNK", 2)
    ended(store, 8, *["succeeded"] * 5)
    now = here.get().clock.now()
    assert store.prune("jobs", now, at_most=3) == 4
    assert store.prune("jobs", now) == 1
    with pytest.raises(ValueError, match="one of runs, dead_letters, events, jobs, failed_jobs, got: 'job'"):
        store.prune("job", now)


def test_a_program_of_the_version_before_may_open_the_letter_of_a_requeued_job(store):
    """D-32: it takes the claim for that of a replay that is gone. What becomes of the job moves the letter all the same."""
    for state, status in (("succeeded", "resolved"), ("failed", "open")):
        number = failed_job(store)
        store.requeue_job(number)
        name = store.job(number).letter
        # As it opens what nobody seems to work on.
        sql(store, "update outlast_dead_letters set status = 'open', reason = 'its replay is gone' where id = ?", name)
        (job,) = claimed(store, lease := worker(store))
        finished(store, lease, end(job) if state == "succeeded" else failed(job))
        assert (store.letter(name).status, store.letter(name).replays) == (status, 1)
