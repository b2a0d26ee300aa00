"""
The commands. Each prints a table for people and, with ``--json``, one JSON document for programs.

A command loads its own room only, and none but itself is made ready: to load all of them, and to make ready what each of
fifty commands takes, is most of what a short one would do.

Exit codes: 0 completed, 1 failed, 2 invalid input, 3 partial, 4 failure budget exceeded, 5 failed and not all of it could be
undone, 130 interrupted, 143 ended by SIGTERM.
"""

from __future__ import annotations

from copy import copy
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from outlast import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# How the help lists them.
SECTIONS = {
    "Run": ("run", "resume", "enqueue", "worker"),
    "Inspect": ("runs", "jobs", "events", "metrics", "alerts", "classify"),
    "Fix": ("dlq", "breaker", "pause", "cancel"),
    "Flow files": ("validate", "compile", "explain", "diff", "schema", "components", "connections"),
    "Operate": ("migrate",),
}
# Where each command and each group of them is: the module, and its name there.
PLACES = {
    "run": ("running", "run"),
    "resume": ("running", "resume"),
    "enqueue": ("jobs", "enqueue"),
    "worker": ("worker", "worker"),
    "pause": ("runs", "pause"),
    "cancel": ("runs", "cancel"),
    "runs": ("report", "runs"),  # with its command `report`, which is written there
    "jobs": ("jobs", "jobs"),
    "dlq": ("letters", "dlq"),
    "breaker": ("runs", "breaker"),
    "events": ("runs", "events"),
    "metrics": ("alerts", "metrics"),
    "alerts": ("alerts", "alerts"),
    "migrate": ("schema", "migrate"),
    "validate": ("spec", "validate"),
    "compile": ("spec", "compile_file"),
    "diff": ("spec", "diff_files"),
    "explain": ("spec", "explain"),
    "schema": ("spec", "print_schema"),
    "components": ("components", "components"),
    "connections": ("connections", "connections"),
    "classify": ("classify", "classify_errors"),
}


class Sections(TyperGroup):
    """The commands in the help, by what they are for."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a list for each section."""
        for title, names in SECTIONS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl([(name, found.get_short_help_str(200)) for name, found in commands if found])


def command_line(words: Sequence[str] = ()) -> typer.Typer:
    """All commands; for the words of a command line that asks for one, that one alone."""
    app = typer.Typer(
        name="outlast",
        cls=Sections,
        help="Python pipelines that outlast failure.",
        epilog="Example: outlast run app.py:reviews --input reviews.jsonl --run-key today",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # help in plain lines: boxes leave a third of 80 columns for what an option does
    )
    app.callback()(main)
    for name in _asked_for(words):
        room, inside = PLACES[name]
        found = getattr(import_module(f"outlast.cli.{room}"), inside)
        if isinstance(found, typer.Typer):
            for command in found.registered_commands:
                command.short_help = _summary(command.callback)
            found.info.short_help = found.info.help
            app.add_typer(_asked_for_in(found, words[1:] if words and words[0] == name else ()))
        else:
            app.command(name, short_help=_summary(found))(found)
    return app


def _summary(command: Callable[..., object] | None) -> str:
    """The first sentence about a command, whole: the help lists would cut it."""
    text = " ".join((getattr(command, "__doc__", None) or "").split())
    return text.partition(". ")[0].removesuffix(".") + "."


def _asked_for(words: Sequence[str]) -> Iterable[str]:
    first = words[0] if words else None
    if first == "--version":
        return ()
    # Help is about all of them, and so is the message about a name that nobody has.
    return (first,) if first in PLACES else PLACES


def _asked_for_in(group: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """The group, with the one command that the words ask for, if they do."""
    named = [command for command in group.registered_commands if command.name in words[:1]]
    if not named:
        return group
    alone = copy(group)
    alone.registered_commands = named
    return alone


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outlast {__version__}")
        raise typer.Exit


def main(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Python pipelines that outlast failure."""
