"""
Runs, their shards, and the leases on them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from outlast.calls.records import add_to
from outlast.kernel.clock import here
from outlast.store.leases import Leases, fenced, label, renew, take
from outlast.store.records import (
    ENDED,
    RUN_MOVES,
    RunCounts,
    RunRecord,
    ShardState,
    SinkClaim,
    StageMark,
    from_us,
    job_of_run,
    key_text,
    shard_key,
    shard_of,
    storable,
    to_us,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlast.store.database import Transaction
    from outlast.store.records import Lease, RunKind, RunRequest, RunStatus

_RUN = "number, id, pipeline, run_key, kind, status, reason, why, stages, wanted, sink, started, finished, identity, sink_at, replayed_by, elsewhere"
_SHARD = "run, passes, read, exhausted, succeeded, skipped, dlq, failed, degraded, spent"
_OF_APPS = ("outlast_runs", "outlast_dead_letters", "outlast_states", "outlast_queues", "outlast_schedules")
# Jobs, as their indexes have them: there may be millions, and an app is one step in each.
_JOBS_OF_APPS = tuple(
    f"outlast_jobs where state {state}"
    for state in (
        "= 'ready'",
        "= 'waiting'",
        "= 'alone'",
        "in ('processing', 'held')",
        "in ('succeeded', 'failed', 'cancelled')",
    )
)
_FEWEST = 4  # digits of an id by which a run is known
_SHARD_IS = "run = ? and shard = ?"


class Runs(Leases):
    """The part of the store that knows runs."""

    named: tuple[str, ...] = ()  # the option of commands that named the store, if one did

    # -- apps ----------------------------------------------------------------------------------------------------------

    def apps(self) -> list[str]:
        """The apps that have anything in this store: runs, jobs, dead letters, or things that their processes share."""
        every = " union ".join(f"select app from {table}" for table in _OF_APPS)
        with self._database.snapshot() as tx:  # a job that goes from one state to another is in one of them
            found = {row[0] for row in tx.rows(every)}
            for jobs in _JOBS_OF_APPS:
                last: str | None = ""
                while last is not None:
                    found.add(last)
                    (last,) = tx.row(f"select min(app) from {jobs} and app > ?", last)
        return sorted(found - {""})

    def app_option(self) -> list[str]:
        """What a command needs to find this app: its name, where the store has several."""
        return ["--app", self.app] if len(self.apps()) > 1 else []

    def place_option(self) -> list[str]:
        """What a printed command needs to find this store and this app."""
        return [*self.named, *self.app_option()]

    def has_app(self, name: str) -> bool:
        """Whether this app has anything here: cheap, whatever others have."""
        places = [*(f"{table} where" for table in _OF_APPS), *(f"{jobs} and" for jobs in _JOBS_OF_APPS)]
        with self._database.snapshot() as tx:
            return any(tx.row(f"select 1 from {place} app = ? limit 1", storable(name)) is not None for place in places)

    # -- runs ----------------------------------------------------------------------------------------------------------

    def open_run(
        self,
        pipeline: str,
        run_key: str,
        stages: Sequence[StageMark],
        kind: RunKind = "run",
        sink: str | None = None,
        sink_at: str | None = None,
        identity: Mapping[str, Any] | None = None,
        *,
        is_new: bool = False,
    ) -> RunRecord:
        """
        The run of this key: a new one, or the one that is there, as it is. With `is_new` the key was generated, and a run
        that has it already is a defect.
        """
        world = here.get()
        row = (
            self.app,
            pipeline,
            key_text(run_key),
            kind,
            _stages(stages),
            sink,
            to_us(world.clock.now()),
            _identity(identity),
            sink_at,
        )
        columns = "id, app, pipeline, run_key, kind, stages, sink, started, identity, sink_at, status, why"
        insert = (
            f"insert into outlast_runs ({columns}) "
            "values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'running', '') on conflict do nothing"
        )
        with self._database.writing() as tx:
            while True:
                made = tx.execute(insert, world.ids.new(), *row).rowcount == 1
                found = self._runs(tx, "and pipeline = ? and run_key = ?", pipeline, key_text(run_key))
                if found and is_new and not made:
                    message = f"the generated run key {run_key} belongs to a stored run of {pipeline}: this process repeats its random numbers"
                    raise RuntimeError(message)
                if found:
                    return found[0]
                if not world.ids.repeatable:
                    raise RuntimeError(
                        f"a generated run id belongs to a stored run: this process repeats its random numbers ({pipeline})"
                    )

    def run(self, id: str, /) -> RunRecord | None:
        """The run of this id."""
        with self._database.reading() as tx:
            return next(iter(self._runs(tx, "and id = ?", id)), None)

    def find_run(self, pipeline: str, run_key: str) -> RunRecord | None:
        """The run of this key."""
        with self._database.reading() as tx:
            return next(iter(self._runs(tx, "and pipeline = ? and run_key = ?", pipeline, key_text(run_key))), None)

    def find_runs(self, text: str, pipeline: str | None = None) -> list[RunRecord]:
        """
        The runs that a person may mean: the one of this id, else those of this key or whose ids begin so, the newest
        first.
        """
        key, text = key_text(text), storable(text)
        named, owner = ("", ()) if pipeline is None else ("pipeline = ? and ", (pipeline,))
        where = f"and (id = ? or {named}(run_key = ? or substr(id, 1, ?) = ?)) order by started desc, number desc"
        with self._database.reading() as tx:
            found = self._runs(tx, where, text, *owner, key, max(len(text), _FEWEST), text)
        return [run for run in found if run.id == text] or found

    def flow_above(self, run: RunRecord) -> tuple[RunRecord, str] | None:
        """The flow's run and the step that has made this run over rows or items, or undoes them; None of another run."""
        above, _, rest = run.run_key.partition("/")
        flow = self.run(above) if rest and run.kind != "flow" else None
        return None if flow is None or flow.kind != "flow" else (flow, rest.partition("/")[0])

    def rows_above(self, run_id: str | None) -> tuple[RunRecord, str] | None:
        """The same of a run over rows only: items of a pipeline have its code, which does them again by itself."""
        run = None if run_id is None else self.run(run_id)
        found = None if run is None else self.flow_above(run)
        if run is None or found is None or run.pipeline != f"{found[0].pipeline}.{found[1]}":
            return None
        return found

    def find_replays(self, run_key: str, pipeline: str | None = None) -> list[RunRecord]:
        """The replays of this key, of any pipeline unless one is named."""
        named = ("" if pipeline is None else " and pipeline = ?", *(() if pipeline is None else (pipeline,)))
        with self._database.reading() as tx:
            return self._runs(tx, f"and kind = 'replay' and run_key = ?{named[0]}", key_text(run_key), *named[1:])

    def runs(
        self,
        pipeline: str | None = None,
        status: RunStatus | None = None,
        limit: int = 50,
        before: RunRecord | None = None,
    ) -> list[RunRecord]:
        """The newest runs first; `before` is the last one of the page before."""
        where, values = "", list[Any]()
        for column, value in (("pipeline", pipeline), ("status", status)):
            if value is not None:
                where += f" and {column} = ?"
                values.append(value)
        if before is not None:
            where += " and (started, number) < (?, ?)"
            values += [to_us(before.started_at), before.number]
        with self._database.reading() as tx:
            return self._runs(tx, f"{where} order by started desc, number desc limit ?", *values, limit)

    def set_run(
        self,
        lease: Lease | None,
        id: str,
        *,
        status: RunStatus,
        reason: str | None = None,
        why: str = "",
        stages: Sequence[StageMark] | None = None,
        identity: Mapping[str, Any] | None = None,
        undoes: bool = False,
        same_pass: bool = False,
    ) -> bool:
        """
        Move a run to another status, if `RUN_MOVES` has that move; whether it did. `LeaseLost` if the lease is not the
        newest. `undoes`: it goes on only to be undone, which a cancelled one may, too.

        A run that ends gets the time of its end, and one that goes on again loses it and what was wanted of it; not in the
        `same_pass`, of which it was wanted. `stages` replaces its stages, `identity` what makes it itself.
        """
        with self._database.writing() as tx:
            if lease is not None:
                fenced(self._database, tx, self.app, lease)
            return self._move_run(tx, id, status, reason, why, stages, identity, undoes=undoes, same_pass=same_pass)

    def end_run(
        self,
        lease: Lease,
        id: str,
        *,
        status: RunStatus,
        reason: str | None,
        why: str,
        heard: RunRequest | None,
    ) -> RunRequest | None:
        """
        As `set_run`, for a pass that is over, unless something is wanted of the run that was not `heard`: then nothing is
        written, and that is returned. So a request that was accepted is never passed over.
        """
        with self._database.writing() as tx:
            fenced(self._database, tx, self.app, lease)
            found = tx.row(f"select wanted from outlast_runs where id = ? {self._database.for_change}", id)
            wanted: RunRequest | None = found and found[0]
            if wanted is not None and wanted != heard:
                return wanted
            self._move_run(tx, id, status, reason, why)
        return None

    def _move_run(
        self,
        tx: Transaction,
        id: str,
        status: RunStatus,
        reason: str | None,
        why: str,
        stages: Sequence[StageMark] | None = None,
        identity: Mapping[str, Any] | None = None,
        *,
        undoes: bool = False,
        same_pass: bool = False,
    ) -> bool:
        finished = to_us(here.get().clock.now()) if status in ENDED else None
        sets = "status = ?, reason = ?, why = ?, finished = ?"
        values: list[Any] = [status, reason and storable(reason), storable(why), finished]
        if status == "running" and not same_pass:
            # A request to pause was for a pass that is over. The run is cancelled, whichever process goes on with it.
            sets += ", wanted = case when status in ('running', 'interrupted') and wanted <> 'pause' then wanted end"
        if stages is not None:
            sets += ", stages = ?"
            values.append(_stages(stages))
        if identity is not None:
            sets += ", identity = ?"
            values.append(_identity(identity))
        job = None
        if identity is not None or status == "cancelled":
            job = self._job_left_behind(tx, id, job_of_run("flow", _identity(identity)))
        done = tx.execute(
            f"update outlast_runs set {sets} where app = ? and id = ? and status {self._database.among}",
            *values,
            self.app,
            id,
            self._database.passed(
                before
                for before, moves in RUN_MOVES.items()
                if status in moves or (undoes and before == "cancelled" and status == "running")
            ),
        )
        if done.rowcount == 1 and job is not None:  # from now on the run says what needs attention
            tx.execute(
                f"update outlast_dead_letters set status = 'archived', moved = {self._database.now}, reason = ? where app = ? and status = 'open' "
                "and id = (select letter from outlast_jobs where app = ? and id = ? and state = 'failed')",
                *("its run was continued or cancelled without the job", self.app, self.app, job),
            )
        return done.rowcount == 1

    def _job_left_behind(self, tx: Transaction, run: str, successor: int | None) -> int | None:
        """The job whose work this run of a flow was, unless it is the `successor`."""
        found = tx.row("select kind, identity from outlast_runs where app = ? and id = ?", self.app, run)
        job = None if found is None else job_of_run(*found)
        return None if job == successor else job

    def hold_sink(self, lease: Lease, replayed_by: str | None) -> None:
        """
        Note that a replay has opened the sink of the lease's run, or that it has finished with it. `LeaseLost` if the
        lease is not the newest.
        """
        with self._database.writing() as tx:
            fenced(self._database, tx, self.app, lease)
            tx.execute("update outlast_runs set replayed_by = ? where number = ?", replayed_by, shard_of(lease.key)[0])

    def note_sink(self, lease: Lease, sink_at: str | None) -> None:
        """Note how the sink of the lease's run is opened again. `LeaseLost` if the lease is not the newest."""
        with self._database.writing() as tx:
            fenced(self._database, tx, self.app, lease)
            tx.execute("update outlast_runs set sink_at = ? where number = ?", sink_at, shard_of(lease.key)[0])

    def change_sink(self, lease: Lease, sink: str | None, *, anew: bool) -> None:
        """
        Note another name for the sink of the lease's run, and `anew` that nothing is in it yet. `LeaseLost` if the
        lease is not the newest.
        """
        with self._database.writing() as tx:
            fenced(self._database, tx, self.app, lease)
            tx.execute("update outlast_runs set sink = ? where number = ?", sink, shard_of(lease.key)[0])
            if anew:
                tx.execute(
                    f"update outlast_progress set sink_offset = null, sink_mark = null where {_SHARD_IS}",
                    *shard_of(lease.key),
                )

    def mark_sink(self, lease: Lease, mark: str | None) -> None:
        """Note by what the sink of the lease's run is known again. `LeaseLost` if the lease is not the newest."""
        with self._database.writing() as tx:
            fenced(self._database, tx, self.app, lease)
            tx.execute(f"update outlast_progress set sink_mark = ? where {_SHARD_IS}", mark, *shard_of(lease.key))

    def held_sinks(self) -> list[RunRecord]:
        """The runs whose sinks a replay has opened and not finished with, in their order."""
        with self._database.reading() as tx:
            return self._runs(tx, "and replayed_by is not null order by number")

    def claims(self, run_number: int, addresses: Sequence[str]) -> list[SinkClaim]:
        """What other runs, also of other apps, have committed to sinks of these addresses, the newest first."""
        rows = self._database.rows(
            "select pipeline, run_key, sink_offset, sink_mark, number from outlast_runs join outlast_progress on run = number "
            f"where sink_at in ({', '.join('?' * len(addresses))}) and number <> ? and sink_offset > 0 order by number desc",
            *(*addresses, run_number),
        )
        return [
            SinkClaim(pipeline, key, offset, mark, number > run_number) for pipeline, key, offset, mark, number in rows
        ]

    def forget_run(self, lease: Lease) -> bool:
        """
        Forget a run that never began: nothing was read, and nobody has worked on it before. Whether it was one; its
        lease goes with it. Whoever has found it meanwhile and takes its lease finds no run, and begins anew.
        """
        number, shard = shard_of(lease.key)
        with self._database.writing() as tx:
            fenced(self._database, tx, self.app, lease)
            found = tx.row("select read, passes from outlast_progress where run = ? and shard = ?", number, shard)
            used = "select 1 from outlast_replays where run = ? limit 1"
            if found[0] or found[1] > 1 or tx.row(used, number) is not None:
                return False
            for table in ("outlast_progress", "outlast_shards"):
                tx.execute(f"delete from {table} where run = ?", number)
            tx.execute("delete from outlast_runs where number = ?", number)
        return True

    def wanted_of(self, run_number: int) -> RunRequest | None:
        """What a run is asked to do."""
        found = self._database.row("select wanted from outlast_runs where number = ?", run_number)
        return found and found[0]  # type: ignore[no-any-return]

    def request_end(self, id: str, what: RunRequest | None) -> bool:
        """
        Ask a run to pause or to be cancelled; its next beat hears it, a flow also before a step begins. Whether there is such a run that has not ended.
        """
        with self._database.writing() as tx:
            done = tx.execute(
                "update outlast_runs set wanted = ? where app = ? and id = ? and finished is null", what, self.app, id
            )
            return done.rowcount == 1

    def _runs(self, tx: Transaction, where: str, *values: Any) -> list[RunRecord]:
        rows = tx.rows(f"select {_RUN} from outlast_runs where app = ? {where}", self.app, *values)
        numbers = self._database.passed(row[0] for row in rows)
        shards: dict[int, list[Any]] = {row[0]: [] for row in rows}
        for shard in tx.rows(f"select {_SHARD} from outlast_progress where run {self._database.among}", numbers):
            shards[shard[0]].append(shard[1:])
        return [_record(row, shards[row[0]]) for row in rows]

    # -- leases --------------------------------------------------------------------------------------------------------

    def take_run(self, run_number: int, shard: int, owner: str, ttl: float, *, counted: bool = True) -> Lease | None:
        """
        The right to write for a shard, as `take_lease`. It counts as a pass unless told otherwise: a replay that brings
        an item home does not start the run again.
        """
        with self._database.writing() as tx:
            lease = take(
                self._database,
                tx,
                self.app,
                "run",
                shard_key(run_number, shard),
                owner,
                ttl,
                *_guests(tx, self.app, run_number),
            )
            if lease is not None and counted:
                tx.execute(
                    "update outlast_progress set passes = passes + 1 where run = ? and shard = ?", run_number, shard
                )
        return lease

    def newest_pass(self, run_number: int) -> int:
        """The highest pass that an attempt of the run is on record under, or 0."""
        found = self._database.row("select max(pass) from outlast_attempts where run = ?", run_number)
        return (found and found[0]) or 0

    def run_lease(self, run_number: int, shard: int = 0) -> Lease | None:
        """Who may write for a shard now, as `lease_of`."""
        return self.lease_of("run", shard_key(run_number, shard))

    def beat(self, lease: Lease) -> tuple[Lease, RunRequest | None]:
        """Keep the lease of a run, as `renew_lease`, and hear what is wanted of the run."""
        with self._database.writing() as tx:
            renewed = renew(self._database, tx, self.app, lease)
            wanted = tx.row("select wanted from outlast_runs where number = ?", shard_of(lease.key)[0])
        return renewed, wanted and wanted[0]

    def shard_state(self, run_number: int, shard: int) -> ShardState:
        """How far a shard has come."""
        found = self._database.row(
            "select read, sink_offset, exhausted, sink_mark from outlast_progress where run = ? and shard = ?",
            run_number,
            shard,
        )
        if not found:
            return ShardState(0, None, source_exhausted=False)
        return ShardState(found[0], found[1], bool(found[2]), found[3])


