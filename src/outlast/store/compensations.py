"""
What undoes a job, should it fail for good: registered by its code, and undone by a worker, the last one first.

    registered ──► running ──► undone            (the job has failed; of one that was cancelled: once somebody asks for it)
        due ──────► │  ▲ └──► failed, with a dead letter; `due` again once somebody asks for it
         ▲          ▼  │
         └── a wait, a crash, or its worker gives it back

There is no mark "to be undone" that could be missing: a job that has failed and has something `registered` is to be undone,
whoever has let it fail. Who undoes it is the worker of its row and has a new token, as for a claim, while the job stays failed:
so it is with a job whose code still runs after its end, and a sweep frees both in the same way. Every write names the job, the
token and the worker. All of it is flushed: what is registered must be undone, also after a power cut.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from outlast.store import turns
from outlast.store.faults import StoreRefused
from outlast.store.leases import fenced
from outlast.store.letters import COLUMNS as LETTER
from outlast.store.letters import letter_values, note_failure
from outlast.store.records import storable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from outlast.kernel.aliases import StopReason
    from outlast.store.database import Database, Transaction
    from outlast.store.records import DeadLetterRow, Lease

CompensationState: TypeAlias = Literal["registered", "due", "running", "undone", "failed"]
CompensationStatus: TypeAlias = Literal["registered", "pending", "running", "completed", "failed", "not_needed"]
MOST_COMPENSATIONS = 1000  # of one job
OPEN = "('registered', 'due', 'running')"  # as the index has it
_ROW = (
    "place, state, closed, call, arguments, fingerprint, step, attempt, registered, attempts, crashes, unknown, due, previous, began, ended, "
    "error, error_type, error_class, stop_reason, letter"
)
_JOB = "id, kind, queue, token, attempts, enqueued, state, error"


class NewCompensation(NamedTuple):
    """
    What undoes something that a job is about to do, or has done. `call` is where its function is, `arguments` are stored,
    `step` is the one that it was registered in.
    """

    job: int
    token: int
    attempt: int
    place: int
    call: str
    arguments: bytes
    fingerprint: str
    step: str | None


class CompensationRecord(NamedTuple):
    """
    What undoes a part of a job, as it is on record. `attempt` is the one of the job that has registered it; `unknown` is how
    often a worker was at it that did not find the function; `by_hand`: it has failed, and somebody has put its dead letter away.
    """

    place: int
    state: CompensationState
    closed: bool
    call: str
    arguments: bytes
    fingerprint: str
    step: str | None
    attempt: int
    registered_us: int
    attempts: int
    crashes: int
    unknown: int
    due_us: int | None
    previous_us: int | None
    began_us: int | None
    ended_us: int | None
    error: str | None
    error_type: str | None
    error_class: str | None
    stop_reason: StopReason | None
    letter: str | None
    by_hand: bool = False

    def status(self, job: str) -> CompensationStatus:
        """What it is for people, given the status of its job."""
        if self.state == "registered":
            return "pending" if job == "failed" else "not_needed" if job == "succeeded" else "registered"
        if self.by_hand:
            return "completed"
        return {"due": "pending", "running": "running", "undone": "completed", "failed": "failed"}[self.state]  # type: ignore[return-value]


def in_all(rows: Iterable[CompensationRecord], job: str) -> Literal["none", "pending", "completed", "failed"]:
    """Whether what a job has done since it was enqueued or requeued is undone, given the status of the job."""
    found = {row.status(job) for row in rows if not row.closed}
    if found & {"pending", "running"}:
        return "pending"
    return "failed" if "failed" in found else "completed" if "completed" in found else "none"


class UndoneJob(NamedTuple):
    """A job that this worker undoes, and what is left of it, in the order in which that is undone."""

    id: int
    kind: str
    queue: str
    token: int
    attempts: int
    enqueued_us: int
    state: str
    error: str | None
    left: list[CompensationRecord]


class CompensationEnd(NamedTuple):
    """
    What became of one attempt to undo something: ``due`` again after `delay_us`, ``undone`` or ``failed``. One that is not
    `charged` was given back, or its worker was lost; one whose function is `unknown` here was not begun.
    """

    place: int
    state: Literal["due", "undone", "failed"]
    delay_us: int = 0
    charged: bool = True
    crashed: bool = False
    unknown: bool = False
    error: str | None = None
    error_type: str | None = None
    error_class: str | None = None
    stop_reason: StopReason | None = None
    letter: DeadLetterRow | None = None


class Compensations:
    """The part of the store that knows what undoes jobs."""

    _database: Database
    app: str

    if TYPE_CHECKING:

        def _note_change(self, tx: Transaction, id: int, change: str, now: int, by: str, reason: str) -> None: ...

    def compensations(self, job: int, /) -> list[CompensationRecord]:
        """All that undoes a job, or did, in the order in which it was registered."""
        with self._database.reading() as tx:
            rows = tx.rows(
                f"select {_ROW}, {_HAND} from outlast_compensations where app = ? and job = ? order by place",
                self.app,
                job,
            )
        return [_record(row) for row in rows]

    def undoing_waits(self, queues: Collection[str] | None, kinds: Mapping[str, int], *, ahead_us: int = 0) -> bool:
        """Whether a job of these kinds, in these queues (None: in all), is to be undone now."""
        with self._database.reading() as tx:
            where, values = self._waiting(queues, kinds)
            now = f"{self._database.now} + {int(ahead_us)}"
            return (
                tx.row(f"select 1 from outlast_jobs where {where} and worker is null and {_due(now)} limit 1", *values)
                is not None
            )

    def claim_undoing(
        self,
        lease: Lease,
        queues: Collection[str] | None,
        kinds: Mapping[str, int],
        most: int,
        *,
        ahead_us: int = 0,
    ) -> list[UndoneJob]:
        """
        Take jobs that are to be undone. `LeaseLost` if the lease is not the newest. What an earlier worker was at when it was
        lost is still called running: whoever has taken it puts the crash on record.
        """
        database = self._database
        where, values = self._waiting(queues, kinds)
        with database.writing() as tx:
            (now, *_) = fenced(database, tx, self.app, lease, f"{database.now} + {int(ahead_us)}")
            rows = tx.rows(
                f"with picked as materialized (select id as number from outlast_jobs where {where} and worker is null and {_due('?')} "
                f"order by id limit ? {database.skip_locked}) update outlast_jobs set worker = ?, token = token + 1 from picked "
                f"where id = number and worker is null returning {_JOB}",
                *(*values, now, most, lease.key),
            )
            return [UndoneJob._make([*row, self._left(tx, row[0], row[6])]) for row in sorted(rows)]

    def release_undoing(self, lease: Lease, known: Collection[int]) -> None:
        """
        Give back the failed jobs that this worker has on record without knowing of them: the answer to their claim was lost. `known` are
        all that it has in hand. `LeaseLost` if the lease is not the newest.
        """
        database = self._database
        with database.writing() as tx:
            fenced(database, tx, self.app, lease)
            rows = tx.rows(
                "select id from outlast_jobs where app = ? and worker = ? and state in ('failed', 'cancelled') "
                f"order by id {database.for_update}",
                *(self.app, lease.key),
            )
            lost = [id for (id,) in rows if id not in known]  # noqa: A001 - what it is called everywhere
            tx.execute(
                f"update outlast_jobs set worker = null where worker = ? and id {database.among}",
                *(lease.key, database.passed(lost)),
            )

    def _left(self, tx: Transaction, job: int, state: str) -> list[CompensationRecord]:
        rows = tx.rows(
            f"select {_ROW}, {_HAND} from outlast_compensations where app = ? and job = ? and state in {OPEN} order by place desc",
            *(self.app, job),
        )
        return [one for one in map(_record, rows) if state == "failed" or one.state != "registered"]

    def _waiting(self, queues: Collection[str] | None, kinds: Mapping[str, int]) -> tuple[str, list[Any]]:
        """Which jobs are to be undone."""
        known, given = turns.known_kinds(self._database, kinds)
        where = (
            f"app = ? and ({known}) and {TO_BE_UNDONE} and not exists (select 1 from outlast_queues paused "
            "where paused.app = outlast_jobs.app and paused.queue = outlast_jobs.queue and paused.paused)"
        )
        values: list[Any] = [self.app, *given, self.app]
        if queues is not None:
            where += f" and queue {self._database.among}"
            values.append(self._database.passed(map(storable, queues)))
        return where, values

    def undoing_left(
        self, queues: Collection[str] | None, kinds: Mapping[str, int], now: int
    ) -> tuple[int, int, int, int | None]:
        """Of the jobs that are to be undone: how many are due, are being undone, and are due later; when the first of those is."""
        where, values = self._waiting(queues, kinds)
        wait = f"(select max(due) from outlast_compensations undo where undo.job = outlast_jobs.id and undo.state in {OPEN})"
        # One statement: a job that a sweep frees meanwhile would be in neither of two.
        rows = self._database.rows(f"select worker is null, {wait} from outlast_jobs where {where}", *values)
        free = [due for unowned, due in rows if unowned]
        later = [due for due in free if due is not None and due > now]
        return len(free) - len(later), len(rows) - len(free), len(later), min(later, default=None)

    def jobs_undoing(self) -> dict[str, int]:
        """
        Jobs by how far they are undone: `pending` are to be undone and nobody is at it, `running` are undone now by a worker whose
        lease lasts, `failed` could not be undone and still stand.
        """
        database = self._database
        running = (
            "exists (select 1 from outlast_leases l where l.app = outlast_jobs.app and l.kind = 'worker' and l.key = outlast_jobs.worker "
            f"and l.until > {database.now}) and exists (select 1 from outlast_compensations at_it where at_it.job = outlast_jobs.id "
            "and at_it.state = 'running')"
        )
        with database.snapshot() as tx:
            (left, taken) = tx.row(
                f"select count(*), coalesce(sum(case when {running} then 1 else 0 end), 0) from outlast_jobs where app = ? and {TO_BE_UNDONE}",
                *(self.app, self.app),
            )
            (failed,) = tx.row(
                "select count(distinct job) from outlast_compensations where app = ? and state = 'failed' and not closed "
                f"and not ({_BY_HAND}) and job not in (select id from outlast_jobs where app = ? and {TO_BE_UNDONE})",
                *(self.app, self.app, self.app),
            )
        return {"pending": int(left) - int(taken), "running": int(taken), "failed": int(failed)}

    # -- one attempt ---------------------------------------------------------------------------------------------------

    def begin_compensation(
        self, lease: Lease, job: int, token: int, place: int, *, attempt: int, ahead_us: int = 0
    ) -> bool:
        """Put on record that something is being undone, before it is; whether the job is still this worker's. Twice is once."""
        database = self._database
        with database.writing() as tx:
            if not self._mine(tx, lease, job, token):
                return False
            done = tx.execute(
                "update outlast_compensations set state = 'running', attempts = ?, due = null, "
                f"began = {database.now} + {int(ahead_us)} where job = ? and place = ? and state in {OPEN}",
                *(attempt, job, place),
            )
            return bool(done.rowcount)

    def end_compensation(self, lease: Lease, job: int, token: int, end: CompensationEnd, *, ahead_us: int = 0) -> bool:
        """Put on record what became of it, with its dead letter; whether the job is still this worker's. Twice is once."""
        database = self._database
        with database.writing() as tx:
            if not self._mine(tx, lease, job, token):
                return False
            (now,) = tx.row(f"select {database.now} + {int(ahead_us)}")
            found = tx.row("select letter from outlast_compensations where job = ? and place = ?", job, end.place)
            over = end.state != "due"
            began = f"state in {OPEN}" if end.unknown else "state = 'running'"  # the answer to a commit may be lost
            done = tx.execute(
                "update outlast_compensations set state = ?, due = ?, previous = ?, ended = ?, attempts = attempts - ?, "
                "crashes = crashes + ?, unknown = unknown + ?, error = ?, error_type = ?, error_class = ?, stop_reason = ? "
                f"where job = ? and place = ? and {began}",
                end.state,
                None if over else now + end.delay_us,
                end.delay_us or None,
                now if over else None,
                int(not end.charged),
                int(end.crashed),
                int(end.unknown),
                turns.cut(end.error),
                turns.cut(end.error_type),
                turns.cut(end.error_class),
                end.stop_reason,
                job,
                end.place,
            )
            if done.rowcount and over:
                self._settle(tx, job, end, found[0], now)
            return True

    def _settle(self, tx: Transaction, job: int, end: CompensationEnd, known: str | None, now: int) -> None:
        """The dead letter of what could not be undone, and its end once it is."""
        # On the database's clock, as that of its job.
        letter = None if end.letter is None else replace(end.letter, created_us=now, last_attempt_us=now)
        if letter is None:
            tx.execute(
                "update outlast_dead_letters set status = 'resolved', moved = ?, replays = replays + 1, last_attempt = ? "
                "where app = ? and id = ? and status = 'open'",
                *(now, now, self.app, known),
            )
            return
        opened = tx.execute(
            "update outlast_dead_letters set status = 'open', moved = ?, replays = replays + 1 where app = ? and id = ?",
            *(now, self.app, known),
        )
        if opened.rowcount:
            note_failure(tx, str(known), turns.failure_of(letter), now)
            return
        tx.insert("outlast_dead_letters", LETTER, [letter_values(self.app, letter, letter.created_us)])
        tx.execute("update outlast_compensations set letter = ? where job = ? and place = ?", letter.id, job, end.place)

    def _mine(self, tx: Transaction, lease: Lease, job: int, token: int) -> bool:
        """Whether the job is still undone by this worker; its row is held until the transaction ends."""
        database = self._database
        return (
            tx.row(
                f"select 1 from outlast_jobs where app = ? and id = ? and token = ? and worker = ? and state in ('failed', 'cancelled') {database.for_update}",
                *(self.app, job, token, lease.key),
            )
            is not None
        )

    # -- what operators do ---------------------------------------------------------------------------------------------

    def undo_job(self, id: int, /, *, by: str = "", reason: str = "", ahead_us: int = 0) -> int:
        """
        Have undone what could not be undone of a failed job, what waits for its next attempt or for a worker that knows it, and all that a
        cancelled one has registered; how much that is. Who wanted it, and why, stays on record.
        """
        database = self._database
        with database.writing() as tx:
            found = tx.row(
                f"select state, {database.now} + {int(ahead_us)}, worker from outlast_jobs where app = ? and id = ? {database.for_update}",
                *(self.app, id),
            )
            if found is None or found[0] not in {"failed", "cancelled"}:
                return 0
            which = "('failed', 'registered')" if found[0] == "cancelled" else "('failed')"
            waits = "state = 'due' and due > ?" if found[2] is None else "1 = 0 and due > ?"  # else somebody is at it
            # Also what somebody has called undone by hand: to undo it once more does no harm.
            done = tx.execute(
                "update outlast_compensations set state = 'due', due = null, attempts = 0, crashes = 0, unknown = 0, previous = null, ended = null "
                f"where app = ? and job = ? and not closed and (state in {which} or {waits})",
                *(self.app, id, found[1]),
            ).rowcount
            if done:
                self._note_change(tx, id, "undo", found[1], by, reason)
        return int(done)


