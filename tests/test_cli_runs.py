"""Runs and dead letters from a shell, as a person uses them: what is printed, what comes next, and the exit code."""

from __future__ import annotations

import contextlib
import html
import json
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

import forked
import outlast
from forked import Forked
from outlast.cli.running import exit_code
from outlast.pipeline.lease import let_go, take
from outlast.store import open_store
from sharing import Process
from shells import Shell
from tables import table

APP = """
import sys
from dataclasses import dataclass
import outlast

once = outlast.RetryPolicy(max_attempts=1)


@dataclass
class Review:
    id: int
    text: str


@outlast.stage(retry=once)
def parse(row: dict) -> Review:
    if not row["text"]:
        raise outlast.Skip("empty review")
    return Review(int(row["id"]), row["text"])


@outlast.stage(retry=once, guard=None)
def label(review: Review) -> dict:
    if review.text == "wait":
        print("waiting", flush=True)
        sys.stdin.read()
    if "bad" in review.text:
        raise ValueError(f"cannot label {review.text!r}")
    return {"id": review.id, "label": review.text.upper()}


reviews = outlast.Pipeline("reviews", parse, label, failure_check_interval=20)
strange = "no pipeline"
"""


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path, {"app.py": APP})


# --- run ---


def test_a_run_reports_what_it_came_to_and_what_to_do_next(shell):
    """S3-07, S3-08, D-13: completed with dead letters is completed, and says so; counts, groups, and the commands to go on."""
    shell.write(*["good"] * 40, "", "bad 1", "bad 2")
    done = shell("run app.py:reviews --input in.jsonl --output out.jsonl --run-key today --item-key id")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["reviews", "today", "completed"]
    assert "43 items read   40 succeeded   1 skipped   2 dead letters" in lines
    (group,) = shell.json("dlq groups")
    assert (group["count"], group["stage"], group["error_class"]) == (2, "label", "data_error")
    assert done.stderr.splitlines() == [
        f"Inspect: outlast dlq list --group {group['id']} --run today",
        f"After the fix: outlast dlq replay --group {group['id']} --run today",
    ]
    assert len((shell.folder / "out.jsonl").read_text().splitlines()) == 40


def labels(shell: Shell) -> list[tuple[int, str]]:
    with contextlib.closing(sqlite3.connect(shell.folder / "shop.db")) as database:
        return database.execute("select id, label from labels order by id").fetchall()


def test_a_table_is_the_output_of_runs_resumes_and_replays(shell):
    """D-25: the same addresses for all of them; rows of a replay are at home, and the key that is on record updates those that are there."""
    with contextlib.closing(sqlite3.connect(shell.folder / "shop.db")) as database:
        database.execute("create table labels (id integer primary key, label text)")
        database.execute("insert into labels values (0, 'old')")
        database.commit()
    shell.write("good", "bad", *["fine"] * 40)
    done = shell(
        "run app.py:reviews --input in.jsonl --output sqlite:///shop.db#labels:id --run-key today --item-key id"
    )
    assert (done.returncode, len(labels(shell)), labels(shell)[0]) == (0, 41, (0, "GOOD"))
    mended = APP.replace('if "bad" in', 'if "worse" in')
    (shell.folder / "app.py").write_text(mended)
    shell.write("good", "bad", *["fine"] * 40, "more")
    assert shell("resume today").returncode == 0  # as on record
    with contextlib.closing(sqlite3.connect(shell.folder / "shop.db")) as database:  # the key is needed, and not said
        database.execute("insert into labels values (1, 'somebody')")
        database.commit()
    done = shell("dlq replay --run today --output sqlite:///shop.db#labels")
    assert (done.returncode, labels(shell)[1], len(labels(shell))) == (0, (1, "BAD"), 43)
    assert shell.json("runs show today")["why"] == "43 of 43 items succeeded"


def test_an_address_with_a_password_is_given_again_and_is_on_no_record(shell, postgres_server):
    """D-25: the same database with another password is the same sink; without the address the letters stay open, and the way is said."""
    server = postgres_server.database("labels")
    server.execute("create table labels (id integer primary key, label text)")

    def rows():
        return server.execute("select count(*), min(label) filter (where id = 1) from labels").strip()

    def at(password):
        return re.sub("//[^@]*@", f"//postgres:{password}@", server.dsn) + "#labels"

    shell.write("good", "bad", *["fine"] * 40)
    command = "run app.py:reviews --input in.jsonl --run-key today --item-key id --output"
    assert (shell(f"{command} '{at('hunter2')}:id'").returncode, rows()) == (0, "41|")
    (shell.folder / "app.py").write_text(APP.replace('if "bad" in', 'if "worse" in'))
    done = shell("resume today")
    assert (done.returncode, "give the same sink" in done.stderr) == (2, True)
    done = shell("dlq replay --run today")
    assert ("in a shell with --output ADDRESS#TABLE" in done.stdout, rows()) == (True, "41|")
    server.execute("insert into labels values (1, 'somebody')")  # the key is on record, and not said
    assert (shell(f"dlq replay --run today --output '{at('other1')}'").returncode, rows()) == (0, "42|BAD")
    assert shell.json("runs show today")["why"] == "42 of 42 items succeeded"
    kept = b"".join(path.read_bytes() for path in shell.folder.rglob("*.db*"))
    assert (b"hunter2" in kept, b"other1" in kept, b"labels" in kept) == (False, False, True)


@pytest.mark.parametrize("wrong", ["sqlite:///shop.db", "sqlite:///shop.db#", "mysql://ann:hunter2@db/shop#labels"])
def test_an_address_that_names_no_table_is_refused_before_anything_begins(shell, wrong):
    """Every mistake at once, and no secret in it."""
    shell.write("good")
    for line in (
        f"run app.py:reviews --input in.jsonl --output '{wrong}'",
        f"dlq reprocess app.py:reviews --output '{wrong}'",
    ):
        done = shell(line)
        assert (done.returncode, "--output: expected" in done.stderr, "hunter2" in done.stderr) == (2, True, False)


def test_a_run_as_json_is_one_document(shell):
    """C-15: for programs: status, outcome, why, counts, groups and the exit code."""
    shell.write("good", "bad", *["good"] * 40)
    done = shell("run app.py:reviews --input in.jsonl --run-key today --json")
    document = json.loads(done.stdout)
    assert done.stderr == ""
    assert (document["status"], document["outcome"], document["exit_code"]) == ("completed", "partial", 0)
    assert document["counts"] == {
        "total": 42, "succeeded": 41, "skipped": 0, "dlq": 1, "failed": 0, "degraded": 0, "pending": 0, "source_exhausted": True,
    }  # fmt: skip
    assert [group["count"] for group in document["groups"]] == [1]
    assert [stage["name"] for stage in document["stages"]] == ["parse", "label"]
    assert document["why"]


@pytest.mark.parametrize(
    ("good", "bad", "options", "code"),
    [
        (5, 0, "", 0),
        (100, 1, "", 0),
        (100, 1, "--strict", 3),
        (5, 3, "", 3),
        (2, 8, "", 1),
    ],
)
def test_the_exit_code_says_what_a_run_came_to(shell, good, bad, options, code):
    """C-15, D-13, D-14: 0 completed, 1 failed, 3 partial or dead letters under --strict, 4 budget exceeded."""
    shell.write(*[f"bad {chr(65 + number)}" for number in range(bad)], *["good"] * good)
    done = shell(f"run app.py:reviews --input in.jsonl {options}")
    assert done.returncode == code, done.stdout + done.stderr


def test_a_run_that_exceeds_its_failure_budget_exits_with_4(shell):
    """D-14, C-16, S3-30: with input left it stops, and says the rate and the budget."""
    shell.write(*["good", "bad"] * 1_000)
    done = shell("run app.py:reviews --input in.jsonl")
    assert done.returncode == 4
    assert "exceeds the budget of 10.0%" in done.stdout


def test_every_status_has_its_exit_code():
    """D-13: also the ones that are hard to bring about."""

    def code(status: str, reason: str | None = None) -> int:
        counts = SimpleNamespace(dlq=0, failed=0)
        return int(exit_code(SimpleNamespace(status=status, reason=reason, error=None, counts=counts)))

    assert [
        code(status) for status in ("completed", "partial_success", "failed", "interrupted", "paused", "cancelled")
    ] == [0, 3, 1, 130, 130, 130]
    assert code("failed", "failure_budget_exceeded") == 4


