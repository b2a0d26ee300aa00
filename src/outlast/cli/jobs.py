"""
``outlast enqueue`` and ``outlast jobs``: put jobs into a queue, see what becomes of them, requeue and cancel them.
Arguments and results are shown masked; ``--reveal`` prints them as they are.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlast.cli.options import AppName, AsJson, Limit, StoreUrl  # noqa: TC001 - typer reads the annotations
from outlast.cli.output import (
    NO_WORKER,
    Code,
    hint,
    moment,
    print_block,
    print_found,
    print_json,
    print_table,
    refuse,
    say,
)
from outlast.cli.stores import opened, stored_at
from outlast.errors import ConfigurationError
from outlast.kernel.clock import here
from outlast.kernel.redact import masked, to_json
from outlast.kernel.wording import counted, duration
from outlast.report.jobs import (
    STATUSES,
    job_document,
    job_view_document,
    next_run_at,
    process_of,
    queue_document,
    result_of,
    worker_document,
)
from outlast.report.views import Shell, Views
from outlast.settings.keys import seconds_of
from outlast.store.records import from_us

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outlast.report.jobs import Answer, JobView
    from outlast.store.records import JobAttempt, JobRow

jobs = typer.Typer(
    name="jobs", help="Durable jobs: what is queued, every attempt, and what operators do.", no_args_is_help=True
)

Id = Annotated[str, typer.Argument(metavar="ID", help="The job, by its number.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Jobs, by their numbers.")]
Queues = Annotated[list[str], typer.Argument(metavar="QUEUE...", help="The queues.")]
Reveal = Annotated[bool, typer.Option("--reveal", help="Print arguments and results as they are.")]


# --- enqueue ------------------------------------------------------------------------------------------------------------


def enqueue(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The job: shop.jobs:process_report or jobs.py:process_report.")
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
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Put a job into its queue. It is on disk when this command ends; a worker does the rest."""
    from outlast.cli.arguments import arguments_of
    from outlast.cli.targets import job_wanted, loaded

    problems: list[str] = []
    job = loaded(target, job_wanted(), store, problems)
    if job is None:
        refuse(*problems)
    arguments: Any = None
    try:
        arguments = arguments_of(job, arg or (), arg_json or (), json_args)
    except ConfigurationError as wrong:
        problems += wrong.problems
    new = None
    try:
        bound = job.options(
            unique_key=unique_key, delay=_seconds("--delay", delay, problems), priority=priority, queue=queue
        )
        new = None if problems else bound._new((), arguments)  # noqa: SLF001 - as Job.enqueue does
    except ConfigurationError as wrong:
        problems += wrong.problems
    if problems or new is None:
        refuse(*problems)
    views = Views(job.home.store)
    done = views.jobs.enqueue(new)
    shown = views.jobs.show(str(done.id))
    if as_json:
        kept = ("id", "kind", "queue", "status", "next_run_at", "unique_key")
        document = job_view_document(shown, Shell())
        print_json({"new": done.new} | {name: document[name] for name in kept})
        return
    if done.new:
        due = "" if delay is None else f", due at {moment(from_us(shown.job.due_us))} UTC"
        say(f"Enqueued job {done.id} ({job.kind}) in {shown.job.queue}{due}.")
    else:
        say(f"Job {done.id} ({job.kind}) has this unique key already: it is {shown.job.status}. Nothing was enqueued.")
    where = stored_at(views, store)
    hint(f"Look at it: {shlex.join(['outlast', 'jobs', 'show', str(done.id), *where])}")
    for sentence in shown.waits_for:
        hint(f"{sentence} {_way_out(sentence, shown.job, target, where)}".rstrip())


