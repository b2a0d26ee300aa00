"""
Pipelines of row steps under their older names: a `PipelineConfig`, and a `Pipeline` that executes rows or a table of
pandas.

Each step is a stage of its own, with the retries of the configuration; what failed, what was warned about and every
attempt are on record as in any run.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from outlast import pipeline, policy
from outlast.compat.levels import as_loud
from outlast.errors import ConfigurationError, nearest
from outlast.kernel.clock import here
from outlast.rows.steps import as_step, row_stage
from outlast.settings.checks import Check, Shown
from outlast.settings.names import import_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Never

    from outlast.pipeline import RunResult
    from outlast.rows.steps import RowTransformStep

_LIMITS = {"database": 5, "network": 3, "http_429_503": 3, "http_500_502_504": 2}
_EXCEPTIONS = (
    "psycopg2.OperationalError",
    "psycopg2.InterfaceError",
    "requests.Timeout",
    "requests.ConnectionError",
    "builtins.ConnectionResetError",
    "builtins.BrokenPipeError",
    "builtins.TimeoutError",
)
_STATUSES = (429, 500, 502, 503, 504)
_STEP_KEYS = ("name", "import_path", "options", "requires")


class PipelineConfig:
    """
    What a pipeline of row steps does, and how often it tries again: `retry_limits` has the retries of each tier (one
    that is not listed has none), `retryable_exceptions` and `retryable_http_status_codes` say what is tried again at
    all, waits are `retry_backoff_base` seconds, twice that, four times, without ceiling or jitter. A step is a
    RowTransformStep, a function of a row, or ``{"name": ..., "import_path": "module:Step", "options": {...}}``.
    """

    def __init__(
        self,
        name: str,
        steps: Sequence[Any],
        retry_limits: Mapping[str, int] | None = None,
        retryable_exceptions: Sequence[str | type[Exception]] = _EXCEPTIONS,
        retryable_http_status_codes: Sequence[int] = _STATUSES,
        retry_backoff_base: float = 1.0,
        stop_on_error: bool = True,  # noqa: FBT001, FBT002 - as it was
        **unknown: Never,
    ) -> None:
        check = Check()
        known = (
            "name steps retry_limits retryable_exceptions retryable_http_status_codes retry_backoff_base stop_on_error"
        )
        check.unknown(unknown, tuple(known.split()))
        self.name = check.name("name", name)
        self.stop_on_error = check.maybe_bool("stop_on_error", stop_on_error) is not False
        self.retry_limits = dict(_LIMITS if retry_limits is None else retry_limits)
        self.retryable_exceptions = tuple(retryable_exceptions)
        self.retryable_http_status_codes = tuple(retryable_http_status_codes)
        self.retry_backoff_base = retry_backoff_base
        self.steps = _named(steps, check)
        self.policy = policy.RetryPolicy(max_attempts=1)
        try:
            self.policy = policy.RetryPolicy.from_config(
                {
                    "retry_backoff_base": retry_backoff_base,
                    "retry_limits": self.retry_limits,
                    "retryable_exceptions": self.retryable_exceptions,
                    "retryable_http_status_codes": self.retryable_http_status_codes,
                }
            )
        except ConfigurationError as wrong:
            check.take(wrong)
        check.raise_if_any()

    def __repr__(self) -> str:
        return f"<PipelineConfig {self.name!r}: {' → '.join(self.steps)}>"


def _named(steps: Any, check: Check) -> dict[str, RowTransformStep]:
    """The steps by their names, in order."""
    if isinstance(steps, str | Mapping) or not isinstance(steps, Iterable):
        check.add("steps", "a list of steps", steps)
        return {}
    made: dict[str, RowTransformStep] = {}
    for place, given in enumerate(steps):
        where = f"steps[{place}]"
        name, step = _declared(given, where, made, check) if isinstance(given, Mapping) else (None, given)
        found = None if step is None else as_step(step, check, where)
        if found is None:
            continue
        name = name or found.name
        if name in made:
            check.add(f"the name of {where}", "one that no other step has", name, "Errors are told by the step's name.")
        made[name] = found
    if not made and not check.problems:
        check.add("steps", "at least one step", "none")
    return made


def _declared(given: Mapping[str, Any], where: str, before: Mapping[str, Any], check: Check) -> tuple[str | None, Any]:
    check.unknown({key: each for key, each in given.items() if key not in _STEP_KEYS}, _STEP_KEYS)
    name = check.name(f"{where}.name", given.get("name"))
    for needed in given.get("requires") or ():
        if needed not in before:
            check.add(f"{where}.requires", "the name of a step before it", needed, nearest(str(needed), [*before]))
    options = given.get("options") or {}
    if not isinstance(options, Mapping):
        check.add(f"{where}.options", "a mapping", options)
        options = {}
    path = given.get("import_path")
    try:
        found = import_name(path)
        if not callable(found):
            raise TypeError("neither a class nor a function")
        return name, found(**options) if isinstance(found, type) else functools.partial(found, **options)
    except Exception as error:  # noqa: BLE001 - whatever somebody's module or class says when it is loaded
        why = f"{path!r}, which cannot be had: {type(error).__name__}: {error}"
        check.add(f"{where}.import_path", "where a step is, as module:Name", Shown(why))
        return name, None


@dataclasses.dataclass(frozen=True, slots=True)
class PipelineResult:
    """
    What an execution came to: `success` if every row came through. `output_data` has the rows that did, as a DataFrame
    if one was given; `error_rows` the others, each with ``row_index``, ``row_data`` as it was given, ``error`` and
    ``step_name``. `run` is the run on record.
    """

    success: bool
    output_data: Any
    warnings: list[str]
    errors: list[str]
    error_rows: list[dict[str, Any]]
    metrics: dict[str, Any]
    run: RunResult[Any]


class Pipeline:
    """
    Executes a `PipelineConfig`. Rows pass the steps one at a time; what a step raises is tried again as the
    configuration says.
    """

    def __init__(self, config: PipelineConfig, *, app: Any = None) -> None:
        if not isinstance(config, PipelineConfig):
            raise ConfigurationError(f"expected a PipelineConfig, got: a value of type {type(config).__name__}.")
        self.config = config
        stages = [row_stage(step, name=name, retry=config.policy, concurrency=1) for name, step in config.steps.items()]
        # What the rows come to decides nothing here: it is the caller who looks at the result.
        self._pipeline: Any = pipeline.Pipeline(
            config.name, *stages, app=app, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0
        )
        self._pipeline._bounds = dataclasses.replace(self._pipeline._bounds, same_failures=0)  # noqa: SLF001 - all are collected

    def execute(self, data: Any) -> PipelineResult:
        """
        Run the rows (mappings, or a DataFrame) through the steps. With ``stop_on_error`` the first row that fails ends
        it: RunFailed, caused by the row's own error. Otherwise the others go on, and it is among the `error_rows`.
        """
        rows = _rows(data)
        out: list[dict[str, Any]] = []
        clock = here.get().clock
        began = clock.monotonic()
        # A row is begun when the one before it has ended, retries and all: with `stop_on_error` the first that fails is
        # the last one.
        with as_loud():
            run: RunResult[Any] = self._pipeline.run_in_turn(
                rows,
                sink=out.extend,
                ordered=True,
                on_item_error="stop" if self.config.stop_on_error else "collect",
                window=1,
            )
        took = clock.monotonic() - began
        ends = list(run.items())
        error_rows = _error_rows(run, rows)
        return PipelineResult(
            success=run.outcome == "success",
            output_data=_like(data, out, [place for place, end in enumerate(ends) if end.status == "succeeded"]),
            warnings=[warning for end in ends for warning in end.warnings],
            errors=[row["error"] for row in error_rows],
            error_rows=error_rows,
            metrics=self._metrics(run, took),
            run=run,
        )

    def _metrics(self, run: RunResult[Any], took: float) -> dict[str, Any]:
        steps: dict[str, dict[str, Any]] = {
            name: {"rows_processed": 0, "attempts": 0, "retries": 0, "errors": 0, "duration_ms": 0.0}
            for name in self.config.steps
        }
        names, after = list(steps), None
        store = self._pipeline.app.store
        while page := store.attempts(store.run(run.id).number, after=after):
            for attempt in page:
                step = steps[names[attempt.stage]]
                step["attempts"] += 1
                step["rows_processed"] += attempt.outcome != "retrying"
                step["retries"] += attempt.outcome == "retrying"
                step["errors"] += attempt.outcome == "failed"
                step["duration_ms"] += attempt.took_us / 1000
            after = page[-1]
        counts = run.counts
        return {
            "rows": counts.total,
            "valid_rows": counts.succeeded,
            "skipped_rows": counts.skipped,
            "error_rows": counts.failed + counts.dlq,
            "duration_ms": took * 1000,
            "steps": steps,
        }


def _error_rows(run: RunResult[Any], rows: Sequence[Any]) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for line in run.errors():
        place = line.row_index
        if place in found:
            found[place]["error"] += f"; {line.message}"
        else:
            found[place] = {
                "row_index": place,
                "row_data": rows[place],
                "error": line.message,
                "step_name": line.stage,
            }
    return list(found.values())


# -- tables ----------------------------------------------------------------------------------------------------------------


def _pandas(data: Any) -> Any:
    """pandas, if this is a table of its; whoever has such a table has loaded it."""
    pandas = sys.modules.get("pandas")
    return pandas if pandas is not None and isinstance(data, pandas.DataFrame) else None


def _rows(data: Any) -> list[Any]:
    if _pandas(data) is not None:
        if not data.columns.is_unique:
            raise ConfigurationError("expected a table whose columns have different names, got: some of the same name.")
        return data.to_dict("records")  # type: ignore[no-any-return]
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):
        message = f"expected rows, as mappings in a list or as a DataFrame, got: a value of type {type(data).__name__}."
        raise ConfigurationError(message)
    return list(data)


def _like(data: Any, out: list[dict[str, Any]], places: list[int]) -> Any:
    """The rows in the form in which they came; rows of a table keep their labels."""
    pandas = _pandas(data)
    if pandas is None:
        return out
    return pandas.DataFrame(out, index=data.index[places]) if out else data.iloc[:0].copy()
