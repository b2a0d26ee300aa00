"""
The command that says what an error is: ``outlast classify``.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from outlast.cli.options import AsJson  # noqa: TC001 - typer reads the annotations
from outlast.cli.output import print_json, refuse
from outlast.display.terminal import Screen
from outlast.errors import ConfigurationError
from outlast.verdicts import ERROR_CLASSES, classify

if TYPE_CHECKING:
    from outlast.verdicts import Verdict


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
    Show how Outlast classifies an error, and why.

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
