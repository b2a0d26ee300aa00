"""
Text to `Manifest`, or to everything that is wrong with it. Pure: the same text, parameters, environment, connections and
components give the same answer. Nothing is imported but the descriptions of components, nothing is connected to, nothing runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from outlast.components.registry import find_component
from outlast.errors import FewSuggestions
from outlast.kernel.redact import mask_likely
from outlast.spec import profiles, reading, samples, yaml
from outlast.spec.blocks import timeout_block
from outlast.spec.calling import Project, outside
from outlast.spec.declaring import MOST_PROFILES
from outlast.spec.manifest import Manifest, ManifestStep
from outlast.spec.mistakes import Mistake, all_in_order, errors_in, first_of
from outlast.spec.model import Template, names_row
from outlast.spec.references import references_in
from outlast.spec.schedule import exact_ms, of_step
from outlast.verdicts import Alike

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
    from pathlib import Path

    from outlast.components.describing import Component
    from outlast.spec.connections import Connections
    from outlast.spec.model import Compensation, ForEach, Model, Step
    from outlast.spec.yaml import Node


@dataclass(frozen=True, slots=True)
class Compiled:
    """
    What compiling came to. `manifest` is None if there are errors among the `mistakes`, or if none was wanted; `model` is
    what could be read. `mistakes` has the first ones; `counts` says of each severity how many there are.
    """

    manifest: Manifest | None
    mistakes: tuple[Mistake, ...]
    model: Model | None
    counts: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def errors(self) -> tuple[Mistake, ...]:
        return errors_in(self.mistakes)


def compile_text(
    text: bytes | str,
    file: str = "pipeline.yaml",
    *,
    params: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    profile: str | None = None,
    connections: Connections | None = None,
    root: Path | None = None,
    allowed: Collection[str] = (),
    complete: bool = True,
    every_profile: bool = False,
    manifest: bool = True,
    from_shell: bool = False,
    rules: Sequence[Callable[[Model], Iterable[Mistake]]] = (),
    find: Callable[[str], Component | None] = find_component,
    pure: bool = False,
) -> Compiled:
    """
    Compile a pipeline file. `file` is its path as it was typed, for the mistakes. `environment` may give parameters
    (``OUTLAST_PARAM_NAME``); nothing else is read from it. With ``complete=False`` a parameter without a value is left
    open, for a look at the file alone. With `every_profile`, and no `profile`, the mistakes are those of the file under each
    of its profiles as well. With ``manifest=False`` the file is only checked, which takes half of the memory. With `from_shell` a text among the `params` is read as the type of its parameter
    says, and the way out names options of commands. `connections` has the connections that steps may name; None leaves them unchecked,
    and their mistakes are told with those of the file. `root` is the folder of the project, from which functions that the file
    names are imported and looked for, in the text of their modules; those of other modules must be `allowed`. None leaves that unchecked. `rules` look at the model of a file and may add mistakes of their own. `find`
    gives the description of a component.
    """
    one = _Compiling(
        yaml.read(text, file, pure=pure),
        file,
        params=params or {},
        environment=environment or {},
        connections=connections,
        rules=rules if root is None else (*rules, outside),
        project=None if root is None else Project(root, allowed, from_shell=from_shell),
        find=find,
        complete=complete,
        from_shell=from_shell,
        manifest=manifest,
        chosen=profile,
    )
    with FewSuggestions(), Alike():
        found = one.with_every_profile() if every_profile and profile is None else one.with_profile(profile)
    counts = Counter[str](one.severity for one in found.mistakes)
    return replace(found, mistakes=first_of(found.mistakes), counts=counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compiling:
    """A file that was read once, to be compiled under several profiles."""

    read: yaml.Read = field(kw_only=False)
    file: str = field(kw_only=False)
    params: Mapping[str, Any]
    environment: Mapping[str, str]
    connections: Connections | None
    rules: Sequence[Callable[[Model], Iterable[Mistake]]]
    find: Callable[[str], Component | None]
    project: Project | None
    complete: bool
    from_shell: bool
    manifest: bool  # whether one is made, with the profile that was chosen
    chosen: str | None

    def with_profile(self, profile: str | None) -> Compiled:
        found = self._compiled(profile, frankly=not self.complete)
        return self._placed(self._with_samples(found, profile), profile)

    def _placed(self, found: Compiled, profile: str | None) -> Compiled:
        if found.model is None or profile is None or not found.mistakes:
            return found
        told = profiles.placed(found.mistakes, found.model, self._independent)
        return replace(found, mistakes=all_in_order(told))

    def with_every_profile(self) -> Compiled:
        """Without a profile, and with each that the file has."""
        base = self._with_samples(self._compiled(None, frankly=not self.complete), None)
        names = [] if base.model is None else profiles.names_of(base.model.node)[:MOST_PROFILES]
        known: dict[Hashable, Compiled] = {}  # many profiles may give the same values
        share = samples.MOST_STEPS // max(1, len(names))
        others = [(name, self._alike(name, known, share).mistakes) for name in names]
        told = profiles.merged(base.mistakes, others, None if base.model is None else base.model.node)
        wrong = errors_in(told)
        return Compiled(None if wrong else base.manifest, all_in_order(told), base.model)

    def _with_samples(self, found: Compiled, profile: str | None, most: int = samples.MOST_STEPS) -> Compiled:
        """What can be said of it while parameters have no value yet."""
        if self.complete:
            return found
        if found.model is None or not found.model.open_params:
            return replace(found, mistakes=errors_in(found.mistakes) or found.mistakes)

        def mistakes(root: Node, values: Mapping[str, Any]) -> Sequence[Mistake]:
            read = self.read._replace(node=root)
            tried = replace(self, read=read, params={**self.params, **values}, manifest=False)
            return tried._compiled(profile, frankly=True).mistakes  # noqa: SLF001 - another one of these

        told = samples.settled(found.model, found.mistakes, mistakes, most)
        return replace(found, manifest=None if errors_in(told) else found.manifest, mistakes=all_in_order(told))

    def _alike(self, profile: str, known: dict[Hashable, Compiled], most: int) -> Compiled:
        """With a profile; what it comes to is `known` if another one gives the same values."""
        if self.read.node is None:
            return self.with_profile(profile)
        key = reading.values_under(
            self.read.node,
            self.file,
            given=self.params,
            environment=self.environment,
            profile=profile,
            complete=self.complete,
            from_shell=self.from_shell,
        )
        if key not in known:
            known[key] = self._with_samples(self._compiled(profile, frankly=not self.complete), profile, most)
        found = known[key]
        if found.model is not None:
            found = replace(found, model=replace(found.model, profile=profile))
        return self._placed(found, profile)

    def _independent(self) -> set[Mistake]:
        """The mistakes that the file has whatever its parameters are: it is looked at with all of them open."""
        return set(self._compiled(None, bare=True).mistakes)

    def _compiled(self, profile: str | None, *, bare: bool = False, frankly: bool = False) -> Compiled:
        """`frankly`: with the warnings of a file that is wrong, too."""
        if self.read.node is None:
            mistakes = self.read.mistakes or [_empty(self.file)]
            return Compiled(None, all_in_order(mistakes), None)
        model, wrong = reading.read(
            self.read.node,
            self.file,
            given=self.params,
            environment=self.environment,
            profile=profile,
            complete=self.complete,
            from_shell=self.from_shell,
            bare=bare,
            find=self.find,
        )
        mistakes = [*self.read.mistakes, *wrong]
        if self.connections is not None:
            mistakes += self.connections.mistakes
            model = None if model is None else replace(model, connections=self.connections)
            mistakes += [] if model is None else self.connections.used_by(model)
        if model is not None:
            model = replace(model, project=self.project)
            found = [mistake for rule in self.rules for mistake in rule(model)]
            # Of a file that is wrong only what is wrong is told: a block that could not be read is no policy to warn of.
            mistakes += errors_in(found) if not frankly and errors_in([*mistakes, *found]) else found
        told = all_in_order(mistakes)
        wanted = self.manifest and profile == self.chosen and not bare
        manifest = manifest_of(model) if wanted and model is not None and not errors_in(told) else None
        return Compiled(manifest, told, model)


def _empty(file: str) -> Mistake:
    return Mistake(file, 1, 1, (), reading.PIPELINE, "nothing", "begin with oml_version")


# -- from the model to the manifest ------------------------------------------------------------------------------------


def manifest_of(model: Model) -> Manifest:
    """The manifest of a model that has no errors."""
    by_id = {step.id: step for step in model.steps}
    notes = {"description": _masked(model.description), "metadata": model.metadata, "schedule": model.schedule}
    return Manifest(
        name=model.name,
        steps=tuple(manifest_step(by_id[id]) for id in model.graph.order),  # noqa: A001 - an id
        params={name: _in_manifest(value) for name, value in sorted(model.values.items())},
        open_params=tuple(sorted(model.open_params)),
        profile=model.profile,
        notes=_said(notes | dict(model.extensions)),
        params_from=dict(sorted(model.sources.items())),
        open_types={one: kind for one in sorted(model.open_params) if (kind := model.params[one].type) != "string"},
    )


def manifest_step(step: Step) -> ManifestStep:
    described = step.described
    config = step.config if described is None else described.resolved(step.config)
    work: dict[str, Any] = {
        "component": step.component,
        "config": _in_manifest(config),
        "needs": sorted(step.needs),  # whose order means nothing
    }
    work |= {} if step.mode is None else {"mode": step.mode}
    work |= {"inputs": _in_manifest(step.inputs)} if step.inputs else {}
    if step.for_each is not None:
        work["for_each"] = _for_each(step.for_each)
    if step.idempotency is not None:
        ttl = exact_ms(step.idempotency.cache_ttl)
        work["idempotency"] = {"key": _in_manifest(step.idempotency.key), "cache_ttl_ms": ttl}
    policy: dict[str, Any] = {"retry": step.retry_block, "dead_letter": step.dead_letter}
    policy |= {"timeout": limits} if (limits := timeout_block(step.timeout)) else {}
    for key in ("circuit_breaker", "limit", "retry_budget", "idempotent"):
        if (value := getattr(step, key)) is not None:
            policy[key] = value
    if step.isolation == "process":
        policy["isolation"] = step.isolation
    if step.for_each is not None:
        policy["concurrency"] = step.for_each.concurrency
        policy["min_success_rate"] = step.for_each.min_success_rate
        policy["min_partial_rate"] = step.for_each.min_partial_rate
    if step.compensate is not None:
        work["compensate"] = _compensation(step.compensate)
        if step.for_each is not None:
            work["compensate"]["per"] = "row" if _undoes_rows(step, step.compensate.config) else "step"
        policy["compensate_retry"] = step.compensate.retry_block
        policy |= {"compensate_timeout": limits} if (limits := timeout_block(step.compensate.timeout)) else {}
    notes = {"description": _masked(step.description), "metadata": step.metadata}
    return ManifestStep(step.id, work, policy, of_step(work, policy), _said(notes | dict(step.extensions)))


def _compensation(one: Compensation) -> dict[str, Any]:
    config = one.config if one.described is None else one.described.resolved(one.config)
    return {"component": one.component, "config": _in_manifest(config), "when": one.when}


def _undoes_rows(step: Step, config: Any) -> bool:
    """Whether what undoes a step with rows needs to know of which: of the row, or of what was put out for it."""
    if isinstance(config, Template):
        own = (part.kind == "output" and part.step == step.id for part in references_in(config.parts))
        return names_row(config) or any(own)
    inner = config.values() if isinstance(config, Mapping) else config if isinstance(config, list) else ()
    return any(_undoes_rows(step, one) for one in inner)


def _for_each(one: ForEach) -> dict[str, Any]:
    return {"items": _in_manifest(one.items)} | ({} if one.key is None else {"key": one.key})


def _masked(description: str | None) -> str | None:
    """A sentence may have a secret that nobody can be sure of: it is not shown."""
    return None if description is None else mask_likely(description)


def _said(notes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in notes.items() if value not in (None, {})}


def _in_manifest(value: Any) -> Any:
    """Data as the manifest has it: texts are templates, so that ``${`` itself is ``$${``."""
    if isinstance(value, str):
        return value.replace("${", "$${") if "${" in value else value
    if isinstance(value, Template):
        return str(value)
    if isinstance(value, dict):
        return {key: _in_manifest(one) for key, one in value.items()}
    return [_in_manifest(one) for one in value] if isinstance(value, list) else value
