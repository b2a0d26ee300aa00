"""Rows of a step are undone: those that were done here, also if the step failed or its process died, and no others."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from subprocess import PIPE

import pytest

from forked import Forked
from outlast.store import open_store

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


# --- rows with a key ---

# What a run does for a row is in `deeds`, by the note that the run was given and the id of the row: it waits, or fails.
KEYED_FUNCTIONS = """\
import threading
calls, deeds, lock = [], {}, threading.Lock()
def one(id, note):
    with lock:
        calls.append(f"do {id} {note}")
    return deeds.get((note, id), lambda: None)()
def fail():
    raise ValueError("no")
def undo(id):
    with lock:
        calls.append(f"undo {id}")
"""
KEYED = """\
name: keyed
params: {ids: {type: list, default: [1, 2]}, note: {type: string}}
steps:
  - id: each
    component: python
    for_each: {items: "${params.ids}", concurrency: 1, min_partial_rate: 1}
    idempotency: {key: "row-${item}"}
    config: {call: "MODULE:one", args: {id: "${item}", note: NOTE}}
    retry: {max_attempts: 2, initial_delay_ms: 1, jitter: 0, on_errors: [idempotency_conflict]}
    compensate:
      component: python
      when: started
      retry: {max_attempts: 1}
      config: {call: "MODULE:undo", args: {id: "${item}"}}
  - id: last
    component: python
    config: {call: "MODULE:fail"}
"""


class Gate:
    """What a row does that says that it was begun, and waits until it may go on; then it fails, or not."""

    def __init__(self, then=lambda: None):
        self.begun, self.go, self.then = threading.Event(), threading.Event(), then

    def __call__(self):
        self.begun.set()
        assert self.go.wait(60)
        return self.then()


@pytest.fixture
def keyed(project, app, monkeypatch):
    """Runs of `KEYED` by the key that each is given; the work for a row is the same in all of them, unless `note` is told."""
    project.functions(KEYED_FUNCTIONS)
    monkeypatch.syspath_prepend(str(project.root))
    __import__(project.module)

    class Runs:
        there = project.namespace()

        def run(self, key, *, ids=(1, 2), note="x", last=True):
            text = KEYED if last else KEYED.partition("  - id: last")[0]
            flow = project.load(text.replace("NOTE", '"${params.note}"'), params={"ids": [*ids], "note": note})
            return flow.run(run_key=key, app=app, check=False)

        def begun(self, *args, **options):
            """The same, in a thread; what it came to is in the list."""
            came = []
            thread = threading.Thread(target=lambda: came.append(self.run(*args, **options)))
            thread.start()
            return thread, came

    return Runs()


def test_rows_that_their_key_refused_are_not_undone(keyed):
    """C-20, C-21: another run has done other work under their keys, and that stands."""
    assert keyed.run("a", last=False).status == "completed"
    second = keyed.run("b", note="y", last=False)
    assert (second.status, second.compensation, second["each"].status) == ("failed", "none", "failed")
    assert second.why.endswith(
        "; nothing was this run's to undo; run it again with run_key='b' to try what is not done"
    )
    assert keyed.there.calls == ["do 1 x", "do 2 x"]
    assert keyed.run("c", last=False).status == "completed"
    assert keyed.there.calls == ["do 1 x", "do 2 x"]


def test_rows_that_another_run_is_at_are_not_undone_by_one_that_never_began_them(keyed):
    """C-20, C-21: a conflict is no attempt at the work."""
    keyed.there.deeds["x", 1] = gate = Gate()
    first, came = keyed.begun("a", ids=[1], last=False)
    try:
        assert gate.begun.wait(60)
        second = keyed.run("b")
        assert (second.status, second.compensation) == ("failed", "completed")
        assert keyed.there.calls == ["do 1 x", "do 2 x", "undo 2"]
    finally:
        gate.go.set()
        first.join()
    assert (came[0].status, keyed.there.calls[3:]) == ("completed", [])


def test_a_row_that_another_run_has_done_since_is_that_runs(keyed):
    """C-20, C-21: it was begun here and failed; what failed and nobody else has done is undone."""
    deeds = keyed.there.deeds
    deeds["x", 1] = keyed.there.fail
    deeds["x", 2] = gate = Gate(keyed.there.fail)
    first, came = keyed.begun("a")
    try:
        assert gate.begun.wait(60)
        del deeds["x", 1]
        assert keyed.run("b", ids=[1], last=False).status == "completed"
    finally:
        gate.go.set()
        first.join()
    assert (came[0].status, came[0].compensation) == ("failed", "completed")
    assert keyed.there.calls == ["do 1 x", "do 2 x", "do 1 x", "undo 2"]
    assert keyed.run("c", ids=[1], last=False).status == "completed"
    assert keyed.there.calls[4:] == []


def test_a_row_that_another_run_is_at_is_not_undone_meanwhile(keyed):
    """C-20, C-21: to undo it is a conflict, which keeps no other row from being undone."""
    deeds = keyed.there.deeds
    deeds["x", 1] = keyed.there.fail
    deeds["x", 2] = gate = Gate(keyed.there.fail)
    theirs = Gate()
    first, came = keyed.begun("a")
    try:
        assert gate.begun.wait(60)
        deeds["x", 1] = theirs
        other, done = keyed.begun("b", ids=[1], last=False)
        assert theirs.begun.wait(60)
        gate.go.set()
        first.join()
    finally:
        gate.go.set()
        theirs.go.set()
        first.join()
    other.join()
    assert (came[0].status, came[0].compensation) == ("failed", "failed")
    assert "1 row of 2 could not be undone (1): " in came[0]["each"].error
    assert "the work of keyed.each for this key is in progress" in came[0]["each"].error
    assert (done[0].status, keyed.there.calls) == ("completed", ["do 1 x", "do 2 x", "do 1 x", "undo 2"])


# --- after a kill ---

MANY = 8
KILLED_FUNCTIONS = f"""\
import os, signal
from pathlib import Path
HERE = Path(__file__).parent
def note(line):
    with open(HERE / "log", "a") as file:
        file.write(line + "\\n")
