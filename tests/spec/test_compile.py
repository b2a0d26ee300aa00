"""A pipeline file becomes a manifest: what is in it, what it is the same for, and what follows from a policy."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import Field

import outlast
from outlast.components.describing import Component
from outlast.components.registry import find_component as find
from outlast.components.steps.config import Config
from outlast.policy import RetryPolicy
from outlast.spec import plan
from outlast.spec.compile import compile_text, manifest_step
from outlast.spec.diff import diff
from outlast.spec.manifest import Manifest, ManifestStep
from outlast.spec.rules import check
from spec.described import described
from tables import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL = """\
oml_version: "0.1.0"
name: movies
params:
  batch: {type: string, default: monday}
steps:
  - id: read
    component: files.reader
    config: {path: "in/${params.batch}.jsonl"}
  - id: label
    component: python
    config: {call: "shop.steps:label", args: {rows: "${steps.read.outputs.rows}"}}
    retry: {max_attempts: 3, initial_delay_ms: 1000, jitter: 0.1, on_errors: [network_error, timeout]}
    timeout: {step_ms: 60000, total_ms: 300000}
"""


def compiled(text: str, **options) -> Manifest:
    """The manifest of a text without mistakes."""
    found = compile_text(text, **options)
    assert [str(mistake) for mistake in found.mistakes] == []
    assert found.manifest is not None
    return found.manifest


def test_a_file_becomes_a_manifest():
    """S0-01, S0-31: each step has its own policy; the schedule is there before anything runs."""
    manifest = compiled(SMALL)
    assert [(step.id, step.component, list(step.needs)) for step in manifest.steps] == [
        ("read", "files.reader", []),
        ("label", "python", ["read"]),
    ]
    assert manifest["read"].config["path"] == "in/monday.jsonl"
    assert manifest["read"].schedule == ()
    assert [(d.attempt, d.nominal, d.min, d.max) for d in manifest["label"].schedule] == [
        (2, 1.0, 0.9, 1.1),
        (3, 2.0, 1.8, 2.2),
    ]


def test_a_manifest_is_read_again_as_it_was_written():
    """What `to_json` writes is what `from_json` reads; what was changed by hand is refused."""
    manifest = compiled(SMALL)
    text = manifest.to_json()
    assert Manifest.from_json(text) == manifest
    assert Manifest.from_json(text).to_json() == text
    for broken in ("", "[]", "{}", '{"outlast_manifest": 2}', '{"outlast_manifest": 1}', "[" * 100_000):
        with pytest.raises(outlast.ConfigurationError, match="expected a manifest"):
            Manifest.from_json(broken)


@table(
    ("old", "new"),
    [
        ('"max_attempts": 3', '"max_attempts": 9'),
        ('"path": "in/monday.jsonl"', '"path": "in/friday.jsonl"'),
        ('"max_ms": 1100', '"max_ms": 1'),
        ('"worst_ms": 300000', '"worst_ms": 1'),
        ('"permanent": "fail"', '"permanent": "retry"'),
        ('"batch": "monday"', '"batch": "friday"'),
        ('"profile": null', '"profile": "prod"'),
        ('"open_params": []', '"open_params": ["token"]'),
        ('"owner": "ann"', '"owner": "bob"'),
        ('"description": "All of it."', '"description": "None of it."'),
        ('"name": "movies"', '"name": "films"'),
        ('"name": "movies"', '"name": "movies", "extra": 1'),
        ('"delays": []', '"delays": false'),
    ],
)
def test_a_manifest_that_was_edited_by_hand_is_refused(old, new):
    """U-20: whatever of it was changed, what follows from the rest and what is only told included."""
    text = compiled(
        SMALL.replace("params:", "description: All of it.\nparams:") + "    metadata: {owner: ann}\n"
    ).to_json()
    assert old in text
    with pytest.raises(
        outlast.ConfigurationError, match=r"changed after it was compiled|is missing, or is something else"
    ):
        Manifest.from_json(text.replace(old, new))


WHOLE = (
    SMALL
    + """\
    circuit_breaker: {failure_rate: 0.5, window: 20, on_open: wait}
    limit: {concurrency: 2, rates: {calls: "100/min"}, max_wait_ms: 1000}
    retry_budget: {}
    idempotent: true
    idempotency: {key: "label-${item.id}"}
    compensate: {component: python, config: {call: "shop.steps:undo"}, timeout: {step_ms: 1000}}
    for_each: {items: "${steps.read.outputs.rows}", key: id}
    metadata: {owner: ann}
