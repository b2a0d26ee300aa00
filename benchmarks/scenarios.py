"""
Who is measured, and how each contender is set up.

Every contender protects the same function and is configured as alike as its
options permit: three attempts, connection and timeout errors, exponential
delays from one second (or from zero where the scenario fails on purpose) up to
thirty, a little jitter; breakers open after five failures and stay open for a
minute. Libraries are imported by name when a contender is built, so this file
can be read and type-checked without any of them installed.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Fn = Callable[..., Any]
Wrap = Callable[[Fn], Any]

TRANSIENT = (ConnectionError, TimeoutError)
ATTEMPTS = 3
MAX_DELAY = 30.0
OURS = "outlast"
NONE = "none"  # the library of the bare call and of the floor


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of protecting a function; ``None`` means that the library has no such way."""

    library: str
    label: str
    sync: Wrap | None
    coro: Wrap | None

    @property
    def is_floor(self) -> bool:
        return self.label.startswith("floor")


def library(name: str) -> Any:
    return importlib.import_module(name)


def dual(name: str, label: str, wrap: Wrap) -> Contender:
    """A decorator that looks at the function to tell sync from async."""
    return Contender(name, label, wrap, wrap)


# The floors: the least that a decorator with the same shape can cost.


def floor_sync(fn: Fn) -> Fn:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception:  # noqa: TRY203 - the floor is exactly this
            raise

    return wrapper


def floor_coro(fn: Fn) -> Fn:
    @functools.wraps(fn)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return await fn(*args, **kwargs)
        except Exception:  # noqa: TRY203 - the floor is exactly this
            raise

    return wrapper


def loop_sync(fn: Fn) -> Fn:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        attempt = 1
        while True:
            try:
                return fn(*args, **kwargs)
            except TRANSIENT:
                if attempt == ATTEMPTS:
                    raise
            attempt += 1

    return wrapper


def loop_coro(fn: Fn) -> Fn:
    @functools.wraps(fn)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        attempt = 1
        while True:
            try:
                return await fn(*args, **kwargs)
            except TRANSIENT:
                if attempt == ATTEMPTS:
                    raise
            attempt += 1

    return wrapper


BARE = dual(NONE, "bare call", lambda fn: fn)
FLOOR = Contender(NONE, "floor: try/except", floor_sync, floor_coro)
LOOP_FLOOR = Contender(NONE, "floor: hand-written loop", loop_sync, loop_coro)


# Retry decorators. `delay` is the time before the second attempt, in seconds.


def outlast_retry(delay: float, fn: Fn) -> Any:
    outlast = library("outlast")
    return outlast.retry(max_attempts=ATTEMPTS, initial_delay=delay, max_delay=MAX_DELAY)(fn)


def tenacity_retry(delay: float, fn: Fn) -> Any:
    tenacity = library("tenacity")
    return tenacity.retry(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_exponential_jitter(initial=delay, max=MAX_DELAY, jitter=delay / 4),
        retry=tenacity.retry_if_exception_type(TRANSIENT),
        reraise=True,
    )(fn)


def stamina_retry(delay: float, fn: Fn) -> Any:
    stamina = library("stamina")
    return stamina.retry(
        on=TRANSIENT, attempts=ATTEMPTS, timeout=None, wait_initial=delay, wait_max=MAX_DELAY, wait_jitter=delay / 4
    )(fn)


def backoff_retry(delay: float, fn: Fn) -> Any:
    backoff = library("backoff")
    return backoff.on_exception(backoff.expo, TRANSIENT, max_tries=ATTEMPTS, factor=delay, max_value=MAX_DELAY)(fn)


def redress_retry(delay: float, fn: Fn) -> Any:
    redress = library("redress")
    strategy = library("redress.strategies").equal_jitter(base_s=delay, max_s=MAX_DELAY)
    return redress.retry(classifier=redress.default_classifier, strategy=strategy, max_attempts=ATTEMPTS)(fn)


def pyresilience_retry(delay: float, fn: Fn) -> Any:
    pyresilience = library("pyresilience")
    config = pyresilience.RetryConfig(max_attempts=ATTEMPTS, delay=delay, max_delay=MAX_DELAY, retry_on=TRANSIENT)
    return pyresilience.resilient(retry=config)(fn)


