"""A tiny worker of jobs, made of the parts in `work` alone: nothing of a pipeline is loaded for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from functools import partial

from outlast.kernel.clock import Stop, here
from outlast.policy import RetryPolicy
from outlast.testing import virtual_time
from outlast.work.memory import Memory
from outlast.work.patience import keep_trying
from outlast.work.slots import Slots
from outlast.work.threads import Threads
from outlast.work.timers import Timers
from outlast.work.writer import BatchLimits, BatchWriter


class Endings(list):
    """How jobs have ended: a batch of (job, status, attempts)."""

    @property
    def empty(self):
        return not self

    def following(self):
        return Endings()


class Worker:
    """Claims jobs, runs them in threads and slots, tries them again through timers, and writes endings in batches."""

    def __init__(self, jobs, work, store, *, slots, policy):
        self.jobs, self.work, self.store, self.policy = iter(jobs), work, store, policy
        self.loop, self.clock = asyncio.get_running_loop(), here.get().clock
        self.give_up = Stop()
        self.tries, self.in_hand, self.done = Counter(), 0, asyncio.Event()
        self.slots = Slots(slots)
        self.timers = Timers(self.clock)
        self.threads = Threads(
            self.carry,
            back=self.back,
            seen=lambda: None,
            lost=lambda _: None,
            loop=self.loop,
            slots=[self.slots],
            most=2 * slots,
        )
        self.endings = BatchWriter(
            Endings(),
            self.write,
            written=lambda _: self.check(),
            broken=self.fail,
            loop=self.loop,
            memory=Memory(),
            limits=BatchLimits(entries=4),
            give_up=self.give_up,
        )
        self.error = None

    async def run(self):
        self.endings.start()
        ringing = asyncio.create_task(self.ring())
        self.claim(8)
        await self.done.wait()
        ringing.cancel()
        self.threads.close()
        self.endings.close()
        if self.error is not None:
            raise self.error

    async def ring(self):
        while True:
            for job in await self.timers.due(busy=self.threads.busy > 0):
                self.threads.put(job)

    def claim(self, many):
        for _, job in zip(range(many), self.jobs, strict=False):
            self.in_hand += 1
            self.threads.put(job)

    def carry(self, job):
        """In a thread: one attempt, in a slot."""
        try:
            self.slots.take()
        except IndexError:
            self.threads.again(self.slots.park(job))
            return None
        try:
            return ("ok", self.work(job))
        except Exception as error:  # noqa: BLE001 - the loop decides
            return ("failed", error)
        finally:
            self.slots.give()
            self.threads.again(self.slots.next())

    def back(self, burst):
        for job, (how, what) in burst:
            self.tries[job] += 1
            again = None if how == "ok" else self.policy.decide(what, attempt=self.tries[job])
            if again is not None and again.retry:
                self.timers.add(self.clock.monotonic() + again.delay, job)
            else:
                self.endings.batch.append((job, "done" if how == "ok" else "dead", self.tries[job]))
                self.endings.added()
                self.in_hand -= 1
                self.claim(1)
        if self.threads.busy == 0:
            self.timers.look()
            self.endings.flush()

    def write(self, batch):
        keep_trying(partial(self.store.append, list(batch)), "the store", self.give_up)

    def check(self):
        if self.in_hand == 0 and self.endings.settled:
            self.done.set()

    def fail(self, error):
        self.error = error
        self.done.set()


def test_a_worker_of_jobs_is_made_of_these_parts():
    """Twelve jobs in three slots: each ends once, retries wait in virtual time, endings come in batches."""
    tries, at_once, most = Counter(), Counter(), []

    def work(job):
        at_once["now"] += 1
        most.append(at_once["now"])
        tries[job] += 1
        at_once["now"] -= 1
        if job % 4 == 1 and tries[job] < 3:
            raise ConnectionResetError("once more")
        if job == 6:
            raise ValueError("never")
        return job

    written = []
    policy = RetryPolicy(max_attempts=5, initial_delay=100, max_delay=None, jitter=0)

    async def story():
        begin = here.get().clock.monotonic()
        await Worker(range(12), work, written, slots=3, policy=policy).run()
        return here.get().clock.monotonic() - begin

    with virtual_time():
        waited = asyncio.run(story())
    endings = sorted(ending for batch in written for ending in batch)
    assert endings == [(job, "dead" if job == 6 else "done", 3 if job % 4 == 1 else 1) for job in range(12)]
    assert (max(most) <= 3, waited >= 300.0) == (True, True)


def test_the_parts_load_nothing_of_a_pipeline():
    """What knows nothing of items needs nothing of them."""
    parts = "slots timers threads writer memory leases patience".split()
    program = (
        "import sys\n"
        + "".join(f"import outlast.work.{part}\n" for part in parts)
        + "print([name for name in sys.modules if name.startswith('outlast.pipeline')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