"""
)
GONE = object()


def forged(data: dict[str, Any]) -> str:
    """A manifest of these parts, with fingerprints that fit."""
    steps = tuple(
        ManifestStep(one["id"], one["work"], one["policy"], one["timing"], one.get("notes", {}))
        for one in data["steps"]
    )
    parts = (data["params"], tuple(data["open_params"]), data["profile"], data.get("notes", {}), data["params_from"])
    return Manifest(data["name"], steps, *parts, data.get("open_types", {})).to_json()


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


def changed(data: dict[str, Any], path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    copied: Any = copy.deepcopy(data)
    at = copied
    for key in path[:-1]:
        at = at[key]
    if value is GONE:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return copied


@table(
    ("path", "value", "told"),
    [
        (("name",), "two words", "name is no id"),
        (("open_params",), [5], "open_params[0] is no id"),
        (("params_from", "batch"), "nobody", "params_from.batch is none of given, environment, profile, default"),
        (("open_types",), ["token"], "open_types is no mapping"),
        (("open_types",), {"pin": "string"}, "open_types.pin is none of integer, number, boolean, list, object"),
        (("open_types",), {"pin": "integer"}, "open_types.pin is none of open_params"),
        (("steps", 1, "id"), "read", "steps.read is there twice"),
        (("steps", 1, "work", "needs"), ["later"], "steps.label needs later, which is not before it"),
        (("steps", 1, "work", "extra"), 1, "steps[1].work.extra is no part of it"),
        (("steps", 1, "work", "compensate", "when"), "never", "steps[1].work.compensate.when is none of completed, started"),
        (("steps", 1, "work", "for_each"), GONE, "steps.label has one of work.for_each and policy.concurrency only"),
        (("steps", 1, "policy", "retry"), GONE, "steps[1].policy.retry is missing"),
        (("steps", 1, "policy", "isolation"), "thread", "steps[1].policy.isolation is none of process"),
        (("steps", 1, "policy", "retry", "max_attempts"), True, "steps[1].policy.retry.max_attempts is no whole number of at least 1"),
        (("steps", 1, "policy", "retry", "max_attempts"), 2, "steps.label.timing.attempts is more than max_attempts of the policy"),
        (("steps", 1, "policy", "retry", "jitter"), [], "steps[1].policy.retry.jitter is neither a word nor a number"),
        (("steps", 1, "policy", "limit", "rates", "calls"), "100/min", "steps[1].policy.limit.rates.calls is no mapping"),
        (("steps", 1, "policy", "circuit_breaker", "window"), None, "steps.label.policy.circuit_breaker.window is missing"),
        (("steps", 1, "policy", "\x1b[31m"), 1, "steps[1].policy.\ufffd[31m is no part of it"),
        (("steps", 1, "timing", "attempts"), 10**400, "steps[1].timing.attempts is no whole number of at least 1"),
        (("steps", 1, "timing", "delays", 1), GONE, "steps.label.timing.delays has not one wait before each attempt but the first"),
        (("steps", 1, "timing", "worst_ms"), None, "steps.label.timing has neither worst_ms nor unbounded"),
        (("steps", 1, "timing", "worst_ms"), 1, "steps.label.timing is not what follows from its policy, by this version of Outlast"),
        (("steps", 1, "timing", "delays", 0, "max_ms"), 1, "steps.label.timing is not what follows from its policy, by this version of Outlast"),
        (("steps", 1, "timing", "calls", "job"), 1, "steps.label.timing is not what follows from its policy, by this version of Outlast"),
        (("steps", 1, "timing", "refusals"), GONE, "steps.label.timing is not what follows from its policy, by this version of Outlast"),
        (("steps", 1, "timing", "compensate", "worst_ms"), 1, "steps.label.timing is not what follows from its policy, by this version of Outlast"),
        (("steps", 1, "timing", "errors", "permanent"), "retry", "steps.label.timing is not what follows from its policy, by this version of Outlast"),
        (("steps", 1, "policy", "timeout", "total_ms"), 1, "steps.label.timing is not what follows from its policy, by this version of Outlast"),
        (("steps", 1, "policy", "retry", "max_attempts"), 10**9, "steps.label.timing is not what follows from its policy, by this version of Outlast"),
        (("steps", 1, "policy", "retry", "jitter"), "x", "steps.label.policy has settings that no policy can have"),
        (("steps", 1, "timing", "errors", "transient"), "perhaps", "steps[1].timing.errors.transient is none of retry, fail"),
    ],
)  # fmt: skip
def test_a_manifest_with_right_fingerprints_and_other_parts_is_refused(path, value, told):
    """U-20, D-26: the line names the part; who reads a manifest relies on it."""
    text = forged(changed(json.loads(compiled(WHOLE).to_json()), path, value))
    with pytest.raises(outlast.ConfigurationError, match=re.escape(f"writes it, but {told}. Compile the pipeline")):
        Manifest.from_json(text)


def test_a_manifest_of_any_policy_is_read_again():
    """U-20: what is worked out again is what was compiled, whichever errors a step may meet and however odd its numbers are."""
    for rest in (
        "idempotent: false\n    retry: {max_attempts: 3, on_errors: [timeout, network_error]}",
        "retry: {max_attempts: 4, initial_delay: 0.3333333333333333, multiplier: 1.7, jitter: 0.123456789}",
        "retry: {max_attempts: 3, initial_delay_ms: 0.0005, jitter: decorrelated, max_delay: null, mode: requeue}",
        "retry: {delays_ms: [1.5, 2.0005], on_errors: [5xx, OSError, shop.Closed], skip_on_errors: [503], retry_limits: {network: 1}}",
        "retry: {max_attempts: 1, delays_ms: [5], retry_exhausted: false}",
        "timeout: {step: 0.3333333333333333, total: 2.00000001}",
    ):
        manifest = compiled(SMALL.partition("    retry:")[0] + f"    {rest}\n")
        assert Manifest.from_json(manifest.to_json()) == manifest


def test_a_manifest_that_is_taken_can_be_explained_and_compared():
    """U-20: whatever one of its values becomes, it is refused or everything that reads it can."""
    good = compiled(WHOLE)
    data = json.loads(good.to_json())
    assert Manifest.from_json(forged(data)) == good
    taken = refused = 0
    for path in places(data):
        for value in (None, 5, -1, 1e308, True, "x", [], {}, [1, "a"], {"a": {"b": 1}}, GONE):
            try:
                text = forged(changed(data, path, value))
            except (TypeError, KeyError, AttributeError, ValueError):
                continue  # not even fingerprints can be made of it
            try:
                found = Manifest.from_json(text)
            except outlast.ConfigurationError:
                refused += 1
                continue
            taken += 1
            plan.step_rows(found)
            diff(good, found)
            for step in found.steps:
                list(plan.sentences(step.policy, step.timing, step.work))
                list(plan.schedule_rows(step.id, step.policy, step.timing))
                list(plan.error_rows(step.timing))
                assert len(step.schedule) == step.timing["attempts"] - 1
    assert taken > 50
    assert refused > 500


CHANGES: dict[str, Callable[[Any], object]] = {
    "a key of a config": lambda step: step.config.__setitem__("table", "x"),
    "a key inside of it": lambda step: step.config["args"].update(day=1),
    "a key that goes": lambda step: step.policy["retry"].pop("max_attempts"),
    "a list": lambda step: step.work["needs"].append("other"),
    "a wait": lambda step: step.timing["delays"][0].clear(),
    "all of it": lambda step: setattr(step, "work", {}),
    "by an operator": lambda step: step.work.__ior__({"component": "x"}),
}


@table("change", CHANGES)
def test_a_manifest_cannot_be_changed(change):
    """What was compiled is what the fingerprint is of; a copy is one's own (S0-31)."""
    manifest = compile_text(SMALL).manifest
    assert manifest is not None
    with pytest.raises((TypeError, AttributeError)):
        CHANGES[change](manifest["label"])
    assert Manifest.from_json(manifest.to_json()) == manifest == pickle.loads(pickle.dumps(copy.deepcopy(manifest)))
    own = dict(manifest["label"].config)
    own["table"] = "x"
    assert "table" not in manifest["label"].config


def test_flow_load_has_the_warnings(tmp_path):
    """One line each, as the command tells them; a file that is in order has none (S0-29)."""
    path = tmp_path / "f.yaml"
    path.write_text(
        'oml_version: "0.1.0"\nname: n\nsteps: [{id: a, component: http.caller, config: {url: "https://a.example/"}}]\n'
    )
    (line,) = outlast.Flow.load(path).warnings
    assert line.startswith(f"{path}:3:")
    assert line.endswith("[R36]")
    (tmp_path / "a.py").write_text("def b(): ...")
    path.write_text('oml_version: "0.1.0"\nname: n\nsteps: [{id: a, component: python, config: {call: "a:b"}}]\n')
    assert outlast.Flow.load(path).warnings == ()


