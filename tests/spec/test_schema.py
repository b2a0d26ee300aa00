"""The JSON Schema of pipeline files, looked at as an editor's language server does: with a validator of JSON Schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from outlast.cli import app
from outlast.components.registry import find_component as find
from outlast.spec import connections, yaml
from outlast.spec.compile import compile_text
from outlast.spec.keys import kinds_of
from outlast.spec.rules import check
from outlast.spec.schema import connections_schema, json_schema
from spec.seed import BLOCKS, whole
from spec.trees import data_of
from tables import table

ROOT = Path(__file__).resolve().parents[2]
CASES = (Path(__file__).parent / "cases.txt").read_text()
SMALL = """\
oml_version: "0.1.0"
name: movies
params:
  batch: {type: string, default: monday}
  attempts: {type: integer, default: 3}
  ending: {type: string, default: csv}
steps:
  - id: read
    component: files.reader
    config: {path: "in/${params.batch}.jsonl"}
  - id: label
    component: python
    config: {call: "shop.steps:label", args: {rows: "${steps.read.outputs.rows}"}}
    retry: {max_attempts: 3, backoff: exponential, initial_delay_ms: 1000, jitter: 0.1, on_errors: [timeout, 503]}
    timeout: {step_ms: 60000, total_ms: 300000}
    isolation: process
    idempotent: true
    circuit_breaker: {failure_threshold: 5, reset_timeout_s: 60, half_open_requests: 2}
    for_each: {items: "${steps.read.outputs.rows}", key: id, concurrency: 16}
