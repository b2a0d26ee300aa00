"""
Rules about policies that are allowed and are rarely meant: each is data, with a code, a sentence and a function over the
checked model of a file. They warn; nothing is refused for them unless somebody asks for it (`outlast validate
--strict`). A warning is silenced by its code, for a file or for a step: ``silence: [R18]``.

The codes up to R45 are those of the list that the rules go back to. Where the list also has an error of the same code,
compiling tells it. Rules that need what no file says are not here.
"""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast import presets
from outlast.errors import AttemptTimeoutError, nearest
from outlast.kernel.wording import counted, numeral
from outlast.policy import RetryPolicy
from outlast.spec import references, yaml
from outlast.spec.calling import absent, unsure_error
from outlast.spec.mistakes import worded
from outlast.spec.model import Compensation, Template, names_row
from outlast.spec.plan import exact
from outlast.spec.schedule import (
    NO_LINES,
    attempts,
    calls,
    classes_of,
    errors,
    exact_ms,
    in_order,
    lines_of,
    most_ms,
    ms,
    retried_classes,
    timing,
)
from outlast.spec.values import got_of
from outlast.verdicts import CATEGORIES, ERROR_CLASSES, class_by_name, classify, lineage
from outlast.verdicts.rules import UNDONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outlast.spec.mistakes import Mistake, Path, Severity
    from outlast.spec.model import Model, Step
    from outlast.spec.references import Reference
    from outlast.spec.schedule import Lines, Timing
    from outlast.spec.yaml import Node

SILENCE = "silence"  # the key
UNUSED = "R00"  # the code of a silence that silences nothing
_MOST_ATTEMPTS = 20
_MOST_CALLS = 12
_CROWD, _LARGE_CROWD = 10, 100  # rows at a time
_SMALL_JITTER = 0.1
_PASSING = frozenset({408, 409, 425, 429})  # statuses of the client that may pass
_CHANGING = frozenset({"attempt", "attempts", "random", "nonce", "now", "timestamp"})  # parameters of these names
_EVERYTHING = frozenset({"all", "Exception", "BaseException"})
_NEVER = frozenset({"MemoryError", "asyncio.CancelledError", "concurrent.futures.CancelledError", "trio.Cancelled"})
# Keys of configs whose text another program reads as code, and those in which a part of a text changes the place.
_CODE_KEYS = frozenset({"query", "sql", "statement", "command", "shell"})
_VALUES = {"http.caller": "query or the body", "postgres.extractor": "parameters"}  # where values are no code
_PLACE_KEYS = frozenset({"url", "path", "table"})
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
_OTHER_SIGN = re.compile(r"\{\{-?\s*(?P<name>(?:params|steps|item)\.[A-Za-z0-9_.-]+|item)\s*-?\}\}", re.ASCII)


class Finding(NamedTuple):
    """What a rule has found in a step: where, and the parts of a mistake. One that `is_certain` is an error."""

    path: Path
    expected: str
    got: str
    way_out: str
    is_certain: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; `sentence` says what it warns of."""

    code: str
    severity: Severity
    sentence: str
    find: Callable[[Look, Step], Iterator[Finding]]


_KEPT = 64  # schedules that are kept for the next step


class Look:
    """A model with what several rules want to know of it, each worked out once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._timings: dict[tuple[RetryPolicy, float | None, float | None, Lines], Timing] = {}

    def timing(self, step: Step | Compensation) -> Timing:
        # What undoes a step has no limit and no circuit.
        lines = NO_LINES
        if not isinstance(step, Compensation):
            parts = (step.limit, step.circuit_breaker, step.retry_budget)
            lines = lines_of(step.retry, *parts, rows=step.for_each is not None)
        key = (step.retry, step.timeout.step, step.timeout.total, lines)
        if key not in self._timings:
            if len(self._timings) >= _KEPT:  # each has a row for each attempt; rules go from step to step
                self._timings.clear()
            self._timings[key] = timing(*key)
        return self._timings[key]

    @cached_property
    def is_job(self) -> bool:
        """Whether the file says that the pipeline is a durable job: it has a schedule, or a step that is requeued."""
        modes = (step.retry_block.get("mode") for step in self.model.steps)
        return self.model.schedule is not None or "requeue" in modes

    @cached_property
    def calls_of_circuit(self) -> Mapping[str, float]:
        """How often each circuit is asked in one run at the most; without an end, if for rows."""
        found: dict[str, float] = {}
        for step in self.model.steps:
            if step.circuit_breaker is not None:
                scope = step.circuit_breaker["scope"]
                most = math.inf if step.for_each is not None else attempts(step.retry)
                found[scope] = found.get(scope, 0) + most
        return found


