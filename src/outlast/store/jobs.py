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

import json
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from zlib import crc32

from outlast.kernel.clock import here
from outlast.store import compensations, steps, turns, unique
from outlast.store.faults import StoreRefused, StoreUnanswered, StoreUnavailable
from outlast.store.finishing import Finishing
from outlast.store.leases import fenced
from outlast.store.letters import edits_in
from outlast.store.records import (
    JOB_ENDS,
    JOB_STATES,
    OF_FLOW,
    AlikeJobs,
    Enqueued,
    Idle,
    JobAttempt,
    JobChangeRow,
    JobRow,
    QueueState,
    Turn,
    WholeJob,
    WorkerState,
    from_us,
    storable,
    to_us,
)
from outlast.store.sweeps import sweep
from outlast.store.upkeep import key_of, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

    from outlast.store.database import Database, Transaction
    from outlast.store.records import (
        ClaimedJob,
        JobEnd,
        JobState,
        JobStatus,
        Lease,
        NewJob,
        Orphan,
        Rescue,
        Rescued,
        WorkerKinds,
    )

#: How a driver marks the parameters of a statement: ``?``, ``%s`` or ``$1``.
ParamStyle: TypeAlias = Literal["qmark", "format", "numeric_dollar"]
MOST_BYTES = 2**20  # of a payload or a result
QUIET = 0.02  # seconds after a notification in which this process sends no other
_NEW = "app, queue, kind, version, state, priority, due, payload, unique_key, enqueued, first_due"
_PAYLOAD = _NEW.split(", ").index("payload")
_TYPES = "text text text integer text integer bigint bytea text bigint bigint".split()
_HELD = "unique_key is not null and state in ('ready', 'waiting', 'alone', 'held', 'processing', 'succeeded')"
_ROW = (
    "id, queue, kind, version, state, priority, due, payload, unique_key, enqueued, token, worker, claimed, began, attempts, made, crashes, "
    "previous, snoozed, wanted, error, error_type, error_class, stop_reason, result, ended, unique_until, letter, "
    "(select value from outlast_job_progress said where said.job = outlast_jobs.id and said.token = outlast_jobs.token)"
)
_ATTEMPT = turns.ATTEMPT
_CHUNK = 5000  # rows in one statement
_TOGETHER = 50  # of the caller's: each has ten parameters, and not every SQLite takes more than 999
_COUNTED = 1000  # jobs that are due, when somebody asks whether there are any

# What the jobs of a queue are counted as, by state and by whether they are due. As in `JOB_STATES`: `queued` and
# `scheduled` are together what people see as queued.
_BACKLOG = (
    ("queued", "ready", ""),
    ("queued", "alone", ""),
    ("queued", "waiting", " and due <= ?"),  # due, and no worker has made it ready yet
    ("queued", "held", " and due <= ?"),  # due, and begun again when its code has ended
    ("scheduled", "waiting", " and due > ?"),
    ("scheduled", "held", " and due > ?"),
    ("processing", "processing", ""),
)
# As the index of what workers have says it: otherwise SQLite does not use it.
_OWNED: dict[str, str] = dict.fromkeys(("processing", "held"), "state in ('processing', 'held') and ")

_ONE = "One of them is enough: leave this one as it is, or cancel the other one first."


