"""A circuit whose failures in a row are counted in the store, over real processes that make one call each."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import threading

import pytest

import outlast
from outlast import testing
from outlast.breaker.circuit import Circuit
from outlast.breaker.counting import CountedBreaker
from outlast.breaker.shared import by_hand, read, written
from outlast.observe import subscribe
from outlast.report.views import Views
from outlast.store import open_store
from servers.postgres import Postgres
from sharing import Process, eventually

MODULE = "__import__('outlast.breaker.counting', fromlist=['CountedBreaker'])"
# What a version that knows nothing of the count reads and writes.
OLDER = """
_written, _read = shared.written, shared._read
shared.written = lambda circuit: {key: one for key, one in _written(circuit).items() if key != "failures"}
shared._read = lambda found, now: _read({key: one for key, one in found.items() if key != "failures"}, now)
"""


def thing(name, threshold=5, **more):
    """An expression that makes a breaker."""
    settings = {"failure_threshold": threshold, "reset_timeout": 60.0} | more
    return f"{MODULE}.CountedBreaker({name!r}, {', '.join(f'{key}={value!r}' for key, value in settings.items())})"


def sharing(crew, *args, **settings):
    """All of the crew with one breaker."""
    for process in crew:
        process.send(f"share({thing(*args, **settings)})")
    for process in crew:
        process.answer()
    return crew


def document(address, name):
    with open_store(address, app="shop") as store:
        return store.look("breaker", name)[0]


def once(address, made, expression):
    """What an expression comes to in a process that begins with it and ends after it."""
    with Process(address, made) as process:
        return process(expression)


@pytest.fixture
def app(address):
    return outlast.App("shop", store=address)


@pytest.fixture
def breaker(app, name):
    """Makes the breaker of this test."""

    def make(**settings):
        made = CountedBreaker(name, **({"failure_threshold": 3, "reset_timeout": 60.0} | settings))
        app.share(made)
        return made

    return make


def fail(made, times=1):
    for _ in range(times):
        with pytest.raises(ConnectionError):
            made.call(_down)


def _down():
    raise ConnectionError("down")


async def _adown():
    raise ConnectionError("down")


# -- over processes -----------------------------------------------------------------------------------------------------------


def test_failures_of_processes_one_after_the_other_open_it(address, name):
    """D-10: each fails once and ends; the fifth opens the circuit and tells of it, the sixth is rejected without a call."""
    story = [once(address, thing(name), "[*fail(1), state(), events]") for _ in range(6)]
    assert story[:4] == [["ConnectionError", "closed", []]] * 4
    assert story[4] == ["ConnectionError", "open", [["circuit_breaker_open", False]]]
    assert story[5] == ["rejected", "open", [["circuit_breaker_open", True], ["call_rejected", None]]]
    found = document(address, name)
    assert (found["state"], found["era"], found["failures"]) == ("open", 1, 5)


def test_a_success_in_between_counts_from_0_again(address, name):
    """D-10: four failures, a success and four failures are no five in a row, whichever processes they were."""
    made = thing(name)
    for _ in range(4):
        assert once(address, made, "fail(1)") == ["ConnectionError"]
    assert document(address, name)["failures"] == 4
    assert once(address, made, "call()") == "ok"
    assert document(address, name)["failures"] == 0
    for _ in range(4):
        assert once(address, made, "fail(1)") == ["ConnectionError"]
    assert once(address, made, "[state(), *fail(2)]") == ["closed", "ConnectionError", "rejected"]


def test_processes_at_the_same_time_lose_no_failure(crew, name, address):
    """D-10: four processes with several threads each; what stands in the store is what they have counted."""
    source = """