"""


def read(text: str) -> Any:
    """What a reader of YAML 1.2 makes of a text."""
    node = yaml.read(text, "f.yaml").node
    assert node is not None
    return data_of(node)


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    find("python")  # two of them are registered
    return Draft202012Validator(json_schema())


def wrong(validator: Draft202012Validator, text: str) -> list[str]:
    """Where the schema finds something wrong, from the outside to the inside."""
    errors = sorted(validator.iter_errors(read(text)), key=lambda one: list(map(str, one.absolute_path)))
    return [".".join(map(str, one.absolute_path)) for one in errors]


def test_the_command_prints_a_schema():
    """C-24: a JSON Schema of 2020-12, with every component that is installed."""
    done = CliRunner().invoke(app, ["schema"])
    schema = json.loads(done.stdout)
    Draft202012Validator.check_schema(schema)
    assert (done.exit_code, schema["$schema"]) == (0, "https://json-schema.org/draft/2020-12/schema")
    assert {"python", "files.reader"} <= set(schema["$defs"]["step"]["properties"]["component"]["enum"])


def test_every_key_of_the_format_is_in_the_schema_with_its_meaning(validator):
    """C-24: the schema and the checks have one table."""
    defs = validator.schema["$defs"]
    for name in ("param", "profile", "step", "idempotency", "compensate", "for_each", "retry", "limit", "retry_budget"):
        assert set(kinds_of(name)) == set(defs[name]["properties"]), name
        assert all(one.get("description") for one in defs[name]["properties"].values()), name


def examples() -> dict[str, str]:
    pages = {path.name: re.findall(r"^```yaml\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL) for path in (ROOT / "docs").rglob("*.md")}  # fmt: skip
    shown = {f"{name} {number}": text for name, texts in pages.items() for number, text in enumerate(texts) if "oml_version" in text}  # fmt: skip
    files = {path.name: path.read_text() for path in (ROOT / "examples").glob("*.yaml") if "oml_version" in path.read_text()}  # fmt: skip
    seeds = {f"seed {name}": whole(block) for name, block in BLOCKS.items()}
    return shown | files | seeds | {"small": SMALL}


@table("name", examples())
def test_examples_are_taken(validator, name):
    """Every pipeline file of the docs, the examples and the seed (S0-29)."""
    assert wrong(validator, examples()[name]) == []


@table(
    ("old", "new", "where"),
    [
        ("max_attempts: 3", "max_attempt: 3", "steps.1.retry"),
        ("max_attempts: 3", "max_attempts: three", "steps.1.retry.max_attempts"),
        ("max_attempts: 3", 'max_attempts: "3"', "steps.1.retry.max_attempts"),
        ("max_attempts: 3", "max_attempts: 0", "steps.1.retry.max_attempts"),
        ("max_attempts: 3", "max_attempts: 2.5", "steps.1.retry.max_attempts"),
        ("backoff: exponential", "backoff: exponental", "steps.1.retry.backoff"),
        ("jitter: 0.1", "jitter: 10", "steps.1.retry.jitter"),
        ("jitter: 0.1", "jitter: yes", "steps.1.retry.jitter"),
        ("initial_delay_ms: 1000", "initial_delay_ms: 1s", "steps.1.retry.initial_delay_ms"),
        ("initial_delay_ms: 1000", "initial_delay: 1 hour", "steps.1.retry.initial_delay"),
        ("[timeout, 503]", "[time_out]", "steps.1.retry.on_errors.0"),
        ("[timeout, 503]", "timeout", "steps.1.retry.on_errors"),
        ("[timeout, 503]", "[703]", "steps.1.retry.on_errors.0"),
        ("step_ms: 60000", "step_ms: 0", "steps.1.timeout.step_ms"),
        ("step_ms: 60000", "steps_ms: 60000", "steps.1.timeout"),
        ("step_ms: 60000", "idle_ms: 60000", "steps.1.timeout"),
        ("failure_threshold: 5", "failure_treshold: 5", "steps.1.circuit_breaker"),
        ("concurrency: 16", "concurrency: 0", "steps.1.for_each.concurrency"),
        ("concurrency: 16", "min_success_rate: 1.5", "steps.1.for_each.min_success_rate"),
        ("concurrency: 16", "min_partial_rate: -1", "steps.1.for_each.min_partial_rate"),
        ('items: "${steps.read.outputs.rows}", key: id', "key: id", "steps.1.for_each"),
        ("component: python", "component: pyhton", "steps.1.component"),
        ("    component: python\n", "", "steps.1"),
        ("  - id: read\n    component", "  - component", "steps.0"),
        ("id: read", "id: read it", "steps.0.id"),
        ('call: "shop.steps:label"', 'cal: "shop.steps:label"', "steps.1.config"),
        ('    config: {path: "in/${params.batch}.jsonl"}\n', "", "steps.0"),
        ('path: "in/${params.batch}.jsonl"', "path: 5", "steps.0.config.path"),
        ("type: string", "type: text", "params.batch.type"),
        ("type: string, ", "", "params.batch"),
        ('oml_version: "0.1.0"\n', "", ""),
        ('oml_version: "0.1.0"', "oml_version: 0.1", "oml_version"),
        ("name: movies", "name: movies\nversion: 1", "version"),
        ("name: movies", "name: movies\nstep: []", ""),
        ("steps:\n", "steps: []\nx-steps:\n", "steps"),
        ("failure_threshold: 5", "failure_threshold: 0", "steps.1.circuit_breaker.failure_threshold"),
        ("step_ms: 60000", "step: 0s", "steps.1.timeout.step"),
        ('path: "in/${params.batch}.jsonl"', "path: /tmp/a.jsonl", "steps.0.config.path"),
        ('path: "in/${params.batch}.jsonl"', "path: in/../../a.jsonl", "steps.0.config.path"),
        ('path: "in/${params.batch}.jsonl"', 'path: "C:/a.jsonl"', "steps.0.config.path"),
        ("shop.steps:label", "shop.steps.label", "steps.1.config.call"),
        ("default: monday", "default: monday, sensitive: true", "params.batch.default"),
        ("    component: files.reader", "    component: files.reader\n    mode: write", "steps.0.mode"),
    ],
)
def test_the_commonest_mistakes_are_caught_where_they_stand(validator, old, new, where):
    """C-24: an unknown key, a wrong type, a word that is misspelt, something that is missing."""
    assert old in SMALL
    assert where in wrong(validator, SMALL.replace(old, new, 1))


@table(
    ("old", "new"),
    [
        ("max_attempts: 3", 'max_attempts: "${params.attempts}"'),
        ("jitter: 0.1", "jitter: full"),
        ("jitter: 0.1", "jitter: {add_ms: 500}"),
        ("jitter: 0.1", "max_delay_ms: null"),
        ("initial_delay_ms: 1000", "initial_delay: 1.5s"),
        ("[timeout, 503]", "[5xx, transient, requests.Timeout, ValueError, database]"),
        ("[timeout, 503]", "all"),
        ("[timeout, 503]", "[5XX, 4xX]"),
        ("step_ms: 60000", "step: 0.5s"),
        ("    component: files.reader", "    component: files.reader\n    mode: read"),
        ('path: "in/${params.batch}.jsonl"', "path: in/..a/b..c.jsonl"),
        ('path: "in/${params.batch}.jsonl"', 'path: "${params.batch}/a.jsonl"'),
        ("    for_each:", "    limit: {concurrency: 5, rates: {calls: 500/min, tokens: {amount: 5, per_s: 1}}}\n    for_each:"),
        ("    for_each:", "    x-owner: ann\n    metadata: {a: [1]}\n    needs: [read]\n    for_each:"),
        ("    for_each:", '    compensate: {component: python, config: {call: "a:b"}, retry: null}\n    for_each:'),
        ('config: {path: "in/${params.batch}.jsonl"}', 'config: {path: "a", format: "${params.ending}"}'),
    ],
)  # fmt: skip
def test_what_compiles_is_taken(validator, old, new):
    """D-26: an editor that marks what is right would be switched off."""
    assert old in SMALL
    text = SMALL.replace(old, new, 1)
    assert [str(one) for one in compile_text(text).errors] == []
    assert wrong(validator, text) == []


# Values of every kind; each of them is put at every key of the format, in a file that is right otherwise.
VALUES: list[Any] = [
    None, True, 0, -1, 0.5, 2.5, 1001, "", "x", "30s", "0s", [], [None], ["econnreset", "0404", "é.ü", 404], [1000],
    {}, {"x": 1}, {"network": 2}, {"c": {"amount": 5, "per": "min"}}, {"c": {"amount": 5}},
]  # fmt: skip
# The same by a reference: of those the schema can only say that they are references.
REFERENCES = [f"${{params.{name}}}" for name in ("count", "many", "tiers", "rates")]
GIVEN = {
    "count": {"type": "integer", "default": 3},
    "many": {"type": "list", "default": ["timeout"]},
    "tiers": {"type": "object", "default": {"network": 2}},
    "rates": {"type": "object", "default": {"calls": "5/min"}},
}
# Where something else of the file says whether a value is right: a default, other steps, another key.
ELSEWHERE = {
    ("param", "enum"), ("param", "min"), ("param", "max"), ("profile", "params"), ("step", "needs"), ("step", "depends_on"),
    ("step", "retry_budget"), ("for_each", "key"), ("retry", "initial_delay"), ("retry", "base_delay"), ("retry", "max_delay"),
    ("retry", "max_delay_ms"), ("circuit_breaker", "window"), ("circuit_breaker", "min_calls"),
}  # fmt: skip
# What else a block has, so that the key means something.
BESIDE: dict[str, dict[str, Any]] = {
    "compensate": {"component": "files.reader", "config": {"path": "a.csv"}},
    "for_each": {"items": [1]},
    "idempotency": {"key": "x"},
    "limit": {"concurrency": 1},
    "param": {"type": "integer", "default": 5},
    "rate": {"amount": 5, "per": 1},
}


def with_value(table: str, key: str, value: Any) -> dict[str, Any]:
    """A file that has this value under this key."""
    step: dict[str, Any] = {"id": "a", "component": "files.reader", "config": {"path": "a.csv"}}
    file: dict[str, Any] = {"oml_version": "0.1.0", "name": "m", "params": dict(GIVEN), "steps": [step]}
    block = {**BESIDE.get(table, {}), key: value}
    if table == "rate" and key != "per" and key.startswith("per"):
        del block["per"]
    if table == "circuit_breaker" and key in ("window", "min_calls"):
        block["failure_rate"] = 0.5
    if table == "retry_budget":
        step["retry"] = {"max_attempts": 3}
    if table in ("file", "step"):
        (file if table == "file" else step)[key] = value
    elif table == "param":
        file["params"]["p"] = block
    elif table == "profile":
        file["profiles"] = {"x": block}
    else:
        step["limit" if table == "rate" else table] = {"rates": {"c": block}} if table == "rate" else block
    return file


@table("name", ["file", "param", "profile", "step", "idempotency", "compensate", "for_each", "retry", "timeout", "circuit_breaker", "limit", "rate", "retry_budget"])  # fmt: skip
def test_the_schema_and_the_checks_are_in_step(validator, name):
    """
    C-24: every value at every key. What compiles is taken, without an exception; what does not is caught, where it is so
    whatever the rest of the file says.
    """
    refused: list[Any] = []
    missed: list[Any] = []
    for key in (one for one in kinds_of(name) if not one.endswith("_s")):  # which are as those in _ms
        for value in (*VALUES, *REFERENCES):
            file = with_value(name, key, value)
            compiles = not compile_text(json.dumps(file), complete=False, rules=(check,)).errors
            taken = validator.is_valid(file)
            refused += [(key, value)] if compiles and not taken else []
            is_shape = (name, key) not in ELSEWHERE and value not in REFERENCES
            missed += [(key, value)] if taken and not compiles and is_shape else []
    assert (refused, missed) == ([], [])


def cases() -> dict[str, tuple[str, str]]:
    """The files with mistakes that are on record, with the lines that they get."""
    found = {}
    for block in re.split(r"^=== ", CASES, flags=re.MULTILINE)[1:]:
        name, _, rest = block.partition("\n")
        text, _, lines = rest.partition("--->")
        head = 'oml_version: "0.1.0"\nname: movies\nsteps:\n' if name.startswith("steps:") else ""
        found[name] = (head + text, lines)
    return found


def test_most_of_the_mistakes_on_record_are_seen_by_an_editor(validator):
    """C-24: of those that are YAML at all. What needs more than one place of the file is for `outlast validate`."""
    seen = unseen = 0
    for text, _ in cases().values():
        found = yaml.read(text, "f.yaml")
        if found.node is None or found.mistakes:
            continue
        caught = any(True for _ in validator.iter_errors(data_of(found.node)))
        seen, unseen = seen + caught, unseen + (not caught)
    assert seen / (seen + unseen) > 0.5, (seen, unseen)


@table(
    ("old", "new", "words"),
    [
        ("max_attempts: 3", "max_attempts: three", "expected an integer from 1 to 1000, without quotes, or a reference such as ${params.name}"),
        ("backoff: exponential", "backoff: exponental", "expected one of exponential, linear, fixed"),
        ("idempotent: true", "idempotent: yes", "expected true or false, or a reference such as ${params.name}"),
        ("[timeout, 503]", "[time_out]", "expected an error such as network_error, a status, 5xx, or the name of an exception"),
        ("step_ms: 60000", "step: soon", 'expected seconds greater than 0, or a text with its unit such as "30s"'),
        ("step_ms: 60000", "step_ms: 30s", "expected milliseconds greater than 0, without a unit"),
        ("shop.steps:label", "shop.steps.label", "expected a function as module:function"),
    ],
)  # fmt: skip
def test_an_editor_says_what_is_expected(validator, old, new, words):
    """C-24: a language server shows the words of the branch that is nearest to the value, so every branch has them."""
    (error,) = validator.iter_errors(read(SMALL.replace(old, new, 1)))
    assert error.validator == "anyOf"
    shown = [one.get("patternErrorMessage") or one["errorMessage"] for one in error.schema["anyOf"]]
    assert [one for one in shown if not one.startswith(words)] == []


CONNECTIONS = """\
x-owner: ann
connections:
  postgres:
    shop: {default: true, host: "${SHOP_HOST}", port: "${PORT}", database: shop, user: ann, password: "${SHOP_PASSWORD}"}
    old: {url: "${OLD_URL}"}
  http:
    stock: {base_url: "https://${HOST}/v1", token: "${TOKEN}", headers: {Accept: text/plain}, allow_private: true}
