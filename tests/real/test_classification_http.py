"""Verdicts on what HTTP libraries really raise when a real server misbehaves."""

from __future__ import annotations

import asyncio
import email.utils
import http.client
import json
import logging
import ssl
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import aiohttp
import httpx
import pytest
import requests
import urllib3

import outlast
from real.expected import check, raised_by
from tables import table

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers.http import MisbehavingServer

PATIENT, HASTY = 30.0, 0.1
TRUSTED = ssl.create_default_context()  # as httpx would make it, once instead of for every client


# --- the libraries, each the way its users call it: fetch the body, let it raise ------------------------------------


def with_requests(url: str, timeout: float = PATIENT) -> str:
    with requests.Session() as session:
        session.trust_env = False
        response = session.get(url, timeout=timeout)
        response.raise_for_status()
        return response.text


def with_httpx(url: str, timeout: float = PATIENT) -> str:
    with httpx.Client(verify=TRUSTED, timeout=timeout, trust_env=False, follow_redirects=True) as client:
        return client.get(url).raise_for_status().text


def with_httpx_async(url: str, timeout: float = PATIENT) -> str:
    async def fetch() -> str:
        async with httpx.AsyncClient(verify=TRUSTED, timeout=timeout, trust_env=False, follow_redirects=True) as client:
            return (await client.get(url)).raise_for_status().text

    return asyncio.run(fetch())


def with_aiohttp(url: str, timeout: float = PATIENT) -> str:
    async def fetch() -> str:
        patience = aiohttp.ClientTimeout(total=timeout)
        async with aiohttp.ClientSession(timeout=patience, raise_for_status=True) as session, session.get(url) as got:
            return await got.text()

    return asyncio.run(fetch())


def with_urllib(url: str, timeout: float = PATIENT) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:
        error.close()
        raise


def with_urllib3(url: str, timeout: float = PATIENT) -> str:
    with urllib3.PoolManager(retries=False, timeout=timeout) as pool:
        return pool.request("GET", url).data.decode()


def with_urllib3_retries(url: str, timeout: float = PATIENT) -> str:
    with urllib3.PoolManager(retries=urllib3.Retry(1, backoff_factor=0), timeout=timeout) as pool:
        return pool.request("GET", url).data.decode()


def with_http_client(url: str, timeout: float = PATIENT) -> str:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


RAISE_FOR_STATUS = [with_requests, with_httpx, with_httpx_async, with_aiohttp, with_urllib]
ALL = [*RAISE_FOR_STATUS, with_urllib3, with_urllib3_retries, with_http_client]


def by_name(fetch: Callable[..., str]) -> str:
    return fetch.__name__.removeprefix("with_")


each_client = pytest.mark.parametrize("fetch", ALL, ids=by_name)
each_raising_client = pytest.mark.parametrize("fetch", RAISE_FOR_STATUS, ids=by_name)


# --- failures without an answer -------------------------------------------------------------------------------------


@each_client
def test_the_server_answers_when_it_is_not_asked_to_misbehave(fetch, server: MisbehavingServer) -> None:
    """C-07: the other tests fail for their own reason, not because the server is broken."""
    assert fetch(f"{server.url}/ok?body=well") == "well"


@each_client
def test_a_refused_connection_is_connection_refused(fetch, refusing_port: int) -> None:
    """C-07, C-08, D-3: nobody listens, whatever the library calls it."""
    check(raised_by(lambda: fetch(f"http://127.0.0.1:{refusing_port}/")), "connection_refused")


@each_client
def test_a_name_that_does_not_resolve_is_dns_error(fetch) -> None:
    """C-07, C-08, D-3: .invalid never resolves (RFC 6761)."""
    check(raised_by(lambda: fetch("http://outlast.invalid/")), "dns_error")


@each_client
def test_an_untrusted_certificate_is_tls_verify(fetch, tls_server: MisbehavingServer) -> None:
    """D-3: no number of attempts makes a certificate trusted."""
    check(raised_by(lambda: fetch(f"{tls_server.url}/ok")), "tls_verify")


@each_client
def test_tls_spoken_to_a_plain_port_is_network_error(fetch, server: MisbehavingServer) -> None:
    """C-07: a handshake that fails for another reason than the certificate."""
    check(raised_by(lambda: fetch(f"https://127.0.0.1:{server.port}/ok")), "network_error")


@each_client
@table("path", ["/close", "/reset", "/cut", "/cut?then=reset"])
def test_a_lost_connection_is_connection_reset(fetch, path: str, server: MisbehavingServer) -> None:
    """C-07, C-08, D-3: hung up, reset, cut or reset in mid-body; a partial read is the network's fault, not the data's."""
    check(raised_by(lambda: fetch(server.url + path)), "connection_reset")


