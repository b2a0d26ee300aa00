"""Steps that were done, or may have been, although they failed; and what is told of those that somebody has undone by hand."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import nullcontext

import pytest

import outlast
from components.steps.answers import Answers
from held_flows import notes
from outlast.components import registry
from outlast.components.describing import Component
from outlast.components.steps.config import Config
from shells import Shell

FUNCTIONS = """\
import os, signal, threading
from pathlib import Path
HERE = Path(__file__).parent

def note(line):
    with (HERE / "notes").open("a") as notes:
        notes.write(f"{line}\\n")

def do(name):
    note(f"does {name}")
    if (HERE / f"die {name}").exists():
        (HERE / f"die {name}").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if (HERE / f"fail {name}").exists():
        raise ValueError("no")

def unfit(name):
    note(f"does {name}")
    return {"made": object()}

def charge(row):
    note(f"does {row}")
    if (HERE / f"hang {row}").exists():
        (HERE / f"hang {row}").unlink()
        print("hangs", flush=True)
        threading.Event().wait()
    if (HERE / f"die {row}").exists():
        (HERE / f"die {row}").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if (HERE / f"lose {row}").exists():
        raise ConnectionResetError("the answer is lost")
    if (HERE / f"bad {row}").exists():
        raise ValueError("a bad row")

both = threading.Barrier(2)

def together(name):
    both.wait(60)  # none of two fails before the other has begun
    return unfit(name)

def undo(name):
    if (HERE / f"stuck {name}").exists():
        raise ValueError("stuck")
    note(f"undoes {name}")
"""
ONCE = """\
name: once
steps:
  - id: charge
    component: python
    config: {call: "MODULE:FUNCTION", args: {name: charge}}
    idempotent: false
    retry: {max_attempts: 3, initial_delay_ms: 1}
"""
UNDOES = "    compensate: {component: python, when: WHEN, config: {call: 'MODULE:undo', args: {name: charge}}}\n"
ROWS = """\
name: rows
steps:
  - id: charge
    component: python
    for_each: {items: [1, 2, 3, 4], concurrency: 1}
    config: {call: "MODULE:charge", args: {row: "${item}"}}
    idempotent: false
