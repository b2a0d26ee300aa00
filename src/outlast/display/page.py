"""
HTML for notebooks: a run while it runs, what a run came to, dead letters, a pipeline. Each piece stands alone: styles are inline, nothing is
loaded, no script runs, and the colours are those of the page around it, light or dark. Everything that comes from outside is escaped, and no
payload is shown.
"""

from __future__ import annotations

import shlex
from collections import Counter
from html import escape
from typing import TYPE_CHECKING, Any

from outlast.display.graph import ranks
from outlast.display.telling import ending, lines, number, pace, protections, totals, trouble, unit
from outlast.kernel.redact import error_text
from outlast.kernel.wording import counted, duration, percent, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from outlast.deadletters import FailureGroup
    from outlast.display.snapshot import Edge, Snapshot
    from outlast.pipeline.results import Counts, PartialResult, RunResult
    from outlast.pipeline.stages import Stage

# Halfway between light and dark, so that they can be read on both.
_UNKNOWN = ("--target", "FILE:NAME")  # where code is that nobody has recorded
_COLOURS = {"succeeded": "#2da562", "degraded": "#c9971c", "skipped": "#4a90d9", "dead": "#e0524d"}
_STATUS = {
    "running": "#3a8fb7",
    "completed": _COLOURS["succeeded"],
    "success": _COLOURS["succeeded"],
    "failed": _COLOURS["dead"],
    "failure": _COLOURS["dead"],
}
_UNSURE = _COLOURS["degraded"]
_LINE = "rgba(128,128,128,.35)"
_FAINT = "rgba(128,128,128,.18)"
_FRAME = "font:13px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif;max-width:60em;color:inherit;text-align:left"
_DIM = "opacity:.65"
_CODE = f"font:12px/1.5 ui-monospace,Menlo,Consolas,monospace;background:{_FAINT};border-radius:3px;padding:1px 4px"
_CELL = f"padding:2px 10px 2px 0;text-align:left;vertical-align:top;border:0;border-bottom:1px solid {_LINE};background:none"
_NUMBER = (
    _CELL.replace("text-align:left", "text-align:right")
    + ";font-variant-numeric:tabular-nums;white-space:nowrap;min-width:4em"
)
_MOST_GROUPS = 10
_LONGEST = 300  # characters of a message


class Page:
    """A snapshot as an output of a notebook: HTML, and plain lines where that cannot be shown."""

    def __init__(self, now: Snapshot) -> None:
        self.html = run_page(now)
        self._text = "\n".join(lines(now))

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self._text


# --- a run while it runs ------------------------------------------------------------------------------------------------


def run_page(now: Snapshot) -> str:
    """A run at one instant."""
    end = now.total if now.expected is None else now.expected
    share = f"{now.finished:,} so far" if now.expected is None else f"{now.finished:,} of {now.expected:,}"
    if now.expected is not None:
        share += f" · {percent(now.finished, now.expected)}"
    stopping = ending(now, "Interrupting")
    said = now.why or stopping or " · ".join([*pace(now), *trouble(now)])
    return _frame(
        _headline(now.pipeline, now.run_key, now.status, whole(now.elapsed)),
        _bar(
            max(end, now.finished),
            dead=now.dead + now.failed,
            degraded=now.degraded,
            skipped=now.skipped,
            succeeded=now.succeeded - now.degraded,
            label=share,
        ),
        _p(_e(said), f"color:{_UNSURE}" if stopping else ""),
        _p(_kinds(totals(now))),
        _flow(now.edges),
        _stages(now),
        _protections(now),
        _problems(now.problems),
    )


def _stages(now: Snapshot) -> str:
    heads = ("done", "running", "waiting", "throttled", "retries", "skipped", "dead")
    rows = [
        [_e(stage.name), *(_quiet(getattr(stage, head)) for head in heads), _dim(", ".join(stage.behind))]
        for stage in now.stages
    ]
    return _table(["stage", *heads, "behind"], rows, numbers=range(1, 1 + len(heads))) if rows else ""


