"""
``outlast runs``, ``pause``, ``cancel``, ``breaker`` and ``events``: what is on record, and wishes to what is running.
"""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, cast

import typer

from outlast.alerts import LONGEST
from outlast.cli.options import (  # noqa: TC001 - typer reads the annotations
    AppName,
    AsJson,
    ConnectionsFile,
    Limit,
    OfPipeline,
    Params,
    Progress,
    Reason,
    Root,
    Run,
    StoreUrl,
)
from outlast.cli.output import hint, print_found, print_full_rows, print_json, refuse, say
from outlast.cli.stores import opened, stored_at
from outlast.display.terminal import STATUS_COLOURS
from outlast.errors import ConfigurationError
from outlast.kernel.wording import counted, duration
from outlast.observe.events import canonical
from outlast.report.views import (
    as_told,
    attempt_document,
    event_document,
    item_document,
    run_document,
    slots_document,
    stage_name,
)
from outlast.settings.keys import seconds_of
from outlast.store.address import Address
from outlast.store.records import from_us

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outlast.report.flows import FlowReport
    from outlast.report.views import Views
    from outlast.store.records import ItemStatus, RunRecord, RunStatus

runs = typer.Typer(name="runs", help="Show runs, their items, every attempt, and reports.", no_args_is_help=True)
breaker = typer.Typer(
    name="breaker",
    help="Show, isolate and reset circuit breakers.",
    no_args_is_help=True,
)

Outputs = Annotated[bool, typer.Option("--reveal", help="Print outputs as they are.")]
_KINDS = {"run": "items", "replay": "letters", "flow": "steps"}
Breaker = Annotated[str, typer.Argument(metavar="NAME", help="The breaker.")]


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
    with opened(store, app) as views:
        found = views.runs(pipeline, cast("RunStatus | None", status), limit=limit)
    flows = any(run.kind == "flow" for run in found)
    print_found(
        found,
        run_document,
        lambda run: (
            run.id[:12],
            *((_KINDS[run.kind],) if flows else ()),
            run.pipeline,
            run.run_key,
            run.status,
            run.counts.total,
            run.counts.succeeded,
            run.counts.skipped,
            run.counts.failed if run.kind == "flow" else run.counts.dlq,
            run.started_at,
            None if run.finished_at is None else duration((run.finished_at - run.started_at).total_seconds()),
        ),
        as_json=as_json,
        none="No runs.",
        headings=(
            *(("run", "of") if flows else ("run",)),
            *("pipeline", "key", "status", "count" if flows else "items"),
            *("succeeded", "skipped", "failed" if flows else "dead", "started", "took"),
        ),
        fold="key",
        drop=("took", "skipped", "started", "pipeline", "succeeded"),
    )


@runs.command("show")
def show_run(
    run: Run,
    *,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Of a flow: how each attempt came to the place where it failed.")
    ] = False,
    pipeline: OfPipeline = None,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """
    Show what a run came to: counts, why, its problems, and what to do next; of a flow, every step with every attempt.
    """
    from outlast.cli.printing import name_of, next_steps, print_run
    from outlast.cli.running import ways_on

    with opened(store, app) as views:
        record = views.run(run, pipeline)
        if record.kind == "flow":
            _show_flow(views, record, stored_at(views, store, app), traceback=traceback, as_json=as_json)
            return
        if traceback:
            refuse(
                f"expected no --traceback with {record.run_key}, a run over items: outlast runs attempts has its errors."
            )
        views.letters().release()
        groups = views.problems(record)
        worker = views.worker(record)
        code = views.code_option(record.pipeline)
        resume, anew, moved = ways_on(views, record, store)
        stored = stored_at(views, store)
        owner = views.flows.owner_of(record)
        called = () if owner is None else views.called(owner[0])
        name = name_of(views, record)
    if as_json:
        shown = [slots_document(group) for group in groups]
        print_json(run_document(record) | {"groups": shown, "running_at": worker})
        return
    print_run(record, groups)
    if worker is not None:
        say(f"It is running at {worker}.")
    elif owner is not None:
        for line in _next_of_rows(record, *owner, called, stored):
            hint(line)
    else:
        for step in next_steps(record, groups, resume, code, anew=anew, moved=moved, stored=stored, name=name):
            hint(step)


