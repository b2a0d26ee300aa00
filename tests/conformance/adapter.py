"""
What a library must offer to be run through the statements of this folder, and how Outlast offers it.

A `Subject` speaks neutral words, so that other libraries can stand here too: their adapters are in peers.py, and `make conformance`
runs them. Whatever a library cannot do at all is missing from its `abilities`, and the statements that need it are not asked of
it; the ones that are asked must hold. "clock" means that time can be driven from outside, however that is done; "virtual_time" that
the library itself has a time for tests, with scopes and seeds; "streams" that decorated generators are retried;
"concurrency" and "rate" that there are such limits, and "limit_blocks" that they stand alone, too.

Options of `protect`, all optional:

    attempts        executions in all, the first included (3)
    waits           the delays between attempts, in seconds, exactly (none: zeros)
    first, growth, cap, jitter, shape
                    a backoff instead of `waits`: `first` seconds, times `growth`, at most `cap`; jitter is a ratio, "full", "equal"
                    or "decorrelated"; shape is "exponential", "linear" or "fixed"
    on              what is retried: a tuple of types, a predicate, "everything", or None for the library's own judgement
    never           types that are not retried, whatever `on` says
    timeout         seconds for one attempt; `thread` runs a sync attempt in a thread of its own for it
    total_timeout   seconds for everything, waits included
    tiers           the retries that each tier of errors has
    again           whether an error that an inner retry gave up on is tried again
    breaker, wait_open, budget, again_if, fallback
                    a circuit breaker, whether to wait for it, a retry budget, which results are tried again, a last resort
    limit           a limit that each attempt passes
    hedge, hedges   seconds after which a second attempt is begun beside the first, and how many more at most (1)
    idempotent      whether it does no harm if the work is done twice (it does none)

Options of `breaker`, all optional: `failures` in a row that open it, or `rate` of the last `window` calls once there were `least`;
`open_for` seconds, `jitter` and `growth` of them; `probes` at a time and `successes` to close; `slow` seconds that count as a failure;
`shadow` to tell and never reject.

Options of `limit`, all optional: `concurrency` at a time; `rate` calls in each `per` seconds, with a `burst` on top; `max_wait`
seconds for a turn (None: as long as it takes).
"""

from __future__ import annotations

import inspect
import itertools
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol
from unittest import mock

import pytest

import outlast
from lanes import on_the_short_way
from outlast import observe, testing
from outlast.calls import guard
from outlast.isolation import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

_numbers = itertools.count(1)


def statement(number: int, *, needs: Sequence[str] = (), lanes: bool = True) -> Any:
    """Mark a test as one of a statement; it is asked of the subjects that have the abilities it needs, in both of their `lanes` unless told."""
    return pytest.mark.statement(number, needs=frozenset(needs), lanes=lanes)


class End(NamedTuple):
    """How a call ended, without raising."""

    ok: bool
    value: Any
    error: Exception | None
    reason: str | None


class Time(Protocol):
    """Time that passes when told to. `sleeps` are the waits between attempts, in order."""

    now: float
    sleeps: list[float]

    def advance(self, seconds: float) -> None: ...


class Breaker(Protocol):
    """A circuit breaker; `state` is "closed", "open" or "half_open"."""

    @property
    def state(self) -> str: ...
    def __call__(self, fn: Callable[..., Any], /) -> Callable[..., Any]: ...
    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...
    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *exc_info: object) -> Any: ...
    def isolate(self, reason: str) -> None: ...
    def reset(self) -> None: ...


