"""
Each statement is asked of every subject that has the abilities it needs: in each way to protect a function, sync and async; and of decorated
functions once more in the lane that they would not take here by themselves.
"""

from __future__ import annotations

import gc
from contextlib import nullcontext

import pytest

from conformance.adapter import SUBJECTS
from conformance.bodies import ASYNC, SYNC

SCOPES = frozenset(
    {"clock", "virtual_time", "events", "off"}
)  # what needs one of these opens a scope, and then all calls go by the flow


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "statement(number, needs=(), lanes=True): the statement about protected calls that this test is part of; "
        "without lanes if how a call goes through the library says nothing about it",
    )


def pytest_generate_tests(metafunc):
    if "subject" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("statement")
    needs = marker.kwargs["needs"] if marker else frozenset()
    names = [name for name in ("subject", "way", "mode") if name in metafunc.fixturenames]
    cases = []
    for subject in SUBJECTS.values():
        if not needs <= subject.abilities:
            continue
        for way in subject.ways if "way" in names else ("",):
            for mode in (SYNC, ASYNC) if "mode" in names else (SYNC,):
                if mode is SYNC or "async" in subject.abilities:
                    for lane in ("", *other_lanes(subject, way, marker)):
                        values = {"subject": subject, "way": way, "mode": mode}
                        label = [subject.name, way, mode.name if "mode" in names else "", lane]
                        shown = "-".join(filter(None, label))
                        cases.append(pytest.param(*(values[name] for name in names), (subject, lane), id=shown))
    metafunc.parametrize([*names, "lane"], cases, indirect=["lane"])


def other_lanes(subject, way, marker):
    """The one that a decorated function would not take in this test by itself; with ways, one of them takes the flow anyhow."""
    if not subject.lanes or marker is None or not marker.kwargs["lanes"]:
        return []
    flow, short_way = subject.lanes
    if SCOPES & marker.kwargs["needs"]:
        return [short_way] if way in {"", "decorator", "guard"} else []
    return [] if way else [flow]


@pytest.fixture(autouse=True)
def lane(request):
    """The lane that decorated functions take in this test; "" is the one that they take by themselves."""
    subject, name = getattr(request, "param", (None, ""))
    with subject.on(name) if name else nullcontext():
        yield name


@pytest.fixture
def no_garbage_collection():
    """What is freed in such a test is freed by reference counting alone."""
    gc.disable()
    yield
    gc.enable()
