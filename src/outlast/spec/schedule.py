"""
What a step's policy comes to in time, in whole milliseconds: each wait with its band, the sums, the worst case against
the timeouts, the most executions, and where the errors of each category go. Pure: it rolls no dice and reads no clock.

What is a bound is never less than what can happen: the least of a band is rounded down, the greatest and every sum of
those up.
"""

from __future__ import annotations

import builtins
import json
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Any

from outlast import presets
from outlast.errors import CircuitBreakerOpenError
from outlast.limits.throttle import DEFERRED, LONGEST_FLOOR, LONGEST_WAIT, PATIENCE
from outlast.settings.checks import errno_symbols, errno_type, is_status, statuses
from outlast.verdicts import CATEGORIES, ERROR_CLASSES, TIERS, Alike, Verdict, class_by_name, classify, resolve
from outlast.verdicts.rules import SAME, UNDONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outlast.kernel.aliases import ErrorSpec
    from outlast.policy import RetryPolicy


@dataclass(frozen=True, slots=True)
class Timing:
    """
    A policy against its timeouts. `delays` has a row for each wait: `nominal_ms` (before jitter; what exponential backoff
    would wait, if jitter is decorrelated), `min_ms`, `max_ms`; the sums of the waits so far, `sum_ms`, `sum_min_ms` and
    `sum_max_ms`; and, if there is a bound, when the attempt begins at the latest (`latest_start_ms`): as `worst_ms`, with
    all that comes before it.

    `worst_ms` is how long the step takes at the most: with the longest waits that a service may ask for (Retry-After),
    with what it stands in line at a limit, and of a row with refusals that are not charged. None if nothing bounds it; `unbounded` has then what does not:
    ``attempt``, ``limit``, ``circuit_breaker``. `in_doubt` is the first attempt that may not begin, or not have its full
    time, before the total is up, also if nobody asks for a wait; `left_ms` is what is left for it.
    """

    delays: tuple[dict[str, int], ...]
    whole: float | None  # seconds of all attempts and waits, whatever the total is and whoever asks for more
    worst_ms: int | None
    unbounded: tuple[str, ...]
    in_doubt: int | None
    left_ms: int | None


@dataclass(frozen=True, slots=True)
class Lines:
    """
    Where attempts of a step may wait beside its schedule: `at_limit` is how many seconds each may stand in line at a limit,
    without end if nothing bounds that; `at_circuit`: while the circuit is open, for as long as that lasts.

    Rows are items of a run, which have time. `refusals`: what the service behind the limit refuses is tried again and not
    charged, for `PATIENCE` seconds from a row's first refusal. `deferred`: an empty retry budget holds the next attempt of
    a row up for as long, and does not end it at once.
    """

    at_limit: float = 0.0
    at_circuit: bool = False
    refusals: bool = False
    deferred: bool = False


NO_LINES = Lines()


def lines_of(
    policy: RetryPolicy,
    limit: Mapping[str, Any] | None,
    circuit: Mapping[str, Any] | None,
    budget: Mapping[str, Any] | None = None,
    *,
    rows: bool = False,
) -> Lines:
    """
    What the blocks of a step, as the manifest has them, say about that. An open circuit that is retried is waited for too,
    and by rows always.
    """
    most = 0.0 if limit is None else inf if limit["max_wait_ms"] is None else limit["max_wait_ms"] / 1000
    waits = circuit is not None and (rows or circuit["on_open"] == "wait" or _retries_open_circuits(policy))
    return Lines(most, waits, rows and limit is not None, rows and budget is not None)


@lru_cache(maxsize=256)
def _retries_open_circuits(policy: RetryPolicy) -> bool:
    with Alike():
        error = CircuitBreakerOpenError.__new__(CircuitBreakerOpenError)
        return policy.refuses(error, _of_class("circuit_open"), 1) is None