def check(model: Model) -> list[Mistake]:
    """
    Everything that the rules find in a file, but for what it silences. A code that no rule has is an error; one that
    silences nothing is a warning, unless a parameter has no value yet, which may be the reason.
    """
    look = Look(model)
    found: list[Mistake] = []
    in_file = _silenced(model, None, found)
    used: set[str] = set()
    for step in model.steps:
        own = _silenced(model, step, found)
        used_here: set[str] = set()
        for rule in RULES:
            for one in rule.find(look, step):
                if rule.code in own:
                    used_here.add(rule.code)
                elif rule.code in in_file:
                    used.add(rule.code)
                else:
                    severity = "error" if one.is_certain else rule.severity
                    found.append(model.mistake(step, *one[:4], code=rule.code, severity=severity))
        found += _unused(model, step, own, used_here)
    return found + _unused(model, None, in_file, used)


def _silenced(model: Model, step: Step | None, found: list[Mistake]) -> dict[str, int]:
    """The codes that are silenced there, each with its place in the list."""
    node = (model.node if step is None else step.node).get(SILENCE)
    if node is None or node.is_null:
        return {}
    if node.kind != "list":
        wrong = ("a list of codes", got_of(node), "write it as [R18]")
        found.append(model.mistake(step, (SILENCE,), *wrong, severity="error"))
        return {}
    known = [rule.code for rule in RULES]
    codes: dict[str, int] = {}
    for number, one in enumerate(node.items):
        code = yaml.value_of(one) if one.kind == "scalar" else None
        if code in known and code not in codes:
            codes[str(code)] = number
            continue
        expected = "each code once" if code in codes else "the code of a warning"
        way_out = "leave it out" if code in codes else worded(nearest(str(code), known)) or "warnings end in their code"
        place = (SILENCE, number)
        found.append(model.mistake(step, place, expected, got_of(one), way_out, severity="error"))
    return codes


def _unused(model: Model, step: Step | None, codes: Mapping[str, int], used: set[str]) -> list[Mistake]:
    if any(not model.params[name].sensitive for name in model.open_params):
        return []
    return [
        model.mistake(step, (SILENCE, number), "a code that silences something", code, "leave it out", code=UNUSED)
        for code, number in codes.items()
        if code not in used
    ]


# -- the schedule ------------------------------------------------------------------------------------------------------


def _too_many_attempts(_: Look, step: Step) -> Iterator[Finding]:
    if attempts(step.retry) > _MOST_ATTEMPTS:
        where = _key(step, "retry", "max_attempts", "max_retries", "delays_ms", "delays_s", "delays")
        way_out = "lower it, and let the waits grow"
        yield Finding(where, f"at most {_MOST_ATTEMPTS} attempts", f"{attempts(step.retry):,}", way_out)


def _no_time_left(look: Look, step: Step) -> Iterator[Finding]:
    for path, node, one in _with_policies(step):
        found = look.timing(one)
        if found.in_doubt is None or one.timeout.total is None:
            continue
        left = "no time" if not found.left_ms else exact(found.left_ms)
        limit = one.timeout.step
        needed = found.delays[-1]["sum_max_ms"] if limit is None else most_ms(found.whole or 0.0)
        way_out = f"raise it {'above' if limit is None else 'to'} {exact(needed)}, or lower max_attempts"
        where = (*path, *_inside(node, "timeout", "total_ms", "total_s", "total"))
        yield Finding(where, "time for every attempt", f"{left} left for attempt {found.in_doubt}", way_out)


def _no_ceiling(_: Look, step: Step) -> Iterator[Finding]:
    for path, node, one in _with_policies(step):
        policy = one.retry
        grows = policy.backoff == "exponential" and policy.multiplier > 1 and not policy.delays
        if grows and policy.max_delay is None and attempts(policy) > 2:
            last = exact(ms(policy.band(attempts(policy) - 1)[0]))
            where = (*path, *_inside(node, "retry", "max_delay_ms", "max_delay_s", "max_delay"))
            yield Finding(where, "a ceiling for waits that grow", f"none: the last wait is {last}", "give max_delay_ms")


