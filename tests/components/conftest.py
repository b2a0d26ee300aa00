"""What tests of sources and sinks get: an app of their own, and real databases that are shared by all of them."""

from __future__ import annotations

from uuid import uuid4

import pytest

import outlast
from servers.mariadb import MariaDB
from servers.s3 import S3
from stores import prepared


@pytest.fixture(scope="session")
def postgres(postgres_server):
    return postgres_server.database("components")


@pytest.fixture(scope="session")
def s3():
    """An S3 server with one bucket, called ``bucket``."""
    with S3() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb():
    with MariaDB() as server:
        yield server


@pytest.fixture
def app(tmp_path):
    made = outlast.App(f"tests-{uuid4().hex}", store=prepared(tmp_path / "outlast.db"))
    yield made
    made.store.close()