def die_once(name):
    if (HERE / name).exists():
        (HERE / name).unlink()
        os.kill(os.getpid(), signal.SIGKILL)
def rows():
    return {{"rows": [*range({MANY})]}}
def one(id):
    if id == 4:
        die_once("die")
    note(f"do {{id}}")
    return {{"ticket": f"t{{id}}"}}
def undo(ticket):
    note(f"undo {{ticket}}")
    if ticket == "t1":
        die_once("die undoing")
def fail():
    raise ValueError("no")
"""
KILLED = """\
name: killed
steps:
  - id: rows
    component: python
    config: {call: "MODULE:rows"}
  - id: each
    component: python
    for_each: {items: "${steps.rows.outputs.rows}", concurrency: 1}
    config: {call: "MODULE:one", args: {id: "${item}"}}
    compensate: {component: python, config: {call: "MODULE:undo", args: {ticket: "${steps.each.outputs.ticket}"}}}
"""
WITH_A_KEY = KILLED.replace(
    '    config: {call: "MODULE:one"', '    idempotency: {key: "row-${item}"}\n    config: {call: "MODULE:one"'
)


class Killed:
    """Runs of a pipeline in processes of their own, and what is on record and in the log of them."""

    def __init__(self, project, app):
        self.project, self.app = project, app
        project.functions(KILLED_FUNCTIONS)

    def write(self, text):
        path = self.project.root / "pipeline.yaml"
        path.write_text('oml_version: "0.1.0"\n' + text.replace("MODULE", self.project.module))

    def on(self, name):
        (self.project.root / name).touch()

    def off(self, name):
        (self.project.root / name).unlink()

    def __call__(self, line):
        """A command: its exit code, and what it has printed as JSON."""
        words = [*line.split(), "--json", "--app", self.app.name, "--store", self.app.store_url]
        command = [sys.executable, "-m", "outlast.cli", *words]
        env = {**os.environ, "NO_COLOR": "1"}
        with Forked(command, cwd=self.project.root, env=env, stdout=PIPE, stderr=PIPE, text=True) as process:
            out, err = process.communicate()
        assert process.returncode in {0, 1, 3, 5, -signal.SIGKILL}, err
        return process.returncode, json.loads(out) if out else None

    @property
    def log(self):
        return (self.project.root / "log").read_text().splitlines()

    def on_record(self, pipeline, status="succeeded"):
        """The keys of the rows that have ended so."""
        store = open_store(self.app.store_url, app=self.app.name)
        try:
            (run,) = [run for run in store.runs() if run.pipeline == pipeline]
            return [row.key for row in store.items(run.number, status)]
        finally:
            store.close()


@pytest.fixture
def killed(project, app):
    return Killed(project, app)


def test_rows_that_a_key_remembers_are_undone_although_their_ends_were_lost(killed):
    """C-20, C-21: the process died before their ends were on record; they are undone with what they put out, and are free then."""
    killed.write(WITH_A_KEY)
    killed.on("die")
    assert killed("run pipeline.yaml --run-key k") == (-signal.SIGKILL, None)
    assert len(killed.on_record("killed.each")) < 4
    code, document = killed("cancel k --compensate")
    assert (code, document["status"], document["undone"]) == (3, "cancelled", ["each"])
    assert killed.log == [*(f"do {id_}" for id_ in range(4)), *(f"undo t{id_}" for id_ in (3, 2, 1, 0))]
    # The fifth was begun, and nothing tells more.
    assert killed.on_record("killed.each.undo", "skipped") == ["4"]
    assert document["why"] == (
        "cancelled: 1 of 2 steps succeeded; undone: each; nobody knows whether 1 row of each was done, so it is not undone"
    )
    assert killed("run pipeline.yaml --run-key other")[0] == 0
    assert killed.log[8:] == [f"do {id_}" for id_ in range(MANY)]


def test_rows_are_undone_by_their_keys_after_the_time_of_these(killed):
    """C-20, C-21: for others they count no more; the run that did them is not over, and has them to undo."""
    killed.write(WITH_A_KEY.replace('"row-${item}"', '"row-${item}", cache_ttl_ms: 3600000'))
    killed.on("die")
    assert killed("run pipeline.yaml --run-key k") == (-signal.SIGKILL, None)
    store = open_store(killed.app.store_url, app=killed.app.name)
    try:
        assert store.prune_keys(ahead_us=3601 * 1_000_000) == 0
    finally:
        store.close()
    assert killed("cancel k --compensate")[1]["undone"] == ["each"]
    assert killed.log[4:] == [f"undo t{id_}" for id_ in (3, 2, 1, 0)]


def test_rows_that_a_key_remembers_are_undone_after_a_second_kill(killed):
    """C-20, C-21: the same, where what undoes them dies, too, and goes on."""
    killed.write(WITH_A_KEY)
    killed.on("die")
    assert killed("run pipeline.yaml --run-key k") == (-signal.SIGKILL, None)
    killed.on("die undoing")
    assert killed("cancel k --compensate") == (-signal.SIGKILL, None)
    code, document = killed("cancel k --compensate")
    assert (code, document["status"], document["undone"]) == (3, "cancelled", ["each"])
    times = Counter(line for line in killed.log if line.startswith("undo"))
    assert (set(times), times["undo t1"]) == ({f"undo t{id_}" for id_ in range(4)}, 2)
    assert max(times.values()) <= 2


LAST_FAILS = '  - id: last\n    component: python\n    config: {call: "MODULE:fail"}\n'


@pytest.mark.parametrize("how", ["a later step fails", "it is done again"])
def test_rows_that_were_done_before_a_kill_are_undone_with_those_after_it(killed, how):
    """C-20, C-21: a key remembers the rows of the first process, and they are this run's as much as those of the second."""
    fails = how == "a later step fails"
    killed.write(WITH_A_KEY + (LAST_FAILS if fails else ""))
    killed.on("die")
    assert killed("run pipeline.yaml --run-key k") == (-signal.SIGKILL, None)
    before = len(killed.log)
    code, document = killed("run pipeline.yaml --run-key k")
    assert (code, killed.log[:before], len(killed.log)) == (
        1 if fails else 0,
        [f"do {id_}" for id_ in range(4)],
        2 * MANY if fails else MANY,
    )
    if not fails:
        code, document = killed("run pipeline.yaml --run-key k --from-step each")
        assert (code, killed.log[2 * MANY :]) == (0, [f"do {id_}" for id_ in range(MANY)])
    assert sorted(killed.log[MANY : 2 * MANY]) == [f"undo t{id_}" for id_ in range(MANY)]
    assert document["status"] == ("failed" if fails else "completed")


