"""
The command for the store's tables: whether they are what this program needs, and the changes that are missing.
"""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli.options import AsJson, StoreUrl  # noqa: TC001 - typer reads the annotations
from outlast.cli.output import Code, hint, print_json, say
from outlast.cli.stores import present
from outlast.store import StoreError, bring_up_to_date, schema_of
from outlast.store.address import Address


def migrate(
    *,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit with 1 if changes are missing.")] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """
    Upgrade the tables of a store.

    Every program does it by itself when it opens a store. This is for where programs may not change tables: run it once
    as the user who owns them, before the new programs start. Programs that have the store open go on.
    """
    address = Address.wanted(store or None)
    present(address)
    try:
        before = schema_of(address.text) if check else bring_up_to_date(address.text)
    except StoreError as error:
        hint(str(error))
        raise typer.Exit(Code.INVALID if check else Code.FAILED) from None
    if check and before.newer:
        hint(f"The store has schema {before.found}, made by a newer Outlast; this one knows schema {before.wanted}.")
        raise typer.Exit(Code.INVALID)
    after = before.found if check else before.wanted
    if as_json:
        print_json(
            {
                "store": str(address),
                "schema": after,
                "wanted": before.wanted,
                "up_to_date": after == before.wanted,
                "missing" if check else "done": list(before.missing),
            }
        )
    elif before.current:
        say(f"The store is up to date: schema {before.found}.")
    elif check:
        say(
            f"The store has schema {before.found}, and {before.wanted} is needed. Missing: {', '.join(before.missing)}."
        )
        hint("Make the changes: outlast migrate")
    else:
        say(f"The store went from schema {before.found} to {after}: {', '.join(before.missing)}.")
    if check and not before.current:
        raise typer.Exit(Code.FAILED)
