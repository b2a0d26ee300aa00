"""
HTML for notebooks: a run while it runs, what a run came to, dead letters, a pipeline. Each piece stands alone: styles
are inline, nothing is loaded, no script runs, and the colours are those of the page around it, light or dark.
Everything that comes from outside is escaped, and no payload is shown.
"""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

from outlast.display.graph import ranks
from outlast.display.html import (
    bar,
    coloured,
    counts_bar,
    cut,
    dimmed,
    escaped,
    framed,
    headline,
    kinds,
    lanes,
    monospaced,
    paragraph,
    quiet,
    table,
)
from outlast.display.telling import ending, lines, number, pace, protections, totals, trouble, unit
from outlast.kernel.redact import error_text
from outlast.kernel.wording import counted, duration, percent, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from outlast.deadletters import FailureGroup
    from outlast.display.snapshot import Edge, Snapshot
    from outlast.pipeline.results import PartialResult, RunResult
    from outlast.pipeline.stages import Stage

_UNKNOWN = ("--target", "FILE:NAME")  # where code is that nobody has recorded
_MOST_GROUPS = 10


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
    return framed(
        headline(now.pipeline, now.run_key, now.status, whole(now.elapsed)),
        bar(
            max(end, now.finished),
            dead=now.dead + now.failed,
            degraded=now.degraded,
            skipped=now.skipped,
            succeeded=now.succeeded - now.degraded,
            label=share,
        ),
        paragraph(coloured(said, "again") if stopping else escaped(said)),
        paragraph(kinds(totals(now))),
        _flow(now.edges),
        _stages(now),
        _protections(now),
        _problems(now.problems),
    )


def _flow(edges: Sequence[Edge]) -> str:
    counts = {(edge.start, edge.end): edge.count for edge in edges}
    return lanes(ranks(counts), counts, {}) if edges else ""


def _stages(now: Snapshot) -> str:
    heads = ("done", "running", "waiting", "throttled", "retries", "skipped", "dead")
    rows = [
        [escaped(stage.name), *(quiet(getattr(stage, head)) for head in heads), dimmed(", ".join(stage.behind))]
        for stage in now.stages
    ]
    return table(["stage", *heads, "behind"], rows, numbers=range(1, 1 + len(heads))) if rows else ""


def _protections(now: Snapshot) -> str:
    shown = [line for line in protections(now) if not now.why or line[0] == "cost" or not line[3]]
    rows = [
        [dimmed(kind), escaped(name), escaped(" · ".join(said)) if calm else coloured(" · ".join(said), "again")]
        for kind, name, said, calm in shown
    ]
    return table([], rows) if rows else ""


def _problems(problems: Iterable[tuple[int, str, str]]) -> str:
    rows = [
        [coloured(f"{count:,} \N{MULTIPLICATION SIGN}", "dead"), f"<b>{escaped(stage)}</b>", escaped(cut(what))]
        for count, stage, what in problems
    ]
    return table([], rows, numbers=[0]) if rows else ""


# --- what it came to ----------------------------------------------------------------------------------------------------


def result_page(
    result: RunResult[Any], groups: Sequence[FailureGroup], unread: str | None = None, code: Sequence[str] = _UNKNOWN
) -> str:
    """What a run came to, its failures by group, and what to do next; `unread` says why the groups are missing."""
    parts = [
        headline(result.pipeline, result.run_key, result.status),
        paragraph(escaped(result.why)),
        counts_bar(result.counts),
    ]
    if result.spent:
        spent = ", ".join(f"{number(amount)} {name}" for name, amount in result.spent.items())
        parts.append(paragraph(f"spent {escaped(spent)}"))
    if groups:
        parts.append(groups_table(groups))
    if unread:
        parts.append(paragraph(dimmed(f"the groups of failures cannot be read: {unread}")))
    parts += [paragraph(dimmed(said) + " " + monospaced(command)) for said, command in _next(result, groups, code)]
    return framed(*parts)


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
        chosen = ["--group", first.id, "--run", result.id[:12]]
        canary = ["--canary", "20"] if first.count > 20 else []
        here = f".reprocess(group={first.id!r}, run={result.id!r}{', canary=20' if canary else ''})"
        steps += [
            ("look at one:", shlex.join(["outlast", "dlq", "list", *chosen])),
            ("once it is mended:", shlex.join(["outlast", "dlq", "replay", *chosen, *canary, *code])),
            ("or here:", here),
        ]
    return steps


