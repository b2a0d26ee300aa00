"""
From what the store counted to a report. Reads in one snapshot; everything else is arithmetic.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

from outlast.deadletters import fingerprint, normalised
from outlast.deadletters.beginnings import SOURCE
from outlast.kernel.redact import sanitise
from outlast.kernel.wording import counted
from outlast.report.model import (
    FORMAT,
    Amplification,
    Bucket,
    Cost,
    CountFacts,
    ErrorGroup,
    LetterGroup,
    Pass,
    Report,
    Retries,
    RunFacts,
    SlowItem,
    Spread,
    StageReport,
    Throughput,
    TimeReport,
    Wait,
    Warned,
)
from outlast.report.views import as_told, called, stage_name
from outlast.store.figures import MOST
from outlast.store.records import from_us, to_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from outlast.store import Store
    from outlast.store.figures import AttemptFigure, Count, ErrorFigure, Sums
    from outlast.store.records import LetterGroup as StoredGroup
    from outlast.store.records import RunRecord

_KINDS = 5000  # groups that are kept apart while reading; a run with more has no groups worth the name
_LISTED = 20
_BUCKETS = 60
_WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)  # seconds
_SECOND = 1_000_000
_TEXTS = {
    "retry": "backoff after an error",
    "retry_after": "as long as the service asked (Retry-After)",
    "result": "retry_if wanted another result",
    "limit": "turn at the limit {}",
    "throttled": "pause that the service behind {} asked for",
    "breaker": "open circuit {}",
    "retry_budget": "empty retry budget {}",
    "snooze": "snoozed by the stage",
    "checkpoint": "checkpoint to be on record",
}


def gathered(store: Store, run: RunRecord) -> Report:
    """The report of a run."""
    with store.counting(run) as count:
        run = count.run
        sums = count.sums()
        errors, more_errors = _errors(chain(count.errors(), count.failed_unattempted()), run)
        warnings, more_warnings = _warnings(count.warnings())
        throughput = _throughput(count, sums, run)
        pass_list = passes_of(count.passes())
    run = as_told(store, run)
    groups = store.failed_groups(run.id, limit=_LISTED)
    complete = _complete(sums)
    stages = _stages(run, sums, complete=complete)
    letters = _letters(groups, sums, run, store.code_option(run.pipeline), store.place_option(), _of_flow(store, run))
    counts = _counts(run)
    return Report(
        format=FORMAT,
        verdict=_verdict(run, counts, store.failures(run, limit=_LISTED), errors),
        run=_facts(run, sums, pass_list),
        counts=counts,
        complete=complete,
        unknown=_unknown(run, complete=complete),
        letters=letters,
        retries=_retries(sums, None, sum(figure.number for figure in sums.items)),
        stages=stages,
        amplification=_amplification(stages, complete=complete),
        time=_time(sums, complete=complete),
        errors=errors,
        throughput=throughput,
        cost=_cost(run, sums),
        passes=run.passes,
        pass_list=pass_list,
        slowest=tuple(
            SlowItem(
                key=sanitise(item.key),
                position=item.seq,
                status=item.status,
                stage=told_stage(run, item.stage),
                attempts=item.attempts,
                took=item.took / _SECOND,
            )
            for item in sums.slowest
        ),
        warnings=warnings,
        stop_reasons=sums.stop_reasons,
        left_out={
            "errors": more_errors,
            "warnings": more_warnings,
            "letters": max(0, len({(mark, stage) for mark, stage, _, _ in sums.letters}) - len(letters)),
        },
        stored=tuple(store.place_option()),
    )


def reason(why: str) -> tuple[str, str | None, str]:
    """A reason for a wait in its parts, and for a person: kind, name, text."""
    kind, _, name = why.partition(" ")
    name = sanitise(name)
    return kind, name or None, _TEXTS.get(kind, kind).format(name)


# -- the run ----------------------------------------------------------------------------------------------------------------------


def _facts(run: RunRecord, sums: Sums, passes: Sequence[Pass]) -> RunFacts:
    end = to_us(run.finished_at) if run.finished_at else max((figure.last_us for figure in sums.items), default=None)
    return RunFacts(
        id=run.id,
        pipeline=sanitise(run.pipeline),
        run_key=sanitise(run.run_key),
        kind=run.kind,
        status=run.status,
        reason=run.reason and sanitise(run.reason),
        why=sanitise(run.told, 1000),
        started_at=run.started_at,
        finished_at=run.finished_at,
        took=None if end is None else max(0, end - to_us(run.started_at)) / _SECOND,
        worked=_worked(passes),
    )


def _worked(passes: Sequence[Pass]) -> float | None:
    spans = [None if each.ended_at is None else (each.ended_at - each.started_at).total_seconds() for each in passes]
    known = [span for span in spans if span is not None]
    return sum(known) if known and len(known) == len(spans) else None


def _counts(run: RunRecord) -> CountFacts:
    counts = run.counts
    return CountFacts(
        **asdict(counts),
        pending=counts.pending,
        source_exhausted=run.source_exhausted,
        success_rate=counts.success_rate,
    )


def _verdict(run: RunRecord, counts: CountFacts, failed: Sequence[StoredGroup], errors: Sequence[ErrorGroup]) -> str:
    """What happened, in a sentence for somebody who has slept through it."""
    dead, total = counts.dlq + counts.failed, counts.total
    if total == 0:
        said = "There were no items."
    elif not dead and not counts.pending:
        whole = counted(total, "item")
        said = f"All {whole} succeeded." if total > 1 else "The one item succeeded."
        if counts.skipped:
            said = f"{counts.succeeded:,} of {whole} succeeded, {counts.skipped:,} {'was' if counts.skipped == 1 else 'were'} skipped, none failed."
    else:
        said = f"{counts.succeeded:,} of {counted(total, 'item')} succeeded"
        said += f", {counts.pending:,} {'is' if counts.pending == 1 else 'are'} open." if counts.pending else "."
    # Items from before that was on record have no group, but attempts.
    causes = [(group.count, group.stage, group.error_type) for group in failed]
    causes = causes or [(group.dead, group.stage, group.error_type) for group in errors if group.dead]
    if dead and causes:
        number, stage, error_type = causes[0]
        much = "" if dead == 1 else ", all of them" if number >= dead else f", {number:,} of them"
        said += f" {dead:,} failed{much} in {sanitise(stage, 60)}: {sanitise(error_type, 60)}."
    elif dead:
        said += f" {dead:,} failed."
    begun = {
        "failed": "The run failed. ",
        "cancelled": "The run was cancelled. ",
        "interrupted": "The run was interrupted and can be resumed. ",
        "paused": "The run is paused and can be resumed. ",
        "running": "The run is in progress. ",
    }
    return begun.get(run.status, "") + said


def _unknown(run: RunRecord, *, complete: bool) -> tuple[str, ...]:
    said: list[str] = []
    if not complete:
        said.append(
            'Attempts that succeeded are not on record (the run had audit="failures"): how many there were, how long they took and how '
            "often the first one was enough is not known. Failures, retries, waits and cost are."
        )
    if not run.source_exhausted:
        said.append("The source was not read to its end: how many items there are in all is not known.")
    if run.counts.pending:
        said.append("Of items that are not finished only attempts up to their last checkpoint are on record.")
    return tuple(said)


def _complete(sums: Sums) -> bool:
    """Whether every attempt of the finished items has its row."""
    made = sum(figure.attempts for figure in sums.items if not figure.unread)
    return sum(figure.number for figure in sums.attempts) >= made


def told_stage(run: RunRecord, number: int) -> str:
    """The stage of this number, as it may be shown."""
    return sanitise(stage_name(run, number))


def passes_of(events: Sequence[tuple[str, int, Mapping[str, Any]]]) -> tuple[Pass, ...]:
    """Each start of a run, from the events on record."""
    found: list[dict[str, Any]] = []
    for name, at, data in events:
        if name == "run_started":
            nothing = {"ended_at": None, "status": None, "why": None}
            found.append({"started_at": from_us(at), "finished_before": int(data.get("finished", 0)), **nothing})
        elif found:
            found[-1] |= {
                "ended_at": from_us(at),
                "status": str(data.get("status", "")),
                "why": sanitise(str(data.get("why", "")), 1000),
            }
    return tuple(Pass(**each) for each in found)


# -- stages -----------------------------------------------------------------------------------------------------------------------


def _stages(run: RunRecord, sums: Sums, *, complete: bool) -> tuple[StageReport, ...]:
    by_stage: dict[int, list[AttemptFigure]] = defaultdict(list)
    for figure in sums.attempts:
        by_stage[figure.stage].append(figure)
    waited: dict[int, dict[str, float]] = defaultdict(dict)
    for wait in sums.waits:
        waited[wait.stage][wait.why] = wait.waited / _SECOND
    found: list[StageReport] = []
    for place, mark in enumerate(run.stages):
        figures = by_stage[place]
        here = [figure for figure in sums.items if figure.stage == place and not figure.unread]
        # Every unit has one first attempt, in whichever pass. Without those that succeeded: every item that ended here
        # or further on has been here.
        entered = sum(figure.number for figure in figures if not figure.again)
        if not complete:
            entered = sum(figure.number for figure in sums.items if figure.stage >= place and not figure.unread)
        skipped, later_skips = (
            sum(figure.number for figure in here if figure.status == "skipped"),
            sums.skipped_again.get(place, 0),
        )
        # An attempt that skips its item succeeds too, and is counted as skipped only.
        first = sum(figure.number for figure in figures if figure.outcome == "success" and not figure.again) - (
            skipped - later_skips
        )
        later = sum(
            figure.number for figure in figures if figure.outcome == "success" and figure.again and not figure.repeated
        )
        later -= later_skips
        first -= sum(number for stage, again, number in sums.refused if stage == place and not again)
        later -= sum(number for stage, again, number in sums.refused if stage == place and again)
        mended, skipped_by_replay = sums.mended.get(place, (0, 0))
        first += skipped_by_replay  # their attempts here failed: none of them was taken for one that came through
        skipped -= skipped_by_replay
        dead = sum(figure.number for figure in here if figure.status in {"dlq", "failed"})
        unfinished = sums.unfinished.get(place, 0)
        retries = _retries(sums, place, entered)
        found.append(
            StageReport(
                name=sanitise(mark.name),
                version=sanitise(mark.version),
                checkpoint=mark.checkpoint,
                entered=entered,
                attempts=sum(figure.number for figure in figures) if complete else None,
                failures=sum(figure.number for figure in figures if figure.outcome != "success"),
                first_try=first if complete else None,
                first_try_rate=(first / (entered - skipped) if entered > skipped else None) if complete else None,
                after_retry=later if complete else None,
                fell_back=max(0, entered - first - later - skipped - dead - mended - unfinished) if complete else None,
                skipped=skipped,
                dead=dead,
                mended=mended,
                unfinished=unfinished,
                retries=retries,
                retried_rate=(retries.one + retries.two + retries.more) / entered if entered else 0.0,
                took=spread([(figure.number, figure.took, figure.longest) for figure in figures]) if complete else None,
                waited=waited[place],
            )
        )
    return tuple(found)


def spread(classes: Iterable[tuple[int, int, int]]) -> Spread | None:
    """
    Percentiles from (how many, sum, longest) of durations in microseconds that are about the same.

    >>> spread([(99, 99_000_000, 1_000_000), (1, 9_000_000, 9_000_000)])
    Spread(p50=1.0, p95=1.0, p99=1.0, max=9.0, total=108.0)
    """
    ordered = sorted(((took / count, count, took, longest) for count, took, longest in classes), key=lambda row: row[0])
    whole = sum(count for _, count, _, _ in ordered)
    if not whole:
        return None

    def at(share: float) -> float:
        seen = 0
        for mean, count, _, _ in ordered:
            seen += count
            if seen >= share * whole:
                return round(mean) / _SECOND
        return round(ordered[-1][0]) / _SECOND

    return Spread(
        p50=at(0.5),
        p95=at(0.95),
        p99=at(0.99),
        max=max(longest for _, _, _, longest in ordered) / _SECOND,
        total=sum(took for _, _, took, _ in ordered) / _SECOND,
    )


def _retries(sums: Sums, place: int | None, units: int) -> Retries:
    needed = [0] * (MOST + 1)
    for stage, number, how_many in sums.retries:
        if stage == place:
            needed[number] += how_many
    return Retries(none=max(0, units - sum(needed)), one=needed[1], two=needed[2], more=needed[3])


def _amplification(stages: Sequence[StageReport], *, complete: bool) -> Amplification:
    calls, units = sum(stage.attempts or 0 for stage in stages), sum(stage.entered for stage in stages)
    if not complete:
        return Amplification(calls=None, units=units, ratio=None)
    return Amplification(calls=calls, units=units, ratio=calls / units if units else None)


def _time(sums: Sums, *, complete: bool) -> TimeReport:
    waits: dict[str, list[int]] = {}
    for figure in sums.waits:
        known = waits.setdefault(figure.why, [0, 0, 0])
        known[0] += figure.waited
        known[1] += figure.number
        known[2] = max(known[2], figure.longest)
    waited = sum(known[0] for known in waits.values())
    whole = sum(figure.took for figure in sums.items)
    work = sum(figure.took for figure in sums.attempts) if complete else max(0, whole - waited)
    slots = max(0, whole - work - waited)
    total = work + waited + slots
    return TimeReport(
        total=total / _SECOND,
        work=work / _SECOND,
        work_share=work / total if total else 0.0,
        waits=tuple(
            Wait(
                kind=kind,
                name=name,
                text=text,
                seconds=seconds / _SECOND,
                count=count,
                longest=longest / _SECOND,
                share=seconds / total if total else 0.0,
            )
            for why, (seconds, count, longest) in sorted(waits.items(), key=lambda each: (-each[1][0], each[0]))
            for kind, name, text in [reason(why)]
        ),
        slots=slots / _SECOND,
        slots_share=slots / total if total else 0.0,
    )


def _throughput(count: Count, sums: Sums, run: RunRecord) -> Throughput:
    if not sums.items:
        return Throughput(width=1.0, per_second=None, buckets=())
    first, last = min(figure.first_us for figure in sums.items), max(figure.last_us for figure in sums.items)
    seconds = next((width for width in _WIDTHS if (last - first) // (width * _SECOND) < _BUCKETS), 0)
    # Beyond two months of days: whatever fits.
    seconds = seconds or -(-(last - first) // (_BUCKETS * _SECOND))
    width = seconds * _SECOND
    origin = first // width * width
    found: dict[int, dict[str, int]] = defaultdict(lambda: {"succeeded": 0, "skipped": 0, "dead": 0})
    for place, status, number in count.buckets(origin, width):
        found[place][status if status in {"succeeded", "skipped"} else "dead"] += number
    busy = max(last - first, 1) / _SECOND
    finished = sum(figure.number for figure in sums.items)
    return Throughput(
        width=float(seconds),
        per_second=finished / busy if run.passes <= 1 and last > first else None,
        buckets=tuple(
            Bucket(at=from_us(origin + place * width), **found.get(place, {})) for place in range(max(found) + 1)
        ),
    )


# -- problems ---------------------------------------------------------------------------------------------------------------------


def _errors(figures: Iterable[ErrorFigure], run: RunRecord) -> tuple[tuple[ErrorGroup, ...], int]:
    found: dict[str, list[Any]] = {}
    beyond: set[str] | None = None
    whole = 0
    names = {place: told_stage(run, place) for place in range(len(run.stages))} | {-1: SOURCE}
    for figure in figures:
        stage, text = names.get(figure.stage, str(figure.stage)), figure.error or ""
        kind, name = figure.error_class or "unknown", figure.error_type or "no error"
        if figure.error_type is None:
            kind = "unwanted_result"
        mark = fingerprint(stage, kind, name, text)
        whole += figure.number
        known = found.get(mark)
        if known is None:
            if len(found) >= _KINDS:
                beyond = beyond or set()
                if len(beyond) < _KINDS:
                    beyond.add(mark)
                continue
            known = found[mark] = [stage, kind, name, text, figure.last_us, 0, figure.first_us, figure.last_us, 0, 0]
        if figure.last_us > known[4]:
            known[3], known[4] = text, figure.last_us  # the newest speaks for the group
        known[5] += figure.number
        known[6], known[7] = min(known[6], figure.first_us), max(known[7], figure.last_us)
        known[8] += figure.saved
        known[9] += figure.dead
    ranked = sorted(found.items(), key=lambda each: (-each[1][5], -each[1][9], each[1][0], each[0]))
    listed = tuple(
        ErrorGroup(
            group=mark,
            stage=stage,
            error_class=kind,
            error_type=name,
            message=sanitise(text),
            count=number,
            share=number / whole,
            first_seen_at=from_us(first),
            last_seen_at=from_us(last),
            saved=saved,
            dead=dead,
        )
        for mark, (stage, kind, name, text, _, number, first, last, saved, dead) in ranked[:_LISTED]
    )
    return listed, len(found) - len(listed) + len(beyond or ())


def _warnings(rows: Iterable[tuple[str, int]]) -> tuple[tuple[Warned, ...], int]:
    found: dict[str, list[Any]] = {}
    beyond = 0
    for text, number in rows:
        mark = normalised(text)
        if mark in found:
            found[mark][1] += number
        elif len(found) < _KINDS:
            found[mark] = [text, number]
        else:
            beyond += 1
    ranked = sorted(found.items(), key=lambda each: (-each[1][1], each[0]))
    listed = tuple(
        Warned(message=sanitise(text if number == 1 else mark), count=number)
        for mark, (text, number) in ranked[:_LISTED]
    )
    return listed, len(found) - len(listed) + beyond


def _of_flow(store: Store, run: RunRecord) -> str | None:
    """What does the rows of a flow's step again; None for another run."""
    from outlast.report.flows import FlowViews

    found = FlowViews(store).owner_of(run)
    if found is None:
        return None
    flow, step = found
    only = ["--from-step", step] if flow.status == "completed" else []
    return shlex.join(["outlast", "resume", *called(store, flow), *only, *store.place_option()])


