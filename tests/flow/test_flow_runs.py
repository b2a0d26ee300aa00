"""A flow's run: its steps, their attempts, what fails, what is undone, and how it goes on."""

from __future__ import annotations

import ast
import asyncio
import threading

import pytest

import outlast
from outlast.kernel.clock import roll_for
from outlast.testing import capture_events, virtual_time
from tables import table

COUNTING = """\
import threading
calls = []
lock = threading.Lock()

def note(name):
    with lock:
        calls.append(name)
    return sum(one == name for one in calls)

def read(day="monday"):
    note("read")
    return {"rows": [{"id": 1}, {"id": 2}], "day": day}

def flaky():
    if note("flaky") < 3:
        raise ConnectionResetError("peer went away")
    return {"ok": True}

def broken():
    note("broken")
    raise ValueError("no such thing")

def dropped():
    note("dropped")
    raise ConnectionResetError("peer went away")

def count(rows):
    note("count")
    return {"count": len(rows)}

def take(name):
    return {"id": f"{name}-{note('take ' + name)}"}

def give(id):
    note(f"give {id}")

def stuck(id):
    note(f"stuck {id}")
    raise PermissionError("not yours")

def nothing():
    note("nothing")
"""


def names(events):
    return [event.name for event in events]


def step(result, name):
    found = result[name]
    return found.status, [one.outcome for one in found.attempts]


@pytest.fixture
def steps(project):
    project.functions(COUNTING)
    return project


CHAIN = """\
name: chain
params: {day: {type: string, default: monday}}
steps:
  - id: read
    component: python
    config: {call: "MODULE:read", args: {day: "${params.day}"}}
  - id: count
    component: python
    config: {call: "MODULE:count", args: {rows: "${steps.read.outputs.rows}"}}
"""


def test_steps_run_in_order_and_hand_on_what_they_put_out(steps, app):
    """S0-20, S0-22: outputs and parameters reach the config of later steps, with their types, and are on record."""
    result = steps.load(CHAIN, params={"day": "friday"}).run(run_key="a", app=app)
    assert (result.status, result.why, result.compensation) == ("completed", "2 of 2 steps succeeded", "none")
    assert steps.namespace().calls == ["read", "count"]
    assert dict(result["read"].outputs) == {"rows": [{"id": 1}, {"id": 2}], "day": "friday"}
    assert dict(result["count"].outputs) == {"count": 2}
    assert [step(result, name) for name in ("read", "count")] == [("succeeded", ["succeeded"])] * 2


FLAKY = """\
name: flaky
steps:
  - id: ask
    component: python
    config: {call: "MODULE:flaky"}
    retry: {max_attempts: 3, initial_delay_ms: 1000, max_delay_ms: 30000, backoff: exponential, jitter: 0, on_errors: [network_error]}
"""


def test_a_step_is_tried_again_as_its_policy_says(steps, app):
    """S0-01, S0-02, S0-10, S0-33, S0-34, S0-35, S0-36, S0-37: exact waits, every attempt on record with what followed it, and told."""
    flow = steps.load(FLAKY)
    with virtual_time() as time, capture_events() as events:
        result = flow.run(run_key="a", app=app)
    assert time.sleeps == [1.0, 2.0]
    assert names(events) == ["run_started", "step_retry_attempt", "step_retry_attempt", "step_success", "run_finished"]
    assert [(e.attempt, e.next_delay, e.error_class, e.pipeline) for e in events if e.name == "step_retry_attempt"] == [
        (1, 1.0, "connection_reset", "flaky"),
        (2, 2.0, "connection_reset", "flaky"),
    ]
    told = [(one.number, one.outcome, one.error, one.error_class, one.stop_reason) for one in result["ask"].attempts]
    assert told == [
        (1, "failed", "peer went away", "connection_reset", None),
        (2, "failed", "peer went away", "connection_reset", None),
        (3, "succeeded", None, None, None),
    ]
    stored = [row.name for row in app.store.events(run=result.id)]
    assert stored == ["run_started", "step_retry_attempt", "step_retry_attempt", "step_success", "run_finished"]


def test_the_waits_of_a_flow_follow_from_the_id_of_its_run(steps, sqlite_app):
    """C-06, S0-32: run, step and attempt decide each of them, so that a run can be worked out again; another run has others."""
    text = FLAKY.replace("jitter: 0", "jitter: 0.5")
    policy = outlast.RetryPolicy(max_attempts=3, jitter=0.5)
    drawn = []
    for key in "ab":
        with virtual_time() as time:
            result = steps.load(text).run(run_key=key, app=sqlite_app)
        drawn.append(time.sleeps)
        assert time.sleeps == [policy.delay(number, roll_for(result.id, 1, "ask", "do", number)) for number in (1, 2)]
        steps.namespace().calls.clear()
    assert drawn[0] != drawn[1]


