"""Verdicts on what botocore really raises: from a real S3 server, and from answers in the shape of other services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import botocore.config
import botocore.loaders
import botocore.session
import pytest

from real.expected import check, raised_by
from tables import table

if TYPE_CHECKING:
    from servers.http import MisbehavingServer
    from servers.s3 import S3
    from servers.scripted import ScriptedServer


LOADER = botocore.loaders.create_loader()  # reads the services' descriptions once for all clients


def client(
    service: str, url: str, *, keys: tuple[str, str] | None = ("outlast-access", "outlast-secret"), **options: Any
):
    """A client that does not retry by itself and reads nobody's settings."""
    session = botocore.session.Session(
        session_vars={"config_file": (None, None, "", None), "credentials_file": (None, None, "", None)}
    )
    config = botocore.config.Config(
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path"},
        proxies={},
        **{"connect_timeout": 10, **options},
    )
    session.register_component("data_loader", LOADER)
    access, secret = keys or (None, None)
    if keys is None:
        session.register_component("credential_provider", _NoCredentials())
    return session.create_client(
        service,
        region_name="us-east-1",
        endpoint_url=url,
        config=config,
        aws_access_key_id=access,
        aws_secret_access_key=secret,
    )


class _NoCredentials:
    """The search for credentials on a machine that has none, without asking the network."""

    def load_credentials(self) -> None:
        return None


# --- a real S3 server -----------------------------------------------------------------------------------------------


def test_the_server_answers_when_it_is_asked_well(s3: S3) -> None:
    """C-07: the other tests fail for their own reason, not because the server is broken."""
    made = client("s3", s3.url)
    made.put_object(Bucket="bucket", Key="key", Body=b"value")
    assert made.get_object(Bucket="bucket", Key="key")["Body"].read() == b"value"


@pytest.mark.parametrize(("bucket", "key"), [("bucket", "nothing"), ("nowhere-at-all", "key")])
def test_an_object_that_is_not_there_is_client_error(s3: S3, bucket: str, key: str) -> None:
    """C-07, C-10: NoSuchKey and NoSuchBucket are a 404."""
    check(raised_by(lambda: client("s3", s3.url).get_object(Bucket=bucket, Key=key)), "client_error", status=404)


def test_a_head_request_which_has_no_code_is_classified_by_its_status(s3: S3) -> None:
    """C-10: the answer to HEAD has no body, so the code is but the status."""
    check(
        raised_by(lambda: client("s3", s3.url).head_object(Bucket="bucket", Key="nothing")), "client_error", status=404
    )


@pytest.mark.parametrize(
    "keys", [("outlast-nobody", "outlast-secret"), ("outlast-access", "outlast-wrong")], ids=["access", "secret"]
)
def test_wrong_keys_are_auth_error(s3: S3, keys: tuple[str, str]) -> None:
    """C-07, D-3: InvalidAccessKeyId and SignatureDoesNotMatch are fatal, although their status is a mere 403."""
    made = client("s3", s3.url, keys=keys)
    check(raised_by(lambda: made.get_object(Bucket="bucket", Key="key")), "auth_error", status=403)


# --- before and without an answer -----------------------------------------------------------------------------------


def test_no_credentials_are_auth_error(s3: S3) -> None:
    """C-07, D-3: fatal, and nobody was asked."""
    check(raised_by(lambda: client("s3", s3.url, keys=None).get_object(Bucket="bucket", Key="key")), "auth_error")


def test_a_parameter_of_the_wrong_kind_is_validation_error(s3: S3) -> None:
    """C-07: found by the client's own model of the service."""
    check(raised_by(lambda: client("s3", s3.url).get_object(Bucket="bucket", Key=5)), "validation_error")


def test_an_unknown_service_is_data_error() -> None:
    """C-07: no number of attempts makes it known."""
    check(raised_by(lambda: client("nosuch", "http://127.0.0.1")), "data_error")


