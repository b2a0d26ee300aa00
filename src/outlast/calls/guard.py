"""
The door to protected calls: ``@retry``, `Guard`, and what a decorated function does.

A plain ``@retry`` takes the short way: its first attempt is a bare try/except, and a `Call` (with the modules that it
needs) is made only if that attempt fails. Any other guard begins its call at once.
"""

from __future__ import annotations

import sys
from contextvars import copy_context

from outlast.errors import ConfigurationError
from outlast.kernel.clock import REAL, here
from outlast.policy import Coverage, RetryPolicy
from outlast.settings.callables import PLAIN, awaitable, discard, dress, is_async, kind_of, name_of, rewrapped, shape_of
from outlast.settings.checks import Check, Shown, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Any, Literal, Never, ParamSpec, Self, TypeVar, overload

    from outlast.breaker import CircuitBreaker
    from outlast.budgets import RetryBudget
    from outlast.calls.drivers import Attempts
    from outlast.calls.hedge import Hedge
    from outlast.calls.records import Outcome
    from outlast.calls.state import Call
    from outlast.kernel.aliases import ErrorSpec, Jitter, Seconds
    from outlast.limits import Limit
    from outlast.settings.callables import Shape

    P = ParamSpec("P")
    R = TypeVar("R")

_DEFAULT = RetryPolicy()
_latest = [0]  # stands in for `call.latest` until that room is loaded: nothing has failed before
# Open scopes of `testing`, and one more if everything is turned off for good; with any, no call takes the short way.
_scopes = 0 if REAL.retries else 1
_rooms: Any = None  # the module `outlast.calls.drivers`, once something has needed it
_around: Any = None  # the getter of `calls.state.running`, loaded with the drivers
# This module. cloudpickle copies the code of a decorated function and each global that it names, but a module by name:
# so what changes while the program runs is read from here.
_here = sys.modules[__name__]


def scoped(change: int) -> None:
    """A scope of `testing` was entered (+1) or left (-1)."""
    global _scopes  # noqa: PLW0603 - a counter that every fast path reads
    _scopes += change


def _off() -> bool:
    """Whether protection is turned off here: then the function is called as if it were not decorated."""
    world = here.get()
    return not world.retries and world.faults is None


def _load_rooms() -> Any:
    global _around, _rooms, _latest  # noqa: PLW0603 - filled once, with the first failure or the first full guard
    from outlast.calls import drivers, state

    _latest = state.latest
    _around = state.running.get
    _rooms = drivers
    return drivers


