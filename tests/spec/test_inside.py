"""What stands inside of values that are checked as a whole: references there, and where a mistake is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import AfterValidator

from outlast.components.describing import Component
from outlast.components.registry import find_component
from outlast.components.steps import OWN
from outlast.components.steps.config import Config, Inside
from outlast.spec.compile import compile_text
from outlast.spec.mistakes import errors_in
from outlast.spec.rules import check
from tables import table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.spec.compile import Compiled

OPEN = "${steps.r.outputs.names}"  # of a function: nobody knows what it is
# Right configs with something inside of every value that may have something inside.
NESTED: dict[str, dict[str, Any]] = {
    "data.processor": {
        "rows": [{"a": 1}, 2],
        "rename": {"a": "b", "c": "d"},
        "select": ["b", "d"],
        "defaults": {"b": {"deep": [1]}, "d": None},
        "call": "shop:row",
        "args": {"a": [{"b": 1}]},
    },
    "files.reader": {"path": "in/*.csv", "delimiter": ";", "encoding": "latin-1"},
    "files.writer": {"path": "out.jsonl", "rows": [{"a": [1]}, 2]},
    "http.caller": {
        "connection": "@http.shop",
        "url": "/orders",
        "method": "POST",
        "query": {"a": "1", "b": [1, "c"]},
        "headers": {"X-Day": "monday", "X-Other": "b"},
        "json": {"a": [{"b": 1}]},
        "expect": {"status": [200, 201], "content_type": "application/json"},
    },
    "llm.caller": {
        "connection": "@llm.main",
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "model": "m",
        "prices": {"input": 1, "output": 2},
        "options": {"stop": ["a"], "logit_bias": {"7": 1}},
        "response": "json",
        "schema": {"type": "object", "required": ["a"]},
    },
    "mysql.extractor": {
        "connection": "@mysql.shop",
        "query": "select %(day)s, %(night)s",
        "parameters": {"day": 1, "night": "b"},
    },
    "pipeline": {"target": "shop:reviews", "input": [{"id": 1}, {"id": 2}], "item_key": "id"},
    "postgres.extractor": {
        "connection": "@postgres.shop",
        "query": "select %(day)s, %(night)s",
        "parameters": {"day": 1, "night": [1, {"a": 2}]},
    },
    "postgres.writer": {
        "connection": "@postgres.shop",
        "table": "t",
        "rows": [{"a": 1, "b": 2}],
        "mode": "upsert",
        "key": ["a", "b"],
        "columns": ["a", "b", "c"],
    },
    "python": {"call": "shop:label", "args": {"a": {"b": [1, {"c": 2}]}}},
    "resource.allocator": {"pool": "gpu", "amount": 1, "capacity": 8},
    "resource.deallocator": {"allocation_id": "x"},
    "s3.deleter": {"connection": "@s3.reports", "key": "a.json", "etag": "x"},
    "s3.reader": {
        "connection": "@s3.reports",
        "key": "a.json",
        "extensions": [".json", ".jsonl"],
        "require_metadata": {"owner": ".+", "schema": "v[0-9]"},
    },
    "s3.writer": {
        "connection": "@s3.reports",
        "key": "a.json",
        "body": [{"a": [1]}],
        "metadata": {"day": "a", "b": "c"},
    },
    "supabase.deleter": {
        "connection": "@supabase.main",
        "table": "t",
        "match": {"a": 1, "b": [1, 2]},
        "is_null": ["c", "d"],
    },
    "supabase.writer": {
        "connection": "@supabase.main",
        "table": "t",
        "rows": [{"a": 1, "b": [2]}],
        "mode": "upsert",
        "on_conflict": ["a", "b"],
        "columns": ["a", "b"],
    },
    "sql.transform": {
        "tables": {"a": [{"id": 1}], "b": [{"id": 2}, 3]},
        "query": "select $day as day, $night as night",
        "params": {"day": 1, "night": [1, 2]},
        "columns": {"a": {"id": "bigint"}},
    },
    "schema.validator": {
        "data": [{"a": 1}],
        "schema": {
            "type": ["object", "null"],
            "required": ["a"],
            "$ref": "#/$defs/a",
            "$defs": {"a": {"type": "integer"}},
            "properties": {"a": {"pattern": "^a$", "enum": [1, 2]}, "b": True},
            "patternProperties": {"^x-": {"type": "string"}},
            "additionalProperties": {"type": "string"},
            "items": {"type": "string"},
            "prefixItems": [{"type": "string"}],
            "allOf": [{"required": ["a"]}],
            "not": {"const": 5},
        },
    },
}


def compiled(config: str, name: str = "schema.validator", params: str = "", **options: Any) -> Compiled:
    text = (
        f'oml_version: "0.1.0"\nname: movies\nparams: {{{params}}}\nsteps:\n'
        f"  - {{id: r, component: python, config: {{call: 'shop:names'}}, retry: {{max_attempts: 1}}}}\n"
        f"  - id: s\n    component: {name}\n    config: {config}\n    retry: {{max_attempts: 1}}\n"
    )
    return compile_text(text, "f.yaml", rules=(check,), **options)


def told(config: str, **options: Any) -> list[str]:
    return [str(one).removeprefix("f.yaml:") for one in errors_in(compiled(config, **options).mistakes)]


def inside(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of whatever stands inside of the values of a config."""
    pairs: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in pairs:
        if path:
            yield (*path, key)
        yield from inside(one, (*path, key))


