"""
The commands for connections: which a connections file has, and whether they can be reached.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlast.cli.options import AsJson, ConnectionsFile, RootHere  # noqa: TC001 - typer reads the annotations
from outlast.cli.output import Code, hint, print_found, refuse
from outlast.components.reaching import failure, reached
from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.spec.connections import Connection, Connections

connections = typer.Typer(name="connections", help="List and check connections.", no_args_is_help=True)
LIMIT = 2.0  # seconds for one connection


def _loaded(path: str | None, root: str | None) -> Connections:
    from outlast.spec.connections import FILE, load

    found = load(path or (FILE if root is None else Path(root) / FILE))
    if found.mistakes:
        refuse(*map(str, found.mistakes))
    return found


@connections.command("list")
def list_connections(*, file: ConnectionsFile = None, root: RootHere = None, as_json: AsJson = False) -> None:
    """
    List the connections of a connections file, with the environment variables that they need.

    No value is shown, of a field or of a variable.
    """
    print_found(
        [_as_document(one) for one in _loaded(file, root)],
        lambda found: found,
        lambda found: (
            found["connection"],
            "yes" if found["default"] else "",
            ", ".join(found["fields"]),
            ", ".join(f"{name} ({state})" for name, state in found["variables"].items()),
        ),
        as_json=as_json,
        none="There are no connections.",
        headings=("connection", "default", "fields", "variables"),
        wrap=("fields", "variables"),
    )


def _as_document(one: Connection) -> dict[str, Any]:
    return {
        "connection": one.name,
        "default": one.is_default,
        "fields": list(one.fields),
        "variables": {name: "set" if os.environ.get(name) else "not set" for name in one.variables},
    }


@connections.command("doctor")
def doctor(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONNECTION]...", help="Connections, such as @postgres.shop; all if left out.", show_default=False
        ),
    ] = None,
    *,
    file: ConnectionsFile = None,
    root: RootHere = None,
    as_json: AsJson = False,
) -> None:
    """
    Try to reach connections: are all variables set, and does the other side answer?

    Each is tried once, for at most 2 seconds. Nothing is written there. Exits with 1 if one cannot be used.
    """
    from outlast.spec.connections import UnknownConnection

    known = _loaded(file, root)
    wanted = list(known)
    if names:
        wanted, unknown = [], list[str]()
        for name in names:
            try:
                wanted.append(known.find(name))
            except UnknownConnection as missing:
                unknown.append(f"expected {missing.expected}, got {missing.got}; {missing.way_out}")
        if unknown:
            refuse(*unknown)
    found = [_tried(known, one) for one in wanted]
    print_found(
        found,
        lambda one: one,
        lambda one: (one["connection"], one["state"], one["kind"], one["why"]),
        as_json=as_json,
        none="There are no connections.",
        headings=("connection", "state", "kind", "why"),
        wrap=("why",),
    )
    if not as_json:
        for line in (line for one in found for line in one["mistakes"]):
            hint(line)
    bad = [one for one in found if one["state"] in ("failed", "not set", "does not fit")]
    if bad:
        if not as_json:
            hint(f"{len(bad)} of {len(found)} cannot be used.")
        raise typer.Exit(Code.FAILED)


def _tried(known: Connections, one: Connection) -> dict[str, Any]:
    def said(state: str, kind: str = "", why: str = "", mistakes: Sequence[str] = ()) -> dict[str, Any]:
        return {"connection": one.name, "state": state, "kind": kind, "why": why, "mistakes": list(mistakes)}

    try:
        fields = known.resolved(one.name, os.environ)
    except ConfigurationError as wrong:
        unset = [name for name in one.variables if not os.environ.get(name)]
        if unset:
            return said("not set", "", f"{', '.join(unset)} not set", wrong.problems)
        return said("does not fit", "", "a value of the environment does not fit", wrong.problems)
    reach = None if one.described is None else one.described.reach
    if reach is None:
        return said("not tried", "", f"nothing is known of how to reach connections of {one.family}")
    try:
        reached(reach, fields, LIMIT)
    except Exception as error:  # noqa: BLE001 - whatever a driver raises is told
        found = failure(error)
        return said("failed", found.kind, found.why + _see(one, found.fields))
    return said("reached")


def _see(one: Connection, fields: Sequence[str]) -> str:
    """Where to look: the fields that the connection has, each with its variables, and no value."""
    shown = []
    for name in fields:
        if name in one.fields:
            variables = ", ".join(one.variables_of(name))
            shown.append(f"{name} ({variables})" if variables else name)
    return f"; look at {', '.join(shown)}" if shown else ""
