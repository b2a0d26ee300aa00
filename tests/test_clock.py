"""Time, chance, identity, and the wish to stop: the only doors to them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time as real_time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlast
from outlast import CircuitBreaker, Guard, RetryPolicy, Stop
from outlast.kernel.clock import REAL, Clock, Dice, Ids, here, roll_for, stopping
from outlast.testing import capture_events, virtual_time

SLOW = RetryPolicy(initial_delay=60, max_delay=60, jitter=0)


def fail(*_):
    raise ConnectionResetError


async def afail(*_):
    raise ConnectionResetError


# --- the clock ---


def test_real_instants_are_aware_and_monotonic():
    """D-18, S4-30, semantics 15: UTC for people, a monotonic clock for decisions."""
    clock = Clock()
    assert clock.now().utcoffset() == timedelta(0)
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=5)
    assert clock.monotonic() <= clock.monotonic()
    assert abs(clock.monotonic() - real_time.monotonic()) < 5


def test_a_real_wait_is_at_least_as_long_as_asked():
    """semantics 15: sync and async; a short one, for it is real."""
    clock = Clock()
    began = real_time.monotonic()
    assert clock.sleep(0.01) is False
    assert asyncio.run(clock.asleep(0.01)) is False
    assert clock.sleep(0.01, Stop()) is False
    assert asyncio.run(clock.asleep(0.01, Stop())) is False
    assert real_time.monotonic() - began >= 0.039


def test_the_wall_clock_decides_nothing(monkeypatch):
    """semantics 15: set back by an hour during a call, nothing changes."""
    calls = []

    class Jumping(Clock):
        def now(self):
            return datetime.now(UTC) - timedelta(hours=len(calls))

    def work():
        calls.append(1)
        raise ConnectionResetError

    monkeypatch.setattr(REAL, "clock", Jumping())
    outcome = Guard(retry=RetryPolicy(initial_delay=0), total_timeout=60).outcome(work)
    assert (outcome.reason, len(calls)) == ("exhausted", 3)
    assert outcome.elapsed < 30


def test_only_a_clock_that_says_so_is_virtual():
    """A clock of another kind is real time all the same; one in which time jumps says so itself."""

    class Other(Clock):
        pass

    with virtual_time():
        inside = here.get().clock.virtual
    assert (Clock().virtual, Other().virtual, here.get().clock.virtual, inside) == (False, False, False, True)


# --- dice ---


def test_rolls_are_in_their_range_and_differ():
    """C-06, semantics 25: from 0 to below 1, and a thousand of them are a thousand."""
    rolls = [Dice().roll() for _ in range(500)] + [REAL.dice.roll() for _ in range(500)]
    assert all(0 <= roll < 1 for roll in rolls)
    assert len(set(rolls)) == 1000
    assert 0.4 < sum(rolls) / 1000 < 0.6


def test_seeded_dice_are_the_same_everywhere():
    """C-06: the same seed, the same rolls (S0-32)."""
    first, second, other = Dice(7), Dice(7), Dice(8)
    rolls = [first.roll() for _ in range(10)]
    assert rolls == [second.roll() for _ in range(10)]
    assert rolls != [other.roll() for _ in range(10)]


def test_forked_children_do_not_roll_in_lockstep():
    """semantics 28: parent and children each go on differently."""
    script = """
import os
from outlast.kernel.clock import REAL, Dice
dice, seeded = REAL.dice, Dice(5)
dice.roll()
for _ in range(3):
    child = os.fork()
    if child == 0:
        os.write(1, f"{dice.roll()} {seeded.roll()}\\n".encode())
        os._exit(0)
    os.waitpid(child, 0)
os.write(1, f"{dice.roll()} {seeded.roll()}\\n".encode())
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert len(rows) == 4, done.stderr
    assert len({row[0] for row in rows}) == 4
    assert len({row[1] for row in rows}) == 1  # a seed is a promise


@given(st.lists(st.one_of(st.text(), st.integers(), st.none()), min_size=1, max_size=5))
def test_the_roll_of_an_identity_is_its_own(parts):
    """C-06: the same for the same parts, in its range."""
    roll = roll_for(*parts)
    assert 0 <= roll < 1
    assert roll == roll_for(*parts)
    assert roll != roll_for(*parts, "more")


