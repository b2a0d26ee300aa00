"""
``outlast runs report``: what a run came to and why, for the terminal, as JSON, or as a page; and one item's way through
it.
"""

from __future__ import annotations

import shlex
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from outlast.cli.options import AppName, AsJson, OfPipeline, Run, StoreUrl  # noqa: TC001 - typer reads the annotations
from outlast.cli.output import console, hint, print_json, print_table, refuse, say
from outlast.cli.runs import runs
from outlast.cli.stores import opened, stored_at
from outlast.kernel.redact import mask, plain
from outlast.kernel.wording import amount, counted, duration, percent, precise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from outlast.report import FlowReport, Report, Story

_BAR = 20


@runs.command("report")
def report_run(
    run: Run,
    *,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with charts that needs nothing else.")
    ] = None,
    item: Annotated[
        str | None, typer.Option("--item", metavar="KEY", help="One item's way instead, by its key or its position.")
    ] = None,
    pipeline: OfPipeline = None,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """
    Say what a run came to and why: retries, errors, stages, time, cost, of a flow its steps; or one item's way with the
    reason for every wait.
    """
    if html is not None and (as_json or item is not None):
        refuse(f"expected --html alone, got it with {'--json' if as_json else '--item'}: a page has the whole report.")
    with opened(store, app) as views:
        record = views.run(run, pipeline)
        if record.kind == "flow":
            _report_flow(views.flows.report(record), stored_at(views, store, app), html, item, as_json=as_json)
            return
        if item is not None:
            story = views.story(record, item)
            if as_json:
                print_json(story.to_dict())
            else:
                _print_story(story)
            return
        found = views.report(record)
    if as_json:
        print_json(found.to_dict())
    elif html is not None:
        _save(found, html)
    else:
        print_report(found)


def _save(found: Report | FlowReport, html: Path) -> None:
    try:
        found.save(html)
    except OSError as error:
        refuse(f"expected --html to be a file that can be written, got: {html} ({error.strerror}).")
    say(clean(found.verdict))
    hint(f"The report is in {html}")


def _report_flow(
    found: FlowReport, stored: Sequence[str], html: Path | None, item: str | None, *, as_json: bool
) -> None:
    from outlast.cli.flowprinting import print_flow_report, tell_next

    if item is not None:
        command = shlex.join(["outlast", "runs", "attempts", *found.called, "--item", item, *stored])
        refuse(f"expected no --item with {found.run_key}, a run of a flow. The attempts at a step: {command}")
    if as_json:
        print_json(found.to_dict())
    elif html is not None:
        _save(found, html)
    else:
        print_flow_report(found)
        tell_next(found, stored)
        hint(f"As a page: {shlex.join(['outlast', 'runs', 'report', *found.called, '--html', 'report.html', *stored])}")


def clean(value: object) -> str:
    """Somebody else's text, without secrets."""
    return plain(mask(str(value)))


# -- the report -------------------------------------------------------------------------------------------------------------------


def print_report(report: Report) -> None:
    """The report for a terminal, most important things first."""
    out = console()
    run = report.run
    out.print(
        Text.assemble(
            (clean(run.pipeline), "bold"), "  ", clean(run.run_key), "  ", clean(run.status), "  ", (run.id[:12], "dim")
        )
    )
    out.print(Text(clean(report.verdict), style="bold"))
    for said in report.unknown:
        out.print(Text(f"! {said}"))
    _facts(report)
    _groups(report)
    _stages(report)
    _retries(report)
    _time(report)
    _errors(report)
    _cost(report)
    _ends(report)
    for group in [group for group in report.letters if group.open][:1]:
        hint("")
        hint(f"Inspect: {group.look}")
        hint(f"After the fix: {group.replay}")
    if not report.letters and report.counts.dlq + report.counts.failed:
        hint(f"Look at them: {report.command('runs', 'errors', clean(run.run_key))}")
    hint(f"As a page: {report.command('runs', 'report', run.id[:12], '--html', 'report.html')}")


def _heading(text: str) -> None:
    say()
    console().print(Text(text, style="bold underline"))


