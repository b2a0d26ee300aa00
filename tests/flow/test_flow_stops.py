"""Flows that are interrupted, killed, stopped and cut short, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import outlast
from held_flows import FUNCTIONS, notes, running
from labor import stop, wait_until
from outlast.store.records import from_us
from stores import sql

TWO = """\
name: two
steps:
  - id: first
    component: python
    config: {call: "MODULE:quick", args: {name: first}}
    compensate: {component: python, config: {call: "MODULE:undo", args: {name: first}}}
  - id: second
    component: python
    config: {call: "MODULE:hold", args: {name: second}}
  - id: last
    component: python
    config: {call: "MODULE:quick", args: {name: last}}
"""


@pytest.fixture
def held(project):
    project.functions(FUNCTIONS)
    return project


def touch(project, name):
    (project.root / name).touch()


def came_to(process):
    out, err = process.communicate()
    return json.loads(out.splitlines()[-1]) if out else err


def beats(app, run_key, name="two"):
    """Wait until it has renewed its lease twice: by then it has heard what it was asked before."""
    number = app.store.find_run(name, run_key).number
    seen = {app.store.run_lease(number).until}
    wait_until(lambda: seen.add(app.store.run_lease(number).until) or len(seen) > 2, "it has renewed its lease twice")


def heard(pid):
    """Whether no Ctrl-C is on its way to this process; Python's handler runs right after that."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return True
    pending = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return not any(mask & 1 << (signal.SIGINT - 1) for mask in pending)


@pytest.mark.timeout(60)
def test_a_killed_run_goes_on_where_it_was(held, app):
    """S0-35, C-22: what is done is not done again; the crash is on record and costs no attempt; its owner is known to be dead at once."""
    flow = held.load(TWO)
    with running(app, held.root) as process:
        wait_until(lambda: "begins second" in notes(held.root), "the second step has begun")
        process.kill()
        process.wait()
    record = app.store.find_run("two", "a")
    assert record.status == "running"
    touch(held, "go second")
    result = flow.run(run_key="a", app=app)
    assert (result.id, result.status) == (record.id, "completed")
    assert notes(held.root) == ["does first", "begins second", "begins second", "ends second", "does last"]
    assert [one.outcome for one in result["second"].attempts] == ["crashed", "succeeded"]
    row = app.store.flow_step(record.number, "second", "do")
    assert (row.attempts, row.crashes) == (1, 1)


@pytest.mark.timeout(60)
def test_three_crashes_are_the_end_of_a_step(held, app):
    """D-16: a step that kills its processes is not begun a fourth time; what was done before it is undone."""
    flow = held.load(TWO.replace('MODULE:hold", args: {name: second}', 'MODULE:quick", args: {name: second}'))
    touch(held, "die second")
    for _ in range(3):
        with running(app, held.root) as process:
            process.wait()
        assert process.returncode == -signal.SIGKILL
    result = flow.run(run_key="a", app=app, check=False)
    assert (result["second"].status, result["second"].stop_reason) == ("failed", "poison")
    assert [one.outcome for one in result["second"].attempts] == ["crashed"] * 3
    assert notes(held.root) == ["does first", "does second", "does second", "does second", "undoes first"]
    assert (result.status, result.compensation) == ("failed", "completed")
    (letter,) = app.dead_letters.find()
    assert (letter.kind, letter.error_class, letter.stop_reason) == ("step", "poison", "poison")


