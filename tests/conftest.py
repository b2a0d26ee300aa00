"""What every test gets. Time limits, random order and warnings as errors are set in pyproject.toml."""

from __future__ import annotations

import gc
import logging
import signal
import sys
import weakref

import pytest
from _pytest.logging import LogCaptureHandler
from hypothesis import settings

from bytecode import keep_bytecode
from outlast import observe
from outlast.sharing import named
from outlast.work.patience import Terms, terms
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres
from servers.redis import Redis

# The machine may be busy: a slow example is no finding, and the time limit of the test catches a hanging one.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")


def pytest_configure(config):
    """
    Before several processes collect, the one that starts them compiles what they all load. A shell starts its background jobs with SIGINT
    ignored, and every program of a test would inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not config.getoption("numprocesses", None):
        gc.disable()  # until the tests begin, nearly all that is made stays
    elif not sys.dont_write_bytecode:
        keep_bytecode(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """
    In several processes the longest tests come first, or the last one would let all others wait: they have more time than any test
    has. Then the groups, each of which is one process's. Other tests with a time limit of their own mostly wait. They are spread among
    those that compute, or there would be nothing to compute while all of them wait; and they are over before the end.
    """
    if hasattr(config, "workerinput"):
        limits = {item: max((mark.args[0] for mark in item.iter_markers("timeout")), default=0) for item in items}
        waiting = [item for item in items if limits[item]]
        computing = [item for item in items if not limits[item]]
        place = {item: 0.8 * number / len(waiting) for number, item in enumerate(waiting)}
        place |= {item: number / len(computing) for number, item in enumerate(computing)}
        longest = float(config.getini("timeout"))

        def order(item):
            return limits[item] <= longest, item.get_closest_marker("xdist_group") is None, place[item]

        items.sort(key=order)


def pytest_collection_finish():
    """What is loaded now stays: no test that collects garbage looks through all of it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    """So does what tests have left in caches, now and then: many tests look through all that is not frozen."""
    item.session.stash[COUNT] = count = item.session.stash.get(COUNT, 0) + 1
    if count % 100 == 0:
        gc.collect()
        gc.freeze()


COUNT = pytest.StashKey[int]()


def pytest_sessionfinish():
    """Some libraries complain at the end about what nobody has collected."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    """Tests with the mark `pooled` also meet PostgreSQL behind PgBouncer."""
    if metafunc.definition.get_closest_marker("pooled"):
        for name in {"address", "app"}.intersection(metafunc.fixturenames):
            backends = pytest.mark.parametrize(name, ["sqlite", "postgres", "pgbouncer"], indirect=True)
            metafunc.definition.add_marker(backends)


@pytest.fixture(autouse=True)
def nobody_stays():
    """A test that leaves a listener behind would be heard in others, whose order is random."""
    before = listeners()
    yield
    assert listeners() == before


@pytest.fixture(autouse=True)
def own_breakers(monkeypatch):
    """A circuit that another test has left open is not reported to the stores of this one."""
    others, known = weakref.WeakSet(named.known("breaker")), named.known
    monkeypatch.setattr(named, "known", lambda kind: [one for one in known(kind) if one not in others])


def listeners() -> tuple[object, ...]:
    """Who hears of what Outlast does in this process."""
    silent = logging.NullHandler, LogCaptureHandler  # ours, and pytest's own
    handlers = (one for one in logging.getLogger("outlast").handlers if not isinstance(one, silent))
    return observe._hooks, observe._watchers, observe.captures.get(), tuple(handlers)


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


@pytest.fixture(scope="session")
def pooler(postgres_server):
    """One PgBouncer in transaction mode in front of it."""
    with PgBouncer(postgres_server) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server():
    """One Redis for the programs of other queues."""
    with Redis() as server:
        yield server
