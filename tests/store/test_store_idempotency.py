"""Idempotency records: done once for a key, begun by one at a time, by whoever; and unique keys that outlive their jobs."""

from __future__ import annotations

import threading
from hashlib import sha256
from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from job_rows import SECOND, claimed, end, finished, new, worker
from outlast.errors import LeaseLost
from outlast.store import StoreRefused, idempotency, open_store
from outlast.store.idempotency import IdempotencyConflict, IdempotencyMismatch, KeyBegun, KeyDone, key_digest
from outlast.verdicts import classify
from stores import sql, started

KEY = key_digest("movies:7")
SCOPE = "movies/write-data"


def nobody(_):
    return False


def begin(store, holder, lease, key=KEY, config="a", *, dead=nobody, **how):
    return store.begin_key(SCOPE, key, config, holder=holder, lease=lease, dead=dead, **how)


def test_work_is_done_once_for_a_key(store):
    """C-20, D-20: the second one gets the outputs of the first, which has succeeded; another scope is other work."""
    one, other = worker(store), worker(store)
    begun = begin(store, "job 1", one)
    assert isinstance(begun, KeyBegun)
    assert begun.attempts == 1
    store.succeed_key(begun, b"outputs", 60, one)
    done = begin(store, "job 2", other)
    assert isinstance(done, KeyDone)
    assert (done.outputs, done.holder, done.expires_us - done.succeeded_us) == (b"outputs", "job 1", 60 * SECOND)
    elsewhere = store.begin_key("movies/read", KEY, "a", holder="job 2", lease=other, dead=nobody)
    assert isinstance(elsewhere, KeyBegun)
    assert isinstance(begin(store, "job 2", other, key_digest("movies:8")), KeyBegun)


def test_work_in_progress_elsewhere_is_a_conflict(store):
    """C-20: transient, with a class of its own; over once the first one has ended."""
    one, other = worker(store), worker(store)
    begun = begin(store, "job 1", one)
    with pytest.raises(IdempotencyConflict, match="job 1 is at it") as caught:
        begin(store, "job 2", other)
    verdict = classify(caught.value)
    assert (verdict.category, verdict.error_class) == ("transient", "idempotency_conflict")
    assert store.release_key(begun)
    assert begin(store, "job 2", other).attempts == 2


def test_other_work_for_the_same_key_is_a_mismatch(store):
    """D-20: permanent, never the old outputs; what has failed binds nobody."""
    lease = worker(store)
    begun = begin(store, "job 1", lease, config="a")
    store.release_key(begun)
    begun = begin(store, "job 1", lease, config="b")
    store.succeed_key(begun, None, None, lease)
    with pytest.raises(IdempotencyMismatch, match="Give other work another key") as caught:
        begin(store, "job 2", lease, config="a")
    verdict = classify(caught.value)
    assert (verdict.category, verdict.error_class) == ("permanent", "idempotency_mismatch")


def test_a_failure_leaves_only_its_attempt(store):
    """C-20: failures are not remembered as results; a success begins to count anew after its time."""
    lease = worker(store)
    for number in (1, 2, 3):
        begun = begin(store, "job 1", lease)
        assert begun.attempts == number
        assert store.release_key(begun)
    assert not store.release_key(begun)
    record = store.key_record(SCOPE, KEY)
    assert (record.state, record.attempts, record.outputs) == ("released", 3, None)
    begun = begin(store, "job 1", lease)
    store.succeed_key(begun, b"x", 60, lease)
    assert begin(store, "job 1", lease, ahead_us=59 * SECOND).outputs == b"x"
    again = begin(store, "job 2", lease, config="other", ahead_us=61 * SECOND)
    assert (again.attempts, store.key_record(SCOPE, KEY).outputs) == (1, None)