@pytest.mark.timeout(60)
def test_what_must_not_be_done_twice_is_not_begun_again_after_a_crash(held, app):
    """With `idempotent: false` nobody knows whether it was done: it fails, and says so."""
    text = TWO.replace("args: {name: second}}", "args: {name: second}}\n    idempotent: false")
    flow = held.load(text)
    with running(app, held.root) as process:
        wait_until(lambda: "begins second" in notes(held.root), "the second step has begun")
        process.kill()
        process.wait()
    result = flow.run(run_key="a", app=app, check=False)
    assert (result["second"].status, result["second"].stop_reason) == ("failed", "ambiguous")
    assert notes(held.root) == ["does first", "begins second", "undoes first"]
    assert result.why.endswith(
        "look first whether second was done: run it again with run_key='a' and from_step='second' only if it was not, for that "
        "does it once more"
    )
    for again in ({}, {"dry_run": True}, {"on_change": "redo"}):
        with pytest.raises(outlast.ConfigurationError) as refused:
            flow.run(run_key="a", app=app, **again)
        assert str(refused.value) == (
            "the run 'a' of two has failed in second, which may have been done and must not be done twice (idempotent: false). "
            "Look first whether it was done. If it was not, or was undone by hand, from_step='second' (--from-step second) does it "
            "again; if it was, choose another run_key, and leave out what is done."
        )
    assert notes(held.root) == ["does first", "begins second", "undoes first"]
    touch(held, "go second")
    done = flow.run(run_key="a", app=app, from_step="second")
    assert (done.status, notes(held.root)[3:]) == (
        "completed",
        ["does first", "begins second", "ends second", "does last"],
    )


FAILS = """\
name: undoing
steps:
  - id: first
    component: python
    config: {call: "MODULE:quick", args: {name: first}}
    compensate: {component: python, config: {call: "MODULE:undo", args: {name: first}}}
  - id: second
    component: python
    config: {call: "MODULE:quick", args: {name: second}}
    compensate: {component: python, config: {call: "MODULE:undo", args: {name: second}}}
  - id: last
    component: python
    config: {call: "MODULE:fail"}
"""


@pytest.mark.timeout(60)
def test_a_crash_in_the_middle_of_undoing_goes_on_with_undoing(held, app):
    """C-21: nothing is done again before that; what is on record as undone is not undone again."""
    flow = held.load(FAILS)
    touch(held, "hold undo first")
    with running(app, held.root) as process:
        wait_until(lambda: "undoes first" in notes(held.root), "the first step is being undone")
        process.kill()
        process.wait()
    touch(held, "go undo first")
    result = flow.run(run_key="a", app=app, check=False)
    assert notes(held.root) == [
        *("does first", "does second", "fails", "undoes second", "undoes first", "undoes first"),
    ]
    assert (result.status, result.compensation) == ("failed", "completed")
    assert [one.outcome for one in result["first"].undone_by] == ["crashed", "succeeded"]


@pytest.mark.timeout(60)
def test_a_stalled_run_that_comes_back_writes_nothing_more(held, app, on_terms):
    """D-32, C-22: stopped past its lease, then continued: another has gone on, and what the first brings is discarded."""
    on_terms(ttl=1.0)
    flow = held.load(TWO)
    with running(app, held.root, ttl=1.0) as process:
        wait_until(lambda: "begins second" in notes(held.root), "the second step has begun")
        stop(process, app.store._database)
        touch(held, "go second")
        result = flow.run(run_key="a", app=app)
        assert result.status == "completed"
        before = app.store.flow_steps(app.store.find_run("two", "a").number)
        attempts = app.store.step_attempts(app.store.find_run("two", "a").number)
        os.kill(process.pid, signal.SIGCONT)
        assert came_to(process)[:2] == ["interrupted", "lease_lost"]
    record = app.store.find_run("two", "a")
    assert record.status == "completed"
    assert app.store.flow_steps(record.number) == before
    assert app.store.step_attempts(record.number) == attempts
    assert notes(held.root).count("does last") == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_winds_a_run_down(held, app, number, code):
    """D-21: what runs comes to its end, nothing else begins, and the program ends as it would without a run."""
    flow = held.load(TWO)
    with running(app, held.root) as process:
        wait_until(lambda: "begins second" in notes(held.root), "the second step has begun")
        os.kill(process.pid, number)
        wait_until(lambda: app.store.find_run("two", "a") is not None, "it is there")
        touch(held, "go second")
        _, err = process.communicate()
    assert process.returncode in (code, -number), err
    record = app.store.find_run("two", "a")
    assert record.status == "interrupted"
    assert "run it again with run_key='a' to go on" in record.why
    assert app.store.run_lease(record.number) is None
    assert notes(held.root) == ["does first", "begins second", "ends second"]
    assert flow.run(run_key="a", app=app).status == "completed"
    assert notes(held.root) == ["does first", "begins second", "ends second", "does last"]


