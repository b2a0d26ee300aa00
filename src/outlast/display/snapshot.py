"""
A run at one instant, as a value. Everything that is shown is a function of it.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outlast.kernel.clock import here
from outlast.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from outlast.pipeline.view import BreakerView, BudgetView, LimitView, RunView, StageView

_FOREVER = 1e9  # seconds; some thirty years
_PROBLEMS = 2.0  # seconds between two looks at what has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLine:
    """
    Where one stage stands. `done` counts items that are through it, `waiting` those that wait for another attempt or
    for a circuit, `throttled` those in line at a limit. `behind` names what protects it.
    """

    name: str
    done: int = 0
    running: int = 0
    waiting: int = 0
    throttled: int = 0
    retries: int = 0
    skipped: int = 0
    dead: int = 0
    behind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The way from one stage to the next, and how many items have gone it."""

    start: str
    end: str
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """
    How much of a rate is used: `used` per `per` seconds of the `amount` that is allowed; None as long as nobody knows.
    """

    name: str
    amount: float
    per: float
    used: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """
    What was spent of something; `an_item` on average, `at_the_end` if all goes on like this, and the `limit` that stops
    the run.
    """

    name: str
    spent: float
    an_item: float | None = None
    at_the_end: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """
    A run at one instant. `expected` is how many items there are, if that is known; `elapsed` is in seconds; `before`
    counts the items that were finished when this pass began; `speeds` has the rates of each limit, by its name.
    """

    pipeline: str
    run_key: str
    status: str
    elapsed: float
    total: int = 0
    expected: int | None = None
    before: int = 0
    succeeded: int = 0
    degraded: int = 0
    skipped: int = 0
    dead: int = 0
    failed: int = 0
    rate: float | None = None
    stages: tuple[StageLine, ...] = ()
    edges: tuple[Edge, ...] = ()
    limits: tuple[LimitView, ...] = ()
    speeds: Mapping[str, tuple[Speed, ...]] = field(default_factory=dict)
    breakers: tuple[BreakerView, ...] = ()
    budgets: tuple[BudgetView, ...] = ()
    costs: tuple[CostLine, ...] = ()
    problems: tuple[tuple[int, str, str], ...] = ()  # how many, stage, what
    reason: str | None = None  # why it reads no more
    grace: float | None = None  # seconds that attempts may still take, once it was asked to end
    why: str = ""  # what it came to, once it is over

    @property
    def finished(self) -> int:
        """Items that need nothing more."""
        return self.succeeded + self.skipped + self.dead + self.failed

    @property
    def running(self) -> int:
        """Attempts under way."""
        return sum(stage.running for stage in self.stages)

    @property
    def waiting(self) -> int:
        """Items that wait for another attempt or for a circuit."""
        return sum(stage.waiting for stage in self.stages)

    @property
    def throttled(self) -> int:
        """Items in line at a limit."""
        return sum(stage.throttled for stage in self.stages)

    @property
    def retries(self) -> int:
        """Attempts after the first, of the items that are finished."""
        return sum(stage.retries for stage in self.stages)

    @property
    def held_by(self) -> BreakerView | None:
        """The first breaker that does not let everybody pass."""
        return next((breaker for breaker in self.breakers if breaker.state != "closed"), None)

    @property
    def left(self) -> float | None:
        """Seconds until the end at the present rate, if both are known and anybody may live to see it."""
        if self.expected is None or not self.rate or self.status != "running":
            return None
        if self.held_by is not None:
            return None  # nobody knows when it closes
        seconds = max(0, self.expected - self.finished) / self.rate
        return seconds if seconds < _FOREVER else None


class Pace:
    """
    How fast something goes: so much per second over the last `window` seconds, so that a pause shows and a burst does
    not last.

    >>> pace = Pace()
    >>> [pace.at(second, items) for second, items in [(0.0, 0), (1.0, 100), (2.0, 300)]]
    [None, 100.0, 150.0]
    """

    def __init__(self, window: float = 15.0) -> None:
        self._window = window
        self._seen: deque[tuple[float, float]] = deque()

    def at(self, instant: float, so_far: float) -> float | None:
        """The rate, once there is anything to compare with."""
        seen = self._seen
        seen.append((instant, so_far))
        # The last one outside of the window stays: the rate then covers the whole of it.
        while len(seen) > 2 and instant - seen[1][0] >= self._window:
            seen.popleft()
        since, before = seen[0]
        return (so_far - before) / (instant - since) if instant > since else None