def test_parameters_given_in_python_have_their_types(tmp_path):
    """C-26: a text is no number there, and the way out names what Python has; in a shell all is text."""
    path = tmp_path / "f.yaml"
    head = 'oml_version: "0.1.0"\nname: n\nparams: {chunk: {type: integer}}\n'
    path.write_text(head + 'steps: [{id: a, component: python, config: {call: "a:b", args: {n: "${params.chunk}"}}}]\n')
    assert outlast.Flow.load(path, params={"chunk": 10}).manifest.params == {"chunk": 10}
    with pytest.raises(outlast.ConfigurationError, match="expected an integer, got a value that is not shown"):
        outlast.Flow.load(path, params={"chunk": "10"})
    with pytest.raises(
        outlast.ConfigurationError, match=r"give it with params=\{'chunk': \.\.\.\}, OUTLAST_PARAM_CHUNK"
    ):
        outlast.Flow.load(path)


def test_flow_load_compiles_a_file(tmp_path):
    """The door in Python: the manifest, or every mistake with its place in the file as it was named."""
    path = tmp_path / "movies.yaml"
    path.write_text(SMALL)
    flow = outlast.Flow.load(path, params={"batch": "tuesday"})
    assert flow.manifest["read"].config["path"] == "in/tuesday.jsonl"
    path.write_text(SMALL.replace("max_attempts", "max_attempt").replace("files.reader", "files.raeder"))
    with pytest.raises(outlast.ConfigurationError) as raised:
        outlast.Flow.load(path)
    assert [line.partition("movies.yaml:")[2] for line in raised.value.problems] == [
        "7:16: steps.read.component: expected the name of a component, got 'files.raeder'; did you mean 'files.reader'?",
        "12:13: steps.label.retry.max_attempt: expected a known key, got 'max_attempt'; did you mean 'max_attempts'?",
    ]
    for missing in (tmp_path / "missing.yaml", tmp_path, "null\0byte"):
        with pytest.raises(outlast.ConfigurationError, match="expected a pipeline file that can be read"):
            outlast.Flow.load(missing)
    path.write_text(SMALL)
    with pytest.raises(outlast.ConfigurationError, match="expected a connections file that can be read"):
        outlast.Flow.load(path, connections=tmp_path / "connections.yaml")


def step_with(block: str, **options):
    """The one step of a file that has this block."""
    text = 'oml_version: "0.1.0"\nname: one\nsteps:\n  - id: a\n    component: python\n    config: {call: "a:b"}\n'
    return compiled(f"{text}    {block}\n", **options)["a"]


# --- the policy in the manifest ---


@table(
    ("block", "waits"),
    [
        ("{max_attempts: 4, backoff: exponential, jitter: 0}", [1000, 2000, 4000]),
        ("{max_attempts: 4, backoff: linear, jitter: 0}", [1000, 2000, 3000]),
        ("{max_attempts: 4, backoff: none, jitter: 0}", [1000, 1000, 1000]),
        ("{max_attempts: 4, backoff: fixed, jitter: 0}", [1000, 1000, 1000]),
        ("{backoff: schedule, delays_ms: [30000, 120000, 480000], jitter: 0}", [30000, 120000, 480000]),
        ("{max_attempts: 4, multiplier: 4, initial_delay_ms: 30000, max_delay_ms: null, jitter: 0}", [30000, 120000, 480000]),
        ("{delays: [30s, 2m, 480], jitter: 0}", [30000, 120000, 480000]),
        ("{max_attempts: 3, initial_delay: 500ms, jitter: 0}", [500, 1000]),
        ("{max_attempts: 3, initial_delay_ms: 0, jitter: 0}", [0, 0]),
        ("{max_attempts: 8, jitter: 0}", [1000, 2000, 4000, 8000, 16000, 30000, 30000]),
        ("{max_attempts: 1}", []),
    ],
)  # fmt: skip
def test_waits_of_a_block_in_the_manifest(block, waits):
    """C-03, S0-03, S0-05, S0-10, S0-11: growth as it is named up to the ceiling, and nothing behind the last attempt."""
    assert [one["nominal_ms"] for one in step_with(f"retry: {block}").timing["delays"]] == waits


@table(
    ("block", "bands"),
    [
        ("{max_attempts: 3, jitter: 0.1}", [(900, 1100), (1800, 2200)]),
        ("{max_attempts: 3, jitter: {add_ms: 1000}}", [(1000, 2000), (2000, 3000)]),
        ("{max_attempts: 3, jitter: true}", [(1000, 2000), (2000, 3000)]),
        ("{max_attempts: 3, jitter: false}", [(1000, 1000), (2000, 2000)]),
        ("{max_attempts: 2, initial_delay_ms: 30000, jitter: 0.1}", [(27000, 30000)]),
        ("{max_attempts: 2, initial_delay_ms: 30000, jitter: 0.1, cap: before_jitter}", [(27000, 33000)]),
        ("{max_attempts: 2, initial_delay_ms: 60000, jitter: 0.1, max_delay_ms: null}", [(54000, 66000)]),
    ],
)  # fmt: skip
def test_bands_of_a_block_in_the_manifest(block, bands):
    """C-04, C-05, S0-06, S0-09: jitter in both directions; the ceiling holds after it, unless the block says otherwise."""
    assert [(one["min_ms"], one["max_ms"]) for one in step_with(f"retry: {block}").timing["delays"]] == bands


@table(
    ("block", "attempts"),
    [
        ("{max_attempts: 5}", 5),
        ("{max_retries: 4}", 5),
        ("{max_attempts: 5, max_retries: 4}", 5),
        ("{retry_limits: {database: 5, network: 3}}", 6),
        ("{retry_limits: {database: 5, network: 3}, max_attempts: 4}", 4),
    ],
)
def test_attempts_of_a_block(block, attempts):
    """C-01, C-02, S0-02: executions in all; without a number of attempts, one more than the largest limit of a tier."""
    assert step_with(f"retry: {block}").timing["attempts"] == attempts


