"""
``outlast run``, ``resume`` and what ``dlq replay`` does: a run with its display, its report and its exit code.
"""

from __future__ import annotations

import logging
import os
import shlex
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlast.cli.options import AppName, AsJson, ConnectionsFile, OfPipeline, Params, Progress, Root, Run, StoreUrl  # noqa: TC001 - typer reads the annotations
from outlast.cli.output import Code, hint, print_json, refuse, refuse_options, say, with_signal
from outlast.cli.stores import opened, stored_at
from outlast.cli.targets import PIPELINE, is_flow, loaded
from outlast.errors import ConfigurationError
from outlast.kernel.redact import mask
from outlast.kernel.wording import counted
from outlast.pipeline.errors import FailureBudgetExceeded, RunFailed, result_of
from outlast.report.views import Views, run_document, slots_document
from outlast.store.filters import FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outlast.components import Files, Table
    from outlast.pipeline import Pipeline, RunResult
    from outlast.pipeline.view import RunView
    from outlast.store.records import RunRecord

Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="PATH",
        help="Files of JSON Lines (.jsonl, .ndjson, .json), CSV or TSV, also with .gz or .zst behind it, or Parquet (.parquet, .pq); "
        "a pattern such as 'in/*.jsonl'. May be given several times.",
    ),
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        "--delimiter", metavar="CHARACTER", help="What stands between the cells of CSV files. Default: a comma."
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option("--encoding", metavar="NAME", help="How CSV files are encoded, such as cp1252. Default: UTF-8."),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="PATH",
        help="Where to put what the items become: a file of JSON Lines (.jsonl, .ndjson), CSV or TSV, also with .gz or .zst behind it, or Parquet "
        "(.parquet, .pq); or a table, as in sqlite:///shop.db#orders, with the columns of its key if rows are to be updated: #orders:id. "
        "Default: the store.",
    ),
]
ItemKey = Annotated[
    str | None,
    typer.Option("--item-key", metavar="FIELD", help="The field that identifies an item. Default: its content."),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with 3 if dead letters are left, also when the run completed.")
]
FromStep = Annotated[
    str | None,
    typer.Option(
        "--from-step",
        metavar="STEP",
        help="Of a flow: do this step again and all that need it, after undoing what can be undone of them.",
        show_default=False,
    ),
]
_OF_ITEMS = "which are for a pipeline over items, in Python: a flow says itself what it reads and writes."
_OF_FLOWS = "which are for a flow: a pipeline file (.yaml) or a manifest (.json)."


