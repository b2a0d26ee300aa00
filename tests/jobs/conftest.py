"""What every test of jobs gets: an app with a store of its own, on each of the two databases in turn; with the mark `pooled` behind PgBouncer, too."""

from __future__ import annotations

from uuid import uuid4

import pytest

import outlast
from stores import prepared


@pytest.fixture(scope="session")
def postgres(postgres_server):
    """A database for the tests that leave its server running."""
    return postgres_server.database("jobs")


@pytest.fixture(params=["sqlite", "postgres"])
def app(request, tmp_path):
    """An app that sees nothing of another test's."""
    if request.param == "sqlite":
        address = prepared(tmp_path / "outlast.db")
    else:
        database = request.getfixturevalue("postgres")
        address = database.dsn if request.param == "postgres" else request.getfixturevalue("pooler").dsn(database)
    made = outlast.App(f"tests-{uuid4().hex}", store=address)
    yield made
    made.store.close()


@pytest.fixture
def sqlite_app(tmp_path):
    """An app for what does not depend on the database, and for SQLite itself."""
    made = outlast.App(f"tests-{uuid4().hex}", store=prepared(tmp_path / "outlast.db"))
    yield made
    made.store.close()


@pytest.fixture
def pooled_app(postgres, pooler):
    """An app on PostgreSQL, behind PgBouncer."""
    made = outlast.App(f"tests-{uuid4().hex}", store=pooler.dsn(postgres))
    yield made
    made.store.close()


@pytest.fixture
def postgres_app(postgres):
    """An app on PostgreSQL."""
    made = outlast.App(f"tests-{uuid4().hex}", store=postgres.dsn)
    yield made
    made.store.close()
