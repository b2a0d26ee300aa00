"""The tables of the reference are what the code says, and what has no table is not forgotten."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from typing import get_args

import pytest

import outlast
import reference
from tables import table

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"


def generator():
    """docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = generator()


@table("page", [pytest.param(page, id=page.name) for page in GENERATE.pages()])
def test_generated_tables_are_current(page):
    """What stands between the markers is what `python docs/generate.py` would write now."""
    text = page.read_text()
    assert GENERATE.rendered(text) == text


def test_every_generated_section_is_on_one_page():
    """A table that nobody shows, or that two pages show, is a mistake."""
    shown = [found[1] for page in GENERATE.pages() for found in GENERATE.SECTION.findall(page.read_text())]
    assert sorted(shown) == sorted(GENERATE.SECTIONS)


def test_a_range_of_requirements_is_each_of_them():
    """A docstring that opens with S1-08..S1-10 is a proof of three."""
    spelled = GENERATE.spelled("S1-01, S1-08..S1-10, D-9..D-11: and so on")
    assert spelled == "S1-01, S1-08, S1-09, S1-10, D-9, D-10, D-11: and so on"
    with pytest.raises(SystemExit, match=r"expected a range of requirements to go up, got: S1-10\.\.S1-08\."):
        GENERATE.spelled("S1-10..S1-08: the wrong way")


def test_every_stop_reason_is_explained():
    """Every reason a call may stop for has its row."""
    rows = re.findall(r"^\| `(\w+)` \|", (REFERENCE / "stop-reasons.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(get_args(outlast.StopReason))


def test_every_older_name_is_in_the_reference():
    """What `outlast.compat` keeps is listed."""
    rows = reference.rows(reference.page("compat.md"))
    assert sorted(rows) == sorted(importlib.import_module("outlast.compat").__all__)


def test_every_testing_helper_is_in_the_reference():
    """What `outlast.testing` offers is listed."""
    room = outlast.testing
    homes = {name: str(getattr(getattr(room, name), "__module__", "")) for name in dir(room)}
    own = [name for name, home in homes.items() if home == room.__name__ or home.startswith(f"{room.__name__}.")]
    rows = reference.rows(reference.page("testing.md"))
    assert [name for name in own if not name.startswith("_") and name not in rows] == []


def test_every_environment_variable_is_in_the_reference():
    """What the package reads from the environment is listed."""
    sources = "\n".join(path.read_text() for path in sorted((ROOT / "src" / "outlast").rglob("*.py")))
    rows = reference.rows(reference.page("environment.md"))
    assert sorted(set(re.findall(r"\bOUTLAST_[A-Z_]+\b", sources))) == sorted(rows)


@table("options", ["RetryPolicy", "Guard", "CircuitBreaker", "Limit", "Rate", "RetryBudget", "Hedge"])
def test_every_option_has_its_row(options):
    """S4-28: each option of what users configure stands in the table under its heading, with its default."""
    place = ("policy.md", "Options") if options == "RetryPolicy" else ("api.md", options)
    text = reference.section(reference.page(place[0]), place[1])
    found = [block for block in reference.blocks(text) if block.startswith("|")]
    rows = {name: block for block in reversed(found) for name in reference.begins_with(block)}  # the first table's
    _, *wanted = inspect.signature(getattr(outlast, options).__init__).parameters.values()
    defaults = {one.name: one.default for one in wanted if one.kind is not inspect.Parameter.VAR_KEYWORD}
    assert {name: said_default(rows[name]) if name in rows else "no row" for name in defaults} == defaults


def said_default(row):
    """The default in the row of an option, as a value; `empty`, if it has none. Lists stand for tuples, as in files."""
    said = row.split("|")[2].strip().strip("`")
    if not said:
        return inspect.Parameter.empty
    value = outlast.RetryPolicy() if said == "RetryPolicy()" else ast.literal_eval(said)
    return tuple(value) if isinstance(value, list) else value


def test_each_statement_named_by_a_test_has_its_line_and_each_line_a_test():
    """docs/requirements.md lists a statement as "- **12** sentence"; the tests name it as the twelfth of the semantics."""
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
    in_words = re.findall(r"\bsemantics ((?:\d+(?:, (?:semantics )?| and )?)+)", sources, re.IGNORECASE)
    named = {number for words in in_words for number in re.findall(r"\d+", words)}
    named |= set(re.findall(r"@statement\((\d+)", sources))
    page = (ROOT / "docs" / "requirements.md").read_text()
    listed = re.findall(r"^- \*\*(\d+)\*\* \S.*$", page, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert sorted(named - set(listed), key=int) == [], "named by a test, without a line"
    assert sorted(set(listed) - named, key=int) == [], "a line without a test"


def test_every_statement_with_a_conformance_test_has_its_row_for_every_library():
    """The page that `make conformance` wrote answers each statement that is asked, and Outlast fails none."""
    sources = "\n".join(path.read_text() for path in (ROOT / "tests" / "conformance").glob("test_*.py"))
    asked = sorted({int(number) for number in re.findall(r"@statement\((\d+)", sources)})
    lines = re.findall(r"^- \*\*(\d+)\*\* (\S.*)$", (ROOT / "docs" / "requirements.md").read_text(), re.MULTILINE)
    said = {number: sentence.replace("|", "\\|") for number, sentence in lines if int(number) in asked}
    table = (ROOT / "docs" / "conformance.md").read_text().partition("## Statements")[2].partition("## ")[0]
    head, _, *rows = [line.strip("| ").split(" | ") for line in table.strip().splitlines()]
    assert [int(row[0]) for row in rows] == asked, "run `make conformance`"
    assert {row[0]: row[1] for row in rows} == said, "run `make conformance`"
    peers = re.findall(r"^([\w-]+)==", (ROOT / "benchmarks" / "requirements.txt").read_text(), re.MULTILINE)
    assert sorted(name.partition(" ")[0] for name in head[1:]) == sorted(["outlast", *peers])
    dash = "\N{EN DASH}"
    assert {row[2] for row in rows} <= {"holds", dash}
    assert {end for row in rows for end in row[3:]} <= {"holds", "**fails**", dash}


def proofs():
    """The names of all tests that are marked as proofs of a failure's row, by its number."""
    found = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        if "mark.failure(" not in (text := path.read_text()):
            continue
        for test in ast.walk(ast.parse(text)):
            for mark in getattr(test, "decorator_list", ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.failure":
                    for number in mark.args:
                        found.setdefault(number.value, set()).add(test.name)
    return found


def test_each_failure_of_other_queues_has_its_row_and_each_row_its_tests():
    """docs/failures.md names for each of the 35 the tests that are marked as its proofs, and no others."""
    rows = re.findall(
        r"^\| (\d+) \| (\S[^|]*) \| (\S[^|]*) \| (`[^|]*`) \|$",
        (ROOT / "docs" / "failures.md").read_text(),
        re.MULTILINE,
    )
    assert [int(number) for number, *_ in rows] == list(range(1, 36))
    assert {int(number): set(re.findall(r"`(\w+)`", names)) for number, _, _, names in rows} == proofs()
