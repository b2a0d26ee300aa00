"""Each statement is asked of every subject that has the abilities it needs: in each way to protect a function, sync and async."""

from __future__ import annotations

import gc

import pytest

from conformance.adapter import SUBJECTS
from conformance.bodies import ASYNC, SYNC


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "statement(number, needs=()): the statement about protected calls that this test is part of"
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
                    values = {"subject": subject, "way": way, "mode": mode}
                    label = [subject.name, way, mode.name if "mode" in names else ""]
                    cases.append(pytest.param(*(values[name] for name in names), id="-".join(filter(None, label))))
    metafunc.parametrize(names, cases)


@pytest.fixture
def no_garbage_collection():
    """What is freed in such a test is freed by reference counting alone."""
    gc.disable()
    yield
    gc.enable()
