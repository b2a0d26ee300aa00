"""
What a person sees of a run while it runs. A picture is a pure function of a `Snapshot`; the terminal is drawn to by `Live`, everything that
is no terminal gets a plain line now and then.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from outlast.words import counted, per_second, percent, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

WIDEST_BAR = 100  # a longer one says nothing more
_FOREVER = 1e9  # seconds; some thirty years
COLOURS = {"succeeded": "green", "degraded": "yellow", "skipped": "blue", "dead": "red"}
STATUS_COLOURS = {
    "running": "cyan",
    "completed": "green",
    "partial_success": "yellow",
    "paused": "yellow",
    "interrupted": "yellow",
    "cancelled": "yellow",
    "failed": "red",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLine:
    """Where one stage stands. `done` counts items that left it for the next one."""

    name: str
    done: int = 0
    running: int = 0
    waiting: int = 0
    retries: int = 0
    skipped: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run at one instant. `expected` is how many items there are, if that is known; `elapsed` is in seconds."""

    pipeline: str
    run_key: str
    status: str
    elapsed: float
    total: int = 0
    expected: int | None = None
    succeeded: int = 0
    degraded: int = 0
    skipped: int = 0
    dead: int = 0
    failed: int = 0
    rate: float | None = None
    waiting: int = 0
    retries: int = 0
    stages: tuple[StageLine, ...] = ()
    notices: tuple[str, ...] = ()  # an open breaker, a pause asked for by a service
    problems: tuple[tuple[int, str, str], ...] = ()  # how many, stage, what
    spent: dict[str, float] = field(default_factory=dict)

    @property
    def finished(self) -> int:
        """Items that need nothing more."""
        return self.succeeded + self.skipped + self.dead + self.failed

    @property
    def left(self) -> float | None:
        """Seconds until the end at the present rate, if both are known and anybody may live to see it."""
        if self.expected is None or not self.rate:
            return None
        seconds = max(0, self.expected - self.finished) / self.rate
        return seconds if seconds < _FOREVER else None


class Pace:
    """
    How fast a run is: finished items per second over the last `window` seconds, so that a pause shows and a burst does not last.

    >>> pace = Pace()
    >>> [pace.at(second, items) for second, items in [(0.0, 0), (1.0, 100), (2.0, 300)]]
    [None, 100.0, 150.0]
    """

    def __init__(self, window: float = 15.0) -> None:
        self._window = window
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, instant: float, finished: int) -> float | None:
        """The rate, once there is anything to compare with."""
        seen = self._seen
        seen.append((instant, finished))
        # The last one outside of the window stays: the rate then covers the whole of it.
        while len(seen) > 2 and instant - seen[1][0] >= self._window:
            seen.popleft()
        since, before = seen[0]
        return (finished - before) / (instant - since) if instant > since else None


# --- the picture --------------------------------------------------------------------------------------------------------


def picture(now: Snapshot, width: int, height: int = 1000) -> RenderableType:
    """The run for a terminal of this size; what matters least is left out first."""
    parts: list[RenderableType] = [_headline(now, width), _bar(now, width), _pace(now)]
    if now.stages:
        parts += [Text(), _stages(now, width)]
    parts += [Text(), _totals(now)]
    parts += [Text(notice, style="yellow", no_wrap=True, overflow="ellipsis") for notice in now.notices]
    used = 6 + (2 + len(now.stages) if now.stages else 0) + len(now.notices)
    parts += [_problem(*problem) for problem in now.problems[: max(0, min(5, height - used - 1))]]
    return Group(*parts)


def lines(now: Snapshot) -> Iterator[str]:
    """The run as one line of text for a log, and a line for each notice."""
    share = "" if now.expected is None else f" of {now.expected:,} ({percent(now.finished, now.expected)})"
    parts = [f"{now.finished:,}{share}"]
    if now.rate is not None:
        parts.append(per_second(now.rate))
    if now.left is not None and now.status == "running":
        parts.append(f"about {whole(now.left)} left")
    parts += [text for text, _ in _ends(now)]
    if now.retries:
        parts.append(counted(now.retries, "retry", "retries"))
    if now.waiting:
        parts.append(f"{now.waiting:,} waiting")
    yield f"{now.pipeline} {now.run_key}: {', '.join(parts)}"
    yield from now.notices


