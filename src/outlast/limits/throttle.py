"""
What to make of a service that says "too many". That concerns everybody who shares the limit. A hint of a second or more
closes a *gate* for all until then. Otherwise the *width*, a ceiling on what is under way, is cut, and grows back with
every success. Calls that were already under way when it was cut say nothing new: their refusals belong to the same
burst, and only tell how much too wide it was.
"""

from __future__ import annotations

from math import inf

_ROUNDING = 1e-9
# seconds; a shorter hint comes from a limiter that refills all the time, where a gate would only let all in at once
GATE_FROM = 1.0
# a shorter one may be a fraction of a second, rounded up as headers often are: then it is no gate that is needed
GATE_ALWAYS = 2.0
LONGEST_GATE = 120.0
# seconds from the first refusal of an item of a run for which its refusals are not charged; an empty retry budget holds an
# item up for as long
PATIENCE = 900.0
LONGEST_WAIT = 60.0  # seconds between two attempts that are not charged, where the policy has no ceiling
LONGEST_FLOOR = 5.0  # seconds, ±25 %: as far as the least wait between them grows, where the service gave no hint
DEFERRED = 1.0  # seconds; how soon an empty retry budget is asked again, at least
MANY = 10_000  # successes after which a service that refused calls is trusted as before
_CUT = 0.85  # of the width, for the first refusal of a burst
_GROWTH = 0.04  # of the width, for a round of successes; at least
_LEAST_GROWTH = 0.5  # of a place


class Heed:
    """
    What refusals ask for: a *gate* that is closed until an instant, and a *width*, the ceiling on what is under way.
    """

    concurrency: int | None

    def _trust(self, era: int) -> None:
        """Begin with a service that has refused nothing."""
        self._gate = -inf  # closed until then
        self._worked: float = inf  # successes since the service last asked for less,
        self._narrow = False  # and whether they were few for the width
        self._width = inf
        self._cuts = era
        self._cut_from = 0.0  # the width before the newest cut,
        self._refused = 0  # and how many calls the service has refused since

    def _heed(self, hint: float, entry: int, used: int, now: float) -> tuple[bool, float]:
        """A call that started after `entry` cuts was refused; whether that began a burst, and how long all pause."""
        if now >= self._gate:
            # A gate suits a service that admits many calls and then none for a while. If it refuses some before twice
            # as many have succeeded as were under way, the width is wrong: all would come back at the same instant, and
            # be refused again.
            self._narrow = self._worked < 2 * used
            self._worked = 0
        gated = hint >= (GATE_FROM if self._width == inf and not self._narrow else GATE_ALWAYS)
        first = gated and now >= self._gate
        pause = min(hint, LONGEST_GATE) if gated else 0.0
        if gated:
            self._gate = max(self._gate, now + pause)
        if not gated or self._narrow:
            first = self._cut(entry, used) or first
        return first, pause

    def _cut(self, entry: int, used: int) -> bool:
        """Make room for fewer calls; whether this refusal began a burst."""
        first = entry == self._cuts
        if first:
            self._cuts += 1
            self._cut_from = min(self._width, used)
            self._refused = 0
        elif entry != self._cuts - 1:
            return False  # of a burst long past
        self._refused += 1
        self._set_width(max(1.0, min(self._cut_from * _CUT, self._cut_from - self._refused)))
        return first

    def _widen(self) -> None:
        self._set_width(self._width + max(_LEAST_GROWTH, self._width * _GROWTH) / self._width)

    def _set_width(self, width: float) -> None:
        self._width = inf if width >= (inf if self.concurrency is None else self.concurrency) else width

    def _places_at_most(self) -> float:
        """How many calls may be under way."""
        if self._width == inf:
            return inf if self.concurrency is None else self.concurrency
        return max(1, int(self._width + _ROUNDING))
