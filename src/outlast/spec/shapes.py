"""
What the parts of a manifest look like, and what is wrong with one that looks otherwise. Its fingerprints say that it was
not changed by chance; whoever can work them out can write anything, and those who read a manifest rely on its parts. Pure.

Checked are the keys, the types and what belongs together. Whether `timing` is what follows from the policy is looked at by
who reads a manifest, once all of this is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias

from outlast.kernel.redact import plain
from outlast.settings.keys import BLOCKS, TIMES
from outlast.spec.keys import TYPES
from outlast.verdicts import CATEGORIES

# A shape gives what is wrong with a value, in words that go on after its name.
Shape: TypeAlias = Callable[[Any, str], Iterator[str]]

_HUGE = 1e300  # no number of a manifest is as large
_LONGEST = 120  # characters of the name of a place
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}", re.ASCII)


def wrong_with(data: Any) -> str:
    """
    What is wrong with the JSON of a manifest, the first of it; nothing if it is as `outlast compile` writes it.

    >>> wrong_with({"name": "movies", "params": {}, "open_params": "all", "profile": None, "steps": []})
    'open_params is no list'
    """
    return next(chain(_MANIFEST(data, ""), _together(data)), "")


# -- the kinds of values -----------------------------------------------------------------------------------------------


def _kind(words: str, fits: Callable[[Any], bool]) -> Shape:
    def check(value: Any, where: str) -> Iterator[str]:
        if not fits(value):
            yield f"{_place(where)} is {words}"

    return check


def _place(where: str) -> str:
    shown = plain(where) or "it"
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _HUGE


def _is_whole(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int)


def _or_none(shape: Shape) -> Shape:
    return lambda value, where: iter(()) if value is None else shape(value, where)


def _list(shape: Shape) -> Shape:
    def check(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{_place(where)} is no list"
            return
        for number, one in enumerate(value):
            yield from shape(one, f"{where}[{number}]")

    return check


def _each(shape: Shape) -> Shape:
    """A mapping from any name to values of one shape."""

    def check(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, Mapping):
            yield f"{_place(where)} is no mapping"
            return
        for key, one in value.items():
            yield from shape(one, _under(where, key))

    return check


def _block(needed: Mapping[str, Shape], also: Mapping[str, Shape] | None = None) -> Shape:
    """A mapping with all keys of `needed`, perhaps some of `also`, and no others."""
    known = {**(also or {}), **needed}

    def check(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, Mapping):
            yield f"{_place(where)} is no mapping"
            return
        yield from (f"{_place(_under(where, key))} is missing" for key in needed if key not in value)
        for key, one in value.items():
            if key in known:
                yield from known[key](one, _under(where, key))
            else:
                yield f"{_place(_under(where, key))} is no part of it"

    return check


def _under(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _one_of(*words: str) -> Shape:
    return _kind(f"none of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


def _any(value: Any, where: str) -> Iterator[str]:  # noqa: ARG001 - a shape
    return iter(())


_TEXT = _kind("no text", lambda value: isinstance(value, str))
_NAME = _kind("no name", lambda value: isinstance(value, str) and value != "" and value.isprintable())
_OWN_ID = _kind("no id", lambda value: isinstance(value, str) and _ID.fullmatch(value) is not None)
_TRUTH = _kind("neither true nor false", lambda value: isinstance(value, bool))
_NUMBER = _kind("no number that it may be", _is_number)
_WHOLE = _kind("no whole number that it may be", _is_whole)
_COUNT = _kind("no whole number of at least 1", lambda value: _is_whole(value) and value >= 1)
_SHARE = _kind("no number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
_ERROR = _kind("neither a text nor a status", lambda value: isinstance(value, str) or _is_whole(value))
_MAP = _each(_any)

# -- the parts of a manifest -------------------------------------------------------------------------------------------


def _settings(block: str, needed: Mapping[str, Shape], **also: Shape) -> Shape:
    """A block of settings: what is read of it is `needed`, everything else may be there."""
    kinds = {"text": _TEXT, "integer": _WHOLE, "number": _NUMBER, "truth": _TRUTH, **dict.fromkeys(TIMES, _NUMBER)}
    known = {
        f"{name}_ms" if key.kind in TIMES else name: _or_none(kinds[key.kind])
        for name, key in BLOCKS[block].items()
        if key.kind in kinds
    }
    return _block(needed, {**known, **also})


def _jitter(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from _block({"add_ms": _NUMBER})(value, where)
    elif not (isinstance(value, str) or _is_number(value)):
        yield f"{_place(where)} is neither a word nor a number"


_RETRY = _block(
    {
        "max_attempts": _COUNT,
        "backoff": _TEXT,
        "jitter": _jitter,
        "cap": _TEXT,
        "max_retry_after_ms": _NUMBER,
        "on_errors": _list(_ERROR),
        "skip_on_errors": _list(_ERROR),
    },
    {
        "delays_ms": _list(_NUMBER),
        "initial_delay_ms": _NUMBER,
        "max_delay_ms": _or_none(_NUMBER),
        "multiplier": _NUMBER,
        "retry_limits": _each(_WHOLE),
        "retry_exhausted": _TRUTH,
        "mode": _TEXT,
    },
)
_TIMEOUT = _block({}, {"step_ms": _NUMBER, "total_ms": _NUMBER})
_CIRCUIT = _settings(
    "circuit_breaker",
    {"scope": _TEXT, "on_open": _one_of("fail", "wait"), "reset_timeout_ms": _NUMBER, "half_open_requests": _WHOLE},
)
_RATE = _settings("rate", {"amount": _NUMBER, "per_ms": _NUMBER})
_LIMIT = _settings("limit", {"name": _TEXT, "max_wait_ms": _or_none(_NUMBER)}, rates=_or_none(_each(_RATE)))
_BUDGET = _settings("retry_budget", {"name": _TEXT, "ratio": _NUMBER, "reserve": _WHOLE})
_POLICY = _block(
    {"retry": _RETRY, "dead_letter": _TRUTH},
    {
        "timeout": _TIMEOUT,
        "circuit_breaker": _CIRCUIT,
        "limit": _LIMIT,
        "retry_budget": _BUDGET,
        "idempotent": _TRUTH,
        "concurrency": _COUNT,
        "min_success_rate": _SHARE,
        "min_partial_rate": _SHARE,
        "isolation": _one_of("process"),  # a thread is not named
        "compensate_retry": _RETRY,
        "compensate_timeout": _TIMEOUT,
    },
)
_WORK = _block(
    {"component": _NAME, "config": _MAP, "needs": _list(_OWN_ID)},
    {
        "mode": _TEXT,
        "inputs": _MAP,
        "for_each": _block({"items": _any}, {"key": _TEXT}),
        "idempotency": _block({"key": _TEXT, "cache_ttl_ms": _NUMBER}),
        "compensate": _block(
            {"component": _NAME, "config": _MAP, "when": _one_of("completed", "started")},
            {"per": _one_of("row", "step")},
        ),
    },
)
_DELAY = _block(
    {
        "attempt": _COUNT,
        **dict.fromkeys(("nominal_ms", "min_ms", "max_ms", "sum_ms", "sum_min_ms", "sum_max_ms"), _WHOLE),
    },
    {"latest_start_ms": _WHOLE},
)


def _goes(value: Any, where: str) -> Iterator[str]:
    """Where the errors of a category go."""
    if isinstance(value, Mapping):
        yield from _block({"retry": _list(_TEXT), "fail": _list(_TEXT)})(value, where)
    else:
        yield from _one_of("retry", "fail")(value, where)


_ERRORS = _block(
    dict.fromkeys(CATEGORIES, _goes),
    dict.fromkeys(("if_undone", "listed", "skipped", "never"), _list(_NAME)),
)
_SCHEDULE: dict[str, Shape] = {"attempts": _COUNT, "delays": _list(_DELAY), "worst_ms": _or_none(_WHOLE)}
_TIMING = _block(
    {**_SCHEDULE, "calls": _block({"run": _WHOLE, "job": _WHOLE}), "errors": _ERRORS},
    {
        "unbounded": _list(_one_of("attempt", "limit", "circuit_breaker")),
        "in_doubt": _block({"attempt": _COUNT, "left_ms": _or_none(_WHOLE)}),
        "refusals": _block({"uncharged_ms": _WHOLE, "longest_wait_ms": _WHOLE}),
        "deferred_ms": _WHOLE,
        "per": _one_of("row"),
        "timed_out": _one_of("last"),
        "compensate": _block(_SCHEDULE),
    },
)
_STEP = _block(
    {"id": _OWN_ID, "work": _WORK, "policy": _POLICY, "timing": _TIMING}, {"notes": _MAP, "fingerprints": _MAP}
)
_MANIFEST = _block(
    {
        "name": _OWN_ID,
        "params": _MAP,
        "open_params": _list(_OWN_ID),
        "profile": _or_none(_TEXT),
        "steps": _list(_STEP),
    },
    {
        "outlast_manifest": _any,
        "fingerprint": _any,
        "notes": _MAP,
        "params_from": _each(_one_of("given", "environment", "profile", "default")),
        "open_types": _each(_one_of(*(one for one in TYPES if one != "string"))),  # which is not named
    },
)

# -- what belongs together ---------------------------------------------------------------------------------------------


def _together(data: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong between parts whose shapes are right."""
    for name in data.get("open_types", {}):
        if name not in data["open_params"]:
            yield f"{_place(f'open_types.{name}')} is none of open_params"
    before: set[str] = set()
    for step in data["steps"]:
        where = f"steps.{step['id']}"
        if step["id"] in before:
            yield f"{where} is there twice"
        yield from (
            f"{where} needs {one}, which is not before it" for one in step["work"]["needs"] if one not in before
        )
        before.add(step["id"])
        yield from _in_step(step["work"], step["policy"], step["timing"], where)


