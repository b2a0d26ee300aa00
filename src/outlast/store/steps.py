"""
What a job has done and need not do again: the results of its steps; and what its code has kept for people, artifacts.

Whoever writes names the job and the token of its claim, and the job must still have a worker: one that was taken from
its worker, or has ended, gets nothing more. The row of the job is held until the write is committed, so that nobody
takes the job in between. Code that goes on after its time still owns its job, and what it has done counts.

With SQLite these are written as the ends of jobs are: a crash of the program loses nothing, a power cut may lose the
last of them, and then these steps are done again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.store.compensations import NewCompensation
from outlast.store.leases import label
from outlast.store.records import storable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    from outlast.store.database import Database, Transaction
    from outlast.store.records import Lease

    #: What the code of a job puts on record.
    Put: TypeAlias = "NewStep | NewArtifact | NewCompensation"

MOST_STEPS = 1000  # of one job
MOST_ARTIFACTS = 100  # of one attempt
LONGEST_NAME = 200  # characters of the name of a step or an artifact: an index holds it
_STEP = "kind, owner, name, arguments, payload, result, place, token, attempt, ended"
_COMPENSATION = "app, job, place, state, call, arguments, fingerprint, step, attempt, registered"
_ARTIFACT = "kind, owner, attempt, name, data, size, cut, kept"


class NewStep(NamedTuple):
    """
    A step that a job has done. `arguments` and `payload` are fingerprints: of what the step was called with, and of what
    the job was enqueued with. `place` counts steps and what undoes them, in the order in which they come on record.
    """

    job: int
    token: int
    attempt: int
    name: str
    arguments: str
    payload: str
    result: bytes
    place: int | None = None


class NewArtifact(NamedTuple):
    """What an attempt keeps: `size` are its bytes, of which some were `cut`."""

    job: int
    token: int
    attempt: int
    name: str
    data: bytes
    size: int
    cut: bool


class NewProgress(NamedTuple):
    """How far an attempt says it is: `done` of `total`, and a `note` without secrets."""

    job: int
    token: int
    done: float
    total: float | None
    note: str


class StepRecord(NamedTuple):
    """A step that is done, without its result. `attempt` is the number of the attempt that did it."""

    name: str
    arguments: str
    payload: str
    attempt: int
    ended_us: int
    place: int | None = None


class ArtifactRecord(NamedTuple):
    """What an attempt has kept, without its data."""

    name: str
    attempt: int
    size: int
    cut: bool
    kept_us: int


class Steps:
    """The part of the store that knows the steps and the artifacts of jobs."""

    _database: Database
    app: str

    def put_results(self, rows: Sequence[Put], lease: Lease | None = None, *, ahead_us: int = 0) -> list[bool]:
        """
        Write what jobs have done and kept, in one transaction; of each, whether its job was still its writer's. What has
        the name already is replaced. `lease` is that of the worker.
        """
        database = self._database
        name = "" if lease is None else label(self.app, lease.kind, lease.key)
        said = (name, database.patience) if database.said else ()
        # Only SQLite has another way to be quick than a flush; what undoes something must not be lost.
        batches = not database.arrays and not any(isinstance(row, NewCompensation) for row in rows)
        if len(rows) == 1:
            sql, values = self._put(rows[0], said, ahead_us)
            return [database.written(sql, *values, batches=batches) > 0]
        done = [False] * len(rows)
        with database.writing(batches=batches) as tx:
            # In the order of the jobs, as everybody locks them.
            for place in sorted(range(len(rows)), key=lambda place: rows[place].job):
                sql, values = self._put(rows[place], said, ahead_us)
                done[place] = tx.execute(sql, *values).rowcount > 0
        return done

    def put_at_once(self, row: Put, *, ahead_us: int = 0) -> bool | None:
        """As `put_results` for one row, in an event loop: None if it had to wait for anything, and nothing is written."""
        if isinstance(row, NewCompensation):
            return None
        sql, values = self._put(row, (), ahead_us)
        done = self._database.written_at_once(sql, *values)
        return None if done is None else done > 0

    def _put(self, row: Put, said: tuple[str, ...], ahead_us: int) -> tuple[str, tuple[Any, ...]]:
        step, artifact, undo = _statements(type(self._database), int(ahead_us))
        whose = (*said, row.job, row.token, self.app)
        if isinstance(row, NewStep):
            return step, (storable(row.name), row.arguments, row.payload, row.result, row.place, row.attempt, *whose)
        if isinstance(row, NewCompensation):
            called = (row.call, row.arguments, row.fingerprint, None if row.step is None else storable(row.step))
            return undo, (row.place, *called, row.attempt, *whose)
        return artifact, (row.attempt, storable(row.name), row.data, row.size, row.cut, *whose)

    def put_progress(self, rows: Iterable[NewProgress]) -> None:
        """
        Write how far attempts are, in one transaction. The progress of an attempt that has lost its job is not written. The
        row of the job is not locked: a transaction of the job's code may hold it.
        """
        with self._database.writing(batches=True) as tx:
            for row in sorted(rows):
                tx.execute(
                    "insert into outlast_job_progress (job, token, value) "
                    "select id, token, ? from outlast_jobs where id = ? and token = ? and app = ? "
                    "on conflict (job) do update set token = excluded.token, value = excluded.value "
                    "where outlast_job_progress.token <= excluded.token",
                    *(json.dumps([row.done, row.total, storable(row.note)]), row.job, row.token, self.app),
                )

    def steps(self, job: int, /) -> list[StepRecord]:
        """The steps that a job has done, the first one first."""
        with self._database.reading() as tx:
            rows = tx.rows(
                "select name, arguments, payload, attempt, ended, place from outlast_steps where kind = 'job' and owner = ? "
                "and exists (select 1 from outlast_jobs where app = ? and id = ?) order by ended, name",
                *(job, self.app, job),
            )
        return [StepRecord(*row) for row in rows]

    def step_result(self, job: int, name: str, /) -> bytes | None:
        """What a step came to; None if it is not on record."""
        with self._database.reading() as tx:
            row = tx.row(
                "select result from outlast_steps where kind = 'job' and owner = ? and name = ? "
                "and exists (select 1 from outlast_jobs where app = ? and id = ?)",
                *(job, storable(name), self.app, job),
            )
        return None if row is None else bytes(row[0])

    def artifacts(self, job: int, /) -> list[ArtifactRecord]:
        """What the attempts of a job have kept, the first one first."""
        with self._database.reading() as tx:
            rows = tx.rows(
                "select name, attempt, size, cut, kept from outlast_artifacts where kind = 'job' and owner = ? "
                "and exists (select 1 from outlast_jobs where app = ? and id = ?) order by attempt, kept, name",
                *(job, self.app, job),
            )
        return [ArtifactRecord(name, attempt, size, bool(cut), kept) for name, attempt, size, cut, kept in rows]

    def artifact(self, job: int, name: str, attempt: int | None = None, /) -> bytes | None:
        """What an attempt has kept under a name, the newest if none is said; None if there is nothing."""
        which, values = ("", ()) if attempt is None else (" and attempt = ?", (attempt,))
        with self._database.reading() as tx:
            row = tx.row(
                f"select data from outlast_artifacts where kind = 'job' and owner = ? and name = ?{which} "
                "and exists (select 1 from outlast_jobs where app = ? and id = ?) order by attempt desc limit 1",
                *(job, storable(name), *values, self.app, job),
            )
        return None if row is None else bytes(row[0])


def artifacts_of_jobs(tx: Transaction, mine: str, given: Sequence[Any]) -> dict[int, list[ArtifactRecord]]:
    """By the id of their job, what the attempts of the jobs of this condition have kept, the first one first."""
    found: dict[int, list[ArtifactRecord]] = defaultdict(list)
    for job, name, attempt, size, cut, kept in tx.rows(
        f"select owner, name, attempt, size, cut, kept from outlast_artifacts where kind = 'job' and {mine.replace('job', 'owner', 1)} "
        "order by attempt, kept, name",
        *given,
    ):
        found[job].append(ArtifactRecord(name, attempt, size, bool(cut), kept))
    return found


@lru_cache(maxsize=16)
def _statements(database: type[Database], ahead_us: int) -> tuple[str, str, str]:
    """How a step, an artifact and what undoes something are put on record; the same text each time, which drivers keep prepared."""
    now = f"{database.now} + {ahead_us}"
    lock = "for share of job" if database.for_update else ""
    mine = f"{now} from {database.said}outlast_jobs job where job.id = ? and token = ? and app = ? and worker is not null {lock}"
    new = [
        ", ".join(f"{column} = excluded.{column}" for column in columns.split(", ")) for columns in (_STEP, _ARTIFACT)
    ]
    step = f"insert into outlast_steps ({_STEP}) select 'job', job.id, ?, ?, ?, ?, ?, token, ?, {mine}"
    artifact = f"insert into outlast_artifacts ({_ARTIFACT}) select 'job', job.id, ?, ?, ?, ?, ?, {mine}"
    # The answer to a commit may be lost, and then it comes again.
    undo = (
        f"insert into outlast_compensations ({_COMPENSATION}) select job.app, job.id, ?, 'registered', ?, ?, ?, ?, ?, {mine} "
        "on conflict (job, place) do update set state = excluded.state "
        "where outlast_compensations.fingerprint = excluded.fingerprint and outlast_compensations.state = 'registered'"
    )
    return (
        f"{step} on conflict (kind, owner, name) do update set {new[0]}",
        f"{artifact} on conflict (kind, owner, attempt, name) do update set {new[1]}",
        undo,
    )


def forget(database: Database, tx: Transaction, kind: str, owners: Sequence[Any]) -> None:
    """Delete the steps and the artifacts of these owners."""
    for table in ("outlast_steps", "outlast_artifacts"):
        tx.execute(f"delete from {table} where kind = ? and owner {database.among}", kind, database.passed(owners))