SENDING = """\
import outlast
calls = []
ERRORS = {"reset": ConnectionResetError, "late": TimeoutError, "refused": ConnectionRefusedError, "wrong": ValueError}

def send(how, key):
    calls.append(key)
    if calls.count(key) == 1:
        raise ERRORS[how]
"""
SEND = """\
name: letters
steps:
  - id: send
    component: python
    config: {call: "MODULE:send", args: {how: HOW, key: "HOW TIMES"}}
    idempotent: false
    retry: {max_attempts: TIMES, initial_delay_ms: 1}
"""


@table(
    ("how", "times", "stop_reason", "in_doubt"),
    [
        ("reset", 3, "ambiguous", True),
        ("reset", 1, "exhausted", True),
        ("late", 1, "exhausted", True),
        ("refused", 1, "exhausted", False),
        ("wrong", 3, "permanent", False),
    ],
)
def test_what_may_have_been_done_is_done_again_only_by_its_name(steps, sqlite_app, how, times, stop_reason, in_doubt):
    """With `idempotent: false` a plain second run would do twice what only seemed to fail: somebody has to look, and say so."""
    steps.functions(SENDING)
    text, key = SEND.replace("HOW", how).replace("TIMES", str(times)), f"{how} {times}"
    result = steps.load(text).run(run_key=key, app=sqlite_app, check=False)
    assert (result["send"].stop_reason, "look first whether send was done" in result.why) == (stop_reason, in_doubt)
    if in_doubt:
        with pytest.raises(outlast.ConfigurationError, match="Look first whether it was done"):
            steps.load(text).run(run_key=key, app=sqlite_app)
        assert steps.namespace().calls.count(key) == 1
    done = steps.load(text).run(run_key=key, app=sqlite_app, from_step="send" if in_doubt else None)
    assert (done.status, steps.namespace().calls.count(key)) == ("completed", 2)


def test_a_step_that_may_be_done_twice_by_now_needs_no_other_word(steps, sqlite_app):
    """What the file says now counts: somebody has looked, and changed it."""
    steps.functions(SENDING)
    text = SEND.replace("HOW", "reset").replace("TIMES", "1")
    assert steps.load(text).run(run_key="a", app=sqlite_app, check=False).status == "failed"
    done = steps.load(text.replace("idempotent: false", "idempotent: true")).run(run_key="a", app=sqlite_app)
    assert (done.status, len(steps.namespace().calls)) == ("completed", 2)


def test_the_last_error_is_raised_when_attempts_run_out(steps, app):
    """S0-11, S0-13, S0-38, D-21: no wait after the last attempt; FlowFailed carries the result and comes from the step's own error."""
    flow = steps.load(FLAKY.replace("MODULE:flaky", "MODULE:dropped"))
    with virtual_time() as time, capture_events() as events, pytest.raises(outlast.FlowFailed) as raised:
        flow.run(run_key="a", app=app)
    result = raised.value.result
    assert time.sleeps == [1.0, 2.0]
    assert isinstance(raised.value.__cause__, ConnectionResetError)
    assert outlast.result_of(raised.value) is result
    assert (result.status, result.reason) == ("failed", "step_failed")
    assert result.why == (
        "ask failed (connection_reset, exhausted): peer went away; 0 of 1 step succeeded; "
        "run it again with run_key='a' to try what is not done"
    )
    assert [one.stop_reason for one in result["ask"].attempts] == [None, None, "exhausted"]
    assert names(events) == [
        *("run_started", "step_retry_attempt", "step_retry_attempt", "step_retry_exhausted", "run_finished"),
    ]
    (letter,) = app.dead_letters.find()
    assert (letter.kind, letter.stage, letter.error, letter.attempts) == ("step", "ask", "peer went away", 3)


def test_a_permanent_error_costs_one_attempt(steps, app):
    """S0-12, S0-28: what cannot get better is not tried again."""
    flow = steps.load(FLAKY.replace("MODULE:flaky", "MODULE:broken"))
    with virtual_time() as time, capture_events() as events:
        result = flow.run(run_key="a", app=app, check=False)
    assert (time.sleeps, steps.namespace().calls) == ([], ["broken"])
    assert (result["ask"].stop_reason, result["ask"].error) == ("permanent", "no such thing")
    assert "step_error_permanent" in names(events)


BRANCHES = """\
name: branches
steps:
  - id: left
    component: python
    needs: []
    config: {call: "MODULE:meet"}
  - id: right
    component: python
    needs: []
    config: {call: "MODULE:meet"}
"""


def test_independent_steps_run_at_the_same_time(project, app):
    """Both must be under way for either to end."""
    project.functions("import threading\nboth = threading.Barrier(2)\ndef meet():\n    both.wait(60)\n")
    assert project.load(BRANCHES).run(run_key="a", app=app).status == "completed"