def test_a_canonical_block_makes_the_same_policy_again():
    """C-24: whatever spelling a block has, the manifest has one, and it means the same."""
    blocks = [
        {"max_retries": 2, "initial_delay": "2s", "max_delay_s": 90, "jitter": True},
        {"base_delay_ms": 500, "backoff": "linear"},
        {"retry_backoff_base": 2},
        {"preset": "jobs"},
        {"preset": "tiered", "retry_exhausted": False},
        {"delays_s": [1, 2], "jitter": 0.5, "on_errors": ["5xx", 429, "TimeoutError"]},
        {"max_attempts": 1, "mode": "requeue"},
        {"backoff": "jittered_exponential", "unclear": "retry"},
    ]
    for block in blocks:
        canonical = step_with(f"retry: {json.dumps(block)}").policy["retry"]
        assert [key for key in canonical if re.search("(delay|after)s?$", key)] == [], "a time without its unit"
        made, meant = RetryPolicy.from_config(canonical), RetryPolicy.from_config(block)
        assert (list(made.schedule()), made.max_attempts) == (list(meant.schedule()), meant.max_attempts)
        assert (made.retry_limits, made.retry_exhausted) == (meant.retry_limits, meant.retry_exhausted)


def test_worst_case_against_the_timeouts():
    """C-19, S0-14, S0-15: the sums, when each attempt begins at the latest, and the first that may not have its time."""
    step = step_with("timeout: {step_ms: 180000, total_ms: 300000}\n    retry: {max_attempts: 3, jitter: 0.1}")
    assert step.timing["delays"] == [
        {"attempt": 2, "nominal_ms": 1000, "min_ms": 900, "max_ms": 1100, "sum_ms": 1000, "sum_min_ms": 900,
         "sum_max_ms": 1100, "latest_start_ms": 300000},
        {"attempt": 3, "nominal_ms": 2000, "min_ms": 1800, "max_ms": 2200, "sum_ms": 3000, "sum_min_ms": 2700,
         "sum_max_ms": 3300, "latest_start_ms": 300000},
    ]  # fmt: skip
    assert (step.timing["worst_ms"], step.timing["in_doubt"]) == (300000, {"attempt": 2, "left_ms": 118900})
    free = step_with("timeout: {step_ms: 1000}\n    retry: {max_attempts: 3, jitter: 0}")
    assert (free.timing["worst_ms"], "in_doubt" in free.timing) == (246_000, False)


RETRIED = "timeout: {step_ms: 1000}\n    retry: {max_attempts: 3, jitter: 0"


@table(
    ("text", "worst", "unbounded"),
    [
        (f"{RETRIED}, max_retry_after_ms: 0}}", 6000, None),
        (f"{RETRIED}}}", 6000 + 2 * 120_000, None),  # what a service may ask for
        (f"{RETRIED}, max_retry_after_ms: 500}}\n    limit: {{concurrency: 1, max_wait_ms: 100}}", 7300, None),
        (f"{RETRIED}}}\n    limit: {{concurrency: 1}}", None, ["limit"]),
        (f"{RETRIED}}}\n    circuit_breaker: {{on_open: wait}}", None, ["circuit_breaker"]),
        # An open circuit that is retried is waited for, for as long as it is open.
        (f"{RETRIED}, on_errors: [timeout, circuit_open]}}\n    circuit_breaker: {{}}", None, ["circuit_breaker"]),
        (f"{RETRIED}, on_errors: [CircuitBreakerOpenError]}}\n    circuit_breaker: {{}}", None, ["circuit_breaker"]),
        (f"{RETRIED}, on_errors: [all], skip_on_errors: [circuit_open]}}\n    circuit_breaker: {{}}", 246_000, None),
        (f"{RETRIED}}}\n    circuit_breaker: {{on_open: fail}}", 246_000, None),
        ("retry: {max_attempts: 3}", None, ["attempt"]),
        ("limit: {rates: {calls: 1/s}}\n    circuit_breaker: {on_open: wait}", None, ["attempt", "limit", "circuit_breaker"]),
        ("limit: {concurrency: 1}\n    circuit_breaker: {on_open: wait}\n    timeout: {total_ms: 60000}", 60_000, None),
        (f"{RETRIED.replace('1000', '1000, total_ms: 5000')}}}", 5000, None),
        (f"{RETRIED.replace('1000', '1000, total_ms: 900000')}}}", 246_000, None),
    ],
)  # fmt: skip
def test_the_worst_case_is_one_or_says_what_keeps_it_from_being_one(text, worst, unbounded):
    """C-19: waits that a service asks for and places in line count; only a total bounds what has no end (S0-31)."""
    timing = step_with(text).timing
    assert (timing["worst_ms"], timing.get("unbounded")) == (worst, unbounded)


def test_executions_are_multiplied_where_a_job_tries_again():
    """D-8: in one run the inner layer owns an error; a durable job requeues what is exhausted, or only what was not retried."""
    assert step_with("retry: {max_attempts: 3}").timing["calls"] == {"run": 3, "job": 12}
    assert step_with("retry: {max_attempts: 3, retry_exhausted: false}").timing["calls"] == {"run": 3, "job": 6}
    covering = "retry: {max_attempts: 3, on_errors: [transient, 5xx], retry_exhausted: false}"
    assert step_with(covering).timing["calls"] == {"run": 3, "job": 3}
    assert step_with("description: once").timing["calls"] == {"run": 1, "job": 4}


@table(
    ("block", "errors"),
    [
        ("{max_attempts: 3}", {"transient": "retry", "unclear": "fail", "permanent": "fail"}),
        ("{max_attempts: 3, on_errors: all}", {"transient": "retry", "unclear": "retry", "permanent": "retry"}),
        ("{max_attempts: 3, unclear: retry}", {"transient": "retry", "unclear": "retry", "permanent": "fail"}),
        ("{max_attempts: 1}", {"transient": "fail", "unclear": "fail", "permanent": "fail"}),
        ("{max_attempts: 3, on_errors: []}", {"transient": "fail", "unclear": "fail", "permanent": "fail"}),
    ],
)
def test_where_errors_go(block, errors):
    """S0-07, S0-08: for each category, whether its errors are tried again."""
    assert step_with(f"retry: {block}").timing["errors"] == errors


def test_where_errors_of_a_part_of_a_category_go():
    """Their classes are listed under both words; statuses and exceptions by themselves."""
    errors = step_with("retry: {on_errors: [timeout, 429, TimeoutError], skip_on_errors: [unavailable]}").timing[
        "errors"
    ]
    assert errors["transient"]["retry"] == ["timeout"]
    assert "rate_limited" in errors["transient"]["fail"]
    assert errors["listed"] == ["429", "TimeoutError"]


def test_a_step_without_a_retry_block_makes_one_attempt():
    """S0-01: what is not declared is not retried; `retry: null` says the same."""
    assert step_with("description: plain").timing["attempts"] == 1
    assert step_with("retry: null") == step_with("retry:")


# --- fingerprints ---


