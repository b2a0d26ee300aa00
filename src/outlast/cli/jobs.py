"""
``outlast enqueue`` and ``outlast jobs``: put jobs into a queue, see what becomes of them, requeue and cancel them.
Arguments and results are shown masked; ``--reveal`` prints them as they are.
"""

from __future__ import annotations

import shlex
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlast.cli.options import AppName, AsJson, ConnectionsFile, Limit, Root, StoreUrl  # noqa: TC001 - typer reads the annotations
from outlast.cli.output import (
    Code,
    hint,
    moment,
    no_worker,
    print_block,
    print_found,
    print_full_rows,
    print_json,
    print_value,
    print_whole_table,
    refuse,
    say,
)
from outlast.cli.stores import named_by, opened, or_way_out, stored_at, tell_masked
from outlast.errors import ConfigurationError
from outlast.kernel.clock import here
from outlast.kernel.frames import from_here, place_of
from outlast.kernel.redact import masked
from outlast.kernel.wording import counted, duration, process_of, progress_text
from outlast.kernel.wording import window as said_window
from outlast.report.jobs import (
    STATUSES,
    figures_document,
    flow_run_of,
    job_document,
    job_view_document,
    next_run_at,
    queue_document,
    result_of,
    runs_here,
    schedule_document,
    shown_key,
    unstored_of,
    worker_document,
)
from outlast.report.views import Shell, Views
from outlast.settings.keys import seconds_of
from outlast.store.records import FLOW, from_us, served_kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from outlast.observe.figures import JobFigures
    from outlast.report.flows import FlowReport
    from outlast.report.jobs import Answer, JobView, ScheduleView
    from outlast.store.records import JobAttempt, JobRow, NewJob, QueueState, RunRecord, WorkerState

