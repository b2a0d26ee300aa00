"""
What is kept beside runs: events, the states that processes share, and how long anything is kept.
"""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from outlast.kernel.clock import here
from outlast.store import compensations, steps, unique
from outlast.store.connections import without_hurry
from outlast.store.leases import fenced
from outlast.store.records import EventRow, SharedState, from_us, storable, to_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime
    from typing import TypeVar

    from outlast.store.database import Database, Transaction
    from outlast.store.records import Lease, Prunable, StateKind

    T = TypeVar("T")

_FIELDS = "id, name, at, run, data"
_CHUNK = 5000  # rows deleted in one transaction: others wait no longer than that takes
_SHARDS = ("outlast_shards", "outlast_progress")
_CHILDREN = ("outlast_attempts", "outlast_items", "outlast_checkpoints", "outlast_replays")


class Upkeep(unique.UniqueKeys):
    """The part of the store that knows events, shared states and retention."""

    _database: Database
    app: str

    # -- events --------------------------------------------------------------------------------------------------------

    def add_events(self, events: Iterable[EventRow], lease: Lease | None = None) -> None:
        """
        Put events on record; one that is there already is not added again. With a lease they are written as its
        batches are: `LeaseLost` if it is not the newest.

        This is a short transaction of its own, because of all that add events one does it at a time: else a number
        could become visible after a higher one, and be missed by those who read on from there. No batch waits for it.
        """
        with self._database.writing(batches=lease is not None) as tx:
            if lease is not None:
                fenced(self._database, tx, self.app, lease)
            insert_events(self._database, tx, self.app, events)

    def events(
        self,
        run: str | None = None,
        name: str | None = None,
        after: int | None = None,
        limit: int = 100,
        since_us: int | None = None,
    ) -> list[EventRow]:
        """
        The oldest first, of those that happened at `since_us` or later; `after` is the `number` of the last one of the page
        before. None that comes later has a lower number.
        """
        condition, values = "app = ? and number > ?", [self.app, after or 0]
        if since_us is not None:
            condition += " and at >= ?"
            values.append(since_us)
        for column, value in (("run", run), ("name", name)):
            if value is not None:
                condition += f" and {column} = ?"
                values.append(value)
        rows = self._database.rows(
            f"select {_FIELDS}, number from outlast_events where {condition} order by number limit ?",
            *values,
            limit,
        )
        return [
            EventRow(id, name, at, run, json.loads(data), number)
            for id, name, at, run, data, number in rows  # noqa: A001
        ]

    def code_option(self, pipeline: str) -> list[str]:
        """
        What a command needs to find the code of a pipeline: nothing after `outlast run`, else ``--target`` with where
        it was when it ran last; where that is not known, in words.
        """
        rows = self._database.rows(
            "select e.name, e.data from outlast_events e join outlast_runs r on r.id = e.run "
            "where r.app = ? and r.pipeline = ? and e.name in ('run_command', 'run_started') order by e.number desc limit 200",
            *(self.app, pipeline),
        )
        known = [(name, json.loads(data).get("target")) for name, data in rows]
        if any(target for name, target in known if name == "run_command"):
            return []
        return ["--target", next((target for _, target in known if target), "FILE:NAME")]

    # -- what processes share ------------------------------------------------------------------------------------------

    def state(self, kind: StateKind, name: str) -> SharedState | None:
        """What is shared under this name."""
        return next(iter(self._states("and kind = ? and name = ?", kind, key_of(name))), None)

    def states(self, kind: StateKind) -> list[SharedState]:
        """All that is shared of this kind, by name."""
        return self._states("and kind = ? order by name", kind)

    def save_state(self, kind: StateKind, name: str, data: Mapping[str, Any], *, expect: int) -> bool:
        """
        Replace what is shared under a name, if its version is still the one expected (0: there is none yet); whether it
        was.
        """
        text, now, name = json.dumps(dict(data)), to_us(here.get().clock.now()), key_of(name)
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

    def change_state(
        self,
        kind: StateKind,
        name: str,
        decide: Callable[[Mapping[str, Any] | None, float], tuple[Mapping[str, Any] | None, T]],
    ) -> T:
        """
        Change what is shared under a name in one transaction, with nobody else in between.

        `decide` is given what is shared (None: nothing yet) and the database's own time in seconds since the epoch. It
        answers with what is to be shared (None: as it is), and with what is returned. It must be quick and change
        nothing: who comes next waits for it.
        """
        key = (self.app, kind, key_of(name))
        found = None
        with self._database.writing() as tx:
            while found is None:
                # There is always a row to lock: of two who come first one waits for the other. Version 0 stands for
                # nothing.
                tx.execute(
                    "insert into outlast_states (app, kind, name, version, data, changed) values (?, ?, ?, 0, 'null', 0) "
                    "on conflict do nothing",
                    *key,
                )
                found = tx.row(
                    "select version, data from outlast_states where app = ? and kind = ? and name = ? "
                    f"{self._database.for_update}",
                    *key,
                )
            version, text = found
            (now,) = tx.row(f"select {self._database.now}")  # after the wait for the row
            data, answer = decide(None if version == 0 else json.loads(text), now / 1e6)
            if data is not None:
                tx.execute(
                    "update outlast_states set version = version + 1, data = ?, changed = ? where app = ? and kind = ? and name = ?",
                    *(storable(json.dumps(dict(data))), now, *key),
                )
            elif version == 0:
                tx.execute("delete from outlast_states where app = ? and kind = ? and name = ? and version = 0", *key)
        return answer

    def look(self, kind: StateKind, name: str) -> tuple[Mapping[str, Any] | None, float]:
        """What is shared under a name, and the database's own time."""
        found = self._database.row(
            f"select {self._database.now}, data from (select 1) one left join outlast_states "
            "on app = ? and kind = ? and name = ? and version > 0",
            *(self.app, kind, key_of(name)),
        )
        return None if found[1] is None else json.loads(found[1]), found[0] / 1e6

    def now(self) -> float:
        """The database's own time, in seconds since the epoch."""
        return float(self._database.row(f"select {self._database.now}")[0] / 1e6)

    def _states(self, where: str, *values: Any) -> list[SharedState]:
        rows = self._database.rows(
            f"select name, version, data, changed from outlast_states where app = ? and version > 0 {where}",
            self.app,
            *values,
        )
        return [
            SharedState(name_of(key), version, json.loads(data), from_us(changed))
            for key, version, data, changed in rows
        ]

    # -- retention -----------------------------------------------------------------------------------------------------

    def prune(self, kind: Prunable, older_than: datetime, *, at_most: int | None = None) -> int:
        """
        Delete what is over and older, in small transactions; how many. With `at_most`, about so many rows; what is left
        goes the next time.

        ``runs``: those that ended, with their items and attempts, unless dead letters of theirs are open: those come
        home to them. Their other dead letters stay. ``dead_letters``: those resolved or archived. ``events``: all but
        those of runs that have not ended. ``jobs``: those that succeeded or were cancelled; ``failed_jobs``: the others; both
        without those whose dead letter can still be replayed.
        """
        with without_hurry() if at_most is None else nullcontext():
            return self._prune(kind, to_us(older_than), math.inf if at_most is None else at_most)

    def _prune(self, kind: Prunable, before: int, left: float) -> int:
        if kind == "runs":
            return self._prune_runs(before, left)
        if kind == "dead_letters":
            condition = "app = ? and status in ('resolved', 'archived') and moved < ?"
            return self._delete("outlast_dead_letters", "id", condition, left, self.app, before)
        if kind == "events":
            going_on = "select 1 from outlast_runs where outlast_runs.id = outlast_events.run and finished is null"
            condition = f"app = ? and at < ? and not exists ({going_on})"
            return self._delete("outlast_events", "id", condition, left, self.app, before)
        if kind in {"jobs", "failed_jobs"}:
            return self._prune_jobs(kind, before, left)
        raise ValueError(f"expected kind to be one of runs, dead_letters, events, jobs, failed_jobs, got: {kind!r}.")

    def _prune_runs(self, before: int, left: float) -> int:
        """
        A run that goes is first taken out of its app, with its shards, so that nobody sees it, resumes it or writes for
        it; then it is emptied in chunks. If that is interrupted, the next time goes on with it.
        """
        waiting = (
            "select 1 from outlast_dead_letters where outlast_dead_letters.app = outlast_runs.app "
            "and outlast_dead_letters.run = outlast_runs.id and outlast_dead_letters.status in ('open', 'replaying')"
        )
        over = f"app = ? and finished < ? and not exists ({waiting})"
        found = self._database.row(
            f"select 1 where exists (select 1 from outlast_runs where app = '') or exists (select 1 from outlast_runs where {over})",
            *(self.app, before),
        )
        if found is None:
            return 0
        with self._database.writing() as tx:
            for (number,) in tx.rows(
                f"select number from outlast_runs where {over} order by number {self._database.for_update}",
                *(self.app, before),
            ):
                tx.execute("update outlast_runs set app = '', run_key = id where number = ?", number)
                for table in _SHARDS:
                    tx.execute(f"delete from {table} where run = ?", number)
            numbers = tx.rows("select number from outlast_runs where app = '' order by number")
        done = 0
        for (number,) in numbers:
            for table in _CHILDREN:
                while left > 0 and (deleted := self._emptied(table, number)):
                    left -= deleted
            left -= self._forget_flow(number)
            if left <= 0:
                break
            with self._database.writing() as tx:
                for table in _SHARDS:  # of somebody who came too late
                    tx.execute(f"delete from {table} where run = ?", number)
                tx.execute("delete from outlast_runs where number = ?", number)
            done += 1
        return done

    def _prune_jobs(self, kind: Prunable, before: int, left: float) -> int:
        """
        Jobs go with their attempts, steps and artifacts. One whose unique key is to be held longer goes once the key has a
        record of its own, and one with a dead letter that is not resolved with that letter: without the job it could not
        be replayed.
        """
        states = ("failed",) if kind == "failed_jobs" else ("succeeded", "cancelled")
        deleted = 0
        if "succeeded" in states:
            self.keep_unique_keys(before, _CHUNK)
        for state in states:
            while deleted < left and (done := self._prune_ended(state, before)):
                deleted += done
        return deleted

    def _prune_ended(self, state: str, before: int) -> int:
        database = self._database
        # The states twice: the second time as they are in the index.
        over = (
            f"app = ? and state = '{state}' and ended < ? and state in ('succeeded', 'failed', 'cancelled') "
            f"and {unique.outlived(database)} and {compensations.outlived()} and not exists (select 1 from outlast_dead_letters "
            "where outlast_dead_letters.id = outlast_jobs.letter and outlast_dead_letters.status in ('open', 'replaying', 'archived'))"
        )
        with database.reading() as tx:  # a transaction that writes is not begun for nothing
            if tx.row(f"select 1 from outlast_jobs where {over} limit 1", self.app, before) is None:
                return 0
        with database.writing() as tx:
            # Materialised: a planner may do a limited query more than once, and delete more than that.
            rows = tx.rows(
                f"with old as materialized (select id from outlast_jobs where {over} order by ended, id limit {_CHUNK} {database.skip_locked}) "
                f"delete from outlast_jobs where id in (select id from old) and state = '{state}' returning id",
                *(self.app, before),
            )
            gone = [row[0] for row in rows]
            for table in ("outlast_job_attempts", "outlast_job_changes", "outlast_job_progress"):
                tx.execute(f"delete from {table} where job {database.among}", database.passed(gone))
            steps.forget(database, tx, "job", gone)
            compensations.forget_compensations(database, tx, gone)
        return len(rows)

    def _forget_flow(self, run: int) -> int:
        """Delete the steps of a flow's run, of which there are few; how many rows that were."""
        with self._database.writing() as tx:
            steps.forget(self._database, tx, "run", [run])
            return sum(
                tx.execute(f"delete from {table} where run = ?", run).rowcount
                for table in ("outlast_step_attempts", "outlast_flow_steps")
            )

    def _emptied(self, table: str, run: int) -> int:
        """Delete the first rows of a run; how many there were."""
        with self._database.writing() as tx:
            last = tx.row(
                f"select max(seq) from (select seq from {table} where run = ? order by seq limit {_CHUNK}) firsts",
                run,
            )[0]
            return (
                0 if last is None else tx.execute(f"delete from {table} where run = ? and seq <= ?", run, last).rowcount
            )

    def _delete(self, table: str, key: str, condition: str, left: float, *values: Any) -> int:
        deleted = 0
        while deleted < left:
            with self._database.reading() as tx:  # a transaction that writes is not begun for nothing
                if tx.row(f"select 1 from {table} where {condition} limit 1", *values) is None:
                    break
            with self._database.writing() as tx:
                done = tx.execute(
                    f"delete from {table} where {key} in (select {key} from {table} where {condition} order by {key} limit {_CHUNK})",
                    *values,
                ).rowcount
            deleted += done
            if done < _CHUNK:
                break
        return deleted


