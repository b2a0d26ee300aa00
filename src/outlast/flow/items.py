"""
Steps over rows and items: `for_each`, `component: pipeline`, and what undoes rows. Each is a run of the item runner, in
the thread of its step, with a key made of the flow's run and the step:

    3f2a.../locate             the rows of the step `locate`, or the items of its pipeline
    3f2a.../locate/2           the same in the second round of the flow's run
    3f2a.../locate/undo        what undoes these rows; /undo/2 if not all of them could be undone at first

So what is finished is on record, row by row, and whoever goes on with the flow goes on with it.

**A round of rows** is a run of its own. Rows that an earlier round has done and that still stand are carried over, if the
row and what is done for it are what they were: they are on record in the new run with the outputs they had, and not
executed. All others are done again; the dead letters of the round before are settled once it is known what became of their
rows. Where rows are undone one by one, a new round that follows an undoing carries none over: all were undone, by their
runs or by hand. One that has changed, stands and could be undone by itself is never done over: the step fails instead.

**A pipeline** keeps its run from round to round, because its sink does: its open dead letters are replayed into it. It has
a new one once it has succeeded, or was undone, and is to be done again.
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from outlast.calls import internal
from outlast.calls.drivers import Deadline
from outlast.calls.guard import Guard
from outlast.calls.state import current
from outlast.components.files import PARQUET, Files
from outlast.components.registry import find_component
from outlast.components.running import StepContext
from outlast.deadletters import NothingToReplay
from outlast.errors import LeaseLost, PermanentFailure, TemporaryFailure
from outlast.flow.parts import guard_of
from outlast.flow.progress import tried_since
from outlast.flow.record import row_may_be_done, settled_rows
from outlast.flow.rows import (
    Marks,
    RowDeed,
    RowUndo,
    key_of_rows,
    keys_of,
    not_known,
    outputs_of,
    record_of,
    remembering,
    undone_by_row,
)
from outlast.flow.steps import RowsLost, RowsPending, Unfinished
from outlast.flow.underway import is_under_way
from outlast.kernel.clock import here
from outlast.kernel.wording import counted
from outlast.observe import captures
from outlast.pipeline.drivers import blocking
from outlast.pipeline.errors import FailureBudgetExceeded
from outlast.pipeline.home import DEFAULT, Home
from outlast.pipeline.lifecycle import Run
from outlast.pipeline.pipeline import Pipeline
from outlast.pipeline.record.books import counts_in_words
from outlast.pipeline.replays import Chosen
from outlast.pipeline.results import Counts, passing_cause, verdict_on
from outlast.pipeline.stages import Snooze, stage
from outlast.policy import RetryPolicy
from outlast.spec.references import parse, references_in
from outlast.verdicts import mark_begun
from outlast.work.patience import keep_trying, terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from outlast.components.describing import Component
    from outlast.flow.filling import Values
    from outlast.flow.steps import StepWork
    from outlast.pipeline.plan import Plan
    from outlast.pipeline.results import RunResult
    from outlast.pipeline.view import RunView
    from outlast.spec.manifest import ManifestStep
    from outlast.store import Store
    from outlast.store.idempotency import KeyRecord
    from outlast.store.records import ItemRow, RunRecord

_PAGE = 500
_PIPELINE = "pipeline"
_PENDING = re.compile(r", \d+ (?:is|are) pending")  # which the flow's own end decides: in one that is cancelled none is
# The run itself failed, and its counts may lack rows that were done.
_OWN_FAILURES = frozenset({"source_error", "store_error", "resource_error"})
_REFUSED = frozenset({"idempotency_conflict", "idempotency_mismatch"})  # by a key, before anything was called
# Somebody replays letters of the run by hand, or an attempt that nobody waits for any more has not wound down yet.
_TAKEN = RetryPolicy(max_attempts=sys.maxsize, backoff="fixed", initial_delay=0.5, jitter=0.0, on_errors=(LeaseLost,))


def prepared(work: StepWork) -> tuple[Callable[..., Any], tuple[Any, ...], Guard]:
    """What does a step over rows or items, and what protects it."""
    if "for_each" in work.step.work and work.deed == "do":
        # Everything that protects is per row: the step is begun once, and takes as long as it takes.
        return _Rows(work).go, (), Guard(work.step.id, retry=None)
    work._find_key(work.pass_.values())  # noqa: SLF001 - of a pipeline, the key is the whole step's
    what = "step" if work.deed == "do" else "compensation"
    guard = guard_of(work.step, what=what, home=work.pass_.home)  # type: ignore[arg-type]
    # A run can be ended in time from inside, so that nothing of it goes on while it is tried again.
    return _Items(work).go, (), guard.replace(isolation=None)


def prepared_undo(work: StepWork) -> tuple[Callable[..., Any], tuple[Any, ...], Guard]:
    """What undoes the rows of a step, one by one. As with rows, what protects it is the stage's."""
    return _Undo(work).go, (), Guard(f"{work.step.id}.compensate", retry=None)


