"""
The shapes of arguments, as types. Loaded by type checkers and by whoever asks for them; never by a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Literal, TypeAlias

#: Seconds as a number, or a timedelta.
Seconds: TypeAlias = float | timedelta

#: What a verdict says of an error.
Category: TypeAlias = Literal["transient", "unclear", "permanent"]

#: A category, ``all``, an error class or one of its parents, a tier, a status, a range such as ``5xx``, a dotted name, an exception
#: class, a predicate.
ErrorSpec: TypeAlias = str | int | type[Exception] | Callable[[Exception], bool]

#: A ratio, a kind, or plus uniform(0, add) seconds.
Jitter: TypeAlias = float | Literal["full", "equal", "decorrelated"] | Mapping[Literal["add"], float]

#: Why a call made no further attempt.
StopReason: TypeAlias = Literal[
    "permanent",
    "unclear",
    "not_listed",
    "skipped",
    "exhausted",
    "tier_exhausted",
    "total_timeout",
    "retry_budget",
    "breaker_open",
    "throttled",
    "ambiguous",
    "nested_exhausted",
    "still_running",
    "generator_started",
    "shutdown",
    "cancelled",
    "poison",
    "incomplete",
]
