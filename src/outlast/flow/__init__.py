"""
A declared pipeline: `Flow.load` compiles a file, `run` executes it.

    filling   references in a config, filled in (pure)
    progress  how far a run is, and what follows (pure)
    parts     guards of steps: their circuits, limits and retry budgets, which steps share by name
    outputs   what a step has put out, as bytes and back
    steps     one step in a thread: its attempts, each of them on record
    underway  what this process is at for steps, also after their time: it is not undone before it has come back
    items     steps over rows and items: for_each, and component: pipeline
    rows      one row: its config, its idempotency key, its component; and what undoes it
    opening   a run is found or created by its key, admitted or refused, and leased
    runner    a run from start to end
    enqueued  a flow as a durable job; doors: what commands ask before they go on with a run
    record    a run as it is on record; results: FlowResult, StepRow; view: what a watcher is given
    enqueued  a flow as a durable job
    prepared  what a run needs of its surroundings: connections, parameters, the project's root
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Literal, Never, Self

    from outlast.flow.opening import FlowPlan
    from outlast.flow.results import FlowResult
    from outlast.jobs.handle import JobHandle
    from outlast.jobs.job import BoundJob
    from outlast.kernel.aliases import Seconds
    from outlast.pipeline.home import Home
    from outlast.spec.compile import Compiled
    from outlast.spec.manifest import Manifest

_OPTIONS = ("run_key", "app", "from_step", "on_change", "dry_run", "progress", "check", "watch")


class Flow:
    """
    A pipeline file, compiled. `manifest` says what it does and what happens when something fails; `warnings` has a line
    for everything in the file that is allowed and rarely meant.
    """

    manifest: Manifest
    warnings: Sequence[str]

    def __init__(
        self,
        manifest: Manifest,
        *,
        warnings: Sequence[str] = (),
        params: Mapping[str, Any] | None = None,
        root: str | Path | None = None,
        connections: str | Path | None = None,
        file: str | Path | None = None,
    ) -> None:
        """
        A flow of a manifest that was compiled before. `params` are those that are given when it runs, by name; `root` is
        the project's folder, the current one if nothing is said, and `connections` its connections file.
        """
        from pathlib import Path as Folder

        self.manifest = manifest
        self.warnings = tuple(warnings)
        self._params = dict(params or {})
        self._root = os.path.realpath(Folder.cwd() if root is None else root)
        self._connections = None if connections is None else os.path.realpath(connections)
        self._file = None if file is None else os.path.realpath(file)
        self._app: Home | None = None  # where it runs unless the caller names another app

    @classmethod
    def load(
        cls,
        path: str | Path,
        /,
        *,
        params: Mapping[str, Any] | None = None,
        profile: str | None = None,
        connections: str | Path | None = None,
        root: str | Path | None = None,
    ) -> Self:
        """
        Compile a pipeline file. ConfigurationError has all mistakes, each with file, line and column.

        `params` have the types that the file declares: "10" is no integer. They win over environment variables (``OUTLAST_PARAM_NAME``), these over the `profile`, that over defaults.
        `connections` is the connections file; ``connections.yaml`` in the project's root, if there is one and nothing
        else is said. Environment variables of connections are not looked at before it runs. `root` is the folder of the
        project, that of the file if nothing is said: functions that steps call are of modules there, or of those that
        ``OUTLAST_ALLOW`` names, with commas between them.
        """
        from outlast.spec.mistakes import refused

        compiled = compile_path(path, params=params, profile=profile, connections=connections, root=root)
        if compiled.manifest is None:
            raise refused(compiled.errors)
        return cls.compiled(compiled, path, params=params, connections=connections, root=root)

    @classmethod
    def compiled(
        cls,
        compiled: Compiled,
        path: str | Path,
        *,
        params: Mapping[str, Any] | None = None,
        connections: str | Path | None = None,
        root: str | Path | None = None,
    ) -> Self:
        """The flow of a file that was compiled without errors."""
        from pathlib import Path as Folder

        from outlast.spec.connections import FILE

        assert compiled.manifest is not None  # noqa: S101 - its caller has looked
        told = (one for one in compiled.mistakes if one.severity == "warning")
        folder = Folder(path).parent if root is None else Folder(root)
        beside = folder / FILE
        given = connections if connections is not None else beside if os.path.lexists(beside) else None
        opened = {name: value for name, value in (params or {}).items() if name in compiled.manifest.open_params}
        return cls(
            compiled.manifest,
            warnings=[str(one) for one in told],
            params=opened,
            root=folder,
            connections=given,
            file=path,
        )

    def run(
        self,
        *,
        run_key: str | None = None,
        app: Home | None = None,
        from_step: str | None = None,
        on_change: Literal["stop", "keep", "redo"] = "stop",
        dry_run: bool = False,
        progress: bool = False,
        check: bool = True,
        watch: Callable[[Any], None] | None = None,
        **unknown: Never,
    ) -> FlowResult:
        """
        Run it. The same `run_key` goes on with a run that was interrupted or has crashed, begins a new round of one that
        failed, at what is not done, and shows the end of one that is completed. What it came to is returned if it is
        completed; else FlowFailed or FlowInterrupted is raised, which carry the result, unless ``check=False``.

        `from_step` does that step again and all that need it, after undoing what can be undone of them. If steps that are
        done have changed since, `on_change` says whether to ``keep`` what they have put out or to ``redo`` them; without
        a word the run is refused. ``dry_run=True`` says what would be done, and does nothing.

        Ctrl-C and SIGTERM wind it down; a second one does not wait for what runs.
        """
        from outlast.pipeline.drivers import blocking

        plan = self._plan(run_key, app, from_step, on_change, watch, unknown)
        if dry_run:
            from outlast.flow.prepared import dry

            return dry(plan)
        from outlast.flow.runner import FlowRun

        if progress and watch is None:
            from outlast.display.flows import shown

            with shown(plan) as watching:
                result: FlowResult = blocking(FlowRun(watching))
        else:
            result = blocking(FlowRun(plan))
        return result.raise_for_status() if check else result

    async def arun(
        self,
        *,
        run_key: str | None = None,
        app: Home | None = None,
        from_step: str | None = None,
        on_change: Literal["stop", "keep", "redo"] = "stop",
        check: bool = True,
        watch: Callable[[Any], None] | None = None,
        **unknown: Never,
    ) -> FlowResult:
        """As `run`, in this event loop, which is one of asyncio, and without handlers for signals."""
        from outlast.flow.runner import FlowRun

        plan = self._plan(run_key, app, from_step, on_change, watch, unknown)
        result = await FlowRun(plan).go()
        return result.raise_for_status() if check else result

    def _plan(
        self,
        run_key: str | None,
        app: Home | None,
        from_step: str | None,
        on_change: str,
        watch: Callable[[Any], None] | None,
        unknown: Mapping[str, Any],
    ) -> FlowPlan:
        from outlast.flow.prepared import planned
        from outlast.settings.checks import Check

        check = Check()
        check.unknown(unknown, _OPTIONS)
        check.choice("on_change", on_change, ("stop", "keep", "redo"))
        if run_key is not None:
            check.name("run_key", run_key)
        check.raise_if_any()
        return planned(
            self.manifest,
            self._app if app is None else app,
            run_key=run_key,
            root=self._root,
            connections=self._connections,
            file=self._file,
            params=self._params,
            from_step=from_step,
            on_change=on_change,
            watch=watch,
        )

    def enqueue(
        self,
        *,
        run_key: str | None = None,
        app: Home | None = None,
        queue: str = "default",
        delay: Seconds | None = None,
        unique_key: str | None = None,
        **unknown: Never,
    ) -> JobHandle[FlowResult]:
        """
        Put it into a queue, as a durable job: a worker of the `app` runs it, and goes on with the same run until it is
        completed or has failed for good. It is on disk when this returns. The manifest is stored with the job;
        connections and sensitive parameters are found by the worker. `delay` and `unique_key` are those of any job.
        """
        bound, arguments = self._to_enqueue(unknown, app, run_key, queue, delay, unique_key)
        return bound.enqueue(**arguments)

    async def aenqueue(
        self,
        *,
        run_key: str | None = None,
        app: Home | None = None,
        queue: str = "default",
        delay: Seconds | None = None,
        unique_key: str | None = None,
        **unknown: Never,
    ) -> JobHandle[FlowResult]:
        """As `enqueue`."""
        bound, arguments = self._to_enqueue(unknown, app, run_key, queue, delay, unique_key)
        return await bound.aenqueue(**arguments)

    def _to_enqueue(
        self,
        unknown: Mapping[str, Any],
        app: Home | None,
        run_key: str | None,
        queue: str,
        delay: Seconds | None,
        unique_key: str | None,
    ) -> tuple[BoundJob[..., FlowResult], dict[str, Any]]:
        from outlast.flow.enqueued import to_enqueue
        from outlast.settings.checks import Check

        check = Check()
        check.unknown(unknown, ("run_key", "app", "queue", "delay", "unique_key"))
        check.raise_if_any()
        return to_enqueue(
            self, self._app if app is None else app, run_key=run_key, queue=queue, delay=delay, unique_key=unique_key
        )

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
    What compiling a file comes to, with the rules that warn and the check of its schedule. `from_shell`: `params` may be texts, of any type. `root` is the project's, the folder of the file if nothing
    is said: ``connections.yaml`` is looked for there, and functions that steps call are of modules there, or of those that
    the environment variable ``OUTLAST_ALLOW`` names. `every_profile`: it is checked with each of its profiles, if none is
    chosen. With ``manifest=False`` it is only checked. ConfigurationError if a file cannot be read.
    """
    from pathlib import Path as Folder

    from outlast.flow.enqueued import check_schedule
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
        rules=(check, check_schedule),
    )
