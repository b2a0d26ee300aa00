"""
``outlast worker``: works on the jobs of an app, shows what it does, and ends with an exit code that says whether
anything was cut off.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from outlast.cli.options import AppName, AsJson, StoreUrl  # noqa: TC001 - typer reads the annotations
from outlast.cli.output import Code, hint, moment, print_json, refuse, say
from outlast.cli.stores import named_by, stored_at, tell_masked, way_out
from outlast.cli.streams import settled
from outlast.display.watch import Lines, Terminal, Watching, in_terminal
from outlast.display.worker import WorkerNow, lines, picture
from outlast.errors import ConfigurationError
from outlast.jobs.own import own_jobs
from outlast.kernel.clock import REAL
from outlast.kernel.frames import from_here
from outlast.kernel.redact import harmless
from outlast.kernel.wording import counted, progress_text, whole
from outlast.report.views import Views
from outlast.settings.keys import seconds_of
from outlast.store.faults import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from outlast.app import App
    from outlast.display.watch import Screen
    from outlast.jobs.worker import Worker, WorkerView, WorkResult
    from outlast.store.records import QueueState

_STRAY = 1.0  # seconds that threads of jobs have to end after the worker
_RARER = 20.0  # times what a look at the queues has taken, to the next one: a long queue takes long to count


def worker(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="The app: shop.jobs:app, or jobs.py if it has only one. Default: none; then it does pipeline files only.",
            show_default=False,
        ),
    ] = None,
    *,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            metavar="NAME[=N]",
            help="Only jobs of this queue, at most N of them at a time. May be given several times. Default: every queue.",
            show_default=False,
        ),
    ] = None,
    flow: Annotated[
        list[str] | None,
        typer.Option(
            "--flow",
            metavar="FILE",
            help="Carry out the schedule of this flow. May be given several times.",
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", metavar="N", help="So many jobs at a time.")] = 64,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when nothing is due or processed; exit with 3 if a job failed.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 if a job failed permanently, also after a signal.")
    ] = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="Let others notice within 6 seconds if this process dies, instead of 30.")
    ] = False,
    drain: Annotated[
        str,
        typer.Option(
            "--drain",
            metavar="DURATION",
            help="How long running jobs may take to end after a signal. Then they are cancelled, and have another 5 seconds to clean up.",
        ),
    ] = "20s",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="N",
            min=0,
            max=65535,
            help="Serve the metrics for Prometheus at this port, which is printed; 0: at one that is free. Needs the extra metrics.",
            show_default=False,
        ),
    ] = None,
    metrics_host: Annotated[
        str,
        typer.Option("--metrics-host", metavar="ADDRESS", help="Serve them at this address; 0.0.0.0: at every one."),
    ] = "127.0.0.1",
    progress: Annotated[
        bool | None,
        typer.Option(
            "--progress/--no-progress",
            help="Show what it does: live in a terminal, else a line now and then. Default: shown, unless --json is given.",
            show_default=False,
        ),
    ] = None,
    store: StoreUrl = None,
    app_name: AppName = None,
    as_json: AsJson = False,
) -> None:
    """
    Run jobs from the queues. Ctrl-C or SIGTERM starts no more, lets those that run end, and gives the rest back; a second one does
    not wait.
    """
    from outlast.cli.targets import app_wanted, is_flow, loaded
    from outlast.jobs.doors import made, told

    if target is not None and is_flow(target):
        refuse(
            f"expected an app, got: {target}, a pipeline file. A worker without a target does pipeline files: outlast worker; "
            f"this carries out its schedule: {shlex.join(['outlast', 'worker', '--flow', target])}; "
            f"and this puts it into the queue: {shlex.join(['outlast', 'enqueue', target])}"
        )
    problems: list[str] = []
    app = loaded(target, app_wanted(), store, problems) if target is not None else _bare_app(app_name, store)
    if target is not None and app_name is not None:
        problems.append(f"expected no --app with {target}, which says itself what it is called.")
    if app is not None:
        _take_flows(app, flow or (), problems)
    queues = _queues(queue or (), concurrency, problems)
    seconds = seconds_of(drain)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        problems.append(f"expected --drain to be a duration such as 20s or 5m, or a number of seconds, got: {drain!r}.")
    if app is not None and not app.kinds and not own_jobs(app):
        where = "an app to have jobs" if target is None else f"{target} to have jobs"
        problems.append(
            f"expected {where}, got: none. Import the modules that make them with @app.job where the app is made; "
            "for pipeline files: pip install 'outlast[flows]'."
        )
    if concurrency < 1:
        problems.append(f"expected --concurrency to be at least 1, got: {concurrency}.")
    if problems or app is None:
        refuse(*problems)
    try:
        working = made(app, queues, concurrency, until_idle=until_idle, drain=float(seconds))
    except ConfigurationError as wrong:
        refuse(*wrong.problems)
    if target is not None and not app.kinds and not app.flows:
        hint(
            f"{target} has no jobs of its own. If it should: import the modules that make them with @app.job where the app is made."
        )
    end_metrics = None if metrics_port is None else _metrics(metrics_host, metrics_port)
    screen = None if as_json else _screen(wanted=progress)

    def first() -> None:
        """In a thread, and when signals are heard: to open the store may take long, and so may a look at it."""
        if screen is not None:
            _hello(app, queues, concurrency)
        try:
            views = Views(app.store)
            declared = {job.queue for job in app.kinds.values()}
            for sentence in views.jobs.unknown_queues(queues, declared) if queues else ():
                hint(sentence)
        except StoreUnavailable as away:  # which the worker waits for
            if (way := way_out(away, target or "", app.store_url)) is not None:
                hint(f"The store cannot be reached, and is waited for. {way}")

    try:
        with _heard():
            result, number = told(working, fast=fast, first=first, watched=_Watched(screen, working, app, queues))
    finally:
        if end_metrics is not None:
            end_metrics()
    code = _code(result, number, strict=strict or until_idle)
    if as_json:
        ended_by = None if number is None else signal.Signals(number).name
        print_json(asdict(result) | {"signal": ended_by, "exit_code": int(code)})
    else:
        _tell(result, number, working.not_again, working.undoing_cut_off)
    if number is not None:
        _end_at_once(code)
    if not as_json and working.opened:  # one that was never open is not to be waited for now
        _tell_steps(result, app, store, queues, idle=until_idle and number is None)
    if number is not None:
        _leave(code)
    raise typer.Exit(code)


def _bare_app(name: str | None, store: str | None) -> App:
    """An app that has no jobs of its own."""
    from outlast.app import App

    return App(name or "default", store=store)


def _take_flows(app: App, files: Sequence[str], problems: list[str]) -> None:
    """Let the worker carry out the schedules of these flows."""
    before = dict(app.flows)
    for file in files:
        try:
            taken = app.flow(file)
        except ConfigurationError as wrong:
            problems += wrong.problems
            continue
        if app.flows == before:
            problems.append(
                f'{file} has no schedule. Add one, as in schedule: "0 3 * * *", or leave out --flow {file}: '
                f"every worker runs {taken.manifest.name} once it is enqueued."
            )
        before = dict(app.flows)


def _metrics(host: str, port: int) -> Callable[[], None]:
    """Serve the metrics, and say where; what ends that."""
    try:
        from outlast.observe.prometheus import serve
    except ModuleNotFoundError as missing:
        if missing.name != "prometheus_client":
            raise
        refuse("--metrics-port needs an extra: pip install 'outlast[metrics]'.")
    try:
        port, end = serve(host, port)
    except OSError as error:
        refuse(
            f"expected --metrics-port {port} to be free at {host}, an address of this host, got: {error.strerror}. "
            "0 takes a port that is free."
        )
    shown = f"[{host}]" if ":" in host else host
    hint(f"Metrics: http://{shown}:{port}/metrics")
    return end


def _end_at_once(code: Code) -> None:
    """
    From now on a signal ends the process with this code, and waits for nothing: all is told. By itself it would kill the
    process, and whoever has started that would take it for another end.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(number)):  # else it was ignored all the time
            signal.signal(number, lambda *_: os._exit(code))