def test_the_holder_takes_its_own_work_over_at_once(store):
    """D-20: a run or a job that goes on elsewhere; what its first process brings late changes nothing."""
    one, other = worker(store), worker(store)
    first = begin(store, "job 1", one)
    second = begin(store, "job 1", other)
    assert (second.attempts, second.token) == (2, first.token + 1)
    with pytest.raises(LeaseLost, match="taken over"):
        store.succeed_key(first, b"late", 60, one)
    assert not store.release_key(first)
    store.succeed_key(second, b"second", 60, other)
    assert begin(store, "job 9", one).outputs == b"second"
    with pytest.raises(LeaseLost):
        store.succeed_key(second, b"twice", 60, other)


def test_work_of_the_dead_is_taken_over_at_once(store):
    """D-20: of processes of this machine that are certainly dead, and of whoever has lost its lease."""
    one, other = worker(store, owner="gone"), worker(store)
    first = begin(store, "job 1", one)
    assert begin(store, "job 2", other, dead=lambda owner: owner == "gone").attempts == 2
    with pytest.raises(LeaseLost):
        store.succeed_key(first, None, None, one)
    store.drop_lease(other)
    third = worker(store)
    assert begin(store, "job 3", third).attempts == 3
    with pytest.raises(LeaseLost):  # fenced by its lease, too
        begin(store, "job 2", other)
    sql(store, "update outlast_leases set until = 1 where key = ?", third.key)  # run out, and dropped by nobody
    assert begin(store, "job 4", worker(store)).attempts == 4


def test_a_record_under_the_lease_of_a_run(store):
    """Flows write under those: their leases are in a table of their own."""
    _, lease = started(store)
    other = worker(store)
    begun = begin(store, "run 1", lease)
    with pytest.raises(IdempotencyConflict):
        begin(store, "job 2", other)
    store.drop_lease(lease)
    assert begin(store, "job 2", other).attempts == 2
    with pytest.raises(LeaseLost):
        store.succeed_key(begun, None, None, lease)


def test_work_that_was_undone_is_forgotten(store):
    """D-17: by the one who did it, and nobody else."""
    lease = worker(store)
    store.succeed_key(begin(store, "job 1", lease), b"x", None, lease)
    assert not store.forget_key(SCOPE, KEY, "job 2")
    assert store.forget_key(SCOPE, KEY, "job 1")
    assert begin(store, "job 2", lease).attempts == 1


def test_what_is_not_undone_after_all_counts_again_for_its_holder_alone(store):
    """Two runs undo in one scope, each what it has done: one that gives back says nothing of the keys of the other."""
    lease, keys = worker(store), {holder: key_digest(holder) for holder in ("run 1", "run 2")}
    for holder, key in keys.items():
        store.succeed_key(begin(store, holder, lease, key), None, None, lease)
        with store._database.writing() as tx:
            idempotency.hold(tx, store.app, SCOPE, None, holder, lease)
    with store._database.writing() as tx:
        idempotency.give_back(tx, store.app, SCOPE, "run 1")
    assert {holder: store.key_record(SCOPE, key).state for holder, key in keys.items()} == {
        "run 1": "succeeded",
        "run 2": "undoing",
    }
    with store._database.writing() as tx:
        assert idempotency.forget_all(tx, store.app, SCOPE, "run 2", state="undoing") == 1
    assert [store.key_record(SCOPE, key) is None for key in keys.values()] == [False, True]


def test_a_key_itself_is_not_stored(store):
    """S0-42: a digest, with a secret one that nobody can try keys out on."""
    lease = worker(store)
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        begin(store, "job 1", lease, "movies:7")
    assert key_digest("a") != key_digest("b") != key_digest("b", b"secret") != key_digest("b", b"other")
    assert key_digest("b") == sha256(b"b").hexdigest()
    assert key_digest("half \ud800")
    with pytest.raises(ValueError, match="positive number of seconds"):
        store.succeed_key(begin(store, "job 1", lease), None, 0, lease)


def test_two_apps_have_keys_of_their_own(address):
    with open_store(address, app="one") as one, open_store(address, app="other") as other:
        for store in (one, other):
            lease = worker(store)
            assert begin(store, "job 1", lease).attempts == 1


