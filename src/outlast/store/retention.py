"""
How many days things are kept. Open dead letters that are too old are archived; runs, jobs, dead letters and events that
are over and too old are deleted, so many rows at a time. Nothing that is under way is deleted.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from outlast.store import Store
    from outlast.store.records import Prunable

KINDS: Final = ("runs", "dead_letters", "events", "open_dead_letters", "jobs", "failed_jobs")
#: Days; None is for ever. Runs hold outputs, which are their owner's; open letters are work that is still to be done.
DEFAULT_DAYS: Final[Mapping[str, int | None]] = {
    "runs": None,
    "dead_letters": 90,
    "events": None,
    "open_dead_letters": None,
    "jobs": 7,  # those that succeeded or were cancelled
    "failed_jobs": 90,
}
_AT_MOST = 20_000  # rows at a time: a second of a slow disk


def apply(store: Store, days: Mapping[str, int | None], now: datetime) -> dict[str, int]:
    """
    Put open letters away that are too old, and delete what is over and too old, as of `now`; how many of each kind.
    """
    kept = {**DEFAULT_DAYS, **days}
    done: dict[str, int] = {}
    for kind in ("open_dead_letters", "dead_letters", "events", "runs", "jobs", "failed_jobs"):
        limit = kept[kind]
        if limit is None:
            continue
        before = now - timedelta(days=limit)
        if kind == "open_dead_letters":
            reason = f"older than {limit:g} days, archived by itself"
            done[kind] = len(store.put_away(before, reason, limit=_AT_MOST))
        else:
            done[kind] = store.prune(_kind(kind), before, at_most=_AT_MOST)
    store.prune_keys(at_most=_AT_MOST)  # each has its own time
    return done


def _kind(name: str) -> Prunable:
    return name  # type: ignore[return-value]