def _protections(now: Snapshot) -> str:
    shown = [line for line in protections(now) if not now.why or line[0] == "cost" or not line[3]]
    rows = [
        [_dim(kind), _e(name), _e(" · ".join(said)) if calm else _colour(" · ".join(said), _UNSURE)]
        for kind, name, said, calm in shown
    ]
    return _table([], rows) if rows else ""


def _problems(problems: Iterable[tuple[int, str, str]]) -> str:
    rows = [
        [_colour(f"{count:,} \N{MULTIPLICATION SIGN}", _COLOURS["dead"]), f"<b>{_e(stage)}</b>", _e(_cut(what))]
        for count, stage, what in problems
    ]
    return _table([], rows, numbers=[0]) if rows else ""


# --- what it came to ----------------------------------------------------------------------------------------------------


def result_page(
    result: RunResult[Any], groups: Sequence[FailureGroup], unread: str | None = None, code: Sequence[str] = _UNKNOWN
) -> str:
    """What a run came to, its failures by group, and what to do next; `unread` says why the groups are missing."""
    counts = result.counts
    parts = [
        _headline(result.pipeline, result.run_key, result.status),
        _p(_e(result.why)),
        _counts_bar(counts),
        _p(_kinds(_words(counts))),
    ]
    if result.spent:
        spent = ", ".join(f"{number(amount)} {name}" for name, amount in result.spent.items())
        parts.append(_p(f"spent {_e(spent)}"))
    if groups:
        parts.append(groups_table(groups))
    if unread:
        parts.append(_p(_dim(f"the groups of failures cannot be read: {unread}")))
    parts += [_p(_dim(said) + " " + _code(command)) for said, command in _next(result, groups, code)]
    return _frame(*parts)


def _next(result: RunResult[Any], groups: Sequence[FailureGroup], code: Sequence[str]) -> list[tuple[str, str]]:
    """What a person may want to do now: what it does, and how it is said."""
    if result._kind == "replay":  # noqa: SLF001 - of one package
        return []  # its letters are open again, in the groups of the run they come from
    if result.status in {"interrupted", "paused", "running"}:
        return [("go on: the same call again, with", f"run_key={result.run_key!r}")]
    counts = result.counts
    # Where everything was read and has ended, there is nothing to go on with.
    over = counts.source_exhausted and not counts.pending and result.reason != "store_error"
    cause = "once its spend_limit is higher" if result.reason == "spend_limit" else "once the cause is gone"
    goes_on = result.status == "failed" and not over
    steps = [(f"{cause}, go on with", f"run_key={result.run_key!r}")] if goes_on else []
    if groups and result.counts.failed:
        steps.append(("look at them:", f"outlast runs errors {shlex.quote(result.run_key)}"))
    if groups and result.counts.dlq:
        first = groups[0]
        canary = 20 if first.count > 20 else None
        steps.append(("look at one:", f"outlast dlq list --group {first.id} --run {result.id[:12]}"))
        steps.append(
            (
                "once it is mended:",
                shlex.join(
                    [
                        "outlast",
                        "dlq",
                        "replay",
                        "--group",
                        first.id,
                        "--run",
                        result.id[:12],
                        *(["--canary", str(canary)] if canary else []),
                        *code,
                    ]
                ),
            )
        )
        steps.append(
            (
                "or here:",
                f".reprocess(group={first.id!r}, run={result.id!r}{'' if canary is None else f', canary={canary}'})",
            ),
        )
    return steps


