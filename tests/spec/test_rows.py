"""Steps with for_each: how they name their row, what they put out, what holds for each row, and where that is shown."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from outlast.cli import app
from outlast.components.describing import Component
from outlast.components.steps.config import Config
from outlast.errors import ConfigurationError
from outlast.spec import plan, shapes
from outlast.spec.compile import compile_text
from outlast.spec.manifest import Manifest
from outlast.spec.references import of_row, parse
from outlast.spec.rules import check
from tables import table

FLOW = """\
oml_version: "0.1.0"
name: orders
params: {day: {type: string, default: monday}}
steps:
  - {id: read, component: files.reader, config: {path: in.csv}}
  - id: locate
    component: http.caller
    for_each: {items: "${steps.read.outputs.rows}", key: id, concurrency: 8}
    config: {url: "https://geo.example.com/", query: {q: "${item.address.city}", day: "${params.day}"}, headers: {x-row: "row ${item.id}"}}
    inputs: {row: "${item}"}
    retry: {max_attempts: 3}
    timeout: {step_ms: 5000, total_ms: 60000}
    idempotency: {key: "${params.day}:${item.id}"}
    compensate: {component: python, config: {call: "shop:undo", args: {id: "${item.id}"}}}
  - {id: write, component: files.writer, config: {path: out.jsonl, rows: "${steps.locate.outputs.rows}"}}
"""
ROWS = '    for_each: {items: "${steps.read.outputs.rows}", key: id, concurrency: 8}\n'


def made(text: str = FLOW) -> Manifest:
    compiled = compile_text(text, "f.yaml", rules=(check,))
    assert compiled.manifest is not None, list(map(str, compiled.mistakes))
    return compiled.manifest


def told(text: str) -> list[str]:
    return [str(one) for one in compile_text(text, "f.yaml", rules=(check,)).mistakes]


def changed(old: str, new: str) -> str:
    assert FLOW.count(old) == 1
    return FLOW.replace(old, new)


def test_a_step_names_its_row_in_all_four_places():
    """D-19: config, inputs, idempotency.key and compensate.config; the rest of the text is filled in as ever."""
    work = made()["locate"].work
    assert work["config"]["query"] == {"q": "${item.address.city}", "day": "monday"}
    assert work["config"]["headers"] == {"x-row": "row ${item.id}"}
    assert work["inputs"] == {"row": "${item}"}
    assert work["idempotency"]["key"] == "monday:${item.id}"
    assert work["compensate"]["config"]["args"] == {"id": "${item.id}"}
    assert told(FLOW) == []


def test_a_manifest_with_rows_is_read_again():
    """D-19: as it was written, with the rows in the work and their concurrency in the policy."""
    manifest = made()
    again = Manifest.from_json(manifest.to_json())
    assert again == manifest
    step = again["locate"]
    assert step.work["for_each"] == {"items": "${steps.read.outputs.rows}", "key": "id"}
    assert (step.policy["concurrency"], step.timing["per"]) == (8, "row")
    assert "per" not in again["read"].timing


def test_concurrency_is_policy_and_the_row_is_work():
    """A resumed run may take another concurrency, never another row."""
    step = made()["locate"]
    other = made(changed("concurrency: 8", "concurrency: 9"))["locate"]
    assert (step.work_fingerprint, step.policy_fingerprint != other.policy_fingerprint) == (
        other.work_fingerprint,
        True,
    )
    for old, new in (("key: id", "key: no"), ("row ${item.id}", "row ${item.no}")):
        assert made(changed(old, new))["locate"].work_fingerprint != step.work_fingerprint


ROW = {"id": 7, "address": {"city": "Graz", "items": [1]}, "__class__": "a key"}


@table(
    ("text", "value"),
    [
        ("${item}", ROW),
        ("${item.id}", 7),
        ("${item.address.city}", "Graz"),
        ("${item.address.items}", [1]),
        ("${item.__class__}", "a key"),
    ],
)
def test_a_reference_to_a_row_is_a_way_through_keys(text, value):
    """D-19: the value with its type."""
    (part,) = parse(text)
    assert of_row(part, ROW) == value
    assert str(part) == text


@table(
    ("text", "row"),
    [
        ("${item.none}", ROW),
        ("${item.keys}", ROW),  # a method of mappings
        ("${item.id.real}", ROW),  # an attribute of numbers
        ("${item.address.city.upper}", ROW),
        ("${item.address.items.0}", ROW),
        ("${item.__class__}", "a text"),
        ("${item.id}", [{"id": 1}]),
        ("${item.id}", None),
    ],
)
def test_no_attribute_and_no_index_is_ever_reached(text, row):
    """D-19: what is no key of a mapping is an error, of which the row's content is no part."""
    (part,) = parse(text)
    with pytest.raises(LookupError, match="expected") as missing:
        of_row(part, row)
    assert "Graz" not in str(missing.value)