@pytest.mark.timeout(60)
def test_a_second_signal_does_not_wait_for_what_runs(held, app):
    """A step that hangs keeps nobody from ending the program; it is begun again by whoever goes on."""
    flow = held.load(TWO)
    with running(app, held.root) as process:
        wait_until(lambda: "begins second" in notes(held.root), "the second step has begun")
        for _ in range(2):
            os.kill(process.pid, signal.SIGINT)
            wait_until(lambda: heard(process.pid), "the signal has come")
        process.communicate()
    assert app.store.find_run("two", "a").status == "interrupted"
    touch(held, "go second")
    result = flow.run(run_key="a", app=app)
    assert (result.status, notes(held.root).count("begins second")) == ("completed", 2)


FAILS_FIRST = """
def fails_first(name):
    if not (HERE / "dropped").exists():
        (HERE / "dropped").touch()
        drop()
    return hold(name)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["interrupted twice", "killed"])
def test_a_step_without_an_end_has_its_whole_total_time_again(held, sqlite_app, how):
    """C-19: however its attempt was cut short, and however much later the run is resumed. Crashes have a bound of their own."""
    app = sqlite_app
    held.functions(FUNCTIONS + FAILS_FIRST)
    more = "\n    timeout: {total_ms: 60000}\n    retry: {max_attempts: 5, initial_delay_ms: 1}"
    text = TWO.replace('hold", args: {name: second}}', 'fails_first", args: {name: second}}' + more)
    flow = held.load(text)
    with running(app, held.root) as process:
        wait_until(lambda: "begins second" in notes(held.root), "the second step has begun")
        for _ in range(2) if how == "interrupted twice" else ():
            os.kill(process.pid, signal.SIGINT)
            wait_until(lambda: heard(process.pid), "the signal has come")
        if how == "killed":
            process.kill()
        process.communicate()
    number = app.store.find_run("two", "a").number
    began = "update outlast_flow_steps set began = began - 100000000 where run = ? and step = 'second'"
    assert sql(app.store, began, number) == 1  # a hundred seconds later
    touch(held, "go second")
    result = flow.run(run_key="a", app=app)
    ended = {"interrupted twice": "released", "killed": "crashed"}[how]
    assert [one.outcome for one in result["second"].attempts] == ["failed", ended, "succeeded"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("key", ["", "\n    idempotency: {key: second}"], ids=["without a key", "with a key"])
def test_a_second_signal_leaves_a_step_in_doubt_that_must_not_be_done_twice(held, sqlite_app, key):
    """Given back, it would be done again without a word. With a key the next run knows whether it was done."""
    more = f"args: {{name: second}}}}\n    idempotent: false{key}"
    flow = held.load(TWO.replace("args: {name: second}}", more))
    with running(sqlite_app, held.root) as process:
        wait_until(lambda: "begins second" in notes(held.root), "the second step has begun")
        for _ in range(2):
            os.kill(process.pid, signal.SIGINT)
            wait_until(lambda: heard(process.pid), "the signal has come")
        process.communicate()
    row = sqlite_app.store.flow_step(sqlite_app.store.find_run("two", "a").number, "second", "do")
    touch(held, "go second")
    result = flow.run(run_key="a", app=sqlite_app, check=False)
    if key:
        assert (row.state, result.status, notes(held.root).count("begins second")) == ("pending", "completed", 2)
    else:
        assert (row.state, result["second"].stop_reason) == ("running", "ambiguous")
        assert notes(held.root).count("begins second") == 1


WAITS = """\
name: waits
steps:
  - id: drop
    component: python
    config: {call: "MODULE:drop"}
    retry: {max_attempts: 3, initial_delay_ms: 3600000, max_delay_ms: 3600000, jitter: 0}
