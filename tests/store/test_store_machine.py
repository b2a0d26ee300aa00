"""Random lives of a run, on both databases, against a model that is a handful of dicts."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from outlast.errors import LeaseLost
from outlast.store import StoreRefused, StoreUnavailable
from outlast.store.records import Changes, Checkpoint, EventRow
from stores import STAGES, Plan, attempt, contents, counts, item, letter

STATUSES = ("succeeded", "skipped", "dlq", "failed")
seqs = st.integers(0, 30)


class Life(RuleBasedStateMachine):
    """Batches, old and new, whole and broken, by owners alive and fenced, with resumes in between."""

    store = None
    number = 0

    def __init__(self):
        super().__init__()
        Life.number += 1
        self.run = self.store.open_run("reviews", f"life-{Life.number}", STAGES)
        self.leases = []
        self.items = {}
        self.attempts = set()
        self.checkpoints = {}
        self.letters = set()
        self.events = set()
        self.spent = 0.0
        self.read = 0
        self.offset = None
        self.written = []
        self.take()

    def take(self):
        self.leases.append(self.store.take_run(self.run.number, 0, f"owner-{len(self.leases)}", 0.0))

    @rule()
    def take_over(self):
        """The lease ran out at once; the next owner comes."""
        self.take()

    @rule()
    def drop_and_resume(self):
        self.store.drop_lease(self.leases[-1])
        self.take()

    @rule(data=st.data())
    def write(self, data):
        status = st.sampled_from(STATUSES)
        fresh = data.draw(st.lists(seqs.filter(lambda seq: seq not in self.items), unique=True, max_size=6))
        rows = [
            item(
                seq,
                data.draw(status),
                degraded=data.draw(st.booleans()),
                spent=data.draw(st.sampled_from([{}, {"usd": 0.5}])),
            )
            for seq in fresh
        ]
        mark = len(self.written)
        full = Changes(
            items=rows,
            attempts=[
                attempt(seq, stage, number, pass_=self.leases[-1].token)
                for seq in fresh
                for stage in (0, 1)
                for number in range(1, data.draw(st.integers(1, 3)))
            ],
            checkpoints=[
                Checkpoint(seq, f"key-{seq}", 1, str(mark), b"x")
                for seq in data.draw(st.lists(seqs, unique=True, max_size=3))
            ],
            dead_letters=[
                letter(self.number * 10_000 + row.seq, run=self.run.id) for row in rows if row.status == "dlq"
            ],
            read=data.draw(st.integers(0, 40)),
            sink_offset=data.draw(st.none() | st.integers(0, 1000)),
        )
        event = EventRow(f"{self.number:016x}{mark:016x}", "batch", mark, self.run.id)
        self.store.add_events([event], self.leases[-1])
        self.events.add(event.id)
        self.store.write(self.leases[-1], full)
        self.believe(full)
        self.written.append(full)

    def believe(self, full):
        for row in full.items:
            if row.seq not in self.items:
                self.items[row.seq] = row
                self.spent += row.spent.get("usd", 0.0)
        self.attempts |= {row[:4] for row in full.attempts}
        self.checkpoints |= {row.seq: row for row in full.checkpoints}
        self.letters |= {row.id for row in full.dead_letters}
        self.read = max(self.read, full.read)
        known = [offset for offset in (self.offset, full.sink_offset) if offset is not None]
        self.offset = max(known, default=None)

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def write_again(self, data):
        """An earlier batch, after a commit whose answer was lost; a checkpoint goes back with it, nothing else changes."""
        old = data.draw(st.sampled_from(self.written))
        self.store.write(self.leases[-1], old)
        self.believe(old)

    @precondition(lambda self: len(self.leases) > 1)
    @rule(data=st.data())
    def write_with_a_lost_lease(self, data):
        lease = data.draw(st.sampled_from(self.leases[:-1]))
        before = contents(self.store)
        with pytest.raises(LeaseLost):
            self.store.write(lease, Changes(items=[item(99)], read=10**6))
        with pytest.raises(LeaseLost):
            self.store.add_events([EventRow("f" * 32, "late", 1)], lease)
        with pytest.raises(LeaseLost):
            self.store.beat(lease)
        assert contents(self.store) == before

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def write_a_contradiction(self, data):
        row = data.draw(st.sampled_from(sorted(self.items.values())))
        other = next(status for status in STATUSES if status != row.status)
        before = contents(self.store)
        with pytest.raises(StoreRefused):
            self.store.write(self.leases[-1], Changes(items=[item(98), item(row.seq, other)], read=10**6))
        assert contents(self.store) == before

    @rule(at=st.integers(1, 12), data=st.data())
    def break_in_the_middle(self, at, data):
        """A fault at some statement: nothing, or all of it; the same batch again makes it all."""
        seq = data.draw(seqs)
        full = Changes(items=[self.items.get(seq, item(seq))], attempts=[attempt(seq, 1, 9)], read=seq + 1)
        self.plan.fail(at)
        try:
            self.store.write(self.leases[-1], full)
        except StoreUnavailable:
            self.plan.fail(None)
            self.store.write(self.leases[-1], full)
        finally:
            self.plan.fail(None)
        self.believe(full)

    @invariant()
    def the_store_is_what_the_model_says(self):
        number = self.run.number
        assert self.store.items(number) == [self.items[seq] for seq in sorted(self.items)]
        assert {row[:4] for row in self.store.attempts(number)} == self.attempts
        assert self.store.checkpoints_of(number, range(31)) == self.checkpoints
        assert {row.id for row in self.store.letters(run=self.run.id)} == self.letters
        assert {row.id for row in self.store.events(run=self.run.id)} == self.events
        assert self.store.shard_state(number, 0)[:2] == (self.read, self.offset)
        kept, recounted = counts(self.store, self.run)
        assert kept == recounted
        found = self.store.run(self.run.id)
        assert (found.counts.total, found.spent.get("usd", 0.0)) == (self.read, self.spent)
        assert found.passes == len(self.leases)


@pytest.mark.timeout(600)
def test_counters_are_what_the_rows_say_through_any_life(store, monkeypatch):
    """Random batches, repetitions, take-overs, resumes, faults and fenced writes; after each step all of the store is as it should be (C-14, C-22)."""
    plan = Plan(store, monkeypatch)
    machine = type("Life", (Life,), {"store": store, "plan": plan})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
