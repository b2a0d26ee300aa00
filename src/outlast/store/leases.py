"""
Leases: which process may work on something, and write for it.

What is leased has a kind and a key: a run's shard, a worker, a schedule. A lease is one row: ``token`` grows with every
owner, and ``until`` is on the database's own clock. A write checks the token in its own transaction, and locks the row
with the token until that transaction ends. Only the newest token may write. A write with an older token raises
`LeaseLost` and changes nothing, however late it comes.

    take ──► renew, renew, renew ──► drop
      │          (expired)
      └──────────────────► take by another owner: token + 1; writes with the first owner's token fail

`TABLES` names the table for leases of a kind; kinds without an entry are in the table `outlast_leases`.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.errors import LeaseLost
from outlast.store.records import Lease, from_us, key_text, shard_of, storable, to_us

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.store.database import Database, Transaction


class LeaseTable(NamedTuple):
    """
    Where leases are: a table, and a condition on its rows with the values for one key. `fence` names another table
    whose rows every write locks anyway: these rows hold the token too, and the row of the lease is not locked.
    """

    table: str
    columns: str
    values: Callable[[str, str, str], tuple[Any, ...]]  # from app, kind and key
    fence: str | None = None

    @property
    def where(self) -> str:
        return " and ".join(f"{column} = ?" for column in self.columns.split(", "))

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.table,) if self.fence is None else (self.table, self.fence)


# A batch locks the progress of its shard, perhaps for long; a heartbeat must not wait for it.
TABLES = {
    "run": LeaseTable("outlast_shards", "run, shard", lambda _app, _kind, key: shard_of(key), fence="outlast_progress")
}
_OTHERS = LeaseTable("outlast_leases", "app, kind, key", lambda app, kind, key: (app, kind, key_text(key)))


class Leases:
    """The part of the store that knows leases, of whatever kind."""

    _database: Database
    app: str

    def take_lease(self, kind: str, key: str, owner: str, ttl: float) -> Lease | None:
        """The right to write for this, for `ttl` seconds; None if another owner has it (`lease_of` says which)."""
        with self._database.writing() as tx:
            return take(self._database, tx, self.app, kind, key, owner, ttl)

    def lease_of(self, kind: str, key: str) -> Lease | None:
        """Who may write for this now, and until when if it is not renewed."""
        at = _table(kind)
        found = self._database.row(
            f"select token, owner, until, ttl from {at.table} where {at.where} and until > {self._database.now}",
            *at.values(self.app, kind, key),
        )
        return None if found is None else Lease(kind, key, found[0], found[1], from_us(found[2]), found[3])

    def renew_lease(self, lease: Lease) -> Lease:
        """Keep a lease for another `ttl` seconds. `LeaseLost` if another owner has taken it."""
        with self._database.writing() as tx:
            return renew(self._database, tx, self.app, lease)

    def drop_lease(self, lease: Lease, *, unless_renewed: bool = False) -> None:
        """
        Give a lease back: others may take it at once, and its token is worth nothing. One that was lost stays lost;
        with `unless_renewed`, so does one that ends at another time than this says.
        """
        condition, same = ("token = ? and until = ?", (to_us(lease.until),)) if unless_renewed else ("token = ?", ())
        with self._database.writing() as tx:
            _end(self._database, tx, self.app, lease.kind, lease.key, ", owner = ''", condition, lease.token, *same)


def take(
    database: Database, tx: Transaction, app: str, kind: str, key: str, owner: str, ttl: float, *others: str
) -> Lease | None:
    """
    A lease, in a transaction, once no transaction writes under the one before. Those whose owner may be unable to end
    them are ended: what writes for this key, and what writes under one of the `others`, which are labels.
    """
    at, owner = _table(kind), storable(owner)
    values = at.values(app, kind, key)
    marks = ", ".join("?" * len(values))
    for table in at.tables:
        tx.execute(f"insert into {table} ({at.columns}) values ({marks}) on conflict do nothing", *values)
    found = tx.row(
        f"select owner from {at.table} where {at.where} and until <= {database.now} {database.for_change}", *values
    )
    if found is None:
        return None
    database.evict(tx, (label(app, kind, key), *others))
    token, until = _close(
        *(database, tx, at, values),
        *(f"owner = ?, ttl = ?, until = {database.now} + ?", owner, ttl, round(ttl * 1e6)),
    )
    return Lease(kind, key, token, owner, from_us(until), ttl, found[0] or "")


def renew(database: Database, tx: Transaction, app: str, lease: Lease) -> Lease:
    """The lease for another `ttl` seconds; `LeaseLost` if another owner has taken it."""
    at = _table(lease.kind)
    found = tx.row(
        f"update {at.table} set until = {database.now} + ? where {at.where} and token = ? returning until",
        *(round(lease.ttl * 1e6), *at.values(app, lease.kind, lease.key), lease.token),
    )
    if found is None:
        raise lost(lease)
    return Lease(lease.kind, lease.key, lease.token, lease.owner, from_us(found[0]), lease.ttl)


def end(database: Database, tx: Transaction, app: str, kind: str, key: str, token: int) -> bool:
    """
    End a lease that has run out or has this token, with the transactions under it; whether it is held by none now.
    """
    if _end(database, tx, app, kind, key, "", f"(until <= {database.now} or token = ?)", token, evict=True):
        return True
    at = _table(kind)
    return tx.row(f"select 1 from {at.table} where {at.where}", *at.values(app, kind, key)) is None


def fenced(database: Database, tx: Transaction, app: str, lease: Lease, columns: str = "token") -> Any:
    """
    The row that has the lease's token, held until the transaction ends, so that no other owner takes the lease before;
    `LeaseLost` if one has.
    """
    at = _table(lease.kind)
    lock = database.for_share if at.fence is None else database.for_update
    row = tx.row(
        f"select {columns}, {database.labelled} from {at.fence or at.table} where {at.where} and token = ? {lock}",
        *(label(app, lease.kind, lease.key), *at.values(app, lease.kind, lease.key), lease.token),
    )
    if row is None:
        raise lost(lease)
    return row


@lru_cache(maxsize=64)
def label(app: str, kind: str, key: str) -> str:
    """What a transaction is called that writes under a lease; programs before schema 9 call those of runs the same."""
    if kind == "run":
        return "outlast run {} shard {}".format(*shard_of(key))
    return f"outlast {sha256(repr((app, kind, key)).encode()).hexdigest()[:32]}"


def standing(database: Database, tx: Transaction, app: str, kind: str, key: str, token: int) -> str | None:
    """The owner of a lease that has this token still and has not run out; None if there is none."""
    at = _table(kind)
    row = tx.row(
        f"select owner from {at.table} where {at.where} and token = ? and until > {database.now}",
        *(*at.values(app, kind, key), token),
    )
    return None if row is None else str(row[0])


def lost(lease: Lease) -> LeaseLost:
    return LeaseLost(
        f"the lease of {lease.owner} on {lease.kind} {lease.key} (token {lease.token}) was given back or taken over. "
        "Nothing of this was written; whoever has the lease now goes on."
    )


def _table(kind: str) -> LeaseTable:
    return TABLES.get(kind, _OTHERS)


def _end(
    database: Database,
    tx: Transaction,
    app: str,
    kind: str,
    key: str,
    also: str,
    condition: str,
    *given: Any,
    evict: bool = False,
) -> bool:
    at = _table(kind)
    values = at.values(app, kind, key)
    found = tx.row(f"select 1 from {at.table} where {at.where} and {condition} {database.for_change}", *values, *given)
    if found is not None:
        if evict:
            database.evict(tx, (label(app, kind, key),))
        _close(database, tx, at, values, f"until = 0{also}")
    return found is not None


def _close(
    database: Database, tx: Transaction, at: LeaseTable, values: tuple[Any, ...], sets: str, *given: Any
) -> tuple[int, int]:
    """
    Wait for what is being written under the token, and change the row; the next token, and until when it is. From then on
    the one before is worth nothing.
    """
    if at.fence is None and database.for_update:
        # Before the change, or who asks for the row with `for_share` at this moment would get it as it was: that lock does
        # not conflict with a change alone, but with one by a transaction that has this lock.
        tx.row(f"select 1 from {at.table} where {at.where} {database.for_update}", *values)
    changed = tx.row(
        f"update {at.table} set token = token + 1, {sets} where {at.where} returning token, until", *given, *values
    )
    if at.fence is not None:
        tx.execute(f"update {at.fence} set token = ? where {at.where}", changed[0], *values)
    return changed[0], changed[1]