def timing(policy: RetryPolicy, step_s: float | None, total_s: float | None, lines: Lines = NO_LINES) -> Timing:
    """The schedule of a policy with the time limits of an attempt and of everything, in seconds."""
    rows: list[dict[str, int]] = []
    nominal = least = most = 0.0
    in_doubt: int | None = None
    left: float | None = None
    may_last = {"attempt": step_s is None, "limit": lines.at_limit == inf, "circuit_breaker": lines.at_circuit}
    unbounded = tuple(what for what, is_so in may_last.items() if is_so)
    # What comes on top of the waits of the schedule before an attempt begins: what is asked for, places in line, rows.
    asked = lines.at_limit + _uncharged(policy, step_s, lines)
    for failed in range(1, attempts(policy)):
        usual, low, high = policy.band(failed)
        nominal, least, most = nominal + usual, least + low, most + high
        asked += lines.at_limit + _beside(policy, failed, high, lines)
        row = {
            "attempt": failed + 1,
            "nominal_ms": ms(usual),
            "min_ms": least_ms(low),
            "max_ms": most_ms(high),
            "sum_ms": ms(nominal),
            "sum_min_ms": least_ms(least),
            "sum_max_ms": most_ms(most),
        }
        spent = most + failed * (step_s or 0.0)
        latest = _bound(None if step_s is None or unbounded else spent + asked, total_s)
        if latest is not None:
            row["latest_start_ms"] = latest
        if total_s is not None and in_doubt is None and _may_lack(spent, step_s, total_s):
            in_doubt, left = failed + 1, max(0.0, total_s - spent)
        rows.append(row)
    most_attempts = attempts(policy)
    whole = None if step_s is None else most_attempts * step_s + most
    return Timing(
        tuple(rows),
        whole,
        _bound(None if whole is None or unbounded else whole + asked, total_s),
        unbounded if total_s is None else (),
        in_doubt,
        None if left is None or step_s is None else least_ms(left),
    )


def _uncharged(policy: RetryPolicy, step_s: float | None, lines: Lines) -> float:
    """
    The seconds that refusals which are not charged add at the most: the attempt that is the first of them, all that is
    within the patience from there on, and the wait after the last.
    """
    if not lines.refusals:
        return 0.0
    return (step_s or 0.0) + lines.at_limit + PATIENCE + longest_uncharged(policy)


def longest_uncharged(policy: RetryPolicy) -> float:
    """The longest wait after a refusal that is not charged, in seconds: with what the service asks for, or without a hint."""
    return max(_longest_own(policy) + policy.max_retry_after, LONGEST_FLOOR * 1.25)


def _longest_own(policy: RetryPolicy) -> float:
    """The longest wait of a policy that is asked again and again, however often."""
    if policy.delays:
        return max(policy.band(number)[2] for number in range(1, len(policy.delays) + 1))
    if policy.max_delay is None:
        return LONGEST_WAIT
    return max(policy.band(1)[2], policy.band(10**12)[2])  # whichever way it grows


def _beside(policy: RetryPolicy, failed: int, high: float, lines: Lines) -> float:
    """The seconds that the wait behind this attempt may take beside the longest of its band."""
    asked = policy.max_retry_after
    if lines.refusals and policy.jitter == "decorrelated":
        # Which goes on from the wait before it, and that may have been one after a refusal.
        grown = max(_longest_own(policy), LONGEST_FLOOR * 1.25) * 3.0 ** min(failed, 64)
        grown = min(grown, inf if policy.max_delay is None else policy.max_delay)
        asked += max(0.0, grown - high)
    if lines.deferred:
        asked = max(asked, PATIENCE + max(DEFERRED - high, asked - policy.max_retry_after))
    return asked


def _may_lack(spent: float, step_s: float | None, total_s: float) -> bool:
    """Whether an attempt that begins then has not all of its time; a wait that ends with the total is not begun."""
    left = round(total_s - spent, 9)
    return left <= 0 or left < round(step_s or 0.0, 9)


def _bound(whole: float | None, total_s: float | None) -> int | None:
    bounds = [one for one in (whole, total_s) if one is not None]
    return most_ms(min(bounds)) if bounds else None


def attempts(policy: RetryPolicy) -> int:
    """The most attempts, the first included: `max_attempts`, or fewer if no tier of what is retried has as many."""
    limits = policy.retry_limits
    if limits is None or policy.max_attempts == 1:
        return policy.max_attempts
    # What an exception that is listed by its name is taken for is known when it comes: it may be of any tier.
    by_name = any(not (entry in _WORDS or _is_status(entry)) for entry in map(str, policy.on_errors))
    tiers = set(limits) if by_name else {ERROR_CLASSES[name].tier for name in retried_classes(policy)}
    return min(policy.max_attempts, 1 + max((limits.get(tier, 0) for tier in tiers), default=0))


def _is_status(entry: str) -> bool:
    return entry[:1].isdecimal()


