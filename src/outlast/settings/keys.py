"""
The configuration blocks of a guard and its parts, as tables; how a block is read against its table, and how a thing is
shown as one.

A duration may be written as ``timeout``, ``timeout_s`` or ``timeout_ms``, and without a unit in its key also as
``"30s"`` or ``"500ms"``. Numbers and truths may be text, as they are in environment variables. The retry block has more
spellings, and a module of its own: `blocks`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from outlast.errors import ConfigurationError, Problem
from outlast.settings.callables import name_of
from outlast.settings.checks import Check, Shown, show
from outlast.settings.names import attribute

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Key(NamedTuple):
    """
    One key of a block: what kind of value it has, what it means, and the option that it sets if that has another name.
    """

    kind: str
    meaning: str
    option: str = ""
    needed: bool = False
    of: str = ""  # the option without which it means nothing
    needs: str = ""  # the same, where only a block is refused for it
    unless: str = ""  # the option with which it has no effect


_NAME = Key("text", "its name; if left out, that of the guard")
_SHARED = Key("truth", "whether all processes that use the store have it together")

# Block -> its keys. Kinds: text, integer, number, truth, list; wait (seconds of at least 0) and time (seconds greater
# than 0), each in three spellings; function (module:name); block (another block, or several).
BLOCKS: dict[str, dict[str, Key]] = {
    "guard": {
        "name": Key("text", "its name, also for the parts that have none of their own"),
        "preset": Key("text", "the ready-made policy that is retried by; the block retry changes it"),
        "retry": Key("block", "a retry block; null for one attempt"),
        "timeout": Key("time", "one attempt; or a block with step, total and idle"),
        "total_timeout": Key("time", "everything, waits included"),
        "idle_timeout": Key("time", "the wait for each item of an async generator"),
        "isolation": Key("text", "thread or process"),
        "circuit_breaker": Key("block", "a circuit_breaker block", "breaker"),
        "limit": Key("block", "a limit block"),
        "cost": Key("function", "what an attempt will use of the limit's rates", of="limit"),
        "retry_budget": Key("block", "a retry_budget block"),
        "hedge": Key("block", "a hedge block"),
        "on_open": Key(
            "text", "fail or wait, at an open circuit; may also stand in the block circuit_breaker", of="breaker"
        ),
        "retry_if": Key("function", "which results are tried again"),
        "fallback": Key("function", "what answers when all else has failed"),
        "fallback_on": Key("list", "the errors that the fallback answers for", of="fallback"),
        "idempotent": Key("truth", "false: the work must not be done twice"),
    },
    "timeout": {
        "step": Key("time", "one attempt", "timeout"),
        "total": Key("time", "everything, waits included", "total_timeout"),
        "idle": Key("time", "the wait for each item of an async generator", "idle_timeout"),
    },
    "circuit_breaker": {
        "name": _NAME,
        "failure_threshold": Key("integer", "failures in a row that open it", unless="failure_rate"),
        "reset_timeout": Key("wait", "time until probes may start"),
        "half_open_requests": Key("integer", "probes that may run at a time"),
        "success_threshold": Key("integer", "successful probes that close it; null for as many as half_open_requests"),
        "failure_rate": Key("number", "instead of failure_threshold: the share of the last calls that opens it"),
        "window": Key("integer", "how many calls the rate looks at", needs="failure_rate"),
        "min_calls": Key("integer", "calls before the rate means anything", needs="failure_rate"),
        "slow_call": Key("time", "a call that took longer counts as a failure"),
        "open_jitter": Key("number", "varies the open time by this ratio"),
        "open_growth": Key("number", "multiplies the open time with each failed round of probes"),
        "count": Key("text", "faults or any"),
        "mode": Key("text", "on or shadow"),
        "shared": _SHARED,
    },
    "limit": {
        "name": _NAME,
        "concurrency": Key("integer", "calls that may be under way at a time"),
        "rates": Key("block", "a mapping from a name, such as calls or tokens, to a rate block"),
        "max_wait": Key("wait", "how long a call may wait in line; null for as long as it takes"),
        "adaptive": Key("truth", "whether it heeds a service that says too many"),
        "shared": _SHARED,
    },
    "rate": {
        "amount": Key("number", "how much", needed=True),
        "per": Key("time", "in which time", needed=True),
        "burst": Key("number", "what may be taken at once"),
    },
    "retry_budget": {
        "name": _NAME,
        "ratio": Key("number", "what a call that succeeds at its first attempt deposits"),
        "reserve": Key("integer", "retries that are there from the start"),
        "shared": _SHARED,
    },
    "hedge": {
        "after": Key("time", "time until the next execution starts", needed=True),
        "max_hedges": Key("integer", "how many are started at the most"),
    },
}
TIMES = ("wait", "time")
_NUMBER = re.compile(r"[+-]?(\d+|\d+\.\d*|\.\d+)(e[+-]?\d{1,3})?", re.ASCII | re.IGNORECASE)
_DURATION = re.compile(r"(?P<amount>[+-]?(?:\d+(?:\.\d*)?|\.\d+))\s*(?P<unit>ms|s|min|m|h|d)", re.ASCII)
UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
UNIT_WORDS = {"sec": "s", "second": "s", "minute": "m", "hour": "h", "day": "d"}  # of a rate
_TRUTHS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_LONGEST = 40  # characters of a number


def spellings(name: str, kind: str) -> tuple[str, ...]:
    """The keys that a setting may be written as."""
    return (name, f"{name}_s", f"{name}_ms") if kind in TIMES else (name,)


def keys_of(block: str) -> dict[str, str]:
    """Every key that a block may have, in every spelling, with what it means."""
    return {key: one.meaning for name, one in BLOCKS[block].items() for key in spellings(name, one.kind)}


# -- text ------------------------------------------------------------------------------------------------------------------


def number_of(value: Any) -> Any:
    """The number that a text says; anything else as it is."""
    if not isinstance(value, str) or len(value) > _LONGEST or not _NUMBER.fullmatch(value.strip()):
        return value
    number = float(value)
    return int(value) if value.strip().lstrip("+-").isdecimal() else number


def truth_of(value: Any) -> Any:
    """The truth that a text says; anything else as it is."""
    return _TRUTHS.get(value.strip().lower(), value) if isinstance(value, str) else value


def seconds_of(value: Any) -> Any:
    """The seconds that a text with a unit, or a timedelta, says; anything else as `number_of` has it."""
    if isinstance(value, str) and len(value) <= _LONGEST and (said := _DURATION.fullmatch(value.strip())):
        return float(said["amount"]) * UNITS[said["unit"]]
    total = None if isinstance(value, type) else getattr(value, "total_seconds", None)
    return number_of(value) if total is None else total()


def time_of(check: Check, where: tuple[str | int, ...], key: str, value: Any, *, positive: bool = False) -> float:
    """A duration in seconds, written under a key that says its unit or says none."""
    unit, size = ("milliseconds", 1000) if key.endswith("_ms") else ("seconds", 1)
    bare = not key.endswith(("_ms", "_s"))
    # A timedelta has its unit with it.
    said = seconds_of(value) if bare or (size == 1 and not isinstance(value, str)) else number_of(value)
    bound = "greater than 0" if positive else "of at least 0"
    way_out = ""
    if _endless(value):
        way_out = "It must be finite."
    elif isinstance(said, str) and bare:
        way_out = 'A text has its unit with it: "500ms", "30s", "5m", "2h", "1d".'
    elif isinstance(said, str) and isinstance(seconds_of(value), float) and key != "base_delay_ms":  # another dialect
        way_out = f"A text has its unit with it: write it under {key.rpartition('_')[0]}."
    if way_out:
        check.add(where, f"{unit} {bound}", value, way_out)
        return 0.0
    told = len(check.problems)
    found = check.number(where, said, low=0, default=0.0, open_low=positive, what=unit) / size
    if isinstance(value, str) and len(check.problems) > told:  # as it was written: '0s' is not 0.0
        check.problems[told] = check.problems[told].replace(got=show(value))
    return found


def _as_rate(value: Any) -> str:
    """A rate that may be meant by what is none: a number without a time, or with it in other words."""
    number = re.match(r"\s*(\d{1,15})(?:\D|$)", str(value)) if isinstance(value, str | int) else None
    unit = re.search(r"sec|min|hour|day", str(value))
    shown = f"{number[1] if number else 500}/{unit[0] if unit else 'min'}"
    return f'Say in which time: "{shown}".' if unit is None else f'Write "{shown}".'


def _endless(value: Any) -> bool:
    return (
        str(value).strip().lower() in ("inf", "+inf", "infinity", ".inf") if isinstance(value, str | float) else False
    )


# -- reading ---------------------------------------------------------------------------------------------------------------


class _StandIn:
    """Stands for a part of a guard that is wrong: it has whatever such a part has."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self) -> None: ...