def test_outputs_of_a_step_with_rows_are_those_of_the_run_over_them():
    """D-19: also where the component's own are open; in what undoes the step they are those of the row."""
    own = changed('args: {id: "${item.id}"}', 'args: {id: "${steps.locate.outputs.status}"}')
    assert made(own)["locate"].work["compensate"]["per"] == "row"
    taken = changed('rows: "${steps.locate.outputs.rows}"', 'rows: "${steps.locate.outputs.body}"')
    (line,) = told(taken)
    assert "write ${steps.locate.outputs.rows}: there each row has it, under outputs.body" in line
    (line,) = told(own.replace("locate.outputs.status", "locate.outputs.rows"))
    assert "an output that locate has, got ${steps.locate.outputs.rows}" in line


def test_undoing_is_once_for_all_rows_if_it_names_none():
    """D-19: a compensation that deletes a whole batch is not done for each row."""
    batch = made(changed('args: {id: "${item.id}"}', 'args: {day: "${params.day}"}'))["locate"]
    assert batch.work["compensate"]["per"] == "step"
    assert "python undoes all rows at once" in " ".join(plan.sentences(batch.policy, batch.timing, batch.work))
    alone = made(FLOW.partition("  - {id: write")[0].replace(ROWS, "").replace("${item", "$${item"))
    assert "per" not in alone["locate"].work["compensate"]


def test_a_key_of_the_config_may_bring_the_row():
    """An own key that names the row names it wherever the key is referred to."""
    text = changed("${params.day}:${item.id}", "${params.day}:${query}").replace('q: "${item.address.city}", ', "")
    assert any("got one that all rows share" in line for line in told(text))
    assert made(changed("${params.day}:${item.id}", "${url}").replace("example.com/", "example.com/${item.id}"))
    (line,) = told(changed("${params.day}:${item.id}", "${url}"))
    assert line.endswith("got one that all rows share; add ${item.id}, or ${item} for all of it")


def test_rows_of_other_steps_are_not_trusted_as_a_part_of_an_address():
    """R42: what a row has was put out by another step; rows that the file lists are its author's words."""
    text = changed("https://geo.example.com/", "${item.address.page}")
    (line,) = told(text)
    assert "expected url without what other steps have put out, got ${item.address.page}" in line
    listed = text.replace('"${steps.read.outputs.rows}"', "[{id: 1, address: {city: Graz, page: /1}}]")
    assert told(listed) == []


def bounded(bounds: str) -> str:
    return changed("concurrency: 8}", f"concurrency: 8, {bounds}}}")


