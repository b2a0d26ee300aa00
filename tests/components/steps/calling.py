"""How tests call a component: with a config that is filled in, and a context made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outlast.components.registry import find_component
from outlast.components.running import Place, StepContext, do_work
from outlast.verdicts import classify

if TYPE_CHECKING:
    from pathlib import Path


def a_context(root: Path | str = ".", **changes: Any) -> StepContext:
    """What a component knows of a first attempt at a step."""
    plain = StepContext(
        pipeline="movies",
        step="work",
        run_id="run-1",
        run_key="monday",
        attempt=1,
        idempotency_key="k-1",
        root=str(root),
    )
    return replace(plain, **changes)


def outputs_of(name: str, config: dict[str, Any], context: StepContext) -> dict[str, Any]:
    """What the component of this name puts out."""
    component = find_component(name)
    assert component is not None
    return dict(do_work(component, config, context))


def failure_of(name: str, config: dict[str, Any], context: StepContext) -> tuple[str, str, Exception]:
    """The error class with which the component of this name fails, what it says, and the error itself."""
    try:
        outputs = outputs_of(name, config, context)
    except Exception as error:  # noqa: BLE001 - whichever it is, it is asserted
        return classify(error).error_class, str(error), error
    raise AssertionError(f"it did not fail: {outputs}")


class Shelf:
    """In the place of a store: what components keep for people to look at, by its name."""

    def __init__(self) -> None:
        self.kept: dict[str, str | bytes] = {}

    def keep_of_run(self, run: int, token: int, step: str, attempt: int, name: str, raw: str | bytes) -> bool:
        self.kept[name] = raw
        return True

    @property
    def place(self) -> Place:
        store: Any = self
        return Place(store_url="", app="tests", run=1, token=1, store=store)
