"""Idempotency keys of steps: done once for a key, whoever asks, in whatever run."""

from __future__ import annotations

import hmac
import importlib
import sys
import threading
from hashlib import sha256

import pytest

import outlast
from outlast.testing import capture_events, virtual_time

FUNCTIONS = """\
import threading
calls = []
begun, go = threading.Event(), threading.Event()
go.set()
def charge(amount, table="orders"):
    calls.append(amount)
    begun.set()
    go.wait(60)
    return {"receipt": f"r-{len(calls)}"}
def refund(receipt):
    calls.append(f"back {receipt}")
def fail():
    raise ValueError("no")
"""
ONE = """\
name: shop
params: {batch: {type: string, default: b1}, amount: {type: integer, default: 5}}
steps:
  - id: charge
    component: python
    config: {call: "MODULE:charge", args: {amount: "${params.amount}", table: orders}}
    idempotency: {key: "${call}:${params.batch}", cache_ttl_s: 3600}
    retry: {max_attempts: 2, initial_delay_ms: 100, jitter: 0, on_errors: [idempotency_conflict]}
"""


@pytest.fixture
def shop(project):
    project.functions(FUNCTIONS)
    return project


def test_the_work_for_a_key_is_done_once(shop, app):
    """S0-17, S0-18, S0-19, C-20: in another run the step is not executed; its outputs are restored, and that is told and on record."""
    first = shop.load(ONE).run(run_key="a", app=app)
    with capture_events() as events:
        second = shop.load(ONE).run(run_key="b", app=app)
    assert shop.namespace().calls == [5]
    assert (second["charge"].status, second["charge"].outputs["receipt"]) == ("cached", "r-1")
    assert second["charge"].attempts == ()
    (hit,) = [event for event in events if event.name == "idempotency_hit"]
    assert (hit.step_id, hit.done_by, hit.run_key) == ("charge", first.id, "b")
    assert "idempotency_hit" in [row.name for row in app.store.events(run=second.id)]
    assert second.why == "1 of 1 step succeeded, 1 of them before, by its key"


def test_from_step_does_it_again_in_the_run_that_did_it_and_in_no_other(shop, app):
    """S0-17, C-20: a dry run promises no more than that, before the key is looked for."""
    flow = shop.load(ONE)
    said = "dry run, nothing was run: it would {} charge; charge only if no other run has done it under its key"
    assert flow.run(run_key="a", app=app, dry_run=True).why == said.format("run")
    flow.run(run_key="a", app=app)
    assert flow.run(run_key="b", app=app, dry_run=True).why == said.format("run")
    assert flow.run(run_key="b", app=app)["charge"].status == "cached"
    assert flow.run(run_key="b", app=app, dry_run=True).why == "dry run, nothing was run: nothing is left to do"
    assert flow.run(run_key="b", app=app, dry_run=True, from_step="charge").why == said.format("do again")
    assert flow.run(run_key="b", app=app, from_step="charge")["charge"].status == "cached"
    assert shop.namespace().calls == [5]
    assert flow.run(run_key="a", app=app, dry_run=True, from_step="charge").why == said.format("do again")
    assert flow.run(run_key="a", app=app, from_step="charge")["charge"].status == "succeeded"
    assert shop.namespace().calls == [5, 5]


def test_another_key_is_other_work(shop, app):
    """S0-17: the key is filled from the step's own config and the parameters."""
    shop.load(ONE).run(run_key="a", app=app)
    shop.load(ONE, params={"batch": "b2"}).run(run_key="b", app=app)
    assert shop.namespace().calls == [5, 5]


SHARED = """\
name: NAME
params: {amount: {type: integer, default: 5}}
steps:
  - id: first
    component: python
    config: {call: "MODULE:charge", args: {amount: "AMOUNT"}}
    idempotency: {key: "AMOUNT"}ROWS
  - id: second
    component: python
    config: {call: "MODULE:charge", args: {amount: "AMOUNT"}}
    idempotency: {key: "AMOUNT"}ROWS
"""


@pytest.mark.parametrize(
    ("amount", "rows"), [("${params.amount}", ""), ("${item}", "\n    for_each: {items: [5]}")], ids=["step", "rows"]
)
def test_a_key_belongs_to_one_step_of_one_pipeline(shop, sqlite_app, amount, rows):
    """S0-17: the same text is another key in another step, and in another pipeline, also for the same work."""
    for name in ("shop", "store"):
        text = SHARED.replace("NAME", name).replace("AMOUNT", amount).replace("ROWS", rows)
        result = shop.load(text).run(run_key=name, app=sqlite_app)
        assert [step.status for step in result.steps] == ["succeeded"] * 2
    assert shop.namespace().calls == [5] * 4