_CODED = "\ufffd"  # begins a key that is not the name itself
_LONGEST = 1000  # bytes of a key: an index entry has a limit


def key_of(name: str) -> str:
    """The name as every database can hold and index it. Two names never have one key."""
    whole = name.encode("utf-8", "surrogatepass")
    if storable(name) == name and not name.startswith(_CODED) and len(whole) <= _LONGEST:
        return name
    return f"{_CODED}{whole.hex()}" if 2 * len(whole) < _LONGEST else f"{_CODED}sha256:{sha256(whole).hexdigest()}"


def name_of(key: str) -> str:
    """The name of a key that is in it; the key itself of one that was too long."""
    if not key.startswith(_CODED) or ":" in key:
        return key
    return bytes.fromhex(key[1:]).decode("utf-8", "surrogatepass")


def is_hash(key: str) -> bool:
    """Whether this is the hash of a key that was too long to be kept."""
    return key.startswith(f"{_CODED}sha256:")


def plain_key(key: str) -> str:
    """A key without the mark that tells a hash from a key that looks like one."""
    return key.removeprefix(_CODED) if is_hash(key) else key


def insert_events(database: Database, tx: Transaction, app: str, events: Iterable[EventRow]) -> None:
    """
    Put events on record in a transaction that writes more than this, last of all; one that is there already is not added
    again.
    """
    given = {event.id: event for event in events}
    if not given:
        return
    database.lock_events(tx)
    for row in tx.rows(f"select id from outlast_events where id {database.among}", database.passed(given)):
        given.pop(row[0], None)
    tx.insert("outlast_events", f"{_FIELDS}, app", [_event(app, event) for event in given.values()])


def _event(app: str, event: EventRow) -> tuple[Any, ...]:
    return (event.id, event.name, event.at_us, event.run, storable(json.dumps(dict(event.data))), app)
