"""
The counts of a run (how many items have which status) and its stops (too many failures, too much spent). Pure: it
decides, and never waits or writes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING

from outlast.calls.records import add_to
from outlast.kernel.wording import counted
from outlast.pipeline.results import Counts
from outlast.store.records import ItemCounts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlast.pipeline.results import RunOutcome
    from outlast.store.records import ItemRow, ItemStatus, RunCounts, RunStatus

SAME_FAILURES = 50  # finished items in a row with one fingerprint, after which nobody believes in the next one
_MOST_NAMED = 4  # sinks in a sentence
_NOWHERE: Mapping[str, int] = MappingProxyType({})
_status = itemgetter(2)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a run may come to before it is stopped, and what its end is called."""

    failure_budget: float = 0.1
    failure_check_interval: int = 1000
    min_success_rate: float = 0.95
    min_partial_rate: float = 0.5
    spend_limit: Mapping[str, float] | None = None
    final_check: bool = False
    same_failures: int = SAME_FAILURES  # in a row, after which reading stops; 0 for never

    def in_words(self) -> dict[str, str]:
        """For people: what each bound is called, and its value."""
        said = {
            "completed from": f"{self.min_success_rate:.0%}",
            "stops at": f"{self.failure_budget:.0%} failures",
        }
        if self.spend_limit:
            said["spends at most"] = ", ".join(f"{most:,.12g} {name}" for name, most in self.spend_limit.items())
        return said


class Accounting(ItemCounts):
    """
    The counts of a run. `judge` is called when an item ends, and returns a reason to stop reading, or None. `record` is
    called when the ends of items are in the store, and only then are they counted. The counts begin with those of
    earlier passes; what may stop the run is counted anew in each pass.
    """

    def __init__(
        self, bounds: Bounds, before: RunCounts | Counts | None = None, spent: Mapping[str, float] | None = None
    ) -> None:
        before = before or Counts()
        self.bounds = bounds
        self.total = before.total
        self.succeeded = before.succeeded
        self.skipped = before.skipped
        self.dlq = before.dlq
        self.failed = before.failed
        self.degraded = before.degraded
        self.source_exhausted = False
        self.spent: dict[str, float] = dict(spent or {})
        self._spending = dict(self.spent)  # with what is not on record yet
        # of this pass:
        self.processed = 0  # neither skipped nor ended by throttling
        self.failures = 0
        self.next_check = bounds.failure_check_interval
        self._same: str | None = None
        self._row = 0

    def counts(self) -> Counts:
        """The books as they are now."""
        return Counts.of(self, degraded=self.degraded, source_exhausted=self.source_exhausted)

    def record(self, items: Sequence[ItemRow]) -> None:
        """The ends of these items are on record."""
        for status, count in Counter(map(_status, items)).items():
            setattr(self, status, getattr(self, status) + count)
        for item in items:
            if item.degraded:
                self.degraded += 1
            if item.spent:
                add_to(self.spent, item.spent)

    def judge(
        self,
        status: ItemStatus,
        *,
        fingerprint: str | None = None,
        throttled: bool = False,
        spent: Mapping[str, float] | None = None,
    ) -> str | None:
        """An item has ended; why to stop reading, or None."""
        if spent:
            add_to(self._spending, spent)
        if status == "skipped":
            self._row = 0
            return None
        if status == "succeeded":
            self._row = 0
        elif throttled:
            return None
        else:
            self.failures += 1
            self._row = self._row + 1 if fingerprint == self._same else 1
            self._same = fingerprint
        self.processed += 1
        if self._row >= self.bounds.same_failures > 0:
            return "same_failure"
        if self.processed >= self.next_check:
            self.next_check += self.bounds.failure_check_interval
            if self.over_budget:
                return "failure_budget_exceeded"
        return None

    def take_back(self, *, spent: Mapping[str, float] | None = None) -> None:
        """An item that was judged as a success is none, and will be judged again."""
        self.processed -= 1
        add_to(self._spending, {name: -amount for name, amount in (spent or {}).items()})

    @property
    def overspent(self) -> str | None:
        """What more was spent of than is allowed."""
        limits = self.bounds.spend_limit or {}
        return next((name for name, most in limits.items() if self._spending.get(name, 0.0) >= most), None)

    @property
    def rate(self) -> float:
        """Failed items as a share of the finished ones of this pass."""
        return self.failures / self.processed if self.processed else 0.0

    @property
    def over_budget(self) -> bool:
        return self.rate > self.bounds.failure_budget

    # -- the end

    @property
    def all_ended(self) -> bool:
        """Whether everything was read, and all of it has ended."""
        return self.source_exhausted and self.total == self.finished

    def verdict(self) -> tuple[RunStatus, str | None]:
        """What a run that came to its end is called, and why if it failed."""
        rate = self.counts().success_rate
        if rate >= self.bounds.min_success_rate:
            return "completed", None
        if rate >= self.bounds.min_partial_rate:
            return "partial_success", None
        return "failed", "low_success_rate"

    def outcome(self) -> RunOutcome:
        """The strict word for it: success only if everything was read and nothing failed."""
        failures = self.dlq + self.failed
        if failures == 0 and self.all_ended:
            return "success"
        return "failure" if failures and not self.succeeded else "partial"


