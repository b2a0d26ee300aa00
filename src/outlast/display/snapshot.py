"""
A run at one instant, as a value. Everything that is shown is a function of it.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from outlast.breaker import CircuitState
from outlast.kernel.clock import here
from outlast.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outlast.breaker import CircuitBreaker
    from outlast.budgets import RetryBudget
    from outlast.limits import Limit
    from outlast.pipeline.engine.runner import Runner

_FOREVER = 1e9  # seconds; some thirty years
_PROBLEMS = 2.0  # seconds between two looks at what has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLine:
    """
    Where one stage stands. `done` counts items that are through it, `waiting` those that wait for another attempt or for a circuit,
    `throttled` those in line at a limit. `behind` names what protects it.
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
    """How much of a rate is used: `used` per `per` seconds of the `amount` that is allowed; None as long as nobody knows."""

    name: str
    amount: float
    per: float
    used: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLine:
    """Where a limit stands. `width` is how many may be under way now, `paused` for how many seconds its gate is closed."""

    name: str
    under_way: int = 0
    width: int | None = None
    concurrency: int | None = None
    waiting: int = 0
    paused: float = 0.0
    speeds: tuple[Speed, ...] = ()
    processes: int | None = None

    @property
    def calm(self) -> bool:
        """Whether it holds nobody up."""
        return not self.waiting and not self.paused and self.width == self.concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerLine:
    """Where a breaker stands: for how long it has not been closed, in how many seconds it probes, and why it was isolated by hand."""

    name: str
    state: str = "closed"
    since: float | None = None
    probe_in: float | None = None
    isolated: str | None = None

    @property
    def calm(self) -> bool:
        """Whether it lets everybody pass."""
        return self.state == "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLine:
    """How many retries a budget would grant now."""

    name: str
    left: int

    @property
    def calm(self) -> bool:
        """Whether a retry would be granted."""
        return self.left > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """What was spent of something; `an_item` on average, `at_the_end` if all goes on like this, and the `limit` that stops the run."""

    name: str
    spent: float
    an_item: float | None = None
    at_the_end: float | None = None
    limit: float | None = None

    @property
    def calm(self) -> bool:
        """Whether the limit will do."""
        return self.limit is None or max(self.spent, self.at_the_end or 0.0) <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """
    A run at one instant. `expected` is how many items there are, if that is known; `elapsed` is in seconds; `before` counts the items that
    were finished when this pass began.
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
    limits: tuple[LimitLine, ...] = ()
    breakers: tuple[BreakerLine, ...] = ()
    budgets: tuple[BudgetLine, ...] = ()
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
    def left(self) -> float | None:
        """Seconds until the end at the present rate, if both are known and anybody may live to see it."""
        if self.expected is None or not self.rate or self.status != "running":
            return None
        if not all(breaker.calm for breaker in self.breakers):
            return None  # nobody knows when it closes
        seconds = max(0, self.expected - self.finished) / self.rate
        return seconds if seconds < _FOREVER else None


class Pace:
    """
    How fast something goes: so much per second over the last `window` seconds, so that a pause shows and a burst does not last.

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
    """One runner over time: each look is a snapshot, and what it must be compared with is kept for the next."""

    def __init__(self, runner: Runner, expected: Callable[[], int | None] | None = None) -> None:
        self.runner = runner
        self._expected = expected
        self._began = here.get().clock.monotonic()
        self._pace = Pace()
        self._paces: dict[tuple[str, str], Pace] = {}
        self._problems: tuple[tuple[int, str, str], ...] = ()
        self._asked: float | None = None
        self._through: list[int] = [0] * len(runner.stages)

    def look(self) -> Snapshot:
        """What is to be seen now."""
        now, runner = here.get().clock.monotonic(), self.runner
        if runner.result is not None or self._asked is None or now - self._asked >= _PROBLEMS:
            self._asked = now
            with suppress(StoreError):
                self._problems = problems_of(runner)
        rate, elapsed = self._pace.at(now, runner.books.finished), now - self._began
        if runner.result is not None and elapsed > 0:  # of all of it
            rate = (runner.books.finished - runner.endings.before) / elapsed
        return snapshot(
            runner,
            elapsed=elapsed,
            rate=rate,
            expected=None if self._expected is None else self._expected(),
            problems=self._problems,
            used=self._used(now),
            through=self._through,
        )

    def _used(self, now: float) -> dict[tuple[str, str], float | None]:
        """What is taken of each rate per second."""
        return {
            (name, kind): self._paces.setdefault((name, kind), Pace()).at(now, amount)
            for name, limit in limits_of(self.runner).items()
            for kind, amount in limit.taken.items()
        }


