"""
The drivers of a protected call: `run` (sync), `arun` (async), and `Attempts` (a loop in the user's own code).

Each asks the `Call` (`outlast.calls.state`) what to do next, does it, and tells how it went. Two rules shape the code:

- Attempts run outside of ``except`` blocks, otherwise Python would chain attempt 1's error into attempt 2's.
- No frame that an exception's traceback can reach keeps a reference to that exception. Then what a failed body held is
  freed by reference counting alone.
"""

from __future__ import annotations

from _weakref import ref
from contextvars import copy_context
from functools import partial
from types import coroutine

from outlast.calls.state import Call, Ended, current_work, latest, made, running
from outlast.errors import AttemptTimeoutError, ConfigurationError, TotalTimeoutError
from outlast.kernel.clock import Clock, Signal, here, in_trio, stopping
from outlast.settings.callables import PLAIN, awaitable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
    from contextvars import Context as Variables
    from contextvars import Token
    from types import TracebackType
    from typing import Any, Literal, Self

    from outlast.calls.state import Running, Settings
    from outlast.kernel.clock import Timer
    from outlast.limits import Waited


__all__ = [
    "ISOLATED",
    "Attempt",
    "Attempts",
    "Call",
    "Deadline",
    "Scripted",
    "afall_back",
    "arest",
    "arun",
    "fall_back",
    "goes_on",
    "made",
    "rest",
    "run",
    "running",
    "same",
]


# -- the sync driver -------------------------------------------------------------------------------------------------------------


def run(
    call: Call, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], delay: float | None = None
) -> Any:
    """
    Attempt until the call is over; `delay` is the wait before the next attempt of a call that has begun elsewhere.
    """
    token = running.set(call)
    quick, clock = call.quick, call.world.clock
    isolation = call.guard.isolation
    isolated = None if isolation is None or not call.world.retries else ISOLATED[isolation]
    handed_on = False
    try:
        if call.guard.cost is not None and call.cost is None:
            call.estimate(args, kwargs, fn)
        while True:
            if delay is not None and (delay > 0 or not quick):
                rest(call, delay)
            if quick:  # as `begin` for a plain call, without the call
                call.number += 1
                call.seen = latest[0]
                call.attempt_began = clock.monotonic()
            elif (delay := call.begin()) is not None:
                continue
            try:
                result = fn(*args, **kwargs) if isolated is None else isolated(call, fn, args, kwargs)
            except Exception as error:
                delay = call.failed(error)
                if delay is None:
                    raise
            except BaseException as interruption:
                call.interrupted(interruption)
                raise
            else:
                if result.__class__ not in PLAIN and awaitable(result):
                    # The attempt is not over: what was returned is awaited inside of the retry loop.
                    handed_on = True
                    return goes_on(call, fn, args, kwargs, result)
                delay = None if quick else call.succeeded(result)
                if delay is None:
                    return result
                del result  # the next attempt may need the room
    except Ended as end:
        return end.result
    finally:
        running.reset(token)
        call.last_error = call.unwanted = None  # whoever still holds the call holds nothing of its attempts
        if not quick and not handed_on:
            call.over()


def goes_on(call: Call, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], first: Any) -> Any:
    """
    The rest of a call whose attempt has returned something to await. If nobody ever awaits it, what the call holds goes
    back all the same.
    """
    rest_of_it = arun(call, fn, args, kwargs, copy_context(), first=first, begun=True)
    call.unawaited = ref(rest_of_it, lambda _: call.over())
    return rest_of_it


def rest(call: Call, seconds: float) -> None:
    """Wait between attempts, or for the turn at the limit."""
    clock, turn = call.world.clock, call.turn
    if turn is None and seconds <= 0:
        clock.skip()
        return
    how: Waited = "granted"
    aside = call.aside
    try:
        if aside is not None:
            aside.leave()
        elif turn is None:
            call.may_wait(seconds)
        if turn is not None:
            how = turn.limit.wait(turn, call.patience())
        elif clock.sleep(seconds, stopping.get()):
            how = "stopped"
        if aside is not None:
            aside.back()
            if how == "granted" and call.stopped_late():
                how = "stopped"
    except BaseException as interruption:
        call.interrupted_wait(interruption)
        raise
    if how != "granted":
        call.waited(how)


