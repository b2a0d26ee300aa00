"""
`data.processor` and `schema.validator`: steps that change rows and check them.
"""

from __future__ import annotations

import re
import warnings
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from outlast.components.describing import Component
from outlast.components.steps.config import Call, Config, PathInside, Rows, Unfit
from outlast.errors import nearest
from outlast.settings.checks import show

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
    example={"rows": "${steps.read.outputs.rows}", "rename": {"ttl": "title"}, "select": ["id", "title"]},
)


def _wrong(said: str) -> ValueError:
    """What pydantic takes for a mistake in a value, of whichever type."""
    return ValueError(said)


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    _check_schema(schema, 0)
    return schema


def _check_schema(schema: Any, depth: int) -> None:
    """What is surely no JSON Schema, and whatever would be fetched from elsewhere."""
    if isinstance(schema, bool):
        return
    if depth > _DEEPEST:
        raise ValueError(f"expected a schema of at most {_DEEPEST} levels; use $defs")
    if not isinstance(schema, dict):
        raise _wrong("expected a JSON Schema to be a mapping at every level; write it as {type: ...}")
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in _TYPES:
            near = nearest(str(kind), _TYPES).strip()
            way_out = near[:1].lower() + near[1:] or "change it"
            raise ValueError(
                f"expected type in the schema to be one of {', '.join(_TYPES)}, got {show(kind)}; {way_out}"
            )
    if not isinstance(schema.get("required", []), list):
        raise _wrong("expected required in the schema to be a list of names; write it as [id, title]")
    for key in ("$ref", "$dynamicRef"):
        if not str(schema.get(key, "#")).startswith("#"):
            raise ValueError(f"expected {key} to refer to the schema itself; write it as #/$defs/name")
    for pattern in [schema[one] for one in ("pattern",) if one in schema] + _names_in(schema, "patternProperties"):
        if not isinstance(pattern, str) or not _is_pattern(pattern):
            raise _wrong(
                "expected every pattern in the schema to be a regular expression that Python can read; "
                "write signs that stand for themselves with \\ before them"
            )
    inner = [schema[key] for key in _INNER if key in schema]
    for key in _INNER_LISTS:
        inner += _of_kind(schema, key, list)
    for key in _INNER_MAPS:
        inner += _of_kind(schema, key, dict)
    for one in inner:
        _check_schema(one, depth + 1)


def _names_in(schema: dict[str, Any], key: str) -> list[str]:
    found = schema.get(key)
    return list(found) if isinstance(found, dict) else []


def _is_pattern(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it may mean something else in another version
            re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _of_kind(schema: dict[str, Any], key: str, kind: type[Any]) -> list[Any]:
    found: Any = schema.get(key, kind())
    if not isinstance(found, kind):
        what = "a list" if kind is list else "a mapping"
        raise _wrong(f"expected {key} in the schema to be {what}; see the JSON Schema standard")
    return list(found.values()) if isinstance(found, dict) else list(found)


class ValidatorConfig(Config):
    """What the data must be, as JSON Schema (2020-12)."""

    data: Annotated[Any, Field(description="what is checked: rows, each by itself, or one value")]
    schema_: Annotated[
        Annotated[dict[str, Any], AfterValidator(_schema)] | None, Field(alias="schema", description="the JSON Schema")
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
    example={
        "data": "${steps.read.outputs.rows}",
        "schema": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
    },
)
