"""A file is checked with each of its profiles: what only one of them makes wrong is told at its value, or with its name."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from outlast.cli.commands import command_line
from outlast.components.registry import find_component
from outlast.spec import reading, yaml
from outlast.spec.compile import compile_text
from outlast.spec.rules import check

FLOW = """\
oml_version: "0.1.0"
name: p
params:
  path: {type: string, default: in/a.csv}
  folder: {type: string, default: in}
  tries: {type: integer, default: 3}
  total: {type: integer, default: 60000}
profiles:
  dev: {params: {tries: 2}}
  stage: {params: {tries: 9, folder: ../x}}
  prod:
    params:
      tries: 9
      path: ../b.csv
  empty: {}
steps:
  - id: a
    component: files.reader
    config: {path: "${params.path}"}
  - id: b
    component: files.reader
    config: {path: "${params.folder}/a.csv"}
    retry: {max_attempts: "${params.tries}"}
    timeout: {step_ms: 5000, total_ms: "${params.total}"}
"""
MENDED = FLOW.replace("../x", "x").replace("../b", "b")


def told(text: str, **rest) -> list[str]:
    return [str(one) for one in compile_text(text, "p.yaml", complete=False, rules=(check,), **rest).mistakes]


@pytest.fixture
def outlast(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(text: str, *arguments: str):
        (tmp_path / "p.yaml").write_text(text)
        given = ["validate", "p.yaml", *arguments]
        return CliRunner().invoke(command_line(given), given)

    return run


def test_a_mistake_of_a_profile_is_told_at_its_value():
    """C-26: with the value, and where it is used; the file itself and other profiles are right (S0-29)."""
    assert told(FLOW) == []
    expected = [
        (
            "p.yaml:10:38: profiles.stage.params.folder: expected the name of a file or an object, got ${params.folder}, which has "
            "an empty part, . or .. between its / with folder '../x', in steps.b.config.path; it would lead elsewhere"
        ),
        (
            "p.yaml:14:13: profiles.prod.params.path: expected the name of a file or an object, got ${params.path}, which has "
            "an empty part, . or .. between its / with path '../b.csv', in steps.a.config.path; it would lead elsewhere"
        ),
    ]
    assert told(FLOW, every_profile=True) == expected
    assert told(FLOW, profile="prod") == expected[1:]  # as compile tells it
    assert told(FLOW, profile="prod", every_profile=True) == expected[1:]
    assert told(FLOW, profile="dev") == []


def test_what_only_profiles_make_wrong_names_them_and_is_told_once():
    """At its place in the file, where no value of the profile stands there itself (S0-29)."""
    (warning,) = told(MENDED, every_profile=True)
    assert warning.startswith("p.yaml:24:40: warning: steps.b.timeout.total_ms: expected time for every attempt, got ")
    assert ", with the profiles stage, prod; raise it to " in warning
    (alone,) = told(MENDED.replace("tries: 9, folder", "folder"), every_profile=True)
    assert ", with the profile prod; " in alone


def test_what_is_wrong_without_a_profile_is_told_once():
    """A key that is unknown, a reference to nothing and a default that does not fit are no matter of a profile (S0-29)."""
    for old, new in (
        ("id: b", "id: b\n    nope: 1"),
        ('"${params.folder}/a.csv"', '"${params.foldr}/a.csv"'),
        ("default: 60000", "default: 60"),
        ('"${params.folder}/a.csv"', '"${params.folder}/a.csv", nope: "${params.path}"'),
    ):
        text = MENDED.replace(old, new)
        assert len(told(text)) == 1
        assert told(text, every_profile=True) == told(text)


def test_what_is_misspelt_is_told_once_however_often_the_file_is_read():
    """A key that is read as what was meant is a mistake under every profile, and no matter of one (S0-29)."""
    text = FLOW.replace("    retry: {max_attempts", "    retrry: {max_atempts").replace(
        "params:\n  path", "parms:\n  path"
    )
    expected = ["p.yaml:3:1: parms: ", "p.yaml:23:5: steps.b.retrry: ", "p.yaml:23:14: steps.b.retry.max_atempts: "]
    lines = told(text)
    assert [one.partition("expected")[0] for one in lines] == expected
    everywhere = told(text, every_profile=True)
    assert [one for one in everywhere if one in lines] == lines
    assert not [one for one in everywhere if "known key" in one and "profile" in one]
    assert [one for one in told(text, profile="prod") if "known key" in one] == lines


def test_a_mistake_that_does_not_come_from_the_value_stays_where_it_is():
    """A key that takes no parameter at all is not the profile's mistake (S0-29)."""
    text = MENDED.replace("id: b\n    component: files.reader", 'id: b\n    component: "${params.path}"')
    assert told(text, profile="prod") == told(text) == told(text, every_profile=True)
    assert told(text)[0].startswith("p.yaml:21:16: steps.b.component: ")


def test_a_value_that_wins_over_the_profile_is_not_the_profiles_mistake():
    """C-26: what is given by hand or by the environment is what is checked."""
    assert told(FLOW, every_profile=True, params={"path": "in/c.csv", "folder": "in", "tries": 2}) == []
    (line,) = told(FLOW, profile="prod", environment={"OUTLAST_PARAM_PATH": "../c.csv"})
    assert line.startswith("p.yaml:19:20: steps.a.config.path: ")
    assert "../c.csv" not in line


