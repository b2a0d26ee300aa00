"""
``outlast runs``, ``pause``, ``cancel``, ``breaker`` and ``events``: what is on record, and wishes to what is running.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from outlast.cli.output import AppName, AsJson, Limit, StoreUrl, hint, print_json, print_table, refuse, say  # noqa: TC001 - typer reads the annotations
from outlast.cli.stores import Shell, dead_letters, found_run, opened, stored_at, told_runs, worker_of
from outlast.deadletters import as_groups
from outlast.display.terminal import STATUS_COLOURS
from outlast.kernel.redact import masked
from outlast.kernel.wording import counted, duration
from outlast.observe.events import canonical
from outlast.store.records import Failure, from_us

if TYPE_CHECKING:
    from outlast.store.records import AttemptRow, ItemRow, ItemStatus, RunRecord, RunStatus, SharedState

runs = typer.Typer(name="runs", help="Runs on record: their state, their items, every attempt.", no_args_is_help=True)
breaker = typer.Typer(
    name="breaker",
    help="Circuit breakers that processes share, and those of runs that are under way.",
    no_args_is_help=True,
)

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run, by its key, its id, or the beginning of one.")]
OfPipeline = Annotated[str | None, typer.Option("--pipeline", help="Only of this pipeline.")]


# --- runs ---------------------------------------------------------------------------------------------------------------


@runs.command("list")
def list_runs(
    *,
    pipeline: OfPipeline = None,
    status: Annotated[str | None, typer.Option("--status", help=f"Only {', '.join(STATUS_COLOURS)}.")] = None,
    limit: Limit = 50,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    if status is not None and status not in STATUS_COLOURS:
        refuse(f"expected --status to be one of {', '.join(STATUS_COLOURS)}, got: {status!r}.")
    with opened(store, app) as kept:
        found = told_runs(kept, pipeline, cast("RunStatus | None", status), limit=limit)
    if as_json:
        print_json([run_fields(run) for run in found])
        return
    if not found:
        say("No runs.")
        return
    rows = [
        (
            run.id[:12],
            run.pipeline,
            run.run_key,
            run.status,
            run.counts.total,
            run.counts.succeeded,
            run.counts.skipped,
            run.counts.dlq,
            run.started_at,
            None if run.finished_at is None else duration((run.finished_at - run.started_at).total_seconds()),
        )
        for run in found
    ]
    print_table(
        ("run", "pipeline", "key", "status", "items", "succeeded", "skipped", "dead", "started", "took"),
        rows,
        fold="key",
        drop=("took", "skipped", "started", "pipeline", "succeeded"),
    )


@runs.command("show")
def show_run(
    run: Run, *, pipeline: OfPipeline = None, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False
) -> None:
    """Show what a run came to: counts, why, its problems, and what to do next."""
    from outlast.cli.printing import next_steps, print_run
    from outlast.cli.running import ways_on

    with opened(store, app) as kept:
        record = found_run(kept, run, pipeline)
        dead_letters(kept).release()
        groups = as_groups(kept.failures(record, "open"))
        worker = worker_of(kept, record)
        code = kept.code_option(record.pipeline)
        resume, anew = ways_on(kept, record, store)
        stored = stored_at(kept, store)
    if as_json:
        shown = [{name: getattr(group, name) for name in group.__slots__} for group in groups]
        print_json(run_fields(record) | {"groups": shown, "running_at": worker})
        return
    print_run(record, groups)
    if worker is not None:
        say(f"It is running at {worker}.")
    if worker is None:
        for step in next_steps(record, groups, resume, code, anew=anew, stored=stored):
            hint(step)


@runs.command("items")
def list_items(
    run: Run,
    *,
    status: Annotated[str | None, typer.Option("--status", help="Only succeeded, skipped, dlq or failed.")] = None,
    after: Annotated[int | None, typer.Option("--after", help="Only those behind this position.")] = None,
    limit: Limit = 50,
    reveal: Annotated[bool, typer.Option("--reveal", help="Print outputs as they are.")] = False,
    pipeline: OfPipeline = None,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """List the finished items of a run in the order of its source."""
    if status not in {None, "succeeded", "skipped", "dlq", "failed"}:
        refuse(f"expected --status to be succeeded, skipped, dlq or failed, got: {status!r}.")
    with opened(store, app) as kept:
        record = found_run(kept, run, pipeline)
        items = kept.items(record.number, cast("ItemStatus | None", status), after=after, limit=limit)
    if as_json:
        print_json([_item(item, record, reveal=reveal) for item in items])
        return
    if not items:
        say("No items.")
        return
    rows = [
        (
            item.seq,
            item.key,
            item.status + (" (degraded)" if item.degraded else ""),
            _stage(record, item.stage),
            item.attempts,
            duration(item.took_us / 1e6),
            item.stop_reason,
            item.reason or "; ".join(item.warnings),
        )
        for item in items
    ]
    print_table(
        ("position", "item", "status", "stage", "attempts", "took", "stopped", "why"),
        rows,
        fold="why",
        drop=("took", "attempts", "position", "stopped"),
    )
    if len(items) == limit:
        hint(f"More: --after {items[-1].seq}")


@runs.command("attempts")
def list_attempts(
    run: Run,
    *,
    item: Annotated[str | None, typer.Option("--item", help="Only of this item, by its key or its position.")] = None,
    limit: Limit = 100,
    pipeline: OfPipeline = None,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """List every attempt of a run, or of one item: when, how long, what came out, and the wait that followed."""
    with opened(store, app) as kept:
        record = found_run(kept, run, pipeline)
        attempts = kept.attempts(record.number, item, limit=limit)
        if not attempts and item is not None and item.isdecimal():
            attempts = kept.attempts(record.number, int(item), limit=limit)
    if as_json:
        print_json([_attempt(attempt, record) for attempt in attempts])
        return
    if not attempts:
        say("No attempts." if item is None else f"No attempts of {item}.")
        return
    rows = [
        (
            attempt.seq,
            _stage(record, attempt.stage),
            attempt.number,
            attempt.outcome,
            from_us(attempt.started_us),
            duration(attempt.took_us / 1e6),
            None if attempt.delay_us is None else duration(attempt.delay_us / 1e6),
            attempt.stop_reason,
            "" if attempt.error is None else f"{attempt.error_class}: {attempt.error}",
        )
        for attempt in attempts
    ]
    print_table(
        ("position", "stage", "attempt", "outcome", "started", "took", "then waited", "stopped", "error"),
        rows,
        fold="error",
        drop=("then waited", "took", "started", "stopped"),
    )


@runs.command("errors")
def list_errors(
    run: Run,
    *,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Add them to this file, which opens in a spreadsheet.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Print at most so many.")] = None,
    reveal: Annotated[bool, typer.Option("--reveal", help="Print values as they are.")] = False,
    pipeline: OfPipeline = None,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """List what is wrong with the items of a run, error by error, for whoever has to mend them."""
    from outlast.pipeline.record.errorfile import HEADER, append_errors, cells_of
    from outlast.pipeline.record.rowerrors import error_lines

    with opened(store, app) as kept:
        record = found_run(kept, run, pipeline)
        lines = islice(error_lines(kept, record.id, Shell().decode), limit)
        if csv is not None:
            written = append_errors(csv, lines, reveal=reveal)
            if as_json:
                print_json({"run": record.id, "csv": str(csv), "written": written})
            else:
                say(f"Added {counted(written, 'error')} to {csv}.")
            return
        found = [dict(zip(HEADER, cells_of(line, reveal=reveal), strict=True)) for line in lines]
    if as_json:
        print_json([row | {"row_index": int(row["row_index"])} for row in found])
        return
    if not found:
        say("No errors.")
        return
    shown = ("row_index", "item_key", "stage", "field", "error_type", "message")
    headings = ("position", "item", "stage", "field", "kind", "message")
    rows = [[row[name] for name in shown] for row in found]
    print_table(headings, rows, fold="message", drop=("kind", "item", "stage"))


@runs.command("outputs")
def print_outputs(
    run: Run,
    *,
    reveal: Annotated[bool, typer.Option("--reveal", help="Print outputs as they are.")] = False,
    pipeline: OfPipeline = None,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Print what the items of a run became, as JSON lines (with --json as one list); only of a run without an output file."""
    with opened(store, app) as kept:
        record = found_run(kept, run, pipeline)
        if record.sink is not None:
            refuse(f"The outputs of {record.run_key} are in {record.sink}{_spool(record)}.")
        decoded = (Shell().decode(output) for output in kept.outputs(record.number))
        outputs = (output if reveal else masked(output) for output in decoded)
        if as_json:
            print_json(list(outputs))
            return
        for output in outputs:
            print_json(output, indent=None)


