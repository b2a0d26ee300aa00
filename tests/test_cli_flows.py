"""Flows from a shell, as a person uses them: what is printed, what comes next, the exit code; and what is on record of them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import re
import signal
import sys
from datetime import UTC, datetime, timedelta

import pytest
from rich.cells import cell_len
from rich.console import Console

from forked import run
from outlast import App, ConfigurationError
from outlast.display.flows import Counting, FlowPage, changes, now_of, picture
from outlast.flow.view import FlowView, StepView
from shells import Shell
from tables import table
from terminal import Terminal

STEPS = """
import os, sys
import outlast


def note(text):
    with open("done.txt", "a") as file:
        file.write(text + "\\n")


def there(name):
    return os.path.exists(name)


def reserve(who="ann"):
    note("reserve")
    return {"id": 7, "who": who, "token": "sk-live-0123456789abcdef0123"}


def give_back(id):
    if there("stuck"):
        raise ValueError("nobody is at the desk")
    note(f"give back {id}")


def undo_slowly(id):
    if there("hold"):
        print("undoing", flush=True)
        sys.stdin.read()
    note(f"undone {id}")


def make(row):
    return {"id": row["n"]}


def drop(id):
    if id == 1:
        undo_slowly(id)
    note(f"drop {id}")


def refuse():
    raise ValueError("no room")


def charge(id, amount=1):
    if there("wait"):
        print("waiting", flush=True)
        sys.stdin.read()
    if there("fail"):
        raise ValueError("card declined")
    if there("flaky") :
        os.remove("flaky")
        raise ConnectionResetError("reset by peer")
    note(f"charge {amount}")
    return {"receipt": id * 2}


def send(receipt):
    note(f"send {receipt}")


def numbers():
    return {"rows": [{"n": n} for n in range(20)]}


def halve(row):
    if row["n"] == 3:
        raise ValueError("odd")
    return {"half": row["n"] / 2}
"""

PIPELINE = """\
oml_version: "0.1.0"
name: shop
params:
  amount: {type: integer, default: 1}
profiles:
  large: {params: {amount: 100}}
steps:
  - id: reserve
    component: python
    config: {call: "steps:reserve"}
    compensate: {component: python, config: {call: "steps:give_back", args: {id: "${steps.reserve.outputs.id}"}}}
  - id: charge
    component: python
    config: {call: "steps:charge", args: {id: "${steps.reserve.outputs.id}", amount: "${params.amount}"}}
    retry: {max_attempts: 2, initial_delay_ms: 10, jitter: 0}
    idempotent: true
  - id: send
    component: python
    config: {call: "steps:send", args: {receipt: "${steps.charge.outputs.receipt}"}}
"""


EACH = """\
oml_version: "0.1.0"
name: numbers
steps:
  - id: numbers
    component: python
    config: {call: "steps:numbers"}
  - id: halve
    component: python
    for_each: {items: "${steps.numbers.outputs.rows}", key: n, min_success_rate: 0.9}
    config: {call: "steps:halve"}
"""

LOSSES = """\
oml_version: "0.1.0"
name: prices
steps:
  - id: reserve
    component: python
    config: {call: "steps:reserve"}
    compensate: {component: python, config: {call: "steps:give_back", args: {id: "${steps.reserve.outputs.id}"}}}
  - id: price
    component: python
    for_each: {items: [1, 2, 3, 4, 5]}
    config: {call: "prices:price", args: {id: "${item}"}}
    idempotent: false
  - id: write
    component: files.writer
    config: {path: out.jsonl, rows: "${steps.price.outputs.rows}"}
"""

PRICES = """\
import os


def price(id):
    with open("calls.txt", "a") as calls:
        calls.write(f"{id} ")
    if os.path.exists(f"bad {id}"):
        raise ValueError("unknown id")
    if os.path.exists(f"lost {id}"):
        raise ConnectionResetError("reset by peer")
    return {"price": id}
"""


#: Both fail in their last step, and stand in what undoes the first one while there is a file `hold`.
UNDONE = """\
oml_version: "0.1.0"
name: undone
steps:
  - id: one
    component: python
    config: {call: "steps:reserve"}
    compensate: {component: python, config: {call: "steps:undo_slowly", args: {id: "${steps.one.outputs.id}"}}}
  - id: two
    component: python
    config: {call: "steps:reserve"}
    compensate: {component: python, config: {call: "steps:give_back", args: {id: "${steps.two.outputs.id}"}}}
  - id: last
    component: python
    config: {call: "steps:refuse"}
"""
ROWS_UNDONE = """\
oml_version: "0.1.0"
name: undone
steps:
  - id: files
    component: python
    for_each: {items: [{n: 1}, {n: 2}, {n: 3}], key: n, concurrency: 1}
    config: {call: "steps:make"}
    compensate: {component: python, config: {call: "steps:drop", args: {id: "${steps.files.outputs.id}"}}}
  - id: last
    component: python
    config: {call: "steps:refuse"}
"""


#: Rows that are undone one by one, begun with one that waits while there is a file `wait`.
ROWS_CHARGED = """\
oml_version: "0.1.0"
name: shop
steps:
  - id: charge
    component: python
    for_each: {items: [{n: 1}, {n: 2}], key: n, concurrency: 1}
    config: {call: "steps:charge", args: {id: "${item.n}"}}
    compensate: {component: python, config: {call: "steps:give_back", args: {id: "${item.n}"}}}
"""
#: Too many rows fail, and what undoes all rows at once is not for a step that failed.
ROWS_AT_ONCE = """\
oml_version: "0.1.0"
name: shop
steps:
  - id: reserve
    component: python
    config: {call: "steps:reserve"}
    compensate: {component: python, config: {call: "steps:give_back", args: {id: "${steps.reserve.outputs.id}"}}}
  - id: halve
    component: python
    needs: [reserve]
    for_each: {items: [{k: 1, n: 3}, {k: 2, n: 3}, {k: 3, n: 4}], key: k}
    config: {call: "steps:halve"}
    compensate: {component: python, config: {call: "steps:refuse"}}