"""


@pytest.mark.timeout(60)
def test_a_wait_is_ended_and_goes_on_later(held, app):
    """An interrupted run keeps its place between two attempts: how many were made, and when the next one is due."""
    held.load(WAITS)
    with running(app, held.root) as process:
        wait_until(lambda: "drops" in notes(held.root), "it has failed once")
        record = wait_until(lambda: app.store.find_run("waits", "a"), "it is there")
        wait_until(lambda: app.store.flow_steps(record.number)[0].state == "waiting", "it waits")
        os.kill(process.pid, signal.SIGINT)
        process.communicate()
    (row,) = app.store.flow_steps(record.number)
    assert (row.state, row.attempts) == ("waiting", 1)
    assert (from_us(row.due_us) - from_us(row.changed_us)).total_seconds() == pytest.approx(3600, abs=60)
    with outlast.testing.virtual_time() as time:
        result = outlast.Flow.load(held.root / "pipeline.yaml").run(run_key="a", app=app, check=False)
    assert len(notes(held.root)) == 3
    assert [one.outcome for one in result["drop"].attempts] == ["failed"] * 3
    assert time.sleeps[-1] == 3600.0
    assert time.sleeps[0] == pytest.approx(3600, abs=120)


def test_a_run_is_asked_to_pause_and_to_be_cancelled(held, app):
    """Who asks through the store is heard with the next beat; a cancelled run says what still stands."""
    flow = held.load(TWO)
    for request, status in (("pause", "paused"), ("cancel", "cancelled")):
        run_key = f"to {request}"
        with running(app, held.root, run_key, ttl=1.0) as process:
            wait_until(lambda: notes(held.root)[-1:] == ["begins second"], "the second step has begun")
            app.store.request_end(app.store.find_run("two", run_key).id, request)
            beats(app, run_key)
            touch(held, "go second")
            assert came_to(process)[0] == status
        (held.root / "go second").unlink()
    record = app.store.find_run("two", "to cancel")
    assert (record.status, "still stands: first" in record.why) == ("cancelled", True)
    with pytest.raises(outlast.ConfigurationError, match="was cancelled"):
        flow.run(run_key="to cancel", app=app)


def test_a_run_that_is_cancelled_with_its_compensation_undoes_what_was_done(held, app):
    """`compensate`: what runs comes to its end, then all is undone, and the run is cancelled."""
    held.load(TWO)
    with running(app, held.root, ttl=1.0) as process:
        wait_until(lambda: "begins second" in notes(held.root), "the second step has begun")
        app.store.request_end(app.store.find_run("two", "a").id, "compensate")
        beats(app, "a")
        touch(held, "go second")
        assert came_to(process)[0] == "cancelled"
    assert notes(held.root) == ["does first", "begins second", "ends second", "undoes first"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("request_", "status", "undone"),
    [("pause", "paused", []), ("cancel", "cancelled", []), ("compensate", "cancelled", ["undoes first"])],
)
def test_no_step_begins_after_a_request_that_no_beat_has_heard(held, app, request_, status, undone):
    """Between two beats are seconds. Who begins a step asks the store, and finds what the run was asked for."""
    held.load(TWO)
    with running(app, held.root) as process:
        wait_until(lambda: "begins second" in notes(held.root), "the second step has begun")
        assert app.store.request_end(app.store.find_run("two", "a").id, request_)
        touch(held, "go second")
        assert came_to(process)[0] == status
    assert notes(held.root) == ["does first", "begins second", "ends second", *undone]
    assert app.store.find_run("two", "a").status == status


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("request_", "undone"), [("cancel", []), ("compensate", ["undoes first"])])
def test_a_run_that_is_cancelled_while_its_last_step_runs_is_cancelled(held, app, request_, undone):
    """As where a beat has heard it: the step comes to its end, and what was asked for follows."""
    held.load(TWO[: TWO.index("  - id: last")])
    with running(app, held.root) as process:
        wait_until(lambda: "begins second" in notes(held.root), "the second step has begun")
        assert app.store.request_end(app.store.find_run("two", "a").id, request_)
        touch(held, "go second")
        assert came_to(process)[0] == "cancelled"
    assert notes(held.root) == ["does first", "begins second", "ends second", *undone]


def test_a_step_that_waits_makes_no_attempt_after_a_request(held, app, monkeypatch):
    """Also the second attempt at a step asks first."""
    flow = held.load(WAITS)
    real = type(app.store).fail_attempt

    def fail_attempt(store, lease, *given, **named):
        real(store, lease, *given, **named)
        assert store.request_end(store.find_run("waits", "a").id, "cancel")

    monkeypatch.setattr(type(app.store), "fail_attempt", fail_attempt)
    with outlast.testing.virtual_time():
        result = flow.run(run_key="a", app=app, check=False)
    assert (result.status, notes(held.root)) == ("cancelled", ["drops"])
    (row,) = app.store.flow_steps(app.store.find_run("waits", "a").number)
    assert (row.state, row.attempts) == ("waiting", 1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("request_", ["cancel", "compensate"])
def test_a_run_that_is_cancelled_while_it_is_undone_never_goes_on(held, app, request_):
    """It is undone to its end, and is cancelled then, also if no beat has heard of it: else the next one would do all again."""
    flow = held.load(FAILS)
    touch(held, "hold undo first")
    with running(app, held.root) as process:
        wait_until(lambda: "undoes first" in notes(held.root), "the first step is being undone")
        assert app.store.request_end(app.store.find_run("undoing", "a").id, request_)
        touch(held, "go undo first")
        assert came_to(process)[:2] == ["cancelled", "cancelled"]
    done = ["does first", "does second", "fails", "undoes second", "undoes first"]
    assert notes(held.root) == done
    (event,) = app.store.events(name="run_finished")
    assert event.data["status"] == "cancelled"
    with pytest.raises(outlast.ConfigurationError, match="was cancelled"):
        flow.run(run_key="a", app=app)
    assert notes(held.root) == done


@pytest.mark.timeout(60)
def test_a_pause_while_a_run_is_undone_lets_nothing_more_be_undone(held, app):
    flow = held.load(FAILS)
    touch(held, "hold undo second")
    with running(app, held.root) as process:
        wait_until(lambda: "undoes second" in notes(held.root), "the second step is being undone")
        assert app.store.request_end(app.store.find_run("undoing", "a").id, "pause")
        touch(held, "go undo second")
        assert came_to(process)[0] == "paused"
    assert notes(held.root)[3:] == ["undoes second"]
    assert flow.run(run_key="a", app=app, check=False).compensation == "completed"
    assert notes(held.root)[3:] == ["undoes second", "undoes first"]


@pytest.mark.parametrize(("request_", "told"), [("cancel", True), ("compensate", True), ("pause", False)])
def test_a_request_that_comes_when_all_steps_are_done_is_told(held, app, monkeypatch, request_, told):
    """The run stays completed, and says that it was asked; there is nothing left to pause."""
    flow = held.load(TWO.replace("MODULE:hold", "MODULE:quick"))
    real, asked = type(app.store).end_run, []

    def end_run(store, lease, id_, **named):
        if not asked:
            asked.append(store.request_end(id_, request_))
        return real(store, lease, id_, **named)

    monkeypatch.setattr(type(app.store), "end_run", end_run)
    result = flow.run(run_key="a", app=app)
    assert asked == [True]
    assert result.status == "completed"
    late = "3 of 3 steps succeeded; it was asked to be cancelled when all its steps were done, which was too late"
    assert result.why == (late if told else "3 of 3 steps succeeded")
    record = app.store.find_run("two", "a")
    assert (record.status, record.why) == ("completed", result.why)
    assert len(app.store.events(name="run_finished")) == 1


@pytest.mark.timeout(60)
def test_a_run_that_is_interrupted_and_cancelled_is_cancelled(held, app):
    """Ctrl-C first, then `outlast cancel`: who has cancelled it was told so."""
    held.load(TWO)
    with running(app, held.root) as process:
        wait_until(lambda: "begins second" in notes(held.root), "the second step has begun")
        os.kill(process.pid, signal.SIGINT)
        wait_until(lambda: heard(process.pid), "the signal has come")
        assert app.store.request_end(app.store.find_run("two", "a").id, "cancel")
        touch(held, "go second")
        process.communicate()
    assert app.store.find_run("two", "a").status == "cancelled"
    assert notes(held.root) == ["does first", "begins second", "ends second"]


PROGRAM = """\
import gc, json, os, sys, threading
sys.path.insert(0, sys.argv[3])
import outlast
from pathlib import Path