def interlock_retry(delay: float, fn: Fn) -> Any:
    tenacity = library("tenacity")
    steps = library("interlock").Pipeline.builder()
    steps.retry(
        attempts=ATTEMPTS,
        retry=tenacity.retry_if_exception_type(TRANSIENT),
        wait=tenacity.wait_exponential_jitter(initial=delay, max=MAX_DELAY, jitter=delay / 4),
    )
    return steps.build()(fn)


def retries(delay: float) -> tuple[Contender, ...]:
    """Every retry decorator, waiting `delay` seconds before the second attempt."""
    return (
        dual(OURS, "@retry(...)", functools.partial(outlast_retry, delay)),
        dual("tenacity", "@retry(...)", functools.partial(tenacity_retry, delay)),
        dual("stamina", "@retry(...)", functools.partial(stamina_retry, delay)),
        dual("backoff", "@on_exception(...)", functools.partial(backoff_retry, delay)),
        dual("redress", "@retry(...)", functools.partial(redress_retry, delay)),
        dual("pyresilience", "@resilient(retry=...)", functools.partial(pyresilience_retry, delay)),
        dual("interlock-cb", "Pipeline(retry)", functools.partial(interlock_retry, delay)),
    )


BARE_RETRY = dual(OURS, "@retry", lambda fn: library("outlast").retry(fn))


# Breakers, closed and healthy. Every function gets a breaker of its own.


def outlast_breaker() -> Any:
    return library("outlast").CircuitBreaker("bench", failure_threshold=5, reset_timeout=60.0)


def outlast_rate_breaker() -> Any:
    return library("outlast").CircuitBreaker("bench", failure_rate=0.5, reset_timeout=60.0)


def interlock_breaker() -> Any:
    return library("interlock").CircuitBreaker(name="bench")


def pybreaker_breaker() -> Any:
    return library("pybreaker").CircuitBreaker(fail_max=5, reset_timeout=60)


def circuitbreaker_breaker() -> Any:
    return library("circuitbreaker").CircuitBreaker(failure_threshold=5, recovery_timeout=60, name="bench")


def decorated(make: Callable[[], Any]) -> Wrap:
    def wrap(fn: Fn) -> Any:
        return make()(fn)

    return wrap


def called(make: Callable[[], Any], method: str) -> Wrap:
    def wrap(fn: Fn) -> Any:
        return functools.partial(getattr(make(), method), fn)

    return wrap


def pyresilience_breaker(fn: Fn) -> Any:
    pyresilience = library("pyresilience")
    config = pyresilience.CircuitBreakerConfig(failure_threshold=5, recovery_timeout=60.0)
    return pyresilience.resilient(circuit_breaker=config)(fn)


def redress_breaker_sync(fn: Fn) -> Fn:
    redress = library("redress")
    policy = redress.Policy(circuit_breaker=redress.CircuitBreaker(failure_threshold=5, recovery_timeout_s=60.0))

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return policy.call(lambda: fn(*args, **kwargs))

    return wrapper


def redress_breaker_coro(fn: Fn) -> Fn:
    redress = library("redress")
    policy = redress.AsyncPolicy(circuit_breaker=redress.CircuitBreaker(failure_threshold=5, recovery_timeout_s=60.0))

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await policy.call(lambda: fn(*args, **kwargs))

    return wrapper


BREAKERS = (
    dual(OURS, "@CircuitBreaker", decorated(outlast_breaker)),
    Contender("pybreaker", "@CircuitBreaker", decorated(pybreaker_breaker), None),
    dual("circuitbreaker", "@CircuitBreaker", decorated(circuitbreaker_breaker)),
    dual("interlock-cb", "@CircuitBreaker", decorated(interlock_breaker)),
    Contender("redress", "Policy(circuit_breaker=...)", redress_breaker_sync, redress_breaker_coro),
    dual("pyresilience", "@resilient(circuit_breaker=...)", pyresilience_breaker),
)
MORE_BREAKERS = (
    dual(OURS, "@CircuitBreaker(failure_rate=0.5)", decorated(outlast_rate_breaker)),
    Contender(OURS, "breaker.call, .acall", called(outlast_breaker, "call"), called(outlast_breaker, "acall")),
    Contender("pybreaker", "breaker.call", called(pybreaker_breaker, "call"), None),
    dual("interlock-cb", "breaker.call", called(interlock_breaker, "call")),
)


# Everything at once: three attempts, a breaker, a retry budget, a total timeout of a minute, at most 64 calls at a time.