@table(
    ("before", "after", "work", "policy"),
    [
        ("max_attempts: 3", "max_attempts: 4", False, True),
        ("initial_delay_ms: 1000", "initial_delay_ms: 1001", False, True),
        ("initial_delay_ms: 1000", "initial_delay_ms: 1000.2", False, True),
        ("step_ms: 60000", "step_ms: 60000.5", False, True),
        ("jitter: 0.1", "jitter: 0.11", False, True),
        ("on_errors: [network_error, timeout]", "on_errors: [timeout]", False, True),
        ("total_ms: 300000", "total_ms: 300001", False, True),
        ("shop.steps:label", "shop.steps:other", True, False),
        ("{rows: ", "{all: ", True, False),
    ],
)
def test_a_change_shows_in_the_fingerprint_that_it_belongs_to(before, after, work, policy):
    """A retry number changes the policy and the whole, never the work; and the other way round."""
    assert before in SMALL
    old, new = compiled(SMALL), compiled(SMALL.replace(before, after))
    old_step, new_step = old["label"], new["label"]
    assert (old_step.work_fingerprint != new_step.work_fingerprint) is work
    assert (old_step.policy_fingerprint != new_step.policy_fingerprint) is policy
    assert old_step.fingerprint != new_step.fingerprint
    assert old.fingerprint != new.fingerprint
    assert old["read"].fingerprint == new["read"].fingerprint


NUMBERS: list[tuple[str, dict[str, Any], str, Any, Any]] = [
    ("retry", {}, "max_attempts", 3, 4),
    ("retry", {}, "max_retries", 3, 4),
    ("retry", {"max_attempts": 4}, "initial_delay_ms", 1, 1.001),
    ("retry", {"max_attempts": 4}, "initial_delay", "1s", "1.0001s"),
    ("retry", {"max_attempts": 4}, "max_delay_ms", 40000, 40001),
    ("retry", {"max_attempts": 4}, "multiplier", 2, 2.0001),
    ("retry", {"max_attempts": 4}, "jitter", 0.1, 0.1001),
    ("retry", {"max_attempts": 4}, "jitter", {"add_ms": 1}, {"add_ms": 1.5}),
    ("retry", {"max_attempts": 4}, "max_retry_after_ms", 1, 2),
    ("retry", {"max_attempts": 4}, "cap", "after_jitter", "before_jitter"),
    ("retry", {"max_attempts": 4}, "retry_limits", {"network": 1}, {"network": 2}),
    ("retry", {"max_attempts": 4}, "retry_exhausted", True, False),
    ("retry", {"max_attempts": 4}, "mode", "inline", "requeue"),
    ("retry", {"max_attempts": 4}, "skip_on_errors", [], ["timeout"]),
    ("retry", {}, "delays_ms", [1, 2], [1, 2.5]),
    ("timeout", {}, "step_ms", 1, 1.5),
    ("timeout", {}, "total_ms", 1, 2),
    ("circuit_breaker", {}, "failure_threshold", 5, 6),
    ("circuit_breaker", {}, "reset_timeout_s", 60, 61),
    ("circuit_breaker", {}, "half_open_requests", 2, 3),
    ("circuit_breaker", {}, "success_threshold", 1, 2),
    ("circuit_breaker", {}, "scope", "a", "b"),
    ("circuit_breaker", {}, "on_open", "fail", "wait"),
    ("circuit_breaker", {}, "failure_rate", 0.5, 0.6),
    ("limit", {}, "concurrency", 5, 6),
    ("limit", {}, "rates", {"calls": "5/s"}, {"calls": "6/s"}),
    ("retry_budget", {}, "ratio", 0.1, 0.2),
    ("retry_budget", {}, "reserve", 1, 2),
    ("for_each", {"items": [1]}, "concurrency", 3, 4),
    ("compensate", {"component": "python", "config": {"call": "a:c"}}, "timeout", {"step_ms": 3}, {"step_ms": 4}),
]


@table(("block", "beside", "key", "before", "after"), NUMBERS)
def test_every_number_of_a_policy_is_in_its_fingerprint(block, beside, key, before, after):
    """Changed by however little, it changes that of the policy and of the whole, and not that of the work (S0-32)."""
    step = {"id": "a", "component": "python", "config": {"call": "a:b"}, "retry": {"max_attempts": 2}}
    old, new = (
        compiled(json.dumps({"oml_version": "0.1.0", "name": "n", "steps": [step | {block: beside | {key: value}}]}))
        for value in (before, after)
    )
    assert old["a"].work_fingerprint == new["a"].work_fingerprint
    assert old["a"].policy_fingerprint != new["a"].policy_fingerprint
    assert old.fingerprint != new.fingerprint


@table(
    "number", ["max_attempts: 5", "multiplier: 3", "max_delay_ms: 9000", "max_retry_after_ms: 5", "cap: before_jitter"]
)
def test_a_retry_number_of_a_compensation_is_policy_too(number):
    """What undoes a step is its work; how often that is tried is not."""
    with_undo = "compensate: {component: python, config: {call: 'a:c'}, retry: {jitter: 0.2}}"
    old, new = step_with(with_undo), step_with(with_undo.replace("jitter: 0.2", f"jitter: 0.2, {number}"))
    assert old.work_fingerprint == new.work_fingerprint
    assert old.policy_fingerprint != new.policy_fingerprint


@table("words", ["description: other words", "metadata: {owner: ann}", "x-note: 5"])
def test_what_nothing_reads_changes_no_fingerprint(words):
    """It is in the manifest all the same."""
    old, new = step_with("description: words"), step_with(words)
    assert old.fingerprint == new.fingerprint
    assert old.as_data() != new.as_data()


# --- the same everywhere ---

PROGRAM = """
import os, sys, time
os.environ["TZ"] = sys.argv[2]; time.tzset()
import outlast
sys.stdout.write(outlast.Flow.load(sys.argv[1], params={"batch": "ä"}).manifest.to_json())
"""


def test_two_processes_write_the_same_bytes(tmp_path):
    """S0-31, S0-32, C-06: whatever the locale, the time zone, the hash seed and the folder are."""
    texts = []
    for number, (zone, language) in enumerate([("Pacific/Auckland", "C"), ("America/Lima", "de_DE.UTF-8")]):
        folder = tmp_path / f"place-{number}"
        folder.mkdir()
        (folder / "movies.yaml").write_text(SMALL + WIDE)
        env = {"PYTHONHASHSEED": str(number), "LANG": language, "LC_ALL": language, "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", PROGRAM, "movies.yaml", zone],
            cwd=folder, env=os.environ | env, capture_output=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    assert texts[0] == texts[1]
    assert "in/ä.jsonl" in texts[0].decode()
    assert not re.search(rb"place-|/tmp|Auckland|Lima|\b20\d\d-", texts[0])