def snapshot(
    runner: Runner,
    *,
    elapsed: float,
    rate: float | None = None,
    expected: int | None = None,
    problems: tuple[tuple[int, str, str], ...] = (),
    used: Mapping[tuple[str, str], float | None] | None = None,
    through: list[int] | None = None,
) -> Snapshot:
    """
    What is to be seen of a runner now. It only looks: what moves meanwhile may be seen half. `through` has how many items were through each
    stage at the last look, and is brought up to date: a number that only grows must not be seen to fall.
    """
    counts, plan = runner.books.counts(), runner.plan
    stages = _stages(runner, through if through is not None else [0] * len(runner.stages))
    known = counts.total if counts.source_exhausted else expected if expected is not None else plan.expected
    over = runner.result
    winding_down = runner.ends_on if over is None else None
    return Snapshot(
        pipeline=plan.name,
        run_key=runner.record.run_key,
        status=_status(runner) if over is None else over.status,
        elapsed=elapsed,
        total=counts.total,
        expected=known,
        before=runner.endings.before,
        succeeded=counts.succeeded,
        degraded=counts.degraded,
        skipped=counts.skipped,
        dead=counts.dlq,
        failed=counts.failed,
        rate=rate,
        stages=stages,
        edges=_edges(runner, stages, counts.total),
        limits=tuple(_limit(limit, used or {}) for limit in limits_of(runner).values()),
        breakers=tuple(_breaker(breaker) for breaker in breakers_of(runner).values()),
        budgets=tuple(BudgetLine(name=budget.name, left=budget.available) for budget in budgets_of(runner).values()),
        costs=_costs(runner, counts.finished, known),
        problems=problems,
        reason=runner.reason if over is None else None,
        grace=None if winding_down is None else max(0.0, winding_down - here.get().clock.monotonic()),
        why="" if over is None else over.why,
    )


def _status(runner: Runner) -> str:
    if runner.status is not None or runner.reason is not None:
        return "stopping"
    return "running"


def _stages(runner: Runner, through: list[int]) -> tuple[StageLine, ...]:
    endings, places = runner.endings, runner.scheduler.places()
    lines: list[StageLine] = []
    done = 0  # items that have ended behind this stage or are at a later one, without those that began there
    for stage, place in reversed([*zip(runner.stages, places, strict=True)]):
        at = stage.index
        done += endings.through[at + 1]
        # What moves meanwhile may be missed, and a number that goes back puzzles; what a sink refuses is taken back all the same.
        refused = endings.refusals if stage.last else 0
        through[at] = max(through[at], done + refused)
        tally = endings.stages[at]
        lines.append(
            StageLine(
                name=stage.name,
                done=through[at] - refused,
                running=place.running,
                waiting=place.waiting,
                throttled=place.in_line,
                retries=tally.retries,
                skipped=tally.skipped,
                dead=tally.dead,
                behind=_behind(stage.guard),
            )
        )
        done += place.running + place.queued + place.waiting + place.in_line + endings.held[at] - endings.entered[at]
    return tuple(reversed(lines))


def _behind(guard: Any) -> tuple[str, ...]:
    parts = (("limit", guard.limit), ("breaker", guard.breaker), ("budget", guard.retry_budget))
    return tuple(f"{kind} {part.name}" for kind, part in parts if part is not None)


