"""
``outlast dlq``: dead letters on the command line. Payloads are shown masked; ``--reveal`` prints them as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlast.cli.output import (  # noqa: TC001 - typer reads the annotations
    AppName,
    AsJson,
    Limit,
    Progress,
    StoreUrl,
    hint,
    moment,
    print_json,
    print_table,
    refuse,
    say,
)
from outlast.cli.stores import dead_letters, opened
from outlast.errors import ConfigurationError
from outlast.redact import mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.deadletters import DeadLetter, DeadLetters

dlq = typer.Typer(
    name="dlq", help="Dead letters: what failed for good, and how to send it again.", no_args_is_help=True
)

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Dead letters, by id or the beginning of one.")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The dead letter, by id or the beginning of one.")]
Pipeline = Annotated[str | None, typer.Option("--pipeline", help="Only of this pipeline.")]
Stage = Annotated[str | None, typer.Option("--stage", help="Only of this stage.")]
Group = Annotated[str | None, typer.Option("--group", help="Only of this failure group.")]
Status = Annotated[str, typer.Option("--status", help="open, replaying, resolved, archived or all.")]
Reveal = Annotated[bool, typer.Option("--reveal", help="Print payloads as they are.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it stays on record.")]
Canary = Annotated[
    int | None, typer.Option("--canary", min=1, help="So many go first; the others only if all of those succeed.")
]
Output = Annotated[
    str | None,
    typer.Option("--output", metavar="FILE", help="A new file for the outputs. Default: the store keeps them."),
]
FromStart = Annotated[bool, typer.Option("--from-start", help="From the first stage instead of the one that failed.")]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="app.py:reviews",
        help="The pipeline's code. Default: where `outlast run` found it last.",
        show_default=False,
    ),
]


@dlq.command("list")
def list_letters(
    *,
    pipeline: Pipeline = None,
    stage: Stage = None,
    group: Group = None,
    status: Status = "open",
    run: Annotated[str | None, typer.Option("--run", help="Only of the run with this id.")] = None,
    text: Annotated[
        str | None, typer.Option("--text", help="Only with this text in the error or the item's key.")
    ] = None,
    limit: Limit = 50,
    reveal: Reveal = False,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the newest first."""
    with opened(store, app) as kept:
        letters = dead_letters(kept)
        found = letters.find(pipeline=pipeline, stage=stage, group=group, status=_status(status), run=run, text=text)
        shown = list(_first(found, limit))
        if as_json:
            print_json([_fields(letter, reveal=reveal) for letter in shown])
            return
        if not shown:
            say("No dead letters." if status == "open" else f"No dead letters that are {status}.")
            return
        print_table(
            ("id", "pipeline", "stage", "item", "status", "attempts", "failed", "error"),
            [
                (
                    letter.id[:12],
                    letter.pipeline,
                    letter.stage,
                    _short(letter.item_key, 20),
                    letter.status,
                    letter.attempts,
                    letter.last_attempt_at,
                    f"{letter.error_class}: {letter.error}",
                )
                for letter in shown
            ],
            fold="error",
            drop=("status", "attempts", "failed", "pipeline", "item"),
        )
        if len(shown) == limit:
            hint(f"The newest {limit:,}. More: --limit; as a few problems: outlast dlq groups")


