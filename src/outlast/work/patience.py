"""
Repeat an operation on a store or a sink while that cannot be used.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.calls import internal
from outlast.errors import LeaseLost
from outlast.kernel.clock import stopping
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text
from outlast.observe import rarely
from outlast.policy import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.kernel.clock import Stop


class Terms(NamedTuple):
    """
    Times in seconds: `patience` is the longest wait for a store or a sink that cannot be used, `ttl` is how long a
    lease lasts.
    """

    patience: float = 120.0
    ttl: float = 20.0


#: The terms of the work that is done here. Threads that are started for it have them too.
terms: ContextVar[Terms] = ContextVar("outlast terms", default=Terms())  # noqa: B039 - it cannot be changed
#: Who waits, if many wait for the same: the jobs of one worker. That is said once for all of them.
waiter: ContextVar[object | None] = ContextVar("outlast waiter", default=None)
_PATIENT = RetryPolicy(
    max_attempts=sys.maxsize,
    initial_delay=0.1,
    max_delay=5.0,
    on_errors=("transient", "unclear"),
    skip_on_errors=(LeaseLost,),
)
_SURE = _PATIENT.replace(on_errors=("transient",))


def keep_trying(
    do: Callable[[], Any],
    what: str,
    give_up: Stop | None = None,
    *,
    patience: float | None = None,
    unclear: bool = True,
) -> Any:
    """
    Call `do` until it succeeds, as long as its error is transient or unclear and the patience lasts; then the last
    error is raised. Without `unclear`, only a transient error is repeated.
    """
    longest, stop = terms.get().patience, give_up or stopping.get()

    def waits(error: Exception) -> None:
        if (before := rarely(("waits", id(waiter.get() or stop), what))) is not None:
            more = f" ({before:,} more times before)" if before else ""
            warning = "%s cannot be used and is waited for: %s%s"
            warn(warning, what, error_text(error), more, extra={"outlast_waits": what})

    return internal.keep_trying(
        do,
        _PATIENT if unclear else _SURE,
        longest if patience is None else min(patience, longest),
        stop=stop,
        stopped=f"asked to stop while {what} could not be used",
        waits=waits,
    )
