"""
The documentation is true: its Python runs, its outputs are real, and nothing public is left out.

Four comments, each on the line above its fence (a blank line between is fine), say what a block is:

- `<!-- not run: reason -->` above a Python block keeps it from being run, for that reason;
- `<!-- without name name -->` above a Python block runs it as where these packages are not installed: stamina reports through
  structlog and prometheus_client if it finds them, and pybreaker takes long to load redis; other tests need all three;
- `<!-- continues -->` above a Python block puts it after the previous one of the page, in the same program;
- `<!-- output -->` above a text block says that this is what the Python block before it prints, exactly.
"""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import outlast

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "outlast"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "reference").glob("*.md")))
FENCE = re.compile(
    r"^(?:<!-- *(?P<note>[^\n]*?) *-->\n\n?)?(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
NOTES = re.compile(r"not run: \S.+|without( \w+)+|continues|output")


# --- what the pages show is what happens ---


@dataclass
class Program:
    """One Python block with those that continue it; `printed` is what the page says it prints."""

    where: str
    code: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    skipped: bool = False


def programs(page: Path) -> list[Program]:
    text = page.read_text()
    found: list[Program] = []
    for match in FENCE.finditer(text):
        note, language = match["note"] or "", match["language"]
        where = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start('body')) + 1}"
        assert note == "" or NOTES.fullmatch(note) or language != "python", f"{where}: unknown note {note!r}"
        body = inspect.cleandoc(match["body"]) if match["indent"] else match["body"]
        if note == "output":
            assert found, f"{where}: an output without a program"
            found[-1].printed.append(body)
        elif language == "python" and note == "continues":
            assert found, f"{where}: nothing to continue"
            found[-1].code.append(body)
        elif language == "python":
            missing = note.split()[1:] if note.startswith("without") else []
            hidden = "".join(f"__import__('sys').modules[{name!r}] = None\n" for name in missing)
            found.append(Program(where, [hidden, body], skipped=note.startswith("not run")))
    return found


@pytest.mark.parametrize(
    "program",
    [pytest.param(program, id=program.where) for page in PAGES for program in programs(page) if not program.skipped],
)
def test_block_runs_and_prints_what_the_page_says(program, tmp_path):
    """Each block is a program of its own, run in an empty folder with warnings as errors."""
    script = tmp_path / "block.py"
    script.write_text("".join(program.code))
    done = subprocess.run(
        [sys.executable, "-W", "error", script.name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{program.where}\n{done.stderr}"
    if program.printed:
        assert done.stdout.rstrip() == "\n".join(program.printed).rstrip()


def test_every_page_is_read_for_blocks():
    """A fence that the reader above cannot see would never run."""
    for page in PAGES:
        fences = re.findall(r"^ *```python", page.read_text(), re.MULTILINE)
        seen = [match for match in FENCE.finditer(page.read_text()) if match["language"] == "python"]
        assert len(seen) == len(fences), page.relative_to(ROOT)


def modules() -> list[str]:
    names = [path.relative_to(PACKAGE.parent).with_suffix("").parts for path in sorted(PACKAGE.rglob("*.py"))]
    return [".".join(parts).removesuffix(".__init__") for parts in names if parts[-1] != "__main__"]


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_hold(name):
    """Examples in docstrings are doctests."""
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0


# --- nothing public is left out ---


def undocumented(names: object, text: str = REFERENCE) -> list[str]:
    """The names that the text never shows as code; the text is the reference unless another one is given."""
    shown = set(re.findall(r"\w+", " ".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))))
    return sorted(name for name in names if name not in shown)


def test_every_public_name_is_in_the_reference():
    """Everything that `import outlast` offers."""
    assert undocumented(outlast.__all__) == []


def test_every_exception_is_in_the_reference():
    """Every exception that Outlast raises of its own."""
    errors = importlib.import_module("outlast.errors")
    own = [name for name, thing in vars(errors).items() if inspect.isclass(thing) and issubclass(thing, Exception)]
    assert "OutlastError" in own
    assert undocumented(own) == []


def test_every_event_is_in_the_reference_with_its_fields():
    """Every event: its class, its name, and what it carries."""
    room = importlib.import_module("outlast.observe.events")
    assert undocumented(event.__name__ for event in room.EVENTS.values()) == []
    assert undocumented(room.EVENTS) == []
    assert undocumented({field.name for event in room.EVENTS.values() for field in dataclasses.fields(event)}) == []


def test_every_error_class_is_in_the_reference():
    """Every error class a verdict may name, and every tier."""
    verdicts = importlib.import_module("outlast.verdicts")
    assert undocumented(verdicts.ERROR_CLASSES) == []
    assert undocumented({known.tier for known in verdicts.ERROR_CLASSES.values()}) == []


def test_every_preset_is_in_the_reference():
    """Every ready-made policy."""
    presets = [name for name, value in vars(outlast.presets).items() if isinstance(value, outlast.RetryPolicy)]
    assert len(presets) == 8
    assert undocumented(presets) == []


