"""
Options and arguments that several commands have, each declared once.
"""

from __future__ import annotations

from typing import Annotated

import typer

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run, by its key, its id, or the beginning of one.")]
Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="The pipeline: app.py:reviews or shop.pipelines:reviews.")
]
OfPipeline = Annotated[str | None, typer.Option("--pipeline", help="Only of this pipeline.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it stays on record.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Where runs and jobs are kept: sqlite:///path or postgresql://... Default: OUTLAST_STORE, else .outlast/outlast.db.",
        show_default=False,
    ),
]
AppName = Annotated[
    str | None,
    typer.Option("--app", metavar="NAME", help="The App that is meant, where a store has several.", show_default=False),
]
Progress = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Show progress: live in a terminal, else a line now and then. Default: in a terminal.",
        show_default=False,
    ),
]
ConnectionsFile = Annotated[
    str | None,
    typer.Option(
        "--connections",
        metavar="PATH",
        help="The connections file. Default: connections.yaml in the project's root.",
        show_default=False,
    ),
]
Root = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="FOLDER",
        help="The project's root, where connections.yaml is. Default: the folder of the pipeline file.",
        show_default=False,
    ),
]
RootHere = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="FOLDER",
        help="The project's root, where connections.yaml is. Default: the current folder.",
        show_default=False,
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="The value of a parameter; may be given several times.",
        show_default=False,
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many.")]