def close_round(tx: Transaction, app: str, job: int, state: str, *, from_start: bool = False) -> bool:
    """
    A job is requeued: what it has undone is a matter of the past, and so are the results of all steps that may have used it. Whether
    there were such steps. `StoreRefused` while something is left to be undone; `from_start` also while something of a cancelled job
    stands, of which nobody would know once its steps are forgotten.
    """
    rows = tx.rows(
        f"select place, state, step, call, letter, {_HAND} from outlast_compensations "
        "where app = ? and job = ? and not closed order by place",
        *(app, job),
    )
    standing = "('registered', 'due', 'running')" if state == "failed" else "('due', 'running')"
    for _, now, _, call, letter, by_hand in rows:
        if f"'{now}'" in standing:
            message = (
                f"expected what job {job} has done to be undone before it is done again, got: {call} is still to be called. A worker "
                f"that knows this kind of job does that; outlast jobs show {job} says how far it is."
            )
            raise StoreRefused(message, error_class="data_error")
        if now == "registered" and from_start:
            message = (
                f"expected what job {job} has done to be undone before all of it is done again, got: it was cancelled, and what {call} would "
                f"undo stands. Have it undone first: outlast jobs compensate {job}. Or requeue it, but not from the start: it goes on where it was."
            )
            raise StoreRefused(message, error_class="data_error")
        if now == "failed" and not by_hand:
            message = (
                f"expected what job {job} has done to be undone before it is done again, got: {call} has failed, and what it undoes still "
                f"stands. Try it once more: outlast jobs compensate {job}. If it was undone by hand: outlast dlq archive {(letter or '')[:12]} --reason 'undone by hand'."
            )
            raise StoreRefused(message, error_class="data_error")
    undone = [place if step is not None else 0 for place, now, step, *_ in rows if now in {"undone", "failed"}]
    if not undone:
        return False
    tx.execute(
        "update outlast_compensations set closed = ? where app = ? and job = ? and state in ('undone', 'failed')",
        *(True, app, job),
    )
    gone = tx.execute(
        "delete from outlast_steps where kind = 'job' and owner = ? and (place is null or place > ?)", job, min(undone)
    )
    return bool(gone.rowcount)


