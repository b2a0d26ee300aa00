"""Outlast's own calls of stores and sinks: decided like any other, without events and without history."""

from __future__ import annotations

import sqlite3
import sys

import pytest

from outlast import RetryPolicy
from outlast.calls.internal import keep_trying
from outlast.errors import LeaseLost
from outlast.kernel.clock import Stop, stopping
from outlast.store.sqlite import Sqlite
from outlast.testing import capture_events, virtual_time
from outlast.work import patience

STEADY = RetryPolicy(max_attempts=sys.maxsize, backoff="fixed", initial_delay=1.0, jitter=0.0)


class Service:
    """Fails with these errors, one after the other, then answers."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_what_passes_is_waited_for_without_a_word():
    """The policy says how long; no event is told, and the error that was waited for is told to the caller once."""
    service, told = Service(ConnectionError("one"), TimeoutError("two"), ConnectionError("three")), []
    with virtual_time() as time, capture_events() as events:
        assert keep_trying(service, STEADY, 60.0, waits=told.append) == "done"
    assert (service.calls, time.sleeps, events) == (4, [1.0, 1.0, 1.0], [])
    assert [str(error) for error in told] == ["one"]


@pytest.mark.parametrize("error", [ValueError("no"), RuntimeError("who knows"), PermissionError("never")])
def test_what_the_policy_does_not_want_is_raised_at_once(error):
    """As it is: nothing is attached to it."""
    with virtual_time() as time, pytest.raises(type(error)) as caught:
        keep_trying(Service(error), STEADY, 60.0)
    assert caught.value is error
    assert (time.sleeps, getattr(error, "__notes__", [])) == ([], [])


@pytest.mark.parametrize(("patience", "calls"), [(0.0, 1), (1.0, 1), (1.5, 2), (3.5, 4)])
def test_patience_begins_with_the_first_failure(patience, calls):
    """A wait that does not fit is not begun; the last error is raised."""
    service = Service(*(ConnectionError(str(number)) for number in range(9)))
    with virtual_time(), pytest.raises(ConnectionError) as caught:
        keep_trying(service, STEADY, patience)
    assert (service.calls, str(caught.value)) == (calls, str(calls - 1))


def test_a_stop_ends_the_wait():
    """What is under way is not cut off; the next wait is."""
    stop = Stop()
    service = Service(*[ConnectionError()] * 3)
    with virtual_time(), pytest.raises(InterruptedError, match="asked to stop while the disk is full"):
        keep_trying(
            service, STEADY, 60.0, stop=stop, stopped="asked to stop while the disk is full", waits=lambda _: stop.set()
        )
    assert service.calls == 1


def test_a_lost_lease_is_never_waited_for(on_terms):
    """Whatever else may pass: that does not, and what is unclear passes only if it is said."""
    with virtual_time() as time:
        with pytest.raises(LeaseLost):
            patience.keep_trying(Service(LeaseLost("gone")), "the store")
        with pytest.raises(RuntimeError):
            patience.keep_trying(Service(RuntimeError("odd")), "the sink", unclear=False)
        assert time.sleeps == []
        assert patience.keep_trying(Service(RuntimeError("odd")), "the store") == "done"
        on_terms(patience=0.0)
        with pytest.raises(ConnectionError):
            patience.keep_trying(Service(ConnectionError()), "the store", patience=60.0)
    assert len(time.sleeps) == 1


def test_the_stop_of_the_program_is_heard():
    """Without one of its own a wait hears that of the call around it."""
    stop = Stop()
    token = stopping.set(stop)
    try:
        stop.set()
        with virtual_time(), pytest.raises(InterruptedError, match="while the store could not be used"):
            patience.keep_trying(Service(ConnectionError()), "the store")
    finally:
        stopping.reset(token)


def test_a_file_that_another_program_locks_is_waited_for_in_real_time(tmp_path):
    """SQLite waits by itself for most things, and in real time: the first use of a file is no other, whatever the clock."""
    path = tmp_path / "store.db"
    database = Sqlite(path, patience=0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin exclusive")
    with virtual_time() as time, pytest.raises(sqlite3.OperationalError, match="locked"):
        database.connect(batches=False)
    other.execute("rollback")
    database.connect(batches=False).close()
    other.close()
    assert time.sleeps == []
