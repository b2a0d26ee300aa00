"""
What a store has on record, as the command line and a desk ask for it: values, and the documents that programs get of
them.

    Views          runs and what is in them, dead letters, events, breakers; and wishes to what is running; jobs: `jobs`
    run_document   and its like: a value as a document for programs
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.deadletters import DeadLetters, as_groups
from outlast.errors import ConfigurationError, OutlastError
from outlast.kernel.clock import here
from outlast.kernel.redact import masked, sanitise
from outlast.kernel.wording import process_of
from outlast.report.jobs import JobViews, job_attempt_document
from outlast.store.codec import Codec
from outlast.store.faults import StoreError
from outlast.store.letters import earlier_failures, edits_in
from outlast.store.records import EventRow, Failure, from_us, to_us
from outlast.work.leases import certainly_dead

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from outlast.breaker import CircuitBreaker
    from outlast.deadletters import DeadLetter
    from outlast.deadletters.letters import FailureGroups
    from outlast.flow.results import FlowResult
    from outlast.pipeline import RunResult
    from outlast.pipeline.record.rowerrors import ErrorLine
    from outlast.report import Report, Story
    from outlast.report.flows import FlowViews
    from outlast.report.jobs import JobView
    from outlast.store import Store
    from outlast.store.letters import Edit
    from outlast.store.records import AttemptRow, ItemRow, ItemStatus, RunRecord, RunRequest, RunStatus, SharedState

ABANDONED = "interrupted: the process that ran it is gone, or cannot reach the store."
_COMMAND = "run_command"  # the event that says how a run was started, so that it can go on in the same way
_RUN = "id pipeline run_key kind status reason why passes wanted sink started_at finished_at".split()


class Plain(Codec):
    """
    Payloads as a shell can take them: without the classes that the pipeline's own code would give them, and without
    numpy's.
    """

    _plainly = True


class Shell(Plain):
    """The same, as a shell can show them: one that cannot be read says so."""

    def decode(self, data: bytes, known: Mapping[str, type] | None = None) -> Any:
        try:
            return super().decode(data, known)
        except StoreError:
            return "<unreadable here: it was stored through a codec of the app's own>"


class LetterView(NamedTuple):
    """
    A dead letter with every attempt at it, each with the run that made it, and how it had failed before it was
    replayed.
    """

    letter: DeadLetter
    tried: Sequence[tuple[RunRecord, AttemptRow]]
    earlier: Sequence[Mapping[str, Any]]
    job: JobView | None = None  # whose letter it is, if it is one of a job that is still on record

    @property
    def edits(self) -> Sequence[Edit]:
        """When its payload was edited, by whom and why."""
        return edits_in(self.letter.metadata)


class Views:
    """All that may be asked of a store from outside of the pipelines that fill it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def store(self) -> Store:
        """For rooms that ask it themselves."""
        return self._store

    def apps_of_jobs(self, ids: Sequence[str]) -> list[str]:
        """The apps that have these jobs, by name: numbers of jobs are not used twice in a store."""
        numbers = [int(one) for one in ids if one.isascii() and one.isdecimal() and len(one) < 19]
        return sorted({app for number in numbers if (app := self._store.app_of_job(number)) is not None})

    def app_option(self) -> list[str]:
        """What a command needs to find this app."""
        return self._store.app_option()

    def code_option(self, pipeline: str) -> list[str]:
        """What a command needs to find the code of a pipeline."""
        return self._store.code_option(pipeline)

    @property
    def jobs(self) -> JobViews:
        """Durable jobs, their queues and their workers."""
        return JobViews(self._store)

    @property
    def flows(self) -> FlowViews:
        """Runs of flows."""
        from outlast.report.flows import FlowViews

        return FlowViews(self._store)

    @property
    def app(self) -> str:
        """The app whose things are asked for."""
        return self._store.app

    # -- runs ----------------------------------------------------------------------------------------------------------

    def run(self, wanted: str, pipeline: str | None = None) -> RunRecord:
        """The run of this id, of the beginning of one, or of this key, as people are told of it."""
        matches = self._store.find_runs(wanted, pipeline)
        if len(matches) == 1:
            return as_told(self._store, matches[0])
        if not matches:
            there = shlex.join(["outlast", "runs", "list", *self._store.place_option()])
            message = f"expected the id or the key of a run, got: {wanted!r}. Those there are: {there}"
            raise ConfigurationError(message)
        listed = ", ".join(f"{record.id[:12]} ({record.pipeline})" for record in matches[:5])
        message = f"expected one run, but {len(matches)} are called {wanted!r}: {listed}. Name one by its id."
        raise ConfigurationError(message)

    def called(self, run: RunRecord) -> tuple[str, ...]:
        """What a command needs to mean this run."""
        return called(self._store, run)

    def of(self, result: RunResult[Any] | FlowResult) -> RunRecord:
        """The run of a result, as it is on record."""
        found = self._store.run(result.id)
        if found is None:
            raise OutlastError(f"the run {result.id} is not in the store any more.")
        return found

    def runs(self, pipeline: str | None = None, status: RunStatus | None = None, *, limit: int = 50) -> list[RunRecord]:
        """
        The newest runs, as people are told of them: one that is on record as running and that nobody runs is among the
        interrupted.
        """
        found = self._newest(pipeline, status, limit)
        return self.flows.with_counts(found) if any(run.kind == "flow" for run in found) else found

    def _newest(self, pipeline: str | None, status: RunStatus | None, limit: int) -> list[RunRecord]:
        store = self._store
        if status not in {"running", "interrupted"}:
            return [as_told(store, run) for run in store.runs(pipeline, status, limit=limit)]
        found = store.runs(pipeline, "interrupted", limit=limit) if status == "interrupted" else []
        found += islice((run for run in self._under_way(pipeline) if run.status == status), limit)
        return sorted(found, key=lambda run: (run.started_at, run.number), reverse=True)[:limit]

    def _under_way(self, pipeline: str | None = None) -> Iterator[RunRecord]:
        """The runs that are on record as running, the newest first, as people are told of them."""
        before = None
        while page := self._store.runs(pipeline, "running", limit=500, before=before):
            yield from (as_told(self._store, run) for run in page)
            before = page[-1]

    def abandoned(self) -> list[RunRecord]:
        """The runs that are on record as running, and that nobody runs."""
        return [run for run in self._under_way() if run.status != "running"]

    def replay(self, run_key: str, pipeline: str | None = None) -> RunRecord | None:
        """The replay of this key, of any pipeline unless one is named."""
        return next(iter(self._store.find_replays(run_key, pipeline)), None)

    def worker(self, run: RunRecord) -> str | None:
        """
        Which process is running it now, for a person's eye; None if none is, or if that was one of this machine that is
        gone.
        """
        lease = self._store.run_lease(run.number, 0)
        if lease is None or certainly_dead(lease.owner):
            return None
        return process_of(lease.owner)

    def problems(self, run: RunRecord) -> FailureGroups:
        """What is failed of a run and open, the largest group first."""
        return as_groups(self._store.failures(run, "open"))

    def items(
        self, run: RunRecord, status: ItemStatus | None = None, *, after: int | None = None, limit: int = 50
    ) -> list[ItemRow]:
        """A page of its finished items, in the order of its source."""
        return self._store.items(run.number, status, after=after, limit=limit)

    def attempts(self, run: RunRecord, item: str | None = None, *, limit: int = 100) -> list[AttemptRow]:
        """Its first attempts, or those of one item, by its key or its position."""
        found = self._store.attempts(run.number, item, limit=limit)
        if not found and item is not None and item.isdecimal():
            return self._store.attempts(run.number, int(item), limit=limit)
        return found

    def errors(self, run: RunRecord) -> Iterator[ErrorLine]:
        """What is wrong with its items, error by error."""
        from outlast.pipeline.record.rowerrors import error_lines

        return error_lines(self._store, run.id, Shell().decode)

    def outputs(self, run: RunRecord, *, reveal: bool = False) -> Iterator[Any]:
        """What its items became, masked unless told otherwise; none if it has a sink."""
        decoded = map(Shell().decode, self._store.outputs(run.number))
        return decoded if reveal else map(masked, decoded)

    def report(self, run: RunRecord) -> Report:
        """What it came to and why."""
        from outlast.report.gather import gathered

        return gathered(self._store, run)

    def story(self, run: RunRecord, item: str | int) -> Story:
        """One item's way through it, by its key or its position in the source."""
        from outlast.report.stories import told

        return told(self._store, run, item)

    def command(self, run: RunRecord) -> dict[str, Any]:
        """How it was started by a command, the last time; empty if it was not."""
        after, last = None, dict[str, Any]()
        while page := self._store.events(run.id, _COMMAND, after=after):
            last, after = dict(page[-1].data), page[-1].number
        return last

    def replayed_and_open(self, run: RunRecord) -> set[str]:
        """The dead letters that a replay had on its list and that are open now."""
        listed = {letter for _, letter in self._store.replay_list(run.number, unfinished=False)}
        return listed & self._open(pipeline=run.pipeline)

    def marks_of(self, pipeline: str, letters: AbstractSet[str], given: Mapping[str, Any]) -> dict[str, Any]:
        """
        Of these marks those that leave out none of these letters: one that fails again may have another group, stage,
        text and age than before.
        """
        marks = dict(given)
        for name in ("group", "text", "stage", "older_than_days"):
            if letters <= self._open(**({"pipeline": pipeline} | marks)):
                break
            marks.pop(name, None)
        return marks

    def _open(self, **where: Any) -> set[str]:
        return {id_ for id_, _, _ in self._store.letter_owners(**where, status="open")}

    def note_command(self, run_id: str, command: Mapping[str, Any]) -> None:
        """Keep how a run was started."""
        world = here.get()
        self._store.add_events([EventRow(world.ids.new(), _COMMAND, to_us(world.clock.now()), run_id, command)])

    # -- wishes to what is running -------------------------------------------------------------------------------------

    def pause(self, run: RunRecord) -> bool:
        """Ask a run to pause; whether it has not ended."""
        return self._store.request_end(run.id, "pause")

    def ask(self, run: RunRecord, what: RunRequest) -> bool:
        """Ask whoever works on a run to end it so; whether it has not ended."""
        return self._store.request_end(run.id, what)

    def cancel(self, run: RunRecord) -> tuple[bool, str | None]:
        """
        End a run for good: whether there was something to end, and which process was asked to, if one is running it.
        """
        worker = self.worker(run)
        if worker is not None:
            return self._store.request_end(run.id, "cancel"), worker
        if run.status in {"failed", "partial_success"} and not unfinished(run):
            return False, None  # with something left it would go on when it is run again
        why = "Cancelled by hand."
        if run.kind == "flow":
            from outlast.flow.opening import cancelled

            return cancelled(self._store, run, why), None
        return self._store.set_run(None, run.id, status="cancelled", reason="cancelled", why=why), None

    # -- breakers ------------------------------------------------------------------------------------------------------

    def breakers(self) -> list[dict[str, Any]]:
        """
        The circuits that processes share; the breakers of runs that a command has started, as they were last seen; and the
        breakers that are not closed of every process that has this store, each with its `process`.
        """
        processes = list(self._process_breakers())
        watched = self._store.states("watched_breaker")
        own = {one["name"] for one in processes}
        return [
            *(_circuit(state) for state in self._store.states("breaker")),
            *(
                {"name": state.name, "shared": False, "changed_at": state.changed_at} | dict(state.data)
                for state in watched
                if state.name not in own
            ),
            *processes,
        ]

    def _process_breakers(self) -> Iterator[dict[str, Any]]:
        from outlast.pipeline.breakers import KIND, reported

        for who, name, changed, one in sorted(reported(*self._store.look(KIND, "all")), key=lambda row: row[:2]):
            yield {
                "name": name,
                "shared": False,
                "changed_at": from_us(round(changed * 1e6)),
                "state": one["state"],
                "failure_count": one["failure_count"],
                "wanted": None,
                "reason": one["reason"],
                "opened_at": None if one["opened_at"] is None else from_us(round(one["opened_at"] * 1e6)),
                "retry_at": None,
                "process": process_of(who),
            }

    def breakers_now(self) -> list[dict[str, Any]]:
        """
        The breakers whose state is known, each name once. One that several processes have is open if it is open in one of
        them; `processes` are those. A breaker of a run that shares none is as it was last seen; if no run is in progress, its
        state is unknown.
        """
        known = self.breakers()
        unknown = any(not one["shared"] and "process" not in one for one in known) and not self.under_way()
        found: dict[str, dict[str, Any]] = {}
        for one in known:
            if not one["shared"] and "process" not in one and unknown:
                continue
            before = found.get(one["name"])
            if before is None or (one["state"] == "open" and before["state"] != "open"):
                found[one["name"]] = one | ({"processes": [one["process"]]} if "process" in one else {})
            elif one["state"] == before["state"] and "processes" in before and "process" in one:
                first = min(before["opened_at"] or one["opened_at"], one["opened_at"] or before["opened_at"])
                found[one["name"]] = before | {"opened_at": first, "processes": [*before["processes"], one["process"]]}
        return list(found.values())

    def steer(self, name: str, request: str, reason: str) -> tuple[bool, bool]:
        """
        Isolate or reset a breaker: whether it is shared, which acts at once, and whether it is one of runs, which are
        asked to.
        """
        from outlast.breaker.shared import by_hand

        shared, watched = self._store.state("breaker", name), self._store.state("watched_breaker", name)
        if shared is not None:
            why = sanitise(reason) if request == "isolate" else None
            self._store.change_state("breaker", name, lambda document, now: (by_hand(document, now, why), None))
        asked = watched is not None
        while watched is not None:
            wanted = dict(watched.data) | {"wanted": request, "reason": reason}
            if self._store.save_state("watched_breaker", name, wanted, expect=watched.version):
                break
            watched = self._store.state("watched_breaker", name)
        return shared is not None, asked

    def look_after(self, breakers: Mapping[str, CircuitBreaker]) -> None:
        """
        Do what was asked of a run's breakers, and put their state on record where it has changed. A shared one is on
        record by itself.
        """
        for name, breaker in breakers.items():
            if breaker.shared:
                continue
            kept = self._store.state("watched_breaker", name)
            data: dict[str, Any] = {} if kept is None else dict(kept.data)
            request = data.get("wanted")
            if request == "isolate":
                breaker.isolate(str(data.get("reason") or "isolated by hand"))
            elif request == "reset":
                breaker.reset()
            news = {
                "state": breaker.state.value,
                "failure_count": breaker.failure_count,
                "wanted": None,
                "reason": None if request == "reset" else data.get("reason"),
            }
            if kept is None or news != data:
                # If it fails, there is something newer on record: the next look sees it.
                self._store.save_state("watched_breaker", name, news, expect=0 if kept is None else kept.version)

    def under_way(self) -> bool:
        """Whether any run is being worked on."""
        return any(self.worker(run) for run in self._store.runs(status="running", limit=500))

    # -- events --------------------------------------------------------------------------------------------------------

    def events(
        self,
        run: str | None = None,
        name: str | None = None,
        *,
        window: float | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> list[EventRow]:
        """
        A page of the events on record, the oldest first; those of a run as `run` finds it, of one name, older names too,
        or of the last `window` seconds.
        """
        from outlast.observe.events import canonical

        run_id = None if run is None else self.run(run).id
        since = None if window is None else to_us(here.get().clock.now()) - round(window * 1e6)
        return self._store.events(
            run_id, None if name is None else canonical(name), after=after, limit=limit, since_us=since
        )

    # -- dead letters --------------------------------------------------------------------------------------------------

    def letters(self, codec: Codec | None = None) -> DeadLetters:
        """
        The dead letters, without the code that could replay them; as a shell can show them, unless another codec is
        named.
        """

        def replay(pipeline: str, *_: object, **__: object) -> Any:
            raise ConfigurationError(f"expected the code of {pipeline}: name it with --target app.py:{pipeline}.")

        return DeadLetters(lambda: self._store, codec or Shell(), replay, gone=certainly_dead)

    def letter_id(self, beginning: str) -> str:
        """The id of the dead letter that begins so; a person does not type 32 digits."""
        plain = beginning.replace("-", "").lower()
        if len(plain) >= 32:
            return plain
        if len(plain) < 4 or not set(plain) <= set("0123456789abcdef"):
            message = f"expected the id of a dead letter, or at least its first 4 digits, got: {beginning!r}."
            raise ConfigurationError(message)
        found = [letter_id for letter_id in self.letters().ids() if letter_id.startswith(plain)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise ConfigurationError(f"Entry not found: {beginning}")
        raise ConfigurationError(
            f"expected the id of one dead letter, but {len(found)} begin with {beginning!r}: {', '.join(found[:5])}."
        )

    def letter(self, beginning: str) -> LetterView:
        """One dead letter, by the beginning of its id."""
        store, letter = self._store, self.letters().show(self.letter_id(beginning))
        row = store.letter(letter.id)
        if row is None:
            return LetterView(letter, (), ())
        if (job := self.jobs.of_letter(row)) is not None:
            return LetterView(letter, (), list(earlier_failures(row)), job)
        own = [] if letter.run_id is None or row.seq is None else [(letter.run_id, row.seq)]
        held = [(store.run(run_id), seq) for run_id, seq in (*own, *store.replays_of(row))]
        tried = [(run, attempt) for run, seq in held if run is not None for attempt in store.attempts(run.number, seq)]
        return LetterView(letter, tried, list(earlier_failures(row)))


def as_told(store: Store, run: RunRecord) -> RunRecord:
    """
    The run as it is reported. One whose process was killed stays on record as running; it is reported as interrupted
    once that process is known to be dead, or its lease has ended. One that waited for its job is not continued by a job that has ended.
    """
    if run.reason == "requeued" and run.job is not None:
        job = store.job(run.job)
        if job is None or job.status in {"cancelled", "failed"}:
            said = "was removed" if job is None else "was cancelled" if job.status == "cancelled" else "has failed"
            return replace(
                run, reason=None, why=f"job {run.job}, which ran it, {said} while it waited for its next attempt"
            )
    if run.status != "running":
        return run
    lease = store.run_lease(run.number, 0)
    if lease is not None and not certainly_dead(lease.owner):
        return run
    return replace(run, status="interrupted", why=run.why or ABANDONED)


def called(store: Store, run: RunRecord) -> tuple[str, ...]:
    """
    What a command needs to mean this run: its key, with its pipeline where others have that key too. The id, if both do not
    tell it from another one.
    """
    if len(store.find_runs(run.run_key)) <= 1:
        return (run.run_key,)
    alone = len(store.find_runs(run.run_key, run.pipeline)) == 1
    return (run.run_key, "--pipeline", run.pipeline) if alone else (run.id[:12],)


def unfinished(run: RunRecord) -> bool:
    """
    Whether there is something left to go on with: items that have not ended, or a source that was not read to its end.
    """
    return not run.source_exhausted or run.counts.pending > 0


def stage_name(run: RunRecord, number: int) -> str:
    """The stage of this number, by its name if the run has one."""
    return run.stages[number].name if 0 <= number < len(run.stages) else str(number)


# -- documents -------------------------------------------------------------------------------------------------------------


def run_document(run: RunRecord) -> dict[str, Any]:
    counts = asdict(run.counts) | {"pending": run.counts.pending, "source_exhausted": run.source_exhausted}
    return {name: getattr(run, name) for name in _RUN} | {
        "why": run.told,
        "counts": counts,
        "spent": dict(run.spent),
        "stages": [asdict(mark) for mark in run.stages],
    }


def item_document(item: ItemRow, run: RunRecord, *, reveal: bool = False) -> dict[str, Any]:
    output = Shell().decode(item.output) if item.output is not None and item.status == "succeeded" else None
    kept = {name: value for name, value in item._asdict().items() if name not in {"started_us", "took_us", "failure"}}
    return kept | {
        "stage": stage_name(run, item.stage),
        "output": output if reveal else masked(output),
        "started_at": from_us(item.started_us),
        "took": item.took_us / 1e6,
        "waits": _waits(item),
        **(item.failure or Failure(None, None, None, None))._asdict(),
    }


def attempt_document(attempt: AttemptRow, run: RunRecord) -> dict[str, Any]:
    kept = {name: value for name, value in attempt._asdict().items() if not name.endswith("_us") and name != "pass_"}
    return kept | {
        "stage": stage_name(run, attempt.stage),
        "pass": attempt.pass_,
        "started_at": from_us(attempt.started_us),
        "took": attempt.took_us / 1e6,
        "delay": None if attempt.delay_us is None else attempt.delay_us / 1e6,
        "waits": _waits(attempt),
    }


def event_document(event: EventRow) -> dict[str, Any]:
    return asdict(event) | {"at": from_us(event.at_us)}


def letter_document(letter: DeadLetter, *, reveal: bool = False) -> dict[str, Any]:
    kept = {name: value for name, value in slots_document(letter).items() if name not in {"payload", "metadata"}}
    return kept | {"payload": letter.payload if reveal else masked(letter.payload)}


def letter_view_document(view: LetterView, *, reveal: bool = False) -> dict[str, Any]:
    # What the item was at first is a payload too.
    hidden = () if reveal else ("source", "earlier")
    metadata = {name: value for name, value in view.letter.metadata.items() if name not in hidden}
    history = [attempt_document(attempt, run) | {"run": run.id} for run, attempt in view.tried]
    if view.job is not None:
        history = [job_attempt_document(attempt) for attempt in view.job.attempts]
    return letter_document(view.letter, reveal=reveal) | {"metadata": metadata, "history": history}


def slots_document(value: Any) -> dict[str, Any]:
    """A group of failures or a statistic."""
    return {name: getattr(value, name) for name in value.__slots__}


def _waits(row: ItemRow | AttemptRow) -> dict[str, float]:
    return {why: waited / 1e6 for why, waited in (row.waits or {}).items()}


def _circuit(state: SharedState) -> dict[str, Any]:
    """A shared circuit. Failures are counted by each process, except for those that steps of flows count in the store."""
    from outlast.breaker.shared import read

    circuit = read(state.data, state.changed_at.timestamp())
    reopens = None if circuit.isolated is not None or circuit.opened_at is None else circuit.retry_at
    return {
        "name": state.name,
        "shared": True,
        "changed_at": state.changed_at,
        "state": circuit.state.value,
        "failure_count": circuit.row,
        "wanted": None,
        "reason": circuit.isolated,
        "opened_at": circuit.opened_at,
        "retry_at": reopens,
    }
