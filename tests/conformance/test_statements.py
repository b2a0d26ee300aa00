"""Every statement that is in scope has its tests, and each test says which statement it is about."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from conformance.adapter import SUBJECTS

FOLDER = Path(__file__).parent

# State that is shared by processes: asked of real processes and their store, in tests/shared.
ELSEWHERE = {16, 55}
HEADINGS = {
    "test_control_flow.py": range(1, 15),
    "test_time.py": range(15, 24),
    "test_backoff.py": range(24, 31),
    "test_attempts.py": range(31, 38),
    "test_sync_timeouts.py": range(38, 43),
    "test_breaker.py": range(43, 58),
    "test_async_threads_memory.py": range(58, 73),
    "test_limits.py": range(69, 72),
    "test_configuration.py": range(73, 81),
}


def marked(path):
    """Each test of a module: its name, the numbers of its statements, its docstring."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = [mark for mark in node.decorator_list if isinstance(mark, ast.Call)]
            numbers = [ast.literal_eval(mark.args[0]) for mark in marks if getattr(mark.func, "id", "") == "statement"]
            yield node.name, numbers, ast.get_docstring(node)


def test_every_statement_in_scope_has_a_test():
    """What is not covered here is listed above as asked elsewhere."""
    covered = {number for name in HEADINGS for _, numbers, _ in marked(FOLDER / name) for number in numbers}
    assert covered == set(range(1, 81)) - ELSEWHERE


def test_every_test_is_about_one_statement_of_its_heading_and_says_so():
    """The marker, the module and the docstring agree."""
    wrong = []
    for module, heading in HEADINGS.items():
        for name, numbers, said in marked(FOLDER / module):
            match = re.match(r"semantics (\d+): \S", said or "")
            if not match or [int(match[1])] != numbers or numbers[0] not in heading or "\n" in said:
                wrong.append(f"{module}::{name}")
    assert wrong == []


def test_every_module_has_its_heading():
    """A module that is not listed would not be looked at."""
    assert {path.name for path in FOLDER.glob("test_*.py")} == {*HEADINGS, Path(__file__).name}


def test_subjects_are_known_by_their_names():
    """Programs in fresh interpreters find their subject by it."""
    assert all(subject.name == name for name, subject in SUBJECTS.items())
