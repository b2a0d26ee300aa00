"""What every test of runs gets: an app with a store of its own, on each of the two databases in turn."""

from __future__ import annotations

from uuid import uuid4

import pytest

import outlast
from servers.postgres import Postgres


@pytest.fixture(scope="session")
def postgres():
    """A server for the tests that leave it running."""
    with Postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def app(request, tmp_path):
    """An app that sees nothing of another test's."""
    address = tmp_path / "outlast.db" if request.param == "sqlite" else request.getfixturevalue("postgres").dsn
    made = outlast.App(f"tests-{uuid4().hex}", store=str(address))
    yield made
    made.store.close()
