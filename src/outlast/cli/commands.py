"""
The commands. Each prints a table for people and, with ``--json``, one JSON document for programs.

Exit codes: 0 completed, 1 failed, 2 invalid input, 3 partial, 4 failure budget exceeded, 130 interrupted, 143 ended by
SIGTERM.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from outlast import __version__
from outlast.cli.jobs import enqueue, jobs
from outlast.cli.letters import dlq
from outlast.cli.options import AsJson  # noqa: TC001 - typer reads the annotations
from outlast.cli.output import print_json, refuse
from outlast.cli.report import report_run
from outlast.cli.running import resume, run
from outlast.cli.runs import breaker, cancel, events, pause, runs
from outlast.cli.schema import migrate
from outlast.cli.worker import worker
from outlast.display.terminal import Screen
from outlast.errors import ConfigurationError
from outlast.verdicts import ERROR_CLASSES, classify

if TYPE_CHECKING:
    from outlast.verdicts import Verdict

app = typer.Typer(
    name="outlast",
    help="Python pipelines that outlast failure.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outlast {__version__}")
        raise typer.Exit


@app.callback()
def main(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Python pipelines that outlast failure."""


app.command("run")(run)
app.command("resume")(resume)
app.command("enqueue")(enqueue)
app.command("worker")(worker)
app.command("pause")(pause)
app.command("cancel")(cancel)
runs.command("report")(report_run)
app.add_typer(runs)
app.add_typer(jobs)
app.add_typer(dlq)
app.add_typer(breaker)
app.command("events")(events)
app.command("migrate")(migrate)


@app.command("classify")
def classify_errors(
    errors: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ERROR]...",
            help="HTTP statuses (503), exception names (requests.Timeout), error classes (timeout).",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """
    Say what Outlast makes of an error: category, error class, tier, and why.

    Without an argument: every error class there is.
    """
    verdicts: dict[str, Verdict] = {}
    problems: list[str] = []
    for error in errors or ERROR_CLASSES:
        try:
            _load(error)
            verdicts[error] = classify(error)
        except ConfigurationError as wrong:
            problems += wrong.problems
    if problems:
        refuse(*problems)
    if as_json:
        print_json([{"error": error} | _fields(verdict) for error, verdict in verdicts.items()])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("error", "category", "error class", "tier", "why"):
        table.add_column(heading, overflow="fold")
    colours = {"transient": "green", "unclear": "yellow", "permanent": "red"}
    for error, verdict in verdicts.items():
        category = f"[{colours[verdict.category]}]{verdict.category}[/]{' (fatal)' if verdict.fatal else ''}"
        table.add_row(error, category, verdict.error_class, verdict.tier, verdict.why)
    Screen().print(table)


def _load(name: str) -> None:
    """Import the module of a dotted name, if it is installed: who asks about it here means it."""
    module = name.rpartition(".")[0]
    if module and all(part.isidentifier() for part in module.split(".")):
        with suppress(ImportError):
            import_module(module)


def _fields(verdict: Verdict) -> dict[str, object]:
    names = ("category", "error_class", "tier", "retry_after", "fatal", "status", "why")
    return {name: getattr(verdict, name) for name in names}
