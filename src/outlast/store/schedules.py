"""
Schedules of jobs, and what workers serve.

A schedule is one row for each kind, and the newest tick on it grows: it is locked, looked at, moved on and given its
job in one transaction. So a tick has one job, however many workers look, whatever their clocks say, and also after that
job is gone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.store.records import ScheduleRow, WorkerKinds, storable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from outlast.store.database import Database, Transaction
    from outlast.store.records import Enqueued, NewJob

_ROW = "kind, expression, timezone, missed, declared, since, seen, tick, job, next"


class ScheduleChange(NamedTuple):
    """What a schedule becomes, and the job that is enqueued for its tick."""

    row: ScheduleRow
    job: NewJob | None = None


class Schedules:
    """The part of the store that knows schedules, and what workers serve."""

    _database: Database
    app: str

    if TYPE_CHECKING:

        def _enqueue(self, tx: Transaction, jobs: Sequence[NewJob], now: int) -> list[Enqueued]: ...
        def _tell(self, tx: Transaction, delays: Iterable[int]) -> None: ...

    def schedules(self, *, ahead_us: int = 0) -> tuple[list[ScheduleRow], int]:
        """Every schedule that is on record, by kind, and the database's own time."""
        with self._database.snapshot() as tx:
            (now,) = tx.row(f"select {self._database.now} + {int(ahead_us)}")
            rows = tx.rows(f"select {_ROW} from outlast_schedules where app = ? order by kind", self.app)
        return [ScheduleRow(*row) for row in rows], now

    def change_schedule(
        self,
        kind: str,
        decide: Callable[[ScheduleRow | None, bool, int], ScheduleChange | None],
        *,
        ahead_us: int = 0,
    ) -> Enqueued | None:
        """
        Look at the schedule of a kind with nobody else in between, and do what `decide` says, all or nothing. It is
        given what is on record, whether the last job of it has not begun, and the database's own time; None: nothing.
        The answer is the job that was enqueued.
        """
        database, name = self._database, storable(kind)
        with database.writing() as tx:
            # There is always a row to lock: of two who come first one waits for the other.
            tx.execute(
                f"insert into outlast_schedules (app, {_ROW}) values (?, ?, '', '', '', 0, 0, 0, null, null, null) "
                "on conflict do nothing",
                *(self.app, name),
            )
            found = tx.row(
                f"select {_ROW} from outlast_schedules where app = ? and kind = ? {database.for_update}",
                *(self.app, name),
            )
            row = None if not found[1] else ScheduleRow(*found)
            (now,) = tx.row(f"select {database.now} + {int(ahead_us)}")  # after the wait for the row
            waits = row is not None and row.job is not None and self._has_not_begun(tx, row.job)
            change = decide(row, waits, now)
            if change is None:
                tx.execute(
                    "delete from outlast_schedules where app = ? and kind = ? and expression = ''", self.app, name
                )
                return None
            made: Enqueued | None = None
            if change.job is not None:
                (made,) = self._enqueue(tx, [change.job], now)
                self._tell(tx, (change.job.delay_us,))
            new = change.row
            tx.execute(
                "update outlast_schedules set expression = ?, timezone = ?, missed = ?, declared = ?, since = ?, seen = ?, "
                "tick = ?, job = ?, next = ? where app = ? and kind = ?",
                *new[1:8],
                *(new.job if made is None else made.id, new.next_us, self.app, name),
            )
        return made

    def _has_not_begun(self, tx: Transaction, job: int) -> bool:
        # Without a lock: whoever claims it after this look begins after the tick that it then stands for, too.
        return (
            tx.row(
                "select 1 from outlast_jobs where app = ? and id = ? and made = 0 and state in ('ready', 'waiting', 'alone', 'held')",
                *(self.app, job),
            )
            is not None
        )

    # -- what workers serve --------------------------------------------------------------------------------------------

    def tell_worker(self, key: str, queues: Sequence[str] | None, kinds: Mapping[str, int]) -> None:
        """What the worker with this lease serves; what is on record of workers without a lease goes."""
        served = None if queues is None else storable(json.dumps([*queues]))
        with self._database.writing() as tx:
            tx.execute(
                "insert into outlast_workers (app, key, queues, kinds) values (?, ?, ?, ?) on conflict do nothing",
                *(self.app, key, served, storable(json.dumps(dict(kinds)))),
            )
            tx.execute(
                "delete from outlast_workers where app = ? and key <> ? and not exists (select 1 from outlast_leases "
                "where outlast_leases.app = outlast_workers.app and kind = 'worker' and outlast_leases.key = outlast_workers.key)",
                *(self.app, key),
            )

    def _served(self, tx: Transaction) -> dict[str, WorkerKinds]:
        rows: list[Any] = tx.rows("select key, queues, kinds from outlast_workers where app = ?", self.app)
        return {
            key: WorkerKinds(None if queues is None else tuple(json.loads(queues)), json.loads(kinds))
            for key, queues, kinds in rows
        }