_STAND_IN = _StandIn()


class Block:
    """
    A block as it was written: the `settings` that it makes, and in `check` what is wrong with it. `parts` makes the
    blocks inside of it, `named` the functions; `also` are keys that are read elsewhere.
    """

    def __init__(
        self,
        kind: str,
        config: Mapping[str, Any],
        parts: Mapping[str, Callable[[Any], Any]] | None = None,
        named: Callable[[str], Any] | None = None,
        also: tuple[str, ...] = (),
    ) -> None:
        self.check = Check()
        self.settings: dict[str, Any] = {}
        self.written: dict[str, tuple[str | int, ...]] = {}  # option -> where it stands
        self._complained: set[str] = set()
        self._parts = parts or {}
        self._named = named
        if not isinstance(config, Mapping):
            is_rate = kind == "rate"
            expected = (
                'a rate, such as "500/min", or a mapping with amount and per' if is_rate else "a mapping of settings"
            )
            self.check.add((), expected, config, _as_rate(config) if is_rate else "")
            self.check.raise_if_any()
        self.config, self._keys = config, BLOCKS[kind]
        self.check.unknown_keys(config, (*keys_of(kind), *also))
        for name, key in BLOCKS[kind].items():
            self._read(name, key)
        for name, key in BLOCKS[kind].items():
            self._effect(name, key)

    def _read(self, name: str, key: Key) -> None:
        option = key.option or name
        given = [one for one in spellings(name, key.kind) if one in self.config]
        if len(given) > 1:
            self.check.add(name, "given once", Shown(f"both {given[0]} and {given[1]}"))
        if not given:
            if key.needed:
                self.check.add(name, "given", Shown("nothing"), key.meaning.capitalize() + ".")
                self._complained.add(option)
            return
        self.put(option, (given[0],), lambda: self._value(key, given[0], self.config[given[0]]))

    def _effect(self, name: str, key: Key) -> None:
        """What is written and would change nothing is refused."""
        if name not in self.config or self._complained.intersection((key.needs, key.unless)):
            return
        if key.needs and self.settings.get(key.needs) is None:
            self.check.add(name, f"left out without {key.needs}", self.config[name], key.meaning.capitalize() + ".")
        if key.unless and self.settings.get(key.unless) is not None:
            way_out = f"{key.unless} stands in its place."
            self.check.add(name, f"left out with {key.unless}", self.config[name], way_out)

    def put(self, option: str, where: tuple[str | int, ...], make: Callable[[], Any]) -> None:
        """Have an option from this place in the block; what is wrong with it is told once, and the option left out."""
        if option in self.written:
            both = Shown(f"both {Problem(self.written[option]).where} and {Problem(where).where}")
            self.check.add(self.written[option], "given once", both)
            return
        self.written[option] = where
        known, value = len(self.check.problems), None
        try:
            value = make()
        except ConfigurationError as wrong:
            self.check.take(wrong, *where)
        if len(self.check.problems) > known:
            self._complained.add(option)
        else:
            self.settings[option] = value

    def _value(self, key: Key, written: str, value: Any) -> Any:
        if value is None:
            return None
        if key.kind in TIMES:
            return time_of(self.check, (written,), written, value, positive=key.kind == "time")
        if key.kind in ("integer", "number"):
            return number_of(value)
        if key.kind == "truth":
            return truth_of(value)
        if key.kind == "function":
            if not isinstance(value, str) or self._named is None:
                self.check.add(written, 'the name of a function, as "module:name"', value)
                return None
            return self._named(value)
        return self._parts[written](value) if key.kind == "block" else value

    def made(self, make: Callable[..., T]) -> T:
        """What the settings make; every mistake at once, under the keys that were written."""
        needed = {key.option or name: 1.0 for name, key in self._keys.items() if key.needed}
        stood_for = {key.of: _STAND_IN for key in self._keys.values() if key.of} | needed
        # What is missing or wrong has something in its place, so that the rest is looked at as well.
        settings = {option: one for option, one in stood_for.items() if option in self._complained} | self.settings
        try:
            thing = make(**settings)
        except ConfigurationError as wrong:
            self.check.problems += [
                self._told(problem)
                for problem in wrong.details
                if not problem.path or problem.path[0] not in self._complained
            ]
            self.check.raise_if_any()
            raise
        self.check.raise_if_any()
        return thing

    def _told(self, problem: Problem) -> Problem:
        option = str(problem.path[0]) if problem.path else ""
        where = self.written.get(option)
        if where is None:
            return problem
        seconds = self.settings.get(option)
        in_words = str(where[-1]).endswith("_ms") and isinstance(seconds, float) and problem.got == show(seconds)
        got = f"{seconds:g} s" if in_words else problem.got
        return problem.replace(path=(*where, *problem.path[1:]), got=got)