def _no_jitter(_: Look, step: Step) -> Iterator[Finding]:
    if _rows(step) > 1 and _retries(step) and step.retry.jitter == 0.0:
        got = f"0, with {_rows(step)} rows at a time, which would all come back together"
        yield Finding(_key(step, "retry", "jitter"), "jitter", got, "write jitter: 0.25")


def _little_jitter(_: Look, step: Step) -> Iterator[Finding]:
    jitter = step.retry.jitter
    if _rows(step) >= _LARGE_CROWD and _retries(step) and isinstance(jitter, float) and 0 < jitter < _SMALL_JITTER:
        got = f"{numeral(jitter)}, with {_rows(step)} rows at a time"
        yield Finding(_key(step, "retry", "jitter"), f"jitter of at least {_SMALL_JITTER:g}", got, "write jitter: 0.25")


def _above_the_ceiling(_: Look, step: Step) -> Iterator[Finding]:
    policy = step.retry
    if policy.max_delay is None or policy.delays or policy.cap != "before_jitter" or not _retries(step):
        return
    most = policy.band(attempts(policy) - 1)[2]
    if most > policy.max_delay:
        expected = f"no wait longer than max_delay ({exact(exact_ms(policy.max_delay))})"
        yield Finding(_key(step, "retry", "cap"), expected, f"up to {exact(most_ms(most))}", "write cap: after_jitter")


def _ceiling_never_reached(look: Look, step: Step) -> Iterator[Finding]:
    policy = step.retry
    where = _key(step, "retry", "max_delay_ms", "max_delay_s", "max_delay")
    if policy.max_delay is None or policy.delays or not _retries(step) or len(where) == 1:
        return
    if _is_open(look.model, step.node.at(("retry",))):  # what stands in for such a value says nothing of the others
        return
    most = policy.band(attempts(policy) - 1)[2]
    if most < policy.max_delay:
        longest = exact(most_ms(most))
        # Without it there is the usual ceiling, which must not cut what is meant.
        way_out = "leave it out" if most <= (RetryPolicy().max_delay or 0.0) else f"lower it to {longest}"
        yield Finding(where, "a ceiling that a wait can reach", f"a longest wait of {longest}", way_out)


def _longer_than_all(_: Look, step: Step) -> Iterator[Finding]:
    where = _key(step, "retry", "max_retry_after_ms", "max_retry_after_s", "max_retry_after")
    total = step.timeout.total
    if total is not None and len(where) > 1 and _retries(step) and step.retry.max_retry_after > total:
        got = exact(exact_ms(step.retry.max_retry_after))
        yield Finding(
            where, f"at most the total time limit ({exact(exact_ms(total))})", got, "lower it, or raise total_ms"
        )


def _multiplied(look: Look, step: Step) -> Iterator[Finding]:
    number = calls(step.retry)["job"]
    if not look.is_job or not number > _MOST_CALLS or not number > attempts(step.retry) > 1:
        return
    if not retried_classes(step.retry) & retried_classes(presets.jobs):  # a job does not requeue what is exhausted here
        return
    expected = f"at most {_MOST_CALLS} executions through all layers"
    got = f"{number}, because a durable job tries again what is exhausted"
    where = _key(step, "retry", "max_attempts", "max_retries", "preset")
    once = step.retry.retry_exhausted is False
    yield Finding(
        where, expected, got, "lower max_attempts" if once else "add retry_exhausted: false, or lower max_attempts"
    )


# -- errors ------------------------------------------------------------------------------------------------------------


def _covered(_: Look, step: Step) -> Iterator[Finding]:
    skipped = {str(one) for one in step.retry.skip_on_errors}
    if not skipped or not _retries(step):
        return
    goes = errors(step.retry)
    for entry in map(str, step.retry.on_errors):
        by = next((one for one in _above(entry) if one in skipped and one != entry), None)
        (spelt,) = map(str, in_order((entry,)))
        covers = f"which {by} in skip_on_errors covers"
        if spelt in goes.get(
            "listed", ()
        ):  # errors of this name may be of other classes than most of them, and are retried then
            mostly = classes_of(spelt)
            by = by if mostly and mostly <= set(goes.get("never", ())) else None
            covers = f"most of which {by} in skip_on_errors covers"
        if by is not None:
            yield Finding(_entry(step, entry), "errors that can be retried", f"{entry}, {covers}", "drop one")