def test_everything_that_is_wrong_is_said_at_once(shell):
    """Target, input, output and options; exit code 2, nothing has run (S0-29)."""
    done = shell(
        "run app.py:reviws --input nothing.jsonl --output no/where.jsonl --on-change perhaps --on-item-error hide --run-key ' '"
    )
    assert (done.returncode, done.stdout) == (2, "")
    problems = done.stderr.splitlines()
    assert len(problems) == 6
    for expected in (
        "expected --on-item-error to be dlq, collect or stop, got: 'hide'.",
        "expected --on-change to be stop, keep or redo, got: 'perhaps'.",
        "--input: expected files at 'nothing.jsonl', got: none.",
        "Make it first: mkdir -p no",
        "expected --run-key to be a name",
        "expected app.py to have 'reviws'. Did you mean 'reviews'? It has the pipeline reviews.",
    ):
        assert any(expected in problem for problem in problems), expected
    assert not (shell.folder / ".outlast").exists()


@table(
    ("target", "message"),
    [
        ("ap.py:reviews", "to be a Python file, but there is none in"),
        ("ap.py:reviews", "Did you mean 'app.py'?"),
        ("app.py:strange", "expected app.py:strange to be a Pipeline, got: a str. It has the pipeline reviews."),
        ("app.py:Review", "got: the class Review."),
        ("app.py:parse", "got: a Stage."),
        ("nowhere.at.all:reviews", "there is no nowhere."),
        ("app:nothing", "expected app to have 'nothing'."),
        ("broken.py:reviews", "broken.py cannot be loaded: ZeroDivisionError: division by zero (line 2 of broken.py)."),
        ("needs.py:reviews", "needs.py cannot be loaded: ModuleNotFoundError: No module named 'not_installed'"),
        ("syntax.py:reviews", "syntax.py cannot be loaded: SyntaxError:"),
        ("two.py", "expected two.py to say which pipeline, as in two.py:"),
        ("not a module", "expected a file or a module with the name of a pipeline"),
    ],
)
def test_a_target_that_cannot_be_found_is_explained(shell, target, message):
    """Missing files and names with the nearest right one, other things than pipelines, code that does not load (S0-29)."""
    shell.write("good")
    (shell.folder / "broken.py").write_text("x = 1\nx / 0\n")
    (shell.folder / "needs.py").write_text("import not_installed\n")
    (shell.folder / "syntax.py").write_text("def (:\n")
    (shell.folder / "two.py").write_text(
        "from app import reviews, parse, label\nimport outlast\nother = outlast.Pipeline('other', parse)\n"
    )
    done = shell(f"run {shlex.quote(target)} --input in.jsonl")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("target", ["app.py:reviews", "app:reviews", "app.py", "./app.py:reviews"])
def test_a_target_is_a_file_or_a_module(shell, target):
    """D-15: with its neighbours importable; without a name if there is only one pipeline."""
    shell.write("good")
    assert shell(f"run {target} --input in.jsonl").returncode == 0


def test_the_store_is_an_option_or_the_environment(shell):
    """C-28: --store wins over OUTLAST_STORE, and a program that names its own store is not overruled in silence."""
    shell.write("good")
    assert shell("run app.py:reviews --input in.jsonl --store sqlite:///a.db", OUTLAST_STORE="b.db").returncode == 0
    assert shell("run app.py:reviews --input in.jsonl", OUTLAST_STORE="b.db").returncode == 0
    assert [len(shell.json(f"runs list --store {name}")) for name in ("a.db", "b.db")] == [1, 1]
    (shell.folder / "own.py").write_text(
        APP.replace("label, failure", 'label, app=outlast.App("shop", store="own.db"), failure')
    )
    done = shell("run own.py:reviews --input in.jsonl --store a.db")
    assert (done.returncode, "leave one of them out" in done.stderr) == (2, True)
    assert shell("run own.py:reviews --input in.jsonl").returncode == 0
    assert shell.json("runs list --store own.db")[0]["pipeline"] == "reviews", (
        "the only app of a store need not be named"
    )


def test_all_of_it_works_on_postgresql_by_changing_one_address(shell, postgres_server):
    """C-28: run, groups, edit, replay and runs; and no password in what is printed."""
    shell.env["OUTLAST_STORE"] = postgres_server.database("shell").dsn
    (letter,) = failed(shell, "bad")
    assert shell.json("dlq groups")[0]["count"] == 1
    assert shell(f'dlq edit {letter["id"]} --payload \'{{"id": 40, "text": "good"}}\' --reason typo').returncode == 0
    assert shell(f"dlq replay {letter['id'][:9]}").returncode == 0
    assert shell.json("dlq stats")[0]["status"] == "resolved"
    assert [run["status"] for run in shell.json("runs list")] == ["completed", "completed"]


