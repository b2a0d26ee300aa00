"""
`http.caller`: one HTTP request, and redirects where the step allows them.
"""

from __future__ import annotations

import base64
import os
import ssl
import threading
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlencode, urljoin, urlsplit

from outlast.components.reaching import plain_value
from outlast.components.reading import missing
from outlast.components.steps.doing import invalid, keep, request_after
from outlast.components.steps.doing.jsons import strict
from outlast.components.values import json_text
from outlast.errors import OutlastError, PermanentFailure
from outlast.kernel.redact import mask_known
from outlast.verdicts import mark_begun

try:
    import httpcore
    import httpx
except ImportError:
    raise missing("a step that speaks HTTP", "httpx", "http") from None

from outlast.components.steps.doing.wire import Wire, as_httpx

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from urllib.parse import SplitResult

    from outlast.components.running import StepContext
    from outlast.components.steps.http import CallerConfig

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEYED = frozenset({"POST", "PATCH"})  # methods of which a service cannot tell whether they came twice
# Headers that go to another host than that of the connection, too. Others may be for its eyes only.
_ANYWHERE = frozenset("accept accept-encoding accept-language content-type user-agent".split())
# Headers of an answer that an error has: when to ask again, and what its service would be asked about.
TOLD = ("retry-after", "retry-after-ms", "date", "content-type", "x-request-id")
SHOWN = 65_536  # bytes of an answer that was not expected that are kept for people to look at
_LINGER = 5.0  # seconds for these
_PORTS = {"http": 80, "https": 443}


