"""
Idempotency records: work that is done once for a key, whoever asks for it, in whatever process.

    begin_key ──► in_progress ──► succeed_key ──► succeeded, with its outputs, until its time is over
                       │ └──────► release_key: it failed; only how often it was tried is remembered
                       └────────► taken over: by its own holder at once; by others once its lease is over, or its
                                  process is certainly dead
    succeeded ──► undoing ──► forget: it counts as not done
                     └──────► succeeded again, with its outputs: it could not be undone, and stands

What is half undone is neither done nor free. So nobody takes over what is `undoing` before its time is over, also if its
process is dead: whoever goes on with its run ends that.

The holder is the run or the job that the work belongs to; it writes under its lease. A record has a token of its own
too, which grows with every begin: who was taken over, however late it comes, changes nothing (`LeaseLost`). Of a key only
a digest is stored (`key_digest`): what it is made of may be secret. Everything is flushed to the disk when it is
committed.
"""

from __future__ import annotations

import hmac
import math
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.errors import LeaseLost
from outlast.store import leases
from outlast.store.faults import StoreRefused, StoreUnavailable
from outlast.store.records import from_us, storable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Literal

    from outlast.store.database import Database, Transaction
    from outlast.store.records import Lease

_ROW = "config, state, holder, lease_kind, lease_key, lease_token, token, attempts, outputs, changed, expires"
_DIGEST = 64  # hexadecimal digits
_FORGOTTEN = 90 * 86400 * 1_000_000  # microseconds after which failed attempts are remembered no more
_FARTHEST = 100 * 366 * 86400  # seconds: longer times are cut, so that every database can hold the instant


class IdempotencyConflict(StoreUnavailable):
    """The work for this key is in progress elsewhere. It may fail there: another attempt later finds out."""

    def __init__(self, message: str) -> None:
        super().__init__(message, error_class="idempotency_conflict")


class IdempotencyMismatch(StoreRefused):
    """The work for this key was done with another configuration: its outputs are not those that are wanted."""

    def __init__(self, message: str) -> None:
        super().__init__(message, error_class="idempotency_mismatch")


class KeyBegun(NamedTuple):
    """The right to do the work for a key: `attempts` counts this one, `token` must be shown when it ends."""

    scope: str
    key: str
    token: int
    attempts: int


class KeyDone(NamedTuple):
    """The work for a key is done: what came of it, who did it, until when that counts (None: for ever)."""

    outputs: bytes | None
    holder: str
    succeeded_us: int
    expires_us: int | None


class KeyRecord(NamedTuple):
    """What is on record of a key. `changed_us` is when it came to this state."""

    config: str
    state: Literal["in_progress", "succeeded", "released", "undoing"]
    holder: str
    lease_kind: str
    lease_key: str
    lease_token: int
    token: int
    attempts: int
    outputs: bytes | None
    changed_us: int
    expires_us: int | None


def key_digest(rendered: str, secret: bytes | None = None) -> str:
    """
    What is stored of a key: its SHA-256, or its HMAC if there is a secret, without which nobody can try out keys.

    >>> key_digest("movies:7")[:12], key_digest("movies:7", b"pepper")[:12]
    ('791aa3a3aa75', '8203aa0077c4')
    """
    data = rendered.encode("utf-8", "surrogatepass")
    return sha256(data).hexdigest() if secret is None else hmac.new(secret, data, sha256).hexdigest()


