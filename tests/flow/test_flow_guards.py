"""What protects the steps of a flow: time limits, processes, circuits, limits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from labor import Beside, wait_until
from outlast.components import registry
from outlast.components.describing import Component
from outlast.components.steps.config import Config
from outlast.testing import capture_events, virtual_time

SLOW = """\
import os, subprocess, sys, threading, time
from pathlib import Path
import outlast
HERE = Path(__file__).parent
calls = []

def hang():
    calls.append("hang")
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    (HERE / "pids").write_text(f"{os.getpid()} {child.pid}")
    threading.Event().wait(600)
    return {"late": True}

def late():
    (HERE / "begun").touch()
    while not (HERE / "go").exists():
        threading.Event().wait(0.005)
    (HERE / "late").touch()
    return {"late": True}

def left():
    return {"left": outlast.current().remaining(), "stage": outlast.current().stage}

def drop():
    calls.append("drop")
    raise ConnectionResetError("away")

def change(rows):
    rows.append("spoilt")
    calls.append(len(rows))
    if len(calls) < 3:
        raise ConnectionResetError("away")

async def waits():
    import asyncio
    await asyncio.sleep(0)
    return {"async": True}

def leaves():
    sys.exit(3)
"""


@pytest.fixture
def slow(project):
    project.functions(SLOW)
    return project


def one(call, *lines):
    more = "".join(f"    {line}\n" for line in lines)
    return f'name: guarded\nsteps:\n  - id: a\n    component: python\n    config: {{call: "MODULE:{call}"}}\n{more}'


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.timeout(120)
def test_a_step_in_a_process_is_dead_when_its_time_is_up(slow, app):
    """S0-14, S0-16, C-19: within a second of its limit nothing of the attempt runs, its children included; the late result is nowhere."""
    flow = slow.load(one("hang", "timeout: {step_ms: 1500}", "isolation: process"))
    result = flow.run(run_key="a", app=app, check=False)
    pids = [int(pid) for pid in (slow.root / "pids").read_text().split()]
    assert [alive(pid) for pid in pids] == [False, False]
    (attempt,) = result["a"].attempts
    assert (attempt.outcome, attempt.error_class) == ("timeout", "timeout")
    assert attempt.duration < 2.5 + 30  # the time that a child needs to get ready is not the function's
    assert dict(result["a"].outputs) == {}
    assert app.store.outputs_of_step(app.store.find_run("guarded", "a").number, "a") is None


ENDLESS = """\
name: distances
steps:
  - id: far
    component: sql.transform
    config: {tables: {words: [{n: 200000}]}, query: "select levenshtein(repeat('x', n), repeat('y', n)) as d from words"}
    isolation: process
    timeout: {step_ms: 2500}