def _clean_rows(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    return [[clean(value) if isinstance(value, str) else value for value in row] for row in rows]


def _bar(share: float) -> str:
    """A share that can be seen without colours."""
    return "█" * max(1 if share > 0 else 0, round(share * _BAR))


def _share(share: float | None) -> str:
    return "" if share is None else percent(round(share * 1e9), 10**9)


def _facts(report: Report) -> None:
    counts = report.counts
    parts = [f"{counts.succeeded:,} succeeded" + (f" ({counts.degraded:,} degraded)" if counts.degraded else "")]
    parts += [
        f"{number:,} {word}"
        for number, word in (
            (counts.skipped, "skipped"),
            (counts.dlq, "dead"),
            (counts.failed, "failed"),
            (counts.pending, "pending"),
        )
        if number
    ]
    if report.run.took is not None:
        worked = report.run.worked
        apart = (
            ""
            if worked is None or report.passes <= 1
            else f", {duration(worked)} without the pauses between its passes"
        )
        parts.append(duration(report.run.took) + apart)
    if report.passes > 1:
        parts.append(f"started {report.passes} times")
    console().print(Text("   ".join(parts)))


def _groups(report: Report) -> None:
    ended = [group for group in report.errors if group.dead]
    if not report.letters and not ended:
        return
    _heading("What went wrong")
    rows: list[tuple[Any, ...]] = [
        (group.count, group.open, group.group, group.stage, group.error_type, group.message) for group in report.letters
    ] or [(group.dead, None, group.group, group.stage, group.error_type, group.message) for group in ended]
    print_table(
        ("dead", "open", "group", "stage", "error", "message"),
        _clean_rows(rows),
        fold="message",
        drop=("open", "error"),
    )
    if report.stop_reasons:
        told = ", ".join(f"{number:,} {reason}" for reason, number in report.stop_reasons.items())
        say(f"Not retried: {told}")


def _stages(report: Report) -> None:
    _heading("Stages")
    fates = {"fallback": "fell_back", "mended": "mended", "unfinished": "unfinished"}
    more = {name: fate for name, fate in fates.items() if any(getattr(stage, fate) for stage in report.stages)}
    rows = [
        (
            stage.name,
            stage.entered,
            _share(stage.first_try_rate),
            stage.after_retry,
            *(getattr(stage, fate) for fate in more.values()),
            stage.skipped,
            stage.dead,
            *(
                ("", "", "", "")
                if stage.took is None
                else (precise(value) for value in (stage.took.p50, stage.took.p95, stage.took.p99, stage.took.max))
            ),
        )
        for stage in report.stages
    ]
    headings = ("stage", "entered", "first try", "retried", *more, "skipped", "dead", "p50", "p95", "p99", "longest")
    print_table(headings, _clean_rows(rows), fold="stage", drop=("p99", "longest", "skipped", "p50"))
    amplification = report.amplification
    if amplification.ratio is not None:
        fine = "below" if amplification.ratio < amplification.target else "above"
        say(f"{amplification.ratio:.2f} calls per item, {fine} the target of {amplification.target:g}")


def _retries(report: Report) -> None:
    _heading("Retries that items needed")
    whole = report.retries
    total = whole.none + whole.one + whole.two + whole.more
    rows = [
        (word, number, percent(number, total), _bar(number / total if total else 0.0))
        for word, number in (
            ("none", whole.none),
            ("one", whole.one),
            ("two", whole.two),
            ("three or more", whole.more),
        )
    ]
    print_table(("retries", "items", "share", ""), rows)


def _time(report: Report) -> None:
    time = report.time
    _heading("Where the time of all items went")
    rows = [
        (
            "attempts" if report.complete else "attempts and slots",
            duration(time.work),
            _share(time.work_share),
            "",
            _bar(time.work_share),
        )
    ]
    rows += [
        (
            wait.text,
            duration(wait.seconds),
            _share(wait.share),
            f"{wait.count:,} times, at most {precise(wait.longest)}",
            _bar(wait.share),
        )
        for wait in time.waits
    ]
    if time.slots:
        rows.append(
            ("waiting for a free slot", duration(time.slots), _share(time.slots_share), "", _bar(time.slots_share))
        )
    print_table(("what", "in all", "share", "", " "), _clean_rows(rows), fold="what", drop=("", " "))


def _errors(report: Report) -> None:
    if not report.errors:
        return
    _heading("Errors")
    rows = [
        (
            group.count,
            _share(group.share),
            group.saved,
            group.dead,
            group.stage,
            group.error_class,
            group.error_type,
            group.message,
        )
        for group in report.errors
    ]
    headings = ("attempts", "share", "saved", "dead", "stage", "error class", "error", "message")
    print_table(headings, _clean_rows(rows), fold="message", drop=("error class", "share", "error"))
    if report.left_out["errors"]:
        say(f"and {counted(report.left_out['errors'], 'further kind')}")


def _cost(report: Report) -> None:
    if not report.cost:
        return
    _heading("Cost")
    rows = [
        (
            cost.name,
            amount(cost.total),
            "" if cost.per_succeeded is None else amount(cost.per_succeeded),
            amount(cost.wasted),
            _share(cost.wasted_share),
        )
        for cost in report.cost
    ]
    print_table(("what", "spent", "for each success", "in vain", "share"), _clean_rows(rows), fold="what")


def _ends(report: Report) -> None:
    if report.slowest:
        _heading("Slowest items")
        rows = [(item.key, item.status, item.stage, item.attempts, precise(item.took)) for item in report.slowest[:5]]
        print_table(
            ("item", "status", "stage", "attempts", "took"), _clean_rows(rows), fold="item", drop=("stage", "attempts")
        )
    if report.warnings:
        _heading("Warnings")
        print_table(
            ("count", "warning"),
            _clean_rows((warned.count, warned.message) for warned in report.warnings),
            fold="warning",
        )


# -- one item ---------------------------------------------------------------------------------------------------------------------


def _print_story(story: Story) -> None:
    out = console()
    ended = story.status or "not finished"
    out.print(
        Text.assemble(
            (clean(story.key), "bold"),
            f"  {ended}  ",
            clean(f"{story.pipeline} {story.run_key}"),
            ("  " + story.run_id[:12], "dim"),
        )
    )
    if story.took is not None:
        waited = sum(story.waited.values())
        say(
            f"{counted(story.attempts, 'attempt')} in {duration(story.took)}: {precise(story.worked)} of work, {precise(waited)} of named waits"
        )
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for moment in story.moments:
        table.add_row(Text(moment.clock), Text(clean(moment.text)))
    out.print(table)