def _in_thread(call: Call, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from outlast.isolation.threads import ThreadAttempt

    limit = call.blocking_limit()
    # A job knows of the threads of its code: they may go on after their time.
    watched = getattr(current_work.get(), "watched", None)
    thread = call.thread = ThreadAttempt(fn if watched is None else watched(fn), args, kwargs)
    try:
        return thread.result(call.world.clock, None if limit is None else limit[0])
    except TimeoutError:
        if limit is None or not thread.given_up:  # the function's own
            raise
    call.timer = Deadline(call.shown_number, *limit)
    call.timer.fired = True
    raise call.timer.error()


class Scripted:
    """A function with the faults that a test has scripted for it in front."""

    def __init__(self, fn: Callable[..., Any], faults: Iterator[Exception | None]) -> None:
        self.fn = self.__wrapped__ = fn  # whoever asks for its arguments means those of the function
        self._faults = faults

    def strike(self) -> None:
        fault = next(self._faults, None)
        if fault is not None:
            raise fault

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.strike()
        return self.fn(*args, **kwargs)


def _in_process(call: Call, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from outlast.calls.remote import Elsewhere, adopt, hear
    from outlast.isolation.processes import ProcessAttempt

    if isinstance(fn, Scripted):  # faults strike in front of the child
        fn.strike()
        fn = fn.fn
    process = call.thread = ProcessAttempt(fn, args, kwargs, Elsewhere(call))
    # The time that a child needs to get ready is not the function's: only what is left in all bounds it.
    left = call.left_in_all()
    if process.start(left):
        limit = call.blocking_limit()
        try:
            result, said = process.result(call.world.clock, None if limit is None else limit[0])
        except BaseException as error:
            if limit is None or not process.timed_out:  # the function's own
                adopt(call, error)
                raise
        else:
            hear(call, said)
            return result
    else:
        limit = (left or 0.0, "total")
    call.timer = Deadline(call.shown_number, *limit)
    call.timer.fired = True
    raise call.timer.error()


ISOLATED: dict[str, Callable[..., Any]] = {"thread": _in_thread, "process": _in_process}


def fall_back(call: Call, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As `run`, and if all has failed, what the fallback makes of the same arguments."""
    fallback = call.guard.fallback or fn
    if call.guard.cost is not None:  # an estimate that fails is the caller's to hear of
        call.estimate(args, kwargs, fn)
    try:
        result = run(call, fn, args, kwargs)
    except Exception as error:
        if not call.covers(error):
            raise
        token = running.set(call)
        call.last_error = error
        try:
            # Called inside of the handler: if it fails too, Python chains the original to it.
            answer = fallback(*args, **kwargs)
        finally:
            call.last_error = None
            running.reset(token)
        call.fell_back(error)
        return answer
    if result.__class__ not in PLAIN and awaitable(result):
        return _afall_back(call, fallback, result, args, kwargs)
    if call.reason is None or call.reason == "shutdown":
        return result
    answer = fallback(*args, **kwargs)  # with a reason but no error: the last result was not wanted
    call.fell_back(None)
    return answer


# -- the async driver ------------------------------------------------------------------------------------------------------------


async def arun(
    call: Call,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    before: Variables,
    *,
    first: Any = None,
    begun: bool = False,
    delay: float | None = None,
) -> Any:
    """
    As `run`; `before` is the caller's context, `first` an awaitable that already is an attempt (that has `begun`, or
    not yet).
    """
    unchanged = same(copy_context(), before)
    token = running.set(call)
    # What an attempt must find: the caller's context, and the call in it. None if an earlier attempt has changed it for
    # good.
    clean = copy_context() if unchanged else None
    plain, quick, clock = call.guard.plain, call.quick, call.world.clock
    if begun:
        call.unawaited = None
    hedged = call.guard.hedge is not None and call.world.retries
    isolated = call.guard.isolation is not None
    try:
        if call.guard.cost is not None and call.cost is None:
            call.estimate(args, kwargs, fn)
        while True:
            if delay is not None and (delay > 0 or not quick):
                await arest(call, delay)
            if begun:
                begun = False
            elif quick:  # as `begin` for a plain call, without the call
                call.number += 1
                call.seen = latest[0]
                call.attempt_began = clock.monotonic()
            elif (delay := call.begin()) is not None:
                continue
            limit = None if plain or isolated else call.limit()  # what is isolated is left on time by itself
            try:
                if isolated and first is None:
                    first = _isolated(call, fn, args, kwargs)
                elif hedged:
                    first = _hedged(call, fn, args, kwargs)
                elif first is None:
                    if call.number == 1 or (clean is not None and same(copy_context(), clean)):
                        first = fn(*args, **kwargs)
                    else:  # an earlier attempt left something behind; this one must not see it
                        first = _apart(call, fn, args, kwargs, before.copy())
                if limit is None:
                    result = await first
                else:
                    call.timer = Deadline(call.shown_number, *limit)
                    with call.timer:
                        result = await first
            except Exception as error:
                delay = call.failed(error)
                if delay is None:
                    raise
            except BaseException as interruption:
                call.interrupted(interruption)
                raise
            else:
                delay = None if quick else call.succeeded(result)
                if delay is None:
                    return result
                del result  # the next attempt may need the room
            finally:
                first = None
    except Ended as end:
        return end.result
    finally:
        running.reset(token)
        call.last_error = call.unwanted = None  # whoever still holds the call holds nothing of its attempts
        if not quick:
            call.over()


async def _isolated(call: Call, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An attempt of blocking code for a caller in an event loop, which goes on meanwhile."""
    if not call.world.retries:
        result = fn(*args, **kwargs)
    else:
        work = partial(copy_context().run, ISOLATED[call.guard.isolation or "thread"], call, fn, args, kwargs)
        result = await _from_thread(call, work)
    return await result if awaitable(result) else result


async def _from_thread(call: Call, work: Callable[[], Any]) -> Any:
    """What comes of the work, in a thread that waits for it; if nobody waits here any more, it is given up there."""
    from threading import Thread

    from outlast.isolation.threads import start_thread

    signal, came = Signal(), _Came()

    def wait() -> None:
        try:
            came.result = work()
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            came.error = error
        signal.set()

    before = call.thread
    try:
        start_thread(Thread(target=wait, daemon=True, name="outlast-await"))
        while not came.over:  # a signal of trio's may be set by its own end
            await Clock.wait_signal(call.world.clock, signal, None)
    except BaseException:
        if call.thread is not None and call.thread is not before:
            call.thread.abandon()
        raise
    return came.out()


class _Came:
    """The result or the error of work in another thread."""

    result: Any = None
    error: BaseException | None = None

    @property
    def over(self) -> bool:
        return self.error is not None or "result" in self.__dict__

    def out(self) -> Any:
        error, self.error = self.error, None
        if error is None:
            return self.result
        try:
            raise error
        finally:
            del error


async def _hedged(call: Call, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from outlast.calls.hedge import race

    return await race(call, lambda: fn(*args, **kwargs))


async def arest(call: Call, seconds: float) -> None:
    """Wait between attempts, or for the turn at the limit."""
    clock, turn = call.world.clock, call.turn
    if turn is None and seconds <= 0:
        clock.skip()
        return
    how: Waited = "granted"
    aside = call.aside
    try:
        if aside is not None:
            aside.leave()
        elif turn is None:
            call.may_wait(seconds)
        if turn is not None:
            how = await turn.limit.await_turn(turn, call.patience())
        elif await clock.asleep(seconds, stopping.get()):
            how = "stopped"
        if aside is not None:
            await aside.aback()
    except BaseException as interruption:
        call.interrupted_wait(interruption)
        raise
    if how != "granted":
        call.waited(how)


def same(one: Variables, other: Variables) -> bool:
    """Whether two contexts hold the same; at once if nothing was set in between, as nearly always."""
    try:
        return one == other
    except Exception:  # noqa: BLE001 - values with an __eq__ of their own were set: then it was changed
        return False


async def _apart(
    call: Call, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], variables: Variables
) -> Any:
    variables.run(running.set, call)
    result = await _inside(variables, variables.run(fn, *args, **kwargs))
    missing = object()
    for variable, value in variables.items():  # what a successful attempt set stays set, as after a plain await
        if variable is not running and variable.get(missing) is not value:
            variable.set(value)
    return result


@coroutine
def _inside(variables: Variables, work: Awaitable[Any]) -> Generator[Any, Any, Any]:
    """Await with every step run in other context variables."""
    steps: Any = work.__await__()
    value: Any = None
    thrown: BaseException | None = None
    while True:
        try:
            if thrown is None:
                wanted = variables.run(steps.send, value)
            else:
                error, thrown = thrown, None
                try:
                    wanted = variables.run(steps.throw, error)
                finally:
                    del error
        except StopIteration as end:
            return end.value
        value = None
        try:
            value = yield wanted
        except GeneratorExit:
            variables.run(steps.close)
            raise
        except BaseException as interruption:  # noqa: BLE001 - thrown into the work itself
            thrown = interruption


async def afall_back(
    call: Call,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    before: Variables,
    *,
    first: Any = None,
) -> Any:
    """As `arun`, and if all has failed, what the fallback makes of the same arguments."""
    if call.guard.cost is not None:  # an estimate that fails is the caller's to hear of
        call.estimate(args, kwargs, fn)
    work = arun(call, fn, args, kwargs, before, first=first)
    return await _afall_back(call, call.guard.fallback or fn, work, args, kwargs)


async def _afall_back(
    call: Call, fallback: Callable[..., Any], work: Awaitable[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    try:
        result = await work
    except Exception as error:
        if not call.covers(error):
            raise
        token = running.set(call)
        call.last_error = error
        try:
            answer = await _answer(fallback, args, kwargs)
        finally:
            call.last_error = None
            running.reset(token)
        call.fell_back(error)
        return answer
    if call.reason is None or call.reason == "shutdown":
        return result
    answer = await _answer(fallback, args, kwargs)
    call.fell_back(None)
    return answer


async def _answer(fallback: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = fallback(*args, **kwargs)
    return await value if hasattr(type(value), "__await__") else value


_LATE = 0.02  # seconds after its time at which a deadline strikes only if a loop was held up
_ROUNDS = 3  # of the loop, for what has come meanwhile


class Deadline:
    """
    Ends what runs inside of it after so many seconds, by cancelling the task, and turns that cancellation, and no
    other, into a timeout.
    """

    __slots__ = (
        "_cancelling",
        "_due",
        "_handle",
        "_number",
        "_rounds",
        "_task",
        "_trio_scope",
        "fired",
        "scope",
        "seconds",
    )

    def __init__(self, number: int, seconds: float, scope: str) -> None:
        self.seconds = seconds
        self.scope = scope
        self.fired = False
        self._number = number
        self._task: Any = None
        self._handle: Timer | None = None
        self._cancelling = 0
        self._due = 0.0
        self._rounds = _ROUNDS
        self._trio_scope: Any = None

    def __enter__(self) -> Self:
        trio = in_trio()
        if trio is not None:
            self._trio_scope = trio.move_on_after(self.seconds)
            self._trio_scope.__enter__()
            return self
        import asyncio

        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling()
        clock = here.get().clock
        self._due = clock.monotonic() + self.seconds
        self._handle = clock.call_later(self.seconds, self._strike)
        return self

    def _strike(self) -> None:
        if self._task is None:
            return
        if self._rounds and here.get().clock.monotonic() - self._due > _LATE:
            # Somebody has held up the loop, and what was awaited may be here by now: it is seen to first.
            import asyncio

            self._rounds -= 1
            self._handle = asyncio.get_running_loop().call_soon(self._strike)
            return
        self.fired = True
        self._task.cancel()

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        if self._trio_scope is not None:
            scope, self._trio_scope = self._trio_scope, None
            scope.__exit__(t, e, tb)
            self.fired = bool(scope.cancelled_caught)
            del scope
            if self.fired:
                raise self.error() from None  # the scope has taken its own cancellation away
            return
        if self._handle is not None:
            self._handle.cancel()
        task, self._task = self._task, None
        ours = self.fired and task.uncancel() <= self._cancelling
        del task  # it will hold the exception that this frame is in the traceback of
        if ours and t is not None and t.__name__ == "CancelledError":
            raise self.error() from e

    def error(self) -> AttemptTimeoutError | TotalTimeoutError:
        """The timeout as an exception."""
        which = f"attempt {self._number}" if self._number else "the attempt"
        if self.scope == "total":
            return TotalTimeoutError(f"the total timeout ran out during {which}")
        if self.scope == "idle":
            return AttemptTimeoutError(f"no item for {self.seconds:g} s")
        return AttemptTimeoutError(f"{which} took longer than {self.seconds:g} s")

    def cut_short(self, error: BaseException) -> bool:
        """Whether the error is that the total timeout ended the attempt."""
        return self.fired and self.scope == "total" and isinstance(error, TotalTimeoutError)


# -- a loop in the user's own code ---------------------------------------------------------------------------------------------------


class Attempt:
    """One attempt of a loop over `Guard.attempts`: put the work into ``with attempt:``."""

    __slots__ = ("_call", "_timed", "_timer", "_token", "number", "pending", "state")

    def __init__(self, call: Call, *, timed: bool) -> None:
        self.number = call.number
        self.state: Literal["new", "entered", "over"] = "new"
        self.pending: float | None = None
        self._call = call
        self._timed = timed
        self._timer: Deadline | None = None
        self._token: Token[Running] | None = None

    def __enter__(self) -> Self:
        call = self._call
        self.state = "entered"
        self._token = running.set(call)
        limit = call.limit() if self._timed else None
        if limit is not None:
            call.timer = self._timer = Deadline(call.shown_number, *limit)
            self._timer.__enter__()
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> bool:
        call = self._call
        self.state = "over"
        if self._token is not None:
            running.reset(self._token)
        try:
            if self._timer is not None:
                self._timer.__exit__(t, e, tb)
        except Exception as timeout:
            self.pending = call.failed(timeout)
            if self.pending is None:
                raise
            return True
        if e is None:
            call.succeeded(None)
        elif isinstance(e, Exception):
            self.pending = call.failed(e)
        else:
            call.interrupted(e)
        return self.pending is not None


class Attempts:
    """The attempts of one call, for ``for`` or ``async for``; each loop over it is a call of its own."""

    def __init__(self, guard: Settings) -> None:
        self._guard = guard

    def __iter__(self) -> Iterator[Attempt]:
        if self._guard.timeout is not None:
            message = "expected no timeout in a sync loop over attempts: nothing could end the attempt. Use `async for`, or total_timeout."
            raise ConfigurationError(message)
        return self._loop()

    def _loop(self) -> Iterator[Attempt]:
        call = Call(self._guard, self._guard.name or "attempts")
        for step in _steps(call, timed=False):
            if isinstance(step, Attempt):
                yield step
            else:
                rest(call, step)

    def __aiter__(self) -> AsyncIterator[Attempt]:
        return _AsyncLoop(Call(self._guard, self._guard.name or "attempts"))


class _AsyncLoop:
    # No async generator: one that is left early is finished by the event loop, later, and trio warns of it.

    def __init__(self, call: Call) -> None:
        self._call = call
        self._steps = _steps(call, timed=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Attempt:
        for step in self._steps:
            if isinstance(step, Attempt):
                return step
            await arest(self._call, step)
        raise StopAsyncIteration


def _steps(call: Call, *, timed: bool) -> Iterator[Attempt | float]:
    """The attempts of a loop, and the waits between them in seconds."""
    try:
        while True:
            delay = call.begin()
            if delay is None:
                attempt = Attempt(call, timed=timed)
                yield attempt
                delay = _left(attempt)
                if delay is None:
                    return
            yield delay
    finally:
        call.over()  # an attempt that was never entered gives its place back


def _left(attempt: Attempt) -> float | None:
    """The wait before the next attempt; None when the loop is over."""
    if attempt.state == "new":
        raise RuntimeError(f"attempt {attempt.number} was never entered: put the work of the loop into `with attempt:`")
    return attempt.pending
