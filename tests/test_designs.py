"""
The five designs that Outlast grew from, as programs in `examples/designs`: each is run as people run it, and the whole of what it prints is
compared. What is exact in them is asserted by their parts as well.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import outlast
from forked import Forked
from outlast.testing import virtual_time

ROOT = Path(__file__).resolve().parent.parent
DESIGNS = ROOT / "examples" / "designs"
GOLDEN = ROOT / "tests" / "golden" / "designs"


def printed(name, folder):
    """What the program prints, in a folder that is empty before and after."""
    environment = {key: value for key, value in os.environ.items() if key != "OUTLAST_STORE"}
    command = [sys.executable, str(DESIGNS / f"{name}.py")]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Forked(command, cwd=folder, env=environment, **streams) as process:
        out, err = process.communicate(timeout=200)
    assert (process.returncode, err, list(folder.iterdir())) == (0, "", [])
    return out


def part(name):
    """The program as a module, which runs nothing."""
    spec = importlib.util.spec_from_file_location(f"design_{name}", DESIGNS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expected(name):
    return (GOLDEN / f"{name}.txt").read_text()


# --- 000: steps ---


def test_steps_tell_their_story(tmp_path):
    """S0-13, S0-17, S0-21, S0-23, S0-24, S0-26, S0-37, S0-38, S0-39, S0-40: retries, an end, undoing, a key that is known, a circuit."""
    assert printed("steps", tmp_path) == expected("steps")


def test_steps_have_the_blocks_of_the_document():
    """S0-02, S0-04, S0-05, S0-06, S0-07, S0-08, S0-22, S0-31: each block as it stands there, and its schedule before anything runs."""
    from spec import seed

    text = (DESIGNS / "steps.yaml").read_text()
    for name in ("retry", "timeout", "compensate", "circuit_breaker"):
        block = re.search(rf"^    {name}:\n(?:(?:      .*)?\n)*", seed.BLOCKS[name], re.MULTILINE)[0].strip("\n")
        assert block in text, name
    assert "cache_ttl_s: 3600  # Remember for 1 hour" in text
    manifest = outlast.Flow.load(DESIGNS / "steps.yaml").manifest
    assert [(one.nominal, one.min, one.max) for one in manifest["extract-data"].schedule] == [
        (1, 0.9, 1.1),
        (2, 1.8, 2.2),
    ]


def test_waits_of_steps_are_inside_their_bands():
    """What the story is compared with is right (S0-06, S0-09, S0-11): one and two seconds, give or take a tenth; none after the last attempt."""
    waits = [int(wait) for wait in re.findall(r"extract-data: attempt . failed .*next in (\d+) ms", expected("steps"))]
    assert len(waits) == 4
    assert all(900 <= wait <= 1100 for wait in waits[::2])
    assert all(1800 <= wait <= 2200 for wait in waits[1::2])


# --- 001: jobs ---


def test_jobs_tell_their_story(tmp_path):
    """S1-01, S1-04, S1-08, S1-11, S1-12, S1-13, S1-14, S1-15, S1-16, S1-17, S1-21, S1-22, S1-23: the chain, its errors, its states, a requeue and the figures."""
    assert printed("jobs", tmp_path) == expected("jobs")


def test_waits_of_jobs_are_inside_their_bands():
    """What the story is compared with is right (S1-05, S1-06, S1-07): 30, 120 and 480 seconds, give or take a fifth."""
    waits = [float(wait) for wait in re.findall(r"next run in ([\d.]+) s", expected("jobs"))]
    bands = [(24, 36), (96, 144), (384, 576)] * 2
    assert len(waits) == len(bands)
    assert all(low <= wait <= high for wait, (low, high) in zip(waits, bands, strict=True))


# --- 002: tiers ---


def test_tiers_tell_their_story(tmp_path):
    """S2-11, S2-16, S2-17, S2-18, S2-19, S2-20, S2-21, S2-22, S2-24: the worked examples, the log, and ten rows of which seven come through."""
    assert printed("tiers", tmp_path) == expected("tiers")


def test_worked_examples_of_tiers_are_exact(tmp_path):
    """S2-01, S2-02, S2-03, S2-04, S2-05, S2-06, S2-14: 4 calls in 7 s, 3 in 3 s, 1 in 0 s, 4 in 14 s, 3 in 3 s; five retries at most."""
    tiers = part("tiers")
    write = tiers.pool_exhausted(tmp_path, locked=3)
    found = [
        tiers.attempted("database", write),
        tiers.attempted("network", tiers.failing(TimeoutError(), TimeoutError())),
        tiers.attempted("data", tiers.failing(ValueError("Field 'scale': Must be non-negative"))),
        tiers.attempted("limited", tiers.failing(*[tiers.http(429)] * 3), base=2.0),
        tiers.attempted("server", tiers.failing(*[tiers.http(500)] * 3)),
        tiers.attempted("unknown", tiers.failing(RuntimeError())),
    ]
    write.close()
    write = tiers.pool_exhausted(tmp_path, locked=5)
    found.append(tiers.attempted("database", write))
    write.close()
    write = tiers.pool_exhausted(tmp_path, locked=6)
    found.append(tiers.attempted("database", write))
    write.close()
    assert found == [
        ("written by call 4", [1, 2, 4]),
        ("answered by call 3", [1, 2]),
        ("gave up: ValueError", []),
        ("answered by call 4", [2, 4, 8]),
        ("gave up: HTTPError", [1, 2]),
        ("gave up: RuntimeError", []),
        ("written by call 6", [1, 2, 4, 8, 16]),
        ("gave up: OperationalError", [1, 2, 4, 8, 16]),
    ]


# --- 003: items ---


def test_items_tell_their_story(tmp_path):
    """S3-01, S3-03, S3-04, S3-06, S3-07, S3-08, S3-11, S3-20, S3-22, S3-23, S3-26, S3-28, S3-30: policies, thresholds, dead letters, a budget, the analyses."""
    assert printed("items", tmp_path) == expected("items")


def test_waits_of_items_are_inside_their_bands():
    """S3-10, S3-12, S3-14, S3-15, S3-16: the waits of the two policies, and of those in the run."""
    items = part("items")
    for policy, longest in ((items.LLM_POLICY, 30_000), (items.RetryPolicy(), 60_000)):
        for attempt, nominal in ((1, 1000), (2, 2000), (3, 4000), (10, longest)):
            rolls = [items.compute_delay(attempt, policy, roll=roll) for roll in (0.0, 0.5, 1.0)]
            assert rolls == [nominal * 0.75, nominal, nominal * 1.25]
    bands = {"1": (750, 1250), "2": (1500, 2500)}
    waits = re.findall(r"attempt (\d) failed, next in (\d+) ms", expected("items"))
    assert len(waits) == 5
    assert all(bands[attempt][0] <= int(wait) <= bands[attempt][1] for attempt, wait in waits)


# --- 004: degradation ---


def test_degradation_tells_its_story(tmp_path):
    """S4-06, S4-10, S4-12, S4-13, S4-14, S4-18, S4-19, S4-22, S4-25, S4-26: retries, the circuit, the folder of letters, what was done all the same."""
    assert printed("degradation", tmp_path) == expected("degradation")


def test_waits_of_degradation_are_inside_their_bands(capsys):
    """S4-02, S4-03, S4-04: three calls, one to two and two to three seconds apart; exactly one and two without jitter."""
    import asyncio

    degradation = part("degradation")
    for seed in range(20):
        with virtual_time(seed=seed) as time:
            asyncio.run(degradation.retries(time))
        assert 1 <= time.sleeps[0] <= 2 <= time.sleeps[1] <= 3
        assert time.sleeps[2:] == [1, 2]
    assert "gave up after 3 calls and waits of [1.0, 2.0]" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(DESIGNS.glob("*.py")), ids=lambda path: path.stem)
def test_each_design_says_which_document_it_follows_and_how_it_is_run(path):
    """Whoever opens a program knows what it shows."""
    said = " ".join(part(path.stem).__doc__.split())
    assert re.search(r"design of seed document 00[0-4]", said)
    assert f"Run it: ``python examples/designs/{path.name}``" in said
