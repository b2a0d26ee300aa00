"""
What ``outlast components new`` writes: a component of one's own to begin with, and its test.
"""

from __future__ import annotations

_COMPONENT = '''\
"""
The component `{name}` for pipeline files: its description, by which they are checked, and the function that does the
work.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from outlast.components.describing import Component
from outlast.components.running import StepContext
from outlast.components.steps.config import Config


class {model}(Config):
    """The config of a step with this component. Keys that are not here are refused."""

    subject: Annotated[str, Field(min_length=1, description="what it works on")]
    limit: Annotated[int, Field(ge=1, description="how many at the most")] = 100


def run(config: {model}, context: StepContext) -> Mapping[str, Any]:
    """
    One attempt. References of the file are filled in. It never tries again: what it raises is classified, and the policy
    of the step decides.
    """
    # Here it does its work. A service that takes one is sent context.idempotency_key, which is the same in every attempt.
    return {{"count": min(len(config.subject), config.limit)}}


{constant} = Component(
    name="{name}",
    summary="Says in one sentence what it does.",
    config={model},
    outputs={{"count": "how many there were"}},
    types={{"count": "integer"}},
    # What it does, for the rules that warn. These are the careful answers: take away what is not so, and say
    # idempotent=True if doing it twice is doing it once.
    writes=True,
    side_effects=True,
    network=True,
    example={{"subject": "movies"}},
    run=run,
)
'''
_TEST = '''\
"""
What `{name}` takes and refuses, and what it does.
"""

from outlast.components.conformance import check_component

from {module} import {constant}


def test_it_is_what_a_step_relies_on():
    assert check_component({constant}) == {{"count": 6}}


def test_its_config_counts():
    assert check_component({constant}, {{"subject": "movies", "limit": 2}}) == {{"count": 2}}


def test_the_example_is_right():
    assert {constant}.problems({constant}.example) == []


def test_keys_that_nobody_knows_are_refused():
    (problem,) = {constant}.problems({{**{constant}.example, "subjct": "movies"}})
    assert (problem.path, problem.way_out) == (("subjct",), "Did you mean 'subject'?")


def test_values_of_another_type_are_refused():
    (problem,) = {constant}.problems({{**{constant}.example, "limit": "ten"}})
    assert (problem.path, problem.expected) == (("limit",), "an integer")


def test_defaults_are_filled_in():
    assert {constant}.resolved({constant}.example) == {{"subject": "movies", "limit": 100}}
'''
_PROJECT = """\
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "{package}"
version = "0.1.0"
dependencies = ["outlast[flows]"]

[tool.setuptools]
py-modules = ["{module}"]

"""
_ENTRY = """\
[project.entry-points."outlast.components"]
"{name}" = "{module}:{constant}"
"""


def module_of(name: str) -> str:
    """The module for a component of this name."""
    return name.replace(".", "_").replace("-", "_")


def files_for(name: str) -> dict[str, str]:
    """
    The files of a new component, by their names.

    >>> list(files_for("shop.sender"))
    ['shop_sender.py', 'test_shop_sender.py']
    """
    words = _words(name)
    module = words["module"]
    return {f"{module}.py": _COMPONENT.format(**words), f"test_{module}.py": _TEST.format(**words)}


def entry_for(name: str) -> str:
    """What makes a package's component known, for its pyproject.toml."""
    return _ENTRY.format(**_words(name))


def project_for(name: str) -> str:
    """A pyproject.toml for a folder that has nothing but these files."""
    return (_PROJECT + _ENTRY).format(**_words(name))


def _words(name: str) -> dict[str, str]:
    module = module_of(name)
    model = "".join(part.capitalize() for part in module.split("_")) + "Config"
    package = module.replace("_", "-")
    return {"name": name, "module": module, "constant": module.upper(), "model": model, "package": package}