class Idempotency:
    """The part of the store that knows idempotency records."""

    _database: Database
    app: str

    def begin_key(
        self,
        scope: str,
        key: str,
        config: str,
        *,
        holder: str,
        lease: Lease,
        dead: Callable[[str], bool],
        ahead_us: int = 0,
    ) -> KeyBegun | KeyDone:
        """
        The right to do the work for a key, or what came of it. `scope` is what the key is one for (a pipeline and its
        step), `key` a `key_digest`, `config` a fingerprint of the work as it is configured now. `dead` says of the owner
        of a lease whether it is certainly no more.

        `IdempotencyConflict` if it is in progress elsewhere, `IdempotencyMismatch` if it was done with another `config`,
        `LeaseLost` if the lease is not the newest.
        """
        with self._database.writing() as tx:
            return begin(
                self._database,
                tx,
                self.app,
                scope,
                key,
                config,
                holder=holder,
                lease=lease,
                dead=dead,
                ahead_us=ahead_us,
            )

    def succeed_key(
        self, begun: KeyBegun, outputs: bytes | None, ttl: float | None, lease: Lease, *, ahead_us: int = 0
    ) -> None:
        """The work is done; for `ttl` seconds from now this counts, or for ever. `LeaseLost` if it was taken over."""
        with self._database.writing() as tx:
            succeed(self._database, tx, self.app, begun, outputs, ttl, lease, ahead_us=ahead_us)

    def release_key(self, begun: KeyBegun, *, ahead_us: int = 0) -> bool:
        """The work has failed: whoever wants it may begin at once. False if it was taken over."""
        with self._database.writing() as tx:
            return release(self._database, tx, self.app, begun, ahead_us=ahead_us)

    def hold_key(
        self, scope: str, key: str, *, holder: str, lease: Lease, dead: Callable[[str], bool], ahead_us: int = 0
    ) -> KeyBegun | KeyDone | None:
        """
        The right to undo what was begun for a key, however that was configured, or what somebody has done for it since. None
        if nothing is on record of it. `IdempotencyConflict` and `LeaseLost` as for `begin_key`.
        """
        database = self._database
        with database.writing() as tx:
            known = tx.row(
                f"select config from outlast_idempotency where app = ? and scope = ? and key = ? {database.for_update}",
                *(self.app, storable(scope), key),
            )
            if known is None:
                return None
            return begin(
                *(database, tx, self.app, scope, key, known[0]),
                holder=holder,
                lease=lease,
                dead=dead,
                ahead_us=ahead_us,
            )

    def forget_key(self, scope: str, key: str, holder: str) -> bool:
        """What this holder has done was undone: the record goes. False if it is not there, or somebody else's."""
        with self._database.writing() as tx:
            return forget(tx, self.app, scope, key, holder)

    def holds_keys(self, scope: str, holder: str) -> bool:
        """Whether something is on record that this holder has begun or done in a scope."""
        row = self._database.row(
            "select 1 from outlast_idempotency where app = ? and scope = ? and holder = ? limit 1",
            *(self.app, storable(scope), storable(holder)),
        )
        return row is not None

    def key_record(self, scope: str, key: str) -> KeyRecord | None:
        """What is on record of a key; also what counts no more, until it is removed."""
        with self._database.reading() as tx:
            row = tx.row(
                f"select {_ROW} from outlast_idempotency where app = ? and scope = ? and key = ?",
                *(self.app, storable(scope), key),
            )
        return None if row is None else _record(row)

    def key_records(self, scope: str, keys: Iterable[str]) -> dict[str, KeyRecord]:
        """As `key_record`, of several keys; those of which nothing is on record are not in it."""
        database = self._database
        rows = database.rows(
            f"select key, {_ROW} from outlast_idempotency where app = ? and scope = ? and key {database.among}",
            *(self.app, storable(scope), database.passed(keys)),
        )
        return {key: _record(row) for key, *row in rows}

    def prune_keys(self, *, at_most: int | None = None, ahead_us: int = 0) -> int:
        """
        Remove records that count no more; how many. What is in progress under a lease that stands stays. So does what a run
        has done that is on record and not completed: only its keys may tell what there is to undo.
        """
        database = self._database
        over = (
            f"app = ? and (expires is not null and expires <= {database.now} + {int(ahead_us)} "
            f"or state not in ('succeeded', 'undoing') and changed < {database.now} + {int(ahead_us) - _FORGOTTEN}) "
            "and not exists (select 1 from outlast_runs r where r.id = outlast_idempotency.holder and r.status <> 'completed')"
        )
        with database.reading() as tx:  # a transaction that writes is not begun for nothing
            if tx.row(f"select 1 from outlast_idempotency where {over} limit 1", self.app) is None:
                return 0
        done = 0
        with database.writing() as tx:
            limit = "" if at_most is None else f"limit {int(at_most)}"
            rows = tx.rows(
                f"select scope, key, state, lease_kind, lease_key, lease_token from outlast_idempotency where {over} "
                f"order by scope, key {limit} {database.for_update}",
                self.app,
            )
            for scope, key, state, *held in rows:
                if state in ("in_progress", "undoing") and leases.standing(database, tx, self.app, *held) is not None:
                    continue
                done += tx.execute(
                    "delete from outlast_idempotency where app = ? and scope = ? and key = ?", self.app, scope, key
                ).rowcount
        return done


# -- in a transaction that writes more than this ---------------------------------------------------------------------------