def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A pipeline file (movies.yaml), a manifest of one (movies.json), or a pipeline over items: app.py:reviews or "
            "shop.pipelines:reviews.",
        ),
    ],
    *,
    source: Input = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    sink: Output = None,
    run_key: Annotated[
        str | None,
        typer.Option("--run-key", metavar="KEY", help="The run's name; the same one resumes it. Default: a new one."),
    ] = None,
    item_key: ItemKey = None,
    on_item_error: Annotated[
        str | None,
        typer.Option("--on-item-error", help="What becomes of an item that fails: dlq (default), collect or stop."),
    ] = None,
    on_change: Annotated[
        str,
        typer.Option(
            "--on-change", help="When going on with stages or steps that have changed since: stop, keep or redo."
        ),
    ] = "stop",
    breaker_rounds: Annotated[
        int | None,
        typer.Option(
            "--breaker-rounds",
            metavar="N",
            min=1,
            help="Rounds of failed probes of a breaker that stop the run. Default: 3.",
            show_default=False,
        ),
    ] = None,
    param: Params = None,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME", help="Of a flow: the profile to use.", show_default=False)
    ] = None,
    root: Root = None,
    connections: ConnectionsFile = None,
    from_step: FromStep = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Of a flow: say what would be done, and do nothing.")
    ] = False,
    progress: Progress = None,
    strict: Strict = False,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Run a flow, or a pipeline over items. Ctrl-C leaves a run that you can resume."""
    problems: list[str] = []
    if on_item_error not in {None, "dlq", "collect", "stop"}:
        problems.append(f"expected --on-item-error to be dlq, collect or stop, got: {on_item_error!r}.")
    if on_change not in {"stop", "keep", "redo"}:
        problems.append(f"expected --on-change to be stop, keep or redo, got: {on_change!r}.")
    if run_key is not None and not run_key.strip():
        problems.append("expected --run-key to be a name, got: an empty one.")
    of_items = {
        "--input": source,
        "--delimiter": delimiter,
        "--encoding": encoding,
        "--output": sink,
        "--item-key": item_key,
        "--on-item-error": on_item_error,
        "--breaker-rounds": breaker_rounds,
    }
    of_flows = {
        "--param": param,
        "--profile": profile,
        "--root": root,
        "--connections": connections,
        "--from-step": from_step,
        "--dry-run": dry_run,
        "--app": app,
    }
    if is_flow(target):
        from outlast.cli.flows import Wishes, run_flow

        problems += refuse_options(target, of_items, _OF_ITEMS)
        if problems:
            refuse(*problems)
        run_flow(
            target,
            run_key=run_key,
            param=param,
            profile=profile,
            root=root,
            connections=connections,
            from_step=from_step,
            on_change=on_change,
            dry_run=dry_run,
            app=app,
            wishes=Wishes(progress=progress, strict=strict, store=store, as_json=as_json),
        )
        return
    problems += refuse_options(target, of_flows, _OF_FLOWS)
    on_item_error = on_item_error or "dlq"
    read = {"input": source, "delimiter": delimiter, "encoding": encoding}
    problems += _wrong_input(read) + _wrong_output(sink)
    pipeline = loaded(target, PIPELINE, store, problems)
    if problems or pipeline is None:
        refuse(*problems)
    command = {
        "target": target,
        **read,
        "output": sink,
        "run_key": run_key,
        "item_key": item_key,
        "on_item_error": on_item_error,
        "on_change": on_change,
        "folder": str(Path.cwd()),
        **({} if breaker_rounds is None else {"breaker_rounds": breaker_rounds}),
    }
    _started(pipeline, command, progress=progress, strict=strict, store=store, as_json=as_json)


def resume(
    wanted: Run,
    *,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="app.py:reviews",
            help="The pipeline's code. Default: as the run was started.",
            show_default=False,
        ),
    ] = None,
    source: Input = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    sink: Output = None,
    item_key: Annotated[
        str | None,
        typer.Option(
            "--item-key",
            metavar="FIELD",
            help="The field that identifies an item. Default: as the run was started.",
            show_default=False,
        ),
    ] = None,
    on_change: Annotated[
        str | None,
        typer.Option("--on-change", help="With stages or steps that have changed since: stop, keep or redo."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            metavar="PATH",
            help="Of a flow: its pipeline file. Default: the one that it was started with, as it is now.",
            show_default=False,
        ),
    ] = None,
    as_recorded: Annotated[
        bool,
        typer.Option("--recorded", help="Of a flow: go on with the steps as they are on record, without the file."),
    ] = False,
    param: Params = None,
    root: Root = None,
    connections: ConnectionsFile = None,
    from_step: FromStep = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    pipeline_name: OfPipeline = None,
    progress: Progress = None,
    strict: Strict = False,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Continue a run. What is finished is not done again."""
    if on_change not in {None, "stop", "keep", "redo"}:
        refuse(f"expected --on-change to be stop, keep or redo, got: {on_change!r}.")
    with opened(store, app) as views:
        record = views.run(wanted, pipeline_name)
        recorded = views.command(record)
        owner = views.app
        if record.kind != "flow":
            from outlast.cli.runs import refuse_below_flow

            refuse_below_flow(views, record, "resume", stored_at(views, store))
    of_items = {
        "--target": target,
        "--input": source,
        "--delimiter": delimiter,
        "--encoding": encoding,
        "--output": sink,
        "--item-key": item_key,
    }
    of_flows = {
        "--file": file,
        "--recorded": as_recorded,
        "--param": param,
        "--root": root,
        "--connections": connections,
        "--from-step": from_step,
    }
    if record.kind == "flow":
        from outlast.cli.flows import Wishes, resume_flow

        if problems := refuse_options(f"{record.run_key}, a run of a flow", of_items, _OF_ITEMS):
            refuse(*problems)
        resume_flow(
            record,
            app=owner,
            file=file,
            recorded=as_recorded,
            param=param,
            root=root,
            connections=connections,
            from_step=from_step,
            on_change=on_change,
            dry_run=dry_run,
            wishes=Wishes(progress=progress, strict=strict, store=store, as_json=as_json),
        )
        return
    if problems := refuse_options(f"{record.run_key}, a run over items", of_flows, _OF_FLOWS):
        refuse(*problems)
    given: dict[str, Any] = {
        "target": target,
        "input": source or None,
        "delimiter": delimiter,
        "encoding": encoding,
        "output": sink,
        "item_key": item_key,
        "on_change": on_change,
    }
    command: dict[str, Any] = {
        **recorded,
        "run_key": record.run_key,
        **{name: value for name, value in given.items() if value is not None},
    }
    replays = record.kind == "replay"
    if replays and not (source is None and on_change is None and item_key is None):
        refuse(
            f"{record.run_key} is a replay of dead letters: --input, --item-key and --on-change mean nothing for it."
        )
    wanted_too = ("target",) if replays else ("target", "input")
    missing = [f"--{name}" for name in wanted_too if not command.get(name)]
    if missing:
        refuse(
            f"{record.run_key} of {record.pipeline} was not started by a command: name {' and '.join(missing)} too (and --output and --item-key, if it has them), or start its program again."
        )
    folder = command.get("folder")
    if folder and folder != str(Path.cwd()) and not given["target"]:
        if not Path(folder).is_dir():
            refuse(
                f"expected the folder in which the run was started to be there: {folder}. Name --target, --input and --output."
            )
        os.chdir(folder)
    if replays and not dry_run:
        which = {**command.get("replay", {}), "run_key": record.run_key}
        replay(
            command["target"],
            store=store,
            app=app,
            owner=record.pipeline,
            as_json=as_json,
            progress=progress,
            sink=command.get("output"),
            strict=strict,
            target_named=bool(target or command.get("target_named")),
            **which,
        )
        return
    problems = [] if replays else _wrong_input(command)
    problems += _wrong_output(command.get("output"))
    pipeline = loaded(command["target"], PIPELINE, store, problems)
    if pipeline is not None and pipeline.name != record.pipeline:
        problems.append(f"expected the pipeline {record.pipeline!r}, but {command['target']} is {pipeline.name!r}.")
    if problems or pipeline is None:
        refuse(*problems)
    if dry_run:
        pipeline.check_resume(
            run_key=record.run_key,
            kind="replay" if replays else "run",
            item_key=command.get("item_key"),
            sink=_sink(command.get("output"), pipeline, record.run_key),
            on_change=command.get("on_change") or "stop",
        )
        _print_open_items(record, as_json=as_json)
        return
    _started(pipeline, command, progress=progress, strict=strict, store=store, as_json=as_json)


