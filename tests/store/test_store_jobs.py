"""Durable jobs in the store: enqueued, claimed and ended, on both databases, and behind a pooler."""

from __future__ import annotations

import select
from dataclasses import replace

import pytest

from job_rows import KINDS, SECOND, claimed, end, enqueued, failed, finished, new, story, worker
from outlast.errors import LeaseLost
from outlast.store import StoreRefused, StoreUnavailable, open_store, turns
from outlast.store.database import Transaction
from outlast.store.leases import fenced
from outlast.store.postgres import Line
from outlast.store.records import JOB_ENDS, JOB_MOVES, JOB_STATES, AlikeJobs, Enqueued
from stores import Plan, address_of, contents, sql

pytestmark = pytest.mark.pooled


def test_a_new_job_is_ready_or_waits_for_its_time(store):
    """It has no attempt, no token and no owner yet; its instants are the database's."""
    now = store.now() * SECOND
    soon, later = enqueued(store, new(b"1", priority=3), new(b"2", queue="slow", kind="sum", version=2, delay=60))
    first, second = store.job(soon), store.job(later)
    assert (first.queue, first.kind, first.version, first.priority, first.payload) == ("mail", "send", 1, 3, b"1")
    assert (first.state, first.status, second.state, second.status) == ("ready", "queued", "waiting", "queued")
    assert (first.token, first.worker, first.attempts, first.made, first.crashes) == (0, None, 0, 0, 0)
    assert first.due_us == first.enqueued_us
    assert second.due_us == second.enqueued_us + 60 * SECOND
    assert abs(first.enqueued_us - now) < 30 * SECOND
    assert store.job_attempts(soon) == []
    assert store.job(10**6) is None


@pytest.mark.parametrize("like", [new(), new(queue="it's", kind='"é\u4e2d\n', version=3, priority=-7), new(delay=60)])
@pytest.mark.parametrize("count", [1, 3, 627])
def test_jobs_that_are_alike_are_stored_as_others_are(store, like, count):
    """Only their payloads travel, and whatever else a job has is what it would have: in the order given, of any bytes."""
    payloads = [bytes([n % 256]) * (n % 50) for n in range(count)]
    assert store.enqueue_many([like._replace(payload=payload) for payload in payloads]) == count
    assert store.enqueue_many(AlikeJobs(like, payloads)) == count
    found = sorted(store.jobs(limit=2 * count), key=lambda job: job.id)
    one, other = found[:count], found[count:]
    assert [job.payload for job in other] == payloads
    for job, twin in zip(one, other, strict=True):
        assert replace(twin, id=job.id, due_us=job.due_us, enqueued_us=job.enqueued_us) == job
        assert twin.due_us - twin.enqueued_us == like.delay_us
    assert list(AlikeJobs(like, payloads[:2])) == [like._replace(payload=payload) for payload in payloads[:2]]


def test_many_jobs_are_stored_all_or_none(store, monkeypatch):
    """Whichever statement of it fails, before it is done or after; and when one of the payloads is too large."""
    monkeypatch.setattr("outlast.store.jobs.QUIET", 0.0)  # a second call soon after the first has the same statements
    many = AlikeJobs(new(), [b"x" * 100] * 2700)
    plan = Plan(store, monkeypatch)
    plan.fail(None)
    assert store.enqueue_many(many) == 2700
    statements = plan.seen
    assert statements >= 4
    for at in range(1, statements):  # of the last one, the commit, the answer may be lost
        for after in (False, True):
            plan.fail(at, after=after)
            with pytest.raises(StoreUnavailable):
                store.enqueue_many(many)
    plan.fail(None)
    with pytest.raises(StoreRefused, match="expected the payload of a job 'send' to have at most 1,048,576 bytes"):
        store.enqueue_many(AlikeJobs(new(), [b"x", b"x" * (2**20 + 1), b"x"]))
    assert store.enqueue_many(AlikeJobs(new(), [])) == 0
    (stats,) = store.queue_stats()
    assert stats.queued == 2700


