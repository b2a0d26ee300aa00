"""A fault at every statement of whatever is done to jobs in the store: it was done or it was not, and done again it is."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest

from job_rows import KINDS, SECOND, by_crashes, claimed, dead, end, enqueued, failed, finished, new, worker
from outlast.store import StoreUnanswered, StoreUnavailable
from stores import TABLES, Plan, sql


def scene(store):
    """One job in every state, two workers, one of which is gone, and a queue that is paused."""
    for table in TABLES:
        sql(store, f"delete from {table}")
    lease, gone = worker(store), worker(store, owner="gone")
    for number in range(5):
        enqueued(store, new(priority=9, key=f"key {number}"))
    first, second, third, fourth, fifth = claimed(store, lease, 5)
    finished(store, lease, end(fifth, "held"))
    enqueued(store, new(priority=8), new(priority=8))
    assert len(claimed(store, gone, 2)) == 2
    ready, _, over = enqueued(store, new(key="a"), new(delay=60.0), new(priority=7))
    (last,) = claimed(store, lease)
    finished(store, lease, failed(last))
    assert last.id == over
    store.pause_queue("slow")
    return SimpleNamespace(
        lease=lease, first=first, second=second, third=third, fourth=fourth, held=fifth, ready=ready, failed=over
    )


def ends(at):
    """All that a turn may bring."""
    return [
        end(at.first, result=b"1"),
        failed(at.second),
        end(at.third, "waiting", delay_us=SECOND * 60),
        end(at.fourth, "held"),
    ]


OPERATIONS = {
    "enqueue": lambda store, at: store.enqueue([new(), new(key="b")]),
    "enqueue many": lambda store, at: store.enqueue_many([new(), new(key="b"), new(key="a")]),
    "turn": lambda store, at: store.turn(at.lease, ends(at), {"mail": 9}, KINDS, known=None),
    "threads end": lambda store, at: store.release_held(at.lease, [(at.held.id, at.held.token)]),
    "sweep": lambda store, at: store.sweep(dead("gone"), by_crashes),
    "cancel a job that is queued": lambda store, at: store.cancel_job(at.ready),
    "cancel a job that is processed": lambda store, at: store.cancel_job(at.first.id),
    "requeue": lambda store, at: store.requeue_job(at.failed),
    "pause": lambda store, at: store.pause_queue("mail"),
    "resume": lambda store, at: store.resume_queue("slow"),
    "beat": lambda store, at: store.renew_lease(at.lease),
    "leave": lambda store, at: store.drop_lease(at.lease),
    "register": lambda store, at: store.take_lease("worker", "another", "here", 600.0),
}
# What is done again when no answer came, as the worker or the user does it.
AGAIN = {
    "enqueue": lambda store, at: None,  # without a key it would be there twice, which is why there are keys
    "enqueue many": lambda store, at: None,
    "turn": lambda store, at: store.turn(
        at.lease,
        ends(at),
        {"mail": 9},
        KINDS,
        known=[(job.id, job.token) for job in (at.first, at.second, at.third, at.fourth)],
    ),
}


def told(store):
    """Everything on record, except for what differs from one time to the next."""
    columns = "state, token, worker is null, attempts, made, crashes, wanted, error, result, letter is null, unique_key"
    jobs = sql(store, f"select {columns} from outlast_jobs order by id")
    attempts = sql(store, "select number, token, outcome, error from outlast_job_attempts order by job, number")
    letters = sql(store, "select status, replays from outlast_dead_letters order by id")
    leases = sql(store, f"select until > {store._database.now}, owner, token from outlast_leases order by owner, token")
    return jobs, attempts, letters, leases, sql(store, "select queue, paused from outlast_queues order by queue")


def halfway(store):
    """With PostgreSQL ends that are no success are on record, each with all that belongs to it, before the rest of their turn."""
    at = scene(store)
    store.turn(at.lease, [one for one in ends(at) if one.state != "succeeded"], {}, KINDS)
    return told(store)


@pytest.mark.failure(15, 16)
@pytest.mark.parametrize("name", OPERATIONS)
def test_failure_15_a_fault_at_any_statement_leaves_all_or_nothing(store, monkeypatch, name):
    """Before the statement or after it, the commit too, whose answer may be lost: then it is done, and doing it again changes nothing."""
    do, again = OPERATIONS[name], AGAIN.get(name, OPERATIONS[name])
    plan = Plan(store, monkeypatch)
    at = scene(store)
    before = told(store)
    do(store, at)
    after = told(store)
    assert (before == after) == (name == "beat")
    between = [halfway(store)] if name == "turn" and store._database.at_once else []
    struck = 0
    for late in (False, True):
        for number in count(1):
            at = scene(store)
            plan.fail(number, after=late)
            try:
                do(store, at)
            except (StoreUnavailable, StoreUnanswered):
                struck += 1
            finally:
                reached = plan.seen >= number
                plan.fail(None)
            if not reached:
                break
            found = told(store)
            assert found in (before, *between, after), number
            if found == before:
                do(store, at)
            else:
                again(store, at)
            assert told(store) == after, number
    assert struck >= 3
