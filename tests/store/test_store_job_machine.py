"""Random lives of a queue, on both databases, against a model that is a dict of jobs."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hosts import on_host
from job_rows import KINDS, SECOND, end, new
from outlast.errors import LeaseLost
from outlast.store import StoreRefused, StoreUnavailable
from outlast.store.records import JOB_ENDS, JOB_MOVES, Rescue
from stores import Plan, letter, sql

UNIQUE = {"ready", "waiting", "alone", "held", "processing", "succeeded"}
MINUTE = 60 * SECOND


@dataclass
class Model:
    """A job as it should be; `due` is on the clock of the machine, which only the machine moves on."""

    id: int
    priority: int
    key: str | None
    state: str
    due: int
    token: int = 0
    worker: str | None = None
    attempts: int = 0
    made: int = 0
    crashes: int = 0
    wanted: bool = False
    outcomes: list = field(default_factory=list)
    letter: str | None = None

    def move(self, state, *, requeued=False):
        assert state in JOB_MOVES[self.state], (self.state, state)
        assert requeued or self.state not in JOB_ENDS
        self.state = state


class Life(RuleBasedStateMachine):
    """
    Two workers that crash, stall and write late, virtual time that is ahead, hosts whose clocks are hours off, operators
    who cancel, requeue and pause.
    """

    store = plan = None
    number = 0

    def __init__(self):
        super().__init__()
        self.hours = {"a": -3, "b": 5}  # by which the clocks of their hosts are off: nothing may depend on them
        Life.number += 1
        # Each life has an app of its own: jobs of others that become due would be one more statement in its turns, and a fault would strike elsewhere.
        self.store.app = f"life-{Life.number}"
        self.queue = f"queue-{Life.number}"
        self.jobs = {}
        self.letters = {}  # by id: status and replays
        self.now = 0  # microseconds that virtual time is ahead
        self.registrations = 0
        self.leases = {}
        self.hands = {}  # by worker: the jobs it believes to have
        self.decided = {}  # by id: what became of it at its last crash
        self.late = []  # leases and jobs of workers that were swept
        self.paused = False

    @initialize(want=st.integers(1, 3))
    def begin(self, want):
        """Both are registered, there are jobs, and one of them has begun: else most lives would be spent on nothing."""
        for name in ("a", "b"):
            self.register(name)
        for number in range(4):
            self.enqueue(number % 2, 0, "k" if number == 3 else None, hours=0)
        self.claim("a", want)

    def claim(self, name, want, *, alone=False):
        done = self.store.turn(self.leases[name], [], {self.queue: want}, KINDS, alone=alone, ahead_us=self.now)
        self.promote()
        self.believe_claims(name, want, alone=alone, claimed=done.claimed)

    def register(self, name):
        self.registrations += 1
        key = f"{self.queue}/{name}/{self.registrations}"
        with on_host(self.hours[name]):
            self.leases[name] = self.store.take_lease("worker", key, key, 3600)
        self.hands[name] = {}

    # -- time and enqueueing ---------------------------------------------------------------------------------------------

    @rule(minutes=st.integers(1, 5))
    def time_passes(self, minutes):
        self.now += minutes * MINUTE

    @rule(
        priority=st.integers(-1, 1),
        delay=st.sampled_from([0, 0, 2]),
        key=st.sampled_from([None, None, "k", "l"]),
        hours=st.sampled_from([-3, 0, 5]),
    )
    def enqueue(self, priority, delay, key, hours):
        job = new(queue=self.queue, priority=priority, delay=delay * 60, key=key and f"{self.queue} {key}")
        with on_host(hours):
            (done,) = self.store.enqueue([job], ahead_us=self.now)
        holder = self.holder(job.unique_key)
        assert done.new == (holder is None)
        if holder is not None:
            assert done.id == holder.id
            return
        state = "waiting" if delay else "ready"
        self.jobs[done.id] = Model(done.id, priority, job.unique_key, state, self.now + delay * MINUTE)

    def holder(self, key):
        held = [job for job in self.jobs.values() if key is not None and job.key == key and job.state in UNIQUE]
        assert len(held) <= 1
        return held[0] if held else None

    # -- turns ---------------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from("ab"), data=st.data(), want=st.sampled_from([3, 2, 1, 0]), alone=st.booleans())
    def turn(self, name, data, want, alone):
        """Some of what it has in hand has ended; it claims more, whichever clock it has."""
        ends = [self.an_end(job, data) for job in list(self.hands[name].values()) if data.draw(st.booleans())]
        with on_host(self.hours[name]):
            done = self.store.turn(self.leases[name], ends, {self.queue: want}, KINDS, alone=alone, ahead_us=self.now)
        self.believe_ends(name, ends, done)
        self.promote()
        self.believe_claims(name, want, alone, done.claimed)

    def an_end(self, job, data):
        """One of all ways in which an attempt can end."""
        what = data.draw(st.sampled_from(["succeeded", "failed", "retry", "released", "snoozed", "held", "cancelled"]))
        running = what in {"failed", "cancelled"} and data.draw(st.booleans())
        if what == "failed":
            kept = letter(self.number * 10_000_000 + job.token * 1000 + job.id % 1000, kind="job", pipeline="send")
            return end(job, "failed", letter=kept, error="x", error_class="server_error", running=running)
        return {
            "succeeded": lambda: end(job),
            "retry": lambda: end(job, "waiting", delay_us=MINUTE),
            "released": lambda: end(job, "ready", charged=False),
            "snoozed": lambda: end(job, "waiting", "snoozed", delay_us=2 * MINUTE, charged=False),
            "held": lambda: end(job, "held", delay_us=MINUTE),
            "cancelled": lambda: end(job, "cancelled", charged=False, running=running),
        }[what]()

    def believe_ends(self, name, ends, done):
        assert done.lost == ()
        cancelled = set()
        for each in ends:
            del self.hands[name][each.id]
            job = self.jobs[each.id]
            state = each.state
            if job.wanted and state not in JOB_ENDS:
                state = "cancelled"
                cancelled.add(each.id)
            running = each.running or each.state == "held"
            told = {"charged": each.charged, "delay": each.delay_us, "letter": each.letter, "running": running}
            self.ends(job, state, each.outcome, **told)
        assert set(done.cancelled) == cancelled

    def ends(self, job, state, outcome, *, charged=True, delay=0, letter=None, running=False):
        job.move(state)
        job.outcomes.append(outcome)
        job.attempts -= not charged
        job.wanted = False
        if state not in JOB_ENDS:
            job.due = self.now + (delay if state in {"waiting", "held"} else 0)
        if not running:
            job.worker = None
        self.settle(job, state, letter)

    def settle(self, job, state, letter):
        if job.letter is None:
            if letter is not None and state == "failed":
                job.letter = letter.id
                self.letters[letter.id] = ("open", 0)
            return
        status, replays = self.letters[job.letter]
        if status == "replaying":
            moved = {
                "succeeded": ("resolved", replays + 1),
                "failed": ("open", replays + 1),
                "cancelled": ("open", replays),
            }
            self.letters[job.letter] = moved.get(state, (status, replays))

    def promote(self):
        for job in self.jobs.values():
            if job.state == "waiting" and job.due <= self.now:
                job.move("alone" if job.crashes >= 2 else "ready")

    def believe_claims(self, name, want, alone, claimed):
        state = "alone" if alone else "ready"
        may = [job for job in self.jobs.values() if job.state == state and not self.paused]
        may.sort(key=lambda job: job.id if alone else (-job.priority, job.id))
        expected = may[: min(want, 1) if alone else want]
        assert [job.id for job in claimed] == [job.id for job in expected]
        for job, found in zip(expected, claimed, strict=True):
            job.move("processing")
            job.token += 1
            job.attempts += 1
            job.made += 1
            job.worker = self.leases[name].key
            assert (found.token, found.attempts, found.made, found.crashes) == (
                job.token, job.attempts, job.made, job.crashes
            )  # fmt: skip
            self.hands[name][job.id] = found

    @rule(name=st.sampled_from("ab"), at=st.integers(1, 6), after=st.booleans(), want=st.integers(0, 2))
    def a_turn_breaks(self, name, at, after, want):
        """A fault at some statement of a turn, the commit too: the same again with what it knows loses and doubles nothing."""
        ends = [end(job) for job in self.hands[name].values()]
        self.plan.fail(at, after=after)
        try:
            done = self.store.turn(self.leases[name], ends, {self.queue: want}, KINDS, ahead_us=self.now)
        except StoreUnavailable:
            done = None
        finally:
            self.plan.fail(None)
        if done is None:  # not while the error lives: its traceback has the cursor of the statement that failed
            known = [(job.id, job.token) for job in self.hands[name].values()]
            done = self.store.turn(self.leases[name], ends, {}, KINDS, known=known, ahead_us=self.now)
            want = len(done.claimed)
        self.believe_ends(name, ends, done)
        self.promote()
        self.believe_claims(name, want, alone=False, claimed=done.claimed)

    @precondition(lambda self: any(self.hands.values()))
    @rule(data=st.data())
    def time_is_up(self, data):
        """Of a job whose code goes on: it is tried again, or has failed, when that code has ended."""
        name = self.one_with_jobs(data)
        job = data.draw(st.sampled_from([*self.hands[name].values()]))
        each = end(job, "held", delay_us=data.draw(st.sampled_from([0, MINUTE])))
        if data.draw(st.booleans()):
            each = end(job, "cancelled", running=True)
        done = self.store.turn(self.leases[name], [each], {}, {}, ahead_us=self.now)
        self.believe_ends(name, [each], done)
        self.promote()

    def one_with_jobs(self, data):
        return data.draw(st.sampled_from(sorted(name for name, hand in self.hands.items() if hand)))

    @precondition(lambda self: any(job.worker and job.state != "processing" for job in self.jobs.values()))
    @rule(name=st.sampled_from("ab"))
    def threads_end(self, name):
        key = self.leases[name].key
        held = [job for job in self.jobs.values() if job.state != "processing" and job.worker == key]
        pairs = [(job.id, job.token) for job in held]
        other = self.leases["ab".replace(name, "")]
        for lease, late in ((other, tuple(sorted(number for number, _ in pairs))), (self.leases[name], ())):
            with on_host(self.hours[name]):
                assert self.store.release_held(lease, pairs, ahead_us=self.now) == late  # only its own worker knows
        for job in held:
            self.release(job)

    def release(self, job):
        job.worker = None
        if job.state in JOB_ENDS:
            return
        job.move("waiting" if job.due > self.now else "alone" if job.crashes >= 2 else "ready")

    # -- crashes and late writes -----------------------------------------------------------------------------------------

    @rule(name=st.sampled_from("ab"))
    def crash(self, name):
        """The worker is given up for dead, and comes back under a new key; what it had may still be written, late."""
        lease, hand = self.leases[name], self.hands[name]
        with on_host(self.hours["ab".replace(name, "")]):
            done = self.store.sweep(lambda owner: owner == lease.owner, self.decide, ahead_us=self.now)
        lost = [job for job in self.jobs.values() if job.worker == lease.key]
        assert sorted(job.id for job in done) == sorted(job.id for job in lost if job.state not in JOB_ENDS)
        for job in lost:
            if job.state in JOB_ENDS:
                self.release(job)
                continue
            job.token += 1
            if job.state == "held":
                self.release(job)
                continue
            job.crashes += 1
            state, delay = {1: ("ready", 0), 2: ("waiting", MINUTE)}.get(job.crashes, ("failed", 0))
            rescue = self.decided.get(job.id)
            if job.wanted:
                state = "cancelled"
            self.ends(job, state, "crashed", delay=delay, letter=rescue and rescue.letter)
        self.late += [(lease, job) for job in hand.values()]
        self.register(name)

    def decide(self, orphan):
        assert 0 <= orphan.swept_us - orphan.claimed_us <= self.now + MINUTE
        if orphan.crashes == 1:
            rescue = Rescue("ready")
        elif orphan.crashes == 2:
            rescue = Rescue("alone", MINUTE)
        else:
            kept = letter(
                self.number * 10_000_000 + 5_000_000 + orphan.id % 100_000 * 10 + orphan.made % 10, kind="job"
            )
            rescue = Rescue("failed", error="poison", error_class="poison", letter=kept)
        self.decided[orphan.id] = rescue
        return rescue

    @precondition(lambda self: self.late)
    @rule(data=st.data(), name=st.sampled_from("ab"))
    def a_late_end_changes_nothing(self, data, name):
        """Under the old lease it is refused; under a new one its token is too old. Before or after whoever has the job now."""
        lease, job = data.draw(st.sampled_from(self.late))
        late = self.an_end(job, data)
        with pytest.raises(LeaseLost):
            self.store.turn(lease, [late], {self.queue: 9}, KINDS)
        with pytest.raises(LeaseLost):
            self.store.release_held(lease, [(job.id, job.token)])
        told = self.store.turn(self.leases[name], [late], {}, {}, ahead_us=self.now)
        self.promote()
        assert (told.lost, told.claimed) == ((job.id,), [])
        assert self.store.release_held(self.leases[name], [(job.id, job.token)]) == (job.id,)

    @precondition(lambda self: any(self.hands.values()) and not self.paused)
    @rule(data=st.data())
    def overtaken(self, data):
        """A worker is taken for dead, another one has its jobs at once, and then the first one says how they ended."""
        name = self.one_with_jobs(data)
        self.crash(name)
        other = "ab".replace(name, "")
        self.claim(other, 99)
        self.a_late_end_changes_nothing(data, other)

    @precondition(
        lambda self: any(job.crashes == 2 and job.state in {"waiting", "alone"} for job in self.jobs.values())
    )
    @rule(name=st.sampled_from("ab"))
    def suspected(self, name):
        """What has crashed twice is due: whoever asks for others does not get it, whoever asks for it alone does, and it crashes."""
        self.time_passes(5)
        self.claim(name, 9)
        self.claim(name, 1, alone=True)
        self.crash(name)

    # -- operators -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data):
        job = self.jobs[data.draw(st.sampled_from(sorted(self.jobs)))]
        assert self.store.cancel_job(job.id, ahead_us=self.now) == (job.state not in JOB_ENDS)
        if job.state == "processing":
            job.wanted = True
        elif job.state not in JOB_ENDS:
            job.token += job.state != "held"
            job.move("cancelled")
            self.settle(job, "cancelled", None)

    @rule(paused=st.sampled_from([False, False, True]))
    def pause_or_resume(self, paused):
        """Nothing of a paused queue is claimed, not even what must run alone; what runs goes on."""
        (self.store.pause_queue if paused else self.store.resume_queue)(self.queue)
        self.paused = paused

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def requeue(self, data):
        job = self.jobs[data.draw(st.sampled_from(sorted(self.jobs)))]
        over = job.state in {"failed", "cancelled"}
        if over and self.holder(job.key) is not None:
            with pytest.raises(StoreRefused):
                self.store.requeue_job(job.id, ahead_us=self.now)
            return
        assert self.store.requeue_job(job.id, ahead_us=self.now) == over
        if over:
            job.move("ready" if job.worker is None else "held", requeued=True)
            job.token += job.worker is None
            job.due, job.attempts, job.crashes = self.now, 0, 0
            if job.letter is not None:
                self.letters[job.letter] = ("replaying", self.letters[job.letter][1])

    # -- what must be so -------------------------------------------------------------------------------------------------

    @invariant()
    def the_queue_is_what_the_model_says(self):
        rows = {row.id: row for row in self.store.jobs(queue=self.queue, limit=1000)}
        assert rows.keys() == self.jobs.keys()
        for number, job in self.jobs.items():
            row = rows[number]
            assert (row.state, row.token, row.worker, row.attempts, row.made, row.crashes) == (
                job.state, job.token, job.worker, job.attempts, job.made, job.crashes
            )  # fmt: skip
            assert (row.wanted, row.letter) == ("cancel" if job.wanted else None, job.letter)
            assert (row.ended_us is not None) == (job.state in JOB_ENDS)
            attempts = self.store.job_attempts(number)
            assert [attempt.outcome for attempt in attempts] == job.outcomes
            assert [attempt.number for attempt in attempts] == list(range(1, len(attempts) + 1))
        for name, (status, replays) in self.letters.items():
            found = self.store.letter(name)
            assert (found.status, found.replays) == (status, replays)


@pytest.mark.timeout(300)
def test_the_queue_is_what_a_model_says_through_any_life(store, monkeypatch):
    """D-16, C-14, C-20, C-22: after each step every job, token, attempt and letter is as it should be, and no end was left but by a requeue."""
    plan = Plan(store, monkeypatch)
    machine = type("Life", (Life,), {"store": store, "plan": plan})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    assert sql(store, "select count(*) from outlast_jobs where state = 'processing' and worker is null") == [(0,)]
