"""
The checked model of a pipeline file: frozen values, each with its place in the file. The rules look at it, and the
manifest is made of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outlast.spec.mistakes import Mistake
from outlast.spec.references import references_in, written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlast.components.describing import Component
    from outlast.policy import RetryPolicy
    from outlast.spec.calling import Project
    from outlast.spec.connections import Connections
    from outlast.spec.graph import Graph
    from outlast.spec.mistakes import Path, Severity
    from outlast.spec.params import Param, Source
    from outlast.spec.references import Part
    from outlast.spec.yaml import Node


@dataclass(frozen=True, slots=True)
class Template:
    """
    A text, or a whole value, that is known only when the step runs: it still has references. One that `is_wrong` stands for
    something of which has been told; its parts are those that were right, so that they are looked at as well.
    """

    parts: tuple[Part, ...]
    is_wrong: bool = False

    def __str__(self) -> str:
        return written(self.parts)


WRONG = Template((), is_wrong=True)  # in place of a value that is wrong, so that nothing more is said of it


def names_row(value: Any) -> bool:
    """Whether anything in there refers to the row of a step with `for_each`."""
    if isinstance(value, Template):
        return any(part.kind == "item" for part in references_in(value.parts))
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(names_row, inner))


@dataclass(frozen=True, slots=True)
class Times:
    """Time limits in seconds: of an attempt, and of all of them with the waits between them."""

    step: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True)
class Idempotency:
    key: Template | str
    cache_ttl: float


@dataclass(frozen=True, slots=True)
class Compensation:
    """What undoes a step."""

    component: str
    described: Component | None
    config: Mapping[str, Any]
    when: str
    retry: RetryPolicy
    retry_block: Mapping[str, Any]
    timeout: Times


@dataclass(frozen=True, slots=True)
class ForEach:
    """
    The rows that a step is done for: a list, or a `Template` for one. `key` is the field that tells them apart. From
    `min_success_rate` on the step succeeds, and from `min_partial_rate` on it is a partial success.
    """

    items: Any
    key: str | None
    concurrency: int
    min_success_rate: float = 1.0
    min_partial_rate: float = 0.5


@dataclass(frozen=True, slots=True)
class Step:
    """
    One step. `config` and `inputs` are plain data in which a `Template` stands for what is known when it runs;
    parameters are filled in. `needs` is what holds, also where the file says nothing. `retry` is the policy,
    `retry_block` the same as canonical data; a step without a retry block makes one attempt. The blocks
    `circuit_breaker`, `limit` and `retry_budget` are canonical data with all defaults, times in ``_ms``; None if the
    step has none. `isolation` says where its attempts run, and those of what undoes it. `described` is the component's description, None if nobody knows it.
    """

    number: int
    id: str
    component: str
    described: Component | None
    node: Node
    config: Mapping[str, Any]
    inputs: Mapping[str, Any]
    needs: tuple[str, ...]
    mode: str | None
    retry: RetryPolicy
    retry_block: Mapping[str, Any]
    timeout: Times
    circuit_breaker: Mapping[str, Any] | None
    limit: Mapping[str, Any] | None
    retry_budget: Mapping[str, Any] | None
    idempotency: Idempotency | None
    idempotent: bool | None
    compensate: Compensation | None
    for_each: ForEach | None
    dead_letter: bool
    isolation: str = "thread"
    description: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    extensions: Mapping[str, Any] = field(default_factory=dict[str, Any])  # x-*

    @property
    def connection(self) -> str | None:
        """The connection that its config names, as it is written: ``@family.alias``."""
        found = self.config.get("connection")
        return found if isinstance(found, str) else None

    @property
    def path(self) -> Path:
        return ("steps", self.id or self.number)


@dataclass(frozen=True, slots=True)
class Model:
    """
    A whole file. `params` are the declarations, `values` what those have that are known, `sources` where from; the others
    are `open_params`: sensitive ones, and those that are given later.
    """

    file: str
    node: Node
    name: str
    params: Mapping[str, Param]
    values: Mapping[str, Any]
    sources: Mapping[str, Source]
    open_params: tuple[str, ...]
    profile: str | None
    steps: Sequence[Step]
    graph: Graph
    connections: Connections | None = None  # those that its steps may name, if there is a file of them
    project: Project | None = None  # where functions and files are looked for, if they are
    description: str | None = None
    schedule: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    extensions: Mapping[str, Any] = field(default_factory=dict[str, Any])  # x-*

    @property
    def names_connections(self) -> bool:
        """Whether a step, or what undoes one, names a connection."""
        configs = [step.config for step in self.steps]
        configs += [step.compensate.config for step in self.steps if step.compensate is not None]
        return any(str(config.get("connection") or "").startswith("@") for config in configs)

    def mistake(
        self,
        step: Step | None,
        path: Path,
        expected: str,
        got: str,
        way_out: str = "",
        *,
        code: str = "",
        severity: Severity = "warning",
    ) -> Mistake:
        """A mistake about what stands under this path: of a step, or of the file."""
        node = (self.node if step is None else step.node).at(path)
        whole = path if step is None else (*step.path, *path)
        return Mistake(self.file, node.line, node.column, whole, expected, got, way_out, code, severity)
