"""
Circuits, limits and retry budgets have names, and steps that name the same share it: all must say the same of it, and
something must come of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlast.kernel.wording import numeral
from outlast.settings.checks import show
from outlast.spec.plan import exact
from outlast.spec.schedule import attempts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from outlast.spec.mistakes import Path
    from outlast.spec.model import Step
    from outlast.spec.values import Values

_MISSING: Any = object()
_MOST_SHOWN = 3
# Each with the key that has its name, and the word for it.
_PARTS = {
    "circuit_breaker": ("scope", "circuit"),
    "limit": ("name", "limit"),
    "retry_budget": ("name", "retry budget"),
}


def check(values: Values, steps: Sequence[Step]) -> None:
    """What steps say of parts that they share. Nothing follows from a block of which a mistake has been told."""
    told = {one.path[:3] for one in values.mistakes}
    for key, (named, word) in _PARTS.items():
        first: dict[str, Step] = {}
        for step in steps:
            part = getattr(step, key)
            if part is None or (*step.path, key) in told:
                continue
            other = first.setdefault(part[named], step)
            differing = [*_differing(getattr(other, key), part)]
            if differing:
                place = f"line {other.node.at((key,)).line}"
                expected = f"the {word} {part[named]} as {'.'.join(map(str, other.path))}.{key} has it ({place})"
                got = ", ".join(differing[:_MOST_SHOWN]) + (", ..." if len(differing) > _MOST_SHOWN else "")
                way_out = f"say the same in both, or give one of them a {named} of its own"
                values.wrong(step.node.at((key,)), (*step.path, key), expected, got, way_out)
    _idle_budgets(values, steps, told)


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({*one, *other} - {"on_open"}):  # what a step does while a circuit is open is its own matter
        there, here = one.get(key, _MISSING), other.get(key, _MISSING)
        if there != here:
            yield f"{key.removesuffix('_ms')} {_shown(key, here)} (there {_shown(key, there)})"


def _shown(key: str, value: Any) -> str:
    if value is _MISSING or value in (None, {}):
        return "none"
    if key.endswith("_ms"):
        return exact(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if key == "rates" and isinstance(value, Mapping):
        return " and ".join(f"{numeral(one['amount'])} {name} in {exact(one['per_ms'])}" for name, one in value.items())
    return show(value)


def _idle_budgets(values: Values, steps: Sequence[Step], told: Collection[Path]) -> None:
    """
    Budgets from which nothing is ever taken: no step that has one is retried, and no other process has it. Of a step whose
    retries are `told` to be wrong nobody knows.
    """
    with_budget = [(step, step.retry_budget) for step in steps if step.retry_budget is not None]
    used = {
        budget["name"]
        for step, budget in with_budget
        if attempts(step.retry) > 1 or budget["shared"] or (*step.path, "retry") in told
    }
    for step, budget in with_budget:
        if budget["name"] not in used:
            expected, got = "it left out with one attempt", "a retry budget"
            way_out = "without retries nothing is taken from it: add retry, or leave it out"
            values.wrong(step.node.at(("retry_budget",)), (*step.path, "retry_budget"), expected, got, way_out)
