"""
From a tree of YAML to the model: the head of the file, its parameters, its steps, and what links them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.spec import parts, yaml
from outlast.spec.declaring import Declarations
from outlast.spec.keys import OML_VERSIONS
from outlast.spec.linking import Links
from outlast.spec.manifest import canonical
from outlast.spec.model import Model
from outlast.spec.steps import Steps
from outlast.spec.values import Values, got_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from outlast.components.describing import Component
    from outlast.spec.mistakes import Mistake
    from outlast.spec.yaml import Node

PIPELINE = "a pipeline: a mapping with oml_version, name and steps"


def read(
    root: Node,
    file: str,
    *,
    given: Mapping[str, Any],
    environment: Mapping[str, str],
    profile: str | None,
    complete: bool,
    from_shell: bool,
    bare: bool,
    find: Callable[[str], Component | None],
) -> tuple[Model | None, list[Mistake]]:
    """The model of a file, None if it is no mapping at all, and everything that is wrong with it."""
    values = Values(file)
    if root.kind != "map":
        got = "nothing" if root.is_null else "a list" if root.kind == "list" else "a text"
        values.wrong(root, (), PIPELINE, got, "begin with oml_version")
        return None, values.mistakes
    head = values.mapping(root, (), "file")
    _version(values, head.get("oml_version"))
    name = values.identifier(head.get("name"), ("name",), "flow")
    declared = Declarations(values, given, environment, profile, complete=complete, from_shell=from_shell, bare=bare)
    declared.read(root, head.get("params"), head.get("profiles"))
    steps, ids = Steps(values, find).read(head.get("steps"), name)
    links = Links(values)
    graph = links.graph(steps, ids)
    links.outputs(steps, graph)
    parts.check(values, [step for step in steps if step is not None])
    model = Model(
        file=file,
        node=root,
        name=name,
        params=values.params,
        values=values.known,
        open_params=tuple(one for one in values.params if one not in values.known),
        sources=declared.sources,
        profile=profile,
        steps=[step for step in steps if step is not None],
        graph=graph,
        description=values.text(head.get("description"), ("description",)),
        schedule=None if "schedule" not in head else values.told(head["schedule"], ("schedule",)),
        metadata=values.noted(head.get("metadata"), ("metadata",)),
        extensions=values.extensions(root, ()),
    )
    return model, values.mistakes


def values_under(
    root: Node,
    file: str,
    *,
    given: Mapping[str, Any],
    environment: Mapping[str, str],
    profile: str,
    complete: bool,
    from_shell: bool,
) -> Hashable:
    """
    The values that parameters have under a profile, and what is wrong with them. Two profiles for which this is the same
    make the same model of a file, but for their names.
    """
    values = Values(file)
    head = values.mapping(root, (), "file")
    declared = Declarations(values, given, environment, profile, complete=complete, from_shell=from_shell)
    declared.read(root, head.get("params"), head.get("profiles"))
    return canonical([values.known, declared.sources]), tuple(values.mistakes)


def _version(values: Values, node: Node | None) -> None:
    if node is None or (node.kind == "scalar" and yaml.value_of(node) in OML_VERSIONS):
        return
    expected = " or ".join(f'"{one}"' for one in OML_VERSIONS)
    values.wrong(node, ("oml_version",), expected, got_of(node), f'write oml_version: "{OML_VERSIONS[0]}"')