def _print_open_items(record: RunRecord, *, as_json: bool) -> None:
    """What a resume of a run over items would do, by its counts."""
    counts = record.counts
    finished = counts.total - counts.pending
    if as_json:
        found = {"dry_run": True, "pipeline": record.pipeline, "run_key": record.run_key, "kept": finished}
        print_json(found | {"pending": counts.pending, "source_exhausted": record.source_exhausted, "exit_code": 0})
        return
    rest = "" if record.source_exhausted else ", and the rest of its source"
    say(f"{record.pipeline}  {record.run_key}  dry run")
    say(f"Nothing was run: it would keep {counted(finished, 'finished item')} and run {counts.pending:,} open{rest}.")
    if counts.dlq:
        hint(f"It keeps {counted(counts.dlq, 'dead letter')}: outlast dlq replay runs those again.")


def replay(
    target: str | None,
    *,
    store: str | None,
    owner: str | None,
    as_json: bool,
    app: str | None = None,
    progress: bool | None = None,
    sink: str | None = None,
    strict: bool = False,
    run_key: str | None = None,
    target_named: bool | None = None,
    **which: Any,
) -> None:
    """
    Replay dead letters with the pipeline's own code; the same key goes on with the same replay. A `run` is one of the
    pipeline's own app, named as a person does.
    """
    from outlast.cli.watch import watching, way_to_show

    if target_named is None:
        target_named = target is not None
    if target is None:
        target = _last_target(store, app, owner)
    problems: list[str] = []
    pipeline = loaded(target, PIPELINE, store, problems)
    if pipeline is not None and owner is not None and pipeline.name != owner:
        problems.append(f"expected the pipeline {owner!r}, but {target} is {pipeline.name!r}.")
    problems += _wrong_output(sink)
    if problems or pipeline is None:
        refuse(*problems)
    pipeline._check_stage(which.get("stage"))  # noqa: SLF001 - as Pipeline.reprocess does
    if which.get("run") is not None:
        which["run"] = Views(pipeline.app.store).run(which["run"]).id
    command = {
        "target": target,
        "target_named": target_named,
        "output": sink,
        "folder": str(Path.cwd()),
        "replay": which,
    }
    given = _sink(sink, pipeline)

    def started(view: RunView) -> None:
        _record(Views(pipeline.app.store), view.id, command | {"run_key": view.run_key})

    how = None if as_json else way_to_show(wanted=progress)
    with waits_said(), watching(how, started=started, of=pipeline) as watch:
        result, signalled = ended(
            lambda: pipeline.app.dead_letters.replay(
                pipeline=pipeline.name, sink=given, run_key=run_key, check=False, watch=watch, **which
            )
        )
    if not result.id:
        none_replayed(as_json=as_json)
        return
    _tell(pipeline, result, store=store, strict=strict, as_json=as_json, signalled=signalled)


