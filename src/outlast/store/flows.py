"""
The steps of a flow's run, and what undoes them: how far each is, its attempts, what it has put out.

    begin_step ──► running ──► succeed_step ──► succeeded ──► (its undo succeeds) compensated
        │             ├──────► fail_attempt ──► waiting, until `due` ──► begin_step
        │             │                    └──► failed, or partial_success if only rows of it are lost
        │             └──────► release_step ──► pending: whoever goes on begins it again
        └──► cached: the work for its key was done before

Every write names the lease of the run and is refused under an older one (`LeaseLost`). What one call writes is one
transaction: the state of a step, the row of its attempt, what it has put out, its idempotency record, its dead letter
and the events that tell of it. Doing the same write again, because its answer was lost, changes nothing.

What must survive a power cut (steps with an idempotency key or something that undoes them) is flushed to the disk when
it is committed; others are written as batches are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from outlast.calls.records import add_to
from outlast.store import idempotency, leases
from outlast.store.idempotency import KeyDone
from outlast.store.letters import COLUMNS as LETTER
from outlast.store.letters import letter_values, note_failure
from outlast.store.records import LetterFailure, storable
from outlast.store.upkeep import insert_events

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from outlast.kernel.aliases import StopReason
    from outlast.store.database import Database, Transaction
    from outlast.store.records import DeadLetterRow, EventRow, JobOutcome, Lease, RunRequest

#: To do a step, or to undo it.
Deed: TypeAlias = Literal["do", "undo"]
StepState: TypeAlias = Literal[
    "pending", "running", "waiting", "succeeded", "partial_success", "cached", "failed", "compensated"
]
MOST_KEPT = 10_000_000  # bytes of what a step keeps under one name; the rest is cut
_ROW = (
    "step, deed, place, state, round, attempts, made, crashes, token, began, due, previous, completed, work, definition, "
    "key_scope, key_digest, key_token, error, error_type, error_class, stop_reason, letter, changed"
)
_ATTEMPT = (
    "step, deed, number, round, token, worker, started, took, outcome, error_class, error_type, error, stop_reason, "
    "next_run, traceback, spent"
)
_WHICH = "run = ? and step = ? and deed = ?"
# Expressions, each with the number of the run: the next place of a step in the run, and among those that have succeeded.
_PLACE = "(select coalesce(max(place) + 1, 0) from outlast_flow_steps where run = ?)"
_COMPLETED = "(select coalesce(max(completed) + 1, 1) from outlast_flow_steps where run = ?)"
_WANTED = "(select wanted from outlast_runs where number = outlast_progress.run)"  # what the run is asked to do
_TABLE = "table "  # how the name of an artifact begins that is a part of what a step has put out


class FlowStep(NamedTuple):
    """
    A step, or what undoes it, as it is on record. `attempts` counts those of this round that are charged, `made` all
    that were ever begun; `crashes` are the processes that ended in the middle of one. `completed` grows in the order in
    which steps have succeeded. `definition` is the step as the manifest had it when it began, `work` its fingerprint.
    Instants are microseconds of the database's clock.
    """

    step: str
    deed: Deed
    place: int
    state: StepState
    round: int
    attempts: int
    made: int
    crashes: int
    token: int
    began_us: int | None
    due_us: int | None
    previous_us: int | None
    completed: int | None
    work: str
    definition: Mapping[str, Any]
    key_scope: str | None
    key_digest: str | None
    key_token: int | None
    error: str | None
    error_type: str | None
    error_class: str | None
    stop_reason: StopReason | None
    letter: str | None
    changed_us: int

    @property
    def made_in_round(self) -> bool:
        """Whether an attempt was begun in this round, charged or not."""
        return self.token > 0


class StepAttempt(NamedTuple):
    """
    One attempt at a step, or at what undoes it, on record once it has ended. `spent` is what its code has said through
    ``outlast.current().spend``.
    """

    step: str
    deed: Deed
    number: int
    round: int
    token: int
    worker: str | None
    started_us: int
    took_us: int
    outcome: JobOutcome
    error_class: str | None = None
    error_type: str | None = None
    error: str | None = None
    stop_reason: StopReason | None = None
    next_run_us: int | None = None
    traceback: str | None = None
    spent: Mapping[str, float] | None = None


class AfterCrash(NamedTuple):
    """What follows the crash of who ran a step: it is begun again, or with a `stop_reason` it has failed for good."""

    error: str
    error_class: str
    stop_reason: StopReason | None = None
    letter: DeadLetterRow | None = None


class StepKey(NamedTuple):
    """The idempotency key of a step: what it is one for, its digest, and a fingerprint of the work."""

    scope: str
    digest: str
    config: str


class StepBegun(NamedTuple):
    """An attempt that may be made: its number in the history, how many of this round are charged, when it began."""

    number: int
    attempts: int
    began_us: int
    now_us: int
    key_token: int | None = None


class RetriesBefore(NamedTuple):
    """How often a step was retried before, and the error class of the newest failure."""

    attempts: int
    error_class: str | None


class Asked(NamedTuple):
    """Nothing is begun: the run is asked to pause or to be cancelled."""

    request: RunRequest


class Part(NamedTuple):
    """A part of what a step has put out that is stored by itself, such as a table."""

    name: str
    data: bytes


class Flows:
    """The part of the store that knows the steps of flows."""

    _database: Database
    app: str

    # -- what is on record ----------------------------------------------------------------------------------------------

    def flow_steps(self, run_number: int) -> list[FlowStep]:
        """All steps of a run that were ever begun, and what undoes them, in the order in which they first began."""
        rows = self._database.rows(
            f"select {_ROW} from outlast_flow_steps where run = ? order by place, deed", run_number
        )
        return [_step(row) for row in rows]

    def flow_step(self, run_number: int, step: str, deed: Deed) -> FlowStep | None:
        """One of them; None if it was never begun."""
        row = self._database.row(
            f"select {_ROW} from outlast_flow_steps where {_WHICH}", run_number, storable(step), deed
        )
        return None if row is None else _step(row)

    def step_attempts(self, run_number: int) -> list[StepAttempt]:
        """The attempts at all steps of a run, in their order."""
        rows = self._database.rows(
            f"select {_ATTEMPT} from outlast_step_attempts where run = ? order by step, deed, number", run_number
        )
        return [_attempt(row) for row in rows]

    def step_ends(self, run_number: int, step: str) -> list[tuple[Deed, JobOutcome, int]]:
        """How the attempts at one step, and at what undoes it, have ended: the deed, the outcome, and the round."""
        rows = self._database.rows(
            "select deed, outcome, round from outlast_step_attempts where run = ? and step = ? order by deed, number",
            *(run_number, storable(step)),
        )
        return [(deed, outcome, number) for deed, outcome, number in rows]

    def retries_before(self, run_number: int, step: str, deed: Deed, before: int) -> RetriesBefore:
        """
        The attempts of a step in rounds before this one that failed and were to be followed by another one, since it last
        succeeded or gave up; and the error class of the newest. A crash, or an attempt that was given back, is none.
        """
        rows = self._database.rows(
            "select outcome, next_run, stop_reason, error_class from outlast_step_attempts "
            "where run = ? and step = ? and deed = ? and round < ? order by number desc",
            *(run_number, storable(step), deed, before),
        )
        found: list[str | None] = []
        for outcome, next_run, reason, error_class in rows:
            if outcome == "succeeded" or reason is not None:
                break
            if next_run is not None and outcome not in {"snoozed", "released"}:
                found.append(error_class)
        return RetriesBefore(len(found), found[0] if found else None)

    def step_states(self, run_numbers: Sequence[int]) -> dict[int, dict[str, int]]:
        """
        How many steps of each of these runs are in which state; those that were never begun are not counted. One that is
        done, and whose undoing was begun, is `compensating`.
        """
        found: dict[int, dict[str, int]] = {number: {} for number in run_numbers}
        rows = self._database.rows(
            "select s.run, case when u.run is not null and s.state in ('succeeded', 'cached') then 'compensating' else s.state end as state_now, "
            "count(*) from outlast_flow_steps s left join outlast_flow_steps u on u.run = s.run and u.step = s.step and u.deed = 'undo' "
            "and (u.state in ('running', 'waiting') or (u.state = 'pending' and u.token > 0)) "
            f"where s.deed = 'do' and s.run {self._database.among} group by s.run, state_now",
            self._database.passed(run_numbers),
        )
        for run, state, count in rows:
            found[run][state] = count
        return found

    def outputs_of_step(self, run_number: int, step: str) -> bytes | None:
        """What a step has put out; None if that is not on record."""
        row = self._database.row(
            "select result from outlast_steps where kind = 'run' and owner = ? and name = ?", run_number, storable(step)
        )
        return None if row is None else bytes(row[0])

    def part_of_outputs(self, run_number: int, step: str, name: str) -> bytes | None:
        """A part that is stored by itself."""
        row = self._database.row(
            "select data from outlast_artifacts where kind = 'run' and owner = ? and attempt = 0 and name = ?",
            *(run_number, storable(f"{_TABLE}{step} {name}")),
        )
        return None if row is None else bytes(row[0])

    def kept_of_run(self, run_number: int) -> list[tuple[str, int, int, bool, int]]:
        """What steps have kept for people: the name, the attempt, its size, whether it was cut, and when."""
        rows = self._database.rows(
            "select name, attempt, size, cut, kept from outlast_artifacts where kind = 'run' and owner = ? "
            "and attempt > 0 order by kept, name",
            run_number,
        )
        return [(name, attempt, size, bool(cut), kept) for name, attempt, size, cut, kept in rows]

    def kept_data(self, run_number: int, name: str, attempt: int | None = None) -> bytes | None:
        """What an attempt has kept under this name; the newest if none is said."""
        which, values = ("and attempt > 0", ()) if attempt is None else ("and attempt = ?", (attempt,))
        row = self._database.row(
            f"select data from outlast_artifacts where kind = 'run' and owner = ? and name = ? {which} "
            "order by attempt desc limit 1",
            *(run_number, storable(name), *values),
        )
        return None if row is None else bytes(row[0])

    def keep_of_run(self, run_number: int, token: int, step: str, attempt: int, name: str, raw: str | bytes) -> bool:
        """Keep this for people, if the run is still that of who has this token; whether it was."""
        data = raw.encode(errors="surrogatepass") if isinstance(raw, str) else bytes(raw)
        cut = len(data) > MOST_KEPT
        called = storable(f"{step} {name}")[:200]
        done = self._database.written(
            "insert into outlast_artifacts (kind, owner, attempt, name, data, size, cut, kept) "
            f"select 'run', run, ?, ?, ?, ?, ?, {self._database.now} from outlast_progress where run = ? and shard = 0 and token = ? "
            "on conflict (kind, owner, attempt, name) do update set data = excluded.data, size = excluded.size, "
            "cut = excluded.cut, kept = excluded.kept",
            *(max(1, attempt), called, data[:MOST_KEPT], len(data), cut, run_number, token),
        )
        return done > 0

    # -- before anything begins -----------------------------------------------------------------------------------------

    def recover_steps(
        self, lease: Lease, *, judge: Callable[[FlowStep], AfterCrash], owner: str, ahead_us: int = 0
    ) -> list[FlowStep]:
        """
        Put on record what became of those who had the run before: each attempt that is still running under an older
        token has crashed. `judge` says what follows; the crash costs no attempt. All steps as they are then.
        """
        database, run = self._database, _run(lease)
        with database.writing() as tx:
            leases.fenced(database, tx, self.app, lease)
            (now,) = tx.row(f"select {database.now} + {int(ahead_us)}")
            rows = tx.rows(
                f"select {_ROW} from outlast_flow_steps where run = ? and state = 'running' and token < ?",
                *(run, lease.token),
            )
            for step in map(_step, rows):
                follows = judge(step)
                attempt = StepAttempt(
                    step=step.step,
                    deed=step.deed,
                    number=step.made,
                    round=step.round,
                    token=step.token,
                    worker=owner or None,
                    started_us=step.changed_us,
                    took_us=max(0, now - step.changed_us),
                    outcome="crashed",
                    error_class=follows.error_class,
                    error_type="WorkerLost",
                    error=follows.error,
                    stop_reason=follows.stop_reason,
                )
                _insert_attempt(tx, run, attempt)
                told = step.letter if follows.letter is None else self._told(tx, step.letter, follows.letter, now)
                ends = follows.stop_reason is not None
                tx.execute(
                    "update outlast_flow_steps set state = ?, attempts = ?, crashes = crashes + 1, began = null, due = null, error = ?, "
                    f"error_type = 'WorkerLost', error_class = ?, stop_reason = ?, letter = ?, changed = ? where {_WHICH}",
                    *("failed" if ends else "pending", max(0, step.attempts - 1), follows.error, follows.error_class),
                    *(follows.stop_reason, told, now, run, step.step, step.deed),
                )
                if ends and step.key_digest is not None:
                    _release(database, tx, self.app, step)
                if ends and step.deed == "undo":
                    self._hold_no_more(tx, run, step.step)
        return self.flow_steps(run)

    def reset_steps(self, lease: Lease, steps: Iterable[str], *, round_number: int) -> None:
        """
        These steps are to be done again, from their first attempt on; what undid them is over. What they have put out
        is forgotten, and so are the idempotency records of this run. The history of their attempts stays.
        """
        database, run = self._database, _run(lease)
        with database.writing() as tx:
            leases.fenced(database, tx, self.app, lease)
            (holder,) = tx.row("select id from outlast_runs where number = ?", run)
            for name in sorted(steps):
                for row in tx.rows(
                    f"select {_ROW} from outlast_flow_steps where run = ? and step = ? and deed = 'do'",
                    run,
                    storable(name),
                ):
                    step = _step(row)
                    if step.key_digest is not None and step.state != "cached":
                        idempotency.forget(tx, self.app, step.key_scope or "", step.key_digest, holder)
                _forget_outputs(tx, run, name)
                tx.execute(
                    "update outlast_flow_steps set state = 'pending', round = ?, attempts = 0, crashes = 0, token = 0, began = null, due = null, "
                    "previous = null, completed = null, error = null, error_type = null, error_class = null, stop_reason = null, "
                    f"changed = {database.now} where run = ? and step = ? and deed = 'do'",
                    *(round_number, run, storable(name)),
                )
                tx.execute(
                    f"update outlast_flow_steps set state = 'pending', round = ?, attempts = 0, crashes = 0, token = 0, began = null, due = null, "
                    "previous = null, completed = null, error = null, error_type = null, error_class = null, stop_reason = null, "
                    f"changed = {database.now} where run = ? and step = ? and deed = 'undo'",
                    *(round_number, run, storable(name)),
                )

    def reset_undo(self, lease: Lease, steps: Iterable[str]) -> None:
        """What was to undo these steps and could not is tried again, from its first attempt on."""
        database, run = self._database, _run(lease)
        with database.writing() as tx:
            leases.fenced(database, tx, self.app, lease)
            for name in sorted(steps):
                tx.execute(
                    "update outlast_flow_steps set state = 'pending', attempts = 0, crashes = 0, began = null, due = null, previous = null, "
                    "error = null, error_type = null, error_class = null, stop_reason = null "
                    "where run = ? and step = ? and deed = 'undo' and state = 'failed'",
                    *(run, storable(name)),
                )

    # -- an attempt -----------------------------------------------------------------------------------------------------

    def begin_step(
        self,
        lease: Lease,
        step: str,
        deed: Deed,
        *,
        made: int,
        round_number: int,
        work: str,
        definition: Mapping[str, Any],
        key: StepKey | None = None,
        holder: str = "",
        dead: Callable[[str], bool] = lambda _: False,
        flushed: bool = False,
        ahead_us: int = 0,
        events: Callable[[KeyDone], Sequence[EventRow]] | None = None,
        heeds: Collection[RunRequest] = (),
    ) -> StepBegun | KeyDone | Asked:
        """
        The right to make an attempt, which is charged, after `made` others; or what came of the work for its key, and
        then the step is `cached` with that, and is not undone. `Asked`, and nothing has begun, if the run is asked for one of
        those that it `heeds`: who waited for a beat would begin steps after the request. Raises `IdempotencyConflict`,
        `IdempotencyMismatch` and `LeaseLost`.
        """
        database, run, name = self._database, _run(lease), storable(step)
        which = (run, name, deed)
        with database.writing(batches=not flushed) as tx:
            now, wanted = leases.fenced(database, tx, self.app, lease, f"{database.now} + {int(ahead_us)}, {_WANTED}")[
                :2
            ]
            row = tx.row(f"select {_ROW} from outlast_flow_steps where {_WHICH}", *which)
            text = json.dumps(definition, ensure_ascii=False)
            found = _unbegun(name, deed, round_number, work, definition, now) if row is None else _step(row)
            if found.made == made + 1 and found.token == lease.token and found.state == "running":
                return StepBegun(
                    found.made, found.attempts, found.began_us or now, now, found.key_token
                )  # its answer was lost
            if found.made != made:
                raise leases.lost(lease)
            if wanted in heeds:
                return Asked(wanted)
            if found.state == "cached" and key is not None:  # as above
                row = tx.row(
                    "select result from outlast_steps where kind = 'run' and owner = ? and name = ?", run, name
                )
                return KeyDone(None if row is None else bytes(row[0]), holder, found.changed_us, None)
            if deed == "undo" and made == 0:
                done = self._done_by_another(tx, run, name, holder, lease, dead, round_number, now, ahead_us)
                if done is not None:
                    if events is not None:
                        insert_events(database, tx, self.app, events(done))
                    return done
            if deed == "undo":
                self._hold(tx, run, name, lease)
            token: int | None = None
            if key is not None:
                begun = idempotency.begin(
                    *(database, tx, self.app, key.scope, key.digest, key.config),
                    holder=holder,
                    lease=lease,
                    dead=dead,
                    ahead_us=ahead_us,
                )
                if isinstance(begun, KeyDone):
                    if row is None:
                        tx.execute(
                            "insert into outlast_flow_steps (run, step, deed, place, state, round, work, definition, changed) "
                            f"values (?, ?, ?, {_PLACE}, 'pending', ?, ?, ?, ?)",
                            *(*which, run, round_number, work, text, now),
                        )
                    self._cache(tx, run, found, begun, work, definition, lease, round_number, now)
                    if events is not None:
                        insert_events(database, tx, self.app, events(begun))
                    return begun
                token = begun.token
            began = found.began_us if found.began_us is not None else now
            scope, digest = (None, None) if key is None else (storable(key.scope), key.digest)
            values = (round_number, lease.token, began, work, text, scope, digest, token, now)
            if row is None:  # all of it at once
                tx.execute(
                    "insert into outlast_flow_steps (run, step, deed, place, state, attempts, made, round, token, began, work, definition, "
                    "key_scope, key_digest, key_token, changed) "
                    f"values (?, ?, ?, {_PLACE}, 'running', 1, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    *(*which, run, *values),
                )
            else:
                tx.execute(
                    "update outlast_flow_steps set state = 'running', attempts = attempts + 1, made = made + 1, due = null, round = ?, "
                    "token = ?, began = ?, work = ?, definition = ?, key_scope = ?, key_digest = ?, key_token = ?, changed = ? "
                    f"where {_WHICH}",
                    *(*values, *which),
                )
        return StepBegun(made + 1, found.attempts + 1, began, now, token)

    def _done_by_another(
        self, tx: Transaction, run: int, name: str, holder: str, lease: Lease, dead: Callable[[str], bool],
        round_number: int, now: int, ahead_us: int,
    ) -> KeyDone | None:  # fmt: skip
        """
        Of a step that was begun, is not done, and is about to be undone: what another run has done since under its key. Then it is that
        run's, and `cached` here. Else the key is held meanwhile; `IdempotencyConflict` if another run is at the work.
        """
        row = tx.row(f"select {_ROW} from outlast_flow_steps where {_WHICH}", run, name, "do")
        step = None if row is None else _step(row)
        if (
            step is None
            or step.key_digest is None
            or step.state not in {"failed", "partial_success", "pending", "waiting"}
        ):
            return None
        scope = step.key_scope or ""
        known = tx.row(
            "select config from outlast_idempotency where app = ? and scope = ? and key = ?",
            *(self.app, storable(scope), step.key_digest),
        )
        if known is None:
            return None
        begun = idempotency.begin(
            *(self._database, tx, self.app, scope, step.key_digest, known[0]),
            holder=holder,
            lease=lease,
            dead=dead,
            ahead_us=ahead_us,
        )
        if not isinstance(begun, KeyDone) or begun.holder == holder:
            return None
        self._cache(tx, run, step, begun, step.work, step.definition, lease, round_number, now)
        return begun

    def _cache(
        self, tx: Transaction, run: int, step: FlowStep, done: KeyDone, work: str, definition: Mapping[str, Any],
        lease: Lease, round_number: int, now: int,
    ) -> None:  # fmt: skip
        if done.outputs is not None:
            _put_outputs(tx, run, step.step, work, done.outputs, (), lease.token, step.made, now)
        tx.execute(
            "update outlast_flow_steps set state = 'cached', round = ?, token = ?, began = ?, due = null, completed = ?, work = ?, "
            f"definition = ?, error = null, error_type = null, error_class = null, stop_reason = null, changed = ? where {_WHICH}",
            *(round_number, lease.token, now, _next_place(tx, run), work, json.dumps(definition, ensure_ascii=False)),
            *(now, run, step.step, step.deed),
        )

    def succeed_step(
        self,
        lease: Lease,
        attempt: StepAttempt,
        *,
        work: str = "",
        outputs: bytes | None = None,
        parts: Sequence[Part] = (),
        packed: bytes | None = None,
        key: StepKey | None = None,
        key_token: int | None = None,
        ttl: float | None = None,
        events: Sequence[EventRow] = (),
        flushed: bool = False,
        ahead_us: int = 0,
    ) -> FlowStep | None:
        """
        An attempt has succeeded: what it has put out is on record with that. If it has undone a step, that step is
        compensated, and its idempotency record goes. A dead letter of it is resolved. `packed` is all that it has put
        out in one piece, for others with the same key. The step as it is then; None if all of that was on record already.
        """
        database, run = self._database, _run(lease)
        which = (run, storable(attempt.step), attempt.deed)
        with database.writing(batches=not flushed) as tx:
            now = _fenced_now(database, tx, self.app, lease, ahead_us)
            row = tx.row(
                f"update outlast_flow_steps set state = 'succeeded', completed = {_COMPLETED}, due = null, error = null, error_type = null, "
                f"error_class = null, stop_reason = null, changed = ? where {_WHICH} and state = 'running' and made = ? and token = ? "
                f"returning {_ROW}",
                *(run, now, *which, attempt.number, lease.token),
            )
            if row is None:
                self._under_way(tx, lease, attempt, which, "succeeded")
                return None
            found = _step(row)
            _insert_attempt(tx, run, attempt)
            if attempt.deed == "do":
                _put_outputs(
                    *(tx, run, attempt.step, work, outputs or b"", parts, lease.token, attempt.number, now),
                    first=attempt.number == 1,
                )
                if key is not None and key_token is not None:
                    begun = idempotency.KeyBegun(storable(key.scope), key.digest, key_token, 0)
                    idempotency.succeed(database, tx, self.app, begun, packed, ttl, lease, ahead_us=ahead_us)
            else:
                self._undone(tx, run, attempt.step, now)
            if found.letter is not None:
                tx.execute(
                    "update outlast_dead_letters set status = 'resolved', moved = ?, reason = ? where id = ? and status in ('open', 'archived')",
                    *(now, "it succeeded in a later round", found.letter),
                )
            insert_events(database, tx, self.app, events)
        return found

    def _undone(self, tx: Transaction, run: int, step: str, now: int) -> None:
        """A step is undone: it counts as not done."""
        row = tx.row(f"select {_ROW} from outlast_flow_steps where {_WHICH}", run, storable(step), "do")
        if row is None:
            return
        done = _step(row)
        holder, pipeline = tx.row("select id, pipeline from outlast_runs where number = ?", run)
        if done.key_digest is not None:
            idempotency.forget(tx, self.app, done.key_scope or "", done.key_digest, holder)
        elif _has_keyed_rows(done) and _is_undone_by_row(done):
            self._hold_no_more(tx, run, step)  # a row that was undone has forgotten its own
        elif _has_keyed_rows(done):  # once for all rows: each of them is undone with that
            idempotency.forget_all(tx, self.app, f"{pipeline}.{step}", holder)
        if done.state in ("succeeded", "cached"):
            tx.execute(
                f"update outlast_flow_steps set state = 'compensated', changed = ? where {_WHICH}",
                *(now, run, storable(step), "do"),
            )

    def _hold(self, tx: Transaction, run: int, step: str, lease: Lease) -> None:
        """
        A step is about to be undone: what this run has done under its key, or under those of its rows, is held, and other runs
        get a conflict until that has ended.
        """
        row = tx.row(f"select {_ROW} from outlast_flow_steps where {_WHICH}", run, storable(step), "do")
        done = None if row is None else _step(row)
        if done is None or "idempotency" not in done.definition["work"]:
            return
        holder, pipeline = tx.row("select id, pipeline from outlast_runs where number = ?", run)
        if _has_keyed_rows(done):
            idempotency.hold(tx, self.app, f"{pipeline}.{step}", None, holder, lease)
        elif done.key_digest is not None:
            idempotency.hold(tx, self.app, done.key_scope or "", done.key_digest, holder, lease)

    def _hold_no_more(self, tx: Transaction, run: int, step: str) -> None:
        """What could not be undone stands: other runs find it done again, with what it has put out."""
        holder, pipeline = tx.row("select id, pipeline from outlast_runs where number = ?", run)
        idempotency.give_back(tx, self.app, f"{pipeline}.{step}", holder)

    def leave_step(self, lease: Lease, step: str, *, ahead_us: int = 0) -> None:
        """
        A step was to be undone, and other runs have done all of its rows under their keys: it is `cached`, and not undone.
        """
        with self._database.writing() as tx:
            now = _fenced_now(self._database, tx, self.app, lease, ahead_us)
            tx.execute(
                f"update outlast_flow_steps set state = 'cached', changed = ? where {_WHICH} and state = 'succeeded'",
                *(now, _run(lease), storable(step), "do"),
            )

    def fail_attempt(
        self,
        lease: Lease,
        attempt: StepAttempt,
        *,
        state: Literal["waiting", "failed", "partial_success", "pending"],
        stop_reason: StopReason | None = None,
        delay_us: int | None = None,
        charged: bool = True,
        keeps_time: bool = True,
        letter: DeadLetterRow | None = None,
        events: Sequence[EventRow] = (),
        flushed: bool = False,
        ahead_us: int = 0,
    ) -> str | None:
        """
        An attempt has failed: the step waits for another one, has failed for good, has lost rows, or is given back (`pending`). One
        that is not `charged` does not count. If the job of the run tries a failed step again after `delay_us`, the attempt has no
        stop reason, and `stop_reason` is why the step alone was not tried again. The id of the dead letter that tells of it, if there is one.
        """
        database, run = self._database, _run(lease)
        which = (run, storable(attempt.step), attempt.deed)
        with database.writing(batches=not flushed) as tx:
            leases.fenced(database, tx, self.app, lease)
            found = self._under_way(tx, lease, attempt, which, state)
            if found is None:
                return None
            (now,) = tx.row(f"select {database.now} + {int(ahead_us)}")
            due = None if delay_us is None else now + delay_us
            _insert_attempt(tx, run, attempt._replace(next_run_us=due))
            told = found.letter
            if letter is not None:
                told = self._told(tx, found.letter, letter, now)
            tx.execute(
                "update outlast_flow_steps set state = ?, attempts = attempts - ?, due = ?, previous = coalesce(?, previous), "
                "began = case when ? = 1 then began end, error = ?, error_type = ?, error_class = ?, stop_reason = ?, letter = ?, "
                f"changed = ? where {_WHICH}",
                *(state, int(not charged), due if state == "waiting" else None),
                *(delay_us if state == "waiting" else None, int(keeps_time)),
                *(attempt.error and storable(attempt.error), attempt.error_type, attempt.error_class, stop_reason),
                *(told, now, *which),
            )
            if found.key_digest is not None:
                _release(database, tx, self.app, found)
            if attempt.deed == "undo" and state == "failed":
                self._hold_no_more(tx, run, attempt.step)
            insert_events(database, tx, self.app, events)
        return told

    def refuse_step(
        self,
        lease: Lease,
        step: str,
        deed: Deed,
        *,
        state: Literal["waiting", "failed", "pending"],
        round_number: int,
        work: str,
        definition: Mapping[str, Any],
        error: str,
        error_type: str,
        error_class: str,
        stop_reason: StopReason | None,
        delay_us: int | None = None,
        letter: DeadLetterRow | None = None,
        events: Sequence[EventRow] = (),
        ahead_us: int = 0,
    ) -> None:
        """
        Nothing was called: a circuit or a limit let nothing through, or the step could not even be begun. What it says of
        that is on record; an attempt is not.
        """
        database, run, name = self._database, _run(lease), storable(step)
        with database.writing() as tx:
            leases.fenced(database, tx, self.app, lease)
            (now,) = tx.row(f"select {database.now} + {int(ahead_us)}")
            (place,) = tx.row("select coalesce(max(place) + 1, 0) from outlast_flow_steps where run = ?", run)
            tx.execute(
                "insert into outlast_flow_steps (run, step, deed, place, state, round, work, definition, changed) "
                "values (?, ?, ?, ?, 'pending', ?, ?, ?, ?) on conflict (run, step, deed) do nothing",
                *(run, name, deed, place, round_number, work, json.dumps(definition, ensure_ascii=False), now),
            )
            (before,) = tx.row(f"select letter from outlast_flow_steps where {_WHICH}", run, name, deed)
            told = before if letter is None else self._told(tx, before, letter, now)
            tx.execute(
                "update outlast_flow_steps set state = ?, round = ?, due = ?, error = ?, error_type = ?, error_class = ?, stop_reason = ?, "
                f"letter = ?, changed = ? where {_WHICH} and state in ('pending', 'waiting')",
                *(
                    state,
                    round_number,
                    None if delay_us is None else now + delay_us,
                    storable(error),
                    error_type,
                    error_class,
                ),
                *(stop_reason, told, now, run, name, deed),
            )
            if deed == "undo" and state == "failed":
                self._hold_no_more(tx, run, step)
            insert_events(database, tx, self.app, events)

    def _told(self, tx: Transaction, before: str | None, letter: DeadLetterRow, now: int) -> str:
        """The dead letter of a step: the one that it has tells this failure, too, unless that is resolved."""
        known = None if before is None else tx.row("select status from outlast_dead_letters where id = ?", before)
        if before is not None and known is not None and known[0] in ("open", "archived"):
            note_failure(tx, before, _failure(letter), now)
            tx.execute(
                "update outlast_dead_letters set status = 'open', moved = ?, replays = replays + 1 where id = ?",
                now,
                before,
            )
            return before
        tx.insert("outlast_dead_letters", LETTER, [letter_values(self.app, letter, letter.created_us)])
        return letter.id

    def _under_way(
        self, tx: Transaction, lease: Lease, attempt: StepAttempt, which: tuple[Any, ...], state: str
    ) -> FlowStep | None:
        """The step whose attempt ends; None if that is on record already. `LeaseLost` if the attempt is another's."""
        row = tx.row(f"select {_ROW} from outlast_flow_steps where {_WHICH}", *which)
        found = None if row is None else _step(row)
        if found is None or found.made != attempt.number or found.token != lease.token:
            raise leases.lost(lease)
        if found.state == "running":
            return found
        known = tx.row(f"select 1 from outlast_step_attempts where {_WHICH} and number = ?", *which, attempt.number)
        if known is None or found.state not in (state, "compensated"):
            raise leases.lost(lease)
        return None