def partial_page(result: PartialResult[Any, Any]) -> str:
    """
    How a function fared over many items: the failures by type and message. Items may be anything, and are not shown.
    """
    failures = Counter((type(error).__name__, error_text(error)) for _, error in result.failed)
    rows = [
        [f"{count:,}", escaped(kind), escaped(cut(text))] for (kind, text), count in failures.most_common(_MOST_GROUPS)
    ]
    more = len(failures) - len(rows)
    return framed(
        headline("map", "", result.status, duration(result.elapsed)),
        bar(
            result.total,
            dead=len(result.failed),
            skipped=len(result.skipped),
            succeeded=len(result.succeeded),
            label=counted(result.total, "item"),
        ),
        paragraph(
            kinds(
                [
                    (f"{len(result.succeeded):,} succeeded", "succeeded"),
                    *([(f"{len(result.skipped):,} skipped", "skipped")] if result.skipped else []),
                    (f"{len(result.failed):,} failed", "dead"),
                ]
            )
        ),
        table(["count", "error", "message"], rows, numbers=[0]) if rows else "",
        paragraph(dimmed(f"and {counted(more, 'other kind')}")) if more > 0 else "",
    )


def groups_page(groups: Sequence[FailureGroup], options: Sequence[str] | None = None) -> str:
    """Dead letters by what they have in common; `options` are what a command needs to send the first group again."""
    if not groups:
        return framed(paragraph("no dead letters"))
    count = sum(group.count for group in groups)
    said = f"{counted(count, 'failure')}, {counted(len(groups), 'problem')}"
    return framed(paragraph(f"<b>{escaped(said)}</b>"), groups_table(groups, options))


def groups_table(groups: Sequence[FailureGroup], options: Sequence[str] | None = None) -> str:
    """A row for each group; with `options`, how to send the first one again."""
    heads = ["count", "share", "group", "stage", "error class", "message", "for example"]
    rows = [
        [
            f"{group.count:,}",
            percent(group.count, round(group.count / group.share)) if group.share else "",
            monospaced(group.id),
            escaped(group.stage),
            escaped(group.error_class),
            escaped(cut(group.message)),
            dimmed(cut(group.sample_keys[0], 24) if group.sample_keys else ""),
        ]
        for group in groups[:_MOST_GROUPS]
    ]
    shown = table(heads, rows, numbers=[0, 1])
    if len(groups) > _MOST_GROUPS:
        shown += paragraph(dimmed(f"and {counted(len(groups) - _MOST_GROUPS, 'smaller group')}"))
    if options is not None:
        shown += paragraph(
            dimmed("send one again:")
            + " "
            + monospaced(shlex.join(["outlast", "dlq", "replay", "--group", groups[0].id, *options]))
        )
    return shown


# --- a pipeline ---------------------------------------------------------------------------------------------------------


def pipeline_page(name: str, stages: Sequence[Stage[..., Any, Any]], bounds: Mapping[str, str]) -> str:
    """The stages of a pipeline, one after the other, with what protects each."""
    names = [stage.name for stage in stages]
    notes = {stage.name: escaped(_kind(stage)) for stage in stages}
    rows = [[escaped(stage.name), *(escaped(text) for text in _protected(stage))] for stage in stages]
    return framed(
        f'<div style="margin:2px 0"><b style="font-size:15px">{escaped(name)}</b> {dimmed("pipeline")}</div>',
        lanes([["source"], *([each] for each in names), ["sink"]], {}, notes),
        table(["stage", "attempts", "time limit", "behind", "also"], rows),
        paragraph(dimmed(" · ".join(f"{what} {value}" for what, value in bounds.items()))),
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
