"""
`s3.reader`, `s3.writer` and `s3.deleter`: steps that read, write and delete one object of S3, or of a store that speaks
its protocol. Connections of the family `s3`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from outlast.components.describing import Component, Family
from outlast.components.reaching import reach_s3
from outlast.components.steps.config import Config, Connection, Inside, Surely, Unfit

if TYPE_CHECKING:
    from outlast.components.describing import Override

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]", re.ASCII)
_REGION = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_EXTENSION = re.compile(r"\.[A-Za-z0-9][A-Za-z0-9._-]{0,30}", re.ASCII)
_META = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", re.ASCII)
_TYPE = re.compile(
    r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}( ?; ?[A-Za-z0-9-]+=[A-Za-z0-9\"_.-]+)*", re.ASCII
)
_REFERENCE = re.compile(r"\$\{[^{}]*\}")
# What the name of an object says about what is in it.
_KNOWN = {
    ".txt": "text",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
}
# What the writer notes with every object: the checksum of its bytes, and which work of which run has written it.
OWN_METADATA, OWN_WORK = "outlast-sha256", "outlast-work"
# What a body is, by what the object holds: any JSON value is one of json.
_BODIES: dict[str, tuple[type, str]] = {
    "text": (str, "expected a text, as key or format says; write it in quotes, or say format: json"),
    "jsonl": (list, "expected rows, as key or format says; write ${steps.id.outputs.rows}, or a list"),
    "csv": (list, "expected rows, as key or format says; write ${steps.id.outputs.rows}, or a list"),
    "bytes": (bytes, "expected bytes, as format says; they come from another step, as ${steps.id.outputs.body}"),
}
_NO_FORMAT = f"expected a key that ends in {', '.join(_KNOWN)}; or say what it is with format"


def _endpoint(text: str) -> str:
    try:
        parts = urlsplit(text)
        port_is_right = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError("expected an address as https://host; write it out") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_right:
        raise ValueError("expected an address that begins with http:// or https://; write it as https://host")
    if "@" in parts.netloc or parts.query or parts.fragment or not text.isprintable() or " " in text:
        raise ValueError("expected an address of a host and nothing behind it; leave a login and ? out")
    return text


def _bucket(text: str) -> str:
    if not _BUCKET.fullmatch(text):
        raise ValueError("expected the name of a bucket in letters, digits, dots and -; write it without s3:// and /")
    return text


def _region(text: str) -> str:
    if not _REGION.fullmatch(text):
        raise ValueError("expected a region in small letters, digits and -; write it as eu-central-1")
    return text


def _key(text: str) -> str:
    """A key that means the same object to everybody it passes on its way."""
    if text.startswith("s3://"):
        raise Surely("expected a key without its bucket; write the bucket under bucket, and here what follows it")
    if text.startswith("/"):
        raise Surely("expected a key that does not begin with /; leave the first / out")
    if {".", ".."} & set(text.split("/")):
        raise ValueError("expected a key without . and .. between its /, which are lost on the way; leave them out")
    if _CONTROL.search(text):
        raise ValueError("expected a key of characters that can be seen; leave line breaks and the like out")
    if len(text.encode()) > 1024:
        raise ValueError("expected a key of at most 1024 bytes; make it shorter")
    return text


def _extensions(given: list[str]) -> list[str]:
    wrong = [
        ((number,), "expected an extension such as .json; write it with its dot")
        for number, one in enumerate(given)
        if not _EXTENSION.fullmatch(one)
    ]
    if wrong:
        raise Inside(wrong)
    return given


def _metadata(given: dict[str, str]) -> dict[str, str]:
    names = {
        (name,): "expected the name of metadata in letters, digits, - and _; leave x-amz-meta- and others out"
        for name in given
        if not _META.fullmatch(name) or name.lower().startswith("x-amz-")
    }
    names |= {
        (name,): "expected a name of your own; this one is set by the component itself"
        for name in given
        if name.lower() in (OWN_METADATA, OWN_WORK)
    }
    lowered = [name.lower() for name in given]
    names |= {
        (name,): "expected each name once, whatever its letters; leave the second one out"
        for number, name in enumerate(given)
        if name.lower() in lowered[:number]
    }
    values = {
        (name,): "expected one line of ASCII, which is what a header can hold; encode it"
        for name, value in given.items()
        if not value.isascii() or not value.isprintable() or value != value.strip()
    }
    if names or values:
        raise Inside([*values.items()], [*names.items()])
    return given


def _content_type(text: str) -> str:
    if not _TYPE.fullmatch(text):
        raise ValueError("expected a type as application/json; write it with one /, and what belongs to it behind a ;")
    return text


def _patterns(given: dict[str, str]) -> dict[str, str]:
    names = {
        (name,): "expected the name of metadata in letters, digits, - and _; leave x-amz-meta- and others out"
        for name in given
        if not _META.fullmatch(name) or name.lower().startswith("x-amz-")
    }
    values: dict[tuple[str | int, ...], str] = {}
    for name, pattern in given.items():
        try:
            re.compile(pattern)
        except re.error:
            values[(name,)] = "expected a regular expression; write .+ for any value"
    if names or values:
        raise Inside([*values.items()], [*names.items()])
    return given


class S3Connection(Config):
    """A bucket, where it is, and who reaches it."""

    bucket: Annotated[str, AfterValidator(_bucket), Field(description="the bucket, unless a step names another")]
    endpoint_url: Annotated[
        Annotated[str, AfterValidator(_endpoint)] | None,
        Field(description="where the store is, as https://host:port; that of AWS for the region if left out"),
    ] = None
    region: Annotated[str, AfterValidator(_region), Field(description="the region of the bucket")] = "us-east-1"
    access_key_id: Annotated[
        str | None, Field(min_length=1, description="who reaches it; that of this machine for AWS if left out")
    ] = None
    secret_access_key: Annotated[str | None, Field(description="belongs to access_key_id")] = None
    session_token: Annotated[str | None, Field(description="of a login that is valid for a while")] = None
    path_style: Annotated[
        bool, Field(description="whether the bucket stands in the path, and not before the name of the host")
    ] = True

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("expected access_key_id and secret_access_key, both or none of them; add the other one")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("expected access_key_id and secret_access_key with session_token; add them")
        if self.endpoint_url is not None and self.access_key_id is None:
            raise ValueError(
                "expected access_key_id and secret_access_key with endpoint_url; the login of this machine is for AWS only"
            )
        return self


FAMILY = Family(
    name="s3",
    summary="A bucket of S3, or of a store that speaks its protocol.",
    config=S3Connection,
    secrets=("secret_access_key", "session_token"),
    example={
        "bucket": "reports",
        "endpoint_url": "https://objects.example.com",
        "access_key_id": "AKEXAMPLE",
        "secret_access_key": "${OBJECTS_SECRET}",
    },
    reach=reach_s3,
)
_OVERRIDES: dict[str, Override] = {
    "bucket": "allowed",
    **dict.fromkeys(
        ("endpoint_url", "region", "access_key_id", "secret_access_key", "session_token", "path_style"), "forbidden"
    ),
}
_OfConnection = Annotated[Connection, Field(description="@s3.alias")]
_OtherBucket = Annotated[
    Annotated[str, AfterValidator(_bucket)] | None, Field(description="in place of that of the connection")
]
Key = Annotated[str, Field(min_length=1), AfterValidator(_key)]
_Format = Annotated[
    Literal["text", "json", "jsonl", "csv", "bytes"] | None,
    Field(description="what it holds: text, json, jsonl and csv (rows), bytes; by the ending of key if left out"),
]
_MaxBytes = Annotated[int, Field(ge=1, le=1_000_000_000, description="a longer object is an error")]


def format_of(key: str, said: str | None) -> str | None:
    """
    What an object holds: as the step says, else by the ending of its key.

    >>> format_of("day/1.JSON", None), format_of("day/1.json", "text"), format_of("day/1", None)
    ('json', 'text', None)
    """
    return said or next((known for ending, known in _KNOWN.items() if key.lower().endswith(ending)), None)


class ReaderConfig(Config):
    """One object, and what it must be."""

    connection: _OfConnection
    bucket: _OtherBucket = None
    key: Annotated[Key, Field(description="the object")]
    format: _Format = None
    extensions: Annotated[
        Annotated[list[str], AfterValidator(_extensions)] | None,
        Field(min_length=1, description="the endings that key may have, such as .json; another one is refused"),
    ] = None
    require_metadata: Annotated[
        Annotated[dict[str, str], AfterValidator(_patterns)],
        Field(
            default_factory=dict,
            description="metadata that the object must have: names, and the regular expression that the whole value fits",
        ),
    ]
    max_bytes: _MaxBytes = 10_000_000

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if format_of(self.key, self.format) is None and not _REFERENCE.search(self.key):
            raise Unfit(_NO_FORMAT, "key", "format")
        return self


READER = Component(
    name="s3.reader",
    summary="Reads one object of S3, whole or not at all.",
    config=ReaderConfig,
    outputs={
        "body": "what it holds, as format says: a text, a JSON value, rows, or bytes",
        "size": "how many bytes it has",
        "etag": "the mark of this version of the object",
        "content_type": "what the store says that it is",
        "metadata": "its metadata, names in small letters",
    },
    types={"size": "integer", "etag": "text", "content_type": "text", "metadata": "mapping"},
    connection="s3",
    overrides=_OVERRIDES,
    reads=True,
    idempotent=True,
    network=True,
    places={"key": "path"},
    run="outlast.components.steps.doing.s3:read",
    example={"connection": "@s3.reports", "key": "in/${params.day}.json", "extensions": [".json"]},
)


class WriterConfig(Config):
    """What one object will hold."""

    connection: _OfConnection
    bucket: _OtherBucket = None
    key: Annotated[Key, Field(description="the object")]
    body: Annotated[Any, Field(description="what it will hold: a text, a JSON value, rows, or bytes, as format says")]
    format: _Format = None
    content_type: Annotated[
        Annotated[str, AfterValidator(_content_type)] | None,
        Field(description="what readers are told that it is; by format if left out"),
    ] = None
    metadata: Annotated[
        Annotated[dict[str, str], AfterValidator(_metadata)],
        Field(default_factory=dict, description="what is noted with the object; names in small letters"),
    ]
    overwrite: Annotated[
        bool,
        Field(
            description="whether an object with other bytes, metadata or content_type may be replaced; false: it is an error"
        ),
    ] = True
    max_bytes: _MaxBytes = 100_000_000

    @model_validator(mode="after")
    def _fits(self) -> Self:
        kind = format_of(self.key, self.format)
        if kind is None and not _REFERENCE.search(self.key):
            raise Unfit(_NO_FORMAT, "key", "format")
        if self.body is None:
            raise Unfit("expected a value; an object without one is the text '' with format: text", "body")
        fitting, said = _BODIES.get(kind or "", (object, ""))
        if not isinstance(self.body, fitting):
            raise Unfit(said, "body")
        return self


WRITER = Component(
    name="s3.writer",
    summary="Writes one object of S3, whole or not at all, and checks that the store has the bytes that were sent.",
    config=WriterConfig,
    outputs={
        "bucket": "the bucket",
        "key": "the object",
        "size": "how many bytes it has",
        "etag": "the mark of this version of the object, for s3.deleter",
        "sha256": "the checksum of its bytes",
        "written": "whether this step has written it; false: with overwrite: false, it was there with the same bytes",
    },
    types={"bucket": "text", "key": "text", "size": "integer", "etag": "text", "sha256": "text", "written": "boolean"},
    connection="s3",
    overrides=_OVERRIDES,
    writes=True,
    side_effects=True,
    idempotent=True,
    network=True,
    places={"key": "path"},
    run="outlast.components.steps.doing.s3:write",
    example={"connection": "@s3.reports", "key": "out/${params.day}.json", "body": "${steps.label.outputs.report}"},
)


class DeleterConfig(Config):
    """The object that goes."""

    connection: _OfConnection
    bucket: _OtherBucket = None
    key: Annotated[Key, Field(description="the object")]
    etag: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=200,
            description="the output of s3.writer: another version of the object is left alone, which is an error",
        ),
    ] = None
    written: Annotated[
        bool, Field(description="the output of s3.writer: false leaves the object alone, because it was there before")
    ] = True


DELETER = Component(
    name="s3.deleter",
    summary="Deletes one object of S3. Deleting it twice is the same as once.",
    config=DeleterConfig,
    outputs={"bucket": "the bucket", "key": "the object"},
    types={"bucket": "text", "key": "text"},
    connection="s3",
    overrides=_OVERRIDES,
    writes=True,
    side_effects=True,
    idempotent=True,
    network=True,
    places={"key": "path"},
    run="outlast.components.steps.doing.s3:delete",
    example={
        "connection": "@s3.reports",
        "key": "${steps.write.outputs.key}",
        "etag": "${steps.write.outputs.etag}",
        "written": "${steps.write.outputs.written}",
    },
)
