"""
Jobs whose workers are gone, and writes that come late, on both databases, and behind a pooler.

The tests named ``test_failure_NN`` are those rows of the table of failures seen in other queues that concern the store.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from job_rows import KINDS, SECOND, by_crashes, claimed, end, enqueued, failed, finished, new, rescued, story, worker
from outlast.errors import LeaseLost
from outlast.kernel.redact import LIMIT
from outlast.store import StoreUnavailable, jobs
from outlast.store.records import JOB_MOVES, Rescue
from stores import contents, sql

pytestmark = pytest.mark.pooled


def test_a_job_of_a_dead_worker_comes_back_with_its_crash_on_record(store):
    """D-16, C-22: the first crash makes it claimable at once; the attempt stays charged, and the token has grown."""
    (number,) = enqueued(store)
    lease = worker(store, owner="gone")
    (job,) = claimed(store, lease)
    (back,) = store.sweep(lambda owner: owner == "gone", by_crashes)
    assert (back.id, back.kind, back.queue, back.state, back.crashes) == (number, "send", "mail", "ready", 1)
    assert (back.worker, back.owner, back.held) == (lease.key, "gone", False)
    row, (attempt,) = store.job(number), store.job_attempts(number)
    assert (row.state, row.worker, row.token, row.attempts, row.crashes) == ("ready", None, 2, 1, 1)
    assert (row.error, row.error_class) == ("its worker was lost", "worker_lost")
    assert (attempt.number, attempt.token, attempt.worker, attempt.outcome) == (1, 1, lease.key, "crashed")
    assert (attempt.started_us, attempt.next_run_us) == (job.claimed_us, row.due_us)
    assert store.workers() == []
    (again,) = claimed(store, worker(store))
    assert (again.token, again.attempts, again.made, again.crashes) == (3, 2, 2, 1)


def test_a_worker_that_lives_keeps_its_jobs(store):
    """Its lease has not run out, and nobody says that it is dead."""
    enqueued(store)
    lease = worker(store)
    (job,) = claimed(store, lease)
    assert rescued(store, "somebody else") == []
    assert finished(store, lease, end(job)) == ()


def test_a_lease_that_has_run_out_is_enough(store):
    """Nobody has to know that the worker is dead; a lease that was renewed in between is not ended."""
    first, second = enqueued(store, new(), new())
    over, renewed = worker(store, ttl=0.0), worker(store, ttl=0.0)
    claimed(store, over)
    claimed(store, renewed)
    sql(store, "update outlast_leases set until = until + 600000000 where key = ?", renewed.key)
    assert rescued(store) == [(first, "ready")]
    assert store.job(second).state == "processing"


def test_the_second_crash_waits_and_then_runs_alone_and_the_third_is_poison(store):
    """D-16: after the delay only a worker that asks for one job alone gets it; the third crash ends it with a dead letter."""
    (number,) = enqueued(store)
    for owner in ("one", "two"):
        claimed(store, worker(store, owner=owner))
        rescued(store, owner)
    row = store.job(number)
    assert (row.state, row.crashes, row.attempts) == ("waiting", 2, 2)
    lease, later = worker(store, owner="three"), {"ahead_us": 30 * SECOND}
    assert claimed(store, lease, 5, **later) == []
    assert store.job(number).state == "alone"
    enqueued(store)
    (job,) = claimed(store, lease, 5, alone=True, **later)
    assert (job.id, job.crashes) == (number, 2)
    assert claimed(store, lease, 5, alone=True, **later) == []
    assert rescued(store, "three") == [(number, "failed")]
    assert story(store, number) == (["crashed"] * 3, "failed")
    row = store.job(number)
    assert (row.error_class, row.crashes, store.letter(row.letter).status) == ("poison", 3, "open")


def test_a_job_that_was_held_only_waits_for_its_time_again(store):
    """Its attempt has ended as a timeout: the death of its worker is no second one."""
    first, second = enqueued(store, new(), new())
    lease = worker(store, owner="gone")
    one, two = claimed(store, lease, 2)
    finished(store, lease, end(one, "held", delay_us=60 * SECOND), end(two, "held", delay_us=0))
    assert (store.job(first).status, store.job(first).worker) == ("queued", lease.key)
    assert claimed(store, worker(store), 5, ahead_us=90 * SECOND) == []
    assert rescued(store, "gone") == [(first, "waiting"), (second, "ready")]
    assert story(store, first) == (["timeout"], "waiting")
    assert (store.job(first).crashes, store.job(first).attempts) == (0, 1)
    assert [job.id for job in claimed(store, worker(store), 5, ahead_us=90 * SECOND)] == [first, second]


def test_a_held_job_is_released_when_its_thread_has_ended(store):
    """Ready if its time has come, else it waits; what was cancelled stays so. Whoever says so twice is told."""
    first, second, third = enqueued(store, new(), new(), new())
    lease = worker(store)
    ends = [
        end(job, "held", delay_us=delay) for job, delay in zip(claimed(store, lease, 3), (0, SECOND, 0), strict=True)
    ]
    finished(store, lease, *ends)
    assert store.cancel_job(third)
    assert store.release_held(lease, [(each.id, each.token) for each in reversed(ends)]) == ()
    assert [store.job(each).state for each in (first, second, third)] == ["ready", "waiting", "cancelled"]
    assert store.release_held(lease, [(first, 1)]) == (first,)
    store.drop_lease(lease)
    with pytest.raises(LeaseLost):
        store.release_held(lease, [(second, 1)])


@pytest.mark.parametrize("way", ["its code ends", "its worker dies", "its time comes", "it is given back"])
def test_a_job_with_two_crashes_stays_alone_by_every_way_back(store, way):
    """D-16: a third crash would be poison, so nothing else may run beside it."""
    (number,) = enqueued(store)
    for owner in ("gone", "gone too"):
        claimed(store, worker(store, owner=owner))
        rescued(store, owner)
    last, later = worker(store, owner="last"), {"ahead_us": 30 * SECOND}
    assert claimed(store, last, 5, **later) == []
    (job,) = claimed(store, last, 5, alone=True, **later)
    assert job.crashes == 2
    if way == "its code ends":
        finished(store, last, end(job, "held", delay_us=0))
        store.release_held(last, [(number, job.token)])
    elif way == "its worker dies":
        finished(store, last, end(job, "held", delay_us=0))
        assert rescued(store, "last") == [(number, "alone")]
    elif way == "its time comes":
        finished(store, last, end(job, "waiting", delay_us=60 * SECOND))
        assert claimed(store, worker(store), 5, ahead_us=120 * SECOND) == []
    else:
        finished(store, last, end(job, "alone", "released"))
    assert store.job(number).state == "alone"


def test_a_sweep_cancels_what_somebody_wanted_cancelled(store):
    """Nobody is asked what becomes of it; the crash is on record."""
    (number,) = enqueued(store)
    claimed(store, worker(store, owner="gone"))
    assert store.cancel_job(number)
    assert rescued(store, "gone", decide=pytest.fail) == [(number, "cancelled")]
    assert story(store, number) == (["crashed"], "cancelled")


def test_a_worker_that_left_nothing_behind_leaves_no_lease_either(store):
    """Each registration has a key of its own; those that are over do not pile up."""
    store.drop_lease(worker(store))
    living = worker(store)
    assert rescued(store) == []
    assert [(one.key, one.alive, one.jobs) for one in store.workers()] == [(living.key, True, 0)]


# -- failures seen in other queues --------------------------------------------------------------------------------------


@pytest.mark.failure(1)
def test_failure_01_a_sweep_does_not_overwrite_what_was_finished_meanwhile(store):
    """The sweep has seen the worker as dead; before its next step the worker finishes. That outcome stays."""
    done, left = enqueued(store, new(), new())
    lease = worker(store, owner="slow")
    first, _ = claimed(store, lease, 2)

    def dead_after_all(owner):
        finished(store, lease, end(first, result=b"1"))
        return owner == "slow"

    assert [(job.id, job.state) for job in store.sweep(dead_after_all, by_crashes)] == [(left, "ready")]
    assert story(store, done) == (["succeeded"], "succeeded")
    assert (store.job(done).crashes, store.job(done).result) == (0, b"1")


@pytest.mark.failure(2)
@pytest.mark.parametrize("late_first", [True, False])
def test_failure_02_a_late_attempt_changes_nothing_in_whichever_order(store, late_first):
    """Two attempts live: the one that was given up writes before or after the other, and is refused."""
    (number,) = enqueued(store)
    old = worker(store, owner="old")
    (first,) = claimed(store, old)
    rescued(store, "old")
    newest = worker(store)
    (second,) = claimed(store, newest)

    def late():
        before = contents(store)
        for state in ("failed", "succeeded", "waiting"):
            with pytest.raises(LeaseLost):
                finished(store, old, end(first, state))
            # Even under a lease that counts: the token is that of an older claim.
            assert finished(store, newest, end(first, state)) == (number,)
        assert contents(store) == before

    if late_first:
        late()
    assert finished(store, newest, end(second)) == ()
    late()
    assert story(store, number) == (["crashed", "succeeded"], "succeeded")
    assert store.job(number).attempts == 2


@pytest.mark.failure(4)
def test_failure_04_what_cannot_be_rescued_hides_nothing(store):
    """One worker's jobs cannot be decided about; those of the others come back, and the problem is told."""
    stuck = enqueued(store, *(new(kind="sum") for _ in range(30)))
    fine = enqueued(store, *(new(queue="slow") for _ in range(3)))
    claimed(store, worker(store, owner="gone"), 30)
    for _ in fine:
        claimed(store, worker(store, owner="gone"), queue="slow")

    def decide(orphan):
        if orphan.kind == "sum":
            raise RuntimeError("no answer")
        return by_crashes(orphan)

    with pytest.raises(RuntimeError, match="no answer"):
        rescued(store, "gone", decide=decide)
    assert [store.job(each).state for each in fine] == ["ready"] * 3
    assert {store.job(each).state for each in stuck} == {"processing"}
    assert sorted(rescued(store, "gone")) == [(each, "ready") for each in stuck]