def none_replayed(*, as_json: bool) -> None:
    """Say that there was nothing to do: no mistake, as with an archive."""
    if as_json:
        print_json({"replayed": 0, "exit_code": int(Code.COMPLETED)})
    else:
        say("Replayed 0: no open dead letter of this app fits.")


# --- before it starts -----------------------------------------------------------------------------------------------------


def _files(command: dict[str, Any]) -> Files:
    """What is to be read; a run of an earlier version has one path on record, and nothing else."""
    from outlast.components import Files

    paths = command["input"]
    paths = [paths] if isinstance(paths, str) else paths
    delimiter = command.get("delimiter")  # a tab is hard to type
    return Files(*paths, delimiter="\t" if delimiter == "\\t" else delimiter, encoding=command.get("encoding"))


def _wrong_input(command: dict[str, Any]) -> list[str]:
    if not command["input"]:
        return ["expected --input: a JSONL, CSV or Parquet file, or a pattern such as 'in/*.jsonl'."]
    try:
        _files(command).found()
    except ConfigurationError as wrong:
        given = command["input"]
        absolute = all(Path(path).is_absolute() for path in ([given] if isinstance(given, str) else given))
        where = "" if absolute else f" This is {Path.cwd()}."
        return [f"--input: {problem}{where}" for problem in wrong.problems]
    return []


def _table(output: str | None) -> Table | None:
    """
    The table that --output names, as in sqlite:///shop.db#orders or #orders:id,day with its key; None if it is a file.
    """
    from outlast.components import Table
    from outlast.components.registry import find

    if output is None or "://" not in output or find("sinks", output) is not None:
        return None
    target, mark, place = output.rpartition("#")
    name, _, key = place.partition(":")
    if not mark or not name:
        message = f"expected a table behind the address of its database, as in sqlite:///shop.db#orders, got: {mask(output)!r}."
        raise ConfigurationError(message)
    return Table(target, name, key=[column for column in key.split(",") if column])


