"""
What a run adds up to: counted by the database, in one snapshot, and read in pieces, so that a run of millions needs no
memory for them.

Durations come in classes of three digits, each with its mean: a percentile is off by half a percent at the most. The
database counts each text of an error or a warning by itself; the report puts texts together that differ only in numbers
and names.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.store.letters import UNRESOLVED
from outlast.store.records import LetterGroup, from_us, key_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from outlast.store.database import Database, Transaction
    from outlast.store.records import AttemptOutcome, ItemStatus, LetterStatus, RunRecord

MOST = 3  # retries that are counted apart; the last class has all that needed more
_CLASSES = "case when took < 1000 then took {} else took / 10000000000 * 10000000000 end".format(
    " ".join(
        f"when took < {10**digits} then took / {10 ** (digits - 3)} * {10 ** (digits - 3)}" for digits in range(4, 13)
    )
)
# What attempts are sorted by, in one number: that is a third quicker than four columns, and it is most of what a report
# costs.
_OUTCOMES: tuple[AttemptOutcome, ...] = ("success", "retrying", "failed")
_CODE = "t.stage * 9 + case t.outcome when 'success' then 0 when 'retrying' then 3 else 6 end + {}"
_AGAIN = "case when t.number > 1 then 1 else 0 end"
# Each pass counts its attempts from one: what a pass before it has tried is no first attempt, and what that has done is
# done once more.
_BEFORE = "exists (select 1 from outlast_attempts e where e.run = t.run and e.seq = t.seq and e.stage = t.stage and e.pass < t.pass"
_AGAIN_IN_PASSES = (
    f"case when {_BEFORE} and e.outcome = 'success') then 2 when t.number > 1 or {_BEFORE}) then 1 else 0 end"
)
_ROOM = 100_000_000_000_000  # more microseconds than anything takes
_SOURCE = "case when reason like 'source: %' and status in ('dlq', 'failed') then 1 else 0 end"  # could not be read
# Could not be read, or was ended by a replay after that: no stage of this run has worked on it.
_UNREAD = f"case when {_SOURCE} = 1 or (attempts = 0 and status in ('succeeded', 'skipped')) then 1 else 0 end"
# An item that is not finished has rows up to its last checkpoint only: it came through those stages.
_DEAD = "(i.seq is not null and i.status in ('dlq', 'failed') and i.stage = t.stage)"


class AttemptFigure(NamedTuple):
    """
    Attempts of one stage with one outcome, first or further ones, of about the same duration (in microseconds).
    `repeated`: the item had succeeded at this stage in an earlier pass, which ended before the item was finished.
    """

    stage: int
    outcome: AttemptOutcome
    again: bool
    repeated: bool
    number: int
    took: int
    longest: int


class ItemFigure(NamedTuple):
    """
    Finished items with the same status and the same last stage. `unread`: no stage of this run has worked on them,
    because the source could not read them or a replay has ended them.
    """

    stage: int
    status: ItemStatus
    unread: bool
    number: int
    attempts: int
    took: int
    first_us: int
    last_us: int
    degraded: int


class ErrorFigure(NamedTuple):
    """
    One error at one stage. It was the last error of some pairs of item and stage: `saved` of them succeeded later,
    `dead` did not.
    """

    stage: int
    error_class: str | None
    error_type: str | None
    error: str | None
    number: int
    first_us: int
    last_us: int
    saved: int
    dead: int


class WaitFigure(NamedTuple):
    """What was waited for at one stage, in microseconds."""

    stage: int
    why: str
    number: int
    waited: int
    longest: int


class SlowItem(NamedTuple):
    """One of the items that took longest, in microseconds."""

    seq: int
    key: str
    status: ItemStatus
    stage: int
    attempts: int
    took: int


class Trail(NamedTuple):
    """What is on record of one item beside its attempts. An item that is not finished has no `status`."""

    seq: int
    key: str
    status: ItemStatus | None
    checkpoints: tuple[int, ...]


@dataclass
class Sums:
    """
    All sums of a run. `retries` has (stage, or None for whole items; retries; how many), `buckets` (bucket, status,
    items).
    """

    attempts: list[AttemptFigure] = field(default_factory=list)
    items: list[ItemFigure] = field(default_factory=list)
    retries: list[tuple[int | None, int, int]] = field(default_factory=list)
    # By stage: items skipped there, not at the first attempt.
    skipped_again: dict[int, int] = field(default_factory=dict)
    # Stage, not at the first attempt, items: the stage came through, its output could not be kept.
    refused: list[tuple[int, bool, int]] = field(default_factory=list)
    # By stage: items that failed there and that a replay has mended; how many of those it has skipped.
    mended: dict[int, tuple[int, int]] = field(default_factory=dict)
    unfinished: dict[int, int] = field(default_factory=dict)  # by stage: items that were tried there and have not ended
    waits: list[WaitFigure] = field(default_factory=list)
    spent_in_vain: dict[str, tuple[float, float]] = field(default_factory=dict)  # failed attempts; dead items
    wasted: dict[str, float] = field(default_factory=dict)  # without counting anything twice
    slowest: list[SlowItem] = field(default_factory=list)
    # Not resolved: fingerprint, stage, status, count.
    letters: list[tuple[str, str, LetterStatus, int]] = field(default_factory=list)
    # Why failed items were not tried again, the most frequent first.
    stop_reasons: dict[str, int] = field(default_factory=dict)


class Figures:
    """The part of the store that counts."""

    _database: Database
    app: str
    _runs: Callable[..., list[RunRecord]]
    groups: Callable[..., list[LetterGroup]]
    failed_groups: Callable[..., list[LetterGroup]]

    @contextmanager
    def counting(self, run: RunRecord) -> Iterator[Count]:
        """Everything that is asked inside is of one instant, the run itself included."""
        with self._database.snapshot() as tx:
            found = self._runs(tx, "and id = ?", run.id)
            yield Count(self._database, tx, found[0] if found else run, self.app)

    def failures(self, run: RunRecord, status: LetterStatus | None = None, *, limit: int = 100) -> list[LetterGroup]:
        """
        What is failed of a run by fingerprint, the largest group first: its dead letters of this status (None: all that
        no replay has mended), and the failed items that have none, because the run keeps none or is a replay of those
        of others.
        """
        if status is None:
            letters = self.failed_groups(run.id, limit=limit)
        else:
            letters = self.groups(run=run.id, status=status, limit=limit)
        found = {(group.id, group.stage): group for group in letters}
        bare = ("failed", "dlq") if run.kind == "replay" else ("failed",)
        if sum(getattr(run.counts, name) for name in bare):
            for group in self._bare_failures(run, bare, limit):
                same = found.get((group.id, group.stage))
                found[group.id, group.stage] = group if same is None else replace(same, count=same.count + group.count)
        return sorted(found.values(), key=lambda group: (-group.count, group.id, group.stage))[:limit]

    def failure_causes(self, run: RunRecord) -> list[tuple[str, str | None, int, bool]]:
        """What the failed items of a run failed with: error class, stop reason, how many, whether any was tried again."""
        with self._database.reading() as tx:
            return [
                (error_class, reason, int(count), int(most) > 1)
                for error_class, reason, count, most in tx.rows(
                    "select failure_class, stop_reason, count(*), max(attempts) from outlast_items where run = ? "
                    "and status in ('dlq', 'failed') and failure_class is not null group by 1, 2 order by 1, 2",
                    run.number,
                )
            ]

    def _bare_failures(self, run: RunRecord, statuses: Sequence[str], limit: int) -> Iterator[LetterGroup]:
        places = ", ".join("?" * len(statuses))
        names = [mark.name for mark in run.stages]
        with self._database.reading() as tx:
            groups = tx.rows(
                f"select fingerprint, failure_class, failure_type, stage, {_SOURCE}, count(*), min(started + took), max(started + took), "
                f"min(seq), max(seq) from outlast_items where run = ? and status in ({places}) and fingerprint is not null "
                "group by 1, 2, 3, 4, 5 order by count(*) desc, 1 limit ?",
                *(run.number, *statuses, limit),
            )
            for mark, error_class, error_type, stage, unread, count, first, last, *ends in groups:
                rows = tx.rows(
                    "select key, reason from outlast_items where run = ? and seq in (?, ?) order by seq desc",
                    *(run.number, *ends),
                )
                name = "source" if unread else names[stage] if 0 <= stage < len(names) else str(stage)
                message = without_origin(rows[0][1] or "", error_type) if rows else ""
                samples = tuple(dict.fromkeys(key for key, _ in rows))
                seen = (from_us(int(first)), from_us(int(last)))
                yield LetterGroup(
                    mark, run.pipeline, name, error_class or "", error_type or "", message, count, samples, *seen
                )

    def trail(self, run_number: int, item: int | str) -> Trail | None:
        """
        The item with this key or at this position, if anything is on record of it; the first of those with one key.
        """
        column, value = ("seq", item) if isinstance(item, int) else ("key", key_text(item))
        with self._database.reading() as tx:
            found = tx.row(
                f"select seq, key, status from outlast_items where run = ? and {column} = ? order by seq limit 1",
                *(run_number, value),
            ) or tx.row(
                f"select seq, key, null from outlast_checkpoints where run = ? and {column} = ? order by seq limit 1",
                *(run_number, value),
            )
            if found is None:
                return None
            stages = tx.rows(
                "select stage from outlast_checkpoints where run = ? and seq = ? order by stage", run_number, found[0]
            )
        seq, key, status = found
        return Trail(seq, key, status, tuple(stage for (stage,) in stages))


def without_origin(reason: str, error_type: str | None) -> str:
    """
    What an item's reason says, without stage and type, which it begins with.

    >>> without_origin("parse: ValueError: bad: 5", "ValueError")
    'bad: 5'
    """
    _, mark, text = reason.partition(f": {error_type}: ")
    return text if mark else reason


class Count:
    """Counts one run, in one snapshot of the database."""

    def __init__(self, database: Database, tx: Transaction, run: RunRecord, app: str) -> None:
        self._database, self._tx, self.run, self._app = database, tx, run, app

    def sums(self, *, slowest: int = 10) -> Sums:
        """All that is counted in whole."""
        tx, run = self._tx, self.run.number
        sums = Sums()
        again = _AGAIN if self.run.passes <= 1 else _AGAIN_IN_PASSES
        sums.attempts = [
            AttemptFigure(
                code // 9, _OUTCOMES[code % 9 // 3], code % 3 > 0, code % 3 == 2, count, int(took), int(longest)
            )
            for code, count, took, longest in (
                (int(key) // _ROOM, *numbers)
                for key, *numbers in tx.rows(
                    f"select ({_CODE.format(again)}) * {_ROOM} + {_CLASSES}, count(*), sum(took), max(took) from outlast_attempts t "
                    "where run = ? group by 1 order by 1",
                    run,
                )
            )
        ]
        sums.items = [
            ItemFigure(stage, status, bool(unread), *(int(number) for number in numbers))
            for stage, status, unread, *numbers in tx.rows(
                f"select stage, status, {_UNREAD}, count(*), sum(attempts), sum(took), min(started), max(started + took), "
                "sum(case when degraded then 1 else 0 end) from outlast_items where run = ? group by 1, 2, 3 order by 1, 2, 3",
                run,
            )
        ]
        sums.retries = self._retries()
        sums.skipped_again = dict(
            tx.rows(
                "select i.stage, count(*) from outlast_items i join outlast_attempts t on t.run = i.run and t.seq = i.seq "
                f"and t.stage = i.stage where i.run = ? and i.status = 'skipped' and t.outcome = 'success' and {again} = 1 group by 1",
                run,
            )
        )
        sums.refused = [
            (stage, bool(later), count)
            for stage, later, count in tx.rows(
                f"select i.stage, {again}, count(*) from outlast_items i join outlast_attempts t on t.run = i.run and t.seq = i.seq "
                f"and t.stage = i.stage where i.run = ? and i.status in ('dlq', 'failed') and t.outcome = 'success' and {again} < 2 "
                "group by 1, 2",
                run,
            )
        ]
        sums.mended, sums.unfinished = self._mended(), self._unfinished()
        sums.waits = self._waits()
        sums.spent_in_vain, sums.wasted = self._spent_in_vain()
        sums.slowest = [
            SlowItem(*row)
            for row in tx.rows(
                "select seq, key, status, stage, attempts, took from outlast_items where run = ? order by took desc, seq limit ?",
                *(run, slowest),
            )
        ]
        sums.letters = [
            tuple(row)
            for row in tx.rows(
                f"select fingerprint, stage, status, count(*) from outlast_dead_letters where app = ? and run = ?{UNRESOLVED} "
                "group by 1, 2, 3 order by 4 desc, 1, 2, 3 limit 1000",
                *(self._app, self.run.id),
            )
        ]
        sums.stop_reasons = dict(
            tx.rows(
                "select stop_reason, count(*) from outlast_items where run = ? and status in ('dlq', 'failed') "
                "and stop_reason is not null group by 1 order by 2 desc, 1",
                run,
            )
        )
        return sums

    def buckets(self, first_us: int, width_us: int) -> list[tuple[int, ItemStatus, int]]:
        """How many items ended in each span of time, by status."""
        return [
            tuple(row)
            for row in self._tx.rows(
                "select (started + took - ?) / ?, status, count(*) from outlast_items where run = ? group by 1, 2 order by 1, 2",
                *(first_us, width_us, self.run.number),
            )
        ]

    def errors(self) -> Iterator[ErrorFigure]:
        """What went wrong, by stage and text: in no order, and as many as there are texts."""
        troubled = (
            "select seq, stage, started, error_class, error_type, error, "
            "lead(number) over (partition by seq, stage order by pass, number) as later "
            "from outlast_attempts where run = ? and outcome <> 'success'"
        )
        for row in self._database.stream(
            self._tx,
            "select t.stage, error_class, error_type, error, count(*), min(t.started), max(t.started), "
            f"sum(case when later is null and not {_DEAD} then 1 else 0 end), "
            f"sum(case when later is null and {_DEAD} then 1 else 0 end) "
            f"from ({troubled}) t left join outlast_items i on i.run = ? and i.seq = t.seq group by 1, 2, 3, 4",
            *(self.run.number, self.run.number),
        ):
            yield ErrorFigure(*row[:4], *(int(number) for number in row[4:]))

    def failed_unattempted(self) -> Iterator[ErrorFigure]:
        """
        What went wrong with items that no attempt failed for: they could not be read, or their output could not be
        kept.
        """
        attempt = "select 1 from outlast_attempts a where a.run = i.run and a.seq = i.seq and a.stage = i.stage"
        for stage, error_class, error_type, reason, *numbers in self._database.stream(
            self._tx,
            f"select case when {_SOURCE} = 1 then -1 else stage end, failure_class, failure_type, reason, count(*), "
            "min(started + took), max(started + took) from outlast_items i where run = ? and status in ('dlq', 'failed') "
            f"and not exists ({attempt} and a.outcome <> 'success') group by 1, 2, 3, 4",
            self.run.number,
        ):
            text = without_origin(reason or "", error_type)
            count, first, last = (int(number) for number in numbers)
            yield ErrorFigure(stage, error_class, error_type, text, count, first, last, 0, count)

    def warnings(self) -> Iterator[tuple[str, int]]:
        """What items were warned of: in no order, and as many as there are texts."""
        yield from self._database.stream(
            self._tx,
            f"select element.value, count(*) from outlast_items i cross join {self._database.elements.format('i.warnings')} "
            "where i.run = ? and i.warnings is not null group by 1",
            self.run.number,
        )

    def passes(self) -> list[tuple[str, int, dict[str, Any]]]:
        """When the run began and ended, each time, from the events on record: name, microseconds, data."""
        rows = self._tx.rows(
            "select name, at, data from outlast_events where app = ? and run = ? "
            "and name in ('run_started', 'run_finished') order by number limit 1000",
            *(self._app, self.run.id),
        )
        return [(name, at, json.loads(data)) for name, at, data in rows]

    def _mended(self) -> dict[int, tuple[int, int]]:
        """
        Items whose last attempt at the stage that they ended at failed, and that ended well: a replay did that, or a
        fallback at the last stage.
        """
        rows = self._tx.rows(
            "select i.stage, count(distinct i.seq), count(distinct case when i.status = 'skipped' then i.seq end) "
            "from outlast_attempts t join outlast_items i on i.run = t.run and i.seq = t.seq and i.stage = t.stage "
            "left join outlast_dead_letters l on l.app = ? and l.run = ? and l.seq = i.seq "
            "where t.run = ? and t.outcome = 'failed' and i.status in ('succeeded', 'skipped') "
            "and (l.id is not null or i.status = 'skipped' or not i.degraded) group by 1",
            *(self._app, self.run.id, self.run.number),
        )
        return {stage: (count, skipped) for stage, count, skipped in rows}

    def _unfinished(self) -> dict[int, int]:
        if not self.run.counts.pending:
            return {}
        ended = "select 1 from outlast_attempts e where e.run = t.run and e.seq = t.seq and e.stage = t.stage and e.outcome <> 'retrying'"
        rows = self._tx.rows(
            "select t.stage, count(distinct t.seq) from outlast_attempts t where t.run = ? and t.outcome = 'retrying' "
            f"and not exists ({ended}) and not exists (select 1 from outlast_items i where i.run = t.run and i.seq = t.seq) group by 1",
            self.run.number,
        )
        return dict(rows)

    def _retries(self) -> list[tuple[int | None, int, int]]:
        few = f"case when n > {MOST} then {MOST} else n end"
        rows = self._tx.rows(
            "with units as materialized (select seq, stage, count(*) as n from outlast_attempts "
            "where run = ? and outcome = 'retrying' group by seq, stage) "
            f"select stage, {few}, count(*) from units group by 1, 2 union all "
            f"select null, {few}, count(*) from (select u.seq, sum(n) as n from units u "
            "join outlast_items i on i.run = ? and i.seq = u.seq group by u.seq) whole group by 2",
            *(self.run.number, self.run.number),
        )
        return sorted(((stage, int(n), count) for stage, n, count in rows), key=lambda row: (row[0] is None, *row[1:]))

    def _waits(self) -> list[WaitFigure]:
        parts = " union all ".join(
            f"select t.stage, pair.key as why, count(*) as count, sum(cast(pair.value as bigint)) as waited, "
            f"max(cast(pair.value as bigint)) as longest from {table} t "
            f"cross join {self._database.pairs.format('t.waits')} where t.run = ? and t.waits is not null group by 1, 2"
            for table in ("outlast_attempts", "outlast_items")
        )
        rows = self._tx.rows(
            f"select stage, why, sum(count), sum(waited), max(longest) from ({parts}) every group by 1, 2 order by 1, 2",
            *(self.run.number, self.run.number),
        )
        return [WaitFigure(stage, why, *(int(number) for number in numbers)) for stage, why, *numbers in rows]

    def _spent_in_vain(self) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
        amount = "sum(cast(pair.value as double precision))"
        pairs = self._database.pairs
        failed = self._tx.rows(
            f"select pair.key, {amount}, sum(case when i.status in ('succeeded', 'skipped') "
            "then cast(pair.value as double precision) else 0 end) from outlast_attempts t "
            f"left join outlast_items i on i.run = t.run and i.seq = t.seq cross join {pairs.format('t.spent')} "
            "where t.run = ? and t.outcome <> 'success' and t.spent is not null group by 1 order by 1",
            self.run.number,
        )
        dead = dict(
            self._tx.rows(
                f"select pair.key, {amount} from outlast_items t cross join {pairs.format('t.spent')} "
                "where t.run = ? and t.status in ('dlq', 'failed') and t.spent is not null group by 1 order by 1",
                self.run.number,
            )
        )
        attempts = {name: (whole, extra) for name, whole, extra in failed}
        names = sorted({*attempts, *dead})
        vain = {name: (attempts.get(name, (0.0, 0.0))[0], dead.get(name, 0.0)) for name in names}
        return vain, {name: attempts.get(name, (0.0, 0.0))[1] + dead.get(name, 0.0) for name in names}
