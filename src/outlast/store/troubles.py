"""
What went wrong lately, added up by the database: which steps were tried again, and for what; what gave up; which jobs
nobody takes; what could not be undone. Alerts and the command `outlast metrics` ask for it.

A *step* is a stage of a pipeline, a step of a flow or a kind of jobs. An *operation* is one item at a stage, one step of
one run, or one job, with an attempt on record that ended within the window. It *required a retry* if such an attempt
failed and was to be followed by another one. Replays are not part of operations: a person asks for them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.adaptive import RetryRecord
from outlast.deciding import REASONS
from outlast.store.compensations import OPEN, TO_BE_UNDONE
from outlast.store.records import OF_FLOW, job_of_run
from outlast.verdicts.rules import ERROR_CLASSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from outlast.store.database import Database, Transaction

#: Without the jobs that run flows: their steps are the operations.
_NOT_OF_FLOW = f"substr(j.kind, 1, {len(OF_FLOW)}) <> '{OF_FLOW}'"
#: Something else than the error was in the way of a further attempt, and nobody had asked to stop.
GAVE_UP = tuple(
    reason for reason, meaning in REASONS.items() if meaning.retriable and reason not in {"shutdown", "cancelled"}
)
_GAVE_UP = ", ".join(f"'{reason}'" for reason in GAVE_UP)
APART_US = 86_400_000_000  # how far apart the ends of a run and of its job may be
_ID_LENGTH = 32  # of a run: the key of a run that a step of a flow has made begins with that of the flow
MOST_RUNS = 10_000  # runs that an alert counts
_TROUBLE = "('failed', 'timeout', 'crashed')"
_COUNTED = "('succeeded', 'failed', 'timeout', 'crashed')"
# Items that no stage has seen.
_UNREAD = "(i.reason like 'source: %' and i.status in ('dlq', 'failed')) or (i.attempts = 0 and i.status in ('succeeded', 'skipped'))"


# Since when nobody undoes a job: since the lease of its worker has run out; without one, since the last thing that happened to it.
_UNDOING_SINCE = (
    "coalesce((select until from outlast_leases l where l.app = outlast_jobs.app and l.kind = 'worker' and l.key = outlast_jobs.worker), "
    "(select max(at) from (select outlast_jobs.ended as at union all select began from outlast_compensations c where c.job = outlast_jobs.id "
    "union all select ended from outlast_compensations c where c.job = outlast_jobs.id union all select due from outlast_compensations c "
    f"where c.job = outlast_jobs.id and c.state in {OPEN} union all select at from outlast_job_changes c where c.job = outlast_jobs.id "
    "and c.change = 'undo') happened), 0)"
)


class Step(NamedTuple):
    """A stage of a pipeline, a step of a flow, or a kind of jobs, which has no pipeline."""

    pipeline: str
    name: str

    def __str__(self) -> str:
        return f"{self.pipeline}/{self.name}" if self.pipeline else self.name


class StepRate(NamedTuple):
    """Operations of one step, those of them that required a retry for one tier, and when the first of these retries was."""

    step: Step
    operations: int
    retried: int
    first_us: int


class GivenUp(NamedTuple):
    """How often one step gave up on errors of one tier that were worth retrying, and when first."""

    step: Step
    tier: str
    times: int
    first_us: int


class StuckJobs(NamedTuple):
    """
    Jobs of one queue that nobody works on, although they are due (`late`, `oldest_due_us`), or that were a worker's who
    is gone (`orphaned`, and since when: `orphaned_us`); and those that are to be undone, and nobody does it (`undo`, `undo_us`).
    """

    queue: str
    late: int = 0
    oldest_due_us: int | None = None
    orphaned: int = 0
    orphaned_us: int | None = None
    undo: int = 0
    undo_us: int | None = None


class NotUndone(NamedTuple):
    """What a pipeline's flows could not undo, and nobody has seen to."""

    pipeline: str
    times: int
    first_us: int
    last_us: int = 0


class EndedRun(NamedTuple):
    """
    A run or a flow that ended without completing, or was interrupted, and needs attention. `job` is the job that a flow runs as.
    """

    id: str
    kind: str
    pipeline: str
    run_key: str
    status: str
    why: str
    ended_us: int
    job: int | None = None


