"""One behaviour suite, two databases: `store` is each of them in turn, empty."""

from __future__ import annotations

import pytest

from outlast.store import open_store
from stores import TABLES


@pytest.fixture(scope="session")
def postgres(postgres_server):
    """A database for the tests that leave its server running."""
    return postgres_server.database("store")


@pytest.fixture(params=["sqlite", "postgres"])
def address(request, tmp_path):
    """Where a store is that has nothing in it yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    server = request.getfixturevalue("postgres")
    with open_store(server.dsn):
        pass
    server.execute(*(f"delete from {table}" for table in TABLES))
    return server.dsn


@pytest.fixture
def store(address):
    with open_store(address) as opened:
        yield opened