def test_a_password_in_the_address_is_not_printed(shell):
    """Not when the store cannot be reached (S0-41)."""
    done = shell("runs list --store postgresql://ann:hunter2@127.0.0.1:1/shop?connect_timeout=1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "127.0.0.1" in done.stderr
    assert "hunter2" not in done.stderr


def test_a_terminal_without_line_drawing_still_gets_its_report(shell):
    """What it cannot show becomes a question mark, and nothing breaks (S3-05)."""
    shell.write("good")
    done = shell("run app.py:reviews --input in.jsonl --run-key today", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 item read   1 succeeded" in done.stdout


def test_progress_in_a_pipe_is_plain_lines(shell):
    """No escape codes where nobody can see them (S3-05)."""
    shell.write(*["good"] * 200)
    done = shell("run app.py:reviews --input in.jsonl --run-key today --progress")
    assert "\x1b" not in done.stdout + done.stderr
    assert done.returncode == 0


# --- interrupted, resumed, paused, cancelled ---


def winding_down(process: subprocess.Popen[str]) -> str:
    """What a run with --progress has printed on stderr once it has noticed a request."""
    seen = ""
    while "winding down: 1 attempt may end" not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen += line
    return seen


def interrupted(shell: Shell, key: str = "two words") -> subprocess.CompletedProcess[str]:
    """A run that was interrupted by Ctrl-C in its first item, with others still to do."""
    (shell.folder / "app.py").write_text(APP.replace("guard=None", "concurrency=1"))
    shell.write("wait", *["good"] * 30, "bad")
    with shell.start(
        f"run app.py:reviews --input in.jsonl --output out.jsonl --run-key '{key}' --item-key id --progress"
    ) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        winding_down(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate("", timeout=200)
    return subprocess.CompletedProcess("", process.returncode, out, err)


def test_a_run_that_is_started_with_sigint_ignored_ends_at_sigterm(shell):
    """A background job of a shell, nohup, some CI systems: SIGINT does nothing there (D-21), and SIGTERM what it always does."""
    (shell.folder / "app.py").write_text(APP.replace("guard=None", "concurrency=1"))
    shell.write("wait", *["good"] * 30)
    ignored = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "outlast.cli"]
    command = [*ignored, *shlex.split("run app.py:reviews --input in.jsonl --run-key today --progress")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=shell.folder, env=shell.env, **pipes) as process:
        assert process.stdout.readline() == "waiting\n"
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
        winding_down(process)
        out, err = process.communicate("", timeout=200)
    assert (process.returncode, "interrupted" in out, "Go on: outlast resume today" in err) == (143, True, True)


def test_ctrl_c_leaves_a_resumable_run_and_says_how(shell):
    """D-13, D-17: exit code 130, the exact command, and that command finishes the run: every item once."""
    done = interrupted(shell)
    assert done.returncode == 130
    assert "interrupted" in done.stdout
    (command,) = [
        line.removeprefix("Go on: outlast ") for line in done.stderr.splitlines() if line.startswith("Go on: ")
    ]
    assert command == "resume 'two words'"
    shell.folder.joinpath("app.py").write_text(APP.replace('review.text == "wait"', "False"))
    resumed = shell(command)
    assert resumed.returncode == 0, resumed.stderr
    ids = [json.loads(line)["id"] for line in (shell.folder / "out.jsonl").read_text().splitlines()]
    assert sorted(ids) == [*range(31)]
    (run,) = shell.json("runs list")
    assert (run["status"], run["passes"], run["counts"]["dlq"]) == ("completed", 2, 1)


def test_sigterm_winds_down_and_exits_with_143(shell):
    """D-21: as a container is stopped; what was under way has ended, the report is there, and the command that goes on."""
    (shell.folder / "app.py").write_text(APP.replace("guard=None", "concurrency=1"))
    shell.write("wait", *["good"] * 3)
    with shell.start("run app.py:reviews --input in.jsonl --run-key today --item-key id --progress") as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
        winding_down(process)
        out, err = process.communicate("", timeout=200)
    assert process.returncode == 143, err
    assert ("interrupted" in out, "Go on: outlast resume today" in err) == (True, True)
    shell.folder.joinpath("app.py").write_text(APP.replace('review.text == "wait"', "False"))
    assert shell("resume today").returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("texts", "code", "status"), [(["good", "wait"], 0, "completed"), (["bad", "wait"], 3, "partial_success")]
)
def test_a_signal_in_the_last_item_does_not_change_the_exit_code(shell, number, texts, code, status):
    """130 and 143 mean that something was left undone; here all items have ended, and there is nothing to go on with."""
    shell.write(*texts)
    with shell.start("run app.py:reviews --input in.jsonl --run-key today --item-key id --json") as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(number)
        out, err = process.communicate("", timeout=200)
    document = json.loads(out)
    assert (process.returncode, document["exit_code"], document["status"]) == (code, code, status), document
    assert "Go on" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_last_item_of_a_replay_does_not_change_the_exit_code(shell, number):
    """As for `run`."""
    shell.write("good", "bad", "good")
    assert shell("run app.py:reviews --input in.jsonl --run-key today --item-key id").returncode == 3
    waits = APP.replace('if "bad" in review.text:', "if False:").replace(
        'review.text == "wait"', 'review.text == "bad"'
    )
    shell.folder.joinpath("app.py").write_text(waits)
    with shell.start("dlq replay --run today --json") as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(number)
        out, _ = process.communicate("", timeout=200)
    assert (process.returncode, json.loads(out)["status"]) == (0, "completed")


def test_resume_knows_how_the_run_was_started_from_anywhere(shell, tmp_path):
    """D-13: also in another folder; an unknown run and a program's own run are explained."""
    interrupted(shell, "today")
    shell.folder.joinpath("app.py").write_text(APP.replace('review.text == "wait"', "False"))
    store = f"--store {shell.folder}/.outlast/outlast.db"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = Shell(elsewhere, {"app.py": APP})
    unknown = other(f"resume yesterday {store}")
    assert (unknown.returncode, "expected the id or the key of a run, got: 'yesterday'" in unknown.stderr) == (2, True)
    (elsewhere / "program.py").write_text(APP + "reviews.run([{'id': 1, 'text': 'good'}], run_key='mine')\n")
    forked.run([sys.executable, "program.py"], cwd=elsewhere, env=other.env, check=True, timeout=200)
    mine = other("resume mine")
    assert mine.returncode == 2
    assert "was not started by a command: name --target and --input too" in mine.stderr
    assert other(f"resume today {store}").returncode == 0


def test_pause_reaches_a_run_under_way(shell):
    """D-13: the run hears it with its next beat, lets the item under way end, begins no other, exits with 130, and can be resumed."""
    (shell.folder / "app.py").write_text(APP.replace("guard=None", "concurrency=1"))
    shell.write("wait", *["good"] * 5)
    with shell.start("run app.py:reviews --input in.jsonl --run-key today --progress") as process:
        assert process.stdout.readline() == "waiting\n"
        assert "process" in shell.json("runs show today")["running_at"]
        assert shell.json("pause today")["wanted"] == "pause"
        winding_down(process)
        out, _ = process.communicate("", timeout=200)
    assert process.returncode == 130
    assert "paused" in out
    (run,) = shell.json("runs list")
    assert (run["status"], run["counts"]["succeeded"] < 6) == ("paused", True)
    assert shell("resume today").returncode == 0


def test_a_run_that_nobody_runs_is_cancelled_at_once_and_not_paused(shell):
    """D-13: there is nobody to ask; what has ended cannot be cancelled."""
    interrupted(shell, "today")
    assert "no process runs it now" in shell("pause today").stderr
    assert shell("cancel today").stdout == "Cancelled today of reviews.\n"
    again = shell("cancel today")
    assert (again.returncode, again.stderr) == (2, "today of reviews is cancelled: there is nothing to cancel.\n")
    assert shell("resume today").returncode == 2


def test_a_run_whose_process_was_killed_is_told_as_interrupted(shell):
    """D-13: it could not say so itself; lists, filters, the report and its JSON use one word, and it goes on or is cancelled."""
    shell.write("good", "wait")
    with shell.start("run app.py:reviews --input in.jsonl --run-key today") as process:
        assert process.stdout.readline() == "waiting\n"
        assert [run["status"] for run in shell.json("runs list --status running")] == ["running"]
        process.kill()
    shown = shell.json("runs show today")
    assert (shown["status"], shown["running_at"]) == ("interrupted", None)
    assert shown["why"] == "interrupted: the process that ran it is gone, or cannot reach the store."
    assert shell.json("runs list --status running") == []
    assert [run["status"] for run in shell.json("runs list --status interrupted")] == ["interrupted"]
    assert [run["status"] for run in shell.json("runs list")] == ["interrupted"]
    report = shell.json("runs report today")
    assert (report["run"]["status"], report["verdict"].partition(".")[0]) == (
        "interrupted",
        "The run was interrupted and can be resumed",
    )
    assert "is interrupted, and no process runs it" in shell("pause today").stderr
    assert shell("cancel today").returncode == 0


def test_a_failed_run_with_something_left_goes_on_or_is_cancelled(shell):
    """`runs show` says how it goes on; it is cancelled as any run that has not ended. One with nothing left is not."""
    shell.write("good", "bad", *["good"] * 40)
    failed = "import outlast\n" + (shell.folder / "app.py").read_text() + "\nimport sys\n"
    (shell.folder / "program.py").write_text(
        failed + 'reviews.run("in.jsonl", run_key=sys.argv[1], item_key="id", on_item_error=sys.argv[2], check=False)\n'
    )
    for key, then in (("stopped", "stop"), ("ended", "collect")):
        command = [sys.executable, "program.py", key, then]
        forked.run(command, cwd=shell.folder, env=shell.env, check=True, timeout=200)
    (left, over) = (shell.json(f"runs show {key}") for key in ("stopped", "ended"))
    assert (left["status"], left["counts"]["succeeded"] < 41) == ("failed", True)
    how = "go on: start its program again, with run_key='stopped'"  # a bare resume would be refused
    assert how in shell("runs show stopped").stderr
    assert "resume" not in shell("runs show ended").stderr
    assert shell("cancel stopped").stdout == "Cancelled stopped of reviews.\n"
    assert shell.json("runs show stopped")["status"] == "cancelled"
    refused = shell("cancel ended")
    assert (refused.returncode, refused.stderr) == (
        2,
        f"ended of reviews is {over['status']}: there is nothing to cancel.\n",
    )


# --- killed ---

# Put in front of an app: its process kills itself at a moment that KILL names, counted in batches that have items: "half 2" writes half of the
# second one's outputs, "before 2" has them all in the sink, "after 2" has it on record.
KILLED = """
import os, signal
import outlast
from outlast.pipeline.plan import Tuning
from outlast.work.writer import BatchLimits
from outlast.store import Store

moment, number = os.environ.get("KILL", "never 0").split()
write, pwrite, batch_number = Store.write, os.pwrite, 1
outlast.Pipeline._tuning = Tuning(batches=BatchLimits(entries=10))


def at(now):
    return (now, batch_number) == (moment, int(number))


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def dying_write(store, lease, batch):
    global batch_number
    if batch.items and at("before"):
        die()
    write(store, lease, batch)
    if batch.items and at("after"):
        die()
    batch_number += bool(batch.items)


def dying_pwrite(file, data, offset):
    if at("half"):
        pwrite(file, data[: len(data) // 2], offset)
        die()
    return pwrite(file, data, offset)


Store.write, os.pwrite = dying_write, dying_pwrite
"""


def kill(shell: Shell, line: str, moment: str) -> None:
    done = shell(line, KILL=moment)
    assert done.returncode == -signal.SIGKILL, done.stderr


def written(shell: Shell) -> list[int]:
    """The ids in the sink, a half line included as an error."""
    return sorted(json.loads(line)["id"] for line in (shell.folder / "out.jsonl").read_text().splitlines())


def test_a_resume_that_is_killed_can_be_resumed(shell):
    """D-13, C-22: with kill -9, at one moment after the other; in the end nothing is lost, doubled or wrong."""
    shell.write(*["good"] * 58, "bad", "")
    (shell.folder / "app.py").write_text(KILLED + APP)
    kill(shell, "run app.py:reviews --input in.jsonl --output out.jsonl --run-key today --item-key id", "after 1")
    kill(shell, "resume today", "half 2")
    kill(shell, "resume today", "before 2")
    done = shell("resume today --json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert written(shell) == [*range(58)]
    assert (told["status"], told["counts"]["succeeded"], told["counts"]["skipped"], told["counts"]["dlq"]) == (
        "completed",
        58,
        1,
        1,
    )


def test_a_replay_that_is_killed_goes_on_under_its_key(shell):
    """D-25, C-22: with kill -9, at one moment after the other; in the end each letter is resolved, its output in the sink of its run once."""
    shell.write(*["good"] * 10, *["bad"] * 50)
    (shell.folder / "app.py").write_text(APP.replace("failure_check_interval=20", "failure_budget=1.0"))
    shell("run app.py:reviews --input in.jsonl --output out.jsonl --run-key today --item-key id")
    assert written(shell) == [*range(10)]
    (shell.folder / "app.py").write_text(KILLED + APP.replace('"bad" in review.text', "False"))
    kill(shell, "dlq replay --pipeline reviews --run-key mend", "half 2")
    kill(shell, "dlq replay --run-key mend", "before 2")
    done = shell("dlq replay --run-key mend")
    assert done.returncode == 0, done.stderr
    assert written(shell) == [*range(60)]
    with contextlib.closing(open_store(str(shell.folder / ".outlast" / "outlast.db"), app="default")) as store:
        run = store.find_run("reviews", "today")
        assert (run.status, run.counts.succeeded, run.counts.dlq, run.replayed_by) == ("completed", 60, 0, None)
        assert [(stat.status, stat.count) for stat in store.stats()] == [("resolved", 50)]


# --- what is on record ---


def test_runs_items_and_attempts_are_listed(shell):
    """S3-05, S3-20, S3-22, S3-23: every item with why it ended so, every attempt with its outcome and error."""
    shell.write("good", "", "bad", "good")
    shell("run app.py:reviews --input in.jsonl --run-key today --item-key id")
    (run,) = shell.json("runs list --status partial_success")
    assert (run["run_key"], run["counts"]["total"]) == ("today", 4)
    assert shell.json("runs list --status failed") == []
    items = shell.json(f"runs items {run['id'][:8]}")
    assert [(item["key"], item["status"], item["stage"], item["reason"]) for item in items] == [
        ("0", "succeeded", "label", None),
        ("1", "skipped", "parse", "empty review"),
        ("2", "dlq", "label", "label: ValueError: cannot label 'bad'"),
        ("3", "succeeded", "label", None),
    ]
    assert [item["key"] for item in shell.json("runs items today --status succeeded --after 0 --limit 5")] == ["3"]
    attempts = shell.json("runs attempts today --item 2")
    assert [(row["stage"], row["number"], row["outcome"], row["error_class"]) for row in attempts] == [
        ("parse", 1, "success", None),
        ("label", 1, "failed", "data_error"),
    ]
    outputs = shell("runs outputs today").stdout.splitlines()
    assert [json.loads(line)["id"] for line in outputs] == [0, 3]
    shown = shell("runs show today").stdout
    assert "2 succeeded   1 skipped   1 dead letter" in shown
    events = shell.json("events --run today")
    assert [event["name"] for event in events if event["name"].startswith("run")] == [
        "run_command",
        "run_started",
        "run_finished",
    ]


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (80, "run pipeline key status items succeeded dead"),
        (200, "run pipeline key status items succeeded skipped dead started took"),
    ],
)
def test_tables_fit_the_terminal(shell, width, columns):
    """Columns that matter less go first; no line is longer than the terminal (S3-05)."""
    shell.write("good", "bad", *["good"] * 40)
    shell("run app.py:reviews --input in.jsonl --run-key today --item-key id")
    listed = shell("runs list", COLUMNS=str(width)).stdout.splitlines()
    assert listed[0].split() == columns.split()
    for line in (
        "runs list",
        "runs show today",
        "runs items today",
        "runs attempts today",
        "dlq list",
        "dlq groups",
        "dlq stats",
        "events",
    ):
        done = shell(line, COLUMNS=str(width))
        assert done.returncode == 0
        assert max(len(row) for row in done.stdout.splitlines()) <= width, line
    narrow = shell("runs attempts today", COLUMNS="60").stdout.splitlines()
    assert narrow[0].split() == ["position", "stage", "attempt", "outcome", "error"]  # how it ended is why one looks
    assert max(len(row) for row in narrow) <= 60