def _guests(tx: Transaction, app: str, run_number: int) -> list[str]:
    """What the transactions of a replay are called that brings items home to this run."""
    rows = tx.rows(
        "select replay.number from outlast_runs home join outlast_runs replay on replay.id = home.replayed_by where home.number = ?",
        run_number,
    )
    return [label(app, "run", shard_key(number, 0)) for (number,) in rows]


def _stages(stages: Sequence[StageMark]) -> str:
    return json.dumps([[mark.name, mark.version, mark.checkpoint] for mark in stages])


def _identity(identity: Mapping[str, Any] | None) -> str | None:
    return None if identity is None else storable(json.dumps(identity, ensure_ascii=False))


def _record(row: Any, shards: list[Any]) -> RunRecord:
    passes, read, exhausted, *counts, spent = zip(*shards, strict=True) if shards else ((),) * 9
    added: dict[str, float] = {}
    for text in spent:
        add_to(added, json.loads(text))
    values: dict[str, Any] = dict(zip(_RUN.split(", "), row, strict=True))
    started, finished, identity = values.pop("started"), values.pop("finished"), values.pop("identity")
    return RunRecord(
        stages=tuple(StageMark(*mark) for mark in json.loads(values.pop("stages"))),
        started_at=from_us(started),
        finished_at=None if finished is None else from_us(finished),
        elsewhere=json.loads(values.pop("elsewhere") or "{}"),
        counts=RunCounts(sum(read), *map(sum, counts)),
        source_exhausted=bool(shards) and all(exhausted),
        spent=added,
        passes=max(passes, default=0),
        identity=None if identity is None else json.loads(identity),
        **values,
    )
