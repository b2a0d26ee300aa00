"""Every boundary of a flow that undoes what it has done, and a kill at each of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import sagas


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["direct", "job"])
@pytest.mark.parametrize("where", ["sqlite", "postgres"])
def test_a_kill_at_any_boundary_misses_nothing_and_repeats_nothing(request, tmp_path, where, how):
    """
    C-21, C-22, D-17, D-20: none missed, none repeated that was on record as done, in reverse order, and what was done matches what is on
    record.
    """
    store = str(tmp_path / "whole.db") if where == "sqlite" else request.getfixturevalue("postgres").dsn
    command = [sys.executable, sagas.__file__, how, store, str(tmp_path / how)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(sagas.__file__).parent)
    assert done.returncode == 0, done.stderr
    *faults, last = done.stdout.splitlines()
    assert faults == []
    count = json.loads(last)
    assert count["kills"] > 60  # at every boundary, but for looks that a quicker run did not take
    assert count["kills"] + count["looks that did not come"] == count["boundaries"]
    assert count["looks that did not come"] < count["boundaries"] / 4
    assert count["killed again"] > 2