"""


class FlowShell(Shell):
    """A folder with a pipeline file; a file in it makes its steps fail or wait."""

    def on(self, *names):
        for name in names:
            (self.folder / name).touch()

    def off(self, *names):
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    @property
    def done(self):
        path = self.folder / "done.txt"
        return path.read_text().splitlines() if path.exists() else []

    def waiting(self, line, **options):
        """A run that stands in its second step; closing its input lets it go on."""
        self.on("wait")
        process = self.start(line, **options)
        assert process.stdout.readline() == "waiting\n"
        return process

    def crashed(self, key):
        """A run whose process was killed in its second step."""
        with self.waiting(f"run shop.yaml --run-key {key}") as process:
            process.kill()
            process.communicate()
        self.off("wait")

    @contextlib.contextmanager
    def undoing(self, pipeline, key="today", options=""):
        """A run that stands in what undoes one of its steps; it is killed in the end."""
        (self.folder / "undone.yaml").write_text(pipeline)
        self.on("hold")
        with self.start(f"run undone.yaml --run-key {key} {options}") as process:
            assert process.stdout.readline() == "undoing\n"
            try:
                yield process
            finally:
                process.kill()
                process.communicate()
        self.off("hold")

    def change(self, old, new, name="shop.yaml"):
        text = (self.folder / name).read_text()
        assert old in text
        (self.folder / name).write_text(text.replace(old, new))


@pytest.fixture
def shell(tmp_path):
    return FlowShell(tmp_path, {"steps.py": STEPS, "shop.yaml": PIPELINE})


def states(document):
    return {step["id"]: step["status"] for step in document["steps"]}


# --- run ---


def test_a_flow_runs_and_says_what_each_step_came_to(shell):
    """A pipeline file is run as it is named; a line for each step, and nothing to do next."""
    shell.on("flaky")
    done = shell("run shop.yaml --run-key today")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["shop", "today", "completed"]
    assert lines[1] == "3 of 3 steps succeeded"
    assert [line.split()[:4] for line in lines[4:]] == [
        ["┌", "reserve", "succeeded", "1"],
        ["├", "charge", "succeeded", "2"],
        ["▼", "send", "succeeded", "1"],
    ]
    assert shell.done == ["reserve", "charge 1", "send 14"]
    again = shell("run shop.yaml --run-key today")  # it is over: its end is shown
    assert (again.returncode, again.stdout, shell.done) == (0, done.stdout, ["reserve", "charge 1", "send 14"])
    said = "Nothing was run: today was completed before. Another --run-key begins another run.\n"
    assert again.stderr == said
    queued = shell("enqueue shop.yaml --run-key today")
    assert (queued.returncode, "Its run today is completed: the job has nothing to do." in queued.stderr) == (0, True)
    assert "is completed" not in shell("enqueue shop.yaml --run-key tomorrow").stderr


def test_json_is_one_document_with_every_attempt_and_the_types_of_outputs(shell):
    """Status, why, steps with attempts, types of outputs and no values, compensation, exit code."""
    shell.on("flaky")
    done = shell("run shop.yaml --run-key today --json")
    document = json.loads(done.stdout)
    assert (document["status"], document["why"], document["exit_code"]) == ("completed", "3 of 3 steps succeeded", 0)
    assert (document["compensation"], document["kind"], document["run_key"]) == ("none", "flow", "today")
    charge = document["steps"][1]
    assert [(one["number"], one["outcome"], one["error_class"]) for one in charge["attempts"]] == [
        (1, "failed", "connection_reset"),
        (2, "succeeded", None),
    ]
    assert charge["attempts"][0]["next_run_at"] is not None
    assert document["steps"][0]["outputs"] == {"id": "integer", "who": "string", "token": "string"}
    assert "sk-live" not in done.stdout
    assert json.loads(shell("runs show today --json").stdout) == {
        key: value for key, value in document.items() if key != "exit_code"
    }


def test_a_flow_that_fails_is_undone_and_says_how_it_goes_on(shell):
    """Exit code 1; what failed and why there was no other attempt, what was undone, and the commands."""
    shell.on("fail")
    done = shell("run shop.yaml --run-key today")
    assert done.returncode == 1
    assert (
        "charge failed (data_error, permanent): card declined; 0 of 3 steps succeeded; undone: reserve" in done.stdout
    )
    assert "data_error: card declined; no other attempt: permanent" in done.stdout
    assert re.search(r"reserve +undone .* 1 attempt to undo it", done.stdout)
    assert re.search(r"send +not begun", done.stdout)
    assert "run_key=" not in done.stdout
    assert done.stderr.splitlines() == [
        "Once the cause is gone, go on: outlast resume today",
        "Every attempt: outlast runs show today",
    ]
    assert shell.done == ["reserve", "give back 7"]
    shell.off("fail")
    done = shell("resume today")
    assert (done.returncode, done.stderr) == (0, "Taken: shop.yaml, with the same steps.\n")
    assert shell.done == ["reserve", "give back 7", "reserve", "charge 1", "send 14"]
    assert [run["status"] for run in shell.json("runs list")] == ["completed"]


def test_what_cannot_be_undone_is_exit_code_5_with_both_ways_out(shell):
    """A compensation that failed: the next round tries it first, or its letter is put away because it was undone by hand."""
    shell.on("fail", "stuck")
    done = shell("run shop.yaml --run-key today")
    assert done.returncode == 5
    assert "Could not be undone, and still stands: reserve." in done.stdout
    letters = {letter["kind"]: letter for letter in shell.json("dlq list")}
    assert {(kind, one["stage"], one["item_key"]) for kind, one in letters.items()} == {
        ("step", "charge", "today"),
        ("compensation", "reserve", "today"),
    }
    archive = f"outlast dlq archive {letters['compensation']['id'][:12]} --reason 'undone by hand'"
    assert done.stderr.splitlines() == [
        "Once the cause is gone, go on: outlast resume today",
        f"That tries first to undo reserve. If it was undone by hand: {archive}",
        "Every attempt: outlast runs show today",
    ]
    document = json.loads(shell("resume today --json").stdout)  # still stuck: nothing else is begun
    assert (document["status"], document["exit_code"], document["not_undone"]) == ("failed", 5, ["reserve"])
    assert shell.done == ["reserve"]
    shell.off("fail")
    put_away = shell(archive.removeprefix("outlast "))
    assert (put_away.stdout, put_away.stderr) == (
        "Archived 1.\n",
        "When its run goes on, what could not be undone counts as undone by hand.\n",
    )
    assert shell("resume today").returncode == 0
    assert shell.done == ["reserve", "reserve", "charge 1", "send 14"]


def test_what_could_not_be_undone_is_undone_first_when_the_run_goes_on(shell):
    """The next round begins with what still stands."""
    shell.on("fail", "stuck")
    assert shell("run shop.yaml --run-key today").returncode == 5
    shell.off("fail", "stuck")
    assert shell("resume today").returncode == 0
    assert shell.done == ["reserve", "give back 7", "reserve", "charge 1", "send 14"]
    assert {letter["status"] for letter in shell.json("dlq list --status all")} == {"resolved"}


def test_rows_that_failed_are_exit_code_3_only_with_strict(shell):
    """A step that succeeded although rows of it are dead letters: completed, and partial for a script that wants it so."""
    (shell.folder / "each.yaml").write_text(EACH)
    done = shell("run each.yaml --run-key today")
    assert (done.returncode, "1 dead letter of rows is open" in done.stdout) == (0, True)
    assert re.search(r"halve +succeeded .* 1 dead letter of rows", done.stdout)
    line, again = done.stderr.splitlines()
    said, _, command = line.partition(": ")
    assert said == "Rows of halve that failed"
    (letter,) = json.loads(shell(f"{command.removeprefix('outlast ')} --json").stdout)
    assert (letter["kind"], letter["error_class"]) == ("item", "data_error")
    assert shell("run each.yaml --run-key tomorrow --strict").returncode == 3
    way = "outlast resume today --from-step halve"
    assert again == f"Once the cause is gone, do all rows of the step again, and what needs them: {way}"
    for command in ("show", "replay"):  # a row has no code of its own
        assert way in shell(f"dlq {command} {letter['id']}").stderr
    shell.change('row["n"] == 3', "False", "steps.py")
    done = shell(way.removeprefix("outlast "))
    assert (done.returncode, "dead letter" in done.stdout) == (0, False)


@pytest.fixture
def losses(shell):
    """A flow whose rows are bad, or lose their answers, where a file says so."""
    (shell.folder / "prices.yaml").write_text(LOSSES)
    (shell.folder / "prices.py").write_text(PRICES)
    shell.calls = lambda: (shell.folder / "calls.txt").read_text().split()
    return shell


def test_a_flow_that_lost_rows_is_exit_code_3_and_resume_runs_the_open_rows(losses):
    """D-38: every view says partial_success, nothing is written or undone, and the way out is the one that is printed."""
    losses.on("bad 2", "bad 4")
    done = losses("run prices.yaml --run-key k")
    assert (done.returncode, losses.done, (losses.folder / "out.jsonl").exists()) == (3, ["reserve"], False)
    assert "price is incomplete: 2 of 5 rows are open; 2 failed with data_error: unknown id" in done.stdout
    assert "Once the cause is gone, run the open rows: outlast resume k" in done.stderr.splitlines()
    shown = losses.json("runs show k")
    assert (shown["status"], shown["reason"], shown["dead_letters"]) == ("partial_success", "incomplete", 2)
    assert states(shown) == {"reserve": "succeeded", "price": "partial_success", "write": "skipped"}
    assert {name: many for name, many in shown["counts"].items() if many} == {
        "total": 3,
        "succeeded": 1,
        "partial_success": 1,
        "skipped": 1,
    }
    (listed,) = [run for run in losses.json("runs list") if run["kind"] == "flow"]
    assert (listed["status"], listed["counts"]["failed"]) == ("partial_success", 1)
    assert losses("runs report k --html page.html").returncode == 0
    page = (losses.folder / "page.html").read_text()
    assert "price lost rows." in page
    assert "2 of 5 rows are open" in page
    refused = losses("dlq replay --pipeline prices")
    assert (refused.returncode, "outlast dlq list --pipeline prices.price" in refused.stderr) == (2, True)
    refused = losses("dlq replay --pipeline prices.price")
    assert (refused.returncode, "its flow runs the open rows" in refused.stderr) == (2, True)
    before = losses.json("runs show k")
    done = losses("resume k --dry-run")
    assert (done.returncode, "├ price    run its 2 open rows" in done.stdout) == (0, True)
    document = json.loads(losses("resume k --dry-run --json").stdout)
    assert [step.get("open_rows") for step in document["steps"]] == [None, 2, None]
    assert (losses.json("runs show k"), len(losses.calls())) == (before, 5)
    losses.off("bad 2", "bad 4")
    done = losses("resume k")
    assert (done.returncode, losses.done, sorted(losses.calls())) == (0, ["reserve"], [*"12234", "4", "5"])
    assert len((losses.folder / "out.jsonl").read_text().splitlines()) == 5
    assert losses("dlq list").stdout.strip() == "No dead letters."


def test_a_flow_that_lost_rows_is_given_up_by_cancel(losses):
    """D-38: what was done is undone then, and the run does not go on."""
    losses.on("bad 2")
    losses("run prices.yaml --run-key k")
    assert losses("cancel k --compensate").returncode == 0
    assert (losses.done, losses("resume k").returncode) == (["reserve", "give back 7"], 2)


def test_rows_in_doubt_are_settled_on_the_command_line(losses):
    """C-20: resume and requeue name the command until each row is settled; a word that is neither is refused."""
    losses.on("lost 2", "lost 4")
    losses("enqueue prices.yaml --run-key k")
    losses("worker --until-idle")
    (job,) = losses.json("jobs list")
    assert (job["status"], job["stop_reason"]) == ("failed", "ambiguous")
    refused = losses(f"jobs requeue {job['id']}")
    assert (refused.returncode, "outlast dlq resolve ID --as done|not-done" in refused.stdout) == (1, True)
    (still,) = losses.json("jobs list")
    assert still["status"] == "failed"
    refused = losses("resume k")
    assert (refused.returncode, "outlast dlq resolve ID --as done" in refused.stderr) == (2, True)
    letters = {letter["item_key"]: letter["id"] for letter in losses.json("dlq list --run k")}
    assert "--as done|not-done" in losses(f"dlq show {letters['2'][:8]}").stderr
    wrong = losses(f"dlq resolve {letters['2'][:8]} --as perhaps")
    assert (wrong.returncode, "expected --as to be done or not-done" in wrong.stderr) == (2, True)
    done = losses(f"dlq resolve {letters['2'][:8]} --as done --reason seen")
    assert (done.returncode, done.stdout, "outlast resume k" in done.stderr) == (0, "2 is not called again.\n", True)
    assert losses.json(f"dlq resolve {letters['4']} --as not-done") == {
        "id": letters["4"],
        "as": "not-done",
        "status": "open",
    }
    losses.off("lost 2", "lost 4")
    assert losses(f"jobs requeue {job['id']}").returncode == 0
    assert losses("worker --until-idle").returncode == 0
    assert [job["status"] for job in losses.json("jobs list")] == ["succeeded"]
    assert sorted(losses.calls()) == [*"12344", "5"]


def test_a_job_whose_flow_lost_rows_is_requeued_or_compensated(losses):
    """D-38: the job is failed as incomplete; `jobs compensate` rolls its flow back, under both of its names."""
    losses.on("bad 2")
    for key in ("a", "b", "c"):
        losses(f"enqueue prices.yaml --run-key {key}")
    assert losses("worker --until-idle").returncode == 3
    jobs = {job["id"]: job for job in losses.json("jobs list")}
    assert {(job["status"], job["stop_reason"]) for job in jobs.values()} == {("failed", "incomplete")}
    assert losses.done == ["reserve"] * 3
    said = losses("jobs show 1").stderr
    assert "outlast jobs requeue 1" in said
    assert "To give it up, and roll back what it has done: outlast jobs compensate 1" in said
    refused = losses("jobs compensate 1 --reason late")
    assert (refused.returncode, "expected no --reason with job 1, which runs a flow" in refused.stderr) == (2, True)
    assert losses("jobs compensate 1").returncode == 0
    said = losses("jobs show 1").stderr
    assert ("requeue" in said, "compensate" in said) == (False, False)
    assert losses("jobs undo 2").returncode == 0
    assert losses.done[3:] == ["give back 7"] * 2
    firing = json.loads(losses("alerts check --json").stdout)["firing"]
    assert [(one["rule"], one["subject"]) for one in firing] == [("run_incomplete", "prices")]
    assert losses("dlq archive --run c --reason known").returncode == 0
    assert losses.json("alerts check")["firing"] == []
    assert [losses.json(f"runs show {key}")["status"] for key in ("a", "b", "c")] == [
        "cancelled",
        "cancelled",
        "partial_success",
    ]
    refused = losses("jobs compensate 2 3")
    assert (refused.returncode, "one job at a time" in refused.stderr) == (2, True)
    losses.off("bad 2")
    assert losses("jobs requeue 3").returncode == 0
    assert losses("worker --until-idle").returncode == 0
    assert losses.json("runs show c")["status"] == "completed"


def test_letters_of_rows_that_were_put_away_are_not_counted_as_open(shell):
    """What is open now counts: in the sentence, beside the step, and for the exit code of --strict."""
    (shell.folder / "each.yaml").write_text(EACH)
    shell("run each.yaml --run-key today")
    (letter,) = shell.json("dlq list")
    shell(f"dlq archive {letter['id'][:12]} --reason known")
    done = shell("run each.yaml --run-key today --strict")
    assert (done.returncode, "dead letter" in done.stdout, "dlq list" in done.stderr) == (0, False, False)
    shown = shell.json("runs show today")
    assert (shown["dead_letters"], shown["steps"][1]["dead_letters"]) == (0, 0)
    assert shown["why"] == "2 of 2 steps succeeded"
    shell(f"dlq archive {letter['id'][:12]} --undo")
    done = shell("run each.yaml --run-key today --strict")
    assert (done.returncode, "2 of 2 steps succeeded; 1 dead letter of rows is open" in done.stdout) == (3, True)


def test_rows_that_all_failed_say_why_and_where_their_letters_are(shell):
    """The step fails with the cause that most rows have; letters of its rows are those of the flow's run."""
    (shell.folder / "each.yaml").write_text(EACH)
    shell.change('row["n"] == 3', "True", "steps.py")
    shell.change(
        'raise ValueError("odd")',
        'raise outlast.TemporaryFailure("away", error_class="unavailable")',
        "steps.py",
    )
    each = EACH + "    retry: {max_attempts: 1}\n"
    (shell.folder / "each.yaml").write_text(each)
    done = shell("run each.yaml --run-key today")
    assert done.returncode == 1
    cause = "failed with unavailable: away"
    for said in (done, shell("runs show today"), shell("runs report today")):
        assert cause in re.sub(r"\s+", " ", said.stdout)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Rows of halve that failed: ")]
    letters = shell.json(line.partition(": outlast ")[2])
    assert {letter["error_class"] for letter in letters} == {"unavailable"}
    of_flow = shell.json("dlq list --run today")
    assert {letter["kind"] for letter in of_flow} == {"step", "item"}
    assert len(of_flow) == len(letters) + 1
    groups = {group["stage"]: (group["count"], group["pipeline"]) for group in shell.json("dlq groups --run today")}
    assert len(groups) == 1
    assert sum(group["count"] for group in shell.json("dlq groups --run today")) == len(of_flow)
    for command in ("items", "errors"):
        refused = shell(f"runs {command} today")
        assert refused.returncode == 2
        (way,) = re.findall(rf"Those of its step halve: outlast (runs {command} \w+)", refused.stderr)
        assert len(shell.json(way)) == len(letters)


