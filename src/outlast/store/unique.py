"""
Unique keys that outlive their jobs: with `unique_for` a key is held longer than the job is kept.

Retention writes the record of a key first, and removes the job at a later time (`GRACE`): whoever enqueues sees the one
or the other, however long its statement takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from outlast.store.database import Database, Transaction

GRACE = 600 * 1_000_000  # microseconds between the record of a key and the end of its job's row
#: Whether a key is held: by app, kind, key and the present instant.
HELD = "select job from outlast_unique_keys where app = ? and kind = ? and unique_key = ? and until > ?"


class HeldKey(NamedTuple):
    """A key that is held by a job which has succeeded and is not kept any more."""

    kind: str
    unique_key: str
    ended_us: int
    until_us: int


class UniqueKeys:
    """The part of the store that knows the unique keys of jobs that are gone."""

    _database: Database
    app: str

    def held_key(self, job: int, /) -> HeldKey | None:
        """The key that a job holds which may not be kept any more."""
        row = self._database.row(
            "select kind, unique_key, ended, until from outlast_unique_keys where app = ? and job = ?", self.app, job
        )
        return None if row is None else HeldKey(*row)

    def keep_unique_keys(self, before: int, limit: int) -> int:
        """
        Put the keys on record that are to be held longer than their jobs, of those that ended before this instant; how
        many. Remove those whose time is over.
        """
        database = self._database
        due = (
            f"app = ? and state = 'succeeded' and ended < ? and state in ('succeeded', 'failed', 'cancelled') "
            f"and unique_key is not null and unique_until > {database.now} and not exists (select 1 from outlast_unique_keys held "
            "where held.app = outlast_jobs.app and held.kind = outlast_jobs.kind and held.unique_key = outlast_jobs.unique_key "
            "and held.job = outlast_jobs.id)"
        )
        with database.reading() as tx:  # a transaction that writes is not begun for nothing
            over = tx.row(
                f"select 1 from outlast_unique_keys where app = ? and until <= {database.now} limit 1", self.app
            )
            some = tx.row(f"select 1 from outlast_jobs where {due} limit 1", self.app, before)
        if over is None and some is None:
            return 0
        with database.writing() as tx:
            tx.execute(f"delete from outlast_unique_keys where app = ? and until <= {database.now}", self.app)
            return int(
                tx.execute(
                    "insert into outlast_unique_keys (app, kind, unique_key, job, ended, until, made) "
                    f"select app, kind, unique_key, id, ended, unique_until, {database.now} from outlast_jobs where {due} "
                    f"order by ended, id limit {int(limit)} on conflict (app, kind, unique_key) do nothing",
                    *(self.app, before),
                ).rowcount
            )


def outlived(database: Database) -> str:
    """Whether a job that has ended need not stay for its key."""
    return (
        f"(unique_key is null or unique_until is null or unique_until <= {database.now} or exists (select 1 from outlast_unique_keys held "
        "where held.app = outlast_jobs.app and held.kind = outlast_jobs.kind and held.unique_key = outlast_jobs.unique_key "
        f"and held.job = outlast_jobs.id and held.made < {database.now} - {GRACE}))"
    )


def held_among(
    database: Database, tx: Transaction, app: str, wanted: Iterable[tuple[str, str]], now: int
) -> dict[tuple[str, str], int]:
    """Which of these (kind and key) are held by jobs that are gone, each with the id of its job."""
    by_kind: dict[str, list[str]] = {}
    for kind, key in wanted:
        by_kind.setdefault(kind, []).append(key)
    found: dict[tuple[str, str], int] = {}
    for kind, keys in by_kind.items():
        rows: list[Any] = tx.rows(
            f"select unique_key, job from outlast_unique_keys where app = ? and kind = ? and until > ? and unique_key {database.among}",
            *(app, kind, now, database.passed(keys)),
        )
        found |= {(kind, key): job for key, job in rows}
    return found
