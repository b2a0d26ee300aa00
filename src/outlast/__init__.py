"""Outlast: Python pipelines that outlast failure. One resilience policy, declared once, for whatever can fail."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from outlast import observe as observe
    from outlast import presets as presets
    from outlast import report as report
    from outlast import rows as rows
    from outlast import testing as testing
    from outlast.adaptive import AdaptiveLimits as AdaptiveLimits
    from outlast.adaptive import RetryRecord as RetryRecord
    from outlast.app import App as App
    from outlast.breaker import CircuitBreaker as CircuitBreaker
    from outlast.breaker import CircuitState as CircuitState
    from outlast.budgets import RetryBudget as RetryBudget
    from outlast.calls.drivers import Attempt as Attempt
    from outlast.calls.drivers import Attempts as Attempts
    from outlast.calls.guard import Guard as Guard
    from outlast.calls.guard import retry as retry
    from outlast.calls.hedge import Hedge as Hedge
    from outlast.calls.records import AttemptRecord as AttemptRecord
    from outlast.calls.records import Context as Context
    from outlast.calls.records import Outcome as Outcome
    from outlast.calls.state import current as current
    from outlast.calls.state import history as history
    from outlast.calls.state import stop_reason as stop_reason
    from outlast.components import Files as Files
    from outlast.components import Query as Query
    from outlast.components import Table as Table
    from outlast.deadletters import DeadLetter as DeadLetter
    from outlast.deadletters import DeadLetters as DeadLetters
    from outlast.deadletters import FailureGroup as FailureGroup
    from outlast.errors import AttemptTimeoutError as AttemptTimeoutError
    from outlast.errors import CircuitBreakerOpenError as CircuitBreakerOpenError
    from outlast.errors import ConfigurationError as ConfigurationError
    from outlast.errors import LeaseLost as LeaseLost
    from outlast.errors import LimitExceededError as LimitExceededError
    from outlast.errors import OutlastError as OutlastError
    from outlast.errors import PermanentFailure as PermanentFailure
    from outlast.errors import TemporaryFailure as TemporaryFailure
    from outlast.errors import TotalTimeoutError as TotalTimeoutError
    from outlast.flow import Flow as Flow
    from outlast.flow.results import FlowFailed as FlowFailed
    from outlast.flow.results import FlowIncomplete as FlowIncomplete
    from outlast.flow.results import FlowInterrupted as FlowInterrupted
    from outlast.flow.results import FlowResult as FlowResult
    from outlast.flow.results import StepRow as StepRow
    from outlast.jobs.handle import Artifact as Artifact
    from outlast.jobs.handle import AttemptRow as AttemptRow
    from outlast.jobs.handle import Compensation as Compensation
    from outlast.jobs.handle import JobChange as JobChange
    from outlast.jobs.handle import JobFailed as JobFailed
    from outlast.jobs.handle import JobHandle as JobHandle
    from outlast.jobs.handle import JobNotFound as JobNotFound
    from outlast.jobs.handle import ResultLost as ResultLost
    from outlast.jobs.handle import ResultTimeoutError as ResultTimeoutError
    from outlast.jobs.job import BoundJob as BoundJob
    from outlast.jobs.job import Job as Job
    from outlast.jobs.queue import Jobs as Jobs
    from outlast.jobs.queue import QueueStats as QueueStats
    from outlast.jobs.worker import WorkResult as WorkResult
    from outlast.kernel.aliases import Category as Category
    from outlast.kernel.aliases import ErrorSpec as ErrorSpec
    from outlast.kernel.aliases import Jitter as Jitter
    from outlast.kernel.aliases import Seconds as Seconds
    from outlast.kernel.aliases import StopReason as StopReason
    from outlast.kernel.clock import Stop as Stop
    from outlast.limits import Limit as Limit
    from outlast.limits import Rate as Rate
    from outlast.observe.figures import JobFigures as JobFigures
    from outlast.pipeline import ArrowStream as ArrowStream
    from outlast.pipeline import Counts as Counts
    from outlast.pipeline import Degraded as Degraded
    from outlast.pipeline import ItemResult as ItemResult
    from outlast.pipeline import PartialResult as PartialResult
    from outlast.pipeline import Pipeline as Pipeline
    from outlast.pipeline import RunResult as RunResult
    from outlast.pipeline import Skip as Skip
    from outlast.pipeline import Snooze as Snooze
    from outlast.pipeline import Stage as Stage
    from outlast.pipeline import amap as amap
    from outlast.pipeline import map as map  # noqa: A004 - outlast.map
    from outlast.pipeline import stage as stage
    from outlast.pipeline import use as use
    from outlast.pipeline.errors import FailureBudgetExceeded as FailureBudgetExceeded
    from outlast.pipeline.errors import RunFailed as RunFailed
    from outlast.pipeline.errors import RunIncomplete as RunIncomplete
    from outlast.pipeline.errors import RunInterrupted as RunInterrupted
    from outlast.pipeline.errors import result_of as result_of
    from outlast.policy import Decision as Decision
    from outlast.policy import Delay as Delay
    from outlast.policy import RetryPolicy as RetryPolicy
    from outlast.rows import RowTransformStep as RowTransformStep
    from outlast.rows import StepResult as StepResult
    from outlast.settings.secret import Secret as Secret
    from outlast.spec.manifest import Manifest as Manifest
    from outlast.spec.manifest import ManifestStep as ManifestStep
    from outlast.verdicts import Verdict as Verdict
    from outlast.verdicts import classify as classify
    from outlast.verdicts import register as register

__version__ = "0.1.0"

# Where each public name lives. Nothing is loaded before it is asked for: `from outlast import retry` costs
# milliseconds.
_ROOMS = {
    "app": "App",
    "breaker": "CircuitBreaker CircuitState",
    "budgets": "RetryBudget",
    "calls.drivers": "Attempt Attempts",
    "calls.guard": "Guard retry",
    "calls.hedge": "Hedge",
    "calls.records": "AttemptRecord Context Outcome",
    "calls.state": "current history stop_reason",
    "components": "Files Query Table",
    "deadletters": "DeadLetter DeadLetters FailureGroup",
    "errors": "AttemptTimeoutError CircuitBreakerOpenError ConfigurationError LeaseLost LimitExceededError OutlastError PermanentFailure TemporaryFailure TotalTimeoutError",
    "flow": "Flow",
    "flow.results": "FlowFailed FlowIncomplete FlowInterrupted FlowResult StepRow",
    "jobs.handle": "Artifact AttemptRow Compensation JobChange JobFailed JobHandle JobNotFound ResultLost ResultTimeoutError",
    "jobs.job": "BoundJob Job",
    "jobs.queue": "Jobs QueueStats",
    "jobs.worker": "WorkResult",
    "kernel.aliases": "Category ErrorSpec Jitter Seconds StopReason",
    "kernel.clock": "Stop",
    "limits": "Limit Rate",
    "observe.figures": "JobFigures",
    "pipeline": "ArrowStream Counts Degraded ItemResult PartialResult Pipeline RunResult Skip Snooze Stage amap map stage use",
    "pipeline.errors": "FailureBudgetExceeded RunFailed RunIncomplete RunInterrupted result_of",
    "adaptive": "AdaptiveLimits RetryRecord",
    "policy": "Decision Delay RetryPolicy",
    "rows": "RowTransformStep StepResult",
    "settings.secret": "Secret",
    "spec.manifest": "Manifest ManifestStep",
    "verdicts": "Verdict classify register",
}
_MODULES = ("observe", "presets", "report", "rows", "testing")
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}
__all__ = sorted([*_HOME, *_MODULES])  # pyright: ignore[reportUnsupportedDunderAll]  # noqa: PLE0605 - loaded by __getattr__


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOME:
        value = getattr(import_module(f"outlast.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"outlast.{name}")
    else:
        raise AttributeError(f"module 'outlast' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "annotations"})