def test_a_success_is_forgotten_after_its_time(shop, app):
    """S0-18: the time counts from the success; after it the work is done again."""
    with virtual_time() as time:
        shop.load(ONE).run(run_key="a", app=app)
        time.advance(3400)
        assert shop.load(ONE).run(run_key="b", app=app)["charge"].status == "cached"
        time.advance(201)
        assert shop.load(ONE).run(run_key="c", app=app)["charge"].status == "succeeded"
    assert shop.namespace().calls == [5, 5]


def test_the_same_key_with_another_config_is_refused(shop, app):
    """D-20: never the outputs of other work; a permanent idempotency_mismatch."""
    shop.load(ONE).run(run_key="a", app=app)
    result = shop.load(ONE, params={"amount": 6}).run(run_key="b", app=app, check=False)
    assert (result["charge"].status, result["charge"].stop_reason) == ("failed", "permanent")
    assert "Give other work another key" in result["charge"].error
    assert shop.namespace().calls == [5]


def test_a_second_run_at_the_same_time_conflicts(shop, app):
    """C-20: in progress elsewhere is a transient error, which the step's own policy decides about."""
    flow, done = shop.load(ONE), []
    first = threading.Thread(target=lambda: done.append(flow.run(run_key="a", app=app)))
    sys.path.insert(0, str(shop.root))
    namespace = importlib.import_module(shop.module)
    namespace.go.clear()
    first.start()
    try:
        assert namespace.begun.wait(60)
        with capture_events() as events:
            second = shop.load(ONE).run(run_key="b", app=app, check=False)
        assert [event.error_class for event in events if event.name == "step_retry_attempt"] == ["idempotency_conflict"]
        assert (second["charge"].status, second["charge"].stop_reason) == ("failed", "exhausted")
        assert "is in progress" in second["charge"].error
    finally:
        namespace.go.set()
        first.join()
    assert (done[0].status, namespace.calls) == ("completed", [5])
    assert shop.load(ONE).run(run_key="b", app=app)["charge"].status == "cached"


SAGA = (
    ONE
    + """\
    compensate: {component: python, config: {call: "MODULE:refund", args: {receipt: "${steps.charge.outputs.receipt}"}}}
  - id: last
    component: python
    config: {call: "MODULE:fail"}
"""
)


def test_what_is_undone_is_not_remembered(shop, app):
    """D-17: undoing a step deletes its record, so that the next run does the work."""
    shop.load(SAGA).run(run_key="a", app=app, check=False)
    shop.load(ONE).run(run_key="b", app=app)
    assert shop.namespace().calls == [5, "back r-1", 5]


def test_what_an_earlier_run_did_is_not_undone(shop, app):
    """C-21: a step that was not executed, because its key was known, belongs to the run that did it."""
    shop.load(ONE).run(run_key="a", app=app)
    result = shop.load(SAGA).run(run_key="b", app=app, check=False)
    assert (result["charge"].status, result.compensation) == ("cached", "none")
    assert shop.namespace().calls == [5]


def test_only_a_digest_of_the_key_is_stored(shop, app, monkeypatch):
    """S0-42, D-20: the key itself is nowhere; with a secret of its own nobody can try out keys."""
    shop.load(ONE).run(run_key="a", app=app)
    rendered = f"{shop.module}:charge:b1"
    plain, secret = (
        sha256(rendered.encode()).hexdigest(),
        hmac.new(b"pepper-and-salt", rendered.encode(), sha256).hexdigest(),
    )
    assert app.store.key_record("shop.charge", plain) is not None
    monkeypatch.setenv("OUTLAST_IDEMPOTENCY_SECRET", "pepper-and-salt")
    shop.load(ONE).run(run_key="b", app=app)
    assert app.store.key_record("shop.charge", secret) is not None
    assert shop.namespace().calls == [5, 5]


def test_tables_are_restored_too(project, app):
    """What was put out is there in full in a run that did not do the work, however large."""
    project.functions("""\
calls = []
def make():
    calls.append(1)
    return {"rows": [{"id": n, "text": "x" * 20} for n in range(20_000)]}
def use(rows):
    return {"count": len(rows), "last": rows[-1]}
""")
    text = """\
name: tables
steps:
  - id: make
    component: python
    config: {call: "MODULE:make"}
    idempotency: {key: "one"}
  - id: use
    component: python
    config: {call: "MODULE:use", args: {rows: "${steps.make.outputs.rows}"}}
"""
    project.load(text).run(run_key="a", app=app)
    result = project.load(text).run(run_key="b", app=app)
    assert (result["make"].status, project.namespace().calls) == ("cached", [1])
    assert dict(result["use"].outputs) == {"count": 20_000, "last": {"id": 19_999, "text": "x" * 20}}


