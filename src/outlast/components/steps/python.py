"""
`python`: a step that calls a function of the project. `pipeline`: one that runs a pipeline over items.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from outlast.components.describing import Component
from outlast.components.steps.config import Call, Config, PathInside


class PythonConfig(Config):
    """
    `call` names the function, `args` are its keyword arguments. In a step with `for_each` that names no row, the row is
    its first argument.
    """

    call: Annotated[Call, Field(description="module:function, of the project")]
    args: Annotated[dict[str, Any], Field(default_factory=dict, description="keyword arguments")]


PYTHON = Component(
    name="python",
    summary="Calls a function of the project. A mapping that it returns is the step's outputs.",
    config=PythonConfig,
    outputs=None,
    literal=("call",),
    calls=("call",),
    side_effects=True,
    takes_row=True,
    run="outlast.components.steps.doing.python:call",
    example={"call": "shop.steps:label", "args": {"day": "monday"}},
)


class PipelineConfig(Config):
    """`target` names a Pipeline of the project, `input` what it reads, `output` where the outputs go."""

    target: Annotated[Call, Field(description="the Pipeline, as module:name, of the project")]
    input: Annotated[list[Any] | PathInside, Field(description="a file, a pattern, or rows: ${steps.id.outputs.rows}")]
    output: Annotated[
        PathInside | None, Field(description="the file for what the items become; the store keeps it if left out")
    ] = None
    item_key: Annotated[
        str | None,
        Field(min_length=1, description="the field that tells one item from another; its content if left out"),
    ] = None
    on_item_error: Annotated[
        Literal["dlq", "collect", "stop"], Field(description="what becomes of an item that fails for good")
    ] = "dlq"
    breaker_rounds: Annotated[
        int, Field(ge=1, description="rounds of failed probes of a stage's circuit breaker that stop the run")
    ] = 3


PIPELINE = Component(
    name="pipeline",
    summary="Runs a pipeline over items. What has been done is not done again when the step is tried again.",
    config=PipelineConfig,
    outputs={
        "rows": "what the items became, as a source for later steps",
        "count": "how many items succeeded",
        "dead_letters": "how many dead letters are open",
        "outcome": "completed or partial_success",
        "run": "the id of the run over items",
    },
    types={"rows": "rows", "count": "integer", "dead_letters": "integer", "outcome": "text", "run": "text"},
    places={"input": "pattern", "output": "path"},
    literal=("target",),
    calls=("target",),
    transforms=True,
    side_effects=True,
    idempotent=True,  # items that are finished are not worked on again
    example={"target": "shop.pipelines:reviews", "input": "in/reviews.jsonl", "item_key": "id"},
)