def _way_out(sentence: str, job: JobRow, target: str, where: Sequence[str]) -> str:
    if "paused" in sentence:
        return f"Resume it: {shlex.join(['outlast', 'jobs', 'resume', job.queue, *where])}"
    if "No worker" in sentence:
        module = target.rpartition(":")[0] or target
        store = where[:2] if "--store" in where else ()
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
        where = stored_at(views, store)
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
        drop=("ended", "crashes", "queue", "attempts", "next run"),
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
    job: Id, *, reveal: Reveal = False, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False
) -> None:
    """Show one job: its state, its arguments, every attempt and why there was no other, and what to do next."""
    with opened(store, app) as views:
        view = views.jobs.show(job)
        where = stored_at(views, store)
    if as_json:
        print_json(job_view_document(view, Shell(), reveal=reveal))
        return
    _print_job(view, reveal=reveal)
    for step in _next_steps(view, where):
        hint(step)


def _print_job(view: JobView, *, reveal: bool) -> None:
    job = view.job
    say(f"job          {job.id}  {job.kind}  ({job.status})")
    priority = f", priority {job.priority}" if job.priority else ""
    say(f"queue        {job.queue}{priority}")
    if job.unique_key is not None:
        until = "" if job.unique_until_us is None else f", held until {moment(from_us(job.unique_until_us))} UTC"
        say(f"unique key   {job.unique_key}{until}")
    say(f"enqueued     {moment(from_us(job.enqueued_us))} UTC")
    if (due := next_run_at(job)) is not None:
        left = (due - here.get().clock.now()).total_seconds()
        say(f"next run     {moment(due)} UTC, {f'in {duration(left)}' if left > 0 else 'now'}")
    if job.status == "processing":
        since = "" if job.claimed_us is None else f", since {moment(from_us(job.claimed_us))} UTC"
        say(f"worker       {view.worker or 'one that is gone; its jobs are taken over within seconds'}{since}")
    if job.wanted == "cancel" and job.status == "processing":
        say("wanted       to be cancelled; its worker was asked to")
    if job.ended_us is not None:
        say(f"ended        {moment(from_us(job.ended_us))} UTC")
    say(f"attempts     {_attempts(job)}")
    if job.error is not None:
        kind = "" if job.error_class is None else f"{job.error_type} ({job.error_class}): "
        say(f"error        {kind}{job.error}")
    if job.stop_reason is not None and job.status in {"failed", "cancelled"}:
        say(f"stopped      {job.stop_reason}")
    hidden = "" if reveal else " (masked; --reveal prints them as they are)"
    say(f"arguments{hidden}")
    print_block(_indented(Shell().decode(job.payload), reveal=reveal))
    if job.result is not None:
        say("result" if reveal else "result (masked; --reveal prints it as it is)")
        print_block(_indented(result_of(job, Shell()), reveal=reveal))
    if view.attempts:
        say()
        _print_attempts(view.attempts)


def _attempts(job: JobRow) -> str:
    crashes = f", {counted(job.crashes, 'of its workers died', 'of its workers died')}" if job.crashes else ""
    beside = "" if job.made == job.attempts else f" that count, {job.made:,} in all"
    return f"{job.attempts:,}{beside}{crashes}"


def _print_attempts(attempts: Sequence[JobAttempt]) -> None:
    print_table(
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
        drop=("took", "started"),
    )


def _then(attempt: JobAttempt) -> str:
    """What followed: when the next one was due, or why there was none."""
    if attempt.next_run_us is not None:
        return f"due {moment(from_us(attempt.next_run_us))}"
    return "" if attempt.stop_reason is None else f"no other: {attempt.stop_reason}"


def _next_steps(view: JobView, where: Sequence[str]) -> Iterator[str]:
    job = view.job

    def command(*words: str) -> str:
        return shlex.join(["outlast", *words, *where])

    for sentence in view.waits_for:
        paused = sentence.endswith("is paused.")
        yield f"{sentence} Resume it: {command('jobs', 'resume', job.queue)}" if paused else sentence
    if job.status == "failed":
        yield f"Once the cause is gone: {command('jobs', 'requeue', str(job.id))}"
        if job.letter is not None:
            yield f"To change its arguments first: {command('dlq', 'edit', job.letter[:12], '--payload', 'JSON', '--reason', '...')}"
    elif job.status == "cancelled":
        yield f"To do it all the same: {command('jobs', 'requeue', str(job.id))}"
    elif job.status in {"queued", "processing"} and job.wanted is None:
        yield f"To end it: {command('jobs', 'cancel', str(job.id))}"