def test_a_failure_is_not_remembered(project, app):
    """C-20: the key is free at once after a failure, for whoever asks next."""
    project.functions(
        "calls = []\ndef once():\n    calls.append(1)\n    if len(calls) == 1:\n        raise ValueError('no')\n"
    )
    text = "name: f\nsteps:\n  - id: once\n    component: python\n    config: {call: 'MODULE:once'}\n    idempotency: {key: k}\n"
    with pytest.raises(outlast.FlowFailed):
        project.load(text).run(run_key="a", app=app)
    assert project.load(text).run(run_key="b", app=app)["once"].status == "succeeded"


# --- rows with keys that are undone all at once ---

AT_ONCE = """\
import threading
calls, deeds, lock = [], {}, threading.Lock()
def note(line):
    with lock:
        calls.append(line)
def do(id):
    note(f"do {id}")
    return {"ticket": f"t{id}"}
def undo():
    note("undo all")
    deeds.get("undo", lambda: None)()
def undo_one(id):
    note(f"undo {id}")
    deeds.get("undo", lambda: None)()
def last(boom):
    if boom:
        raise ValueError("no")
"""
ALL_ROWS = """\
name: rows
params: {ids: {type: list, default: [1, 2]}, boom: {type: boolean, default: true}}
steps:
  - id: each
    component: python
    for_each: {items: "${params.ids}", concurrency: 1}
    config: {call: "MODULE:do", args: {id: "${item}"}}
    idempotency: {key: "row-${item}"}
    retry: {max_attempts: 1}
    compensate: {component: python, config: {call: "MODULE:undo"}, retry: {max_attempts: 1}}
  - id: last
    component: python
    config: {call: "MODULE:last", args: {boom: "${params.boom}"}}
"""
BY_ROW = ALL_ROWS.replace('"MODULE:undo"', '"MODULE:undo_one", args: {id: "${item}"}')
PLAIN = (
    ALL_ROWS.replace('    for_each: {items: "${params.ids}", concurrency: 1}\n', "")
    .replace('"row-${item}"', '"one"')
    .replace('"${item}"', "1")
)


@pytest.fixture
def at_once(project, app, monkeypatch):
    """Runs of a pipeline by their keys; the last step fails unless it is told otherwise."""
    project.functions(AT_ONCE)
    monkeypatch.syspath_prepend(str(project.root))
    there = importlib.import_module(project.module)

    def run(key, text=ALL_ROWS, **params):
        return project.load(text, params=params).run(run_key=key, app=app, check=False)

    run.calls, run.deeds = there.calls, there.deeds
    return run


def test_rows_that_are_undone_at_once_are_not_remembered(at_once):
    """D-17: what undoes all rows of a step deletes what is remembered under the key of each."""
    assert at_once("a")["each"].status == "compensated"
    assert at_once("b", boom=False)["each"].status == "succeeded"
    assert at_once.calls == ["do 1", "do 2", "undo all", "do 1", "do 2"]


def test_rows_that_another_run_did_are_not_undone_at_once(at_once):
    """C-21: all rows are an earlier run's, and so is the step, which is told as any that was known by its key."""
    assert at_once("a", boom=False).status == "completed"
    second = at_once("b")
    assert (second.status, second["each"].status, second.compensation) == ("failed", "cached", "none")
    assert "1 of 2 steps succeeded, 1 of them before, by its key" in second.why
    assert second["each"].outputs["count"] == 2
    assert at_once("b", boom=True)["each"].status == "cached"
    assert at_once("c", boom=False).status == "completed"
    assert at_once.calls == ["do 1", "do 2"]


def test_of_rows_that_are_undone_at_once_one_of_this_run_is_enough(at_once):
    """C-21, D-17: the step is undone; what the other run did stays remembered under its keys."""
    assert at_once("a", ids=[1], boom=False).status == "completed"
    assert at_once("b", ids=[1, 2])["each"].status == "compensated"
    assert at_once("c", ids=[1, 2], boom=False).status == "completed"
    assert at_once.calls == ["do 1", "do 2", "undo all", "do 2"]


