"""
A shared circuit under every order of events: several clients with clocks of their own, connections that break before or after a commit, event
loops that do not wait, processes that vanish. Nothing here is real but the code of the circuit.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import outlast
from outlast.breaker import shared
from outlast.breaker.circuit import Circuit, CircuitState
from outlast.breaker.shared import SharedMemory
from outlast.kernel.clock import Clock, Dice, Ids, World, here
from outlast.sharing.contact import Unreachable, on_loop

PROBES, RESET, LEASE = 2, 5.0, 5.0
CLIENTS = strategies.integers(0, 2)
NAME = "machine"


class Store:
    """A commons whose time is the machine's."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.text: str | None = None

    def change(self, _, __, decide):
        document, answer = decide(self.document, self.now)
        if document is not None:
            self.text = json.dumps(document)
        return answer

    def look(self, _, __):
        return self.document, self.now

    @property
    def document(self):
        return None if self.text is None else json.loads(self.text)


class Line:
    """A contact without a thread: what is posted waits until the machine lets it through."""

    def __init__(self, store) -> None:
        self.store = store
        self.lost = False
        self.broken = None  # None, "before" or "after" the commit
        self.posted = deque()

    def asked(self, question):
        if self.broken == "before":
            self.lost = True
            raise Unreachable("cut")
        answer = question(self.store)
        if self.broken == "after":
            self.lost = True
            raise Unreachable("cut after the commit")
        self.lost = False
        return answer

    def ask(self, question):
        if self.lost:
            raise Unreachable("lost")
        return self.asked(question)

    def post(self, question, then=None, otherwise=None):
        if self.lost:
            return otherwise and otherwise()
        return self.posted.append((question, then, otherwise))

    def answer(self):
        question, then, otherwise = self.posted.popleft()
        try:
            answer = self.asked(question)
        except Unreachable:
            return otherwise and otherwise()
        return then and then(answer)

    def lose(self, _):
        self.lost = True

    def attend(self, _):
        """The machine does it."""


class Client:
    """A process: a breaker, a clock that began somewhere else, calls under way."""

    def __init__(self, store, number, *, loop) -> None:
        self.line = Line(store)
        self.loop = loop
        self.calls = []
        self.era = 0
        clock = Clock()
        clock.monotonic = lambda: store.now - 1_799_000_000.0 + 1000.0 * number
        self.world = World(clock, Dice(1), Ids())
        self.breaker = outlast.CircuitBreaker(
            NAME, shared=True, failure_threshold=2, reset_timeout=RESET, half_open_requests=PROBES
        )
        self.breaker.memory = self.memory = SharedMemory(Bond(self.line))

    def __enter__(self):
        self._token = here.set(self.world)
        shared.on_loop = lambda: self.loop
        return self

    def __exit__(self, *_):
        shared.on_loop = on_loop
        here.reset(self._token)

    def ask(self):
        """A ticket, "rejected", or None if the answer is on its way."""
        try:
            return self.breaker.ask()
        except outlast.CircuitBreakerOpenError:
            return "rejected"


class Bond:
    """Stands in for the bond of a client."""

    def __init__(self, line) -> None:
        self.kind, self.name, self._line = "breaker", NAME, line

    def contact(self):
        return self._line


