"""Rows that were done in a step that failed are undone, too."""

from __future__ import annotations

import pytest

FUNCTIONS = """\
import threading
calls, lock = [], threading.Lock()
def note(line):
    with lock:
        calls.append(line)
def one(id):
    if id != 1:
        raise ValueError(f"no {id}")
    note(f"do {id}")
    return {"ticket": f"t{id}"}
def undo(ticket):
    note(f"undo {ticket}")
def last():
    note("last")
"""
ROWS = """\
name: rows
steps:
  - id: each
    component: python
    for_each: {items: [1, 2, 3, 4], concurrency: 1}
    config: {call: "MODULE:one", args: {id: "${item}"}}
    compensate: {component: python, config: {call: "MODULE:undo", args: {ticket: "${steps.each.outputs.ticket}"}}}
  - id: last
    component: python
    config: {call: "MODULE:last"}
"""


@pytest.mark.timeout(120)
def test_rows_that_are_done_are_undone_when_their_step_fails(project, app):
    """C-21: a row that has succeeded was done, whatever became of the others; it is undone once, and the report says so."""
    project.functions(FUNCTIONS)
    result = project.load(ROWS).run(run_key="a", app=app, check=False)
    assert (result.status, result.compensation, result["each"].status) == ("failed", "completed", "failed")
    assert project.namespace().calls == ["do 1", "undo t1"]
    assert "data_error" in result["each"].error