"""
ROWS_UNDONE = (
    "    compensate: {component: python, when: WHEN, config: {call: 'MODULE:undo', args: {name: '${item}'}}}\n"
)
MAY_STAND = "; it may have been done, and nothing has undone it"
IN_DOUBT = "has failed in charge, which may have been done and must not be done twice"


@pytest.fixture
def held(project):
    project.functions(FUNCTIONS)
    return project


# --- done, and failed ---


@pytest.mark.parametrize("isolation", ["", "    isolation: process\n"], ids=["thread", "process"])
def test_a_step_whose_outputs_cannot_be_kept_is_not_done_again_by_a_plain_run(held, app, isolation):
    """Its work is done: who wants it once more has to say so by its name."""
    flow = held.load(ONCE.replace("FUNCTION", "unfit") + isolation)
    failed = flow.run(run_key="a", app=app, check=False)
    assert (failed["charge"].status, failed["charge"].stop_reason) == ("failed", "ambiguous")
    assert "look first whether charge was done: run it again with run_key='a' and from_step='charge'" in failed.why
    (letter,) = app.dead_letters.find()
    assert letter.stop_reason == "ambiguous"
    for again in ({}, {"dry_run": True}):
        with pytest.raises(outlast.ConfigurationError, match=IN_DOUBT):
            flow.run(run_key="a", app=app, **again)
    assert notes(held.root) == ["does charge"]
    flow.run(run_key="a", app=app, from_step="charge", check=False)
    assert notes(held.root) == ["does charge"] * 2


def test_a_component_that_puts_out_something_else_than_it_says_is_in_doubt(held, sqlite_app, monkeypatch):
    """It has come back: its work is done, whatever it has said of it."""
    (held.root / "odd_library.py").write_text(
        "done = []\ndef run(config, context):\n    done.append(1)\n    return 7\n"
    )
    monkeypatch.syspath_prepend(str(held.root))
    odd = Component(name="odd.step", summary="Puts out a number.", config=Config, outputs={}, run="odd_library:run")
    monkeypatch.setitem(registry._components, odd.name, odd)  # as register_component, and gone afterwards
    flow = held.load("name: odd\nsteps:\n  - id: charge\n    component: odd.step\n    idempotent: false\n")
    failed = flow.run(run_key="a", app=sqlite_app, check=False)
    assert (failed["charge"].stop_reason, "put out a value of type int" in failed.why) == ("ambiguous", True)
    with pytest.raises(outlast.ConfigurationError, match=IN_DOUBT):
        flow.run(run_key="a", app=sqlite_app)
    assert sys.modules.pop("odd_library").done == [1]


def test_a_step_that_may_be_done_twice_is_done_again(held, sqlite_app):
    """Without `idempotent: false` outputs that cannot be kept are a failure like any other."""
    flow = held.load(ONCE.replace("FUNCTION", "unfit").replace("    idempotent: false\n", "    idempotent: true\n"))
    for _ in range(2):
        failed = flow.run(run_key="a", app=sqlite_app, check=False)
        assert (failed["charge"].stop_reason, MAY_STAND in failed.why) == ("permanent", False)
    assert notes(held.root) == ["does charge"] * 2


def test_an_error_of_the_code_itself_keeps_its_meaning(held, sqlite_app):
    """What a function raises for good is its own word on its work: the next round does it again."""
    flow = held.load(ONCE.replace("FUNCTION", "do") + UNDOES.replace("WHEN", "completed"))
    (held.root / "fail charge").touch()
    failed = flow.run(run_key="a", app=sqlite_app, check=False)
    assert (failed["charge"].stop_reason, failed["charge"].error) == ("permanent", "no")
    (held.root / "fail charge").unlink()
    assert flow.run(run_key="a", app=sqlite_app).status == "completed"


@pytest.mark.parametrize("idempotent", ["true", "false"])
def test_what_is_not_undone_although_it_was_done_is_told(held, sqlite_app, idempotent):
    """`when: completed` undoes no step that failed: of one whose work is done that is said. `when: started` undoes it."""
    text = ONCE.replace("FUNCTION", "unfit").replace("idempotent: false", f"idempotent: {idempotent}")
    failed = held.load(text + UNDOES.replace("WHEN", "completed")).run(run_key="a", app=sqlite_app, check=False)
    assert (failed["charge"].error.endswith(MAY_STAND), MAY_STAND in failed.why) == (True, True)
    assert notes(held.root) == ["does charge"]
    flow = held.load(text + UNDOES.replace("WHEN", "started"))
    failed = flow.run(run_key="b", app=sqlite_app, check=False)
    assert (MAY_STAND in failed.why, notes(held.root)[1:]) == (False, ["does charge", "undoes charge"])
    flow.run(run_key="b", app=sqlite_app, check=False)  # nothing stands: it is simply done again
    assert notes(held.root)[3:] == ["does charge", "undoes charge"]


POST = """\
name: post
steps:
  - id: charge
    component: http.caller
    config: {connection: "@http.shop", method: POST, url: /a, json: {}, response: json, max_bytes: 100, expect: {status: [200]}}
    idempotent: false
    retry: {max_attempts: 3, initial_delay_ms: 1}