def _next_of_rows(
    record: RunRecord, flow: RunRecord, step: str, called: Sequence[str], stored: Sequence[str]
) -> Iterator[str]:
    """
    What a person may want to do about the rows of a step: its flow is what does them again. `called` is what a command needs
    to mean that.
    """

    def command(*words: str) -> str:
        return shlex.join(["outlast", *words, *stored])

    if record.counts.dlq:
        yield f"Look at those that failed: {command('dlq', 'list', '--run', record.id[:12])}"
    elif record.counts.failed:
        yield f"Look at those that failed: {command('runs', 'errors', record.id[:12])}"
    if flow.status == "completed" and record.counts.dlq + record.counts.failed:
        again = command("resume", *called, "--from-step", step)
        yield f"Once the cause is gone, its flow does all rows of {step} again, and what needs them: {again}"
    elif flow.status in {"failed", "partial_success", "interrupted", "paused"}:
        yield f"Its flow goes on with it: {command('resume', *called)}"
    yield f"Its flow: {command('runs', 'show', *called)}"


def _show_flow(views: Views, record: RunRecord, stored: Sequence[str], *, traceback: bool, as_json: bool) -> None:
    from outlast.cli.flowprinting import print_flow_in_full, tell_next

    report = views.flows.report(record)
    if as_json:
        print_json(report.to_dict())
        return
    print_flow_in_full(report, traceback=traceback)
    if not traceback and any(one.traceback for step in report.steps for one in (*step.attempts, *step.undone_by)):
        command = ["outlast", "runs", "show", *report.called, "--traceback", *stored]
        hint(f"How attempts came to the place where they failed: {shlex.join(command)}")
    if report.artifacts:
        command = ["outlast", "runs", "artifact", *report.called, report.artifacts[-1].name, *stored]
        hint(f"What it has kept: {shlex.join(command)}")
    tell_next(replace(report, steps=tuple(replace(step, error=None) for step in report.steps)), stored)


def _no_flow(views: Views, record: RunRecord, command: str, stored: Sequence[str]) -> None:
    """Refuse what only a run over items has, and name those that steps of the flow have made."""
    if record.kind == "flow":
        show = shlex.join(["outlast", "runs", "show", *views.called(record), *stored])
        inside = [
            f"Those of its step {step}: {shlex.join(['outlast', 'runs', command, found[0].id[:12], *stored])}"
            for step, found in views.flows.over_items(record).items()
        ]
        refuse(
            f"{record.run_key} of {record.pipeline} is a run of a flow, which has steps and no items: {show}", *inside
        )


@runs.command("artifact")
def show_kept(
    run: Run,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What was kept, by its name: `runs show` lists them.")],
    *,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Of this attempt. Default: the newest that has kept it.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write it there, as it is, instead of printing it.")
    ] = None,
    reveal: Annotated[bool, typer.Option("--reveal", help="Print it as it is.")] = False,
    pipeline: OfPipeline = None,
    store: StoreUrl = None,
    app: AppName = None,
) -> None:
    """
    Print what a step of a flow has kept, such as the raw answer of a service: masked, or as it is with --reveal or to a
    file.
    """
    from outlast.cli.jobs import print_kept

    with opened(store, app) as views:
        record = views.run(run, pipeline)
        if record.kind != "flow":
            refuse(f"{record.run_key} of {record.pipeline} is a run over items, which keep nothing: outlast runs items")
        kept = views.flows.artifact(record, name, attempt)
    print_kept(name, kept, output, reveal=reveal)


