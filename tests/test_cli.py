"""The command line and the demo, as a person uses them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from typer.main import get_command
from typer.testing import CliRunner

import forked
from outlast.cli.commands import PLACES, SECTIONS, command_line
from outlast.store import open_store

ROOT = Path(__file__).parent.parent


def outlast(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "outlast.cli", *arguments]
    env = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", **environment}
    # A variable for the interpreter needs one that has just started.
    start = subprocess.Popen if any(name.startswith("PYTHON") for name in environment) else forked.Forked
    return forked.run(command, env=env, timeout=200, start=start)


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
    """All at once, on stderr, with the nearest right name (S0-29)."""
    done = outlast("classify", "tmeout", "503", "900")
    assert (done.returncode, done.stdout) == (2, "")
    assert "got: 'tmeout'. Did you mean 'timeout'?" in done.stderr
    assert "expected an HTTP status from 100 to 599, got: 900." in done.stderr


def test_version_and_help():
    """The program says what it is."""
    import outlast as package

    assert outlast("--version").stdout == f"outlast {package.__version__}\n"
    assert "classify" in outlast("--help").stdout
    for words in (["--help"], ["dlq", "--help"], ["worker", "--help"]):
        said = outlast(*words, COLUMNS="80").stdout
        assert max(map(len, said.splitlines())) <= 80
        assert "..." not in said.replace("[ARGS]...", "").replace("postgresql://...", "")  # every summary is whole
    options = said.partition("Options:")[2].splitlines()
    assert "  --strict                    Exit with 3 if a job failed permanently, also" in options


def test_a_command_loads_its_own_room_alone(tmp_path):
    """What the others need is not loaded, which would take longer than the command itself."""
    program = (
        "import sys; from outlast.cli import main\n"
        "sys.argv = ['outlast', *sys.argv[1:]]\n"
        "try: main()\n"
        "finally: print(*(name for name in sys.modules if name.startswith('outlast.')), file=sys.stderr)\n"
    )
    for words in (["classify", "503"], ["--version"]):
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
        loaded = set(done.stderr.split())
        rooms = {"classify", "options", "output"} if words[0] == "classify" else set()
        rooms = {"outlast.cli", "outlast.cli.commands", "outlast.cli.streams"} | {
            f"outlast.cli.{room}" for room in rooms
        }
        assert {name for name in loaded if name.startswith("outlast.cli")} == rooms
        assert (
            loaded & {"outlast.store", "outlast.pipeline", "outlast.jobs", "outlast.spec", "outlast.components"}
            == set()
        )
    with open_store(tmp_path / "shop.db", app="shop"):
        words = ["jobs", "list", "--store", str(tmp_path / "shop.db")]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    runs = {
        "outlast.observe.events",
        "outlast.report.model",
        "outlast.report.gather",
        "outlast.pipeline",
        "outlast.jobs",
    }
    assert set(done.stderr.split()) & runs == set()


def shape(command) -> object:
    inner = {name: shape(one) for name, one in getattr(command, "commands", {}).items()}
    return command.help, [(param.name, param.opts, param.required) for param in command.params], inner


def test_each_command_is_the_same_alone_and_among_all():
    """Its name is the one under which it is found, and a name that nobody has is compared with all of them."""
    every = get_command(command_line())
    assert sorted(every.commands) == sorted(PLACES)
    for name in PLACES:
        alone = get_command(command_line([name, "--help"])).commands
        assert list(alone) == [name]
        assert shape(alone[name]) == shape(every.commands[name])
        for inner, command in getattr(every.commands[name], "commands", {}).items():
            (found,) = get_command(command_line([name, inner, "--help"])).commands.values()
            assert {name: shape(one) for name, one in found.commands.items()} == {inner: shape(command)}
    assert "No such command 'classfy'. Did you mean 'classify'" in outlast("classfy").stderr
    assert "No such command 'lsit'. Did you mean 'list'" in outlast("runs", "lsit").stderr


def test_without_the_extra_it_says_what_to_install(tmp_path):
    """A command whose extra is missing is no traceback (S0-29)."""
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')\n")
    done = outlast("classify", "503", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "The command line needs an extra: pip install 'outlast[cli]'\n")


def test_the_demo_tells_its_story(tmp_path):
    """S3-01, S3-02, S3-03, S3-28: everything that goes wrong is survived, every item is accounted for, and what failed succeeds later."""
    demo = [sys.executable, str(ROOT / "examples" / "demo.py")]
    env = os.environ | {"NO_COLOR": "1", "COLUMNS": "160"}
    done = subprocess.run(demo, capture_output=True, text=True, check=False, env=env, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    tells_its_story(done.stdout, done.stderr)
    assert "outlast dlq list" in (tmp_path / "demo-report.html").read_text()
    for line in done.stdout.splitlines():
        command = line.partition(": outlast ")[2]
        if command:
            typed = [sys.executable, "-m", "outlast", *command.split()]
            assert forked.run(typed, cwd=tmp_path).returncode == 0, command


def tells_its_story(out, err):
    assert re.search(r"kill -9 after 1,5\d\d reviews were stored", out)
    assert "3,000 items read   2,900 succeeded   50 skipped   50 dead letters" in out
    assert "2,900 reviews are in the output, each once" in out
    assert "40 \N{MULTIPLICATION SIGN} label  client_error: HTTP 422" in out
    assert "10 \N{MULTIPLICATION SIGN} parse  data_error" in out
    assert "completed: 40 of 40 items succeeded" in out
    assert "The service was called 0 times: nothing is done twice." in out
    assert "Traceback" not in err


def test_the_package_runs_as_the_command_does():
    """`python -m outlast` is `outlast`."""
    command = [sys.executable, "-m", "outlast", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == outlast("--version").stdout


def test_ctrl_c_while_the_command_is_loading_leaves_no_traceback(tmp_path):
    """The exit code is that of every Ctrl-C."""
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise KeyboardInterrupt\n")
    done = outlast("classify", "503", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_help_has_every_command_in_one_section_in_few_words():
    """Each command stands in the section of what it is for, with at most 11 words."""
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(PLACES)
    printed = CliRunner().invoke(command_line(["--help"]), ["--help"]).stdout
    for title, names in SECTIONS.items():
        part = printed.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        rows = [line.split() for line in part.splitlines()]
        assert [words[0] for words in rows] == [*names]
        assert [words for words in rows if len(words) > 12] == []
