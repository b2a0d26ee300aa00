"""
Runs of flows from the command line: what ``outlast run`` does with a pipeline file or a manifest, and ``resume`` and
``cancel`` with a run of one.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from outlast.cli.flowprinting import half_told, print_flow, print_outlook, rows_told, tell_next
from outlast.cli.output import Code, hint, print_json, refuse, refuse_options, say, with_signal
from outlast.cli.spec import carried_values, compiled_file, given_of, is_manifest, read_manifest
from outlast.cli.stores import opened, or_way_out, stored_at, tell_masked
from outlast.cli.targets import is_flow
from outlast.errors import ConfigurationError
from outlast.report.flows import told
from outlast.report.views import Views
from outlast.store.faults import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlast.cli.spec import Given
    from outlast.flow import Flow
    from outlast.flow.opening import FlowPlan
    from outlast.flow.results import FlowResult
    from outlast.pipeline.home import Home
    from outlast.report.flows import FlowReport
    from outlast.spec.manifest import Manifest
    from outlast.store.records import RunRecord, RunRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How a run of a flow is to be shown and told."""

    progress: bool | None
    strict: bool
    store: str | None
    as_json: bool


# --- run ------------------------------------------------------------------------------------------------------------------


def run_flow(
    target: str,
    *,
    run_key: str | None,
    param: Sequence[str] | None,
    profile: str | None,
    root: str | None,
    connections: str | None,
    from_step: str | None,
    on_change: str,
    dry_run: bool,
    app: str | None,
    wishes: Wishes,
) -> None:
    """Run a pipeline file, or a manifest that was compiled from one."""
    if dry_run:
        shown = {"--strict": wishes.strict, "--progress": wishes.progress is not None}
        for problem in refuse_options("--dry-run", shown, "which runs nothing."):
            refuse(problem)
    given = given_of(param, profile, connections, root)
    manifest, params = _compiled(target, given)
    folder = _folder(target, given)
    home = _home(app, wishes.store)
    plan = _planned(
        manifest,
        home,
        run_key=run_key,
        root=folder,
        connections=_connections(given.connections, folder),
        file=os.path.realpath(target),
        params=params,
        from_step=from_step,
        on_change=on_change,
    )
    if dry_run:
        _tell_outlook(plan, wishes)
        return
    _go(plan, home, wishes)


def _compiled(target: str, given: Given) -> tuple[Manifest, Mapping[str, Any]]:
    """The manifest that is to be run, and the parameters that are in none; mistakes are told, and end the command."""
    if not os.path.lexists(target):
        from outlast.errors import nearest

        folder = Path(target).parent
        names = [one.name for one in folder.iterdir() if is_flow(one.name)] if folder.is_dir() else []
        where = "" if Path(target).is_absolute() else f" in {Path.cwd()}"
        refuse(f"expected {target} to be a pipeline file, but there is none{where}.{nearest(Path(target).name, names)}")
    if not is_manifest(target):
        compiled = compiled_file(target, given)
        if compiled.manifest is None:
            raise typer.Exit(Code.INVALID)
        return compiled.manifest, given.params
    manifest = read_manifest(target, given)
    problems: list[str] = []
    if given.profile is not None:
        problems.append(f"expected --profile with a pipeline file, got: {target}, which is compiled already")
    for name in given.params:
        if name not in manifest.open_params:
            known = f"It takes {', '.join(manifest.open_params)}." if manifest.open_params else "It takes none."
            problems.append(
                f"expected --param {name} with a pipeline file, got: {target}, which is compiled already. {known}"
            )
    if problems:
        refuse(*problems)
    return manifest, given.params


def flow_of(
    target: str, param: Sequence[str] | None, profile: str | None, root: str | None, connections: str | None
) -> Flow:
    """The flow of a pipeline file or a manifest; mistakes are told, and end the command."""
    from outlast.flow import Flow

    given = given_of(param, profile, connections, root)
    manifest, params = _compiled(target, given)
    folder = _folder(target, given)
    return Flow(
        manifest,
        params={name: value for name, value in params.items() if name in manifest.open_params},
        root=folder,
        connections=_connections(given.connections, folder),
        file=target,
    )