"""


@pytest.mark.timeout(120)
def test_a_query_that_cannot_be_interrupted_ends_with_its_process(slow, sqlite_app):
    """DuckDB hears of an interrupt between chunks of rows, and not in the middle of one value, which would take minutes here."""
    result = slow.load(ENDLESS).run(run_key="a", app=sqlite_app, check=False)
    (attempt,) = result["far"].attempts
    assert (attempt.outcome, attempt.error_class, attempt.duration < 30) == ("timeout", "timeout", True)


@pytest.mark.timeout(120)
def test_a_step_in_a_thread_is_left_when_its_time_is_up(slow, app):
    """D-9: the run goes on on time; no second attempt begins beside the first; its late result is discarded."""
    flow = slow.load(
        one("late", "timeout: {step_ms: 300}", "retry: {max_attempts: 3, initial_delay_ms: 0, on_errors: [timeout]}")
    )
    with capture_events() as events:
        result = flow.run(run_key="a", app=app, check=False)
    assert (result["a"].status, result["a"].stop_reason) == ("failed", "still_running")
    # S0-31, S0-35: no attempt is announced that never comes, by an event or a row.
    (attempt,) = result["a"].attempts
    assert (attempt.outcome, attempt.stop_reason, attempt.next_run_at) == ("timeout", "still_running", None)
    told = [(event.name, event.reason) for event in events if event.name.startswith("step_")]
    assert told == [("step_retry_exhausted", "still_running")]
    assert flow.manifest.steps[0].timing["timed_out"] == "last"
    assert "[R52]" in "".join(flow.warnings)
    (slow.root / "go").touch()
    wait_until((slow.root / "late").exists, "the code came to its end")
    record = app.store.find_run("guarded", "a")
    assert record.status == "failed"
    assert app.store.outputs_of_step(record.number, "a") is None


def status(app):
    record = app.store.find_run("guarded", "a")
    return None if record is None else record.status


@pytest.mark.timeout(120)
def test_a_job_is_retried_only_once_the_thread_of_its_step_has_ended(slow, app):
    """D-8, D-9: the job is not due before that, and no attempt runs beside the one whose time is up."""
    text = one("late", "timeout: {step_ms: 300}", "idempotent: true")
    handle = slow.load(text).enqueue(app=app, run_key="a")
    with Beside(app):
        wait_until(lambda: status(app) == "interrupted", "its time is up")
        assert (handle.status, handle.history()) == ("processing", [])
        (slow.root / "go").touch()
        wait_until(lambda: handle.status == "queued", "it is retried")
    (attempt,) = handle.history()
    assert (attempt.outcome, (slow.root / "late").exists(), handle.next_run_at is None) == ("timeout", True, False)


def test_the_total_counts_attempts_and_waits(slow, app):
    """S0-15, C-19: an attempt that would begin too late is not waited for: reason total_timeout."""
    flow = slow.load(
        one("drop", "timeout: {total_ms: 2500}", "retry: {max_attempts: 9, initial_delay_ms: 1000, jitter: 0}")
    )
    with virtual_time() as clock:
        result = flow.run(run_key="a", app=app, check=False)
    assert clock.sleeps == [1.0]
    assert (result["a"].stop_reason, slow.namespace().calls) == ("total_timeout", ["drop", "drop"])


def test_code_knows_its_time_and_its_step(slow, app):
    """`current` says how much of the attempt is left, and where it is."""
    flow = slow.load(one("left", "timeout: {step_ms: 60000, total_ms: 600000}"))
    outputs = flow.run(run_key="a", app=app)["a"].outputs
    assert 0 < outputs["left"] <= 60
    assert outputs["stage"] == "a"


def test_an_attempt_that_changes_what_it_was_given_spoils_nothing(slow, app):
    """Each attempt has values of its own, and so has the next step."""
    text = """\
name: guarded
steps:
  - id: a
    component: python
    config: {call: "MODULE:change", args: {rows: [1, 2]}}
    retry: {max_attempts: 3, initial_delay_ms: 0}
"""
    slow.load(text).run(run_key="a", app=app)
    assert slow.namespace().calls == [3, 3, 3]


def test_a_coroutine_function_is_a_step(slow, app):
    """It runs in an event loop of its own."""
    assert slow.load(one("waits")).run(run_key="a", app=app)["a"].outputs["async"] is True


def test_a_step_that_would_end_the_program_fails(slow, app):
    """sys.exit in a step is that step's failure, and nobody else's."""
    result = slow.load(one("leaves")).run(run_key="a", app=app, check=False)
    assert (result["a"].status, "called sys.exit" in result["a"].error) == ("failed", True)


CIRCUIT = one("drop", "circuit_breaker: {failure_threshold: 5, reset_timeout_s: 60, half_open_requests: 2}")


def test_failures_of_successive_runs_open_a_circuit(slow, app):
    """S0-26, S0-40, D-10: the fifth failing run opens it, which is told; the sixth is rejected and calls nothing."""
    flow = slow.load(CIRCUIT)
    with capture_events() as events:
        for number in range(5):
            flow.run(run_key=f"run {number}", app=app, check=False)
        assert [event.name for event in events if event.name.startswith("circuit")] == ["circuit_breaker_open"]
        result = flow.run(run_key="run 5", app=app, check=False)
    assert slow.namespace().calls == ["drop"] * 5
    assert (result["a"].status, result["a"].stop_reason, result["a"].attempts) == ("failed", "breaker_open", ())
    fourth = app.store.find_run("guarded", "run 4")
    assert "circuit_breaker_open" in [row.name for row in app.store.events(run=fourth.id)]


def test_a_limit_lets_so_many_steps_run_at_a_time(project, app):
    """Steps that share a limit by its name wait for each other."""
    project.functions("""\