class FailedJobs(NamedTuple):
    """Jobs of one kind that failed and were not handled since: how many, from when to when, and the newest of them."""

    kind: str
    queue: str
    times: int
    first_us: int
    last_us: int
    job: int
    error: str
    error_type: str
    error_class: str


class IdleQueue(NamedTuple):
    """A queue with due jobs that no live worker serves."""

    queue: str
    due: int
    oldest_us: int


class OldLetters(NamedTuple):
    """Open dead letters of one pipeline or kind that are older than a limit."""

    pipeline: str
    times: int
    first_us: int


class RetryTotal(NamedTuple):
    """What is on record of one step's retries, by the tier of the failures."""

    step: str
    tier: str
    retries: int = 0
    successes: int = 0
    exhausted: int = 0


class OnRecord(NamedTuple):
    """
    Rows of names and numbers: of items by pipeline (read, succeeded, skipped, dlq, failed), of steps by pipeline, deed and
    state, of jobs by kind, queue and state, of runs by pipeline and status.
    """

    items: list[tuple[Any, ...]]
    steps: list[tuple[Any, ...]]
    jobs: list[tuple[Any, ...]]
    runs: list[tuple[Any, ...]]


def tier_of(error_class: str | None) -> str:
    """The tier of an error class; of one that is not known any more, ``unknown``."""
    known = ERROR_CLASSES.get(error_class or "")
    return "unknown" if known is None else known.tier


