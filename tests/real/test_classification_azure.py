"""Verdicts on what azure.core really raises, from the misbehaving HTTP server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import azure.core
from azure.core.exceptions import HttpResponseError, map_error
from azure.core.pipeline.policies import RetryPolicy
from azure.core.rest import HttpRequest

from real.expected import check, raised_by
from tables import table

if TYPE_CHECKING:
    from servers.http import MisbehavingServer


def fetched(url: str, **options: Any) -> Any:
    """As Azure's clients do it: a pipeline with the library's own policies, without its retries, and its own map of errors."""
    with azure.core.PipelineClient(url, policies=[RetryPolicy.no_retries()]) as client:
        response = client.send_request(HttpRequest("GET", url), **options)
        try:
            response.raise_for_status()
        except HttpResponseError:
            from azure.core.exceptions import ClientAuthenticationError, ResourceExistsError, ResourceNotFoundError

            map_error(
                response.status_code,
                response,
                {401: ClientAuthenticationError, 404: ResourceNotFoundError, 409: ResourceExistsError},
            )
            raise
        return response.text()


STATUSES = {400: "client_error", 401: "auth_error", 403: "permission_denied", 404: "client_error", 409: "client_error",
            429: "rate_limited", 500: "server_error", 502: "server_error", 503: "unavailable", 504: "server_error", 507: "server_error_other"}  # fmt: skip


def test_the_server_answers_when_it_is_not_asked_to_misbehave(server: MisbehavingServer) -> None:
    """C-07: the other tests fail for their own reason, not because the server is broken."""
    assert fetched(f"{server.url}/ok?body=well") == "well"


@table(("status", "error_class"), STATUSES.items())
def test_a_response_is_classified_by_its_status(server: MisbehavingServer, status: int, error_class: str) -> None:
    """C-10: HttpResponseError and what derives from it."""
    check(raised_by(lambda: fetched(f"{server.url}/status/{status}")), error_class, status=status)


def test_the_wait_that_was_asked_for_is_read(server: MisbehavingServer) -> None:
    """C-10: from the response that the error carries."""
    error = raised_by(lambda: fetched(f"{server.url}/status/429?retry_after=7"))
    check(error, "rate_limited", status=429, retry_after=7.0)


def test_nobody_listening_is_connection_refused(refusing_port: int) -> None:
    """C-07, D-3: ServiceRequestError is sharpened by its cause."""
    check(raised_by(lambda: fetched(f"http://127.0.0.1:{refusing_port}/")), "connection_refused")


def test_a_name_that_does_not_resolve_is_dns_error() -> None:
    """C-07, D-3: .invalid never resolves (RFC 6761)."""
    check(raised_by(lambda: fetched("http://outlast.invalid/")), "dns_error")


def test_an_untrusted_certificate_is_tls_verify(tls_server: MisbehavingServer) -> None:
    """D-3: no number of attempts makes a certificate trusted."""
    check(raised_by(lambda: fetched(f"{tls_server.url}/ok")), "tls_verify")


def test_an_answer_that_does_not_come_is_timeout(server: MisbehavingServer) -> None:
    """C-07: ServiceResponseTimeoutError, or its base."""
    check(raised_by(lambda: fetched(f"{server.url}/hang", read_timeout=0.05)), "timeout")


@table("path", ["/close", "/reset", "/cut", "/cut?then=reset"])
def test_a_lost_connection_is_connection_reset(server: MisbehavingServer, path: str) -> None:
    """C-07, C-08, D-3: hung up, reset, cut or reset in mid-body."""
    check(raised_by(lambda: fetched(server.url + path)), "connection_reset")
