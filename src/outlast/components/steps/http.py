"""
`http.caller`: a step that makes one HTTP request. Connections of the family `http`: where it goes, and as whom.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from outlast.components.describing import Component, Family
from outlast.components.reaching import is_public, reach_http
from outlast.components.steps.config import Config, Connection, Inside, Surely, Unfit

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")  # of a header, as the standard has it
_OWN_HEADERS = frozenset("host content-length transfer-encoding connection upgrade te trailer".split())


def _headers(given: dict[str, str]) -> dict[str, str]:
    names: dict[tuple[str | int, ...], str] = {}
    values: dict[tuple[str | int, ...], str] = {}
    for name, value in given.items():
        if not _NAME.fullmatch(name):
            names[(name,)] = "expected the name of a header in letters, digits and -; leave other characters out"
        elif name.lower() in _OWN_HEADERS:
            names[(name,)] = f"expected no header {name}; it is set by the request itself"
        elif not value.isprintable():
            values[(name,)] = (
                f"expected the header {name} to be one line of text, got one with other characters; leave line breaks out"
            )
    if names or values:
        raise Inside([*values.items()], [*names.items()])
    return given


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def absolute(text: str, login: str, spaces: str) -> str:
    """An address with a host. The ways out differ: `login` for a user in it, `spaces` for signs that cannot stand there."""
    scheme = _SCHEME.match(text)
    if scheme is not None and scheme[0].lower() not in ("http:", "https:"):
        raise Surely("expected an address that begins with http:// or https://; write it as https://host/path")
    try:
        parts = urlsplit(text)
        port_is_right = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError("expected an address as https://host/path; write it out") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_right:
        raise ValueError("expected an address that begins with http:// or https://; write it as https://host/path")
    if "@" in parts.netloc:
        raise ValueError("expected an address without a user; " + login)
    if not text.isprintable() or " " in text:
        raise ValueError("expected an address of one line without spaces; " + spaces)
    return text


def base_address(text: str) -> str:
    """The address of a service: with a host, and without a login."""
    return absolute(text, "leave them out, and give the keys password and user", "write a space as %20")


_BRACES = re.compile(r"\{\{-?\s*(?P<name>[A-Za-z0-9_.-]+)\s*-?\}\}", re.ASCII)


def _address(text: str) -> str:
    if (found := _BRACES.search(text)) is not None:
        raise Surely(f"expected references as ${{...}}; write ${{{found['name']}}}")
    if "#" in text:
        raise Surely("expected an address without #, behind which nothing is sent; write %23 for the sign itself")
    if not text.startswith("/") and "://" not in text and not text.startswith("${") and not _SCHEME.match(text):
        raise ValueError(
            "expected a path that begins with /, or without a connection a whole address; write it as /path or https://host/path"
        )
    if text.startswith("//"):
        got = ", got one with a login" if "@" in text else ""
        raise ValueError(
            "expected an address that begins with http:// or https://, or with a connection a path that begins with one /"
            f"{got}; write https: before it, or /path"  # and not the address, which may be that of a parameter
        )
    if text.startswith("/"):
        if not text.isprintable() or " " in text or "\\" in text:
            raise ValueError("expected a path of one line without spaces; put values into query")
        return text
    return absolute(text, "name a connection that has user and password", "put values into query")


def _is_private(address: str) -> bool:
    """Whether the host of an address is one of this machine or a private network, as far as it can be read off it."""
    host = urlsplit(address).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return not is_public(host)
    except ValueError:
        return False  # a name: where it leads to is known when the step runs


Headers = Annotated[dict[str, str], AfterValidator(_headers)]


class HttpConnection(Config):
    """A service that is called."""

    base_url: Annotated[
        str, AfterValidator(base_address), Field(description="where it is; paths of steps come behind it")
    ]
    token: Annotated[str | None, Field(description="sent with every request, as a bearer")] = None
    user: Annotated[str | None, Field(description="with password, for basic authentication")] = None
    password: Annotated[str | None, Field(description="belongs to user")] = None
    headers: Annotated[Headers, Field(default_factory=dict, description="headers of every request")]
    allow_private: Annotated[bool, Field(description="whether it may be in this machine or a private network")] = False

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.token is not None and (self.user is not None or self.password is not None):
            raise ValueError("expected token, or user and password; leave one of them out")
        if (self.user is None) != (self.password is None):
            raise ValueError("expected user and password, both or none of them; add the other one")
        return self


FAMILY = Family(
    name="http",
    summary="A service that is called over HTTP.",
    config=HttpConnection,
    secrets=("token", "password"),
    example={"base_url": "https://api.example.com/v1", "token": "${API_TOKEN}"},
    reach=reach_http,
)


class Expect(Config):
    """What an answer must be; anything else is an error of the step, by its status."""

    status: Annotated[
        list[Annotated[int, Field(ge=100, le=599)]],
        Field(
            min_length=1,
            default_factory=lambda: [200, 201, 202, 203, 204],
            description="the statuses that are right; 200 to 204 if left out",
        ),
    ]
    content_type: Annotated[
        str | None, Field(min_length=1, description="what Content-Type must begin with, such as application/json")
    ] = None


class CallerConfig(Config):
    """One request and what its answer must be."""

    connection: Annotated[Connection | None, Field(description="@http.alias; without one, url is a whole address")] = (
        None
    )
    url: Annotated[
        str,
        AfterValidator(_address),
        Field(
            description="/path with a connection, or https://host/path; a value in the path is one segment of it, and is encoded"
        ),
    ]
    method: Annotated[
        Literal["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"],
        Field(description="the method of the request"),
    ] = "GET"
    query: Annotated[
        dict[str, str | int | float | bool | list[str | int | float | bool]],
        Field(default_factory=dict, description="what stands behind ? in the address; it is encoded"),
    ]
    headers: Annotated[Headers, Field(default_factory=dict, description="headers, beside those of the connection")]
    json_: Annotated[Any, Field(alias="json", description="a body that is sent as JSON")] = None
    form: Annotated[dict[str, str] | None, Field(description="a body that is sent as a form")] = None
    body: Annotated[str | None, Field(description="a body that is sent as it is; headers say what it is")] = None
    expect: Annotated[
        Expect,
        Field(
            default_factory=lambda: Expect.model_validate({}),
            description="what the answer must be: status, content_type",
        ),
    ]
    response: Annotated[
        Literal["auto", "json", "text", "none"],
        Field(description="how the body is read; auto: JSON if the answer says so, else a text"),
    ] = "auto"
    max_bytes: Annotated[
        int, Field(ge=1, le=1_000_000_000, description="a longer body is an error, also once it is unpacked")
    ] = 10_000_000
    max_redirects: Annotated[
        int, Field(ge=0, le=5, description="how many redirects are followed; each address is checked again")
    ] = 0

    @property
    def _given(self) -> set[str]:
        return {"json" if name == "json_" else name for name in self.model_fields_set}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        bodies = [one for one in (self.json_, self.form, self.body) if one is not None]
        if len(bodies) > 1:
            raise Unfit("expected one of json, form and body; leave the others out", "json", "form", "body")
        if bodies and self.method in ("GET", "HEAD", "OPTIONS"):
            given = ", ".join(key for key in ("json", "form", "body") if key in self._given)
            raise Unfit(
                f"expected no body with {self.method}, got {given}; use query, or another method",
                "json",
                "form",
                "body",
            )
        if self.connection is None and _is_private(self.url):
            raise Unfit(
                "expected an address that is not in this machine or a private network, because there is no connection that"
                " allows it; name one with allow_private: true",
                "url",
            )
        if self.connection is None and self.url.startswith("/"):
            raise Unfit(
                "expected a connection, because url is a path; add it, or write the whole address", "url", "connection"
            )
        return self


CALLER = Component(
    name="http.caller",
    summary="Makes one HTTP request. Redirects and private addresses only where it is said; no retries of its own.",
    config=CallerConfig,
    outputs={
        "status": "the status of the answer",
        "headers": "its headers, names in small letters",
        "body": "its body, read as response says",
    },
    types={"status": "integer", "headers": "mapping"},
    connection="http",
    overrides={
        "headers": "allowed",
        "base_url": "forbidden",
        "token": "forbidden",
        "user": "forbidden",
        "password": "forbidden",
        "allow_private": "forbidden",
    },
    reads=True,
    writes=True,
    side_effects=True,
    idempotent_if={"method": ("GET", "HEAD", "OPTIONS", "PUT", "DELETE")},
    network=True,
    places={"url": "url"},
    run="outlast.components.steps.doing.http:call",
    example={
        "connection": "@http.shop",
        "url": "/orders",
        "method": "POST",
        "json": {"id": 7},
        "expect": {"status": [201]},
    },
)
