"""
Dead letters: found, grouped, edited and moved from status to status, by compare-and-set and always in the order of
their ids.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from outlast.calls.internal import keep_trying
from outlast.kernel.clock import here
from outlast.policy import RetryPolicy
from outlast.store.database import Duplicate
from outlast.store.filters import in_sql
from outlast.store.idempotency import forget_all
from outlast.store.leases import end, fenced
from outlast.store.records import (
    LETTER_MOVES,
    Claimant,
    DeadLetterRow,
    Lease,
    LetterGroup,
    LetterStat,
    from_us,
    key_text,
    shard_key,
    shard_of,
    storable,
    to_us,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Unpack

    from outlast.store.database import Database, Transaction
    from outlast.store.filters import LetterFilter
    from outlast.store.records import LetterFailure, LetterStatus

_FIELDS = (
    "id, run, seq, pipeline, stage, item_key, kind, payload, error, error_type, error_class, tier, fingerprint, attempts, "
    "first_failed, last_attempt, created, status, replays, reason, metadata, original, moved, stop_reason, claimed_by"
)
COLUMNS = f"{_FIELDS}, app"
_NAMES = tuple(DeadLetterRow.__dataclass_fields__)
_CHUNK = 5000  # letters moved in one transaction
# Of two that add the same letter at once, one finds it there when it tries again.
_AT_ONCE = RetryPolicy(max_attempts=100, backoff="fixed", initial_delay=0.0, jitter=0.0, on_errors=(Duplicate,))

#: The newest change first, as people read them; or by when they were made, which never changes while somebody reads on.
Order = Literal["updated", "created"]
_ORDERS = {"updated": "moved", "created": "created"}
# Who has a letter that is replayed. Before there was a column for it, the reason named the replay.
_CLAIM = "coalesce(claimed_by, reason, '')"
UNRESOLVED = " and status in ('open', 'replaying', 'archived')"  # what a replay has mended is no failure any more
EARLIER = "earlier_failures"  # in the metadata
MOST_EARLIER = 20
CLAIMED = "replayed by "  # and its key: for people, and for letters without a column


class Letters:
    """The part of the store that knows dead letters."""

    _database: Database
    app: str

    def letters(
        self,
        *,
        after: DeadLetterRow | None = None,
        limit: int = 100,
        order: Order = "updated",
        abandoned: Sequence[str] = (),
        **where: Unpack[LetterFilter],
    ) -> list[DeadLetterRow]:
        """
        The newest first; `after` is the last one of the page before. Letters with the claim of an `abandoned` replay
        count as open.
        """
        condition, values = self._where(where, abandoned)
        column = _ORDERS[order]
        if after is not None:
            condition += f" and ({column}, id) < (?, ?)"
            values += [after.updated_us if order == "updated" else after.created_us, after.id]
        # The ids come from an index alone; only the rows of this page are read.
        ids = f"select id from outlast_dead_letters where {condition} order by {column} desc, id desc limit ?"
        rows = self._database.rows(
            f"select {_FIELDS} from outlast_dead_letters where id in ({ids}) order by {column} desc, id desc",
            *(*values, limit),
        )
        return [_letter(row) for row in rows]

    def letter_owners(
        self, *, made_before: datetime | None = None, abandoned: Sequence[str] = (), **where: Unpack[LetterFilter]
    ) -> list[tuple[str, str, str | None]]:
        """Id, pipeline and run of all that fit, the first made first: without what they hold."""
        condition, values = self._where(where, abandoned)
        if made_before is not None:
            condition += " and created <= ?"
            values.append(to_us(made_before))
        rows = self._database.rows(
            f"select id, pipeline, run from outlast_dead_letters where {condition} order by created, id", *values
        )
        return [(row[0], row[1], row[2]) for row in rows]

    def job_letters(self, **where: Unpack[LetterFilter]) -> list[tuple[str, str]]:
        """Of letters of jobs that fit: the id of the letter and that of the job; the first made first."""
        condition, values = self._where(where)
        with self._database.reading() as tx:
            rows = tx.rows(
                f"select id, item_key, metadata from outlast_dead_letters where {condition} and kind = 'job' order by created, id",
                *values,
            )
        return [(row[0], row[1]) for row in rows if "queue" in json.loads(row[2])]

    def letter(self, id: str, /) -> DeadLetterRow | None:
        """The dead letter of this id."""
        row = self._database.row(f"select {_FIELDS} from outlast_dead_letters where app = ? and id = ?", self.app, id)
        return None if row is None else _letter(row)

    def letter_of(self, run: str, seq: int) -> DeadLetterRow | None:
        """The dead letter of this item of a run."""
        row = self._database.row(
            f"select {_FIELDS} from outlast_dead_letters where app = ? and run = ? and seq = ? order by created limit 1",
            *(self.app, run, seq),
        )
        return None if row is None else _letter(row)

    def letters_by_id(self, ids: Iterable[str], /) -> dict[str, DeadLetterRow]:
        """Those of these ids that are there."""
        passed = self._database.passed(ids)
        rows = self._database.rows(
            f"select {_FIELDS} from outlast_dead_letters where app = ? and id {self._database.among}",
            *(self.app, passed),
        )
        return {letter.id: letter for letter in map(_letter, rows)}

    def add_letters(self, letters: Iterable[DeadLetterRow]) -> int:
        """Add dead letters that no run made, such as imported ones; how many were not there yet."""
        given = {letter.id: letter for letter in letters}
        return keep_trying(lambda: self._add(given), _AT_ONCE, inf)

    def _add(self, given: dict[str, DeadLetterRow]) -> int:
        database, now = self._database, to_us(here.get().clock.now())
        with database.writing() as tx:
            rows = tx.rows(f"select id from outlast_dead_letters where id {database.among}", database.passed(given))
            known = {row[0] for row in rows}
            new = [letter_values(self.app, given[id], now) for id in sorted(given) if id not in known]  # noqa: A001
            tx.insert("outlast_dead_letters", COLUMNS, new)
        return len(new)

    def groups(
        self, *, limit: int = 100, abandoned: Sequence[str] = (), **where: Unpack[LetterFilter]
    ) -> list[LetterGroup]:
        """
        The largest groups of dead letters with one fingerprint at one stage; of open ones, unless a status is named.
        """
        where.setdefault("status", "open")
        return self._groups(where, abandoned, limit)

    def failed_groups(self, run: str, *, limit: int = 100) -> list[LetterGroup]:
        """As `groups`, of one run: all that no replay has mended, whether somebody is to look at them or not."""
        return self._groups({"run": run}, (), limit, UNRESOLVED)

    def _groups(self, where: LetterFilter, abandoned: Sequence[str], limit: int, more: str = "") -> list[LetterGroup]:
        condition, values = self._where(where, abandoned)
        condition += more
        chosen = condition, values
        with self._database.reading() as tx:
            groups = tx.rows(
                "select fingerprint, pipeline, stage, count(*), min(first_failed), max(last_attempt) "
                f"from outlast_dead_letters where {condition} group by fingerprint, pipeline, stage "
                "order by count(*) desc, fingerprint, pipeline, stage limit ?",
                *(*values, limit),
            )
            return [self._group(tx, group, *chosen) for group in groups]

    def _group(self, tx: Transaction, group: Any, condition: str, values: Sequence[Any]) -> LetterGroup:
        fingerprint, pipeline, stage, count, first, last = group
        newest = tx.rows(
            "select error_class, error_type, error, item_key from outlast_dead_letters "
            f"where {condition} and fingerprint = ? and pipeline = ? and stage = ? order by created desc, id desc limit 3",
            *(*values, fingerprint, pipeline, stage),
        )
        error_class, error_type, error, _ = newest[0] if newest else ("", "", "", "")  # moved on in the meantime
        samples = tuple(dict.fromkeys(row[3] for row in newest))
        return LetterGroup(
            fingerprint, pipeline, stage, error_class, error_type, error, count, samples, from_us(first), from_us(last)
        )

    def open_letters(self) -> dict[str, int]:
        """How many are open, by pipeline; from an index alone."""
        self._database.present()  # a file that was deleted could still be read
        rows = self._database.rows(
            "select pipeline, count(*) from outlast_dead_letters where app = ? and status = 'open' group by pipeline",
            self.app,
        )
        return {row[0]: int(row[1]) for row in rows}

    def stats(self, *, abandoned: Sequence[str] = ()) -> list[LetterStat]:
        """How many there are, by pipeline, stage and status; those that an abandoned replay has claimed are open."""
        column, values = "status", list[Any]()
        if abandoned:
            column = f"case when status = 'replaying' and {_CLAIM} {self._database.among} then 'open' else status end"
            values.append(self._database.passed(abandoned))
        rows = self._database.rows(
            "select pipeline, stage, shown, count(*), min(created), max(created) from "
            f"(select pipeline, stage, {column} as shown, created from outlast_dead_letters where app = ?) letters "
            "group by shown, pipeline, stage order by pipeline, stage, shown",
            *(*values, self.app),
        )
        return [
            LetterStat(pipeline, stage, status, count, from_us(oldest), from_us(newest))
            for pipeline, stage, status, count, oldest, newest in rows
        ]

    def edit_letter(
        self,
        id: str,
        payload: bytes,
        reason: str,
        expect: LetterStatus = "open",
        *,
        by: str = "",
    ) -> DeadLetterRow | None:
        """
        Replace the payload, if the letter is in the expected status; None if not. The first payload is kept, with who,
        when and why.
        """
        now = here.get().clock.now()
        database = self._database
        with database.writing() as tx:
            row = tx.row(
                f"select {_FIELDS} from outlast_dead_letters where app = ? and id = ? and status = ? {database.for_update}",
                *(self.app, id, expect),
            )
            if row is None:
                return None
            letter = _letter(row)
            edit = {"at": now.isoformat(), "by": storable(by), "reason": storable(reason)}
            metadata = {**letter.metadata, "edits": [*letter.metadata.get("edits", ()), edit]}
            tx.execute(
                "update outlast_dead_letters set payload = ?, original = coalesce(original, payload), metadata = ?, moved = ? where id = ?",
                *(payload, json.dumps(metadata), to_us(now), id),
            )
        return self.letter(id)

    def settle_letter(self, id: str, how: str, reason: str, *, by: str = "") -> DeadLetterRow | None:
        """
        Record whether the work of an open letter, whose outcome is unknown, was ``done``; a letter of work that was done is
        resolved. None if the letter is not open.
        """
        now, database = here.get().clock.now(), self._database
        with database.writing() as tx:
            row = tx.row(
                f"select {_FIELDS} from outlast_dead_letters where app = ? and id = ? and status = 'open' {database.for_update}",
                *(self.app, id),
            )
            if row is None:
                return None
            settled = {"as": how, "at": now.isoformat(), "by": storable(by), "reason": storable(reason)}
            tx.execute(
                "update outlast_dead_letters set status = ?, metadata = ?, reason = ?, moved = ? where id = ?",
                *("resolved" if how == "done" else "open", json.dumps({**_letter(row).metadata, "settled": settled})),
                *(storable(reason) or None, to_us(now), id),
            )
        return self.letter(id)

    def move_letters(
        self,
        ids: Iterable[str] | None = None,
        *,
        from_: LetterStatus = "open",
        to: LetterStatus,
        reason: str = "",
        **where: Unpack[LetterFilter],
    ) -> int:
        """Move dead letters, as `claim_letters` does; how many."""
        return len(self.claim_letters(ids, from_=from_, to=to, reason=reason, **where))

    def claim_letters(
        self,
        ids: Iterable[str] | None = None,
        *,
        from_: LetterStatus = "open",
        to: LetterStatus = "replaying",
        reason: str = "",
        limit: int | None = None,
        **where: Unpack[LetterFilter],
    ) -> list[str]:
        """
        Move dead letters from one status to another; the ids of those that were moved, by this call and no other.

        Which: those of `ids`, of the filter, or of both; at most `limit` of them, the lowest ids first.
        """
        if to not in LETTER_MOVES[from_]:
            message = f"expected a dead letter that is {from_} to become {_choices(LETTER_MOVES[from_])}, got: {to!r}."
            raise ValueError(message)
        condition, values = self._where(where | {"status": from_})
        if ids is not None:
            condition += f" and id {self._database.among}"
            values.append(self._database.passed(ids))
        bound = "" if limit is None else f" limit {int(limit)}"
        rows = self._database.rows(f"select id from outlast_dead_letters where {condition} order by id{bound}", *values)
        chunks = ([row[0] for row in rows[first : first + _CHUNK]] for first in range(0, len(rows), _CHUNK))
        return [id for chunk in chunks for id in self._move(chunk, from_, to, reason)]  # noqa: A001

    def put_away(self, before: datetime, reason: str, *, limit: int) -> list[str]:
        """
        Archive open letters to which nothing has happened since then, at most so many; their ids. Not those of what could not be
        undone: it still stands, and a letter that is put away says that somebody has undone it.
        """
        rows = self._database.rows(
            "select id from outlast_dead_letters where app = ? and status = 'open' and moved < ? and kind <> 'compensation' "
            "order by moved, id limit ?",
            *(self.app, to_us(before), limit),
        )
        chunks = ([row[0] for row in rows[first : first + _CHUNK]] for first in range(0, len(rows), _CHUNK))
        return [id for chunk in chunks for id in self._move(chunk, "open", "archived", reason)]  # noqa: A001

    def _move(self, ids: list[str], from_: str, to: str, reason: str) -> list[str]:
        database, now = self._database, to_us(here.get().clock.now())
        # The rows are locked in the order of their ids, and looked at again once they are. The expressions keep the
        # planner from an index on app and status: the ids are few, and those may be all there are.
        mine = f"select id from outlast_dead_letters where app || '' = ? and id {database.among} and status || '' = ? order by id {database.for_update}"
        with database.writing() as tx:
            moved = tx.rows(
                f"update outlast_dead_letters set status = ?, moved = ?, reason = ?, claimed_by = null where id in ({mine}) returning id, kind",
                *(to, now, storable(reason) or None, self.app, database.passed(ids), from_),
            )
            if to in {"archived", "resolved"}:
                for letter, kind in sorted(moved):
                    if kind == "compensation":
                        self._undone_by_hand(tx, letter)
        return sorted(row[0] for row in moved)

    def _undone_by_hand(self, tx: Transaction, letter: str) -> None:
        """
        Somebody has put away the letter of what could not undo a step: it was undone by hand, and what the run has done for it
        is remembered no more. While that is tried again, it is not: the undoing ends that.
        """
        rows = tx.rows(
            "select r.pipeline, s.step, r.id from outlast_dead_letters l join outlast_runs r on r.id = l.run "
            "join outlast_flow_steps s on s.run = r.number and s.step = l.stage and s.deed = 'undo' "
            "where l.id = ? and s.letter = l.id and s.state = 'failed'",
            letter,
        )
        for pipeline, step, holder in rows:
            forget_all(tx, self.app, f"{pipeline}.{step}", holder, state="succeeded")

    # -- replays -------------------------------------------------------------------------------------------------------

    def claim_for_replay(self, lease: Lease, run: str, ids: Sequence[str], *, reason: str, again: bool = False) -> int:
        """
        Claim open letters for the replay that holds the lease, and put them on its list in this order; how many were
        open. With `again` they are on its list already. `LeaseLost` if the lease is not the newest.
        """
        database, now = self._database, to_us(here.get().clock.now())
        number, count = shard_of(lease.key)[0], 0
        for first in range(0, len(ids), _CHUNK):
            chunk = ids[first : first + _CHUNK]
            mine = f"select id from outlast_dead_letters where app || '' = ? and id {database.among} and status || '' = 'open' order by id {database.for_update}"
            with database.writing() as tx:
                fenced(database, tx, self.app, lease)
                rows = tx.rows(
                    f"update outlast_dead_letters set status = 'replaying', claimed_by = ?, moved = ?, reason = ? where id in ({mine}) returning id",
                    *(run, now, storable(reason), self.app, database.passed(chunk)),
                )
                claimed = {row[0] for row in rows}
                if not again:
                    last = tx.row("select max(seq) from outlast_replays where run = ?", number)[0]
                    begin = 0 if last is None else last + 1
                    listed = [(number, begin + n, id) for n, id in enumerate(id for id in chunk if id in claimed)]  # noqa: A001
                    tx.insert("outlast_replays", "run, seq, letter", listed)
            count += len(claimed)
        return count

    def replay_list(
        self, run_number: int, *, after: int = -1, limit: int | None = None, unfinished: bool = True
    ) -> list[tuple[int, str]]:
        """
        What a replay is to do: the numbers of its items, each with its dead letter, in order; only what is not finished
        yet, unless told.
        """
        left = "and not exists (select 1 from outlast_items done where done.run = listed.run and done.seq = listed.seq)"
        bound = "" if limit is None else f" limit {int(limit)}"
        rows = self._database.rows(
            f"select seq, letter from outlast_replays listed where run = ? and seq > ? {left if unfinished else ''} order by seq{bound}",
            *(run_number, after),
        )
        return [(seq, letter) for seq, letter in rows]

    def replays_of(self, letter: DeadLetterRow) -> list[tuple[str, int]]:
        """
        The replays that had this letter on their list, the first one first: the id of each, and the number of the item
        there.
        """
        rows = self._database.rows(
            "select runs.id, listed.seq from outlast_runs runs join outlast_replays listed on listed.run = runs.number "
            "where runs.app = ? and runs.pipeline = ? and runs.kind = 'replay' and listed.letter = ? order by runs.started, runs.number",
            *(self.app, letter.pipeline, letter.id),
        )
        return [(run, seq) for run, seq in rows]

    def free_letters(self, lease: Lease, run: str, reason: str) -> int:
        """
        Open the letters again that a replay has claimed and not settled; how many. `LeaseLost` if the lease is not the
        newest.
        """
        with self._database.writing() as tx:
            fenced(self._database, tx, self.app, lease)
            return self._open_claimed(tx, run, reason)

    def claimants(self) -> list[Claimant]:
        """Whoever has claimed letters that are not settled; letters of jobs that were requeued wait for those."""
        database = self._database
        with database.reading() as tx:
            claims: list[str] = [
                row[0]
                for row in tx.rows(
                    f"select distinct {_CLAIM} from outlast_dead_letters where app = ? and status = 'replaying' "
                    f"and not (kind = 'job' and {_CLAIM} like 'job %')",
                    self.app,
                )
            ]
            if not claims:
                return []
            keys = {claim.removeprefix(CLAIMED): claim for claim in claims if claim.startswith(CLAIMED)}
            rows = tx.rows(
                f"select id, run_key, number, shard, token, owner, until, ttl, until > {database.now} from outlast_runs "
                "left join outlast_shards on run = number and shard = 0 "
                f"where app = ? and kind = 'replay' and (id {database.among} or run_key {database.among})",
                *(self.app, database.passed(claims), database.passed(keys)),
            )
        found: dict[str, Claimant] = {}
        for id, key, number, shard, token, owner, until, ttl, held in rows:  # noqa: A001
            lease = Lease("run", shard_key(number, shard), token, owner, from_us(until), ttl) if held else None
            for claim in claims:
                if claim in {id, keys.get(key)}:
                    found[claim] = Claimant(claim, id, number, lease)
        return [found.get(claim) or Claimant(claim, None, None, None) for claim in claims]

    def release(self, claimant: Claimant, reason: str, why: str) -> int:
        """
        Open the letters again of a claimant that is no more, and end its lease, so that it can write nothing even if it
        comes back; how many. None if it has been heard of since.
        """
        database, number = self._database, claimant.number
        with database.writing() as tx:
            if number is not None:
                token = -1 if claimant.lease is None else claimant.lease.token
                if not end(database, tx, self.app, "run", shard_key(number, 0), token):
                    return 0
                tx.execute(
                    "update outlast_runs set status = 'interrupted', why = ? where number = ? and status = 'running'",
                    *(storable(why), number),
                )
            return self._open_claimed(tx, claimant.claim, reason)

    def _open_claimed(self, tx: Transaction, claim: str, reason: str) -> int:
        now = to_us(here.get().clock.now())
        mine = (
            f"select id from outlast_dead_letters where app = ? and status = 'replaying' and {_CLAIM} = ? "
            f"order by id {self._database.for_update}"
        )
        done = tx.execute(
            f"update outlast_dead_letters set status = 'open', moved = ?, reason = ? where id in ({mine})",
            *(now, storable(reason), self.app, claim),
        )
        return int(done.rowcount)

    def _where(self, where: LetterFilter, abandoned: Sequence[str] = ()) -> tuple[str, list[Any]]:
        plain, more, given, status = where.copy(), "", list[Any](), where.get("status")
        if abandoned and status in {"open", "replaying"}:
            del plain["status"]
            given_up = f"(status = 'replaying' and {_CLAIM} {self._database.among})"
            more = (
                f" and (status = 'open' or {given_up})"
                if status == "open"
                else f" and status = 'replaying' and not {given_up}"
            )
            given.append(self._database.passed(abandoned))
        run = where.get("run")
        if run is not None and (below := self._runs_below(run)):
            del plain["run"]
            more += f" and run {self._database.among}"
            given.append(self._database.passed([run, *below]))
        sql, values = in_sql(plain, self._database.lower, here.get().clock.now())
        return f"app = ?{more}{sql}", [self.app, *given, *values]

    def _runs_below(self, run: str) -> list[str]:
        """
        The runs over rows and items of the steps of a flow's run, none of another run: whose letters are those of the flow,
        too. A run over items is asked for as before, by the index that has its letters in order.
        """
        rows = self._database.rows(
            "select below.id from outlast_runs above join outlast_runs below on below.app = above.app "
            "and substr(below.run_key, 1, length(above.id) + 1) = above.id || '/' "
            "where above.app = ? and above.id = ? and above.kind = 'flow' order by below.number",
            *(self.app, storable(run)),
        )
        return [row[0] for row in rows]


def note_failure(tx: Transaction, id: str, failure: LetterFailure, at_us: int) -> None:
    """A replay of the letter has failed: from now on it tells this failure, and keeps the one before."""
    letter = _letter(tx.row(f"select {_FIELDS} from outlast_dead_letters where id = ?", id))
    now = failed_again(letter, failure, at_us)
    texts = (now.stage, now.error, now.error_type, now.error_class, now.tier)
    tx.execute(
        "update outlast_dead_letters set stage = ?, error = ?, error_type = ?, error_class = ?, tier = ?, fingerprint = ?, attempts = ?, "
        "first_failed = ?, last_attempt = ?, stop_reason = ?, metadata = ? where id = ?",
        *(*map(storable, texts), now.fingerprint, now.attempts, now.first_failed_us, now.last_attempt_us),
        *(now.stop_reason, json.dumps(dict(now.metadata)), id),
    )


def failed_again(letter: DeadLetterRow, failure: LetterFailure, at_us: int) -> DeadLetterRow:
    """
    The letter with another failure, and the one before among its earlier ones: the first of them and the newest are
    kept.
    """
    before = {
        "stage": letter.stage,
        "error": letter.error,
        "error_type": letter.error_type,
        "error_class": letter.error_class,
        "group": letter.fingerprint,
        "stop_reason": letter.stop_reason,
        "attempts": letter.attempts,
        "first_at": from_us(letter.first_failed_us).isoformat(),
        "last_at": from_us(letter.last_attempt_us).isoformat(),
    }
    earlier = [*earlier_failures(letter), before]
    metadata = {**letter.metadata, EARLIER: earlier[:1] + earlier[1:][1 - MOST_EARLIER :]}
    if failure.stage != letter.stage:
        metadata["begins"] = failure.begins
    return replace(
        letter,
        stage=failure.stage,
        error=failure.error,
        error_type=failure.error_type,
        error_class=failure.error_class,
        tier=failure.tier,
        fingerprint=failure.fingerprint,
        attempts=letter.attempts + failure.attempts,
        # Since when it fails in this way: that is what its group is asked for.
        first_failed_us=letter.first_failed_us if failure.fingerprint == letter.fingerprint else failure.first_us,
        last_attempt_us=at_us,
        stop_reason=failure.stop_reason,
        metadata=metadata,
    )


def earlier_failures(letter: DeadLetterRow) -> list[dict[str, Any]]:
    """How it failed before, the first time first; what somebody else has written there is none."""
    found = letter.metadata.get(EARLIER)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


class Edit(NamedTuple):
    """When a letter's payload was edited, by whom as far as it is known, and why."""

    at: datetime
    by: str
    reason: str


