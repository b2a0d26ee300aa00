"""
``outlast dlq``: dead letters on the command line. Payloads are shown masked; ``--reveal`` prints them as they are.
"""

from __future__ import annotations

import inspect
import json
import shlex
import sys
from collections import Counter
from datetime import datetime
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlast.cli.jobs import places
from outlast.cli.options import AppName, AsJson, Limit, Progress, Reason, StoreUrl, Target  # noqa: TC001 - typer reads the annotations
from outlast.cli.output import Code, hint, moment, no_worker, print_found, print_json, print_value, refuse, say
from outlast.cli.stores import opened, stored_at
from outlast.kernel.wording import counted
from outlast.report.views import Plain, letter_document, letter_view_document, slots_document
from outlast.store.address import Address
from outlast.store.filters import FIELDS, STATUSES, LetterFilter, chooses  # noqa: TC001 - the annotations are read
from outlast.store.records import FLOW, is_of_job, served_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outlast.deadletters import DeadLetter, DeadLetters
    from outlast.report.views import Views
    from outlast.store.records import JobRow, RunRecord

dlq = typer.Typer(name="dlq", help="Show, edit, replay and archive dead letters.", no_args_is_help=True)

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Dead letters, by id or the beginning of one.")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The dead letter, by id or the beginning of one.")]
Status = Annotated[str, typer.Option("--status", help=FIELDS["status"].about)]
Reveal = Annotated[bool, typer.Option("--reveal", help="Print payloads as they are.")]
Canary = Annotated[
    int | None, typer.Option("--canary", min=1, help="So many go first; the others only if all of those succeed.")
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="PATH",
        help="A new file for all outputs, or a table as in sqlite:///shop.db#orders; that of the run itself if its address is not on record. "
        "Default: the sink of the run that each letter comes from.",
        show_default=False,
    ),
]
RunKey = Annotated[
    str | None,
    typer.Option(
        "--run-key", metavar="KEY", help="The replay's name; the same one goes on with it. Default: a new one."
    ),
]
FromStart = Annotated[bool, typer.Option("--from-start", help="From the first stage instead of the one that failed.")]
AllFromStart = Annotated[
    bool,
    typer.Option(
        "--from-start",
        help="From the first stage instead of the one that failed; of jobs, do all of their steps again.",
    ),
]
CodeAt = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="app.py:reviews",
        help="The pipeline's code. Default: where `outlast run` found it last.",
        show_default=False,
    ),
]


