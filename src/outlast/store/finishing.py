"""
The end of a job in a transaction of its own code: what the job has done, its success and the row of its attempt are
committed together, or none of them is.

The row of the job stays locked until that transaction ends; so nobody takes the job over in between. Whether it was
committed only the database knows: `finished_in` is asked when the code has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from outlast.errors import LeaseLost
from outlast.store import turns
from outlast.store.faults import StoreRefused
from outlast.store.leases import label

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from outlast.store.database import Database
    from outlast.store.records import JobEnd, Lease

    #: Yields statements with their parameters, and is sent their rows.
    Statements: TypeAlias = Generator[tuple[str, tuple[Any, ...]], Sequence[Any], Any]

#: Committed; rolled back; not ended; the job was taken over.
Finished: TypeAlias = Literal["committed", "rolled back", "open", "lost"]


class Finishing:
    """The part of the store that knows jobs which end in a transaction of their own."""

    _database: Database
    app: str

    def here(self, way_out: str, ahead_us: int = 0) -> Statements:
        """
        Find out whether these statements are done in the store's own database: `StoreRefused` if not; the database's
        present instant. They change nothing.
        """
        database = self._database
        rows = yield database.known_here, ()
        found: list[Any] = []
        if rows and rows[0][0]:
            rows = yield f"select id, {database.server}, {database.now} + {int(ahead_us)} from outlast_store", ()
            found = list(rows[0])
        store, server = self._identity()
        same = found[:1] == [store]
        if same and found[1] != server:
            # A copy of the database, on another server; or a standby has answered for the store.
            rows = yield database.transaction, ()
            same = self._is_under_way(int(rows[0][0]))
        if not same:
            message = (
                f"expected the transaction to be in the database of the store, {database!r}, got: one in another database. "
                f"{way_out}"
            )
            raise StoreRefused(message, error_class="code_error")
        return int(found[2])

    def _identity(self) -> tuple[str, int]:
        """The id of the store, which a copy of the database has too, and what tells its server from others."""
        with self._database.reading() as tx:
            store, server = tx.row(f"select id, {self._database.server} from outlast_store")
        return str(store), int(server)

    def _is_under_way(self, transaction: int) -> bool:
        """Whether a transaction of this number has not ended at the server that the store writes to. Numbers grow there."""
        with self._database.writing() as tx:
            found = tx.row(
                "select case when ?::bigint < txid_current() then txid_status(?::bigint) end", transaction, transaction
            )
        return found is not None and found[0] == "in progress"

    def finish_steps(self, end: JobEnd, lease: Lease | None, *, ahead_us: int = 0) -> Statements:
        """
        The statements by which a job succeeds, for a transaction of the caller's. `LeaseLost` if the job was taken over;
        `StoreRefused` if it has succeeded already, or this is another database.
        """
        database = self._database
        now = yield from self.here("Only there can the job end with it: commit your own work, and return.", ahead_us)
        if lease is not None and database.notifies:
            # Who takes this worker for dead ends its transactions, this one too.
            yield f"select {database.labelled}", (label(self.app, lease.kind, lease.key),)
        until = None if end.unique_for_us is None else now + end.unique_for_us
        mine = "where id = ? and token = ? and app = ? and state = 'processing' returning letter"
        rows = yield (
            f"update outlast_jobs set {turns.success('?', '?', '?')} {mine}",
            (end.result, until, now, end.id, end.token, self.app),
        )
        if not rows:
            rows = yield (
                "select 1 from outlast_job_attempts where job = ? and number = ? and token = ? and outcome = 'succeeded'",
                (end.id, end.number, end.token),
            )
            if rows:
                message = f"the job {end.id} has succeeded already, in the transaction that finish_in was given first."
                raise StoreRefused(message, error_class="code_error")
            raise LeaseLost(
                f"the job {end.id} was taken over, or its time is up: it does not end with this transaction. Roll it back."
            )
        columns = turns.SUCCESS
        marks = ", ".join("?" * len(columns.split(", ")))
        yield (
            f"insert into outlast_job_attempts ({columns}) values ({marks})",
            (
                *(end.id, end.number, end.token, None if lease is None else lease.key),
                *(end.started_us, end.took_us, "succeeded"),
            ),
        )
        if rows[0][0] is not None:
            yield turns.resolving(self.app, end.id, rows[0][0], now)

    def finished_in(self, job: int, number: int, token: int, /) -> Finished:
        """What has become of the transaction in which an attempt was to end."""
        database = self._database
        with database.reading() as tx:
            done = "select 1 from outlast_job_attempts where job = ? and number = ? and token = ? and outcome = 'succeeded'"
            if tx.row(done, job, number, token) is not None:
                return "committed"
            mine = "select 1 from outlast_jobs where app = ? and id = ? and token = ? and worker is not null"
            free = tx.row(f"{mine} {database.skip_locked}", self.app, job, token) is not None
            if free or tx.row(mine, self.app, job, token) is None:
                # Perhaps it was committed between the two looks.
                if tx.row(done, job, number, token) is not None:
                    return "committed"
                return "rolled back" if free else "lost"
        return "open"

    def settled_in(self, job: int, number: int, token: int, /) -> Finished:
        """
        As `finished_in`, also where that cannot say "open". A transaction on SQLite locks no row, but the file: while
        somebody writes there, it may be that one, and it counts as open.
        """
        found = self.finished_in(job, number, token)
        if found != "rolled back":
            return found
        # Once nobody writes, it is over; it may have been committed since the look.
        return self.finished_in(job, number, token) if self._database.writable() else "open"
