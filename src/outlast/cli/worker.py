"""
``outlast worker``: works on the jobs of an app, shows what it does, and ends with an exit code that says whether
anything was cut off.
"""

from __future__ import annotations

import logging
import shlex
import signal
import sys
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlast.cli.options import AsJson, Progress, StoreUrl  # noqa: TC001 - typer reads the annotations
from outlast.cli.output import Code, hint, moment, print_json, refuse, say
from outlast.cli.stores import stored_at
from outlast.display.watch import Lines, Terminal, Watching, in_terminal
from outlast.display.worker import WorkerNow, lines, picture
from outlast.errors import ConfigurationError
from outlast.kernel.clock import REAL
from outlast.kernel.redact import harmless
from outlast.kernel.wording import counted, whole
from outlast.report.views import Views
from outlast.settings.keys import seconds_of
from outlast.store.faults import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outlast.app import App
    from outlast.display.watch import Screen
    from outlast.jobs.worker import Worker, WorkerView, WorkResult
    from outlast.store.records import QueueState

_RARER = 20.0  # times what a look at the queues has taken, to the next one: a long queue takes long to count


def worker(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="The app: shop.jobs:app, or jobs.py if it has only one."),
    ],
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
    concurrency: Annotated[int, typer.Option("--concurrency", metavar="N", help="So many jobs at a time.")] = 64,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when nothing is due or being processed. Default: at a signal.")
    ] = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="Let others notice within 6 seconds if this process dies, instead of 30.")
    ] = False,
    drain: Annotated[
        str, typer.Option("--drain", metavar="DURATION", help="How long running jobs may take to end after a signal.")
    ] = "20s",
    progress: Progress = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """
    Work on jobs. Ctrl-C or SIGTERM starts no more, lets those that run end, and gives the rest back; a second one does
    not wait.
    """
    from outlast.cli.targets import app_wanted, loaded
    from outlast.jobs.doors import made, told

    problems: list[str] = []
    app = loaded(target, app_wanted(), store, problems)
    queues = _queues(queue or (), concurrency, problems)
    seconds = seconds_of(drain)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        problems.append(f"expected --drain to be a duration such as 20s or 5m, or a number of seconds, got: {drain!r}.")
    if app is not None and not app.kinds:
        problems.append(
            f"expected {target} to have jobs, got: none. Import the modules that make them with @app.job where the app is made."
        )
    if concurrency < 1:
        problems.append(f"expected --concurrency to be at least 1, got: {concurrency}.")
    if problems or app is None:
        refuse(*problems)
    try:
        working = made(app, queues, concurrency, until_idle=until_idle, drain=float(seconds))
    except ConfigurationError as wrong:
        refuse(*wrong.problems)
    screen = None if as_json else _screen(wanted=progress)
    if screen is not None:
        _hello(app, queues, concurrency)
    with _heard(), _Watched(screen, working, app, queues):
        result, number = told(working, fast=fast)
    code = _code(result, number)
    if as_json:
        ended_by = None if number is None else signal.Signals(number).name
        print_json(asdict(result) | {"signal": ended_by, "exit_code": int(code)})
    else:
        _tell(result, number)
        with suppress(StoreUnavailable):  # as it may be when a signal ends the worker
            for step in _next_steps(result, Views(app.store), store, queues, idle=until_idle and number is None):
                hint(step)
    raise typer.Exit(code)


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


def _code(result: WorkResult, number: int | None) -> Code:
    if not result.cut_off:
        return Code.COMPLETED
    return Code.TERMINATED if number == signal.SIGTERM else Code.INTERRUPTED


# --- while it works -----------------------------------------------------------------------------------------------------


def _screen(*, wanted: bool | None) -> Screen | None:
    if wanted is False:
        return None
    return Terminal(keep=False, draw=picture) if in_terminal() else Lines(keep=False, tell=lines, news=True)


def _hello(app: App, queues: dict[str, int], concurrency: int) -> None:
    kinds = ", ".join(sorted(app.kinds))
    of = ", ".join(f"{queue} ({most})" if most != concurrency else queue for queue, most in queues.items())
    hint(
        f"Worker of {app.name}: {kinds}; {f'queues {of}' if of else 'every queue'}; {concurrency} at a time. Ctrl-C ends it."
    )


@contextmanager
def _heard() -> Iterator[None]:
    """What the worker logs goes to standard error, unless the program has a place for its logs already."""

    class ToStderr(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            at = moment(datetime.fromtimestamp(record.created, UTC))
            sys.stderr.write(harmless(f"{at} {record.levelname} {record.getMessage()}") + "\n")

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

    def act(self) -> None:
        """Look at the queues, less often the longer that takes."""
        began = REAL.clock.monotonic()
        if not self._shows or began < self._again:
            return
        jobs = Views(self._app.store).jobs
        found = jobs.queues()
        self._next_run_at = jobs.next_due(
            self._serves or None, {job.kind: job.version for job in self._app.kinds.values()}
        )
        self._seen = [one for one in found if not self._serves or one.queue in self._serves]
        now = REAL.clock.monotonic()
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
            paused=tuple(one.queue for one in seen or () if one.paused),
            ending=_ending(view, now),
            trouble="the store does not answer: nothing is claimed, and what runs is given back"
            if view.fenced
            else None,
        )


def _ending(view: WorkerView, now: float) -> str | None:
    if view.drains_until is None:
        return None
    running = view.processing + view.waiting + view.stuck
    if view.cutting:
        return f"ending now: {counted(running, 'job')} cancelled and given back"
    left = max(0.0, view.drains_until - now)
    return f"ending: waits for {counted(running, 'job')}, at most {whole(left)}; Ctrl-C again gives them back at once"


# --- when it has ended --------------------------------------------------------------------------------------------------


def _tell(result: WorkResult, number: int | None) -> None:
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
        one = result.cut_off == 1
        said = (
            "its code had not ended. Another worker does it again."
            if one
            else "their code had not ended. Other workers do them again."
        )
        say(f"{counted(result.cut_off, 'job was', 'jobs were')} cut off: {said}")
    elif number is not None:
        say(f"Ended by {signal.Signals(number).name}; all work is finished or given back.")
    else:
        say("Idle: nothing is due.")
    if result.later and result.next_run_at is not None:
        say(f"{counted(result.later, 'job is', 'jobs are')} due later, the first at {moment(result.next_run_at)} UTC.")


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
