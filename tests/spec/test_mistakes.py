"""
Every kind of mistake has its line: the place, what was expected, what came, the way out. The lines are in cases.txt; this
file as a program writes them anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from outlast.spec.compile import compile_text

CASES = Path(__file__).with_name("cases.txt")
HEAD = 'oml_version: "0.1.0"\nname: movies\nparams: {batch: {type: string, default: b1}, token: {type: string, sensitive: true}}\nsteps:\n'
LINE = re.compile(
    r"(?P<line>\d+):(?P<column>\d+): (?:(?P<path>\S+|\S+\['[^']*'\]): )?expected (?P<expected>.+), got (?P<got>.+?); (?P<way_out>.+)"
)
ARROW = "---> "


def cases() -> dict[str, tuple[str, list[str]]]:
    """Each case by its name: the text of the file, and its lines."""
    found: dict[str, tuple[str, list[str]]] = {}
    for case in CASES.read_text().split("\n=== ")[1:]:
        name, _, rest = case.partition("\n")
        lines = [f"{line}\n" for line in rest.splitlines()]
        text = "".join(line for line in lines if not line.startswith(ARROW))
        told = [line.removeprefix(ARROW).rstrip("\n") for line in lines if line.startswith(ARROW)]
        found[name] = text, told
    return found


def lines_of(name: str, text: str, *, pure: bool = False) -> list[str]:
    whole = HEAD + text if name.startswith("steps:") else text
    told = compile_text(whole, "flow.yaml", pure=pure, from_shell=True, root=CASES.parent).mistakes
    return [str(mistake).removeprefix("flow.yaml:") for mistake in told]


def test_every_kind_of_mistake_has_its_line():
    """S0-29, S0-30, C-24: at least 60 kinds, each with its line, column and way out."""
    wrong = {name: actual for name, (text, told) in cases().items() if (actual := lines_of(name, text)) != told}
    assert wrong == {}
    assert len(cases()) >= 60


def test_every_line_names_its_place_and_the_way_out():
    """One line each, never two, with all of its parts."""
    told = [line for _, lines in cases().values() for line in lines]
    assert [line for line in told if not LINE.fullmatch(line)] == []
    kinds = {(found["expected"], found["way_out"]) for line in told if (found := LINE.fullmatch(line))}
    assert len(kinds) >= 60


def test_a_file_with_ten_mistakes_reports_ten():
    """All at once: nobody mends a file line by line."""
    assert [len(told) for name, (_, told) in cases().items() if name.startswith("ten mistakes")] == [10, 10]


def test_the_parser_in_python_tells_the_same():
    """Where libyaml is missing, nothing changes but the time it takes."""
    differ = {
        name: (lines_of(name, text, pure=True), told)
        for name, (text, told) in cases().items()
        if lines_of(name, text, pure=True) != told
    }
    assert differ == {}


if __name__ == "__main__":
    top = CASES.read_text().partition("\n=== ")[0]
    body = [
        f"=== {name}\n{text}" + "".join(f"{ARROW}{line}\n" for line in lines_of(name, text))
        for name, (text, _) in cases().items()
    ]
    CASES.write_text("\n".join([top, "".join(body)]))