def as_data(
    policy: RetryPolicy,
    step_s: float | None,
    total_s: float | None,
    lines: Lines = NO_LINES,
    *,
    idempotent: bool = True,
) -> dict[str, Any]:
    """What a policy comes to, as the manifest has it. With ``idempotent=False`` what may have been done is not retried."""
    found = timing(policy, step_s, total_s, lines)
    said: dict[str, Any] = {
        "attempts": attempts(policy),
        "delays": list(found.delays),
        "worst_ms": found.worst_ms,
        "calls": calls(policy),
        "errors": errors(policy, idempotent=idempotent),
    }
    if lines.refusals:
        patience, longest = (_at_most(one, total_s) for one in (PATIENCE, longest_uncharged(policy)))
        said["refusals"] = {"uncharged_ms": patience, "longest_wait_ms": longest}
    if lines.deferred and attempts(policy) > 1:
        said["deferred_ms"] = _at_most(PATIENCE, total_s)
    if found.unbounded:
        said["unbounded"] = list(found.unbounded)
    if found.in_doubt is not None:
        said["in_doubt"] = {"attempt": found.in_doubt, "left_ms": found.left_ms}
    return said


def _at_most(seconds: float, total_s: float | None) -> int:
    """Whole milliseconds that something lasts, if not everything is stopped before."""
    return most_ms(seconds if total_s is None else min(seconds, total_s))


def ms(seconds: float) -> int:
    """Whole milliseconds."""
    return round(seconds * 1000)


def least_ms(seconds: float) -> int:
    """
    Whole milliseconds, and no more than that. What a float is off by is no part of it.

    >>> least_ms(1.1), least_ms(1.1239), most_ms(1.1), most_ms(1.1231)
    (1100, 1123, 1100, 1124)
    """
    return floor(round(seconds * 1000, 6))


def most_ms(seconds: float) -> int:
    """Whole milliseconds, and no less than that: what takes time at all takes one."""
    return max(ceil(round(seconds * 1000, 6)), 1 if seconds > 0 else 0)


def exact_ms(seconds: float) -> float:
    """
    Milliseconds as a setting has them: whole if they are, and never rounded to nothing.

    >>> exact_ms(1.5), exact_ms(0.0005), exact_ms(2.0000001 / 1000)
    (1500, 0.5, 2.0000001)
    """
    found = float(f"{seconds * 1000:.15g}")  # all digits of a float but the last, which is noise
    return int(found) if found == int(found) else found


def calls(policy: RetryPolicy) -> dict[str, int]:
    """
    The most executions, of each row if there are several: in one run; and if the pipeline is a durable job, which tries
    again what is exhausted. With ``retry_exhausted: false`` it tries again only what was not retried at all.
    """
    run, layers = attempts(policy), presets.jobs.max_attempts
    if policy.retry_exhausted is not False:
        return {"run": run, "job": run * layers}
    goes, by_job = errors(policy), retried_classes(presets.jobs)
    # Of what is listed or skipped by a name nobody knows which errors of a class it leaves to the job.
    skipped = {name for entry in goes.get("skipped", ()) for name in classes_of(entry) or ERROR_CLASSES}
    others = (by_job - _by_class(goes)) | (by_job & skipped)
    return {"run": run, "job": run + (layers - 1 if others else 0)}


def errors(policy: RetryPolicy, *, idempotent: bool = True) -> dict[str, Any]:
    """
    Where errors go, exactly as the policy decides about the first attempt. Of one error the first of these holds:

    1. `skipped` has its status, or a name of it: it fails at once.
    2. `never` has its error class: it fails at once, although a status or a name may list it.
    3. `listed` has its status, or a name of it: it is retried.
    4. Its error class decides: each category is retried (``retry``) or fails at once (``fail``), or its error classes are
       listed under both words.

    A name is that of its type, of a base class of that, or of its errno. Errors of one name may be of any class: it is
    `listed`, unless surely none of them is retried. With ``idempotent=False`` only what surely was not done is retried:
    the classes of which an error itself may prove that are in `if_undone`, and are not retried otherwise.
    """
    limits = None if policy.retry_limits is None else tuple(sorted(policy.retry_limits.items()))
    on, skip = in_order(policy.on_errors), in_order(policy.skip_on_errors)
    with Alike():
        return dict(_errors(on, skip, limits, policy.max_attempts > 1, idempotent))


