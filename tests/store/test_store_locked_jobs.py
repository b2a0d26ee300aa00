"""
Jobs of a worker that is gone, in transactions of their own code that somebody else's role has opened: PostgreSQL only.

The store is used as `outlast_keeper`, which owns nothing and may end only what the server lets it end.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import psycopg
import pytest

from job_rows import claimed, dead, end, enqueued, finished, new, rescued, story, worker
from outlast.errors import LeaseLost
from outlast.store import open_store

KEEPER, CLERK = "outlast_keeper", "outlast_clerk"
GONE = "stopped"


def as_role(postgres, role):
    return postgres.dsn.replace("postgres:@", f"{role}:@")


@pytest.fixture
def keeper(address, postgres):
    """An empty store, used by a role that is no superuser; another role, of which it is no member, may change its rows."""
    for role in (KEEPER, CLERK):
        if not postgres.execute(f"select 1 from pg_roles where rolname = '{role}'"):
            postgres.execute(f"create role {role} login")
        postgres.execute(
            f"grant all on all tables in schema public to {role}",
            f"grant all on all sequences in schema public to {role}",
        )
    with open_store(as_role(postgres, KEEPER)) as opened:
        yield opened
    postgres.execute(f"revoke {CLERK} from {KEEPER}", f"revoke pg_signal_backend from {KEEPER}")


@pytest.fixture
def own_transaction(postgres):
    """Ends a job in a transaction that it opens as another role, and leaves open."""
    connections = []

    def begin(store, lease, job, role=CLERK):
        connection = psycopg.connect(as_role(postgres, role))
        connections.append(connection)
        statements, rows = store.finish_steps(end(job), lease), None
        with suppress(StopIteration):
            while True:
                sql, given = statements.send(rows)
                done = connection.execute(sql.replace("?", "%s"), given)
                rows = done.fetchall() if done.description else []
        return connection

    yield begin
    for connection in connections:
        connection.close()


on_postgres = pytest.mark.parametrize("address", ["postgres"], indirect=True)


@on_postgres
@pytest.mark.parametrize("commits", [True, False])
def test_a_job_in_a_transaction_that_cannot_be_ended_holds_up_no_other(keeper, own_transaction, commits):
    """
    A stopped worker is in the transaction of a job, as a role whose sessions the sweeper may not end. Its other jobs come
    back at once. That job comes back when its transaction is rolled back; if it is committed, it has succeeded.
    """
    numbers = enqueued(keeper, new(), new(), new(), new())
    lease = worker(keeper, owner=GONE)
    first, locked, held, last = claimed(keeper, lease, 4)
    finished(keeper, lease, end(held, "held", delay_us=0))
    transaction = own_transaction(keeper, lease, locked)
    assert sorted(rescued(keeper, GONE)) == [(number, "ready") for number in numbers if number != locked.id]
    assert [rescued(keeper, GONE) for _ in range(3)] == [[], [], []]
    assert (keeper.job(locked.id).state, keeper.workers()) == ("processing", [])
    with pytest.raises(LeaseLost):
        finished(keeper, lease, end(first))
    assert claimed(keeper, worker(keeper), 9)[-1].id == last.id  # and nobody gets the one that is locked
    assert keeper.finished_in(locked.id, locked.made, locked.token) == "open"
    (transaction.commit if commits else transaction.rollback)()
    assert keeper.finished_in(locked.id, locked.made, locked.token) == ("committed" if commits else "rolled back")
    assert rescued(keeper) == ([] if commits else [(locked.id, "ready")])
    assert rescued(keeper) == []
    row = keeper.job(locked.id)
    assert (row.state, row.crashes, row.attempts) == (("succeeded", 0, 1) if commits else ("ready", 1, 1))
    assert (row.worker, row.token) == (None, 1 if commits else 2)
    assert story(keeper, locked.id) == ((["succeeded"], "succeeded") if commits else (["crashed"], "ready"))


@on_postgres
@pytest.mark.parametrize("right", [CLERK, "pg_signal_backend"])
def test_the_transaction_of_another_role_is_ended_if_that_is_allowed(keeper, postgres, own_transaction, right):
    """As a member of that role, or of the one that may end sessions: its job comes back in the same sweep."""
    postgres.execute(f"grant {right} to {KEEPER}")
    (number,) = enqueued(keeper)
    lease = worker(keeper, owner=GONE)
    transaction = own_transaction(keeper, lease, *claimed(keeper, lease))
    assert rescued(keeper, GONE) == [(number, "ready")]
    with pytest.raises(psycopg.OperationalError):
        transaction.commit()
    assert story(keeper, number) == (["crashed"], "ready")


@on_postgres
def test_a_superusers_transaction_is_left_alone(keeper, postgres, own_transaction):
    """The server would refuse to end it, and with it all of the sweep."""
    postgres.execute(f"grant pg_signal_backend to {KEEPER}")
    numbers = enqueued(keeper, new(), new())
    lease = worker(keeper, owner=GONE)
    locked, free = claimed(keeper, lease, 2)
    own_transaction(keeper, lease, locked, role="postgres")
    assert rescued(keeper, GONE) == [(free.id, "ready")]
    assert numbers == [locked.id, free.id]


@on_postgres
def test_a_transaction_that_is_begun_after_the_lease_has_ended_is_ended_by_a_later_sweep(
    keeper, postgres, own_transaction
):
    """The first sweep met the job while an operator had it locked; its code went on meanwhile, under the old token."""
    (number,) = enqueued(keeper)
    lease = worker(keeper, owner=GONE)
    (job,) = claimed(keeper, lease)
    with psycopg.connect(postgres.dsn) as operator:
        operator.execute("select 1 from outlast_jobs where id = %s for update", (number,))
        assert rescued(keeper, GONE) == []
    postgres.execute(f"grant {CLERK} to {KEEPER}")
    transaction = own_transaction(keeper, lease, job)
    assert rescued(keeper) == [(number, "ready")]
    with pytest.raises(psycopg.OperationalError):
        transaction.commit()
    assert story(keeper, number) == (["crashed"], "ready")


@on_postgres
def test_many_sweeps_share_what_is_left_of_a_worker(keeper, own_transaction, address):
    """No lease is there for them to wait at: each job comes back once, and one crash is charged."""
    numbers = enqueued(keeper, *(new() for _ in range(20)))
    lease = worker(keeper, owner=GONE)
    transactions = [own_transaction(keeper, lease, job) for job in claimed(keeper, lease, 20)]
    assert rescued(keeper, GONE) == []
    for transaction in transactions:
        transaction.rollback()
    together, found = threading.Barrier(4, timeout=60), []

    def go():
        with open_store(address) as other:
            together.wait()
            found.extend(rescued(other))

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert sorted(found) == [(number, "ready") for number in numbers]
    assert {(keeper.job(number).crashes, keeper.job(number).token) for number in numbers} == {(1, 2)}
    assert {tuple(story(keeper, number)[0]) for number in numbers} == {("crashed",)}


@on_postgres
def test_a_failed_job_that_is_locked_is_left_for_later(store, postgres):
    """Its code still ran when it ended; a sweep waits for nobody who looks at it."""
    locked, other = enqueued(store, new(), new())
    lease = worker(store, owner="gone")
    ends = [end(job, "failed", "failed", running=True) for job in claimed(store, lease, 2)]
    finished(store, lease, *ends)
    with psycopg.connect(postgres.dsn) as reader:
        reader.execute("select 1 from outlast_jobs where id = %s for update", (locked,))
        assert store.sweep(dead("gone"), pytest.fail) == []
        assert (store.job(locked).worker, store.job(other).worker) == (lease.key, None)
    assert rescued(store) == []
    assert store.job(locked).worker is None