class Guard:
    """
    Everything that protects one kind of call, declared once: a decorator, or `call`, `acall`, `outcome`, `aoutcome`,
    `attempts`.

    From the outside in: `fallback` (called with the call's own arguments when all else has failed, unless with an error
    that `fallback_on` leaves out: a bug in the code, if nothing is said), `total_timeout` (everything, waits included),
    `retry` with its `retry_budget`, `limit` (each attempt takes a place and frees it; `cost` estimates what it takes of
    the limit's rates, from the call's arguments), `breaker`, `timeout` (one attempt; sync code needs `isolation` for
    it: ``"thread"``, which the caller leaves, or ``"process"``, which is killed), the function. ``retry=None`` means
    one attempt. ``on_open="wait"`` waits for an open breaker if that fits the total timeout. `retry_if` looks at
    results: what it accepts is tried again; when no attempt is left, the last result is returned as it is. Generators
    and async generators are tried again until their first item; `idle_timeout` bounds the wait for each item of an
    async one. `hedge` starts a slow async attempt once more beside itself. ``idempotent=False`` says that the work must
    not be done twice: what may have been done although it failed is not tried again, unless the code has asked for
    ``outlast.current().idempotency_key`` to send it along.
    """

    __slots__ = (
        "breaker",
        "cost",
        "cost_shape",
        "covers",
        "fallback",
        "fallback_on",
        "hedge",
        "idempotent",
        "idle_timeout",
        "isolation",
        "limit",
        "name",
        "on_open",
        "plain",
        "retry",
        "retry_budget",
        "retry_if",
        "timeout",
        "total_timeout",
    )

    def __init__(
        self,
        name: str | None = None,
        *,
        retry: RetryPolicy | None = _DEFAULT,
        timeout: Seconds | None = None,
        total_timeout: Seconds | None = None,
        idle_timeout: Seconds | None = None,
        isolation: Literal["thread", "process"] | None = None,
        breaker: CircuitBreaker | None = None,
        limit: Limit | None = None,
        cost: Callable[..., Mapping[str, float]] | None = None,
        retry_budget: RetryBudget | None = None,
        hedge: Hedge | None = None,
        on_open: Literal["fail", "wait"] = "fail",
        retry_if: Callable[[Any], bool] | None = None,
        fallback: Callable[..., Any] | None = None,
        fallback_on: Sequence[ErrorSpec] | None = None,
        idempotent: bool = True,
        **unknown: Never,
    ) -> None:
        check = Check()
        check.unknown(unknown, _OPTIONS)
        self.name = None if name is None else check.name("name", name)
        self.retry = _policy(retry, check)
        self.timeout = None if timeout is None else check.seconds("timeout", timeout, 1.0, positive=True)
        self.total_timeout = (
            None if total_timeout is None else check.seconds("total_timeout", total_timeout, 1.0, positive=True)
        )
        if self.timeout is not None and self.total_timeout is not None and self.total_timeout < self.timeout:
            check.add(
                "total_timeout",
                f"at least timeout ({self.timeout:g} s)",
                self.total_timeout,
                "The total includes every attempt.",
            )
        self.idle_timeout = (
            None if idle_timeout is None else check.seconds("idle_timeout", idle_timeout, 1.0, positive=True)
        )
        self.isolation = None if isolation is None else check.choice("isolation", isolation, ("thread", "process"))
        self.breaker: CircuitBreaker | None = check.kind("breaker", breaker, "CircuitBreaker", ("admit", "settle"))
        self.retry_budget: RetryBudget | None = check.kind(
            "retry_budget", retry_budget, "RetryBudget", ("deposit", "withdraw")
        )
        self.limit: Limit | None = check.kind("limit", limit, "Limit", ("take", "leave"))
        self.cost: Callable[..., Mapping[str, float]] | None = check.function("cost", cost)
        self.cost_shape = None if self.cost is None else shape_of(self.cost)
        if self.cost is not None and (kind := kind_of(self.cost)) != "sync":
            shown = Shown(f"the {'coroutine' if kind == 'async' else kind} function {name_of(self.cost)}")
            check.add("cost", "a sync function", shown, "It is asked before each call.")
        if cost is not None and (limit is None or not getattr(limit, "rates", True)):
            lacking = "a limit" if limit is None else "rates in the limit"
            why = "It says how much of the limit's rates a call takes."
            check.add("cost", f"None without {lacking}", Shown("a function"), why)
        self.hedge: Hedge | None = check.kind("hedge", hedge, "Hedge", ("after", "max_hedges"))
        self.idempotent = idempotent is not False
        if not isinstance(idempotent, bool):
            check.add("idempotent", "true or false", idempotent)
        if hedge is not None and not self.idempotent:
            check.add("hedge", "None with idempotent=False", hedge, "A hedge runs the same work twice.")
        if hedge is not None and isolation is not None:
            why = "A hedge is for coroutine functions, isolation for the others."
            check.add("hedge", "None with isolation", hedge, why)
        self.on_open = check.choice("on_open", on_open, ("fail", "wait"))
        if on_open == "wait" and breaker is None:
            check.add("on_open", "'fail' without a breaker", on_open, "It says what to do while a circuit is open.")
        self.retry_if: Callable[[Any], bool] | None = check.question("retry_if", retry_if, ("a result",))
        self.fallback: Callable[..., Any] | None = check.function("fallback", fallback)
        self.fallback_on = None if fallback_on is None else check.specs("fallback_on", fallback_on)
        if fallback_on is not None and fallback is None:
            check.add(
                "fallback_on", "None without a fallback", Shown("a list"), "It says which errors that answers for."
            )
        check.raise_if_any()
        self.covers = Coverage(self.fallback_on)
        # Nothing but retries: the first attempt needs no preparation.
        others = (
            self.timeout,
            self.total_timeout,
            self.idle_timeout,
            self.isolation,
            self.breaker,
            self.limit,
            self.retry_budget,
            self.hedge,
            self.retry_if,
            self.fallback,
        )
        self.plain = all(other is None for other in others) and self.idempotent

    def __repr__(self) -> str:
        named = [repr(self.name)] if self.name else []
        shown = ("retry", "timeout", "total_timeout", "isolation", "breaker", "limit", "retry_budget", "hedge")
        fields = [f"{field}={getattr(self, field)!r}" for field in shown if getattr(self, field) is not None]
        return f"Guard({', '.join(named + fields)})"

    def __getstate__(self) -> dict[str, Any]:
        from outlast.kernel.parcel import packed

        owner = f"the guard {self.name!r}" if self.name else "a guard"
        return {slot: packed(owner, slot, getattr(self, slot)) for slot in self.__slots__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from outlast.kernel.parcel import unpacked

        for slot, value in state.items():
            setattr(self, slot, unpacked(value))

    def replace(self, **changes: Any) -> Self:
        """A copy with these options changed; everything is checked again."""
        return type(self)(**({field: getattr(self, field) for field in _OPTIONS} | changes))

    @classmethod
    def from_config(cls, config: Mapping[str, Any], /, *, name: str | None = None, imports: Sequence[str] = ()) -> Self:
        """
        A guard from a configuration block with the blocks ``retry``, ``circuit_breaker``, ``limit`` and so on inside.
        Every mistake is reported, at once.

        `name` is for a block that has none. Functions (``fallback: "shop.guards:cheap"``) are imported from the modules
        and packages in `imports`, and from no others.

        >>> Guard.from_config({"preset": "llm", "retry": {"max_attempts": 2}, "total_timeout": "5m"}).total_timeout
        300.0
        """
        from outlast.calls.configured import guard_from

        return guard_from(cls, config, name, imports)

    def to_config(self) -> dict[str, Any]:
        """
        The configuration block that makes such a guard, as plain data: what differs from the defaults. A function is
        named as ``module:name``; one that its name does not lead to is refused.

        >>> Guard(retry=None, timeout=30).to_config()
        {'retry': None, 'timeout_s': 30.0}
        """
        from outlast.calls.configured import guard_block

        return guard_block(self, _OPTIONS, Guard.__init__.__kwdefaults__ or {})

    def __call__(self, fn: Callable[P, R], /) -> Callable[P, R]:
        """Decorate a function, a coroutine function, a method, a partial or an object that can be called."""
        if (method := rewrapped(self.__call__, fn)) is not None:
            return method  # type: ignore[no-any-return]
        if "generator" in (kind := kind_of(fn)):
            self._check_stream(fn, kind)
            self._check_shapes(fn)
            wrapper = (_stream if kind == "generator" else _async_stream)(self, fn, name_of(fn))
            dress(wrapper, fn)
            return wrapper
        around = (
            (_plain_async if self.plain else _full_async)
            if self._check(fn)
            else (_plain_sync if self.plain else _full_sync)
        )
        wrapper = around(self, fn, name_of(fn))
        dress(wrapper, fn)
        return wrapper

    def _check(self, fn: Callable[..., Any], given: Shape | None = None) -> bool:
        """
        Whether fn is async; ConfigurationError if this guard cannot do for it what it promises. `given` is what it is
        called with, if that is not up to its caller.
        """
        if self.idle_timeout is not None:
            raise ConfigurationError(
                f"expected no idle_timeout for {name_of(fn)}: it bounds the wait for each item of an async generator."
            )
        self._check_shapes(fn, given)
        if is_async(fn):
            self._check_async(fn)
            return True
        name = name_of(fn)
        if self.hedge is not None:
            message = f"expected no hedge for the sync function {name}: nothing could end the slower of the two."
            raise ConfigurationError(message)
        if self.timeout is not None and self.isolation is None:
            raise ConfigurationError(
                f'expected isolation="thread" or "process" with a timeout for the sync function {name}: nothing else can leave a blocking call on time. '
                "Or use total_timeout, which is checked between attempts."
            )
        if self.isolation == "process":
            from outlast.isolation.processes import check

            check(fn)
        if self.fallback is not None and is_async(self.fallback):
            message = f"expected fallback to be a sync function for the sync function {name}, got: the coroutine function {name_of(self.fallback)}."
            raise ConfigurationError(message)
        return False

    def _check_shapes(self, fn: Callable[..., Any], given: Shape | None = None) -> None:
        """ConfigurationError if what is called along with fn cannot take its arguments."""
        if self.cost is None and self.fallback is None:
            return
        given = given or shape_of(fn)
        for field, also in (("cost", self.cost), ("fallback", self.fallback)):
            shape = None if also is None or given is None else shape_of(also)
            if shape is not None and given is not None and not shape.follows(given):
                raise ConfigurationError(
                    f"expected {field} to take the arguments of {name_of(fn)}{given}, got: {name_of(also)}{shape}."
                )

    def _check_stream(self, fn: Callable[..., Any], kind: str) -> None:
        for field in (
            "isolation",
            "hedge",
            "retry_if",
            "fallback",
            *(("timeout", "idle_timeout") if kind == "generator" else ()),
        ):
            if getattr(self, field) is not None:
                article = "an" if kind.startswith("a") else "a"
                message = f"expected no {field} for {name_of(fn)}: it is {article} {kind} function, which {_STREAM_LIMITS[field]}."
                raise ConfigurationError(message)

    def _check_async(self, fn: Callable[..., Any]) -> None:
        if self.isolation is not None:
            raise ConfigurationError(
                f"expected no isolation for the coroutine function {name_of(fn)}: it is cancelled on time without it."
            )

    def call(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """
        Call fn under this guard. For a coroutine function, as calling that does, it gives something to await; `acall`
        awaits it.
        """
        return _drive(_new_call(self, fn), fn, args, kwargs, is_async=self._check(fn))  # type: ignore[no-any-return]

    if TYPE_CHECKING:

        @overload
        async def acall(self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
        @overload
        async def acall(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """
        Await fn under this guard. Blocking code is taken with `isolation`: it runs there, and the event loop goes on
        meanwhile.
        """
        try:
            return await _adrive(_new_call(self, fn), self._awaited(fn), args, kwargs)
        except _NotAResult as wrong:
            raise ConfigurationError(str(wrong)) from None

    def _awaited(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """
        What `acall` calls: fn, if it is a coroutine function or is isolated; anything else must give something to
        await.
        """
        self._check_shapes(fn)
        if is_async(fn):
            self._check_async(fn)
        elif self.isolation is None:
            return _only_awaitables(fn)
        elif self.isolation == "process":
            from outlast.isolation.processes import check

            check(fn)
        return fn

    def outcome(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[R]:
        """Call fn under this guard and return how it ended instead of raising."""
        if self._check(fn):
            raise ConfigurationError(
                f"expected a sync function, got: the coroutine function {name_of(fn)}. Use `await guard.aoutcome(...)`."
            )
        call = _new_call(self, fn)
        call.recorded = True
        try:
            # A child process hands out results only.
            work = fn if self.isolation == "process" else _only_results(fn)
            value = _drive(call, work, args, kwargs, is_async=False)
        except _NotAResult as handed:
            raise ConfigurationError(str(handed)) from None
        except Exception as error:  # noqa: BLE001 - returned
            return _outcome(call, error=error)
        return _outcome(call, value=value)

    if TYPE_CHECKING:

        @overload
        async def aoutcome(self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[R]: ...
        @overload
        async def aoutcome(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[R]: ...

    async def aoutcome(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Outcome[Any]:
        """As `acall`, and return how it ended instead of raising."""
        work = self._awaited(fn)
        call = _new_call(self, fn)
        call.recorded = True
        try:
            value = await _adrive(call, work, args, kwargs)
        except _NotAResult as wrong:
            raise ConfigurationError(str(wrong)) from None
        except Exception as error:  # noqa: BLE001 - returned
            return _outcome(call, error=error)
        return _outcome(call, value=value)

    def attempts(self) -> Attempts:
        """A loop of attempts around code that is no function: ``for attempt in guard.attempts(): with attempt: ...``"""
        for field in ("fallback", "retry_if", "isolation", "idle_timeout", "cost", "hedge"):
            if getattr(self, field) is not None:
                message = f"expected no {field} in a loop over attempts: there is no function to apply it to. Decorate one instead."
                raise ConfigurationError(message)
        from outlast.calls.drivers import Attempts

        return Attempts(self)


_OPTIONS = ("name", *(Guard.__init__.__kwdefaults__ or ()))
_STREAM_LIMITS = {
    "isolation": "hands out items to whoever called it",
    "hedge": "hands out items, of which each would come twice",
    "retry_if": "has items and no result",
    "fallback": "may have handed out items already",
    "timeout": "nothing can leave on time",
    "idle_timeout": "nothing can leave on time",
}


def _policy(retry: object, check: Check) -> RetryPolicy:
    if retry is None:
        return RetryPolicy(max_attempts=1)
    if isinstance(retry, RetryPolicy):
        return retry
    check.add("retry", "a RetryPolicy or None", retry, "RetryPolicy.from_config reads a mapping.")
    return _DEFAULT


# -- driving a call ------------------------------------------------------------------------------------------------------------------


def _new_call(guard: Guard, fn: Callable[..., Any]) -> Call:
    return (_rooms or _load_rooms()).Call(guard, guard.name or name_of(fn))  # type: ignore[no-any-return]


def _drive(call: Call, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, is_async: bool) -> Any:
    if is_async:
        return _adrive(call, fn, args, kwargs)
    work = _scripted(call, fn) if _scopes else fn
    return (_rooms.run if call.guard.fallback is None else _rooms.fall_back)(call, work, args, kwargs)


async def _adrive(
    call: Call, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], first: Any = None
) -> Any:
    work = _scripted(call, fn) if _scopes else fn
    drive = _rooms.arun if call.guard.fallback is None else _rooms.afall_back
    return await drive(call, work, args, kwargs, copy_context(), first=first)


def _scripted(call: Call, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the faults that a test has scripted for it in front."""
    script = None if call.world.faults is None else call.world.faults.get(call.name)
    if script is None:
        return fn

    return _rooms.Scripted(fn, script)  # type: ignore[no-any-return]


class _NotAResult(BaseException):
    """The function returned an awaitable where a result was expected. No further attempt can change that."""


def _only_awaitables(fn: Callable[..., Any]) -> Callable[..., Any]:
    def attempt(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        if result.__class__ in PLAIN or not awaitable(result):
            raise _NotAResult(
                f"expected something to await from {name_of(fn)}, got: a result. It is a sync function, and has held up the event loop: give the "
                'guard isolation="thread" to await it, or use `call`.'
            )
        return result

    dress(attempt, fn)
    return attempt


def _only_results(fn: Callable[..., Any]) -> Callable[..., Any]:
    def attempt(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        if result.__class__ not in PLAIN and awaitable(result):
            discard(result)
            raise _NotAResult(
                f"expected a result, got: something to await from {name_of(fn)}. Use `await guard.aoutcome(...)`."
            )
        return result

    return attempt


def _outcome(call: Call, *, value: Any = None, error: Exception | None = None) -> Outcome[Any]:
    from outlast.calls.records import Outcome

    elapsed = call.world.clock.monotonic() - call.began
    answered = call.guard.fallback is not None and call.reason != "shutdown"  # for which none answers
    ok = error is None and (call.reason is None or answered)
    return Outcome(ok=ok, value=value, error=error, attempts=call.attempts(), elapsed=elapsed, reason=call.reason)


# -- what a decorated function does --------------------------------------------------------------------------------------------------


def _plain_sync(guard: Guard, fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        this = _here
        if this._scopes:
            return fn(*args, **kwargs) if _off() else guard.call(fn, *args, **kwargs)
        around = this._around
        if around is not None and around() is not None:
            # Inside of another call, which `current` would otherwise take this attempt for.
            return _here._rooms.run(_here._rooms.Call(guard, guard.name or name), fn, args, kwargs)
        seen = this._latest[0]
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            call = (_here._rooms or _load_rooms()).Call(guard, guard.name or name, seen)
            delay = call.failed(error)
            if delay is None:
                raise
        else:
            if result.__class__ in this.PLAIN or not awaitable(result):
                return result
            # The attempt is what was returned, so it is awaited inside of the retry loop.
            return _adrive(_new_call(guard, fn), fn, args, kwargs, first=result)
        return _here._rooms.run(call, fn, args, kwargs, delay)

    return wrapper


def _plain_async(guard: Guard, fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _here._scopes:
            return await (fn(*args, **kwargs) if _off() else guard.acall(fn, *args, **kwargs))
        before = copy_context()
        around = _here._around
        if around is not None and around() is not None:  # as in `_plain_sync`
            return await _here._rooms.arun(_here._rooms.Call(guard, guard.name or name), fn, args, kwargs, before)
        seen = _here._latest[0]
        try:
            return await fn(*args, **kwargs)
        except Exception as error:
            call = (_here._rooms or _load_rooms()).Call(guard, guard.name or name, seen)
            delay = call.failed(error)
            if delay is None:
                raise
        return await _here._rooms.arun(call, fn, args, kwargs, before, delay=delay)

    return wrapper


def _full_sync(guard: Guard, fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    rooms = _here._rooms or _load_rooms()
    start, name = rooms.Call, guard.name or name
    if any(part is not None for part in (guard.isolation, guard.cost, guard.retry_if, guard.fallback)):
        drive = rooms.run if guard.fallback is None else rooms.fall_back

        def protected(*args: Any, **kwargs: Any) -> Any:
            if _here._scopes:
                return fn(*args, **kwargs) if _off() else guard.call(fn, *args, **kwargs)
            return drive(start(guard, name), fn, args, kwargs)

        return protected
    run, made, limit, budget = rooms.run, rooms.made, guard.limit, guard.retry_budget
    breaker = guard.breaker
    monotonic = REAL.clock.monotonic
    free, timed = _recording(breaker)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _here._scopes:
            return fn(*args, **kwargs) if _off() else guard.call(fn, *args, **kwargs)
        # As the driver would, for a first attempt that nothing holds up and that succeeds: then nobody ever asks for
        # the call itself.
        entry = -1 if limit is None else limit.take()
        circuit = None if breaker is None else breaker.memory.circuit
        if (entry < 0 and limit is not None) or (circuit is not None and (timed or not circuit.passing)):
            call = start(guard, name)
            call.entry = entry
            return run(call, fn, args, kwargs)
        running = rooms.running
        begun = [guard, name, monotonic(), running.get(), None]
        seen, token = _here._latest[0], running.set(begun)
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            call = made(begun)
            call.begun(circuit, entry, seen)
            delay = call.failed(error)
            if delay is None:
                raise
        except BaseException as interruption:
            call = made(begun)
            call.begun(circuit, entry, seen)
            call.interrupted(interruption)
            raise
        else:
            if begun[4] is None and (result.__class__ in _here.PLAIN or not awaitable(result)):
                if breaker is not None and circuit is not None and (breaker.counts.failures or not free):
                    breaker.settle(circuit.era, failed=False)
                if limit is not None:
                    limit.done(entry)
                if budget is not None and not budget.full:
                    budget.deposit()
                return result
            call = made(begun)
            call.begun(circuit, entry, seen)
            if awaitable(result):  # what was returned is awaited inside of the retry loop
                return rooms.goes_on(call, fn, args, kwargs, result)
            call.succeeded(result)
            return result
        finally:
            running.reset(token)
        return run(call, fn, args, kwargs, delay)

    return wrapper


def _full_async(guard: Guard, fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    rooms = _here._rooms or _load_rooms()
    start, name = rooms.Call, guard.name or name
    if any(part is not None for part in (guard.cost, guard.hedge, guard.retry_if, guard.fallback)):
        drive = rooms.arun if guard.fallback is None else rooms.afall_back

        async def protected(*args: Any, **kwargs: Any) -> Any:
            if _here._scopes:
                return await (fn(*args, **kwargs) if _off() else guard.acall(fn, *args, **kwargs))
            return await drive(start(guard, name), fn, args, kwargs, copy_context())

        return protected
    run, made, limit, budget = rooms.arun, rooms.made, guard.limit, guard.retry_budget
    breaker = guard.breaker
    monotonic = REAL.clock.monotonic
    # The attempt's own time or that of everything, whichever is less; of two equal ones the total, as in `Call.limit`.
    free, timed = _recording(breaker)
    bound = min(_bounds(guard), key=lambda one: (one[0], one[1] == "attempt"), default=None)

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _here._scopes:
            return await (fn(*args, **kwargs) if _off() else guard.acall(fn, *args, **kwargs))
        # As in `_full_sync`: the first attempt, if nothing holds it up.
        before = copy_context()
        entry = -1 if limit is None else limit.take()
        circuit = None if breaker is None else breaker.memory.circuit
        if (entry < 0 and limit is not None) or (circuit is not None and (timed or not circuit.passing)):
            call = start(guard, name)
            call.entry = entry
            return await run(call, fn, args, kwargs, before)
        running = rooms.running
        begun = [guard, name, monotonic(), running.get(), None]
        seen, token, timer = _here._latest[0], running.set(begun), None
        try:
            if bound is None:
                result = await fn(*args, **kwargs)
            else:
                timer = rooms.Deadline(1, *bound)
                with timer:
                    result = await fn(*args, **kwargs)
        except Exception as error:
            call = made(begun)
            call.begun(circuit, entry, seen)
            call.timer = timer
            delay = call.failed(error)
            if delay is None:
                raise
        except BaseException as interruption:
            call = made(begun)
            call.begun(circuit, entry, seen)
            call.timer = timer
            call.interrupted(interruption)
            raise
        else:
            if begun[4] is not None:
                call = made(begun)
                call.begun(circuit, entry, seen)
                call.succeeded(result)
                return result
            if breaker is not None and circuit is not None and (breaker.counts.failures or not free):
                breaker.settle(circuit.era, failed=False)
            if limit is not None:
                limit.done(entry)
            if budget is not None and not budget.full:
                budget.deposit()
            return result
        finally:
            running.reset(token)
        return await run(call, fn, args, kwargs, before, delay=delay)

    return wrapper


def _recording(breaker: CircuitBreaker | None) -> tuple[bool, bool]:
    """What the short way needs to know: whether a success records nothing, whether it is timed."""
    return (True, False) if breaker is None else (breaker.free, breaker.slow_call is not None)


def _bounds(guard: Guard) -> list[tuple[float, str]]:
    """What bounds an attempt, if it is the first: the attempt's own time, the time of everything."""
    bounds = ((guard.timeout, "attempt"), (guard.total_timeout, "total"))
    return [(seconds, scope) for seconds, scope in bounds if seconds is not None]


_NOTHING = object()


def _stream(guard: Guard, fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    from outlast.calls.generators import stream

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _here._scopes and _off():
            return (yield from fn(*args, **kwargs))
        call = (_here._rooms or _load_rooms()).Call(guard, guard.name or name)
        return (yield from stream(call, _scripted(call, fn) if _here._scopes else fn, args, kwargs))

    return wrapper


def _async_stream(guard: Guard, fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    from outlast.calls.generators import astreamed

    def begin() -> tuple[Call, Callable[..., Any]]:
        call = (_here._rooms or _load_rooms()).Call(guard, guard.name or name)
        return call, _scripted(call, fn) if _here._scopes else fn

    return astreamed(begin, guard.idle_timeout)


# -- the shortest door ---------------------------------------------------------------------------------------------------------------

if TYPE_CHECKING:

    @overload
    def retry(fn: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def retry(
        policy: RetryPolicy, /, *, timeout: Seconds | None = None, total_timeout: Seconds | None = None
    ) -> Guard: ...
    @overload
    def retry(
        *,
        max_attempts: int | None = None,
        backoff: Literal["exponential", "linear", "fixed"] = "exponential",
        initial_delay: Seconds = 1.0,
        multiplier: float = 2.0,
        max_delay: Seconds | None = 30.0,
        delays: Sequence[Seconds] = (),
        jitter: Jitter = 0.25,
        cap: Literal["after_jitter", "before_jitter"] = "after_jitter",
        max_retry_after: Seconds = 120.0,
        on_errors: Sequence[ErrorSpec] = ("transient",),
        skip_on_errors: Sequence[ErrorSpec] = (),
        retry_limits: Mapping[str, int] | None = None,
        retry_exhausted: bool | None = None,
        timeout: Seconds | None = None,
        total_timeout: Seconds | None = None,
    ) -> Guard: ...


def retry(target: Any = _NOTHING, /, **options: Any) -> Any:
    """
    Try again what is worth it: ``@retry``, ``@retry(max_attempts=5, total_timeout=60)``, ``retry(policy).call(fn)``.

    Bare: 3 attempts, 1 s doubling to at most 30 s, ±25 %, for errors that the classifier knows to be transient.
    """
    around: dict[str, Any] = {key: options.pop(key) for key in ("timeout", "total_timeout") if key in options}
    if target is _NOTHING:
        return _guarded(options, around)
    named = ", ".join(f"{key}=..." for key in (*options, *around))
    if isinstance(target, RetryPolicy):
        if options:
            message = f"expected only timeout and total_timeout beside a policy, got: {named}. Use policy.replace(...) for the rest."
            raise ConfigurationError(message)
        return Guard(retry=target, **around)
    if not callable(target) and not isinstance(target, staticmethod | classmethod):
        raise ConfigurationError(f"expected a function or a RetryPolicy, got: {show(target)}.")
    if named:
        message = f"expected options without a function, got: both. Write @retry({named}) above the function."
        raise ConfigurationError(message)
    fn: Any = target
    return _BARE(fn)


def _guarded(options: dict[str, Any], around: dict[str, Any]) -> Guard:
    """A guard from the policy's and the guard's options; the mistakes of both are reported together."""
    check = Check()
    known = tuple(RetryPolicy.__init__.__kwdefaults__ or ())
    check.unknown(
        {key: options.pop(key) for key in [*options] if key not in known}, (*known, "timeout", "total_timeout")
    )
    policy, guard = _DEFAULT, _BARE
    try:
        policy = RetryPolicy(**options) if options else _DEFAULT
    except ConfigurationError as wrong:
        check.take(wrong)
    try:
        guard = Guard(retry=policy, **around)
    except ConfigurationError as wrong:
        check.take(wrong)
    check.raise_if_any()
    return guard


_BARE = Guard()