CROWD = """\
import threading
sixteenth = threading.Event()
def work(n):
    if n == 16:
        sixteenth.set()
    assert n in {0, 16} or sixteenth.wait(60)
"""


def test_sixteen_steps_run_at_a_time(project, sqlite_app):
    """The step that follows the first one to end begins alone: as many as before are still running."""
    project.functions(CROWD)
    text = "name: crowd\nsteps:\n" + "".join(
        f'  - {{id: s{n}, component: python, needs: [], config: {{call: "MODULE:work", args: {{n: {n}}}}}}}\n'
        for n in range(40)
    )
    at_a_time = []

    def watch(view):
        at_a_time.append(sum(one.status == "running" for one in view.steps))

    result = project.load(text).run(run_key="a", app=sqlite_app, watch=watch)
    assert (result.status, max(at_a_time)) == ("completed", 16)


SAGA = """\
name: saga
steps:
  - id: first
    component: python
    config: {call: "MODULE:take", args: {name: first}}
    compensate: {component: python, config: {call: "MODULE:give", args: {id: "${steps.first.outputs.id}"}}}
  - id: second
    component: python
    config: {call: "MODULE:take", args: {name: second}}
    compensate: {component: python, config: {call: "MODULE:UNDO", args: {id: "${steps.second.outputs.id}"}}, retry: {max_attempts: 2, initial_delay_ms: 500, jitter: 0, on_errors: [all]}}
  - id: third
    component: python
    config: {call: "MODULE:take", args: {name: third}}
  - id: last
    component: python
    config: {call: "MODULE:LAST"}
"""


def test_what_was_done_is_undone_in_reverse_order(steps, app):
    """S0-21, S0-23, S0-24, S0-39, C-21: once a step has failed for good, each that declares it is undone, the last one first, with its own outputs."""
    flow = steps.load(SAGA.replace("UNDO", "give").replace("LAST", "broken"))
    with capture_events() as events:
        result = flow.run(run_key="a", app=app, check=False)
    assert steps.namespace().calls == [
        *("take first", "take second", "take third", "broken", "give second-1", "give first-1"),
    ]
    assert (result.status, result.compensation) == ("failed", "completed")
    assert [result[name].status for name in ("first", "second", "third", "last")] == [
        *("compensated", "compensated", "succeeded", "failed"),
    ]
    told = [(event.name, event.step_id) for event in events if "compensation" in event.name]
    assert told == [
        ("compensation_triggered", "second"),
        ("compensation_completed", "second"),
        ("compensation_triggered", "first"),
        ("compensation_completed", "first"),
    ]
    stored = [
        (row.name, row.data.get("step_id")) for row in app.store.events(run=result.id) if "compensation" in row.name
    ]
    assert stored == told
    assert "undone: second, first" in result.why or "undone: first, second" in result.why
    # What is undone has no outputs any more.
    assert dict(result["first"].outputs) == {}


def test_nothing_is_undone_before_all_retries_are_used_up(steps, app):
    """S0-24: a step that succeeds at its last attempt leaves everything done; after its last failure what declares it is undone, and nothing else."""
    retried = 'config: {call: "MODULE:LAST"}\n    retry: {max_attempts: 3, jitter: 0, on_errors: [network_error]}'
    text = SAGA.replace('config: {call: "MODULE:LAST"}', retried).replace("UNDO", "give")
    taken = ["take first", "take second", "take third"]
    with virtual_time() as time, capture_events() as events:
        good = steps.load(text.replace("LAST", "flaky")).run(run_key="a", app=app)
    assert (good.status, good.compensation, time.sleeps) == ("completed", "none", [1.0, 2.0])
    assert steps.namespace().calls == [*taken, "flaky", "flaky", "flaky"]
    assert "compensation_triggered" not in names(events)
    steps.namespace().calls.clear()
    with virtual_time() as time, capture_events() as events:
        bad = steps.load(text.replace("LAST", "dropped")).run(run_key="b", app=app, check=False)
    assert (bad.status, bad.compensation, time.sleeps) == ("failed", "completed", [1.0, 2.0])
    assert steps.namespace().calls == [*taken, "dropped", "dropped", "dropped", "give second-1", "give first-1"]
    told = [name for name in names(events) if name.startswith(("step_retry", "compensation_triggered"))]
    assert told == [
        *("step_retry_attempt", "step_retry_attempt", "step_retry_exhausted"),
        *("compensation_triggered", "compensation_triggered"),
    ]