def test_jobs_are_claimed_by_priority_then_by_age(store):
    """The largest priority first; of equal ones the one that was enqueued first."""
    ids = enqueued(store, new(priority=0), new(priority=9), new(priority=0), new(priority=-5), new(priority=9))
    lease = worker(store)
    found = [job.id for _ in range(5) for job in claimed(store, lease)]
    assert found == [ids[1], ids[4], ids[0], ids[2], ids[3]]
    assert claimed(store, lease) == []


def test_a_claim_is_on_record_with_its_attempt(store):
    """C-22: the attempt is charged, and the token has grown, before anybody runs anything."""
    (number,) = enqueued(store, new(b"7"))
    lease = worker(store)
    (job,) = claimed(store, lease)
    assert (job.id, job.kind, job.version, job.queue, job.payload) == (number, "send", 1, "mail", b"7")
    assert (job.token, job.attempts, job.made, job.crashes, job.previous_us, job.snoozed_us) == (1, 1, 1, 0, None, None)
    row = store.job(number)
    assert (row.state, row.worker, row.token, row.attempts) == ("processing", lease.key, 1, 1)
    assert (row.began_us, row.claimed_us, row.enqueued_us) == (job.began_us, job.claimed_us, job.enqueued_us)


def test_a_claim_takes_what_was_asked_for_and_nothing_else(store):
    """So many of each queue, of known kinds, with payloads that this code can read; other apps have jobs of their own."""
    enqueued(store, *(new(queue=queue) for queue in ("mail", "slow") for _ in range(3)))
    unknown, newer = enqueued(store, new(kind="nobody"), new(kind="sum", version=4))
    (old,) = enqueued(store, new(kind="sum", version=2))
    with open_store(address_of(store), app="other") as other:
        enqueued(other)
        assert [job.queue for job in claimed(other, worker(other), 9)] == ["mail"]
    found = store.turn(worker(store), [], {"mail": 9, "slow": 1, "none": 5}, KINDS).claimed
    assert [job.queue for job in found] == ["mail"] * 4 + ["slow"]
    assert found[3].id == old
    assert {store.job(each).state for each in (unknown, newer)} == {"ready"}
    assert store.turn(worker(store), [], {"mail": 9}, {}).claimed == []
    assert [job.id for job in store.turn(worker(store), [], {"mail": 9}, {"sum": 4, "send": 1}).claimed] == [newer]


def of_one_queue(store, lease, most=9, queue="mail", kinds=KINDS):
    """What the statement claims with which a worker claims what it is told of; None where there is none."""
    database = store._database
    if not database.one_queue:
        return None
    asked = store.claim_asked(lease, {queue: most}, kinds, most=most, after={})
    assert asked.statement == database.one_queue
    connection = database.connect(batches=False)
    try:
        if database.pooled(connection):
            return None  # a line is never what a pooler lends
        line = Line(connection, (database.at_once, database.one_queue))
        line.send(asked)
        while not line.flush():
            pass
        while line.told() == [] and (rows := line.answer()) is None:
            select.select([line], [], [])
    finally:
        connection.close()
    if isinstance(rows, Exception):
        raise rows
    return store.claim_answered(asked, lease, {queue: most}, rows)