# -- in a transaction ------------------------------------------------------------------------------------------------------


def _failure(letter: DeadLetterRow) -> LetterFailure:
    return LetterFailure(
        *(letter.stage, letter.error, letter.error_type, letter.error_class, letter.tier, letter.fingerprint),
        *(letter.attempts, letter.first_failed_us, letter.stop_reason),
    )


def _run(lease: Lease) -> int:
    number, _, _ = lease.key.partition("/")
    return int(number)


def _step(row: Any) -> FlowStep:
    step = FlowStep(*row)
    return step._replace(definition=json.loads(row[14]))


def _has_keyed_rows(step: FlowStep) -> bool:
    """Whether the idempotency keys of a step are those of its rows. They are not on record with the step."""
    return "for_each" in step.definition["work"] and "idempotency" in step.definition["work"]


def _is_undone_by_row(step: FlowStep) -> bool:
    return bool(step.definition["work"].get("compensate", {}).get("per") == "row")


def _fenced_now(database: Database, tx: Transaction, app: str, lease: Lease, ahead_us: int) -> int:
    """The database's time, in a transaction that holds the lease; `LeaseLost` if it is another's."""
    return int(leases.fenced(database, tx, app, lease, f"{database.now} + {int(ahead_us)}")[0])


def _unbegun(step: str, deed: Deed, round_number: int, work: str, definition: Mapping[str, Any], now: int) -> FlowStep:
    """A step of which nothing is on record."""
    return FlowStep(
        *(step, deed, 0, "pending", round_number, 0, 0, 0, 0, None, None, None, None, work, definition),
        *(None, None, None, None, None, None, None, None, now),
    )


