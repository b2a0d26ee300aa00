"""What a manifest says of a step becomes a guard, and what steps share by name is one object."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest

import outlast
from forked import Forked
from outlast import testing
from outlast.breaker.counting import CountedBreaker
from outlast.flow.parts import guard_of
from outlast.spec.compile import compile_text
from outlast.spec.schedule import policy_of
from outlast.store import open_store
from tables import table

FULL = """\
    retry: {max_attempts: 4, initial_delay: 2s, jitter: 0, on_errors: [timeout]}
    timeout: {step_ms: 1500, total: 20s}
    circuit_breaker: {failure_threshold: 3, reset_timeout_ms: 2500, scope: fx, on_open: wait, slow_call: 9s}
    limit: {concurrency: 4, rates: {calls: 5/s}, max_wait: 3s, name: crowd}
    retry_budget: {ratio: 0.1, reserve: 7, shared: true}
    idempotent: false
    compensate: {component: python, config: {call: "shop:undo"}, retry: {max_attempts: 2}, timeout: {step: 3s}}
"""


def step_of(text, component="http.caller", config="{connection: '@http.rates', url: /x}"):
    """The step `a` of a pipeline with these lines."""
    head = f'oml_version: "0.1.0"\nname: p\nsteps:\n  - id: a\n    component: {component}\n    config: {config}\n'
    compiled = compile_text(head + text, "p.yaml")
    assert compiled.manifest is not None, [str(one) for one in compiled.errors]
    return compiled.manifest["a"]


@pytest.fixture
def app(tmp_path):
    return outlast.App("shop", store=f"sqlite:///{tmp_path}/store.db")


def step_guard(text, home, **more):
    return guard_of(step_of(text, **more), what="step", home=home)


def test_everything_that_a_policy_says_is_in_the_guard(app):
    """D-10, C-24: milliseconds are seconds, and each part has its name."""
    step = step_of(FULL)
    guard = guard_of(step, what="step", home=app)
    assert (guard.name, guard.retry) == ("a", policy_of(step.policy["retry"]))
    assert (guard.retry.max_attempts, guard.retry.initial_delay, guard.retry.on_errors) == (4, 2.0, ("timeout",))
    assert (guard.timeout, guard.total_timeout, guard.isolation) == (1.5, 20.0, "thread")
    assert (guard.on_open, guard.idempotent) == ("wait", False)
    circuit = guard.breaker
    assert (type(circuit), circuit.name, circuit.shared) == (CountedBreaker, "fx", True)
    assert (circuit.failure_threshold, circuit.reset_timeout, circuit.slow_call) == (3, 2.5, 9.0)
    assert (guard.limit.name, guard.limit.concurrency, guard.limit.max_wait, guard.limit.shared) == (
        "crowd",
        4,
        3.0,
        False,
    )
    assert guard.limit.rates == {"calls": outlast.Rate(5, per=1)}
    budget = guard.retry_budget
    assert (budget.name, budget.ratio, budget.reserve, budget.shared) == ("@http.rates", 0.1, 7, True)
    assert circuit.bond.commons() == budget.bond.commons() == app.commons


def test_a_step_that_says_nothing_makes_one_attempt(app):
    """No part, no limit, and no thread of its own."""
    guard = step_guard("", app)
    assert (guard.retry.max_attempts, guard.plain, guard.idempotent) == (1, True, True)


def test_what_undoes_a_step_has_attempts_and_time_only(app):
    """Neither the circuit nor the limit of the step, and the same isolation (S0-21)."""
    guard = guard_of(step_of(FULL), what="compensation", home=app)
    assert (guard.name, guard.retry.max_attempts, guard.timeout, guard.isolation) == ("a.compensate", 2, 3.0, "thread")
    assert (guard.total_timeout, guard.breaker, guard.limit, guard.retry_budget) == (None, None, None, None)
    assert guard.idempotent


UNDO = '    compensate: {component: python, config: {call: "shop:undo"}%s}\n'
UNDO_PIPELINE = "    compensate: {component: pipeline, config: {target: 'shop:undo', input: in/day.jsonl}}\n"


@table(
    ("text", "step", "compensation"),
    [
        (UNDO % "", None, None),
        ("    timeout: {step: 1s}\n" + UNDO % "", "thread", None),
        ("    timeout: {total: 1s}\n" + UNDO % ", timeout: {total: 1s}", "thread", "thread"),
        ("    timeout: {step: 1s}\n    isolation: thread\n" + UNDO % "", "thread", None),
        ("    isolation: thread\n" + UNDO % "", None, None),
        ("    isolation: process\n" + UNDO % "", "process", "process"),
        ("    isolation: process\n    timeout: {step: 1s}\n" + UNDO % ", timeout: {step: 1s}", "process", "process"),
        ("    isolation: process\n" + UNDO_PIPELINE, "process", None),  # its stages say where items run
    ],
)
def test_a_time_limit_needs_a_thread_or_a_process(app, text, step, compensation):
    """D-9: a thread that is left, unless the step says that a process is to be killed."""
    found = step_of(text)
    assert [guard_of(found, what=what, home=app).isolation for what in ("step", "compensation")] == [step, compensation]


def test_a_circuit_of_one_process_counts_there(app):
    """D-10: shared: false is a plain breaker, which belongs to no store."""
    circuit = step_guard("    circuit_breaker: {shared: false}\n", app).breaker
    assert (type(circuit), circuit.name, circuit.shared, circuit.bond) == (
        outlast.CircuitBreaker,
        "@http.rates",
        False,
        None,
    )


PARTS = ("breaker", "limit", "retry_budget")


def parts_of(guard):
    return tuple(getattr(guard, name) for name in PARTS)


def test_a_name_is_one_object_in_a_process(app, tmp_path):
    """For every flow of the same store, in whichever spelling, and also for an app that was made once more."""
    again = outlast.App("shop", store=f"sqlite:///{tmp_path}/store.db")
    one = parts_of(step_guard(FULL, app))
    other = parts_of(step_guard(FULL.replace("2500", "2500.0"), again))
    assert [a is b for a, b in zip(one, other, strict=True)] == [True] * 3


def test_stores_do_not_meet(app, tmp_path):
    """D-10: the same names at another store, or of another app, are other objects."""
    elsewhere = outlast.App("shop", store=f"sqlite:///{tmp_path}/other.db")
    namesake = outlast.App("mail", store=f"sqlite:///{tmp_path}/store.db")
    found = [parts_of(step_guard(FULL, home)) for home in (app, elsewhere, namesake)]
    assert len({id(part) for parts in found for part in parts}) == 9
    assert [parts[0].bond.commons() for parts in found] == [app.commons, elsewhere.commons, namesake.commons]


def test_another_definition_takes_the_place_of_a_name(app):
    """The circuit goes on with its state; what was made before keeps its settings."""
    one = step_guard(FULL, app)
    one.breaker.isolate("by hand")
    text = FULL.replace("failure_threshold: 3", "failure_threshold: 9").replace("concurrency: 4", "concurrency: 8")
    other = step_guard(text.replace("reserve: 7", "reserve: 8"), app)
    assert (one.breaker.failure_threshold, other.breaker.failure_threshold) == (3, 9)
    assert (type(other.breaker), other.breaker.memory is one.breaker.memory) == (CountedBreaker, True)
    assert other.breaker.state == "open"
    assert (one.limit.concurrency, other.limit.concurrency) == (4, 8)
    assert (one.retry_budget.reserve, other.retry_budget.reserve) == (7, 8)
    alone = step_guard(text.replace("scope: fx", "scope: fx, shared: false"), app)
    assert (type(alone.breaker), alone.breaker.state) == (outlast.CircuitBreaker, "closed")


def test_threads_that_ask_at_the_same_time_get_one_object(app):
    """Whoever comes first makes it."""
    step, found, start = step_of(FULL), [], threading.Barrier(8)

    def ask():
        start.wait(30)
        found.append(parts_of(guard_of(step, what="step", home=app)))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), len({id(part) for parts in found for part in parts})) == (8, 3)


def _down():
    raise ConnectionError("down")


def test_a_test_has_parts_of_its_own(app):
    """What a circuit has seen in virtual time, or with a store for a test, is gone with it, and nothing is bound."""
    text, kept = "    circuit_breaker: {failure_threshold: 1}\n", []
    for _ in range(2):
        with testing.virtual_time():
            guard = step_guard(text, app)
            with pytest.raises(ConnectionError):
                guard.call(_down)
            with pytest.raises(outlast.CircuitBreakerOpenError):
                guard.call(_down)
            assert step_guard(text, app).breaker is guard.breaker
        with testing.temporary_store(app):
            guard = step_guard(text, app)
            with pytest.raises(ConnectionError):
                guard.call(_down)
            assert guard.breaker.state == "open"
            assert guard.breaker.bond._commons is None
        kept.append(weakref.ref(guard.breaker))
    del guard
    gc.collect()
    assert [one() for one in kept] == [None, None]
    assert step_guard(text, app).call(lambda: "ok") == "ok"


PROGRAM = """
import sys
import outlast
from outlast.flow.parts import guard_of
from outlast.spec.manifest import Manifest

