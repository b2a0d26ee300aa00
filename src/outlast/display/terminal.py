"""
The picture of a run in a terminal. It is a pure function of a `Snapshot` and the size of the terminal.

What does not change stands at the top, what grows at the bottom, and every line keeps its place while it can. Colour
only repeats what the words say.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, Group
from rich.segment import Segment
from rich.text import Text

from outlast.display.graph import gutter
from outlast.display.telling import ending, pace, protections, totals, trouble
from outlast.kernel.redact import harmless, plain
from outlast.kernel.wording import percent, whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType

    from outlast.display.snapshot import Snapshot

WIDEST_BAR = 100  # a longer one says nothing more
_PROBLEMS = 5
_MOST_NAME = 32
_NARROW = 64  # below this, lines are broken in two
COLOURS = {"succeeded": "green", "degraded": "yellow", "skipped": "blue", "dead": "red"}
STATUS_COLOURS = {
    "running": "cyan",
    "stopping": "yellow",
    "completed": "green",
    "partial_success": "yellow",
    "paused": "yellow",
    "interrupted": "yellow",
    "cancelled": "yellow",
    "failed": "red",
}
# What is shown of a stage: its heading, its width, its colour, and from which width of the terminal on.
_COLUMNS = (
    ("done", 7, "", 0),
    ("running", 7, "cyan", 0),
    ("waiting", 7, "yellow", 0),
    ("throttled", 9, "yellow", _NARROW),
    ("retries", 7, "yellow", 74),
    ("skipped", 7, "blue", 74),
    ("dead", 6, "red", 0),
)
_WIDE = 120  # from here on there is room to say what protects a stage


class Screen(Console):
    """
    A terminal to which nothing is sent that it would obey, whoever wrote it; but for colours, and the cursor of our own
    pictures.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The only way of a text to the terminal."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text == "\n" or text.isprintable():
                yield segment
            else:
                yield Segment(harmless(text, lines=True), style)


def picture(now: Snapshot, width: int, height: int = 1000) -> RenderableType:
    """The run for a terminal of this size; what matters least is left out first."""
    top: list[RenderableType] = [_headline(now, width), _bar(now, width), *_second(now, width), *_totals(now, width)]
    if not now.why:
        top = top[: max(1, height - 1)]
    room = max(0, height - 1 - len(top))  # the cursor has a line of its own
    protecting = [line for line in protections(now) if not now.why or line[0] == "cost" or not line[3]]
    stages = _stages(now, width)
    needed = len(stages) + 1 + (len(protecting) + 1 if protecting else 0)
    if needed > room:
        return Group(*top, *_crowded(now, width, room, protecting))
    problems = now.problems[: max(0, min(_PROBLEMS, room - needed - 1))]
    parts = [*top, Text(), *stages]
    if protecting:
        parts += [Text(), *_protections(protecting, width, protecting)]
    if problems:
        parts += [Text(), *(_problem(*problem) for problem in problems)]
    return Group(*parts)


def _crowded(
    now: Snapshot, width: int, room: int, protecting: list[tuple[str, str, list[str], bool]]
) -> list[RenderableType]:
    """As much as fits: the stages, what holds items up, what has failed."""
    parts: list[RenderableType] = []
    stages = _stages(now, width, ends=False)
    if len(stages) <= room:
        parts += stages
        room -= len(stages)
    holding = [line for line in protecting if not line[3]][:room]
    parts += _protections(holding, width, protecting)
    return [*parts, *(_problem(*problem) for problem in now.problems[: min(_PROBLEMS, room - len(holding))])]


def _headline(now: Snapshot, width: int) -> Text:
    right = Text.assemble(
        (now.status.replace("_", " "), f"bold {STATUS_COLOURS.get(now.status, '')}"), f"  {whole(now.elapsed)}"
    )
    left = Text.assemble((plain(now.pipeline), "bold"), "  ", (plain(now.run_key), "dim"))
    room = min(width, WIDEST_BAR) - right.cell_len - 2
    left.truncate(max(8, room), overflow="ellipsis")
    return Text.assemble(left, " " * max(2, room + 2 - left.cell_len), right, no_wrap=True, overflow="ellipsis")


def _bar(now: Snapshot, width: int) -> Text:
    whole = max(now.total if now.expected is None else now.expected, now.finished, 1)
    if now.expected is None:
        label = f"  {now.finished:,} so far"
    else:
        label = f"  {now.finished:,} of {now.expected:,}  {percent(now.finished, now.expected)}"
    return bar(
        max(10, min(width, WIDEST_BAR) - len(label)),
        whole,
        dead=now.dead + now.failed,
        degraded=now.degraded,
        skipped=now.skipped,
        succeeded=now.succeeded - now.degraded,
    ).append(label)


def bar(room: int, whole: int, **kinds: int) -> Text:
    """
    Shares of a whole, one after the other. Trouble is to come first, so that a full bar cannot push it out; and what
    there is must be seen, however little: one dead letter in a million items is one cell.
    """
    drawn, counted_in = Text(no_wrap=True), 0
    for kind, amount in kinds.items():
        counted_in += amount
        end = max(drawn.cell_len + 1, round(room * counted_in / max(whole, 1))) if amount else drawn.cell_len
        drawn.append("━" * (min(end, room) - drawn.cell_len), style=COLOURS[kind])
    return drawn.append("─" * (room - drawn.cell_len), style="bright_black")


