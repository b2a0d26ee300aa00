"""Runs that end early give every place back: stages with more slots than their limit has places, ended by each kind of stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from uuid import uuid4

import pytest

import outlast
from outlast import CircuitBreaker, Guard, Limit, RetryPolicy

PLACES, SLOTS, ITEMS = 3, 16, 300
WHEN = 30  # the call in which a run is stopped


@pytest.fixture
def app(tmp_path):
    """One store is enough: places are the process's own."""
    made = outlast.App(f"tests-{uuid4().hex}", store=str(tmp_path / "outlast.db"))
    yield made
    made.store.close()


class Stopper:
    """Does what stops a run, in the call that is to do it."""

    def __init__(self, how: str) -> None:
        self.how, self.calls, self.lock = how, 0, threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.task: asyncio.Task | None = None

    def strike(self) -> None:
        with self.lock:
            self.calls += 1
            calls = self.calls
        if self.how in {"same failure", "failure budget"}:
            raise ValueError("bad" if self.how == "same failure" else f"bad {'abcdefghij'[calls % 10]} row")
        if self.how == "breaker":
            raise ConnectionRefusedError
        if self.how == "spend":
            outlast.current().spend(cents=1)
        if calls == WHEN:
            self.stop()

    def stop(self) -> None:
        if self.how == "fatal":
            raise ModuleNotFoundError("gone")
        if self.how == "item":
            raise KeyError("bad")
        if self.how == "exit":
            sys.exit(3)
        if self.how == "interrupt":
            raise KeyboardInterrupt
        if self.how in {"SIGINT", "SIGTERM"}:
            os.kill(os.getpid(), getattr(signal, self.how))
        if self.how == "cancelled":
            self.loop.call_soon_threadsafe(self.task.cancel)


OPTIONS = {
    "failure budget": {"failure_check_interval": 40},
    "spend": {"spend_limit": {"cents": 40}},
}
HOW = (
    "fatal",
    "exit",
    "interrupt",
    "same failure",
    "failure budget",
    "item",
    "spend",
    "breaker",
    "source",
    "sink",
    "cancelled",
    "SIGINT",
    "SIGTERM",
)


def pipeline(app, stopper, kind, limit, breaker):
    batch = 2 if "batch" in kind else None

    def work(x):
        threading.Event().wait(0.001)
        stopper.strike()
        return x

    async def awork(x):
        for _ in range(3):
            await asyncio.sleep(0)
        stopper.strike()
        return x

    guard = Guard("places", limit=limit, breaker=breaker, retry=RetryPolicy(max_attempts=2, initial_delay=0.001))
    more = {} if batch is None else {"batch": batch}
    made = outlast.stage(guard=guard, concurrency=SLOTS, **more)(awork if "async" in kind else work)
    return outlast.Pipeline("places", made, app=app, **OPTIONS.get(stopper.how, {}))


def items(how):
    for n in range(ITEMS):
        if how == "source" and n == 200:
            raise OSError("the source is gone")
        yield n


def held(breaker):
    """Probes that are under way."""
    return breaker.memory.circuit.probes + breaker.memory.circuit.late


def broken_sink(_):
    raise KeyError("bug in the sink")


def ended(app, stopper, kind, limit, breaker) -> None:
    made = pipeline(app, stopper, kind, limit, breaker)
    options = {"sink": {"sink": broken_sink}, "item": {"on_item_error": "stop"}}.get(stopper.how, {})

    async def main():
        stopper.loop, stopper.task = asyncio.get_running_loop(), asyncio.current_task()
        await made.arun(items(stopper.how), check=False)

    with contextlib.suppress(Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError):
        if stopper.how == "cancelled":
            asyncio.run(main())
        else:
            made.run(items(stopper.how), check=False, **options)


@pytest.mark.parametrize("kind", ["sync", "async", "sync batch", "async batch"])
@pytest.mark.parametrize("how", HOW)
def test_a_run_that_ends_early_gives_every_place_back(app, kind, how):
    """C3: what was granted and not begun, what stands in line, and what comes back when nobody waits for it any more."""
    limit = Limit("places", concurrency=PLACES, adaptive=False)
    for _ in range(2):  # one after the other with the same limit: none is left without a place
        breaker = CircuitBreaker("places", failure_threshold=5, reset_timeout=0.01, half_open_requests=2)
        stopper = Stopper(how)
        ended(app, stopper, kind, limit, breaker)
        assert stopper.calls >= (5 if how in {"breaker", "sink"} else WHEN)
        patience = threading.Event()
        for _ in range(1000):  # attempts that were running when it ended come back by themselves
            if (limit.under_way, limit.waiting, *held(breaker)) == (0, 0):
                break
            patience.wait(0.005)
        assert (limit.under_way, limit.waiting) == (0, 0)
        assert held(breaker) == ()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_a_run_that_waits_for_a_place_that_does_not_come(app, kind, name):
    """
    C3: all places are somebody else's for good; the run is asked to end while all its slots stand in line. The system may
    tell any thread of a signal: the main one, which waits for nothing but that, must hear of it.
    """
    limit = Limit("taken", concurrency=PLACES)
    for _ in range(PLACES):
        assert limit.acquire_nowait()
    made = pipeline(app, Stopper("nothing"), kind, limit, None)

    def strike() -> None:
        while not limit.waiting:
            threading.Event().wait(0.005)
        signal.pthread_kill(threading.get_ident(), getattr(signal, name))

    striker = threading.Thread(target=strike)
    striker.start()
    began = time.monotonic()
    with contextlib.suppress(Exception, SystemExit, KeyboardInterrupt):
        made.run(range(ITEMS), check=False)
    assert time.monotonic() - began < 200  # else it was the time limit of this test that has ended it
    striker.join()
    assert (limit.under_way, limit.waiting) == (PLACES, 0)