class Subject(Protocol):
    """A library under examination."""

    name: str
    packages: tuple[str, ...]  # what it is imported as
    abilities: frozenset[str]
    ways: tuple[
        str, ...
    ]  # to protect a function: the usual one, one with every other guard in place, more; all must behave the same
    lanes: tuple[
        str, ...
    ]  # through the library itself, if a protected function takes more than one; all must behave the same
    switch_off: dict[str, str]  # the environment that turns all protection off

    rejected: type[Exception]  # by an open circuit
    attempt_timed_out: type[Exception]
    total_timed_out: type[Exception]
    limit_exceeded: type[Exception] | tuple[type[Exception], ...]
    misconfigured: type[Exception]

    # Protecting. The protected function is async exactly if the function is.
    def protect(self, fn: Callable[..., Any], /, *, way: str | None = None, **options: Any) -> Callable[..., Any]: ...
    def bare(self, fn: Callable[..., Any], /) -> Callable[..., Any]: ...
    def end(self, fn: Callable[..., Any], /, **options: Any) -> End: ...
    def policy(self, **options: Any) -> Any: ...
    def delay(self, attempt: int, *, roll: float, **options: Any) -> float: ...
    def breaker(self, **options: Any) -> Breaker: ...
    def reload(self, breaker: Breaker, **options: Any) -> Breaker: ...
    def budget(self, *, ratio: float, reserve: int) -> Any: ...
    def limit(self, **options: Any) -> Any: ...
    def take(self, limit: Any) -> bool: ...  # a slot and one call, if that is possible now
    def give(self, limit: Any) -> None: ...  # the slot

    # Asking.
    def reason(self, error: BaseException) -> str | None: ...
    def history(self, error: BaseException) -> tuple[float | None, ...]: ...
    def attempt(self) -> int: ...
    def remaining(self) -> float | None: ...
    def last_error(self) -> Exception | None: ...
    def key(self) -> str: ...  # the same for every attempt of a call
    def abandoned(self) -> int: ...

    # Pretending and watching.
    def on(self, lane: str) -> AbstractContextManager[None]: ...  # every protected function takes this lane
    def time(self, *, seed: int | None = None) -> AbstractContextManager[Time]: ...
    def off(self) -> AbstractContextManager[None]: ...
    def stop(self) -> Any: ...
    def events(self) -> AbstractContextManager[list[Any]]: ...
    def subscribe(self, hook: Callable[[Any], object]) -> Callable[[], None]: ...
    def kind(self, event: Any) -> str: ...
    def labels(self, event: Any) -> tuple[str, ...]: ...

    # Making errors.
    def own_errors(self) -> list[Exception]: ...
    def of_tier(self, tier: str) -> Exception: ...


# -- Outlast -----------------------------------------------------------------------------------------------------------

KINDS = {
    "step_retry_attempt": "retry",
    "step_retry_exhausted": "gave_up",
    "step_error_permanent": "not_retried",
    "step_success": "recovered",
    "attempt_timeout": "timed_out",
    "retry_budget_exhausted": "budget_empty",
    "circuit_breaker_open": "opened",
    "circuit_breaker_half_open": "probing",
    "circuit_breaker_closed": "closed",
    "circuit_breaker_reopened": "reopened",
}
TIERS = {"database": "database_error", "network": "network_error", "http_500_502_504": "server_error"}
PLENTY = 10**6