def test_every_configuration_key_is_in_the_reference():
    """Every key that `from_config` reads, in every spelling."""
    assert undocumented(importlib.import_module("outlast.settings.blocks").CONFIG_KEYS) == []


def commands(group, before=""):
    """Every command with its full name, those of groups too."""
    for name, command in group.commands.items():
        yield f"{before}{name}", command
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")


def test_every_command_and_option_is_in_the_reference():
    """Every command of `outlast` with its options."""
    from typer.main import get_command

    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    root = get_command(importlib.import_module("outlast.cli").app)
    missing = []
    for name, command in commands(root):
        missing += [] if f"outlast {name}" in page else [f"outlast {name}"]
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        missing += [f"outlast {name} {option}" for option in options if f"`{option}" not in page]
    assert "classify" in root.commands
    assert missing == []


PEERS = {
    "tenacity": (["Retrying"], []),
    "stamina": (["retry"], ["Attempt"]),
    "backoff": (["on_exception", "on_predicate"], []),
    "pybreaker": (["CircuitBreaker"], ["CircuitBreaker", "CircuitBreakerListener"]),
    "stamina.instrumentation": ([], ["RetryDetails"]),
}


def names_of_peer(name: str) -> set[str]:
    """What a peer offers: the names it exports, the options of its doors, the members of what it hands out."""
    peer = importlib.import_module(name)
    doors, handed_out = PEERS[name]
    options = {option for door in doors for option in inspect.signature(getattr(peer, door)).parameters}
    members = {member for kind in handed_out for member in vars(getattr(peer, kind)) if not member.startswith("_")}
    return {*peer.__all__, *options, *members}


@pytest.mark.parametrize("name", PEERS)
def test_migration_page_answers_for_every_name_of_the_peer(name):
    """Whoever searches the page for a name of the library they know finds it."""
    page = (ROOT / "docs" / "migrate" / f"{name.partition('.')[0]}.md").read_text()
    assert undocumented(names_of_peer(name), page) == []


@pytest.mark.parametrize("name", [name for name in PEERS if "." not in name])
def test_migration_pages_tell_the_version_that_their_programs_run_with(name):
    """What a page says of another library was true of one release of it."""
    page = (ROOT / "docs" / "migrate" / "index.md").read_text()
    assert f"{name} {importlib.metadata.version(name)} |" in page


def waits_of_tenacity() -> list[tuple[str, str]]:
    """The rows of the page that say in code what a wait of tenacity is called here."""
    page = (ROOT / "docs" / "migrate" / "tenacity.md").read_text()
    return [
        row for row in re.findall(r"^\| `(wait_[^`]+)`[^|]*\| `(\w+=[^`]+)`", page, re.MULTILINE) if "..." not in row[0]
    ]


@pytest.mark.parametrize(("theirs", "ours"), waits_of_tenacity())
def test_wait_of_tenacity_and_its_translation_are_the_same(theirs, ours):
    """Every wait that tenacity draws lies in the band of the policy on its right, and many draws fill the band."""
    tenacity = importlib.import_module("tenacity")
    wait = eval(theirs, vars(tenacity))
    policy = outlast.RetryPolicy(**{"max_attempts": 6} | eval(f"dict({ours})"))
    for delay in policy.schedule():
        state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
        state.attempt_number = delay.attempt - 1
        drawn = [wait(state) for _ in range(300)]
        margin = (delay.max - delay.min) / 10
        assert delay.min <= min(drawn) <= delay.min + margin
        assert delay.max - margin <= max(drawn) <= delay.max


def test_the_waits_of_tenacity_are_found_on_their_page():
    """A change of the table's form must not leave the test above without rows."""
    assert len(waits_of_tenacity()) == 10


# --- requirements and tests are in step ---

IDENTITY = r"\b(?:S\d-\d\d|[CU]-\d\d|D-\d+)\b"


def test_each_requirement_named_by_a_test_has_its_line_and_each_line_a_test():
    """docs/requirements.md lists an id as "- **id** sentence"; the tests name ids in their docstrings."""
    named = {found for path in (ROOT / "tests").rglob("*.py") for found in re.findall(IDENTITY, path.read_text())}
    page = (ROOT / "docs" / "requirements.md").read_text()
    listed = re.findall(rf"^- \*\*({IDENTITY})\*\* \S.*$", page, re.MULTILINE)
    assert sorted({entry for entry in listed if listed.count(entry) > 1}) == []
    assert sorted(named - set(listed)) == [], "named by a test, without a line"
    assert sorted(set(listed) - named) == [], "a line without a test"


# --- short enough to be read ---


@pytest.mark.parametrize(("page", "most"), [("README.md", 120), ("ARCHITECTURE.md", 150)])
def test_page_stays_short(page, most):
    """The two pages that everyone reads stay readable in one sitting."""
    assert len((ROOT / page).read_text().splitlines()) <= most