def partial_page(result: PartialResult[Any, Any]) -> str:
    """How a function fared over many items: the failures by type and message. Items may be anything, and are not shown."""
    failures = Counter((type(error).__name__, error_text(error)) for _, error in result.failed)
    rows = [[f"{count:,}", _e(kind), _e(_cut(text))] for (kind, text), count in failures.most_common(_MOST_GROUPS)]
    more = len(failures) - len(rows)
    return _frame(
        _headline("map", "", result.status, duration(result.elapsed)),
        _bar(
            result.total,
            dead=len(result.failed),
            skipped=len(result.skipped),
            succeeded=len(result.succeeded),
            label=counted(result.total, "item"),
        ),
        _p(
            _kinds(
                [
                    (f"{len(result.succeeded):,} succeeded", "succeeded"),
                    *([(f"{len(result.skipped):,} skipped", "skipped")] if result.skipped else []),
                    (f"{len(result.failed):,} failed", "dead"),
                ]
            )
        ),
        _table(["count", "error", "message"], rows, numbers=[0]) if rows else "",
        _p(_dim(f"and {counted(more, 'other kind')}")) if more > 0 else "",
    )


def groups_page(groups: Sequence[FailureGroup], options: Sequence[str] | None = None) -> str:
    """Dead letters by what they have in common; `options` are what a command needs to send the first group again."""
    if not groups:
        return _frame(_p("no dead letters"))
    count = sum(group.count for group in groups)
    said = f"{counted(count, 'failure')}, {counted(len(groups), 'problem')}"
    return _frame(_p(f"<b>{_e(said)}</b>"), groups_table(groups, options))


def groups_table(groups: Sequence[FailureGroup], options: Sequence[str] | None = None) -> str:
    """A row for each group; with `options`, how to send the first one again."""
    heads = ["count", "share", "group", "stage", "error class", "message", "for example"]
    rows = [
        [
            f"{group.count:,}",
            percent(group.count, round(group.count / group.share)) if group.share else "",
            _code(group.id),
            _e(group.stage),
            _e(group.error_class),
            _e(_cut(group.message)),
            _dim(_cut(group.sample_keys[0], 24) if group.sample_keys else ""),
        ]
        for group in groups[:_MOST_GROUPS]
    ]
    table = _table(heads, rows, numbers=[0, 1])
    if len(groups) > _MOST_GROUPS:
        table += _p(_dim(f"and {counted(len(groups) - _MOST_GROUPS, 'smaller group')}"))
    if options is not None:
        table += _p(
            _dim("send one again:")
            + " "
            + _code(shlex.join(["outlast", "dlq", "replay", "--group", groups[0].id, *options]))
        )
    return table


# --- a pipeline ---------------------------------------------------------------------------------------------------------


def pipeline_page(name: str, stages: Sequence[Stage[..., Any, Any]], bounds: Mapping[str, str]) -> str:
    """The stages of a pipeline, one after the other, with what protects each."""
    names = [stage.name for stage in stages]
    notes = {stage.name: _e(_kind(stage)) for stage in stages}
    rows = [[_e(stage.name), *(_e(text) for text in _protected(stage))] for stage in stages]
    return _frame(
        f'<div style="margin:2px 0"><b style="font-size:15px">{_e(name)}</b> {_dim("pipeline")}</div>',
        _columns([["source"], *([each] for each in names), ["sink"]], {}, notes),
        _table(["stage", "attempts", "time limit", "behind", "also"], rows),
        _p(_dim(" · ".join(f"{what} {value}" for what, value in bounds.items()))),
    )


def schedule(policy: Any) -> str:
    """
    When a policy tries again, in words.

    >>> from outlast import RetryPolicy
    >>> schedule(RetryPolicy(max_attempts=3, initial_delay=1)), schedule(RetryPolicy(max_attempts=1))
    ('3 attempts: then after 1 s, 2 s', '1 attempt')
    """
    if policy is None or policy.max_attempts <= 1:
        return "1 attempt"
    delays = policy.schedule()
    shown = ", ".join(duration(delay.nominal) for delay in delays[:5])
    return f"{policy.max_attempts:,} attempts: then after {shown}{', …' if len(delays) > 5 else ''}"


