"""
A worker's turn in one transaction: attempts that have ended, jobs that have become due, jobs that are claimed.

    finish     (id, token) must be those of the claim, else the end is late and changes nothing
    promote    waiting ──► ready, or alone after two crashes; in bounded numbers, by whichever worker comes first
    claim      ready ──► processing with token + 1, the highest priority first, then the lowest id

With PostgreSQL each of the three is one statement whatever the number of jobs, and the usual turn is one call of a
function that the server knows (`at_once`); rows that somebody else has locked are left out where that is possible.
SQLite has one writer and quick statements.
"""

from __future__ import annotations

import json
from itertools import starmap
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.kernel.redact import LIMIT
from outlast.store.leases import label, lost
from outlast.store.letters import COLUMNS as LETTER
from outlast.store.letters import letter_values, note_failure
from outlast.store.records import JOB_MOVES, SERVED_KIND, ClaimedJob, LetterFailure, key_text, storable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from outlast.store.database import Database, Transaction
    from outlast.store.records import DeadLetterRow, JobEnd, JobState, Lease

# The letter of a job. Somebody may have opened it or put it away meanwhile; what a replay of a run has claimed is that
# replay's.
_MINE = "app = ? and id = ? and (status = 'replaying' and claimed_by = ? or status in (?, ?))"
# By id and token: what the job has become, and the letter that it has.
_Found = dict[tuple[int, int], tuple[str, "str | None"]]
PROMOTED = 1000  # jobs that one turn makes ready at most: others wait no longer than that takes
TWICE = 2  # crashes after which a job is run alone
SUCCESS = "job, number, token, worker, started, took, outcome"
ATTEMPT = f"{SUCCESS}, error_class, error_type, error, stop_reason, next_run, traceback"
_CLAIMED = (
    "id, kind, version, queue, priority, payload, token, attempts, made, crashes, previous, snoozed, enqueued, began, claimed, "
    "error, error_type, error_class"
)


def sources(to: JobState, among: Iterable[JobState] = tuple(JOB_MOVES)) -> str:
    """
    The states from which a job may come to this one, as literals in SQL.

    >>> sources("processing")
    "('ready', 'alone')"
    """
    return f"({', '.join(repr(state) for state in among if to in JOB_MOVES[state])})"


# -- all of it in one statement ----------------------------------------------------------------------------------------


def at_once(
    database: Database,
    app: str,
    lease: Lease,
    ends: Sequence[JobEnd],
    wants: Mapping[str, int],
    kinds: Mapping[str, int],
    *,
    most: int | None,
    after: Mapping[str, tuple[int, int]],
    ahead_us: int,
) -> tuple[tuple[int, ...], list[ClaimedJob]]:
    """A whole turn in which all that has ended has succeeded; the ids of late ends, and what was claimed."""
    ends = sorted(ends, key=itemgetter(0))
    given = parameters(database, app, lease, ends, wants, kinds, most=most, after=after, ahead_us=ahead_us)
    rows = database.once(database.at_once, *given)
    claimed = claimed_in(rows, lease, wants)
    late: tuple[int, ...] = ()
    if rows[0][6] != len(ends):
        with database.reading() as tx:
            late = tuple(end.id for end in ends if not _on_record(tx, end))
    return late, claimed


def parameters(
    database: Database,
    app: str,
    lease: Lease,
    ends: Sequence[JobEnd],
    wants: Mapping[str, int],
    kinds: Mapping[str, int],
    *,
    most: int | None,
    after: Mapping[str, tuple[int, int]],
    ahead_us: int,
) -> tuple[Any, ...]:
    """What the statement of such a turn is given; the ends are in the order of their ids."""
    kept = any(end.result is not None or end.unique_for_us is not None for end in ends)
    places = [after.get(queue, (None, None)) for queue in wants]
    return (
        *(app, key_text(lease.key), lease.token, label(app, lease.kind, lease.key), database.patience, ahead_us),
        *(_integers(map(itemgetter(place), ends)) for place in (0, 1, 2, 5, 6)),  # id, token, number, started, took
        *((None, None) if not kept else ([end.result for end in ends], [end.unique_for_us for end in ends])),
        *([*wants], [*wants.values()], [place[0] for place in places], [place[1] for place in places]),
        sum(wants.values()) if most is None else most,
        *([storable(kind) for kind in kinds], [*kinds.values()]),
    )


