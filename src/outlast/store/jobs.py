"""
Durable jobs: enqueued, claimed, ended, rescued; and what operators see of them and do to them.

    enqueue ──► ready ◄──────── waiting ◄─┐ an attempt failed, was released or snoozed
                  │ claim: token + 1      │
                  └──► processing ────────┴──► succeeded | failed | cancelled      (`JOB_MOVES` has all moves)

Whoever has a job has its id and its token, and every write names both: a late one changes nothing. A worker writes
under its lease (kind ``worker``, a fresh key for every registration), so one that was given up for dead writes nothing.
All instants are on the database's own clock, plus `ahead_us`: how far virtual time is ahead of it in tests.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from outlast.store import turns
from outlast.store.faults import StoreRefused
from outlast.store.leases import fenced
from outlast.store.records import Enqueued, JobAttempt, JobRow, Turn, storable
from outlast.store.upkeep import key_of, name_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from outlast.store.database import Database, Transaction
    from outlast.store.records import ClaimedJob, JobEnd, Lease, NewJob

MOST_BYTES = 2**20  # of a payload or a result
QUIET = 0.02  # seconds after a notification in which this process sends no other
_NEW = "app, queue, kind, version, state, priority, due, payload, unique_key, enqueued"
_TYPES = "text text text integer text integer bigint bytea text bigint".split()
_HELD = "unique_key is not null and state in ('ready', 'waiting', 'alone', 'held', 'processing', 'succeeded')"
_ROW = (
    "id, queue, kind, version, state, priority, due, payload, unique_key, enqueued, token, worker, claimed, began, attempts, made, crashes, "
    "previous, snoozed, wanted, error, error_type, error_class, stop_reason, result, ended, unique_until, letter"
)
_ATTEMPT = "job, number, token, worker, started, took, outcome, error_class, error_type, error, stop_reason, next_run"
_CHUNK = 5000  # rows in one statement


class Jobs:
    """The part of the store that knows durable jobs."""

    _database: Database
    app: str
    #: The largest payload and the largest result of a job, in bytes.
    most_job_bytes: int = MOST_BYTES
    _notified: float = -1.0  # when this process last told others that there are jobs

    # -- enqueue -------------------------------------------------------------------------------------------------------

    def enqueue(self, jobs: Sequence[NewJob], *, ahead_us: int = 0) -> list[Enqueued]:
        """
        Put jobs on record, all or none; what each became, in the order given. It is flushed to the disk before this
        returns. A job whose unique key another one has is not added: its answer is that job.

        With PostgreSQL listeners of ``outlast_jobs`` are told, unless they were less than 20 ms ago: who was told looks
        again after that time.
        """
        given = [self._checked(job) for job in jobs]
        before = self._notified
        try:
            with self._database.writing() as tx:
                (now,) = tx.row(f"select {self._database.now}")
                done = self._enqueue(tx, given, now + ahead_us)
                self._tell(tx, given)
        except BaseException:
            self._notified = before
            raise
        return done

    def enqueue_many(self, jobs: Iterable[NewJob], *, ahead_us: int = 0) -> int:
        """As `enqueue`, for any number of them; how many were new."""
        given = [self._checked(job) for job in jobs]
        if not given:
            return 0
        before = self._notified
        try:
            with self._database.writing() as tx:
                (now,) = tx.row(f"select {self._database.now}")
                now += ahead_us
                plain = [_values(self.app, job, now) for job in given if job.unique_key is None]
                tx.insert("outlast_jobs", _NEW, plain)
                keyed = sorted((job for job in given if job.unique_key is not None), key=_by_key)
                count = len(plain) + sum(
                    self._insert_keyed(tx, [_values(self.app, job, now) for job in keyed[first : first + _CHUNK]])
                    for first in range(0, len(keyed), _CHUNK)
                )
                self._tell(tx, given)
        except BaseException:
            self._notified = before
            raise
        return count

    def _enqueue(self, tx: Transaction, jobs: Sequence[NewJob], now: int) -> list[Enqueued]:
        plain = [place for place, job in enumerate(jobs) if job.unique_key is None]
        rows = [_values(self.app, jobs[place], now) for place in plain]
        done = {place: Enqueued(id, True) for place, id in zip(plain, self._insert(tx, rows), strict=True)}  # noqa: A001, FBT003
        # In the order of their keys, so that two of these never wait for each other.
        for place in sorted(set(range(len(jobs))) - done.keys(), key=lambda place: _by_key(jobs[place])):
            done[place] = self._enqueue_keyed(tx, _values(self.app, jobs[place], now))
        return [done[place] for place in range(len(jobs))]

    def _insert(self, tx: Transaction, rows: Sequence[tuple[Any, ...]]) -> list[int]:
        marks = ", ".join("?" * len(_TYPES))
        sql = f"insert into outlast_jobs ({_NEW}) values ({marks}) returning id"
        if len(rows) == 1 or not self._database.arrays:
            return [tx.row(sql, *row)[0] for row in rows]
        if not rows:
            return []
        arrays = ", ".join(f"?::{kind}[]" for kind in _TYPES)
        found = tx.rows(
            f"insert into outlast_jobs ({_NEW}) select {_NEW} from unnest({arrays}) with ordinality as given({_NEW}, place) "
            "order by place returning id",
            *(list(column) for column in zip(*rows, strict=True)),
        )
        return sorted(row[0] for row in found)  # ids are given out in the order of the rows

    def _enqueue_keyed(self, tx: Transaction, row: tuple[Any, ...]) -> Enqueued:
        marks = ", ".join("?" * len(_TYPES))
        while True:
            made = tx.row(
                f"insert into outlast_jobs ({_NEW}) values ({marks}) on conflict (app, kind, unique_key) where {_HELD} do nothing returning id",
                *row,
            )
            if made is not None:
                return Enqueued(made[0], new=True)
            there = tx.row(
                f"select id from outlast_jobs where app = ? and kind = ? and unique_key = ? and {_HELD}",
                *(row[0], row[2], row[8]),
            )
            if there is not None:  # else it has failed or was cancelled in between
                return Enqueued(there[0], new=False)

    def _insert_keyed(self, tx: Transaction, rows: Sequence[tuple[Any, ...]]) -> int:
        conflict = f"on conflict (app, kind, unique_key) where {_HELD} do nothing"
        if not self._database.arrays:
            marks = ", ".join("?" * len(_TYPES))
            sql = f"insert into outlast_jobs ({_NEW}) values ({marks}) {conflict}"
            return sum(tx.execute(sql, *row).rowcount for row in rows)
        arrays = ", ".join(f"?::{kind}[]" for kind in _TYPES)
        done = tx.execute(
            f"insert into outlast_jobs ({_NEW}) select {_NEW} from unnest({arrays}) with ordinality as given({_NEW}, place) "
            f"order by place {conflict}",
            *(list(column) for column in zip(*rows, strict=True)),
        )
        return int(done.rowcount)

    def _checked(self, job: NewJob) -> NewJob:
        self.refuse_oversized(f"the payload of a job {job.kind!r}", job.payload)
        return job

    def refuse_oversized(self, what: str, data: bytes) -> None:
        """Raise if this is more than a job may bring or leave; `what` is named, never shown."""
        if len(data) > self.most_job_bytes:
            message = (
                f"expected {what} to have at most {self.most_job_bytes:,} bytes, got: {len(data):,}. "
                "Keep large data in a file or a table, and give the job its name."
            )
            raise StoreRefused(message, error_class="data_error")

    def _tell(self, tx: Transaction, jobs: Sequence[NewJob]) -> None:
        now = time.monotonic()
        if now - self._notified >= QUIET and any(job.delay_us <= 0 for job in jobs):
            self._notified = now
            self._database.notify(tx, self.app)

    # -- a worker's turn -----------------------------------------------------------------------------------------------

    def turn(
        self,
        lease: Lease,
        ends: Sequence[JobEnd],
        wants: Mapping[str, int],
        kinds: Mapping[str, int],
        *,
        most: int | None = None,
        alone: bool = False,
        after: Mapping[str, tuple[int, int]] | None = None,
        known: Collection[int] | None = None,
        ahead_us: int = 0,
    ) -> Turn:
        """
        End attempts, make jobs ready that are due, and claim at most ``wants[queue]`` of each queue that is not paused:
        jobs of these `kinds`, up to the version of the payload that each names. One transaction: `LeaseLost` if the
        lease is not the newest, and then nothing is written.

        `most`: no more than so many of all queues together, the first of them first.
        `alone`: at most one job that has crashed two workers, and nothing else; of the queues in `wants`.
        `after`: by queue, the priority and the id of the job claimed last. Only later ones of the same priority are
        looked at; whoever uses it looks from the start when fewer than wanted come, and about once a second.
        `known`: after a turn that has failed, the ids of all jobs that the worker has in hand; ones that it has on
        record beside them are given again, since the answer to their claim was lost.
        """
        database, app = self._database, self.app
        now_sql = f"{database.now} + {int(ahead_us)}"
        with database.writing(batches=True) as tx:
            row = fenced(database, tx, app, lease, f"{now_sql}, {turns.waiting(now_sql)}")
            now, due = row[0], row[1]
            lost, cancelled = turns.finish(database, tx, app, lease, ends, now) if ends else ((), ())
            if due:
                turns.promote(database, tx, app, now)
            claimed: list[ClaimedJob] = []
            if known is not None:
                claimed += turns.again(tx, app, lease, known)
            left = most
            for queue, wanted in wants.items():
                room = wanted if left is None else min(wanted, left)
                if room <= 0 or (alone and claimed):
                    continue
                place = None if after is None or alone else after.get(queue)
                state = "alone" if alone else "ready"
                found = turns.claim(
                    database, tx, app, lease, queue, 1 if alone else room, kinds, now, after=place, state=state
                )
                claimed += found
                left = None if left is None else left - len(found)
        return Turn(lost, claimed, cancelled)

    # -- what is on record ---------------------------------------------------------------------------------------------

    def job(self, id: int, /) -> JobRow | None:
        """The job of this id."""
        with self._database.reading() as tx:
            row = tx.row(f"select {_ROW} from outlast_jobs where app = ? and id = ?", self.app, id)
        return None if row is None else _job(row)

    def job_attempts(self, id: int, /) -> list[JobAttempt]:
        """The attempts of a job that have ended, the first one first."""
        with self._database.reading() as tx:
            rows = tx.rows(
                f"select {_ATTEMPT} from outlast_job_attempts where job = ? "
                "and exists (select 1 from outlast_jobs where app = ? and id = ?) order by number",
                *(id, self.app, id),
            )
        return [JobAttempt(*row) for row in rows]


def _by_key(job: NewJob) -> tuple[str, str]:
    return job.kind, job.unique_key or ""


def _values(app: str, job: NewJob, now: int) -> tuple[Any, ...]:
    key = None if job.unique_key is None else key_of(job.unique_key)
    state = "waiting" if job.delay_us > 0 else "ready"
    due = now + max(0, job.delay_us)
    queue, kind = storable(job.queue), storable(job.kind)
    return (app, queue, kind, job.version, state, job.priority, due, job.payload, key, now)


def _job(row: Any) -> JobRow:
    values = list(row)
    for place in (7, 24):  # payload and result
        values[place] = None if values[place] is None else bytes(values[place])
    values[8] = None if values[8] is None else name_of(values[8])
    return JobRow(*values)
