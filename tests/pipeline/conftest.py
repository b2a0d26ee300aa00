"""What every test of runs gets: an app with a store of its own, on each of the two databases in turn."""

from __future__ import annotations

from uuid import uuid4

import pytest

import outlast
from outlast.pipeline.home import DEFAULT
from stores import prepared


@pytest.fixture(scope="session")
def postgres(postgres_server):
    """A database for the tests that leave its server running."""
    return postgres_server.database("pipeline")


@pytest.fixture(params=["sqlite", "postgres"])
def app(request, tmp_path):
    """An app that sees nothing of another test's."""
    sqlite = request.param == "sqlite"
    address = prepared(tmp_path / "outlast.db") if sqlite else request.getfixturevalue("postgres").dsn
    made = outlast.App(f"tests-{uuid4().hex}", store=address)
    yield made
    made.store.close()


@pytest.fixture
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """For pipelines without an app: their store is in the current folder, and closed afterwards."""
    monkeypatch.chdir(tmp_path)
    yield
    if DEFAULT._store is not None:
        DEFAULT._store[1].close()
        DEFAULT._store = None


@pytest.fixture
def sqlite_app(tmp_path):
    """An app for what does not depend on the database."""
    made = outlast.App(f"tests-{uuid4().hex}", store=prepared(tmp_path / "outlast.db"))
    yield made
    made.store.close()