def prepared_if_others(work: StepWork) -> tuple[Callable[..., Any], tuple[Any, ...], Guard] | None:
    """
    Nothing, in place of what undoes all rows of a step at once, if this run has done or begun none of them: other runs have
    done them under their keys, and it would undo their work. None if there is something to undo.
    """
    of_others = _Undo(work).is_of_others()
    work.items = None  # it is not undone row by row
    return (dict, (), Guard(f"{work.step.id}.compensate", retry=None)) if of_others else None


# -- runs of the item runner -----------------------------------------------------------------------------------------------


class _Timed:
    """A run that has so many seconds; then it is ended without waiting for what runs in it."""

    def __init__(self, run: Run, seconds: float | None) -> None:
        self.plan = run.plan
        self.wind_down_soon = run.wind_down_soon
        self.waiting_here = run.waiting_here
        self.is_up = False
        self._run = run
        self._seconds = seconds

    async def go(self) -> RunResult[Any]:
        """As of the run."""
        if self._seconds is None:
            return await self._run.go()
        timer = here.get().clock.call_later(self._seconds, self._end)
        try:
            return await self._run.go()
        finally:
            timer.cancel()

    def _end(self) -> None:
        self.is_up = True
        self._run.wind_down("interrupted")
        self._run.wind_down("interrupted")