def _everything(_: Look, step: Step) -> Iterator[Finding]:
    for entry in map(str, step.retry.on_errors):
        name = entry.removeprefix("builtins.")
        if name in _EVERYTHING and _retries(step):
            got = f"{entry}: mistakes in the data or in the program would be tried again"
            yield Finding(_entry(step, entry), "the errors that may pass", got, "list them: transient, 5xx, ...")
        elif name in _NEVER and _retries(step):
            yield Finding(_entry(step, entry), "errors that may pass", entry, "leave it out")


def _permanent(_: Look, step: Step) -> Iterator[Finding]:
    if not _retries(step):
        return
    for entry in step.retry.on_errors:
        if str(entry).removeprefix("builtins.") not in _EVERYTHING and _is_permanent(entry):
            way_out = "leave it out: a further attempt ends in the same way"
            yield Finding(_entry(step, str(entry)), "errors that may pass", str(entry), way_out)


def _not_waited_for(_: Look, step: Step) -> Iterator[Finding]:
    retried = retried_classes(step.retry) & {"rate_limited", "unavailable"}
    if step.retry.max_retry_after == 0 and retried and _retries(step):
        where = _key(step, "retry", "max_retry_after_ms", "max_retry_after_s", "max_retry_after")
        expected = "a wait that the service asks for (Retry-After) to be heeded"
        yield Finding(where, expected, "0", "leave it out for two minutes at the most")


def _unsure_errors(look: Look, step: Step) -> Iterator[Finding]:
    for path, _, one in _with_policies(step):
        for entry in dict.fromkeys(map(str, (*one.retry.on_errors, *one.retry.skip_on_errors))):
            found = unsure_error(look.model, entry) if _DOTTED.fullmatch(entry) else None
            if found is not None:
                where = _entry(step, entry) if not path else (*path, "retry")
                yield Finding(where, "the name of an exception", *found)


def _nothing_retried(_: Look, step: Step) -> Iterator[Finding]:
    if step.retry.max_attempts == 1:
        return
    goes = errors(
        step.retry
    )  # with idempotent: false the same may be, if the error itself proves that nothing was done
    if "listed" not in goes and all(goes[category] == "fail" for category in CATEGORIES):
        where = _key(step, "retry", "on_errors", "retriable_errors", "retry_limits", "max_attempts")
        got = f"none, with {step.retry.max_attempts} attempts"
        yield Finding(where, "errors that are retried", got, "list some in on_errors, or leave the block out")


# -- connections -------------------------------------------------------------------------------------------------------


def _overridden(look: Look, step: Step) -> Iterator[Finding]:
    known = look.model.connections
    if known is None or step.described is None:
        return
    for key, name in known.overridden(step.described, step.config):
        expected, way_out = f"{key} from {name}, which has it", "leave it out, or take another connection"
        yield Finding(("config", key), expected, "another in the step", way_out)


# -- doing things twice ------------------------------------------------------------------------------------------------


def _done_twice(_: Look, step: Step) -> Iterator[Finding]:
    known = step.described
    if known is None or not known.side_effects or known.is_idempotent(step.config) or not _retries(step):
        return
    if step.idempotency is not None or step.idempotent is not None or step.mode in ("read", "transform"):
        return
    # After a refused connection or a 429 it is certain that nothing was done; after a timeout it is not.
    if retried_classes(step.retry) - UNDONE:
        got = f"retries of {step.component}, of which nothing says that it may be done twice"
        way_out = "add idempotency: {key: ...}, or say idempotent: true or false"
        yield Finding(("retry",), "work that may be done twice, or a key", got, way_out)


def _forgotten(look: Look, step: Step) -> Iterator[Finding]:
    found = look.timing(step)
    worst, may = found.worst_ms, "take"
    if worst is None and found.delays:  # attempts have no bound; the waits between them have
        worst, may = found.delays[-1]["sum_max_ms"], "wait"
    if step.idempotency is not None and worst is not None and exact_ms(step.idempotency.cache_ttl) < worst:
        where = _key(step, "idempotency", "cache_ttl_ms", "cache_ttl_s", "cache_ttl")
        expected = f"at least what the step may {may} ({exact(worst)})"
        yield Finding(
            where, expected, exact(exact_ms(step.idempotency.cache_ttl)), "raise it, or leave it out for 24 h"
        )


