"""
The store: runs, items, attempts, dead letters, jobs, events and shared states, on SQLite or PostgreSQL.

    with open_store() as store:
        run = store.open_run("reviews", "2026-11-15", stages)
        lease = store.take_run(run.number, 0, owner="host:1", ttl=20)
        store.write(lease, Changes(items=..., attempts=..., read=2000))

`Store` uses one SQL for both databases; what differs is in `sqlite` and `postgres`. All methods block, and are safe in
threads. A method that fails raises a `StoreError`, whose class says whether another attempt may help. A write under an
older lease raises `LeaseLost`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from outlast.store.address import Address
from outlast.store.compensations import Compensations
from outlast.store.faults import StoreError as StoreError
from outlast.store.faults import StoreRefused as StoreRefused
from outlast.store.faults import StoreUnanswered as StoreUnanswered
from outlast.store.faults import StoreUnavailable as StoreUnavailable
from outlast.store.figures import Figures
from outlast.store.flows import Flows
from outlast.store.idempotency import Idempotency
from outlast.store.items import Items
from outlast.store.jobs import Jobs
from outlast.store.letters import Letters
from outlast.store.runs import Runs
from outlast.store.schedules import Schedules
from outlast.store.steps import Steps
from outlast.store.tallies import Tallies
from outlast.store.troubles import Troubles
from outlast.store.upkeep import Upkeep

if TYPE_CHECKING:
    import os
    from typing import Self

    from outlast.store.database import Database, Schema


class Store(
    Runs, Items, Letters, Jobs, Steps, Compensations, Flows, Idempotency, Schedules, Tallies, Troubles, Upkeep, Figures
):
    """All that one app keeps, in one database. Two apps may share a database and see nothing of each other."""

    def __init__(self, database: Database, *, app: str = "default") -> None:
        super().__init__()
        self._database = database
        self.app = app
        database.migrate()

    @classmethod
    def at(cls, address: Address, *, app: str, patience: float | None = None) -> Self:
        """The one at this address; as `open_store`."""
        return cls(_database(address, patience), app=app)

    @property
    def by_server(self) -> bool:
        """Whether a server does the work: who waits for it leaves the processor to others."""
        return self._database.name != "sqlite"

    @cached_property
    def database_name(self) -> str | None:
        """What the database calls itself, whatever its address says; None for a file."""
        if not self.by_server:
            return None
        with self._database.reading() as tx:
            return str(tx.row("select current_database()")[0])

    def close(self) -> None:
        """Close the connections that are not in use; from now on every call is refused."""
        self._forget_keys()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.app!r} in {self._database!r}>"


def open_store(
    url: str | os.PathLike[str] | None = None, *, app: str = "default", patience: float | None = None
) -> Store:
    """
    The store at an address, made or brought up to date if need be.

    ``sqlite:///path`` or a plain path; ``postgresql://user@host/name`` (with the extra `postgres`). Without one: the
    environment variable ``OUTLAST_STORE``, else SQLite under ``.outlast/``. `patience` is how many seconds a busy or
    silent database is waited for.
    """
    return Store.at(Address.wanted(url), app=app, patience=patience)


def schema_of(url: str) -> Schema:
    """Which schema the store at an address has, and which one this program needs. Changes nothing."""
    database = _database(Address(url), None)
    try:
        return database.schema()
    finally:
        database.close()


def bring_up_to_date(url: str) -> Schema:
    """Make the changes that the store at an address lacks; which schema it had before."""
    database = _database(Address(url), None)
    try:
        return database.migrate()
    finally:
        database.close()


def _database(address: Address, patience: float | None) -> Database:
    path = address.file
    if path is None:
        from outlast.store.postgres import Postgres

        return Postgres(address.text, patience=patience)
    from outlast.store.sqlite import Sqlite

    return Sqlite(path, patience=patience)