def _folder(target: str, given: Given) -> str:
    """The project's root: that of a pipeline file is its folder; a manifest may be anywhere, and its root is this one."""
    here = Path.cwd() if is_manifest(target) else Path(target).parent
    return os.path.realpath(here if given.root is None else given.root)


def _connections(given: str | None, root: str) -> str | None:
    from outlast.spec.connections import FILE

    beside = Path(root) / FILE
    return os.path.realpath(given) if given is not None else str(beside) if os.path.lexists(beside) else None


def _home(app: str | None, store: str | None) -> Home:
    from outlast.app import App

    return App(app or "default", store=store)


def _planned(manifest: Manifest, home: Home, **how: Any) -> FlowPlan:
    """A run that can begin; all that is missing ends the command."""
    from outlast.flow.prepared import planned

    try:
        return planned(manifest, home, **how)
    except ConfigurationError as missing:
        refuse(*map(_in_shell, missing.problems))


#: Some sentences name both: a job that fails with one is read in a shell, too.
_FROM_STEP = re.compile(r"""from_step=(['"])(.*?)\1(?: \(--from-step \2\))?""")


def _in_shell(text: str) -> str:
    """What Python is told about its arguments, as a shell has them."""
    text = _FROM_STEP.sub(r"--from-step \2", text)
    for python, shell in (
        ('on_change="keep"', "--on-change keep"),
        ('on_change="redo"', "--on-change redo"),
        ("from_step", "--from-step"),
        ("connections=", "--connections"),
        ("give it again, or set", "give it with --param, or set"),
        ("another run_key", "another --run-key"),
        ("expected run_key", "expected --run-key"),
    ):
        text = text.replace(python, shell)
    return text


# --- while it runs, and after -----------------------------------------------------------------------------------------------


def _go(plan: FlowPlan, home: Home, wishes: Wishes) -> None:
    """Work on a run to its end; the report, what to do next, and the exit code."""
    with or_way_out():
        before = _passes(plan, home)
        result, signalled = _worked(plan, home, wishes)
        if not wishes.as_json and result.status == "completed" and before == _passes(plan, home):
            hint(f"Nothing was run: {result.run_key} was completed before. Another --run-key begins another run.")
        _tell(home, result, wishes, signalled)


def _passes(plan: FlowPlan, home: Home) -> int | None:
    """How often its run was begun to be worked on; None if it never was."""
    from outlast.flow.prepared import _has_store

    try:
        record = home.store.find_run(plan.manifest.name, plan.run_key) if _has_store(home) else None
    except StoreError:  # which the run waits for, or tells
        return None
    return None if record is None else record.passes


def _worked(plan: FlowPlan, home: Home, wishes: Wishes) -> tuple[FlowResult, Code | None]:
    """What a run came to that is shown while it runs, and the exit code of the signal that ended it."""
    from outlast.cli.running import ended, waits_said
    from outlast.cli.watch import way_to_show
    from outlast.display.flows import FlowWatch, screen_for
    from outlast.flow.parts import breaker_of
    from outlast.flow.runner import FlowRun
    from outlast.pipeline.drivers import blocking

    how = None if wishes.as_json else way_to_show(wanted=wishes.progress)
    blocks = [step.policy["circuit_breaker"] for step in plan.manifest.steps if "circuit_breaker" in step.policy]
    circuits = {block["scope"]: breaker_of(block, home) for block in blocks if not block["shared"]}

    def look_after() -> None:
        Views(home.store).look_after(circuits)

    watch = FlowWatch(screen_for(how, keep=False), every_second=look_after if circuits else None)
    try:
        with waits_said(), watch:
            return ended(lambda: blocking(FlowRun(replace(plan, watch=watch))))
    except ConfigurationError as wrong:
        refuse(*map(_in_shell, wrong.problems))


def _tell(home: Home, result: FlowResult, wishes: Wishes, signalled: Code | None) -> None:
    code = with_signal(exit_code(result, strict=wishes.strict), signalled)
    views = Views(home.store)
    try:
        record = views.of(result)
        report = views.flows.report(record)
        why = report.why if report.by_hand else result.why  # which does not know what was undone by hand
        report = replace(report, why=why, status=result.status, reason=result.reason)
    except StoreError:
        if not result.steps or wishes.as_json:
            raise
        say(f"{result.pipeline}  {result.run_key}  {result.status}")
        say(told(result.why))
        raise typer.Exit(code) from None
    _print(report, views, wishes, code)