class OutlastSubject:
    """Outlast in neutral words."""

    name = "outlast"
    packages = ("outlast",)
    abilities = frozenset(
        "abandoned async budget breaker classification clock concurrency delay descriptors docs errors events fallback hedge history "
        "idempotency limit_blocks nested off outcome policy probe_limit rate reasons remaining result_retry retry_after side_by_side "
        "stop streams strict_probes thread_timeout tiers timeout trio virtual_time".split()
    )
    ways = ("decorator", "guard", "call", "outcome", "loop")
    lanes = ("flow", "short way")
    switch_off: ClassVar = {"OUTLAST_DISABLE": "1"}

    rejected = outlast.CircuitBreakerOpenError
    attempt_timed_out = outlast.AttemptTimeoutError
    total_timed_out = outlast.TotalTimeoutError
    limit_exceeded = outlast.LimitExceededError
    misconfigured = outlast.ConfigurationError

    # -- protecting

    def protect(self, fn, /, *, way=None, **options):
        if way in {"call", "outcome", "loop"}:
            guard = self._guard(options)
            return getattr(self, f"_{way}")(guard, fn)
        return self._guard(options, full=way == "guard")(fn)

    def _guard(self, options, *, full=False):
        around = set(
            "thread timeout total_timeout breaker wait_open budget again_if fallback limit hedge hedges idempotent".split()
        )
        guard = {key: value for key, value in options.items() if key in around}
        if guard.pop("thread", False):
            guard["isolation"] = "thread"
        if guard.pop("wait_open", False):
            guard["on_open"] = "wait"
        if "hedge" in guard:
            guard["hedge"] = outlast.Hedge(after=guard["hedge"], max_hedges=guard.pop("hedges", 1))
        guard |= {
            new: guard.pop(old) for old, new in (("budget", "retry_budget"), ("again_if", "retry_if")) if old in guard
        }
        if full:
            # Everything in place, nothing in the way.
            plenty = {
                "total_timeout": float(PLENTY),
                "breaker": self.breaker(failures=PLENTY),
                "retry_budget": self.budget(ratio=1, reserve=PLENTY),
                "limit": self.limit(concurrency=PLENTY, rate=PLENTY, per=1.0, burst=PLENTY),
            }
            guard = plenty | guard
        return outlast.Guard(retry=self.policy(**{k: v for k, v in options.items() if k not in around}), **guard)

    def _call(self, guard, fn):
        if inspect.iscoroutinefunction(fn):

            async def acalled(*args, **kwargs):
                return await guard.acall(fn, *args, **kwargs)

            return acalled
        return lambda *args, **kwargs: guard.call(fn, *args, **kwargs)

    def _outcome(self, guard, fn):
        def unpacked(end):
            if end.error is None:
                return end.value
            try:
                raise end.error
            finally:
                del end  # or this frame, which is in the traceback, would keep the error alive

        if inspect.iscoroutinefunction(fn):

            async def aended(*args, **kwargs):
                return unpacked(await guard.aoutcome(fn, *args, **kwargs))

            return aended
        return lambda *args, **kwargs: unpacked(guard.outcome(fn, *args, **kwargs))

    def _loop(self, guard, fn):
        if inspect.iscoroutinefunction(fn):

            async def alooped(*args, **kwargs):
                async for attempt in guard.attempts():
                    with attempt:
                        result = await fn(*args, **kwargs)
                return result

            return alooped

        def looped(*args, **kwargs):
            for attempt in guard.attempts():
                with attempt:
                    result = fn(*args, **kwargs)
            return result

        return looped

    def bare(self, fn, /):
        return outlast.retry(fn)

    def end(self, fn, /, **options):
        # Not through a variable: a frame that the error's traceback leads to would hold the error.
        return _in_words(self._guard(options).outcome(fn))

    def policy(
        self,
        *,
        attempts=3,
        waits=None,
        first=0.0,
        growth=2.0,
        cap=30.0,
        jitter=0.0,
        shape="exponential",
        on=None,
        never=(),
        tiers=None,
        again=None,
    ):
        if on == "everything":
            on = ("all",)
        elif callable(on) and not isinstance(on, type):
            on = (on,)
        backoff = (
            {"delays": waits}
            if waits is not None
            else {"initial_delay": first, "multiplier": growth, "max_delay": cap, "backoff": shape}
        )
        which = {} if on is None else {"on_errors": on}
        return outlast.RetryPolicy(
            max_attempts=attempts,
            jitter=jitter,
            skip_on_errors=never,
            retry_limits=tiers,
            retry_exhausted=again,
            **backoff,
            **which,
        )

    def delay(self, attempt, *, roll, **options):
        policy = self.policy(attempts=attempt + 1, **options)
        return policy.decide(ConnectionResetError(), attempt=attempt, roll=roll).delay

    def breaker(self, **options):
        return outlast.CircuitBreaker(f"circuit-{next(_numbers)}", **self._breaker_settings(options))

    def _breaker_settings(self, options):
        words = {
            "failures": "failure_threshold",
            "open_for": "reset_timeout",
            "probes": "half_open_requests",
            "successes": "success_threshold",
            "rate": "failure_rate",
            "least": "min_calls",
            "slow": "slow_call",
            "jitter": "open_jitter",
            "growth": "open_growth",
        }
        settings = {words.get(key, key): value for key, value in options.items() if key != "shadow"}
        return settings | ({"mode": "shadow"} if options.get("shadow") else {})

    def reload(self, breaker, **options):
        return breaker.replace(**self._breaker_settings(options))

    def budget(self, *, ratio, reserve):
        return outlast.RetryBudget(f"budget-{next(_numbers)}", ratio=ratio, reserve=reserve)

    def limit(self, *, concurrency=None, rate=None, per=None, burst=None, max_wait=None):
        rates = {} if rate is None else {"calls": outlast.Rate(rate, per=per, burst=burst)}
        name = f"limit-{next(_numbers)}"
        return outlast.Limit(name, concurrency=concurrency, rates=rates, max_wait=max_wait, adaptive=False)

    def take(self, limit):
        return limit.acquire_nowait()

    def give(self, limit):
        limit.release()

    # -- asking

    def reason(self, error):
        return outlast.stop_reason(error)

    def history(self, error):
        return tuple(record.delay for record in outlast.history(error))

    def attempt(self):
        return outlast.current().attempt

    def remaining(self):
        return outlast.current().remaining()

    def last_error(self):
        return outlast.current().last_error

    def key(self):
        return outlast.current().idempotency_key

    def abandoned(self):
        return threads.abandoned()

    # -- pretending and watching

    @contextmanager
    def on(self, lane):
        """The flow from the first attempt on, as in every scope of `testing`; or the short way, as in a program that nobody listens to."""
        if lane == "flow":
            guard.scoped(+1)
            try:
                yield
            finally:
                guard.scoped(-1)
        else:
            with on_the_short_way(), mock.patch.object(observe, "heard", return_value=False):
                yield

    def time(self, *, seed=None):
        return testing.virtual_time(seed=seed)

    def off(self):
        return testing.disabled()

    def stop(self):
        return outlast.Stop()

    def events(self):
        return testing.capture_events()

    def subscribe(self, hook):
        return observe.subscribe(hook)

    def kind(self, event):
        return KINDS[event.name]

    def labels(self, event):
        # What a counter of these events may be split by: closed sets, and names that the program itself gave.
        fields = ("name", "step_id", "category", "error_class", "tier", "reason", "scope", "budget", "breaker")
        return tuple(
            str(getattr(event, field, "")) for field in fields if field != "reason" or not hasattr(event, "breaker")
        )

    # -- making errors

    def own_errors(self):
        wrong = _raised(lambda: outlast.RetryPolicy(max_attempts=0, jitter=7))
        circuit = self.breaker(failures=1)
        _raised(lambda: circuit.call(_fail))
        return [
            wrong,
            outlast.TemporaryFailure("busy", retry_after=7, error_class="rate_limited"),
            outlast.PermanentFailure("gone", error_class="missing_input"),
            outlast.AttemptTimeoutError("attempt 1 took longer than 2 s"),
            outlast.TotalTimeoutError("the total timeout ran out during attempt 2"),
            _raised(lambda: circuit.call(_fail)),
        ]

    def of_tier(self, tier):
        return outlast.TemporaryFailure(f"of {tier}", error_class=TIERS[tier])


def _in_words(outcome):
    return End(outcome.ok, outcome.value, outcome.error, outcome.reason)


def _fail():
    raise ConnectionResetError


def _raised(fn):
    try:
        fn()
    except Exception as error:  # noqa: BLE001 - returned
        return error
    raise AssertionError("nothing was raised")


SUBJECTS: dict[str, Subject] = {"outlast": OutlastSubject()}
if (asked := os.environ.get("CONFORMANCE", "outlast")) != "outlast":  # set by `make conformance` alone
    from conformance import peers

    SUBJECTS = {asked: peers.subject(asked)}