def test_what_cannot_be_undone_keeps_nothing_else_from_it(steps, app):
    """C-21: it has its own retries; its failure is a dead letter of kind compensation, told, and the others are undone all the same."""
    flow = steps.load(SAGA.replace("UNDO", "stuck").replace("LAST", "broken"))
    with virtual_time() as time, capture_events() as events:
        result = flow.run(run_key="a", app=app, check=False)
    assert steps.namespace().calls[-3:] == ["stuck second-1", "stuck second-1", "give first-1"]
    assert time.sleeps == [0.5]
    assert (result.status, result.compensation, result.reason) == ("failed", "failed", "compensation_failed")
    assert [result[name].status for name in ("first", "second")] == ["compensated", "compensation_failed"]
    assert "could not be undone and still stands: second" in result.why
    assert [event.step_id for event in events if event.name == "compensation_failed"] == ["second"]
    kinds = {letter.kind: letter for letter in app.dead_letters.find()}
    assert set(kinds) == {"step", "compensation"}
    assert (kinds["compensation"].stage, kinds["compensation"].attempts) == ("second", 2)


def test_a_new_round_first_undoes_what_could_not_be_undone(steps, app):
    """What still stands from the round before is undone before anything is done again; if that fails again, nothing is begun."""
    text = SAGA.replace("UNDO", "stuck").replace("LAST", "broken")
    steps.load(text).run(run_key="a", app=app, check=False)
    calls = steps.namespace().calls
    calls.clear()
    with virtual_time():
        again = steps.load(text).run(run_key="a", app=app, check=False)
    assert calls == ["stuck second-1", "stuck second-1"]
    assert (again.status, again.compensation) == ("failed", "failed")
    # Somebody has undone it by hand, and says so.
    (letter,) = [one for one in app.dead_letters.find() if one.kind == "compensation"]
    app.dead_letters.archive(ids=[letter.id], reason="undone by hand")
    calls.clear()
    done = steps.load(text.replace("broken", "nothing")).run(run_key="a", app=app)
    assert calls == ["take first", "take second", "nothing"]
    assert done.status == "completed"


def test_a_failed_run_begins_a_new_round_at_what_is_not_done(steps, app):
    """C-12, D-17: steps that are done are not repeated; compensated ones and the failed one are, from their first attempt on."""
    flow = steps.load(SAGA.replace("UNDO", "give").replace("LAST", "broken"))
    flow.run(run_key="a", app=app, check=False)
    assert app.store.on_record().steps == [
        ("saga", "do", "compensated", 2),
        ("saga", "do", "failed", 1),
        ("saga", "do", "succeeded", 1),
        ("saga", "undo", "succeeded", 2),
    ]
    calls = steps.namespace().calls
    calls.clear()
    result = steps.load(SAGA.replace("UNDO", "give").replace("LAST", "nothing")).run(run_key="a", app=app)
    assert calls == ["take first", "take second", "nothing"]
    assert app.store.on_record().steps == [("saga", "do", "succeeded", 4)]  # nothing is to be undone
    assert result.status == "completed"
    assert [step(result, name) for name in ("first", "third", "last")] == [
        ("succeeded", ["succeeded", "succeeded"]),
        ("succeeded", ["succeeded"]),
        ("succeeded", ["failed", "succeeded"]),
    ]
    assert [one.status for one in app.dead_letters.find(status="resolved")] == ["resolved"]


def test_a_completed_run_does_nothing_and_shows_its_end(steps, app):
    """The same key of a run that is completed gives what it came to."""
    first = steps.load(CHAIN).run(run_key="a", app=app)
    calls = list(steps.namespace().calls)
    again = steps.load(CHAIN).run(run_key="a", app=app)
    assert (again.id, again.status, again.why) == (first.id, "completed", first.why)
    assert steps.namespace().calls == calls
    assert dict(again["count"].outputs) == {"count": 2}


def test_other_work_is_refused_unless_somebody_decides(steps, app):
    """D-24: of a step that is done another config is refused; keep goes on with what it has put out, redo does it and all behind it again."""
    steps.load(CHAIN).run(run_key="a", app=app)
    other = CHAIN.replace("${params.day}", "sunday")
    with pytest.raises(outlast.ConfigurationError, match="other work in read") as refused:
        steps.load(other).run(run_key="a", app=app)
    assert 'on_change="keep"' in str(refused.value)
    kept = steps.load(other).run(run_key="a", app=app, on_change="keep")
    assert (kept.status, kept["read"].outputs["day"]) == ("completed", "monday")
    assert steps.namespace().calls == ["read", "count"]
    redone = steps.load(other).run(run_key="a", app=app, on_change="redo")
    assert (redone.status, redone["read"].outputs["day"]) == ("completed", "sunday")
    assert steps.namespace().calls == ["read", "count", "read", "count"]


