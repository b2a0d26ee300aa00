"""
`DeadLetters`: finds dead letters, edits, replays and archives them.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from outlast.deadletters.beginnings import begins_at, unstored
from outlast.deadletters.folder import Directory, as_entry, from_entry, is_json
from outlast.deadletters.letters import DeadLetter, NothingToReplay, as_groups
from outlast.deadletters.requeueing import requeue
from outlast.errors import ConfigurationError, TemporaryFailure
from outlast.kernel.clock import REAL, here
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text, sanitise
from outlast.kernel.wording import counted
from outlast.observe import emit, listening
from outlast.settings.checks import Check, a_value_of
from outlast.store.faults import StoreError, StoreRefused
from outlast.store.filters import FIELDS, checked, chooses, spelled_out
from outlast.store.letters import earlier_failures
from outlast.store.records import from_us
from outlast.work.leases import this_user
from outlast.work.patience import keep_trying

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Unpack

    from outlast.deadletters.letters import FailureGroups
    from outlast.store import Store
    from outlast.store.codec import Codec
    from outlast.store.filters import LetterFilter
    from outlast.store.letters import Order
    from outlast.store.records import Claimant, DeadLetterRow, LetterStat, LetterStatus, RunRecord

_PAGE = 500  # letters read, claimed or written at a time


class Replay(Protocol):
    """
    Runs dead letters again, in a run that holds a lease. Pipelines implement it, which this module does not import.

    It claims the letters of `ids`, the first `canary` of them before the others, and settles each in the transaction
    that finishes its item. The same `run_key` goes on with the same replay.
    """

    def __call__(
        self,
        pipeline: str,
        ids: Sequence[str],
        /,
        *,
        canary: int | None,
        run_key: str,
        from_start: bool,
        sink: Any,
        watch: Any,
    ) -> Any: ...


class DeadLetters:
    """The dead letters of an app: find them, read them as groups, mend them, send them again, or put them away."""

    def __init__(
        self,
        store: Callable[[], Store],
        codec: Codec,
        replay: Replay,
        *,
        retention_days: Mapping[str, int | None] | None = None,
        gone: Callable[[str], bool] = lambda _: False,
        make_good: Callable[[object], None] = lambda _: None,
        fits: Callable[[str, Mapping[str, Any], object], None] = lambda *_: None,
        nothing: Callable[[str, str], Any] | None = None,
    ) -> None:
        """
        `gone` may know that the owner of a lease is dead before the lease has ended. `make_good` brings sinks up to
        date that a dead replay has left; it is told which sink is given now. `fits` raises if a job of a kind does not
        take these arguments, of the version that is on record. `nothing` makes the result of a replay that found no dead
        letter, of this pipeline and key; without it `NothingToReplay` is raised.
        """
        self._store = store
        self._codec = codec
        self._replay = replay
        self._retention_days = dict(retention_days or {})
        self._gone = gone
        self._make_good = make_good
        self._fits = fits
        self._nothing = nothing

    def _repr_html_(self) -> str:
        from outlast.display.page import groups_page

        groups = self.groups()
        return groups_page(groups, groups.options)

    # -- reading

    @spelled_out(status="open")
    def find(self, **where: Unpack[LetterFilter]) -> Iterator[DeadLetter]:
        """
        The newest change first, read as they are asked for; `text` is looked for in errors and item keys. Open ones,
        unless `status` says otherwise; ``status=None``: whatever it is.
        """
        wanted, abandoned = checked({"status": "open"} | where), self._abandoned()
        rows = _pages(self._store(), abandoned=abandoned, **wanted)
        return (self._shown(row, abandoned) for row in rows)

    def ids(self, *, status: str | None = None) -> Iterator[str]:
        """The ids of all there are."""
        owners = self._store().letter_owners(abandoned=self._abandoned(), **checked({"status": status}))
        return (id_ for id_, _, _ in owners)

    def show(self, id: str) -> DeadLetter:  # noqa: A002 - what it is called everywhere
        """The dead letter of this id."""
        return self._shown(self._row(id), self._abandoned())

    @spelled_out(status="open")
    def groups(self, *, limit: int = 100, **where: Unpack[LetterFilter]) -> FailureGroups:
        """Failures by fingerprint, the largest group first: what forty thousand dead letters have in common."""
        wanted = checked({"status": "open"} | where)
        wanted.setdefault("status", None)
        store = self._store()
        rows = store.groups(limit=limit, abandoned=self._abandoned(), **wanted)
        if not rows or wanted.get("status") != "open":
            return as_groups(rows)
        run = wanted.get("run")
        only = [] if run is None else ["--run", run[:12]]
        of_first = wanted | {"pipeline": rows[0].pipeline, "stage": rows[0].stage, "group": rows[0].id}
        one = store.letters(limit=1, abandoned=self._abandoned(), **of_first)
        # The code of a job is a worker's: a command that names it is refused.
        code = [] if one and one[0].of_job else store.code_option(rows[0].pipeline)
        return as_groups(rows, ["--pipeline", rows[0].pipeline, *only, *code, *store.app_option()])

    def stats(self) -> Sequence[LetterStat]:
        """How many there are, by pipeline, stage and status, with the age of the oldest and the newest."""
        return self._store().stats(abandoned=self._abandoned())

    def _abandoned(self) -> list[str]:
        """The claims of replays that are no more: their letters are open to whoever looks. Looking changes nothing."""
        return [claimant.claim for claimant in self._store().claimants() if self._is_gone(claimant)]

    def _is_gone(self, claimant: Claimant) -> bool:
        return claimant.lease is None or self._gone(claimant.lease.owner)

    # -- changing

    def edit(self, id: str, payload: object, *, reason: str) -> DeadLetter:  # noqa: A002 - what it is called everywhere
        """
        Replace what will be replayed. Only an open letter can be edited; the first payload stays on record, with when
        and why. Letters of a flow's steps and of their rows are refused: no replay takes their payloads.
        """
        self.release()
        letter = self._row(id)
        self._refuse_flows(letter)
        if letter.of_job:
            if not isinstance(payload, dict):
                message = f"expected the payload of a job to be its arguments by name, got: {a_value_of(payload)}."
                raise ConfigurationError(message)
            self._fits(letter.stage, payload, letter.metadata.get("version"))
        try:
            data = _like(letter.payload, self._codec.encode(payload))
        except RecursionError:
            message = "expected the payload to be nested less deeply: no JSON reader would take it."
            raise ConfigurationError(message) from None
        if letter.of_job:
            try:
                self._store().refuse_oversized("the payload of a job", data)
            except StoreRefused as refused:
                raise ConfigurationError(str(refused)) from None
        changed = self._store().edit_letter(letter.id, data, _reason(reason), expect="open", by=this_user())
        if changed is None:
            now = self._row(letter.id)
            message = f"expected the dead letter {letter.id} to be open, got: {now.status}. {_AFTER[now.status]}"
            raise ConfigurationError(message)
        return self._shown(changed)

    def _refuse_flows(self, letter: DeadLetterRow) -> None:
        """Refuse a letter that is not sent again by itself: what its flow does is in its file and in what its steps put out."""
        got = f"expected the dead letter of an item or a job, got: {letter.id[:12]}"
        if letter.kind in {"step", "compensation"}:
            what = "a step" if letter.kind == "step" else "what undoes a job or a step"
            raise ConfigurationError(
                f"{got}, of {what}: what that does is in its pipeline file, or in the code of its job."
            )
        rows = self._store().rows_above(letter.run) if letter.kind == "item" else None
        if rows is not None:
            raise ConfigurationError(f"{got}, of a row of a flow's step: {_made_again(*rows)}")

    @spelled_out(without=("status",))
    def archive(self, *, ids: Sequence[str] | None = None, reason: str, **where: Unpack[LetterFilter]) -> int:
        """
        Put open letters away: they stay on record, and are no more counted or replayed. How many were. Those of `ids`
        and of the filter, where both are given.
        """
        return self._moved(ids, where, "open", "archived", _reason(reason))

    @spelled_out(without=("status",))
    def unarchive(
        self, *, ids: Sequence[str] | None = None, reason: str = "opened again", **where: Unpack[LetterFilter]
    ) -> int:
        """Open archived letters again, of `ids`, of the filter, or of both; how many were."""
        return self._moved(ids, where, "archived", "open", _reason(reason))

    def resolve(self, id: str, *, done: bool, reason: str = "settled by hand") -> DeadLetter:  # noqa: A002 - as above
        """
        Settle a row of a flow's step by hand, such as one that may have been done. A row that was `done` is not called
        again: the next resume of the flow counts it as succeeded, with no outputs. A row that was not is open, and that
        resume runs it.
        """
        letter = self._row(id)
        rows = self._store().rows_above(letter.run) if letter.kind == "item" else None
        if rows is None:
            raise ConfigurationError(
                f"expected the dead letter of a row of a flow's step, got: {letter.id[:12]}, of {letter.pipeline}. "
                f"{_ways_without_resolve(letter)}"
            )
        _refuse_closed([letter])
        lease = self._store().run_lease(rows[0].number)
        if lease is not None and not self._gone(lease.owner):
            raise ConfigurationError(
                f"the run {rows[0].run_key!r} of {rows[0].pipeline} is running: settle its rows when it has ended."
            )
        how = "done" if done else "not-done"
        changed = self._store().settle_letter(letter.id, how, _reason(reason), by=this_user())
        if changed is None:
            _refuse_closed([self._row(letter.id)])
            raise ConfigurationError(
                f"the dead letter {letter.id[:12]} was changed at the same time: look at it again."
            )
        return self._shown(changed)

    def _moved(
        self, ids: Sequence[str] | None, where: Mapping[str, Any], from_: LetterStatus, to: LetterStatus, reason: str
    ) -> int:
        wanted = _some(ids, where)
        self.release()
        known = None if ids is None else [self._row(id_).id for id_ in ids]
        return self._store().move_letters(known, from_=from_, to=to, reason=reason, **wanted)

    def auto_archive(self, *, older_than_days: float | None = None) -> int:
        """
        Put open letters away to which nothing has happened for so many days (else those of
        ``retention_days["open_dead_letters"]``); how many were. What the app's retention says happens by itself. Those of what could
        not be undone stay open: it still stands.
        """
        days = self._retention_days.get("open_dead_letters") if older_than_days is None else older_than_days
        if days is None:
            return 0
        _some(None, {"older_than_days": days})  # refuses what is no number of days
        self.release()
        before, count = here.get().clock.now() - timedelta(days=days), 0
        while moved := self._store().put_away(before, f"older than {days:g} days, archived by itself", limit=_PAGE):
            count += len(moved)
        return count

    def check_size(self, *, most: int) -> bool:
        """Whether more than so many letters are open; then an event tells it. Nothing is ever refused for that."""
        open_now = [stat for stat in self.stats() if stat.status == "open"]
        count = sum(stat.count for stat in open_now)
        if count <= most:
            return False
        if listening():
            oldest = min(stat.oldest_at for stat in open_now)
            from outlast.observe.events import DeadLettersOverThreshold

            emit(DeadLettersOverThreshold(count=count, threshold=most, oldest_at=oldest))
        return True

    # -- sending again

    @spelled_out(without=("status",))
    def replay(
        self,
        *,
        ids: Sequence[str] | None = None,
        canary: int | None = None,
        from_start: bool = False,
        sink: Any = None,
        run_key: str | None = None,
        check: bool = True,
        watch: Any = None,
        **where: Unpack[LetterFilter],
    ) -> Any:
        """
        Do the work of open letters again, from the stage that failed with its stored input; what the run came to.

        With a `canary`, so many of them go first, picked evenly from all; the others follow only if every one of those
        succeeds. Letters that are edited, archived or replayed by somebody else meanwhile are left out. The set is what
        is open now: it does not grow. Outputs go to the sink of the run that a letter comes from, and its counts change
        with them; `sink` sends all of them elsewhere, unless it is the `Sink` of such a run, given again. The same
        `run_key` goes on with the same replay. If no open letter fits, the result is `completed`, has no id and counts
        nothing; TemporaryFailure if another replay is at work on those that fit. With `check`, what
        `RunResult.raise_for_status` raises is raised. `watch` is called with a `RunView` a few times a second.

        Letters of jobs put those back into the queue, with fresh attempts and the payload that an edit has given them:
        they keep their ids, and workers do them. What that came to is a `ReplayedJobs`. With a `canary` it waits until
        those have succeeded, as long as there is a worker. With `from_start` all of their steps are done again; `sink`,
        `run_key` and `watch` are for items.
        """
        store = self._store()
        if canary is not None and (isinstance(canary, bool) or not isinstance(canary, int) or canary < 1):
            raise ConfigurationError(f"expected canary to be an integer of at least 1, got: {canary!r}.")
        wrong = Check()
        wrong.watch(watch)
        wrong.raise_if_any()
        try:
            return self._replayed(
                store,
                ids,
                where,
                canary=canary,
                from_start=from_start,
                sink=sink,
                run_key=run_key,
                check=check,
                watch=watch,
            )
        except NothingToReplay:
            if self._nothing is None:
                raise
        taken = checked(where, without=("status",)) | {"status": "replaying"}
        if ids is None and (busy := len(store.letter_owners(**taken))):
            message = f"Another process replays {counted(busy, 'dead letter')} that this replay was to take. Try again when that has ended."
            raise TemporaryFailure(message)
        return self._nothing(where.get("pipeline") or "", run_key or "")

    def _replayed(
        self,
        store: Store,
        ids: Sequence[str] | None,
        where: LetterFilter,
        *,
        canary: int | None,
        from_start: bool,
        sink: Any,
        run_key: str | None,
        check: bool,
        watch: Any,
    ) -> Any:
        if run_key is None and (jobs := keep_trying(lambda: self._jobs(store, ids, where), "the store", unclear=False)):
            _only_for_runs(sink=sink, run_key=run_key, watch=watch)
            chosen_jobs = dict(jobs)
            first_jobs = [[*chosen_jobs][place] for place in _spread(len(chosen_jobs), canary or 0)]
            requeued = requeue(store, chosen_jobs, first_jobs, from_start=from_start)
            return requeued.raise_for_status() if check else requeued

        def choose() -> tuple[list[tuple[str, str | None]], str]:
            before = None if run_key is None else self._before(store, run_key, where.get("pipeline"))
            wanted = checked(where, without=("status",)) if before is not None else _some(ids, where)
            self.release(but=None if before is None else before.id)
            self._make_good(sink)
            if before is None:
                return self._chosen(store, ids, wanted)
            return self._left(store, before, ids, wanted)

        chosen, owner = keep_trying(choose, "the store", unclear=False)
        first = _spread(len(chosen), canary or 0)
        order = [chosen[place] for place in first]
        # What comes home to one run comes together.
        runs = {run: place for place, (_, run) in reversed([*enumerate(chosen)])}
        rest = [one for place, one in enumerate(chosen) if place not in first]
        order += sorted(rest, key=lambda one: runs[one[1]])
        result = self._replay(
            owner,
            [id_ for id_, _ in order],
            canary=canary,
            run_key=run_key or f"replay-{REAL.ids.new()}",
            from_start=from_start,
            sink=sink,
            watch=watch,
        )
        return result.raise_for_status() if check else result

    def _jobs(self, store: Store, ids: Sequence[str] | None, where: Mapping[str, Any]) -> list[tuple[str, str]]:
        """The letters of jobs that are meant, with their jobs; none, if those of items are."""
        wanted = _some(ids, where)
        found = store.job_letters(**(wanted | {"status": "open"})) if chooses(wanted) or ids is None else None
        if ids is None:
            jobs, others = found or [], 0
            if jobs:
                others = len(store.letter_owners(**(wanted | {"status": "open"}))) - len(jobs)
        else:
            rows = [self._row(id_) for id_ in dict.fromkeys(ids)]
            jobs = [(row.id, row.item_key) for row in rows if row.of_job]
            others = len(rows) - len(jobs)
            if jobs and not others:
                _refuse_closed(rows)
                jobs = jobs if found is None else [one for one in jobs if one in set(found)]
                if not jobs:
                    raise NothingToReplay
        if jobs and others:
            message = (
                f"expected dead letters of items or of jobs, got: {others:,} and {len(jobs):,}. "
                "Name the pipeline or the kind of job with pipeline=, the stage with stage=, or the letters with ids=."
            )
            raise ConfigurationError(message)
        return jobs

    def _before(self, store: Store, run_key: str, pipeline: str | None) -> RunRecord | None:
        """The replay of this key, if there is one."""
        _key(run_key)
        found = store.find_replays(run_key, pipeline)
        if len(found) > 1:
            message = f"expected one replay {run_key!r}, got: those of {', '.join(run.pipeline for run in found)}. Name one with pipeline=."
            raise ConfigurationError(message)
        return found[0] if found else None

    def _left(
        self, store: Store, before: RunRecord, ids: Sequence[str] | None, where: LetterFilter
    ) -> tuple[list[tuple[str, str | None]], str]:
        """
        What was meant when the replay began and it has not claimed: open now, and made before that. What is on its list
        it knows itself.
        """
        if ids is None and not chooses(where):
            return [], before.pipeline
        open_now = store.letter_owners(
            made_before=before.started_at, **(where | {"status": "open", "pipeline": before.pipeline})
        )
        named = None if ids is None else {self._row(id_).id for id_ in ids}
        return [(id_, run) for id_, _, run in open_now if named is None or id_ in named], before.pipeline

    def _chosen(
        self, store: Store, ids: Sequence[str] | None, where: LetterFilter
    ) -> tuple[list[tuple[str, str | None]], str]:
        """
        The letters that are meant with the runs they come from, oldest first, and the one pipeline they belong to.
        """
        fitting = store.letter_owners(**(where | {"status": "open"})) if chooses(where) or ids is None else None
        if ids is not None:
            rows = [self._row(id_) for id_ in dict.fromkeys(ids)]
            _refuse_closed(rows)
            named = [(row.id, row.pipeline, row.run) for row in rows]
            found = named if fitting is None else [one for one in named if one in set(fitting)]
        else:
            found = fitting or []
        owners = sorted({owner for _, owner, _ in found})
        if not owners:
            raise NothingToReplay
        _refuse_runs_of_flows(store, {run for _, _, run in found})
        if len(owners) > 1:
            raise ConfigurationError(
                f"expected dead letters of one pipeline, got: those of {', '.join(owners)}. Name one with pipeline=."
            )
        return [(id_, run) for id_, _, run in found], owners[0]

    def release(self, *, but: str | None = None) -> int:
        """
        Open the letters again whose replay is no more: its process has died, or its lease has ended. If it comes back
        all the same, it can write nothing more. How many. The letters of the replay `but` stay as they are.
        """
        store = self._store()
        return sum(
            store.release(claimant, "its replay was interrupted", _LOST)
            for claimant in store.claimants()
            if self._is_gone(claimant) and (but is None or claimant.run != but)
        )

    # -- other programs

    @spelled_out(status="open")
    def export(self, folder: str | os.PathLike[str], **where: Unpack[LetterFilter]) -> int:
        """
        Write each letter as a JSON file of nine fields into a folder, which only its owner can read; how many. Payloads
        are written as they are. One that cannot be read stops no other: it is written as it is stored, and
        ``metadata["outlast"]["unreadable"]`` says why.
        """
        count, unreadable = self.exported(folder, **where)
        if unreadable:
            warn(
                "%s of %s dead letters have payloads that cannot be read; they are written as they are stored",
                unreadable,
                count,
            )
        return count

    def exported(self, folder: str | os.PathLike[str], **where: Unpack[LetterFilter]) -> tuple[int, int]:
        """As `export`: how many, and how many of those cannot be read."""
        directory = Directory(folder)
        count = broken = 0
        wanted = checked({"status": "open"} | where)
        for row in _pages(self._store(), order="created", abandoned=self._abandoned(), **wanted):
            _, unreadable = self._read(row)
            directory.write(as_entry(row, self._codec.decode, unreadable))
            count += 1
            broken += unreadable is not None
        return count, broken

    def import_(self, folder: str | os.PathLike[str]) -> tuple[int, int]:
        """
        Take in a folder of entries: how many were new, and how many were there already. A file that is no entry stops
        it before anything is taken, with every such file named.
        """
        if not Path(folder).is_dir():
            raise ConfigurationError(f"expected {folder} to be a folder with one JSON file for each dead letter.")
        entries, problems = Directory(folder).entries()
        letters: list[DeadLetterRow] = []
        for entry in entries:
            try:
                letters.append(from_entry(entry, self._codec.encode))
            except RecursionError:
                problems.append(f"expected {UUID(entry.id)}.json to hold work that is nested less deeply.")
            except ValueError as broken:
                problems.append(str(broken))
        if problems:
            raise ConfigurationError([*problems, f"Nothing was taken in of {folder}: mend or remove those files."])
        added = 0
        for start in range(0, len(letters), _PAGE):
            added += self._store().add_letters(letters[start : start + _PAGE])
        return added, len(letters) - added

    # -- rows and values

    def _row(self, id_: str) -> DeadLetterRow:
        row = self._store().letter(id_.replace("-", "").lower())
        if row is None:
            raise ConfigurationError(f"Entry not found: {id_}")
        return row

    def _read(self, row: DeadLetterRow) -> tuple[Any, str | None]:
        """The payload, or why it cannot be read."""
        try:
            return self._codec.decode(row.payload), None
        except Exception as error:  # noqa: BLE001 - one that cannot be read hides no other
            # Another's message may quote what is in it.
            mine = isinstance(error, StoreError)
            return None, error_text(error) if mine else f"it holds what cannot be read ({type(error).__name__})"

    def _shown(self, row: DeadLetterRow, abandoned: Sequence[str] = ()) -> DeadLetter:
        given_up = row.status == "replaying" and (row.claimed_by or row.reason or "") in abandoned
        payload, unreadable = self._read(row)
        return DeadLetter(
            id=row.id,
            pipeline=row.pipeline,
            stage=row.stage,
            item_key=row.item_key,
            payload=payload,
            error=row.error,
            error_class=row.error_class,
            group=row.fingerprint,
            attempts=row.attempts,
            status="open" if given_up else row.status,
            kind=row.kind,
            run_id=row.run,
            error_type=row.error_type,
            tier=row.tier,
            first_failed_at=_first_failed(row),
            last_attempt_at=from_us(row.last_attempt_us),
            created_at=from_us(row.created_us),
            replays=row.replays,
            reason=row.reason,
            edited=row.original is not None,
            stop_reason=row.stop_reason,
            begins_at=begins_at(row),
            unstored=unstored(row),
            unreadable=unreadable,
            metadata=row.metadata,
        )


def _first_failed(row: DeadLetterRow) -> datetime:
    """The first time at all: the row says since when it fails as it does now."""
    for earlier in earlier_failures(row)[:1]:
        with suppress(KeyError, TypeError, ValueError):  # another program may have written it
            return datetime.fromisoformat(earlier["first_at"]).astimezone(UTC)
    return from_us(row.first_failed_us)


_LOST = "the process that worked on it is gone; letters that it had not finished are open again"
_AFTER = {
    "open": "It is open again by now.",
    "replaying": "It is being replayed: wait for the end of that.",
    "resolved": "A replay of it has succeeded.",
    "archived": "Open it again first, with unarchive(ids=[...]) or in a shell with outlast dlq archive --undo.",
}


def _after(row: DeadLetterRow) -> str:
    settled = row.metadata.get("settled")
    by_hand = isinstance(settled, dict) and settled.get("as") == "done"
    return "It was settled by hand." if by_hand and row.status == "resolved" else _AFTER[row.status]


def _ways_without_resolve(letter: DeadLetterRow) -> str:
    """What does the work of a letter that is not of a row."""
    if letter.kind == "step" and letter.stop_reason == "ambiguous":
        return f"Look first whether it was done. If it was not: outlast resume {letter.item_key} --from-step {letter.stage}."
    if letter.kind == "step":
        return f"Once the cause is gone, resume its run, in a shell with outlast resume {letter.item_key}."
    if letter.kind == "compensation":
        again = "jobs compensate" if letter.run is None else "resume"
        return f"Once the cause is gone: outlast {again} {letter.item_key}. Archive it if its work was undone by hand."
    return "Replay it, or archive it if its work was done by hand."


def _refuse_closed(rows: Sequence[DeadLetterRow]) -> None:
    closed = [f"{row.id} is {row.status}. {_after(row)}" for row in rows if row.status != "open"]
    if closed:
        raise ConfigurationError([f"expected only open dead letters, but {problem}" for problem in closed])


def _refuse_runs_of_flows(store: Store, runs: Iterable[str | None]) -> None:
    """Letters of a flow's steps and of their rows are not sent again by themselves: the run of their flow goes on."""
    problems: list[str] = []
    for run in sorted(one for one in runs if one is not None):
        if (rows := store.rows_above(run)) is not None:
            problems.append(f"got: those of rows of a flow's step: {_made_again(*rows)}")
        elif (record := store.run(run)) is not None and record.kind == "flow":
            again = f"run {record.pipeline} again with run_key={record.run_key!r}"
            problems.append(f"got: those of steps of a flow: once the cause is gone, {again}.")
    if problems:
        raise ConfigurationError([f"expected dead letters of items or jobs, {problem}" for problem in problems])