WIDE = """\
  - id: wide
    component: python
    config: {call: "a:b", args: {z: 1, a: {y: [1, 2.5, true, null], b: "x"}}}
    retry: {retry_limits: {network: 3, database: 5}, on_errors: [timeout, 503, 5xx]}
    limit: {concurrency: 3, rates: {tokens: {amount: 5, per_s: 1}, calls: 500/min}}
    retry_budget: {ratio: 0.3}
    circuit_breaker: {failure_rate: 0.5, scope: shop}
    metadata: {zeta: 1, alpha: 2}
"""


def test_a_manifest_is_canonical_json():
    """Keys in order, no number that JSON does not know, one line end at the end; times carry their unit."""
    text = compiled(SMALL + WIDE).to_json()
    data = json.loads(text)
    assert text == json.dumps(data, sort_keys=True, indent=2, ensure_ascii=False) + "\n"
    wide = next(step for step in data["steps"] if step["id"] == "wide")
    assert wide["policy"]["limit"]["rates"] == {
        "calls": {"amount": 500.0, "burst": 1.0, "per_ms": 60000},
        "tokens": {"amount": 5.0, "burst": 1.0, "per_ms": 1000},
    }
    assert wide["policy"]["limit"]["name"] == "movies.wide"
    assert wide["policy"]["circuit_breaker"]["scope"] == "shop"


# --- order ---


def chain(*steps: str) -> str:
    return 'oml_version: "0.1.0"\nname: order\nsteps:\n' + "".join(
        f"  - {{{one}, component: python, config: {{call: 'a:b'}}}}\n" for one in steps
    )


@table(
    ("steps", "needs"),
    [
        (("id: a", "id: b", "id: c"), {"a": [], "b": ["a"], "c": ["b"]}),
        (("id: a", "id: b, needs: []", "id: c"), {"a": [], "b": [], "c": ["b"]}),
        (("id: a", "id: b", "id: c, depends_on: [a]"), {"a": [], "b": ["a"], "c": ["a"]}),
        (("id: a", "id: b, needs: [a], depends_on: [a]"), {"a": [], "b": ["a"]}),
        (("id: a, needs: [b]", "id: b, needs: []"), {"b": [], "a": ["b"]}),
    ],
)
def test_needs(steps, needs):
    """C-25, S0-22: needs and depends_on are one; without either, the previous step; [] for none. Steps come in their order."""
    manifest = compiled(chain(*steps))
    assert {step.id: list(step.needs) for step in manifest.steps} == needs
    assert [step.id for step in manifest.steps] == list(needs)


# --- OML ---


def test_the_shape_of_oml_is_taken():
    """D-19: every key of an OML 0.1.0 step and file, and extensions; they are in the manifest."""
    text = """\
oml_version: "0.1.0"
name: movies
description: all of it
metadata: {owner: ann}
schedule: {cron: "0 4 * * *"}
x-team: data
params: {day: {type: string, default: monday}}
profiles: {prod: {params: {day: friday}}}
steps:
  - id: read
    component: files.reader
    mode: read
    config: {path: in.csv}
    metadata: {cost: low}
    x-note: first
  - id: use
    component: python
    config: {call: "a:b"}
    needs: [read]
    inputs: {df: "${steps.read.outputs.rows}"}
"""
    manifest = compiled(text, profile="prod")
    assert manifest.notes == {
        "description": "all of it", "metadata": {"owner": "ann"}, "schedule": {"cron": "0 4 * * *"}, "x-team": "data"
    }  # fmt: skip
    assert (manifest.params, manifest.profile) == ({"day": "friday"}, "prod")
    assert manifest["read"].notes == {"metadata": {"cost": "low"}, "x-note": "first"}
    assert manifest["read"].work["mode"] == "read"
    assert manifest["use"].work["inputs"] == {"df": "${steps.read.outputs.rows}"}


# --- components ---


def test_defaults_of_a_config_are_in_the_manifest():
    """Resolved: what a key means that was left out is there to be read."""
    config = compiled(SMALL)["read"].config
    assert config == {
        "path": "in/monday.jsonl",
        "format": None,
        "delimiter": None,
        "encoding": None,
        "max_bytes": 256_000_000,
    }


class Inner(Config):
    deep: int = 1


class Other(Config):
    kind: Literal["other"] = "other"
    size: int = 9


class Small(Config):
    kind: Literal["small"]
    inner: Inner = Inner()


class Outer(Config):
    """A config with models inside of it, in every way in which they can be."""

    one: Inner = Inner()
    maybe: Inner | None = None
    many: list[Inner] = Field(default_factory=list)
    named: dict[str, Inner] = Field(default_factory=dict)
    either: Other | Small | int = 3
    pair: tuple[int, Inner] | None = None
    words: frozenset[str] = frozenset({"b", "a", "d", "c"})


@table(
    ("given", "resolved"),
    [
        ({}, {"one": {"deep": 1}, "maybe": None, "words": ["a", "b", "c", "d"]}),
        ({"one": {}, "maybe": {}}, {"one": {"deep": 1}, "maybe": {"deep": 1}}),
        ({"one": {"deep": 2}}, {"one": {"deep": 2}}),
        ({"many": [{}, {"deep": 4}]}, {"many": [{"deep": 1}, {"deep": 4}]}),
        ({"named": {"x": {}}}, {"named": {"x": {"deep": 1}}}),
        ({"either": {"kind": "small"}}, {"either": {"kind": "small", "inner": {"deep": 1}}}),
        ({"either": {"size": 1}}, {"either": {"size": 1, "kind": "other"}}),
        ({"either": 5}, {"either": 5}),
        ({"one": "${params.batch}"}, {"one": "monday"}),
        ({"one": {"deep": "${steps.a.outputs.x}"}}, {"one": {"deep": "${steps.a.outputs.x}"}}),
        ({"maybe": "${steps.a.outputs.x}"}, {"maybe": "${steps.a.outputs.x}"}),
    ],
)
def test_defaults_of_models_inside_of_a_config_are_in_the_manifest(given, resolved):
    """C-24: at every level, also beside what is known only when the step runs; a set has an order."""
    component = Component("shop.outer", "Has models inside.", Outer)
    text = f"""\
oml_version: "0.1.0"
name: movies
params: {{batch: {{type: string, default: monday}}}}
steps:
  - {{id: a, component: python, config: {{call: "a:b"}}}}
  - {{id: b, component: shop.outer, config: {json.dumps(given)}}}
"""
    found = compile_text(text, find=lambda name: component if name == "shop.outer" else find(name)).model
    assert found is not None
    config = manifest_step(found.steps[1]).config
    assert {key: config[key] for key in resolved} == resolved


