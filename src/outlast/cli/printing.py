"""
What a run came to, for people: counts, the sentence why, problems, and what to do next.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rich.text import Text

from outlast.cli.output import console, print_full_rows
from outlast.display.terminal import STATUS_COLOURS, WIDEST_BAR, bar
from outlast.kernel.redact import plain
from outlast.kernel.wording import counted, duration, percent
from outlast.report.views import unfinished

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outlast.deadletters import FailureGroup
    from outlast.report.views import Views
    from outlast.store.records import RunRecord


GROUP_HEADINGS = ("count", "share", "group", "stage", "error class", "last seen", "message")
BELOW_GROUPS = ("last seen", "share", "error class", "stage")  # may go beneath their row in a narrow terminal


def group_row(group: FailureGroup) -> tuple[Any, ...]:
    """A failure group as a row of a table."""
    share = percent(group.count, round(group.count / group.share)) if group.share else ""
    return group.count, share, group.id, group.stage, group.error_class, group.last_seen_at, group.message


def print_run(run: RunRecord, groups: Sequence[FailureGroup], *, why: str = "", expected: int | None = None) -> None:
    """
    A run as it stands in the store. `expected` is how many items its source has, if that is known though not all were
    read.
    """
    out = console()
    counts = run.counts
    ended = run.finished_at
    since = " since it first began" if run.passes > 1 else ""  # with the pauses between its passes
    took = "" if ended is None else f"  {duration((ended - run.started_at).total_seconds())}{since}"
    status = Text(run.status, style=f"bold {STATUS_COLOURS.get(run.status, '')}")
    called = (plain(run.pipeline), "bold"), "  ", plain(run.run_key), "  "
    out.print(Text.assemble(*called, status, took, "  ", (run.id[:12], "dim")))
    if why or run.told:
        out.print(Text(plain(why or run.told)))
    whole = counts.total if run.source_exhausted else expected
    if whole is not None and whole >= counts.total:  # what was read ahead is no whole that anything is a share of
        drawn = bar(
            min(out.width, WIDEST_BAR) - 8,
            whole,
            dead=counts.dlq + counts.failed,
            degraded=counts.degraded,
            skipped=counts.skipped,
            succeeded=counts.succeeded - counts.degraded,
        )
        out.print(drawn.append(f"  {percent(counts.finished, whole):>6}"))
    degraded = f" ({counts.degraded:,} degraded)" if counts.degraded else ""
    parts = [
        counted(counts.total, "item")
        + " read"
        + ("" if run.source_exhausted else ", more to come" if expected is None else f" of {expected:,}")
    ]
    parts.append(f"{counts.succeeded:,} succeeded{degraded}")
    parts += [
        f"{number:,} {word}" for number, word in ((counts.skipped, "skipped"), (counts.failed, "failed")) if number
    ]
    if counts.dlq:
        parts.append(counted(counts.dlq, "dead letter"))
    if counts.pending:
        parts.append(f"{counts.pending:,} pending")
    out.print(Text("   ".join(parts)))
    if run.passes > 1:
        out.print(Text(f"started {run.passes} times", style="dim"))
    if run.spent:
        out.print(Text("spent " + ", ".join(f"{amount:,.6g} {plain(name)}" for name, amount in run.spent.items())))
    if groups:
        out.print()
        print_full_rows(GROUP_HEADINGS, map(group_row, groups), fold="message", below=BELOW_GROUPS)


def name_of(views: Views, run: RunRecord) -> str:
    """What a command calls a run in one word: its key, or its id where other runs have that key, too."""
    words = views.called(run)
    return words[0] if len(words) == 1 else run.id[:12]


def next_steps(
    run: RunRecord,
    groups: Sequence[FailureGroup],
    resume: str | None,
    code: Sequence[str] = (),
    *,
    anew: str | None = None,
    moved: bool = False,
    stored: Sequence[str] = (),
    name: str | None = None,
) -> Iterator[str]:
    """
    What a person may want to do now, as commands; `code` is what those need to find the pipeline's. `resume` goes on
    with this run, if a command can; `anew` replays once more what a replay has tried; `moved` if letters of it failed
    differently; `stored` says where the store is, `name` is what a command calls the run, if not by its key.
    """
    # Where everything was read and has ended, a resume has nothing to do but to finish a sink that could not be.
    over = not unfinished(run) and run.reason != "store_error"
    called = name or run.run_key
    how = resume or f"start its program again, with run_key={run.run_key!r}"
    if run.reason == "spend_limit":
        yield f"Once its spend_limit is higher, go on: {how}"
    elif run.status in {"interrupted", "paused", "running"}:
        yield f"Go on: {how}"
        return
    elif run.status == "failed" and not over:
        yield f"Once the cause is gone, go on: {how}"
    elif run.kind == "replay" and run.counts.dlq and anew:
        if moved:
            yield "Dead letters that failed differently are open in another group."
        yield f"Once the cause is gone, replay what is still open: {anew}"
    # A replay has no letters of its own, and a run that collects its failures has none at all.
    bare = run.counts.failed or (run.kind == "replay" and run.counts.dlq)
    if bare:
        yield f"Look at them: {shlex.join(['outlast', 'runs', 'errors', called, *stored])}"
    open_groups = [group for group in groups if group.count]
    if open_groups and run.counts.dlq and run.kind != "replay":
        first = open_groups[0]
        chosen = ["--group", first.id, "--run", called, *stored]
        yield f"Inspect: {shlex.join(['outlast', 'dlq', 'list', *chosen])}"
        from outlast.pipeline.replays import only_given

        if (what := only_given(run)) is not None:
            again = f"replay(group={first.id!r}, run={run.id!r}, sink=...)"
            yield f"After the fix, from Python, with its sink, {what}: app.dead_letters.{again}"
            return
        canary = ["--canary", "20"] if first.count > 20 else []
        yield f"After the fix: {shlex.join(['outlast', 'dlq', 'replay', *chosen, *canary, *code])}"
