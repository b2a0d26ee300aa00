"""
Runs of flows, for people: what a run came to, each of its steps, every attempt, and what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.text import Text

from outlast.cli.output import console, hint, moment, print_block, print_full_rows, print_whole_table, say
from outlast.display.flows import MOST_LANES, STATES
from outlast.display.graph import gutter
from outlast.display.terminal import STATUS_COLOURS, WIDEST_BAR, bar
from outlast.flow.progress import PARTIAL
from outlast.flow.record import unknown_in_words
from outlast.kernel.clock import here
from outlast.kernel.frames import from_here
from outlast.kernel.redact import plain
from outlast.kernel.wording import counted, duration, whole
from outlast.report.flows import rows_in_words, sentence, told
from outlast.report.stories import amounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from outlast.flow.doors import Outlook
    from outlast.report.flows import AttemptFacts, FlowReport, StepFacts
    from outlast.spec.manifest import Manifest

_NOT_CALLED = "it was not called"
_BAD = {"failed", PARTIAL, "compensation_failed"}


def print_flow(report: FlowReport) -> None:
    """What a run came to: the sentence, each step, what was undone, what still stands."""
    out = console()
    since = " since it first began" if report.passes > 1 else ""
    took = "" if report.took is None else f"  {duration(report.took)}{since}"
    status = Text(report.status, style=f"bold {STATUS_COLOURS.get(report.status, '')}")
    called = (plain(report.pipeline), "bold"), "  ", plain(report.run_key), "  "
    out.print(Text.assemble(*called, status, took, "  ", (report.id[:12], "dim")))
    out.print(Text(plain(report.verdict)))
    counts = report.counts
    label = f"  {counts['succeeded']:,} of {counted(counts['total'], 'step')}"
    if out.width <= 1000:  # a picture for eyes, not for a pipe
        room = min(out.width, WIDEST_BAR) - len(label)
        stuck = sum(step.status == "compensation_failed" for step in report.steps)
        bad = stuck + sum(step.status in {"failed", PARTIAL} for step in report.steps)
        drawn = bar(
            max(10, room),
            max(1, counts["total"]),
            dead=bad,
            skipped=counts["compensated"] + counts["compensating"],
            succeeded=counts["succeeded"] - min(stuck, counts["succeeded"]),
        )
        out.print(drawn.append(label))
    out.print()
    _print_steps(report)
    for line in report.unknown:
        out.print(Text(line))
    if report.passes > 1:
        out.print(Text(f"started {report.passes} times", style="dim"))
    if report.spent:
        out.print(Text(f"spent {amounts(report.spent)}"))
    if bare := [step.id for step in report.steps if step.nothing_undone]:
        out.print(Text(plain(f"Nothing of {', '.join(bare)} was this run's to undo.")))
    if report.undone:
        out.print(Text(f"Undone: {', '.join(report.undone)}."))
    if report.not_undone:
        out.print(Text(f"Could not be undone, and still stands: {', '.join(report.not_undone)}.", style="red"))
    for line in half_told(report):
        out.print(Text(line, style="yellow"))
    left = [name for name in report.standing if name not in report.not_undone]
    if left and report.status in {"failed", PARTIAL, "cancelled"}:
        out.print(Text(f"Still stands: {', '.join(left)}."))
    if report.status in {"failed", "cancelled"}:
        for line in report.rows_left:
            out.print(Text(plain(line)))


def half_told(report: FlowReport) -> Iterator[str]:
    """A sentence for each way in which steps are neither done nor undone."""
    rows = rows_in_words(report.steps)
    known = {step.id: step.undoing for step in report.steps}
    for said, ways in (
        ("Being undone", {"running", "waiting"}),
        ("Begun to be undone, and not finished", {"stopped", None}),
        ("Begun to be undone, and cut off; nobody knows how far it came", {"cut_off"}),
    ):
        names = [name for name in report.undoing if known.get(name) in ways]
        if names:
            yield plain(f"{said}: {', '.join(f'{one} ({rows[one]})' if one in rows else one for one in names)}.")


def rows_told(report: FlowReport) -> list[str]:
    """A sentence for each step with rows that stand, or may, and that nothing undoes any more."""
    return [plain(line) for line in (*report.rows_left, *map(sentence, unknown_in_words(report.unknown_rows)))]


def _print_steps(report: FlowReport) -> None:
    """
    A line for each step beside the graph. What is to be said of it stands behind, if there is room, else beneath: nothing is
    cut, and the graph goes on beside it.
    """
    out = console()
    lanes = _lanes({step.id: step.needs for step in report.steps})
    called = {step.id: f"{lanes.get(step.id, '')}{plain(step.id)}" for step in report.steps}
    rows = [
        (
            called[step.id],
            step.word,
            f"{len(step.attempts):,}" if step.attempts else "",
            "" if step.took is None else duration(step.took),
        )
        for step in report.steps
    ]
    heads = ("step", "state", "attempts", "took")
    sizes = [max(cell_len(row[place]) for row in (heads, *rows)) for place in range(len(heads))]
    texts = ["; ".join(_what(step)) for step in report.steps]
    beside = sum(sizes) + 2 * len(sizes)
    heading = "  ".join(
        _set(text, size, right=place == 2) for place, (text, size) in enumerate(zip(heads, sizes, strict=True))
    )
    out.print(Text(heading.rstrip(), style="bold"), soft_wrap=True)
    for step, row, said in zip(report.steps, rows, texts, strict=True):
        style = {1: STATES[step.status][1], 0: ""}
        line = Text()
        for place, (text, size) in enumerate(zip(row, sizes, strict=True)):
            line.append(_set(text, size, right=place == 2), style=style.get(place, "")).append("  ")
        fits = beside + cell_len(plain(said)) <= out.width
        if said and fits:
            line.append(plain(said))
        line.rstrip()
        out.print(line, soft_wrap=True)
        if said and not fits:
            before = lanes.get(step.id, "").translate(_ON) + "  "
            for part in Text(plain(said)).wrap(out, max(20, out.width - cell_len(before)), overflow="fold"):
                part.rstrip()
                out.print(Text.assemble((before, "bright_black"), part), soft_wrap=True)


def _set(text: str, size: int, *, right: bool) -> str:
    room = " " * (size - cell_len(text))
    return f"{room}{text}" if right else f"{text}{room}"


#: How the lines of a graph go on beneath a step.
_ON = str.maketrans(dict.fromkeys("┌├┬╮┼┤", "│") | dict.fromkeys("▼╯┴─", " "))


def _lanes(needs: Mapping[str, Sequence[str]]) -> dict[str, str]:
    edges = [(before, name) for name, those in needs.items() for before in those]
    drawn = gutter(edges, [*needs], MOST_LANES)
    return {name: f"{lines} " for lines, name in drawn}


def _what(step: StepFacts) -> Iterator[str]:
    """What is to be said of a step beside its state, the most important first."""
    if step.error is not None and step.status in {*_BAD, "waiting", "pending", "running"}:
        kind = f"{step.error_class}: " if step.error_class else ""
        yield f"{kind}{step.error}"
        if step.status in _BAD and step.stop_reason is not None:
            yield f"no other attempt: {step.stop_reason}"
    if step.status == "failed" and not step.attempts:
        yield _NOT_CALLED
    if step.status == "cached":
        yield "its key was known: it was not executed"
    if step.due_at is not None:
        left = (step.due_at - here.get().clock.now()).total_seconds()
        yield f"next attempt {moment(step.due_at)} UTC{f', in {whole(left)}' if left > 0 else ''}"
    if step.unknown_rows:
        were = "was" if step.unknown_rows == 1 else "were"
        yield f"nobody knows whether {counted(step.unknown_rows, 'row')} {were} done"
    if step.nothing_undone:
        yield "nothing of it was this run's to undo"
    elif step.undone_by and step.status in {"compensated", "compensation_failed"}:
        yield f"{counted(len(step.undone_by), 'attempt')} to undo it"
    yield from rows_in_words([step]).values()
    if step.undoing == "cut_off":
        others = (
            "of the others nobody knows" if step.undo_rows is not None else "nobody knows how far what undoes it came"
        )
        yield others
    elif step.undoing is not None and step.status != "compensating":
        yield "being undone" if step.undoing in {"running", "waiting"} else "begun to be undone"
    if step.dead_letters:
        yield f"{counted(step.dead_letters, 'dead letter')} of rows"


def tell_next(report: FlowReport, where: Sequence[str]) -> None:
    """The commands that a person may want now, on stderr."""
    for what, command in report.next(where):
        hint(f"{what} {command}")


def print_outlook(manifest: Manifest, run_key: str, found: Outlook) -> None:
    """What a run would do."""
    out = console()
    out.print(Text.assemble((plain(manifest.name), "bold"), "  ", plain(run_key), "  ", ("dry run", "bold cyan")))
    out.print(Text(plain(f"Nothing was run: {found.why}.")))
    out.print()
    lanes = _lanes({step.id: step.needs for step in manifest.steps})
    names = max(cell_len(plain(step.id)) for step in manifest.steps)
    for step in manifest.steps:
        called = f"{lanes.get(step.id, '')}{_set(plain(step.id), names, right=False)}"
        out.print(Text(f"{called}  {found.of(step.id)}"), soft_wrap=True)


# --- in full ----------------------------------------------------------------------------------------------------------------


def print_flow_in_full(report: FlowReport, *, traceback: bool) -> None:
    """As `print_flow`, with every attempt, what steps have put out and what they have kept."""
    print_flow(report)
    out = console()
    if report.running_at is not None:
        out.print(Text(f"It is running at {report.running_at}."))
    if report.wanted is not None:
        wish = {"compensate": "be cancelled, and undo what it has done", "cancel": "be cancelled"}
        out.print(Text(f"It was asked to {wish.get(report.wanted, report.wanted)}."))
    if report.file is not None:
        out.print(Text(plain(f"Its pipeline file: {report.file}"), style="dim"))
    if rows := attempt_rows(report):
        say()
        print_full_rows(ATTEMPTS, rows, fold="error", below=("took", "started", "then"))
    if rows := [(step.id, name, kind) for step in report.steps for name, kind in step.outputs.items()]:
        say()
        print_whole_table(("step", "puts out", "type"), rows, wrap=("step", "puts out"))
    if report.artifacts:
        say()
        print_whole_table(
            ("artifact", "attempt", "bytes", "kept"),
            (
                (kept.name, kept.attempt, f"{kept.size:,}{', cut' if kept.cut else ''}", kept.kept_at)
                for kept in report.artifacts
            ),
            wrap=("artifact",),
        )
    if traceback:
        _print_tracebacks(report)


def print_flow_report(report: FlowReport) -> None:
    """What a run came to and why, for a terminal: its steps, what failed on the way, where the time went."""
    print_flow(report)
    failed = [
        row
        for row, (_, _, one) in zip(attempt_rows(report), attempts_of(report), strict=True)
        if not one.succeeded and one.outcome != "running"
    ]
    if failed:
        _heading("Attempts that failed")
        print_full_rows(ATTEMPTS, failed, fold="error", below=("took", "started", "then"))
    made = [(step.id, one) for step in report.steps for one in step.attempts]
    spent = {step.id: sum(one.took or 0.0 for one in step.attempts) for step in report.steps if step.attempts}
    longest = max(spent.values(), default=0.0)
    if made and longest:
        _heading("Time in attempts")
        rows = [
            (name, duration(took), len([1 for one, _ in made if one == name]), "█" * max(1, round(20 * took / longest)))
            for name, took in spent.items()
        ]
        print_whole_table(("step", "in all", "attempts", ""), rows, wrap=("step",))
    if len(report.pass_list) > 1:
        _heading("Passes")
        rows_of_passes = [
            (each.started_at, each.finished_before, each.status or "no end on record", told(each.why or ""))
            for each in report.pass_list
        ]
        print_full_rows(("started", "done before", "ended", "why"), rows_of_passes, fold="why")


def _heading(text: str) -> None:
    say()
    console().print(Text(text, style="bold underline"))


ATTEMPTS = ("step", "attempt", "outcome", "started", "took", "then", "error")


def attempts_of(report: FlowReport) -> list[tuple[str, str, AttemptFacts]]:
    """Every attempt, with its step and whether it is one to undo it."""
    return [
        (step.id, deed, one)
        for step in report.steps
        for deed, made in (("do", step.attempts), ("undo", step.undone_by))
        for one in made
    ]


def attempt_rows(report: FlowReport, step: str | None = None, limit: int | None = None) -> Sequence[Sequence[Any]]:
    """A row for each attempt, under the headings `ATTEMPTS`."""
    return [
        (
            name if deed == "do" else f"{name} (undo)",
            one.number,
            one.outcome,
            one.started_at,
            "" if one.took is None else duration(one.took),
            _then(one),
            "" if one.error is None else f"{one.error_class}: {one.error}" if one.error_class else one.error,
        )
        for name, deed, one in attempts_of(report)
        if step is None or name == step
    ][:limit]


def _then(one: AttemptFacts) -> str:
    if one.next_run_at is not None:
        return f"due {moment(one.next_run_at)}"
    return "" if one.stop_reason is None else f"no other: {one.stop_reason}"


def _print_tracebacks(report: FlowReport) -> None:
    kept = [(name, deed, one) for name, deed, one in attempts_of(report) if one.traceback]
    if not kept:
        hint("No attempt has a traceback on record.")
    for name, deed, one in kept:
        say()
        say(f"{name}, attempt {one.number}{' to undo it' if deed == 'undo' else ''}")
        print_block(from_here(one.traceback or "").rstrip())