def _spool(run: RunRecord) -> str:
    """Where outputs wait until the run is over, if its sink is a file that is made at the end."""
    from outlast.pipeline.replays import waiting_in

    spool = waiting_in(run)
    return "" if spool is None else f" once the run is over; until then they wait in {spool}"


def run_fields(run: RunRecord) -> dict[str, Any]:
    """A run for programs."""
    counts = asdict(run.counts)
    finished = run.counts.succeeded + run.counts.skipped + run.counts.dlq + run.counts.failed
    counts |= {"pending": run.counts.total - finished, "source_exhausted": run.source_exhausted}
    names = (
        "id",
        "pipeline",
        "run_key",
        "kind",
        "status",
        "reason",
        "why",
        "passes",
        "wanted",
        "sink",
        "started_at",
        "finished_at",
    )
    return {name: getattr(run, name) for name in names} | {
        "why": run.told,
        "counts": counts,
        "spent": dict(run.spent),
        "stages": [asdict(mark) for mark in run.stages],
    }


def _stage(run: RunRecord, number: int) -> str:
    return run.stages[number].name if 0 <= number < len(run.stages) else str(number)


def _item(item: ItemRow, run: RunRecord, *, reveal: bool) -> dict[str, Any]:
    output = Shell().decode(item.output) if item.output is not None and item.status == "succeeded" else None
    changed = {
        "stage": _stage(run, item.stage),
        "output": output if reveal else masked(output),
        "started_at": from_us(item.started_us),
        "took": item.took_us / 1e6,
        "waits": _waits(item),
        **(item.failure or Failure(None, None, None, None))._asdict(),
    }
    kept = {"started_us", "took_us", "failure"}
    return {name: value for name, value in item._asdict().items() if name not in kept} | changed