def test_a_silence_that_a_profile_needs_is_no_silence_of_nothing():
    """R00 is told only if it is so with every profile."""
    text = MENDED.replace("id: b\n", "id: b\n    silence: [R03]\n")
    assert told(text, every_profile=True) == []
    assert told(text.replace("tries: 9", "tries: 3"), every_profile=True)[0].endswith("[R00]")


CEILING = """\
oml_version: "0.1.0"
name: p
params:
  tries: {type: integer, default: 3}
  top: {type: integer, default: 2000}
profiles:
  few: {params: {tries: 2}}
  many: {params: {tries: 4}}
steps:
  - id: a
    component: files.reader
    config: {path: a.csv}
    retry: {max_attempts: "${params.tries}", initial_delay_ms: 1000, jitter: 0, max_delay_ms: 25000}
"""


def test_a_ceiling_that_a_profile_reaches_is_needed():
    """R11: it is told once, of all profiles, and not of one under which others reach it."""
    (note,) = told(CEILING, every_profile=True)
    assert note.startswith("p.yaml:13:95: note: steps.a.retry.max_delay_ms: expected a ceiling that a wait can reach, ")
    assert note.endswith("got none that does, with any profile; lower it [R11]")
    assert told(CEILING.replace("tries: 4", "tries: 9"), every_profile=True) == []
    assert "got a longest wait of 2 s; leave it out [R11]" in told(CEILING)[0]
    same = CEILING.replace("tries: 2", "tries: 3").replace("tries: 4", "tries: 3")
    assert told(same, every_profile=True) == told(same)
    assert told(CEILING.replace(", default: 3", "")) == []  # nobody knows yet
    (alone,) = told(CEILING, profile="few")
    assert "got a longest wait of 1 s; leave it out [R11]" in alone


def test_a_ceiling_of_a_profile_is_told_at_its_value():
    """R11: without the value the default would hold, so the way out is another one."""
    text = CEILING.replace("max_delay_ms: 25000", 'max_delay_ms: "${params.top}"').replace("tries: 2", "top: 9000")
    (note,) = told(text, every_profile=True)
    assert note.startswith("p.yaml:7:23: note: profiles.few.params.top: expected a ceiling that a wait can reach, ")
    assert note.endswith("got a longest wait of 2 s, in steps.a.retry.max_delay_ms; lower it [R11]")
    assert told(text, profile="few") == [note]


def test_validate_looks_at_every_profile_and_compile_at_one(outlast, tmp_path):
    """So that a check in CI does not pass a profile that is broken; --profile narrows it (S0-29)."""
    done = outlast(FLOW)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 2)
    assert outlast(FLOW, "--profile", "dev").stdout == "p.yaml: valid, 2 steps.\n"
    assert outlast(MENDED).stdout == "p.yaml: valid, 2 steps, 3 profiles, 1 warning.\n"
    assert outlast(MENDED, "--strict").exit_code == 2
    (warning,) = json.loads(outlast(MENDED, "--json").stdout)["files"][0]["mistakes"]
    assert warning["profiles"] == ["stage", "prod"]
    given = ["compile", "p.yaml"]
    assert CliRunner().invoke(command_line(given), given).stderr == ""


def test_a_secret_of_a_profile_is_not_shown():
    """Neither at its own place nor where it is used (S0-42)."""
    text = FLOW.replace("path: ../b.csv", "path: postgresql://bob:hunter2PLANT@h/x")
    lines = told(text, every_profile=True)
    assert any("profiles.prod.params.path" in one for one in lines)
    assert not any("hunter2PLANT" in one for one in lines)


def test_so_many_profiles_are_refused():
    """A file is compiled once for each (S0-29)."""
    many = "".join(f"  p{n}: {{params: {{tries: {n % 5 + 1}}}}}\n" for n in range(101))
    lines = told(MENDED.replace("profiles:\n", f"profiles:\n{many}"), every_profile=True)
    assert [one for one in lines if "expected at most 100 profiles, got 105;" in one] == lines[:1]


def test_profiles_with_the_same_values_are_checked_once():
    """A hundred profiles cost as much as the values that they give are different; each is told at its own place (S0-29)."""
    looked: list[str | None] = []

    def look(model):
        looked.append(model.profile)
        return ()

    many = "".join(f"  p{number}: {{params: {{folder: {'../x' if number % 2 else 'x'}}}}}\n" for number in range(10))
    text = MENDED.replace("  empty: {}\n", f"  empty: {{}}\n{many}")
    found = compile_text(text, "p.yaml", complete=False, every_profile=True, rules=(look,)).mistakes
    first = text.splitlines().index("  p0: {params: {folder: x}}") + 1
    assert [one.line for one in found] == [first + number for number in (1, 3, 5, 7, 9)]
    assert [one.path[1] for one in found] == ["p1", "p3", "p5", "p7", "p9"]
    # Without one, the three before, two of the ten, and bare to see what a file has under all of them.
    assert [one for one in looked if one is not None] == ["dev", "stage", "prod", "p0", "p1"]


def test_a_tree_that_is_read_again_has_the_same_mistakes():
    """What is read as something else stays a mistake, also for whoever comes second (S0-29)."""
    text = FLOW.replace("    retry: {max_attempts", "    retrry: {max_atempts").replace(
        "config: {path", "confg: {paht", 1
    )
    root = yaml.read(text, "p.yaml").node
    assert root is not None
    how = {"given": {}, "environment": {}, "profile": None, "complete": False, "from_shell": False, "bare": False}
    first, second = (list(map(str, reading.read(root, "p.yaml", **how, find=find_component)[1])) for _ in range(2))
    assert len(first) == 4
    assert first == second