def forget_compensations(database: Database, tx: Transaction, jobs: Sequence[int]) -> None:
    """Delete what has undone these jobs."""
    tx.execute(f"delete from outlast_compensations where job {database.among}", database.passed(jobs))


def outlived() -> str:
    """Whether a job has nothing left that is to be undone, or could not be and still stands."""
    return (
        "not exists (select 1 from outlast_compensations where outlast_compensations.job = outlast_jobs.id and not closed "
        f"and (outlast_compensations.state in ('due', 'running') or outlast_compensations.state = 'registered' and outlast_jobs.state = 'failed' "
        f"or outlast_compensations.state = 'failed' and not ({_BY_HAND})))"
    )


# Somebody has put the dead letter away, or it is gone since: it was undone by hand. Retention leaves such letters alone (`put_away`).
_BY_HAND = (
    "outlast_compensations.letter is not null and not exists (select 1 from outlast_dead_letters stands where stands.id = outlast_compensations.letter "
    "and stands.status in ('open', 'replaying'))"
)
_HAND = f"case when state = 'failed' and {_BY_HAND} then 1 else 0 end"
TO_BE_UNDONE = (
    "state in ('failed', 'cancelled') and id in (select job from outlast_compensations undo where undo.app = ? "
    f"and undo.state in {OPEN}) and (state = 'failed' or exists (select 1 from outlast_compensations asked "
    "where asked.job = outlast_jobs.id and asked.state in ('due', 'running')))"
)


def _due(now: str) -> str:
    return (
        "not exists (select 1 from outlast_compensations later where later.job = outlast_jobs.id "
        f"and later.state in {OPEN} and later.due > {now})"
    )


def of_jobs(tx: Transaction, mine: str, given: Sequence[Any]) -> dict[int, list[CompensationRecord]]:
    """By the id of their job, what undoes the jobs of this condition, in the order in which it was registered."""
    found: dict[int, list[CompensationRecord]] = defaultdict(list)
    rows = tx.rows(f"select {_ROW}, {_HAND}, job from outlast_compensations where {mine} order by place", *given)
    for *row, job in rows:
        found[job].append(_record(row))
    return found


def _record(row: Any) -> CompensationRecord:
    found = CompensationRecord(*row)
    return found._replace(arguments=bytes(found.arguments), closed=bool(found.closed), by_hand=bool(found.by_hand))