def _attempt(attempt: AttemptRow, run: RunRecord) -> dict[str, Any]:
    plain = {name: value for name, value in attempt._asdict().items() if not name.endswith("_us") and name != "pass_"}
    return plain | {
        "stage": _stage(run, attempt.stage),
        "pass": attempt.pass_,
        "started_at": from_us(attempt.started_us),
        "took": attempt.took_us / 1e6,
        "delay": None if attempt.delay_us is None else attempt.delay_us / 1e6,
        "waits": _waits(attempt),
    }


def _waits(row: ItemRow | AttemptRow) -> dict[str, float]:
    return {why: waited / 1e6 for why, waited in (row.waits or {}).items()}


# --- wishes to what is running --------------------------------------------------------------------------------------------


def pause(
    run: Run, *, pipeline: OfPipeline = None, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False
) -> None:
    """Ask a run to pause: it begins no new item, finishes what is under way, and can be resumed."""
    with opened(store, app) as kept:
        record = found_run(kept, run, pipeline)
        worker = worker_of(kept, record)
        if worker is None:
            refuse(f"{record.run_key} of {record.pipeline} is {record.status}, and nobody is running it now.")
        asked = kept.want(record.id, "pause")
    _asked(record, asked, worker, "pause", as_json=as_json)


def cancel(
    run: Run, *, pipeline: OfPipeline = None, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False
) -> None:
    """Ask a run to end for good. One that nobody is running is cancelled at once."""
    from outlast.cli.printing import unfinished

    with opened(store, app) as kept:
        record = found_run(kept, run, pipeline)
        worker = worker_of(kept, record)
        if worker is not None:
            asked = kept.want(record.id, "cancel")
        elif record.status == "failed" and not unfinished(record):
            asked = False  # with something left it would go on when it is run again
        else:
            asked = kept.set_run(None, record.id, status="cancelled", reason="cancelled", why="Cancelled by hand.")
    _asked(record, asked, worker, "cancel", as_json=as_json)