def test_another_policy_is_taken_and_told(steps, app, caplog):
    """A run goes on with other retries: the work is the same."""
    text = FLAKY.replace("MODULE:flaky", "MODULE:dropped").replace("max_attempts: 3", "max_attempts: 1")
    steps.load(text).run(run_key="a", app=app, check=False)
    with virtual_time():
        result = steps.load(text.replace("max_attempts: 1", "max_attempts: 2")).run(run_key="a", app=app, check=False)
    assert len(result["ask"].attempts) == 3
    assert "goes on with other retries or limits: ask" in caplog.text


def test_from_a_step_on_everything_is_undone_and_done_again(steps, app):
    """`from_step` does that step again and all that need it; what can be undone of them is undone first."""
    text = SAGA.replace("UNDO", "give").replace("LAST", "nothing")
    steps.load(text).run(run_key="a", app=app)
    calls = steps.namespace().calls
    calls.clear()
    result = steps.load(text).run(run_key="a", app=app, from_step="second")
    assert calls == ["give second-1", "take second", "take third", "nothing"]
    assert result.status == "completed"
    with pytest.raises(outlast.ConfigurationError, match="expected everything before third to be done"):
        steps.load(text).run(run_key="b", app=app, from_step="third")
    with pytest.raises(outlast.ConfigurationError, match="Did you mean 'third'"):
        steps.load(text).run(run_key="a", app=app, from_step="thrid")


def test_a_dry_run_does_nothing(steps, app):
    """It says what would be done, leaves nothing on record, and is no success."""
    result = steps.load(CHAIN).run(run_key="a", app=app, dry_run=True)
    assert (result.status, result.reason) == ("paused", "dry_run")
    assert result.why == "dry run, nothing was run: it would run read, count"
    assert app.store.find_run("chain", "a") is None
    flow = steps.load(CHAIN)
    flow.run(run_key="a", app=app)
    assert flow.run(run_key="a", app=app, dry_run=True).why == "dry run, nothing was run: nothing is left to do"
    again = flow.run(run_key="a", app=app, dry_run=True, from_step="count")
    assert again.why == "dry run, nothing was run: it would do again count, keep what was done by read"


def test_faults_that_a_test_has_scripted_strike_steps(steps, app):
    """A step is named by its id, as a stage or a job is by its name."""
    faults = outlast.testing.Faults("read", ConnectionResetError("scripted"), None)
    text = CHAIN.replace('"${params.day}"}}', '"${params.day}"}}\n    retry: {max_attempts: 2, initial_delay_ms: 0}')
    with outlast.testing.inject(faults):
        result = steps.load(text).run(run_key="a", app=app)
    assert [one.error for one in result["read"].attempts] == ["scripted", None]


def test_a_failed_step_is_undone_if_it_was_started(steps, app):
    """C-21: with `when: started` what failed is undone too, before the others."""
    text = SAGA.replace("UNDO", "give").replace(
        'config: {call: "MODULE:LAST"}',
        'config: {call: "MODULE:broken"}\n    compensate: {component: python, when: started, config: {call: "MODULE:give", args: {id: last}}}',
    )
    steps.load(text).run(run_key="a", app=app, check=False)
    assert steps.namespace().calls[-3:] == ["give last", "give second-1", "give first-1"]


DRAIN = """\
name: drain
steps:
  - id: slow
    component: python
    needs: []
    config: {call: "MODULE:slow"}
    compensate: {component: python, config: {call: "MODULE:undo"}}
  - id: fails
    component: python
    needs: []
    config: {call: "MODULE:fails"}
  - id: never
    component: python
    needs: [slow]
    config: {call: "MODULE:never"}
"""


def test_what_runs_comes_to_its_end_before_anything_is_undone(project, app):
    """No further step begins once one has failed; one that succeeds meanwhile is undone too."""
    project.functions("""\
import threading
calls, begun, failed = [], threading.Event(), threading.Event()
def slow():
    begun.set()
    failed.wait(60)
    threading.Event().wait(0.05)
    calls.append("slow")
def undo():
    calls.append("undo")
def fails():
    begun.wait(60)
    failed.set()
    raise ValueError("no")
def never():
    calls.append("never")
""")
    result = project.load(DRAIN).run(run_key="a", app=app, check=False)
    assert project.namespace().calls == ["slow", "undo"]
    assert [result[name].status for name in ("slow", "fails", "never")] == ["compensated", "failed", "skipped"]


