"""
A run at one instant, as a value: what a watcher is given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from outlast.breaker import CircuitState
from outlast.kernel.clock import here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from outlast.breaker import CircuitBreaker
    from outlast.budgets import RetryBudget
    from outlast.limits import Limit, Rate
    from outlast.pipeline.engine.runner import Runner
    from outlast.pipeline.results import Counts
    from outlast.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitView:
    """
    A limit. `width` is how many calls may be under way now, None if any number; `paused` for how many seconds its gate
    is closed; `taken` what was taken of each rate so far; `processes` how many share it, if it is shared.
    """

    name: str
    concurrency: int | None
    width: int | None
    under_way: int
    waiting: int
    paused: float
    rates: Mapping[str, Rate]
    taken: Mapping[str, float]
    shared: bool
    processes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerView:
    """
    A breaker, as far as its state is known here: for how many seconds it has not been closed, in how many it probes,
    and why it was isolated by hand.
    """

    name: str
    state: CircuitState
    failure_count: int
    since: float | None
    probe_in: float | None
    isolated: str | None
    shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetView:
    """A retry budget, and how many retries it would grant."""

    name: str
    available: int


P = TypeVar("P", LimitView, BreakerView, BudgetView)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """
    The items at one stage. `running` are attempted, `queued` wait for a slot, `waiting` for another attempt or a
    circuit, `in_line` for a limit. `done` are through it; `refused` were, until the sink did not take them. `entered`
    began at it: behind a checkpoint, or as a dead letter. `retries`, `skipped` and `dead` are of items that have ended.
    `limit`, `breaker` and `budget` are the names of what protects it.
    """

    name: str
    limit: str | None = None
    breaker: str | None = None
    budget: str | None = None
    running: int = 0
    queued: int = 0
    waiting: int = 0
    in_line: int = 0
    done: int = 0
    refused: int = 0
    entered: int = 0
    retries: int = 0
    skipped: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """
    One pass of a run at one instant. `status` is running, stopping, or what the run came to; `reason` says why it reads
    no more, `grace` for how many seconds attempts may still go on, and `why` what it came to, once it is over. `before`
    counts the items that earlier passes had finished, `expected` is how many there are, if that is known.
    """

    id: str
    run_key: str
    pipeline: str
    pass_number: int
    status: str
    reason: str | None
    why: str
    over: bool
    grace: float | None
    counts: Counts
    before: int
    expected: int | None
    spent: Mapping[str, float]
    spend_limit: Mapping[str, float]
    sink: str
    stages: tuple[StageView, ...]
    limits: Mapping[str, LimitView]
    breakers: Mapping[str, BreakerView]
    budgets: Mapping[str, BudgetView]
    _look: Callable[[], RunView] = field(repr=False, compare=False)
    _store: Callable[[], Store] = field(repr=False, compare=False)

    def now(self) -> RunView:
        """The same pass at this instant. Any thread may ask; what moves meanwhile may be seen half."""
        return self._look()

    def problems(self, limit: int = 5) -> tuple[tuple[int, str, str], ...]:
        """What has failed most, from the store: how many items, at which stage, and what it was."""
        store = self._store()
        record = store.run(self.id)
        groups = () if record is None else store.failures(record, limit=limit)
        return tuple((group.count, group.stage, f"{group.error_class}: {group.message}") for group in groups)


def view_of(runner: Runner) -> RunView:
    """What is to be seen of a runner now. It only looks."""
    plan, record, over, sink = runner.plan, runner.record, runner.result, runner.plan.sink
    grace = None if runner.ends_on is None or over is not None else runner.ends_on - runner.clock.monotonic()
    stopping = runner.status is not None or runner.reason is not None
    counts, guards = runner.books.counts(), [stage.guard for stage in plan.stages]
    return RunView(
        id=record.id,
        run_key=record.run_key,
        pipeline=plan.name,
        pass_number=record.passes,
        status=over.status if over is not None else "stopping" if stopping else "running",
        reason=runner.reason if over is None else None,
        why="" if over is None else over.why,
        over=over is not None,
        grace=None if grace is None else max(0.0, grace),
        counts=counts,
        before=runner.endings.before,
        expected=counts.total if counts.source_exhausted else plan.expected(),
        spent=MappingProxyType(dict(runner.books.spent)),
        spend_limit=MappingProxyType(dict(plan.bounds.spend_limit or {})),
        sink="the store" if sink is None else PurePath(sink).name if isinstance(sink, str | PurePath) else "sink",
        stages=_stages(runner),
        limits=_named(_limit(guard.limit) for guard in guards if guard.limit is not None),
        breakers=_named(_breaker(guard.breaker) for guard in guards if guard.breaker is not None),
        budgets=_named(_budget(guard.retry_budget) for guard in guards if guard.retry_budget is not None),
        _look=lambda: view_of(runner),
        _store=lambda: runner.store,
    )


def _limit(limit: Limit) -> LimitView:
    return LimitView(
        name=limit.name,
        concurrency=limit.concurrency,
        width=limit.width,
        under_way=limit.under_way,
        waiting=limit.waiting,
        paused=limit.paused,
        rates=MappingProxyType(dict(limit.rates)),
        taken=MappingProxyType(dict(limit.taken)),
        shared=limit.shared,
        processes=limit.processes if limit.shared else None,
    )


def _breaker(breaker: CircuitBreaker) -> BreakerView:
    circuit, clock = breaker.memory.circuit, here.get().clock
    since = None if circuit.opened_at is None else max(0.0, (clock.now() - circuit.opened_at).total_seconds())
    probes = circuit.state is CircuitState.OPEN and isfinite(circuit.retry_on)
    return BreakerView(
        name=breaker.name,
        state=circuit.state,
        failure_count=breaker.failure_count,
        since=since,
        probe_in=max(0.0, circuit.retry_on - clock.monotonic()) if probes else None,
        isolated=circuit.isolated,
        shared=breaker.shared,
    )


def _budget(budget: RetryBudget) -> BudgetView:
    return BudgetView(name=budget.name, available=budget.available)


def _named(parts: Iterable[P]) -> Mapping[str, P]:
    return MappingProxyType({part.name: part for part in parts})


def _name(part: Limit | CircuitBreaker | RetryBudget | None) -> str | None:
    return None if part is None else part.name


def _stages(runner: Runner) -> tuple[StageView, ...]:
    endings, found = runner.endings, list[StageView]()
    done = 0  # items that have ended behind a stage or are at a later one, without those that began there
    for stage, load in reversed([*zip(runner.stages, runner.scheduler.loads(), strict=True)]):
        at = stage.index
        done += endings.through[at + 1]
        counts = endings.stages[at]
        found.append(
            StageView(
                name=stage.name,
                limit=_name(stage.guard.limit),
                breaker=_name(stage.guard.breaker),
                budget=_name(stage.guard.retry_budget),
                running=load.running,
                queued=load.queued,
                waiting=load.waiting,
                in_line=load.in_line,
                done=done,
                refused=endings.refusals if stage.last else 0,
                entered=endings.entered[at],
                retries=counts.retries,
                skipped=counts.skipped,
                dead=counts.dead,
            )
        )
        done += sum(load) + endings.recording[at] - endings.entered[at]
    return tuple(reversed(found))