class _OfItems:
    """The runs that a step makes, one after the other, and what is on record of those of earlier rounds."""

    def __init__(self, work: StepWork) -> None:
        work.items = self
        self.work = work
        self.step: ManifestStep = work.step
        self.there = work.pass_
        self.values: Values = remembering(work.pass_)
        self._runs: deque[Run] = deque()  # under way
        self._lost: LeaseLost | None = None

    @property
    def rows_under_way(self) -> bool:
        """Whether the work of some row has not come to its end, also in a thread that nobody waits for any more."""
        return False

    def give_up(self) -> None:
        """Nobody waits for it any longer: what runs in it is cancelled, or left. From any thread."""
        for run in list(self._runs):
            run.wind_down_soon("interrupted")
            run.wind_down_soon("interrupted")

    def lose(self, lost: LeaseLost) -> None:
        """The flow is another process's now. From any thread."""
        self._lost = self._lost or lost
        for run in list(self._runs):
            run.wind_down_soon("interrupted")

    # -- one run

    def drive(self, plan: Plan, source: Any) -> RunResult[Any]:
        """
        Go on with a run until its end. It winds down with the flow, and `Unfinished` is raised then; what is finished is
        on record.
        """
        stop = self.there.stop
        plan = replace(plan, follows=self.work.row_answer)
        try:
            result: RunResult[Any] = internal.keep_trying(
                lambda: self._driven(plan, source),
                _TAKEN,
                terms.get().ttl * 2,
                stop=stop,
                stopped="asked to stop while another process works on it",
            )
        except LeaseLost as taken:  # which says nothing about the step: it is waited for
            raise Unfinished(str(taken)) from taken
        except InterruptedError as interrupted:
            if not stop.is_set():
                raise
            raise Unfinished(str(interrupted)) from None
        if self._lost is not None or result.reason == "lease_lost":
            raise Unfinished(_told(result), lost=self._lost or LeaseLost(result.why))
        if result.status == "cancelled":
            raise PermanentFailure(f"the run {result.run_key} over its items was cancelled", error_class="cancelled")
        if result.status in {"interrupted", "paused"}:
            raise Unfinished(_PENDING.sub("", _told(result)))
        return result

    def _driven(self, plan: Plan, source: Any) -> RunResult[Any]:
        work, call = self.work, self.work.call
        limit = None if call is None else call.blocking_limit()
        run = Run(plan, source)
        # Of a row, the time that its own attempt has.
        timed = _Timed(run, current().remaining() if limit is None else limit[0])
        self._runs.append(run)
        forget = self.there.stop.tell(lambda: run.wind_down_soon("interrupted"))
        try:
            # What its items tell is on record with them, and not with the step.
            result: RunResult[Any] = copy_context().run(_apart, work, timed)
        finally:
            forget()
            self._runs.remove(run)
        if timed.is_up and result.status == "interrupted" and call is not None and limit is not None:
            call.timer = Deadline(call.shown_number, *limit)
            call.timer.fired = True
            raise call.timer.error()
        return result

    def watch(self, view: RunView) -> None:
        """Somebody may look at the flow: how far its rows are."""
        counts = view.counts
        self.work.counts = {
            "total": max(counts.total, view.expected or 0),
            "succeeded": counts.succeeded,
            "skipped": counts.skipped,
            "failed": counts.dlq + counts.failed,
        }
        self.there.changed()

    # -- of a pipeline with one stage, made for the step

    def pipeline(self, fn: Any, guard: Guard, name: str, **bounds: Any) -> Pipeline[Any, Any]:
        """The component as the only stage of a pipeline."""
        made: Any = stage(guard=fn.outer(guard), concurrency=int(self.step.policy.get("concurrency", 16)))(fn)
        home = self.there.home
        return Pipeline(name, made, app=home if isinstance(home, Home) else home.home, **bounds)

    @property
    def name(self) -> str:
        """What the pipeline is called whose items are the rows of the step."""
        return f"{self.there.manifest.name}.{self.step.id}"

    def component(self, name: str) -> Component:
        """The component of this name."""
        found = find_component(name)
        if found is None:
            raise not_known(name)
        return found

    def rows(self) -> list[Any]:
        """What the step has a row each for."""
        found = self.values.fill(self.step.work["for_each"]["items"], {})
        if not isinstance(found, list):
            message = (
                f"expected for_each.items of {self.step.id} to be a list, got: a value of type {type(found).__name__}"
            )
            raise PermanentFailure(message, error_class="validation_error")
        return found

    # -- rounds

    def key(self, number: int) -> str:
        """The key of the run over rows in a round."""
        return f"{self.there.record.id}/{self.step.id}" + ("" if number == 1 else f"/{number}")

    def found(self, key: str) -> RunRecord | None:
        """The run of this key, if it was ever begun."""
        store = self.there.store
        record: RunRecord | None = keep_trying(lambda: store.find_run(self.name, key), "the store")
        return record

    def newest(self, until: int) -> tuple[int, RunRecord] | None:
        """The newest run over the rows of this step, of a round up to this one."""
        for number in range(until, 0, -1):
            record = self.found(self.key(number))
            if record is not None:
                return number, record
        return None

    def history(self) -> list[tuple[str, str, int]]:
        """What was done before this attempt: the deed, how it ended, in which round."""
        store, number, step = self.there.store, self.there.record.number, self.step.id
        return [*keep_trying(lambda: store.step_ends(number, step), "the store")]

    def known_by(self, keys: Iterable[str], before: int) -> Callable[[str], str]:
        """
        What services know the rows with these keys by, where they are done or undone in this round: the same in every round
        until the row is done or undone, each row by itself. So an answer that was lost is no reason to do a row twice.
        """
        since = self._tried_since({*keys}, before)
        run, step, deed = self.there.record.id, self.step.id, self.work.deed
        return lambda key: "\x1f".join((run, step, deed, str(since.get(key, 1)), key))

    def _tried_since(self, keys: set[str], before: int) -> dict[str, int]:
        """
        As `tried_since`, for each of these rows that was done or undone in a round before this one. Where one compensation
        undoes the whole step, it undoes all rows; one of which nobody knows whether it was done is not undone.
        """
        since: dict[str, int] = {}
        if before == 1:
            return since
        whole = tried_since([one for one in self.history() if one[0] == "undo"], before) if self._undone_whole() else 1
        for number in range(before - 1, whole - 1, -1):  # a row that is found in a later one is not looked for any more
            record = self.found(self.key(number)) if keys else None
            if record is None:
                continue
            ended = self._with_end(record, "succeeded")
            for undo in self._undo_runs(self.key(number)):
                ended |= self._with_end(undo, "succeeded", "failed")  # which somebody has undone by hand since
            ended &= keys
            since |= dict.fromkeys(ended, number + 1)
            keys -= ended
        return since | dict.fromkeys(keys, whole)

    def _undone_whole(self) -> bool:
        """Whether what last undid the step, if anything has, did not do that row by row."""
        store, number, step = self.there.store, self.there.record.number, self.step.id
        undo = keep_trying(lambda: store.flow_step(number, step, "undo"), "the store")
        return undo is not None and undo.definition["work"].get("compensate", {}).get("per") != "row"

    def _with_end(self, record: RunRecord, *ends: str) -> set[str]:
        store = self.there.store
        found: set[str] = keep_trying(
            lambda: {key for key, end in store.keys_and_ends(record.number) if end in ends}, "the store"
        )
        return found

    def _undo_runs(self, key: str) -> Iterator[RunRecord]:
        """The runs that have undone rows of this one, one after the other."""
        number = 1
        while (record := self._found_undo(_undo_key(key, number))) is not None:
            yield record
            number += 1

    def undone(self, key: str) -> tuple[set[str], str]:
        """Keys of the rows of this run that are on record as undone, and the key of the run that undoes the others."""
        done: set[str] = set()
        number = 1
        while True:
            undo = _undo_key(key, number)
            record = self._found_undo(undo)
            if record is None or record.status not in {"completed", "partial_success", "failed"}:
                return done, undo
            done |= {row.key for row in self.items(record, "succeeded")}
            number += 1

    def _found_undo(self, key: str) -> RunRecord | None:
        store = self.there.store
        record: RunRecord | None = keep_trying(lambda: store.find_run(f"{self.name}.undo", key), "the store")
        return record

    def items(self, record: RunRecord, status: Any = None) -> Iterator[ItemRow]:
        """The finished items of a run."""
        store, after = self.there.store, None
        while True:
            ask = partial(store.items, record.number, status=status, after=after, limit=_PAGE)
            page: list[ItemRow] = keep_trying(ask, "the store")
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].seq

    def _settled(self, record: RunRecord) -> dict[str, str]:
        """As `settled_rows`."""
        found: dict[str, str] = keep_trying(partial(settled_rows, self.there.store, record), "the store")
        return found

    def kept(self, row: ItemRow) -> dict[str, Any]:
        """What is on record of a row that succeeded."""
        found: dict[str, Any] = self.there.home.codec.decode(row.output or b"")
        return found


def _undo_key(key: str, number: int) -> str:
    return f"{key}/undo" + ("" if number == 1 else f"/{number}")


def _apart(work: StepWork, run: _Timed) -> RunResult[Any]:
    captures.set(tuple(one for one in captures.get() if one != work._hear))  # noqa: SLF001 - its own hook
    result: RunResult[Any] = blocking(run)
    return result