def _headline(now: Snapshot, width: int) -> Text:
    right = Text.assemble((now.status, f"bold {STATUS_COLOURS.get(now.status, '')}"), f"  {whole(now.elapsed)}")
    left = Text.assemble((now.pipeline, "bold"), "  ", (now.run_key, "dim"))
    room = min(width, WIDEST_BAR) - right.cell_len - 2
    left.truncate(max(8, room), overflow="ellipsis")
    return Text.assemble(left, " " * max(2, room + 2 - left.cell_len), right)


def _bar(now: Snapshot, width: int) -> Text:
    whole = max(now.total if now.expected is None else now.expected, now.finished, 1)
    if now.expected is None:
        label = f"  {now.finished:,} so far"
    else:
        label = f"  {now.finished:,} of {now.expected:,}  {percent(now.finished, now.expected)}"
    room = max(10, min(width, WIDEST_BAR) - len(label))
    bar = Text(no_wrap=True)
    counted_in = 0
    for kind, amount in _kinds(now):
        counted_in += amount
        # What there is must be seen, however little: one dead letter in a million items is one cell.
        end = max(bar.cell_len + 1, round(room * counted_in / whole)) if amount else bar.cell_len
        bar.append("━" * (min(end, room) - bar.cell_len), style=COLOURS[kind])
    bar.append("─" * (room - bar.cell_len), style="bright_black")
    return bar.append(label)


def _kinds(now: Snapshot) -> list[tuple[str, int]]:
    # Trouble first, so that a full bar cannot push it out.
    bad = [("dead", now.dead + now.failed), ("degraded", now.degraded), ("skipped", now.skipped)]
    return [*bad, ("succeeded", now.succeeded - now.degraded)]


def _pace(now: Snapshot) -> Text:
    parts = ["starting" if now.rate is None else per_second(now.rate)]
    if now.left is not None and now.status == "running":
        parts.append(f"about {whole(now.left)} left")
    if now.retries:
        parts.append(counted(now.retries, "retry", "retries"))
    if now.waiting:
        parts.append(f"{now.waiting:,} waiting")
    parts += [f"{amount:,.6g} {name}" for name, amount in now.spent.items()]
    return Text("   ".join(parts), no_wrap=True, overflow="ellipsis")


def _stages(now: Snapshot, width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("stage", max_width=max(10, width - 62), no_wrap=True, overflow="ellipsis")
    columns = [("done", ""), ("running", "cyan"), ("waiting", "yellow"), ("retries", "yellow"), ("skipped", "blue")]
    # A narrow terminal goes without what the totals say too.
    columns = [*(columns if width >= 62 else columns[:2]), ("dead", "red")]
    for heading, _ in columns:
        table.add_column(heading, justify="right", min_width=7)
    for stage in now.stages:
        table.add_row(stage.name, *(_quiet(getattr(stage, heading), colour) for heading, colour in columns))
    return table


def _quiet(number: int, colour: str) -> Text:
    """A number that shows only if there is something to see."""
    return Text(f"{number:,}", style=colour) if number else Text("·", style="bright_black")


def _ends(now: Snapshot) -> list[tuple[str, str]]:
    degraded = f" ({now.degraded:,} degraded)" if now.degraded else ""
    ends = [(f"{now.succeeded:,} succeeded{degraded}", "green")]
    if now.skipped:
        ends.append((f"{now.skipped:,} skipped", "blue"))
    if now.dead:
        ends.append((counted(now.dead, "dead letter"), "red"))
    if now.failed:
        ends.append((f"{now.failed:,} failed", "red"))
    return ends


def _totals(now: Snapshot) -> Text:
    ends = [*_ends(now), (f"{max(0, now.total - now.finished):,} pending", "")]
    parts: list[tuple[str, str] | str] = []
    for end in ends:
        parts += [end, "   "]
    return Text.assemble(*parts[:-1], no_wrap=True, overflow="ellipsis")


def _problem(count: int, stage: str, what: str) -> Text:
    return Text.assemble(
        (f"{count:>7,} \N{MULTIPLICATION SIGN} ", "red"),
        (f"{stage}  ", "bold"),
        what,
        no_wrap=True,
        overflow="ellipsis",
    )