class Moving(Config):
    at: str = Field(default_factory=lambda: str(next(COUNTING)))


class Failing(Config):
    at: int = Field(default_factory=lambda: 1 // 0)


COUNTING = itertools.count()


@table(
    ("options", "words"),
    [
        ({"config": Moving}, "defaults are always the same"),
        ({"config": Failing}, "defaults are known beforehand"),
        ({"config": Inner, "secrets": ("dep",)}, "Did you mean 'deep'?"),
        ({"config": Inner, "secrets": ("deep",)}, "deep without a default"),
        ({"config": Inner, "literal": ("x",)}, "expected literal to be keys of the config"),
    ],
)
def test_a_description_that_no_manifest_can_be_made_with_is_refused(options, words):
    """C-06, D-26: what differs from process to process, a secret in it, or a name that nothing has."""
    with pytest.raises(outlast.ConfigurationError, match=re.escape(words)):
        Component("shop.outer", "Is wrong.", **options)


def test_a_value_that_comes_later_is_not_held_against_a_config():
    """A number that a step puts out cannot be checked before it runs; everything else of the config is."""
    text = SMALL.replace('path: "in/${params.batch}.jsonl"', 'path: "in.csv", format: "${steps.label.outputs.f}"')
    lines = [str(one) for one in compile_text(text).mistakes]
    assert len(lines) == 1
    assert "expected a reference to a step that has run before" in lines[0]


def test_a_connection_must_be_of_the_family_that_the_component_needs():
    """It is in the manifest by its name only."""
    text = 'oml_version: "0.1.0"\nname: one\nsteps:\n  - {id: a, component: mysql.extractor, config: {connection: "@mysql.shop", query: "select 1 as q"}}\n'
    assert compiled(text, find=find)["a"].config["connection"] == "@mysql.shop"
    for wrong, expected in (("@pg.shop", "family mysql"), ("mysql.shop", "as @family.alias")):
        (mistake,) = compile_text(text.replace("@mysql.shop", wrong), find=find).mistakes
        assert expected in str(mistake)


def test_a_key_that_the_component_calls_secret_is_given_by_reference_only():
    """S0-42 and inline secrets: by its name, whatever it is called; and it is never a part of an idempotency key."""
    secret = described("vault.reader", keys=("entry",), secrets=("entry",))
    text = 'oml_version: "0.1.0"\nname: one\nparams: {e: {type: string, sensitive: true}}\nsteps:\n  - id: a\n    component: vault.reader\n    config: {entry: %s}\n%s'
    (inline,) = compile_text(text % ("plain", ""), find=lambda _: secret).mistakes
    assert "plain" not in str(inline)
    manifest = compiled(text % ('"${params.e}"', ""), find=lambda _: secret, params={"e": "hunter2"})
    assert manifest["a"].config == {"entry": "${params.e}"}
    assert (manifest.params, manifest.open_params) == ({}, ("e",))
    (key,) = compile_text(
        text % ('"${params.e}"', '    idempotency: {key: "${entry}"}\n'), find=lambda _: secret
    ).mistakes
    assert "a key without secrets" in str(key)


def test_a_component_that_cannot_be_loaded_is_told_at_its_step():
    """One broken package is one mistake, not the end of the others."""

    def broken(name):
        raise outlast.ConfigurationError("the component cannot be loaded: no such module.")

    steps = "[{id: a, component: x.y}, {id: b, component: x.y}]"
    (mistake,) = compile_text(f'oml_version: "0.1.0"\nname: one\nsteps: {steps}', find=broken).mistakes
    assert "steps.a.component: expected a component that can be loaded" in str(mistake)


def test_rules_may_add_mistakes():
    """Whoever looks at the model can add to what is told; a warning does not keep the manifest back."""

    def rule(model):
        yield model.mistake(model.steps[1], ("retry", "jitter"), "more jitter", "0.1", "raise it", code="R07")

    found = compile_text(SMALL, "m.yaml", rules=[rule])
    assert found.manifest is not None
    assert [str(one) for one in found.mistakes] == [
        "m.yaml:12:62: warning: steps.label.retry.jitter: expected more jitter, got 0.1; raise it [R07]"
    ]


# --- time ---


def large(steps: int) -> str:
    """A file of so many steps, each with eight keys and a policy of its own."""
    lines = ['oml_version: "0.1.0"', "name: large", "params: {batch: {type: string, default: b1}}", "steps:"]
    for n in range(steps):
        lines += [
            f"  - id: step-{n}",
            "    component: python",
            f'    config: {{call: "shop.steps:work{n}"}}',
            "    mode: ~",
            f"    retry: {{max_attempts: {2 + n % 3}, initial_delay_ms: {1000 + n}}}",
            f"    timeout: {{step_ms: {60000 + n}}}",
            "    idempotency: {key: '${call}:${params.batch}'}",
            "    dead_letter: true",
        ]
    return "\n".join(lines)


def cpu_time(steps: int, times_over: int) -> float:
    """The least of several times, in seconds of the processor: what else runs does not count."""
    text, times = large(steps), []
    for _ in range(times_over):
        began = time.process_time()
        assert compile_text(text).errors == ()
        times.append(time.process_time() - began)
    return min(times)


def test_a_thousand_steps_take_less_than_a_second_and_time_grows_with_the_steps():
    """In process, after imports; four times the steps take about four times as long."""
    compile_text(large(2))
    small, great = cpu_time(1000, 2), cpu_time(4000, 1)
    assert small < 1.0
    assert great < 4 * small * 2


def test_a_protected_call_loads_nothing_of_it():
    """`from outlast import retry` stays as light as it was, and the names of flows need nothing that is installed."""
    code = "import sys\nfrom outlast import retry, Flow, Manifest\nprint([m for m in sys.modules if m.split('.')[0] in ('yaml', 'pydantic')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == "[]\n"


def test_what_is_missing_says_how_to_get_it(tmp_path):
    """Without the extra there is no traceback, but the name of what brings it."""
    (tmp_path / "m.yaml").write_text(SMALL)
    for hidden, said in (("yaml", "PyYAML"), ("pydantic", "pydantic")):
        code = f"import sys; sys.modules[{hidden!r}] = None\nimport outlast\ntry: outlast.Flow.load('m.yaml')\nexcept outlast.ConfigurationError as e: print(e)"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
        )
        assert f"need {said}, which is not installed: pip install 'outlast[flows]'" in done.stdout, done.stderr