def test_rows_of_which_nobody_knows_are_told(killed):
    """C-21: without a key, what has no end on record may have been done; it is neither undone nor kept from who reads."""
    killed.write(KILLED)
    killed.on("die")
    assert killed("run pipeline.yaml --run-key k") == (-signal.SIGKILL, None)
    done = killed.on_record("killed.each")
    code, document = killed("cancel k --compensate")
    assert (code, document["status"]) == (3, "cancelled")
    assert killed.log[4:] == [f"undo t{id_}" for id_ in reversed(done)]
    unknown = [str(id_) for id_ in range(MANY) if str(id_) not in done]
    assert sorted(killed.on_record("killed.each.undo", "skipped")) == unknown
    said = f"nobody knows whether {len(unknown)} rows of each were done, so they are not undone"
    undone = "undone: each; " if done else ""
    assert document["why"] == f"cancelled: 1 of 2 steps succeeded; {undone}{said}"
    assert killed("runs show k")[1]["why"] == document["why"]
    assert document["compensation"] == ("completed" if done else "none")


# --- rows of earlier rounds ---

# What the files in the folder are called says what happens: a process dies at the row 1, the gate is shut, the row 1 fails.
ROUNDS_FUNCTIONS = """\
import os, signal
from pathlib import Path
HERE = Path(__file__).parent
def is_there(name):
    return (HERE / name).exists()
def gate():
    if is_there("shut"):
        raise ValueError("the gate is shut")
def nothing():
    pass
def one(id):
    if id == 1 and is_there("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if id == 1 and is_there("fail"):
        raise ValueError("no")
def undo(id):
    pass
"""
ROUNDS = """\
name: rounds
steps:
  - id: gate
    component: python
    config: {call: "MODULE:gate"}
    compensate: {component: python, config: {call: "MODULE:nothing"}}
  - id: each
    component: python
    needs: [gate]
    for_each: {items: [0, 1, 2], concurrency: 1, min_success_rate: 0.5}
    idempotency: {key: "row-${item}"}
    config: {call: "MODULE:one", args: {id: "${item}"}}
    compensate: {component: python, config: {call: "MODULE:undo", args: {id: "${item}"}}}
"""
TOLD = "nobody knows whether 1 row of each was done, so it is not undone"