def begin(
    database: Database,
    tx: Transaction,
    app: str,
    scope: str,
    key: str,
    config: str,
    *,
    holder: str,
    lease: Lease,
    dead: Callable[[str], bool],
    ahead_us: int = 0,
) -> KeyBegun | KeyDone:
    """As `Idempotency.begin_key`."""
    if len(key) != _DIGEST or set(key) - set("0123456789abcdef"):
        raise ValueError("expected key to be a key_digest, 64 hexadecimal digits: the key itself is not stored.")
    scope, config, holder = storable(scope), storable(config), storable(holder)
    leases.fenced(database, tx, app, lease)
    which = (app, scope, key)
    found = None
    while found is None:
        # There is always a row to lock: of two who come first one waits for the other.
        tx.execute(
            "insert into outlast_idempotency (app, scope, key, config, state, holder, lease_kind, lease_key, lease_token, token, "
            "attempts, changed) values (?, ?, ?, '', 'released', '', '', '', 0, 0, 0, 0) on conflict do nothing",
            *which,
        )
        found = tx.row(
            f"select {_ROW} from outlast_idempotency where app = ? and scope = ? and key = ? {database.for_update}",
            *which,
        )
    (now,) = tx.row(f"select {database.now} + {int(ahead_us)}")  # after the wait for the row
    record = _record(found)
    over = record.expires_us is not None and record.expires_us <= now
    if record.state == "succeeded" and not over:
        if record.config != config:
            raise IdempotencyMismatch(
                f"expected the work of {scope} for this key to be configured as when it was done, at "
                f"{from_us(record.changed_us):%Y-%m-%d %H:%M:%S} UTC by {record.holder}, got: otherwise. "
                "Give other work another key."
            )
        return KeyDone(record.outputs, record.holder, record.changed_us, record.expires_us)
    if record.state == "in_progress" and record.holder != holder:
        owner = leases.standing(database, tx, app, record.lease_kind, record.lease_key, record.lease_token)
        if owner is not None and not dead(owner):
            message = f"the work of {scope} for this key is in progress: {record.holder} is at it."
            raise IdempotencyConflict(message)
    if record.state == "undoing" and record.holder != holder:
        owner = leases.standing(database, tx, app, record.lease_kind, record.lease_key, record.lease_token)
        if not over or (owner is not None and not dead(owner)):
            message = (
                f"the work of {scope} for this key is being undone, and not finished: it is that of {record.holder}."
            )
            raise IdempotencyConflict(message)
    attempts = 1 if over else record.attempts + 1
    tx.execute(
        "update outlast_idempotency set config = ?, state = 'in_progress', holder = ?, lease_kind = ?, lease_key = ?, lease_token = ?, "
        "token = token + 1, attempts = ?, outputs = null, changed = ?, expires = null where app = ? and scope = ? and key = ?",
        *(config, holder, lease.kind, storable(lease.key), lease.token, attempts, now, *which),
    )
    return KeyBegun(scope, key, record.token + 1, attempts)


def succeed(
    database: Database,
    tx: Transaction,
    app: str,
    begun: KeyBegun,
    outputs: bytes | None,
    ttl: float | None,
    lease: Lease,
    *,
    ahead_us: int = 0,
) -> None:
    """As `Idempotency.succeed_key`."""
    if ttl is not None and (math.isnan(ttl) or ttl <= 0):
        raise ValueError(f"expected ttl to be a positive number of seconds or None, got: {ttl}.")
    leases.fenced(database, tx, app, lease)
    (now,) = tx.row(f"select {database.now} + {int(ahead_us)}")
    expires = None if ttl is None else now + round(min(ttl, _FARTHEST) * 1e6)
    done = tx.execute(
        "update outlast_idempotency set state = 'succeeded', outputs = ?, changed = ?, expires = ? "
        "where app = ? and scope = ? and key = ? and token = ? and state = 'in_progress'",
        *(outputs, now, expires, app, begun.scope, begun.key, begun.token),
    )
    if done.rowcount != 1:
        raise LeaseLost(
            f"the work of {begun.scope} for this key was taken over, or has ended: nothing of this was written."
        )


def release(database: Database, tx: Transaction, app: str, begun: KeyBegun, *, ahead_us: int = 0) -> bool:
    """As `Idempotency.release_key`."""
    done = tx.execute(
        f"update outlast_idempotency set state = 'released', changed = {database.now} + {int(ahead_us)} "
        "where app = ? and scope = ? and key = ? and token = ? and state = 'in_progress'",
        *(app, begun.scope, begun.key, begun.token),
    )
    return done.rowcount == 1


def forget(tx: Transaction, app: str, scope: str, key: str, holder: str) -> bool:
    """As `Idempotency.forget_key`."""
    done = tx.execute(
        "delete from outlast_idempotency where app = ? and scope = ? and key = ? and holder = ?",
        *(app, storable(scope), key, storable(holder)),
    )
    return done.rowcount == 1


def hold(tx: Transaction, app: str, scope: str, key: str | None, holder: str, lease: Lease) -> None:
    """
    What this holder has done for a key, or for all keys of a scope, is about to be undone: until that has ended it counts as
    done for nobody. Its outputs and its time stay.
    """
    which, own = ("", ()) if key is None else ("and key = ? ", (key,))
    tx.execute(
        "update outlast_idempotency set state = 'undoing', lease_kind = ?, lease_key = ?, lease_token = ? "
        f"where app = ? and scope = ? {which}and holder = ? and state in ('succeeded', 'undoing')",
        *(lease.kind, storable(lease.key), lease.token, app, storable(scope), *own, storable(holder)),
    )


def give_back(tx: Transaction, app: str, scope: str, holder: str) -> None:
    """What was to be undone and was not stands: it is remembered as before."""
    tx.execute(
        "update outlast_idempotency set state = 'succeeded' where app = ? and scope = ? and holder = ? and state = 'undoing'",
        *(app, storable(scope), storable(holder)),
    )


def forget_all(tx: Transaction, app: str, scope: str, holder: str, *, state: str | None = None) -> int:
    """What this holder has done in a scope was undone: its records there go, all or those of a state; how many."""
    which, own = ("", ()) if state is None else (" and state = ?", (state,))
    return tx.execute(
        f"delete from outlast_idempotency where app = ? and scope = ? and holder = ?{which}",
        *(app, storable(scope), storable(holder), *own),
    ).rowcount


def _record(row: Any) -> KeyRecord:
    record = KeyRecord(*row)
    return record if record.outputs is None else record._replace(outputs=bytes(record.outputs))
