"""What processes share of a limit, as pure functions: tracks of time, places, what the service said, and clocks that disagree."""

from __future__ import annotations

import itertools
import json
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.limits.stretches import LEASE, QUANTUM, Ask, Offset, Stretches, Wish, _shares, exchange

EPOCH = 1_800_000_000.0


def largest_excess(taken, speed, most):
    """By how much the fullest of all windows holds more than speed · w + most; at most zero if the bound holds."""
    total, lowest, worst = 0.0, inf, -inf
    for instant, cost in sorted(taken):
        lowest = min(lowest, total - speed * instant)
        total += cost
        worst = max(worst, total - speed * instant - lowest)
    return worst - most


class Store:
    """What is shared, and the time there; it travels as JSON."""

    def __init__(self) -> None:
        self.text = None
        self.now = EPOCH

    def exchange(self, ask):
        found = None if self.text is None else json.loads(self.text)
        after, answer = exchange(found, self.now, ask)
        if after is not None:
            self.text = json.dumps(after)
        return answer


class Process:
    """As a shared limit lives in a process, reduced to lines: its clock is off, its round trips take time."""

    def __init__(self, name, store, rates, clock, costs):
        self.name, self.store, self.clock = name, store, clock
        self.lines = {name: Stretches(speed, burst) for name, (speed, burst) in rates.items()}
        self.ends, self.offset, self.costs = {}, Offset(), costs

    def local(self):
        return self.store.now + self.clock

    def ask(self, there, back, count, spare=False):
        now, unsure = self.local(), 0.0 if self.offset.unsure == inf else self.offset.unsure
        calls = tuple(
            tuple(cost[name] / line.speed for name, line in self.lines.items())
            for cost in itertools.islice(itertools.cycle(self.costs), count)
        )
        wishes = {
            name: Wish(
                full=line.burst / line.speed,
                late=0.003,
                unsure=unsure,
                end=self.ends.get(name, (None, None))[0],
                spare=line.spare(now) if spare else 0.0,
            )
            for name, line in self.lines.items()
        }
        asked = now
        self.store.now += there
        read = int(self.store.now * 1000) / 1000  # in milliseconds, as SQLite has it
        real, self.store.now = self.store.now, read
        answer = self.store.exchange(Ask(self.name, wishes, calls, waits=count > 0))
        self.store.now = real + back
        low, unsure = self.offset.measure(asked, read, self.local())
        for name, (begin, end) in answer.stretches.items():
            self.lines[name].add(begin - low, end - low - unsure, longer=self.ends.get(name) == (begin, low))
            self.ends[name] = (end, low)
        return answer

    def fire(self):
        """Start the first call if it may; what it cost."""
        now, cost = self.local(), self.costs[0]
        if max(line.wait(cost[name], now) for name, line in self.lines.items()) > 0:
            return None
        for name, line in self.lines.items():
            line.give(-cost[name])
        self.costs.append(self.costs.pop(0))
        return cost


steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "fire", "fire", "fire", "wait", "spare"]),
        st.integers(0, 2),
        st.sampled_from([0.0, 0.0004, 0.002, 0.01, 0.08]),
        st.sampled_from([0.0, 0.0003, 0.003, 0.05]),
        st.integers(1, 30),
    ),
    min_size=10,
    max_size=120,
)


@settings(max_examples=250)
@given(
    steps=steps,
    rates=st.sampled_from([(40.0, 1.0), (8.0, 10.0), (1000.0, 5.0), (0.5, 1.0)]),
    tokens=st.sampled_from([(20_000.0, 1.0), (2_000.0, 4_000.0), (300.0, 900.0)]),
    clocks=st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
    costs=st.lists(st.integers(0, 3000), min_size=1, max_size=4),
)
def test_no_window_holds_more_than_its_share_whoever_asks_when(steps, rates, tokens, clocks, costs):
    """D-12, semantics 16, 70: three processes whose clocks disagree, with round trips of any length, stay within rate · w + burst together."""
    store = Store()
    known = {"calls": rates, "tokens": tokens}
    processes = [
        Process(f"p{n}", store, known, clock, [{"calls": 1, "tokens": cost} for cost in costs])
        for n, clock in enumerate(clocks)
    ]
    taken = []
    for what, who, there, back, count in steps:
        process = processes[who]
        if what == "ask":
            process.ask(there, back, count)
        elif what == "spare":
            process.ask(there, back, 0, spare=True)
        elif what == "wait":
            store.now += (there + back) * count / 4
        else:
            while (cost := process.fire()) is not None and len(taken) < 500:
                taken.append((store.now, cost))
                store.now += back / 4
    for name, (speed, burst) in known.items():
        most = max(burst, *(cost[name] for _, cost in taken), 0)
        excess = largest_excess([(instant, cost[name]) for instant, cost in taken], speed, most)
        assert excess <= 1e-6 * speed + 1e-6