def _same_key(_: Look, step: Step) -> Iterator[Finding]:
    parts = _key_parts(step)
    for part in parts or ():
        if part.kind == "param" and part.name.lower() in _CHANGING:
            way_out = "a key that changes finds nothing again: name the batch"
            yield Finding(("idempotency", "key"), "a key that is the same in every attempt", str(part), way_out)
    if parts is None or any(part.kind in ("param", "output") for part in parts):
        return
    rows = _rows_are_put_out(step) or _varies(step.node.at(("for_each", "items")))
    if any(rows if part.kind == "item" else _varies(step.node.at(("config", part.name)), rows=rows) for part in parts):
        return
    got = "one that is the same in every run" if parts else "one without a reference: the same in every run"
    way_out = "add what tells one run from another: ${params.name}"
    yield Finding(("idempotency", "key"), "a key that differs from one piece of work to another", got, way_out)


def _key_without_connection(_: Look, step: Step) -> Iterator[Finding]:
    parts = _key_parts(step)
    node = step.node.at(("config", "connection"))
    if parts is None or node.kind != "scalar" or "${params." not in node.text:
        return
    chosen = {part.name for part in references.references_in(references.read(node.text)[0]) if part.kind == "param"}
    if not any(part.name == "connection" if part.kind == "own" else part.name in chosen for part in parts):
        expected = "a key with the connection, which a parameter chooses"
        got = "one that is the same for all connections"
        yield Finding(("idempotency", "key"), expected, got, "add ${connection}")


# -- protection --------------------------------------------------------------------------------------------------------


def _no_budget(_: Look, step: Step) -> Iterator[Finding]:
    shared = step.connection is not None or (step.described is not None and step.described.network)
    if _rows(step) > _CROWD and _retries(step) and shared and step.retry_budget is None:
        got = f"none, with {_rows(step)} rows at a time on one service"
        yield Finding(("retry",), "a retry_budget", got, "add retry_budget: {ratio: 0.1}")


def _never_opens(look: Look, step: Step) -> Iterator[Finding]:
    circuit = step.circuit_breaker
    if circuit is None or circuit["shared"]:
        return
    key = "failure_threshold" if circuit.get("failure_rate") is None else "min_calls"
    most, threshold = look.calls_of_circuit[circuit["scope"]], circuit[key]
    if threshold > most:
        got = f"{threshold}, with {counted(int(most), 'call')} in a run at the most"
        where = _key(step, "circuit_breaker", key)
        yield Finding(where, "a threshold that can be reached", got, "lower it, or leave out shared: false")


def _waits_in_vain(_: Look, step: Step) -> Iterator[Finding]:
    circuit, total = step.circuit_breaker, step.timeout.total
    if circuit is None or total is None or circuit["on_open"] != "wait":
        return
    if circuit["reset_timeout_ms"] > exact_ms(total):
        where = _key(step, "circuit_breaker", "reset_timeout_s", "reset_timeout_ms", "reset_timeout")
        expected = f"an open time of at most the total time limit ({exact(exact_ms(total))}), since the step waits"
        yield Finding(where, expected, exact(circuit["reset_timeout_ms"]), "lower it, or write on_open: fail")


def _many_probes(_: Look, step: Step) -> Iterator[Finding]:
    circuit = step.circuit_breaker
    where = _key(step, "circuit_breaker", "half_open_requests")
    if circuit is None or step.for_each is None or len(where) == 1:  # a default is no reason to warn
        return
    most = max(1, math.ceil(_rows(step) / 10))
    if circuit["half_open_requests"] > most:
        expected = f"probes of at most a tenth of the concurrency ({most} of {_rows(step)})"
        yield Finding(where, expected, str(circuit["half_open_requests"]), f"write half_open_requests: {most}")


def _counts_everything(_: Look, step: Step) -> Iterator[Finding]:
    if step.circuit_breaker is not None and step.circuit_breaker.get("count") == "any":
        got = "any: an order that is wrong would close the service to all others"
        yield Finding(_key(step, "circuit_breaker", "count"), "faults of the service only", got, "write count: faults")


def _not_counted(_: Look, step: Step) -> Iterator[Finding]:
    for name in () if step.limit is None else step.limit.get("rates") or ():
        if name != "calls":
            expected = "the rate calls: nothing in a step says how much of another one an attempt uses"
            yield Finding(
                ("limit", "rates", name), expected, name, "leave it out, or keep it in a guard, which has cost"
            )


def _no_limit(_: Look, step: Step) -> Iterator[Finding]:
    for path, node, one in _with_policies(step):
        known = one.described
        if known is None or not known.network or one.timeout.step is not None:
            continue
        if one.timeout.total is None or attempts(one.retry) > 1:
            got = "none: an attempt that hangs is never given up" if one.timeout.total is None else "total_ms only"
            where = (*path, *_inside(node, "timeout"))
            yield Finding(where, "a time limit for an attempt", got, "add timeout: {step_ms: 60000}")