def counts_in_words(
    counts: Counts, *, missing: bool = False, elsewhere: Mapping[str, int] = _NOWHERE, untried: int | None = None
) -> str:
    """
    How many items are where, as the beginning of a sentence; whether those that are pending are missing in the source;
    and which of those that succeeded are `elsewhere`: in sinks that replays were given. `untried` is for replays alone:
    how many letters could not be tried.
    """
    said = f"{counts.succeeded:,} of {counted(counts.total, 'item')} succeeded{_replayed(elsewhere)}"
    if counts.skipped:
        said += f", {counts.skipped} {'was' if counts.skipped == 1 else 'were'} skipped"
    if counts.dlq and untried is None:
        said += f", {counts.dlq} became {'a dead letter' if counts.dlq == 1 else 'dead letters'}"
    elif counts.dlq:
        told = {"failed again": counts.dlq - (untried or 0), f"{'was' if untried == 1 else 'were'} not tried": untried}
        said += "".join(f", {many} {what}" for what, many in told.items() if many)
    if counts.failed:
        said += f", {counts.failed} failed"
    if counts.pending:
        said += f", {counts.pending} {'is' if counts.pending == 1 else 'are'} pending"
        if missing:
            said += " (read by an earlier pass, and not given again by the source)"
    if not counts.source_exhausted:
        said += ", the rest of the source was not read"
    return said


def _replayed(elsewhere: Mapping[str, int]) -> str:
    """
    Which items are in other sinks.

    >>> _replayed({}), _replayed({"a.jsonl": 1, "table t": 2})
    ('', ', 1 of them was replayed into a.jsonl, 2 into table t')
    """
    told = [f"{many:,} into {sink}" for sink, many in elsewhere.items()]
    if len(told) > _MOST_NAMED:
        rest = sum([*elsewhere.values()][_MOST_NAMED - 1 :])
        told[_MOST_NAMED - 1 :] = [f"{rest:,} into {len(elsewhere) - _MOST_NAMED + 1} others"]
    if not told:
        return ""
    first, _, into = told[0].partition(" ")
    return ", ".join(["", f"{first} of them {'was' if first == '1' else 'were'} replayed {into}", *told[1:]])


def in_words(
    status: str,
    reason: str | None,
    counts: Counts,
    bounds: Bounds,
    *,
    missing: bool = False,
    elsewhere: Mapping[str, int] = _NOWHERE,
    untried: int | None = None,
) -> str:
    """What a run came to that its counts alone decide about."""
    said = counts_in_words(counts, missing=missing, elsewhere=elsewhere, untried=untried)
    match reason or status:
        case "completed" if counts.total == 0:
            return "there were no items"
        case "completed" if counts.dlq:
            return f"{said}; {'it is' if counts.dlq == 1 else 'they are'} open"
        case "partial_success" if untried is None:
            return f"{said}: less than {bounds.min_success_rate:.0%}"
        case "low_success_rate":
            return f"{said}: less than {bounds.min_partial_rate:.0%}"
        case "failure_budget_exceeded":
            failed = counts.dlq + counts.failed
            rate = failed / (counts.succeeded + failed) if failed else 0.0
            return f"failure rate {rate:.1%} exceeds the budget of {bounds.failure_budget:.1%}; {said}"
        case _:
            return said