def test_what_a_worker_is_told_of_is_claimed_as_by_any_turn(store):
    """Of one queue: the same jobs in the same order, with the same on record; not what is paused, locked, not due, unknown or newer."""
    many = [new(priority=priority, kind=kind) for priority in (0, 5, -1) for kind in ("send", "sum")]
    others = [new(queue="slow"), new(kind="nobody"), new(kind="sum", version=4), new(delay=60)]
    first = enqueued(store, *many, *others)
    lease = worker(store)
    store.pause_queue("mail")
    assert of_one_queue(store, lease) in (None, [])
    store.resume_queue("mail")
    found = of_one_queue(store, lease, 4)
    if found is None:
        return  # SQLite has one writer and no statement for it, and what a pooler lends does not listen
    second = enqueued(store, *many, *others)
    twins = claimed(store, worker(store), 4)
    assert [job.id - first[0] for job in found] == [2, 3, 0, 1]
    assert [job.id - second[0] for job in twins] == [2, 3, 0, 1]
    pairs = [(found[0], store.job(first[2])), (found[3], store.job(first[1]))]
    for job, row in pairs:
        assert (row.state, row.worker, row.token, row.attempts, row.made) == ("processing", lease.key, 1, 1, 1)
        assert (row.claimed_us, row.began_us, row.payload) == (job.claimed_us, job.began_us, job.payload)
        assert 0 <= job.claimed_us - job.enqueued_us < 60 * SECOND
    assert {store.job(each).state for each in first[6:]} == {"ready", "waiting"}


def test_who_has_lost_its_lease_claims_nothing_that_it_is_told_of(store):
    """The token of the lease guards that statement, too; with nothing to claim it writes nothing."""
    (number,) = enqueued(store, new())
    lease = worker(store)
    store.drop_lease(lease)
    assert of_one_queue(store, lease) in (None, [])
    assert store.job(number).state == "ready"
    lease = worker(store)
    assert of_one_queue(store, replace(lease, token=lease.token + 1)) in (None, [])
    assert store.job(number).state == "ready"
    found = of_one_queue(store, lease)
    if found is not None:
        assert [job.id for job in found] == [number]
        ((before,),) = sql(store, "select pg_current_xact_id()::text::bigint")
        assert of_one_queue(store, lease) == []
        ((after,),) = sql(store, "select pg_current_xact_id()::text::bigint")
        assert after == before + 1


def test_a_success_is_on_record_with_its_result(store):
    """One row for the attempt; the job has its result, no owner and no error, and is never claimed again."""
    (number,) = enqueued(store)
    lease = worker(store)
    (job,) = claimed(store, lease)
    before = store.job(number)
    assert finished(store, lease, end(job, result=b"42", unique_for_us=7)) == ()
    row = store.job(number)
    assert (row.state, row.status, row.result, row.worker, row.error) == ("succeeded", "succeeded", b"42", None, None)
    assert row.ended_us >= before.claimed_us
    assert row.unique_until_us == row.ended_us + 7
    (attempt,) = store.job_attempts(number)
    assert attempt == (number, 1, 1, lease.key, job.claimed_us, 5, "succeeded", *[None] * 6)
    assert claimed(store, lease, 9) == []


RESULTS = {"none": None, "empty": b"", "text": "größe \u2028".encode(), "no text": b"\xff\xfe", "zero": b"a\0b"}


@pytest.mark.parametrize("together", [True, False])
def test_any_bytes_are_a_result(store, together):
    """Whether all of a turn are text or not; one that is held by nobody has no time until which it is."""
    given = list(RESULTS.values())
    ids = enqueued(store, *(new() for _ in given))
    lease = worker(store)
    ends = [end(job, result=result) for job, result in zip(claimed(store, lease, 9), given, strict=True)]
    for part in [ends] if together else [[each] for each in ends]:
        assert finished(store, lease, *part) == ()
    rows = [store.job(number) for number in ids]
    assert [(row.result, row.unique_until_us) for row in rows] == [(result, None) for result in given]


class Explained(Transaction):
    """Shows the plan of each statement that gives rows, and does it."""

    __slots__ = ("plans",)

    def rows(self, statement, *parameters):
        plan = super().rows(f"explain (costs off) {statement}", *parameters)
        self.plans.append("\n".join(row[0] for row in plan))
        return super().rows(statement, *parameters)