@pytest.mark.parametrize(
    ("trips", "used"),
    [((0.0002, 0.0002), 0.95), ((0.0, 0.03), 0.8), ((0.03, 0.0), 0.8)],
    ids=["quick", "late", "early"],
)
def test_two_processes_use_what_there_is(trips, used):
    """D-12: with work waiting in both, little is lost when a line goes from one to the other, also if one clock is known badly only."""
    store = Store()
    rates = {"calls": (40.0, 1.0)}
    processes = [Process(name, store, rates, clock, [{"calls": 1}]) for name, clock in (("a", 17.0), ("b", -400.0))]
    taken, again = [], {"a": 0.0, "b": 0.0}
    while store.now < EPOCH + 20:
        for process in processes:
            if process.fire() is not None:
                taken.append((store.now, process.name))
            elif process.lines["calls"].wait(1, process.local()) == inf and store.now >= again[process.name]:
                again[process.name] = process.ask(*(trips if process.name == "a" else (0.0002, 0.0002)), 20).again
        store.now += 0.0002
    shares = [sum(name == one for _, name in taken) for one in "ab"]
    assert sum(shares) >= used * 20 * 40
    assert min(shares) >= 0.4 * sum(shares)
    assert largest_excess([(instant, 1) for instant, _ in taken], 40, 1) <= 1e-4


def test_who_comes_first_is_served_first():
    """D-12: nobody who waits is passed over, and somebody who never comes back is waited for no longer than a tenth of a second."""
    store = Store()
    wish = {"calls": Wish(full=0.025)}
    calls = ((0.025,),) * 20

    def ask(name):
        return store.exchange(Ask(name, wish, calls, waits=True))

    assert ask("a").stretches
    store.now += 0.01
    assert ask("b").stretches
    due = [ask(name).again for name in "cad"]
    store.now = max(due)
    assert not ask("d").stretches  # c and a were here before
    assert ask("c").stretches
    store.now += QUANTUM + 0.11
    assert ask("d").stretches  # a has not come


def test_a_stretch_is_no_longer_than_a_quantum_but_for_one_call():
    """D-12: a process that is killed takes no more than that with it."""
    store = Store()
    wish = {"calls": Wish(full=0.025)}
    begin, end = store.exchange(Ask("a", wish, ((0.025,),) * 500)).stretches["calls"]
    assert end - begin <= QUANTUM + 0.026
    begin, end = store.exchange(Ask("b", {"slow": Wish(full=60.0)}, ((60.0,),) * 5)).stretches["slow"]
    assert end - begin == pytest.approx(60, abs=1e-3)


def test_what_was_not_used_goes_back_if_nobody_came_behind():
    """D-12: the end of the newest stretch, and nothing else."""
    store = Store()
    calls = ((0.025,),) * 8
    wish = Wish(full=0.025)
    _, end = store.exchange(Ask("a", {"calls": wish}, calls)).stretches["calls"]
    store.exchange(Ask("a", {"calls": wish._replace(end=end, spare=0.15)}))
    begin, end_of_b = store.exchange(Ask("b", {"calls": wish}, calls)).stretches["calls"]
    assert begin == pytest.approx(end - 0.15)
    store.exchange(Ask("a", {"calls": wish._replace(end=end, spare=0.15)}))
    store.now = end_of_b - 0.2
    assert store.exchange(Ask("c", {"calls": wish}, calls)).stretches["calls"][0] == end_of_b


