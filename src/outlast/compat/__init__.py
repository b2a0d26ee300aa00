"""
Names that older code knows, each with the meaning it had there. Thin: everything is done by the policy, the guard and
the breaker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from outlast import breaker, policy
from outlast.breaker import CircuitState as CircuitState
from outlast.calls import guard
from outlast.compat.letters import DeadLetterQueue as DeadLetterQueue
from outlast.compat.letters import get_dlq_samples as get_dlq_samples
from outlast.compat.letters import move_to_dlq as move_to_dlq
from outlast.compat.letters import reprocess_dlq as reprocess_dlq
from outlast.compat.levels import as_loud
from outlast.compat.pipelines import Pipeline as Pipeline
from outlast.compat.pipelines import PipelineConfig as PipelineConfig
from outlast.compat.pipelines import PipelineResult as PipelineResult
from outlast.deadletters import DeadLetterEntry
from outlast.errors import CircuitBreakerOpenError, ConfigurationError, TemporaryFailure
from outlast.kernel.clock import here
from outlast.kernel.redact import error_text
from outlast.observe import listening
from outlast.observe.events import canonical
from outlast.pipeline.mapping import tell_item
from outlast.rows import RowTransformStep as RowTransformStep
from outlast.rows import StepResult as StepResult
from outlast.verdicts import classify

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from outlast.pipeline import Stage

    T = TypeVar("T")

__all__ = [
    "CircuitBreaker",
    "CircuitBreakerOpenError",
    "CircuitState",
    "DeadLetterEntry",
    "DeadLetterQueue",
    "PartialResult",
    "Pipeline",
    "PipelineConfig",
    "PipelineResult",
    "RetryPolicy",
    "RowTransformStep",
    "StepResult",
    "TemporaryFailure",
    "apply_with_retry",
    "calculate_adaptive_limits",
    "canonical",
    "compute_delay",
    "execute_with_graceful_degradation",
    "execute_with_tiered_retry",
    "get_dlq_samples",
    "get_max_retries_for_tier",
    "is_retryable_error",
    "move_to_dlq",
    "reprocess_dlq",
    "retriable",
    "retry_with_backoff",
]

_TIERS = ("database", "network", "http_429_503", "http_500_502_504", "data")
_STATUSES = (429, 503, 500, 502, 504)  # those that have a tier


async def retry_with_backoff(
    func: Callable[..., Awaitable[T]],
    *args: Any,
    max_attempts: int = 3,
    base_delay: float = 1.0,
    max_delay: float = 60.0,
    jitter: bool = True,
    retryable_exceptions: tuple[type[Exception], ...] = (TimeoutError, ConnectionError, TemporaryFailure),
    **kwargs: Any,
) -> T:
    """
    Await func, at most `max_attempts` times: waits of base, 2·base, 4·base, ... up to `max_delay`, plus up to a second
    of jitter.
    """
    settings = policy.RetryPolicy(
        max_attempts=max_attempts,
        initial_delay=min(base_delay, max_delay),
        max_delay=max_delay,
        jitter={"add": 1.0} if jitter else 0.0,
        cap="before_jitter",
        on_errors=retryable_exceptions,
    )
    with as_loud():
        return await guard.Guard(retry=settings).acall(func, *args, **kwargs)


def is_retryable_error(error: Exception, http_status: int | None = None) -> tuple[bool, str]:
    """
    Whether an error is worth a retry, and its tier: database, network, http_429_503, http_500_502_504, data or unknown.

    >>> is_retryable_error(ConnectionResetError()), is_retryable_error(ValueError()), is_retryable_error(Exception(), 503)
    ((True, 'network'), (False, 'data'), (True, 'http_429_503'))
    """
    # In this order: what the error says of a database or a network, the status, what else the error says.
    verdict = classify(error)
    if verdict.tier not in {"database", "network"} and http_status in _STATUSES:
        verdict = classify(http_status)
    if verdict.tier in _TIERS:
        return verdict.category == "transient", verdict.tier
    return False, "unknown"


def get_max_retries_for_tier(tier: str, retry_limits: Mapping[str, int]) -> int:
    """The retries that a tier has; a tier that is not listed has none."""
    return retry_limits.get(tier, 0)


def calculate_adaptive_limits(tier: str, current_limit: int, success_rate: float) -> int:
    """
    The limit of the database tier, by its success rate: 3 above 90 %, 7 below 70 %, else as it is. Other tiers, and a limit
    of 0, are as they are. Nothing calls this: `outlast.AdaptiveLimits` is the rule that does not retry more in an outage.
    """
    if isinstance(success_rate, bool) or not isinstance(success_rate, int | float) or not 0 <= success_rate <= 1:
        raise ConfigurationError(f"expected success_rate to be a share from 0 to 1, got: {success_rate!r}.")
    if tier != "database" or current_limit <= 0:
        return current_limit
    return 3 if success_rate > 0.90 else 7 if success_rate < 0.70 else current_limit


def execute_with_tiered_retry(func: Callable[[], T], retry_limits: Mapping[str, int], backoff_base: float = 1.0) -> T:
    """Call func, with as many retries as the tier of each error has; waits of base, 2·base, 4·base, ... seconds."""
    settings = policy.RetryPolicy(
        initial_delay=backoff_base, max_delay=None, jitter=0.0, retry_limits=dict(retry_limits)
    )
    with as_loud():
        return guard.Guard(retry=settings).call(func)


def apply_with_retry(sample: Any, stage: Stage[..., Any, Any]) -> Any:
    """
    What the stage makes of one sample, with the stage's own retries: its result, or the error of its last attempt.

    For a stage that is async this is a coroutine. Nothing is kept on record: a `Pipeline` does that.
    """
    if stage.resources:
        message = f"expected a stage without use(), got: {stage.name}, which uses {', '.join(stage.resources)}. A Pipeline opens them."
        raise ConfigurationError(message)
    door = stage.guard.acall if stage.is_async else stage.guard.call
    return door(stage.fn, sample)


def RetryPolicy(  # noqa: N802 - the name it had
    max_attempts: int = 3,
    backoff: str = "jittered_exponential",
    base_delay_ms: float = 1000,
    max_delay_ms: float = 60_000,
    retriable_errors: Any = "all",
) -> policy.RetryPolicy:
    """
    A policy in the words of stage policies: jittered_exponential, fixed or linear; milliseconds; all, none or a list.
    """
    config: dict[str, Any] = {
        "max_attempts": max_attempts,
        "backoff": backoff,
        "base_delay_ms": base_delay_ms,
        "retriable_errors": retriable_errors,
    }
    return policy.RetryPolicy.from_config(config if backoff == "fixed" else config | {"max_delay_ms": max_delay_ms})


def compute_delay(attempt: int, policy: policy.RetryPolicy, *, roll: float | None = None) -> int:
    """The wait in whole milliseconds after attempt number `attempt` failed."""
    return round(policy.delay(attempt, here.get().dice.roll() if roll is None else roll) * 1000)


def retriable(error: Exception | int, policy: policy.RetryPolicy) -> bool:
    """
    Whether the policy would try this error, or this HTTP status, again.

    >>> listed = RetryPolicy(retriable_errors=["timeout", 429])
    >>> retriable(429, listed), retriable(404, listed)
    (True, False)
    """
    if isinstance(error, Exception):
        return policy.refuses(error, classify(error), 0) is None
    status = error if type(error) is int and 100 <= error <= _LAST_STATUS else None
    # Not an exception, so no name and no type in the list is meant.
    return status is not None and policy.refuses(_Answered(), classify(status), 0) is None


class _Answered(Exception):
    """An answer with a status."""


_LAST_STATUS = 599


class CircuitBreaker:
    """
    A breaker for coroutine functions that counts every exception: consecutive failures open it, consecutive successes
    close it.

    `name` is what events and metrics call it; without one each breaker gets a name of its own.
    """

    def __init__(
        self,
        failure_threshold: int = 5,
        timeout_seconds: float = 60,
        success_threshold: int = 2,
        *,
        name: str | None = None,
    ) -> None:
        self.failure_threshold = failure_threshold
        self.timeout_seconds = timeout_seconds
        self.success_threshold = success_threshold
        self._breaker = breaker.CircuitBreaker(
            f"compat-{here.get().ids.new()[:12]}" if name is None else name,
            failure_threshold=failure_threshold,
            reset_timeout=timeout_seconds,
            half_open_requests=success_threshold,
            success_threshold=success_threshold,
            count="any",
        )

    @property
    def name(self) -> str:
        """What events and metrics call it."""
        return self._breaker.name

    @property
    def state(self) -> CircuitState:
        """closed, open or half_open."""
        return self._breaker.state

    @property
    def failure_count(self) -> int:
        """Failures in a row."""
        return self._breaker.failure_count

    @property
    def success_count(self) -> int:
        """Successes since the circuit turned half-open."""
        return self._breaker.success_count

    @property
    def opened_at(self) -> datetime | None:
        """When it opened, if it is not closed."""
        return self._breaker.opened_at

    @property
    def last_failure_time(self) -> datetime | None:
        """When a call last failed."""
        return self._breaker.last_failure_time

    async def call(self, func: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Await func unless the circuit is open."""
        return await self._breaker.acall(func, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class PartialResult:
    """How a task fared over repositories: `failed_repos` holds (repository, error)."""

    status: str
    total_repos: int
    successful_repos: list[str]
    failed_repos: list[tuple[str, str]]
    execution_time_seconds: float
    metadata: dict[str, Any] = field(default_factory=dict)


class Adapter(Protocol):
    """What does a task for repositories."""

    def execute(self, task: dict[str, Any], repos: list[str], /) -> Any: ...


async def execute_with_graceful_degradation(task: dict[str, Any], repos: list[str], adapter: Adapter) -> PartialResult:
    """Do the task for every repository, all at the same time; those that fail stop no other."""
    import asyncio

    clock = here.get().clock
    started = clock.monotonic()
    ends = await asyncio.gather(*(_done(adapter, task, repo) for repo in repos), return_exceptions=True)
    done: list[str] = []
    failed: list[tuple[str, str]] = []
    for repo, end in zip(repos, ends, strict=True):
        if isinstance(end, Exception):
            failed.append((repo, error_text(end)))
        elif isinstance(end, BaseException):
            raise end  # control flow is nobody's failure
        else:
            done.append(repo)
        if listening():
            with as_loud():
                tell_item(type(adapter).__name__, repo, end if isinstance(end, Exception) else None)
    return PartialResult(
        status="partial" if done and failed else "failure" if failed else "success",
        total_repos=len(repos),
        successful_repos=done,
        failed_repos=failed,
        execution_time_seconds=clock.monotonic() - started,
        metadata={"task": task, "adapter": type(adapter).__name__},
    )


async def _done(adapter: Adapter, task: dict[str, Any], repo: str) -> Any:
    """What the adapter makes of one repository. Whatever it does wrong, it does so for this one."""
    result = adapter.execute(task, [repo])
    return await result if isawaitable(result) else result