def _letters(
    groups: Sequence[StoredGroup],
    sums: Sums,
    run: RunRecord,
    code: Sequence[str],
    app: Sequence[str],
    again: str | None,
) -> tuple[LetterGroup, ...]:
    from outlast.pipeline.replays import only_given

    def replay(group: StoredGroup) -> str:
        if again is not None:
            return again
        if only_given(run) is not None:  # no command can give it
            return f"app.dead_letters.replay(group={group.id!r}, run={run.id!r}, sink=...)"
        canary = ["--canary", "20"] if group.count > 20 else []
        return shlex.join(["outlast", "dlq", "replay", "--group", group.id, "--run", run.id[:12], *canary, *code, *app])

    waiting: dict[tuple[str, str], int] = defaultdict(int)
    whole = 0
    for mark, stage, status, number in sums.letters:
        whole += number
        if status == "open":
            waiting[mark, stage] += number
    return tuple(
        LetterGroup(
            group=group.id,
            stage=sanitise(group.stage),
            error_class=sanitise(group.error_class),
            error_type=sanitise(group.error_type),
            message=sanitise(group.message),
            count=group.count,
            share=group.count / max(whole, group.count),
            open=waiting[group.id, group.stage],
            sample_keys=tuple(sanitise(key, 120) for key in group.sample_keys),
            first_seen_at=group.first_seen_at,
            last_seen_at=group.last_seen_at,
            look=shlex.join(["outlast", "dlq", "list", "--group", group.id, "--run", run.id[:12], *app]),
            replay=replay(group),
        )
        for group in groups
    )


def _cost(run: RunRecord, sums: Sums) -> tuple[Cost, ...]:
    found: list[Cost] = []
    for name, total in sorted(run.spent.items()):
        attempts, items = sums.spent_in_vain.get(name, (0.0, 0.0))
        wasted = sums.wasted.get(name, 0.0)
        found.append(
            Cost(
                name=sanitise(name),
                total=total,
                per_succeeded=total / run.counts.succeeded if run.counts.succeeded else None,
                on_failed_attempts=attempts,
                on_dead_items=items,
                wasted=wasted,
                wasted_share=wasted / total if total else 0.0,
            )
        )
    return tuple(found)