@pytest.mark.failure(5)
def test_failure_05_whoever_rescues_need_not_know_the_kind(store):
    """A kind that only newer code knows comes back like any other, for whoever knows it."""
    (number,) = enqueued(store, new(kind="from the future", version=99))
    store.turn(worker(store, owner="gone"), [], {"mail": 1}, {"from the future": 99})
    assert rescued(store, "gone") == [(number, "ready")]
    assert claimed(store, worker(store)) == []
    assert store.job(number).state == "ready"


@pytest.mark.failure(6)
def test_failure_06_jobs_are_found_though_their_worker_has_left_no_trace(store):
    """The row of a worker was deleted before its jobs were brought back; and no key is used twice."""
    (number,) = enqueued(store)
    lease = worker(store)
    (job,) = claimed(store, lease)
    sql(store, "delete from outlast_leases")
    assert rescued(store) == [(number, "ready")]
    with pytest.raises(LeaseLost):
        finished(store, lease, end(job))
    with pytest.raises(LeaseLost):
        store.renew_lease(lease)


@pytest.mark.failure(12)
def test_failure_12_two_sweeps_at_once_rescue_a_job_once(store):
    """Both have seen the worker as dead before either acts; one crash is on record."""
    (number,) = enqueued(store)
    claimed(store, worker(store, owner="gone"))
    inner = []

    def dead_for_both(owner):
        if not inner:
            inner.append(None)
            inner[0] = rescued(store, "gone")
        return owner == "gone"

    assert store.sweep(dead_for_both, by_crashes) == []
    assert inner == [[(number, "ready")]]
    assert (store.job(number).crashes, store.job(number).token) == (1, 2)
    # Both stand before the same worker in two threads.
    claimed(store, worker(store, owner="gone"))
    together, found = threading.Barrier(2, timeout=60), []

    def dead_together(owner):
        with suppress(threading.BrokenBarrierError):
            together.wait()
        return owner == "gone"

    def go():
        found.extend(store.sweep(dead_together, by_crashes))

    threads = [threading.Thread(target=go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert [job.id for job in found] == [number]
    assert story(store, number) == (["crashed", "crashed"], "waiting")


@pytest.mark.failure(17)
@pytest.mark.timeout(300)
def test_failure_17_bulk_moves_never_wait_for_each_other_in_a_circle(store):
    """Turns, cancellations, requeues, sweeps and enqueues of unique keys on the same jobs at once: no deadlock, and nothing is lost."""
    keys = [f"key-{number}" for number in range(12)]
    enqueued(store, *(new(key=key) for key in keys))
    problems, lost = [], []

    def work(name):
        lease = worker(store, owner=name)
        hand = []
        for number in range(25):
            try:
                ends = [failed(job) if job.id % 2 else end(job, "waiting") for job in reversed(hand)]
                done = store.turn(lease, ends, {"mail": 6}, KINDS)
                lost.extend(done.lost)
                hand = done.claimed
                if number % 8 == 7:
                    store.sweep(lambda owner: owner == name, by_crashes)
                    lease, hand = worker(store, owner=name), []
            except LeaseLost:
                lease, hand = worker(store, owner=name), []
            except StoreUnavailable as error:
                problems.append(error)
        store.drop_lease(lease)

    def operate(order):
        for _ in range(10):
            try:
                for job in order(store.jobs(limit=50)):
                    store.cancel_job(job.id)
                    with suppress(jobs.StoreRefused):
                        store.requeue_job(job.id)
                store.enqueue([new(key=key) for key in order(keys)])
            except StoreUnavailable as error:
                problems.append(error)

    threads = [threading.Thread(target=work, args=(f"worker {number}",)) for number in range(3)]
    threads += [threading.Thread(target=operate, args=(order,)) for order in (list, lambda rows: list(reversed(rows)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(250)
    assert problems == []
    store.sweep(lambda _: False, by_crashes)
    rows = store.jobs(limit=1000)
    assert {row.state for row in rows} <= set(JOB_MOVES) - {"processing"}
    held = [row.unique_key for row in rows if row.state not in {"failed", "cancelled"}]
    assert sorted(held) == sorted(set(held))
    for row in rows:
        numbers = [attempt.number for attempt in store.job_attempts(row.id)]
        assert numbers == list(range(1, row.made + 1))


@pytest.mark.failure(22)
def test_failure_22_a_claim_is_one_write(store):
    """There is no moment between taking a job and being its owner: it has a worker, a token and a charged attempt, or is ready."""
    (number,) = enqueued(store)
    lease = worker(store)
    before = contents(store)
    with pytest.raises(ZeroDivisionError), store._database.writing(batches=True) as tx:
        jobs.turns.claim(store._database, tx, store.app, lease, "mail", 1, KINDS, 1)
        raise ZeroDivisionError
    assert contents(store) == before
    claimed(store, lease)
    row = store.job(number)
    assert (row.state, row.worker, row.token, row.attempts, row.made) == ("processing", lease.key, 1, 1, 1)


@pytest.mark.failure(25)
def test_failure_25_a_job_is_not_swept_while_it_is_being_claimed(store):
    """Claims of a worker and sweeps that hold it for dead fall together: a job that was handed out is owned, or was handed out to nobody."""
    ids = enqueued(store, *(new() for _ in range(60)))
    problems, stop = [], threading.Event()
    rounds = threading.Semaphore(10)  # a few for each sweep: more than it can end would pile up for the next

    def work():
        while not stop.is_set() or any(row.state == "ready" for row in store.jobs(limit=100)):
            rounds.acquire()
            lease = worker(store, owner="now and then")
            with suppress(LeaseLost, StoreUnavailable):
                problems.extend(finished(store, lease, *(end(job) for job in claimed(store, lease, 3))))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(30):
            store.sweep(lambda _: True, lambda orphan: Rescue("ready"))
            rounds.release(10)
    finally:
        stop.set()
        rounds.release(10_000)
        thread.join(200)
    store.sweep(lambda _: True, lambda orphan: Rescue("ready"))
    assert problems == []
    for number in ids:
        outcomes, state = story(store, number)
        assert outcomes.count("succeeded") == (state == "succeeded")
        assert set(outcomes) <= {"succeeded", "crashed"}


@pytest.mark.failure(26)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=8))
def test_failure_26_jobs_without_a_key_are_claimed_like_others(store, keys):
    """Nothing about a unique key, or its absence, keeps any job from being claimed."""
    made = [done.id for done in store.enqueue([new(key=key) for key in keys])]
    lease = worker(store)
    found = [
        job for _ in keys for job in claimed(store, lease)
    ]  # one after the other, while those before are processed
    assert [job.id for job in found] == sorted(set(made))
    assert len(found) == sum(key is None for key in keys) + len({key for key in keys if key is not None})
    assert store.turn(lease, [failed(job) for job in found], {"mail": 9}, KINDS).claimed == []
    sql(store, "delete from outlast_dead_letters")


@pytest.mark.failure(27)
def test_failure_27_a_delayed_job_becomes_due_once(store):
    """It is moved, never copied: many workers promote at once, and each job is claimed once."""
    ids = enqueued(store, *(new(delay=1) for _ in range(100)))
    found, threads = [], []
    for _ in range(4):
        lease = worker(store)
        threads.append(
            threading.Thread(target=lambda lease=lease: found.extend(claimed(store, lease, 50, ahead_us=2 * SECOND)))
        )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    found += claimed(store, worker(store), 100, ahead_us=2 * SECOND)
    assert sorted(job.id for job in found) == ids
    assert {job.token for job in found} == {1}


@pytest.mark.failure(30)
def test_failure_30_times_are_the_databases_and_no_workers(store, monkeypatch):
    """A worker whose clock is off by years claims in order, and what waits waits as long as it was told."""
    monkeypatch.setattr("time.time", lambda: 1.0)
    early, late = enqueued(store, new(), new(delay=30))
    lease = worker(store)
    (job,) = claimed(store, lease, 9)
    finished(store, lease, end(job, "waiting", started_us=0, delay_us=10 * SECOND))
    now = round(store.now() * SECOND)
    rows = [store.job(each) for each in (early, late)]
    assert [abs(row.enqueued_us - now) < 60 * SECOND for row in rows] == [True, True]
    assert rows[0].enqueued_us <= job.claimed_us <= rows[0].due_us - 10 * SECOND
    assert claimed(store, lease, 9) == []
    assert [each.id for each in claimed(store, lease, 9, ahead_us=15 * SECOND)] == [early]


@pytest.mark.failure(31)
def test_failure_31_ids_go_on_beyond_32_bits(store):
    """The same life as any other job, with an id and a token that need 64."""
    big = 2**31 - 2
    if store._database.name == "sqlite":
        sql(store, "delete from sqlite_sequence where name = 'outlast_jobs'")
        sql(store, "insert into sqlite_sequence (name, seq) values ('outlast_jobs', ?)", big)
    else:
        sql(store, f"alter table outlast_jobs alter column id restart with {big + 1}")
    ids = enqueued(store, *(new() for _ in range(3)))
    assert ids == [big + 1, big + 2, big + 3]
    sql(store, "update outlast_jobs set token = ?", 2**40)
    lease = worker(store, owner="gone")
    first, second, third = claimed(store, lease, 3)
    assert finished(store, lease, end(first), end(second, "waiting", delay_us=SECOND), failed(third)) == ()
    assert [story(store, number)[1] for number in ids] == ["succeeded", "waiting", "failed"]
    claimed(store, lease, ahead_us=2 * SECOND)
    assert rescued(store, "gone") == [(ids[1], "ready")]
    assert store.requeue_job(ids[2])
    assert store.cancel_job(ids[2])


@pytest.mark.failure(32)
def test_failure_32_errors_do_not_make_the_job_grow(store):
    """Attempts have rows of their own; the job has the newest error, cut to what is kept of any."""
    (number,) = enqueued(store)
    lease = worker(store)
    for _ in range(20):
        (job,) = claimed(store, lease, ahead_us=SECOND)
        finished(store, lease, end(job, "waiting", error="\0ouch " * 100_000, error_type="X" * 10_000))
    row, attempts = store.job(number), store.job_attempts(number)
    assert (len(row.error), len(row.error_type), len(attempts)) == (LIMIT, LIMIT, 20)
    assert {len(attempt.error) for attempt in attempts} == {LIMIT}
    assert row.error.startswith("\ufffdouch")


@pytest.mark.failure(33)
def test_failure_33_a_beat_keeps_nobody_elses_lease(store):
    """A worker that was swept beats on: it is told, and the jobs it had stay with whoever has them."""
    (number,) = enqueued(store)
    old = worker(store, owner="old")
    claimed(store, old)
    rescued(store, "old")
    newest = worker(store, owner="new")
    (job,) = claimed(store, newest)
    with pytest.raises(LeaseLost):
        store.renew_lease(old)
    sql(store, "update outlast_leases set until = 1 where key = ?", newest.key)
    with pytest.raises(LeaseLost):
        store.renew_lease(old)
    assert rescued(store) == [(number, "waiting")]
    assert [attempt.token for attempt in store.job_attempts(number)] == [1, job.token]


def test_numbers_of_attempts_have_no_gap(store):
    """Whatever happens in between: crash, release, snooze, timeout, failure, success."""
    (number,) = enqueued(store)
    ahead = {"ahead_us": 3600 * SECOND}
    lease = worker(store, owner="gone")
    claimed(store, lease)
    rescued(store, "gone")
    lease = worker(store)
    for state, outcome in (("ready", "released"), ("waiting", "snoozed"), ("held", "timeout"), ("waiting", "failed")):
        (job,) = claimed(store, lease, **ahead)
        finished(store, lease, end(job, state, outcome, charged=outcome in {"timeout", "failed"}))
        if state == "held":
            assert store.release_held(lease, [(job.id, job.token)]) == ()
    (job,) = claimed(store, lease, **ahead)
    finished(store, lease, end(job))
    attempts = store.job_attempts(number)
    assert [attempt.number for attempt in attempts] == [1, 2, 3, 4, 5, 6]
    assert all(one.token < two.token for one, two in pairwise(attempts))
    assert [attempt.outcome for attempt in attempts] == [
        "crashed", "released", "snoozed", "timeout", "failed", "succeeded"
    ]  # fmt: skip
    assert store.job(number).attempts == 4