@dlq.command("groups")
def list_groups(
    *,
    pipeline: Pipeline = None,
    run: Annotated[str | None, typer.Option("--run", help="Only of the run with this id.")] = None,
    status: Status = "open",
    limit: Limit = 50,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters as problems: one line for all that failed the same way."""
    from outlast.cli.report import group_rows

    with opened(store, app) as kept:
        groups = dead_letters(kept).groups(pipeline=pipeline, run=run, status=_status(status), limit=limit)
    if as_json:
        print_json([{name: getattr(group, name) for name in group.__slots__} for group in groups])
        return
    if not groups:
        say("No dead letters." if status == "open" else f"No dead letters that are {status}.")
        return
    print_table(
        ("count", "share", "group", "stage", "error class", "last seen", "message"),
        group_rows(groups),
        fold="message",
        drop=("last seen", "share", "error class"),
    )


@dlq.command("show")
def show_letter(
    letter_id: Id, *, reveal: Reveal = False, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False
) -> None:
    """Show one dead letter: its error, its attempts, its payload, and what was done with it."""
    with opened(store, app) as kept:
        letters = dead_letters(kept)
        letter = letters.show(_resolved(letters, letter_id))
        row = kept.letter(letter.id)
        run = None if letter.run_id is None else kept.run(letter.run_id)
        seq = None if row is None else row.seq
        attempts = kept.attempts(run.number, seq) if run is not None and seq is not None else []
    if as_json:
        history = [attempt._asdict() for attempt in attempts]
        print_json(_fields(letter, reveal=reveal) | {"metadata": _notes(letter, reveal=reveal), "history": history})
        return
    say(f"dead letter  {letter.id}  ({letter.status})")
    say(f"item         {letter.item_key} of {letter.pipeline}, failed at {letter.stage}")
    say(f"error        {letter.error_type} ({letter.error_class}): {letter.error}")
    say(f"group        {letter.group}")
    say(
        f"attempts     {letter.attempts}, first {moment(letter.first_failed_at)}, last {moment(letter.last_attempt_at)} UTC"
    )
    say(f"run          {letter.run_id or '-'}")
    if letter.replays:
        say(
            f"replays      {letter.replays}, none of them successful"
            if letter.status == "open"
            else f"replays      {letter.replays}"
        )
    for edit in letter.metadata.get("edits", ()):
        say(f"edited       {edit.get('at', '')[:19]}: {edit.get('reason', '')}")
    if letter.reason:
        say(f"{letter.status:<12} {letter.reason}")
    for attempt in attempts:
        what = "succeeded" if attempt.outcome == "success" else f"{attempt.error_type}: {attempt.error}"
        say(f"  attempt {attempt.number} at stage {attempt.stage + 1}: {what}")
    if letter.unstored is not None:
        begins = "cannot be replayed" if letter.begins_at is None else f"a replay begins at {letter.begins_at}"
        say(f"input        not stored: {letter.unstored}; {begins}")
    if letter.begins_at is not None:
        whose = "" if letter.begins_at == letter.stage else f", the input of {letter.begins_at}"
        say(f"payload{whose}" if reveal else f"payload{whose} (masked; --reveal prints it as it is)")
        say(_indented(letter.payload, reveal=reveal))
    if letter.status == "open" and letter.begins_at is None:
        hint(f"Give it an input: outlast dlq edit {letter.id[:12]} --payload JSON --reason ...")
    elif letter.status == "open":
        hint(f"Send it again: outlast dlq replay {letter.id[:12]}")


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
    except ValueError as wrong:
        refuse(f"expected the payload to be JSON: {wrong}.")
    with opened(store, app) as kept:
        letters = dead_letters(kept)
        letter = letters.edit(_resolved(letters, letter_id), value, reason=reason)
    if as_json:
        print_json(_fields(letter, reveal=False))
        return
    say(f"Edited {letter.id}.")
    hint(f"Send it again: outlast dlq replay {letter.id[:12]}")


@dlq.command("replay")
def replay_letters(
    ids: Ids = None,
    *,
    group: Group = None,
    pipeline: Pipeline = None,
    stage: Stage = None,
    canary: Canary = None,
    from_start: FromStart = False,
    output: Output = None,
    target: Target = None,
    progress: Progress = None,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Do the work of dead letters again, from the stage that failed. Nothing is lost if it fails again or is interrupted."""
    from outlast.cli.running import replay

    if not ids and group is None and pipeline is None and stage is None:
        refuse("expected ids, --group, --pipeline or --stage: which dead letters are meant?")
    with opened(store, app) as kept:
        letters = dead_letters(kept)
        known = None if not ids else [_resolved(letters, letter_id) for letter_id in ids]
        where = {"pipeline": pipeline, "stage": stage, "group": group, "status": "open"}
        owner = pipeline or _owner(letters, known, where)
    replay(
        target,
        store=store,
        app=app,
        owner=owner,
        as_json=as_json,
        ids=known,
        group=group,
        stage=stage,
        canary=canary,
        from_start=from_start,
        sink=output,
        progress=progress,
    )


@dlq.command("reprocess")
def reprocess_letters(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The pipeline: app.py:reviews or shop.pipelines:reviews.")
    ],
    *,
    stage: Stage = None,
    canary: Canary = None,
    from_start: FromStart = False,
    output: Output = None,
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
        stage=stage,
        canary=canary,
        from_start=from_start,
        sink=output,
        progress=progress,
    )


