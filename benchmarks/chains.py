"""
The chain that is the same for everybody, and how it is timed: trivial steps, each of which gets what the one before has put out.

The programs in peers/ import this, each in the environment of its tool: standard library only.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

APART = 100_000  # between the first numbers of two runs
PATIENCE = 60.0  # seconds until all that was done must be on record
NOTHING = 0.1  # seconds that it takes at most to look, where all is on record already
FILE = "chain.yaml"
MODULE = "chain_steps"
#: The module of the steps has functions of its own: those that it imports would need OUTLAST_ALLOW.
STEPS = """\
import chains


def begin():
    return chains.begin()


def add(number):
    return chains.add(number)


def undo(number):
    chains.undo(number)
"""
runs = itertools.count(1)


# The work.


def begin() -> dict[str, int]:
    """The first step: a number that no other run of this process has."""
    return {"number": next(runs) * APART}


def add(number: int) -> dict[str, int]:
    """Every other step."""
    return {"number": number + 1}


def undo(number: int) -> None:
    """What would undo a step."""


def project(folder: Path, steps: int, *, guarded: bool = False) -> Path:
    """
    A folder with the chain as a pipeline file for ours, and the module that its steps are in. `guarded`: each step has something that
    undoes it, and all but the first have an idempotency key.
    """
    lines = ['oml_version: "0.1.0"', "name: chain", "steps:"]
    for place in range(steps):
        before, own = f"${{steps.s{place - 1}.outputs.number}}", f"${{steps.s{place}.outputs.number}}"
        call = f'call: "{MODULE}:add", args: {{number: "{before}"}}' if place else f'call: "{MODULE}:begin"'
        lines += [f"  - id: s{place}", "    component: python", f"    config: {{{call}}}"]
        if guarded and place:
            lines.append(f'    idempotency: {{key: "{before}"}}')
        if guarded:
            undone = f'call: "{MODULE}:undo", args: {{number: "{own}"}}'
            lines.append(f"    compensate: {{component: python, config: {{{undone}}}}}")
    (folder / f"{MODULE}.py").write_text(STEPS, encoding="utf-8")
    file = folder / FILE
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


# The stopwatch.


def asked() -> tuple[str, int, int]:
    """What the command line asks for: a case, how many steps, how many times."""
    case, steps, repeats = sys.argv[1:]
    return case, int(steps), int(repeats)


def time_it(package: str | None, run: Callable[[], int], recorded: Callable[[], int]) -> None:
    """
    Call `run` once before the clock starts, then so many times, and print one line of JSON.

    It takes one chain from begin to end and returns the last number, which proves that every step had what the one before put out.
    `recorded` says how many steps have succeeded according to the tool's own tables. Of each run there are two times: until it has
    returned, and until all of its steps are on record, for a tool that writes behind. The next one begins after that.
    """
    _, steps, repeats = asked()
    walls: list[float] = []
    settled: list[float] = []
    for number in range(1 + repeats):
        began = time.perf_counter()
        last = run()
        walls.append(time.perf_counter() - began)
        assert last % APART == steps - 1, f"expected {steps - 1} steps after the first, got: {last % APART}"
        expected = steps * (1 + number)
        while (found := recorded()) < expected and time.perf_counter() - began < PATIENCE:
            time.sleep(0.05)
        assert found == expected, f"expected {expected} steps on record, got: {found}"
        late = time.perf_counter() - began
        settled.append(late if late - walls[-1] > NOTHING else walls[-1])
    version = importlib.metadata.version(package) if package else ""
    print(json.dumps({"version": version, "walls": walls[1:], "settled": settled[1:]}), flush=True)