jobs = typer.Typer(name="jobs", help="Show, requeue, cancel and compensate jobs; pause queues.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="The job, by its number.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Jobs, by their numbers.")]
Queues = Annotated[list[str], typer.Argument(metavar="QUEUE...", help="The queues.")]
Why = Annotated[str, typer.Option("--reason", help="Why; it stays on record, with who and when.", show_default=False)]
Reveal = Annotated[bool, typer.Option("--reveal", help="Print arguments and results as they are.")]
_MOST_PLACES = 5  # where attempts have failed, and numbers of attempts for each


# --- enqueue ------------------------------------------------------------------------------------------------------------


def enqueue(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="The job: shop.jobs:process_report or jobs.py:process_report; or a pipeline file, movies.yaml.",
        ),
    ],
    *,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            metavar="NAME=VALUE",
            help="An argument, typed as the function says: file_id=f-1. May be given several times.",
        ),
    ] = None,
    arg_json: Annotated[
        list[str] | None,
        typer.Option("--arg-json", metavar="NAME=JSON", help="An argument as JSON: limits='[1, 2]'."),
    ] = None,
    json_args: Annotated[
        str | None, typer.Option("--json-args", metavar="JSON", help="Arguments by name, as one JSON object.")
    ] = None,
    unique_key: Annotated[
        str | None,
        typer.Option(
            "--unique-key",
            metavar="KEY",
            help="Enqueue nothing while a job of this kind with this key is queued, processed or succeeded.",
        ),
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="DURATION", help="Not before: 10m, 90s, 2h or a number of seconds.")
    ] = None,
    priority: Annotated[int, typer.Option("--priority", help="A larger one goes first.")] = 0,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="NAME", help="Default: the queue of the job.", show_default=False)
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME=VALUE",
            help="Of a pipeline file: the value of a parameter. May be given several times.",
            show_default=False,
        ),
    ] = None,
    run_key: Annotated[
        str | None,
        typer.Option(
            "--run-key",
            metavar="KEY",
            help="Of a pipeline file: the name of its run; that of a run which is there goes on with it. Default: a new one.",
            show_default=False,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="NAME", help="Of a pipeline file: the profile to use.", show_default=False),
    ] = None,
    root: Root = None,
    connections: ConnectionsFile = None,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Enqueue a job or a flow. It is on disk when this command ends; a worker does the rest."""
    from outlast.cli.output import refuse_options
    from outlast.cli.targets import is_flow

    of_jobs = {"--arg": arg, "--arg-json": arg_json, "--json-args": json_args}
    of_files = {
        "--param": param,
        "--run-key": run_key,
        "--profile": profile,
        "--root": root,
        "--connections": connections,
        "--app": app,
    }
    options: dict[str, Any] = {"unique_key": unique_key, "priority": priority, "queue": queue}
    if is_flow(target):
        problems = refuse_options(target, of_jobs, "which are for a job: a pipeline file takes --param.")
        job, new = _flow_to_enqueue(target, of_files, options, delay, store, problems)
    else:
        problems = refuse_options(target, of_files, "which are for a pipeline file: a job takes --arg.")
        job, new = _job_to_enqueue(target, (arg or (), arg_json or (), json_args), options, delay, store, problems)
    with or_way_out(target, job.home.store_url):
        views = Views(job.home.store)
        done = views.jobs.enqueue(new)
        shown = views.jobs.show(str(done.id))
        run = flow_run_of(shown.job, Shell())
        over = run is not None and views.flows.is_completed(run.pipeline, run.run_key)
    if as_json:
        kept = ("id", "kind", "queue", "status", "next_run_at", "unique_key")
        document = job_view_document(shown, Shell())
        which = {} if run is None else {"run_key": run.run_key}
        print_json({"new": done.new} | {name: document[name] for name in kept} | which)
        return
    if done.new:
        due = "" if delay is None else f", due at {moment(from_us(shown.job.due_us))} UTC"
        say(f"Enqueued job {done.id} ({_what(shown.job)}) in {shown.job.queue}{due}.")
    else:
        say(
            f"Job {done.id} ({_what(shown.job)}) has this unique key already: it is {shown.job.status}. Nothing was enqueued."
        )
    place = store or named_by(job.home.store_url)
    where = stored_at(views, place, app)
    hint(f"Look at it: {shlex.join(['outlast', 'jobs', 'show', str(done.id), *where])}")
    if over and run is not None:
        hint(f"Its run {run.run_key} is completed: the job has nothing to do. Another --run-key begins another run.")
    for sentence in shown.waits_for:
        hint(f"{sentence} {_way_out(sentence, shown.job, target, where, store)}".rstrip())
    tell_masked(place)


def _what(job: JobRow) -> str:
    """What a job does, for a person: its kind; of a pipeline file, its name and its run."""
    run = flow_run_of(job, Shell())
    return job.kind if run is None else f"{run.pipeline}, run {run.run_key}"


def _flow_to_enqueue(
    target: str,
    given: Mapping[str, Any],
    options: dict[str, Any],
    delay: str | None,
    store: str | None,
    problems: list[str],
) -> tuple[Any, NewJob]:
    """The job that runs a pipeline file; what is wrong ends the command."""
    from outlast.app import App
    from outlast.cli.flows import flow_of
    from outlast.flow.enqueued import to_enqueue

    options |= {"delay": _seconds("--delay", delay, problems), "run_key": given["--run-key"]}
    options["queue"] = options["queue"] or "default"
    if problems:
        refuse(*problems)
    flow = flow_of(target, given["--param"], given["--profile"], given["--root"], given["--connections"])
    app = App(given["--app"] or "default", store=store)
    try:
        bound, arguments = to_enqueue(flow, app, **options)
        return bound._job, bound._new((), arguments)  # noqa: SLF001 - as Flow.enqueue does
    except ConfigurationError as wrong:
        refuse(*wrong.problems)


def _job_to_enqueue(
    target: str,
    given: tuple[Sequence[str], Sequence[str], str | None],
    options: dict[str, Any],
    delay: str | None,
    store: str | None,
    problems: list[str],
) -> tuple[Any, NewJob]:
    """A job of an app; what is wrong ends the command."""
    from outlast.cli.arguments import arguments_of
    from outlast.cli.targets import job_wanted, loaded

    job = loaded(target, job_wanted(), store, problems)
    if job is None:
        refuse(*problems)
    arguments: Any = None
    try:
        arguments = arguments_of(job, *given)
    except ConfigurationError as wrong:
        problems += wrong.problems
    new = None
    try:
        bound = job.options(delay=_seconds("--delay", delay, problems), **options)
        new = None if problems else bound._new((), arguments)  # noqa: SLF001 - as Job.enqueue does
    except ConfigurationError as wrong:
        problems += wrong.problems
    if problems or new is None:
        refuse(*problems)
    return job, new


def _way_out(sentence: str, job: JobRow, target: str, where: Sequence[str], given: str | None) -> str:
    if "paused" in sentence:
        return f"Resume it: {shlex.join(['outlast', 'jobs', 'resume', job.queue, *where])}"
    if "No worker" in sentence and served_kind(job.kind) == FLOW:
        return f"Start one: {shlex.join(['outlast', 'worker', *where])}"
    if "No worker" in sentence:
        module = target.rpartition(":")[0] or target
        store = where[:2] if given else ()  # an app that names its own store is loaded with it
        return f"Start one: {shlex.join(['outlast', 'worker', module, *store])}"
    return ""


def _seconds(option: str, text: str | None, problems: list[str]) -> float | None:
    if text is None:
        return None
    found = seconds_of(text)
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found < float("inf"):
        return float(found)
    problems.append(
        f"expected {option} to be a duration such as 90s, 10m or 2h, or a number of seconds, got: {text!r}."
    )
    return None


# --- what is on record --------------------------------------------------------------------------------------------------


@jobs.command("list")
def list_jobs(
    *,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only of this queue.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Only of this kind.")] = None,
    status: Annotated[
        str | None, typer.Option("--status", help=f"Only {', '.join(STATUSES)}.", show_default=False)
    ] = None,
    unique_key: Annotated[
        str | None, typer.Option("--unique-key", metavar="KEY", help="Only those with this unique key.")
    ] = None,
    limit: Limit = 50,
    reveal: Reveal = False,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first."""
    if status is not None and status not in STATUSES:
        refuse(f"expected --status to be one of {', '.join(STATUSES)}, got: {status!r}.")
    with opened(store, app) as views:
        found = views.jobs.find(queue=queue, kind=kind, status=status, unique_key=unique_key, limit=limit)
        where = stored_at(views, store, app)
    now = here.get().clock.now()
    listed = print_found(
        found,
        lambda job: job_document(job, Shell(), reveal=reveal),
        lambda job: (
            str(job.id),
            job.kind,
            job.queue,
            job.status,
            job.attempts,
            job.crashes or None,
            None if (due := next_run_at(job)) is None else "now" if due <= now else moment(due),
            None if job.ended_us is None else from_us(job.ended_us),
            _said(job.error, job.error_class),
        ),
        as_json=as_json,
        none="No jobs." if (queue, kind, status, unique_key) == (None, None, None, None) else "No such jobs.",
        headings=("job", "kind", "queue", "status", "attempts", "crashes", "next run", "ended", "error"),
        fold="error",
        below=("ended", "crashes", "queue", "attempts", "next run", "kind"),
    )
    if not listed:
        return
    if len(found) == limit:
        hint(f"The newest {limit:,}. More: --limit")
    failed = [str(job.id) for job in found if job.status == "failed"]
    if failed:
        hint(f"Why one has failed: {shlex.join(['outlast', 'jobs', 'show', failed[0], *where])}")


