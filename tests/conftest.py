"""What every test gets. Time limits, random order and warnings as errors are set in pyproject.toml."""

from __future__ import annotations

import gc

import pytest
from hypothesis import settings

from outlast.work.patience import Terms, terms
from servers.postgres import Postgres

# The machine may be busy: a slow example is no finding, and the time limit of the test catches a hanging one.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """
    In several processes the long tests come first, or the last one would let all others wait; those have a time limit of
    their own. Then the groups, each of which is one process's.
    """
    if hasattr(config, "workerinput"):
        limits = {item: max((mark.args[0] for mark in item.iter_markers("timeout")), default=0) for item in items}
        items.sort(key=lambda item: (limits[item], item.get_closest_marker("xdist_group") is not None), reverse=True)


def pytest_collection_finish():
    """What is loaded now stays: no test that collects garbage looks through all of it again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    """Some libraries complain at the end about what nobody has collected."""
    gc.unfreeze()


@pytest.fixture
def on_terms():
    """Sets how long stores are waited for and leases last, until it is called again or the test ends; not in threads of the test's own."""
    before = terms.set(Terms())
    yield lambda **how: terms.set(Terms(**how))
    terms.reset(before)


@pytest.fixture(scope="session")
def postgres_server():
    """One PostgreSQL for all tests of a process that leave it running; each folder of tests has a database of its own there."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres(postgres_server):
    """The database of the tests that are in no folder."""
    return postgres_server
