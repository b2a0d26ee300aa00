"""What `make conformance` loads into pytest: each test's end becomes a line of a file, and a test that hangs ends the process."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest

LIMIT = 15.0  # seconds for one test of a peer
GRACE = 5.0  # more, for a test that does not even end when it is told to

RECORD = Path(os.environ["CONFORMANCE_RECORD"])
_running = {}


def _peers():
    """The adapters, if they are in use."""
    return sys.modules.get("conformance.peers")


def _write(**line):
    with RECORD.open("a", encoding="utf-8") as record:
        record.write(json.dumps(line) + "\n")


def pytest_collection_modifyitems(config, items):
    """Leave out what an earlier process has already come to."""
    seen = {json.loads(line)["test"] for line in RECORD.read_text().splitlines()} if RECORD.exists() else set()
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in seen])
    items[:] = [item for item in items if item.nodeid not in seen and item.get_closest_marker("statement")]


def _number(item):
    return item.get_closest_marker("statement").args[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    def stuck():
        _write(test=item.nodeid, statement=_number(item), end="fails", seen="did not end")
        os._exit(9)

    timer = threading.Timer((LIMIT if _peers() else 60.0) + GRACE, stuck)
    timer.daemon = True
    timer.start()
    if _peers():
        _peers().lacked.clear()
    _running.clear()
    try:
        return (yield)
    finally:
        timer.cancel()
        if _running:
            _write(test=item.nodeid, statement=_number(item), **_running)


def _short(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr).splitlines()[-1]
    return "did not end" if "Timeout" in text and "from pytest-timeout" in text else text.splitlines()[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    lacking = _peers() is not None and (bool(_peers().lacked) or "peers.Lacking: " in str(report.longrepr))
    if lacking or report.skipped:
        _running.update(end="none", seen="")
    elif report.failed and _running.get("end") != "none":
        _running.update(end="fails", seen=_short(report))
    elif report.when == "call" and report.passed and "end" not in _running:
        _running.update(end="holds", seen="")
    return report
