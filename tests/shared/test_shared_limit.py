"""Limits that processes share: real programs, a real store, and every window between any two calls."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace

import pytest

import outlast
from forked import Forked
from outlast import App, Guard, Limit, Rate
from outlast.limits.shared import SharedLimit
from outlast.limits.stretches import Answer, Ask, Wish
from outlast.testing import virtual_time
from servers.postgres import Postgres
from sharing import eventually
from standing import stand_still
from test_quanta import largest_excess

PROGRAM = """
import json, os, sys, threading, time
import outlast
from outlast import App, Guard, Limit, Rate, RetryPolicy
from outlast.limits import stretches

store, out, options = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND), json.loads(sys.argv[3])
stretches.LEASE = options.get("lease", stretches.LEASE)
stretches._RENEW = min(stretches._RENEW, stretches.LEASE / 4)
limit = Limit(
    "service",
    shared=True,
    concurrency=options.get("concurrency"),
    rates={name: Rate(amount, per=per, burst=burst) for name, (amount, per, burst) in options.get("rates", {}).items()},
)
App("test", store=store).share(limit)
charge = limit._charge

def granted(cost, sign=1):
    # The very instant that the limit has decided with.
    at = next((bucket._at for bucket in limit._buckets.values()), time.monotonic())
    os.write(out, f"granted {at!r} {json.dumps(cost)}\\n".encode())
    charge(cost, sign)

limit._charge = granted

class TooMany(Exception):
    status_code, headers = 429, {"Retry-After": options.get("hint")}

refuse_at = options.get("refuse_at", -1)
numbers = iter(range(10**9))

def work(cost):
    number = next(numbers)
    os.write(out, f"began {time.monotonic()!r} {number}\\n".encode())
    if options.get("lasts"):
        threading.Event().wait(options["lasts"])
    os.write(out, f"ended {time.monotonic()!r} {number}\\n".encode())
    if number == refuse_at:
        raise TooMany

costs = options.get("costs", [0])
cost = (lambda cost: {"tokens": cost}) if "tokens" in limit.rates else None
guard = Guard(limit=limit, retry=RetryPolicy(max_attempts=1), cost=cost)
print("ready", flush=True)
sys.stdin.readline()
until = time.monotonic() + options["seconds"]

def listen():
    # The next line ends it sooner.
    global until
    if sys.stdin.readline():
        until = 0.0

threading.Thread(target=listen, daemon=True).start()

def watch():
    # How late a thread of this process wakes: what the machine does not give, no limit can use.
    while (asked := time.monotonic()) < until:
        threading.Event().wait(options["watch"])
        woke = time.monotonic()
        os.write(out, f"late {woke!r} {woke - asked - options['watch']!r}\\n".encode())

if options.get("watch"):
    threading.Thread(target=watch, daemon=True).start()

def worker(number):
    while time.monotonic() < until:
        number += 7
        guard.outcome(work, costs[number % len(costs)])

