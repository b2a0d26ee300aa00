"""
The documentation is true: its Python runs, its outputs are real, and nothing public is left out.

Five comments, each on the line above its fence (a blank line between is fine), say what a block is:

- `<!-- not run: reason -->` above a Python block keeps it from being run, for that reason;
- `<!-- without name name -->` above a Python block runs it as where these packages are not installed: stamina reports through
  structlog and prometheus_client if it finds them, and pybreaker takes long to load redis; other tests need all three;
- `<!-- on PostgreSQL -->` above a Python block runs it with a new database, whose address is in `OUTLAST_STORE`;
- `<!-- continues -->` above a Python block puts it after the previous one of the page, in the same program;
- `<!-- output -->` above a text block says that this is what the Python block before it prints, exactly.
"""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import importlib.metadata
import inspect
import itertools
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

import forked
import outlast
import reference
import test_docs_tables as docs_tables
import test_surface as surface
from tables import table

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "outlast"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?:<!-- *(?P<note>[^\n]*?) *-->\n\n?)?(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
NOTES = re.compile(r"not run: \S.+|without( \w+)+|on PostgreSQL|on Redis|file [\w.]+|continues|output")

REDIS = itertools.count()  # its databases, one for each block


# --- what the pages show is what happens ---


@dataclass
class Program:
    """One Python block with those that continue it, and the files beside it; `printed` is what the page says it prints."""

    where: str
    code: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    skipped: bool = False
    on_postgres: bool = False
    on_redis: bool = False
    files: dict[str, str] = field(default_factory=dict)


def programs(page: Path) -> list[Program]:
    text = page.read_text()
    found: list[Program] = []
    files: dict[str, str] = {}  # of the next program
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
        elif language == "python" and note.startswith("file "):
            files[note.removeprefix("file ")] = body
        elif language == "python":
            missing = note.split()[1:] if note.startswith("without") else []
            hidden = "".join(f"__import__('sys').modules[{name!r}] = None\n" for name in missing)
            program = Program(where, [hidden, body], skipped=note.startswith("not run"), files=files)
            program.on_postgres, program.on_redis, files = note == "on PostgreSQL", note == "on Redis", {}
            found.append(program)
    return found


@pytest.mark.parametrize(
    "program",
    [pytest.param(program, id=program.where) for page in PAGES for program in programs(page) if not program.skipped],
)
def test_block_runs_and_prints_what_the_page_says(program, tmp_path, request):
    """Each block is a program of its own, run in an empty folder with warnings as errors."""
    script = tmp_path / "block.py"
    script.write_text("".join(program.code))
    for name, text in program.files.items():
        (tmp_path / name).write_text(text)
    store, command, start = {}, [sys.executable, "-W", "error"], forked.Forked
    if program.on_postgres:
        store["OUTLAST_STORE"] = request.getfixturevalue("postgres_server").database(f"block-{uuid4().hex}").dsn
    if program.on_redis:  # another queue is, whose warnings are its own; in a real process
        command, start = [*command, "-W", "ignore::DeprecationWarning"], subprocess.Popen
        store["REDIS_URL"] = f"redis://127.0.0.1:{request.getfixturevalue('redis_server').port}/{next(REDIS) % 16}"
    done = forked.run([*command, script.name], cwd=tmp_path, env=os.environ | store, start=start)
    assert done.returncode == 0, f"{program.where}\n{done.stderr}"
    if program.printed:
        assert done.stdout.rstrip() == "".join(program.printed).rstrip()  # one block after the other


def test_a_block_that_warns_fails():
    """A program that is forked hears -W as one does that is started."""
    warns = "import sys, warnings; warnings.warn('old'); print(sys.warnoptions)"
    done = forked.run([sys.executable, "-W", "error", "-c", warns])
    assert (done.returncode, done.stdout) == (1, "")
    assert "UserWarning: old" in done.stderr
    assert forked.run([sys.executable, "-c", warns]).stdout == "[]\n"


def test_every_page_is_read_for_blocks():
    """A fence that the reader above cannot see would never run."""
    for page in PAGES:
        fences = re.findall(r"^ *```python", page.read_text(), re.MULTILINE)
        seen = [match for match in FENCE.finditer(page.read_text()) if match["language"] == "python"]
        assert len(seen) == len(fences), page.relative_to(ROOT)


def modules() -> list[str]:
    names = [path.relative_to(PACKAGE.parent).with_suffix("").parts for path in sorted(PACKAGE.rglob("*.py"))]
    return [".".join(parts).removesuffix(".__init__") for parts in names if parts[-1] != "__main__"]


@table("name", modules())
def test_examples_in_docstrings_hold(name):
    """Examples in docstrings are doctests."""
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0


# --- nothing public is left out: each name has its own place on its own page, and all that belongs to it stands there ---

# The page of each room's names; those of the other rooms are on the page of the public names.
PAGE_OF = dict.fromkeys(("components", "deadletters", "pipeline"), "runs.md") | {
    "errors": "errors.md",
    "flow": "flows.md",
    "flow.results": "flows.md",
    "jobs.handle": "jobs.md",
    "jobs.job": "jobs.md",
    "jobs.queue": "jobs.md",
    "jobs.worker": "jobs.md",
    "observe.figures": "jobs.md",
    "pipeline.errors": "errors.md",
    "rows": "rows.md",
    "spec.manifest": "flows.md",
}
WHOLE_PAGES = {"RetryPolicy": "policy.md", "Verdict": "verdicts.md"}
# What users make, call or get as a value, so that every parameter is theirs to know, also beyond the contract.
OPEN = (
    "App AttemptRecord AttemptRow CircuitBreaker Counts DeadLetter Decision Delay FailureGroup Files Guard Hedge ItemResult JobFigures Limit Outcome PartialResult "
    "PermanentFailure Pipeline Query QueueStats Rate RetryBudget RetryPolicy StepResult Table TemporaryFailure Verdict amap classify history map register "
    "result_of stage stop_reason use"
).split()
# Parameters that gather arguments, and the one that takes what is refused.
PLAIN = {"self", "cls", "args", "kwargs", "stages", "unknown"}


def place_of(name: str) -> str:
    """What the reference says where this public name has its place."""
    page = reference.page(PAGE_OF.get(outlast._HOME.get(name, ""), "api.md"))
    said = reference.places(page).get(name, "")
    return said + reference.page(WHOLE_PAGES[name]) if said and name in WHOLE_PAGES else said


def named(parameters: Iterable[inspect.Parameter]) -> set[str]:
    """Those that a caller may call by their names."""
    return {parameter.name for parameter in parameters if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY}


def belongings() -> dict[str, set[str]]:
    """Every public name with its parameters and members, as the contract and the code have them."""
    found: dict[str, set[str]] = {name: set() for name in outlast.__all__}
    for dotted, overloads in surface.NOW.items():
        name, _, member = dotted.partition(".")
        if name in found and not inspect.ismodule(getattr(outlast, name)):
            found[name] |= {member} if not member.startswith("_") else set()
            if not member or member in {"__init__", "__new__"}:
                found[name] |= {name for one in overloads for name in named(surface.promised(one))}
    for node in ast.parse((surface.CONTRACT / "__init__.pyi").read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name in found:
            fields = [entry.target for entry in node.body if isinstance(entry, ast.AnnAssign)]
            fields += [target for entry in node.body if isinstance(entry, ast.Assign) for target in entry.targets]
            found[node.name] |= {
                field.id
                for field in fields
                if isinstance(field, ast.Name) and f"{node.name}.{field.id}" not in surface.LATER
            }
    for name in OPEN:
        found[name] |= named(inspect.signature(getattr(outlast, name)).parameters.values())
    found["retry"] -= found["RetryPolicy"]  # its place names the page of those
    return {
        name: {entry for entry in names - PLAIN if entry and not entry.startswith("_")} for name, names in found.items()
    }


def test_every_public_name_has_its_place_in_the_reference():
    """Everything that `import outlast` offers, on the page it belongs to, with each of its parameters and members."""
    wanted = belongings()
    assert [name for name in wanted if not place_of(name)] == []
    missing = {name: sorted(names - reference.words(place_of(name))) for name, names in wanted.items()}
    assert {name: names for name, names in missing.items() if names} == {}
    assert sum(map(len, wanted.values())) > 250


def methods(kind: type, said: str) -> dict[str, set[str]]:
    """The methods that a text shows with their brackets, and the parameters that callers may call by their names."""
    shown = set(re.findall(r"([a-z]\w*)\(", " ".join(reference.CODE.findall(said.replace("\n", " ")))))
    found = {name: getattr(kind, name) for name in shown if inspect.isroutine(getattr(kind, name, None))}
    return {name: named(inspect.signature(method).parameters.values()) - PLAIN for name, method in found.items()}


def test_every_parameter_of_a_documented_method_is_told_in_its_place():
    """Where a method of a public class is shown as it is called, all that it takes is shown."""
    missing, seen = [], 0
    for name in outlast.__all__:
        if inspect.isclass(kind := getattr(outlast, name)):
            said = place_of(name)
            for method, parameters in methods(kind, said).items():
                seen += len(parameters)
                missing += [f"{name}.{method} {one}" for one in sorted(parameters - reference.words(said))]
    assert missing == []
    assert seen > 80


def test_every_exception_has_its_heading_with_what_it_carries():
    """Every exception that Outlast raises of its own."""
    page = reference.page("errors.md")
    errors = importlib.import_module("outlast.errors")
    own = {
        name: thing for name, thing in vars(errors).items() if inspect.isclass(thing) and issubclass(thing, Exception)
    }
    assert "OutlastError" in own
    assert [name for name in own if not reference.section(page, name)] == []
    missing = {
        name: sorted(set(inspect.get_annotations(error)) - reference.words(reference.section(page, name)))
        for name, error in own.items()
    }
    assert {name: fields for name, fields in missing.items() if fields} == {}


def test_every_event_has_its_heading_and_every_field_its_meaning():
    """Every event with its class and its fields; a field is explained in the table of fields, or in words under the event."""
    page = reference.page("events.md")
    meanings = reference.rows(page.partition("<!-- generated")[0])
    missing = []
    for name, event in importlib.import_module("outlast.observe.events").EVENTS.items():
        said = reference.section(page, name)
        in_words = re.sub(r"^Fields: .*$", "", said, flags=re.MULTILINE)
        fields = [field.name for field in dataclasses.fields(event)]
        missing += [f"{name} {word}" for word in (event.__name__, *fields) if word not in reference.words(said)]
        missing += [
            f"{name} {field}: its meaning"
            for field in fields
            if field not in meanings and field not in reference.words(in_words)
        ]
    assert missing == []


def test_every_error_class_has_its_row_with_its_tier():
    """Every error class a verdict may name."""
    rows = reference.rows(reference.section(reference.page("verdicts.md"), "Error classes"))
    known = importlib.import_module("outlast.verdicts").ERROR_CLASSES
    assert [name for name in known if known[name].tier not in reference.words(rows.get(name, ""))] == []


def test_every_metric_and_every_label_has_its_row():
    """What is counted, and what by."""
    page = reference.page("metrics.md")
    metrics = importlib.import_module("outlast.observe.metrics").METRICS
    rows = reference.rows(page)
    missing = [metric.name for metric in metrics if not {*metric.labels} <= reference.words(rows.get(metric.name, ""))]
    assert missing == []
    labels = reference.rows(page.partition("<!-- generated: end -->")[2])
    assert sorted({label for metric in metrics for label in metric.labels} - set(labels)) == []


def test_every_preset_has_its_row():
    """Every ready-made policy."""
    presets = [name for name, value in vars(outlast.presets).items() if isinstance(value, outlast.RetryPolicy)]
    assert len(presets) == 8
    assert sorted(reference.rows(reference.section(reference.page("policy.md"), "Presets"))) == sorted(presets)


def test_every_configuration_key_has_its_row():
    """Every key that `from_config` reads, in every spelling."""
    table = reference.page("config.md").partition("## ")[0]
    assert sorted(reference.rows(table)) == sorted(importlib.import_module("outlast.settings.blocks").CONFIG_KEYS)
    keys = importlib.import_module("outlast.settings.keys")
    said = {block: reference.rows(reference.section(reference.page("config.md"), block)) for block in keys.BLOCKS}
    assert {block: sorted(rows) for block, rows in said.items()} == {
        block: sorted(keys.keys_of(block)) for block in keys.BLOCKS
    }


def test_everything_a_component_may_have_is_in_the_reference():
    """What others subclass and call, with every method and attribute."""
    components = importlib.import_module("outlast.components")
    said = reference.words(reference.section(reference.page("runs.md"), "Components"))
    names = {"Source", "Sink", "register_source", "register_sink", "Refused", "Busy"}
    names |= {name for kind in (components.Source, components.Sink) for name in vars(kind) if name[0] != "_"}
    names |= named(inspect.signature(components.Sink.open).parameters.values()) - {"self"}
    assert sorted(names - said) == []


def test_every_way_from_and_to_configuration_has_its_place():
    """What can be made of a block and shown as one, under its own name."""
    makes = "RetryPolicy Guard CircuitBreaker Limit Rate RetryBudget Hedge".split()
    assert [name for name in makes if not hasattr(getattr(outlast, name), "to_config")] == []
    wanted = {"from_config", "to_config"}
    assert [name for name in makes if not wanted <= reference.words(place_of(name))] == []


def test_every_name_of_rows_and_reports_has_its_place():
    """What `outlast.rows` and `outlast.report` offer, and the fields of what they hand out."""
    report = importlib.import_module("outlast.report.model")
    story = importlib.import_module("outlast.report.stories")
    assert [name for name in outlast.rows.__all__ if name not in reference.places(reference.page("rows.md"))] == []
    said = reference.section(reference.page("runs.md"), "report")
    places = reference.places(said)
    functions = [name for name, thing in vars(outlast.report).items() if inspect.isfunction(thing) and name[0] != "_"]
    assert [name for name in [*functions, "Report", "Story"] if name not in places] == []
    fields = {field.name for field in dataclasses.fields(report.Report)}
    assert sorted(fields - set(reference.rows(said)) - reference.words(places["Report"])) == []
    moments = {field.name for kind in (story.Story, story.Moment) for field in dataclasses.fields(kind)}
    assert sorted(moments - reference.words(places["Story"])) == []


def commands(group, before=""):
    """Every command with its full name, those of groups too."""
    for name, command in group.commands.items():
        if not command.hidden:
            yield f"{before}{name}", command
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[\w-]+", " ".join(reference.CODE.findall(text))))


def test_every_command_tells_each_of_its_options():
    """Every command of `outlast` has its row or its heading, and its options are there: by name, or by a word that the page explains."""
    from typer.main import get_command

    page = reference.page("cli.md")
    blocks = reference.blocks(page)
    (everywhere,) = [block for block in blocks if "go with every command below" in block]
    (filters,) = [block for block in blocks if block.startswith("Filters add up")]
    (of_runs,) = [block for block in blocks if block.startswith("`--pipeline` tells runs of one key apart")]
    missing = []
    root = get_command(importlib.import_module("outlast.cli").app)
    for name, command in commands(root):
        row = "".join(block for block in blocks if re.match(rf"\| `outlast {name}[ `]", block))
        said = row or reference.section(page, f"outlast {name}")
        told = options_in(said) | options_in(everywhere) | {"--help"}
        told |= options_in(filters) - {"--status"} if re.search(r"\bfilters\b", said) else set()
        told |= options_in(of_runs) if f"outlast {name} RUN" in said else set()
        missing += [] if said else [f"outlast {name}"]
        wanted = [option for given in command.params for option in given.opts if option.startswith("--")]
        missing += [f"outlast {name} {option}" for option in wanted if option not in told]
    assert "classify" in root.commands
    assert missing == []


def undocumented(names: object, text: str) -> list[str]:
    """The names that the text never shows as code."""
    return sorted(set(names) - reference.words(text))


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


@table("name", PEERS)
def test_migration_page_answers_for_every_name_of_the_peer(name):
    """Whoever searches the page for a name of the library they know finds it."""
    page = (ROOT / "docs" / "migrate" / f"{name.partition('.')[0]}.md").read_text()
    assert undocumented(names_of_peer(name), page) == []


@table("name", [*(name for name in PEERS if "." not in name), "celery", "procrastinate", "rq"])
def test_migration_pages_tell_the_version_that_their_programs_run_with(name):
    """What a page says of another library was true of one release of it."""
    page = (ROOT / "docs" / "migrate" / "index.md").read_text()
    assert f"{name} {importlib.metadata.version(name)} |" in page.lower()


def waits_of_tenacity() -> list[tuple[str, str]]:
    """The rows of the page that say in code what a wait of tenacity is called here."""
    page = (ROOT / "docs" / "migrate" / "tenacity.md").read_text()
    return [
        row for row in re.findall(r"^\| `(wait_[^`]+)`[^|]*\| `(\w+=[^`]+)`", page, re.MULTILINE) if "..." not in row[0]
    ]


@table(("theirs", "ours"), waits_of_tenacity())
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
POINTS = {"S0": 45, "S1": 25, "S2": 30, "S3": 39, "S4": 30}  # how many points each of the five descriptions has


def requirements() -> tuple[list[str], list[str]]:
    """The ids that docs/requirements.md lists as "- **id** sentence", and those it lists as not built, with the reason."""
    page, _, not_built = (ROOT / "docs" / "requirements.md").read_text().partition("\n## Not built, because\n")
    built, left = (re.findall(rf"^- \*\*({IDENTITY})\*\* \S.*$", text, re.MULTILINE) for text in (page, not_built))
    return built, left


def test_each_requirement_named_by_a_test_has_its_line_and_each_line_a_test():
    """A line is proved by tests that name it in their docstrings; what is not built, and nothing else, has none."""
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    mentioned = {found for text in texts for found in re.findall(IDENTITY, text)}
    proved = set(docs_tables.GENERATE.proofs())
    built, left = requirements()
    assert sorted({entry for entry in built + left if (built + left).count(entry) > 1}) == []
    assert sorted(mentioned - set(built)) == [], "named by a test, without a line"
    assert sorted(set(built) - proved) == [], "a line without a test"


def test_every_point_of_the_five_descriptions_has_its_line():
    """None of the 169 is missing: each is proved by a test, or its line says why it is not built."""
    points = [f"{seed}-{number:02}" for seed, most in POINTS.items() for number in range(1, most + 1)]
    built, left = requirements()
    listed = [entry for entry in built + left if entry.startswith("S")]
    assert sorted(set(points) - set(listed)) == [], "neither proved nor explained"
    assert sorted(set(listed) - set(points)) == [], "no point of any of the five"


def test_the_tests_of_a_requirement_stand_below_its_sentence():
    """Those that name the fewest requirements come first; a sentence over two lines keeps both; what was there is replaced."""
    generate = docs_tables.GENERATE
    few, many = (sorted(generate.proofs().items(), key=lambda entry: len(entry[1]))[place] for place in (0, -1))
    unknown = f"S{9}-99"
    page = f"- **{few[0]}** One\n  sentence.\n  <br><small>`gone`</small>\n- **{many[0]}** Another.\n- **{unknown}** None.\n"
    shown = ", ".join(f"`{test}`" for test in many[1][:3])
    assert generate.with_proofs(page) == (
        f"- **{few[0]}** One\n  sentence.\n  <br><small>{', '.join(f'`{test}`' for test in few[1])}</small>\n"
        f"- **{many[0]}** Another.\n  <br><small>{shown} and {len(many[1]) - 3} more</small>\n- **{unknown}** None.\n"
    )
    assert generate.with_proofs(generate.with_proofs(page)) == generate.with_proofs(page)


# --- short enough to be read ---


@pytest.mark.parametrize(("page", "most"), [("README.md", 150), ("ARCHITECTURE.md", 165)])
def test_page_stays_short(page, most):
    """The two pages that everyone reads stay readable in one sitting."""
    assert len((ROOT / page).read_text().splitlines()) <= most