def _kind(stage: Any) -> str:
    isolation = stage.guard.isolation
    where = "async" if stage.is_async else "processes" if isolation == "process" else "threads"
    batch = getattr(stage, "batch", None)
    return f"{stage.concurrency:,} {where}" if not batch else f"{stage.concurrency:,} {where}, {batch:,} at a time"


def _protected(stage: Any) -> tuple[str, str, str, str]:
    guard = stage.guard
    times = [
        *([f"{duration(guard.timeout)} an attempt"] if guard.timeout is not None else []),
        *([f"{duration(guard.total_timeout)} in all"] if guard.total_timeout is not None else []),
    ]
    behind = []
    if guard.limit is not None:
        bounds = [f"{guard.limit.concurrency:,} at a time"] if guard.limit.concurrency is not None else []
        bounds += [f"{number(rate.amount)} {kind}{unit(rate.per)}" for kind, rate in guard.limit.rates.items()]
        behind.append(f"limit {guard.limit.name} ({', '.join(bounds) or 'adaptive'})")
    if guard.breaker is not None:
        behind.append(f"breaker {guard.breaker.name} ({guard.breaker.state.value.replace('_', '-')})")
    if guard.retry_budget is not None:
        behind.append(f"retry budget {guard.retry_budget.name}")
    also = [
        *(["checkpoint"] if stage.checkpoint else []),
        *([counted(len(stage.repairs), "repair")] if stage.repairs else []),
        *(["fallback"] if guard.fallback is not None else []),
        *(["hedged"] if guard.hedge is not None else []),
        *([f"version {stage.version}"] if stage.version != "1" else []),
    ]
    return schedule(guard.retry), ", ".join(times) or "none", ", ".join(behind) or "", ", ".join(also)


# --- pieces -------------------------------------------------------------------------------------------------------------


def _e(text: object) -> str:
    return escape(str(text))


def _cut(text: str, most: int = _LONGEST) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def _frame(*parts: str) -> str:
    return f'<div style="{_FRAME}">{"".join(parts)}</div>'


def _p(content: str, style: str = "") -> str:
    return f'<div style="margin:2px 0;{style}">{content}</div>'


def _dim(text: str) -> str:
    return f'<span style="{_DIM}">{_e(text)}</span>'


def _code(text: str) -> str:
    return f'<code style="{_CODE}">{_e(text)}</code>'


def _colour(text: str, colour: str) -> str:
    return f'<span style="color:{colour}">{_e(text)}</span>'


def _quiet(count: int) -> str:
    return f"{count:,}" if count else '<span style="opacity:.35">·</span>'


def _headline(name: str, key: str, status: str, took: str = "") -> str:
    colour = _STATUS.get(status, _UNSURE)
    pill = (
        f'<span style="border:1px solid {colour};color:{colour};border-radius:9px;padding:0 8px;font-weight:600">'
        f"{_e(status.replace('_', ' '))}</span>"
    )
    return (
        '<div style="display:flex;gap:10px;align-items:baseline;margin:2px 0 4px">'
        f'<b style="font-size:15px">{_e(name)}</b>{_dim(key)}<span style="flex:1"></span>{pill}'
        f'<span style="{_DIM};font-variant-numeric:tabular-nums;min-width:6em;text-align:right">{_e(took)}</span></div>'
    )


def _bar(whole: int, *, label: str, **kinds: int) -> str:
    """Shares of a whole; trouble first, and what there is can be seen, however little."""
    shares = "".join(
        f'<span title="{_e(f"{amount:,} {kind}")}" style="flex:0 0 auto;width:{100 * amount / max(whole, 1):.3f}%;'
        f'min-width:3px;background:{_COLOURS[kind]}"></span>'
        for kind, amount in kinds.items()
        if amount
    )
    return (
        '<div style="display:flex;gap:10px;align-items:center">'
        f'<div style="flex:1;display:flex;height:8px;border-radius:4px;overflow:hidden;background:{_FAINT}">{shares}</div>'
        f'<span style="font-variant-numeric:tabular-nums;white-space:nowrap">{_e(label)}</span></div>'
    )