@pytest.fixture
def poisoned(killed):
    """A run that has failed because three processes died at the row 1: the row 0 is undone, and nobody knows of the row 1."""
    killed.project.functions(ROUNDS_FUNCTIONS)
    killed.write(ROUNDS)
    killed.on("die")
    for _ in range(3):
        assert killed("run pipeline.yaml --run-key k") == (-signal.SIGKILL, None)
    killed.off("die")
    code, document = killed("run pipeline.yaml --run-key k")
    assert (code, document["status"], document["undone"]) == (1, "failed", ["each", "gate"])
    assert TOLD in document["why"]
    return killed


def test_rows_of_which_nobody_knows_are_told_also_after_a_round_that_never_came_to_them(poisoned):
    """C-21: what the next round did not do tells nothing of the one before; who cancels is told, the first time and the second."""
    poisoned.on("shut")
    code, document = poisoned("resume k")
    assert (code, document["status"], document["steps"][1]["status"]) == (1, "failed", "skipped")
    assert document["why"] == (
        "gate failed (data_error, permanent): the gate is shut; 0 of 2 steps succeeded; "
        f"{TOLD}; run it again with run_key='k' to try what is not done"
    )
    assert (document["unknown_rows"], document["steps"][1]["unknown_rows"]) == ({"each": 1}, 1)
    for _ in range(2):
        code, document = poisoned("cancel k --compensate")
        assert (code, document["exit_code"], document["unknown_rows"]) == (3, 3, {"each": 1})
        assert document["why"].endswith(f"; 0 of 2 steps succeeded; {TOLD}")