def test_a_run_over_rows_names_its_flow_and_no_replay(shell):
    """What does rows again is the run of the flow."""
    (shell.folder / "each.yaml").write_text(EACH)
    assert shell("run each.yaml --run-key today").returncode == 0
    (run,) = [run["id"] for run in shell.json("runs list") if run["kind"] != "flow"]
    said = shell(f"runs show {run}").stderr
    assert "outlast resume today --from-step halve" in said
    assert "dlq replay" not in said
    report = shell(f"runs report {run}")
    assert "dlq replay" not in report.stdout + report.stderr


def test_rows_that_were_cut_off_are_told_without_a_key_of_their_own(shell):
    """What is interrupted in the middle of its rows goes on with the flow, and is not pending in one that was cancelled."""
    (shell.folder / "each.yaml").write_text(EACH)
    shell.change(
        'if row["n"] == 3:',
        'if row["n"] == 3 and there("wait"):\n        print("waiting", flush=True)\n        sys.stdin.read()\n    if False:',
        "steps.py",
    )
    with shell.waiting("run each.yaml --run-key today --progress") as process:
        process.send_signal(signal.SIGINT)
        while "winding down" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        process.wait(60)  # its input is open, so that the row still stands there
        out, err = process.communicate("", timeout=60)
    assert process.returncode == 130, err
    shown = shell("runs show today").stdout
    assert re.search(r"run_key='\w+/halve'", out + err + shown) is None
    assert shell("cancel today").returncode == 0
    shown = shell("runs show today").stdout
    assert re.search(r"halve +(not finished|not begun)", shown)
    assert "pending" not in shown


# --- what is wrong with the input ---


def test_every_mistake_of_a_file_has_a_line_and_nothing_runs(shell):
    """File, line and column of each; exit code 2; no store is made."""
    shell.change("max_attempts: 2", "max_atempts: 2")
    shell.change('"${steps.charge.outputs.receipt}"', '"${steps.chrge.outputs.receipt}"')
    done = shell("run shop.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    places = [line.split(": ")[0] for line in done.stderr.splitlines()]
    assert [place.split(":")[0] for place in places] == ["shop.yaml", "shop.yaml"]
    assert all(re.fullmatch(r"shop\.yaml:\d+:\d+", place) for place in places)
    assert "did you mean 'max_attempts'" in done.stderr
    assert not (shell.folder / ".outlast").exists()


def test_warnings_of_a_file_are_counted_on_stderr_and_it_runs(shell):
    """`outlast validate` and `outlast compile` show what is allowed and rarely meant; a run says in one line how much there is."""
    shell.change("    idempotent: true\n", "")
    warned = shell("validate shop.yaml").stderr
    assert "[R18]" in warned
    assert shell("compile shop.yaml --output shop.json").stderr.startswith(warned)
    number = len(warned.splitlines())
    said = f"shop.yaml: {number} warning{'s' * (number > 1)}. Inspect: outlast validate shop.yaml\n"
    for words in ("run shop.yaml --run-key today", "enqueue shop.yaml --run-key later"):
        done = shell(words)
        assert (done.returncode, done.stderr.startswith(said), "[R18]" in done.stderr) == (0, True, False)


def test_everything_that_is_missing_around_a_flow_is_said_at_once(shell):
    """Variables of connections and sensitive parameters: all in one go, with the way out, and nothing begins."""
    (shell.folder / "connections.yaml").write_text(
        'connections: {postgres: {main: {host: localhost, database: shop, user: ann, password: "${OUTLAST_TEST_PASSWORD}"}}}\n'
    )
    shell.change(
        "  amount: {type: integer, default: 1}\n",
        "  amount: {type: integer, default: 1}\n  pin: {type: string, sensitive: true}\n",
    )
    shell.change('{call: "steps:reserve"}', '{call: "steps:reserve", args: {who: "${params.pin}"}}')
    text = (shell.folder / "shop.yaml").read_text()
    (shell.folder / "shop.yaml").write_text(
        text
        + '  - id: load\n    component: postgres.extractor\n    config: {connection: "@postgres.main", query: "select 1"}\n'
    )
    done = shell("run shop.yaml --run-key today")
    assert (done.returncode, done.stdout, shell.done) == (2, "", [])
    assert "OUTLAST_TEST_PASSWORD" in done.stderr
    assert "give it with --param, or set OUTLAST_PARAM_PIN" in done.stderr


def test_a_sensitive_parameter_is_given_again_and_is_on_no_record(shell):
    """It comes by --param or from the environment; the command that goes on asks for it, without its value."""
    shell.change(
        "  amount: {type: integer, default: 1}\n",
        "  amount: {type: integer, default: 1}\n  pin: {type: string, sensitive: true}\n",
    )
    shell.change('{call: "steps:reserve"}', '{call: "steps:reserve", args: {who: "${params.pin}"}}')
    shell.change('{"id": 7, "who": who,', '{"id": len(who),', "steps.py")
    shell.on("fail")
    done = shell("run shop.yaml --run-key today --param pin=hunter2secret")
    assert (done.returncode, "outlast resume today --param pin=..." in done.stderr) == (1, True)
    done = shell("resume today")
    assert (done.returncode, "OUTLAST_PARAM_PIN" in done.stderr) == (2, True)
    shell.off("fail")
    assert shell("resume today", OUTLAST_PARAM_PIN="hunter2secret").returncode == 0
    assert shell.done[-1] == "send 26"
    kept = b"".join(path.read_bytes() for path in shell.folder.rglob("*.db*"))
    assert (b"hunter2secret" in kept, b"today" in kept) == (False, True)


@table(
    "line, said",
    [
        (
            "run shop.yaml --input in.jsonl --item-key id --on-item-error stop",
            "expected no --input or --item-key or --on-item-error with shop.yaml, which are for a pipeline over items, in Python: a flow says itself what it reads and writes.",
        ),
        (
            "run app.py:reviews --from-step a --dry-run --param a=b --input in.jsonl",
            "expected no --param or --from-step or --dry-run with app.py:reviews, which are for a flow: a pipeline file (.yaml) or a manifest (.json).",
        ),
        (
            "run shopp.yaml",
            "expected shopp.yaml to be a pipeline file, but there is none in FOLDER. Did you mean 'shop.yaml'?",
        ),
        ("run shop.yaml --dry-run --strict", "expected no --strict with --dry-run, which runs nothing."),
        ("run shop.yaml --dry-run --no-progress", "expected no --progress with --dry-run, which runs nothing."),
        ("worker shop.yaml", "A worker without a target does pipeline files: outlast worker;"),
        ("run shop.yaml --on-change later", "expected --on-change to be stop, keep or redo, got: 'later'."),
        ("run shop.yaml --run-key ''", "expected --run-key to be a name, got: an empty one."),
        (
            "run shop.yaml --param amount",
            "expected --param to be a name and a value, such as batch=monday, got: no = in it",
        ),
        ("run shop.yaml --param amount=ten", "params.amount"),
        ("run shop.yaml --profile huge", "huge"),
        (
            "run shop.yaml --from-step chrge",
            "expected --from-step to be a step of shop, got: 'chrge'.  Did you mean 'charge'?",
        ),
    ],
)
def test_what_means_nothing_is_refused_with_a_sentence(shell, line, said):
    """D-26: an option without effect is refused, and so is a wrong value; exit code 2, and nothing runs."""
    (shell.folder / "app.py").write_text(
        "import outlast\n\n\n@outlast.stage\ndef label(row: dict) -> dict: return row\n\n\nreviews = outlast.Pipeline('reviews', label)\n"
    )
    (shell.folder / "in.jsonl").write_text("{}\n")
    done = shell(line)
    assert (done.returncode, done.stdout, shell.done) == (2, "", [])
    assert said.replace("FOLDER", str(shell.folder)).replace("  ", " ") in done.stderr.replace("  ", " ")


def test_params_and_profiles_decide_what_a_flow_runs_with(shell):
    """A parameter by hand wins over a profile, that over the default."""
    assert shell("run shop.yaml --profile large").returncode == 0
    assert shell("run shop.yaml --profile large --param amount=5").returncode == 0
    assert [line for line in shell.done if line.startswith("charge")] == ["charge 100", "charge 5"]


def test_a_manifest_runs_as_it_was_compiled(shell):
    """A manifest is run without its file; what was decided when it was compiled is not asked again."""
    (shell.folder / "build").mkdir()
    assert shell("compile shop.yaml --param amount=9 --output build/shop.json").returncode == 0
    shell.off("shop.yaml")
    assert shell("run build/shop.json --run-key today").returncode == 0
    assert shell.done == ["reserve", "charge 9", "send 14"]
    done = shell("run build/shop.json --param amount=3 --profile large")
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            "expected --profile with a pipeline file, got: build/shop.json, which is compiled already",
            "expected --param amount with a pipeline file, got: build/shop.json, which is compiled already. It takes none.",
        ],
    )