@each_client
@pytest.mark.parametrize("path", ["/hang", "/cut?then=hang"])
def test_silence_is_timeout(fetch, path: str, server: MisbehavingServer) -> None:
    """C-07: before the answer and in the middle of it."""
    check(raised_by(lambda: fetch(server.url + path, HASTY)), "timeout")


@each_client
def test_an_answer_that_is_not_http_is_a_network_failure(fetch, server: MisbehavingServer) -> None:
    """C-07: aiohttp makes up a status of 400 for it, which the server never sent."""
    verdict = outlast.classify(raised_by(lambda: fetch(f"{server.url}/garbage")))
    assert (verdict.category, verdict.tier, verdict.status) == ("transient", "network", None)
    assert verdict.error_class in {"network_error", "connection_reset"}


# --- answers --------------------------------------------------------------------------------------------------------

STATUSES = {
    400: "client_error",
    401: "auth_error",
    402: "quota_exhausted",
    403: "permission_denied",
    404: "client_error",
    409: "client_error",
    422: "client_error",
    429: "rate_limited",
    500: "server_error",
    501: "server_error_other",
    502: "server_error",
    503: "unavailable",
    504: "server_error",
    507: "server_error_other",
    599: "server_error_other",
}


@each_raising_client
@table(("status", "error_class"), STATUSES.items())
def test_a_status_says_more_than_the_class_it_is_wrapped_in(
    fetch, status: int, error_class: str, server: MisbehavingServer
) -> None:
    """C-07, C-08, C-10, D-2: HTTPError, HTTPStatusError and ClientResponseError are whatever their status is."""
    check(raised_by(lambda: fetch(f"{server.url}/status/{status}")), error_class, status=status)


RETRY_AFTER = {
    "integer": ("7", 7.0),
    "float": ("1.5", 1.5),
    "padded": ("  7  ", 7.0),
    "negative": ("-5", 0.0),
    "past date": ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
    "past date without zone": ("Wed, 21 Oct 2015 07:28:00", 0.0),
}


@each_raising_client
@table("status", [429, 503])
@table(("sent", "seconds"), RETRY_AFTER.values(), ids=RETRY_AFTER.keys())
def test_retry_after_is_read_in_every_form(
    fetch, status: int, sent: str, seconds: float, server: MisbehavingServer
) -> None:
    """C-10, D-6, semantics 29: wherever the library keeps the headers."""
    error = raised_by(lambda: fetch(f"{server.url}/status/{status}?retry_after={quote(sent)}"))
    check(error, STATUSES[status], status=status, retry_after=seconds)


@each_raising_client
@table("zone", [" GMT", ""], ids=["with zone", "without zone"])
def test_retry_after_as_a_date_is_the_time_until_then(fetch, zone: str, server: MisbehavingServer) -> None:
    """C-10, semantics 29: a date without a zone is UTC."""
    date = email.utils.formatdate(time.time() + 3600, usegmt=True).removesuffix(" GMT") + zone
    error = raised_by(lambda: fetch(f"{server.url}/status/503?retry_after={quote(date)}"))
    verdict = outlast.classify(error)
    assert (verdict.category, verdict.error_class, verdict.tier) == ("transient", "unavailable", "http_429_503")
    assert verdict.retry_after is not None
    assert 3500 < verdict.retry_after <= 3600


