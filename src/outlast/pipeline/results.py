"""
What a run came to, as values.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast

from outlast.calls.state import mark_exhausted
from outlast.deadletters import as_groups
from outlast.deciding import REASONS
from outlast.errors import ConfigurationError
from outlast.kernel.redact import error_text
from outlast.kernel.wording import counted, duration
from outlast.pipeline.errors import FailureBudgetExceeded, RunFailed, RunIncomplete, RunInterrupted, mark_with_result
from outlast.pipeline.record.errorfile import append_errors
from outlast.pipeline.record.rowerrors import error_lines
from outlast.store.records import ItemCounts
from outlast.verdicts import as_listed, classify, give_verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import Self

    from outlast.deadletters.letters import FailureGroups
    from outlast.kernel.aliases import StopReason
    from outlast.pipeline.record.rowerrors import ErrorLine
    from outlast.store import Store
    from outlast.store.records import ItemStatus, RunStatus
    from outlast.verdicts import Verdict

A = TypeVar("A")
B = TypeVar("B")
Out_co = TypeVar("Out_co", covariant=True)

# Stop reasons that no policy gave, whatever the error was.
_SAY_NOTHING = frozenset({None, "nested_exhausted", "generator_started", "cancelled", "poison"})
_MOST_OF_A_CAUSE = 200  # characters of a message inside of another one

RunOutcome: TypeAlias = Literal["success", "partial", "failure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts(ItemCounts):
    """
    Where the items of a run are. `total` (items read) is always succeeded + skipped + dlq + failed + pending;
    `degraded` ones are part of the succeeded. `source_exhausted` says whether everything was read.
    """

    total: int = 0
    succeeded: int = 0
    skipped: int = 0
    dlq: int = 0
    failed: int = 0
    pending: int = 0
    degraded: int = 0
    source_exhausted: bool = False

    @classmethod
    def of(cls, counts: ItemCounts, *, degraded: int, source_exhausted: bool) -> Counts:
        """Counts as users get them."""
        return cls(
            total=counts.total,
            succeeded=counts.succeeded,
            skipped=counts.skipped,
            dlq=counts.dlq,
            failed=counts.failed,
            pending=counts.total - counts.finished,
            degraded=degraded,
            source_exhausted=source_exhausted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemResult(Generic[Out_co]):
    """
    How one item ended. `value` is the output of an item that succeeded, `error` the sanitised text of a failure or the
    reason of a skip.
    """

    key: str
    status: ItemStatus
    value: Out_co | None = None
    error: str | None = None
    attempts: int = 1
    stop_reason: StopReason | None = None
    warnings: tuple[str, ...] = ()
    spent: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunResult(Generic[Out_co]):
    """
    What a run came to. `outputs`, `items`, `errors` and `groups` are read from the store when they are asked for; a result
    that was pickled raises ConfigurationError instead.
    """

    id: str
    run_key: str
    pipeline: str
    status: RunStatus
    outcome: RunOutcome
    reason: str | None
    why: str
    counts: Counts
    spent: Mapping[str, float] = field(default_factory=dict)
    error: BaseException | None = None
    _number: int = 0
    _kind: str = "run"
    _store: Callable[[], Store] | None = None
    _decode: Callable[[bytes], Any] | None = None

    def __repr__(self) -> str:
        return f"<RunResult {self.pipeline!r} {self.run_key!r} {self._said()}>"

    def _repr_html_(self) -> str:
        from outlast.display.page import result_page

        try:
            groups = self.groups
            store = None if self._store is None else self._store()
            code = () if store is None else [*store.code_option(self.pipeline), *store.app_option()]
        except Exception as error:  # noqa: BLE001 - what is known without the store is shown all the same
            return result_page(self, (), unread=error_text(error))
        return result_page(self, groups, code=code)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the way to its store: elsewhere there is none.
        public = [each for each in self.__dataclass_fields__ if not each.startswith("_") and each != "error"]
        return _restored, ({each: getattr(self, each) for each in public},)

    @property
    def success_rate(self) -> float:
        """Succeeded items as a share of those that were not skipped."""
        return self.counts.success_rate

    @property
    def groups(self) -> FailureGroups:
        """What is still failed of this run by fingerprint, the largest group first: not what a replay has mended."""
        store = self._reach()[0]
        run = store.run(self.id)
        if run is None:
            return as_groups([])
        # What a replay has not mended is open in the run it comes from.
        open_here = run.kind == "run" and run.counts.dlq
        options = ["--run", run.id[:12], *store.code_option(run.pipeline), *store.app_option()] if open_here else None
        return as_groups(store.failures(run), options)

    def outputs(self) -> Iterator[Out_co]:
        """What the items became, in the order of the source; only of a run without a sink, which has them instead."""
        store, decode = self._reach()
        for output in store.outputs(self._number):
            yield decode(output)

    def items(self, *, status: str | None = None) -> Iterator[ItemResult[Out_co]]:
        """Every item that has ended, in the order of the source."""
        store, decode = self._reach()
        after: int | None = None
        while rows := store.items(self._number, status=status, after=after, limit=500):  # type: ignore[arg-type]
            for row in rows:
                yield ItemResult(
                    key=row.key,
                    status=row.status,
                    value=decode(row.output) if row.output is not None and row.status == "succeeded" else None,
                    error=row.reason,
                    attempts=row.attempts,
                    stop_reason=row.stop_reason,
                    warnings=tuple(row.warnings),
                    spent=dict(row.spent),
                )
            after = rows[-1].seq

    def errors(self) -> Iterator[ErrorLine]:
        """Every error of every item that failed, in the order of the source."""
        store, decode = self._reach()
        return error_lines(store, self.id, decode)

    def _reach(self) -> tuple[Store, Callable[[bytes], Any]]:
        """The store of this run, and what reads its values. A result from another process has neither."""
        if self._store is None or self._decode is None:
            message = (
                f"The result of run {self.run_key!r} of {self.pipeline} came from another process: it has counts, and cannot read the store. "
                f"Read outputs, items, errors and groups where the run was made, and send them. "
                f"In a shell: outlast runs show {self.id[:12]}."
            )
            raise ConfigurationError(message)
        return self._store(), self._decode

    def write_errors(self, path: str | Path, *, reveal: bool = False) -> int:
        """
        Add every error of this run to a CSV file that opens in a spreadsheet; how many lines that were. Lines that are
        there already are not written again, so this may be said after every resume. Without `reveal`, what looks like a
        credential is masked.
        """
        return append_errors(path, self.errors(), reveal=reveal)

    def raise_for_status(self) -> Self:
        """
        Itself if the run is completed. Else it raises RunIncomplete for a partial success, RunInterrupted if the run was
        interrupted, paused or cancelled, and RunFailed (or FailureBudgetExceeded) if it failed.
        """
        if self.status == "completed":
            return self
        error = self._problem()
        mark_with_result(error, self)
        with suppress(Exception):  # its store cannot be read now: nothing is known of what its items failed with
            verdict, reason = verdict_on(self)
            give_verdict(error, verdict)
            if reason is not None:
                mark_exhausted(error, reason)
        raise error from self.error

    def _problem(self) -> RunFailed:
        message = f"run {self.run_key} of {self.pipeline} {self._said()}"
        if self.status == "partial_success":
            return RunIncomplete(f"{message}{self._top_cause()}", result=self)
        if self.status != "failed":
            return RunInterrupted(message, result=self)
        if not isinstance(self.error, FailureBudgetExceeded):
            return RunFailed(message, result=self)
        details = self.error
        return FailureBudgetExceeded(
            message,
            result=self,
            rate=details.rate,
            budget=details.budget,
            processed=details.processed,
            failed=details.failed,
        )

    def _top_cause(self) -> str:
        """What failed most often and the next command, to follow the counts."""
        try:
            groups = self.groups
        except Exception:  # noqa: BLE001 - the counts are known without the store
            return ""
        if not groups:
            return ""
        first = groups[0]
        cause = f"{first.stage}: {first.error_class}: {first.message[:_MOST_OF_A_CAUSE]}"
        said = f". {first.count:,} of {sum(group.count for group in groups):,} failed with {cause}"
        if groups.options is None:  # no dead letters of its own
            return f"{said}. Inspect: {shlex.join(['outlast', 'runs', 'errors', self.id[:12]])}"
        return (
            f"{said}. After the fix: {shlex.join(['outlast', 'dlq', 'replay', '--group', first.id, *groups.options])}"
        )

    def way_on(self) -> str:
        """How this run goes on, in a sentence."""
        run = f"the run {self.run_key!r} of {self.pipeline}"
        if self.status == "cancelled":
            return f"{run} was cancelled and does not go on: begin another one with another run_key."
        if self._kind == "replay":
            return f"{run} was a replay: what it has not finished is replayed by the next one."
        if self.status == "completed":
            return f"{run} is {self.status}: {self.why}"
        if self.status == "partial_success" and not self.counts.pending:
            return f"{run} has finished every item: replay its dead letters after the fix."
        return f"{run} goes on when it is run again with run_key={self.run_key!r}: what is finished is not done again."

    def _said(self) -> str:
        return self.why if self.why.startswith(self.status) else f"{self.status}: {self.why}"


def verdict_on(result: RunResult[Any]) -> tuple[Verdict, StopReason | None]:
    """
    What a run is that did not complete, and why its items were not tried again, if no other layer is to try them.

    Its own error decides, then what ended it, then the error class that most of its failed items have: of two that are
    equal a transient one, since another attempt can do these items. Pending items are transient.
    """
    error = result.error
    if isinstance(error, Exception) and not isinstance(error, FailureBudgetExceeded):
        return classify(error), None
    if result.reason == "breaker_open":
        return classify("circuit_open"), None
    if result.reason == "spend_limit":  # the next attempt has reached it, too
        return classify("permanent_failure"), None
    if result.status in {"cancelled", "interrupted", "paused"}:
        return classify("cancelled" if result.status == "cancelled" else "temporary_failure"), None
    causes = _causes(result)
    if result.reason == "fatal_error":
        fatal = next((cause.verdict for cause in causes if cause.verdict.fatal), None)
        return fatal or classify("permanent_failure"), None
    if not causes:
        return classify("temporary_failure" if result.counts.pending else "data_error"), None
    worst = max(causes, key=lambda cause: (cause.items, cause.verdict.category == "transient"))
    whole = sum(cause.items for cause in causes)
    why = f"{worst.items} of {counted(whole, 'failed item')} failed with {worst.verdict.error_class}"
    owned = worst.retried or worst.reason in {"nested_exhausted", "ambiguous"}  # the last must not be done twice
    return worst.verdict.replace(why=why), worst.reason if owned else None


class _Cause(NamedTuple):
    verdict: Verdict
    items: int
    reason: StopReason | None  # why most of them were not tried again
    retried: bool


def as_stopped(error_class: str, reason: str | None) -> Verdict:
    """
    The verdict on an error of which its class and its stop reason are stored. The reason outweighs the class, which is only a
    name: a TemporaryFailure may have any. Without a word of the reason the class decides.

    >>> as_stopped("validation_error", "exhausted").category, as_stopped("timeout", "permanent").category
    ('transient', 'permanent')
    """
    if reason == "permanent":
        return as_listed(error_class, category="permanent")
    meaning = None if reason in _SAY_NOTHING else REASONS.get(cast("Any", reason))
    return as_listed(error_class, category="transient" if meaning is not None and meaning.retriable else None)


def passing_cause(result: RunResult[Any]) -> str | None:
    """The error class of most items that failed transiently, if any did."""
    causes = [cause for cause in _causes(result) if cause.verdict.category == "transient"]
    return max(causes, key=lambda cause: cause.items).verdict.error_class if causes else None


def _causes(result: RunResult[Any]) -> list[_Cause]:
    """What the failed items of a run failed with, by error class and category."""
    store = None if result._store is None else result._store()  # noqa: SLF001 - same module
    run = None if store is None else store.run(result.id)
    if store is None or run is None:
        return []
    found: dict[tuple[str, str], _Cause] = {}
    for error_class, reason, count, retried in store.failure_causes(run):
        verdict = as_stopped(error_class, reason)
        before = found.get((error_class, verdict.category))
        if before is None:
            before = _Cause(verdict, 0, None, retried=False)
        most: Any = reason if before.reason is None or count * 2 > before.items + count else before.reason
        key = error_class, verdict.category
        found[key] = _Cause(verdict, before.items + count, most, before.retried or retried)
    return [*found.values()]


def _restored(fields: dict[str, Any]) -> RunResult[Any]:
    return RunResult(**fields)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PartialResult(Generic[A, B]):
    """
    How a function fared over many items: what succeeded with its result, what failed with its error, what it skipped
    and why, each in the order it came. `degraded` has those of the succeeded ones that could have been better, and why.
    """

    status: RunOutcome
    total: int
    succeeded: list[tuple[A, B]]
    failed: list[tuple[A, Exception]]
    elapsed: float
    skipped: list[tuple[A, str]] = field(default_factory=list)
    degraded: list[tuple[A, str]] = field(default_factory=list)

    def __repr__(self) -> str:
        # Not the items: there may be millions, and they are the user's own.
        said = f"{len(self.succeeded):,} of {counted(self.total, 'item')} succeeded, {len(self.failed):,} failed"
        said += f", {len(self.skipped):,} skipped" if self.skipped else ""
        return f"<PartialResult {self.status}: {said}, {duration(self.elapsed)}>"

    def _repr_html_(self) -> str:
        from outlast.display.page import partial_page

        return partial_page(self)

    def values(self) -> list[B]:
        """The results alone."""
        return [value for _, value in self.succeeded]
