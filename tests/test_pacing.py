"""Pacing: a hundred workers behind one adaptive limit keep a service busy that refuses what is too much, and are hardly ever refused."""

from __future__ import annotations

import asyncio
import logging

import httpx
import pytest

from outlast import App, Guard, Limit, Pipeline, stage
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
