"""
Which alerts are told to a webhook, so that each is told once, again now and then while it goes on, and once when it is
over; whoever checks. What was told is on record in the store, and one checker at a time tells something.

A checker claims what it is about to tell, tells it, and puts on record that it arrived. If it dies in between, or the
webhook does not take it, the next check tells it: a notice may come twice, and is never lost.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.kernel.clock import here

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outlast.alerts import Alert
    from outlast.store import Store

CLAIM = 60.0  # seconds: more than a webhook is waited for
MOST = 1000  # alerts that one webhook is told of


class Notified(NamedTuple):
    """
    What came of it: the notices that the webhook has taken, what is to be said of those that it has not, and whether
    another checker is at it.
    """

    sent: Sequence[Mapping[str, Any]] = ()
    problem: str | None = None
    busy: bool = False


def notify(
    store: Store,
    alerts: Sequence[Alert],
    url: str,
    deliver: Callable[[Mapping[str, Any]], str | None],
    *,
    again: float,
) -> Notified:
    """
    Tell a webhook what is new: `deliver` answers with what went wrong, if anything. What goes on is told again after so
    many seconds.
    """
    name = f"webhook {sha256(url.encode()).hexdigest()[:32]}"  # the address may hold a secret
    claim = here.get().ids.new()
    every = {alert.id: alert.document() for alert in alerts}

    def begin(
        kept: Mapping[str, Any] | None, now: float
    ) -> tuple[Mapping[str, Any] | None, list[dict[str, Any]] | None]:
        return planned(kept, _bounded(every, (kept or {}).get("alerts", {})), now, claim=claim, again=again)

    notices = store.change_state("alerts", name, begin)
    if notices is None:
        return Notified(busy=True)
    if not notices:
        return Notified()
    problem: str | None = "the check was ended while it told it."
    try:
        problem = deliver({"version": 1, "app": store.app, "text": _text(notices), "notices": notices})
    finally:
        told = () if problem is not None else notices
        store.change_state("alerts", name, lambda kept, now: (settled(kept, claim, told, now), None))
    return Notified(told, problem)


def _bounded(every: Mapping[str, Mapping[str, Any]], known: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """As many alerts as a webhook is told of. Those that it knows come first: one that still fires must not be called over."""
    ordered = sorted(every, key=lambda id_: id_ not in known)
    return {id_: every[id_] for id_ in ordered[:MOST]}


def planned(
    kept: Mapping[str, Any] | None, firing: Mapping[str, Mapping[str, Any]], now: float, *, claim: str, again: float
) -> tuple[dict[str, Any] | None, list[dict[str, Any]] | None]:
    """
    What is to be on record now (None: as it is), and what is to be told: nothing new (empty), or None if another checker
    is telling something.
    """
    kept = kept or {}
    claimed = kept.get("claim")
    if claimed is not None and claimed["until"] > now:
        return None, None
    known = kept.get("alerts", {})
    notices: list[dict[str, Any]] = []
    for id_, document in firing.items():
        sent = known.get(id_, {}).get("sent")
        if sent is None or now - sent >= again:
            notices.append({"status": "firing"} | dict(document))
    # One that could not be told while it went on is told all the same.
    over = {id_: one | {"ended": one.get("ended", now)} for id_, one in known.items() if id_ not in firing}
    notices += [_resolved(one["alert"], one["ended"]) for one in over.values()]
    # One that fires again before somebody has heard that it was over goes on.
    goes_on = {
        id_: {name: part for name, part in one.items() if name != "ended"}
        for id_, one in known.items()
        if id_ in firing
    }
    if not notices:
        return (None if goes_on == known else {"claim": None, "alerts": goes_on}), []
    alerts = {id_: over.get(id_) or goes_on[id_] for id_ in known} | {
        one["id"]: {"sent": known.get(one["id"], {}).get("sent"), "alert": firing[one["id"]]}
        for one in notices
        if one["status"] == "firing"
    }
    return {"claim": {"id": claim, "until": now + CLAIM}, "alerts": alerts}, notices


def _resolved(alert: Mapping[str, Any], ended: float) -> dict[str, Any]:
    """What is told of an alert that is over: nothing of what it said is true any more, so it says what it was."""
    was, at = (
        {name: alert.get(name) for name in ("message", "why", "value", "facts")},
        datetime.fromtimestamp(ended, UTC),
    )
    fired = datetime.fromisoformat(alert["since"])
    return dict(alert) | {
        "status": "resolved",
        "message": "It is over.",
        "why": f"A check at {_instant(at)} found that it does not fire any more. Since {_instant(fired)} it was: {was['message']} {was['why']}",
        "value": None,
        "facts": {},
        "ended": at.isoformat(),
        "was": was,
    }


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def settled(
    kept: Mapping[str, Any] | None, claim: str, told: Sequence[Mapping[str, Any]], now: float
) -> dict[str, Any] | None:
    """What is on record once these have arrived; None if another checker has taken over meanwhile."""
    if kept is None or (kept.get("claim") or {}).get("id") != claim:
        return None
    alerts = dict(kept["alerts"])
    for notice in told:
        if notice["status"] == "resolved":
            alerts.pop(notice["id"], None)
        else:
            alerts[notice["id"]] = alerts[notice["id"]] | {"sent": now}
    return {"claim": None, "alerts": alerts}


def _text(notices: Sequence[Mapping[str, Any]]) -> str:
    """For services that show one text."""
    return "\n".join(f"[{one['status']}] {one['id']}: {one['message']} {one['why']}" for one in notices)