def test_retention_removes_what_counts_no_more(store):
    """What is in progress or is being undone under a lease that stands stays, and so does a success without an end."""
    lease, gone = worker(store), worker(store)
    keys = [key_digest(str(number)) for number in range(7)]
    store.succeed_key(begin(store, "job 1", lease, keys[0]), None, 60, lease)
    store.succeed_key(begin(store, "job 1", lease, keys[1]), None, None, lease)
    store.release_key(begin(store, "job 1", lease, keys[2]))
    begin(store, "job 1", lease, keys[3])
    begin(store, "job 2", gone, keys[4])
    for key, holder, held in ((keys[5], "job 3", lease), (keys[6], "job 4", gone)):
        store.succeed_key(begin(store, holder, held, key), None, 60, held)
        with store._database.writing() as tx:
            idempotency.hold(tx, store.app, SCOPE, key, holder, held)
    store.drop_lease(gone)

    def there():
        return [number for number, key in enumerate(keys) if store.key_record(SCOPE, key) is not None]

    assert (store.prune_keys(), there()) == (0, [0, 1, 2, 3, 4, 5, 6])
    assert (store.prune_keys(ahead_us=61 * SECOND), there()) == (2, [1, 2, 3, 4, 5])
    assert (store.prune_keys(ahead_us=91 * 86400 * SECOND), there()) == (2, [1, 3, 5])


def test_of_many_who_begin_at_once_one_does(store):
    """Whatever the interleaving: one has the work, the others a conflict."""
    came = []

    def ask(number):
        lease = worker(store, owner=f"owner {number}")
        try:
            came.append(begin(store, f"job {number}", lease))
        except IdempotencyConflict:
            came.append(None)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(came), len([begun for begun in came if begun is not None])) == (8, 1)


class KeyMachine(RuleBasedStateMachine):
    """A model: who has the key, what was done, by which configuration; workers that die and holders that come again."""

    store = None
    keys = count(1)

    @initialize()
    def begins(self):
        self.key = key_digest(f"machine {next(self.keys)}")
        self.ahead = 0
        self.state, self.holder, self.owner, self.config, self.until, self.outputs = (
            "free",
            None,
            None,
            None,
            None,
            None,
        )
        self.begun: dict[str, KeyBegun] = {}  # of each holder, the newest right that it was given
        self.current = None
        self.dead: set[str] = set()
        self.leases = {name: worker(self.store, owner=f"{name} {self.key}") for name in "xyz"}

    def _over(self):
        return self.state == "done" and self.until is not None and self.ahead >= self.until

    @rule(who=st.sampled_from("xyz"), holder=st.sampled_from(["h1", "h2"]), config=st.sampled_from("ab"))
    def begin(self, who, holder, config):
        if who in self.dead:
            return
        how = {"dead": lambda owner: owner.split()[0] in self.dead, "ahead_us": self.ahead}
        if self._over():
            self.state = "free"
        if self.state == "done" and self.config != config:
            with pytest.raises(IdempotencyMismatch):
                begin(self.store, holder, self.leases[who], self.key, config, **how)
            return
        if self.state == "busy" and self.holder != holder and self.owner not in self.dead:
            with pytest.raises(IdempotencyConflict):
                begin(self.store, holder, self.leases[who], self.key, config, **how)
            return
        came = begin(self.store, holder, self.leases[who], self.key, config, **how)
        if self.state == "done":
            assert came.outputs == self.outputs
            return
        assert isinstance(came, KeyBegun)
        self.state, self.holder, self.owner, self.config = "busy", holder, who, config
        self.current = came
        self.begun[who] = came

    @rule(who=st.sampled_from("xyz"), ttl=st.sampled_from([None, 10]))
    def succeed(self, who, ttl):
        begun = self.begun.get(who)
        if begun is None or who in self.dead:
            return
        if self.state == "busy" and begun == self.current:
            self.outputs = f"{begun.token}".encode()
            self.store.succeed_key(begun, self.outputs, ttl, self.leases[who], ahead_us=self.ahead)
            self.state, self.until = "done", None if ttl is None else self.ahead + (ttl + 1) * SECOND
            return
        with pytest.raises(LeaseLost):
            self.store.succeed_key(begun, b"late", ttl, self.leases[who], ahead_us=self.ahead)

    @rule(who=st.sampled_from("xyz"))
    def release(self, who):
        begun = self.begun.get(who)
        if begun is None:
            return
        mine = self.state == "busy" and begun == self.current
        assert self.store.release_key(begun, ahead_us=self.ahead) == mine
        if mine:
            self.state = "free"

    @precondition(lambda self: len(self.dead) < 2)
    @rule(who=st.sampled_from("xyz"))
    def die(self, who):
        self.dead.add(who)

    @rule()
    def wait(self):
        self.ahead += 20 * SECOND