def of_step(work: Mapping[str, Any], policy: Mapping[str, Any]) -> dict[str, Any]:
    """
    The `timing` of a step, from its `work` and its `policy` as the manifest has them and from nothing else, so that who reads
    a manifest can work it out again. A policy that there cannot be is a ConfigurationError.
    """
    rows = "for_each" in work
    parts = (policy.get(key) for key in ("limit", "circuit_breaker", "retry_budget"))
    retry, (step_s, total_s) = policy_of(policy["retry"]), _seconds(policy.get("timeout", {}))
    idempotent = policy.get("idempotent") is not False
    said = as_data(retry, step_s, total_s, lines_of(retry, *parts, rows=rows), idempotent=idempotent)
    said |= {"per": "row"} if rows else {}
    in_thread = work["component"] == "python" and policy.get("isolation") != "process"
    if in_thread and not rows and step_s is not None and attempts(retry) > 1:
        said["timed_out"] = "last"  # the attempt goes on in its thread, and is followed by no other
    if "compensate_retry" in policy:
        other = policy_of(policy["compensate_retry"])
        undone = timing(other, *_seconds(policy.get("compensate_timeout", {})))
        said["compensate"] = {"attempts": attempts(other), "delays": list(undone.delays), "worst_ms": undone.worst_ms}
    return said


def policy_of(block: Mapping[str, Any]) -> RetryPolicy:
    """The policy of a retry block as the manifest has it; steps have few different ones."""
    return _policy(json.dumps(block, sort_keys=True))


@lru_cache(maxsize=256)
def _policy(block: str) -> RetryPolicy:
    from outlast.policy import RetryPolicy

    with Alike():
        return RetryPolicy.from_config(json.loads(block))


def _seconds(limits: Mapping[str, float]) -> tuple[float | None, float | None]:
    step, total = (None if key not in limits else limits[key] / 1000 for key in ("step_ms", "total_ms"))
    return step, total


@lru_cache(maxsize=1024)
def in_order(specs: tuple[ErrorSpec, ...]) -> tuple[str | int, ...]:
    """
    Errors as a manifest lists them: each once, in one spelling and one order, which mean nothing to a policy.

    >>> in_order(("timeout", "503", "5XX", "builtins.KeyError", 503, "econnreset", "shop.Closed", OSError, "IOError"))
    (503, '5xx', 'ECONNRESET', 'KeyError', 'OSError', 'shop.Closed', 'timeout')
    """
    symbols = errno_symbols([one for one in specs if isinstance(one, str)])
    with Alike():
        found = {_spelt(one, symbols) for one in specs}
    return tuple(sorted(found, key=str))


def _spelt(spec: ErrorSpec, symbols: frozenset[str]) -> str | int:
    if is_status(spec):
        known = statuses(spec)
        return known.start if len(known) == 1 else f"{known.start // 100}xx"
    if not isinstance(spec, str):
        return getattr(spec, "__qualname__", str(spec))
    if spec in _WORDS:
        return spec
    if spec.upper() in symbols:
        return spec.upper()
    name = SAME.get(spec, spec)
    found = resolve(name)
    return found.__name__ if found is not None and resolve(found.__name__) is found else name


def retried_classes(policy: RetryPolicy) -> set[str]:
    """The error classes that a policy may retry: also those of a status or an exception that it lists."""
    goes = errors(policy)
    never = set(goes.get("never", ()))
    every = set(ERROR_CLASSES) - {"circuit_open"}
    named = (classes_of(entry) - never or every - never for entry in goes.get("listed", ()) if not is_status(entry))
    return _by_class(goes).union(*named)


def _by_class(goes: Mapping[str, Any]) -> set[str]:
    """The error classes that are retried as such, or by their statuses."""
    by_status = (classes_of(entry) for entry in goes.get("listed", ()) if is_status(entry))
    found = set[str]().union(*by_status) - set(goes.get("never", ()))
    for name, known in ERROR_CLASSES.items():
        said = goes[known.category]
        if said == "retry" or (not isinstance(said, str) and name in said["retry"]):
            found.add(name)
    return found


@lru_cache(maxsize=1024)
def classes_of(entry: str) -> frozenset[str]:
    """
    The error classes that errors of a status, of a range of them or of a name mostly have, in every process alike: those
    of the statuses or of the builtin exceptions of that type. None of them, if no rule knows the name.
    """
    if is_status(entry):
        return frozenset(classify(status).error_class for status in statuses(entry))
    name = entry.removeprefix("builtins.")
    with Alike():
        kind = _type_of(name)
        inside = [one for one in _BUILTIN if kind and issubclass(one, kind)]
        known = class_by_name(entry)
        found = {class_by_name(one.__name__) or "unknown" for one in inside}
    return frozenset(found or ({known} if known is not None else ()))


def _type_of(name: str) -> type[BaseException] | tuple[()] | None:
    """The builtin exception that a name stands for, also that of an errno."""
    if name.upper() in errno_symbols([name]):
        return errno_type(name)
    kind = None if "." in name else resolve(name)
    return kind if kind is not None and kind.__module__ == "builtins" else None


