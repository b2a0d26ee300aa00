"""
A report as one page that needs nothing else: no network, no script, no font. What matters the morning after stands
first.
"""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import TYPE_CHECKING

from outlast.display.html import coloured, counts_bar, escaped, framed, headline, named, paragraph
from outlast.display.html import isolated as text
from outlast.kernel.wording import amount, counted, duration, per_second, percent, precise
from outlast.report.html import charts
from outlast.report.html.pieces import legend_of, moment, num, numbers, section, share, tabled
from outlast.report.html.style import SHEET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.report.model import ErrorGroup, LetterGroup, Report, Retries, StageReport

_STATUS = {"partial_success": "partial success"}
_WAITS = {
    "retry": "again",
    "retry_after": "again",
    "result": "again",
    "limit": "limit",
    "throttled": "limit",
    "breaker": "dead",
    "retry_budget": "dead",
    "checkpoint": "mark",
    "snooze": "skip",
}


def page(report: Report) -> str:
    """The whole page."""
    title = f"{report.run.pipeline} {report.run.run_key}: {report.run.status}"
    return whole_page(title, "".join(_parts(report)))


def whole_page(title: str, body: str) -> str:
    """A page of its own: with its sheet, and nothing that it could load."""
    digest = base64.b64encode(sha256(SHEET.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        f'<meta name="color-scheme" content="light dark"><title>{escaped(title)}</title><style>{SHEET}</style></head>'
        f"<body><main>{body}</main></body></html>\n"
    )


def _parts(report: Report) -> Iterator[str]:
    yield _head(report)
    yield _problems(report)
    yield _progress(report)
    yield _flow(report)
    yield f'<div class="two">{_retries(report)}{_shares(report)}</div>'
    yield _durations(report)
    yield _errors(report)
    yield f'<div class="two">{_cost(report)}{_slowest(report)}</div>'
    yield f'<div class="two">{_passes(report)}{_warnings(report)}</div>'
    run = report.run
    yield (
        f'<footer>Run <span class="mono">{escaped(run.id)}</span>. All times are UTC. One item\'s way, with the reason for every wait: '
        f"<code>{escaped(report.command('runs', 'report', run.id[:12], '--item', 'KEY'))}</code></footer>"
    )


# -- the first screen ---------------------------------------------------------------------------------------------------------------


def _count_parts(report: Report) -> list[tuple[str, int, str]]:
    counts = report.counts
    return [
        ("ok", counts.succeeded - counts.degraded, "succeeded"),
        ("again", counts.degraded, "succeeded, degraded"),
        ("skip", counts.skipped, "skipped"),
        ("dead", counts.dlq, "dead letters" if counts.dlq != 1 else "dead letter"),
        ("dead", counts.failed, "failed"),
        ("rest", counts.pending, "pending"),
    ]


def _head(report: Report) -> str:
    run, counts = report.run, report.counts
    parts = [part for part in _count_parts(report) if part[1]]
    bar = charts.stacked(
        [(kind, number, f"{number:,} {word}") for kind, number, word in parts],
        height=16,
        title="Where the items are",
        whole=counts.total,
    )
    # Items that were read ahead of an end that nobody knows are no whole that anything is a share of.
    shares = counts.source_exhausted
    legend = legend_of(
        (
            kind,
            f"<b>{number:,}</b>",
            f'{word} <span class="quiet">{percent(number, counts.total)}</span>' if shares else word,
        )
        for kind, number, word in parts
    )
    again = "" if run.kind == "run" else " (replay of dead letters)"
    status = _STATUS.get(run.status, run.status)
    # The headline of a completed run says it already.
    why = (
        f'<p class="why">{text(run.why[:1].upper() + run.why[1:])}</p>' if run.why and run.status != "completed" else ""
    )
    note = (
        f'<div class="note" role="note">{"".join(f"<p>{escaped(said)}</p>" for said in report.unknown)}</div>'
        if report.unknown
        else ""
    )
    return (
        f'<header><div class="top"><b>{text(run.pipeline)}</b><span>run {text(run.run_key)}{again}</span>'
        f'<span class="chip {escaped(run.status)}">{escaped(status)}</span><span>{moment(run.started_at)}</span></div>'
        f"<h1>{text(report.verdict)}</h1>{why}{note}"
        f'<div class="counts">{bar}{legend}</div>{_tiles(report)}</header>'
    )


def _tiles(report: Report) -> str:
    run, amplification = report.run, report.amplification
    found: list[tuple[str, str, str]] = [
        (
            "succeeded",
            share(report.counts.success_rate),
            f"of {counted(report.counts.total - report.counts.skipped, 'item')}",
        )
    ]
    if run.took is not None:
        speed = report.throughput.per_second
        found.append(("took", duration(run.took), per_second(speed) if speed else _passes_took(report)))
    needed = report.retries.one + report.retries.two + report.retries.more
    whole = needed + report.retries.none
    found.append(("needed a retry", f"{needed:,}", f"{percent(needed, whole)} of {counted(whole, 'item')}"))
    if amplification.ratio is not None:
        fine = amplification.ratio < amplification.target
        found.append(
            (
                "calls per item",
                f"{amplification.ratio:.2f}",
                f"{'below' if fine else 'above'} {amplification.target:g}, the target",
            )
        )
    found += [
        (f"{cost.name} spent", amount(cost.total), f"{share(cost.wasted_share)} in vain") for cost in report.cost[:2]
    ]
    return (
        '<dl class="tiles">'
        + "".join(
            f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}<small>{escaped(more)}</small></dd></div>"
            for name, value, more in found
        )
        + "</dl>"
    )