class Asked(NamedTuple):
    """A statement that is a turn which only claims, and what it is given."""

    statement: str
    parameters: tuple[Any, ...]


def asked(
    database: Database,
    app: str,
    lease: Lease,
    wants: Mapping[str, int],
    kinds: Mapping[str, int],
    *,
    most: int,
    after: Mapping[str, tuple[int, int]],
    ahead_us: int,
) -> Asked:
    """A turn that only claims: of one queue from its start, the usual case, or any other."""
    if len(wants) > 1 or after:
        given = parameters(database, app, lease, (), wants, kinds, most=most, after=after, ahead_us=ahead_us)
        return Asked(database.at_once, given)
    ((queue, room),) = wants.items()
    held = app, key_text(lease.key), lease.token, label(app, lease.kind, lease.key), database.patience, ahead_us
    known = [storable(kind) for kind in kinds], [*kinds.values()]
    return Asked(database.one_queue, (*held, queue, min(room, most), *known))


def answered(
    database: Database, statement: str, rows: Sequence[Any], lease: Lease, wants: Mapping[str, int]
) -> list[ClaimedJob]:
    """What came of it; `LeaseLost` if that is known."""
    if statement == database.one_queue:
        return _in_order(rows, wants)
    return claimed_in(rows, lease, wants)


def claimed_in(rows: Sequence[Any], lease: Lease, wants: Mapping[str, int]) -> list[ClaimedJob]:
    """What such a turn has claimed, in the order in which it begins; `LeaseLost` if it was not allowed to."""
    if not rows:
        raise lost(lease)
    return _in_order(rows[1:], wants)


def _in_order(rows: Sequence[Any], wants: Mapping[str, int]) -> list[ClaimedJob]:
    claimed = list(starmap(ClaimedJob, rows))
    if len(wants) == 1:
        claimed.sort(key=_order)
    else:
        order = {queue: place for place, queue in enumerate(wants)}
        claimed.sort(key=lambda job: (order[job.queue], *_order(job)))
    return claimed


def _integers(values: Iterable[int]) -> str:
    return f"{{{','.join(map(str, values))}}}"


# -- finish ------------------------------------------------------------------------------------------------------------