app = outlast.App("shop", store=sys.argv[1])
manifest = Manifest.from_json(open(sys.argv[2]).read())

def down():
    with open(sys.argv[3], "a") as calls:
        calls.write("called\\n")
    raise ConnectionError("down")

try:
    guard_of(manifest["a"], what="step", home=app).call(down)
except outlast.OutlastError as error:
    print(type(error).__name__)
except ConnectionError:
    print("failed")
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_runs_that_fail_one_after_the_other_open_the_circuit_of_a_step(request, tmp_path, kind):
    """D-10: a process makes one attempt and ends; the sixth is rejected, and nothing was called."""
    dsn = f"sqlite:///{tmp_path}/store.db"
    if kind == "postgres":
        dsn = request.getfixturevalue("postgres_server").database("flow_parts").dsn
    text = 'oml_version: "0.1.0"\nname: p\nsteps:\n  - id: a\n    component: http.caller\n    config: {url: "https://a.example"}\n'
    text += "    circuit_breaker: {failure_threshold: 5}\n    timeout: {step: 30s}\n"
    (tmp_path / "manifest.json").write_text(compile_text(text, "p.yaml").manifest.to_json())
    calls, said = tmp_path / "calls", []
    for _ in range(6):
        arguments = [dsn, str(tmp_path / "manifest.json"), str(calls)]
        with Forked([sys.executable, "-c", PROGRAM, *arguments], stdout=-1, text=True) as process:
            said.append(process.communicate(timeout=60)[0].strip())
    assert said == ["failed"] * 5 + ["CircuitBreakerOpenError"]
    assert calls.read_text() == "called\n" * 5
    with open_store(dsn, app="shop") as store:
        found = store.look("breaker", "p.a")[0]
    assert (found["state"], found["failures"]) == ("open", 5)