def _problems(report: Report) -> str:
    dead = report.counts.dlq + report.counts.failed
    if report.letters:
        rows = ""
        for group in report.letters[:5]:
            left = f"{group.open:,} open" if group.open != group.count else "all open"
            keys = ", ".join(named(key) for key in group.sample_keys)
            commands = f"<code>{escaped(group.look)}</code><code>{escaped(group.replay)}</code>" if group.open else ""
            shown = share(group.share), f" · {left}", f' · for example {keys}</p><div class="cmds">{commands}</div>'
            rows += _problem(group, group.count, *shown)
        more = len(report.letters) - 5 + report.left_out["letters"]
        rest = (
            f'<p class="meta quiet">{counted(more, "further group")}: <code>{escaped(report.command("dlq", "groups", "--run", report.run.id[:12]))}</code></p>'
            if more > 0
            else ""
        )
        lead = "Dead letters by what they have in common, the largest group first. Inspect one, fix the cause, then replay the group."
        return section("What went wrong", lead, f'<ol class="problems">{rows}</ol>{rest}{_stopped(report)}')
    if dead:
        ended = [group for group in report.errors if group.dead][:5]
        rows = "".join(_problem(group, group.dead, percent(group.dead, dead), "", "</p>") for group in ended)
        kept = (
            "They are not kept as dead letters."
            if not report.counts.dlq
            else "Their dead letters are open again, with the runs they come from."
            if report.run.kind == "replay"
            else "Their dead letters are not on record any more."
        )
        return section(
            "What went wrong",
            f"What items failed with. {kept}",
            f'<ol class="problems">{rows}</ol>{_stopped(report)}',
        )
    return ""


def _problem(group: LetterGroup | ErrorGroup, count: int, part: str, left: str, end: str) -> str:
    return (
        f'<li><div class="n">{count:,}<small>{part}</small></div><div>'
        f'<h3>{named(group.error_type)} at {named(group.stage)}</h3><p class="msg">{text(group.message)}</p>'
        f'<p class="meta">{escaped(group.error_class)}{left} · from {moment(group.first_seen_at)} to {moment(group.last_seen_at)}{end}</div></li>'
    )


def _stopped(report: Report) -> str:
    """Why failed items were not tried again."""
    told = ", ".join(f"{number:,} {escaped(reason)}" for reason, number in report.stop_reasons.items())
    return f'<p class="meta quiet">Not retried: {told}</p>' if told else ""


# -- over time, and from stage to stage ----------------------------------------------------------------------------------------------


def _progress(report: Report) -> str:
    throughput = report.throughput
    if not throughput.buckets:
        return ""
    rows = [
        [(moment(bucket.at), "mono"), num(bucket.succeeded), num(bucket.skipped), num(bucket.dead)]
        for bucket in throughput.buckets
        if bucket.finished
    ]
    table = tabled(("from", "succeeded", "skipped", "dead"), rows)
    figure = f"<figure><figcaption>finished items in spans of {precise(throughput.width).removesuffix(' 00 s')}</figcaption>{charts.over_time(throughput)}</figure>"
    return section("Progress", "", figure, numbers("the numbers", table))


def _flow(report: Report) -> str:
    counts = report.counts
    cards = [_edge("source", counts.total, "read" if counts.source_exhausted else "read so far")]
    cards += [_card(stage) for stage in report.stages]
    cards.append(_edge("done", counts.succeeded, "succeeded"))
    rows = [
        [
            (named(stage.name), ""),
            num(stage.entered),
            num(stage.attempts),
            num(stage.failures),
            (share(stage.first_try_rate), "num"),
            num(stage.first_try),
            num(stage.after_retry),
            num(stage.fell_back),
            num(stage.skipped),
            num(stage.dead),
            num(stage.mended),
            num(stage.unfinished),
        ]
        for stage in report.stages
    ]
    headings = (
        *("stage", "entered", "attempts", "failed attempts", "first try", "at the first try", "after a retry"),
        *("fallback", "skipped", "dead", "mended by a replay", "unfinished"),
    )
    return section(
        "From stage to stage",
        "How many items reached each stage, how many succeeded at the first attempt or after a retry, and how many ended there.",
        f'<ol class="flow">{"".join(cards)}</ol>',
        numbers("the numbers", tabled(headings, rows)),
    )


