"""
Plain lines about a run that is under way, for standard error.
"""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.pipeline.runner import Runner

_EVERY = 2.0  # seconds


def lines() -> Callable[[Runner], None]:
    """Something to watch a run with: a line every two seconds, and one at the end."""
    began = monotonic()
    last = [began]

    def watch(runner: Runner) -> None:
        counts, now = runner.books.counts(), monotonic()
        if now - last[0] < _EVERY and not runner.over:
            return
        last[0] = now
        rate = counts.finished / max(now - began, 1e-9)
        end = "" if counts.source_exhausted else "+"
        print(  # noqa: T201 - asked for with progress=True
            f"{runner.plan.name}: {counts.finished}/{counts.total}{end} items, {counts.succeeded} succeeded, {counts.skipped} skipped, "
            f"{counts.dlq + counts.failed} failed, {rate:.0f}/s",
            file=sys.stderr,
        )

    return watch