def finish(
    database: Database, tx: Transaction, app: str, worker: str, ends: Sequence[JobEnd], now: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Write the ends of attempts, with their letters; the ids of those that came late, and of those that are cancelled."""
    for end in ends:
        if end.state not in JOB_MOVES["processing"]:
            raise ValueError(f"expected a job that was processed to become {_choices()}, got: {end.state!r}.")
    # In the order of their ids; of two ends of one claim the first counts.
    ordered = sorted({(end.id, end.token): end for end in reversed(ends)}.values(), key=lambda end: (end.id, end.token))
    plain = [end for end in ordered if end.state == "succeeded"]
    other = [end for end in ordered if end.state != "succeeded"]
    write = (_Arrays if database.arrays else _Rows)(tx, app, worker, now)
    found = _Found()
    if plain:
        found |= write.successes(plain)
    if other:
        found |= write.others(other)
    cancelled: list[int] = []
    for end in ordered:
        if (end.id, end.token) not in found:
            continue
        state, letter = found[end.id, end.token]
        if state == "cancelled" != end.state:
            cancelled.append(end.id)
        if letter is not None or (end.letter is not None and state == "failed"):
            settle(tx, app, end.id, state, letter, end.letter, now)
    late = [end for end in ordered if (end.id, end.token) not in found]
    return tuple(end.id for end in late if not _on_record(tx, end)), tuple(cancelled)


def _on_record(tx: Transaction, end: JobEnd) -> bool:
    """Whether a late end is the one that is on record: the answer to a commit may be lost, and the turn comes again."""
    return (
        tx.row(
            "select 1 from outlast_job_attempts where job = ? and number = ? and token = ? and outcome = ?",
            *(end.id, end.number, end.token, end.outcome),
        )
        is not None
    )


class _Arrays:
    """All ends in one statement, as an array for each column."""

    def __init__(self, tx: Transaction, app: str, worker: str, now: int) -> None:
        self._tx = tx
        self._app = app
        self._worker = worker
        self._now = now

    def successes(self, ends: Sequence[JobEnd]) -> _Found:
        columns = {"id": "bigint", "token": "bigint", "number": "integer", "started": "bigint", "took": "bigint"}
        values: list[list[Any]] = [
            [end.id for end in ends],
            [end.token for end in ends],
            [end.number for end in ends],
            [end.started_us for end in ends],
            [end.took_us for end in ends],
        ]
        columns["now"] = "bigint"
        values.append([self._now] * len(ends))
        sets = "result = null"
        if any(end.result is not None or end.unique_for_us is not None for end in ends):
            columns |= {"result": "bytea", "unique_for": "bigint"}
            values += [[end.result for end in ends], [end.unique_for_us for end in ends]]
            sets = "result = given.result, unique_until = given.now + given.unique_for"
        sets += (
            ", state = 'succeeded', ended = given.now, worker = null, wanted = null, error = null, error_type = null, "
            "error_class = null, stop_reason = null"
        )
        attempt = "id, number, token, ?, started, took, 'succeeded'"
        return self._change(columns, values, sets, SUCCESS, attempt)

    def others(self, ends: Sequence[JobEnd]) -> _Found:
        columns = {
            **dict.fromkeys(("id", "token", "number", "started", "took"), "bigint"),
            **dict.fromkeys(("state", "outcome", "error", "error_type", "error_class", "stop_reason"), "text"),
            **dict.fromkeys(("due", "uncharged", "previous", "running", "now"), "bigint"),
            "traceback": "text",
        }
        rows = [(*_row(end, self._now), _storable(end.traceback)) for end in ends]
        values = [list(column) for column in zip(*rows, strict=True)]
        attempt = (
            "id, number, token, ?, started, took, outcome, error_class, error_type, error, "
            "case when state = 'cancelled' then 'cancelled' else stop_reason end, "
            "case when state in ('waiting', 'held', 'ready', 'alone') then due end, traceback"
        )
        return self._change(columns, values, _sets("given.{}", "job.{}"), ATTEMPT, attempt)

    def _change(
        self, columns: Mapping[str, str], values: Sequence[list[Any]], sets: str, kept: str, attempt: str
    ) -> _Found:
        arrays = ", ".join(f"?::{kind}[]" for kind in columns.values())
        told = ", ".join(
            f"given.{name}" for name in columns if name not in {"id", "token", "state", "result", "unique_for", "now"}
        )
        rows = self._tx.rows(
            # Nobody but the owner of the lease changes jobs that it has, one row at a time at most (a cancellation), so
            # there is no circle to wait in; the arrays are in the order of the ids all the same. The expressions keep the
            # planner from the index of owned jobs: it has dead entries of all that were processed since the last vacuum.
            f"with done as (update outlast_jobs job set {sets} from unnest({arrays}) as given({', '.join(columns)}) "
            "where job.id = given.id and job.token = given.token and job.app || '' = ? and job.state || '' = 'processing' "
            f"returning job.id, job.token, job.state, job.letter, {told}), "
            f"kept as (insert into outlast_job_attempts ({kept}) select {attempt} from done) "
            "select id, token, state, letter from done",
            *(*values, self._app, self._worker),
        )
        return {(id, token): (state, letter) for id, token, state, letter in rows}  # noqa: A001


class _Rows:
    """A statement for each end."""

    def __init__(self, tx: Transaction, app: str, worker: str, now: int) -> None:
        self._tx = tx
        self._app = app
        self._worker = worker
        self._now = now

    def successes(self, ends: Sequence[JobEnd]) -> _Found:
        if all(end.result is None and end.unique_for_us is None for end in ends):
            found = self._alike(ends)
        elif all(_text(end.result) is not None for end in ends):
            found = self._together(ends)
        else:
            found = self._one_by_one(ends)
        attempts = [
            (end.id, end.number, end.token, self._worker, end.started_us, end.took_us, "succeeded")
            for end in ends
            if (end.id, end.token) in found
        ]
        self._tx.insert("outlast_job_attempts", SUCCESS, attempts)
        return found

    def _alike(self, ends: Sequence[JobEnd]) -> _Found:
        """Half the time of `_together`, if there are no results. Few tokens are in use: most jobs are claimed once."""
        found, by_token = _Found(), dict[int, list[int]]()
        for end in ends:
            by_token.setdefault(end.token, []).append(end.id)
        for token, ids in by_token.items():
            rows = self._tx.rows(
                f"update outlast_jobs set {success('null', 'null', '?')} where id in (select value from json_each(?)) "
                "and token = ? and app = ? and state = 'processing' returning id, letter",
                *(self._now, json.dumps(ids), token, self._app),
            )
            found |= {(id, token): ("succeeded", letter) for id, letter in rows}  # noqa: A001
        return found

    def _together(self, ends: Sequence[JobEnd]) -> _Found:
        """Half the time, if all results are text: they travel as JSON."""
        given = json.dumps(
            [(end.id, end.token, _text(end.result) or None, end.unique_for_us, self._now) for end in ends]
        )
        columns = ("id", "token", "result", "unique_for", "now")
        fields = ", ".join(f"json_extract(value, '$[{place}]') as given_{name}" for place, name in enumerate(columns))
        rows = self._tx.rows(
            f"update outlast_jobs set {success('cast(given_result as blob)', 'given_now + given_unique_for', 'given_now')} "
            f"from (select {fields} from json_each(?)) where id = given_id and token = given_token and app = ? "
            "and state = 'processing' returning id, token, letter",
            *(given, self._app),
        )
        return {(id, token): ("succeeded", letter) for id, token, letter in rows}  # noqa: A001

    def _one_by_one(self, ends: Sequence[JobEnd]) -> _Found:
        found = _Found()
        for end in ends:
            row = self._tx.row(
                f"update outlast_jobs set {success('?', '? + ?', '?')} where id = ? and token = ? and app = ? "
                "and state = 'processing' returning letter",
                *(end.result, self._now, end.unique_for_us, self._now, end.id, end.token, self._app),
            )
            if row is not None:
                found[end.id, end.token] = ("succeeded", row[0])
        return found

    def others(self, ends: Sequence[JobEnd]) -> _Found:
        names = "id token number started took state outcome error error_type error_class stop_reason due uncharged previous running now"
        place = {name: f"?{number}" for number, name in enumerate(names.split(), 1)}
        sets = _sets("{}", "{}", place)
        found = _Found()
        attempts = []
        for end in ends:
            values = _row(end, self._now)
            row = self._tx.connection.execute(
                f"update outlast_jobs set {sets} where id = ?1 and token = ?2 and app = ?17 and state = 'processing' returning state, letter",
                (*values, self._app),
            ).fetchone()
            if row is None:
                continue
            found[end.id, end.token] = (row[0], row[1])
            due = values[11] if row[0] not in {"succeeded", "failed", "cancelled"} else None
            error, error_type, error_class, stop_reason = values[7:11]
            if row[0] == "cancelled":
                stop_reason = "cancelled"
            attempts.append(
                (
                    *(end.id, end.number, end.token, self._worker, end.started_us, end.took_us, end.outcome),
                    *(error_class, error_type, error, stop_reason, due, _storable(end.traceback)),
                )
            )
        self._tx.insert("outlast_job_attempts", ATTEMPT, attempts)
        return found


def success(result: str, until: str, now: str) -> str:
    """What a success changes; how its values are spelled."""
    return (
        f"result = {result}, unique_until = {until}, state = 'succeeded', ended = {now}, worker = null, wanted = null, "
        "error = null, error_type = null, error_class = null, stop_reason = null"
    )


def _text(result: bytes | None) -> str | None:
    """A result as text, empty if there is none; None if it is no text that SQLite can take out of JSON."""
    if result is None:
        return ""
    try:
        text = result.decode()
    except UnicodeDecodeError:
        return None
    return None if not text or "\0" in text else text


def _row(end: JobEnd, now: int) -> tuple[Any, ...]:
    delayed = end.state in {"waiting", "held"}
    return (
        *(end.id, end.token, end.number, end.started_us, end.took_us, end.state, end.outcome),
        *(cut(end.error), cut(end.error_type), cut(end.error_class), end.stop_reason),
        now + end.delay_us if delayed else now,
        int(not end.charged),
        # A pause that costs no attempt is none of the delays that a schedule grows by.
        end.delay_us if delayed and end.charged else None,
        int(end.running or end.state == "held"),
        now,
    )


def _sets(given: str, job: str, place: Mapping[str, str] | None = None) -> str:
    """What the end of an attempt that is no success changes; how a given value and a column of the job are spelled."""

    def value(name: str) -> str:
        return given.format(name) if place is None else place[name]

    # No number is in the text: it stays the same from turn to turn, and drivers keep what they have prepared.
    now = value("now")
    wanted, ends = f"{job.format('wanted')} is not null", "('succeeded', 'failed', 'cancelled')"
    state = f"case when {wanted} and {value('state')} not in {ends} then 'cancelled' else {value('state')} end"
    over = f"({wanted} or {value('state')} in {ends})"
    # A worker that ends gives a job back: nothing has failed, and the last error of the job stays what it was.
    given_back = f"{value('outcome')} = 'released' and {value('error_class')} is null"
    # An error replaces the last one with all that is known of it: a cancellation has no class.
    fresh = f"{value('error')} is not null and not ({given_back})"
    kept = ", ".join(
        f"{name} = case when {fresh} then {value(name)} else {job.format(name)} end"
        for name in ("error", "error_type", "error_class")
    )
    kept += f", previous = coalesce({value('previous')}, {job.format('previous')})"
    cancelled = f"({state}) = 'cancelled'"
    kept += f", stop_reason = case when {cancelled} then 'cancelled' else coalesce({value('stop_reason')}, {job.format('stop_reason')}) end"
    return (
        f"state = {state}, due = case when {over} then {job.format('due')} else {value('due')} end, "
        f"ended = case when {over} then {now} end, {kept}, "
        f"attempts = {job.format('attempts')} - {value('uncharged')}, "
        f"snoozed = case when {value('outcome')} = 'snoozed' then coalesce({job.format('snoozed')}, {now}) "
        f"else {job.format('snoozed')} end, "
        # Whoever's code still runs owns the job, whatever it has become.
        f"worker = case when {value('running')} = 1 then {job.format('worker')} end, wanted = null"
    )


def cut(text: str | None) -> str | None:
    """As much of an error as is kept."""
    return None if text is None else storable(text[:LIMIT])


def _storable(text: str | None) -> str | None:
    return None if text is None else storable(text)


def settle(
    tx: Transaction, app: str, job: int, state: str, known: str | None, letter: DeadLetterRow | None, now: int
) -> None:
    """
    Move the letter of a job that has ended: resolved by a success, open again after another failure or a cancellation.
    A job without one that could be opened again gets the new `letter`.
    """
    which = (app, known, claim_of(job))
    if state == "succeeded":
        sql, values = resolving(app, job, known, now)
        tx.execute(sql, *values)
    elif state == "cancelled":
        tx.execute(
            "update outlast_dead_letters set status = 'open', moved = ?, reason = 'its job was cancelled', claimed_by = null "
            "where app = ? and id = ? and status = 'replaying' and claimed_by = ?",
            *(now, *which),
        )
    elif state == "failed" and letter is not None:
        opened = tx.execute(
            "update outlast_dead_letters set status = 'open', moved = ?, replays = replays + 1, claimed_by = null "
            f"where {_MINE}",
            *(now, *which, "open", "archived"),
        )
        if opened.rowcount:
            note_failure(tx, str(known), failure_of(letter), now)
            return
        tx.insert("outlast_dead_letters", LETTER, [letter_values(app, letter, letter.created_us)])
        tx.execute("update outlast_jobs set letter = ? where id = ?", letter.id, job)


def resolving(app: str, job: int, letter: str | None, now: int) -> tuple[str, tuple[Any, ...]]:
    """The statement that resolves the letter of a job which has succeeded, with its values."""
    return (
        f"update outlast_dead_letters set status = 'resolved', moved = ?, replays = replays + 1, last_attempt = ? where {_MINE}",
        (now, now, app, letter, claim_of(job), "open", "open"),
    )


def claim_of(job: int) -> str:
    """What a dead letter holds while its job, requeued by an operator, is on its way: no replay of a run is called so."""
    return f"job {job}"


def failure_of(letter: DeadLetterRow) -> LetterFailure:
    """What another failure changes in a letter that is there already."""
    return LetterFailure(
        letter.stage,
        letter.error,
        letter.error_type,
        letter.error_class,
        letter.tier,
        letter.fingerprint,
        letter.attempts,
        letter.first_failed_us,
        letter.stop_reason,
        letter.stage,
    )


def _choices() -> str:
    *most, last = sorted(JOB_MOVES["processing"])
    return f"{', '.join(most)} or {last}"


def claimable() -> str:
    """What becomes of a job that was held. The parameter is the present instant."""
    return f"case when due > ? then 'waiting' when crashes >= {TWICE} then 'alone' else 'ready' end"


# -- promote and claim -------------------------------------------------------------------------------------------------


def waiting(now: str) -> str:
    """Whether a job of the app of a lease is due that is called waiting."""
    return f"exists (select 1 from outlast_jobs where app = outlast_leases.app and state = 'waiting' and due <= {now})"


def promote(database: Database, tx: Transaction, app: str, now: int) -> int:
    """Make jobs ready that are due; how many. In one statement, so that nobody sees a job twice or not at all."""
    due = f"select id from outlast_jobs where app = ? and state = 'waiting' and due <= ? order by due, id limit {PROMOTED} {database.skip_locked}"
    done = tx.execute(
        f"with due as materialized ({due}) update outlast_jobs set state = case when crashes >= {TWICE} then 'alone' else 'ready' end "
        "where id in (select id from due) and state = 'waiting'",
        *(app, now),
    )
    return int(done.rowcount)


def claim(
    database: Database,
    tx: Transaction,
    app: str,
    lease: Lease,
    queue: str,
    most: int,
    kinds: Mapping[str, int],
    now: int,
    *,
    after: tuple[int, int] | None = None,
    state: str = "ready",
) -> list[ClaimedJob]:
    """Claim at most so many jobs of a queue."""
    known, values = known_kinds(database, kinds)
    order = "priority desc, id" if state == "ready" else "id"
    where = f"app = ? and queue = ? and state = '{state}' and ({known})"
    given: list[Any] = [app, queue, *values]
    if after is not None:
        # Of the same priority only, so that an index scan begins at this place: it must not crawl over what was
        # claimed before and cannot be removed yet.
        where += " and priority = ? and id > ?"
        given += after
    where += " and not exists (select 1 from outlast_queues paused where paused.app = ? and paused.queue = ? and paused.paused)"
    given += [app, queue]
    rows = tx.rows(
        f"with picked as materialized (select id as number from outlast_jobs where {where} order by {order} limit ? {database.skip_locked}) "
        "update outlast_jobs set state = 'processing', token = token + 1, worker = ?, claimed = ?, began = coalesce(began, ?), "
        f"attempts = attempts + 1, made = made + 1 from picked where id = number and state || '' = '{state}' returning {_CLAIMED}",
        *(*given, most, lease.key, now, now),
    )
    claimed = [_claimed(row) for row in rows]
    claimed.sort(key=_order)
    return claimed


def again(tx: Transaction, app: str, lease: Lease, known: Iterable[tuple[int, int]]) -> list[ClaimedJob]:
    """
    The jobs that this worker has on record without knowing of them: the answer to their claim was lost. Known by id and
    token: it may have ended one, and claimed it again, in the turn whose answer was lost.
    """
    mine = frozenset(known)
    rows = tx.rows(
        f"select {_CLAIMED} from outlast_jobs where app = ? and worker = ? and state in ('processing', 'held') and state = 'processing'",
        *(app, lease.key),
    )
    found = map(_claimed, rows)
    return sorted((job for job in found if (job.id, job.token) not in mine), key=_order)


def known_kinds(database: Database, kinds: Mapping[str, int]) -> tuple[str, list[Any]]:
    """Which kinds a worker knows up to which version of the payload."""
    by_version: dict[int, list[str]] = {}
    for kind, version in kinds.items():
        by_version.setdefault(version, []).append(storable(kind))
    condition = f"{SERVED_KIND} {database.among} and version <= ?"
    values = [value for version, names in by_version.items() for value in (database.passed(names), version)]
    return " or ".join([condition] * len(by_version)) or "1 = 0", values


def _claimed(row: Any) -> ClaimedJob:
    job = ClaimedJob(*row)
    return job if isinstance(job.payload, bytes) else job._replace(payload=bytes(job.payload))


def _order(job: ClaimedJob) -> tuple[int, int]:
    return -job.priority, job.id