"""


@pytest.mark.parametrize(
    ("answer", "doubted"),
    [
        ((200, {}, b"<p>charged"), True),
        ((201, {}, b"{}"), True),
        ((200, {}, b"[" + b" " * 100 + b"]"), True),
        ((303, {"location": "/b"}, b""), True),
        ((404, {}, b""), False),
        ((422, {}, b""), False),
    ],
    ids=["no JSON", "another status", "too long", "a redirect", "not found", "refused"],
)
def test_an_answer_that_cannot_be_used_is_in_doubt_and_a_refusal_is_not(held, sqlite_app, monkeypatch, answer, doubted):
    """What was answered, and not with a no, may be done: the request is not sent again under another key."""
    (held.root / "connections.yaml").write_text(
        'connections: {http: {shop: {base_url: "${SHOP_URL}", allow_private: true}}}\n'
    )
    with Answers({"/a": answer}) as server:
        monkeypatch.setenv("SHOP_URL", server.url)
        flow = held.load(POST)
        failed = flow.run(run_key="a", app=sqlite_app, check=False)
        assert failed["charge"].stop_reason == ("ambiguous" if doubted else "permanent")
        if doubted:
            with pytest.raises(outlast.ConfigurationError, match=IN_DOUBT):
                flow.run(run_key="a", app=sqlite_app)
        else:
            assert "run it again with run_key='a' to try what is not done" in failed.why
            flow.run(run_key="a", app=sqlite_app, check=False)
        assert len(server.asked) == (1 if doubted else 2)


# --- from a shell ---

THREE = """\
oml_version: "0.1.0"
name: three
steps:
  - id: a
    component: python
    config: {call: "steps:do", args: {name: a}}
    compensate: {component: python, config: {call: "steps:undo", args: {name: a}}}
  - id: b
    component: python
    needs: [a]
    config: {call: "steps:do", args: {name: b}}
    compensate: {component: python, config: {call: "steps:undo", args: {name: b}}}
  - id: c
    component: python
    needs: [b]
    config: {call: "steps:do", args: {name: c}}
"""


# --- rows ---


def lost(held, *rows, bad=()):
    """A project whose rows lose their answers, or are bad."""
    for row in rows:
        (held.root / f"lose {row}").touch()
    for row in bad:
        (held.root / f"bad {row}").touch()


@pytest.mark.parametrize("undone", [False, True])
def test_rows_that_may_have_been_done_are_not_done_again_by_a_plain_run(held, app, undone):
    """Whatever most rows failed with; and to undo the rows that were done makes the others no less doubtful."""
    lost(held, 2, bad=(3, 4))
    flow = held.load(ROWS + (ROWS_UNDONE.replace("WHEN", "completed") if undone else ""))
    failed = flow.run(run_key="a", app=app, check=False)
    assert (failed["charge"].status, failed["charge"].stop_reason) == ("failed", "ambiguous")
    assert ("nobody knows whether 1 row of charge was done" in failed.why) == undone
    done = [*(f"does {row}" for row in (1, 2, 3, 4)), *(["undoes 1"] if undone else [])]
    assert notes(held.root) == done
    for again in ({}, {"dry_run": True}):
        with pytest.raises(
            outlast.ConfigurationError, match="1 row of charge in the run 'a' of rows may have been done"
        ):
            flow.run(run_key="a", app=app, **again)
    assert notes(held.root) == done


def test_rows_that_may_have_been_done_and_were_undone_are_done_again(held, sqlite_app):
    """`when: started` undoes rows that failed, too: nothing is in doubt then."""
    lost(held, 2, 3, 4)
    flow = held.load(ROWS + ROWS_UNDONE.replace("WHEN", "started"))
    flow.run(run_key="a", app=sqlite_app, check=False)
    for row in (2, 3, 4):
        (held.root / f"lose {row}").unlink()
    assert flow.run(run_key="a", app=sqlite_app).status == "completed"
    assert notes(held.root)[4:] == [
        *(f"undoes {row}" for row in (4, 3, 2, 1)),
        *(f"does {row}" for row in (1, 2, 3, 4)),
    ]


@pytest.mark.parametrize("undone", [False, True])
def test_a_job_does_not_do_rows_again_that_may_have_been_done(held, app, undone):
    """C-20: no person is there to look whether they were done."""
    lost(held, 2, 3, 4)
    flow = held.load(ROWS + (ROWS_UNDONE.replace("WHEN", "completed") if undone else ""))
    handle = flow.enqueue(app=app, run_key="a")
    with outlast.testing.virtual_time():
        outlast.testing.work(app)
    assert (handle.status, [one.stop_reason for one in handle.history()]) == ("failed", ["ambiguous"])
    assert notes(held.root) == [*(f"does {row}" for row in (1, 2, 3, 4)), *(["undoes 1"] if undone else [])]


STOPS = """
import outlast
from outlast.kernel.clock import stopping
def stops(row):
    if (HERE / f"stop {row}").exists():
        (HERE / f"stop {row}").unlink()
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping.get().wait(60)
        note(f"loses {row}")
        raise ConnectionResetError("the answer is lost")
