"""
The open breakers of this process that are not shared, reported to the stores that it has: for people and alerts. Other
processes do not use them.

One document per app lists them by process, so that it never has more than the processes that are alive. A process writes
it when a circuit changes, and renews its part while a circuit is not closed. It removes its part when it ends. If it is
killed, its part expires.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from outlast.kernel.clock import REAL, here
from outlast.sharing import named
from outlast.sharing.contact import contact_with
from outlast.work.leases import certainly_dead, myself

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from outlast.breaker import CircuitBreaker
    from outlast.pipeline.home import Home
    from outlast.sharing.contact import Commons, Contact

KIND: Final = "process_breakers"
LEASE_S = 60.0
RENEW_S = 15.0
MOST_BREAKERS = 1000  # of one process
_homes: weakref.WeakSet[Home] = weakref.WeakSet()
_reporters: weakref.WeakKeyDictionary[Contact, Reporter] = weakref.WeakKeyDictionary()


def report_breakers_to(home: Home) -> None:
    """From now on report the breakers of this process to the store of this app, too, and those that are open already."""
    _homes.add(home)
    named.report_change = _report
    for breaker in named.known("breaker"):
        if not breaker.shared and breaker.memory.circuit.state.value != "closed":
            _report(breaker, [home])


def _report(breaker: Any, homes: Iterable[Home] | None = None) -> None:
    if here.get().clock.virtual or named.apart.get():
        return
    for home in list(_homes) if homes is None else homes:
        contact = contact_with(home.place)
        reporter = _reporters.get(contact)
        if reporter is None:
            reporter = _reporters[contact] = Reporter()
        reporter.changed(breaker, contact)


class Reporter:
    """What this process reports to one store."""

    def __init__(self) -> None:
        self._breakers: weakref.WeakSet[CircuitBreaker] = weakref.WeakSet()
        self._written_at = float("-inf")

    def changed(self, breaker: CircuitBreaker, contact: Contact) -> None:
        """The circuit of this breaker has changed."""
        self._breakers.add(breaker)
        contact.post(self._write)
        contact.attend(self)

    def attend(self, contact: Contact) -> bool:
        """Renew the part of this process; False once all of its circuits are closed."""
        if REAL.clock.monotonic() - self._written_at >= RENEW_S:
            contact.asked(self._write)
        return any(breaker.seems() != "closed" for breaker in list(self._breakers))

    def part(self, contact: Contact) -> None:
        """The process ends."""
        contact.asked(lambda commons: self._put(commons, {}))

    def _write(self, commons: Commons) -> None:
        found: dict[str, dict[str, Any]] = {}
        for breaker in list(self._breakers):
            circuit = breaker.memory.circuit
            if circuit.state.value == "closed":
                continue
            # Two breakers of one name are two circuits: the open one is the one to report.
            if breaker.name not in found or circuit.state.value == "open":
                found[breaker.name] = {
                    "state": circuit.state.value,
                    "failure_count": breaker.failure_count,
                    "opened_at": None if circuit.opened_at is None else circuit.opened_at.timestamp(),
                    "reason": circuit.isolated,
                }
            if len(found) >= MOST_BREAKERS:
                break
        self._put(commons, found)
        self._written_at = REAL.clock.monotonic()

    def _put(self, commons: Commons, found: Mapping[str, Any]) -> None:
        me = myself()

        def change(kept: Mapping[str, Any] | None, now: float) -> tuple[Mapping[str, Any] | None, None]:
            others = {who: part for who, part in (kept or {}).items() if who != me and _lives(who, part, now)}
            after = others | ({me: {"until": now + LEASE_S, "changed": now, "breakers": dict(found)}} if found else {})
            return (None if after == (kept or {}) else after), None

        commons.change(KIND, "all", change)


def reported(kept: Mapping[str, Any] | None, now: float) -> Iterator[tuple[str, str, float, Mapping[str, Any]]]:
    """Process, breaker, when it was reported, and how it is: of the processes that live."""
    for who, part in (kept or {}).items():
        if _lives(who, part, now):
            for name, breaker in part["breakers"].items():
                yield who, name, part["changed"], breaker


def _lives(who: str, part: Mapping[str, Any], now: float) -> bool:
    # A clock that was set back must not keep a part for longer than its lease.
    return now < part["until"] <= now + 2 * LEASE_S and not certainly_dead(who)