def test_turns_look_rows_up_by_their_keys_whatever_the_figures_say(store):
    """
    PostgreSQL: the claim begins at its place, in the index of ready jobs or by the id, and ends go by the primary key;
    nothing reads the table.
    """
    if store._database.name == "sqlite":
        return
    store.enqueue_many(new() for _ in range(3000))  # which nobody has analysed yet
    lease = worker(store)
    found = claimed(store, lease, 500)
    with store._database.writing() as tx:
        shown = Explained(store._database, tx.connection)
        shown.plans = []
        fenced(store._database, shown, store.app, lease, f"token, {store._database.one_by_one}")
        turns.finish(store._database, shown, store.app, lease.key, [end(job) for job in found], 1)
        after = (found[-1].priority, found[-1].id)
        assert len(turns.claim(store._database, shown, store.app, lease, "mail", 500, KINDS, 1, after=after)) == 500
    ending, claiming = shown.plans
    assert ("Seq Scan" in ending, "outlast_jobs_pkey" in ending, "outlast_jobs_owned" in ending) == (False, True, False)
    assert "Seq Scan on outlast_jobs" not in claiming, claiming
    # Which of the two is better depends on what autovacuum has seen so far.
    assert "outlast_jobs_ready" in claiming or "outlast_jobs_pkey" in claiming, claiming
    assert f"(id > '{after[1]}'" in claiming  # beside the queue, or by itself


def test_a_failed_attempt_waits_for_its_next_run(store):
    """The delay is on record where everybody sees it; when it is over, the job is claimed with another token and number."""
    (number,) = enqueued(store)
    lease = worker(store)
    (job,) = claimed(store, lease)
    finished(store, lease, end(job, "waiting", delay_us=30 * SECOND, error="no answer", error_class="server_error"))
    row, (attempt,) = store.job(number), store.job_attempts(number)
    assert (row.state, row.status, row.error, row.error_class, row.attempts) == (
        "waiting", "queued", "no answer", "server_error", 1
    )  # fmt: skip
    assert row.previous_us == 30 * SECOND
    assert (attempt.outcome, attempt.error, attempt.next_run_us) == ("failed", "no answer", row.due_us)
    assert claimed(store, lease) == []
    (again,) = claimed(store, lease, ahead_us=30 * SECOND)
    assert (again.token, again.attempts, again.made, again.previous_us) == (2, 2, 2, 30 * SECOND)
    assert again.began_us == job.began_us
    finished(store, lease, end(again))
    assert story(store, number) == (["failed", "succeeded"], "succeeded")
    assert store.job(number).error is None


def test_what_is_given_back_is_not_charged(store):
    """Released or snoozed: the attempt is on record and does not count; the first snooze is remembered."""
    (number,) = enqueued(store)
    lease = worker(store)
    (job,) = claimed(store, lease)
    finished(store, lease, end(job, "ready", "released", charged=False))
    assert store.job(number).attempts == 0
    (job,) = claimed(store, lease)
    assert (job.attempts, job.made, job.snoozed_us) == (1, 2, None)
    finished(store, lease, end(job, "waiting", "snoozed", delay_us=SECOND, charged=False))
    first = store.job(number).snoozed_us
    assert (first is not None, store.job(number).previous_us) == (True, None)
    (job,) = claimed(store, lease, ahead_us=SECOND)
    assert (job.attempts, job.made, job.snoozed_us) == (1, 3, first)
    finished(store, lease, end(job, "waiting", "snoozed", delay_us=SECOND, charged=False))
    assert store.job(number).snoozed_us == first
    assert story(store, number) == (["released", "snoozed", "snoozed"], "waiting")


def test_a_failed_job_leaves_a_dead_letter_in_the_same_transaction(store):
    """C-14: the letter and the state are there together."""
    (number,) = enqueued(store)
    lease = worker(store)
    (job,) = claimed(store, lease)
    last = failed(job)
    finished(store, lease, last)
    row = store.job(number)
    assert (row.state, row.error, row.stop_reason, row.letter) == ("failed", "no answer", "exhausted", last.letter.id)
    letter = store.letter(row.letter)
    assert (letter.kind, letter.pipeline, letter.item_key, letter.status, letter.replays) == (
        "job", "send", str(number), "open", 0
    )  # fmt: skip
    (attempt,) = store.job_attempts(number)
    assert (attempt.outcome, attempt.stop_reason, attempt.next_run_us) == ("failed", "exhausted", None)


