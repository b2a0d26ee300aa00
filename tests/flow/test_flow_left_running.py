"""Steps and rows that are to be undone while an attempt at them, whose time was up, still runs in its thread."""

from __future__ import annotations

import pytest

from labor import wait_until
from outlast.flow import steps, underway

FUNCTIONS = """\
import threading
calls, go = [], threading.Event()
def do(id):
    go.wait()
    calls.append(f"do {id}")
def undo(id):
    calls.append(f"undo {id}")
"""
STEP = """\
name: left
steps:
  - id: each
    component: python
    config: {call: "MODULE:do", args: {id: 1}}
    timeout: {step_ms: 100}
    retry: {max_attempts: 1}
    compensate: {component: python, when: started, config: {call: "MODULE:undo", args: {id: 1}}}
"""
ROWS = STEP.replace("{id: 1}", '{id: "${item}"}').replace(
    "    timeout:", "    for_each: {items: [1, 2, 3], concurrency: 3}\n    timeout:"
)
KEYED = ROWS.replace("    timeout:", '    idempotency: {key: "r-${item}"}\n    timeout:')
KINDS = {"step": (STEP, ["1"]), "rows": (ROWS, ["1", "2", "3"]), "keyed": (KEYED, ["1", "2", "3"])}


@pytest.fixture(params=KINDS)
def left(request, project):
    """A flow whose step takes too long, and the numbers of what it does."""
    text, ids = KINDS[request.param]
    project.functions(FUNCTIONS)
    return project.load(text), ids


def split(calls):
    return sorted(one for one in calls if one.startswith("do")), sorted(one for one in calls if one.startswith("undo"))


def test_what_still_runs_is_not_undone(app, project, left, monkeypatch):
    """Nobody is told that it is undone, and it stands: who undoes it later does so after it was done."""
    monkeypatch.setattr(underway, "PATIENCE", 0.05)
    flow, ids = left
    result = flow.run(run_key="a", app=app, check=False)
    calls, go = project.namespace().calls, project.namespace().go
    assert calls == []
    assert (result.status, result.reason, result.compensation) == ("failed", "compensation_failed", "failed")
    assert (result["each"].status, result["each"].stop_reason) == ("compensation_failed", "still_running")
    assert "an attempt at each whose time was up still runs" in result["each"].error
    (letter,) = [one for one in app.dead_letters.find() if one.kind == "compensation"]
    assert (letter.stop_reason, letter.error_class) == ("still_running", "timeout")
    go.set()
    wait_until(lambda: len(calls) == len(ids), "the attempts have come back")
    assert flow.run(run_key="a", app=app).status == "completed"
    does, undoes = [f"do {one}" for one in ids], [f"undo {one}" for one in ids]
    assert split(calls) == (sorted(does * 2), undoes)
    assert split(calls[: len(ids)]) == (does, [])
    assert split(calls[len(ids) : 2 * len(ids)]) == ([], undoes)


def test_what_comes_back_soon_is_undone_then(app, project, left, monkeypatch):
    """It is waited for, before anything undoes it."""
    flow, ids = left
    real = steps.has_come_back

    def has_come_back(run, step):
        project.namespace().go.set()
        return real(run, step)

    monkeypatch.setattr(steps, "has_come_back", has_come_back)
    result = flow.run(run_key="a", app=app, check=False)
    assert (result.status, result.reason, result.compensation) == ("failed", "step_failed", "completed")
    calls = project.namespace().calls
    assert split(calls[: len(ids)]) == ([f"do {one}" for one in ids], [])
    assert split(calls[len(ids) :]) == ([], [f"undo {one}" for one in ids])
    assert underway._ends == {}