def test_records_are_as_the_model_says(store):
    machine = type("Machine", (KeyMachine,), {"store": store})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


# --- unique keys of jobs that are gone ---


def succeeded(store, key, unique_for=3600.0):
    """A job with a unique key that has succeeded."""
    (done,) = store.enqueue([new(key=key)])
    lease = worker(store)
    (job,) = claimed(store, lease)
    assert finished(store, lease, end(job, unique_for_us=round(unique_for * SECOND))) == ()
    return done.id


def pruned(store):
    """Retention, twice: first it puts keys on record, later it removes jobs."""
    from datetime import UTC, datetime, timedelta

    soon = datetime.now(UTC) + timedelta(days=1)
    store.prune("jobs", soon)
    with store._database.writing() as tx:
        tx.execute("update outlast_unique_keys set made = 0")
    return store.prune("jobs", soon)


def test_a_unique_key_outlives_its_job(store):
    """C-20: held for `unique_for` although the job is not kept any more, by every way to enqueue."""
    number = succeeded(store, "f-1")
    other = succeeded(store, "f-2", unique_for=0.000001)
    assert pruned(store) == 1 or store.job(other) is None
    assert (store.job(number), store.job(other)) == (None, None)
    assert store.enqueue([new(key="f-1")]) == [(number, False, None)]
    assert store.enqueue_many([new(key="f-1"), new(key="f-3"), new(key="f-1")]) == 1
    with store._database.writing() as tx:
        (again,) = store.enqueue_in(
            lambda sql, values: (
                tx.rows(sql, *values) if "select" in sql or "returning" in sql else tx.execute(sql, *values)
            ),
            [new(key="f-1")],
            paramstyle="qmark",
        )
    assert (again.id, again.new) == (number, False)
    held = store.held_key(number)
    assert (held.kind, held.unique_key) == ("send", "f-1")
    assert store.enqueue([new(key="f-1", kind="sum")])[0].new
    with store._database.writing() as tx:
        tx.execute("update outlast_unique_keys set until = 1")
    assert store.enqueue([new(key="f-1")])[0].new
    pruned(store)
    assert store.held_key(number) is None


def test_the_job_stays_until_its_key_has_been_on_record_for_a_while(store):
    """Who enqueues at the same time sees the one or the other."""
    from datetime import UTC, datetime, timedelta

    number = succeeded(store, "f-1")
    soon = datetime.now(UTC) + timedelta(days=1)
    assert (store.prune("jobs", soon), store.prune("jobs", soon)) == (0, 0)
    assert store.job(number) is not None
    assert store.held_key(number) is not None
    assert store.enqueue([new(key="f-1")]) == [(number, False, None)]


def test_a_requeue_does_not_take_a_key_that_is_held(store):
    """A job that had failed, and whose work another one has done since."""
    (first,) = store.enqueue([new(key="f-1")])
    lease = worker(store)
    (job,) = claimed(store, lease)
    finished(store, lease, end(job, "failed"))
    number = succeeded(store, "f-1")
    assert pruned(store) == 1
    with pytest.raises(StoreRefused, match=f"job {number}, which has succeeded. It holds the key until"):
        store.requeue_job(first.id)