def _left_running(_: Look, step: Step) -> Iterator[Finding]:
    for path, node, one in _with_policies(step):
        blocks = one.component == "python" and step.isolation != "process" and one.timeout.step is not None
        if not blocks or attempts(one.retry) == 1 or (one is step and step.idempotent is False):
            continue
        if one.retry.decide(AttemptTimeoutError("its time is up"), attempt=1).retry:
            where = (*path, *_inside(node, "timeout", "step_ms"))
            got = "an attempt in a thread, which cannot be stopped: the first one whose time is up is the last one"
            yield Finding(
                where, "an attempt that is retried when its time is up", got, "add isolation: process to the step"
            )


# -- undoing, references -----------------------------------------------------------------------------------------------


def _not_undone(_: Look, step: Step) -> Iterator[Finding]:
    if step.described is not None and step.described.needs_compensation and step.compensate is None:
        way_out = "add compensate: {component: ...}"
        yield Finding(("component",), "what undoes the step if the run fails", "no compensate", way_out)
    elif step.compensate is not None and attempts(step.compensate.retry) == 1:
        got = "one attempt"
        yield Finding(("compensate", "retry"), "a compensation that is retried", got, "leave its retry out for three")


def _undone_to_nothing(_: Look, step: Step) -> Iterator[Finding]:
    undo = step.compensate
    if undo is None or step.component != "s3.writer" or undo.component != "s3.deleter":
        return
    if step.config.get("overwrite") is not False:
        got = "overwrite: true: an object that was there is replaced, and then deleted"
        way_out = "add overwrite: false, or silence the code if every run has a key of its own"
        path = ("config", "overwrite") if "overwrite" in step.config else ("config",)
        yield Finding(path, "a write that can be undone", got, way_out)


def _weaker(_: Look, step: Step) -> Iterator[Finding]:
    other = step.compensate
    if other is None:
        return
    most = attempts(step.retry)
    if 1 < attempts(other.retry) < most:
        # A block of its own would begin with other errors than a compensation without one has.
        block = f"add retry: {{preset: step, unclear: retry, max_attempts: {most}}}"
        way_out = f"write max_attempts: {most}" if step.node.at(("compensate",)).get("retry") is not None else block
        expected = f"at least as many attempts as the step ({most})"
        yield Finding(("compensate", "retry"), expected, str(attempts(other.retry)), way_out)
    limit, forward = other.timeout.step, step.timeout.step
    if limit is not None and forward is not None and limit < forward:
        expected = f"at least as much time as the step ({exact(exact_ms(forward))})"
        yield Finding(("compensate", "timeout"), expected, exact(exact_ms(limit)), "raise step_ms")


def _as_code(_: Look, step: Step) -> Iterator[Finding]:
    for key, value in step.config.items():
        if not isinstance(value, Template) or key not in _CODE_KEYS | _PLACE_KEYS:
            continue
        place = None if step.described is None else step.described.places.get(key)
        # A value inside of such a text is encoded or checked; all of an address is held against the connection.
        if place is not None and (len(value.parts) > 1 or (place == "url" and step.connection is not None)):
            continue
        given = ("output", "item") if _rows_are_put_out(step) else ("output",)
        outputs = [part for part in references.references_in(value.parts) if part.kind in given]
        if outputs:
            expected = f"{key} without what other steps have put out"
            elsewhere = _VALUES.get(step.component, "")
            way_out = f"put it into {elsewhere}" if elsewhere else "make sure that it is only a name or a number"
            if len(value.parts) == 1 and key in _PLACE_KEYS:
                way_out = "make sure where it leads"
            way_out += ", or silence the code if it is trusted"
            yield Finding(("config", key), expected, str(outputs[0]), way_out)


def _no_row(_: Look, step: Step) -> Iterator[Finding]:
    if step.for_each is None or names_row(step.config) or names_row(step.inputs):
        return
    if step.described is None or not step.described.takes_row:
        got = "neither config nor inputs with ${item}: the same is done again for each row"
        way_out = "write ${item.field}, or ${item}, where the row belongs"
        yield Finding(("for_each",), f"a row that {step.component} is given", got, way_out)


