"""
Sweeps: the jobs of workers that are gone come back. Every worker sweeps; none leads.

A worker is gone if its lease has run out or was given back, if its owner is certainly dead, or if its jobs are all that
is left of it. For each: in one transaction its lease is ended, so that it can write nothing however late it comes, and
its jobs are looked at again under their locks. What it has finished meanwhile stays as it is. A second sweep at the same
time finds nothing left. The lease is deleted: its key is never used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.store import turns
from outlast.store.leases import end
from outlast.store.records import JobEnd, Orphan, Rescued

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.store.database import Database, Transaction
    from outlast.store.records import Rescue

_ORPHAN = (
    "id, kind, version, queue, payload, token, attempts, made, crashes + 1, previous, enqueued, began, claimed, worker"
)
_LINGERING = "worker is not null and state in ('failed', 'cancelled')"  # their code still ran when they ended
_MINE = "app = ? and worker = ? and state in ('processing', 'held')"


class _Gone(NamedTuple):
    key: str
    token: int  # of a lease that has not run out; -1 for one that must have
    owner: str


def sweep(
    database: Database,
    app: str,
    dead: Callable[[str], bool],
    decide: Callable[[Orphan], Rescue],
    ahead_us: int,
) -> list[Rescued]:
    """
    Bring the jobs of all workers back that are gone. What cannot be brought back for one of them is raised at the end,
    and hides nothing of the others.
    """
    done: list[Rescued] = []
    problem: Exception | None = None
    for gone in _all_gone(database, app, dead):
        try:
            done += _rescue(database, app, gone, decide, ahead_us)
        except Exception as error:  # noqa: BLE001 - raised below
            problem = problem or error
    if problem is not None:
        raise problem
    return done


def _all_gone(database: Database, app: str, dead: Callable[[str], bool]) -> list[_Gone]:
    with database.reading() as tx:
        leases = tx.rows(
            f"select key, token, owner, until <= {database.now} from outlast_leases where app = ? and kind = 'worker' order by key",
            app,
        )
        owners = tx.rows(
            "select worker from outlast_jobs where app = ? and state in ('processing', 'held') "
            f"union select worker from outlast_jobs where app = ? and {_LINGERING} order by worker",
            *(app, app),
        )
    found = [_Gone(key, -1, owner) for key, _, owner, over in leases if over]
    found += [_Gone(key, token, owner) for key, token, owner, over in leases if not over and dead(owner)]
    known = {key for key, *_ in leases}
    return found + [_Gone(worker, -1, "") for (worker,) in owners if worker not in known]


def _rescue(
    database: Database, app: str, gone: _Gone, decide: Callable[[Orphan], Rescue], ahead_us: int
) -> list[Rescued]:
    with database.writing() as tx:
        if not end(database, tx, app, "worker", gone.key, gone.token):
            return []  # it has been heard of since
        (now,) = tx.row(f"select {database.now} + {int(ahead_us)}")
        rows = tx.rows(
            f"select {_ORPHAN}, state, wanted from outlast_jobs where {_MINE} order by id {database.for_update}",
            *(app, gone.key),
        )
        done = [_released(tx, row, gone, now) for row in rows if row[-2] == "held"]
        done += _crashed(database, tx, app, gone, [row for row in rows if row[-2] == "processing"], decide, now)
        tx.execute(
            f"update outlast_jobs set worker = null where app = ? and worker = ? and {_LINGERING}", app, gone.key
        )
        tx.execute("delete from outlast_leases where app = ? and kind = 'worker' and key = ?", app, gone.key)
    return done


def _released(tx: Transaction, row: Any, gone: _Gone, now: int) -> Rescued:
    """A job whose attempt has ended long ago; only the thread that kept it is gone now."""
    (state,) = tx.row(
        f"update outlast_jobs set state = {turns.claimable()}, worker = null, token = token + 1 where id = ? and state = 'held' returning state",
        *(now, row[0]),
    )
    return Rescued(row[0], row[1], row[3], state, row[8] - 1, gone.key, gone.owner, held=True)


def _crashed(
    database: Database,
    tx: Transaction,
    app: str,
    gone: _Gone,
    rows: list[Any],
    decide: Callable[[Orphan], Rescue],
    now: int,
) -> list[Rescued]:
    if not rows:
        return []
    ends, done = list[JobEnd](), list[Rescued]()
    for *fields, _, wanted in rows:
        orphan = Orphan(*fields)
        orphan = orphan._replace(payload=bytes(orphan.payload))
        # What somebody has asked to cancel is cancelled, whatever it was to become.
        ends.append(_ending(orphan, decide(orphan) if wanted is None else None, now))
        state = "cancelled" if wanted is not None else ends[-1].state
        done.append(Rescued(orphan.id, orphan.kind, orphan.queue, state, orphan.crashes, gone.key, gone.owner))
    turns.finish(database, tx, app, gone.key, ends, now)
    tx.execute(
        f"update outlast_jobs set token = token + 1, crashes = crashes + 1 where id {database.among}",
        database.passed(end.id for end in ends),
    )
    return done


def _ending(orphan: Orphan, rescue: Rescue | None, now: int) -> JobEnd:
    ended = JobEnd(
        *(orphan.id, orphan.token, orphan.made, "ready", "crashed"),
        started_us=orphan.claimed_us,
        took_us=max(0, now - orphan.claimed_us),
    )
    if rescue is None:
        return ended
    # One that is to run alone after a delay waits like others: two crashes are on record, so it becomes that when due.
    state = "waiting" if rescue.delay_us > 0 and rescue.state != "failed" else rescue.state
    return ended._replace(
        state=state,
        delay_us=rescue.delay_us,
        error=rescue.error,
        error_type=rescue.error_type,
        error_class=rescue.error_class,
        stop_reason=rescue.stop_reason,
        letter=rescue.letter,
    )