WIDTH = 64


def outlast_full(fn: Fn) -> Any:
    outlast = library("outlast")
    return outlast.Guard(
        "bench",
        retry=outlast.RetryPolicy(max_attempts=ATTEMPTS, max_delay=MAX_DELAY),
        total_timeout=60.0,
        breaker=outlast_breaker(),
        retry_budget=outlast.RetryBudget("bench"),
        limit=outlast.Limit("bench", concurrency=WIDTH),
    )(fn)


def redress_parts(retry: Any) -> dict[str, Any]:
    redress = library("redress")
    return {
        "retry": retry(
            classifier=redress.default_classifier,
            strategy=library("redress.strategies").equal_jitter(base_s=1.0, max_s=MAX_DELAY),
            max_attempts=ATTEMPTS,
            deadline_s=60.0,
            budget=redress.Budget(max_retries=100, window_s=60.0),
        ),
        "circuit_breaker": redress.CircuitBreaker(failure_threshold=5, recovery_timeout_s=60.0),
    }


def redress_full_sync(fn: Fn) -> Fn:
    redress = library("redress")
    policy = redress.Policy(**redress_parts(redress.Retry))

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return policy.call(lambda: fn(*args, **kwargs))

    return wrapper


def redress_full_coro(fn: Fn) -> Fn:
    redress = library("redress")
    policy = redress.AsyncPolicy(**redress_parts(redress.AsyncRetry))

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await policy.call(lambda: fn(*args, **kwargs))

    return wrapper


def pyresilience_full(fn: Fn, **more: Any) -> Any:
    pyresilience = library("pyresilience")
    return pyresilience.resilient(
        retry=pyresilience.RetryConfig(max_attempts=ATTEMPTS, delay=1.0, max_delay=MAX_DELAY, retry_on=TRANSIENT),
        circuit_breaker=pyresilience.CircuitBreakerConfig(failure_threshold=5, recovery_timeout=60.0),
        bulkhead=pyresilience.BulkheadConfig(max_concurrent=WIDTH),
        retry_budget=pyresilience.RetryBudgetConfig(),
        **more,
    )(fn)


def pyresilience_full_coro(fn: Fn) -> Any:
    timeout = library("pyresilience").TimeoutConfig(seconds=60.0, per_attempt=False)
    return pyresilience_full(fn, timeout=timeout)


class Stack:
    """The state of a stack written by hand: failures in a row, when the circuit opened, retries in the budget."""

    def __init__(self) -> None:
        self.failures = 0
        self.open_until = 0.0
        self.tokens = 10.0

    def admit(self, now: float) -> None:
        if now < self.open_until:
            message = "open"
            raise RuntimeError(message)

    def failed(self, now: float, attempt: int) -> bool:
        self.failures += 1
        if self.failures >= 5:
            self.open_until = now + 60.0
        if attempt == ATTEMPTS or self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    def worked(self, attempt: int) -> None:
        self.failures = 0
        if attempt == 1:
            self.tokens = min(self.tokens + 0.2, 210.0)


def stack_coro(fn: Fn) -> Fn:
    import asyncio
    import time

    stack, places = Stack(), asyncio.Semaphore(WIDTH)

    @functools.wraps(fn)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        end, attempt = time.monotonic() + 60.0, 1
        while True:
            stack.admit(time.monotonic())
            try:
                async with places, asyncio.timeout(end - time.monotonic()):
                    result = await fn(*args, **kwargs)
            except TRANSIENT:
                if not stack.failed(time.monotonic(), attempt):
                    raise
            else:
                stack.worked(attempt)
                return result
            await asyncio.sleep(2.0 ** (attempt - 1))
            attempt += 1

    return wrapper


ALL_SYNC = (
    BARE,
    FLOOR,
    Contender(OURS, "Guard(everything)", outlast_full, None),
    Contender("redress", "Policy(everything but a limit)", redress_full_sync, None),
    Contender("pyresilience", "@resilient(everything but a timeout)", pyresilience_full, None),
)
ALL_CORO = (
    BARE,
    Contender(NONE, "floor: a stack written by hand", None, stack_coro),
    Contender(OURS, "Guard(everything)", None, outlast_full),
    Contender("redress", "Policy(everything but a limit)", None, redress_full_coro),
    Contender("pyresilience", "@resilient(everything)", None, pyresilience_full_coro),
)


