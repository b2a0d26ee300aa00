"""
The stopwatch: times every contender in rounds and prints the figures as JSON.

Runs inside the peers' environment; `run.py` starts it and reads its output.
Contenders take turns: in each round every one of them runs a short loop, and
the order rotates from round to round. A ratio compares a contender with the
floor of the same round, so that a machine which slows down for a while slows
both. The figures are medians with their quartiles.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import importlib.metadata
import itertools
import json
import logging
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
import types
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from scenarios import MEMORY, NONE, PROGRAMS, TIMED

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from scenarios import Contender, Fn, Scenario

CALLS_PER_TURN = 10  # calls written out in one turn of the loop, so that the loop itself hardly counts
FUNCTIONS = 1_000

Spread = tuple[float, float, float]  # lower quartile, median, upper quartile
Sample = Callable[[int], int]  # turns of the loop to nanoseconds


@dataclass(frozen=True, slots=True)
class Row:
    """One contender in one table: nanoseconds, milliseconds or bytes."""

    library: str
    label: str
    value: Spread
    ratio: Spread | None = None
    asyncio: bool | None = None


@dataclass(frozen=True, slots=True)
class Table:
    id: str
    title: str
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int
    nanoseconds: int  # one contender, one round
    starts: int  # fresh interpreters for each program


FULL = Effort(rounds=121, nanoseconds=2_500_000, starts=25)
QUICK = Effort(rounds=21, nanoseconds=1_500_000, starts=5)


def spread(values: Sequence[float]) -> Spread:
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


# The loops. Each contender gets a copy of the code of its own: the interpreter adapts a call site to what it calls.


def sync_loop(call: Fn, turns: int) -> int:
    start = time.perf_counter_ns()
    for _ in range(turns):
        call(1)
        call(1)
        call(1)
        call(1)
        call(1)
        call(1)
        call(1)
        call(1)
        call(1)
        call(1)
    return time.perf_counter_ns() - start


async def coro_loop(call: Fn, turns: int) -> int:
    start = time.perf_counter_ns()
    for _ in range(turns):
        await call(1)
        await call(1)
        await call(1)
        await call(1)
        await call(1)
        await call(1)
        await call(1)
        await call(1)
        await call(1)
        await call(1)
    return time.perf_counter_ns() - start


def own_copy(function: Fn) -> Fn:
    return types.FunctionType(function.__code__.replace(), function.__globals__)


def make_body(*, coro: bool, failures: int) -> Fn:
    """The function to protect: every call that is seen through fails `failures` times, then returns its argument."""
    fails = itertools.cycle([True] * failures + [False])

    def work(x: int) -> int:
        return x

    async def awork(x: int) -> int:
        return x

    def flaky(x: int) -> int:
        if next(fails):
            raise ConnectionResetError("the other side went away")
        return x

    async def aflaky(x: int) -> int:
        if next(fails):
            raise ConnectionResetError("the other side went away")
        return x

    if failures:
        return aflaky if coro else flaky
    return awork if coro else work


@contextmanager
def no_waiting() -> Generator[None]:
    """Make both sleeps return at once, for everyone: what is left is the library's own work."""

    def sleep(_: float) -> None:
        return None

    async def asleep(_: float, result: Any = None) -> Any:
        return result

    with mock.patch.object(time, "sleep", sleep), mock.patch.object(asyncio, "sleep", asleep):
        yield


def prepare(scenario: Scenario, contender: Contender, runner: asyncio.Runner) -> Sample | None:
    """Build the protected function, see that it works, and return the loop that times it."""
    wrap = contender.coro if scenario.coro else contender.sync
    if wrap is None:
        return None
    call = wrap(make_body(coro=scenario.coro, failures=scenario.failures))
    loop = own_copy(coro_loop if scenario.coro else sync_loop)

    def sample(turns: int) -> int:
        outcome = loop(call, turns)
        return int(runner.run(outcome) if scenario.coro else outcome)

    async def once() -> Any:
        return await call(1)

    for _ in range(3):
        answer = runner.run(once()) if scenario.coro else call(1)
        if answer != 1:
            raise RuntimeError(f"{contender.library} {contender.label} returned {answer!r} in {scenario.id}")
    return sample


def turns_for(sample: Sample, nanoseconds: int) -> int:
    """How many turns fill the time, after a warm-up."""
    sample(5)
    turns = 1
    while (spent := sample(turns)) < nanoseconds / 4:
        turns *= 2
    return max(1, round(turns * nanoseconds / max(spent, 1)))


