"""
Sweeps: the jobs of workers that are gone come back. Every worker sweeps; none leads.

A worker is gone if its lease has run out or was given back, if its owner is certainly dead, or if its jobs are all that
is left of it. For each: in one transaction its lease is ended, so that it can write nothing however late it comes, and
its jobs are looked at again under their locks. What it has finished meanwhile stays as it is. A second sweep at the same
time finds nothing left. The lease is deleted: its key is never used again.

A job whose row is locked is left out: a transaction of its own code may hold it (`finishing`), and such a one cannot
always be ended from here. It holds up none of the others. It keeps its worker and its token, and that worker has no
lease any more: each later sweep finds it as one of those jobs that are all that is left of a worker. Until then nobody
else has it, so whatever its own transaction does to it counts. If that is committed, the job has succeeded. If not, it
comes back, and its crash is charged once, with the token that grows in the same transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.kernel.clock import REAL
from outlast.store import turns
from outlast.store.leases import end, label
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
_MOMENT = 1.0  # seconds that transactions which were ended with a lease have to be gone,
_SOON = 0.02  # and between two looks at what they had locked


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
    done: list[Rescued],
) -> None:
    """
    Bring the jobs of all workers back that are gone, and add them to `done`. What cannot be brought back for one of them
    is raised at the end, and hides nothing of the others.
    """
    problems = list[Exception]()

    def rescue(gone: _Gone) -> bool:
        try:
            return _rescue(database, app, gone, decide, ahead_us, done)
        except Exception as error:  # noqa: BLE001 - raised below
            problems.append(error)
            return False

    left = [gone for gone in _all_gone(database, app, dead) if rescue(gone)]
    until = REAL.clock.monotonic() + _MOMENT
    while left and REAL.clock.monotonic() < until:
        REAL.clock.sleep(_SOON)
        left = [gone for gone in left if rescue(gone)]
    if problems:
        raise problems[0]


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
    database: Database,
    app: str,
    gone: _Gone,
    decide: Callable[[Orphan], Rescue],
    ahead_us: int,
    done: list[Rescued],
) -> bool:
    """
    Bring the jobs of one worker back. Whether some are left that will soon be free: transactions that were ended take a
    moment to be gone.
    """
    with database.writing() as tx:
        if not end(database, tx, app, "worker", gone.key, gone.token):
            return False  # it has been heard of since
        (now,) = tx.row(f"select {database.now} + {int(ahead_us)}")
        rows = tx.rows(
            f"select {_ORPHAN}, state, wanted from outlast_jobs where {_MINE} order by id {database.skip_locked}",
            *(app, gone.key),
        )
        found = [_released(tx, row, gone, now) for row in rows if row[-2] == "held"]
        found += _crashed(database, tx, app, gone, [row for row in rows if row[-2] == "processing"], decide, now)
        lingering = f"select id from outlast_jobs where app = ? and worker = ? and {_LINGERING} order by id {database.skip_locked}"
        tx.execute(f"update outlast_jobs set worker = null where id in ({lingering})", app, gone.key)
        leased = tx.execute(
            "delete from outlast_leases where app = ? and kind = 'worker' and key = ?", app, gone.key
        ).rowcount
        left = False
        if database.skip_locked and tx.row(f"select 1 from outlast_jobs where {_MINE} limit 1", app, gone.key):
            # Its code may have gone on, and begun such a transaction after the others were ended.
            left = database.evict(tx, (label(app, "worker", gone.key),)) > 0 or leased > 0
        if any(one.state == "ready" for one in found):  # whoever sweeps may have no room for them
            tx.then = database.tell_here
            if database.notifies:
                tx.execute(database.notifies, app)
    done += found
    return left


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
        orphan = Orphan._make([*fields, now])
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