def flood(times):
    threads = [threading.Thread(target=fail, args=(times,)) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""
    for process in sharing(crew, name, threshold=10_000):
        process(f"exec({source!r}, globals())")
    for process in crew:
        process.send("flood(10)")
    for process in crew:
        process.answer()
    assert document(address, name)["failures"] == 4 * 4 * 10


def test_failures_at_the_same_time_open_it_once(crew, name, address):
    """D-10: two from each of four processes reach the threshold of five together; one process tells of it."""
    for process in sharing(crew, name):
        assert process("call()") == "ok"
    for process in crew:
        process.send("fail(2)")
    for process in crew:
        process.answer()
    for process in crew:
        assert process("until(lambda: state() == 'open')") < 1.0
    told = [event for process in crew for event in process("events")]
    assert told.count(["circuit_breaker_open", False]) == 1
    found = document(address, name)
    assert (found["era"], found["failures"]) == (1, 5)


def test_probes_that_succeed_begin_at_0(crew, name, address):
    """C-13: a probe that fails is one more in a row; the closing forgets them all."""
    one, other = sharing(crew[:2], name, threshold=2, reset_timeout=0.2, half_open_requests=1)
    assert one("fail(1)") + other("fail(1)") == ["ConnectionError"] * 2
    one("until(lambda: state() == 'open')")
    one("until(lambda: fail(1) == ['ConnectionError'])")
    assert (document(address, name)["failures"], one("thing.failure_count")) == (3, 3)
    other("until(lambda: call() == 'ok')")
    found = document(address, name)
    assert (found["state"], found["failures"]) == ("closed", 0)
    assert other("fail(1) + [state()]") == ["ConnectionError", "closed"]


def test_a_plain_breaker_of_the_same_name_leaves_the_count_alone(crew, name, address):
    """D-10: closed-state counts of other breakers stay per process; what they open is open."""
    counting, plain = crew[:2]
    counting(f"share({thing(name, threshold=3)})")
    plain(f"share(outlast.CircuitBreaker({name!r}, failure_threshold=2, shared=True))")
    assert counting("fail(2)") == ["ConnectionError"] * 2
    assert plain("fail(1) + [call()]") == ["ConnectionError", "ok"]
    assert document(address, name)["failures"] == 2
    assert plain("fail(2)") == ["ConnectionError"] * 2
    assert counting("until(lambda: call() == 'rejected')") < 1.0
    assert document(address, name)["failures"] == 2


def test_a_child_of_a_fork_counts_on(crew, name, address):
    """Semantics 65: what a child has counted is there for its parent."""
    (one,) = sharing(crew[:1], name, threshold=3)
    one("fail(1)")
    source = """
import os
def child():
    pid = os.fork()
    if pid == 0:
        fail(1)
        os._exit(0)
    os.waitpid(pid, 0)
"""
    one(f"exec({source!r}, globals())")
    one("child()")
    assert document(address, name)["failures"] == 2
    assert one("fail(2)") == ["ConnectionError", "rejected"]


# -- documents of two versions ------------------------------------------------------------------------------------------------


def test_older_programs_and_newer_ones_read_each_other(address, name):
    """D-32: a document without a count is one with none, and who knows nothing of it reads all the rest."""
    plain = f"outlast.CircuitBreaker({name!r}, failure_threshold=2, reset_timeout=60.0, shared=True)"
    with Process(address, plain, first=OLDER) as older, Process(address, thing(name, 3)) as newer:
        assert older("call()") == "ok"
        assert "failures" not in document(address, name)
        assert newer("fail(2)") == ["ConnectionError"] * 2
        assert document(address, name)["failures"] == 2
        assert older("fail(3)") == ["ConnectionError", "ConnectionError", "rejected"]
        assert "failures" not in document(address, name)
        assert newer("until(lambda: call() == 'rejected')") < 1.0
        older("thing.reset()")
        assert newer("until(lambda: call() == 'ok')") < 1.0
        assert newer("fail(4)") == ["ConnectionError"] * 3 + ["rejected"]
        assert document(address, name)["failures"] == 3
        assert older("until(lambda: call() == 'rejected')") < 1.0


def test_a_document_has_the_count_only_where_something_is_counted():
    """D-32: what other breakers write is what it was, byte for byte."""
    keys = {
        *("shared", "state", "era", "opened_at", "retry_at", "rounds", "successes"),
        *("probes", "late", "issued", "isolated"),
    }
    assert set(written(Circuit())) == keys
    assert written(Circuit(row=0)) == written(Circuit()) | {"failures": 0}
    assert read(written(Circuit(era=4, row=2)), 1000.0) == Circuit(era=4, row=2)
    assert read(written(Circuit(era=4)), 1000.0) == Circuit(era=4)


@pytest.mark.parametrize("garbage", ["many", -3, [1], 2.5, True])
def test_a_count_that_nobody_can_read_opens_nothing(breaker, address, name, garbage):
    """A document of another program is no reason to reject anything."""
    with open_store(address, app="shop") as store:
        store.save_state("breaker", name, {**written(Circuit()), "failures": garbage}, expect=0)
    made = breaker(failure_threshold=4)
    assert made.call(lambda: "ok") == "ok"
    fail(made, 4)
    assert document(address, name)["failures"] == 4


# -- what it costs, and who waits -----------------------------------------------------------------------------------------


def test_a_success_asks_nobody_where_no_failure_is_known_of(breaker, monkeypatch):
    """Successes cost little: only the one behind a failure is written."""
    made = breaker()
    made.call(lambda: None)
    changes = []
    change = type(made.memory)._transact
    monkeypatch.setattr(type(made.memory), "_transact", lambda *args: changes.append(1) or change(*args))
    for _ in range(100):
        made.call(lambda: None)
    assert changes == []
    fail(made)
    for _ in range(100):
        made.call(lambda: None)
    assert (len(changes), made.failure_count) == (2, 0)


def test_a_success_after_a_long_call_asks_how_many_there_are(breaker, address, name, monkeypatch):
    """Nobody looks at a circuit while a call takes longer than it stays awake: what it has is not known, and set to 0."""
    monkeypatch.setattr("outlast.breaker.shared._DOZE", 0.1)
    made = breaker()

    def slow():
        eventually(lambda: not made.memory._attended)
        once(address, thing(name), "fail(2)")
        return "ok"

    assert made.call(slow) == "ok"
    assert document(address, name)["failures"] == 0


def test_an_event_loop_counts_every_outcome_and_waits_for_none(breaker, address, name):
    """D-10: 200 tasks fail at once; a success among them sets the count to 0 though it was not known yet."""
    made = breaker(failure_threshold=1000)

    async def story():
        ends = await asyncio.gather(*(made.acall(_adown) for _ in range(200)), return_exceptions=True)
        assert {type(end) for end in ends} == {ConnectionError}
        assert await made.acall(asyncio.sleep, 0, "ok") == "ok"
        for _ in range(3):
            with pytest.raises(ConnectionError):
                await made.acall(_adown)

    asyncio.run(story())
    eventually(lambda: not made.memory._counting)
    assert document(address, name)["failures"] == 3


def test_successes_behind_one_another_are_written_once(breaker, address, name, monkeypatch):
    """While the store is slow, thousands of successes must not stand in line for it: one behind each failure does what all of them would."""
    made, gate = breaker(failure_threshold=1000), threading.Event()
    made.call(lambda: None)
    transact = type(made.memory)._transact
    monkeypatch.setattr(type(made.memory), "_transact", lambda *args: gate.wait(30) and transact(*args))

    async def story():
        for _ in range(2):
            with pytest.raises(ConnectionError):
                await made.acall(_adown)
            for _ in range(500):
                await made.acall(asyncio.sleep, 0)
        return len(made.memory._counting)

    try:
        assert asyncio.run(story()) == 4
    finally:
        gate.set()
    eventually(lambda: not made.memory._counting)
    assert document(address, name)["failures"] == 0


def test_an_outcome_of_an_era_that_is_over_is_not_counted(breaker, address, name):
    """D-10: it was reset while the call was under way."""
    made, inside, gate = breaker(), threading.Event(), threading.Event()
    fail(made)

    def slow():
        inside.set()
        gate.wait(30)
        _down()

    def run():
        with pytest.raises(ConnectionError):
            made.call(slow)

    thread = threading.Thread(target=run)
    thread.start()
    inside.wait(30)
    made.reset()
    gate.set()
    thread.join()
    assert document(address, name)["failures"] == 0


def test_copies_pickles_and_replacements_count_on(breaker, crew, address, name):
    """Semantics 66, 80: in this process it is the same object, elsewhere one that counts in the same place."""
    made = breaker(failure_threshold=4)
    fail(made)
    changed = made.replace(failure_threshold=3)
    assert (type(changed), changed.memory is made.memory, changed.failure_count) == (CountedBreaker, True, 1)
    assert copy.deepcopy(changed) is changed is pickle.loads(pickle.dumps(changed))
    crew[0](f"share(__import__('pickle').loads({pickle.dumps(changed)!r}))")
    assert crew[0]("fail(1) + [type(thing).__name__]") == ["ConnectionError", "CountedBreaker"]
    fail(changed)
    assert document(address, name)["state"] == "open"


def test_the_event_of_an_opening_says_how_many_there_were(breaker):
    """C-13: as that of any breaker, with the failures of all processes."""
    made, told = breaker(failure_threshold=2), []
    unsubscribe = subscribe(told.append)
    try:
        fail(made, 2)
    finally:
        unsubscribe()
    (event,) = [one for one in told if one.name == "circuit_breaker_open"]
    assert (event.failure_count, event.reason, event.threshold) == (2, "2 failures in a row", 2)
    assert made.last_failure_time is not None


def test_a_rate_is_counted_by_each_process(breaker, address, name):
    """D-10: the calls of a window stay in the process."""
    made = breaker(failure_rate=0.5, window=4, min_calls=4)
    fail(made, 3)
    assert (made.failure_count, "failures" in document(address, name)) == (3, False)
    fail(made)
    assert (made.state, document(address, name)["state"]) == ("open", "open")


# -- by hand ------------------------------------------------------------------------------------------------------------------


def test_the_count_is_shown_and_reset_by_hand(breaker, address, name):
    """D-10: with the circuits that processes share; one that each process counts for itself shows none."""
    fail(breaker(), 2)
    plain = outlast.CircuitBreaker(f"{name} plain", shared=True)
    outlast.App("shop", store=address).share(plain)
    plain.call(lambda: None)
    with open_store(address, app="shop") as store:
        views = Views(store)

        def shown():
            return {one["name"]: one["failure_count"] for one in views.breakers()}

        assert (shown()[name], shown()[plain.name]) == (2, None)
        assert views.steer(name, "reset", "by hand") == (True, False)
        assert shown()[name] == 0
    assert by_hand({**written(Circuit(row=2))}, 1000.0, "busy")["failures"] == 2


# -- without the store ----------------------------------------------------------------------------------------------------


def test_without_the_store_it_goes_on_alone_from_what_it_knew():
    """Semantics 54, 55: two failures are known and one more opens it here; when the store is back, so it is there."""
    with Postgres() as server, Process(server.dsn, thing("alone", 3)) as one:
        assert one("fail(2)") == ["ConnectionError"] * 2
        server.stop("immediate")
        assert one("fail(2)") == ["ConnectionError", "rejected"]
        server.start()
        assert one("until(lambda: not thing.memory._astray)") < 10.0
        found = document(server.dsn, "alone")
        assert (found["state"], found["failures"]) == ("open", 2)


def test_what_stands_in_the_store_counts_when_it_is_back():
    """Semantics 55: what was counted alone and has opened nothing is forgotten."""
    with Postgres() as server, Process(server.dsn, thing("back", 5)) as one:
        assert one("fail(2)") == ["ConnectionError"] * 2
        server.stop("immediate")
        assert one("[*fail(2), thing.failure_count]") == ["ConnectionError", "ConnectionError", 4]
        server.start()
        assert one("until(lambda: not thing.memory._astray)") < 10.0
        assert one("[thing.failure_count, *fail(1), state()]") == [2, "ConnectionError", "closed"]
        assert document(server.dsn, "back")["failures"] == 3


def test_in_virtual_time_it_counts_here():
    """A test of a user needs no store: failures open it, a success counts from 0, and nothing is bound."""
    made = CountedBreaker("virtual", failure_threshold=2, reset_timeout=600)
    with testing.virtual_time() as time:
        fail(made)
        assert made.call(lambda: "ok") == "ok"
        fail(made)
        assert (made.failure_count, made.state) == (1, "closed")
        fail(made)
        with pytest.raises(outlast.CircuitBreakerOpenError):
            made.call(_down)
        time.advance(601)
        assert made.call(lambda: "ok") == made.call(lambda: "ok") == "ok"
        assert (made.state, made.failure_count) == ("closed", 0)
    assert made.bond._commons is None


def test_it_prints_as_any_breaker_does(breaker, name):
    """What is shown is what is known, and asks nobody."""
    made = breaker()
    fail(made, 2)
    assert repr(made) == f"<CircuitBreaker {name!r} closed, failures: 2, shared>"
    assert json.loads(json.dumps(made.to_config()))["failure_threshold"] == 3