def test_settling_moves_the_line():
    """D-12: less than estimated gives back, but no more than a full bucket holds; more is owed."""
    store = Store()
    wish = Wish(full=1.0)
    store.exchange(Ask("a", {"tokens": wish}, ((0.8,),)))

    def begin_after(settled):
        store.exchange(Ask("a", {"tokens": wish._replace(settled=settled)}))
        return json.loads(store.text)["tracks"]["tokens"] - EPOCH

    assert begin_after(0.5) == pytest.approx(0.3, abs=1e-3)
    assert begin_after(100.0) == pytest.approx(0.0)
    assert begin_after(-7.0) == pytest.approx(7.0)


def test_a_store_whose_clock_is_set_back_makes_nobody_wait():
    """semantics 16: what is shared moves with the clock; a second of disorder between connections is no such thing."""
    store = Store()
    wish = {"calls": Wish(full=0.1)}
    store.exchange(Ask("a", wish, ((0.1,),), concurrency=3, wants=3, refusals=((30.0, 0),)))
    store.now -= 86_400
    answer = store.exchange(Ask("b", wish, ((0.1,),), concurrency=3, wants=3))
    assert 0 < answer.gate - store.now <= 30.01
    assert answer.again - store.now < 0.2
    assert answer.members == 2


def test_a_million_units_do_not_drift():
    """D-12: after a million units in a thousand stretches nothing was lost to rounding, nor gained."""
    store, line, taken = Store(), Stretches(1e6, 1.0), 0
    while taken < 1_000_000:
        begin, end = store.exchange(Ask("a", {"units": Wish(full=1e-6)}, ((0.001,),))).stretches["units"]
        line.parts.clear()
        line.add(begin - EPOCH, end - EPOCH)
        now = begin - EPOCH
        for _ in range(10):
            now += line.wait(100, now)
            line.give(-100)
            taken += 100
        store.now = max(store.now, now + EPOCH - 0.2)
    span = json.loads(store.text)["tracks"]["units"] - EPOCH
    assert 1.0 <= span <= 1.011  # a hundredth of a stretch is left over for rounding


# -- places ------------------------------------------------------------------------------------------------------------------------


@given(
    places=st.integers(0, 40),
    wants=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50), min_size=1),
    turn=st.integers(0, 100),
)
def test_shares_are_fair(places, wants, turn):
    """D-11: nobody gets more than it wants, all places are used if they are wanted, and who gets less than it wants gets as much as others."""
    given = _shares(places, wants, turn)
    assert all(0 <= given[who] <= wants[who] for who in wants)
    assert sum(given.values()) == min(places, sum(wants.values()))
    hungry = [given[who] for who in wants if given[who] < wants[who]]
    assert all(max(given.values()) <= one + 1 for one in hungry)


@settings(max_examples=150)
@given(
    concurrency=st.integers(1, 8),
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12), st.booleans(), st.floats(0, 4)), max_size=60),
)
def test_never_more_places_than_there_are(concurrency, steps):
    """D-11: whoever comes and goes, and however late: among those whose lease lasts there are never more places than `concurrency`."""
    store = Store()
    has, until, fair = dict.fromkeys("abc", 0), dict.fromkeys("abc", 0.0), dict.fromkeys("abc", inf)
    for who, wants, leaves, pause in steps:
        store.now += pause
        alive = until[who] > store.now
        keeps = 0 if leaves or not alive else int(min(has[who], max(0, min(wants, fair[who]))))
        answer = store.exchange(
            Ask(who, {}, concurrency=concurrency, keeps=keeps, under_way=keeps, wants=wants, leaves=leaves)
        )
        has[who], until[who], fair[who] = int(answer.places), store.now + answer.lease, answer.fair
        assert answer.lease <= LEASE
        assert sum(has[one] for one in "abc" if until[one] > store.now) <= concurrency


