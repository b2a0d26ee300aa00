"""
Calls that Outlast itself makes, to a store, a sink or a lease. The policy decides about them as about any call, but
there are no events and no history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from outlast.deciding import after_failure
from outlast.kernel.clock import here
from outlast.verdicts import classify

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.kernel.clock import Stop, World
    from outlast.policy import RetryPolicy

T = TypeVar("T")


def keep_trying(
    do: Callable[[], T],
    policy: RetryPolicy,
    patience: float,
    *,
    stop: Stop | None = None,
    stopped: str = "asked to stop",
    waits: Callable[[Exception], object] | None = None,
    world: World | None = None,
) -> T:
    """
    Do it, again and again as long as the policy wants to and the patience lasts, in seconds from the first failure on;
    the last error is raised. `waits` is told of the first error that is waited for; a wait that `stop` ends raises
    InterruptedError with what `stopped` says.
    """
    world = world or here.get()
    number, deadline = 0, 0.0
    while True:
        try:
            return do()
        except Exception as error:
            now, number = world.clock.monotonic(), number + 1
            deadline = now + patience if number == 1 else deadline
            says = policy.answer(error, classify(error), number, world.dice.roll, None, circuits=True)
            delay = after_failure(says, now=now, deadline=deadline)
            if isinstance(delay, str):
                raise
            if number == 1 and waits is not None:
                waits(error)
        if world.clock.sleep(delay, stop):
            raise InterruptedError(stopped)
