"""
A flow's run while it runs, for people: a line for each step beside the graph, in a terminal, in a notebook, or as a line
for each change in a log.

    FlowNow   what is known at one instant, with how long things take by now
    picture   for a terminal; page: for a notebook; changes: what differs from the look before, as lines
    FlowWatch what a run is watched with; shown: the same for `Flow.run(progress=True)`
"""

from __future__ import annotations

import sys
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from outlast.display.graph import gutter
from outlast.display.watch import LINES, LIVE, Notebook, Terminal, Watching, in_notebook, in_terminal
from outlast.kernel.clock import here
from outlast.kernel.redact import plain
from outlast.kernel.wording import counted, duration, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import RenderableType
    from rich.text import Text

    from outlast.display.watch import Screen
    from outlast.flow.opening import FlowPlan
    from outlast.flow.view import FlowView, StepView

MOST_LANES = 20  # edges side by side that the graph is drawn with
_MOST_NAME = 32
_MOST_SAID = 300  # characters of an error
_FEWEST = 16  # columns that are worth the beginning of an error
#: What a step is called in each of its states, and its colour.
STATES = {
    "pending": ("pending", "bright_black"),
    "running": ("running", "cyan"),
    "waiting": ("waiting", "yellow"),
    "succeeded": ("succeeded", "green"),
    "cached": ("done before", "green"),
    "partial_success": ("incomplete", "yellow"),
    "failed": ("failed", "red"),
    "skipped": ("not begun", "bright_black"),
    "undoing": ("undoing", "yellow"),
    "compensating": ("undo begun", "yellow"),
    "compensated": ("undone", "blue"),
    "compensation_failed": ("not undone", "red"),
}
_DONE = ("succeeded", "cached")
_UNDONE = ("compensated", "compensating", "undoing")
_BAD = {"failed", "partial_success", "compensation_failed"}
_QUIET = {"pending", "skipped"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNow:
    """
    A step at one instant. `state` is one of `STATES`; `said` are words about it, the most important first; `error` is the
    last one, with its class, unless it has come to nothing.
    """

    id: str
    component: str
    needs: tuple[str, ...]
    state: str
    said: tuple[str, ...] = ()
    error: str = ""

    @property
    def word(self) -> str:
        return STATES[self.state][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowNow:
    """A run at one instant. `status` is ``running`` until it is over; `ending` says why nothing more is begun."""

    run_key: str
    pipeline: str
    status: str
    elapsed: float
    steps: tuple[StepNow, ...]
    why: str = ""
    ending: str = ""
    changes: tuple[str, ...] = field(default=(), compare=False)  # lines that nobody has seen yet

    @property
    def done(self) -> int:
        """Steps that are done."""
        return sum(step.state in _DONE for step in self.steps)

    @property
    def edges(self) -> list[tuple[str, str]]:
        return [(before, step.id) for step in self.steps for before in step.needs]

    @property
    def counts(self) -> Mapping[str, int]:
        """How many steps are in which state, by the word for it."""
        found: dict[str, int] = {}
        for state, (word, _) in STATES.items():
            number = sum(step.state == state for step in self.steps)
            if number:
                found[word] = number
        return found


def now_of(view: FlowView, elapsed: float) -> FlowNow:
    """A view as it is to be told now."""
    result = view.result
    return FlowNow(
        run_key=view.run_key,
        pipeline=view.pipeline,
        status="running" if result is None else result.status,
        elapsed=elapsed,
        steps=tuple(_step(step) for step in view.steps),
        why="" if result is None else result.why,
        ending="" if result is not None else _ending(view),
    )


def _ending(view: FlowView) -> str:
    """Why nothing more is begun, and what can be done about what still runs; nothing while all goes on."""
    if view.undoing:
        again = "" if view.requested is None else ", to its end. Ctrl-C again does not wait"
        return f"undoing what has been done{again}"
    if view.requested is None:
        return ""
    running = sum(step.status == "running" for step in view.steps)
    under_way = f"{counted(running, 'step')} may end" if running else "nothing more is begun"
    return f"winding down: {under_way}. Ctrl-C again does not wait"


def _step(step: StepView) -> StepNow:
    state = _state(step)
    troubled = state not in {*_DONE, "pending", "skipped", "compensated"} and (state != "running" or step.attempt > 1)
    kind = f"{step.error_class}: " if step.error_class else ""
    return StepNow(
        id=plain(step.id),
        component=plain(step.component),
        needs=tuple(plain(one) for one in step.needs),
        state=state,
        said=tuple(_said(step, state)),
        error=plain(f"{kind}{step.error}")[:_MOST_SAID] if step.error and troubled else "",
    )


def _state(step: StepView) -> str:
    if step.undoing:
        return "undoing"
    if step.status == "running" and step.waiting and _left(step) > 0:
        return "waiting"
    return "waiting" if step.status == "pending" and step.due_at is not None else step.status


def _left(step: StepView) -> float:
    """Seconds until the next attempt is due."""
    return 0.0 if step.due_at is None else (step.due_at - here.get().clock.now()).total_seconds()


def _said(step: StepView, state: str) -> Iterator[str]:
    attempt, most = step.attempt, step.max_attempts
    waits = step.waiting or state == "waiting"
    if state in {"running", "undoing", "waiting"}:
        if waits and (left := _left(step)) > 0:
            following = min(most, attempt + 1)
            yield f"attempt {following} of {most} in {whole(left)}" if attempt else f"begins in {whole(left)}"
        elif most > 1 or attempt > 1:
            yield f"attempt {max(1, attempt + waits)} of {most}"
        if not waits and step.started_at is not None:
            yield whole((here.get().clock.now() - step.started_at).total_seconds())
    elif state in _BAD:
        if attempt:
            yield counted(attempt, "attempt")
    elif state in _DONE and attempt > 1:
        yield counted(attempt, "attempt")
    if step.took is not None and state in {"succeeded", "partial_success", "failed"}:
        yield duration(step.took)
    if step.counts:
        yield rows_told(step.counts)


_ROWS = {"dlq": ("dead letter", "dead letters"), "total": ("row", "rows")}


def rows_told(counts: Mapping[str, int]) -> str:
    """
    What has become of the rows or items of a step.

    >>> rows_told({"total": 1200, "succeeded": 300, "skipped": 0, "dlq": 1})
    '1,200 rows, 300 succeeded, 1 dead letter'
    """
    said = [
        counted(number, *_ROWS[name]) if name in _ROWS else f"{number:,} {name}"
        for name, number in counts.items()
        if number
    ]
    return ", ".join(said) or "no rows yet"


# --- in a terminal ------------------------------------------------------------------------------------------------------


def picture(now: FlowNow, width: int, height: int = 1000) -> RenderableType:
    """The run for a terminal of this size; where it is low, steps that are done or not begun are left out first."""
    from rich.console import Group
    from rich.text import Text

    top = [_headline(now, width), _bar(now, width)]
    if now.why:
        top.append(Text(plain(now.why), overflow="fold"))
    elif now.ending:
        top.append(Text(now.ending, style="yellow", no_wrap=True, overflow="ellipsis"))
    room = max(0, height - 1 - len(top) - 1)  # the cursor has a line of its own
    rows = step_lines(now, width)
    if len(rows) > room:
        rows = _crowded(now, width, room)
    return Group(*top, *([Text()] if room and rows else []), *rows)


def _headline(now: FlowNow, width: int) -> Text:
    from rich.text import Text

    from outlast.display.terminal import STATUS_COLOURS, WIDEST_BAR

    right = Text.assemble((now.status, f"bold {STATUS_COLOURS.get(now.status, '')}"), f"  {whole(now.elapsed)}")
    left = Text.assemble((plain(now.pipeline), "bold"), "  ", (plain(now.run_key), "dim"))
    room = min(width, WIDEST_BAR) - right.cell_len - 2
    left.truncate(max(8, room), overflow="ellipsis")
    return Text.assemble(left, " " * max(2, room + 2 - left.cell_len), right, no_wrap=True, overflow="ellipsis")


def _bar(now: FlowNow, width: int) -> Text:
    from outlast.display.terminal import WIDEST_BAR, bar

    bad = sum(step.state in _BAD for step in now.steps)
    undone = sum(step.state in _UNDONE for step in now.steps)
    label = f"  {now.done:,} of {counted(len(now.steps), 'step')}"
    room = max(10, min(width, WIDEST_BAR) - len(label))
    return bar(room, max(1, len(now.steps)), dead=bad, skipped=undone, succeeded=now.done).append(label)


def step_lines(now: FlowNow, width: int) -> list[Text]:
    """A line for each step, with the graph at the left if there is room for it."""
    ways = gutter(now.edges, [step.id for step in now.steps], MOST_LANES)
    lanes = {name: f"{lines} " for lines, name in ways}
    if ways and len(ways[0][0]) > width // 4:
        lanes = {}
    return _lines(now.steps, lanes, width)


def _lines(steps: Sequence[StepNow], lanes: Mapping[str, str], width: int) -> list[Text]:
    from rich.cells import cell_len
    from rich.text import Text

    before = max((len(lane) for lane in lanes.values()), default=0)
    names = min(_MOST_NAME, max(8, width // 3), max((cell_len(step.id) for step in steps), default=0))
    words = max((len(step.word) for step in steps), default=0)
    drawn: list[Text] = []
    for step in steps:
        style = STATES[step.state][1]
        called = Text(step.id, style="dim" if step.state in _QUIET else "")
        called.truncate(names, overflow="ellipsis", pad=True)
        line = Text.assemble((lanes.get(step.id, "").ljust(before), "bright_black"), called, "  ")
        line.append(step.word.ljust(words), style=style)
        for said in step.said:
            line.append(f"  {said}")
        if step.error and width - line.cell_len - 2 >= min(_FEWEST, len(step.error)):
            line.append(f"  {step.error}", style="yellow" if step.state in {"waiting", "running", "undoing"} else "red")
        line.no_wrap, line.overflow = True, "ellipsis"
        drawn.append(line)
    return drawn


def _crowded(now: FlowNow, width: int, room: int) -> list[Text]:
    """As much as fits: what runs, waits, has failed or is undone, and how many there are of the others."""
    from rich.text import Text

    if room <= 0:
        return []
    rank = [
        "running",
        "undoing",
        "waiting",
        "failed",
        "compensation_failed",
        "partial_success",
        "compensating",
        "compensated",
    ]
    rank += ["pending", "succeeded"]
    order = sorted(now.steps, key=lambda step: rank.index(step.state) if step.state in rank else len(rank))
    chosen = {step.id for step in order[: room - 1]}
    shown = [step for step in now.steps if step.id in chosen]
    hidden = replace(now, steps=tuple(step for step in now.steps if step.id not in chosen)).counts
    told = ", ".join(f"{number:,} {word}" for word, number in hidden.items())
    return [*_lines(shown, {}, width), Text(f"and {told}", style="dim", no_wrap=True, overflow="ellipsis")]


# --- as lines -----------------------------------------------------------------------------------------------------------


def changes(before: FlowView | None, view: FlowView) -> list[str]:
    """What differs from the view before, a line for each step that has changed."""
    known = {} if before is None else {step.id: step for step in before.steps}
    who = plain(f"{view.pipeline} {view.run_key}")
    said: list[str] = []
    for step in view.steps:
        was = known.get(step.id)
        if was is not None and _mark(was) == _mark(step):
            continue
        now = _step(step)
        if now.state in _QUIET and (was is None or was.status in _QUIET):
            continue
        line = _line(step, now)
        if now.state in _QUIET and not step.begun:  # it was about to begin when the run began to end
            line = f"{now.id}: not begun after all"
        same = was is not None and (was.status, was.waiting) == (step.status, step.waiting)
        if was is not None and same and _line(was, _step(was)) == line:
            continue  # what differs is nothing that is told
        said.append(f"{who}: {line}")
    told = _ending(view) if view.result is None else ""
    if told and (before is None or (before.undoing, before.requested) != (view.undoing, view.requested)):
        said.insert(0, f"{who}: {told}")
    if view.result is not None:
        status, why = view.result.status, view.result.why
        said.append(plain(f"{who}: {why if why.startswith(f'{status}:') else f'{status}: {why}'}"))
    return said


def _line(step: StepView, now: StepNow) -> str:
    parts = [now.word, *now.said]
    # How long something takes by now is no news, and what is counted changes all the time.
    if now.state in {"running", "undoing"}:
        parts = [now.word, *(one for one in now.said if one.startswith("attempt"))]
    error = f": {now.error}" if now.error and now.state not in {"running", "undoing"} else ""
    if step.undoing and step.waiting and now.error:
        error = f": {now.error}"
    return f"{now.id}: {', '.join(parts)}{error}"


class Counting:
    """
    Lines about the rows of steps, now and then: when a tenth of them more is finished, a second after the line before at the
    soonest; and after five seconds, if there is something new.
    """

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, float]] = {}

    def lines(self, view: FlowView, now: float) -> Iterator[str]:
        """What is new at this instant of the monotonic clock."""
        for step in view.steps:
            if step.status != "running" or not step.counts:
                self._told.pop(step.id, None)
                continue
            total = step.counts.get("total", 0)
            done = sum(number for name, number in step.counts.items() if name != "total")
            before, at = self._told.setdefault(step.id, (0, now))
            waited = now - at
            if done > before and (waited >= LINES or (waited >= _SOONEST and (done - before) * 10 >= total)):
                self._told[step.id] = (done, now)
                word = "undoing" if step.undoing else "running"
                yield plain(f"{view.pipeline} {view.run_key}: {step.id}: {word}, {rows_told(step.counts)}")


_SOONEST = 1.0  # seconds between two lines about the rows of a step


def _mark(step: StepView) -> tuple[Any, ...]:
    return step.status, step.undoing, step.waiting, step.attempt, step.due_at


class Changes:
    """A line on standard error for each change; `keep`: what it came to is one, too."""

    every = LIVE

    def __init__(self, *, keep: bool = True) -> None:
        self._keep = keep

    def open(self) -> None:
        """Nothing to prepare."""

    def show(self, now: FlowNow) -> None:
        """What is new."""
        lines = now.changes
        for line in lines[:-1] if now.why and not self._keep else lines:
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - asked for with progress=True

    def close(self, last: FlowNow | None) -> None:
        """What is left to tell."""
        if last is not None:
            self.show(last)


# --- in a notebook ------------------------------------------------------------------------------------------------------


class FlowPage:
    """A run as an output of a notebook: HTML, and plain lines where that cannot be shown."""

    def __init__(self, now: FlowNow) -> None:
        self.html = page(now)
        self._text = "\n".join(text(now))

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self._text


def page(now: FlowNow) -> str:
    """A run at one instant, as HTML."""
    from outlast.display.html import bar, coloured, cut, dimmed, escaped, framed, headline, monospaced, paragraph, table

    bad = sum(step.state in _BAD for step in now.steps)
    undone = sum(step.state in _UNDONE for step in now.steps)
    ways = {name: lines for lines, name in gutter(now.edges, [step.id for step in now.steps], MOST_LANES)}
    rows = [
        [
            f'<span style="white-space:pre;font-family:ui-monospace,Menlo,Consolas,monospace">{escaped(ways.get(step.id, ""))}</span>',
            monospaced(step.id),
            coloured(step.word, _KIND[step.state]) if step.state in _KIND else dimmed(step.word),
            escaped(" · ".join(step.said)),
            escaped(cut(step.error)),
        ]
        for step in now.steps
    ]
    said = now.why or now.ending
    return framed(
        headline(now.pipeline, now.run_key, now.status, whole(now.elapsed)),
        bar(
            len(now.steps),
            dead=bad,
            skipped=undone,
            succeeded=now.done,
            label=f"{now.done:,} of {counted(len(now.steps), 'step')}",
        ),
        paragraph(escaped(said)) if said else "",
        table(["", "step", "state", "", "last error"], rows),
    )


_KIND = {
    "running": "ok",
    "waiting": "again",
    "undoing": "again",
    "compensating": "again",
    "succeeded": "good",
    "cached": "good",
    "partial_success": "again",
    "failed": "bad",
    "compensation_failed": "bad",
    "compensated": "limit",
}


def text(now: FlowNow) -> Iterator[str]:
    """The run in plain lines."""
    yield plain(f"{now.pipeline} {now.run_key}: {now.status}, {now.done:,} of {counted(len(now.steps), 'step')}")
    for step in now.steps:
        error = f": {step.error}" if step.error else ""
        yield f"  {step.id}: {', '.join([step.word, *step.said])}{error}"
    if now.why:
        yield plain(now.why)


# --- watching -----------------------------------------------------------------------------------------------------------


class FlowWatch(Watching):
    """
    A context for a flow's run, and what watches it. `started` is called once, with the first view and in the run's own
    thread; `every_second` is called in ours.
    """

    def __init__(
        self,
        screen: Screen | None,
        *,
        started: Callable[[FlowView], None] | None = None,
        every_second: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(screen)
        self._began = here.get().clock.monotonic()
        self._begin = started
        self._every_second = every_second
        self._view: FlowView | None = None
        self._ended: float | None = None
        self._lines: deque[str] = deque(maxlen=10_000)
        self._counting = Counting()

    def __call__(self, view: FlowView) -> None:
        """Called by the run's loop whenever something has changed."""
        first, before = self._view is None, self._view
        if self._screen is not None:
            self._lines.extend(changes(before, view))
            self._lines.extend(self._counting.lines(view, here.get().clock.monotonic()))
        if view.result is not None:
            self._ended = here.get().clock.monotonic()
        self._view = view
        if first and self._begin is not None:
            self._begin(view)

    def look(self) -> FlowNow | None:
        """The run as it is now."""
        if self._view is None:
            return None
        fresh: list[str] = []
        while self._lines:
            fresh.append(self._lines.popleft())
        until = here.get().clock.monotonic() if self._ended is None else self._ended
        return replace(now_of(self._view, until - self._began), changes=tuple(fresh))

    def act(self) -> None:
        """What whoever watches wants to do."""
        if self._every_second is not None:
            self._every_second()


def screen_for(how: str | None, *, keep: bool = True) -> Screen | None:
    """Where a flow is shown: ``live`` in a terminal, in ``lines``, or nowhere; `keep`: its end, too."""
    if how is None:
        return None
    return Terminal(keep=keep, draw=picture) if how == "live" else Changes(keep=keep)


@contextmanager
def shown(plan: FlowPlan) -> Iterator[FlowPlan]:
    """The plan of a run that is shown while it runs: in the notebook, in the terminal, or in lines."""
    screen: Screen = (
        Notebook(page=FlowPage) if in_notebook() else Terminal(draw=picture) if in_terminal() else Changes()
    )
    with FlowWatch(screen) as watch:
        yield replace(plan, watch=watch)
