"""The runners of runs, for tests that end a run from inside of it. Nothing outside of a run has its runner."""

from __future__ import annotations

from contextlib import contextmanager
from unittest.mock import patch

from outlast.pipeline.engine.runner import Runner


@contextmanager
def captured():
    """A list of the runners that are made meanwhile."""
    runners, begin = [], Runner.__init__

    def init(runner, *args):
        begin(runner, *args)
        runners.append(runner)

    with patch.object(Runner, "__init__", init):
        yield runners