@jobs.command("show")
def show_job(
    job: Id,
    *,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Print where each failed attempt failed, frame by frame.")
    ] = False,
    reveal: Reveal = False,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Show one job: its state, its arguments, every attempt and why there was no other, and what to do next."""
    with opened(store, app, jobs=[job]) as views:
        view = views.jobs.show(job)
        where = stored_at(views, store, app)
        flow = views.flows.of_job(view.job) if served_kind(view.job.kind) == FLOW and not as_json else None
    if as_json:
        print_json(job_view_document(view, Shell(), reveal=reveal))
        return
    _print_job(view, reveal=reveal)
    if traceback:
        _print_tracebacks(view.attempts)
    elif any(attempt.traceback for attempt in view.attempts):
        hint(f"How it came to that place: {shlex.join(['outlast', 'jobs', 'show', job, '--traceback', *where])}")
    for step in _next_steps(view, where, flow):
        hint(step)


def _print_job(view: JobView, *, reveal: bool) -> None:
    job = view.job
    say(f"job          {job.id}  {job.kind}  ({job.status})")
    run = flow_run_of(job, Shell())
    if run is not None:
        say(f"runs         {run.pipeline}, run {run.run_key}")
    priority = f", priority {job.priority}" if job.priority else ""
    say(f"queue        {job.queue}{priority}")
    if job.unique_key is not None:
        until = "" if job.unique_until_us is None else f", held until {moment(from_us(job.unique_until_us))} UTC"
        say(f"unique key   {shown_key(job.unique_key)}{until}")
    say(f"enqueued     {moment(from_us(job.enqueued_us))} UTC")
    if (due := next_run_at(job)) is not None:
        left = (due - here.get().clock.now()).total_seconds()
        when = f"in {duration(left)}" if left > 0 else "due" if view.waits_for else "now"
        say(f"next run     {moment(due)} UTC, {when}")
    if view.waits_for:
        say(f"waits        {' '.join(view.waits_for)}")
    if job.status == "processing":
        since = "" if job.claimed_us is None else f", since {moment(from_us(job.claimed_us))} UTC"
        say(f"worker       {view.worker or 'one that is gone'}{since}")
    elif view.worker is not None and job.status in {"failed", "cancelled"}:
        undone = any(one.state == "running" for one in view.compensations)
        still = "its code still runs there, although the job has ended"
        if view.compensation == "pending":  # whether its code still runs is not on record
            still = "it is being undone there" if undone else "it is with that worker, to be undone"
        say(f"worker       {view.worker}: {still}")
    if job.wanted == "cancel" and job.status == "processing":
        say("wanted       to be cancelled; its worker was asked to")
    if job.ended_us is not None:
        say(f"ended        {moment(from_us(job.ended_us))} UTC")
    if job.progress is not None:
        say(f"progress     {progress_text(*job.progress)}")
    say(f"attempts     {_attempts(job)}")
    if job.error is not None:
        kind = "" if job.error_class is None else f"{job.error_type} ({job.error_class}): "
        say(f"error        {kind}{job.error}")
    for line in places(view.attempts):
        say(line)
    last = view.attempts[-1] if view.attempts else None
    if last is not None and last.outcome == "released" and last.error_class is None and job.status == "queued":
        say(f"released     {last.error or 'given back by its worker'}; nothing failed, and it counts as no attempt")
    if job.stop_reason is not None and job.status in {"failed", "cancelled"}:
        say(f"stopped      {job.stop_reason}")
    if run is None:
        print_value("arguments", Shell().decode(job.payload), reveal=reveal)
    else:
        say(f"root         {run.root}")
    if (why := unstored_of(job, Shell())) is not None:
        say(f"result       not stored: {why}")
    elif job.result is not None:
        print_value("result", result_of(job, Shell()), reveal=reveal)
    for change in view.changes:
        why = f": {change.reason}" if change.reason else ""
        say(f"{change.change:<12} {moment(from_us(change.at_us))} UTC{f' by {change.by}' if change.by else ''}{why}")
    if view.attempts:
        say()
        _print_attempts(view.attempts)
    if view.steps:
        say()
        print_whole_table(
            ("step", "done in attempt", "ended"),
            ((step.name, step.attempt, from_us(step.ended_us)) for step in view.steps),
            wrap=("step",),
        )
    if view.compensations:
        say()
        print_whole_table(
            ("undone by", "of step", "status", "attempts", "ended", "error"),
            (
                (
                    one.call,
                    one.step or "",
                    status,
                    f"{one.attempts}{f', {one.crashes} crashed' if one.crashes else ''}",
                    None if one.ended_us is None else from_us(one.ended_us),
                    _said(one.error, one.error_class),
                )
                for one, status in view.undoing()
            ),
            wrap=("undone by", "error"),
        )
    if view.artifacts:
        say()
        print_whole_table(
            ("artifact", "attempt", "bytes", "kept"),
            (
                (kept.name, kept.attempt, f"{kept.size:,}{', cut' if kept.cut else ''}", from_us(kept.kept_us))
                for kept in view.artifacts
            ),
            wrap=("artifact",),
        )


def _attempts(job: JobRow) -> str:
    lost = counted(job.crashes, "of its workers was lost", "of its workers were lost")
    crashes = f", {lost}" if job.crashes else ""
    beside = "" if job.made == job.attempts else f" that count, {job.made:,} in all"
    return f"{job.attempts:,}{beside}{crashes}"


def _print_attempts(attempts: Sequence[JobAttempt]) -> None:
    print_full_rows(
        ("attempt", "outcome", "started", "took", "then", "error"),
        (
            (
                attempt.number,
                attempt.outcome,
                from_us(attempt.started_us),
                duration(attempt.took_us / 1e6),
                _then(attempt),
                _said(attempt.error, attempt.error_class),
            )
            for attempt in attempts
        ),
        fold="error",
        below=("took", "started", "then"),
    )


def places(attempts: Sequence[JobAttempt]) -> Iterator[str]:
    """Where failed attempts have failed: a line for each place, the newest last."""
    found: dict[str, list[str]] = {}
    for attempt in attempts:
        if (place := place_of(attempt.traceback)) is not None:
            found.setdefault(from_here(str(place)), []).append(str(attempt.number))
    for where, numbers in [*found.items()][-_MOST_PLACES:]:
        which = f"attempt {numbers[0]}" if len(numbers) == 1 else f"attempts {', '.join(numbers[-_MOST_PLACES:])}"
        yield f"raised       {where} ({which})"


def _print_tracebacks(attempts: Sequence[JobAttempt]) -> None:
    kept = [attempt for attempt in attempts if attempt.traceback]
    if not kept:
        hint("No attempt has a traceback on record.")
    for attempt in kept:
        say()
        say(f"attempt {attempt.number}")
        print_block(from_here(attempt.traceback or "").rstrip())


def _then(attempt: JobAttempt) -> str:
    """What followed: when the next one was due, or why there was none."""
    if attempt.next_run_us is not None:
        return f"due {moment(from_us(attempt.next_run_us))}"
    return "" if attempt.stop_reason is None else f"no other: {attempt.stop_reason}"


def _next_steps(view: JobView, where: Sequence[str], flow: FlowReport | None) -> Iterator[str]:
    job = view.job

    def command(*words: str) -> str:
        return shlex.join(["outlast", *words, *where])

    for sentence in view.waits_for:
        if sentence.endswith("is paused."):
            yield f"Resume it: {command('jobs', 'resume', job.queue)}"
        elif sentence == "No worker is running.":
            yield no_worker(where).removeprefix(f"{sentence} ")
    if flow is not None and job.made:
        yield f"What its steps did: {command('runs', 'show', *flow.called)}"
    if view.artifacts:
        newest = view.artifacts[-1]
        yield f"What it has kept: {command('jobs', 'artifact', str(job.id), newest.name)}"
    undone = view.compensation
    standing = any(one.state == "registered" for one in view.compensations)
    if undone == "failed":
        yield f"To undo what still stands: {command('jobs', 'compensate', str(job.id))}"
        for one in view.compensations:
            if one.state == "failed" and not one.closed and one.letter is not None:
                yield f"If it was undone by hand: {command('dlq', 'archive', one.letter[:12], '--reason', 'undone by hand')}"
    elif job.status == "cancelled" and standing:
        yield f"To undo what it has done: {command('jobs', 'compensate', str(job.id))}"
    if job.status == "failed" and flow is not None and flow.status in {"failed", "partial_success"} and flow.doubted:
        for what, way in flow.doubt(where):  # whoever requeues it is refused
            yield f"{what} {way}"
    elif job.status == "failed" and flow is not None and flow.status in {"completed", "cancelled"}:
        yield from _rolls_back(flow, command("jobs", "compensate", str(job.id)))
    elif job.status == "failed" and undone not in {"pending", "failed"}:
        yield f"Once the cause is gone: {command('jobs', 'requeue', str(job.id))}"
        if flow is not None and flow.status == "partial_success":
            yield f"To give it up, and roll back what it has done: {command('jobs', 'compensate', str(job.id))}"
        if view.steps:
            yield f"To do its steps again, too: {command('jobs', 'requeue', str(job.id), '--from-start')}"
        if job.letter is not None and served_kind(job.kind) != FLOW:
            yield f"To change its arguments first: {command('dlq', 'edit', job.letter[:12], '--payload', 'JSON', '--reason', '...')}"
    elif job.status == "cancelled":
        if flow is not None:
            yield from _rolls_back(flow, command("jobs", "compensate", str(job.id)))
        if flow is None or flow.status != "cancelled":
            yield f"To do it all the same: {command('jobs', 'requeue', str(job.id))}"
    elif job.status in {"queued", "processing"} and job.wanted is None:
        yield f"To end it: {command('jobs', 'cancel', str(job.id))}"


def _rolls_back(flow: FlowReport, command: str) -> Iterator[str]:
    """What compensates the completed steps of a flow that is not continued, if there are any."""
    if flow.status != "completed" and flow.standing:
        yield f"To roll back what it has done: {command}"


@jobs.command("artifact")
def show_artifact(
    job: Id,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What was kept, by its name: `jobs show` lists them.")],
    *,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Of this attempt. Default: the newest that has kept it.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write it there, as it is, instead of printing it.")
    ] = None,
    reveal: Annotated[bool, typer.Option("--reveal", help="Print it as it is.")] = False,
    store: StoreUrl = None,
    app: AppName = None,
) -> None:
    """Print what a job has kept, such as the raw answer of a model: masked, or as it is with --reveal or to a file."""
    with opened(store, app, jobs=[job]) as views:
        kept = views.jobs.artifact(job, name, attempt, Shell())
    print_kept(name, kept, output, reveal=reveal)


def print_kept(name: str, kept: str | bytes, output: Path | None, *, reveal: bool) -> None:
    """What was kept for people: to a file as it is, else printed, masked unless it is to be seen as it is."""
    if output is not None:
        try:
            output.write_bytes(kept if isinstance(kept, bytes) else kept.encode(errors="surrogatepass"))
        except OSError as error:
            refuse(f"cannot write {output}: {error.strerror}.")
        say(f"Wrote {counted(output.stat().st_size, 'byte')} to {output}.")
        return
    try:
        text = kept if isinstance(kept, str) else kept.decode()
    except UnicodeDecodeError:
        refuse(
            f"expected {name} to be a text, got: {len(kept):,} bytes that are none. Write them to a file with --output."
        )
    print_block(text if reveal else str(masked(text)))


@jobs.command("stats")
def queue_stats(
    *,
    window: Annotated[
        str, typer.Option("--window", metavar="DURATION", help="Figures of the jobs that have ended within this time.")
    ] = "24h",
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """
    Count the jobs of each queue that may start, are due later and are processed, and how long the oldest waits; and say
    how those did that have ended: how many were tried again or failed, and how long they took.
    """
    problems: list[str] = []
    seconds = _seconds("--window", window, problems)
    if not problems and not seconds:
        problems.append(f"expected --window to be longer than nothing, got: {window!r}.")
    if problems or seconds is None:
        refuse(*problems)
    with opened(store, app) as views:
        found = views.jobs.queues()
        figures = views.jobs.figures(seconds)
        idle = views.jobs.idle()
        where = stored_at(views, store, app)
    if as_json:
        print_json(
            {
                "queues": [queue_document(stats) for stats in found],
                "window": seconds,
                "figures": [figures_document(one) for one in figures],
            }
        )
        return
    _print_queues(found)
    _print_figures(figures, seconds)
    paused = [stats.queue for stats in found if stats.paused]
    if paused:
        hint(f"To go on: {shlex.join(['outlast', 'jobs', 'resume', *paused, *where])}")
    if found and idle:
        hint(no_worker(where))


def _print_queues(found: Sequence[QueueState]) -> None:
    if not found:
        say("No queue has jobs that are not over or are to be undone, and none is paused.")
        return
    undone = any(stats.undo for stats in found)  # seldom
    print_whole_table(
        ("queue", "queued", "scheduled", "processing", *(["to undo"] if undone else []), "paused", "oldest wait"),
        (
            (
                stats.queue,
                stats.queued,
                stats.scheduled,
                stats.processing,
                *([stats.undo] if undone else []),
                "paused" if stats.paused else "",
                None if stats.oldest_wait_us is None else duration(stats.oldest_wait_us / 1e6),
            )
            for stats in found
        ),
        wrap=("queue",),
    )


# The fields of `JobFigures` with spaces for underscores, in two lines where they are long.
_CANCELLED, _ARTIFACTS = "cancelled", "artifacts"
_SCHEMA, _AMPLIFICATION = "schema\nfailure share", "retry\namplification"
_DELAY, _BACKOFF, _WAIT = "mean\ndelay", "mean\nbackoff", "mean\nwait"
_FIGURES = (
    *("kind", "queue", "succeeded", "failed", _CANCELLED, "retry\nrate", "failure\nrate", "mean time\nto success"),
    *(_DELAY, _BACKOFF, _WAIT, _SCHEMA, _AMPLIFICATION, _ARTIFACTS),
)


def _print_figures(figures: Sequence[JobFigures], seconds: float) -> None:
    say()
    if not figures:
        say(f"No job has ended in the last {said_window(seconds)}.")
        return
    say(f"Ended in the last {said_window(seconds)}:")
    print_full_rows(
        _FIGURES,
        (
            (
                one.kind,
                one.queue,
                one.succeeded,
                one.failed,
                one.cancelled,
                _percent(one.retry_rate),
                _percent(one.failure_rate),
                _mean(one.mean_time_to_success),
                *map(_mean, (one.mean_delay, one.mean_backoff, one.mean_wait)),
                _percent(one.schema_failure_share),
                None if one.retry_amplification is None else f"{one.retry_amplification:.2f}",
                one.artifacts or None,
            )
            for one in figures
        ),
        below=(_ARTIFACTS, _DELAY, _BACKOFF, _WAIT, _SCHEMA, _CANCELLED, "queue", _AMPLIFICATION),
    )


def _mean(mean: float | None) -> str | None:
    return None if mean is None else duration(mean)


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f} %"


@jobs.command("schedules")
def list_schedules(*, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False) -> None:
    """List the schedules of jobs: when each is due, its last and its next tick, and whether a worker declares it."""
    with opened(store, app) as views:
        found = views.jobs.schedules()
    listed = print_found(
        found,
        schedule_document,
        lambda view: (
            view.row.kind,
            view.row.expression,
            view.row.timezone,
            view.row.missed,
            None if view.row.tick_us is None else from_us(view.row.tick_us),
            None if view.row.job is None else str(view.row.job),
            _next_tick(view),
            view.state,
        ),
        as_json=as_json,
        none="No schedule is on record: a worker puts those of its jobs there when it begins.",
        headings=("kind", "cron", "timezone", "missed", "last tick", "its job", "next tick", "state"),
        below=("missed", "its job", "timezone", "last tick", "cron"),
    )
    if listed and any(view.state != "active" for view in found):
        hint("undeclared: no running worker has a job with this schedule, and nothing is enqueued for it.")


def _next_tick(view: ScheduleView) -> str | None:
    if view.row.next_us is None or view.state != "active":
        return None
    due = from_us(view.row.next_us)
    return "now" if due <= here.get().clock.now() else moment(due)


@jobs.command("workers")
def list_workers(
    *,
    on_this_host: Annotated[
        bool,
        typer.Option("--here", help="Only those of this host, or container; exit with 1 if none of them is alive."),
    ] = False,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """List the workers: which process each is, how many jobs it has, and until when its lease lasts."""
    with opened(store, app) as views:
        found = views.jobs.workers()
        where = stored_at(views, store, app)
    idle = not any(worker.alive for worker in found)
    if on_this_host:
        found = [worker for worker in found if runs_here(worker)]
    print_found(
        found,
        worker_document,
        lambda worker: (
            process_of(worker.owner),
            worker.jobs,
            "yes" if worker.alive else "no; another worker takes its jobs over",
            worker.until if worker.owner else None,
            _queues_of(worker),
            "" if worker.serves is None else ", ".join(sorted(worker.serves.kinds)),
        ),
        as_json=as_json,
        none=no_worker(where),
        headings=("worker", "jobs", "alive", "lease until", "queues", "kinds"),
        fold="kinds",
        below=("lease until", "queues"),
    )
    if found and idle:
        hint(no_worker(where))
    if on_this_host and not any(worker.alive for worker in found):
        raise typer.Exit(Code.FAILED)


def _queues_of(worker: WorkerState) -> str:
    if worker.serves is None:  # of a program from before this was recorded
        return ""
    return "all" if worker.serves.queues is None else ", ".join(worker.serves.queues)


# --- what operators do --------------------------------------------------------------------------------------------------


@jobs.command("requeue")
def requeue_jobs(
    ids: Ids,
    *,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Do all of their steps again; else those that are done are not.")
    ] = False,
    reason: Why = "",
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Put failed or cancelled jobs back into the queue, with fresh attempts; each keeps its id and its history."""
    with opened(store, app, jobs=ids) as views:
        answers = views.jobs.requeue(ids, reason=reason, from_start=from_start)
        idle = views.jobs.idle()
        where = stored_at(views, store, app)
    _told(answers, as_json=as_json)
    if idle and any(answer.done for answer in answers) and not as_json:
        hint(no_worker(where))
    _exit_unless_all(answers)


