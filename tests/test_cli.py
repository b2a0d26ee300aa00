"""The command line and the demo, as a person uses them."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parent.parent


def outlast(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "outlast.cli", *arguments]
    env = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=200)


def test_classify_explains_statuses_names_and_classes():
    """S2-07: category, error class, tier, and why; one line each."""
    done = outlast("classify", "503", "requests.Timeout", "timeout", "ValueError")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][:4] == ["error", "category", "error", "class"]
    assert [line[:4] for line in lines[1:]] == [
        ["503", "transient", "unavailable", "http_429_503"],
        ["requests.Timeout", "transient", "timeout", "network"],
        ["timeout", "transient", "timeout", "network"],
        ["ValueError", "permanent", "data_error", "data"],
    ]


def test_classify_knows_subclasses_of_installed_libraries():
    """D-2: on the command line the name's library is loaded, so that its bases can be asked."""
    done = outlast("classify", "psycopg.errors.DeadlockDetected", "httpx.ReadTimeout", "--json")
    assert [(row["error_class"], row["category"]) for row in json.loads(done.stdout)] == [
        ("database_error", "transient"),
        ("timeout", "transient"),
    ]


def test_classify_as_json_has_every_field():
    """C-07: for programs."""
    (row,) = json.loads(outlast("classify", "401", "--json").stdout)
    assert row == {
        "error": "401",
        "category": "permanent",
        "error_class": "auth_error",
        "tier": "auth",
        "retry_after": None,
        "fatal": True,
        "status": 401,
        "why": "HTTP status 401",
    }


def test_classify_without_an_argument_lists_every_class():
    """C-07: the table of error classes."""
    from outlast.verdicts.rules import ERROR_CLASSES

    rows = json.loads(outlast("classify", "--json").stdout)
    assert [row["error"] for row in rows] == list(ERROR_CLASSES)


def test_every_mistake_is_reported_and_the_exit_code_is_2():
    """S0-29: all at once, on stderr, with the nearest right name."""
    done = outlast("classify", "tmeout", "503", "900")
    assert (done.returncode, done.stdout) == (2, "")
    assert "got: 'tmeout'. Did you mean 'timeout'?" in done.stderr
    assert "expected an HTTP status from 100 to 599, got: 900." in done.stderr


def test_version_and_help():
    """S4-08: the program says what it is."""
    import outlast as package

    assert outlast("--version").stdout == f"outlast {package.__version__}\n"
    assert "classify" in outlast("--help").stdout


def test_without_the_extra_it_says_what_to_install(tmp_path):
    """S0-29: a command whose extra is missing is no traceback."""
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')\n")
    done = outlast("classify", "503", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "The command line needs an extra: pip install 'outlast[cli]'\n")


def test_the_demo_tells_its_story():
    """S3-01, S3-02, S3-03, S3-28: everything that goes wrong is survived, every item is accounted for, and what failed succeeds later."""
    demo = [sys.executable, str(ROOT / "examples" / "demo.py")]
    env = os.environ | {"NO_COLOR": "1", "COLUMNS": "160"}
    with ExitStack() as both:  # its service is away for seconds: time for the other one
        on = {
            terminal: both.enter_context(
                subprocess.Popen(
                    demo, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env | {"TERM": terminal}
                )
            )
            for terminal in ("dumb", "xterm")
        }
        for process in on.values():
            both.callback(process.kill)
        for terminal, process in on.items():
            out, err = process.communicate(timeout=200)
            assert process.returncode == 0, (terminal, err)
            tells_its_story(out, err)


def tells_its_story(out, err):
    assert "3,000 items read   2,900 succeeded   50 skipped   50 dead letters" in out
    assert "2,900 reviews came through, each of them once" in out
    assert "40 \N{MULTIPLICATION SIGN} label  client_error: HTTP 422" in out
    assert "10 \N{MULTIPLICATION SIGN} parse  data_error" in out
    assert "completed: 40 of 40 items succeeded" in out
    assert "2,940 succeeded, and the service was called 0 times" in out  # those that were mended have come home
    assert "Traceback" not in err


def test_the_package_runs_as_the_command_does():
    """`python -m outlast` is `outlast`."""
    command = [sys.executable, "-m", "outlast", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == outlast("--version").stdout


def test_ctrl_c_while_the_command_is_loading_leaves_no_traceback(tmp_path):
    """The exit code is that of every Ctrl-C."""
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise KeyboardInterrupt\n")
    done = outlast("--version", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