def _of_class(name: str) -> Verdict:
    known = ERROR_CLASSES[name]
    return Verdict(category=known.category, error_class=name, tier=known.tier, why="")


@lru_cache(maxsize=1024)
def _errors(
    on: tuple[ErrorSpec, ...],
    skip: tuple[ErrorSpec, ...],
    limits: tuple[tuple[str, int], ...] | None,
    more_than_one: bool,  # noqa: FBT001 - a key of the cache
    idempotent: bool,  # noqa: FBT001 - another
) -> dict[str, Any]:
    from outlast.policy import RetryPolicy

    policy = RetryPolicy(
        max_attempts=2 if more_than_one else 1,
        on_errors=_once(on),
        skip_on_errors=_once(skip),
        retry_limits=None if limits is None else dict(limits),
    )

    def retries(policy: RetryPolicy, name: str) -> bool:
        return policy.refuses(_Unnamed(), _of_class(name), 1) is None

    classes = sorted(set(ERROR_CLASSES) - {"circuit_open"})  # about an open circuit its breaker decides
    sorted_out: dict[str, dict[str, list[str]]] = {category: {"retry": [], "fail": []} for category in CATEGORIES}
    if_undone: list[str] = []
    for name in classes:
        goes = "retry" if retries(policy, name) else "fail"
        if goes == "retry" and not (idempotent or name in UNDONE):
            if_undone.append(name)
            goes = "fail"
        sorted_out[ERROR_CLASSES[name].category][goes].append(name)
    found: dict[str, Any] = {
        category: next((one for one in goes if len(goes) - list(goes.values()).count([]) == 1 and goes[one]), goes)
        for category, goes in sorted_out.items()
    }
    if not more_than_one or "all" in skip:
        return found
    # As if everything were listed: a class that is not retried even then is skipped, or its tier has no retry. What is
    # skipped by its name is no matter of its class.
    words = [one for one in skip if str(one) in _WORDS]
    by_class = RetryPolicy(on_errors=("all",), skip_on_errors=words, retry_limits=policy.retry_limits)
    never = [name for name in classes if not retries(by_class, name)]
    listed = [] if len(never) == len(classes) else _may_be_retried(_named(on), _named(skip), set(never))
    also = {"if_undone": if_undone, "listed": listed, "never": never if listed else [], "skipped": _named(skip)}
    return found | {key: value for key, value in also.items() if value}


def _may_be_retried(on: list[str], skip: list[str], never: set[str]) -> list[str]:
    """What is listed, but for statuses of which each is skipped or of such a class, and for names with a base class that is."""
    skipped = {status for one in skip if is_status(one) for status in statuses(one)}
    kinds = tuple(kind for one in skip if not is_status(one) and (kind := _type_of(one.removeprefix("builtins."))))
    symbols = errno_symbols(on)

    def may(entry: str) -> bool:
        if Exception in kinds:
            return False
        if is_status(entry):
            return any(one not in skipped and classify(one).error_class not in never for one in statuses(entry))
        kind = _type_of(entry.removeprefix("builtins."))
        # An errno may be that of a cause, whatever the error itself is.
        return not kind or entry.upper() in symbols or not issubclass(kind, kinds)

    return [entry for entry in on if may(entry)]


def _once(specs: tuple[ErrorSpec, ...]) -> tuple[ErrorSpec, ...]:
    """
    What of a list can say something about a builtin exception, or one without a name, each once: a name of another
    package says nothing about those, and a list may have thousands.
    """
    symbols = errno_symbols([one for one in specs if isinstance(one, str)])
    found: dict[object, ErrorSpec] = {}
    for one in specs:
        if is_status(one):
            found.setdefault(statuses(one), one)
        elif not isinstance(one, str) or one in _WORDS:
            found.setdefault(one, one)
        elif (meant := one.upper() if one.upper() in symbols else resolve(one)) is not None:
            found.setdefault(meant, one)
    return tuple(found.values())


def _named(specs: tuple[ErrorSpec, ...]) -> list[str]:
    """What a list has beside error classes, tiers and categories: statuses and names of exceptions."""
    return [
        one.__qualname__ if isinstance(one, type) else str(one)
        for one in specs
        if isinstance(one, type) or str(one) not in _WORDS
    ]


class _Unnamed(Exception):
    """Stands for an error of which only the class is known."""


_WORDS = frozenset((*CATEGORIES, "all", *ERROR_CLASSES, *TIERS))  # whose classes are sorted above
_BUILTIN = tuple(
    one
    for one in vars(builtins).values()
    if isinstance(one, type) and issubclass(one, Exception) and not issubclass(one, ExceptionGroup)
)
