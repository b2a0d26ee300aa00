"""
Watching a run from a command: it is shown, the state of its breakers is kept on record, and what `outlast breaker` asks
for is done.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from outlast.display.watch import Lines, Terminal, Watch, in_terminal
from outlast.report.views import Views
from outlast.store.faults import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.pipeline.pipeline import Pipeline
    from outlast.pipeline.view import RunView


def watching(
    how: str | None,
    expected: Callable[[], int | None] = lambda: None,
    started: Callable[[RunView], None] | None = None,
    *,
    of: Pipeline[Any, Any],
) -> Watch:
    """What watches runs of a pipeline; `how` is live, lines or None. Its breakers are looked after."""
    breakers = {part.name: part for stage in of.stages if (part := stage.guard.breaker) is not None}

    def look_after(_: RunView) -> None:
        Views(of.app.store).look_after(breakers)

    def first(view: RunView) -> None:
        with suppress(StoreError):  # asked again every second
            look_after(view)  # before the first call: what was asked while nothing ran
        if started is not None:
            started(view)

    # The report follows: the picture goes, and lines need no last one.
    screen = Terminal(keep=False) if how == "live" else Lines(keep=False) if how == "lines" else None
    return Watch(screen, expected, started=first, every_second=look_after)


# --- how it is shown ------------------------------------------------------------------------------------------------------


def way_to_show(*, wanted: bool | None) -> str | None:
    """How progress is shown: live in a terminal, else in lines, or not at all."""
    terminal = in_terminal()
    if wanted is None:
        return "live" if terminal else None
    return ("live" if terminal else "lines") if wanted else None