class SharedCircuit(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.made = 0
        self.clients = [self._client(loop=number == 1) for number in range(3)]
        self.era = 0
        self.granted = set()
        self.isolated = False

    def _client(self, *, loop):
        self.made += 1
        return Client(self.store, self.made, loop=loop)

    # -- what happens

    @rule(number=CLIENTS)
    def a_call_begins(self, number):
        with self.clients[number] as client:
            ticket = client.ask()
            if ticket is None or ticket == "rejected":
                return
            client.calls.append(ticket)
            if ticket.probe is not None and not client.memory._astray:
                assert ticket.probe not in self.granted, "two calls are the same probe"
                self.granted.add(ticket.probe)

    @rule(number=CLIENTS, which=strategies.integers(0, 5), failed=strategies.sampled_from([True, True, False, None]))
    def a_call_ends(self, number, which, failed):
        with self.clients[number] as client:
            if client.calls:
                client.breaker.settle(client.calls.pop(which % len(client.calls)), failed)

    @rule(number=CLIENTS, times=strategies.integers(1, 3))
    def calls_fail(self, number, times):
        for _ in range(times):
            self.a_call_begins(number)
            self.a_call_ends(number, -1, True)

    @rule(seconds=strategies.sampled_from([0.25, 1.0, LEASE - 1, RESET, 12.0, 40.0]))
    def time_passes(self, seconds):
        self.store.now += seconds

    @rule(number=CLIENTS)
    def the_background_looks(self, number):
        self._look(self.clients[number])

    def _look(self, client):
        with client:
            if client.memory._attended:
                try:
                    client.memory.attend(client.line)
                except Unreachable:
                    return

    @rule(number=CLIENTS)
    def a_posted_question_is_answered(self, number):
        with self.clients[number] as client:
            if client.line.posted:
                client.line.answer()

    @rule(number=CLIENTS, how=strategies.sampled_from([None, None, "before", "after"]))
    def the_line_breaks_or_mends(self, number, how):
        self.clients[number].line.broken = how

    @rule(number=CLIENTS)
    def a_process_is_killed_and_another_started(self, number):
        self.clients[number] = self._client(loop=self.clients[number].loop)

    @rule(number=CLIENTS)
    def somebody_isolates(self, number):
        self._by_hand(number, lambda breaker: breaker.isolate("by hand"), isolated=True)

    @rule(number=CLIENTS)
    def somebody_resets(self, number):
        self._by_hand(number, lambda breaker: breaker.reset(), isolated=False)

    def _by_hand(self, number, do, *, isolated):
        with self.clients[number] as client:
            do(client.breaker)
            while client.line.posted:
                client.line.answer()
            # Of what was wanted while a line was broken nobody knows when it will be heard.
            self.isolated = None if client.line.broken or client.line.lost or self.isolated is None else isolated

    # -- what always holds

    @invariant()
    def eras_only_grow(self):
        document = self.store.document or {"era": 0}
        assert document["era"] >= self.era
        self.era = document["era"]

    @invariant()
    def there_are_never_too_many_probes(self):
        document = self.store.document or {"probes": [], "late": []}
        probes = document["probes"] + document["late"]  # those of earlier eras are under way too
        assert len([until for _, until in probes if until > self.store.now]) <= PROBES
        assert len(probes) == len({number for number, _ in probes})

    @invariant()
    def clients_hold_no_more_probes_than_there_are(self):
        document = self.store.document
        if document is None:
            return
        alive = {number for number, until in document["probes"] if until > self.store.now}
        held = [
            ticket.probe
            for client in self.clients
            for ticket in client.calls
            if ticket.probe in alive
            and client.memory._seen == document["era"]
            and ticket.era == client.memory.circuit.era
        ]
        assert len(held) == len(set(held)) <= PROBES

    @invariant()
    def own_eras_only_grow(self):
        for client in self.clients:
            assert client.memory.circuit.era >= client.era
            client.era = client.memory.circuit.era

    def teardown(self):
        """Whatever has happened, when it is over all agree, and unless it is isolated it works again."""
        for client in self.clients:
            client.line.broken = None
            client.calls.clear()
        for _ in range(4):
            self._settle_down()
        if self.isolated is None:
            self.isolated = False
            self.somebody_resets(0)
            self._settle_down()
        if self.isolated:
            assert self.store.document["isolated"] == "by hand"
            assert [self._asked(client) for client in self.clients] == ["rejected"] * 3
            return
        assert (self.store.document or {"isolated": None})["isolated"] is None
        for _ in range(12):
            tickets = [self._asked(client) for client in self.clients]
            if all(ticket != "rejected" and ticket.probe is None for ticket in tickets):
                return
            for client, ticket in zip(self.clients, tickets, strict=True):
                if ticket != "rejected":
                    with client:
                        client.breaker.settle(ticket, failed=False)
            self._settle_down()
        states = [client.memory.circuit for client in self.clients]
        raise AssertionError(f"it is wedged: {self.store.document}, {states}")

    def _asked(self, client):
        with client:
            while (answer := client.ask()) is None:
                client.line.answer()
            return answer

    def _settle_down(self):
        self.store.now += RESET + LEASE
        for client in self.clients:
            with client:
                while client.line.posted:
                    client.line.answer()
            self._look(client)


SharedCircuit.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, report_multiple_bugs=False
)
TestSharedCircuit = SharedCircuit.TestCase


def test_a_probe_that_hangs_counts_in_later_rounds_and_in_other_processes():
    """D-10: its lease is renewed while it hangs, in whatever era; when its process dies the place is back after the lease."""
    store = Store()
    one, other = Client(store, 1, loop=False), Client(store, 2, loop=False)

    def look(client):
        with client:
            client.memory.attend(client.line)

    with one:
        for _ in range(2):
            one.breaker.settle(one.ask(), failed=True)
    store.now += RESET
    with one:
        hanging = one.ask()
        assert hanging.probe == 1
    for turn in range(2):  # in each round the other process has room for one probe, which fails
        with other:
            probe = other.ask()
            assert probe.probe == 2 + turn
            assert other.ask() == "rejected"
            other.breaker.settle(probe, failed=True)
            assert other.ask() == "rejected"
        for _ in range(4):  # signs of life
            store.now += RESET / 4
            look(one)
        look(other)
    with one:
        one.breaker.settle(hanging, failed=False)  # of an era long past: it says nothing, and its place is free
    assert store.document["late"] == []
    with other:
        first, second = other.ask(), other.ask()
        assert {first.probe, second.probe} == {4, 5}
        other.breaker.settle(first, failed=True)
    assert [number for number, _ in store.document["late"]] == [5]
    store.now += LEASE + 0.1  # the other process is dead
    with one:
        probes = one.ask(), one.ask()
        for probe in probes:
            one.breaker.settle(probe, failed=False)
        assert one.breaker.state == "closed"


def test_a_document_from_before_late_probes_were_counted_is_read():
    """A store that an older version has written to, and writes to."""
    document = shared.written(
        Circuit(passing=False, state=CircuitState.HALF_OPEN, era=3, probes=((7, 102.0),), issued=7)
    )
    del document["late"]
    seen = shared.read(document, 100.0)
    assert (seen.probes, seen.late, seen.issued, seen.era) == (((7, 102.0),), (), 7, 3)


def test_who_runs_out_of_time_while_a_shared_circuit_is_asked_is_told_so():
    """D-7: in a loop the answer is waited for; a call whose time does not last that long has stood in no line, and its note says so."""

    async def work():
        raise AssertionError("called")

    with Client(Store(), 1, loop=True) as client:
        limit = outlast.Limit("places", concurrency=1)
        guard = outlast.Guard("read", breaker=client.breaker, limit=limit, total_timeout=0.001, retry=None)
        with pytest.raises(outlast.TotalTimeoutError, match="while a shared circuit was asked") as caught:
            asyncio.run(guard.acall(work))
        assert caught.value.__notes__ == [
            "outlast read: nothing was called: the total timeout ran out while a shared circuit was asked."
        ]
        assert limit.under_way == 0
