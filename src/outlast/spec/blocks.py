"""
The blocks of a step that guards have too: retry, timeout, circuit_breaker, limit, retry_budget. Their keys, spellings
and checks are those of `settings`; here a block of the file becomes plain data, with the types that its keys expect,
and the complaints of `settings` get their places in the file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from outlast import presets
from outlast.breaker import CircuitBreaker
from outlast.budgets import RetryBudget
from outlast.errors import ConfigurationError, Item, closest, is_misspelt, nearest
from outlast.kernel.wording import numeral
from outlast.limits import Limit
from outlast.policy import RetryPolicy
from outlast.settings.checks import show
from outlast.settings.keys import BLOCKS, TIMES, Block, named, seconds_of, spellings
from outlast.spec import yaml
from outlast.spec.keys import DURATION, STEP_BREAKER
from outlast.spec.manifest import canonical
from outlast.spec.mistakes import MOST, worded
from outlast.spec.model import Times
from outlast.spec.schedule import exact_ms, in_order
from outlast.spec.values import HUGE, ID, MISSING, USUAL, as_written, got_of, known_keys
from outlast.verdicts import CATEGORIES, ERROR_CLASSES, TIERS, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outlast.errors import Problem
    from outlast.limits import Rate
    from outlast.spec.mistakes import Path
    from outlast.spec.values import Values
    from outlast.spec.yaml import Node

MOST_ATTEMPTS = 1000  # of one step: its schedule is in the manifest, row by row
ONCE = RetryPolicy(max_attempts=1)
COMPENSATION = presets.step.replace(on_errors=(*presets.step.on_errors, "unclear"))
_NUMBERS = ("integer", "integers", "number")
_DURATIONS = ("time", "times", "wait")  # without a unit in their key they may be texts: "30s"
_TRUTHS = frozenset("true false yes no on off".split())  # in quotes they are texts
_NAME = "checked"  # of things that are made for their checks only


def is_time(text: str) -> bool:
    """Whether settings take this text for a time; in a file only one with a unit is."""
    return not isinstance(seconds_of(text), str)


class Policies:
    """Makes policies of retry blocks; the same block is read once, however many steps have it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[RetryPolicy | None, dict[str, Any], Sequence[Problem]]] = {}

    def read(self, block: Mapping[str, Any]) -> tuple[RetryPolicy | None, dict[str, Any], Sequence[Problem]]:
        """The policy and its canonical block; None and what is wrong with it."""
        key = canonical(block)
        if key not in self._known:
            self._known[key] = self._read(block)
        return self._known[key]

    def _read(self, block: Mapping[str, Any]) -> tuple[RetryPolicy | None, dict[str, Any], Sequence[Problem]]:
        try:
            policy = RetryPolicy.from_config(block)
        except ConfigurationError as wrong:
            return None, {}, wrong.details
        return policy, retry_block(policy) | ({"mode": "requeue"} if block.get("mode") == "requeue" else {}), ()


def retry_block(policy: RetryPolicy) -> dict[str, Any]:
    """A policy as the canonical block that makes it again: every setting that has an effect, times in milliseconds."""
    jitter: Any = policy.jitter
    block: dict[str, Any] = {
        "max_attempts": policy.max_attempts,
        "jitter": jitter if isinstance(jitter, str | float) else {"add_ms": exact_ms(jitter["add"])},
        "cap": policy.cap,
        "max_retry_after_ms": exact_ms(policy.max_retry_after),
        "on_errors": list(in_order(policy.on_errors)),
        "skip_on_errors": list(in_order(policy.skip_on_errors)),
    }
    if policy.delays and policy.max_attempts > 1:
        block |= {"backoff": "schedule", "delays_ms": [exact_ms(one) for one in policy.delays]}
    else:
        top = None if policy.max_delay is None else exact_ms(policy.max_delay)
        block |= {"backoff": policy.backoff, "initial_delay_ms": exact_ms(policy.initial_delay), "max_delay_ms": top}
        block |= {"multiplier": policy.multiplier} if policy.backoff == "exponential" else {}
    if policy.retry_limits is not None:
        block["retry_limits"] = dict(policy.retry_limits)
    if policy.retry_exhausted is not None:
        block["retry_exhausted"] = policy.retry_exhausted
    return block


