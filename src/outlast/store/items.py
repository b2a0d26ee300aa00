"""
Items and their attempts: written in batches, each in one transaction that carries its lease, and read in pages.

Writing the same batch twice changes nothing: rows are only ever inserted, counters are what the rows of this batch add
to them, and a row that is there already adds nothing. A batch is first written as if all its rows were new. Only if the
database reports a duplicate are the existing rows looked up, and the others written.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outlast.calls.records import add_to
from outlast.kernel.clock import here
from outlast.store.database import Duplicate
from outlast.store.faults import StoreRefused
from outlast.store.leases import fenced, lost
from outlast.store.letters import COLUMNS as LETTER
from outlast.store.letters import letter_values, note_failure
from outlast.store.records import (
    RUN_MOVES,
    UNTRIED,
    AttemptRow,
    Changes,
    Checkpoint,
    Failure,
    ItemRow,
    RunCounts,
    Settled,
    Standing,
    key_text,
    shard_of,
    storable,
    to_us,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from outlast.store.database import Database, Transaction
    from outlast.store.records import Homecoming, ItemStatus, Lease

_ITEM = "seq, key, status, stage, attempts, degraded, reason, warnings, spent, output, started, took, waits"
_FAILURE = "stop_reason, fingerprint, failure_class, failure_type"
_ATTEMPT = (
    "seq, stage, pass, number, outcome, started, took, error_class, error_type, error, delay, spent, waits, stop_reason"
)
_SHORT_ITEM = "seq, key, status, stage, attempts, degraded, started, took"
_SHORT_ATTEMPT = "seq, stage, pass, number, outcome, started, took"
_NOTHING = (None,) * 7
_CHECKPOINT = "seq, key, stage, version, output"
_COUNTED = ("succeeded", "skipped", "dlq", "failed")
_SHARD = "read, sink_offset, sink_mark, exhausted, succeeded, skipped, dlq, failed, degraded, spent"
_PAGE = 500


class Items:
    """The part of the store that knows items, attempts and checkpoints."""

    _database: Database
    app: str

    def __init__(self) -> None:
        self._keys: _Keys | None = None
        self._keys_lock = threading.Lock()

    def write(self, lease: Lease, changes: Changes) -> None:
        """
        All of the changes or none of them. `LeaseLost` if the lease is not the newest.

        An item that is finished stays as it is: the same again is ignored, another status is refused.
        """
        try:
            with self._database.writing(batches=True) as tx:
                self._write(tx, lease, changes)
        except Duplicate:  # some of it is there already, or it names a row twice
            with self._database.writing(batches=True) as tx:
                self._write(tx, lease, self._unwritten(tx, lease, changes))
        with self._keys_lock:
            if changes.undone:
                self._forget_keys()
            if self._keys is not None and self._keys.run == shard_of(lease.key)[0]:
                self._keys.add((item.seq, key_text(item.key), item.status) for item in changes.items)

    def _write(self, tx: Transaction, lease: Lease, changes: Changes) -> None:
        run, number = shard_of(lease.key)
        # Its own run comes last: that is under which name the transaction is found by whoever has to end it.
        homes = sorted(changes.homes, key=lambda home: shard_of(home.lease.key))
        shards = [fenced(self._database, tx, self.app, home.lease, _SHARD) for home in homes]
        shard = fenced(self._database, tx, self.app, lease, _SHARD)
        if changes.undone:
            shard = self._undo(tx, run, shard, changes.undone)
        self._insert_items(tx, run, changes.items)
        self._insert_attempts(tx, run, changes.attempts)
        checkpoints = [(run, *checkpoint) for checkpoint in changes.checkpoints]
        tx.insert("outlast_checkpoints", f"run, {_CHECKPOINT}", checkpoints)
        now = to_us(here.get().clock.now())
        # Each as of its own moment, not the batch's: that is the order in which people read them.
        letters = [letter_values(self.app, letter, letter.created_us) for letter in changes.dead_letters]
        tx.insert("outlast_dead_letters", LETTER, letters)
        self._resolve(tx, lease, changes, now)
        for home, before in zip(homes, shards, strict=True):
            self._bring_home(tx, home, before)
        sets = ", ".join(f"{column.strip()} = ?" for column in _SHARD.split(","))
        tx.execute(
            f"update outlast_progress set {sets} where run = ? and shard = ? and token = ?",
            *_advanced(shard, changes),
            *(run, number, lease.token),
        )

    def reopen_failed(self, lease: Lease) -> int:
        """
        Remove the ends of items that failed without a dead letter, so that the next pass runs them; how many. Their attempts
        stay, and `LeaseLost` is raised if the lease is not the newest.
        """
        run, number = shard_of(lease.key)
        with self._database.writing() as tx:
            before = fenced(self._database, tx, self.app, lease, _SHARD)
            after = self._remove_ends(tx, run, before, "failed")
            tx.execute(
                "update outlast_progress set failed = ?, spent = ? where run = ? and shard = ? and token = ?",
                *(after[7], after[9], run, number, lease.token),
            )
        with self._keys_lock:
            self._forget_keys()
        return int(before[7] - after[7])

    def _undo(self, tx: Transaction, run: int, shard: Any, seqs: Sequence[int]) -> Any:
        """Take back successes; the shard's row without them. One that is not there, or is no success, is left alone."""
        return self._remove_ends(tx, run, shard, "succeeded", seqs)

    def _remove_ends(
        self, tx: Transaction, run: int, shard: Any, status: ItemStatus, seqs: Sequence[int] | None = None
    ) -> Any:
        """Delete items with this end, of these numbers if they are given; the shard's row without them."""
        database = self._database
        among, passed = ("", ()) if seqs is None else (f"and seq {database.among} ", (database.passed(set(seqs)),))
        rows = tx.rows(
            f"delete from outlast_items where run = ? and status = ? {among}returning degraded, spent",
            *(run, status, *passed),
        )
        read, offset, mark, exhausted, *counts, degraded, spent, token = shard
        left: dict[str, float] = json.loads(spent)
        for _, one in rows:
            add_to(left, {name: -amount for name, amount in (json.loads(one) if one else {}).items()})
        degraded -= sum(bool(row[0]) for row in rows)
        kept = _json({name: amount for name, amount in left.items() if amount}) if rows else spent
        counts[_COUNTED.index(status)] -= len(rows)
        return (read, offset, mark, exhausted, *counts, degraded, kept, token)

    # Most rows have little to tell. They go without the columns that would be empty, which is twice as fast.

    def _insert_items(self, tx: Transaction, run: int, items: Sequence[ItemRow]) -> None:
        short: list[tuple[Any, ...]] = []
        long: list[tuple[Any, ...]] = []
        failed: list[tuple[Any, ...]] = []
        for item in items:
            (
                seq,
                key,
                status,
                stage,
                attempts,
                degraded,
                reason,
                warnings,
                spent,
                output,
                started,
                took,
                waits,
                failure,
            ) = item
            name = key_text(key)
            row = (run, seq, name, status, stage, attempts, degraded, started, took)
            if output is None and reason is None and not warnings and not spent and waits is None:
                short.append(row)
            else:
                told = None if reason is None else storable(reason)
                texts = (_json(value) if value else None for value in (warnings, spent, waits))
                whole = (*row, output, told, *texts)
                if failure is None:
                    long.append(whole)
                else:
                    failed.append((*whole, *(text and storable(text) for text in failure)))
        columns = f"run, {_SHORT_ITEM}, output, reason, warnings, spent, waits"
        tx.insert("outlast_items", f"run, {_SHORT_ITEM}", short)
        tx.insert("outlast_items", columns, long)
        tx.insert("outlast_items", f"{columns}, {_FAILURE}", failed)

    def _insert_attempts(self, tx: Transaction, run: int, attempts: Sequence[AttemptRow]) -> None:
        short: list[tuple[Any, ...]] = []
        long: list[tuple[Any, ...]] = []
        for attempt in attempts:
            if attempt[7:] == _NOTHING:
                short.append((run, *attempt[:7]))
            else:
                texts = (text and storable(text) for text in attempt[7:10])
                told = (_json(value) if value else None for value in attempt[11:13])
                long.append((run, *attempt[:7], *texts, attempt.delay_us, *told, attempt.stop_reason))
        tx.insert("outlast_attempts", f"run, {_SHORT_ATTEMPT}", short)
        tx.insert("outlast_attempts", f"run, {_ATTEMPT}", long)

    def _resolve(self, tx: Transaction, lease: Lease, changes: Changes, now: int) -> None:
        if not changes.resolved:
            return
        (claim,) = tx.row("select id from outlast_runs where number = ?", shard_of(lease.key)[0])
        # In order of their ids, as everywhere, so that two transactions never wait for each other.
        for settled in sorted(Settled(*each) for each in changes.resolved):
            letter, status, failure, reason, seq = settled
            # What a sink could not keep was resolved with its item, and is taken back with it.
            claimed = ("replaying", "resolved" if seq in changes.undone else "replaying")
            tried = reason is None
            counts = tried and not (changes.undone and seq in changes.undone)  # which has counted already
            done = tx.execute(
                "update outlast_dead_letters set status = ?, moved = ?, reason = coalesce(?, reason), replays = replays + ?, "
                "last_attempt = case when ? = 1 and ? = 'resolved' then ? else last_attempt end "
                "where app = ? and id = ? and status in (?, ?) and claimed_by = ?",
                *(status, now, reason and storable(reason), int(counts)),
                *(int(tried), status, now, self.app, letter, *claimed, claim),
            )
            if done.rowcount != 1:  # somebody has opened it since, and may have done its work
                raise lost(lease)
            if failure is not None:
                note_failure(tx, letter, failure, now)

    def _bring_home(self, tx: Transaction, home: Homecoming, shard: Any) -> None:
        """
        The items that have become something after all, in the run they come from: rows, counts, sink, and what is said
        of it.
        """
        run, number = shard_of(home.lease.key)
        read, offset, mark, exhausted, *counts, degraded, _, _ = shard
        before = _run_counts(read, counts, degraded)
        moved = dict.fromkeys(_COUNTED, 0)
        for item in home.items:
            # What could not be read was no stage's attempt in that run, and has none on record.
            done = tx.execute(
                "update outlast_items set attempts = case when reason like 'source: %' then 0 else attempts end, status = ?, degraded = ?, reason = ?, warnings = coalesce(?, warnings), output = ?, "
                "stop_reason = null, fingerprint = null, failure_class = null, failure_type = null where run = ? and seq = ? and status = 'dlq'",
                *(item.status, item.degraded, item.reason and storable(item.reason)),
                *(_json(item.warnings) if item.warnings else None, item.output, run, item.seq),
            )
            moved[item.status] += done.rowcount
            moved["dlq"] -= done.rowcount
            degraded += item.degraded and done.rowcount
        for seq, _ in home.undone:
            back = "status = 'dlq', reason = 'its output could not be kept', output = null"
            rows = tx.rows(
                f"update outlast_items set {back} where run = ? and seq = ? and status = 'succeeded' returning degraded",
                *(run, seq),
            )
            moved["dlq"] += len(rows)
            moved["succeeded"] -= len(rows)
            degraded -= sum(bool(row[0]) for row in rows)
        for again in home.failed:
            # The reason of one that could not be read stays: it says that no stage of that run has seen it.
            tx.execute(
                "update outlast_items set output = ? where run = ? and seq = ? and status = 'dlq'",
                *(again.output, run, again.seq),
            )
            tx.execute(
                "update outlast_items set reason = ?, stop_reason = ?, fingerprint = ?, failure_class = ?, failure_type = ? "
                "where run = ? and seq = ? and status = 'dlq' and (reason is null or reason not like 'source: %')",
                *(text and storable(text) for text in (again.reason, *again.failure)),
                *(run, again.seq),
            )
        counts = [count + moved[name] for count, name in zip(counts, _COUNTED, strict=True)]
        tx.execute(
            "update outlast_progress set sink_offset = ?, sink_mark = ?, succeeded = ?, skipped = ?, dlq = ?, failed = ?, degraded = ? "
            "where run = ? and shard = ?",
            *(*_moved(offset, mark, home), *counts, degraded, run, number),
        )
        if not any(moved.values()):
            return
        status, reason, why, others = tx.row(
            "select status, reason, why, elsewhere from outlast_runs where number = ?", run
        )
        said = Standing(status, reason, why, json.loads(others) if others else {})
        now = home.judge(said, before, _run_counts(read, counts, degraded), bool(exhausted))
        if now != said:
            if now.status != said.status and now.status not in RUN_MOVES[said.status]:
                message = f"a run that is {said.status} cannot become {now.status}: this is a defect in the program that writes."
                raise StoreRefused(message, error_class="code_error")
            tx.execute(
                "update outlast_runs set status = ?, reason = ?, why = ?, elsewhere = ? where number = ?",
                *(now.status, now.reason and storable(now.reason), storable(now.why)),
                *(_json(now.elsewhere) if now.elsewhere else None, run),
            )

    def _unwritten(self, tx: Transaction, lease: Lease, changes: Changes) -> Changes:
        """What of the changes is not on record yet."""
        run, passed, among = shard_of(lease.key)[0], self._database.passed, self._database.among
        fenced(self._database, tx, self.app, lease)
        seqs = passed({row.seq for row in (*changes.items, *changes.attempts)})
        items = dict(tx.rows(f"select seq, status from outlast_items where run = ? and seq {among}", run, seqs))
        for item in changes.items:
            if items.get(item.seq, item.status) != item.status:
                message = f"item {item.seq} is finished as {items[item.seq]!r} and cannot become {item.status!r}: this is a defect in the program that writes."
                raise StoreRefused(message, error_class="code_error")
        attempts = {
            tuple(row)
            for row in tx.rows(
                f"select seq, stage, pass, number from outlast_attempts where run = ? and seq {among}",
                run,
                seqs,
            )
        }
        letters = self._known(tx, "outlast_dead_letters", (letter.id for letter in changes.dead_letters))
        # A checkpoint is the one thing that may be made again, by changed code.
        for checkpoint in changes.checkpoints:
            tx.execute(
                "delete from outlast_checkpoints where run = ? and seq = ? and stage = ?",
                *(run, checkpoint.seq, checkpoint.stage),
            )
        return Changes(
            items=[item for item in changes.items if item.seq not in items],
            attempts=[attempt for attempt in changes.attempts if attempt[:4] not in attempts],
            checkpoints=changes.checkpoints,
            dead_letters=[letter for letter in changes.dead_letters if letter.id not in letters],
            # Settled and brought home in the transaction that wrote its item.
            resolved=[each for each in changes.resolved if Settled(*each).seq not in items],
            homes=[
                replace(
                    home,
                    items=[item for item in home.items if item.replayed not in items],
                    failed=[again for again in home.failed if again.replayed not in items],
                )
                for home in changes.homes
            ],
            read=changes.read,
            sink_offset=changes.sink_offset,
            sink_mark=changes.sink_mark,
            source_exhausted=changes.source_exhausted,
        )

    def _known(self, tx: Transaction, table: str, ids: Iterable[str]) -> set[str]:
        passed = self._database.passed(ids)
        return {row[0] for row in tx.rows(f"select id from {table} where id {self._database.among}", passed)}

    def untried(self, run_number: int) -> set[int]:
        """The numbers of a replay's items that were not tried: their dead letters cannot be replayed as things are."""
        rows = self._database.rows(
            "select seq from outlast_items where run = ? and status in ('dlq', 'failed') and attempts = 0 and reason like ?",
            *(run_number, f"{UNTRIED}%"),
        )
        return {seq for (seq,) in rows}

    # -- what resuming needs -------------------------------------------------------------------------------------------

    def finished(self, run_number: int, first_seq: int, count: int) -> list[tuple[int, str, ItemStatus]]:
        """Those of `count` items from `first_seq` on that are finished, in order."""
        rows = self._database.rows(
            "select seq, key, status from outlast_items where run = ? and seq >= ? and seq < ? order by seq",
            *(run_number, first_seq, first_seq + count),
        )
        return [(seq, key, status) for seq, key, status in rows]

    def find_keys(self, run_number: int, keys: Iterable[str]) -> dict[str, tuple[int, ItemStatus]]:
        """
        Where the finished items with these keys are, for a source that comes in another order; the first of those with
        one key.

        The first call reads all keys of the run, once.
        """
        with self._keys_lock:
            if self._keys is None or self._keys.run != run_number:
                self._forget_keys()
                self._keys = _Keys(run_number)
                every = "select seq, key, status from outlast_items where run = ? and seq > ? order by seq limit 10000"
                self._keys.add(self._paged(every, run_number))
            return self._keys.find(keys)

    def keys_and_ends(self, run_number: int) -> Iterator[tuple[str, ItemStatus]]:
        """The key of each finished item of a run, and how it has ended. Nothing of that is kept in memory."""
        every = "select seq, key, status from outlast_items where run = ? and seq > ? order by seq limit 10000"
        return ((key, status) for _, key, status in self._paged(every, run_number))

    def _paged(self, sql: str, run_number: int) -> Iterator[Any]:
        """The rows of a query by run and by the `seq` before its page, which each of them begins with."""
        last = -1
        while rows := self._database.rows(sql, run_number, last):
            yield from rows
            last = rows[-1][0]

    def _forget_keys(self) -> None:
        if self._keys is not None:
            self._keys.close()
            self._keys = None

    def checkpoints_of(
        self, run_number: int, seqs: Iterable[int], *, before: int | None = None
    ) -> dict[int, Checkpoint]:
        """
        The checkpoint of the furthest stage of each of these items that has one; with `before`, of the stages before
        that one.
        """
        condition, values = ("", ()) if before is None else ("and stage < ? ", (before,))
        rows = self._database.rows(
            f"select {_CHECKPOINT} from outlast_checkpoints where run = ? and seq {self._database.among} "
            f"{condition}order by seq, stage",
            *(run_number, self._database.passed(seqs), *values),
        )
        return {row[0]: Checkpoint(*row) for row in rows}

    def attempted(self, run_number: int, seqs: Iterable[int]) -> dict[int, tuple[int, dict[str, float]]]:
        """How often these items were attempted, and what that has cost; those that never were are not in it."""
        rows = self._database.rows(
            f"select seq, spent from outlast_attempts where run = ? and seq {self._database.among}",
            *(run_number, self._database.passed(seqs)),
        )
        found: dict[int, tuple[int, dict[str, float]]] = {}
        for seq, text in rows:
            count, spent = found.get(seq, (0, {}))
            if text:
                add_to(spent, json.loads(text))
            found[seq] = (count + 1, spent)
        return found

    # -- what people read ----------------------------------------------------------------------------------------------

    def items(
        self, run_number: int, status: ItemStatus | None = None, after: int | None = None, limit: int = 100
    ) -> list[ItemRow]:
        """Finished items in order; `after` is the `seq` of the last one of the page before."""
        where = "" if status is None else "and status = ? "
        rows = self._database.rows(
            f"select {_ITEM}, {_FAILURE} from outlast_items where run = ? and seq > ? {where}order by seq limit ?",
            *(run_number, -1 if after is None else after, *(() if status is None else (status,)), limit),
        )
        return [_item(row) for row in rows]

    def attempts(
        self,
        run_number: int,
        item: int | str | None = None,
        *,
        after: AttemptRow | None = None,
        limit: int = 1000,
    ) -> list[AttemptRow]:
        """
        Attempts in the order of items, stages and time; of one item, by its `seq` or its key. `after` is the last one
        of the page before.
        """
        where, values = "", list[Any]()
        with self._database.reading() as tx:
            if isinstance(item, str):
                found = tx.row(
                    "select min(seq) from outlast_items where run = ? and key = ?", run_number, key_text(item)
                )
                item = -1 if found[0] is None else int(found[0])
            if item is not None:
                where += "and seq = ? "
                values.append(item)
            if after is not None:
                where += "and (seq, stage, pass, number) > (?, ?, ?, ?) "
                values += after[:4]
            rows = tx.rows(
                f"select {_ATTEMPT} from outlast_attempts where run = ? {where}order by seq, stage, pass, number limit ?",
                *(run_number, *values, limit),
            )
        return [_attempt(row) for row in rows]

    def outputs(self, run_number: int) -> Iterator[bytes]:
        """What the items that succeeded became, in order; nothing for a run with a sink of its own."""
        succeeded = (
            "select seq, output from outlast_items "
            f"where run = ? and seq > ? and status = 'succeeded' and output is not null order by seq limit {_PAGE}"
        )
        return (bytes(output) for _, output in self._paged(succeeded, run_number))