def test_without_a_store_nothing_is_made_by_looking(shell):
    """C-28: it says that nothing has run here, and how to begin."""
    done = shell("runs list")
    assert done.returncode == 2
    assert "nothing has run here yet" in done.stderr
    assert not (shell.folder / ".outlast").exists()
    wrong = shell("runs list --store mysql://root:hunter2@db/x")
    assert (wrong.returncode, "hunter2" in wrong.stderr) == (2, False)


# --- dead letters ---


def failed(shell: Shell, *texts: str) -> list[dict]:
    shell.write(*["good"] * 40, *texts)
    shell("run app.py:reviews --input in.jsonl --run-key today --item-key id")
    return shell.json("dlq list")[::-1]


@pytest.fixture
def failed_before(shell):
    """A shell where a run has left a dead letter."""
    failed(shell, "bad")
    return shell


def test_a_dead_letter_is_shown_masked_and_revealed_on_demand(shell):
    """C-14: payloads are the user's own; what looks like a secret is not printed unless asked for (S0-41)."""
    (letter,) = failed(shell, "bad password=hunter2")
    for line in (
        "dlq list --json",
        f"dlq show {letter['id']}",
        f"dlq show {letter['id']} --json",
        "dlq list",
        "dlq groups",
    ):
        done = shell(line)
        assert (done.returncode, "hunter2" in done.stdout) == (0, False), line
    revealed = json.loads(shell(f"dlq show {letter['id'][:10]} --reveal --json").stdout)
    assert revealed["payload"] == {"id": 40, "text": "bad password=hunter2"}
    assert [row["outcome"] for row in revealed["history"]] == ["success", "failed"]
    text = shell(f"dlq show {letter['id'][:10]}")
    assert "failed at label" in text.stdout
    assert text.stderr == f"Send it again: outlast dlq replay {letter['id'][:12]}\n"


CHECKPOINTED = """
from dataclasses import dataclass
import outlast


@dataclass
class Account:
    id: int
    password: str


@outlast.stage(checkpoint=True)
def parse(row):
    return {"id": row["id"], "password": row["text"]}


@outlast.stage
def load(row):
    return Account(**row)


@outlast.stage
def send(account):
    raise ValueError("no such account")


accounts = outlast.Pipeline("accounts", parse, load, send)
"""


def test_what_a_dead_letter_keeps_of_earlier_stages_is_shown_on_demand(tmp_path):
    """C-14: the item as it was read, and its checkpoint, are payloads too, which encoding does not mask (S0-41)."""
    shell = Shell(tmp_path, {"app.py": CHECKPOINTED})
    shell.write("hunter2hunter2")
    shell("run app.py:accounts --input in.jsonl")
    (letter,) = shell.json("dlq list")
    shown, revealed = (json.loads(shell(f"dlq show {letter['id']} --json{how}").stdout) for how in ("", " --reveal"))
    assert {*revealed["metadata"]} - {*shown["metadata"]} == {"source", "earlier"}
    assert revealed["metadata"]["earlier"]["stage"] == "load"
    assert shown["payload"]["password"] == "***"
    everything = json.dumps(shown)
    assert [
        each for each in (revealed["metadata"]["source"], revealed["metadata"]["earlier"]["data"]) if each in everything
    ] == []


def test_outputs_are_shown_masked_and_revealed_on_demand(shell):
    """C-14: as payloads are, in lines and as one document (S0-41)."""
    shell.write("password=hunter2")
    shell("run app.py:reviews --input in.jsonl --run-key today")
    printed = [shell(f"runs outputs today{how}").stdout for how in ("", " --json", " --reveal", " --json --reveal")]
    assert ["HUNTER2" in text for text in printed] == [False, False, True, True]
    assert json.loads(printed[0]) == json.loads(printed[1])[0] == {"id": 0, "label": "PASSWORD=***"}