"""


@pytest.mark.parametrize("last", [2, 4])
def test_a_row_that_fails_in_doubt_after_ctrl_c_is_not_done_again_by_a_resume(held, app, last):
    """A resume runs the rows that were not begun, and then waits for the row to be settled."""
    held.functions(FUNCTIONS.replace("def charge(row):\n", "def charge(row):\n    stops(row)\n") + STOPS)
    (held.root / f"stop {last}").touch()
    flow = held.load(ROWS)
    with pytest.raises(KeyboardInterrupt) as stopped:
        flow.run(run_key="a", app=app)
    ended = flow.run(run_key="a", app=app, check=False) if last == 2 else outlast.result_of(stopped.value)
    assert (ended["charge"].status, ended["charge"].stop_reason) == ("partial_success", "ambiguous")
    with pytest.raises(outlast.ConfigurationError, match="1 row of charge in the run 'a' of rows may have been done"):
        flow.run(run_key="a", app=app)
    assert notes(held.root) == [f"{'loses' if row == last else 'does'} {row}" for row in (1, 2, 3, 4)]


RETRY = "    retry: {max_attempts: 3, initial_delay_ms: 1, jitter: 0}\n"


@pytest.mark.parametrize("enqueued", [False, True], ids=["run", "job"])
@pytest.mark.parametrize(
    ("more", "lose"),
    [
        ("", "lose"),
        ("    isolation: process\n", "lose"),
        ("    isolation: process\n    timeout: {step_ms: 500}\n", "hang"),
    ],
    ids=["thread", "process", "timeout"],
)
def test_rows_that_must_not_be_done_twice_are_not_retried(held, app, more, lose, enqueued):
    """A retry might repeat work whose answer was lost."""
    lost_rows = (1, 2, 3, 4) if lose == "hang" else (2, 3)  # with a time limit, any row may be late
    for row in lost_rows:
        (held.root / f"{lose} {row}").touch()
    flow = held.load(ROWS + RETRY + more)
    if enqueued:
        handle = flow.enqueue(app=app, run_key="a")
        with outlast.testing.virtual_time() if lose == "lose" and not more else nullcontext():
            outlast.testing.work(app)
        assert (handle.status, [one.stop_reason for one in handle.history()]) == ("failed", ["ambiguous"])
    else:
        assert flow.run(run_key="a", app=app, check=False)["charge"].stop_reason == "ambiguous"
    assert len(notes(held.root)) == len({*notes(held.root)})
    letters = [one for one in app.dead_letters.find() if one.kind == "item"]
    assert sorted((one.item_key, one.stop_reason, one.attempts) for one in letters) == [
        (str(row), "ambiguous", 1) for row in lost_rows
    ]


@pytest.mark.parametrize("isolation", ["", "    isolation: process\n"], ids=["thread", "process"])
def test_rows_whose_code_asks_for_their_key_are_retried(held, sqlite_app, isolation):
    """Code that reads the key is expected to send it along."""
    held.functions(FUNCTIONS.replace("def charge(row):\n", "def charge(row):\n    key(row)\n") + KEY)
    lost(held, 2)
    held.load(ROWS + RETRY + isolation).run(run_key="a", app=sqlite_app, check=False)
    (letter,) = [one for one in sqlite_app.dead_letters.find() if one.kind == "item"]
    assert (letter.stop_reason, letter.attempts) == ("exhausted", 3)
    keys = dict.fromkeys((held.root / "keys").read_text().split())
    assert (len(keys), notes(held.root).count("does 2")) == (4, 3)


KEY = """
import outlast
def key(row):
    with (HERE / "keys").open("a") as keys:
        keys.write(f"{row}={outlast.current().idempotency_key}\\n")