def test_another_app_keeps_its_runs_apart(shell):
    """--app and --store say where a run is kept, and are in the command that goes on."""
    shell.on("fail")
    done = shell("run shop.yaml --run-key today --app books --store sqlite:///books.db")
    assert "outlast resume today --store sqlite:///books.db" in done.stderr
    shell.off("fail")
    assert shell("resume today --store sqlite:///books.db").returncode == 0
    assert shell("runs list --app books --store sqlite:///books.db").stdout.split("\n")[1].split()[2:5] == [
        "shop",
        "today",
        "completed",
    ]


# --- signals, crashes, others ---


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_winds_a_flow_down_and_says_how_it_goes_on(shell, number, code):
    """What runs comes to its end, nothing more is begun, and the exact command is printed."""
    with shell.waiting("run shop.yaml --run-key today --progress") as process:
        process.send_signal(number)
        said = ""
        while "winding down" not in said:
            said = process.stderr.readline()
        assert said == "shop today: winding down: 1 step may end. Ctrl-C again does not wait\n"
        out, err = process.communicate("")
    assert process.returncode == code
    assert "interrupted: 2 of 3 steps succeeded" in out
    assert err.splitlines()[1:] == [
        "Go on: outlast resume today",
        "To give it up and undo what it has done: outlast cancel today --compensate",
    ]
    assert shell.done == ["reserve", "charge 1"]
    shell.off("wait")
    assert shell("resume today").returncode == 0
    assert shell.done == ["reserve", "charge 1", "send 14"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["run shop.yaml --run-key today", "resume today"])
def test_a_signal_in_the_last_step_of_a_flow_does_not_change_the_exit_code(shell, number, command):
    """130 and 143 mean that something was left undone; here all steps have ended."""
    text = (shell.folder / "shop.yaml").read_text()
    (shell.folder / "shop.yaml").write_text(text[: text.index("  - id: send")])
    if command != "run shop.yaml --run-key today":
        shell.crashed("today")
    with shell.waiting(f"{command} --json") as process:
        process.send_signal(number)
        out, err = process.communicate("")
    assert (process.returncode, json.loads(out)["status"]) == (0, "completed")
    assert "Go on" not in err


def test_a_killed_flow_is_interrupted_and_goes_on_where_it_was(shell):
    """kill -9: what was done stays done; what was under way is begun again."""
    shell.crashed("today")
    (listed,) = shell.json("runs list")
    assert (listed["status"], listed["counts"]["succeeded"], listed["counts"]["total"]) == ("interrupted", 1, 3)
    shown = shell("runs show today")
    assert "interrupted: the process that ran it is gone" in shown.stdout
    assert "1 of 3 steps succeeded" in shown.stdout
    assert "Go on: outlast resume today" in shown.stderr
    done = shell(f"resume {listed['id'][:8]} --json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["status"], document["passes"]) == (0, "completed", 2)
    assert [one["outcome"] for one in document["steps"][1]["attempts"]] == ["crashed", "succeeded"]
    assert shell.done == ["reserve", "charge 1", "send 14"]


def test_a_run_that_is_worked_on_elsewhere_is_refused(shell):
    """Exit code 1, with who works on it, for `run` and for `resume`."""
    with shell.waiting("run shop.yaml --run-key today") as process:
        for line in ("run shop.yaml --run-key today", "resume today"):
            done = shell(line)
            assert done.returncode == 1
            assert f"is busy: process {process.pid} on" in done.stderr
        assert "It is running at" in shell("runs show today").stdout
        process.communicate("")
    assert process.returncode == 0


def test_a_flow_is_paused_and_goes_on(shell):
    """`outlast pause` begins nothing new; exit code 130 with the way on."""
    with shell.waiting("run shop.yaml --run-key today --progress") as process:
        assert shell("pause today").stdout.startswith("Asked ")
        out, err = finish_when_asked(process)
    assert (process.returncode, "paused: 2 of 3 steps succeeded" in out) == (130, True)
    assert "Go on: outlast resume today" in err.splitlines()
    shell.off("wait")
    assert shell("resume today").returncode == 0


def wait_until_asked(process):
    """A process with --progress says that it has heard: it looks with each beat, every 5 seconds."""
    while "Ctrl-C again does not wait" not in (line := process.stderr.readline()):
        assert line, "it has ended"


def finish_when_asked(process):
    """Let the step that waits end once the process has heard what it was asked."""
    wait_until_asked(process)
    return process.communicate("", timeout=200)


# --- cancel ---


def test_cancel_asks_the_process_that_works_on_it(shell):
    """Without --compensate what was done stands; with it, it is undone by the process that works on it."""
    for key, option, done in (("a", "", []), ("b", " --compensate", ["give back 7"])):
        with shell.waiting(f"run shop.yaml --run-key {key} --progress") as process:
            asked = shell(f"cancel {key}{option}")
            assert (asked.returncode, asked.stdout.startswith("Asked ")) == (0, True)
            out, _ = finish_when_asked(process)
        assert process.returncode == 130
        assert shell.done == ["reserve", "charge 1", *done]
        assert ("Still stands: reserve." in out) == (not option)
        assert ("Undone: reserve." in out) == bool(option)
        shell.off("done.txt")


def test_a_run_that_nobody_works_on_is_cancelled_here(shell):
    """It says what still stands, and a cancelled run does not go on; what it has done can still be undone."""
    shell.crashed("today")
    done = shell("cancel today")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        ["Cancelled today of shop.", "Still stands, and is not undone: reserve."],
    )
    for line in ("resume today", "run shop.yaml --run-key today"):
        refused = shell(line)
        assert (refused.returncode, "was cancelled: begin another one with another --run-key" in refused.stderr) == (
            2,
            True,
        )
    again = shell("cancel today")
    nothing = "today of shop is cancelled: there is nothing to cancel."
    way = "Still stands: reserve. To undo what is left: outlast cancel today --compensate\n"
    assert (again.returncode, again.stderr) == (2, f"{nothing} {way}")
    assert (shell("cancel today --compensate").returncode, shell.done) == (0, ["reserve", "give back 7"])
    again = shell("cancel today --compensate")  # who is not sure may ask again
    said = "today of shop is cancelled already, and nothing of it is left to undo.\n"
    assert (again.returncode, again.stdout, shell.done) == (0, said, ["reserve", "give back 7"])


def test_cancel_with_compensate_undoes_here_what_a_crashed_run_has_done(shell):
    """By what is on record: the file need not be there. Exit code 0 if all is undone."""
    shell.crashed("today")
    shell.off("shop.yaml")
    done = shell("cancel today --compensate")
    assert (done.returncode, "Undone: reserve." in done.stdout, shell.done) == (0, True, ["reserve", "give back 7"])
    (run,) = shell.json("runs list")
    assert run["status"] == "cancelled"


