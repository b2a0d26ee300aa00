"""
Retry limits that follow what retries have come to. Pure: what is on record goes in, limits come out.

What counts is not how often calls succeed, but how often *this* retry helps: of the operations that came to their r-th
retry for a tier, the share that succeeded with it. In an outage no retry helps, and a rule that looks at the success rate
would raise the limit exactly then; this one lowers it.
"""

from __future__ import annotations

from math import sqrt

from outlast.kernel.value import Value, put
from outlast.settings.checks import Check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Never

    from outlast.kernel.aliases import Seconds

_Z = 1.645  # one-sided 95 %


class RetryRecord(Value):
    """How many operations came to their r-th `retry` after an error of a `tier`, and how many of those succeeded with it."""

    __slots__ = ("retry", "succeeded", "tier", "tried")
    tier: str
    retry: int
    tried: int
    succeeded: int

    def __init__(self, tier: str, retry: int, tried: int, succeeded: int) -> None:
        put(self, "tier", tier)
        put(self, "retry", retry)
        put(self, "tried", tried)
        put(self, "succeeded", succeeded)


class AdaptiveLimits(Value):
    """
    How limits may follow the record: between `least` and `most` retries, from at least `minimum` operations of the last
    `window` seconds; a retry is `worth` it if this share of them succeeds.

    A limit falls to just before the first retry that is surely not worth it: with 95 % certainty fewer succeed. It rises by
    one if its last retry is worth it. Where too few operations are on record it stays, and a limit of 0 always does.

    >>> AdaptiveLimits().limits({"database": 5, "data": 0}, [RetryRecord("database", 3, tried=100, succeeded=1)])
    {'database': 2, 'data': 0}
    >>> AdaptiveLimits().limits({"database": 5}, [RetryRecord("database", 5, tried=20, succeeded=10)])
    {'database': 6}
    """

    __slots__ = ("least", "minimum", "most", "window", "worth")
    least: int
    most: int
    minimum: int
    window: float
    worth: float

    def __init__(
        self,
        *,
        least: int = 1,
        most: int = 7,
        minimum: int = 20,
        window: Seconds = 86_400.0,
        worth: float = 0.10,
        **unknown: Never,
    ) -> None:
        check = Check()
        check.unknown(unknown, ("least", "most", "minimum", "window", "worth"))
        put(self, "least", check.integer("least", least, low=1, default=1))
        put(self, "most", check.integer("most", most, low=1, default=7))
        put(self, "minimum", check.integer("minimum", minimum, low=1, default=20))
        put(self, "window", check.seconds("window", window, 86_400.0, positive=True))
        put(self, "worth", check.number("worth", worth, low=0.0, high=1.0, open_low=True, default=0.10))
        if self.least > self.most:
            check.add("least", f"at most most, which is {self.most}", least)
        check.raise_if_any()

    def limits(self, current: Mapping[str, int], record: Iterable[RetryRecord]) -> dict[str, int]:
        """The limit of each tier that has one."""
        known = {(one.tier, one.retry): one for one in record if one.tried >= self.minimum}
        return {
            tier: limit if limit <= 0 else self._limit(limit, {r: one for (of, r), one in known.items() if of == tier})
            for tier, limit in current.items()
        }

    def _limit(self, limit: int, known: Mapping[int, RetryRecord]) -> int:
        for retry in range(1, limit + 1):
            if retry in known and _at_most(known[retry]) < self.worth:
                return self._between(retry - 1, limit)
        last = known.get(limit)
        risen = last is not None and last.succeeded / last.tried >= self.worth
        return self._between(limit + 1 if risen else limit, limit)

    def _between(self, wanted: int, limit: int) -> int:
        """Inside the bounds; a limit that was outside of them is not pushed further out, nor pulled in without a reason."""
        if wanted < limit:
            return max(wanted, min(self.least, limit))
        return min(wanted, max(self.most, limit))


def _at_most(one: RetryRecord) -> float:
    """The upper bound of Wilson's interval for the share that succeeds."""
    n, p = one.tried, one.succeeded / one.tried
    middle = p + _Z * _Z / (2 * n)
    spread = _Z * sqrt(p * (1 - p) / n + _Z * _Z / (4 * n * n))
    return (middle + spread) / (1 + _Z * _Z / n)