def test_the_roll_of_an_identity_is_the_same_in_every_process():
    """C-06: it can be worked out from the ids of a run, tomorrow and elsewhere."""
    script = "from outlast.kernel.clock import roll_for; print(roll_for('run-1', 'fetch', 'item-7', 2))"
    rolls = {
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert rolls == {f"{roll_for('run-1', 'fetch', 'item-7', 2)}\n"}


def test_the_rolls_of_neighbours_are_spread():
    """C-06: items of one run do not wait alike, and the parts are not run together."""
    rolls = [roll_for("run-1", "fetch", f"item-{number}", 1) for number in range(1000)]
    assert len(set(rolls)) == 1000
    assert 0.45 < sum(rolls) / 1000 < 0.55
    assert roll_for("ab", "c") != roll_for("a", "bc")
    assert roll_for("1") != roll_for(1)


# --- ids ---


def test_ids_are_new_each_time():
    """C-06: 32 hexadecimal digits, never the same twice."""
    ids = [Ids().new() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(len(one) == 32 and int(one, 16) >= 0 for one in ids)


def test_the_idempotency_key_is_one_for_each_call():
    """semantics 37: the same in all attempts of a call, another in the next call."""
    keys: list[list[str]] = []

    def work():
        keys[-1].append(outlast.current().idempotency_key)
        raise ConnectionResetError

    with virtual_time():
        for _ in range(2):
            keys.append([])
            with pytest.raises(ConnectionResetError):
                Guard(total_timeout=600).call(work)
    assert [len(set(call)) for call in keys] == [1, 1]
    assert [len(call) for call in keys] == [3, 3]
    assert keys[0][0] != keys[1][0]


# --- stopping ---


def stop_when_waiting(stop: Stop):
    """Ask to stop, from another thread, as soon as a retry is announced."""
    threads = []

    def hook(event):
        if event.name == "step_retry_attempt":
            threads.append(threading.Timer(0.005, stop.set))
            threads[-1].start()

    return outlast.observe.subscribe(hook), threads


def test_a_stop_ends_a_sync_wait_from_another_thread():
    """semantics 23: the last error, at once, reason shutdown, and no further attempt."""
    stop, calls = Stop(), []

    def work():
        calls.append(1)
        raise ConnectionResetError("last")

    forget, threads = stop_when_waiting(stop)
    began = real_time.monotonic()
    try:
        with stop, pytest.raises(ConnectionResetError, match="last") as caught:
            outlast.retry(SLOW)(work)()
    finally:
        forget()
    for thread in threads:
        thread.join(20)
    assert real_time.monotonic() - began < 10
    assert calls == [1]
    assert outlast.stop_reason(caught.value) == "shutdown"
    assert any("asked to stop" in note for note in caught.value.__notes__)


def test_a_stop_ends_an_async_wait_from_another_thread():
    """semantics 23: the same in an event loop."""
    stop, calls = Stop(), []

    async def work():
        calls.append(1)
        raise ConnectionResetError("last")

    async def main():
        with stop, pytest.raises(ConnectionResetError, match="last") as caught:
            await outlast.retry(SLOW)(work)()
        return caught.value

    forget, threads = stop_when_waiting(stop)
    began = real_time.monotonic()
    try:
        error = asyncio.run(main())
    finally:
        forget()
    for thread in threads:
        thread.join(20)
    assert real_time.monotonic() - began < 10
    assert calls == [1]
    assert outlast.stop_reason(error) == "shutdown"


@pytest.mark.parametrize("kind", ["sync", "async", "attempts", "full"])
def test_a_stop_that_is_already_set_ends_the_call_after_its_attempt(kind):
    """semantics 23: what runs may finish, nothing is tried again and nothing is waited for."""
    stop = Stop()
    stop.set()
    with virtual_time() as time, stop, capture_events() as events, pytest.raises(ConnectionResetError) as caught:
        if kind == "sync":
            outlast.retry(SLOW)(fail)()
        elif kind == "async":
            asyncio.run(outlast.retry(SLOW)(afail)())
        elif kind == "full":
            Guard(retry=SLOW, total_timeout=600, breaker=CircuitBreaker("stopped")).call(fail)
        else:
            for attempt in Guard(retry=SLOW).attempts():
                with attempt:
                    fail()
    assert time.sleeps == []
    assert outlast.stop_reason(caught.value) == "shutdown"
    assert [(event.name, event.reason) for event in events] == [("step_retry_exhausted", "shutdown")]


def test_a_call_that_succeeds_is_not_disturbed():
    """semantics 23: stopping is about waiting and trying again."""
    stop = Stop()
    stop.set()
    with stop:
        assert outlast.retry(lambda: "fine")() == "fine"
        assert Guard(total_timeout=9).call(lambda: "fine") == "fine"


def test_calls_outside_do_not_listen():
    """semantics 23: only those made inside of the block."""
    stop = Stop()
    stop.set()
    with virtual_time() as time:
        with pytest.raises(ConnectionResetError):
            outlast.retry(SLOW)(fail)()
        with stop:
            pass
        with pytest.raises(ConnectionResetError):
            outlast.retry(SLOW)(fail)()
    assert time.sleeps == [60, 60, 60, 60]
    assert stopping.get() is None


def test_stops_nest():
    """semantics 23: the inner one counts inside, the outer one again after it, also after an error."""
    outer, inner = Stop(), Stop()
    with outer:
        with pytest.raises(RuntimeError), inner:
            assert stopping.get() is inner
            raise RuntimeError
        assert stopping.get() is outer
        with outer:
            assert stopping.get() is outer
        assert stopping.get() is outer
    assert stopping.get() is None


def test_a_stop_may_be_left_in_another_context():
    """semantics 23: a block in an async generator that two tasks step through, as fixtures and dependencies do."""

    async def work(stop):
        with stop:
            yield

    async def main():
        steps = work(Stop())
        await asyncio.create_task(steps.__anext__())
        await asyncio.create_task(steps.aclose())
        return stopping.get()

    assert asyncio.run(main()) is None


def test_one_stop_serves_many_threads():
    """semantics 23: workers enter and leave it in any order, and all of them hear it."""
    stop, entered, reasons = Stop(), threading.Barrier(5), []
    leave = [threading.Event() for _ in range(4)]

    def worker(number):
        with stop:
            entered.wait(20)
            assert leave[number].wait(20)
            try:
                outlast.retry(SLOW)(fail)()
            except ConnectionResetError as error:
                reasons.append(outlast.stop_reason(error))
        assert stopping.get() is None

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    entered.wait(20)
    stop.set()
    for number in (0, 2, 1, 3):
        leave[number].set()
        threads[number].join(20)
    assert reasons == ["shutdown"] * 4


def test_one_stop_serves_many_tasks():
    """semantics 23: tasks enter and leave it in any order."""
    stop = Stop()

    async def worker(turns):
        with stop:
            for _ in range(turns):
                await asyncio.sleep(0)
            assert stopping.get() is stop
            with pytest.raises(ConnectionResetError) as caught:
                await outlast.retry(SLOW)(afail)()
            return outlast.stop_reason(caught.value)

    async def main():
        work = [asyncio.create_task(worker(turns)) for turns in (3, 1, 4, 2)]
        await asyncio.sleep(0)
        stop.set()
        return await asyncio.gather(*work)

    assert asyncio.run(main()) == ["shutdown"] * 4


def test_a_stop_is_forgotten_when_the_wait_is_over():
    """semantics 23: a stop that lives as long as the program does not gather listeners."""
    stop = Stop()

    async def main():
        with stop:
            for _ in range(10):
                with pytest.raises(ConnectionResetError):
                    await outlast.retry(initial_delay=0.0001, jitter=0)(afail)()

    asyncio.run(main())
    assert stop._listeners == {}


def test_a_listener_is_told_once_even_if_it_comes_late():
    """semantics 23: now, if stopping was already asked for; never, once forgotten; and setting twice tells once."""
    stop, told = Stop(), []
    stop.tell(lambda: told.append("early"))
    forget = stop.tell(lambda: told.append("forgotten"))
    forget()
    assert not stop.is_set()
    stop.set()
    stop.set()
    stop.tell(lambda: told.append("late"))
    assert told == ["early", "late"]
    assert stop.is_set()


def test_stopping_while_a_result_is_retried_returns_it():
    """semantics 14, 23: there is no error to raise, so the last result is what there is, whenever the stop came."""
    stop = Stop()
    guard = Guard(retry=SLOW, retry_if=lambda _: True)

    async def pending():
        return "pending"

    async def main():
        with stop:
            task = asyncio.create_task(guard.acall(pending))
        for _ in range(3):
            await asyncio.sleep(0)
        stop.set()
        return await task

    assert asyncio.run(main()) == "pending"
    with stop:
        assert guard.call(lambda: "pending") == "pending"


def test_the_world_is_found_by_context():
    """semantics 76: real unless a scope says otherwise."""
    assert here.get() is REAL
    with virtual_time():
        assert here.get() is not REAL
    assert here.get() is REAL