@jobs.command("cancel")
def cancel_jobs(
    ids: Ids, *, reason: Why = "", store: StoreUrl = None, app: AppName = None, as_json: AsJson = False
) -> None:
    """Take jobs out of the queue; workers that are at one of them are asked to stop."""
    with opened(store, app, jobs=ids) as views:
        answers = views.jobs.cancel(ids, reason=reason)
    _told(answers, as_json=as_json)
    _exit_unless_all(answers)


@jobs.command("undo", hidden=True)
@jobs.command("compensate")
def compensate_jobs(
    ids: Ids, *, reason: Why = "", store: StoreUrl = None, app: AppName = None, as_json: AsJson = False
) -> None:
    """
    Undo what failed or cancelled jobs have done and still stands: by a worker, once the cause is gone. A flow is rolled back
    here.
    """
    with opened(store, app, jobs=ids) as views:
        flows = [found for one in ids if (found := _flow_to_undo(views, one)) is not None]
        owner = views.app
        if flows and len(ids) > 1:
            refuse("expected one job at a time where it is that of a flow, which is rolled back here.")
        if flows and reason:
            refuse(f"expected no --reason with job {ids[0]}, which runs a flow: the cancellation of a run stores none.")
    if flows:
        from outlast.cli.flows import Wishes, cancel_flow

        wishes = Wishes(progress=None, strict=False, store=store, as_json=as_json)
        cancel_flow(flows[0], compensate=True, param=None, root=None, connections=None, app=owner, wishes=wishes)
        return
    with opened(store, app, jobs=ids) as views:
        answers = views.jobs.undo(ids, reason=reason)
        idle = views.jobs.idle()
        where = stored_at(views, store, app)
    _told(answers, as_json=as_json)
    if idle and any(answer.done for answer in answers) and not as_json:
        hint(no_worker(where))
    _exit_unless_all(answers)