def changed(value: Any, path: tuple[str | int, ...], there: Any) -> Any:
    if not path:
        return there
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], there)
    return copy


def test_references_inside_of_values_of_every_component_are_right():
    """R42, S0-29: whatever a step puts out may stand at every place inside of a value, alone and beside others."""
    assert set(NESTED) == set(OWN)
    wrong = {}
    for name, config in NESTED.items():
        paths = list(inside(config))
        assert told(json.dumps(config), name=name) == [], name
        for path in paths:
            mistakes = told(json.dumps(changed(config, path, OPEN)), name=name)
            wrong |= {(name, path): mistakes} if mistakes else {}
        every = config
        for path in paths:
            if not any(path == other[: len(path)] for other in paths if other != path):
                every = changed(every, path, OPEN)
        mistakes = told(json.dumps(every), name=name)
        wrong |= {(name, "all"): mistakes} if mistakes else {}
    assert wrong == {}


@table(
    "config",
    [
        '{type: object, required: "${steps.r.outputs.names}"}',
        '{properties: "${steps.r.outputs.names}"}',
        '{items: "${steps.r.outputs.schema}"}',
        '{type: "${steps.r.outputs.names}"}',
        '{pattern: "(${steps.r.outputs.names}"}',
        '{properties: {a: {items: {type: ["${steps.r.outputs.names}"]}}}}',
    ],
)
def test_a_schema_may_have_references(config):
    """R42: what is known when the step runs is not judged before, and the manifest has the reference."""
    found = compiled(f"{{data: [], schema: {config}}}")
    assert found.manifest is not None, list(map(str, found.mistakes))
    assert "${steps.r.outputs." in json.dumps(found.manifest["s"].work["config"]["schema"])


@table(
    ("param", "config"),
    [
        ("{type: object}", '{items: "${params.c}"}'),
        ("{type: list}", '{required: "${params.c}"}'),
        ("{type: string}", '{type: "${params.c}"}'),
        ("{type: list, min: 1}", '{allOf: "${params.c}"}'),
        ("{type: list, min: 1}", '{type: "${params.c}"}'),
        ("{type: string}", '{$ref: "${params.c}"}'),
        ("{type: string}", '{pattern: "(${params.c}"}'),
        ("{type: string}", '{pattern: "[${params.c}"}'),
        ("{type: string}", '{properties: {a: {type: "${params.c}"}}}'),
        ("{type: string, sensitive: true}", '{type: "${params.c}"}'),
    ],
)
def test_a_schema_may_have_parameters_that_are_open(param, config):
    """R42: a parameter that nobody has given may come to what is right."""
    assert told(f"{{data: [], schema: {config}}}", params=f"c: {param}", complete=False) == []


