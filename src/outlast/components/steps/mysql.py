"""
`mysql.extractor`: a step that reads a MySQL or MariaDB database. Connections of the family `mysql`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from outlast.components.describing import Component, Family
from outlast.components.reaching import reach_mysql
from outlast.components.steps.config import Config, Connection
from outlast.components.steps.postgres import ENCODE, Milliseconds, Parameters, bound
from outlast.components.steps.queries import checked_mysql

if TYPE_CHECKING:
    from outlast.components.describing import Override

_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


def _url(text: str) -> str:
    """An address in which the host is the host, whatever signs a password has."""
    scheme, found, rest = text.partition("://")
    if scheme not in ("mysql", "mariadb") or not found:
        raise ValueError(
            "expected an address that begins with mysql://; write it as mysql://host/database, with a login before the host"
        )
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if authority.count("@") > 1 or "@" in rest[len(authority) :]:
        raise ValueError(f"expected user and password of the address to be percent-encoded; {ENCODE}")
    if not re.fullmatch(r"(\[[^\]]*\]|[^:]+)(:[0-9]+)?", authority.rpartition("@")[2]):
        raise ValueError(
            f"expected the address to have a host, and its port to be a number; if it is part of a password, {ENCODE}"
        )
    if "@" not in authority or authority[0] in ":@":
        raise ValueError("expected a user in the address; write it before the host, with an @ behind it")
    if _PERCENT.search(text) or "#" in text:
        raise ValueError(f"expected every % and # of the address to be percent-encoded; {ENCODE}")
    parts = urlsplit(text)
    if len(parts.path) < 2 or "/" in parts.path[1:]:
        raise ValueError("expected one database in the address; write it as mysql://host/database")
    if parts.query:
        raise ValueError("expected an address without ?; sslmode and the others are keys of the connection")
    return text


class MysqlConnection(Config):
    """A database and who reaches it: `url`, or the parts."""

    url: Annotated[
        Annotated[str, AfterValidator(_url)] | None,
        Field(
            description="the whole address, mysql://host/database with its login, in one variable and percent-encoded"
        ),
    ] = None
    host: Annotated[str | None, Field(min_length=1, description="the server, or the path of its socket")] = None
    port: Annotated[int, Field(ge=1, le=65535, description="where the server listens")] = 3306
    database: Annotated[str | None, Field(min_length=1, description="the name of the database")] = None
    user: Annotated[str | None, Field(min_length=1, description="who reaches it")] = None
    password: Annotated[str | None, Field(description="belongs to user")] = None
    sslmode: Annotated[
        Literal["disable", "require", "verify-ca", "verify-full"],
        Field(description="how the server proves who it is; disable for one in this machine; a socket needs none"),
    ] = "verify-full"
    sslrootcert: Annotated[
        str | None, Field(min_length=1, description="the file of the authority; those of the system if left out")
    ] = None
    statement_timeout_ms: Annotated[
        Milliseconds | None, Field(description="how long the server works on one statement")
    ] = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        parts = {"host", "port", "database", "user", "password"} & self.model_fields_set
        if self.url is not None and parts:
            raise ValueError(f"expected url or the parts; leave out {', '.join(sorted(parts))}")
        if self.url is None and not {"host", "database", "user"} <= parts:
            raise ValueError("expected url, or host, database and user; add what is missing")
        return self


FAMILY = Family(
    name="mysql",
    summary="A MySQL or MariaDB database.",
    config=MysqlConnection,
    secrets=("url", "password"),
    example={"host": "db.example.com", "database": "shop", "user": "reader", "password": "${SHOP_PASSWORD}"},
    reach=reach_mysql,
)
_OVERRIDES: dict[str, Override] = {
    **dict.fromkeys(("url", "host", "port", "database", "user", "password", "sslmode", "sslrootcert"), "forbidden"),
    "statement_timeout_ms": "allowed",
}


class ExtractorConfig(Config):
    """A query. Values are quoted by the driver where the query has a place for them, and are never part of its text."""

    connection: Annotated[Connection, Field(description="@mysql.alias")]
    query: Annotated[
        str,
        Field(
            min_length=1,
            max_length=100_000,
            description="one SELECT that only reads; %(name)s or %s stands for a parameter",
        ),
        AfterValidator(checked_mysql),
    ]
    parameters: Parameters
    chunk_rows: Annotated[int, Field(ge=1, le=1_000_000, description="rows that are fetched at a time")] = 1000
    max_rows: Annotated[int, Field(ge=1, le=100_000_000, description="more rows are an error")] = 1_000_000
    max_bytes: Annotated[
        int,
        Field(
            ge=1,
            le=100_000_000_000,
            description="more of texts and bytes in all rows is an error; any other value counts as 8",
        ),
    ] = 256_000_000
    statement_timeout_ms: Annotated[Milliseconds | None, Field(description="in place of that of the connection")] = None

    @model_validator(mode="after")
    def _bound(self) -> Self:
        bound(self.query, self.parameters, mysql=True)
        return self


EXTRACTOR = Component(
    name="mysql.extractor",
    summary="Reads the rows of a query from MySQL or MariaDB, in a read-only transaction.",
    config=ExtractorConfig,
    outputs={"rows": "the rows, as a source for later steps", "count": "how many rows there are"},
    types={"rows": "rows", "count": "integer"},
    connection="mysql",
    overrides=_OVERRIDES,
    literal=("query",),
    reads=True,
    idempotent=True,
    network=True,
    run="outlast.components.steps.doing.mysql:extract",
    example={
        "connection": "@mysql.shop",
        "query": "select id, title from movies where day = %(day)s order by id",
        "parameters": {"day": "2026-11-16"},
    },
)
