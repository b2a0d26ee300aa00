"""
A report as values. Every field has the same name in Python and in JSON; durations are seconds, instants aware and in
UTC.

All texts in it have been sanitised, and there are no payloads.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

TARGET = 1.3  # calls for each unit, below which retries are no load to speak of
FORMAT = 1


def plain(value: object) -> Any:
    """The value as JSON can say it."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}  # type: ignore[arg-type]
    return value


def saved(path: str | os.PathLike[str], text: str) -> None:
    """Write a page to a file that only its owner can read, all of it or nothing."""
    import os
    from pathlib import Path

    target = Path(path).resolve()  # a link stays one
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """
    Which run. `took` is from its first beginning to its end, or to its last finished item, with the pauses between its
    passes; `worked` is what its passes took without them, None if the end of one is not on record.
    """

    id: str
    pipeline: str
    run_key: str
    kind: str
    status: str
    reason: str | None
    why: str
    started_at: datetime
    finished_at: datetime | None
    took: float | None
    worked: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountFacts:
    """
    Where the items are; `total` is succeeded + skipped + dlq + failed + pending, and degraded ones are part of
    succeeded.
    """

    total: int
    succeeded: int
    skipped: int
    dlq: int
    failed: int
    pending: int
    degraded: int
    source_exhausted: bool
    success_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """
    How many units needed no retry, one, two, and three or more. A unit is an item at a stage; for a whole run it is an
    item.
    """

    none: int = 0
    one: int = 0
    two: int = 0
    more: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How long attempts took. Percentiles are off by half a percent at the most."""

    p50: float
    p95: float
    p99: float
    max: float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """
    One stage. `entered` units came to it; `first_try` and `after_retry` of them came through, for `fell_back` a
    fallback answered, `dead` and `skipped` ended there, `mended` ended there too until a replay did their work, and
    `unfinished` are still to be done: these seven add up to `entered`. `first_try_rate` is a share of those that were
    not skipped, `retried_rate` of all. With ``audit="failures"`` what succeeded is not on record: `attempts`, `took`,
    `first_try`, `after_retry` and `fell_back` are None.
    """

    name: str
    version: str
    checkpoint: bool
    entered: int
    attempts: int | None
    failures: int
    first_try: int | None
    first_try_rate: float | None
    after_retry: int | None
    fell_back: int | None
    skipped: int
    dead: int
    mended: int
    unfinished: int
    retries: Retries
    retried_rate: float
    took: Spread | None
    waited: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """
    What items waited for, all in all. `kind` and `name` are the two parts of the reason; `text` says it to a person.
    """

    kind: str
    name: str | None
    text: str
    seconds: float
    count: int
    longest: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeReport:
    """
    Where the time of all finished items went: attempts, waits, and slots (and whatever else lies between attempts).
    """

    total: float
    work: float
    work_share: float
    waits: tuple[Wait, ...]
    slots: float
    slots_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Amplification:
    """How many calls a unit cost; None if that is not on record. Below `target` retries are no load to speak of."""

    calls: int | None
    units: int
    ratio: float | None
    target: float = TARGET


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorGroup:
    """
    Failed attempts with one fingerprint, and their share of all failed attempts. Of the units whose last error it was,
    `saved` came through after it and `dead` did not.
    """

    group: str
    stage: str
    error_class: str
    error_type: str
    message: str
    count: int
    share: float
    first_seen_at: datetime
    last_seen_at: datetime
    saved: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterGroup:
    """
    Dead letters of this run with one fingerprint that no replay has mended. `open` ones wait for somebody; the commands
    look at them and replay them.
    """

    group: str
    stage: str
    error_class: str
    error_type: str
    message: str
    count: int
    share: float
    open: int
    sample_keys: tuple[str, ...]
    first_seen_at: datetime
    last_seen_at: datetime
    look: str
    replay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """
    What was spent under one name. `wasted` is what failed attempts of items that came through and everything of items
    that did not have cost; the two parts named before overlap.
    """

    name: str
    total: float
    per_succeeded: float | None
    on_failed_attempts: float
    on_dead_items: float
    wasted: float
    wasted_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Items that ended in one span of time."""

    at: datetime
    succeeded: int = 0
    skipped: int = 0
    dead: int = 0

    @property
    def finished(self) -> int:
        return self.succeeded + self.skipped + self.dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Finished items over time, in spans of `width` seconds."""

    width: float
    per_second: float | None
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One start of the run. `finished_before` items had ended when it began; one that was killed has no end."""

    started_at: datetime
    finished_before: int
    ended_at: datetime | None
    status: str | None
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowItem:
    key: str
    position: int
    status: str
    stage: str
    attempts: int
    took: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Warnings that differ only in numbers and names."""

    message: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """
    What a run came to, and why. `unknown` says in sentences what is not on record; `stop_reasons` counts failed items
    by why they were not tried again; `left_out` counts groups beyond those listed.
    """

    format: int
    verdict: str
    run: RunFacts
    counts: CountFacts
    complete: bool
    unknown: tuple[str, ...]
    letters: tuple[LetterGroup, ...]
    retries: Retries
    stages: tuple[StageReport, ...]
    amplification: Amplification
    time: TimeReport
    errors: tuple[ErrorGroup, ...]
    throughput: Throughput
    cost: tuple[Cost, ...]
    passes: int
    pass_list: tuple[Pass, ...]
    slowest: tuple[SlowItem, ...]
    warnings: tuple[Warned, ...]
    stop_reasons: Mapping[str, int]
    left_out: Mapping[str, int]
    stored: tuple[str, ...] = ()  # what a command needs to find it

    def command(self, *words: str) -> str:
        """A command about this run, for a person."""
        return shlex.join(["outlast", *words, *self.stored])

    def to_dict(self) -> dict[str, Any]:
        """All of it for `json.dumps`: instants are ISO 8601."""
        found: dict[str, Any] = plain(self)
        del found["stored"]
        return found

    def html(self) -> str:
        """One page that needs nothing else: no network, no script, no font."""
        from outlast.report.page import page

        return page(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file that only its owner can read, all of it or nothing."""
        saved(path, self.html())

    def _repr_html_(self) -> str:
        from outlast.report.page import summary_html

        return summary_html(self)