def _second(now: Snapshot, width: int) -> list[Text]:
    """What it came to, or how it ends, or how fast it goes."""
    if now.why:
        return [Text(plain(now.why), overflow="fold")]
    stopping = ending(now)
    if stopping is not None:
        return [Text(stopping, style="yellow", no_wrap=True, overflow="ellipsis")]
    # In columns: a number that gets longer moves nothing.
    rate, *left = pace(now)
    said, more = f"{rate:<15} {left[0] if left else '':<22}", "  ".join(trouble(now))
    rows = [f"{said} {more}"] if width >= _NARROW else [said, more]
    return [Text(row.rstrip(), no_wrap=True, overflow="ellipsis") for row in rows]


def _totals(now: Snapshot, width: int) -> list[Text]:
    rows = [Text(no_wrap=True, overflow="ellipsis")]
    for said, kind in totals(now):
        if rows[-1].cell_len and rows[-1].cell_len + 3 + len(said) > width:
            rows.append(Text(no_wrap=True, overflow="ellipsis"))
        rows[-1].append("   " if rows[-1].cell_len else "").append(said, style=COLOURS.get(kind, ""))
    return rows


def _stages(now: Snapshot, width: int, *, ends: bool = True) -> list[Text]:
    """A row for each stage, with the way that items take at the left; with `ends`, its source and its sink too."""
    # Not a Table: that would take more time than all the rest.
    if not now.stages:
        return []
    stages = {stage.name: stage for stage in now.stages}
    passed, arrived = Counter[str](), Counter[str]()  # of nodes that are no stages
    for edge in now.edges:
        passed[edge.start] += edge.count
        arrived[edge.end] += edge.count
    ways = gutter((edge.start, edge.end) for edge in now.edges) or [("", name) for name in stages]
    ways = [(f"{way} " if way else "", name) for way, name in ways if ends or name in stages]
    columns = [column for column in _COLUMNS if width >= column[3]]
    room = max(10, min(_MOST_NAME, width - sum(size + 2 for _, size, _, _ in columns)))
    first = min(room, max((len(way) + cell_len(plain(name)) for way, name in ways), default=0))
    wide = width >= _WIDE and any(stage.behind for stage in now.stages)
    rows: list[list[tuple[str, str]]] = []
    for _, name in ways:
        stage = stages.get(name)
        if stage is None:
            count = passed[name] if name in passed else arrived[name]
            rows.append([(f"{count:,}", "dim")])
        else:
            rows.append([_quiet(getattr(stage, heading), colour) for heading, _, colour, _ in columns])
    sizes = [
        max(size, *(len(row[place][0]) for row in rows if place < len(row)))
        for place, (_, size, _, _) in enumerate(columns)
    ]
    heads = "".join(f"  {column[0]:>{size}}" for column, size in zip(columns, sizes, strict=True))
    drawn = [Text(f"{'':{first}}{heads}{'  behind' if wide else ''}", style="dim", no_wrap=True, overflow="ellipsis")]
    for (way, name), row in zip(ways, rows, strict=True):
        stage = stages.get(name)
        called = Text.assemble((way, "bright_black"), (plain(name), "" if stage else "dim"))
        called.truncate(first, overflow="ellipsis", pad=True)
        for (text, colour), size in zip(row, sizes, strict=False):
            called.append(" " * (2 + size - len(text))).append(text, style=colour)
        if wide and stage is not None and stage.behind:
            called.append(f"  {plain(', '.join(stage.behind))}", style="dim")
        called.no_wrap, called.overflow = True, "ellipsis"
        drawn.append(called)
    return drawn


def _quiet(number: int, colour: str) -> tuple[str, str]:
    """A number that shows only if there is something to see."""
    return (f"{number:,}", colour) if number else ("·", "bright_black")


def _protections(
    lines: list[tuple[str, str, list[str], bool]], width: int, among: list[tuple[str, str, list[str], bool]]
) -> list[Text]:
    """
    A line each; as wide as all of those `among` which they are need it, so that none moves when others come and go.
    """
    kinds = max((len(kind) for kind, *_ in among), default=0)
    names = min(max((cell_len(plain(name)) for _, name, *_ in among), default=0), max(8, width // 4))
    drawn: list[Text] = []
    for kind, name, said, calm in lines:
        called = Text(plain(name))
        called.truncate(names, overflow="ellipsis", pad=True)
        words = Text("   ".join(map(plain, said)), style="" if calm else "yellow")
        line = Text.assemble((f"{kind:<{kinds}}  ", "dim"), called, "  ", words, no_wrap=True, overflow="ellipsis")
        drawn.append(line)
    return drawn


def _problem(count: int, stage: str, what: str) -> Text:
    return Text.assemble(
        (f"{count:>7,} \N{MULTIPLICATION SIGN} ", "red"),
        (f"{plain(stage)}  ", "bold"),
        plain(what),
        no_wrap=True,
        overflow="ellipsis",
    )
