"""
Dead letters: found, grouped, edited and moved from status to status, by compare-and-set and always in the order of their ids.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from outlast.clock import here
from outlast.store.database import Duplicate
from outlast.store.filters import in_sql
from outlast.store.records import MOVES, DeadLetterRow, LetterGroup, LetterStat, from_us, storable, to_us

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from typing import Unpack

    from outlast.store.database import Database, Transaction
    from outlast.store.filters import LetterFilter
    from outlast.store.records import LetterStatus

_FIELDS = (
    "id, run, seq, pipeline, stage, item_key, kind, payload, error, error_type, error_class, tier, fingerprint, attempts, "
    "first_failed, last_attempt, created, status, replays, reason, metadata, original, moved, stop_reason"
)
COLUMNS = f"{_FIELDS}, app"
_NAMES = tuple(DeadLetterRow.__dataclass_fields__)
_CHUNK = 5000  # letters moved in one transaction

#: The newest change first, as people read them; or by when they were made, which never changes while somebody reads on.
Order = Literal["updated", "created"]
_ORDERS = {"updated": "moved", "created": "created"}


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
        **where: Unpack[LetterFilter],
    ) -> list[DeadLetterRow]:
        """The newest first; `after` is the last one of the page before."""
        condition, values = self._where(where)
        column = _ORDERS[order]
        if after is not None:
            condition += f" and ({column}, id) < (?, ?)"
            values += [after.updated_us if order == "updated" else after.created_us, after.id]
        # The ids come from an index alone; only the rows of this page are read.
        ids = f"select id from outlast_dead_letters where {condition} order by {column} desc, id desc limit ?"
        with self._database.reading() as tx:
            rows = tx.rows(
                f"select {_FIELDS} from outlast_dead_letters where id in ({ids}) order by {column} desc, id desc",
                *(*values, limit),
            )
        return [_letter(row) for row in rows]

    def letter_owners(self, **where: Unpack[LetterFilter]) -> list[tuple[str, str]]:
        """Id and pipeline of all that fit, the first made first: without what they hold."""
        condition, values = self._where(where)
        with self._database.reading() as tx:
            rows = tx.rows(
                f"select id, pipeline from outlast_dead_letters where {condition} order by created, id", *values
            )
        return [(row[0], row[1]) for row in rows]

    def letter(self, id: str, /) -> DeadLetterRow | None:
        """The dead letter of this id."""
        with self._database.reading() as tx:
            row = tx.row(f"select {_FIELDS} from outlast_dead_letters where app = ? and id = ?", self.app, id)
        return None if row is None else _letter(row)

    def letters_by_id(self, ids: Iterable[str], /) -> dict[str, DeadLetterRow]:
        """Those of these ids that are there."""
        passed = self._database.passed(ids)
        with self._database.reading() as tx:
            rows = tx.rows(
                f"select {_FIELDS} from outlast_dead_letters where app = ? and id {self._database.among}",
                *(self.app, passed),
            )
        return {letter.id: letter for letter in map(_letter, rows)}

    def add_letters(self, letters: Iterable[DeadLetterRow]) -> int:
        """Add dead letters that no run made, such as imported ones; how many were not there yet."""
        given = {letter.id: letter for letter in letters}
        while True:
            try:
                return self._add(given)
            except Duplicate:
                continue  # somebody else added one of them at the same time

    def _add(self, given: dict[str, DeadLetterRow]) -> int:
        database, now = self._database, to_us(here.get().clock.now())
        with database.writing() as tx:
            rows = tx.rows(f"select id from outlast_dead_letters where id {database.among}", database.passed(given))
            known = {row[0] for row in rows}
            new = [letter_values(self.app, given[id], now) for id in sorted(given) if id not in known]  # noqa: A001
            tx.insert("outlast_dead_letters", COLUMNS, new)
        return len(new)

    def groups(self, *, limit: int = 100, **where: Unpack[LetterFilter]) -> list[LetterGroup]:
        """The largest groups of dead letters with one fingerprint at one stage; of open ones, unless a status is named."""
        where.setdefault("status", "open")
        condition, values = self._where(where)
        with self._database.reading() as tx:
            groups = tx.rows(
                "select fingerprint, pipeline, stage, count(*), min(first_failed), max(last_attempt) "
                f"from outlast_dead_letters where {condition} group by fingerprint, pipeline, stage "
                "order by count(*) desc, fingerprint, pipeline, stage limit ?",
                *(*values, limit),
            )
            return [self._group(tx, group, where) for group in groups]

    def _group(self, tx: Transaction, group: Any, where: LetterFilter) -> LetterGroup:
        fingerprint, pipeline, stage, count, first, last = group
        condition, values = self._where(where | {"group": fingerprint, "pipeline": pipeline, "stage": stage})
        newest = tx.rows(
            "select error_class, error_type, error, item_key from outlast_dead_letters "
            f"where {condition} order by created desc, id desc limit 3",
            *values,
        )
        error_class, error_type, error, _ = newest[0] if newest else ("", "", "", "")  # moved on in the meantime
        samples = tuple(dict.fromkeys(row[3] for row in newest))
        return LetterGroup(
            fingerprint, pipeline, stage, error_class, error_type, error, count, samples, from_us(first), from_us(last)
        )

    def open_letters(self) -> dict[str, int]:
        """How many are open, by pipeline; from an index alone."""
        self._database.present()  # a file that was deleted could still be read
        with self._database.reading() as tx:
            rows = tx.rows(
                "select pipeline, count(*) from outlast_dead_letters where app = ? and status = 'open' group by pipeline",
                self.app,
            )
        return {row[0]: int(row[1]) for row in rows}

    def stats(self) -> list[LetterStat]:
        """How many there are, by pipeline, stage and status."""
        with self._database.reading() as tx:
            rows = tx.rows(
                "select pipeline, stage, status, count(*), min(created), max(created) from outlast_dead_letters "
                "where app = ? group by status, pipeline, stage order by pipeline, stage, status",
                self.app,
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
        """Replace the payload, if the letter is in the expected status; None if not. The first payload is kept, with who, when and why."""
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
        if to not in MOVES[from_]:
            message = f"expected a dead letter that is {from_} to become {_choices(MOVES[from_])}, got: {to!r}."
            raise ValueError(message)
        condition, values = self._where(where | {"status": from_})
        if ids is not None:
            condition += f" and id {self._database.among}"
            values.append(self._database.passed(ids))
        bound = "" if limit is None else f" limit {int(limit)}"
        with self._database.reading() as tx:
            rows = tx.rows(f"select id from outlast_dead_letters where {condition} order by id{bound}", *values)
        chunks = ([row[0] for row in rows[first : first + _CHUNK]] for first in range(0, len(rows), _CHUNK))
        return [id for chunk in chunks for id in self._move(chunk, from_, to, reason)]  # noqa: A001

    def put_away(self, before: datetime, reason: str, *, limit: int) -> list[str]:
        """Archive open letters to which nothing has happened since then, at most so many; their ids."""
        with self._database.reading() as tx:
            rows = tx.rows(
                "select id from outlast_dead_letters where app = ? and status = 'open' and moved < ? order by moved, id limit ?",
                *(self.app, to_us(before), limit),
            )
        chunks = ([row[0] for row in rows[first : first + _CHUNK]] for first in range(0, len(rows), _CHUNK))
        return [id for chunk in chunks for id in self._move(chunk, "open", "archived", reason)]  # noqa: A001

    def _move(self, ids: list[str], from_: str, to: str, reason: str) -> list[str]:
        database, now = self._database, to_us(here.get().clock.now())
        # The rows are locked in the order of their ids, and looked at again once they are. The expressions keep the planner from an
        # index on app and status: the ids are few, and those may be all there are.
        mine = f"select id from outlast_dead_letters where app || '' = ? and id {database.among} and status || '' = ? order by id {database.for_update}"
        with database.writing() as tx:
            moved = tx.rows(
                f"update outlast_dead_letters set status = ?, moved = ?, reason = ? where id in ({mine}) returning id",
                *(to, now, storable(reason) or None, self.app, database.passed(ids), from_),
            )
        return sorted(row[0] for row in moved)

    def _where(self, where: LetterFilter) -> tuple[str, list[Any]]:
        sql, values = in_sql(where, self._database.lower, here.get().clock.now())
        return f"app = ?{sql}", [self.app, *values]


def letter_values(app: str, letter: DeadLetterRow, updated_us: int) -> tuple[Any, ...]:
    values = [getattr(letter, name) for name in _NAMES]
    values[_NAMES.index("metadata")] = json.dumps(dict(letter.metadata))
    values[_NAMES.index("updated_us")] = updated_us
    return (*(storable(value) if isinstance(value, str) else value for value in values), app)


def _letter(row: Any) -> DeadLetterRow:
    values = dict(zip(_NAMES, row, strict=True))
    values["metadata"] = json.loads(values["metadata"])
    values["payload"] = bytes(values["payload"])
    values["original"] = None if values["original"] is None else bytes(values["original"])
    return DeadLetterRow(**values)


def _choices(statuses: Iterable[str]) -> str:
    return " or ".join(sorted(statuses)) or "nothing else"