def test_cancel_that_cannot_undo_is_exit_code_5(shell):
    """A run that failed and could not be undone is tried to be undone once more; what fails again still stands."""
    shell.on("fail", "stuck")
    assert shell("run shop.yaml --run-key today").returncode == 5
    done = shell("cancel today --compensate --json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["status"], document["not_undone"]) == (5, "cancelled", ["reserve"])
    assert len(document["steps"][0]["undone_by"]) == 2


def test_a_failed_flow_whose_undoing_failed_is_undone_when_it_is_cancelled(shell):
    """Once the cause is gone, cancel --compensate undoes what still stood."""
    shell.on("fail", "stuck")
    assert shell("run shop.yaml --run-key today").returncode == 5
    shell.off("stuck")
    done = shell("cancel today --compensate")
    assert (done.returncode, shell.done) == (0, ["reserve", "give back 7"])
    assert shell.json("runs list")[0]["status"] == "cancelled"


#: As `PIPELINE`, where a charge that was begun is given back too, and is made once for its key.
CHARGED_ONCE = PIPELINE.replace(
    "    idempotent: true\n",
    """    idempotency: {key: "charge"}
    compensate:
      {component: python, when: started, config: {call: "steps:give_back", args: {id: "${steps.reserve.outputs.id}"}}}
""",
)


def test_what_another_run_has_done_under_its_key_is_not_undone(shell):
    """C-20, C-21: a run that was killed in a step gives it back, unless another run has made it its own meanwhile."""
    (shell.folder / "shop.yaml").write_text(CHARGED_ONCE)
    shell.crashed("today")
    assert shell("run shop.yaml --run-key other").returncode == 0
    assert shell.done == ["reserve", "reserve", "charge 1", "send 14"]
    done = shell("cancel today --compensate --json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["status"], document["undone"]) == (0, "cancelled", ["reserve"])
    assert states(document) == {"reserve": "compensated", "charge": "cached", "send": "skipped"}
    assert shell.done == ["reserve", "reserve", "charge 1", "send 14", "give back 7"]
    again = shell.json("runs show other")
    assert states(again) == {"reserve": "succeeded", "charge": "succeeded", "send": "succeeded"}


def test_what_was_begun_under_a_key_that_nobody_else_took_is_undone_and_free_then(shell):
    """C-20, C-21: as above, with nobody who came meanwhile; the next run does the work."""
    (shell.folder / "shop.yaml").write_text(CHARGED_ONCE)
    shell.crashed("today")
    document = json.loads(shell("cancel today --compensate --json").stdout)
    assert (document["status"], document["undone"]) == ("cancelled", ["charge", "reserve"])
    assert shell.done == ["reserve", "give back 7", "give back 7"]
    assert shell("run shop.yaml --run-key other").returncode == 0
    assert shell.done[3:] == ["reserve", "charge 1", "send 14"]


def test_there_is_nothing_to_cancel_in_a_completed_flow(shell):
    """What is over is over; and options of undoing mean nothing without it."""
    shell("run shop.yaml --run-key today")
    done = shell("cancel today")
    assert (done.returncode, done.stderr) == (2, "today of shop is completed: there is nothing to cancel.\n")
    shell.crashed("late")
    done = shell("cancel late --param a=b")
    assert (done.returncode, "unless --compensate" in done.stderr) == (2, True)


# --- an undoing that is not over ---


def test_an_undoing_that_is_under_way_or_was_cut_off_is_told_as_that(shell):
    """C-21: a step whose undoing was begun neither stands nor is it undone; each attempt at it is listed, also the one that was cut off."""
    with shell.undoing(UNDONE):
        now = shell.json("runs show today")
        assert (states(now), now["compensation"], now["standing"], now["undoing"], now["undone"]) == (
            {"one": "compensating", "two": "compensated", "last": "failed"},
            "begun",
            [],
            ["one"],
            ["two"],
        )
        assert (now["steps"][0]["undoing"], [one["outcome"] for one in now["steps"][0]["undone_by"]]) == (
            "running",
            ["running"],
        )
        assert now["counts"] | {"total": 3, "compensating": 1, "compensated": 1, "failed": 1} == now["counts"]
        assert now["why"].endswith("0 of 3 steps succeeded; undone: two; being undone: one")
        assert re.search(r"^one \(undo\) +1 +running ", shell("runs show today").stdout, re.MULTILINE)
    cut = shell.json("runs show today")
    assert (cut["status"], cut["steps"][0]["status"], cut["steps"][0]["undoing"]) == (
        "interrupted",
        "compensating",
        "cut_off",
    )
    assert [(one["outcome"], one["took"]) for one in cut["steps"][0]["undone_by"]] == [("crashed", None)]
    shown = shell("runs show today").stdout
    assert "Begun to be undone, and cut off; nobody knows how far it came: one." in shown
    assert re.search(r"^one \(undo\) +1 +crashed ", shown, re.MULTILINE)
    (listed,) = shell.json("runs list")
    assert (listed["counts"]["succeeded"], listed["counts"]["failed"]) == (0, 1)
    page = shell.folder / "report.html"
    assert shell(f"runs report today --html {page.name}").returncode == 0
    assert all(said in page.read_text() for said in ("undo cut off", "cut off, nobody knows how far it came: one"))


def test_a_run_that_is_half_undone_is_cancelled_with_what_is_left_and_undone_to_its_end(shell):
    """What was cut off is put on record; --compensate goes on with an undoing that was begun."""
    with shell.undoing(UNDONE):
        pass
    done = shell("cancel today")
    assert (done.stdout.splitlines(), done.stderr) == (
        ["Cancelled today of undone.", "Begun to be undone, and cut off; nobody knows how far it came: one."],
        "To undo what is left: outlast cancel today --compensate\n",
    )
    shown = shell.json("runs show today")
    assert (shown["standing"], shown["undoing"]) == ([], ["one"])
    assert [one["outcome"] for one in shown["steps"][0]["undone_by"]] == ["crashed"]
    assert not [one for one in shell.json("metrics") if "running" in one["labels"].values() and one["value"]]
    done = shell("cancel today --compensate --json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["status"], document["undone"], document["compensation"]) == (
        0,
        "cancelled",
        ["two", "one"],
        "completed",
    )
    assert shell.done == ["reserve", "reserve", "give back 7", "undone 7"]


def test_rows_that_are_undone_are_counted_while_others_are_not(shell):
    """During the undoing, after a kill, and when the run is cancelled; the rows that are undone are not undone again."""
    rows = {"total": 3, "undone": 2, "failed": 0}
    with shell.undoing(ROWS_UNDONE):
        while (now := shell.json("runs show today"))["steps"][0]["undo_rows"] != rows:
            assert now["steps"][0]["status"] == "compensating"
        assert now["why"].endswith("being undone: files (2 of 3 rows undone)")
    cut = shell.json("runs show today")
    assert (cut["steps"][0]["undoing"], cut["steps"][0]["undo_rows"], cut["standing"]) == ("cut_off", rows, [])
    assert shell("cancel today").stdout.splitlines()[1:] == [
        "Begun to be undone, and cut off; nobody knows how far it came: files (2 of 3 rows undone)."
    ]
    assert shell("cancel today --compensate").returncode == 0
    assert shell.done == ["drop 3", "drop 2", "undone 1", "drop 1"]


def test_rows_of_which_nobody_knows_are_told_each_time_that_somebody_asks(shell):
    """C-21: exit code 3 the second time, too; and it is not said beside that that nothing was there to undo."""
    (shell.folder / "shop.yaml").write_text(ROWS_CHARGED)
    shell.crashed("today")
    told = "obody knows whether 2 rows of charge were done, so they are not undone"
    first = shell("cancel today --compensate")
    assert (first.returncode, told in first.stdout, "this run's to undo" in first.stdout) == (3, True, False)
    second = shell("cancel today --compensate")
    assert (second.returncode, second.stdout.splitlines()) == (
        3,
        ["today of shop is cancelled already, and nothing of it is left that could be undone.", f"N{told}."],
    )
    third = shell("cancel today")
    assert (third.returncode, f"there is nothing to cancel. N{told}." in third.stderr) == (2, True)
    shown = shell.json("runs show today")
    assert (shown["unknown_rows"], shown["steps"][0]["nothing_undone"]) == ({"charge": 2}, False)
    assert shell("runs report today --html report.html").returncode == 0
    assert told in (shell.folder / "report.html").read_text()


def test_rows_that_stand_are_named_where_nothing_undoes_them(shell):
    """C-21: of a step that failed and is undone only as a whole; by each command that says what stands, with exit code 3."""
    (shell.folder / "shop.yaml").write_text(ROWS_AT_ONCE)
    told = "1 of 3 rows of halve was done and stands"
    failed = shell("run shop.yaml --run-key today")
    assert (failed.returncode, f"undone: reserve; {told}\n" in failed.stdout) == (1, True)
    assert f"Undone: reserve.\n{told}.\n" in failed.stdout
    shell("run shop.yaml --run-key other")
    document = json.loads(shell("cancel other --json").stdout)
    assert (document["standing"], document["standing_rows"]) == ([], {"halve": 1})
    assert shell("cancel today").stdout.splitlines() == ["Cancelled today of shop.", f"{told}."]
    assert f"{told}." in shell("runs show today").stdout
    assert shell("runs report today --html report.html").returncode == 0
    assert f"{told}." in (shell.folder / "report.html").read_text()
    done = shell("cancel today --compensate")
    assert (done.returncode, done.stdout.splitlines()) == (
        3,
        ["today of shop is cancelled already, and nothing of it is left that could be undone.", f"{told}."],
    )
    shell("run shop.yaml --run-key third")
    done = shell("cancel third --compensate --json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"], document["standing_rows"]) == (3, 3, {"halve": 1})
    assert document["why"].endswith(f"; undone: reserve; {told}")


def test_who_is_asked_to_cancel_while_it_undoes_comes_to_the_end_of_that(shell):
    """Nothing is left half undone by a cancel; with and without --compensate."""
    other_way = UNDONE.replace("give_back", "x").replace("undo_slowly", "give_back").replace("x", "undo_slowly")
    for key, option in (("a", ""), ("b", " --compensate")):
        with shell.undoing(other_way, key, "--progress") as process:
            assert shell(f"cancel {key}{option}").stdout.startswith("Asked ")
            finish_when_asked(process)
        document = shell.json(f"runs show {key}")
        assert (document["status"], document["undone"], document["undoing"]) == ("cancelled", ["two", "one"], [])


def test_who_asks_twice_while_it_undoes_is_not_made_to_wait(shell):
    """What undoes a step is left where it is, and called no more; the run is interrupted, and the undoing goes on later."""
    with shell.undoing(UNDONE, options="--progress") as process:
        assert shell("cancel today --compensate").stdout.startswith("Asked ")
        wait_until_asked(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130  # its input is open, so what undoes the step still stands there
        assert process.stdout.read().count("undoing\n") == 0
    document = shell.json("runs show today")
    assert (document["status"], document["compensation"], document["undoing"]) == ("interrupted", "begun", ["one"])
    assert shell("cancel today --compensate").returncode == 0
    document = shell.json("runs show today")
    assert (document["status"], document["undone"]) == ("cancelled", ["two", "one"])


def test_nothing_is_counted_as_running_whose_process_was_killed(shell):
    """U-22: a killed run is interrupted in metrics as everywhere, and so are the runs over its rows and what undoes its steps."""
    with shell.undoing(ROWS_UNDONE):
        pass
    found = {
        (one["name"], *one["labels"].values()): one["value"]
        for one in shell.json("metrics")
        if one["name"] in {"outlast_runs_on_record", "outlast_steps_on_record"}
    }
    assert not [labels for labels in found if "running" in labels]
    assert found["outlast_runs_on_record", "default", "undone", "interrupted"] == 1
    assert found["outlast_runs_on_record", "default", "undone.files.undo", "interrupted"] == 1
    assert found["outlast_steps_on_record", "default", "undone", "undo", "interrupted"] == 1


# --- going on, otherwise ---


def test_a_file_that_has_changed_is_taken_if_only_its_policy_has(shell):
    """Other retries hold for what is left; what has changed is said."""
    shell.on("fail")
    shell("run shop.yaml --run-key today")
    shell.off("fail")
    shell.change("max_attempts: 2", "max_attempts: 4")
    done = shell("resume today")
    assert (done.returncode, done.stderr) == (
        0,
        "Taken: shop.yaml, which has changed since: other retries or limits in charge.\n",
    )


def test_a_mended_step_is_taken_and_a_changed_one_that_is_done_is_not(shell):
    """What failed may be mended in the file; other work for what is done needs --on-change."""
    shell.crashed("today")
    shell.change(
        '"steps:charge", args: {id: "${steps.reserve.outputs.id}", amount: "${params.amount}"}',
        '"steps:charge", args: {id: 1, amount: 3}',
    )
    shell.change('{call: "steps:reserve"}', '{call: "steps:reserve", args: {who: bob}}')
    done = shell("resume today")
    assert (done.returncode, shell.done) == (2, ["reserve"])
    assert done.stderr.splitlines()[0] == "Taken: shop.yaml, which has changed since: other work in reserve, charge."
    assert "--on-change keep goes on with what they have put out" in done.stderr
    assert 'on_change="' not in done.stderr
    assert shell("resume today --on-change keep").returncode == 0
    assert shell.done == ["reserve", "charge 3", "send 2"]


def test_a_run_goes_on_with_what_is_on_record_if_its_file_is_gone_or_not_meant(shell):
    """Without the file, or with --recorded; one with mistakes is told, with the way out."""
    shell.crashed("today")
    shell.crashed("tomorrow")
    shell.change("max_attempts: 2", "max_atempts: 2")
    done = shell("resume today")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].startswith("shop.yaml:")
    assert (
        done.stderr.splitlines()[-1] == "To go on with the steps as they are on record: outlast resume today --recorded"
    )
    done = shell("resume today --recorded --param amount=3")
    assert (done.returncode, done.stderr) == (
        2,
        "expected no --param amount with the steps that are on record, which have their values. It takes none.\n",
    )
    done = shell("resume today --recorded")
    assert (done.returncode, done.stderr) == (0, "Taken: the steps as they are on record.\n")
    shell.off("shop.yaml")
    done = shell("resume tomorrow")
    assert (done.returncode, done.stderr) == (
        0,
        "Taken: the steps as they are on record: shop.yaml is not there any more.\n",
    )


def test_a_run_that_went_on_as_recorded_once_takes_its_file_the_next_time(shell):
    """--recorded is for one time; and there --on-change has nothing to decide."""
    shell.on("fail")
    assert shell("run shop.yaml --run-key today").returncode == 1
    refused = shell("resume today --recorded --on-change redo")
    assert (refused.returncode, refused.stderr) == (
        2,
        "expected no --on-change with --recorded: the steps that are on record are what the run has done.\n",
    )
    assert shell("resume today --recorded").returncode == 1
    shell.off("fail")
    shell.change("default: 1}", "default: 1}\n  other: {type: integer, default: 2}")
    done = shell("resume today")
    assert (done.returncode, done.stderr.splitlines()[0]) == (0, "Taken: shop.yaml, with the same steps.")


def test_a_job_of_a_flow_comes_back_if_its_rows_failed_for_now(shell):
    """A service that is away is no bad data: the job is tried again, and rows that are done are not."""
    shell.change('row["n"] == 3', 'there("away")', "steps.py")
    shell.change(
        'raise ValueError("odd")',
        'raise outlast.TemporaryFailure("away", error_class="unavailable")',
        "steps.py",
    )
    (shell.folder / "each.yaml").write_text(EACH + "    retry: {max_attempts: 1}\n")
    shell.on("away")
    assert shell("enqueue each.yaml --run-key today").returncode == 0
    worked = shell("worker --until-idle")
    assert worked.returncode == 0, worked.stderr
    (job,) = shell.json("jobs list")
    assert (job["status"], job["error_class"]) == ("queued", "unavailable"), job


def test_a_run_keeps_the_parameters_that_it_was_begun_with(shell):
    """Given values, and defaults that the file has changed since, stay those of the run."""
    with shell.waiting("run shop.yaml --run-key today --param amount=8") as process:
        process.kill()
        process.communicate()
    shell.crashed("tomorrow")
    shell.change("default: 1", "default: 2")
    for key in ("today", "tomorrow"):
        assert shell(f"resume {key}").returncode == 0
    assert [line for line in shell.done if line.startswith("charge")] == ["charge 8", "charge 1"]


def test_from_step_does_a_step_again_after_undoing_what_can_be_undone(shell):
    """The step and all that need it; what comes before stays."""
    shell("run shop.yaml --run-key today")
    assert shell("run shop.yaml --run-key today --from-step charge").returncode == 0
    assert shell.done == ["reserve", "charge 1", "send 14", "charge 1", "send 14"]
    assert shell("resume today --from-step reserve").returncode == 0
    assert shell.done[5:] == ["give back 7", "reserve", "charge 1", "send 14"]


def test_a_dry_run_says_what_would_be_done_and_does_nothing(shell):
    """Of a run that is not there, one that failed, one that is done, and from a step."""
    done = shell("run shop.yaml --run-key today --dry-run")
    assert (done.returncode, (shell.folder / ".outlast").exists()) == (0, False)
    assert "Nothing was run: it would run reserve, charge, send." in done.stdout
    shell.on("fail")
    shell("run shop.yaml --run-key today")
    document = json.loads(shell("run shop.yaml --run-key today --dry-run --json").stdout)
    assert [(step["id"], step["would"]) for step in document["steps"]] == [
        ("reserve", "run"),
        ("charge", "run"),
        ("send", "run"),
    ]
    shell.off("fail")
    shell("resume today")
    before = shell.done
    assert "nothing is left to do" in shell("run shop.yaml --run-key today --dry-run").stdout
    done = shell("run shop.yaml --run-key today --dry-run --from-step reserve")
    assert re.search(r"reserve +undone first, then done again", done.stdout)
    done = shell("run shop.yaml --run-key new --dry-run --from-step charge")
    assert (done.returncode, "Leave --from-step out" in done.stderr) == (2, True)
    assert shell.done == before


def test_a_dry_run_after_a_kill_in_the_undoing_says_what_each_step_is(shell):
    """What has failed and what is undone was begun, and is not called otherwise."""
    with shell.undoing(UNDONE):
        pass
    document = json.loads(shell("run undone.yaml --run-key today --dry-run --json").stdout)
    assert [(step["id"], step["would"]) for step in document["steps"]] == [
        ("one", "undone"),
        ("two", "is undone already"),
        ("last", "stays failed"),
    ]


@pytest.mark.parametrize(
    ("idempotent", "said"),
    [
        ("true", ["kept as it is", "run", "run"]),
        ("false", ["undone", "fails: its process ended in the middle of an attempt", "not begun"]),
    ],
)
def test_a_dry_run_after_a_kill_says_what_comes_of_the_step_that_was_cut_off(shell, idempotent, said):
    """One that must not be done twice has failed by that, and what was done before it is undone: the run itself does what was said."""
    shell.change("idempotent: true", f"idempotent: {idempotent}")
    shell.crashed("today")
    document = json.loads(shell("run shop.yaml --run-key today --dry-run --json").stdout)
    assert [step["would"] for step in document["steps"]] == said
    shell("run shop.yaml --run-key today")
    assert shell.done == (["reserve", "charge 1", "send 14"] if idempotent == "true" else ["reserve", "give back 7"])


def test_another_value_of_a_parameter_is_named_if_it_changes_what_is_done(shell):
    """The file is what it was: whoever reads that steps have changed need not look for it there."""
    shell("run shop.yaml --run-key today")
    done = shell("run shop.yaml --run-key today --param amount=5")
    assert (done.returncode, done.stderr.count("other work in charge")) == (2, 1)
    assert "The parameter amount had another value in that run: give the one that it had." in done.stderr
    shell.change("steps:send", "steps:reserve")
    done = shell("run shop.yaml --run-key today")
    assert (done.returncode, "other work in send" in done.stderr, "parameter" in done.stderr) == (2, True, False)


def test_options_of_items_mean_nothing_for_a_run_of_a_flow(shell):
    """And those of flows nothing for a run over items."""
    shell.crashed("today")
    done = shell("resume today --input in.jsonl")
    assert (done.returncode, "expected no --input with today, a run of a flow" in done.stderr) == (2, True)
    done = shell("resume today --file shop.yaml --recorded")
    assert (done.returncode, "expected --file or --recorded, got: both" in done.stderr) == (2, True)
    (shell.folder / "app.py").write_text(
        "import outlast\n\n\n@outlast.stage\ndef label(row: dict) -> dict: return row\n\n\nreviews = outlast.Pipeline('reviews', label)\n"
    )
    (shell.folder / "in.jsonl").write_text("{}\n")
    assert shell("run app.py --input in.jsonl --run-key rows").returncode == 0
    done = shell("resume rows --from-step a --recorded")
    assert (done.returncode, "expected no --recorded or --from-step with rows, a run over items" in done.stderr) == (
        2,
        True,
    )
    done = shell("cancel rows --compensate")
    assert (done.returncode, "only a flow says what undoes its steps" in done.stderr) == (2, True)
    lines = shell("runs list").stdout.splitlines()
    assert [line.split()[1:4] for line in lines[1:]] == [["items", "reviews", "rows"], ["steps", "shop", "today"]]


# --- what is on record ---


def test_a_flow_is_shown_with_every_attempt_and_what_it_has_put_out(shell):
    """Steps, attempts and those to undo them, outputs by type; values only when asked for, and masked."""
    shell.on("fail")
    shell("run shop.yaml --run-key today")
    shell.off("fail")
    shell("resume today")
    shown = shell("runs show today")
    rows = [line.split()[:5] for line in shown.stdout.splitlines()]
    assert ["reserve", "1", "succeeded"] in [row[:3] for row in rows]
    assert ["reserve", "(undo)", "1", "succeeded"] in [row[:4] for row in rows]
    assert "no other: permanent" in shown.stdout
    assert "outlast runs show today --traceback" in shown.stderr
    assert 'raise ValueError("card declined")' in shell("runs show today --traceback").stdout
    assert "sk-live" not in shell("runs outputs today").stdout
    assert shell.json("runs outputs today --reveal")[0]["outputs"]["token"] == "sk-live-0123456789abcdef0123"
    (failed,) = [one for one in shell.json("runs attempts today --item charge") if one["outcome"] == "failed"]
    assert (failed["number"], failed["round"], failed["stop_reason"], failed["deed"]) == (1, 1, "permanent", "do")
    for line in ("runs items today", "runs errors today"):
        assert "which has steps and no items: outlast runs show today" in shell(line).stderr
    assert shell("runs attempts today --item chrge").returncode == 2


def test_a_report_of_a_flow_is_a_page_and_a_text(shell):
    """What went wrong, every attempt, and the way on; a page that loads nothing."""
    shell.on("fail")
    shell("run shop.yaml --run-key '<b>today'")
    told = shell("runs report '<b>today'")
    assert "Attempts that failed" in told.stdout
    assert "As a page: outlast runs report '<b>today' --html report.html" in told.stderr
    assert shell("runs report '<b>today' --html report.html").returncode == 0
    page = (shell.folder / "report.html").read_text()
    assert "charge failed. 0 of 3 steps succeeded." in page
    assert ("<b>today" in page, "&lt;b&gt;today" in page) == (False, True)
    assert shell("runs report '<b>today' --item charge").returncode == 2
    assert shell.json("runs report '<b>today'") == shell.json("runs show '<b>today'")


def test_what_a_step_has_kept_is_printed_masked_or_written(shell):
    """As of a job: by its name, of an attempt, to a file as it is."""
    (shell.folder / "rows.csv").write_text("a,b\n1\n")
    (shell.folder / "read.yaml").write_text(
        'oml_version: "0.1.0"\nname: reading\nsteps:\n  - id: read\n    component: files.reader\n    config: {path: rows.csv}\n'
    )
    shell("run read.yaml --run-key today")
    (kept,) = shell.json("runs show today")["artifacts"]
    assert kept["name"] == "read unreadable"
    assert (
        shell("runs artifact today unreadable").stdout
        == shell("runs artifact today 'read unreadable' --attempt 1").stdout
    )
    assert shell("runs artifact today unreadable --output kept.txt").returncode == 0
    assert (shell.folder / "kept.txt").read_bytes()
    done = shell("runs artifact today unreadble")
    assert (done.returncode, "has kept no 'unreadble'" in done.stderr) == (2, True)
    done = shell("runs artifact today photo")
    assert done.stderr == "The run today has kept no 'photo'. It has kept: read unreadable.\n"


def test_dead_letters_of_steps_are_shown_and_name_their_run(shell):
    """What was to be done, why it stopped; replaying and editing them says the way out."""
    shell.on("fail", "stuck")
    shell("run shop.yaml --run-key today")
    letters = {letter["kind"]: letter["id"][:12] for letter in shell.json("dlq list")}
    listed = shell("dlq list").stdout
    assert ("reserve (undoing)" in listed, "charge" in listed) == (True, True)
    shown = shell(f"dlq show {letters['step']}")
    assert "step         charge of shop, in the run today" in shown.stdout
    assert shown.stderr == "Once the cause is gone, its run goes on with it: outlast resume today\n"
    shown = shell(f"dlq show {letters['compensation']}")
    assert "undoing      reserve of shop, in the run today" in shown.stdout
    assert "Its run tries that first when it goes on: outlast resume today" in shown.stderr
    for line in (
        f"dlq replay {letters['step']}",
        "dlq replay --pipeline shop",
        f"dlq edit {letters['step']} --payload '{{}}' --reason x",
    ):
        done = shell(line)
        assert (done.returncode, "outlast resume today" in done.stderr) == (2, True)
    assert {group["stage"] for group in shell.json("dlq groups")} == {"charge", "reserve"}


def test_dead_letters_of_a_cancelled_run_name_a_way_that_is_not_refused(shell):
    """Its run does not go on: its letters are put away, another run does the work, and what stands can be undone."""
    shell.on("fail", "stuck")
    shell("run shop.yaml --run-key today")
    shell("cancel today")
    letters = {letter["kind"]: letter["id"][:12] for letter in shell.json("dlq list")}
    archive = f"outlast dlq archive {letters['step']} --reason 'its run was cancelled'"
    ways = (
        "Its run today was cancelled and does not go on: another run, with another --run-key, does the work.\n"
        f"To put the letter away: {archive}\n"
    )
    assert shell(f"dlq show {letters['step']}").stderr == ways
    replayed = shell(f"dlq replay {letters['step']}")
    assert (replayed.returncode, replayed.stderr) == (
        2,
        f"expected dead letters of items or jobs, but 1 dead letter is of a step of a flow.\n{ways}",
    )
    shown = shell(f"dlq show {letters['compensation']}").stderr
    assert shown.startswith("Once the cause is gone, try again to undo it: outlast cancel today --compensate\n")
    shell.off("stuck")
    assert (shell("cancel today --compensate").returncode, shell.done[-1]) == (0, "give back 7")
    assert shell(archive.removeprefix("outlast ")).returncode == 0
    assert shell.json("dlq list") == []


def test_a_dead_letter_of_a_row_is_called_that_when_it_is_not_replayed(shell):
    """Its flow's step does it again; of a cancelled run it can only be put away."""
    (shell.folder / "each.yaml").write_text(EACH)
    shell("run each.yaml --run-key today")
    (letter,) = shell.json("dlq list")
    done = shell(f"dlq replay {letter['id'][:12]}")
    assert done.stderr.splitlines()[0] == (
        "expected dead letters of items or jobs, but 1 dead letter is of a row of a flow's step."
    )
    assert "outlast resume today --from-step halve" in done.stderr


def test_a_dead_letter_of_a_row_is_not_edited(shell):
    """No replay takes what was written: the flow makes the row again. The way out is told, in a shell and in Python."""
    (shell.folder / "each.yaml").write_text(EACH)
    shell("run each.yaml --run-key today")
    (letter,) = shell.json("dlq list")
    done = shell(f"dlq edit {letter['id'][:12]} --payload '{{\"n\": 4}}' --reason mended")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"got: {letter['id'][:12]}, of a row of a flow's step" in done.stderr
    assert "outlast resume today --from-step halve" in done.stderr
    app = App("default", store=f"sqlite:///{shell.folder}/.outlast/outlast.db")
    with pytest.raises(ConfigurationError, match="run numbers again with run_key='today' and from_step='halve'"):
        app.dead_letters.edit(letter["id"], {"n": 4}, reason="mended")
    assert not shell.json(f"dlq show {letter['id']}")["edited"]


def test_every_command_of_letters_knows_those_of_the_rows_of_a_flows_run(shell):
    """`--run` of a flow means the letters of its rows, too: listed, exported, archived, and not replayed with a way out."""
    (shell.folder / "each.yaml").write_text(EACH)
    for key in ("today", "tomorrow"):
        shell(f"run each.yaml --run-key {key}")
    assert [len(shell.json(f"dlq {command} --run today")) for command in ("list", "groups")] == [1, 1]
    for line in ("dlq replay --run today", "dlq replay --run today --canary 1", "dlq replay --pipeline numbers.halve"):
        done = shell(line)
        assert (done.returncode, "outlast resume today --from-step halve" in done.stderr) == (2, True)
    assert shell.json("dlq export out --run today")["exported"] == 1
    app = App("default", store=f"sqlite:///{shell.folder}/.outlast/outlast.db")
    today = next(one["id"] for one in shell.json("runs list") if one["run_key"] == "today")
    with pytest.raises(ConfigurationError, match="run numbers again with run_key='today' and from_step='halve'"):
        app.dead_letters.replay(run=today)
    assert len([*app.dead_letters.find(run=today)]) == 1
    assert shell.json("dlq archive --run today --reason known")["archived"] == 1
    assert [len(shell.json(f"dlq list --run {key}")) for key in ("today", "tomorrow")] == [0, 1]
    assert shell.json("dlq archive --run today --undo")["opened"] == 1


def test_advice_names_the_pipeline_where_two_runs_have_one_key(shell):
    """A key that two pipelines have means neither of them: every command that is told can be given as it is."""
    shell.on("fail")
    (shell.folder / "other.yaml").write_text(PIPELINE.replace("name: shop", "name: other"))
    shell("run other.yaml --run-key today")
    done = shell("run shop.yaml --run-key today")
    assert "go on: outlast resume today --pipeline shop\n" in done.stderr
    assert "outlast runs show today --pipeline shop\n" in done.stderr
    letter = next(one["id"] for one in shell.json("dlq list") if one["pipeline"] == "shop")
    assert shell(f"dlq show {letter}").stderr.endswith("outlast resume today --pipeline shop\n")
    shell.crashed("tomorrow")
    (shell.folder / "wait").unlink(missing_ok=True)
    shell("run other.yaml --run-key tomorrow")
    told = shell("cancel tomorrow --pipeline shop").stderr
    assert told == "To undo what is left: outlast cancel tomorrow --pipeline shop --compensate\n"
    assert shell(told.partition(": outlast ")[2]).returncode == 0


def test_a_run_below_a_flow_is_neither_cancelled_nor_resumed_by_itself(shell):
    """The flow would find it cancelled, fail, and undo everything: its own run is named instead."""
    (shell.folder / "each.yaml").write_text(EACH)
    shell("run each.yaml --run-key today")
    (below,) = [run for run in shell.json("runs list") if run["kind"] != "flow"]
    got = f"got: {below['run_key']}, of the step halve of today, a run of the flow numbers."
    done = shell(f"cancel {below['id'][:12]}")
    assert (done.returncode, done.stderr) == (
        2,
        f"expected a run of its own to cancel, {got}\nThat one is completed: outlast runs show today\n",
    )
    done = shell(f"resume {below['id'][:12]}")
    way = "To do the step again, and what needs it: outlast resume today --from-step halve"
    assert (done.returncode, done.stderr) == (2, f"expected a run of its own to resume, {got}\n{way}\n")
    shell.change(
        'if row["n"] == 3:',
        'if there("wait"):\n        print("waiting", flush=True)\n        sys.stdin.read()\n    if False:',
        "steps.py",
    )
    with shell.waiting("run each.yaml --run-key tomorrow") as process:
        process.kill()
        process.communicate()
    (below,) = [run for run in shell.json("runs list") if run["kind"] != "flow" and run["id"] != below["id"]]
    ways = {
        "cancel": "To cancel that one: outlast cancel tomorrow",
        "resume": "That one goes on with it: outlast resume tomorrow",
    }
    for command, way in ways.items():
        done = shell(f"{command} {below['id'][:12]}")
        assert (done.returncode, done.stderr.splitlines()[-1]) == (2, way)


def test_a_job_of_a_flow_that_may_be_done_is_not_told_to_be_requeued(shell):
    """A requeue would be refused every time: the run goes on where somebody names the step."""
    shell.change("    idempotent: true\n", "    idempotent: false\n")
    shell.on("flaky")
    assert shell("enqueue shop.yaml --run-key today").returncode == 0
    shell("worker --until-idle")
    (job,) = shell.json("jobs list --status failed")
    told = shell(f"jobs show {job['id']}").stderr
    way = "outlast resume today --from-step charge"
    assert (f"Look first whether charge was done. If it was not, do it again: {way}" in told, "requeue" in told) == (
        True,
        False,
    )
    (letter,) = shell.json("dlq list")
    told = shell(f"dlq show {letter['id']}").stderr
    assert (way in told, "dlq replay" in told) == (True, False)
    assert shell(way.removeprefix("outlast ")).returncode == 0


def test_sentences_in_a_shell_have_its_words_and_say_things_once(shell):
    """No argument of Python, no option twice, and what still stands is told in one place."""
    shell.change("    idempotent: true\n", "    idempotent: false\n")
    shell.on("flaky", "stuck")
    failed = shell("run shop.yaml --run-key today")
    assert "; look first whether charge was done\n" in failed.stdout
    assert "run_key=" not in failed.stdout
    refused = shell("resume today")
    assert refused.returncode == 2
    assert "If it was not, or was undone by hand, --from-step charge does it again;" in refused.stderr
    assert refused.stderr.count("--from-step") == 1
    cancelled = shell("cancel today --compensate")
    (sentence,) = [line for line in cancelled.stdout.splitlines() if "steps succeeded" in line]
    assert sentence.endswith("; could not be undone and still stands: reserve")
    (letter,) = [one["id"] for one in shell.json("dlq list") if one["kind"] == "compensation"]
    put_away = shell(f"dlq archive {letter} --reason 'undone by hand'")
    assert put_away.stderr == "Its run was cancelled: what could not be undone counts as undone by hand.\n"
    assert "; undone by hand: reserve; nothing is left that could be undone\n" in shell("runs show today").stdout


def test_events_of_a_flow_are_on_record(shell):
    """Compensations everywhere; what attempts tell, of a flow's run."""
    shell.on("fail")
    shell("run shop.yaml --run-key today")
    assert [one["data"]["step_id"] for one in shell.json("events --name compensation_completed")] == ["reserve"]
    assert [one["data"]["step_id"] for one in shell.json("events --run today --name step_error_permanent")] == [
        "charge"
    ]


def test_events_of_steps_are_found_over_all_runs(shell):
    """L1 of the seeds' review: by name and time; where else to look is said; an event of other runs is refused as before."""
    shell.on("fail")
    for key in ("today", "tomorrow"):
        shell(f"run shop.yaml --run-key {key}")
    name = "events --name step_error_permanent"
    assert [one["data"]["step_id"] for one in shell.json(name)] == ["charge"] * 2
    assert len(shell.json(f"{name} --window 1h")) == 2
    assert shell.json(f"{name} --window 1ms") == []
    done = shell(f"{name} --limit 1")
    assert (done.returncode, "outlast runs attempts RUN" in done.stderr) == (0, True)
    assert shell.json("events --name circuit_breaker_open") == []
    for wrong in ("0", "soon", "11y"):
        done = shell(f"events --window {wrong}")
        assert (done.returncode, "expected --window to be a duration" in done.stderr) == (2, True)
    assert shell("events --name item_failed").returncode == 2


SCHEDULED = """
oml_version: "0.1.0"
name: nightly
schedule: "0 3 * * *"
steps:
  - {id: reserve, component: files.reader, config: {path: in.jsonl}}
"""


def test_a_worker_that_is_given_a_flow_carries_out_its_schedule(shell):
    """D-45: validate says so, the list of schedules shows it, a file without a schedule is refused, and a job's file as well."""
    (shell.folder / "nightly.yaml").write_text(SCHEDULED)
    checked = shell("validate nightly.yaml")
    assert checked.stdout.splitlines() == [
        "nightly.yaml: valid, 1 step.",
        "nightly.yaml: its schedule is run by a worker that is given the file: outlast worker --flow nightly.yaml",
    ]
    (document,) = shell.json("validate nightly.yaml")["files"]
    assert document["schedule_run_by"] == "outlast worker --flow nightly.yaml"
    done = shell("worker --flow nightly.yaml --until-idle")
    assert (done.returncode, "flow:nightly" in done.stderr) == (0, True)
    (row,) = shell.json("jobs schedules")
    assert (row["kind"], row["cron"], row["timezone"], row["missed"]) == ("flow:nightly", "0 3 * * *", "UTC", "once")
    refused = shell("worker --flow shop.yaml --flow gone.yaml --until-idle")
    assert refused.returncode == 2
    assert "shop.yaml has no schedule." in refused.stderr
    assert "gone.yaml" in refused.stderr
    assert "outlast worker --flow nightly.yaml" in shell("worker nightly.yaml").stderr


def test_commands_of_a_report_name_the_store_that_was_given(shell):
    """L5 of the seeds' review: of a flow and of rows, in the terminal and on the page; and of a run that is not found."""
    shell.on("fail")
    shell("run shop.yaml --run-key today --store other.db")
    done = shell("runs report today --store other.db")
    printed = [line for line in (done.stdout + done.stderr).splitlines() if "outlast " in line]
    assert printed
    assert all("--store" in line for line in printed), printed
    assert "outlast runs list --store" in shell("runs show nothing --store other.db").stderr
    assert "jobs cancel nothing --store" in shell("cancel nothing --store other.db").stderr


# --- while it runs ---


def test_progress_is_a_line_for_each_change(shell):
    """Without a terminal; to the end, which the report tells."""
    shell.on("flaky")
    shell.change("initial_delay_ms: 10", "initial_delay_ms: 500")  # long enough to be shown on a busy machine
    done = shell("run shop.yaml --run-key today --progress")
    lines = [line.removeprefix("shop today: ") for line in done.stderr.splitlines()]
    assert [re.sub(r"[\d.]+ m?s\b", "TIME", line) for line in lines] == [
        "reserve: running",
        "reserve: succeeded, TIME",
        "charge: running, attempt 1 of 2",
        "charge: waiting, attempt 2 of 2 in TIME: connection_reset: reset by peer",
        "charge: running, attempt 2 of 2",
        "charge: succeeded, 2 attempts, TIME",
        "send: running",
        "send: succeeded, TIME",
    ]


def test_a_terminal_shows_the_graph_and_where_each_step_is(shell):
    """The picture changes in place, fits 80 columns, and makes room for the report."""
    shell.on("wait")
    with Terminal(
        "-m", "outlast.cli", "run", "shop.yaml", "--run-key", "today", folder=shell.folder, NO_COLOR="1"
    ) as screen:
        screen.read_until("charge   running    attempt 1 of 2")
        seen = [line.rstrip() for line in screen.screen()]
        assert any(line.startswith("┌ reserve  succeeded") for line in seen)
        assert any(line.startswith("▼ send     pending") for line in seen)
        assert "1 of 3 steps" in "\n".join(seen)
        assert max(map(len, seen)) <= 80
        screen.press("\x04")
        assert screen.finish() == 0
        last = "\n".join(screen.screen())
    assert ("3 of 3 steps succeeded" in last, "running" in last) == (True, False)


def view(**steps):
    """A run whose steps are as they are said to be, one after the other."""
    plain = {
        "component": "python",
        "needs": (),
        "attempt": 0,
        "max_attempts": 1,
        "started_at": None,
        "due_at": None,
        "error": None,
    }
    made = [StepView(**plain | {"id": name, "status": "pending"} | said) for name, said in steps.items()]
    made = [dataclasses.replace(step, needs=(before.id,)) for before, step in itertools.pairwise(made)]
    first = StepView(**plain | {"id": next(iter(steps)), "status": "pending"} | next(iter(steps.values())))
    return FlowView(id="0" * 32, run_key="today", pipeline="shop", steps=(first, *made), undoing=False)


def drawn(now, width, height):
    out = io.StringIO()
    Console(file=out, width=width, height=height, color_system=None).print(picture(now, width, height))
    return out.getvalue().splitlines()


def test_a_picture_fits_any_terminal_and_keeps_what_matters():
    """What is done or not begun goes first; no line is wider or more than there is room for."""
    steps = {f"step-{number}": {"status": "succeeded", "took": 1.0, "attempt": 1} for number in range(30)}
    steps |= {f"later-{number}": {} for number in range(30)}
    failed = {"status": "failed", "attempt": 3, "max_attempts": 3, "error": "no answer " * 20, "error_class": "timeout"}
    steps |= {"a step with a long name \N{CJK UNIFIED IDEOGRAPH-8A9E}" * 3: failed}
    steps |= {"now": {"status": "running", "attempt": 1}}
    now = now_of(view(**steps), 75.0)
    for width, height in ((80, 24), (40, 10), (20, 5), (200, 100)):
        lines = drawn(now, width, height)
        assert len(lines) < max(height, 4)
        assert max(cell_len(line) for line in lines) <= width
    lines = drawn(now, 80, 24)
    assert any(line.startswith("now") and "running" in line for line in lines)
    assert any("failed" in line and "timeout: no answer" in line for line in lines)
    assert re.fullmatch(r"and \d+ pending, \d+ succeeded", lines[-1].rstrip())


def test_a_notebook_shows_a_flow_as_text_and_as_html():
    """What others have written is text and nothing else."""
    later = datetime.now(UTC) + timedelta(seconds=90)
    bad = {"status": "running", "waiting": True, "attempt": 1, "max_attempts": 3, "due_at": later}
    shown = view(
        read={"status": "succeeded", "took": 0.5, "attempt": 2},
        load=bad | {"error": "<b>no</b>", "error_class": "timeout"},
    )
    page = FlowPage(now_of(shown, 3.0))
    assert ("&lt;b&gt;no&lt;/b&gt;" in page._repr_html_(), "<b>no" in page._repr_html_()) == (True, False)
    assert repr(page).splitlines() == [
        "shop today: running, 1 of 2 steps",
        "  read: succeeded, 2 attempts, 0.5 s",
        "  load: waiting, attempt 2 of 3 in 1 min 30 s: timeout: <b>no</b>",
    ]


def test_a_step_that_runs_is_told_once_and_its_rows_now_and_then():
    """What differs without being told is no line; counts are told by tenths and after five seconds."""
    first = view(charge={"status": "running", "attempt": 1, "max_attempts": 1})
    later = dataclasses.replace(
        first, steps=tuple(dataclasses.replace(step, due_at=datetime(2026, 1, 1, tzinfo=UTC)) for step in first.steps)
    )
    assert changes(first, later) == []
    counting = Counting()
    told = []
    for second, done in ((0.0, 0), (0.5, 50), (1.5, 60), (2.6, 61), (4.0, 61), (6.6, 62), (20.0, 62)):
        counts = {"total": 100, "succeeded": done, "failed": 0}
        now = view(charge={"status": "running", "attempt": 1, "max_attempts": 1, "counts": counts})
        told += [(second, line.rpartition(": ")[2]) for line in counting.lines(now, second)]
    assert told == [(1.5, "running, 100 rows, 60 succeeded"), (6.6, "running, 100 rows, 62 succeeded")]


def test_a_change_is_told_once_and_time_that_passes_is_none():
    """A log has a line for what has changed between two looks."""
    first = view(read={"status": "running", "attempt": 1})
    second = view(read={"status": "succeeded", "attempt": 1, "took": 2.0})
    assert changes(None, first) == ["shop today: read: running"]
    assert changes(first, first) == []
    assert changes(first, second) == ["shop today: read: succeeded, 2 s"]


def test_a_step_that_was_about_to_begin_and_did_not_is_told_as_that():
    """Another one has failed meanwhile: nothing of it was called. One that was called and given back is pending."""
    first = view(read={"status": "running", "attempt": 1})
    assert changes(first, view(read={"begun": False})) == ["shop today: read: not begun after all"]
    assert changes(first, view(read={"begun": True})) == ["shop today: read: pending"]


def test_progress_in_python_is_shown_in_lines_without_a_terminal(shell):
    """`Flow.run(progress=True)` shows the same, with its end."""
    (shell.folder / "go.py").write_text(
        "import outlast\noutlast.Flow.load('shop.yaml').run(run_key='today', progress=True)\n"
    )
    done = run([sys.executable, "go.py"], cwd=shell.folder, env=shell.env)
    assert done.stderr.splitlines()[-1] == "shop today: completed: 3 of 3 steps succeeded"
    assert len(done.stderr.splitlines()) == 7