"""


@pytest.mark.parametrize("keyed", [False, True])
def test_rows_of_a_process_that_died_are_in_doubt_unless_keys_tell(tmp_path, keyed):
    """As with a step: each row that has ended is known by its key."""
    key = '    idempotency: {key: "${item}"}\n' if keyed else ""
    text = ROWS.replace("MODULE", "steps") + ROWS_UNDONE.replace("MODULE", "steps").replace("WHEN", "completed") + key
    shell = Held(tmp_path, 'oml_version: "0.1.0"\n' + text)
    shell.touch("die 3")
    assert shell("run three.yaml --run-key z").returncode == -signal.SIGKILL
    first, second = shell("run three.yaml --run-key z"), shell("run three.yaml --run-key z")
    assert (first.returncode, second.returncode) == ((0, 0) if keyed else (1, 2))
    assert notes(tmp_path) == [f"does {row}" for row in ((1, 2, 3, 3, 4) if keyed else (1, 2, 3))]


def test_rows_of_a_process_that_died_are_settled_in_the_file(tmp_path):
    """A row that was done is taken out of the rows; `--from-step` runs all others without a success on record."""
    shell = Held(tmp_path, 'oml_version: "0.1.0"\n' + ROWS.replace("MODULE", "steps"))
    shell.touch("die 3")
    assert shell("run three.yaml --run-key z").returncode == -signal.SIGKILL
    dry = shell("resume z --dry-run").stdout
    assert "it would record the failure of charge" in dry
    assert "fails: its process ended in the middle of an attempt" in dry
    assert shell("resume z").returncode == 1
    file = tmp_path / "three.yaml"
    file.write_text(file.read_text().replace("[1, 2, 3, 4]", "[1, 2, 4]"))
    assert shell("resume z --from-step charge").returncode == 0
    done = notes(tmp_path)
    assert (done[:3], done[-1], done.count("does 3")) == (["does 1", "does 2", "does 3"], "does 4", 1)


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("when", ["started", "completed"])
def test_rows_that_nobody_waits_for_after_a_second_signal_are_known_to_be_begun(tmp_path, once, when):
    """C-21: as after a crash, all rows without an end may have been done; and what must not be done twice is not."""
    text = ROWS.replace("MODULE", "steps") + ROWS_UNDONE.replace("MODULE", "steps").replace("WHEN", when)
    shell = Held(tmp_path, 'oml_version: "0.1.0"\n' + (text if once else text.replace("    idempotent: false\n", "")))
    shell.touch("hang 3")
    with shell.start("run three.yaml --run-key z --progress") as process:
        assert process.stdout.readline() == "hangs\n"
        process.send_signal(signal.SIGINT)
        while "winding down" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=100)
        assert process.returncode == 130
    done = shell("cancel z --compensate")
    undone = (4, 3, 2, 1) if when == "started" else (2, 1)
    assert notes(tmp_path) == [*(f"does {row}" for row in (1, 2, 3)), *(f"undoes {row}" for row in undone)]
    told = "nobody knows whether 2 rows of charge were done"
    assert (done.returncode, told in done.stdout) == ((0, False) if when == "started" else (3, True))


class Held(Shell):
    """A shell in a folder with a pipeline."""

    def __init__(self, folder, text):
        super().__init__(folder, {"steps.py": FUNCTIONS, "three.yaml": text})

    def touch(self, *names):
        for name in names:
            (self.folder / name).touch()

    def archive(self):
        """Put the letters of compensations away, as a person does who has undone it by hand."""
        for letter in self.json("dlq list"):
            if letter["kind"] == "compensation":
                assert self(f"dlq archive {letter['id']} --reason 'undone by hand'").returncode == 0


def test_what_was_undone_by_hand_is_told_as_that(tmp_path):
    """The sentence, each step, what to do next and the exit code say the same, of a failed run and of a cancelled one."""
    shell = Held(tmp_path, THREE)
    shell.touch("fail c", "stuck b")
    assert shell("run three.yaml --run-key z").returncode == 5
    shell("cancel z")
    stuck = shell("cancel z --compensate")
    assert (stuck.returncode, "Could not be undone, and still stands: b." in stuck.stdout) == (5, True)
    shell.archive()
    done = shell("cancel z --compensate")
    assert (done.returncode, done.stderr) == (0, "Every attempt: outlast runs show z\n")
    told = (
        "cancelled: c failed (data_error, permanent): no; 0 of 3 steps succeeded; undone: a; undone by hand: b; "
        "nothing is left that could be undone"
    )
    for text in (done.stdout, shell("runs show z").stdout):
        lines = text.splitlines()
        assert (lines[1], "still stands" in text.lower()) == (told, False)
        assert ("├ b   undone by hand" in text, "Undone: b, a." in lines) == (True, True)
    found = json.loads(shell("cancel z --compensate --json").stdout)
    assert (found["compensation"], found["undone"], found["not_undone"], found["standing"]) == (
        *("completed", ["b", "a"], [], []),
    )
    assert (found["exit_code"], found["counts"]["compensated"]) == (0, 2)
    assert [step["status"] for step in found["steps"]] == ["compensated", "compensated", "failed"]
    again = shell("cancel z")
    assert (again.returncode, again.stderr) == (2, "z of three is cancelled: there is nothing to cancel.\n")


def test_what_still_stands_beside_what_was_undone_by_hand_is_told(tmp_path):
    """One letter is put away, and of the other the exit code and the way out stay."""
    shell = Held(tmp_path, THREE)
    shell.touch("fail c", "stuck b")
    shell("run three.yaml --run-key z")
    shell.archive()
    shown = shell("runs show z").stdout
    assert "1 of 3 steps" not in shown
    assert "; undone: a; undone by hand: b\n" in shown
    shell.touch("stuck a")
    (tmp_path / "fail c").unlink()
    assert shell("resume z").returncode == 0  # b counts as undone, and is done again
    shell.touch("fail c")
    assert shell("resume z --from-step c").returncode == 5
    (letter,) = [one["id"] for one in shell.json("dlq list") if (one["kind"], one["stage"]) == ("compensation", "b")]
    assert shell(f"dlq archive {letter} --reason 'undone by hand'").returncode == 0
    done = shell("cancel z --compensate")
    assert (
        done.returncode,
        "undone by hand: b; could not be undone and still stands: a\n" in done.stdout,
    ) == (*(5, True),)
    assert "Could not be undone, and still stands: a." in done.stdout
    assert "To undo what is left: outlast cancel z --compensate" in done.stderr


@pytest.mark.parametrize("when", ["started", "completed"])
def test_the_command_that_is_advised_after_a_crash_works(tmp_path, when):
    """What must not be done twice and was undone is gone on with; what may stand has to be named."""
    undone = f"    idempotent: false\n    compensate: {{component: python, when: {when}, config: "
    text = THREE[: THREE.index("  - id: c")].replace(
        "{name: b}}\n    compensate: {component: python, config: ", f"{{name: b}}}}\n{undone}"
    )
    shell = Held(tmp_path, text)
    shell.touch("die b")
    assert shell("run three.yaml --run-key z").returncode == -signal.SIGKILL
    failed = shell("run three.yaml --run-key z")
    advice = failed.stderr.splitlines()[0]
    assert (failed.returncode, "no other attempt: ambiguous" in failed.stdout) == (1, True)
    assert advice == (
        "Once the cause is gone, go on: outlast resume z"
        if when == "started"
        else "Look first whether b was done. If it was not, do it again: outlast resume z --from-step b"
    )
    assert shell(advice.partition("outlast ")[2]).returncode == 0


def test_no_command_is_advised_where_none_goes_on(tmp_path):
    """Two steps are in doubt, and to name one of them is refused for the other."""
    step = '  - id: NAME\n    component: python\n    config: {call: "steps:together", args: {name: NAME}}\n    idempotent: false\n'
    steps = "".join(step.replace("NAME", name).replace("python\n", "python\n    needs: []\n") for name in "ab")
    shell = Held(tmp_path, f'oml_version: "0.1.0"\nname: three\nsteps:\n{steps}')
    failed = shell("run three.yaml --run-key z")
    assert (failed.returncode, failed.stderr) == (1, "Every attempt: outlast runs show z\n")
    assert shell("resume z --from-step a").returncode == 2