# Isolation: one call of a function that another process can import, whatever the body of the table is.


def identity(x: int) -> int:
    return x


def executor_floor(_: Fn) -> Fn:
    context = library("multiprocessing").get_context("forkserver")
    submit = library("concurrent.futures").ProcessPoolExecutor(1, mp_context=context).submit

    def wrapper(x: int) -> Any:
        return submit(identity, x).result()

    return wrapper


def isolated(kind: str, _: Fn) -> Any:
    return library("outlast").Guard(retry=None, timeout=60, isolation=kind)(identity)


def isolated_cold(fn: Fn) -> Fn:
    call, pool = isolated("process", fn), library("outlast.isolation.processes")._pool  # noqa: SLF001 - a new worker for every call

    def wrapper(x: int) -> Any:
        warm, pool._idle = pool._idle, []  # noqa: SLF001 - as above
        try:
            return call(x)
        finally:
            pool._idle = warm  # noqa: SLF001 - as above

    return wrapper


ISOLATED = (
    BARE,
    Contender(NONE, "floor: ProcessPoolExecutor, submit and result", executor_floor, None),
    Contender(OURS, 'isolation="thread"', functools.partial(isolated, "thread"), None),
    Contender(OURS, 'isolation="process", warm worker', functools.partial(isolated, "process"), None),
    Contender(OURS, 'isolation="process", new worker', isolated_cold, None),
)


# What is measured.


@dataclass(frozen=True, slots=True)
class Scenario:
    """A table of the report: contenders that are timed against each other, round by round."""

    id: str
    title: str
    contenders: tuple[Contender, ...]
    coro: bool = False
    failures: int = 0
    sleeps: bool = True  # False: `time.sleep` and `asyncio.sleep` return at once


SUCCESS = (BARE, FLOOR, BARE_RETRY, *retries(1.0), *BREAKERS)
FAILING = (LOOP_FLOOR, *retries(0.0))
GUARDED = (BARE, FLOOR, *BREAKERS, *MORE_BREAKERS)

TIMED = (
    Scenario("sync", "Success at once, sync", SUCCESS),
    Scenario("async", "Success at once, async", SUCCESS, coro=True),
    Scenario("failures", "Two failures, then success, delay zero, sync", FAILING, failures=2),
    Scenario("failures-async", "Two failures, then success, delay zero, async", FAILING, coro=True, failures=2),
    Scenario("work", "The same with sleeping stubbed, sync", FAILING, failures=2, sleeps=False),
    Scenario("work-async", "The same with sleeping stubbed, async", FAILING, coro=True, failures=2, sleeps=False),
    Scenario("breaker", "Breaker alone, circuit closed, sync", GUARDED),
    Scenario("breaker-async", "Breaker alone, circuit closed, async", GUARDED, coro=True),
    Scenario("full", "Everything at once, success, sync", ALL_SYNC),
    Scenario("full-async", "Everything at once, success, async", ALL_CORO, coro=True),
    Scenario("isolation", "One attempt in isolation", ISOLATED),
)
MEMORY = (FLOOR, BARE_RETRY, *retries(1.0), *BREAKERS)

# The first lines of a program that uses the library once.
PROGRAMS: dict[str, str] = {
    OURS: "from outlast import retry\n@retry\ndef f(): pass\nf()",
    "tenacity": "from tenacity import retry, stop_after_attempt\n@retry(stop=stop_after_attempt(3))\ndef f(): pass\nf()",
    "stamina": "from stamina import retry\n@retry(on=OSError, attempts=3)\ndef f(): pass\nf()",
    "backoff": "import backoff\n@backoff.on_exception(backoff.expo, OSError, max_tries=3)\ndef f(): pass\nf()",
    "redress": "from redress import retry\n@retry\ndef f(): pass\nf()",
    "pyresilience": "from pyresilience import resilient, RetryConfig\n@resilient(retry=RetryConfig())\ndef f(): pass\nf()",
    "pybreaker": "from pybreaker import CircuitBreaker\n@CircuitBreaker()\ndef f(): pass\nf()",
    "circuitbreaker": "from circuitbreaker import circuit\n@circuit\ndef f(): pass\nf()",
    "interlock-cb": "from interlock import CircuitBreaker\n@CircuitBreaker(name='b')\ndef f(): pass\nf()",
}