def _leave(code: Code) -> NoReturn:
    """
    End now, also if threads go on that jobs have begun: the interpreter would wait for them, perhaps for ever. And while
    it ends by itself, it forgets how signals are handled: a late one would kill it.
    """
    until = REAL.clock.monotonic() + _STRAY
    here = threading.current_thread()
    others = [one for one in threading.enumerate() if one is not here and not one.daemon]
    for one in others:
        one.join(max(0.0, until - REAL.clock.monotonic()))
    atexit._run_exitfuncs()  # noqa: SLF001 - what is done at every end, except for the wait
    os._exit(settled(code))


def _queues(given: Sequence[str], concurrency: int, problems: list[str]) -> dict[str, int]:
    """How many jobs of each queue may run at a time; empty: of every queue."""
    found: dict[str, int] = {}
    for text in given:
        name, mark, number = text.rpartition("=")
        bounded = bool(mark) and number.isascii() and number.isdecimal()
        name, most = (name, int(number)) if bounded else (text, concurrency)
        if not name.strip() or (mark and not bounded) or not most:
            problems.append(
                f"expected --queue to be a name, or one with a number behind it as in mail=4, got: {text!r}."
            )
        elif name in found:
            problems.append(f"expected --queue {name} once, got: twice.")
        elif most > concurrency > 0:
            problems.append(
                f"expected --queue {name} to have at most --concurrency ({concurrency}), got: {most}. "
                "Raise --concurrency, which bounds all of them together."
            )
        else:
            found[name] = most
    return found


