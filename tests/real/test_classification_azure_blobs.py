"""Verdicts on what azure.storage.blob really raises: from a real blob server, and from answers that this one never gives."""

from __future__ import annotations

import threading
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest
from azure.core import MatchConditions
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)

from outlast.testing import FaultProxy
from real.expected import check, raised_by
from servers.azurite import Azurite
from tables import table

if TYPE_CHECKING:
    from pathlib import Path

    from azure.storage.blob import ContainerClient

    from servers.scripted import ScriptedServer

pytestmark = pytest.mark.xdist_group("azurite")

WRONG = b64encode(b"not the key of that account").decode()


def container(url: str, name: str = "box", *, key: str | None = Azurite.key, **options: Any) -> ContainerClient:
    """A client that does not retry by itself."""
    from azure.storage.blob import BlobServiceClient

    credential = None if key is None else {"account_name": Azurite.account, "account_key": key}
    options = {"connection_timeout": 10, "read_timeout": 20, **options}
    return BlobServiceClient(url, credential=credential, retry_total=0, **options).get_container_client(name)


@pytest.fixture(scope="module")
def box(azurite: Azurite) -> ContainerClient:
    """A container with one blob, called ``key``."""
    made = container(azurite.url)
    made.create_container()
    made.upload_blob("key", b"value")
    return made


def test_the_server_answers_when_it_is_asked_well(box: ContainerClient) -> None:
    """C-07: the other tests fail for their own reason, not because the server is broken."""
    assert box.download_blob("key").readall() == b"value"


# --- a real blob server ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("where", "name"), [("box", "nothing"), ("nowhere", "key")])
def test_a_blob_that_is_not_there_is_client_error(
    box: ContainerClient, azurite: Azurite, where: str, name: str
) -> None:
    """C-07, C-10: BlobNotFound and ContainerNotFound, with a body and, asked by HEAD, without."""
    client = container(azurite.url, where)
    for ask in (client.download_blob, lambda blob: client.get_blob_client(blob).get_blob_properties()):
        error = raised_by(lambda ask=ask: ask(name))
        assert isinstance(error, ResourceNotFoundError)
        check(error, "client_error", status=404)


def test_what_is_there_already_is_client_error(box: ContainerClient) -> None:
    """C-07, C-10: ContainerAlreadyExists and BlobAlreadyExists are a 409."""
    for again in (box.create_container, lambda: box.upload_blob("key", b"another")):
        error = raised_by(again)
        assert isinstance(error, ResourceExistsError)
        check(error, "client_error", status=409)


@pytest.mark.parametrize("key", [WRONG, None], ids=["wrong", "none"])
def test_a_request_that_is_not_signed_well_is_permission_denied(
    box: ContainerClient, azurite: Azurite, key: str | None
) -> None:
    """C-07, C-10: this server says AuthorizationFailure, which Azure also says to addresses that it does not let in."""
    error = raised_by(lambda: container(azurite.url, key=key).download_blob("key"))
    assert isinstance(error, HttpResponseError)
    check(error, "permission_denied", status=403)


def test_a_condition_that_does_not_hold_is_client_error(box: ContainerClient) -> None:
    """C-10: somebody else has written; who retries must read again first."""
    condition = {"etag": '"0x0"', "match_condition": MatchConditions.IfNotModified, "overwrite": True}
    check(raised_by(lambda: box.upload_blob("key", b"another", **condition)), "client_error", status=412)


def test_a_blob_that_is_leased_is_client_error(box: ContainerClient) -> None:
    """C-10: LeaseIdMissing is a 412: without the lease no number of attempts helps."""
    blob = box.upload_blob("leased", b"value")
    lease = blob.acquire_lease()
    check(raised_by(blob.delete_blob), "client_error", status=412)
    lease.release()


def test_a_part_that_is_not_there_is_client_error(box: ContainerClient) -> None:
    """C-10: InvalidRange."""
    check(raised_by(lambda: box.download_blob("key", offset=1000, length=5)), "client_error", status=416)


def test_a_name_that_cannot_be_is_client_error(azurite: Azurite) -> None:
    """C-10: InvalidResourceName is a 400."""
    check(raised_by(container(azurite.url, "No Name").create_container), "client_error", status=400)


# --- without an answer ----------------------------------------------------------------------------------------------


