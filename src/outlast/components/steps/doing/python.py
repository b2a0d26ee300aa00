"""
`python`: calls a function of the project.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlast.components.running import NO_ROW
from outlast.components.steps.doing import result_of
from outlast.errors import PermanentFailure
from outlast.verdicts import mark_begun

if TYPE_CHECKING:
    from outlast.components.running import StepContext
    from outlast.components.steps.python import PythonConfig


def call(config: PythonConfig, context: StepContext) -> Mapping[str, Any] | None:
    """What the function returns: a mapping is the outputs, None stands for none. What it raises goes up as it is."""
    function = context.function(config.call)
    if not callable(function):
        message = f"expected {config.call} to be a function, got: a value of type {type(function).__name__}"
        raise PermanentFailure(message, error_class="code_error")
    row = () if context.row is NO_ROW else (context.row,)
    came: Any = result_of(config.call, function, *row, **config.args)
    if came is None:
        return None
    if not isinstance(came, Mapping):
        got = f"a value of type {type(came).__name__}"
    elif not all(isinstance(name, str) for name in came):
        got = "a mapping with names that are no texts"
    else:
        return came
    message = f"expected {config.call} to return a mapping from names to values, or None, got: {got}"
    unfit = PermanentFailure(message, error_class="code_error")
    mark_begun(unfit)  # its work is done all the same
    raise unfit