def times_of(block: Mapping[str, Any]) -> tuple[Times, list[Problem]]:
    """The time limits of a timeout block, in seconds."""
    read = Block("timeout", block)
    step, total = read.settings.get("timeout"), read.settings.get("total_timeout")
    if step is not None and total is not None and total < step:
        (shown,) = (str(where[-1]) for option, where in read.written.items() if option == "timeout")
        place = read.written["total_timeout"]
        read.check.add(
            place, f"at least {shown} ({block[shown]})", block[str(place[-1])], "no attempt could end in time"
        )
    return Times(step, total), read.check.problems


def timeout_block(times: Times) -> dict[str, float]:
    said = {"step_ms": times.step, "total_ms": times.total}
    return {key: exact_ms(value) for key, value in said.items() if value is not None}


def breaker_of(block: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[Problem]]:
    """The circuit of a step as canonical data. Its scope is its name, None if the block has none: one name, one circuit."""
    own = {key: block[key] for key in ("scope", "on_open", "shared") if key in block}
    rest = {key: value for key, value in block.items() if key not in own}
    try:
        made = named(CircuitBreaker, "circuit_breaker", rest, _NAME, also=(*STEP_BREAKER, "shared"))
    except ConfigurationError as wrong:
        return {}, wrong.details
    found = _data("circuit_breaker", made._as_settings())  # noqa: SLF001 - its settings as they are
    found |= {"scope": own.get("scope") or rest.get("name"), "on_open": own.get("on_open") or "fail"}
    return found | {"shared": own.get("shared") is not False}, ()


def limit_of(block: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[Problem]]:
    return _named_part(Limit, "limit", block)


def budget_of(block: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[Problem]]:
    return _named_part(RetryBudget, "retry_budget", block)


def _named_part(
    kind: type[Limit | RetryBudget], key: str, block: Mapping[str, Any]
) -> tuple[dict[str, Any], Sequence[Problem]]:
    """A limit or a budget as canonical data. Without a name it is None: it gets that of its step or connection."""
    rest = {name: value for name, value in block.items() if name != "shared"}
    try:
        made = kind.from_config(rest, name=_NAME)
    except ConfigurationError as wrong:
        return {}, wrong.details
    found = _data(key, made._as_settings())  # noqa: SLF001 - its settings as they are
    return found | {"name": rest.get("name"), "shared": block.get("shared") is True}, ()