import threading
lock, now, most = threading.Lock(), [0], [0]
def work():
    with lock:
        now[0] += 1
        most[0] = max(most[0], now[0])
    threading.Event().wait(0.02)
    with lock:
        now[0] -= 1
""")
    steps = "".join(
        f'  - id: s{n}\n    component: python\n    needs: []\n    config: {{call: "MODULE:work"}}\n    limit: {{name: crowd, concurrency: 2}}\n'
        for n in range(8)
    )
    assert project.load(f"name: crowded\nsteps:\n{steps}").run(run_key="a", app=app).status == "completed"
    assert project.namespace().most == [2]


@pytest.mark.parametrize("rows", [False, True])
def test_what_a_component_needs_is_loaded_before_its_time_begins(project, app, monkeypatch, rows):
    """S0-14: to load a library may take seconds, which are no part of an attempt: nothing was asked of anybody yet."""
    name = f"heavy_library_{rows}".lower()
    (project.root / f"{name}.py").write_text("""\
import outlast
bound = [outlast.current().remaining()]
def run(config, context):
    bound.append(context.remaining())
    return {}
""")
    monkeypatch.syspath_prepend(str(project.root))
    heavy = Component(name="heavy.step", summary="Needs much.", config=Config, outputs={}, run=f"{name}:run")
    monkeypatch.setitem(registry._components, heavy.name, heavy)  # as register_component, and gone afterwards
    each = "    for_each: {items: [{id: 1}], key: id}\n" if rows else ""
    flow = project.load(
        f"name: loaded\nsteps:\n  - id: a\n    component: heavy.step\n    timeout: {{step_ms: 60000}}\n{each}"
    )
    assert flow.run(run_key="a", app=app).status == "completed"
    first, second = sys.modules.pop(name).bound
    assert (first, second is None) == (None, False)


def test_the_snoozes_of_a_step_end_after_seven_days(project, app):
    """D-31: a step may wait for 6 days in all, and fails when it asks for another 2."""
    project.functions(
        "import outlast\nleft = [4, 2, 2]\ndef ready():\n    if left:\n        raise outlast.Snooze(left.pop(0) * 86_400)\n"
    )
    with virtual_time() as clock:
        result = project.load(one("ready")).run(run_key="a", app=app, check=False)
    assert (result.status, clock.sleeps) == ("failed", [4 * 86_400.0, 2 * 86_400.0])
    *snoozed, last = result["a"].attempts
    assert ([row.outcome for row in snoozed], last.outcome) == (["snoozed"] * 2, "failed")
    assert "to come within 7 days of its first Snooze" in last.error


def test_snooze_puts_a_step_off_without_an_attempt(project, app):
    """A step that is not ready yet comes back after so many seconds, and none of its attempts is used up."""
    project.functions(
        "import outlast\ncalls = []\ndef ready():\n    calls.append(1)\n    if len(calls) < 4:\n        raise outlast.Snooze(20)\n"
    )
    with virtual_time() as clock:
        result = project.load(one("ready")).run(run_key="a", app=app)
    assert clock.sleeps == [20.0, 20.0, 20.0]
    assert [row.outcome for row in result["a"].attempts] == ["snoozed", "snoozed", "snoozed", "succeeded"]
