"""
The lease on a run.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from outlast.errors import LeaseLost
from outlast.kernel.log import warn
from outlast.kernel.redact import error_text
from outlast.work import leases

if TYPE_CHECKING:
    from datetime import datetime

    from outlast.store import Store
    from outlast.store.records import Lease, RunRecord


def take(store: Store, run: RunRecord, *, counted: bool = True) -> Lease:
    """
    The lease on a run, or `LeaseLost` if it is worked on. It counts as another pass of the run unless told otherwise.
    """
    return leases.take(
        lambda owner, ttl: store.take_run(run.number, 0, owner, ttl, counted=counted),
        lambda: store.run_lease(run.number, 0),
        store.drop_lease,
        what=f"run {run.run_key} of {run.pipeline}",
        taken=partial(taken, run),
    )


def let_go(store: Store, lease: Lease) -> None:
    """Give a lease back."""
    leases.ended(lease)
    try:
        store.drop_lease(lease)
    except Exception as error:  # noqa: BLE001 - it ends by itself
        warn("the lease could not be given back: %s", error_text(error))


def taken(run: RunRecord, lease: Lease) -> LeaseLost:
    """Another process works on this run, and how to go on."""
    host, _, rest = lease.owner.partition(":")
    beat = lease.until - timedelta(seconds=lease.ttl)
    return LeaseLost(
        f"run {run.run_key!r} of {run.pipeline} is busy: process {rest.partition(':')[0]} on {host.partition('/')[0]} works on it. "
        f"The run was started at {_instant(run.started_at)}, its last heartbeat was at {_instant(beat)}. Nothing was changed here. "
        "Wait until it ends, stop that process, or use another run_key."
    )


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