def _asked(run: RunRecord, asked: bool, owner: str | None, wish: str, *, as_json: bool) -> None:
    if not asked:
        refuse(f"{run.run_key} of {run.pipeline} is {run.status}: there is nothing to {wish}.")
    if as_json:
        print_json({"run": run.id, "wanted": wish, "asked": owner})
    elif owner is None:
        say(f"Cancelled {run.run_key} of {run.pipeline}.")
    else:
        say(f"Asked {owner} to {wish} {run.run_key} of {run.pipeline}; it hears that within seconds.")


# --- breakers -------------------------------------------------------------------------------------------------------------


@breaker.command("list")
def list_breakers(*, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False) -> None:
    """List the circuits that processes share, and the breakers of runs that `outlast run` has started, as they were last seen."""
    with opened(store, app) as kept:
        found = [_circuit(state) for state in kept.states("breaker")] + [
            {"name": state.name, "shared": False, "changed_at": state.changed_at} | dict(state.data)
            for state in kept.states("watched_breaker")
        ]
    if as_json:
        print_json(found)
        return
    if not found:
        say("No breakers.")
        return
    rows = [
        (
            one["name"],
            "yes" if one["shared"] else "no",
            one.get("state", ""),
            one.get("failure_count"),
            one.get("wanted") or "",
            one["changed_at"],
            one.get("reason") or "",
        )
        for one in found
    ]
    columns = ("breaker", "shared", "state", "failures in a row", "wanted", "changed", "reason")
    print_table(columns, rows, fold="reason", drop=("changed",))


def _circuit(state: SharedState) -> dict[str, Any]:
    """A shared circuit for a person's eye. Failures are counted by each process."""
    from outlast.breaker.shared import read

    circuit = read(state.data, state.changed_at.timestamp())
    reopens = None if circuit.isolated is not None or circuit.opened_at is None else circuit.retry_at
    return {
        "name": state.name,
        "shared": True,
        "changed_at": state.changed_at,
        "state": circuit.state.value,
        "failure_count": None,
        "wanted": None,
        "reason": circuit.isolated,
        "opened_at": circuit.opened_at,
        "retry_at": reopens,
    }


@breaker.command("isolate")
def isolate_breaker(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The breaker.")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; it stays on record.")],
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Hold a breaker open until it is reset, in every process that shares it and in runs: nothing is called."""
    _wish(name, "isolate", reason, store, app, as_json=as_json)


@breaker.command("reset")
def reset_breaker(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The breaker.")],
    *,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Close a breaker now, whatever it has seen, in every process that shares it and in runs."""
    _wish(name, "reset", "by hand", store, app, as_json=as_json)


