"""
The work that is the same for everybody, and how it is timed: three stages that do next to nothing, so that what is left is the tool's own cost.

The programs in peers/ import this, each in the environment of its tool: standard library only.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

WIDTH = 100  # items at work at a time, where a program says so itself
ATTEMPTS = 3  # of a stage, where a tool tries again
WARM = 10  # items that go through before the clock starts


def first(item: int) -> int:
    return item + 1


def second(item: int) -> int:
    return item * 2


def third(item: int) -> int:
    return item - 1


async def afirst(item: int) -> int:
    return item + 1


async def asecond(item: int) -> int:
    return item * 2


async def athird(item: int) -> int:
    return item - 1


async def pool(items: int, steps: Sequence[Callable[[int], Awaitable[int]]], *, yields: bool = True) -> int:
    """
    The floor: as many tasks as may work at a time, one iterator, nothing on record. Steps that wait by themselves need no turn from it.
    """
    source = iter(range(items))

    async def worker() -> int:
        total = 0
        for item in source:
            value = item
            for step in steps:
                value = await step(value)
            total += value
            if yields:
                await asyncio.sleep(0)
        return total

    return sum(await asyncio.gather(*(worker() for _ in range(WIDTH))))


def asked() -> tuple[str, int, int]:
    """What the command line asks for: a case, how many items, how many times."""
    case, items, repeats = sys.argv[1:]
    return case, int(items), int(repeats)


def time_it(package: str | None, run: Callable[[int], int]) -> None:
    """
    Call `run` with a number of items so many times and print one line of JSON.

    It takes the items ``range(number)`` through the stages and returns the sum of what came out, which proves that each went through.
    """
    _, items, repeats = asked()
    walls: list[float] = []
    assert run(WARM) == WARM**2
    ready = time.time()
    for _ in range(repeats):
        began = time.perf_counter()
        total = run(items)
        walls.append(time.perf_counter() - began)
        assert total == items**2, f"expected the sum {items**2}, got: {total}"
    version = importlib.metadata.version(package) if package else ""
    print(json.dumps({"version": version, "ready": ready, "walls": walls}), flush=True)