def _print(report: FlowReport, views: Views, wishes: Wishes, code: Code) -> None:
    where = stored_at(views, wishes.store)
    if wishes.as_json:
        print_json(report.to_dict() | {"exit_code": int(code)})
    else:
        print_flow(report)
        tell_next(report, where)
        tell_masked(wishes.store)
    raise typer.Exit(code)


def exit_code(result: FlowResult, *, strict: bool = False) -> Code:
    """
    The exit code: 0 completed, 1 failed, 3 if a step lost rows, 5 if something could not be undone, 130 interrupted,
    paused or cancelled; with `strict`, 3 if it completed and rows have open dead letters.
    """
    if result.status == "partial_success":
        return Code.PARTIAL
    if result.status == "completed":
        return Code.PARTIAL if strict and result.dead_letters else Code.COMPLETED
    if result.compensation == "failed" and result.status in {"failed", "cancelled"}:
        return Code.NOT_UNDONE
    return Code.FAILED if result.status == "failed" else Code.INTERRUPTED


def _tell_outlook(plan: FlowPlan, wishes: Wishes) -> None:
    from outlast.flow.doors import outlook
    from outlast.flow.prepared import _has_store

    try:
        with or_way_out():
            found = outlook(plan, plan.home.store if _has_store(plan.home) else None)
    except ConfigurationError as wrong:
        refuse(*map(_in_shell, wrong.problems))
    names = [step.id for step in plan.manifest.steps]
    if wishes.as_json:
        print_json(
            {
                "dry_run": True,
                "pipeline": plan.manifest.name,
                "run_key": plan.run_key,
                "why": found.why,
                "steps": [
                    {"id": name, "would": found.of(name)}
                    | ({"open_rows": found.open_rows[name]} if name in found.open_rows else {})
                    for name in names
                ],
                "exit_code": int(Code.COMPLETED),
            }
        )
        return
    print_outlook(plan.manifest, plan.run_key, found)


# --- resume ---------------------------------------------------------------------------------------------------------------


def resume_flow(
    record: RunRecord,
    *,
    app: str,
    file: str | None,
    recorded: bool,
    param: Sequence[str] | None,
    root: str | None,
    connections: str | None,
    from_step: str | None,
    on_change: str | None,
    dry_run: bool,
    wishes: Wishes,
) -> None:
    """
    Go on with a run of a flow. Its pipeline file is compiled again, with the parameters and the profile that the run has:
    who has mended the file wants what it says now. Without the file, the manifest that is on record is taken.
    """
    from outlast.flow.doors import difference, files_of, shown_manifest
    from outlast.flow.record import manifest_of

    if file is not None and recorded:
        refuse("expected --file or --recorded, got: both. --recorded goes on without any file.")
    if recorded and on_change is not None:
        with opened(wishes.store, app) as views:
            changed_work = views.flows.other_work(record)
        if not changed_work:
            refuse("expected no --on-change with --recorded: the steps that are on record are what the run has done.")
    given = given_of(param, None, connections, root)
    known = files_of(record)
    chosen = file or (None if recorded else known.get("file"))
    folder = root or (str(Path(file).parent) if file is not None else None) or known.get("root") or str(Path.cwd())
    if not Path(folder).is_dir():
        refuse(f"expected the project's root to be there: {folder}. Name it with --root.")
    folder = os.path.realpath(folder)
    told = known.get("connections") if file is None and root is None else None
    beside = _connections(given.connections or told, folder)
    given = replace(given, root=folder, connections=beside)
    was = shown_manifest(record)
    if file is not None and not os.path.lexists(file):
        refuse(f"expected --file to be a pipeline file, but there is none: {file}.")
    if chosen is not None and os.path.lexists(chosen) and not is_manifest(chosen):
        manifest = _compiled_again(chosen, record, was, given, app, wishes)
        changed = difference(was, manifest)
        hint(f"Taken: {_short(chosen)}, {f'which has changed since: {changed}' if changed else 'with the same steps'}.")
    elif chosen is not None and os.path.lexists(chosen):
        manifest = read_manifest(chosen, given)
        _refuse_params(given, manifest, f"the steps of {_short(chosen)}")
        changed = difference(was, manifest)
        hint(f"Taken: {_short(chosen)}, {f'which differs: {changed}' if changed else 'with the same steps'}.")
    else:
        manifest = manifest_of(record)
        _refuse_params(given, manifest, "the steps that are on record")
        gone = "" if recorded or chosen is None else f": {_short(chosen)} is not there any more"
        hint(f"Taken: the steps as they are on record{gone}.")
    home = _home(app, wishes.store)
    plan = _planned(
        manifest,
        home,
        run_key=record.run_key,
        root=folder,
        connections=beside,
        file=known.get("file") if chosen is None else os.path.realpath(chosen),  # the next one may want the file again
        params=given.params,
        from_step=from_step,
        on_change=on_change or "stop",
    )
    if dry_run:
        _tell_outlook(plan, wishes)
    else:
        _go(plan, home, wishes)