@each_raising_client
def test_retry_after_that_is_garbage_is_ignored_with_one_log_line(
    fetch, server: MisbehavingServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Semantics 29: the verdict stands without it."""
    error = raised_by(lambda: fetch(f"{server.url}/status/429?retry_after=soon"))
    with caplog.at_level(logging.DEBUG, logger="outlast"):
        check(error, "rate_limited", status=429)
    assert len([record for record in caplog.records if record.name.startswith("outlast")]) == 1


@each_raising_client
def test_a_huge_retry_after_is_cut_by_the_policy(fetch, server: MisbehavingServer) -> None:
    """D-6, semantics 29: the wait is at most max_retry_after plus the backoff."""
    error = raised_by(lambda: fetch(f"{server.url}/status/429?retry_after=99999999999"))
    policy = outlast.RetryPolicy(initial_delay=1, jitter=0, max_retry_after=120)
    assert policy.decide(error, attempt=1).delay == 121


@each_raising_client
def test_an_error_wrapped_by_the_user_is_classified_by_its_cause(fetch, server: MisbehavingServer) -> None:
    """C-08, D-2, semantics 7: raised from it, or while it was handled."""

    class OrderServiceError(Exception):
        pass

    def on_purpose() -> None:
        try:
            fetch(f"{server.url}/status/429?retry_after=7")
        except Exception as error:
            raise OrderServiceError("no orders today") from error

    def in_passing() -> None:
        try:
            fetch(f"{server.url}/status/429?retry_after=7")
        except Exception:  # noqa: BLE001 - whatever the library raises
            raise OrderServiceError("no orders today")  # noqa: B904 - without a cause, on purpose

    for action in (on_purpose, in_passing):
        check(raised_by(action), "rate_limited", status=429, retry_after=7.0)


@each_raising_client
def test_redirects_without_end_are_client_error(fetch, server: MisbehavingServer) -> None:
    """C-07: the address is wrong, and stays wrong; urllib's HTTPError carries the status 302 here, a URLError none."""
    verdict = outlast.classify(raised_by(lambda: fetch(f"{server.url}/loop")))
    assert (verdict.category, verdict.error_class, verdict.tier) == ("permanent", "client_error", "http_4xx")


@table("fetch", [with_requests, with_httpx, with_aiohttp], ids=by_name)
@table("url", ["foo://127.0.0.1/", "http://"])
def test_an_address_that_is_none_is_data_error(fetch, url: str) -> None:
    """C-07: these are OSErrors, ValueErrors or neither, depending on the library."""
    check(raised_by(lambda: fetch(url)), "data_error")


def test_statuses_that_urllib3_gave_up_on_are_server_error(server: MisbehavingServer) -> None:
    """C-07: with status_forcelist it keeps no response, only the fact."""

    def fetch() -> None:
        retries = urllib3.Retry(1, status_forcelist=[503], backoff_factor=0)
        with urllib3.PoolManager(retries=retries) as pool:
            pool.request("GET", f"{server.url}/status/503")

    check(raised_by(fetch), "server_error")


# --- answers that are not what they should be -----------------------------------------------------------------------


def json_with_requests(url: str) -> object:
    with requests.Session() as session:
        session.trust_env = False
        return session.get(url, timeout=PATIENT).json()


def json_with_httpx(url: str) -> object:
    return httpx.get(url, verify=TRUSTED, trust_env=False).json()


def json_with_aiohttp(url: str) -> object:
    async def fetch() -> object:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return await response.json(content_type=None)

    return asyncio.run(fetch())


def json_with_urllib(url: str) -> object:
    return json.loads(with_urllib(url))


@table("fetch", [json_with_requests, json_with_httpx, json_with_aiohttp, json_with_urllib])
def test_a_body_that_is_not_json_is_data_error(fetch, server: MisbehavingServer) -> None:
    """C-07, C-08: permanent for the code that parses it; requests' own class is an OSError before it is a ValueError."""
    check(raised_by(lambda: fetch(f"{server.url}/ok?body=nonsense")), "data_error")


def test_a_content_type_that_is_not_json_is_invalid_output(server: MisbehavingServer) -> None:
    """C-07: aiohttp's ContentTypeError carries the status 200, which is no failure."""

    async def fetch() -> object:
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/ok") as response:
            return await response.json()

    verdict = outlast.classify(raised_by(lambda: asyncio.run(fetch())))
    assert (verdict.category, verdict.error_class, verdict.tier) == ("permanent", "invalid_output", "data")


# --- ways to run out of patience ------------------------------------------------------------------------------------


def test_a_silent_socket_in_aiohttp_is_timeout(server: MisbehavingServer) -> None:
    """C-07: its ServerTimeoutError is a connection error too, and a TimeoutError."""

    async def fetch() -> object:
        patience = aiohttp.ClientTimeout(sock_read=HASTY)
        async with aiohttp.ClientSession(timeout=patience) as session, session.get(f"{server.url}/hang") as response:
            return await response.text()

    check(raised_by(lambda: asyncio.run(fetch())), "timeout")


def test_an_exhausted_pool_in_httpx_is_timeout(server: MisbehavingServer) -> None:
    """C-07: PoolTimeout."""

    def fetch() -> object:
        limits, patience = httpx.Limits(max_connections=1), httpx.Timeout(PATIENT, pool=HASTY)
        with (
            httpx.Client(verify=TRUSTED, limits=limits, timeout=patience, trust_env=False) as client,
            client.stream("GET", f"{server.url}/cut?then=hang"),
        ):
            return client.get(f"{server.url}/ok")

    check(raised_by(fetch), "timeout")