class Jobs(Finishing):
    """The part of the store that knows durable jobs."""

    _database: Database
    app: str
    #: The largest payload and the largest result of a job, in bytes.
    most_job_bytes: int = MOST_BYTES
    _enqueued: int = 0  # when jobs were last enqueued in a transaction of the caller's
    _notified: float = -1.0  # when this process last told others that there are jobs

    if TYPE_CHECKING:

        def _served(self, tx: Transaction) -> dict[str, WorkerKinds]: ...
        def undoing_left(
            self, queues: Collection[str] | None, kinds: Mapping[str, int], now: int
        ) -> tuple[int, int, int, int | None]: ...

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
            if len(given) == 1 and given[0].unique_key is None and self._database.at_once:
                return self._enqueue_at_once(given[0], ahead_us)
            with self._database.writing() as tx:
                (now,) = tx.row(f"select {self._database.now}")
                done = self._enqueue(tx, given, now + ahead_us)
                self._tell(tx, (job.delay_us for job in given))
        except BaseException as error:
            self._notified = before
            _refuse_to_repeat(error, given)
            raise
        return done

    def _enqueue_at_once(self, job: NewJob, ahead_us: int) -> list[Enqueued]:
        """One job in one statement, which is a transaction by itself: its worker hears of it that much sooner."""
        database, now = self._database, time.monotonic()
        tells = now - self._notified >= QUIET and job.delay_us <= 0
        # The instant is put into the row by the statement itself: the others are as ever.
        app, queue, kind, version, state, priority, delay_us, payload, _, _, _ = _values(self.app, job, 0)
        self._notified = now if tells else self._notified
        row = database.put(
            f"insert into outlast_jobs ({_NEW}) select ?, ?, ?, ?, ?, ?, instant + ?, ?, null, instant, instant + ? "
            f"from (select {database.now} + ? as instant) clock returning id",
            *(app, queue, kind, version, state, priority, delay_us, payload, delay_us, ahead_us),
            tell=self.app if tells else None,
        )
        return [Enqueued(row[0], new=True)]

    def enqueue_many(self, jobs: Iterable[NewJob], *, ahead_us: int = 0) -> int:
        """As `enqueue`, for any number of them; how many were new."""
        given = jobs if isinstance(jobs, AlikeJobs) else [self._checked(job) for job in jobs]
        if not given:
            return 0
        if isinstance(given, AlikeJobs):
            self._checked(given.like._replace(payload=max(given.payloads, key=len)))
        before = self._notified
        try:
            with self._database.writing() as tx:
                (now,) = tx.row(f"select {self._database.now}")
                count = self._enqueue_many(tx, given, now + ahead_us)
                self._tell(tx, (job.delay_us for job in given))
        except BaseException as error:
            self._notified = before
            _refuse_to_repeat(error, given)
            raise
        return count

    def _enqueue_many(self, tx: Transaction, jobs: Sequence[NewJob], now: int) -> int:
        if isinstance(jobs, AlikeJobs):
            row = _values(self.app, jobs.like, now)
            tx.insert_alike("outlast_jobs", _NEW, row, _PAYLOAD, jobs.payloads)
            return len(jobs)
        plain = [_values(self.app, job, now) for job in jobs if job.unique_key is None]
        tx.insert("outlast_jobs", _NEW, plain)
        keyed = sorted((job for job in jobs if job.unique_key is not None), key=_by_key)
        return len(plain) + sum(
            self._insert_keyed(tx, [_values(self.app, job, now) for job in keyed[first : first + _CHUNK]])
            for first in range(0, len(keyed), _CHUNK)
        )

    def enqueue_in(
        self,
        run: Callable[[str, tuple[Any, ...]], Sequence[Any]],
        jobs: Sequence[NewJob],
        *,
        paramstyle: ParamStyle,
        ahead_us: int = 0,
    ) -> list[Enqueued]:
        """
        As `enqueue`, in a transaction of the caller's: `run` does a statement there and answers with its rows. The jobs
        are there if and only if that transaction is committed.
        """
        steps = self.enqueue_steps(jobs, paramstyle=paramstyle, ahead_us=ahead_us)
        rows: Sequence[Any] | None = None
        while True:
            try:
                statement, parameters = steps.send(rows)  # type: ignore[arg-type]
            except StopIteration as stopped:
                return list(stopped.value)
            rows = run(statement, parameters)

    def enqueue_steps(
        self, jobs: Sequence[NewJob], *, paramstyle: ParamStyle, ahead_us: int = 0
    ) -> Generator[tuple[str, tuple[Any, ...]], Sequence[Any], list[Enqueued]]:
        """
        The statements of `enqueue_in`, each with its parameters; the rows of each are sent back. `StoreRefused` if they
        are done in another database than the store's own: the first ones find out, and change nothing.
        """
        database, given = self._database, [self._checked(job) for job in jobs]
        present: int = yield from self.here(
            "Only there can the job be enqueued in the same transaction; enqueue it without one, after the commit.",
            ahead_us,
        )
        # By their instants handles are told apart where the number of what is rolled back is given out again. The clock there counts
        # milliseconds: whoever enqueues in the same one has another instant, and no two of this process are the same.
        apart = 0 if database.arrays else 1 + crc32(here.get().ids.new().encode()) % 900
        self._enqueued = now = max(present + apart, self._enqueued + 1)
        marks = ", ".join("?" * len(_TYPES))
        made = f"insert into outlast_jobs ({_NEW}) values ({marks}) on conflict (app, kind, unique_key) where {_HELD} do nothing returning id"
        there = f"select id from outlast_jobs where app = ? and kind = ? and unique_key = ? and {_HELD}"
        done: dict[int, Enqueued] = {}
        plain = [place for place, job in enumerate(given) if job.unique_key is None]
        for first in range(0, len(plain), _TOGETHER):
            chunk = plain[first : first + _TOGETHER]
            rows = yield _spelled(
                f"insert into outlast_jobs ({_NEW}) values {', '.join([f'({marks})'] * len(chunk))} returning id",
                tuple(value for place in chunk for value in _values(self.app, given[place], now)),
                paramstyle,
            )
            ids = sorted(row[0] for row in rows)  # ids are given out in the order of the rows
            done |= {place: Enqueued(id_, True, now) for place, id_ in zip(chunk, ids, strict=True)}  # noqa: FBT003
        for place in sorted(set(range(len(given))) - done.keys(), key=lambda place: _by_key(given[place])):
            values = _values(self.app, given[place], now)
            rows = yield _spelled(unique.HELD, (values[0], values[2], values[8], now), paramstyle)
            if rows:
                done[place] = Enqueued(rows[0][0], new=False)
            while place not in done:
                rows = yield _spelled(made, values, paramstyle)
                if rows:
                    done[place] = Enqueued(rows[0][0], new=True, at_us=now)
                    break
                rows = yield _spelled(there, (values[0], values[2], values[8]), paramstyle)
                if rows:
                    done[place] = Enqueued(rows[0][0], new=False)
        if database.notifies and any(job.delay_us <= 0 for job in given):
            yield _spelled(database.notifies, (self.app,), paramstyle)
        return [done[place] for place in range(len(given))]

    def _enqueue(self, tx: Transaction, jobs: Sequence[NewJob], now: int) -> list[Enqueued]:
        plain = [place for place, job in enumerate(jobs) if job.unique_key is None]
        rows = [_values(self.app, jobs[place], now) for place in plain]
        at = None if self._database.arrays else now
        done = {place: Enqueued(id, True, at) for place, id in zip(plain, self._insert(tx, rows), strict=True)}  # noqa: A001, FBT003
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
        held = tx.row(unique.HELD, row[0], row[2], row[8], row[9])
        if held is not None:
            return Enqueued(held[0], new=False)
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
        held = unique.held_among(self._database, tx, self.app, ((row[2], row[8]) for row in rows), rows[0][9])
        if held:
            rows = [row for row in rows if (row[2], row[8]) not in held]
            if not rows:
                return 0
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

    def _tell(self, tx: Transaction, delays: Iterable[int]) -> None:
        now = time.monotonic()
        if now - self._notified >= QUIET and any(delay <= 0 for delay in delays):
            self._notified = now
            tx.then = self._database.tell_here
            if self._database.notifies:
                tx.execute(self._database.notifies, self.app)

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
        known: Collection[tuple[int, int]] | None = None,
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
        `known`: after a turn that has failed, the ids and tokens of all jobs that the worker has in hand; ones that it
        has on record beside them are given again, since the answer to their claim was lost.
        """
        if not self._database.at_once or alone or known is not None:
            return self._turn(lease, ends, wants, kinds, most, after or {}, known, ahead_us, alone=alone)
        plain = [end for end in ends if end.state == "succeeded"]
        lost: tuple[int, ...] = ()
        cancelled: tuple[int, ...] = ()
        if len(plain) < len(ends):
            others = [end for end in ends if end.state != "succeeded"]
            lost, _, cancelled = self._turn(lease, others, {}, kinds, most, {}, None, ahead_us)
        late, claimed = turns.at_once(
            self._database, self.app, lease, plain, wants, kinds, most=most, after=after or {}, ahead_us=ahead_us
        )
        return Turn((*lost, *late), claimed, cancelled)

    def claim_asked(
        self,
        lease: Lease,
        wants: Mapping[str, int],
        kinds: Mapping[str, int],
        *,
        most: int,
        after: Mapping[str, tuple[int, int]],
        ahead_us: int = 0,
    ) -> turns.Asked:
        """What `Line.send` is given for a turn that only claims, where the database does it in one statement."""
        return turns.asked(self._database, self.app, lease, wants, kinds, most=most, after=after, ahead_us=ahead_us)

    def claim_answered(
        self, asked: turns.Asked, lease: Lease, wants: Mapping[str, int], rows: Sequence[Any]
    ) -> list[ClaimedJob]:
        """The jobs in the answer to such a turn. `LeaseLost` if it shows that the lease is not the newest: then nothing was claimed."""
        return turns.answered(self._database, asked.statement, rows, lease, wants)

    def _turn(
        self,
        lease: Lease,
        ends: Sequence[JobEnd],
        wants: Mapping[str, int],
        kinds: Mapping[str, int],
        most: int | None,
        after: Mapping[str, tuple[int, int]],
        known: Collection[tuple[int, int]] | None,
        ahead_us: int,
        *,
        alone: bool = False,
    ) -> Turn:
        """Step by step."""
        database, app = self._database, self.app
        now_sql = f"{database.now} + {int(ahead_us)}"
        with database.writing(batches=True) as tx:
            row = fenced(database, tx, app, lease, f"{now_sql}, {turns.waiting(now_sql)}, {database.one_by_one}")
            now, due = row[0], row[1]
            lost, cancelled = turns.finish(database, tx, app, lease.key, ends, now) if ends else ((), ())
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
                place = None if alone else after.get(queue)
                state = "alone" if alone else "ready"
                found = turns.claim(
                    database, tx, app, lease, queue, 1 if alone else room, kinds, now, after=place, state=state
                )
                claimed += found
                left = None if left is None else left - len(found)
        return Turn(lost, claimed, cancelled)

    def release_held(self, lease: Lease, jobs: Iterable[tuple[int, int]], *, ahead_us: int = 0) -> tuple[int, ...]:
        """
        The code of these jobs (id and token) has ended after its attempt: those that are held may be claimed again, once
        they are due; others have no worker any more. The ids of those of which that was known already. `LeaseLost` if
        the lease is not the newest.
        """
        database, late = self._database, list[int]()
        with database.writing(batches=True) as tx:
            (now, *_) = fenced(database, tx, self.app, lease, f"{database.now} + {int(ahead_us)}")
            for number, token in sorted(jobs):
                done = tx.execute(
                    f"update outlast_jobs set state = case when state = 'held' then {turns.claimable()} else state end, worker = null "
                    "where app = ? and id = ? and token = ? and state in ('held', 'failed', 'cancelled') and worker = ?",
                    *(now, self.app, number, token, lease.key),
                )
                if done.rowcount != 1:
                    late.append(number)
        return tuple(late)

    def processing_of(self, worker: str, seconds: float) -> list[tuple[int, int]]:
        """Id and token of the jobs that this worker (the key of its lease) has claimed longer ago than that."""
        with self._database.reading() as tx:
            rows = tx.rows(
                "select id, token from outlast_jobs where app = ? and worker = ? and state in ('processing', 'held') "
                f"and state = 'processing' and claimed < {self._database.now} - ?",
                *(self.app, worker, round(seconds * 1e6)),
            )
        return [(number, token) for number, token in rows]

    def ended_of(self, worker: str) -> list[tuple[int, int]]:
        """Id and token of the jobs that have failed or were cancelled and are with this worker: their code runs, or it undoes them."""
        with self._database.reading() as tx:
            rows = tx.rows(
                "select id, token from outlast_jobs where app = ? and worker = ? and state in ('failed', 'cancelled')",
                *(self.app, worker),
            )
        return [(number, token) for number, token in rows]

    def cancelled_of(self, worker: str) -> list[tuple[int, int]]:
        """Id and token of the jobs that this worker (the key of its lease) is to cancel."""
        with self._database.reading() as tx:
            rows = tx.rows(
                "select id, token from outlast_jobs where app = ? and worker = ? and state in ('processing', 'held') "
                "and wanted = 'cancel' order by id",
                *(self.app, worker),
            )
        return [(number, token) for number, token in rows]

    def sweep(
        self,
        dead: Callable[[str], bool],
        decide: Callable[[Orphan], Rescue],
        *,
        ahead_us: int = 0,
        done: list[Rescued] | None = None,
    ) -> list[Rescued]:
        """
        Bring back the jobs of workers that are gone; which. They are in `done`, too, as soon as they are on record: what
        cannot be brought back of one worker is raised when those of all others are. `dead` says of the owner of a lease whether it is certainly
        no more; `decide` what becomes of a job that crashed with its worker. It is asked inside of a transaction, and
        must be quick and change nothing.

        The attempt is on record as crashed. Held jobs only wait for their time again; a job that somebody has asked to
        cancel is cancelled.
        """
        found = [] if done is None else done
        sweep(self._database, self.app, dead, decide, ahead_us, found)
        return found

    # -- what operators do ---------------------------------------------------------------------------------------------

    def cancel_job(self, id: int, /, *, by: str = "", reason: str = "", ahead_us: int = 0) -> bool:
        """
        Cancel a job that is queued; ask the worker of one that is processed to do it. Whether it was either of them.
        Who wanted it, and why, stays on record.
        """
        database = self._database
        with database.writing() as tx:
            found = tx.row(
                f"select state, letter, {database.now} + {int(ahead_us)} from outlast_jobs where app = ? and id = ? {database.for_update}",
                *(self.app, id),
            )
            if found is None or found[0] in JOB_ENDS:
                return False
            state, letter, now = found
            self._note_change(tx, id, "cancelled", now, by, reason)
            if state == "processing":
                tx.execute("update outlast_jobs set wanted = 'cancel' where id = ?", id)
                return True
            tx.execute(
                # One that is held keeps its worker and its token: they are of the code that still runs.
                "update outlast_jobs set token = case when state = 'held' then token else token + 1 end, state = 'cancelled', ended = ? "
                f"where id = ? and state in {turns.sources('cancelled', JOB_STATES['queued'])}",
                *(now, id),
            )
            if letter is not None:
                turns.settle(tx, self.app, id, "cancelled", letter, None, now)
        return True

    def _note_change(self, tx: Transaction, id: int, change: str, now: int, by: str, reason: str) -> None:
        tx.execute(
            "insert into outlast_job_changes (job, at, change, by_whom, reason) values (?, ?, ?, ?, ?)",
            *(id, now, change, storable(by), storable(reason)),
        )

    def job_changes(self, id: int, /) -> list[JobChangeRow]:
        """What operators have done to a job, or to its arguments by an edit of its dead letter; the first change first."""
        with self._database.reading() as tx:
            return self._changes(tx, self._database.passed([id]))[id]

    def _changes(self, tx: Transaction, ids: Any) -> dict[int, list[JobChangeRow]]:
        """As `job_changes`, of these jobs by their ids."""
        among = f"j.app = ? and j.id {self._database.among}"
        found: dict[int, list[JobChangeRow]] = defaultdict(list)
        for id_, *row in tx.rows(
            "select j.id, c.at, c.change, c.by_whom, c.reason from outlast_jobs j join outlast_job_changes c on c.job = j.id "
            f"where {among} order by c.id",
            *(self.app, ids),
        ):
            found[id_].append(JobChangeRow(*row))
        for id_, metadata in tx.rows(
            "select j.id, l.metadata from outlast_jobs j join outlast_dead_letters l on l.app = j.app and l.id = j.letter "
            f"where {among}",
            *(self.app, ids),
        ):
            edits = edits_in(json.loads(metadata))
            edited = [JobChangeRow(to_us(edit.at), "edited", edit.by, edit.reason) for edit in edits]
            found[id_] = sorted([*found[id_], *edited], key=lambda change: change.at_us)
        return found

    def requeue_job(
        self, id: int, /, *, by: str = "", reason: str = "", from_start: bool = False, ahead_us: int = 0
    ) -> bool:
        """
        Make a job ready again that has failed or was cancelled, with fresh attempts and the payload that its dead letter
        was given by an edit; whether it was one. Its history goes on, and its dead letter is being replayed. If the code
        of its last attempt still runs, it is held until that has ended. Who wanted it, and why, stays on record. With
        `from_start` the results of its steps are forgotten, and that this was done is on record too.

        `StoreRefused` if another job has its unique key meanwhile, and with `from_start` also if its code still runs:
        what that does would be mixed with what is done again.
        """
        database = self._database
        with database.writing() as tx:
            found = tx.row(
                f"select worker, state, kind, unique_key, letter, {database.now} + {int(ahead_us)} from outlast_jobs where app = ? and id = ? {database.for_update}",
                *(self.app, id),
            )
            if found is None or found[1] not in {"failed", "cancelled"}:
                return False
            worker, state, kind, key, letter, now = found
            to: JobState = "ready" if worker is None else "held"
            self._refuse_taken(tx, id, kind, key)
            undone = compensations.close_round(tx, self.app, id, state, from_start=from_start)
            if from_start and worker is not None:
                message = (
                    f"expected the code of job {id} to have ended before its steps are forgotten, got: it still runs although its time was up. "
                    "Requeue it when that has ended, or end its worker."
                )
                raise StoreRefused(message, error_class="data_error")
            try:
                tx.execute(
                    f"update outlast_jobs set state = '{to}', token = token + {int(worker is None)}, due = ?, first_due = ?, attempts = 0, crashes = 0, began = null, "
                    "previous = null, snoozed = null, wanted = null, ended = null, error = null, error_type = null, error_class = null, "
                    f"stop_reason = null where id = ? and state in {turns.sources(to, ('failed', 'cancelled'))}",
                    *(now, now, id),
                )
            except database.driver_error as error:
                if not database.taken(error):
                    raise
                raise self._has_key(id, "another job that was enqueued just now") from None
            if from_start:
                # Under the lock of the job, which has no worker: nobody writes a step in between.
                tx.execute("delete from outlast_steps where kind = 'job' and owner = ?", id)
            if from_start or undone:
                self._note_change(tx, id, "forgot steps", now, by, reason)
            self._note_change(tx, id, "requeued", now, by, reason)
            if letter is not None:
                tx.execute(
                    "update outlast_jobs set payload = (select payload from outlast_dead_letters where outlast_dead_letters.id = ?) "
                    "where id = ? and exists (select 1 from outlast_dead_letters where outlast_dead_letters.app = ? "
                    "and outlast_dead_letters.id = ? and original is not null)",
                    *(letter, id, self.app, letter),
                )
                # One that was put away is taken out again: somebody wants its work done.
                tx.execute(
                    "update outlast_dead_letters set status = 'replaying', moved = ?, reason = 'its job was requeued', claimed_by = ? "
                    "where app = ? and id = ? and status in ('open', 'archived')",
                    *(now, turns.claim_of(id), self.app, letter),
                )
            if worker is None:
                self._tell(tx, (0,))
        return True

    def _refuse_taken(self, tx: Transaction, id: int, kind: str, key: str | None) -> None:
        if key is None:
            return
        held = tx.row(
            f"select job, until from outlast_unique_keys where app = ? and kind = ? and unique_key = ? and until > {self._database.now}",
            self.app,
            kind,
            key,
        )
        if held is not None:
            way_out = f"It holds the key until {from_us(held[1]):%Y-%m-%d %H:%M:%S} UTC. If the work is to be done again before that, enqueue it with another key."
            raise self._has_key(id, f"job {held[0]}, which has succeeded", way_out)
        other = tx.row(
            f"select id, state, unique_until from outlast_jobs where app = ? and kind = ? and unique_key = ? and {_HELD}",
            self.app,
            kind,
            key,
        )
        if other is None:
            return
        number, state, until = other
        if state != "succeeded":
            raise self._has_key(id, f"job {number}")
        least = "" if until is None else f" and at least until {from_us(until):%Y-%m-%d %H:%M:%S} UTC"
        way_out = (
            f"It holds the key as long as it is on record{least}. If the work is to be done again before that, enqueue it "
            "with another key."
        )
        raise self._has_key(id, f"job {number}, which has succeeded", way_out)

    def _has_key(self, id: int, other: str, way_out: str = _ONE) -> StoreRefused:
        message = f"expected the unique key of job {id} to be free, got: it is held by {other}. {way_out}"
        return StoreRefused(message, error_class="data_error")

    def pause_queue(self, queue: str) -> None:
        """Let nobody claim jobs of this queue; what is processed goes on."""
        self._set_paused(queue, paused=True)

    def resume_queue(self, queue: str) -> None:
        """Let jobs of this queue be claimed again."""
        self._set_paused(queue, paused=False)

    def _set_paused(self, queue: str, *, paused: bool) -> None:
        with self._database.writing() as tx:
            tx.execute(
                "insert into outlast_queues (app, queue, paused) values (?, ?, ?) on conflict (app, queue) do update set paused = excluded.paused",
                *(self.app, storable(queue), paused),
            )
            if not paused:
                self._tell(tx, (0,))

    # -- what is on record ---------------------------------------------------------------------------------------------

    def job(self, id: int, /) -> JobRow | None:
        """The job of this id."""
        with self._database.reading() as tx:
            row = tx.row(f"select {_ROW} from outlast_jobs where app = ? and id = ?", self.app, id)
        return None if row is None else _job(row)

    def job_states(self, ids: Iterable[int], /) -> dict[int, tuple[bool, int]]:
        """Of those of these jobs that exist, by id: whether each has ended, and when it was enqueued."""
        database = self._database
        rows = database.rows(
            f"select id, state, enqueued from outlast_jobs where app = ? and id {database.among}",
            *(self.app, database.passed(ids)),
        )
        return {id_: (state in JOB_ENDS, enqueued) for id_, state, enqueued in rows}

    def whole_jobs(self, ids: Iterable[int], /) -> dict[int, WholeJob]:
        """Those of these jobs that exist, by id, in five statements that see one instant."""
        mine = f"job in (select id from outlast_jobs where app = ? and id {self._database.among})"
        given = (self.app, self._database.passed(ids))
        with self._database.snapshot() as tx:
            rows = tx.rows(f"select {_ROW} from outlast_jobs where app = ? and id {self._database.among}", *given)
            attempts = tx.rows(f"select {_ATTEMPT} from outlast_job_attempts where {mine} order by number", *given)
            changes = self._changes(tx, given[1])
            undoing = compensations.of_jobs(tx, mine, given)
            kept = steps.artifacts_of_jobs(tx, mine, given)
        found = {row.id: WholeJob(row, [], changes[row.id], undoing[row.id], kept[row.id]) for row in map(_job, rows)}
        for attempt in (JobAttempt(*row) for row in attempts):
            found[attempt.job].attempts.append(attempt)
        return found

    def jobs(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        status: JobStatus | None = None,
        unique_key: str | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> list[JobRow]:
        """The newest first; `after` is the id of the last one of the page before."""
        where, values = "app = ?", list[Any]([self.app])
        key = None if unique_key is None else key_of(unique_key)
        if kind is not None:  # a flow is found by its name, too
            where += " and kind in (?, ?)"
            values += [storable(kind), OF_FLOW + storable(kind)]
        for column, value in (("queue", queue), ("unique_key", key)):
            if value is not None:
                where += f" and {column} = ?"
                values.append(storable(value))
        if status is not None:
            where += f" and state in ({', '.join(repr(state) for state in JOB_STATES[status])})"
        if after is not None:
            where += " and id < ?"
            values.append(after)
        with self._database.reading() as tx:
            rows = tx.rows(f"select {_ROW} from outlast_jobs where {where} order by id desc limit ?", *values, limit)
        return [_job(row) for row in rows]

    def app_of_job(self, id: int, /) -> str | None:
        """The app that has the job of this number, whichever it is."""
        found = self._database.row("select app from outlast_jobs where id = ?", id)
        return None if found is None else str(found[0])

    def job_attempts(self, id: int, /) -> list[JobAttempt]:
        """The attempts of a job that have ended, the first one first."""
        with self._database.reading() as tx:
            rows = tx.rows(
                f"select {_ATTEMPT} from outlast_job_attempts where job = ? "
                "and exists (select 1 from outlast_jobs where app = ? and id = ?) order by number",
                *(id, self.app, id),
            )
        return [JobAttempt(*row) for row in rows]

    def ready_queues(self) -> list[str]:
        """The queues that have jobs which may be claimed, by name; also those that are paused."""
        # From one name to the next: all jobs of a long queue are not looked at.
        names = ", ".join(
            f"{state}(queue) as (select min(queue) from outlast_jobs where app = ? and state = '{state}' union all "
            f"select (select min(queue) from outlast_jobs where app = ? and state = '{state}' and queue > {state}.queue) "
            f"from {state} where queue is not null)"
            for state in ("ready", "alone")
        )
        rows = self._database.rows(
            f"with recursive {names} select queue from ready where queue is not null union "
            "select queue from alone where queue is not null",
            *[self.app] * 4,
        )
        return sorted(row[0] for row in rows)

    def queue_stats(self, *, ahead_us: int = 0) -> list[QueueState]:
        """Every queue that has jobs which are not over or are to be undone, or is paused, by name."""
        counts = " union all ".join(
            f"select queue, '{counted}' as counted, '{state}' as state, count(*) as n, min(due) as due from outlast_jobs "
            f"where app = ? and {_OWNED.get(state, '')}state = '{state}'{due} group by queue"
            for counted, state, due in _BACKLOG
        )
        with self._database.snapshot() as tx:
            (now,) = tx.row(f"select {self._database.now} + {int(ahead_us)}")
            given = ((self.app, now) if due else (self.app,) for _, _, due in _BACKLOG)
            rows = tx.rows(counts, *(value for values in given for value in values))
            rows += tx.rows(
                f"select queue, 'undo', '', count(*), null from outlast_jobs where app = ? and {compensations.TO_BE_UNDONE} group by queue",
                *(self.app, self.app),
            )
            paused = dict(tx.rows("select queue, paused from outlast_queues where app = ?", self.app))
        found: dict[str, dict[str, int]] = {queue: {} for queue, stands in paused.items() if stands}
        oldest: dict[str, int] = {}
        for queue, counted, state, count, due in rows:
            known = found.setdefault(queue, {})
            known[counted] = known.get(counted, 0) + count
            if counted == "queued" and state != "held":  # which cannot be claimed, however long it has been due
                oldest[queue] = min(due, oldest.get(queue, due))
        return [
            QueueState(
                queue,
                queued=known.get("queued", 0),
                scheduled=known.get("scheduled", 0),
                processing=known.get("processing", 0),
                paused=bool(paused.get(queue)),
                oldest_wait_us=max(0, now - oldest[queue]) if queue in oldest else None,
                undo=known.get("undo", 0),
            )
            for queue, known in sorted(found.items())
        ]

    def idle(self, queues: Iterable[str] | None, kinds: Mapping[str, int], *, ahead_us: int = 0) -> Idle:
        """
        What is left to do in these queues (None: in all), for who knows these kinds: cheap enough to be asked often.
        Jobs of paused queues do not count.
        """
        database, app = self._database, self.app
        queues = None if queues is None else tuple(queues)
        known, values = turns.known_kinds(database, kinds)
        where = f"app = ? and ({known})"
        given: list[Any] = [app, *values]
        if queues is not None:
            where += f" and queue {database.among}"
            given.append(database.passed(map(storable, queues)))
        free = f"{where} and not exists (select 1 from outlast_queues paused where paused.app = outlast_jobs.app and paused.queue = outlast_jobs.queue and paused.paused)"

        later = f"{free} and state = 'waiting' and due > instant"
        few = f"(select count(*) from (select 1 as one from outlast_jobs where {free} and %s limit {_COUNTED}) few)"
        # One statement: a worker asks this whenever it finds nothing, and can be told of no job before the answer.
        ready, alone, over, processing, left, next_due, now, undone = database.row(
            f"select ready, alone, over, processing, case when ready + alone + over + processing > 0 then 0 else "
            f"(select count(*) from outlast_jobs where {later}) end, "
            f"(select due from outlast_jobs where {later} order by due limit 1), instant, "
            f"exists (select 1 from outlast_compensations where app = ? and state in {compensations.OPEN}) from (select instant, "
            f"""{few % "state = 'ready'"} as ready, {few % "state = 'alone'"} as alone, """
            f"""{few % "state = 'waiting' and due <= instant"} as over, """
            f"(select count(*) from outlast_jobs where {where} and state in ('processing', 'held')) as processing "
            f"from (select {database.now} + ? as instant) clock) seen",
            *(*given * 2, app, *given * 4, int(ahead_us)),
        )
        found = Idle(min(ready + alone + over, _COUNTED), processing, left, next_due, now, alone > 0)
        if not undone:  # as nearly always
            return found
        due, taken, waiting, first = self.undoing_left(queues, kinds, now)
        return found._replace(
            undo=due,
            processing=processing + taken,
            later=left + waiting,
            next_due_us=min((at for at in (next_due, first) if at is not None), default=None),
        )

    def waits_alone(self, queues: Collection[str] | None, kinds: Mapping[str, int]) -> bool:
        """Whether a job of these kinds, in these queues (None: in all), can be claimed that must run alone."""
        known, values = turns.known_kinds(self._database, kinds)
        served = ""
        if queues is not None:
            served = f" and queue {self._database.among}"
            values = [*values, self._database.passed(map(storable, queues))]
        free = "not exists (select 1 from outlast_queues paused where paused.app = outlast_jobs.app and paused.queue = outlast_jobs.queue and paused.paused)"
        with self._database.reading() as tx:
            return (
                tx.row(
                    f"select 1 from outlast_jobs where app = ? and state = 'alone' and ({known}){served} and {free} limit 1",
                    *(self.app, *values),
                )
                is not None
            )

    def workers(self) -> list[WorkerState]:
        """
        The workers that have leases, by key; those whose lease has run out are there until a sweep has ended them. One
        that has given its lease back is not, unless it has left jobs behind.
        """
        with self._database.reading() as tx:
            rows = tx.rows(
                f"select key, owner, until, ttl, until > {self._database.now}, (select count(*) from outlast_jobs "
                "where outlast_jobs.app = outlast_leases.app and worker = key and state in ('processing', 'held')) "
                # What it undoes, too, and what still runs after its end.
                "+ (select count(*) from outlast_jobs where outlast_jobs.app = outlast_leases.app and worker = key "
                "and worker is not null and state in ('failed', 'cancelled')) "
                "from outlast_leases where app = ? and kind = 'worker' order by key",
                self.app,
            )
            serves = self._served(tx)
        return [
            WorkerState(key, owner, from_us(until), ttl, bool(alive), count, serves.get(key))
            for key, owner, until, ttl, alive, count in rows
            if owner or count
        ]

    def owners_of_workers(self, beginning: str) -> list[str]:
        """The owners of all leases of workers that begin with this."""
        with self._database.reading() as tx:
            rows = tx.rows(
                "select owner from outlast_leases where app = ? and kind = 'worker' and substr(owner, 1, ?) = ? order by owner",
                *(self.app, len(beginning), beginning),
            )
        return [owner for (owner,) in rows]


def _refuse_to_repeat(error: BaseException, jobs: Sequence[NewJob]) -> None:
    """Raise what is not tried again automatically, if the outcome is unknown and a second try could enqueue these jobs twice."""
    keyed = not isinstance(jobs, AlikeJobs) and all(job.unique_key is not None for job in jobs)
    if isinstance(error, StoreUnavailable) and error.unanswered and not keyed:
        raise StoreUnanswered(
            f"{error} Whether {'the job was' if len(jobs) == 1 else 'these jobs were'} enqueued is unknown. "
            "Give each job a unique_key: then enqueue it again, and it exists once."
        ) from None


def _spelled(sql: str, parameters: tuple[Any, ...], paramstyle: ParamStyle) -> tuple[str, tuple[Any, ...]]:
    """A statement as the caller's driver takes it."""
    if paramstyle == "format":
        return sql.replace("%", "%%").replace("?", "%s"), parameters
    if paramstyle == "numeric_dollar":
        first, *others = sql.split("?")
        return first + "".join(f"${number}{text}" for number, text in enumerate(others, 1)), parameters
    return sql, parameters


def _by_key(job: NewJob) -> tuple[str, str]:
    return job.kind, job.unique_key or ""


def _values(app: str, job: NewJob, now: int) -> tuple[Any, ...]:
    key = None if job.unique_key is None else key_of(job.unique_key)
    state = "waiting" if job.delay_us > 0 else "ready"
    due = now + max(0, job.delay_us)
    queue, kind = storable(job.queue), storable(job.kind)
    return (app, queue, kind, job.version, state, job.priority, due, job.payload, key, now, due)


def _job(row: Any) -> JobRow:
    values = list(row)
    for place in (7, 24):  # payload and result
        values[place] = None if values[place] is None else bytes(values[place])
    values[8] = None if values[8] is None else name_of(values[8])
    values[28] = None if values[28] is None else tuple(json.loads(values[28]))
    return JobRow(*values)