def _indented(value: Any, *, reveal: bool) -> str:
    try:
        return to_json(value if reveal else masked(value), indent=2)
    except (RecursionError, ValueError):
        return "<nested too deeply to be shown>"


@jobs.command("stats")
def queue_stats(*, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False) -> None:
    """Count the jobs of each queue: those that may start, are due later, are processed; and how long the oldest waits."""
    with opened(store, app) as views:
        found = views.jobs.queues()
        idle = views.jobs.idle()
        where = stored_at(views, store)
    listed = print_found(
        found,
        queue_document,
        lambda stats: (
            stats.queue,
            stats.queued,
            stats.scheduled,
            stats.processing,
            "paused" if stats.paused else "",
            None if stats.oldest_wait_us is None else duration(stats.oldest_wait_us / 1e6),
        ),
        as_json=as_json,
        none="No queue has jobs that are not over, and none is paused.",
        headings=("queue", "queued", "scheduled", "processing", "paused", "oldest waits for"),
        fold="queue",
    )
    if not listed:
        return
    paused = [stats.queue for stats in found if stats.paused]
    if paused:
        hint(f"To go on: {shlex.join(['outlast', 'jobs', 'resume', *paused, *where])}")
    if idle:
        hint(NO_WORKER)


@jobs.command("workers")
def list_workers(*, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False) -> None:
    """List the workers: which process each is, how many jobs it has, and until when its lease lasts."""
    with opened(store, app) as views:
        found = views.jobs.workers()
    print_found(
        found,
        worker_document,
        lambda worker: (
            worker.key[:12],
            process_of(worker.owner),
            worker.jobs,
            "yes" if worker.alive else "no; its jobs are taken over",
            worker.until if worker.owner else None,
        ),
        as_json=as_json,
        none=NO_WORKER,
        headings=("worker", "process", "jobs", "alive", "lease until"),
        fold="process",
        drop=("lease until",),
    )


# --- what operators do --------------------------------------------------------------------------------------------------


@jobs.command("requeue")
def requeue_jobs(ids: Ids, *, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False) -> None:
    """Put failed or cancelled jobs back into the queue, with fresh attempts; each keeps its id and its history."""
    with opened(store, app) as views:
        answers = views.jobs.requeue(ids)
        idle = views.jobs.idle()
    _told(answers, as_json=as_json)
    if idle and any(answer.done for answer in answers) and not as_json:
        hint(NO_WORKER)
    _exit_unless_all(answers)


@jobs.command("cancel")
def cancel_jobs(ids: Ids, *, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False) -> None:
    """Take jobs out of the queue; workers that are at one of them are asked to stop."""
    with opened(store, app) as views:
        answers = views.jobs.cancel(ids)
    _told(answers, as_json=as_json)
    _exit_unless_all(answers)


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
def pause_queues(queues: Queues, *, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False) -> None:
    """Start no further job of these queues, on any worker, until they are resumed. What has begun goes on."""
    _paused(queues, store, app, paused=True, as_json=as_json)


@jobs.command("resume")
def resume_queues(queues: Queues, *, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False) -> None:
    """Start jobs of these queues again."""
    _paused(queues, store, app, paused=False, as_json=as_json)


def _paused(queues: list[str], store: str | None, app: str | None, *, paused: bool, as_json: bool) -> None:
    if not all(queue.strip() for queue in queues):
        refuse("expected the name of a queue, got: an empty one.")
    with opened(store, app) as views:
        said = views.jobs.set_paused(queues, paused=paused)
        where = stored_at(views, store)
    if as_json:
        print_json([{"queue": queue, "paused": paused} for queue in queues])
    else:
        say(f"{'Paused' if paused else 'Resumed'} {', '.join(queues)}.")
    for sentence in said:
        hint(sentence)
    if paused and not as_json:
        hint(f"To go on: {shlex.join(['outlast', 'jobs', 'resume', *queues, *where])}")


def _said(error: str | None, error_class: str | None) -> str:
    """An error with its class; what an operator has done has none."""
    return "" if error is None else error if error_class is None else f"{error_class}: {error}"