def _sink(output: str | None, pipeline: Pipeline[Any, Any], run_key: str | None = None) -> str | Table | None:
    """
    What --output names. A table whose key is not said has the one that is on record: of this run, or of the runs that a
    replay comes home to.
    """
    from outlast.pipeline.replays import as_recorded

    table = _table(output)
    if table is None or table.key:
        return table or output
    return as_recorded(pipeline.app.store, pipeline.name, table, run_key)


def _on_record(output: str | None) -> str | None:
    """What --output was, without an address that has a password: that is given again."""
    from outlast.pipeline.replays import tellable

    table = _table(output)
    return output if table is None or tellable(str(table.target)) else None


def _wrong_output(sink: str | None) -> list[str]:
    from outlast.components import open_sink
    from outlast.components.registry import is_address

    if sink is None:
        return []
    try:
        if _table(sink) is not None:
            return []
    except ConfigurationError as wrong:
        return [f"--output: {problem}" for problem in wrong.problems]
    path = Path(sink)
    if path.is_dir():
        return [f"expected --output to be a file, got: the folder {sink!r}."]
    problems: list[str] = []
    try:
        open_sink(sink)
    except ConfigurationError as wrong:
        problems += [f"--output: {problem}" for problem in wrong.problems]
    if not is_address(sink) and not path.parent.is_dir():
        problems.append(
            f"expected --output to be in a folder that is there, got: {sink!r}. Make it first: mkdir -p {shlex.quote(str(path.parent))}"
        )
    return problems


def ways_on(views: Views, record: RunRecord, store: str | None) -> tuple[str | None, str | None, bool]:
    """
    The command that goes on with a run, None if there is none that can; the one that does the letters of a replay in
    another; and whether that leaves out marks of the first one, because letters that failed again lost them.
    """
    command = views.command(record)
    where = stored_at(views, store)
    replays = record.kind == "replay"
    known = command.get("target") and (replays or command.get("input"))
    resume = shlex.join(["outlast", "resume", *views.called(record), *where]) if known else None
    which: dict[str, Any] | None = command.get("replay")
    if not replays or which is None:
        return resume, None, False
    open_now = views.replayed_and_open(record)
    named = which.get("ids") or ()
    options = [one for one in named if one in open_now] or list[str](named)
    given = {name: value for name in FIELDS if (value := which.get(name)) is not None}
    chosen = views.marks_of(record.pipeline, open_now, given)
    if not options and "run" not in chosen:
        options += ["--pipeline", record.pipeline]
    for name, value in chosen.items():
        options += [FIELDS[name].option, str(value)]
    if which.get("canary"):
        options += ["--canary", str(which["canary"])]
    if which.get("from_start"):
        options.append("--from-start")
    if command.get("output"):
        options += ["--output", "FILE"]
    if command.get("target_named"):
        options += ["--target", command["target"]]
    return resume, shlex.join(["outlast", "dlq", "replay", *options, *where]), chosen != given


def _last_target(store: str | None, app: str | None, owner: str | None) -> str:
    """Where `outlast run` found the pipeline's code the last time."""
    with opened(store, app) as views:
        targets = (views.command(record).get("target") for record in views.runs(owner, limit=50))
        known = next((str(target) for target in targets if target), None)
    if known is None:
        refuse(
            f"expected --target: where is the code of {owner or 'the pipeline'}? For example --target app.py:{owner or 'reviews'}"
        )
    return known


# --- while it runs, and after ---------------------------------------------------------------------------------------------