class Troubles:
    """The part of the store that adds up what went wrong."""

    _database: Database
    app: str

    # -- rates ---------------------------------------------------------------------------------------------------------

    def step_rates(self, tier: str, window_us: int, *, at_us: int | None = None) -> list[StepRate]:
        """
        The steps that were tried again within the window for errors of this tier, each with all its operations there.

        The window ends now, on the database's clock, or `at_us`; what is exactly as old as the window is outside.
        """
        classes = self._database.passed(name for name, known in ERROR_CLASSES.items() if known.tier == tier)
        with self._database.snapshot() as tx:
            since = self._now(tx, at_us) - window_us
            parts = (self._item_rates, self._flow_rates, self._job_rates)
            return sorted(rate for part in parts for rate in part(tx, classes, since))

    def _item_rates(self, tx: Transaction, classes: Any, since: int) -> Iterator[StepRate]:
        """From the rows of items: one that succeeded at once may have no attempt on record."""
        active = "r.app = ? and r.kind = 'run' and (r.finished is null or r.finished > ?)"
        retried: dict[Step, tuple[int, int]] = {}
        rows = tx.rows(
            "select r.pipeline, r.stages, t.stage, count(distinct t.seq), min(t.started + t.took) from outlast_runs r "
            "join outlast_attempts t on t.run = r.number join outlast_items i on i.run = t.run and i.seq = t.seq "
            f"where {active} and t.outcome <> 'success' and t.outcome = 'retrying' and t.started + t.took > ? "
            f"and i.started + i.took > ? and t.error_class {self._database.among} "
            "group by r.number, r.pipeline, r.stages, t.stage",
            *(self.app, since, since, since, classes),
        )
        for pipeline, stages, stage, count, first in rows:
            step = Step(pipeline, _stage(stages, stage))
            before, earliest = retried.get(step, (0, first))
            retried[step] = before + int(count), min(earliest, first)
        if not retried:
            return
        operations: dict[Step, int] = defaultdict(int)
        for pipeline, stages, last, count in tx.rows(
            "select r.pipeline, r.stages, i.stage, count(*) from outlast_runs r join outlast_items i on i.run = r.number "
            f"where {active} and i.started + i.took > ? and not ({_UNREAD}) and r.pipeline {self._database.among} "
            "group by r.pipeline, r.stages, i.stage",
            *(self.app, since, since, self._database.passed(sorted({step.pipeline for step in retried}))),
        ):
            for stage in range(last + 1):  # an item that has come to a stage has been at those before
                operations[Step(pipeline, _stage(stages, stage))] += count
        for step, (count, first) in retried.items():
            yield StepRate(step, operations[step], count, first)

    def _flow_rates(self, tx: Transaction, classes: Any, since: int) -> Iterator[StepRate]:
        """Steps of flows; what undoes a step is an operation of its own."""
        ours = f"t.outcome in {_TROUBLE} and t.next_run is not null and t.error_class {self._database.among}"
        rows = tx.rows(
            "select pipeline, step, count(*), sum(retried), min(first) from (select r.pipeline, t.step, "
            f"max(case when {ours} then 1 else 0 end) as retried, min(case when {ours} then t.started + t.took end) as first "
            "from outlast_runs r join outlast_step_attempts t on t.run = r.number where r.app = ? and r.kind = 'flow' "
            f"and (r.finished is null or r.finished > ?) and t.outcome in {_COUNTED} and t.started + t.took > ? "
            "group by r.number, r.pipeline, t.step, t.deed) operations group by pipeline, step having sum(retried) > 0",
            *(classes, classes, self.app, since, since),
        )
        for pipeline, step, operations, retried, first in rows:
            yield StepRate(Step(pipeline, step), int(operations), int(retried), int(first))

    def _job_rates(self, tx: Transaction, classes: Any, since: int) -> Iterator[StepRate]:
        """Jobs, without those that run flows: their steps are the operations. A job that is not over has only failed so far."""
        retried = tx.rows(
            "select j.kind, count(distinct j.id), min(t.started + t.took) from outlast_job_attempts t "
            f"join outlast_jobs j on j.id = t.job where j.app = ? and {_NOT_OF_FLOW} and t.outcome in {_TROUBLE} "
            f"and t.next_run is not null and t.started + t.took > ? and t.error_class {self._database.among} group by j.kind",
            *(self.app, since, classes),
        )
        if not retried:
            return
        kinds = self._database.passed(kind for kind, *_ in retried)
        operations = dict(
            tx.rows(
                "select kind, count(*) from (select kind, id from outlast_jobs where app = ? "
                f"and state in ('succeeded', 'failed', 'cancelled') and ended > ? and made > 0 and kind {self._database.among} "
                "union select j.kind, j.id from outlast_job_attempts t join outlast_jobs j on j.id = t.job where j.app = ? "
                f"and t.outcome in {_TROUBLE} and t.started + t.took > ? and j.kind {self._database.among}) operations group by kind",
                *(self.app, since, kinds, self.app, since, kinds),
            )
        )
        for kind, count, first in retried:
            yield StepRate(Step("", kind), int(operations[kind]), int(count), int(first))

    def given_up(self, tier: str, window_us: int, *, at_us: int | None = None) -> list[GivenUp]:
        """
        The steps that gave up on errors of this tier within the window. An attempt is what counts, so that a job that was
        requeued since has given up all the same.
        """
        classes = self._database.passed(name for name, known in ERROR_CLASSES.items() if known.tier == tier)
        wanted = f"t.stop_reason in ({_GAVE_UP}) and t.started + t.took > ? and t.error_class {self._database.among}"
        found: dict[Step, tuple[int, int]] = {}
        with self._database.snapshot() as tx:
            since = self._now(tx, at_us) - window_us
            active = "r.app = ? and (r.finished is null or r.finished > ?)"
            items = tx.rows(
                "select r.pipeline, r.stages, t.stage, count(*), min(t.started + t.took) from outlast_runs r join outlast_attempts t "
                f"on t.run = r.number where {active} and t.outcome <> 'success' and t.outcome = 'failed' and {wanted} "
                "group by r.pipeline, r.stages, t.stage",
                *(self.app, since, since, classes),
            )
            rows = [(pipeline, _stage(stages, stage), *rest) for pipeline, stages, stage, *rest in items]
            rows += tx.rows(
                "select r.pipeline, t.step, count(*), min(t.started + t.took) from outlast_runs r join outlast_step_attempts t "
                f"on t.run = r.number where {active} and t.outcome in {_TROUBLE} and {wanted} group by r.pipeline, t.step",
                *(self.app, since, since, classes),
            )
            rows += tx.rows(
                "select '', j.kind, count(*), min(t.started + t.took) from outlast_job_attempts t join outlast_jobs j on j.id = t.job "
                f"where j.app = ? and {_NOT_OF_FLOW} and t.outcome in {_TROUBLE} and {wanted} group by j.kind",
                *(self.app, since, classes),
            )
        for pipeline, name, count, first in rows:
            before, earliest = found.get(Step(pipeline, name), (0, first))
            found[Step(pipeline, name)] = before + int(count), min(earliest, first)
        return [GivenUp(step, tier, count, first) for step, (count, first) in sorted(found.items())]

    # -- what stands still ---------------------------------------------------------------------------------------------

    def stuck_jobs(self, patience_us: int, *, at_us: int | None = None) -> list[StuckJobs]:
        """
        Jobs that have been due for longer than that in a queue that is not paused, and nobody has taken them; and jobs of
        workers whose lease ran out longer ago than that, and nobody has brought them back. A job that is to be undone is
        one of them in the same two cases.
        """
        paused = "select 1 from outlast_queues q where q.app = j.app and q.queue = j.queue and q.paused"
        late = " union all ".join(
            f"select queue, due from outlast_jobs j where app = ? and state = '{state}' and due < ? and not exists ({paused})"
            for state in ("ready", "alone", "waiting")
        )
        lost = "coalesce((select until from outlast_leases l where l.app = j.app and l.kind = 'worker' and l.key = j.worker), claimed, 0)"
        with self._database.snapshot() as tx:
            before = self._now(tx, at_us) - patience_us
            waiting = tx.rows(
                f"select queue, count(*), min(due) from ({late}) late group by queue", *(self.app, before) * 3
            )
            orphans = tx.rows(
                f"select queue, count(*), min(gone) from (select queue, {lost} as gone from outlast_jobs j "
                "where app = ? and state in ('processing', 'held')) owned where gone < ? group by queue",
                *(self.app, before),
            )
            to_undo = tx.rows(
                f"select queue, count(*), min(since) from (select queue, {_UNDOING_SINCE} as since from outlast_jobs where app = ? "
                f"and {TO_BE_UNDONE} and (worker is not null or not exists ({paused.replace('j.', 'outlast_jobs.')}))) undoing "
                "where since < ? group by queue",
                *(self.app, self.app, before),
            )
        found = {queue: StuckJobs(queue, int(count), int(oldest)) for queue, count, oldest in waiting}
        for queue, count, gone in orphans:
            found[queue] = found.get(queue, StuckJobs(queue))._replace(orphaned=int(count), orphaned_us=int(gone))
        for queue, count, since in to_undo:
            found[queue] = found.get(queue, StuckJobs(queue))._replace(undo=int(count), undo_us=int(since))
        return [found[queue] for queue in sorted(found)]

    def not_undone(self, since_us: int = 0, acknowledged: Mapping[str, int] | None = None) -> list[NotUndone]:
        """
        Failed compensations by pipeline whose dead letters are neither resolved nor archived. Of a pipeline that was
        acknowledged, those that failed later.
        """
        sql = (
            "select pipeline, count(*), min(created), max(last_attempt) from outlast_dead_letters where app = ? "
            "and status in ('open', 'replaying') and kind = 'compensation' and last_attempt > ? {} group by pipeline order by pipeline"
        )
        with self._database.snapshot() as tx:
            rows = self._but_acknowledged(tx, sql, "pipeline", since_us, acknowledged or {})
        return [NotUndone(pipeline, *map(int, numbers)) for pipeline, *numbers in rows]

    def _but_acknowledged(
        self, tx: Transaction, sql: str, column: str, since_us: int, acknowledged: Mapping[str, int]
    ) -> list[Any]:
        """The rows of a grouped query since an instant; of the groups that were acknowledged, since that was."""
        rows = tx.rows(
            sql.format(f"and not ({column} {self._database.among})"),
            *(self.app, since_us, self._database.passed(acknowledged)),
        )
        for name, until_us in acknowledged.items():
            rows = [*rows, *tx.rows(sql.format(f"and {column} = ?"), self.app, max(since_us, until_us), name)]
        return sorted(rows)

    def ended_runs(self, since_us: int) -> list[EndedRun]:
        """
        Runs and flows that failed, are incomplete or were interrupted after that instant, the newest first, at most `MOST_RUNS`.

        Left out: replays, whose dead letters stay with the run that they come from; runs that a step of a flow has made;
        flows whose job waits for its next attempt or is running, or was cancelled while it waited; and runs with nothing
        left to do whose dead letters are all resolved or archived.
        """
        # Rows that a flow lost have their letters in the run over the rows of their step.
        letters = (
            "select 1 from outlast_dead_letters l where l.app = r.app and (l.run = r.id or (r.kind = 'flow' and r.status = 'partial_success' "
            "and l.run in (select c.id from outlast_runs c where c.app = r.app and c.started >= r.started "
            f"and substr(c.run_key, 1, {_ID_LENGTH + 1}) = r.id || '/')))"
        )
        handled = (
            f"exists ({letters}) and not exists ({letters} and l.status in ('open', 'replaying')) and (r.kind = 'flow' or not exists "
            "(select 1 from outlast_progress p where p.run = r.number "
            "and (not p.exhausted or p.read > p.succeeded + p.skipped + p.dlq + p.failed)))"
        )
        # One that was interrupted is not finished: its last event is when that was.
        ended = "coalesce(r.finished, (select max(e.at) from outlast_events e where e.run = r.id), r.started)"
        with self._database.snapshot() as tx:
            rows = tx.rows(
                f"select r.id, r.kind, r.pipeline, r.run_key, r.status, r.why, {ended}, r.identity "
                "from outlast_runs r where r.app = ? and r.kind <> 'replay' "
                f"and r.status in ('failed', 'partial_success', 'interrupted') and {ended} > ? "
                f"and not ({handled}) and not exists (select 1 from outlast_runs f where f.id = substr(r.run_key, 1, {_ID_LENGTH}) "
                f"and substr(r.run_key, {_ID_LENGTH + 1}, 1) = '/' and f.app = r.app and f.kind = 'flow' and r.kind <> 'flow') "
                "order by 7 desc, r.number desc limit ?",
                *(self.app, since_us, MOST_RUNS),
            )
            found = [
                EndedRun(id_, kind, pipeline, run_key, status, why, int(ended_us), job_of_run(kind, identity))
                for id_, kind, pipeline, run_key, status, why, ended_us, identity in rows
            ]
            return self._without_live_jobs(tx, found)

    def without_live_jobs(self, runs: Sequence[EndedRun]) -> list[EndedRun]:
        """Those without a job, and those whose job has ended and was not handled."""
        with self._database.snapshot() as tx:
            return self._without_live_jobs(tx, runs)

    def _without_live_jobs(self, tx: Transaction, runs: Sequence[EndedRun]) -> list[EndedRun]:
        jobs = self._database.passed(run.job for run in runs if run.job is not None)
        states = dict(
            tx.rows(
                "select j.id, case when l.status in ('resolved', 'archived') then 'handled' else j.state end from outlast_jobs j "
                f"left join outlast_dead_letters l on l.id = j.letter where j.app = ? and j.id {self._database.among}",
                *(self.app, jobs),
            )
        )

        def needs_attention(run: EndedRun) -> bool:
            state = None if run.job is None else states.get(run.job)
            if state == "cancelled":
                return run.status != "interrupted"
            return state in {None, "succeeded", "failed"}

        return [run for run in runs if needs_attention(run)]

    def failed_jobs(self, since_us: int, acknowledged: Mapping[str, int] | None = None) -> list[FailedJobs]:
        """
        Jobs that failed after that instant, by kind, with the newest of each. Left out: those whose dead letter is resolved
        or archived, and flows that have a run, which `ended_runs` reports. Of a kind that was acknowledged, those that
        failed later.
        """
        with self._database.snapshot() as tx:
            flows = tx.rows(
                "select kind, identity from outlast_runs where app = ? and kind = 'flow' and status <> 'completed' "
                "and (finished is null or finished > ?)",
                *(self.app, since_us - APART_US),
            )
            jobs = self._database.passed(sorted({job for row in flows if (job := job_of_run(*row)) is not None}))
            condition = (
                "j.app = ? and j.state = 'failed' and j.ended > ? {} and not exists (select 1 from outlast_dead_letters l "
                "where l.id = j.letter and l.status in ('resolved', 'archived')) and not (j.id "
                + self._database.among
                + ")"
            )
            sql = (
                "select kind, times, first, last, queue, id, error, error_type, error_class from "
                "(select j.kind, j.queue, j.id, j.error, j.error_type, j.error_class, "
                "count(*) over of_kind as times, min(j.ended) over of_kind as first, max(j.ended) over of_kind as last, "
                "row_number() over (partition by j.kind order by j.ended desc, j.id desc) as place from outlast_jobs j "
                f"where {condition} window of_kind as (partition by j.kind)) n where place = 1 order by kind"
            )
            known = acknowledged or {}
            among = f"and not (j.kind {self._database.among})"
            rows = tx.rows(sql.format(among), *(self.app, since_us, self._database.passed(known), jobs))
            for kind, until_us in known.items():
                rows = [*rows, *tx.rows(sql.format("and j.kind = ?"), self.app, max(since_us, until_us), kind, jobs)]
        return [
            FailedJobs(kind, queue, int(times), int(first), int(last), job, *(text or "" for text in error))
            for kind, times, first, last, queue, job, *error in sorted(rows, key=lambda row: row[0])
        ]

    def idle_queues(self, patience_us: int, *, at_us: int | None = None) -> list[IdleQueue]:
        """Queues with jobs due for longer than that, which are not paused and which no live worker serves."""
        paused = "select 1 from outlast_queues q where q.app = j.app and q.queue = j.queue and q.paused"
        late = " union all ".join(
            f"select queue, due from outlast_jobs j where app = ? and state = '{state}' and due < ? and not exists ({paused})"
            for state in ("ready", "alone", "waiting")
        )
        with self._database.snapshot() as tx:
            now = self._now(tx, at_us)
            rows = tx.rows(
                f"select queue, count(*), min(due) from ({late}) late group by queue order by queue",
                *(self.app, now - patience_us) * 3,
            )
            served = tx.rows(
                "select w.queues from outlast_leases l left join outlast_workers w on w.app = l.app and w.key = l.key "
                "where l.app = ? and l.kind = 'worker' and l.owner <> '' and l.until > ?",
                *(self.app, now),
            )
        if any(queues is None for (queues,) in served):  # it serves every queue
            return []
        names = {name for (queues,) in served for name in json.loads(queues)}
        return [IdleQueue(queue, int(due), int(oldest)) for queue, due, oldest in rows if queue not in names]

    def old_letters(
        self, than_us: int, *, only: str | None = None, but: Iterable[str] = (), at_us: int | None = None
    ) -> list[OldLetters]:
        """Open dead letters older than that, by pipeline: of one alone, or of all but some."""
        which, names = _pipelines(self._database, only, but)
        with self._database.snapshot() as tx:
            rows = tx.rows(
                "select pipeline, count(*), min(created) from outlast_dead_letters where app = ? and status = 'open' "
                f"and created < ? and {which} group by pipeline order by pipeline",
                *(self.app, self._now(tx, at_us) - than_us, *names),
            )
        return [OldLetters(pipeline, int(count), int(first)) for pipeline, count, first in rows]

    def open_letter_beyond(self, most: int, *, only: str | None = None, but: Iterable[str] = ()) -> int | None:
        """
        When the first letter was created that is open beyond so many, of one pipeline alone or of all but some; None if no
        more are open.
        """
        which, names = _pipelines(self._database, only, but)
        row = self._database.row(
            f"select created from outlast_dead_letters where app = ? and status = 'open' and {which} order by created, id limit 1 offset ?",
            *(self.app, *names, most),
        )
        return None if row is None else int(row[0])

    def names(self) -> set[str]:
        """Every pipeline, flow, kind, queue and shared breaker that the store knows."""
        with self._database.snapshot() as tx:
            rows = tx.rows(
                "select pipeline from outlast_runs where app = ? union select kind from outlast_jobs where app = ? "
                "union select queue from outlast_jobs where app = ? union select kind from outlast_schedules where app = ? "
                "union select pipeline from outlast_dead_letters where app = ? union select queue from outlast_queues where app = ?",
                *[self.app] * 6,
            )
        return {str(name) for (name,) in rows}

    # -- all that is on record -----------------------------------------------------------------------------------------

    def retry_totals(self) -> list[RetryTotal]:
        """Retries, successes after retries and what gave up, of all that is on record, by step and tier."""
        found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        with self._database.snapshot() as tx:
            for place, rows in enumerate(
                (
                    self._failures(tx, "t.outcome = 'retrying'", "t.next_run is not null"),
                    self._recovered(tx),
                    self._failures(tx, *(f"t.outcome <> 'retrying' and t.stop_reason in ({_GAVE_UP})",) * 2),
                )
            ):
                for step, error_class, count in rows:
                    found[step, tier_of(error_class)][place] += int(count)
        return [RetryTotal(*names, *numbers) for names, numbers in sorted(found.items())]

    def _failures(self, tx: Transaction, of_items: str, of_others: str) -> Iterator[tuple[str, str | None, int]]:
        for stages, stage, error_class, count in tx.rows(
            "select r.stages, t.stage, t.error_class, count(*) from outlast_runs r join outlast_attempts t on t.run = r.number "
            f"where r.app = ? and t.outcome <> 'success' and {of_items} group by r.stages, t.stage, t.error_class",
            self.app,
        ):
            yield _stage(stages, stage), error_class, count
        yield from tx.rows(
            "select t.step, t.error_class, count(*) from outlast_runs r join outlast_step_attempts t on t.run = r.number "
            f"where r.app = ? and t.outcome in {_TROUBLE} and {of_others} group by t.step, t.error_class",
            self.app,
        )
        yield from tx.rows(
            "select j.kind, t.error_class, count(*) from outlast_job_attempts t join outlast_jobs j on j.id = t.job "
            f"where j.app = ? and {_NOT_OF_FLOW} and t.outcome in {_TROUBLE} and {of_others} group by j.kind, t.error_class",
            self.app,
        )

    def _recovered(self, tx: Transaction) -> Iterator[tuple[str, str | None, int]]:
        """What succeeded after a retry, by the class of its last failure."""
        last = "row_number() over (partition by {} order by {}) as place"
        for stages, stage, error_class, count in tx.rows(
            "select r.stages, t.stage, t.error_class, count(*) from (select a.run, a.seq, a.stage, a.outcome, a.error_class, "
            f"{last.format('a.run, a.seq, a.stage', 'a.pass desc, a.number desc')} from outlast_runs r "
            "join outlast_attempts a on a.run = r.number where r.app = ? and a.outcome <> 'success') t "
            "join outlast_runs r on r.number = t.run join outlast_items i on i.run = t.run and i.seq = t.seq "
            "where t.place = 1 and t.outcome = 'retrying' and (i.stage > t.stage or i.status in ('succeeded', 'skipped')) "
            "group by r.stages, t.stage, t.error_class",
            self.app,
        ):
            yield _stage(stages, stage), error_class, count
        yield from tx.rows(
            f"select t.step, t.error_class, count(*) from (select a.*, {last.format('a.run, a.step, a.deed', 'a.number desc')} "
            "from outlast_runs r join outlast_step_attempts a on a.run = r.number "
            f"where r.app = ? and a.outcome in {_TROUBLE} and not (a.outcome = 'crashed' and a.next_run is null and a.stop_reason is null)) t "
            "where t.place = 1 and t.next_run is not null and exists (select 1 "
            "from outlast_step_attempts s where s.run = t.run and s.step = t.step and s.deed = t.deed and s.number > t.number "
            "and s.outcome = 'succeeded') group by t.step, t.error_class",
            self.app,
        )
        yield from tx.rows(
            f"select t.kind, t.error_class, count(*) from (select j.kind, a.*, {last.format('a.job', 'a.number desc')} "
            "from outlast_job_attempts a join outlast_jobs j on j.id = a.job "
            f"where j.app = ? and {_NOT_OF_FLOW} and j.state = 'succeeded' and a.outcome in {_TROUBLE}) t "
            "where t.place = 1 and t.next_run is not null group by t.kind, t.error_class",
            self.app,
        )

    def retry_record(self, step: str, window_us: int, *, at_us: int | None = None) -> list[RetryRecord]:
        """
        Of the operations of a step that came to their r-th retry within the window, how many succeeded with it; by the tier
        of the failure that the retry followed. A retry whose end is not on record yet does not count.
        """
        found: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
        turn = "row_number() over (partition by {0} order by {1}) as turn, lead(1) over (partition by {0} order by {1}) as later"
        with self._database.snapshot() as tx:
            since = self._now(tx, at_us) - window_us
            of_items = tx.rows(
                "select r.stages, t.stage, t.error_class, t.turn, count(*), sum(case when t.later is null then 1 else 0 end) "
                f"from (select a.*, {turn.format('a.run, a.seq, a.stage', 'a.pass, a.number')} from outlast_runs r "
                "join outlast_attempts a on a.run = r.number where r.app = ? and (r.finished is null or r.finished > ?) "
                "and a.outcome <> 'success') t join outlast_runs r on r.number = t.run "
                "left join outlast_items i on i.run = t.run and i.seq = t.seq where t.outcome = 'retrying' and t.started + t.took > ? "
                "and (t.later is not null or i.stage > t.stage or i.status in ('succeeded', 'skipped')) "
                "group by r.stages, t.stage, t.error_class, t.turn",
                *(self.app, since, since),
            )
            rows = [tuple(rest) for stages, stage, *rest in of_items if _stage(stages, stage) == step]
            rows += tx.rows(
                "select t.error_class, t.turn, count(*), sum(case when t.later is null then 1 else 0 end) "
                # Attempts after one that gave up begin anew; rounds do not, for a job retries a step in a round of its own.
                f"from (select a.*, {turn.format('a.run, a.step, a.deed, a.series', 'a.number')} from (select b.*, "
                "(select count(*) from outlast_step_attempts e where e.run = b.run and e.step = b.step and e.deed = b.deed "
                "and e.number < b.number and e.stop_reason is not null) as series from outlast_runs r "
                "join outlast_step_attempts b on b.run = r.number where r.app = ? and (r.finished is null or r.finished > ?) "
                f"and b.step = ? and b.outcome in {_TROUBLE}) a) t where t.next_run is not null and t.started + t.took > ? "
                "and (t.later is not null or exists (select 1 from outlast_step_attempts s where s.run = t.run and s.step = t.step "
                "and s.deed = t.deed and s.number > t.number and s.outcome = 'succeeded')) group by t.error_class, t.turn",
                *(self.app, since, step, since),
            )
            rows += tx.rows(
                "select t.error_class, t.turn, count(*), sum(case when t.later is null then 1 else 0 end) "
                f"from (select j.state, a.*, {turn.format('a.job', 'a.number')} from outlast_job_attempts a "
                f"join outlast_jobs j on j.id = a.job where j.app = ? and j.kind = ? and a.outcome in {_TROUBLE} and a.job in "
                f"(select job from outlast_job_attempts where outcome in {_TROUBLE} and started + took > ?)) t "
                "where t.next_run is not null and t.started + t.took > ? and (t.later is not null or t.state = 'succeeded') "
                "group by t.error_class, t.turn",
                *(self.app, step, since, since),
            )
        for error_class, retry, tried, succeeded in rows:
            one = found[tier_of(error_class), int(retry)]
            one[0] += int(tried)
            one[1] += int(succeeded)
        return [RetryRecord(*names, *numbers) for names, numbers in sorted(found.items())]

    def on_record(self) -> OnRecord:
        """How many items, steps and jobs there are, by what became of them."""
        with self._database.snapshot() as tx:
            items = tx.rows(
                "select r.pipeline, sum(p.read), sum(p.succeeded), sum(p.skipped), sum(p.dlq), sum(p.failed) from outlast_runs r "
                "join outlast_progress p on p.run = r.number where r.app = ? and r.kind <> 'flow' group by r.pipeline order by 1",
                self.app,
            )
            steps = tx.rows(
                "select r.pipeline, s.deed, s.state, count(*) from outlast_runs r join outlast_flow_steps s on s.run = r.number "
                # The row of what was undone in an earlier round stays, and says nothing of this one until it is begun.
                "where r.app = ? and not (s.deed = 'undo' and s.state = 'pending' and s.token = 0) "
                "group by r.pipeline, s.deed, s.state order by 1, 2, 3",
                self.app,
            )
            jobs = tx.rows(
                "select kind, queue, state, count(*) from outlast_jobs where app = ? group by kind, queue, state order by 1, 2, 3",
                self.app,
            )
            runs = tx.rows(
                "select pipeline, status, count(*) from outlast_runs where app = ? group by pipeline, status order by 1, 2",
                self.app,
            )
        return OnRecord(
            [(name, *map(int, numbers)) for name, *numbers in items],
            [(*names, int(count)) for *names, count in steps],
            [(*names, int(count)) for *names, count in jobs],
            [(*names, int(count)) for *names, count in runs],
        )

    def _now(self, tx: Transaction, at_us: int | None) -> int:
        return int(tx.row(f"select {self._database.now}")[0]) if at_us is None else at_us


def _pipelines(database: Database, only: str | None, but: Iterable[str]) -> tuple[str, list[Any]]:
    if only is not None:
        return "pipeline = ?", [only]
    return f"not (pipeline {database.among})", [database.passed(but)]


def _stage(stages: str, number: int) -> str:
    """The name of a stage; of one that the run has no more, its number."""
    known = json.loads(stages)
    return str(known[number][0]) if 0 <= number < len(known) else str(number)
