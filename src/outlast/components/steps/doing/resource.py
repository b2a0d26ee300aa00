"""
`resource.allocator` and `resource.deallocator`: shares of pools that are kept in the store of the app, so that all of its
processes take from the same one.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.components.steps.doing import invalid
from outlast.errors import TemporaryFailure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outlast.components.running import StepContext
    from outlast.components.steps.resource import AllocatorConfig, DeallocatorConfig

    State = Mapping[str, Any]


class _Found(NamedTuple):
    """A pool once it was looked at: whether the share is taken by now, how much is, and of how much."""

    is_ours: bool
    taken: int
    capacity: int


def allocate(config: AllocatorConfig, context: StepContext) -> dict[str, Any]:
    """
    Take a share. It is known by the idempotency key of the step: who tries again after a crash gets the share that is
    taken already, and not a second one.
    """
    if any(one in config.pool for one in context.hidden if len(one) >= 8):  # it is on record
        raise invalid("expected pool to be a name without secrets, got: one with a secret in it")
    share = blake2b(context.idempotency_key.encode(), digest_size=16).hexdigest()

    def decide(pool: State | None, _: float) -> tuple[State | None, _Found]:
        taken = {} if pool is None else dict(pool["taken"])
        # With nothing taken the pool is what this step says that it is.
        capacity = pool["capacity"] if pool is not None and taken else config.capacity
        before = sum(taken.values())
        is_ours = share in taken
        if is_ours or capacity != config.capacity or before + config.amount > capacity:
            return None, _Found(is_ours, before, capacity)
        taken[share] = config.amount
        return {"capacity": capacity, "taken": taken}, _Found(share in taken, before + config.amount, capacity)

    found = context.store().change_state("pool", config.pool, decide)
    if found.is_ours:
        return {"allocation_id": f"{config.pool}:{share}", "left": max(0, found.capacity - found.taken)}
    if found.capacity != config.capacity:
        raise invalid(
            f"expected the capacity of the pool {config.pool} to be {found.capacity}, of which {found.taken} is taken, got: {config.capacity}; "
            "give all steps of this pool the same capacity: another one counts once nothing is taken"
        )
    message = (
        f"the pool {config.pool} has {found.taken} of {found.capacity} taken, which leaves less than {config.amount}"
    )
    raise TemporaryFailure(message, error_class="resource_exhausted")


def deallocate(config: DeallocatorConfig, context: StepContext) -> dict[str, Any]:
    """Give a share back. One that is not taken, or no longer, changes nothing."""
    name, found, share = config.allocation_id.rpartition(":")
    if not found or not name:
        raise invalid("expected allocation_id to be one that resource.allocator has put out, got: another text")

    def decide(pool: State | None, _: float) -> tuple[State | None, bool]:
        if pool is None or share not in pool["taken"]:
            return None, False
        taken = {one: amount for one, amount in pool["taken"].items() if one != share}
        return {**pool, "taken": taken}, True

    return {"released": context.store().change_state("pool", name, decide)}