def _started(
    pipeline: Pipeline[Any, Any],
    command: dict[str, Any],
    *,
    progress: bool | None,
    strict: bool,
    store: str | None,
    as_json: bool,
) -> None:
    from outlast.cli.watch import watching, way_to_show
    from outlast.components import expected_items

    def started(view: RunView) -> None:
        _record(Views(pipeline.app.store), view.id, command | {"run_key": view.run_key})

    how, output = None if as_json else way_to_show(wanted=progress), command.get("output")
    source, key = _files(command), command["run_key"]
    # A run with a generated key is new: no other run's table has its columns.
    sink = (_table(output) or output) if key is None else _sink(output, pipeline, key)
    expected = expected_items(source) if how else lambda: None
    with waits_said(), watching(how, expected, started, of=pipeline) as watch:
        result, signalled = ended(
            lambda: pipeline.run(
                source,
                run_key=key,
                item_key=command.get("item_key"),
                sink=sink,
                on_item_error=command.get("on_item_error") or "dlq",
                on_change=command.get("on_change") or "stop",
                breaker_rounds=command.get("breaker_rounds") or 3,
                check=False,
                watch=watch,
            )
        )
    _tell(pipeline, result, store=store, strict=strict, as_json=as_json, signalled=signalled, expected=expected())


def ended(run: Callable[[], Any]) -> tuple[Any, Code | None]:
    """What a run came to, and the exit code of a signal that it was sent."""
    try:
        return run(), None
    except RunFailed as failed:
        return failed.result, None
    except (KeyboardInterrupt, SystemExit) as signalled:
        result = result_of(signalled)
        if result is None:
            raise
        return result, Code.INTERRUPTED if isinstance(signalled, KeyboardInterrupt) else Code.TERMINATED


@contextmanager
def waits_said() -> Iterator[None]:
    """Tell on standard error when a run waits for its store or its sink: nothing else would be seen of it."""

    class Waits(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if hasattr(record, "outlast_waits"):
                hint(f"outlast: {record.getMessage()}")

    logger, handler = logging.getLogger("outlast"), Waits(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _record(views: Views, run_id: str, command: dict[str, Any]) -> None:
    """Keep how a run was started, so that `resume` can do the same."""
    views.note_command(run_id, command | {"output": _on_record(command.get("output"))})


def _tell(
    pipeline: Pipeline[Any, Any],
    result: RunResult[Any],
    *,
    store: str | None,
    strict: bool,
    as_json: bool,
    signalled: Code | None = None,
    expected: int | None = None,
) -> None:
    """The report, what to do next, and the exit code."""
    from outlast.cli.printing import name_of, next_steps, print_run

    views = Views(pipeline.app.store)
    record = views.of(result)
    groups = views.problems(record)
    code = with_signal(exit_code(result, strict=strict), signalled)
    if as_json:
        shown = [slots_document(group) for group in groups]
        print_json(
            run_document(record)
            | {"outcome": result.outcome, "success_rate": result.success_rate, "groups": shown, "exit_code": int(code)}
        )
    else:
        print_run(record, groups, why=result.why, expected=expected)
        resume, anew, moved = ways_on(views, record, store)
        code_at = views.code_option(record.pipeline)
        name, stored = name_of(views, record), stored_at(views, store)
        for step in next_steps(record, groups, resume, code_at, anew=anew, moved=moved, stored=stored, name=name):
            hint(step)
    raise typer.Exit(code)


def exit_code(result: RunResult[Any], *, strict: bool = False) -> Code:
    """
    What a script is told: 0 completed, 1 failed, 3 partial, 4 budget exceeded, 130 interrupted; what SIGTERM has ended
    is 143.
    """
    if result.status == "completed":
        return Code.PARTIAL if strict and result.counts.dlq + result.counts.failed else Code.COMPLETED
    if result.status == "partial_success":
        return Code.PARTIAL
    if result.status in {"interrupted", "paused", "cancelled"}:
        return Code.INTERRUPTED
    if result.reason == "failure_budget_exceeded" or isinstance(getattr(result, "error", None), FailureBudgetExceeded):
        return Code.BUDGET
    return Code.FAILED
