"""
A declared pipeline: `Flow.load` compiles a file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from outlast.spec.compile import Compiled
    from outlast.spec.manifest import Manifest


class Flow:
    """
    A pipeline file, compiled. `manifest` says what it does and what happens when something fails; `warnings` has a line
    for everything in the file that is allowed and rarely meant.
    """

    manifest: Manifest
    warnings: Sequence[str]

    def __init__(self, manifest: Manifest, *, warnings: Sequence[str] = ()) -> None:
        self.manifest = manifest
        self.warnings = tuple(warnings)

    @classmethod
    def load(
        cls,
        path: str | Path,
        /,
        *,
        params: Mapping[str, Any] | None = None,
        profile: str | None = None,
        connections: str | Path | None = None,
    ) -> Self:
        """
        Compile a pipeline file. ConfigurationError has all mistakes, each with file, line and column.

        `params` have the types that the file declares: "10" is no integer. They win over environment variables (``OUTLAST_PARAM_NAME``), these over the `profile`, that over defaults.
        `connections` is the connections file; ``connections.yaml`` beside the pipeline file, if there is one and nothing
        else is said. Environment variables of connections are not looked at. Functions that steps call are of modules in
        the folder of the file, or of those that ``OUTLAST_ALLOW`` names, with commas between them.
        """
        from outlast.spec.mistakes import refused

        compiled = compile_path(path, params=params, profile=profile, connections=connections)
        if compiled.manifest is None:
            raise refused(compiled.errors)
        told = (one for one in compiled.mistakes if one.severity == "warning")
        return cls(compiled.manifest, warnings=[str(one) for one in told])

    def __repr__(self) -> str:
        return f"<Flow {self.manifest.name!r}: {len(self.manifest.steps)} steps, {self.manifest.fingerprint}>"


def compile_path(
    path: str | Path,
    *,
    params: Mapping[str, Any] | None = None,
    profile: str | None = None,
    connections: str | Path | None = None,
    root: str | Path | None = None,
    complete: bool = True,
    every_profile: bool = False,
    manifest: bool = True,
    from_shell: bool = False,
) -> Compiled:
    """
    What compiling a file comes to, with the rules that warn. `from_shell`: `params` may be texts, of any type. `root` is the project's, the folder of the file if nothing
    is said: ``connections.yaml`` is looked for there, and functions that steps call are of modules there, or of those that
    the environment variable ``OUTLAST_ALLOW`` names. `every_profile`: it is checked with each of its profiles, if none is
    chosen. With ``manifest=False`` it is only checked. ConfigurationError if a file cannot be read.
    """
    from pathlib import Path as Folder

    from outlast.spec import yaml
    from outlast.spec.calling import VARIABLE, allowed_by
    from outlast.spec.compile import compile_text
    from outlast.spec.connections import connections_of
    from outlast.spec.rules import check

    return compile_text(
        yaml.load(path, "a pipeline file"),
        os.fspath(path),
        params=params,
        environment=os.environ,
        profile=profile,
        connections=connections_of(path, connections, root),
        root=Folder(path).parent if root is None else Folder(root),
        allowed=allowed_by(os.environ.get(VARIABLE, "")),
        complete=complete,
        every_profile=every_profile,
        manifest=manifest,
        from_shell=from_shell,
        rules=(check,),
    )