def test_outputs_keep_their_types_and_tables_come_back(project, app):
    """D-23: dates and decimals come back as they are, and so do thousands of rows, as Parquet or not."""
    project.functions("""\
import datetime, decimal
plain = [{"id": n, "name": f"row {n}", "share": n / 7} for n in range(20_000)]
odd = [{"id": n, "tags": ["a", n]} if n % 2 else {"id": str(n)} for n in range(20_000)]
def make():
    return {"plain": plain, "odd": odd, "day": datetime.date(2026, 11, 17), "sum": decimal.Decimal("1.10"), "none": None}
def check(plain, odd, day, sum):
    return {"same": [plain == globals()["plain"], odd == globals()["odd"], repr(day), repr(sum)]}
""")
    text = """\
name: tables
steps:
  - id: make
    component: python
    config: {call: "MODULE:make"}
  - id: check
    component: python
    config:
      call: "MODULE:check"
      args: {plain: "${steps.make.outputs.plain}", odd: "${steps.make.outputs.odd}", day: "${steps.make.outputs.day}", sum: "${steps.make.outputs.sum}"}
"""
    result = project.load(text).run(run_key="a", app=app)
    assert result["check"].outputs["same"] == [True, True, "datetime.date(2026, 11, 17)", "Decimal('1.10')"]
    again = project.load(text).run(run_key="a", app=app)
    assert again["make"].outputs["plain"] == project.namespace().plain


def test_large_tables_come_back_exactly(project, sqlite_app):
    """D-23: with their columns in the order of each row, integers of any size, and true as no number."""
    project.functions("""\
many = range(20_000)
turned = [{"id": n, "name": f"row {n}"} if n % 2 else {"name": f"row {n}", "id": n} for n in many]
large = [{"id": 2**63 if n == 7 else n, "name": f"row {n}"} for n in many]
least = [{"id": -(2**63) if n == 7 else n, "name": f"row {n}"} for n in many]
mixed = [{"id": True if n == 7 else n, "name": f"row {n}"} for n in many]
def make():
    return {"turned": turned, "large": large, "least": least, "mixed": mixed}
""")
    text = "name: exact\nsteps:\n  - {id: make, component: python, config: {call: 'MODULE:make'}}\n"
    outputs = project.load(text).run(run_key="a", app=sqlite_app)["make"].outputs
    for name in ("turned", "large", "least", "mixed"):
        expected = getattr(project.namespace(), name)
        assert [[*map(repr, row.items())] for row in outputs[name]] == [[*map(repr, row.items())] for row in expected]


def test_what_a_reader_changes_in_outputs_is_as_before_for_the_next_one(project, sqlite_app):
    """D-23: a mapping, a list and a set are given to each reader anew."""
    project.functions("def make():\n    return {'map': {'a': 1}, 'list': [1], 'set': {1}, 'bytes': bytearray(b'1')}\n")
    text = "name: fresh\nsteps:\n  - {id: make, component: python, config: {call: 'MODULE:make'}}\n"
    outputs = project.load(text).run(run_key="a", app=sqlite_app)["make"].outputs
    for name in outputs:
        outputs[name].clear()
    assert dict(outputs) == {"map": {"a": 1}, "list": [1], "set": {1}, "bytes": bytearray(b"1")}


def test_an_output_that_cannot_be_kept_fails_the_step(project, app):
    """A step is done only if what it has put out is on record; the message names the output and its type, and no value."""
    project.functions("def make():\n    return {'lock': __import__('threading').Lock()}\n")
    text = "name: bad\nsteps:\n  - id: make\n    component: python\n    config: {call: 'MODULE:make'}\n"
    result = project.load(text).run(run_key="a", app=app, check=False)
    assert result["make"].status == "failed"
    assert (
        "expected the output lock of make to be made of values that can be stored, got: one of type lock"
        in result["make"].error
    )


def test_a_run_that_is_worked_on_is_refused(steps, app):
    """The same key at the same time: the second is told who has it."""
    steps.functions(
        COUNTING + "\nbegun, go = threading.Event(), threading.Event()\ndef hold():\n    begun.set()\n    go.wait(60)\n"
    )
    text = "name: held\nsteps:\n  - id: hold\n    component: python\n    config: {call: 'MODULE:hold'}\n"
    flow = steps.load(text)
    first = threading.Thread(target=lambda: flow.run(run_key="a", app=app))
    first.start()
    try:
        while steps.module not in __import__("sys").modules or not hasattr(steps.namespace(), "begun"):
            threading.Event().wait(0.01)
        assert steps.namespace().begun.wait(60)
        with pytest.raises(outlast.LeaseLost, match=r"is busy: process .* works on it"):
            steps.load(text).run(run_key="a", app=app)
    finally:
        steps.namespace().go.set()
        first.join()
    assert steps.load(text).run(run_key="a", app=app).status == "completed"


def test_a_run_in_an_event_loop(steps, app):
    """`arun` does the same in a loop that is there."""
    result = asyncio.run(steps.load(CHAIN).arun(run_key="a", app=app))
    assert (result.status, steps.namespace().calls) == ("completed", ["read", "count"])


