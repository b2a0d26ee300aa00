"""Verdicts on what grpc and google.api_core really raise: from a gRPC server in this process, and from the misbehaving HTTP server."""

from __future__ import annotations

import asyncio
import threading
from concurrent import futures
from typing import TYPE_CHECKING, Any

import google.api_core.exceptions
import google.api_core.grpc_helpers
import google.api_core.retry
import grpc
import grpc.aio
import pytest
import requests

from real.expected import check, raised_by
from tables import table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers.http import MisbehavingServer

CODES = {
    "CANCELLED": "cancelled",
    "UNKNOWN": "unknown",
    "INVALID_ARGUMENT": "validation_error",
    "DEADLINE_EXCEEDED": "timeout",
    "NOT_FOUND": "missing_input",
    "ALREADY_EXISTS": "data_error",
    "PERMISSION_DENIED": "permission_denied",
    "RESOURCE_EXHAUSTED": "rate_limited",
    "FAILED_PRECONDITION": "data_error",
    "ABORTED": "temporary_failure",
    "OUT_OF_RANGE": "data_error",
    "UNIMPLEMENTED": "code_error",
    "INTERNAL": "server_error",
    "UNAVAILABLE": "unavailable",
    "DATA_LOSS": "data_error",
    "UNAUTHENTICATED": "auth_error",
}


def _fail(request: bytes, context: grpc.ServicerContext) -> bytes:
    """Ends with the code whose name was sent; RAISE is a defect of the server, and WAIT ends when the client leaves."""
    if request == b"RAISE":
        raise RuntimeError("on purpose")
    if request == b"WAIT":
        left = threading.Event()
        context.add_callback(left.set)
        left.wait()
        return b""
    context.abort(getattr(grpc.StatusCode, request.decode()), "as asked")
    raise AssertionError("abort raises")


def _fail_in_stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    yield b"first"
    _fail(request, context)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A gRPC server in this process; bytes are its messages, so that nothing has to be generated."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    methods = {
        "Fail": grpc.unary_unary_rpc_method_handler(_fail),
        "Stream": grpc.unary_stream_rpc_method_handler(_fail_in_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def called(address: str, code: str, **options: Any) -> Any:
    with grpc.insecure_channel(address) as channel:
        return channel.unary_unary("/test.Service/Fail")(code.encode(), **options)


def streamed(address: str, code: str) -> list[bytes]:
    with grpc.insecure_channel(address) as channel:
        return list(channel.unary_stream("/test.Service/Stream")(code.encode()))


def called_async(address: str, code: str) -> Any:
    async def call() -> Any:
        async with grpc.aio.insecure_channel(address) as channel:
            return await channel.unary_unary("/test.Service/Fail")(code.encode())

    return asyncio.run(call())


def called_as_google(address: str, code: str) -> Any:
    with grpc.insecure_channel(address) as channel:
        return google.api_core.grpc_helpers.wrap_errors(channel.unary_unary("/test.Service/Fail"))(code.encode())


@table("call", [called, streamed, called_async, called_as_google], ids=lambda call: call.__name__)
@table(("code", "error_class"), CODES.items())
def test_an_rpc_error_is_classified_by_its_code(address: str, call, code: str, error_class: str) -> None:
    """C-07, D-2: alike through the blocking, the streaming and the asynchronous client, and as google.api_core wraps it."""
    check(raised_by(lambda: call(address, code)), error_class)


def test_a_defect_of_the_server_is_unknown(address: str) -> None:
    """C-09: the server says UNKNOWN, and so do we."""
    check(raised_by(lambda: called(address, "RAISE")), "unknown")


def test_a_deadline_of_the_client_is_timeout(address: str) -> None:
    """C-07: the client's own DEADLINE_EXCEEDED."""
    check(raised_by(lambda: called(address, "WAIT", timeout=0.02)), "timeout")


def test_nobody_listening_is_unavailable(refusing_port: int) -> None:
    """C-07: gRPC has one word for all of it."""
    check(raised_by(lambda: called(f"127.0.0.1:{refusing_port}", "UNKNOWN")), "unavailable")


# --- google.api_core over HTTP --------------------------------------------------------------------------------------

STATUSES = {400: "client_error", 401: "auth_error", 403: "permission_denied", 404: "client_error", 409: "client_error",
            429: "rate_limited", 500: "server_error", 502: "server_error", 503: "unavailable", 504: "server_error"}  # fmt: skip


def fetched(url: str) -> Any:
    """As Google's clients over HTTP do it."""
    with requests.Session() as session:
        session.trust_env = False
        response = session.get(url, timeout=30)
        raise google.api_core.exceptions.from_http_response(response)


@table(("status", "error_class"), STATUSES.items())
def test_an_http_error_of_google_is_classified_by_its_status(
    server: MisbehavingServer, status: int, error_class: str
) -> None:
    """C-10: its `code` is the HTTP status, although some of its types know a gRPC code too."""
    check(raised_by(lambda: fetched(f"{server.url}/status/{status}")), error_class, status=status)


def test_the_wait_that_google_asked_for_is_read(server: MisbehavingServer) -> None:
    """C-10: from the response that the error carries."""
    error = raised_by(lambda: fetched(f"{server.url}/status/503?retry_after=7"))
    check(error, "unavailable", status=503, retry_after=7.0)


def test_what_googles_own_retry_gave_up_on_decides(server: MisbehavingServer) -> None:
    """C-08: RetryError is looked through."""
    patient = google.api_core.retry.Retry(initial=0.001, maximum=0.001, timeout=0.01)
    error = raised_by(patient(lambda: fetched(f"{server.url}/status/503")))
    assert isinstance(error, google.api_core.exceptions.RetryError)
    check(error, "unavailable", status=503)
