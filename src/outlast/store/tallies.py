"""
Jobs added up by the database: of those that have ended how many of each kind, what they took, and of what they failed;
and what is left to do.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from outlast.observe.figures import SCHEMA_CLASS, Backlog, JobTally, QueueBacklog
from outlast.store.records import job_of_run
from outlast.store.troubles import APART_US

if TYPE_CHECKING:
    from outlast.store.database import Database, Transaction
    from outlast.store.records import QueueState

# What ended since a job was last requeued by hand: what was tried before that is none of its retries.
_ROUND = (
    "from outlast_job_attempts tried where tried.job = outlast_jobs.id and tried.started + tried.took > "
    "coalesce((select max(c.at) from outlast_job_changes c where c.job = outlast_jobs.id and c.change = 'requeued'), 0)"
)
_DUE = "coalesce(first_due, enqueued)"
# Of a job that was begun once, the one attempt is what has ended it: the others alone are looked up.
_COUNTED = f"case when made <= 1 then made else (select count(*) {_ROUND} and tried.outcome in ('succeeded', 'failed', 'timeout', 'crashed')) end"
_PAUSE = "sum(case when tried.next_run > tried.started + tried.took then tried.next_run - tried.started - tried.took else 0 end)"
_BACKOFF = f"case when made <= 1 then 0 else (select coalesce({_PAUSE}, 0) {_ROUND} and tried.outcome in ('failed', 'timeout', 'crashed')) end"
_SNOOZED = f"case when made <= 1 then 0 else (select coalesce({_PAUSE}, 0) {_ROUND} and tried.outcome = 'snoozed') end"
_RAN = f"case when made <= 1 then (case when ended > began then ended - began else 0 end) else (select coalesce(sum(tried.took), 0) {_ROUND}) end"
# A requeue by hand makes a job due again: that is no delay that it was enqueued with.
_DELAYED = f"case when made > 1 and exists (select 1 from outlast_job_changes c where c.job = outlast_jobs.id and c.change = 'requeued') then 0 else {_DUE} - enqueued end"
# A validation that failed may be one of the input. It was one of the output of a model if the attempt has kept that.
_INVALID = "state = 'failed' and (error_class = 'validation_error' or error_type = 'JSONDecodeError')"
_KEPT = "exists (select 1 from outlast_artifacts a where a.kind = 'job' and a.owner = outlast_jobs.id and a.attempt = outlast_jobs.made)"
_SCHEMA = f"case when state = 'failed' and error_class = '{SCHEMA_CLASS}' then 1 when {_INVALID} and {_KEPT} then 1 else 0 end"
_MODEL = "llm.caller"  # the component whose output a later step validates


class Tallies:
    """The part of the store that adds up jobs."""

    _database: Database
    app: str

    if TYPE_CHECKING:

        def queue_stats(self, *, ahead_us: int = 0) -> list[QueueState]: ...

    def job_tallies(self, window_us: int, *, ahead_us: int = 0) -> list[JobTally]:
        """
        What has ended, and what was kept, within so many microseconds before now, on the database's clock. Both from an
        index.
        """
        database = self._database
        with database.snapshot() as tx:
            (now,) = tx.row(f"select {database.now} + {int(ahead_us)}")
            since = now - window_us
            rows = tx.rows(
                "select kind, queue, state, error_class, count(*), sum(case when counted > 1 then 1 else 0 end), sum(counted), "
                "sum(waited), sum(delayed), sum(backoff), sum(case when waited > ran + backoff then waited - ran - backoff else 0 end), "
                "sum(schema) from (select kind, queue, state, error_class, counted, delayed + snoozed as delayed, backoff, ran, schema, "
                "case when whole > snoozed then whole - snoozed else 0 end as waited from (select kind, queue, state, "
                "case when state = 'failed' then error_class end as error_class, "
                f"case when ended > {_DUE} then ended - {_DUE} else 0 end as whole, {_COUNTED} as counted, {_DELAYED} as delayed, "
                f"{_SNOOZED} as snoozed, {_BACKOFF} as backoff, {_RAN} as ran, {_SCHEMA} as schema from outlast_jobs "
                "where app = ? and state in ('succeeded', 'failed', 'cancelled') and ended > ?) one) over_now "
                "group by kind, queue, state, error_class order by kind, queue, state, error_class",
                *(self.app, since),
            )
            of_flows = self._schema_failures_of_flows(tx, since)
            kept = tx.rows(
                "select outlast_jobs.kind, queue, count(*) from outlast_artifacts join outlast_jobs on outlast_jobs.id = owner "
                "where outlast_artifacts.kind = 'job' and kept > ? and app = ? group by outlast_jobs.kind, queue "
                "order by outlast_jobs.kind, queue",
                *(since, self.app),
            )
        found = []
        for kind, queue, state, error_class, *numbers in rows:
            jobs, retried, attempts, waited, delayed, backoff, queued, schema = map(int, numbers)
            tally = JobTally(kind, queue, state, error_class, jobs, retried, attempts, waited)
            if state == "failed":
                schema += of_flows[kind, queue, error_class]
            found.append(tally._replace(delayed_us=delayed, backoff_us=backoff, queued_us=queued, schema=schema))
        return found + [JobTally(kind, queue, "kept", artifacts=count) for kind, queue, count in kept]

    def _schema_failures_of_flows(self, tx: Transaction, since: int) -> Counter[tuple[str, str, str | None]]:
        """Flows in a queue that failed in a validation after a model had answered, by kind, queue and class of the error."""
        jobs = {
            number: (kind, queue, error_class)
            for number, kind, queue, error_class in tx.rows(
                f"select id, kind, queue, error_class from outlast_jobs where app = ? and ended > ? and {_INVALID} and not {_KEPT}",
                *(self.app, since),
            )
        }
        found: Counter[tuple[str, str, str | None]] = Counter()
        if not jobs:
            return found
        for number, identity in tx.rows(
            "select number, identity from outlast_runs where app = ? and kind = 'flow' and status <> 'completed' "
            "and (finished is null or finished > ?)",
            *(self.app, since - APART_US),
        ):
            job = job_of_run("flow", identity)
            if job not in jobs:
                continue
            steps = tx.rows(
                "select place, state, definition from outlast_flow_steps where run = ? and deed = 'do' order by place",
                number,
            )
            failed = max((place for place, state, _ in steps if state == "failed"), default=-1)
            if any(
                state == "succeeded" and place < failed and json.loads(definition)["work"].get("component") == _MODEL
                for place, state, definition in steps
            ):
                found[jobs[job]] += 1
        return found

    def backlog(self) -> Backlog:
        """What waits and is processed in each queue, and how many workers live."""
        alive = f"select count(*) from outlast_leases where app = ? and kind = 'worker' and owner <> '' and until > {self._database.now}"
        with self._database.reading() as tx:
            (workers,) = tx.row(alive, self.app)
        return Backlog([_waiting(stats) for stats in self.queue_stats()], int(workers))


def _waiting(stats: QueueState) -> QueueBacklog:
    queue, queued, scheduled, processing, paused, oldest_wait_us, _ = stats
    return QueueBacklog(queue, queued, scheduled, processing, paused, (oldest_wait_us or 0) / 1e6)