def _compiled_again(file: str, record: RunRecord, was: Manifest, given: Given, app: str, wishes: Wishes) -> Manifest:
    """The file as it is now, with what the run was started with; mistakes are told with the way out, and end the command."""
    carried = carried_values(file, was, given)
    compiled = compiled_file(_short(file), carried)
    if compiled.manifest is None:
        with opened(wishes.store, app) as views:
            words = ["outlast", "resume", *views.called(record), "--recorded", *stored_at(views, wishes.store)]
        hint(f"To go on with the steps as they are on record: {shlex.join(words)}")
        raise typer.Exit(Code.INVALID)
    manifest = compiled.manifest
    if manifest.name != record.pipeline:
        refuse(f"expected the pipeline {record.pipeline!r}, but {file} is {manifest.name!r}.")
    # Where a value came from when the run began is where it comes from.
    origin = {
        name: was.params_from.get(name, kind) for name, kind in manifest.params_from.items() if name not in given.params
    }
    return replace(manifest, params_from={**manifest.params_from, **origin})


def _refuse_params(given: Given, manifest: Manifest, what: str) -> None:
    """Refuse parameters whose values a manifest has already: only those that are in none are given."""
    known = f"It takes {', '.join(manifest.open_params)}." if manifest.open_params else "It takes none."
    problems = [
        f"expected no --param {name} with {what}, which have their values. {known}"
        for name in given.params
        if name not in manifest.open_params
    ]
    if problems:
        refuse(*problems)


def _short(path: str) -> str:
    """A path as a person in this folder would write it."""
    here = os.path.relpath(path)
    return path if here.startswith("..") else here


# --- cancel ---------------------------------------------------------------------------------------------------------------


