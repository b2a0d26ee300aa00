"""
What a run needs of its surroundings, found out before anything begins: components that can run, connections with all
their variables, the values of sensitive parameters. Everything that is missing is told at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlast.components.registry import find_component
from outlast.errors import ConfigurationError, Problem
from outlast.flow.opening import FlowPlan
from outlast.flow.steps import KEY_SECRET, keys_mark
from outlast.kernel.clock import REAL
from outlast.kernel.redact import passwords_in, remember_secret, remember_variable
from outlast.pipeline.home import DEFAULT
from outlast.settings.secret import Secret
from outlast.spec.calling import VARIABLE, allowed_by
from outlast.spec.connections import FILE, load
from outlast.spec.params import open_value, variable_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.flow.results import FlowResult
    from outlast.pipeline.home import Home
    from outlast.spec.manifest import Manifest, ManifestStep


def planned(
    manifest: Manifest,
    app: Home | None,
    *,
    run_key: str | None,
    root: str,
    connections: str | None,
    file: str | None = None,
    params: Mapping[str, Any] | None = None,
    **options: Any,
) -> FlowPlan:
    """A run that can begin. ConfigurationError has everything that is missing."""
    home = (DEFAULT if app is None else app).present
    problems: list[Problem] = []
    _components(manifest, problems)
    secret = _secrets(manifest, params or {}, problems)
    fields = _connections(manifest, connections, root, problems)
    if problems:
        raise ConfigurationError(problems)
    remember_variable(KEY_SECRET)
    keyed = any("idempotency" in step.work for step in manifest.steps)
    files = {"root": root, "connections": connections, "file": file, "keys": keys_mark() if keyed else None}
    return FlowPlan(
        manifest=manifest,
        home=home,
        run_key=new_key() if run_key is None else run_key,
        is_new=run_key is None,
        root=root,
        allowed=allowed_by(os.environ.get(VARIABLE, "")),
        secret=secret,
        hidden=(*_hidden([secret, os.environ.get(KEY_SECRET)]), *_hidden(fields, every=False)),
        connection=fields.__getitem__,
        files={key: value for key, value in files.items() if value is not None},
        **options,
    )


def new_key() -> str:
    """A key for a run that was given none. A test's seed has no part in it: two runs would share it."""
    return REAL.ids.new()


def _uses(manifest: Manifest) -> Iterator[tuple[ManifestStep, str, str, Mapping[str, Any]]]:
    """Every component that a manifest uses: its step, where it stands, its name, its config."""
    for step in manifest.steps:
        yield step, "component", step.component, step.config
        undo = step.work.get("compensate")
        if undo is not None:
            yield step, "compensate.component", str(undo["component"]), undo["config"]


def _components(manifest: Manifest, problems: list[Problem]) -> None:
    for step, where, name, _ in _uses(manifest):
        component = find_component(name)
        place = ("steps", step.id, *where.split("."))
        if component is None:
            problems.append(Problem(place, "a component that is known here", name, "Install the package that has it."))
        elif component.run is None and name != "pipeline":
            problems.append(Problem(place, "a component that can run", f"{name}, which is a description only"))


def _secrets(manifest: Manifest, given: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in manifest.open_params:
        kind = manifest.open_types.get(name, "string")
        variable = variable_of(name)
        try:
            if name in given:
                found[name] = open_value(name, kind, given[name], is_text=isinstance(given[name], str))
            elif variable in os.environ:
                found[name] = open_value(name, kind, os.environ[variable])
            else:
                way_out = f"It is sensitive, and in no manifest: give it again, or set {variable}."
                problems.append(Problem(("params", name), "a value", "nothing", way_out))
                continue
        except ConfigurationError as wrong:
            problems += wrong.details
            continue
        for text in _hidden(found[name]):  # from now on it is in nothing that goes out
            remember_secret(text)
    return found


def _hidden(value: Any, *, every: bool = True) -> tuple[str, ...]:
    """What is secret in a value, as texts: `every` part of a parameter, or of a connection what is a `Secret`."""
    if isinstance(value, Mapping | list | tuple):
        inside = value.values() if isinstance(value, Mapping) else value
        return tuple(text for one in inside for text in _hidden(one, every=every))
    if isinstance(value, Secret):
        return (text := value.reveal(), *passwords_in(text))
    return (str(value),) if every and value is not None and not isinstance(value, bool) else ()


def _connections(
    manifest: Manifest, path: str | None, root: str, problems: list[Problem]
) -> dict[str, Mapping[str, Any]]:
    """The fields of every connection that a step names."""
    names = {
        str(config["connection"]): step.id
        for step, _, _, config in _uses(manifest)
        if isinstance(config.get("connection"), str)
    }
    if not names:
        return {}
    if path is None:
        first = next(iter(names))
        way_out = f"Write one into the project's root, or name it with connections=. {names[first]} needs {first}."
        problems.append(Problem((), f"a connections file, such as {os.path.join(root, FILE)}", "none", way_out))  # noqa: PTH118 - for people
        return {}
    file = load(path)
    if file.mistakes:
        from outlast.spec.mistakes import refused

        problems += refused(file.mistakes).details
        return {}
    found: dict[str, Mapping[str, Any]] = {}
    for name in names:
        try:
            found[name] = file.resolved(name, os.environ)
        except ConfigurationError as wrong:
            problems += wrong.details
    _hidden(found, every=False)  # whatever is revealed is removed from all that goes out
    return found


def dry(plan: FlowPlan) -> FlowResult:
    """
    What a run would do, without doing anything; the steps are as they are on record. Raises what the run itself would
    refuse.
    """
    from outlast.flow.doors import outlook
    from outlast.flow.record import result_of_record
    from outlast.flow.results import FlowResult, StepRow
    from outlast.store import open_store

    steps = tuple(StepRow(id=step.id, component=step.component, status="pending") for step in plan.manifest.steps)
    run, store = "", open_store(plan.home.store_url, app=plan.home.name) if _has_store(plan.home) else None
    try:
        record = None if store is None else store.find_run(plan.manifest.name, plan.run_key)
        found = outlook(plan, store)
        if store is not None and record is not None:
            run, steps = record.id, tuple(result_of_record(store, plan.home.codec, record, plan.manifest).steps)
    finally:
        if store is not None:
            store.close()
    return FlowResult(
        id=run,
        run_key=plan.run_key,
        pipeline=plan.manifest.name,
        status="paused",
        why=f"dry run, nothing was run: {found.why}",
        steps=steps,
        reason="dry_run",
    )


def _has_store(home: Home) -> bool:
    """Whether there is a store to look at: looking makes none."""
    file = home.store_file
    return file is None or os.path.exists(file)  # noqa: PTH110 - a text
