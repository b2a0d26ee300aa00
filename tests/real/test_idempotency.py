"""Work that must not be done twice: what real libraries raise, and whether a second attempt is made."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
import psycopg
import pytest
import requests
import sqlalchemy

import outlast
from outlast.testing import virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers.http import MisbehavingServer
    from servers.postgres import Postgres

pytestmark = pytest.mark.xdist_group("postgres")
HASTY = 0.1
NAMED = "http://no-such-host.invalid"


@pytest.fixture(scope="module")
def deaf_port() -> Iterator[int]:
    """A port whose waiting room is full: the kernel answers nobody who wants to connect."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port = listening.getsockname()[1]
        waiting = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            waiting.append(one)
        yield port
        for one in waiting:
            one.close()


def with_requests(url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.post(url, timeout=(HASTY, HASTY)).raise_for_status()


def with_httpx(url: str) -> None:
    with httpx.Client(verify=False, timeout=HASTY, trust_env=False) as client:
        client.post(url).raise_for_status()


def with_aiohttp(url: str) -> None:
    async def post() -> None:
        limits = aiohttp.ClientTimeout(sock_connect=HASTY, sock_read=HASTY)
        async with aiohttp.ClientSession(timeout=limits) as session, session.post(url) as response:
            response.raise_for_status()

    asyncio.run(post())


LIBRARIES = [with_requests, with_httpx, with_aiohttp]
RETRIED = {
    "refused": True,
    "unknown host": True,
    "connect timeout": True,
    "reset": False,
    "closed": False,
    "read timeout": False,
    "429": True,
    "503 with Retry-After": True,
    "500": False,
    "502": False,
    "503": False,
    "504": False,
}
PATHS = {
    "reset": "/reset",
    "closed": "/close",
    "read timeout": "/hang",
    "429": "/status/429",
    "503 with Retry-After": "/status/503?retry_after=1",
    "500": "/status/500",
    "502": "/status/502",
    "503": "/status/503",
    "504": "/status/504",
}


def attempts_of(work: Callable[..., Any], *args: Any, **options: Any) -> tuple[int, str | None]:
    """How often a call that always fails was made, and why it was not made again; every transient error is worth a retry."""
    policy = outlast.RetryPolicy(max_attempts=2, on_errors=["transient", "unclear"])
    with virtual_time():
        outcome = outlast.Guard("pay", retry=policy, idempotent=False, **options).outcome(work, *args)
    return len(outcome.attempts), outcome.reason


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("what", RETRIED)
def test_only_what_surely_had_no_effect_is_retried(
    library: Callable[[str], None], what: str, server: MisbehavingServer, refusing_port: int, deaf_port: int
) -> None:
    """semantics 36, 37: never sent or refused is retried; lost on the way, or failed in the server, is not."""
    urls = {
        "refused": f"http://127.0.0.1:{refusing_port}/",
        "unknown host": NAMED,
        "connect timeout": f"http://127.0.0.1:{deaf_port}/",
    }
    url = urls.get(what) or server.url + PATHS[what]
    assert attempts_of(library, url) == ((2, "exhausted") if RETRIED[what] else (1, "ambiguous"))


@pytest.mark.parametrize("library", LIBRARIES)
def test_with_the_key_everything_is_retried(library: Callable[[str], None], server: MisbehavingServer) -> None:
    """semantics 37: code that has asked for the key sends it along, so a second attempt does no harm."""

    def work() -> None:
        assert outlast.current().idempotency_key
        library(server.url + "/reset")

    assert attempts_of(work) == (2, "exhausted")


@pytest.mark.parametrize("door", ["psycopg", "sqlalchemy"])
@pytest.mark.parametrize(
    ("sqlstate", "retried"), [("40001", True), ("40P01", True), ("57P01", False), ("53300", False)]
)
def test_a_transaction_that_was_rolled_back_is_retried(
    postgres: Postgres, door: str, sqlstate: str, retried: bool
) -> None:
    """semantics 36, 37: serialization failures and deadlocks of a real PostgreSQL; anything else may have been committed."""
    statement = f"do $$ begin raise exception 'on purpose' using errcode = '{sqlstate}'; end $$"

    def work() -> None:
        if door == "psycopg":
            with psycopg.connect(postgres.dsn) as connection:
                connection.execute(statement)
        else:
            engine = sqlalchemy.create_engine(postgres.dsn.replace("postgresql:", "postgresql+psycopg:", 1))
            try:
                with engine.begin() as connection:
                    connection.exec_driver_sql(statement)
            finally:
                engine.dispose()

    assert attempts_of(work) == ((2, "exhausted") if retried else (1, "ambiguous"))
