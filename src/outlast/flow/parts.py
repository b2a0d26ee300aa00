"""
What protects the steps of a flow: guards, made of what the manifest says of a step, and the circuits, limits and retry
budgets that steps share by name.

In one process a name stands for one object, for all flows that keep their runs in the same store. A definition that
differs takes its place: a circuit goes on with its state and its counts, a limit or a budget of this process begins
anew. What is shared with other processes is so in the store of the flow's app.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from outlast.breaker import CircuitBreaker
from outlast.breaker.counting import CountedBreaker
from outlast.budgets import RetryBudget
from outlast.calls.guard import Guard
from outlast.kernel.clock import here
from outlast.limits import Limit
from outlast.pipeline.home import Substitute
from outlast.settings.keys import Block
from outlast.sharing.named import bind
from outlast.spec.manifest import canonical
from outlast.spec.schedule import policy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Literal, TypeAlias

    from outlast.pipeline.home import Home
    from outlast.spec.manifest import ManifestStep

    Part: TypeAlias = CircuitBreaker | Limit | RetryBudget

P = TypeVar("P", CircuitBreaker, Limit, RetryBudget)
_OWN_STAGES = "pipeline"  # the component whose items are isolated by its stages, if at all


def guard_of(step: ManifestStep, *, what: Literal["step", "compensation"], home: Home | Substitute) -> Guard:
    """
    The guard of a step, or of what undoes it, which has attempts and time limits only. Sync code that has a time limit
    runs in a thread that can be left, unless the step says that a process is to be killed (D-9).
    """
    policy = step.policy
    if what == "compensation":
        inside = str(step.work["compensate"]["component"])
        return Guard(
            f"{step.id}.compensate",
            retry=policy_of(policy["compensate_retry"]),
            **_times(policy.get("compensate_timeout", {}), policy.get("isolation"), inside),
        )
    circuit = policy.get("circuit_breaker")
    return Guard(
        step.id,
        retry=policy_of(policy["retry"]),
        breaker=None if circuit is None else breaker_of(circuit, home),
        on_open="fail" if circuit is None else circuit["on_open"],
        limit=None if "limit" not in policy else limit_of(policy["limit"], home),
        retry_budget=None if "retry_budget" not in policy else budget_of(policy["retry_budget"], home),
        idempotent=policy.get("idempotent") is not False,
        **_times(policy.get("timeout", {}), policy.get("isolation"), step.component),
    )


def _times(limits: Mapping[str, float], isolation: str | None, component: str) -> dict[str, Any]:
    attempt, total = (limits[key] / 1000 if key in limits else None for key in ("step_ms", "total_ms"))
    if component == _OWN_STAGES:
        isolation = None  # of a compensation; the key is refused with such a step
    where = isolation or ("thread" if limits else None)
    return {"timeout": attempt, "total_timeout": total, "isolation": where}


def breaker_of(block: Mapping[str, Any], home: Home | Substitute) -> CircuitBreaker:
    """The circuit of a policy, by its scope. If it is shared, failures in a row are counted in the store."""
    name, rest = block["scope"], {key: one for key, one in block.items() if key not in ("scope", "on_open")}

    def make(old: CircuitBreaker | None) -> CircuitBreaker:
        if old is not None and old.shared == block["shared"]:
            return Block("circuit_breaker", rest).made(old.replace)
        made = (CountedBreaker if block["shared"] else CircuitBreaker).from_config(rest, name=name)
        if old is not None:
            old._replaced_by(made)  # noqa: SLF001 - as its own `replace` does
        return made

    return _parts.get(home, CircuitBreaker, name, rest, make)


def limit_of(block: Mapping[str, Any], home: Home | Substitute) -> Limit:
    """The limit of a policy, by its name."""
    return _parts.get(home, Limit, block["name"], block, _made(Limit, block))


def budget_of(block: Mapping[str, Any], home: Home | Substitute) -> RetryBudget:
    """The retry budget of a policy, by its name."""
    return _parts.get(home, RetryBudget, block["name"], block, _made(RetryBudget, block))


def _made(kind: type[Any], block: Mapping[str, Any]) -> Callable[[Any], Any]:
    def make(old: Part | None) -> Part:
        made: Part = kind.from_config(block)
        if old is not None:
            old._replaced_by(made)  # noqa: SLF001 - as its own `replace` would
        return made

    return make


class _Parts:
    """
    The parts of this process, by the store that they belong to. A test has its own, in virtual time or with a store in
    the place of an app's: nothing of one is left for the next.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_stores: dict[object, dict[tuple[type, str], tuple[str, Part]]] = {}
        self._of_tests: weakref.WeakKeyDictionary[object, dict[tuple[type, str], tuple[str, Part]]] = (
            weakref.WeakKeyDictionary()
        )

    def get(
        self,
        home: Home | Substitute,
        kind: type[P],
        name: str,
        block: Mapping[str, Any],
        make: Callable[[P | None], P],
    ) -> P:
        """The part of this kind and name with this definition; `make` is given the one in whose place it comes."""
        definition = canonical(block)
        with self._lock:
            known = self._known(home)
            found = known.get((kind, name))
            if found is not None and found[0] == definition:
                part = found[1]
            else:
                part = make(None if found is None else found[1])  # type: ignore[arg-type]
                known[kind, name] = (definition, part)
        if not here.get().clock.virtual:
            bind([part], home.commons)
        assert isinstance(part, kind)  # noqa: S101 - the kind is part of the key
        return part

    def _known(self, home: Home | Substitute) -> dict[tuple[type, str], tuple[str, Part]]:
        clock, present = here.get().clock, home.present
        if clock.virtual or isinstance(present, Substitute):
            return self._of_tests.setdefault(clock if clock.virtual else present, {})
        return self._of_stores.setdefault(home.commons, {})

    def renew(self) -> None:
        """In a forked child: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()


_parts = _Parts()
os.register_at_fork(after_in_child=_parts.renew)