def test_edit_and_replay_from_a_shell(shell):
    """S3-27, S4-23: mend one payload, send it again; the code is where the run found it."""
    first, second = failed(shell, "bad 1", "bad 2")
    wrong = shell(f"dlq edit {first['id']} --payload '{{' --reason typo")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    edited = shell(f"dlq edit {first['id'][:8]} --file - --reason typo", stdin='{"id": 40, "text": "good"}')
    assert edited.returncode == 0, edited.stderr
    done = shell(f"dlq replay {first['id'][:8]} --json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"]["succeeded"] == 1
    again = shell(f"dlq replay {second['id']}")
    assert again.returncode == 1
    assert {stat["status"]: stat["count"] for stat in shell.json("dlq stats")} == {"open": 1, "resolved": 1}
    assert shell.json("dlq list --status all --text 'bad 2'")[0]["replays"] == 1
    shell.folder.joinpath("app.py").write_text(APP.replace('ValueError(f"cannot label', 'TypeError(f"no label for'))
    shell(f"dlq replay {second['id']}")
    said = shell(f"dlq show {second['id']}").stdout
    assert re.search(r"^error +TypeError \(\w+\): no label for 'bad 2'$", said, re.MULTILINE)
    assert said.count(": failed at label with ValueError (data_error): cannot label 'bad 2'") == 2
    assert said.count(" in the replay replay-") == 2
    history = shell.json(f"dlq show {second['id']}")["history"]
    assert [attempt["error_type"] for attempt in history] == [None, "ValueError", "ValueError", "TypeError"]
    assert len({attempt["run"] for attempt in history}) == 3
    shape = {*shell.json(f"runs attempts {history[0]['run']}")[0], "run"}
    assert all({*attempt} == shape for attempt in history)
    assert [(attempt["stage"], attempt["pass"]) for attempt in history[:2]] == [("parse", 1), ("label", 1)]
    assert [(group["stage"], group["error_type"]) for group in shell.json("dlq groups")] == [("label", "TypeError")]


def test_a_replay_of_nothing_is_no_mistake_and_says_the_truth(shell):
    """D-26: with letters that are open and do not fit, by any mark, and before the code is asked for; what is wrong stays wrong."""
    (letter,) = failed(shell, "bad 1")
    said = "Replayed 0: no open dead letter of this app fits.\n"
    for line in (
        "dlq replay --older-than 1",
        "dlq replay --pipeline typo",
        f"dlq replay {letter['id']} --text elsewhere",
        "dlq reprocess app.py:reviews --text elsewhere",
    ):
        done = shell(line)
        assert (done.returncode, done.stdout, done.stderr) == (0, said, ""), line
    assert shell.json("dlq replay --text elsewhere") == {"replayed": 0, "exit_code": 0}
    assert shell("dlq replay").returncode == shell("dlq reprocess app.py:reviews --stage labl").returncode == 2
    heading = shell("dlq list --status all").stdout.splitlines()[0].split("  ")
    assert "last attempt" in [word.strip() for word in heading]


def test_a_failing_canary_is_told(shell):
    """How many failed again, how many were left; then the code is mended and all of them follow (S3-27)."""
    failed(shell, *(f"bad {letter}" for letter in "abcdef"))
    (group,) = shell.json("dlq groups")
    stopped = shell(f"dlq replay --group {group['id']} --canary 2")
    assert stopped.returncode == 1
    assert "canary: 2 of 2 failed again, so the other 4 were left as they are" in stopped.stdout
    shell.folder.joinpath("app.py").write_text(APP.replace('"bad" in review.text', "False"))
    done = shell("dlq reprocess app.py:reviews --stage label --canary 2 --output mended.jsonl")
    assert done.returncode == 0, done.stderr
    assert len(shell.folder.joinpath("mended.jsonl").read_text().splitlines()) == 6
    assert "6 items read   6 succeeded" in done.stdout
    assert shell("dlq list").stdout == "No dead letters.\n"
    none = shell("dlq reprocess app.py:reviews")
    assert (none.returncode, none.stdout) == (0, "Replayed 0: no open dead letter of this app fits.\n")


def advised(done: subprocess.CompletedProcess[str], said: str) -> str:
    """The one command behind these words."""
    (command,) = [line.partition(said)[2] for line in done.stderr.splitlines() if line.startswith(said)]
    return command.removeprefix("outlast ")


@pytest.mark.parametrize("canary", ["", " --canary 2"])
def test_what_is_advised_after_a_failed_replay_mends_its_letters(shell, canary):
    """D-13, D-25: a resume of it tries nothing twice and says so; a new replay of the same letters does the work."""
    failed(shell, *(f"bad {letter}" for letter in "abcdef"))
    stopped = shell(f"dlq replay --stage label{canary}")
    said = "Once the cause is gone, replay what is still open: "
    command = advised(stopped, said)
    assert command == f"dlq replay --pipeline reviews --stage label{canary}"
    assert "outlast resume" not in stopped.stderr
    key = shell.json("runs list --limit 1")[0]["run_key"]
    assert advised(shell(f"runs show {key}"), said) == command
    shell.folder.joinpath("app.py").write_text(APP.replace('"bad" in review.text', "False"))
    again = shell(f"resume {key}")
    assert (again.returncode, advised(again, said)) == (1, command)
    tried = "canary: 2 of 2 had failed, so the other 4" if canary else "0 of 6 items succeeded, 6 failed again"
    assert tried in again.stdout
    assert "Nothing was tried now: this replay tries no letter twice." in again.stdout.replace("\n", " ")
    done = shell(command)
    assert (done.returncode, "6 items read   6 succeeded" in done.stdout) == (0, True), done.stderr
    assert shell("dlq list").stdout == "No dead letters.\n"


@pytest.mark.parametrize("canary", ["", " --canary 2"])
@pytest.mark.parametrize("target", ["", " --target app.py:reviews"])
def test_what_is_advised_after_a_replay_that_failed_differently_finds_what_is_open(shell, canary, target):
    """D-13: the letters are in another group by then, all of them or the canary; what chose the code is said again."""
    failed(shell, *(f"bad {letter}" for letter in "abcdef"))
    (group,) = shell.json("dlq groups")
    run = shell.json("runs list --limit 1")[0]["id"]
    shell.folder.joinpath("app.py").write_text(APP.replace('"bad" in review.text', "1 / 0.0"))
    stopped = shell(f"dlq replay --group {group['id']} --run {run[:12]}{canary}{target}")
    assert stopped.returncode == 1
    assert "Dead letters that failed differently are open in another group." in stopped.stderr.splitlines()
    command = advised(stopped, "Once the cause is gone, replay what is still open: ")
    assert command == f"dlq replay --run {run}{canary}{target}"
    shell.folder.joinpath("app.py").write_text(APP.replace('"bad" in review.text', "False"))
    done = shell(command)
    assert (done.returncode, "6 items read   6 succeeded" in done.stdout) == (0, True), done.stderr
    assert shell("dlq list").stdout == "No dead letters.\n"


def test_a_dry_run_refuses_what_a_resume_refuses(shell):
    """S3-21: with the same words and exit code; where the resume would begin, it says what that does, and changes nothing."""
    shell.write(*["good"] * 3, "bad", *["good"] * 4)
    shell("run app.py:reviews --input in.jsonl --run-key today --item-key id --on-item-error stop")
    source = shell.folder.joinpath("in.jsonl").read_text()

    def refused(code):
        dry, real = shell("resume today --dry-run"), shell("resume today")
        assert (dry.returncode, dry.stderr, dry.stdout) == (
            real.returncode,
            real.stderr,
            real.stdout,
        )
        assert dry.returncode == code

    before = shell.json("runs show today")
    would = shell("resume today --dry-run")
    assert (would.returncode, "Nothing was run: it would keep " in would.stdout) == (0, True)
    assert shell.json("runs show today") == before
    shell.folder.joinpath("in.jsonl").unlink()
    refused(2)
    shell.folder.joinpath("in.jsonl").write_text(source)
    shell.folder.joinpath("app.py").write_text(APP.replace("label", "another"))
    refused(2)
    shell.folder.joinpath("app.py").unlink()
    refused(2)
    shell.folder.joinpath("app.py").write_text(APP)
    store = open_store(f"sqlite:///{shell.folder}/.outlast/outlast.db", app="default")
    (record,) = store.runs(limit=1)
    lease = take(store, record)
    dry, real = shell("resume today --dry-run"), shell("resume today")
    assert (dry.returncode, dry.stderr) == (real.returncode, real.stderr)
    assert dry.returncode == 1
    assert "is busy" in dry.stderr
    let_go(store, lease)
    store.close()
    assert shell("cancel today").returncode == 0
    refused(2)


def test_letters_that_are_named_and_done_are_not_advised_again(shell):
    """D-13: a replay of what is done is refused."""
    first, second = failed(shell, "bad 1", "bad 2")
    shell.folder.joinpath("app.py").write_text(APP.replace('"bad" in review.text', '"bad 2" in review.text'))
    done = shell(f"dlq replay {first['id']} {second['id']}")
    left = second if second["payload"]["text"] == "bad 2" else first
    assert advised(done, "Once the cause is gone, replay what is still open: ") == f"dlq replay {left['id']}"