def _passes_took(report: Report) -> str:
    passes, worked = counted(report.passes, "pass", "passes"), report.run.worked
    return passes if worked is None or report.passes <= 1 else f"{passes}, {duration(worked)} without pauses"


def _edge(name: str, number: int, word: str) -> str:
    return f'<li class="edge"><div class="card"><h3 class="tag">{name}</h3><div class="big">{number:,} <small>{word}</small></div></div></li>'


def _card(stage: StageReport) -> str:
    parts: list[tuple[str, int, str]] = []
    if stage.first_try is not None and stage.after_retry is not None:
        parts = [("ok", stage.first_try, "at the first try"), ("again", stage.after_retry, "after a retry")]
    else:
        needed = stage.retries.one + stage.retries.two + stage.retries.more
        parts = [("again", needed, "needed a retry")]
    parts += [
        ("again", stage.fell_back or 0, "answered by the fallback"),
        ("again", stage.mended, "mended by a replay"),
        ("skip", stage.skipped, "skipped here"),
        ("dead", stage.dead, "ended dead here"),
        ("rest", stage.unfinished, "not finished"),
    ]
    bar = charts.stacked(
        [(kind, number, f"{number:,} {word}") for kind, number, word in parts],
        height=8,
        title=f"How items fared at {stage.name}",
        whole=stage.entered,
    )
    lines = "".join(
        f'<li><span class="key f-{kind}"></span> <b>{number:,}</b> {word}</li>'
        for kind, number, word in parts
        if number
    )
    tags = " · ".join(
        ([f"version {escaped(stage.version)}"] if stage.version != "1" else [])
        + (["checkpoint"] if stage.checkpoint else [])
    )
    return (
        f'<li><div class="card"><h3>{named(stage.name)}</h3><p class="tag">{tags}</p>'
        f'<div class="big">{stage.entered:,} <small>entered</small></div>{bar}<ul>{lines}</ul></div></li>'
    )


# -- retries, time, errors -----------------------------------------------------------------------------------------------------------


def _retries(report: Report) -> str:
    def row(name: str, retries: Retries) -> list[tuple[str, str]]:
        return [(name, ""), num(retries.none), num(retries.one), num(retries.two), num(retries.more)]

    whole = report.retries
    total = whole.none + whole.one + whole.two + whole.more
    bars = [
        [
            (word, ""),
            num(number),
            (percent(number, total), "num"),
            (charts.small_bar([(number / total if total else 0.0, kind)], f"{number:,}"), "bar"),
        ]
        for word, number, kind in (
            ("none", whole.none, "ok"),
            ("one", whole.one, "again"),
            ("two", whole.two, "again"),
            ("three or more", whole.more, "dead"),
        )
    ]
    table = tabled(
        ("stage", "none", "one", "two", "three or more"),
        [row(named(stage.name), stage.retries) for stage in report.stages],
    )
    return section(
        "Retries needed",
        "How many retries the finished items needed.",
        tabled(("retries", "items", "share", ""), bars),
        numbers("by stage", table),
    )


def _shares(report: Report) -> str:
    time = report.time
    parts = [("ok", time.work, "attempts" if report.complete else "attempts and slots")]
    parts += [(_WAITS.get(wait.kind, "skip"), wait.seconds, wait.text) for wait in time.waits]
    parts.append(("rest", time.slots, "waiting for a free slot"))
    bar = charts.stacked(
        [(kind, seconds, f"{word}: {duration(seconds)}") for kind, seconds, word in parts],
        height=16,
        title="Where the time of all items went",
    )
    longest = {wait.text: wait for wait in time.waits}
    rows: list[list[tuple[str, str]]] = []
    for kind, seconds, word in parts:
        if seconds <= 0:
            continue
        wait = longest.get(word)
        rows.append(
            [
                (f'<span class="key f-{kind}"></span> {text(word)}', "text"),
                (duration(seconds), "num"),
                (share(seconds / time.total if time.total else 0.0), "num"),
                (("\N{EN DASH}" if wait is None else f"{wait.count:,}"), "num"),
                (("\N{EN DASH}" if wait is None else precise(wait.longest)), "num"),
            ]
        )
    table = tabled(("what", "in all", "share", "times", "longest"), rows) if rows else ""
    return section(
        "Where the time went",
        "Of all items together: work, and what they waited for.",
        f"<figure>{bar}</figure>",
        table,
    )