def test_every_key_of_the_format_has_its_row():
    """The reference of the format: every key in every spelling, under the heading of its part."""
    keys = __import__("outlast.spec.keys", fromlist=["TABLES"])
    page = (Path(__file__).parents[2] / "docs" / "reference" / "flows.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert {key for name in keys.TABLES for key in keys.meanings_of(name)} | set(keys.STEP_BREAKER) <= rows


MODULE = """\
import json
try:
    from fast import label
except ImportError:
    def label(rows): ...
if json:
    async def score(rows): ...
class Model: ...
count = len
def hidden():
    def inner(): ...
"""


@table(
    ("call", "found"),
    [
        *((f"shop.steps:{name}", None) for name in ("label", "score", "Model", "count", "json")),
        ("shop.steps:lable", ("a function that shop.steps has", "'lable'", "did you mean shop.steps:label?")),
        ("shop.steps:inner", ("a function that shop.steps has", "'inner'", "write it, or name another")),
        (
            "shop.step:label",
            ("a module of the project, which is under its root", "'shop.step'", "did you mean shop.steps?"),
        ),
        ("shp:label", ("a module of the project, which is under its root", "'shp'", "did you mean shop?")),
        ("zebra:label", ("a module of the project, which is under its root", "'zebra'", "write it, or name another")),
        ("shop.stars:anything", None),
        ("shop.maker:anything", None),
        ("shop.open:anything", None),
        (
            "shop.odd:label",
            ("a module that Python can read", "'shop.odd'", "python -m py_compile odd.py shows where it cannot"),
        ),
        ("shop.made:label", None),
    ],
)
def test_function_that_is_not_there_is_warned_of(call, found, tmp_path):
    """R50: modules are found and read as text; nothing of them runs."""
    (tmp_path / "shop").mkdir(exist_ok=True)
    modules = {
        "maker.py": "for name in 'ab': globals()[name] = print",
        "steps.py": MODULE,
        "stars.py": "from json import *",
        "odd.py": "def label(:",
        "made.pyx": "",
    }
    modules |= {"open.py": "raise SystemExit\ndef __getattr__(name): ..."}
    for name, text in modules.items():
        (tmp_path / "shop" / name).write_text(text)
    text = f'oml_version: "0.1.0"\nname: movies\nsteps: [{{id: a, component: python, config: {{call: "{call}"}}}}]'
    told = compile_text(text, root=tmp_path, rules=(check,)).mistakes
    expected = [] if found is None else [("R50", ("steps", "a", "config", "call"), *found)]
    assert [(one.code, one.path, one.expected, one.got, one.way_out) for one in told] == expected
    is_certain = found is not None and found[0].startswith("a function that ")
    assert [one.severity for one in told] == (["error" if is_certain else "warning"] if found else [])
    assert compile_text(text, rules=(check,)).mistakes == ()
    assert compile_text(text, root=tmp_path, rules=(check,), allowed=[call.partition(":")[0]]).mistakes == ()


@table(
    ("entry", "got", "way_out"),
    [
        ("requests.Timeout", None, ""),
        ("requests.exceptions.MissingSchema", None, ""),
        ("requests.FileModeWarning", None, ""),  # in the text of the package only
        ("requests.TimeOut", "requests.TimeOut, which requests does not have", "did you mean requests.Timeout?"),
        ("psycopg2.OperationalEror", "psycopg2.OperationalEror, which psycopg2 does not have", "did you mean psycopg2.OperationalError?"),
        ("aiomysql.OperationalEror", "aiomysql.OperationalEror, which could not be checked: aiomysql is not installed here", "see that aiomysql has it"),
        ("MySQLdb.OperationalEror", "MySQLdb.OperationalEror, which no rule knows", "did you mean MySQLdb.OperationalError?"),
        ("shop.errors.Closed", None, ""),
        ("shop.errors.Closd", "shop.errors.Closd, which shop.errors does not have", "did you mean shop.errors.Closed?"),
        ("shop.open.Closd", "shop.open.Closd, which could not be checked: shop.open cannot be looked at", "see that shop.open has it"),
        ("socket.timeout", None, ""),
        ("zipfile.BadZipFile", None, ""),
        ("zipfile.BadZipFle", "zipfile.BadZipFle, which zipfile does not have", "did you mean zipfile.BadZipFile?"),
        ("timeout", None, ""),
        ("5xx", None, ""),
    ],
)  # fmt: skip
def test_an_exception_that_its_package_does_not_have_is_warned_of(entry, got, way_out, tmp_path):
    """R54: also of a package that is not loaded, by its text or by the names that the rules know; nothing is imported (S2-11)."""
    (tmp_path / "shop").mkdir(exist_ok=True)
    (tmp_path / "shop" / "errors.py").write_text("class Closed(Exception): ...\nraise SystemExit\n")
    (tmp_path / "shop" / "open.py").write_text("from somewhere import *\n")
    step = f"id: a, component: python, config: {{call: 'shop:f'}}, idempotent: true, retry: {{max_attempts: 2, on_errors: [transient, {entry!r}]}}"
    text = f'oml_version: "0.1.0"\nname: movies\nsteps: [{{{step}}}]'
    told = [one for one in compile_text(text, root=tmp_path, rules=(check,)).mistakes if one.code == "R54"]
    assert [(one.got.startswith(str(got)), one.way_out.startswith(way_out)) for one in told] == (
        [] if got is None else [(True, True)]
    )
    assert compile_text(text, rules=(check,)).mistakes == ()
    assert compile_text(text, root=tmp_path, rules=(check,)).manifest == compile_text(text, rules=(check,)).manifest


def test_schema_file_that_is_not_there_is_warned_of(tmp_path):
    """R50: also of what undoes a step; one that is read only when the step runs is not looked for."""
    config = "{data: [1], schema_file: order.json}"
    undo = "compensate: {component: schema.validator, config: {data: [1], schema_file: undo.json}}"
    text = (
        f'oml_version: "0.1.0"\nname: movies\nsteps: [{{id: a, component: schema.validator, config: {config}, {undo}}}]'
    )
    told = compile_text(text, root=tmp_path, rules=(check,)).mistakes
    assert [(one.code, one.path[2:], one.got) for one in told if one.code == "R50"] == [
        ("R50", ("config", "schema_file"), "'order.json'"),
        ("R50", ("compensate", "config", "schema_file"), "'undo.json'"),
    ]
    for name in ("order.json", "undo.json"):
        (tmp_path / name).write_text("{}")
    assert [one for one in compile_text(text, root=tmp_path, rules=(check,)).mistakes if one.code == "R50"] == []