def test_rows_that_their_keys_refused_are_not_undone_at_once(at_once):
    """C-21: other work was done under their keys; with `when: started` nothing of this run's was begun either."""
    begun = ALL_ROWS.replace('{call: "MODULE:undo"}', '{call: "MODULE:undo"}, when: started')
    assert at_once("a", begun, boom=False).status == "completed"
    other = begun.replace('args: {id: "${item}"}', 'args: {id: "x${item}"}')
    assert at_once("b", other)["each"].status == "failed"
    assert at_once.calls == ["do 1", "do 2"]


# --- while something is undone ---


class Gate:
    """What says that it was begun, and waits until it may go on."""

    def __init__(self):
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self):
        self.begun.set()
        assert self.go.wait(60)


@pytest.mark.parametrize("text", [PLAIN, BY_ROW, ALL_ROWS], ids=["plain", "by row", "at once"])
def test_what_is_being_undone_is_not_done_for_others(at_once, text):
    """C-20, D-17: it is half there. Others get a conflict until it is undone, and do it then."""
    gate = at_once.deeds["undo"] = Gate()
    done = []
    first = threading.Thread(target=lambda: done.append(at_once("a", text, ids=[1])))
    first.start()
    try:
        assert gate.begun.wait(60)
        second = at_once("b", text, ids=[1], boom=False)
        assert (second.status, second["each"].status) == ("failed", "failed")
        assert "for this key is being undone" in second["each"].error
        assert "idempotency_conflict" in second.why
        assert len(at_once.calls) == 2
    finally:
        gate.go.set()
        first.join()
    assert done[0]["each"].status == "compensated"
    assert at_once("c", text, ids=[1], boom=False)["each"].status == "succeeded"
    assert [line for line in at_once.calls if line.startswith("do")] == ["do 1", "do 1"]


def refuse():
    raise PermissionError("locked")


@pytest.mark.parametrize("text", [PLAIN, BY_ROW, ALL_ROWS], ids=["plain", "by row", "at once"])
def test_what_could_not_be_undone_is_remembered_with_its_outputs(at_once, text):
    """C-20, D-17: it stands. Others find it done as before, and once it is undone after all they do it."""
    at_once.deeds["undo"] = refuse
    assert at_once("a", text, ids=[1])["each"].status == "compensation_failed"
    second = at_once("b", text, ids=[1], boom=False)
    outputs = second["each"].outputs
    assert (outputs if text is PLAIN else outputs["rows"][0]["outputs"])["ticket"] == "t1"
    assert [line for line in at_once.calls if line.startswith("do")] == ["do 1"]
    at_once.deeds.clear()
    assert at_once("a", text, ids=[1], boom=False).status == "completed"  # which undoes it first, and does it again
    assert [line for line in at_once.calls if line.startswith("do")] == ["do 1", "do 1"]


def test_of_rows_those_that_were_undone_are_free_and_the_others_stand(at_once):
    """C-21, D-17: each row by itself."""
    outcomes = iter([dict, refuse])  # the last row is undone first

    def undo():
        next(outcomes)()

    at_once.deeds["undo"] = undo
    assert at_once("a", BY_ROW)["each"].status == "compensation_failed"
    assert at_once("b", BY_ROW, boom=False).status == "completed"
    assert at_once.calls == ["do 1", "do 2", "undo 2", "undo 1", "do 2"]


@pytest.mark.parametrize("text", [PLAIN, BY_ROW, ALL_ROWS], ids=["plain", "by row", "at once"])
def test_what_was_undone_by_hand_is_not_remembered(at_once, app, text):
    """D-17: its letter is put away, which says that it was undone; another run does it, and does not find it done."""
    at_once.deeds["undo"] = refuse
    assert at_once("a", text, ids=[1])["each"].status == "compensation_failed"
    letters = [letter.id for letter in app.dead_letters.find() if letter.kind == "compensation"]
    assert app.dead_letters.archive(ids=letters, reason="undone by hand")
    assert at_once("b", text, ids=[1], boom=False)["each"].status == "succeeded"
    assert [line for line in at_once.calls if line.startswith("do")] == ["do 1", "do 1"]


def test_keys_of_a_run_that_is_completed_are_removed_after_their_time(at_once, app):
    """S0-18: of one that has failed they stay: it may go on, and undo what it did."""
    at_once.deeds["undo"] = refuse
    at_once("a", PLAIN)
    assert app.store.prune_keys(ahead_us=25 * 3600 * 1_000_000) == 0
    at_once.deeds.clear()
    at_once("a", PLAIN, boom=False)
    assert app.store.prune_keys(ahead_us=25 * 3600 * 1_000_000) == 1