STALE = """\
name: stale
steps:
  - id: take
    component: python
    config: {call: "MODULE:take", args: {name: seat}}
    compensate: {component: python, config: {call: "MODULE:give", args: {id: "${steps.take.outputs.id}"}}}
  - id: print
    component: python
    config: {call: "MODULE:take", args: {name: "${steps.take.outputs.id}"}}
  - id: copy
    component: python
    config: {call: "MODULE:take", args: {name: "${steps.print.outputs.id}"}}
  - id: apart
    component: python
    config: {call: "MODULE:take", args: {name: apart}}
  - id: last
    component: python
    config: {call: "MODULE:LAST"}
"""


def test_what_was_made_of_something_undone_is_made_again(steps, app):
    """A step that is done with the outputs of one that was undone is done again, and so is one that has those; others stay."""
    steps.load(STALE.replace("LAST", "broken")).run(run_key="a", app=app, check=False)
    result = steps.load(STALE.replace("LAST", "nothing")).run(run_key="a", app=app)
    assert steps.namespace().calls == [
        *("take seat", "take seat-1", "take seat-1-1", "take apart", "broken", "give seat-1"),
        *("take seat", "take seat-2", "take seat-2-1", "nothing"),
    ]
    assert (result["print"].outputs["id"], result["copy"].outputs["id"]) == ("seat-2-1", "seat-2-1-1")


REDO = """\
name: redo
steps:
  - id: x
    component: python
    config: {call: "MODULE:take", args: {name: x}}
    compensate: {component: python, config: {call: "MODULE:give", args: {id: "${steps.x.outputs.id}"}}}
  - id: a
    component: python
    config: {call: "MODULE:take", args: {name: a}}
    compensate: {component: python, config: {call: "MODULE:GIVE", args: {id: "${steps.a.outputs.id}"}}}
  - id: b
    component: python
    config: {call: "MODULE:LAST"}
"""


def redo(give="give", last="nothing"):
    return REDO.replace("GIVE", give).replace("LAST", last)


def test_steps_that_are_done_again_are_undone_in_the_reverse_order(steps, app):
    """C-21: of two that `from_step` does again, the one that was done last is undone first."""
    steps.load(redo()).run(run_key="a", app=app)
    calls = steps.namespace().calls
    calls.clear()
    assert steps.load(redo()).run(run_key="a", app=app, from_step="x").status == "completed"
    assert calls == ["give a-1", "give x-1", "take x", "take a", "nothing"]


TABLE = """\
times = []
def make():
    times.append("make")
    return {"rows": [{"id": n, "name": f"row {n}"} for n in range(20_000)], "time": len(times)}
def undo(time):
    times.append(f"undo {time}")
def look(rows, time):
    return {"time": time}
"""
MADE_AGAIN = """\
name: made_again
steps:
  - id: make
    component: python
    config: {call: "MODULE:make"}
    compensate: {component: python, config: {call: "MODULE:undo", args: {time: "${steps.make.outputs.time}"}}}
  - id: look
    component: python
    config: {call: "MODULE:look", args: {rows: "${steps.make.outputs.rows}", time: "${steps.make.outputs.time}"}}
"""


def test_what_a_step_puts_out_the_second_time_is_what_the_next_step_reads(project, sqlite_app):
    """Undoing it has read the first outputs in the same pass, and a large table is not kept in memory."""
    project.functions(TABLE)
    flow = project.load(MADE_AGAIN)
    assert flow.run(run_key="a", app=sqlite_app)["look"].outputs["time"] == 1
    again = flow.run(run_key="a", app=sqlite_app, from_step="make")
    assert (again["look"].outputs["time"], project.namespace().times) == (3, ["make", "undo 1", "make"])


def test_from_step_needs_what_is_before_the_steps_before_it(steps, sqlite_app):
    """A step that stands on one that was undone is done again with that, and not kept as what comes before."""
    steps.load(STALE.replace("LAST", "broken")).run(run_key="a", app=sqlite_app, check=False)
    with pytest.raises(outlast.ConfigurationError, match=r"everything before apart to be done .* got: take is not"):
        steps.load(STALE.replace("LAST", "nothing")).run(run_key="a", app=sqlite_app, from_step="apart")


def test_from_a_step_before_it_names_what_is_in_doubt_too(steps, sqlite_app):
    """`from_step` does a step and all that need it again: one of those that may have been done was chosen with it."""
    steps.functions(SENDING + "\ndef begin():\n    calls.append('begin')\n")
    text = SEND.replace("steps:\n", 'steps:\n  - {id: begin, component: python, config: {call: "MODULE:begin"}}\n')
    flow = steps.load(text.replace("HOW", "reset").replace("TIMES", "1"))
    assert flow.run(run_key="a", app=sqlite_app, check=False).status == "failed"
    with pytest.raises(outlast.ConfigurationError, match="Look first whether it was done"):
        flow.run(run_key="a", app=sqlite_app)
    done = flow.run(run_key="a", app=sqlite_app, from_step="begin")
    assert (done.status, steps.namespace().calls) == ("completed", ["begin", "reset 1"] * 2)