def test_rows_that_a_later_round_has_done_are_known_again(poisoned):
    """C-21: a failure in a later round tells nothing of the earlier one, a success does."""
    poisoned.on("fail")
    code, document = poisoned("resume k")
    assert document["why"] == f"2 of 2 steps succeeded; 1 dead letter of rows is open; {TOLD}"
    assert (code, document["status"], document["unknown_rows"]) == (0, "completed", {"each": 1})
    poisoned.off("fail")
    code, document = poisoned("resume k --from-step each")
    assert (code, document["status"], document["unknown_rows"]) == (0, "completed", {})
    assert document["why"] == "2 of 2 steps succeeded"


# --- rows that are undone all at once ---

AT_ONCE_FUNCTIONS = """\
calls, bad, shut = [], set(), []
def gate():
    if shut:
        raise ValueError("the gate is shut")
def one(id):
    if id in bad:
        raise ValueError("no")
    calls.append(f"do {id}")
def undo():
    calls.append("undo all")
def last():
    if 0 in bad:
        raise ValueError("no")
"""
AT_ONCE = """\
name: at_once
params: {ids: {type: list, default: [1, 2, 3, 4]}}
steps:
  - id: gate
    component: python
    config: {call: "MODULE:gate"}
    compensate: {component: python, config: {call: "MODULE:undo"}}
  - id: each
    component: python
    needs: [gate]
    for_each: {items: "${params.ids}", concurrency: 1}
    config: {call: "MODULE:one", args: {id: "${item}"}}
    compensate: {component: python, config: {call: "MODULE:undo"}}
  - id: last
    component: python
    needs: [each]
    config: {call: "MODULE:last"}
"""


@pytest.fixture
def at_once(project, app, monkeypatch):
    """Runs of a pipeline whose rows are undone by one compensation for all, and the functions that they call."""
    project.functions(AT_ONCE_FUNCTIONS)
    monkeypatch.syspath_prepend(str(project.root))
    __import__(project.module)

    def run(key, text=AT_ONCE, **params):
        return project.load(text, params=params).run(run_key=key, app=app, check=False)

    run.there = project.namespace()
    return run


def test_rows_that_stand_because_their_step_did_not_come_to_its_end_are_told(at_once):
    """C-21: what undoes all rows is not for a step that failed; that rows stand is told until they are undone or their step is done."""
    there = at_once.there
    there.bad |= {2, 3, 4}
    first = at_once("a")
    assert (first.status, first["each"].status, there.calls) == ("failed", "failed", ["do 1", "undo all"])
    stands = "1 of 4 rows of each was done and stands"
    assert first.why.endswith(f"; undone: gate; {stands}; run it again with run_key='a' to try what is not done")
    there.shut.append(True)
    second = at_once("a")
    assert (second.status, second["each"].status) == ("failed", "skipped")
    assert stands in second.why
    there.shut.clear()
    there.bad.clear()
    there.bad.add(0)
    third = at_once("a")  # the row that stood is not done again, and all of them are undone
    assert (third.status, third["each"].status) == ("failed", "compensated")
    assert (third.why.count("stand"), sorted(there.calls[2:5])) == (0, ["do 2", "do 3", "do 4"])
    there.shut.append(True)
    assert "stand" not in at_once("a").why


def test_rows_that_another_run_has_done_are_not_told_as_this_ones(at_once):
    """C-20, C-21: what stands under another run's key is that run's."""
    text = AT_ONCE.replace(
        '    config: {call: "MODULE:one"', '    idempotency: {key: "row-${item}"}\n    config: {call: "MODULE:one"'
    )
    assert at_once("a", text, ids=[1]).status == "completed"
    at_once.there.bad |= {3, 4, 5}
    second = at_once("b", text, ids=[1, 2, 3, 4, 5])
    assert (second.status, at_once.there.calls) == ("failed", ["do 1", "do 2", "undo all"])
    assert "; 1 of 5 rows of each was done and stands; " in second.why