def _other_sign(_: Look, step: Step) -> Iterator[Finding]:
    undo = {} if step.compensate is None else step.compensate.config
    key = "" if step.idempotency is None else step.idempotency.key
    for place, value in (
        (("config",), step.config),
        (("inputs",), step.inputs),
        (("compensate", "config"), undo),
        (("idempotency", "key"), key),
    ):
        for path, text in _texts(value, place):
            if found := _OTHER_SIGN.search(text):
                got = "{{ " + found["name"] + " }}, which is a text like any other"
                yield Finding(path, "a reference as ${...}", got, f"write ${{{found['name']}}}")


def _not_there(look: Look, step: Step) -> Iterator[Finding]:
    for path, expected, got, way_out in absent(look.model, step):
        # A module or a file may still be written; a module that is there and does not have the function is wrong.
        yield Finding(path, expected, got, way_out, is_certain=expected.startswith("a function that "))


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str | Template):
        yield path, str(value)
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts(one, (*path, key))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _texts(one, (*path, number))


# -- helpers -----------------------------------------------------------------------------------------------------------


def _retries(step: Step) -> bool:
    return attempts(step.retry) > 1


def _rows(step: Step) -> int:
    """How many rows are worked on at a time."""
    return 0 if step.for_each is None else step.for_each.concurrency


def _with_policies(step: Step) -> Iterator[tuple[Path, Node, Step | Compensation]]:
    """The step, and what undoes it: both are retried and have time limits."""
    yield (), step.node, step
    if step.compensate is not None:
        yield ("compensate",), step.node.at(("compensate",)), step.compensate


def _key(step: Step, block: str, *names: str) -> Path:
    """The place of the first of these keys that the block has; of the block, if it has none of them."""
    return _inside(step.node, block, *names)


def _inside(of: Node, block: str, *names: str) -> Path:
    node = of.get(block)
    name = None if node is None else next((one for one in names if node.get(one) is not None), None)
    return (block,) if name is None else (block, name)


def _entry(step: Step, entry: str) -> Path:
    """Where an entry of on_errors stands; of the block, if a preset has it."""
    for key in (
        "on_errors",
        "retriable_errors",
        "retryable_exceptions",
        "retryable_http_status_codes",
        "skip_on_errors",
    ):
        node = step.node.at(("retry",)).get(key)
        for number, one in enumerate(() if node is None else node.items):
            if one.text == entry:
                return ("retry", key, number)
        if node is not None and node.kind == "scalar" and node.text == entry:
            return ("retry", key)
    return ("retry",)


def _above(entry: str) -> Iterator[str]:
    """What covers an entry of a list of errors: itself, its parents, its tier, its category, its base classes."""
    yield "all"
    if entry.isdecimal():
        yield f"{entry[0]}xx"
    name = entry.removeprefix("builtins.")
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, BaseException):
        yield from (f"{module}{one.__name__}" for one in kind.__mro__ for module in ("", "builtins."))
    known = classify(int(entry)).error_class if entry.isdecimal() else class_by_name(entry)
    known = entry if entry in ERROR_CLASSES else known
    if known is not None:
        yield from lineage(known)
        yield from (ERROR_CLASSES[known].tier, ERROR_CLASSES[known].category)


def _is_permanent(entry: Any) -> bool:
    text = str(entry)
    if text.isdecimal():
        return 400 <= int(text) < 500 and int(text) not in _PASSING
    if text in ("permanent", "4xx"):
        return True
    if text in ERROR_CLASSES:
        return ERROR_CLASSES[text].category == "permanent"
    of_tier = [one.category for one in ERROR_CLASSES.values() if one.tier == text]
    return bool(of_tier) and set(of_tier) == {"permanent"}


def _key_parts(step: Step) -> list[Reference] | None:
    """The references of the idempotency key as it is written; None if there is no key."""
    node = step.node.at(("idempotency", "key"))
    if step.idempotency is None or node.kind != "scalar":
        return None
    try:
        return list(references.references_in(references.parse(node.text)))
    except references.Unreadable:
        return None


def _varies(node: Node, *, rows: bool = False) -> bool:
    """Whether anything in there is a parameter or an output, or, with `rows`, a row."""
    if node.kind == "scalar":
        signs = ("${params.", "${steps.", *(("${item.", "${item}") if rows else ()))
        return any(sign in node.text for sign in signs)
    return any(_varies(one, rows=rows) for one in (*node.items, *(value for _, value in node.pairs)))