def test_an_end_whose_letter_cannot_be_written_is_no_end(store):
    """C-14: if the letter cannot be kept, the job goes on being processed."""
    first, second = enqueued(store, new(), new())
    lease = worker(store)
    one, two = claimed(store, lease, 2)
    finished(store, lease, failed(one))
    before = contents(store)
    doubled = failed(two)._replace(letter=store.letter(store.job(first).letter))
    with pytest.raises(StoreRefused):
        finished(store, lease, doubled)
    assert contents(store) == before
    assert store.job(second).state == "processing"


def test_a_late_end_changes_nothing_and_is_told(store):
    """Whoever does not have the newest token is told so; what is on record stays."""
    first, second = enqueued(store, new(), new())
    lease = worker(store)
    one, two = claimed(store, lease, 2)
    before = contents(store)
    late = end(one._replace(token=0), "failed")
    assert finished(store, lease, late, end(two._replace(token=9))) == (first, second)
    assert contents(store) == before
    assert finished(store, lease, end(one), late) == (first,)
    assert story(store, first) == (["succeeded"], "succeeded")


def test_a_turn_that_comes_again_is_not_late(store):
    """The answer to its commit was lost: what it has written is there once, and what it has claimed is given again."""
    first, second, third = enqueued(store, new(), new(), new())
    lease = worker(store)
    (job,) = claimed(store, lease)
    store.turn(lease, [end(job)], {"mail": 1}, KINDS)  # nobody hears what this says
    before = contents(store)
    again = store.turn(lease, [end(job)], {}, KINDS, known=[(job.id, job.token)])
    assert (again.lost, [found.id for found in again.claimed]) == ((), [second])
    assert contents(store) == before
    held = [(found.id, found.token) for found in again.claimed]
    assert store.turn(lease, [], {"mail": 1}, KINDS, known=held).claimed[0].id == third
    assert story(store, first) == (["succeeded"], "succeeded")


def test_a_turn_comes_again_that_has_claimed_what_it_ended(store):
    """The worker still knows the job by its attempt before: that is another one."""
    (first,) = enqueued(store, new())
    lease = worker(store)
    (job,) = claimed(store, lease)
    ends = [end(job, "ready")]
    store.turn(lease, ends, {"mail": 1}, KINDS)  # nobody hears what this says
    again = store.turn(lease, ends, {"mail": 1}, KINDS, known=[(job.id, job.token)])
    assert (again.lost, [(found.id, found.token) for found in again.claimed]) == ((), [(first, job.token + 1)])


def test_a_worker_that_lost_its_lease_neither_claims_nor_ends(store):
    """What it says is refused as a whole, and nothing of it is written."""
    enqueued(store, new(), new())
    lease = worker(store)
    (job,) = claimed(store, lease)
    store.drop_lease(lease)
    before = contents(store)
    with pytest.raises(LeaseLost):
        store.turn(lease, [end(job)], {"mail": 1}, KINDS)
    assert contents(store) == before


def test_a_cursor_skips_what_was_claimed_before(store):
    """Only later jobs of the same priority are looked at, until somebody looks from the start."""
    ids = enqueued(store, *(new() for _ in range(6)), new(priority=1))
    lease = worker(store)
    assert claimed(store, lease)[0].priority == 1
    found = claimed(store, lease, 2, after={"mail": (0, ids[1])})
    assert [job.id for job in found] == ids[2:4]
    assert claimed(store, lease, 2, after={"mail": (1, 0)}) == []
    assert [job.id for job in claimed(store, lease, 9)] == [*ids[:2], *ids[4:6]]


