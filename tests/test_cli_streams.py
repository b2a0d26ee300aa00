"""The exit code of a command whose output cannot be written: closed pipes, full devices, closed streams."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

import outlast
from forked import Forked
from outlast.cli.commands import command_line
from outlast.cli.streams import GROUPS, READING
from shells import Shell
from tables import table

FLOW = (
    'oml_version: "0.1.0"\nname: ok\nsteps:\n  - {id: a, component: python, config: {call: "m:f"}, idempotent: true}\n'
)
JOBS = """
import outlast
app = outlast.App("default")
@app.job
def j(n: int = 0):
    if n < 0:
        raise ValueError("negative")
"""
NO_SPACE, BROKEN, CLOSED = map(os.strerror, (errno.ENOSPC, errno.EPIPE, errno.EBADF))
# What the interpreter does where a shell says `>&-`.
WITHOUT_OUTPUT = "import os, sys; os.close(1); sys.stdout = sys.__stdout__ = None; from outlast.cli import main; main()"
WITHOUT_ERRORS = "import os, sys; os.close(2); sys.stderr = sys.__stderr__ = None; from outlast.cli import main; main()"


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path, {"ok.yaml": FLOW, "m.py": "def f():\n    return {'x': 1}\n", "app.py": JOBS})


@pytest.fixture
def full():
    device = os.open("/dev/full", os.O_WRONLY)
    yield device
    os.close(device)


@pytest.fixture
def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def ended(shell, line, program=("-m", "outlast.cli"), **streams):
    """The exit code and standard error of a command with these streams."""
    streams = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE} | streams
    # `Forked` closes what it is given.
    streams = {name: os.dup(stream) if stream >= 0 else stream for name, stream in streams.items()}
    with Forked(
        [sys.executable, *program, *line.split()], cwd=shell.folder, env=shell.env, text=True, **streams
    ) as process:
        _, said = process.communicate(timeout=200)
    return process.returncode, said or ""


def statuses(shell):
    app = outlast.App("default", store=f"sqlite:///{shell.folder}/.outlast/outlast.db")
    return sorted(job.status for job in app.jobs.find())


def test_work_keeps_its_exit_code_where_its_output_cannot_be_written(shell, full, closed_pipe):
    """D-6: exit code 1 would mean that the work failed, and a script would enqueue the same job twice."""
    not_affected = "Cannot write to standard output: {}. The work is not affected: exit code 0.\n"
    for line in ("run ok.yaml --run-key {}", "enqueue app.py:j"):
        for where, streams, program in (
            (NO_SPACE, {"stdout": full}, ("-m", "outlast.cli")),
            (BROKEN, {"stdout": closed_pipe}, ("-m", "outlast.cli")),
            (CLOSED, {"stdout": subprocess.DEVNULL}, ("-c", WITHOUT_OUTPUT)),
        ):
            code, said = ended(shell, line.format(abs(hash(where))), program, **streams)
            assert (code, said.endswith(not_affected.format(where))) == (0, True), said
            assert "Traceback" not in said
    runs = shell.json("runs list")
    assert ([run["status"] for run in runs], statuses(shell)) == (["completed"] * 3, ["queued"] * 3)
    code, said = ended(shell, "worker app.py --until-idle --json", stdout=full)
    assert (code, statuses(shell)) == (0, ["succeeded"] * 3)
    assert said.endswith(not_affected.format(NO_SPACE))


def test_failed_work_keeps_its_exit_code_too(shell, full):
    """D-6: 3 of a worker whose jobs failed stays 3, and 2 of invalid input stays 2."""
    shell("enqueue app.py:j --arg n=-1")
    code, said = ended(shell, "worker app.py --until-idle --json", stdout=full)
    assert (code, said.splitlines()[-1]) == (
        3,
        f"Cannot write to standard output: {NO_SPACE}. The work is not affected: exit code 3.",
    )
    code, said = ended(shell, "run none.yaml", stdout=full)
    assert (code, "Cannot write" in said) == (2, False)


def test_reading_command_without_output_has_failed(shell, full, closed_pipe):
    """C-01: its output is all it does. A reader that has seen enough is no failure that needs a word."""
    shell("enqueue app.py:j")
    for line in (
        "runs list",
        "jobs list",
        "jobs show 1",
        "jobs stats --json",
        "metrics",
        "--help",
        "jobs --help",
        "--version",
    ):
        full_device = ended(shell, line, stdout=full)
        assert (line, full_device) == (line, (1, f"Cannot write to standard output: {NO_SPACE}.\n"))
        assert (line, ended(shell, line, stdout=closed_pipe)) == (line, (141, ""))


def test_every_reading_command_reports_a_closed_output_in_one_line(shell):
    """C-01: `>&-` gives Python no standard output at all."""
    shell("enqueue app.py:j")
    shell("run ok.yaml --run-key k")
    lines = (
        "runs list", "runs show k", "runs attempts k", "runs outputs k", "runs report k", "jobs list",
        "jobs show 1", "jobs stats", "jobs schedules", "jobs workers", "dlq list", "dlq groups", "dlq stats", "events",
        "metrics", "breaker list", "components list", "components show python", "schema", "explain ok.yaml", "validate ok.yaml", "compile ok.yaml",
        "classify TimeoutError",
    )  # fmt: skip
    wrong = {
        line: found
        for line in lines
        if (found := ended(shell, line, ("-c", WITHOUT_OUTPUT), stdout=subprocess.DEVNULL))
        != (1, f"Cannot write to standard output: {CLOSED}.\n")
    }
    assert wrong == {}


def test_closed_output_is_no_file_of_a_program(shell):
    """The store must not get the number of standard output, or what a library prints is written into it."""
    (shell.folder / "m.py").write_text(
        "import os\ndef f():\n    os.write(1, b'printed by a library')\n    return {'x': 1}\n"
    )
    code, said = ended(shell, "run ok.yaml --run-key k", ("-c", WITHOUT_OUTPUT), stdout=subprocess.DEVNULL)
    assert (code, shell.json("runs list")[0]["status"]) == (0, "completed"), said


def test_file_that_was_asked_for_is_written_without_an_output(shell, full):
    """The answer of `compile --output` is in the file."""
    shell("enqueue app.py:j")
    assert ended(shell, "compile ok.yaml --output ok.json", stdout=full)[0] == 0
    assert ended(shell, "jobs workers --here", stdout=full)[0] == 1  # none is alive
    assert (shell.folder / "ok.json").exists()


def test_what_a_step_prints_into_a_closed_pipe_does_not_fail_it(shell, closed_pipe):
    (shell.folder / "m.py").write_text("def f():\n    print('x' * 100_000, flush=True)\n    return {'x': 1}\n")
    assert ended(shell, "run ok.yaml --run-key k", stdout=closed_pipe)[0] == 0
    assert shell.json("runs list")[0]["status"] == "completed"


@table("stderr", ["full", "closed"])
def test_log_that_cannot_be_written_does_not_change_the_exit_code(stderr, shell, full):
    """D-27: log lines are beside the work."""
    shell("enqueue app.py:j --arg n=-1")
    program = ("-c", WITHOUT_ERRORS) if stderr == "closed" else ("-m", "outlast.cli")
    streams = {"stdout": subprocess.DEVNULL, "stderr": full}
    assert ended(shell, "run ok.yaml --progress", program, **streams)[0] == 0
    assert ended(shell, "worker app.py --until-idle --progress", program, **streams)[0] == 3
    assert ended(shell, "runs show none", program, **streams)[0] == 2
    assert set(statuses(shell)) == {"failed"}


def test_commands_that_only_read_are_named_as_they_are_called():
    """A name that no command has would protect nothing."""
    app = command_line()
    groups = {group.typer_instance.info.name: group.typer_instance for group in app.registered_groups}
    commands = {command.name for one in (app, *groups.values()) for command in one.registered_commands}
    assert (set(groups), READING - commands) == (GROUPS, set())