def _told(result: RunResult[Any]) -> str:
    """What a run came to, without its key: that is nobody's to run it with."""
    return result.why.partition("; run it again with run_key=")[0]


def _failed(result: RunResult[Any]) -> Exception:
    """
    A run that has failed, in its own words, classified as what ended it: its own error, or the problem that most of its items
    have. A circuit breaker that stayed open and pending items are transient: a later attempt can do them.
    """
    groups, why = result.groups, _told(result)
    verdict, _ = verdict_on(result)
    own = result.error is None or isinstance(result.error, FailureBudgetExceeded)
    if groups and own and result.reason not in {"breaker_open", "spend_limit"}:
        why = f"{why}; most of them, {groups[0].count}, failed with {groups[0].error_class}: {groups[0].message}"
    kind = TemporaryFailure if verdict.category == "transient" else PermanentFailure
    return kind(why, error_class=verdict.error_class)


def _partial(result: RunResult[Any], total: int, word: str) -> Exception:
    """
    A run that lost items. One open item that failed transiently, or that never began, is worth another attempt of the job:
    that runs only the open ones. After a fatal error, or many equal ones that are permanent, none that never began is.
    """
    error, groups = _failed(result), result.groups
    passing = None if result.reason == "fatal_error" else passing_cause(result)
    error_class = getattr(error, "error_class", None)
    left, why = total - result.counts.succeeded - result.counts.skipped, str(error)
    if result.status != "failed":
        why = f"{left:,} of {counted(total, word)} {'is' if left == 1 else 'are'} open"
        why += f"; {groups[0].count:,} failed with {groups[0].error_class}: {groups[0].message}" if groups else ""
    if isinstance(error, TemporaryFailure):
        return RowsPending(why, error_class=error_class)
    if passing is not None:
        return RowsPending(why, error_class=passing)
    if result.counts.pending and result.error is None:
        return RowsPending(why, error_class="temporary_failure")
    return RowsLost(why, error_class=error_class)


# -- for_each --------------------------------------------------------------------------------------------------------------


