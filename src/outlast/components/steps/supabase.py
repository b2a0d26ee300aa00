"""
`supabase.writer` and `supabase.deleter`: steps that write rows to a table of Supabase, or of any PostgREST, and delete them
there. Connections of the family `supabase`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from outlast.components.describing import Component, Family
from outlast.components.reaching import reach_supabase
from outlast.components.steps.config import Config, Connection, Identifier, Inside, Rows, Unfit
from outlast.components.steps.http import base_address

if TYPE_CHECKING:
    from outlast.components.describing import Override

_PATH = re.compile(r"/([A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*)?/?")


def _url(text: str) -> str:
    base_address(text)
    if "?" in text or "#" in text:
        raise ValueError("expected an address without ? and #; write it as https://project.supabase.co")
    return text


def _path(text: str) -> str:
    if not _PATH.fullmatch(text) or ".." in text.split("/"):
        raise ValueError("expected a path such as /rest/v1; write / if there is none")
    return text


class SupabaseConnection(Config):
    """A project of Supabase, or another service that speaks as PostgREST does."""

    url: Annotated[
        str, AfterValidator(_url), Field(description="where the project is, such as https://project.supabase.co")
    ]
    key: Annotated[str, Field(min_length=1, description="the key that is sent with every request")]
    schema_: Annotated[
        Identifier | None, Field(alias="schema", description="where the tables are; that of the service if left out")
    ] = None
    path: Annotated[
        str, AfterValidator(_path), Field(description="where tables are under url; / for a PostgREST by itself")
    ] = "/rest/v1"
    allow_private: Annotated[bool, Field(description="whether it may be in this machine or a private network")] = False


FAMILY = Family(
    name="supabase",
    summary="A project of Supabase, whose tables are reached over HTTP (PostgREST).",
    config=SupabaseConnection,
    secrets=("key",),
    example={"url": "https://project.supabase.co", "key": "${SUPABASE_KEY}"},
    reach=reach_supabase,
)
_OVERRIDES: dict[str, Override] = {
    **dict.fromkeys(("url", "key", "path", "allow_private"), "forbidden"),
    "schema": "warning",
}


class WriterConfig(Config):
    """Rows for a table. Each request is one transaction of the database."""

    connection: Annotated[Connection, Field(description="@supabase.alias")]
    table: Annotated[Identifier, Field(description="the table, without its schema")]
    rows: Rows
    mode: Annotated[
        Literal["insert", "upsert", "ignore"],
        Field(
            description="insert: only new rows, in one request; upsert: a row that is there, by on_conflict, is updated; ignore: it stays"
        ),
    ] = "insert"
    on_conflict: Annotated[
        list[Identifier],
        Field(default_factory=list[str], description="the columns that tell rows apart, for upsert and ignore"),
    ]
    columns: Annotated[
        list[Identifier] | None,
        Field(min_length=1, description="the columns that are written; all of the rows if left out"),
    ] = None
    returning: Annotated[
        Literal["nothing", "rows"],
        Field(description="rows: the output rows has the rows as they were written, with defaults and generated keys"),
    ] = "nothing"
    batch_rows: Annotated[int, Field(ge=1, le=1_000_000, description="rows of one request at the most")] = 10_000
    batch_bytes: Annotated[
        int, Field(ge=1, le=1_000_000_000, description="bytes of one request at the most, and of its answer")
    ] = 10_000_000
    schema_: Annotated[Identifier | None, Field(alias="schema", description="in place of that of the connection")] = (
        None
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.mode != "insert" and not self.on_conflict:
            raise Unfit(
                f"expected on_conflict, because mode is {self.mode}; name the columns that tell rows apart",
                "mode",
                "on_conflict",
            )
        if self.mode == "insert" and self.on_conflict:
            raise Unfit(
                "expected no on_conflict, because mode is insert; leave it out, or write mode: upsert or mode: ignore",
                "on_conflict",
                "mode",
            )
        for name, columns in (("on_conflict", self.on_conflict), ("columns", self.columns or [])):
            if len(set(columns)) < len(columns):
                raise Unfit(f"expected each column once in {name}; leave the second one out", "on_conflict", "columns")
        if self.columns is not None and not set(self.on_conflict) <= set(self.columns):
            raise Unfit("expected columns to have those of on_conflict; add them", "columns", "on_conflict")
        if self.mode == "ignore" and self.returning == "rows":
            raise Unfit(
                "expected returning: nothing, because mode is ignore; the service does not give back rows that were there",
                "returning",
                "mode",
            )
        return self


WRITER = Component(
    name="supabase.writer",
    summary="Writes rows to a table of Supabase, or of any PostgREST.",
    config=WriterConfig,
    outputs={
        "count": "how many rows were sent; with mode: ignore, whether or not each of them was taken",
        "table": "the table",
        "rows": "the rows as they were written, with returning: rows; else none",
    },
    types={"count": "integer", "table": "text", "rows": "rows"},
    connection="supabase",
    overrides=_OVERRIDES,
    writes=True,
    side_effects=True,
    idempotent_if={"mode": ("upsert", "ignore")},
    network=True,
    places={"rows": "rows"},
    run="outlast.components.steps.doing.supabase:write",
    example={
        "connection": "@supabase.main",
        "table": "movies",
        "rows": "${steps.read.outputs.rows}",
        "mode": "upsert",
        "on_conflict": ["id"],
    },
)


def _values(given: dict[str, Any]) -> dict[str, Any]:
    """
    What a column is compared with. Nothing is refused: it may be what an earlier step did not put out, and rows without a
    value are others than those that were meant.
    """
    found: list[tuple[tuple[str | int, ...], str]] = []
    for name, value in given.items():
        if value is None or (isinstance(value, list) and None in value):
            found.append(((name,), "expected a value; columns that are empty are named in is_null"))
        elif isinstance(value, dict) or (
            isinstance(value, list) and any(isinstance(one, dict | list) for one in value)
        ):
            found.append(((name,), "expected a value, or a list of values; write them out"))
    if found:
        raise Inside(found)
    return given


class DeleterConfig(Config):
    """Which rows go: those of which all columns are as they are said to be."""

    connection: Annotated[Connection, Field(description="@supabase.alias")]
    table: Annotated[Identifier, Field(description="the table, without its schema")]
    match: Annotated[
        dict[Identifier, Any],
        AfterValidator(_values),
        Field(default_factory=dict[str, Any], description="columns and the value of each, or a list of values"),
    ]
    is_null: Annotated[list[Identifier], Field(default_factory=list[str], description="columns that are empty (null)")]
    schema_: Annotated[Identifier | None, Field(alias="schema", description="in place of that of the connection")] = (
        None
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.match and not self.is_null:
            raise Unfit(
                "expected match or is_null; without one all rows of the table would go", "match", "is_null", "table"
            )
        if both := sorted({*self.match} & {*self.is_null}):
            raise Unfit(
                f"expected a column in match or in is_null; leave {both[0]} out of one of them", "is_null", "match"
            )
        return self


DELETER = Component(
    name="supabase.deleter",
    summary="Deletes rows of a table of Supabase, or of any PostgREST, by the values of columns.",
    config=DeleterConfig,
    outputs={"count": "how many rows this attempt has deleted"},
    types={"count": "integer"},
    connection="supabase",
    overrides=_OVERRIDES,
    writes=True,
    side_effects=True,
    idempotent=True,
    network=True,
    run="outlast.components.steps.doing.supabase:delete",
    example={"connection": "@supabase.main", "table": "movies", "match": {"batch": "${params.batch_id}"}},
)