class HttpStatusError(OutlastError):
    """An answer with a status that was not expected. `headers` has those that say when to ask again."""

    def __init__(self, message: str, status_code: int = 0, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.headers = dict(headers or {})


@dataclass(frozen=True)
class Request:
    """What is sent. `url` has a host."""

    method: str
    url: httpx.URL
    headers: dict[str, str]  # names in small letters
    content: bytes | None

    @property
    def where(self) -> str:
        """What messages say of it: nothing of the path, which may have values in it."""
        return f"{self.method} {self.url.host}"

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.url.scheme, self.url.host, port_of(self.url)


def call(config: CallerConfig, context: StepContext) -> dict[str, Any]:
    """Send the request, follow what the step allows, and read the answer as it says. Never twice."""
    connection = context.connection or {}
    remaining = context.remaining()
    request = _request(config, connection, context)
    wire = Wire(trusted_place(request.url, connection), None if remaining is None else monotonic() + remaining)
    for hop in range(config.max_redirects + 1):
        with request_after(hop), answered(request, wire) as answer:
            where, headers = request.where, headers_of(answer)
            leads_on = answer.status in _REDIRECTS and "location" in headers and hop < config.max_redirects
            if answer.status in config.expect.status or not leads_on:
                return _taken(answer, headers, where, config, context, wire)
        with request_after(1):  # where it leads on to may be refused here, and the first one was answered
            request = _next(request, answer.status, headers["location"])
    raise AssertionError("the last answer is taken as it is")


def trusted_place(url: httpx.URL, connection: Mapping[str, Any]) -> tuple[str, int] | None:
    """The host and the port that may be private, if the connection allows it: no other port of that host may be."""
    return (url.raw_host.decode(), port_of(url)) if connection.get("allow_private") is True else None


def port_of(url: httpx.URL) -> int:
    return url.port or _PORTS[url.scheme]


@contextmanager
def answered(request: Request, wire: Wire) -> Iterator[httpcore.Response]:
    """The answer to a request, on a connection of its own. Its body is read while this is open."""
    url = request.url
    address = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
    tls = trusted() if url.scheme == "https" else None
    with (
        httpcore.ConnectionPool(ssl_context=tls, max_connections=1, retries=0, network_backend=wire) as pool,
        as_httpx(request.where),
        pool.stream(request.method, address, headers=encoded(request.headers), content=request.content) as answer,
    ):
        yield answer


_shared: tuple[Any, ssl.SSLContext] | None = None
_sharing = threading.Lock()


def trusted() -> ssl.SSLContext:
    """
    Whom this process trusts. To read the certificates costs more than a call, so it is done again only where they have
    changed. It holds neither connections nor logins.
    """
    global _shared  # noqa: PLW0603 - once for a process
    known = _authorities()
    with _sharing:
        if _shared is None or _shared[0] != known:
            made = ssl.create_default_context()
            made.set_alpn_protocols(["http/1.1"])
            # The library sets the same before each call, which must not happen while another thread connects.
            vars(made)["set_alpn_protocols"] = _leave_alone
            _shared = known, made
        return _shared[1]


def _leave_alone(_: Iterable[str]) -> None:
    """In place of what would change an object that threads share."""


def _authorities() -> list[tuple[str, int]]:
    """Where the certificates are, and since when."""
    paths = ssl.get_default_verify_paths()
    found: list[tuple[str, int]] = []
    for path in (paths.cafile, paths.capath):
        changed = 0
        with suppress(OSError):
            changed = os.stat(path or "").st_mtime_ns  # noqa: PTH116 - it may be none
        found.append((path or "", changed))
    return found


# -- the request ---------------------------------------------------------------------------------------------------------


def _request(config: CallerConfig, connection: Mapping[str, Any], context: StepContext) -> Request:
    content, kind = _content(config)
    headers = {"accept": "*/*", "accept-encoding": "gzip, deflate", "user-agent": "outlast"}
    if kind is not None:
        headers["content-type"] = kind
    if config.method in _KEYED:
        headers["idempotency-key"] = context.idempotency_key
    headers |= {name.lower(): str(plain_value(value)) for name, value in connection.get("headers", {}).items()}
    headers |= _login(connection)
    headers |= {name.lower(): value for name, value in config.headers.items()}
    if headers.get("idempotency-key") == context.idempotency_key:
        context.key_sent()
    for name, value in headers.items():  # or the library would quote it in what it says
        if not value.isprintable():
            raise invalid(f"expected the header {name} to be one line of text, got: one with other characters")
    return Request(config.method, _url(config, connection), headers, content)


def _login(connection: Mapping[str, Any]) -> dict[str, str]:
    if connection.get("token") is not None:
        return {"authorization": f"Bearer {plain_value(connection['token'])}"}
    if connection.get("user") is not None:
        login = f"{plain_value(connection['user'])}:{plain_value(connection['password'])}"
        return {"authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    return {}


def _content(config: CallerConfig) -> tuple[bytes | None, str | None]:
    """The body, and what it is."""
    if config.json_ is not None:
        try:
            return json_text(config.json_).encode(), "application/json"
        except (TypeError, ValueError, RecursionError) as wrong:
            raise invalid(f"expected json to be what JSON can hold, got another: {wrong}") from None
    if config.form is not None:
        return urlencode(config.form).encode(), "application/x-www-form-urlencoded"
    return (None, None) if config.body is None else (config.body.encode(), "text/plain; charset=utf-8")


def _url(config: CallerConfig, connection: Mapping[str, Any]) -> httpx.URL:
    parts = urlsplit(config.url)
    if not {".", ".."}.isdisjoint(unquote(parts.path).replace("\\", "/").split("/")):
        raise invalid("expected the path of url to have no . or .., with which it would lead elsewhere")
    path, queries = parts.path, [parts.query]
    if config.connection is not None:
        base = urlsplit(str(plain_value(connection["base_url"])))
        if parts.netloc:  # all of the address is a value
            if _origin(parts) != _origin(base):
                raise invalid("expected url to be an address of the host and port of the connection, got: another one")
        else:
            path = base.path.rstrip("/") + path
        parts, queries = base, [base.query, parts.query]
    queries.append(_query(config.query))
    query = "&".join(one for one in queries if one)
    return parsed_url(parts._replace(path=path, query=query, fragment="").geturl())


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _query(given: Mapping[str, Any]) -> str:
    """What stands behind the question mark; truths as JSON writes them."""
    pairs = [(name, one) for name, value in given.items() for one in (value if isinstance(value, list) else [value])]
    return urlencode([(name, str(one).lower() if isinstance(one, bool) else one) for name, one in pairs])


def parsed_url(address: str) -> httpx.URL:
    try:
        found = httpx.URL(address)
    except (httpx.InvalidURL, ValueError, TypeError):
        raise invalid("expected an address that can be read, got: another text") from None
    if found.scheme not in _PORTS or not found.host:
        raise invalid("expected an address with http:// or https:// and a host, got: another one")
    return found


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _next(request: Request, status: int, location: str) -> Request:
    """What is asked after a redirect. Another host gets no login and no header that may be for the first one only."""
    url = parsed_url(urljoin(str(request.url), location))
    if url.userinfo or (request.url.scheme == "https" and url.scheme != "https"):
        got = "a user" if url.userinfo else "http://"
        message = f"expected {request.url.host} to redirect to https:// and without a user, got: an address with {got}"
        raise PermanentFailure(message, error_class="client_error")
    made = replace(request, url=url)
    if made.origin != request.origin:
        if request.content is not None and status in (307, 308):
            message = f"expected {request.url.host} to redirect a body to no other host or port, got: an address of another one"
            raise PermanentFailure(message, error_class="client_error")
        made = replace(made, headers={name: value for name, value in made.headers.items() if name in _ANYWHERE})
    if status == 303 or (status in (301, 302) and request.method == "POST"):
        headers = {
            name: value for name, value in made.headers.items() if name not in ("content-type", "idempotency-key")
        }
        method = "HEAD" if request.method == "HEAD" else "GET"
        made = replace(made, method=method, content=None, headers=headers)
    return made


# -- the answer ----------------------------------------------------------------------------------------------------------


def headers_of(answer: httpcore.Response) -> dict[str, str]:
    """Names in small letters; values of the same name are joined, as the standard has it."""
    found: dict[str, str] = {}
    for name, value in answer.headers:
        key, text = name.decode("ascii").lower(), value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def _taken(
    answer: httpcore.Response,
    headers: dict[str, str],
    where: str,
    config: CallerConfig,
    context: StepContext,
    wire: Wire,
) -> dict[str, Any]:
    """The outputs, if the answer is what was expected."""
    kind = headers.get("content-type", "").lower()
    if answer.status not in config.expect.status:
        keep(context, "answer", beginning(answer, headers, wire))
        raise refused(answer.status, headers, where)
    if config.expect.content_type is not None and not kind.startswith(config.expect.content_type.lower()):
        keep(context, "answer", beginning(answer, headers, wire))
        raise unusable(
            f"{where}: expected the Content-Type to begin with {config.expect.content_type}, got: another one"
        )
    outputs: dict[str, Any] = {"status": answer.status, "headers": _without_login(headers, context), "body": None}
    if config.response == "none" or config.method == "HEAD":
        return outputs
    raw = b"".join(unpacked(answer, headers, where, config.max_bytes))
    try:
        outputs["body"] = read_body(raw, kind, config.response)
    except (ValueError, LookupError, RecursionError):
        keep(context, "answer", raw[:SHOWN])
        what = "JSON" if _is_json(kind, config.response) else "text"
        raise unusable(f"{where}: expected a body of {what}, got: another one") from None
    return outputs


def _without_login(headers: Mapping[str, str], context: StepContext) -> dict[str, str]:
    """The headers that are stored: none that repeats what the request was sent with."""
    login = [one.partition(" ")[2] for one in _login(context.connection or {}).values()]
    secrets = [one for one in (*login, *context.hidden) if len(one) >= 4]
    return {
        name: value
        for name, value in headers.items()
        if mask_known(value) == value and not any(one in value for one in secrets)
    }


def unusable(message: str, error_class: str = "data_error") -> PermanentFailure:
    """An answer came that does not say no, and nothing can be made of it: what was asked for is done, or may be."""
    error = PermanentFailure(message, error_class=error_class)
    mark_begun(error)
    return error


def refused(status: int, headers: Mapping[str, str], where: str) -> Exception:
    message = f"{where}: answered with the status {status}, which is not expected"
    if status < 400:  # nobody has failed: the answer is another one than the step was made for
        return unusable(message, "client_error")
    return HttpStatusError(message, status, {name: headers[name] for name in TOLD if name in headers})


def _is_json(kind: str, how: str) -> bool:
    essence = kind.partition(";")[0].strip()
    return how == "json" or (how == "auto" and (essence == "application/json" or essence.endswith("+json")))


def read_body(raw: bytes, kind: str, how: str) -> Any:
    if _is_json(kind, how):
        if not raw.strip():
            return None
        return strict(raw)
    charset = next((one.strip()[8:].strip("\"' ") for one in kind.split(";") if one.strip().startswith("charset=")), "")
    return raw.decode(charset or "utf-8")


def beginning(answer: httpcore.Response, headers: Mapping[str, str], wire: Wire) -> bytes:
    """The first bytes of a body that nothing is done with but looking at it, which is not waited for long."""
    wire.deadline = min(monotonic() + _LINGER, wire.deadline or float("inf"))
    found = b""
    with suppress(Exception):  # whatever is wrong with it: the status has said enough
        for piece in unpacked(answer, headers, "", 4 * SHOWN):
            found += piece
            if len(found) >= SHOWN:
                break
    return found[:SHOWN]


def unpacked(
    answer: httpcore.Response, headers: Mapping[str, str], where: str, most: int, key: str = "max_bytes"
) -> Iterator[bytes]:
    """
    The body in pieces, without its compression. It ends in an error as soon as it is longer than `most` bytes, packed or
    not: what is packed may unpack to nothing, and never end.
    """
    packing = headers.get("content-encoding", "identity").strip().lower()
    stream: Iterable[bytes] = answer.iter_stream()
    if packing in ("gzip", "x-gzip", "deflate"):
        # What is short, or cannot be made smaller, is a little longer once it is packed.
        stream = _inflated(_bounded(stream, where, most + most // 100 + 1024, f"{key} ({most})"), where)
    elif packing not in ("identity", ""):
        raise unusable(f"{where}: expected a body that is packed with gzip or deflate, got: another packing")
    yield from _bounded(stream, where, most, f"{key} ({most})")


def _bounded(stream: Iterable[bytes], where: str, limit: int, most: str) -> Iterator[bytes]:
    size = 0
    for piece in stream:
        size += len(piece)
        if size > limit:
            raise unusable(f"{where}: expected a body of at most {most}, got: a longer one")
        yield piece


def _inflated(stream: Iterable[bytes], where: str) -> Iterator[bytes]:
    """What is packed, a small piece at a time: a few bytes may stand for many."""
    unpack = zlib.decompressobj(wbits=47)  # gzip or zlib, by what it begins with
    first = True
    try:
        for piece in stream:
            data = piece
            while data:
                if unpack.eof:  # another part behind the first
                    unpack = zlib.decompressobj(wbits=47)
                try:
                    made = unpack.decompress(data, SHOWN)
                except zlib.error:
                    if not first:
                        raise
                    unpack = zlib.decompressobj(wbits=-15)  # deflate as some servers have it, without a beginning
                    made = unpack.decompress(data, SHOWN)
                first = False
                data = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
                yield made
    except zlib.error:
        pass
    else:
        if unpack.eof or first:
            return
    raise unusable(f"{where}: expected a body that can be unpacked, got: a damaged one")