def _in_step(
    work: Mapping[str, Any], policy: Mapping[str, Any], timing: Mapping[str, Any], where: str
) -> Iterator[str]:
    for one, other in (
        (("work.for_each", "for_each" in work), ("policy.concurrency", "concurrency" in policy)),
        (("work.for_each", "for_each" in work), ("policy.min_success_rate", "min_success_rate" in policy)),
        (("work.for_each", "for_each" in work), ("policy.min_partial_rate", "min_partial_rate" in policy)),
        (("work.for_each", "for_each" in work), ("timing.per", "per" in timing)),
        (("work.compensate", "compensate" in work), ("policy.compensate_retry", "compensate_retry" in policy)),
        (("work.compensate", "compensate" in work), ("timing.compensate", "compensate" in timing)),
    ):
        if one[1] is not other[1]:
            yield f"{where} has one of {one[0]} and {other[0]} only"
    if policy.get("min_partial_rate", 0) > policy.get("min_success_rate", 1):
        yield f"{where}.policy.min_partial_rate is more than min_success_rate"
    yield from _schedule(timing, policy["retry"], f"{where}.timing")
    if timing["worst_ms"] is None and not timing.get("unbounded"):
        yield f"{where}.timing has neither worst_ms nor unbounded"
    if "compensate" in timing and "compensate_retry" in policy:
        yield from _schedule(timing["compensate"], policy["compensate_retry"], f"{where}.timing.compensate")
    circuit = policy.get("circuit_breaker")
    if circuit is not None:
        opens = ("failure_threshold",) if circuit.get("failure_rate") is None else ("failure_rate", "window")
        yield from (f"{where}.policy.circuit_breaker.{key} is missing" for key in opens if circuit.get(key) is None)


def _schedule(timing: Mapping[str, Any], retry: Mapping[str, Any], where: str) -> Iterator[str]:
    attempts, delays = timing["attempts"], timing["delays"]
    if attempts > retry["max_attempts"]:
        yield f"{where}.attempts is more than max_attempts of the policy"
    if [one["attempt"] for one in delays] != list(range(2, attempts + 1)):
        yield f"{where}.delays has not one wait before each attempt but the first"