def test_a_unique_key_is_held_until_its_job_has_failed_or_was_cancelled(store):
    """C-20: a second enqueue gives the job that is there; of another kind or app it is another key."""
    (first,) = store.enqueue([new(key="f-1")])
    assert first.new
    assert store.enqueue([new(key="f-1"), new(key="f-1")]) == [Enqueued(first.id, new=False)] * 2
    assert store.enqueue([new(kind="sum", key="f-1")])[0].new
    assert store.enqueue_many([new(key="f-1"), new(key="f-2"), new(key="f-2"), new()]) == 2
    lease = worker(store)
    job = next(job for job in claimed(store, lease, 9) if job.id == first.id)
    assert store.enqueue([new(key="f-1")]) == [Enqueued(first.id, new=False)]
    finished(store, lease, failed(job))
    (second,) = store.enqueue([new(key="f-1")])
    assert (second.new, second.id > first.id) == (True, True)
    (job,) = claimed(store, lease)
    finished(store, lease, end(job))
    assert store.enqueue([new(key="f-1")]) == [Enqueued(second.id, new=False)]


@pytest.mark.parametrize("key", ["zero \0, half \ud800", "x" * 5000, "", "ключ"])
def test_any_text_is_a_unique_key(store, key):
    """No database has to be able to hold or index it as it is."""
    (first,) = store.enqueue([new(key=key)])
    assert store.enqueue([new(key=key)]) == [Enqueued(first.id, new=False)]
    assert store.enqueue([new(key=f"{key}!")])[0].new


def test_many_jobs_are_enqueued_at_once_or_not_at_all(store):
    """The number of new ones; one that cannot be kept leaves none."""
    assert store.enqueue_many(new(str(number).encode()) for number in range(2500)) == 2500
    assert store.enqueue_many([]) == 0
    before = contents(store)
    with pytest.raises(StoreRefused, match="at most 1,048,576 bytes, got: 1,048,577"):
        store.enqueue_many([new(), new(b"x" * (2**20 + 1))])
    assert contents(store) == before
    found = claimed(store, worker(store), 5000)
    assert [job.payload for job in found] == [str(number).encode() for number in range(2500)]


def test_a_payload_that_is_too_large_is_refused_without_showing_it(store):
    """The sentence has the size and the way out."""
    with pytest.raises(StoreRefused) as refused:
        store.enqueue([new(b"secret" * 200_000)])
    assert "the payload of a job 'send'" in str(refused.value)
    assert "secret" not in str(refused.value)
    store.most_job_bytes = 3 * 2**20
    enqueued(store, new(b"secret" * 200_000))
    assert sql(store, "select count(*) from outlast_jobs") == [(1,)]


def test_the_table_of_moves_has_every_state_and_leaves_no_end_by_itself():
    """`succeeded` is never left; `failed` and `cancelled` only by an operator's requeue: towards ready, or
    held while the code still runs."""
    assert set(JOB_MOVES) == {state for states in JOB_STATES.values() for state in states}
    assert {state: set(JOB_MOVES[state]) for state in JOB_ENDS} == {
        "succeeded": set(),
        "failed": {"ready", "held"},
        "cancelled": {"ready", "held"},
    }


def test_a_job_cannot_be_ended_against_the_table_of_moves(store):
    """A caller's mistake is told before anything is written."""
    enqueued(store)
    lease = worker(store)
    (job,) = claimed(store, lease)
    with pytest.raises(ValueError, match=r"expected a job that was processed to become .* got: 'processing'"):
        finished(store, lease, end(job, "processing", "failed"))


def test_only_a_turn_that_changed_nothing_does_not_wait_for_the_disk(store, monkeypatch):
    """An idle worker's look costs no flush; whatever was claimed, ended or made ready is on disk when the turn is over."""
    database, seen = store._database, []
    if database.name == "sqlite":
        lease = worker(store)
        before = contents(store)
        assert (claimed(store, lease), contents(store)) == ([], before)
        return

    def once(statement, *parameters):
        with database._batches.lend() as connection, connection.transaction():
            rows = connection.execute(database.spelled(statement), parameters, binary=True).fetchall()
            seen.append(connection.execute("show synchronous_commit").fetchone()[0])
        return rows

    monkeypatch.setattr(database, "once", once)
    lease = worker(store)
    claimed(store, lease)
    enqueued(store, new())
    (job,) = claimed(store, lease)
    finished(store, lease, end(job))
    enqueued(store, new(kind="of newer code", delay=60))
    claimed(store, lease)
    claimed(store, lease, ahead_us=61 * SECOND)  # nothing that it knows, but it is ready now
    claimed(store, lease, ahead_us=61 * SECOND)
    assert seen == ["off", "on", "on", "off", "on", "off"]