def take_turns(samples: Sequence[Sample], effort: Effort) -> list[list[float]]:
    """Nanoseconds per call, by contender and round."""
    turns = [turns_for(sample, effort.nanoseconds) for sample in samples]
    figures: list[list[float]] = [[] for _ in samples]
    for number in range(effort.rounds):
        gc.collect()
        for place in range(len(samples)):
            which = (place + number) % len(samples)
            figures[which].append(samples[which](turns[which]) / (turns[which] * CALLS_PER_TURN))
    return figures


def time_scenario(scenario: Scenario, chosen: Sequence[Contender], effort: Effort) -> Table:
    with nullcontext() if scenario.sleeps else no_waiting(), asyncio.Runner() as runner:
        built = [(contender, prepare(scenario, contender, runner)) for contender in chosen]
        able = [(contender, sample) for contender, sample in built if sample is not None]
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            figures = take_turns([sample for _, sample in able], effort)
        finally:
            gc.enable()
            gc.unfreeze()
    floor = next(mine for (contender, _), mine in zip(able, figures, strict=True) if contender.is_floor)
    rows = [
        Row(
            contender.library,
            contender.label,
            spread(mine),
            spread([one / base for one, base in zip(mine, floor, strict=True)]),
        )
        for (contender, _), mine in zip(able, figures, strict=True)
    ]
    return Table(scenario.id, scenario.title, rows)


# A fresh interpreter.


def interpreter(program: str) -> tuple[float, str]:
    """Milliseconds for one interpreter from start to exit, and what it printed."""
    start = time.perf_counter_ns()
    done = subprocess.run([sys.executable, "-I", "-c", program], check=True, capture_output=True, text=True)
    return (time.perf_counter_ns() - start) / 1e6, done.stdout.strip()


def time_imports(libraries: Sequence[str], effort: Effort) -> Table:
    """What each program adds to the bare interpreter that was started just before it."""
    loads = {
        name: interpreter(f"{PROGRAMS[name]}\nimport sys\nprint('asyncio' in sys.modules)")[1] for name in libraries
    }
    bare: list[float] = []
    added: dict[str, list[float]] = {name: [] for name in libraries}
    for _ in range(effort.starts):
        for name in libraries:
            bare.append(interpreter("pass")[0])
            added[name].append(interpreter(PROGRAMS[name])[0] - bare[-1])
    rows = [Row(NONE, "bare interpreter", spread(bare), asyncio=False)]
    rows += [Row(name, "", spread(mine), asyncio=loads[name] == "True") for name, mine in added.items()]
    return Table("import", "Import and first use, added to a bare interpreter", rows)


# Memory.


def bytes_each(contender: Contender) -> float:
    """Bytes that one decorated function keeps, its undecorated original not counted, after a first call."""
    assert contender.sync is not None
    bodies = [make_body(coro=False, failures=0) for _ in range(FUNCTIONS)]
    kept: list[Any] = [None] * FUNCTIONS
    contender.sync(make_body(coro=False, failures=0))(1)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for index, body in enumerate(bodies):
            kept[index] = contender.sync(body)
            kept[index](1)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / FUNCTIONS


def weigh(chosen: Sequence[Contender]) -> Table:
    rows: list[Row] = []
    for contender in chosen:
        weight = bytes_each(contender)
        rows.append(Row(contender.library, contender.label, (weight, weight, weight)))
    return Table("memory", "Memory kept by one decorated function", rows)


def pin() -> bool:
    """Stay on one processor, where the system lets a process say so."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    return True


def measure(only: Sequence[str], libraries: Sequence[str], effort: Effort) -> Iterator[Table]:
    def chosen(contenders: Sequence[Contender]) -> list[Contender]:
        return [one for one in contenders if one.library == NONE or not libraries or one.library in libraries]

    for scenario in TIMED:
        if not only or scenario.id in only:
            yield time_scenario(scenario, chosen(scenario.contenders), effort)
    if not only or "import" in only:
        yield time_imports([name for name in PROGRAMS if not libraries or name in libraries], effort)
    if not only or "memory" in only:
        yield weigh(chosen(MEMORY))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--libraries", nargs="*", default=[])
    options = parser.parse_args()
    # Logging as an application finds it: warnings are made into records, but nothing is printed.
    logging.getLogger().addHandler(logging.NullHandler())
    pinned = pin()
    tables: list[dict[str, Any]] = []
    for table in measure(options.only, options.libraries, QUICK if options.quick else FULL):
        print(table.title, file=sys.stderr, flush=True)
        tables.append(dataclasses.asdict(table))
    versions = {
        name: importlib.metadata.version(name)
        for name in PROGRAMS
        if name in options.libraries or not options.libraries
    }
    python = f"{sys.implementation.name} {sys.version.split()[0]}"
    json.dump({"python": python, "pinned": pinned, "versions": versions, "tables": tables}, sys.stdout)


if __name__ == "__main__":
    main()