def _data(block: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as canonical data: times in milliseconds, whatever has no effect left out."""
    found: dict[str, Any] = {}
    for name, key in BLOCKS[block].items():
        if name in ("name", "shared") or (key.option or name) not in settings:
            continue
        value = settings[key.option or name]
        if (key.needs and settings[key.needs] is None) or (key.unless and settings[key.unless] is not None):
            continue
        if key.kind in TIMES:
            found[f"{name}_ms"] = None if value is None else exact_ms(value)
        elif name == "rates":
            found[name] = {rate: _rate(value[rate]) for rate in sorted(value)}
        else:
            found[name] = value
    return found


def _rate(rate: Rate) -> dict[str, Any]:
    return {"amount": rate.amount, "per_ms": exact_ms(rate.per), "burst": rate.burst}


def code_of(block: str, problem: Problem) -> str:
    """The rule that a complaint of `settings` belongs to."""
    key = str(problem.path[0]) if problem.path else ""
    if problem.kind == "key":
        return "R43"
    if block == "retry":
        if key in ("max_attempts", "max_retries"):
            return "R01"
        if problem.expected.startswith("at most max_delay"):
            return "R02"
        if key == "jitter":
            return "R08"
        if key in ("on_errors", "skip_on_errors", "retriable_errors", "retryable_exceptions", "retry_limits"):
            return "R12" if problem.expected.startswith("free of") else "R13"
    if block == "timeout" and problem.expected.startswith("at least"):
        return "R03"
    return ""


def plain_path(path: Sequence[str | int]) -> tuple[str | int, ...]:
    """A path with keys as the file has them."""
    return tuple(str(part) if isinstance(part, Item) else part for part in path)


_NO_IDLE = re.compile(r", idle\w*")


def _with_unit(key: str, value: Any) -> str:
    """The way out for a text with its unit, under a key that names one."""
    seconds = seconds_of(value) if key.endswith(("_ms", "_s")) else None
    if not isinstance(seconds, float):
        return ""
    bare, _, unit = key.rpartition("_")
    number = exact_ms(seconds) if unit == "ms" else numeral(seconds)
    return f"write {key}: {number}, or {bare}: {value}"


def _way_out(problem: Problem) -> str:
    """Where `settings` has nothing more to say."""
    if problem.expected == "given once":
        return "keep one of the two"
    return "add it" if problem.got in ("none", "nothing") else USUAL


def _is_given(node: Node, name: str) -> bool:
    """Whether a mapping has what is needed: a time in another spelling, or something that may be meant for it."""
    if any(node.get(key) is not None for key in spellings(name, "time")):
        return True
    return any(is_misspelt(key.text, one) for key, _ in node.pairs for one in spellings(name, "time"))


def _is_left_out(node: Node, name: str) -> bool:
    """Whether a mapping has a value that settings were not given: it is wrong, which is told, or not known yet."""
    bare = name.removesuffix("_ms").removesuffix("_s")
    found = [node.get(key) for key in spellings(bare, "time")]
    return any(one is not None and not one.is_null for one in found)


# Kinds of keys that have a list or a mapping, of which the entries may be parameters; and how one is written.
_WRITTEN_OUT = {
    "times": ("a list", '["${params.first}", 5000]'),
    "integers": ("a mapping", '{network: "${params.retries}"}'),
}


def _not_as_a_whole(node: Node, kind: str) -> tuple[str, str, str]:
    what, example = _WRITTEN_OUT[kind]
    entries = "entries" if kind == "times" else "values"
    return f"{what} that is written out", got_of(node), f"its {entries} may be parameters: write it as {example}"


def _meant_error(text: str) -> str:
    """The error that is meant by a word; the word itself if it is one, or if nobody knows."""
    words = (*CATEGORIES, "all", *ERROR_CLASSES, *TIERS)
    return text if text in words or resolve(text) is not None else closest(text, words) or text


# -- in the file -------------------------------------------------------------------------------------------------------


class Blocks:
    """Reads the blocks of steps."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._policies = Policies()
        self._made: dict[tuple[str, str], tuple[dict[str, Any], Sequence[Problem]]] = {}

    def _block(self, node: Node, path: Path, block: str) -> dict[str, Any] | None:
        """A block as plain data, each value of the type that its key expects; what is wrong is told and left out."""
        if node.kind != "map":
            first = {"retry": "max_attempts: 3", "timeout": "step_ms: 60000", "circuit_breaker": "failure_threshold: 5"}
            self.values.wrong(
                node, path, "a mapping", got_of(node), f"write it as {block}: {{{first.get(block, '...')}}}"
            )
            return None
        kinds = known_keys(block)
        found: dict[str, Any] = {}
        for key, value in node.pairs:
            name = key.written
            if name not in kinds:
                name = self._meant(node, path, block, key, value)
            if not name:
                continue
            kind = kinds.get(name, "data")
            if kind in _WRITTEN_OUT and value.kind == "scalar" and "${" in value.text:
                self.values.wrong(value, (*path, yaml.step(name)), *_not_as_a_whole(value, kind), "R42")
                continue
            said = self.typed(value, (*path, yaml.step(name)), name, kind)
            if said is not MISSING:
                found[name] = said
        return found

    def _meant(self, node: Node, path: Path, block: str, key: Node, value: Node) -> str:
        """
        The key that a misspelt one is read as, which is told; nothing if there is no more to say of it. Of all others
        settings tell.
        """
        name = key.written
        known = {
            one: kind for one, kind in known_keys(block).items() if block != "timeout" or not one.startswith("idle")
        }
        if value.is_null and name.partition(":")[0] in known:  # {step:5m}
            self.values.unknown(key, path, block, known)
            return ""
        if value.kind == "scalar" and DURATION.fullmatch(value.text):  # which no key takes that has a unit
            known = {one: kind for one, kind in known.items() if not one.endswith(("_ms", "_s"))}
        meant = "" if len(self.values.mistakes) > MOST else closest(name, list(known))
        if node.get(meant) not in (None, value) or not self.values.is_meant(name, value, meant, known.get(meant, "")):
            return name
        self.values.unknown(key, path, block, known)
        node.rename(key, meant)
        return meant

    def typed(self, node: Node, path: Path, key: str, kind: str) -> Any:
        """A value of the kind that its key has; `MISSING` if it is none, which is told. Nothing (null) is left to settings."""
        if node.kind != "scalar" and kind == "truth":
            self.values.wrong(node, path, "true or false", got_of(node), "write true or false", "R43")
            return MISSING
        if node.kind != "scalar":
            return self._typed_inside(node, path, key, kind)
        value = self.values.filled(node, path)
        if value is MISSING or value is None:
            return value
        if isinstance(value, str):
            self.values.no_secrets(value, node, path)
        if isinstance(value, int | float) and not abs(value) < HUGE:
            code = "R01" if key in ("max_attempts", "max_retries") else ""
            self.values.wrong(node, path, "a finite number", got_of(node), USUAL, code)
            return MISSING
        if kind in _NUMBERS or (kind in _DURATIONS and key.endswith(("_ms", "_s"))):
            return self._number(node, path, key, kind, value)
        if kind == "truth" and not isinstance(value, bool):
            way_out = yaml.hint(node, "truth") or "write true or false"
            self.values.wrong(node, path, "true or false", got_of(node), way_out, "R43")
            return MISSING
        if isinstance(value, str) and kind in _DURATIONS and not DURATION.fullmatch(value) and is_time(value):
            way_out = "write it without quotes" if value.strip() == value else "write it without spaces around it"
            way_out = "a time is not negative: leave the - out" if value.strip().startswith("-") else way_out
            self.values.wrong(node, path, 'seconds, or a text with a unit such as "30s"', show(value), way_out, "R43")
            return MISSING
        if kind == "jitter" and isinstance(value, str):
            way_out = yaml.hint(node, "truth") or yaml.hint(node, "number")
            if not way_out and (value.strip().lower() in _TRUTHS or is_time(value)):
                way_out = "what is quoted is a text: write a number, true or false without quotes"
            if way_out:
                self.values.wrong(node, path, "a ratio from 0 to 1, or true or false", got_of(node), way_out, "R43")
                return MISSING
        if isinstance(value, str) and yaml.is_ambiguous(node):
            self.values.wrong(node, path, "a number or a text", node.text, yaml.two_ways(node), "R43")
            return MISSING
        return value

    def _number(self, node: Node, path: Path, key: str, kind: str, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        expected = "an integer" if kind.startswith("integer") else "milliseconds" if key.endswith("_ms") else "a number"
        hint = yaml.hint(node, "number") or _with_unit(key, value)
        code = "R43" if hint else "R01" if key in ("max_attempts", "max_retries") else ""
        self.values.wrong(node, path, expected, got_of(node), hint or USUAL, code)
        return MISSING

    def _typed_inside(self, node: Node, path: Path, key: str, kind: str) -> Any:
        inner = {"jitter": "time", "integers": "integers", "times": "times"}.get(kind, "data")
        if node.kind == "list":
            found = [self.typed(one, (*path, number), key, inner) for number, one in enumerate(node.items)]
            return MISSING if MISSING in found else found  # what settings say of the others would be off by one
        kinds = known_keys("rate") if key != "rates" and kind == "block" else {}
        pairs = {
            one.text: self.typed(
                value, (*path, yaml.step(one.text)), one.text, kinds.get(one.text, "block" if key == "rates" else inner)
            )
            for one, value in node.pairs
        }
        told = {name: value for name, value in pairs.items() if value is not MISSING}
        return told if told or not pairs else MISSING  # what is left of it is not what was written

    def complain(self, node: Node, path: Path, block: str, problems: Sequence[Problem]) -> None:
        """What settings say of a block, at its places in the file."""
        known: dict[int, bool] = {}
        for problem in problems:
            inside = plain_path(problem.path)
            if (*path, *yaml.steps(inside)) in self.values.secrets_told and problem.kind != "key":
                continue
            at, around = node.at(inside), node.at(inside[:-1])
            if (problem.expected, problem.got) == ("given", "nothing") and _is_given(around, str(inside[-1])):
                continue  # what is wrong with it has been told
            if problem.got == "none" and inside and _is_left_out(around, str(inside[-1])):
                continue
            if problem.kind == "key" and inside:
                at = around.key(str(inside[-1])) or at
            where = (*path, *yaml.steps(inside))
            expected, got = problem.expected.replace('{"add": seconds}', "{add_ms: 1000}"), problem.got
            way_out = worded(problem.way_out) or _way_out(problem)
            if problem.kind == "key":
                way_out = way_out.replace("known: ", "known are ")
                way_out = _NO_IDLE.sub("", way_out) if block == "timeout" else way_out  # which no step has
            if problem.kind == "text":
                expected, got = "no such block", problem.expected
            elif (expected, got) == ("given", "nothing"):
                expected, way_out = f"the key {where[-1]}", f"add it: {way_out}"
            elif expected.startswith(("given", "left out")):
                expected = f"it {expected}"
            elif expected.startswith("free of"):
                expected = f"a list {expected}"
            is_there = at is not around or not inside  # otherwise it is a default that does not go with the rest
            got = got if problem.kind == "key" or not is_there else as_written(at, got, known)
            if got.startswith("a value of type ") or (got == "0.0" and at.kind == "scalar"):
                got = got_of(at)  # in the words of the file
            if "[...] around it" in way_out and at.kind == "scalar" and ID.fullmatch(at.text):
                way_out = f"write {where[-1]}: [{_meant_error(at.text)}]"
            self.values.wrong(at, where, expected, got, way_out, code_of(block, problem))

    def retry(self, node: Node | None, path: Path, usual: RetryPolicy) -> tuple[RetryPolicy, dict[str, Any]]:
        if node is None or node.is_null:
            return usual, retry_block(usual)
        block = self._block(node, path, "retry")
        if block is None:
            return usual, retry_block(usual)
        policy, shown, problems = self._policies.read(block)
        if policy is None:
            self.complain(node, path, "retry", problems)
            return usual, retry_block(usual)
        if policy.max_attempts > MOST_ATTEMPTS:
            key = next((one for one in ("max_attempts", "max_retries", "delays_ms") if one in block), "max_attempts")
            expected, got = f"at most {MOST_ATTEMPTS:,} attempts", f"{policy.max_attempts:,}"
            self.values.wrong(node.at((key,)), (*path, key), expected, got, "lower it, and let the waits grow", "R01")
            return usual, retry_block(usual)
        return policy, shown

    def times(self, node: Node | None, path: Path) -> Times:
        if node is None or node.is_null:
            return Times()
        block = self._block(node, path, "timeout")
        if block is None:
            return Times()
        for key in [one for one in block if one.startswith("idle")]:
            self.values.wrong(
                node.key(key) or node, (*path, key), "step_ms or total_ms", show(key), "leave it out", "R43"
            )
            del block[key]
        times, problems = times_of(block)
        self.complain(node, path, "timeout", problems)
        return times

    def part(self, node: Node | None, path: Path, key: str, scope: str) -> dict[str, Any] | None:
        """A circuit breaker, a limit or a retry budget; without a name of its own it has that of the `scope`."""
        if node is None or node.is_null:
            return None
        where = (*path, key)
        block = self._block(node, where, key)
        if block is None:
            return None
        self._names(node, where, block)
        if "on_open" in block and block["on_open"] not in (None, "fail", "wait"):
            at, way_out = node.at(("on_open",)), worded(nearest(str(block["on_open"]), ("fail", "wait")))
            self.values.wrong(at, (*where, "on_open"), "fail or wait", got_of(at), way_out or "choose one of the two")
            del block["on_open"]
        known = (key, canonical(block))
        if known not in self._made:
            self._made[known] = _MAKE[key](block)
        made, problems = self._made[known]
        self.complain(node, where, key, problems)
        called = "scope" if key == "circuit_breaker" else "name"
        return None if problems else made | {called: made[called] or scope}

    def _names(self, node: Node, where: Path, block: dict[str, Any]) -> None:
        for one in ("scope", "name"):
            if one in block and not (isinstance(block[one], str) and block[one]):
                at = node.at((one,))
                self.values.wrong(at, (*where, one), "a name", got_of(at), "write a text, in quotes if it is a number")
                del block[one]
        if "scope" in block and "name" in block:
            self.values.wrong(
                node.at(("scope",)), (*where, "scope"), "it given once", "both name and scope", "keep scope"
            )


_MAKE: dict[str, Callable[[Mapping[str, Any]], tuple[dict[str, Any], Sequence[Problem]]]] = {
    "circuit_breaker": breaker_of,
    "limit": limit_of,
    "retry_budget": budget_of,
}
