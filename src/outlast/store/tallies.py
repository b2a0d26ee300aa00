"""
Jobs added up by the database: of those that have ended how many of each kind, what they took, and of what they failed;
and what is left to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.observe.figures import Backlog, JobTally, QueueBacklog

if TYPE_CHECKING:
    from outlast.store.database import Database
    from outlast.store.records import QueueState

# Of a job that was begun once, the one attempt is what has ended it: the others alone are looked up.
_COUNTED = (
    "case when made <= 1 then made else (select count(*) from outlast_job_attempts tried where tried.job = outlast_jobs.id "
    "and tried.outcome in ('succeeded', 'failed', 'timeout', 'crashed')) end"
)


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
            rows = tx.rows(
                "select kind, queue, state, error_class, error_type, count(*), sum(case when counted > 1 then 1 else 0 end), sum(counted), "
                "sum(waited) from (select kind, queue, state, case when state = 'failed' then error_class end as error_class, "
                "case when state = 'failed' then error_type end as error_type, case when ended > enqueued then ended - enqueued else 0 end as waited, "
                f"{_COUNTED} as counted from outlast_jobs "
                "where app = ? and state in ('succeeded', 'failed', 'cancelled') and ended > ?) over_now "
                "group by kind, queue, state, error_class, error_type order by kind, queue, state, error_class, error_type",
                *(self.app, now - window_us),
            )
            kept = tx.rows(
                "select outlast_jobs.kind, queue, count(*) from outlast_artifacts join outlast_jobs on outlast_jobs.id = owner "
                "where outlast_artifacts.kind = 'job' and kept > ? and app = ? group by outlast_jobs.kind, queue "
                "order by outlast_jobs.kind, queue",
                *(now - window_us, self.app),
            )
        found = [JobTally(*row[:5], *map(int, row[5:])) for row in rows]
        return found + [JobTally(kind, queue, "kept", artifacts=count) for kind, queue, count in kept]

    def backlog(self) -> Backlog:
        """What waits and is processed in each queue, and how many workers live."""
        alive = f"select count(*) from outlast_leases where app = ? and kind = 'worker' and owner <> '' and until > {self._database.now}"
        with self._database.reading() as tx:
            (workers,) = tx.row(alive, self.app)
        return Backlog([_waiting(stats) for stats in self.queue_stats()], int(workers))


def _waiting(stats: QueueState) -> QueueBacklog:
    queue, queued, scheduled, processing, paused, oldest_wait_us, _ = stats
    return QueueBacklog(queue, queued, scheduled, processing, paused, (oldest_wait_us or 0) / 1e6)
