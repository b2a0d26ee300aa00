"""
The facts that alerts follow from, asked of a store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.alerts import Facts, OpenBreaker
from outlast.store.records import from_us

if TYPE_CHECKING:
    from outlast.alerts import Rules
    from outlast.report.views import Views
    from outlast.store import Store


def facts_of(store: Store, views: Views, rules: Rules, *, at_us: int | None = None) -> Facts:
    """What the rules that are on look at, as of now or `at_us`."""
    on, window_us = rules.thresholds, round(rules.window * 1e6)
    letters = sum(store.open_letters().values()) if "dead_letters" in on else 0
    beyond = store.open_letter_beyond(int(on["dead_letters"])) if "dead_letters" in on else None
    return Facts(
        database=store.step_rates("database", window_us, at_us=at_us) if "database_retry_rate" in on else (),
        network=store.given_up("network", window_us, at_us=at_us) if "network_exhausted" in on else (),
        breakers=_open_breakers(views) if "breaker_open" in on else (),
        letters=letters,
        beyond=None if beyond is None else from_us(beyond),
        stuck=store.stuck_jobs(round(on["stuck_jobs"] * 1e6), at_us=at_us) if "stuck_jobs" in on else (),
        not_undone=store.not_undone() if "compensation_failed" in on else (),
        workers=store.backlog().workers if "stuck_jobs" in on else 0,
    )


def _open_breakers(views: Views) -> list[OpenBreaker]:
    return [
        OpenBreaker(one["name"], one.get("opened_at") or one["changed_at"], one.get("reason"))
        for one in views.breakers_now()
        if one["state"] == "open"
    ]
