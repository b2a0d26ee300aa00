"""
What a type checker must see of the package itself, for calls. Checked by mypy and pyright, never run.

The first part is the contract's example as far as calls go; the rest pins what users lean on: a protected function keeps
its signature, a wrong argument is an error where it is written, and every public field has its type.
"""

from __future__ import annotations

import asyncio
import functools
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, assert_type

import outlast
from outlast import CircuitBreaker, CircuitState, Guard, Outcome, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence


class TransportError(Exception):
    pass


def push(batch: list[int]) -> int:
    return len(batch)


async def apush(batch: list[int], *, urgent: bool = False) -> int:
    return len(batch) + urgent


async def cached_answer(prompt: str) -> str:
    return prompt


# --- the contract's example, as far as calls go ---


@outlast.retry
def fetch(url: str) -> bytes:
    return url.encode()


@outlast.retry(max_attempts=5, initial_delay=0.5, total_timeout=60, on_errors=["transient", TransportError])
async def ask(prompt: str) -> str:
    return prompt


batch = [1]
policy = outlast.RetryPolicy(delays=[30, 120, 480], jitter=0.2)
assert_type(policy.schedule()[0].max, float)
assert_type(policy.decide(OSError(), attempt=2, elapsed=31.0).delay, float)
assert_type(outlast.retry(policy).call(push, batch), int)
for attempt in outlast.retry(max_attempts=3).attempts():
    assert_type(attempt.number, int)
    with attempt:
        push(batch)

llm = outlast.Guard(
    "llm",
    retry=outlast.presets.llm,
    timeout=30,
    total_timeout=300,
    breaker=outlast.CircuitBreaker("openai"),
    retry_budget=outlast.RetryBudget("openai"),
    fallback=cached_answer,
)

convert = outlast.Guard("convert", timeout=5, isolation="process")
assert_type(convert.call(push, batch), int)


@llm
async def ask_guarded(prompt: str) -> str:
    assert_type(outlast.current().attempt, int)
    return prompt


out = outlast.retry(max_attempts=2).outcome(push, batch)
assert_type(out, Outcome[int])

with outlast.testing.virtual_time(seed=1) as clock:
    fetch("x")
    assert_type(clock.sleeps, list[float])
    assert_type(clock.now, float)
    clock.advance(1.5)


# --- a protected function keeps its signature ---

