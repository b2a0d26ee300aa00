"""
What is kept beside runs: events, the states that processes share, and how long anything is kept.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from outlast.clock import here
from outlast.store.records import EventRow, SharedState, from_us, storable, to_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from outlast.store.database import Database
    from outlast.store.records import Prunable, StateKind

_FIELDS = "id, name, at, run, data"
EVENT = f"{_FIELDS}, app"
_CHUNK = 5000  # rows deleted in one transaction: others wait no longer than that takes
_SHARDS = ("outlast_shards", "outlast_progress")
_CHILDREN = ("outlast_attempts", "outlast_items", "outlast_checkpoints")


class Upkeep:
    """The part of the store that knows events, shared states and retention."""

    _database: Database
    app: str

    # -- events --------------------------------------------------------------------------------------------------------

    def add_events(self, events: Iterable[EventRow]) -> None:
        """Put events on record; one that is there already is not added again."""
        given = {event.id: event for event in events}
        with self._database.writing() as tx:
            self._database.lock_events(tx)
            known = tx.rows(
                f"select id from outlast_events where id {self._database.among}", self._database.passed(given)
            )
            for row in known:
                given.pop(row[0], None)
            tx.insert("outlast_events", EVENT, [event_values(self.app, event) for event in given.values()])

    def events(
        self, run: str | None = None, name: str | None = None, after: int | None = None, limit: int = 100
    ) -> list[EventRow]:
        """The oldest first; `after` is the `number` of the last one of the page before. None that comes later has a lower number."""
        condition, values = "app = ? and number > ?", [self.app, after or 0]
        for column, value in (("run", run), ("name", name)):
            if value is not None:
                condition += f" and {column} = ?"
                values.append(value)
        with self._database.reading() as tx:
            rows = tx.rows(
                f"select {_FIELDS}, number from outlast_events where {condition} order by number limit ?",
                *values,
                limit,
            )
        return [
            EventRow(id, name, at, run, json.loads(data), number)
            for id, name, at, run, data, number in rows  # noqa: A001
        ]

    # -- what processes share ------------------------------------------------------------------------------------------

    def state(self, kind: StateKind, name: str) -> SharedState | None:
        """What is shared under this name."""
        return next(iter(self._states("and kind = ? and name = ?", kind, name)), None)

    def states(self, kind: StateKind) -> list[SharedState]:
        """All that is shared of this kind, by name."""
        return self._states("and kind = ? order by name", kind)

    def save_state(self, kind: StateKind, name: str, data: Mapping[str, Any], *, expect: int) -> bool:
        """Replace what is shared under a name, if its version is still the one expected (0: there is none yet); whether it was."""
        text, now = json.dumps(dict(data)), to_us(here.get().clock.now())
        with self._database.writing() as tx:
            if expect == 0:
                done = tx.execute(
                    "insert into outlast_states (app, kind, name, version, data, changed) values (?, ?, ?, 1, ?, ?) on conflict do nothing",
                    *(self.app, kind, name, text, now),
                )
            else:
                done = tx.execute(
                    "update outlast_states set version = version + 1, data = ?, changed = ? "
                    "where app = ? and kind = ? and name = ? and version = ?",
                    *(text, now, self.app, kind, name, expect),
                )
            return done.rowcount == 1

    def _states(self, where: str, *values: Any) -> list[SharedState]:
        with self._database.reading() as tx:
            rows = tx.rows(
                f"select name, version, data, changed from outlast_states where app = ? {where}",
                self.app,
                *values,
            )
        return [SharedState(name, version, json.loads(data), from_us(changed)) for name, version, data, changed in rows]

    # -- retention -----------------------------------------------------------------------------------------------------

    def prune(self, kind: Prunable, older_than: datetime) -> int:
        """
        Delete what is over and older, in small transactions; how many.

        ``runs``: those that ended, with their items and attempts; their dead letters stay. ``dead_letters``: those resolved or archived.
        ``events``: all.
        """
        before = to_us(older_than)
        if kind == "runs":
            return self._prune_runs(before)
        if kind == "dead_letters":
            condition = "app = ? and status in ('resolved', 'archived') and moved < ?"
            return self._delete("outlast_dead_letters", "id", condition, self.app, before)
        if kind == "events":
            return self._delete("outlast_events", "id", "app = ? and at < ?", self.app, before)
        message = f"expected kind to be one of runs, dead_letters, events, got: {kind!r}."
        raise ValueError(message)

    def _prune_runs(self, before: int) -> int:
        """
        A run that goes is first taken out of its app, with its shards, so that nobody sees it, resumes it or writes for it; then it is
        emptied in chunks. If that is interrupted, the next time goes on with it.
        """
        with self._database.writing() as tx:
            for (number,) in tx.rows(
                f"select number from outlast_runs where app = ? and finished < ? order by number {self._database.for_update}",
                *(self.app, before),
            ):
                tx.execute("update outlast_runs set app = '', run_key = id where number = ?", number)
                for table in _SHARDS:
                    tx.execute(f"delete from {table} where run = ?", number)
            numbers = tx.rows("select number from outlast_runs where app = '' order by number")
        for (number,) in numbers:
            for table in _CHILDREN:
                while self._emptied(table, number):
                    pass
            with self._database.writing() as tx:
                for table in _SHARDS:  # of somebody who came too late
                    tx.execute(f"delete from {table} where run = ?", number)
                tx.execute("delete from outlast_runs where number = ?", number)
        return len(numbers)

    def _emptied(self, table: str, run: int) -> bool:
        """Delete the first rows of a run; whether there were any."""
        with self._database.writing() as tx:
            last = tx.row(
                f"select max(seq) from (select seq from {table} where run = ? order by seq limit {_CHUNK}) firsts",
                run,
            )[0]
            if last is not None:
                tx.execute(f"delete from {table} where run = ? and seq <= ?", run, last)
        return last is not None

    def _delete(self, table: str, key: str, condition: str, *values: Any) -> int:
        deleted = 0
        while True:
            with self._database.writing() as tx:
                done = tx.execute(
                    f"delete from {table} where {key} in (select {key} from {table} where {condition} order by {key} limit {_CHUNK})",
                    *values,
                ).rowcount
            deleted += done
            if done < _CHUNK:
                return deleted


def event_values(app: str, event: EventRow) -> tuple[Any, ...]:
    return (event.id, event.name, event.at_us, event.run, storable(json.dumps(dict(event.data))), app)