"""


def test_the_command_prints_a_schema_of_connections():
    """C-24: what the checks take, an editor takes."""
    done = CliRunner().invoke(app, ["schema", "--connections"])
    assert done.exit_code == 0
    schema = json.loads(done.stdout)
    Draft202012Validator.check_schema(schema)
    assert connections.read(CONNECTIONS).mistakes == ()
    assert wrong(Draft202012Validator(schema), CONNECTIONS) == []


@table(
    ("old", "new", "where"),
    [
        ('password: "${SHOP_PASSWORD}"', "password: hunter2", "connections.postgres.shop.password"),
        ('"${OLD_URL}"', '"postgresql://u:${PW}@h/d"', "connections.postgres.old.url"),
        ("base_url", "base_ur", "connections.http.stock"),
        ("postgres:", "postgresql:", "connections"),
        ("connections:", "connection:", ""),
        ('port: "${PORT}"', "port: 70000", "connections.postgres.shop.port"),
        ("allow_private: true", "allow_private: maybe", "connections.http.stock.allow_private"),
        ("default: true", "default: 1", "connections.postgres.shop.default"),
        ("    old:", "    old one:", "connections.postgres"),
    ],
)
def test_mistakes_in_connections_are_caught_where_they_stand(old, new, where):
    assert old in CONNECTIONS
    text = CONNECTIONS.replace(old, new, 1)
    assert connections.read(text).mistakes != ()
    assert where in wrong(Draft202012Validator(connections_schema()), text)