@runs.command("items")
def list_items(
    run: Run,
    *,
    status: Annotated[str | None, typer.Option("--status", help="Only succeeded, skipped, dlq or failed.")] = None,
    after: Annotated[int | None, typer.Option("--after", help="Only those behind this position.")] = None,
    limit: Limit = 50,
    reveal: Outputs = False,
    pipeline: OfPipeline = None,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """List the finished items of a run in the order of its source."""
    if status not in {None, "succeeded", "skipped", "dlq", "failed"}:
        refuse(f"expected --status to be succeeded, skipped, dlq or failed, got: {status!r}.")
    with opened(store, app) as views:
        record = views.run(run, pipeline)
        _no_flow(views, record, "items", stored_at(views, store, app))
        items = views.items(record, cast("ItemStatus | None", status), after=after, limit=limit)
    shown = print_found(
        items,
        lambda item: item_document(item, record, reveal=reveal),
        lambda item: (
            item.seq,
            item.key,
            item.status + (" (degraded)" if item.degraded else ""),
            stage_name(record, item.stage),
            item.attempts,
            duration(item.took_us / 1e6),
            item.stop_reason,
            item.reason or "; ".join(item.warnings),
        ),
        as_json=as_json,
        none="No items.",
        headings=("position", "item", "status", "stage", "attempts", "took", "stopped", "why"),
        fold="why",
        drop=("took", "attempts", "position", "stopped"),
    )
    if shown and len(items) == limit:
        hint(f"More: --after {items[-1].seq}")


@runs.command("attempts")
def list_attempts(
    run: Run,
    *,
    item: Annotated[
        str | None,
        typer.Option("--item", help="Only of this item, by its key or its position; of a flow, of this step."),
    ] = None,
    limit: Limit = 100,
    pipeline: OfPipeline = None,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """List every attempt of a run, or of one item: when, how long, what came out, and the wait that followed."""
    with opened(store, app) as views:
        record = views.run(run, pipeline)
        if record.kind == "flow":
            _list_step_attempts(views.flows.report(record), item, limit=limit, as_json=as_json)
            return
        attempts = views.attempts(record, item, limit=limit)
    print_found(
        attempts,
        lambda attempt: attempt_document(attempt, record),
        lambda attempt: (
            attempt.seq,
            stage_name(record, attempt.stage),
            attempt.number,
            attempt.outcome,
            from_us(attempt.started_us),
            duration(attempt.took_us / 1e6),
            None if attempt.delay_us is None else duration(attempt.delay_us / 1e6),
            attempt.stop_reason,
            "" if attempt.error is None else f"{attempt.error_class}: {attempt.error}",
        ),
        as_json=as_json,
        none="No attempts." if item is None else f"No attempts of {item}.",
        headings=("position", "stage", "attempt", "outcome", "started", "took", "then waited", "stopped", "error"),
        fold="error",
        drop=("then waited", "took", "started", "stopped"),
    )


def _list_step_attempts(report: FlowReport, step: str | None, *, limit: int, as_json: bool) -> None:
    from outlast.cli.flowprinting import ATTEMPTS, attempt_rows, attempts_of
    from outlast.errors import nearest
    from outlast.report.model import plain

    names = [one.id for one in report.steps]
    if step is not None and step not in names:
        refuse(f"expected --item to be a step of {report.pipeline}, got: {step!r}.{nearest(step, names)}")
    if as_json:
        chosen = [one for one in attempts_of(report) if step is None or one[0] == step][:limit]
        print_json([{"step": name, "deed": deed} | plain(one) for name, deed, one in chosen])
        return
    rows = attempt_rows(report, step, limit)
    if rows:
        print_full_rows(ATTEMPTS, rows, fold="error", below=("took", "started", "then"))
    else:
        say("No attempts." if step is None else f"No attempts of {step}.")


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

    with opened(store, app) as views:
        record = views.run(run, pipeline)
        _no_flow(views, record, "errors", stored_at(views, store, app))
        lines = islice(views.errors(record), limit)
        if csv is not None:
            written = append_errors(csv, lines, reveal=reveal)
            if as_json:
                print_json({"run": record.id, "csv": str(csv), "written": written})
            else:
                say(f"Added {counted(written, 'error')} to {csv}.")
            return
        found = [dict(zip(HEADER, cells_of(line, reveal=reveal), strict=True)) for line in lines]
    shown = ("row_index", "item_key", "stage", "field", "error_type", "message")
    print_found(
        found,
        lambda row: row | {"row_index": int(row["row_index"])},
        lambda row: [row[name] for name in shown],
        as_json=as_json,
        none="No errors.",
        headings=("position", "item", "stage", "field", "kind", "message"),
        fold="message",
        drop=("kind", "item", "stage"),
    )


@runs.command("outputs")
def print_outputs(
    run: Run,
    *,
    reveal: Outputs = False,
    pipeline: OfPipeline = None,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """
    Print what the items of a run became, or what the steps of a flow have put out, as JSON lines (with --json as one list);
    of a run over items only without an output file.
    """
    with opened(store, app) as views:
        record = views.run(run, pipeline)
        if record.kind == "flow":
            put_out = views.flows.outputs(record, reveal=reveal)
            if as_json:
                print_json(list(put_out))
                return
            for one in put_out:
                print_json(one, indent=None)
            return
        if record.sink is not None:
            refuse(f"The outputs of {record.run_key} are in {record.sink}{_spool(record)}.")
        outputs = views.outputs(record, reveal=reveal)
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


# --- wishes to what is running --------------------------------------------------------------------------------------------


def pause(
    run: Run, *, pipeline: OfPipeline = None, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False
) -> None:
    """Pause a run. It finishes what has begun, begins nothing new, and can be resumed."""
    with _run_or_job("pause", run, store) as found, opened(store, app) as views:
        record = views.run(run, pipeline)
        found.append(record)
        worker = views.worker(record)
        if worker is None:
            waits = as_told(views.store, record).reason == "requeued"
            refuse(
                f"{record.run_key} of {record.pipeline} is {record.status}, and no process runs it now.",
                *(
                    [f"It waits for its job. To keep that from starting: outlast jobs cancel {record.job}"]
                    if waits
                    else []
                ),
            )
        asked = views.pause(record)
    _asked(record, asked, worker, "pause", as_json=as_json)


def cancel(
    run: Run,
    *,
    compensate: Annotated[
        bool, typer.Option("--compensate", help="Of a flow: undo what its steps have done, as they say it.")
    ] = False,
    param: Params = None,
    root: Root = None,
    connections: ConnectionsFile = None,
    progress: Progress = None,
    pipeline: OfPipeline = None,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a run. One that no process runs is cancelled immediately."""
    of_flows = {
        "--compensate": compensate,
        "--param": param,
        "--root": root,
        "--connections": connections,
        "--progress": progress,
    }
    with _run_or_job("cancel", run, store) as found, opened(store, app) as views:
        record = views.run(run, pipeline)
        found.append(record)
        owner = views.app
        asked, worker = False, None
        if record.kind != "flow":
            refuse_below_flow(views, record, "cancel", stored_at(views, store))
            used = [option for option, value in of_flows.items() if value]
            if used:
                refuse(
                    f"expected no {' or '.join(used)} with {record.run_key}, a run over items: only a flow says what undoes its steps."
                )
            asked, worker = views.cancel(record)
    if record.kind == "flow":
        from outlast.cli.flows import Wishes, cancel_flow

        cancel_flow(
            record,
            compensate=compensate,
            param=param,
            root=root,
            connections=connections,
            app=owner,
            wishes=Wishes(progress=progress, strict=False, store=store, as_json=as_json),
        )
        return
    _asked(record, asked, worker, "cancel", as_json=as_json)


def refuse_below_flow(views: Views, record: RunRecord, command: str, stored: Sequence[str]) -> None:
    """Refuse to end or to go on with a run that a step of a flow has made: the flow would find it so, and fail."""
    found = views.flows.above(record)
    if found is None:
        return
    flow, step = found
    whose = f"of the step {step} of {flow.run_key}, a run of the flow {flow.pipeline}"

    def way(*words: str) -> str:
        return shlex.join(["outlast", words[0], *words[1:], *stored])

    called = views.called(flow)
    if command == "cancel" and flow.status not in {"completed", "cancelled"}:
        line = f"To cancel that one: {way('cancel', *called)}"
    elif command == "resume" and flow.status == "completed":
        line = f"To do the step again, and what needs it: {way('resume', *called, '--from-step', step)}"
    elif command == "resume" and flow.status in {"failed", "partial_success", "interrupted", "paused"}:
        line = f"That one goes on with it: {way('resume', *called)}"
    else:
        line = f"That one is {flow.status}: {way('runs', 'show', *called)}"
    refuse(f"expected a run of its own to {command}, got: {record.run_key}, {whose}.", line)


@contextmanager
def _run_or_job(command: str, run: str, store: str | None) -> Iterator[list[RunRecord]]:
    """Where the run is not found, which is put into the list: jobs and their queues have commands of their own."""
    found: list[RunRecord] = []
    what = "a queue of jobs" if command == "pause" else "jobs"
    words = ["outlast", "jobs", command, run, *(("--store", str(Address(store))) if store else ())]
    told = f"This command is about runs. About {what}: {shlex.join(words)}"
    try:
        yield found
    except ConfigurationError as wrong:
        raise ConfigurationError(wrong.problems if found else [*wrong.problems, told]) from None
    except typer.Exit:
        if not found:
            hint(told)
        raise


def _asked(run: RunRecord, asked: bool, owner: str | None, request: str, *, as_json: bool) -> None:
    if not asked:
        refuse(f"{run.run_key} of {run.pipeline} is {run.status}: there is nothing to {request}.")
    if as_json:
        print_json({"run": run.id, "wanted": request, "asked": owner})
    elif owner is None:
        say(f"Cancelled {run.run_key} of {run.pipeline}.")
    else:
        say(f"Asked {owner} to {request} {run.run_key} of {run.pipeline}; it hears that within seconds.")


# --- breakers -------------------------------------------------------------------------------------------------------------


@breaker.command("list")
def list_breakers(*, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False) -> None:
    """
    List shared circuits, open breakers of every process that has this store, and those of `outlast run` as last seen.
    """
    with opened(store, app) as views:
        found = views.breakers()
    of_processes = any("process" in one for one in found)
    print_found(
        found,
        dict,
        lambda one: (
            one["name"],
            "yes" if one["shared"] else "no",
            one.get("state", ""),
            one.get("failure_count"),
            one.get("wanted") or "",
            one["changed_at"],
            *((one.get("process", ""),) if of_processes else ()),
            one.get("reason") or "",
        ),
        as_json=as_json,
        none="No breakers.",
        headings=(
            *("breaker", "shared", "state", "failures in a row", "wanted", "changed"),
            *(("process",) if of_processes else ()),
            "reason",
        ),
        fold="reason",
        drop=("changed",),
    )


@breaker.command("isolate")
def isolate_breaker(
    name: Breaker,
    *,
    reason: Reason,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Hold a breaker open until it is reset, in every process that shares it and in runs: nothing is called."""
    _request(name, "isolate", reason, store, app, as_json=as_json)


@breaker.command("reset")
def reset_breaker(name: Breaker, *, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False) -> None:
    """Close a breaker now, whatever it has seen, in every process that shares it and in runs."""
    _request(name, "reset", "by hand", store, app, as_json=as_json)


def _request(name: str, what: str, reason: str, store: str | None, app: str | None, *, as_json: bool) -> None:
    from outlast.errors import nearest

    with opened(store, app) as views:
        shared, watched = views.steer(name, what, reason)
        if not shared and not watched:
            found = views.breakers()
            if where := [other["process"] for other in found if other["name"] == name]:
                refuse(
                    f"The breaker {name!r} belongs to one process ({', '.join(where)}), which cannot be reached from here. "
                    "Make it with shared=True to isolate and reset it in all processes."
                )
            known = [other["name"] for other in found]
            refuse(
                f"There is no breaker {name!r}.{nearest(name, known)} Those there are: {', '.join(known) or 'none'}."
            )
        under_way = views.under_way()
    if as_json:
        print_json({"name": name, "wanted": what, "reason": reason, "shared": shared})
        return
    if shared:
        say(
            f"{name} is {'isolated' if what == 'isolate' else 'closed'}: processes that use it hear that within a second."
        )
    if watched:
        if under_way:
            say(f"Runs that use {name} are asked to {what} it; they hear that within seconds.")
        else:
            say(
                f"Nobody is running anything here now: the next `outlast run` that uses {name} hears that when it starts."
            )


# --- events ---------------------------------------------------------------------------------------------------------------


_STORED = (
    *("run_started", "run_finished", "run_paused", "lease_lost", "run_command"),
    *("compensation_triggered", "compensation_completed", "compensation_failed", "idempotency_hit"),
    "alert_acknowledged",
)
_ROWS = {
    "step": "attempts are rows of their own: outlast runs attempts RUN",
    "attempt": "attempts are rows of their own: outlast runs attempts RUN",
    "item": "items are rows of their own: outlast runs items RUN",
    "dead": "dead letters are rows of their own: outlast dlq list --status all",
    "failure": "what a run came to is in its row: outlast runs show RUN",
    "spend": "what a run came to is in its row: outlast runs show RUN",
    "circuit": "circuits are kept as they are now: outlast breaker list",
}
_CALLS = "calls outside of flows keep none"


def _kept_name(name: str, *, of_flow: bool | None) -> str:
    """
    Refuse a name that cannot be found here: nothing found would look as if nothing had happened. What steps of flows
    report is on record, too; without a run (None) the answer says where to look for the same of others.
    """
    from outlast.errors import nearest
    from outlast.observe.events import (
        EVENTS,
        BreakerEvent,
        CallRejected,
        Event,
        FlowEvent,
        LimitExceeded,
        StepEvent,
        Throttled,
    )

    one = canonical(name)
    of_steps = (StepEvent, BreakerEvent, FlowEvent, CallRejected, LimitExceeded, Throttled)
    if of_flow is None and one not in _STORED and issubclass(EVENTS.get(one, Event), of_steps):
        return f"Only steps of flows keep {one}. Of other runs, {_ROWS.get(one.partition('_')[0], _CALLS)}"
    if one not in EVENTS and one not in _STORED:
        refuse(
            f"expected --name to be the name of an event, got: {name!r}.{nearest(name, [*EVENTS, *_STORED])} "
            f"Those on record: {', '.join(_STORED)}."
        )
    if one not in _STORED and not of_flow:
        instead = _ROWS.get(
            one.partition("_")[0], "it is not stored: subscribe with outlast.observe.subscribe, or read the log"
        )
        refuse(
            f"expected --name to be an event that is kept on record ({', '.join(_STORED)}), got: {name!r}: {instead}"
        )
    return ""


def events(
    *,
    run: Annotated[str | None, typer.Option("--run", help="Only of this run, by its key or id.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only with this name; older names are understood.")] = None,
    window: Annotated[
        str | None, typer.Option("--window", metavar="DURATION", help="Only those within this time, such as 24h.")
    ] = None,
    after: Annotated[int | None, typer.Option("--after", help="Only those behind this number.")] = None,
    limit: Limit = 100,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """List stored events, the oldest first."""
    told = "" if name is None or run is not None else _kept_name(name, of_flow=None)
    seconds = None if window is None else seconds_of(window)
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST
    ):
        refuse(f"expected --window to be a duration such as 90s, 10m or 24h, ten years at most, got: {window!r}.")
    with opened(store, app) as views:
        if name is not None and run is not None:
            _kept_name(name, of_flow=views.run(run).kind == "flow")
        found = views.events(run, name, window=seconds, after=after, limit=limit)
    shown = print_found(
        found,
        event_document,
        lambda event: (
            event.number,
            from_us(event.at_us),
            event.name,
            ", ".join(f"{key}={value}" for key, value in event.data.items() if value not in (None, "", event.name)),
        ),
        as_json=as_json,
        none="No events.",
        headings=("number", "at", "event", "what"),
        fold="what",
        drop=("number",),
    )
    if shown and len(found) == limit:
        hint(f"More: --after {found[-1].number}")
    if told:
        hint(told)