def _edges(runner: Runner, stages: Sequence[StageLine], total: int) -> tuple[Edge, ...]:
    """A chain, and a way from the source to each stage that items begin at."""
    sink, entered = runner.plan.sink, runner.endings.entered
    end = "the store" if sink is None else PurePath(sink).name if isinstance(sink, str | PurePath) else "sink"
    own = [stage.name for stage in stages]
    start = "source" if "source" not in own else "the source"
    names = [start, *own, end if end not in own else f"{end} (sink)"]
    later = sum(entered[1:])
    counts = [max(0, total - runner.endings.before - later), *(stage.done for stage in stages)]
    chain = [
        Edge(start=one, end=other, count=count) for one, other, count in zip(names, names[1:], counts, strict=False)
    ]
    return (*chain, *(Edge(start=start, end=own[at], count=entered[at]) for at in range(1, len(own)) if entered[at]))


def _limit(limit: Limit, used: Mapping[tuple[str, str], float | None]) -> LimitLine:
    speeds: list[Speed] = []
    for kind, rate in limit.rates.items():
        speed = used.get((limit.name, kind))
        speeds.append(
            Speed(name=kind, amount=rate.amount, per=rate.per, used=None if speed is None else speed * rate.per)
        )
    return LimitLine(
        name=limit.name,
        under_way=limit.under_way,
        width=limit.width,
        concurrency=limit.concurrency,
        waiting=limit.waiting,
        paused=limit.paused,
        speeds=tuple(speeds),
        processes=limit.processes if limit.shared else None,
    )


def _breaker(breaker: CircuitBreaker) -> BreakerLine:
    circuit, clock = breaker.memory.circuit, here.get().clock
    since = None if circuit.opened_at is None else max(0.0, (clock.now() - circuit.opened_at).total_seconds())
    probe: float | None = None
    if circuit.state is CircuitState.OPEN and isfinite(circuit.retry_on):
        probe = max(0.0, circuit.retry_on - clock.monotonic())
    return BreakerLine(
        name=breaker.name, state=circuit.state.value, since=since, probe_in=probe, isolated=circuit.isolated
    )


def _costs(runner: Runner, finished: int, expected: int | None) -> tuple[CostLine, ...]:
    spent, limits, over = dict(runner.books.spent), runner.books.bounds.spend_limit or {}, runner.result is not None
    lines: list[CostLine] = []
    for name in [*spent, *(name for name in limits if name not in spent)]:
        amount = spent.get(name, 0.0)
        an_item = amount / finished if finished else None
        at_the_end = None if an_item is None or over or expected is None else an_item * max(expected, finished)
        lines.append(CostLine(name=name, spent=amount, an_item=an_item, at_the_end=at_the_end, limit=limits.get(name)))
    return tuple(lines)


# --- what protects the stages of a run, each once -----------------------------------------------------------------------


def problems_of(runner: Runner) -> tuple[tuple[int, str, str], ...]:
    """What has failed most, from the store."""
    groups = runner.store.failures(runner.store.run(runner.record.id) or runner.record, limit=5)
    return tuple((group.count, group.stage, f"{group.error_class}: {group.message}") for group in groups)


def breakers_of(runner: Runner) -> dict[str, CircuitBreaker]:
    """The breakers of a run's stages, by name."""
    guards = (stage.guard for stage in runner.stages)
    return {guard.breaker.name: guard.breaker for guard in guards if guard.breaker is not None}


def limits_of(runner: Runner) -> dict[str, Limit]:
    """The limits of a run's stages, by name."""
    guards = (stage.guard for stage in runner.stages)
    return {guard.limit.name: guard.limit for guard in guards if guard.limit is not None}


def budgets_of(runner: Runner) -> dict[str, RetryBudget]:
    """The retry budgets of a run's stages, by name."""
    guards = (stage.guard for stage in runner.stages)
    return {guard.retry_budget.name: guard.retry_budget for guard in guards if guard.retry_budget is not None}
