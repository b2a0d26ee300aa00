"""
`files.reader` and `files.writer`: steps that read and write files, under the project's root.
"""

from __future__ import annotations

import codecs
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from outlast.components.describing import Component
from outlast.components.files import is_encoding, is_mark
from outlast.components.steps.config import Config, MinRows, PathInside, Rows, Unfit, known_ending

_Format = Annotated[
    Literal["jsonl", "csv", "tsv", "parquet"] | None, Field(description="the format; by the ending if left out")
]
_NO_FORMAT = (
    "expected a path that ends in .jsonl, .ndjson, .csv or .tsv (also with .gz or .zst behind it) or in .parquet; "
    "or say what it is with format"
)
_DELIMITED = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst")


def _is_delimited(path: str, kind: str | None) -> bool:
    return kind in ("csv", "tsv") or (kind is None and path.lower().endswith(_DELIMITED))


def _mark(text: str) -> str:
    if not is_mark(text):
        raise ValueError("expected one character that is neither a quote nor the end of a line; write one, such as ;")
    return text


def _encoding(text: str) -> str:
    # Two that Python has are of names of hosts: what is behind a line break is not read by them.
    if not is_encoding(text) or codecs.lookup(text).name in ("idna", "punycode"):
        raise ValueError("expected the name of an encoding of text; write it as cp1252, or leave it out for UTF-8")
    return text


class ReaderConfig(Config):
    """`path` is a file or a pattern, under the project's root."""

    path: Annotated[PathInside, Field(description="a file or a pattern such as in/*.jsonl, under the project's root")]
    format: _Format = None
    delimiter: Annotated[
        Annotated[str, AfterValidator(_mark), Field(json_schema_extra={"minLength": 1, "maxLength": 1})] | None,
        Field(description="what stands between cells of CSV; a comma if left out"),
    ] = None
    encoding: Annotated[
        Annotated[str, AfterValidator(_encoding), Field(json_schema_extra={"minLength": 1})] | None,
        Field(description="how CSV files are encoded; UTF-8 if left out"),
    ] = None
    max_bytes: Annotated[
        int,
        Field(ge=1, le=1_000_000_000, description="more bytes of all files, once they are unpacked, are an error"),
    ] = 256_000_000

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.format is None and not known_ending(self.path):
            raise Unfit(_NO_FORMAT, "path", "format")
        if (self.delimiter or self.encoding) and not _is_delimited(self.path, self.format):
            raise Unfit("expected delimiter and encoding for CSV and TSV only; leave them out", "path", "format")
        return self


READER = Component(
    name="files.reader",
    summary="Reads rows from files of JSON Lines, CSV, TSV or Parquet.",
    config=ReaderConfig,
    outputs={"rows": "the rows, as a source for later steps", "count": "how many rows there are"},
    types={"rows": "rows", "count": "integer"},
    reads=True,
    idempotent=True,
    places={"path": "pattern"},
    run="outlast.components.steps.doing.files:read",
    example={"path": "in/*.jsonl"},
)


class WriterConfig(Config):
    """`path` is one file, under the project's root. It appears whole or not at all, and replaces one that is there."""

    path: Annotated[PathInside, Field(description="the file, under the project's root; one that is there is replaced")]
    rows: Rows
    min_rows: MinRows = 0
    format: _Format = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.format is None and not known_ending(self.path):
            raise Unfit(_NO_FORMAT, "path", "format")
        if any(sign in self.path for sign in "*?["):
            raise Unfit("expected path to be one file; a pattern is for reading only", "path")
        return self


WRITER = Component(
    name="files.writer",
    summary="Writes rows to a file of JSON Lines, CSV, TSV or Parquet: whole, or not at all.",
    config=WriterConfig,
    outputs={"path": "the file", "count": "how many rows it has"},
    types={"path": "text", "count": "integer"},
    writes=True,
    side_effects=True,
    idempotent=True,
    places={"path": "path", "rows": "rows"},
    run="outlast.components.steps.doing.files:write",
    example={"path": "out/movies.parquet", "rows": "${steps.read.outputs.rows}"},
)
