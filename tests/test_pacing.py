"""
Pacing: a hundred workers behind one adaptive limit keep a service busy that refuses what is too much, and are hardly ever refused.
Without a limit it is the waits that keep a herd from coming back together, and budgets and circuits that bound what retries can add.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import httpx
import pytest

import outlast
from outlast import App, CircuitBreaker, Guard, Limit, Pipeline, RetryBudget, RetryPolicy, stage
from outlast.kernel.clock import here
from outlast.testing import virtual_time
from servers.limited import Bucket, LimitedServer, Service, Window, many

CALLS, WIDTH = 10_000, 100
SERVICES = {
    "bucket": (lambda: Bucket(40, burst=10), 250.0),
    "window": (lambda: Window(600, per=15), 240.0),
}


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Thousands of refusals are no news here."""
    caplog.set_level(logging.CRITICAL, logger="outlast")


@pytest.mark.parametrize("whole_seconds", [False, True], ids=["exact hints", "hints in whole seconds"])
@pytest.mark.parametrize("service", SERVICES)
def test_the_bars_of_pacing_hold(service, whole_seconds):
    """D-11, science E11: refusals at most 3 % of the calls, at most 1.15 times the ideal time, 99.9 % succeed with three attempts."""
    make, ideal = SERVICES[service]
    served = Service(make(), whole_seconds=whole_seconds, seed=11)
    limit = Limit(service)
    with virtual_time(seed=11):
        failed, span = asyncio.run(many(Guard(limit=limit)(served.__call__), CALLS, WIDTH))
    assert served.refused <= 0.03 * CALLS
    assert failed <= 0.001 * CALLS
    assert span <= 1.15 * ideal
    assert (limit.under_way, limit.waiting) == (0, 0)


def labelled(work, width):
    """A pipeline whose only stage makes the call."""

    @stage(guard=Guard(limit=Limit("service")), concurrency=width)
    async def ask(item):
        await work()
        return item

    return ask


@pytest.mark.parametrize("whole_seconds", [False, True], ids=["exact hints", "hints in whole seconds"])
@pytest.mark.parametrize("service", SERVICES)
def test_the_bars_of_pacing_hold_in_a_run(service, whole_seconds):
    """D-11, science E11: the same for a run over ten thousand items, a hundred at a time."""
    make, ideal = SERVICES[service]
    served = Service(make(), whole_seconds=whole_seconds, seed=11)
    with virtual_time(seed=11) as time:
        result = Pipeline("pacing", labelled(served.__call__, WIDTH)).tested(range(CALLS), {})
        span = time.now
    assert served.refused <= 0.03 * CALLS
    assert result.counts.succeeded >= 0.999 * CALLS
    assert span <= 1.15 * ideal


def test_a_run_paces_itself_against_a_real_server(tmp_path):
    """D-11: three hundred items, twelve at a time, against a server that admits a hundred a second."""
    with LimitedServer(Bucket(100, burst=10), latency=0.05) as server:

        async def main():
            async with httpx.AsyncClient(trust_env=False, verify=False) as client:

                async def get():
                    (await client.get(server.url)).raise_for_status()

                app = App("pacing", store=f"sqlite:///{tmp_path}/store.db")
                return (await Pipeline("pacing", labelled(get, 12), app=app).arun(range(300))).counts

        counts = asyncio.run(main())
    assert counts.succeeded == 300
    assert server.refused <= 0.1 * 300


def test_a_real_server_is_paced_too():
    """D-11: four hundred real requests, twelve at a time, to a server that admits a hundred a second, which is five at a time."""
    with LimitedServer(Bucket(100, burst=10), latency=0.05) as server:

        async def main():
            async with httpx.AsyncClient(
                trust_env=False, verify=False, limits=httpx.Limits(max_connections=12)
            ) as client:

                @Guard(limit=Limit("server"))
                async def get():
                    (await client.get(server.url)).raise_for_status()

                return await many(get, 400, 12)

        failed, _ = asyncio.run(main())
    assert failed == 0
    assert server.admitted == 400
    assert server.refused <= 0.1 * 400


# --- a herd that is refused ---


class TooManyRequests(Exception):
    status_code = 429


def herd(policy, clients, *, share=10):
    """How often so many clients that begin together are refused, until each was served, where this many are served in a second; and when."""
    asked, refused = Counter(), 0

    async def ask():
        nonlocal refused
        second = int(here.get().clock.time.now)
        asked[second] += 1
        if asked[second] > share:
            refused += 1
            raise TooManyRequests

    async def main():
        await asyncio.gather(*(outlast.retry(policy)(ask)() for _ in range(clients)))

    with virtual_time(seed=1) as time:
        asyncio.run(main())
    return refused, time.now


@pytest.mark.parametrize(("clients", "at_once", "saved"), [(100, 450, 0.4), (200, 1900, 0.6)])
def test_waits_that_vary_keep_a_herd_from_coming_back_together(clients, at_once, saved):
    """S3-37: of the refusals that a fixed wait brings, or one that doubles for all alike, two or three fifths do not happen."""
    grows = {"max_attempts": 100, "max_delay": 60, "cap": "before_jitter"}
    fixed, _ = herd(RetryPolicy(max_attempts=100, backoff="fixed", jitter=0), clients)
    in_step, long = herd(RetryPolicy(**grows, jitter=0), clients)
    varied, short = herd(RetryPolicy(**grows, jitter=0.25), clients)  # presets.stage, with more attempts
    assert (fixed, in_step) == (at_once, at_once)  # each time all that are left come back, and ten are served
    assert varied < (1 - saved) * at_once
    assert short < long / 10


def test_a_policy_that_would_storm_is_bounded_by_a_budget_or_a_circuit():
    """S0-44: a hundred thousand attempts without a wait, for every error, at a service that is down: 100 calls become 110, or 5."""
    asked = Counter()
    storm = RetryPolicy(max_attempts=100_000, initial_delay=0, jitter=0, on_errors=["all"])

    def ask(how):
        asked[how] += 1
        raise ConnectionRefusedError("down")

    guards = {
        "budget": Guard(retry=storm, retry_budget=RetryBudget("storm")),
        "circuit": Guard(retry=storm, breaker=CircuitBreaker("storm")),
    }
    with virtual_time():
        for how, guard in guards.items():
            for _ in range(100):
                assert guard.outcome(ask, how).error is not None
    assert asked == {"budget": 110, "circuit": 5}
