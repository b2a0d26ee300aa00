"""One circuit for several real processes: openings, probes, isolation, and what happens when a process or the store dies."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import threading
import time

import psycopg
import pytest

import outlast
from outlast import testing
from outlast.observe import subscribe
from outlast.store import open_store
from outlast.testing import FaultProxy
from servers.postgres import Postgres
from sharing import Process, eventually, soon

QUICK = "shared._SHARED_LEASE, shared._RENEW = 1.5, 0.3"


def thing(name="openai", reset=60.0, **more):
    """An expression that makes a breaker."""
    settings = {"shared": True, "failure_threshold": 3, "reset_timeout": reset} | more
    return f"outlast.CircuitBreaker({name!r}, {', '.join(f'{key}={value!r}' for key, value in settings.items())})"


def sharing(crew, *args, **settings):
    """All of the crew with one breaker."""
    for process in crew:
        process.send(f"share({thing(*args, **settings)})")
    for process in crew:
        process.answer()
    return crew


def document(address, name="openai"):
    with open_store(address, app="shop") as store:
        return store.look("breaker", name)[0]


def test_what_one_process_opens_the_others_reject(crew, name):
    """D-10, C-13, semantics 51: within a second, without a failure of their own, and one process tells of it."""
    one, other, *_ = sharing(crew[:2], name)
    assert other("call()") == "ok"
    assert one("fail(4)") == ["ConnectionError"] * 3 + ["rejected"]
    assert other("until(lambda: call() == 'rejected')") < 1.0
    # The thread that learns of it tells of it: the call that is rejected meanwhile may be told first.
    assert sorted(other("events")) == [["call_rejected", None], ["circuit_breaker_open", True]]
    assert one("events") == [["circuit_breaker_open", False], ["call_rejected", None]]


def test_failures_are_counted_by_each_process(crew, name):
    """D-10: closed-state counts stay per process, and a success in one of them says nothing about the other."""
    one, other = sharing(crew[:2], name)
    assert one("fail(2)") == other("fail(2)") == ["ConnectionError"] * 2
    assert other("call()") == "ok"
    assert [one("state()"), other("state()")] == ["closed", "closed"]
    assert one("fail(1) + [state()]") == ["ConnectionError", "open"]


def test_trips_at_the_same_time_are_one_opening(crew, name, address):
    """Semantics 51: four processes reach the threshold together; the circuit opened once, and one of them told so."""
    for process in sharing(crew, name):
        assert process("fail(2)") == ["ConnectionError"] * 2
    for process in crew:
        process.send("fail(1)")
    for process in crew:
        process.answer()
    for process in crew:
        assert process("until(lambda: state() == 'open')") < 1.0
    told = [event for process in crew for event in process("events")]
    assert told.count(["circuit_breaker_open", False]) == 1
    assert document(address, name)["era"] == 1


FLOOD = """
def flood(path):
    ends = []
    def body():
        with open(path, "ab", buffering=0) as file:
            file.write(b"+")
        time.sleep(0.05)
        with open(path, "ab", buffering=0) as file:
            file.write(b"-")
    def run():
        until = time.monotonic() + 1.2
        while time.monotonic() < until:
            try:
                thing.call(body)
                ends.append("ok")
                return
            except outlast.CircuitBreakerOpenError:
                time.sleep(0.005)
    threads = [threading.Thread(target=run) for _ in range(25)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return len(ends)
"""


def test_probes_are_bounded_over_all_processes_and_threads(crew, name, tmp_path):
    """C-13, semantics 43: 4 processes with 25 threads each; never more than two inside until two have succeeded."""
    path = tmp_path / "inside"
    for process in sharing(crew, name, reset=0.3):
        process(f"exec({FLOOD!r}, globals())")
    crew[0]("fail(3)")
    for process in crew:
        process("until(lambda: thing.state == 'open')")
    for process in crew:
        process.send(f"flood({str(path)!r})")
    passed = sum(process.answer() for process in crew)
    steps = path.read_bytes()
    assert passed == steps.count(b"+") == steps.count(b"-") > 2
    inside, ended, most = 0, 0, 0
    for step in steps:
        inside += 1 if step == ord("+") else -1
        ended += step == ord("-")
        if ended < 2:
            most = max(most, inside)
    assert 1 <= most <= 2, steps[:40]
    told = [event for process in crew for event in process("events")]
    assert told.count(["circuit_breaker_half_open", False]) == 1
    assert told.count(["circuit_breaker_closed", False]) == 1


def test_one_failed_probe_opens_it_for_everybody_again(crew, name, address):
    """C-13: and the rounds of all processes are counted together."""
    one, other = sharing(crew[:2], name, reset=0.2)
    one("fail(3)")
    for round_, process in enumerate((other, one, other), start=1):
        process("until(lambda: fail(1) == ['ConnectionError'])")
        assert document(address, name)["rounds"] == round_
        assert document(address, name)["state"] == "open"
    assert one("until(lambda: thing.memory.circuit.rounds == 3)") < 1.0
    told = [event for process in (one, other) for event, learnt in process("events") if not learnt]
    assert told.count("circuit_breaker_reopened") == 3
    assert told.count("circuit_breaker_open") == 1


def test_isolation_beats_everything_and_survives_a_restart(crew, name, address):
    """Semantics 54: probes do not end it, a new process finds it before its first call, `reset` in any process does."""
    one, other = sharing(crew[:2], name, reset=0.1)
    one("fail(3)")
    one("until(lambda: hold())")
    other("thing.isolate('maintenance')")
    one("gate.set()")
    assert one("until(lambda: state() == 'open')") < 1.0
    one("time.sleep(0.3)")
    assert one("call()") == other("call()") == "rejected"
    with Process(address, thing(name, reset=0.1)) as again:
        assert again("call()") == "rejected"
        assert again("thing.memory.circuit.isolated") == "maintenance"
        assert again("[thing.reset(), call(), state()]") == [None, "ok", "closed"]
    assert other("until(lambda: call() == 'ok')") < 1.0


def test_shadow_mode_never_rejects(crew, name):
    """Semantics 54: also what others have opened or isolated."""
    one, other = sharing(crew[:1], name) + sharing(crew[1:2], name, mode="shadow")
    one("fail(3)")
    assert other("until(lambda: state() == 'open' or call() != 'ok')") < 1.0
    assert other("[call() for _ in range(20)]") == ["ok"] * 20
    one("thing.isolate('by hand')")
    assert other("[call() for _ in range(20)]") == ["ok"] * 20


def test_the_wall_clock_of_a_process_does_not_matter(crew, name):
    """Semantics 15, 16: an hour ahead or behind, it opens, rejects and probes when the store's time has come."""
    ahead, behind = sharing(crew[:2], name, reset=0.5)
    for process, hours in ((ahead, 1), (behind, -1)):
        process(
            "exec('from datetime import timedelta; from outlast.kernel.clock import REAL, Clock; "
            f"REAL.clock.now = lambda: Clock().now() + timedelta(hours={hours})')"
        )
    try:
        for one, other in ((ahead, behind), (behind, ahead)):
            one("fail(3)")
            assert other("until(lambda: thing.state == 'open')") < 1.0
            assert other("call()") == "rejected"
            assert 0.1 < other("until(lambda: call() == 'ok')") < 2.0
            assert other("[call(), state()]") == ["ok", "closed"]
            assert one("until(lambda: state() == 'closed')") < 1.0
    finally:
        for process in (ahead, behind):
            process("exec('del REAL.clock.now')")


def test_a_child_of_a_fork_has_a_contact_of_its_own(crew, name):
    """Semantics 65: the parent's thread and probes are not there, and the circuit is."""
    (one,) = sharing(crew[:1], name)
    one("call()")
    source = """
import os
def child():
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        fail(3)
        os.write(write, call().encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(read, 100).decode()
"""
    one(f"exec({source!r}, globals())")
    assert one("child()") == "rejected"
    assert one("until(lambda: call() == 'rejected')") < 1.0


# -- a process dies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_process_that_dies_in_a_probe_does_not_wedge_the_circuit(crew, name, address, end):
    """Semantics 46: killed or stopped in the only probe, its lease ends, and another process closes the circuit."""
    settings = {"reset": 0.2, "half_open_requests": 1}
    (other,) = sharing(crew[:1], name, **settings)
    with Process(address, thing(name, **settings), first=QUICK) as one:
        one("fail(3)")
        assert one("until(lambda: hold())") < 2.0
        assert other("until(lambda: thing.state == 'half_open')") < 1.0
        assert other("call()") == "rejected"
        getattr(one, end)()
        assert 0.2 < other("until(lambda: call() == 'ok')") < 4.0
        assert other("state()") == "closed"
        if end == "stop":
            era = document(address, name)["era"]
            one.go_on()
            one("gate.set()")
            assert one("until(lambda: state() == 'closed')") < 2.0
            assert one("fail(1) and state()") == "closed"
            assert document(address, name)["era"] == era, "a probe that came too late has changed something"


def test_a_long_probe_keeps_its_place_while_its_process_lives(crew, name, address):
    """Semantics 43: longer than a lease lasts, and still the only one. A process that ends gives its place back at once."""
    settings = {"reset": 0.1, "half_open_requests": 1}
    (other,) = sharing(crew[:1], name, **settings)
    with Process(address, thing(name, **settings), first=QUICK) as one:
        one("fail(3)")
        assert one("until(lambda: hold())") < 2.0
        assert other("until(lambda: thing.state == 'half_open')") < 1.0
        deadline = time.monotonic() + 2.5
        while time.monotonic() < deadline:
            assert other("call()") == "rejected"
            other("time.sleep(0.05)")
    assert other("until(lambda: call() == 'ok')") < 1.0


# -- the store goes away ------------------------------------------------------------------------------------------------------


def test_without_a_store_each_process_decides_alone_and_joins_again():
    """Semantics 54, 55: no error reaches a caller, one line says that it is lost and one that it is back; what was done meanwhile counts."""
    with Postgres() as server, Process(server.dsn, thing()) as one, Process(server.dsn, thing()) as other:
        assert one("call()") == other("call()") == "ok"
        server.stop("immediate")
        assert one("fail(4)") == ["ConnectionError"] * 3 + ["rejected"]
        assert other("until(lambda: len(lines) == 1)") < 3.0
        assert other("[call() for _ in range(50)]") == ["ok"] * 50
        server.start()
        assert other("until(lambda: call() == 'rejected')") < 5.0
        assert one("state()") == "open"
        for process in (one, other):
            assert [line.split()[0] for line in process("lines")] == ["WARNING", "INFO"]
        assert one("events") == [["circuit_breaker_open", False], ["call_rejected", None]]
        assert sorted(other("events")) == [["call_rejected", None], ["circuit_breaker_open", True]]  # as above
        assert document(server.dsn)["era"] == 1
        server.stop("fast")
        assert one("[thing.isolate('by hand'), call()]") == [None, "rejected"]
        server.start()
        assert other("until(lambda: thing.memory.circuit.isolated == 'by hand')") < 5.0
        assert document(server.dsn)["isolated"] == "by hand"


def test_a_process_that_starts_without_a_store_works(tmp_path):
    """Semantics 55: from the first call, sync and async, and its breaker protects it."""
    url = f"sqlite:///{tmp_path}/missing.db"
    (tmp_path / "missing.db").mkdir()
    with Process(url, thing(reset=0.1)) as one:
        assert one("call()") == "ok"
        assert one("asyncio.run(thing.acall(asyncio.sleep, 0, 'ok'))") == "ok"
        assert one("fail(4)") == ["ConnectionError"] * 3 + ["rejected"]
        one("time.sleep(0.15)")
        assert one("[call(), call(), state()]") == ["ok", "ok", "closed"]
        assert len(one("lines")) == 1
        (tmp_path / "missing.db").rmdir()
        assert one("until(lambda: len(lines) == 2)") < 3.0
        assert one("call()") == "ok"


def test_connections_that_are_cut_are_no_loss(postgres):
    """Semantics 55: every few milliseconds, and what was decided meanwhile reaches the others."""
    with FaultProxy(postgres.socket) as proxy:
        through = f"postgresql://postgres@127.0.0.1:{proxy.port}/{postgres.name}"
        with Process(through, thing("cut")) as one, Process(postgres.dsn, thing("cut")) as other:
            assert other("call()") == one("call()") == "ok"
            stop = threading.Event()

            def cut():
                while not stop.wait(0.02):
                    proxy.cut()

            cutter = threading.Thread(target=cut)
            cutter.start()
            try:
                for _ in range(5):
                    assert one("fail(4)[-1]") == "rejected"
                    one("thing.reset()")
                    assert one("call()") == "ok"
            finally:
                stop.set()
                cutter.join()
            assert other("until(lambda: call() == 'ok')") < 3.0
            assert one("fail(4)[-1]") == "rejected"
            assert other("until(lambda: call() == 'rejected')") < 3.0


def test_a_store_that_does_not_answer_holds_nobody_up(postgres):
    """Semantics 55: a lock that somebody keeps; calls wait two seconds once, in sync code, and an event loop not at all."""
    with Process(postgres.dsn, thing("stuck")) as one, psycopg.connect(postgres.dsn) as held:
        assert one("call()") == "ok"
        held.execute("select * from outlast_states where name = 'stuck' for update")
        assert one("fail(4)[-1]") == "rejected"
        assert one("until(lambda: len(lines) == 1)") < 5.0
        began = time.monotonic()
        assert one("[call() for _ in range(20)]") == ["rejected"] * 20
        assert time.monotonic() - began < 1.0
        held.rollback()
        assert one("until(lambda: len(lines) == 2)") < 5.0
        assert one("call()") == "rejected"
        assert document(postgres.dsn, "stuck")["state"] == "open"


# -- in this process --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def app(address):
    return outlast.App("shop", store=address)


@pytest.fixture
def breaker(app, name):
    """Makes the breaker of this test."""

    def make(**settings):
        made = outlast.CircuitBreaker(
            name, **({"failure_threshold": 3, "reset_timeout": 60.0, "shared": True} | settings)
        )
        app.share(made)
        return made

    return make


def fail(made, times=3):
    for _ in range(times):
        with pytest.raises(ConnectionError):
            made.call(_down)


def _down():
    raise ConnectionError("down")


async def _adown():
    raise ConnectionError("down")


def test_an_event_loop_never_waits_for_the_store(breaker, monkeypatch):
    """While the store is asked, other tasks go on; it is asked once for all who wait, and the probes of 200 tasks are bounded."""
    monkeypatch.setattr(
        "outlast.breaker.shared.PATIENCE", 60.0
    )  # a busy machine must not look like a store that is away
    made = breaker(reset_timeout=0.1)
    commons, asked, answer = made.bond.commons(), [], threading.Event()
    change = type(commons).change

    def slow(self, *args):
        asked.append(args)
        assert answer.wait(30)
        return change(self, *args)

    async def story():
        for _ in range(3):
            with pytest.raises(ConnectionError):
                await made.acall(_adown)
        with pytest.raises(outlast.CircuitBreakerOpenError):
            await made.acall(_adown)
        await soon(lambda: not made.open_beyond(0.0) and not made.memory._opening)
        monkeypatch.setattr(type(commons), "change", slow)
        inside = most = 0

        async def body():
            nonlocal inside, most
            inside += 1
            if not made.memory.circuit.passing:
                most = max(most, inside)
            await asyncio.sleep(0.02)
            inside -= 1

        async def one():
            while True:
                try:
                    return await made.acall(body)
                except outlast.CircuitBreakerOpenError:
                    await asyncio.sleep(0.02)

        tasks = [asyncio.create_task(one()) for _ in range(200)]
        await soon(lambda: asked)
        for _ in range(100):  # the loop is free, although nobody has answered
            await asyncio.sleep(0)
        assert len(asked) == 1
        answer.set()
        await asyncio.gather(*tasks)
        return most

    try:
        assert 1 <= asyncio.run(story()) <= 2
    finally:
        answer.set()
    assert made.memory.circuit.passing


def test_a_task_cancelled_while_the_store_is_asked_loses_no_probe(breaker):
    """Semantics 45: what was granted meanwhile is used by the next call, or given back."""
    made = breaker(reset_timeout=0.05, half_open_requests=1)
    fail(made)

    async def story():
        for _ in range(20):
            await asyncio.sleep(0.06)
            task = asyncio.create_task(made.acall(asyncio.sleep, 0))
            await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if made.memory.circuit.passing:
                fail(made)

        async def works():
            try:
                return await made.acall(asyncio.sleep, 0, "ok")
            except outlast.CircuitBreakerOpenError:
                await asyncio.sleep(0.02)

        while await works() != "ok":
            pass

    asyncio.run(asyncio.wait_for(story(), 20))


def test_a_guard_waits_for_the_answer_of_the_store(breaker):
    """Semantics 56: with on_open="fail" and "wait", sync and async; asking costs no attempt."""
    made = breaker(reset_timeout=0.2, half_open_requests=1)
    patient = outlast.Guard(retry=outlast.RetryPolicy(max_attempts=1), breaker=made, on_open="wait", total_timeout=10)
    hasty = outlast.Guard(retry=outlast.RetryPolicy(max_attempts=1), breaker=made)
    fail(made)
    with pytest.raises(outlast.CircuitBreakerOpenError):
        hasty.call(lambda: "ok")
    assert patient.call(lambda: "ok") == "ok"
    assert made.state == "closed"
    fail(made)

    async def ok():
        return "ok"

    assert asyncio.run(patient.acall(ok)) == "ok"
    eventually(lambda: made.memory.circuit.passing)
    fail(made)
    eventually(lambda: made.open_beyond(0.0) is False)
    assert asyncio.run(hasty.acall(ok)) == "ok"


def test_a_pipeline_binds_what_its_stages_share(app, address, name):
    """D-10: to its app's store, before the first item; another app's pipeline cannot have it."""
    made = outlast.CircuitBreaker(name, shared=True, failure_threshold=3, reset_timeout=60)

    @outlast.stage(guard=outlast.Guard(breaker=made, retry=outlast.RetryPolicy(max_attempts=1)))
    async def label(row):
        return row

    assert outlast.Pipeline("p", label, app=app).run([1, 2, 3]).status == "completed"
    fail(made)
    assert document(address, name)["state"] == "open"
    other = outlast.Pipeline("p", label, app=outlast.App("mail", store=address))
    with pytest.raises(outlast.ConfigurationError, match=r"belongs to .*'shop'.*'mail'"):
        other.run([1])


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_items_of_a_stage_wait_for_a_circuit_that_another_process_has_opened(breaker, crew, app, name, kind):
    """C-13: they wait off their slots and all come through."""
    made = breaker(reset_timeout=0.3)
    (other,) = sharing(crew[:1], name, reset=0.3)
    other("fail(3)")
    guard = outlast.Guard(breaker=made, on_open="wait")

    async def label(row):
        return row

    def mark(row):
        return row

    stage = outlast.stage(guard=guard, concurrency=8)(label if kind == "async" else mark)
    result = outlast.Pipeline("p", stage, app=app).run(range(50))
    assert (result.status, result.counts.succeeded) == ("completed", 50)


def test_a_run_stops_after_rounds_of_probes_that_it_has_waited_for(breaker, app, name):
    """D-10: not for those that others have seen before it began; three more in vain, and it says so."""
    made = breaker(reset_timeout=0.05)
    fail(made)
    while made.memory.circuit.rounds < 5:
        eventually(lambda: not made.open_beyond(0.0))
        fail(made, 1)
    works = False
    rounds = []

    @outlast.stage(guard=outlast.Guard(breaker=made, on_open="wait", retry=outlast.RetryPolicy(max_attempts=100)))
    async def label(row):
        rounds.append(made.memory.circuit.rounds)
        if not works:
            raise ConnectionError("down")
        return row

    pipeline = outlast.Pipeline("p", label, app=app)
    result = pipeline.run(range(20), run_key=name, check=False)
    assert (result.status, result.reason) == ("failed", "breaker_open")
    assert max(rounds) >= 7
    works = True
    assert pipeline.run(range(20), run_key=name).counts.succeeded == 20


def test_copies_pickles_and_replacements_stay_shared(breaker, crew):
    """Semantics 66, 80: one circuit, one bond."""
    made = breaker()
    changed = made.replace(reset_timeout=1.0)
    assert changed.shared
    assert changed.memory is made.memory
    assert changed.bond is made.bond
    assert copy.deepcopy(made) is made
    again = pickle.loads(pickle.dumps(changed))
    assert again is changed
    other = crew[0]
    other(f"share(__import__('pickle').loads({pickle.dumps(changed)!r}))")
    assert other("thing.shared")
    fail(changed)
    assert other("until(lambda: call() == 'rejected')") < 1.0


def test_names_do_not_meet(app, address):
    """Semantics 55: neither do two apps, nor a breaker and a limit."""
    made = outlast.CircuitBreaker("a", shared=True, failure_threshold=3)
    app.share(made)
    fail(made)
    names = ["A", "a ", "ä", "a\u0308", "a'", "%s", "a\0", "\ud800", "x" * 2000]
    others = [(app, name) for name in names] + [(outlast.App("mail", store=address), "a")]
    for owner, name in others:
        other = outlast.CircuitBreaker(name, shared=True)
        owner.share(other)
        assert other.call(lambda: "ok") == "ok"
    same = outlast.CircuitBreaker("a", shared=True)
    app.share(same)
    with pytest.raises(outlast.CircuitBreakerOpenError):
        same.call(lambda: "ok")


def test_in_virtual_time_a_shared_circuit_is_this_process_own():
    """A test of a user needs no store: nothing is opened, and time is virtual for it too."""
    made = outlast.CircuitBreaker("openai", shared=True, failure_threshold=1, reset_timeout=600)
    with testing.virtual_time() as time_:
        fail(made, 1)
        with pytest.raises(outlast.CircuitBreakerOpenError):
            made.call(_down)
        time_.advance(601)
        assert made.call(lambda: "ok") == made.call(lambda: "ok") == "ok"
        assert made.state == "closed"
    assert made.bond._commons is None


def test_a_closed_circuit_asks_nobody(breaker, monkeypatch):
    """A million calls a second must not meet the store: after the first, calls touch neither contact nor lock."""
    made = breaker()
    made.call(lambda: None)
    monkeypatch.setattr(type(made.memory), "enter", None)
    monkeypatch.setattr(type(made.memory), "change", None)
    for _ in range(1000):
        made.call(lambda: None)
    assert outlast.Guard(breaker=made).call(lambda: "ok") == "ok"


def test_a_circuit_that_nobody_uses_is_not_looked_at(breaker, monkeypatch):
    """It falls asleep, and the next call looks before it passes."""
    monkeypatch.setattr("outlast.breaker.shared._DOZE", 0.3)
    monkeypatch.setattr("outlast.sharing.contact._IDLE", 0.2)
    made = breaker()
    made.call(lambda: None)
    contact = made.bond.contact()
    eventually(lambda: not made.memory._attended)
    eventually(lambda: contact._thread is None)
    breaker().isolate("by hand")
    with pytest.raises(outlast.CircuitBreakerOpenError, match="by hand"):
        made.call(lambda: None)
    eventually(lambda: contact._thread is None)
    assert made.state == "open"


def test_a_circuit_in_use_stays_awake(breaker, monkeypatch):
    """Calls in a row are enough, and none of them asks for long."""
    monkeypatch.setattr("outlast.breaker.shared._DOZE", 0.1)
    made = breaker()
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        made.call(lambda: None)
    assert made.memory._attended


def test_listeners_may_use_the_breaker(breaker):
    """Semantics 51: also in a loop, where the contact's own thread tells of it."""
    made = breaker()
    seen = []

    def hook(event):
        if event.name == "circuit_breaker_open" and not seen:
            seen.append(made.state)
            made.isolate("by a listener")

    unsubscribe = subscribe(hook)
    try:

        async def story():
            for _ in range(3):
                with pytest.raises(ConnectionError):
                    await made.acall(_adown)

        asyncio.run(story())
        eventually(lambda: made.memory.circuit.isolated == "by a listener")
    finally:
        unsubscribe()


@pytest.mark.parametrize(
    "garbage", ['{"state": "ajar"}', "{}", '{"state": "open"}', '{"state": "open", "era": "x", "probes": 1}']
)
def test_what_nobody_can_read_counts_as_nothing(breaker, address, name, garbage):
    """A document of another program is no reason to reject anything."""
    with open_store(address, app="shop") as store:
        store.save_state("breaker", name, json.loads(garbage), expect=0)
    made = breaker()
    assert made.call(lambda: "ok") == "ok"
    fail(made)
    assert document(address, name)["state"] == "open"


def test_an_opening_of_an_era_that_is_over_is_not_published(app, name):
    """D-10: others opened and closed it, or somebody reset it, before this process has heard of it: the document stays closed."""
    breaker = outlast.CircuitBreaker(name, failure_threshold=1, shared=True)
    app.share(breaker)
    breaker.call(lambda: 1)
    app.store.change_state("breaker", name, lambda found, _: ({**found, "era": found["era"] + 2}, None))
    with pytest.raises(ConnectionError):
        breaker.call(raising, ConnectionError("down"))
    assert app.store.state("breaker", name).data["state"] == "closed"


def raising(error):
    raise error