@table(
    ("bounds", "expected"),
    [
        ("min_success_rate: 1", (1.0, 0.5)),
        ("min_success_rate: 0.9, min_partial_rate: 0.9", (0.9, 0.9)),
        ("min_success_rate: 0.3", (0.3, 0.3)),
        ("min_success_rate: 0, min_partial_rate: 0", (0.0, 0.0)),
    ],
)
def test_bounds_of_rows_are_policy(bounds: str, expected: tuple[float, float]):
    """D-38: other bounds are no other work, and a lower bound of success takes the default of the other with it. It reads back the same."""
    manifest = made(bounded(bounds))
    step, plain = manifest["locate"], made()["locate"]
    assert (step.policy["min_success_rate"], step.policy["min_partial_rate"]) == expected
    assert step.work_fingerprint == plain.work_fingerprint
    assert (step.policy_fingerprint == plain.policy_fingerprint) == (expected == (1.0, 0.5))
    assert Manifest.from_json(manifest.to_json()) == manifest


@table(
    ("bounds", "problem"),
    [
        ("min_success_rate: 1.1", "min_success_rate: expected a number from 0 to 1, got 1.1"),
        ("min_success_rate: -0.1", "min_success_rate: expected a number from 0 to 1, got -0.1"),
        ("min_success_rate: true", "min_success_rate: expected a number from 0 to 1, got true"),
        ('min_partial_rate: "0.5"', "min_partial_rate: expected a number from 0 to 1"),
        ("min_success_rate: 0.8, min_partial_rate: 0.9", "expected at most min_success_rate, got 0.9, more than 0.8"),
        ("min_succes_rate: 0.8", "did you mean 'min_success_rate'"),
    ],
)
def test_bounds_of_rows_that_are_wrong_are_refused(bounds: str, problem: str):
    """D-38: each with its place, and before anything runs."""
    assert [problem in line for line in told(bounded(bounds))] == [True]


def test_a_manifest_with_bounds_out_of_order_is_refused():
    """D-38: also one whose fingerprints are right."""
    data = json.loads(made(bounded("min_success_rate: 0.8, min_partial_rate: 0.6")).to_json())
    (step,) = [one for one in data["steps"] if one["id"] == "locate"]
    step["policy"]["min_partial_rate"] = 0.9
    assert shapes.wrong_with(data) == "steps.locate.policy.min_partial_rate is more than min_success_rate"


def test_plan_and_explain_show_rows_and_concurrency(tmp_path, monkeypatch):
    """Nobody has to guess that a worst case is that of one row (S0-29)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yaml").write_text(FLOW)
    shown = CliRunner().invoke(app, ["compile", "f.yaml"], env={"COLUMNS": "200"}).stdout
    assert "http.caller, for each row, 8 at a time" in shown
    assert " a row" in next(line for line in shown.splitlines() if line.startswith("locate "))
    said = json.loads(CliRunner().invoke(app, ["explain", "f.yaml", "locate", "--json"]).stdout)["sentences"]
    assert said[:4] == [
        "Done for each row of ${steps.read.outputs.rows}, 8 at a time; a row is known by its field id.",
        "Every row must succeed, or the steps that need it do not start.",
        "From 50% on, the flow is a partial success, and a resume runs only the open rows. Below that, the step fails.",
        "What follows holds for each row: attempts, waits, time limits, the idempotency key.",
    ]
    assert "A row that fails for good is kept as a dead letter, and the others go on." in said
    accepts = made(bounded("min_success_rate: 0.995, min_partial_rate: 0.995"))["locate"]
    accepted = [*plan.sentences(accepts.policy, accepts.timing, accepts.work)]
    assert accepted[1] == "At least 99.5% of the rows must succeed, or the steps that need it do not start."
    assert not any("partial success" in one for one in accepted)
    listed = made(changed('"${steps.read.outputs.rows}", key: id', "[{id: 1, address: {city: Graz}}]"))["locate"]
    first = next(plan.sentences(listed.policy, listed.timing, listed.work))
    assert first == "Done for 1 row, 8 at a time; a row is known by its content."


def test_a_component_may_say_what_its_outputs_are():
    """A type that there is none of, or of an output that there is none of, is told."""
    for types in ({"rows": "list"}, {"count": "integer"}):
        with pytest.raises(ConfigurationError, match="one of rows, text"):
            Component("a.b", "Does it.", Config, {"rows": "rows"}, types=types)  # type: ignore[arg-type]