def _next_place(tx: Transaction, run: int) -> int:
    (place,) = tx.row(f"select {_COMPLETED}", run)
    return int(place)


def _attempt(row: Sequence[Any]) -> StepAttempt:
    found = StepAttempt(*row)
    return found._replace(spent=json.loads(row[-1])) if row[-1] else found


def _insert_attempt(tx: Transaction, run: int, attempt: StepAttempt) -> None:
    spent = json.dumps(attempt.spent) if attempt.spent else None
    row = [storable(value) if isinstance(value, str) else value for value in (*attempt[:-1], spent)]
    marks = ", ".join("?" * (len(row) + 1))
    new = tx.rows(
        f"insert into outlast_step_attempts (run, {_ATTEMPT}) values ({marks}) on conflict (run, step, deed, number) do nothing "
        "returning number",
        *(run, *row),
    )
    if new and attempt.spent:  # the run's own sum, as that of a run over items
        (before,) = tx.row("select spent from outlast_progress where run = ? and shard = 0", run)
        summed: dict[str, float] = json.loads(before)
        add_to(summed, attempt.spent)
        tx.execute("update outlast_progress set spent = ? where run = ? and shard = 0", json.dumps(summed), run)


def _forget_outputs(tx: Transaction, run: int, step: str) -> None:
    name = storable(step)
    tx.execute("delete from outlast_steps where kind = 'run' and owner = ? and name = ?", run, name)
    # A name of a step has no space, and no sign that LIKE reads.
    begins = f"{_TABLE}{name} "
    tx.execute(
        "delete from outlast_artifacts where kind = 'run' and owner = ? and attempt = 0 and substr(name, 1, ?) = ?",
        *(run, len(begins), begins),
    )


def _put_outputs(
    tx: Transaction, run: int, step: str, work: str, outputs: bytes, parts: Sequence[Part], token: int, attempt: int, now: int,
    *, first: bool = False,
) -> None:  # fmt: skip
    if not first:  # of the first attempt there is nothing to forget
        _forget_outputs(tx, run, step)
    tx.execute(
        "insert into outlast_steps (kind, owner, name, arguments, payload, result, token, attempt, ended) "
        "values ('run', ?, ?, ?, '', ?, ?, ?, ?)",
        *(run, storable(step), work, outputs, token, attempt, now),
    )
    for part in parts:
        tx.execute(
            "insert into outlast_artifacts (kind, owner, attempt, name, data, size, cut, kept) values ('run', ?, 0, ?, ?, ?, ?, ?)",
            *(run, storable(f"{_TABLE}{step} {part.name}"), part.data, len(part.data), False, now),
        )


def _release(database: Database, tx: Transaction, app: str, step: FlowStep) -> None:
    if step.key_token is not None and step.key_digest is not None:
        begun = idempotency.KeyBegun(step.key_scope or "", step.key_digest, step.key_token, 0)
        idempotency.release(database, tx, app, begun)
