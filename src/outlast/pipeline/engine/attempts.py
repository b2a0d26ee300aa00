"""
One attempt at a stage: in the event loop, or in a thread.

Each attempt has its own copy of the run's context variables. After it, `Item.succeeded` or `Item.failed` returns what
to do next (`Next`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from types import coroutine
from typing import TYPE_CHECKING, Any

from outlast.calls.drivers import ISOLATED, Deadline, Scripted
from outlast.calls.state import current_work, latest
from outlast.errors import PermanentFailure, TemporaryFailure
from outlast.kernel.clock import here
from outlast.kernel.redact import error_text
from outlast.pipeline.engine.item import Next
from outlast.settings.callables import PLAIN, awaitable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from contextvars import Context as Variables
    from typing import TypeAlias

    from outlast.calls.guard import Guard
    from outlast.pipeline.engine.batches import Group
    from outlast.pipeline.engine.item import Item, Phase, RunFacts, RunStage

    Unit: TypeAlias = "Item | Group"

_WAIT, _BACK = Next.WAIT, Next.BACK


class AttemptRunner:
    """Makes the attempts of a run; each gets a copy of the run's context."""

    def __init__(
        self, facts: RunFacts, phase: Phase, base: Variables, hold: Callable[[Unit], None], *, virtual: bool
    ) -> None:
        """`hold` lets no thread begin anything before it is known whether the end of an attempt stops the run."""
        self._monotonic = facts.monotonic
        self._phase = phase
        self._base = base
        self._hold = hold
        self._virtual = virtual

    async def in_loop(self, item: Unit, stage: RunStage) -> Next:
        """One attempt at an async stage."""
        clock = self._monotonic
        context = self._base.copy()
        item.stage = stage
        if item.needs_fallback:
            context.run(current_work.set, item)
            try:
                answer = context.run(stage.guard.fallback, item.value, **_lent(stage))  # type: ignore[arg-type]
                if hasattr(type(answer), "__await__"):
                    answer = await inside(context, answer)
            except BaseException as error:  # noqa: BLE001 - the item's end
                return item.fell_back(stage, error=self._its_own(error, stage))
            return context.run(item.fell_back, stage, answer)
        begun = context.run(item.begin, stage)
        if begun is not None:
            return self._held_up(item, stage, begun)
        call = item.call
        assert call is not None  # noqa: S101 - `begin` has made it
        context.run(item.enter, call)
        limit = call.limit() if stage.needs_call else None
        began = clock()
        try:
            if stage.guard.hedge is not None and call.world.retries:
                from outlast.calls.hedge import race

                work: Awaitable[Any] = race(call, lambda: context.run(stage.work, item.value, **stage.kwargs))
            else:
                work = context.run(stage.work, item.value, **stage.kwargs)
            if limit is None:
                result = await inside(context, work)
            else:
                call.timer = Deadline(call.number, *limit)
                with call.timer:
                    result = await inside(context, work)
        except Exception as error:  # noqa: BLE001 - told to the item
            if stage.declared.repairs:  # repairs are the user's code, and may block
                return await self._tell_in_thread(context, item.failed, stage, error, began)
            return context.run(item.failed, stage, error, began)
        except BaseException as thrown:  # noqa: BLE001 - as above
            return self.thrown(item, stage, thrown, began)
        if stage.declared.repairs and not stage.single:  # one item of the batch may have failed
            return await self._tell_in_thread(context, item.succeeded, stage, result, began)
        return context.run(item.succeeded, stage, result, began)

    async def _tell_in_thread(self, context: Variables, tell: Callable[..., Next], *what: Any) -> Next:
        """Tell the item in a thread what became of the attempt."""
        if self._virtual:  # virtual time jumps while the loop has nothing to do: do not let it wait for a thread
            return context.run(tell, *what)
        return await asyncio.get_running_loop().run_in_executor(None, partial(context.run, tell, *what))

    def thrown(self, item: Unit, stage: RunStage, thrown: BaseException, began: float) -> Next:
        """What is no Exception came out of an async stage: a failure of this item, unless the run ends the attempt."""
        if self._phase.cancelling and isinstance(thrown, asyncio.CancelledError):
            item.cut_short(stage, began)
            raise thrown
        return self._base.copy().run(item.failed, stage, self._its_own(thrown, stage), began)

    def _its_own(self, thrown: BaseException, stage: RunStage) -> Exception:
        """The same as a failure of one item. A signal, or the end of the task itself, is raised again."""
        if isinstance(thrown, Exception):
            return thrown
        task = asyncio.current_task()
        if (
            self._phase.cancelling
            or isinstance(thrown, KeyboardInterrupt)
            or (isinstance(thrown, GeneratorExit) and not task)
        ):
            raise thrown
        if isinstance(thrown, asyncio.CancelledError) and task is not None:
            while task.cancelling():  # by the stage itself
                task.uncancel()
        return as_failure(thrown, stage)

    def _held_up(self, item: Unit, stage: RunStage, begun: Next) -> Next:
        breaker = stage.guard.breaker
        if begun is not _WAIT or breaker is None or (item.call is not None and item.call.asking):
            return begun
        rounds = breaker.memory.circuit.rounds
        # It may have failed for days, elsewhere or in an earlier run. Only what this run has waited for counts.
        stage.rounds = rounds if stage.rounds is None else min(stage.rounds, rounds)
        if rounds - stage.rounds >= stage.most_rounds:  # so many probes failed
            item.reason = "breaker_open"
            return _BACK
        return begun

    def in_thread(self, item: Unit, stage: RunStage) -> Next:
        """One attempt at a blocking stage, in a thread."""
        if self._phase.dropping:
            return _BACK
        context = self._base.copy()
        item.stage = stage
        if item.needs_fallback:
            context.run(current_work.set, item)
            try:
                answer = context.run(stage.guard.fallback, item.value, **_lent(stage))  # type: ignore[arg-type]
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                self._hold(item)
                return item.fell_back(stage, error=as_failure(error, stage))
            return context.run(item.fell_back, stage, answer)
        call = item.call
        if call is not None or stage.needs_call:
            begun = context.run(item.begin, stage)
            if begun is not None:
                return self._held_up(item, stage, begun)
            call = item.call
        if call is None:
            context.run(current_work.set, item)
        else:
            context.run(item.enter, call)
        item.seen = latest[0]
        began = self._monotonic()
        try:
            if call is not None and stage.guard.isolation is not None and call.world.retries:
                result = context.run(ISOLATED[stage.guard.isolation], call, stage.work, (item.value,), stage.kwargs)
            else:
                result = context.run(stage.work, item.value, **stage.kwargs)
            if result.__class__ not in PLAIN and awaitable(result):
                _refuse_awaitable(result, stage)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):  # it is to end the program
                raise
            self._hold(item)
            return context.run(item.failed, stage, as_failure(error, stage), began)
        if call is None:
            return item.succeeded_at_once(stage, result, began)  # type: ignore[union-attr]  # a group has a call
        return context.run(item.succeeded, stage, result, began)


