"""
Enqueueing through a connection that is not the store's own: the statements, one after the other, for whoever can run
them. A generator yields each statement in the common SQL with its parameters, and is sent its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from outlast.store.jobs import HELD, NEW, values_of
from outlast.store.records import Enqueued

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import TypeAlias

    from outlast.store import Store
    from outlast.store.database import Database
    from outlast.store.records import NewJob

    Steps: TypeAlias = Generator[tuple[str, tuple[Any, ...]], Sequence[Any], list[Enqueued]]

_ROWS = 50  # jobs in one statement: each has ten parameters, and SQLite may take no more than 999
_identities: WeakKeyDictionary[Database, tuple[str, str]] = WeakKeyDictionary()


def identity(store: Store) -> tuple[str, str]:
    """By what a store is known from another connection: its id, and the file or the name of its database."""
    database = store._database  # noqa: SLF001 - same room
    known = _identities.get(database)
    if known is None:
        with database.reading() as tx:
            (id_,) = tx.row("select id from outlast_store")
            place = str(database.path) if database.name == "sqlite" else tx.row("select current_database()")[0]  # type: ignore[attr-defined]
        known = _identities[database] = (id_, place)
    return known


def enqueueing(store: Store, jobs: Sequence[NewJob], *, ahead_us: int = 0) -> Steps:
    """What `Store.enqueue` does, in the transaction of another connection; all of them or, if a step fails, none."""
    given = [store.checked(job) for job in jobs]
    if not given:
        return []
    database = store._database  # noqa: SLF001 - same room
    # An error takes a whole transaction of PostgreSQL with it. One of SQLite would go on with half of the jobs.
    bounded = database.name == "sqlite" and len(given) > 1
    if bounded:
        yield "savepoint outlast_enqueue", ()
    try:
        done = yield from _insert(store, given, ahead_us)
    except GeneratorExit:
        raise
    except BaseException:
        if bounded:
            yield "rollback to outlast_enqueue", ()
            yield "release outlast_enqueue", ()
        raise
    if bounded:
        yield "release outlast_enqueue", ()
    if database.name == "postgres" and any(job.delay_us <= 0 for job in given):
        yield "select pg_notify('outlast_jobs', ?)", (store.app,)
    return done


def _insert(store: Store, jobs: Sequence[NewJob], ahead_us: int) -> Steps:
    ((now,),) = yield f"select {store._database.now}", ()  # noqa: SLF001 - same room
    rows = [values_of(store.app, job, int(now) + ahead_us) for job in jobs]
    row = f"({', '.join('?' * len(NEW.split(',')))})"
    done: dict[int, Enqueued] = {}
    plain = [place for place, job in enumerate(jobs) if job.unique_key is None]
    for first in range(0, len(plain), _ROWS):
        chunk = plain[first : first + _ROWS]
        made = yield (
            f"insert into outlast_jobs ({NEW}) values {', '.join([row] * len(chunk))} returning id",
            tuple(value for place in chunk for value in rows[place]),
        )
        # Ids are given out in the order of the rows.
        done |= {place: Enqueued(id_, new=True) for place, id_ in zip(chunk, sorted(one[0] for one in made), strict=True)}
    # In the order of their keys, so that two of these never wait for each other.
    for place in sorted(set(range(len(jobs))) - done.keys(), key=lambda place: (jobs[place].kind, jobs[place].unique_key)):
        done[place] = yield from _insert_keyed(row, rows[place])
    return [done[place] for place in range(len(jobs))]


def _insert_keyed(marks: str, row: tuple[Any, ...]) -> Generator[tuple[str, tuple[Any, ...]], Sequence[Any], Enqueued]:
    while True:
        made = yield (
            f"insert into outlast_jobs ({NEW}) values {marks} on conflict (app, kind, unique_key) where {HELD} do nothing returning id",
            row,
        )
        if made:
            return Enqueued(made[0][0], new=True)
        there = yield (
            f"select id from outlast_jobs where app = ? and kind = ? and unique_key = ? and {HELD}",
            (row[0], row[2], row[8]),
        )
        if there:  # else it has failed or was cancelled in between
            return Enqueued(there[0][0], new=False)
