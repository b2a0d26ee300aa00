"""
Names that older code knows, each with the meaning it had there. Thin: everything is done by the policy, the guard and the breaker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from outlast import breaker, guard, policy
from outlast.clock import here
from outlast.compat.pipelines import Pipeline as Pipeline
from outlast.compat.pipelines import PipelineConfig as PipelineConfig
from outlast.compat.pipelines import PipelineResult as PipelineResult
from outlast.deadletters import DeadLetterEntry, Directory
from outlast.errors import CircuitBreakerOpenError, ConfigurationError, TemporaryFailure
from outlast.log import logger
from outlast.observe import emit, listening
from outlast.observe.events import DeadLetterEnqueue, DeadLetterReplay, ItemFailed, ItemSucceeded, canonical
from outlast.redact import error_text
from outlast.rows import RowTransformStep as RowTransformStep
from outlast.rows import StepResult as StepResult
from outlast.verdicts import classify

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from outlast.breaker import CircuitState

    T = TypeVar("T")

__all__ = [
    "CircuitBreaker",
    "CircuitBreakerOpenError",
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
    "canonical",
    "compute_delay",
    "execute_with_graceful_degradation",
    "execute_with_tiered_retry",
    "get_max_retries_for_tier",
    "is_retryable_error",
    "retriable",
    "retry_with_backoff",
]

_TIERS = ("database", "network", "http_429_503", "http_500_502_504", "data")


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
    """Await func, at most `max_attempts` times: waits of base, 2·base, 4·base, ... up to `max_delay`, plus up to a second of jitter."""
    settings = policy.RetryPolicy(
        max_attempts=max_attempts,
        initial_delay=min(base_delay, max_delay),
        max_delay=max_delay,
        jitter={"add": 1.0} if jitter else 0.0,
        cap="before_jitter",
        on_errors=retryable_exceptions,
    )
    return await guard.Guard(retry=settings).acall(func, *args, **kwargs)


def is_retryable_error(error: Exception, http_status: int | None = None) -> tuple[bool, str]:
    """
    Whether an error is worth a retry, and its tier: database, network, http_429_503, http_500_502_504, data or unknown.

    >>> is_retryable_error(ConnectionResetError()), is_retryable_error(ValueError()), is_retryable_error(Exception(), 503)
    ((True, 'network'), (False, 'data'), (True, 'http_429_503'))
    """
    verdict = classify(error)
    # A database or network error says more than a status beside it; a status says more than a generic exception.
    if http_status is not None and verdict.tier not in {"database", "network"}:
        verdict = classify(http_status)
    if verdict.tier in _TIERS:
        return verdict.category == "transient", verdict.tier
    return False, "unknown"


def get_max_retries_for_tier(tier: str, retry_limits: Mapping[str, int]) -> int:
    """The retries that a tier has; a tier that is not listed has none."""
    return retry_limits.get(tier, 0)


def execute_with_tiered_retry(func: Callable[[], T], retry_limits: Mapping[str, int], backoff_base: float = 1.0) -> T:
    """Call func, with as many retries as the tier of each error has; waits of base, 2·base, 4·base, ... seconds."""
    settings = policy.RetryPolicy(
        initial_delay=backoff_base, max_delay=None, jitter=0.0, retry_limits=dict(retry_limits)
    )
    return guard.Guard(retry=settings).call(func)


def RetryPolicy(  # noqa: N802 - the name it had
    max_attempts: int = 3,
    backoff: str = "jittered_exponential",
    base_delay_ms: float = 1000,
    max_delay_ms: float = 60_000,
    retriable_errors: Any = "all",
) -> policy.RetryPolicy:
    """A policy in the words of stage policies: jittered_exponential, fixed or linear; milliseconds; all, none or a list."""
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


def retriable(error: Exception, policy: policy.RetryPolicy) -> bool:
    """Whether the policy would try this error again."""
    return policy.refuses(error, classify(error), 0) is None


class CircuitBreaker:
    """A breaker for coroutine functions that counts every exception: consecutive failures open it, consecutive successes close it."""

    def __init__(self, failure_threshold: int = 5, timeout_seconds: float = 60, success_threshold: int = 2) -> None:
        self.failure_threshold = failure_threshold
        self.timeout_seconds = timeout_seconds
        self.success_threshold = success_threshold
        self._breaker = breaker.CircuitBreaker(
            "compat",
            failure_threshold=failure_threshold,
            reset_timeout=timeout_seconds,
            half_open_requests=success_threshold,
            success_threshold=success_threshold,
            count="any",
        )

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


class DeadLetterQueue:
    """
    Failed work as a folder of JSON files, one for each entry.

    `execute` is what does the work again: an async function that takes `task`, `repos` and `adapter_name` and returns a dict. An entry is
    removed once its replay has come back well, and not before: whatever interrupts a replay, the entry is still there.
    """

    def __init__(
        self,
        queue_dir: str | Path = Path(".mahavishnu") / "dead_letter",
        *,
        execute: Callable[..., Awaitable[dict[str, Any]]] | None = None,
    ) -> None:
        self.queue_dir = Path(queue_dir)
        self.queue_dir.mkdir(parents=True, exist_ok=True)
        self._directory = Directory(self.queue_dir)
        self._execute = execute

    async def enqueue(
        self,
        workflow_id: str,
        task: dict[str, Any],
        repos: list[str],
        adapter: str,
        error: Exception,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Keep what failed; returns the entry's id."""
        entry = DeadLetterEntry(
            id=str(UUID(hex=here.get().ids.new(), version=4)),
            workflow_id=workflow_id,
            task=task,
            repos=repos,
            adapter=adapter,
            error=error_text(error),
            error_type=type(error).__name__,
            timestamp=here.get().clock.now().isoformat(),
            metadata=metadata or {},
        )
        self._directory.write(entry)
        if listening():
            emit(
                DeadLetterEnqueue(
                    run_id=workflow_id,
                    letter_id=entry.id,
                    item_id=workflow_id,
                    step_id=adapter,
                    error=entry.error,
                    error_type=entry.error_type,
                    error_class=classify(error).error_class,
                )
            )
        return entry.id

    async def list_entries(self) -> list[DeadLetterEntry]:
        """All entries, newest first. A file that holds none is left where it is and named in the log."""
        entries, problems = self._directory.entries()
        for problem in problems:
            logger().warning("dead letter left alone: %s", problem)
        return entries

    async def replay(self, entry_id: str) -> dict[str, Any]:
        """Do the entry's work again; what it returns. The entry goes when that went well."""
        entry = self._directory.read(entry_id)
        if entry is None:
            message = f"Entry not found: {entry_id}"
            raise ValueError(message)
        if self._execute is None:
            message = "expected DeadLetterQueue to know what does the work again. Use DeadLetterQueue(folder, execute=function)."
            raise ConfigurationError(message)
        result = await self._execute(task=entry.task, repos=entry.repos, adapter_name=entry.adapter)
        status = str(result.get("status"))
        if status not in {"failure", "failed", "error"}:
            self._directory.remove(entry_id)
        if listening():
            emit(
                DeadLetterReplay(
                    run_id=entry.workflow_id,
                    letter_id=entry.id,
                    item_id=entry.workflow_id,
                    step_id=entry.adapter,
                    status=status,
                )
            )
        return result


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

    async def execute(self, task: dict[str, Any], repos: list[str], /) -> Any: ...


async def execute_with_graceful_degradation(task: dict[str, Any], repos: list[str], adapter: Adapter) -> PartialResult:
    """Do the task for every repository, all at the same time; those that fail stop no other."""
    import asyncio

    clock = here.get().clock
    started = clock.monotonic()
    ends = await asyncio.gather(*(adapter.execute(task, [repo]) for repo in repos), return_exceptions=True)
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
            _tell_of(repo, end, type(adapter).__name__)
    return PartialResult(
        status="partial" if done and failed else "failure" if failed else "success",
        total_repos=len(repos),
        successful_repos=done,
        failed_repos=failed,
        execution_time_seconds=clock.monotonic() - started,
        metadata={"task": task, "adapter": type(adapter).__name__},
    )


def _tell_of(repo: str, end: Any, adapter: str) -> None:
    if isinstance(end, Exception):
        emit(
            ItemFailed(
                item_id=repo,
                step_id=adapter,
                attempts=1,
                error=error_text(end),
                error_type=type(end).__name__,
                error_class=classify(end).error_class,
            )
        )
    else:
        emit(ItemSucceeded(item_id=repo, step_id=adapter, attempts=1))