def _code(result: WorkResult, number: int | None, *, strict: bool) -> Code:
    if not result.cut_off:
        return Code.PARTIAL if strict and result.failed else Code.COMPLETED
    return Code.TERMINATED if number == signal.SIGTERM else Code.INTERRUPTED


# --- while it works -----------------------------------------------------------------------------------------------------


def _screen(*, wanted: bool | None) -> Screen | None:
    if wanted is False:
        return None
    return Terminal(keep=False, draw=picture) if in_terminal() else Lines(keep=False, tell=lines, news=True)


def _hello(app: App, queues: dict[str, int], concurrency: int) -> None:
    kinds = ", ".join(sorted([*app.kinds, *app.flows])) or "pipeline files only"
    of = ", ".join(f"{queue} ({most})" if most != concurrency else queue for queue, most in queues.items())
    hint(
        f"Worker of {app.name}: {kinds}; {f'queues {of}' if of else 'every queue'}; {concurrency} at a time. {_way_to_end()} ends it."
    )


def _way_to_end() -> str:
    """How a person ends this worker: a shell lets programs in the background ignore Ctrl-C."""
    return f"kill {os.getpid()}" if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else "Ctrl-C"


@contextmanager
def _heard() -> Iterator[None]:
    """What the worker logs goes to standard error, unless the program has a place for its logs already."""

    class ToStderr(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            at = moment(datetime.fromtimestamp(record.created, UTC))
            below = f"\n{harmless(from_here(record.exc_text), lines=True)}" if record.exc_text else ""
            sys.stderr.write(harmless(f"{at} {record.levelname} {record.getMessage()}") + below + "\n")

    logger = logging.getLogger("outlast")
    if any(not isinstance(one, logging.NullHandler) for one in (*logger.handlers, *logging.root.handlers)):
        yield
        return
    handler = ToStderr(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Watched(Watching):
    """A worker, with what waits in its queues as it was last seen."""

    what = "the worker"

    def __init__(self, screen: Screen | None, worker: Worker, app: App, queues: dict[str, int]) -> None:
        super().__init__(screen)
        self._shows = screen is not None
        self._worker = worker
        self._app = app
        self._serves = queues
        self._began = REAL.clock.monotonic()
        self._seen: list[QueueState] | None = None
        self._next_run_at: datetime | None = None
        self._again = 0.0
        self._seen_at = 0.0
        self._taken = 0  # until then
        self._away = False

    def act(self) -> None:
        """Look at the queues, less often the longer that takes."""
        began = REAL.clock.monotonic()
        if not self._shows or began < self._again or not self._worker.opened:
            return
        try:
            jobs = Views(self._app.store).jobs
            found = jobs.queues()
            self._next_run_at = jobs.next_due(
                self._serves or None,
                {job.kind: job.version for job in (*self._app.kinds.values(), *own_jobs(self._app).values())},
            )
        except StoreUnavailable as failed:
            self._away = not failed.locked
            raise
        self._away = False
        self._seen = [one for one in found if not self._serves or one.queue in self._serves]
        self._taken = _taken(self._worker.view())
        now = self._seen_at = REAL.clock.monotonic()
        self._again = now + _RARER * (now - began)

    def look(self) -> WorkerNow:
        """The worker as it is now."""
        view, now, seen = self._worker.view(), REAL.clock.monotonic(), self._seen
        due = self._next_run_at
        counts: dict[str, Any] = dict(view.counts)
        return WorkerNow(
            app=self._app.name,
            elapsed=now - self._began,
            concurrency=view.concurrency,
            processing=view.processing,
            waiting=view.waiting,
            stuck=view.stuck,
            **counts,
            queued=None if seen is None else sum(one.queued for one in seen),
            scheduled=sum(one.scheduled for one in seen or ()),
            next_in=None if due is None else max(0.0, (due - REAL.clock.now()).total_seconds()),
            seen_ago=0.0 if seen is None else now - self._seen_at,
            taken=_taken(view) - self._taken,
            paused=tuple(one.queue for one in seen or () if one.paused),
            ending=_ending(view, now),
            trouble="the lease was not renewed (the store is away, or this process stood still): nothing is claimed, what runs is given back"
            if view.fenced
            else "the store does not answer: it is waited for"
            if self._away
            else None,
            progress=tuple(
                (f"{kind} {number}", progress_text(*progress))
                for kind, number, progress in sorted(view.progress, key=lambda one: one[1])
            ),
        )


def _taken(view: WorkerView) -> int:
    """How many jobs this worker has taken out of their queues and not put back. What is stuck is back, or has ended."""
    ended = sum(view.counts[name] for name in ("succeeded", "failed", "cancelled"))
    return ended + view.processing + view.waiting


def _ending(view: WorkerView, now: float) -> str | None:
    if view.drains_until is None:
        return None
    running = view.processing + view.waiting + view.stuck
    if view.cutting:
        from outlast.jobs.worker import FAREWELL

        jobs = f"{counted(running, 'job')} cancelled"
        return f"ending: {jobs}, given back when their code has ended, after {whole(FAREWELL)} at the latest"
    left = max(0.0, view.drains_until - now)
    if not running:
        return f"ending: waits for the store, at most {whole(left)}; {_way_to_end()} again ends it at once"
    return f"ending: waits for {counted(running, 'job')}, at most {whole(left)}; {_way_to_end()} again cancels them and gives them back"


# --- when it has ended --------------------------------------------------------------------------------------------------


def _tell(result: WorkResult, number: int | None, not_again: Mapping[str, int], undoing: int = 0) -> None:
    """`not_again`: jobs that were cut off and had ended before, by how; `undoing`: of all that were cut off, how many were being undone."""
    from outlast.jobs.hanging import again_words

    words = (
        (result.succeeded, "succeeded"),
        (result.failed, "failed"),
        (result.requeued, "requeued"),
        (result.cancelled, "cancelled"),
        (result.released, "given back"),
        (result.lost, "lost to another worker"),
    )
    say(
        "   ".join(f"{count:,} {word}" for count, word in words if count or word in {"succeeded", "failed", "requeued"})
    )
    if result.cut_off:
        if jobs := result.cut_off - undoing:
            code = "its code had not ended" if jobs == 1 else "their code had not ended"
            say(f"{counted(jobs, 'job was', 'jobs were')} cut off: {code}. {again_words(jobs, not_again)}")
        if undoing:
            again = "Another worker undoes it." if undoing == 1 else "Other workers undo them."
            what = counted(undoing, "job was cut off while it was", "jobs were cut off while they were")
            say(f"{what} being undone: what undoes {'it' if undoing == 1 else 'them'} had not ended. {again}")
    elif number is not None:
        say(f"Ended by {signal.Signals(number).name}; all work is finished or given back.")
    else:
        failed = f" {counted(result.failed, 'job')} failed permanently." if result.failed else ""
        say(f"Idle: nothing is due.{failed}")
    if result.later and result.next_run_at is not None:
        say(f"{counted(result.later, 'job is', 'jobs are')} due later, the first at {moment(result.next_run_at)} UTC.")


def _tell_steps(result: WorkResult, app: App, store: str | None, queues: dict[str, int], *, idle: bool) -> None:
    with suppress(StoreUnavailable):  # as it may be when a signal ends the worker
        place = store or named_by(app.store_url)
        steps = list(_next_steps(result, Views(app.store), place, queues, idle=idle))
        for step in steps:
            hint(step)
        if any("--store" in step for step in steps):
            tell_masked(place)


def _next_steps(
    result: WorkResult, views: Views, store: str | None, queues: dict[str, int], *, idle: bool
) -> Iterator[str]:
    where = stored_at(views, store)
    if result.failed:
        yield f"Which have failed: {shlex.join(['outlast', 'jobs', 'list', '--status', 'failed', *where])}"
        yield f"As a few problems: {shlex.join(['outlast', 'dlq', 'groups', *where])}"
    if not idle:
        return
    left = [one for one in views.jobs.queues() if one.queued and (not queues or one.queue in queues)]
    paused = [one.queue for one in left if one.paused]
    if paused:
        count = counted(sum(one.queued for one in left if one.paused), "job waits", "jobs wait")
        yield f"{count} in queues that are paused: {shlex.join(['outlast', 'jobs', 'resume', *paused, *where])}"
    unknown = sum(one.queued for one in left if not one.paused)
    if unknown:
        yield f"{counted(unknown, 'job is', 'jobs are')} left: of kinds, or of a version, that this program does not know."