threads = [threading.Thread(target=worker, args=(number,)) for number in range(options.get("threads", 12))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done", limit.processes, repr(limit), flush=True)
"""


@pytest.fixture(params=["sqlite", "postgres"])
def store(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    server = request.getfixturevalue("postgres")
    App("test", store=server.dsn).store.close()
    server.execute("delete from outlast_states")
    return server.dsn


class Program:
    """A process that uses the shared limit as much as it can, and keeps a record that survives it."""

    def __init__(self, store, path, **options):
        self.path = path
        self.process = Forked(
            [sys.executable, "-W", "error", "-c", PROGRAM, store, str(path), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def record(self, what):
        """(instant, the rest) of every line that begins with this."""
        lines = [line.split(" ", 2) for line in self.path.read_text().splitlines() if line.startswith(what)]
        return [(float(instant), json.loads(rest)) for _, instant, rest in lines]

    def wait_for(self, condition):
        """Until the record says so."""
        until = time.monotonic() + 15
        while not (self.path.exists() and condition(self)):
            assert time.monotonic() < until, "it did not happen"
            threading.Event().wait(0.02)


@contextmanager
def programs(store, tmp_path, *each, **options):
    with ExitStack() as stack:
        found = [Program(store, tmp_path / f"record-{n}", **options, **own) for n, own in enumerate(each)]
        for program in found:
            stack.enter_context(program.process)
            stack.callback(program.process.kill)
        for program in found:
            assert program.process.stdout.readline() == "ready\n"
        for program in found:
            program.go()
        yield found


def spent(granted, name):
    return [(at, 1.0 if name == "calls" else float(cost[name])) for at, cost in granted]


WATCH = 0.02  # seconds: about what lies between two calls
CASES = {
    "40 a second, burst 1": {"rates": {"calls": (40, 1, None)}},
    "500 a minute, burst 10": {"rates": {"calls": (500, 60, 10)}, "threads": 5},
    "calls and uneven tokens": {
        "rates": {"calls": (400, 1, 20), "tokens": (20_000, 1, 2_000)},
        "costs": [40, 300, 900, 1500, 120],
    },
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("store", "case"),
    [("sqlite", case) for case in CASES] + [("postgres", "calls and uneven tokens")],
    indirect=["store"],
)
def test_two_processes_stay_within_one_limit_and_use_it(store, case, tmp_path):
    """D-12, semantics 16, 70: over every window at most rate · w + burst in both together; they come to use at least 90 % of it."""
    options = CASES[case]
    # Seconds on a machine that has nothing else to do; one that has may need its time.
    with programs(store, tmp_path, {}, {}, seconds=110, watch=WATCH, **options) as both:
        eventually(lambda: used_well(both, options["rates"]), seconds=100, every=0.2)
        shares = [program.process.communicate("\n", timeout=200)[0] for program in both]
    assert all("done" in share for share in shares)
    granted = granted_in(both)
    for name, (amount, per, burst) in options["rates"].items():
        taken, speed = spent(granted, name), amount / per
        most = max(burst or 1, *(cost for _, cost in taken))
        assert largest_excess(taken, speed, most) <= 1e-5 * speed


def granted_in(both):
    return sorted((entry for program in both for entry in program.record("granted")), key=lambda entry: entry[0])


def used_well(both, rates):
    """
    Whether they have used 90 % of the tightest rate for 2.4 seconds, and neither less than a quarter of that.

    Of what the machine gave, and not in which seconds: a process that does not run uses nothing, and a thread that wakes
    later than the burst can make up for has lost that time.
    """
    if not all(program.path.exists() for program in both):
        return False
    granted, each = granted_in(both), [program.record("granted") for program in both]
    late = [entry for program in both for entry in program.record("late")]
    if not granted:
        return False
    begin = granted[0][0] + 0.5  # by then both are there, and the burst is used up
    while begin + 2.4 <= granted[-1][0]:
        wakes = [max(0.0, seconds) for at, seconds in late if begin <= at < begin + 2.4]
        used = []
        for name, (amount, per, burst) in rates.items():
            taken, speed = [(at, cost) for at, cost in spent(granted, name) if begin <= at < begin + 2.4], amount / per
            spare = ((burst or 1) - max((cost for _, cost in taken), default=1)) / speed
            lost = sum(max(0.0, seconds - spare) for seconds in wakes) / max(1, len(wakes))  # seconds, each time
            # A call waits for two threads: the one that asks the store, and its own.
            used.append(sum(cost for _, cost in taken) / (speed * 2.4) * (1 + 2 * lost / WATCH))
        shares = [sum(begin <= at < begin + 2.4 for at, _ in mine) for mine in each]
        if max(used) >= 0.9 and min(shares) >= 0.25 * sum(shares):
            return True
        begin += 0.3
    return False


def test_a_killed_process_leaves_its_share_to_the_others(tmp_path):
    """D-12, semantics 70: the rate at once, for nobody has more than a quantum of it; the places when the lease is over."""
    store = f"sqlite:///{tmp_path}/store.db"
    options = {"rates": {"calls": (100, 1, 5)}, "concurrency": 6, "lasts": 0.05, "lease": 1.5, "seconds": 45}
    with programs(store, tmp_path, {}, {}, **options) as (survivor, victim):
        victim.wait_for(lambda one: len(one.record("began")) >= 20)
        victim.process.kill()
        killed = time.monotonic()
        victim.process.wait()
        # With the half of the places that was its own it cannot come to that: each call takes 0.05 s.
        eventually(lambda: most_in_a_second(survivor.record("began"), killed) >= 90, seconds=40, every=0.1)
        survivor.process.communicate("\n", timeout=200)
    assert most_under_way(survivor, victim) <= 6
    assert most_under_way(survivor, since=killed) == 6


def most_in_a_second(began, since):
    """The largest number of calls that began within a second, after this instant."""
    instants = [at for at, _ in began if at >= since]
    return max((bisect(instants, at + 1) - number for number, at in enumerate(instants)), default=0)


def most_under_way(*some, since=0.0, more=()):
    """How many calls were under way at a time at the most; those of a process that was killed end with it."""
    changes = [*more]
    for program in some:
        began, ended = (dict(reversed(pair) for pair in program.record(what)) for what in ("began", "ended"))
        last = max([*began.values(), *ended.values()])
        changes += [(at, 1) for at in began.values()] + [(ended.get(number, last), -1) for number in began]
    under_way = most = 0
    for at, change in sorted(changes):
        under_way += change
        if at >= since:
            most = max(most, under_way)
    return most


def test_a_stopped_process_starts_nothing_when_its_lease_is_over(tmp_path):
    """D-11, semantics 16: what it had belongs to the other by then, and it sees that by its own clock before it lets a call start."""
    store = f"sqlite:///{tmp_path}/store.db"
    with programs(store, tmp_path, {}, {}, concurrency=4, lasts=0.02, lease=1.0, seconds=3.5) as (one, other):
        one.wait_for(lambda program: len(program.record("ended")) >= 20)
        other.wait_for(lambda program: len(program.record("ended")) >= 20)
        stand_still(one.process.pid)
        stopped = time.monotonic()
        other.wait_for(lambda program: most_under_way(program, since=stopped) == 4)
        one.process.send_signal(signal.SIGCONT)
        for program in (one, other):
            assert "done" in program.process.communicate(timeout=200)[0]
    granted, ended = ([at for at, _ in one.record(what)] for what in ("granted", "ended"))
    before = sum(at <= stopped for at in granted) - sum(at <= stopped for at in ended)  # under way when it was stopped
    fresh = [at for at in granted if at > stopped]
    over = sorted(at for at in ended if at > stopped)[before:]
    assert fresh
    assert fresh[0] > stopped + 1.0
    assert most_under_way(other, more=[(at, 1) for at in fresh] + [(at, -1) for at in over]) <= 4


def test_a_refusal_in_one_process_pauses_the_other(tmp_path):
    """D-11: a hint of two seconds closes the gate for all within half a second, until it has passed."""
    store = f"sqlite:///{tmp_path}/store.db"
    options = {"lasts": 0.02, "threads": 3, "seconds": 3.2}
    with programs(store, tmp_path, {"refuse_at": 30, "hint": "2"}, {}, **options) as (refused, other):
        for program in (refused, other):
            assert "done" in program.process.communicate(timeout=200)[0]
    told = dict(reversed(pair) for pair in refused.record("ended"))[30]
    began = [at for at, _ in other.record("began")]
    assert not [at for at in began if told + 0.5 < at < told + 1.95]
    assert [at for at in began if told + 2 <= at]


# -- in one process ----------------------------------------------------------------------------------------------------------------


@contextmanager
def shared(tmp_path, count=1, name="service", **options):
    """So many limits that do not know of each other, as they would be in as many processes."""
    app = App("test", store=f"sqlite:///{tmp_path}/store.db")
    limits = [Limit(name, shared=True, **options) for _ in range(count)]
    app.share(*limits)
    try:
        yield limits
    finally:
        for limit in limits:
            limit._agent.leave()
        app.store.close()


def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        threading.Event().wait(0.005)


def test_a_shared_limit_is_made_by_its_usual_name():
    """D-11: what is shared shows in its text, and it is a Limit as any other."""
    limit = Limit("service", concurrency=3, shared=True)
    assert isinstance(limit, SharedLimit)
    assert limit.shared
    assert limit.processes == 1
    assert repr(limit) == "<Limit 'service' 0 of 3 under way, 0 waiting, shared by 1 process>"
    assert not Limit("service", concurrency=3).shared


def test_callers_never_ask_the_store_themselves(tmp_path, monkeypatch):
    """semantics 58: neither a thread nor an event loop; the agent does, and it ends when nobody needs it."""
    with shared(tmp_path, concurrency=2, rates={"calls": Rate(200, per=1, burst=20)}) as (limit,):
        asked, commons = set(), limit.bond.commons()
        change = type(commons).change

        def seen(self, kind, name, decide):
            if self is commons:  # not that of another test's app, whose threads may still work
                asked.add(threading.current_thread().name)
            return change(self, kind, name, decide)

        monkeypatch.setattr(type(commons), "change", seen)

        async def main():
            async def one():
                async with limit:
                    await asyncio.sleep(0)

            await asyncio.gather(*(one() for _ in range(20)))

        with limit:
            pass
        asyncio.run(main())
        assert limit.under_way == 0
        until(lambda: limit._agent.thread is None)
        assert asked == {"outlast-limit"}
        found, _ = commons.look("limit", "service")
        assert found["members"] == {}


def test_an_agent_rests_by_the_instant_at_which_it_asked(tmp_path, monkeypatch):
    """Who was not idle when it asked has not told the store that it leaves, however late it is when that is done."""
    with shared(tmp_path, concurrency=2) as (limit,):
        asked, rested = [], []
        ask, rests = limit.ask, limit.rests
        monkeypatch.setattr(type(limit), "ask", lambda self, now, **how: (asked.append(now), ask(now, **how))[1])
        monkeypatch.setattr(type(limit), "rests", lambda self, now: (rested.append(now), rests(now))[1])
        with limit:
            pass
        until(lambda: limit._agent.thread is None)
        assert rested
        assert set(rested) <= set(asked)


def test_places_are_for_all_together(tmp_path):
    """D-11: one that needs all has all; when the other comes it gets its half as calls end, and both know of each other."""
    with shared(tmp_path, 2, concurrency=4) as (one, other):
        for _ in range(4):
            one.__enter__()
        assert not other.acquire_nowait()
        turn = other.line_up()
        thread = threading.Thread(target=other.wait, args=(turn, 10))
        thread.start()
        until(lambda: other.processes == 2)
        assert turn.entry < 0
        one.release()
        thread.join(10)
        assert turn.entry >= 0
        assert (one.under_way, other.under_way) == (3, 1)
        other.release()
        for _ in range(3):
            one.release()


def test_acquire_nowait_takes_what_is_at_hand(tmp_path):
    """semantics 70: it never waits; what was not at hand is fetched meanwhile, and the next one finds it."""
    with shared(tmp_path, rates={"calls": Rate(100, per=1, burst=5), "tokens": Rate(1000, per=1, burst=500)}) as (
        limit,
    ):
        assert not limit.acquire_nowait(tokens=300)
        until(lambda: limit.acquire_nowait(tokens=300))
        assert limit.under_way == 1
        limit.release()


def test_a_refusal_narrows_the_width_of_all(tmp_path):
    """D-11: a short hint cuts what all may use together, and each one's part of it."""
    with shared(tmp_path, 2) as (one, other), outlast.testing.capture_events() as events:
        for limit in (one, other):
            for _ in range(10):
                limit.__enter__()
            until(lambda limit=limit: limit._shift is not None)
        until(lambda: one.processes == 2)
        one.leave(one._cuts, refused=0.2)
        until(lambda: one.width is not None and other.width is not None)
        assert one.width == other.width
        assert 8 <= one.width <= 19
        until(lambda: one._room + other._room <= max(one.width, one.under_way + other.under_way))
        assert [event.name for event in events if event.name == "throttled"] == ["throttled"]
        for limit, count in ((one, 9), (other, 10)):
            for _ in range(count):
                limit.release()


def test_what_was_spent_is_settled_for_all(tmp_path):
    """D-12: a call that took ten seconds of the rate and used nothing makes room for the other process."""
    with shared(tmp_path, 2, rates={"tokens": Rate(100, per=1, burst=1000)}) as (one, other):
        guard = Guard(limit=one, cost=lambda: {"tokens": 1000})
        guard.call(lambda: outlast.current().spend(tokens=10))
        began = time.monotonic()
        Guard(limit=other, cost=lambda: {"tokens": 900}).call(lambda: None)
        assert time.monotonic() - began < 3


def test_a_store_that_is_away_stops_nobody(tmp_path, caplog):
    """semantics 55: each goes on alone, one line says so, and one that it is back; nothing is raised."""
    caplog.set_level(logging.WARNING, logger="outlast")
    path, away = tmp_path / "store.db", tmp_path / "away.db"
    # By a name of its own: one of a test before may find its store gone meanwhile, and says so.
    with shared(tmp_path, name="away", rates={"calls": Rate(200, per=1)}, concurrency=4) as (limit,):
        with limit:
            pass
        path.rename(away)
        until(lambda: (limit.__enter__(), limit.release())[1] is None and limit._mode == "alone")
        assert "alone" in repr(limit)
        for _ in range(50):
            with limit:
                pass
        away.rename(path)
        until(lambda: (limit.__enter__(), limit.release())[1] is None and limit._mode == "shared")
        said = [record.getMessage() for record in caplog.records if "limit away" in record.getMessage()]
    assert len(said) == 2, said
    assert "alone" in said[0]
    assert "again" in said[1]


def test_a_server_that_restarts_is_joined_again():
    """semantics 55: PostgreSQL is stopped and started; calls go on all the time."""
    with Postgres() as server:
        app = App("test", store=server.dsn)
        limit = Limit("service", shared=True, rates={"calls": Rate(100, per=1)})
        app.share(limit)
        with limit:
            pass
        server.stop("immediate")
        until(lambda: (limit.__enter__(), limit.release())[1] is None and limit._mode == "alone")
        server.start()
        until(lambda: (limit.__enter__(), limit.release())[1] is None and limit._mode == "shared")
        limit._agent.leave()
        app.store.close()


def test_in_virtual_time_nothing_is_shared(tmp_path, monkeypatch):
    """semantics 77: a test needs no store, also of a limit that is shared before and after."""
    monkeypatch.chdir(tmp_path)
    limit = Limit("service", shared=True, concurrency=2, rates={"calls": Rate(1, per=1)})
    with virtual_time() as virtual:
        for _ in range(5):
            with limit:
                pass
        assert virtual.now == 4.0
        assert "in a test" in repr(limit)
    assert list(tmp_path.iterdir()) == []
    assert limit._agent.thread is None
    App("test", store=f"sqlite:///{tmp_path}/store.db").share(limit)
    with limit:
        assert limit._mode == "shared"
    limit._agent.leave()


def test_a_forked_child_is_a_process_of_its_own(tmp_path):
    """semantics 65: it has another membership and its own agent, and takes nothing with it that the parent had at hand."""
    script = f"""
import os, signal
from outlast import App, Limit, Rate
limit = Limit("forked", shared=True, concurrency=4, rates={{"calls": Rate(50, per=1, burst=5)}})
App("test", store={f"sqlite:///{tmp_path}/store.db"!r}).share(limit)
def both():
    signal.alarm(15)
    while limit.processes < 2:
        with limit:
            pass
with limit:
    pass
member = limit._agent.member
pid = os.fork()
if pid == 0:
    assert limit._agent.member != member and limit.under_way == 0 and limit._agent.thread is None
both()
if pid == 0:
    os._exit(0)
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status), limit.under_way)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False, env=dict(os.environ)
    )
    assert done.stdout == "0 0\n", done.stderr


def test_a_program_that_ends_leaves_its_places(tmp_path):
    """D-11: nobody waits for the lease of a program that has come to its end."""
    script = f"""
from outlast import App, Limit
limit = Limit("service", shared=True, concurrency=4)
App("test", store={f"sqlite:///{tmp_path}/store.db"!r}).share(limit)
with limit:
    pass
"""
    subprocess.run([sys.executable, "-c", script], timeout=200, check=True)
    with shared(tmp_path, concurrency=4) as (limit,):
        found, _ = limit.bond.commons().look("limit", "service")
        assert found["members"] == {}


def test_waiters_that_give_up_leave_nothing_behind(tmp_path):
    """semantics 69: tasks that are cancelled in the line of a shared limit hold neither a place nor a turn."""
    with shared(tmp_path, concurrency=1, rates={"calls": Rate(20, per=1)}) as (limit,):

        async def one():
            async with limit:
                await asyncio.sleep(0)

        async def main():
            tasks = [asyncio.create_task(one()) for _ in range(20)]
            await asyncio.wait(tasks, timeout=200, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks[::2]:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            return sum(one is None for one in done)

        assert asyncio.run(main()) >= 10
        assert (limit.under_way, limit.waiting) == (0, 0)


def test_no_time_is_enough_only_if_something_is_at_hand(tmp_path):
    """semantics 70: with max_wait=0 a call that finds nothing at hand ends at once, and it says so."""
    with shared(tmp_path, concurrency=1, max_wait=0) as (limit,):
        with pytest.raises(outlast.LimitExceededError) as caught:
            limit.__enter__()
        assert caught.value.retry_after is None
        until(limit.acquire_nowait)
        limit.release()


@pytest.mark.parametrize("where", ["ask", "hear", "sleep"])
def test_an_unexpected_error_in_its_thread_stops_no_caller(tmp_path, monkeypatch, caplog, where):
    """Semantics 55: it is logged, callers go on alone, and later they share again."""
    monkeypatch.setattr("outlast.limits.shared._RETRY", 0.05)
    limit = Limit("service", shared=True, concurrency=2, rates={"calls": Rate(10_000, per=1, burst=100)})
    App("test", store=f"sqlite:///{tmp_path}/store.db").share(limit)
    fails = iter([True, True])

    def failing(real):
        def once(*args, **kwargs):
            if threading.current_thread().name == "outlast-limit" and next(fails, False):
                raise MemoryError
            return real(*args, **kwargs)

        return once

    if where == "sleep":  # of the thread: the wait for its bell
        bell = limit._agent._bell
        monkeypatch.setattr(limit._agent, "_bell", SimpleNamespace(wait=failing(bell.wait), set=bell.set))
    else:
        monkeypatch.setattr(limit, where, failing(getattr(limit, where)))
    guard = Guard(limit=limit, retry=None)
    results = []
    callers = [threading.Thread(target=lambda: results.append(guard.call(lambda: 1))) for _ in range(30)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(20)
    assert results == [1] * 30
    patience = threading.Event()
    for _ in range(2000):
        guard.call(lambda: 1)
        if "shared by 1 process" in repr(limit):
            break
        patience.wait(0.005)
    assert "shared by 1 process" in repr(limit)
    assert "MemoryError" in caplog.text
    assert limit.under_way == 0


def test_what_is_unsure_between_the_clocks_is_left_unused():
    """D-12: after an exchange of 100 ms a stretch ends at least 100 ms before what the store gave."""
    limit = Limit("unsure", rates={"calls": Rate(10, per=1)}, shared=True)
    now, inf = time.monotonic(), float("inf")
    answer = Answer(
        stretches={"calls": (1000.0, 1001.0)},
        again=-inf,
        places=inf,
        lease=10.0,
        fair=inf,
        width=inf,
        cuts=0,
        worked=inf,
        narrow=False,
        gate=-inf,
        bursts=[],
        members=1,
        under_way=0,
    )
    limit.hear(Ask("m", {"calls": Wish(full=1.0)}), answer, now - 0.1, 1000.0, now)
    begin, end = limit._buckets["calls"].parts[-1]
    assert end - begin <= 0.9


def test_a_hook_may_call_something_behind_a_shared_limit(tmp_path):
    """Semantics 55: the thread that tells of an opened circuit is not the one that the limit waits for."""
    app, done = App("test", store=f"sqlite:///{tmp_path}/store.db"), threading.Event()
    breaker = outlast.CircuitBreaker("service", failure_threshold=2, shared=True)
    alerts = Guard("alerts", retry=None, limit=Limit("alerts", concurrency=1, shared=True))
    app.share(breaker, alerts.limit)
    guard = Guard("service", retry=None, breaker=breaker)

    def alert(event):
        if event.name == "circuit_breaker_open":
            alerts.call(done.set)

    async def fails():
        raise ConnectionResetError("down")

    async def main():
        for _ in range(3):
            with suppress(Exception):
                await guard.acall(fails)
        await asyncio.to_thread(done.wait, 10)

    unsubscribe = outlast.observe.subscribe(alert)
    try:
        asyncio.run(asyncio.wait_for(main(), 20))
    finally:
        unsubscribe()
    assert done.is_set()


def test_a_limit_that_is_made_for_one_call_gives_its_place_back(tmp_path):
    """D-11: nothing refers to it any more, and the next one does not wait for the end of its lease."""
    app = App("test", store=f"sqlite:///{tmp_path}/store.db")

    def once():
        limit = Limit("one", concurrency=1, shared=True)
        app.share(limit)
        began = time.monotonic()
        with limit:
            return time.monotonic() - began

    once()
    assert once() < 5  # of a lease of 10 s