def there():
    gc.collect()
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    files = [os.readlink(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{one}")]
    return [sorted(t.name for t in threading.enumerate() if t.name.startswith("outlast")), len([f for f in files if "socket" in f])]

app = outlast.App(sys.argv[2], store=sys.argv[1])
app.store
before = there()
flow = outlast.Flow.load(Path(sys.argv[3]) / "pipeline.yaml")
for key in ("a", "b", "c"):
    flow.run(run_key=key, app=app, check=False)
after = there()
print(json.dumps([before, after, [app.store.run_lease(app.store.find_run(flow.manifest.name, key).number) is None for key in "abc"]]))
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", [TWO.replace("MODULE:hold", "MODULE:quick"), FAILS], ids=["completed", "failed"])
def test_nothing_stays_behind(held, app, text):
    """No thread, no connection more than before, no lease, after a good end and after a bad one."""
    held.load(text)
    command = [sys.executable, "-c", PROGRAM, app.store_url, app.name, str(held.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    before, after, free = json.loads(done.stdout.splitlines()[-1])
    assert after[0] == []
    assert after[1] <= before[1] + 2  # connections of the store's pool
    assert free == [True, True, True]


AGAIN = """\
name: again
steps:
  - id: x
    component: python
    config: {call: "MODULE:quick", args: {name: x}}
    compensate: {component: python, config: {call: "MODULE:undo", args: {name: x}}}
  - id: a
    component: python
    config: {call: "MODULE:quick", args: {name: a}}
    compensate: {component: python, config: {call: "MODULE:undo", args: {name: a}}}
  - id: b
    component: python
    config: {call: "MODULE:quick", args: {name: b}}
    compensate: {component: python, config: {call: "MODULE:undo", args: {name: b}}}
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["once", "twice", "pause", "unheard pause", "kill"])
def test_an_end_in_the_middle_of_doing_again_goes_on_with_it(held, app, how):
    """Interrupted, paused or killed while what is done again is undone: never completed, and going on undoes and does the rest, and nothing else."""
    flow = held.load(AGAIN)
    flow.run(run_key="a", app=app)
    touch(held, "hold undo b")
    with running(app, held.root, ttl=20.0 if how == "unheard pause" else 1.0, from_step="a") as process:
        wait_until(lambda: "undoes b" in notes(held.root), "b is being undone")
        if how == "kill":
            process.kill()
        elif how.endswith("pause"):
            app.store.request_end(app.store.find_run("again", "a").id, "pause")
            if how == "pause":
                beats(app, "a", "again")
        else:
            for _ in range(1 if how == "once" else 2):
                os.kill(process.pid, signal.SIGINT)
                wait_until(lambda: heard(process.pid), "the signal has come")
        if how != "twice":
            touch(held, "go undo b")
        process.communicate()
    touch(held, "go undo b")
    record = app.store.find_run("again", "a")
    assert record.status == {"kill": "running", "pause": "paused", "unheard pause": "paused"}.get(how, "interrupted")
    result = flow.run(run_key="a", app=app)
    late = notes(held.root)[3:]
    assert result.status == "completed"
    assert [line for line in late if not line.startswith("undoes b")] == ["undoes a", "does a", "does b"]
    assert late.count("undoes b") == (2 if how in {"kill", "twice"} else 1)