@table(
    ("schema", "line"),
    [
        (
            "{properties: 5}",
            "8:45: {}.properties: expected a mapping of JSON Schemas, got 5; see the JSON Schema standard",
        ),
        ("{properties: [a]}", "8:45: {}.properties: expected a mapping of JSON Schemas, got a list; see the"),
        ("{allOf: {}}", "8:40: {}.allOf: expected a list of JSON Schemas, got a mapping; see the"),
        ("{items: 5}", "8:40: {}.items: expected a JSON Schema, which is a mapping, or true or false, got 5; write it"),
        ("{required: id}", "8:43: {}.required: expected a list of names, got 'id'; write it as [id, title]"),
        ("{type: objct}", "8:39: {}.type: expected one of string, number, integer, boolean, array, object, null, got"),
        ("{type: [string, 5]}", "8:48: {}.type[1]: expected one of string, number, integer, boolean, array, object, n"),
        (
            "{pattern: '('}",
            "8:42: {}.pattern: expected a regular expression that Python can read, got '('; write signs",
        ),
        ("{pattern: 5}", "8:42: {}.pattern: expected a regular expression that Python can read, got 5; write signs"),
        ("{properties: {a: {pattern: '[a-'}}}", "8:59: {}.properties.a.pattern: expected a regular expression that P"),
        ("{patternProperties: {'*a': {}}}", "8:53: {}.patternProperties['*a']: expected a regular expression that Py"),
        ("{$ref: 'http://a/b'}", "8:39: {}['$ref']: expected $ref to refer to the schema itself, got 'http://a/b'; "),
        ('{patternProperties: {"*a": "${steps.r.outputs.n}"}}', "8:53: {}.patternProperties['*a']: expected a regul"),
        ('{items: {type: "${steps.r.outputs.n}"}, required: 5}', "8:82: {}.required: expected a list of names, got 5"),
    ],
)
def test_a_mistake_in_a_schema_stands_where_it_is(schema, line):
    """At the value itself, with that value, also beside references (S0-29)."""
    (found,) = told(f"{{data: [], schema: {schema}}}")
    assert found.startswith(line.format("steps.s.config.schema"))


def test_each_mistake_in_a_schema_is_told():
    """Not only the first of them (S0-29)."""
    found = told("{data: [], schema: {type: objct, required: id, properties: {a: {pattern: '('}, b: 5}}}")
    assert [line.split(": ")[1].removeprefix("steps.s.config.schema.") for line in found] == [
        "type",
        "required",
        "properties.a.pattern",
        "properties.b",
    ]


@table(
    ("headers", "lines"),
    [
        ('{Host: "${steps.r.outputs.n}"}', ["headers.Host: expected no header Host, got 'Host'; it is set by"]),
        (
            '{"a b": x, X-Day: "${steps.r.outputs.n}", Te: y}',
            ["headers['a b']: expected the name of a header in letters", "headers.Te: expected no header Te"],
        ),
        (
            '{X-Row: "a\\nb", X-Day: x}',
            ["headers.X-Row: expected the header X-Row to be one line of text, got one with"],
        ),
    ],
)
def test_a_mistake_in_headers_stands_at_its_header(headers, lines):
    """A name is wrong whatever its value comes to, and nothing of a value is shown (S0-29)."""
    found = told(f'{{url: "https://example.com/", headers: {headers}}}', name="http.caller")
    assert len(found) == len(lines), found
    assert all(f"steps.s.config.{line}" in one for line, one in zip(lines, found, strict=True)), found


def test_a_check_of_somebody_elses_model_says_nothing_of_what_is_not_known():
    """R42: a check of a whole value that has something unknown inside may be wrong about it; one that says where is not."""

    def refuse(value: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("expected another mapping; change it")

    def refuse_inside(value: dict[str, Any]) -> dict[str, Any]:
        raise Inside([(("a",), "expected another a; change it"), (("b", 0), "expected another b; change it")])

    class Both(Config):
        whole: Annotated[dict[str, Any], AfterValidator(refuse)]
        parts: Annotated[dict[str, Any], AfterValidator(refuse_inside)]

    component = Component("a.b", "Does it.", Both)
    config = {"whole": {"a": [1]}, "parts": {"a": 1, "b": [2]}}

    def places(*unknown: tuple[str | int, ...]) -> list[tuple[str | int, ...]]:
        return [one.path for one in component.problems(config, unknown)]

    assert places() == [("whole",), ("parts", "a"), ("parts", "b", 0)]
    assert places(("whole", "a", 0), ("parts", "b")) == [("parts", "a")]
    assert places(("whole",), ("parts",)) == []
    assert find_component("a.b") is None


def test_an_error_with_places_has_the_words_of_all_of_them():
    """U-20: also for those who use the model itself."""
    with pytest.raises(Inside, match="expected a; write it; expected b") as raised:
        raise Inside([(("b",), "expected b")], [(("a",), "expected a; write it")])
    assert raised.value.inside == [(("b",), "expected b")]