def test_no_resume_is_advised_where_everything_was_read_and_has_ended(shell):
    """D-13: of a run with too few successes the letters are replayed; a resume would do nothing."""
    shell.write("good", *(f"bad {letter}" for letter in "abcdef"))
    done = shell("run app.py:reviews --input in.jsonl --run-key today")
    assert (done.returncode, "resume" in done.stderr) == (1, False)
    shell.folder.joinpath("app.py").write_text(APP.replace('"bad" in review.text', "False"))
    assert shell(advised(done, "After the fix: ")).returncode == 0
    assert shell.json("runs show today")["status"] == "completed"


def test_a_programs_run_goes_on_as_is_advised(shell):
    """D-13: nothing is advised that is refused; with all of it named, a shell goes on with it."""
    shell.write(*["good"] * 3, "bad", *["good"] * 4)
    shell.folder.joinpath("program.py").write_text(
        "from app import reviews\n"
        "reviews.run('in.jsonl', run_key='today', item_key='id', sink='out.jsonl', on_item_error='stop', check=False)\n"
    )
    forked.run([sys.executable, "program.py"], cwd=shell.folder, env=shell.env, check=True)
    shown = shell("runs show today")
    assert "Once the cause is gone, go on: start its program again, with run_key='today'" in shown.stderr.splitlines()
    named = "resume today --target app.py:reviews --input in.jsonl --output out.jsonl"
    assert (shell("resume today").returncode, shell(named).returncode) == (2, 2)
    assert shell(f"{named} --item-key id").returncode == 3
    assert shell.json("runs show today")["counts"]["succeeded"] == 7


def test_archive_export_and_import_from_a_shell(shell):
    """S4-19, S4-23, S4-24: put away and back, out and in again."""
    first, second = failed(shell, "bad 1", "bad 2")
    assert shell(f"dlq archive {first['id']} --reason known").stdout == "Archived 1.\n"
    assert "in a shell with outlast dlq archive --undo." in shell(f"dlq replay {first['id']}").stderr
    nope = "expected --status to be open, replaying, resolved, archived or all, got: 'nope'.\n"
    assert (shell("dlq list --status nope").stderr, shell("dlq groups --status nope").stderr) == (nope, nope)
    assert [letter["id"] for letter in shell.json("dlq list")] == [second["id"]]
    assert shell(f"dlq archive {first['id']} --undo --reason 'not known'").stdout == "Opened 1.\n"
    none = "Archived 0: none of those that are open fits.\n"
    assert shell("dlq archive --pipeline reviews --older-than 1 --reason old").stdout == none
    assert shell.json("dlq archive --older-than 0 --text 'bad 1' --reason 'known, see 17'") == {"archived": 1}
    assert shell.json("dlq list --status archived")[0]["reason"] == "known, see 17"
    assert shell("dlq archive --undo --pipeline reviews").stdout == "Opened 1.\n"
    assert shell("dlq archive --undo --stage parse").stdout == "Opened 0: none of those that are archived fits.\n"
    assert (
        shell("dlq archive --stage label").stderr == "expected --reason: why they are put away; it stays on record.\n"
    )
    assert shell.json("dlq export letters") == {"exported": 2, "unreadable": 0, "folder": "letters"}
    assert shell.json("dlq import letters --store other.db") == {"imported": 2, "known": 0, "app": "default"}
    assert shell.json("dlq import letters --store other.db") == {"imported": 0, "known": 2, "app": "default"}
    assert {letter["id"] for letter in shell.json("dlq list --store other.db")} == {first["id"], second["id"]}


@table(
    ("line", "message"),
    [
        ("dlq show zzzz", "or at least its first 4 digits"),
        ("dlq show abcd", "Entry not found: abcd"),
        ("dlq show 00000000000000000000000000000000", "Entry not found: 00000000000000000000000000000000"),
        ("dlq replay", "which dead letters are meant?"),
        ("dlq archive --reason x", "which dead letters are meant?"),
        ("dlq list --status odd", "expected --status to be open, replaying, resolved, archived or all"),
        ("dlq edit abcd --reason x", "expected either --payload or --file"),
        ("dlq edit abcd --file nothing.json --reason x", "expected --file to be a file that can be read"),
        ("runs items today --status odd", "expected --status to be succeeded, skipped, dlq or failed"),
        ("runs list --status odd", "expected --status to be one of running"),
        ("runs show nothing", "expected the id or the key of a run, got: 'nothing'"),
        ("breaker reset nothing", "There is no breaker 'nothing'"),
        ("dlq import nothing", "expected nothing to be a folder"),
    ],
)
def test_what_is_wrong_is_explained_without_a_traceback(failed_before, line, message):
    """Exit code 2, one sentence, nothing on stdout (S0-29)."""
    done = failed_before(line)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


# --- breakers ---


def test_a_breaker_is_seen_and_steered_from_another_shell(shell):
    """Its state is on record while a run uses it; isolate and reset reach the run (S4-17)."""
    (shell.folder / "app.py").write_text(
        APP.replace("guard=None", "guard=outlast.Guard('shop', retry=once, breaker=outlast.CircuitBreaker('shop'))")
    )
    shell.write("good", "wait", "good")
    with shell.start("run app.py:reviews --input in.jsonl --run-key today") as process:
        assert process.stdout.readline() == "waiting\n"
        seen = wait_for(lambda: shell.json("breaker list"))
        assert (seen[0]["name"], seen[0]["state"]) == ("shop", "closed")
        assert shell("breaker isolate shop --reason maintenance").returncode == 0
        wait_for(
            lambda: [
                row for row in shell.json("breaker list") if row["state"] == "open" and row["reason"] == "maintenance"
            ]
        )
        assert "Did you mean 'shop'?" in shell("breaker reset shp").stderr
        assert shell("breaker reset shop").returncode == 0
        wait_for(lambda: [row for row in shell.json("breaker list") if row["state"] == "closed"])
        process.communicate("", timeout=200)
    assert process.returncode == 0


