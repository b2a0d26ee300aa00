"""
One attempt at a stage: in the event loop, or in a thread.

Each attempt has a copy of the run's context: what it sets there is nobody else's. The journey is told how it went, and answers what is next.
"""

from __future__ import annotations

import asyncio
from functools import partial
from types import coroutine
from typing import TYPE_CHECKING, Any

from outlast.calls.drivers import ISOLATED, Deadline, Scripted
from outlast.calls.state import latest, standing
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
    from outlast.pipeline.engine.batches import Convoy
    from outlast.pipeline.engine.item import Bearings, Journey, Post

    Traveller: TypeAlias = "Journey | Convoy"

_PROBE_ROUNDS = 3  # that failed, without one success, before an outage is believed to last
_WAIT, _BACK = Next.WAIT, Next.BACK


class Attempts:
    """How a runner makes attempts; it gives each of them a copy of its context."""

    bearings: Bearings
    _base: Variables
    _dropping: bool
    _cancelling: bool
    _virtual: bool

    if TYPE_CHECKING:  # what the runner adds

        def hold(self, journey: Traveller) -> None:
            """Let no thread begin anything before it is known whether the end of this attempt stops the run."""

    async def attempt(self, journey: Traveller, post: Post) -> Next:
        """One attempt at an async stage."""
        clock = self.bearings.monotonic
        context = self._base.copy()
        journey.post = post
        if journey.falling:
            context.run(standing.set, journey)
            try:
                answer = context.run(post.guard.fallback, journey.value, **_lent(post))  # type: ignore[arg-type]
                if hasattr(type(answer), "__await__"):
                    answer = await inside(context, answer)
            except BaseException as error:  # noqa: BLE001 - the item's end
                return journey.fell_back(post, error=self._its_own(error, post))
            return context.run(journey.fell_back, post, answer)
        begun = context.run(journey.begin, post)
        if begun is not None:
            return self._held_up(journey, post, begun)
        call = journey.call
        assert call is not None  # noqa: S101 - `begin` has made it
        context.run(journey.enter, call)
        limit = call.limit() if post.full else None
        began = clock()
        try:
            if post.guard.hedge is not None and call.world.retries:
                from outlast.calls.hedge import race

                work: Awaitable[Any] = race(call, lambda: context.run(post.work, journey.value, **post.kwargs))
            else:
                work = context.run(post.work, journey.value, **post.kwargs)
            if limit is None:
                result = await inside(context, work)
            else:
                call.timer = Deadline(call.number, *limit)
                with call.timer:
                    result = await inside(context, work)
        except Exception as error:  # noqa: BLE001 - told to the journey
            if post.stage.repairs:  # which are the user's code, and may block
                return await self._apart(context, journey.failed, post, error, began)
            return context.run(journey.failed, post, error, began)
        except BaseException as thrown:  # noqa: BLE001 - as above
            return self.thrown(journey, post, thrown, began)
        if post.stage.repairs and not post.alone:  # an item of it may have failed
            return await self._apart(context, journey.succeeded, post, result, began)
        return context.run(journey.succeeded, post, result, began)

    async def _apart(self, context: Variables, tell: Callable[..., Next], *what: Any) -> Next:
        """Tell the journey in a thread what became of the attempt."""
        if self._virtual:  # in which time jumps as soon as the loop has nothing to do: nobody is held up, and nothing must seem to take long
            return context.run(tell, *what)
        return await asyncio.get_running_loop().run_in_executor(None, partial(context.run, tell, *what))

    def thrown(self, journey: Traveller, post: Post, thrown: BaseException, began: float) -> Next:
        """What is no Exception came out of an async stage: that concerns this item only, unless it is we who end the attempt."""
        if self._cancelling and isinstance(thrown, asyncio.CancelledError):
            journey.cut_short(post, began)
            raise thrown
        return self._base.copy().run(journey.failed, post, self._its_own(thrown, post), began)

    def _its_own(self, thrown: BaseException, post: Post) -> Exception:
        """The same as a failure of one item; raised again if it is not the stage's: a signal, or the end of the task itself."""
        if isinstance(thrown, Exception):
            return thrown
        task = asyncio.current_task()
        if (
            self._cancelling
            or isinstance(thrown, KeyboardInterrupt)
            or (isinstance(thrown, GeneratorExit) and not task)
        ):
            raise thrown
        if isinstance(thrown, asyncio.CancelledError) and task is not None:
            while task.cancelling():  # by the stage itself: nobody else may
                task.uncancel()
        return as_failure(thrown, post)

    def _held_up(self, journey: Traveller, post: Post, begun: Next) -> Next:
        breaker = post.guard.breaker
        if begun is not _WAIT or breaker is None or (journey.call is not None and journey.call.asking):
            return begun
        rounds = breaker.memory.circuit.rounds
        # It may have failed for days, for other processes or in an earlier run of this one: what counts is what this run has waited for.
        post.rounds = rounds if post.rounds is None else min(post.rounds, rounds)
        if rounds - post.rounds >= _PROBE_ROUNDS:  # tried in vain so often
            journey.reason = "breaker_open"
            return _BACK
        return begun

    def attempt_in_thread(self, journey: Traveller, post: Post) -> Next:
        """One attempt at a blocking stage, in a thread of the crew."""
        if self._dropping:
            return _BACK
        context = self._base.copy()
        journey.post = post
        if journey.falling:
            context.run(standing.set, journey)
            try:
                answer = context.run(post.guard.fallback, journey.value, **_lent(post))  # type: ignore[arg-type]
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                self.hold(journey)
                return journey.fell_back(post, error=as_failure(error, post))
            return context.run(journey.fell_back, post, answer)
        call = journey.call
        if call is not None or post.full:
            begun = context.run(journey.begin, post)
            if begun is not None:
                return self._held_up(journey, post, begun)
            call = journey.call
        if call is None:
            context.run(standing.set, journey)
        else:
            context.run(journey.enter, call)
        journey.seen = latest[0]
        began = self.bearings.monotonic()
        try:
            if call is not None and post.guard.isolation is not None and call.world.retries:
                result = context.run(ISOLATED[post.guard.isolation], call, post.work, (journey.value,), post.kwargs)
            else:
                result = context.run(post.work, journey.value, **post.kwargs)
            if result.__class__ not in PLAIN and awaitable(result):
                _refuse_awaitable(result, post)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):  # whoever raises that wants to end the program
                raise
            self.hold(journey)
            return context.run(journey.failed, post, as_failure(error, post), began)
        if call is None:
            return journey.passed(post, result, began)  # type: ignore[union-attr]  # a convoy has a call
        return context.run(journey.succeeded, post, result, began)


def _lent(post: Post) -> dict[str, Any]:
    """What the run has opened for the stage and its fallback takes."""
    return {name: post.kwargs[name] for name in post.stage.lent}


def as_failure(thrown: BaseException, post: Post) -> Exception:
    """What came out of a stage, as a failure of one item: whatever it is, it must end neither the others nor the program."""
    return thrown if isinstance(thrown, Exception) else failure_of(f"the stage {post.name}", thrown, post.guard)


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


def _refuse_awaitable(result: Any, post: Post) -> None:
    close = getattr(result, "close", None)
    if close is not None:
        close()
    message = (
        f"the stage {post.name} is no coroutine function, but returned something to await: declare it with `async def`"
    )
    raise PermanentFailure(message, error_class="code_error")


def scripted(work: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function with the faults that a test has scripted for the stage in front."""
    faults = here.get().faults
    script = None if faults is None else faults.get(name)
    return work if script is None else Scripted(work, script)


@coroutine
def inside(variables: Variables, work: Any) -> Generator[Any, Any, Any]:
    """Await with every step run in other context variables: what an attempt sets there is nobody else's."""
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