def got(url: str, path: str = "", **options: Any) -> Exception:
    """What getting an object and reading it raises; with a path, the request goes there instead."""
    made = client("s3", url, **options)

    def instead(request: Any, **_: Any) -> None:
        request.url = url + path

    if path:
        made.meta.events.register("before-send.s3", instead)

    def get() -> bytes:
        return made.get_object(Bucket="bucket", Key="key")["Body"].read()

    return raised_by(get)


def test_nobody_listening_is_connection_refused(refusing_port: int) -> None:
    """C-07, D-3: EndpointConnectionError is sharpened by its cause."""
    check(got(f"http://127.0.0.1:{refusing_port}"), "connection_refused")


def test_a_name_that_does_not_resolve_is_dns_error() -> None:
    """C-07, D-3: .invalid never resolves (RFC 6761)."""
    check(got("http://outlast.invalid"), "dns_error")


def test_an_untrusted_certificate_is_tls_verify(tls_server: MisbehavingServer) -> None:
    """D-3: no number of attempts makes a certificate trusted."""
    check(got(tls_server.url), "tls_verify")


def test_an_answer_that_does_not_come_is_timeout(server: MisbehavingServer) -> None:
    """C-07: ReadTimeoutError."""
    check(got(server.url, "/hang", read_timeout=0.05), "timeout")


@table("path", ["/close", "/reset", "/cut", "/cut?then=reset"])
def test_a_lost_connection_is_connection_reset(server: MisbehavingServer, path: str) -> None:
    """C-07, C-08, D-3: hung up, reset, cut or reset in mid-body; a partial read is the network's fault, not the data's."""
    check(got(server.url, path), "connection_reset")


# --- codes ----------------------------------------------------------------------------------------------------------

CODES = {
    "ProvisionedThroughputExceededException": (400, "rate_limited"),
    "ThrottlingException": (400, "rate_limited"),
    "RequestLimitExceeded": (503, "rate_limited"),
    "InternalServerError": (500, "server_error"),
    "ServiceUnavailable": (503, "unavailable"),
    "TransactionInProgressException": (400, "database_error"),
    "UnrecognizedClientException": (400, "auth_error"),
    "ExpiredTokenException": (400, "auth_error"),
    "AccessDeniedException": (400, "permission_denied"),
    "ConditionalCheckFailedException": (400, "client_error"),
    "SomethingNew": (501, "server_error_other"),
}


@table(("code", "status", "error_class"), [(code, *rest) for code, rest in CODES.items()])
def test_an_error_of_a_json_service_is_classified_by_its_code(
    scripted: ScriptedServer, code: str, status: int, error_class: str
) -> None:
    """C-07, C-10, D-2: the code before the status, because throttling is often a 400; the status where no rule knows the code."""
    scripted.answer(status, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "as asked"})
    error = raised_by(lambda: client("dynamodb", scripted.url).get_item(TableName="table", Key={"id": {"S": "1"}}))
    check(error, error_class, status=status)


def test_slow_down_of_s3_is_rate_limited_and_its_wait_is_read(scripted: ScriptedServer) -> None:
    """C-10: the header is in the answer's metadata."""
    scripted.answer(
        503, "<Error><Code>SlowDown</Code><Message>as asked</Message></Error>", "application/xml", retry_after="7"
    )
    error = raised_by(lambda: client("s3", scripted.url).get_object(Bucket="bucket", Key="key"))
    check(error, "rate_limited", status=503, retry_after=7.0)


def test_a_status_without_a_known_code_keeps_its_wait(scripted: ScriptedServer) -> None:
    """C-10: by status, with the header."""
    scripted.answer(429, "<Error><Code>Strange</Code></Error>", "application/xml", retry_after="3")
    error = raised_by(lambda: client("s3", scripted.url).get_object(Bucket="bucket", Key="key"))
    check(error, "rate_limited", status=429, retry_after=3.0)