def test_an_app_is_seen_whatever_becomes_of_its_only_job(store, monkeypatch):
    """A command that is given no app takes the only one there is, also while a job goes from one state to another."""
    (job,) = enqueued(store, new(delay=60))
    row = Transaction.row

    def moved(tx, statement, *values):
        if "state = 'waiting'" in statement:  # after the ready ones were looked at
            monkeypatch.undo()
            sql(store, "update outlast_jobs set state = 'ready' where id = ?", job)
        return row(tx, statement, *values)

    for look in (store.apps, lambda: [store.app] * store.has_app(store.app)):
        sql(store, "update outlast_jobs set state = 'waiting' where id = ?", job)
        monkeypatch.setattr(Transaction, "row", moved)
        assert look() == [store.app]
        assert store.job(job).state == "ready"


def prepared(pool) -> set[str]:
    """What its sessions of PostgreSQL keep prepared; behind a pooler, whatever sessions it is lent."""
    asked = "select statement from pg_prepared_statements"
    return {row[0][:30] for connection in pool._idle for row in connection.execute(asked).fetchall()}


def test_statements_of_every_job_are_kept_prepared_where_the_session_is_ours(store, monkeypatch):
    """The server reads and plans them once; what a pooler lends is left as it was."""
    database = store._database
    monkeypatch.setattr("outlast.store.jobs.QUIET", 0.0)  # each tells of itself
    if database.name == "sqlite":
        return  # its driver keeps them by itself
    lease = worker(store)
    for _ in range(12):
        enqueued(store, new())
        (job,) = claimed(store, lease)
        finished(store, lease, end(job))
    with database._many.lend() as connection:
        own = not database.pooled(connection)
    assert prepared(database._many) == (
        {"insert into outlast_jobs (app,", "select pg_logical_emit_message"} if own else set()
    )
    assert prepared(database._batches) == ({"select * from outlast_turn($1,"} if own else set())


def test_what_is_enqueued_often_is_on_record_as_what_is_enqueued_first(store):
    """Later ones go without what a driver does for them; every letter and every byte is the same, and so is the delay."""
    given = new(kind='a "k" \\ {é},\u2603', payload=bytes(range(256)), queue="q'\t", priority=-3, delay=60)
    for _ in range(12):
        enqueued(store, given)
    columns = "queue, kind, version, state, priority, payload, due - enqueued, unique_key"
    assert {(*row[:5], bytes(row[5]), *row[6:]) for row in sql(store, f"select {columns} from outlast_jobs")} == {
        (given.queue, given.kind, given.version, "waiting", -3, given.payload, 60_000_000, None)
    }


@pytest.mark.parametrize("lost", ["deallocated", "made for other columns"])
def test_a_prepared_statement_that_is_of_no_use_any_more_is_done_without(store, lost):
    """Somebody has taken it away, or changed the table that it was made for: a job is enqueued once all the same."""
    database = store._database
    if database.name == "sqlite":
        return
    for _ in range(12):
        enqueued(store, new())
    with database._many.lend() as connection:
        if lost == "deallocated":
            connection.execute("do 'begin execute ''deallocate all''; end'")  # which the driver does not see
        else:
            connection.execute("alter table outlast_jobs rename id to number")
            connection.execute("alter table outlast_jobs rename number to id")
    enqueued(store, new())
    assert sql(store, "select count(*) from outlast_jobs") == [(13,)]
