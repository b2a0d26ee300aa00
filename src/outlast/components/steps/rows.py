"""
`data.processor` and `schema.validator`: steps that change rows and check them.
"""

from __future__ import annotations

import re
import warnings
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from outlast.components.describing import Component
from outlast.components.steps.config import Call, Config, Inside, PathInside, Rows, Unfit
from outlast.errors import nearest

_Column = Annotated[str, Field(min_length=1, max_length=200)]
_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
_INNER = ("items", "contains", "not", "additionalProperties", "propertyNames", "if", "then", "else", "unevaluatedItems")
_INNER_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_INNER_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DEEPEST = 50


class ProcessorConfig(Config):
    """What is done to each row, in this order: rename, select, defaults, then the function."""

    rows: Rows
    rename: Annotated[
        dict[_Column, _Column], Field(default_factory=dict, description="columns that get another name: old: new")
    ]
    select: Annotated[
        list[_Column] | None, Field(min_length=1, description="the columns that are kept; all if left out")
    ] = None
    defaults: Annotated[
        dict[_Column, Any], Field(default_factory=dict, description="values for columns that are missing or null")
    ]
    call: Annotated[
        Call | None, Field(description="module:function, of the project: a row to a row, or to None, which drops it")
    ] = None
    args: Annotated[
        dict[str, Any], Field(default_factory=dict, description="further keyword arguments of the function")
    ]

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not (self.rename or self.select or self.defaults or self.call):
            raise Unfit(
                "expected rename, select, defaults or call; without one nothing is done",
                "rename",
                "select",
                "defaults",
                "call",
            )
        if self.args and self.call is None:
            raise Unfit("expected call, because there are args; add it, or leave args out", "args", "call")
        if len(set(self.rename.values())) < len(self.rename):
            raise Unfit("expected a name of its own for each column; two of rename get the same one", "rename")
        return self


PROCESSOR = Component(
    name="data.processor",
    summary="Changes rows one by one: renames, selects, fills in, or calls a function of the project for each.",
    config=ProcessorConfig,
    outputs={
        "rows": "the rows, as a source for later steps",
        "count": "how many rows there are",
        "dropped": "how many rows the function dropped",
    },
    types={"rows": "rows", "count": "integer", "dropped": "integer"},
    literal=("call",),
    calls=("call",),
    transforms=True,
    idempotent_if={"call": (None,)},
    places={"rows": "rows"},
    run="outlast.components.steps.doing.rows:process",
    example={"rows": "${steps.read.outputs.rows}", "rename": {"ttl": "title"}, "select": ["id", "title"]},
)


_Place = tuple[str | int, ...]
_PATTERN = (
    "expected a regular expression that Python can read; write signs that stand for themselves with \\ before them"
)


def check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """What is surely no JSON Schema is refused, and whatever would be fetched from elsewhere."""
    checked = _Schema()
    checked.check(schema, (), 0)
    if checked.found or checked.names:
        raise Inside(checked.found, checked.names)
    return schema


class _Schema:
    """What is wrong in a schema and in those inside of it, each with its path; `names` has those of keys."""

    def __init__(self) -> None:
        self.found: list[tuple[_Place, str]] = []
        self.names: list[tuple[_Place, str]] = []

    def check(self, schema: Any, path: _Place, depth: int) -> None:
        if isinstance(schema, bool):
            return
        if depth > _DEEPEST:
            self._wrong(path, f"expected a schema of at most {_DEEPEST} levels; use $defs")
            return
        if not isinstance(schema, dict):
            self._wrong(path, "expected a JSON Schema, which is a mapping, or true or false; write it as {type: ...}")
            return
        self._words(schema, path)
        for key in _INNER:
            if key in schema:
                self.check(schema[key], (*path, key), depth + 1)
        for key in (*_INNER_LISTS, *_INNER_MAPS):
            for part, one in self._parts(schema, key, path):
                self.check(one, (*path, key, part), depth + 1)

    def _wrong(self, path: _Place, said: str) -> None:
        self.found.append((path, said))

    def _words(self, schema: dict[str, Any], path: _Place) -> None:
        kinds = schema.get("type", [])
        for number, kind in enumerate(kinds) if isinstance(kinds, list) else [(None, kinds)]:
            if kind not in _TYPES:
                near = nearest(str(kind), _TYPES).strip() if isinstance(kind, str) else ""
                way_out = near[:1].lower() + near[1:] or "change it"
                where = (*path, "type") if number is None else (*path, "type", number)
                self._wrong(where, f"expected one of {', '.join(_TYPES)}; {way_out}")
        if not isinstance(schema.get("required", []), list):
            self._wrong((*path, "required"), "expected a list of names; write it as [id, title]")
        for key in ("$ref", "$dynamicRef"):
            if not str(schema.get(key, "#")).startswith("#"):
                self._wrong((*path, key), f"expected {key} to refer to the schema itself; write it as #/$defs/name")
        if "pattern" in schema and not _is_pattern(schema["pattern"]):
            self._wrong((*path, "pattern"), _PATTERN)
        by_pattern = schema.get("patternProperties")
        for pattern in by_pattern if isinstance(by_pattern, dict) else ():
            if not _is_pattern(pattern):
                self.names.append(((*path, "patternProperties", pattern), _PATTERN))

    def _parts(self, schema: dict[str, Any], key: str, path: _Place) -> list[tuple[str | int, Any]]:
        found = schema.get(key, [])
        if key in _INNER_LISTS and isinstance(found, list):
            return list(enumerate(found))
        if key in _INNER_MAPS and isinstance(found, dict):
            return list(found.items())
        if key in schema:
            what = "a list" if key in _INNER_LISTS else "a mapping"
            self._wrong((*path, key), f"expected {what} of JSON Schemas; see the JSON Schema standard")
        return []


def _is_pattern(text: Any) -> bool:
    if not isinstance(text, str):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it may mean something else in another version
            re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


class ValidatorConfig(Config):
    """What the data must be, as JSON Schema (2020-12)."""

    data: Annotated[Any, Field(description="what is checked: rows, each by itself, or one value")]
    schema_: Annotated[
        Annotated[dict[str, Any], AfterValidator(check_schema)] | None,
        Field(alias="schema", description="the JSON Schema"),
    ] = None
    schema_file: Annotated[
        PathInside | None, Field(description="a JSON file with the schema, under the project's root")
    ] = None
    on_invalid: Annotated[
        Literal["fail", "split"],
        Field(description="fail: the step fails; split: what does not fit is in the output invalid"),
    ] = "fail"

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.schema_ is None) == (self.schema_file is None):
            raise Unfit("expected one of schema and schema_file; give one of the two", "schema", "schema_file")
        return self


VALIDATOR = Component(
    name="schema.validator",
    summary="Checks rows, or one value, against a JSON Schema.",
    config=ValidatorConfig,
    outputs={
        "valid": "what fits, as a source for later steps",
        "invalid": "what does not, with the reasons",
        "count": "how many fit",
    },
    types={"count": "integer"},
    files=("schema_file",),
    transforms=True,
    idempotent=True,
    places={"data": "rows", "schema_file": "path"},
    run="outlast.components.steps.doing.rows:validate",
    example={
        "data": "${steps.read.outputs.rows}",
        "schema": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
    },
)