def test_what_one_does_not_want_another_gets():
    """D-11: each gets what it needs; when both need all, each gets half, as calls end; one that is gone leaves its places after its lease."""
    store = Store()

    def ask(who, keeps, wants):
        answer = store.exchange(Ask(who, {}, concurrency=10, keeps=keeps, under_way=keeps, wants=wants))
        return answer.places, answer.fair

    assert ask("a", 0, 30) == (10, 10)
    assert ask("b", 0, 30) == (0, 5)
    assert ask("a", 10, 30) == (10, 5)
    assert ask("a", 5, 30) == (5, 5)
    assert ask("b", 0, 30) == (5, 5)
    assert ask("a", 2, 2) == (2, 2)
    assert ask("b", 5, 30) == (8, 8)
    store.now += LEASE + 0.1
    assert ask("b", 8, 30) == (10, 10)


def test_the_odd_place_goes_round():
    """D-11: with one place and two processes each has it for some seconds."""
    store, had = Store(), set()
    for tick in range(40):
        store.now = EPOCH + tick / 4
        for who in "ab":
            answer = store.exchange(Ask(who, {}, concurrency=1, keeps=0, wants=3))
            if answer.places:
                had.add(who)
    assert had == {"a", "b"}


# -- what the service said ---------------------------------------------------------------------------------------------------------


def test_refusals_of_all_processes_are_one_burst():
    """D-11: two processes are refused at once; the width of both together is cut once, and grows with their successes."""
    store = Store()

    def ask(who, **said):
        return store.exchange(Ask(who, {}, under_way=10, keeps=10, wants=30, **said))

    assert ask("a").width == ask("b").width == inf
    answer = ask("a", refusals=((0.1, 0),))
    assert (answer.width, answer.cuts, len(answer.bursts)) == (17.0, 1, 1)
    answer = ask("b", refusals=((0.1, 0), (0.1, 0)))
    assert (answer.width, answer.cuts, answer.bursts) == (17.0, 1, [])
    answer = ask("b", worked=34, grown=34)
    assert 18 < answer.width < 19.5


def test_a_long_hint_closes_the_gate_for_all():
    """D-11: until the store's own time says that it has passed."""
    store = Store()
    assert store.exchange(Ask("a", {}, under_way=3, refusals=((30.0, 0),))).bursts == [(30.0, 30.0)]
    assert store.exchange(Ask("b", {})).gate == EPOCH + 30
    store.now += 31
    assert store.exchange(Ask("b", {})).gate == -inf


def test_nothing_is_written_when_there_is_nothing_new():
    """semantics 16: a process that only listens costs no write, but for its lease."""
    store = Store()
    ask = Ask("a", {"calls": Wish(full=1.0)}, concurrency=5, keeps=2, under_way=2, wants=2)
    store.exchange(ask)
    written = store.text
    store.now += 1
    assert exchange(json.loads(written), store.now, ask)[0] is None
    store.now += 3
    assert exchange(json.loads(written), store.now, ask)[0] is not None


# -- clocks ------------------------------------------------------------------------------------------------------------------------


@given(
    clock=st.floats(-1e6, 1e6),
    trips=st.lists(st.tuples(st.floats(0, 0.2), st.floats(0, 0.2), st.floats(0, 3)), min_size=1, max_size=20),
)
def test_the_store_shows_what_is_reckoned_with(clock, trips):
    """semantics 16: whatever was measured, the store's clock is between the two bounds, for as long as they are reckoned with."""
    offset, store = Offset(), EPOCH
    for there, back, pause in trips:
        asked = store - clock
        store += there
        read = int(store * 1000) / 1000
        store += back
        low, unsure = offset.measure(asked, read, store - clock)
        store += pause
        assert low - 1e-6 <= clock <= low + unsure + 1e-6


def test_what_is_not_wanted_any_more_goes_back_to_the_track():
    """D-12: a process that leaves with some to spare gives it back: the track ends that much earlier, and the next one starts there."""
    state, answer = exchange(None, 100.0, Ask("a", {"calls": Wish(full=0.05)}, calls=((0.05,),) * 4))
    begin, end = answer.stretches["calls"]
    spare = (end - begin) / 2
    state, _ = exchange(state, 100.0, Ask("a", {"calls": Wish(full=0.05, end=end, spare=spare)}, leaves=True))
    assert state["tracks"]["calls"] == pytest.approx(end - spare)
    _, answer = exchange(state, 100.0, Ask("b", {"calls": Wish(full=0.05)}, calls=((0.05,),) * 4))
    assert answer.stretches["calls"][0] == pytest.approx(end - spare)