def test_nobody_listening_is_connection_refused(refusing_port: int) -> None:
    """C-07, D-3: ServiceRequestError is sharpened by its cause."""
    url = f"http://127.0.0.1:{refusing_port}/{Azurite.account}"
    check(raised_by(lambda: container(url).download_blob("key")), "connection_refused")


def test_an_answer_that_does_not_come_is_timeout(box: ContainerClient, azurite: Azurite) -> None:
    """C-07: a server that stands still takes the request and says nothing; afterwards it is as before."""
    with azurite.paused():
        check(raised_by(lambda: container(azurite.url, read_timeout=0.1).download_blob("key")), "timeout")
    assert box.download_blob("key").readall() == b"value"


def test_a_connection_that_is_cut_is_connection_reset(box: ContainerClient, azurite: Azurite) -> None:
    """C-07, D-3: while the answer is waited for."""
    errors: list[Exception] = []
    with FaultProxy(("127.0.0.1", azurite.port)) as proxy:
        client = container(f"http://127.0.0.1:{proxy.port}/{Azurite.account}")
        assert client.download_blob("key").readall() == b"value"
        with azurite.paused():
            asking = threading.Thread(target=lambda: errors.append(raised_by(lambda: client.download_blob("key"))))
            asking.start()
            while asking.is_alive():  # as soon as it is on its way
                proxy.cut()
                asking.join(0.01)
    (error,) = errors
    check(error, "connection_reset")


# --- what this server never says ------------------------------------------------------------------------------------


CODES = {
    "AuthenticationFailed": (403, "auth_error"),
    "InvalidAuthenticationInfo": (400, "auth_error"),
    "NoAuthenticationInformation": (401, "auth_error"),
    "AccountIsDisabled": (403, "auth_error"),
    "AuthorizationPermissionMismatch": (403, "permission_denied"),
    "InsufficientAccountPermissions": (403, "permission_denied"),
    "ContainerBeingDeleted": (409, "temporary_failure"),
    "LeaseAlreadyPresent": (409, "client_error"),
    "OperationTimedOut": (500, "timeout"),
    "InternalError": (500, "server_error"),
    "ServerBusy": (503, "unavailable"),
}


@table(("code", "status", "error_class"), [(code, *then) for code, then in CODES.items()])
@table("body", [True, False], ids=["body", "head"])
def test_a_code_of_azure_is_believed_before_the_status(
    scripted: ScriptedServer, code: str, status: int, error_class: str, body: bool
) -> None:
    """C-10, D-3: a wrong key is fatal although its status is a mere 403; the code is in the body or in a header alone."""
    answer = f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>as asked</Message></Error>'
    scripted.answer(status, answer, "application/xml", x_ms_error_code=code)
    blob = container(f"{scripted.url}/{Azurite.account}").get_blob_client("key")
    error = raised_by((lambda: blob.upload_blob(b"value")) if body else blob.get_blob_properties)
    assert isinstance(error, HttpResponseError)
    check(error, error_class, status=status)


def test_a_wrong_key_is_known_by_its_type_too(scripted: ScriptedServer) -> None:
    """D-3: what Azure itself says to a wrong key arrives as ClientAuthenticationError."""
    scripted.answer(403, "", "application/xml", x_ms_error_code="AuthenticationFailed")
    error = raised_by(lambda: container(f"{scripted.url}/{Azurite.account}", key=WRONG).upload_blob("key", b"value"))
    assert isinstance(error, ClientAuthenticationError)
    check(error, "auth_error", status=403)


def test_throttling_tells_how_long_to_wait(scripted: ScriptedServer) -> None:
    """C-10: ServerBusy with Retry-After."""
    scripted.answer(503, "", "application/xml", x_ms_error_code="ServerBusy", retry_after="7")
    error = raised_by(lambda: container(f"{scripted.url}/{Azurite.account}").upload_blob("key", b"value"))
    check(error, "unavailable", status=503, retry_after=7.0)


# --- the server itself ----------------------------------------------------------------------------------------------


def test_a_missing_azurite_is_a_failure_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is left out in silence."""
    monkeypatch.setattr("servers.azurite.PROGRAM", tmp_path / "main.js")
    with pytest.raises(RuntimeError, match=r"Azurite, which is not installed: `make servers`"), Azurite():
        pass