def test_a_breaker_is_isolated_for_the_next_run_when_nobody_runs_anything(shell):
    """What was asked between two runs is done before the next one makes its first call, and undone in the same way (S4-17)."""
    (shell.folder / "app.py").write_text(
        APP.replace("guard=None", "guard=outlast.Guard('shop', retry=once, breaker=outlast.CircuitBreaker('shop'))")
    )
    shell.write("good", "good")
    shell("run app.py:reviews --input in.jsonl --run-key one")
    asked = shell("breaker isolate shop --reason maintenance")
    assert (asked.returncode, asked.stdout) == (
        0,
        "Nobody is running anything here now: the next `outlast run` that uses shop hears that when it starts.\n",
    )
    done = shell("run app.py:reviews --input in.jsonl --run-key two --json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["counts"]["succeeded"], said["counts"]["pending"]) == (1, 0, 2), said
    assert "the circuit breaker shop is isolated: maintenance" in said["why"]
    assert shell("breaker reset shop").returncode == 0
    assert shell("resume two").returncode == 0


def test_a_shared_circuit_is_seen_and_steered_in_any_process(shell):
    """D-10, semantics 54: also where no run was started by `outlast run`; isolation stays until somebody ends it (S4-17)."""
    at = f"--store sqlite:///{shell.folder}/shop.db --app shop"
    made = "outlast.CircuitBreaker('openai', shared=True, failure_threshold=3)"
    with Process(f"sqlite:///{shell.folder}/shop.db", made) as process:
        assert process("call()") == "ok"
        (seen,) = shell.json(f"breaker list {at}")
        assert (seen["name"], seen["shared"], seen["state"]) == ("openai", True, "closed")
        assert "within a second" in shell(f"breaker isolate openai --reason 'key=sk-abcdefghijklmnop1234' {at}").stdout
        assert process("until(lambda: call() == 'rejected')") < 1.0
        (seen,) = shell.json(f"breaker list {at}")
        assert (seen["state"], seen["retry_at"]) == ("open", None)
        assert "sk-abc" not in seen["reason"]
        assert shell.json(f"breaker reset openai {at}")["shared"] is True
        assert process("until(lambda: call() == 'ok')") < 1.0


def test_an_app_that_only_shares_things_is_an_app_and_a_mistyped_one_is_refused(shell):
    """D-26: its open circuit is found without a name while it is alone, and nothing is denied because a name is wrong or missing (S4-17)."""
    at = f"--store sqlite:///{shell.folder}/shop.db"
    app = outlast.App("shop", store=f"sqlite:///{shell.folder}/shop.db")
    circuit = outlast.CircuitBreaker("warehouse", shared=True)
    app.share(circuit)
    circuit.isolate("rack")
    (seen,) = shell.json(f"breaker list {at}")
    assert (seen["name"], seen["state"]) == ("warehouse", "open")
    near = "got: 'shpo'. Did you mean 'shop'? Those there are: shop.\n"
    for line in ("runs list", "breaker list", "dlq stats", "resume today", "dlq export letters"):
        done = shell(f"{line} {at} --app shpo")
        assert (done.returncode, done.stdout, done.stderr.endswith(near)) == (2, "", True), (line, done.stderr)
    outlast.Pipeline("p", outlast.stage(len), app=outlast.App(store=f"sqlite:///{shell.folder}/shop.db")).run(["a"])
    both = shell(f"breaker reset warehouse {at}")
    assert (both.returncode, both.stderr) == (2, "expected --app: this store has default, shop.\n")
    assert shell.json(f"breaker reset warehouse {at} --app shop")["shared"] is True


def test_what_is_advised_names_the_app_where_a_store_has_several(shell):
    """D-26: so that it can be done as it is written, and a replay by its run finds the app of its own code."""
    outlast.Pipeline(
        "other",
        outlast.stage(len),
        app=outlast.App("other", store=f"sqlite:///{shell.folder}/.outlast/outlast.db"),
    ).run(["a"])
    shell.write(*["good"] * 10, "bad")
    done = shell("run app.py:reviews --input in.jsonl --run-key today")
    chosen = re.search(r"Inspect: outlast (.*)", done.stderr)[1]
    assert chosen.endswith(" --run today --app default")
    (letter,) = shell.json(chosen)
    shown = shell(f"dlq show {letter['id']} --app default")
    assert shown.stderr == f"Send it again: outlast dlq replay {letter['id'][:12]} --app default\n"
    again = shell("dlq reprocess app.py:reviews --run today --json")
    assert (again.returncode, json.loads(again.stdout)["counts"]["total"]) == (1, 1), again.stderr


def wait_for(ask):
    """The first answer of `ask` that is not empty, within a minute. Each question is a process of its own, so this is no busy loop."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        answer = ask()
        if answer:
            return answer
    raise AssertionError("there was no answer within 60 s")


def test_a_store_that_cannot_be_reached_is_waited_for_aloud_and_the_wait_can_be_interrupted(tmp_path):
    """D-13: what the run waits for is said at once, without the password, and Ctrl-C ends the wait."""
    (tmp_path / "app.py").write_text(
        "import outlast\n\n\n@outlast.stage\ndef same(item: dict) -> dict:\n    return item\n\n\n"
        'pipeline = outlast.Pipeline("p", same)\n'
    )
    (tmp_path / "in.jsonl").write_text('{"id": 1}\n')
    store = "postgresql://user:hunter2@127.0.0.1:1/x"
    command = [sys.executable, "-m", "outlast.cli", "run", "app.py:pipeline", "--input", "in.jsonl", "--store", store]
    with Forked(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        said = process.stderr.readline()
        assert said.startswith("outlast: the store cannot be used and is waited for: ")
        assert "hunter2" not in said
        while process.poll() is None:  # one that comes just before the process sleeps is noticed with the next one only
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        assert process.returncode == 130


# --- errors for whoever owns the data ---


def test_outputs_that_wait_for_the_end_are_named_where_they_are(shell):
    """A Parquet file is made when the run is over; until then its spool has them."""
    shell.write("good", "good", "wait")
    with shell.start("run app.py:reviews --input in.jsonl --output out.parquet --run-key today") as process:
        assert process.stdout.readline() == "waiting\n"
        wait_for((shell.folder / "out.parquet.spool").is_file)
        process.kill()
    said = shell("runs outputs today").stderr
    spool = shell.folder / "out.parquet.spool"
    assert said == f"The outputs of today are in out.parquet once the run is over; until then they wait in {spool}.\n"


def test_errors_of_a_run_are_listed_and_go_to_a_file(shell):
    """U-16: error by error, also lines that could not be read; the file is added to, and what is there is not repeated (S2-22)."""
    shell.write("good", "bad 1", *["good"] * 40)
    with (shell.folder / "in.jsonl").open("a") as lines:
        lines.write("no JSON\n")
    shell("run app.py:reviews --input in.jsonl --run-key today")
    listed = shell.json("runs errors today")
    assert [(row["row_index"], row["stage"], row["error_type"]) for row in listed] == [
        (1, "label", "data_error"),
        (42, "source", "validation_error"),
    ]
    assert listed[0]["raw_row"] == '{"id": 1, "text": "bad 1"}'
    assert "cannot label 'bad 1'" in shell("runs errors today --limit 1").stdout
    assert shell("runs errors today --csv out/errors.csv").stdout == "Added 2 errors to out/errors.csv.\n"
    assert shell.json("runs errors today --csv out/errors.csv")["written"] == 0
    assert (shell.folder / "out" / "errors.csv").read_bytes().startswith(b"\xef\xbb\xbfrun_id,")
    refused = shell("runs errors today --csv in.jsonl")
    assert refused.returncode == 2
    assert "Choose another name" in refused.stderr
    shell.write("good", name="fine.jsonl")
    shell("run app.py:reviews --input fine.jsonl --run-key fine")
    assert shell("runs errors fine").stdout == "No errors.\n"


# --- what is suggested, and what is asked for ---

PROGRAM = (
    APP
    + """
if __name__ == "__main__":
    rows = [{"id": number, "text": text} for number, text in enumerate(["good"] * 3 + ["bad"])]
    result = reviews.run(rows, run_key="from python", item_key="id", check=False)
    print(result._repr_html_())
"""
)


def test_commands_that_are_suggested_work(shell):
    """B11: after a run from Python too, in the report, on the page, in the notebook, of the run and of the letter."""
    (shell.folder / "labels.py").write_text(PROGRAM)
    page = subprocess.run(
        [sys.executable, "labels.py"],
        cwd=shell.folder,
        env=shell.env,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    ).stdout
    (group,) = shell.json("dlq groups")
    (letter,) = shell.json("dlq list")
    code = "--target labels.py:reviews"
    shown = f"outlast dlq replay --group {group['id']} --run 'from python' {code}"
    assert shown in shell("runs show 'from python'").stderr
    replay = f"outlast dlq replay --group {group['id']} --run {letter['run_id'][:12]} {code}"
    assert (
        replay
        in shell("runs report 'from python' --html report.html").stderr + shell("runs report 'from python'").stderr
    )
    assert replay in shell.folder.joinpath("report.html").read_text()
    assert replay in page
    said = shell(f"dlq show {letter['id']}")
    one = f"outlast dlq replay {letter['id'][:12]} --target labels.py:reviews"
    assert one in said.stderr
    assert "attempt 1 at stage 2 (label)" in said.stdout
    shell.folder.joinpath("labels.py").write_text(PROGRAM.replace('"bad" in review.text', "False"))
    done = shell(one.removeprefix("outlast "))
    assert (done.returncode, done.stderr.count("expected")) == (0, 0), done.stderr
    assert shell("dlq list").stdout == "No dead letters.\n"


SHOWN = """
    print(result.groups._repr_html_())
    print(reviews.app.dead_letters._repr_html_())
    print(reviews.app.dead_letters.groups(run=result.id)._repr_html_())
"""


def test_what_a_notebook_suggests_works_as_it_is_printed(shell):
    """B11: the groups of a run, of an app and of a filter, each with the command that sends its largest one again."""
    program = PROGRAM + SHOWN
    (shell.folder / "labels.py").write_text(program)
    # Of another run, and of the same problem: it is none of the first one's business.
    (shell.folder / "other.py").write_text(program.replace("from python", "another"))
    command = [sys.executable, "labels.py"]
    options = {
        "cwd": shell.folder,
        "env": shell.env,
        "capture_output": True,
        "text": True,
        "timeout": 40,
    }
    page = subprocess.run(command, check=True, **options).stdout
    subprocess.run([sys.executable, "other.py"], check=True, **options)
    said = [html.unescape(found) for found in re.findall(r"outlast dlq replay [^<]*", page)]
    own, of_run, of_app, filtered = said
    assert len(set(said)) == 3
    assert (of_run == own, "--run" in of_app, "--run" in filtered) == (True, False, True)
    shell.folder.joinpath("labels.py").write_text(program.replace('"bad" in review.text', "False"))
    for line, left in ((of_run, 1), (of_app, 0)):
        done = shell(line.removeprefix("outlast "))
        assert (done.returncode, len(shell.json("dlq list"))) == (0, left), done.stderr


def strictly(text):
    """What a parser makes of it that knows JSON and nothing more."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_every_json_is_json(shell):
    """C-15: NaN and Infinity are told as texts wherever JSON is printed, and an export brings them back as numbers (S4-24)."""
    mad = APP.replace('"label": review.text.upper()', '"label": float("inf")')
    mad = mad.replace('Review(int(row["id"]), row["text"])', 'Review(float("nan"), row["text"])')
    (shell.folder / "app.py").write_text(mad.replace("id: int", "id: float"))
    shell.write(*["good"] * 40, "bad")
    shell("run app.py:reviews --input in.jsonl --run-key today --item-key id")
    assert strictly(shell("runs outputs today --json").stdout)[0] == {"id": "NaN", "label": "Infinity"}
    assert strictly(shell("runs outputs today").stdout.splitlines()[0]) == {"id": "NaN", "label": "Infinity"}
    strictly(shell("runs items today --reveal --json").stdout)
    (letter,) = strictly(shell("dlq list --json --reveal").stdout)
    assert letter["payload"] == {"id": "NaN", "text": "bad"}
    assert '"id": "NaN"' in shell(f"dlq show {letter['id']}").stdout
    assert shell("dlq export letters").returncode == 0
    (file,) = (shell.folder / "letters").glob("*.json")
    strictly(file.read_text())
    shell("dlq import letters --store other.db")
    assert strictly(shell("dlq list --json --reveal --store other.db").stdout)[0]["payload"] == letter["payload"]
    store = open_store(str(shell.folder / "other.db"), app="default")
    assert b"NaN" in store.letter(letter["id"]).payload
    store.close()


def test_a_letter_of_another_program_is_replayed_as_it_is_told(shell):
    """By the pipeline of its name, whose code the command asks for and takes (S4-18)."""
    entry = {
        "id": "00000000-0000-4000-8000-000000000001",
        "workflow_id": "w",
        "task": {"id": 1, "text": "fine"},
        "repos": ["a"],
        "adapter": "reviews",
        "error": "no",
        "error_type": "ValueError",
        "timestamp": "2026-11-15T00:00:00+00:00",
    }
    (shell.folder / "in").mkdir()
    (shell.folder / "in" / f"{entry['id']}.json").write_text(json.dumps(entry))
    assert shell("dlq import in").returncode == 0
    shown = shell("dlq show 0000")
    assert "item         w of reviews, of another program\n" in shown.stdout
    assert '"repos": [ "a" ]' in " ".join(shown.stdout.split())
    offered = "outlast dlq replay 000000000000 --target FILE:NAME"
    assert shown.stderr.splitlines() == [f"Send it again: {offered}"]
    (shell.folder / "sweeps.py").write_text(
        "import outlast\n\n@outlast.stage\ndef sweep(work):\n    open('swept', 'w').write(repr([work['task']['text'], work['repos']]))\n\n"
        "reviews = outlast.Pipeline('reviews', sweep)\n"
    )
    done = shell(offered.removeprefix("outlast ").replace("FILE:NAME", "sweeps.py:reviews"))
    assert done.returncode == 0, done.stderr
    assert (shell.folder / "swept").read_text() == "['fine', ['a']]"
    assert shell.json("dlq show 0000")["status"] == "resolved"


def test_a_payload_that_cannot_be_read_stops_no_export(shell):
    """D-26: all are written, those that cannot be read as they are stored and marked; told on stderr, and exit code 3 (S4-24)."""
    first, second = failed(shell, "bad 1", "bad 2")
    foreign = {
        "id": "00000000-0000-4000-8000-000000000001",
        "workflow_id": "w",
        "task": {"repo": "a"},
        "repos": ["a"],
        "adapter": "reviews",
        "error": "no",
        "error_type": "ValueError",
        "timestamp": "2026-11-15T00:00:00+00:00",
    }
    (shell.folder / "in").mkdir()
    (shell.folder / "in" / f"{foreign['id']}.json").write_text(json.dumps(foreign))
    shell("dlq import in")
    with sqlite3.connect(shell.folder / ".outlast" / "outlast.db") as connection:
        damage = "update outlast_dead_letters set payload = x'ff00' where id in (?, ?)"
        connection.execute(damage, (first["id"], foreign["id"].replace("-", "")))
    done = shell("dlq export letters")
    assert (done.returncode, done.stdout) == (3, "Wrote 3 to letters.\n")
    assert done.stderr == (
        "2 of them cannot be read: their payloads are written as they are stored, in hexadecimal, and "
        "metadata.outlast.unreadable says why.\n"
    )
    entries = [json.loads(path.read_text()) for path in (shell.folder / "letters").glob("*.json")]
    marked = [entry for entry in entries if entry["metadata"].get("outlast", {}).get("unreadable")]
    assert (len(entries), [entry["task"]["payload"] for entry in marked]) == (3, ["ff00", "ff00"])
    as_json = shell("dlq export letters --json")
    assert (as_json.returncode, json.loads(as_json.stdout)["unreadable"]) == (3, 2)
    assert shell.json("dlq import letters --store other.db") == {"imported": 3, "known": 0, "app": "default"}
    again = {letter["id"]: letter for letter in shell.json("dlq list --store other.db")}
    assert again[second["id"]]["payload"]["text"] == "bad 2"
    listed = shell.json("runs errors today")
    assert [row["message"] for row in listed] == ["cannot label 'bad 1'", "cannot label 'bad 2'"]


def test_an_event_that_is_not_on_record_is_no_empty_answer(shell):
    """L1: a name that is none ends with 2 and the nearest one; one that is kept as rows says where to look."""
    shell.write("good")
    shell("run app.py:reviews --input in.jsonl --run-key today")
    for name, said in [
        ("item_failed", "outlast runs items RUN"),
        ("dead_letter_enqueue", "outlast dlq list --status all"),
        ("failure_budget_exceeded", "outlast runs show RUN"),
        ("run_finishd", "Did you mean 'run_finished'?"),
    ]:
        done = shell(f"events --name {name}")
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr, name
    assert [event["name"] for event in shell.json("events --name run_finished")] == ["run_finished"]


def test_a_narrow_terminal_cuts_no_number_and_no_id(shell):
    """B18: what is needed for the next command is there; the key gives way."""
    shell.write(*["good"] * 1234)
    shell("run app.py:reviews --input in.jsonl --run-key a-rather-long-key-for-a-narrow-terminal")
    (run,) = shell.json("runs list")
    shown = shell("runs list", COLUMNS="60").stdout
    assert run["id"][:12] in shown
    assert "1,234" in shown
    assert max(len(line) for line in shown.splitlines()) <= 60


def test_what_programs_are_given_is_whole(shell):
    """C2, C3: the fields of each document as a whole, and outputs without secrets unless they are asked for."""
    (shell.folder / "app.py").write_text(APP.replace('"label": review.text.upper()', '"password": "hunter2hunter2"'))
    shell.write("good", "bad 1")
    ran = json.loads(shell("run app.py:reviews --input in.jsonl --run-key today --json").stdout)
    run = {
        *("id", "pipeline", "run_key", "kind", "status", "reason", "why", "passes", "wanted", "sink", "started_at"),
        *("finished_at", "counts", "spent", "stages"),
    }
    (listed,) = shell.json("runs list")
    shown = shell.json("runs show today")
    assert set(listed) >= run
    assert set(shown) == set(listed) | {"groups", "running_at"}
    assert set(ran) == set(listed) | {"outcome", "success_rate", "groups", "exit_code"}
    items = shell.json("runs items today")
    assert [item["output"] for item in items] == [{"id": 0, "password": "***"}, None]
    revealed = json.loads(shell("runs items today --json --reveal").stdout)
    assert [item["output"] for item in revealed] == [{"id": 0, "password": "hunter2hunter2"}, None]
    assert set(items[0]) >= {
        "seq",
        "key",
        "status",
        "stage",
        "attempts",
        "degraded",
        "reason",
        "warnings",
        "spent",
        "output",
    }
    assert set(shell.json("dlq list")[0]) >= {
        "id",
        "pipeline",
        "stage",
        "item_key",
        "payload",
        "error",
        "group",
        "status",
    }


def test_the_address_of_a_store_is_never_said_whole(shell):
    """R2: the hints after a run that failed name the store without what looks like a password."""
    shell.write(*["bad"] * 3)
    (shell.folder / "password=hunter9x").mkdir()
    done = shell("run app.py:reviews --input in.jsonl --run-key today --store sqlite:///password=hunter9x/s.db")
    assert done.returncode == 1
    assert re.search(r"After the fix: outlast dlq replay --group \w+ --run today --store ", done.stderr)
    assert "hunter9x" not in done.stdout + done.stderr


def test_a_file_without_a_pipeline_says_so(shell):
    """B18: what is missing, and what it looks like."""
    shell.write("good")
    (shell.folder / "nop.py").write_text("x = 1\n")
    done = shell("run nop.py --input in.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("expected nop.py to have a pipeline, got: none.")