def _durations(report: Report) -> str:
    known = [(stage.name, stage.took) for stage in report.stages if stage.took is not None]
    if not known:
        return ""
    rows = [
        [
            (named(name), ""),
            *((precise(value), "num") for value in (took.p50, took.p95, took.p99, took.max)),
            (duration(took.total), "num"),
        ]
        for name, took in known
    ]
    figure = f"<figure>{charts.ranges(known)}</figure>"
    table = tabled(("stage", "p50", "p95", "p99", "longest", "in all"), rows)
    return section(
        "Time of an attempt",
        "A circle marks the middle, the thick line ends where 95 % have, the short stroke at 99 %, the last at the longest. Each step of the scale is ten times the one before.",
        figure,
        numbers("the numbers", table),
    )


def _errors(report: Report) -> str:
    if not report.errors:
        return ""
    most = report.errors[0].count
    rows = [
        [
            num(group.count),
            (f"{named(group.error_type)}<br><small>{escaped(group.error_class)} at {named(group.stage)}</small>", ""),
            (
                f"{text(group.message)}<br><small>{moment(group.first_seen_at)} to {moment(group.last_seen_at)}</small>",
                "text",
            ),
            num(group.saved),
            num(group.dead),
            (
                charts.small_bar(
                    [
                        (max(0, group.count - group.dead) / most, "again"),
                        (min(group.dead, group.count) / most, "dead"),
                    ]
                ),
                "bar",
            ),
        ]
        for group in report.errors
    ]
    table = tabled(("failed attempts", "error", "what it said last", "saved", "dead", ""), rows)
    more = report.left_out["errors"]
    rest = f'<p class="quiet">{counted(more, "further kind")} of error.</p>' if more else ""
    return section(
        "Errors",
        "Failed attempts by what they have in common. Of the items whose last error it was, so many were saved by another attempt, and so many ended dead.",
        table,
        rest,
    )


# -- the rest ------------------------------------------------------------------------------------------------------------------------


def _cost(report: Report) -> str:
    if not report.cost:
        return ""
    rows = [
        [
            (named(cost.name), ""),
            (amount(cost.total), "num"),
            ("\N{EN DASH}" if cost.per_succeeded is None else amount(cost.per_succeeded), "num"),
            (amount(cost.wasted), "num"),
            (share(cost.wasted_share), "num"),
            (charts.small_bar([(1 - min(1.0, cost.wasted_share), "ok"), (min(1.0, cost.wasted_share), "dead")]), "bar"),
        ]
        for cost in report.cost
    ]
    table = tabled(("what", "spent", "each success", "in vain", "share", ""), rows)
    return section("Cost", "In vain: on attempts that failed, and on items that ended dead.", table)


def _slowest(report: Report) -> str:
    if not report.slowest:
        return ""
    rows = [
        [
            (named(item.key), "name"),
            (escaped("dead letter" if item.status == "dlq" else item.status), ""),
            (named(item.stage), ""),
            num(item.attempts),
            (precise(item.took), "num"),
        ]
        for item in report.slowest
    ]
    return section(
        "Slowest items",
        "From the first attempt to the end, waits included.",
        tabled(("item", "status", "last stage", "attempts", "took"), rows),
    )


def _passes(report: Report) -> str:
    if report.passes <= 1 or not report.pass_list:
        return ""
    rows: list[list[tuple[str, str]]] = [
        [
            (moment(each.started_at), ""),
            num(each.finished_before),
            (escaped(each.status or "no end on record"), ""),
            (text(each.why or ""), "text"),
        ]
        for each in report.pass_list
    ]
    return section(
        "Passes",
        f"The run was started {report.passes} times.",
        tabled(("started", "finished before", "ended", "why"), rows),
    )


def _warnings(report: Report) -> str:
    if not report.warnings:
        return ""
    rows = [[num(warned.count), (text(warned.message), "text")] for warned in report.warnings]
    return section("Warnings", "What items that went on were warned of.", tabled(("count", "warning"), rows))


# -- for notebooks ----------------------------------------------------------------------------------------------------------------


def summary_html(report: Report) -> str:
    """The first screen in a few lines, for a notebook: it takes the colours of whatever it stands in."""
    run = report.run
    groups: list[tuple[int, LetterGroup | ErrorGroup]] = [(group.count, group) for group in report.letters]
    groups = groups or [(group.dead, group) for group in report.errors if group.dead]
    problems = (
        coloured(f"{count:,} \N{MULTIPLICATION SIGN}", "dead")
        + f" {named(group.error_type)} at {named(group.stage)}: {text(group.message)}"
        for count, group in groups[:3]
    )
    return framed(
        headline(run.pipeline, run.run_key, run.status),
        paragraph(f'<b style="font-size:15px">{text(report.verdict)}</b>'),
        counts_bar(report.counts),
        *map(paragraph, problems),
    )
