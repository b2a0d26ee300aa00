"""Real servers that misbehave on request. One that cannot start is a failure, never a skip."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from outlast.testing import FaultProxy
from servers.azurite import Azurite
from servers.http import MisbehavingServer
from servers.mariadb import MariaDB
from servers.postgres import Postgres
from servers.redis import Redis
from servers.s3 import S3
from servers.scripted import ScriptedServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def server() -> Iterator[MisbehavingServer]:
    """A plain HTTP server; the path says how it misbehaves."""
    with MisbehavingServer() as running:
        yield running


@pytest.fixture(scope="session")
def tls_server() -> Iterator[MisbehavingServer]:
    """The same behind a certificate that nobody trusts."""
    with MisbehavingServer(tls=True) as running:
        yield running


@pytest.fixture(scope="session")
def refusing_port() -> Iterator[int]:
    """A port that is taken, so that nobody else can listen on it, and on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture(scope="session")
def postgres(postgres_server: Postgres) -> Postgres:
    """A PostgreSQL for everybody: leave it running, and use tables of your own."""
    return postgres_server.database("real")


@pytest.fixture(scope="module")
def fragile_postgres() -> Iterator[Postgres]:
    """A PostgreSQL that a test may stop, if it starts it again."""
    with Postgres() as running:
        yield running


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[FaultProxy]:
    """A TCP address of that PostgreSQL whose connections can be cut."""
    with FaultProxy(postgres.socket) as running:
        yield running


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """A MariaDB for everybody: leave it running, and use tables of your own in the database ``shop``."""
    with MariaDB() as running:
        yield running


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """A Redis for everybody: leave it as it was."""
    with Redis() as running:
        yield running


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server with one bucket, called ``bucket``."""
    with S3() as running:
        yield running


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """A blob server for everybody: use containers of your own."""
    with Azurite() as running:
        yield running


@pytest.fixture(scope="session")
def scripted() -> Iterator[ScriptedServer]:
    """An HTTP server that gives the answer it was last told to give."""
    with ScriptedServer() as running:
        yield running