def test_rows_that_stand_after_a_kill_are_told_by_who_undoes_the_rest(killed):
    """C-21: more may be done than is on record, and that is exit code 3, the first time and the second."""
    undone_by_row = 'config: {call: "MODULE:undo", args: {ticket: "${steps.each.outputs.ticket}"}}'
    killed.write(KILLED.replace(undone_by_row, 'config: {call: "MODULE:undo", args: {ticket: all}}'))
    killed.on("die")
    assert killed("run pipeline.yaml --run-key k") == (-signal.SIGKILL, None)
    done = len(killed.on_record("killed.each"))
    for _ in range(2):
        code, document = killed("cancel k --compensate")
        assert (code, document["exit_code"], document["status"]) == (3, 3, "cancelled")
        assert (document["standing"], document["standing_rows"]) == ([], {"each": done})
        assert document["why"].startswith("cancelled: 1 of 2 steps succeeded; ")
        assert document["why"].endswith("and stand" if done > 1 else "and stands" if done else "so they are not undone")
        assert "nothing is left" not in document["why"]
    assert [line for line in killed.log if line.startswith("undo")] == []


# --- a kill while something with a key is undone ---

HALF = """\
name: half
steps:
  - id: each
    component: python
    for_each: {items: [1], concurrency: 1}
    idempotency: {key: "row-${item}"}
    retry: {max_attempts: 1}
    config: {call: "MODULE:one", args: {id: "${item}"}}
    compensate: {component: python, config: {call: "MODULE:undo", args: {ticket: "${steps.each.outputs.ticket}"}}}
  - id: last
    component: python
    config: {call: "MODULE:fail"}
"""
PLAIN = (
    HALF.replace("    for_each: {items: [1], concurrency: 1}\n", "")
    .replace('"row-${item}"', "one")
    .replace('"${item}"', "1")
)


@pytest.mark.parametrize("text", [PLAIN, HALF], ids=["plain", "row"])
def test_what_a_kill_has_left_half_undone_is_a_conflict_until_it_is_undone(killed, text):
    """C-20, C-21: nobody knows how far the undoing came: it is neither done nor free, though its process is dead."""
    killed.write(text)
    killed.on("die undoing")
    assert killed("run pipeline.yaml --run-key k") == (-signal.SIGKILL, None)
    killed.write(text.partition("  - id: last")[0])
    code, document = killed("run pipeline.yaml --run-key other")
    assert (code, document["status"]) == (1, "failed")
    assert "for this key is being undone, and not finished" in document["why"]
    assert killed("cancel k --compensate")[1]["undone"] == ["each"]
    assert killed.log == ["do 1", "undo t1", "undo t1"]
    assert killed("run pipeline.yaml --run-key other")[0] == 0
    assert killed.log[3:] == ["do 1"]


@pytest.mark.parametrize("text", [PLAIN, HALF], ids=["plain", "row"])
def test_what_three_kills_have_kept_from_being_undone_is_remembered(killed, text):
    """C-20, C-21: it has failed permanently, with a dead letter whatever the step has, and what stands is done for others."""
    text = text.replace("    compensate:", "    dead_letter: false\n    compensate:")
    killed.write(text)
    for _ in range(3):
        killed.on("die undoing")
        assert killed("run pipeline.yaml --run-key k") == (-signal.SIGKILL, None)
    code, document = killed("run pipeline.yaml --run-key k")
    assert (code, document["compensation"]) == (5, "failed")
    letters = [(one.stage, one.stop_reason) for one in killed.app.dead_letters.find() if one.kind == "compensation"]
    assert letters == [("each", "poison")]
    killed.write(text.partition("  - id: last")[0])
    assert killed("run pipeline.yaml --run-key other")[0] == 0
    assert killed.log == ["do 1", *["undo t1"] * 3]
