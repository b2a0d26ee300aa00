"""What tests of steps get: nothing that a component has opened may stay open."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from pathlib import Path

import pytest


def sockets() -> set[str]:
    """The sockets that this process has open."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder itself is one of them
            found.add(str(one.readlink()))
    return {one for one in found if one.startswith("socket:")}


@pytest.fixture(autouse=True)
def nothing_stays_open(request):
    """Every connection is closed, whatever became of the step."""
    if "server" in request.fixturenames:
        request.getfixturevalue("server")  # which closes after this looked
    before = sockets()
    yield
    if (children := sys.modules.get("outlast.isolation.processes")) is not None:
        children._pool.close()  # no component's: they wait for further attempts
    gc.collect()
    assert sockets() - before == set()