def _flow_to_undo(views: Views, wanted: str) -> RunRecord | None:
    """The run of a flow that a job has given up; None of other jobs, and where nothing of it is to be undone."""
    try:
        job = views.jobs.show(wanted).job
    except ConfigurationError:  # which the answer for that job says
        return None
    flow = views.flows.of_job(job) if job.status in {"failed", "cancelled"} else None
    return None if flow is None or flow.status == "completed" else views.run(flow.id)


def _told(answers: Sequence[Answer], *, as_json: bool) -> None:
    if as_json:
        print_json([answer._asdict() for answer in answers])
        return
    for answer in answers:
        say(f"job {answer.id}: {'' if answer.done else 'nothing was done: '}{answer.said}")


def _exit_unless_all(answers: Sequence[Answer]) -> None:
    if not all(answer.done for answer in answers):
        raise typer.Exit(Code.FAILED)


@jobs.command("pause")
def pause_queues(
    queues: Queues,
    *,
    force: Annotated[bool, typer.Option("--force", help="Also those that no job was ever in.")] = False,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Start no further job of these queues, on any worker, until they are resumed. What has begun goes on."""
    _paused(queues, store, app, paused=True, force=force, as_json=as_json)


@jobs.command("resume")
def resume_queues(queues: Queues, *, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False) -> None:
    """Start jobs of these queues again."""
    _paused(queues, store, app, paused=False, force=False, as_json=as_json)


def _paused(queues: list[str], store: str | None, app: str | None, *, paused: bool, force: bool, as_json: bool) -> None:
    if not all(queue.strip() for queue in queues):
        refuse("expected the name of a queue, got: an empty one.")
    with opened(store, app) as views:
        unknown = views.jobs.never_used(queues)
        if unknown and not force:
            way_out = "Nothing was paused. To pause it before its first job, add --force."
            refuse(*unknown, way_out if paused else "Nothing was resumed.")
        changed = views.jobs.set_paused(queues, paused=paused)
        where = stored_at(views, store, app)
    if as_json:
        print_json([{"queue": queue, "paused": paused, "changed": queue in changed} for queue in queues])
    else:
        if changed:
            say(f"{'Paused' if paused else 'Resumed'} {', '.join(changed)}.")
        for queue in queues:
            if queue not in changed:
                say(f"{queue} {'is paused already' if paused else 'was not paused'}: nothing was done.")
    for sentence in unknown:
        hint(sentence)
    if paused and not as_json:
        hint(f"To go on: {shlex.join(['outlast', 'jobs', 'resume', *queues, *where])}")


def _said(error: str | None, error_class: str | None) -> str:
    """An error with its class; what an operator has done has none."""
    return "" if error is None else error if error_class is None else f"{error_class}: {error}"
