"""One behaviour suite, two databases: `store` is each of them in turn, empty; with the mark `pooled` behind PgBouncer, too."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from outlast.store import open_store
from stores import TABLES, prepared


@pytest.fixture(scope="session")
def postgres(postgres_server):
    """A database for the tests that leave its server running."""
    return postgres_server.database("store")


@pytest.fixture(scope="session")
def emptied(postgres):
    """A function that leaves nothing in that database. It keeps its connection: to open one takes longer than what it does."""
    with open_store(postgres.dsn):
        pass
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        yield lambda: [connection.execute(f"delete from {table}") for table in TABLES]


@pytest.fixture(params=["sqlite", "postgres"])
def address(request, tmp_path):
    """Where a store is that has nothing in it yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    server = request.getfixturevalue("postgres")
    request.getfixturevalue("emptied")()
    return server.dsn if request.param == "postgres" else request.getfixturevalue("pooler").dsn(server)


@pytest.fixture
def store(address):
    path = Path(address.removeprefix("sqlite:///"))
    if address.startswith("sqlite:///") and not path.exists():
        prepared(path)
    with open_store(address) as opened:
        yield opened