def filtered(*, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of the filter; it takes what was said as its `where`."""
    fields = {name: field for name, field in FIELDS.items() if name not in {"status", *without}}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_options(**given: Any) -> None:
            where = {name: value for name in fields if (value := given.pop(name)) is not None}
            command(**given, where=where)

        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[
                    (float if field.number else str) | None,
                    typer.Option(field.option, metavar="DAYS" if field.number else None, help=field.about),
                ],
            )
            for name, field in fields.items()
        ]
        own = inspect.signature(command, eval_str=True).parameters.values()
        kept = [one for one in own if one.name != "where"]
        first = [one for one in kept if one.kind is not one.KEYWORD_ONLY]
        rest = [one for one in kept if one.kind is one.KEYWORD_ONLY]
        with_options.__signature__ = inspect.Signature([*first, *options, *rest])  # type: ignore[attr-defined]
        with_options.__annotations__ = {}  # those of the signature are the ones
        return with_options

    return decorate


def _named(views: Views, where: LetterFilter, status: str | None = None) -> LetterFilter:
    """
    The filter, with the id of a run that was named as a person does, and of this status if a command asks for one.
    """
    named: LetterFilter = {**where}
    run = where.get("run")
    if run is not None:
        named["run"] = views.run(run).id
    if status is not None:
        if status not in {*STATUSES, "all"}:
            refuse(f"expected --status to be {', '.join(STATUSES)} or all, got: {status!r}.")
        named["status"] = None if status == "all" else status
    return named


@dlq.command("list")
@filtered()
def list_letters(
    *,
    where: LetterFilter,
    status: Status = "open",
    limit: Limit = 50,
    reveal: Reveal = False,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the newest change first."""
    with opened(store, app) as views:
        shown = list(islice(views.letters().find(**_named(views, where, status)), limit))
        listed = print_found(
            shown,
            lambda letter: letter_document(letter, reveal=reveal),
            lambda letter: (
                letter.id[:12],
                letter.pipeline,
                _stage_of(letter),
                letter.item_key,
                letter.status,
                letter.attempts,
                letter.last_attempt_at,
                f"{letter.error_class}: {letter.error}",
            ),
            as_json=as_json,
            none=_none(status),
            headings=("id", "pipeline", "stage", "item", "status", "attempts", "last attempt", "error"),
            fold="error",
            below=("item", "last attempt", "attempts", "pipeline", "stage"),
        )
        if not listed:
            return
        for letter in shown:
            if letter.unreadable is not None:
                hint(f"The payload of {letter.id[:12]} cannot be read: {letter.unreadable}")
        if len(shown) == limit:
            hint(
                f"The newest {limit:,}. More: --limit; as a few problems: {shlex.join(['outlast', 'dlq', 'groups', *stored_at(views, store, app)])}"
            )


@dlq.command("groups")
@filtered()
def list_groups(
    *,
    where: LetterFilter,
    status: Status = "open",
    limit: Limit = 50,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters as problems: one line for all that failed the same way."""
    from outlast.cli.printing import BELOW_GROUPS, GROUP_HEADINGS, group_row

    with opened(store, app) as views:
        groups = views.letters().groups(limit=limit, **_named(views, where, status))
    print_found(
        groups,
        slots_document,
        group_row,
        as_json=as_json,
        none=_none(status),
        headings=GROUP_HEADINGS,
        fold="message",
        below=BELOW_GROUPS,
    )


@dlq.command("show")
def show_letter(
    letter_id: Id, *, reveal: Reveal = False, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False
) -> None:
    """Show one dead letter: its error, its attempts, its payload, and what was done with it."""
    with opened(store, app) as views:
        view = views.letter(letter_id)
        letter = view.letter
        place = stored_at(views, store)
        ways = _ways_of_flow(views, letter, place)
        if view.job is not None and served_kind(view.job.job.kind) == FLOW and view.job.job.status == "failed":
            ways += _ways_of_doubt(views, view.job.job, place)
        code = [*_code(views, letter), *place]
    if as_json:
        print_json(letter_view_document(view, reveal=reveal))
        return
    job, flow = is_of_job(letter), letter.kind in _OF_FLOWS
    say(f"dead letter  {letter.id}  ({letter.status})")
    if flow:
        where = "run" if letter.run_id is not None else "job"
        say(f"{_OF_FLOWS[letter.kind]:<12} {letter.stage} of {letter.pipeline}, in the {where} {letter.item_key}")
    elif job:
        state = "" if view.job is None else f", {view.job.job.status} in the queue {view.job.job.queue}"
        say(f"job          {letter.item_key} ({letter.stage}){state}")
    else:
        where = f"failed at {letter.stage}" if letter.stage else "of another program"
        say(f"item         {letter.item_key} of {letter.pipeline}, {where}")
    say(f"error        {letter.error_type} ({letter.error_class}): {letter.error}")
    say(f"group        {letter.group}")
    if letter.stop_reason is not None:
        say(f"stopped      {letter.stop_reason}")
    say(
        f"attempts     {letter.attempts}, first {moment(letter.first_failed_at)}, last {moment(letter.last_attempt_at)} UTC"
    )
    if not job:
        say(f"run          {letter.run_id or '-'}")
    if letter.replays and flow:
        say(
            f"rounds       {letter.replays + 1}, none of them successful"
            if letter.status == "open"
            else f"rounds       {letter.replays + 1}"
        )
    elif letter.replays:
        say(
            f"replays      {letter.replays}, none of them successful"
            if letter.status == "open"
            else f"replays      {letter.replays}"
        )
    for earlier in view.earlier:
        at = "" if job or flow else f" at {earlier.get('stage')}"
        say(
            f"before       {_at(earlier.get('last_at'))}: failed{at} "
            f"with {earlier.get('error_type')} ({earlier.get('error_class')}): {earlier.get('error')}"
        )
    for edit in view.edits:
        say(f"edited       {moment(edit.at)} UTC{f' by {edit.by}' if edit.by else ''}: {edit.reason}")
    if job and letter.status == "resolved":  # the store keeps why it was moved before: it was requeued
        say("resolved     its job has succeeded")
    elif letter.reason:
        say(f"{letter.status:<12} {letter.reason}")
    for held_by, attempt in view.tried:
        what = "succeeded" if attempt.outcome == "success" else f"{attempt.error_type}: {attempt.error}"
        named = "" if attempt.stage >= len(held_by.stages) else f" ({held_by.stages[attempt.stage].name})"
        where = f" in the replay {held_by.run_key}" if held_by.kind == "replay" else ""
        say(f"  attempt {attempt.number} at stage {attempt.stage + 1}{named}{where}: {what}")
    for made in () if view.job is None else view.job.attempts:
        what = "" if made.error is None else f": {made.error_type}: {made.error}"
        say(f"  attempt {made.number} {made.outcome}{what}")
    for line in () if view.job is None else places(view.job.attempts):
        say(line)
    for kept in () if view.job is None else view.job.artifacts:
        say(f"kept         {kept.name}, {counted(kept.size, 'byte')}, by attempt {kept.attempt}")
    if letter.unstored is not None:
        begins = "cannot be replayed" if letter.begins_at is None else f"a replay begins at {letter.begins_at}"
        say(f"input        not stored: {letter.unstored}; {begins}")
    if letter.unreadable is not None:
        say(f"payload      cannot be read: {letter.unreadable}")
    elif letter.begins_at is not None:
        whose = "" if letter.begins_at == letter.stage else f", the input of {letter.begins_at}"
        whose = ", its arguments" if job else ", what was to be done" if flow else whose
        print_value(f"payload{whose}", letter.payload, reveal=reveal)
    if letter.status == "open" and ways:
        for line in ways:
            hint(line)
    elif letter.status == "open" and job and view.job is None:
        _tell_no_job(letter, store)
    elif letter.status == "open" and (letter.begins_at is None or letter.unreadable is not None):
        command = ["outlast", "dlq", "edit", letter.id[:12], "--payload", "JSON", "--reason", "...", *place]
        hint(f"Give it an input: {shlex.join(command)}")
    elif letter.status == "open":
        hint(f"Send it again: {shlex.join(['outlast', 'dlq', 'replay', letter.id[:12], *code])}")
    if view.job is not None and view.job.artifacts:
        newest = view.job.artifacts[-1].name
        hint(f"What it has kept: {shlex.join(['outlast', 'jobs', 'artifact', letter.item_key, newest, *place])}")
    if view.job is not None:
        traced = ["--traceback"] if any(made.traceback for made in view.job.attempts) else []
        hint(f"Its job: {shlex.join(['outlast', 'jobs', 'show', letter.item_key, *traced, *code])}")


@dlq.command("edit")
def edit_letter(
    letter_id: Id,
    *,
    payload: Annotated[str | None, typer.Option("--payload", help="The new payload, as JSON.")] = None,
    file: Annotated[str | None, typer.Option("--file", help="A file with the new payload as JSON; - is stdin.")] = None,
    reason: Reason,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Replace the payload of an open dead letter; the first one stays on record."""
    if (payload is None) == (file is None):
        refuse("expected either --payload or --file.")
    try:
        text = payload if file is None else sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        value = json.loads(text or "")
    except OSError as missing:
        refuse(f"expected --file to be a file that can be read, got: {file!r} ({missing.strerror}).")
    except RecursionError:
        refuse("expected the payload to be nested less deeply: no JSON reader would take it.")
    except ValueError as wrong:
        refuse(f"expected the payload to be JSON: {wrong}.")
    with opened(store, app) as views:
        before = views.letters().show(views.letter_id(letter_id))
        if before.kind in _OF_FLOWS:
            what = "what undoes a job or a step" if before.kind == "compensation" else "a step"
            refuse(
                f"expected the dead letter of an item or a job, got: {before.id[:12]}, of {what}: what that does is in its pipeline file, or in the code of its job.",
                *_ways_of_flow(views, before, stored_at(views, store)),
            )
        if ways := _ways_of_flow(views, before, stored_at(views, store)):
            refuse(
                f"expected the dead letter of an item or a job, got: {before.id[:12]}, of a row of a flow's step: its flow makes the row again of what the steps before have put out.",
                *ways,
            )
        letter = views.letters().edit(before.id, value, reason=reason)
        code = [*_code(views, letter), *stored_at(views, store)]
        gone = is_of_job(letter) and views.letter(letter.id).job is None
    if as_json:
        print_json(letter_document(letter))
        return
    say(f"Edited {letter.id}.")
    if gone:
        _tell_no_job(letter, store)
        return
    if is_of_job(letter):
        hint(f"Whether these arguments fit {letter.pipeline} is checked when a worker runs it: only that has its code.")
    hint(f"Send it again: {shlex.join(['outlast', 'dlq', 'replay', letter.id[:12], *code])}")


@dlq.command("replay")
@filtered()
def replay_letters(
    ids: Ids = None,
    *,
    where: LetterFilter,
    canary: Canary = None,
    from_start: AllFromStart = False,
    output: Output = None,
    run_key: RunKey = None,
    target: CodeAt = None,
    progress: Progress = None,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """
    Do the work of dead letters again, from the stage that failed; outputs go to the sink of the run they come from,
    unless --output names another. Jobs go back into the queue. Nothing is lost if it fails again or is interrupted.
    """
    from outlast.cli.running import none_replayed, replay

    with opened(store, app) as views:
        before = None if run_key is None else views.replay(run_key, where.get("pipeline"))
        if before is None:
            _meant(ids, where)
        letters = views.letters()
        known = None if not ids else [views.letter_id(letter_id) for letter_id in ids]
        where = _named(views, where)
        if before is None:
            _refuse_flows(views, known, where, store)
        if before is None and _is_of_jobs(letters, known, where):
            only = {"--output": output, "--run-key": run_key, "--target": target}
            _replay_jobs(views, known, where, canary, only, from_start=from_start, store=store, as_json=as_json)
            return
        first = None if before is not None else _owner(letters, known, where)
        owner = where.pop("pipeline", None) or (first if before is None else before.pipeline)
    if before is None and first is None:
        none_replayed(as_json=as_json)
        return
    replay(
        target,
        store=store,
        app=app,
        owner=owner,
        as_json=as_json,
        ids=known,
        canary=canary,
        from_start=from_start,
        sink=output,
        run_key=run_key,
        progress=progress,
        **where,
    )


@dlq.command("reprocess")
@filtered(without=("pipeline",))
def reprocess_letters(
    target: Target,
    *,
    where: LetterFilter,
    canary: Canary = None,
    from_start: FromStart = False,
    output: Output = None,
    run_key: RunKey = None,
    progress: Progress = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Replay all open dead letters of a pipeline, or of one of its stages, with the code as it is now."""
    from outlast.cli.running import replay

    replay(
        target,
        store=store,
        owner=None,
        as_json=as_json,
        canary=canary,
        from_start=from_start,
        sink=output,
        run_key=run_key,
        progress=progress,
        **where,
    )


@dlq.command("archive")
@filtered()
def archive_letters(
    ids: Ids = None,
    *,
    where: LetterFilter,
    undo: Annotated[bool, typer.Option("--undo", help="Open archived ones again.")] = False,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Why; it stays on record. With --undo it may be left out.")
    ] = None,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """
    Put dead letters away: they stay on record, and are no more counted or replayed. Options narrow it down together.
    """
    _meant(ids, where)
    if reason is None and not undo:
        refuse("expected --reason: why they are put away; it stays on record.")
    with opened(store, app) as views:
        letters = views.letters()
        known = None if not ids else [views.letter_id(letter_id) for letter_id in ids]
        said = {} if reason is None else {"reason": reason}
        move = letters.unarchive if undo else letters.archive
        count = move(ids=known, **said, **_named(views, where))
        shown = [] if undo or known is None else map(letters.show, known)
        undone = {_when_undone(views, one) for one in shown if one.kind == "compensation"}
    if as_json:
        print_json({"opened" if undo else "archived": count})
    elif count:
        say(f"{'Opened' if undo else 'Archived'} {count:,}.")
        for when in sorted(undone):
            hint(f"{when} what could not be undone counts as undone by hand.")
    else:
        say(f"{'Opened' if undo else 'Archived'} 0: none of those that are {'archived' if undo else 'open'} fits.")


@dlq.command("resolve")
def resolve_letter(
    letter_id: Id,
    *,
    as_: Annotated[
        str,
        typer.Option("--as", metavar="done|not-done", help="What you found: done, or not-done.", show_default=False),
    ],
    reason: Reason = "settled by hand",
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Settle by hand whether a row of a flow's step was done."""
    if as_ not in {"done", "not-done"}:
        refuse(f"expected --as to be done or not-done, got: {as_!r}.")
    with opened(store, app) as views:
        letter = views.letters().show(views.letter_id(letter_id))
        if letter.kind in _OF_FLOWS and letter.status == "open":
            what = f"expected the dead letter of a row of a flow's step, got: {letter.id[:12]}, of {letter.pipeline}."
            refuse(what, *_ways_of_flow(views, letter, stored_at(views, store)))
        letter = views.letters().resolve(letter.id, done=as_ == "done", reason=reason)
        found = views.flows.rows_of(letter)
        place = stored_at(views, store)
        command = [] if found is None else ["outlast", "resume", *views.called(found[0]), *place]
        goes_on = found is not None and found[0].status not in {"completed", "cancelled"}
    if as_json:
        print_json({"id": letter.id, "as": as_, "status": letter.status})
        return
    then = "is not called again" if as_ == "done" else "is run by the next resume"
    say(f"{letter.item_key} {then}.")
    if goes_on:
        hint(f"Once every row in doubt is settled, continue: {shlex.join(command)}")


@dlq.command("export")
@filtered()
def export_letters(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where the files go; it is made if need be.")],
    *,
    where: LetterFilter,
    status: Status = "open",
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Write each dead letter as a JSON file of its own. Payloads are written as they are."""
    with opened(store, app) as views:
        count, unreadable = views.letters(Plain()).exported(folder, **_named(views, where, status))
    if as_json:
        print_json({"exported": count, "unreadable": unreadable, "folder": folder})
    else:
        say(f"Wrote {count:,} to {folder}.")
    if unreadable:
        hint(
            f"{unreadable:,} of them cannot be read: their payloads are written as they are stored, in hexadecimal, and "
            "metadata.outlast.unreadable says why."
        )
        raise typer.Exit(Code.PARTIAL)


@dlq.command("import")
def import_letters(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder with one JSON file for each dead letter.")],
    *,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Take in a folder of dead letters; those that are here already are left as they are."""
    with opened(store, app, make=True) as views:
        added, known = views.letters().import_(folder)
        into = views.store.app
    if as_json:
        print_json({"imported": added, "known": known, "app": into})
    else:
        say(f"Imported {added:,} into the app {into}; {known:,} were there already.")


@dlq.command("stats")
def letter_stats(*, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False) -> None:
    """Count dead letters by pipeline, stage and status."""
    with opened(store, app) as views:
        stats = views.letters().stats()
    print_found(
        stats,
        slots_document,
        lambda stat: (stat.pipeline, stat.stage, stat.status, stat.count, stat.oldest_at, stat.newest_at),
        as_json=as_json,
        none=_none(),
        headings=("pipeline", "stage", "status", "count", "oldest", "newest"),
        below=("oldest", "newest", "stage"),
    )


# --- in common ----------------------------------------------------------------------------------------------------------


def _meant(ids: list[str] | None, where: LetterFilter) -> None:
    if not ids and not chooses(where):
        options = ", ".join(field.option for name, field in FIELDS.items() if name != "status")
        refuse(f"expected ids, or one of {options}: which dead letters are meant?")


def _none(status: str = "open") -> str:
    return "No dead letters." if status == "open" else f"No dead letters that are {status}."


_MOST_LOOKED_AT = 1000  # letters that a filter chooses
#: What letters of flows tell of.
_OF_FLOWS = {"step": "step", "compensation": "undoing"}


def _stage_of(letter: DeadLetter) -> str:
    if letter.kind == "compensation":
        return f"{letter.stage} (undoing)"
    if letter.kind == "job":
        return "(flow)" if served_kind(letter.stage) == FLOW else "(job)"
    return letter.stage


def _ways_of_flow(views: Views, letter: DeadLetter, stored: Sequence[str]) -> list[str]:
    """
    What does the work again that the dead letter of a step, or of a row of one, tells of; and what puts that of a
    compensation away. Nothing for other letters.
    """
    if letter.kind not in _OF_FLOWS:
        found = views.flows.rows_of(letter)
        if found is None:
            return []
        record, step = found
        if record.status == "cancelled":
            return _ways_of_cancelled(views, letter, record, stored)
        if record.status == "completed":  # which accepts rows that are lost
            again = shlex.join(["outlast", "resume", *views.called(record), "--from-step", step, *stored])
            return [f"Once the cause is gone, its flow does all rows again, and what needs them: {again}"]
        if step in views.flows.report(record).doubted:
            settle = shlex.join(["outlast", "dlq", "resolve", letter.id[:12], *stored])
            return [f"Look first whether it was done, and settle it: {settle} --as done|not-done"]
        again = shlex.join(["outlast", "resume", *views.called(record), *stored])
        return [f"Once the cause is gone, its flow runs the open rows, and what needs them: {again}"]
    run = views.flows.run_of(letter)
    called = (letter.item_key,) if run is None else views.called(run)
    resume = shlex.join(["outlast", "resume", *called, *stored])
    undo = shlex.join(["outlast", "jobs", "compensate", letter.item_key, *stored])
    if run is not None and run.status == "cancelled":
        return _ways_of_cancelled(views, letter, run, stored)
    if letter.kind == "step" and letter.stop_reason == "ambiguous":
        again = shlex.join(["outlast", "resume", *called, "--from-step", letter.stage, *stored])
        return [f"Look first whether it was done. If it was not, its run does it again: {again}"]
    if letter.kind == "step":
        return [f"Once the cause is gone, its run goes on with it: {resume}"]
    archive = shlex.join(["outlast", "dlq", "archive", letter.id[:12], "--reason", "undone by hand", *stored])
    again = f"Its run tries that first when it goes on: {resume}"
    if letter.run_id is None:
        again = f"Once the cause is gone, a worker tries it again: {undo}"
    return [again, f"If it was undone by hand: {archive}"]


def _ways_of_doubt(views: Views, job: JobRow, stored: Sequence[str]) -> list[str]:
    """What does a step again of a flow whose job has failed in it and may have done it; nothing for other jobs."""
    flow = views.flows.of_job(job)
    if flow is None or flow.status not in {"failed", "partial_success"}:
        return []
    return [f"{what} {way}" for what, way in flow.doubt(stored)]


def _when_undone(views: Views, letter: DeadLetter) -> str:
    """From when on something that could not be undone counts as undone, if its letter is put away."""
    if letter.run_id is None:
        return "When its job goes on,"
    run = views.flows.run_of(letter)
    return "Its run was cancelled:" if run is not None and run.status == "cancelled" else "When its run goes on,"


def _ways_of_cancelled(views: Views, letter: DeadLetter, run: RunRecord, stored: Sequence[str]) -> list[str]:
    """The same of a run that was cancelled: it does not go on, and can only be undone."""
    because = "undone by hand" if letter.kind == "compensation" else "its run was cancelled"
    archive = shlex.join(["outlast", "dlq", "archive", letter.id[:12], "--reason", because, *stored])
    if letter.kind == "compensation":
        undo = shlex.join(["outlast", "cancel", *views.called(run), "--compensate", *stored])
        return [f"Once the cause is gone, try again to undo it: {undo}", f"If it was undone by hand: {archive}"]
    return [
        f"Its run {run.run_key} was cancelled and does not go on: another run, with another --run-key, does the work.",
        f"To put the letter away: {archive}",
    ]


def _refuse_flows(views: Views, known: list[str] | None, where: LetterFilter, store: str | None) -> None:
    """Letters of steps and of their rows are not sent again by themselves: their run goes on."""
    letters, place = views.letters(), stored_at(views, store)
    meant = [letters.show(one) for one in known] if known else [*islice(letters.find(**where), _MOST_LOOKED_AT)]
    found = [
        (letter, lines)
        for letter in meant
        if letter.status == "open" and (lines := _ways_of_flow(views, letter, place))
    ]
    ways = [lines for _, lines in found]
    if not ways:
        name = where.get("pipeline")
        below = {
            one.pipeline for one in letters.stats() if one.status == "open" and one.pipeline.startswith(f"{name}.")
        }
        if name is not None and not meant and below:
            rows = (shlex.join(["outlast", "dlq", "list", "--pipeline", one, *place]) for one in sorted(below))
            refuse(f"No open dead letter is of {name} itself. Rows of its steps have them:", *rows)
        return
    kinds = Counter("undo" if letter.kind == "compensation" else letter.kind for letter, _ in found)
    these = " and ".join(
        counted(kinds[kind], f"dead letter is {one}", f"dead letters are {several}")
        for kind, one, several in (
            ("step", "of a step of a flow", "of steps of flows"),
            ("item", "of a row of a flow's step", "of rows of a flow's steps"),
            ("undo", "of what undoes a step or a job", "of what undoes steps or jobs"),
        )
        if kinds[kind]
    )
    refuse(
        f"expected dead letters of items or jobs, but {these}.",
        *islice(dict.fromkeys(line for lines in ways for line in lines), 20),
    )


def _code(views: Views, letter: DeadLetter) -> list[str]:
    """What a command needs to send it again; a worker has the code of a job."""
    return [] if is_of_job(letter) or letter.kind in _OF_FLOWS else views.code_option(letter.pipeline)


def _tell_no_job(letter: DeadLetter, store: str | None) -> None:
    """Why a letter of a job cannot be sent again from here, and what does the work all the same."""
    where = [] if store is None else ["--store", str(Address(store))]
    # The code says of which app it is.
    command = ["outlast", "enqueue", f"FILE:{letter.pipeline}", "--json-args", "JSON", *where]
    hint(
        "It cannot be sent again: its job is not in this store. The letter was imported, or the job is not kept any more."
    )
    hint(f"Enqueue it anew, with its arguments: {shlex.join(command)}")


def _is_of_jobs(letters: DeadLetters, known: list[str] | None, where: LetterFilter) -> bool:
    """Whether the first letter that is meant is one of a job."""
    first = letters.show(known[0]) if known else next(iter(letters.find(**where)), None)
    return first is not None and is_of_job(first)


def _replay_jobs(
    views: Views,
    known: list[str] | None,
    where: LetterFilter,
    canary: int | None,
    only_for_runs: Mapping[str, object],
    *,
    from_start: bool,
    store: str | None,
    as_json: bool,
) -> None:
    from outlast.cli.running import none_replayed
    from outlast.deadletters import NothingToReplay

    given = [name for name, value in only_for_runs.items() if value]
    if given:
        refuse(f"expected no {' or '.join(given)} for dead letters of jobs: they are put back into the queue.")
    try:
        done = views.letters().replay(ids=known, canary=canary, from_start=from_start, check=False, **where)
    except NothingToReplay:
        none_replayed(as_json=as_json)
        return
    if as_json:
        print_json({"requeued": list(done.requeued), "left": dict(done.left), "why": done.why, "canary": done.canary})
    else:
        say(done.why[0].upper() + done.why[1:])
        for letter_id, reason in islice(done.left.items(), 20):
            say(f"  {letter_id[:12]}  {reason}")
        if done.requeued and views.jobs.idle():
            hint(no_worker(stored_at(views, store)))
    if done.canary == "failed":
        raise typer.Exit(Code.FAILED)
    if done.left or done.canary == "unknown":
        raise typer.Exit(Code.PARTIAL)


def _owner(letters: DeadLetters, known: list[str] | None, where: LetterFilter) -> str | None:
    """The pipeline of the first letter that is meant."""
    if known:
        return letters.show(known[0]).pipeline
    return next((letter.pipeline for letter in letters.find(**where)), None)


def _at(instant: Any) -> str:
    """An instant that a letter's metadata tell; foreign ones may hold anything."""
    try:
        return f"{moment(datetime.fromisoformat(instant))} UTC"
    except (TypeError, ValueError):
        return str(instant)