def _made_again(flow: RunRecord, step: str) -> str:
    """What does the rows of a step again."""
    again = f" and from_step={step!r}, which does all rows again" if flow.status == "completed" else ""
    return (
        "its flow makes the row again of what the steps before have put out. Once the cause is gone, "
        f"run {flow.pipeline} again with run_key={flow.run_key!r}{again}."
    )


def _only_for_runs(**options: Any) -> None:
    """Options of a replay that mean nothing for jobs: they go back into the queue, and there is no run."""
    given = [name for name, value in options.items() if value is not None and value is not False]
    if given:
        raise ConfigurationError(
            [f"expected no {name} for dead letters of jobs: they are put back into the queue." for name in given]
        )


def _pages(
    store: Store, *, order: Order = "updated", abandoned: Sequence[str] = (), **where: Unpack[LetterFilter]
) -> Iterator[DeadLetterRow]:
    """
    All letters that fit, newest first, a page at a time. In the order of their creation none is missed that is changed
    meanwhile.
    """
    after = None
    while rows := store.letters(after=after, limit=_PAGE, order=order, abandoned=abandoned, **where):
        yield from rows
        after = rows[-1]


def _spread(length: int, count: int) -> dict[int, None]:
    """
    Places spread evenly over a list.

    >>> list(_spread(10, 3)), list(_spread(2, 5)), list(_spread(5, 0))
    ([0, 3, 6], [0, 1], [])
    """
    return (
        dict.fromkeys(place * length // count for place in range(min(length, count)))
        if count < length
        else dict.fromkeys(range(length))
    )


def _key(run_key: object) -> None:
    if not isinstance(run_key, str) or not run_key.strip():
        raise ConfigurationError(f"expected run_key to be a name, got: {run_key!r}.")


def _reason(reason: str) -> str:
    if not isinstance(reason, str) or not reason.strip():
        raise ConfigurationError("expected reason to say why, in a few words: it stays on record.")
    return sanitise(reason)


def _some(ids: Sequence[str] | None, where: Mapping[str, Any]) -> LetterFilter:
    """
    The filter, if it or `ids` says which: everything at once must be asked for by name, a forgotten option is no wish.
    """
    if isinstance(ids, str):
        raise ConfigurationError("expected ids to be a list of ids, got: one text. Use ids=[...].")
    wanted = checked(where, without=("status",))
    if ids is None and not chooses(wanted):
        names = ", ".join(name for name in FIELDS if name != "status")
        raise ConfigurationError(f"expected ids, or one of {names}: which dead letters are meant?")
    return wanted


def _like(old: bytes, new: bytes) -> bytes:
    """
    The new payload with the types of the old one: who edits a `Review` writes its fields, not its class. What is no
    JSON stays as it is.

    >>> _like(b'{"v":1,"d":{"$type":"app:Review","d":{"text":"a"}}}', b'{"v":1,"d":{"text":"b"}}')
    b'{"v":1,"d":{"$type":"app:Review","d":{"text":"b"}}}'
    """
    if not (is_json(old) and is_json(new)) or b'"$type"' not in old:
        return new
    before, after = json.loads(old), json.loads(new)
    return json.dumps(
        {**after, "d": _typed(before.get("d"), after.get("d"))}, ensure_ascii=False, separators=(",", ":")
    ).encode(errors="surrogatepass")


def _typed(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and "$type" in old:
        if isinstance(new, dict) and "$type" in new:
            return new
        same = isinstance(new, type(old.get("d")))
        zone = {"zone": old["zone"]} if "zone" in old else {}
        return {"$type": old["$type"], "d": _typed(old["d"], new)} | zone if same else new
    if isinstance(old, dict) and isinstance(new, dict):
        return {name: _typed(old.get(name), value) for name, value in new.items()}
    if isinstance(old, list) and isinstance(new, list):
        return [_typed(old[min(place, len(old) - 1)] if old else None, value) for place, value in enumerate(new)]
    return new