def edits_in(metadata: Mapping[str, Any]) -> list[Edit]:
    """How a letter was edited, the first time first; what somebody else has written there is none."""
    found = metadata.get("edits")
    edits: list[Edit] = []
    for each in found if isinstance(found, list) else ():
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            at = datetime.fromisoformat(each["at"]).astimezone(UTC)
            edits.append(Edit(at, str(each.get("by") or ""), str(each.get("reason") or "")))
    return edits


def letter_values(app: str, letter: DeadLetterRow, updated_us: int) -> tuple[Any, ...]:
    values = [getattr(letter, name) for name in _NAMES]
    values[_NAMES.index("metadata")] = json.dumps(dict(letter.metadata))
    values[_NAMES.index("updated_us")] = updated_us
    values[_NAMES.index("item_key")] = key_text(letter.item_key)
    return (*(storable(value) if isinstance(value, str) else value for value in values), app)


def _letter(row: Any) -> DeadLetterRow:
    values = dict(zip(_NAMES, row, strict=True))
    values["metadata"] = json.loads(values["metadata"])
    values["payload"] = bytes(values["payload"])
    values["original"] = None if values["original"] is None else bytes(values["original"])
    return DeadLetterRow(**values)


def _choices(statuses: Iterable[str]) -> str:
    return " or ".join(sorted(statuses)) or "nothing else"
