"""
`resource.allocator` and `resource.deallocator`: a step that takes a share of something limited, and the one that gives
it back, as an example of a step with its compensation.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from outlast.components.describing import Component
from outlast.components.steps.config import Config, Unfit

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]


class AllocatorConfig(Config):
    """So much of a pool that has a capacity."""

    pool: Annotated[_Name, Field(description="what is shared, by its name")]
    amount: Annotated[int, Field(ge=1, le=1_000_000_000, description="how much of it is taken")] = 1
    capacity: Annotated[int, Field(ge=1, le=1_000_000_000, description="how much there is in all")]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.amount > self.capacity:
            raise Unfit(f"expected amount to be at most capacity ({self.capacity}); lower it", "amount", "capacity")
        return self


ALLOCATOR = Component(
    name="resource.allocator",
    summary="Takes a share of a pool, which stays taken until resource.deallocator gives it back.",
    config=AllocatorConfig,
    outputs={"allocation_id": "the share, for resource.deallocator", "left": "how much of the pool is left"},
    types={"allocation_id": "text", "left": "integer"},
    writes=True,
    side_effects=True,
    needs_compensation=True,
    run="outlast.components.steps.doing.resource:allocate",
    example={"pool": "gpu", "amount": 2, "capacity": 8},
)


class DeallocatorConfig(Config):
    """The share that is given back."""

    allocation_id: Annotated[str, Field(min_length=1, max_length=200, description="the output of resource.allocator")]


DEALLOCATOR = Component(
    name="resource.deallocator",
    summary="Gives a share of a pool back. Giving it back twice is the same as once.",
    config=DeallocatorConfig,
    outputs={"released": "whether it was still taken"},
    types={"released": "boolean"},
    writes=True,
    side_effects=True,
    idempotent=True,
    run="outlast.components.steps.doing.resource:deallocate",
    example={"allocation_id": "${steps.reserve.outputs.allocation_id}"},
)