def test_a_failed_run_that_is_done_again_from_a_step_also_begins_its_new_round(steps, app):
    """What has failed and what was undone is done again too: nothing is left half done by asking for more."""
    steps.load(redo(last="broken")).run(run_key="a", app=app, check=False)
    calls = steps.namespace().calls
    calls.clear()
    result = steps.load(redo()).run(run_key="a", app=app, from_step="x")
    assert (result.status, calls) == ("completed", ["take x", "take a", "nothing"])


def test_what_could_not_be_undone_before_it_is_done_again_fails_the_run(steps, app):
    """Nothing is begun then; the next time it is tried first, unless its letter was put away: then it counts as undone."""
    steps.load(redo("stuck")).run(run_key="a", app=app)
    calls = steps.namespace().calls
    calls.clear()
    failed = steps.load(redo("stuck")).run(run_key="a", app=app, from_step="a", check=False)
    assert (failed.status, failed.reason, failed["a"].status) == (
        "failed",
        "compensation_failed",
        "compensation_failed",
    )
    assert set(calls) == {"stuck a-1"}
    (letter,) = app.dead_letters.find()
    app.dead_letters.archive(ids=[letter.id], reason="by hand")
    calls.clear()
    result = steps.load(redo("stuck")).run(run_key="a", app=app)
    assert (result.status, calls) == ("completed", ["take a", "nothing"])


def test_a_step_that_is_gone_is_undone_with_redo(steps, app):
    """Other work includes what is no longer there: it is undone by the definition that it was done with, once."""
    steps.load(redo()).run(run_key="a", app=app)
    calls = steps.namespace().calls
    calls.clear()
    text = redo()
    without = text[: text.index("  - id: a")] + text[text.index("  - id: b") :]
    result = steps.load(without).run(run_key="a", app=app, on_change="redo")
    assert (result.status, calls[:1]) == ("completed", ["give a-1"])
    assert steps.load(without).run(run_key="a", app=app).status == "completed"
    assert calls.count("give a-1") == 1


def test_outputs_that_cannot_be_written_down_fail_the_step(project, app):
    """An integer of thousands of digits is no interruption: the step has failed, once, and says which output it was."""
    project.functions("calls = []\ndef huge():\n    calls.append(1)\n    return {'x': 10**5000}\n")
    text = "name: huge\nsteps:\n  - id: huge\n    component: python\n    config: {call: 'MODULE:huge'}\n"
    result = project.load(text).run(run_key="a", app=app, check=False)
    assert (result.status, result["huge"].status, project.namespace().calls) == ("failed", "failed", [1])
    assert "expected the output x of huge" in result["huge"].error


PANIC = """\
name: panic
steps:
  - id: first
    component: python
    config: {call: "MODULE:first"}
    compensate: {component: python, config: {call: "MODULE:undo"}}
  - id: panic
    component: python
    config: {call: "MODULE:panic"}
    ISOLATION
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("isolation", ["", "isolation: process"])
def test_what_is_no_exception_fails_its_step(project, sqlite_app, isolation):
    """The panic of an extension is a failure of that step: what was done is undone, and the run says so."""
    project.functions("""\
calls = []
class Panic(BaseException): pass
def first(): calls.append("first")
def undo(): calls.append("undo")
def panic(): raise Panic("at the disco")
""")
    result = project.load(PANIC.replace("ISOLATION", isolation)).run(run_key="a", app=sqlite_app, check=False)
    assert (result.status, result["panic"].status, project.namespace().calls) == ("failed", "failed", ["first", "undo"])
    assert "raised Panic, which is no Exception" in result["panic"].error


def test_another_thread_that_parses_python_fails_no_flow(steps, sqlite_app, monkeypatch):
    """CPython 3.11 raises SystemError if two threads parse at a time: each of two jobs that load a flow does."""
    real, raised = ast.parse, []

    def parse(*args, **options):
        if len(raised) < 3:
            raised.append(SystemError("AST constructor recursion depth mismatch (before=75, after=219)"))
            raise raised[-1]
        return real(*args, **options)

    monkeypatch.setattr(ast, "parse", parse)
    assert steps.load(CHAIN).run(run_key="a", app=sqlite_app).status == "completed"
    assert len(raised) == 3


def test_a_watcher_that_fails_changes_nothing(steps, app):
    """Whoever watches a run cannot break it."""
    seen = []

    def watch(view):
        seen.append(view)
        raise ValueError("no")

    assert steps.load(CHAIN).run(run_key="a", app=app, watch=watch).status == "completed"
    assert seen
