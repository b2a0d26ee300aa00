"""
What a shared limit does when a service says "too many": `make pacing`.

Ten thousand calls, and a run over ten thousand items, a hundred at a time, against a token bucket and a fixed window in virtual time, several
seeds each; then a smaller run of real requests against a real server on loopback. Prints the tables and renews docs/pacing.md. Nothing here passes or fails; the
tests hold the bars.

    PYTHONPATH=tests benchmarks/pacing.py --peers build/peers --seeds 2 --calls 2000
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from report import renew

from outlast import App, Guard, Limit, Pipeline, stage
from outlast.kernel.clock import here
from outlast.testing import virtual_time
from servers.limited import Bucket, LimitedServer, Service, Window, many

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Work = Callable[[], Awaitable[object]]

WIDTH = 100
REAL_WIDTH = 20  # a fifth of the virtual one, for a fifth of the calls


# The contenders: each makes a protected call of a call, with three attempts. A run over items is one of its own.


def ours(work: Work) -> Work:
    return Guard(limit=Limit("service"))(work)


def without_limit(work: Work) -> Work:
    return Guard()(work)


async def asleep(seconds: float) -> None:
    """In whatever time it is called."""
    await here.get().clock.asleep(seconds)


def with_tenacity(work: Work) -> Work:
    import tenacity

    return tenacity.retry(
        wait=tenacity.wait_random_exponential(multiplier=1, max=30),
        stop=tenacity.stop_after_attempt(3),
        sleep=asleep,
        reraise=True,
    )(work)


def semaphore(places: int) -> Callable[[Work], Work]:
    """What people write by hand: so many at a time, and wait as long as the service asks, or a second."""

    def protect(work: Work) -> Work:
        room = asyncio.Semaphore(places)

        async def call() -> object:
            for attempt in range(3):
                try:
                    async with room:
                        return await work()
                except Exception as error:
                    if attempt == 2:
                        raise
                    response = getattr(error, "response", error)
                    hint = float(response.headers.get("Retry-After", 1))
                await here.get().clock.asleep(hint)
            return None

        return call

    return protect


def items(work: Work, width: int, **options: Any) -> Pipeline[int, int]:
    """A pipeline whose only stage makes the call."""

    @stage(guard=Guard(limit=Limit("service")), concurrency=width)
    async def ask(item: int) -> int:
        await work()
        return item

    return Pipeline("pacing", ask, **options)


RUN = "**outlast**, a run over items"
CONTENDERS: dict[str, Callable[[Work], Work] | None] = {
    RUN: None,
    "**outlast**, adaptive limit": ours,
    "outlast, no limit": without_limit,
    "tenacity, random exponential": with_tenacity,
    "semaphore of 50, by hand": semaphore(50),
    "semaphore of 32, tuned to this load": semaphore(32),
}
BUCKET = (lambda: Bucket(40, burst=10), lambda calls: calls / 40)
WINDOW = (lambda: Window(600, per=15), lambda calls: (math.ceil(calls / 600) - 1) * 15)
# The service, the least time that it needs for so many calls, and whether its hints are whole seconds.
SCENARIOS: dict[str, tuple[Callable[[], Any], Callable[[int], float], bool]] = {
    "Token bucket, 40 a second, burst 10; exact hints": (*BUCKET, False),
    "Token bucket, 40 a second, burst 10; hints in whole seconds": (*BUCKET, True),
    "Window, 600 in 15 s; exact hints": (*WINDOW, False),
    "Window, 600 in 15 s; hints in whole seconds": (*WINDOW, True),
}


@dataclass(frozen=True)
class Run:
    """One run: refusals and successes as shares of the calls, and the time as a multiple of the ideal."""

    refused: float
    succeeded: float
    span: float


def virtual(
    make: Callable[[], Any], protect: Callable[[Work], Work] | None, *, calls: int, ideal: float, whole: bool, seed: int
) -> Run:
    service = Service(make(), whole_seconds=whole, seed=seed)
    random.seed(seed)  # tenacity's dice
    if protect is None:
        with virtual_time(seed=seed) as clock:
            result = items(service.__call__, WIDTH).tested(range(calls), {})
            return Run(service.refused / calls, result.counts.succeeded / calls, clock.now / ideal)

    async def main() -> tuple[int, float]:
        return await many(protect(service.__call__), calls, WIDTH)

    with virtual_time(seed=seed):
        failed, span = asyncio.run(main())
    return Run(service.refused / calls, 1 - failed / calls, span / ideal)


REAL: dict[str, tuple[Callable[[], Any], Callable[[int], float]]] = {
    "a token bucket of 100 a second, burst 10": (lambda: Bucket(100, burst=10), lambda calls: (calls - 10) / 100),
    "a window of 300 in 3 s": (lambda: Window(300, per=3), lambda calls: (math.ceil(calls / 300) - 1) * 3),
}


def real(make: Callable[[], Any], protect: Callable[[Work], Work] | None, *, calls: int, ideal: float) -> Run:
    """Requests with httpx to a server that admits fewer than the client could send."""
    with LimitedServer(make(), latency=0.1) as server:

        async def main() -> tuple[int, float]:
            limits = httpx.Limits(max_connections=REAL_WIDTH)
            async with httpx.AsyncClient(trust_env=False, verify=False, limits=limits, timeout=30) as client:

                async def get() -> None:
                    (await client.get(server.url)).raise_for_status()

                if protect is None:
                    began = time.monotonic()
                    with tempfile.TemporaryDirectory() as folder:
                        app = App("pacing", store=f"sqlite:///{folder}/store.db")
                        result = await items(get, REAL_WIDTH, app=app).arun(range(calls))
                        app.store.close()
                    return calls - result.counts.succeeded, time.monotonic() - began
                return await many(protect(get), calls, REAL_WIDTH)

        failed, span = asyncio.run(main())
    return Run(server.refused / calls, 1 - failed / calls, span / ideal)


# The report.


def spread(values: list[float], form: str) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    texts = [format(value, form) for value in (middle, low, high)]
    return texts[0] if texts[1] == texts[2] else f"{texts[0]} ({texts[1]} to {texts[2]})"


def table(title: str, rows: dict[str, list[Run]]) -> str:
    lines = [f"### {title}", "", "| | refused | succeeded | time / ideal |", "|---|---:|---:|---:|"]
    for name, runs in rows.items():
        refused = spread([run.refused for run in runs], ".1%")
        succeeded = spread([run.succeeded for run in runs], ".2%")
        lines.append(f"| {name} | {refused} | {succeeded} | {spread([run.span for run in runs], '.2f')} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="an environment that has tenacity")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--real-calls", type=int, default=2_000)
    options = parser.parse_args()
    sys.path += [str(path) for path in options.peers.glob("lib/python*/site-packages")]
    logging.getLogger("outlast").setLevel(logging.CRITICAL)
    began, parts = time.monotonic(), []
    for title, (make, least, whole) in SCENARIOS.items():
        rows = {
            name: [
                virtual(make, protect, calls=options.calls, ideal=least(options.calls), whole=whole, seed=seed)
                for seed in range(1, options.seeds + 1)
            ]
            for name, protect in CONTENDERS.items()
        }
        parts.append(table(title, rows))
        print(parts[-1], end="\n\n", flush=True)
    untuned = {name: protect for name, protect in CONTENDERS.items() if "tuned" not in name}
    calls = options.real_calls
    for title, (make, least) in REAL.items():
        rows = {name: [real(make, protect, calls=calls, ideal=least(calls))] for name, protect in untuned.items()}
        parts.append(table(f"Real requests: {calls:,} with httpx, {REAL_WIDTH} at a time, {title}", rows))
        print(parts[-1], end="\n\n", flush=True)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    complete = options.seeds >= 5 and options.calls == 10_000
    if complete:
        renew("pacing.md", "\n\n".join(parts))


if __name__ == "__main__":
    main()