def _is_open(model: Model, node: Node) -> bool:
    """Whether anything in there is a parameter that has no value yet."""
    if node.kind == "scalar":
        return any(f"${{params.{name}}}" in node.text for name in model.open_params)
    return any(_is_open(model, one) for one in (*node.items, *(value for _, value in node.pairs)))


def _rows_are_put_out(step: Step) -> bool:
    """Whether the rows of a step come from elsewhere; those that the file itself lists are its author's words."""
    return step.for_each is not None and isinstance(step.for_each.items, Template)


RULES: tuple[Rule, ...] = (
    Rule("R01", "warning", "more than 20 attempts", _too_many_attempts),
    Rule("R03", "warning", "the last attempts may not begin, or not have their full time, before the total is up", _no_time_left),
    Rule("R05", "warning", "waits that grow without a ceiling", _no_ceiling),
    Rule("R06", "warning", "several rows at a time, and no jitter: all come back together", _no_jitter),
    Rule("R07", "warning", "100 rows at a time or more, with less than 10 % of jitter", _little_jitter),
    Rule("R08", "warning", "jitter behind the ceiling, so that a wait may be longer than `max_delay`", _above_the_ceiling),
    Rule("R11", "note", "a `max_delay` that no wait reaches", _ceiling_never_reached),
    Rule("R12", "warning", "an entry of `on_errors` that an entry of `skip_on_errors` covers, so that it is never retried, or hardly ever", _covered),
    Rule("R14", "warning", "every error is retried, or one that must not be", _everything),
    Rule("R15", "warning", "errors are retried that do not pass: bad data, missing rights, a 4xx", _permanent),
    Rule("R16", "warning", "an overloaded service is asked again without heeding its Retry-After", _not_waited_for),
    Rule("R17", "warning", "a `max_retry_after` longer than the total time limit", _longer_than_all),
    Rule("R18", "warning", "work with effects is retried after errors that may come when it is done, and nothing says that it may be done twice", _done_twice),
    Rule("R19", "warning", "an idempotency key is forgotten while retries are still possible", _forgotten),
    Rule("R20", "warning", "an idempotency key that is the same in every run, or another in every attempt", _same_key),
    Rule("R21", "warning", "an idempotency key that is the same for all connections, where a parameter chooses one", _key_without_connection),
    Rule("R22", "warning", "more than 12 executions in a pipeline that is a durable job (it has a `schedule`, or a step with `mode: requeue`)", _multiplied),
    Rule("R24", "warning", "more than 10 rows at a time retry against one service without a retry budget", _no_budget),
    Rule("R26", "warning", "a circuit of one process that cannot see as many failures as would open it", _never_opens),
    Rule("R27", "warning", "a step that waits for a circuit longer than it may take", _waits_in_vain),
    Rule("R28", "warning", "more probes at a time than a tenth of the concurrency", _many_probes),
    Rule("R29", "warning", "a circuit that counts errors which are not the service's", _counts_everything),
    Rule("R33", "warning", "nothing undoes a step that must be undone, or it is tried only once", _not_undone),
    Rule("R34", "warning", "what undoes a step has fewer attempts or less time than the step", _weaker),
    Rule("R36", "warning", "a step on the network without a time limit for an attempt", _no_limit),
    Rule("R42", "warning", "what another step has put out becomes part of a query, a command, an address or a path", _as_code),
    Rule("R46", "warning", "more than one attempt, and no error that is retried", _nothing_retried),
    Rule("R47", "warning", "a key in place of a field that the connection has too, which had better stay there", _overridden),
    Rule("R48", "warning", "a step for each row that names no row, so that the same is done again for each", _no_row),
    Rule("R49", "warning", "`{{ }}` around the name of a parameter, an output or a row, which is no reference here", _other_sign),
    Rule("R50", "warning", "a module or a file that is missing under the project's root; a function that its module does not have is an error", _not_there),
    Rule("R51", "warning", "a rate of a limit, other than `calls`, that nothing in a step counts for", _not_counted),
    Rule("R52", "warning", "a `python` step in a thread that is to be retried when its time is up: a thread cannot be stopped, so there is no other attempt", _left_running),
    Rule("R53", "warning", "an `s3.writer` that may replace an object, and an `s3.deleter` that undoes it: what was there before is lost", _undone_to_nothing),
    Rule("R54", "warning", "an exception in `on_errors` or `skip_on_errors` that its module does not have, or that could not be checked", _unsure_errors),
)  # fmt: skip
