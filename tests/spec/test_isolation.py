"""Where the attempts of a step run: the key `isolation` of a pipeline file."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from outlast.cli import app
from outlast.spec import yaml
from outlast.spec.compile import compile_text
from outlast.spec.diff import diff
from outlast.spec.manifest import Manifest
from outlast.spec.plan import safeguards, sentences
from outlast.spec.schema import json_schema
from spec.trees import data_of
from tables import table

HEAD = 'oml_version: "0.1.0"\nname: p\nparams:\n  how: {type: string, default: process}\nsteps:\n'
CALLER = "  - {id: a, component: http.caller, config: {url: 'https://a.example'}, timeout: {step: 5s}%s}\n"
PIPELINE = "  - {id: a, component: pipeline, config: {target: 'shop:load', input: in/day.jsonl}%s}\n"
NO_PROCESS = 'expected thread: the stages of a pipeline say how its items run, got process; leave it out, and write @stage(isolation="process")'
KILLED = "An attempt runs in a process of its own, which is killed when its time is up."


def compiled(more, step=CALLER, **how):
    return compile_text(HEAD + step % more, "p.yaml", **how)


def manifest_of(more, step=CALLER):
    found = compiled(more, step)
    assert found.manifest is not None, [str(one) for one in found.errors]
    return found.manifest


@table(
    ("more", "kept"),
    [
        (", isolation: process", "process"),
        (', isolation: "${params.how}"', "process"),
        (", isolation: process, for_each: {items: [1, 2]}", "process"),
        (", isolation: thread", None),
        (", isolation: null", None),
        ("", None),
    ],
)
def test_a_manifest_names_a_process_and_no_thread(more, kept):
    """D-9: in the policy, and only where it differs from what is usual."""
    manifest = manifest_of(more)
    assert manifest["a"].policy.get("isolation") == kept
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_a_file_that_names_the_usual_is_the_same_manifest():
    """U-20: byte for byte, as without the key; a process is other policy and the same work."""
    plain, thread, process = (manifest_of(more) for more in ("", ", isolation: thread", ", isolation: process"))
    assert thread.to_json() == plain.to_json()
    assert process["a"].work_fingerprint == plain["a"].work_fingerprint
    assert process["a"].policy_fingerprint != plain["a"].policy_fingerprint
    assert process["a"].timing == plain["a"].timing
    (step,) = diff(plain, process).steps
    assert [(one.part, one.text) for one in step.changes] == [("policy", "isolation: process, was not there")]


@table(
    ("more", "step", "told"),
    [
        (", isolation: proces", CALLER, "expected one of thread, process, got proces; did you mean 'process'?"),
        (", isolation: container", CALLER, "expected one of thread, process, got container; choose one of them"),
        (", isolation: true", CALLER, "expected one of thread, process, got true; choose one of them"),
        (", isolation: [process]", CALLER, "expected a single value, got a list; write one value"),
        (
            ", isolation: process",
            PIPELINE,
            NO_PROCESS,
        ),
    ],
)
def test_what_has_no_effect_is_refused(more, step, told):
    """D-26: an unknown word, and a process around items that have stages of their own."""
    (line,) = compiled(more, step).errors
    assert str(line).endswith(f": steps.a.isolation: {told}")


def test_a_pipeline_in_a_thread_is_allowed():
    """It is what there is without the key."""
    assert "isolation" not in manifest_of(", isolation: thread", PIPELINE)["a"].policy


@table(
    ("more", "said"),
    [
        (", isolation: process", [KILLED]),
        (", isolation: process, timeout: {total: 5s}", [KILLED]),
        (", isolation: process, timeout: null", ["An attempt runs in a process of its own."]),
        (", isolation: thread", []),
    ],
)
def test_explain_and_plan_say_what_becomes_of_an_attempt(more, said):
    """D-9: without a time limit nothing is killed, and a crash is contained."""
    step = manifest_of(more, CALLER.replace(", timeout: {step: 5s}", "") if "timeout" in more else CALLER)["a"]
    for lines in (sentences, safeguards):
        assert [one for one in lines(step.policy, step.timing, step.work) if "process" in one] == said


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_commands_show_the_process(tmp_path, monkeypatch, command):
    """D-9: `outlast plan` and `outlast explain`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "p.yaml").write_text(HEAD + CALLER % ", isolation: process")
    done = CliRunner().invoke(app, {"plan": ["compile", "p.yaml"], "explain": ["explain", "p.yaml", "a"]}[command])
    assert (done.exit_code, "which is killed when its time is up" in " ".join(done.output.split())) == (0, True)


def test_editors_know_the_words():
    """C-24: the schema takes both, and a reference, and nothing else."""
    validator = Draft202012Validator(json.loads(json.dumps(json_schema())))

    def right(more):
        node = yaml.read(HEAD + CALLER % more, "p.yaml").node
        return validator.is_valid(data_of(node))

    words = ("process", "thread", '"${params.how}"', "container", "true")
    assert [right(f", isolation: {word}") for word in words] == [True, True, True, False, False]
