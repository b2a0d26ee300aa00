"""
`postgres.extractor` and `postgres.writer`: steps that read and write a PostgreSQL database. Connections of the family
`postgres`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from outlast.components.describing import Component, Family
from outlast.components.reaching import reach_postgres
from outlast.components.steps.config import Config, Connection, Identifier, MinRows, Rows, Unfit
from outlast.components.steps.queries import checked, places_in_quotes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outlast.components.describing import Override

Milliseconds = Annotated[int, Field(ge=1, le=86_400_000)]
Parameters = Annotated[
    dict[str, Any] | list[Any],
    Field(default_factory=dict[str, Any], description="values for %(name)s, or for %s in order"),
]
_PLACE = re.compile(r"%(?:%|s|\((?P<name>[^()]*)\)s|.|$)", re.DOTALL)


_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
ENCODE = "in an address @ is %40, : is %3A, / is %2F, ? is %3F, # is %23 and % is %25"


def _url(text: str) -> str:
    """
    An address in which the host is the host. Where a sign in the password is not encoded, the driver takes a part of
    the password for the host or the port, asks a name server for it, and says it in its messages.
    """
    scheme, found, rest = text.partition("://")
    if not found and "=" in text:
        return text  # the driver's other form, which quotes instead
    if scheme not in ("postgresql", "postgres") or not found:
        raise ValueError(
            "expected an address that begins with postgresql://; write it as postgresql://host/database, with a login before the host"
        )
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    behind = rest[len(authority) :]
    if authority.count("@") > 1 or (authority and "@" not in authority and "@" in behind.partition("?")[0]):
        raise ValueError(f"expected user and password of the address to be percent-encoded; {ENCODE}")
    hosts = authority.rpartition("@")[2]
    if not all(re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:[0-9]*)?", host) for host in hosts.split(",")):
        raise ValueError(f"expected the port of the address to be a number; if it is part of a password, {ENCODE}")
    if _PERCENT.search(text):
        raise ValueError(f"expected every % of the address to be percent-encoded; {ENCODE}")
    if "#" in text:
        raise ValueError(f"expected every # of the address to be percent-encoded; {ENCODE}")
    return text


class PostgresConnection(Config):
    """A database and who reaches it: `url`, or the parts."""

    url: Annotated[
        Annotated[str, AfterValidator(_url)] | None,
        Field(
            description="the whole address, postgresql://host/database with its login, in one variable and percent-encoded"
        ),
    ] = None
    host: Annotated[str | None, Field(min_length=1, description="the server, or the folder of its socket")] = None
    port: Annotated[int, Field(ge=1, le=65535, description="where the server listens")] = 5432
    database: Annotated[str | None, Field(min_length=1, description="the name of the database")] = None
    user: Annotated[str | None, Field(min_length=1, description="who reaches it")] = None
    password: Annotated[str | None, Field(description="belongs to user")] = None
    sslmode: Annotated[
        Literal["disable", "require", "verify-ca", "verify-full"],
        Field(description="how the server proves who it is; disable for one in this machine"),
    ] = "verify-full"
    sslrootcert: Annotated[
        str | None, Field(min_length=1, description="the file of the authority; system for those of the system")
    ] = None
    schema_: Annotated[
        Identifier | None,
        Field(alias="schema", description="where tables without a schema are looked for"),
    ] = None
    statement_timeout_ms: Annotated[
        Milliseconds | None, Field(description="how long the server works on one statement")
    ] = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        parts = {"host", "port", "database", "user", "password", "sslmode", "sslrootcert"} & self.model_fields_set
        if self.url is not None and parts:
            raise ValueError(f"expected url or the parts; leave out {', '.join(sorted(parts))}")
        if self.url is None and not {"host", "database", "user"} <= parts:
            raise ValueError("expected url, or host, database and user; add what is missing")
        return self


FAMILY = Family(
    name="postgres",
    summary="A PostgreSQL database.",
    config=PostgresConnection,
    secrets=("url", "password"),
    example={"host": "db.example.com", "database": "shop", "user": "reader", "password": "${SHOP_PASSWORD}"},
    reach=reach_postgres,
)
_FORBIDDEN: dict[str, Override] = dict.fromkeys(
    ("url", "host", "port", "database", "user", "password", "sslmode", "sslrootcert"), "forbidden"
)
_OVERRIDES: dict[str, Override] = {**_FORBIDDEN, "schema": "warning", "statement_timeout_ms": "allowed"}


def bound(query: str, parameters: Mapping[str, Any] | list[Any], *, mysql: bool = False) -> None:
    """Raise what is wrong if the places of a query for values and the parameters are not for each other."""
    named: set[str] = set()
    in_order = 0
    for place in _PLACE.finditer(query):
        if place[0] == "%s":
            in_order += 1
        elif place["name"] is not None:
            named.add(place["name"])
        elif place[0] != "%%" and parameters:
            raise Unfit("expected %(name)s or %s in query; write %% for the sign itself", "query")
    if parameters and places_in_quotes(query, mysql=mysql):
        raise Unfit(
            "expected %(name)s and %s of query outside of quotes and comments; a value needs no quotes, and concat(...) joins texts",
            "query",
        )
    if isinstance(parameters, list):
        if named or in_order != len(parameters):
            raise Unfit(
                f"expected {in_order} parameters, one for each %s; a mapping is for %(name)s", "parameters", "query"
            )
        return
    if in_order:
        raise Unfit("expected parameters to be a list, because query has %s; or write %(name)s", "parameters", "query")
    if missing := sorted(named - parameters.keys()):
        raise Unfit(f"expected a parameter {missing[0]}, which query has; add it to parameters", "parameters", "query")
    if unused := sorted(parameters.keys() - named):
        raise Unfit(
            f"expected parameters that query has; leave {unused[0]} out, or write %({unused[0]})s",
            "parameters",
            "query",
        )


class ExtractorConfig(Config):
    """A query. Values are bound to it by the driver and are never part of its text."""

    connection: Annotated[Connection, Field(description="@postgres.alias")]
    query: Annotated[
        str,
        Field(
            min_length=1,
            max_length=100_000,
            description="one SELECT that only reads; %(name)s or %s stands for a parameter",
        ),
        AfterValidator(checked),
    ]
    parameters: Parameters
    chunk_rows: Annotated[int, Field(ge=1, le=1_000_000, description="rows that are fetched at a time")] = 1000
    schema_: Annotated[Identifier | None, Field(alias="schema", description="in place of that of the connection")] = (
        None
    )
    statement_timeout_ms: Annotated[Milliseconds | None, Field(description="in place of that of the connection")] = None

    @model_validator(mode="after")
    def _bound(self) -> Self:
        bound(self.query, self.parameters)
        return self


EXTRACTOR = Component(
    name="postgres.extractor",
    summary="Reads the rows of a query from PostgreSQL, in a read-only transaction.",
    config=ExtractorConfig,
    outputs={"rows": "the rows, as a source for later steps", "count": "how many rows there are"},
    types={"rows": "rows", "count": "integer"},
    connection="postgres",
    overrides=_OVERRIDES,
    literal=("query",),
    reads=True,
    idempotent=True,
    network=True,
    run="outlast.components.steps.doing.postgres:extract",
    example={
        "connection": "@postgres.shop",
        "query": "select id, title from movies where day = %(day)s order by id",
        "parameters": {"day": "2026-11-16"},
    },
)


class WriterConfig(Config):
    """Rows for a table, in one transaction."""

    connection: Annotated[Connection, Field(description="@postgres.alias")]
    table: Annotated[Identifier, Field(description="the table, without its schema")]
    rows: Rows
    mode: Annotated[
        Literal["insert", "upsert", "replace"],
        Field(description="insert: only new rows; upsert: a row with this key is updated; replace: all others go"),
    ] = "insert"
    key: Annotated[
        list[Identifier], Field(default_factory=list[str], description="the columns that tell rows apart, for upsert")
    ]
    columns: Annotated[
        list[Identifier] | None,
        Field(min_length=1, description="the columns that are written; all of the rows if left out"),
    ] = None
    min_rows: MinRows = 0
    batch_rows: Annotated[int, Field(ge=1, le=1_000_000, description="rows that are sent at a time")] = 10_000
    schema_: Annotated[Identifier | None, Field(alias="schema", description="in place of that of the connection")] = (
        None
    )
    statement_timeout_ms: Annotated[Milliseconds | None, Field(description="in place of that of the connection")] = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.mode == "upsert" and not self.key:
            raise Unfit("expected key, because mode is upsert; name the columns that tell rows apart", "mode", "key")
        if self.mode != "upsert" and self.key:
            raise Unfit(
                f"expected no key, because mode is {self.mode}; leave it out, or write mode: upsert", "key", "mode"
            )
        for name, columns in (("key", self.key), ("columns", self.columns or [])):
            if len(set(columns)) < len(columns):
                raise Unfit(f"expected each column once in {name}; leave the second one out", "key", "columns")
        if self.columns is not None and not set(self.key) <= set(self.columns):
            raise Unfit("expected columns to have those of key; add them", "columns", "key")
        return self


WRITER = Component(
    name="postgres.writer",
    summary="Writes rows to a table of PostgreSQL, all or none.",
    config=WriterConfig,
    outputs={"count": "how many rows were written, which are all of them", "table": "the table, with its schema"},
    types={"count": "integer", "table": "text"},
    connection="postgres",
    overrides=_OVERRIDES,
    writes=True,
    side_effects=True,
    idempotent_if={"mode": ("upsert", "replace")},
    network=True,
    places={"rows": "rows"},
    run="outlast.components.steps.doing.postgres:write",
    example={
        "connection": "@postgres.shop",
        "table": "movies",
        "rows": "${steps.read.outputs.rows}",
        "mode": "upsert",
        "key": ["id"],
    },
)