def named(
    make: Callable[..., T],
    kind: str,
    config: Mapping[str, Any],
    name: str | None,
    parts: Mapping[str, Callable[[Any], Any]] | None = None,
    also: tuple[str, ...] = (),
) -> T:
    """What a block makes that is known by a name: its own, or else this one."""
    block = Block(kind, config, parts, also=also)
    if "name" not in block.written:
        if name is None:
            block.check.add("name", "given", Shown("nothing"), "Say name in the block, or give one to its guard.")
        block.settings["name"] = name or "unnamed"
    return block.made(make)


def rate_of(config: Any) -> Any:
    """
    The block that a rate in one word stands for: ``"500/min"``; one whose time is a unit alone, ``{"per": "min"}``, in
    full; anything else as it is.
    """
    if isinstance(config, str) and len(config) <= _LONGEST and "/" in config:
        amount, _, time = config.partition("/")
        config = {"amount": amount.strip(), "per": time.strip()}
    if not isinstance(config, Mapping) or not isinstance(per := config.get("per"), str):
        return config
    unit = UNIT_WORDS.get(per.strip(), per.strip())
    return {**config, "per": f"1{unit}"} if unit in UNITS else config


# -- functions by name -----------------------------------------------------------------------------------------------------


def name_for(check: Check, where: str, function: Any) -> str | None:
    """``module:name`` of a function that can be found there again; the problem, if it cannot."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    with suppress(AttributeError):
        if attribute(sys.modules.get(str(module)), str(name)) is function and module != "__main__":
            return f"{module}:{name}"
    way_out = "Configuration names a function as module:name. Define it at the top of a module."
    check.add(where, "a function that its name leads to", Shown(name_of(function)), way_out)
    return None


# -- showing ---------------------------------------------------------------------------------------------------------------


def shown(
    block: str,
    options: Mapping[str, Any],
    usual: Mapping[str, Any],
    parts: Mapping[str, Callable[[Any], Any]] | None = None,
) -> dict[str, Any]:
    """A thing as its block: what differs from the usual, times as seconds. `parts` shows what is no plain data."""
    found: dict[str, Any] = {}
    for name, key in BLOCKS[block].items():
        option = key.option or name
        if option not in options or (option in usual and options[option] == usual[option]):
            continue
        if (key.needs and options[key.needs] is None) or (key.unless and options[key.unless] is not None):
            continue  # it has no effect
        value = options[option]
        if value is not None and parts and name in parts:
            value = parts[name](value)
        found[f"{name}_s" if key.kind in TIMES else name] = value
    return found