@dlq.command("archive")
def archive_letters(
    ids: Ids = None,
    *,
    group: Group = None,
    pipeline: Pipeline = None,
    stage: Stage = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", help="Only those older than so many days.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Open archived ones again.")] = False,
    reason: Reason,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Put dead letters away: they stay on record, and are no more counted or replayed."""
    if not ids and group is None and pipeline is None and stage is None and older_than is None:
        refuse("expected ids, --group, --pipeline, --stage or --older-than: which dead letters are meant?")
    with opened(store, app) as kept:
        letters = dead_letters(kept)
        known = None if not ids else [_resolved(letters, letter_id) for letter_id in ids]
        if undo:
            count = letters.unarchive(ids=known or [], reason=reason)
        elif older_than is not None and known is None and group is None and pipeline is None and stage is None:
            count = letters.auto_archive(older_than_days=older_than)
        else:
            count = letters.archive(ids=known, group=group, pipeline=pipeline, stage=stage, reason=reason)
    if as_json:
        print_json({"opened" if undo else "archived": count})
    else:
        say(f"{'Opened' if undo else 'Archived'} {count:,}.")


@dlq.command("export")
def export_letters(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where the files go; it is made if need be.")],
    *,
    pipeline: Pipeline = None,
    status: Status = "open",
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Write each dead letter as a JSON file of its own. Payloads are written as they are."""
    with opened(store, app) as kept:
        count = dead_letters(kept).export(folder, status=_status(status), pipeline=pipeline)
    if as_json:
        print_json({"exported": count, "folder": folder})
    else:
        say(f"Wrote {count:,} to {folder}.")


@dlq.command("import")
def import_letters(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder with one JSON file for each dead letter.")],
    *,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Take in a folder of dead letters; those that are here already are left as they are."""
    with opened(store, app, make=True) as kept:
        added, known = dead_letters(kept).import_(folder)
    if as_json:
        print_json({"imported": added, "known": known})
    else:
        say(f"Took in {added:,}; {known:,} were here already.")


@dlq.command("stats")
def letter_stats(*, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False) -> None:
    """Count dead letters by pipeline, stage and status."""
    with opened(store, app) as kept:
        stats = dead_letters(kept).stats()
    if as_json:
        print_json([{name: getattr(stat, name) for name in stat.__slots__} for stat in stats])
        return
    if not stats:
        say("No dead letters.")
        return
    rows = [(stat.pipeline, stat.stage, stat.status, stat.count, stat.oldest_at, stat.newest_at) for stat in stats]
    print_table(("pipeline", "stage", "status", "count", "oldest", "newest"), rows)


# --- in common ----------------------------------------------------------------------------------------------------------


def _status(status: str) -> str | None:
    return None if status == "all" else status


def _first(letters: Iterator[DeadLetter], limit: int) -> Iterator[DeadLetter]:
    for _, letter in zip(range(limit), letters, strict=False):
        yield letter


def _resolved(letters: DeadLetters, beginning: str) -> str:
    """The id that begins so; a person does not type 32 digits."""
    plain = beginning.replace("-", "").lower()
    if len(plain) >= 32:
        return plain
    if len(plain) < 4 or not set(plain) <= set("0123456789abcdef"):
        message = f"expected the id of a dead letter, or at least its first 4 digits, got: {beginning!r}."
        raise ConfigurationError(message)
    found = [letter_id for letter_id in letters.ids() if letter_id.startswith(plain)]
    if len(found) == 1:
        return found[0]
    if not found:
        message = f"Entry not found: {beginning}"
        raise ConfigurationError(message)
    message = f"expected the id of one dead letter, but {len(found)} begin with {beginning!r}: {', '.join(found[:5])}."
    raise ConfigurationError(message)


def _owner(letters: DeadLetters, known: list[str] | None, where: dict[str, Any]) -> str | None:
    """The pipeline of the first letter that is meant."""
    if known:
        return letters.show(known[0]).pipeline
    return next((letter.pipeline for letter in letters.find(**where)), None)


def _fields(letter: DeadLetter, *, reveal: bool) -> dict[str, Any]:
    fields = {name: getattr(letter, name) for name in letter.__slots__ if name not in {"payload", "metadata"}}
    return fields | {"payload": letter.payload if reveal else _masked(letter.payload)}


def _notes(letter: DeadLetter, *, reveal: bool) -> dict[str, Any]:
    """What is on record beside the payload; what the item was at first is a payload too."""
    return {name: value for name, value in letter.metadata.items() if reveal or name not in {"source", "earlier"}}


def _masked(payload: Any) -> Any:
    """Without what looks like a secret; as text, where taking it out leaves no JSON."""
    text = mask(json.dumps(payload, ensure_ascii=False, default=str))
    try:
        return json.loads(text)
    except ValueError:
        return text


def _indented(payload: Any, *, reveal: bool) -> str:
    text = json.dumps(payload, indent=2, ensure_ascii=False, default=str)
    return text if reveal else mask(text)


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
