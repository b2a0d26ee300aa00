"""
Doing what needs a store or a sink, and waiting while it cannot be used.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.errors import LeaseLost
from outlast.kernel.clock import here, stopping
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text
from outlast.observe import rarely
from outlast.policy import RetryPolicy
from outlast.verdicts import classify

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.kernel.clock import Stop


class Terms(NamedTuple):
    """
    `patience` is for how many seconds a store or a sink that cannot be used is waited for, `ttl` how many a lease
    lasts.
    """

    patience: float = 120.0
    ttl: float = 20.0


#: The terms of the work that is done here. Threads that are started for it have them too.
terms: ContextVar[Terms] = ContextVar("outlast terms", default=Terms())  # noqa: B039 - it cannot be changed
_AGAIN = RetryPolicy(max_attempts=10_000, initial_delay=0.1, max_delay=5.0, on_errors=("transient", "unclear"))


def persist(
    do: Callable[[], Any],
    what: str,
    give_up: Stop | None = None,
    *,
    patience: float | None = None,
    unclear: bool = True,
) -> Any:
    """
    Do it, again and again as long as the error is one that may pass and the patience lasts; the last error is raised.
    Without `unclear`, only an error that surely passes is waited for.
    """
    patience = terms.get().patience if patience is None else min(patience, terms.get().patience)
    fatal = {"permanent"} if unclear else {"permanent", "unclear"}
    clock, dice, number = here.get().clock, here.get().dice, 0
    give_up = give_up or stopping.get()
    since: float | None = None
    while True:
        try:
            return do()
        except LeaseLost:
            raise
        except Exception as error:
            now, number = clock.monotonic(), number + 1
            since = now if since is None else since
            delay = _AGAIN.delay(min(number, 20), dice.roll())
            if classify(error).category in fatal or now + delay - since > patience:
                raise
            if number == 1 and (before := rarely(("waits", id(give_up), what))) is not None:
                text = error_text(error)
                warn(
                    "%s cannot be used, the run waits for it: %s%s",
                    *(what, text, f" ({before:,} more times before)" if before else ""),
                    extra={"outlast_waits": what},
                )
        if clock.sleep(delay, give_up):
            message = f"asked to stop while {what} could not be used"
            raise InterruptedError(message)