def _wish(name: str, wish: str, reason: str, store: str | None, app: str | None, *, as_json: bool) -> None:
    from outlast.breaker.shared import by_hand
    from outlast.errors import nearest
    from outlast.kernel.redact import sanitise

    with opened(store, app) as kept:
        shared, watched = kept.state("breaker", name), kept.state("watched_breaker", name)
        if shared is None and watched is None:
            known = [other.name for kind in ("breaker", "watched_breaker") for other in kept.states(kind)]
            refuse(
                f"There is no breaker {name!r}.{nearest(name, known)} Those there are: {', '.join(known) or 'none'}."
            )
        if shared is not None:
            why = sanitise(reason) if wish == "isolate" else None
            kept.change_state("breaker", name, lambda document, now: (by_hand(document, now, why), None))
        under_way = any(worker_of(kept, record) for record in kept.runs(status="running", limit=500))
        while watched is not None:
            wanted = dict(watched.data) | {"wanted": wish, "reason": reason}
            if kept.save_state("watched_breaker", name, wanted, expect=watched.version):
                break
            watched = kept.state("watched_breaker", name)
    if as_json:
        print_json({"name": name, "wanted": wish, "reason": reason, "shared": shared is not None})
        return
    if shared is not None:
        say(
            f"{name} is {'isolated' if wish == 'isolate' else 'closed'}: processes that use it hear that within a second."
        )
    if watched is not None:
        if under_way:
            say(f"Runs that use {name} are asked to {wish} it; they hear that within seconds.")
        else:
            say(
                f"Nobody is running anything here now: the next `outlast run` that uses {name} hears that when it starts."
            )


# --- events ---------------------------------------------------------------------------------------------------------------


_STORED = ("run_started", "run_finished", "run_paused", "lease_lost", "run_command")
_ROWS = {
    "step": "attempts are rows of their own: outlast runs attempts RUN",
    "attempt": "attempts are rows of their own: outlast runs attempts RUN",
    "item": "items are rows of their own: outlast runs items RUN",
    "dead": "dead letters are rows of their own: outlast dlq list --status all",
    "failure": "what a run came to is in its row: outlast runs show RUN",
    "spend": "what a run came to is in its row: outlast runs show RUN",
    "circuit": "circuits are kept as they are now: outlast breaker list",
    "compensation": "it is told while it happens: outlast.observe.subscribe, or the log",
}


def _kept_name(name: str) -> None:
    """Refuse a name that cannot be found here: nothing found would look as if nothing had happened."""
    from outlast.errors import nearest
    from outlast.observe.events import EVENTS

    one = canonical(name)
    if one in _STORED:
        return
    if one not in EVENTS:
        refuse(
            f"expected --name to be the name of an event, got: {name!r}.{nearest(name, [*EVENTS, *_STORED])} "
            f"Those on record: {', '.join(_STORED)}."
        )
    instead = _ROWS.get(one.partition("_")[0], "it is told while it happens: outlast.observe.subscribe, or the log")
    refuse(f"expected --name to be an event that is kept on record ({', '.join(_STORED)}), got: {name!r}: {instead}")


def events(
    *,
    run: Annotated[str | None, typer.Option("--run", help="Only of this run, by its key or id.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only with this name; older names are understood.")] = None,
    after: Annotated[int | None, typer.Option("--after", help="Only those behind this number.")] = None,
    limit: Limit = 100,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """List the events on record, the oldest first."""
    if name is not None:
        _kept_name(name)
    with opened(store, app) as kept:
        run_id = None if run is None else found_run(kept, run).id
        found = kept.events(run_id, None if name is None else canonical(name), after=after, limit=limit)
    if as_json:
        print_json([asdict(event) | {"at": from_us(event.at_us)} for event in found])
        return
    if not found:
        say("No events.")
        return
    rows = [
        (
            event.number,
            from_us(event.at_us),
            event.name,
            ", ".join(f"{key}={value}" for key, value in event.data.items() if value not in (None, "", event.name)),
        )
        for event in found
    ]
    print_table(("number", "at", "event", "what"), rows, fold="what", drop=("number",))
    if len(found) == limit:
        hint(f"More: --after {found[-1].number}")