def _lent(stage: RunStage) -> dict[str, Any]:
    """What the run has opened for the stage and its fallback takes."""
    return {name: stage.kwargs[name] for name in stage.declared.lent}


def as_failure(thrown: BaseException, stage: RunStage) -> Exception:
    """What came out of a stage, as a failure of one item: it must end neither the others nor the program."""
    return thrown if isinstance(thrown, Exception) else failure_of(f"the stage {stage.name}", thrown, stage.guard)


def failure_of(what: str, thrown: BaseException, guard: Guard | None = None) -> Exception:
    """What is no Exception, as one."""
    if isinstance(thrown, asyncio.CancelledError):
        return RuntimeError(f"{what} was cancelled from inside")
    if isinstance(thrown, SystemExit):
        message = f"{what} called sys.exit: {error_text(thrown)}"
        if guard is not None and guard.isolation == "process":
            return TemporaryFailure(message, error_class="worker_lost")
        return RuntimeError(message)
    return RuntimeError(f"{what} raised {type(thrown).__name__}, which is no Exception: {error_text(thrown)}")


def _refuse_awaitable(result: Any, stage: RunStage) -> None:
    close = getattr(result, "close", None)
    if close is not None:
        close()
    message = (
        f"the stage {stage.name} is no coroutine function, but returned something to await: declare it with `async def`"
    )
    raise PermanentFailure(message, error_class="code_error")


def scripted(work: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function with the faults that a test has scripted for the stage in front."""
    faults = here.get().faults
    script = None if faults is None else faults.get(name)
    return work if script is None else Scripted(work, script)


@coroutine
def inside(variables: Variables, work: Any) -> Generator[Any, Any, Any]:
    """Await with every step run in other context variables, which are those of one attempt."""
    steps = work if hasattr(work, "send") else work.__await__()
    try:
        wanted = variables.run(steps.send, None)
    except StopIteration as end:
        return end.value
    return (yield from _steps(variables, steps, wanted))


@coroutine
def rest(variables: Variables, steps: Any, wanted: Any) -> Generator[Any, Any, Any]:
    """As `inside`, for work that has begun and waits for something."""
    return (yield from _steps(variables, steps, wanted))


def _steps(variables: Variables, steps: Any, wanted: Any) -> Generator[Any, Any, Any]:
    run = variables.run
    try:
        while True:
            try:
                value = yield wanted
            except GeneratorExit:
                run(steps.close)
                raise
            except BaseException as thrown:  # noqa: BLE001 - thrown into the work itself
                wanted = run(steps.throw, thrown)
            else:
                wanted = run(steps.send, value)
    except StopIteration as end:
        return end.value