assert_type(fetch("x"), bytes)
typed_fetch: Callable[[str], bytes] = fetch
# The arguments are checked where they are written; the ignores are errors themselves if they ever match nothing.
fetch(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
fetch()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def awaited() -> None:
    assert_type(await ask("x"), str)
    assert_type(await ask_guarded(prompt="x"), str)
    typed: Coroutine[Any, Any, str] = ask("x")
    assert_type(await typed, str)
    assert_type(await llm.acall(apush, [1], urgent=True), int)
    assert_type(await llm.aoutcome(apush, [1]), Outcome[int])
    async for attempt in llm.attempts():
        with attempt:
            assert_type(await apush([1]), int)
    assert_type(await llm.acall(len, "x"), int)  # blocking code, with isolation
    await llm.acall(apush, ["1"])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


class Client:
    @outlast.retry
    def get(self, path: str, *, limit: int = 10) -> list[str]:
        return [path] * limit

    @outlast.retry(max_attempts=2)
    async def aget(self, path: str) -> list[str]:
        return [path]

    @classmethod
    @outlast.retry
    def default(cls) -> Client:
        return cls()

    @staticmethod
    @outlast.retry
    def version() -> str:
        return "1"

    def __call__(self, path: str) -> bool:
        return bool(path)


client = Client()
assert_type(client.get("/", limit=2), list[str])
assert_type(Client.get(client, "/"), list[str])
assert_type(asyncio.run(client.aget("/")), list[str])
assert_type(Client.default(), Client)
assert_type(Client.version(), str)
client.get(limit=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

# callable objects, partials, bound methods, lambdas
assert_type(outlast.retry(client)("/"), bool)
assert_type(outlast.retry(functools.partial(push, [1, 2]))(), int)
assert_type(llm.call(functools.partial(push, [1, 2])), int)
assert_type(llm.call(client.get, "/", limit=1), list[str])
assert_type(llm.call(lambda: 1.5), float)
llm.call(push, "x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

# what comes out of retry
assert_type(outlast.retry(policy), Guard)
assert_type(outlast.retry(policy, timeout=timedelta(seconds=5), total_timeout=60), Guard)
assert_type(outlast.retry(max_attempts=3, timeout=5), Guard)
outlast.retry(max_attempt=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


# --- values ---

assert_type(out.ok, bool)
assert_type(out.value, int)
assert_type(out.error, Exception | None)
assert_type(out.attempts, tuple[outlast.AttemptRecord, ...])
assert_type(out.elapsed, float)
assert_type(out.reason, outlast.StopReason | None)

record = outlast.history(OSError())[0]
assert_type(record.number, int)
assert_type(record.started_at, datetime)
assert_type(record.duration, float)
assert_type(record.error, str | None)
assert_type(record.verdict, outlast.Verdict | None)
assert_type(record.delay, float | None)
assert_type(outlast.stop_reason(OSError()), outlast.StopReason | None)

verdict = outlast.classify(OSError())
assert_type(verdict, outlast.Verdict)
assert_type(outlast.classify(503), outlast.Verdict)
assert_type(outlast.classify("psycopg.OperationalError"), outlast.Verdict)
category: Literal["transient", "unclear", "permanent"] = verdict.category
assert_type(verdict.error_class, str)
assert_type(verdict.tier, str)
assert_type(verdict.retry_after, float | None)
assert_type(verdict.why, str)
assert_type(verdict.fatal, bool)
assert_type(verdict.status, int | None)
outlast.register(TransportError, "network_error")
outlast.register("vendor.errors.Busy", error_class="unavailable")

decision = policy.decide(OSError(), attempt=1, elapsed=0.0, roll=0.5)
assert_type(decision, outlast.Decision)
assert_type(decision.retry, bool)
assert_type(decision.reason, outlast.StopReason | None)
assert_type(decision.verdict, outlast.Verdict)

delays: Sequence[outlast.Delay] = policy.schedule()
assert_type(delays[0].attempt, int)
assert_type(delays[0].nominal, float)
assert_type(delays[0].min, float)

assert_type(policy.replace(max_attempts=2), RetryPolicy)
assert_type(RetryPolicy.from_config({"max_attempts": 3}), RetryPolicy)
RetryPolicy(backoff="linear", jitter="full", max_delay=None, initial_delay=timedelta(seconds=1))
RetryPolicy(
    jitter={"add": 1.0}, retry_limits={"network": 5}, on_errors=["5xx", 429, TransportError, lambda e: bool(e.args)]
)
RetryPolicy(backoff="random")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
for preset in (
    outlast.presets.default,
    outlast.presets.llm,
    outlast.presets.database,
    outlast.presets.step,
    outlast.presets.jobs,
    outlast.presets.tiered,
    outlast.presets.stage,
    outlast.presets.call,
):
    assert_type(preset, RetryPolicy)


# --- the breaker ---

breaker = CircuitBreaker("openai", failure_threshold=5, reset_timeout=timedelta(minutes=1), failure_rate=0.5)
assert_type(breaker.state, CircuitState)
assert_type(breaker.failure_count, int)
assert_type(breaker.success_count, int)
assert_type(breaker.opened_at, datetime | None)
assert_type(breaker.last_failure_time, datetime | None)
assert_type(breaker.call(push, [1]), int)
assert_type(breaker(push)([1]), int)
breaker.isolate("maintenance")
breaker.reset()
with breaker as same:
    assert_type(same, CircuitBreaker)


@breaker
async def abreak(prompt: str) -> str:
    return prompt


async def broken() -> None:
    assert_type(await abreak("x"), str)
    assert_type(await breaker.acall(apush, [1]), int)


# --- context, errors, events ---

context = outlast.current()
assert_type(context.max_attempts, int)
assert_type(context.last_error, Exception | None)
assert_type(context.idempotency_key, str)
assert_type(context.remaining(), float | None)

problems: Sequence[str] = outlast.ConfigurationError("x").problems
temporary: outlast.OutlastError = outlast.TemporaryFailure(
    "busy", retry_after=timedelta(seconds=3), error_class="timeout"
)
permanent: outlast.OutlastError = outlast.PermanentFailure("no", error_class="data_error")
late: TimeoutError = outlast.AttemptTimeoutError()
too_late: TimeoutError = outlast.TotalTimeoutError()


def rejected(error: outlast.CircuitBreakerOpenError) -> None:
    assert_type(error.name, str)
    assert_type(error.opened_at, datetime)
    assert_type(error.retry_at, datetime)
    assert_type(error.retry_after, float)


stop = outlast.Stop()
with stop, outlast.testing.disabled(), outlast.testing.capture_events() as events:
    assert_type(events, list[Any])
    stop.set()