def _item(row: Any) -> ItemRow:
    item = ItemRow(*row[:13])
    return item._replace(
        degraded=bool(item.degraded),
        warnings=tuple(json.loads(row[7])) if row[7] else (),
        spent=json.loads(row[8]) if row[8] else {},
        output=None if item.output is None else bytes(item.output),
        waits=json.loads(row[12]) if row[12] else None,
        failure=Failure(*row[13:]) if any(row[13:]) else None,
    )


def _attempt(row: Any) -> AttemptRow:
    attempt = AttemptRow(*row)
    if row[11] is None and row[12] is None:
        return attempt
    spent, waits = (value and json.loads(value) for value in row[11:13])
    return attempt._replace(spent=spent, waits=waits)


def _json(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"), default=dict, ensure_ascii=False)
    # Half of a surrogate pair is no JSON to PostgreSQL, even escaped.
    return text if text.isascii() else storable(text)


def _advanced(shard: Any, changes: Changes) -> tuple[Any, ...]:
    """The shard's row after these changes. Its items are all new."""
    read, offset, mark, exhausted, *counts, degraded, spent, _ = shard
    finished: dict[str, int] = dict.fromkeys(_COUNTED, 0)
    added: dict[str, float] = {}
    for item in changes.items:
        finished[item[2]] += 1
        degraded += item[5]
        if item[8]:
            add_to(added, item[8])
    if added:
        add_to(added, json.loads(spent))
        spent = _json(added)
    return (
        max(read, changes.read),
        *_moved(offset, mark, changes),
        bool(exhausted) or changes.source_exhausted,
        *(count + finished[status] for count, status in zip(counts, _COUNTED, strict=True)),
        degraded,
        spent,
    )


def _moved(offset: int | None, mark: str | None, news: Changes | Homecoming) -> tuple[int | None, str | None]:
    """How far the sink counts now, and its mark there."""
    if news.sink_offset is None or (offset is not None and news.sink_offset < offset):
        return offset, mark
    return news.sink_offset, news.sink_mark


def _run_counts(read: int, counts: Sequence[int], degraded: int) -> RunCounts:
    succeeded, skipped, dlq, failed = counts
    return RunCounts(read, succeeded, skipped, dlq, failed, degraded)


class _Keys:
    """
    The keys of one run's finished items. There may be millions, so they are in a temporary database, which closing
    deletes.
    """

    def __init__(self, run: int) -> None:
        self.run = run
        self._found = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._found.execute("create table keys (key text primary key, seq integer, status text) without rowid")

    def add(self, rows: Iterable[tuple[int, str, ItemStatus]]) -> None:
        self._found.execute("begin")
        self._found.executemany(
            "insert into keys (seq, key, status) values (?, ?, ?) on conflict (key) do nothing", rows
        )
        self._found.execute("commit")

    def find(self, keys: Iterable[str]) -> dict[str, tuple[int, ItemStatus]]:
        names = {key_text(key): key for key in keys}
        rows = self._found.execute(
            "select key, seq, status from keys where key in (select value from json_each(?))", (json.dumps([*names]),)
        )
        return {names[key]: (seq, status) for key, seq, status in rows}

    def close(self) -> None:
        self._found.close()
