"""
`sql.transform`: a step that makes rows out of the rows of earlier steps, with a query. DuckDB runs it, in memory, and
reaches neither files nor the network.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from outlast.components.describing import Component
from outlast.components.steps.config import Config, Identifier, Rows, Unfit
from outlast.components.steps.queries import _words

# The types that a column can be said to have. Of lists and mappings a table finds out the type by itself.
COLUMN_TYPES = (
    "boolean bigint hugeint double varchar blob date time timetz timestamp timestamptz interval uuid decimal(w,s)"
).split()
_DECIMAL = re.compile(r"decimal\(([1-9][0-9]?),([0-9][0-9]?)\)")
_BEGINNINGS = frozenset("select with from values table".split())
_CHANGES = frozenset("insert update delete merge".split())
# Functions that read files, or settings that read them: DuckDB refuses each of them when the query runs.
_REACHES = re.compile(r"(read|parquet|sniff|write)_\w+|\w+_scan|glob|getenv|json_execute_serialized_sql|query")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def _check_word(word: str, before: str, after: str) -> None:
    if before in (".", "as", "$"):  # a column, a name for one, or a value that is bound
        return
    if word in _CHANGES:
        raise ValueError(
            f"expected a query that only reads, got {word.upper()}; tables are those of earlier steps, and a column of "
            "this name is written in double quotes"
        )
    if after == "(" and _REACHES.fullmatch(word):
        raise ValueError(
            f"expected a query over tables only, got {word}(...); files are read by a step of their own, such as "
            "files.reader"
        )
    if word == "'" and before in ("from", "join"):
        raise ValueError("expected the name of a table behind FROM, got a text; files are read by files.reader")
    if word == "?" or (before == "$" and word.isdigit()):
        raise ValueError("expected $name for a value; give it a name, and the value in params")


def checked(query: str) -> str:
    """The query, if it is one statement that selects; otherwise a ValueError says why not."""
    if "\x00" in query:
        raise ValueError("expected a query without NUL; leave it out")
    words = [word for word in _words(query) if word != "%"]
    if words[-1:] == [";"]:
        words.pop()
        if not query.rstrip().endswith(";"):
            raise ValueError("expected nothing behind the semicolon; write the comment before it")
    first = next((word for word in words if word != "("), "")
    if not first or first == ";":
        raise ValueError("expected a query; write a SELECT")
    if ";" in words:
        raise ValueError("expected one statement; give each a step of its own")
    if first not in _BEGINNINGS:
        raise ValueError("expected a SELECT; a transformation changes no settings and no tables, and writes nothing")
    for at, word in enumerate(words):
        _check_word(word, words[at - 1] if at else "", words[at + 1] if at + 1 < len(words) else "")
    return query


def parameters_of(query: str) -> set[str]:
    """
    The names of the values that a query is given.

    >>> sorted(parameters_of("select $day, '$text' -- $comment"))
    ['day']
    """
    words = list(_words(query))
    return {word for before, word in pairwise(words) if before == "$" and _NAME.fullmatch(word)}


def _type(text: str) -> str:
    found = _DECIMAL.fullmatch(text)
    if text not in COLUMN_TYPES[:-1] and not (found and int(found[2]) <= int(found[1]) <= 38):
        raise ValueError(f"expected one of {', '.join(COLUMN_TYPES)}; write it in small letters")
    return text


def _parameter(name: str) -> str:
    if not _NAME.fullmatch(name) or name != name.lower():
        raise ValueError("expected a name in small letters, digits and _; the query has it as $name")
    return name


class TransformConfig(Config):
    """A query over tables. Values are bound to it and are never part of its text."""

    tables: Annotated[
        dict[Identifier, Rows],
        Field(min_length=1, max_length=100, description="the tables by name: movies: ${steps.id.outputs.rows}"),
    ]
    query: Annotated[
        str,
        Field(min_length=1, max_length=100_000, description="one SELECT in DuckDB's SQL; $name stands for a value"),
        AfterValidator(checked),
    ]
    params: Annotated[
        dict[Annotated[str, AfterValidator(_parameter)], Any],
        Field(default_factory=dict[str, Any], description="values for $name"),
    ]
    columns: Annotated[
        dict[Identifier, dict[str, Annotated[str, AfterValidator(_type)]]],
        Field(
            default_factory=dict[str, Any],
            description="the columns and types of a table that may be empty, or whose values do not tell: movies: {id: bigint}",
        ),
    ]
    max_rows: Annotated[int, Field(ge=1, le=10_000_000, description="more rows than these are refused")] = 1_000_000
    memory_mb: Annotated[int, Field(ge=32, le=1_000_000, description="memory for tables and the query, in MB")] = 512

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for key, names in (("tables", self.tables), ("columns", self.columns)):
            if len({name.lower() for name in names}) < len(names):
                raise Unfit(f"expected {key} whose names differ in more than capital letters; rename one", key)
        if unknown := sorted(self.columns.keys() - self.tables.keys()):
            raise Unfit(f"expected columns of a table that is there; add {unknown[0]} to tables", "columns", "tables")
        named = parameters_of(self.query)
        if missing := sorted(named - self.params.keys()):
            raise Unfit(f"expected a value for ${missing[0]}, which query has; add it to params", "params", "query")
        if unused := sorted(self.params.keys() - named):
            raise Unfit(
                f"expected params that query has; leave {unused[0]} out, or write ${unused[0]}", "params", "query"
            )
        return self


TRANSFORM = Component(
    name="sql.transform",
    summary="Makes rows out of rows of earlier steps, with a query in SQL that reaches neither files nor the network.",
    config=TransformConfig,
    outputs={"rows": "the rows, as a source for later steps", "count": "how many rows there are"},
    types={"rows": "rows", "count": "integer"},
    literal=("query",),
    transforms=True,
    idempotent=True,
    places={"tables": "rows"},
    run="outlast.components.steps.doing.sql:transform",
    example={
        "tables": {"movies": "${steps.read.outputs.rows}"},
        "query": "select genre, count(*) as movies from movies where year >= $since group by genre order by genre",
        "params": {"since": 2020},
    },
)
