"""What processes share, on both databases: `address` is each of them in turn, with nothing in it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from sharing import NOTHING, Process


@pytest.fixture(scope="session")
def postgres(postgres_server):
    """A database for the tests that leave its server running."""
    return postgres_server.database("shared")


@pytest.fixture(params=["sqlite", "postgres"], scope="module")
def address(request, tmp_path_factory):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('shared')}/store.db"
    return request.getfixturevalue("postgres").dsn


@pytest.fixture(scope="module")
def crew(address):
    """Four processes, for as long as a test kills none of them: to start one takes longer than most stories."""
    with ExitStack() as stack:
        yield [stack.enter_context(Process(address, NOTHING)) for _ in range(4)]


@pytest.fixture
def name(request):
    """No two tests share anything."""
    return request.node.name