def _counts_bar(counts: Counts) -> str:
    return _bar(
        counts.total,
        dead=counts.dlq + counts.failed,
        degraded=counts.degraded,
        skipped=counts.skipped,
        succeeded=counts.succeeded - counts.degraded,
        label=counted(counts.total, "item") + " read" + ("" if counts.source_exhausted else ", more to come"),
    )


def _words(counts: Counts) -> list[tuple[str, str]]:
    degraded = f" ({counts.degraded:,} degraded)" if counts.degraded else ""
    said = [(f"{counts.succeeded:,} succeeded{degraded}", "succeeded")]
    for count, words, kind in (
        (counts.skipped, f"{counts.skipped:,} skipped", "skipped"),
        (counts.dlq, counted(counts.dlq, "dead letter"), "dead"),
        (counts.failed, f"{counts.failed:,} failed", "dead"),
        (counts.pending, f"{counts.pending:,} pending", ""),
    ):
        if count:
            said.append((words, kind))
    return said


def _kinds(said: Iterable[tuple[str, str]]) -> str:
    return " · ".join(_colour(words, _COLOURS[kind]) if kind else _e(words) for words, kind in said)


def _flow(edges: Sequence[Edge]) -> str:
    counts = {(edge.start, edge.end): edge.count for edge in edges}
    return _columns(ranks(counts), counts, {}) if edges else ""


def _columns(columns: Sequence[Sequence[str]], counts: Mapping[tuple[str, str], int], notes: Mapping[str, str]) -> str:
    """A graph from left to right: boxes, and between two columns an arrow with how many have gone it."""
    cells: list[str] = []
    for place, names in enumerate(columns):
        boxes = "".join(
            f'<div style="border:1px solid {_LINE};border-radius:6px;padding:1px 10px;margin:2px 0;white-space:nowrap">'
            f"{_e(name)}{f'<div style={chr(34)}{_DIM};font-size:11px{chr(34)}>{notes[name]}</div>' if name in notes else ''}"
            "</div>"
            for name in names
        )
        cells.append(f'<div style="display:flex;flex-direction:column;justify-content:center">{boxes}</div>')
        if place + 1 == len(columns):
            break
        # An arrow says from where to where only if there is more than one way.
        leaving = [(pair, count) for pair, count in counts.items() if pair[0] in names]
        plain = len(leaving) == 1
        said = "<br>".join(
            f"{count:,}" if plain else f"{_e(pair[0])} → {_e(pair[1])} {count:,}" for pair, count in leaving
        )
        cells.append(
            f'<div style="text-align:center;min-width:4.5em;padding:0 4px;font-size:11px;line-height:1.1;{_DIM};font-variant-numeric:tabular-nums">'
            f"{said or '&nbsp;'}<div>───▸</div></div>"
        )
    return f'<div style="display:flex;flex-wrap:wrap;align-items:center;gap:2px;margin:8px 0">{"".join(cells)}</div>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Iterable[int] = ()) -> str:
    right = set(numbers)
    # No heading is shown in a column that is empty everywhere.
    kept = [
        place for place in range(len(rows[0]) if rows else 0) if any(row[place] not in {"", _dim("")} for row in rows)
    ]
    head = "".join(
        f'<th style="{_NUMBER if place in right else _CELL};{_DIM};font-weight:500">{_e(heads[place])}</th>'
        for place in (kept if heads else ())
    )
    body = "".join(
        "<tr style='background:none'>"
        + "".join(f'<td style="{_NUMBER if place in right else _CELL}">{row[place]}</td>' for place in kept)
        + "</tr>"
        for row in rows
    )
    first = f"<thead><tr style='background:none'>{head}</tr></thead>" if head else ""
    return f'<table style="border-collapse:collapse;margin:8px 0;font-size:inherit;border:0">{first}<tbody>{body}</tbody></table>'