class _Rows(_OfItems):
    """A step with `for_each`."""

    @property
    def rows_under_way(self) -> bool:
        """As of any work on items."""
        return is_under_way(self.there.record.id, self.step.id)

    def go(self) -> dict[str, Any]:
        """Do the work for every row that is not finished; what the step puts out."""
        step, there = self.step, self.there
        rows = self.rows()
        item_key = key_of_rows(rows, step.work["for_each"].get("key"), there.hidden)
        guard = guard_of(step, what="step", home=there.home)
        key, keys = self.key(there.round), keys_of(rows, item_key)
        carried = self._carried(rows, keys, key)
        own = step.component == _PIPELINE
        deed = RowDeed(
            self.work,
            self.component(step.component),
            guard,
            self.values,
            lost=self.lose,
            instead=self._inside if own else None,
        )
        lowest = step.policy["min_partial_rate"]
        # Reading stops early only where the step has failed, whatever the rest comes to.
        bounds = {"min_success_rate": step.policy["min_success_rate"], "failure_budget": 1.0 - lowest}
        pipeline = self.pipeline(deed, guard, self.name, min_partial_rate=lowest, **bounds)
        plan = pipeline._plan(  # noqa: SLF001 - a run that winds down with the flow
            run_key=key,
            item_key=item_key,
            home=there.home,
            on_item_error="dlq" if step.policy.get("dead_letter", True) else "collect",
            on_change="keep",
            watch=self.watch,
            expected=lambda: len(rows),
        )
        known_by = self.known_by((one for one in keys if one not in carried), there.round)
        plan = replace(plan, known_by=known_by, carried=carried)
        try:
            result = self.drive(plan, rows)
        except Unfinished as stopped:
            stopped.left = self.rows_under_way
            raise
        record = self.found(key)
        assert record is not None  # noqa: S101 - it has just ended
        self._settle(record)
        if result.status != "completed":
            failed = _partial(result, len(rows), "row") if self._is_partial(result, len(rows)) else _failed(result)
            if self._is_in_doubt(record):
                mark_begun(failed)
            raise failed from result.error
        return self._put_out(result, record, rows, item_key)

    def _is_partial(self, result: RunResult[Any], total: int) -> bool:
        """
        Whether enough rows succeeded, also if the run stopped early because of its rows: rows that never began are open.
        """
        if result.reason in _OWN_FAILURES:
            return False
        wanted = total - result.counts.skipped
        return bool(result.counts.succeeded >= self.step.policy["min_partial_rate"] * wanted)

    def _put_out(self, result: RunResult[Any], record: RunRecord, rows: list[Any], item_key: Any) -> dict[str, Any]:
        places = {key: place for place, key in enumerate(keys_of(rows, item_key))}
        entries: list[tuple[int, dict[str, Any]]] = []
        for row in self.items(record, "succeeded"):
            place = places.get(row.key)
            if place is not None:
                entry = {"key": row.key, "item": rows[place], "outputs": self.kept(row)["outputs"]}
                entries.append((place, entry))
        entries.sort(key=lambda one: one[0])
        counts = result.counts
        return {
            "rows": [entry for _, entry in entries],
            "count": counts.succeeded,
            "dead_letters": counts.dlq,
            "outcome": "partial_success" if counts.dlq or counts.failed else "completed",
            "run": result.id,
        }

    def _is_in_doubt(self, record: RunRecord) -> bool:
        """
        Whether rows that must not be done twice may have been done, although they failed. Whatever most rows failed with, a
        new round would do these again.
        """
        if self.step.policy.get("idempotent") is not False:
            return False
        return any(row_may_be_done(row) for how in ("dlq", "failed") for row in self.items(record, how))

    # -- rounds

    def _carried(self, rows: list[Any], keys: list[str], key: str) -> Mapping[str, Any]:
        """
        What an earlier round has done and still stands, by the keys of the rows, of those that are what they were. Nothing,
        if the step had succeeded then, because it is to be done again; nor if something has undone its rows, because there is
        no new round before all are, by their runs or by hand. What rows that are done again have left under their idempotency
        keys is forgotten.
        """
        there = self.there
        before = self.newest(there.round - 1)
        if before is None:
            return {}
        number, record = before
        history = [one for one in self.history() if number <= one[2] < there.round]
        again = ("do", "succeeded") in {one[:2] for one in history}
        undoing = any(deed == "undo" for deed, _, _ in history)
        stands: dict[str, Any] = {}
        changed: list[str] = []
        carries = not again and not undoing
        if carries:
            by_key = dict(zip(keys, rows, strict=True))
            stands = {row.key: self.kept(row) for row in self.items(record, "succeeded")}
            changed = self._changed(by_key, stands)
            for one in changed:
                del stands[one]
            marks = Marks(self.work, self.values)
            for one, how in self._settled(record).items():
                if how == "done" and one in by_key:
                    stands[one] = {"outputs": {}, "marks": marks.of(by_key[one])}
        if "idempotency" in self.step.work and self.found(key) is None:
            redone = {*changed} if carries else {*keys}
            for own, row in zip(keys, rows, strict=True):
                if own in redone:
                    self._forget(row)
        return stands

    def _changed(self, rows: Mapping[str, Any], stands: Mapping[str, Any]) -> list[str]:
        """
        Keys of rows that were done and are not what they were, or with another config. PermanentFailure if one of them is to
        be undone by itself: to do it again would leave what it did before.
        """
        marks = Marks(self.work, self.values)
        changed = [key for key, kept in stands.items() if key not in rows or not _is_same(marks, rows[key], kept)]
        left = [key for key in changed if "cached" not in stands[key]] if undone_by_row(self.work) else []
        if left:
            shown = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
            message = (
                f"{counted(len(left), 'row')} of {self.step.id} ({shown}) changed since an earlier round did them, and what was "
                "done for them stands: it has to be undone first"
            )
            raise PermanentFailure(message, error_class="data_error")
        return changed

    def _forget(self, row: Any) -> None:
        store, holder = self.there.store, self.there.record.id
        try:
            scope, digest, _ = record_of(self.work, self.values.with_row(row))
        except PermanentFailure:  # which is what becomes of the row
            return
        keep_trying(lambda: store.forget_key(scope, digest, holder), "the store")

    def _settle(self, record: RunRecord) -> None:
        """Dead letters of rows that failed in an earlier round tell nothing any more, once this round knows better."""
        store = self.there.store
        for number in range(1, self.there.round):
            before = self.found(self.key(number))
            if before is None:
                continue
            for letters in _pages(store, before.id):
                ask = partial(store.find_keys, record.number, [one.item_key for one in letters])
                found = keep_trying(ask, "the store")
                ended = {one.id: found[one.item_key][1] for one in letters if one.item_key in found}
                worked = [id_ for id_, status in ended.items() if status in {"succeeded", "skipped"}]
                self._move(worked, "resolved", "its row succeeded in a later round")
                self._move([*{*ended} - {*worked}], "archived", "its row failed again in a later round")

    def _move(self, ids: list[str], to: Any, reason: str) -> None:
        store = self.there.store
        if ids:
            keep_trying(lambda: store.move_letters(ids, to=to, reason=reason), "the store")

    def _inside(self, config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        """A pipeline of the project, for one row."""
        context = _place_of(self.work)
        attempt = f"{self.work.made}.{current().attempt}"  # of the row, in this attempt of the step
        try:
            return _Project(self, context, config).go(f"{self.key(self.there.round)}/{key}", attempt)
        except Unfinished as unfinished:
            if unfinished.lost is not None:
                self.lose(unfinished.lost)
            raise Snooze(3600.0) from None  # the run over the rows winds down, too


def _is_same(marks: Marks, row: Any, kept: Mapping[str, Any]) -> bool:
    try:
        return kept.get("marks") == marks.of(row)
    except PermanentFailure:  # it cannot be filled in any more, which is what becomes of the row
        return False


def _pages(store: Store, run: str) -> Iterator[Sequence[Any]]:
    after = None
    while True:
        page = keep_trying(partial(store.letters, after=after, limit=_PAGE, status="open", run=run), "the store")
        if page:
            yield page
        if len(page) < _PAGE:
            return
        after = page[-1]


# -- component: pipeline ---------------------------------------------------------------------------------------------------


class _Items(_OfItems):
    """A step that is a pipeline of the project, or one that is undone by such."""

    def go(self) -> dict[str, Any]:
        """Go on with its run; what the step puts out."""
        work = self.work
        config = self.values.fill(work.template, work.template, self.component(work.component_name).places)
        return _Project(self, _place_of(work), config).go(self._key(), str(work.number))

    def _key(self) -> str:
        """The run goes on from round to round, until it has succeeded or was undone: then it is done again."""
        work, there = self.work, self.there
        over = {("do", "succeeded"), ("undo", "succeeded")} if work.deed == "do" else {("undo", "succeeded")}
        past = [number for deed, end, number in self.history() if number < there.round and (deed, end) in over]
        key = self.key(max(past, default=0) + 1)
        return key if work.deed == "do" else f"{key}/undo"


def _place_of(work: StepWork) -> StepContext:
    """Where paths begin, and functions are imported from."""
    there = work.pass_
    return StepContext(
        pipeline=there.manifest.name,
        step=work.step.id,
        run_id=there.record.id,
        run_key=there.record.run_key,
        attempt=work.number,
        idempotency_key=work.idempotency_key(),
        root=there.root,
        allowed=there.allowed,
    )


class _Project:
    """A pipeline of the project, as the config of a step names it."""

    def __init__(self, runs: _OfItems, context: StepContext, config: Mapping[str, Any]) -> None:
        self._runs = runs
        self._step = runs.step.id
        component = runs.component(_PIPELINE)
        if problems := component.problems(config):
            told = "; ".join(f"{problem.where or 'all of it'}: expected {problem.expected}" for problem in problems[:5])
            message = f"the config of {self._step} does not fit {_PIPELINE}, now that it is filled in: {told}"
            raise PermanentFailure(message, error_class="validation_error")
        self._config = cast("Any", component.config.model_validate(config))  # a PipelineConfig
        target = context.function(self._config.target)
        if not isinstance(target, Pipeline):
            message = f"expected {self._config.target} to be a Pipeline, got: a value of type {type(target).__name__}"
            raise PermanentFailure(message, error_class="code_error")
        self._pipeline: Pipeline[Any, Any] = target
        self._home = runs.there.home if target.app is DEFAULT else target.app.present
        self._source: Any = self._config.input
        if isinstance(self._source, str):
            self._source = _files(context, self._source)
        self._sink: Path | None = None
        if self._config.output is not None:
            self._sink = context.path(self._config.output)
            self._sink.parent.mkdir(parents=True, exist_ok=True)

    def go(self, key: str, attempt: str) -> dict[str, Any]:
        """Go on with the run of this key; what the step puts out."""
        self._replay(key, attempt)
        result = self._driven(self._source, run_key=key, sink=self._sink, item_key=self._config.item_key)
        if result.status == "failed":
            raise _failed(result) from result.error
        if result.status == "partial_success" and self._config.on_item_error != "collect":
            raise _partial(result, result.counts.total, "item") from result.error
        counts = result.counts
        outputs: dict[str, Any] = {} if self._sink is None else self._written(self._sink)
        if self._sink is None:
            # Instances of the project's classes as mappings: nobody knows their classes in another step.
            codec = self._home.codec
            outputs["rows"] = [codec.decode(data) for data in self._home.store.outputs(result._number)]  # noqa: SLF001 - as its own `outputs`
        return outputs | {
            "count": counts.succeeded,
            "dead_letters": counts.dlq,
            "outcome": "partial_success" if counts.dlq or counts.failed else "completed",
            "run": result.id,
        }

    def _driven(self, source: Any, **options: Any) -> RunResult[Any]:
        plan = self._pipeline._plan(  # noqa: SLF001 - a run that winds down with the flow
            home=self._home,
            on_item_error=self._config.on_item_error,
            breaker_rounds=self._config.breaker_rounds,
            on_change="keep",
            watch=self._runs.watch,
            **options,
        )
        return self._runs.drive(replace(plan, reopens_failed=plan.kind == "run"), source)

    def _replay(self, key: str, attempt: str) -> None:
        """The dead letters of a run that failed or lost items are replayed into it, before that goes on."""
        store = self._home.store
        record = keep_trying(lambda: store.find_run(self._pipeline.name, key), "the store")
        if record is None or record.status not in {"failed", "partial_success"}:
            return
        home = self._home if isinstance(self._home, Home) else self._home.home
        keep_trying(home.dead_letters.release, "the store")  # what replays had claimed that are no more
        letters = keep_trying(lambda: store.letter_owners(run=record.id, status="open"), "the store")
        if not letters:
            return
        ids = [letter for letter, _, _ in letters]
        try:
            result = self._driven(Chosen(ids), run_key=f"{key}/again/{attempt}", kind="replay", sink=None)
        except NothingToReplay:
            return
        if result.status == "failed" and result.reason != "low_success_rate":
            raise _failed(self._of_the_step(result, record.id)) from result.error

    def _of_the_step(self, replay: RunResult[Any], run: str) -> RunResult[Any]:
        """How a replay ended, with the counts and the failed items of the run that its dead letters come from."""
        store = self._home.store
        record = keep_trying(lambda: store.run(run), "the store")
        if record is None:
            return replay
        counts = Counts.of(record.counts, degraded=record.counts.degraded, source_exhausted=record.source_exhausted)
        cause, found, _ = replay.why.partition(
            f"{replay.counts.succeeded:,} of {counted(replay.counts.total, 'item')} "
        )
        why = cause + counts_in_words(counts, elsewhere=record.elsewhere) if found else replay.why
        return replace(replay, id=record.id, counts=counts, why=why, _number=record.number, _kind="run")

    def _written(self, path: Path) -> dict[str, Any]:
        """The rows of the file, if another step asks for them: else they are in the file alone."""
        steps = self._runs.there.manifest.steps
        if not any(_asks_for(one.work, self._step) for one in steps):
            return {}
        if not path.exists():
            return {"rows": []}
        if path.suffix.lower() in PARQUET:
            from outlast.components import parquet

            return {"rows": [row for batch in parquet.read(path) for row in batch]}
        return {"rows": list(cast("Iterable[Any]", Files(path).items()))}


def _files(context: StepContext, pattern: str) -> Files:
    """The files that a pattern under the project's root means; none that a link leads out of it to."""
    found = Files(context.path(pattern))
    root = Path(os.path.realpath(context.root))
    for path in found.found():
        context.path(os.path.relpath(path, root))
    return found


def _asks_for(value: Any, step: str) -> bool:
    """Whether a part of a manifest refers to the rows that this step has put out."""
    if isinstance(value, str):
        parts = references_in(parse(value)) if "${" in value else ()
        return any((part.kind, part.step, part.name) == ("output", step, "rows") for part in parts)
    inner: Iterable[Any] = ()
    if hasattr(value, "values"):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    return any(_asks_for(one, step) for one in inner)


# -- undoing rows ----------------------------------------------------------------------------------------------------------


class _Undo(_OfItems):
    """What undoes a step with `for_each`, row by row, the last one first."""

    def go(self) -> dict[str, Any]:
        """
        Undo every row that stands. Those that cannot be undone keep no other one from it; they are this step's error, and
        what comes again tries them once more.
        """
        work, there = self.work, self.there
        before = self.newest(there.round)
        if before is None:
            return {}
        number, record = before
        rows = self.rows()
        undone, key = self.undone(self.key(number))
        entries = [entry for entry in self._entries(rows, number, record) if entry["key"] not in undone]
        if not entries:
            return {}
        guard = guard_of(self.step, what="compensation", home=there.home)
        name = f"{self.name}.undo"
        undo = RowUndo(work, self.component(work.component_name), guard, self.values, lost=self.lose)
        pipeline = self.pipeline(undo, guard, name, failure_budget=1.0, min_success_rate=0.0)
        plan = pipeline._plan(  # noqa: SLF001 - a run that winds down with the flow
            run_key=key,
            item_key="key",
            home=there.home,
            on_item_error="collect",
            on_change="keep",
            watch=self.watch,
            expected=lambda: len(entries),
        )
        known_by = self.known_by((entry["key"] for entry in entries), number)
        plan = replace(plan, bounds=replace(plan.bounds, same_failures=0), known_by=known_by)
        result = self.drive(plan, entries)
        if result.status == "failed":
            raise _failed(result) from result.error
        if result.counts.failed:
            raise self._stands(key, result)
        return {}

    def is_of_others(self) -> bool:
        """Whether all rows were done by other runs under their keys, or were refused by these."""
        work, there = self.work, self.there
        before = self.newest(there.round)
        if before is None:
            return False
        _, record = before
        for row in self.items(record):
            if row.status == "succeeded" and "cached" not in self.kept(row):
                return False
            if row.status in {"dlq", "failed"} and self._was_called(record, row):
                return False
        if work.is_done():  # then every row has come to its end
            return record.counts.total > 0
        # What has no end on record was begun under its key.
        return not keep_trying(partial(there.store.holds_keys, self.name, there.record.id), "the store")

    def _entries(self, rows: list[Any], number: int, record: RunRecord) -> list[dict[str, Any]]:
        """
        The rows that were done, with what was put out for each, the last one first; with `when: started` those that were begun,
        too, else those of which nobody knows whether they were done, which is on record then.
        """
        keys = keys_of(rows, key_of_rows(rows, self.step.work["for_each"].get("key"), self.there.hidden))
        places = {key: place for place, key in enumerate(keys)}
        begun = self.step.work["compensate"]["when"] == "started"
        found: dict[int, dict[str, Any]] = {}
        failed: dict[int, ItemRow] = {}
        ended: set[int] = set()
        marks = Marks(self.work, self.values)
        for row in self.items(record):
            place = places.get(row.key)
            if place is None:
                raise self._not_known_now(row.key, f"is no row of {self.step.id} any more")
            ended.add(place)
            if row.status == "succeeded":
                kept = self.kept(row)
                if "cached" not in kept:  # else it is an earlier run's
                    if kept.get("marks", {}).get("row") not in {None, marks.of_row(rows[place])}:
                        raise self._not_known_now(row.key, f"is not what it was when {self.step.id} did it")
                    found[place] = {"key": row.key, "item": rows[place], "outputs": kept["outputs"]}
            elif row.status in {"dlq", "failed"}:
                failed[place] = row
        open_ = [place for place in range(len(rows)) if place not in ended]
        if "idempotency" in self.step.work:
            more = self._by_key(rows, record, failed, open_, begun=begun)
        elif begun:
            more = {place: {} for place in (*failed, *self._under_way(number, record, open_))}
        else:
            once = self.step.policy.get("idempotent") is False
            doubt = [place for place, row in failed.items() if once and row_may_be_done(row)]
            left = open_ if self._cut_off(number, record) else ()
            more = {place: {"unknown": True} for place in (*doubt, *left)}
            for place, how in ((places[key], how) for key, how in self._settled(record).items() if key in places):
                more.pop(place, None)
                more |= {place: {"outputs": {}}} if how == "done" else {}
        found |= {place: {"key": keys[place], "item": rows[place]} | said for place, said in more.items()}
        return [found[place] for place in sorted(self._once(found), reverse=True)]

    def _by_key(
        self, rows: list[Any], record: RunRecord, failed: Mapping[int, ItemRow], open_: list[int], *, begun: bool
    ) -> dict[int, dict[str, Any]]:
        """
        Rows without a success on record that are to be undone by what their idempotency keys tell. A key remembers at once
        what this run did. What another run has done under it is that run's, and a row that its key refused was never called.
        """
        us, codec = self.there.record.id, self.there.home.codec
        found: dict[int, dict[str, Any]] = {}
        for place, known in self._known(rows, [*failed, *open_]):
            ours = known is not None and known.holder == us
            if place in failed and not self._was_called(record, failed[place]):
                continue
            if known is not None and known.state in {"succeeded", "undoing"}:
                if ours:
                    found[place] = {"outputs": outputs_of(known.outputs, codec)}
            elif begun:
                # Whether another run is at it now is asked when it is undone.
                if place in failed or ours or (known is not None and self._was_tried(record, place)):
                    found[place] = {}
            elif ours and known is not None and known.state == "in_progress" and place not in failed:
                found[place] = {"unknown": True}
        return found

    def _known(self, rows: list[Any], places: list[int]) -> Iterator[tuple[int, KeyRecord | None]]:
        """What is on record of the keys of these rows."""
        store = self.there.store
        for first in range(0, len(places), _PAGE):
            digests: dict[int, str] = {}
            scope = ""
            for place in places[first : first + _PAGE]:
                try:
                    scope, digests[place], _ = record_of(self.work, self.values.with_row(rows[place]))
                except PermanentFailure:  # without a key it was never called
                    continue
            known = keep_trying(partial(store.key_records, scope, [*digests.values()]), "the store")
            yield from ((place, known.get(digest)) for place, digest in digests.items())

    def _was_called(self, record: RunRecord, row: ItemRow) -> bool:
        """Whether a row that failed was ever called: its key may have refused every attempt."""
        refused = row.failure is not None and row.failure.error_class in _REFUSED
        return not refused or self._was_tried(record, row.seq)

    def _was_tried(self, record: RunRecord, seq: int) -> bool:
        """Whether an attempt is on record that was not refused by the key."""
        store = self.there.store
        attempts = keep_trying(lambda: store.attempts(record.number, seq), "the store")
        return any(one.error_class not in _REFUSED for one in attempts)

    @staticmethod
    def _not_known_now(key: str, why: str) -> PermanentFailure:
        message = f"the row {key} {why}, and cannot be undone"
        return PermanentFailure(message, error_class="data_error")

    def _once(self, found: dict[int, dict[str, Any]]) -> Iterable[int]:
        """Of rows that share an idempotency key one was done, and one is undone."""
        if "idempotency" not in self.step.work:
            return found
        first: dict[str, int] = {}
        # The one that was done is the one that has put out something, and that on record as done before that known by its key.
        for place in sorted(found, key=lambda one: "outputs" not in found[one]):
            _, digest, _ = record_of(self.work, self.values.with_row(found[place]["item"]))
            first.setdefault(digest, place)
        return first.values()

    def _cut_off(self, number: int, record: RunRecord) -> bool:
        """
        Whether a process has died while it did the rows of this round. What it had read and begun is on record only with the
        ends of rows, some at a time: any row without an end may have been done.
        """
        return record.status == "running" or ("do", "crashed", number) in self.history()

    def _under_way(self, number: int, record: RunRecord, open_: list[int]) -> list[int]:
        """Rows without an end that were begun. Of a process that has died nobody knows: all may be."""
        store = self.there.store
        if self._cut_off(number, record):
            return open_
        tried = keep_trying(lambda: store.attempted(record.number, open_), "the store")
        return [place for place in open_ if place in tried]

    def _stands(self, key: str, result: RunResult[Any]) -> Exception:
        record = self._found_undo(key)
        failed = [] if record is None else list(self.items(record, "failed"))
        first = failed[0] if failed else None
        shown = ", ".join(row.key for row in failed[:5]) + (", ..." if len(failed) > 5 else "")
        said = f"{counted(len(failed), 'row')} of {result.counts.total} could not be undone ({shown})"
        problem = "" if first is None or first.reason is None else f": {first.reason}"
        failure = None if first is None else first.failure
        return PermanentFailure(f"{said}{problem}", error_class=None if failure is None else failure.error_class)