class View:
    """One pass of a run over time: each look is a snapshot, and what it must be compared with is kept for the next."""

    def __init__(self, view: RunView, expected: Callable[[], int | None] | None = None) -> None:
        self.run = view
        self._expected = expected
        self._began = here.get().clock.monotonic()
        self._pace = Pace()
        self._paces: dict[tuple[str, str], Pace] = {}
        self._problems: tuple[tuple[int, str, str], ...] = ()
        self._asked: float | None = None
        self._through: list[int] = [0] * len(view.stages)

    def look(self) -> Snapshot:
        """What is to be seen now."""
        now, view = here.get().clock.monotonic(), self.run.now()
        if view.over or self._asked is None or now - self._asked >= _PROBLEMS:
            self._asked = now
            with suppress(StoreError):
                self._problems = view.problems()
        rate, elapsed = self._pace.at(now, view.counts.finished), now - self._began
        if view.over and elapsed > 0:  # of all of it
            rate = (view.counts.finished - view.before) / elapsed
        return snapshot(
            view,
            elapsed=elapsed,
            rate=rate,
            expected=None if self._expected is None else self._expected(),
            problems=self._problems,
            used=self._used(view, now),
            through=self._through,
        )

    def _used(self, view: RunView, now: float) -> dict[tuple[str, str], float | None]:
        """What is taken of each rate per second."""
        return {
            (name, kind): self._paces.setdefault((name, kind), Pace()).at(now, amount)
            for name, limit in view.limits.items()
            for kind, amount in limit.taken.items()
        }


def snapshot(
    view: RunView,
    *,
    elapsed: float,
    rate: float | None = None,
    expected: int | None = None,
    problems: tuple[tuple[int, str, str], ...] = (),
    used: Mapping[tuple[str, str], float | None] | None = None,
    through: list[int] | None = None,
) -> Snapshot:
    """
    A view, with what was seen before. `through` has how many items were through each stage at the last look, and is
    brought up to date: a number that only grows must not be seen to fall.
    """
    counts = view.counts
    stages = _stages(view, through if through is not None else [0] * len(view.stages))
    known = counts.total if counts.source_exhausted else expected if expected is not None else view.expected
    return Snapshot(
        pipeline=view.pipeline,
        run_key=view.run_key,
        status=view.status,
        elapsed=elapsed,
        total=counts.total,
        expected=known,
        before=view.before,
        succeeded=counts.succeeded,
        degraded=counts.degraded,
        skipped=counts.skipped,
        dead=counts.dlq,
        failed=counts.failed,
        rate=rate,
        stages=stages,
        edges=_edges(view, stages),
        limits=tuple(view.limits.values()),
        speeds={name: tuple(_speeds(limit, used or {})) for name, limit in view.limits.items()},
        breakers=tuple(view.breakers.values()),
        budgets=tuple(view.budgets.values()),
        costs=_costs(view, known),
        problems=problems,
        reason=view.reason,
        grace=view.grace,
        why=view.why,
    )


def _stages(view: RunView, through: list[int]) -> tuple[StageLine, ...]:
    # What moves meanwhile may be missed, and a number that goes back puzzles; what a sink refuses is taken back.
    for at, stage in enumerate(view.stages):
        through[at] = max(through[at], stage.done + stage.refused)
    return tuple(
        StageLine(
            name=stage.name,
            done=seen - stage.refused,
            running=stage.running,
            waiting=stage.waiting,
            throttled=stage.in_line,
            retries=stage.retries,
            skipped=stage.skipped,
            dead=stage.dead,
            behind=_behind(stage),
        )
        for stage, seen in zip(view.stages, through, strict=True)
    )


def _behind(stage: StageView) -> tuple[str, ...]:
    parts = (("limit", stage.limit), ("breaker", stage.breaker), ("budget", stage.budget))
    return tuple(f"{kind} {name}" for kind, name in parts if name is not None)


def _edges(view: RunView, stages: Sequence[StageLine]) -> tuple[Edge, ...]:
    """A chain, and a way from the source to each stage that items begin at."""
    entered, end = [stage.entered for stage in view.stages], view.sink
    own = [stage.name for stage in stages]
    start = "source" if "source" not in own else "the source"
    names = [start, *own, end if end not in own else f"{end} (sink)"]
    later = sum(entered[1:])
    counts = [max(0, view.counts.total - view.before - later), *(stage.done for stage in stages)]
    chain = [
        Edge(start=one, end=other, count=count) for one, other, count in zip(names, names[1:], counts, strict=False)
    ]
    return (*chain, *(Edge(start=start, end=own[at], count=entered[at]) for at in range(1, len(own)) if entered[at]))


def _speeds(limit: LimitView, used: Mapping[tuple[str, str], float | None]) -> Iterator[Speed]:
    for kind, rate in limit.rates.items():
        speed = used.get((limit.name, kind))
        yield Speed(name=kind, amount=rate.amount, per=rate.per, used=None if speed is None else speed * rate.per)


def _costs(view: RunView, expected: int | None) -> tuple[CostLine, ...]:
    spent, limits, finished = view.spent, view.spend_limit, view.counts.finished
    lines: list[CostLine] = []
    for name in [*spent, *(name for name in limits if name not in spent)]:
        amount = spent.get(name, 0.0)
        an_item = amount / finished if finished else None
        at_the_end = None if an_item is None or view.over or expected is None else an_item * max(expected, finished)
        lines.append(CostLine(name=name, spent=amount, an_item=an_item, at_the_end=at_the_end, limit=limits.get(name)))
    return tuple(lines)