def cancel_flow(
    record: RunRecord,
    *,
    compensate: bool,
    param: Sequence[str] | None,
    root: str | None,
    connections: str | None,
    app: str,
    wishes: Wishes,
) -> None:
    """
    Cancel a run of a flow. A process that works on it is asked to; else it is cancelled here, and with `compensate` what
    its steps have done is undone here.
    """
    if not compensate:
        for problem in refuse_options(
            "cancel",
            {"--param": param, "--root": root, "--connections": connections, "--progress": wishes.progress},
            "unless --compensate undoes something.",
        ):
            refuse(problem)
    called = f"{record.run_key} of {record.pipeline}"
    what: RunRequest = "compensate" if compensate else "cancel"
    with opened(wishes.store, app) as views:
        worker = views.worker(record)
        report = views.flows.report(record)
        left = record.status == "cancelled" and bool(report.standing or report.undoing)
        settled = record.status == "cancelled" and bool(report.by_hand)  # which is told once more
        if record.status == "cancelled" and worker is None and compensate and not (left or settled):
            _tell_nothing_left(called, report, views, wishes)
            return
        if record.status in {"completed", "cancelled"} and worker is None and not (compensate and (left or settled)):
            stands = f" Still stands: {', '.join(report.standing)}." if left and report.standing else ""
            half = "".join(f" {line}" for line in half_told(report)) if left else ""
            half += "".join(f" {line}" for line in rows_told(report))
            way = f" {_way_to_undo(report, stored_at(views, wishes.store))}" if left else ""
            refuse(f"{called} is {record.status}: there is nothing to cancel.{stands}{half}{way}")
        if worker is not None:
            if not views.ask(record, what):
                refuse(f"{called} has ended: there is nothing to cancel.")
        elif not compensate and not views.cancel(record)[0]:
            refuse(f"{called} is {record.status}: there is nothing to cancel.")
        elif not compensate:  # what was cut off is on record now
            report = views.flows.report(views.run(record.id))
        where = stored_at(views, wishes.store)
    if worker is not None:
        if wishes.as_json:
            print_json({"run": record.id, "wanted": what, "asked": worker})
            return
        undo = " and to undo what it has done" if compensate else ""
        say(f"Asked {worker} to cancel {called}{undo}; it hears that within seconds.")
        return
    if compensate:
        _undo(record, param=param, root=root, connections=connections, app=app, wishes=wishes)
    if wishes.as_json:
        standing, undoing = list(report.standing), list(report.undoing)
        rows = {"standing_rows": dict(report.standing_rows), "unknown_rows": dict(report.unknown_rows)}
        print_json(
            {"run": record.id, "wanted": "cancel", "asked": None, "standing": standing, "undoing": undoing} | rows
        )
        return
    say(f"Cancelled {called}.")
    if report.standing:
        say(f"Still stands, and is not undone: {', '.join(report.standing)}.")
    for line in (*half_told(report), *rows_told(report)):
        say(line)
    if report.standing or report.undoing:
        hint(_way_to_undo(report, where))


def _tell_nothing_left(called: str, report: FlowReport, views: Views, wishes: Wishes) -> None:
    """
    Say that nothing more of a cancelled run can be undone. That ends with 0 only if nothing stands: a script that asks a second
    time is told the same as the first time.
    """
    rows = rows_told(report)
    if rows and wishes.as_json:
        _print(report, views, wishes, Code.PARTIAL)
    say(f"{called} is cancelled already, and nothing of it is left {'that could be undone' if rows else 'to undo'}.")
    for line in rows:
        say(line)
    if rows:
        raise typer.Exit(Code.PARTIAL)


def _way_to_undo(report: FlowReport, where: Sequence[str]) -> str:
    """What undoes what is left of a cancelled run."""
    what, command = report.next(where)[0]
    return f"{what} {command}"


def _undo(
    record: RunRecord,
    *,
    param: Sequence[str] | None,
    root: str | None,
    connections: str | None,
    app: str,
    wishes: Wishes,
) -> None:
    """Undo here what the steps of a run have done, by what is on record, and cancel it; ends the command."""
    from outlast.flow.doors import files_of
    from outlast.flow.record import manifest_of

    given = given_of(param, None, connections, root)
    known = files_of(record)
    folder = os.path.realpath(root or known.get("root") or Path.cwd())
    if not Path(folder).is_dir():
        refuse(f"expected the project's root to be there: {folder}. Name it with --root.")
    home = _home(app, wishes.store)
    manifest = manifest_of(record)
    _refuse_params(given, manifest, "the steps that are on record")
    plan = _planned(
        manifest,
        home,
        run_key=record.run_key,
        root=folder,
        connections=_connections(given.connections or (known.get("connections") if root is None else None), folder),
        file=known.get("file"),
        params=given.params,
        undo_only=True,
    )
    _go_back(plan, home, wishes)


def _go_back(plan: FlowPlan, home: Home, wishes: Wishes) -> None:
    """
    As `_go`, where to be cancelled is what was asked for: 0 if all is undone, 3 if rows stand that nothing undoes, or if nobody
    knows of some.
    """
    with or_way_out():
        result, signalled = _worked(plan, home, wishes)
        views = Views(home.store)
        report = views.flows.report(views.of(result))
        over = result.status == "cancelled" and not report.not_undone
        done = Code.PARTIAL if report.unknown_rows or report.standing_rows else Code.COMPLETED
        _print(report, views, wishes, done if over else with_signal(exit_code(result), signalled))
