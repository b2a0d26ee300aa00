"""
The report of a flow's run as one page that needs nothing else: no network, no script, no font. What matters the morning
after stands first.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from outlast.display.flows import STATES
from outlast.display.graph import ranks
from outlast.display.html import coloured, escaped, framed, headline, monospaced, named, paragraph
from outlast.display.html import isolated as text
from outlast.flow.progress import PARTIAL
from outlast.kernel.wording import counted, duration, precise
from outlast.report.flows import rows_in_words, told
from outlast.report.html import charts
from outlast.report.html.pieces import legend_of, moment, num, section, tabled
from outlast.report.page import whole_page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.report.flows import AttemptFacts, FlowReport, StepFacts

_KINDS = {
    "succeeded": "ok",
    "cached": "mark",
    "partial_success": "again",
    "failed": "dead",
    "compensation_failed": "dead",
    "compensated": "limit",
    "compensating": "again",
    "running": "again",
    "waiting": "again",
    "skipped": "skip",
    "pending": "rest",
}
_BAD = {"failed", PARTIAL, "compensation_failed"}
_MOST_ROWS = 200  # attempts in the table; the newest of a step are the last


def page(report: FlowReport) -> str:
    """The whole page."""
    title = f"{report.pipeline} {report.run_key}: {report.status}"
    return whole_page(title, "".join(_parts(report)))


def _parts(report: FlowReport) -> Iterator[str]:
    yield _head(report)
    yield _problems(report)
    yield _graph(report)
    yield _over_time(report)
    yield _attempts(report)
    yield f'<div class="two">{_kept(report)}{_passes(report)}</div>'
    yield f'<footer>Run <span class="mono">{escaped(report.id)}</span>. All times are UTC.</footer>'


def _word(step: StepFacts) -> str:
    return step.word or STATES[step.status][0]


# -- the first screen ------------------------------------------------------------------------------------------------------


def _head(report: FlowReport) -> str:
    found: dict[tuple[str, str], int] = {}
    for step in report.steps:
        mark = (_KINDS.get(step.status, "rest"), _word(step))
        found[mark] = found.get(mark, 0) + 1
    parts = [(kind, number, word) for (kind, word), number in found.items()]
    bar = charts.stacked(
        [(kind, number, f"{counted(number, 'step')} {word}") for kind, number, word in parts],
        height=16,
        title="Where the steps are",
        whole=len(report.steps),
    )
    legend = legend_of((kind, f"<b>{number:,}</b>", escaped(word)) for kind, number, word in parts)
    said = report.verdict[:1].upper() + report.verdict[1:]
    left = report.rows_left if report.status in {"failed", "cancelled"} else ()
    note = "".join(f"<p>{escaped(one)}</p>" for one in (*report.unknown, *left))
    notes = f'<div class="note" role="note">{note}</div>' if note else ""
    why = "" if f"{said}." == _heading(report) else f'<p class="why">{text(said)}</p>'
    commands = "".join(
        f'<li>{escaped(what)}<div class="cmds"><code>{escaped(command)}</code></div></li>'
        for what, command in report.next()
    )
    commands = f'<ul class="todo">{commands}</ul>' if commands else ""
    return (
        f'<header><div class="top"><b>{text(report.pipeline)}</b><span>run {text(report.run_key)}</span>'
        f'<span class="chip {escaped(report.status)}">{escaped(report.status)}</span><span>{moment(report.started_at)}</span></div>'
        f"<h1>{text(_heading(report))}</h1>"
        f'{why}{notes}<div class="counts">{bar}{legend}</div>{_tiles(report)}{commands}</header>'
    )


def _heading(report: FlowReport) -> str:
    failed = [step.id for step in report.steps if step.status == "failed"]
    partial = [step.id for step in report.steps if step.status == PARTIAL]
    done = f"{report.counts['succeeded']:,} of {counted(report.counts['total'], 'step')} succeeded"
    if report.not_undone:
        return f"{', '.join(report.not_undone)} could not be undone, and still stands."
    if failed:
        return f"{', '.join(failed)} failed. {done}."
    if partial:
        return f"{', '.join(partial)} lost rows. {done}."
    return f"{'' if report.status == 'completed' else f'The run is {report.status}. '}{done}."


def _tiles(report: FlowReport) -> str:
    attempts = [one for step in report.steps for one in step.attempts]
    again = sum(one.next_run_at is not None for one in attempts)
    found = [("steps done", f"{report.counts['succeeded']:,}", f"of {report.counts['total']:,}")]
    if report.took is not None:
        found.append(("took", duration(report.took), counted(report.passes, "pass", "passes")))
    found.append(("attempts", f"{len(attempts):,}", f"{counted(again, 'retry', 'retries')}"))
    found += [(f"{name} spent", f"{amount:,.6g}", "in all") for name, amount in [*report.spent.items()][:2]]
    if report.compensation != "none":
        begun = f"{len(report.undoing):,} begun, " if report.undoing else ""
        found.append(("undone", f"{len(report.undone):,}", f"{begun}{len(report.not_undone):,} could not be"))
    if report.dead_letters:
        found.append(("dead letters", f"{report.dead_letters:,}", "of rows, open"))
    inside = "".join(
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}<small>{escaped(more)}</small></dd></div>"
        for name, value, more in found
    )
    return f'<dl class="tiles">{inside}</dl>'


def _problems(report: FlowReport) -> str:
    rows = ""
    for step in report.steps:
        if step.error is None or step.status not in _BAD:
            continue
        undo = step.status == "compensation_failed"
        made = step.undone_by if undo else step.attempts
        kind = next((one.error_type for one in reversed(made) if one.error_type), step.error_class or "error")
        where = f"undoing {step.id}" if undo else step.id
        place = next((one.place for one in reversed(made) if one.place), None)
        letter = "" if step.dead_letter is None else f" · dead letter {escaped(step.dead_letter[:12])}"
        raised = "" if place is None else f" · {escaped(place)}"
        rows += (
            f'<li><div class="n">{len(made):,}<small>{"attempt" if len(made) == 1 else "attempts"}</small></div><div>'
            f'<h3>{named(kind)} at {named(where)}</h3><p class="msg">{text(step.error)}</p>'
            f'<p class="meta">{escaped(step.error_class or "")}'
            f"{'' if step.stop_reason is None else f' · not tried again: {escaped(step.stop_reason)}'}{letter}{raised}</p></div></li>"
        )
    if not rows:
        return ""
    return section(
        "What went wrong",
        "Steps that failed for good or lost rows, and what could not be undone.",
        f'<ol class="problems">{rows}</ol>',
    )


# -- the graph, and over time ----------------------------------------------------------------------------------------------


def _graph(report: FlowReport) -> str:
    edges = [(before, step.id) for step in report.steps for before in step.needs]
    joined = {name for pair in edges for name in pair}
    columns = ranks(edges) if edges else []
    alone = [step.id for step in report.steps if step.id not in joined]
    if alone:
        columns = [[*alone, *(columns[0] if columns else [])], *columns[1:]]
    cards = "".join(
        f'<li><div class="stack">{"".join(_card(report[name]) for name in names)}</div></li>' for names in columns
    )
    lead = "Each step as far to the left as those that it needs allow."
    return section("Steps", lead, f'<ol class="flow">{cards}</ol>')


def _card(step: StepFacts) -> str:
    said = [counted(len(step.attempts), "attempt")] if step.attempts else []
    said += [precise(step.took)] if step.took is not None else []
    said += [counted(step.dead_letters, "dead letter")] if step.dead_letters else []
    said += [*rows_in_words([step]).values()]
    outputs = ", ".join(f"{name} ({kind})" for name, kind in step.outputs.items())
    more = f"<li>puts out {text(outputs)}</li>" if outputs else ""
    return (
        f'<div class="card"><h3>{named(step.id)}</h3><p class="tag">{named(step.component)}</p>'
        f'<ul><li><span class="key f-{_KINDS.get(step.status, "rest")}"></span> <b>{escaped(_word(step))}</b></li>'
        f"<li>{escaped(' · '.join(said))}</li>{more}</ul></div>"
    )


def _over_time(report: FlowReport) -> str:
    shown = [step for step in report.steps if step.attempts or step.undone_by]
    made = [one for step in shown for one in (*step.attempts, *step.undone_by)]
    if not made:
        return ""
    first = min(one.started_at for one in made)
    length = max((one.started_at - first).total_seconds() + (one.took or 0.0) for one in made) or 1e-6

    def place(one: AttemptFacts) -> tuple[float, float]:
        begin = 100 * (one.started_at - first).total_seconds() / length
        wide = max(0.4, 100 * (one.took or 0.0) / length)
        return min(begin, 100 - wide), wide

    body, high = "", 42
    for number, step in enumerate(shown):
        y = number * high
        body += f'<text x="0" y="{y + 13}">{escaped(step.id[:60])}</text>'
        body += charts.rect(0, 100, y + 19, 12, "well", round_=3)
        for one, undo in [*((one, False) for one in step.attempts), *((one, True) for one in step.undone_by)]:
            x, wide = place(one)
            kind = (
                "limit"
                if undo and one.succeeded
                else "ok"
                if one.succeeded
                else "again"
                if one.next_run_at or one.outcome == "running"
                else "dead"
            )
            what = "undoing, " if undo else ""
            after = "" if one.took is None else f" after {precise(one.took)}"
            hint = f"{step.id}: {what}attempt {one.number} {one.outcome}{after}"
            body += charts.rect(x, wide, y + 19, 12, kind, hint, 2)
    foot = len(shown) * high
    body += f'<text x="0" y="{foot + 12}">{first:%H:%M:%S}</text>'
    body += f'<text x="100%" y="{foot + 12}" text-anchor="end">{escaped(duration(length))} later</text>'
    summed = f"{counted(len(made), 'attempt')} at {counted(len(shown), 'step')} in {duration(length)}."
    kinds = legend_of(
        (kind, "", word)
        for kind, word in (
            ("ok", "succeeded"),
            ("again", "failed, tried again, or under way"),
            ("dead", "failed"),
            ("limit", "undone"),
        )
    )
    return section(
        "Over time",
        "Every attempt, from its start to its end.",
        f"<figure>{charts.drawing(foot + 20, 'Attempts over time', summed, body)}</figure>{kinds}",
    )


def _attempts(report: FlowReport) -> str:
    rows: list[list[tuple[str, str]]] = []
    for step in report.steps:
        for what, made in ((named(step.id), step.attempts), (f"undoing {named(step.id)}", step.undone_by)):
            rows += [_row(what, one) for one in made]
    if not rows:
        return ""
    left = len(rows) - _MOST_ROWS
    more = f'<p class="quiet">{counted(left, "further attempt")}: <code>{escaped(shlex.join(["outlast", "runs", "attempts", report.id[:12], *report.stored]))}</code></p>'
    headings = ("step", "attempt", "outcome", "started", "took", "then", "error")
    return section("Attempts", "", tabled(headings, rows[:_MOST_ROWS]), more if left > 0 else "")


def _row(what: str, one: AttemptFacts) -> list[tuple[str, str]]:
    then = "" if one.next_run_at is None else f"next {moment(one.next_run_at)}"
    then = then or ("" if one.stop_reason is None else f"no other: {escaped(one.stop_reason)}")
    error = "" if one.error is None else f"{text(one.error)}<br><small>{escaped(one.error_class or '')}</small>"
    return [
        (what, "name"),
        num(one.number),
        (escaped(one.outcome), ""),
        (moment(one.started_at), "when"),
        ("" if one.took is None else precise(one.took), "num"),
        (then, "when"),
        (error, "text"),
    ]


# -- the rest --------------------------------------------------------------------------------------------------------------


def _kept(report: FlowReport) -> str:
    if not report.artifacts:
        return ""
    rows = [
        [
            (named(kept.name), "name"),
            num(kept.attempt),
            (f"{kept.size:,}{', cut' if kept.cut else ''}", "num"),
            (moment(kept.kept_at), ""),
        ]
        for kept in report.artifacts
    ]
    return section("Kept", "What steps have kept for people.", tabled(("what", "attempt", "bytes", "kept"), rows))


def _passes(report: FlowReport) -> str:
    if report.passes <= 1 or not report.pass_list:
        return ""
    rows: list[list[tuple[str, str]]] = [
        [
            (moment(each.started_at), ""),
            num(each.finished_before),
            (escaped(each.status or "no end on record"), ""),
            (text(told(each.why or "")), "text"),
        ]
        for each in report.pass_list
    ]
    return section(
        "Passes",
        f"The run was started {report.passes} times.",
        tabled(("started", "steps done before", "ended", "why"), rows),
    )


# -- for notebooks -----------------------------------------------------------------------------------------------------------


def summary_html(report: FlowReport) -> str:
    """The first screen in a few lines, for a notebook: it takes the colours of whatever it stands in."""
    bad = [step for step in report.steps if step.error is not None and step.status in _BAD]
    return framed(
        headline(report.pipeline, report.run_key, report.status),
        paragraph(f'<b style="font-size:15px">{text(_heading(report))}</b>'),
        *(paragraph(f"{coloured(step.id, 'dead')} {text(step.error or '')}") for step in bad[:3]),
        *(paragraph(f"{escaped(what)} {monospaced(command)}") for what, command in report.next()),
    )
